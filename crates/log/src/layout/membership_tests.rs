//! Nodes that are added and removed, by example. At random: see the model in `change_tests`.

use super::change_tests::{change, completed, first, joined, lost, node, ranges};
use super::*;
use crate::wire::{ChangeCluster, Roles};

fn added(id: u64) -> Change {
    Change { added: vec![node(id)], ..Change::default() }
}

fn removed(id: u64) -> Change {
    Change { removed: vec![NodeId(id)], ..Change::default() }
}

fn acceptors(layout: &Layout) -> Vec<u64> {
    layout.acceptors().iter().map(|node| node.0).collect()
}

fn state(layout: &Layout, id: u64) -> Option<NodeState> {
    layout.node(NodeId(id)).map(|node| node.state)
}

#[test]
fn an_added_node_takes_part_in_what_comes_and_in_nothing_before() {
    let a = change(&first(3, 2), 10, &added(4));
    assert_eq!(state(&a, 4), Some(NodeState::Out), "nothing is expected of it before it has said a word");
    assert_eq!(ranges(&a), ["0: [1,2]@0 [2,3]@1 [3,1]@2"]);
    let b = change(&a, 40, &joined(&[4]));
    assert_eq!(ranges(&b)[1], "40: [1,2]@3 [2,3]@4 [3,4]@5 [4,1]@6");
    assert_eq!(b.missing(), [], "and there is nothing to copy");
    assert_eq!(change(&b, 50, &added(4)).nodes, b.nodes, "to add it again changes nothing");
}

#[test]
fn a_removed_node_stays_until_others_have_its_copies() {
    let a = change(&first(4, 2), 40, &removed(2));
    assert_eq!(ranges(&a), ["0: [1,2]@0 [2,3]@1 [3,4]@2 [4,1]@3", "40: [1,3]@4 [3,4]@5 [4,1]@6"]);
    assert_eq!(state(&a, 2), Some(NodeState::Leaving));
    assert_eq!(a.missing().len(), 2, "what it holds does not count");
    let half = Change { completed: a.missing()[..1].to_vec(), ..Change::default() };
    let b = change(&a, 41, &half);
    assert_eq!(ranges(&b)[0], "0: [1,3]@0 [2,3]@1 [3,4]@2 [4,1]@3");
    assert_eq!(state(&b, 2), Some(NodeState::Leaving));
    let back = change(&b, 41, &joined(&[2]));
    assert_eq!(state(&back, 2), Some(NodeState::Leaving), "it does not come back");
    let c = change(&b, 42, &completed(&b));
    assert_eq!(ranges(&c)[0], "0: [1,3]@0 [3,1]@1 [3,4]@2 [4,1]@3");
    assert_eq!(state(&c, 2), None);
}

#[test]
fn with_one_copy_a_leaving_node_is_the_source_of_what_it_holds() {
    let a = change(&first(3, 1), 30, &removed(2));
    assert_eq!(ranges(&a), ["0: [1]@0 [2]@1 [3]@2", "30: [1]@3 [3]@4"]);
    assert_eq!(a.missing().iter().map(|copy| copy.stripe).collect::<Vec<_>>(), [1]);
    let b = change(&a, 30, &completed(&a));
    assert_eq!((ranges(&b)[0].as_str(), state(&b, 2)), ("0: [1]@0 [1]@1 [3]@2", None));
}

#[test]
fn a_leaving_node_that_is_lost_is_left_where_nobody_else_has_a_copy() {
    let a = change(&first(4, 2), 40, &removed(2));
    let gone = change(&a, 41, &lost(&[2]));
    assert_eq!((ranges(&gone)[0].as_str(), state(&gone, 2)), ("0: [1]@0 [3]@1 [3,4]@2 [4,1]@3", None));
    let a = change(&first(3, 1), 30, &removed(2));
    let b = change(&a, 31, &lost(&[2]));
    assert_eq!((ranges(&b)[0].as_str(), state(&b, 2)), ("0: [1]@0 [2]@1 [3]@2", Some(NodeState::Leaving)));
    assert!(!b.missed_if_lost().any(|node| node == NodeId(2)), "there is nothing to take it off");
}

