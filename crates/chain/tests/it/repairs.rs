//! What one side of a link lacks is written to it again: where no side has all of it, where nobody waits for that any more, and
//! where it fails.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{Batch, Chain, ChainOptions, SideState};
use ithaca_env::Env;
use ithaca_env::drive::{Drive, DriveError, DriveFuture, Durability, Pieces, Wrapper};
use ithaca_env::sim::DriveFault;
use ithaca_env::sync::Notify;

use crate::drives::append;
use crate::mirrors::{A, B, check_keys, closed_pair, fault, place_of, read_small, rebuilt, states};
use crate::model::run_of;
use crate::world::{MACHINE, World, identity, open_drives, small_options};

/// A drive of which a test says which writes it holds back or fails, which reads it fails, and how it grows.
#[derive(Clone)]
pub struct Held {
    env: Env,
    drive: Drive,
    /// Writes to these bytes are done only when the test lets them.
    held: Rc<RefCell<Range<u64>>>,
    /// Writes that are held back.
    waiting: Rc<Cell<u32>>,
    free: Rc<Notify>,
    /// So many writes to come fail.
    pub failing: Rc<Cell<u32>>,
    /// Reads of these bytes fail, but for so many of them that come first.
    pub unreadable: Rc<RefCell<(Range<u64>, u32)>>,
    /// What a growth ends with.
    pub grows_with: Rc<RefCell<Option<DriveError>>>,
}

/// Where superblocks lie.
const ZONE: Range<u64> = 0..64 << 10;

impl Held {
    pub fn new(env: &Env, drive: &Drive) -> Self {
        Self {
            env: env.clone(),
            drive: drive.clone(),
            held: Rc::default(),
            waiting: Rc::default(),
            free: Rc::default(),
            failing: Rc::default(),
            unreadable: Rc::default(),
            grows_with: Rc::default(),
        }
    }

    /// The drive to give to a chain.
    pub fn as_drive(&self) -> Drive {
        Drive::new(Rc::new(self.clone()))
    }

    /// Holds back writes to these bytes from now on.
    fn hold(&self, bytes: Range<u64>) {
        self.held.replace(bytes);
    }

    /// Lets all writes be done.
    fn let_go(&self) {
        self.held.replace(0..0);
        self.free.ring();
    }
}

impl Wrapper for Held {
    fn drive(&self) -> &Drive {
        &self.drive
    }

    fn read(&self, offset: u64, len: usize) -> DriveFuture<Bytes> {
        let (bytes, left) = &mut *self.unreadable.borrow_mut();
        if offset < bytes.end && bytes.start < offset + len as u64 {
            if *left == 0 {
                let (path, message) = (self.drive.name(), "not now".to_owned());
                return Box::pin(
                    async move { Err(DriveError::Io { path, operation: "read", offset, message }) },
                );
            }
            *left -= 1;
        }
        self.drive.read(offset, len)
    }

    fn write(&self, offset: u64, data: Pieces, durability: Durability) -> DriveFuture<()> {
        if self.failing.get() > 0 {
            self.failing.set(self.failing.get() - 1);
            let (path, message) = (self.drive.name(), "not now".to_owned());
            return Box::pin(
                async move { Err(DriveError::Io { path, operation: "write", offset, message }) },
            );
        }
        let end = offset + data.len() as u64;
        let is_held = move |held: &RefCell<Range<u64>>| {
            let held = held.borrow();
            held.start < end && offset < held.end
        };
        if !is_held(&self.held) {
            return self.drive.write(offset, data, durability);
        }
        self.waiting.set(self.waiting.get() + 1);
        let it = self.clone();
        // It is done whether somebody waits for it or not.
        let written = self.env.spawn(async move {
            it.free.until(|| (!is_held(&it.held)).then_some(())).await;
            let written = it.drive.write(offset, data, durability).await;
            it.waiting.set(it.waiting.get() - 1);
            written
        });
        Box::pin(async move { written.join().await.expect("it ends") })
    }

