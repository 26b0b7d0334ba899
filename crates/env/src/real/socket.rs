//! TCP connections, and local ones.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sockopt,
};

use super::reactor::{Reactor, Readiness};
use crate::limits::{GATHER_MAX, OUTBOX_MAX_BYTES};
use crate::memory::{HandleInner, MemoryHandle};
use crate::net::{Conn, Credentials, NetError, Outbox, Stream};

/// Room that a read offers at the least. Large enough for a batch of entries, so that one call takes a whole frame.
const READ_BYTES: usize = 256 << 10;
/// What the first read of a local connection takes at the most, into memory that is set to 0 before.
const FIRST_READ_BYTES: usize = 4 << 10;
/// A connection on which the other side's system has acknowledged nothing of what was sent for so long is lost. Left alone, TCP would try
/// again ever more seldom, and find out that a link is back as late as it had been away.
const UNACKNOWLEDGED_MAX_MS: u32 = 2_000;
/// A connection on which nothing came for so long is asked whether its other end is there,
const SILENT_MAX: Duration = Duration::from_secs(30);
/// and lost when that has not been answered before it would be asked again.
const PROBE_EVERY: Duration = Duration::from_secs(10);
/// What a local connection says of its other end.
const LOCAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

pub(super) struct Socket {
    /// `None` once closed.
    fd: RefCell<Option<OwnedFd>>,
    peer: SocketAddr,
    credentials: Option<Credentials>,
    readiness: Readiness,
    outbox: Outbox,
    /// Stands in the reactor's list of connections to flush.
    dirty: Cell<bool>,
    overflowed: Cell<bool>,
    /// Goes with the first bytes that are sent.
    passing: RefCell<Option<OwnedFd>>,
    /// Came with the first bytes.
    passed: RefCell<Option<OwnedFd>>,
    /// Nothing was read yet.
    is_fresh: Cell<bool>,
    reactor: Weak<Reactor>,
    key: Cell<usize>,
}

/// A connection over a connected, non-blocking socket.
pub(super) fn adopt(reactor: &Rc<Reactor>, fd: OwnedFd, peer: SocketAddr) -> Result<Conn, NetError> {
    let failed = |error: Errno| NetError::Io { addr: peer, operation: "connect", message: error.to_string() };
    set_up(&fd).map_err(failed)?;
    Ok(Conn::new(register(reactor, fd, peer, None).map_err(failed)?))
}

/// The same over a socket that has no network behind it.
pub(super) fn adopt_local(
    reactor: &Rc<Reactor>,
    fd: OwnedFd,
    credentials: Credentials,
) -> Result<Conn, Errno> {
    Ok(Conn::new(register(reactor, fd, LOCAL, Some(credentials))?))
}

fn set_up(fd: &OwnedFd) -> Result<(), Errno> {
    sockopt::set_tcp_nodelay(fd, true)?;
    sockopt::set_tcp_user_timeout(fd, UNACKNOWLEDGED_MAX_MS)?;
    sockopt::set_tcp_keepidle(fd, SILENT_MAX)?;
    sockopt::set_tcp_keepintvl(fd, PROBE_EVERY)?;
    sockopt::set_socket_keepalive(fd, true)
}

fn register(
    reactor: &Rc<Reactor>,
    fd: OwnedFd,
    peer: SocketAddr,
    credentials: Option<Credentials>,
) -> Result<Rc<Socket>, Errno> {
    let socket = Rc::new(Socket {
        fd: RefCell::new(None),
        peer,
        credentials,
        readiness: Readiness::default(),
        outbox: Outbox::default(),
        dirty: Cell::new(false),
        overflowed: Cell::new(false),
        passing: RefCell::default(),
        passed: RefCell::default(),
        is_fresh: Cell::new(credentials.is_some()),
        reactor: Rc::downgrade(reactor),
        key: Cell::new(usize::MAX),
    });
    socket.key.set(reactor.add_socket(&fd, Rc::clone(&socket))?);
    socket.fd.replace(Some(fd));
    Ok(socket)
}

