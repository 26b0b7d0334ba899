//! Cleaning: room comes back, no live record is lost on the way, damage is kept, wherever the power is cut.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{
    AppendError, Batch, Chain, ChainOptions, ChangeError, Cleaning, Damage, DamageKind, DumpOptions,
    OpenError, ReadError, Stats, Victims, check, dump,
};
use ithaca_env::Env;
use ithaca_env::drive::{Drive, Durability};
use ithaca_env::sim::{Death, DriveFault};

use crate::drives::{THREE, tiny_drives, within};
use crate::model::run_of;
use crate::world::{MACHINE, World, identity, open_drive, open_drives, small_options};

/// Cleans whatever gives room, always.
pub fn eager() -> ChainOptions {
    ChainOptions { clean_start_free_percent: 100, clean_stop_free_percent: 100, ..small_options() }
}

/// The same, in segments of the cleaner's own.
pub fn in_body() -> ChainOptions {
    ChainOptions { cleaning: Cleaning::CompactInBody, ..eager() }
}

fn is_kept(key: u64) -> bool {
    key.is_multiple_of(10)
}

/// A record of one block, and the release of the nine before it that are not to be kept.
pub fn tenth(key: u64) -> Batch {
    let run = run_of(key, key, &[Bytes::from(vec![key as u8; 4096])]);
    let releases = (key % 10 == 9).then(|| key - 8..key);
    Batch { runs: vec![run], release: releases.into_iter().collect(), ..Batch::default() }
}

/// Appends, waiting for room. Errors: the chain is full.
pub async fn append(env: &Env, chain: &Chain, batch: Batch) -> Result<(), AppendError> {
    loop {
        match chain.append(batch.clone()) {
            Ok(ticket) => return chain.wait(ticket).await.map_err(AppendError::Stopped),
            Err(AppendError::Overloaded { .. }) => env.sleep(Duration::from_micros(500)).await,
            Err(error) => return Err(error),
        }
    }
}

/// Waits until nothing is left to clean.
async fn settle(env: &Env, chain: &Chain) -> Stats {
    let mut before = chain.stats();
    loop {
        env.sleep(Duration::from_millis(20)).await;
        let stats = chain.stats();
        if stats == before && !stats.is_cleaning {
            return stats;
        }
        before = stats;
    }
}

async fn create(env: &Env, options: ChainOptions) -> Chain {
    Chain::create(env, open_drive(env).await, identity(), options).await.expect("created")
}

async fn all_kept_are_there(chain: &Chain, keys: Range<u64>) {
    for key in keys.filter(|key| is_kept(*key)) {
        let record = chain.read(key).await.expect("no damage").unwrap_or_else(|| panic!("key {key} is gone"));
        assert_eq!((record.version, &record.data[..]), (key, &[key as u8; 4096][..]));
        assert_eq!(&record.meta[..], key.to_le_bytes());
    }
}

/// Appends twice what the drive holds and keeps a tenth of it, spread over every segment. Returns whether it fits.
pub fn keeps_a_tenth(options: &ChainOptions) -> bool {
    let world = World::new(21);
    let env = world.sim.env(world.process);
    let options = options.clone();
    world.sim.block_on(world.process, async move {
        let chain = create(&env, options.clone()).await;
        for key in 0..2000 {
            match append(&env, &chain, tenth(key)).await {
                Ok(()) => {}
                Err(AppendError::Full { .. }) => return false,
                Err(other) => panic!("{other}"),
            }
        }
        all_kept_are_there(&chain, 0..2000).await;
        let stats = settle(&env, &chain).await;
        assert!(stats.counters.segments_cleaned > 20, "{stats:?}");
        let moved = stats.counters.records_moved;
        assert!(moved > 100 && moved * 4096 == stats.counters.moved_bytes, "{stats:?}");
        chain.close().await.expect("no fault");
        let opened = Chain::open(&env, open_drive(&env).await, Some(&identity()), options).await;
        let (chain, recovered) = opened.expect("it is well");
        assert_eq!((recovered.damage.len(), recovered.highest_key), (0, Some(1999)));
        all_kept_are_there(&chain, 0..2000).await;
        true
    })
}

