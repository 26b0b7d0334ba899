//! Mirrored links: a side that fails is given up and not believed later, and sides that a crash left different are made
//! equal.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_chain::{Batch, Chain, ChainOptions, Damage, DamageKind, OpenError, ReadError, SideState, check};
use ithaca_env::Env;
use ithaca_env::drive::Drive;
use ithaca_env::sim::{Death, DriveFault, Random, Sim};

use crate::drives::{append, is_refused, tiny_drives};
use crate::model::run_of;
use crate::world::{MACHINE, Workload, World, identity, open_drives, open_named, small_options};

/// A mirrored link, and behind it a plain one.
pub const A: &str = "chain";
pub const B: &str = "chain-mirror";
const C: &str = "chain-c";

async fn mirrored(env: &Env) -> Vec<Vec<Drive>> {
    vec![vec![open_named(env, A).await, open_named(env, B).await], vec![open_named(env, C).await]]
}

pub fn states(chain: &Chain) -> Vec<(String, SideState)> {
    chain.stats().links.iter().map(|link| (link.drive.clone(), link.state)).collect()
}

pub fn fault(sim: &Sim, name: &str, fault: DriveFault) {
    let drive = sim.drive(MACHINE, name);
    sim.fault_drive(drive, fault);
}

pub async fn check_keys(chain: &Chain, keys: std::ops::Range<u64>) {
    for key in keys {
        let record = chain.read(key).await.expect("no damage").expect("it is there");
        assert_eq!(record.data, vec![key as u8; 8192], "key {key}");
    }
}

/// A chain whose mirrored link loses `B` in the middle of appends, with keys 0 to 29; then power is cut.
fn lose_b(seed: u64, options: &ChainOptions) -> World {
    let world = World::over(seed, &[A, B, C]);
    let env = world.sim.env(world.process);
    let over = options.clone();
    let (begun, may_go_on) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let (is_begun, go_on) = (Rc::clone(&begun), Rc::clone(&may_go_on));
    let done = Rc::new(Cell::new(false));
    let is_done = Rc::clone(&done);
    env.clone().spawn(async move {
        let drives = mirrored(&env).await;
        let chain = Chain::create(&env, drives, identity(), over).await.expect("created");
        append(&env, &chain, 0..10).await;
        is_begun.set(true);
        while !go_on.get() {
            env.sleep(std::time::Duration::from_micros(50)).await;
        }
        append(&env, &chain, 10..30).await;
        let stale: Vec<_> =
            states(&chain).into_iter().filter(|(_, state)| *state == SideState::Stale).collect();
        assert_eq!(stale, [(B.to_owned(), SideState::Stale)]);
        check_keys(&chain, 0..30).await;
        is_done.set(true);
    });
    world.sim.run_while(ithaca_env::Time::MAX, move |_| !begun.get()).expect("it gets there");
    // Whatever it is asked from now on: it cannot be told that it is stale.
    fault(&world.sim, B, DriveFault::FailWrites { count: u32::MAX });
    may_go_on.set(true);
    world.sim.run_while(ithaca_env::Time::MAX, move |_| !done.get()).expect("it ends");
    world.sim.end(world.process, Death::PowerCut);
    world.sim.restart(world.process);
    world
}

/// Whether the side that was left out is refused when the one that has everything is not there.
pub fn is_stale_side_refused(options: &ChainOptions) -> bool {
    let world = lose_b(1, options);
    let (env, options) = (world.sim.env(world.process), options.clone());
    world.sim.block_on(world.process, async move {
        let drives = open_drives(&env, &[B, C]).await;
        let opened = Chain::open(&env, drives, Some(&identity()), options).await;
        matches!(opened, Err(OpenError::DriveMissing { place: 1, of: 3, .. }))
    })
}

#[test]
fn a_side_that_was_left_out_of_writes_is_not_believed() {
    assert!(is_stale_side_refused(&tiny_drives()));
}

#[test]
fn a_link_serves_on_without_the_side_that_failed() {
    for given in [&[A, B, C][..], &[C, A]] {
        let world = lose_b(2, &tiny_drives());
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let drives = open_drives(&env, given).await;
            let (chain, recovered) =
                Chain::open(&env, drives, Some(&identity()), tiny_drives()).await.expect("A has everything");
            assert_eq!(recovered.damage, []);
            check_keys(&chain, 0..30).await;
            append(&env, &chain, 30..40).await;
            check_keys(&chain, 0..40).await;
            let found = states(&chain);
            assert_eq!(
                (found[0].1, found[1].1, found[2].1),
                (SideState::Live, SideState::Stale, SideState::Live)
            );
        });
    }
}

