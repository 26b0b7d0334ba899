//! Views that stop, and what of that the others know.

mod in_order;

use std::cell::Cell;

use bytes::Bytes;
use ithaca_log::pos::{LogPos, StreamId};
use serde::{Deserialize, Serialize};

use crate::collections::{Blob, MapState, Put, Value};
use crate::key::{Key, Keys};
use crate::limits;
use crate::object::{CallError, Method, Mutator, Object, call_of};
use crate::planted::Planted;
use crate::record::{Call, Record, TxId};
use crate::view::{Applied, FaultKind, SnapshotError, View};

const STREAM: StreamId = StreamId(300);

/// A sum.
#[derive(Default, Serialize, Deserialize)]
struct Sum {
    value: u64,
}

/// Adds one.
#[derive(Serialize, Deserialize)]
struct AddOne {
    /// A field that a later version has.
    #[serde(default)]
    later: Option<u64>,
}

impl Object for Sum {
    const TYPE: &'static str = "sum";
    const METHODS: &'static [Method<Self>] = &[Method::of::<AddOne>()];
    type Undo = u64;

    fn exchange(&mut self, undo: &mut u64) {
        std::mem::swap(&mut self.value, undo);
    }

    fn digest(&self) -> u64 {
        self.value
    }
}

impl Mutator<Sum> for AddOne {
    const NAME: &'static str = "add_one";
    type Output = u64;

    fn keys(&self) -> Keys {
        Keys::whole()
    }

    fn apply(self, sum: &mut Sum, _: LogPos, undo: &mut Vec<u64>) -> u64 {
        undo.push(sum.value);
        sum.value += 1;
        sum.value
    }
}

fn record(request: u64, call: Call) -> Record {
    Record { id: TxId { client: 1, request }, settled: request, checks: Vec::new(), calls: vec![call] }
}

fn add(request: u64) -> Record {
    record(request, call_of::<Sum, _>(STREAM, &AddOne { later: None }).expect("encoded"))
}

fn view(count: u64) -> View<Sum> {
    let mut view = View::new(STREAM, Planted::NONE);
    (0..count).for_each(|nth| assert!(matches!(view.apply(LogPos(nth), &add(nth), false), Applied::Now(_))));
    view
}

#[test]
fn a_view_whose_state_differs_from_that_of_a_records_client_stops_there() {
    let good = view(limits::DIGEST_EVERY);
    let mut wrong = View::<Sum>::new(STREAM, Planted::NONE);
    for nth in 0..limits::DIGEST_EVERY {
        wrong.apply(LogPos(nth), &add(nth), false);
        if nth == 10 {
            // What a clock or a random number would do.
            wrong.harm(|sum| sum.value += 1);
        }
    }
    let next = limits::DIGEST_EVERY;
    let record = Record { checks: good.newest_check().into_iter().collect(), ..add(next) };
    assert!(matches!(wrong.apply(LogPos(next), &record, false), Applied::Passed));
    let fault = wrong.fault().expect("it stopped");
    assert_eq!(fault.pos, LogPos(next));
    assert_eq!(fault.kind, FaultKind::Diverged { pos: LogPos(next - 1), theirs: next, ours: next + 1 });
    let mut good = good;
    assert!(matches!(good.apply(LogPos(next), &record, false), Applied::Now(_)), "the other one goes on");
}

#[test]
fn a_view_that_stopped_serves_what_lies_below() {
    let mut view = view(10);
    let arguments = Bytes::from_static(b"\x80");
    let fly = Call { stream: STREAM, method: Bytes::from_static(b"fly"), arguments };
    view.apply(LogPos(20), &record(10, fly), false);
    view.apply(LogPos(21), &add(11), false);
    let kind = FaultKind::Call(CallError::UnknownMethod { object: "sum", method: "fly".into() });
    assert_eq!(view.fault().map(|fault| (fault.pos, &fault.kind)), Some((LogPos(20), &kind)));
    let read = |sum: &Sum, _| sum.value;
    assert_eq!(view.read_at(LogPos(20), &[], read), Ok(10));
    assert_eq!(view.read_at(LogPos(5), &[], read), Ok(5));
    assert!(matches!(view.read_at(LogPos(21), &[], read), Err(SnapshotError::Stopped(_))));
    assert!(view.state().is_err() && view.checkpoint().is_err());
}

