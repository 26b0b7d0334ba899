//! Appending: what is queued takes positions together and is written together.
//!
//! ```text
//!                          ┌─► Append, whole, to a sequencer that forwards (forward.rs) ──────┐
//!   append() ─► queue ─► batch                                                                ├─► each append's result
//!                 ▲        └─► Token for all of it (tokens.rs) ─► one Write a unit (write.rs) ──┘
//!                 │                                                   │
//!                 └── an entry whose position certainly went to something else, if the client may try again
//! ```
//!
//! A grant covers only appends that were queued when it was asked for, and a write carries the epoch of its token. What no answer decides is
//! looked up before anything is appended again (resolve.rs, docs/protocol/append.md).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{RangeSet, TableEntry};
use ithaca_env::Time;
use ithaca_env::sync::{Notify, oneshot};

use super::connection::{Answered, CallError};
use super::error::{ClientError, Phase};
use super::tokens::{self, Room};
use super::{Inner, View, WriteLimits};
use crate::entry::StreamPlaces;
use crate::pos::{BatchNo, Epoch, LogPos, RequestNo, StreamIds};
use crate::stream::Condition;
use crate::wire::{Appended, Grant, Kind, Token, TokenGroup};

/// A batch ends with the time of its first append. That of the others ends so much of a call's time later at the most.
const SPREAD_PART: u32 = 10;
/// Batches that wait for an answer at the most.
const BATCHES_MAX: usize = 64;
/// The wait before something refused "for now" is tried again.
pub(super) const RETRY_WAIT: Duration = Duration::from_millis(2);

/// The result of an append, when it is there. Dropping it does not take the append back.
pub struct Append {
    placed: AppendTo,
}

/// The result of an append to streams, when it is there. Dropping it does not take the append back.
pub struct AppendTo {
    result: oneshot::Receiver<Result<Placed, ClientError>>,
}

/// Where an entry stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its position in the log.
    pub pos: LogPos,
    /// Its place in each of its streams, in the order in which they were named.
    pub places: StreamPlaces,
}

impl Future for Append {
    type Output = Result<LogPos, ClientError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.placed).poll(cx).map(|placed| placed.map(|placed| placed.pos))
    }
}

impl Future for AppendTo {
    type Output = Result<Placed, ClientError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.result).poll(cx).map(|result| result.unwrap_or(Err(ClientError::Closed)))
    }
}

/// The streams that an entry is appended to, and on what that depends. It keeps to the limits.
#[derive(Debug, Default)]
pub struct Aim {
    pub(super) streams: StreamIds,
    pub(super) condition: Option<Condition>,
}

/// One append on its way.
pub(super) struct Queued {
    pub(super) entry: Bytes,
    pub(super) table: TableEntry,
    /// `None` if it is appended to no stream.
    pub(super) aim: Option<Rc<Aim>>,
    /// Its place in the order of the calls.
    order: u64,
    /// Given to it with the batch that it is in. One that is to take another position gets another number: under the old one it
    /// certainly stands nowhere, and never will.
    pub(super) request: RequestNo,
    pub(super) deadline: Time,
    /// Units that had no room for it.
    pub(super) found_full: u32,
    result: oneshot::Sender<Result<Placed, ClientError>>,
}

/// The client's queue of appends.
#[derive(Default)]
pub(super) struct Appender {
    queue: RefCell<VecDeque<Queued>>,
    next_order: Cell<u64>,
    next_request: Cell<u64>,
    /// Bytes of entries that have no result yet.
    held_bytes: Cell<usize>,
    batches: Cell<usize>,
    next_batch: Cell<u64>,
    /// Batches that have their positions, or will never have any. A batch whose first request for them failed asks again
    /// when every earlier batch is in here, so that entries keep the order of their appends.
    placed: RefCell<RangeSet>,
    /// Batches that wait for earlier ones before they ask again. While there are any, new batches wait as well.
    waiting: Cell<usize>,
    /// Rings when an append was queued, got a result, or a batch ended.
    changed: Notify,
    started: Cell<bool>,
}

impl Appender {
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes.get()
    }

    pub(super) fn changed(&self) -> &Notify {
        &self.changed
    }
}