    fn grow(&self, size_bytes: u64) -> DriveFuture<()> {
        match self.grows_with.borrow().clone() {
            Some(error) => Box::pin(async move { Err(error) }),
            None => self.drive.grow(size_bytes),
        }
    }
}

pub fn uncached() -> ChainOptions {
    ChainOptions { tail_cache_bytes: 0, ..small_options() }
}

/// Flips a bit of small records, each on one side.
pub fn rot(world: &World, places: &[(&str, u64)]) {
    for &(name, key) in places {
        let offset = place_of(world, name, key) + 300;
        fault(&world.sim, name, DriveFault::BitRot { offset, bit: 4 });
    }
}

/// Opens the chain over these drives, and closes it.
pub fn open_and_close(
    world: &World,
    names: &'static [&'static str],
    work: impl AsyncFnOnce(&Env, &Chain) + 'static,
) {
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let drives = open_drives(&env, names).await;
        let (chain, recovered) = Chain::open(&env, drives, None, uncached()).await.expect("it opens");
        assert_eq!(recovered.damage, []);
        work(&env, &chain).await;
        assert_eq!(chain.stats().damage, []);
        chain.close().await.expect("no fault");
    });
}

/// Whether the side has every small record by itself.
pub fn is_whole_alone(world: &World, name: &'static str, upto: u64) {
    let names: &'static [&'static str] = if name == A { &[A] } else { &[B] };
    open_and_close(world, names, async move |_, chain| {
        for key in 0..upto {
            let record = chain.read(key).await.expect("no damage").expect("it is there");
            assert_eq!(record.data, vec![key as u8 + 1; 900], "key {key} of {name}");
        }
    });
}

/// A link of two sides whose last group has eight small records; it was not closed.
pub fn one_last_group(seed: u64) -> World {
    let world = World::over(seed, &[A, B]);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let sides = vec![open_drives(&env, &[A, B]).await];
        let chain = Chain::create(&env, sides, identity(), uncached()).await.expect("created");
        let small: Vec<Bytes> = (0..8).map(|key| Bytes::from(vec![key + 1; 900])).collect();
        let batch = Batch { runs: vec![run_of(0, 1, &small)], ..Batch::default() };
        chain.wait(chain.append(batch).expect("room")).await.expect("no fault");
        chain.abandon().await;
    });
    world
}

#[test]
fn a_last_group_of_which_each_side_has_a_part_is_whole_on_both_after_an_open() {
    // Power goes during the write of the last group. No record of it is lost on both sides, so it is shown: both must have it.
    for alone in [A, B] {
        let world = one_last_group(40);
        rot(&world, &[(A, 2), (B, 5), (A, 7)]);
        open_and_close(&world, &[A, B], async |_, _| ());
        is_whole_alone(&world, alone, 8);
    }
}

#[test]
fn a_group_of_which_each_side_has_a_part_is_whole_on_both_after_a_scrub() {
    for alone in [A, B] {
        let world = closed_pair(41);
        rot(&world, &[(A, 8), (B, 9), (B, 11)]);
        open_and_close(&world, &[A, B], async |_, chain| {
            chain.scrub().await.expect("it runs");
            assert!(chain.stats().repaired > 0);
        });
        is_whole_alone(&world, alone, 40);
    }
}

#[test]
fn a_side_is_rebuilt_from_what_it_has_and_what_the_live_one_has() {
    let world = closed_pair(42);
    // B has missed something, and is harmed where A is not, and whole where A is harmed.
    open_and_close(&world, &[A], async |_, _| ());
    rot(&world, &[(A, 8), (B, 9), (B, 11)]);
    open_and_close(&world, &[A, B], async |env, chain| rebuilt(env, chain).await);
    is_whole_alone(&world, B, 40);
}

