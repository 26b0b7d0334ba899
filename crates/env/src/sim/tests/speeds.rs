//! Speed models under the simulator: whatever the model, every request is answered once, in the same way each time.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use super::{block, created, machine};
use crate::Time;
use crate::drive::{Drive, DriveError, Durability};
use crate::limits::BLOCK_BYTES;
use crate::sim::{Dice, Domain, DriveFault, DriveId, ProcessId, Sim, SimOptions, Speed};

const BLOCK: u64 = BLOCK_BYTES as u64;
const BLOCKS: u64 = 16 << 10;
const SPEEDS: [Speed; 4] = [Speed::Ram, Speed::Nvme, Speed::Ssd, Speed::Disk];

fn world(seed: u64, speed: Speed, jitter_percent: u32) -> (Sim, ProcessId, DriveId, Drive) {
    let options =
        SimOptions { drive_speed: speed, drive_jitter_percent: jitter_percent, ..SimOptions::default() };
    let sim = Sim::with_options(seed, options);
    let node = sim.process("node", machine(1));
    let drive = open(&sim, node).expect("it is created");
    let id = sim.drive(machine(1), "log");
    (sim, node, id, drive)
}

fn open(sim: &Sim, node: ProcessId) -> Result<Drive, DriveError> {
    let env = sim.env(node);
    sim.block_on(node, async move { env.open_drive(created("log", BLOCKS)).await })
}

/// Starts `count` durable writes at scattered places together; how many have been answered, and how many of them well.
fn start_writes(sim: &Sim, node: ProcessId, drive: &Drive, count: u64) -> Rc<RefCell<(u64, u64)>> {
    let answered = Rc::new(RefCell::new((0, 0)));
    for n in 0..count {
        let at = Dice::new(5).below(Domain::User(0), 0, n, BLOCKS) * BLOCK;
        let written = drive.write(at, block(n as u8), Durability::Durable);
        let answered = Rc::clone(&answered);
        sim.env(node).spawn(async move {
            let good = written.await.is_ok();
            let mut answered = answered.borrow_mut();
            *answered = (answered.0 + 1, answered.1 + u64::from(good));
        });
    }
    answered
}

#[test]
fn the_same_seed_gives_the_same_trace_under_every_model() {
    let run = |seed, speed| {
        let (sim, node, id, drive) = world(seed, speed, 30);
        let answered = start_writes(&sim, node, &drive, 100);
        sim.fault_drive(id, DriveFault::FailWrites { count: 3 });
        sim.run_for(Duration::from_millis(20));
        sim.block_on(node, drive.read(0, BLOCK_BYTES)).expect("no fault");
        sim.crash(node);
        let answered = *answered.borrow();
        (sim.trace_hash(), answered)
    };
    for speed in SPEEDS {
        assert_eq!(run(1, speed), run(1, speed), "{speed:?}");
        assert_ne!(run(1, speed), run(2, speed), "{speed:?}");
    }
}

#[test]
fn every_request_is_answered_once_and_counted_under_every_model() {
    for speed in SPEEDS {
        let (sim, node, id, drive) = world(3, speed, 0);
        let answered = start_writes(&sim, node, &drive, 200);
        let begin = sim.now();
        sim.block_on(node, drive.sync()).expect("no fault");
        sim.run_for(Duration::from_secs(10));
        assert_eq!(*answered.borrow(), (200, 200), "{speed:?}");
        let stats = sim.drive_stats(id);
        assert_eq!((stats.durable_writes.ops, stats.durable_writes.bytes), (200, 200 * BLOCK), "{speed:?}");
        assert_eq!((stats.syncs.ops, stats.reads.ops, stats.depth_max), (1, 0, 201), "{speed:?}");
        assert_eq!(stats.depth_ns, stats.durable_writes.latency_ns + stats.syncs.latency_ns, "{speed:?}");
        assert!(stats.busy_ns > 0 && stats.busy_ns <= sim.now().since(begin).as_nanos() as u64, "{speed:?}");
        assert_eq!(stats.media.bytes_written, 200 * BLOCK, "{speed:?}");
    }
}

