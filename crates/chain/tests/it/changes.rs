//! Drives that come and go while the log is written, with crashes at every point.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{Batch, Chain, ChainError, ChainOptions, ChangeError, Cleaning, OpenError, Placement};
use ithaca_env::Env;
use ithaca_env::drive::{Drive, Durability, PageBuf};
use ithaca_env::sim::{Death, DriveFault, Random};

use crate::drives::{
    THREE, append, copy, create_sized, fill, is_refused, make_chain, put, tiny_drives, within,
};
use crate::model::run_of;
use crate::world::{
    MACHINE, Workload, World, check_everything, identity, open_drives, open_named, open_or_create,
};

/// The drives that were the chain's for certain when the last change began, and those that they were to become.
type Sets = RefCell<(Vec<&'static str>, Option<Vec<&'static str>>)>;

/// A chain whose drives change. While a change is under way nobody knows which set is the chain's.
pub struct Changing {
    world: World,
    sets: Rc<Sets>,
    changed: Rc<Cell<u32>>,
}

/// What to do to the drives: adds the drive if the chain has not got it, else removes it.
type Toggle = &'static str;

impl Changing {
    pub fn new(seed: u64) -> Self {
        let sets = Rc::new(RefCell::new((vec![THREE[0]], None)));
        Self { world: World::over(seed, &[]), sets, changed: Rc::default() }
    }

    /// One life: opens what should be there, checks everything, works, and toggles a drive meanwhile. True if it came to
    /// its end.
    pub fn live(
        &self,
        options: &ChainOptions,
        workload: Workload,
        toggle: Option<Toggle>,
        first: bool,
    ) -> bool {
        let world = &self.world;
        if !world.sim.is_up(world.process) {
            world.sim.restart(world.process);
        }
        let env = world.sim.env(world.process);
        let (model, sets) = (Rc::clone(&world.model), Rc::clone(&self.sets));
        let (options, done, changed) = (options.clone(), Rc::new(Cell::new(0)), Rc::clone(&self.changed));
        let over = Rc::clone(&done);
        env.clone().spawn(async move {
            settle_sets(&env, &options, &sets, first).await;
            let names = sets.borrow().0.clone();
            let chain = open_or_create(&env, &names, options, &model).await;
            check_everything(&chain, &model).await;
            if let Some(name) = toggle {
                let (env, chain, over) = (env.clone(), chain.clone(), Rc::clone(&over));
                env.clone().spawn(async move {
                    if change(&env, &chain, &sets, name).await {
                        changed.set(changed.get() + 1);
                    }
                    over.set(over.get() + 1);
                });
            } else {
                over.set(1);
            }
            workload.work(env, chain, model).await;
            over.set(over.get() + 1);
        });
        let (process, seen) = (world.process, Rc::clone(&done));
        let waited =
            world.sim.run_while(ithaca_env::Time::MAX, move |sim| sim.is_up(process) && seen.get() < 2);
        waited.expect("it ends or it is ended");
        done.get() == 2
    }

    /// Two lives that only look.
    pub fn audit(&self, options: &ChainOptions) {
        let world = &self.world;
        world.sim.end_at_io(world.process, u64::MAX, Death::PowerCut);
        for _ in 0..2 {
            let looks = Workload { rng: Random::new(0), steps: 0, close: false, heavy: false, sparse: false };
            assert!(self.live(options, looks, None, true), "nothing ends it");
            world.sim.end(world.process, Death::PowerCut);
        }
    }
}

/// After a change that was cut off one of the two sets is the chain's, whichever is tried first. The other is refused if
/// the change was decided or never begun; if it may go either way, the one tried first is.
async fn settle_sets(env: &Env, options: &ChainOptions, sets: &Sets, first: bool) {
    let (before, after) = sets.borrow().clone();
    let Some(after) = after else { return };
    let order = if first { [before, after] } else { [after, before] };
    let mut refused = Vec::new();
    for names in order {
        match Chain::open(env, open_drives(env, &names).await, Some(&identity()), options.clone()).await {
            Ok((chain, _)) => {
                chain.close().await.expect("no fault was planted");
                *sets.borrow_mut() = (names, None);
                return;
            }
            Err(error) => refused.push(error),
        }
    }
    panic!("neither set of drives can be opened: {refused:?}");
}

