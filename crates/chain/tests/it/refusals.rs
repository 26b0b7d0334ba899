//! Drives that are not what is expected: each refused with a clear error, nothing written.

use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{
    Batch, CacheDrive, CacheError, Chain, ChainId, ChangeError, DumpOptions, Identity, MetadataDrive,
    MetadataError, OpenError, check, dump,
};
use ithaca_env::drive::{Drive, DriveError, Durability, OpenDrive, PageBuf};
use ithaca_env::sim::Death;
use ithaca_env::{Env, Time};

use crate::model::run_of;
use crate::world::{World, identity, open_drive, open_named, small_options};

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
        let torn = Bytes::from([&b"ITHS"[..], &[3; 4092]].concat());
        drive.write(0, torn, Durability::Durable).await.expect("it can be written");
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

/// A drive of some segments with something at one place.
async fn drive_with(env: &Env, name: &str, offset: u64, bytes: &[u8]) -> Drive {
    let open = OpenDrive { path: name.into(), create_bytes: Some(1 << 20), read_only: false };
    let drive = env.open_drive(open).await.expect("created");
    rewrite(&drive, offset, |block| block[..bytes.len()].copy_from_slice(bytes)).await;
    drive
}

#[test]
fn a_drive_with_something_else_on_it_is_not_written_over() {
    // An array's superblock is at 4 KiB, that of Btrfs behind the first 64 KiB, which it leaves zeros; LVM and ext4 begin in
    // the first block.
    for (seed, offset) in [0, 4096, 20480, 65536].into_iter().enumerate() {
        within(20 + seed as u64, async move |env| {
            let foreign = b"_BHRfS_M and what else it says";
            let drive = drive_with(&env, "foreign", offset, foreign).await;
            let before = drive.read(0, 256 << 10).await.expect("it can be read");
            let error = Chain::create(&env, drive.clone(), identity(), small_options()).await.err();
            let is_named = match &error {
                Some(OpenError::NotBlank { drive }) => offset != 0 && drive == "foreign",
                Some(OpenError::SuperblockLost { valid: 0, .. }) => offset == 0,
                _ => false,
            };
            assert!(is_named, "{offset}: {error:?}");
            let chain = Chain::create(&env, open_drive(&env).await, identity(), small_options()).await;
            let chain = chain.expect("created");
            let added = chain.add_drive(drive.clone()).await.err();
            assert!(
                matches!(&added, Some(ChangeError::Open(OpenError::NotBlank { .. }))),
                "{offset}: {added:?}"
            );
            let beside = chain.add_side(chain.drive_ids()[0], drive.clone()).await.err();
            assert!(
                matches!(&beside, Some(ChangeError::Open(OpenError::NotBlank { .. }))),
                "{offset}: {beside:?}"
            );
            let cached = CacheDrive::open(&env, drive.clone(), 1 << 20).await.err();
            assert!(matches!(&cached, Some(CacheError::NotACache { .. })), "{offset}: {cached:?}");
            let mirrored = MetadataDrive::open(&env, drive.clone()).await.err();
            assert!(matches!(&mirrored, Some(MetadataError::NotMetadata { .. })), "{offset}: {mirrored:?}");
            assert!(drive.read(0, 256 << 10).await.expect("it can be read") == before, "nothing is written");
        });
    }
}

#[test]
fn a_short_file_of_somebody_else_is_not_written_to_and_does_not_grow() {
    within(27, async |env| {
        for blank in [0, 4096] {
            let open = OpenDrive {
                path: format!("text {blank}").into(),
                create_bytes: Some(8192),
                read_only: false,
            };
            let drive = env.open_drive(open).await.expect("created");
            let text = b"root:x:0:0:root:/root:/bin/bash".repeat(100);
            rewrite(&drive, blank, |block| block[..text.len()].copy_from_slice(&text)).await;
            let before = drive.read(0, 8192).await.expect("it can be read");
            let cached = CacheDrive::open(&env, drive.clone(), 1 << 20).await.err();
            assert!(matches!(&cached, Some(CacheError::NotACache { .. })), "{cached:?}");
            let mirrored = MetadataDrive::open(&env, drive.clone()).await.err();
            assert!(matches!(&mirrored, Some(MetadataError::NotMetadata { .. })), "{mirrored:?}");
            let created = Chain::create(&env, drive.clone(), identity(), small_options()).await.err();
            assert!(matches!(&created, Some(OpenError::NotBlank { .. })), "{created:?}");
            assert_eq!(drive.size_bytes(), 8192);
            assert!(drive.read(0, 8192).await.expect("it can be read") == before, "nothing is written");
        }
    });
}

