//! The state of a store: where each key's value lies in the log, and of which version it is. The values are not in it.

use std::collections::BTreeMap;

use ithaca_log::pos::LogPos;
use serde::{Deserialize, Serialize};

use crate::collections::{Blob, Name};
use crate::key::{Key, Keys, Parts};
use crate::object::{Method, Mutator, Object, digest_of_values};

/// Where a value lies, and what it is to be. In a checkpoint it is an array of its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u64, u32, u32)", into = "(u64, u64, u32, u32)")]
pub struct Located {
    /// The log position at which the key was given this value.
    pub version: LogPos,
    /// The position of the entry that has it now: that of the version, or of a later copy.
    pub pos: LogPos,
    /// Bytes of it.
    pub len: u32,
    /// CRC-32C of them.
    pub crc: u32,
}

impl Located {
    fn new(pos: LogPos, value: &Blob) -> Self {
        let (len, crc) = sum_of(value);
        Self { version: pos, pos, len, crc }
    }

    /// Whether these bytes are the value.
    pub fn is(&self, value: &Blob) -> bool {
        sum_of(value) == (self.len, self.crc)
    }
}

fn sum_of(value: &Blob) -> (u32, u32) {
    // A value is part of an entry, and that has far fewer bytes.
    (value.0.len() as u32, crc32c::crc32c(&value.0))
}

impl From<(u64, u64, u32, u32)> for Located {
    fn from((version, pos, len, crc): (u64, u64, u32, u32)) -> Self {
        Self { version: LogPos(version), pos: LogPos(pos), len, crc }
    }
}

impl From<Located> for (u64, u64, u32, u32) {
    fn from(of: Located) -> Self {
        (of.version.0, of.pos.0, of.len, of.crc)
    }
}

/// The state of a store.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "K: Name")]
pub struct StoreState<K> {
    entries: BTreeMap<K, Located>,
    digest: u64,
}

impl<K> Default for StoreState<K> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), digest: 0 }
    }
}

/// What a key had before.
pub struct Before<K> {
    key: K,
    located: Option<Located>,
}

impl<K: Name> StoreState<K> {
    /// Where the values of all keys lie.
    pub fn entries(&self) -> &BTreeMap<K, Located> {
        &self.entries
    }

    /// The version of a key; `None` if it has no value.
    pub fn version(&self, key: &K) -> Option<LogPos> {
        self.entries.get(key).map(|located| located.version)
    }

    fn set(&mut self, key: &K, located: Option<Located>) -> Option<Located> {
        let before = match located {
            Some(located) => self.entries.insert(key.clone(), located),
            None => self.entries.remove(key),
        };
        // The order of entries does not matter: their digests are combined by exclusive or.
        for of in located.iter().chain(&before) {
            self.digest ^= digest_of_values(key, of).unwrap_or(0);
        }
        before
    }

    fn change(&mut self, key: K, located: Option<Located>, undo: &mut Vec<Before<K>>) {
        let before = self.set(&key, located);
        undo.push(Before { key, located: before });
    }
}

impl<K: Name> Object for StoreState<K> {
    const TYPE: &'static str = "store";
    const METHODS: &'static [Method<Self>] = &[Method::of::<MultiPut<K>>(), Method::of::<MoveValues<K>>()];
    type Undo = Before<K>;

    fn exchange(&mut self, undo: &mut Before<K>) {
        let located = undo.located.take();
        undo.located = self.set(&undo.key, located);
    }

    fn digest(&self) -> u64 {
        self.digest ^ self.entries.len() as u64
    }

    fn needs_from(&self) -> Option<LogPos> {
        self.entries.values().map(|located| located.pos).min()
    }
}

/// A key that had another version than the one that was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Differs<K> {
    /// Which key: the first of those that were expected.
    pub key: K,
    /// The version that it has; `None` if it has no value.
    pub found: Option<LogPos>,
}

/// Gives keys values, or takes them away, if other keys have the versions that are expected. All of it, or nothing.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "K: Name")]
pub struct MultiPut<K> {
    /// Keys and their versions; `None` of one that is to have no value.
    pub expected: Vec<(K, Option<u64>)>,
    /// Keys and their values; `None` takes the key away. Of a key that is named twice the last one counts.
    pub puts: Vec<(K, Option<Blob>)>,
}

impl<K: Name> Mutator<StoreState<K>> for MultiPut<K> {
    const NAME: &'static str = "multi_put";
    type Output = Result<(), Differs<K>>;

    fn keys(&self) -> Keys {
        let reads = Parts::of(self.expected.iter().map(|(key, _)| Key::of(key)));
        let writes = Parts::of(self.puts.iter().map(|(key, _)| Key::of(key)));
        Keys { reads, writes, commutes: false }
    }

    fn apply(
        self,
        store: &mut StoreState<K>,
        pos: LogPos,
        undo: &mut Vec<Before<K>>,
    ) -> Result<(), Differs<K>> {
        for (key, expected) in self.expected {
            let found = store.version(&key);
            if found != expected.map(LogPos) {
                return Err(Differs { key, found });
            }
        }
        for (key, value) in self.puts {
            let located = value.map(|value| Located::new(pos, &value));
            store.change(key, located, undo);
        }
        Ok(())
    }
}

/// A copy of a value: from which entry it was taken.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "K: Name")]
pub struct Moved<K> {
    /// Whose value.
    pub key: K,
    /// The entry that has it.
    pub from: u64,
    /// The value.
    pub value: Blob,
}

