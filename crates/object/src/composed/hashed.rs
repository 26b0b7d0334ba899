//! A map whose keys are spread over buckets, each a map of its own.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use ithaca_log::pos::{LogPos, StreamId};

use super::shape::{SetShape, Shape};
use super::{Composed, Moment};
use crate::collections::{MapState, Name, Put, Remove, Value};
use crate::error::ObjectError;
use crate::key::Key;
use crate::limits;
use crate::{Handle, Runtime, Tx};

/// Buckets that a map begins with if nobody says otherwise.
const BUCKETS: u64 = 16;
/// How often whoever only writes looks how large a bucket is.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A large map. A key is looked up in its bucket, and the others are not read. A bucket that has grown over 256 keys makes the map split one: they are
/// split in turn, so that it need not be the same. The size and everything of it are read of all buckets, as of one snapshot; `clear`
/// is one record, whatever there is.
pub struct HashedMap<K: Name, V: Value> {
    shape: Handle<Shape>,
    buckets: Composed<MapState<K, V>>,
    first: u64,
    /// Keys of a bucket from which on a split is tried.
    split_at: Rc<Cell<usize>>,
}

impl<K: Name, V: Value> Clone for HashedMap<K, V> {
    fn clone(&self) -> Self {
        let (shape, buckets) = (self.shape.clone(), self.buckets.clone());
        Self { shape, buckets, first: self.first, split_at: Rc::clone(&self.split_at) }
    }
}

impl<K: Name, V: Value> HashedMap<K, V> {
    /// Opens the one of this name; it is empty if nobody has changed it. Nothing is read yet. Errors: `OtherType`.
    pub fn open(runtime: &Runtime, name: &str) -> Result<Self, ObjectError> {
        Self::open_with(runtime, name, BUCKETS)
    }

    /// The same; if it is new it begins with so many buckets, at least one. How many it has later is its own affair.
    pub fn open_with(runtime: &Runtime, name: &str, buckets: u64) -> Result<Self, ObjectError> {
        let shape = runtime.open(name)?;
        let split_at = Rc::new(Cell::new(limits::BUCKET_SPLIT_COUNT));
        let first = buckets.clamp(1, limits::BUCKETS_MAX_COUNT);
        Ok(Self { shape, buckets: Composed::new(runtime, name), first, split_at })
    }

    /// The same map in a transaction.
    pub fn within(&self, tx: &Tx) -> Self {
        Self { buckets: self.buckets.when(Moment::In(tx.clone())), ..self.clone() }
    }

    /// The same map as it was when it reflected every position of the log below `snapshot`; it can be read only.
    pub fn at(&self, snapshot: LogPos) -> Self {
        Self { buckets: self.buckets.when(Moment::At(snapshot)), ..self.clone() }
    }

    /// The value of `key`.
    pub async fn get(&self, key: &K) -> Result<Option<V>, ObjectError> {
        self.buckets
            .read(async |moment| {
                let Some((_, bucket)) = self.bucket(moment, key).await? else { return Ok(None) };
                let value = |map: &MapState<K, V>| map.entries().get(key).map(|placed| placed.value.clone());
                bucket.read(|| vec![Key::of(key)], value).await
            })
            .await
    }

    /// Gives `key` a value and returns the one that it had.
    pub async fn put(&self, key: K, value: V) -> Result<Option<V>, ObjectError> {
        let change = async |moment: &Moment| {
            let (shape, bucket) = self.bucket_to_change(moment, &key).await?;
            let put = Put { key: key.clone(), value: value.clone() };
            Ok((shape, bucket.call(put).await?))
        };
        let (shape, before) = self.buckets.change(change).await?;
        self.split_if_large(&shape, &key).await;
        Ok(before)
    }

    /// Gives `key` a value without a look at the one that it had.
    pub async fn fast_put(&self, key: K, value: V) -> Result<(), ObjectError> {
        let change = async |moment: &Moment| {
            let (shape, bucket) = self.bucket_to_change(moment, &key).await?;
            bucket.send(Put { key: key.clone(), value: value.clone() }).await?;
            Ok(shape)
        };
        let shape = self.buckets.change(change).await?;
        // Whoever only writes does not read the bucket, but for this, now and then.
        if self.buckets.moment.is_none()
            && let Ok(bucket) = self.child(&shape, &key)
        {
            bucket.stale(LOOK_EVERY).read(Vec::new, |_| ()).await.ok();
        }
        self.split_if_large(&shape, &key).await;
        Ok(())
    }

    /// Removes `key` and returns the value that it had.
    pub async fn remove(&self, key: K) -> Result<Option<V>, ObjectError> {
        let change = async |moment: &Moment| {
            let Some((_, bucket)) = self.bucket(moment, &key).await? else { return Ok(None) };
            bucket.call(Remove { key: key.clone() }).await
        };
        self.buckets.change(change).await
    }

