//! Gives a connection of ours to hyper, which asks for its own reading and writing traits.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use hyper::rt::{Read, ReadBufCursor, Write};
use ithaca_env::net::{Conn, NetError};

/// Unsent bytes from which on hyper waits before it hands over more. What it hands over at once, a whole page, may be larger.
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

impl HyperIo {
    /// Waits until fewer than `bytes` are unsent. Made anew each time, since whoever was polled once is woken when something goes out.
    fn poll_below(&self, cx: &mut Context<'_>, bytes: usize) -> Poll<std::io::Result<()>> {
        pin!(self.conn.writer.below(bytes)).poll(cx).map_err(|error| io_error(&error))
    }
}

impl Write for HyperIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<std::io::Result<usize>> {
        // What is queued goes out as the peer reads.
        ready!(self.poll_below(cx, UNSENT_MAX_BYTES))?;
        self.conn.writer.push(|out| out.extend_from_slice(data));
        Poll::Ready(Ok(data.len()))
    }

    /// What was pushed goes out at the end of the turn, or as the peer reads.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.poll_below(cx, 1)
    }

    /// The connection closes when it is dropped; of what is unsent by then the rest is lost that the system does not take at once.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.poll_below(cx, 1)
    }
}

fn io_error(error: &NetError) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::ConnectionReset, error.to_string())
}
