//! A map with several values for a key.

use std::collections::{BTreeMap, BTreeSet};

use ithaca_log::pos::LogPos;
use serde::{Deserialize, Serialize};

use super::{All, Clear, Len, Name, Values, counted, handle};
use crate::access::{Access, Portable};
use crate::error::ObjectError;
use crate::key::{Key, Keys};
use crate::object::{Method, Mutator, Object, digest_of};

/// The state of a multimap.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "K: Name, V: Name")]
pub struct MultiMapState<K, V> {
    /// No set is empty.
    entries: BTreeMap<K, BTreeSet<V>>,
    digest: u64,
}

impl<K, V> Default for MultiMapState<K, V> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), digest: 0 }
    }
}

impl<K: Name, V: Name> MultiMapState<K, V> {
    /// What the map holds.
    pub fn entries(&self) -> &BTreeMap<K, BTreeSet<V>> {
        &self.entries
    }

    /// Puts a value in or takes it out. False if that changes nothing.
    fn set(&mut self, key: &K, value: &V, is_in: bool) -> bool {
        let changed = if is_in {
            self.entries.entry(key.clone()).or_default().insert(value.clone())
        } else {
            let Some(values) = self.entries.get_mut(key) else { return false };
            let was_in = values.remove(value);
            if values.is_empty() {
                self.entries.remove(key);
            }
            was_in
        };
        if changed {
            let bytes = rmp_serde::to_vec_named(&(key, value)).unwrap_or_default();
            self.digest ^= digest_of(&[&bytes]);
        }
        changed
    }

    fn change(&mut self, key: &K, value: &V, is_in: bool, undo: &mut Vec<(K, V, bool)>) -> bool {
        let changed = self.set(key, value, is_in);
        if changed {
            undo.push((key.clone(), value.clone(), !is_in));
        }
        changed
    }
}

impl<K: Name, V: Name> Object for MultiMapState<K, V> {
    const TYPE: &'static str = "multimap";
    const METHODS: &'static [Method<Self>] = &[
        Method::of::<AddValue<K, V>>(),
        Method::of::<RemoveValue<K, V>>(),
        Method::of::<RemoveKey<K>>(),
        Method::of::<Clear>(),
    ];
    const ACCESSORS: &'static [Access<Self>] =
        &[Access::of::<Values<K>>(), Access::of::<Len>(), Access::of::<All>()];
    /// A key, a value, and whether it is to be there.
    type Undo = (K, V, bool);
    const IS_TRIED: bool = false;

    fn exchange(&mut self, undo: &mut (K, V, bool)) {
        self.set(&undo.0, &undo.1, undo.2);
        undo.2 = !undo.2;
    }

    fn digest(&self) -> u64 {
        self.digest
    }
}

/// Adds a value to a key; gives whether it is new there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AddValue<K, V> {
    /// The key.
    pub key: K,
    /// The value.
    pub value: V,
}

impl<K: Name, V: Name> Mutator<MultiMapState<K, V>> for AddValue<K, V> {
    const NAME: &'static str = "add_value";
    type Output = bool;
    const RESULT: Option<Portable<Self::Output>> = Some(Portable::new());

    fn keys(&self) -> Keys {
        Keys::updates(Key::of(&self.key))
    }

    fn apply(self, map: &mut MultiMapState<K, V>, _: LogPos, undo: &mut Vec<(K, V, bool)>) -> bool {
        map.change(&self.key, &self.value, true, undo)
    }
}

/// Takes a value from a key; gives whether it was there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RemoveValue<K, V> {
    /// The key.
    pub key: K,
    /// The value.
    pub value: V,
}

impl<K: Name, V: Name> Mutator<MultiMapState<K, V>> for RemoveValue<K, V> {
    const NAME: &'static str = "remove_value";
    type Output = bool;
    const RESULT: Option<Portable<Self::Output>> = Some(Portable::new());

    fn keys(&self) -> Keys {
        Keys::updates(Key::of(&self.key))
    }

    fn apply(self, map: &mut MultiMapState<K, V>, _: LogPos, undo: &mut Vec<(K, V, bool)>) -> bool {
        map.change(&self.key, &self.value, false, undo)
    }
}

/// Removes a key; gives the values that it had.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RemoveKey<K> {
    /// Which.
    pub key: K,
}

impl<K: Name, V: Name> Mutator<MultiMapState<K, V>> for RemoveKey<K> {
    const NAME: &'static str = "remove_key";
    type Output = BTreeSet<V>;
    const RESULT: Option<Portable<Self::Output>> = Some(Portable::new());

    fn keys(&self) -> Keys {
        Keys::updates(Key::of(&self.key))
    }

    fn apply(self, map: &mut MultiMapState<K, V>, _: LogPos, undo: &mut Vec<(K, V, bool)>) -> BTreeSet<V> {
        let values = map.entries.get(&self.key).cloned().unwrap_or_default();
        for value in &values {
            map.change(&self.key, value, false, undo);
        }
        values
    }
}

impl<K: Name, V: Name> Mutator<MultiMapState<K, V>> for Clear {
    const NAME: &'static str = "clear";
    type Output = ();
    const RESULT: Option<Portable<Self::Output>> = Some(Portable::new());

    fn keys(&self) -> Keys {
        Keys::writes(Key::all())
    }

    fn apply(self, map: &mut MultiMapState<K, V>, _: LogPos, undo: &mut Vec<(K, V, bool)>) {
        for (key, values) in std::mem::take(&mut map.entries) {
            undo.extend(values.into_iter().map(|value| (key.clone(), value, true)));
        }
        map.digest = 0;
    }
}

handle! {
    /// A map with a set of values for each key. Transactions conflict only over the same key.
    MultiMap<K: Name, V: Name>, MultiMapState<K, V>
}

counted! { MultiMap<K: Name, V: Name> }

impl<K: Name, V: Name> MultiMap<K, V> {
    /// The values of `key`, in order.
    pub async fn get(&self, key: &K) -> Result<BTreeSet<V>, ObjectError> {
        self.handle.look(Values { key: key.clone() }).await
    }

    /// Adds a value to `key`. False if it was there.
    pub async fn insert(&self, key: K, value: V) -> Result<bool, ObjectError> {
        self.handle.call(AddValue { key, value }).await
    }

    /// Takes a value from `key`. False if it was not there.
    pub async fn remove(&self, key: K, value: V) -> Result<bool, ObjectError> {
        self.handle.call(RemoveValue { key, value }).await
    }

    /// Removes `key` and returns the values that it had.
    pub async fn remove_all(&self, key: K) -> Result<BTreeSet<V>, ObjectError> {
        self.handle.call(RemoveKey { key }).await
    }

    /// Every key and its values, in the order of the keys, as of one moment.
    pub async fn entries(&self) -> Result<Vec<(K, BTreeSet<V>)>, ObjectError> {
        let mut entries = self.handle.look(All {}).await?;
        if self.handle.is_remote() {
            entries.sort_by(|one: &(K, BTreeSet<V>), other| one.0.cmp(&other.0));
        }
        Ok(entries)
    }
}
