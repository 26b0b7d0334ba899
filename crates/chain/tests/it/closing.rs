//! Chains that are closed while something is under way: it ends first, and what was taken is written or refused.

use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{AppendError, Batch, Chain, ChainError, ChainOptions, Ticket};
use ithaca_env::Env;
use ithaca_env::sim::{DriveFault, Random};

use crate::cleaning::{self, in_body, tenth};
use crate::drives::append;
use crate::mirrors::{A, B, closed_pair, fault, place_of, read_small};
use crate::model::{junk, run_of};
use crate::world::{MACHINE, World, identity, open_drive, open_drives, small_options};

/// Nothing is asked of the drives of a process any more that closed its chain.
fn assert_at_rest(world: &World) {
    let before = world.sim.io_points(world.process);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move { env.sleep(Duration::from_secs(1)).await });
    assert_eq!(world.sim.io_points(world.process), before, "something is under way on the drives");
}

#[test]
fn a_cleaning_that_was_asked_for_is_over_when_the_chain_is_closed() {
    // Whoever opens the drives next may use the segments that it would wipe.
    for step in 0..60 {
        let world = World::new(step);
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let chain = Chain::create(&env, open_drive(&env).await, identity(), small_options()).await;
            let chain = chain.expect("created");
            append(&env, &chain, 0..100).await;
            let asked = chain.clone();
            env.spawn(async move { asked.clean(3).await });
            env.sleep(Duration::from_micros(150 * step)).await;
            chain.close().await.expect("no fault");
        });
        assert_at_rest(&world);
    }
}

#[test]
fn a_read_that_mends_a_side_is_over_when_the_chain_is_closed_and_mends_none_afterwards() {
    for step in 0..40 {
        let world = closed_pair(step);
        let offset = place_of(&world, A, 12);
        fault(&world.sim, A, DriveFault::Unreadable { offset });
        let env = world.sim.env(world.process);
        let chain = world.sim.block_on(world.process, async move {
            let options = ChainOptions { tail_cache_bytes: 0, ..small_options() };
            let drives = open_drives(&env, &[A, B]).await;
            let (chain, _) = Chain::open(&env, drives, None, options).await.expect("it opens");
            let reading = chain.clone();
            env.spawn(async move { read_small(&reading).await });
            env.sleep(Duration::from_micros(40 * step)).await;
            chain.clone().close().await.expect("no fault");
            chain
        });
        let repaired = chain.stats().repaired;
        let read = world.sim.block_on(world.process, async move {
            let read = read_small(&chain).await;
            assert_eq!(
                chain.stats().repaired,
                repaired,
                "a drive was written to that may be somebody else's"
            );
            read
        });
        assert_eq!(read, Ok(true), "another side has it");
    }
}

/// Whether a segment that a cleaner was filling is on the drive, and not closed.
fn has_open_body(world: &World) -> bool {
    let drive = world.sim.drive(MACHINE, "chain");
    let bytes =
        world.sim.peek_drive(drive, 0, world.sim.drive_size_bytes(drive).expect("it is there") as usize);
    let mut segments = bytes[64 << 10..].chunks_exact(small_options().segment_bytes as usize);
    segments.any(|segment| &segment[..4] == b"ITHH" && segment[10..12] == [3, 0])
}

/// A chain whose cleaner fills segments of its own, with so many keys.
async fn with_body(env: &Env, keys: u64) -> Chain {
    let chain = Chain::create(env, open_drive(env).await, identity(), in_body()).await.expect("created");
    for key in 0..keys {
        cleaning::append(env, &chain, tenth(key)).await.expect("room");
    }
    chain
}

