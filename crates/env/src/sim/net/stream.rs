//! One end of a connection.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes, BytesMut};

use crate::Time;
use crate::limits::BLOCK_BYTES;
use crate::memory::MemoryHandle;
use crate::net::{Credentials, NetError, Outbox, Stream};
use crate::sim::options::nanos;
use crate::sim::process::{Life, ProcessId};
use crate::sim::queue::Event;
use crate::sim::random::{Domain, scale};
use crate::sim::world::World;

use super::link;

/// What is under way to an end.
pub(super) enum Packet {
    Data(Bytes),
    /// The peer has closed; nothing follows.
    Fin,
    Reset,
}

pub(super) enum Phase {
    Connecting { attempts: u32 },
    Open,
    Closed(NetError),
}

pub(super) struct State {
    pub(super) phase: Phase,
    /// Gone when the other end is dropped.
    pub(super) peer: Weak<SimStream>,
    /// Packets on their way to this end, with their arrival, in order.
    pub(super) under_way: VecDeque<(Time, Packet)>,
    pub(super) under_way_bytes: usize,
    /// The first of them, which this machine's limit of what it receives has let through: they are there at their time.
    pub(super) let_through: usize,
    pub(super) inbox: VecDeque<Bytes>,
    pub(super) inbox_bytes: usize,
    /// The peer's end was read.
    pub(super) ended: bool,
    pub(super) waker: Option<Waker>,
    /// Nothing that is sent to this end from now on arrives before.
    pub(super) last_arrival: Time,
    /// Sends so far, which number the decisions about them; likewise reads.
    pub(super) sends: u64,
    pub(super) reads: u64,
    /// Bytes sent to a machine that answers nobody.
    pub(super) void_bytes: usize,
    /// A cut holds up what is under way; it holds up the news that the window is open.
    pub(super) stalled: bool,
    pub(super) window_stalled: bool,
    /// The window is full: the peer's reads are to be told.
    pub(super) blocked: bool,
    /// Memory that the peer has passed.
    pub(super) passed: Option<MemoryHandle>,
}

pub(in crate::sim) struct SimStream {
    pub(super) world: Rc<World>,
    pub(super) id: u64,
    /// The process and its count of connections: what is decided about this one does not depend on other processes.
    pub(super) entity: u64,
    pub(super) owner: ProcessId,
    pub(super) life: Life,
    pub(super) local: SocketAddr,
    pub(super) peer_addr: SocketAddr,
    /// `None` until the connection stands.
    pub(super) peer_owner: Cell<Option<ProcessId>>,
    /// It was made by a path, so that its ends know of each other who they are.
    pub(super) local_only: Cell<bool>,
    pub(super) outbox: Outbox,
    pub(super) dirty: Cell<bool>,
    pub(super) state: RefCell<State>,
}

