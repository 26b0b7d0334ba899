//! Which slots of a metadata drive are taken, and by whom. Pure.
//!
//! Slots are given out in a circle: a log that frees its segments in the order in which it filled them is mirrored by writes that
//! follow each other.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::options::ChainId;

/// An entry: so many slots from the first on, with the footer of a segment in one of its uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) slot: u32,
    pub(crate) slots: u32,
    pub(crate) lap: u64,
}

impl Entry {
    fn range(&self) -> Range<usize> {
        self.slot as usize..(self.slot + self.slots) as usize
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Slots {
    is_taken: Vec<bool>,
    /// Where the next entry goes, if there is room.
    next: usize,
    entries: BTreeMap<(ChainId, u32), Entry>,
}

impl Slots {
    /// There are so many slots from now on, no fewer than before.
    pub(super) fn grow(&mut self, slots: u32) {
        if slots as usize > self.is_taken.len() {
            self.is_taken.resize(slots as usize, false);
        }
    }

    /// How many there are.
    pub(super) fn count(&self) -> u32 {
        self.is_taken.len() as u32
    }

    /// How many of them are taken.
    pub(super) fn taken(&self) -> u64 {
        self.is_taken.iter().filter(|taken| **taken).count() as u64
    }

    /// Takes so many slots that follow each other; `None` if there are none.
    pub(super) fn take(&mut self, slots: u32) -> Option<u32> {
        let len = self.is_taken.len();
        let first = self.find(self.next..len, slots).or_else(|| self.find(0..len, slots))?;
        let end = first + slots as usize;
        self.is_taken[first..end].fill(true);
        self.next = end;
        Some(first as u32)
    }

    fn find(&self, range: Range<usize>, slots: u32) -> Option<usize> {
        let mut free = 0;
        for slot in range {
            free = if self.is_taken[slot] { 0 } else { free + 1 };
            if free == slots as usize {
                return Some(slot + 1 - free);
            }
        }
        None
    }

    /// How many more slots a drive needs so that so many follow each other at its end.
    pub(super) fn lacking(&self, slots: u32) -> u32 {
        let free = self.is_taken.iter().rev().take_while(|taken| !**taken).count() as u32;
        slots.saturating_sub(free)
    }

    /// Gives slots back that were taken for an entry that did not come about.
    pub(super) fn give_back(&mut self, slot: u32, slots: u32) {
        self.is_taken[slot as usize..(slot + slots) as usize].fill(false);
    }

    /// Adds an entry that a drive was found to hold. Of two of one segment the later use counts, the other's slots stay free. Of two
    /// that overlap, the one that was there first: what is left of the other is not whole.
    pub(super) fn adopt(&mut self, chain: ChainId, segment: u32, entry: Entry) -> bool {
        let known = self.entries.get(&(chain, segment)).copied();
        if entry.range().end > self.is_taken.len() || known.is_some_and(|known| known.lap >= entry.lap) {
            return false;
        }
        if let Some(known) = known {
            self.is_taken[known.range()].fill(false);
        }
        if self.is_taken[entry.range()].iter().any(|taken| *taken) {
            self.entries.remove(&(chain, segment));
            return false;
        }
        self.is_taken[entry.range()].fill(true);
        self.entries.insert((chain, segment), entry);
        true
    }

    /// An entry is on the drive, in slots that were taken for it. One of an earlier use of the segment gives its slots back.
    pub(super) fn add(&mut self, chain: ChainId, segment: u32, entry: Entry) {
        if let Some(before) = self.entries.insert((chain, segment), entry) {
            self.is_taken[before.range()].fill(false);
        }
    }

    /// The entry of a segment.
    pub(super) fn get(&self, chain: ChainId, segment: u32) -> Option<Entry> {
        self.entries.get(&(chain, segment)).copied()
    }

    /// Gives back the slots of the entries of a chain that are not wanted.
    pub(super) fn retain(&mut self, chain: ChainId, mut is_wanted: impl FnMut(u32, u64) -> bool) {
        let is_taken = &mut self.is_taken;
        self.entries.retain(|(other, segment), entry| {
            let stays = *other != chain || is_wanted(*segment, entry.lap);
            if !stays {
                is_taken[entry.range()].fill(false);
            }
            stays
        });
    }

    /// The entries of a chain, by segment.
    pub(super) fn of_chain(&self, chain: ChainId) -> Vec<(u32, Entry)> {
        let own = self.entries.range((chain, 0)..=(chain, u32::MAX));
        own.map(|((_, segment), entry)| (*segment, *entry)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHAIN: ChainId = ChainId([1; 16]);

    #[test]
    fn entries_follow_each_other_around_the_drive() {
        let mut slots = Slots::default();
        slots.grow(6);
        for (segment, expected) in [(0, 0), (1, 2), (2, 4)] {
            let slot = slots.take(2).expect("room");
            assert_eq!(slot, expected);
            slots.add(CHAIN, segment, Entry { slot, slots: 2, lap: 1 });
        }
        assert_eq!((slots.take(1), slots.taken()), (None, 6));
        slots.retain(CHAIN, |segment, _| segment == 2);
        assert_eq!((slots.take(3), slots.take(2)), (Some(0), None), "around, and what is left does not do");
        assert_eq!(slots.lacking(2), 2);
        slots.grow(8);
        assert_eq!(slots.take(2), Some(6));
    }

    #[test]
    fn a_later_use_of_a_segment_takes_the_place_of_the_earlier_one() {
        let mut slots = Slots::default();
        slots.grow(4);
        assert!(slots.adopt(CHAIN, 7, Entry { slot: 0, slots: 1, lap: 3 }));
        assert!(slots.adopt(CHAIN, 7, Entry { slot: 1, slots: 2, lap: 5 }));
        assert!(!slots.adopt(CHAIN, 7, Entry { slot: 3, slots: 1, lap: 4 }), "an older one");
        assert!(!slots.adopt(CHAIN, 8, Entry { slot: 2, slots: 1, lap: 4 }), "within another one");
        assert!(!slots.adopt(CHAIN, 9, Entry { slot: 3, slots: 2, lap: 4 }), "past the end");
        assert_eq!(slots.of_chain(CHAIN), [(7, Entry { slot: 1, slots: 2, lap: 5 })]);
        assert_eq!((slots.taken(), slots.get(ChainId([2; 16]), 7)), (2, None));
    }
}
