//! A metadata drive beside a chain: an open reads the footers there, and nothing depends on it, whatever becomes of it.

use std::rc::Rc;
use std::time::Duration;

use ithaca_chain::{
    Chain, ChainId, ChainOptions, Drives, DumpOptions, Identity, MetadataDrive, MetadataError, Owner, dump,
};
use ithaca_env::Env;
use ithaca_env::drive::OpenDrive;
use ithaca_env::sim::{Death, DriveFault, DriveStats, Random, Sim};

use crate::cleaning::{eager, in_body};
use crate::drives::append;
use crate::mirrors::{A, B};
use crate::owned::{self, Map};
use crate::world::{
    MACHINE, Workload, World, identity, open_drive, open_metadata, open_named, random_options, small_options,
};

const METADATA: &str = "metadata";
/// Where the footer in the first entry begins.
const FIRST_FOOTER: u64 = (64 << 10) + 8192;

fn options() -> ChainOptions {
    ChainOptions { capacity_bytes: 16 << 20, ..small_options() }
}

async fn drives(env: &Env, metadata: &MetadataDrive) -> Drives {
    Drives::from(open_drive(env).await).with_metadata(Some(metadata))
}

async fn open(env: &Env) -> MetadataDrive {
    open_metadata(env, Some(METADATA)).await.expect("it can be used")
}

/// A chain of records of 8 KiB with keys below `end`, all its closed segments mirrored; closed again.
async fn fill(env: &Env, end: u64) {
    let metadata = open(env).await;
    let drives = drives(env, &metadata).await;
    let chain = Chain::create(env, drives, identity(), options()).await.expect("created");
    append(env, &chain, 0..end).await;
    settle(env, &chain, &metadata).await;
    chain.close().await.expect("no fault");
}

/// Waits until every closed segment has an entry.
async fn settle(env: &Env, chain: &Chain, metadata: &MetadataDrive) {
    // The last one but one may still be being closed.
    env.sleep(Duration::from_secs(1)).await;
    for _ in 0..2000 {
        env.sleep(Duration::from_micros(500)).await;
        if metadata.stats().held_slots == chain.stats().segments_closed {
            return;
        }
    }
    panic!("{:?} for {} segments", metadata.stats(), chain.stats().segments_closed);
}

async fn check_keys(chain: &Chain, end: u64) {
    for key in 0..end {
        let record = chain.read(key).await.expect("no damage").expect("it is there");
        assert_eq!(record.data, vec![key as u8; 8192], "key {key}");
    }
    assert_eq!(chain.stats().damage, []);
}

fn fault(sim: &Sim, fault: DriveFault) {
    let drive = sim.drive(MACHINE, METADATA);
    sim.fault_drive(drive, fault);
}

/// Runs `life` in a process that is started for it and killed behind it; gives what the chain's drive did meanwhile.
fn live<T: 'static>(world: &World, life: impl AsyncFnOnce(Env) -> T + 'static) -> (T, DriveStats) {
    if !world.sim.is_up(world.process) {
        world.sim.restart(world.process);
    }
    let drive = world.sim.drive(MACHINE, "chain");
    let before = world.sim.drive_stats(drive);
    let env = world.sim.env(world.process);
    let given = world.sim.block_on(world.process, async move { life(env).await });
    let did = world.sim.drive_stats(drive).since(&before);
    world.sim.end(world.process, Death::PowerCut);
    (given, did)
}

/// Opens the chain of [`fill`] and gives how many blocks of the metadata drive that took.
async fn reopen(env: Env, end: u64) -> u64 {
    let metadata = open(&env).await;
    let before = metadata.stats().bytes_read;
    let drives = drives(&env, &metadata).await;
    let (chain, recovered) = Chain::open(&env, drives, None, options()).await.expect("it opens");
    let read = metadata.stats().bytes_read - before;
    assert_eq!((recovered.damage.len(), recovered.highest_key), (0, Some(end - 1)));
    check_keys(&chain, end).await;
    settle(&env, &chain, &metadata).await;
    read / 4096
}

