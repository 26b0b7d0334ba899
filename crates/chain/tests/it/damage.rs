//! Flipped bits and unreadable sectors in every block: what was harmed is named or is harmless, and nothing wrong is ever read.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_chain::{Batch, Chain, ChainOptions, Cleaning, DamageKind, OpenError, ReadError, check};
use ithaca_env::drive::{Drive, DriveError, Durability, PageBuf};
use ithaca_env::sim::{Death, DriveFault, Random, Sim};

use crate::busy::Wilful;
use crate::drives::append;
use crate::mirrors::fault;
use crate::model::{Model, View, run_of};
use crate::world::{
    MACHINE, Workload, World, check_everything, identity, open_drive, open_drives, small_options,
};

/// What an open of a harmed drive may end in.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    harmless: u32,
    refused: u32,
    named: u32,
    damaged_reads: u32,
}

/// A chain of a few segments with some recycled ones, closed cleanly.
fn closed_world(options: &ChainOptions) -> (World, View) {
    let lives = [(5, 90), (6, 60)].map(|(seed, steps)| Workload {
        rng: Random::new(seed),
        steps,
        close: true,
        heavy: false,
        sparse: false,
    });
    World::new(11).after_lives(options, lives)
}

/// Harms a block, opens, and reads every key: right, or named as damaged, or the open is refused.
pub fn harm_and_look(options: &ChainOptions, fault: DriveFault, tally: &Rc<RefCell<Tally>>) {
    let (DriveFault::BitRot { offset, .. } | DriveFault::Unreadable { offset }) = fault else { return };
    let (world, view) = closed_world(options);
    let drive = world.sim.drive(MACHINE, "chain");
    world.sim.fault_drive(drive, fault);
    look(world, view, options, offset, tally);
}

/// The same for a block that reads as zeros.
fn zero_and_look(options: &ChainOptions, offset: u64, tally: &Rc<RefCell<Tally>>) {
    let (world, view) = closed_world(options);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let zeros = Bytes::from(vec![0; 4096]);
        open_drive(&env).await.write(offset, zeros, Durability::Durable).await.expect("no fault is planned");
    });
    look(world, view, options, offset, tally);
}

fn look(world: World, view: View, options: &ChainOptions, offset: u64, tally: &Rc<RefCell<Tally>>) {
    let env = world.sim.env(world.process);
    let (options, tally) = (options.clone(), Rc::clone(tally));
    world.sim.block_on(world.process, async move {
        let drive = open_drive(&env).await;
        let report = check(&drive).await;
        let (chain, recovered) = match Chain::open(&env, drive, None, options).await {
            Ok(opened) => opened,
            Err(_) => {
                tally.borrow_mut().refused += 1;
                return;
            }
        };
        let is_lost = |it: &ithaca_chain::Damage| matches!(it.kind, DamageKind::Groups { .. });
        let groups_lost = recovered.damage.iter().any(is_lost);
        if recovered.is_control_certain {
            assert_eq!(
                (&recovered.state, &recovered.released),
                (&view.state, &view.released),
                "byte {offset}"
            );
        }
        let is_covered = |keys| recovered.covered.gaps(keys).next().is_none();
        assert!(view.covered().ranges().all(is_covered), "byte {offset}: keys are reported as never written");
        if !groups_lost {
            assert_eq!(recovered.covered, view.covered(), "byte {offset}: keys appeared");
        }
        let mut damaged = 0;
        for (&key, (version, _, data)) in &view.records {
            match chain.read(key).await {
                Ok(Some(record)) => {
                    assert_eq!((record.version, &record.data), (*version, data), "byte {offset} key {key}")
                }
                Ok(None) => panic!("byte {offset}: key {key} vanished without a word"),
                Err(ReadError::Damaged { .. } | ReadError::Drive(_)) => damaged += 1,
            }
        }
        let report = report.expect("what can be opened can be checked");
        assert!(damaged == 0 || !report.damage.is_empty(), "byte {offset}: the check did not see it");
        let mut tally = tally.borrow_mut();
        tally.damaged_reads += damaged;
        match recovered.damage.is_empty() && damaged == 0 {
            true => tally.harmless += 1,
            false => tally.named += 1,
        }
    });
}

