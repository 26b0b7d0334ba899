//! A map whose keys are spread over buckets, each a map of its own.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ithaca_log::pos::{LogPos, StreamId};

use super::move_out::MoveOut;
use super::shape::{Now, SetShape, Shape};
use super::{Composed, Moment};
use crate::access::encoded_bytes;
use crate::collections::{All, Get, Len, MapState, Name, Put, Remove, Value};
use crate::error::ObjectError;
use crate::in_order::InOrder;
use crate::key::Key;
use crate::limits;
use crate::remote::any::Any;
use crate::{Handle, Isolation, Runtime, Tx};

/// Buckets that a map begins with if nobody says otherwise.
const BUCKETS: u64 = 16;
/// How often a key is looked for without a transaction, if the map gets another shape each time.
const LOOKS_MAX: u32 = 4;
/// How often whoever only writes looks how large a bucket is;
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// in transactions after one of so many puts, as each commit that does waits for it.
const LOOK_OF: u64 = 64;

/// A large map. A key is looked up in its bucket, and the others are not read. A bucket that has grown over 256 keys makes the map split one: they are
/// split in turn, so that it need not be the same. The size and everything of it are read of all buckets, as of one snapshot; `clear`
/// is one record, whatever there is.
pub struct HashedMap<K: Name, V: Value> {
    shape: Handle<Shape>,
    buckets: Composed<MapState<K, V>>,
    first: u64,
    /// A bucket of more keys is large.
    split_at: usize,
    /// The shape that was seen last, and the position below which that reflects everything.
    seen: Rc<Cell<Option<(Shape, LogPos)>>>,
}

impl<K: Name, V: Value> Clone for HashedMap<K, V> {
    fn clone(&self) -> Self {
        let (shape, buckets, first) = (self.shape.clone(), self.buckets.clone(), self.first);
        Self { shape, buckets, first, split_at: self.split_at, seen: Rc::clone(&self.seen) }
    }
}

impl<K: Name, V: Value> HashedMap<K, V> {
    /// Opens the one of this name; it is empty if nobody has changed it. Nothing is read yet. Errors: `OtherType`.
    pub fn open(runtime: &Runtime, name: &str) -> Result<Self, ObjectError> {
        Self::open_with(runtime, name, BUCKETS)
    }

    /// The same; if it is new it begins with so many buckets, at least one. How many it has later is its own affair.
    pub fn open_with(runtime: &Runtime, name: &str, buckets: u64) -> Result<Self, ObjectError> {
        let first = buckets.clamp(1, limits::BUCKETS_MAX_COUNT);
        Ok(Self { first, ..Self::of(runtime.open(name)?, Composed::new(runtime, name)) })
    }

    /// The same with its state at nodes of the cluster, each bucket at one of its own, which answer all reads: for programs that read little
    /// of it. (docs/protocol/composed.md)
    pub fn open_remote(runtime: &Runtime, name: &str) -> Result<Self, ObjectError> {
        Ok(Self::of(runtime.open_remote(name)?, Composed::remote(runtime, name)))
    }

    fn of(shape: Handle<Shape>, buckets: Composed<MapState<K, V>>) -> Self {
        let split_at = limits::BUCKET_SPLIT_COUNT;
        Self { shape, buckets, first: BUCKETS, split_at, seen: Rc::default() }
    }

    /// The same map; what this program puts makes it split a bucket when one has more than so many keys. Small buckets are opened sooner,
    /// and there are more of them.
    pub fn splitting_at(self, keys: usize) -> Self {
        Self { split_at: keys, ..self }
    }

    /// The same map in a transaction.
    pub fn within(&self, tx: &Tx) -> Self {
        Self { buckets: self.buckets.when(Moment::In(tx.clone())), ..self.clone() }
    }

    /// The same map as it was when it reflected every position of the log below `snapshot`; it can be read only.
    pub fn at(&self, snapshot: LogPos) -> Self {
        Self { buckets: self.buckets.when(Moment::At(snapshot)), ..self.clone() }
    }

