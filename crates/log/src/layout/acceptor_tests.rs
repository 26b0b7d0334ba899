//! Acceptors by script: what is answered when, and what survives.

use super::acceptor::{Answer, Effect, Input};
use super::proposer::{self, Proposer};
use super::*;
use crate::planted::{Planted, PlantedBug};
use crate::pos::Ballot;
use crate::unit::ReplyTo;
use crate::wire::Vote;

/// A first layout whose acceptors are the nodes 1 to `count`.
fn first(count: u64) -> Layout {
    let roles = Roles::LAYOUT.with(Roles::SEQUENCER).with(Roles::UNIT);
    let node = |id| Node::new(NodeId(id), roles, format!("127.0.0.1:{}", 7000 + id));
    Layout { nodes: (1..=count).map(node).collect(), ..Layout::single(ClusterId(7), node(1)) }
}

fn ballot(round: u64) -> Ballot {
    Ballot { round, proposer: NodeId(1) }
}

fn prepare(to: u64, epoch: u64, round: u64) -> Input {
    Input::Prepare { to: ReplyTo(to), epoch: Epoch(epoch), ballot: ballot(round) }
}

fn accept(to: u64, round: u64, layout: &Layout) -> Input {
    Input::Accept { to: ReplyTo(to), ballot: ballot(round), layout: layout.clone() }
}

fn learn(to: u64, layout: &Layout) -> Input {
    Input::Learn { to: ReplyTo(to), layout: layout.clone() }
}

/// Node 1, which has learned `layout`.
fn learned(layout: &Layout, planted: Planted) -> Acceptor {
    let mut acceptor = Acceptor::new(NodeId(1), planted);
    acceptor.step(learn(0, layout), &mut Vec::new());
    acceptor.step(Input::Persisted, &mut Vec::new());
    acceptor
}

/// What `input` makes the acceptor do, in words: `persist`, and answers as `TO what`.
fn step(acceptor: &mut Acceptor, input: Input) -> Vec<String> {
    let mut effects = Vec::new();
    acceptor.step(input, &mut effects);
    effects.iter().map(describe).collect()
}

fn describe(effect: &Effect) -> String {
    let Effect::Reply { to, answer } = effect else { return "persist".to_owned() };
    let vote = |vote: &Vote<Layout>| match vote {
        Vote::Given { accepted: None } => "given".to_owned(),
        Vote::Given { accepted: Some((ballot, layout)) } => {
            format!("given, tail {} at {}", layout.tail(), ballot.round)
        }
        Vote::Overtaken { promised } => format!("overtaken by {}", promised.round),
        Vote::Decided { layout } => format!("decided {} tail {}", layout.epoch, layout.tail()),
    };
    let what = match answer {
        Answer::Promise(given) | Answer::Accepted(given) => vote(given),
        Answer::Learned(epoch) => format!("learned {epoch}"),
        Answer::Leased(granted) => format!("leased {granted}"),
        Answer::Layout(layout) => format!("layout {}", layout.epoch),
        Answer::Refused(refusal) => refusal.to_string(),
    };
    format!("{} {what}", to.0)
}

#[test]
fn nothing_is_answered_before_it_is_durable_and_what_comes_meanwhile_is_stored_together() {
    let before = first(3);
    let mut acceptor = learned(&before, Planted::NONE);
    assert_eq!(step(&mut acceptor, prepare(1, 2, 1)), ["persist"]);
    assert!(step(&mut acceptor, prepare(2, 2, 4)).is_empty());
    assert!(step(&mut acceptor, prepare(3, 2, 3)).is_empty(), "overtaken by what is not durable yet");
    assert!(step(&mut acceptor, accept(4, 4, &before.next_epoch(LogPos(5)))).is_empty());
    assert_eq!(step(&mut acceptor, Input::Persisted), ["1 given", "persist"]);
    assert_eq!(step(&mut acceptor, Input::Persisted), ["2 given", "3 overtaken by 4", "4 given"]);
    assert_eq!(step(&mut acceptor, prepare(5, 2, 5)), ["persist"]);
    assert_eq!(step(&mut acceptor, Input::Persisted), ["5 given, tail 5 at 4"]);
}

