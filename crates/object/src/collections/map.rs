//! Maps from keys to values: what all of them do.

use ithaca_log::pos::LogPos;

use super::map_state::SetIf;
use super::{All, Get, Has, MapState, MultiGet, Name, Placed, Put, Remove, Value, counted, handle};
use crate::error::ObjectError;
use crate::key::{Key, Parts};
use crate::runtime::Handle;

handle! {
    /// A map from keys to values. Transactions conflict only over the same key; those that ask how many there are, or for all of
    /// them, conflict with every change.
    Map<K: Name, V: Value>, MapState<K, V>
}

/// What became of a change that was to be made only if a key was of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replaced<V> {
    /// It was made: at this log position, which is the key's version now if it has a value; `None` in a transaction.
    Done(Option<LogPos>),
    /// This was there instead, or nothing, and nothing was changed.
    Differs(Option<Placed<V>>),
}

/// The methods of maps, whether they have an order or not.
macro_rules! keyed {
    ($name:ident) => {
        counted! { $name<K: Name, V: Value> }

        impl<K: Name, V: Value> $name<K, V> {
            /// The value of `key`.
            pub async fn get(&self, key: &K) -> Result<Option<V>, ObjectError> {
                Ok(self.get_placed(key).await?.map(|placed| placed.value))
            }

            /// The value of `key`, and the log position of the record that put it there: its version.
            pub async fn get_placed(&self, key: &K) -> Result<Option<Placed<V>>, ObjectError> {
                self.handle.look(Get { key: key.clone() }).await
            }

            /// The values of several keys, in their order, as of one moment. Of many keys that is far cheaper than to get each.
            pub async fn multi_get(&self, keys: &[K]) -> Result<Vec<Option<V>>, ObjectError> {
                $crate::collections::map::multi_get(&self.handle, keys).await
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
            pub fn fast_put(
                &self,
                key: K,
                value: V,
            ) -> impl Future<Output = Result<Option<LogPos>, ObjectError>> {
                self.handle.send(Put { key, value })
            }

            /// Gives several keys values, or takes them away where there is none, at one log position, which it returns: everybody sees all of it
            /// or nothing. Nothing of the map is read. Of a key that is named twice the last one counts. `None` in a transaction, and for no keys.
            ///
            /// Errors: as of any call; `Full` if they are too many or too large for one record, and then nothing happens.
            pub async fn multi_put(&self, puts: Vec<(K, Option<V>)>) -> Result<Option<LogPos>, ObjectError> {
                $crate::collections::map::multi_put(&self.handle, puts).await
            }

            /// Gives `key` a value if it has none. It is decided where the call stands in the log, so nothing can come between, and there is
            /// nothing to be tried again.
            pub async fn put_if_absent(&self, key: K, value: V) -> Result<Replaced<V>, ObjectError> {
                $crate::collections::map::set_if(&self.handle, key, None, Some(value)).await
            }

            /// Gives `key` another value if the one that it has is of `version`, as [`get_placed`](Self::get_placed) has told: nobody has put
            /// one since, nor removed it. Decided as of [`put_if_absent`](Self::put_if_absent).
            pub async fn replace(
                &self,
                key: K,
                version: LogPos,
                value: V,
            ) -> Result<Replaced<V>, ObjectError> {
                $crate::collections::map::set_if(&self.handle, key, Some(version), Some(value)).await
            }

            /// Removes `key` if its value is of `version`. Decided as of [`put_if_absent`](Self::put_if_absent).
            pub async fn remove_if(&self, key: K, version: LogPos) -> Result<Replaced<V>, ObjectError> {
                $crate::collections::map::set_if(&self.handle, key, Some(version), None).await
            }

            /// Removes `key` and returns the value that it had.
            pub async fn remove(&self, key: K) -> Result<Option<V>, ObjectError> {
                self.handle.call(Remove { key }).await
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
    };
}
pub(super) use keyed;

keyed! { Map }

pub(super) async fn multi_get<K: Name, V: Value>(
    handle: &Handle<MapState<K, V>>,
    keys: &[K],
) -> Result<Vec<Option<V>>, ObjectError> {
    if handle.is_remote() {
        let found = handle.look(MultiGet { keys: keys.to_vec() }).await?;
        return Ok(found.into_iter().map(|placed| placed.map(|placed| placed.value)).collect());
    }
    let read = |map: &MapState<K, V>| {
        // All of them are found before the first is copied: a count of who shares a value would have the next search wait for its memory.
        let found: Vec<Option<&V>> = keys.iter().map(|key| map.get(key)).collect();
        found.into_iter().map(Option::<&V>::cloned).collect()
    };
    handle.read(|| Parts::of(keys.iter().map(Key::of)), read).await
}

pub(super) async fn multi_put<K: Name, V: Value>(
    handle: &Handle<MapState<K, V>>,
    puts: Vec<(K, Option<V>)>,
) -> Result<Option<LogPos>, ObjectError> {
    let send = async |handle: &Handle<MapState<K, V>>| {
        for (key, value) in puts {
            match value {
                Some(value) => handle.send(Put { key, value }).await?,
                None => handle.send(Remove { key }).await?,
            };
        }
        Ok(())
    };
    handle.send_all(send).await
}

/// Gives `key` this value, or none, if it is of this version, `None` for no value.
pub(super) async fn set_if<K: Name, V: Value>(
    handle: &Handle<MapState<K, V>>,
    key: K,
    version: Option<LogPos>,
    value: Option<V>,
) -> Result<Replaced<V>, ObjectError> {
    if !handle.is_in_transaction() {
        let set =
            SetIf { key, version: version.map(|version| version.0), value: value.into_iter().collect() };
        let (done, pos) = handle.call_placed(set).await?;
        return Ok(done.map_or_else(Replaced::Differs, |()| Replaced::Done(pos)));
    }
    // Decided here and not where the transaction will stand: what it has put itself is of another version there.
    let found = handle.look(Get { key: key.clone() }).await?;
    if found.as_ref().map(|placed| LogPos(placed.pos)) != version {
        return Ok(Replaced::Differs(found));
    }
    match value {
        Some(value) => handle.send(Put { key, value }).await?,
        None => handle.send(Remove { key }).await?,
    };
    Ok(Replaced::Done(None))
}