#[test]
fn what_waits_for_an_arm_moves_to_the_next_model() {
    let (sim, node, id, drive) = world(1, Speed::Disk, 0);
    let answered = start_writes(&sim, node, &drive, 500);
    sim.run_for(Duration::from_millis(50));
    assert!(answered.borrow().0 < 50, "a disk is slow");
    sim.set_drive_speed(id, Speed::Ram.model());
    sim.run_for(Duration::from_millis(50));
    assert_eq!(*answered.borrow(), (500, 500));
}

#[test]
fn what_waits_when_the_drive_is_replaced_fails() {
    let (sim, node, id, drive) = world(1, Speed::Disk, 0);
    let answered = start_writes(&sim, node, &drive, 100);
    sim.run_for(Duration::from_millis(50));
    let before = *answered.borrow();
    sim.fault_drive(id, DriveFault::Replace);
    sim.run_for(Duration::from_secs(10));
    assert!(before.0 < 50);
    assert_eq!(*answered.borrow(), (100, before.1), "nothing is written to the drive that came in its place");
}

#[test]
fn after_a_power_cut_the_arm_does_not_serve_the_dead() {
    let first_read = |crash: bool| {
        let (sim, node, _, drive) = world(1, Speed::Disk, 0);
        start_writes(&sim, node, &drive, 500);
        sim.run_for(Duration::from_millis(1));
        if crash {
            sim.crash(node)
        } else {
            sim.kill(node)
        }
        drop(drive);
        sim.restart(node);
        let drive = open(&sim, node).expect("it is there");
        let begin = sim.now();
        sim.block_on(node, drive.read(0, BLOCK_BYTES)).expect("no fault");
        sim.now().since(begin)
    };
    let (crashed, killed) = (first_read(true), first_read(false));
    assert!(crashed < Duration::from_millis(50), "{crashed:?}");
    assert!(killed > Duration::from_millis(500), "a drive that has power does what it was given: {killed:?}");
}

#[test]
fn drives_of_one_machine_turn_by_themselves() {
    let (sim, node, _, _) = world(1, Speed::Disk, 0);
    let mut ends = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let env = sim.env(node);
        let drive = sim.block_on(node, async move { env.open_drive(created(name, BLOCKS)).await });
        let drive = drive.expect("it is created");
        sim.block_on(node, drive.write(0, block(1), Durability::Durable)).expect("no fault");
        ends.push(sim.now().0 % 6_000_000);
    }
    ends.sort_unstable();
    ends.dedup();
    assert_eq!(ends.len(), 4, "four disks that turn as one");
}

#[test]
fn a_discarded_block_reads_as_zeros_or_as_it_was() {
    let mut seen = [0, 0];
    for seed in 0..8 {
        let (sim, node, id, drive) = world(seed, Speed::Ssd, 30);
        for n in 0..8 {
            sim.block_on(node, drive.write(n * BLOCK, block(7), Durability::Durable)).expect("no fault");
        }
        sim.block_on(node, drive.discard(0, 7 * BLOCK_BYTES)).expect("no fault");
        for n in 0..7 {
            let found = sim.block_on(node, drive.read(n * BLOCK, BLOCK_BYTES)).expect("no fault");
            assert!(found.iter().all(|&byte| byte == found[0]));
            seen[usize::from(found[0] == 7)] += i32::from(found[0] == 0 || found[0] == 7);
        }
        assert_eq!(sim.peek_drive(id, 7 * BLOCK, BLOCK_BYTES)[0], 7, "what was not discarded");
        sim.block_on(node, drive.write(0, block(9), Durability::Durable)).expect("no fault");
        sim.restart(node);
        assert_eq!(sim.peek_drive(id, 0, BLOCK_BYTES)[0], 9, "what was written again stays");
        assert_eq!(sim.drive_stats(id).discards.bytes, 7 * BLOCK);
    }
    assert!(seen[0] > 5 && seen[1] > 5 && seen[0] + seen[1] == 56, "{seen:?}");
}

#[test]
fn a_discard_past_the_end_is_refused() {
    let (sim, node, _, drive) = world(1, Speed::Ssd, 0);
    let refused = sim.block_on(node, drive.discard(BLOCKS * BLOCK, BLOCK_BYTES));
    assert!(matches!(refused, Err(DriveError::PastEnd { .. })), "{refused:?}");
    assert!(sim.now() > Time::ZERO);
}