#[test]
fn an_open_reads_of_closed_segments_nothing_but_their_headers() {
    let world = World::new(1);
    live(&world, async |env| fill(&env, 200).await);
    let without = live(&world, async |env| {
        let opened = Chain::open(&env, open_drive(&env).await, None, options()).await;
        opened.expect("it opens").0.stats().segments_closed
    });
    let with = live(&world, async |env| {
        let metadata = open(&env).await;
        let drives = drives(&env, &metadata).await;
        let (chain, _) = Chain::open(&env, drives, None, options()).await.expect("it opens");
        assert_eq!(metadata.stats().entries_written, 0, "all are there");
        chain.stats().segments_closed
    });
    let (closed, saved) = (with.0, without.1.reads.bytes - with.1.reads.bytes);
    assert!(closed > 10 && without.0 == closed);
    assert_eq!(saved, closed * 2 * 4096, "first group and trailer of each");
}

#[test]
fn an_owner_is_told_of_its_records_from_the_metadata_drive() {
    let world = World::new(2);
    let filled = live(&world, async |env| {
        let (map, metadata) = (Rc::new(Map::default()), open(&env).await);
        let owner = Rc::clone(&map) as Rc<dyn Owner>;
        let drives = drives(&env, &metadata).await;
        let chain = Chain::create_owned(&env, drives, identity(), options(), owner).await.expect("created");
        append(&env, &chain, 0..200).await;
        settle(&env, &chain, &metadata).await;
        (0..200).map(|key| map.place(key)).collect::<Vec<_>>()
    });
    let tell = |with: bool| {
        live(&world, async move |env| {
            let (map, metadata) = (Rc::new(Map::default()), open(&env).await);
            let owner = Rc::clone(&map) as Rc<dyn Owner>;
            let drives = Drives::from(open_drive(&env).await).with_metadata(Some(&metadata).filter(|_| with));
            let opened = Chain::open_owned(&env, drives, None, options(), owner).await;
            let closed = opened.expect("it opens").0.stats().segments_closed;
            ((0..200).map(|key| map.place(key)).collect::<Vec<_>>(), closed)
        })
    };
    let ((without, _), read_without) = tell(false);
    let ((with, closed), read_with) = tell(true);
    assert!(closed > 10 && with.iter().all(Option::is_some));
    assert_eq!((&with, &without), (&filled.0, &filled.0));
    let saved = read_without.reads.bytes - read_with.reads.bytes;
    assert_eq!(saved, closed * 4 * 4096, "first group, trailer, directory and page of each");
}

#[test]
fn a_metadata_drive_that_is_lost_is_written_anew() {
    let world = World::new(3);
    live(&world, async |env| fill(&env, 200).await);
    fault(&world.sim, DriveFault::Replace);
    let (before, _) = live(&world, async |env| reopen(env, 200).await);
    let (after, _) = live(&world, async |env| reopen(env, 200).await);
    assert!(before == 0 && after > 20, "{before} and then {after} blocks were read");
}

#[test]
fn an_entry_that_is_harmed_is_read_from_the_chain() {
    // Head, footer and header; both copies of the latter, so that the drive begins anew.
    for (offset, bit) in [(64 << 10, 3), (FIRST_FOOTER + 100, 1), (FIRST_FOOTER + 4096, 1), (20, 0)] {
        let world = World::new(4);
        live(&world, async |env| fill(&env, 200).await);
        fault(&world.sim, DriveFault::BitRot { offset, bit });
        if offset == 20 {
            fault(&world.sim, DriveFault::BitRot { offset: (32 << 10) + 20, bit });
        }
        live(&world, async |env| reopen(env, 200).await);
        live(&world, async |env| reopen(env, 200).await);
    }
}

/// Whether a metadata drive that missed a life of its chain does no harm: segments that it knows as closed were used again.
pub fn is_stale_drive_harmless(options: &ChainOptions) -> bool {
    let options = ChainOptions { capacity_bytes: 2 << 20, ..options.clone() };
    let mut world = World::new(5);
    let work =
        |seed| Workload { rng: Random::new(seed), steps: 120, close: true, heavy: true, sparse: false };
    for (seed, metadata) in [(1, Some(METADATA)), (2, None)] {
        world.metadata = metadata;
        assert!(world.live(&options, work(seed)));
        world.sim.end(world.process, Death::PowerCut);
    }
    world.metadata = Some(METADATA);
    let audit = || world.audit(&options);
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(audit)).is_ok()
}

#[test]
fn a_metadata_drive_that_missed_something_is_not_believed() {
    assert!(is_stale_drive_harmless(&small_options()));
}

