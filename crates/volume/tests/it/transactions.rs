//! Transactions over a volume: many at a time, nested, released, ended, and crashed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_env::sim::{Death, Random};
use ithaca_volume::{
    CommitError, Durability, Heir, Isolation, Tx, TxError, TxOptions, Version, Volume, VolumeOptions,
};

use crate::world::{
    World, begin, block, create, number, numbers, open_drive, small_options, small_settings, within,
};

/// Accounts, of 16 bytes each, so many in a block.
const ACCOUNTS: u64 = 24;
const IN_BLOCK: u64 = 8;
const EACH: u64 = 1000;

fn place(account: u64) -> (u64, usize) {
    (account / IN_BLOCK, (account % IN_BLOCK) as usize * 16)
}

fn balance_in(data: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(data[at..at + 8].try_into().expect("8 bytes"))
}

async fn balance(tx: &Tx, account: u64) -> Result<u64, TxError> {
    let (block, at) = place(account);
    Ok(balance_in(&tx.read_part(block, at..at + 16).await?, 0))
}

async fn set(tx: &Tx, account: u64, balance: u64) -> Result<(), TxError> {
    let (block, at) = place(account);
    let bytes = [balance.to_le_bytes(), [0; 8]].concat();
    tx.write_part(block, at, &bytes).await
}

fn total(data: &[u8]) -> u64 {
    (0..ACCOUNTS).map(place).map(|(block, at)| balance_in(data, block as usize * 4096 + at)).sum()
}

async fn open_accounts(volume: &Volume, options: TxOptions) {
    let opened = volume.transact(options, async |tx| {
        for account in 0..ACCOUNTS {
            set(tx, account, EACH).await?;
        }
        Ok(())
    });
    opened.await.expect("nobody else is there");
}

/// Moves money between accounts, again and again, through conflicts.
async fn clerk(env: Env, volume: Volume, seed: u64, transfers: u64, options: TxOptions) {
    let mut rng = Random::new(seed);
    for _ in 0..transfers {
        let (from, to, amount) = (rng.below(ACCOUNTS), rng.below(ACCOUNTS), rng.below(50));
        let rest = Duration::from_micros(rng.below(300));
        let transfer = volume.transact(options, async |tx| {
            let there = balance(tx, from).await?;
            env.sleep(rest).await;
            if from != to && there >= amount {
                set(tx, from, there - amount).await?;
                let there = balance(tx, to).await?;
                set(tx, to, there + amount).await?;
            }
            Ok(())
        });
        transfer.await.expect("it is tried again until it commits");
    }
}

#[test]
fn money_is_neither_made_nor_lost_by_many_clerks_at_each_level() {
    // A lost update, a read between the two halves of a transfer, a conflict that nobody saw.
    for (seed, isolation) in [(41, Isolation::StrictSerializable), (42, Isolation::Snapshot)] {
        within(seed, async move |env| {
            let volume = create(&env, VolumeOptions { isolation, ..small_options(1000) }).await;
            open_accounts(&volume, TxOptions::default()).await;
            let clerks: Vec<_> = (0..6)
                .map(|clerk_number| {
                    let options = TxOptions { client: clerk_number, ..TxOptions::default() };
                    env.spawn(clerk(env.clone(), volume.clone(), seed + clerk_number, 40, options))
                })
                .collect();
            for it in clerks {
                it.join().await.expect("it ends");
            }
            let info = volume.info();
            assert!(info.tx_counters.conflicts > 5, "{:?}: no conflict to speak of", info.tx_counters);
            assert!(info.tx_counters.committed >= 241, "{:?}", info.tx_counters);
            assert_eq!((info.transactions, info.recent_commits, info.memory.transactions_bytes), (0, 0, 0));
            for version in 1..=info.version.0 {
                let snapshot = volume.at(Version(version)).expect("it is kept");
                let data = snapshot.read(0, 3).await.expect("it reads");
                assert_eq!(total(&data), ACCOUNTS * EACH, "version {version}");
            }
        });
    }
}