/// A link of these sides with eight small records in one group, and `behind` them others of 8 KiB; it was closed. And where the head of
/// that group is.
pub fn one_group(seed: u64, names: &'static [&'static str], behind: Range<u64>) -> (World, u64) {
    let world = World::over(seed, names);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let sides = vec![open_drives(&env, names).await];
        let chain = Chain::create(&env, sides, identity(), uncached()).await.expect("created");
        let small: Vec<Bytes> = (0..8).map(|key| Bytes::from(vec![key + 1; 900])).collect();
        let batch = Batch { runs: vec![run_of(0, 1, &small)], ..Batch::default() };
        chain.wait(chain.append(batch).expect("room")).await.expect("no fault");
        append(&env, &chain, behind).await;
        chain.close().await.expect("no fault");
    });
    let head = (place_of(&world, names[0], 0) - 1) / 4096 * 4096;
    (world, head)
}

#[test]
fn what_the_first_live_side_lacks_is_not_taken_from_it() {
    // Of the group that the third side is to get the first one has no head, and the second not every record.
    let (world, head) = one_group(43, &[A, B, "third"], 40..80);
    open_and_close(&world, &[A, B], async |_, _| ());
    fault(&world.sim, A, DriveFault::BitRot { offset: head + 30, bit: 1 });
    rot(&world, &[(B, 6), ("third", 6), ("third", 7)]);
    open_and_close(&world, &[A, B, "third"], async |env, chain| rebuilt(env, chain).await);
    let block = |name| world.sim.peek_drive(world.sim.drive(MACHINE, name), head, 4096);
    assert!(block(B).starts_with(b"ITHG") && block("third") == block(B), "it has the head");
    open_and_close(&world, &["third"], async |_, chain| {
        for key in 0..8 {
            let record = chain.read(key).await.expect("no damage").expect("it is there");
            assert_eq!(record.data, vec![key as u8 + 1; 900], "key {key}");
        }
    });
}

/// Opens what `closed_pair` left over drives that the test holds.
pub async fn open_held(env: &Env) -> (Chain, Vec<Held>) {
    let sides: Vec<Held> = open_drives(env, &[A, B]).await.iter().map(|it| Held::new(env, it)).collect();
    let drives: Vec<Drive> = sides.iter().map(Held::as_drive).collect();
    let (chain, _) = Chain::open(env, drives, None, uncached()).await.expect("it opens");
    env.sleep(Duration::from_secs(1)).await;
    (chain, sides)
}

/// Runs this until a write is held back, and drops it there.
async fn until_held(env: &Env, held: &Held, work: impl Future<Output = ()>) {
    let mut work: Pin<Box<dyn Future<Output = ()> + '_>> = Box::pin(work);
    for _ in 0..5000 {
        if held.waiting.get() > 0 {
            return;
        }
        assert!(
            work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(),
            "nothing is mended"
        );
        env.sleep(Duration::from_micros(100)).await;
    }
    panic!("nothing is written");
}

/// Reads all small records, or scrubs.
async fn find_harm(chain: &Chain, scrubs: bool) {
    match scrubs {
        true => chain.scrub().await.expect("it runs"),
        false => assert_eq!(read_small(chain).await, Ok(true)),
    }
}

#[test]
fn a_repair_that_nobody_waits_for_any_more_ends_before_its_place_is_used_again() {
    for scrubs in [false, true] {
        let world = closed_pair(44);
        let place = place_of(&world, A, 12) / 4096 * 4096;
        rot(&world, &[(A, 12)]);
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let (chain, sides) = open_held(&env).await;
            sides[0].hold(place..place + 4096);
            until_held(&env, &sides[0], find_harm(&chain, scrubs)).await;
            let held = sides[0].clone();
            let closed = env.spawn(async move { (chain.close().await, held.waiting.get()) });
            env.sleep(Duration::from_secs(1)).await;
            sides[0].let_go();
            let (closed, under_way) = closed.join().await.expect("it ends");
            assert_eq!((closed, under_way), (Ok(()), 0), "scrubs: {scrubs}");
        });
        is_whole_alone(&world, A, 40);
    }
}

