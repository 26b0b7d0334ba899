//! A map with an order whose values are found by a hash of the key.
//!
//! ```text
//!   index:  a hash's upper half and a place, open addressing    ──┬──────┬──
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
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Slots of an index that has any, at the least.
const SLOTS_MIN: usize = 8;

/// Keys and values in the order of the keys.
#[derive(Clone)]
pub struct Entries<K, T> {
    /// Free ones are `None`.
    items: Vec<Option<(K, T)>>,
    free: Vec<u32>,
    order: BTreeMap<K, u32>,
    index: Index,
}

impl<K, T> Default for Entries<K, T> {
    fn default() -> Self {
        Self { items: Vec::new(), free: Vec::new(), order: BTreeMap::new(), index: Index::default() }
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
        K: Ord + Clone,
    {
        let from = self.order.range((range.start_bound().cloned(), Bound::Unbounded));
        let within = from.take_while(move |(key, _)| range.contains(*key));
        within.map(|(key, place)| (key, self.value(*place)))
    }

    fn value(&self, place: u32) -> &T {
        let item = self.items[place as usize].as_ref();
        &item.expect("a key in the order has its place").1
    }
}

impl<K: Ord + Hash + Clone, T> Entries<K, T> {
    /// The value of `key`.
    pub fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&T>
    where
        K: Borrow<Q>,
    {
        self.place(key).ok().map(|found| self.value(found.place))
    }

    /// Whether there is a value for `key`.
    pub fn contains_key<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.place(key).is_ok()
    }

    /// The value of `key`, to be changed.
    pub fn get_mut<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<&mut T>
    where
        K: Borrow<Q>,
    {
        let found = self.place(key).ok()?;
        self.items[found.place as usize].as_mut().map(|(_, value)| value)
    }

    /// Gives `key` a value, and returns the one that it had.
    pub fn insert(&mut self, key: K, value: T) -> Option<T> {
        let vacant = match self.place(&key) {
            Ok(found) => {
                let item = self.items[found.place as usize].as_mut();
                return item.map(|(_, before)| std::mem::replace(before, value));
            }
            Err(vacant) => vacant,
        };
        let item = Some((key.clone(), value));
        let place = match self.free.pop() {
            Some(place) => {
                self.items[place as usize] = item;
                place
            }
            None => {
                self.items.push(item);
                u32::try_from(self.items.len() - 1).expect("a map in memory has fewer keys")
            }
        };
        self.order.insert(key, place);
        self.index.insert(vacant, place, self.order.len());
        None
    }

    /// Removes `key`, and returns the value that it had.
    pub fn remove<Q: Ord + Hash + ?Sized>(&mut self, key: &Q) -> Option<T>
    where
        K: Borrow<Q>,
    {
        let found = self.place(key).ok()?;
        self.order.remove(key);
        self.index.remove(found.slot);
        self.free.push(found.place);
        self.items[found.place as usize].take().map(|(_, value)| value)
    }

    /// Where `key` is, or where the index would have it.
    fn place<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Result<Found, Vacant>
    where
        K: Borrow<Q>,
    {
        let mut hash = KeyHasher::default();
        key.hash(&mut hash);
        let is_it =
            |place: u32| self.items[place as usize].as_ref().is_some_and(|(found, _)| found.borrow() == key);
        self.index.find((hash.finish() >> 32) as u32, is_it)
    }
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

/// A slot of the index that is taken: the upper half of a hash, and a place.
#[derive(Clone, Copy)]
struct Slot {
    tag: u32,
    place: u32,
}

impl Slot {
    /// A free one: no item has this place.
    const FREE: Self = Self { tag: 0, place: u32::MAX };

    fn is_free(self) -> bool {
        self.place == u32::MAX
    }
}

/// Where a key is.
struct Found {
    slot: usize,
    place: u32,
}

/// Where a key is not: its tag, and the free slot for it, if there is any.
struct Vacant {
    tag: u32,
    slot: usize,
}

/// Places by hashes.
#[derive(Clone, Default)]
struct Index {
    /// None, or a power of two of them, at most three in four taken.
    slots: Vec<Slot>,
}

impl Index {
    /// The slot with this tag whose place `is_it`.
    fn find(&self, tag: u32, is_it: impl Fn(u32) -> bool) -> Result<Found, Vacant> {
        if self.slots.is_empty() {
            return Err(Vacant { tag, slot: 0 });
        }
        let mut slot = self.home(tag);
        loop {
            let found = self.slots[slot];
            if found.is_free() {
                return Err(Vacant { tag, slot });
            }
            if found.tag == tag && is_it(found.place) {
                return Ok(Found { slot, place: found.place });
            }
            slot = self.after(slot);
        }
    }

