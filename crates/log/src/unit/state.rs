//! What a log unit stores about itself, beside its entries: which epochs are over.

use bytes::{BufMut, Bytes};
use ithaca_env::codec::Decoder;

use crate::pos::{Addr, Epoch};
use crate::record::{self, RecordError};

/// The magic of the stored record.
const MAGIC: [u8; 4] = *b"ITun";

/// The version of the stored record.
const VERSION: u16 = 1;

/// An address that is none, stored.
const NONE: u64 = u64::MAX;

/// A unit's own state. Body of its record, 24 bytes: `sealed u64`, `sealed_highest u64` (2^64 - 1 for none), `served
/// u64`; the envelope is that of [`crate::record`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitState {
    /// The last epoch that is sealed.
    pub sealed: Epoch,
    /// The highest address that held anything when it was sealed.
    pub sealed_highest: Option<Addr>,
    /// The newest epoch in which the unit has changed anything. After a restart this epoch is over for the unit.
    pub served: Epoch,
}

impl UnitState {
    /// The record to store.
    pub fn encode(&self) -> Bytes {
        record::encode(MAGIC, VERSION, |out| {
            out.put_u64_le(self.sealed.0);
            out.put_u64_le(self.sealed_highest.map_or(NONE, |addr| addr.0));
            out.put_u64_le(self.served.0);
        })
    }

    /// The state in a stored record.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let (_, body) = record::decode(MAGIC, VERSION, bytes)?;
        let mut decoder = Decoder::new(body);
        let state = Self {
            sealed: Epoch(decoder.u64("sealed epoch")?),
            sealed_highest: Some(decoder.u64("highest address")?).filter(|&addr| addr != NONE).map(Addr),
            served: Epoch(decoder.u64("served epoch")?),
        };
        decoder.finish()?;
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_survives_storing() {
        let state = UnitState { sealed: Epoch(4), sealed_highest: None, served: Epoch(5) };
        assert_eq!(UnitState::decode(&state.encode()), Ok(state));
        let state = UnitState { sealed_highest: Some(Addr(9)), ..state };
        assert_eq!(UnitState::decode(&state.encode()), Ok(state));
    }
}
