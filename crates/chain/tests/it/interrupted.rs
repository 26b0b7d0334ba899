//! Cleaning that is cut off: at every I/O point, on one drive, several, and mirrored ones, while drives come and go.

use ithaca_chain::{Batch, Chain, ChainOptions, Cleaning, Victims};
use ithaca_env::sim::{Death, Random};

use crate::changes;
use crate::cleaning::{append, eager, in_body, tenth};
use crate::crashes;
use crate::drives::{THREE, tiny_drives};
use crate::mirrors::{A, B};
use crate::world::{Workload, World, identity, open_drives};

/// Two lives in which segments are cleaned all the time; the second is cut off at I/O point `point`.
pub fn cut_at(point: u64, death: Death, drives: &[&'static str], options: &ChainOptions) -> bool {
    let world = World::over(19, drives);
    let steps = |seed| if seed == 1 { 150 } else { 70 };
    let work = |seed| Workload {
        rng: Random::new(seed),
        steps: steps(seed),
        close: seed == 2,
        heavy: true,
        sparse: true,
    };
    assert!(world.live(options, work(1)));
    assert!(world.cleaned.get() > 0, "something is cleaned");
    world.sim.end(world.process, death);
    world.sim.restart(world.process);
    let start = world.sim.io_points(world.process);
    world.sim.end_at_io(world.process, start + point, death);
    let survived = world.live(options, work(2));
    world.sim.end(world.process, death);
    world.audit(options);
    survived
}

#[test]
fn no_live_record_is_lost_wherever_the_power_is_cut_while_segments_are_cleaned() {
    // A segment that is free before the copies are there, a copy that is cut as a torn tail, a record in two versions.
    let mut points = 0;
    while !cut_at(points + 1, Death::PowerCut, &["chain"], &eager()) {
        points += 6;
    }
    assert!(points > 150, "only {points} I/O points: the workload is too small to mean something");
}

#[test]
fn nor_on_several_drives() {
    let options =
        ChainOptions { clean_start_free_percent: 100, clean_stop_free_percent: 100, ..tiny_drives() };
    let mut points = 0;
    while !cut_at(points + 1, Death::PowerCut, &THREE, &options) {
        points += 11;
    }
    assert!(points > 150, "only {points} I/O points: the workload is too small to mean something");
}

/// Two lives on a mirrored link in which segments are cleaned; the second is cut off. Then each side alone has everything.
pub fn mirrored_cut_at(seed: u64, point: u64, options: &ChainOptions) -> bool {
    let mut world = World::over(seed, &[A, B]);
    let (env, over) = (world.sim.env(world.process), options.clone());
    world.sim.block_on(world.process, async move {
        let sides = vec![open_drives(&env, &[A, B]).await];
        let chain = Chain::create(&env, sides, identity(), over).await.expect("created");
        chain.close().await.expect("no fault");
    });
    let steps = |seed| if seed == 1 { 150 } else { 70 };
    let work = |seed| Workload {
        rng: Random::new(seed),
        steps: steps(seed),
        close: false,
        heavy: true,
        sparse: true,
    };
    assert!(world.live(options, work(1)));
    assert!(world.cleaned.get() > 0, "something is cleaned");
    world.sim.end(world.process, Death::PowerCut);
    world.sim.restart(world.process);
    world.sim.end_at_io(world.process, world.sim.io_points(world.process) + point, Death::PowerCut);
    let survived = world.live(options, work(2));
    world.sim.end(world.process, Death::PowerCut);
    world.sim.end_at_io(world.process, u64::MAX, Death::PowerCut);
    assert!(world.live(
        options,
        Workload { rng: Random::new(0), steps: 0, close: false, heavy: false, sparse: false }
    ));
    world.sim.end(world.process, Death::PowerCut);
    world.drives = vec![if point.is_multiple_of(2) { A } else { B }];
    world.audit(options);
    survived
}

#[test]
fn each_side_of_a_link_is_cleaned_alike_wherever_the_power_is_cut() {
    for options in [eager(), in_body()] {
        let mut point = 1;
        while !mirrored_cut_at(4, point, &options) {
            point += 22;
        }
        assert!(point > 200, "only {point} I/O points: the workload is too small to mean something");
    }
}

#[test]
fn drives_come_and_go_while_segments_are_cleaned() {
    for seed in 200..230 {
        let options = if seed % 2 == 0 { eager() } else { in_body() };
        let sizes = tiny_drives();
        let options = ChainOptions {
            capacity_bytes: sizes.capacity_bytes,
            grow_bytes: sizes.grow_bytes,
            reserve_segments: sizes.reserve_segments,
            ..options
        };
        changes::lives(seed, &options);
    }
}

#[test]
fn many_lives_of_an_eager_cleaner_keep_every_promise() {
    let mut acked = 0;
    for seed in 0..60 {
        acked += crashes::lives(seed, |options| {
            options.clean_start_free_percent = 100;
            options.clean_stop_free_percent = 100;
            options.victims = if seed % 2 == 0 { Victims::HeadOfLog } else { Victims::CostBenefit };
        });
    }
    assert!(acked > 4_000, "{acked} batches acknowledged: a chain that refuses everything passes too easily");
}

#[test]
fn compaction_in_the_body_loses_nothing_wherever_the_power_is_cut() {
    // A body segment that counts before it is closed, or one that is taken for a part of the log.
    let mut points = 0;
    while !cut_at(points + 1, Death::PowerCut, &["chain"], &in_body()) {
        points += 5;
    }
    assert!(points > 150, "only {points} I/O points: the workload is too small to mean something");
    let options =
        ChainOptions { capacity_bytes: tiny_drives().capacity_bytes, reserve_segments: 1, ..in_body() };
    let mut points = 0;
    while !cut_at(points + 1, Death::PowerCut, &THREE, &options) {
        points += 11;
    }
    assert!(points > 150, "only {points} I/O points: the workload is too small to mean something");
}

#[test]
fn many_lives_of_compaction_in_the_body_keep_every_promise() {
    let mut acked = 0;
    for seed in 100..140 {
        acked += crashes::lives(seed, |options| {
            options.clean_start_free_percent = 100;
            options.clean_stop_free_percent = 100;
            options.cleaning = Cleaning::CompactInBody;
        });
    }
    assert!(acked > 2_500, "{acked} batches acknowledged: a chain that refuses everything passes too easily");
}

/// Appends to three drives without releasing anything, and removes the first. Returns how often power can be cut on the way.
fn remove_with_records(point: u64) -> bool {
    let world = World::over(26, &THREE);
    let env = world.sim.env(world.process);
    let options = || ChainOptions { capacity_bytes: (64 << 10) + 8 * (128 << 10), ..tiny_drives() };
    let keys = 0..60_u64;
    let all = keys.clone();
    let (id, names) = world.sim.block_on(world.process, async move {
        let drives = open_drives(&env, &THREE).await;
        let chain = Chain::create(&env, drives, identity(), options()).await.expect("created");
        for key in all {
            append(&env, &chain, Batch { release: Vec::new(), ..tenth(key) }).await.expect("room");
        }
        let id = chain.drive_ids()[0];
        chain.close().await.expect("no fault");
        (id, THREE)
    });
    let (env, start) = (world.sim.env(world.process), world.sim.io_points(world.process));
    world.sim.end_at_io(world.process, start + point, Death::PowerCut);
    let is_done = world.comes_to_its_end(async move {
        let opened = Chain::open(&env, open_drives(&env, &names).await, None, options()).await;
        let (chain, _) = opened.expect("it is well");
        chain.remove_drive(id).await.expect("the others have room");
        assert!(chain.stats().counters.records_moved > 20);
    });
    world.cut_power();
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let all = Chain::open(&env, open_drives(&env, &names).await, None, options()).await;
        let chain = match all {
            Ok((chain, _)) if !is_done => chain,
            _ => {
                let rest = open_drives(&env, &names[1..]).await;
                Chain::open(&env, rest, None, options()).await.expect("these are left").0
            }
        };
        for key in keys {
            let record = chain.read(key).await.expect("no damage");
            assert_eq!(record.map(|record| record.version), Some(key), "cut at {point}");
        }
    });
    is_done
}

#[test]
fn the_records_of_a_drive_that_is_removed_are_moved_wherever_the_power_is_cut() {
    let mut points = 0;
    while !remove_with_records(points + 1) {
        points += 3;
    }
    assert!(points > 60, "only {points} I/O points: the workload is too small to mean something");
}
