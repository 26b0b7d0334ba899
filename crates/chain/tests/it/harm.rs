//! Reads that fail are no harm, and what is not harmed any more, or not needed, is not named.

use std::ops::Range;

use ithaca_chain::{Batch, Chain, ChainOptions, Cleaning, Damage, DamageKind, ReadError, Run};
use ithaca_env::Env;
use ithaca_env::sim::DriveFault;

use crate::drives::{THREE, append, put, tiny_drives};
use crate::mirrors::{A, B, closed_pair, fault, place_of, read_small};
use crate::repairs::{Held, open_held, rot};
use crate::scrub::{uncached, with_record_7_harmed};
use crate::unread::{blocks_of, three_closed};
use crate::world::{World, identity, open_drives, open_named};

#[test]
fn a_segment_that_is_used_again_has_nothing_of_the_harm_that_was_in_it() {
    // It would never be cleaned, and its drive not be removed: whoever wants that would be told to release what is there.
    let world = World::new(14);
    let chain = three_closed(&world, true);
    fault(&world.sim, THREE[0], DriveFault::BitRot { offset: (64 << 10) + (12 << 10), bit: 1 });
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        assert!(matches!(chain.read(0).await, Err(ReadError::Damaged { key: 0, .. })));
        let damage = chain.stats().damage;
        assert!(
            matches!(damage[..], [Damage { segment: 0, kind: DamageKind::Data { .. }, .. }]),
            "{damage:?}"
        );
        let release = || Batch { release: std::iter::once(0..30).collect(), ..Batch::default() };
        put(&env, &chain, release).await;
        // As much as two drives hold.
        append(&env, &chain, 30..90).await;
        assert!(chain.stats().links[0].segments_live > 1, "{:?}", chain.stats().links);
        assert_eq!(chain.stats().damage, [], "nothing of it is there");
        let release = || Batch { release: std::iter::once(30..60).collect(), ..Batch::default() };
        put(&env, &chain, release).await;
        chain.remove_drive(chain.drive_ids()[0]).await.expect("nothing on it is harmed");
        for key in 60..90 {
            assert!(chain.read(key).await.expect("no damage").is_some(), "key {key}");
        }
    });
}

#[test]
fn a_record_that_no_side_can_read_for_now_is_not_damaged_and_is_read_when_one_can() {
    let world = closed_pair(81);
    let blocks = [A, B].map(|name| place_of(&world, name, 8) / 4096 * 4096);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (chain, sides) = open_held(&env).await;
        for (side, at) in sides.iter().zip(blocks) {
            side.unreadable.replace((at..at + 4096, 0));
        }
        for _ in 0..2 {
            assert!(matches!(chain.read(8).await, Err(ReadError::Drive(_))), "nobody knows what is there");
        }
        assert_eq!(chain.stats().damage, []);
        sides[1].unreadable.take();
        assert_eq!(read_small(&chain).await, Ok(true), "it is asked for again");
        assert_eq!(chain.stats().damage, []);
        chain.close().await.expect("no fault");
    });
}

#[test]
fn a_record_that_one_side_cannot_read_for_now_and_that_is_harmed_on_the_other_is_not_damaged() {
    let world = closed_pair(82);
    let at = place_of(&world, A, 8) / 4096 * 4096;
    rot(&world, &[(B, 8)]);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (chain, sides) = open_held(&env).await;
        sides[0].unreadable.replace((at..at + 4096, 0));
        // Of each side first.
        for _ in 0..2 {
            assert!(matches!(chain.read(8).await, Err(ReadError::Drive(_))), "the first side may have it");
        }
        sides[0].unreadable.take();
        assert_eq!(read_small(&chain).await, Ok(true), "it has");
        assert_eq!(chain.stats().damage, []);
        chain.close().await.expect("no fault");
    });
}

