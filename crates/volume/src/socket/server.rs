//! The server: a thin shell around the core of a session.
//!
//! One task accepts. Each connection has a task that takes requests, and each request that need not wait for another has one
//! that carries it out, and those that have waited behind it; what is answered in one turn of the environment's loop goes out in
//! one system call.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::BytesMut;
use ithaca_env::Env;
use ithaca_env::memory::{MemoryHandle, SharedMemory};
use ithaca_env::net::{Conn, Credentials, Listener, NetError, Reader, Writer};
use ithaca_env::sync::Notify;
use ithaca_env::task::{Ended, race};
use thiserror::Error;

use super::frame::{FrameError, Head, put_head};
use super::limits::{CONNECTIONS_MAX, OWN_ROOM_BYTES, SHARED_ROOM_BYTES, UNSENT_MAX_BYTES};
use super::refusal::{Refusal, Status};
use super::reply::{Reply, Scrub};
use super::session::{Asked, Next, Session};
use crate::planted::PlantedBug;
use crate::received::Received;
use crate::room::{ConnectionRoom, Held, Room, RoomLimits};
use crate::serving::{Front, Gate, Serving};
use crate::volume::RegionUse;
use crate::{Planted, Tx, Volume};

/// Who may do everything on a machine.
const ROOT: u32 = 0;
/// Data of a reply up to this length is copied behind its head, so that a system call sends many; longer data is sent
/// from where it lies.
const COPY_MAX_BYTES: usize = 16 << 10;

/// Why a connection ended, other than by the client's end.
#[derive(Debug, Error)]
enum ConnectionError {
    #[error(transparent)]
    Net(#[from] NetError),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("user {0} is neither the server's nor root")]
    Stranger(u32),
    #[error("the system does not say who it is")]
    Unknown,
}

/// How a volume is served.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServerOptions {
    /// A deliberate fault; none in ordinary builds.
    pub planted: Planted,
}

/// Serves a volume to processes of this machine until it is stopped or dropped.
pub struct Server {
    serving: Serving,
    room: Rc<Room>,
}

/// What all connections share.
pub(super) struct Shared {
    pub(super) env: Env,
    pub(super) volume: Volume,
    pub(super) options: ServerOptions,
    gate: Rc<Gate>,
    room: Rc<Room>,
    pub(super) is_scrubbing: Cell<bool>,
    /// Rings when that has changed.
    pub(super) scrubbed: Notify,
    /// Transactions of connections that have ended, with a planted fault.
    left: RefCell<Vec<Rc<Tx>>>,
}

impl Server {
    /// Serves `volume` at `listener`, which is a [local](Env::listen_local) one. Returns at once.
    pub fn start(env: &Env, listener: Listener, volume: Volume, options: ServerOptions) -> Self {
        let gate = Gate::new(env);
        let (own_bytes, shared_bytes) = (OWN_ROOM_BYTES, SHARED_ROOM_BYTES);
        let room = Room::new(env, RoomLimits { front: "socket", own_bytes, shared_bytes });
        let shared = Rc::new(Shared {
            env: env.clone(),
            volume,
            options,
            gate: Rc::clone(&gate),
            room: Rc::clone(&room),
            is_scrubbing: Cell::new(false),
            scrubbed: Notify::default(),
            left: RefCell::default(),
        });
        let refuse = |writer: &Writer| {
            let words = format!("{CONNECTIONS_MAX} connections are open, no more may be");
            put_refusal(writer, Head::default(), &Refusal::new(Status::Frame, words));
        };
        let front = Front { name: "socket", connections_max: CONNECTIONS_MAX, refuse };
        let serve = move |conn| {
            let shared = Rc::clone(&shared);
            async move { serve(&shared, conn).await }
        };
        Self { serving: Serving::start(gate, front, listener, serve), room }
    }

    /// Connections that are open.
    pub fn connections(&self) -> usize {
        self.serving.connections()
    }

    /// Bytes that requests of all connections have room for.
    pub fn held_bytes(&self) -> usize {
        self.room.held_bytes()
    }

    /// Accepts no more connections, answers what is under way, aborts the transactions of all clients and closes their
    /// connections. On return nobody uses the volume; nothing was flushed for that.
    pub async fn stop(self) {
        self.serving.stop().await;
    }
}

async fn serve(shared: &Rc<Shared>, conn: Conn) {
    let process = conn.credentials().map_or(0, |peer| peer.process);
    let ended = talk(shared, conn).await;
    shared.room.connection_ended();
    match ended {
        Ok(()) | Err(ConnectionError::Net(NetError::Closed { .. })) => {
            tracing::debug!(process, "socket: a client has gone");
        }
        Err(error) => tracing::warn!(process, "socket: the connection is closed: {error}"),
    }
}