#[test]
fn arguments_of_a_later_version_are_taken_and_those_of_another_method_are_not() {
    let mut view = view(0);
    let call = |arguments: &'static [u8]| Call {
        stream: STREAM,
        method: Bytes::from_static(b"add_one"),
        arguments: Bytes::from_static(arguments),
    };
    // {"new": 1}: a field that this version does not know.
    assert!(matches!(view.apply(LogPos(0), &record(0, call(b"\x81\xA3new\x01")), false), Applied::Now(_)));
    assert!(matches!(view.apply(LogPos(1), &record(1, call(b"\xC1")), false), Applied::Passed));
    let kind = view.fault().map(|fault| &fault.kind);
    assert!(
        matches!(kind, Some(FaultKind::Call(CallError::Arguments { method: "add_one", .. }))),
        "{kind:?}"
    );
}

#[test]
fn a_snapshot_below_the_history_is_refused_and_says_where_that_begins() {
    let count = limits::HISTORY_MAX_COUNT as u64 + 5;
    let mut view = view(count);
    let read = |sum: &Sum, _| sum.value;
    assert_eq!(view.floor(), LogPos(5));
    assert_eq!(view.read_at(LogPos(5), &[], read), Ok(5));
    let below = view.read_at(LogPos(4), &[], read);
    assert_eq!(below, Err(SnapshotError::BelowFloor { snapshot: LogPos(4), floor: LogPos(5) }));
    assert_eq!(view.read_at(LogPos(count), &[], read), Ok(count), "and it has come back");
}

#[test]
fn the_history_of_long_calls_is_shorter() {
    // Else some thousand values of a megabyte would stay in memory that nobody can see but by going back.
    type Values = MapState<u8, Blob>;
    let value = Blob(Bytes::from(vec![7; 1 << 20]));
    let call = call_of::<Values, _>(STREAM, &Put { key: 1, value }).expect("it encodes");
    let call_bytes = (call.method.len() + call.arguments.len()) as u64;
    let kept = limits::HISTORY_MAX_BYTES / call_bytes;
    let mut view = View::<Values>::new(STREAM, Planted::NONE);
    for pos in 0..kept + 5 {
        assert!(matches!(view.apply(LogPos(pos), &record(pos, call.clone()), false), Applied::Now(_)));
    }
    // The oldest of them is not counted.
    assert_eq!(view.floor(), LogPos(4));
    let read = |map: &Values, _| map.entries().get(&1).map(|placed| placed.pos);
    assert_eq!(view.read_at(LogPos(4), &[], read), Ok(Some(3)));
}

#[test]
fn a_checkpoint_that_was_harmed_is_refused() {
    let checkpoint = view(100).checkpoint().expect("it applies");
    assert!(View::<Sum>::restore(STREAM, &checkpoint, Planted::NONE).is_ok());
    for at in 0..checkpoint.len() {
        assert!(View::<Sum>::restore(STREAM, &checkpoint[..at], Planted::NONE).is_err());
    }
    let state_bytes = rmp_serde::to_vec_named(&Sum { value: 100 }).expect("it encodes").len();
    for at in checkpoint.len() - state_bytes..checkpoint.len() {
        let mut harmed = checkpoint.to_vec();
        harmed[at] ^= 1;
        assert!(View::<Sum>::restore(STREAM, &harmed, Planted::NONE).is_err(), "byte {at}");
    }
}

/// Puts into a map, each of the next request, as another program has encoded them.
fn puts<V: Value>(from: u64, count: u64, value: impl Fn(u64) -> V) -> Vec<Record> {
    let put = |nth| Put { key: nth % 9, value: value(nth) };
    let call = |nth| call_of::<MapState<u64, V>, _>(STREAM, &put(nth)).expect("it encodes");
    (from..from + count).map(|nth| record(nth, call(nth))).collect()
}

