//! Sides that are being rebuilt while something else happens to their link.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{Batch, Chain, ChainOptions};
use ithaca_env::Env;
use ithaca_env::drive::Drive;
use ithaca_env::sim::DriveFault;

use crate::drives::{append, put};
use crate::mirrors::{A, B, check_keys, fault, rebuilt};
use crate::model::run_of;
use crate::world::{World, identity, open_drives, open_named, small_options};

const C: &str = "chain-c";

fn options() -> ChainOptions {
    ChainOptions { tail_cache_bytes: 0, ..small_options() }
}

/// A chain of a mirrored link and a plain one with keys 0 to 59, whose side `B` missed the last of them and is about to be rebuilt.
async fn with_stale_side(env: &Env) -> (Chain, [Drive; 3]) {
    let drives = [open_named(env, A).await, open_named(env, B).await, open_named(env, C).await];
    let [a, b, c] = drives.clone();
    let links = vec![vec![a.clone(), b.clone()], vec![c.clone()]];
    let chain = Chain::create(env, links, identity(), options()).await.expect("created");
    append(env, &chain, 0..25).await;
    chain.close().await.expect("no fault");
    let open =
        async |drives: Vec<Drive>| Chain::open(env, drives, None, options()).await.expect("it opens").0;
    let chain = open(vec![a, c]).await;
    append(env, &chain, 25..60).await;
    chain.close().await.expect("no fault");
    (open(drives.to_vec()).await, drives)
}

#[test]
fn a_link_is_removed_whose_side_is_being_rebuilt() {
    // Whatever the rebuild was at, it ends, and nothing is written any more to drives that are somebody else's by then.
    for step in 0..40 {
        let world = World::over(step, &[A, B, C]);
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let (chain, [_, b, c]) = with_stale_side(&env).await;
            if step % 2 == 0 {
                let release = Batch { release: std::iter::once(0..60).collect(), ..Batch::default() };
                chain.wait(chain.append(release).expect("room")).await.expect("no fault");
            }
            env.sleep(Duration::from_micros(100 * step)).await;
            let leaving = chain.drive_ids()[0];
            chain.remove_drive(leaving).await.expect("there is room for what is on it");
            let ours = chain.drive_ids();
            assert_eq!(ours.len(), 1, "both sides are gone");
            append(&env, &chain, 60..80).await;
            check_keys(&chain, if step % 2 == 0 { 60..80 } else { 0..80 }).await;
            chain.add_drive(b.clone()).await.expect("it is blank");
            append(&env, &chain, 80..100).await;
            check_keys(&chain, 60..100).await;
            chain.close().await.expect("no fault");
            let (chain, recovered) = Chain::open(&env, vec![b, c], None, options()).await.expect("it opens");
            assert_eq!(recovered.damage, []);
            check_keys(&chain, 60..100).await;
        });
    }
}

#[test]
fn a_side_is_rebuilt_although_the_log_never_rests() {
    // Its first step was to wait for a moment in which nothing is being written: a busy log has none.
    let world = World::over(1, &[A, B, C]);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (chain, [_, b, c]) = with_stale_side(&env).await;
        let (next, is_over) = (Rc::new(Cell::new(1000)), Rc::new(Cell::new(false)));
        let writers: Vec<_> = (0..6)
            .map(|_| {
                let (env, chain) = (env.clone(), chain.clone());
                let (next, is_over) = (Rc::clone(&next), Rc::clone(&is_over));
                env.clone().spawn(async move {
                    while !is_over.get() {
                        let key = next.replace(next.get() + 1);
                        let runs = vec![run_of(key, key, &[Bytes::from(vec![key as u8; 8192])])];
                        let release: Vec<_> = std::iter::once(1000..key.max(1050) - 50).collect();
                        put(&env, &chain, || Batch {
                            runs: runs.clone(),
                            release: release.clone(),
                            ..Batch::default()
                        })
                        .await;
                    }
                })
            })
            .collect();
        rebuilt(&env, &chain).await;
        is_over.set(true);
        for writer in writers {
            writer.join().await.expect("it ends");
        }
        let last = next.get();
        chain.close().await.expect("no fault");
        let (chain, recovered) =
            Chain::open(&env, vec![b, c], None, options()).await.expect("B has everything");
        assert_eq!(recovered.damage, []);
        check_keys(&chain, 0..60).await;
        check_keys(&chain, last - 20..last).await;
    });
}

/// A chain of one mirrored link with a few closed segments of several pieces that are read at a time.
fn large_segments() -> (World, ChainOptions) {
    let options =
        ChainOptions { segment_bytes: 4 << 20, grow_bytes: 4 << 20, capacity_bytes: 64 << 20, ..options() };
    let world = World::over(2, &[A, B]);
    let (env, over) = (world.sim.env(world.process), options.clone());
    world.sim.block_on(world.process, async move {
        let chain = Chain::create(&env, vec![open_drives(&env, &[A, B]).await], identity(), over).await;
        let chain = chain.expect("created");
        append(&env, &chain, 0..700).await;
        chain.close().await.expect("no fault");
    });
    (world, options)
}

#[test]
fn a_side_that_fails_every_read_is_asked_for_each_block_a_few_times_at_the_most() {
    // It was asked for a whole piece again at each group that the other side has.
    let (world, options) = large_segments();
    let (env, sim) = (world.sim.env(world.process), &world.sim);
    let chain = sim.block_on(world.process, async move {
        let drives = vec![open_drives(&env, &[A, B]).await];
        Chain::open(&env, drives, None, options).await.expect("it opens").0
    });
    assert!(chain.stats().segments_closed >= 1);
    fault(sim, A, DriveFault::FailReads { count: u32::MAX });
    let before = sim.io_points(world.process);
    let scrubbed = chain.clone();
    sim.block_on(world.process, async move { scrubbed.scrub().await.expect("it goes on") });
    let points = sim.io_points(world.process) - before;
    let blocks = chain.stats().segments_closed * (4 << 20) / 4096;
    assert!(points < 20 * blocks, "{points} I/O points of {blocks} blocks");
}

#[test]
fn what_lies_behind_a_piece_that_a_side_cannot_read_is_found_on_it() {
    // The other side is harmed there.
    let (world, options) = large_segments();
    let piece = (64 << 10) + 4096 + (1 << 20);
    for block in 0..256 {
        fault(&world.sim, A, DriveFault::Unreadable { offset: piece + block * 4096 });
    }
    // Of B two blocks on the border, so that nothing is found there, and the rest of its segment but what A has lost.
    for offset in (piece - (64 << 10)..piece - (16 << 10))
        .chain(piece + (1 << 20) + (16 << 10)..piece + (2 << 20))
        .step_by(4096)
    {
        fault(&world.sim, B, DriveFault::BitRot { offset: offset + 40, bit: 3 });
    }
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let drives = vec![open_drives(&env, &[A, B]).await];
        let (chain, _) = Chain::open(&env, drives, None, options.clone()).await.expect("it opens");
        chain.scrub().await.expect("it goes on");
        assert_eq!(chain.stats().damage, [], "each place is whole on one side");
        chain.close().await.expect("no fault");
        let drives = open_drives(&env, &[B]).await;
        let (chain, _) = Chain::open(&env, drives, None, options.clone()).await.expect("it opens");
        check_keys(&chain, 0..700).await;
    });
}
