//! A map with an order whose values are found by a hash of the key.
//!
//! ```text
//!   index:  places, found by the hash of a key                  ──┬──────┬──
//!                                                                 ▼      ▼
//!   items:  keys with their values, in any order              ┌──────┬──────┬──────┐
//!                                                             └──▲───┴──────┴──▲───┘
//!   order:  the keys in order, each with its place               └─────────────┘
//! ```
//!
//! Most calls are about a key that is there, and look at one place of the index and at its item, wherever in a large map that is; the way down
//! a tree would take one from memory for each of its levels. The order serves whoever asks for ranges, and is touched only where keys come
//! and go. What anybody sees goes by the order: the hash and the places are never seen. The hash keeps nobody out who means harm.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use slab::Slab;

/// Keys and values in the order of the keys.
#[derive(Clone)]
pub struct Entries<K, T> {
    items: Slab<(K, T)>,
    order: BTreeMap<K, u32>,
    index: HashTable<u32>,
}

impl<K, T> Default for Entries<K, T> {
    fn default() -> Self {
        Self { items: Slab::new(), order: BTreeMap::new(), index: HashTable::new() }
    }
}

impl<K, T> Entries<K, T> {
    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// The keys, in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.order.keys()
    }

    /// The keys with their values, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &T)> {
        self.order.iter().map(|(key, place)| (key, self.value(*place)))
    }

    /// The first key and its value.
    pub fn first_key_value(&self) -> Option<(&K, &T)> {
        self.iter().next()
    }

    /// The last key and its value.
    pub fn last_key_value(&self) -> Option<(&K, &T)> {
        self.iter().next_back()
    }

    /// The keys of a range with their values, in order. None if its start lies after its end.
    pub fn range(&self, range: impl RangeBounds<K>) -> impl Iterator<Item = (&K, &T)>
    where
        K: Ord,
    {
        within(&self.order, range).map(|(key, place)| (key, self.value(*place)))
    }

    fn value(&self, place: u32) -> &T {
        &self.items[place as usize].1
    }
}

impl<K: Ord + Hash + Clone, T> Entries<K, T> {
    /// The value of `key`.
    pub fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&T>
    where
        K: Borrow<Q>,
    {
        self.place(hash_of(key), key).map(|place| self.value(place))
    }

    /// Whether there is a value for `key`.
    pub fn contains_key<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.place(hash_of(key), key).is_some()
    }

    /// The value of `key`, to be changed.
    pub fn get_mut<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<&mut T>
    where
        K: Borrow<Q>,
    {
        let place = self.place(hash_of(key), key)?;
        Some(&mut self.items[place as usize].1)
    }

    /// Gives `key` a value, and returns the one that it had.
    pub fn insert(&mut self, key: K, value: T) -> Option<T> {
        let hash = hash_of(&key);
        if let Some(place) = self.place(hash, &key) {
            return Some(std::mem::replace(&mut self.items[place as usize].1, value));
        }
        let place = self.items.insert((key.clone(), value));
        let place = u32::try_from(place).expect("a map in memory has fewer keys");
        self.order.insert(key, place);
        let Self { items, index, .. } = self;
        index.insert_unique(hash, place, |&place| hash_of(key_at(items, place)));
        None
    }

    /// Removes `key`, and returns the value that it had.
    pub fn remove<Q: Ord + Hash + ?Sized>(&mut self, key: &Q) -> Option<T>
    where
        K: Borrow<Q>,
    {
        let Self { items, index, .. } = self;
        let is_it = |place: &u32| key_at(items, *place).borrow() == key;
        let (place, _) = index.find_entry(hash_of(key), is_it).ok()?.remove();
        self.order.remove(key);
        Some(self.items.remove(place as usize).1)
    }

    /// Where `key` is, whose hash is known.
    fn place<Q: Eq + ?Sized>(&self, hash: u64, key: &Q) -> Option<u32>
    where
        K: Borrow<Q>,
    {
        let is_it = |place: &u32| key_at(&self.items, *place).borrow() == key;
        self.index.find(hash, is_it).copied()
    }
}

/// The entries of a range, in order. None if its start lies after its end, where the tree's own `range` panics.
pub(crate) fn within<K: Ord, T>(
    entries: &BTreeMap<K, T>,
    range: impl RangeBounds<K>,
) -> impl Iterator<Item = (&K, &T)> {
    let from = entries.range((range.start_bound(), Bound::Unbounded));
    from.take_while(move |(key, _)| range.contains(*key))
}

/// The key at a place that the index has.
fn key_at<K, T>(items: &Slab<(K, T)>, place: u32) -> &K {
    &items[place as usize].0
}

/// The same everywhere, though nobody sees it.
fn hash_of<Q: Hash + ?Sized>(key: &Q) -> u64 {
    FixedState::default().hash_one(key)
}

impl<K: PartialEq, T: PartialEq> PartialEq for Entries<K, T> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<K: Eq, T: Eq> Eq for Entries<K, T> {}

impl<K: fmt::Debug, T: fmt::Debug> fmt::Debug for Entries<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: Serialize, T: Serialize> Serialize for Entries<K, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de, K: Deserialize<'de> + Ord + Hash + Clone, T: Deserialize<'de>> Deserialize<'de> for Entries<K, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Taken<K, T>(PhantomData<(K, T)>);
        impl<'de, K: Deserialize<'de> + Ord + Hash + Clone, T: Deserialize<'de>> Visitor<'de> for Taken<K, T> {
            type Value = Entries<K, T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<K, T>, A::Error> {
                let mut entries = Entries::default();
                while let Some((key, value)) = map.next_entry()? {
                    entries.insert(key, value);
                }
                Ok(entries)
            }
        }
        deserializer.deserialize_map(Taken(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use ithaca_env::sim::Random;

    use super::*;

    #[test]
    fn entries_are_those_of_a_tree_whatever_comes_and_goes() {
        // A key that is not found after others were removed would be there and not be there.
        for keys in [1, 3, 7, 50, 3000] {
            let mut random = Random::new(keys);
            let (mut entries, mut tree) = (Entries::<u64, u64>::default(), BTreeMap::new());
            for step in 0..20_000 {
                let key = random.below(keys) << (8 * random.below(8));
                match random.below(3) {
                    0 => assert_eq!(entries.remove(&key), tree.remove(&key), "{step}"),
                    _ => assert_eq!(entries.insert(key, step), tree.insert(key, step), "{step}"),
                }
                let other = random.below(keys);
                assert_eq!(entries.get(&other), tree.get(&other), "{step}");
                assert_eq!(entries.get_mut(&key), tree.get_mut(&key), "{step}");
                assert_eq!(
                    (entries.len(), entries.contains_key(&key)),
                    (tree.len(), tree.contains_key(&key))
                );
            }
            assert!(entries.iter().eq(&tree) && entries.keys().eq(tree.keys()));
            assert_eq!(entries.first_key_value(), tree.first_key_value());
            assert_eq!(entries.last_key_value(), tree.last_key_value());
            assert!(entries.range(keys / 3..keys / 2).eq(tree.range(keys / 3..keys / 2)));
            assert_eq!(entries.range((Bound::Included(2), Bound::Excluded(1))).count(), 0);
            assert_eq!((entries.items.len(), entries.index.len()), (tree.len(), tree.len()));
            let bytes = rmp_serde::to_vec_named(&tree).expect("it encodes");
            assert_eq!(rmp_serde::to_vec_named(&entries).expect("it encodes"), bytes, "it was a tree before");
            assert_eq!(rmp_serde::from_slice::<Entries<u64, u64>>(&bytes).expect("it decodes"), entries);
        }
    }
}