/// Has a view apply records at the positions of their requests; none may stop it.
fn play<O: Object>(view: &mut View<O>, records: &[Record]) {
    for record in records {
        let applied = view.apply(LogPos(record.id.request), record, false);
        assert!(matches!(applied, Applied::Now(_)), "{}: {:?}", record.id, view.fault());
    }
}

/// That of a view of all these records, in a record that comes next.
fn checked<O: Object>(records: &[Record], next: Record) -> Record {
    let mut view = View::<O>::new(STREAM, Planted::NONE);
    play(&mut view, records);
    Record { checks: view.newest_check().into_iter().collect(), ..next }
}

thread_local! {
    /// How many values without an order were decoded.
    static DECODED: Cell<usize> = const { Cell::new(0) };
}

/// A value without an order, as a `HashMap` is one: it is in another one whenever it is decoded.
#[derive(Clone, Serialize)]
#[serde(transparent)]
struct Unordered(Vec<u64>);

impl<'de> Deserialize<'de> for Unordered {
    fn deserialize<D: serde::Deserializer<'de>>(decoder: D) -> Result<Self, D::Error> {
        let mut items = Vec::<u64>::deserialize(decoder)?;
        let nth = DECODED.replace(DECODED.get() + 1);
        let len = items.len().max(1);
        items.rotate_left(nth % len);
        Ok(Self(items))
    }
}

fn unordered(nth: u64) -> Unordered {
    Unordered((0..61).map(|item| 100 * nth + item).collect())
}

fn empty(_: u64) -> Unordered {
    Unordered(Vec::new())
}

type Unsorted = MapState<u64, Unordered>;

#[test]
fn values_without_an_order_do_not_stop_the_object_in_another_program() {
    // Each program encodes them in an order of its own: what differs is no state.
    let every = limits::DIGEST_EVERY;
    let mut records = puts(0, every, unordered);
    let next = puts(every, 1, unordered).remove(0);
    records.push(checked::<Unsorted>(&records, next));
    let mut view = View::<Unsorted>::new(STREAM, Planted::NONE);
    play(&mut view, &records);
    // Nor does a checkpoint, nor what comes after it.
    let checkpoint = view.checkpoint().expect("made");
    let restored = View::<Unsorted>::restore(STREAM, &checkpoint, Planted::NONE);
    let mut restored = restored.expect("what was stored is what is read");
    let later = puts(every + 1, every, empty);
    play(&mut restored, &later);
    play(&mut view, &later);
    assert_eq!((restored.newest_check(), view.newest_check()), (None, None), "it says nothing to others");
    assert!(view.compare_with_checkpoint(LogPos(every), 7) && view.fault().is_none());
}

#[test]
fn what_a_view_that_does_not_compare_has_stored_is_not_compared_either() {
    // Its state came of encodings of its own, also where the view that begins there finds nothing that tells so.
    let every = limits::DIGEST_EVERY;
    let mut view = View::<Unsorted>::new(STREAM, Planted::NONE);
    play(&mut view, &puts(0, 9, unordered));
    play(&mut view, &puts(9, every - 9, empty));
    let checkpoint = view.checkpoint().expect("made");
    let mut restored = View::<Unsorted>::restore(STREAM, &checkpoint, Planted::NONE).expect("read");
    play(&mut restored, &puts(every, every, empty));
    assert_eq!((restored.newest_check(), restored.digest_to_compare()), (None, 0));
    assert!(restored.may_be(7));
}

/// What one version of a program has for values.
#[derive(Clone, Serialize, Deserialize)]
struct User {
    name: String,
}

/// What the next one has.
#[derive(Clone, Serialize, Deserialize)]
struct Aged {
    name: String,
    #[serde(default)]
    age: Option<u8>,
}

