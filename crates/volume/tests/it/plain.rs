//! Reads, writes, discards, flushes, extents, and what is refused.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{CacheDrive, ChainOptions};
use ithaca_env::Env;
use ithaca_env::drive::OpenDrive;
use ithaca_env::sim::Random;
use ithaca_env::task::TaskHandle;
use ithaca_volume::{Durability, Version, Volume, VolumeError, VolumeOptions, VolumeSettings};

use crate::world::{
    BLOCKS, begin, block, create, numbers, open_drive, small_options, small_settings, within,
};

#[test]
fn what_was_written_is_read_and_the_rest_is_zeros() {
    within(1, async |env| {
        let volume = create(&env, small_options(0)).await;
        assert_eq!(numbers(&volume.read(0, 60).await.expect("it reads")), [0; 60]);
        let data = Bytes::from([block(1), block(2), block(3)].concat());
        assert_eq!(volume.write(10, data, Durability::Stable).await, Ok(Version(1)));
        assert_eq!(volume.write(11, block(4), Durability::Acknowledged).await, Ok(Version(2)));
        assert_eq!(numbers(&volume.read(9, 5).await.expect("it reads")), [0, 1, 4, 3, 0]);
        assert_eq!(volume.discard(10..11, Durability::Acknowledged).await, Ok(Version(3)));
        assert_eq!(numbers(&volume.read(9, 5).await.expect("it reads")), [0, 0, 4, 3, 0]);
        let extents: Vec<_> = volume.extents(0..60).expect("inside").collect();
        assert_eq!(extents, [(0..11, false), (11..13, true), (13..60, false)]);
        assert_eq!(volume.flush().await, Ok(Version(3)));
        let extents: Vec<_> = volume.extents(0..60).expect("inside").collect();
        assert_eq!(extents, [(0..11, false), (11..13, true), (13..60, false)]);
        assert_eq!(volume.info().data_blocks, 2);
    });
}

#[test]
fn a_volume_holds_its_size_however_small_the_writes_are() {
    // A write by itself takes two blocks of the log, and the room is for a quarter more than the size.
    within(5, async |env| {
        let blocks = 2048;
        let segment_bytes = 256 << 10;
        let capacity_bytes = blocks * 4096 * 5 / 4 + 16 * segment_bytes;
        let chain = ChainOptions { segment_bytes, capacity_bytes, ..ChainOptions::default() };
        let settings = VolumeSettings { chain, ..VolumeSettings::default() };
        let volume = create(&env, VolumeOptions { settings, ..VolumeOptions::new(blocks) }).await;
        let mut random = Random::new(5);
        let again = (0..blocks).map(|_| random.below(blocks)).collect::<Vec<_>>();
        for (number, at) in (0..blocks).chain(again.iter().copied()).enumerate() {
            let written = volume.write(at, block(number as u64), Durability::Stable).await;
            written.unwrap_or_else(|error| panic!("write {number}: {error}"));
        }
        let mut expected: Vec<u64> = (0..blocks).collect();
        for (number, at) in again.into_iter().enumerate() {
            expected[at as usize] = blocks + number as u64;
        }
        for first in (0..blocks).step_by(64) {
            let read = volume.read(first, 64).await.expect("it reads");
            assert_eq!(numbers(&read), expected[first as usize..first as usize + 64]);
        }
    });
}

#[test]
fn a_cache_drive_answers_what_has_left_memory() {
    within(4, async |env| {
        let volume = create(&env, small_options(0)).await;
        let open = OpenDrive { path: "cache".into(), create_bytes: Some(64 << 10), read_only: false };
        let cache = CacheDrive::open(&env, env.open_drive(open).await.expect("a drive"), 4 << 20).await;
        volume.use_cache(&cache.expect("a blank drive"));
        // Several times what stays in memory; the cache is written to by the way.
        for number in 0..BLOCKS {
            volume.write(number, block(number + 1), Durability::Stable).await.expect("room");
        }
        env.sleep(Duration::from_secs(1)).await;
        let read = volume.read(0, BLOCKS).await.expect("it reads");
        assert_eq!(numbers(&read), (1..=BLOCKS).collect::<Vec<_>>());
        let reads = volume.info().chain.reads;
        assert!(reads.tail.cache_drive > 0, "{reads:?}");
    });
}

