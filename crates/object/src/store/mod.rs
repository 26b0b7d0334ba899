//! A store of keys and values whose values stay in the log: what a program has in memory is an index.
//!
//! ```text
//!   multi_put a=1 b=2 ───────► entry 7 [a=1 b=2] ···· entry 9 [b=3] ····   the values, each where it was put
//!                                   ▲                     ▲
//!   index, in every program      a ─┘                 b ──┘                key ─► position, length, checksum
//! ```
//!
//! A put is one entry of the log, of however many keys; a get looks its keys up in the index as of one position and reads the entries that
//! have the values, or takes them from memory, where those are kept that were used of late. So a store may be larger than the memory of
//! the programs that use it, as far as its keys fit. (The Corfu paper's CORFU-Store appends each value by itself and then a commit
//! record; here they are one entry, which is durable or not as a whole, and no value is ever there without its commit.)
//!
//! The state is an [object](crate::object), so that everything holds that is said of those; what it needs of the log is more than its
//! checkpoint: forgetting leaves the entries that still have values, and [`Store::compact`] copies values so that it need not.

mod state;
mod values;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::rc::Rc;
use std::time::Duration;

use ithaca_log::client::EntryKind;
use ithaca_log::pos::LogPos;

use crate::access::encoded_bytes;
use crate::collections::{Blob, Name, Value, within};
use crate::error::ObjectError;
use crate::key::Key;
use crate::limits;
use crate::object::CallError;
use crate::runtime::{Handle, Runtime};

pub use state::{Before, Differs, Located, MoveValues, Moved, MultiPut, StoreState};
use values::{Values, find_in};

/// How often the index is read for one call while others compact the store.
const LOOKS_MAX: u32 = 16;

/// How a store behaves.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// Bytes of values that are kept in memory; 0 for none.
    pub cache_bytes: usize,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { cache_bytes: 64 << 20 }
    }
}

/// A value, and the version that it is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored<V> {
    /// The value.
    pub value: V,
    /// The log position at which its key was given it.
    pub version: LogPos,
}

/// What became of a conditional put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutIf<K> {
    /// It was done: this is the version of all keys that it gave values.
    Done(LogPos),
    /// A key had another version than was expected, and nothing was changed.
    Differs(Differs<K>),
}

/// What was copied to the end of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Values that now stand there.
    pub values: usize,
    /// Bytes of all that was copied. Some of it was in vain, where somebody has changed a key meanwhile.
    pub bytes: u64,
}

/// A store. Cheap to clone; clones share the values that are kept in memory.
pub struct Store<K: Name, V: Value> {
    runtime: Runtime,
    name: Rc<str>,
    handle: Handle<StoreState<K>>,
    values: Rc<RefCell<Values<K>>>,
    /// Whether it is read as of a position, and so can never be read anew.
    is_old: bool,
    of: PhantomData<V>,
}

impl<K: Name, V: Value> Clone for Store<K, V> {
    fn clone(&self) -> Self {
        self.with(self.handle.clone(), self.is_old)
    }
}

impl<K: Name, V: Value> Store<K, V> {
    /// Opens the store of this name; it is empty if nobody has changed it. Nothing is read yet.
    ///
    /// Errors: `OtherType` if the name is open as something else.
    pub fn open(runtime: &Runtime, name: &str) -> Result<Self, ObjectError> {
        Self::open_with(runtime, name, StoreOptions::default())
    }

    /// The same with options.
    pub fn open_with(runtime: &Runtime, name: &str, options: StoreOptions) -> Result<Self, ObjectError> {
        let values = Rc::new(RefCell::new(Values::new(options.cache_bytes)));
        let handle = runtime.open(name)?;
        let (runtime, name) = (runtime.clone(), name.into());
        Ok(Self { runtime, name, handle, values, is_old: false, of: PhantomData })
    }

    fn with(&self, handle: Handle<StoreState<K>>, is_old: bool) -> Self {
        let (runtime, name, values) = (self.runtime.clone(), Rc::clone(&self.name), Rc::clone(&self.values));
        Self { runtime, name, handle, values, is_old, of: PhantomData }
    }