/// Connects to `addr`.
pub(super) async fn connect(reactor: &Rc<Reactor>, addr: SocketAddr) -> Result<Conn, NetError> {
    let failed = |error: Errno| match error {
        Errno::CONNREFUSED => NetError::Refused { addr },
        error => NetError::Io { addr, operation: "connect", message: error.to_string() },
    };
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, None).map_err(failed)?;
    set_up(&fd).map_err(failed)?;
    match rustix::net::connect(&fd, &addr) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(error) => return Err(failed(error)),
    }
    // Closes the socket if this future is dropped while it waits.
    let socket = register(reactor, fd, addr, None).map_err(failed)?;
    let conn = Conn::new(Rc::clone(&socket) as Rc<dyn Stream>);
    socket.readiness.writable().await;
    let error = match &*socket.fd.borrow() {
        Some(fd) => sockopt::socket_error(fd),
        None => return Err(NetError::Closed { addr }),
    };
    match error {
        Ok(Ok(())) => Ok(conn),
        Ok(Err(error)) | Err(error) => Err(failed(error)),
    }
}

impl Socket {
    pub(super) fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    fn gather(&self, fd: &OwnedFd, pieces: &VecDeque<Bytes>) -> Result<usize, Errno> {
        let mut passing = self.passing.borrow_mut();
        let Some(passed) = &*passing else { return gather(fd, pieces) };
        let sent = send_with(fd, &pieces[0], passed)?;
        *passing = None;
        Ok(sent)
    }

    /// The system has room again: send what is left.
    pub(super) fn resume(self: &Rc<Self>) {
        if self.outbox.queued_bytes() > 0 {
            Rc::clone(self).mark_dirty();
        }
    }

    /// Reads as [`receive`] does, and takes a descriptor that comes along. What comes with later ones the system closes, and
    /// gives no more at once: who passes more than one waits for itself.
    fn receive_first(&self, fd: &OwnedFd, buf: &mut BytesMut) -> Result<usize, Errno> {
        let mut bytes = [0; FIRST_READ_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut pieces = [IoSliceMut::new(&mut bytes)];
        let received = rustix::net::recvmsg(fd, &mut pieces, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut fds) = message {
                self.passed.replace(fds.next());
            }
        }
        buf.extend_from_slice(&bytes[..received.bytes]);
        Ok(received.bytes)
    }

    /// Sends until nothing is left or the system has no room.
    pub(super) fn flush(&self) {
        self.dirty.set(false);
        while self.outbox.queued_bytes() > 0 && self.readiness.is_writable() {
            let sent = match &*self.fd.borrow() {
                Some(fd) => self.outbox.flush(|pieces| self.gather(fd, pieces)),
                None => return,
            };
            match sent {
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.readiness.clear_writable(),
                // The reader learns of it: the connection is closed.
                Err(_) => return self.close(),
            }
        }
        if self.outbox.queued_bytes() > OUTBOX_MAX_BYTES {
            self.overflowed.set(true);
            self.close();
        }
    }
}

/// Sends a descriptor with as many bytes as the system takes, at least one.
fn send_with(fd: &OwnedFd, bytes: &[u8], passing: &OwnedFd) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let passing = [passing.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&passing)), "there is room for one");
    rustix::net::sendmsg(fd, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
}

fn gather(fd: &OwnedFd, pieces: &VecDeque<Bytes>) -> Result<usize, Errno> {
    if pieces.len() == 1 {
        return rustix::io::write(fd, &pieces[0]);
    }
    let empty = IoSlice::new(&[]);
    let mut slices = [empty; GATHER_MAX];
    let count = pieces.len().min(GATHER_MAX);
    for (slice, piece) in slices.iter_mut().zip(pieces) {
        *slice = IoSlice::new(piece);
    }
    rustix::io::writev(fd, &slices[..count])
}

impl Stream for Socket {
    fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    fn credentials(&self) -> Option<Credentials> {
        self.credentials
    }

