//! Giving addresses up: filling holes with junk, and trimming what is not needed any more.

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};

use super::outcome::{decode_outcomes_only, encode_outcomes};
use super::read::{decode_ranges_only, encode_ranges};
use super::{Kind, Message, Outcome, at_most, no_data};
use crate::limits;
use crate::pos::AddrRange;

/// Makes junk of every address in `ranges` that holds nothing yet. Body: ranges, as in [`super::Read`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    /// At most [`limits::RANGES_MAX_COUNT`] ranges and [`limits::FILL_MAX_COUNT`] addresses; none empty.
    pub ranges: Vec<AddrRange>,
}

/// The answer to a fill, durable: every address that `taken` does not list is junk, now or before. Body: outcomes, as
/// [`Outcome`] says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filled {
    /// Addresses that hold data or are trimmed, in order.
    pub taken: Vec<Outcome>,
}

/// Gives up whatever the addresses in `ranges` hold, for ever. A prefix is a range that starts at 0. Body: ranges, as in
/// [`super::Read`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trim {
    /// At most [`limits::RANGES_MAX_COUNT`]; none empty.
    pub ranges: Vec<AddrRange>,
}

/// The addresses are trimmed, durably. Body: empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trimmed;

/// Asks which addresses of `extent` are trimmed. Body, 16 bytes: `start u64`, `end u64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetTrims {
    /// Where; not empty.
    pub extent: AddrRange,
}

/// What is trimmed of an extent, durably, from its start on. Body: ranges, as in [`super::Read`], in order; as many as a request has
/// at the most, and then there may be more behind them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trims {
    /// At most [`limits::RANGES_MAX_COUNT`]; none empty.
    pub ranges: Vec<AddrRange>,
}

impl Message for GetTrims {
    const KIND: Kind = Kind::GetTrims;

    fn encode_body(&self, out: &mut BytesMut) {
        out.put_u64_le(self.extent.start.0);
        out.put_u64_le(self.extent.end.0);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let (start, end) = (decoder.u64("extent start")?, decoder.u64("extent end")?);
        decoder.finish()?;
        no_data(data_len)?;
        if start >= end {
            return Err(DecodeError::Invalid {
                field: "extent end",
                found: end,
                expected: "one above its start",
            });
        }
        Ok(Self { extent: (start..end).into() })
    }
}

impl Message for Trims {
    const KIND: Kind = Kind::Trims;

    fn encode_body(&self, out: &mut BytesMut) {
        encode_ranges(&self.ranges, out);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        decode_ranges_only(body, data_len).map(|ranges| Self { ranges })
    }
}

impl Message for Fill {
    const KIND: Kind = Kind::Fill;

    fn encode_body(&self, out: &mut BytesMut) {
        encode_ranges(&self.ranges, out);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let ranges = decode_ranges_only(body, data_len)?;
        let addresses = ranges.iter().fold(0_u64, |sum, range| sum.saturating_add(range.count()));
        let addresses = usize::try_from(addresses).unwrap_or(usize::MAX);
        at_most("addresses to fill", addresses, limits::FILL_MAX_COUNT as usize, "at most 65536 addresses")?;
        Ok(Self { ranges })
    }
}

impl Message for Filled {
    const KIND: Kind = Kind::Filled;

    fn encode_body(&self, out: &mut BytesMut) {
        encode_outcomes(&self.taken, out);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        decode_outcomes_only(body, data_len).map(|taken| Self { taken })
    }
}

impl Message for Trim {
    const KIND: Kind = Kind::Trim;

    fn encode_body(&self, out: &mut BytesMut) {
        encode_ranges(&self.ranges, out);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let ranges = decode_ranges_only(body, data_len)?;
        Ok(Self { ranges })
    }
}

impl Message for Trimmed {
    const KIND: Kind = Kind::Trimmed;

    fn encode_body(&self, out: &mut BytesMut) {
        // Nothing to say: the head names the request.
        out.put_slice(&[]);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        Decoder::new(body).finish()?;
        no_data(data_len)?;
        Ok(Self)
    }
}
