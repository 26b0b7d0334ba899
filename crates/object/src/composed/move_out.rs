//! The call that takes out of a bucket what goes to the one that is split off it.

use ithaca_log::pos::LogPos;
use serde::{Deserialize, Serialize};

use super::shape::Shape;
use crate::collections::{Before, MapState, Name, Value};
use crate::key::{Key, Keys};
use crate::object::Mutator;

/// Removes the keys that another bucket has in a map of so many. It is as short for many keys as for few, so that a bucket of any size is left
/// by one record.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct MoveOut {
    seed: u64,
    buckets: u64,
    bucket: u64,
}

impl MoveOut {
    /// Of what is not of `bucket` in a map of that shape.
    pub(super) fn new(shape: &Shape, bucket: u64) -> Self {
        Self { seed: shape.seed, buckets: shape.buckets, bucket }
    }
}

impl<K: Name, V: Value> Mutator<MapState<K, V>> for MoveOut {
    const NAME: &'static str = "move_out";
    type Output = ();

    fn keys(&self) -> Keys {
        Keys::whole()
    }

    fn apply(self, map: &mut MapState<K, V>, _: LogPos, undo: &mut Vec<Before<K, V>>) {
        let shape = Shape { seed: self.seed, buckets: self.buckets.max(1), ..Shape::default() };
        let goes = |key: &&K| shape.bucket_of(&Key::of(*key)) != self.bucket;
        let keys: Vec<K> = map.entries().keys().filter(goes).cloned().collect();
        for key in keys {
            map.change(key, None, undo);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collections::Put;
    use crate::object::Object;
    use crate::remote::any::Any;

    #[test]
    fn the_same_keys_go_whether_their_type_is_known_or_not_and_come_back() {
        // A node that keeps the bucket and does not know its keys would be stopped by the next digest.
        let mut known = MapState::<(i16, String), u8>::default();
        for number in -300..300 {
            let put = Put { key: (number, format!("of {number}")), value: 1 };
            put.apply(&mut known, LogPos(1), &mut Vec::new());
        }
        let bytes = rmp_serde::to_vec_named(&known).expect("it encodes");
        let mut any: MapState<Any, Any> = rmp_serde::from_slice(&bytes).expect("it decodes");
        let (before, mut undo) = (known.digest(), Vec::new());
        let shape = Shape { seed: 9, buckets: 3, ..Shape::default() };
        let call = MoveOut::new(&shape, 0);
        call.apply(&mut known, LogPos(2), &mut undo);
        call.apply(&mut any, LogPos(2), &mut Vec::new());
        assert!(!known.is_empty() && known.len() < 600 && known.digest() == any.digest());
        assert!(known.entries().keys().all(|key| shape.bucket_of(&Key::of(key)) == 0));
        undo.iter_mut().rev().for_each(|undo| known.exchange(undo));
        assert_eq!((known.len(), known.digest()), (600, before));
    }
}