#[test]
fn copies_are_counted_among_nodes_in_use_before_a_node_is_let_go() {
    // While 1 is out, 3 alone is in use: one copy there is all that can be made, and is not enough for two.
    let a = change(&first(3, 2), 40, &removed(2));
    let a = change(&a, 40, &lost(&[1]));
    let b = change(&a, 40, &completed(&a));
    assert_eq!((ranges(&b)[0].as_str(), b.missing()), ("0: [2,3]@0 [2,3]@1 [3]@2", Vec::new()));
    assert_eq!(state(&b, 2), Some(NodeState::Leaving));
    let c = change(&b, 50, &joined(&[1]));
    let d = change(&c, 50, &completed(&c));
    assert_eq!((ranges(&d)[0].as_str(), state(&d, 2)), ("0: [3,1]@0 [3,1]@1 [3,1]@2", None));
}

#[test]
fn a_node_that_is_out_is_removed_at_once_unless_it_has_the_only_copy() {
    let a = change(&first(3, 2), 40, &lost(&[3]));
    let b = change(&a, 40, &removed(3));
    assert_eq!((state(&b, 3), ranges(&b)), (None, ranges(&a)));
    let a = change(&first(3, 1), 40, &lost(&[3]));
    let only = ChangeError::OnlyCopy { node: NodeId(3), start: LogPos(0), end: LogPos(40) };
    assert_eq!(a.change(LogPos(40), &removed(3)), Err(only));
}

#[test]
fn acceptors_follow_the_members() {
    let mut layout = first(3, 2);
    assert_eq!(acceptors(&layout), [1], "as it was formed");
    let mut step = |wanted: &Change, expected: &[u64]| {
        let tail = layout.tail().0 + 10;
        layout = change(&layout, tail, wanted);
        while layout.nodes.iter().any(|node| node.state == NodeState::Leaving) {
            layout = change(&layout, tail, &completed(&layout));
        }
        assert_eq!(acceptors(&layout), expected);
    };
    step(&added(4), &[1, 2, 3]);
    step(&added(5), &[1, 2, 3]);
    step(&joined(&[5]), &[1, 2, 3]);
    step(&joined(&[4]), &[1, 2, 3, 4, 5]);
    step(&lost(&[2]), &[1, 2, 3, 4, 5]);
    step(&removed(2), &[1, 3, 4]);
    step(&removed(3), &[1, 4, 5]);
    step(&lost(&[4]), &[1, 4, 5]);
    step(&removed(4), &[1]);
}

#[test]
fn who_is_replaced_decides_nothing_until_it_is_back() {
    let replaced = |id: u64| Change { replaced: vec![NodeId(id)], ..Change::default() };
    let three = change(&first(3, 2), 10, &added(4));
    assert_eq!(acceptors(&three), [1, 2, 3]);
    let lost = change(&three, 20, &lost(&[3]));
    assert_eq!(acceptors(&lost), [1, 2, 3]);
    let without = change(&lost, 20, &replaced(3));
    assert_eq!((acceptors(&without), state(&without, 3)), (vec![1], Some(NodeState::Out)));
    assert_eq!(acceptors(&change(&without, 20, &joined(&[3]))), [1, 2, 3]);
    assert_eq!(three.change(LogPos(20), &replaced(3)), Err(ChangeError::InUse { node: NodeId(3) }));
    assert_eq!(three.change(LogPos(20), &replaced(9)), Err(ChangeError::NotMember { node: NodeId(9) }));
    let only = ChangeError::OnlyCopy { node: NodeId(3), start: LogPos(0), end: LogPos(40) };
    let alone = change(&first(3, 1), 40, &Change { lost: vec![NodeId(3)], ..Change::default() });
    assert_eq!(alone.change(LogPos(40), &replaced(3)), Err(only));
}

/// Node `id` as a cluster lists it that offers this.
fn offering(id: u64, offers: Roles) -> Node {
    Node { roles: offers.of_member(), ..node(id) }
}