#[test]
fn the_same_ballot_is_promised_once() {
    // A proposer that is restarted begins with the ballot that it had, and might propose something else at it.
    let mut acceptor = learned(&first(3), Planted::NONE);
    step(&mut acceptor, prepare(1, 2, 1));
    step(&mut acceptor, Input::Persisted);
    assert_eq!(step(&mut acceptor, prepare(2, 2, 1)), ["2 overtaken by 1"]);
}

#[test]
fn a_ballot_far_above_all_before_is_not_taken() {
    // One wrong number would use up all that there are, and nothing could be decided any more.
    let before = first(3);
    let far = crate::limits::ROUNDS_AHEAD_MAX;
    let mut acceptor = learned(&before, Planted::NONE);
    let next = before.next_epoch(LogPos(5));
    for round in [far + 1, 1 << 56, u64::MAX] {
        assert_eq!(step(&mut acceptor, prepare(1, 2, round)), ["1 overtaken by 0"], "{round}");
        assert_eq!(step(&mut acceptor, accept(1, round, &next)), ["1 overtaken by 0"], "{round}");
    }
    assert_eq!(step(&mut acceptor, prepare(2, 2, far)), ["persist"]);
    assert_eq!(step(&mut acceptor, Input::Persisted), ["2 given"]);
    assert_eq!(step(&mut acceptor, accept(3, 2 * far + 1, &next)), [format!("3 overtaken by {far}")]);
    assert_eq!(step(&mut acceptor, accept(4, 2 * far, &next)), ["persist"]);
}

/// Acceptors of a first layout, of which each has promised this round, or is gone, and a proposer of node 1: with which round a majority
/// promises.
fn prepared(promised: &[Option<u64>]) -> Option<u64> {
    let layout = first(promised.len() as u64);
    let acceptor = |round| {
        let mut acceptor = learned(&layout, Planted::NONE);
        acceptor.promised = ballot(round);
        acceptor
    };
    let mut acceptors: Vec<_> = promised.iter().map(|round| round.map(acceptor)).collect();
    let mut proposer = Proposer::new(NodeId(1), Epoch(2), layout.acceptors(), Planted::NONE);
    for _ in 0..20 {
        let mut effects = Vec::new();
        proposer.step(proposer::Input::Begin, &mut effects);
        let Some(proposer::Effect::Prepare { ballot }) = effects.pop() else { panic!("it prepares") };
        for (acceptor, id) in acceptors.iter_mut().zip(1..) {
            let mut answers = Vec::new();
            if let Some(acceptor) = acceptor {
                let prepare = Input::Prepare { to: ReplyTo(id), epoch: Epoch(2), ballot };
                acceptor.step(prepare, &mut answers);
                if let [Effect::Persist { .. }] = answers[..] {
                    acceptor.step(Input::Persisted, &mut answers);
                }
            }
            let vote = match answers.pop() {
                Some(Effect::Reply { answer: Answer::Promise(vote), .. }) => Some(vote),
                _ => None,
            };
            proposer.step(proposer::Input::Promise { from: NodeId(id), ballot, vote }, &mut effects);
        }
        if effects.contains(&proposer::Effect::Prepared) {
            return Some(ballot.round);
        }
    }
    None
}

#[test]
fn a_proposer_brings_acceptors_together_that_a_wrong_number_has_driven_apart() {
    let far = crate::limits::ROUNDS_AHEAD_MAX;
    assert_eq!(prepared(&[Some(0), Some(0), Some(0)]), Some(1));
    assert_eq!(prepared(&[Some(far), Some(far), Some(far)]), Some(far + 1));
    assert_eq!(prepared(&[Some(far), Some(7), None]), Some(far + 1));
    // The first takes nothing as low as what the second takes.
    for apart in 1..5 {
        let round = prepared(&[Some(apart * far + 9), Some(0), None]).expect("they come together");
        assert!((apart * far + 9..(apart + 1) * far).contains(&round), "{apart}: {round}");
    }
    assert_eq!(prepared(&[Some(u64::MAX), Some(u64::MAX), Some(0)]), None, "and it ends no process");
}

