//! A transaction as its client holds it: what it read, what it wrote, and on what its commit depends.
//!
//! * Every read is of one snapshot, also in a transaction that will abort (opacity, invariant 33).
//! * Nothing is in the log before the commit, and nothing at all of a transaction that aborts.
//! * The commit is one entry in the streams of all objects that it changes. The sequencer grants it a position only if nothing of
//!   what it read was written at or above the snapshot, so whether it commits is decided by the log below it (32, 35).
//!
//! * Nothing commits that was answered over a call which was taken back (`built.rs`).
//!
//! Pure: it does no input or output. (Wei 5.3.3; keys instead of whole objects are ours: docs/papers.md)

mod built;

use std::borrow::Cow;
use std::collections::BTreeSet;

use ithaca_log::pos::{LogPos, StreamId, StreamIds};
use ithaca_log::stream::{Condition, ConflictKey, ConflictKeys, KeyHash};
use thiserror::Error;

use self::built::{Built, Gone};
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
    /// One snapshot each: what one writes is checked, and two that read what the other writes may both commit. Checked too is what led to
    /// the place where one writes, in a map of many objects.
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
    pub streams: StreamIds,
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

/// With fewer reads there is nothing to gain by putting them in order.
const READS_ORDERED_COUNT: usize = 64;

/// A key of an object.
type Named = (StreamId, Key);

/// A transaction, of those inside each other. The outermost is the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level(u32);

/// A call that was added, by its number among all of its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Added(u64);

/// What is noted of a call.
#[derive(Clone, Debug)]
struct Noted {
    number: Added,
    level: Level,
    stream: StreamId,
    keys: Keys,
}

/// A transaction that has neither committed nor aborted.
#[derive(Clone, Debug)]
pub struct Transaction {
    snapshot: LogPos,
    isolation: Isolation,
    /// What was read and is to be checked: with snapshot isolation only what led to where it writes. Each once, as far as they were put in order.
    reads: Vec<Named>,
    calls: Vec<Call>,
    /// What is noted of each call.
    noted: Vec<Noted>,
    /// Calls that were ever added.
    added: u64,
    /// What was answered over them; most transactions have nothing of it.
    built: Option<Box<Built>>,
    bytes: usize,
    /// The objects that it changes, in the order of their first calls.
    streams: StreamIds,
    /// The nested ones that are open, each with the one around it; in the order in which they began.
    nested: Vec<(Level, Level)>,
    /// Nested ones that ever began.
    begun: u32,
    /// Which one runs: what is added belongs to it.
    current: Level,
    planted: Planted,
}

