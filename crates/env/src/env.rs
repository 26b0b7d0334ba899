//! The handle: one concrete type, real or simulated inside.

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use thiserror::Error;

use crate::Time;
use crate::drive::{Drive, DriveError, OpenDrive};
use crate::fuse::{Channel, FuseError, MountOptions};
use crate::limits;
use crate::memory::{self, MemoryError, MemoryHandle, SharedMemory};
use crate::net::{Conn, Listener, LocalError, NetError};
use crate::real;
use crate::sim;
use crate::task::{Ended, TaskHandle, race};

/// The time that was given for something ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("timed out")]
pub struct TimedOut;

/// Drives, network, clock, randomness and tasks of one thread (in a simulation: of one process). Cheap to clone.
#[derive(Clone)]
pub struct Env {
    inner: Inner,
}

#[derive(Clone)]
enum Inner {
    Real(real::Handle),
    Sim(sim::Handle),
}

impl From<real::Handle> for Env {
    fn from(handle: real::Handle) -> Self {
        Self { inner: Inner::Real(handle) }
    }
}

impl From<sim::Handle> for Env {
    fn from(handle: sim::Handle) -> Self {
        Self { inner: Inner::Sim(handle) }
    }
}

impl Env {
    /// The real side, `None` in a simulation.
    pub(crate) fn real(&self) -> Option<&real::Handle> {
        match &self.inner {
            Inner::Real(env) => Some(env),
            Inner::Sim(_) => None,
        }
    }

    /// Nanoseconds since this environment began. Monotonic.
    pub fn now(&self) -> Time {
        match &self.inner {
            Inner::Real(env) => env.now(),
            Inner::Sim(env) => env.now(),
        }
    }

    /// Milliseconds since 1970, for people only: it may jump. No decision of a protocol may depend on it.
    pub fn wall_clock_ms(&self) -> u64 {
        match &self.inner {
            Inner::Real(env) => env.wall_clock_ms(),
            Inner::Sim(env) => env.wall_clock_ms(),
        }
    }

    /// A random number: from the system, or from the seed.
    pub fn random_u64(&self) -> u64 {
        match &self.inner {
            Inner::Real(env) => env.random_u64(),
            Inner::Sim(env) => env.random_u64(),
        }
    }

    /// A random number for an id that nobody else draws, of two [`random_u64`](Self::random_u64).
    pub fn random_u128(&self) -> u128 {
        u128::from(self.random_u64()) << 64 | u128::from(self.random_u64())
    }

    /// User and system time of this process so far, all threads, in microseconds; 0 in a simulation.
    pub fn cpu_us(&self) -> u64 {
        self.real().map_or(0, |_| real::process::cpu_us())
    }

    /// Resident memory of this process in bytes; 0 in a simulation.
    pub fn resident_bytes(&self) -> u64 {
        self.real().map_or(0, |_| real::process::resident_bytes())
    }

    /// Gives memory back to the system that this process has freed: the allocator keeps what lies between pieces that are in use. It takes
    /// time, more the more there is, and is for when much was freed that is not needed again soon. In a simulation it does nothing.
    pub fn give_memory_back(&self) {
        if self.real().is_some() {
            real::process::give_memory_back();
        }
    }

