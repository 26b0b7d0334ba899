//! What was added last, first in, first out: the replacement of the memory in front of a cache drive. Pure.

use std::collections::VecDeque;

/// Values under ascending keys, the latest `max_bytes` of them.
pub struct Recent<K, V> {
    values: VecDeque<(K, V, usize)>,
    bytes: usize,
    max_bytes: usize,
}

impl<K: Ord + Copy, V> Recent<K, V> {
    /// Keeps values of `max_bytes` together at the most.
    pub fn new(max_bytes: usize) -> Self {
        Self { values: VecDeque::new(), bytes: 0, max_bytes }
    }

    /// Adds a value of `bytes`. Its key is higher than those before it: a lower one panics. What has no room any more is
    /// shown to `evicted`, the oldest first; a value larger than the whole is shown at once.
    pub fn add(&mut self, key: K, value: V, bytes: usize, mut evicted: impl FnMut(K, V)) {
        let is_next = self.values.back().is_none_or(|(last, ..)| *last < key);
        assert!(is_next, "values are added in the order of their keys");
        self.bytes += bytes;
        self.values.push_back((key, value, bytes));
        while self.bytes > self.max_bytes
            && let Some((key, value, bytes)) = self.values.pop_front()
        {
            self.bytes -= bytes;
            evicted(key, value);
        }
    }

    /// The value with the highest key that is not above `key`.
    pub fn at_or_below(&self, key: K) -> Option<(K, &V)> {
        let before = self.values.partition_point(|(other, ..)| *other <= key).checked_sub(1)?;
        self.values.get(before).map(|(key, value, _)| (*key, value))
    }

    /// The lowest key.
    pub fn oldest(&self) -> Option<K> {
        self.values.front().map(|(key, ..)| *key)
    }

    /// Bytes of what is here.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_first_and_what_is_too_large_does_not_stay() {
        let mut recent = Recent::new(10);
        let mut gone = Vec::new();
        for (key, bytes) in [(1, 4), (3, 4), (5, 4), (7, 11)] {
            recent.add(key, key * 10, bytes, |key, value| gone.push((key, value)));
            assert_eq!(recent.oldest(), [Some(1), Some(1), Some(3), None][key / 2]);
        }
        assert_eq!(gone, [(1, 10), (3, 30), (5, 50), (7, 70)]);
        assert_eq!(recent.bytes(), 0);
    }
}
