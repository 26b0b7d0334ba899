//! Reads that fail while a chain is opened, and work before it is open or at the next open: nothing is lost because of that.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_chain::{
    Batch, Chain, ChainOptions, Cleaning, Damage, DamageKind, OpenError, RangeSet, ReadError, Recovered,
    check,
};
use ithaca_env::Env;
use ithaca_env::drive::{Drive, DriveError, DriveFuture, Wrapper};
use ithaca_env::sim::{Death, DriveFault, Random};

use crate::cleaning::eager;
use crate::damage::wiped_with_groups;
use crate::drives::{append, put, tiny_drives};
use crate::mirrors::fault;
use crate::model::View;
use crate::unread::blocks_of;
use crate::world::{MACHINE, Workload, World, identity, open_drive, open_named, small_options};

/// A drive of which the first reads of some bytes fail.
struct Faltering {
    drive: Drive,
    bytes: Range<u64>,
    left: Cell<u32>,
}

impl Wrapper for Faltering {
    fn drive(&self) -> &Drive {
        &self.drive
    }

    fn read(&self, offset: u64, len: usize) -> DriveFuture<Bytes> {
        let is_meant = offset < self.bytes.end && self.bytes.start < offset + len as u64;
        if self.left.get() == 0 || !is_meant {
            return self.drive.read(offset, len);
        }
        self.left.set(self.left.get() - 1);
        let (path, message) = (self.drive.name(), "not now".to_owned());
        Box::pin(async move { Err(DriveError::Io { path, operation: "read", offset, message }) })
    }
}

impl Faltering {
    /// The chain's drive, of which the first reads of these bytes fail, so many.
    async fn open(env: &Env, bytes: Range<u64>, left: u32) -> (Rc<Self>, Drive) {
        let it = Rc::new(Self { drive: open_drive(env).await, bytes, left: Cell::new(left) });
        (Rc::clone(&it), Drive::new(it))
    }
}

/// A chain whose segments have all been used, and what it holds.
fn cleaned_world(is_closed: bool) -> (World, View) {
    let lives = [(1, 150), (2, 70)].map(|(seed, steps)| Workload {
        rng: Random::new(seed),
        steps,
        close: is_closed,
        heavy: true,
        sparse: true,
    });
    World::new(19).after_lives(&eager(), lives)
}

#[test]
fn the_first_blocks_of_a_segment_that_fail_while_others_are_read_are_read_in_the_end() {
    // What was in a segment before it was wiped was found, and groups that nobody misses were lost for good; or the end of the log was.
    for is_closed in [true, false] {
        let (world, _) = cleaned_world(is_closed);
        let size = world.sim.drive_size_bytes(world.sim.drive(MACHINE, "chain")).expect("it is there");
        let (first, segment) = (64 << 10, eager().segment_bytes);
        for start in (first..size).step_by(segment as usize) {
            let (world, view) = cleaned_world(is_closed);
            let env = world.sim.env(world.process);
            world.sim.block_on(world.process, async move {
                // The request for both, and each of them as often as it is asked for again.
                let (faltering, drive) = Faltering::open(&env, start..start + 8192, 9).await;
                let opened = Chain::open(&env, vec![drive], None, eager()).await;
                let (_chain, recovered) = opened.unwrap_or_else(|error| panic!("byte {start}: {error}"));
                assert_eq!(recovered.damage, [], "byte {start}");
                assert_eq!(recovered.covered, view.covered(), "byte {start}");
                assert_eq!(faltering.left.get(), 0, "byte {start}: it was read");
            });
        }
    }
}

#[test]
fn a_header_that_could_not_be_read_at_an_open_is_not_named_any_more_when_a_scrub_reads_it() {
    let (world, view) = cleaned_world(true);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let header = (64 << 10)..(68 << 10);
        let (faltering, drive) = Faltering::open(&env, header, u32::MAX).await;
        let (chain, recovered) =
            Chain::open(&env, vec![drive], None, eager()).await.expect("its trailer is well");
        assert!(matches!(recovered.damage[..], [Damage { kind: DamageKind::Frame, segment: 0, .. }]));
        assert_eq!(recovered.covered, view.covered());
        faltering.left.set(0);
        chain.scrub().await.expect("it runs");
        assert_eq!(chain.stats().damage, []);
        chain.close().await.expect("no fault");
    });
}

/// A chain that has gone round its segments, in which nothing is moved, cut off after so many records. The last ten are needed.
fn gone_round(records: u64) -> World {
    let world = World::new(3);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let drives = vec![vec![open_named(&env, "chain").await]];
        let chain = Chain::create(&env, drives, identity(), ring()).await.expect("created");
        for key in 0..records {
            append(&env, &chain, key..key + 1).await;
            let release =
                || Batch { release: std::iter::once(0..key.max(10) - 9).collect(), ..Batch::default() };
            put(&env, &chain, release).await;
        }
    });
    world.sim.end(world.process, Death::PowerCut);
    world.sim.restart(world.process);
    world
}