#[test]
fn a_chain_that_was_made_anew_is_not_taken_for_the_one_before() {
    // The same identity, the same laps; only the drive is another one.
    let world = World::new(6);
    live(&world, async |env| fill(&env, 200).await);
    let drive = world.sim.drive(MACHINE, "chain");
    world.sim.fault_drive(drive, DriveFault::Replace);
    live(&world, async |env| {
        let chain = Chain::create(&env, open_drive(&env).await, identity(), options()).await.expect("blank");
        append(&env, &chain, 0..150).await;
        chain.close().await.expect("no fault");
    });
    live(&world, async |env| reopen(env, 150).await);
    live(&world, async |env| reopen(env, 150).await);
}

#[test]
fn several_chains_share_a_metadata_drive() {
    let world = World::new(7);
    let ids = [[1; 16], [2; 16], [3; 16]].map(ChainId);
    let names = ["one", "two", "three"];
    live(&world, async move |env| {
        let metadata = open(&env).await;
        let mut chains = Vec::new();
        for (id, name) in ids.into_iter().zip(names) {
            let drives = Drives::from(open_named(&env, name).await).with_metadata(Some(&metadata));
            let identity = Identity { id, ..identity() };
            chains.push(Chain::create(&env, drives, identity, options()).await.expect("created"));
        }
        for first in (0..120).step_by(10) {
            for chain in &chains {
                append(&env, chain, first..first + 10).await;
            }
        }
        let closed = || chains.iter().map(|chain| chain.stats().segments_closed).sum::<u64>();
        for _ in 0..200 {
            env.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(metadata.stats().held_slots, closed());
    });
    live(&world, async move |env| {
        let metadata = open(&env).await;
        let mut closed = 0;
        for name in names {
            let before = metadata.stats().bytes_read;
            let drives = Drives::from(open_named(&env, name).await).with_metadata(Some(&metadata));
            let (chain, _) = Chain::open(&env, drives, None, options()).await.expect("it opens");
            check_keys(&chain, 120).await;
            assert!(metadata.stats().bytes_read > before);
            closed += chain.stats().segments_closed;
        }
        assert_eq!((metadata.stats().held_slots, metadata.stats().entries_written), (closed, 0));
    });
}

#[test]
fn a_drive_with_something_else_on_it_is_left_alone() {
    let world = World::new(8);
    live(&world, async |env| fill(&env, 10).await);
    let drive = world.sim.drive(MACHINE, "chain");
    let before = world.sim.peek_drive(drive, 0, 64 << 10);
    live(&world, async |env| {
        let refused = MetadataDrive::open(&env, open_drive(&env).await).await.err();
        assert_eq!(refused, Some(MetadataError::NotMetadata { drive: "chain".into() }));
    });
    assert_eq!(world.sim.peek_drive(drive, 0, 64 << 10), before);
}

#[test]
fn a_dump_tells_what_a_metadata_drive_holds() {
    let world = World::new(9);
    live(&world, async |env| fill(&env, 200).await);
    fault(&world.sim, DriveFault::BitRot { offset: FIRST_FOOTER + 100, bit: 1 });
    live(&world, async |env| {
        let open = OpenDrive { path: METADATA.into(), create_bytes: None, read_only: true };
        let drive = env.open_drive(open).await.expect("it is there");
        let mut lines = Vec::new();
        dump(&drive, DumpOptions::default(), |line| lines.push(line)).await.expect("a metadata drive");
        assert!(lines[0].starts_with("metadata id="), "{lines:?}");
        let first = format!("entry slot=0 slots=1 chain={} segment=0 lap=1 ", identity().id);
        assert!(lines[1].starts_with(&first) && lines[1].ends_with(" HARMED"), "{}", lines[1]);
        assert!(lines.len() > 10 && lines[2..].iter().all(|line| line.ends_with(" whole")), "{lines:?}");
    });
}

/// Two lives of a chain with a metadata drive in which segments are recycled; the second is cut off. Then the chain is looked at with
/// the drive and without.
pub fn cut_at(point: u64, drives: &[&'static str], options: &ChainOptions) -> bool {
    let mut world = World::over(3, drives);
    world.metadata = Some(METADATA);
    let work =
        |seed| Workload { rng: Random::new(seed), steps: 60, close: false, heavy: true, sparse: seed == 2 };
    assert!(world.live(options, work(1)));
    world.sim.end(world.process, Death::PowerCut);
    world.sim.restart(world.process);
    world.sim.end_at_io(world.process, world.sim.io_points(world.process) + point, Death::PowerCut);
    let survived = world.live(options, work(2));
    world.sim.end(world.process, Death::PowerCut);
    world.audit(options);
    world.metadata = None;
    world.audit(options);
    survived
}

#[test]
fn nothing_acknowledged_is_lost_wherever_the_power_is_cut() {
    // An entry before its segment is closed, one that outlives its segment.
    for options in [small_options(), eager(), in_body()] {
        let mut points = 0;
        while !cut_at(points + 1, &["chain"], &options) {
            points += 5;
        }
        assert!(points > 100, "only {points} I/O points: the workload is too small to mean something");
    }
}

#[test]
fn many_lives_of_overwritten_blocks_keep_every_promise() {
    let mut acked = 0;
    for seed in 0..30 {
        let options = if seed % 2 == 0 { eager() } else { in_body() };
        let options = ChainOptions { capacity_bytes: 2 << 20, ..options };
        acked += owned::lives_with(seed, &options, Some(METADATA)).0;
    }
    assert!(acked > 3000, "only {acked} batches were acknowledged");
}

#[test]
fn a_mirrored_link_is_mirrored_once_and_found_by_each_side() {
    let mut world = World::over(4, &[A, B]);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let sides = vec![vec![open_named(&env, A).await, open_named(&env, B).await]];
        let chain = Chain::create(&env, sides, identity(), small_options()).await.expect("created");
        chain.close().await.expect("no fault");
    });
    let work =
        |seed| Workload { rng: Random::new(seed), steps: 80, close: false, heavy: true, sparse: false };
    world.metadata = Some(METADATA);
    for seed in 0..3 {
        assert!(world.live(&small_options(), work(seed)));
        world.sim.end(world.process, Death::PowerCut);
    }
    for alone in [vec![A, B], vec![B]] {
        world.drives = alone;
        world.audit(&small_options());
    }
}