#[test]
fn a_record_that_no_side_can_read_is_read_from_where_it_was_written_again() {
    let world = closed_pair(83);
    let blocks = [A, B].map(|name| place_of(&world, name, 8) / 4096 * 4096);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (chain, sides) = open_held(&env).await;
        let again = chain.read_runs(8, 9, usize::MAX).await.expect("it is well");
        put(&env, &chain, || Batch { runs: again.clone(), ..Batch::default() }).await;
        for (side, at) in sides.iter().zip(blocks) {
            side.unreadable.replace((at..at + 4096, 0));
        }
        let runs = chain.read_runs(8, 9, usize::MAX).await.expect("it is there");
        assert_eq!(runs.iter().flat_map(Run::keys).collect::<Vec<_>>(), [8]);
        assert_eq!(runs[0].data, again[0].data);
        assert_eq!(chain.stats().damage, []);
        chain.close().await.expect("no fault");
    });
}

/// Has so many reads fail of a chain's first drive, of whose footers nothing is in memory, while all of its keys are read; then none fails.
fn read_while_reads_fail(count: u32) {
    let world = World::new(14);
    let chain = three_closed(&world, false);
    fault(&world.sim, THREE[0], DriveFault::FailReads { count });
    world.sim.block_on(world.process, async move {
        let mut failed = 0;
        for key in 0..30 {
            match chain.read(key).await {
                Ok(record) => assert!(record.is_some(), "{count} reads: key {key}"),
                Err(ReadError::Drive(_)) => failed += 1,
                Err(other) => panic!("{count} reads: {other}"),
            }
        }
        assert!(failed < 30, "{count} reads: the last key is read");
        for key in 0..30 {
            assert!(
                chain.read(key).await.expect("the drive reads again").is_some(),
                "{count} reads: key {key}"
            );
        }
        let damage = chain.stats().damage;
        assert!(damage.iter().all(|it| it.kind == DamageKind::Footer), "{count} reads: {damage:?}");
        chain.scrub().await.expect("it runs");
        assert_eq!(chain.stats().damage, [], "{count} reads: nothing is harmed");
    });
}

#[test]
fn reads_of_a_footer_and_its_groups_that_fail_for_a_while_lose_nothing_of_the_segment() {
    // A group that was not read in time was taken for lost until the next start, and its keys for damaged.
    for count in (1..=40).chain((41..300).step_by(7)) {
        read_while_reads_fail(count);
    }
}

#[test]
fn a_record_that_was_written_again_is_not_damaged_because_that_cannot_be_read_for_now() {
    let (world, whole) = with_record_7_harmed(84);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let held = Held::new(&env, &open_named(&env, "chain").await);
        let opened = Chain::open(&env, vec![held.as_drive()], None, uncached()).await;
        let (chain, _) = opened.expect("it opens");
        let again = || Batch { runs: whole.clone(), ..Batch::default() };
        put(&env, &chain, again).await;
        // The first is the one that is harmed.
        let drive = held.as_drive();
        let bytes = drive.read(0, drive.size_bytes() as usize).await.expect("it reads");
        let is_there = |at: &usize| bytes[*at..].starts_with(&[7; 8192]);
        let at = (0..bytes.len()).step_by(4096).filter(is_there).last().expect("it was written again") as u64;
        held.unreadable.replace((at..at + 4096, 0));
        chain.scrub().await.expect("it goes on");
        assert_eq!(chain.stats().damage, [], "it may be there");
        assert_eq!(chain.stats().scrubbed.segments + 1, chain.stats().segments_closed, "that is not known");
        held.unreadable.take();
        chain.scrub().await.expect("it goes on");
        assert_eq!(chain.stats().damage, []);
        assert!(chain.read(7).await.expect("no damage").is_some());
        chain.close().await.expect("no fault");
    });
}

/// A chain over three drives of which nothing is cleaned, as what has no footer would be: records with these keys, and closed.
fn closed_uncleaned(keys: impl Iterator<Item = u64> + 'static) -> (World, ChainOptions) {
    let world = World::new(14);
    let options = ChainOptions { tail_cache_bytes: 0, cleaning: Cleaning::Off, ..tiny_drives() };
    let (over, env) = (options.clone(), world.sim.env(world.process));
    world.sim.block_on(world.process, async move {
        let drives = open_drives(&env, &THREE).await;
        let chain = Chain::create(&env, drives, identity(), over).await.expect("created");
        for key in keys {
            append(&env, &chain, key..key + 1).await;
        }
        chain.close().await.expect("no fault");
    });
    (world, options)
}

