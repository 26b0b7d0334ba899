//! A map from keys to values.

use ithaca_log::pos::LogPos;

use super::{All, Clear, Get, Has, Len, MapState, Name, Placed, Put, Remove, Value, handle};
use crate::error::ObjectError;

handle! {
    /// A map from keys to values. Transactions conflict only over the same key; those that ask how many there are, or for all of
    /// them, conflict with every change.
    Map<K: Name, V: Value>, MapState<K, V>
}

impl<K: Name, V: Value> Map<K, V> {
    /// The value of `key`.
    pub async fn get(&self, key: &K) -> Result<Option<V>, ObjectError> {
        Ok(self.get_placed(key).await?.map(|placed| placed.value))
    }

    /// The value of `key`, and the log position of the record that put it there.
    pub async fn get_placed(&self, key: &K) -> Result<Option<Placed<V>>, ObjectError> {
        self.handle.look(Get { key: key.clone() }).await
    }

    /// Whether there is a value for `key`.
    pub fn contains_key(&self, key: &K) -> impl Future<Output = Result<bool, ObjectError>> {
        self.handle.look(Has { key: key.clone() })
    }

    /// Gives `key` a value and returns the one that it had. In a transaction that counts as a read of the key.
    pub fn put(&self, key: K, value: V) -> impl Future<Output = Result<Option<V>, ObjectError>> {
        self.handle.call(Put { key, value })
    }

    /// Gives `key` a value without a look at the one that it had, so that nothing of the map is read. Returns the log position; `None`
    /// in a transaction.
    pub fn fast_put(&self, key: K, value: V) -> impl Future<Output = Result<Option<LogPos>, ObjectError>> {
        self.handle.send(Put { key, value })
    }

    /// Removes `key` and returns the value that it had.
    pub async fn remove(&self, key: K) -> Result<Option<V>, ObjectError> {
        self.handle.call(Remove { key }).await
    }

    /// Removes every key.
    pub async fn clear(&self) -> Result<(), ObjectError> {
        self.handle.send(Clear {}).await.map(|_| ())
    }

    /// How many keys there are.
    pub async fn len(&self) -> Result<usize, ObjectError> {
        self.handle.look(Len {}).await
    }

    /// Whether there is no key.
    pub async fn is_empty(&self) -> Result<bool, ObjectError> {
        Ok(self.len().await? == 0)
    }

    /// Every key and its value, in the order of the keys, as of one moment.
    pub async fn entries(&self) -> Result<Vec<(K, V)>, ObjectError> {
        let mut entries = self.handle.look(All {}).await?;
        if self.handle.is_remote() {
            entries.sort_by(|one: &(K, V), other| one.0.cmp(&other.0));
        }
        Ok(entries)
    }
}