#[test]
fn without_any_side_of_a_link_nothing_is_written() {
    let world = World::over(3, &[A, B, C]);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let drives = mirrored(&env).await;
        let chain = Chain::create(&env, drives, identity(), tiny_drives()).await.expect("created");
        append(&env, &chain, 0..10).await;
        chain.close().await.expect("no fault");
        let is_missing = |error: &OpenError| matches!(error, OpenError::DriveMissing { .. });
        is_refused(&env, &open_drives(&env, &[C]).await, is_missing).await;
        is_refused(&env, &open_drives(&env, &[A, B]).await, is_missing).await;
        // B serves alone and remembers that A was not there.
        let (chain, _) =
            Chain::open(&env, open_drives(&env, &[B, C]).await, None, tiny_drives()).await.expect("B");
        append(&env, &chain, 10..20).await;
        chain.close().await.expect("no fault");
        is_refused(&env, &open_drives(&env, &[A, C]).await, is_missing).await;
        let report = check(open_drives(&env, &[B, C]).await).await.expect("it is well");
        assert_eq!((report.missing, report.damage.len()), (1, 0));
        let (chain, _) =
            Chain::open(&env, open_drives(&env, &[A, B, C]).await, None, tiny_drives()).await.expect("both");
        assert_eq!(states(&chain)[0], (A.to_owned(), SideState::Stale));
        check_keys(&chain, 0..20).await;
    });
}

#[test]
fn both_sides_changed_without_the_other_are_refused() {
    // Each was served alone: neither has everything, and nobody can tell which is right.
    let world = World::over(4, &[A, B]);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let sides = open_drives(&env, &[A, B]).await;
        let chain =
            Chain::create(&env, vec![sides.clone()], identity(), tiny_drives()).await.expect("created");
        append(&env, &chain, 0..3).await;
        chain.close().await.expect("no fault");
        for side in &sides {
            let (chain, _) = Chain::open(&env, side, None, tiny_drives()).await.expect("one side is enough");
            chain.close().await.expect("no fault");
        }
        is_refused(&env, &sides, |error| matches!(error, OpenError::Disagree { .. })).await;
    });
}

/// Two lives on a mirrored link; the second is cut off at I/O point `point`. Then each side alone must have everything
/// that was acknowledged.
pub fn cut_at(point: u64, death: Death, alone: &'static str, options: &ChainOptions) -> bool {
    let mut world = World::over(point % 3, &[A, B]);
    let env = world.sim.env(world.process);
    let over = options.clone();
    world.sim.block_on(world.process, async move {
        let sides = vec![open_drives(&env, &[A, B]).await];
        let chain = Chain::create(&env, sides, identity(), over).await.expect("created");
        chain.close().await.expect("no fault");
    });
    assert!(world.live(
        options,
        Workload { rng: Random::new(1), steps: 20, close: false, heavy: true, sparse: false }
    ));
    world.sim.end(world.process, death);
    world.sim.restart(world.process);
    let start = world.sim.io_points(world.process);
    world.sim.end_at_io(world.process, start + point, death);
    let survived = world
        .live(options, Workload { rng: Random::new(2), steps: 20, close: false, heavy: true, sparse: false });
    world.sim.end(world.process, death);
    world.sim.end_at_io(world.process, u64::MAX, death);
    // Both recover what the crash left; what that shows must stay when one of them is lost.
    assert!(world.live(
        options,
        Workload { rng: Random::new(0), steps: 0, close: false, heavy: false, sparse: false }
    ));
    world.sim.end(world.process, death);
    world.drives = vec![alone];
    world.audit(options);
    survived
}

#[test]
fn each_side_alone_has_what_was_shown_wherever_the_power_is_cut() {
    for alone in [A, B] {
        let mut point = 1;
        while !cut_at(point, Death::PowerCut, alone, &small_options()) {
            point += 2;
        }
        assert!(point > 50, "only {point} I/O points: the workload is too small to mean something");
    }
}