/// Adds or removes a drive; what holds records is tried a few times. Returns whether it was done.
async fn change(env: &Env, chain: &Chain, sets: &Sets, name: &'static str) -> bool {
    let before = sets.borrow().0.clone();
    let place = before.iter().position(|other| *other == name);
    for _ in 0..10 {
        let mut after = before.clone();
        match place {
            Some(place) => _ = after.remove(place),
            None => after.push(name),
        }
        sets.borrow_mut().1 = Some(after.clone());
        let done = match place {
            Some(place) => chain.remove_drive(chain.drive_ids()[place]).await,
            None => chain.add_drive(open_named(env, name).await).await.map(|_| ()),
        };
        match done {
            Ok(()) => {
                *sets.borrow_mut() = (after, None);
                return true;
            }
            Err(ChangeError::HoldsRecords { .. } | ChangeError::NoRoom { .. } | ChangeError::Refused(_)) => {
                sets.borrow_mut().1 = None;
                env.sleep(Duration::from_micros(400)).await;
            }
            Err(ChangeError::LastDrive { .. } | ChangeError::Stopped(ithaca_chain::ChainError::Closed)) => {
                sets.borrow_mut().1 = None;
                return false;
            }
            Err(other) => panic!("{other}"),
        }
    }
    false
}

fn workload(seed: u64, steps: usize) -> Workload {
    Workload { rng: Random::new(seed), steps, close: false, heavy: true, sparse: false }
}

/// A life in which a drive is toggled, cut off at I/O point `point`; `setup` names drives that are added before.
fn cut_at(setup: &[Toggle], toggle: Toggle, point: u64, first: bool, options: &ChainOptions) -> bool {
    let world = Changing::new(7);
    for name in setup {
        assert!(world.live(options, workload(1, 20), Some(name), true));
        world.world.sim.end(world.world.process, Death::PowerCut);
        world.world.sim.restart(world.world.process);
    }
    assert_eq!(world.changed.get() as usize, setup.len(), "every drive was added");
    let start = world.world.sim.io_points(world.world.process);
    world.world.sim.end_at_io(world.world.process, start + point, Death::PowerCut);
    let survived = world.live(options, workload(2, 40), Some(toggle), true);
    world.world.sim.end(world.world.process, Death::PowerCut);
    world.world.sim.end_at_io(world.world.process, u64::MAX, Death::PowerCut);
    assert!(world.live(options, workload(3, 20), None, first));
    world.world.sim.end(world.world.process, Death::PowerCut);
    world.audit(options);
    survived
}

/// A life at a time until one survives; returns how many points there were.
fn sweep(setup: &[Toggle], toggle: Toggle) -> u64 {
    (1..)
        .find(|&point| {
            let first = cut_at(setup, toggle, point, true, &tiny_drives());
            let second = cut_at(setup, toggle, point, false, &tiny_drives());
            assert_eq!(first, second, "the same seed");
            first
        })
        .unwrap_or(0)
}

#[test]
fn a_drive_is_added_or_not_wherever_the_power_is_cut() {
    // Records on a drive that the next open does not know of, or a set of drives that no open accepts.
    let points = sweep(&[THREE[1]], THREE[2]);
    assert!(points > 80, "only {points} I/O points: the workload is too small to mean something");
}

#[test]
fn a_drive_is_removed_or_not_wherever_the_power_is_cut() {
    let points = sweep(&[THREE[1], THREE[2]], THREE[0]);
    assert!(points > 80, "only {points} I/O points: the workload is too small to mean something");
}

