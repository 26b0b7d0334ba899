//! A volume that is refused because groups of its chain are lost is shown as it was before them: as of the last commit before the first of
//! them, whole, or not at all; and nothing on its drives changes.

use std::rc::Rc;

use bytes::Bytes;
use ithaca_chain::{ChainError, ChainOptions, Cleaning, LeftOut, NoRescue, OpenError};
use ithaca_env::Env;
use ithaca_env::drive::{Drive, OpenDrive};
use ithaca_env::sim::Random;
use ithaca_volume::{Durability, Version, Volume, VolumeError, VolumeOptions, VolumeSettings};

use crate::lost::{Record, cut_power, cut_world_of, open_sides, records, rot, world_without_a_group};
use crate::world::{MACHINE, World, block, check_at, numbers, small_options, small_settings};

/// A volume that is cleaned all the time, or one with so much room that it never is.
pub fn options(cleaning: Cleaning) -> VolumeOptions {
    let mut options = small_options(10);
    let chain = &mut options.settings.chain;
    chain.cleaning = cleaning;
    if cleaning == Cleaning::Off {
        (chain.segment_bytes, chain.grow_bytes) = (1 << 20, 1 << 20);
        (chain.capacity_bytes, chain.clean_start_free_percent) = (32 << 20, 0);
    }
    options
}

async fn open_read_only(env: &Env) -> Drive {
    let open = OpenDrive { path: "volume".into(), create_bytes: None, read_only: true };
    env.open_drive(open).await.expect("the drive opens")
}

fn image(world: &World) -> Bytes {
    let drive = world.sim.drive(MACHINE, "volume");
    world.sim.peek_drive(drive, 0, world.sim.drive_size_bytes(drive).expect("it is there") as usize)
}

/// Shows what is left, compares all of it with what the volume was at those versions, and the drive with what it was. Returns the newest version, and
/// what is left out.
fn look(world: &World, settings: VolumeSettings) -> Result<(u64, Option<LeftOut>), VolumeError> {
    let (env, model, before) = (world.sim.env(world.process), Rc::clone(&world.model), image(world));
    let shown = world.sim.block_on(world.process, async move {
        let (volume, left_out) = Volume::rescue(&env, open_read_only(&env).await, settings).await?;
        let info = volume.info();
        let named = volume.snapshots().into_iter().map(|(_, version)| version);
        for version in (info.floor.0..=info.version.0).map(Version).chain(named) {
            check_at(&volume.at(version).expect("it is shown"), info.blocks, &model).await;
        }
        let refused = volume.write(0, block(1), Durability::Stable).await;
        assert_eq!(refused, Err(VolumeError::Stopped(ChainError::ReadOnly)));
        let refused = volume.create_snapshot("now").await;
        assert_eq!(refused, Err(VolumeError::Stopped(ChainError::ReadOnly)));
        volume.scrub().await.expect_err("it may write what it mends");
        volume.close().await.expect("nothing is under way");
        Ok((info.version.0, left_out))
    });
    cut_power(world);
    assert!(before == image(world), "the drive has changed");
    shown
}

/// How often what was left was shown, or was not, and why.
#[derive(Debug, Default)]
pub struct Tally {
    whole: u32,
    shown: u32,
    freed: u32,
    no_census: u32,
    any_age: u32,
}

/// Harms these records of the chain, looks at what is left, and makes them well again.
fn harm_and_look(
    world: &World,
    options: &VolumeOptions,
    all: &[Record],
    harmed: &[Record],
    tally: &mut Tally,
) {
    let drive = world.sim.drive(MACHINE, "volume");
    let flip = || harmed.iter().for_each(|it| world.sim.fault_drive(drive, rot(it.offset)));
    flip();
    let shown = look(world, options.settings.clone());
    flip();
    match shown {
        Ok((newest, left_out)) => {
            let end = left_out.as_ref().map_or(u64::MAX, |left_out| left_out.seqs.start);
            let before = all.iter().filter(|it| (1..end).contains(&it.seq)).map(|it| it.version).max();
            assert_eq!(Some(newest), before, "{harmed:?}: all that is older than group {end}");
            *if left_out.is_none() { &mut tally.whole } else { &mut tally.shown } += 1;
        }
        Err(VolumeError::Chain(OpenError::NoRescue { why, .. })) => match why {
            NoRescue::Freed { .. } => tally.freed += 1,
            NoRescue::NoCensus { .. } => tally.no_census += 1,
            NoRescue::AnyAge { .. } => tally.any_age += 1,
        },
        Err(other) => panic!("{harmed:?}: {other}"),
    }
}

