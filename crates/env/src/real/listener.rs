//! Listening sockets.

use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::reactor::{Reactor, Readiness};
use super::socket;
use crate::net::{Accept, Conn, Listener, LocalFuture, NetError};

struct RealListener {
    fd: OwnedFd,
    addr: SocketAddr,
    readiness: Rc<Readiness>,
    reactor: Rc<Reactor>,
    key: usize,
}

/// Listens at `addr`, which a socket in TIME_WAIT does not keep taken.
pub(super) fn listen(reactor: &Rc<Reactor>, addr: SocketAddr) -> Result<Listener, NetError> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AddrInUse => NetError::AddressInUse { addr },
        _ => NetError::Io { addr, operation: "listen", message: error.to_string() },
    };
    let listener = TcpListener::bind(addr).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let addr = listener.local_addr().map_err(failed)?;
    let fd = OwnedFd::from(listener);
    // Calling listen again changes the length of the queue, which std sets to 128.
    rustix::net::listen(&fd, crate::limits::LISTEN_BACKLOG).map_err(|error| failed(error.into()))?;
    let readiness = Rc::new(Readiness::default());
    let key = reactor.add_listener(&fd, Rc::clone(&readiness)).map_err(|error| failed(error.into()))?;
    Ok(Listener::new(Box::new(RealListener { fd, addr, readiness, reactor: Rc::clone(reactor), key })))
}

impl Accept for RealListener {
    fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    fn accept(&self) -> LocalFuture<'_, Result<Conn, NetError>> {
        Box::pin(async move {
            loop {
                std::future::poll_fn(|cx| self.readiness.poll_readable(cx)).await;
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                match rustix::net::acceptfrom_with(&self.fd, flags) {
                    Ok((fd, peer)) => {
                        let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok()).unwrap_or(self.addr);
                        return socket::adopt(&self.reactor, fd, peer);
                    }
                    Err(Errno::AGAIN) => self.readiness.clear_readable(),
                    // The peer gave up before it was accepted; the next one may not have.
                    Err(Errno::INTR | Errno::CONNABORTED) => {}
                    Err(error) => {
                        let message = error.to_string();
                        return Err(NetError::Io { addr: self.addr, operation: "accept", message });
                    }
                }
            }
        })
    }
}

impl Drop for RealListener {
    fn drop(&mut self) {
        self.reactor.remove(self.key, &self.fd);
    }
}
