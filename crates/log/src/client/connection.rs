//! One connection to one node: requests are pipelined, replies come in any order, subscriptions are pushed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use ithaca_env::net::{Conn, NetError, Reader, Writer};
use ithaca_env::sync::{oneshot, queue};
use ithaca_env::{Env, Time};
use thiserror::Error;

use crate::pos::{ClientId, ClusterId, Epoch, NodeId, RequestId};
use crate::wire::{
    self, FLAG_END, FLAG_PUSH, Frame, FrameError, Head, Hello, HelloOk, Message, MessageError,
    PROTOCOL_VERSION, Refusal, Reply,
};

/// Pushed frames that wait for their subscriber at the most; its credit keeps them well below.
const PUSHES_MAX: usize = 4096;

/// Why a request has no answer of its own kind.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum CallError {
    /// The node refused.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// The node could not be reached, or the connection was lost before the reply: what was asked may have been done.
    #[error(transparent)]
    Lost(#[from] NetError),
    /// No reply came in time: what was asked may have been done, or may yet be.
    #[error("no reply in time")]
    TimedOut,
    /// A newer layout came first: what was asked may have been done, or may yet be.
    #[error("the cluster went on to a newer layout before the reply")]
    Superseded,
    /// The node sent what is not a frame.
    #[error("not this protocol: {0}")]
    Frame(#[from] FrameError),
    /// The node sent a message that cannot be understood.
    #[error("not this protocol: {0}")]
    Message(#[from] MessageError),
    /// What came with the reply is not what was sent.
    #[error("the reply's data does not match its checksum")]
    Damaged,
    /// The node answered with another kind of message.
    #[error("asked for {asked:?}, answered {answered:?}")]
    Mismatch {
        /// The kind of reply that belongs to the request.
        asked: wire::Kind,
        /// The kind that came.
        answered: wire::Kind,
    },
}

/// The reply to a request that was sent: the message, its data, and the epoch it was given in.
pub type Answered<R> = Pin<Box<dyn Future<Output = Result<(R, Bytes, Epoch), CallError>>>>;

enum Waiter {
    Reply(oneshot::Sender<Frame>),
    /// The reply to a question that is meant to stand for a while.
    Standing(oneshot::Sender<Frame>),
    Pushes(queue::Sender<Frame>),
}

struct Inner {
    writer: Writer,
    waiting: RefCell<BTreeMap<RequestId, Waiter>>,
    next_request: Cell<u64>,
    /// The next request as of the last two times that somebody looked, the earlier one first.
    looked: Cell<(RequestId, RequestId)>,
    /// Why the connection ended.
    ended: RefCell<Option<CallError>>,
}

/// A connection that has been greeted. Closed when the last clone is dropped.
#[derive(Clone)]
pub struct Connection {
    inner: Rc<Inner>,
    hello: HelloOk,
    _reading: Rc<AbortOnDrop>,
}

struct AbortOnDrop(ithaca_env::task::TaskHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Whom a connection is meant to reach, and who calls.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// The caller.
    pub client: ClientId,
    /// The node that is meant, 0 for any.
    pub node: NodeId,
    /// The cluster that is meant, or unknown.
    pub cluster: ClusterId,
}

impl Connection {
    /// Connects and greets, by `deadline`. A node of another cluster, or another node than meant, refuses.
    pub async fn open(env: &Env, addr: SocketAddr, who: Identity, deadline: Time) -> Result<Self, CallError> {
        let connected = env.timeout_at(deadline, env.connect(addr)).await;
        let Conn { reader, writer } = connected.map_err(|_| CallError::TimedOut)??;
        let inner = Rc::new(Inner {
            writer,
            waiting: RefCell::default(),
            next_request: Cell::new(1),
            looked: Cell::default(),
            ended: RefCell::default(),
        });
        let reading = env.spawn(read_frames(Rc::clone(&inner), reader));
        let hello = Hello {
            version_min: PROTOCOL_VERSION,
            version_max: PROTOCOL_VERSION,
            client: who.client,
            node: who.node,
            cluster: who.cluster,
        };
        let reading = Rc::new(AbortOnDrop(reading));
        let greeting = inner.call::<_, HelloOk>(env, Epoch(0), &hello, Waiter::Reply, deadline);
        let (hello, _, _) = greeting.await?;
        Ok(Self { inner, hello, _reading: reading })
    }

    /// What the node said of itself.
    pub fn hello(&self) -> &HelloOk {
        &self.hello
    }

    /// Whether requests can still be sent.
    pub fn is_open(&self) -> bool {
        self.inner.ended.borrow().is_none()
    }

    /// Sends `request` at once and returns a future of the reply, which ends by `deadline`.
    pub fn call<M: Message, R: Message>(
        &self,
        env: &Env,
        epoch: Epoch,
        request: &M,
        deadline: Time,
    ) -> impl Future<Output = Result<(R, Bytes, Epoch), CallError>> + use<M, R> {
        self.inner.call(env, epoch, request, Waiter::Reply, deadline)
    }

    /// The same for a question that is answered when something has come: that it stands says nothing of the node.
    pub(super) fn call_standing<M: Message, R: Message>(
        &self,
        env: &Env,
        epoch: Epoch,
        request: &M,
        deadline: Time,
    ) -> impl Future<Output = Result<(R, Bytes, Epoch), CallError>> + use<M, R> {
        self.inner.call(env, epoch, request, Waiter::Standing, deadline)
    }

    /// Sends a frame that `encode` appends, and then the pieces of data that it must announce; the reply as for
    /// [`call`](Self::call). `encode` is given the request id to put in the head.
    pub fn call_with<R: Message + 'static>(
        &self,
        env: &Env,
        encode: impl FnOnce(RequestId, &mut BytesMut),
        data: impl Iterator<Item = Bytes>,
        deadline: Time,
    ) -> Answered<R> {
        let (request, reply) = self.inner.begin(Waiter::Reply);
        self.inner.writer.push(|out| encode(request, out));
        for piece in data {
            // Small entries are gathered with their head; a large one is sent from where it lies.
            if piece.len() <= GATHERED_MAX_BYTES {
                self.inner.writer.push(|out| out.extend_from_slice(&piece));
            } else {
                self.inner.writer.push_shared(piece);
            }
        }
        Box::pin(self.inner.reply_by(env, request, reply, deadline))
    }

    /// Sends `request`; what the node pushes for it comes from the queue that is returned, which ends with the
    /// connection or the subscription. The id names the subscription for credit and its end.
    pub fn subscribe<M: Message>(&self, epoch: Epoch, request: &M) -> (RequestId, queue::Receiver<Frame>) {
        let (sender, receiver) = queue::bounded(PUSHES_MAX);
        let id = self.inner.next_id();
        // On a connection that has ended the sender is dropped at once.
        if self.inner.ended.borrow().is_none() {
            self.inner.waiting.borrow_mut().insert(id, Waiter::Pushes(sender));
        }
        self.inner.writer.push(|out| wire::encode_message(out, Head::new(id, epoch), request));
        (id, receiver)
    }

    /// Sends a message that has no reply, about the request `id`.
    pub fn tell<M: Message>(&self, id: RequestId, epoch: Epoch, message: &M) {
        self.inner.writer.push(|out| wire::encode_message(out, Head::new(id, epoch), message));
    }

    /// Forgets a subscription: what is still pushed for it is dropped.
    pub fn forget(&self, id: RequestId) {
        self.inner.waiting.borrow_mut().remove(&id);
    }

    /// The id that the next request will have: those under way have lower ones.
    pub(super) fn next_request(&self) -> RequestId {
        RequestId(self.inner.next_request.get())
    }

    /// The oldest request without its reply; subscriptions and questions that stand are none.
    fn oldest_call(&self) -> Option<RequestId> {
        let waiting = self.inner.waiting.borrow();
        waiting.iter().find(|(_, waiter)| matches!(waiter, Waiter::Reply(_))).map(|(&id, _)| id)
    }

    /// The oldest request without its reply, as of [`oldest_call`](Self::oldest_call). Connections are looked at from time to time:
    /// what was sent before the last look but one is old for [`old_calls`](Self::old_calls).
    pub(super) fn look(&self) -> Option<RequestId> {
        let (_, last) = self.inner.looked.get();
        self.inner.looked.set((last, self.next_request()));
        self.oldest_call()
    }

    /// Requests below this have stood for as long as passes from one look to the next, or have been answered.
    pub(super) fn old_calls(&self) -> RequestId {
        self.inner.looked.get().0
    }

    /// Ends every request and subscription below `before` with [`CallError::Superseded`].
    pub(super) fn abandon(&self, before: RequestId) {
        let mut waiting = self.inner.waiting.borrow_mut();
        let later = waiting.split_off(&before);
        let given_up = std::mem::replace(&mut *waiting, later);
        drop(waiting);
        drop(given_up);
    }

    /// Bytes that the system has not taken yet.
    pub fn queued_bytes(&self) -> usize {
        self.inner.writer.queued_bytes()
    }
}

/// Pieces of data up to this size are copied behind their head; larger ones are shared.
const GATHERED_MAX_BYTES: usize = 2048;

impl Inner {
    fn next_id(&self) -> RequestId {
        let id = self.next_request.get();
        self.next_request.set(id + 1);
        RequestId(id)
    }

    fn begin(
        &self,
        waiter: impl FnOnce(oneshot::Sender<Frame>) -> Waiter,
    ) -> (RequestId, oneshot::Receiver<Frame>) {
        let id = self.next_id();
        let (sender, receiver) = oneshot::channel();
        // On a connection that has ended the sender is dropped at once, and the receiver learns why.
        if self.ended.borrow().is_none() {
            self.waiting.borrow_mut().insert(id, waiter(sender));
        }
        (id, receiver)
    }

    fn call<M: Message, R: Message>(
        self: &Rc<Self>,
        env: &Env,
        epoch: Epoch,
        request: &M,
        waiter: fn(oneshot::Sender<Frame>) -> Waiter,
        deadline: Time,
    ) -> impl Future<Output = Result<(R, Bytes, Epoch), CallError>> + use<M, R> {
        let (id, reply) = self.begin(waiter);
        self.writer.push(|out| wire::encode_message(out, Head::new(id, epoch), request));
        self.reply_by(env, id, reply, deadline)
    }

    fn reply_by<R: Message>(
        self: &Rc<Self>,
        env: &Env,
        id: RequestId,
        reply: oneshot::Receiver<Frame>,
        deadline: Time,
    ) -> impl Future<Output = Result<(R, Bytes, Epoch), CallError>> + use<R> {
        let (env, pending) = (env.clone(), Pending { inner: Rc::clone(self), id });
        async move {
            let Ok(answered) = env.timeout_at(deadline, reply).await else { return Err(CallError::TimedOut) };
            let Ok(frame) = answered else {
                let ended = pending.inner.ended.borrow().clone();
                return Err(ended.unwrap_or(CallError::Superseded));
            };
            open_reply(frame)
        }
    }

    fn end(&self, why: CallError) {
        self.ended.borrow_mut().get_or_insert(why);
        self.writer.close();
        // Dropping the senders ends every wait.
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        drop(waiting);
    }

    fn deliver(&self, frame: Frame) {
        let mut waiting = self.waiting.borrow_mut();
        let id = frame.head.request;
        let last = frame.head.flags & FLAG_PUSH == 0 || frame.head.flags & FLAG_END != 0;
        let waiter = if last { waiting.remove(&id) } else { None };
        match waiter {
            Some(Waiter::Reply(sender) | Waiter::Standing(sender)) => sender.send(frame),
            Some(Waiter::Pushes(sender)) => drop(sender.try_send(frame)),
            None => {
                // Whoever gave up waiting does not miss it; a subscriber that does not read loses its subscription.
                if let Some(Waiter::Pushes(sender)) = waiting.get(&id)
                    && sender.try_send(frame).is_err()
                {
                    waiting.remove(&id);
                }
            }
        }
    }
}

/// Takes the request off the list when nobody waits for it any more.
struct Pending {
    inner: Rc<Inner>,
    id: RequestId,
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.inner.waiting.borrow_mut().remove(&self.id);
    }
}

/// The message of kind `R` in `frame`, with its data and epoch.
pub fn open_reply<R: Message>(frame: Frame) -> Result<(R, Bytes, Epoch), CallError> {
    if frame.kind == R::KIND as u16 {
        let message = R::decode_body(&frame.body, frame.data.len())
            .map_err(|error| MessageError::Malformed { kind: R::KIND, error })?;
        return Ok((message, frame.data, frame.head.epoch));
    }
    match Reply::decode(&frame)? {
        Reply::Refusal(refusal) => Err(CallError::Refused(refusal)),
        other => Err(CallError::Mismatch { asked: R::KIND, answered: other.kind() }),
    }
}

async fn read_frames(inner: Rc<Inner>, mut reader: Reader) {
    let addr = reader.peer_addr();
    let mut buf = BytesMut::new();
    loop {
        match reader.read(&mut buf).await {
            Ok(0) => return inner.end(NetError::Closed { addr }.into()),
            Ok(_) => {}
            Err(error) => return inner.end(error.into()),
        }
        loop {
            match wire::next_frame(&mut buf) {
                Ok(Some(frame)) => inner.deliver(frame),
                Ok(None) => break,
                Err(error) => return inner.end(error.into()),
            }
        }
    }
}
