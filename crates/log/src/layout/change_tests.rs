//! Layouts that change: by example, and at random with a model of what lies where.

use std::collections::{BTreeMap, BTreeSet};

use ithaca_env::sim::Random;

use super::*;
use crate::limits;

pub(super) fn node(id: u64) -> Node {
    let roles = Roles::SEQUENCER.with(Roles::UNIT);
    let roles = if id == 1 { roles.with(Roles::LAYOUT) } else { roles };
    Node::new(NodeId(id), roles, format!("127.0.0.1:{}", 7000 + id))
}

/// The first layout of `units` nodes, which do everything, with `replicas` copies of which all are needed.
pub(super) fn first(units: u64, replicas: u16) -> Layout {
    Layout::first(ClusterId(7), (1..=units).map(node).collect(), replicas, replicas).expect("a layout")
}

pub(super) fn lost(nodes: &[u64]) -> Change {
    Change { lost: nodes.iter().map(|&id| NodeId(id)).collect(), ..Change::default() }
}

pub(super) fn joined(nodes: &[u64]) -> Change {
    Change { joined: nodes.iter().map(|&id| node(id)).collect(), ..Change::default() }
}

pub(super) fn completed(layout: &Layout) -> Change {
    Change { completed: layout.missing(), ..Change::default() }
}

/// Ranges in words: `START: [replicas] [replicas]`, with `@` and the block where one begins.
pub(super) fn ranges(layout: &Layout) -> Vec<String> {
    let stripe = |stripe: &Stripe| {
        let ids: Vec<String> = stripe.replicas.iter().map(|node| node.0.to_string()).collect();
        format!(" [{}]@{}", ids.join(","), stripe.base.0 / limits::STRIPE_ADDRESSES)
    };
    let words = |range: &RangeMap| range.stripes.iter().map(stripe).collect::<String>();
    layout.ranges.iter().map(|range| format!("{}:{}", range.start, words(range))).collect()
}

/// The layout that follows, which is decided.
pub(super) fn change(layout: &Layout, tail: u64, change: &Change) -> Layout {
    let next = layout.change(LogPos(tail), change).expect("a layout");
    assert!(layout.may_be_followed_by(&next));
    assert_eq!(Layout::decode(&next.encode()).as_ref(), Ok(&next));
    assert_eq!(layout.change(LogPos(tail), change).as_ref(), Ok(&next), "always the same");
    next
}

#[test]
fn stripes_are_arranged_by_rotation() {
    let check = |units: u64, replicas, expected: &str| {
        let units: Vec<NodeId> = (1..=units).map(NodeId).collect();
        let stripes = arrange(&units, replicas);
        let plain: Vec<Vec<u64>> = stripes.iter().map(|at| at.iter().map(|node| node.0).collect()).collect();
        assert_eq!(format!("{plain:?}"), expected);
    };
    check(3, 2, "[[1, 2], [2, 3], [3, 1]]");
    check(4, 2, "[[1, 2], [2, 3], [3, 4], [4, 1]]");
    check(3, 1, "[[1], [2], [3]]");
    check(2, 3, "[[1, 2], [2, 1]]");
    check(1, 2, "[[1]]");
}

#[test]
fn a_lost_node_leaves_and_comes_back() {
    let a = first(3, 2);
    assert_eq!(ranges(&a), ["0: [1,2]@0 [2,3]@1 [3,1]@2"]);
    let b = change(&a, 40, &lost(&[3]));
    assert_eq!(ranges(&b), ["0: [1,2]@0 [2]@1 [1]@2", "40: [1,2]@3 [2,1]@4"]);
    assert_eq!(b.node(NodeId(3)).map(|node| node.state), Some(NodeState::Out));
    let c = change(&b, 50, &completed(&b));
    assert_eq!(ranges(&c), ["0: [1,2]@0 [2,1]@1 [1,2]@2", "40: [1,2]@3 [2,1]@4"]);
    assert_eq!((c.tail(), c.missing()), (LogPos(50), Vec::new()));
    let d = change(&c, 60, &joined(&[3]));
    assert_eq!(ranges(&d)[2], "60: [1,2]@5 [2,3]@6 [3,1]@7");
    let e = change(&d, 70, &Change::default());
    assert_eq!(ranges(&e), ranges(&d), "a restart changes nothing but the epoch and the tail");
    let f = change(&e, 70, &Change { trimmed: LogPos(45), ..Change::default() });
    assert_eq!(ranges(&f)[0], "40: [1,2]@3 [2,1]@4", "what is trimmed wholly is dropped");
}

