//! What an address holds that was taken already.

use bytes::{BufMut, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};

use super::write::check_end;
use super::{at_most, no_data, zero};
use crate::limits;
use crate::pos::{Addr, AddrRange, ClientId, RequestNo};

/// Addresses that hold the same kind of thing.
///
/// A list of outcomes is sent as `count u32`, `reserved u32`, then for each, 40 bytes: `addr u64`, `count u64`, `kind u8`
/// (1 data, 2 junk, 3 trimmed), `reserved u8`, `stride u16`, `reserved u32`, `client u64`, `request u64`; the last three
/// that have a name are 0 except for data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The first address.
    pub addr: Addr,
    /// How many addresses.
    pub count: u64,
    /// What they hold.
    pub taken: Taken,
}

impl Outcome {
    /// The addresses.
    pub fn range(&self) -> AddrRange {
        AddrRange::new(self.addr, Addr(self.addr.0 + self.count))
    }
}

/// What an address holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The entry of an append. A client that finds its own append has succeeded.
    Data {
        /// Who appended it.
        client: ClientId,
        /// The request number at the first address.
        request: RequestNo,
        /// By how much the request number grows from address to address.
        stride: u16,
    },
    /// Junk: the address was given up, and will never hold data.
    Junk,
    /// Trimmed: whatever it held is gone.
    Trimmed,
}

pub(super) fn encode_outcomes(outcomes: &[Outcome], out: &mut BytesMut) {
    assert!(outcomes.len() <= limits::OUTCOMES_MAX_COUNT, "{} outcomes", outcomes.len());
    out.put_u32_le(outcomes.len() as u32);
    out.put_u32_le(0);
    for outcome in outcomes {
        let (kind, stride, client, request) = match outcome.taken {
            Taken::Data { client, request, stride } => (1, stride, client.0, request.0),
            Taken::Junk => (2, 0, 0, 0),
            Taken::Trimmed => (3, 0, 0, 0),
        };
        out.put_u64_le(outcome.addr.0);
        out.put_u64_le(outcome.count);
        out.put_u8(kind);
        out.put_u8(0);
        out.put_u16_le(stride);
        out.put_u32_le(0);
        out.put_u64_le(client);
        out.put_u64_le(request);
    }
}

/// A body that is outcomes and nothing else, without data.
pub(super) fn decode_outcomes_only(body: &[u8], data_len: usize) -> Result<Vec<Outcome>, DecodeError> {
    let mut decoder = Decoder::new(body);
    let outcomes = decode_outcomes(&mut decoder)?;
    decoder.finish()?;
    no_data(data_len)?;
    Ok(outcomes)
}

fn decode_outcomes(decoder: &mut Decoder<'_>) -> Result<Vec<Outcome>, DecodeError> {
    let count = decoder.u32("outcome count")? as usize;
    zero("outcomes reserved", decoder.u32("outcomes reserved")?.into())?;
    at_most("outcome count", count, limits::OUTCOMES_MAX_COUNT, "at most 65536 outcomes")?;
    // Room is made only for what is there: the count alone is not trusted.
    let mut outcomes = Vec::with_capacity(count.min(decoder.left() / 40));
    for _ in 0..count {
        outcomes.push(decode_outcome(decoder)?);
    }
    Ok(outcomes)
}

fn decode_outcome(decoder: &mut Decoder<'_>) -> Result<Outcome, DecodeError> {
    let addr = Addr(decoder.u64("outcome address")?);
    let count = decoder.u64("outcome addresses")?;
    let kind = decoder.u8("outcome kind")?;
    zero("outcome reserved", decoder.u8("outcome reserved")?.into())?;
    let stride = decoder.u16("outcome stride")?;
    zero("outcome reserved", decoder.u32("outcome reserved")?.into())?;
    let client = decoder.u64("outcome client")?;
    let request = decoder.u64("outcome request")?;
    check_end(addr, count)?;
    let taken = match kind {
        1 => Taken::Data { client: ClientId(client), request: RequestNo(request), stride },
        2 | 3 => {
            zero("outcome stride", stride.into())?;
            zero("outcome client", client)?;
            zero("outcome request", request)?;
            if kind == 2 { Taken::Junk } else { Taken::Trimmed }
        }
        other => {
            return Err(DecodeError::Invalid {
                field: "outcome kind",
                found: other.into(),
                expected: "1, 2 or 3",
            });
        }
    };
    Ok(Outcome { addr, count, taken })
}