/// Lives with drives that come and go, each cut off somewhere. Returns how many changes were made.
pub fn lives(seed: u64, options: &ChainOptions) -> u32 {
    let mut rng = Random::new(seed);
    let world = Changing::new(seed);
    for _ in 0..6 {
        let death = rng.pick(&[Death::PowerCut, Death::Kill]);
        let point = world.world.sim.io_points(world.world.process) + 50 + rng.below(600);
        world.world.sim.end_at_io(world.world.process, point, death);
        let toggle = rng.pick(&THREE);
        world.live(options, workload(rng.next_u64(), 60), Some(toggle), rng.below(2) == 0);
        world.world.sim.end(world.world.process, death);
    }
    world.audit(options);
    world.changed.get()
}

#[test]
fn many_lives_with_drives_that_come_and_go_keep_every_promise() {
    let mut changed = 0;
    for seed in 0..60 {
        let placement = if seed % 2 == 0 { Placement::Fill } else { Placement::RoundRobin };
        changed += lives(seed, &ChainOptions { placement, ..tiny_drives() });
    }
    assert!(changed > 60, "{changed} changes: a chain that refuses every change passes too easily");
}

#[test]
fn a_drive_is_removed_only_when_nothing_is_left_on_it() {
    within(11, async |env| {
        let drives = open_drives(&env, &THREE).await;
        let chain = Chain::create(&env, drives, identity(), tiny_drives()).await.expect("created");
        append(&env, &chain, 0..70).await;
        let ids = chain.drive_ids();
        for id in &ids {
            let refused = chain.remove_drive(*id).await;
            assert!(
                matches!(&refused, Err(ChangeError::HoldsRecords { .. } | ChangeError::NoRoom { .. })),
                "{refused:?}"
            );
        }
        append(&env, &chain, 70..73).await;
        let release = Batch { release: std::iter::once(0..73).collect(), ..Batch::default() };
        chain.wait(chain.append(release).expect("the reserve")).await.expect("no fault");
        // One after the other, the one with the tail too; the last one stays.
        chain.remove_drive(ids[1]).await.expect("everything is released");
        append(&env, &chain, 73..80).await;
        let tail = chain.stats().links.iter().find(|link| link.is_tail).map(|link| link.id).expect("one");
        let release = Batch { release: std::iter::once(0..80).collect(), ..Batch::default() };
        chain.wait(chain.append(release).expect("room")).await.expect("no fault");
        chain.remove_drive(tail).await.expect("everything is released");
        let last = chain.drive_ids()[0];
        let refused = chain.remove_drive(last).await;
        assert!(matches!(&refused, Err(ChangeError::LastDrive { .. })), "{refused:?}");
        let refused = chain.remove_drive(tail).await;
        assert_eq!(refused, Err(ChangeError::NoSuchDrive { id: tail }));
        append(&env, &chain, 80..90).await;
        for key in 80..90 {
            assert!(chain.read(key).await.expect("no damage").is_some(), "key {key}");
        }
    });
}

#[test]
fn a_removed_drive_is_blank_and_can_come_back() {
    within(12, async |env| {
        let names = [THREE[0], THREE[1]];
        let drives = open_drives(&env, &names).await;
        let chain = Chain::create(&env, drives.clone(), identity(), tiny_drives()).await.expect("created");
        append(&env, &chain, 0..40).await;
        let release = Batch { release: std::iter::once(0..40).collect(), ..Batch::default() };
        chain.wait(chain.append(release).expect("the reserve")).await.expect("no fault");
        for _ in 0..3 {
            let id = chain.drive_ids()[0];
            let name = chain.stats().links[0].drive.clone();
            chain.remove_drive(id).await.expect("everything is released");
            let drive = drives.iter().find(|drive| drive.name() == name).expect("one of them").clone();
            let added = chain.add_drive(drive.clone()).await.expect("it is blank");
            assert_ne!(added, id, "a drive that comes back is a new one");
            let twice = chain.add_drive(drive).await;
            assert!(matches!(&twice, Err(ChangeError::Open(OpenError::AlreadyThere { .. }))), "{twice:?}");
        }
        append(&env, &chain, 60..90).await;
        chain.close().await.expect("no fault");
        let (chain, recovered) =
            Chain::open(&env, drives, Some(&identity()), tiny_drives()).await.expect("it is well");
        assert_eq!((recovered.highest_key, recovered.damage.len()), (Some(89), 0));
        for key in 60..90 {
            assert!(chain.read(key).await.expect("no damage").is_some(), "key {key}");
        }
    });
}

