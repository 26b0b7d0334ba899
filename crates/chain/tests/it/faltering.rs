//! Reads that fail for a moment while a chain is opened, and work before it is open.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_chain::{Batch, Chain, ChainOptions, Cleaning, Damage, DamageKind, OpenError, ReadError};
use ithaca_env::Env;
use ithaca_env::drive::{Drive, DriveError, DriveFuture, Wrapper};
use ithaca_env::sim::{Death, Random};

use crate::cleaning::eager;
use crate::drives::{append, put, tiny_drives};
use crate::model::View;
use crate::world::{MACHINE, Workload, World, identity, open_drive, open_named};

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
                    Err(OpenError::CheckpointLost { .. }) => return false,
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
