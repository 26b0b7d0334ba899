//! The host of a node's remote views: the built-in types, as many as there is room for.
//!
//! It is a program like any other: it reads the log as a client and has a runtime. What it keeps is made again from the log, so it may be
//! lost, and given up to make room: the view that was asked for longest ago first.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_env::sync::Notify;
use ithaca_log::client::{Client, ClientError, ClientOptions};
use ithaca_log::limits::VIEW_ANSWER_MAX_BYTES;
use ithaca_log::pos::{LogPos, StreamId};
use ithaca_log::server::{Answering, ViewHost};

use super::any::Any;
use super::{Answer, Asked, Question, Refused};
use crate::access::{Access, encoded_bytes};
use crate::collections::{Blob, CounterState, ListState, MapState, MultiMapState, RegisterState};
use crate::composed::{Node, Shape};
use crate::error::ObjectError;
use crate::limits;
use crate::object::{CallError, Method, Object};
use crate::record::Call;
use crate::{Handle, Runtime, RuntimeOptions};

/// How a host behaves.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// How it reaches the log: by the node's own address as a rule.
    pub client: ClientOptions,
    /// How its views are read, and when checkpoints are made of them.
    pub objects: RuntimeOptions,
    /// Views that it keeps.
    pub views_max: usize,
    /// Bytes of what they hold, encoded, and of what they keep to take records back; the view that was asked for last is kept, however large it is.
    pub bytes_max: u64,
}

impl Default for HostOptions {
    fn default() -> Self {
        Self {
            client: ClientOptions::default(),
            objects: RuntimeOptions::default(),
            views_max: limits::HOSTED_MAX_COUNT,
            bytes_max: limits::HOSTED_MAX_BYTES,
        }
    }
}

/// Keeps views of objects at a node, and answers questions about them. It reaches the log when it is asked for the first time.
pub struct Host {
    inner: Rc<Inner>,
}

struct Inner {
    env: Env,
    options: HostOptions,
    runtime: RefCell<Option<Runtime>>,
    is_connecting: Cell<bool>,
    /// Rings when an attempt to reach the log has ended.
    connected: Notify,
    /// The error of the last attempt that failed, and the rings of the bell before it.
    not_connected: RefCell<Option<(u64, ClientError)>>,
    kept: RefCell<BTreeMap<StreamId, Kept>>,
    /// Bytes of all that is kept.
    bytes: Cell<u64>,
    /// Questions so far.
    asked: Cell<u64>,
}

struct Kept {
    view: Rc<dyn Hosted>,
    /// What it was taken to hold when it had answered last.
    bytes: u64,
    /// Which question was the last about it.
    last: u64,
}

impl Host {
    /// A host that keeps nothing yet.
    pub fn new(env: &Env, options: HostOptions) -> Self {
        let inner = Inner {
            env: env.clone(),
            options,
            runtime: RefCell::default(),
            is_connecting: Cell::default(),
            connected: Notify::default(),
            not_connected: RefCell::default(),
            kept: RefCell::default(),
            bytes: Cell::default(),
            asked: Cell::default(),
        };
        Self { inner: Rc::new(inner) }
    }

    /// How many views it keeps.
    pub fn len(&self) -> usize {
        self.inner.kept.borrow().len()
    }

    /// Whether it keeps none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl ViewHost for Host {
    fn ask(&self, stream: StreamId, question: Bytes) -> Answering {
        let inner = Rc::clone(&self.inner);
        Box::pin(async move {
            let answer = match inner.answer(stream, &question).await {
                Ok((upto, value)) => Answer::Value { upto: upto.0, value: Blob(value.into()) },
                Err(refused) => Answer::Refused(refused),
            };
            answer.to_bytes()
        })
    }

    fn forget(&self) {
        self.inner.forget_all();
    }
}

impl Inner {
    async fn answer(self: &Rc<Self>, stream: StreamId, asked: &[u8]) -> Result<(LogPos, Vec<u8>), Refused> {
        let question: Question =
            rmp_serde::from_slice(asked).map_err(|error| Refused::Malformed { why: error.to_string() })?;
        let is_whole = question.at.is_some() || (question.calls.is_empty() && question.read.is_some());
        if !is_whole || (question.calls.is_empty() && question.read.is_none()) {
            let why = "calls without a position, or nothing that is asked".to_owned();
            return Err(Refused::Malformed { why });
        }
        let span = self.options.client.timeout;
        let (until, late) =
            (self.env.now() + span, |_| Refused::Unavailable { why: format!("not within {span:?}") });
        let view = self.env.timeout_at(until, self.view(stream, &question.object)).await.map_err(late)??;
        // What was read stays read, so whoever asks again finds it further on. A position that the log never reaches is not waited for.
        let answered = self.env.timeout_at(until, Rc::clone(&view).answer(stream, question)).await;
        self.make_room(stream);
        let (upto, value) = answered.map_err(late)?.map_err(Refused::of)?;
        let (bytes, limit) = (value.len() as u64, (VIEW_ANSWER_MAX_BYTES - limits::ANSWER_HEAD_BYTES) as u64);
        if bytes > limit {
            return Err(Refused::TooLarge { bytes, limit });
        }
        Ok((upto, value))
    }