#[test]
fn an_acceptor_that_is_behind_says_so_and_one_that_is_ahead_tells_what_was_decided() {
    let before = first(3);
    let (second, third) = (before.next_epoch(LogPos(5)), before.next_epoch(LogPos(5)).next_epoch(LogPos(9)));
    let mut acceptor = learned(&before, Planted::NONE);
    assert_eq!(step(&mut acceptor, prepare(1, 3, 1)), ["1 asked for in epoch 3, served in epoch 1"]);
    assert_eq!(step(&mut acceptor, learn(2, &third)), ["persist"]);
    assert_eq!(step(&mut acceptor, Input::Persisted), ["2 learned e3"]);
    assert_eq!(step(&mut acceptor, accept(3, 9, &second)), ["3 decided e3 tail 9"], "e2 is not known here");
    assert_eq!(step(&mut acceptor, prepare(4, 1, 1)), ["4 decided e1 tail 0"]);
    assert_eq!(step(&mut acceptor, learn(5, &second)), ["5 learned e3"]);
}

#[test]
fn who_decides_nothing_votes_on_what_goes_on_without_those_who_do_and_on_nothing_else() {
    let decide = |node: &mut Node| {
        if node.id != NodeId(2) {
            node.roles = node.roles.without(Roles::LAYOUT);
        }
    };
    let mut before = first(3);
    before.nodes.iter_mut().for_each(decide);
    let mut acceptor = learned(&before, Planted::NONE);
    let none = "1 the node does not have the role 1";
    assert_eq!(step(&mut acceptor, prepare(1, 2, 1)), [none]);
    assert_eq!(step(&mut acceptor, accept(1, 1, &before.next_epoch(LogPos(5)))), [none]);
    let after = before.epoch.after_loss();
    assert_eq!(step(&mut acceptor, prepare(1, after.0 + 1, 1)).len(), 1);
    assert_eq!(step(&mut acceptor, prepare(2, after.0, 4)), ["persist"]);
    assert_eq!(step(&mut acceptor, Input::Persisted), ["2 given"]);
    assert_eq!(step(&mut acceptor, prepare(3, after.0, 3)), ["3 overtaken by 4"]);
}

#[test]
fn an_acceptor_refuses_what_does_not_follow_and_what_it_has_no_part_in() {
    let before = first(3);
    let mut acceptor = learned(&before, Planted::NONE);
    let stranger = Layout { cluster: ClusterId(8), ..before.next_epoch(LogPos(5)) };
    let belongs = format!("1 the node belongs to cluster {}", ClusterId(7));
    assert_eq!(step(&mut acceptor, accept(1, 1, &stranger)), [belongs.as_str()]);
    for told in [stranger, Layout { cluster: ClusterId(8), ..first(3) }] {
        assert_eq!(step(&mut acceptor, learn(1, &told)), [belongs.as_str()]);
    }
    let malformed = "1 a message of kind 0x0011 cannot be decoded";
    let untold = Layout { tails: Vec::new(), ..before.next_epoch(LogPos(5)) };
    assert_eq!(step(&mut acceptor, accept(1, 1, &untold)), [malformed]);
    let mut outside = Acceptor::new(NodeId(9), Planted::NONE);
    step(&mut outside, learn(1, &before));
    step(&mut outside, Input::Persisted);
    let lacks = "1 the node does not have the role 1";
    assert_eq!(step(&mut outside, prepare(1, 2, 1)), [lacks]);
    assert_eq!(step(&mut outside, accept(1, 1, &before.next_epoch(LogPos(5)))), [lacks]);
}

