//! Scrubbing: harm is found without being asked for, mended from another side, or named.

use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{Batch, Chain, ChainOptions, DamageKind, Run};
use ithaca_env::sim::DriveFault;

use crate::drives::append;
use crate::mirrors::{A, B, check_keys, closed_pair, fault, place_of, read_small};
use crate::unread::blocks_of;
use crate::world::{MACHINE, World, identity, open_drives, open_named, small_options};

pub fn uncached() -> ChainOptions {
    ChainOptions { tail_cache_bytes: 0, ..small_options() }
}

/// Opens what `closed_pair` left, scrubs it, and gives the places that were written again.
fn scrub_pair(world: &World) -> u64 {
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let drives = open_drives(&env, &[A, B]).await;
        let (chain, _) = Chain::open(&env, drives, None, uncached()).await.expect("it opens");
        chain.scrub().await.expect("it runs");
        let stats = chain.stats();
        assert_eq!(stats.damage, [], "the other side has everything");
        assert_eq!((stats.scrubbed.passes, stats.scrubbed.segments), (1, stats.segments_closed));
        chain.close().await.expect("no fault");
        stats.repaired
    })
}

fn read_alone(world: &World, name: &'static str) -> bool {
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let opened = Chain::open(&env, open_drives(&env, &[name]).await, None, uncached()).await;
        let (chain, recovered) = opened.expect("it is live");
        let read = read_small(&chain).await;
        check_keys(&chain, 40..80).await;
        recovered.damage.is_empty() && chain.stats().damage.is_empty() && read == Ok(true)
    })
}

#[test]
fn what_is_harmed_on_one_side_is_whole_again_after_a_scrub() {
    let probe = closed_pair(12);
    let drive = probe.sim.drive(MACHINE, A);
    let blocks = probe.sim.drive_size_bytes(drive).expect("it is there") / 4096;
    let (mut harmed, mut repaired) = (0, 0);
    for block in (16..blocks).step_by(5) {
        if probe.sim.peek_drive(drive, block * 4096, 4096).iter().all(|&byte| byte == 0) {
            continue;
        }
        let world = closed_pair(12);
        let (name, other) = if block % 2 == 0 { (A, B) } else { (B, A) };
        let it = if block % 3 == 0 {
            DriveFault::Unreadable { offset: block * 4096 }
        } else {
            DriveFault::BitRot { offset: block * 4096 + 17 * block % 2048, bit: 5 }
        };
        fault(&world.sim, name, it);
        repaired += u64::from(scrub_pair(&world) > 0);
        harmed += 1;
        // Alone, so that nothing can come from the other side any more.
        assert!(read_alone(&world, name), "block {block} of {name}, beside {other}");
    }
    assert!(repaired * 2 > harmed, "{repaired} of {harmed} harmed blocks were seen");
}

#[test]
fn what_no_side_has_is_named_and_what_is_released_is_not() {
    let world = closed_pair(13);
    for name in [A, B] {
        for key in [8, 9] {
            let offset = place_of(&world, name, key) + 200;
            fault(&world.sim, name, DriveFault::BitRot { offset, bit: 2 });
        }
    }
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let drives = open_drives(&env, &[A, B]).await;
        let (chain, _) = Chain::open(&env, drives, None, uncached()).await.expect("it opens");
        let release = Batch { release: std::iter::once(9..10).collect(), ..Batch::default() };
        let ticket = chain.append(release).expect("room");
        chain.wait(ticket).await.expect("no fault");
        for _ in 0..2 {
            chain.scrub().await.expect("it runs");
        }
        let found: Vec<DamageKind> = chain.stats().damage.into_iter().map(|damage| damage.kind).collect();
        assert_eq!(found, [DamageKind::Data { keys: 8..9 }]);
    });
}

#[test]
fn a_chain_scrubs_itself_at_its_rate_and_closes_in_the_middle() {
    let world = World::new(14);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let options = ChainOptions {
            scrub_bytes_per_second: 64 << 10,
            scrub_every: Duration::from_secs(60),
            ..uncached()
        };
        let drives = vec![vec![open_named(&env, "chain").await]];
        let chain = Chain::create(&env, drives, identity(), options).await.expect("created");
        append(&env, &chain, 0..100).await;
        env.sleep(Duration::from_secs(62)).await;
        let segments = chain.stats().segments_closed;
        assert!(segments >= 4, "{segments} closed segments");
        let early = chain.stats().scrubbed;
        assert!(early.segments < segments && early.passes == 0, "{early:?} after two seconds");
        // 128 KiB segments at 64 KiB a second.
        env.sleep(Duration::from_secs(4 * segments)).await;
        let after = chain.stats().scrubbed;
        assert_eq!((after.segments, after.passes), (segments, 1));
        env.sleep(Duration::from_secs(61)).await;
        let began = env.now();
        chain.close().await.expect("it does not wait for the pass");
        assert!(env.now().since(began) < Duration::from_secs(1));
    });
}

