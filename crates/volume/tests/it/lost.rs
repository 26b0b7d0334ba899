//! What a volume's chain says of itself is harmed, block by block, after a power cut: groups that held records, floors, names and
//! checkpoints, headers, footers, trailers. What was acknowledged is served as it was, all of it, or nothing is: also by the
//! opens after that. What is older than the harm is shown as it was at the last commit before it, if that is certain: see [`crate::rescue`].

use std::collections::BTreeSet;
use std::rc::Rc;

use ithaca_chain::{Drives, OpenError};
use ithaca_env::Env;
use ithaca_env::drive::{DriveError, OpenDrive};
use ithaca_env::sim::{Death, DriveFault, Random};
use ithaca_volume::{Durability, Version, Volume, VolumeError, VolumeOptions};

use crate::world::{
    Life, MACHINE, World, block, check_everything, number, numbers, open_drive, small_options, small_settings,
};

/// What a volume is, found by an open.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    newest: Version,
    floor: Version,
    names: Vec<(String, Version)>,
}

/// A record of the chain that is one block, or begins with one.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    pub magic: [u8; 4],
    pub offset: u64,
    /// Of a group.
    pub seq: u64,
    /// The newest version of a record in it.
    pub version: u64,
}

/// A volume after a life that ended well and one that a power cut has ended.
fn cut_world(seed: u64) -> World {
    cut_world_of(seed, &small_options(10))
}

/// The same of such a volume.
pub fn cut_world_of(seed: u64, options: &VolumeOptions) -> World {
    let world = World::new(21);
    let life = |seed, closes| Life { options: options.clone(), seed, steps: 250, closes };
    for (seed, closes) in [(seed, true), (seed + 1, false)] {
        assert!(world.live(life(seed, closes)), "a life without faults ends well");
        world.sim.end(world.process, Death::PowerCut);
    }
    world.sim.restart(world.process);
    world
}

fn u64_at(block: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(block[at..at + 8].try_into().expect("8 bytes"))
}

/// The newest version of a record in the group with which these bytes begin.
fn newest_version(group: &[u8]) -> u64 {
    let number = |at: usize| u32::from_le_bytes(group[at..at + 4].try_into().expect("4 bytes"));
    let count_at = |at: usize| Some(number(at)).filter(|it| *it != u32::MAX).unwrap_or(0) as usize;
    let mut at = 116 + 16 * count_at(92) + 8 * count_at(112) + count_at(96);
    let mut newest = 0;
    for _ in 0..number(88) {
        newest = newest.max(u64_at(group, at + 8));
        let meta = usize::from(u16::from_le_bytes(group[at + 28..at + 30].try_into().expect("2 bytes")));
        let table = if group[at + 30] == 1 { 8 * count_at(at + 16) } else { 0 };
        at += 32 + meta + table;
    }
    newest
}

/// All records of the chain, also what is left of uses before, and the highest group that another one says to be durable.
pub fn records(world: &World) -> (Vec<Record>, u64) {
    let drive = world.sim.drive(MACHINE, "volume");
    let size = world.sim.drive_size_bytes(drive).expect("it is there");
    let image = world.sim.peek_drive(drive, 0, size as usize);
    let (mut records, mut claimed) = (Vec::new(), 0);
    for (at, block) in image.chunks(4096).enumerate().skip(16) {
        let magic = block[..4].try_into().expect("4 bytes");
        if !matches!(&magic, b"ITHG" | b"ITHH" | b"ITHF" | b"ITHD" | b"ITHT") {
            continue;
        }
        // Groups with copies count for themselves.
        let is_of_log = &magic == b"ITHG" && block[10] & 8 == 0;
        let seq = if is_of_log { u64_at(block, 40) } else { 0 };
        claimed = if is_of_log { claimed.max(u64_at(block, 48)) } else { claimed };
        let version = if is_of_log { newest_version(&image[at * 4096..]) } else { 0 };
        records.push(Record { magic, offset: at as u64 * 4096, seq, version });
    }
    (records, claimed)
}