    /// The view of a stream, which may have nothing of it yet.
    async fn view(self: &Rc<Self>, stream: StreamId, object: &str) -> Result<Rc<dyn Hosted>, Refused> {
        self.asked.set(self.asked.get() + 1);
        let runtime =
            self.runtime().await.map_err(|error| Refused::Unavailable { why: error.to_string() })?;
        let mut kept = self.kept.borrow_mut();
        if let Some(other) = kept.get(&stream).map(|kept| &kept.view).filter(|view| view.object() != object) {
            // One that somebody took for another type has nothing, or has stopped at its first record.
            if other.is_of_its_type() {
                return Err(Refused::OtherType { found: other.object().to_owned() });
            }
            self.give_up(&mut kept, stream);
        }
        if let Some(kept) = kept.get_mut(&stream) {
            kept.last = self.asked.get();
            return Ok(Rc::clone(&kept.view));
        }
        let view = opened(&runtime, stream, object)?;
        kept.insert(stream, Kept { view: Rc::clone(&view), bytes: 0, last: self.asked.get() });
        Ok(view)
    }

    /// The objects, as soon as the log is reached. One attempt serves all who wait for it.
    async fn runtime(self: &Rc<Self>) -> Result<Runtime, ClientError> {
        let ticket = loop {
            let known = self.runtime.borrow().clone();
            match known.filter(|runtime| !runtime.client().is_after_loss()) {
                Some(runtime) => return Ok(runtime),
                // It connected just before the cluster lost nodes, and was not told with the others.
                None => self.forget_all(),
            }
            let ticket = self.connected.ticket();
            if !self.is_connecting.replace(true) {
                break ticket;
            }
            self.connected.after(ticket).await;
            // Each in turn would wait as long as the one before.
            let failed = self.not_connected.borrow().clone();
            if let Some((_, error)) = failed.filter(|(rings, _)| *rings == ticket) {
                return Err(error);
            }
        };
        let _attempt = Attempt(self);
        let connected = Client::connect(&self.env, self.options.client.clone()).await;
        let client = connected.inspect_err(|error| {
            self.not_connected.replace(Some((ticket, error.clone())));
        })?;
        let runtime = Runtime::new(&self.env, client, self.options.objects.clone());
        self.runtime.replace(Some(runtime.clone()));
        Ok(runtime)
    }

    /// Gives views up until there is room, but for that of `stream`.
    fn make_room(&self, stream: StreamId) {
        let mut kept = self.kept.borrow_mut();
        if let Some(asked) = kept.get_mut(&stream) {
            let before = std::mem::replace(&mut asked.bytes, asked.view.bytes());
            self.bytes.set(self.bytes.get() - before + asked.bytes);
        }
        while kept.len() > self.options.views_max || self.bytes.get() > self.options.bytes_max {
            let others = kept.iter().filter(|(other, _)| **other != stream);
            let Some((&oldest, _)) = others.min_by_key(|(_, kept)| kept.last) else { return };
            self.give_up(&mut kept, oldest);
        }
    }

    fn forget_all(&self) {
        self.runtime.replace(None);
        self.kept.borrow_mut().clear();
        self.bytes.set(0);
    }

    fn give_up(&self, kept: &mut BTreeMap<StreamId, Kept>, stream: StreamId) {
        let bytes = kept.remove(&stream).map_or(0, |kept| kept.bytes);
        self.bytes.set(self.bytes.get() - bytes);
    }
}

/// An attempt to reach the log, over when dropped.
struct Attempt<'a>(&'a Inner);

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.0.is_connecting.set(false);
        self.0.connected.ring();
    }
}

/// A view of the type that is called so.
fn opened(runtime: &Runtime, stream: StreamId, object: &str) -> Result<Rc<dyn Hosted>, Refused> {
    fn open<O: Object>(runtime: &Runtime, stream: StreamId) -> Result<Rc<dyn Hosted>, Refused> {
        let handle = runtime.open_stream::<O>(stream, &stream.to_string()).map_err(|error| match error {
            // Somebody asks for what this is not, and is not told yet. So it is open for as long as that takes.
            ObjectError::OtherType { .. } => Refused::Unavailable { why: error.to_string() },
            error => Refused::of(error),
        })?;
        Ok(Rc::new(View { handle, bytes: Cell::default(), weighed: Cell::default(), marks: Cell::default() }))
    }
    match object {
        <MapState<Any, Any> as Object>::TYPE => open::<MapState<Any, Any>>(runtime, stream),
        <MultiMapState<Any, Any> as Object>::TYPE => open::<MultiMapState<Any, Any>>(runtime, stream),
        <ListState<Any> as Object>::TYPE => open::<ListState<Any>>(runtime, stream),
        <RegisterState<Any> as Object>::TYPE => open::<RegisterState<Any>>(runtime, stream),
        CounterState::TYPE => open::<CounterState>(runtime, stream),
        Shape::TYPE => open::<Shape>(runtime, stream),
        <Node<Any, Any> as Object>::TYPE => open::<Node<Any, Any>>(runtime, stream),
        _ => Err(Refused::UnknownType { object: object.to_owned() }),
    }
}

