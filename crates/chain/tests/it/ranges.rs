//! Several ranges of keys read by one plan: across segments, with holes, released keys and lost ones, whatever is cached.

use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_chain::limits::FOUND_RUN_BYTES;
use ithaca_chain::{Chain, ChainOptions, ReadError, Reading, RunView};
use ithaca_env::sim::{DriveFault, Random};

use crate::drives::append;
use crate::model::View;
use crate::world::{MACHINE, Workload, World, identity, open_drive, small_options};

/// A key, its version and its data.
type Seen = Vec<(u64, u64, Bytes)>;

/// A chain of many segments, some recycled and some reopened, that was closed cleanly; and what it holds.
fn closed_world(options: &ChainOptions, heavy: bool) -> (World, View) {
    let lives =
        [3, 4].map(|seed| Workload { rng: Random::new(seed), steps: 120, close: true, heavy, sparse: false });
    World::new(21).after_lives(options, lives)
}

fn held(view: &View, keys: Range<u64>) -> Seen {
    if keys.is_empty() {
        return Seen::new();
    }
    view.records.range(keys).map(|(&key, (version, _, data))| (key, *version, data.clone())).collect()
}

fn add(seen: &mut Seen, run: &RunView<'_>) {
    let mut rest = run.data.clone();
    for (key, entry) in run.keys().zip(run.table.chunks_exact(8)) {
        let len = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]) as usize;
        seen.push((key, run.version, rest.split_to(len)));
    }
}

/// Some ranges: in no order, overlapping, of one key, empty, past the end.
fn some_ranges(rng: &mut Random, end: u64) -> Vec<Range<u64>> {
    let range = |rng: &mut Random| {
        let start = rng.below(end + 20);
        start..start + rng.pick(&[0, 1, 1, 1, 3, 40, 400])
    };
    (0..1 + rng.below(12)).map(|_| range(rng)).collect()
}

/// Compares what was read with what the chain holds: nothing is left out below where each range ends.
fn compare(view: &View, ranges: &[Range<u64>], limit_bytes: usize, reading: &Reading) {
    let (mut from, mut taken_bytes) = (0, 0);
    for (nth, (range, end)) in ranges.iter().zip(&reading.ends).enumerate() {
        let mut seen = Seen::new();
        for run in &reading.runs[from..end.runs] {
            assert_eq!(run.table.first_mismatch(&run.data), None);
            taken_bytes += run.data.len() + run.table.as_bytes().len();
            add(&mut seen, &run.view());
        }
        from = end.runs;
        assert_eq!(seen, held(view, range.start..end.next), "{range:?} of {ranges:?}");
        let is_cut = end.next < range.end;
        assert!(!is_cut || nth + 1 == reading.ends.len(), "only the last range is cut off");
    }
    assert_eq!(from, reading.runs.len(), "every run belongs to a range");
    let is_whole = reading.ends.len() == ranges.len()
        && reading.ends.iter().zip(ranges).all(|(end, range)| end.next >= range.end);
    assert!(is_whole || limit_bytes < usize::MAX, "only a limit leaves something out");
    let is_least = reading.runs.len() == 1 && reading.runs[0].count() == 1;
    assert!(taken_bytes <= limit_bytes || is_least, "{taken_bytes} bytes, {limit_bytes} asked for");
    let holds_some = ranges.iter().any(|range| !held(view, range.clone()).is_empty());
    assert!(!holds_some || !reading.runs.is_empty(), "at least one record");
}

async fn read_at_random(chain: &Chain, view: &View, rng: &mut Random) -> (usize, usize) {
    let end = view.covered().last().expect("it holds something") + 1;
    let (mut read, mut cached) = (0, 0);
    for _ in 0..300 {
        let ranges = some_ranges(rng, end);
        let limit_bytes = rng.pick(&[1, 3000, 20_000, usize::MAX]);
        let reading = chain.read_ranges(ranges.clone(), limit_bytes).await.expect("no damage");
        compare(view, &ranges, limit_bytes, &reading);
        read += reading.runs.len();
        for range in ranges {
            let mut seen = Seen::new();
            let shown = chain.try_visit_cached(range.clone(), limit_bytes, |run| add(&mut seen, &run));
            if let Some(next) = shown {
                assert_eq!(seen, held(view, range.start..next));
                assert!(next >= range.end || limit_bytes < usize::MAX);
                cached += seen.len();
            }
        }
    }
    (read, cached)
}

#[test]
fn ranges_in_any_order_are_read_together_whatever_is_cached() {
    for (tail_cache_bytes, index_cache_bytes) in
        [(0, 0), (0, 16 << 10), (64 << 10, 1 << 20), (8 << 20, 1 << 20)]
    {
        let options = ChainOptions { tail_cache_bytes, index_cache_bytes, ..small_options() };
        let (world, view) = closed_world(&options, tail_cache_bytes == 0);
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let drive = open_drive(&env).await;
            let (chain, _) = Chain::open(&env, drive, Some(&identity()), options).await.expect("it opens");
            let (read, _) = read_at_random(&chain, &view, &mut Random::new(9)).await;
            assert!(read > 300, "only {read} runs");
        });
    }
}

