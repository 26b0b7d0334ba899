//! Where the log, extents of units, and streams end.

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};

use super::read::{decode_ranges, encode_ranges};
use super::{Kind, Message, at_most, from_optional, no_data, optional};
use crate::limits;
use crate::pos::{Addr, AddrRange, LogPos, StreamId, StreamPos};
use crate::stream::StreamTail;

/// Asks where the log ends, of a sequencer, and where extents begin and end, of a log unit. Each role of a node answers its
/// part. Body: ranges, as in [`super::Read`], then `stream count u32` and for each stream its id, a `u128`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Check {
    /// Addresses of the unit that are asked about, none empty; at most [`limits::RANGES_MAX_COUNT`].
    pub extents: Vec<AddrRange>,
    /// Streams whose ends are asked for, of a sequencer; at most [`limits::CHECK_STREAMS_MAX_COUNT`].
    pub streams: Vec<StreamId>,
}

/// Where the log, and the parts of it that the node holds, end and begin. Body: `tail u64` (2^64 - 1 if the node is no
/// sequencer), `count u32`, then for each extent, 24 bytes: `first u64`, `watermark u64`, `end u64`; then `stream count u32` and
/// for each stream `next u64`, `last u64` (2^64 - 1 if there is none).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// From a sequencer: the next position that it will grant.
    pub tail: Option<LogPos>,
    /// From a log unit: each extent, in the order of the request. None if the node is no unit.
    pub extents: Vec<ExtentBounds>,
    /// From a sequencer: where each stream ends, in the order of the request.
    pub streams: Vec<StreamTail>,
}

/// Where what a unit holds of an extent begins and ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtentBounds {
    /// The lowest address that is not trimmed; the extent's end if all are.
    pub first: Addr,
    /// Every address of the extent below is resolved and durable.
    pub watermark: Addr,
    /// One past the highest durable address; the extent's start if there is none.
    pub end: Addr,
}

impl Message for Check {
    const KIND: Kind = Kind::Check;

    fn encode_body(&self, out: &mut BytesMut) {
        encode_ranges(&self.extents, out);
        put_stream_count(self.streams.len(), out);
        self.streams.iter().for_each(|stream| out.put_u128_le(stream.0));
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let extents = decode_ranges(&mut decoder)?;
        let count = take_stream_count(&mut decoder)?;
        let mut streams = Vec::with_capacity(count.min(decoder.left() / 16));
        for _ in 0..count {
            streams.push(StreamId(decoder.u128("stream")?));
        }
        decoder.finish()?;
        no_data(data_len)?;
        Ok(Self { extents, streams })
    }
}

impl Message for Tail {
    const KIND: Kind = Kind::Tail;

    fn encode_body(&self, out: &mut BytesMut) {
        out.put_u64_le(optional(self.tail.map(|pos| pos.0)));
        assert!(self.extents.len() <= limits::RANGES_MAX_COUNT, "{} extents", self.extents.len());
        out.put_u32_le(self.extents.len() as u32);
        for bounds in &self.extents {
            [bounds.first, bounds.watermark, bounds.end].iter().for_each(|addr| out.put_u64_le(addr.0));
        }
        put_stream_count(self.streams.len(), out);
        for stream in &self.streams {
            out.put_u64_le(stream.next.0);
            out.put_u64_le(optional(stream.last.map(|pos| pos.0)));
        }
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let tail = from_optional(decoder.u64("tail")?).map(LogPos);
        let count = decoder.u32("extent count")? as usize;
        at_most("extent count", count, limits::RANGES_MAX_COUNT, "at most 1024 extents")?;
        let mut extents = Vec::with_capacity(count.min(decoder.left() / 24));
        for _ in 0..count {
            extents.push(ExtentBounds {
                first: Addr(decoder.u64("first address")?),
                watermark: Addr(decoder.u64("watermark")?),
                end: Addr(decoder.u64("end address")?),
            });
        }
        let count = take_stream_count(&mut decoder)?;
        let mut streams = Vec::with_capacity(count.min(decoder.left() / 16));
        for _ in 0..count {
            let next = StreamPos(decoder.u64("next stream position")?);
            let last = from_optional(decoder.u64("last position of a stream")?).map(LogPos);
            streams.push(StreamTail { next, last });
        }
        decoder.finish()?;
        no_data(data_len)?;
        Ok(Self { tail, extents, streams })
    }
}

fn put_stream_count(count: usize, out: &mut BytesMut) {
    assert!(count <= limits::CHECK_STREAMS_MAX_COUNT, "{count} streams");
    out.put_u32_le(count as u32);
}

fn take_stream_count(decoder: &mut Decoder<'_>) -> Result<usize, DecodeError> {
    let count = decoder.u32("stream count")? as usize;
    at_most("stream count", count, limits::CHECK_STREAMS_MAX_COUNT, "at most 1024 streams")?;
    Ok(count)
}