    /// Removes every key, at one position: the map goes on with new buckets.
    pub async fn clear(&self) -> Result<(), ObjectError> {
        let change = async |moment: &Moment| {
            let shape = self.shape(moment).await?;
            let shape = Shape { generation: shape.generation + 1, buckets: shape.first, ..shape };
            moment.of(&self.shape).send(SetShape { shape }).await.map(|_| ())
        };
        self.buckets.change(change).await
    }

    /// How many keys there are, in all buckets as of one snapshot.
    pub async fn len(&self) -> Result<usize, ObjectError> {
        let count = async |moment: &Moment| {
            let names = self.shape(moment).await?.names();
            let counts = self.buckets.look_at(moment, &names, |map| map.entries().len()).await?;
            Ok(counts.into_iter().sum())
        };
        self.buckets.read(count).await
    }

    /// Whether there is no key.
    pub async fn is_empty(&self) -> Result<bool, ObjectError> {
        Ok(self.len().await? == 0)
    }

    /// Every key and its value, in the order of the keys, as of one snapshot.
    pub async fn entries(&self) -> Result<Vec<(K, V)>, ObjectError> {
        let all = async |moment: &Moment| {
            let names = self.shape(moment).await?.names();
            Ok(self.buckets.look_at(moment, &names, owned).await?.concat())
        };
        let mut entries = self.buckets.read(all).await?;
        entries.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(entries)
    }

    /// How many buckets it has; none if it was never changed.
    pub async fn bucket_count(&self) -> Result<u64, ObjectError> {
        self.buckets.read(async |moment| Ok(self.shape(moment).await?.buckets)).await
    }

    async fn shape(&self, moment: &Moment) -> Result<Shape, ObjectError> {
        moment.of(&self.shape).read(|| vec![Key::all()], |shape| *shape).await
    }

    /// The bucket of a key; `None` if there is none yet.
    async fn bucket(
        &self,
        moment: &Moment,
        key: &K,
    ) -> Result<Option<(Shape, Handle<MapState<K, V>>)>, ObjectError> {
        let shape = self.shape(moment).await?;
        if shape.buckets == 0 {
            return Ok(None);
        }
        let bucket = self.child(&shape, key)?;
        Ok(Some((shape, moment.of(&bucket))))
    }

    /// The bucket of a key of a map of that shape, as of now.
    fn child(&self, shape: &Shape, key: &K) -> Result<Handle<MapState<K, V>>, ObjectError> {
        self.buckets.child(&shape.name_of(shape.bucket_of(&Key::of(key))))
    }

    /// The bucket of a key to change it; the map gets its shape with its first change.
    async fn bucket_to_change(
        &self,
        moment: &Moment,
        key: &K,
    ) -> Result<(Shape, Handle<MapState<K, V>>), ObjectError> {
        if let Some(found) = self.bucket(moment, key).await? {
            return Ok(found);
        }
        let StreamId(stream) = self.shape.stream();
        let known = self.shape(moment).await?;
        let shape = Shape { seed: stream as u64, first: self.first, buckets: self.first, ..known };
        moment.of(&self.shape).send(SetShape { shape }).await?;
        let bucket = self.child(&shape, key)?;
        Ok((shape, moment.of(&bucket)))
    }

    /// Splits the next bucket if that of `key` is large by what is in memory. A split that does not come about is for the next one who
    /// puts something; nothing depends on it.
    async fn split_if_large(&self, shape: &Shape, key: &K) {
        if self.buckets.moment.is_some() || shape.buckets >= limits::BUCKETS_MAX_COUNT {
            return;
        }
        let Ok(bucket) = self.child(shape, key) else { return };
        let Ok(len) = bucket.in_memory(|map| map.entries().len()) else { return };
        if len <= self.split_at.get() {
            return;
        }
        match self.split(shape.buckets).await {
            // What does not fit into a record now will not soon.
            Err(ObjectError::Full(_)) => self.split_at.set(self.split_at.get().saturating_mul(2)),
            _ => self.split_at.set(limits::BUCKET_SPLIT_COUNT),
        }
    }

    /// Splits one bucket off, if there are still as many as were seen.
    async fn split(&self, buckets: u64) -> Result<(), ObjectError> {
        let change = async |moment: &Moment| {
            let shape = self.shape(moment).await?;
            if shape.buckets != buckets {
                return Ok(());
            }
            let (grown, split) = shape.grown();
            let source = moment.of(&self.buckets.child(&shape.name_of(split))?);
            let target = moment.of(&self.buckets.child(&shape.name_of(shape.buckets))?);
            for (key, value) in source.read(|| vec![Key::all()], owned).await? {
                if grown.bucket_of(&Key::of(&key)) != split {
                    source.send(Remove { key: key.clone() }).await?;
                    target.send(Put { key, value }).await?;
                }
            }
            moment.of(&self.shape).send(SetShape { shape: grown }).await.map(|_| ())
        };
        self.buckets.change(change).await
    }
}

fn owned<K: Name, V: Value>(map: &MapState<K, V>) -> Vec<(K, V)> {
    map.entries().iter().map(|(key, placed)| (key.clone(), placed.value.clone())).collect()
}