impl SimStream {
    pub(super) fn new(
        world: &Rc<World>,
        (owner, life): (ProcessId, Life),
        local: SocketAddr,
        peer_addr: SocketAddr,
        phase: Phase,
    ) -> Rc<Self> {
        let entity = {
            let process = &mut world.processes.borrow_mut()[owner.0 as usize];
            process.connections += 1;
            u64::from(owner.0) << 32 ^ process.connections
        };
        let stream = Rc::new(Self {
            world: Rc::clone(world),
            id: world.serial(),
            entity,
            owner,
            life,
            local,
            peer_addr,
            peer_owner: Cell::new(None),
            local_only: Cell::new(false),
            outbox: Outbox::default(),
            dirty: Cell::new(false),
            state: RefCell::new(State {
                phase,
                peer: Weak::new(),
                under_way: VecDeque::new(),
                under_way_bytes: 0,
                let_through: 0,
                inbox: VecDeque::new(),
                inbox_bytes: 0,
                ended: false,
                waker: None,
                last_arrival: Time::ZERO,
                sends: 0,
                reads: 0,
                void_bytes: 0,
                stalled: false,
                window_stalled: false,
                blocked: false,
                passed: None,
            }),
        });
        world.net.borrow_mut().streams.insert(stream.id, Rc::downgrade(&stream));
        stream
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.state.borrow().phase, Phase::Closed(_))
    }

    pub(super) fn closed_error(&self) -> NetError {
        NetError::Closed { addr: self.peer_addr }
    }

    /// Closes this end and wakes whoever waits for it. What has arrived can still be read.
    pub(super) fn shut(&self, why: NetError) {
        let mut state = self.state.borrow_mut();
        if matches!(state.phase, Phase::Closed(_)) {
            return;
        }
        state.phase = Phase::Closed(why);
        let waker = state.waker.take();
        drop(state);
        self.outbox.close();
        if let Some(waker) = waker {
            self.world.wake(self.owner, waker);
        }
    }

    /// Takes what fits into `buf`, or less: a read may end anywhere.
    fn take(&self, state: &mut State, buf: &mut BytesMut) -> usize {
        if buf.capacity() - buf.len() < BLOCK_BYTES {
            buf.reserve(BLOCK_BYTES);
        }
        let mut room = (buf.capacity() - buf.len()).min(state.inbox_bytes);
        state.reads += 1;
        let short_ppm = link(&self.world, self.peer_addr.ip(), self.local.ip(), |link| link.short_read_ppm);
        if self.world.dice.chance(Domain::ShortRead, self.entity, 2 * state.reads, short_ppm) {
            let bits = self.world.dice.draw(Domain::ShortRead, self.entity, 2 * state.reads + 1);
            room = 1 + scale(bits, room as u64) as usize;
        }
        let mut left = room;
        while let Some(front) = state.inbox.front_mut().filter(|_| left > 0) {
            let piece = left.min(front.len());
            buf.extend_from_slice(&front[..piece]);
            left -= piece;
            front.advance(piece);
            if front.is_empty() {
                state.inbox.pop_front();
            }
        }
        state.inbox_bytes -= room;
        room
    }

    /// Tells a peer that waits for room that there is some.
    fn announce_room(&self) {
        let state = self.state.borrow();
        let Some(peer) = state.peer.upgrade() else { return };
        let (window, latency) =
            link(&self.world, peer.local.ip(), self.local.ip(), |link| (link.window_bytes, link.latency));
        let used = state.inbox_bytes + state.under_way_bytes;
        let mut theirs = peer.state.borrow_mut();
        if theirs.blocked && used <= window / 2 {
            theirs.blocked = false;
            drop(theirs);
            let at = Time(self.world.now.get().0.saturating_add(nanos(latency)));
            self.world.schedule(at, Event::Window(peer));
        }
    }
}

impl Stream for SimStream {
    fn peer_addr(&self) -> SocketAddr {
        self.peer_addr
    }

    fn credentials(&self) -> Option<Credentials> {
        if !self.local_only.get() {
            return None;
        }
        let process = self.peer_owner.get()?;
        let user = self.world.processes.borrow()[process.0 as usize].user;
        Some(Credentials { user, process: process.0 })
    }

    fn poll_read(&self, cx: &mut Context<'_>, buf: &mut BytesMut) -> Poll<Result<usize, NetError>> {
        let mut state = self.state.borrow_mut();
        if state.inbox_bytes > 0 && !matches!(state.phase, Phase::Connecting { .. }) {
            let taken = self.take(&mut state, buf);
            drop(state);
            self.announce_room();
            return Poll::Ready(Ok(taken));
        }
        if let Phase::Closed(why) = &state.phase {
            return Poll::Ready(Err(why.clone()));
        }
        if state.ended {
            return Poll::Ready(Ok(0));
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    fn mark_dirty(self: Rc<Self>) {
        if !self.dirty.replace(true) {
            let world = Rc::clone(&self.world);
            world.net.borrow_mut().dirty.push(self);
        }
    }

    fn be_patient(&self) {}

    fn pass(&self, memory: MemoryHandle) {
        let peer = self.state.borrow().peer.upgrade();
        if let Some(peer) = peer {
            peer.state.borrow_mut().passed = Some(memory);
        }
    }

    fn passed(&self) -> Option<MemoryHandle> {
        self.state.borrow_mut().passed.take()
    }

    fn close(&self) {
        if self.is_closed() || !self.world.is_alive(self.owner, self.life) {
            return;
        }
        self.send_last();
        self.shut(self.closed_error());
        let mut state = self.state.borrow_mut();
        state.inbox.clear();
        state.inbox_bytes = 0;
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        self.world.net.borrow_mut().streams.remove(&self.id);
        let state = self.state.borrow();
        // Dropped without a close: in the last moments of its process, or refused with its listener.
        if let (Phase::Open, Some(peer)) = (&state.phase, state.peer.upgrade()) {
            drop(state);
            peer.expect_reset();
        }
    }
}