/// Harms records of such a volume: each of the newest groups, which no footer tells of, and some of all the others, one at a time and three together.
pub fn harm_each(seed: u64, options: &VolumeOptions) -> Tally {
    let world = cut_world_of(seed, options);
    let (all, claimed) = records(&world);
    let harmable: Vec<Record> = all.iter().filter(|it| it.seq <= claimed).copied().collect();
    let (mut rng, mut tally) = (Random::new(seed), Tally::default());
    for (at, record) in harmable.iter().enumerate() {
        if at % 20 == 0 || record.seq + 30 > claimed {
            harm_and_look(&world, options, &all, &[*record], &mut tally);
        }
    }
    // A closed segment looks as if it were not, and copies of what it held may be in another one. The group is missed for the one behind it.
    for (at, trailer) in harmable.iter().enumerate().filter(|(_, it)| &it.magic == b"ITHT") {
        let groups = harmable[..at].iter().rev().skip_while(|it| &it.magic != b"ITHG");
        let groups: Vec<&Record> = groups.take_while(|it| &it.magic == b"ITHG").collect();
        if let Some(pair) = groups.windows(2).find(|pair| pair[1].seq > 0 && pair[0].seq == pair[1].seq + 1) {
            harm_and_look(&world, options, &all, &[*pair[1], *trailer], &mut tally);
        }
    }
    for _ in 0..8 {
        let any = |_| harmable[rng.below(harmable.len() as u64) as usize];
        let harmed: Vec<Record> = (0..3).map(any).collect();
        let are_apart = (0..3).all(|at| harmed[at].offset != harmed[(at + 1) % 3].offset);
        if are_apart {
            harm_and_look(&world, options, &all, &harmed, &mut tally);
        }
    }
    tally
}

#[test]
fn what_is_older_than_a_lost_group_is_shown_as_it_was() {
    // A commit in part, an older block, something newer than the lost group; or a drive that is not what it was.
    let tallies: Vec<Tally> = (5..7).map(|seed| harm_each(seed, &options(Cleaning::Off))).collect();
    assert!(tallies.iter().all(|it| it.whole > 5 && it.shown > 15 && it.freed == 0), "{tallies:?}");
}

#[test]
fn what_a_cleaner_may_have_moved_into_a_lost_group_is_not_shown_without_it() {
    // Records that were moved into it, whose segments are free, would be older, or absent.
    for cleaning in [Cleaning::MoveToTail, Cleaning::CompactInBody] {
        let tallies: Vec<Tally> = (5..13).map(|seed| harm_each(seed, &options(cleaning))).collect();
        let all = |count: fn(&Tally) -> u32| tallies.iter().map(count).sum::<u32>();
        // Neither all nor nothing: a census comes after each segment that is freed, and what is lost may stand behind it.
        assert!(all(|it| it.freed) > 3 && all(|it| it.shown) > 3, "{cleaning:?}: {tallies:?}");
    }
}

#[test]
fn a_volume_is_shown_as_of_the_last_commit_before_the_lost_group() {
    // Of eight commits, each in a group of its own, the fifth is lost.
    let world = world_without_a_group(&["volume"]);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let drive = open_read_only(&env).await;
        let (volume, left_out) =
            Volume::rescue(&env, &drive, small_settings()).await.expect("all before it is there");
        let left_out = left_out.expect("a group is lost");
        assert_eq!((left_out.seqs.clone(), left_out.newest_version), (6..7, 8), "{left_out:?}");
        assert!(volume.is_read_only());
        assert_eq!(volume.info().version, Version(4));
        assert_eq!(numbers(&volume.read(0, 2).await.expect("no damage")), [3, 4]);
        assert!(matches!(volume.at(Version(5)), Err(VolumeError::NoSuchVersion { .. })));
        let second = Volume::rescue(&env, &drive, small_settings()).await.err();
        assert!(matches!(second, Some(VolumeError::Chain(OpenError::Drive(_)))), "{second:?}");
        volume.close().await.expect("nothing is under way");
        Volume::rescue(&env, &drive, small_settings()).await.expect("nobody has it");
    });
}

#[test]
fn a_side_that_is_not_there_is_not_marked_by_a_rescue() {
    // What is lost is on the other side: it counts whole when it is back.
    let world = world_without_a_group(&["volume", "other"]);
    for names in [&["volume"][..], &["volume", "other"]] {
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let drives = open_sides(&env, names).await;
            let (volume, left_out) =
                Volume::rescue(&env, drives, small_settings()).await.expect("it is shown");
            assert_eq!(left_out.is_some(), names.len() == 1);
            let newest = if names.len() == 1 { [3, 4] } else { [7, 8] };
            assert_eq!(numbers(&volume.read(0, 2).await.expect("no damage")), newest);
        });
        cut_power(&world);
    }
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let drives = open_sides(&env, &["volume", "other"]).await;
        let options = ChainOptions { needs_sides: true, ..small_settings().chain };
        let settings = VolumeSettings { chain: options, ..small_settings() };
        let volume = Volume::open(&env, drives, settings).await.expect("both sides count");
        assert_eq!(numbers(&volume.read(0, 2).await.expect("no damage")), [7, 8]);
    });
}

#[test]
fn a_volume_that_has_lost_nothing_is_shown_as_it_is() {
    for cleaning in [Cleaning::Off, Cleaning::MoveToTail] {
        let options = options(cleaning);
        let world = cut_world_of(5, &options);
        let (newest, left_out) = look(&world, options.settings).expect("nothing is lost");
        assert_eq!(left_out, None);
        let durable = world.model.borrow().durable;
        assert!(newest >= durable, "{newest} is shown, {durable} was durable");
    }
}