#[test]
fn an_empty_range_is_replaced_and_its_addresses_are_not_used_again() {
    let mut layout = change(&first(3, 2), 40, &lost(&[3]));
    for _ in 0..500 {
        layout = change(&layout, 40, &joined(&[3]));
        layout = change(&layout, 40, &lost(&[3]));
    }
    assert_eq!(layout.ranges.len(), 2);
    assert_eq!(ranges(&layout)[1], format!("40: [1,2]@{} [2,1]@{}", 3 + 500 * 5, 4 + 500 * 5));
}

#[test]
fn the_last_replica_of_a_closed_stripe_stays_named_though_it_is_out() {
    let a = first(3, 1);
    let b = change(&a, 30, &lost(&[2]));
    assert_eq!(ranges(&b), ["0: [1]@0 [2]@1 [3]@2", "30: [1]@3 [3]@4"]);
    assert_eq!(b.missing(), Vec::new(), "there is nothing to copy from");
    let c = change(&b, 30, &joined(&[2]));
    let d = change(&c, 30, &lost(&[2, 3]));
    assert_eq!(ranges(&d)[0], "0: [1]@0 [2]@1 [3]@2");
}

#[test]
fn missing_copies_are_spread_evenly() {
    // What node 4 held, half of everything twice, goes to those that hold least.
    let a = change(&first(4, 2), 4000, &lost(&[4]));
    let missing = a.missing();
    let copies: Vec<(usize, u64)> = missing.iter().map(|copy| (copy.stripe, copy.node.0)).collect();
    assert_eq!(copies, [(2, 1), (3, 2)], "1 and 2: stripes 2 and 3 lack a copy, and 3 has one of them");
    let b = change(&a, 4000, &joined(&[4, 5]));
    let copies: Vec<(usize, u64)> = b.missing().iter().map(|copy| (copy.stripe, copy.node.0)).collect();
    assert_eq!(copies, [(2, 4), (3, 5)], "those that hold nothing come first");
}

#[test]
fn a_lost_sequencer_is_followed_by_the_next_node_that_may_be_one() {
    let a = first(3, 1);
    assert_eq!(a.sequencer, NodeId(1));
    let b = change(&a, 3, &Change { sequencer: Some(NodeId(3)), ..Change::default() });
    assert_eq!((b.sequencer, ranges(&b)), (NodeId(3), ranges(&a)));
    let c = change(&b, 3, &lost(&[3]));
    assert_eq!(c.sequencer, NodeId(1), "around the circle");
    let d = change(&c, 3, &Change { lost: vec![NodeId(1)], ..joined(&[3]) });
    assert_eq!(d.sequencer, NodeId(2));
}