/// Opens the volume and reads everything. It is refused if it must be.
fn open(world: &World) -> Result<Found, VolumeError> {
    let (env, model) = (world.sim.env(world.process), Rc::clone(&world.model));
    let opened = world.sim.block_on(world.process, async move {
        let volume = Volume::open(&env, open_drive(&env).await, small_settings()).await?;
        let info = volume.info();
        model.borrow_mut().settle(info.version.0);
        check_everything(&volume, &model).await;
        Ok(Found { newest: info.version, floor: info.floor, names: volume.snapshots() })
    });
    cut_power(world);
    opened
}

#[derive(Debug, Default)]
struct Tally {
    opened: u32,
    refused: u32,
}

/// Harms these blocks and opens the volume, several times; if it can be opened it goes on, and is looked at again.
fn harm_and_look(
    seed: u64,
    right: &Found,
    harmed: &[Record],
    fault: fn(u64) -> DriveFault,
    tally: &mut Tally,
) {
    let world = cut_world(seed);
    let drive = world.sim.drive(MACHINE, "volume");
    harmed.iter().for_each(|it| world.sim.fault_drive(drive, fault(it.offset)));
    let mut before = None;
    for _ in 0..3 {
        let is_refused = match open(&world) {
            Ok(found) => {
                assert_eq!(found, *right, "{harmed:?}");
                false
            }
            Err(VolumeError::Lost { .. } | VolumeError::Chain(OpenError::CheckpointLost { .. })) => true,
            // What cannot be read may be read by another open.
            Err(VolumeError::Chain(OpenError::Drive(DriveError::Io { offset, .. })))
                if matches!(fault(offset), DriveFault::Unreadable { .. }) =>
            {
                assert!(harmed.iter().any(|it| it.offset == offset), "{harmed:?}: byte {offset}");
                true
            }
            Err(other) => panic!("{harmed:?}: {other}"),
        };
        assert!(
            before.is_none_or(|before| before == is_refused),
            "{harmed:?}: {before:?}, then {is_refused}"
        );
        before = Some(is_refused);
    }
    if before == Some(true) {
        tally.refused += 1;
        return;
    }
    tally.opened += 1;
    // Segments are cleaned and used again.
    for (seed, closes) in [(9, false), (10, true)] {
        let life = Life { options: small_options(10), seed, steps: 250, closes };
        assert!(world.live(life), "{harmed:?}");
        world.sim.end(world.process, Death::PowerCut);
    }
    world.audit(&small_options(10));
}

pub fn rot(offset: u64) -> DriveFault {
    DriveFault::BitRot { offset: offset + 50, bit: 2 }
}

fn unreadable(offset: u64) -> DriveFault {
    DriveFault::Unreadable { offset }
}

/// The records that are harmed, of a volume that is what the open of an unharmed one finds. Not the last groups: nobody vouches for them, and
/// they look as if they had been on their way.
fn harmable(seed: u64) -> (Vec<Record>, Found) {
    let world = cut_world(seed);
    let (mut records, claimed) = records(&world);
    records.retain(|it| it.seq <= claimed);
    (records, open(&world).expect("nothing is harmed"))
}

#[test]
fn whatever_one_record_of_the_chain_is_harmed_nothing_older_is_served() {
    for (seed, fault) in [(5, rot as fn(u64) -> DriveFault), (7, unreadable)] {
        let (records, right) = harmable(seed);
        let magics: BTreeSet<[u8; 4]> = records.iter().map(|it| it.magic).collect();
        let mut tally = Tally::default();
        // Each kind, and all of the newest groups, which no footer tells of.
        let newest = records.iter().map(|it| it.seq).max().unwrap_or(0);
        for (_, record) in records.iter().enumerate().filter(|(at, it)| at % 7 == 0 || it.seq + 3 > newest) {
            harm_and_look(seed, &right, &[*record], fault, &mut tally);
        }
        assert!(tally.opened > 10 && tally.refused > 0 && magics.len() == 5, "{tally:?} {magics:?}");
    }
}

