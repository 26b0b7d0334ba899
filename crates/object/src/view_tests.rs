//! Views that stop, and what of that the others know.

use bytes::Bytes;
use ithaca_log::pos::{LogPos, StreamId};
use serde::{Deserialize, Serialize};

use crate::collections::{Blob, MapState, Put};
use crate::key::Keys;
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
}