#[test]
fn a_range_goes_on_in_other_blocks_long_before_the_addresses_of_its_own_end() {
    // Positions past them would have no place: one entry far above the end is enough to bring the tail there.
    let (nothing, all) = (Change::default(), 3 * limits::STRIPE_ADDRESSES);
    let a = first(3, 2);
    let b = change(&a, all / 2 - 1, &nothing);
    assert_eq!(ranges(&b), ranges(&a));
    for tail in [all / 2, all - 2, all] {
        let c = change(&b, tail, &nothing);
        let new = format!("{tail}: [1,2]@3 [2,3]@4 [3,1]@5");
        assert_eq!(ranges(&c), [ranges(&a).remove(0), new]);
        assert!([tail - 1, tail, tail + 2].iter().all(|&pos| c.locate(LogPos(pos)).is_some()));
        assert_eq!(ranges(&change(&c, tail + 9, &nothing)), ranges(&c));
    }
    // The addresses of the next block follow those of this one.
    let c = change(&first(1, 1), limits::STRIPE_ADDRESSES, &nothing);
    assert_eq!(ranges(&c), ["0: [1]@0".to_owned(), format!("{}: [1]@1", limits::STRIPE_ADDRESSES)]);
    assert!(c.locate(LogPos(limits::STRIPE_ADDRESSES)).is_some());
}

#[test]
fn what_cannot_be_changed_says_why() {
    let a = change(&first(2, 2), 10, &Change::default());
    let refused = |tail, change: &Change| a.change(LogPos(tail), change).expect_err("it cannot");
    let below = ChangeError::TailBelow { tail: LogPos(9), decided: LogPos(10) };
    assert_eq!(refused(9, &Change::default()), below);
    assert_eq!(refused(10, &lost(&[7])), ChangeError::NotMember { node: NodeId(7) });
    assert_eq!(refused(10, &lost(&[1, 2])), ChangeError::NoSequencer);
    let gone = Change { sequencer: Some(NodeId(2)), ..lost(&[2]) };
    assert_eq!(refused(10, &gone), ChangeError::NotSequencer { node: NodeId(2) });
    let copy = Copy { start: LogPos(0), stripe: 0, node: NodeId(1) };
    let open = Change { completed: vec![copy], ..Change::default() };
    let no_such = ChangeError::NoSuchCopy { start: LogPos(0), stripe: 0, node: NodeId(1) };
    assert_eq!(refused(10, &open), no_such, "the active range has no copies to complete");
    let full = Layout { next_base: Addr(u64::MAX - limits::STRIPE_ADDRESSES), ..a };
    let exhausted = full.change(LogPos(10), &joined(&[3, 4]));
    assert_eq!(exhausted, Err(ChangeError::AddressesExhausted));
}

#[test]
fn with_fewer_units_than_the_minimum_nothing_is_appended_until_the_operator_asks_for_less() {
    let a = first(2, 2);
    assert_eq!(a.shortage(), None);
    let b = change(&a, 10, &lost(&[2]));
    assert_eq!((b.shortage(), ranges(&b)[1].as_str()), (Some((1, 2)), "10: [1]@2"));
    assert_eq!(change(&b, 10, &Change::default()).shortage(), Some((1, 2)), "a restart changes nothing");
    let least = |count| Change { min_replicas: Some(count), ..Change::default() };
    let c = change(&b, 10, &least(1));
    assert_eq!((c.shortage(), ranges(&c)), (None, ranges(&b)), "every position lies where it would have");
    let d = change(&c, 20, &least(2));
    assert_eq!(d.shortage(), Some((1, 2)));
    let e = change(&d, 20, &joined(&[2]));
    assert_eq!((e.shortage(), ranges(&e)[2].as_str()), (None, "20: [1,2]@3 [2,1]@4"));
    let counts = LayoutError::ReplicaCounts { replicas: 2, min_replicas: 3, max: limits::REPLICAS_MAX_COUNT };
    assert_eq!(e.change(LogPos(20), &least(3)), Err(ChangeError::Layout(counts)));
    let two = (1..=2).map(node).collect();
    let few = ChangeError::TooFewUnits { found: 2, needed: 3 };
    assert_eq!(Layout::first(ClusterId(7), two, 3, 3), Err(few));
    let counts = LayoutError::ReplicaCounts { replicas: 3, min_replicas: 4, max: limits::REPLICAS_MAX_COUNT };
    let six = || (1..=6).map(node).collect();
    assert_eq!(Layout::first(ClusterId(7), six(), 3, 4), Err(ChangeError::Layout(counts)));
}