#[test]
fn a_read_tells_what_it_would_hold_and_reads_no_data_without_leave() {
    // Whoever bounds the memory of reads by what it is told would be wrong about it.
    let options = ChainOptions { tail_cache_bytes: 0, index_cache_bytes: 1 << 20, ..small_options() };
    let (world, view) = closed_world(&options, true);
    let env = world.sim.env(world.process);
    let drive = world.sim.drive(MACHINE, "chain");
    let end = view.covered().last().expect("it holds something") + 1;
    let read = |chain: &Rc<Chain>, has_leave: bool| {
        let (chain, before) = (Rc::clone(chain), world.sim.drive_stats(drive).reads.bytes);
        let (reading, told) = world.sim.block_on(world.process, async move {
            let mut told = 0;
            let may_hold = |bytes| {
                told = bytes;
                has_leave
            };
            let reading =
                chain.read_ranges_if(&[0..end / 2, end / 2..end], 1 << 20, usize::MAX, may_hold).await;
            (reading.expect("no damage"), told)
        });
        (reading, told as u64, world.sim.drive_stats(drive).reads.bytes - before)
    };
    let chain = world.sim.block_on(world.process, async move {
        let drive = open_drive(&env).await;
        Rc::new(Chain::open(&env, drive, Some(&identity()), options).await.expect("it opens").0)
    });
    // Parts of footers are read for it, and stay in memory.
    let (refused, expected, _) = read(&chain, false);
    assert_eq!(refused, None);
    let (refused, told, bytes) = read(&chain, false);
    assert_eq!((refused, told, bytes), (None, expected, 0));
    let (reading, told, bytes) = read(&chain, true);
    let runs = reading.expect("it has leave").runs.len();
    assert_eq!(told, bytes + (runs * FOUND_RUN_BYTES) as u64);
    assert!(told == expected && bytes > 20_000, "{bytes} bytes");
}

#[test]
fn a_read_ends_with_as_many_runs_as_are_wanted_and_says_how_far_it_came() {
    // A run takes a block of the drive at least: a bound of the records' bytes alone bounds nothing where they are small.
    const RUNS_MAX: usize = 7;
    const KEYS: u64 = 100;
    let world = World::new(23);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let drive = open_drive(&env).await;
        let chain = Chain::create(&env, drive, identity(), small_options()).await.expect("created");
        append(&env, &chain, 0..KEYS).await;
        let all = chain.read_runs(0, KEYS, usize::MAX).await.expect("no damage");
        assert_eq!(all.len(), KEYS as usize);
        let (mut read, mut next) = (Vec::new(), 0);
        while next < KEYS {
            let ranges = [next..KEYS, 0..KEYS];
            let reading = chain.read_ranges_if(&ranges, usize::MAX, RUNS_MAX, |_| true).await;
            let reading = reading.expect("no damage").expect("it has leave");
            assert!(reading.runs.len() <= RUNS_MAX);
            assert!(reading.ends[0].next > next, "it gets on");
            next = reading.ends[0].next;
            read.extend(reading.runs.into_iter().take(reading.ends[0].runs));
        }
        assert_eq!(read, all);
    });
}

#[test]
fn what_was_just_written_is_shown_from_memory_in_segments_old_and_new() {
    // Large caches and no restart: every key is found without the drive, in open segments and in closed ones.
    let options = ChainOptions { tail_cache_bytes: 8 << 20, ..small_options() };
    let world = World::new(22);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let chain =
            Chain::create(&env, open_drive(&env).await, identity(), options).await.expect("it is created");
        let mut model = crate::model::Model::default();
        let mut workload =
            Workload { rng: Random::new(7), steps: 0, close: false, heavy: true, sparse: false };
        for _ in 0..150 {
            let batch = workload.batch(&mut model);
            if let Ok(ticket) = chain.append(batch.clone()) {
                model.since.push(batch);
                chain.wait(ticket).await.expect("no fault");
            }
        }
        assert!(chain.stats().segments_closed > 1);
        let view = model.view(model.since.len());
        let (read, cached) = read_at_random(&chain, &view, &mut Random::new(10)).await;
        assert!(read > 1000 && cached > 1000, "{read} runs, {cached} from memory");
    });
}

#[test]
fn one_harmed_record_is_named_and_does_not_hide_in_a_reading_of_many() {
    let options = ChainOptions { tail_cache_bytes: 0, ..small_options() };
    let (world, view) = closed_world(&options, true);
    let drive = world.sim.drive(MACHINE, "chain");
    let size = world.sim.drive_size_bytes(drive).expect("it is there");
    // A record of whole blocks has its data in blocks of its own: one that begins as the record does is the one.
    let is_block = |data: &Bytes| data.len() == 4096;
    let (&harmed, (_, _, data)) =
        view.records.iter().find(|(_, (_, _, data))| is_block(data)).expect("there are large ones");
    let block =
        (0..size / 4096).find(|block| world.sim.peek_drive(drive, block * 4096, 4096)[..] == data[..]);
    let offset = block.expect("it is on the drive") * 4096 + 100;
    world.sim.fault_drive(drive, DriveFault::BitRot { offset, bit: 3 });
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let drive = open_drive(&env).await;
        let (chain, _) = Chain::open(&env, drive, None, options).await.expect("it opens");
        let around: Vec<Range<u64>> =
            view.records.keys().filter(|key| **key != harmed).map(|&key| key..key + 1).collect();
        let reading = chain.read_ranges(around.clone(), usize::MAX).await.expect("the others are well");
        compare(&view, &around, usize::MAX, &reading);
        for place in [0, around.len() / 2, around.len()] {
            let mut ranges = around.clone();
            ranges.insert(place, harmed..harmed + 1);
            match chain.read_ranges(ranges, usize::MAX).await {
                Err(ReadError::Damaged { key, .. }) => assert_eq!(key, harmed),
                other => panic!("the harm to key {harmed} went unnoticed: {other:?}"),
            }
        }
    });
}