#[test]
fn what_a_chain_a_cache_or_metadata_left_behind_a_blank_beginning_keeps_nobody_away() {
    for (seed, magic) in [b"ITHH", b"ITHL", b"ITHE"].into_iter().enumerate() {
        within(30 + seed as u64, async move |env| {
            let left = async |name| drive_with(&env, name, 65536, magic).await;
            let chain = Chain::create(&env, left("first").await, identity(), small_options()).await;
            let chain = chain.expect("blank");
            chain.add_drive(left("second").await).await.expect("blank");
            CacheDrive::open(&env, left("third").await, 1 << 20).await.expect("blank");
            MetadataDrive::open(&env, left("fourth").await).await.expect("blank");
            // Shorter than the zone: nothing lies behind it.
            chain.add_drive(open_named(&env, "fifth").await).await.expect("blank");
        });
    }
}

/// A drive that is blank where it begins, and nowhere else unless it is new.
async fn drive_of(env: &Env, name: &str, is_new: bool) -> Drive {
    let open = OpenDrive { path: name.into(), create_bytes: Some(1 << 20), read_only: false };
    let drive = env.open_drive(open).await.expect("created");
    if !is_new {
        let blank = (64 << 10) + 4096;
        let left: Vec<u8> = (0..(1 << 20) - blank).map(|byte| (byte % 251) as u8 + 1).collect();
        let left = PageBuf::paged(&left);
        drive.write(blank as u64, left, Durability::Durable).await.expect("it can be written");
    }
    drive
}

#[test]
fn what_somebody_else_left_behind_a_blank_beginning_is_not_read_by_every_open() {
    // A disk that has had another use would be read from end to end at each start.
    for is_new in [true, false] {
        within(35, async move |env| {
            let mut drives =
                vec![drive_of(&env, "first", is_new).await, drive_of(&env, "second", is_new).await];
            let chain =
                Chain::create(&env, drives.clone(), identity(), small_options()).await.expect("blank");
            drives.push(drive_of(&env, "third", is_new).await);
            chain.add_drive(drives[2].clone()).await.expect("blank");
            chain.close().await.expect("no fault");
            let (chain, recovered) =
                Chain::open(&env, drives, None, small_options()).await.expect("it is well");
            assert_eq!((recovered.scanned_segments, &recovered.damage[..]), (2, &[][..]), "new: {is_new}");
            chain.close().await.expect("no fault");
        });
    }
}

#[test]
fn a_creation_over_what_somebody_else_left_can_be_repeated_wherever_it_was_interrupted() {
    for point in 1.. {
        let world = World::new(36);
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move { drop(drive_of(&env, "used", false).await) });
        let start = world.sim.io_points(world.process);
        world.sim.end_at_io(world.process, start + point, Death::PowerCut);
        let create = |world: &World| {
            let env = world.sim.env(world.process);
            world.sim.try_block_on(world.process, Time::MAX, async move {
                let open = OpenDrive { path: "used".into(), create_bytes: None, read_only: false };
                let drive = env.open_drive(open).await.expect("it is there");
                match Chain::open(&env, drive.clone(), None, small_options()).await {
                    Ok((_, recovered)) => assert_eq!(recovered.damage, [], "{point}"),
                    Err(_) => {
                        _ = Chain::create(&env, drive, identity(), small_options()).await.expect("blank")
                    }
                }
            })
        };
        if create(&world).is_ok() {
            assert!(point > 10, "it was interrupted in many places");
            break;
        }
        world.sim.restart(world.process);
        create(&world).expect("nobody interrupts it");
    }
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