#[test]
fn a_side_whose_repair_fails_is_given_up_though_nobody_waits_for_it_any_more() {
    for scrubs in [false, true] {
        let world = closed_pair(45);
        rot(&world, &[(A, 12)]);
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let (chain, sides) = open_held(&env).await;
            sides[0].failing.set(1);
            // What says so is held back on the other side.
            sides[1].hold(ZONE);
            until_held(&env, &sides[1], find_harm(&chain, scrubs)).await;
            sides[1].let_go();
            env.sleep(Duration::from_secs(1)).await;
            let found: Vec<SideState> = states(&chain).into_iter().map(|(_, state)| state).collect();
            assert_eq!(found, [SideState::Stale, SideState::Live], "memory says what the drives say");
            chain.close().await.expect("a side is left");
        });
        is_whole_alone(&world, B, 40);
    }
}

#[test]
fn a_side_that_fails_what_a_scrub_writes_to_it_is_given_up() {
    // A record that only the other one has, and a header.
    for is_header in [false, true] {
        let world = closed_pair(46);
        let place = if is_header { 64 << 10 } else { place_of(&world, A, 12) / 4096 * 4096 };
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let (chain, sides) = open_held(&env).await;
            let harmed = Bytes::from(vec![7; 4096]);
            sides[0].drive.write(place, harmed, Durability::Durable).await.expect("no fault");
            sides[0].failing.set(1);
            chain.scrub().await.expect("it runs");
            assert_eq!(sides[0].failing.get(), 0, "something was written");
            let found: Vec<SideState> = states(&chain).into_iter().map(|(_, state)| state).collect();
            assert_eq!(found, [SideState::Stale, SideState::Live]);
            check_keys(&chain, 40..80).await;
            chain.close().await.expect("a side is left");
        });
    }
}

#[test]
fn a_write_is_acknowledged_though_the_side_that_failed_it_hangs_when_it_is_told() {
    // Wherever in a segment: while nothing else is written, the other side has nothing to answer.
    for before in 80..90 {
        let world = closed_pair(47);
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let (chain, sides) = open_held(&env).await;
            append(&env, &chain, 80..before).await;
            env.sleep(Duration::from_secs(1)).await;
            sides[1].failing.set(1);
            // It takes the first two copies of its superblock, and no others.
            sides[1].hold(32 << 10..64 << 10);
            for key in before..before + 5 {
                let appended = env.timeout(Duration::from_secs(20), append(&env, &chain, key..key + 1)).await;
                assert!(appended.is_ok(), "key {key} waits for the side");
            }
            // What failed may have been written in the background.
            env.sleep(Duration::from_secs(20)).await;
            let found: Vec<SideState> = states(&chain).into_iter().map(|(_, state)| state).collect();
            assert_eq!(found, [SideState::Live, SideState::Stale]);
            sides[1].let_go();
            chain.close().await.expect("a side is left");
        });
        open_and_close(&world, &[A], async move |_, chain| check_keys(chain, 40..before + 5).await);
    }
}

#[test]
fn a_write_is_acknowledged_though_a_side_of_another_link_hangs_when_it_is_told() {
    // The log is on the first link, and nothing is asked of the second one but to take note that a side failed.
    let names = [A, B, "chain-c", "chain-d"];
    let world = World::over(48, &names);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let drives = open_drives(&env, &names).await;
        let sides: Vec<Held> = drives.iter().map(|it| Held::new(&env, it)).collect();
        let links = sides.chunks(2).map(|link| link.iter().map(Held::as_drive).collect::<Vec<Drive>>());
        let links: Vec<_> = links.collect();
        let chain = Chain::create(&env, links, identity(), uncached()).await.expect("created");
        append(&env, &chain, 40..42).await;
        sides[1].failing.set(1);
        sides[2].hold(ZONE);
        let appended = env.timeout(Duration::from_secs(20), append(&env, &chain, 42..43)).await;
        assert!(appended.is_ok(), "it waits for the side of the other link");
        let found: Vec<SideState> = states(&chain).into_iter().map(|(_, state)| state).collect();
        let (live, stale) = (SideState::Live, SideState::Stale);
        assert_eq!(found, [live, stale, stale, live]);
        sides[2].let_go();
        chain.close().await.expect("a side of each is left");
    });
}