#[test]
fn a_chain_that_is_closed_cleans_nothing_any_more() {
    // The end of its body segment would be written to drives that another process may have by now.
    let mut open_bodies = 0;
    for keys in (100..400).step_by(10) {
        let world = World::new(keys);
        let env = world.sim.env(world.process);
        let chain = world.sim.block_on(world.process, async move {
            let chain = with_body(&env, keys).await;
            chain.clone().close().await.expect("no fault");
            chain
        });
        open_bodies += u32::from(has_open_body(&world));
        assert_at_rest(&world);
        let before = world.sim.io_points(world.process);
        let cleaned = world.sim.block_on(world.process, async move { chain.clean(1).await });
        assert_eq!(cleaned, Err(ChainError::Closed), "{keys} keys");
        assert_at_rest(&world);
        assert_eq!(world.sim.io_points(world.process), before, "{keys} keys");
    }
    assert!(open_bodies > 5, "only {open_bodies} were being filled");
}

#[test]
fn a_chain_that_has_failed_cleans_nothing_any_more() {
    let mut open_bodies = 0;
    for step in 0..60 {
        let world = World::new(step);
        let env = world.sim.env(world.process);
        let chain = world.sim.block_on(world.process, async move {
            let chain = with_body(&env, 100 + 3 * step).await;
            let (appending, clock) = (chain.clone(), env.clone());
            env.spawn(async move {
                let mut key = 100 + 3 * step;
                while cleaning::append(&clock, &appending, tenth(key)).await.is_ok() {
                    key += 1;
                }
            });
            env.sleep(Duration::from_micros(90 * step)).await;
            chain
        });
        fault(&world.sim, "chain", DriveFault::FailWrites { count: 1 });
        let cleaned = world.sim.block_on(world.process, async move {
            let why = chain.until_stopped().await;
            assert!(matches!(&why, ChainError::Failed { .. }), "{why}");
            (chain.clean(1).await, Err(why))
        });
        assert_eq!(cleaned.0, cleaned.1);
        open_bodies += u32::from(has_open_body(&world));
    }
    assert!(open_bodies > 5, "only {open_bodies} were being filled");
}

/// Appends without waiting until something is refused.
async fn overfill(env: &Env, chain: &Chain, rng: &mut Random, next: &mut u64) -> Ticket {
    let mut last = Ticket(0);
    for _ in 0..400 {
        let key = *next;
        let size = rng.pick(&[100, 4096, 8192, 16 << 10]);
        let batch = match rng.below(4) {
            0 => Batch { runs: vec![junk(key, 1, 1)], ..Batch::default() },
            1 => Batch { state: Some(Bytes::from(vec![1; 5000])), ..Batch::default() },
            _ => {
                let runs = vec![run_of(key, key, &[Bytes::from(vec![key as u8; size])])];
                let from = key.saturating_sub(40 + rng.below(40));
                let release = std::iter::once(from..from + rng.below(30) + 1).collect();
                Batch { runs, release, ..Batch::default() }
            }
        };
        match chain.append(batch) {
            Ok(ticket) => (last, *next) = (ticket, key + 1),
            Err(AppendError::Overloaded { .. }) if rng.below(3) > 0 => {
                env.sleep(Duration::from_micros(rng.below(800))).await;
            }
            Err(AppendError::Overloaded { .. } | AppendError::Full { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
    last
}

#[test]
fn what_was_taken_is_durable_when_a_close_says_that_it_is() {
    // Segments that are being written over or cleaned are room that what waits was taken in for.
    for seed in 0..100 {
        let world = World::new(seed);
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let mut rng = Random::new(seed);
            let segments = rng.pick(&[4, 5, 6, 8]);
            let options = ChainOptions {
                reserve_segments: 1,
                segments_ready: rng.pick(&[0, 1, 2]),
                flights: 1,
                capacity_bytes: (64 << 10) + segments * (128 << 10),
                ..if seed % 2 == 0 { in_body() } else { small_options() }
            };
            let chain = Chain::create(&env, open_drive(&env).await, identity(), options).await;
            let chain = chain.expect("created");
            let mut next = 0;
            let last = overfill(&env, &chain, &mut rng, &mut next).await;
            match chain.clone().close().await {
                Ok(()) => assert!(chain.durable() >= last, "seed {seed}: {:?} of {last:?}", chain.durable()),
                Err(error) => assert_eq!(chain.wait(last).await, Err::<(), ChainError>(error)),
            }
        });
    }
}
