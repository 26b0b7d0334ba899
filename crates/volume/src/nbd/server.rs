//! The NBD server: a thin shell around the cores of handshake and transmission.
//!
//! One task accepts. Each connection has a task that reads requests, and each request that has to wait has one that carries it out and
//! queues its reply; what is queued in one turn of the environment's loop goes out in one system call.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::BytesMut;
use ithaca_env::Env;
use ithaca_env::net::{Conn, Listener, NetError, Reader, Writer};
use ithaca_env::sync::Notify;
use ithaca_env::task::{Ended, race};
use thiserror::Error;

use super::export::{Disk, Export, Failed};
use super::handshake::{self, ALLOCATION_ID, Handshake, NoExport, ProtocolError, Terms};
use super::limits::{CONNECTIONS_MAX, OWN_ROOM_BYTES, SHARED_ROOM_BYTES, UNSENT_MAX_BYTES};
use super::reply::Replies;
use super::transmission::{self, Command, Request, Transmission};
use crate::received::Received;
use crate::room::{ConnectionRoom, Held, Room, RoomLimits};
use crate::serving::{Front, Gate, Serving};
use crate::{Planted, Volume};

/// A client that has not chosen an export after this time is gone.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(30);
/// Why a connection ended, other than by a disconnect or by the client's end.
#[derive(Debug, Error)]
enum ConnectionError {
    #[error(transparent)]
    Net(#[from] NetError),
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    #[error("no export was chosen for {} s", HANDSHAKE_PATIENCE.as_secs())]
    Silent,
}

/// How a volume is served.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The export's name; a client that names none gets the volume too.
    pub name: String,
    /// A deliberate fault; none in ordinary builds.
    pub planted: Planted,
}

impl ServerOptions {
    /// As the export of this name.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), planted: Planted::default() }
    }
}

/// Serves a volume to NBD clients until it is stopped or dropped.
pub struct Server {
    addr: SocketAddr,
    serving: Serving,
    room: Rc<Room>,
}

struct Shared {
    env: Env,
    disk: Rc<Disk>,
    gate: Rc<Gate>,
    room: Rc<Room>,
}

