//! Layouts that go on without nodes which are gone for good.

use std::collections::BTreeMap;

use super::change_tests::{change, completed, first, joined, lost, node, ranges};
use super::*;
use crate::planted::Planted;
use crate::pos::{Addr, AddrRange, Ballot};
use crate::unit::ReplyTo;
use crate::wire::{Sealed, Vote};

const GAP: u64 = limits::FILL_AHEAD_MAX_COUNT;

/// What `nodes` tell that hold positions of the active range up to `tail`.
fn sealed(layout: &Layout, nodes: &[u64], tail: u64) -> BTreeMap<NodeId, Sealed> {
    let active = layout.ranges.last().expect("there is one");
    let mut below = active.clone();
    below.end = LogPos(tail);
    let highest = |node: NodeId| {
        let held = (0..active.stripes.len()).filter(|&at| active.stripes[at].replicas.contains(&node));
        let last = |at| below.addresses(at).filter(|held| !held.is_empty()).map(|held| Addr(held.end.0 - 1));
        Sealed { epoch: layout.epoch, highest: held.map(last).collect() }
    };
    nodes.iter().map(|&node| (NodeId(node), highest(NodeId(node)))).collect()
}

fn without(layout: &Layout, gone: &[u64], nodes: &[u64], tail: u64) -> Layout {
    let gone: Vec<NodeId> = gone.iter().copied().map(NodeId).collect();
    let next = layout.without(&gone, &sealed(layout, nodes, tail)).expect("a layout");
    assert!(layout.may_be_followed_by(&next));
    assert_eq!(Layout::decode(&next.encode()).as_ref(), Ok(&next));
    next
}

/// Lost parts in words: `[replicas] block: first..end`.
fn parts(before: &Layout, next: &Layout) -> Vec<String> {
    let describe = |part: LostPart| {
        let ids: Vec<String> = part.replicas.iter().map(|node| node.0.to_string()).collect();
        let block = part.addresses.start.0 / limits::STRIPE_ADDRESSES;
        let within = |addr: Addr| addr.0 - block * limits::STRIPE_ADDRESSES;
        let AddrRange { start, end } = part.addresses;
        format!("[{}] {block}: {}..{}", ids.join(","), within(start), within(end))
    };
    before.lost_by(next).into_iter().map(describe).collect()
}

#[test]
fn what_nobody_is_left_of_and_what_lies_above_the_rest_holds_nothing() {
    let before = first(3, 2);
    let next = without(&before, &[2, 3], &[1], 30);
    let end = 30 + GAP;
    assert_eq!(
        ranges(&next),
        ["0: [1]@0 [1]@1 [1]@2".to_owned(), format!("{end}: [1]@{}", 3 + limits::LOSS_BLOCKS)]
    );
    assert_eq!((next.epoch, next.tail()), (before.epoch.after_loss(), LogPos(end)));
    assert_eq!((next.acceptors(), next.sequencer), (vec![NodeId(1)], NodeId(1)));
    // 65,566 positions over three stripes: 21,856 on the first, one less on the others.
    assert_eq!(parts(&before, &next), ["[1] 0: 10..21856", "[1] 1: 0..21855", "[1] 2: 10..21855"]);
    assert!(parts(&next, &before).is_empty() && parts(&before, &before.next_epoch(LogPos(30))).is_empty());
}

#[test]
fn stripes_of_older_ranges_are_lost_only_where_nobody_is_left() {
    let whole = first(4, 2);
    let three = change(&whole, 40, &lost(&[4]));
    let back = change(&three, 70, &joined(&[4]));
    let before = change(&back, 70, &completed(&back));
    let next = without(&before, &[1, 2], &[3, 4], 100);
    let lost = parts(&before, &next);
    // The first stripe of the first range was on 1 and 2 alone; the others have 3 or 4. What lies above 100 is of the last range.
    assert_eq!(
        lost.iter().filter(|part| part.contains(": 0..")).count(),
        3,
        "{:?} {lost:?}",
        ranges(&before)
    );
    assert_eq!(next.in_use().collect::<Vec<_>>(), [NodeId(3), NodeId(4)]);
    // Nothing of it is lost again by what follows.
    let later = change(&next, next.tail().0 + 5, &Change::default());
    assert!(parts(&next, &later).is_empty() && parts(&before, &later).is_empty());
}

#[test]
fn nodes_that_were_out_are_in_use_and_those_that_leave_leave() {
    let before = change(
        &change(&first(5, 2), 20, &lost(&[4])),
        20,
        &Change { removed: vec![NodeId(5)], ..Change::default() },
    );
    let next = without(&before, &[2, 3], &[1, 4, 5], 25);
    let states: Vec<NodeState> = next.nodes.iter().map(|node| node.state).collect();
    assert_eq!(states, [NodeState::InUse, NodeState::InUse, NodeState::Leaving]);
}

