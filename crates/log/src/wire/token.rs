//! What the sequencer answers: tokens for new positions, and where the tail is.

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};

use super::{Kind, Message, from_optional, no_data, optional};
use crate::limits;
use crate::pos::{Addr, LogPos};

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

/// Asks where the log ends and begins. Each role of a node answers its part. Body: empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Check;

/// Where the log, or the part of it that the node holds, ends and begins. Body, 32 bytes: `tail u64`, `first u64`,
/// `watermark u64`, `end u64`; 2^64 - 1 where the node does not have the role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// From a sequencer: the next position that it will grant.
    pub tail: Option<LogPos>,
    /// From a log unit: its lowest address that is not trimmed.
    pub first: Option<Addr>,
    /// From a log unit: every address below is resolved and durable.
    pub watermark: Option<Addr>,
    /// From a log unit: one past the highest durable address; 0 if there is none.
    pub end: Option<Addr>,
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

    fn encode_body(&self, _out: &mut BytesMut) {}

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        Decoder::new(body).finish()?;
        no_data(data_len)?;
        Ok(Self)
    }
}

impl Message for Tail {
    const KIND: Kind = Kind::Tail;

    fn encode_body(&self, out: &mut BytesMut) {
        out.put_u64_le(optional(self.tail.map(|pos| pos.0)));
        for addr in [self.first, self.watermark, self.end] {
            out.put_u64_le(optional(addr.map(|addr| addr.0)));
        }
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let tail = Self {
            tail: from_optional(decoder.u64("tail")?).map(LogPos),
            first: from_optional(decoder.u64("first address")?).map(Addr),
            watermark: from_optional(decoder.u64("watermark")?).map(Addr),
            end: from_optional(decoder.u64("end address")?).map(Addr),
        };
        decoder.finish()?;
        no_data(data_len)?;
        Ok(tail)
    }
}

/// Refuses an empty or too large count of positions.
fn grant_count(count: u32) -> Result<(), DecodeError> {
    if (1..=limits::GRANT_MAX_COUNT).contains(&count) {
        return Ok(());
    }
    Err(DecodeError::Invalid { field: "token count", found: count.into(), expected: "1 to 65536" })
}
