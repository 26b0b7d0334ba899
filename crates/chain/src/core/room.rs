//! Whether there is room for data: told a little before an append is refused as full, and taken back only when there is so much
//! again that it is not told over and over.
//!
//! ```text
//!   free segments   0 ── reserve ── low ─────────── enough ────────── all
//!                        refused     └ full ◄──┐       └ has room ◄──┐
//!                                    from above┘          from below ┘
//! ```
//!
//! Cleaning begins at `enough` at the latest: whoever is full while there is garbage is not full for long.

use super::Core;
use crate::victims::Cleaning;

/// The part of all segments that `low` lies above what data is refused at, but at least one: what is on its way when it is told
/// still finds room.
const MARGIN_PART: usize = 64;

impl Core {
    /// Whether data is or will soon be refused as full, and nothing is left that gives room. It stays so until enough is free.
    pub(crate) fn look_for_room(&mut self) -> bool {
        if self.is_full {
            self.reclaim();
        }
        let (mut free, all) = self.room();
        free += self.catalog.space.preparing();
        // However few segments there are, all but two are free when everything is released.
        let enough = self.clean_start_segments(all).min(all.saturating_sub(2)).max(1);
        let refused = self.options.reserve_segments + 1;
        let low = (refused + (all / MARGIN_PART).max(1)).min(enough - 1);
        self.is_full = match self.is_full {
            true => free < enough || !self.has_room_for_a_batch(),
            // Of very few segments more than `low` are left when no more may be filled.
            false => {
                let is_low = free <= low || self.bytes_alone(free as u64) < self.bytes_for_a_batch();
                is_low && !self.may_clean()
            }
        };
        self.is_full
    }

    /// Segments that are free when cleaning begins, of so many.
    pub(super) fn clean_start_segments(&self, all: usize) -> usize {
        let percent = all * self.options.clean_start_free_percent as usize / 100;
        percent.max(self.options.reserve_segments + 3)
    }

    fn has_room_for_a_batch(&self) -> bool {
        let needed = self.bytes_for_a_batch();
        self.free_bytes() >= needed + self.queued_cost
            || self.queued_cost == 0 && self.free_bytes_alone() >= needed
    }

    /// What must be free so that data is taken.
    fn bytes_for_a_batch(&self) -> u64 {
        let kept = (self.options.reserve_segments as u64 + 1) * (self.geometry.usable_bytes / 2);
        kept + self.geometry.batch_max_bytes
    }

    fn may_clean(&self) -> bool {
        self.options.cleaning != Cleaning::Off && self.may_cleaning_give_room()
    }
}