fn ring() -> ChainOptions {
    ChainOptions { cleaning: Cleaning::Off, capacity_bytes: (64 << 10) + 8 * (128 << 10), ..tiny_drives() }
}

#[test]
fn a_segment_whose_first_blocks_cannot_be_read_is_not_taken_for_its_earlier_use() {
    // It has the trailer of that still. What was acknowledged last was gone without a word.
    let mut refused = 0;
    for records in 150..170 {
        for segment in 0..8 {
            let world = gone_round(records);
            let env = world.sim.env(world.process);
            let is_opened = world.sim.block_on(world.process, async move {
                let start = (64 << 10) + segment * (128 << 10);
                let (_, drive) = Faltering::open(&env, start..start + 8192, u32::MAX).await;
                let (chain, _) = match Chain::open(&env, vec![drive], None, ring()).await {
                    // Nothing is known to be lost.
                    Err(OpenError::Drive(DriveError::Io { .. })) => return false,
                    opened => opened.expect("else it opens"),
                };
                for key in records - 10..records {
                    match chain.read(key).await {
                        Ok(Some(_)) | Err(ReadError::Damaged { .. } | ReadError::Drive(_)) => {}
                        other => panic!("{records} records, segment {segment}: key {key} is {other:?}"),
                    }
                }
                true
            });
            refused += u64::from(!is_opened);
        }
    }
    assert!(refused <= 20, "{refused}: of each chain that in which the log ends, at the most");
}

/// What comes of an open that cannot read these bytes at all, and of one after that, which can. The first one appends so many keys from
/// `next` on. Nothing if it fails.
fn opened_twice(
    world: &World,
    options: &ChainOptions,
    unread: Range<u64>,
    added: Range<u64>,
) -> Option<Recovered> {
    let (env, over) = (world.sim.env(world.process), options.clone());
    let opened = world.sim.block_on(world.process, async move {
        let (_, drive) = Faltering::open(&env, unread, u32::MAX).await;
        let (chain, _) = match Chain::open(&env, vec![drive], None, over).await {
            Err(OpenError::Drive(DriveError::Io { .. })) => return false,
            opened => opened.expect("else it opens"),
        };
        append(&env, &chain, added).await;
        chain.close().await.expect("no fault");
        true
    });
    opened.then(|| open_well(world, options))
}

/// What an open finds that reads everything.
fn open_well(world: &World, options: &ChainOptions) -> Recovered {
    let (env, over) = (world.sim.env(world.process), options.clone());
    world.sim.block_on(world.process, async move {
        let opened = Chain::open(&env, open_drive(&env).await, None, over).await;
        let (chain, recovered) = opened.expect("it reads again");
        chain.close().await.expect("no fault");
        recovered
    })
}

/// Holes that trailers speak of.
fn listed_holes(world: &World) -> u32 {
    let drive = world.sim.drive(MACHINE, "chain");
    let size = world.sim.drive_size_bytes(drive).expect("it is there") as usize;
    let bytes = world.sim.peek_drive(drive, 0, size);
    let trailers = bytes.chunks_exact(4096).filter(|block| block.starts_with(b"ITHT"));
    trailers.map(|it| u32::from_le_bytes(it[104..108].try_into().expect("four bytes"))).sum()
}

/// Checks that nothing is lost for good when these bytes cannot be read at an open. Returns whether it opened.
fn nothing_is_lost(
    world: &World,
    options: &ChainOptions,
    unread: Range<u64>,
    covered: &RangeSet,
    added: u64,
) -> bool {
    let next = covered.last().map_or(0, |last| last + 1);
    let Some(recovered) = opened_twice(world, options, unread.clone(), next..next + added) else {
        return false;
    };
    let mut expected = covered.clone();
    (next..next + added).for_each(|key| _ = expected.insert(key..key + 1));
    assert_eq!((recovered.damage, listed_holes(world)), (Vec::new(), 0), "{unread:?}, {added} keys");
    assert_eq!(recovered.covered, expected, "{unread:?}, {added} keys");
    true
}

#[test]
fn nothing_is_lost_for_good_because_the_first_blocks_of_a_segment_cannot_be_read_at_an_open() {
    // What was in a segment before it was wiped was taken for its content, and from then on a footer or a census said that some was lost.
    let mut opened = 0;
    for (is_closed, added) in [(true, 0), (true, 30), (false, 0), (false, 30)] {
        let (world, view) = cleaned_world(is_closed);
        let size = world.sim.drive_size_bytes(world.sim.drive(MACHINE, "chain")).expect("it is there");
        let (first, segment) = (64 << 10, eager().segment_bytes);
        for start in (first..size).step_by(segment as usize) {
            let (world, _) = cleaned_world(is_closed);
            let unread = start..start + 8192;
            opened += u64::from(nothing_is_lost(&world, &eager(), unread, &view.covered(), added));
        }
    }
    assert!(opened > 60, "only {opened} opens");
}

