//! The crash model, and one test for each fault: that it happens and that the atlas knows.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use super::{block, created, machine};
use crate::Time;
use crate::drive::{Drive, DriveError, Durability, OpenDrive};
use crate::limits::BLOCK_BYTES;
use crate::sim::{Death, DriveFault, DriveId, HarmKind, ProcessId, Sim, SimOptions};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// A world with one process and a drive of 16 blocks that it has open.
fn world(seed: u64) -> (Sim, ProcessId, DriveId, Drive) {
    let sim = Sim::with_options(seed, SimOptions::default());
    let node = sim.process("node", machine(1));
    let drive = open(&sim, node).expect("it is created");
    let id = sim.drive(machine(1), "log");
    (sim, node, id, drive)
}

fn open(sim: &Sim, node: ProcessId) -> Result<Drive, DriveError> {
    let env = sim.env(node);
    sim.block_on(node, async move { env.open_drive(created("log", 16)).await })
}

fn write(
    sim: &Sim,
    node: ProcessId,
    drive: &Drive,
    at: u64,
    fill: u8,
    how: Durability,
) -> Result<(), DriveError> {
    sim.block_on(node, drive.write(at * BLOCK, block(fill), how))
}

fn read(sim: &Sim, node: ProcessId, drive: &Drive, at: u64) -> Result<u8, DriveError> {
    sim.block_on(node, drive.read(at * BLOCK, BLOCK_BYTES)).map(|data| data[0])
}

#[test]
fn what_was_written_durably_or_synced_survives_every_crash() {
    for seed in 0..50 {
        let (sim, node, _, drive) = world(seed);
        write(&sim, node, &drive, 0, 1, Durability::Durable).expect("no fault");
        write(&sim, node, &drive, 1, 2, Durability::Volatile).expect("no fault");
        sim.block_on(node, drive.sync()).expect("no fault");
        write(&sim, node, &drive, 2, 3, Durability::Volatile).expect("no fault");
        sim.restart(node);
        let drive = open(&sim, node).expect("it is there");
        assert_eq!((read(&sim, node, &drive, 0), read(&sim, node, &drive, 1)), (Ok(1), Ok(2)));
    }
}

#[test]
fn a_crash_loses_keeps_or_tears_what_was_not_synced() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..100 {
        let (sim, node, id, drive) = world(seed);
        write(&sim, node, &drive, 0, 7, Durability::Volatile).expect("no fault");
        sim.crash(node);
        let left = sim.peek_drive(id, 0, BLOCK_BYTES);
        let sectors = left.chunks(512).filter(|sector| sector[0] == 7).count();
        assert!(left.chunks(512).all(|sector| sector.iter().all(|&byte| byte == sector[0])));
        outcomes.insert(match sectors {
            0 => "lost",
            8 => "kept",
            _ => "torn",
        });
    }
    assert_eq!(Vec::from_iter(outcomes), ["kept", "lost", "torn"]);
}

#[test]
fn a_killed_process_leaves_what_the_drive_has_taken() {
    for seed in 0..20 {
        let (sim, node, id, drive) = world(seed);
        write(&sim, node, &drive, 0, 7, Durability::Volatile).expect("no fault");
        sim.kill(node);
        assert_eq!(sim.peek_drive(id, 0, BLOCK_BYTES)[0], 7);
    }
}

#[test]
fn a_process_dies_at_the_io_point_it_is_told_to() {
    // Opening passes no I/O point; each write passes two.
    for (point, may_be_there) in [(1, true), (2, true), (3, true)] {
        let (sim, node, id, drive) = world(3);
        sim.crash_at_io(node, point);
        let told = Rc::new(RefCell::new(0));
        let (seen, writer) = (Rc::clone(&told), drive.clone());
        let ended = sim.try_block_on(node, Time::MAX, async move {
            for at in 0..2u64 {
                writer.write(at * BLOCK, block(1), Durability::Durable).await.expect("no fault");
                *seen.borrow_mut() += 1;
            }
        });
        assert!(ended.is_err() && !sim.is_up(node));
        assert_eq!(*told.borrow(), (point - 1) / 2, "acknowledged before point {point}");
        let first = sim.peek_drive(id, 0, BLOCK_BYTES)[0];
        assert!(first == 1 || (point == 1 && may_be_there), "done before point {point}");
        assert_eq!(sim.io_points(node), point);
    }
}