    fn poll_read(&self, cx: &mut Context<'_>, buf: &mut BytesMut) -> Poll<Result<usize, NetError>> {
        loop {
            let fd = self.fd.borrow();
            let Some(fd) = &*fd else {
                return Poll::Ready(Err(match self.overflowed.get() {
                    true => NetError::Overflow { addr: self.peer, limit: OUTBOX_MAX_BYTES },
                    false => NetError::Closed { addr: self.peer },
                }));
            };
            if self.readiness.poll_readable(cx).is_pending() {
                return Poll::Pending;
            }
            if buf.capacity() - buf.len() < READ_BYTES / 4 {
                buf.reserve(READ_BYTES);
            }
            let is_first = self.is_fresh.replace(false);
            let room = buf.capacity() - buf.len();
            let received = if is_first { self.receive_first(fd, buf) } else { receive(fd, buf) };
            match received {
                Ok(len) => {
                    // A short read emptied the socket; asking again would cost a system call to hear so. But the system gives no more at once
                    // than what a descriptor came with, which the first read may have met.
                    if len < room && !is_first {
                        self.readiness.clear_readable();
                    }
                    return Poll::Ready(Ok(len));
                }
                // Nothing was read: the first bytes are still to come.
                Err(Errno::INTR) => self.is_fresh.set(is_first),
                Err(Errno::AGAIN) => {
                    self.is_fresh.set(is_first);
                    self.readiness.clear_readable();
                }
                Err(Errno::CONNRESET | Errno::PIPE) => {
                    return Poll::Ready(Err(NetError::Closed { addr: self.peer }));
                }
                Err(error) => {
                    let message = error.to_string();
                    return Poll::Ready(Err(NetError::Io { addr: self.peer, operation: "read", message }));
                }
            }
        }
    }

    fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    fn mark_dirty(self: Rc<Self>) {
        if !self.dirty.replace(true)
            && let Some(reactor) = self.reactor.upgrade()
        {
            reactor.mark_dirty(self);
        }
    }

    fn be_patient(&self) {
        if let Some(fd) = &*self.fd.borrow() {
            // Where the system cannot, the connection is as patient as others.
            let _ = sockopt::set_tcp_user_timeout(fd, 0);
        }
    }

    fn pass(&self, memory: MemoryHandle) {
        if let HandleInner::Real(fd) = memory.inner {
            self.passing.replace(Some(fd));
        }
    }

    fn passed(&self) -> Option<MemoryHandle> {
        let fd = self.passed.take()?;
        Some(MemoryHandle { inner: HandleInner::Real(fd) })
    }

    fn close(&self) {
        let Some(fd) = self.fd.take() else { return };
        // What was queued in this turn still goes out if the system takes it: a refusal must reach the peer.
        if self.outbox.queued_bytes() > 0 && !self.overflowed.get() {
            let _ = self.outbox.flush(|pieces| self.gather(&fd, pieces));
        }
        if let Some(reactor) = self.reactor.upgrade() {
            reactor.remove(self.key.get(), &fd);
        }
        self.outbox.close();
        self.readiness.wake_all();
    }
}

#[expect(unsafe_code, reason = "reads into the spare capacity of a buffer, which would else be zeroed first")]
fn receive(fd: &OwnedFd, buf: &mut BytesMut) -> Result<usize, Errno> {
    let len = {
        let (received, _) = rustix::io::read(fd, buf.spare_capacity_mut())?;
        received.len()
    };
    // SAFETY: the system has just written `len` bytes at the start of the spare capacity.
    unsafe { buf.set_len(buf.len() + len) };
    Ok(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_on_which_nothing_comes_is_asked_whether_it_is_there_still() {
        let fd = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        set_up(&fd).expect("a TCP socket");
        assert_eq!(sockopt::socket_keepalive(&fd), Ok(true));
        assert_eq!(sockopt::tcp_keepidle(&fd), Ok(SILENT_MAX));
        assert_eq!(sockopt::tcp_keepintvl(&fd), Ok(PROBE_EVERY));
    }

    #[test]
    fn a_patient_connection_leaves_it_to_the_system_when_its_peer_is_lost() {
        crate::real::run(|env| async move {
            let listener = env.listen("127.0.0.1:0".parse().expect("an address")).expect("a free port");
            let reactor = Reactor::new().expect("a reactor").0;
            let addr = listener.local_addr();
            let fd = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
            rustix::net::connect(&fd, &addr).expect("it listens");
            set_up(&fd).expect("a TCP socket");
            let socket = register(&reactor, fd, addr, None).expect("a socket");
            let patience = |socket: &Socket| {
                let fd = socket.fd.borrow();
                sockopt::tcp_user_timeout(fd.as_ref().expect("open")).expect("an option of TCP")
            };
            assert_eq!(patience(&socket), UNACKNOWLEDGED_MAX_MS);
            socket.be_patient();
            assert_eq!(patience(&socket), 0);
        });
    }
}