async fn talk(shared: &Rc<Shared>, conn: Conn) -> Result<(), ConnectionError> {
    let peer = conn.credentials().ok_or(ConnectionError::Unknown)?;
    let client = Rc::new(Client {
        shared: Rc::clone(shared),
        peer,
        session: RefCell::new(Session::new(shared.options.planted)),
        region: RefCell::default(),
        txs: RefCell::default(),
        passed: RefCell::default(),
        memory: RefCell::default(),
        room: ConnectionRoom::new(&shared.room, conn.writer.clone()),
        writer: conn.writer,
        done: Notify::default(),
        has_ended: Cell::new(false),
    });
    if peer.user != ROOT && peer.user != shared.env.user() {
        client.refuse(Head::default(), &Refusal::new(Status::Frame, "only the server's user may connect"));
        return Err(ConnectionError::Stranger(peer.user));
    }
    let ended = match race(client.take_requests(conn.reader), shared.gate.stopping()).await {
        Ended::First(ended) => ended,
        Ended::Second(()) => Ok(()),
    };
    if let Err(ConnectionError::Frame(error)) = &ended {
        client.refuse(Head::default(), &Refusal::new(Status::Frame, error));
    }
    client.end().await;
    ended
}

/// A connection: what its tasks share.
pub(super) struct Client {
    pub(super) shared: Rc<Shared>,
    pub(super) peer: Credentials,
    session: RefCell<Session<Held>>,
    /// Whose blocks the client's are; the volume's if none.
    pub(super) region: RefCell<Option<Rc<RegionUse>>>,
    /// Its transactions by their numbers.
    pub(super) txs: RefCell<BTreeMap<u32, Rc<Tx>>>,
    /// Memory that came and is not looked at yet.
    pub(super) passed: RefCell<Option<MemoryHandle>>,
    /// The client's memory, once it has asked that it be used. Mapped for as long as a request of the client is under way.
    pub(super) memory: RefCell<Option<Rc<SharedMemory>>>,
    /// A request fits into what the connection has of its own: it waits for its own client at the most, and nobody has to be sent away for it.
    room: ConnectionRoom,
    writer: Writer,
    /// Rings when a request is done, and when the connection has ended.
    done: Notify,
    has_ended: Cell<bool>,
}

impl Client {
    /// Takes requests until the client ends the connection.
    async fn take_requests(self: &Rc<Self>, mut reader: Reader) -> Result<(), ConnectionError> {
        let mut received = Received::default();
        loop {
            // A client that does not take its replies gets no more of them.
            self.writer.below(UNSENT_MAX_BYTES).await?;
            let done = self.done.ticket();
            let take_room = |bytes| self.room.try_acquire(bytes);
            let next = self.session.borrow_mut().next(&mut received.bytes, take_room)?;
            match next {
                Next::Begin(asked) => self.begin(asked),
                Next::Refuse(head, refusal) => self.refuse(head, &refusal),
                Next::Room(bytes) => {
                    let room = self.room.acquire(bytes).await;
                    self.session.borrow_mut().give_room(room);
                }
                Next::Full => self.done.after(done).await,
                Next::Read(missing) => {
                    if !received.read(&mut reader, missing).await? {
                        return Ok(());
                    }
                    if let Some(memory) = reader.passed() {
                        self.passed.replace(Some(memory));
                    }
                }
            }
        }
    }

    /// Carries a request out, and what has waited for it.
    fn begin(self: &Rc<Self>, asked: Asked<Held>) {
        let client = Rc::clone(self);
        self.shared.env.spawn(async move {
            let mut next = Some(asked);
            while let Some(asked) = next {
                let (head, cost_bytes) = (asked.head, asked.cost_bytes());
                let done = match asked.request {
                    Ok(request) => client.carry_out(head.tx, request).await,
                    Err(refusal) => Err(refusal),
                };
                let is_data = matches!(done, Ok(Reply::Data(_)));
                match done {
                    Ok(reply) => client.reply(head, reply).await,
                    Err(refusal) => {
                        client.note_refused(&head);
                        client.refuse(head, &refusal);
                    }
                }
                next = client.session.borrow_mut().turn(head.tx);
                client.let_go(cost_bytes, asked.room, is_data);
            }
        });
    }

