//! Buckets and leaves that have grown large are split, however they came to be so.

use std::collections::BTreeMap;

use ithaca_object::composed::{HashedMap, TreeMap};
use ithaca_object::{ObjectError, Runtime, Tx, TxOptions};

use crate::worlds::run;

type Numbers = HashedMap<u64, u64>;

/// Puts some keys in one transaction.
async fn load(program: &Runtime, map: &Numbers, keys: std::ops::Range<u64>) {
    let body = async |tx: &Tx| -> Result<(), ObjectError> {
        let map = map.within(tx);
        for key in keys.clone() {
            map.fast_put(key, 2 * key).await?;
        }
        Ok(())
    };
    program.transact(&TxOptions::default(), body).await.expect("loaded");
}

#[test]
fn a_bucket_of_more_keys_than_a_record_has_calls_is_split() {
    // One that cannot be split keeps all others from it, as they are split in turn.
    run(async |world| {
        let (one, two) = (world.program().await, world.program().await);
        let map = Numbers::open_with(&one, "m", 1).expect("opened");
        for nth in 0..10 {
            load(&one, &map.clone().splitting_at(usize::MAX), 1000 * nth..1000 * (nth + 1)).await;
        }
        assert_eq!(map.bucket_count().await, Ok(1));
        let tail = one.client().check().await.expect("it serves").tail;
        for key in 0..12 {
            map.put(20_000 + key, 2 * (20_000 + key)).await.expect("put");
            assert_eq!(map.get(&key).await, Ok(Some(2 * key)));
        }
        assert!(map.bucket_count().await.expect("read") > 1, "it was split");
        let mut all: Vec<(u64, u64)> = (0..10_000).map(|key| (key, 2 * key)).collect();
        let fresh = Numbers::open(&two, "m").expect("opened");
        assert_eq!(fresh.at(tail).entries().await, Ok(all.clone()));
        all.extend((20_000..20_012).map(|key| (key, 2 * key)));
        assert_eq!((map.entries().await, fresh.entries().await), (Ok(all.clone()), Ok(all)));
    });
}

#[test]
fn a_split_that_was_left_half_done_is_ended_with_what_the_bucket_has_by_then() {
    // What was copied meanwhile may have been changed or removed.
    run(async |world| {
        let (one, two) = (world.program().await, world.program().await);
        let map = Numbers::open_with(&one, "m", 1).expect("opened");
        let idle = map.clone().splitting_at(usize::MAX);
        for nth in 0..5 {
            load(&one, &idle, 1000 * nth..1000 * (nth + 1)).await;
        }
        let mut model: BTreeMap<u64, u64> = (0..5000).map(|key| (key, 2 * key)).collect();
        map.put(1, 1).await.expect("put");
        model.insert(1, 1);
        assert_eq!(map.bucket_count().await, Ok(1), "it was begun");
        for key in 0..200 {
            match key % 3 {
                0 => assert_eq!(idle.remove(key).await, Ok(model.remove(&key))),
                1 => assert_eq!(idle.put(key, 7).await, Ok(model.insert(key, 7))),
                _ => {}
            }
        }
        // Another program ends it.
        let other = Numbers::open(&two, "m").expect("opened");
        for key in 6000..6006 {
            assert_eq!(other.put(key, key).await, Ok(model.insert(key, key)));
        }
        assert!(map.bucket_count().await.expect("read") > 1, "it was split");
        let all: Vec<(u64, u64)> = model.into_iter().collect();
        assert_eq!((map.entries().await, other.entries().await), (Ok(all.clone()), Ok(all)));
    });
}

#[test]
fn maps_that_are_loaded_by_transactions_are_split_too() {
    run(async |world| {
        let program = world.program().await;
        let map = Numbers::open(&program, "m").expect("opened").splitting_at(20);
        // One transaction changes 16 objects at the most.
        for nth in 0..160 {
            load(&program, &map, 15 * nth..15 * (nth + 1)).await;
        }
        assert!(map.bucket_count().await.expect("read") > 24, "{:?}", map.bucket_count().await);
        let tree = TreeMap::<u64, u64>::open(&program, "t").expect("opened");
        for nth in 0..4 {
            let body = async |tx: &Tx| -> Result<(), ObjectError> {
                for key in 100 * nth..100 * (nth + 1) {
                    tree.within(tx).put(key, key).await?;
                }
                Ok(())
            };
            program.transact(&TxOptions::default(), body).await.expect("loaded");
        }
        assert_eq!((tree.height_at(&7).await, tree.height_at(&399).await), (Ok(2), Ok(2)));
        let expected = |times: u64, end: u64| (0..end).map(|key| (key, times * key)).collect::<Vec<_>>();
        assert_eq!(map.entries().await, Ok(expected(2, 2400)));
        assert_eq!(tree.entries().await, Ok(expected(1, 400)));
    });
}

#[test]
fn leaves_of_large_values_are_split_by_their_bytes_and_also_if_they_do_not_fit_into_a_record() {
    // A leaf that cannot be split any more is encoded by every put that comes.
    run(async |world| {
        let (one, two) = (world.program().await, world.program().await);
        let tree = TreeMap::<u64, String>::open(&one, "t").expect("opened");
        let value = |key: u64, kib: usize| format!("{key}{}", "x".repeat(kib << 10));
        let mut model = BTreeMap::new();
        // The root is a leaf of 240 KiB when the large one comes; later another leaf is.
        for (key, kib) in [(10, 80), (20, 80), (30, 80), (25, 400)] {
            assert_eq!(tree.put(key, value(key, kib)).await, Ok(None));
            model.insert(key, value(key, kib));
        }
        let root = tree.height_at(&10).await;
        for (key, kib) in [(31, 60), (32, 60), (33, 60), (34, 400)] {
            assert_eq!(tree.put(key, value(key, kib)).await, Ok(None));
            model.insert(key, value(key, kib));
        }
        assert_eq!((root, tree.height_at(&34).await), (Ok(2), Ok(2)));
        for key in 100..120 {
            tree.put(key, value(key, 60)).await.expect("put");
            model.insert(key, value(key, 60));
        }
        let fresh = TreeMap::<u64, String>::open(&two, "t").expect("opened");
        for (key, value) in &model {
            assert_eq!(fresh.get(key).await.as_ref(), Ok(&Some(value.clone())), "{key}");
        }
        assert!(fresh.entries().await == Ok(model.into_iter().collect()));
    });
}