#[test]
fn a_volume_that_was_closed_is_opened_as_it_was() {
    within(2, async |env| {
        let volume = create(&env, small_options(0)).await;
        let id = volume.info().id;
        for number in 1..=200 {
            let written = volume.write(number % 7, block(number), Durability::Acknowledged).await;
            assert_eq!(written, Ok(Version(number)));
        }
        volume.close().await.expect("no fault");
        let refused = volume.write(0, block(1), Durability::Stable).await;
        assert!(matches!(refused, Err(VolumeError::Stopped(_))), "{refused:?}");
        drop(volume);
        let volume = Volume::open(&env, open_drive(&env).await, small_settings()).await.expect("it opens");
        let info = volume.info();
        assert_eq!((info.id, info.version, info.floor, info.versions), (id, Version(200), Version(200), 0));
        let expected: Vec<u64> = (0..7).map(|at| (194..=200).find(|it| it % 7 == at).expect("one")).collect();
        assert_eq!(numbers(&volume.read(0, 7).await.expect("it reads")), expected);
        assert_eq!(volume.write(0, block(1), Durability::Stable).await, Ok(Version(201)));
    });
}

/// Counts turns of others from now on, until the task is aborted.
fn count_turns(env: &Env) -> (Rc<Cell<u64>>, TaskHandle<()>) {
    let (counted, others) = (Rc::new(Cell::new(0)), env.clone());
    let count = Rc::clone(&counted);
    let counting = env.spawn(async move {
        loop {
            others.yield_now().await;
            count.set(count.get() + 1);
        }
    });
    (counted, counting)
}

#[test]
fn others_have_their_turn_while_a_discard_looks_at_many_blocks() {
    // What is looked at in one go holds up every client of the volume, and one may ask for as many blocks as it likes.
    within(8, async |env| {
        let blocks = 1 << 18;
        let chain = ChainOptions { capacity_bytes: 2 << 30, ..small_settings().chain };
        let settings = VolumeSettings { chain, ..small_settings() };
        let volume = create(&env, VolumeOptions { settings, ..VolumeOptions::new(blocks) }).await;
        for (nth, at) in [0, 1, blocks / 2, blocks - 1].into_iter().enumerate() {
            volume.write(at, block(nth as u64 + 1), Durability::Stable).await.expect("room");
        }
        let (turns, counting) = count_turns(&env);
        let version = volume.discard(0..blocks, Durability::Acknowledged).await;
        assert!(turns.get() >= blocks >> 14, "{} turns", turns.get());
        assert_eq!(version, Ok(Version(5)), "all of it is one commit");
        counting.abort();
        assert_eq!(volume.extents(0..blocks).expect("blocks").collect::<Vec<_>>(), [(0..blocks, false)]);
    });
}

/// A volume of so many blocks with data in four of them, and so many discards of all of it that have just begun.
async fn discards_at_a_time(
    env: &Env,
    (blocks, discards): (u64, u64),
    durability: Durability,
) -> (Volume, Vec<TaskHandle<Result<Version, VolumeError>>>) {
    let chain = ChainOptions { capacity_bytes: 1 << 30, ..small_settings().chain };
    let settings = VolumeSettings { chain, ..small_settings() };
    let volume = create(env, VolumeOptions { settings, ..VolumeOptions::new(blocks) }).await;
    for at in [0, 1, blocks / 2, blocks - 1] {
        volume.write(at, block(at + 1), Durability::Stable).await.expect("room");
    }
    let begin = |_| {
        let volume = volume.clone();
        env.spawn(async move { volume.discard(0..blocks, durability).await })
    };
    let begun = (0..discards).map(begin).collect();
    (volume, begun)
}

