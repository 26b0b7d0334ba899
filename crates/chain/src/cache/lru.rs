//! Blocks that were used last, under the places where they lie: the one that was used longest ago goes first. Pure.

use super::finder::{BlockPlace, Finder};
use super::recency::Recency;

/// So many values at the most.
pub(super) struct Lru<V> {
    /// Which slot has a key.
    at: Finder,
    slots: Vec<(BlockPlace, V)>,
    /// All slots that there may be; those that hold nothing yet are not looked at.
    order: Recency,
    max: u32,
}

impl<V> Lru<V> {
    /// Room for `max` values.
    pub(super) fn new(max: u32) -> Self {
        Self { at: Finder::default(), slots: Vec::new(), order: Recency::new(max), max }
    }

    /// The value of a key, which counts as used.
    pub(super) fn get(&mut self, key: BlockPlace) -> Option<&V> {
        let slot = self.at.find(&self.slots, key)?;
        self.used(slot);
        Some(&self.slots[slot as usize].1)
    }

    /// Whether there is a value; it does not count as used.
    pub(super) fn has(&self, key: BlockPlace) -> bool {
        self.at.find(&self.slots, key).is_some()
    }

    /// Puts a value under a key, in place of its old one or, if there is no room left, of the one that was used longest ago. Makes it of
    /// what leaves, if something does.
    pub(super) fn put(&mut self, key: BlockPlace, make: impl FnOnce(Option<V>) -> V)
    where
        V: Default,
    {
        let slot = match self.at.find(&self.slots, key) {
            Some(slot) => slot,
            None if (self.slots.len() as u32) < self.max => {
                self.slots.push((key, make(None)));
                let slot = self.slots.len() as u32 - 1;
                self.at.add(&self.slots, slot);
                return self.used(slot);
            }
            None => {
                let Some(slot) = self.order.oldest() else { return };
                self.at.remove(&self.slots, self.slots[slot as usize].0);
                self.slots[slot as usize].0 = key;
                self.at.add(&self.slots, slot);
                slot
            }
        };
        let value = &mut self.slots[slot as usize].1;
        *value = make(Some(std::mem::take(value)));
        self.used(slot);
    }

    /// The value of a key is the next one to go, if it is here.
    pub(super) fn leave_first(&mut self, key: BlockPlace) {
        if let Some(slot) = self.at.find(&self.slots, key) {
            self.order.remove(slot);
            self.order.add_oldest(slot);
        }
    }

    /// What is here under `from` is here under `to` instead, and was used when it was.
    pub(super) fn rename(&mut self, from: BlockPlace, to: BlockPlace) {
        if self.has(to) {
            return;
        }
        if let Some(slot) = self.at.remove(&self.slots, from) {
            self.slots[slot as usize].0 = to;
            self.at.add(&self.slots, slot);
        }
    }

    /// Values that are here.
    pub(super) fn len(&self) -> usize {
        self.at.len()
    }

    fn used(&mut self, slot: u32) {
        self.order.remove(slot);
        self.order.add_newest(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(block: u32) -> BlockPlace {
        (7, block)
    }

    #[test]
    fn what_was_used_longest_ago_goes_first_and_a_look_is_no_use() {
        let mut lru = Lru::new(2);
        lru.put(at(1), |_| 'a');
        lru.put(at(2), |_| 'b');
        assert_eq!(lru.get(at(1)), Some(&'a'));
        assert!(lru.has(at(2)));
        lru.put(at(3), |_| 'c');
        assert_eq!([1, 2, 3].map(|key| lru.get(at(key)).copied()), [Some('a'), None, Some('c')]);
        lru.put(at(1), |before| char::from_u32(before.map_or(0, u32::from) + 3).unwrap_or_default());
        assert_eq!(lru.get(at(1)), Some(&'d'));
        assert_eq!(lru.len(), 2);
        let mut none = Lru::new(0);
        none.put(at(1), |_| 'a');
        assert!(!none.has(at(1)));
    }

    #[test]
    fn what_is_to_leave_first_stays_while_there_is_room_and_a_new_name_changes_no_order() {
        let mut lru = Lru::new(3);
        lru.put(at(1), |_| 'a');
        lru.put(at(2), |_| 'b');
        lru.leave_first(at(2));
        lru.leave_first(at(9));
        lru.put(at(3), |_| 'c');
        assert!(lru.has(at(2)), "there was room");
        lru.put(at(4), |_| 'd');
        assert_eq!([1, 2, 3, 4].map(|key| lru.has(at(key))), [true, false, true, true]);
        lru.rename(at(1), at(5));
        lru.rename(at(9), at(6));
        lru.put(at(7), |_| 'e');
        let left = [1, 5, 6, 7].map(|key| lru.has(at(key)));
        assert_eq!(left, [false, false, false, true], "it was the oldest");
        lru.rename(at(3), at(4));
        let found = [3, 4].map(|key| lru.get(at(key)).copied());
        assert_eq!(found, [Some('c'), Some('d')], "what has the name stays");
    }
}