#[test]
fn what_was_cut_stays_cut_when_the_first_blocks_of_its_segment_cannot_be_read_at_an_open() {
    // The log went on in that segment, which is free: what was acknowledged was gone at the next start.
    let options = ChainOptions { flights: 8, group_max_bytes: 1, tail_cache_bytes: 0, ..small_options() };
    let work =
        |seed, steps, close| Workload { rng: Random::new(seed), steps, close, heavy: true, sparse: false };
    let with_cut_segments = |seed| {
        let world = World::new(seed);
        world.sim.end_at_io(world.process, 120 + 2 * (seed % 150), Death::PowerCut);
        world.live(&options, work(seed, 60, false));
        world.sim.end(world.process, Death::PowerCut);
        world.sim.end_at_io(world.process, u64::MAX, Death::PowerCut);
        assert!(world.live(&options, work(seed + 1, 8 * (seed % 2) as usize, true)), "nothing ends it");
        world.cut_power();
        world
    };
    let mut cut = 0;
    for seed in 0..500 {
        let wiped = wiped_with_groups(&with_cut_segments(seed).sim, "chain", &options);
        for start in wiped {
            cut += 1;
            let recovered = open_well(&with_cut_segments(seed), &options);
            nothing_is_lost(&with_cut_segments(seed), &options, start..start + 8192, &recovered.covered, 20);
        }
    }
    assert!(cut > 5, "only {cut} segments were cut");
}

/// A chain with so many records that was closed, the trailer of its first segment harmed if it has one; and where its groups are there.
fn without_trailer(records: u64) -> (World, Vec<u64>) {
    let world = World::new(14);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let drive = open_drive(&env).await;
        let chain = Chain::create(&env, drive, identity(), uncleaned()).await.expect("created");
        append(&env, &chain, 0..records).await;
        chain.close().await.expect("no fault");
    });
    for offset in blocks_of(&world, b"ITHT") {
        fault(&world.sim, "chain", DriveFault::BitRot { offset: offset + 100, bit: 4 });
    }
    let groups = blocks_of(&world, b"ITHG");
    (world, groups)
}

fn uncleaned() -> ChainOptions {
    ChainOptions { cleaning: Cleaning::Off, tail_cache_bytes: 0, ..small_options() }
}

#[test]
fn a_group_that_cannot_be_read_at_an_open_is_there_again_at_the_next_one() {
    // It was missing in the footer that was written then, wherever in the segment it is: of one that is full, or in which the log ends.
    let (mut opened, mut failed) = (0, 0);
    for records in [5, 30] {
        for group in without_trailer(records).1 {
            for added in [0, 30] {
                let (world, _) = without_trailer(records);
                let covered = (0..records).map(|key| key..key + 1).collect();
                match nothing_is_lost(&world, &uncleaned(), group..group + 4096, &covered, added) {
                    true => opened += 1,
                    false => failed += 1,
                }
                let env = world.sim.env(world.process);
                world.sim.block_on(world.process, async move {
                    let opened = Chain::open(&env, open_drive(&env).await, None, uncleaned()).await;
                    let (chain, _) = opened.expect("it reads again");
                    for key in 0..records {
                        let record = chain.read(key).await.expect("no damage").expect("it is there");
                        assert_eq!(record.data, vec![key as u8; 8192], "{group}, key {key}");
                    }
                });
            }
        }
    }
    assert!(opened > 20 && failed > 1, "{opened} opens, {failed} that failed");
}

/// Opens and checks a chain whose group here cannot be read at all, for one who cannot do without any.
fn open_and_check(records: u64, group: u64) -> (Option<OpenError>, Result<Vec<DamageKind>, OpenError>) {
    let (world, _) = without_trailer(records);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (_, drive) = Faltering::open(&env, group..group + 4096, u32::MAX).await;
        let options = ChainOptions { needs_groups: true, ..uncleaned() };
        let opened = Chain::open(&env, vec![drive.clone()], None, options).await;
        let checked = check(&drive).await;
        (opened.err(), checked.map(|report| report.damage.into_iter().map(|it| it.kind).collect()))
    })
}

#[test]
fn what_cannot_be_read_is_the_drives_error_for_an_open_and_named_by_a_check() {
    // An operator would rebuild a unit, or give up a volume, that the next start finds well.
    for (records, nth) in [(5, 0), (5, 2), (30, 1), (30, 4)] {
        let group = without_trailer(records).1[nth];
        let (opened, checked) = open_and_check(records, group);
        assert!(matches!(opened, Some(OpenError::Drive(DriveError::Io { .. }))), "{opened:?}");
        match checked {
            Ok(kinds) => assert!(kinds.iter().any(|it| matches!(it, DamageKind::Groups { .. })), "{kinds:?}"),
            Err(error) => assert!(matches!(error, OpenError::CheckpointLost { .. }), "{error}"),
        }
    }
}
