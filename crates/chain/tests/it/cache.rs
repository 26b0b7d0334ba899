//! A cache drive under the memory of a chain: what it saves, and that nothing depends on it, whatever becomes of it.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{
    Batch, CacheDrive, CacheError, Chain, ChainId, ChainOptions, DumpOptions, Identity, Owner, Reads, dump,
};
use ithaca_env::drive::{Drive, OpenDrive};
use ithaca_env::sim::{Death, DriveFault, Random, Sim};
use ithaca_env::{Env, Time};

use crate::drives::append;
use crate::model::run_of;
use crate::owned::Map;
use crate::world::{
    MACHINE, Workload, World, check_everything, identity, open_drive, open_named, open_or_create,
    random_options, small_options,
};

const CACHE: &str = "cache";
const CACHE_BYTES: u64 = 4 << 20;
/// Where the data of the first line of a cache drive begins.
const FIRST_DATA: u64 = (64 << 10) + 4096;

/// Memory for a few records, and segments of which some are closed.
fn options() -> ChainOptions {
    ChainOptions { tail_cache_bytes: 32 << 10, capacity_bytes: 16 << 20, ..small_options() }
}

async fn open_cache(env: &Env) -> CacheDrive {
    let drive = open_named(env, CACHE).await;
    let cache = CacheDrive::open(env, drive.clone(), CACHE_BYTES).await;
    settle_writes(env, drive);
    cache.expect("a blank drive, or an earlier cache")
}

/// Makes what a cache writes stable every now and then, for as long as the process lives: bits rot there only.
fn settle_writes(env: &Env, drive: Drive) {
    let clock = env.clone();
    env.spawn(async move {
        while drive.sync().await.is_ok() {
            clock.sleep(Duration::from_micros(700)).await;
        }
    });
}

/// A chain with a cache, and records of 8 KiB with keys below `end`, all that is not in memory on the cache drive.
async fn filled(env: &Env, options: ChainOptions, end: u64) -> (Chain, CacheDrive) {
    let chain = Chain::create(env, open_drive(env).await, identity(), options).await.expect("created");
    let cache = open_cache(env).await;
    chain.use_cache(&cache);
    append(env, &chain, 0..end).await;
    env.sleep(Duration::from_millis(50)).await;
    (chain, cache)
}

async fn check_keys(chain: &Chain, keys: impl Iterator<Item = u64>) {
    for key in keys {
        let record = chain.read(key).await.expect("no damage on the chain's drive").expect("it is there");
        assert_eq!(record.data, vec![key as u8; 8192], "key {key}");
    }
}

fn sum(reads: &Reads) -> (u64, u64, u64) {
    let (tail, body) = (&reads.tail, &reads.body);
    (tail.memory + body.memory, tail.cache_drive + body.cache_drive, tail.missed + body.missed)
}

fn fault(sim: &Sim, fault: DriveFault) {
    let drive = sim.drive(MACHINE, CACHE);
    sim.fault_drive(drive, fault);
}

/// Runs `first`, does something to the world, and runs `then` with what `first` gave.
fn meddle<T: 'static>(
    first: impl AsyncFnOnce(Env) -> T + 'static,
    meddle: impl FnOnce(&Sim),
    then: impl AsyncFnOnce(Env, T) + 'static,
) {
    let world = World::new(5);
    let env = world.sim.env(world.process);
    let given = world.sim.block_on(world.process, async move { first(env).await });
    meddle(&world.sim);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move { then(env, given).await });
}

#[test]
fn recent_records_are_read_without_the_tail_drive() {
    // What left memory must not be read from the drive that the log is written to: neither its data nor its footers.
    let world = World::new(1);
    let env = world.sim.env(world.process);
    let before = world.sim.block_on(world.process, {
        let env = env.clone();
        async move { filled(&env, options(), 200).await }
    });
    let drive = world.sim.drive(MACHINE, "chain");
    let reads = world.sim.drive_stats(drive).reads.ops;
    world.sim.block_on(world.process, async move {
        let (chain, cache) = before;
        check_keys(&chain, 0..200).await;
        let (memory, cache_drive, missed) = sum(&chain.stats().reads);
        assert!(chain.stats().segments_closed > 5, "footers are needed");
        assert_eq!((memory + cache_drive, missed), (200, 0));
        assert!(cache_drive > 150, "{cache_drive} from the cache drive");
        let stats = cache.stats();
        assert!(stats.writes * 4 <= stats.lines_written, "lines are written in batches: {stats:?}");
    });
    assert_eq!(world.sim.drive_stats(drive).reads.ops, reads, "the tail drive was read");
}

