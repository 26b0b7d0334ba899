//! Composed maps: large maps of many objects do what one in memory does, now, before, and for several programs at once.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use ithaca_env::sim::Random;
use ithaca_env::task::gather;
use ithaca_log::pos::StreamId;
use ithaca_object::composed::{HashedMap, TreeMap};
use ithaca_object::{Isolation, ObjectError, Tx, TxOptions};

use crate::worlds::run;

type Hashed = HashedMap<u64, String>;
type Tree = TreeMap<u64, String>;

fn pairs(model: &BTreeMap<u64, String>) -> Vec<(u64, String)> {
    model.iter().map(|(key, value)| (*key, value.clone())).collect()
}

#[test]
fn composed_maps_are_what_one_in_memory_is_now_and_before() {
    // Keys are many enough that buckets and nodes are split on the way.
    run(async |world| {
        let program = world.program().await;
        let hashed = Hashed::open_with(&program, "hashed", 2).expect("opened");
        let tree = Tree::open(&program, "tree").expect("opened");
        let (mut model, mut moments, mut random) = (BTreeMap::new(), Vec::new(), Random::new(5));
        assert_eq!((hashed.len().await, tree.len().await), (Ok(0), Ok(0)));
        for step in 0..1400u64 {
            let (key, value) = (random.below(1500), step.to_string());
            if random.below(8) == 0 {
                let before = model.remove(&key);
                assert_eq!(hashed.remove(key).await, Ok(before.clone()));
                assert_eq!(tree.remove(key).await, Ok(before));
            } else {
                let before = model.insert(key, value.clone());
                assert_eq!(hashed.put(key, value.clone()).await, Ok(before.clone()));
                assert_eq!(tree.put(key, value).await, Ok(before));
            }
            if step % 200 == 0 {
                moments.push((program.client().check().await.expect("it serves").tail, model.clone()));
            }
            if step == 600 {
                hashed.clear().await.expect("cleared");
                tree.clear().await.expect("cleared");
                model.clear();
            }
        }
        assert!(hashed.bucket_count().await.expect("read") > 2, "a bucket was split");
        assert!(tree.height_at(&7).await.expect("read") > 1, "a node was split");
        moments.push((program.client().check().await.expect("it serves").tail, model.clone()));
        let other = world.program().await;
        let fresh =
            (Hashed::open(&other, "hashed").expect("opened"), Tree::open(&other, "tree").expect("opened"));
        for (hashed, tree) in [(&hashed, &tree), (&fresh.0, &fresh.1)] {
            for (tail, model) in &moments {
                assert_eq!(hashed.at(*tail).entries().await, Ok(pairs(model)), "at {tail}");
                assert_eq!(tree.at(*tail).entries().await, Ok(pairs(model)), "at {tail}");
                assert_eq!(tree.at(*tail).len().await, Ok(model.len()));
            }
            assert_eq!(hashed.len().await, Ok(model.len()));
            for key in 0..50 {
                assert_eq!(hashed.get(&key).await, Ok(model.get(&key).cloned()));
                assert_eq!(tree.get(&key).await, Ok(model.get(&key).cloned()));
            }
        }
        for (start, end) in [(0, 10), (100, 300), (700, 1500), (9, 9)] {
            let range = (Bound::Excluded(start), Bound::Included(end));
            let expected: Vec<_> = model.iter().filter(|(key, _)| **key > start && **key <= end).collect();
            let found = tree.range(range, 60).await.expect("read");
            let expected: Vec<_> = expected.into_iter().take(60).map(|(k, v)| (*k, v.clone())).collect();
            assert_eq!(found, expected, "{start} to {end}");
        }
    });
}

#[test]
fn programs_that_fill_a_map_at_the_same_time_lose_nothing_while_it_is_split() {
    run(async |world| {
        let (one, two) = (world.program().await, world.program().await);
        let fill = async |nth: u64| {
            let program = if nth.is_multiple_of(2) { &one } else { &two };
            let hashed = Hashed::open_with(program, "hashed", 1).expect("opened");
            let tree = Tree::open(program, "tree").expect("opened");
            for key in 0..120 {
                let key = 10 * key + nth;
                hashed.put(key, key.to_string()).await.expect("put");
                tree.put(key, key.to_string()).await.expect("put");
            }
        };
        gather((0..4).map(fill).collect(), |_| false).await;
        let expected: BTreeMap<u64, String> = (0..120)
            .flat_map(|key| (0..4).map(move |nth| 10 * key + nth))
            .map(|key| (key, key.to_string()))
            .collect();
        let other = world.program().await;
        let hashed = Hashed::open(&other, "hashed").expect("opened");
        assert_eq!(hashed.entries().await, Ok(pairs(&expected)));
        assert_eq!(Tree::open(&other, "tree").expect("opened").entries().await, Ok(pairs(&expected)));
        assert!(hashed.bucket_count().await.expect("read") > 1, "it was split under them");
    });
}