#[test]
fn harm_to_any_block_is_harmless_or_named() {
    let options = small_options();
    let (world, _) = closed_world(&options);
    let size = world.sim.drive_size_bytes(world.sim.drive(MACHINE, "chain")).expect("it is there");
    let tally = Rc::new(RefCell::new(Tally::default()));
    let mut rng = Random::new(1);
    for block in 0..size / 4096 {
        let is_used = world.sim.peek_drive(world.sim.drive(MACHINE, "chain"), block * 4096, 4096);
        if is_used.iter().all(|&byte| byte == 0) {
            continue;
        }
        for offset in [rng.below(200), rng.below(4096)] {
            let (offset, bit) = (block * 4096 + offset, rng.below(8) as u8);
            harm_and_look(&options, DriveFault::BitRot { offset, bit }, &tally);
        }
        // A block that cannot be read at all.
        harm_and_look(&options, DriveFault::Unreadable { offset: block * 4096 }, &tally);
        zero_and_look(&options, block * 4096, &tally);
    }
    let tally = tally.borrow();
    assert!(tally.named > 20 && tally.damaged_reads > 20 && tally.harmless > 20, "{tally:?}");
}

#[test]
fn one_copy_of_the_superblock_may_rot() {
    let options = small_options();
    let (world, view) = closed_world(&options);
    let drive = world.sim.drive(MACHINE, "chain");
    world.sim.fault_drive(drive, DriveFault::BitRot { offset: 20, bit: 1 });
    world.sim.fault_drive(drive, DriveFault::BitRot { offset: (16 << 10) + 30, bit: 1 });
    let model = Rc::new(RefCell::new(Model { base: view, ..Model::default() }));
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let drive = open_drive(&env).await;
        let (chain, _) =
            Chain::open(&env, drive, Some(&identity()), options).await.expect("two copies agree");
        check_everything(&chain, &model).await;
    });
}

#[test]
fn damage_in_the_middle_of_the_open_segment_is_not_taken_for_its_end() {
    lose_a_group(&small_options());
}

/// The head of a group rots: groups behind it prove that it was durable. Its keys are named as unknown, the rest stays.
pub fn lose_a_group(options: &ChainOptions) {
    let world = ten_groups(options);
    let again = options.clone();
    // Header, fence, then one block a group: the fifth.
    let drive = world.sim.drive(MACHINE, "chain");
    let offset = (64 << 10) + 4096 * 6;
    world.sim.fault_drive(drive, DriveFault::BitRot { offset: offset + 50, bit: 0 });
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (chain, recovered) =
            Chain::open(&env, open_drive(&env).await, None, again).await.expect("the rest is well");
        assert_eq!(recovered.damage.len(), 1, "{:?}", recovered.damage);
        assert_eq!(recovered.damage[0].kind, DamageKind::Groups { seqs: 6..7 });
        assert!(
            recovered.is_control_certain && recovered.cut_groups == 0,
            "the next group repeats what it said"
        );
        assert!(recovered.covered.gaps(0..10).next().is_none(), "key 4 is not free to be written");
        for key in 0..10 {
            match chain.read(key).await {
                Ok(Some(record)) => assert_eq!((key != 4, record.version), (true, key)),
                Err(ReadError::Damaged { key: 4, .. }) => assert_eq!(key, 4),
                other => panic!("key {key}: {other:?}"),
            }
        }
    });
}

/// A chain of ten groups after the first, of a record each, and a power cut.
fn ten_groups(options: &ChainOptions) -> World {
    let world = World::new(1);
    let env = world.sim.env(world.process);
    let options = options.clone();
    world.sim.block_on(world.process, async move {
        let chain = Chain::create(&env, open_drive(&env).await, identity(), options).await.expect("created");
        for key in 0..10_u64 {
            let run = run_of(key, key, &[Bytes::from(vec![key as u8; 300])]);
            let batch = Batch { runs: vec![run], ..Batch::default() };
            let ticket = chain.append(batch).expect("room");
            chain.wait(ticket).await.expect("no fault");
        }
    });
    world.sim.end(world.process, Death::PowerCut);
    world.sim.restart(world.process);
    world
}

/// Ten records of which no two are neighbours, so that the keys of a segment of them have no room in its trailer.
fn scattered(batch: u64) -> Batch {
    let run = |key: u64| run_of(key, key, &[Bytes::from(vec![key as u8; 100])]);
    Batch { runs: (0..10).map(|index| run(2 * (10 * batch + index))).collect(), ..Batch::default() }
}

/// Where the blocks of a small segment are that begin so.
fn blocks_of(sim: &Sim, segment: u64, magic: &[u8]) -> Vec<u64> {
    let bytes = small_options().segment_bytes;
    let start = (64 << 10) + segment * bytes;
    let bytes = sim.peek_drive(sim.drive(MACHINE, "chain"), start, bytes as usize);
    let blocks = bytes.chunks_exact(4096).enumerate().filter(|(_, block)| block.starts_with(magic));
    blocks.map(|(index, _)| start + 4096 * index as u64).collect()
}