#[test]
fn who_abstains_is_not_chosen_when_those_go_who_decide() {
    // That is known from the layout alone: it may be out, or not be heard.
    let abstains = offering(4, Roles::OFFERED.without(Roles::LAYOUT));
    assert_eq!(abstains.roles.needed_offers(), Roles::OFFERED.without(Roles::LAYOUT));
    let add = Change { added: vec![abstains.clone()], ..Change::default() };
    let a = change(&change(&first(3, 2), 10, &added(5)), 10, &add);
    assert_eq!(acceptors(&a), [1, 2, 3], "four may decide");
    let b = change(&a, 20, &Change { joined: vec![abstains], ..Change::default() });
    assert_eq!(acceptors(&b), [1, 2, 3]);
    let mut c = change(&b, 30, &removed(3));
    while c.node(NodeId(3)).is_some() {
        c = change(&c, 30, &completed(&c));
    }
    assert_eq!(acceptors(&c), [1], "5 is not there yet, and 4 is never asked");
    let d = change(&c, 40, &joined(&[5]));
    assert_eq!(acceptors(&d), [1, 2, 5]);
    let gone = Change { removed: vec![NodeId(1), NodeId(2), NodeId(5)], ..Change::default() };
    let none = Layout { replicas: 1, min_replicas: 1, ..d }.change(LogPos(40), &gone);
    assert_eq!(none, Err(ChangeError::Layout(LayoutError::Acceptors { found: 0 })));
}

#[test]
fn a_node_that_stores_nothing_is_missed_and_is_no_unit() {
    let witness = offering(3, Roles::LAYOUT);
    let sequencer = offering(4, Roles::SEQUENCER);
    let nodes = vec![node(1), node(2), witness.clone(), sequencer];
    let a = Layout::first(ClusterId(7), nodes, 2, 2).expect("a layout");
    assert_eq!((ranges(&a), a.holders().count()), (vec!["0: [1,2]@0 [2,1]@1".to_owned()], 2));
    assert!(a.is_whole(), "it is in use as much as can be");
    assert_eq!(a.missed_if_lost().map(|node| node.0).collect::<Vec<_>>(), [1, 2, 3, 4]);
    let b = change(&a, 40, &lost(&[3]));
    assert_eq!((state(&b, 3), ranges(&b)), (Some(NodeState::Out), ranges(&a)), "nothing moves for it");
    assert!(!b.is_whole());
    let c = change(&b, 50, &Change { joined: vec![witness], ..Change::default() });
    assert!(c.is_whole() && acceptors(&c) == [1, 2, 3], "{c:?}");
    let few = ChangeError::TooFewNodes { node: NodeId(2), left: 1, replicas: 2 };
    assert_eq!(c.change(LogPos(50), &removed(2)), Err(few), "others in use are no units");
    let d = change(&c, 60, &removed(3));
    assert_eq!((state(&d, 3), acceptors(&d), ranges(&d)), (None, vec![1], ranges(&a)), "it holds nothing");
}

#[test]
fn what_cannot_be_added_or_removed_says_why() {
    let a = first(3, 2);
    let refused = |wanted: &Change| a.change(LogPos(0), wanted).expect_err("it cannot");
    let elsewhere = Node { address: "127.0.0.1:9".to_owned(), ..node(3) };
    let other = Change { added: vec![elsewhere.clone()], ..Change::default() };
    assert!(matches!(refused(&other), ChangeError::OtherAddress { node: NodeId(3), .. }));
    let taken = Change { added: vec![Node { id: NodeId(9), ..node(3) }], ..Change::default() };
    assert!(matches!(refused(&taken), ChangeError::AddressTaken { node: NodeId(3), .. }));
    for address in ["", "node-9:7420", "10.0.0.9", "10.0.0.9:7420 "] {
        let unreachable = Node { address: address.to_owned(), ..node(9) };
        let nowhere = Change { added: vec![unreachable], ..Change::default() };
        let said = refused(&nowhere).to_string();
        assert!(said.contains(&format!("{address:?}")), "{said}");
    }
    let two = first(2, 2);
    let few = ChangeError::TooFewNodes { node: NodeId(2), left: 1, replicas: 2 };
    assert_eq!(two.change(LogPos(0), &removed(2)), Err(few));
    let leaving = change(&first(4, 2), 40, &removed(2));
    assert_eq!(leaving.change(LogPos(40), &added(2)), Err(ChangeError::Leaving { node: NodeId(2) }));
}

