//! Drives that take no more reads for now: a read is refused, and nothing is taken for damaged because of that.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_chain::{Batch, Chain, ChainOptions, Cleaning, Owner, ReadError};
use ithaca_env::Env;
use ithaca_env::drive::{Drive, DriveError, DriveFuture, Wrapper};
use ithaca_env::sim::DriveFault;

use crate::drives::append;
use crate::mirrors::{A, B, check_keys, closed_pair, fault, place_of, read_small};
use crate::owned::Map;
use crate::scrub::with_record_7_harmed;
use crate::world::{World, identity, open_drive, open_drives, small_options};

/// A drive of which a test says which reads it refuses or fails.
#[derive(Clone)]
pub struct Wilful {
    drive: Drive,
    /// The reads that are refused, counted from when this was set.
    refused: Rc<RefCell<Range<u32>>>,
    reads: Rc<Cell<u32>>,
    /// Reads of these bytes fail, all of them.
    pub failing: Rc<RefCell<Range<u64>>>,
}

impl Wilful {
    pub fn new(drive: &Drive) -> Self {
        Self { drive: drive.clone(), refused: Rc::default(), reads: Rc::default(), failing: Rc::default() }
    }

    /// The drive to give to a chain.
    pub fn as_drive(&self) -> Drive {
        Drive::new(Rc::new(self.clone()))
    }

    /// Of the reads to come, these are refused.
    fn refuse(&self, reads: Range<u32>) {
        self.reads.set(0);
        self.refused.replace(reads);
    }

    /// Whether a read was refused since.
    fn has_refused(&self) -> bool {
        self.reads.get() > self.refused.borrow().start
    }
}

impl Wrapper for Wilful {
    fn drive(&self) -> &Drive {
        &self.drive
    }

    fn read(&self, offset: u64, len: usize) -> DriveFuture<Bytes> {
        let (path, nth, failing) = (self.drive.name(), self.reads.get(), self.failing.borrow());
        self.reads.set(nth.saturating_add(1));
        if self.refused.borrow().contains(&nth) {
            return Box::pin(async { Err(DriveError::Busy { path }) });
        }
        if offset < failing.end && failing.start < offset + len as u64 {
            let message = "not now".to_owned();
            return Box::pin(async move { Err(DriveError::Io { path, operation: "read", offset, message }) });
        }
        self.drive.read(offset, len)
    }
}

const ALL: Range<u32> = 0..u32::MAX;
const NONE: Range<u32> = u32::MAX..u32::MAX;

fn uncached() -> ChainOptions {
    ChainOptions { tail_cache_bytes: 0, ..small_options() }
}

/// Opens a mirrored pair whose sides may refuse reads.
async fn open_pair(env: &Env) -> (Chain, Vec<Wilful>) {
    let sides: Vec<Wilful> = open_drives(env, &[A, B]).await.iter().map(Wilful::new).collect();
    let drives: Vec<Drive> = sides.iter().map(Wilful::as_drive).collect();
    let (chain, _) = Chain::open(env, drives, None, uncached()).await.expect("it opens");
    (chain, sides)
}

/// Opens a closed pair of which one side refuses the `nth` read and some after it, and closes it. Returns whether there are so many.
async fn open_while_refused(env: &Env, side: usize, nth: u32) -> bool {
    let sides: Vec<Wilful> = open_drives(env, &[A, B]).await.iter().map(Wilful::new).collect();
    let drives: Vec<Drive> = sides.iter().map(Wilful::as_drive).collect();
    sides[side].refuse(nth..nth + 40);
    let opened = Chain::open(env, drives, None, uncached()).await;
    let has_refused = sides[side].has_refused();
    sides[side].refuse(NONE);
    let (chain, recovered) = opened.unwrap_or_else(|error| panic!("side {side}, read {nth}: {error}"));
    assert_eq!((recovered.damage, recovered.cut_groups, chain.stats().repaired), (Vec::new(), 0, 0));
    assert_eq!(read_small(&chain).await, Ok(true));
    chain.close().await.expect("no fault");
    has_refused
}