impl Server {
    /// Serves `volume` at `listener`. Returns at once.
    pub fn start(env: &Env, listener: Listener, volume: Volume, options: ServerOptions) -> Self {
        let gate = Gate::new(env);
        let disk = Rc::new(Disk::new(volume, options));
        let (own_bytes, shared_bytes) = (OWN_ROOM_BYTES, SHARED_ROOM_BYTES);
        let room = Room::new(env, RoomLimits { front: "nbd", own_bytes, shared_bytes });
        let shared =
            Rc::new(Shared { env: env.clone(), disk, gate: Rc::clone(&gate), room: Rc::clone(&room) });
        let addr = listener.local_addr();
        // Nothing can be said before the client has.
        let front = Front { name: "nbd", connections_max: CONNECTIONS_MAX, refuse: |_| () };
        let serve = move |conn| {
            let shared = Rc::clone(&shared);
            async move { serve(&shared, conn).await }
        };
        Self { addr, serving: Serving::start(gate, front, listener, serve), room }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Connections that are open.
    pub fn connections(&self) -> usize {
        self.serving.connections()
    }

    /// Bytes that requests under way of all connections have room for.
    pub fn held_bytes(&self) -> usize {
        self.room.held_bytes()
    }

    /// Accepts no more connections, answers what is under way and refuses what comes after it, then closes every
    /// connection. On return nobody uses the volume; nothing was flushed for that.
    pub async fn stop(self) {
        self.serving.stop().await;
    }
}

async fn serve(shared: &Rc<Shared>, conn: Conn) {
    let peer = conn.reader.peer_addr();
    let ended = talk(shared, conn).await;
    shared.room.connection_ended();
    match ended {
        Ok(()) | Err(ConnectionError::Net(NetError::Closed { .. })) => {
            tracing::debug!(%peer, "nbd: a client has gone");
        }
        Err(error) => tracing::warn!(%peer, "nbd: the connection is closed: {error}"),
    }
}

async fn talk(shared: &Rc<Shared>, conn: Conn) -> Result<(), ConnectionError> {
    // A client may be a machine that is held up, and whose requests are under way.
    conn.be_patient();
    let Conn { mut reader, writer } = conn;
    let mut received = BytesMut::new();
    let chosen = race(
        shared.env.timeout(HANDSHAKE_PATIENCE, choose(shared, &mut reader, &writer, &mut received)),
        shared.gate.stopping(),
    );
    let ended = match chosen.await {
        Ended::First(chosen) => match chosen.map_err(|_| ConnectionError::Silent)?? {
            Some((export, terms)) => {
                let session = Session::new(shared, export, terms, writer.clone());
                session.run(reader, received).await
            }
            None => Ok(()),
        },
        Ended::Second(()) => Ok(()),
    };
    // The last replies, and the answer to an abort, are still to go out.
    shared.gate.farewell(&writer).await;
    ended
}

/// Goes through the handshake. `None` if the client ends it.
async fn choose(
    shared: &Rc<Shared>,
    reader: &mut Reader,
    writer: &Writer,
    received: &mut BytesMut,
) -> Result<Option<(Export, Terms)>, ConnectionError> {
    let mut out = BytesMut::new();
    let mut handshake = Handshake::new(shared.disk.names(), &mut out);
    // The state of the past that was asked about last: what a client then chooses by the same name is what it was told of.
    let mut asked: Option<(String, Export)> = None;
    loop {
        let next = handshake.next(received, &mut out);
        // Also before an error: what was answered before it is to be read.
        writer.push_shared(out.split().freeze());
        match next? {
            handshake::Next::End => return Ok(None),
            handshake::Next::Read => {
                writer.below(UNSENT_MAX_BYTES).await?;
                if reader.read(received).await? == 0 {
                    return Ok(None);
                }
            }
            handshake::Next::Open(name) => {
                let opened = match asked.take() {
                    _ if shared.gate.is_stopping() => Err(NoExport::Shutdown),
                    Some((before, export)) if before == name => Ok(export),
                    _ => shared.disk.open(&name),
                };
                let answer = match &opened {
                    Ok(export) => handshake.opened(Ok(export.info()), &mut out)?,
                    Err(no) => handshake.opened(Err(no.clone()), &mut out)?,
                };
                match (answer, opened) {
                    (Some(terms), Ok(export)) => {
                        writer.push_shared(out.freeze());
                        export.enter();
                        return Ok(Some((export, terms)));
                    }
                    (None, Ok(export)) if export.info().read_only => asked = Some((name, export)),
                    _ => {}
                }
            }
        }
    }
}

/// A connection in transmission: what its tasks share.
#[derive(Clone)]
struct Session {
    shared: Rc<Shared>,
    export: Rc<Export>,
    core: Rc<RefCell<Transmission>>,
    replies: Replies,
    room: Rc<ConnectionRoom>,
    writer: Writer,
    /// Rings when a request is done.
    done: Rc<Notify>,
}

impl Session {
    fn new(shared: &Rc<Shared>, export: Export, terms: Terms, writer: Writer) -> Self {
        let core = Transmission::new(export.info(), terms);
        Self {
            shared: Rc::clone(shared),
            replies: core.replies(),
            export: Rc::new(export),
            core: Rc::new(RefCell::new(core)),
            room: Rc::new(ConnectionRoom::new(&shared.room, writer.clone())),
            writer,
            done: Rc::default(),
        }
    }

    /// Reads and begins requests until the client disconnects or the server stops, and waits for those that are under way.
    async fn run(self, mut reader: Reader, received: BytesMut) -> Result<(), ConnectionError> {
        let mut received = Received::from(received);
        let taking = self.take_requests(&mut reader, &mut received);
        let ended = match race(taking, self.shared.gate.stopping()).await {
            Ended::First(ended) => ended,
            Ended::Second(()) => self.refuse(&mut received.bytes),
        };
        self.shared.gate.finish(&self.writer, || self.all_done()).await;
        ended
    }

    async fn all_done(&self) {
        self.done.until(|| (self.core.borrow().under_way() == 0).then_some(())).await;
    }

