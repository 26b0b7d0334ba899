//! What the sequencer answers: tokens for new positions, and where the tail is.

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};

use super::read::{decode_ranges_only, encode_ranges};
use super::{Kind, Message, at_most, from_optional, no_data, optional};
use crate::limits;
use crate::pos::{Addr, AddrRange, LogPos};

/// Asks for the next `count` positions, at most [`limits::GRANT_MAX_COUNT`], for appends that are queued already. The
/// head's epoch must be the sequencer's. Body, 4 bytes: `count u32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// How many, at least 1.
    pub count: u32,
}

/// The positions `[first, first + count)` belong to the requester, in the head's epoch only. Body, 12 bytes:
/// `first u64`, `count u32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The first.
    pub first: LogPos,
    /// How many: as many as were asked for.
    pub count: u32,
}

/// Asks where the log ends, of a sequencer, and where extents begin and end, of a log unit. Each role of a node answers its
/// part. Body: ranges, as in [`super::Read`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Check {
    /// Addresses of the unit that are asked about, none empty; at most [`limits::RANGES_MAX_COUNT`].
    pub extents: Vec<AddrRange>,
}

/// Where the log, and the parts of it that the node holds, end and begin. Body: `tail u64` (2^64 - 1 if the node is no
/// sequencer), `count u32`, then for each extent, 24 bytes: `first u64`, `watermark u64`, `end u64`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// From a sequencer: the next position that it will grant.
    pub tail: Option<LogPos>,
    /// From a log unit: each extent, in the order of the request. None if the node is no unit.
    pub extents: Vec<ExtentBounds>,
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

impl Message for Token {
    const KIND: Kind = Kind::Token;

    fn encode_body(&self, out: &mut BytesMut) {
        assert!((1..=limits::GRANT_MAX_COUNT).contains(&self.count), "{} tokens", self.count);
        out.put_u32_le(self.count);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let count = decoder.u32("token count")?;
        decoder.finish()?;
        no_data(data_len)?;
        grant_count(count)?;
        Ok(Self { count })
    }
}

impl Message for Grant {
    const KIND: Kind = Kind::Grant;

    fn encode_body(&self, out: &mut BytesMut) {
        out.put_u64_le(self.first.0);
        out.put_u32_le(self.count);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let first = LogPos(decoder.u64("first position")?);
        let count = decoder.u32("grant count")?;
        decoder.finish()?;
        no_data(data_len)?;
        grant_count(count)?;
        if first.0.checked_add(count.into()).is_none() {
            return Err(DecodeError::Invalid {
                field: "first position",
                found: first.0,
                expected: "positions that do not run out",
            });
        }
        Ok(Self { first, count })
    }
}

impl Message for Check {
    const KIND: Kind = Kind::Check;

    fn encode_body(&self, out: &mut BytesMut) {
        encode_ranges(&self.extents, out);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        decode_ranges_only(body, data_len).map(|extents| Self { extents })
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
        decoder.finish()?;
        no_data(data_len)?;
        Ok(Self { tail, extents })
    }
}

/// Refuses an empty or too large count of positions.
fn grant_count(count: u32) -> Result<(), DecodeError> {
    if (1..=limits::GRANT_MAX_COUNT).contains(&count) {
        return Ok(());
    }
    Err(DecodeError::Invalid { field: "token count", found: count.into(), expected: "1 to 65536" })
}