#[test]
fn what_a_scrub_reads_well_is_not_named_any_more() {
    // It kept its segment from being cleaned and its drive from being removed until the next start.
    for (magic, behind) in [(b"ITHG", 4096), (b"ITHD", 0), (b"ITHT", 0)] {
        let (world, options) = closed_uncleaned(0..30);
        let at = blocks_of(&world, magic).last().expect("it is there") + behind;
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let (chain, held) = open_first_held(&env, options).await;
            held.unreadable.replace((at..at + 4096, 0));
            chain.scrub().await.expect("it runs");
            assert_ne!(chain.stats().damage, [], "{magic:?}: it cannot be read");
            held.unreadable.take();
            chain.scrub().await.expect("it runs");
            assert_eq!(chain.stats().damage, [], "{magic:?}: it reads again");
            for key in 0..30 {
                assert!(chain.read(key).await.expect("no damage").is_some(), "key {key}");
            }
            chain.close().await.expect("no fault");
        });
    }
}

#[test]
fn a_scrub_has_moved_what_a_segment_without_footer_holds() {
    // The next group of it that is harmed would be lost with all that is known of it.
    for magic in [b"ITHF", b"ITHD", b"ITHT"] {
        let world = World::new(14);
        let chain = three_closed(&world, false);
        let offset = blocks_of(&world, magic)[0];
        let rot = DriveFault::BitRot { offset: offset + 100, bit: 4 };
        fault(&world.sim, THREE[0], if magic == b"ITHD" { DriveFault::Unreadable { offset } } else { rot });
        world.sim.block_on(world.process, async move {
            chain.scrub().await.expect("it runs");
            let stats = chain.stats();
            assert_eq!((stats.counters.segments_cleaned, stats.damage), (1, Vec::new()), "{magic:?}");
            for key in 0..30 {
                assert!(chain.read(key).await.expect("no damage").is_some(), "{magic:?}: key {key}");
            }
            chain.scrub().await.expect("it runs");
            assert_eq!(chain.stats().counters.segments_cleaned, 1, "{magic:?}: the others are well");
            chain.close().await.expect("no fault");
        });
    }
}

/// What cannot be read of the first segment of a chain: groups behind its fifth, and its footer.
struct Unread {
    world: World,
    bytes: Range<u64>,
    options: ChainOptions,
}

/// A chain of 30 records on three drives, without key 5, that is closed. Where `is_rotten`, the footer of its first segment is harmed for good.
fn with_unread_groups(is_rotten: bool) -> Unread {
    let (world, options) = closed_uncleaned((0..31).filter(|key| *key != 5));
    let directory = blocks_of(&world, b"ITHD")[0];
    if is_rotten {
        fault(&world.sim, THREE[0], DriveFault::BitRot { offset: directory + 100, bit: 4 });
    }
    let end = if is_rotten { directory } else { directory + 4096 };
    Unread { bytes: blocks_of(&world, b"ITHG")[5]..end, world, options }
}

/// Opens the chain with its first drive held.
async fn open_first_held(env: &Env, options: ChainOptions) -> (Chain, Held) {
    let mut drives = open_drives(env, &THREE).await;
    let held = Held::new(env, &drives[0]);
    drives[0] = held.as_drive();
    let (chain, recovered) = Chain::open(env, drives, None, options).await.expect("it opens");
    assert_eq!(recovered.damage, []);
    (chain, held)
}

/// Keys that are damaged, and those that cannot be read for now. All others are as they were written.
async fn unread_keys(chain: &Chain) -> (Vec<u64>, Vec<u64>) {
    let (mut damaged, mut failed) = (Vec::new(), Vec::new());
    for key in 0..31 {
        match chain.read(key).await {
            Ok(record) => assert_eq!(record.is_some(), key != 5, "key {key}"),
            Err(ReadError::Damaged { .. }) => damaged.push(key),
            Err(ReadError::Drive(_)) => failed.push(key),
        }
    }
    (damaged, failed)
}

