//! What can be asked of collections by name, wherever their states are.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{CounterState, ListState, MapState, MultiMapState, Name, Placed, RegisterState, Value};
use crate::access::Accessor;
use crate::key::{Key, Parts};

/// The value of a key of a map, and where in the log it was put.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Get<K> {
    /// The key.
    pub key: K,
}

impl<K: Name, V: Value> Accessor<MapState<K, V>> for Get<K> {
    const NAME: &'static str = "get";
    type Output = Option<Placed<V>>;

    fn keys(&self) -> Parts {
        Key::of(&self.key).into()
    }

    fn read(&self, map: &MapState<K, V>) -> Option<Placed<V>> {
        map.entries().get(&self.key).cloned()
    }
}

/// The values of some keys of a map, in their order, each with where it was put.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MultiGet<K> {
    /// The keys.
    pub keys: Vec<K>,
}

impl<K: Name, V: Value> Accessor<MapState<K, V>> for MultiGet<K> {
    const NAME: &'static str = "multi_get";
    type Output = Vec<Option<Placed<V>>>;

    fn keys(&self) -> Parts {
        Parts::of(self.keys.iter().map(Key::of))
    }

    fn read(&self, map: &MapState<K, V>) -> Vec<Option<Placed<V>>> {
        self.keys.iter().map(|key| map.entries().get(key).cloned()).collect()
    }
}

/// Whether a map has a key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Has<K> {
    /// The key.
    pub key: K,
}

impl<K: Name, V: Value> Accessor<MapState<K, V>> for Has<K> {
    const NAME: &'static str = "contains";
    type Output = bool;

    fn keys(&self) -> Parts {
        Key::of(&self.key).into()
    }

    fn read(&self, map: &MapState<K, V>) -> bool {
        map.entries().contains_key(&self.key)
    }
}

/// How many keys or items there are.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Len {}

impl<K: Name, V: Value> Accessor<MapState<K, V>> for Len {
    const NAME: &'static str = "len";
    type Output = usize;

    fn keys(&self) -> Parts {
        Key::all().into()
    }

    fn read(&self, map: &MapState<K, V>) -> usize {
        map.entries().len()
    }
}

impl<K: Name, V: Name> Accessor<MultiMapState<K, V>> for Len {
    const NAME: &'static str = "len";
    type Output = usize;

    fn keys(&self) -> Parts {
        Key::all().into()
    }

    fn read(&self, map: &MultiMapState<K, V>) -> usize {
        map.entries().len()
    }
}

impl<T: Value> Accessor<ListState<T>> for Len {
    const NAME: &'static str = "len";
    type Output = usize;

    fn keys(&self) -> Parts {
        Key::all().into()
    }

    fn read(&self, list: &ListState<T>) -> usize {
        list.items().len()
    }
}

/// Everything: keys with their values, or items in order. Keys come in any order.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct All {}

impl<K: Name, V: Value> Accessor<MapState<K, V>> for All {
    const NAME: &'static str = "all";
    type Output = Vec<(K, V)>;

    fn keys(&self) -> Parts {
        Key::all().into()
    }

    fn read(&self, map: &MapState<K, V>) -> Vec<(K, V)> {
        map.entries().iter().map(|(key, placed)| (key.clone(), placed.value.clone())).collect()
    }
}

impl<K: Name, V: Name> Accessor<MultiMapState<K, V>> for All {
    const NAME: &'static str = "all";
    type Output = Vec<(K, BTreeSet<V>)>;

    fn keys(&self) -> Parts {
        Key::all().into()
    }

    fn read(&self, map: &MultiMapState<K, V>) -> Vec<(K, BTreeSet<V>)> {
        map.entries().iter().map(|(key, values)| (key.clone(), values.clone())).collect()
    }
}

impl<T: Value> Accessor<ListState<T>> for All {
    const NAME: &'static str = "all";
    type Output = Vec<T>;

    fn keys(&self) -> Parts {
        Key::all().into()
    }

    fn read(&self, list: &ListState<T>) -> Vec<T> {
        list.items().iter().cloned().collect()
    }
}

/// An item of a list.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Item {
    /// How many come before it; or, from the back, how many come after it.
    pub at: u64,
    /// Whether it is counted from the back.
    pub is_from_back: bool,
}

impl<T: Value> Accessor<ListState<T>> for Item {
    const NAME: &'static str = "item";
    /// The item, or nothing: an item that is itself none is one.
    type Output = Vec<T>;

    fn keys(&self) -> Parts {
        Key::all().into()
    }

    fn read(&self, list: &ListState<T>) -> Vec<T> {
        let at = usize::try_from(self.at).unwrap_or(usize::MAX);
        let item = if self.is_from_back { list.items().iter().rev().nth(at) } else { list.items().get(at) };
        item.cloned().into_iter().collect()
    }
}

/// The values of a key of a multimap.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Values<K> {
    /// The key.
    pub key: K,
}

impl<K: Name, V: Name> Accessor<MultiMapState<K, V>> for Values<K> {
    const NAME: &'static str = "values";
    type Output = BTreeSet<V>;

    fn keys(&self) -> Parts {
        Key::of(&self.key).into()
    }

    fn read(&self, map: &MultiMapState<K, V>) -> BTreeSet<V> {
        map.entries().get(&self.key).cloned().unwrap_or_default()
    }
}

/// What a counter stands at, or a register holds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Now {}

impl Accessor<CounterState> for Now {
    const NAME: &'static str = "now";
    type Output = i64;

    fn keys(&self) -> Parts {
        Key::of(&"value").into()
    }

    fn read(&self, counter: &CounterState) -> i64 {
        counter.value
    }
}

impl<T: Value> Accessor<RegisterState<T>> for Now {
    const NAME: &'static str = "now";
    type Output = Option<T>;

    fn keys(&self) -> Parts {
        Key::of(&"value").into()
    }

    fn read(&self, register: &RegisterState<T>) -> Option<T> {
        register.value().cloned()
    }
}
