//! Reads that fail while a drive is removed, for a moment or for good: what cannot be read is not told from what can by releasing it.

use ithaca_chain::{Batch, Chain, ChainOptions, ChangeError, Damage, DamageKind, ReadError};
use ithaca_env::sim::DriveFault;

use crate::drives::{THREE, append, put, tiny_drives};
use crate::world::{MACHINE, World, identity, open_drives};

/// A chain with three closed segments on the first of its drives, of which no data is in memory.
pub fn three_closed(world: &World, knows_footers: bool) -> Chain {
    three_closed_with(world, knows_footers, &tiny_drives())
}

fn three_closed_with(world: &World, knows_footers: bool, options: &ChainOptions) -> Chain {
    let env = world.sim.env(world.process);
    let options = ChainOptions { tail_cache_bytes: 0, index_cache_bytes: 1 << 20, ..options.clone() };
    world.sim.block_on(world.process, async move {
        let drives = open_drives(&env, &THREE).await;
        let chain = Chain::create(&env, drives, identity(), options).await.expect("created");
        append(&env, &chain, 0..30).await;
        if knows_footers {
            chain.describe(0..30).await.expect("no damage");
        }
        chain
    })
}

/// Has so many reads fail of the first drive while it is removed, and removes it again. Returns what came of the first removal.
fn removed_while_reads_fail(count: u32, knows_footers: bool) -> Result<(), ChangeError> {
    let world = World::new(14);
    let chain = three_closed(&world, knows_footers);
    world.sim.fault_drive(world.sim.drive(MACHINE, THREE[0]), DriveFault::FailReads { count });
    world.sim.block_on(world.process, async move {
        let first = chain.drive_ids()[0];
        let removed = chain.remove_drive(first).await;
        assert_eq!(chain.stats().damage, [], "{count} reads: it has none");
        if removed.is_err() {
            chain.remove_drive(first).await.expect("the drive reads again");
        }
        for key in 0..30 {
            assert!(chain.read(key).await.expect("no damage").is_some(), "{count} reads: key {key}");
        }
        removed
    })
}

#[test]
fn a_read_that_failed_while_a_drive_is_emptied_is_no_harm_and_the_next_removal_takes_it_out() {
    // To be told to release what cannot be moved would cost entries that are there.
    let is_unread = |removed| match removed {
        Ok(()) => false,
        Err(ChangeError::Unread { segments: 1.., .. }) => true,
        Err(other) => panic!("{other}"),
    };
    // With the footers in memory it is a read of records that fails, else one of a footer, of which each block is asked for a few times.
    // One that is not read is made again of the groups, if those are: each block of them is asked for a few times too.
    for (knows_footers, most) in [(true, 10), (false, 150)] {
        let unread =
            (1..=most).filter(|&count| is_unread(removed_while_reads_fail(count, knows_footers))).count();
        assert!((1..most as usize).contains(&unread), "{unread} of {most} removals were refused");
    }
}

#[test]
fn harm_is_said_to_keep_records_on_a_drive_only_when_every_read_of_the_others_has_worked() {
    // Whoever releases what harm keeps there does not mean what can be moved the next time.
    let world = World::new(14);
    let chain = three_closed(&world, true);
    let drive = world.sim.drive(MACHINE, THREE[0]);
    let third = (64 << 10) + 2 * (128 << 10);
    world.sim.fault_drive(drive, DriveFault::BitRot { offset: third + (12 << 10), bit: 1 });
    world.sim.fault_drive(drive, DriveFault::FailReads { count: 5 });
    world.sim.block_on(world.process, async move {
        let first = chain.drive_ids()[0];
        let unread = chain.remove_drive(first).await;
        assert!(matches!(&unread, Err(ChangeError::Unread { segments: 2, .. })), "{unread:?}");
        let harmed = chain.remove_drive(first).await;
        assert!(matches!(&harmed, Err(ChangeError::HoldsRecords { segments: 1, .. })), "{harmed:?}");
    });
}

#[test]
fn a_block_that_cannot_be_read_for_good_is_named_by_a_scrub_and_keeps_the_drive_no_longer_than_it_is_needed()
{
    // The operator would be told to try again for ever.
    let world = World::new(14);
    let chain = three_closed(&world, true);
    let drive = world.sim.drive(MACHINE, THREE[0]);
    world.sim.fault_drive(drive, DriveFault::Unreadable { offset: (64 << 10) + (12 << 10) });
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let first = chain.drive_ids()[0];
        for _ in 0..2 {
            let unread = chain.remove_drive(first).await;
            assert!(matches!(&unread, Err(ChangeError::Unread { segments: 1, .. })), "{unread:?}");
        }
        chain.scrub().await.expect("it goes on");
        let damage = chain.stats().damage;
        assert!(matches!(damage[..], [Damage { kind: DamageKind::Data { .. }, .. }]), "{damage:?}");
        let harmed = chain.remove_drive(first).await;
        assert!(matches!(&harmed, Err(ChangeError::HoldsRecords { segments: 1, .. })), "{harmed:?}");
        let release = || Batch { release: std::iter::once(0..20).collect(), ..Batch::default() };
        put(&env, &chain, release).await;
        chain.remove_drive(first).await.expect("nothing on it is needed");
        for key in 20..30 {
            assert!(chain.read(key).await.expect("no damage").is_some(), "key {key}");
        }
    });
}

