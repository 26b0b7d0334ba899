//! Power cuts and kills at every I/O point.

use std::rc::Rc;
use std::time::Duration;

use ithaca_chain::{Chain, ChainId, ChainOptions, Identity, Label, Owner, Place, Placed};
use ithaca_env::sim::{Death, DriveFault, Random};
use ithaca_volume::{Durability, Volume, VolumeError};

use crate::world::{BLOCKS, Life, MACHINE, World, block, numbers, open_drive, small_options};

/// Two lives; the second is cut off at I/O point `point`. True if it came to its end before.
fn cut_at(point: u64, death: Death, versions: u64) -> bool {
    let world = World::new(5);
    let options = small_options(versions);
    let life = |seed, steps| Life { options: options.clone(), seed, steps, closes: false };
    assert!(world.live(life(1, 150)));
    world.sim.end(world.process, Death::PowerCut);
    world.sim.restart(world.process);
    world.sim.end_at_io(world.process, world.sim.io_points(world.process) + point, death);
    let survived = world.live(life(2, 70));
    world.sim.end(world.process, death);
    world.audit(&options);
    survived
}

#[test]
fn every_version_is_whole_and_in_order_wherever_the_power_is_cut() {
    // A commit in halves, an acknowledged one gone, an old version freed before its floor is durable.
    for (versions, step) in [(0, 7), (20, 8)] {
        let mut points = 0;
        while !cut_at(points + 1, Death::PowerCut, versions) {
            points += step;
        }
        assert!(points > 100, "only {points} I/O points: the workload is too small to mean something");
    }
}

#[test]
fn nor_does_it_matter_where_the_process_is_killed() {
    let mut points = 0;
    while !cut_at(points + 1, Death::Kill, 5) {
        points += 13;
    }
    assert!(points > 100, "only {points} I/O points: the workload is too small to mean something");
}

/// Lives that are cut off somewhere. Returns how many commits were known to be durable, and segments cleaned.
pub fn lives(seed: u64, change: impl Fn(&mut crate::world::Life)) -> (u64, u64) {
    let mut rng = Random::new(seed);
    let world = World::new(seed);
    let versions = rng.pick(&[0, 0, 3, 30]);
    for life in 0..4 {
        let mut options = small_options(versions);
        options.settings.chain.tail_cache_bytes = rng.pick(&[0, 64 << 10, 1 << 20]);
        options.settings.chain.capacity_bytes = rng.pick(&[3 << 20, 4 << 20]);
        options.settings.versions_max = rng.pick(&[20, 1 << 20]);
        let death = rng.pick(&[Death::PowerCut, Death::Kill]);
        let point =
            if life == 2 { u64::MAX } else { world.sim.io_points(world.process) + 1 + rng.below(700) };
        world.sim.end_at_io(world.process, point, death);
        let mut life = Life { options, seed: rng.next_u64(), steps: 200, closes: rng.below(2) == 0 };
        change(&mut life);
        world.live(life);
        world.sim.end(world.process, death);
    }
    world.audit(&small_options(versions));
    let acked = world.model.borrow().acked;
    (acked, world.cleaned.get())
}

#[test]
fn many_lives_with_random_knobs_keep_every_promise() {
    let mut sum = (0, 0);
    for seed in 0..40 {
        let done = lives(seed, |_| ());
        sum = (sum.0 + done.0, sum.1 + done.1);
    }
    assert!(sum.0 > 6_000 && sum.1 > 200, "{sum:?}: too little was done to mean something");
}

#[test]
fn a_creation_is_taken_up_again_wherever_it_was_cut_off() {
    let mut points = 0;
    loop {
        let world = World::new(9);
        let options = small_options(0);
        world.sim.end_at_io(world.process, points + 1, Death::PowerCut);
        let survived = world.live(Life { options: options.clone(), seed: 1, steps: 0, closes: false });
        world.sim.end(world.process, Death::PowerCut);
        world.audit(&options);
        if survived {
            break;
        }
        points += 1;
    }
    assert!(points > 5, "only {points} I/O points");
}

/// Knows nothing: its chain is a volume whose creation was interrupted.
struct Nobody;

impl Owner for Nobody {
    fn placed(&self, _: Placed) -> Option<Place> {
        None
    }

    fn is_live(&self, _: Placed) -> bool {
        true
    }

    fn moved(&self, _: Placed, _: Place) -> bool {
        false
    }

    fn dropped(&self, _: Placed) -> bool {
        false
    }
}

/// A creation is interrupted; then an open is refused, and the volume made at once, over the same handle. Meanwhile the drive is slow
/// for `slow`.
fn is_made_right_after_a_refused_open(slow: Duration) {
    let world = World::new(12);
    let (sim, process) = (&world.sim, world.process);
    let env = sim.env(process);
    let chain = ChainOptions { segments_ready: 1, ..small_options(1000).settings.chain };
    sim.block_on(process, async move {
        let label = Label::new("volume").expect("short");
        let identity = Identity { id: ChainId([7; 16]), label };
        let drive = open_drive(&env).await;
        let made = Chain::create_owned(&env, drive, identity, chain, Rc::new(Nobody)).await;
        made.expect("blank").close().await.expect("no fault");
    });
    sim.fault_drive(sim.drive(MACHINE, "volume"), DriveFault::Slow { percent: 20_000, span: slow });
    let env = sim.env(process);
    let mut options = small_options(1000);
    options.settings.chain.segments_ready = 3;
    sim.block_on(process, async move {
        let drive = open_drive(&env).await;
        let refused = Volume::open(&env, &drive, options.settings.clone()).await.err();
        assert!(matches!(&refused, Some(VolumeError::Unfinished)), "{refused:?}");
        let volume = Volume::create(&env, &drive, options).await.expect("it is taken up again");
        for round in 0..6 {
            for at in 0..BLOCKS {
                let written = volume.write(at, block(round * BLOCKS + at + 1), Durability::Acknowledged);
                written.await.expect("there is room");
            }
        }
        volume.flush().await.expect("no fault");
        env.sleep(Duration::from_secs(1)).await;
    });
    sim.end(process, Death::PowerCut);
    sim.restart(process);
    let env = sim.env(process);
    sim.block_on(process, async move {
        let drive = open_drive(&env).await;
        let volume = Volume::open(&env, &drive, small_options(1000).settings).await.expect("it is whole");
        for round in 0..6 {
            let then = volume.at(ithaca_volume::Version((round + 1) * BLOCKS)).expect("it is kept");
            let data = then.read(0, BLOCKS).await.expect("no damage");
            let expected: Vec<u64> = (0..BLOCKS).map(|at| round * BLOCKS + at + 1).collect();
            assert_eq!(numbers(&data), expected, "slow for {slow:?}");
        }
    });
}

#[test]
fn what_a_refused_open_has_under_way_does_no_harm_to_the_volume_that_is_made_after_it() {
    (0..40).for_each(|step| is_made_right_after_a_refused_open(Duration::from_micros(250 * step)));
}