/// Those of the first segment, which is closed: the last group and what begins so.
fn harm_last_group_and(sim: &Sim, magic: &[u8]) {
    let other = blocks_of(sim, 0, magic)[0];
    for start in [blocks_of(sim, 0, b"ITHG").pop().expect("it is full"), other] {
        fault(sim, "chain", DriveFault::BitRot { offset: start + 50, bit: 0 });
    }
}

/// Appends `count` batches one by one, and two that are written together. If the second of them begins a segment, the one before is closed;
/// its last group and its directory are harmed then. Returns whether it was so.
fn harm_the_end_of_a_closed_segment(count: u64) -> bool {
    let options = || ChainOptions { group_max_bytes: 1, ..small_options() };
    let world = World::new(22);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let chain =
            Chain::create(&env, open_drive(&env).await, identity(), options()).await.expect("created");
        for batch in 0..count {
            let ticket = chain.append(scattered(batch)).expect("room");
            chain.wait(ticket).await.expect("no fault");
        }
        let tickets = [count, count + 1].map(|batch| chain.append(scattered(batch)).expect("room"));
        chain.wait(tickets[1]).await.expect("no fault");
        env.sleep(std::time::Duration::from_millis(20)).await;
    });
    world.sim.end(world.process, Death::PowerCut);
    world.sim.restart(world.process);
    if blocks_of(&world.sim, 1, b"ITHG").len() != 1 {
        return false;
    }
    harm_last_group_and(&world.sim, b"ITHD");
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let (chain, recovered) =
            Chain::open(&env, open_drive(&env).await, None, options()).await.expect("the rest is well");
        let is_lost = |it: &ithaca_chain::Damage| matches!(it.kind, DamageKind::Groups { .. });
        assert!(recovered.damage.iter().any(is_lost), "{recovered:?}");
        let lost = chain.read(20 * count).await;
        assert!(matches!(lost, Err(ReadError::Damaged { .. })), "{lost:?}");
        assert!(chain.read(20 * (count + 1)).await.expect("it is well").is_some(), "it was acknowledged");
    });
    true
}

#[test]
fn a_trailer_vouches_for_its_groups_and_the_next_one_also_where_the_directory_is_harmed() {
    // The last groups of a log that was not closed: nothing behind them says that they were durable.
    assert!((10..30).any(harm_the_end_of_a_closed_segment), "no segment was begun by the last batch");
}

/// Harms the last group of a closed segment and the block of it that begins so; the next one is closed too.
fn is_last_group_missed(magic: &'static [u8]) {
    // That one is not scanned.
    let options = || ChainOptions { group_max_bytes: 1, ..small_options() };
    let world = World::new(24);
    let env = world.sim.env(world.process);
    let batches = world.sim.block_on(world.process, async move {
        let chain =
            Chain::create(&env, open_drive(&env).await, identity(), options()).await.expect("created");
        let mut batches = 0;
        while chain.stats().segments_closed < 2 {
            let ticket = chain.append(scattered(batches)).expect("room");
            chain.wait(ticket).await.expect("no fault");
            batches += 1;
        }
        batches
    });
    world.cut_power();
    harm_last_group_and(&world.sim, magic);
    for round in 0..2 {
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let (chain, recovered) =
                Chain::open(&env, open_drive(&env).await, None, options()).await.expect("the rest is well");
            let is_lost = |it: &ithaca_chain::Damage| matches!(it.kind, DamageKind::Groups { .. });
            assert!(recovered.damage.iter().any(is_lost), "{round}: {recovered:?}");
            let mut lost = Vec::new();
            for key in (0..20 * batches).step_by(2) {
                match chain.read(key).await {
                    Ok(Some(record)) => assert_eq!(record.version, key),
                    Ok(None) => panic!("key {key} vanished without a word"),
                    Err(ReadError::Damaged { .. }) => lost.push(key),
                    Err(other) => panic!("{other}"),
                }
            }
            assert_eq!(lost, (lost[0]..lost[0] + 20).step_by(2).collect::<Vec<_>>(), "one batch");
            chain.close().await.expect("no fault");
        });
        // The segment was closed again, and is missed also when that is harmed again.
        for start in blocks_of(&world.sim, 0, magic) {
            fault(&world.sim, "chain", DriveFault::BitRot { offset: start + 50, bit: 1 });
        }
    }
}