#[test]
fn a_log_of_which_a_tenth_is_kept_goes_on_for_ever() {
    for victims in [Victims::HeadOfLog, Victims::CostBenefit] {
        assert!(keeps_a_tenth(&ChainOptions { victims, ..small_options() }), "{victims:?}");
        assert!(keeps_a_tenth(&ChainOptions { victims, ..eager() }), "{victims:?}, always");
    }
    assert!(keeps_a_tenth(&ChainOptions { cleaning: Cleaning::CompactInBody, ..small_options() }));
    assert!(keeps_a_tenth(&in_body()));
    // Without a cleaner each kept record keeps its segment.
    assert!(!keeps_a_tenth(&ChainOptions { cleaning: Cleaning::Off, ..small_options() }));
}

#[test]
fn nothing_is_moved_while_there_is_room() {
    within(22, async |env| {
        let chain = create(&env, ChainOptions { capacity_bytes: 64 << 20, ..small_options() }).await;
        for key in 0..600 {
            append(&env, &chain, tenth(key)).await.expect("room");
        }
        let stats = settle(&env, &chain).await;
        assert!(stats.segments_closed > 10);
        assert_eq!((stats.counters.segments_cleaned, stats.counters.records_moved), (0, 0), "{stats:?}");
    });
}

#[test]
fn small_groups_of_which_nothing_is_released_are_packed_before_the_chain_is_full() {
    // Each record is appended alone, in a group of its own of two blocks.
    let fills = |cleaning: Cleaning| {
        let world = World::new(29);
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let options = ChainOptions { cleaning, ..small_options() };
            let chain = create(&env, options.clone()).await;
            let mut count = 0;
            let whole = |key: u64| Batch { release: Vec::new(), ..tenth(key) };
            loop {
                match append(&env, &chain, whole(count)).await {
                    Ok(()) => count += 1,
                    Err(AppendError::Full { .. }) => break,
                    Err(other) => panic!("{other}"),
                }
            }
            chain.close().await.expect("no fault");
            let opened = Chain::open(&env, open_drive(&env).await, Some(&identity()), options).await;
            let (chain, recovered) = opened.expect("it is well");
            assert_eq!((recovered.damage.len(), recovered.highest_key), (0, count.checked_sub(1)));
            for key in 0..count {
                let record = chain.read(key).await.expect("no damage").expect("it is there");
                assert_eq!(&record.data[..], &[key as u8; 4096][..], "key {key}");
            }
            count
        })
    };
    let (packed, apart) = (fills(Cleaning::MoveToTail), fills(Cleaning::Off));
    assert!(packed * 4 > apart * 5, "{packed} records where {apart} fit as they are appended");
    assert!(fills(Cleaning::CompactInBody) * 4 > apart * 5);
}

/// What is left in the closed segments when an eager cleaner rests: records that are kept, and of the others.
pub fn leaves_little_garbage(options: &ChainOptions) -> bool {
    let world = World::new(23);
    let env = world.sim.env(world.process);
    let options = options.clone();
    world.sim.block_on(world.process, async move {
        let chain = create(&env, options).await;
        for key in 0..500 {
            match append(&env, &chain, tenth(key)).await {
                Ok(()) => {}
                Err(AppendError::Full { .. }) => return false,
                Err(other) => panic!("{other}"),
            }
        }
        let stats = settle(&env, &chain).await;
        // Every segment is in one state, and what they hold is the fifty kept records, and garbage in the open segment and
        // in closed ones of which too little is garbage.
        let states = stats.segments_ready + stats.segments_raw + stats.segments_open + stats.segments_closed;
        let segments: u64 = stats.links.iter().map(|link| link.segments).sum();
        assert_eq!(states, segments, "{stats:?}");
        assert_eq!(stats.data_bytes, stats.records * 4096);
        stats.records >= 50 && stats.records < 3 * 50
    })
}

