//! Sides that do not answer for a while: what they may have is not taken for lost, and they are not given up for what others find.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{Batch, Chain, ChainOptions, ReadError, SideState};
use ithaca_env::Env;
use ithaca_env::drive::{Drive, DriveFuture, Durability, Wrapper};
use ithaca_env::sim::DriveFault;
use ithaca_env::sync::Notify;

use crate::cleaning::eager;
use crate::mirrors::{A, B, check_keys, closed_pair, fault, place_of, read_small, states};
use crate::repairs::{Held, is_whole_alone, open_and_close, rot, uncached};
use crate::world::{MACHINE, World, open_drives};

/// What happens when a byte is read, and how long the answer then takes.
struct Event {
    byte: u64,
    act: Box<dyn FnOnce()>,
    rest: Duration,
}

/// A drive that answers no read while a test keeps it silent.
#[derive(Clone)]
struct Mute {
    env: Env,
    drive: Drive,
    is_silent: Rc<Cell<bool>>,
    changed: Rc<Notify>,
    /// One after the other.
    events: Rc<RefCell<VecDeque<Event>>>,
}

impl Mute {
    fn new(env: &Env, drive: &Drive) -> Self {
        let (is_silent, changed, events) = Default::default();
        Self { env: env.clone(), drive: drive.clone(), is_silent, changed, events }
    }

    fn be_silent(&self, is_silent: bool) {
        self.is_silent.set(is_silent);
        self.changed.ring();
    }

    /// When this byte is read, after what was to come before, `act` comes, and the answer so much later.
    fn when_read(&self, byte: u64, rest: Duration, act: impl FnOnce() + 'static) {
        self.events.borrow_mut().push_back(Event { byte, act: Box::new(act), rest });
    }
}

impl Wrapper for Mute {
    fn drive(&self) -> &Drive {
        &self.drive
    }

    fn read(&self, offset: u64, len: usize) -> DriveFuture<Bytes> {
        let it = self.clone();
        let is_next = |event: &Event| (offset..offset + len as u64).contains(&event.byte);
        let is_due = self.events.borrow().front().is_some_and(is_next);
        let event = if is_due { self.events.borrow_mut().pop_front() } else { None };
        Box::pin(async move {
            if let Some(event) = event {
                (event.act)();
                it.env.sleep(event.rest).await;
            }
            it.changed.until(|| (!it.is_silent.get()).then_some(())).await;
            it.drive.read(offset, len).await
        })
    }
}

/// The two sides, and what they are to a chain.
async fn mute_sides(env: &Env) -> ([Mute; 2], Vec<Drive>) {
    let sides: Vec<Mute> = open_drives(env, &[A, B]).await.iter().map(|it| Mute::new(env, it)).collect();
    let drives = sides.iter().map(|side| Drive::new(Rc::new(side.clone()))).collect();
    (sides.try_into().unwrap_or_else(|_| panic!("two sides")), drives)
}

/// Opens what `closed_pair` left.
async fn open_mute(env: &Env) -> (Chain, Mute, Mute) {
    let ([first, second], drives) = mute_sides(env).await;
    let (chain, _) = Chain::open(env, drives, None, uncached()).await.expect("it opens");
    env.sleep(Duration::from_secs(1)).await;
    (chain, first, second)
}

/// Does this while others read for so many tenths of a second, so that a side that does not answer is not waited for.
async fn while_others_read(env: &Env, chain: &Chain, tenths: u32, work: impl Future<Output = ()> + 'static) {
    let work = env.spawn(work);
    for _ in 0..tenths {
        let chain = chain.clone();
        env.spawn(async move { check_keys(&chain, 60..61).await });
        env.sleep(Duration::from_millis(100)).await;
    }
    work.join().await.expect("it ends");
}

/// The same for a scrub.
async fn scrub_while_others_read(env: &Env, chain: &Chain) {
    let scrubbed = chain.clone();
    while_others_read(env, chain, 300, async move { scrubbed.scrub().await.expect("it runs") }).await;
}

fn are_live(chain: &Chain) -> bool {
    states(chain).iter().all(|(_, state)| *state == SideState::Live)
}

