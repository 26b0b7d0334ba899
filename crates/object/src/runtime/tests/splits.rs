//! Large maps that are split, over a simulated cluster.

use std::cell::Cell;
use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{World, run};
use crate::collections::Value;
use crate::composed::HashedMap;
use crate::error::ObjectError;
use crate::in_order::unordered::Set;
use crate::{Tx, TxOptions};

thread_local! {
    /// How many values without an order were decoded.
    static DECODED: Cell<usize> = const { Cell::new(0) };
}

/// Names and texts without an order, as a hash map of the standard library: they are in another one whenever they are decoded.
#[derive(Clone, Debug)]
struct Unordered(Vec<(u64, String)>);

impl PartialEq for Unordered {
    fn eq(&self, other: &Self) -> bool {
        let sorted = |it: &Self| it.0.iter().cloned().collect::<BTreeMap<_, _>>();
        sorted(self) == sorted(other)
    }
}

impl Serialize for Unordered {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, text)| (name, text)))
    }
}

impl<'de> Deserialize<'de> for Unordered {
    fn deserialize<D: Deserializer<'de>>(decoder: D) -> Result<Self, D::Error> {
        let mut entries: Vec<_> = BTreeMap::deserialize(decoder)?.into_iter().collect();
        let nth = DECODED.replace(DECODED.get() + 1);
        let len = entries.len().max(1);
        entries.rotate_left(nth % len);
        Ok(Self(entries))
    }
}

/// Has a program put such large values into a bucket until it splits it, which takes several records; another one had put most of them.
async fn is_split_in_several_records<V: Value + PartialEq>(world: World, value: impl Fn(u64) -> V) {
    let map = HashedMap::<u64, V>::open_with(&world.program, "m", 1).expect("opened");
    let idle = map.clone().splitting_at(usize::MAX);
    for key in 0..30 {
        idle.put(key, value(key)).await.expect("put");
    }
    let other = HashedMap::<u64, V>::open(&world.program().await, "m").expect("opened");
    let other = other.splitting_at(8);
    for key in 100..108 {
        other.put(key, value(key)).await.expect("put");
    }
    assert!(other.bucket_count().await.expect("read") > 1, "it was split");
    let keys = (0..30).chain(100..108);
    let all: Vec<_> = keys.map(|key| (key, value(key))).collect();
    assert!(map.entries().await == Ok(all), "it has what was put");
}

/// The `nth` of the long texts of a value.
fn text(key: u64, nth: u64) -> String {
    format!("{key} {nth} {}", "x".repeat(3800))
}

#[test]
fn a_bucket_of_values_without_an_order_is_split_in_several_records() {
    // Each program that has them encodes them in another order: what was copied seemed to be something else, and was copied again by
    // every put that came.
    run(async |world| {
        let value = |key| Unordered((0..16).map(|nth| (nth, text(key, nth))).collect());
        is_split_in_several_records(world, value).await;
    });
}

#[test]
fn a_bucket_of_sets_without_an_order_is_split_in_several_records() {
    run(async |world| {
        let value = |key| (0..16).map(|nth| text(key, nth)).collect::<Set<_>>();
        is_split_in_several_records(world, value).await;
    });
}

#[test]
fn a_blind_load_in_one_transaction_looks_at_buckets_by_how_much_it_puts() {
    // A program that has read no bucket does not know how large they are, and those of a load would never be split.
    run(async |world| {
        type Numbers = HashedMap<u64, u64>;
        // Each bucket has an entry already, so that nobody has the others in memory who only writes.
        let two = world.program().await;
        let idle = Numbers::open(&world.program, "m").expect("opened").splitting_at(usize::MAX);
        for key in 0..100 {
            idle.fast_put(key, key).await.expect("put");
        }
        let map = Numbers::open(&two, "m").expect("opened").splitting_at(20);
        let load = async |tx: &Tx| -> Result<(), ObjectError> {
            let map = map.within(tx);
            for key in 100..900 {
                map.fast_put(key, key).await?;
            }
            Ok(())
        };
        two.transact(&TxOptions::default(), load).await.expect("loaded");
        assert!(map.bucket_count().await.expect("read") > 16, "more than it began with");
        assert_eq!(map.entries().await, Ok((0..900).map(|key| (key, key)).collect()));
    });
}