#[test]
fn whichever_records_of_the_chain_are_harmed_nothing_older_is_served() {
    let mut rng = Random::new(3);
    let mut tally = Tally::default();
    for seed in [5, 7] {
        let (records, right) = harmable(seed);
        // The end of a segment: its last group, and what the closing of it wrote.
        for (at, trailer) in records.iter().enumerate().filter(|(_, it)| &it.magic == b"ITHT") {
            let group = records[..at].iter().rfind(|it| &it.magic == b"ITHG").expect("it holds some");
            // Where the next segment is in another use nothing tells of it.
            if records.iter().any(|it| it.seq == group.seq + 1) {
                harm_and_look(seed, &right, &[*group, *trailer], rot, &mut tally);
            }
        }
        for _ in 0..6 {
            let any = |_| records[rng.below(records.len() as u64) as usize];
            let harmed: Vec<Record> = (0..3).map(any).collect();
            harm_and_look(seed, &right, &harmed, rot, &mut tally);
        }
    }
    assert!(tally.opened > 5 && tally.refused > 2, "{tally:?}");
}

/// A volume of these files, which hold the same, in which eight commits lie in a group each; the power was cut after the last. Of the first file the
/// group of the fifth is harmed.
pub fn world_without_a_group(names: &'static [&'static str]) -> World {
    let world = World::new(22);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let drives = open_sides(&env, names).await;
        let volume = Volume::create(&env, drives, small_options(10)).await.expect("created");
        for at in 0..8 {
            volume.write(at % 2, block(at + 1), Durability::Stable).await.expect("room");
        }
    });
    cut_power(&world);
    let (records, _) = records(&world);
    let group = records.iter().find(|it| it.seq == 6).expect("there are more");
    world.sim.fault_drive(world.sim.drive(MACHINE, "volume"), rot(group.offset));
    world
}

pub fn cut_power(world: &World) {
    world.sim.end(world.process, Death::PowerCut);
    world.sim.restart(world.process);
}

pub async fn open_sides(env: &Env, names: &[&str]) -> Drives {
    let mut sides = Vec::new();
    for name in names {
        let open = OpenDrive { path: (*name).into(), create_bytes: Some(64 << 10), read_only: false };
        sides.push(env.open_drive(open).await.expect("it opens"));
    }
    Drives::from(vec![sides])
}

#[test]
fn an_open_that_is_refused_leaves_what_another_side_has() {
    // What it held is on the other side, which is away for a while.
    let world = world_without_a_group(&["volume", "other"]);
    for names in [&["volume"][..], &["volume"], &["volume", "other"]] {
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let opened = Volume::open(&env, open_sides(&env, names).await, small_settings()).await;
            if names.len() == 1 {
                let refused = opened.err().expect("a group is lost");
                assert!(matches!(refused, VolumeError::Lost { .. }), "{refused}");
                return;
            }
            let volume = opened.expect("the other side has all of it");
            for version in 1..=8 {
                let Ok(then) = volume.at(Version(version)) else { continue };
                let data = then.read((version - 1) % 2, 1).await.expect("no damage");
                assert_eq!(number(&data), version);
            }
            assert_eq!(numbers(&volume.read(0, 2).await.expect("no damage")), [7, 8]);
        });
        cut_power(&world);
    }
}

#[test]
fn an_open_that_is_refused_is_refused_as_often_as_it_is_tried() {
    let world = world_without_a_group(&["volume"]);
    // A segment has 64 blocks.
    for round in 0..100 {
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let refused = Volume::open(&env, open_drive(&env).await, small_settings()).await.err();
            assert!(matches!(refused, Some(VolumeError::Lost { .. })), "{round}: {refused:?}");
        });
        cut_power(&world);
    }
}