#[test]
fn what_is_left_must_make_a_cluster_and_answer_for_its_own_stripes() {
    let before = first(3, 2);
    let all = [1, 2, 3].map(NodeId);
    let none = before.without(&all, &BTreeMap::new());
    assert_eq!(none, Err(LossError::Change(ChangeError::NoSequencer)));
    let mut answers = sealed(&before, &[1], 30);
    answers.get_mut(&NodeId(1)).expect("it is there").highest.pop();
    let told = before.without(&all[1..], &answers);
    assert!(
        matches!(told, Err(LossError::Tail(TailError::Extents { found: 1, expected: 2, .. }))),
        "{told:?}"
    );
}

#[test]
fn it_takes_the_place_of_the_next_epoch_and_of_no_other() {
    use acceptor::{Answer, Effect, Input};
    let decides = |id| Node { roles: node(id).roles.with(Roles::LAYOUT), ..node(id) };
    let before = Layout::first(ClusterId(7), (1..=3).map(decides).collect(), 2, 2).expect("a layout");
    let next = without(&before, &[2, 3], &[1], 30);
    let ballot = |round| Ballot { round, proposer: NodeId(1) };
    let to = ReplyTo(0);
    let mut acceptor = Acceptor::new(NodeId(1), Planted::NONE);
    let mut effects = Vec::new();
    acceptor.step(Input::Learn { to, layout: before.clone() }, &mut effects);
    acceptor.step(Input::Persisted, &mut effects);
    let accept = |layout: &Layout| Input::Accept { to, ballot: ballot(5), layout: layout.clone() };
    let refused = |effects: &[Effect]| matches!(effects, [Effect::Reply { answer: Answer::Refused(_), .. }]);
    // A wrong number of an epoch is none; nor is one that has lost nobody.
    for wrong in [Layout { nodes: before.nodes.clone(), ..next.clone() }, {
        let mut wrong = next.clone();
        wrong.epoch = wrong.epoch.next();
        wrong.tails.iter_mut().for_each(|tail| tail.epoch = tail.epoch.next());
        wrong
    }] {
        let mut effects = Vec::new();
        acceptor.step(accept(&wrong), &mut effects);
        assert!(refused(&effects), "{effects:?}");
    }
    let mut effects = Vec::new();
    acceptor.step(accept(&next), &mut effects);
    let [Effect::Persist { record }] = &effects[..] else { panic!("it is stored: {effects:?}") };
    // Who takes the cluster to the next epoch finds it, also after a restart.
    let mut acceptor = Acceptor::recover(NodeId(1), record, Planted::NONE).expect("it was stored");
    let mut effects = Vec::new();
    acceptor.step(Input::Prepare { to, epoch: before.epoch.next(), ballot: ballot(6) }, &mut effects);
    acceptor.step(Input::Persisted, &mut effects);
    let promised = Answer::Promise(Vote::Given { accepted: Some((ballot(5), next.clone())) });
    assert!(effects.contains(&Effect::Reply { to, answer: promised }), "{effects:?}");
    let mut proposer = Proposer::new(NodeId(2), before.epoch.next(), before.acceptors(), Planted::NONE);
    let mut effects = Vec::new();
    proposer.step(proposer::Input::Begin, &mut effects);
    let vote = |accepted| Some(Vote::Given { accepted });
    let ballot = Ballot { round: 1, proposer: NodeId(2) };
    let answers = [(1, vote(Some((Ballot::NONE, next.clone())))), (2, vote(None))];
    for (from, vote) in answers {
        proposer.step(proposer::Input::Promise { from: NodeId(from), ballot, vote }, &mut effects);
    }
    proposer.step(proposer::Input::Propose { layout: next.clone() }, &mut effects);
    assert_eq!(effects.last(), Some(&proposer::Effect::Accept { ballot, layout: next.clone() }));
    // The node knows what it has to hold nothing of, for as long as it remembers the layout before.
    let mut effects = Vec::new();
    acceptor.step(Input::Learn { to, layout: next.clone() }, &mut effects);
    acceptor.step(Input::Persisted, &mut effects);
    let lost: Vec<AddrRange> = before.lost_by(&next).iter().map(|part| part.addresses).collect();
    assert_eq!((acceptor.lost_at(NodeId(1)), acceptor.lost_at(NodeId(2))), (lost, vec![]));
}
