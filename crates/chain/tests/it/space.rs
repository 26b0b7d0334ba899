//! Full drives, the reserve, recycling, growing, failing drives, bounded queues.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{
    AppendError, Batch, Chain, ChainError, ChainOptions, ChangeError, OpenError, SideState, Ticket,
};
use ithaca_env::Env;
use ithaca_env::drive::{Drive, DriveError, OpenDrive, Wrapper};
use ithaca_env::sim::{Death, DriveFault, Sim, SimOptions};

use crate::drives::{append, within};
use crate::mirrors::states;
use crate::model::{junk, run_of};
use crate::repairs::Held;
use crate::world::{MACHINE, World, identity, open_drive, open_named, small_options};

fn data(key: u64, bytes: usize) -> Batch {
    Batch { runs: vec![run_of(key, key, &[Bytes::from(vec![key as u8; bytes])])], ..Batch::default() }
}

fn release(from: u64, end: u64) -> Batch {
    Batch { release: std::iter::once(from..end).collect(), ..Batch::default() }
}

async fn create(env: &Env, options: ChainOptions) -> Chain {
    Chain::create(env, open_drive(env).await, identity(), options).await.expect("created")
}

/// Appends until the drive is full; returns the first key that did not fit.
async fn fill(env: &Env, chain: &Chain, key: u64) -> u64 {
    fill_with(env, chain, key, |key| data(key, 4096)).await
}

/// The same with such a batch for each key.
async fn fill_with(env: &Env, chain: &Chain, mut key: u64, batch: impl Fn(u64) -> Batch) -> u64 {
    loop {
        match chain.append(batch(key)) {
            Ok(ticket) => {
                chain.wait(ticket).await.expect("no fault");
                key += 1;
            }
            Err(AppendError::Overloaded { .. }) => env.sleep(Duration::from_millis(1)).await,
            Err(AppendError::Full { .. }) => return key,
            Err(other) => panic!("{other}"),
        }
    }
}

/// Fills the drive, and releases everything with the help of the reserve; three times.
pub fn fill_and_release(options: &ChainOptions) {
    let world = World::new(1);
    let env = world.sim.env(world.process);
    let options = options.clone();
    world.sim.block_on(world.process, async move {
        let chain = create(&env, options.clone()).await;
        let mut first = 0;
        for _ in 0..3 {
            let end = fill(&env, &chain, first).await;
            let held_bytes = (end - first) * 4096;
            assert!(held_bytes * 3 > options.capacity_bytes, "only {held_bytes} bytes fit");
            // Filling a hole and releasing piece by piece work on a full drive.
            let ticket =
                chain.append(Batch { runs: vec![junk(end, 1, 1)], ..Batch::default() }).expect("the reserve");
            chain.wait(ticket).await.expect("no fault");
            for key in (first..=end).step_by(10) {
                let ticket = chain.append(release(first, key)).expect("the reserve is for this");
                chain.wait(ticket).await.expect("no fault");
            }
            let ticket = chain.append(release(first, end + 1)).expect("the reserve is for this");
            chain.wait(ticket).await.expect("no fault");
            first = end + 1;
        }
    });
}

#[test]
fn a_full_drive_still_releases_and_can_be_filled_again() {
    fill_and_release(&small_options());
}

#[test]
fn what_is_told_to_be_free_grows_when_something_is_released() {
    // It did only when hardly anything was free, so that an operator who had trimmed saw no room.
    let world = World::new(1);
    let env = world.sim.env(world.process);
    let options = small_options();
    world.sim.block_on(world.process, async move {
        let chain = create(&env, options.clone()).await;
        let keys = 4 * options.segment_bytes / 4096;
        for key in 0..keys {
            let ticket = chain.append(data(key, 4096)).expect("there is room");
            chain.wait(ticket).await.expect("no fault");
        }
        let before = chain.stats();
        assert!(before.links[0].segments_live > 4, "{before:?}");
        let ticket = chain.append(release(0, keys)).expect("there is room");
        chain.wait(ticket).await.expect("no fault");
        let after = chain.stats();
        assert_eq!(after.links[0].segments_live, 1, "the one that is being written");
        assert!(after.free_bytes > before.free_bytes + options.segment_bytes, "{after:?}");
        assert!(after.records < before.records, "{after:?}");
    });
}