#[test]
fn what_is_released_while_it_is_in_memory_is_never_written_to_the_cache_drive() {
    let world = World::new(2);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (chain, cache) = filled(&env, options(), 4).await;
        for key in 4..200 {
            append(&env, &chain, key..key + 1).await;
            let release = Batch { release: std::iter::once(key - 2..key).collect(), ..Batch::default() };
            let ticket = chain.append(release).expect("room");
            chain.wait(ticket).await.expect("no fault");
        }
        env.sleep(Duration::from_millis(50)).await;
        let held = cache.stats();
        assert!(held.lines_written * 15 < 60, "at most the first records and footers: {held:?}");
    });
}

/// A volume of 300 blocks of which 8 are written again and again between the others, with a cache; all that is not in memory is on
/// the cache drive. Gives what it wrote of each.
async fn overwritten(env: &Env) -> (Chain, CacheDrive, Rc<Map>, Vec<u64>) {
    let (map, drive) = (Rc::new(Map::default()), open_drive(env).await);
    let over = ChainOptions { tail_cache_bytes: 128 << 10, ..options() };
    let owner: Rc<dyn Owner> = Rc::clone(&map) as Rc<dyn Owner>;
    let chain = Chain::create_owned(env, drive, identity(), over, owner).await.expect("created");
    let cache = open_cache(env).await;
    chain.use_cache(&cache);
    let mut versions = vec![0; 300];
    for version in 1..=600 {
        let key = if version % 2 == 0 { version / 2 % 8 } else { version / 2 % 300 };
        versions[key as usize] = version;
        let run = run_of(key, version, &[Bytes::from(vec![version as u8; 4096])]);
        let ticket = chain.append(Batch { runs: vec![run], ..Batch::default() }).expect("room");
        chain.wait(ticket).await.expect("no fault");
    }
    env.sleep(Duration::from_millis(50)).await;
    (chain, cache, map, versions)
}

#[test]
fn what_is_written_again_while_it_is_in_memory_costs_the_cache_drive_one_write() {
    let world = World::new(11);
    let (env, drive) = (world.sim.env(world.process), world.sim.drive(MACHINE, "chain"));
    let filled = world.sim.block_on(world.process, async move { overwritten(&env).await });
    let reads = world.sim.drive_stats(drive).reads.ops;
    world.sim.block_on(world.process, async move {
        let (chain, cache, map, versions) = filled;
        for (key, version) in versions.into_iter().enumerate() {
            let place = map.place(key as u64).expect("it was written");
            let data = chain.read_at(place).await.expect("no damage");
            assert_eq!(data, vec![version as u8; 4096], "key {key}");
        }
        let (memory, cache_drive, missed) = sum(&chain.stats().reads);
        assert_eq!((memory + cache_drive, missed), (300, 0));
        let stats = cache.stats();
        let blocks = stats.lines_written * 15 + stats.waiting_bytes / 4096;
        let footers = chain.stats().counters.footer_bytes / 4096;
        assert!(
            cache_drive > 200 && blocks < 340 + footers,
            "{cache_drive} found of {blocks} that were written"
        );
    });
    assert_eq!(world.sim.drive_stats(drive).reads.ops, reads, "the tail drive was read");
}