    /// Takes the slot that was found free. It is the `count`th that is taken.
    fn insert(&mut self, vacant: Vacant, place: u32, count: usize) {
        if 4 * count <= 3 * self.slots.len() {
            self.slots[vacant.slot] = Slot { tag: vacant.tag, place };
            return;
        }
        let len = (2 * self.slots.len()).max(SLOTS_MIN);
        let before = std::mem::replace(&mut self.slots, vec![Slot::FREE; len]);
        let taken = before.into_iter().filter(|slot| !slot.is_free());
        for taken in taken.chain([Slot { tag: vacant.tag, place }]) {
            let mut slot = self.home(taken.tag);
            while !self.slots[slot].is_free() {
                slot = self.after(slot);
            }
            self.slots[slot] = taken;
        }
    }

    /// Frees a slot. What came to stand behind it because it was taken moves up.
    fn remove(&mut self, mut free: usize) {
        let mask = self.slots.len() - 1;
        let mut slot = free;
        loop {
            slot = self.after(slot);
            let found = self.slots[slot];
            if found.is_free() {
                break;
            }
            // It may stand anywhere from its home on, not before.
            if (slot.wrapping_sub(self.home(found.tag)) & mask) >= (slot.wrapping_sub(free) & mask) {
                self.slots[free] = found;
                free = slot;
            }
        }
        self.slots[free] = Slot::FREE;
    }

    fn after(&self, slot: usize) -> usize {
        (slot + 1) & (self.slots.len() - 1)
    }

    /// Where a tag is looked for first: by its upper bits, as far as it has them.
    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag) << 32) >> (64 - self.slots.len().trailing_zeros())) as usize
    }
}

/// Hashes a key: each word by a multiplication whose halves are folded together.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for word in words.by_ref() {
            self.write_u64(u64::from_le_bytes(word.try_into().expect("eight bytes")));
        }
        let rest = words.remainder();
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        self.write_u64(u64::from_le_bytes(word) ^ (bytes.len() as u64) << 56);
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = u128::from(self.0 ^ number ^ 0x9E37_79B9_7F4A_7C15) * 0xD6E8_FEB8_6659_FD93;
        self.0 = mixed as u64 ^ (mixed >> 64) as u64;
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn finish(&self) -> u64 {
        self.0
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
            assert_eq!(entries.items.len(), entries.len() + entries.free.len());
            let bytes = rmp_serde::to_vec_named(&tree).expect("it encodes");
            assert_eq!(rmp_serde::to_vec_named(&entries).expect("it encodes"), bytes, "it was a tree before");
            assert_eq!(rmp_serde::from_slice::<Entries<u64, u64>>(&bytes).expect("it decodes"), entries);
        }
    }

    #[test]
    fn keys_that_are_alike_are_spread_over_the_index() {
        // Where many share a slot each is looked for behind the others.
        let spread = |hash: &dyn Fn(u64) -> u64| {
            let mut slots = vec![0; 1024];
            (0..4096).for_each(|key| slots[(hash(key) >> 54) as usize] += 1);
            slots.into_iter().max()
        };
        let hash = |key: &dyn Fn(&mut KeyHasher)| {
            let mut hasher = KeyHasher::default();
            key(&mut hasher);
            hasher.finish()
        };
        for shift in [0, 8, 20, 32, 48] {
            let most = spread(&|key| hash(&|hasher| (key << shift).hash(hasher)));
            assert!(most < Some(24), "{most:?} of 4 on average, shifted by {shift}");
        }
        let most = spread(&|key| hash(&|hasher| format!("user{key:012}").hash(hasher)));
        assert!(most < Some(24), "{most:?} of 4 on average");
    }
}