#[test]
fn data_that_may_uses_half_of_the_reserve_and_leaves_the_rest_to_releases() {
    let world = World::new(1);
    let env = world.sim.env(world.process);
    let options = small_options();
    world.sim.block_on(world.process, async move {
        let chain = create(&env, options.clone()).await;
        let first = fill(&env, &chain, 0).await;
        let that_may = |key| Batch { may_use_reserve: true, ..data(key, 4096) };
        let key = fill_with(&env, &chain, first, that_may).await;
        let reserve_bytes = options.reserve_segments as u64 * options.segment_bytes;
        assert!((key - first) * 4096 * 6 > reserve_bytes, "{} of {reserve_bytes}", (key - first) * 4096);
        let ticket = chain.append(release(0, key)).expect("the rest is for this");
        chain.wait(ticket).await.expect("no fault");
        assert!(fill(&env, &chain, key).await > key, "there is room again");
    });
}

#[test]
fn a_drive_that_had_no_room_to_grow_grows_when_there_is_room() {
    // A file system that was full once is not full for ever: the log must not wait for the next start to find out.
    let options = SimOptions { machine_capacity_bytes: 2 << 20, ..SimOptions::default() };
    let sim = Sim::with_options(1, options);
    let node = sim.process("node", MACHINE);
    let env = sim.env(node);
    let first = env.clone();
    let (chain, end) = sim.block_on(node, async move {
        let others = OpenDrive { path: "others".into(), create_bytes: Some(1 << 20), read_only: false };
        first.open_drive(others).await.expect("it fits");
        let chain = create(&first, small_options()).await;
        let end = fill(&first, &chain, 0).await;
        (chain, end)
    });
    let full_bytes = sim.drive_size_bytes(sim.drive(MACHINE, "chain")).expect("it is there");
    assert!(full_bytes <= 1 << 20, "{full_bytes}: it had no room");
    sim.fault_drive(sim.drive(MACHINE, "others"), DriveFault::Replace);
    sim.block_on(node, async move {
        // Not even while it is busy with what a full drive still takes.
        for nth in 0..30 {
            let ticket = chain.append(Batch { runs: vec![junk((1 << 40) + nth, 1, 1)], ..Batch::default() });
            chain.wait(ticket.expect("the reserve")).await.expect("no fault");
            env.sleep(Duration::from_millis(100)).await;
        }
        let more = fill(&env, &chain, end).await;
        assert!(more > end, "there is room again");
        chain.close().await.expect("no fault");
    });
    let bytes = sim.drive_size_bytes(sim.drive(MACHINE, "chain")).expect("it is there");
    assert!(bytes > full_bytes, "{bytes} bytes");
}

