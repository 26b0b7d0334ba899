//! Connections: ordered bytes both ways, TCP or within one machine, real or simulated.

use std::net::SocketAddr;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use thiserror::Error;

use crate::memory::MemoryHandle;

use std::future::Future;
use std::pin::Pin;

mod local;
mod outbox;

pub use local::{Credentials, LocalError};
pub(crate) use outbox::Outbox;

/// Why the network did not do what was asked.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NetError {
    /// Nobody listens there.
    #[error("{addr}: connection refused")]
    Refused {
        /// Who was called.
        addr: SocketAddr,
    },
    /// The address to listen at is taken.
    #[error("{addr}: the port is in use")]
    AddressInUse {
        /// The address.
        addr: SocketAddr,
    },
    /// The connection is closed or was reset.
    #[error("{addr}: connection closed")]
    Closed {
        /// The other end.
        addr: SocketAddr,
    },
    /// More than `limit` bytes stood unsent, because the peer does not read; the connection was closed.
    #[error("{addr}: the peer reads too slowly, {limit} bytes unsent")]
    Overflow {
        /// The other end.
        addr: SocketAddr,
        /// The bytes that may stand unsent.
        limit: usize,
    },
    /// Anything else that the system says.
    #[error("{addr}: {operation}: {message}")]
    Io {
        /// The other end, or the address to listen at.
        addr: SocketAddr,
        /// `connect`, `listen`, `accept`, `read` or `write`.
        operation: &'static str,
        /// What the system says.
        message: String,
    },
}

/// A future on the thread of its environment.
pub(crate) type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// What a kind of network implements for a listening socket.
pub(crate) trait Accept {
    fn local_addr(&self) -> SocketAddr;
    fn accept(&self) -> LocalFuture<'_, Result<Conn, NetError>>;
}

/// What a kind of network implements for one connection.
pub(crate) trait Stream {
    fn peer_addr(&self) -> SocketAddr;
    /// See [`Conn::credentials`].
    fn credentials(&self) -> Option<Credentials>;
    /// Tries to read what stands there, at the end of `buf`: bytes read, 0 at the peer's end, or `Pending`.
    fn poll_read(
        &self,
        cx: &mut std::task::Context<'_>,
        buf: &mut BytesMut,
    ) -> std::task::Poll<Result<usize, NetError>>;
    fn outbox(&self) -> &Outbox;
    /// The outbox has something to send: flush it before the environment waits.
    fn mark_dirty(self: Rc<Self>);
    fn close(&self);
    /// See [`Conn::be_patient`].
    fn be_patient(&self);
    /// See [`Writer::pass`].
    fn pass(&self, memory: MemoryHandle);
    /// See [`Reader::passed`].
    fn passed(&self) -> Option<MemoryHandle>;
}

/// A socket that listens.
pub struct Listener {
    accept: Box<dyn Accept>,
}

impl Listener {
    pub(crate) fn new(accept: Box<dyn Accept>) -> Self {
        Self { accept }
    }

    /// The address it listens at, its port chosen if 0 was asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.accept.local_addr()
    }

    /// Waits for the next connection.
    pub async fn accept(&self) -> Result<Conn, NetError> {
        self.accept.accept().await
    }
}

/// A connection: a reader and a writer, each of which may go to its own task. Closed when both are dropped.
pub struct Conn {
    /// Takes bytes in.
    pub reader: Reader,
    /// Sends bytes.
    pub writer: Writer,
}

impl Conn {
    pub(crate) fn new(stream: Rc<dyn Stream>) -> Self {
        let closer = Rc::new(CloseOnDrop { stream: Rc::clone(&stream) });
        Self {
            reader: Reader { stream: Rc::clone(&stream), _closer: Rc::clone(&closer) },
            writer: Writer { stream, _closer: closer },
        }
    }

    /// Who is at the other end, by the system's word; `None` of a connection that is not local.
    pub fn credentials(&self) -> Option<Credentials> {
        self.writer.stream.credentials()
    }