    /// The store as it was when it reflected every position of the log below `snapshot`; it can be read only. What was forgotten
    /// is `Forgotten` or, where the index is still in memory, `NoValue`.
    pub fn at(&self, snapshot: LogPos) -> Self {
        self.with(self.handle.at(snapshot), true)
    }

    /// The store for reads that may be as old as `bound`.
    pub fn stale(&self, bound: Duration) -> Self {
        self.with(self.handle.stale(bound), self.is_old)
    }

    /// The handle of its index: for checkpoints, pins and forgetting.
    pub fn handle(&self) -> &Handle<StoreState<K>> {
        &self.handle
    }

    /// The value of `key`. Linearizable, as every read of an object.
    pub async fn get(&self, key: &K) -> Result<Option<Stored<V>>, ObjectError> {
        Ok(self.multi_get(std::slice::from_ref(key)).await?.pop().flatten())
    }

    /// The values of several keys as of one position of the log, in the order of `keys`.
    ///
    /// Errors: `NoValue` if the log has given up an entry that has one of them, which only a trim by hand can bring about for the
    /// newest values.
    pub async fn multi_get(&self, keys: &[K]) -> Result<Vec<Option<Stored<V>>>, ObjectError> {
        let names = || keys.iter().map(Key::of).collect();
        let select = |store: &StoreState<K>| -> Vec<(K, Option<Located>)> {
            keys.iter().map(|key| (key.clone(), store.entries().get(key).copied())).collect()
        };
        let found = self.look(names, select).await?;
        Ok(found.into_iter().map(|(_, stored)| stored).collect())
    }

    /// The keys of a range and their values as of one position of the log, in order, at most `limit` of them. A range whose start lies
    /// after its end is empty.
    pub async fn scan(
        &self,
        range: impl RangeBounds<K>,
        limit: usize,
    ) -> Result<Vec<(K, Stored<V>)>, ObjectError> {
        let select = |store: &StoreState<K>| {
            let found = within(store.entries(), (range.start_bound(), range.end_bound())).take(limit);
            found.map(|(key, located)| (key.clone(), Some(*located))).collect()
        };
        let found = self.look(|| vec![Key::all()], select).await?;
        Ok(found.into_iter().filter_map(|(key, stored)| Some((key, stored?))).collect())
    }

    /// How many keys there are. Reads no value.
    pub async fn len(&self) -> Result<usize, ObjectError> {
        self.handle.read(|| vec![Key::all()], |store| store.entries().len()).await
    }

    /// Whether there is no key.
    pub async fn is_empty(&self) -> Result<bool, ObjectError> {
        Ok(self.len().await? == 0)
    }

    /// Gives `key` a value, and gives the version that it has with it. As [`Store::multi_put`].
    pub async fn put(&self, key: K, value: V) -> Result<LogPos, ObjectError> {
        self.multi_put(vec![(key, Some(value))]).await
    }

    /// Takes `key` away. As [`Store::multi_put`].
    pub async fn remove(&self, key: K) -> Result<LogPos, ObjectError> {
        self.multi_put(vec![(key, None)]).await
    }

    /// Gives several keys values, or takes them away where there is none, at one position of the log, which is their version. Nothing is
    /// read. On return it is on stable storage; everybody sees all of it or nothing. Of a key that is named twice the last one counts.
    ///
    /// Errors: `PutTooLarge`; `Unknown` (it may have happened); `ReadOnly` as of a position; after any other one it did not happen.
    pub async fn multi_put(&self, puts: Vec<(K, Option<V>)>) -> Result<LogPos, ObjectError> {
        let put = self.encoded(Vec::new(), puts)?;
        let pos = self.handle.send(put.clone()).await?;
        let pos = pos.expect("a store is in no transaction");
        self.remember(put, pos);
        Ok(pos)
    }