/// Queues `entry`; the append starts at once.
pub(super) fn append(inner: &Rc<Inner>, entry: Bytes) -> Append {
    Append { placed: append_to(inner, None, entry) }
}

/// The same, to streams. What is wrong with them must have been told before.
pub(super) fn append_to(inner: &Rc<Inner>, aim: Option<Rc<Aim>>, entry: Bytes) -> AppendTo {
    let (sender, result) = oneshot::channel();
    let limit = inner.write_limits.get().entry_bytes;
    if entry.len() > limit {
        sender.send(Err(ClientError::TooLarge { len: entry.len(), limit }));
        return AppendTo { result };
    }
    let appender = &inner.appender;
    let order = appender.next_order.get();
    appender.next_order.set(order + 1);
    appender.held_bytes.set(appender.held_bytes.get() + entry.len());
    let table = TableEntry { len: entry.len() as u32, checksum: crc32c::crc32c(&entry) };
    let deadline = inner.deadline();
    let request = RequestNo(0);
    let queued = Queued { entry, table, aim, order, request, deadline, found_full: 0, result: sender };
    appender.queue.borrow_mut().push_back(queued);
    if appender.started.replace(true) {
        appender.changed.ring();
    } else {
        inner.spawn_scoped(|weak| async move {
            // The client may go while the task waits; what is queued then ends with `Closed`.
            while let Some(inner) = weak.upgrade() {
                let ticket = inner.appender.changed.ticket();
                while start_batch(&inner) {}
                let (appender, env) = (Rc::clone(&inner.appender), inner.env.clone());
                drop(inner);
                appender.changed.after(ticket).await;
                // Whoever is about to append may join.
                env.yield_now().await;
            }
        });
    }
    AppendTo { result }
}

/// The result of an append that cannot be as it is.
pub(super) fn refused(error: ClientError) -> AppendTo {
    let (sender, result) = oneshot::channel();
    sender.send(Err(error));
    AppendTo { result }
}

/// Sends off one batch of what is queued, if there is any and not too much is under way.
fn start_batch(inner: &Rc<Inner>) -> bool {
    let appender = &inner.appender;
    end_late(inner);
    if appender.batches.get() >= BATCHES_MAX {
        return false;
    }
    let spread = inner.options.timeout / SPREAD_PART;
    let mut batch = take_batch(&mut appender.queue.borrow_mut(), inner.write_limits.get(), spread);
    if batch.is_empty() {
        return false;
    }
    appender.number(&mut batch);
    appender.batches.set(appender.batches.get() + 1);
    let number = appender.next_batch.get();
    appender.next_batch.set(number + 1);
    let groups = tokens::groups_of(&batch);
    let (inner, number) = (Rc::clone(inner), BatchNo(number));
    let batch = Batch { inner, number, entries: batch, groups, is_late: Cell::default() };
    let inner = &batch.inner;
    // Positions are asked for here and now, so that batches get them in the order of their appends.
    let asked = match inner.view() {
        Some(view) if appender.waiting.get() == 0 => batch.ask(view),
        _ => None,
    };
    if asked.is_none() {
        batch.note_late();
    }
    let env = inner.env.clone();
    env.spawn(batch.run(asked));
    true
}

/// Ends those in the queue whose time is over: they stand nowhere.
fn end_late(inner: &Inner) {
    let (now, appender) = (inner.env.now(), &inner.appender);
    let next = || appender.queue.borrow_mut().pop_front_if(|queued| queued.deadline <= now);
    let mut ended = false;
    while let Some(queued) = next() {
        appender.finish(queued, Err(inner.too_late(Phase::Append)));
        ended = true;
    }
    if ended {
        appender.changed.ring();
    }
}

fn take_batch(queue: &mut VecDeque<Queued>, limits: WriteLimits, spread: Duration) -> Vec<Queued> {
    let until = queue.front().map(|first| first.deadline + spread);
    let (mut count, mut bytes, mut room) = (0, 0, Room::default());
    let mut before: Option<&Queued> = None;
    for queued in queue.iter() {
        bytes += queued.entry.len();
        let fits = room.take(before.and_then(|before| before.aim.as_deref()), queued.aim.as_deref());
        before = Some(queued);
        let is_young = until.is_some_and(|until| queued.deadline > until);
        if count > 0 && (bytes > limits.bytes || count >= limits.count || !fits || is_young) {
            break;
        }
        count += 1;
    }
    queue.drain(..count).collect()
}

