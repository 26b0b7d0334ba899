//! Reads that fail for a moment while a chain is opened, and work before it is open.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_chain::{Chain, Damage, DamageKind};
use ithaca_env::Env;
use ithaca_env::drive::{Drive, DriveError, DriveFuture, Wrapper};
use ithaca_env::sim::Random;

use crate::cleaning::eager;
use crate::model::View;
use crate::world::{MACHINE, Workload, World, open_drive};

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