#[test]
fn a_rebuilt_replica_makes_one_range_of_two_as_in_figure_3_8() {
    // (B): F6 is lost at 50K and F8 is in its place for what comes. (C): F8 holds a copy of what F6 held.
    const K: u64 = 1000;
    let range = |start, end, base, second: &[u64]| {
        let stripe =
            |ids: &[u64]| Stripe { replicas: ids.iter().map(|&id| NodeId(id)).collect(), base: Addr(base) };
        let other = Stripe { base: Addr(limits::STRIPE_ADDRESSES + base), ..stripe(second) };
        RangeMap { start: LogPos(start), end, stripes: vec![stripe(&[4, 5]), other] }
    };
    let b = Layout {
        nodes: [1, 4, 5, 7, 8].map(node).to_vec(),
        ranges: vec![range(40 * K, LogPos(50 * K), 0, &[7]), range(50 * K, OPEN_END, 5 * K, &[7, 8])],
        ..first(2, 2)
    };
    let b = Layout {
        nodes: b
            .nodes
            .iter()
            .map(|node| match node.id {
                NodeId(1) => Node { roles: Roles::LAYOUT.with(Roles::SEQUENCER), ..node.clone() },
                _ => node.clone(),
            })
            .collect(),
        ..b
    };
    assert_eq!(b.validate(), Ok(()));
    assert_eq!(b.missing(), [Copy { start: LogPos(40 * K), stripe: 1, node: NodeId(8) }]);
    let c = change(&b, 60 * K, &completed(&b));
    assert_eq!(c.ranges, [range(40 * K, OPEN_END, 0, &[7, 8])]);
    for pos in [40 * K, 40 * K + 1, 50 * K - 1, 50 * K, 55 * K + 1] {
        let (before, after) = (b.locate(LogPos(pos)), c.locate(LogPos(pos)));
        assert_eq!(before.map(|at| at.addr), after.map(|at| at.addr), "{pos}");
    }
}

/// What a test knows of the cluster: where each position lies, and which nodes hold it.
struct Model {
    layout: Layout,
    tail: u64,
    trimmed: u64,
    entries: BTreeMap<u64, (Addr, BTreeSet<NodeId>)>,
    used: BTreeSet<Addr>,
    /// What lost nodes may hold above a tail that was decided without them.
    stale: BTreeSet<(NodeId, Addr)>,
    random: Random,
    /// The highest id that a node ever had.
    newest: u64,
}

impl Model {
    fn append(&mut self, count: u64) {
        for pos in self.tail..self.tail + count {
            let at = self.layout.locate(LogPos(pos)).expect("a place for what comes");
            assert!(self.used.insert(at.addr), "{} is used twice", at.addr);
            let held = at.replicas.iter().copied().collect();
            self.entries.insert(pos, (at.addr, held));
        }
        self.tail += count;
    }

    /// Something happens to the cluster: what is to change.
    fn event(&mut self) -> Change {
        let units: Vec<NodeId> = self.layout.units().collect();
        let is_out = |node: &&Node| node.state == NodeState::Out;
        let out: Vec<NodeId> = self.layout.nodes.iter().filter(is_out).map(|node| node.id).collect();
        match self.random.below(7) {
            5 if units.len() > 3 => {
                let node = units[self.random.below(units.len() as u64) as usize];
                Change { removed: vec![node], ..Change::default() }
            }
            6 if self.layout.nodes.len() < 7 => {
                self.newest += 1;
                Change { added: vec![node(self.newest)], ..Change::default() }
            }
            0 | 1 if units.len() > 2 => {
                let node = units[self.random.below(units.len() as u64) as usize];
                for pos in self.tail..self.tail + 6 {
                    let at = self.layout.locate(LogPos(pos)).expect("a place for what comes");
                    self.stale.extend(at.replicas.contains(&node).then_some((node, at.addr)));
                }
                lost(&[node.0])
            }
            0..=2 | 5 if !out.is_empty() => joined(&[out[self.random.below(out.len() as u64) as usize].0]),
            3 => {
                let change = completed(&self.layout);
                for copy in &change.completed {
                    self.copy(copy);
                }
                change
            }
            _ => Change { trimmed: LogPos(self.tail.saturating_sub(150)), ..Change::default() },
        }
    }