#[test]
fn a_lone_acceptor_decides_with_one_write() {
    let before = first(1);
    let mut acceptor = learned(&before, Planted::NONE);
    assert_eq!(step(&mut acceptor, prepare(1, 2, 1)), ["1 given"]);
    assert_eq!(step(&mut acceptor, accept(2, 1, &before.next_epoch(LogPos(5)))), ["persist"]);
    assert_eq!(step(&mut acceptor, Input::Get { to: ReplyTo(3), epoch: None }), ["3 layout e1"]);
    assert_eq!(step(&mut acceptor, Input::Persisted), ["2 given"]);
    assert_eq!(step(&mut acceptor, Input::Get { to: ReplyTo(4), epoch: None }), ["4 layout e2"]);
    assert_eq!(step(&mut acceptor, accept(5, 9, &before.next_epoch(LogPos(6)))), ["5 decided e2 tail 5"]);
}

#[test]
fn a_lone_acceptor_grants_no_lease_in_the_epoch_that_it_finds_at_a_restart() {
    // Its promise was in memory only: somebody may have waited for the leases' end, and be about to use the next epoch.
    let lease = |epoch| Input::Lease { to: ReplyTo(1), epoch: Epoch(epoch) };
    let granted = |planted, count| {
        let mut acceptor = Acceptor::new(NodeId(1), planted);
        let mut effects = Vec::new();
        acceptor.step(learn(0, &first(count)), &mut effects);
        let Some(Effect::Persist { record }) = effects.pop() else { panic!("a record to store") };
        let mut acceptor = Acceptor::recover(NodeId(1), &record, planted).expect("it was just stored");
        step(&mut acceptor, lease(1))
    };
    assert_eq!(granted(Planted::NONE, 1), ["1 leased false"]);
    assert_eq!(granted(Planted::NONE, 3), ["1 leased true"], "with others, promises are durable");
    assert_eq!(granted(Planted::bug(PlantedBug::LeaseAfterRestart), 1), ["1 leased true"]);
}

#[test]
fn a_failed_acceptor_promises_nothing_more_and_shows_only_what_was_durable() {
    let before = first(3);
    let mut acceptor = learned(&before, Planted::NONE);
    step(&mut acceptor, learn(1, &before.next_epoch(LogPos(5))));
    step(&mut acceptor, prepare(2, 3, 1));
    assert_eq!(step(&mut acceptor, Input::Failed), ["1 the node has failed", "2 the node has failed"]);
    assert_eq!(step(&mut acceptor, prepare(3, 3, 2)), ["3 the node has failed"]);
    assert_eq!(step(&mut acceptor, Input::Get { to: ReplyTo(4), epoch: None }), ["4 layout e1"]);
    let lease = Input::Lease { to: ReplyTo(5), epoch: Epoch(1) };
    assert_eq!(step(&mut acceptor, lease), ["5 leased false"]);
}

#[test]
fn an_acceptor_keeps_its_record_small_whatever_it_decides() {
    // A history of large layouts must not outgrow what its record may take; the latest must stay, and room for the next.
    let mut large = first(3);
    let node = |id| Node::new(NodeId(id), Roles::UNIT, "x".repeat(256));
    large.nodes.extend((4..=1000).map(node));
    let mut acceptor = learned(&large, Planted::NONE);
    for round in 0..12 {
        let next = large.next_epoch(LogPos(round));
        for input in [accept(1, 1, &next), learn(1, &next)] {
            let mut effects = Vec::new();
            acceptor.step(input, &mut effects);
            let Some(Effect::Persist { record }) = effects.first() else { panic!("{round}: {effects:?}") };
            assert!(record.len() <= crate::limits::ACCEPTOR_MAX_BYTES, "{} bytes", record.len());
            acceptor.step(Input::Persisted, &mut Vec::new());
        }
        assert_eq!(acceptor.latest(), Some(&next));
        large = next;
    }
}