#[test]
fn a_drive_open_in_a_living_process_is_in_use_and_free_after_its_end() {
    let (sim, node, _, drive) = world(1);
    let other = sim.process("other", machine(1));
    assert!(matches!(open(&sim, other), Err(DriveError::InUse { .. })));
    sim.end(node, Death::Kill);
    let reopened = open(&sim, other);
    assert!(reopened.is_ok());
    drop(drive);
    sim.restart(node);
    assert!(
        matches!(open(&sim, node), Err(DriveError::InUse { .. })),
        "an old handle frees nothing of others"
    );
}

#[test]
fn errors_say_what_was_asked_and_what_there_is() {
    let (sim, node, _, drive) = world(1);
    let past = sim.block_on(node, drive.read(16 * BLOCK, BLOCK_BYTES));
    assert!(matches!(past, Err(DriveError::PastEnd { size: 65_536, .. })));
    sim.block_on(node, drive.grow(17 * BLOCK)).expect("there is space");
    assert_eq!(read(&sim, node, &drive, 16), Ok(0));
    let env = sim.env(node);
    let absent = OpenDrive { path: "absent".into(), create_bytes: None, read_only: false };
    let absent = sim.block_on(node, async move { env.open_drive(absent).await });
    assert!(matches!(absent, Err(DriveError::NotFound { .. })));
}

#[test]
fn a_failed_write_says_so_and_is_in_the_history_only() {
    let (sim, node, id, drive) = world(1);
    sim.fault_drive(id, DriveFault::FailWrites { count: 1 });
    assert!(matches!(write(&sim, node, &drive, 0, 1, Durability::Durable), Err(DriveError::Io { .. })));
    assert_eq!(sim.atlas().history()[0].kind, HarmKind::FailedWrite);
    assert!(!sim.atlas().is_harmed(id, 0..BLOCK));
    write(&sim, node, &drive, 0, 2, Durability::Durable).expect("one fault, one failure");
}

#[test]
fn a_failed_sync_drops_dirty_data_that_a_second_sync_does_not_bring_back() {
    let mut lost = 0;
    for seed in 0..20 {
        let (sim, node, id, drive) = world(seed);
        write(&sim, node, &drive, 0, 1, Durability::Volatile).expect("no fault");
        sim.fault_drive(id, DriveFault::FailSyncs { count: 1 });
        assert!(sim.block_on(node, drive.sync()).is_err());
        sim.block_on(node, drive.sync()).expect("it lies");
        lost += u32::from(sim.peek_drive(id, 0, BLOCK_BYTES) != block(1));
        assert_eq!(sim.atlas().history().len(), 1);
    }
    assert!(lost > 3, "{lost} of 20 lost");
}

#[test]
fn a_lost_write_is_acknowledged_and_harms_its_block_until_it_is_rewritten() {
    for how in [Durability::Durable, Durability::Volatile] {
        let (sim, node, id, drive) = world(1);
        write(&sim, node, &drive, 0, 1, how).expect("no fault");
        sim.fault_drive(id, DriveFault::LoseWrites { count: 1 });
        write(&sim, node, &drive, 0, 2, how).expect("it lies");
        sim.block_on(node, drive.sync()).expect("no fault");
        assert_eq!(read(&sim, node, &drive, 0), Ok(1));
        assert_eq!(sim.atlas().harms(id, 100..101), [HarmKind::LostWrite]);
        write(&sim, node, &drive, 0, 3, how).expect("no fault");
        sim.block_on(node, drive.sync()).expect("no fault");
        assert!(!sim.atlas().is_harmed(id, 0..BLOCK));
    }
}

#[test]
fn a_misdirected_write_harms_both_places() {
    let (sim, node, id, drive) = world(4);
    sim.fault_drive(id, DriveFault::MisdirectWrites { count: 1 });
    write(&sim, node, &drive, 0, 9, Durability::Durable).expect("it lies");
    let kinds: Vec<_> = sim.atlas().history().iter().map(|harm| harm.kind).collect();
    assert_eq!(kinds, [HarmKind::MisdirectedFrom, HarmKind::MisdirectedTo]);
    let landed = sim.atlas().history()[1].offset;
    assert_eq!((sim.peek_drive(id, landed, 4096)[0], read(&sim, node, &drive, 0)), (9, Ok(0)));
    assert!(sim.atlas().is_harmed(id, landed..landed + 1) && sim.atlas().is_harmed(id, 0..1));
}