/// Adds a file with these bytes at its beginning; why it is refused, if it is.
async fn added_with(
    env: &Env,
    chain: &Chain,
    name: &str,
    bytes: u64,
    offset: u64,
    with: &[u8],
) -> Option<ChangeError> {
    let drive = create_sized(env, name, bytes).await;
    let mut block = PageBuf::zeroed(4096);
    block.as_mut_slice()[..with.len()].copy_from_slice(with);
    let before = block.freeze();
    drive.write(offset, before.clone(), Durability::Durable).await.expect("written");
    let refused = chain.add_drive(drive.clone()).await.err();
    if refused.is_some() {
        assert_eq!(drive.size_bytes(), bytes, "nothing has changed");
        assert_eq!(drive.read(offset, 4096).await.expect("readable"), before);
    }
    refused
}

#[test]
fn a_drive_that_somebody_else_has_written_to_is_not_written_over() {
    // A path that was mistyped: the file is another program's, and only its beginning tells.
    within(16, async |env| {
        let chain =
            Chain::create(&env, open_drives(&env, &[THREE[0]]).await, identity(), tiny_drives()).await;
        let chain = chain.expect("created");
        let is_refused = async |name, bytes, offset, with: &[u8]| {
            let error = added_with(&env, &chain, name, bytes, offset, with).await;
            let is_not_blank =
                matches!(&error, Some(ChangeError::Open(OpenError::NotBlank { drive })) if drive == name);
            assert!(is_not_blank, "{name}: {error:?}");
        };
        is_refused("text", 4096, 0, b"root:x:0:0:root:/root:/bin/bash").await;
        is_refused("table", 1 << 20, 0, &[&[0; 446][..], b"a partition"].concat()).await;
        is_refused("file system", 1 << 20, 4096, b"block group descriptors").await;
        is_refused("second", 1 << 20, 16 << 10, b"something").await;
        let mut foreign = b"ITHS\0\0\0\0\x01\0\0\0".to_vec();
        foreign.extend([9; 16]);
        is_refused("torn of another chain", 1 << 20, 0, &foreign).await;
        // What a crash leaves of the first write to a drive that was being added to this one.
        let ours = [&foreign[..12], &identity().id.0[..], &[7; 100]].concat();
        assert_eq!(added_with(&env, &chain, "torn", 1 << 20, 16 << 10, &ours).await, None);
    });
}

#[test]
fn a_drive_that_was_removed_and_that_somebody_else_has_now_is_not_written_over() {
    within(17, async |env| {
        let drives = open_drives(&env, &[THREE[0], THREE[1]]).await;
        let chain = Chain::create(&env, drives.clone(), identity(), tiny_drives()).await.expect("created");
        append(&env, &chain, 0..3).await;
        // Away when it is removed, so that its superblock is not erased.
        let bytes = drives[1].size_bytes();
        let away = async |name| copy(&env, &drives[1], name, bytes).await;
        let (array, table, torn) = (away("array").await, away("table").await, away("torn").await);
        let untouched = away("untouched").await;
        let write = async |drive: &Drive, offset, byte, len| {
            let mut block = PageBuf::zeroed(len);
            block.as_mut_slice().fill(byte);
            drive.write(offset, block.freeze(), Durability::Durable).await.expect("written");
        };
        // Between two copies; over the first two of them; one copy is left, beside something else.
        write(&array, 4096, 7, 4096).await;
        write(&table, 0, 7, 20 << 10).await;
        write(&torn, 4096, 7, 4096).await;
        for copy in 1..4 {
            write(&torn, copy * (16 << 10), 0, 4096).await;
        }
        chain.remove_drive(chain.drive_ids()[1]).await.expect("nothing is on it");
        for drive in [array, table, torn] {
            let before = drive.read(0, bytes as usize).await.expect("readable");
            let added = chain.add_drive(drive.clone()).await.err();
            let is_refused = matches!(&added, Some(ChangeError::Open(OpenError::NotBlank { .. })));
            assert!(is_refused, "{}: {added:?}", drive.name());
            assert_eq!(drive.size_bytes(), bytes);
            let after = drive.read(0, bytes as usize).await.expect("readable");
            assert!(after == before, "{} was written to", drive.name());
        }
        chain.add_drive(untouched).await.expect("nobody misses what is on it");
    });
}

