//! The shape of a hashed map: how many buckets it has, and which ones they are.

use ithaca_log::pos::LogPos;
use serde::{Deserialize, Serialize};

use super::permutation::permuted;
use crate::access::{Access, Accessor};
use crate::key::{Key, Keys, Parts};
use crate::object::{Method, Mutator, Object};

/// The state. Without buckets the map has never been changed, and is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shape {
    /// What the permutation of keys depends on.
    pub(super) seed: u64,
    /// How often the map was cleared: each time its buckets are new ones.
    pub(super) generation: u64,
    /// How many buckets a map begins with.
    pub(super) first: u64,
    /// How many it has now.
    pub(super) buckets: u64,
}

impl Shape {
    /// The bucket of a key, which there is: by as many low bits as address all buckets, or one less where that is a bucket that is not
    /// split off yet.
    pub(super) fn bucket_of(&self, key: &Key) -> u64 {
        let hash = permuted(self.seed, key.hash().0);
        let low = hash & (self.buckets.next_power_of_two() - 1);
        if low < self.buckets { low } else { low & (self.buckets.next_power_of_two() / 2 - 1) }
    }

    /// The shape with one bucket more, and the bucket that it is split off.
    pub(super) fn grown(&self) -> (Self, u64) {
        let grown = Self { buckets: self.buckets + 1, ..*self };
        let whole = grown.buckets.next_power_of_two() / 2;
        (grown, self.buckets - whole)
    }

    /// The names of all buckets.
    pub(super) fn names(&self) -> Vec<String> {
        (0..self.buckets).map(|bucket| self.name_of(bucket)).collect()
    }

    /// The name of a bucket within the map.
    pub(super) fn name_of(&self, bucket: u64) -> String {
        format!("bucket {bucket} of generation {}", self.generation)
    }
}

impl Object for Shape {
    const TYPE: &'static str = "shape of a hashed map";
    const METHODS: &'static [Method<Self>] = &[Method::of::<SetShape>()];
    const ACCESSORS: &'static [Access<Self>] = &[Access::of::<Now>()];
    type Undo = Self;
    const IS_SHORT: bool = true;

    fn exchange(&mut self, undo: &mut Self) {
        std::mem::swap(self, undo);
    }
}

/// Gives a map another shape.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct SetShape {
    /// The new one.
    pub(super) shape: Shape,
}

impl Mutator<Shape> for SetShape {
    const NAME: &'static str = "set_shape";
    type Output = ();

    fn keys(&self) -> Keys {
        Keys::whole()
    }

    fn apply(self, shape: &mut Shape, _: LogPos, undo: &mut Vec<Shape>) {
        undo.push(std::mem::replace(shape, self.shape));
    }
}

/// The shape as it is.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Now {}

impl Accessor<Shape> for Now {
    const NAME: &'static str = "now";
    type Output = Shape;

    fn keys(&self) -> Parts {
        Key::all().into()
    }

    fn read(&self, shape: &Shape) -> Shape {
        *shape
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stays_in_its_bucket_or_goes_to_the_one_that_is_split_off() {
        let keys: Vec<Key> = (0..500u64).map(|number| Key::of(&number)).collect();
        for first in [1, 2, 5, 16] {
            let mut shape = Shape { seed: 3, generation: 0, first, buckets: first };
            for _ in 0..70 {
                let (grown, split) = shape.grown();
                for key in &keys {
                    let (before, after) = (shape.bucket_of(key), grown.bucket_of(key));
                    assert!(before < shape.buckets && after < grown.buckets);
                    assert!(before == after || (before == split && after == shape.buckets), "{shape:?}");
                }
                shape = grown;
            }
        }
    }
}