    /// Runs `future` on this thread. The task goes on when the handle is dropped.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> TaskHandle<T> {
        match &self.inner {
            Inner::Real(env) => env.spawn(future),
            Inner::Sim(env) => env.spawn(future),
        }
    }

    /// Waits until `deadline`.
    pub async fn sleep_until(&self, deadline: Time) {
        match &self.inner {
            Inner::Real(env) => env.sleep_until(deadline).await,
            Inner::Sim(env) => env.sleep_until(deadline).await,
        }
    }

    /// Waits for `span`.
    pub async fn sleep(&self, span: Duration) {
        self.sleep_until(self.now() + span).await;
    }

    /// The result of `future`, or an error when `deadline` comes first; `future` is then dropped.
    pub async fn timeout_at<T>(
        &self,
        deadline: Time,
        future: impl Future<Output = T>,
    ) -> Result<T, TimedOut> {
        match race(future, self.sleep_until(deadline)).await {
            Ended::First(value) => Ok(value),
            Ended::Second(()) => Err(TimedOut),
        }
    }

    /// The result of `future`, or an error after `span`; `future` is then dropped.
    pub async fn timeout<T>(&self, span: Duration, future: impl Future<Output = T>) -> Result<T, TimedOut> {
        self.timeout_at(self.now() + span, future).await
    }

    /// Lets the other ready tasks run first.
    pub async fn yield_now(&self) {
        let mut yielded = false;
        std::future::poll_fn(|cx| {
            if yielded {
                return std::task::Poll::Ready(());
            }
            yielded = true;
            cx.waker().wake_by_ref();
            std::task::Poll::Pending
        })
        .await;
    }

    /// The same, and sends what is queued on connections by then: before work that takes long, so that others can answer meanwhile.
    pub async fn yield_and_send(&self) {
        self.yield_now().await;
        if let Inner::Real(env) = &self.inner {
            env.send_queued();
        }
    }

    /// Goes on in the next turn: the other ready tasks have run by then, what they queued is sent, and whatever came meanwhile is ready too. For one
    /// of many pieces of work that somebody else need not wait for.
    pub async fn next_turn(&self) {
        match &self.inner {
            Inner::Real(env) => env.next_turn().await,
            Inner::Sim(_) => self.yield_now().await,
        }
    }

    /// Listens at `addr`; port 0 picks a free one.
    pub fn listen(&self, addr: SocketAddr) -> Result<Listener, NetError> {
        match &self.inner {
            Inner::Real(env) => env.listen(addr),
            Inner::Sim(env) => env.listen(addr),
        }
    }

    /// The same at an address that a process may still have which is ending, as one that was killed does for a moment: waits up to
    /// [`LISTEN_PATIENCE`](crate::limits::LISTEN_PATIENCE) for it.
    pub async fn listen_soon(&self, addr: SocketAddr) -> Result<Listener, NetError> {
        let deadline = self.now() + limits::LISTEN_PATIENCE;
        loop {
            match self.listen(addr) {
                Err(NetError::AddressInUse { .. }) if self.now() < deadline => {
                    self.sleep(limits::LISTEN_RETRY).await;
                }
                result => return result,
            }
        }
    }

    /// Connects to `addr`. Has no deadline of its own: wrap it in [`timeout`](Env::timeout).
    pub async fn connect(&self, addr: SocketAddr) -> Result<Conn, NetError> {
        match &self.inner {
            Inner::Real(env) => env.connect(addr).await,
            Inner::Sim(env) => env.connect(addr).await,
        }
    }

    /// Listens at `path` for processes of this machine, as a socket that only its user may connect to (mode 0600). What a listener that has
    /// ended has left there is replaced; one that lives is left alone, and so is anything that is not a socket. A file `PATH.lock` beside it
    /// is locked meanwhile, and stays. Dropping the listener removes the socket.
    ///
    /// In a simulation a path is a name on the process's machine, and nothing is stored: the name of a process that has ended is free.
    pub fn listen_local(&self, path: &Path) -> Result<Listener, LocalError> {
        match &self.inner {
            Inner::Real(env) => env.listen_local(path),
            Inner::Sim(env) => env.listen_local(path),
        }
    }

    /// Connects to whoever listens at `path` on this machine. Has no deadline of its own, as [`connect`](Env::connect).
    pub async fn connect_local(&self, path: &Path) -> Result<Conn, LocalError> {
        match &self.inner {
            Inner::Real(env) => env.connect_local(path).await,
            Inner::Sim(env) => env.connect_local(path).await,
        }
    }

    /// Makes memory of so many bytes, all 0, that other processes of this machine may be given: whole pages of 4096. It is there at once, so
    /// that it takes a third of a millisecond for each MiB, and is given back when nobody has it any more. Errors: `Size`; `System` if
    /// there is not so much.
    pub fn share_memory(&self, bytes: usize) -> Result<(SharedMemory, MemoryHandle), MemoryError> {
        match &self.inner {
            Inner::Real(_) => memory::real(bytes),
            Inner::Sim(_) => Ok(memory::simulated(bytes)),
        }
    }

    /// Mounts a file or folder whose requests come to the channel. On return programs may use it, and wait for answers. Dropping the
    /// channel unmounts it; so does the end of this process if it is root's or `allow_other` is set.
    ///
    /// Waits for `fusermount3`, which takes some milliseconds, with everything else of this thread. A simulation has nothing to mount.
    pub fn mount_fuse(&self, options: &MountOptions) -> Result<Channel, FuseError> {
        match &self.inner {
            Inner::Real(env) => env.mount_fuse(options),
            Inner::Sim(_) => Err(FuseError::Simulated { path: options.path.clone() }),
        }
    }

    /// The user that this process runs as; in a simulation what [`Sim::set_user`](crate::sim::Sim::set_user) says.
    pub fn user(&self) -> u32 {
        match &self.inner {
            Inner::Real(_) => real::process::user(),
            Inner::Sim(env) => env.user(),
        }
    }

    /// Opens a drive and, unless read-only, locks it against other processes.
    pub async fn open_drive(&self, open: OpenDrive) -> Result<Drive, DriveError> {
        match &self.inner {
            Inner::Real(env) => env.open_drive(open).await,
            Inner::Sim(env) => env.open_drive(open).await,
        }
    }
}