#[test]
fn what_cannot_be_for_a_moment_is_told_from_what_cannot_be_at_all() {
    // Scripts try again what may be later, and give up the rest.
    fn may_later(layout: &Layout, wanted: &Change) -> bool {
        let refused = layout.change(layout.tail(), wanted).expect_err("it cannot be now");
        layout.may_change_later(wanted, &refused)
    }
    let full = |id| Change { joined: vec![Node { state: NodeState::Full, ..node(id) }], ..Change::default() };
    assert!(!may_later(&first(2, 2), &removed(2)));
    let three = first(3, 2);
    assert!(may_later(&change(&three, 10, &lost(&[1])), &removed(2)));
    assert!(may_later(&change(&three, 10, &full(1)), &removed(2)));
    // Too few, whoever comes back.
    assert!(!may_later(&change(&first(3, 3), 10, &lost(&[1])), &removed(2)));
    // The others that may hand out positions are out, or there are none.
    let units = |id| offering(id, Roles::UNIT.with(Roles::LAYOUT));
    let two =
        Layout::first(ClusterId(7), vec![node(1), node(2), units(3), units(4)], 2, 2).expect("a layout");
    assert!(may_later(&change(&two, 10, &lost(&[2])), &removed(1)));
    let one = Layout::first(ClusterId(7), vec![node(1), units(2), units(3)], 2, 2).expect("a layout");
    assert!(!may_later(&one, &removed(1)));
    // Others have no copy yet, and one that is leaving can be added when it is gone.
    let alone = change(&first(3, 1), 30, &lost(&[2]));
    assert!(may_later(&alone, &removed(2)));
    assert!(may_later(&change(&first(4, 2), 40, &removed(2)), &added(2)));
    let replaced = |id| Change { replaced: vec![NodeId(id)], ..Change::default() };
    assert!(may_later(&alone, &replaced(1)) && may_later(&alone, &replaced(2)));
    // What is taken stays so.
    let taken = Change { added: vec![Node { id: NodeId(9), ..node(3) }], ..Change::default() };
    assert!(!may_later(&change(&three, 10, &lost(&[1])), &taken));
}

#[test]
fn what_is_so_already_needs_no_change() {
    let a = first(3, 2);
    let add = |id: u64| {
        let address = format!("127.0.0.1:{}", 7000 + id);
        ChangeCluster::Add { node: NodeId(id), address, offers: Roles::OFFERED }
    };
    assert_eq!(a.change_for(&add(3)), None);
    assert_eq!(a.change_for(&ChangeCluster::Remove { node: NodeId(4) }), None);
    let wanted = a.change_for(&add(4)).expect("it is no member");
    let b = change(&a, 0, &wanted);
    assert_eq!((state(&b, 4), b.change_for(&add(4))), (Some(NodeState::Out), None));
    let b = change(&b, 20, &joined(&[4]));
    let wanted = b.change_for(&ChangeCluster::Remove { node: NodeId(1) }).expect("it is a member");
    let c = change(&b, 30, &wanted);
    assert_eq!((state(&c, 1), c.sequencer), (Some(NodeState::Leaving), NodeId(2)));
    assert_eq!(c.change_for(&ChangeCluster::Remove { node: NodeId(1) }), None);
    let stays = Layout { nodes: b.nodes.clone(), ..c };
    let acceptor = stays.nodes.iter().map(|node| match node.id {
        NodeId(1) => Node { state: NodeState::Leaving, ..node.clone() },
        _ => node.clone(),
    });
    let stays = Layout { nodes: acceptor.collect(), ..stays };
    assert_eq!(stays.validate(), Err(LayoutError::OutInActive { node: NodeId(1) }), "it decides nothing");
}

