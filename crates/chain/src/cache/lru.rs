//! What was used last: values under keys, the one that was used longest ago goes first. Pure.

use std::collections::BTreeMap;

use super::recency::Recency;

/// So many values at the most.
pub(super) struct Lru<K, V> {
    /// Where each key's value is.
    at: BTreeMap<K, u32>,
    slots: Vec<Option<(K, V)>>,
    /// All slots; empty ones are the oldest.
    order: Recency,
}

impl<K: Ord + Copy, V> Lru<K, V> {
    /// Room for `count` values.
    pub(super) fn new(count: u32) -> Self {
        let slots = std::iter::repeat_with(|| None).take(count as usize).collect();
        Self { at: BTreeMap::new(), slots, order: Recency::new(count) }
    }

    /// The value of a key, which counts as used.
    pub(super) fn get(&mut self, key: &K) -> Option<&V> {
        let slot = *self.at.get(key)?;
        self.order.remove(slot);
        self.order.add_newest(slot);
        self.slots[slot as usize].as_ref().map(|(_, value)| value)
    }

    /// Whether there is a value; it does not count as used.
    pub(super) fn has(&self, key: &K) -> bool {
        self.at.contains_key(key)
    }

    /// Puts a value under a key, in place of its old one or of the one that was used longest ago.
    pub(super) fn put(&mut self, key: K, value: V) {
        let known = self.at.get(&key).copied();
        let Some(slot) = known.or_else(|| self.order.oldest()) else { return };
        if let Some((old, _)) = self.slots[slot as usize].replace((key, value)) {
            self.at.remove(&old);
        }
        self.at.insert(key, slot);
        self.order.remove(slot);
        self.order.add_newest(slot);
    }

    /// Values that are here.
    pub(super) fn len(&self) -> usize {
        self.at.len()
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
}
