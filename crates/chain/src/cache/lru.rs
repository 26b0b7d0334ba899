//! What was used last: values under keys, the one that was used longest ago goes first. Pure.

use std::collections::BTreeMap;

use super::recency::Recency;

/// So many values at the most.
pub(super) struct Lru<K, V> {
    /// Where each key's value is.
    at: BTreeMap<K, u32>,
    slots: Vec<(K, V)>,
    /// All slots that there may be; those that hold nothing yet are not looked at.
    order: Recency,
    max: u32,
}

impl<K: Ord + Copy, V> Lru<K, V> {
    /// Room for `max` values.
    pub(super) fn new(max: u32) -> Self {
        Self { at: BTreeMap::new(), slots: Vec::new(), order: Recency::new(max), max }
    }

    /// The value of a key, which counts as used.
    pub(super) fn get(&mut self, key: &K) -> Option<&V> {
        let slot = *self.at.get(key)?;
        self.order.remove(slot);
        self.order.add_newest(slot);
        Some(&self.slots[slot as usize].1)
    }

    /// Whether there is a value; it does not count as used.
    pub(super) fn has(&self, key: &K) -> bool {
        self.at.contains_key(key)
    }

    /// Puts a value under a key, in place of its old one or, if there is no room left, of the one that was used longest ago.
    pub(super) fn put(&mut self, key: K, value: V) {
        let slot = match self.at.get(&key) {
            Some(&slot) => slot,
            None if (self.slots.len() as u32) < self.max => {
                self.slots.push((key, value));
                let slot = self.slots.len() as u32 - 1;
                self.at.insert(key, slot);
                return self.used(slot);
            }
            None => {
                let Some(slot) = self.order.oldest() else { return };
                self.at.remove(&self.slots[slot as usize].0);
                self.at.insert(key, slot);
                slot
            }
        };
        self.slots[slot as usize] = (key, value);
        self.used(slot);
    }

    /// The value of a key is the next one to go, if it is here.
    pub(super) fn leave_first(&mut self, key: &K) {
        if let Some(&slot) = self.at.get(key) {
            self.order.remove(slot);
            self.order.add_oldest(slot);
        }
    }

    /// What is here under `from` is here under `to` instead, and was used when it was.
    pub(super) fn rename(&mut self, from: &K, to: K) {
        if self.at.contains_key(&to) {
            return;
        }
        if let Some(slot) = self.at.remove(from) {
            self.at.insert(to, slot);
            self.slots[slot as usize].0 = to;
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

    #[test]
    fn what_was_used_longest_ago_goes_first_and_a_look_is_no_use() {
        let mut lru = Lru::new(2);
        lru.put(1, 'a');
        lru.put(2, 'b');
        assert_eq!(lru.get(&1), Some(&'a'));
        assert!(lru.has(&2));
        lru.put(3, 'c');
        assert_eq!([1, 2, 3].map(|key| lru.get(&key).copied()), [Some('a'), None, Some('c')]);
        lru.put(1, 'd');
        assert_eq!(lru.get(&1), Some(&'d'));
        assert_eq!(lru.len(), 2);
        let mut none = Lru::new(0);
        none.put(1, 'a');
        assert!(!none.has(&1));
    }

    #[test]
    fn what_is_to_leave_first_stays_while_there_is_room_and_a_new_name_changes_no_order() {
        let mut lru = Lru::new(3);
        lru.put(1, 'a');
        lru.put(2, 'b');
        lru.leave_first(&2);
        lru.leave_first(&9);
        lru.put(3, 'c');
        assert!(lru.has(&2), "there was room");
        lru.put(4, 'd');
        assert_eq!([1, 2, 3, 4].map(|key| lru.has(&key)), [true, false, true, true]);
        lru.rename(&1, 5);
        lru.rename(&9, 6);
        lru.put(7, 'e');
        assert_eq!([1, 5, 6, 7].map(|key| lru.has(&key)), [false, false, false, true], "it was the oldest");
        lru.rename(&3, 4);
        let found = [3, 4].map(|key| lru.get(&key).copied());
        assert_eq!(found, [Some('c'), Some('d')], "what has the name stays");
    }
}