/// Whether a flipped bit on the cache drive goes unnoticed by whoever reads.
pub fn is_flip_harmless(options: &ChainOptions) -> bool {
    let (options, harmless) = (options.clone(), Rc::new(Cell::new(true)));
    let is_harmless = Rc::clone(&harmless);
    meddle(
        async move |env| filled(&env, options, 200).await,
        |sim| fault(sim, DriveFault::BitRot { offset: FIRST_DATA + 77, bit: 3 }),
        async move |_, (chain, cache)| {
            for key in 0..200 {
                let right = chain
                    .read(key)
                    .await
                    .is_ok_and(|it| it.is_some_and(|it| it.data == vec![key as u8; 8192]));
                is_harmless.set(is_harmless.get() && right);
            }
            assert!(cache.stats().bad_lines == 1 || !is_harmless.get(), "{:?}", cache.stats());
            assert!(!cache.stats().is_dropped, "one bad line is no reason");
        },
    );
    harmless.get()
}

#[test]
fn a_flipped_bit_on_the_cache_drive_is_a_miss() {
    assert!(is_flip_harmless(&options()));
}

/// Whether records are right that lie where others lay in an earlier lap, which are still on the cache drive.
pub fn is_old_lap_a_miss(options: &ChainOptions) -> bool {
    let options = ChainOptions { capacity_bytes: 2 << 20, tail_cache_bytes: 0, ..options.clone() };
    let world = World::new(4);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (chain, _cache) = filled(&env, options, 0).await;
        let mut is_right = true;
        for round in 0..8 {
            let keys = round * 40..(round + 1) * 40;
            append(&env, &chain, keys.clone()).await;
            env.sleep(Duration::from_millis(50)).await;
            for key in keys.clone() {
                let read = chain.read(key).await;
                is_right &= read.is_ok_and(|it| it.is_some_and(|it| it.data == vec![key as u8; 8192]));
            }
            let release = Batch { release: std::iter::once(0..keys.end).collect(), ..Batch::default() };
            let ticket = chain.append(release).expect("room");
            chain.wait(ticket).await.expect("no fault");
        }
        assert!(chain.stats().counters.segments_closed > 2 * 15, "segments were used again");
        is_right
    })
}

#[test]
fn a_cached_block_of_an_earlier_lap_is_a_miss() {
    assert!(is_old_lap_a_miss(&options()));
}

#[test]
fn a_cache_drive_that_hangs_costs_a_second_once() {
    meddle(
        async move |env| filled(&env, options(), 200).await,
        |sim| fault(sim, DriveFault::Stuck { span: Duration::from_secs(3600) }),
        async move |env, (chain, cache)| {
            let before = env.now();
            check_keys(&chain, 0..200).await;
            let took = env.now().since(before);
            assert!((1000..1500).contains(&took.as_millis()), "{took:?}");
            assert!(cache.stats().is_dropped);
            append(&env, &chain, 200..300).await;
            check_keys(&chain, 0..300).await;
            chain.close().await.expect("a chain closes without its cache");
        },
    );
}

#[test]
fn a_cache_drive_that_is_gone_or_fails_a_write_is_used_no_more() {
    for harm in [DriveFault::Gone, DriveFault::FailWrites { count: 1 }] {
        meddle(
            async move |env| filled(&env, options(), 200).await,
            |sim| fault(sim, harm),
            async move |env, (chain, cache)| {
                append(&env, &chain, 200..450).await;
                env.sleep(Duration::from_millis(50)).await;
                assert!(cache.stats().is_dropped, "{harm:?}: {:?}", cache.stats());
                check_keys(&chain, 0..450).await;
            },
        );
    }
}

#[test]
fn a_few_failed_reads_are_misses_and_many_end_the_cache() {
    for (count, is_dropped) in [(3, false), (30, true)] {
        meddle(
            async move |env| filled(&env, options(), 200).await,
            |sim| fault(sim, DriveFault::FailReads { count }),
            async move |_, (chain, cache)| {
                check_keys(&chain, 0..200).await;
                assert_eq!(cache.stats().is_dropped, is_dropped, "{count} failed reads: {:?}", cache.stats());
            },
        );
    }
}

