//! The state of maps and sets. Transactions conflict only over the same key, or over which keys there are.

use std::borrow::Borrow;
use std::hash::Hash;
use std::ops::RangeBounds;

use ithaca_log::pos::LogPos;
use serde::{Deserialize, Serialize};

use super::{All, Entries, Get, Has, Len, MultiGet, Name, Value};
use crate::access::{Access, Portable};
use crate::composed::MoveOut;
use crate::key::{Key, Keys};
use crate::object::{Method, Mutator, Object, digest_of, digest_of_values};

/// A value and the log position of the record that put it there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Placed<V> {
    /// The value.
    pub value: V,
    /// Where in the log it was put.
    pub pos: u64,
    /// The digest of the key and the value, 0 until somebody asks for it: what goes is not looked at again.
    #[serde(skip)]
    digest: u64,
}

impl<V: PartialEq> PartialEq for Placed<V> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value && self.pos == other.pos
    }
}

impl<V: Eq> Eq for Placed<V> {}

impl<V: Value> Placed<V> {
    fn new(value: V, pos: LogPos) -> Self {
        Self { value, pos: pos.0, digest: 0 }
    }

    fn digest<K: Name>(&mut self, key: &K) -> u64 {
        if self.digest == 0 {
            self.digest = digest_of_entry(key, &self.value);
        }
        self.digest
    }
}

/// The state of a map.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "K: Name, V: Value")]
pub struct MapState<K, V> {
    entries: Entries<K, Placed<V>>,
    digest: u64,
}

impl<K, V> Default for MapState<K, V> {
    fn default() -> Self {
        Self { entries: Entries::default(), digest: 0 }
    }
}

/// What a key had before.
pub struct Before<K, V> {
    key: K,
    value: Option<Placed<V>>,
}

impl<K: Name, V: Value> MapState<K, V> {
    /// What the map holds, with where it was put.
    pub fn entries(&self) -> &Entries<K, Placed<V>> {
        &self.entries
    }

    /// The value of `key`.
    pub fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.entries.get(key).map(|placed| &placed.value)
    }

    /// Whether there is a value for `key`.
    pub fn contains_key<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.entries.contains_key(key)
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The keys with their values, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, placed)| (key, &placed.value))
    }

    /// The keys of a range with their values, in order. None if its start lies after its end.
    pub fn range(&self, range: impl RangeBounds<K>) -> impl Iterator<Item = (&K, &V)> {
        self.entries.range(range).map(|(key, placed)| (key, &placed.value))
    }

    /// Gives `key` another value, or none, and returns the one that it had.
    fn set(&mut self, key: &K, mut value: Option<Placed<V>>) -> Option<Placed<V>> {
        if let Some(value) = &mut value {
            self.digest ^= value.digest(key);
        }
        let mut before = match (value, self.entries.get_mut(key)) {
            (Some(value), Some(place)) => Some(std::mem::replace(place, value)),
            (Some(value), None) => self.entries.insert(key.clone(), value),
            (None, _) => self.entries.remove(key),
        };
        if let Some(before) = &mut before {
            self.digest ^= before.digest(key);
        }
        before
    }

    /// The same with an undo; gives a look at the value that the key had.
    pub(crate) fn change<'u>(
        &mut self,
        key: K,
        value: Option<Placed<V>>,
        undo: &'u mut Vec<Before<K, V>>,
    ) -> Option<&'u V> {
        let value = self.set(&key, value);
        undo.push(Before { key, value });
        undo.last().and_then(|slot| slot.value.as_ref()).map(|before| &before.value)
    }
}

/// The order of entries does not matter: digests of entries are combined by exclusive or.
fn digest_of_entry<K: Name, V: Value>(key: &K, value: &V) -> u64 {
    // It came of MessagePack; if it does not go back to it there is nothing to compare.
    digest_of_values(key, value).unwrap_or(0)
}