#[test]
fn a_mirrored_pair_is_opened_although_one_side_refuses_reads_for_a_while() {
    let world = closed_pair(38);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        for side in 0..2 {
            let mut nth = 0;
            while open_while_refused(&env, side, nth).await {
                nth += 5;
            }
            assert!(nth > 20, "only {nth} reads");
        }
    });
}

/// Opens a chain whose owner is told of every record, while a drive refuses the `nth` read and some after it. Returns whether there are
/// so many.
async fn open_owned_while_refused(env: &Env, nth: u32) -> bool {
    let drive = Wilful::new(&open_drive(env).await);
    let map = Rc::new(Map::default());
    let owner: Rc<dyn Owner> = Rc::clone(&map) as Rc<dyn Owner>;
    drive.refuse(nth..nth + 10);
    let opened = Chain::open_owned(env, drive.as_drive(), None, uncached(), owner).await;
    let has_refused = drive.has_refused();
    drive.refuse(NONE);
    let (chain, recovered) = opened.unwrap_or_else(|error| panic!("read {nth}: {error}"));
    assert_eq!((recovered.damage, chain.stats().damage), (Vec::new(), Vec::new()), "read {nth}");
    assert!((0..100).all(|key| map.place(key).is_some()), "read {nth}");
    chain.close().await.expect("no fault");
    has_refused
}

#[test]
fn an_owner_is_told_of_every_record_although_reads_are_refused_for_a_while() {
    let world = World::new(39);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let owner: Rc<dyn Owner> = Rc::<Map>::default();
        let drive = open_drive(&env).await;
        let chain = Chain::create_owned(&env, drive, identity(), uncached(), owner).await.expect("created");
        append(&env, &chain, 0..100).await;
        chain.close().await.expect("no fault");
        let mut nth = 0;
        while open_owned_while_refused(&env, nth).await {
            nth += 2;
        }
        assert!(nth > 40, "only {nth} reads");
    });
}

#[test]
fn a_drive_that_refuses_reads_for_a_while_is_added() {
    let world = World::over(40, &[A, B]);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let drives = open_drives(&env, &[A, B]).await;
        let chain = Chain::create(&env, &drives[0], identity(), uncached()).await.expect("created");
        let added = Wilful::new(&drives[1]);
        added.refuse(0..20);
        chain.add_drive(added.as_drive()).await.expect("it is blank");
        assert!(added.has_refused());
        chain.close().await.expect("no fault");
    });
}

fn is_refusal<T>(read: &Result<T, ReadError>) -> bool {
    matches!(read, Err(ReadError::Drive(DriveError::Busy { .. })))
}

#[test]
fn a_read_that_both_sides_refuse_is_no_damage() {
    let world = closed_pair(31);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (chain, sides) = open_pair(&env).await;
        assert_eq!(read_small(&chain).await, Ok(true), "the footers are in memory from here on");
        sides.iter().for_each(|side| side.refuse(ALL));
        let read = chain.read(12).await;
        assert!(is_refusal(&read), "{read:?}");
        sides.iter().for_each(|side| side.refuse(NONE));
        assert_eq!(chain.stats().damage, []);
        assert_eq!(read_small(&chain).await, Ok(true));
        assert_eq!(chain.stats().repaired, 0);
    });
}

#[test]
fn a_side_that_refuses_a_read_is_not_written_again() {
    let world = closed_pair(32);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (chain, sides) = open_pair(&env).await;
        for side in &sides {
            side.refuse(ALL);
            for _ in 0..4 {
                let read = chain.read(12).await;
                assert!(read.is_ok() || is_refusal(&read), "{read:?}");
            }
            assert!(side.has_refused());
            side.refuse(NONE);
        }
        assert_eq!((chain.stats().repaired, chain.stats().damage), (0, Vec::new()));
    });
}

#[test]
fn what_one_side_has_lost_is_not_damaged_while_the_other_refuses_reads() {
    let world = closed_pair(33);
    let offset = place_of(&world, A, 12) + 300;
    fault(&world.sim, A, DriveFault::BitRot { offset, bit: 3 });
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (chain, sides) = open_pair(&env).await;
        chain.read(0).await.expect("it is well");
        for nth in 0..8 {
            sides[1].refuse(nth..u32::MAX);
            // Of each side first.
            for _ in 0..2 {
                let read = chain.read(12).await;
                assert!(read.is_ok() || is_refusal(&read), "{read:?}");
            }
            sides[1].refuse(NONE);
            assert_eq!(chain.stats().damage, []);
        }
        assert_eq!(read_small(&chain).await, Ok(true));
        assert_eq!(chain.stats().repaired, 1);
    });
}

