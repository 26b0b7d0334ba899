//! Stores: the same as a map in memory with versions, while values are copied and the log is given up.

use std::collections::BTreeMap;
use std::time::Duration;

use ithaca_env::sim::Random;
use ithaca_log::client::EntryKind;
use ithaca_log::pos::{LogPos, StreamId};
use ithaca_object::checkpoint::Policy;
use ithaca_object::store::{PutIf, Store, StoreOptions, Stored};
use ithaca_object::{ObjectError, Runtime, RuntimeOptions};

use crate::worlds::{World, run};

type Values = Store<u64, String>;
/// Each key's value and version.
type Model = BTreeMap<u64, Stored<String>>;

const KEYS: u64 = 12;
const STEPS: u64 = 250;

async fn program(world: &World) -> Runtime {
    let checkpoints = Policy { chunk_bytes: 100, ..Policy::NEVER };
    world.program_with(RuntimeOptions { checkpoints, ..RuntimeOptions::default() }).await
}

/// One whose memory has room for few values, or for none.
async fn store(world: &World, cache_bytes: usize) -> Values {
    Values::open_with(&program(world).await, "s", StoreOptions { cache_bytes }).expect("opened")
}

async fn all_of(store: &Values) -> Result<Model, ObjectError> {
    Ok(store.scan(.., usize::MAX).await?.into_iter().collect())
}

/// Positions of the stream's entries that are in the log.
async fn entries(runtime: &Runtime, name: &str) -> Vec<LogPos> {
    let client = runtime.client();
    let tail = client.check().await.expect("it serves").tail;
    let (mut next, mut found) = (LogPos(0), Vec::new());
    while next < tail {
        let part = client.read_stream(StreamId::of_name(name), next..tail, 1 << 20).await.expect("read");
        let data = part.entries.iter().filter(|entry| entry.kind == EntryKind::Data);
        found.extend(data.map(|entry| entry.pos));
        next = part.upto;
    }
    found
}

/// One random step by one of the programs; gives the position up to which the model is true, if it was changed.
async fn change(store: &Values, model: &mut Model, draw: &mut Random, step: u64) -> Option<LogPos> {
    let value = |key: u64| format!("value {key} of step {step}");
    let puts: Vec<(u64, Option<String>)> = (0..1 + draw.below(3))
        .map(|_| {
            let key = draw.below(KEYS);
            (key, (draw.below(5) > 0).then(|| value(key)))
        })
        .collect();
    let done = if draw.below(3) > 0 {
        store.multi_put(puts.clone()).await.expect("put")
    } else {
        let key = draw.below(KEYS);
        let known = model.get(&key).map(|stored| stored.version);
        // One in three expects what is not so.
        let expected = if draw.below(3) == 0 { Some(LogPos(1 << 40)) } else { known };
        match store.multi_put_if(vec![(key, expected)], puts.clone()).await.expect("put") {
            PutIf::Done(pos) if expected == known => pos,
            PutIf::Differs(differs) if expected != known => {
                assert_eq!((differs.key, differs.found), (key, known));
                return None;
            }
            other => panic!("{other:?}: {expected:?} was expected of {key}, and it has {known:?}"),
        }
    };
    for (key, value) in puts {
        match value {
            Some(value) => drop(model.insert(key, Stored { value, version: done })),
            None => drop(model.remove(&key)),
        }
    }
    Some(LogPos(done.0 + 1))
}

/// Compares everything that can be read of a store with what it must be.
async fn check(store: &Values, model: &Model, draw: &mut Random) {
    let keys: Vec<u64> = (0..1 + draw.below(4)).map(|_| draw.below(KEYS)).collect();
    let expected: Vec<_> = keys.iter().map(|key| model.get(key).cloned()).collect();
    assert_eq!(store.multi_get(&keys).await, Ok(expected), "{keys:?}");
    let (first, limit) = (draw.below(KEYS), draw.below(6) as usize);
    let expected = model.range(first..).take(limit).map(|(key, stored)| (*key, stored.clone())).collect();
    assert_eq!(store.scan(first.., limit).await, Ok(expected));
}