/// Clerks on a volume that is cut off at an I/O point. True if they came to their end.
fn cut_at(point: u64, durability: Durability) -> bool {
    let world = World::new(7);
    let (env, over) = (world.sim.env(world.process), Rc::new(Cell::new(false)));
    let begun = Rc::new(Cell::new(false));
    let acked = Rc::new(RefCell::new(Vec::<Version>::new()));
    let (seen, told, ready) = (Rc::clone(&over), Rc::clone(&acked), Rc::clone(&begun));
    env.clone().spawn(async move {
        let volume = create(&env, small_options(1000)).await;
        open_accounts(&volume, TxOptions::default()).await;
        ready.set(true);
        let clerks: Vec<_> = (0..3)
            .map(|number| {
                let options = TxOptions { durability, ..TxOptions::default() };
                env.spawn(clerk(env.clone(), volume.clone(), number, 6, options))
            })
            .collect();
        for it in clerks {
            it.join().await.expect("it ends");
        }
        let flushed = volume.flush().await.expect("no fault");
        told.borrow_mut().push(flushed);
        seen.set(true);
    });
    let (sim, process) = (&world.sim, world.process);
    sim.run_while(ithaca_env::Time::MAX, move |_| !begun.get()).expect("it begins");
    sim.end_at_io(process, sim.io_points(process) + point, Death::PowerCut);
    let ended = Rc::clone(&over);
    sim.run_while(ithaca_env::Time::MAX, move |sim| sim.is_up(process) && !ended.get()).expect("it ends");
    sim.end(process, Death::PowerCut);
    sim.end_at_io(process, u64::MAX, Death::PowerCut);
    sim.restart(process);
    let env = sim.env(process);
    sim.block_on(process, async move {
        let volume = Volume::open(&env, open_drive(&env).await, small_settings()).await.expect("it opens");
        let info = volume.info();
        assert!(acked.borrow().iter().all(|version| *version <= info.version));
        for version in 1..=info.version.0 {
            let snapshot = volume.at(Version(version)).expect("it is kept");
            let data = snapshot.read(0, 3).await.expect("it reads");
            assert_eq!(total(&data), ACCOUNTS * EACH, "version {version}");
        }
    });
    over.get()
}

#[test]
fn a_transaction_is_there_as_a_whole_or_not_at_all_wherever_the_power_is_cut() {
    for durability in [Durability::Stable, Durability::Acknowledged] {
        let mut points = 1;
        while !cut_at(points, durability) {
            points += 1;
        }
        assert!(points > 10, "only {points} I/O points");
    }
}

#[test]
fn who_only_reads_sees_one_version_and_commits_whatever_others_write() {
    within(43, async |env| {
        let volume = create(&env, small_options(0)).await;
        volume.write(0, block(1), Durability::Stable).await.expect("room");
        volume.write(1, block(1), Durability::Stable).await.expect("room");
        let reader = volume.begin(TxOptions::default()).expect("few are open");
        assert_eq!(number(&reader.read(0, 1).await.expect("live")), 1);
        for round in 2..600 {
            volume.write(round % 2, block(round), Durability::Stable).await.expect("room");
        }
        assert_eq!(number(&reader.read(1, 1).await.expect("live")), 1, "from the same snapshot");
        assert_eq!(reader.commit().await, Ok(Some(Version(2))));
        assert_eq!(reader.read(1, 1).await.err(), Some(TxError::Ended));
        env.yield_now().await;
        assert!(volume.info().versions < 100, "its snapshot is let go");
    });
}

#[test]
fn a_plain_write_that_was_acknowledged_is_seen_by_a_transaction_or_refuses_it() {
    within(44, async |env| {
        let volume = create(&env, small_options(0)).await;
        volume.write(0, block(1), Durability::Acknowledged).await.expect("room");
        let reader = volume.begin(TxOptions::default()).expect("few are open");
        assert_eq!(number(&reader.read(0, 1).await.expect("live")), 0, "it is not durable");
        let refused = reader.commit().await;
        assert!(
            matches!(refused, Err(CommitError::Conflict { block: 0, version: Version(1), .. })),
            "{refused:?}"
        );
        let read = volume.transact(TxOptions::default(), async |tx| Ok(number(&tx.read(0, 1).await?)));
        assert_eq!(read.await, Ok((1, Version(1))));
        drop(env);
    });
}

