//! Waiting for a stream to go on.

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};

use super::{Kind, Message, at_most, no_data, zero};
use crate::limits;
use crate::pos::{StreamId, StreamPos};

/// Asks a sequencer where a stream ends, as soon as that is past what the asker knows, or after a while all the same. The answer is
/// [`super::Tail`], as of a [`super::Check`] of the sequencer about that stream alone: what it says is so when it is sent.
///
/// Body, 32 bytes: `stream u128`, `next u64`, `wait_ms u32`, `reserved u32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchStream {
    /// The stream.
    pub stream: StreamId,
    /// Its next position, as far as the asker knows.
    pub next: StreamPos,
    /// How long to wait for a higher one, in milliseconds; at most [`limits::STREAM_WAIT_MAX_MS`]. A node at which too many wait
    /// answers at once.
    pub wait_ms: u16,
}

impl Message for WatchStream {
    const KIND: Kind = Kind::WatchStream;

    fn encode_body(&self, out: &mut BytesMut) {
        out.put_u128_le(self.stream.0);
        out.put_u64_le(self.next.0);
        out.put_u32_le(self.wait_ms.into());
        out.put_u32_le(0);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let stream = StreamId(decoder.u128("stream")?);
        let next = StreamPos(decoder.u64("next stream position")?);
        let wait_ms = decoder.u32("wait for a stream")?;
        let limit = usize::from(limits::STREAM_WAIT_MAX_MS);
        at_most("wait for a stream", wait_ms as usize, limit, "at most 10000")?;
        zero("watch reserved", decoder.u32("watch reserved")?.into())?;
        decoder.finish()?;
        no_data(data_len)?;
        Ok(Self { stream, next, wait_ms: wait_ms as u16 })
    }
}