#[test]
fn what_one_side_has_lost_is_not_damaged_while_the_other_does_not_answer() {
    let world = closed_pair(70);
    rot(&world, &[(B, 12)]);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (chain, first, _) = open_mute(&env).await;
        first.be_silent(true);
        while_others_read(&env, &chain, 100, async {}).await;
        for _ in 0..4 {
            let read = chain.read(12).await;
            assert!(matches!(read, Err(ReadError::Drive(_))), "it is not known: {read:?}");
        }
        assert_eq!((chain.stats().damage, chain.stats().repaired), (Vec::new(), 0));
        first.be_silent(false);
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!(read_small(&chain).await, Ok(true));
        assert!(are_live(&chain));
        chain.close().await.expect("no fault");
    });
    is_whole_alone(&world, B, 40);
}

const SEGMENT: u64 = 128 << 10;

/// Harms the first record of the second segment on a side; where it is.
fn rot_second_segment(world: &World, name: &str) -> u64 {
    // The header, and the head of the first group.
    let place = (64 << 10) + SEGMENT + 2 * 4096;
    let data = world.sim.peek_drive(world.sim.drive(MACHINE, name), place, 8192);
    assert!((40..80).contains(&data[0]) && data.iter().all(|byte| *byte == data[0]), "a record");
    fault(&world.sim, name, DriveFault::BitRot { offset: place + 300, bit: 4 });
    place
}

/// A scrub has named and mended nothing, and the next one mends what is lacking; closes the chain.
async fn next_scrub_mends(chain: Chain) {
    assert_eq!((chain.stats().damage, chain.stats().repaired), (Vec::new(), 0));
    chain.scrub().await.expect("it runs");
    assert_eq!((chain.stats().damage, chain.stats().repaired), (Vec::new(), 1));
    assert!(are_live(&chain));
    chain.close().await.expect("no fault");
}

#[test]
fn what_a_side_may_have_that_answers_again_while_another_is_read_is_not_named_by_a_scrub() {
    // It was silent as the segment was looked through, and as the group was to be put together.
    let world = closed_pair(71);
    let place = rot_second_segment(&world, B);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (chain, first, second) = open_mute(&env).await;
        first.be_silent(true);
        while_others_read(&env, &chain, 100, async {}).await;
        second.when_read(place, Duration::ZERO, || ());
        second.when_read(place, Duration::from_secs(1), move || first.be_silent(false));
        chain.scrub().await.expect("it runs");
        assert!(second.events.borrow().is_empty(), "it came to that");
        next_scrub_mends(chain).await;
    });
    open_and_close(&world, &[B], async |_, chain| check_keys(chain, 40..80).await);
}

#[test]
fn a_footer_that_a_side_may_have_that_answers_again_while_another_is_read_is_not_named_by_a_scrub() {
    let world = closed_pair(72);
    let trailer = (64 << 10) + SEGMENT - 4096;
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (chain, first, second) = open_mute(&env).await;
        let harmed = Bytes::from(vec![7; 4096]);
        second.drive.write(trailer, harmed, Durability::Durable).await.expect("no fault");
        // The segment is looked through, and then what is around its groups.
        let silent = first.clone();
        second.when_read(trailer, Duration::from_secs(20), move || silent.be_silent(true));
        second.when_read(trailer, Duration::from_secs(1), move || first.be_silent(false));
        scrub_while_others_read(&env, &chain).await;
        assert!(second.events.borrow().is_empty(), "it came to that");
        next_scrub_mends(chain).await;
    });
}

/// Where what `key` holds, one of the large records, begins last on a drive.
fn last_place_of(world: &World, name: &str, key: u64) -> u64 {
    let drive = world.sim.drive(MACHINE, name);
    let size = world.sim.drive_size_bytes(drive).expect("it is there") as usize;
    let bytes = world.sim.peek_drive(drive, 0, size);
    let is_it = |block: &[u8]| block.iter().all(|byte| *byte == key as u8);
    let blocks = bytes.chunks_exact(4096).map(is_it).collect::<Vec<bool>>();
    let last = blocks.windows(2).rposition(|pair| pair == [true, true]).expect("it is there");
    4096 * last as u64
}