#[test]
fn the_last_group_of_a_closed_segment_is_missed_also_where_the_next_one_is_closed() {
    is_last_group_missed(b"ITHD");
}

#[test]
fn the_last_group_of_a_closed_segment_is_missed_also_where_its_trailer_is_harmed() {
    is_last_group_missed(b"ITHT");
}

#[test]
fn what_a_lost_group_held_is_missed_also_where_the_next_one_is_cut() {
    let options = || ChainOptions { group_max_bytes: 1, ..small_options() };
    let world = World::new(25);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let chain =
            Chain::create(&env, open_drive(&env).await, identity(), options()).await.expect("created");
        for batch in 0..7 {
            let ticket = chain.append(scattered(batch)).expect("room");
            chain.wait(ticket).await.expect("no fault");
        }
    });
    world.cut_power();
    // The last group but one was acknowledged; of the last one a part came to the drive.
    let groups = blocks_of(&world.sim, 0, b"ITHG");
    let &[.., lost, torn] = &groups[..] else { panic!("{groups:?}") };
    let bytes = world.sim.peek_drive(world.sim.drive(MACHINE, "chain"), torn, 4096);
    let record = bytes.windows(100).position(|window| window == [2 * 65; 100]).expect("it is there");
    for offset in [lost + 50, torn + record as u64] {
        fault(&world.sim, "chain", DriveFault::BitRot { offset, bit: 0 });
    }
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        for _ in 0..2 {
            let opened = Chain::open(&env, open_drive(&env).await, None, options()).await;
            let (chain, recovered) = opened.expect("the rest is well");
            for key in (100..120).step_by(2) {
                let read = chain.read(key).await;
                assert!(matches!(read, Err(ReadError::Damaged { .. })), "{key}: {read:?} of {recovered:?}");
            }
            chain.close().await.expect("no fault");
        }
    });
}

#[test]
fn a_segment_whose_header_reads_as_zeros_is_not_taken_for_an_unused_one() {
    let world = ten_groups(&small_options());
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let drive = open_drive(&env).await;
        drive.write(64 << 10, Bytes::from(vec![0; 4096]), Durability::Durable).await.expect("no fault");
        let (chain, _) = Chain::open(&env, drive, None, small_options()).await.expect("its groups are there");
        for key in 0..10 {
            let record = chain.read(key).await.expect("nothing else is harmed");
            assert_eq!(record.map(|record| record.version), Some(key));
        }
    });
}

/// What becomes of a segment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// All of it reads as zeros.
    Everything,
    /// All but its header.
    AllButHeader,
    /// Header, first group and trailer; the other groups are there.
    Frame,
}

/// Whether an open misses a closed segment that was lost so, and names it among the damage until its keys are released.
pub fn is_lost_segment_missed(options: &ChainOptions, loss: Loss) -> bool {
    const LOST: u64 = 3;
    let (options, segment_bytes) = (options.clone(), options.segment_bytes);
    let world = World::new(21);
    let env = world.sim.env(world.process);
    let keys = world.sim.block_on(world.process, async move {
        let chain =
            Chain::create(&env, open_drive(&env).await, identity(), options.clone()).await.expect("blank");
        append(&env, &chain, 0..100).await;
        assert!(chain.stats().segments_closed > 5);
        chain.close().await.expect("no fault");
        let drive = open_drive(&env).await;
        let start = (64 << 10) + LOST * segment_bytes;
        let (before, after) = match loss {
            Loss::Everything => (0, segment_bytes),
            Loss::AllButHeader => (4096, segment_bytes),
            Loss::Frame => (0, 16 << 10),
        };
        let zeros = |bytes: u64| Bytes::from(vec![0; bytes as usize]);
        drive.write(start + before, zeros(after - before), Durability::Durable).await.expect("no fault");
        if loss == Loss::Frame {
            let trailer = start + segment_bytes - 4096;
            drive.write(trailer, zeros(4096), Durability::Durable).await.expect("no fault");
        }
        options
    });
    let (env, options) = (world.sim.env(world.process), keys);
    world.sim.block_on(world.process, async move {
        let is_named = |damage: &[ithaca_chain::Damage]| {
            damage.iter().any(|it| {
                let is_kind = matches!(it.kind, DamageKind::Segment | DamageKind::Groups { .. });
                it.segment == LOST as u32 && is_kind
            })
        };
        let mut is_missed = true;
        for round in 0..2 {
            // Lost groups become a hole in the footer, which the first open tells of.
            let is_told = |damage: &[_]| is_named(damage) || (round > 0 && loss == Loss::Frame);
            let report = check(&open_drive(&env).await).await.expect("it can be checked");
            is_missed &= is_told(&report.damage);
            let opened = Chain::open(&env, open_drive(&env).await, None, options.clone()).await;
            let (chain, recovered) = opened.expect("it opens");
            is_missed &= is_told(&recovered.damage);
            let mut damaged = 0;
            for key in 0..100 {
                match chain.read(key).await {
                    Ok(Some(record)) => assert_eq!(record.data, vec![key as u8; 8192], "key {key}"),
                    Ok(None) => is_missed = false,
                    Err(ReadError::Damaged { .. }) => damaged += 1,
                    Err(other) => panic!("{other}"),
                }
            }
            is_missed &= damaged > 0 && (damaged < 5) == (loss == Loss::Frame);
            chain.close().await.expect("no fault");
        }
        // What is released is not missed any more.
        let (chain, _) =
            Chain::open(&env, open_drive(&env).await, None, options.clone()).await.expect("it opens");
        let release = Batch { release: std::iter::once(0..100).collect(), ..Batch::default() };
        let ticket = chain.append(release).expect("room");
        chain.wait(ticket).await.expect("no fault");
        append(&env, &chain, 100..200).await;
        chain.close().await.expect("no fault");
        let report = check(&open_drive(&env).await).await.expect("it can be checked");
        assert!(!is_named(&report.damage) || loss == Loss::Frame, "{:?}", report.damage);
        is_missed
    })
}