impl Transaction {
    /// One that reads what every position below `snapshot` made.
    pub fn new(snapshot: LogPos, isolation: Isolation, planted: Planted) -> Self {
        Self {
            snapshot,
            isolation,
            reads: Vec::new(),
            calls: Vec::new(),
            noted: Vec::new(),
            added: 0,
            built: None,
            bytes: 0,
            streams: StreamIds::new(),
            nested: Vec::new(),
            begun: 0,
            current: Level::default(),
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

    /// Notes that it reads these parts of an object, with what it wrote itself so far.
    pub fn note_reads(&mut self, stream: StreamId, keys: &[Key]) {
        if self.streams.contains(&stream) {
            self.built.get_or_insert_default().see(stream, self.current, Added(self.added));
        }
        self.depend_on(stream, keys);
    }

    /// Notes that these parts of an object led it to where it writes: with any isolation it commits only if they are still the same, because
    /// elsewhere nobody finds what it writes.
    pub fn note_leads(&mut self, stream: StreamId, keys: &[Key]) {
        if self.reads.len() >= READS_ORDERED_COUNT && self.reads.len() == self.reads.capacity() {
            // What is read again and again takes no more memory.
            self.reads.sort_unstable();
            self.reads.dedup();
        }
        self.reads.extend(keys.iter().map(|key| (stream, key.clone())));
    }

    /// Notes what the commit is to check.
    fn depend_on(&mut self, stream: StreamId, keys: &[Key]) {
        if self.isolation == Isolation::Strict {
            self.note_leads(stream, keys);
        }
    }

    /// Adds a call. What it depends on counts as read. On an error nothing was added.
    pub fn add(&mut self, call: Call, keys: Keys) -> Result<Added, TxFull> {
        let bytes = self.bytes + bytes_of(&call);
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
        self.depend_on(call.stream, &keys.reads);
        self.added += 1;
        let number = Added(self.added);
        self.noted.push(Noted { number, level: self.current, stream: call.stream, keys });
        self.calls.push(call);
        Ok(number)
    }

    /// Takes a call out again; `is_known` says whether somebody knows what it gave, or that it failed. What was answered over it is doomed: reads
    /// of its object, and later calls of it. Nothing happens if it is gone.
    pub fn take_back(&mut self, added: Added, is_known: bool) {
        self.take_out(&Gone::Call(added, is_known));
    }

    /// Whether something is left that was answered over what was taken back: then it MUST NOT commit. That may change, as what is
    /// left may be taken back too.
    pub fn is_doomed(&self) -> bool {
        self.built.as_ref().is_some_and(|built| built.is_doomed())
    }

    /// Begins a transaction inside of the one that runs. It has the snapshot of the outermost one.
    pub fn begin_nested(&mut self) -> Result<Level, TxFull> {
        if self.nested.len() == limits::NESTING_MAX {
            return Err(TxFull::Nesting);
        }
        self.begun += 1;
        let level = Level(self.begun);
        self.nested.push((level, self.current));
        Ok(level)
    }

    /// Has what follows belong to `level`. Gives what it belonged to; `None`, and nothing is changed, if that transaction has ended.
    #[must_use]
    pub fn enter(&mut self, level: Level) -> Option<Level> {
        self.is_open(level).then(|| std::mem::replace(&mut self.current, level))
    }

    /// Has what follows belong again to what it did before [`Transaction::enter`].
    pub fn leave(&mut self, before: Level) {
        self.current = before;
    }

    /// Whether the transaction that runs is open: if it has ended while it ran, nothing more MUST be added.
    pub fn is_running(&self) -> bool {
        self.is_open(self.current)
    }

    fn is_open(&self, level: Level) -> bool {
        level == Level::default() || self.nested.iter().any(|(open, _)| *open == level)
    }

    /// Ends a nested transaction: what it wrote, and what is open inside of it, belongs to the one around it. False, and nothing happens, if it
    /// has ended.
    #[must_use]
    pub fn commit_nested(&mut self, level: Level) -> bool {
        let Some(at) = self.nested.iter().position(|(open, _)| *open == level) else { return false };
        let (_, around) = self.nested.remove(at);
        let inside = self.nested.iter_mut().map(|(_, around)| around);
        let own = self.noted.iter_mut().map(|noted| &mut noted.level);
        let all = inside.chain(own).chain([&mut self.current]);
        all.filter(|of| **of == level).for_each(|of| *of = around);
        if let Some(built) = &mut self.built {
            built.merge(level, around);
        }
        true
    }

    /// Ends a nested transaction and those inside of it: nothing that they wrote is left. What they read stays read, because what is done next
    /// may depend on it. What was answered over their calls elsewhere is doomed. Nothing happens if it has ended. If one of them runs,
    /// it goes on as one that has ended.
    pub fn abort_nested(&mut self, level: Level) {
        let Some(at) = self.nested.iter().position(|(open, _)| *open == level) else { return };
        let (_, around) = self.nested[at];
        let mut ended = vec![level];
        self.nested.retain(|(open, around)| {
            let is_inside = ended.contains(around);
            if is_inside {
                ended.push(*open);
            }
            !is_inside && *open != level
        });
        if !self.planted.is(PlantedBug::NestedAbortKept) {
            self.take_out(&Gone::Levels(ended, around));
        }
    }

    fn take_out(&mut self, gone: &Gone) {
        self.built.get_or_insert_default().take_out(&self.noted, gone);
        let is_left: Vec<bool> = self.noted.iter().map(|noted| !gone.has(noted)).collect();
        let mut left = is_left.iter();
        self.noted.retain(|_| left.next() == Some(&true));
        let mut left = is_left.iter();
        self.calls.retain(|_| left.next() == Some(&true));
        self.streams = StreamIds::from_slice(&streams_of(&self.calls));
        self.bytes = self.calls.iter().map(bytes_of).sum();
    }

    /// What to ask of the log: the entry's streams, its calls, and its condition. It takes no further call. Panics if it wrote nothing, a
    /// nested transaction is open, or it is doomed.
    pub fn commit(&mut self) -> Commit {
        let condition = self.condition();
        Commit {
            streams: std::mem::take(&mut self.streams),
            condition,
            calls: std::mem::take(&mut self.calls),
        }
    }

    fn condition(&self) -> Condition {
        assert!(!self.calls.is_empty(), "a transaction that wrote nothing needs no entry");
        assert!(self.nested.is_empty(), "a transaction inside is open");
        assert!(!self.is_doomed(), "what was answered over what was taken back is in it");
        let hashed = |(stream, key): &Named| ConflictKey { stream: *stream, key: key.hash() };
        Condition {
            snapshot: self.snapshot,
            reads: condensed(self.checked().iter().map(hashed)),
            writes: condensed(self.writes(|_| true).map(|named| hashed(&named))),
        }
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
        let checked = self.checked();
        checked.iter().find(|(of, key)| *of == stream && is_written(key)).map(|(_, key)| key.clone())
    }

    /// Objects that the commit depends on.
    pub fn depends_on(&self) -> Vec<StreamId> {
        let streams: BTreeSet<StreamId> = self.checked().iter().map(|(stream, _)| *stream).collect();
        streams.into_iter().collect()
    }

    /// The name of a key that the sequencer named.
    pub fn name_of(&self, key: ConflictKey) -> Key {
        let named = |(stream, known): &Named| *stream == key.stream && known.hash() == key.key;
        self.checked().iter().find(|known| named(known)).map_or_else(Key::all, |(_, key)| key.clone())
    }

    /// Goes on at a newer snapshot, at which everything that it has read is still the same.
    pub fn move_to(&mut self, snapshot: LogPos) {
        assert!(snapshot >= self.snapshot, "a snapshot moves forward only");
        self.snapshot = snapshot;
    }

    /// What those of its calls write that `is_meant`.
    fn writes(&self, is_meant: impl Fn(&Keys) -> bool) -> impl Iterator<Item = Named> {
        self.noted.iter().filter(move |noted| is_meant(&noted.keys)).flat_map(
            |Noted { stream, keys, .. }| {
                let all = if keys.writes.is_empty() { Some(Key::all()) } else { None };
                keys.writes.iter().cloned().chain(all).map(|key| (*stream, key))
            },
        )
    }

    /// Whether anything must not have been written since the snapshot.
    pub(crate) fn has_checks(&self) -> bool {
        !self.checked().is_empty()
    }

    /// What must not have been written since the snapshot.
    fn checked(&self) -> Cow<'_, [Named]> {
        let is_off = |bug| self.planted.is(bug);
        match self.isolation {
            Isolation::Strict if is_off(PlantedBug::ReadsNotChecked) => Cow::default(),
            Isolation::Strict => Cow::Borrowed(&self.reads),
            Isolation::Snapshot if is_off(PlantedBug::WritesNotChecked) => Cow::default(),
            Isolation::Snapshot => {
                self.writes(|keys| !keys.commutes).chain(self.reads.iter().cloned()).collect()
            }
        }
    }
}

/// Bytes that a call counts for.
fn bytes_of(call: &Call) -> usize {
    call.arguments.len() + call.method.len() + 8
}

/// Each key once. Of an object with many of them the whole is named instead, which makes more conflicts and never fewer.
pub(crate) fn condensed(keys: impl Iterator<Item = ConflictKey>) -> ConflictKeys {
    let mut keys: ConflictKeys = keys.collect();
    if keys.len() < 2 {
        return keys;
    }
    keys.sort_unstable();
    keys.dedup();
    let is_whole = |keys: &[ConflictKey]| {
        keys.len() > limits::KEYS_MAX_COUNT || keys.last().is_some_and(|last| last.key == KeyHash::ALL)
    };
    let of_one = |one: &ConflictKey, other: &ConflictKey| one.stream == other.stream;
    if !keys.chunk_by(of_one).any(is_whole) {
        return keys;
    }
    let named = |keys: &[ConflictKey]| match is_whole(keys) {
        true => vec![ConflictKey { key: KeyHash::ALL, ..keys[0] }],
        false => keys.to_vec(),
    };
    keys.chunk_by(of_one).flat_map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_an_object_with_many_keys_the_whole_is_named_and_of_others_each_key() {
        // A key that is left out is a conflict that nobody sees.
        let key = |stream, key| ConflictKey { stream: StreamId(stream), key: KeyHash(key) };
        let most = limits::KEYS_MAX_COUNT as u64;
        let asked = (0..most).map(|nth| key(2, nth)).chain((0..=most).map(|nth| key(1, nth)));
        let asked = asked.chain([key(3, 9), key(3, 9), key(4, 5), key(4, KeyHash::ALL.0)]);
        let mut expected = vec![key(1, KeyHash::ALL.0)];
        expected.extend((0..most).map(|nth| key(2, nth)).chain([key(3, 9), key(4, KeyHash::ALL.0)]));
        assert_eq!(condensed(asked)[..], expected);
        assert_eq!(condensed([key(3, 9), key(3, 9)].into_iter())[..], [key(3, 9)]);
    }

    const OUTER: Level = Level(0);

    /// Adds a call of stream 1 in a transaction.
    fn add_in(tx: &mut Transaction, level: Level) -> Added {
        tx.enter(level).expect("it is open");
        let call = Call { stream: StreamId(1), method: "put".into(), arguments: "x".into() };
        tx.add(call, Keys::updates(Key::of(&1u64))).expect("there is room")
    }

    /// Reads stream 1 in a transaction.
    fn read_in(tx: &mut Transaction, level: Level) {
        tx.enter(level).expect("it is open");
        tx.note_reads(StreamId(1), &[Key::of(&1u64)]);
    }

    /// Begins a transaction inside of another one.
    fn begin_in(tx: &mut Transaction, level: Level) -> Level {
        tx.enter(level).expect("it is open");
        tx.begin_nested().expect("not too deep")
    }

    fn begun() -> Transaction {
        Transaction::new(LogPos(7), Isolation::Strict, Planted::NONE)
    }

    #[test]
    fn what_is_doomed_goes_with_the_transaction_that_its_cause_is_in_too() {
        for reads_outside in [false, true] {
            let mut tx = begun();
            let a = begin_in(&mut tx, OUTER);
            let b = begin_in(&mut tx, a);
            read_in(&mut tx, OUTER);
            let added = add_in(&mut tx, a);
            read_in(&mut tx, if reads_outside { OUTER } else { b });
            add_in(&mut tx, b);
            tx.take_back(added, false);
            assert!(tx.is_doomed());
            tx.abort_nested(b);
            assert!(tx.is_doomed(), "what the inner one saw may be why it ended");
            tx.abort_nested(a);
            assert_eq!(tx.is_doomed(), reads_outside);
        }
    }

    #[test]
    fn what_a_transaction_beside_saw_dooms_the_rest_also_after_that_is_taken_back() {
        for (is_call, is_kept) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut tx = begun();
            let (a, b) = (begin_in(&mut tx, OUTER), begin_in(&mut tx, OUTER));
            add_in(&mut tx, a);
            match is_call {
                true => drop(add_in(&mut tx, b)),
                false => read_in(&mut tx, b),
            }
            tx.abort_nested(b);
            assert!(!tx.is_doomed());
            match is_kept {
                true => assert!(tx.commit_nested(a)),
                false => tx.abort_nested(a),
            }
            assert_eq!(tx.is_doomed(), !is_kept, "a call {is_call}");
        }
    }

