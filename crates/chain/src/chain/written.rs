//! What was written stays in memory: when a group leaves the memory of recent groups, its blocks that are still the newest of their keys go on
//! among the [blocks that were read](crate::cache::ReadCache), and what they have taken the place of is the first to leave there.
//!
//! ```text
//!   durable ──► recent groups ──► newest of its key? ──► a copy of the block, by its place
//!      └──► the version before it leaves first                 ▲
//!   cleaner: a block that is here goes along to its new place ─┘
//! ```
//!
//! A block is copied then, into the memory of what leaves for it, and not kept as a part of its group: a few blocks that are needed would hold a megabyte. What is written again
//! while its group is still here is never copied. What the cleaner writes is not a sign that anybody will read it, and is not taken.

use ithaca_env::limits::BLOCK_BYTES;

use super::Inner;
use crate::cache::{GroupImage, Written};
use crate::owner::{Owner, Place, Placed};
use crate::planted::PlantedBug;

impl Inner {
    /// These records of a group are about to be told to their owner: what they take the place of may leave memory.
    pub(super) fn note_written(&self, owner: &dyn Owner, records: &[Placed]) {
        let mut cache = self.read_cache.borrow_mut();
        let (core, mut written) = (self.core.borrow(), self.written.borrow_mut());
        if !cache.is_used() || !core.options.read_cache_takes_writes {
            return;
        }
        for record in records {
            if let Some((segment, offset)) = owner.newest(record.key)
                && let Some(lap) = core.catalog.lap_of(segment)
            {
                cache.leave_first(self.read_cache_lap(segment, lap), offset / BLOCK_BYTES as u32);
            }
            let Some(block) = block_at(&record.place) else { continue };
            match written.last_mut() {
                Some(last)
                    if last.first_key + u64::from(last.count) == record.key
                        && last.first_block + last.count == block =>
                {
                    last.count += 1;
                }
                _ => written.push(Written { first_key: record.key, first_block: block, count: 1 }),
            }
        }
    }

    /// A group leaves the memory of recent groups: keeps of what it has written what is still the newest of its key.
    pub(super) fn keep_written(&self, group: &GroupImage) {
        let Some(owner) = &self.owner else { return };
        let lap = self.read_cache_lap(group.segment, group.lap);
        let is_misplaced = self.core.borrow().options.planted.is(PlantedBug::WrittenOnePlaceOff);
        let mut cache = self.read_cache.borrow_mut();
        for run in &group.written {
            for nth in 0..run.count {
                let block = run.first_block + nth;
                let offset = block * BLOCK_BYTES as u32;
                if owner.newest(run.first_key + u64::from(nth)) != Some((group.segment, offset)) {
                    continue;
                }
                let at = (offset - group.offset) as usize;
                let place = if is_misplaced { block + 1 } else { block };
                cache.add_copy(lap, place, &group.image.slice(at..at + BLOCK_BYTES));
            }
        }
    }

    /// The owner has taken the copy of a record: what memory has of it is read there from now on.
    pub(super) fn keep_moved(&self, from: &Place, to: &Place) {
        let mut cache = self.read_cache.borrow_mut();
        if !cache.is_used() {
            return;
        }
        if let (Some(before), Some(after)) = (block_at(from), block_at(to)) {
            let key = |place: &Place, block| (self.read_cache_lap(place.segment, place.lap), block);
            cache.moved(key(from, before), key(to, after));
        }
    }

    /// The lap under which the read cache keeps what lies in a segment.
    pub(super) fn read_cache_lap(&self, segment: u32, lap: u64) -> u64 {
        if self.core.borrow().options.planted.is(PlantedBug::ReadCacheForgetsLap) {
            return u64::from(segment);
        }
        lap
    }
}

/// The block of its segment that a record is, if it is exactly one.
fn block_at(place: &Place) -> Option<u32> {
    let block = BLOCK_BYTES as u32;
    (place.len == block && place.offset.is_multiple_of(block)).then_some(place.offset / block)
}