#[test]
fn many_discards_at_a_time_hold_up_others_no_more_than_one() {
    // Each looked at a slice of its own in every turn.
    within(8, async |env| {
        let (blocks, discards) = (1 << 16, 20);
        let (_volume, begun) = discards_at_a_time(&env, (blocks, discards), Durability::Acknowledged).await;
        let (turns, counting) = count_turns(&env);
        for discard in begun {
            assert!(matches!(discard.join().await, Some(Ok(_))));
        }
        counting.abort();
        let (turns, slices) = (turns.get(), (discards * blocks) >> 12);
        assert!(turns >= slices, "{turns} turns of others while {slices} slices were looked at");
    });
}

#[test]
fn what_several_discards_give_up_at_a_time_is_given_up_once() {
    // Each of them wrote junk over what it had found, also where another had done so meanwhile.
    for durability in [Durability::Acknowledged, Durability::Stable] {
        within(8, async move |env| {
            let (volume, begun) = discards_at_a_time(&env, (1 << 14, 5), durability).await;
            for discard in begun {
                assert_eq!(discard.join().await, Some(Ok(Version(5))), "{durability:?}");
            }
            assert_eq!(volume.info().counters.blocks_discarded, 4, "{durability:?}");
            assert_eq!(numbers(&volume.read(0, 2).await.expect("no damage")), [0, 0]);
        });
    }
}

#[test]
fn discarding_what_is_zeros_already_writes_nothing() {
    within(3, async |env| {
        let volume = create(&env, small_options(0)).await;
        assert_eq!(volume.discard(0..60, Durability::Stable).await, Ok(Version(0)));
        volume.write(5, block(1), Durability::Stable).await.expect("room");
        assert_eq!(volume.discard(0..60, Durability::Stable).await, Ok(Version(2)));
        assert_eq!(volume.discard(0..60, Durability::Stable).await, Ok(Version(2)));
        assert_eq!(volume.info().counters.blocks_discarded, 1);
    });
}

#[test]
fn requests_that_make_no_sense_are_refused_by_name() {
    within(4, async |env| {
        let volume = create(&env, small_options(0)).await;
        let refused = [
            (volume.read(58, 3).await.err(), "blocks 58 to 60 of a volume of 60 blocks"),
            (
                volume.read(u64::MAX, 2).await.err(),
                "blocks 18446744073709551615 to 18446744073709551615 of a volume",
            ),
            (volume.read(0, 0).await.err(), "a request of 0 blocks, at least 1 and at most 16384"),
            (volume.read(0, 16_385).await.err(), "a request of 16385 blocks, at least 1 and at most 16384"),
            (
                volume.write(0, Bytes::from_static(b"abc"), Durability::Stable).await.err(),
                "3 bytes of data are not whole blocks of 4096",
            ),
            (volume.at(Version(7)).err(), "version 7 cannot be read: history goes from 0 to 0"),
            (volume.named("x").err(), "no snapshot \"x\""),
            (
                volume.create_snapshot("").await.err(),
                "\"\" is no name of a snapshot: 1 to 64 bytes without `@`, `/` and control characters",
            ),
            (
                volume.create_snapshot("a\n@b").await.err(),
                "\"a\\n@b\" is no name of a snapshot: 1 to 64 bytes without `@`, `/` and control characters",
            ),
        ];
        for (error, expected) in refused {
            let error = error.expect("it is refused").to_string();
            assert!(error.starts_with(expected), "{error}, expected {expected}");
        }
        let options = VolumeOptions { blocks: 0, ..small_options(0) };
        volume.close().await.expect("no fault");
        drop(volume);
        env.yield_now().await;
        let created = Volume::create(&env, open_drive(&env).await, options).await;
        assert_eq!(created.err().map(|it| it.to_string()).as_deref(), Some("blocks is 0, must be 1 to 2^32"));
    });
}