/// A batch's first request, sent.
enum Asked {
    /// For positions.
    Token(View, Answered<Grant>),
    /// For positions and for the entries to be written there.
    Append(View, LogPos, Answered<Appended>),
}

/// Entries that take their positions together.
pub(super) struct Batch {
    pub(super) inner: Rc<Inner>,
    pub(super) number: BatchNo,
    pub(super) entries: Vec<Queued>,
    /// What they have to do with streams; none if nothing.
    pub(super) groups: Vec<TokenGroup>,
    /// Whether it counts as waiting.
    is_late: Cell<bool>,
}

impl Drop for Batch {
    fn drop(&mut self) {
        let appender = &self.inner.appender;
        appender.batches.set(appender.batches.get() - 1);
        self.note_placed();
        appender.changed.ring();
    }
}

impl Batch {
    /// Sends the batch's first request if a connection to the sequencer is open.
    fn ask(&self, view: View) -> Option<Asked> {
        if self.goes_whole(&view) {
            let after = self.inner.granted_below(&view);
            let answer = self.send_whole(&view, after)?;
            return Some(Asked::Append(view, after, answer));
        }
        let connection = self.inner.open_connection(view.layout.sequencer)?;
        let token = self.token();
        let epoch = view.layout.epoch;
        let answer = connection.call::<_, Grant>(&self.inner.env, epoch, &token, self.deadline());
        Some(Asked::Token(view, Box::pin(answer)))
    }

    /// Whether it is sent to the sequencer whole: if that forwards.
    fn goes_whole(&self, view: &View) -> bool {
        view.forwards(&self.inner.options)
    }

    async fn run(self, asked: Option<Asked>) {
        match asked {
            Some(Asked::Append(view, after, answer)) => {
                let answer = answer.await;
                self.forward(view, after, Some(answer)).await;
            }
            // In memory of their own: every batch would be as large as the largest of them.
            Some(Asked::Token(view, answer)) => Box::pin(self.run_by_token(view, answer)).await,
            None => Box::pin(self.run_late()).await,
        }
    }

    async fn run_by_token(self, view: View, answer: Answered<Grant>) {
        let answer = answer.await.map_err(|error| self.failed(&view, Phase::Token, error));
        self.place(Some(view), answer).await;
    }

    /// Runs a batch of which nothing was sent.
    async fn run_late(self) {
        let view = match self.turn(Phase::Token).await {
            Ok(()) => self.inner.view_by(self.deadline()).await,
            Err(error) => Err(error),
        };
        match view {
            Ok(view) if self.goes_whole(&view) => {
                let after = self.inner.granted_below(&view);
                self.forward(view, after, None).await;
            }
            Ok(_) => {
                let answer = self.ask_in_turn().await;
                self.place(None, answer).await;
            }
            Err(error) => self.fail_all(&error),
        }
    }

    /// Writes the batch where it was granted positions, or asks again.
    pub(super) async fn place(
        self,
        mut used: Option<View>,
        mut granted: Result<(Grant, Bytes, Epoch), ClientError>,
    ) {
        let deadline = self.deadline();
        loop {
            // A grant is used in its own epoch only; if that is over, so is the grant.
            let placed = match granted {
                Ok((grant, _, epoch)) => self.inner.view_of(epoch, deadline).await.map(|view| (view, grant)),
                Err(error) => Err(error),
            };
            match placed {
                Ok((view, grant)) => return self.write_granted(&view, grant).await,
                Err(error) if self.inner.worth_retrying(&error, deadline) => {
                    self.note_late();
                    self.inner.forget_view(&used.take());
                    self.inner.env.sleep(self.inner.wait_after(Some(&error), RETRY_WAIT)).await;
                    granted = self.ask_in_turn().await;
                }
                // Nothing was written: the appends certainly did not happen.
                Err(error) => return self.fail_all(&error),
            }
        }
    }