#[test]
fn a_drive_that_segments_are_being_prepared_on_leaves_although_nothing_is_appended() {
    // They were given up when what was being written there was durable, and whoever waited for that was not told.
    for (count, segments_ready) in (0..40).flat_map(|count| [(count, 0), (count, 1)]) {
        let world = World::new(18);
        let env = world.sim.env(world.process);
        let options = ChainOptions { placement: Placement::RoundRobin, segments_ready, ..tiny_drives() };
        let size_bytes = (64 << 10) + 12 * options.segment_bytes;
        let options = ChainOptions { capacity_bytes: size_bytes, ..options };
        let again = options.clone();
        let drives = world.sim.block_on(world.process, async move {
            let first = create_sized(&env, THREE[0], size_bytes).await;
            let drives = vec![first, create_sized(&env, THREE[1], size_bytes).await];
            let chain = Chain::create(&env, drives.clone(), identity(), options).await.expect("created");
            append(&env, &chain, 0..count).await;
            chain.close().await.expect("no fault");
            drives
        });
        let slow = world.sim.drive(MACHINE, THREE[1]);
        world.sim.fault_drive(slow, DriveFault::Slow { percent: 20_000, span: Duration::from_secs(3600) });
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let (chain, _) = Chain::open(&env, drives, None, again).await.expect("it is well");
            let removal = chain.remove_drive(chain.drive_ids()[1]);
            let removed = env.timeout(Duration::from_secs(600), removal).await;
            removed.unwrap_or_else(|_| panic!("after {count} appends it does not end")).expect("room");
        });
    }
}

#[test]
fn data_is_taken_while_a_drive_leaves_also_where_the_others_have_to_grow_for_that() {
    // While drives come or go no file grows by itself, and the room of the leaving one is gone at once.
    within(19, async |env| {
        let bytes = |segments| (64 << 10) + segments * tiny_drives().segment_bytes;
        let options = ChainOptions { capacity_bytes: bytes(24), ..tiny_drives() };
        let drives =
            vec![create_sized(&env, THREE[0], bytes(12)).await, create_sized(&env, THREE[1], bytes(1)).await];
        let chain = Chain::create(&env, drives, identity(), options).await.expect("created");
        append(&env, &chain, 0..40).await;
        let (removing, ids) = (chain.clone(), chain.drive_ids());
        let removal = env.spawn(async move { removing.remove_drive(ids[0]).await });
        while !chain.stats().links[0].is_leaving {
            env.sleep(Duration::from_micros(1)).await;
        }
        let run = run_of(40, 40, &[Bytes::from(vec![40; 8192])]);
        let taken = chain.append(Batch { runs: vec![run], ..Batch::default() });
        chain.wait(taken.expect("there is room")).await.expect("no fault");
        removal.join().await.expect("it ends").expect("there is room");
    });
}

#[test]
fn what_is_released_while_a_drive_leaves_does_not_keep_it() {
    // A segment of which nothing was left by its turn was taken for a damaged one.
    for after in (0..20).map(|step| Duration::from_micros(250 * step)) {
        within(20, async move |env| {
            let size_bytes = (64 << 10) + 12 * tiny_drives().segment_bytes;
            let options = ChainOptions { capacity_bytes: size_bytes, ..tiny_drives() };
            let first = create_sized(&env, THREE[0], size_bytes).await;
            let drives = vec![first, create_sized(&env, THREE[1], size_bytes).await];
            let chain = Chain::create(&env, drives, identity(), options).await.expect("created");
            append(&env, &chain, 0..100).await;
            let removing = chain.clone();
            let removal = env.spawn(async move { removing.remove_drive(removing.drive_ids()[0]).await });
            env.sleep(after).await;
            let release = || Batch { release: std::iter::once(0..100).collect(), ..Batch::default() };
            put(&env, &chain, release).await;
            // Segments that nobody needs are seen to be free when the next one is needed.
            append(&env, &chain, 100..140).await;
            let removed = removal.join().await.expect("it ends");
            assert_eq!(removed, Ok(()), "released {after:?} after the removal began");
        });
    }
}