#[test]
fn a_value_with_one_more_field_does_not_stop_the_object_in_the_next_version() {
    type Users = MapState<u64, User>;
    let every = limits::DIGEST_EVERY;
    let user = |nth: u64| User { name: nth.to_string() };
    let mut records = puts(0, every, user);
    let mut old = View::<Users>::new(STREAM, Planted::NONE);
    play(&mut old, &records);
    let checkpoint = old.checkpoint().expect("made");
    records.push(checked::<Users>(&records, puts(every, 1, user).remove(0)));
    let mut aged = View::<MapState<u64, Aged>>::new(STREAM, Planted::NONE);
    play(&mut aged, &records);
    // Its checkpoint is read, and what it holds is there.
    let begun = View::<MapState<u64, Aged>>::restore(STREAM, &checkpoint, Planted::NONE);
    let mut begun = begun.expect("it is what was stored");
    assert!(begun.may_be(old.digest_to_compare()), "as the catalog names it");
    let names = |map: &MapState<u64, Aged>, _| {
        map.iter().map(|(_, aged)| (aged.name.clone(), aged.age)).collect::<Vec<_>>()
    };
    let expected: Vec<_> = (every - 9..every).map(|nth| (nth.to_string(), None)).collect();
    let mut found = begun.read_at(LogPos(every), &[], names).expect("read");
    found.sort();
    assert_eq!(found, expected);
    // The older version goes on as well where both write.
    let mut both = records[..every as usize - 1].to_vec();
    both.extend(puts(every - 1, 1, aged_user));
    let next = checked::<MapState<u64, Aged>>(&both, puts(every, 1, aged_user).remove(0));
    play(&mut old, &[next]);
}

/// What the one after that has.
#[derive(Clone, Serialize, Deserialize)]
struct Tall {
    name: String,
    age: Option<u8>,
    height_mm: u32,
}

/// What the next version puts.
fn aged_user(nth: u64) -> Aged {
    Aged { name: nth.to_string(), age: Some(7) }
}

fn is_refused(made: Result<Bytes, SnapshotError>) -> bool {
    matches!(made, Err(SnapshotError::Call(CallError::Arguments { method: "checkpoint", .. })))
}

#[test]
fn what_a_version_has_dropped_is_missing_in_no_checkpoint() {
    // Once calls are forgotten a checkpoint is all that is left of them.
    type Users = MapState<u64, User>;
    type Ages = MapState<u64, Aged>;
    let mut old = View::<Users>::new(STREAM, Planted::NONE);
    play(&mut old, &puts(0, 5, |nth| User { name: nth.to_string() }));
    let whole = old.checkpoint().expect("nothing was dropped yet");
    let next = puts(5, 5, aged_user);
    for record in &next[..4] {
        let mut view = View::<Users>::restore(STREAM, &whole, Planted::NONE).expect("read");
        assert!(matches!(view.apply_own(LogPos(record.id.request), record, false), Applied::Now(_)));
        assert!(is_refused(view.checkpoint()), "{}", record.id);
    }
    play(&mut old, &next);
    assert!(is_refused(old.checkpoint()) && old.fault().is_none());
    // Of a version that only adds something.
    let mut new = View::<Ages>::restore(STREAM, &whole, Planted::NONE).expect("read");
    play(&mut new, &next);
    let aged = new.checkpoint().expect("nothing was dropped");
    let mut begun = View::<Users>::restore(STREAM, &aged, Planted::NONE).expect("read");
    assert!(is_refused(begun.checkpoint()), "it has what that version has");
    // Also where some had other encodings before.
    let tall = |nth: u64| Tall { name: nth.to_string(), age: None, height_mm: 1800 };
    play(&mut new, &puts(10, 1, tall));
    assert!(is_refused(new.checkpoint()));
}

/// What a version has that has another field in the place of the age.
#[derive(Clone, Serialize, Deserialize)]
struct Measured {
    name: String,
    size: Option<u8>,
}