#[test]
fn a_segment_of_which_nothing_is_left_is_named() {
    // A drive that lost a range of blocks: the segment looks as if it had never been used.
    for loss in [Loss::Everything, Loss::AllButHeader, Loss::Frame] {
        assert!(is_lost_segment_missed(&small_options(), loss), "{loss:?}");
    }
}

/// Segments whose headers say that they are free, and that hold groups still.
pub fn wiped_with_groups(sim: &Sim, name: &str, options: &ChainOptions) -> Vec<u64> {
    let drive = sim.drive(MACHINE, name);
    let bytes = sim.peek_drive(drive, 0, sim.drive_size_bytes(drive).expect("it is there") as usize);
    let segments = bytes[64 << 10..].chunks_exact(options.segment_bytes as usize).enumerate();
    let is_wiped = |segment: &[u8]| {
        let is_ready = &segment[..4] == b"ITHH" && segment[10..12] == [1, 0];
        is_ready && segment.chunks_exact(4096).any(|block| &block[..4] == b"ITHG")
    };
    let wiped = segments.filter(|(_, segment)| is_wiped(segment));
    wiped.map(|(index, _)| (64 << 10) + index as u64 * options.segment_bytes).collect()
}

/// The ways in which the header of a segment is lost.
fn header_faults(start: u64) -> [DriveFault; 2] {
    [DriveFault::BitRot { offset: start + 33, bit: 2 }, DriveFault::Unreadable { offset: start }]
}

#[test]
fn what_was_cut_stays_cut_when_the_header_of_its_segment_is_lost() {
    // Groups of a segment that a recovery freed: without its header nothing but their place says that they were cut.
    let options = ChainOptions { flights: 8, group_max_bytes: 1, tail_cache_bytes: 0, ..small_options() };
    let work =
        |seed, steps, close| Workload { rng: Random::new(seed), steps, close, heavy: true, sparse: false };
    let mut cut = 0;
    for seed in 0..500 {
        let world = World::new(seed);
        world.sim.end_at_io(world.process, 120 + 2 * (seed % 150), Death::PowerCut);
        world.live(&options, work(seed, 60, false));
        world.sim.end(world.process, Death::PowerCut);
        world.sim.end_at_io(world.process, u64::MAX, Death::PowerCut);
        assert!(world.live(&options, work(seed + 1, 8, true)), "nothing ends it");
        world.sim.end(world.process, Death::PowerCut);
        for (nth, start) in wiped_with_groups(&world.sim, "chain", &options).into_iter().enumerate() {
            cut += 1;
            let drive = world.sim.drive(MACHINE, "chain");
            world.sim.fault_drive(drive, header_faults(start)[nth % 2]);
        }
        world.audit(&options);
    }
    assert!(cut > 5, "only {cut} segments were cut");
}