/// A random fault of a metadata drive.
fn some_fault(rng: &mut Random) -> DriveFault {
    let offset = rng.below(2 << 20);
    match rng.below(8) {
        0 | 1 => DriveFault::BitRot { offset, bit: rng.below(8) as u8 },
        2 => DriveFault::Unreadable { offset },
        3 => DriveFault::LoseWrites { count: 1 + rng.below(4) as u32 },
        4 => DriveFault::MisdirectWrites { count: 1 + rng.below(4) as u32 },
        5 => DriveFault::Stuck { span: Duration::from_millis(rng.pick(&[1, 2, 9000])) },
        6 => DriveFault::FailReads { count: 1 },
        _ => rng.pick(&[
            DriveFault::FailWrites { count: 1 },
            DriveFault::FailSyncs { count: 1 },
            DriveFault::Gone,
            DriveFault::Replace,
            DriveFault::NoSpace { count: 1 },
        ]),
    }
}

/// Lives of a chain with a metadata drive to which anything may happen, and which some do without.
pub fn lives(seed: u64, change: impl Fn(&mut ChainOptions)) {
    let mut rng = Random::new(seed);
    let mut world = World::new(seed);
    let mut options = random_options(&mut rng);
    for life in 0..4 {
        change(&mut options);
        world.metadata = (rng.below(4) != 0).then_some(METADATA);
        let work = Workload {
            rng: rng.clone(),
            steps: 80,
            close: life == 1,
            heavy: rng.below(2) == 0,
            sparse: rng.below(4) == 0,
        };
        let faults: Vec<DriveFault> = (0..rng.below(3)).map(|_| some_fault(&mut rng)).collect();
        let at = world.sim.now() + Duration::from_micros(rng.below(20_000));
        world.sim.at(at, move |sim| faults.into_iter().for_each(|it| fault(sim, it)));
        let death = rng.pick(&[Death::PowerCut, Death::Kill]);
        let point = world.sim.io_points(world.process) + 1 + rng.below(900);
        world.sim.end_at_io(world.process, point, death);
        world.live(&options, work);
        world.sim.end(world.process, death);
        options = ChainOptions { segment_bytes: options.segment_bytes, ..random_options(&mut rng) };
    }
    change(&mut options);
    world.audit(&options);
    world.metadata = None;
    world.audit(&options);
}

#[test]
fn whatever_becomes_of_the_metadata_drive_nothing_is_lost() {
    (1..=80).for_each(|seed| lives(seed, |_| ()));
}
