//! Drives that are not what is expected: each refused with a clear error, nothing written.

use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{Batch, Chain, ChainId, DumpOptions, Identity, OpenError, check, dump};
use ithaca_env::Env;
use ithaca_env::drive::{Drive, DriveError, Durability, OpenDrive, PageBuf};

use crate::model::run_of;
use crate::world::{World, identity, open_drive, small_options};

fn within(seed: u64, test: impl AsyncFnOnce(Env) + 'static) {
    let world = World::new(seed);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move { test(env).await });
}

/// A closed chain with one record in each of a few segments.
async fn make_chain(env: &Env) -> Drive {
    let drive = open_drive(env).await;
    let chain = Chain::create(env, drive.clone(), identity(), small_options()).await.expect("created");
    for key in 0..40 {
        let run = run_of(key, 1, &[Bytes::from(vec![1; 8192])]);
        let ticket = chain.append(Batch { runs: vec![run], ..Batch::default() }).expect("room");
        chain.wait(ticket).await.expect("no fault");
    }
    chain.close().await.expect("no fault");
    drive
}

async fn rewrite(drive: &Drive, offset: u64, change: impl FnOnce(&mut [u8])) {
    let mut block = PageBuf::default();
    block.extend(&drive.read(offset, 4096).await.expect("it can be read"));
    change(block.as_mut_slice());
    drive.write(offset, block.freeze(), Durability::Durable).await.expect("it can be written");
}

#[test]
fn a_drive_of_another_chain_is_refused() {
    within(1, async |env| {
        let drive = make_chain(&env).await;
        let other = Identity { id: ChainId([9; 16]), ..identity() };
        let error = Chain::open(&env, drive.clone(), Some(&other), small_options()).await.err();
        assert!(matches!(&error, Some(OpenError::WrongChain { .. })), "{error:?}");
        let error = Chain::create(&env, drive, other, small_options()).await.err();
        assert!(
            matches!(&error, Some(OpenError::AlreadyThere { id, .. }) if *id == identity().id),
            "{error:?}"
        );
    });
}

#[test]
fn a_blank_drive_is_no_chain_and_an_interrupted_creation_can_be_repeated() {
    within(2, async |env| {
        let drive = open_drive(&env).await;
        let error = Chain::open(&env, drive.clone(), None, small_options()).await.err();
        assert!(matches!(&error, Some(OpenError::NotAChain { .. })), "{error:?}");
        let noise = Bytes::from(vec![3; 4096]);
        drive.write(0, noise, Durability::Durable).await.expect("it can be written");
        let error = Chain::open(&env, drive.clone(), None, small_options()).await.err();
        assert!(matches!(&error, Some(OpenError::SuperblockLost { valid: 0, .. })), "{error:?}");
        Chain::create(&env, drive, identity(), small_options()).await.expect("nothing was there");
    });
}

#[test]
fn a_drive_that_another_chain_may_be_writing_to_is_refused() {
    within(14, async |env| {
        let drive = make_chain(&env).await;
        let open = async || Chain::open(&env, drive.clone(), None, small_options()).await;
        let is_in_use = |error: Option<OpenError>| {
            assert!(matches!(&error, Some(OpenError::Drive(DriveError::InUse { .. }))), "{error:?}");
        };
        let (chain, _) = open().await.expect("it was closed");
        is_in_use(open().await.err());
        is_in_use(Chain::create(&env, drive.clone(), identity(), small_options()).await.err());
        // Handles of a chain that was abandoned keep nobody away.
        let handle = chain.clone();
        chain.abandon().await;
        let (chain, _) = open().await.expect("it was abandoned");
        drop(handle);
        is_in_use(open().await.err());
        // What is under way when the last handle is dropped goes on, and then that is over.
        let run = run_of(40, 1, &[Bytes::from(vec![1; 8192])]);
        chain.append(Batch { runs: vec![run], ..Batch::default() }).expect("room");
        env.yield_now().await;
        drop(chain);
        is_in_use(open().await.err());
        env.sleep(Duration::from_secs(1)).await;
        let (chain, _) = open().await.expect("nobody has it");
        assert!(chain.read(40).await.expect("no damage").is_some());
    });
}

#[test]
fn a_chain_whose_superblocks_are_lost_is_not_created_over() {
    within(3, async |env| {
        let drive = make_chain(&env).await;
        for copy in 0..3 {
            rewrite(&drive, copy * (16 << 10), |block| block[100] ^= 1).await;
        }
        let error = Chain::create(&env, drive, identity(), small_options()).await.err();
        assert!(matches!(&error, Some(OpenError::SuperblockLost { valid: 1, .. })), "{error:?}");
    });
}

#[test]
fn a_newer_format_is_refused_by_its_number() {
    within(4, async |env| {
        let drive = make_chain(&env).await;
        rewrite(&drive, 0, |block| {
            block[8] = 2;
            let checksum = crc32c::crc32c(&block[8..]);
            block[4..8].copy_from_slice(&checksum.to_le_bytes());
        })
        .await;
        let error = Chain::open(&env, drive, None, small_options()).await.err();
        assert!(matches!(&error, Some(OpenError::NewerFormat { found: 2, known: 1, .. })), "{error:?}");
    });
}

#[test]
fn a_drive_cut_short_is_refused() {
    within(5, async |env| {
        let drive = make_chain(&env).await;
        let len = (64 << 10) + 2 * (128 << 10);
        let open = OpenDrive { path: "short".into(), create_bytes: Some(len), read_only: false };
        let short = env.open_drive(open).await.expect("created");
        let bytes = drive.read(0, len as usize).await.expect("it can be read");
        short.write(0, bytes, Durability::Durable).await.expect("it can be written");
        let error = Chain::open(&env, short, None, small_options()).await.err();
        assert!(
            matches!(&error, Some(OpenError::Truncated { found_bytes, .. }) if *found_bytes == len),
            "{error:?}"
        );
    });
}

#[test]
fn a_check_and_a_dump_tell_what_is_there() {
    within(6, async |env| {
        let drive = make_chain(&env).await;
        let report = check(&drive).await.expect("it is well");
        assert_eq!((report.damage.len(), report.drives[0].superblock_copies, report.records), (0, 4, 40));
        assert!(report.segments_closed >= 2 && report.groups >= 42, "{report:?}");
        let mut lines = Vec::new();
        let everything = DumpOptions { segment: None, groups: true, runs: true };
        dump(&drive, everything, |line| lines.push(line)).await.expect("it is well");
        let count = |what: &str| lines.iter().filter(|line| line.contains(what)).count();
        assert_eq!(
            (count("superblock chain="), count("checkpoint")),
            (1, report.segments_closed as usize + 1)
        );
        assert!(count("  group seq=") as u64 == report.groups && count("HARMED") == 0, "{lines:#?}");
        rewrite(&drive, (64 << 10) + 12288, |block| block[4000] ^= 1).await;
        let report = check(&drive).await.expect("it can be opened");
        assert_eq!(report.damage.len(), 1, "{report:?}");
    });
}