#[test]
fn nothing_acknowledged_is_lost_when_a_side_fails_as_the_chain_is_opened() {
    for seed in 0..60 {
        let mut world = World::over(seed, &[A, B, C]);
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let chain = Chain::create(&env, mirrored(&env).await, identity(), tiny_drives()).await;
            chain.expect("created").close().await.expect("no fault");
        });
        let (failing, stays) = if seed % 2 == 0 { (A, B) } else { (B, A) };
        // Its superblock, the fence or the first groups fail; power is cut a little later.
        world.sim.end_at_io(
            world.process,
            world.sim.io_points(world.process) + 10 + 7 * seed,
            Death::PowerCut,
        );
        fault(&world.sim, failing, DriveFault::FailWrites { count: 1 + (seed % 3) as u32 });
        world.live(
            &tiny_drives(),
            Workload { rng: Random::new(seed), steps: 30, close: false, heavy: true, sparse: false },
        );
        world.sim.end(world.process, Death::PowerCut);
        world.sim.end_at_io(world.process, u64::MAX, Death::PowerCut);
        world.drives = vec![C, stays];
        world.audit(&tiny_drives());
    }
}

/// A chain of one mirrored link that was closed, with keys 0 to 39 of small records that share blocks.
pub fn closed_pair(seed: u64) -> World {
    let world = World::over(seed, &[A, B]);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let sides = vec![open_drives(&env, &[A, B]).await];
        let chain = Chain::create(&env, sides, identity(), small_options()).await.expect("created");
        for key in (0..40).step_by(4) {
            let payloads: Vec<Bytes> = (key..key + 4).map(small).collect();
            let batch = Batch { runs: vec![run_of(key, key, &payloads)], ..Batch::default() };
            let ticket = chain.append(batch).expect("room");
            chain.wait(ticket).await.expect("no fault");
        }
        append(&env, &chain, 40..80).await;
        chain.close().await.expect("no fault");
    });
    world
}

fn small(key: u64) -> Bytes {
    Bytes::from(vec![key as u8 + 1; 900])
}

/// Where on a drive the small record with this key is.
pub fn place_of(world: &World, name: &str, key: u64) -> u64 {
    let drive = world.sim.drive(MACHINE, name);
    let bytes =
        world.sim.peek_drive(drive, 0, world.sim.drive_size_bytes(drive).expect("it is there") as usize);
    let at = bytes.windows(900).position(|window| window == small(key));
    at.expect("the record is on the drive") as u64
}

/// Reads every small record of each side in turn. True if all are as they were written.
pub async fn read_small(chain: &Chain) -> Result<bool, ReadError> {
    for key in 0..40 {
        for _ in 0..2 {
            match chain.read(key).await? {
                Some(record) if record.data == small(key) => {}
                _ => return Ok(false),
            }
        }
    }
    Ok(true)
}

fn open_and_read(
    world: &World,
    names: &'static [&'static str],
    options: ChainOptions,
) -> (Result<bool, ReadError>, u64) {
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let options = ChainOptions { tail_cache_bytes: 0, ..options };
        let drives = open_drives(&env, names).await;
        let (chain, _) = Chain::open(&env, drives, Some(&identity()), options).await.expect("it opens");
        let read = read_small(&chain).await;
        let repaired = chain.stats().repaired;
        chain.close().await.expect("no fault");
        (read, repaired)
    })
}

#[test]
fn rot_on_one_side_is_served_from_the_other_and_written_again() {
    // Neighbours in one block are harmed on different sides: mending one must not harm the other.
    for (first, second) in [(A, B), (B, A)] {
        let world = closed_pair(5);
        for (name, key) in [(first, 8), (second, 9), (first, 20)] {
            let offset = place_of(&world, name, key) + 400;
            fault(&world.sim, name, DriveFault::BitRot { offset, bit: 2 });
        }
        let (read, repaired) = open_and_read(&world, &[A, B], small_options());
        assert_eq!(read, Ok(true));
        assert!(repaired >= 2, "{repaired} places");
        for alone in [&[A], &[B]] {
            assert_eq!(open_and_read(&world, alone, small_options()), (Ok(true), 0));
        }
    }
}

#[test]
fn a_sector_that_one_side_cannot_read_is_written_again() {
    let world = closed_pair(6);
    let offset = place_of(&world, A, 12);
    fault(&world.sim, A, DriveFault::Unreadable { offset });
    let (read, repaired) = open_and_read(&world, &[A, B], small_options());
    assert_eq!((read, repaired > 0), (Ok(true), true));
    assert_eq!(open_and_read(&world, &[A], small_options()), (Ok(true), 0));
}

/// Whether a record that is harmed on both sides is reported, and never served.
pub fn is_damage_on_both_sides_told(options: &ChainOptions) -> bool {
    let world = closed_pair(7);
    for name in [A, B] {
        let offset = place_of(&world, name, 16) + 100;
        fault(&world.sim, name, DriveFault::BitRot { offset, bit: 1 });
    }
    let (read, _) = open_and_read(&world, &[A, B], options.clone());
    matches!(read, Err(ReadError::Damaged { key: 16, .. }))
}

