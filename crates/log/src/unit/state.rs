//! What a log unit stores about itself, beside its entries: which epochs are over, and what its seal has told.

use std::ops::Range;

use bytes::{BufMut, Bytes};
use ithaca_chain::RangeSet;
use ithaca_env::codec::{DecodeError, Decoder};

use crate::limits;
use crate::pos::{Addr, AddrRange, Epoch};
use ithaca_env::record::{self, RecordError};

/// The magic of the stored record.
const MAGIC: [u8; 4] = *b"ITun";

/// The version of the stored record.
const VERSION: u16 = 1;

/// An address that is none, stored.
const NONE: u64 = u64::MAX;

/// A unit's own state. Body of its record: `sealed u64`, `served u64`, `count u32` (at most
/// [`limits::SEAL_EXTENTS_MAX_COUNT`]), then for each extent `start u64`, `end u64`, `highest u64` (2^64 - 1 for none), then
/// `voided count u32` (at most [`limits::VOIDED_MAX_COUNT`]), and for each `start u64`, `end u64`, ascending; the envelope is
/// that of [`crate::record`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitState {
    /// The last epoch that is sealed.
    pub sealed: Epoch,
    /// What the seal of that epoch has told, so that it tells the same again.
    pub sealed_extents: Vec<SealedExtent>,
    /// The newest epoch in which the unit has changed anything. After a restart this epoch is over for the unit.
    pub served: Epoch,
    /// Addresses whose records count as junk: what the unit stored there was never on the other replicas, and the log has
    /// junk in its place. Some may be trimmed, and count as that.
    pub voided: RangeSet,
}

/// What was found in an extent when the unit was sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedExtent {
    /// The addresses that were asked about.
    pub extent: AddrRange,
    /// The highest of them that held anything.
    pub highest: Option<Addr>,
}

impl UnitState {
    /// The record to store.
    pub fn encode(&self) -> Bytes {
        record::encode(MAGIC, VERSION, |out| {
            out.put_u64_le(self.sealed.0);
            out.put_u64_le(self.served.0);
            out.put_u32_le(self.sealed_extents.len() as u32);
            for SealedExtent { extent, highest } in &self.sealed_extents {
                out.put_u64_le(extent.start.0);
                out.put_u64_le(extent.end.0);
                out.put_u64_le(highest.map_or(NONE, |addr| addr.0));
            }
            out.put_u32_le(self.voided.range_count() as u32);
            for range in self.voided.ranges() {
                out.put_u64_le(range.start);
                out.put_u64_le(range.end);
            }
        })
    }

    /// The state in a stored record.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let (_, body) = record::decode(MAGIC, VERSION, bytes)?;
        let mut decoder = Decoder::new(body);
        let sealed = Epoch(decoder.u64("sealed epoch")?);
        let served = Epoch(decoder.u64("served epoch")?);
        let count = decoder.u32("extent count")? as usize;
        if count > limits::SEAL_EXTENTS_MAX_COUNT {
            let found = count as u64;
            let expected = "at most 256 extents";
            return Err(DecodeError::Invalid { field: "extent count", found, expected }.into());
        }
        let mut sealed_extents = Vec::with_capacity(count.min(decoder.left() / 24));
        for _ in 0..count {
            let (start, end) = (decoder.u64("extent start")?, decoder.u64("extent end")?);
            let highest = Some(decoder.u64("highest address")?).filter(|&addr| addr != NONE).map(Addr);
            sealed_extents.push(SealedExtent { extent: AddrRange::new(Addr(start), Addr(end)), highest });
        }
        let voided = decode_voided(&mut decoder)?;
        decoder.finish()?;
        Ok(Self { sealed, sealed_extents, served, voided })
    }

    /// Leaves out what is trimmed now, unless that parts more ranges than may be stored: it counts as trimmed all the same.
    pub(super) fn forget_trimmed(&mut self, range: Range<u64>) {
        let voided: Vec<Range<u64>> = self.voided.overlaps(range.clone()).collect();
        self.voided.remove(range);
        if self.voided.range_count() > limits::VOIDED_MAX_COUNT {
            voided.into_iter().for_each(|range| _ = self.voided.insert(range));
        }
    }

    /// Leaves out the ranges of which nothing is left that is not trimmed.
    pub(super) fn forget_whole(&mut self, trimmed: &RangeSet) {
        let is_gone = |range: &Range<u64>| trimmed.gaps(range.clone()).next().is_none();
        let gone: Vec<Range<u64>> = self.voided.ranges().filter(is_gone).collect();
        gone.into_iter().for_each(|range| _ = self.voided.remove(range));
    }

    /// What the seal has told of `extent`, if it was asked.
    pub(super) fn sealed_extent(&self, extent: AddrRange) -> Option<&SealedExtent> {
        self.sealed_extents.iter().find(|told| told.extent == extent)
    }
}

fn decode_voided(decoder: &mut Decoder<'_>) -> Result<RangeSet, DecodeError> {
    let count = decoder.u32("voided count")? as usize;
    if count > limits::VOIDED_MAX_COUNT {
        let found = count as u64;
        return Err(DecodeError::Invalid { field: "voided count", found, expected: "at most 1024 ranges" });
    }
    let mut voided = RangeSet::new();
    for _ in 0..count {
        let (start, end) = (decoder.u64("voided start")?, decoder.u64("voided end")?);
        if start >= end || voided.last().is_some_and(|last| last >= start) {
            return Err(DecodeError::Invalid {
                field: "voided start",
                found: start,
                expected: "ascending ranges",
            });
        }
        voided.insert(start..end);
    }
    Ok(voided)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_survives_storing() {
        let mut state = UnitState {
            sealed: Epoch(4),
            sealed_extents: Vec::new(),
            served: Epoch(5),
            voided: [2..5, 9..10].into_iter().collect(),
        };
        assert_eq!(UnitState::decode(&state.encode()), Ok(state.clone()));
        for (base, highest) in [(0, None), (1 << 44, Some(Addr(1 << 44)))] {
            state.sealed_extents.push(SealedExtent { extent: (base..base + 9).into(), highest });
        }
        assert_eq!(UnitState::decode(&state.encode()), Ok(state));
    }

    #[test]
    fn a_state_with_more_extents_than_any_layout_gives_a_unit_is_refused() {
        let told = SealedExtent { extent: (0..1).into(), highest: None };
        let sealed_extents = vec![told; limits::SEAL_EXTENTS_MAX_COUNT + 1];
        let state = UnitState { sealed_extents, ..UnitState::default() };
        assert!(UnitState::decode(&state.encode()).is_err());
    }
}