    /// Takes requests until the client disconnects. Dropping the future loses none of them.
    async fn take_requests(
        &self,
        reader: &mut Reader,
        received: &mut Received,
    ) -> Result<(), ConnectionError> {
        // Of the next request; with what tells others that its data is waited for.
        let mut room = None;
        loop {
            // A client that does not take its replies gets no more of them.
            self.writer.below(UNSENT_MAX_BYTES).await?;
            let done = self.done.ticket();
            let take_room = |bytes| match self.room.try_acquire(bytes) {
                Some(held) => {
                    room = Some((held, None));
                    true
                }
                None => false,
            };
            let next = self.core.borrow_mut().next(&mut received.bytes, &mut &self.writer, take_room)?;
            match next {
                transmission::Next::Room(bytes) => {
                    let held = self.room.acquire(bytes).await;
                    let awaits = held.awaits_client();
                    room = Some((held, awaits));
                    self.core.borrow_mut().give_room();
                }
                transmission::Next::Do(request) => {
                    self.begin(request, room.take().map(|(held, _)| held));
                }
                transmission::Next::Full => self.done.after(done).await,
                transmission::Next::End => {
                    self.export.leave(self.core.borrow().has_refused_write());
                    return Ok(());
                }
                transmission::Next::Read(missing) => {
                    if !received.read(reader, missing).await? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Refuses what has come and was not begun: the server stops.
    fn refuse(&self, received: &mut BytesMut) -> Result<(), ConnectionError> {
        let mut core = self.core.borrow_mut();
        core.stop();
        // Nothing is begun any more, so that this ends with what has come.
        core.next(received, &mut &self.writer, |_| false)?;
        Ok(())
    }

    /// Begins a request. What memory answers is done on return; of anything else a task takes care.
    fn begin(&self, request: Request, held: Option<Held>) {
        let session = self.clone();
        let mut answering = Box::pin(async move {
            session.answer(request.cookie, request.command, held.as_ref()).await;
            drop(held);
            session.core.borrow_mut().done(request.cost_bytes);
            session.done.ring();
        });
        // Nobody is to be woken: a task polls at once what is not done.
        if answering.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.shared.env.spawn(answering);
        }
    }

    /// Carries a request out and queues its reply; on return the client has taken most of that.
    async fn answer(&self, cookie: u64, command: Command, held: Option<&Held>) {
        let is_read = command.is_read();
        if let Err(Failed { error, words }) = self.carry_out(cookie, command, held).await {
            tracing::warn!(peer = %self.writer.peer_addr(), "nbd: a request failed: {words}");
            match is_read {
                true => self.replies.read_failed(&mut &self.writer, cookie, error, &words),
                false => self.replies.ended(&mut &self.writer, cookie, Some(error)),
            }
        }
    }

    async fn carry_out(&self, cookie: u64, command: Command, held: Option<&Held>) -> Result<(), Failed> {
        let export = &self.export;
        match command {
            Command::Read { range, whole } => {
                let offset = range.start;
                let parts = export.read(range, self.replies.structured && !whole).await?;
                let _awaits = held.and_then(Held::awaits_client);
                self.until_taken().await;
                self.replies.read(&mut &self.writer, cookie, offset, &parts, whole);
                drop(parts);
                self.until_taken().await;
                return Ok(());
            }
            Command::Status { range, one } => {
                let extents = export.status(&range, one).await?;
                let _awaits = held.and_then(Held::awaits_client);
                self.replies.status(&mut &self.writer, cookie, ALLOCATION_ID, &extents);
                self.until_taken().await;
                return Ok(());
            }
            Command::Write { offset, data, stable } => export.write(offset, data, stable).await?,
            Command::Flush => export.flush().await?,
            Command::Trim { range, stable } => export.trim(range, stable).await?,
            Command::Zero { range, stable, stored } => export.zero(range, stable, stored).await?,
            Command::Cache { range } => export.cache(range).await?,
        }
        self.replies.ended(&mut &self.writer, cookie, None);
        Ok(())
    }

    /// Waits until the client has taken most of the replies, so that those that are read wait outside of the connection, and what is handed
    /// over to it counts as under way, until hardly anything is left. On a closed connection nobody waits.
    async fn until_taken(&self) {
        let _ = self.writer.below(UNSENT_MAX_BYTES).await;
    }
}
