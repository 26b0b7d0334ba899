//! Several drives: where the log goes on, crashes at every I/O point, sets of drives that are refused.

use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{
    AppendError, Batch, Chain, ChainId, ChainOptions, Cleaning, Identity, OpenError, Placement, check,
};
use ithaca_env::Env;
use ithaca_env::drive::{Drive, Durability, OpenDrive};
use ithaca_env::sim::{Death, Random};

use crate::model::run_of;
use crate::world::{
    MACHINE, Workload, World, check_everything, identity, open_drives, open_named, small_options,
};

pub const THREE: [&str; 3] = ["chain", "chain-b", "chain-c"];

/// Drives of four small segments, so that the log goes round all of them all the time.
pub fn tiny_drives() -> ChainOptions {
    let segment_bytes = 128 << 10;
    ChainOptions {
        segment_bytes,
        capacity_bytes: (64 << 10) + 4 * segment_bytes,
        grow_bytes: segment_bytes,
        reserve_segments: 1,
        ..small_options()
    }
}

fn data(key: u64, bytes: usize) -> Batch {
    Batch { runs: vec![run_of(key, key, &[Bytes::from(vec![key as u8; bytes])])], ..Batch::default() }
}

/// Appends records of 8 KiB with these keys.
pub async fn append(env: &Env, chain: &Chain, keys: std::ops::Range<u64>) {
    for key in keys {
        put(env, chain, || data(key, 8192)).await;
    }
}

/// Appends a batch as soon as it is taken.
pub async fn put(env: &Env, chain: &Chain, batch: impl Fn() -> Batch) {
    let ticket = loop {
        match chain.append(batch()) {
            Err(AppendError::Overloaded { .. }) => env.sleep(Duration::from_micros(200)).await,
            appended => break appended.expect("room"),
        }
    };
    chain.wait(ticket).await.expect("no fault");
}

pub fn within(seed: u64, test: impl AsyncFnOnce(Env) + 'static) {
    let world = World::new(seed);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move { test(env).await });
}

pub async fn create_sized(env: &Env, name: &str, bytes: u64) -> Drive {
    let open = OpenDrive { path: name.into(), create_bytes: Some(bytes), read_only: false };
    env.open_drive(open).await.expect("created")
}

/// The drives in the order in which the log came to them.
async fn visits(env: &Env, placement: Placement) -> Vec<String> {
    let options = ChainOptions { placement, ..tiny_drives() };
    let mut drives = Vec::new();
    for name in THREE {
        drives.push(create_sized(env, name, options.capacity_bytes).await);
    }
    let chain = Chain::create(env, drives, identity(), options).await.expect("created");
    let mut visits: Vec<String> = Vec::new();
    for key in 0..75 {
        append(env, &chain, key..key + 1).await;
        let stats = chain.stats();
        let tails: Vec<_> = stats.links.iter().filter(|link| link.is_tail).collect();
        assert_eq!(tails.len(), 1, "the tail is on one drive");
        assert!(tails[0].segments_live > 0);
        if visits.last() != Some(&tails[0].drive) {
            visits.push(tails[0].drive.clone());
        }
        for link in &stats.links {
            assert_eq!(link.segments, link.segments_free + link.segments_live, "{link:?}");
        }
    }
    visits
}

#[test]
fn a_drive_is_filled_before_the_next_or_segments_lie_on_each_in_turn() {
    within(1, async |env| {
        let filled = visits(&env, Placement::Fill).await;
        assert_eq!(filled, THREE, "each drive once, in order");
    });
    within(1, async |env| {
        let in_turn = visits(&env, Placement::RoundRobin).await;
        assert!(in_turn.len() >= 7, "{in_turn:?}");
        assert!(in_turn.iter().zip(THREE.iter().cycle()).all(|(found, expected)| found == expected));
    });
}

#[test]
fn drives_are_taken_in_any_order_and_a_check_tells_of_each() {
    within(2, async |env| {
        let [a, b, c] = THREE;
        let chain = Chain::create(&env, open_drives(&env, &THREE).await, identity(), tiny_drives()).await;
        let chain = chain.expect("created");
        append(&env, &chain, 0..70).await;
        let ids = chain.drive_ids();
        chain.close().await.expect("no fault");
        let report = check(open_drives(&env, &[b, c, a]).await).await.expect("it is well");
        assert!(report.damage.is_empty() && report.superblocks_are_whole(), "{report:?}");
        assert_eq!(report.drives.iter().map(|drive| drive.id).collect::<Vec<_>>(), ids);
        let live: u64 = report.drives.iter().map(|drive| drive.segments_live).sum();
        assert_eq!(live, report.segments_open + report.segments_closed);
        assert_eq!(report.drives.iter().filter(|drive| drive.is_tail).count(), 1);
        let drives = open_drives(&env, &[c, a, b]).await;
        let (chain, recovered) =
            Chain::open(&env, drives, Some(&identity()), tiny_drives()).await.expect("all are there");
        assert_eq!((recovered.highest_key, recovered.damage.len()), (Some(69), 0));
        assert_eq!(chain.stats().links.iter().map(|link| link.drive.as_str()).collect::<Vec<_>>(), THREE);
        for key in 0..70 {
            let record = chain.read(key).await.expect("no damage").expect("it is there");
            assert_eq!(record.data, vec![key as u8; 8192]);
        }
    });
}