#[test]
fn two_chains_share_a_cache_drive_and_each_finds_its_own() {
    let world = World::new(7);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let cache = open_cache(&env).await;
        let mut chains = Vec::new();
        for (name, first) in [("chain", 0), ("other", 1000)] {
            let who = Identity { id: ChainId([first as u8; 16]), ..identity() };
            let drive = open_named(&env, name).await;
            let chain = Chain::create(&env, drive, who, options()).await.expect("created");
            chain.use_cache(&cache);
            append(&env, &chain, first..first + 150).await;
            chains.push((chain, first));
        }
        env.sleep(Duration::from_millis(50)).await;
        for (chain, first) in chains {
            check_keys(&chain, first..first + 150).await;
            let (_, cache_drive, missed) = sum(&chain.stats().reads);
            assert!(cache_drive > 120 && missed == 0, "{:?}", chain.stats().reads);
        }
    });
}

#[test]
fn the_body_is_cached_only_if_that_is_asked_for() {
    for body_cache in [false, true] {
        let world = World::new(8);
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let over = ChainOptions { body_cache, capacity_bytes: 2 << 20, ..options() };
            let drives = vec![open_named(&env, "chain").await, open_named(&env, "next").await];
            let chain = Chain::create(&env, drives, identity(), over).await.expect("created");
            append(&env, &chain, 0..200).await;
            assert!(!chain.stats().links[0].is_tail, "the log has moved on");
            let cache = open_cache(&env).await;
            chain.use_cache(&cache);
            for _ in 0..2 {
                check_keys(&chain, 0..120).await;
                env.sleep(Duration::from_millis(50)).await;
            }
            let body = chain.stats().reads.body;
            let expected = if body_cache { (120, 120) } else { (0, 240) };
            assert_eq!((body.cache_drive, body.missed), expected);
        });
    }
}

#[test]
fn a_dump_tells_what_each_line_of_a_cache_drive_holds() {
    meddle(
        async move |env| filled(&env, options(), 200).await,
        |sim| fault(sim, DriveFault::BitRot { offset: FIRST_DATA + 77, bit: 3 }),
        async move |env, (chain, cache)| {
            chain.close().await.expect("no fault");
            drop(cache);
            env.sleep(Duration::from_millis(5)).await;
            let mut lines = Vec::new();
            let open = OpenDrive { path: CACHE.into(), create_bytes: None, read_only: true };
            let drive = env.open_drive(open).await.expect("it is there");
            let all = DumpOptions { segment: None, groups: true, runs: true };
            dump(&drive, all, |line| lines.push(line)).await.expect("a cache drive");
            assert!(lines[0].starts_with("cache session=") && lines[0].ends_with(" lines=63"), "{lines:?}");
            assert_eq!(lines[1], "line 0 present blocks=15 good=14");
            let first = format!("  block chain={} segment=0 lap=1 offset=", identity().id);
            assert!(lines[2].starts_with(&first) && lines[2].ends_with(" harmed"), "{}", lines[2]);
            assert!(lines.iter().filter(|line| line.ends_with("present blocks=15 good=15")).count() > 10);
        },
    );
}

#[test]
fn a_drive_with_something_else_on_it_is_left_alone() {
    let world = World::new(9);
    let env = world.sim.env(world.process);
    let drive = world.sim.drive(MACHINE, "chain");
    world.sim.block_on(world.process, {
        let env = env.clone();
        async move {
            let (chain, _cache) = filled(&env, options(), 10).await;
            chain.close().await.expect("no fault");
        }
    });
    let before = world.sim.peek_drive(drive, 0, 64 << 10);
    world.sim.block_on(world.process, async move {
        let refused = CacheDrive::open(&env, open_drive(&env).await, CACHE_BYTES).await.err();
        assert_eq!(refused, Some(CacheError::NotACache { drive: "chain".into() }));
    });
    assert_eq!(world.sim.peek_drive(drive, 0, 64 << 10), before);
}

/// A random fault of a cache drive.
fn some_fault(rng: &mut Random) -> DriveFault {
    let offset = rng.below(CACHE_BYTES);
    match rng.below(9) {
        0 | 1 => DriveFault::BitRot { offset, bit: rng.below(8) as u8 },
        2 => DriveFault::Unreadable { offset },
        3 => DriveFault::LoseWrites { count: 1 + rng.below(4) as u32 },
        4 => DriveFault::MisdirectWrites { count: 1 + rng.below(4) as u32 },
        5 => DriveFault::FailReads { count: 1 },
        6 => DriveFault::Slow { percent: 3000, span: Duration::from_millis(3) },
        7 => DriveFault::Stuck { span: Duration::from_millis(rng.pick(&[1, 2, 2000])) },
        _ => rng.pick(&[
            DriveFault::FailWrites { count: 1 },
            DriveFault::Gone,
            DriveFault::NoSpace { count: 1 },
        ]),
    }
}

