//! What a lost group said of releases and of the owner's state: the next ones repeat it, or an open says that it is not known. And for whom no
//! group may be lost, who is told so by every open.

use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_chain::{Batch, Chain, ChainOptions, DamageKind, OpenError, Recovered};
use ithaca_env::sim::DriveFault;

use crate::mirrors::fault;
use crate::model::run_of;
use crate::owned::Map;
use crate::world::{World, identity, open_drive, small_options};

/// A group of one record, and of what it says besides.
fn batch(key: u64, release: impl IntoIterator<Item = Range<u64>>, state: Option<&'static [u8]>) -> Batch {
    let run = run_of(key, key, &[Bytes::from(vec![key as u8; 300])]);
    let (release, state) = (release.into_iter().collect(), state.map(Bytes::from_static));
    Batch { runs: vec![run], release, state, ..Batch::default() }
}

/// A chain of these groups, each in a block of its own unless it says much, and a power cut.
fn world_of(options: &ChainOptions, batches: Vec<Batch>) -> World {
    let world = World::new(40);
    let env = world.sim.env(world.process);
    let options = options.clone();
    world.sim.block_on(world.process, async move {
        let chain = Chain::create(&env, open_drive(&env).await, identity(), options).await.expect("created");
        for batch in batches {
            chain.wait(chain.append(batch).expect("room")).await.expect("no fault");
        }
    });
    world.cut_power();
    world
}

/// Harms the heads of the groups with these numbers, of which the first is the chain's own; they lie in the first segment.
fn lose(world: &World, groups: &[usize]) {
    let segment = world.sim.peek_drive(world.sim.drive(crate::world::MACHINE, "chain"), 64 << 10, 128 << 10);
    let heads = (0..32).filter(|block| segment[block * 4096..].starts_with(b"ITHG"));
    let heads: Vec<usize> = heads.collect();
    for group in groups {
        let offset = (64 << 10) + 4096 * heads[group - 1] as u64 + 50;
        fault(&world.sim, "chain", DriveFault::BitRot { offset, bit: 2 });
    }
}

/// What an open finds, if it does not fail.
fn reopen(world: &World, options: &ChainOptions) -> Result<Recovered, OpenError> {
    let (env, options) = (world.sim.env(world.process), options.clone());
    let opened = world.sim.block_on(world.process, async move {
        let (_chain, recovered) = Chain::open(&env, open_drive(&env).await, None, options).await?;
        Ok(recovered)
    });
    world.cut_power();
    opened
}

/// Whether a check finds all that groups said.
fn is_certain(world: &World) -> bool {
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let report = ithaca_chain::check(vec![open_drive(&env).await]).await.expect("it can be read");
        assert!(!report.damage.is_empty());
        report.is_control_certain
    })
}

/// Eight groups, of which the third releases a key, the fourth another one, and the fifth has a state.
fn eight(options: &ChainOptions) -> World {
    let batches = (0..8).map(|key| match key {
        2 => batch(key, Some(0..1), Some(b"old")),
        3 => batch(key, Some(100..102), None),
        4 => batch(key, None, Some(b"new")),
        _ => batch(key, None, None),
    });
    world_of(options, batches.collect())
}

/// Groups are lost, and what they said is not.
pub fn lose_what_is_repeated(options: &ChainOptions) {
    // The chain's own first group comes before them.
    for lost in [&[4][..], &[5], &[6], &[4, 5], &[4, 5, 6], &[3, 4, 5, 6, 7], &[4, 6], &[5, 7]] {
        let world = eight(options);
        lose(&world, lost);
        // The next open finds the same.
        for _ in 0..2 {
            let recovered = reopen(&world, options).expect("the rest is well");
            assert!(!recovered.damage.is_empty() && recovered.is_control_certain, "{lost:?}");
            let released: Vec<_> = recovered.released.ranges().collect();
            let state = recovered.state.as_deref();
            assert_eq!((released, state), (vec![0..1, 100..102], Some(&b"new"[..])), "{lost:?}");
        }
    }
}

#[test]
fn what_a_lost_group_said_is_repeated_by_those_behind_it() {
    lose_what_is_repeated(&small_options());
}