#[test]
fn a_record_that_is_harmed_on_both_sides_is_damaged() {
    assert!(is_damage_on_both_sides_told(&small_options()));
}

#[test]
fn a_check_counts_what_the_side_has_that_is_harmed_least_and_says_of_what_another_has_all() {
    // Who is told of one side's records alone takes the rest for lost.
    let world = closed_pair(7);
    let checked = || {
        let env = world.sim.env(world.process);
        let checked =
            world.sim.block_on(world.process, async move { check(open_drives(&env, &[A, B]).await).await });
        checked.expect("it can be opened")
    };
    let whole = checked();
    for (name, key) in [(A, 8), (A, 16), (B, 16)] {
        let offset = place_of(&world, name, key) + 100;
        fault(&world.sim, name, DriveFault::BitRot { offset, bit: 1 });
    }
    // The head of the first group: of what A has in it nothing is found.
    fault(&world.sim, A, DriveFault::BitRot { offset: (64 << 10) + 4096 + 30, bit: 1 });
    let harmed = checked();
    assert_eq!((harmed.records, harmed.groups), (whole.records, whole.groups));
    let [a, b] = &harmed.drives[..] else { panic!("{:?}", harmed.drives) };
    let is_of = |key: u64| move |damage: &&Damage| matches!(&damage.kind, DamageKind::Data { keys } if keys.contains(&key));
    let elsewhere = |key| a.damage.iter().find(is_of(key)).map(|damage| harmed.is_elsewhere(a, damage));
    assert_eq!((elsewhere(8), elsewhere(16)), (Some(true), Some(false)), "{:?}", a.damage);
    assert!(a.damage.len() > b.damage.len() && b.damage.len() == 1, "{:?}, {:?}", a.damage, b.damage);
}

#[test]
fn a_bit_flipped_anywhere_on_one_side_harms_nothing() {
    let probe = closed_pair(8);
    let drive = probe.sim.drive(MACHINE, A);
    let blocks = probe.sim.drive_size_bytes(drive).expect("it is there") / 4096;
    for block in (0..blocks).step_by(3) {
        let world = closed_pair(8);
        let name = if block % 2 == 0 { A } else { B };
        fault(&world.sim, name, DriveFault::BitRot { offset: block * 4096 + 17 * block % 4096, bit: 5 });
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let options = ChainOptions { tail_cache_bytes: 0, ..small_options() };
            let drives = open_drives(&env, &[A, B]).await;
            let (chain, recovered) = Chain::open(&env, drives, None, options).await.expect("it opens");
            assert_eq!(recovered.damage, [], "block {block} of {name}");
            assert_eq!(read_small(&chain).await, Ok(true), "block {block} of {name}");
            check_keys(&chain, 40..80).await;
            assert_eq!(chain.stats().damage, [], "block {block} of {name}");
        });
    }
}

/// Waits until every side is live.
pub async fn rebuilt(env: &Env, chain: &Chain) {
    for _ in 0..5000 {
        if states(chain).iter().all(|(_, state)| *state == SideState::Live) {
            return;
        }
        env.sleep(std::time::Duration::from_millis(1)).await;
    }
    panic!("a side is not rebuilt after five seconds: {:?}", states(chain));
}

#[test]
fn a_side_that_was_away_is_rebuilt_and_then_serves_alone() {
    let world = World::over(9, &[A, B, C]);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let options = ChainOptions { tail_cache_bytes: 0, ..small_options() };
        let chain =
            Chain::create(&env, mirrored(&env).await, identity(), options.clone()).await.expect("created");
        append(&env, &chain, 0..25).await;
        chain.close().await.expect("no fault");
        let open = async |names: &[&str]| {
            Chain::open(&env, open_drives(&env, names).await, None, options.clone())
                .await
                .expect("it opens")
                .0
        };
        let chain = open(&[A, C]).await;
        append(&env, &chain, 25..60).await;
        chain.close().await.expect("no fault");
        let chain = open(&[A, B, C]).await;
        append(&env, &chain, 60..65).await;
        rebuilt(&env, &chain).await;
        append(&env, &chain, 65..70).await;
        chain.close().await.expect("no fault");
        let chain = open(&[B, C]).await;
        check_keys(&chain, 0..70).await;
        append(&env, &chain, 70..75).await;
        // In place of A, which is lost, comes a new drive.
        let beside = chain.stats().links[1].id;
        chain.add_side(beside, open_named(&env, "chain-new").await).await.expect("it is blank");
        rebuilt(&env, &chain).await;
        chain.close().await.expect("no fault");
        let chain = open(&["chain-new", C]).await;
        check_keys(&chain, 0..75).await;
        chain.close().await.expect("no fault");
        let refused = Chain::open(&env, open_drives(&env, &[A, C]).await, None, options.clone()).await;
        assert!(refused.is_err(), "A was replaced");
        let report = check(open_drives(&env, &["chain-new", C]).await).await.expect("it is well");
        assert_eq!((report.damage.len(), report.missing), (0, 1));
    });
}