    #[test]
    fn a_transaction_that_ends_with_the_one_around_it_takes_nothing_more() {
        let mut tx = begun();
        let a = begin_in(&mut tx, OUTER);
        let b = begin_in(&mut tx, a);
        let before = tx.enter(b).expect("it is open");
        tx.leave(OUTER);
        tx.enter(b).expect("it is open");
        tx.abort_nested(a);
        assert!(!tx.is_running(), "it ended while it ran");
        tx.leave(OUTER);
        assert!(tx.is_running() && before == a);
        assert!(tx.enter(b).is_none() && tx.is_running());
        assert!(!tx.commit_nested(b) && !tx.commit_nested(a));
    }

    #[test]
    fn a_doomed_call_goes_by_itself_if_nobody_knows_what_became_of_it() {
        for is_known in [false, true] {
            let mut tx = begun();
            let (first, second) = (add_in(&mut tx, OUTER), add_in(&mut tx, OUTER));
            tx.take_back(first, false);
            assert!(tx.is_doomed());
            tx.take_back(second, is_known);
            assert_eq!(tx.is_doomed(), is_known);
        }
    }

    #[test]
    fn of_reads_over_own_calls_the_last_of_each_transaction_is_noted_and_of_others_none() {
        let seen_count = |tx: &Transaction| tx.built.as_ref().map_or(0, |built| built.seen_count());
        let mut tx = begun();
        read_in(&mut tx, OUTER);
        assert!(tx.built.is_none());
        let nested = begin_in(&mut tx, OUTER);
        for _ in 0..100 {
            add_in(&mut tx, nested);
            read_in(&mut tx, nested);
            read_in(&mut tx, OUTER);
            tx.note_reads(StreamId(2), &[]);
        }
        assert_eq!(seen_count(&tx), 2);
        assert!(tx.commit_nested(nested));
        assert_eq!(seen_count(&tx), 1);
        let last = add_in(&mut tx, OUTER);
        tx.take_back(last, true);
        assert!(!tx.is_doomed(), "nothing came after it");
    }