    /// A request was answered. What it has room for is held as long as more waits for the client than may; its transaction goes on meanwhile.
    fn let_go(self: &Rc<Self>, cost_bytes: usize, room: Option<Held>, is_data: bool) {
        if !is_data || self.writer.queued_bytes() < UNSENT_MAX_BYTES {
            return self.note_done(cost_bytes, room);
        }
        let client = Rc::clone(self);
        self.shared.env.spawn(async move {
            client.until_taken().await;
            client.note_done(cost_bytes, room);
        });
    }

    fn note_done(&self, cost_bytes: usize, room: Option<Held>) {
        drop(room);
        self.session.borrow_mut().done(cost_bytes);
        self.done.ring();
    }

    /// Waits until the client has taken most of the replies. On a closed connection nobody waits.
    async fn until_taken(&self) {
        let _ = self.writer.below(UNSENT_MAX_BYTES).await;
    }

    async fn reply(&self, head: Head, reply: Reply) {
        let data = reply.data();
        if !data.is_empty() {
            // What is read waits outside of the connection until the client has taken earlier replies.
            self.until_taken().await;
        }
        let mut body = BytesMut::new();
        reply.encode(&mut body);
        self.writer.push(|out| {
            put_head(out, head, &[&body, &data]);
            out.extend_from_slice(&body);
            if data.len() <= COPY_MAX_BYTES {
                out.extend_from_slice(&data);
            }
        });
        if data.len() > COPY_MAX_BYTES {
            self.writer.push_shared(data);
        }
    }

    fn refuse(&self, head: Head, refusal: &Refusal) {
        match refusal.status {
            Status::Damaged | Status::Stopped => {
                tracing::warn!(process = self.peer.process, "socket: a request failed: {refusal}");
            }
            _ => tracing::debug!(process = self.peer.process, "socket: a request is refused: {refusal}"),
        }
        put_refusal(&self.writer, head, refusal);
    }

    /// The connection has ended: aborts what the client has not released, as soon as what is under way of it is done.
    async fn end(&self) {
        self.session.borrow_mut().end();
        self.has_ended.set(true);
        self.done.ring();
        let txs = std::mem::take(&mut *self.txs.borrow_mut());
        if self.shared.options.planted.is(PlantedBug::EndKeepsTransactions) {
            self.shared.left.borrow_mut().extend(txs.values().cloned());
        }
        drop(txs);
        self.shared.gate.finish(&self.writer, || self.all_done()).await;
        // Of what began late.
        self.txs.borrow_mut().clear();
        self.shared.gate.farewell(&self.writer).await;
    }

    async fn all_done(&self) {
        self.done.until(|| (self.session.borrow().taken() == 0).then_some(())).await;
    }

    /// Waits until the connection has ended.
    async fn ended(&self) {
        self.done.until(|| self.has_ended.get().then_some(())).await;
    }

    /// Reads and verifies everything; if somebody has asked for that already, waits until it is done. Errors: `Stopped`.
    pub(super) async fn scrub(&self) -> Result<Reply, Refusal> {
        let shared = &self.shared;
        if shared.is_scrubbing.get() {
            let over = shared.scrubbed.until(|| (!shared.is_scrubbing.get()).then_some(()));
            race(over, self.ended()).await;
            return Ok(self.scrubbed());
        }
        let scrubbing = Scrubbing::new(shared);
        let done = race(shared.volume.scrub(), self.ended()).await;
        drop(scrubbing);
        if let Ended::First(done) = done {
            done?;
        }
        Ok(self.scrubbed())
    }

    /// How far that is.
    pub(super) fn scrubbed(&self) -> Reply {
        let is_running = self.shared.is_scrubbing.get();
        Reply::Scrub(Scrub { is_running, ..Scrub::of(&self.shared.volume) })
    }
}

fn put_refusal(writer: &Writer, head: Head, refusal: &Refusal) {
    let mut body = BytesMut::new();
    refusal.encode(&mut body);
    writer.push(|out| {
        put_head(out, Head { status: refusal.status as u32, ..head }, &[&body]);
        out.extend_from_slice(&body);
    });
}

/// That everything is being read, until this is dropped.
struct Scrubbing<'a> {
    shared: &'a Shared,
}

impl<'a> Scrubbing<'a> {
    fn new(shared: &'a Shared) -> Self {
        shared.is_scrubbing.set(true);
        Self { shared }
    }
}

impl Drop for Scrubbing<'_> {
    fn drop(&mut self) {
        self.shared.is_scrubbing.set(false);
        self.shared.scrubbed.ring();
    }
}
