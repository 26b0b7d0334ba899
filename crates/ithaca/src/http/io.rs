//! Gives a connection of ours to hyper, which asks for its own reading and writing traits.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use hyper::rt::{Read, ReadBufCursor, Write};
use ithaca_env::net::{Conn, NetError};

/// Unsent bytes past which hyper waits. A page is smaller.
const UNSENT_MAX_BYTES: usize = 1 << 20;

/// A connection as hyper wants it.
pub struct HyperIo {
    conn: Conn,
    /// Read from the connection and not taken by hyper yet.
    taken_in: BytesMut,
}

impl HyperIo {
    /// Takes the connection over.
    pub fn new(conn: Conn) -> Self {
        Self { conn, taken_in: BytesMut::new() }
    }
}

impl Read for HyperIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        let this = &mut *self;
        if this.taken_in.is_empty() {
            match this.conn.reader.poll_read(cx, &mut this.taken_in) {
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(io_error(&error))),
                Poll::Pending => return Poll::Pending,
            }
        }
        let len = this.taken_in.len().min(buf.remaining());
        buf.put_slice(&this.taken_in[..len]);
        this.taken_in.advance(len);
        Poll::Ready(Ok(()))
    }
}

impl Write for HyperIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<std::io::Result<usize>> {
        if self.conn.writer.queued_bytes() > UNSENT_MAX_BYTES {
            // Polled to be woken when there is room; what is queued goes out as the peer reads.
            let mut room = Box::pin(self.conn.writer.below(UNSENT_MAX_BYTES));
            match room.as_mut().poll(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(io_error(&error))),
                Poll::Pending => return Poll::Pending,
            }
        }
        self.conn.writer.push(|out| out.extend_from_slice(data));
        Poll::Ready(Ok(data.len()))
    }

    /// What was pushed goes out at the end of the turn without being asked.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// The connection closes when it is dropped, after what was pushed.
    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn io_error(error: &NetError) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::ConnectionReset, error.to_string())
}
