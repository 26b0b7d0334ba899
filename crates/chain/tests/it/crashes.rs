//! Power cuts and kills at every I/O point.

use ithaca_chain::ChainOptions;
use ithaca_env::sim::{Death, Random};

use crate::world::{Workload, World, random_options, small_options};

fn workload(seed: u64, steps: usize, close: bool) -> Workload {
    Workload { rng: Random::new(seed), steps, close, heavy: seed.is_multiple_of(3), sparse: false }
}

/// Two lives of a workload that rolls segments and recycles them; the second is cut off at I/O point `point`.
fn cut_at(point: u64, death: Death) -> bool {
    let world = World::new(3);
    let options = small_options();
    assert!(world.live(&options, workload(1, 60, false)));
    let start = world.sim.io_points(world.process);
    world.sim.end_at_io(world.process, start + point, death);
    let survived = world.live(&options, workload(2, 60, true));
    world.sim.end(world.process, death);
    world.audit(&options);
    survived
}

#[test]
fn nothing_acknowledged_is_lost_wherever_the_power_is_cut() {
    // An acknowledgement before the drive's, a torn group taken for whole, a release forgotten, a batch in halves.
    let mut points = 0;
    while !cut_at(points + 1, Death::PowerCut) {
        points += 1;
    }
    assert!(points > 100, "only {points} I/O points: the workload is too small to mean something");
}

#[test]
fn nothing_acknowledged_is_lost_wherever_the_process_is_killed() {
    // What the drive has but has not made durable must not be shown and then lost by a power cut.
    for point in (1..).step_by(3) {
        if cut_at(point, Death::Kill) {
            break;
        }
    }
}

#[test]
fn a_crash_in_recovery_is_recovered_from() {
    // A fence that is half written, a footer written again, the same end of the log decided twice.
    for seed in 0..12 {
        let world = World::new(seed);
        let options = small_options();
        world.live(&options, workload(seed, 50, false));
        world.sim.end(world.process, Death::PowerCut);
        for point in [1, 2, 5, 9, 14, 20, 40, 80] {
            let start = world.sim.io_points(world.process);
            world.sim.crash_at_io(world.process, start + point);
            world.live(&options, workload(seed + point, 30, false));
            world.sim.end(world.process, Death::PowerCut);
        }
        world.audit(&options);
    }
}

#[test]
fn many_lives_with_random_knobs_keep_every_promise() {
    let mut acked = 0;
    for seed in 0..100 {
        acked += lives(seed, |_| ());
    }
    assert!(acked > 7_000, "{acked} batches acknowledged: a chain that refuses everything passes too easily");
}

/// Five lives and an audit, with options that `change` has the last word on. Returns how many batches were acknowledged.
pub fn lives(seed: u64, change: impl Fn(&mut ChainOptions)) -> u64 {
    let mut rng = Random::new(seed);
    let world = World::new(seed);
    let mut options = random_options(&mut rng);
    change(&mut options);
    for life in 0..5 {
        let death = rng.pick(&[Death::PowerCut, Death::Kill]);
        let point = world.sim.io_points(world.process) + 1 + rng.below(400);
        world.sim.end_at_io(world.process, point, death);
        let work = workload(rng.next_u64(), 80, life % 2 == 1);
        // A cleaner that works all the time is given something to do.
        let sparse = options.clean_start_free_percent == 100;
        world.live(&options, Workload { sparse, ..work });
        world.sim.end(world.process, death);
        let next = random_options(&mut rng);
        options = ChainOptions { segment_bytes: options.segment_bytes, ..next };
        change(&mut options);
    }
    world.audit(&options);
    world.model.borrow().total_acked
}
