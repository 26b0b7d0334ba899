//! Cleaning that the owner asks for: of segments that give no room, in batches and reads of any size.

use std::future::Future;

use bytes::Bytes;
use ithaca_chain::{Batch, Chain, ChainOptions, Cleaning, OptionsError, check};

use crate::drives::{THREE, within};
use crate::model::run_of;
use crate::world::{identity, open_drives, small_options};

/// Fills a few segments with records that all stay, has three of them cleaned, and looks at what is there then.
fn cleans_what_gives_no_room(seed: u64, cleaning: Cleaning, batch_bytes: u64, gap_bytes: u64) {
    within(seed, async move |env| {
        let options = ChainOptions {
            cleaning,
            clean_start_free_percent: 0,
            clean_stop_free_percent: 0,
            clean_batch_bytes: batch_bytes,
            read_gap_bytes: gap_bytes,
            capacity_bytes: 4 << 20,
            ..small_options()
        };
        let drives = open_drives(&env, &THREE).await;
        let chain = Chain::create(&env, drives.clone(), identity(), options).await.expect("created");
        let data = |key: u64| Bytes::from(vec![key as u8; 4096]);
        for key in 0..200 {
            let runs = vec![run_of(key, 7, &[data(key)])];
            let ticket = chain.append(Batch { runs, ..Batch::default() }).expect("room");
            chain.wait(ticket).await.expect("no fault");
        }
        assert_eq!(chain.stats().counters.segments_cleaned, 0, "there is ample space");
        assert_eq!(chain.clean(3).await, Ok(3));
        let stats = chain.stats();
        assert_eq!(stats.counters.segments_cleaned, 3);
        assert_eq!(stats.counters.records_moved, 39, "13 of each segment: {stats:?}");
        for key in 0..200 {
            let record =
                chain.read(key).await.expect("no damage").unwrap_or_else(|| panic!("key {key} is gone"));
            assert_eq!((record.version, record.data), (7, data(key)));
        }
        chain.close().await.expect("no fault");
        assert_eq!(check(drives).await.expect("it is well").damage, []);
    });
}

#[test]
fn what_is_asked_for_is_cleaned_though_it_gives_no_room() {
    cleans_what_gives_no_room(61, Cleaning::Off, 1 << 20, 64 << 10);
    cleans_what_gives_no_room(62, Cleaning::MoveToTail, 4096, 0);
}

#[test]
fn victims_of_the_body_come_free_before_it_is_over() {
    cleans_what_gives_no_room(63, Cleaning::CompactInBody, 16 << 10, 0);
}

#[test]
fn a_cleaning_that_nobody_waits_for_goes_on() {
    within(64, async |env| {
        let drives = open_drives(&env, &THREE).await;
        let options = ChainOptions { capacity_bytes: 4 << 20, ..small_options() };
        let chain = Chain::create(&env, drives, identity(), options).await.expect("created");
        for key in 0..100 {
            let runs = vec![run_of(key, 7, &[Bytes::from(vec![1; 4096])])];
            let ticket = chain.append(Batch { runs, ..Batch::default() }).expect("room");
            chain.wait(ticket).await.expect("no fault");
        }
        let mut asked = Box::pin(chain.clean(1));
        let waker = std::task::Waker::noop();
        assert!(asked.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending());
        drop(asked);
        // The next one waits for it, and finds the chain as it should be.
        assert_eq!(chain.clean(1).await, Ok(1));
        assert_eq!(chain.stats().counters.segments_cleaned, 2);
    });
}

#[test]
fn sizes_out_of_their_limits_are_named() {
    let check = |options: ChainOptions, expected: &str| {
        let Err(OptionsError::OutOfRange { name, .. }) = options.validate() else { panic!("taken") };
        assert_eq!(name, expected);
    };
    check(ChainOptions { clean_batch_bytes: 4095, ..ChainOptions::default() }, "clean_batch_bytes");
    check(ChainOptions { clean_batch_bytes: 2 << 20, ..ChainOptions::default() }, "clean_batch_bytes");
    check(ChainOptions { read_gap_bytes: 2 << 20, ..ChainOptions::default() }, "read_gap_bytes");
}
