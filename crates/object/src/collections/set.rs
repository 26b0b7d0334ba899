//! A set.

use super::{All, Has, MapState, Name, Put, Remove, counted, handle};
use crate::error::ObjectError;

handle! {
    /// A set of values: a map to nothing. Transactions conflict only over the same value.
    Set<T: Name>, MapState<T, ()>
}

counted! { Set<T: Name> }

impl<T: Name> Set<T> {
    /// Whether `value` is in it.
    pub async fn contains(&self, value: &T) -> Result<bool, ObjectError> {
        self.handle.look(Has { key: value.clone() }).await
    }

    /// Puts `value` in. False if it was there.
    pub async fn insert(&self, value: T) -> Result<bool, ObjectError> {
        Ok(self.handle.call(Put { key: value, value: () }).await?.is_none())
    }

    /// Takes `value` out. False if it was not there.
    pub async fn remove(&self, value: T) -> Result<bool, ObjectError> {
        Ok(self.handle.call(Remove { key: value }).await?.is_some())
    }

    /// Every value, in order.
    pub async fn values(&self) -> Result<Vec<T>, ObjectError> {
        let mut values: Vec<T> =
            self.handle.look(All {}).await?.into_iter().map(|(value, ())| value).collect();
        if self.handle.is_remote() {
            values.sort();
        }
        Ok(values)
    }
}