#[test]
fn what_a_silent_side_may_have_of_a_segment_is_not_taken_for_never_written_where_the_footer_is_harmed() {
    // Of the other side the footer is harmed, and of the groups that tell the same one is lost.
    let world = closed_pair(76);
    let head = (place_of(&world, B, 12) - 1) / 4096 * 4096;
    let segment = world.sim.peek_drive(world.sim.drive(MACHINE, B), 64 << 10, SEGMENT as usize);
    let mut blocks = segment.chunks_exact(4096);
    let directory = blocks.position(|block| block.starts_with(b"ITHD")).expect("it is closed");
    for block in [head, (64 << 10) + 4096 * directory as u64] {
        fault(&world.sim, B, DriveFault::BitRot { offset: block + 50, bit: 1 });
    }
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (chain, first, _) = open_mute(&env).await;
        first.be_silent(true);
        while_others_read(&env, &chain, 100, async {}).await;
        let read = chain.read(12).await;
        assert!(matches!(read, Err(ReadError::Drive(_))), "it is not known: {read:?}");
        first.be_silent(false);
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!((read_small(&chain).await, chain.stats().damage), (Ok(true), Vec::new()));
        chain.close().await.expect("no fault");
    });
}

#[test]
fn a_copy_elsewhere_that_a_side_may_have_that_does_not_answer_keeps_a_record_from_being_named() {
    let world = closed_pair(75);
    let place = last_place_of(&world, A, 43);
    open_and_close(&world, &[A, B], async |_, chain| {
        let again = Batch {
            runs: chain.read_runs(43, 44, usize::MAX).await.expect("it is well"),
            ..Batch::default()
        };
        chain.wait(chain.append(again).expect("room")).await.expect("no fault");
    });
    let copy = last_place_of(&world, A, 43);
    assert!(copy > place);
    for name in [A, B] {
        fault(&world.sim, name, DriveFault::BitRot { offset: place + 300, bit: 4 });
    }
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (chain, first, second) = open_mute(&env).await;
        let harmed = Bytes::from(vec![7; 4096]);
        second.drive.write(copy, harmed, Durability::Durable).await.expect("no fault");
        // The segment is looked through, and its group put together; then the copy is read.
        second.when_read(place, Duration::ZERO, || ());
        let silent = first.clone();
        second.when_read(place, Duration::from_secs(20), move || silent.be_silent(true));
        scrub_while_others_read(&env, &chain).await;
        assert!(second.events.borrow().is_empty(), "it came to that");
        assert!(are_live(&chain));
        assert_eq!(chain.stats().damage, []);
        first.be_silent(false);
        env.sleep(Duration::from_secs(1)).await;
        check_keys(&chain, 40..80).await;
        chain.close().await.expect("no fault");
    });
}

#[test]
fn a_side_that_does_not_answer_itself_is_no_reason_not_to_wait_for_another() {
    let world = closed_pair(74);
    let place = place_of(&world, B, 12);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (chain, first, second) = open_mute(&env).await;
        second.when_read(place, Duration::from_secs(30), || ());
        let reader = chain.clone();
        let read = env.spawn(async move { read_small(&reader).await });
        // The other side has answered since the second one was asked.
        env.sleep(Duration::from_millis(100)).await;
        check_keys(&chain, 60..62).await;
        first.be_silent(true);
        while_others_read(&env, &chain, 350, async {}).await;
        first.be_silent(false);
        assert_eq!(read.join().await.expect("it ends"), Ok(true));
        assert!(are_live(&chain));
        chain.close().await.expect("no fault");
    });
}

#[test]
fn a_side_that_falls_silent_before_a_scrub_writes_what_it_lacks_is_not_given_up() {
    let world = closed_pair(73);
    rot(&world, &[(A, 9)]);
    let place = place_of(&world, B, 9);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (chain, first, second) = open_mute(&env).await;
        // The segment is looked through, and then the group is put together: the first side was read by then.
        second.when_read(place, Duration::ZERO, || ());
        let silent = first.clone();
        second.when_read(place, Duration::from_secs(20), move || silent.be_silent(true));
        scrub_while_others_read(&env, &chain).await;
        assert!(second.events.borrow().is_empty(), "it came to that");
        assert!(are_live(&chain), "{:?}", states(&chain));
        first.be_silent(false);
        env.sleep(Duration::from_secs(1)).await;
        chain.scrub().await.expect("it runs");
        assert_eq!((chain.stats().damage, chain.stats().repaired), (Vec::new(), 1));
        chain.close().await.expect("no fault");
    });
    is_whole_alone(&world, A, 40);
}

