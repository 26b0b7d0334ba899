//! The real side: one epoll loop on one thread, and a pool of threads for drives.
//!
//! A turn of the loop runs the tasks that are ready, sends what they queued on connections (one gathered write a
//! connection), and waits for sockets, timers and drives. Nothing blocks on the loop's thread.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the real side is the door that the bans lead to"
)]

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::drive::{Drive, DriveError, OpenDrive};
use crate::fuse::{Channel, FuseError, MountOptions};
use crate::net::{Conn, Listener, LocalError, NetError};
use crate::task::{Executor, Group, TaskHandle};
use crate::{Env, Time};

mod allocator;
mod background;
mod drive_file;
pub mod files;
mod fuse;
pub mod golden;
mod io_pool;
mod listener;
mod local;
mod memory;
mod park;
mod priority;
pub mod process;
mod reactor;
mod ring;
mod socket;
mod stdin;
pub mod terminal;

pub use allocator::{Allocator, give_back_idle_memory, keep_freed_memory};
pub use background::{output_closed, shutdown_signal, unblock};
pub use priority::run_at_once;
pub use stdin::Stdin;

pub(crate) use memory::{Mapping, prefer_large_pages};
pub(crate) use rustix::fd::OwnedFd as Descriptor;

use io_pool::IoPool;
use reactor::Reactor;
use ring::Ring;

/// Task polls between two looks at the sockets.
const POLLS_PER_TURN: usize = 4096;

/// What `Env` holds of a real environment.
#[derive(Clone)]
pub struct Handle {
    shared: Rc<Shared>,
}

struct Shared {
    executor: Rc<Executor>,
    reactor: Rc<Reactor>,
    pool: OnceCell<IoPool>,
    /// Made with the first drive; `None` where the system has none.
    ring: OnceCell<Option<Rc<Ring>>>,
    timers: RefCell<BTreeMap<(Time, u64), Waker>>,
    next_timer: Cell<u64>,
    /// Tasks that go on in the next turn.
    next_turn: RefCell<Vec<Waker>>,
    start: Duration,
}

/// Runs `main` and every task that it spawns on this thread until `main` is done; the other tasks are then dropped.
///
/// Panics if the system refuses an epoll or event descriptor, or if the thread already runs an environment.
pub fn run<F: Future>(main: impl FnOnce(Env) -> F) -> F::Output {
    let shared = Shared::enter();
    let mut output = None;
    // Everything else is the same for every `F`: each command of a program has one.
    shared.run(pin!(async {
        output = Some(main(Env::from(Handle { shared: Rc::clone(&shared) })).await);
    }));
    shared.leave();
    output.expect("`main` is done")
}

/// Since the machine began, the time that it was suspended included: a lease does not outlive that.
fn clock() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

impl Shared {
    /// A new environment, which this thread runs from now on.
    fn enter() -> Rc<Self> {
        let (reactor, unpark) = Reactor::new().expect("the system gives an epoll and an event descriptor");
        let executor = Executor::new(Box::new(move || unpark.unpark()));
        executor.remote().enter();
        Rc::new(Self {
            executor,
            reactor,
            pool: OnceCell::new(),
            ring: OnceCell::new(),
            timers: RefCell::default(),
            next_timer: Cell::new(0),
            next_turn: RefCell::default(),
            start: clock(),
        })
    }

    /// Drops the tasks that are left, and runs no more.
    fn leave(&self) {
        self.executor.clear();
        self.reactor.clear();
        self.executor.remote().leave();
    }

    fn run(&self, mut main: Pin<&mut dyn Future<Output = ()>>) {
        let main_woken = std::sync::Arc::new(MainWaker::new(&self.executor));
        let waker = Waker::from(std::sync::Arc::clone(&main_woken));
        loop {
            if main_woken.take() && main.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                return self.reactor.flush_dirty();
            }
            self.executor.run_ready(POLLS_PER_TURN);
            self.next_turn.take().into_iter().for_each(Waker::wake);
            // The drive begins before the answers go out: it is the slower of the two.
            if let Some(ring) = self.ring() {
                ring.submit();
            }
            self.reactor.flush_dirty();
            self.wait(&main_woken);
        }
    }

    /// Waits for sockets, drives and timers, not at all if something is ready to run.
    fn wait(&self, main_woken: &MainWaker) {
        // Asked after the loop has said that it is about to wait: what comes later rings it.
        let idle = || {
            let nothing_done = self.pool.get().is_none_or(|pool| !pool.has_done());
            let nothing_read = self.ring().is_none_or(|ring| !ring.has_work());
            self.executor.remote().is_idle() && !main_woken.is_set() && nothing_done && nothing_read
        };
        let next_timer = self.timers.borrow().first_key_value().map(|(&(deadline, _), _)| deadline);
        self.reactor.wait(idle, || next_timer.map(|deadline| deadline.since(self.now())));
        if let Some(pool) = self.pool.get() {
            pool.complete();
        }
        if let Some(ring) = self.ring() {
            ring.complete();
        }
        self.fire_timers();
    }

    fn fire_timers(&self) {
        if self.timers.borrow().is_empty() {
            return;
        }
        let now = self.now();
        loop {
            let mut timers = self.timers.borrow_mut();
            match timers.first_entry() {
                Some(entry) if entry.key().0 <= now => {
                    let waker = entry.remove();
                    drop(timers);
                    waker.wake();
                }
                _ => return,
            }
        }
    }

    fn now(&self) -> Time {
        Time(u64::try_from(clock().saturating_sub(self.start).as_nanos()).unwrap_or(u64::MAX))
    }

    fn ring(&self) -> Option<&Rc<Ring>> {
        self.ring.get().and_then(Option::as_ref)
    }

    /// The ring, made if there is none yet.
    fn ring_or_init(&self) -> Option<Rc<Ring>> {
        let ring = self.ring.get_or_init(|| {
            let ring = Ring::new()?;
            ring.with_fd(|fd| self.reactor.add_ring(fd)).ok()?;
            Some(ring)
        });
        ring.clone()
    }

    fn pool(&self) -> &IoPool {
        self.pool.get_or_init(|| IoPool::new(self.reactor.park()))
    }
}

