//! Floors, snapshots, room that old versions give back.

use ithaca_volume::{
    CommitError, Durability, TxError, TxOptions, Version, Volume, VolumeError, VolumeOptions,
};

use crate::world::{begin, block, create, number, open_drive, small_options, small_settings, within};

#[test]
fn a_named_snapshot_stays_as_it_was_while_the_drive_is_written_over_many_times() {
    within(11, async |env| {
        let volume = create(&env, small_options(0)).await;
        for at in 0..30 {
            volume.write(at, block(at + 1), Durability::Acknowledged).await.expect("room");
        }
        let version = volume.create_snapshot("first").await.expect("it is made");
        assert_eq!(version, Version(30));
        for round in 0..4000 {
            volume.write(round % 40, block(1000 + round), Durability::Acknowledged).await.expect("room");
        }
        volume.flush().await.expect("no fault");
        assert!(volume.info().chain.counters.segments_cleaned > 20);
        let check = async |volume: &Volume| {
            let first = volume.named("first").expect("it is kept");
            for at in 0..40 {
                let expected = if at < 30 { at + 1 } else { 0 };
                assert_eq!(number(&first.read(at, 1).await.expect("it reads")), expected, "block {at}");
            }
        };
        check(&volume).await;
        volume.close().await.expect("no fault");
        drop(volume);
        env.yield_now().await;
        let volume = Volume::open(&env, open_drive(&env).await, small_settings()).await.expect("it opens");
        check(&volume).await;
        volume.delete_snapshot("first").await.expect("it is there");
        assert!(volume.at(Version(30)).is_err());
        assert_eq!(volume.info().versions, 0, "nothing old is left");
    });
}

#[test]
fn a_snapshot_that_nobody_waited_for_is_kept_and_can_be_deleted() {
    within(14, async |env| {
        let volume = create(&env, small_options(0)).await;
        volume.write(0, block(1), Durability::Stable).await.expect("room");
        drop(begin(volume.create_snapshot("first")).await);
        for round in 2..2000 {
            volume.write(round % 40, block(round), Durability::Acknowledged).await.expect("room");
        }
        volume.write(0, block(2000), Durability::Stable).await.expect("room");
        let first = volume.named("first").expect("it is kept");
        assert_eq!(number(&first.read(0, 1).await.expect("it reads")), 1);
        let version = first.version();
        drop(first);
        drop(begin(volume.delete_snapshot("first")).await);
        assert_eq!(volume.snapshots(), []);
        volume.write(0, block(2001), Durability::Stable).await.expect("room");
        assert!(volume.at(version).is_err(), "it can go");
    });
}

#[test]
fn old_versions_are_given_up_when_the_drive_is_full_and_not_before() {
    within(12, async |env| {
        let volume = create(&env, small_options(u64::MAX)).await;
        volume.write(0, block(1), Durability::Stable).await.expect("room");
        let mut gone_at = None;
        for round in 2..1500 {
            volume.write(round % 40, block(round), Durability::Stable).await.expect("history gives way");
            if gone_at.is_none() && volume.at(Version(1)).is_err() {
                gone_at = Some(round);
            }
        }
        // 4 MiB less the reserve are some 700 blocks.
        assert!(gone_at.is_some_and(|round| round > 300), "{gone_at:?}");
    });
}

#[test]
fn a_full_volume_with_a_snapshot_says_so_and_can_be_written_when_the_snapshot_goes() {
    within(13, async |env| {
        let mut options = small_options(0);
        options.blocks = 2000;
        let volume = create(&env, options).await;
        let mut first = 0;
        let full = loop {
            match volume.write(first, block(first + 1), Durability::Stable).await {
                Ok(_) => first += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(full, VolumeError::Full { .. }), "{full}");
        assert!(first > 300, "{first} blocks fit");
        let read = volume.read(first - 1, 1).await.expect("it reads");
        assert_eq!(number(&read), first);
        volume.discard(0..first / 2, Durability::Stable).await.expect("discards have room of their own");
        volume.write(0, block(7), Durability::Stable).await.expect("room was made");
    });
}

#[test]
fn a_transaction_on_a_full_volume_is_told_so_and_who_holds_nothing_goes_on() {
    within(15, async |env| {
        let volume = create(&env, VolumeOptions { blocks: 2000, ..small_options(0) }).await;
        let mut first = 0;
        while volume.write(first, block(1), Durability::Stable).await.is_ok() {
            first += 1;
        }
        let reader = volume.begin(TxOptions::default()).expect("few are open");
        for _ in 0..2 {
            let tx = volume.begin(TxOptions::default()).expect("few are open");
            tx.write(first, block(2)).expect("live");
            let refused = tx.commit().await;
            let is_full = matches!(&refused, Err(CommitError::Tx(TxError::Volume(VolumeError::Full { .. }))));
            assert!(is_full, "{refused:?}");
            volume.write(first, block(3), Durability::Stable).await.expect_err("it is full");
        }
        assert_eq!(number(&reader.read(0, 1).await.expect("its snapshot is the newest")), 1);
        // A snapshot that is not the newest may keep what room is needed for.
        volume.discard(0..1, Durability::Stable).await.expect("discards have room of their own");
        while volume.write(first, block(4), Durability::Stable).await.is_ok() {
            first += 1;
        }
        assert_eq!(reader.read(1, 1).await.err(), Some(TxError::Preempted));
    });
}

#[test]
fn what_a_snapshot_keeps_takes_nothing_from_history() {
    within(16, async |env| {
        let mut options = small_options(20);
        options.settings.versions_max = 100;
        options.settings.chain.capacity_bytes = 16 << 20;
        let volume = create(&env, options).await;
        let write_all = async |round: u64| {
            for at in 0..60 {
                volume.write(at, block(round), Durability::Stable).await.expect("room");
            }
        };
        write_all(1).await;
        volume.create_snapshot("first").await.expect("it is made");
        write_all(2).await;
        write_all(3).await;
        assert!(volume.info().versions > 100, "each block is kept twice");
        assert_eq!(
            number(&volume.at(Version(165)).expect("20 are kept").read(50, 1).await.expect("it reads")),
            2
        );
    });
}

#[test]
fn what_is_gone_is_refused_and_what_is_kept_is_not() {
    within(14, async |env| {
        let volume = create(&env, small_options(50)).await;
        for round in 1..=400 {
            volume.write(round % 3, block(round), Durability::Stable).await.expect("room");
        }
        let floor = volume.info().floor;
        assert!((300..=350).contains(&floor.0), "{floor}");
        let held = volume.at(floor).expect("the floor can be read");
        for round in 401..=800 {
            volume.write(round % 3, block(round), Durability::Stable).await.expect("room");
        }
        let expected = (0..3).map(|at| (floor.0 - 2..=floor.0).find(|it| it % 3 == at).expect("one"));
        for (at, expected) in expected.enumerate() {
            assert_eq!(number(&held.read(at as u64, 1).await.expect("it reads")), expected);
        }
        let below = Version(floor.0 - 1);
        assert!(matches!(volume.at(below), Err(VolumeError::NoSuchVersion { .. })));
        drop(held);
        env.yield_now().await;
        assert!(matches!(volume.at(floor), Err(VolumeError::NoSuchVersion { .. })));
    });
}