#[test]
fn what_a_side_may_have_that_does_not_answer_during_an_open_is_not_named_as_lost() {
    for asked in [64 << 10, (64 << 10) + 2 * SEGMENT - 4096] {
        let world = closed_pair(80);
        // The head of a group of the segment that is not full: the group behind it tells that it was durable.
        let head = last_place_of(&world, B, 78) - 4096;
        fault(&world.sim, B, DriveFault::BitRot { offset: head + 50, bit: 1 });
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let ([first, _], drives) = mute_sides(&env).await;
            first.when_read(asked, Duration::from_secs(60), || ());
            let (chain, recovered) = Chain::open(&env, drives, None, uncached()).await.expect("it opens");
            assert!(first.events.borrow().is_empty(), "it came to that");
            assert_eq!(recovered.damage, []);
            assert!(are_live(&chain));
            check_keys(&chain, 40..80).await;
            chain.close().await.expect("no fault");
        });
        open_and_close(&world, &[B], async |_, chain| check_keys(chain, 40..80).await);
    }
}

/// What `closed_pair` leaves, but for all small records that are released but four, of which one side has lost one.
fn mostly_released(seed: u64) -> World {
    let world = closed_pair(seed);
    open_and_close(&world, &[A, B], async |_, chain| {
        let release = Batch { release: vec![0..12, 16..40], ..Batch::default() };
        chain.wait(chain.append(release).expect("room")).await.expect("no fault");
    });
    rot(&world, &[(B, 12)]);
    world
}

/// Cleans whatever gives room, always.
fn cleaning() -> ChainOptions {
    ChainOptions { tail_cache_bytes: 0, ..eager() }
}

fn cleaned(chain: &Chain) -> u64 {
    chain.stats().counters.segments_cleaned
}

/// The segment comes free, and what was left of it is there.
async fn is_cleaned_now(env: &Env, chain: Chain) {
    env.sleep(Duration::from_secs(5)).await;
    assert_eq!((cleaned(&chain), chain.stats().damage), (1, Vec::new()));
    assert!(are_live(&chain));
    for key in 12..16 {
        let record = chain.read(key).await.expect("no damage").expect("it is there");
        assert_eq!(record.data, vec![key as u8 + 1; 900], "key {key}");
    }
    chain.close().await.expect("no fault");
}

#[test]
fn a_segment_that_a_silent_side_keeps_from_being_cleaned_is_cleaned_when_it_answers() {
    let world = mostly_released(77);
    let place = place_of(&world, A, 12);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let ([first, _], drives) = mute_sides(&env).await;
        let silent = first.clone();
        first.when_read(place, Duration::ZERO, move || silent.be_silent(true));
        let (chain, _) = Chain::open(&env, drives, None, cleaning()).await.expect("it opens");
        while_others_read(&env, &chain, 200, async {}).await;
        assert!(first.events.borrow().is_empty(), "the cleaner came to that");
        assert_eq!((cleaned(&chain), chain.stats().damage), (0, Vec::new()), "it is not known");
        first.be_silent(false);
        is_cleaned_now(&env, chain).await;
    });
}

#[test]
fn a_segment_of_which_a_stale_side_alone_has_all_is_cleaned_when_that_is_rebuilt() {
    let world = mostly_released(78);
    open_and_close(&world, &[B], async |_, _| ());
    // In the second segment, so that the rebuild has come to the first.
    let place = (64 << 10) + SEGMENT + 2 * 4096;
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let ([first, _], drives) = mute_sides(&env).await;
        first.when_read(place, Duration::from_secs(4), || ());
        let (chain, _) = Chain::open(&env, drives, None, cleaning()).await.expect("it opens");
        env.sleep(Duration::from_secs(2)).await;
        assert!(!are_live(&chain) && first.events.borrow().is_empty(), "it is being rebuilt");
        assert_eq!((cleaned(&chain), chain.stats().damage), (0, Vec::new()));
        is_cleaned_now(&env, chain).await;
    });
}

#[test]
fn a_segment_that_could_not_be_read_for_a_while_is_cleaned_after_the_next_scrub() {
    let world = mostly_released(79);
    let place = place_of(&world, A, 12) / 4096 * 4096;
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let sides: Vec<Held> =
            open_drives(&env, &[A, B]).await.iter().map(|it| Held::new(&env, it)).collect();
        sides[0].unreadable.replace((place..place + 4096, 0));
        let drives: Vec<Drive> = sides.iter().map(Held::as_drive).collect();
        let (chain, _) = Chain::open(&env, drives, None, cleaning()).await.expect("it opens");
        env.sleep(Duration::from_secs(2)).await;
        assert_eq!((cleaned(&chain), chain.stats().damage), (0, Vec::new()));
        sides[0].unreadable.take();
        chain.scrub().await.expect("it runs");
        is_cleaned_now(&env, chain).await;
    });
}
