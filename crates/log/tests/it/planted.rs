//! Deliberate faults, each caught by the checks of the other tests.

use std::panic::catch_unwind;
use std::path::Path;

use ithaca_log::client::EntryKind;
use ithaca_log::planted::{Planted, PlantedBug};
use ithaca_log::pos::LogPos;
use ithaca_log::server::NodeOptions;

use crate::full::{FEW, MANY, block, fill_one_of_three};
use crate::loss::give_up_after_another_change;
use crate::lost::lose_and_read;
use crate::nodes::{Cluster, node_options};
use crate::repair::repaired_where_copies_differ;
use crate::streams::release_by_one_and_by_the_other;
use crate::worlds::run;

#[test]
fn a_repair_that_does_not_compare_is_found() {
    let planted = Planted::bug(PlantedBug::RepairUnchecked);
    assert_ne!(repaired_where_copies_differ(planted), 0);
}

#[test]
fn a_unit_that_leaves_out_what_is_lost_is_found() {
    let planted = Planted::bug(PlantedBug::LostEntrySkipped);
    let read = catch_unwind(|| lose_and_read(planted));
    assert!(read.is_err(), "a lost entry was left out without a word");
}

#[test]
fn who_gives_up_nodes_and_forgets_what_was_accepted_is_found() {
    let planted = Planted::bug(PlantedBug::LossIgnoresAccepted);
    assert!(catch_unwind(|| give_up_after_another_change(planted)).is_err());
}

#[test]
fn an_append_that_comes_to_a_full_unit_goes_to_another() {
    // It failed at once, although two of three units had room.
    run(|env, _| async move {
        let planted = Planted::bug(PlantedBug::FullNotTold);
        let options = |dir: &Path, id| {
            let segments = if id == 3 { FEW } else { MANY };
            NodeOptions { planted, ..node_options(dir, id, segments) }
        };
        let cluster = Cluster::form(&env, 3, 1, options).await;
        let client = &cluster.client;
        let mut positions = Vec::new();
        // Until some have come to node 3 when it was full. It has room to note that for a while.
        let given_up =
            |positions: &[LogPos]| positions.last().map_or(0, |last| last.0 + 1 - positions.len() as u64);
        while given_up(&positions) < 3 {
            let number = positions.len() as u64;
            positions.push(client.append(block(number)).await.expect("two nodes have room"));
        }
        for (&pos, number) in positions.iter().zip(0..) {
            assert_eq!(client.read(pos).await.expect("it is there").data, block(number));
        }
        // Each of them once.
        let tail = client.check().await.expect("it serves").tail;
        let (mut next, mut found) = (LogPos(0), Vec::new());
        while next < tail {
            let piece = client.read_range(next, tail).await.expect("readable");
            next = LogPos(piece.last().expect("below the tail").pos.0 + 1);
            found.extend(piece.iter().filter(|entry| entry.kind == EntryKind::Data).map(|entry| entry.pos));
        }
        assert_eq!(found, positions);
    });
}

#[test]
fn a_node_that_does_not_say_that_it_is_full_is_found() {
    let planted = Planted::bug(PlantedBug::FullNotTold);
    let filled = catch_unwind(|| fill_one_of_three(planted));
    assert!(filled.is_err(), "a node that is full was not told of");
}

#[test]
fn an_entry_that_goes_as_soon_as_one_has_released_it_is_found() {
    let planted = Planted::bug(PlantedBug::StreamReleasedByOne);
    assert!(catch_unwind(|| release_by_one_and_by_the_other(planted)).is_err());
}