    /// The same if each of the `expected` keys has the version that is named with it, `None` for no value. It is decided at the put's own
    /// position, so nothing can come between: there is nothing to be tried again.
    ///
    /// A put that is not done stands in the log as well.
    ///
    /// Errors: as of [`Store::multi_put`].
    pub async fn multi_put_if(
        &self,
        expected: Vec<(K, Option<LogPos>)>,
        puts: Vec<(K, Option<V>)>,
    ) -> Result<PutIf<K>, ObjectError> {
        let expected = expected.into_iter().map(|(key, version)| (key, version.map(|pos| pos.0))).collect();
        let put = self.encoded(expected, puts)?;
        let (done, pos) = self.handle.call_placed(put.clone()).await?;
        let pos = pos.expect("a store is in no transaction");
        match done {
            Ok(()) => {
                self.remember(put, pos);
                Ok(PutIf::Done(pos))
            }
            Err(differs) => Ok(PutIf::Differs(differs)),
        }
    }

    /// Copies every value that an entry below `before` has, and that is still the newest of its key, to the end of the log, so that a
    /// checkpoint made afterwards needs nothing below, and [`Handle::forget`] can give it up. Versions stay what they are. Others may read
    /// and write meanwhile; a value that they replace is not copied, or its copy does not count.
    ///
    /// Errors: those of any call; what was copied before stays. Dropped, the same.
    pub async fn compact(&self, before: LogPos) -> Result<Compacted, ObjectError> {
        let below = |store: &StoreState<K>| -> Vec<(K, Located)> {
            let all = store.entries().iter().filter(|(_, located)| located.pos < before);
            all.map(|(key, located)| (key.clone(), *located)).collect()
        };
        let all = self.handle.read(|| vec![Key::all()], below).await?;
        let mut compacted = Compacted::default();
        let max_bytes = limits::MOVE_MAX_BYTES.min(self.runtime.client().entry_max_bytes() / 2);
        let mut rest = &all[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |(key, located): &&(K, Located)| {
                bytes += located.len as usize + encoded_bytes(key).unwrap_or(0) + limits::MOVE_ROOM_BYTES;
                bytes <= max_bytes
            };
            let count = rest.iter().take(limits::MOVE_MAX_COUNT).take_while(fits).count().max(1);
            let (some, later) = rest.split_at(count);
            rest = later;
            let found = self.read_values(some).await?;
            // What is not there any more was replaced or moved meanwhile, and its entry given up.
            let values: Vec<Moved<K>> = some
                .iter()
                .zip(found)
                .filter_map(|((key, located), value)| {
                    Some(Moved { key: key.clone(), from: located.pos.0, value: value? })
                })
                .collect();
            if values.is_empty() {
                continue;
            }
            let bytes: u64 = values.iter().map(|moved| moved.value.0.len() as u64).sum();
            compacted.values += self.handle.call(MoveValues { values }).await?;
            compacted.bytes += bytes;
        }
        Ok(compacted)
    }

    /// Looks up keys in the index and reads their values. What somebody has compacted and forgotten between the two is looked up again.
    async fn look(
        &self,
        keys: impl Fn() -> Vec<Key>,
        select: impl Fn(&StoreState<K>) -> Vec<(K, Option<Located>)>,
    ) -> Result<Vec<(K, Option<Stored<V>>)>, ObjectError> {
        let mut handle = self.handle.clone();
        let mut missed = None;
        for _ in 0..LOOKS_MAX {
            let selected = handle.read(&keys, &select).await?;
            let there = selected.iter().filter_map(|(key, located)| Some((key.clone(), (*located)?)));
            let there: Vec<(K, Located)> = there.collect();
            let values = self.fetch(&there).await?;
            if let Some(at) = values.iter().position(Option::is_none) {
                let pos = there[at].1.pos;
                if missed.replace(pos) == Some(pos) {
                    break;
                }
                if !self.is_old {
                    handle = self.handle.stale(Duration::ZERO);
                }
                continue;
            }
            let mut values = values.into_iter().flatten();
            let stored = |(key, located): (K, Option<Located>)| {
                let Some(located) = located else { return Ok((key, None)) };
                let value = values.next().unwrap_or_default();
                let value = rmp_serde::from_slice(&value.0).map_err(|error| invalid("get", &error))?;
                Ok((key, Some(Stored { value, version: located.version })))
            };
            return selected.into_iter().map(stored).collect();
        }
        let pos = missed.unwrap_or_default();
        Err(ObjectError::NoValue { object: self.name.to_string(), pos })
    }