/// Lives of a chain with a cache to which anything may happen at any time: every read is right, and all are answered.
pub fn lives(seed: u64, change: impl Fn(&mut ChainOptions)) -> u64 {
    let mut rng = Random::new(seed);
    let world = World::new(seed);
    let mut hits = 0;
    for life in 0..3 {
        let mut options = ChainOptions { body_cache: rng.below(2) == 0, ..random_options(&mut rng) };
        options.tail_cache_bytes = rng.pick(&[0, 0, 16 << 10]);
        change(&mut options);
        let workload = Workload {
            rng: rng.clone(),
            steps: 60,
            close: life == 1,
            heavy: rng.below(2) == 0,
            sparse: false,
        };
        if !world.sim.is_up(world.process) {
            world.sim.restart(world.process);
        }
        if rng.below(3) == 0 {
            fault(&world.sim, DriveFault::Replace);
        }
        let (env, model) = (world.sim.env(world.process), Rc::clone(&world.model));
        let done = Rc::new(Cell::new(None));
        let over = Rc::clone(&done);
        env.clone().spawn(async move {
            let chain = open_or_create(&env, &["chain"], options, &model).await;
            let open = OpenDrive { path: CACHE.into(), create_bytes: Some(64 << 10), read_only: false };
            if let Ok(drive) = env.open_drive(open).await
                && let Ok(cache) = CacheDrive::open(&env, drive.clone(), CACHE_BYTES).await
            {
                settle_writes(&env, drive);
                chain.use_cache(&cache);
            }
            check_everything(&chain, &model).await;
            check_everything(&chain, &model).await;
            workload.work(env, chain.clone(), model).await;
            over.set(Some(sum(&chain.stats().reads).1));
        });
        let mut until = world.sim.now();
        while done.get().is_none() {
            until = until + Duration::from_micros(rng.below(3000));
            let seen = Rc::clone(&done);
            let ran = world.sim.run_while(until, move |_| seen.get().is_none());
            if ran.is_err() && rng.below(2) == 0 {
                fault(&world.sim, some_fault(&mut rng));
            }
            assert!(until < Time(3_600_000_000_000), "it ends");
        }
        hits += done.get().unwrap_or(0);
        world.sim.end(world.process, Death::PowerCut);
    }
    world.audit(&small_options());
    hits
}

#[test]
fn whatever_becomes_of_the_cache_drive_every_read_is_right() {
    let hits: u64 = (1..=60).map(|seed| lives(seed, |_| ())).sum();
    assert!(hits > 1000, "only {hits} reads were answered by the cache drive");
}

#[test]
fn records_that_share_blocks_and_lines_are_found_in_them() {
    // Packed records of odd lengths: several runs to a block, runs over several lines.
    let world = World::new(10);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (chain, _cache) = filled(&env, ChainOptions { tail_cache_bytes: 0, ..options() }, 0).await;
        let data = |key: u64| Bytes::from(vec![key as u8; [100, 5000, 700, 20_001][key as usize % 4]]);
        for key in 0..120 {
            let batch = Batch { runs: vec![run_of(key, key, &[data(key)])], ..Batch::default() };
            let ticket = chain.append(batch).expect("room");
            chain.wait(ticket).await.expect("no fault");
        }
        env.sleep(Duration::from_millis(50)).await;
        let runs = chain.read_runs(0, 120, usize::MAX).await.expect("no damage");
        let read: Vec<Bytes> =
            runs.iter().flat_map(|run| run.keys().map(|key| run.slice(key..key + 1).data)).collect();
        assert_eq!(read, (0..120).map(data).collect::<Vec<_>>());
        let (_, cache_drive, missed) = sum(&chain.stats().reads);
        assert!(cache_drive > 100 && missed == 0, "{cache_drive} and {missed}");
    });
}