/// Two lives on three drives; the second is cut off at I/O point `point`.
fn cut_at(point: u64, death: Death, placement: Placement) -> bool {
    let world = World::over(3, &THREE);
    let options = ChainOptions { placement, ..tiny_drives() };
    assert!(world.live(
        &options,
        Workload { rng: Random::new(1), steps: 40, close: false, heavy: true, sparse: false }
    ));
    world.sim.end(world.process, death);
    world.sim.restart(world.process);
    let start = world.sim.io_points(world.process);
    world.sim.end_at_io(world.process, start + point, death);
    let survived = world
        .live(&options, Workload { rng: Random::new(2), steps: 60, close: true, heavy: true, sparse: false });
    world.sim.end(world.process, death);
    world.audit(&options);
    survived
}

#[test]
fn nothing_acknowledged_is_lost_on_several_drives_wherever_the_power_is_cut() {
    // Groups in flight on two drives at once: the older one is lost, the newer one is there.
    let mut points = 0;
    while !cut_at(points + 1, Death::PowerCut, Placement::Fill) {
        points += 1;
    }
    assert!(points > 100, "only {points} I/O points: the workload is too small to mean something");
    for point in (1..).step_by(2) {
        if cut_at(point, Death::PowerCut, Placement::RoundRobin) {
            break;
        }
    }
}

#[test]
fn nothing_acknowledged_is_lost_when_a_creation_of_several_drives_is_cut_off() {
    for point in 1..60 {
        let world = World::over(point, &THREE);
        world.sim.end_at_io(world.process, point, Death::PowerCut);
        world.live(
            &tiny_drives(),
            Workload { rng: Random::new(point), steps: 20, close: false, heavy: true, sparse: false },
        );
        world.sim.end(world.process, Death::PowerCut);
        world.audit(&tiny_drives());
    }
}

/// A closed chain of three drives with records on each.
pub async fn make_chain(env: &Env) -> Vec<Drive> {
    let drives = open_drives(env, &THREE).await;
    let chain = Chain::create(env, drives.clone(), identity(), tiny_drives()).await.expect("created");
    append(env, &chain, 0..70).await;
    chain.close().await.expect("no fault");
    drives
}

pub async fn copy(env: &Env, drive: &Drive, name: &str, len: u64) -> Drive {
    let copy = create_sized(env, name, len).await;
    for at in (0..len).step_by(64 << 10) {
        let bytes = drive.read(at, (len - at).min(64 << 10) as usize).await.expect("it can be read");
        copy.write(at, bytes, Durability::Durable).await.expect("it can be written");
    }
    copy
}

/// Opening these drives fails with an error that fits and is one line, and changes no block of any of them.
pub async fn is_refused(env: &Env, drives: &[Drive], fits: impl Fn(&OpenError) -> bool) {
    let mut before = Vec::new();
    for drive in drives {
        before.push(drive.read(0, drive.size_bytes() as usize).await.expect("it can be read"));
    }
    let opened = Chain::open(env, drives.to_vec(), Some(&identity()), tiny_drives()).await;
    let error = opened.err().expect("it must be refused");
    assert!(fits(&error), "{error:?}");
    assert!(!error.to_string().contains('\n'), "{error}");
    for (drive, before) in drives.iter().zip(before) {
        let after = drive.read(0, drive.size_bytes() as usize).await.expect("it can be read");
        assert!(after == before, "{} was written to", drive.name());
    }
}

#[test]
fn a_set_of_drives_that_is_not_the_chain_s_is_refused_and_left_alone() {
    within(4, async |env| {
        let drives = make_chain(&env).await;
        let [a, b, c] = [0, 1, 2].map(|index: usize| drives[index].clone());
        is_refused(&env, &[], |error| matches!(error, OpenError::NoDrives)).await;
        for index in 0..3 {
            let mut rest = drives.clone();
            rest.remove(index);
            let fits = |error: &OpenError| matches!(error, OpenError::DriveMissing { place, of: 3, .. } if *place == index + 1);
            is_refused(&env, &rest, fits).await;
        }
        let twin = copy(&env, &b, "twin", b.size_bytes()).await;
        let twice = [a.clone(), b.clone(), c.clone(), twin];
        is_refused(
            &env,
            &twice,
            |error| matches!(error, OpenError::GivenTwice { drive, .. } if drive == "twin"),
        )
        .await;
        let blank = open_named(&env, "blank").await;
        let with_blank = [a.clone(), b.clone(), c.clone(), blank.clone()];
        is_refused(
            &env,
            &with_blank,
            |error| matches!(error, OpenError::NotAChain { drive } if drive == "blank"),
        )
        .await;
        let short = copy(&env, &b, "short", b.size_bytes() - (128 << 10)).await;
        let cut = [a.clone(), short, c.clone()];
        is_refused(
            &env,
            &cut,
            |error| matches!(error, OpenError::Truncated { drive, .. } if drive == "short"),
        )
        .await;
        let other = Identity { id: ChainId([9; 16]), ..identity() };
        let stranger = open_named(&env, "stranger").await;
        let chain = Chain::create(&env, stranger.clone(), other, tiny_drives()).await.expect("created");
        chain.close().await.expect("no fault");
        let mixed = [a, b, c, stranger];
        is_refused(
            &env,
            &mixed,
            |error| matches!(error, OpenError::WrongChain { drive, .. } if drive == "stranger"),
        )
        .await;
        let many: Vec<Drive> = vec![blank; 65];
        is_refused(&env, &many, |error| matches!(error, OpenError::TooManyDrives { found: 65, .. })).await;
    });
}

