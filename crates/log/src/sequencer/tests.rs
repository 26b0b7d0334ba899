//! Positions, batches and copies of batches; streams have tests of their own.

use super::*;
use crate::pos::POSITION_MAX;

/// Grants in the epoch and around it, with a new sequencer half way, as far as they are given.
fn granted(planted: Planted) -> Vec<(u64, LogPos)> {
    let mut out = Vec::new();
    let mut ask = |sequencer: &mut Sequencer, epoch, count| {
        if let Ok(grant) = sequencer.grant(Epoch(epoch), count) {
            out.extend((0..u64::from(grant.count)).map(|at| (epoch, LogPos(grant.first.0 + at))));
        }
    };
    let mut old = Sequencer::start_planted(Epoch(1), LogPos(0), planted);
    ask(&mut old, 1, 3);
    ask(&mut old, 2, 1);
    ask(&mut old, 1, 1);
    let mut new = Sequencer::start_planted(Epoch(2), LogPos(4), planted);
    ask(&mut new, 1, 1);
    ask(&mut new, 2, 2);
    out
}

#[test]
fn positions_are_granted_once_and_in_one_epoch_only() {
    let expected = [(1, 0), (1, 1), (1, 2), (1, 3), (2, 4), (2, 5)];
    assert_eq!(granted(Planted::NONE), expected.map(|(epoch, pos)| (epoch, LogPos(pos))));
}

#[test]
fn each_planted_fault_of_the_sequencer_shows() {
    for bug in [PlantedBug::SequencerStartsLow, PlantedBug::SequencerAnyEpoch, PlantedBug::GrantOverlaps] {
        assert_ne!(granted(Planted::bug(bug)), granted(Planted::NONE), "{bug:?}");
    }
}

#[test]
fn a_sequencer_of_full_units_grants_nothing_new_and_knows_what_it_has_granted() {
    let mut sequencer = Sequencer::start(Epoch(1), LogPos(0));
    let batch =
        BatchHead { client: ClientId(7), number: BatchNo(1), request: Default::default(), after: LogPos(0) };
    let placed = sequencer.append(Epoch(1), &batch, 2, Ok(()));
    let grant = Granted { first: LogPos(0), count: 2 };
    assert_eq!(placed, Ok(Placed::New(grant)));
    sequencer.set_full(true);
    assert_eq!(sequencer.grant(Epoch(1), 1), Err(Refusal::Full));
    assert_eq!(sequencer.append(Epoch(1), &batch, 2, Ok(())), Ok(Placed::Again(grant)));
    let next = BatchHead { number: BatchNo(2), ..batch };
    assert_eq!(sequencer.append(Epoch(1), &next, 1, Ok(())), Err(Refusal::Full));
    assert_eq!(sequencer.tail(Epoch(1)), Ok(LogPos(2)), "nothing was used up");
    sequencer.set_full(false);
    assert_eq!(sequencer.grant(Epoch(1), 1), Ok(Granted { first: LogPos(2), count: 1 }));
}

/// What becomes of batches, each sent with what the client knows of the tail, by a sequencer that remembers two.
fn placed(planted: Planted, sent: &[(u64, u64)]) -> Vec<Result<Placed, Refusal>> {
    let mut sequencer = Sequencer::start_planted(Epoch(1), LogPos(10), planted).remembering(2);
    let batch = |number, after| BatchHead {
        client: ClientId(7),
        number: BatchNo(number),
        request: Default::default(),
        after: LogPos(after),
    };
    let mut send = |&(number, after)| sequencer.append(Epoch(1), &batch(number, after), 2, Ok(()));
    sent.iter().map(&mut send).collect()
}

fn grant(first: u64) -> Granted {
    Granted { first: LogPos(first), count: 2 }
}

const COPIES: &[(u64, u64)] =
    &[(1, 10), (2, 10), (1, 10), (3, 10), (1, 10), (4, 10), (4, 12), (1, 10), (4, 12)];

#[test]
fn a_batch_is_granted_positions_once_however_often_and_late_its_copies_come() {
    let expected = [
        Ok(Placed::New(grant(10))),
        Ok(Placed::New(grant(12))),
        Ok(Placed::Again(grant(10))),
        Ok(Placed::New(grant(14))),
        // Forgotten now: neither the late copy nor a first one that knows too little is taken for new.
        Err(Refusal::Forgotten { from: LogPos(12) }),
        Err(Refusal::Forgotten { from: LogPos(12) }),
        Ok(Placed::New(grant(16))),
        Err(Refusal::Forgotten { from: LogPos(14) }),
        Ok(Placed::Again(grant(16))),
    ];
    assert_eq!(placed(Planted::NONE, COPIES), expected);
}

#[test]
fn each_planted_fault_of_batches_shows() {
    for bug in [PlantedBug::BatchGrantedTwice, PlantedBug::ForgottenIsNew] {
        assert_ne!(placed(Planted::bug(bug), COPIES), placed(Planted::NONE, COPIES), "{bug:?}");
    }
}

#[test]
fn a_batch_that_is_refused_or_knows_another_epochs_tail_uses_nothing_up() {
    assert_eq!(placed(Planted::NONE, &[(1, 11)]), [Err(Refusal::TooLarge { found: 11, limit: 10 })]);
    let mut sequencer = Sequencer::start(Epoch(1), LogPos(0));
    let batch =
        BatchHead { client: ClientId(7), number: BatchNo(1), request: Default::default(), after: LogPos(0) };
    let refused = sequencer.append(Epoch(1), &batch, 2, Err(Refusal::Full));
    assert_eq!(refused, Err(Refusal::Full));
    assert!(sequencer.append(Epoch(2), &batch, 2, Ok(())).is_err());
    assert_eq!(sequencer.append(Epoch(1), &batch, 2, Ok(())), Ok(Placed::New(grant(0))));
}

#[test]
fn positions_never_wrap() {
    let mut sequencer = Sequencer::start(Epoch(1), LogPos(POSITION_MAX));
    assert_eq!(sequencer.grant(Epoch(1), 2), Err(Refusal::Exhausted));
    assert_eq!(sequencer.grant(Epoch(1), 1), Ok(Granted { first: LogPos(POSITION_MAX), count: 1 }));
    assert_eq!(sequencer.grant(Epoch(1), 1), Err(Refusal::Exhausted));
}

#[test]
fn a_grant_of_nothing_or_of_too_much_is_refused() {
    let mut sequencer = Sequencer::start(Epoch(1), LogPos(0));
    for count in [0, limits::GRANT_MAX_COUNT + 1] {
        assert!(matches!(sequencer.grant(Epoch(1), count), Err(Refusal::TooLarge { .. })));
    }
    assert_eq!(sequencer.tail(Epoch(1)), Ok(LogPos(0)));
    assert_eq!(sequencer.tail(Epoch(2)), Err(Refusal::WrongEpoch { serving: Epoch(1), asked: Epoch(2) }));
}