/// Closes a chain so long after the removal of a drive with records on it began. Returns whether the drive was removed.
fn closed_while_leaving(after: Duration, options: &ChainOptions) -> bool {
    let world = World::new(17);
    let env = world.sim.env(world.process);
    let options = options.clone();
    world.sim.block_on(world.process, async move {
        let size_bytes = (64 << 10) + 24 * options.segment_bytes;
        let options = ChainOptions { capacity_bytes: size_bytes, ..options };
        let mut drives = Vec::new();
        for name in THREE {
            drives.push(create_sized(&env, name, size_bytes).await);
        }
        let chain = Chain::create(&env, drives.clone(), identity(), options.clone()).await.expect("created");
        append(&env, &chain, 0..350).await;
        let (ids, removing) = (chain.drive_ids(), chain.clone());
        let removal = env.spawn(async move { removing.remove_drive(removing.drive_ids()[0]).await });
        env.sleep(after).await;
        let began = env.now();
        chain.close().await.expect("no fault");
        let took = env.now().since(began);
        assert!(took < Duration::from_millis(20), "closing took {took:?}, {after:?} after the removal began");
        let removed = removal.join().await.expect("it ends");
        let is_removed = removed.is_ok();
        assert!(is_removed || removed == Err(ChainError::Closed.into()), "{removed:?}");
        if is_removed {
            drives.remove(0);
        }
        let (chain, recovered) =
            Chain::open(&env, drives, Some(&identity()), options).await.expect("these are its drives");
        assert_eq!(recovered.damage, []);
        assert_eq!(chain.drive_ids().len(), ids.len() - usize::from(is_removed));
        for key in 0..350 {
            assert!(chain.read(key).await.expect("no damage").is_some(), "key {key}, {after:?}");
        }
        is_removed
    })
}

#[test]
fn a_chain_that_is_closed_while_a_drive_leaves_is_closed_soon_and_keeps_everything() {
    // Moving all of a drive takes as long as that takes; whoever stops a process does not wait for it.
    for options in [tiny_drives(), ChainOptions { placement: Placement::RoundRobin, ..tiny_drives() }] {
        let mut after = Duration::ZERO;
        while !closed_while_leaving(after, &options) {
            after += Duration::from_micros(300);
            assert!(after < Duration::from_secs(1), "the drive is never removed");
        }
        assert!(after > Duration::from_millis(3), "{after:?}: nothing had to be moved");
    }
}

/// Opens the present drives of a chain with an old copy of one of them. Returns whether that is refused.
pub fn is_old_copy_refused(options: &ChainOptions) -> bool {
    let world = World::new(13);
    let env = world.sim.env(world.process);
    let options = options.clone();
    world.sim.block_on(world.process, async move {
        let drives = make_chain(&env).await;
        let old = crate::drives::copy(&env, &drives[1], "old", drives[1].size_bytes()).await;
        let (chain, _) = Chain::open(&env, drives.clone(), None, options.clone()).await.expect("it is well");
        chain.add_drive(open_named(&env, "chain-d").await).await.expect("it is blank");
        chain.close().await.expect("no fault");
        let mut mixed = drives.clone();
        mixed[1] = old;
        mixed.push(open_named(&env, "chain-d").await);
        let opened = Chain::open(&env, mixed, None, options).await;
        matches!(opened, Err(OpenError::StaleDrive { drive, .. }) if drive == "old")
    })
}

#[test]
fn an_old_copy_of_a_drive_is_refused() {
    assert!(is_old_copy_refused(&tiny_drives()));
}

