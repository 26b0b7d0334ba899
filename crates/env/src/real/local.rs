//! Sockets in the file system, for processes of this machine.
//!
//! A listener holds a lock on `PATH.lock` for as long as it lives, so that two that begin at the same time cannot take each other's
//! socket for one that is left over. The lock file stays: whoever removed it could remove one that somebody else has just locked.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use super::reactor::{Reactor, Readiness};
use super::socket;
use crate::net::{Accept, Conn, Credentials, Listener, LocalError, LocalFuture, NetError};

/// Bytes of a socket's path, as `sockaddr_un` has room for beside its end.
const PATH_MAX_BYTES: usize = 107;
/// Read and write for the user, nothing for anybody else.
const MODE: Mode = Mode::from_raw_mode(0o600);
/// What a local listener says of where it is, when it is asked for an address.
const ADDR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

struct LocalListener {
    fd: OwnedFd,
    path: PathBuf,
    /// Locked until this is dropped.
    _lock: OwnedFd,
    readiness: Rc<Readiness>,
    reactor: Rc<Reactor>,
    key: usize,
}

fn failed(path: &Path, operation: &'static str) -> impl Fn(Errno) -> LocalError {
    move |error| LocalError::Io { path: path.to_owned(), operation, message: error.to_string() }
}

fn addr_of(path: &Path) -> Result<SocketAddrUnix, LocalError> {
    if path.as_os_str().len() > PATH_MAX_BYTES {
        return Err(LocalError::TooLong { path: path.to_owned(), max: PATH_MAX_BYTES });
    }
    SocketAddrUnix::new(path).map_err(failed(path, "name"))
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Listens at `path`; see [`Env::listen_local`](crate::Env::listen_local).
pub(super) fn listen(reactor: &Rc<Reactor>, path: &Path) -> Result<Listener, LocalError> {
    let addr = addr_of(path)?;
    let lock = lock(path)?;
    remove_left_over(path)?;
    let fd = socket().map_err(failed(path, "listen"))?;
    rustix::net::bind(&fd, &addr).map_err(failed(path, "listen"))?;
    // Nobody can connect before the next call but one, so nobody gets in before the mode is as it should be.
    rustix::fs::chmod(path, MODE).map_err(failed(path, "change the mode"))?;
    rustix::net::listen(&fd, crate::limits::LISTEN_BACKLOG).map_err(failed(path, "listen"))?;
    let readiness = Rc::new(Readiness::default());
    let key = reactor.add_listener(&fd, Rc::clone(&readiness)).map_err(failed(path, "listen"))?;
    let (reactor, path) = (Rc::clone(reactor), path.to_owned());
    Ok(Listener::new(Box::new(LocalListener { fd, path, _lock: lock, readiness, reactor, key })))
}

/// Locks `PATH.lock`, which nobody does but a listener at `path`.
fn lock(path: &Path) -> Result<OwnedFd, LocalError> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".lock");
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file =
        rustix::fs::open(Path::new(&beside), flags, MODE).map_err(failed(path, "make its lock file"))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(LocalError::InUse { path: path.to_owned() }),
        Err(error) => Err(failed(path, "lock")(error)),
    }
}

/// Removes a socket whose listener has ended.
fn remove_left_over(path: &Path) -> Result<(), LocalError> {
    let found = match rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => found,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(failed(path, "look")(error)),
    };
    if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
        return Err(LocalError::NotASocket { path: path.to_owned() });
    }
    // Somebody may listen who does not know of lock files.
    match connect_to(path) {
        Err(LocalError::Refused { .. }) => {}
        _ => return Err(LocalError::InUse { path: path.to_owned() }),
    }
    rustix::fs::unlink(path).map_err(failed(path, "remove what was left"))
}

fn connect_to(path: &Path) -> Result<OwnedFd, LocalError> {
    let addr = addr_of(path)?;
    let fd = socket().map_err(failed(path, "connect"))?;
    match rustix::net::connect(&fd, &addr) {
        Ok(()) => Ok(fd),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Err(LocalError::Refused { path: path.to_owned() }),
        Err(error) => Err(failed(path, "connect")(error)),
    }
}

/// Connects to whoever listens at `path`. A local connection stands at once, or the queue of the listener is full.
pub(super) fn connect(reactor: &Rc<Reactor>, path: &Path) -> Result<Conn, LocalError> {
    let fd = connect_to(path)?;
    let credentials = credentials(&fd).map_err(failed(path, "ask who listens"))?;
    socket::adopt_local(reactor, fd, credentials).map_err(failed(path, "connect"))
}

fn credentials(fd: &OwnedFd) -> Result<Credentials, Errno> {
    let found = sockopt::socket_peercred(fd)?;
    let process = u32::try_from(found.pid.as_raw_nonzero().get()).unwrap_or(0);
    Ok(Credentials { user: found.uid.as_raw(), process })
}

impl Accept for LocalListener {
    fn local_addr(&self) -> SocketAddr {
        ADDR
    }

    fn accept(&self) -> LocalFuture<'_, Result<Conn, NetError>> {
        let failed = |error: Errno| NetError::Io {
            addr: ADDR,
            operation: "accept",
            message: format!("{}: {error}", self.path.display()),
        };
        Box::pin(async move {
            loop {
                std::future::poll_fn(|cx| self.readiness.poll_readable(cx)).await;
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                match rustix::net::accept_with(&self.fd, flags) {
                    Ok(fd) => {
                        let credentials = credentials(&fd).map_err(failed)?;
                        return socket::adopt_local(&self.reactor, fd, credentials).map_err(failed);
                    }
                    Err(Errno::AGAIN) => self.readiness.clear_readable(),
                    // The peer gave up before it was accepted; the next one may not have.
                    Err(Errno::INTR | Errno::CONNABORTED) => {}
                    Err(error) => return Err(failed(error)),
                }
            }
        })
    }
}

impl Drop for LocalListener {
    fn drop(&mut self) {
        self.reactor.remove(self.key, &self.fd);
        // Before the lock is let go: the socket is still ours. One that stays is found to be left over.
        let _ = rustix::fs::unlink(&self.path);
    }
}