#[test]
fn what_is_not_live_is_not_moved() {
    assert!(leaves_little_garbage(&eager()));
}

#[test]
fn copies_in_the_body_stay_away_from_the_tail() {
    within(28, async |env| {
        let options = ChainOptions { capacity_bytes: 2 << 20, ..in_body() };
        let drives = open_drives(&env, &THREE).await;
        let chain = Chain::create(&env, drives.clone(), identity(), options.clone()).await.expect("created");
        for key in 0..500 {
            append(&env, &chain, tenth(key)).await.expect("room");
        }
        let stats = settle(&env, &chain).await;
        assert!(stats.counters.segments_cleaned > 20, "{stats:?}");
        let body = stats.links.iter().filter(|link| !link.is_tail).map(|link| link.records).sum::<u64>();
        assert!(body > 30, "kept records on the other drives: {stats:?}");
        chain.close().await.expect("no fault");
        assert!(!bodies_of(&drives).await.is_empty(), "closed segments of copies");
        let report = check(drives).await.expect("it is well");
        assert_eq!(report.damage, []);
    });
}

/// The numbers of the closed segments of copies.
async fn bodies_of(drives: &[Drive]) -> Vec<u64> {
    let mut bodies = Vec::new();
    for drive in drives {
        let number = |line: String| line.split(' ').nth(1).and_then(|it| it.parse().ok()).expect("a number");
        let each = |line: String| {
            if line.contains(" closed body ") {
                bodies.push(number(line));
            }
        };
        dump(drive, DumpOptions::default(), each).await.expect("it is well");
    }
    bodies
}

#[test]
fn the_next_group_says_that_a_segment_was_freed() {
    // Of what is lost later it could not be told whether it held what was moved out of that segment, or came after it.
    within(31, async |env| {
        let drive = open_drive(&env).await;
        let chain = Chain::create(&env, drive.clone(), identity(), small_options()).await.expect("created");
        for key in 0..40 {
            append(&env, &chain, tenth(key)).await.expect("room");
        }
        settle(&env, &chain).await;
        assert_eq!(chain.clean(1).await, Ok(1));
        append(&env, &chain, tenth(40)).await.expect("room");
        let (mut newest, mut last) = (0, String::new());
        let each = |line: String| {
            let seq = line.strip_prefix("  group seq=").and_then(|rest| rest.split(' ').next()?.parse().ok());
            if seq > Some(newest) {
                (newest, last) = (seq.unwrap_or_default(), line);
            }
        };
        let groups = DumpOptions { groups: true, ..DumpOptions::default() };
        dump(&drive, groups, each).await.expect("it is well");
        // The first segment, whose kept records were moved, is not among them.
        assert!(last.contains(" census=[1..2, 3..4] "), "{last}");
    });
}

#[test]
fn a_body_segment_whose_frame_is_harmed_is_read_by_its_groups() {
    for harm in [0, 128 * 1024 - 4096] {
        within(29, async move |env| {
            let drive = open_drive(&env).await;
            let chain = Chain::create(&env, drive.clone(), identity(), in_body()).await.expect("created");
            for key in 0..500 {
                append(&env, &chain, tenth(key)).await.expect("room");
            }
            settle(&env, &chain).await;
            chain.close().await.expect("no fault");
            let bodies = bodies_of(std::slice::from_ref(&drive)).await;
            assert!(!bodies.is_empty());
            for segment in bodies {
                let offset = (64 << 10) + segment * (128 << 10) + harm;
                let mut block = drive.read(offset, 4096).await.expect("no fault").to_vec();
                block[20] ^= 1;
                drive.write(offset, Bytes::from(block), Durability::Durable).await.expect("no fault");
            }
            let opened = Chain::open(&env, drive, None, in_body()).await;
            let (chain, recovered) = opened.expect("every group is there");
            assert!(!recovered.damage.is_empty(), "the harm is named");
            all_kept_are_there(&chain, 0..500).await;
        });
    }
}