#[test]
fn a_store_is_a_map_with_versions_now_and_in_the_past_whatever_is_compacted_and_forgotten() {
    run(async |world| {
        for seed in 1..=4 {
            let name = format!("s{seed}");
            let (one, two) = (program(&world).await, program(&world).await);
            let open = |runtime: &Runtime, cache_bytes| {
                Values::open_with(runtime, &name, StoreOptions { cache_bytes }).expect("opened")
            };
            let stores = [open(&one, 1 << 20), open(&two, 0)];
            let (mut draw, mut model) = (Random::new(seed), Model::new());
            let mut past: BTreeMap<LogPos, Model> = BTreeMap::new();
            let mut earliest = LogPos(0);
            for step in 0..STEPS {
                let store = &stores[draw.below(2) as usize];
                match draw.below(20) {
                    0 => drop(store.handle().checkpoint().await.expect("made")),
                    1 => {
                        let before = LogPos(past.last_key_value().map_or(0, |(pos, _)| pos.0));
                        store.compact(before).await.expect("compacted");
                    }
                    2 => {
                        let before = LogPos(past.last_key_value().map_or(0, |(pos, _)| pos.0));
                        earliest = store.handle().forget(before).await.expect("forgotten").earliest;
                        past.retain(|pos, _| *pos >= earliest);
                    }
                    3..6 => {
                        let nth = draw.below(past.len().max(1) as u64) as usize;
                        let Some((pos, model)) = past.iter().nth(nth) else { continue };
                        assert_eq!(all_of(&store.at(*pos)).await.as_ref(), Ok(model), "seed {seed} at {pos}");
                        let fresh = open(&program(&world).await, 0);
                        assert_eq!(all_of(&fresh.at(*pos)).await.as_ref(), Ok(model), "seed {seed} at {pos}");
                    }
                    6..12 => check(store, &model, &mut draw).await,
                    _ => {
                        if let Some(pos) = change(store, &mut model, &mut draw, step).await {
                            past.insert(pos, model.clone());
                        }
                    }
                }
            }
            assert_eq!(all_of(&open(&program(&world).await, 1 << 20)).await, Ok(model), "seed {seed}");
            assert!(earliest > LogPos(0), "seed {seed} forgets something");
        }
    });
}

#[test]
fn forgetting_keeps_the_entries_of_values_until_they_are_compacted() {
    run(async |world| {
        let runtime = program(&world).await;
        let store = Values::open(&runtime, "s").expect("opened");
        let kept = store.put(0, "kept".to_owned()).await.expect("put");
        for number in 0..100 {
            store.put(1, number.to_string()).await.expect("put");
        }
        let first = store.handle().checkpoint().await.expect("made");
        assert_eq!(store.handle().forget(first).await.map(|forgotten| forgotten.earliest), Ok(first));
        assert_eq!(entries(&runtime, "s").await.first(), Some(&kept), "its value is in use");
        let fresh = self::store(&world, 0).await;
        let value = Stored { value: "kept".to_owned(), version: kept };
        assert_eq!(fresh.get(&0).await, Ok(Some(value.clone())));

        let compacted = fresh.compact(first).await.expect("compacted");
        assert_eq!((compacted.values, fresh.get(&0).await), (2, Ok(Some(value.clone()))));
        assert_eq!(store.get(&0).await, Ok(Some(value.clone())), "with the version that it had");
        let second = store.handle().checkpoint().await.expect("made");
        // Somebody reads the state before the copies still.
        store.handle().pin("report", first).await.expect("pinned");
        store.handle().forget(second).await.expect("forgotten");
        assert_eq!(self::store(&world, 0).await.at(first).get(&0).await, Ok(Some(value.clone())));
        assert_eq!(store.handle().let_go("report").await, Ok(true));
        assert_eq!(store.handle().forget(second).await.map(|forgotten| forgotten.earliest), Ok(second));
        assert!(entries(&runtime, "s").await.len() < 3, "the copies are left");
        assert_eq!(self::store(&world, 0).await.get(&0).await, Ok(Some(value)));
        let old = self::store(&world, 0).await.at(first).get(&0).await;
        assert!(matches!(old, Err(ObjectError::Forgotten { .. })), "{old:?}");
    });
}

