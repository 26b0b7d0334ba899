//! Which slot of a table a key has: a hash table of slot numbers, whose keys lie in the slots. Pure.
//!
//! An ordered map of a quarter of a million blocks takes six steps through memory that is in no processor's cache, and each block that is
//! written takes three of them: the version before it, the block that leaves, its own. Here each takes one or two. Nothing walks over
//! the table, so that its order shows nowhere.

use ithaca_env::mix;

/// No slot.
const NONE: u32 = u32::MAX;
/// At most one in so many places is taken.
const SPARSE: usize = 2;

/// What a slot is found by: the lap of a segment, and a block in it.
pub(super) type BlockPlace = (u64, u32);

/// See the module. A key is looked up by the slot that a caller says has it, so each call is told what the slots hold.
#[derive(Default)]
pub(super) struct Finder {
    /// A power of two of them. A key is at its home or behind it, with nothing free in between.
    table: Vec<u32>,
    len: usize,
}

impl Finder {
    fn home(&self, (lap, block): BlockPlace) -> usize {
        // Blocks of a segment follow each other, and so do laps.
        mix(lap.rotate_left(32) ^ u64::from(block)) as usize & (self.table.len() - 1)
    }

    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.table.len() - 1)
    }

    fn position<V>(&self, slots: &[(BlockPlace, V)], key: BlockPlace) -> Option<usize> {
        if self.table.is_empty() {
            return None;
        }
        let mut at = self.home(key);
        while self.table[at] != NONE {
            if slots[self.table[at] as usize].0 == key {
                return Some(at);
            }
            at = self.after(at);
        }
        None
    }

    /// The slot that has a key.
    pub(super) fn find<V>(&self, slots: &[(BlockPlace, V)], key: BlockPlace) -> Option<u32> {
        self.position(slots, key).map(|at| self.table[at])
    }

    /// A slot that was not here has its key by now. No other slot has it.
    pub(super) fn add<V>(&mut self, slots: &[(BlockPlace, V)], slot: u32) {
        self.len += 1;
        if self.table.len() < SPARSE * self.len {
            let known = std::mem::take(&mut self.table);
            self.table = vec![NONE; (2 * known.len()).max(8)];
            known.into_iter().filter(|&slot| slot != NONE).for_each(|slot| self.put(slots, slot));
        }
        self.put(slots, slot);
    }

    fn put<V>(&mut self, slots: &[(BlockPlace, V)], slot: u32) {
        let mut at = self.home(slots[slot as usize].0);
        while self.table[at] != NONE {
            at = self.after(at);
        }
        self.table[at] = slot;
    }

    /// Forgets which slot has a key, while the slot still has it. Returns which it was.
    pub(super) fn remove<V>(&mut self, slots: &[(BlockPlace, V)], key: BlockPlace) -> Option<u32> {
        let mut free = self.position(slots, key)?;
        let slot = std::mem::replace(&mut self.table[free], NONE);
        self.len -= 1;
        let mut at = self.after(free);
        while self.table[at] != NONE {
            let home = self.home(slots[self.table[at] as usize].0);
            // Whether its home is at the free place or before it, going round.
            let mask = self.table.len() - 1;
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(free) & mask {
                self.table.swap(free, at);
                free = at;
            }
            at = self.after(at);
        }
        Some(slot)
    }

    /// Keys that are here.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ithaca_env::sim::Random;

    use super::*;

    #[test]
    fn every_key_is_found_in_its_slot_whatever_was_added_and_removed_before() {
        // Keys whose homes are neighbours, a table that goes round, a gap in the middle of a row.
        for spread in [1, 7, 1 << 20] {
            let (mut finder, mut slots, mut model) = (Finder::default(), Vec::new(), BTreeMap::new());
            let mut random = Random::new(1);
            for step in 0..20_000_u64 {
                let key = (random.below(5) * spread, random.below(40) as u32);
                let found = finder.find(&slots, key);
                assert_eq!(found, model.get(&key).copied(), "step {step}");
                if found.is_some() {
                    assert_eq!(finder.remove(&slots, key), found);
                    model.remove(&key);
                } else {
                    let slot = slots.len() as u32;
                    slots.push((key, ()));
                    finder.add(&slots, slot);
                    model.insert(key, slot);
                }
                assert_eq!(finder.len(), model.len());
                if step % 500 == 0 {
                    assert!(model.iter().all(|(&key, &slot)| finder.find(&slots, key) == Some(slot)));
                }
            }
        }
    }
}