/// A closed segment of copies of which the directory is harmed, and its last group or all of them; whether the power was cut before a
/// census named it. Then every key is there, or named as damaged.
fn misses_copies(cuts: bool, harms_all: bool, batch: fn(u64) -> Batch) {
    let world = World::new(30);
    let options =
        || ChainOptions { cleaning: Cleaning::CompactInBody, tail_cache_bytes: 0, ..small_options() };
    let env = world.sim.env(world.process);
    let keys = world.sim.block_on(world.process, async move {
        let chain = create(&env, options()).await;
        let mut batches = 0;
        while chain.stats().segments_closed < 4 {
            append(&env, &chain, batch(batches)).await.expect("room");
            batches += 1;
        }
        assert_eq!(chain.clean(2).await, Ok(2));
        if !cuts {
            chain.close().await.expect("no fault");
        }
        (0..batches).flat_map(|it| batch(it).runs).flat_map(|run| run.keys()).collect::<Vec<u64>>()
    });
    world.cut_power();
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let drive = open_drive(&env).await;
        let body = bodies_of(std::slice::from_ref(&drive)).await[0];
        let start = (64 << 10) + body * (128 << 10);
        let bytes = drive.read(start, 128 << 10).await.expect("no fault");
        let is_own = |block: &&[u8]| block[..4] == *b"ITHG" && block[32..40] == bytes[32..40];
        let begins = |block: &&[u8]| is_own(block) || block.starts_with(b"ITHD");
        let blocks: Vec<&[u8]> = bytes.chunks_exact(4096).collect();
        let mut harmed: Vec<usize> = (0..32).filter(|&index| begins(&blocks[index])).collect();
        assert!(harmed.len() > 2 && blocks[harmed[harmed.len() - 1]].starts_with(b"ITHD"));
        if !harms_all {
            harmed.drain(..harmed.len() - 2);
        }
        for index in harmed {
            let mut block = blocks[index].to_vec();
            block[50] ^= 1;
            let offset = start + 4096 * index as u64;
            drive.write(offset, Bytes::from(block), Durability::Durable).await.expect("no fault");
        }
        for round in 0..3 {
            let opened = Chain::open(&env, drive.clone(), None, options()).await;
            let (chain, _) = opened.expect("the rest is well");
            let mut lost = 0;
            if round == 1 {
                // What is left of it is not moved, and the harm forgotten with its place.
                chain.clean(20).await.expect("it runs");
            }
            for &key in &keys {
                match chain.read(key).await {
                    Ok(Some(record)) => assert_eq!(record.version, key),
                    Ok(None) => panic!("{round}: key {key} vanished without a word"),
                    Err(ReadError::Damaged { .. }) => lost += 1,
                    Err(other) => panic!("{other}"),
                }
            }
            let is_lost = |it: &Damage| matches!(it.kind, DamageKind::Groups { .. } | DamageKind::Segment);
            assert!(chain.stats().damage.iter().any(is_lost), "{:?}", chain.stats().damage);
            assert!(lost > 0 && lost < keys.len(), "{lost} of {}", keys.len());
            chain.close().await.expect("no fault");
        }
    });
}

/// Ten small records of which no two are neighbours.
fn apart(batch: u64) -> Batch {
    let run = |key: u64| run_of(key, key, &[Bytes::from(vec![key as u8; 300])]);
    Batch { runs: (0..10).map(|index| run(2 * (10 * batch + index))).collect(), ..Batch::default() }
}