#[test]
fn a_side_that_fails_while_another_is_added_counts_only_when_it_is_rebuilt() {
    let world = World::over(10, &[A, B]);
    let env = world.sim.env(world.process);
    let options = ChainOptions { tail_cache_bytes: 0, ..small_options() };
    let (over, again) = (options.clone(), options);
    let begun = Rc::new(Cell::new(false));
    let is_begun = Rc::clone(&begun);
    let done = Rc::new(Cell::new(false));
    let is_done = Rc::clone(&done);
    env.clone().spawn(async move {
        let sides = vec![open_drives(&env, &[A, B]).await];
        let chain = Chain::create(&env, sides, identity(), over).await.expect("created");
        append(&env, &chain, 0..10).await;
        let new = open_named(&env, "chain-new").await;
        is_begun.set(true);
        env.sleep(std::time::Duration::from_millis(1)).await;
        let (adding, beside) = (chain.clone(), chain.stats().links[0].id);
        let added = env.spawn(async move { adding.add_side(beside, new).await });
        append(&env, &chain, 10..20).await;
        added.join().await.expect("it ends").expect("the new side is well");
        rebuilt(&env, &chain).await;
        chain.close().await.expect("a side is left");
        is_done.set(true);
    });
    world.sim.run_while(ithaca_env::Time::MAX, move |_| !begun.get()).expect("it gets there");
    // It fails one write of the log, and takes everything after it.
    fault(&world.sim, B, DriveFault::FailWrites { count: 1 });
    world.sim.run_while(ithaca_env::Time::MAX, move |_| !done.get()).expect("it ends");
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (chain, _) =
            Chain::open(&env, open_drives(&env, &[B]).await, None, again).await.expect("B is live");
        check_keys(&chain, 0..20).await;
    });
}

/// A rebuild while the chain is worked on, cut off at I/O point `point`. Then the side that was rebuilt must be refused
/// without the other one, or have everything.
pub fn rebuild_cut_at(point: u64, options: &ChainOptions) -> bool {
    let mut world = World::over(point % 3, &[A, B, C]);
    let env = world.sim.env(world.process);
    let over = options.clone();
    world.sim.block_on(world.process, async move {
        let chain = Chain::create(&env, mirrored(&env).await, identity(), over).await.expect("created");
        chain.close().await.expect("no fault");
    });
    for drives in [vec![A, B, C], vec![A, C]] {
        world.drives = drives;
        assert!(world.live(
            options,
            Workload { rng: Random::new(point), steps: 20, close: false, heavy: true, sparse: false }
        ));
        world.sim.end(world.process, Death::PowerCut);
    }
    world.drives = vec![A, B, C];
    world.sim.restart(world.process);
    let start = world.sim.io_points(world.process);
    world.sim.end_at_io(world.process, start + point, Death::PowerCut);
    let survived = world
        .live(options, Workload { rng: Random::new(2), steps: 30, close: false, heavy: true, sparse: false });
    world.sim.end(world.process, Death::PowerCut);
    world.sim.end_at_io(world.process, u64::MAX, Death::PowerCut);
    world.sim.restart(world.process);
    let (env, over) = (world.sim.env(world.process), options.clone());
    let is_refused = world.sim.block_on(world.process, async move {
        let opened = Chain::open(&env, open_drives(&env, &[B, C]).await, None, over).await;
        matches!(opened, Err(OpenError::DriveMissing { .. } | OpenError::StaleDrive { .. }))
    });
    world.sim.end(world.process, Death::PowerCut);
    world.drives = if is_refused { vec![A, B, C] } else { vec![B, C] };
    world.audit(options);
    survived
}

#[test]
fn a_rebuild_may_be_cut_off_anywhere() {
    let mut point = 1;
    while !rebuild_cut_at(point, &tiny_drives()) {
        point += 3;
    }
    assert!(point > 60, "only {point} I/O points: the workload is too small to mean something");
}