#[test]
fn after_a_change_only_the_new_set_is_accepted() {
    within(14, async |env| {
        let drives = make_chain(&env).await;
        let opened = Chain::open(&env, drives.clone(), None, tiny_drives()).await;
        let (chain, _) = opened.expect("it is well");
        let added = open_named(&env, "chain-d").await;
        let id = chain.add_drive(added.clone()).await.expect("it is blank");
        let release = Batch { release: std::iter::once(0..1000).collect(), ..Batch::default() };
        chain.wait(chain.append(release).expect("the reserve")).await.expect("no fault");
        let leaving = chain.drive_ids()[0];
        let removed = drives[0].clone();
        let kept = crate::drives::copy(&env, &removed, "kept", removed.size_bytes()).await;
        chain.remove_drive(leaving).await.expect("everything is released");
        assert_eq!(chain.drive_ids().last(), Some(&id));
        chain.close().await.expect("no fault");
        is_refused(&env, &drives[1..], |error| matches!(error, OpenError::DriveMissing { .. })).await;
        let rest = [drives[1].clone(), drives[2].clone(), added];
        // A copy that still says that it is a drive of the chain.
        let with_kept = [&rest[..], &[kept]].concat();
        is_refused(
            &env,
            &with_kept,
            |error| matches!(error, OpenError::NotAMember { drive, .. } if drive == "kept"),
        )
        .await;
        Chain::open(&env, rest.to_vec(), None, tiny_drives()).await.expect("these are the chain's");
    });
}

/// Adds a drive while no superblock gets written and the log has nowhere else to go; cuts the power as soon as it is
/// full. Returns whether every acknowledged record is there again.
pub fn is_kept_while_adding(options: &ChainOptions) -> bool {
    let world = World::new(15);
    let env = world.sim.env(world.process);
    // A cleaner would make room on the drive that is silent.
    let options = ChainOptions { cleaning: Cleaning::Off, ..options.clone() };
    let again = options.clone();
    let size_bytes = options.capacity_bytes;
    let (chain, filled) = world.sim.block_on(world.process, async move {
        let drives = vec![
            create_sized(&env, THREE[0], size_bytes).await,
            create_sized(&env, THREE[1], size_bytes).await,
        ];
        let chain = Chain::create(&env, drives, identity(), again).await.expect("created");
        append(&env, &chain, 0..45).await;
        assert!(chain.stats().links[1].is_tail, "all that is written goes to the second drive");
        (chain, 45)
    });
    let slow = world.sim.drive(MACHINE, THREE[0]);
    world.sim.fault_drive(slow, DriveFault::Stuck { span: Duration::from_secs(3600) });
    let env = world.sim.env(world.process);
    let end = world.sim.block_on(world.process, async move {
        let added = create_sized(&env, THREE[2], size_bytes).await;
        let adds = chain.clone();
        env.spawn(async move { _ = adds.add_drive(added).await });
        env.sleep(Duration::from_secs(1)).await;
        fill(&env, &chain, filled).await
    });
    world.sim.end(world.process, Death::PowerCut);
    world.sim.restart(world.process);
    let env = world.sim.env(world.process);
    let options = options.clone();
    world.sim.block_on(world.process, async move {
        let before = open_drives(&env, &[THREE[0], THREE[1]]).await;
        let opened = match Chain::open(&env, before, None, options.clone()).await {
            Err(OpenError::DriveMissing { .. }) => {
                Chain::open(&env, open_drives(&env, &THREE).await, None, options).await
            }
            opened => opened,
        };
        let Ok((chain, _)) = opened else { return false };
        for key in 0..end {
            if chain.read(key).await.expect("no damage").is_none() {
                return false;
            }
        }
        true
    })
}

#[test]
fn a_new_drive_takes_no_record_before_every_drive_knows_of_it() {
    assert!(is_kept_while_adding(&tiny_drives()));
}