#[test]
fn a_store_of_long_keys_is_compacted() {
    // Copies that are bounded by the values alone do not fit into a record, now and whenever it is tried again.
    run(async |world| {
        let store = Store::<String, u8>::open(&world.program().await, "s").expect("opened");
        let mut last = LogPos(0);
        for nth in 0..6 {
            let key = |number: u32| format!("{nth}.{number}.{}", "k".repeat(2000));
            let puts = (0..200).map(|number| (key(number), Some(7))).collect();
            last = store.multi_put(puts).await.expect("put");
        }
        let compacted = store.compact(LogPos(last.0 + 1)).await;
        assert_eq!(compacted.map(|compacted| compacted.values), Ok(1200));
    });
}

#[test]
fn a_reader_whose_index_is_old_finds_a_value_that_was_copied_and_its_entry_given_up() {
    run(async |world| {
        let (here, lagging) = (store(&world, 0).await, store(&world, 0).await);
        let version = here.put(0, "a".to_owned()).await.expect("put");
        assert_eq!(lagging.len().await, Ok(1));
        let before = here.put(1, "b".to_owned()).await.expect("put");
        here.compact(before).await.expect("compacted");
        let upto = here.handle().checkpoint().await.expect("made");
        here.handle().forget(upto).await.expect("forgotten");
        let stale = lagging.stale(Duration::from_secs(3600));
        assert_eq!(stale.get(&0).await, Ok(Some(Stored { value: "a".to_owned(), version })));
    });
}

#[test]
fn of_many_conditional_puts_on_one_version_one_is_done() {
    run(async |world| {
        let (one, two) = (store(&world, 1 << 20).await, store(&world, 1 << 20).await);
        let mut version = one.put(0, "0".to_owned()).await.expect("put");
        for round in 0..20 {
            let puts = [&one, &two, &one, &two].map(|store| {
                store.multi_put_if(vec![(0, Some(version))], vec![(0, Some(round.to_string())), (9, None)])
            });
            let done = ithaca_env::task::gather(puts.into(), Result::is_err).await;
            let done: Vec<LogPos> = done
                .into_iter()
                .filter_map(|put| match put?.expect("answered") {
                    PutIf::Done(pos) => Some(pos),
                    PutIf::Differs(_) => None,
                })
                .collect();
            assert_eq!(done.len(), 1, "round {round}");
            version = done[0];
        }
    });
}

#[test]
fn what_is_too_large_or_cannot_be_read_is_refused_and_said() {
    run(async |world| {
        let here = store(&world, 0).await;
        here.put(1, "met".to_owned()).await.expect("put");
        let Err(ObjectError::PutTooLarge { limit, .. }) = here.put(0, "x".repeat(1 << 20)).await else {
            panic!("it is longer than any entry");
        };
        let version = here.put(0, "x".repeat(limit - 64)).await.expect("put");
        let next = here.put(1, "y".to_owned()).await.expect("put");
        assert_eq!(here.compact(next).await.map(|compacted| compacted.values), Ok(1), "it fits as a copy");
        assert_eq!(here.get(&0).await.map(|stored| stored.map(|stored| stored.version)), Ok(Some(version)));
        let old = here.at(next).put(0, "z".to_owned()).await;
        assert!(matches!(old, Err(ObjectError::ReadOnly { .. })), "{old:?}");
        let numbers = Store::<u64, u64>::open(&world.program().await, "s").expect("opened");
        assert!(matches!(numbers.get(&1).await, Err(ObjectError::Call(_))), "it is no number");

        let runtime = program(&world).await;
        runtime.client().trim(next).await.expect("trimmed by hand");
        assert_eq!(here.get(&1).await, Err(ObjectError::NoValue { object: "s".to_owned(), pos: next }));
    });
}