#[test]
fn a_commit_that_is_acknowledged_early_shows_nothing_of_one_that_is_not_durable() {
    within(46, async |env| {
        let volume = create(&env, small_options(0)).await;
        let stable = volume.begin(TxOptions::default()).expect("few are open");
        let early = TxOptions { durability: Durability::Acknowledged, ..TxOptions::default() };
        let (parted, alone) = (volume.begin(early).expect("few"), volume.begin(early).expect("few"));
        stable.write_part(0, 0, &[1; 16]).await.expect("live");
        parted.write_part(0, 2048, &[2; 16]).await.expect("live");
        alone.write_part(1, 0, &[3; 16]).await.expect("live");
        let committing = begin(stable.commit()).await;
        let version = alone.commit().await.expect("no conflict").expect("not nested");
        assert!(volume.snapshot().version() < version, "it is acknowledged before it is durable");
        let version = parted.commit().await.expect("other bytes").expect("not nested");
        assert!(volume.snapshot().version() >= version, "what is seen of the block is durable");
        let data = volume.read(0, 1).await.expect("it reads");
        assert_eq!((&data[..16], &data[2048..2064]), (&[1; 16][..], &[2; 16][..]));
        committing.await.expect("no conflict");
    });
}

#[test]
fn a_commit_that_writes_whole_blocks_waits_for_nobody_else_s_writes_of_them() {
    within(47, async |env| {
        let volume = create(&env, small_options(0)).await;
        let stable = volume.begin(TxOptions::default()).expect("few are open");
        let early = TxOptions { durability: Durability::Acknowledged, ..TxOptions::default() };
        let (whole, narrowed) = (volume.begin(early).expect("few"), volume.begin(early).expect("few"));
        stable.write(0, [block(1), block(1)].concat().into()).expect("live");
        whole.write(0, block(2)).expect("live");
        narrowed.write(1, block(3)).expect("live");
        narrowed.mark_accessed(1, 0..16).expect("written");
        let committing = begin(stable.commit()).await;
        let version = whole.commit().await.expect("it has read nothing").expect("not nested");
        assert!(volume.snapshot().version() < version, "it is acknowledged before it is durable");
        assert_eq!(number(&volume.read(0, 1).await.expect("it reads")), 2);
        // Of this one only some bytes count: the others are of the commit that nobody sees yet.
        let version = narrowed.commit().await.expect("it has read nothing").expect("not nested");
        assert!(volume.snapshot().version() >= version, "what is seen of the block is durable");
        committing.await.expect("no conflict");
    });
}

#[test]
fn nested_transactions_are_ignored_but_for_their_aborts() {
    within(45, async |env| {
        let volume = create(&env, small_options(0)).await;
        let tx = volume.begin(TxOptions::default()).expect("few are open");
        tx.write(0, block(1)).expect("live");
        tx.begin().expect("live");
        tx.write(1, block(2)).expect("live");
        assert_eq!(tx.commit().await, Ok(None), "the inner one");
        assert_eq!(number(&volume.read(1, 1).await.expect("it reads")), 0, "nothing is there yet");
        assert_eq!(tx.commit().await, Ok(Some(Version(1))));
        let tx = volume.begin(TxOptions::default()).expect("few are open");
        tx.begin().expect("live");
        tx.abort();
        assert_eq!(tx.write(2, block(3)), Err(TxError::Doomed));
        assert_eq!(tx.commit().await, Err(CommitError::Tx(TxError::Doomed)));
        assert_eq!(tx.begin(), Err(TxError::Ended));
        assert_eq!(volume.info().transactions, 0);
        drop(env);
    });
}

#[test]
fn a_released_transaction_is_taken_over_once_and_a_dropped_one_is_aborted() {
    within(46, async |env| {
        let volume = create(&env, small_options(0)).await;
        let tx = volume.begin(TxOptions::default()).expect("few are open");
        tx.write(0, block(5)).expect("live");
        let handle = tx.release(Heir::Anyone).expect("live");
        let tx = volume.take_over(handle).expect("it was released");
        assert_eq!(volume.take_over(handle).err(), Some(TxError::NoSuchHandle));
        assert_eq!(number(&tx.read(0, 1).await.expect("live")), 5);
        assert_eq!(tx.commit().await, Ok(Some(Version(1))));
        let tx = volume.begin(TxOptions::default()).expect("few are open");
        tx.write(0, block(6)).expect("live");
        drop(tx);
        assert_eq!((volume.info().transactions, volume.info().memory.transactions_bytes), (0, 0));
        assert_eq!(number(&volume.read(0, 1).await.expect("it reads")), 5);
        drop(env);
    });
}