#[test]
fn a_drive_that_has_not_the_room_to_grow_by_much_grows_by_what_there_is() {
    // To ask for a whole growth only would leave a log full for ever beside room for many entries.
    let capacity_bytes = 2 << 20;
    let options = SimOptions { machine_capacity_bytes: capacity_bytes, ..SimOptions::default() };
    let sim = Sim::with_options(1, options);
    let node = sim.process("node", MACHINE);
    let env = sim.env(node);
    let first = env.clone();
    let options = ChainOptions { grow_bytes: 4 << 20, capacity_bytes: 8 << 20, ..small_options() };
    let segment_bytes = options.segment_bytes;
    let (chain, end) = sim.block_on(node, async move {
        let others = OpenDrive { path: "others".into(), create_bytes: Some(512 << 10), read_only: false };
        first.open_drive(others).await.expect("it fits");
        let chain = create(&first, options).await;
        let end = fill(&first, &chain, 0).await;
        (chain, end)
    });
    let size_bytes = || sim.drive_size_bytes(sim.drive(MACHINE, "chain")).expect("it is there");
    let left_bytes = capacity_bytes - (512 << 10) - size_bytes();
    assert!(left_bytes < segment_bytes, "{left_bytes} bytes are left");
    sim.fault_drive(sim.drive(MACHINE, "others"), DriveFault::Replace);
    sim.block_on(node, async move {
        env.sleep(Duration::from_secs(2)).await;
        assert!(fill(&env, &chain, end).await > end, "there is room again");
        chain.close().await.expect("no fault");
    });
    let left_bytes = capacity_bytes - size_bytes();
    assert!(left_bytes < segment_bytes, "{left_bytes} bytes are left");
}

#[test]
fn a_drive_that_opens_have_filled_up_says_so() {
    // Each open takes a block or two for its marks. When none is left it must end in an error, not wait for ever.
    // With a reserve of one segment junk may use all of it, which data and junk otherwise leave to releases.
    let options = ChainOptions { reserve_segments: 1, ..small_options() };
    let world = World::new(5);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let chain = create(&env, options.clone()).await;
        fill(&env, &chain, 0).await;
        while chain.append(Batch { runs: vec![junk(1 << 40, 1, 1)], ..Batch::default() }).is_ok() {
            env.sleep(Duration::from_micros(500)).await;
        }
        chain.close().await.expect("no fault");
        for opens in 0..1000 {
            match Chain::open(&env, open_drive(&env).await, None, options.clone()).await {
                Ok((chain, _)) => chain.close().await.expect("no fault"),
                Err(OpenError::NoRoom { .. }) => {
                    assert!(opens > 3, "the last half segment is kept for this");
                    return;
                }
                Err(other) => panic!("{other}"),
            }
        }
        panic!("it never fills up");
    });
}

#[test]
fn a_log_many_times_as_long_as_the_drive_fits_when_it_is_released() {
    // Segments are recycled; the file stays within its capacity.
    let world = World::new(2);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let chain = create(&env, small_options()).await;
        for key in 0..3000 {
            let ticket =
                chain.append(Batch { release: release(0, key / 100 * 100).release, ..data(key, 4096) });
            chain.wait(ticket.expect("there is room")).await.expect("no fault");
        }
        let stats = chain.stats();
        assert!(stats.counters.segments_closed > 60, "{stats:?}");
        assert!(stats.segments_closed < 20, "dead segments are free again: {stats:?}");
    });
    let size = world.sim.drive_size_bytes(world.sim.drive(MACHINE, "chain")).expect("it is there");
    assert!(size <= small_options().capacity_bytes, "{size} bytes");
}

#[test]
fn after_a_failed_write_nothing_more_is_written_and_the_first_error_stays() {
    let world = World::new(3);
    let drive = world.sim.drive(MACHINE, "chain");
    let env = world.sim.env(world.process);
    let chain = world.sim.block_on(world.process, async move {
        let chain = create(&env, ChainOptions { segments_ready: 0, ..small_options() }).await;
        let ticket = chain.append(data(0, 100)).expect("room");
        chain.wait(ticket).await.expect("no fault yet");
        chain
    });
    world.sim.fault_drive(drive, DriveFault::FailWrites { count: 1 });
    world.sim.block_on(world.process, async move {
        let failing = chain.append(data(1, 100)).expect("room");
        let second = chain.append(data(2, 100)).expect("room");
        let Err(ChainError::Failed { first }) = chain.wait(failing).await else { panic!("it must fail") };
        assert_eq!(chain.wait(second).await, Err(ChainError::Failed { first: first.clone() }));
        let refused = chain.append(data(3, 100));
        assert_eq!(refused, Err(AppendError::Stopped(ChainError::Failed { first })));
        assert_eq!(chain.durable(), Ticket(1));
        let kept = chain.read(0).await.expect("what was durable can be read").expect("it is there");
        assert_eq!(kept.data.len(), 100);
        assert_eq!(chain.read(1).await, Ok(None));
    });
    world.sim.end(world.process, Death::PowerCut);
    world.sim.restart(world.process);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (chain, recovered) =
            Chain::open(&env, open_drive(&env).await, None, small_options()).await.expect("it opens");
        assert!(recovered.covered.contains(0));
        chain.close().await.expect("no fault any more");
    });
}

