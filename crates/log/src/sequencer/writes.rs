//! Which parts of streams were written last, and where: as many as there is room for.
//!
//! ```text
//!   writes:  a ring of (part, position), the oldest is overwritten     ┌─┬─┬─┬─┬─┬─┐
//!                                                                      └▲┴─┴─┴▲┴─┴─┘
//!   table:   for each part its latest write, open addressing          ──┴─────┴──
//! ```
//!
//! The table is looked up and never gone through, so that nothing depends on the order in which it has its parts.

use crate::pos::LogPos;
use crate::stream::ConflictKey;

/// No write.
const EMPTY: u32 = u32::MAX;

/// Slots of a table that has none yet.
const SLOTS_MIN: usize = 64;

/// A write of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Write {
    pub(super) key: ConflictKey,
    pub(super) pos: LogPos,
}

/// The latest writes of an epoch.
#[derive(Clone, Debug)]
pub(super) struct Writes {
    /// Every write that was noted, in a ring; only the latest of each part counts.
    noted: Vec<Write>,
    /// Where in the ring the next one goes.
    next: usize,
    /// Which write is the latest of a part. A power of two, at most half of them used.
    slots: Vec<u32>,
    used: usize,
    max: usize,
}

impl Writes {
    /// Remembers at most `max` writes, at least one.
    pub(super) fn new(max: usize) -> Self {
        let max = max.clamp(1, EMPTY as usize);
        Self { noted: Vec::new(), next: 0, slots: vec![EMPTY; SLOTS_MIN], used: 0, max }
    }

    /// Notes a write. Writes are noted in the order of their positions. The write that is forgotten for it, if that was the latest of
    /// its part.
    pub(super) fn note(&mut self, write: Write) -> Option<Write> {
        let at = self.next;
        self.next = if at + 1 == self.max { 0 } else { at + 1 };
        let mut forgotten = None;
        if at == self.noted.len() {
            self.noted.push(write);
        } else {
            let oldest = self.noted[at];
            // One that was overwritten since is of no use to anybody.
            if let Ok(slot) = self.find(oldest.key)
                && self.slots[slot] as usize == at
            {
                self.remove(slot);
                forgotten = Some(oldest);
            }
            self.noted[at] = write;
        }
        match self.find(write.key) {
            Ok(slot) => self.slots[slot] = at as u32,
            Err(slot) => {
                self.slots[slot] = at as u32;
                self.used += 1;
                if 2 * self.used > self.slots.len() {
                    self.grow();
                }
            }
        }
        forgotten
    }

    /// The last write of `key`, if it is remembered.
    pub(super) fn last(&self, key: ConflictKey) -> Option<LogPos> {
        self.find(key).ok().map(|slot| self.noted[self.slots[slot] as usize].pos)
    }

    /// The slot of a part, or the free one where it belongs.
    fn find(&self, key: ConflictKey) -> Result<usize, usize> {
        let mut slot = self.home(key);
        loop {
            match self.slots[slot] {
                EMPTY => return Err(slot),
                at if self.noted[at as usize].key == key => return Ok(slot),
                _ => slot = self.after(slot),
            }
        }
    }

    /// Frees a slot. What came to stand behind it because it was taken moves up.
    fn remove(&mut self, mut free: usize) {
        self.used -= 1;
        let mut slot = free;
        loop {
            slot = self.after(slot);
            let at = self.slots[slot];
            if at == EMPTY {
                break;
            }
            let home = self.home(self.noted[at as usize].key);
            // It may stand anywhere from its home on, not before.
            let mask = self.slots.len() - 1;
            if (slot.wrapping_sub(home) & mask) >= (slot.wrapping_sub(free) & mask) {
                self.slots[free] = at;
                free = slot;
            }
        }
        self.slots[free] = EMPTY;
    }

    fn grow(&mut self) {
        let len = 2 * self.slots.len();
        let before = std::mem::replace(&mut self.slots, vec![EMPTY; len]);
        for at in before.into_iter().filter(|&at| at != EMPTY) {
            let (Ok(slot) | Err(slot)) = self.find(self.noted[at as usize].key);
            self.slots[slot] = at;
        }
    }

    fn after(&self, slot: usize) -> usize {
        (slot + 1) & (self.slots.len() - 1)
    }

    /// Where a part is looked for first.
    fn home(&self, key: ConflictKey) -> usize {
        let stream = key.stream.0 as u64 ^ (key.stream.0 >> 64) as u64;
        let mixed = (stream.rotate_left(32) ^ key.key.0).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> (64 - self.slots.len().trailing_zeros())) as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};

    use ithaca_env::sim::Random;

    use super::*;
    use crate::pos::StreamId;
    use crate::stream::KeyHash;

    #[test]
    fn the_latest_writes_are_those_of_a_map_that_forgets_the_oldest() {
        // One that is not found after others were removed would let a transaction commit that must not.
        for max in [1, 2, 7, 100, 1000] {
            let mut writes = Writes::new(max);
            let (mut last, mut noted) = (BTreeMap::new(), VecDeque::new());
            let mut random = Random::new(1);
            for pos in 0..5000 {
                let (part, stream) = (random.below(300), u128::from(random.below(3)));
                let key = ConflictKey { stream: StreamId(stream), key: KeyHash(part) };
                let write = Write { key, pos: LogPos(pos) };
                let oldest = if noted.len() == max { noted.pop_front() } else { None };
                let expected = oldest.filter(|oldest: &Write| last.get(&oldest.key) == Some(&oldest.pos));
                if let Some(forgotten) = expected {
                    last.remove(&forgotten.key);
                }
                last.insert(key, write.pos);
                noted.push_back(write);
                assert_eq!(writes.note(write), expected, "at {pos} of {max}");
                let asked = ConflictKey { key: KeyHash((part + 1) % 300), ..key };
                assert_eq!(writes.last(key), Some(write.pos));
                assert_eq!(writes.last(asked), last.get(&asked).copied());
            }
            assert_eq!(writes.used, last.len());
        }
    }
}