    /// The positions of a stripe are copied.
    fn copy(&mut self, copy: &Copy) {
        let range = self.layout.ranges.iter().find(|range| range.start == copy.start).expect("a range");
        let positions = (range.start.0..range.end.0).skip(copy.stripe).step_by(range.stripes.len());
        for pos in positions {
            self.entries.get_mut(&pos).expect("it was appended").1.insert(copy.node);
        }
    }

    /// How many of the nodes that serve hold each position.
    fn copies(&self) -> BTreeMap<u64, usize> {
        let serving: Vec<NodeId> = self.layout.serving().collect();
        let count = |pos: u64| {
            let at = self.layout.locate(LogPos(pos)).expect("a place for what is not trimmed");
            at.replicas.iter().filter(|node| serving.contains(node)).count()
        };
        self.entries.range(self.trimmed..).map(|(&pos, _)| (pos, count(pos))).collect()
    }

    fn check(&self) {
        for (&pos, (addr, held)) in self.entries.range(self.trimmed..) {
            let at = self.layout.locate(LogPos(pos)).expect("a place for what is not trimmed");
            assert_eq!(at.addr, *addr, "{pos} has moved");
            for node in at.replicas {
                assert!(held.contains(node), "{node} does not hold {pos}");
                assert_eq!(self.layout.position(*node, *addr), Some(LogPos(pos)));
            }
        }
        for pos in self.tail..self.tail + 8 {
            let at = self.layout.locate(LogPos(pos)).expect("a place for what comes");
            let stale = at.replicas.iter().find(|&&node| self.stale.contains(&(node, at.addr)));
            assert_eq!(stale, None, "{pos} at {} was written in an epoch that is over", at.addr);
        }
    }
}

#[test]
fn a_thousand_losses_and_returns_leave_every_entry_in_its_place_and_the_layout_small() {
    for seed in 1..4 {
        let layout = first(4, 2);
        let (entries, used, stale) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        let mut model =
            Model { layout, tail: 0, trimmed: 0, entries, used, stale, random: Random::new(seed), newest: 4 };
        let (mut most, mut changes, mut members) = (0, 0, 0);
        for _ in 0..1000 {
            let count = model.random.below(10).saturating_sub(4);
            model.append(count);
            let wanted = model.event();
            model.trimmed = model.trimmed.max(wanted.trimmed.0);
            changes += wanted.lost.len() + wanted.joined.len();
            members += wanted.added.len() + wanted.removed.len();
            let before = model.copies();
            model.layout = change(&model.layout, model.tail, &wanted);
            model.check();
            if wanted.lost.is_empty() {
                let (wanted, after) = (usize::from(model.layout.replicas), model.copies());
                let fewer = after.iter().find(|(pos, count)| **count < before[pos].min(wanted));
                assert_eq!(fewer, None, "fewer copies than before, and nobody was lost");
            }
            most = most.max(model.layout.ranges.len());
        }
        assert!(changes > 300, "{changes} nodes came and went");
        assert!(members > 100, "{members} nodes were added or removed");
        assert!(most < 100, "{most} ranges for 150 positions and some more");
    }
}