#[test]
fn groups_that_cannot_be_read_for_now_are_not_lost_with_their_footer() {
    // They were lost until the next start, and keys that nobody has written were damaged.
    for is_rotten in [false, true] {
        let Unread { world, bytes, options } = with_unread_groups(is_rotten);
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let (chain, held) = open_first_held(&env, options).await;
            held.unreadable.replace((bytes, 0));
            let (damaged, failed) = unread_keys(&chain).await;
            assert_eq!(damaged, [], "{is_rotten}: nobody knows what is there");
            assert!(!failed.is_empty(), "{is_rotten}: what cannot be read is not shown");
            assert_eq!(chain.stats().damage, [], "{is_rotten}");
            held.unreadable.take();
            assert_eq!(unread_keys(&chain).await, (vec![], vec![]), "{is_rotten}: it is asked for again");
            let damage = chain.stats().damage;
            assert!(damage.iter().all(|it| it.kind == DamageKind::Footer), "{is_rotten}: {damage:?}");
            chain.close().await.expect("no fault");
        });
    }
}

#[test]
fn a_group_that_one_side_cannot_read_for_now_and_that_is_harmed_on_the_other_is_not_lost_with_its_footer() {
    let world = closed_pair(85);
    let (group, directory) = (blocks_of(&world, b"ITHG")[3], blocks_of(&world, b"ITHD")[0]);
    for name in [A, B] {
        fault(&world.sim, name, DriveFault::BitRot { offset: directory + 100, bit: 4 });
    }
    fault(&world.sim, B, DriveFault::BitRot { offset: group + 50, bit: 3 });
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (chain, sides) = open_held(&env).await;
        sides[0].unreadable.replace((group..group + 4096, 0));
        assert!(matches!(chain.read(8).await, Err(ReadError::Drive(_))), "the first side may have it");
        assert_eq!(chain.stats().damage, []);
        sides[0].unreadable.take();
        assert_eq!(read_small(&chain).await, Ok(true), "it has");
        let damage = chain.stats().damage;
        assert!(damage.iter().all(|it| it.kind == DamageKind::Footer), "{damage:?}");
        chain.close().await.expect("no fault");
    });
}

#[test]
fn groups_that_a_scrub_names_as_lost_are_there_again_when_a_later_one_can_read_them() {
    // They stayed lost until the next start, though the drive read them.
    for is_rotten in [false, true] {
        let Unread { world, bytes, options } = with_unread_groups(is_rotten);
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let (chain, held) = open_first_held(&env, options).await;
            held.unreadable.replace((bytes.clone(), 0));
            let count =
                |is: fn(&DamageKind) -> bool| chain.stats().damage.iter().filter(|it| is(&it.kind)).count();
            let groups = |kind: &DamageKind| matches!(kind, DamageKind::Groups { .. });
            let mut known = Vec::new();
            // Of less still, at the second time: what is known of it stays.
            for start in [bytes.start, 64 << 10] {
                held.unreadable.replace((start..bytes.end, 0));
                chain.scrub().await.expect("it runs");
                assert_eq!(count(groups), 1, "{is_rotten}: {:?}", chain.stats().damage);
                held.unreadable.replace((bytes.clone(), 0));
                let (damaged, failed) = unread_keys(&chain).await;
                assert!(damaged.len() > 2 && damaged.contains(&5), "{is_rotten}: {damaged:?}");
                assert_eq!(failed, [], "{is_rotten}: it is known");
                known.push(damaged);
            }
            assert_eq!(known[0], known[1], "{is_rotten}");
            held.unreadable.take();
            chain.scrub().await.expect("it runs");
            assert_eq!(count(groups), 0, "{is_rotten}: {:?}", chain.stats().damage);
            assert_eq!(count(|_| true), usize::from(is_rotten), "{:?}", chain.stats().damage);
            assert_eq!(unread_keys(&chain).await, (vec![], vec![]), "{is_rotten}");
            chain.close().await.expect("no fault");
        });
    }
}