#[test]
fn what_a_version_drops_that_has_another_field_instead_is_missing_in_no_checkpoint() {
    // What it encodes is no shorter.
    let mut new = View::<MapState<u64, Aged>>::new(STREAM, Planted::NONE);
    let mut other = View::<MapState<u64, Measured>>::new(STREAM, Planted::NONE);
    play(&mut new, &puts(0, 5, aged_user));
    play(&mut other, &puts(0, 5, aged_user));
    assert!(is_refused(other.checkpoint()) && other.fault().is_none());
    let made = new.checkpoint().expect("nothing was dropped");
    let mut begun = View::<MapState<u64, Measured>>::restore(STREAM, &made, Planted::NONE).expect("read");
    assert!(is_refused(begun.checkpoint()), "it began at what the other version has");
}

/// What a version has that reads the name by its former name.
#[derive(Clone, Serialize, Deserialize)]
struct Titled {
    #[serde(alias = "name")]
    title: String,
}

#[test]
fn what_is_read_by_its_former_name_is_not_dropped() {
    // Whoever took it for dropped could make no checkpoint of the object any more, for ever.
    let mut view = View::<MapState<u64, Titled>>::new(STREAM, Planted::NONE);
    play(&mut view, &puts(0, 5, |nth| User { name: nth.to_string() }));
    let checkpoint = view.checkpoint().expect("nothing was dropped");
    let begun = View::<MapState<u64, Titled>>::restore(STREAM, &checkpoint, Planted::NONE).expect("read");
    let map = begun.state().expect("read");
    assert!(map.len() == 5 && map.iter().all(|(key, titled)| titled.title == key.to_string()));
}

/// A sum that begins elsewhere.
#[derive(Serialize, Deserialize)]
struct From7 {
    value: u64,
}

impl Default for From7 {
    fn default() -> Self {
        Self { value: 7 }
    }
}

impl Object for From7 {
    const TYPE: &'static str = "sum from 7";
    const METHODS: &'static [Method<Self>] = &[];
    type Undo = ();

    fn exchange(&mut self, (): &mut ()) {}

    fn digest(&self) -> u64 {
        self.value
    }
}

#[test]
fn digests_of_a_version_with_another_form_are_left_in_its_checkpoint() {
    // They are of what that version encodes: records of this one would carry them as their own.
    let checkpoint = view(limits::DIGEST_EVERY).checkpoint().expect("made");
    let same = View::<Sum>::restore(STREAM, &checkpoint, Planted::NONE).expect("read");
    assert!(same.newest_check().is_some());
    let other = View::<From7>::restore(STREAM, &checkpoint, Planted::NONE).expect("read");
    assert_eq!(other.newest_check(), None);
}

/// What one version of a program counts in.
#[derive(Default, Serialize, Deserialize)]
struct Count {
    value: u64,
}

/// What the next one does.
#[derive(Default, Serialize, Deserialize)]
struct NotedCount {
    value: u64,
    #[serde(default)]
    note: Option<String>,
}

/// Adds to either.
#[derive(Serialize, Deserialize)]
struct AddSome {
    some: u64,
}

macro_rules! counts {
    ($($count:ident),*) => {$(
        impl Object for $count {
            const TYPE: &'static str = "count";
            const METHODS: &'static [Method<Self>] = &[Method::of::<AddSome>()];
            type Undo = u64;

            fn exchange(&mut self, undo: &mut u64) {
                std::mem::swap(&mut self.value, undo);
            }
        }

        impl Mutator<$count> for AddSome {
            const NAME: &'static str = "add_some";
            type Output = ();

            fn keys(&self) -> Keys {
                Keys::whole()
            }

            fn apply(self, count: &mut $count, _: LogPos, undo: &mut Vec<u64>) {
                undo.push(count.value);
                count.value += self.some;
            }
        }
    )*};
}

counts!(Count, NotedCount);