#[test]
fn a_transaction_over_two_maps_happens_as_a_whole_and_a_size_is_that_of_one_moment() {
    run(async |world| {
        let program = world.program().await;
        let (here, there) =
            (Hashed::open(&program, "here").expect("opened"), Tree::open(&program, "there").expect("opened"));
        for key in 0..40 {
            here.fast_put(key, key.to_string()).await.expect("put");
        }
        let carry = async |program: &ithaca_object::Runtime, key: u64| {
            let body = async |tx: &Tx| -> Result<(), ObjectError> {
                let value = here.within(tx).remove(key).await?.expect("it is there");
                there.within(tx).put(key, value).await.map(|_| ())
            };
            program.transact(&Default::default(), body).await.map(|_| ())
        };
        let failed = async |tx: &Tx| -> Result<(), ObjectError> {
            here.within(tx).clear().await?;
            Err(ObjectError::Ended)
        };
        assert_eq!(program.transact(&Default::default(), failed).await.map(|_| ()), Err(ObjectError::Ended));
        for key in 0..20 {
            carry(&program, key).await.expect("carried");
            let tail = program.client().check().await.expect("it serves").tail;
            let (one, two) = (here.at(tail).len().await, there.at(tail).len().await);
            assert_eq!(one.expect("read") + two.expect("read"), 40);
        }
    });
}

#[test]
fn who_asks_for_one_key_reads_its_bucket_and_no_other() {
    run(async |world| {
        let program = world.program().await;
        let map = Hashed::open_with(&program, "m", 4).expect("opened");
        for key in 0..32 {
            map.put(key, key.to_string()).await.expect("put");
        }
        // Whoever reads this bucket stops there.
        let bad = StreamId::of_name("\0bucket 2 of generation 0 of m");
        program.client().append_to(&[bad], Bytes::from_static(b"no record")).await.expect("appended");
        let fresh = Hashed::open(&world.program().await, "m").expect("opened");
        let (mut read, mut stopped) = (0, 0);
        for key in 0..32 {
            match fresh.get(&key).await {
                Ok(value) => {
                    assert_eq!(value, Some(key.to_string()));
                    read += 1;
                }
                Err(ObjectError::Stopped { object, .. }) => {
                    assert_eq!(object, "m: bucket 2 of generation 0");
                    stopped += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(read >= 16 && stopped >= 1, "{read} read, {stopped} stopped");
    });
}

#[test]
fn a_put_with_snapshot_isolation_is_not_acknowledged_where_nothing_leads_to_it_any_more() {
    // What it writes nobody else has written; but the bucket or leaf is none of the map's any more, or not the key's.
    run(async |world| {
        let (one, two) = (world.program().await, world.program().await);
        let hashed = [&one, &two]
            .map(|program| Hashed::open_with(program, "hashed", 1).expect("opened").splitting_at(4));
        let tree = [&one, &two].map(|program| Tree::open(program, "tree").expect("opened"));
        for key in 0..150 {
            tree[0].put(key, key.to_string()).await.expect("put");
        }
        hashed[0].put(0, "0".to_owned()).await.expect("put");
        let options = TxOptions { isolation: Isolation::Snapshot, ..TxOptions::default() };
        for round in 0..5 {
            let (key, value) = (1000 + 2 * round, round.to_string());
            let tx = one.begin(&options).await.expect("begun");
            match round {
                0 | 2 | 3 => hashed[0].within(&tx).put(key, value).await.expect("put"),
                _ => tree[0].within(&tx).put(key, value).await.expect("put"),
            };
            match round {
                0 | 1 => {
                    // Another key is no conflict.
                    hashed[1].put(1, "1".to_owned()).await.expect("put");
                    tree[1].put(2001, "1".to_owned()).await.expect("put");
                    tx.commit().await.expect("committed");
                    continue;
                }
                2 => {
                    for key in 1..6 {
                        hashed[1].put(key, key.to_string()).await.expect("put");
                    }
                    assert!(hashed[1].bucket_count().await.expect("read") > 1, "it was split");
                }
                3 => hashed[1].clear().await.expect("cleared"),
                _ => tree[1].clear().await.expect("cleared"),
            }
            let committed = tx.commit().await;
            assert!(matches!(committed, Err(ObjectError::Aborted(_))), "round {round}: {committed:?}");
        }
    });
}