/// Of the segments that hold groups of their present use: where the newest begins, its lap, how many groups it has, and whether one before
/// it is free or has no group yet, which is used first then.
fn newest_segment(sim: &Sim, options: &ChainOptions) -> (u64, u64, usize, bool) {
    let drive = sim.drive(MACHINE, "chain");
    let bytes = sim.peek_drive(drive, 0, sim.drive_size_bytes(drive).expect("it is there") as usize);
    let (mut newest, mut has_free) = ((0, 0, 0, false), false);
    for (index, segment) in bytes[64 << 10..].chunks_exact(options.segment_bytes as usize).enumerate() {
        let lap = u64::from_le_bytes(segment[32..40].try_into().expect("eight bytes"));
        let is_group = |block: &&[u8]| &block[..4] == b"ITHG" && block[32..40] == segment[32..40];
        let groups = segment.chunks_exact(4096).filter(is_group).count();
        if groups > 0 && lap > newest.1 {
            newest = ((64 << 10) + index as u64 * options.segment_bytes, lap, groups, has_free);
        }
        has_free |= &segment[..4] == b"ITHH" && groups == 0;
    }
    newest
}

/// Options of a chain that has several groups under way, each a batch by itself.
fn many_flights() -> ChainOptions {
    ChainOptions { flights: 8, group_max_bytes: 1, segments_ready: 2, ..small_options() }
}

/// Appends until the newest segment holds only what was under way together, several groups. Returns where that
/// segment begins, and how many keys there are.
fn fill_a_new_segment(world: &World, names: &'static [&'static str]) -> (u64, u64) {
    let env = world.sim.env(world.process);
    let chain = world.sim.block_on(world.process, async move {
        let sides = vec![open_drives(&env, names).await];
        Chain::create(&env, sides, identity(), many_flights()).await.expect("created")
    });
    let (mut keys, mut before) = (0, 0);
    loop {
        let (chain, env) = (chain.clone(), world.sim.env(world.process));
        world.sim.block_on(world.process, async move {
            // The file grows meanwhile.
            env.sleep(std::time::Duration::from_millis(20)).await;
            let batch = |key: u64| run_of(key, key, &[Bytes::from(vec![key as u8; 8192])]);
            let release =
                Batch { release: std::iter::once(0..keys.max(40) - 40 + 1).collect(), ..Batch::default() };
            chain.wait(chain.append(release).expect("room")).await.expect("no fault");
            let batches = (keys..keys + 8).map(|key| Batch { runs: vec![batch(key)], ..Batch::default() });
            let tickets: Vec<_> = batches.map(|batch| chain.append(batch).expect("room")).collect();
            chain.wait(tickets[7]).await.expect("no fault");
        });
        keys += 8;
        assert!(keys < 900, "there is such a segment");
        match newest_segment(&world.sim, &many_flights()) {
            (start, lap, 3.., true) if lap > before => return (start, keys),
            (_, lap, ..) => before = lap,
        }
    }
}

/// Power is cut while several groups of a new segment are under way, of which the first is lost; then in the recovery that cuts the
/// others, at `point`. The next one goes on, and after that the header of the segment is lost. Returns whether the second cut came.
fn cut_behind_a_lost_group(names: &'static [&'static str], point: u64) -> bool {
    let world = World::over(11, names);
    let (lost, keys) = fill_a_new_segment(&world, names);
    world.sim.end(world.process, Death::PowerCut);
    world.sim.restart(world.process);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        for drive in open_drives(&env, names).await {
            drive.write(lost + 4096, aligned(&[0; 4096]), Durability::Durable).await.expect("no fault");
        }
    });
    world.sim.end_at_io(world.process, world.sim.io_points(world.process) + point, Death::PowerCut);
    let env = world.sim.env(world.process);
    let is_open = world.comes_to_its_end(async move {
        Chain::open(&env, open_drives(&env, names).await, None, many_flights()).await.expect("it opens");
    });
    world.cut_power();
    let env = world.sim.env(world.process);
    let there = world.sim.block_on(world.process, async move {
        let opened = Chain::open(&env, open_drives(&env, names).await, None, many_flights()).await;
        let (chain, recovered) = opened.expect("it opens");
        assert_eq!(recovered.damage, []);
        append(&env, &chain, 1000..1006).await;
        chain.close().await.expect("no fault");
        recovered.covered.ranges().flatten().collect::<Vec<u64>>()
    });
    assert!(!there.contains(&(keys - 1)), "what came behind the lost group is cut");
    for name in names {
        fault(&world.sim, name, header_faults(lost)[0]);
    }
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        // Each side by itself, so that it is not made up for by another.
        let side = open_drives(&env, &names[names.len() - 1..]).await;
        let (chain, recovered) = Chain::open(&env, side, None, many_flights()).await.expect("it opens");
        let expected: Vec<u64> = there.into_iter().chain(1000..1006).collect();
        let covered: Vec<u64> = recovered.covered.ranges().flatten().collect();
        assert_eq!((covered, recovered.damage), (expected, Vec::new()), "cut at {point}");
        chain.close().await.expect("no fault");
    });
    !is_open
}