    /// Lets the other side leave what is sent untaken for as long as it likes, as a program may that was stopped or is busy
    /// elsewhere. Without this the connection is lost after 2 s in which nothing that was sent is taken; with it, when the
    /// system finds out that nobody is there. In a simulation it changes nothing: there is no such time.
    pub fn be_patient(&self) {
        self.writer.stream.be_patient();
    }
}

struct CloseOnDrop {
    stream: Rc<dyn Stream>,
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.stream.close();
    }
}

/// The receiving half of a connection.
pub struct Reader {
    stream: Rc<dyn Stream>,
    _closer: Rc<CloseOnDrop>,
}

impl Reader {
    /// The other end. Of a local connection this says the machine only; [`Conn::credentials`] says who it is.
    pub fn peer_addr(&self) -> SocketAddr {
        self.stream.peer_addr()
    }

    /// Waits for bytes and appends what stands there to `buf`, at most its spare capacity (at least 4 KiB is reserved).
    /// Returns how many; 0 when the peer has ended. Dropping the future loses nothing.
    pub async fn read(&mut self, buf: &mut BytesMut) -> Result<usize, NetError> {
        std::future::poll_fn(|cx| self.poll_read(cx, buf)).await
    }

    /// The same for those who are polled themselves.
    pub fn poll_read(
        &mut self,
        cx: &mut std::task::Context<'_>,
        buf: &mut BytesMut,
    ) -> std::task::Poll<Result<usize, NetError>> {
        self.stream.poll_read(cx, buf)
    }

    /// The memory that the other end has passed, if that has come; it is there when the first bytes were read. A connection gives one at
    /// the most.
    pub fn passed(&mut self) -> Option<MemoryHandle> {
        self.stream.passed()
    }
}

/// The sending half of a connection. Clones send on the same connection.
///
/// Nothing here blocks: bytes are queued in order and go out in one system call when the tasks of this turn have run.
/// Who sends without bound watches [`queued_bytes`](Writer::queued_bytes) or waits for [`below`](Writer::below).
#[derive(Clone)]
pub struct Writer {
    stream: Rc<dyn Stream>,
    _closer: Rc<CloseOnDrop>,
}

impl Writer {
    /// The other end.
    pub fn peer_addr(&self) -> SocketAddr {
        self.stream.peer_addr()
    }

    /// Queues what `encode` appends to the buffer that it is given; it must not change what stands there already. On a
    /// closed connection the bytes go nowhere: the reader says so.
    pub fn push(&self, encode: impl FnOnce(&mut BytesMut)) {
        self.stream.outbox().push(encode);
        Rc::clone(&self.stream).mark_dirty();
    }

    /// Queues `bytes` without a copy.
    pub fn push_shared(&self, bytes: Bytes) {
        self.stream.outbox().push_shared(bytes);
        Rc::clone(&self.stream).mark_dirty();
    }

    /// Passes memory to the process at the other end of a local connection, with the first bytes that are sent: to be called before
    /// anything is queued. It is the other end's to ask for it.
    ///
    /// Panics on a connection that is not local.
    pub fn pass(&self, memory: MemoryHandle) {
        assert!(self.stream.credentials().is_some(), "memory is passed within a machine");
        self.stream.pass(memory);
    }

    /// Bytes queued and not yet taken by the system.
    pub fn queued_bytes(&self) -> usize {
        self.stream.outbox().queued_bytes()
    }

    /// Waits until fewer than `bytes` are queued. An error if the connection is closed.
    pub async fn below(&self, bytes: usize) -> Result<(), NetError> {
        self.stream.outbox().below(bytes).await.map_err(|()| NetError::Closed { addr: self.peer_addr() })
    }

    /// Closes the connection both ways at once; what is queued may be lost.
    pub fn close(&self) {
        self.stream.close();
    }
}