impl<K: Name, V: Value> Object for MapState<K, V> {
    const TYPE: &'static str = "map";
    const METHODS: &'static [Method<Self>] = &[
        Method::of::<Put<K, V>>(),
        Method::of::<Remove<K>>(),
        Method::of::<SetIf<K, V>>(),
        Method::of::<Clear>(),
        Method::of::<MoveOut>(),
    ];
    const ACCESSORS: &'static [Access<Self>] = &[
        Access::of::<Get<K>>(),
        Access::of::<MultiGet<K>>(),
        Access::of::<Has<K>>(),
        Access::of::<Len>(),
        Access::of::<All>(),
    ];
    type Undo = Before<K, V>;
    const IS_TRIED: bool = false;

    fn exchange(&mut self, undo: &mut Before<K, V>) {
        let value = undo.value.take();
        undo.value = self.set(&undo.key, value);
    }

    fn digest(&self) -> u64 {
        self.digest ^ digest_of(&[&(self.entries.len() as u64).to_le_bytes()])
    }
}

/// Puts a value; gives the one that was there before.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Put<K, V> {
    /// Where.
    pub key: K,
    /// What.
    pub value: V,
}

impl<K: Name, V: Value> Mutator<MapState<K, V>> for Put<K, V> {
    const NAME: &'static str = "put";
    type Output = Option<V>;
    const RESULT: Option<Portable<Self::Output>> = Some(Portable::maybe());

    fn keys(&self) -> Keys {
        Keys::updates(Key::of(&self.key))
    }

    fn apply(self, map: &mut MapState<K, V>, pos: LogPos, undo: &mut Vec<Before<K, V>>) -> Option<V> {
        map.change(self.key, Some(Placed::new(self.value, pos)), undo).cloned()
    }

    fn apply_unasked(self, map: &mut MapState<K, V>, pos: LogPos, undo: &mut Vec<Before<K, V>>) {
        // A look at the value that goes would be one more place in memory.
        map.change(self.key, Some(Placed::new(self.value, pos)), undo);
    }
}

/// Removes a key; gives the value that it had.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Remove<K> {
    /// Which.
    pub key: K,
}

impl<K: Name, V: Value> Mutator<MapState<K, V>> for Remove<K> {
    const NAME: &'static str = "remove";
    type Output = Option<V>;
    const RESULT: Option<Portable<Self::Output>> = Some(Portable::maybe());

    fn keys(&self) -> Keys {
        Keys::updates(Key::of(&self.key))
    }

    fn apply(self, map: &mut MapState<K, V>, _: LogPos, undo: &mut Vec<Before<K, V>>) -> Option<V> {
        map.change(self.key, None, undo).cloned()
    }

    fn apply_unasked(self, map: &mut MapState<K, V>, _: LogPos, undo: &mut Vec<Before<K, V>>) {
        map.change(self.key, None, undo);
    }
}

/// Puts a value, or removes the key, if what it has is of a version; gives what was there instead.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SetIf<K, V> {
    /// Where.
    pub(super) key: K,
    /// Where in the log the value was put that is to be there, if one is.
    pub(super) version: Option<u64>,
    /// The value, or nothing: a value that is itself none has the MessagePack of none.
    pub(super) value: Vec<V>,
}

impl<K: Name, V: Value> Mutator<MapState<K, V>> for SetIf<K, V> {
    const NAME: &'static str = "set_if";
    type Output = Result<(), Option<Placed<V>>>;
    const RESULT: Option<Portable<Self::Output>> = Some(Portable::new());

    fn keys(&self) -> Keys {
        Keys::updates(Key::of(&self.key))
    }

    fn apply(
        self,
        map: &mut MapState<K, V>,
        pos: LogPos,
        undo: &mut Vec<Before<K, V>>,
    ) -> Result<(), Option<Placed<V>>> {
        let found = map.entries.get(&self.key);
        if found.map(|placed| placed.pos) != self.version {
            return Err(found.cloned());
        }
        let value = self.value.into_iter().next().map(|value| Placed::new(value, pos));
        map.change(self.key, value, undo);
        Ok(())
    }
}