#[test]
fn the_mark_of_an_open_repeats_what_the_groups_before_it_said() {
    let world =
        world_of(&small_options(), vec![batch(0, None, Some(b"old")), batch(1, Some(0..1), Some(b"new"))]);
    reopen(&world, &small_options()).expect("it is well");
    lose(&world, &[3]);
    let recovered = reopen(&world, &small_options()).expect("the rest is well");
    assert_eq!((recovered.is_control_certain, recovered.state.as_deref()), (true, Some(&b"new"[..])));
    assert!(recovered.released.contains(0));
}

#[test]
fn an_open_says_or_fails_where_what_lost_groups_said_is_not_repeated() {
    // Each says so much that the next one has room for that of one.
    let many = |from: u64| (from..from + 140).map(|key| 2 * key..2 * key + 1).collect::<Vec<_>>();
    let batches = (0..6).map(|key| batch(key, many(1000 * (key + 1)), None)).collect();
    let options = small_options();
    let world = world_of(&options, batches);
    lose(&world, &[3, 4, 5]);
    assert!(!is_certain(&world));
    let needed = ChainOptions { needs_control: true, ..options.clone() };
    // Nothing is written that would let a later open take it for certain.
    for _ in 0..3 {
        let failed = reopen(&world, &needed);
        assert!(matches!(failed, Err(OpenError::ControlLost { .. })), "{failed:?}");
    }
    let recovered = reopen(&world, &options).expect("the rest is well");
    assert!(!recovered.is_control_certain, "{recovered:?}");
    // One of them is told by the next.
    let batches = (0..6).map(|key| batch(key, many(1000 * (key + 1)), None)).collect();
    let world = world_of(&options, batches);
    lose(&world, &[4]);
    assert!(is_certain(&world));
    let recovered = reopen(&world, &needed).expect("all that was said is there");
    assert_eq!(recovered.released.range_count(), 6 * 140);
}

#[test]
fn an_open_for_which_no_group_may_be_lost_fails_before_it_writes_anything() {
    let (options, world) = (small_options(), eight(&small_options()));
    // What it said is repeated, and what it held is not.
    lose(&world, &[4]);
    let needed = ChainOptions { needs_groups: true, needs_control: true, ..options.clone() };
    let drive = world.sim.drive(crate::world::MACHINE, "chain");
    let size = world.sim.drive_size_bytes(drive).expect("it is there") as usize;
    let before = world.sim.peek_drive(drive, 0, size);
    for _ in 0..3 {
        let failed = reopen(&world, &needed);
        assert!(matches!(failed, Err(OpenError::GroupsLost { segment: 0, .. })), "{failed:?}");
    }
    assert!(before == world.sim.peek_drive(drive, 0, size), "something was written");
    let (sound, groups) = (eight(&options), reopen(&world, &options).expect("the rest is well"));
    assert!(is_lost(&groups), "{groups:?}");
    reopen(&sound, &needed).expect("nothing is lost");
}

fn is_lost(recovered: &Recovered) -> bool {
    recovered.damage.iter().any(|it| matches!(it.kind, DamageKind::Groups { .. }))
}

#[test]
fn an_owner_hears_of_a_lost_group_also_when_its_segment_was_closed_since() {
    let options = small_options();
    let world = World::new(41);
    let (env, made) = (world.sim.env(world.process), options.clone());
    world.sim.block_on(world.process, async move {
        let (drive, owner) = (open_drive(&env).await, Rc::new(Map::default()));
        let chain = Chain::create_owned(&env, drive, identity(), made, owner).await.expect("created");
        for key in 0..8 {
            chain.wait(chain.append(batch(key, None, None)).expect("room")).await.expect("no fault");
        }
    });
    world.cut_power();
    lose(&world, &[4]);
    for round in 0..3 {
        let (env, options) = (world.sim.env(world.process), options.clone());
        world.sim.block_on(world.process, async move {
            let (drive, owner) = (open_drive(&env).await, Rc::new(Map::default()));
            let opened = Chain::open_owned(&env, drive, None, options, owner).await;
            let (chain, recovered) = opened.expect("the rest is well");
            assert!(is_lost(&recovered), "{round}: {recovered:?}");
            let words: String = recovered.damage.iter().map(|it| it.in_words("keys")).collect();
            assert!(words.contains("all of") && !words.contains(&u64::MAX.to_string()), "{round}: {words}");
            // No key twice: there is nothing to clean.
            let mut key = 100 * (round + 1);
            while chain.stats().segments_closed <= round {
                chain.wait(chain.append(batch(key, None, None)).expect("room")).await.expect("no fault");
                key += 1;
            }
        });
        world.cut_power();
    }
}