    #[test]
    fn what_led_to_a_place_is_checked_with_any_isolation_and_other_reads_are_not() {
        for isolation in [Isolation::Strict, Isolation::Snapshot] {
            let mut tx = Transaction::new(LogPos(7), isolation, Planted::NONE);
            tx.note_leads(StreamId(2), &[Key::all()]);
            tx.note_reads(StreamId(3), &[Key::all()]);
            add_in(&mut tx, OUTER);
            let reads = tx.commit().condition.reads;
            let is_checked = |stream| reads.iter().any(|key| key.stream == StreamId(stream));
            assert!(is_checked(1) && is_checked(2), "{isolation:?}: {reads:?}");
            assert_eq!(is_checked(3), isolation == Isolation::Strict);
        }
    }

    #[test]
    fn what_is_read_again_and_again_is_named_once() {
        let mut tx = Transaction::new(LogPos(7), Isolation::Strict, Planted::NONE);
        for nth in 0..100_000u64 {
            tx.note_reads(StreamId(1), &[Key::of(&(nth % 40))]);
        }
        assert!(tx.reads.capacity() <= 2 * READS_ORDERED_COUNT, "{}", tx.reads.capacity());
        assert_eq!(
            condensed(
                tx.checked().iter().map(|(stream, key)| ConflictKey { stream: *stream, key: key.hash() })
            )
            .len(),
            40
        );
    }
}
