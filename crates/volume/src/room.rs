//! Room for the data of requests: how much all connections of a server hold together, and whose turn it is. (docs/protocol/nbd.md,
//! docs/protocol/socket.md)
//!
//! * A request that carries data asks for room before anything is done for it; a write does before its data is taken in. Until it has some it
//!   waits in the socket, and holds nothing.
//! * Each connection has a little room of its own, whatever the others do, and all of them share the rest. One request of a connection
//!   waits at a time, in one queue, so that connections take turns.
//! * A request gives its room back when its data is stored, or when the client has taken most of the replies. That needs no more room, of
//!   nobody.
//! * What is more than a connection's own room depends on others, and their clients may have stopped. Who has waited long for shared room
//!   ends the connections that have kept some just as long for their clients.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use ithaca_env::net::Writer;
use ithaca_env::sync::{Permit, Semaphore};
use ithaca_env::task::{Ended, race};
use ithaca_env::{Env, Time};

/// How long a client may be waited for by a request that has shared room, while another one waits for that room.
const PATIENCE: Duration = Duration::from_secs(30);

/// How much room a server has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoomLimits {
    /// The front end, for log lines.
    pub(crate) front: &'static str,
    /// Bytes that each connection has of its own.
    pub(crate) own_bytes: usize,
    /// Bytes that all of them share.
    pub(crate) shared_bytes: usize,
}

/// The room of a server.
pub(crate) struct Room {
    env: Env,
    limits: RoomLimits,
    shared: Semaphore,
    held_bytes: Cell<usize>,
    /// The most that was held since memory was given back.
    most_held_bytes: Cell<usize>,
    /// Connections for whose clients requests wait that have shared room, and since when.
    awaited: RefCell<BTreeMap<u64, (Time, Writer)>>,
    next: Cell<u64>,
}

impl Room {
    /// Nobody has any.
    pub(crate) fn new(env: &Env, limits: RoomLimits) -> Rc<Self> {
        let shared = Semaphore::new(limits.shared_bytes);
        let (held_bytes, most_held_bytes) = (Cell::default(), Cell::default());
        let (awaited, next) = (RefCell::default(), Cell::default());
        Rc::new(Self { env: env.clone(), limits, shared, held_bytes, most_held_bytes, awaited, next })
    }

    /// Bytes that requests have room for.
    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes.get()
    }

    /// A connection has ended, and holds nothing any more. When much was held of late and half of it is not, the system has the memory back: the
    /// allocator would keep most of it.
    pub(crate) fn connection_ended(&self) {
        if self.has_let_go_of_much() {
            self.env.give_memory_back();
        }
    }

    /// Whether at most half is held of what was since this last was so, and that was more than one connection has of its own.
    fn has_let_go_of_much(&self) -> bool {
        let (held, most) = (self.held_bytes.get(), self.most_held_bytes.get());
        let is_much = most > self.limits.own_bytes && held <= most / 2;
        if is_much {
            self.most_held_bytes.set(held);
        }
        is_much
    }

    /// Shared room for more than a connection has of its own.
    async fn much(&self, bytes: usize) -> Permit {
        let mut turn = pin!(self.shared.acquire(bytes));
        loop {
            match self.env.timeout(PATIENCE, turn.as_mut()).await {
                Ok(permit) => return permit,
                Err(_) => self.end_awaited(),
            }
        }
    }

    /// Ends the connections that have kept shared room for so long for their clients.
    fn end_awaited(&self) {
        let now = self.env.now();
        let awaited = self.awaited.borrow();
        let long = awaited.values().filter(|(since, _)| now.since(*since) >= PATIENCE);
        let long: BTreeMap<_, _> = long.map(|(_, writer)| (writer.peer_addr(), writer.clone())).collect();
        drop(awaited);
        for (peer, writer) in long {
            let (front, seconds) = (self.limits.front, PATIENCE.as_secs());
            tracing::warn!(%peer, "{front}: others need the memory that was kept for this client for {seconds} s: it is disconnected");
            writer.close();
        }
    }
}

