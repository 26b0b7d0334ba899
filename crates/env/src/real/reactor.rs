//! Waits for sockets with epoll, edge-triggered: a descriptor is registered once and never changed.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use slab::Slab;

use super::park::Park;
use super::socket::Socket;

/// Events taken by one wait.
const EVENTS_MAX: usize = 256;
/// The event data of the descriptor that other threads ring.
const PARK: u64 = u64::MAX;
/// The event data of the ring: its completions are looked for after every wait.
const RING: u64 = u64::MAX - 1;

/// Whether a descriptor may be read and written, and who waits for that.
#[derive(Default)]
pub(super) struct Readiness {
    readable: Cell<bool>,
    writable: Cell<bool>,
    /// The peer has ended or the descriptor failed: there will be no further edge.
    ended: Cell<bool>,
    read_waker: RefCell<Option<Waker>>,
    write_waker: RefCell<Option<Waker>>,
}

impl Readiness {
    fn set(&self, events: EventFlags) {
        let ended = EventFlags::HUP | EventFlags::ERR;
        if events.intersects(EventFlags::RDHUP | ended) {
            self.ended.set(true);
        }
        if events.intersects(EventFlags::IN | EventFlags::RDHUP | ended) {
            self.readable.set(true);
            self.read_waker.take().into_iter().for_each(Waker::wake);
        }
        if events.intersects(EventFlags::OUT | ended) {
            self.writable.set(true);
            self.write_waker.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Wakes both sides, so that they see that the descriptor is closed.
    pub(super) fn wake_all(&self) {
        self.set(EventFlags::HUP);
    }

    /// Ready if a read is worth trying; else the task is woken when it is.
    pub(super) fn poll_readable(&self, cx: &Context<'_>) -> Poll<()> {
        poll_flag(&self.readable, &self.read_waker, cx)
    }

    /// A read took all there was: wait for the next edge. A peer's end that came with the last bytes has no edge of
    /// its own, so a descriptor that ended stays readable.
    pub(super) fn clear_readable(&self) {
        self.readable.set(self.ended.get());
    }

    pub(super) fn is_writable(&self) -> bool {
        self.writable.get()
    }

    /// A write found no room: wait for the next edge.
    pub(super) fn clear_writable(&self) {
        self.writable.set(false);
    }

    pub(super) async fn writable(&self) {
        poll_fn(|cx| poll_flag(&self.writable, &self.write_waker, cx)).await;
    }
}

fn poll_flag(flag: &Cell<bool>, slot: &RefCell<Option<Waker>>, cx: &Context<'_>) -> Poll<()> {
    if flag.get() {
        return Poll::Ready(());
    }
    let mut slot = slot.borrow_mut();
    if !slot.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
        *slot = Some(cx.waker().clone());
    }
    Poll::Pending
}

enum Source {
    Listener(Rc<Readiness>),
    Socket(Rc<Socket>),
}

pub(super) struct Reactor {
    epoll: OwnedFd,
    park: Arc<Park>,
    sources: RefCell<Slab<Source>>,
    /// Connections with something to send.
    dirty: RefCell<Vec<Rc<Socket>>>,
    events: RefCell<Vec<epoll::Event>>,
}

impl Reactor {
    pub(super) fn new() -> rustix::io::Result<(Rc<Self>, Arc<Park>)> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let park = Arc::new(Park::new()?);
        epoll::add(&epoll, park.fd(), EventData::new_u64(PARK), EventFlags::IN | EventFlags::ET)?;
        let reactor = Rc::new(Self {
            epoll,
            park: Arc::clone(&park),
            sources: RefCell::default(),
            dirty: RefCell::default(),
            events: RefCell::new(Vec::with_capacity(EVENTS_MAX)),
        });
        Ok((reactor, park))
    }

    pub(super) fn park(&self) -> Arc<Park> {
        Arc::clone(&self.park)
    }

    /// Watches a listening socket. Returns the key for [`remove`](Self::remove).
    pub(super) fn add_listener(&self, fd: impl AsFd, readiness: Rc<Readiness>) -> rustix::io::Result<usize> {
        self.add(fd, Source::Listener(readiness), EventFlags::IN)
    }

    /// Watches a connection. Returns the key for [`remove`](Self::remove).
    pub(super) fn add_socket(&self, fd: impl AsFd, socket: Rc<Socket>) -> rustix::io::Result<usize> {
        self.add(fd, Source::Socket(socket), EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP)
    }

    fn add(&self, fd: impl AsFd, source: Source, flags: EventFlags) -> rustix::io::Result<usize> {
        let key = self.sources.borrow_mut().insert(source);
        let data = EventData::new_u64(key as u64);
        epoll::add(&self.epoll, fd, data, flags | EventFlags::ET).inspect_err(|_| {
            self.sources.borrow_mut().remove(key);
        })?;
        Ok(key)
    }

    /// Ends a wait when drive reads complete.
    pub(super) fn add_ring(&self, fd: impl AsFd) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, fd, EventData::new_u64(RING), EventFlags::IN | EventFlags::ET)
    }

    /// Stops watching: before the descriptor is closed.
    pub(super) fn remove(&self, key: usize, fd: impl AsFd) {
        let source = self.sources.borrow_mut().try_remove(key);
        if source.is_some() {
            // The descriptor is open and registered, so this cannot fail; if it did, closing it unregisters too.
            let _ = epoll::delete(&self.epoll, fd);
        }
    }

    pub(super) fn mark_dirty(&self, socket: Rc<Socket>) {
        self.dirty.borrow_mut().push(socket);
    }

    /// Sends what is queued on connections, one gathered write each.
    pub(super) fn flush_dirty(&self) {
        if self.dirty.borrow().is_empty() {
            return;
        }
        let mut dirty = std::mem::take(&mut *self.dirty.borrow_mut());
        for socket in dirty.drain(..) {
            socket.flush();
        }
        // Flushing wakes tasks but runs none, so nothing was marked meanwhile; the allocation is kept.
        self.dirty.replace(dirty);
    }

    /// Waits until something happens or `timeout` (asked only if there is nothing to do) passes.
    pub(super) fn wait(&self, idle: impl Fn() -> bool, timeout: impl FnOnce() -> Option<Duration>) {
        self.park.prepare();
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let timeout = if idle() { timeout().map(timespec) } else { Some(zero) };
        let mut events = self.events.borrow_mut();
        events.clear();
        let waited = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut *events), timeout.as_ref());
        self.park.awake();
        // An interrupted wait (a debugger, a stopped process) is a wait that found nothing.
        if waited.is_err() {
            return;
        }
        for event in events.iter() {
            let key = event.data.u64();
            if key == PARK {
                self.park.drain();
                continue;
            }
            if key == RING {
                continue;
            }
            let socket = match self.sources.borrow().get(key as usize) {
                Some(Source::Listener(readiness)) => {
                    readiness.set(event.flags);
                    continue;
                }
                Some(Source::Socket(socket)) => Rc::clone(socket),
                None => continue,
            };
            socket.readiness().set(event.flags);
            if socket.readiness().is_writable() {
                socket.resume();
            }
        }
    }

    /// Drops every source, so that none keeps the reactor alive.
    pub(super) fn clear(&self) {
        let sources = std::mem::take(&mut *self.sources.borrow_mut());
        drop(sources);
        self.dirty.borrow_mut().clear();
    }
}

fn timespec(span: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(span.subsec_nanos()),
    }
}
