//! Which parts of streams were written last, and where: as many as there is room for.
//!
//! ```text
//!   noted:   a ring of (part, position), the oldest is overwritten     ┌─┬─┬─┬─┬─┬─┐
//!                                                                      └▲┴─┴─┴▲┴─┴─┘
//!   table:   for each part its latest write, open addressing          ──┴─────┴──
//! ```
//!
//! The table has the writes themselves, two in a line of the processor's cache, so that a look at one goes to one place. It is looked up and
//! never gone through, so that nothing depends on the order in which it has its parts.

use std::hint::black_box;

use crate::pos::{LogPos, StreamId};
use crate::stream::{ConflictKey, KeyHash};

/// The position of no write: none is granted there.
const NOWHERE: LogPos = LogPos(u64::MAX);

/// Slots of a table that has none yet.
const SLOTS_MIN: usize = 64;

/// A write of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Write {
    pub(super) key: ConflictKey,
    pub(super) pos: LogPos,
}

impl Write {
    /// What a slot has that is free.
    fn none() -> Self {
        Self { key: ConflictKey { stream: StreamId(0), key: KeyHash::ALL }, pos: NOWHERE }
    }
}

/// A write as it is kept: without the gaps that one has in memory, and never across two lines of the cache.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Kept {
    stream: [u64; 2],
    part: u64,
    pos: LogPos,
}

const _: () = assert!(size_of::<Kept>() == 32, "two are a line of the cache");

impl Kept {
    fn is_of(&self, key: ConflictKey) -> bool {
        self.part == key.key.0 && self.stream == halves(key.stream)
    }
}

impl From<Write> for Kept {
    fn from(write: Write) -> Self {
        Self { stream: halves(write.key.stream), part: write.key.key.0, pos: write.pos }
    }
}

impl From<Kept> for Write {
    fn from(kept: Kept) -> Self {
        let stream = StreamId(u128::from(kept.stream[1]) << 64 | u128::from(kept.stream[0]));
        Self { key: ConflictKey { stream, key: KeyHash(kept.part) }, pos: kept.pos }
    }
}

/// A stream's number, the lower half first.
fn halves(stream: StreamId) -> [u64; 2] {
    [stream.0 as u64, (stream.0 >> 64) as u64]
}

/// The latest writes of an epoch.
#[derive(Clone, Debug)]
pub(super) struct Writes {
    /// Every write that was noted, in a ring; only the latest of each part counts.
    noted: Vec<Kept>,
    /// Where in the ring the next one goes.
    next: usize,
    /// The latest write of each part. A power of two, at most half of them used.
    slots: Vec<Kept>,
    used: usize,
    max: usize,
}

impl Writes {
    /// Remembers at most `max` writes, at least one.
    pub(super) fn new(max: usize) -> Self {
        Self {
            noted: Vec::new(),
            next: 0,
            slots: vec![Write::none().into(); SLOTS_MIN],
            used: 0,
            max: max.max(1),
        }
    }

    /// Notes a write. Writes are noted in the order of their positions. The write that is forgotten for it, if that was the latest of
    /// its part.
    pub(super) fn note(&mut self, write: Write) -> Option<Write> {
        assert!(write.pos != NOWHERE, "the last position is granted to nobody");
        let mut found = self.find(write.key);
        // What an append to one part has noted already counts once.
        if found.is_ok_and(|slot| self.slots[slot].pos == write.pos) {
            return None;
        }
        let at = self.next;
        self.next = if at + 1 == self.max { 0 } else { at + 1 };
        let mut forgotten = None;
        if at == self.noted.len() {
            self.noted.push(write.into());
        } else {
            let oldest = std::mem::replace(&mut self.noted[at], write.into());
            forgotten = self.forget(oldest.into());
            if forgotten.is_some() {
                found = self.find(write.key);
            }
        }
        let (Ok(slot) | Err(slot)) = found;
        self.slots[slot] = write.into();
        self.used += usize::from(found.is_err());
        if 2 * self.used > self.slots.len() {
            self.grow();
        }
        forgotten
    }

    /// Frees the slot of a write and gives it back, if it is the latest of its part: one that was overwritten since is of no use to anybody.
    fn forget(&mut self, oldest: Write) -> Option<Write> {
        let slot = self.find(oldest.key).ok().filter(|&slot| self.slots[slot].pos == oldest.pos)?;
        self.remove(slot);
        Some(oldest)
    }

    /// The last write of `key`, if it is remembered.
    pub(super) fn last(&self, key: ConflictKey) -> Option<LogPos> {
        self.find(key).ok().map(|slot| self.slots[slot].pos)
    }

    /// Looks at the slots that some parts are looked for at first, so that they are near when they are needed: one after the other each would be
    /// waited for.
    pub(super) fn bring_near(&self, keys: impl Iterator<Item = ConflictKey>) {
        black_box(keys.fold(0, |seen, key| seen ^ self.slots[self.home(key)].pos.0));
    }

    /// The same for the parts of the next writes that are overwritten in the ring.
    pub(super) fn bring_oldest_near(&self, count: usize) {
        let (before, from) = self.noted.split_at(self.next.min(self.noted.len()));
        let is_full = self.noted.len() == self.max;
        let oldest = from.iter().chain(before).take(if is_full { count } else { 0 });
        self.bring_near(oldest.map(|kept| Write::from(*kept).key));
    }

    /// The slot of a part, or the free one where it belongs.
    fn find(&self, key: ConflictKey) -> Result<usize, usize> {
        let mut slot = self.home(key);
        loop {
            match &self.slots[slot] {
                free if free.pos == NOWHERE => return Err(slot),
                kept if kept.is_of(key) => return Ok(slot),
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
            let kept = self.slots[slot];
            if kept.pos == NOWHERE {
                break;
            }
            let home = self.home(Write::from(kept).key);
            // It may stand anywhere from its home on, not before.
            let mask = self.slots.len() - 1;
            if (slot.wrapping_sub(home) & mask) >= (slot.wrapping_sub(free) & mask) {
                self.slots[free] = kept;
                free = slot;
            }
        }
        self.slots[free] = Write::none().into();
    }

    fn grow(&mut self) {
        let len = 2 * self.slots.len();
        let before = std::mem::replace(&mut self.slots, vec![Write::none().into(); len]);
        for kept in before.into_iter().filter(|kept| kept.pos != NOWHERE) {
            let (Ok(slot) | Err(slot)) = self.find(Write::from(kept).key);
            self.slots[slot] = kept;
        }
    }

    fn after(&self, slot: usize) -> usize {
        (slot + 1) & (self.slots.len() - 1)
    }

    /// Where a part is looked for first.
    fn home(&self, key: ConflictKey) -> usize {
        let [low, high] = halves(key.stream);
        let mixed = ((low ^ high).rotate_left(32) ^ key.key.0).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> (64 - self.slots.len().trailing_zeros())) as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};

    use ithaca_env::sim::Random;

    use super::*;

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

    #[test]
    fn a_part_that_is_written_twice_at_one_position_takes_the_room_of_one_write() {
        let write = |part, pos| {
            let key = ConflictKey { stream: StreamId(1), key: KeyHash(part) };
            Write { key, pos: LogPos(pos) }
        };
        let mut writes = Writes::new(2);
        for (part, pos) in [(1, 5), (1, 5), (2, 5), (2, 5)] {
            assert_eq!(writes.note(write(part, pos)), None);
        }
        assert_eq!(writes.note(write(3, 6)), Some(write(1, 5)));
        assert_eq!((writes.last(write(1, 0).key), writes.last(write(2, 0).key)), (None, Some(LogPos(5))));
    }
}