#[test]
fn what_was_cut_stays_cut_wherever_the_wiping_of_its_segment_was_interrupted() {
    // The header said that the segment is free, and the copy of it behind was not written yet.
    for names in [&["chain"][..], &["chain", "chain-mirror"], &["chain-mirror", "chain"]] {
        let points = (1..).take_while(|&point| cut_behind_a_lost_group(names, point)).count();
        assert!(points > 50, "only {points} I/O points");
    }
}

#[test]
fn what_was_cleaned_stays_away_when_the_header_of_its_segment_is_lost() {
    for (nth, cleaning) in
        [(0, Cleaning::MoveToTail), (1, Cleaning::CompactInBody), (1, Cleaning::MoveToTail)]
    {
        let world = World::new(31);
        let options = ChainOptions { cleaning, tail_cache_bytes: 0, ..small_options() };
        let (env, over) = (world.sim.env(world.process), options.clone());
        world.sim.block_on(world.process, async move {
            let chain = Chain::create(&env, open_drive(&env).await, identity(), over).await.expect("blank");
            append(&env, &chain, 0..100).await;
            assert_eq!(chain.clean(6).await, Ok(6));
            chain.close().await.expect("no fault");
        });
        let wiped = wiped_with_groups(&world.sim, "chain", &options);
        assert!(!wiped.is_empty(), "copies were written over all of them");
        for start in &wiped {
            let drive = world.sim.drive(MACHINE, "chain");
            world.sim.fault_drive(drive, header_faults(*start)[nth]);
        }
        let (env, again) = (world.sim.env(world.process), options.clone());
        world.sim.block_on(world.process, async move {
            let report = check(&open_drive(&env).await).await.expect("it can be checked");
            assert_eq!(report.damage, []);
            let (chain, recovered) =
                Chain::open(&env, open_drive(&env).await, None, again).await.expect("it opens");
            assert_eq!((recovered.damage, recovered.highest_key), (Vec::new(), Some(99)));
            for key in 0..100 {
                let record = chain.read(key).await.expect("no damage").expect("it is there");
                assert_eq!(record.data, vec![key as u8; 8192], "key {key}");
            }
            chain.close().await.expect("no fault");
        });
        for start in wiped {
            let header = world.sim.peek_drive(world.sim.drive(MACHINE, "chain"), start, 4096);
            assert_eq!(header[4..8], crc32c::crc32c(&header[8..]).to_le_bytes(), "it is written again");
        }
    }
}

#[test]
fn what_was_about_to_be_wiped_as_the_power_was_cut_is_wiped_by_the_next_open() {
    // The header was first: it says that the segment is free, and all else says that it is not.
    let world = World::new(32);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let options = small_options();
        let drive = open_drive(&env).await;
        let open = async || Chain::open(&env, drive.clone(), None, small_options()).await;
        let chain = Chain::create(&env, drive.clone(), identity(), options.clone()).await;
        let chain = chain.expect("blank");
        append(&env, &chain, 0..100).await;
        let release = Batch { release: std::iter::once(0..60).collect(), ..Batch::default() };
        chain.wait(chain.append(release).expect("room")).await.expect("no fault");
        chain.close().await.expect("no fault");
        let start = (64 << 10) + 2 * options.segment_bytes;
        let mut header = drive.read(start, 4096).await.expect("it can be read").to_vec();
        assert_eq!((&header[..4], header[10]), (&b"ITHH"[..], 2), "it holds groups");
        header[10] = 1;
        let checksum = crc32c::crc32c(&header[8..]);
        header[4..8].copy_from_slice(&checksum.to_le_bytes());
        drive.write(start, aligned(&header), Durability::Durable).await.expect("no fault");
        let (chain, recovered) = open().await.expect("all of it is released");
        assert_eq!(recovered.damage, []);
        chain.close().await.expect("no fault");
        header[20] ^= 1;
        drive.write(start, aligned(&header), Durability::Durable).await.expect("no fault");
        let (chain, recovered) = open().await.expect("it is free");
        assert_eq!(recovered.damage, []);
        for key in 60..100 {
            assert!(chain.read(key).await.expect("no damage").is_some(), "key {key}");
        }
    });
}

