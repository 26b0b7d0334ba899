//! A client in Rust.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::rc::{Rc, Weak};

use bytes::{Bytes, BytesMut};
use ithaca_env::Env;
use ithaca_env::codec::DecodeError;
use ithaca_env::net::{LocalError, NetError, Reader, Writer};
use ithaca_env::sync::oneshot;
use ithaca_env::task::TaskHandle;
use thiserror::Error;

use super::frame::{self, FrameError, Front, HEAD_BYTES, Head, put_head};
use super::limits::MEMORY_BYTES;
use super::memory::Memory;
use super::refusal::Refusal;
use super::reply::{NO_VERSION, Reply, Scrub};
use super::request::{Request, kind};
use super::summary::Summary;
use crate::{Durability, Heir, Planted, Region, TxHandle, TxOptions, Version};

/// Why a call was not done. After anything but [`Refused`](Self::Refused) the connection is gone, and with it every transaction
/// that was not released; whether a commit that was under way is there is not known.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ClientError {
    /// Nobody serves there.
    #[error(transparent)]
    Connect(#[from] LocalError),
    /// The connection ended.
    #[error("the server has ended the connection")]
    Lost,
    /// The connection failed.
    #[error(transparent)]
    Net(#[from] NetError),
    /// What came is no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// What came is no answer to what was asked.
    #[error("an answer that is none: {0}")]
    Answer(#[from] DecodeError),
    /// The server does not do it.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// How a client talks to its server.
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions {
    /// Bytes of memory that it shares with the server, whole blocks: as many blocks can be under way at a time without going through the
    /// socket. 4 MiB unless it is said; none with 0. Where the server does not know of it, or the system has none, all goes through
    /// the socket.
    pub memory_bytes: usize,
    /// A deliberate fault; none in ordinary builds.
    pub planted: Planted,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self { memory_bytes: MEMORY_BYTES, planted: Planted::default() }
    }
}

type Answer = Result<Reply, ClientError>;

/// A connection to the server of a volume. Calls may be made side by side; their requests go out in the order in which the
/// calls are first polled.
///
/// Cheap to clone; the connection ends with the last clone and the last [`RemoteTx`]. No call has a deadline of its own: wrap it in
/// [`Env::timeout`]. A call that is dropped may be carried out.
#[derive(Clone)]
pub struct Client {
    inner: Rc<Inner>,
}

struct Inner {
    writer: Writer,
    /// Who waits for which answer.
    waiting: RefCell<BTreeMap<u64, Waiting>>,
    /// What is shared with the server.
    memory: RefCell<Option<Memory>>,
    next_id: Cell<u64>,
    next_tx: Cell<u32>,
    /// Why nothing is answered any more.
    lost: RefCell<Option<ClientError>>,
    reading: RefCell<Option<TaskHandle<()>>>,
}

/// A request that is not answered yet.
struct Waiting {
    kind: u16,
    /// Room in the memory that is the server's until then.
    slots: Option<Range<usize>>,
    /// Who has asked. May have gone.
    sender: oneshot::Sender<Answer>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(reading) = self.reading.take() {
            reading.abort();
        }
    }
}

async fn read_answers(inner: Weak<Inner>, mut reader: Reader) {
    let mut received = BytesMut::new();
    loop {
        let lost = match reader.read(&mut received).await {
            Ok(0) => Some(ClientError::Lost),
            Ok(_) => None,
            Err(error) => Some(error.into()),
        };
        let Some(inner) = inner.upgrade() else { return };
        if let Err(lost) = lost.map_or(Ok(()), Err).and_then(|()| inner.take_answers(&mut received)) {
            inner.end(lost);
            return;
        }
    }
}

impl Inner {
    fn take_answers(&self, received: &mut BytesMut) -> Result<(), ClientError> {
        loop {
            let (head, body) = match frame::take(received)? {
                Front::Frame(head, body) => (head, body),
                Front::Missing(bytes) => {
                    received.reserve(bytes.max(HEAD_BYTES));
                    return Ok(());
                }
            };
            let answer = match head.status {
                0 => Ok(body),
                status => Err(Refusal::decode(status, &body)?),
            };
            // Not asked for by anybody: why the server ends the connection.
            if let (0, Err(refusal)) = (head.id, &answer) {
                return Err(refusal.clone().into());
            }
            // Nobody waits for the answer to an abort.
            let Some(waiting) = self.waiting.borrow_mut().remove(&head.id) else { continue };
            let reply = match answer {
                Ok(body) => Reply::decode(waiting.kind, body).map_err(ClientError::from),
                Err(refusal) => Err(refusal.into()),
            };
            waiting.sender.send(self.answered(waiting.kind, waiting.slots, reply));
        }
    }

    /// The answer to a request of this kind, with what the server has put into the memory.
    fn answered(&self, kind: u16, slots: Option<Range<usize>>, answer: Answer) -> Answer {
        let mut memory = self.memory.borrow_mut();
        let Some(there) = &mut *memory else { return answer };
        if kind == kind::SHARE_MEMORY {
            match answer {
                Ok(_) => there.use_it(),
                // The server knows nothing of memory, or does not take this one.
                Err(_) => *memory = None,
            }
            return answer;
        }
        let Some(slots) = slots else { return answer };
        let data = there.take_back(slots, kind);
        answer.map(|reply| data.map_or(reply, Reply::Data))
    }

    fn end(&self, why: ClientError) {
        self.lost.replace(Some(why.clone()));
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        waiting.into_values().for_each(|waiting| waiting.sender.send(Err(why.clone())));
        self.writer.close();
    }

    /// Sends a request. `None` if nobody waits for its answer.
    fn send(&self, tx: u32, request: Request, waiting: Option<oneshot::Sender<Answer>>) {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        let (request, slots) = match &mut *self.memory.borrow_mut() {
            Some(memory) => memory.through(request),
            None => (request, None),
        };
        if let Some(sender) = waiting {
            let kind = request.kind();
            self.waiting.borrow_mut().insert(id, Waiting { kind, slots, sender });
        }
        let head = Head { kind: request.kind(), id, tx, status: 0 };
        let (mut body, data) = (BytesMut::new(), request.data());
        request.encode(&mut body);
        self.writer.push(|out| {
            put_head(out, head, &[&body, &data]);
            out.extend_from_slice(&body);
            out.extend_from_slice(&data);
        });
    }

    async fn ask(&self, tx: u32, request: Request) -> Answer {
        if let Some(lost) = &*self.lost.borrow() {
            return Err(lost.clone());
        }
        let (sender, receiver) = oneshot::channel();
        self.send(tx, request, Some(sender));
        receiver.await.unwrap_or(Err(ClientError::Lost))
    }

    async fn ask_version(&self, tx: u32, request: Request) -> Result<Version, ClientError> {
        match self.ask(tx, request).await? {
            Reply::Version(version) => Ok(version),
            other => unreachable!("{other:?} is no answer of this kind"),
        }
    }

    async fn ask_data(&self, tx: u32, request: Request) -> Result<Bytes, ClientError> {
        match self.ask(tx, request).await? {
            Reply::Data(data) => Ok(data),
            other => unreachable!("{other:?} is no answer of this kind"),
        }
    }
}

impl Client {
    /// Connects to the server that listens at `path`. Errors: `Connect`. Whether the server lets this user in is known with the first answer.
    pub async fn connect(env: &Env, path: &Path) -> Result<Self, ClientError> {
        Self::connect_with(env, path, ClientOptions::default()).await
    }

    /// The same, as `options` say.
    pub async fn connect_with(env: &Env, path: &Path, options: ClientOptions) -> Result<Self, ClientError> {
        let conn = env.connect_local(path).await?;
        let memory = Memory::share(env, &conn.writer, options);
        let is_shared = memory.is_some();
        let inner = Rc::new(Inner {
            writer: conn.writer,
            waiting: RefCell::default(),
            memory: RefCell::new(memory),
            next_id: Cell::new(1),
            next_tx: Cell::new(1),
            lost: RefCell::default(),
            reading: RefCell::default(),
        });
        let reading = env.spawn(read_answers(Rc::downgrade(&inner), conn.reader));
        inner.reading.replace(Some(reading));
        if is_shared {
            // Until the answer has come all goes through the socket; nobody waits for it.
            inner.send(0, Request::ShareMemory, Some(oneshot::channel().0));
        }
        Ok(Self { inner })
    }

    /// What the volume is and holds.
    pub async fn info(&self) -> Result<Summary, ClientError> {
        match self.inner.ask(0, Request::Info).await? {
            Reply::Info(summary) => Ok(summary),
            other => unreachable!("{other:?} is no answer of this kind"),
        }
    }

    /// As [`Volume::read`](crate::Volume::read), of at most 1024 blocks.
    pub async fn read(&self, first_block: u64, count: u64) -> Result<Bytes, ClientError> {
        self.inner.ask_data(0, Request::Read { blocks: first_block..first_block + count }).await
    }

    /// As [`Volume::write`](crate::Volume::write), of at most 1024 blocks.
    pub async fn write(
        &self,
        first_block: u64,
        data: Bytes,
        durability: Durability,
    ) -> Result<Version, ClientError> {
        self.inner.ask_version(0, Request::Write { first_block, data, durability }).await
    }

    /// As [`Volume::discard`](crate::Volume::discard).
    pub async fn discard(&self, blocks: Range<u64>, durability: Durability) -> Result<Version, ClientError> {
        self.inner.ask_version(0, Request::Discard { blocks, durability }).await
    }

    /// As [`Volume::flush`](crate::Volume::flush), of what was acknowledged to anybody.
    pub async fn flush(&self) -> Result<Version, ClientError> {
        self.inner.ask_version(0, Request::Flush).await
    }

    /// As [`Volume::please_cache`](crate::Volume::please_cache).
    pub async fn please_cache(&self, block: u64) -> Result<(), ClientError> {
        self.inner.ask(0, Request::PleaseCache { block }).await.map(drop)
    }

    /// As [`Volume::create_snapshot`](crate::Volume::create_snapshot).
    pub async fn create_snapshot(&self, name: &str) -> Result<Version, ClientError> {
        self.inner.ask_version(0, Request::Snapshot(name.to_owned())).await
    }

    /// Snapshots with names, in the order of these.
    pub async fn snapshots(&self) -> Result<Vec<(String, Version)>, ClientError> {
        match self.inner.ask(0, Request::Snapshots).await? {
            Reply::Snapshots(names) => Ok(names),
            other => unreachable!("{other:?} is no answer of this kind"),
        }
    }

    /// As [`Volume::delete_snapshot`](crate::Volume::delete_snapshot).
    pub async fn delete_snapshot(&self, name: &str) -> Result<(), ClientError> {
        self.inner.ask(0, Request::Forget(name.to_owned())).await.map(drop)
    }

    async fn ask_regions(&self, request: Request) -> Result<Vec<Region>, ClientError> {
        match self.inner.ask(0, request).await? {
            Reply::Regions(regions) => Ok(regions),
            other => unreachable!("{other:?} is no answer of this kind"),
        }
    }

    async fn ask_region(&self, request: Request) -> Result<Region, ClientError> {
        self.ask_regions(request).await?.pop().ok_or(ClientError::Lost)
    }

    /// From the answer on, blocks of this client, and of its transactions, are those of a region: 0 is its first one, and none outside of it is
    /// reached. Returns where it lies.
    pub async fn open_region(&self, name: &str) -> Result<Region, ClientError> {
        self.ask_region(Request::OpenRegion(name.to_owned())).await
    }

    /// As [`Volume::regions`](crate::Volume::regions).
    pub async fn regions(&self) -> Result<Vec<Region>, ClientError> {
        self.ask_regions(Request::Regions).await
    }

    /// As [`Volume::create_region`](crate::Volume::create_region).
    pub async fn create_region(&self, name: &str, blocks: u64) -> Result<Region, ClientError> {
        self.ask_region(Request::CreateRegion { name: name.to_owned(), blocks }).await
    }

    /// As [`Volume::delete_region`](crate::Volume::delete_region).
    pub async fn delete_region(&self, name: &str) -> Result<(), ClientError> {
        self.inner.ask(0, Request::DeleteRegion(name.to_owned())).await.map(drop)
    }

    async fn ask_scrub(&self, request: Request) -> Result<Scrub, ClientError> {
        match self.inner.ask(0, request).await? {
            Reply::Scrub(scrub) => Ok(scrub),
            other => unreachable!("{other:?} is no answer of this kind"),
        }
    }

    /// As [`Volume::scrub`](crate::Volume::scrub); if one is under way for somebody else, waits for that. It ends early with the connection.
    pub async fn scrub(&self) -> Result<Scrub, ClientError> {
        self.ask_scrub(Request::Scrub).await
    }

    /// How far a scrub is, and what was found since the volume was opened.
    pub async fn scrubbed(&self) -> Result<Scrub, ClientError> {
        self.ask_scrub(Request::Scrubbed).await
    }

    fn new_tx(&self) -> u32 {
        let number = self.inner.next_tx.get();
        self.inner.next_tx.set(number.checked_add(1).unwrap_or(1));
        number
    }

    /// Begins a transaction; its `client` is of no account: the server knows the process. Returns it with the version that it reads.
    pub async fn begin(&self, options: TxOptions) -> Result<(RemoteTx, Version), ClientError> {
        let TxOptions { isolation, durability, .. } = options;
        self.enter(Request::Begin { isolation, durability }).await
    }

    /// Goes on with a transaction that was released to this user or to anyone. Returns it with the version that it reads.
    pub async fn take_over(&self, handle: TxHandle) -> Result<(RemoteTx, Version), ClientError> {
        self.enter(Request::TakeOver(handle)).await
    }

    async fn enter(&self, request: Request) -> Result<(RemoteTx, Version), ClientError> {
        let number = self.new_tx();
        // Made before it is there: if the call is dropped, it is aborted.
        let (depth, is_over) = (Cell::new(0), Cell::new(false));
        let tx = RemoteTx { inner: Rc::clone(&self.inner), number, depth, is_over };
        match self.inner.ask(number, request).await {
            Ok(Reply::Entered { snapshot, depth }) => {
                tx.depth.set(depth);
                Ok((tx, snapshot))
            }
            Ok(other) => unreachable!("{other:?} is no answer of this kind"),
            Err(error) => {
                tx.is_over.set(true);
                Err(error)
            }
        }
    }
}

/// A transaction of the server, as [`Tx`](crate::Tx) is one of the volume. Dropped before its end, it is aborted.
pub struct RemoteTx {
    inner: Rc<Inner>,
    number: u32,
    /// Those within it that have not ended.
    depth: Cell<u32>,
    is_over: Cell<bool>,
}

impl RemoteTx {
    async fn done(&self, request: Request) -> Result<(), ClientError> {
        self.inner.ask(self.number, request).await.map(drop)
    }

    /// As [`Tx::read`](crate::Tx::read), of at most 1024 blocks.
    pub async fn read(&self, first_block: u64, count: u64) -> Result<Bytes, ClientError> {
        let blocks = first_block..first_block + count;
        self.inner.ask_data(self.number, Request::Read { blocks }).await
    }

    /// As [`Tx::read_part`](crate::Tx::read_part).
    pub async fn read_part(&self, block: u64, bytes: Range<usize>) -> Result<Bytes, ClientError> {
        self.inner.ask_data(self.number, Request::ReadPart { block, bytes }).await
    }

    /// As [`Tx::write`](crate::Tx::write).
    pub async fn write(&self, first_block: u64, data: Bytes) -> Result<(), ClientError> {
        let durability = Durability::Stable;
        self.done(Request::Write { first_block, data, durability }).await
    }

    /// As [`Tx::write_part`](crate::Tx::write_part).
    pub async fn write_part(&self, block: u64, at: usize, data: Bytes) -> Result<(), ClientError> {
        self.done(Request::WritePart { block, at, data }).await
    }

    /// As [`Tx::mark_accessed`](crate::Tx::mark_accessed).
    pub async fn mark_accessed(&self, block: u64, bytes: Range<usize>) -> Result<(), ClientError> {
        self.done(Request::MarkAccessed { block, bytes }).await
    }

    /// As [`Tx::please_cache`](crate::Tx::please_cache).
    pub async fn please_cache(&self, block: u64) -> Result<(), ClientError> {
        self.done(Request::PleaseCache { block }).await
    }

    /// Begins a transaction within this one, as [`Tx::begin`](crate::Tx::begin).
    pub async fn begin(&self) -> Result<(), ClientError> {
        self.done(Request::Nest).await?;
        self.depth.set(self.depth.get() + 1);
        Ok(())
    }

    /// The transaction ends, or the innermost one within it.
    fn note_end(&self) {
        match self.depth.get() {
            0 => self.is_over.set(true),
            depth => self.depth.set(depth - 1),
        }
    }

    /// Commits, as [`Tx::commit`](crate::Tx::commit): nothing is given for a nested one.
    pub async fn commit(&self) -> Result<Option<Version>, ClientError> {
        self.note_end();
        let version = self.inner.ask_version(self.number, Request::Commit).await?;
        Ok(Some(version).filter(|version| *version != NO_VERSION))
    }

    /// Aborts, as [`Tx::abort`](crate::Tx::abort).
    pub async fn abort(&self) -> Result<(), ClientError> {
        self.note_end();
        self.done(Request::Abort).await
    }

    /// Lets go of it, as [`Tx::release`](crate::Tx::release): for this user, or for anyone who knows the handle.
    pub async fn release(self, heir: Heir) -> Result<TxHandle, ClientError> {
        let handle = self.inner.ask(self.number, Request::Release(heir)).await;
        self.is_over.set(true);
        match handle? {
            Reply::Handle(handle) => Ok(handle),
            other => unreachable!("{other:?} is no answer of this kind"),
        }
    }
}

impl Drop for RemoteTx {
    fn drop(&mut self) {
        if !self.is_over.get() && self.inner.lost.borrow().is_none() {
            // Of one that has ended the server says so, and nobody listens.
            self.inner.send(self.number, Request::Abort, None);
        }
    }
}