/// Values as copies at the record's own position, so that the entries that had them are needed no more. A value that was replaced or moved
/// meanwhile stays where it is. No version changes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "K: Name")]
pub struct MoveValues<K> {
    /// The copies.
    pub values: Vec<Moved<K>>,
}

impl<K: Name> Mutator<StoreState<K>> for MoveValues<K> {
    const NAME: &'static str = "move_values";
    /// How many of them count.
    type Output = usize;

    fn keys(&self) -> Keys {
        let keys = Parts::of(self.values.iter().map(|moved| Key::of(&moved.key)));
        Keys { reads: keys.clone(), writes: keys, commutes: false }
    }

    fn apply(self, store: &mut StoreState<K>, pos: LogPos, undo: &mut Vec<Before<K>>) -> usize {
        let mut count = 0;
        for Moved { key, from, value } in self.values {
            let Some(located) = store.entries.get(&key).copied() else { continue };
            if located.pos == LogPos(from) && located.is(&value) {
                store.change(key, Some(Located { pos, ..located }), undo);
                count += 1;
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use ithaca_env::real::golden;

    use super::*;

    fn blob(byte: u8) -> Blob {
        Blob(vec![byte; 3].into())
    }

    fn put(expected: &[(u8, Option<u64>)], puts: &[(u8, Option<u8>)]) -> MultiPut<u8> {
        let puts = puts.iter().map(|(key, value)| (*key, value.map(blob))).collect();
        MultiPut { expected: expected.to_vec(), puts }
    }

    #[test]
    fn a_store_has_the_bytes_that_it_has_always_had() {
        let key = "k".to_owned();
        let puts = vec![(key.clone(), Some(Blob(vec![0xA5; 3].into()))), ("l".to_owned(), None)];
        let put = MultiPut { expected: vec![(key.clone(), Some(300)), ("m".to_owned(), None)], puts };
        let moved = Moved { key: key.clone(), from: 300, value: Blob(vec![0xA5; 3].into()) };
        let mut state = StoreState::<String>::default();
        let one = MultiPut { expected: Vec::new(), puts: put.puts.clone() };
        one.apply(&mut state, LogPos(300), &mut Vec::new()).expect("put");
        let hex = |bytes: Result<Vec<u8>, rmp_serde::encode::Error>| golden::hex(&bytes.expect("it encodes"));
        let lines = format!(
            "A store's arguments and state, in hexadecimal. docs/format/object.md explains them.\n\nmulti_put\n{}move_values\n{}state\n{}",
            hex(rmp_serde::to_vec_named(&put)),
            hex(rmp_serde::to_vec_named(&MoveValues { values: vec![moved] })),
            hex(rmp_serde::to_vec_named(&state)),
        );
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/store.txt");
        golden::check(path, &lines);
    }

    #[test]
    fn a_conditional_put_does_all_or_nothing() {
        // A put that changes some keys before it finds one of another version has torn a transaction.
        let (mut store, mut undo) = (StoreState::default(), Vec::new());
        assert_eq!(
            put(&[(1, None)], &[(1, Some(1)), (2, Some(2))]).apply(&mut store, LogPos(5), &mut undo),
            Ok(())
        );
        let differs =
            put(&[(2, Some(5)), (1, Some(4))], &[(2, None)]).apply(&mut store, LogPos(6), &mut undo);
        assert_eq!(differs, Err(Differs { key: 1, found: Some(LogPos(5)) }));
        assert_eq!(store.version(&2), Some(LogPos(5)));
        assert_eq!(
            put(&[(2, Some(5))], &[(2, None), (1, Some(3))]).apply(&mut store, LogPos(7), &mut undo),
            Ok(())
        );
        assert_eq!((store.version(&1), store.version(&2)), (Some(LogPos(7)), None));
    }

    #[test]
    fn a_copy_counts_only_of_the_value_that_it_was_made_of() {
        // A copy that comes after a newer put would bring the old value back.
        let (mut store, mut undo) = (StoreState::default(), Vec::new());
        put(&[], &[(1, Some(1)), (2, Some(2))]).apply(&mut store, LogPos(5), &mut undo).expect("put");
        put(&[], &[(2, Some(9))]).apply(&mut store, LogPos(6), &mut undo).expect("put");
        let moved = |key, from, byte| Moved { key, from, value: blob(byte) };
        let values = vec![moved(1, 5, 1), moved(2, 5, 2), moved(3, 5, 2), moved(1, 5, 1)];
        assert_eq!(MoveValues { values }.apply(&mut store, LogPos(8), &mut undo), 1);
        let at = |key: u8| store.entries()[&key];
        assert_eq!((at(1).version, at(1).pos, at(2).pos), (LogPos(5), LogPos(8), LogPos(6)));
        assert_eq!(store.needs_from(), Some(LogPos(6)));
        let wrong = MoveValues { values: vec![moved(1, 8, 4)] };
        assert_eq!(wrong.apply(&mut store, LogPos(9), &mut undo), 0, "it is not the value");
    }

    #[test]
    fn changes_are_taken_back_to_the_digest_that_there_was() {
        let (mut store, mut undo) = (StoreState::<u8>::default(), Vec::new());
        let empty = store.digest();
        put(&[], &[(1, Some(1)), (1, Some(2)), (2, None)])
            .apply(&mut store, LogPos(5), &mut undo)
            .expect("put");
        let full = store.digest();
        assert_ne!(empty, full);
        undo.iter_mut().rev().for_each(|undo| store.exchange(undo));
        assert_eq!((store.digest(), store.entries().len()), (empty, 0));
        undo.iter_mut().for_each(|undo| store.exchange(undo));
        assert_eq!((store.digest(), store.entries().len()), (full, 1));
    }
}
