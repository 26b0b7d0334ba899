//! Sealing a log unit: nothing of an epoch, or of an earlier one, is accepted after it.

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};

use super::read::{decode_ranges, encode_ranges};
use super::{Kind, Message, at_most, from_optional, no_data, optional};
use crate::limits;
use crate::pos::{Addr, AddrRange, Epoch};

/// Seals `epoch` and every earlier one, and asks where each extent ends; taken from nodes only. The head's epoch is not
/// looked at. Body: `epoch u64`, then ranges, as in [`super::Read`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The last epoch to refuse.
    pub epoch: Epoch,
    /// The unit's addresses in the stripes of the active range, none empty; at most
    /// [`limits::SEAL_EXTENTS_MAX_COUNT`].
    pub extents: Vec<AddrRange>,
}

/// The epoch is sealed, durably. Asking again gives the same answer. Body: `epoch u64`, `count u32`, then for each extent
/// `highest u64` (2^64 - 1 if nothing was ever written there).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// The epoch that was sealed.
    pub epoch: Epoch,
    /// For each extent, in the order of the request, the highest address that held anything when the unit was sealed;
    /// durable.
    pub highest: Vec<Option<Addr>>,
}

impl Message for Seal {
    const KIND: Kind = Kind::Seal;

    fn encode_body(&self, out: &mut BytesMut) {
        assert!(self.extents.len() <= limits::SEAL_EXTENTS_MAX_COUNT, "{} extents", self.extents.len());
        out.put_u64_le(self.epoch.0);
        encode_ranges(&self.extents, out);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let epoch = Epoch(decoder.u64("epoch to seal")?);
        let extents = decode_ranges(&mut decoder)?;
        decoder.finish()?;
        no_data(data_len)?;
        extent_count(extents.len())?;
        Ok(Self { epoch, extents })
    }
}

impl Message for Sealed {
    const KIND: Kind = Kind::Sealed;

    fn encode_body(&self, out: &mut BytesMut) {
        assert!(self.highest.len() <= limits::SEAL_EXTENTS_MAX_COUNT, "{} extents", self.highest.len());
        out.put_u64_le(self.epoch.0);
        out.put_u32_le(self.highest.len() as u32);
        for highest in &self.highest {
            out.put_u64_le(optional(highest.map(|addr| addr.0)));
        }
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let epoch = Epoch(decoder.u64("sealed epoch")?);
        let count = decoder.u32("extent count")? as usize;
        extent_count(count)?;
        let mut highest = Vec::with_capacity(count.min(decoder.left() / 8));
        for _ in 0..count {
            highest.push(from_optional(decoder.u64("highest address")?).map(Addr));
        }
        decoder.finish()?;
        no_data(data_len)?;
        Ok(Self { epoch, highest })
    }
}

fn extent_count(found: usize) -> Result<(), DecodeError> {
    at_most("extent count", found, limits::SEAL_EXTENTS_MAX_COUNT, "at most 256 extents")
}
