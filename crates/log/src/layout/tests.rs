//! The examples of the source, and that mapping there and back agrees.

use std::collections::BTreeMap;

use super::*;
use crate::limits;
use crate::pos::AddrRange;
use crate::wire::Sealed;

const K: u64 = 1000;

/// `(start, end, stripes)`, and a stripe is `(replicas, base)`.
type Range<'a> = (u64, u64, &'a [(&'a [u64], u64)]);

/// A layout whose node `i` is the source's unit F`i - 1`, over ranges `(start, end, [(replicas, base)])`.
fn layout(ranges: &[Range<'_>]) -> Layout {
    let roles = Roles::SEQUENCER.with(Roles::UNIT);
    let keeps = |id| if id == 1 { Roles::LAYOUT } else { Roles::default() };
    let address = |id| format!("127.0.0.1:{}", 7000 + id);
    let node = |id| Node::new(NodeId(id), roles.with(keeps(id)), address(id));
    let stripe = |(replicas, base): &(&[u64], u64)| Stripe {
        replicas: replicas.iter().map(|&unit| NodeId(unit + 1)).collect(),
        base: Addr(*base),
    };
    Layout {
        cluster: ClusterId(7),
        epoch: Epoch(1),
        replicas: 8,
        min_replicas: 1,
        next_base: Addr(8 * limits::STRIPE_ADDRESSES),
        nodes: (1..=14).map(node).collect(),
        sequencer: NodeId(1),
        ranges: ranges
            .iter()
            .map(|(start, end, stripes)| RangeMap {
                start: LogPos(*start),
                end: LogPos(*end),
                stripes: stripes.iter().map(stripe).collect(),
            })
            .collect(),
        tails: Vec::new(),
    }
}

/// Which units hold a position, and where, written as the source does.
fn place(layout: &Layout, pos: u64) -> String {
    let location = layout.locate(LogPos(pos)).expect("a position with a place");
    let units: Vec<String> = location.replicas.iter().map(|node| format!("F{}", node.0 - 1)).collect();
    format!("{}:{}", units.join("/"), location.addr.0)
}

#[test]
fn positions_lie_where_figure_3_3_puts_them() {
    let layout = layout(&[(0, 40 * K, &[(&[0], 0), (&[1], 0)]), (40 * K, 80 * K, &[(&[2], 0), (&[3], 0)])]);
    assert_eq!(layout.validate(), Ok(()));
    let places = [0, 1, 2, 45 * K].map(|pos| place(&layout, pos));
    assert_eq!(places, ["F0:0", "F1:0", "F0:1", "F2:2500"]);
    assert_eq!(layout.locate(LogPos(80 * K)), None);
}

#[test]
fn entries_stay_where_they_are_while_the_layout_changes_as_in_figure_3_8() {
    let old: Range<'_> = (0, 40 * K, &[(&[0, 1], 0), (&[2, 3], 0)]);
    let a = layout(&[old, (40 * K, 80 * K, &[(&[4, 5], 0), (&[6, 7], 0)])]);
    // F6 fails with the tail at 50K: F7 alone serves what was written, F8 joins for what comes.
    let b = layout(&[
        old,
        (40 * K, 50 * K, &[(&[4, 5], 0), (&[7], 0)]),
        (50 * K, 80 * K, &[(&[4, 5], 5 * K), (&[8, 7], 5 * K)]),
    ]);
    // F8 holds a copy of what F6 held.
    let c = layout(&[old, (40 * K, 80 * K, &[(&[4, 5], 0), (&[8, 7], 0)])]);
    // The tail passes 80K: new units take the next range.
    let d = layout(&[
        old,
        (40 * K, 80 * K, &[(&[4, 5], 0), (&[8, 7], 0)]),
        (80 * K, 120 * K, &[(&[9, 10], 0), (&[11, 12], 0)]),
    ]);
    for layout in [&a, &b, &c, &d] {
        assert_eq!(layout.validate(), Ok(()));
    }
    assert_eq!(
        [&a, &b, &c, &d].map(|layout| place(layout, 45 * K + 1)),
        ["F6/F7:2500", "F7:2500", "F8/F7:2500", "F8/F7:2500"]
    );
    assert_eq!([&b, &c].map(|layout| place(layout, 50 * K + 1)), ["F8/F7:5000", "F8/F7:5000"]);
    assert_eq!(place(&d, 80 * K), "F9/F10:0");
}

#[test]
fn pieces_and_addresses_agree_with_single_positions() {
    let layout =
        layout(&[(5, 12, &[(&[0], 100), (&[1], 200), (&[2], 300)]), (12, 40, &[(&[0], 103), (&[3], 0)])]);
    assert_eq!(layout.validate(), Ok(()));
    for (start, end) in [(0, 50), (5, 6), (7, 13), (11, 40), (20, 20)] {
        let mut seen = BTreeMap::new();
        for piece in layout.pieces(LogPos(start), LogPos(end)) {
            for addr in piece.addrs.numbers().map(Addr) {
                let pos = piece.position(addr);
                let location = layout.locate(pos).expect("a place");
                assert_eq!((location.replicas, location.addr), (piece.replicas, addr));
                assert_eq!(layout.position(piece.replicas[0], addr), Some(pos));
                assert_eq!(seen.insert(pos.0, ()), None, "each position once");
            }
        }
        let expected: Vec<u64> = (start.max(5)..end.clamp(5, 40)).collect();
        assert_eq!(seen.into_keys().collect::<Vec<_>>(), expected);
    }
}

#[test]
fn pieces_end_where_the_addresses_of_their_stripe_do() {
    // What an open range of one stripe has up to its end are more positions than addresses are left: the sum overflowed.
    let base = 3 * limits::STRIPE_ADDRESSES + 7;
    let layout = layout(&[(100, OPEN_END.0, &[(&[0], base)])]);
    let pieces = layout.pieces(LogPos(110), OPEN_END);
    let addrs: Vec<AddrRange> = pieces.iter().map(|piece| piece.addrs).collect();
    assert_eq!(addrs, [AddrRange::new(Addr(base + 10), Addr(4 * limits::STRIPE_ADDRESSES))]);
}

#[test]
fn a_layout_survives_storing_and_every_damage_to_it_is_found() {
    let mut layout = layout(&[(0, OPEN_END.0, &[(&[0, 1], 0), (&[2, 3], 0)])]);
    layout = layout.next_epoch(LogPos(17));
    let record = layout.encode();
    assert_eq!(Layout::decode(&record), Ok(layout));
    for at in 0..record.len() {
        let mut damaged = record.to_vec();
        damaged[at] ^= 0x10;
        assert!(Layout::decode(&damaged).is_err(), "byte {at}");
        assert!(Layout::decode(&record[..at]).is_err(), "cut at {at}");
    }
}

#[test]
fn a_layout_that_uses_an_address_twice_or_names_a_stranger_is_refused() {
    let twice = layout(&[(0, 10, &[(&[0], 0)]), (10, 20, &[(&[0], 9)])]);
    assert_eq!(twice.validate(), Err(LayoutError::AddressTwice { node: NodeId(1), addr: Addr(9) }));
    let stranger = layout(&[(0, 10, &[(&[99], 0)])]);
    assert_eq!(stranger.validate(), Err(LayoutError::NodeRole { node: NodeId(100), role: Roles::UNIT }));
    let gap = layout(&[(0, 10, &[(&[0], 0)]), (11, 20, &[(&[1], 0)])]);
    assert!(matches!(gap.validate(), Err(LayoutError::RangeOrder { index: 1, .. })));
    let used = Layout { next_base: Addr(9), ..layout(&[(0, 10, &[(&[0], 0)])]) };
    let free = LayoutError::FreeAddresses { index: 0, stripe: 0, next_base: Addr(9) };
    assert_eq!(used.validate(), Err(free), "a new stripe would begin among them");
    let none = Layout { min_replicas: 0, ..used.clone() };
    assert!(matches!(none.validate(), Err(LayoutError::ReplicaCounts { min_replicas: 0, .. })));
    let mut out = layout(&[(0, 10, &[(&[0], 0)]), (10, 20, &[(&[1], 0)])]);
    for (id, refused) in [(1, true), (2, true), (3, false)] {
        let mut out = out.clone();
        out.nodes[id as usize - 1].state = NodeState::Out;
        let active = LayoutError::OutInActive { node: NodeId(id) };
        assert_eq!(out.validate().err(), refused.then_some(active), "1 is the sequencer, 2 is written to");
    }
    out.nodes[1].roles = out.nodes[1].roles.with(Roles::LAYOUT);
    assert_eq!(out.validate(), Err(LayoutError::Acceptors { found: 2 }), "two decide no better than one");
    let mut both = layout(&[(0, 10, &[(&[0], 0)])]);
    both.nodes[0].roles = both.nodes[0].roles.with(Roles::ABSTAINS);
    assert_eq!(both.validate(), Err(LayoutError::Abstains { node: NodeId(1) }));
    let alone = Layout { min_replicas: 2, ..layout(&[(0, 10, &[(&[0], 0)])]) };
    assert_eq!((alone.validate(), alone.shortage()), (Ok(()), Some((1, 2))), "nothing is appended there");
}

#[test]
fn the_tail_is_past_the_highest_position_on_any_stripe_and_needs_all_stripes() {
    let layout = layout(&[(40, OPEN_END.0, &[(&[0, 1], 10), (&[2, 3], 0)])]);
    let sealed = |highest: Option<u64>| Sealed { epoch: Epoch(1), highest: vec![highest.map(Addr)] };
    let mut answers = BTreeMap::from([(NodeId(1), sealed(Some(12)))]);
    assert_eq!(layout.find_tail(&answers), Err(TailError::NotSealed { stripe: 1 }));
    answers.insert(NodeId(4), sealed(None));
    assert_eq!(layout.find_tail(&answers), Ok(LogPos(45)), "address 12 of stripe 0 is position 44");
    answers.insert(NodeId(3), sealed(Some(2)));
    assert_eq!(layout.find_tail(&answers), Ok(LogPos(46)), "address 2 of stripe 1 is position 45");
    answers.insert(NodeId(1), sealed(Some(9)));
    assert_eq!(layout.find_tail(&answers), Ok(LogPos(46)), "address 9 is below the base");
    let next = layout.next_epoch(LogPos(46));
    assert_eq!((next.epoch, next.tail(), next.validate()), (Epoch(2), LogPos(46), Ok(())));
    answers.insert(NodeId(1), Sealed { epoch: Epoch(2), highest: vec![None] });
    assert!(matches!(layout.find_tail(&answers), Err(TailError::WrongEpoch { .. })));
}

#[test]
fn the_tail_is_found_where_a_unit_is_in_several_stripes() {
    const BLOCK: u64 = crate::limits::STRIPE_ADDRESSES;
    let layout = layout(&[(0, OPEN_END.0, &[(&[0, 1], 0), (&[1, 2], BLOCK), (&[2, 0], 2 * BLOCK)])]);
    assert_eq!(layout.validate(), Ok(()));
    let extent = |at| AddrRange::from(at * BLOCK..(at + 1) * BLOCK);
    assert_eq!(layout.active_extents(NodeId(2)), [extent(0), extent(1)]);
    assert_eq!(layout.active_extents(NodeId(3)), [extent(1), extent(2)]);
    let sealed = |highest: &[Option<u64>]| Sealed {
        epoch: Epoch(1),
        highest: highest.iter().map(|at| at.map(Addr)).collect(),
    };
    // Unit F1 alone is in two stripes; F2 in the third.
    let mut answers = BTreeMap::from([(NodeId(2), sealed(&[Some(4), Some(BLOCK + 5)]))]);
    assert_eq!(layout.find_tail(&answers), Err(TailError::NotSealed { stripe: 2 }));
    answers.insert(NodeId(3), sealed(&[None, Some(2 * BLOCK + 3)]));
    assert_eq!(layout.find_tail(&answers), Ok(LogPos(17)), "address 5 of stripe 1 is position 16");
    answers.insert(NodeId(3), sealed(&[None]));
    assert!(matches!(layout.find_tail(&answers), Err(TailError::Extents { found: 1, expected: 2, .. })));
}

#[test]
fn decided_tails_are_kept_for_a_bounded_number_of_epochs() {
    let mut layout = layout(&[(0, OPEN_END.0, &[(&[0], 0)])]);
    for tail in 0..200 {
        layout = layout.next_epoch(LogPos(tail));
    }
    assert_eq!((layout.validate(), layout.tails.len()), (Ok(()), limits::TAILS_MAX_COUNT));
    assert_eq!(layout.tail(), LogPos(199));
    let ended = [1, 136, 137, 200, 201].map(|epoch| layout.end_of(Epoch(epoch)));
    assert_eq!(ended, [None, None, Some(LogPos(136)), Some(LogPos(199)), None]);
}

#[test]
fn a_layout_without_the_tails_of_the_epochs_right_before_it_was_decided_by_nobody() {
    let first = layout(&[(0, OPEN_END.0, &[(&[0], 0)])]);
    let third = first.next_epoch(LogPos(3)).next_epoch(LogPos(5));
    let mut long = third.clone();
    (0..100).for_each(|_| long = long.next_epoch(LogPos(7)));
    assert_eq!([&first, &third, &long].map(|layout| layout.validate()), [Ok(()), Ok(()), Ok(())]);
    let missing = |epoch| Err(LayoutError::TailOrder { epoch: Epoch(epoch) });
    let of = |layout: &Layout, epoch: u64| Layout { epoch: Epoch(epoch), ..layout.clone() }.validate();
    assert_eq!(of(&first, 2), missing(1), "without any");
    assert_eq!((of(&third, 4), of(&third, 1000)), (missing(3), missing(936)), "of a later epoch");
    assert_eq!((of(&third, 2), of(&long, 102)), (missing(2), missing(38)), "of an earlier one");
    let with = |change: fn(&mut Vec<DecidedTail>)| {
        let mut layout = third.clone();
        change(&mut layout.tails);
        layout.validate()
    };
    assert_eq!(with(|tails| _ = tails.remove(0)), missing(1), "the first is left out");
    assert_eq!(with(|tails| _ = tails.pop()), missing(2), "the last is");
    assert_eq!(with(|tails| tails[1].tail = LogPos(2)), missing(2), "it goes back");
    assert_eq!(with(|tails| tails.push(tails[1])), missing(2), "one stands there twice");
    let mut short = long.clone();
    short.tails.remove(0);
    assert_eq!(short.validate(), missing(39), "fewer than it keeps");
}