/// Ten small records that follow each other.
fn together(batch: u64) -> Batch {
    let run = |key: u64| run_of(key, key, &[Bytes::from(vec![key as u8; 300])]);
    Batch { runs: (0..10).map(|index| run(10 * batch + index)).collect(), ..Batch::default() }
}

/// Fills some segments, of which a cleaner empties two into its own, harms the directories of all, and has them all cleaned, by the chain
/// that has closed them or by the next one.
fn is_cleaned_by_groups(batch: fn(u64) -> Batch, is_reopened: bool) {
    within(33, async move |env| {
        let options =
            || ChainOptions { cleaning: Cleaning::CompactInBody, tail_cache_bytes: 0, ..small_options() };
        let drive = open_drive(&env).await;
        let created = Chain::create(&env, drive.clone(), identity(), options()).await;
        let (mut chain, mut batches) = (created.expect("created"), 0);
        while chain.stats().segments_closed < 5 {
            append(&env, &chain, batch(batches)).await.expect("room");
            batches += 1;
        }
        assert_eq!(chain.clean(2).await, Ok(2));
        settle(&env, &chain).await;
        assert!(!bodies_of(std::slice::from_ref(&drive)).await.is_empty());
        if is_reopened {
            chain.clone().close().await.expect("no fault");
        }
        for offset in ((64 << 10)..drive.size_bytes()).step_by(4096) {
            let mut block = drive.read(offset, 4096).await.expect("no fault").to_vec();
            if block.starts_with(b"ITHD") {
                block[50] ^= 1;
                drive.write(offset, Bytes::from(block), Durability::Durable).await.expect("no fault");
            }
        }
        if is_reopened {
            let opened = Chain::open(&env, drive.clone(), None, options()).await;
            chain = opened.expect("every group is there").0;
            settle(&env, &chain).await;
        }
        let closed = chain.stats().segments_closed as usize;
        assert!(closed >= 4);
        assert_eq!(chain.clean(100).await, Ok(closed), "{:?}", chain.stats().damage);
        for key in (0..batches).flat_map(|it| batch(it).runs).flat_map(|run| run.keys()) {
            let record = chain.read(key).await.expect("no damage").expect("it is there");
            assert_eq!(record.version, key);
        }
    });
}

#[test]
fn what_a_harmed_footer_speaks_of_is_cleaned_by_the_groups() {
    // The drive would fill up with garbage that nobody can clean away.
    is_cleaned_by_groups(apart, false);
    is_cleaned_by_groups(together, false);
    is_cleaned_by_groups(together, true);
    // The keys of these are in the directories only: an open reads the groups for them.
    is_cleaned_by_groups(apart, true);
}

#[test]
fn a_lost_group_of_copies_is_missed_also_where_the_directory_is_harmed() {
    // The keys that the segment has are in its directory only, which an open looks for.
    misses_copies(false, false, apart);
    // They are in its trailer, so that the directory is not looked for before a record is.
    misses_copies(false, false, together);
}

#[test]
fn a_closed_segment_of_copies_of_which_no_group_is_left_is_missed_though_no_census_names_it() {
    misses_copies(true, true, apart);
}