/// The waker of the future that `run` drives, which is not a task.
struct MainWaker {
    woken: std::sync::atomic::AtomicBool,
    remote: std::sync::Arc<crate::task::Remote>,
}

impl MainWaker {
    fn new(executor: &Executor) -> Self {
        Self {
            woken: std::sync::atomic::AtomicBool::new(true),
            remote: std::sync::Arc::clone(executor.remote()),
        }
    }

    fn take(&self) -> bool {
        self.woken.swap(false, std::sync::atomic::Ordering::AcqRel)
    }

    fn is_set(&self) -> bool {
        self.woken.load(std::sync::atomic::Ordering::Acquire)
    }
}

impl std::task::Wake for MainWaker {
    fn wake(self: std::sync::Arc<Self>) {
        if !self.woken.swap(true, std::sync::atomic::Ordering::AcqRel) {
            self.remote.unpark_if_elsewhere();
        }
    }
}

impl Handle {
    pub(crate) fn now(&self) -> Time {
        self.shared.now()
    }

    pub(crate) fn wall_clock_ms(&self) -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn random_u64(&self) -> u64 {
        process::random_u64()
    }

    pub(crate) fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> TaskHandle<T> {
        self.shared.executor.spawn(Group::default(), future)
    }

    pub(crate) async fn sleep_until(&self, deadline: Time) {
        let mut timer = Timer { shared: &self.shared, deadline, key: None };
        std::future::poll_fn(|cx| timer.poll(cx)).await;
    }

    pub(crate) async fn next_turn(&self) {
        let mut asked = false;
        std::future::poll_fn(|cx| {
            if asked {
                return Poll::Ready(());
            }
            asked = true;
            self.shared.next_turn.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    pub(crate) fn send_queued(&self) {
        self.shared.reactor.flush_dirty();
    }

    pub(crate) fn listen(&self, addr: SocketAddr) -> Result<Listener, NetError> {
        listener::listen(&self.shared.reactor, addr)
    }

    pub(crate) async fn connect(&self, addr: SocketAddr) -> Result<Conn, NetError> {
        socket::connect(&self.shared.reactor, addr).await
    }

    pub(crate) fn listen_local(&self, path: &Path) -> Result<Listener, LocalError> {
        local::listen(&self.shared.reactor, path)
    }

    pub(crate) fn mount_fuse(&self, options: &MountOptions) -> Result<Channel, FuseError> {
        fuse::mount(&self.shared.reactor, options)
    }

    pub(crate) async fn connect_local(&self, path: &Path) -> Result<Conn, LocalError> {
        local::connect(&self.shared.reactor, path)
    }

    pub(crate) async fn open_drive(&self, open: OpenDrive) -> Result<Drive, DriveError> {
        let pool = self.shared.pool().clone();
        let file = pool.run(move || drive_file::open(&open)).await?;
        let ring = self.shared.ring_or_init();
        Ok(Drive::new(Rc::new(drive_file::FileDrive::new(file, pool, ring))))
    }

    pub(crate) fn io_pool(&self) -> IoPool {
        self.shared.pool().clone()
    }
}

/// One wait for a deadline; leaves the timer list when dropped.
struct Timer<'a> {
    shared: &'a Shared,
    deadline: Time,
    key: Option<u64>,
}

impl Timer<'_> {
    fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.shared.now() >= self.deadline {
            return Poll::Ready(());
        }
        let key = *self.key.get_or_insert_with(|| {
            let key = self.shared.next_timer.get();
            self.shared.next_timer.set(key + 1);
            key
        });
        if self.deadline < Time::MAX {
            self.shared.timers.borrow_mut().insert((self.deadline, key), cx.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.shared.timers.borrow_mut().remove(&(self.deadline, key));
        }
    }
}
