//! A transaction as its client holds it: what it read, what it wrote, and on what its commit depends.
//!
//! * Every read is of one snapshot, also in a transaction that will abort (opacity, invariant 33).
//! * Nothing is in the log before the commit, and nothing at all of a transaction that aborts.
//! * The commit is one entry in the streams of all objects that it changes. The sequencer grants it a position only if nothing of
//!   what it read was written at or above the snapshot, so whether it commits is decided by the log below it (32, 35).
//!
//! Pure: it does no input or output. (Wei 5.3.3; keys instead of whole objects are ours: docs/papers.md)

use std::collections::BTreeSet;

use ithaca_log::pos::{LogPos, StreamId};
use ithaca_log::stream::{Condition, ConflictKey, KeyHash};
use thiserror::Error;

use crate::key::{Key, Keys};
use crate::limits;
use crate::object::CallError;
use crate::planted::{Planted, PlantedBug};
use crate::record::{Call, Record, TxId, streams_of};

/// What transactions are held to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// As if they ran one after the other, each at its commit: what one read is checked.
    #[default]
    Strict,
    /// One snapshot each: what one writes is checked, and two that read what the other writes may both commit.
    Snapshot,
}

/// Why a transaction takes no further call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TxFull {
    /// Its calls do not fit into one entry of the log.
    #[error("a transaction of {bytes} bytes is over the limit of {} bytes", limits::TX_MAX_BYTES)]
    Bytes {
        /// Bytes of its calls.
        bytes: usize,
    },
    /// It has too many calls.
    #[error("a transaction of more than {} calls", limits::CALLS_MAX_COUNT)]
    Calls,
    /// It changes too many objects.
    #[error("a transaction that changes more than {} objects", limits::OBJECTS_MAX_COUNT)]
    Objects,
    /// It is nested too deeply.
    #[error("more than {} transactions inside each other", limits::NESTING_MAX)]
    Nesting,
}

/// What a commit asks of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The streams that the entry belongs to.
    pub streams: Vec<StreamId>,
    /// On what it depends.
    pub condition: Condition,
    /// The calls of the record.
    pub calls: Vec<Call>,
}

/// What a transaction aborts for: another one has written what it depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Of which object.
    pub stream: StreamId,
    /// Which part.
    pub key: Key,
    /// Where the other one stands in the log.
    pub pos: LogPos,
    /// Which one it is, if that is known.
    pub by: Option<TxId>,
}

/// A key of an object.
type Named = (StreamId, Key);

/// A transaction that has neither committed nor aborted.
#[derive(Clone, Debug)]
pub struct Transaction {
    snapshot: LogPos,
    isolation: Isolation,
    reads: BTreeSet<Named>,
    calls: Vec<Call>,
    /// The keys of each call.
    keys: Vec<Keys>,
    bytes: usize,
    /// The objects that it changes, in the order of their first calls.
    streams: Vec<StreamId>,
    /// How many calls there were when each of the nested ones began, the innermost last.
    nested: Vec<usize>,
    planted: Planted,
}

impl Transaction {
    /// One that reads what every position below `snapshot` made.
    pub fn new(snapshot: LogPos, isolation: Isolation, planted: Planted) -> Self {
        Self {
            snapshot,
            isolation,
            reads: BTreeSet::new(),
            calls: Vec::new(),
            keys: Vec::new(),
            bytes: 0,
            streams: Vec::new(),
            nested: Vec::new(),
            planted,
        }
    }

    /// The snapshot of all its reads.
    pub fn snapshot(&self) -> LogPos {
        self.snapshot
    }

    /// What it wrote so far, in order.
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// Whether it wrote nothing, so that it is done without the log.
    pub fn is_read_only(&self) -> bool {
        self.calls.is_empty()
    }

    /// Notes that it has read these parts of an object.
    pub fn note_reads(&mut self, stream: StreamId, keys: &[Key]) {
        self.reads.extend(keys.iter().map(|key| (stream, key.clone())));
    }

    /// Adds a call. What it depends on counts as read. On an error nothing was added.
    pub fn add(&mut self, call: Call, keys: Keys) -> Result<(), TxFull> {
        let bytes = self.bytes + call.arguments.len() + call.method.len() + 8;
        if bytes > limits::TX_MAX_BYTES {
            return Err(TxFull::Bytes { bytes });
        }
        if self.calls.len() == limits::CALLS_MAX_COUNT {
            return Err(TxFull::Calls);
        }
        if !self.streams.contains(&call.stream) {
            if self.streams.len() == limits::OBJECTS_MAX_COUNT {
                return Err(TxFull::Objects);
            }
            self.streams.push(call.stream);
        }
        self.bytes = bytes;
        self.note_reads(call.stream, &keys.reads);
        self.calls.push(call);
        self.keys.push(keys);
        Ok(())
    }

    /// Begins a transaction inside. It has the snapshot of the outermost one.
    pub fn begin_nested(&mut self) -> Result<(), TxFull> {
        if self.nested.len() == limits::NESTING_MAX {
            return Err(TxFull::Nesting);
        }
        self.nested.push(self.calls.len());
        Ok(())
    }

    /// Ends the innermost nested transaction: what it wrote belongs to the outer one. Panics if there is none.
    pub fn commit_nested(&mut self) {
        assert!(self.nested.pop().is_some(), "no transaction inside to commit");
    }