/// How long a scrub of a mirrored chain takes at this rate, after so many directories of one side have rotted.
fn scrub_takes(bytes_per_second: u64, rotten: usize) -> Duration {
    let world = closed_pair(17);
    for &offset in blocks_of(&world, b"ITHD").iter().take(rotten) {
        fault(&world.sim, B, DriveFault::BitRot { offset: offset + 30, bit: 6 });
    }
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let drives = open_drives(&env, &[A, B]).await;
        let options = ChainOptions {
            scrub_bytes_per_second: bytes_per_second,
            scrub_every: Duration::from_secs(10_000),
            ..uncached()
        };
        let (chain, _) = Chain::open(&env, drives, None, options).await.expect("it opens");
        let began = env.now();
        chain.scrub().await.expect("it runs");
        let took = env.now().since(began);
        assert_eq!(chain.stats().repaired, rotten as u64, "what the other side has is copied");
        chain.close().await.expect("no fault");
        took
    })
}

#[test]
fn what_a_scrub_copies_from_the_other_side_is_read_at_its_rate_too() {
    // On a drive that is harmed all over, others would wait for that.
    let world = closed_pair(17);
    let copied = blocks_of(&world, b"ITHT")[0] - blocks_of(&world, b"ITHG").last().expect("it has groups");
    let added = scrub_takes(4096, 1) - scrub_takes(4096, 0);
    // At least directory and trailer.
    let (least, most) = (Duration::from_secs(2), Duration::from_secs(copied / 4096 + 2));
    assert!(added >= least && added < most, "{added:?}");
    assert!(scrub_takes(0, 1) < Duration::from_secs(1), "without a rate it does not rest so");
}

/// A world with a chain of 60 records on a single drive, the data of record 7 harmed; and what that record was.
pub fn with_record_7_harmed(seed: u64) -> (World, Vec<Run>) {
    let world = World::new(seed);
    let env = world.sim.env(world.process);
    let whole = world.sim.block_on(world.process, async move {
        let drives = vec![vec![open_named(&env, "chain").await]];
        let chain = Chain::create(&env, drives, identity(), uncached()).await.expect("created");
        append(&env, &chain, 0..60).await;
        let whole = chain.read_runs(7, 8, usize::MAX).await.expect("it is well");
        chain.close().await.expect("no fault");
        whole
    });
    let drive = world.sim.drive(MACHINE, "chain");
    let size = world.sim.drive_size_bytes(drive).expect("it is there") as usize;
    let bytes = world.sim.peek_drive(drive, 0, size);
    let record = Bytes::from(vec![7; 8192]);
    let at = bytes.windows(8192).position(|window| window == record).expect("record 7 is on the drive");
    fault(&world.sim, "chain", DriveFault::BitRot { offset: at as u64 + 5000, bit: 0 });
    (world, whole)
}

#[test]
fn harm_on_a_single_drive_is_named_before_it_is_read() {
    let (world, _) = with_record_7_harmed(15);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let drives = open_drives(&env, &["chain"]).await;
        let (chain, _) = Chain::open(&env, drives, None, uncached()).await.expect("it opens");
        assert_eq!(chain.stats().damage, []);
        chain.scrub().await.expect("it runs");
        let found: Vec<DamageKind> = chain.stats().damage.into_iter().map(|damage| damage.kind).collect();
        assert_eq!(found, [DamageKind::Data { keys: 7..8 }]);
    });
}

#[test]
fn a_damaged_record_that_is_written_again_is_read_from_there_and_its_segment_can_be_freed() {
    let (world, whole) = with_record_7_harmed(16);
    for life in 0..3 {
        let (env, whole) = (world.sim.env(world.process), whole.clone());
        world.sim.block_on(world.process, async move {
            let drives = open_drives(&env, &["chain"]).await;
            let (chain, _) = Chain::open(&env, drives, None, uncached()).await.expect("it opens");
            if life == 0 {
                assert!(chain.read_runs(6, 9, usize::MAX).await.is_err(), "nothing else has it");
                let named: Vec<u64> = chain.damaged_keys().0.ranges().flatten().collect();
                assert_eq!(named, [7], "a reader names it");
                let described = chain.describe(7..8).await.expect("its footer is well");
                assert_eq!((&described[0].table, described[0].is_closed), (&whole[0].table, true));
                let again = Batch { runs: whole.clone(), ..Batch::default() };
                chain.wait(chain.append(again).expect("room")).await.expect("no fault");
                chain.forget_damage(7..8);
            }
            // Found anew in each life, and each time it is elsewhere.
            chain.scrub().await.expect("it runs");
            assert_eq!(chain.stats().damage, [], "life {life}");
            let around = chain.read_ranges(vec![5..8, 7..10, 7..8], usize::MAX).await.expect("it is well");
            let keys: Vec<u64> = around.runs.iter().flat_map(|run| run.keys()).collect();
            assert_eq!(keys, [5, 6, 7, 7, 8, 9, 7]);
            assert_eq!(around.ends.last().map(|end| end.runs), Some(around.runs.len()));
            assert!(around.runs.iter().all(|run| run.table.first_mismatch(&run.data).is_none()));
            chain.close().await.expect("no fault");
        });
    }
}