#[test]
fn a_transaction_that_holds_up_too_much_is_ended_with_an_error_of_its_own() {
    within(47, async |env| {
        let mut options = small_options(0);
        options.settings.tx_max_bytes = 400_000;
        let volume = create(&env, options).await;
        let rogue = volume.begin(TxOptions::default()).expect("few are open");
        rogue.read(0, 1).await.expect("live");
        let young = |_| volume.write(7, block(1), Durability::Stable);
        for round in 0..20_000 {
            young(round).await.expect("room");
            if rogue.snapshot().is_err() {
                break;
            }
        }
        assert_eq!(rogue.read(0, 1).await.err(), Some(TxError::Preempted));
        assert_eq!(rogue.commit().await, Err(CommitError::Tx(TxError::Preempted)));
        assert_eq!(volume.info().tx_counters.preempted, 1);
        assert!(volume.info().memory.recent_commits_bytes < 100_000);
        drop(env);
    });
}

#[test]
fn a_write_that_is_refused_has_written_none_of_its_blocks() {
    within(49, async |env| {
        let volume = create(&env, small_options(0)).await;
        let tx = volume.begin(TxOptions::default()).expect("few are open");
        tx.write(3, block(1)).expect("live");
        let many: Vec<u8> = (0..10).flat_map(|at| block(10 + at).to_vec()).collect();
        // Of the ten one is written already: they are 9 more, with it 10.
        let refused = tx.write(4, many.clone().into());
        assert_eq!(refused, Err(TxError::TooManyWrites { max: 9 }));
        assert_eq!(numbers(&tx.read(3, 11).await.expect("live"))[..2], [1, 0]);
        tx.write(0, many[..9 * 4096].to_vec().into()).expect("one of them is written already");
        drop(env);
    });
}

#[test]
fn the_window_keeps_blocks_and_not_what_they_were_written_with() {
    for is_doomed in [false, true] {
        within(50, async move |env| keeps_blocks_only(&env, is_doomed).await);
    }
}

/// Beside a transaction of which a nested one was aborted, or not.
async fn keeps_blocks_only(env: &Env, is_doomed: bool) {
    let volume = create(env, small_options(0)).await;
    let tx = volume.begin(TxOptions::default()).expect("few are open");
    if is_doomed {
        tx.begin().expect("live");
        tx.abort();
    }
    let data = Bytes::from(vec![1; 8 * 4096]);
    for durability in [Durability::Acknowledged, Durability::Stable] {
        volume.write(0, data.clone(), durability).await.expect("room");
        // More than the chain keeps in memory.
        for at in 8..40 {
            volume.write(at, block(at), Durability::Stable).await.expect("room");
        }
        assert!(data.is_unique(), "{durability:?}, doomed: {is_doomed}");
    }
    assert_eq!(tx.commit().await.is_err(), is_doomed);
}

#[test]
fn requests_of_a_transaction_that_make_no_sense_are_refused_by_name() {
    within(48, async |env| {
        let volume = create(&env, small_options(0)).await;
        let tx = volume.begin(TxOptions::default()).expect("few are open");
        let refused = [
            (tx.read(60, 1).await.err(), "blocks 60 to 60 of a volume of 60 blocks"),
            (tx.write(0, Bytes::from_static(b"abc")).err(), "3 bytes of data are not whole blocks of 4096"),
            (tx.write_part(0, 4095, b"ab").await.err(), "bytes 4095 to 4097 of a block of 4096"),
            (tx.read_part(0, 8..8).await.err(), "bytes 8 to 8 of a block of 4096"),
            (tx.mark_accessed(3, 0..16).err(), "block 3 was not read or written before it was marked"),
        ];
        for (error, expected) in refused {
            assert_eq!(error.expect("it is refused").to_string(), expected);
        }
        assert_eq!(tx.commit().await, Ok(Some(Version(0))));
        let many = volume.begin(TxOptions::default()).expect("few are open");
        let error = (0..60).find_map(|at| many.write(at, block(at)).err());
        assert_eq!(error, Some(TxError::TooManyWrites { max: 9 }), "small segments allow less");
        assert_eq!(many.commit().await, Ok(Some(Version(1))), "those before it");
        drop(env);
    });
}