#[test]
fn a_released_segment_of_copies_of_which_no_group_is_left_is_not_missed() {
    // It is of a later lap than the segment that the log is in, as if it were closed since the census that does not name it.
    within(31, async |env| {
        let options =
            || ChainOptions { cleaning: Cleaning::CompactInBody, tail_cache_bytes: 0, ..small_options() };
        let drive = open_drive(&env).await;
        let chain = Chain::create(&env, drive.clone(), identity(), options()).await.expect("created");
        let mut batches = 0;
        while chain.stats().segments_closed < 4 {
            append(&env, &chain, apart(batches)).await.expect("room");
            batches += 1;
        }
        assert_eq!(chain.clean(2).await, Ok(2));
        let release = 0..20 * batches;
        append(&env, &chain, Batch { release: vec![release.clone()], ..Batch::default() })
            .await
            .expect("room");
        chain.close().await.expect("no fault");
        let open = async || Chain::open(&env, drive.clone(), None, options()).await.expect("it is well");
        open().await.0.close().await.expect("no fault");
        let body = bodies_of(std::slice::from_ref(&drive)).await[0];
        let start = (64 << 10) + body * (128 << 10);
        // All but header and trailer.
        let harmed = Bytes::from(vec![7; (128 << 10) - 2 * 4096]);
        drive.write(start + 4096, harmed, Durability::Durable).await.expect("no fault");
        for _ in 0..2 {
            let (chain, recovered) = open().await;
            assert_eq!(recovered.damage, []);
            assert_eq!(chain.read(release.start).await, Ok(None));
            chain.close().await.expect("no fault");
        }
    });
}

/// Fills a few segments, of which the first is mostly released, harms it at `harm`, and cleans. Returns what a read of
/// key 10, a record in it, says before and after an open.
fn read_after_harm(options: &ChainOptions, offset: u64) -> Vec<Result<bool, ReadError>> {
    let world = World::new(24);
    let env = world.sim.env(world.process);
    let drive = world.sim.drive(MACHINE, "chain");
    let off = ChainOptions { cleaning: Cleaning::Off, tail_cache_bytes: 0, ..options.clone() };
    world.sim.block_on(world.process, async move {
        let chain = create(&env, off).await;
        for key in 0..120 {
            append(&env, &chain, tenth(key)).await.expect("room");
        }
        chain.close().await.expect("no fault");
    });
    world.sim.fault_drive(drive, DriveFault::BitRot { offset, bit: 3 });
    let (env, options) = (world.sim.env(world.process), options.clone());
    world.sim.block_on(world.process, async move {
        let mut answers = Vec::new();
        for _ in 0..2 {
            let opened = Chain::open(&env, open_drive(&env).await, None, options.clone()).await;
            let (chain, _) = opened.expect("one record is harmed");
            let stats = settle(&env, &chain).await;
            assert!(stats.counters.segments_cleaned > 0 || !answers.is_empty(), "{stats:?}");
            answers.push(chain.read(10).await.map(|record| record.is_some()));
            for key in (0..120).filter(|key| is_kept(*key) && *key != 10) {
                assert!(chain.read(key).await.expect("it is well").is_some(), "key {key}");
            }
            chain.close().await.expect("no fault");
        }
        answers
    })
}

/// Where the data of key 10 lies: header, the fence, then two blocks for each of the groups with keys 0 to 9, and the head
/// of its own.
const KEY_10: u64 = (64 << 10) + 4096 * (2 + 2 * 10 + 1);

/// Whether a damaged record stays named when its segment could be cleaned.
pub fn keeps_damage(options: &ChainOptions) -> bool {
    let answers = read_after_harm(options, KEY_10 + 77);
    answers.iter().all(|answer| matches!(answer, Err(ReadError::Damaged { key: 10, .. })))
}

#[test]
fn a_damaged_record_is_never_dropped_and_the_rest_is_cleaned() {
    assert!(keeps_damage(&eager()));
}