#[test]
fn the_queue_is_bounded_and_what_is_too_large_or_too_sparse_is_refused() {
    let world = World::new(4);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let options = ChainOptions { queue_max_bytes: 64 << 10, ..small_options() };
        let chain = create(&env, options).await;
        let mut last = Ticket(0);
        let refused = (0..100).find_map(|key| match chain.append(data(key, 4096)) {
            Ok(ticket) => {
                last = ticket;
                None
            }
            Err(error) => Some(error),
        });
        assert!(matches!(refused, Some(AppendError::Overloaded { .. })), "{refused:?}");
        chain.wait(last).await.expect("no fault");
        assert!(matches!(chain.append(data(200, 100 << 10)), Err(AppendError::TooLarge { .. })));
        let state = Batch { state: Some(Bytes::from(vec![0; 20 << 10])), ..Batch::default() };
        assert!(matches!(chain.append(state), Err(AppendError::StateTooLong { .. })));
        let every_other = |keys: u64| Batch {
            release: (0..keys).map(|index| 1000 + 2 * index..1001 + 2 * index).collect(),
            ..Batch::default()
        };
        let ticket = chain.append(every_other(500)).expect("so many pieces are allowed");
        chain.wait(ticket).await.expect("no fault");
        let refused = chain.append(every_other(1000)).err();
        assert!(matches!(refused, Some(AppendError::TooSparse { ranges: 1000, .. })), "{refused:?}");
        let joins = chain.append(release(1000, 20_000)).expect("a release that joins the others is taken");
        chain.wait(joins).await.expect("no fault");
    });
}

