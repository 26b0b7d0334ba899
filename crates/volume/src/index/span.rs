//! Over which versions a block stays the same, and how far back so many updates of it lie.

use std::ops::RangeInclusive;

use super::packing::MANY;
use super::{BASE, Index};
use crate::planted::PlantedBug;

impl Index {
    /// The versions, of those that may be read, at which the block is what it is at `version`, which may be read: from the one that wrote
    /// it, or the lowest that may be read, to the one before the next write, or the newest.
    pub(crate) fn span(&self, block: u64, version: u64) -> RangeInclusive<u64> {
        let bottom = self.points.bottom();
        if self.words[block as usize] != MANY {
            return bottom..=self.newest;
        }
        let before = self.versions.range((block, BASE)..=(block, version)).next_back();
        let first = before.map_or(bottom, |((_, version), _)| *version).max(bottom);
        let after = self.versions.range((block, version + 1)..=(block, u64::MAX)).next();
        let reaches_over = u64::from(self.planted.is(PlantedBug::SpanReachesOver));
        let last = after.map_or(self.newest, |((_, version), _)| *version - 1 + reaches_over);
        first..=last
    }

    /// The lowest version, from the floor on, at which a read of the block leaves out at most so many of its updates.
    pub(crate) fn updates_back(&self, block: u64, updates: u64) -> u64 {
        let floor = self.points.floor();
        if self.words[block as usize] != MANY {
            return floor;
        }
        // Above the floor every update is listed; below it some are gone, so that nothing can be counted there.
        let one_more = u64::from(self.planted.is(PlantedBug::OneUpdateTooMany));
        let back = usize::try_from(updates + one_more).unwrap_or(usize::MAX);
        let mut listed = self.versions.range((block, floor + 1)..=(block, u64::MAX)).rev();
        listed.nth(back).map_or(floor, |((_, version), _)| *version)
    }
}