type Later<T> = Pin<Box<dyn Future<Output = T>>>;

/// A view, whatever its type is.
trait Hosted {
    /// The name of its type.
    fn object(&self) -> &'static str;
    /// Whether its stream is known to be of that type.
    fn is_of_its_type(&self) -> bool;
    /// Answers a question.
    fn answer(
        self: Rc<Self>,
        stream: StreamId,
        question: Question,
    ) -> Later<Result<(LogPos, Vec<u8>), ObjectError>>;
    /// Bytes of what it holds, about.
    fn bytes(&self) -> u64;
}

struct View<O: Object> {
    handle: Handle<O>,
    /// What it held when it was weighed last, and the bytes of all calls until then.
    bytes: Cell<u64>,
    weighed: Cell<u64>,
    /// Records and their bytes that it had read once, and later on: at least as many were read after the first as can be taken back.
    marks: Cell<[(u64, u64); 2]>,
}

/// A view is weighed again when so many bytes of calls have come, or half as many as it has.
const WEIGH_EVERY_BYTES: u64 = 1 << 20;

impl<O: Object> Hosted for View<O> {
    fn object(&self) -> &'static str {
        O::TYPE
    }

    fn is_of_its_type(&self) -> bool {
        self.handle.read_so_far().0 > 0 && self.handle.in_memory(|_| ()).is_ok()
    }

    fn answer(
        self: Rc<Self>,
        stream: StreamId,
        question: Question,
    ) -> Later<Result<(LogPos, Vec<u8>), ObjectError>> {
        Box::pin(async move {
            let Question { least, at, calls, read, .. } = question;
            let own: Vec<Call> = calls.into_iter().map(|call| call_of(stream, call)).collect();
            let last = own.last().map(|call| call.method.clone());
            let mut value = None;
            let mut look = |state: &O, output: Option<Box<dyn std::any::Any>>| {
                value = Some(match &read {
                    Some(Asked { method, arguments }) => Access::run(method, &arguments.0, state),
                    None => encoded::<O>(&last.clone().unwrap_or_default(), output),
                });
            };
            let upto = self.handle.look_for_another(LogPos(least), at.map(LogPos), &own, &mut look).await?;
            self.weigh();
            Ok((upto, value.expect("it was looked at")?))
        })
    }

    fn bytes(&self) -> u64 {
        let (records, bytes) = self.handle.read_so_far();
        self.bytes.get() + bytes.saturating_sub(self.weighed.get()) + self.undo_bytes(records, bytes)
    }
}

impl<O: Object> View<O> {
    /// Bytes that it keeps of what was replaced, to take records back, about: those of the calls, by what a record has had of late.
    fn undo_bytes(&self, records: u64, bytes: u64) -> u64 {
        let [first, _] = self.marks.get();
        let first = first.max(self.handle.began_at());
        let (records, bytes) = (records.saturating_sub(first.0), bytes.saturating_sub(first.1));
        let kept = records.min(O::HISTORY_MAX_COUNT as u64);
        let share = u128::from(bytes) * u128::from(kept) / u128::from(records.max(1));
        (share as u64).min(limits::HISTORY_MAX_BYTES)
    }

    /// Finds out how much it holds, if much may have changed since.
    fn weigh(&self) {
        let (records, read) = self.handle.read_so_far();
        let [_, later] = self.marks.get();
        if records.saturating_sub(later.0) >= O::HISTORY_MAX_COUNT as u64 {
            self.marks.set([later, (records, read)]);
        }
        if read.saturating_sub(self.weighed.get()) > WEIGH_EVERY_BYTES.max(self.bytes.get() / 2) {
            let bytes = self.handle.in_memory(|state| encoded_bytes(state).unwrap_or(0));
            self.bytes.set(bytes.unwrap_or(0) as u64);
            self.weighed.set(read);
        }
    }
}

fn call_of(stream: StreamId, asked: Asked) -> Call {
    Call { stream, method: asked.method.into(), arguments: asked.arguments.0 }
}

/// What the last call gave.
fn encoded<O: Object>(method: &[u8], output: Option<Box<dyn std::any::Any>>) -> Result<Vec<u8>, CallError> {
    let encoded = output.and_then(|output| Method::<O>::find(method).ok()?.encode(&*output));
    let method = || String::from_utf8_lossy(method).into_owned();
    encoded.ok_or_else(|| CallError::UnknownMethod { object: O::TYPE, method: method() })
}