/// Removes everything: every key, every item.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Clear {}

impl<K: Name, V: Value> Mutator<MapState<K, V>> for Clear {
    const NAME: &'static str = "clear";
    type Output = ();
    const RESULT: Option<Portable<Self::Output>> = Some(Portable::new());

    fn keys(&self) -> Keys {
        Keys::writes(Key::all())
    }

    fn apply(self, map: &mut MapState<K, V>, _: LogPos, undo: &mut Vec<Before<K, V>>) {
        let keys: Vec<K> = map.entries.keys().cloned().collect();
        for key in keys {
            map.change(key, None, undo);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_has_the_digest_of_what_it_holds_wherever_that_came_from() {
        // A value of a checkpoint was never asked for its digest when it goes.
        let put = |map: &mut MapState<u64, u64>, key, value, pos| {
            Put { key, value }.apply(map, LogPos(pos), &mut Vec::new());
        };
        let mut map = MapState::default();
        (0..9).for_each(|key| put(&mut map, key, 10 * key, key));
        let bytes = rmp_serde::to_vec_named(&map).expect("it encodes");
        let mut restored: MapState<u64, u64> = rmp_serde::from_slice(&bytes).expect("it decodes");
        for map in [&mut map, &mut restored] {
            (0..5).for_each(|key| put(map, key, 7, 20 + key));
            Remove { key: 8 }.apply(map, LogPos(30), &mut Vec::<Before<u64, u64>>::new());
        }
        let mut fresh = MapState::default();
        (0..8).for_each(|key| put(&mut fresh, key, if key < 5 { 7 } else { 10 * key }, 40));
        assert_eq!((map.digest(), restored.digest()), (fresh.digest(), fresh.digest()));
        assert_eq!(map.entries(), restored.entries());
    }

    #[test]
    fn a_call_changes_the_same_whether_its_result_is_asked_for_or_not() {
        // Views that do not want a result would go another way than the one that does.
        type Map = MapState<u64, u64>;
        let (mut asked, mut unasked) = (Map::default(), Map::default());
        let (mut undo_asked, mut undo_unasked) = (Vec::new(), Vec::new());
        for step in 0..40 {
            let (put, remove) = (Put { key: step % 7, value: step }, Remove { key: step % 5 });
            put.clone().apply(&mut asked, LogPos(step), &mut undo_asked);
            put.apply_unasked(&mut unasked, LogPos(step), &mut undo_unasked);
            Mutator::<Map>::apply(remove.clone(), &mut asked, LogPos(step), &mut undo_asked);
            Mutator::<Map>::apply_unasked(remove, &mut unasked, LogPos(step), &mut undo_unasked);
            assert_eq!((asked.entries(), asked.digest()), (unasked.entries(), unasked.digest()));
        }
        for (map, undo) in [(&mut asked, undo_asked), (&mut unasked, undo_unasked)] {
            undo.into_iter().rev().for_each(|mut undo| map.exchange(&mut undo));
            assert!(map.is_empty() && map.digest() == Map::default().digest());
        }
    }

    #[test]
    fn an_entry_has_the_digest_of_its_bytes() {
        // A digest that is made in another way is another one, and every other program's state seems to differ.
        let (key, value) = ("key".to_owned(), (7u64, vec![1u8; 700], "text"));
        let bytes = |it: Result<Vec<u8>, _>| it.expect("it encodes");
        let (key_bytes, value_bytes) =
            (bytes(rmp_serde::to_vec_named(&key)), bytes(rmp_serde::to_vec_named(&value)));
        assert_eq!(digest_of_values(&key, &value), Some(digest_of(&[&key_bytes, &value_bytes])));
    }
}