#[test]
fn an_unreadable_block_fails_reads_until_it_is_rewritten() {
    let (sim, node, id, drive) = world(1);
    sim.fault_drive(id, DriveFault::Unreadable { offset: BLOCK + 5 });
    assert!(matches!(read(&sim, node, &drive, 1), Err(DriveError::Io { offset: 4096, .. })));
    assert_eq!(read(&sim, node, &drive, 0), Ok(0));
    assert_eq!(sim.atlas().harmed_blocks(id).collect::<Vec<_>>(), [BLOCK]);
    write(&sim, node, &drive, 1, 1, Durability::Durable).expect("no fault");
    assert_eq!(read(&sim, node, &drive, 1), Ok(1));
    assert!(!sim.atlas().is_harmed(id, 0..16 * BLOCK));
}

#[test]
fn bit_rot_flips_one_bit_and_is_recorded() {
    let (sim, node, id, drive) = world(1);
    write(&sim, node, &drive, 2, 0, Durability::Durable).expect("no fault");
    sim.fault_drive(id, DriveFault::BitRot { offset: 2 * BLOCK, bit: 3 });
    assert_eq!(read(&sim, node, &drive, 2), Ok(8));
    assert_eq!(sim.atlas().harms(id, 2 * BLOCK..3 * BLOCK), [HarmKind::BitRot]);
}

#[test]
fn failed_reads_are_transient() {
    let (sim, node, id, drive) = world(1);
    sim.fault_drive(id, DriveFault::FailReads { count: 1 });
    assert!(read(&sim, node, &drive, 0).is_err());
    assert_eq!(read(&sim, node, &drive, 0), Ok(0));
}

#[test]
fn no_space_is_said_and_nothing_is_written() {
    let (sim, node, id, drive) = world(1);
    sim.fault_drive(id, DriveFault::NoSpace { count: 2 });
    let full = write(&sim, node, &drive, 0, 1, Durability::Durable);
    assert!(matches!(full, Err(DriveError::NoSpace { operation: "write", .. })));
    let full = sim.block_on(node, drive.grow(100 * BLOCK));
    assert!(matches!(full, Err(DriveError::NoSpace { operation: "grow", .. })));
    assert_eq!((read(&sim, node, &drive, 0), drive.size_bytes()), (Ok(0), 16 * BLOCK));
}

#[test]
fn a_machine_holds_no_more_than_its_capacity() {
    let options = SimOptions { machine_capacity_bytes: 20 * BLOCK, ..SimOptions::default() };
    let sim = Sim::with_options(1, options);
    let node = sim.process("node", machine(1));
    let drive = open(&sim, node).expect("it fits");
    let grown = sim.block_on(node, drive.grow(21 * BLOCK));
    assert!(matches!(grown, Err(DriveError::NoSpace { .. })));
    sim.block_on(node, drive.grow(20 * BLOCK)).expect("it fits");
}

#[test]
fn slow_and_stuck_drives_answer_late() {
    let (sim, node, id, drive) = world(1);
    sim.fault_drive(id, DriveFault::Slow { percent: 10_000, span: Duration::from_secs(1) });
    let before = sim.now();
    read(&sim, node, &drive, 0).expect("no fault");
    assert!(sim.now().since(before) > Duration::from_millis(8));
    sim.fault_drive(id, DriveFault::Stuck { span: Duration::from_secs(2) });
    read(&sim, node, &drive, 0).expect("no fault");
    assert!(sim.now().since(before) > Duration::from_secs(2));
}

#[test]
fn a_drive_that_is_gone_fails_every_request_and_its_replacement_is_empty() {
    let (sim, node, id, drive) = world(1);
    write(&sim, node, &drive, 0, 1, Durability::Durable).expect("no fault");
    sim.fault_drive(id, DriveFault::Gone);
    assert!(read(&sim, node, &drive, 0).is_err());
    assert_eq!(sim.atlas().harms(id, 0..1), [HarmKind::Gone]);
    sim.fault_drive(id, DriveFault::Replace);
    assert!(read(&sim, node, &drive, 0).is_err(), "what was opened before the replacement stays gone");
    let drive = open(&sim, node).expect("it is created anew");
    assert_eq!(read(&sim, node, &drive, 0), Ok(0));
}

#[test]
fn requests_overtake_each_other() {
    let (sim, node, _, drive) = world(1);
    let order = Rc::new(RefCell::new(Vec::new()));
    for number in 0..10 {
        let (order, reading) = (Rc::clone(&order), drive.read(0, BLOCK_BYTES));
        sim.env(node).spawn(async move {
            reading.await.expect("no fault");
            order.borrow_mut().push(number);
        });
    }
    sim.run_for(Duration::from_secs(1));
    assert_eq!(order.borrow().len(), 10);
    assert!(!order.borrow().is_sorted());
}
