//! States that have no order of their own.

use super::*;
use crate::in_order::unordered::{Map, Set};
use crate::machine::{Machine, Played};

/// Who was here, how often and with what, of no order.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
struct Guests {
    names: Set<String>,
    visits: Map<String, Set<u64>>,
}

/// Somebody comes.
#[derive(Serialize, Deserialize)]
struct Come {
    name: String,
    what: u64,
}

impl Object for Guests {
    const TYPE: &'static str = "guests";
    const METHODS: &'static [Method<Self>] = &[Method::of::<Come>()];
    type Undo = Self;

    fn exchange(&mut self, undo: &mut Self) {
        std::mem::swap(self, undo);
    }
}

impl Mutator<Guests> for Come {
    const NAME: &'static str = "come";
    type Output = ();

    fn keys(&self) -> Keys {
        Keys::whole()
    }

    fn apply(self, guests: &mut Guests, _: LogPos, undo: &mut Vec<Guests>) {
        undo.push(guests.clone());
        guests.names.insert(self.name.clone());
        guests.visits.entry(self.name).or_default().insert(self.what);
    }
}

fn come(nth: u64) -> Record {
    let call = Come { name: format!("guest {}", nth % 50), what: nth };
    record(nth, call_of::<Guests, _>(STREAM, &call).expect("it encodes"))
}

#[test]
fn a_state_without_an_order_does_not_stop_the_object_and_a_wrong_one_does() {
    // Its calls go back to their bytes, and each program has the state in an order of its own: a stop would be for ever.
    let every = limits::DIGEST_EVERY;
    let records: Vec<_> = (0..every).map(come).collect();
    let next = checked::<Guests>(&records, come(every));
    assert_eq!(next.checks.len(), 1, "it says something to others");
    let mut view = View::<Guests>::new(STREAM, Planted::NONE);
    play(&mut view, &records);
    let checkpoint = view.checkpoint().expect("made");
    play(&mut view, std::slice::from_ref(&next));
    let mut begun = View::<Guests>::restore(STREAM, &checkpoint, Planted::NONE).expect("read");
    play(&mut begun, std::slice::from_ref(&next));
    assert_eq!(begun.state().expect("it goes on"), view.state().expect("it goes on"));
    let mut wrong = View::<Guests>::new(STREAM, Planted::NONE);
    play(&mut wrong, &records[..1]);
    wrong.harm(|guests| {
        guests.names.insert("nobody".into());
    });
    play(&mut wrong, &records[1..]);
    assert!(matches!(wrong.apply(LogPos(every), &next, false), Applied::Passed));
    assert!(matches!(wrong.fault(), Some(fault) if matches!(fault.kind, FaultKind::Diverged { .. })));
}

/// A machine that notes what it was told, in no order.
#[derive(Default, Serialize, Deserialize)]
struct Noted {
    numbers: Set<u64>,
}

impl Machine for Noted {
    const TYPE: &'static str = "noted";
    type Command = u64;
    type Response = bool;

    fn apply(&mut self, number: u64) -> bool {
        self.numbers.insert(number)
    }
}

/// A command in its call.
#[derive(Serialize, Deserialize)]
struct Tell {
    command: u64,
}

#[test]
fn a_machine_without_an_order_is_not_stopped_either() {
    let every = limits::DIGEST_EVERY;
    let arguments = |command| rmp_serde::to_vec_named(&Tell { command }).expect("it encodes").into();
    let method = Bytes::from_static(b"execute");
    let call = |nth| Call { stream: STREAM, method: method.clone(), arguments: arguments(nth) };
    let records: Vec<_> = (0..every).map(|nth| record(nth, call(nth))).collect();
    let next = checked::<Played<Noted>>(&records, record(every, call(every)));
    assert_eq!(next.checks.len(), 1, "it says something to others");
    let mut view = View::<Played<Noted>>::new(STREAM, Planted::NONE);
    play(&mut view, &records);
    play(&mut view, &[next]);
}