    /// Values from memory, and the others from the log; `None` of what is not there any more.
    async fn fetch(&self, wanted: &[(K, Located)]) -> Result<Vec<Option<Blob>>, ObjectError> {
        let mut found: Vec<Option<Blob>> = {
            let mut kept = self.values.borrow_mut();
            wanted.iter().map(|(key, located)| kept.get(key, located)).collect()
        };
        let lacks = |at: &usize| found[*at].is_none();
        let missing: Vec<usize> = (0..wanted.len()).filter(lacks).collect();
        if missing.is_empty() {
            return Ok(found);
        }
        let sought: Vec<(K, Located)> = missing.iter().map(|&at| wanted[at].clone()).collect();
        let read = self.read_values(&sought).await?;
        for (&at, value) in missing.iter().zip(read) {
            if let Some(value) = &value {
                let (key, located) = &wanted[at];
                self.values.borrow_mut().keep(key, located.pos, value.clone());
            }
            found[at] = value;
        }
        Ok(found)
    }

    /// Reads values from the log, each entry once.
    async fn read_values(&self, wanted: &[(K, Located)]) -> Result<Vec<Option<Blob>>, ObjectError> {
        let mut by_entry: BTreeMap<LogPos, Vec<usize>> = BTreeMap::new();
        for (at, (_, located)) in wanted.iter().enumerate() {
            by_entry.entry(located.pos).or_default().push(at);
        }
        let positions: Vec<LogPos> = by_entry.keys().copied().collect();
        let mut found = vec![None; wanted.len()];
        for some in positions.chunks(limits::VALUES_AT_ONCE) {
            let entries = self.runtime.client().read_many(some).await?;
            for entry in entries.iter().filter(|entry| entry.kind == EntryKind::Data) {
                let of_entry = by_entry.get(&entry.pos).map(Vec::as_slice).unwrap_or_default();
                let sought: Vec<(K, Located)> = of_entry.iter().map(|&at| wanted[at].clone()).collect();
                let values = find_in(&entry.data, self.handle.stream(), &sought);
                of_entry.iter().zip(values).for_each(|(&at, value)| found[at] = value);
            }
        }
        Ok(found)
    }

    fn encoded(
        &self,
        expected: Vec<(K, Option<u64>)>,
        puts: Vec<(K, Option<V>)>,
    ) -> Result<MultiPut<K>, ObjectError> {
        let mut all = Vec::with_capacity(puts.len());
        for (key, value) in puts {
            let encode = |value: &V| {
                let bytes = rmp_serde::to_vec_named(value).map_err(|error| invalid("put", &error))?;
                Ok::<Blob, CallError>(Blob(bytes.into()))
            };
            all.push((key, value.as_ref().map(encode).transpose()?));
        }
        let put = MultiPut { expected, puts: all };
        let bytes = encoded_bytes(&put).map_err(|error| invalid("put", &error))?;
        let limit = self.runtime.client().entry_max_bytes().saturating_sub(limits::PUT_ROOM_BYTES);
        if bytes > limit {
            return Err(ObjectError::PutTooLarge { object: self.name.to_string(), bytes, limit });
        }
        Ok(put)
    }

    /// What was written just now is read soon, as a rule.
    fn remember(&self, put: MultiPut<K>, pos: LogPos) {
        let mut kept = self.values.borrow_mut();
        for (key, value) in put.puts {
            if let Some(value) = value {
                kept.keep(&key, pos, value);
            }
        }
    }
}

fn invalid(method: &'static str, error: &dyn std::error::Error) -> CallError {
    CallError::Arguments { method, error: error.to_string() }
}