fn aligned(bytes: &[u8]) -> Bytes {
    let mut block = PageBuf::default();
    block.extend(bytes);
    block.freeze()
}

const LARGE_AND_MIRROR: [&str; 2] = ["chain", "chain-mirror"];

fn large_options() -> ChainOptions {
    ChainOptions {
        segment_bytes: 16 << 20,
        queue_max_bytes: 16 << 20,
        capacity_bytes: 128 << 20,
        grow_bytes: 16 << 20,
        ..small_options()
    }
}

/// A chain that was not closed: a record of three MiB, and `more` small ones, each acknowledged before the next.
fn world_with_a_large_record(names: &'static [&'static str], more: u64) -> World {
    let world = World::new(41);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let sides = vec![open_drives(&env, names).await];
        let chain = Chain::create(&env, sides, identity(), large_options()).await.expect("created");
        for key in 0..=more {
            let record = vec![7; if key == 0 { 3 << 20 } else { 100 }];
            let run = run_of(key, key, &[Bytes::from(record)]);
            let ticket = chain.append(Batch { runs: vec![run], ..Batch::default() }).expect("room");
            chain.wait(ticket).await.expect("no fault");
        }
    });
    world.sim.end(world.process, Death::PowerCut);
    world.sim.restart(world.process);
    world
}

/// A MiB of the large record.
fn piece_of_it() -> std::ops::Range<u64> {
    let start = (64 << 10) + 4096 + (1 << 20);
    start..start + (1 << 20)
}

/// A record of three MiB in the last group; of each side a MiB of it cannot be read, or not. Returns what an open says, and then one when
/// it can be read again.
fn open_without_a_piece(failing: &[bool]) -> Vec<Result<bool, OpenError>> {
    let names = &LARGE_AND_MIRROR[..failing.len()];
    let world = world_with_a_large_record(names, 0);
    let failing = failing.to_vec();
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let sides: Vec<Wilful> = open_drives(&env, names).await.iter().map(Wilful::new).collect();
        let drives: Vec<Drive> = sides.iter().map(Wilful::as_drive).collect();
        let mut opened = Vec::new();
        for fails in [true, false] {
            for (side, _) in sides.iter().zip(&failing).filter(|(_, failing)| **failing) {
                side.failing.replace(if fails { piece_of_it() } else { 0..0 });
            }
            opened.push(match Chain::open(&env, drives.clone(), None, large_options()).await {
                Ok((chain, recovered)) => {
                    let record = chain.read(0).await.expect("no damage");
                    chain.close().await.expect("no fault");
                    Ok(record.is_some() && recovered.damage.is_empty())
                }
                Err(error) => Err(error),
            });
        }
        opened
    })
}

#[test]
fn what_was_acknowledged_last_is_not_cut_because_a_large_part_of_it_cannot_be_read_for_now() {
    for failing in [&[true][..], &[true, true]] {
        let opened = open_without_a_piece(failing);
        assert!(matches!(opened[..], [Err(OpenError::Drive(DriveError::Io { .. })), Ok(true)]), "{opened:?}");
    }
    for failing in [&[true, false][..], &[false, true], &[false]] {
        assert_eq!(open_without_a_piece(failing), [Ok(true), Ok(true)], "the other side has it");
    }
}

#[test]
fn a_record_of_which_a_large_part_cannot_be_read_is_damaged_and_the_rest_is_there() {
    // Later groups vouch for it: it is not taken for a torn end, and a start that it failed would fail for as long as the part cannot be read.
    let names = &LARGE_AND_MIRROR[..1];
    let world = world_with_a_large_record(names, 2);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let side = Wilful::new(&open_drives(&env, names).await[0]);
        side.failing.replace(piece_of_it());
        let opened = Chain::open(&env, vec![side.as_drive()], None, large_options()).await;
        let (chain, recovered) = opened.expect("it opens");
        let kinds: Vec<_> = recovered.damage.iter().map(|damage| &damage.kind).collect();
        assert_eq!(kinds, [&DamageKind::Data { keys: 0..1 }]);
        chain.read(0).await.expect_err("a part of it cannot be read");
        assert!(chain.read(2).await.expect("readable").is_some());
        side.failing.replace(0..0);
        assert!(chain.read(0).await.expect("it has passed").is_some());
        chain.close().await.expect("no fault");
    });
}