#[test]
fn two_thousand_restarts_of_a_node_leave_every_entry_in_its_place_and_room_in_the_layout() {
    let mut layout = first(3, 2);
    let mut places = Vec::new();
    let mut step = |layout: &mut Layout, wanted: &Change| {
        let tail = LogPos(places.len() as u64);
        *layout = layout.change(tail, wanted).expect("a layout");
        for pos in tail.0..tail.0 + 2 {
            places.push(layout.locate(LogPos(pos)).expect("a place for what comes").addr);
        }
    };
    for round in 0..2000 {
        let node = round / 100 % 3 + 1;
        step(&mut layout, &lost(&[node]));
        step(&mut layout, &joined(&[node]));
        if round % 50 == 0 {
            let copied = completed(&layout);
            step(&mut layout, &copied);
        }
    }
    assert!(layout.ranges.len() >= 4000, "{} ranges", layout.ranges.len());
    let record = layout.encode();
    assert!(record.len() < 100_000, "{} bytes", record.len());
    let again = Layout::decode(&record).expect("a layout");
    assert_eq!(again, layout);
    for (pos, addr) in places.iter().enumerate() {
        let found = again.locate(LogPos(pos as u64)).map(|at| (at.addr, at.replicas.is_empty()));
        assert_eq!(found, Some((*addr, false)), "{pos} has moved");
    }
}

#[test]
fn ranges_are_kept_for_nodes_that_go() {
    // With none left no node that is gone could be taken out, and nothing would be appended any more.
    let mut layout = first(3, 2);
    let mut active = layout.ranges.pop().expect("there is one");
    let few = limits::LAYOUT_RANGES_MAX_COUNT as u64 / 4 * 3 - 2;
    for start in 0..few {
        let mut closed = active.clone();
        (closed.start, closed.end) = (LogPos(start), LogPos(start + 1));
        for stripe in &mut closed.stripes {
            stripe.base = layout.next_base;
            layout.next_base.0 += limits::STRIPE_ADDRESSES;
        }
        layout.ranges.push(closed);
    }
    active.start = LogPos(few);
    layout.ranges.push(active);
    assert!(!layout.is_short_of_ranges());
    let out = change(&layout, few + 2, &lost(&[3]));
    assert!(out.is_short_of_ranges(), "{} ranges", out.ranges.len());
    let none = change(&change(&out, few + 4, &lost(&[2])), few + 6, &joined(&[2]));
    let trimmed = Change { trimmed: LogPos(few / 2), ..Change::default() };
    assert!(none.is_short_of_ranges() && !change(&none, few + 8, &trimmed).is_short_of_ranges());
}

/// Addresses in blocks, as `first..end`; an address that is not the first of its block as `block+rest`.
fn blocks(ranges: &[crate::pos::AddrRange]) -> Vec<String> {
    let block = |addr: Addr| match addr.0 % limits::STRIPE_ADDRESSES {
        0 => format!("{}", addr.0 / limits::STRIPE_ADDRESSES),
        rest => format!("{}+{rest}", addr.0 / limits::STRIPE_ADDRESSES),
    };
    ranges.iter().map(|range| format!("{}..{}", block(range.start), block(range.end))).collect()
}

#[test]
fn what_no_stripe_has_is_never_named_again() {
    // A node that gives up what a later layout counts on has lost it.
    let a = first(3, 2);
    assert_eq!(blocks(&a.unnamed()), Vec::<String>::new(), "all of it may be written yet");
    let b = change(&a, 40, &lost(&[3]));
    assert_eq!(
        blocks(&b.unnamed()),
        ["0+14..1", "1+13..2", "2+13..3"],
        "what lies above the tail is not decided"
    );
    let kept = b.listed_elsewhere(NodeId(3));
    assert_eq!(
        kept.iter().filter(|(start, ..)| *start == LogPos(0)).count(),
        3,
        "node 3 may come back with it"
    );
    let c = change(&b, 60, &joined(&[3]));
    let d = change(&c, 80, &Change { trimmed: LogPos(50), ..lost(&[2]) });
    assert_eq!(ranges(&d)[0], "40: [1]@3 [1]@4");
    assert_eq!(blocks(&d.unnamed())[0], "0..3");
    for (before, after) in [(&a, &b), (&b, &c), (&c, &d)] {
        for gone in before.unnamed() {
            assert!(after.unnamed().iter().any(|later| later.start <= gone.start && gone.end <= later.end));
        }
    }
}