#[test]
fn an_object_with_one_more_field_goes_on_in_the_next_version_and_beside_it() {
    let every = limits::DIGEST_EVERY;
    let call = || call_of::<Count, _>(STREAM, &AddSome { some: 3 }).expect("it encodes");
    let records: Vec<_> = (0..every).map(|nth| record(nth, call())).collect();
    let old = checked::<Count>(&records, record(every, call()));
    let new = checked::<NotedCount>(&records, record(every, call()));
    assert!(old.checks.len() == 1 && old.checks != new.checks, "they encode the same state otherwise");
    let mut next = View::<NotedCount>::new(STREAM, Planted::NONE);
    play(&mut next, &records);
    play(&mut next, std::slice::from_ref(&old));
    let mut before = View::<Count>::new(STREAM, Planted::NONE);
    play(&mut before, &records);
    let named = before.digest_to_compare();
    play(&mut before, &[new]);
    assert!(next.compare_with_checkpoint(LogPos(every), named), "as the catalog names it");
    // Those of one version still find each other out.
    let mut wrong = View::<Count>::new(STREAM, Planted::NONE);
    play(&mut wrong, &records[..1]);
    wrong.harm(|count| count.value += 1);
    play(&mut wrong, &records[1..]);
    assert!(matches!(wrong.apply(LogPos(every), &old, false), Applied::Passed));
    assert!(!wrong.may_be(named) && wrong.fault().is_some());
}

#[test]
fn what_goes_back_to_its_bytes_is_compared_from_its_checkpoint_on() {
    // Else nobody would notice an object that is not deterministic after the first checkpoint.
    let every = limits::DIGEST_EVERY;
    let mut good = View::<MapState<u64, u64>>::new(STREAM, Planted::NONE);
    play(&mut good, &puts(0, every, |nth| nth));
    let checkpoint = good.checkpoint().expect("made");
    let mut begun = View::<MapState<u64, u64>>::restore(STREAM, &checkpoint, Planted::NONE).expect("read");
    play(&mut good, &puts(every, every, |nth| nth));
    play(&mut begun, &puts(every, every, |nth| nth));
    assert!(begun.newest_check().is_some() && begun.newest_check() == good.newest_check());
    let other = good.digest_to_compare() ^ 7;
    assert!(begun.may_be(good.digest_to_compare()) && !begun.may_be(other));
    assert!(!begun.compare_with_checkpoint(LogPos(2 * every), other));
    assert!(matches!(begun.fault(), Some(fault) if matches!(fault.kind, FaultKind::Diverged { .. })));
}

/// What is in a state that is in no encoding.
#[derive(Default, Serialize, Deserialize)]
enum Phase {
    #[default]
    Idle,
    #[serde(skip)]
    Busy,
}

/// Something that is busy at times.
#[derive(Default, Serialize, Deserialize)]
struct Worker {
    phase: Phase,
}

/// Makes it busy.
#[derive(Serialize, Deserialize)]
struct Begin {}

impl Object for Worker {
    const TYPE: &'static str = "worker";
    const METHODS: &'static [Method<Self>] = &[Method::of::<Begin>()];
    type Undo = Phase;

    fn exchange(&mut self, undo: &mut Phase) {
        std::mem::swap(&mut self.phase, undo);
    }
}

impl Mutator<Worker> for Begin {
    const NAME: &'static str = "begin";
    type Output = ();

    fn keys(&self) -> Keys {
        Keys::writes(Key::all())
    }

    fn apply(self, worker: &mut Worker, _: LogPos, undo: &mut Vec<Phase>) {
        undo.push(std::mem::replace(&mut worker.phase, Phase::Busy));
    }
}

#[test]
fn a_state_that_cannot_be_encoded_has_no_checkpoint_and_the_object_goes_on() {
    // A panic would take the whole program with it, at a moment that nobody has chosen.
    let mut view = View::<Worker>::new(STREAM, Planted::NONE);
    let begin = |request| record(request, call_of::<Worker, _>(STREAM, &Begin {}).expect("it encodes"));
    assert!(view.checkpoint().is_ok());
    play(&mut view, &(0..limits::DIGEST_EVERY).map(begin).collect::<Vec<_>>());
    let made = view.checkpoint();
    assert!(
        matches!(made, Err(SnapshotError::Call(CallError::Arguments { method: "checkpoint", .. }))),
        "{made:?}"
    );
    assert!(view.fault().is_none());
    play(&mut view, &[begin(limits::DIGEST_EVERY)]);
}