/// Appends to a chain of so many sides, of which the last ends with `error` when it is to grow. Which are live then, and why the chain
/// has stopped if it has.
fn grow_with(seed: u64, sides: usize, error: DriveError, expected: (&'static [bool], Option<ChainError>)) {
    within(seed, async move |env| {
        let mut drives = Vec::new();
        for name in ["a", "b"].iter().take(sides) {
            drives.push(Held::new(&env, &open_named(&env, name).await));
        }
        let link: Vec<Drive> = drives.iter().map(Held::as_drive).collect();
        let chain = Chain::create(&env, vec![link], identity(), small_options()).await.expect("created");
        *drives[sides - 1].grows_with.borrow_mut() = Some(error);
        for key in 0..100 {
            let Ok(ticket) = chain.append(data(key, 8192)) else { break };
            if chain.wait(ticket).await.is_err() {
                break;
            }
        }
        let live: Vec<bool> = states(&chain).iter().map(|(_, state)| *state == SideState::Live).collect();
        assert_eq!((&live[..], chain.stopped()), expected);
    });
}

#[test]
fn a_growth_that_cannot_be_made_durable_is_a_failure_and_one_that_is_refused_is_none() {
    // The system tells of what it could not write once: no later sync would.
    let path = || "b".to_owned();
    let first = DriveError::Io { path: path(), operation: "grow", offset: 0, message: "no".to_owned() };
    grow_with(71, 2, first.clone(), (&[true, false], None));
    grow_with(72, 1, first.clone(), (&[true], Some(ChainError::Failed { first })));
    for error in [
        DriveError::NoSpace { path: path(), operation: "grow", offset: 0 },
        DriveError::CannotGrow { path: path(), message: "no".to_owned() },
    ] {
        grow_with(73, 2, error.clone(), (&[true, true], None));
        grow_with(74, 1, error, (&[true], None));
    }
}

#[test]
fn a_new_drive_that_cannot_be_made_large_enough_is_too_small() {
    // A block device is what it is: that is no failure of it.
    within(75, async |env| {
        let small = Held::new(&env, &open_named(&env, "small").await);
        let refusal = DriveError::CannotGrow { path: "small".to_owned(), message: "no".to_owned() };
        *small.grows_with.borrow_mut() = Some(refusal);
        let is_too_small = |error: Option<OpenError>| {
            let told = matches!(&error, Some(OpenError::TooSmall { drive, found_bytes, needed_bytes })
                if drive == "small" && found_bytes < needed_bytes);
            assert!(told, "{error:?}");
        };
        is_too_small(Chain::create(&env, small.as_drive(), identity(), small_options()).await.err());
        let chain = create(&env, small_options()).await;
        let of_open = |error| match error {
            Some(ChangeError::Open(error)) => Some(error),
            other => panic!("{other:?}"),
        };
        is_too_small(of_open(chain.add_drive(small.as_drive()).await.err()));
        is_too_small(of_open(chain.add_side(chain.drive_ids()[0], small.as_drive()).await.err()));
    });
}

#[test]
fn a_log_that_rests_has_segments_written_over_for_as_much_as_it_took() {
    // While it is written to the drive is its own; what it will take next is made ready when nobody waits.
    within(6, async |env| {
        let options = ChainOptions { grow_bytes: 4 << 20, ..small_options() };
        let chain = create(&env, options).await;
        for key in 0..100 {
            let ticket = chain.append(data(key, 8192)).expect("there is room");
            chain.wait(ticket).await.expect("no fault");
        }
        let busy = chain.stats();
        env.sleep(Duration::from_secs(1)).await;
        let calm = chain.stats();
        assert!(busy.segments_closed >= 5 && busy.segments_ready <= 3, "{busy:?}");
        assert!(calm.segments_ready > busy.segments_closed && calm.segments_raw > 0, "{calm:?}");
    });
}

/// A drive whose places need not be recorded by anybody, as those of a block device.
struct Device(Drive);

impl Wrapper for Device {
    fn drive(&self) -> &Drive {
        &self.0
    }

    fn allocates(&self) -> bool {
        false
    }
}

#[test]
fn only_a_drive_that_allocates_is_written_over_in_advance() {
    // Of a block device each byte would be written twice, and the log wait for both.
    let written_bytes = |allocates: bool, segments_ready: usize| {
        let world = World::new(31);
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let file = open_drive(&env).await;
            let drive = if allocates { file } else { Drive::new(Rc::new(Device(file))) };
            let options = ChainOptions { segments_ready, ..small_options() };
            let chain =
                Chain::create(&env, drive.clone(), identity(), options.clone()).await.expect("created");
            append(&env, &chain, 0..60).await;
            env.sleep(Duration::from_secs(1)).await;
            append(&env, &chain, 60..120).await;
            chain.close().await.expect("no fault");
            let (chain, recovered) = Chain::open(&env, drive, None, options).await.expect("it is well");
            assert_eq!(recovered.damage, []);
            for key in 0..120 {
                assert!(chain.read(key).await.expect("no damage").is_some(), "key {key}");
            }
        });
        let stats = world.sim.drive_stats(world.sim.drive(MACHINE, "chain"));
        stats.writes.bytes + stats.durable_writes.bytes
    };
    let log_bytes = written_bytes(true, 0);
    assert_eq!(written_bytes(false, 1), log_bytes);
    let in_advance = written_bytes(true, 1) - log_bytes;
    assert!(in_advance > 120 * 8192, "{in_advance} bytes: the test says nothing");
}