    /// Ends the innermost nested transaction: nothing that it wrote is left. What it read stays read, because what the outer one
    /// does next may depend on it. Panics if there is none.
    pub fn abort_nested(&mut self) {
        let first = self.nested.pop().expect("a transaction inside to abort");
        if !self.planted.is(PlantedBug::NestedAbortKept) {
            self.calls.truncate(first);
            self.keys.truncate(first);
            self.streams = streams_of(&self.calls);
            self.bytes = self.calls.iter().map(|call| call.arguments.len() + call.method.len() + 8).sum();
        }
    }

    /// What to ask of the log: the entry's streams, its calls, and its condition. Panics if it wrote nothing or a nested
    /// transaction is open.
    pub fn commit(&self) -> Commit {
        assert!(!self.calls.is_empty(), "a transaction that wrote nothing needs no entry");
        assert!(self.nested.is_empty(), "a transaction inside is open");
        let streams = self.streams.clone();
        let checked = self.checked();
        let condition = Condition {
            snapshot: self.snapshot,
            reads: condensed(checked.into_iter().map(|(stream, key)| (stream, key.hash()))),
            writes: condensed(self.writes().map(|(stream, key)| (stream, key.hash()))),
        };
        Commit { streams, condition, calls: self.calls.clone() }
    }

    /// Looks at a record at or above the snapshot, in place of the sequencer, which remembers only so much: whether one of its calls
    /// of `stream` writes what the commit depends on. `keys` says what a call writes.
    pub fn check_against(
        &self,
        stream: StreamId,
        pos: LogPos,
        record: &Record,
        keys: impl Fn(&Call) -> Result<Keys, CallError>,
    ) -> Result<Option<Conflict>, CallError> {
        if pos < self.snapshot || self.planted.is(PlantedBug::SuffixNotChecked) {
            return Ok(None);
        }
        for call in record.calls.iter().filter(|call| call.stream == stream) {
            if let Some(key) = self.conflict(stream, &keys(call)?) {
                return Ok(Some(Conflict { stream, key, pos, by: Some(record.id) }));
            }
        }
        Ok(None)
    }

    /// The key, of those that the commit depends on, that a call with these keys of the same object writes.
    fn conflict(&self, stream: StreamId, written: &Keys) -> Option<Key> {
        let is_written = |key: &Key| {
            written.writes.is_empty()
                || key.hash() == KeyHash::ALL
                || written
                    .writes
                    .iter()
                    .any(|other| other.hash() == KeyHash::ALL || other.hash() == key.hash())
        };
        self.checked().into_iter().find(|(of, key)| *of == stream && is_written(key)).map(|(_, key)| key)
    }

    /// Objects that the commit depends on.
    pub fn depends_on(&self) -> Vec<StreamId> {
        let streams: BTreeSet<StreamId> = self.checked().into_iter().map(|(stream, _)| stream).collect();
        streams.into_iter().collect()
    }

    /// The name of a key that the sequencer named.
    pub fn name_of(&self, key: ConflictKey) -> Key {
        let named = |(stream, known): &Named| *stream == key.stream && known.hash() == key.key;
        self.checked().into_iter().find(named).map_or_else(Key::all, |(_, key)| key)
    }

    /// Goes on at a newer snapshot, at which everything that it has read is still the same.
    pub fn move_to(&mut self, snapshot: LogPos) {
        assert!(snapshot >= self.snapshot, "a snapshot moves forward only");
        self.snapshot = snapshot;
    }

    fn writes(&self) -> impl Iterator<Item = Named> {
        self.calls.iter().zip(&self.keys).flat_map(|(call, keys)| {
            let all = if keys.writes.is_empty() { Some(Key::all()) } else { None };
            keys.writes.iter().cloned().chain(all).map(|key| (call.stream, key))
        })
    }

    /// What must not have been written since the snapshot.
    fn checked(&self) -> BTreeSet<Named> {
        let is_off = |bug| self.planted.is(bug);
        match self.isolation {
            Isolation::Strict if is_off(PlantedBug::ReadsNotChecked) => BTreeSet::new(),
            Isolation::Strict => self.reads.clone(),
            Isolation::Snapshot if is_off(PlantedBug::WritesNotChecked) => BTreeSet::new(),
            Isolation::Snapshot => {
                let calls = self.calls.iter().zip(&self.keys).filter(|(_, keys)| !keys.commutes);
                calls
                    .flat_map(|(call, keys)| {
                        let all = if keys.writes.is_empty() { Some(Key::all()) } else { None };
                        keys.writes.iter().cloned().chain(all).map(|key| (call.stream, key))
                    })
                    .collect()
            }
        }
    }
}

/// Each key once. Of an object with many of them the whole is named instead, which makes more conflicts and never fewer.
pub(crate) fn condensed(keys: impl Iterator<Item = (StreamId, KeyHash)>) -> Vec<ConflictKey> {
    let mut keys = keys.peekable();
    let first = keys.next();
    if let (Some((stream, key)), None) = (first, keys.peek()) {
        return vec![ConflictKey { stream, key }];
    }
    let keys: BTreeSet<(StreamId, KeyHash)> = first.into_iter().chain(keys).collect();
    let mut condensed: Vec<ConflictKey> = Vec::new();
    let mut rest = keys.into_iter().peekable();
    while let Some(&(stream, _)) = rest.peek() {
        let of_one: Vec<KeyHash> =
            std::iter::from_fn(|| rest.next_if(|(of, _)| *of == stream)).map(|(_, key)| key).collect();
        let is_whole = of_one.len() > limits::KEYS_MAX_COUNT || of_one.contains(&KeyHash::ALL);
        let named = if is_whole { vec![KeyHash::ALL] } else { of_one };
        condensed.extend(named.into_iter().map(|key| ConflictKey { stream, key }));
    }
    condensed
}