    /// The value of `key`. Outside of a transaction it is linearizable, and takes one question to the sequencer if nobody has changed the
    /// bucket since it was read here.
    pub async fn get(&self, key: &K) -> Result<Option<V>, ObjectError> {
        let newest = match &self.buckets.moment {
            Some(_) => None,
            None => self.get_newest(key).await?,
        };
        match newest {
            Some(value) => Ok(value),
            None => self.buckets.read(async |moment| self.get_of(moment, key).await).await,
        }
    }

    /// The value of `key` as of now; `None` if the map gets another shape all the time. It is looked for by the shape that was seen last. If
    /// that is the shape still when the bucket is read, the value is the map's.
    async fn get_newest(&self, key: &K) -> Result<Option<Option<V>>, ObjectError> {
        for _ in 0..LOOKS_MAX {
            let (shape, upto) = match self.seen.get() {
                Some(seen) => seen,
                None => self.shape.look_placed(Now {}).await?,
            };
            // A map without a shape has no buckets; whichever is asked is empty.
            let bucket = self.child(&Shape { buckets: shape.buckets.max(1), ..shape }, key)?;
            let found = self.shape.look_beside(upto, &bucket, Get { key: key.clone() }).await?;
            // Others find the map by it, or look for another one.
            self.seen.set(found.is_some().then_some((shape, upto)));
            if let Some(placed) = found {
                return Ok(Some(placed.map(|placed| placed.value)));
            }
        }
        Ok(None)
    }

    async fn get_of(&self, moment: &Moment, key: &K) -> Result<Option<V>, ObjectError> {
        let Some((_, bucket)) = self.bucket(moment, key).await? else { return Ok(None) };
        Ok(bucket.look(Get { key: key.clone() }).await?.map(|placed| placed.value))
    }

    /// Gives `key` a value and returns the one that it had.
    pub async fn put(&self, key: K, value: V) -> Result<Option<V>, ObjectError> {
        let change = async |moment: &Moment| {
            let (shape, bucket) = self.bucket_to_change(moment, &key).await?;
            let put = Put { key: key.clone(), value: value.clone() };
            Ok((shape, bucket.call(put).await?))
        };
        let (shape, before) = self.buckets.change(change).await?;
        self.split_after(shape, key, true).await;
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
        self.split_after(shape, key, false).await;
        Ok(())
    }

