//! Sides that a volume is given while it is used: one in the place of a lost one, or the first besides its only drive.

use std::time::Duration;

use ithaca_chain::{ChangeError, OpenError};
use ithaca_env::Env;
use ithaca_env::drive::Durability as Written;
use ithaca_env::sim::Death;
use ithaca_volume::socket::{DriveState, Summary};
use ithaca_volume::{Durability, Volume, VolumeError};

use crate::world::{
    Given, Life, World, block, create, number, open_drive, open_named, small_options, small_settings, within,
};

fn states(volume: &Volume) -> Vec<DriveState> {
    Summary::of(volume).drives.iter().map(|drive| drive.state).collect()
}

async fn until_rebuilt(env: &Env, volume: &Volume) {
    let deadline = env.now() + Duration::from_secs(60);
    while states(volume).iter().any(|state| *state != DriveState::Live) {
        assert!(env.now() < deadline, "not rebuilt: {:?}", states(volume));
        env.sleep(Duration::from_millis(1)).await;
    }
}

/// A volume is used, given a side, and cut off at I/O point `point` from there on. It is used again with both, until the side has everything,
/// and then with that one alone. True if it came to its end before the cut.
fn cut_at(seed: u64, point: u64, death: Death) -> bool {
    let world = World::new(seed);
    let options = small_options(5);
    let life = |seed, steps, closes| Life { options: options.clone(), seed, steps, closes };
    assert!(world.live(life(seed, 120, false)), "nothing ends it");
    world.sim.end(world.process, death);
    world.sim.restart(world.process);
    world.given.set(Given::Both);
    world.sim.end_at_io(world.process, world.sim.io_points(world.process) + point, death);
    let survived = world.live(life(seed + 1, 60, false));
    world.sim.end(world.process, death);
    world.sim.end_at_io(world.process, u64::MAX, death);
    assert!(world.live(life(seed + 2, 60, true)), "nothing ends it");
    world.sim.end(world.process, Death::PowerCut);
    world.sim.restart(world.process);
    let (env, settings) = (world.sim.env(world.process), options.settings.clone());
    world.sim.block_on(world.process, async move {
        let drives = vec![open_drive(&env).await, open_named(&env, "side").await];
        let volume = Volume::open(&env, vec![drives], settings).await.expect("both are the volume's");
        until_rebuilt(&env, &volume).await;
    });
    world.sim.end(world.process, Death::PowerCut);
    world.given.set(Given::Second);
    world.audit(&options);
    survived
}

#[test]
fn a_new_side_has_everything_wherever_its_rebuild_was_cut_off() {
    // It is there and no member, a member of one superblock only, counts too early, or lacks what was written meanwhile.
    for (seed, death, step) in [(3, Death::PowerCut, 97), (4, Death::Kill, 131)] {
        let mut points = 0;
        while !cut_at(seed, points + 1, death) {
            points += step;
        }
        assert!(points > 1000, "only {points} I/O points: the workload is too small to mean something");
    }
}

/// Block `at` of a volume is filled with `at + 1`, for each of these.
async fn fill(volume: &Volume, blocks: std::ops::Range<u64>) {
    for at in blocks {
        volume.write(at, block(at + 1), Durability::Stable).await.expect("room");
    }
}

async fn check_filled(volume: &Volume, blocks: std::ops::Range<u64>) {
    for at in blocks {
        assert_eq!(number(&volume.read(at, 1).await.expect("no damage")), at + 1);
    }
}

/// Opens the volume that these drives hold; each that holds none is blank.
async fn open(env: &Env, names: &[&str]) -> Result<Volume, VolumeError> {
    let mut drives = Vec::new();
    for name in names {
        drives.push(open_named(env, name).await);
    }
    Volume::open(env, vec![drives], small_settings()).await
}

/// A life of a process that ends with the power.
fn life<T: 'static>(world: &World, live: impl AsyncFnOnce(Env) -> T + 'static) -> T {
    let env = world.sim.env(world.process);
    let done = world.sim.block_on(world.process, async move { live(env).await });
    world.sim.end(world.process, Death::PowerCut);
    world.sim.restart(world.process);
    done
}

#[test]
fn a_lost_side_is_replaced_and_the_new_one_is_not_believed_before_it_has_everything() {
    let world = World::new(1);
    life(&world, async |env| {
        let mirror = vec![vec![open_named(&env, "a").await, open_named(&env, "b").await]];
        let volume = Volume::create(&env, mirror, small_options(0)).await.expect("created");
        fill(&volume, 0..10).await;
    });
    // B is lost.
    life(&world, async |env| {
        let volume = open(&env, &["a"]).await.expect("it has everything");
        assert_eq!(states(&volume), [DriveState::Live, DriveState::Missing]);
        fill(&volume, 10..20).await;
        let beside = volume.info().chain.links[0].id;
        volume.add_side(beside, open_named(&env, "c").await).await.expect("it is blank");
        let found = states(&volume);
        assert!(matches!(found[..], [DriveState::Live, DriveState::Rebuilding { segments: 0 }]), "{found:?}");
        check_filled(&volume, 0..20).await;
    });
    // A is lost before C has everything; B is an old copy, and none of the volume's drives any more.
    for given in [&["c"][..], &["b", "c"]] {
        let refused = life(&world, async move |env| open(&env, given).await.err());
        let is_missed = matches!(refused, Some(VolumeError::Chain(OpenError::DriveMissing { .. })));
        let is_strange = matches!(refused, Some(VolumeError::Chain(OpenError::NotAMember { .. })));
        assert!(if given.len() == 1 { is_missed } else { is_strange }, "{given:?}: {refused:?}");
    }
    life(&world, async |env| {
        let volume = open(&env, &["a", "c"]).await.expect("A has everything");
        fill(&volume, 20..30).await;
        until_rebuilt(&env, &volume).await;
        fill(&volume, 30..40).await;
    });
    life(&world, async |env| {
        let volume = open(&env, &["c"]).await.expect("it has everything");
        check_filled(&volume, 0..40).await;
    });
}

#[test]
fn what_is_not_blank_becomes_no_side() {
    within(2, async |env| {
        let volume = create(&env, small_options(0)).await;
        fill(&volume, 0..10).await;
        let foreign = open_named(&env, "foreign").await;
        foreign.grow(1 << 20).await.expect("it grows");
        let text = bytes::Bytes::from(b"_BHRfS_M".repeat(512));
        foreign.write(64 << 10, text.clone(), Written::Durable).await.expect("no fault");
        let beside = volume.info().chain.links[0].id;
        let refused = volume.add_side(beside, foreign.clone()).await.err();
        assert_eq!(refused, Some(ChangeError::Open(OpenError::NotBlank { drive: "foreign".to_owned() })));
        assert_eq!(foreign.read(64 << 10, 4096).await.expect("it can be read"), text);
        assert_eq!(states(&volume), [DriveState::Live]);
        let other = open_named(&env, "other").await;
        let others = Volume::create(&env, other.clone(), small_options(0)).await.expect("created");
        others.close().await.expect("no fault");
        let refused = volume.add_side(beside, other).await.err();
        assert!(matches!(refused, Some(ChangeError::Open(OpenError::AlreadyThere { .. }))), "{refused:?}");
        check_filled(&volume, 0..10).await;
    });
}