#[test]
fn a_leaving_node_whose_ranges_are_trimmed_is_let_go_with_them() {
    // Nobody would propose a layout only to let it go.
    let a = first(3, 2);
    let b = change(&a, 40, &Change { removed: vec![NodeId(3)], ..Change::default() });
    assert_eq!(b.node(NodeId(3)).map(|node| node.state), Some(NodeState::Leaving));
    let c = change(&b, 50, &Change { trimmed: LogPos(40), ..Change::default() });
    assert_eq!(ranges(&c), ["40: [1,2]@3 [2,1]@4"]);
    assert_eq!(c.node(NodeId(3)), None);
}

/// Node `id` of `layout`, standing so.
fn standing(layout: &Layout, id: u64, state: NodeState) -> Change {
    let node = layout.node(NodeId(id)).expect("a member").clone();
    Change { joined: vec![Node { state, ..node }], ..Change::default() }
}

#[test]
fn a_full_node_keeps_what_it_holds_and_is_given_nothing_new() {
    let a = first(3, 2);
    let b = change(&a, 40, &standing(&a, 3, NodeState::Full));
    assert_eq!(ranges(&b), ["0: [1,2]@0 [2,3]@1 [3,1]@2", "40: [1,2]@3 [2,1]@4"]);
    assert!(b.is_whole() && b.missing().is_empty(), "its copies count");
    let c = change(&b, 60, &lost(&[2]));
    let of_one = Copy { start: LogPos(0), stripe: 1, node: NodeId(1) };
    assert_eq!(c.missing(), [of_one], "node 3 has no room for a copy of the other stripe");
    let c = change(&c, 60, &completed(&c));
    assert!(c.missing().is_empty() && !c.is_whole(), "a copy is missing all the same: {:?}", ranges(&c));
    let d = change(&c, 80, &standing(&c, 3, NodeState::InUse));
    assert!(
        d.missing().contains(&Copy { start: LogPos(0), stripe: 0, node: NodeId(3) }),
        "it has room again"
    );
    let e = change(&b, 60, &lost(&[3]));
    assert_eq!(e.node(NodeId(3)).map(|node| node.state), Some(NodeState::Out));
    assert_eq!(ranges(&e)[0], "0: [1,2]@0 [2]@1 [1]@2", "a full node can be lost as any other");
}

#[test]
fn a_node_that_is_lost_as_its_room_changes_goes_out_all_the_same() {
    // Its unit was not sealed: it may still accept what the next epoch knows nothing of, and would count as a copy.
    let a = first(4, 2);
    let full = change(&a, 40, &standing(&a, 3, NodeState::Full));
    for (before, state) in [(&a, NodeState::Full), (&full, NodeState::InUse), (&a, NodeState::InUse)] {
        let tail = before.tail().0 + 20;
        let next = change(before, tail, &Change { lost: vec![NodeId(3)], ..standing(before, 3, state) });
        assert_eq!(next, change(before, tail, &lost(&[3])), "{state:?}");
    }
    // One that is out has nothing to be sealed for, and others that join with it do.
    let out = change(&a, 40, &lost(&[3]));
    let next = change(&out, 60, &Change { lost: vec![NodeId(4)], ..joined(&[3, 4]) });
    assert_eq!(next.in_use().map(|node| node.0).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn who_is_in_the_active_range_has_sealed_the_epoch_before() {
    // Node 3 goes out, when perhaps it was not sealed, and comes back, for which it was.
    let sealed = |layout: &Layout| [1, 2, 3].map(|id| layout.sealed_by(NodeId(id)).map(|epoch| epoch.0));
    let mut layout = first(3, 2);
    assert_eq!(sealed(&layout), [None; 3]);
    for (tail, change_to, expected) in [
        (10, Change::default(), [Some(1); 3]),
        (20, lost(&[3]), [Some(2), Some(2), None]),
        (20, Change::default(), [Some(3), Some(3), None]),
        (30, Change::default(), [Some(4), Some(4), None]),
        (30, joined(&[3]), [Some(5); 3]),
        (40, Change::default(), [Some(6); 3]),
        (50, Change { min_replicas: Some(1), ..Change::default() }, [Some(7); 3]),
    ] {
        layout = change(&layout, tail, &change_to);
        assert_eq!(sealed(&layout), expected, "in epoch {}", layout.epoch);
    }
}