/// Appends a record to a drive that has stopped to answer, takes that drive out, and appends another record, which goes to the other drive.
/// Then the power is cut, and once more at I/O point `point` of the open that follows. Returns whether there was such a point; none if what
/// is appended does not begin a segment on that drive.
fn cut_while_a_silent_drive_leaves(count: u64, leaving: usize, point: u64) -> Option<bool> {
    let world = World::new(count);
    let size_bytes = (64 << 10) + 8 * tiny_drives().segment_bytes;
    let options = move || {
        let placement = Placement::RoundRobin;
        ChainOptions { placement, capacity_bytes: size_bytes, flights: 3, ..tiny_drives() }
    };
    let env = world.sim.env(world.process);
    let chain = world.sim.block_on(world.process, async move {
        let first = create_sized(&env, THREE[0], size_bytes).await;
        let drives = vec![first, create_sized(&env, THREE[1], size_bytes).await];
        let chain = Chain::create(&env, drives, identity(), options()).await.expect("created");
        append(&env, &chain, 0..count).await;
        chain
    });
    let silent = world.sim.drive(MACHINE, THREE[leaving]);
    world.sim.fault_drive(silent, DriveFault::Stuck { span: Duration::from_secs(1) });
    let env = world.sim.env(world.process);
    let begins = world.sim.block_on(world.process, async move {
        let is_tail = |chain: &Chain| chain.stats().links[leaving].is_tail;
        let batch =
            |key| Batch { runs: vec![run_of(key, key, &[Bytes::from(vec![1; 8192])])], ..Batch::default() };
        let was_tail = is_tail(&chain);
        chain.append(batch(count)).expect("room");
        env.sleep(Duration::from_millis(10)).await;
        let begins = !was_tail && is_tail(&chain);
        let removing = chain.clone();
        env.spawn(async move { _ = removing.remove_drive(removing.drive_ids()[leaving]).await });
        env.sleep(Duration::from_millis(10)).await;
        chain.append(batch(count + 1)).expect("room");
        env.sleep(Duration::from_millis(10)).await;
        begins
    });
    world.sim.end(world.process, Death::PowerCut);
    world.sim.restart(world.process);
    begins.then(|| is_prefix_there_wherever_an_open_is_cut_off(&world, count, options(), point))
}

/// Opens two drives with `count` acknowledged records and two that were on their way in this order, is cut off at I/O point `point`, and opens
/// them again. Returns whether there was such a point.
fn is_prefix_there_wherever_an_open_is_cut_off(
    world: &World,
    count: u64,
    options: ChainOptions,
    point: u64,
) -> bool {
    world.sim.end_at_io(world.process, world.sim.io_points(world.process) + point, Death::PowerCut);
    let (env, again) = (world.sim.env(world.process), options.clone());
    let is_open = world.comes_to_its_end(async move {
        let (_, recovered) =
            Chain::open(&env, open_drives(&env, &THREE[..2]).await, None, again).await.expect("it is well");
        assert_eq!(recovered.damage, []);
    });
    world.cut_power();
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (chain, recovered) =
            Chain::open(&env, open_drives(&env, &THREE[..2]).await, None, options).await.expect("it is well");
        assert_eq!(recovered.damage, []);
        let mut there = Vec::new();
        for key in 0..count + 2 {
            if chain.read(key).await.expect("no damage").is_some() {
                there.push(key);
            }
        }
        let end = there.len() as u64;
        assert!(
            end >= count && there.iter().copied().eq(0..end),
            "{there:?} of {count} and two, cut at {point}"
        );
    });
    !is_open
}

#[test]
fn groups_that_overtake_the_last_one_on_a_leaving_drive_do_not_count_without_it() {
    // A segment with one group, which is lost; the next group, on the other drive, said that the segment was in use.
    let mut lost = 0;
    for (count, leaving) in (0..40).flat_map(|count| [(count, 0), (count, 1)]) {
        let points = (1..)
            .map_while(|point| cut_while_a_silent_drive_leaves(count, leaving, point))
            .take_while(|cut| *cut);
        lost += points.count();
    }
    assert!(lost > 100, "only {lost} I/O points");
}