    /// Asks for positions once every earlier batch has its own.
    pub(super) async fn ask_in_turn(&self) -> Result<(Grant, Bytes, Epoch), ClientError> {
        self.turn(Phase::Token).await?;
        self.inner.tokens(&self.token(), self.deadline()).await
    }

    /// Waits until every earlier batch has its positions, or will never have any; an error once the time is over.
    pub(super) async fn turn(&self, phase: Phase) -> Result<(), ClientError> {
        let (appender, env) = (&self.inner.appender, &self.inner.env);
        let is_next = || (appender.placed.borrow().first_gap(0) == self.number.0).then_some(());
        let is_over = || env.now() >= self.deadline();
        if is_over() || env.timeout_at(self.deadline(), appender.changed.until(is_next)).await.is_err() {
            return Err(self.inner.too_late(phase));
        }
        Ok(())
    }

    pub(super) fn deadline(&self) -> Time {
        self.entries[0].deadline
    }

    /// The first request for positions failed, or could not be sent.
    pub(super) fn note_late(&self) {
        if !self.is_late.replace(true) {
            let waiting = &self.inner.appender.waiting;
            waiting.set(waiting.get() + 1);
        }
    }

    /// The batch has its positions, or will never have any: the next may ask.
    pub(super) fn note_placed(&self) {
        let appender = &self.inner.appender;
        appender.placed.borrow_mut().insert(self.number.0..self.number.0 + 1);
        if self.is_late.replace(false) {
            appender.waiting.set(appender.waiting.get() - 1);
        }
    }

    pub(super) fn failed(&self, view: &View, phase: Phase, error: CallError) -> ClientError {
        self.inner.call_error(view, view.layout.sequencer, phase, error)
    }

    pub(super) fn fail_all(mut self, error: &ClientError) {
        for queued in self.entries.drain(..) {
            self.inner.appender.finish(queued, Err(error.clone()));
        }
    }
}

impl Appender {
    /// Gives appends that are about to be sent together the next request numbers.
    pub(super) fn number(&self, batch: &mut [Queued]) {
        let first = self.next_request.get();
        self.next_request.set(first + batch.len() as u64);
        (first..).zip(batch).for_each(|(number, queued)| queued.request = RequestNo(number));
    }

    pub(super) fn finish(&self, queued: Queued, result: Result<Placed, ClientError>) {
        self.held_bytes.set(self.held_bytes.get() - queued.entry.len());
        queued.result.send(result);
    }

    /// Appends that are to take another position go back to where the order of the calls has them.
    pub(super) fn put_back(&self, entries: Vec<Queued>) {
        let mut queue = self.queue.borrow_mut();
        for queued in entries {
            let at = queue.partition_point(|waiting| waiting.order < queued.order);
            queue.insert(at, queued);
        }
    }

    /// Whether more than one batch is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.batches.get() > 1
    }
}

impl Inner {
    /// Why something was not appended in its time.
    fn too_late(&self, phase: Phase) -> ClientError {
        let slow = ClientError::Slow { phase, waited: self.options.timeout };
        self.shortage.borrow().clone().unwrap_or(slow)
    }

    pub(super) fn may_retry(&self, queued: &Queued) -> bool {
        self.options.retry_appends && self.env.now() < queued.deadline
    }

    /// Asks for tokens until they are granted or `deadline` passes.
    pub(super) async fn tokens(
        self: &Rc<Self>,
        token: &Token,
        deadline: Time,
    ) -> Result<(Grant, Bytes, Epoch), ClientError> {
        let granted = self
            .retrying(Phase::Token, deadline, async |inner: &Rc<Inner>, view: &View| {
                let sequencer = view.layout.sequencer;
                let granted = inner.call::<_, Grant>(view, sequencer, Phase::Token, token, deadline).await?;
                match tokens::is_answer(token, &granted.0) {
                    true => Ok(granted),
                    false => {
                        let error = CallError::Mismatch { asked: Kind::Token, answered: Kind::Grant };
                        Err(inner.call_error(view, sequencer, Phase::Token, error))
                    }
                }
            })
            .await?;
        self.shortage.replace(None);
        Ok(granted)
    }
}