#[test]
fn a_drive_whose_beginning_was_overwritten_is_refused() {
    within(5, async |env| {
        let drives = make_chain(&env).await;
        let zeros = Bytes::from(vec![0; 64 << 10]);
        drives[1].write(0, zeros, Durability::Durable).await.expect("it can be written");
        is_refused(
            &env,
            &drives,
            |error| matches!(error, OpenError::NotAChain { drive } if drive == THREE[1]),
        )
        .await;
        let noise = Bytes::from(vec![7; 64 << 10]);
        drives[1].write(0, noise, Durability::Durable).await.expect("it can be written");
        let lost =
            |error: &OpenError| matches!(error, OpenError::SuperblockLost { drive, .. } if drive == THREE[1]);
        is_refused(&env, &drives, lost).await;
    });
}

/// Appends until there is no room; returns the next key.
pub async fn fill(env: &Env, chain: &Chain, mut key: u64) -> u64 {
    loop {
        match chain.append(data(key, 8192)) {
            Ok(ticket) => {
                chain.wait(ticket).await.expect("no fault");
                key += 1;
            }
            Err(AppendError::Overloaded { .. }) => env.sleep(Duration::from_micros(200)).await,
            Err(AppendError::Full { .. }) => return key,
            Err(other) => panic!("{other}"),
        }
    }
}

/// A full drive that grows while the log is written to another one, is gone on on, and is then cut to what it had.
pub fn is_growth_known(options: &ChainOptions) -> bool {
    // A cleaner would make room for what is to make the file grow.
    let options = ChainOptions { cleaning: Cleaning::Off, ..options.clone() };
    let world = World::new(6);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let larger = ChainOptions { capacity_bytes: 2 * options.capacity_bytes, ..options.clone() };
        let grows = create_sized(&env, "chain", options.capacity_bytes).await;
        let large = create_sized(&env, "large", larger.capacity_bytes).await;
        let drives = vec![grows.clone(), large.clone()];
        let chain = Chain::create(&env, drives.clone(), identity(), options).await.expect("created");
        let key = fill(&env, &chain, 0).await;
        chain.close().await.expect("no fault");
        let had_bytes = grows.size_bytes();
        let (chain, _) = Chain::open(&env, drives, None, larger.clone()).await.expect("it is well");
        let end = fill(&env, &chain, key).await;
        assert!(end > key + 20 && chain.stats().links[0].is_tail, "the log went on on the first drive");
        chain.close().await.expect("no fault");
        let short = copy(&env, &grows, "short", had_bytes).await;
        let opened = Chain::open(&env, vec![short, large], None, larger).await;
        matches!(opened, Err(OpenError::Truncated { drive, .. }) if drive == "short")
    })
}

#[test]
fn a_file_that_has_grown_and_was_cut_short_is_refused() {
    // The groups that would say how long the file was are all in the part that is gone.
    assert!(is_growth_known(&tiny_drives()));
}

#[test]
fn one_copy_of_each_superblock_may_rot_and_is_written_again() {
    let world = World::over(8, &THREE);
    assert!(world.live(
        &tiny_drives(),
        Workload { rng: Random::new(3), steps: 40, close: true, heavy: true, sparse: false }
    ));
    world.sim.end(world.process, Death::PowerCut);
    world.sim.restart(world.process);
    for (index, name) in THREE.iter().enumerate() {
        let drive = world.sim.drive(MACHINE, name);
        let offset = index as u64 * (16 << 10) + 50;
        world.sim.fault_drive(drive, ithaca_env::sim::DriveFault::BitRot { offset, bit: 3 });
    }
    let env = world.sim.env(world.process);
    let model = std::rc::Rc::clone(&world.model);
    world.sim.block_on(world.process, async move {
        let drives = open_drives(&env, &THREE).await;
        let report = check(drives.clone()).await.expect("three copies agree");
        assert!(!report.superblocks_are_whole());
        let (chain, recovered) =
            Chain::open(&env, drives.clone(), Some(&identity()), tiny_drives()).await.expect("as many agree");
        model.borrow_mut().settle(&recovered);
        check_everything(&chain, &model).await;
        chain.close().await.expect("no fault");
        let report = check(drives).await.expect("it is well");
        assert!(report.superblocks_are_whole(), "{report:?}");
    });
}
