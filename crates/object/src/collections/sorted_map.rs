//! A map with an order: ranges of keys, the first and the last.

use std::ops::RangeBounds;

use ithaca_log::pos::LogPos;

use super::map::keyed;
use super::{All, Get, Has, MapState, Name, Placed, Put, Remove, Replaced, Value, counted, handle};
use crate::error::ObjectError;
use crate::key::Key;

handle! {
    /// A map that is asked for ranges of its keys. It has the state of a [`Map`](super::Map). A transaction that reads a range conflicts
    /// with every change of the map, because a key may come into the range that was not there.
    SortedMap<K: Name, V: Value>, MapState<K, V>
}

keyed! { SortedMap }

impl<K: Name, V: Value> SortedMap<K, V> {
    /// The keys of a range and their values, in order, at most `limit` of them. A range whose start lies after its end is empty.
    pub async fn range(&self, range: impl RangeBounds<K>, limit: usize) -> Result<Vec<(K, V)>, ObjectError> {
        let read = |map: &MapState<K, V>| {
            let found = map.range((range.start_bound(), range.end_bound())).take(limit);
            found.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        self.handle.read(Key::all, read).await
    }

    /// The first key and its value.
    pub async fn first(&self) -> Result<Option<(K, V)>, ObjectError> {
        self.handle
            .read(Key::all, |map| map.entries().first_key_value().map(|(key, placed)| owned(key, placed)))
            .await
    }

    /// The last key and its value.
    pub async fn last(&self) -> Result<Option<(K, V)>, ObjectError> {
        self.handle
            .read(Key::all, |map| map.entries().last_key_value().map(|(key, placed)| owned(key, placed)))
            .await
    }
}

fn owned<K: Clone, V: Clone>(key: &K, placed: &Placed<V>) -> (K, V) {
    (key.clone(), placed.value.clone())
}
