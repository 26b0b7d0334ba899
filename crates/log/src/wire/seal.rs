//! Sealing a log unit: nothing of an epoch, or of an earlier one, is accepted after it.

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};

use super::{Kind, Message, from_optional, no_data, optional};
use crate::pos::{Addr, Epoch};

/// Seals `epoch` and every earlier one. The head's epoch is not looked at. Body, 8 bytes: `epoch u64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The last epoch to refuse.
    pub epoch: Epoch,
}

/// The epoch is sealed, durably. Asking again gives the same answer. Body, 16 bytes: `epoch u64`, `highest u64` (2^64 - 1
/// if nothing was ever written).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// The epoch that was sealed.
    pub epoch: Epoch,
    /// The highest address that held anything when it was sealed; durable.
    pub highest: Option<Addr>,
}

impl Message for Seal {
    const KIND: Kind = Kind::Seal;

    fn encode_body(&self, out: &mut BytesMut) {
        out.put_u64_le(self.epoch.0);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let epoch = Epoch(decoder.u64("epoch to seal")?);
        decoder.finish()?;
        no_data(data_len)?;
        Ok(Self { epoch })
    }
}

impl Message for Sealed {
    const KIND: Kind = Kind::Sealed;

    fn encode_body(&self, out: &mut BytesMut) {
        out.put_u64_le(self.epoch.0);
        out.put_u64_le(optional(self.highest.map(|addr| addr.0)));
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let epoch = Epoch(decoder.u64("sealed epoch")?);
        let highest = from_optional(decoder.u64("highest address")?).map(Addr);
        decoder.finish()?;
        no_data(data_len)?;
        Ok(Self { epoch, highest })
    }
}