    /// Removes `key` and returns the value that it had.
    pub async fn remove(&self, key: K) -> Result<Option<V>, ObjectError> {
        let change = async |moment: &Moment| {
            let Some((_, bucket)) = self.bucket(moment, &key).await? else { return Ok(None) };
            moment.led_by(self.shape.stream(), &[Key::all()]);
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

    /// How many keys there are, in all buckets as of one snapshot. Every bucket is read for it, one for each 256 keys or fewer, and those that
    /// are not in memory from the log, values and all, as for [`entries`](Self::entries); 1,024 of them stay open. Of a map that was opened
    /// remotely each bucket's node tells a number. In a transaction it conflicts with every change of the map. No count is kept beside the
    /// buckets: each put would have to look whether its key is new, which [`fast_put`](Self::fast_put) does not.
    pub async fn len(&self) -> Result<usize, ObjectError> {
        let count = async |moment: &Moment| {
            let names = self.shape(moment).await?.names();
            let counts = self.buckets.look_at(moment, &names, Len {}).await?;
            Ok(counts.into_iter().sum())
        };
        self.buckets.read(count).await
    }

    /// Whether there is no key. It reads what [`len`](Self::len) reads.
    pub async fn is_empty(&self) -> Result<bool, ObjectError> {
        Ok(self.len().await? == 0)
    }

    /// Every key and its value, in the order of the keys, as of one snapshot.
    pub async fn entries(&self) -> Result<Vec<(K, V)>, ObjectError> {
        let all = async |moment: &Moment| {
            let names = self.shape(moment).await?.names();
            Ok(self.buckets.look_at(moment, &names, All {}).await?.concat())
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
        moment.of(&self.shape).look(Now {}).await
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
        moment.led_by(self.shape.stream(), &[Key::all()]);
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

    /// Splits the next bucket if that of `key`, which was put, is large; in a transaction once that is committed.
    async fn split_after(&self, shape: Shape, key: K, is_seen: bool) {
        match &self.buckets.moment {
            Some(Moment::In(tx)) => {
                let Ok(bucket) = self.child(&shape, &key) else { return };
                let map = Self { buckets: self.buckets.now(), ..self.clone() };
                let looks = !is_seen && self.is_look_due();
                let then = async move {
                    // What is done before it may be a split.
                    let shape = map
                        .shape
                        .in_memory(|shape| *shape)
                        .ok()
                        .filter(|now| now.buckets > 0)
                        .unwrap_or(shape);
                    map.split_if_large(&shape, &key, !looks).await;
                };
                tx.after_commit(bucket.stream(), looks, then);
            }
            _ => self.split_if_large(&shape, &key, is_seen).await,
        }
    }

    /// Whether a put in a transaction is the one of many that looks at its bucket. How large one is at a node is asked for elsewhere.
    fn is_look_due(&self) -> bool {
        let unseen = &self.buckets.unseen;
        if !self.shape.is_remote() {
            unseen.set((unseen.get() + 1) % LOOK_OF);
        }
        unseen.get() == 0
    }

    /// Splits the next bucket if that of `key` is large. A split that does not come about is for the next one who puts something; nothing
    /// depends on it.
    async fn split_if_large(&self, shape: &Shape, key: &K, is_seen: bool) {
        let Ok(bucket) = self.child(shape, key) else { return };
        // Whoever only writes does not read the bucket, but for this, now and then.
        if !is_seen && !bucket.is_remote() {
            bucket.stale(LOOK_EVERY).read(Vec::new, |_| ()).await.ok();
        }
        let splits = &self.buckets.splits;
        let len = self.buckets.size(&bucket, |map| map.entries().len(), bucket.look(Len {})).await;
        let is_large = len.is_some_and(|len| len > splits.above(self.split_at));
        if !is_large || shape.buckets >= limits::BUCKETS_MAX_COUNT {
            return;
        }
        let Some(under_way) = splits.begin() else { return };
        under_way.ended(&self.split(shape.buckets).await, false);
    }

    /// Splits one bucket off, if there are still as many as were seen; or brings that a step further, if it takes more than one record.
    async fn split(&self, buckets: u64) -> Result<(), ObjectError> {
        let last = async |moment: &Moment| self.split_step(moment, buckets, true).await;
        if self.buckets.split(Isolation::Strict, last).await? {
            return Ok(());
        }
        // Copies that are old by then are made again; but nobody must have split it off meanwhile.
        let copy = async |moment: &Moment| self.split_step(moment, buckets, false).await;
        self.buckets.split(Isolation::Snapshot, copy).await.map(|_| ())
    }

    /// The last step takes the keys out of one bucket, sees to it that the new one has them, and has the shape lead there. False, and nothing is
    /// done, if the new one lacks too much; each other step copies a part of that.
    async fn split_step(&self, moment: &Moment, buckets: u64, is_last: bool) -> Result<bool, ObjectError> {
        let shape = self.shape(moment).await?;
        moment.led_by(self.shape.stream(), &[Key::all()]);
        if shape.buckets != buckets {
            return Ok(true);
        }
        let (grown, split) = shape.grown();
        let source = moment.of(&self.buckets.child(&shape.name_of(split))?);
        let target = moment.of(&self.buckets.child(&shape.name_of(shape.buckets))?);
        let goes = |(key, _): &(K, V)| grown.bucket_of(&Key::of(key)) != split;
        let moved = source.look_to_move(All {}).await?.into_iter().filter(goes).collect();
        let lacks = lacks(moved, target.look_to_move(All {}).await?);
        let count = fitting(&lacks, self.buckets.record_bytes());
        if is_last && count < lacks.len() {
            return Ok(false);
        }
        // One that is longer than that has a record to itself.
        for (key, value) in lacks.into_iter().take(count.max(1)) {
            match value {
                Some(value) => target.send(Put { key, value }).await?,
                None => target.send(Remove { key }).await?,
            };
        }
        if is_last {
            source.send(MoveOut::new(&grown, split)).await?;
            moment.of(&self.shape).send(SetShape { shape: grown }).await?;
        }
        Ok(is_last)
    }
}

/// What is to be put, or removed, where `there` is, to have what `moved` is; what is missing comes first.
fn lacks<K: Name, V: Value>(mut moved: BTreeMap<K, V>, there: Vec<(K, V)>) -> Vec<(K, Option<V>)> {
    let mut differs = Vec::new();
    for (key, copy) in there {
        match moved.remove(&key) {
            None => differs.push((key, None)),
            Some(value) if !is_same(&value, &copy) => differs.push((key, Some(value))),
            Some(_) => {}
        }
    }
    let missing = moved.into_iter().map(|(key, value)| (key, Some(value)));
    missing.chain(differs).collect()
}

/// Whether two values have the same encoding but for an order of items that is another one in each program: that of a `HashMap` or
/// `HashSet`, and of names in any map.
fn is_same<V: Value>(one: &V, other: &V) -> bool {
    let encoded = |value: &V| rmp_serde::to_vec_named(&InOrder(value)).ok();
    let (Some(one), Some(other)) = (encoded(one), encoded(other)) else { return false };
    let in_order = |bytes: &[u8]| rmp_serde::from_slice::<Any>(bytes).ok().map(Any::in_order);
    one == other || in_order(&one).is_some_and(|one| Some(one) == in_order(&other))
}

/// How many of them a record takes with what else a split changes.
fn fitting<K: Name, V: Value>(lacks: &[(K, Option<V>)], record_bytes: usize) -> usize {
    let mut bytes = 0;
    let fits = |lack: &&(K, Option<V>)| {
        bytes += encoded_bytes(lack).unwrap_or(0) + limits::MOVE_ROOM_BYTES;
        bytes <= record_bytes
    };
    lacks.iter().take(limits::SPLIT_MAX_COUNT).take_while(fits).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_order::unordered::{Map, Set};

    #[test]
    fn what_is_missing_is_copied_before_what_differs_and_an_order_of_names_is_no_difference() {
        // Else the same values are copied again by each step, and a split of many records never ends.
        let map = |names: &[u64]| {
            let entry = |name: &u64| (Any::Number(*name), Any::Text("x".into()));
            Any::List(vec![Any::Map(names.iter().map(entry).collect())])
        };
        let list = |items: &[u64]| Any::List(items.iter().copied().map(Any::Number).collect());
        let there = vec![(1, map(&[7, 8])), (2, list(&[1, 2])), (3, map(&[])), (4, map(&[7]))];
        let moved = [(1, map(&[8, 7])), (2, list(&[2, 1])), (4, map(&[9])), (5, map(&[5])), (6, map(&[6]))];
        let lacks: Vec<_> = lacks(moved.clone().into(), there);
        let [_, two, four, five, six] = moved.map(|(key, value)| (key, Some(value)));
        assert_eq!(lacks, [five, six, two, (3, None), four]);
    }

    #[test]
    fn a_copy_of_what_has_no_order_is_the_same() {
        // Else no step of a split of many records comes to its end.
        let value = |items: std::ops::Range<u64>| {
            vec![Map::from([(7u8, items.clone().collect::<Set<_>>()), (9, items.collect())])]
        };
        let bytes = rmp_serde::to_vec_named(&value(0..99)).expect("it encodes");
        let copy = rmp_serde::from_slice::<Vec<Map<u8, Set<u64>>>>(&bytes).expect("it decodes");
        assert!(is_same(&copy, &value(0..99)) && !is_same(&copy, &value(0..98)));
    }
}