/// Where the blocks of a drive are that begin so, in its first segment.
pub fn blocks_of(world: &World, magic: &[u8]) -> Vec<u64> {
    let start = 64 << 10;
    let segment = world.sim.peek_drive(world.sim.drive(MACHINE, THREE[0]), start, 128 << 10);
    let blocks = segment.chunks_exact(4096).enumerate().filter(|(_, block)| block.starts_with(magic));
    blocks.map(|(index, _)| start + 4096 * index as u64).collect()
}

#[test]
fn what_a_footer_that_cannot_be_read_speaks_of_is_moved_by_its_groups() {
    // It kept the drive until all of it was trimmed, though every record could be read.
    for part in [b"ITHD", b"ITHF"] {
        let world = World::new(14);
        let _chain = three_closed(&world, false);
        let offset = blocks_of(&world, part)[0];
        for fault in [DriveFault::Unreadable { offset }, DriveFault::BitRot { offset: offset + 100, bit: 4 }]
        {
            let world = World::new(14);
            let chain = three_closed(&world, false);
            world.sim.fault_drive(world.sim.drive(MACHINE, THREE[0]), fault);
            world.sim.block_on(world.process, async move {
                chain.remove_drive(chain.drive_ids()[0]).await.expect("its groups tell the same");
                for key in 0..30 {
                    assert!(chain.read(key).await.expect("no damage").is_some(), "{fault:?}: key {key}");
                }
                assert_eq!(chain.stats().damage, [], "{fault:?}");
            });
        }
    }
}

/// Whether a drive stays when the footer of a segment and one of its groups are harmed, whichever group that is.
pub fn keeps_what_groups_do_not_tell(options: &ChainOptions) -> bool {
    let groups = {
        let world = World::new(14);
        let _chain = three_closed_with(&world, false, options);
        // The first one is the mark of the open.
        blocks_of(&world, b"ITHG").split_off(1)
    };
    let is_kept = |group: u64| {
        let world = World::new(14);
        let chain = three_closed_with(&world, false, options);
        let drive = world.sim.drive(MACHINE, THREE[0]);
        world.sim.fault_drive(drive, DriveFault::Unreadable { offset: blocks_of(&world, b"ITHD")[0] });
        world.sim.fault_drive(drive, DriveFault::BitRot { offset: group + 50, bit: 3 });
        world.sim.block_on(world.process, async move {
            let removed = chain.remove_drive(chain.drive_ids()[0]).await;
            let mut lost = 0;
            for key in 0..30 {
                match chain.read(key).await {
                    Ok(record) => lost += u64::from(record.is_none()),
                    Err(ReadError::Damaged { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            matches!(removed, Err(ChangeError::Unread { segments: 1, .. })) && lost == 0
        })
    };
    assert!(groups.len() > 5, "{groups:?}");
    groups.into_iter().all(is_kept)
}

#[test]
fn groups_that_are_lost_with_the_footer_are_named_by_a_scrub_and_keep_the_drive_no_longer_than_they_are_needed()
 {
    // The operator would be told to try again for ever.
    let world = World::new(14);
    let chain = three_closed(&world, false);
    let drive = world.sim.drive(MACHINE, THREE[0]);
    world.sim.fault_drive(drive, DriveFault::Unreadable { offset: blocks_of(&world, b"ITHD")[0] });
    world.sim.fault_drive(drive, DriveFault::Unreadable { offset: blocks_of(&world, b"ITHG")[4] });
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let first = chain.drive_ids()[0];
        let unread = chain.remove_drive(first).await;
        assert!(matches!(&unread, Err(ChangeError::Unread { segments: 1, .. })), "{unread:?}");
        for _ in 0..2 {
            chain.scrub().await.expect("it goes on");
            let damage = chain.stats().damage;
            assert_eq!(damage.iter().filter(|it| matches!(it.kind, DamageKind::Groups { .. })).count(), 1);
        }
        let harmed = chain.remove_drive(first).await;
        assert!(matches!(&harmed, Err(ChangeError::HoldsRecords { segments: 1, .. })), "{harmed:?}");
        let release = || Batch { release: std::iter::once(0..20).collect(), ..Batch::default() };
        put(&env, &chain, release).await;
        chain.remove_drive(first).await.expect("nothing on it is needed");
        for key in 20..30 {
            assert!(chain.read(key).await.expect("no damage").is_some(), "key {key}");
        }
    });
}

#[test]
fn groups_that_are_not_all_there_do_not_stand_for_a_footer() {
    // A drive that is removed by what is left of it takes with it what nobody knows to be missing.
    assert!(keeps_what_groups_do_not_tell(&tiny_drives()));
}

#[test]
fn a_mirrored_drive_of_which_one_side_fails_every_read_is_removed() {
    // The other side has everything.
    let world = World::over(15, &["a", "b", "c", "d"]);
    let env = world.sim.env(world.process);
    let chain = world.sim.block_on(world.process, async move {
        let mut links = vec![open_drives(&env, &["a", "b"]).await];
        for alone in ["c", "d"] {
            links.push(open_drives(&env, &[alone]).await);
        }
        let options = ChainOptions { tail_cache_bytes: 0, ..tiny_drives() };
        let chain = Chain::create(&env, links, identity(), options).await.expect("created");
        append(&env, &chain, 0..30).await;
        chain
    });
    world.sim.fault_drive(world.sim.drive(MACHINE, "a"), DriveFault::FailReads { count: u32::MAX });
    world.sim.block_on(world.process, async move {
        chain.remove_drive(chain.drive_ids()[0]).await.expect("there is room");
        for key in 0..30 {
            assert!(chain.read(key).await.expect("no damage").is_some(), "key {key}");
        }
    });
}