/// The room of one connection.
pub(crate) struct ConnectionRoom {
    room: Rc<Room>,
    own: Semaphore,
    writer: Writer,
}

impl ConnectionRoom {
    /// Of the connection that `writer` sends on.
    pub(crate) fn new(room: &Rc<Room>, writer: Writer) -> Self {
        Self { room: Rc::clone(room), own: Semaphore::new(room.limits.own_bytes), writer }
    }

    /// Room for a request of so many bytes, if the connection has that of its own.
    pub(crate) fn try_acquire(&self, bytes: usize) -> Option<Held> {
        let permit = if bytes <= self.room.limits.own_bytes { self.own.try_acquire(bytes) } else { None };
        permit.map(|permit| self.held(permit, false))
    }

    /// Room for a request of so many bytes. Dropping the future gives the turn up.
    pub(crate) async fn acquire(&self, bytes: usize) -> Held {
        if bytes > self.room.limits.own_bytes {
            return self.held(self.room.much(bytes).await, true);
        }
        match race(self.own.acquire(bytes), self.room.shared.acquire(bytes)).await {
            Ended::First(permit) => self.held(permit, false),
            Ended::Second(permit) => self.held(permit, true),
        }
    }

    fn held(&self, permit: Permit, is_shared: bool) -> Held {
        let held = self.room.held_bytes.get() + permit.count();
        self.room.held_bytes.set(held);
        self.room.most_held_bytes.set(self.room.most_held_bytes.get().max(held));
        Held { room: Rc::clone(&self.room), permit, writer: is_shared.then(|| self.writer.clone()) }
    }
}

/// What a request has room for, until this is dropped.
pub(crate) struct Held {
    room: Rc<Room>,
    permit: Permit,
    /// Of the connection, if the room is shared.
    writer: Option<Writer>,
}

impl Held {
    /// From now on the request waits for its client, until what is returned is dropped. `None` if nobody else minds.
    pub(crate) fn awaits_client(&self) -> Option<Awaiting> {
        let writer = self.writer.clone()?;
        let (id, since) = (self.room.next.get(), self.room.env.now());
        self.room.next.set(id + 1);
        self.room.awaited.borrow_mut().insert(id, (since, writer));
        Some(Awaiting { room: Rc::clone(&self.room), id })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.room.held_bytes.set(self.room.held_bytes.get() - self.permit.count());
    }
}

/// A request with shared room waits for its client, until this is dropped.
pub(crate) struct Awaiting {
    room: Rc<Room>,
    id: u64,
}

impl Drop for Awaiting {
    fn drop(&mut self) {
        self.room.awaited.borrow_mut().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use ithaca_env::sim::Sim;

    use super::*;

    #[test]
    fn memory_is_given_back_as_often_as_what_is_held_has_become_half_and_not_for_a_little() {
        let sim = Sim::new(1);
        let process = sim.process("server", [10, 0, 0, 1].into());
        let (env, server) = (sim.env(process), std::net::SocketAddr::from(([10, 0, 0, 1], 7)));
        sim.block_on(process, async move {
            let _listener = env.listen(server).expect("a free port");
            let client = env.connect(server).await.expect("it listens").writer;
            let room = Room::new(&env, RoomLimits { front: "test", own_bytes: 10, shared_bytes: 100 });
            let connections = [(); 4].map(|()| ConnectionRoom::new(&room, client.clone()));
            let mut held = Vec::new();
            for connection in &connections {
                held.push(connection.acquire(10).await);
            }
            assert!(!room.has_let_go_of_much(), "40 are held");
            let given_back: Vec<bool> =
                std::iter::from_fn(|| held.pop().map(drop)).map(|()| room.has_let_go_of_much()).collect();
            assert_eq!(given_back, [false, true, true, false], "40 became 20, and 20 became 10");
            connections[0].acquire(10).await;
            assert!(!room.has_let_go_of_much(), "that is what a connection has of its own");
        });
    }
}