#[test]
fn a_chain_that_holds_no_volume_is_refused() {
    within(5, async |env| {
        let drive = open_drive(&env).await;
        let identity = ithaca_chain::Identity {
            id: ithaca_chain::ChainId([3; 16]),
            label: ithaca_chain::Label::new("blocks").expect("short"),
        };
        struct Nobody;
        impl ithaca_chain::Owner for Nobody {
            fn placed(&self, _: ithaca_chain::Placed) -> Option<ithaca_chain::Place> {
                None
            }
            fn is_live(&self, _: ithaca_chain::Placed) -> bool {
                true
            }
            fn moved(&self, _: ithaca_chain::Placed, _: ithaca_chain::Place) -> bool {
                false
            }
            fn dropped(&self, _: ithaca_chain::Placed) -> bool {
                false
            }
        }
        let options = small_settings().chain;
        let owner = std::rc::Rc::new(Nobody);
        let chain = ithaca_chain::Chain::create_owned(&env, &drive, identity, options, owner).await;
        chain.expect("created").close().await.expect("no fault");
        let opened = Volume::open(&env, &drive, small_settings()).await;
        let error = opened.err().expect("it is refused").to_string();
        assert_eq!(error, "\"blocks\" is no volume: it has no volume record");
    });
}

#[test]
fn how_large_a_volume_may_become_is_kept_with_it() {
    within(19, async |env| {
        let volume = create(&env, small_options(100_000)).await;
        let most = small_settings().chain.capacity_bytes / small_settings().chain.segment_bytes;
        volume.close().await.expect("no fault was planted");
        drop(volume);
        let mut settings = small_settings();
        settings.chain.capacity_bytes = 64 << 20;
        let volume = Volume::open(&env, &open_drive(&env).await, settings).await.expect("it is there");
        for round in 0..2000 {
            volume.write(round % BLOCKS, block(round), Durability::Stable).await.expect("history makes room");
        }
        let segments = volume.info().chain.links[0].segments;
        assert!(segments > 2 && segments <= most, "{segments} segments, at most {most}");
    });
}

#[test]
fn what_is_remembered_of_reads_is_never_older_than_what_was_written() {
    within(20, async |env| {
        let mut options = small_options(0);
        options.settings.chain.read_cache_bytes = 24 * 4096;
        // Nothing of the tail is in memory, so that each read is of the drive or remembered.
        options.settings.chain.tail_cache_bytes = 0;
        let volume = create(&env, options).await;
        let (mut rng, mut model) = (Random::new(20), vec![0; BLOCKS as usize]);
        for step in 1..3000 {
            let at = rng.below(BLOCKS);
            match rng.below(4) {
                0 => {
                    volume.write(at, block(step), Durability::Stable).await.expect("room");
                    model[at as usize] = step;
                }
                1 if rng.below(5) == 0 => {
                    volume.discard(at..at + 1, Durability::Stable).await.expect("room");
                    model[at as usize] = 0;
                }
                _ => {
                    let count = 1 + rng.below(3).min(BLOCKS - at - 1);
                    let read = numbers(&volume.read(at, count).await.expect("no damage"));
                    assert_eq!(read, model[at as usize..(at + count) as usize], "step {step}");
                }
            }
        }
        let info = volume.info();
        let remembered = info.chain.read_cache_bytes;
        assert!((8 * 4096..=24 * 4096).contains(&remembered), "{remembered} bytes");
        assert!(info.chain.counters.segments_cleaned > 0, "blocks have moved");
    });
}

#[test]
fn what_was_discarded_reads_as_zeros_also_where_a_discard_that_nobody_sees_yet_came_before() {
    within(21, async |env| {
        let volume = create(&env, small_options(0)).await;
        volume.write(5, block(1), Durability::Stable).await.expect("room");
        let first = begin(volume.discard(5..6, Durability::Stable)).await;
        assert_eq!(numbers(&volume.read(5, 1).await.expect("it reads")), [1], "it is not durable");
        volume.discard(4..7, Durability::Acknowledged).await.expect("room");
        assert_eq!(numbers(&volume.read(5, 1).await.expect("it reads")), [0]);
        first.await.expect("no fault");
        assert_eq!(numbers(&volume.read(5, 1).await.expect("it reads")), [0]);
    });
}