#[test]
fn a_segment_with_a_damaged_record_is_cleaned_when_that_is_released() {
    // It was kept until the next open, with all that is live in it.
    let world = World::new(24);
    let env = world.sim.env(world.process);
    let drive = world.sim.drive(MACHINE, "chain");
    world.sim.block_on(world.process, async move {
        let off = ChainOptions { cleaning: Cleaning::Off, ..eager() };
        let chain = create(&env, off).await;
        for key in 0..120 {
            append(&env, &chain, tenth(key)).await.expect("room");
        }
        chain.close().await.expect("no fault");
    });
    world.sim.fault_drive(drive, DriveFault::BitRot { offset: KEY_10 + 77, bit: 3 });
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let options = ChainOptions { tail_cache_bytes: 0, ..eager() };
        let (chain, _) = Chain::open(&env, open_drive(&env).await, None, options).await.expect("it opens");
        let cleaned = settle(&env, &chain).await.counters.segments_cleaned;
        assert!(matches!(chain.read(10).await, Err(ReadError::Damaged { key: 10, .. })));
        assert_eq!(chain.stats().damage.len(), 1, "{:?}", chain.stats().damage);
        let release = Batch { release: std::iter::once(10..11).collect(), ..Batch::default() };
        append(&env, &chain, release).await.expect("room");
        let stats = settle(&env, &chain).await;
        assert_eq!((stats.counters.segments_cleaned, stats.damage), (cleaned + 1, Vec::new()));
        assert_eq!(chain.read(10).await, Ok(None));
        assert!(chain.read(0).await.expect("it is well").is_some());
    });
}

#[test]
fn the_record_that_is_harmed_above_is_the_one_that_is_read() {
    // In a block that holds nothing live the harm is nobody's, and the segment is cleaned.
    let answers = read_after_harm(&eager(), KEY_10 + 2 * 4096);
    assert_eq!(answers, [Ok(true), Ok(true)]);
}

/// One segment is cleaned and the power is cut at once; then every block of what was written is harmed in turn. Returns whether
/// every record is still there, or named as damaged.
pub fn copies_are_vouched_for(options: &ChainOptions) -> bool {
    let is_named = |block: u64| {
        let world = World::new(25);
        let drive = world.sim.drive(MACHINE, "chain");
        let (env, set) = (world.sim.env(world.process), options.clone());
        world.sim.block_on(world.process, async move {
            let chain = create(&env, set).await;
            for key in 0..40 {
                let batch = Batch { release: Vec::new(), ..tenth(key) };
                append(&env, &chain, batch).await.expect("room");
            }
            let release = Batch { release: std::iter::once(1..10).collect(), ..Batch::default() };
            append(&env, &chain, release).await.expect("room");
            let stats = settle(&env, &chain).await;
            assert_eq!(stats.counters.segments_cleaned, 1, "{stats:?}");
        });
        world.sim.end(world.process, Death::PowerCut);
        world.sim.restart(world.process);
        let offset = (64 << 10) + block * 4096;
        world.sim.fault_drive(drive, DriveFault::BitRot { offset: offset + 30, bit: 2 });
        let (env, set) = (world.sim.env(world.process), options.clone());
        world.sim.block_on(world.process, async move {
            // The newest checkpoint may be what is lost: then the open says so.
            let opened = Chain::open(&env, open_drive(&env).await, None, set).await;
            let Ok((chain, _)) = opened else {
                return matches!(opened, Err(OpenError::CheckpointLost { .. }));
            };
            for key in (0..40).filter(|key| !(1..10).contains(key)) {
                if chain.read(key).await == Ok(None) {
                    return false;
                }
            }
            true
        })
    };
    (0..4 * 32).all(is_named)
}

#[test]
fn harm_to_fresh_copies_is_named_and_not_taken_for_a_torn_tail() {
    assert!(copies_are_vouched_for(&eager()));
}

#[test]
fn a_drive_is_not_removed_when_the_others_have_no_room_for_its_records() {
    within(27, async |env| {
        let drives = open_drives(&env, &THREE).await;
        let chain = Chain::create(&env, drives, identity(), tiny_drives()).await.expect("created");
        let mut keys = 0;
        while append(&env, &chain, Batch { release: Vec::new(), ..tenth(keys) }).await.is_ok() {
            keys += 1;
        }
        let refused = chain.remove_drive(chain.drive_ids()[0]).await;
        assert!(matches!(&refused, Err(ChangeError::NoRoom { .. })), "{refused:?}");
        for key in 0..keys {
            assert!(chain.read(key).await.expect("no damage").is_some(), "key {key}");
        }
    });
}