/// Scrubs a pair of which one side refuses a read: of both in turn, the `nth` of all. Returns whether there are so many.
fn scrub_while_a_side_refuses(nth: u32) -> bool {
    let world = closed_pair(34);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (chain, sides) = open_pair(&env).await;
        let side = &sides[nth as usize % 2];
        side.refuse(nth / 2..nth / 2 + 1);
        chain.scrub().await.expect("it runs");
        let stats = chain.stats();
        assert_eq!((stats.repaired, stats.damage), (0, Vec::new()), "refused read {nth}");
        side.has_refused()
    })
}

#[test]
fn a_scrub_of_which_a_read_is_refused_writes_nothing_and_names_nothing() {
    let reads = (0..).take_while(|&nth| scrub_while_a_side_refuses(nth)).count();
    assert!(reads > 20, "only {reads} reads");
}

/// Scrubs a chain that has a copy of what is harmed, of which the `nth` read is refused. Returns whether there are so many.
fn scrub_a_copy_while_refused(nth: u32) -> bool {
    let (world, whole) = with_record_7_harmed(35);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let drive = Wilful::new(&open_drive(&env).await);
        let (chain, _) = Chain::open(&env, drive.as_drive(), None, uncached()).await.expect("it opens");
        let again = Batch { runs: whole, ..Batch::default() };
        chain.wait(chain.append(again).expect("room")).await.expect("no fault");
        drive.refuse(nth..nth + 1);
        chain.scrub().await.expect("it runs");
        assert_eq!(chain.stats().damage, [], "refused read {nth}");
        drive.has_refused()
    })
}

#[test]
fn a_copy_elsewhere_that_is_not_read_for_now_is_still_there() {
    let reads = (0..).take_while(|&nth| scrub_a_copy_while_refused(nth)).count();
    assert!(reads > 10, "only {reads} reads");
}

#[test]
fn a_side_is_rebuilt_although_reads_are_refused_meanwhile() {
    let world = World::over(36, &[A, B]);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let sides: Vec<Wilful> = open_drives(&env, &[A, B]).await.iter().map(Wilful::new).collect();
        let drives: Vec<Drive> = sides.iter().map(Wilful::as_drive).collect();
        let chain = Chain::create(&env, &drives[0], identity(), uncached()).await.expect("created");
        append(&env, &chain, 0..40).await;
        sides[0].refuse(20..30);
        chain.add_side(chain.drive_ids()[0], drives[1].clone()).await.expect("it is blank");
        env.sleep(std::time::Duration::from_secs(5)).await;
        assert!(sides[0].has_refused());
        let states: Vec<_> = chain.stats().links.iter().map(|link| link.state).collect();
        assert_eq!(states, [ithaca_chain::SideState::Live; 2]);
        check_keys(&chain, 0..40).await;
    });
}

/// Has three segments cleaned, of which the `nth` read and the nine after it are refused. Returns whether there are so many.
fn clean_while_refused(cleaning: Cleaning, nth: u32) -> bool {
    let world = World::new(37);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let drive = Wilful::new(&open_drive(&env).await);
        let options = ChainOptions { cleaning, ..uncached() };
        let chain = Chain::create(&env, drive.as_drive(), identity(), options).await.expect("created");
        append(&env, &chain, 0..100).await;
        drive.refuse(nth..nth + 10);
        assert_eq!(chain.clean(3).await, Ok(3), "refused read {nth}");
        let has_refused = drive.has_refused();
        drive.refuse(NONE);
        check_keys(&chain, 0..100).await;
        chain.close().await.expect("no fault");
        has_refused
    })
}

#[test]
fn a_segment_whose_reads_are_refused_for_a_while_is_cleaned_nevertheless() {
    for cleaning in [Cleaning::MoveToTail, Cleaning::CompactInBody] {
        let reads = (0..).take_while(|&nth| clean_while_refused(cleaning, nth)).count();
        assert!(reads > 5, "only {reads} reads");
    }
}
