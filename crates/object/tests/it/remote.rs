//! Objects whose state a node has.

use std::collections::BTreeSet;

use ithaca_env::task::gather;
use ithaca_log::client::ClientError;
use ithaca_log::pos::{LogPos, StreamId};
use ithaca_object::collections::{
    Blob, Counter, List, Map, MultiMap, Put, Queue, Register, Replaced, Set, SortedMap, Stack,
};
use ithaca_object::composed::{HashedMap, TreeMap};
use ithaca_object::remote::{Answer, Asked, Question, Refused};
use ithaca_object::{Begin, ObjectError, Tx, TxOptions};

use crate::worlds::run;

type Numbers = Map<String, u64>;

#[test]
fn what_any_program_has_put_is_read_at_the_node_and_the_other_way_round() {
    run(async |world| {
        world.host(|_| {});
        let (one, two) = (world.program().await, world.program().await);
        let here = Numbers::open(&one, "m").expect("opened");
        let there = Numbers::open_remote(&two, "m").expect("opened");
        assert_eq!(there.get(&"a".into()).await, Ok(None), "nobody has changed it");
        for value in 1..20 {
            assert_eq!(here.put("a".into(), 2 * value).await.map(|_| ()), Ok(()));
            assert_eq!(there.get(&"a".into()).await, Ok(Some(2 * value)), "it was acknowledged before");
            assert_eq!(there.put("a".into(), 2 * value + 1).await, Ok(Some(2 * value)));
            assert_eq!(here.get(&"a".into()).await, Ok(Some(2 * value + 1)));
        }
        assert_eq!(there.remove("a".into()).await, Ok(Some(39)));
        assert_eq!(here.len().await, Ok(0));
    });
}

#[test]
fn every_collection_does_at_a_node_what_it_does_here() {
    run(async |world| {
        world.host(|_| {});
        let (one, two) = (world.program().await, world.program().await);
        // Keys whose order as values of any type is not their own.
        let map = Map::<std::cmp::Reverse<i32>, Option<f64>>::open_remote(&one, "map").expect("opened");
        for key in [-70_000, -1, 0, 5, 70_000] {
            map.fast_put(std::cmp::Reverse(key), Some(f64::from(key))).await.expect("put");
        }
        let kept = Map::<std::cmp::Reverse<i32>, Option<f64>>::open(&two, "map").expect("opened");
        assert_eq!(map.entries().await, kept.entries().await);
        assert_eq!((map.len().await, map.contains_key(&std::cmp::Reverse(5)).await), (Ok(5), Ok(true)));
        let set = Set::<String>::open_remote(&one, "set").expect("opened");
        assert_eq!((set.insert("b".into()).await, set.insert("b".into()).await), (Ok(true), Ok(false)));
        assert_eq!(
            (set.insert("a".into()).await, set.values().await),
            (Ok(true), Ok(vec!["a".into(), "b".into()]))
        );
        let options = Map::<u8, Option<u8>>::open_remote(&one, "options").expect("opened");
        assert_eq!((options.put(1, None).await, options.put(1, Some(2)).await), (Ok(None), Ok(Some(None))));
        let pos =
            options.multi_put(vec![(2, Some(None)), (1, None)]).await.expect("put").expect("a position");
        assert_eq!(options.multi_get(&[1, 2]).await, Ok(vec![None, Some(None)]));
        assert!(matches!(options.put_if_absent(2, Some(3)).await, Ok(Replaced::Differs(Some(_)))));
        assert!(matches!(options.replace(2, pos, Some(4)).await, Ok(Replaced::Done(Some(_)))));
        assert!(matches!(options.remove_if(2, pos).await, Ok(Replaced::Differs(Some(_)))));
        assert_eq!((options.get(&2).await, set.clear().await), (Ok(Some(Some(4))), Ok(())));
        assert_eq!(set.len().await, Ok(0));
        let list = List::<u8>::open_remote(&one, "list").expect("opened");
        list.push(1).await.expect("pushed");
        assert_eq!((list.insert(0, 0).await, list.set(1, 9).await), (Ok(0), Ok(Some(1))));
        assert_eq!(
            (list.items().await, list.get(1).await, list.remove(0).await),
            (Ok(vec![0, 9]), Ok(Some(9)), Ok(Some(0)))
        );
        let stack = Stack::<u8>::open_remote(&one, "list").expect("a list too");
        stack.push(8).await.expect("pushed");
        let queue = Queue::<u8>::open_remote(&one, "list").expect("a list too");
        assert_eq!(
            (stack.peek().await, queue.peek().await, stack.pop().await),
            (Ok(Some(8)), Ok(Some(9)), Ok(Some(8)))
        );
        let counter = Counter::open_remote(&one, "counter").expect("opened");
        assert_eq!((counter.add_and_get(-5).await, counter.get().await), (Ok(-5), Ok(-5)));
        let register = Register::<(u8, String)>::open_remote(&one, "register").expect("opened");
        register.write((1, "x".into())).await.expect("written");
        assert_eq!(register.replace(None).await, Ok(Some((1, "x".into()))));
        assert_eq!(register.read().await, Ok(None));
        let many = MultiMap::<u8, String>::open_remote(&one, "many").expect("opened");
        assert_eq!((many.insert(1, "x".into()).await, many.len().await), (Ok(true), Ok(1)));
        assert_eq!(many.entries().await, Ok(vec![(1, BTreeSet::from(["x".into()]))]));
        assert_eq!(many.remove_all(1).await, Ok(BTreeSet::from(["x".into()])));
        assert_eq!(many.get(&1).await, Ok(BTreeSet::new()));
        assert_eq!(
            (list.clear().await, many.clear().await, queue.is_empty().await),
            (Ok(()), Ok(()), Ok(true))
        );
    });
}

#[test]
fn results_of_calls_at_once_are_those_of_their_own_positions() {
    // A node that has read further than a call's position must go back to it.
    run(async |world| {
        world.host(|_| {});
        let (one, two) = (world.program().await, world.program().await);
        let counters = [&one, &two].map(|program| Counter::open_remote(program, "c").expect("opened"));
        let adds = (0..200).map(|nth| counters[nth % 2].add_and_get(1)).collect();
        let results = gather(adds, |_| false).await.into_iter();
        let mut results: Vec<i64> = results.map(|result| result.expect("it ended").expect("added")).collect();
        results.sort_unstable();
        assert_eq!(results, (1..=200).collect::<Vec<_>>());
    });
}

#[test]
fn a_transaction_reads_one_snapshot_at_the_node_and_sees_what_it_wrote() {
    run(async |world| {
        world.host(|_| {});
        let (one, two) = (world.program().await, world.program().await);
        let accounts = Numbers::open_remote(&one, "accounts").expect("opened");
        let ledger = List::<String>::open_remote(&one, "ledger").expect("opened");
        let other = Numbers::open(&two, "accounts").expect("opened");
        other.fast_put("ann".into(), 10).await.expect("put");
        for begin in [Begin::Newest, Begin::Local] {
            let tx = one.begin(&TxOptions { begin, ..TxOptions::default() }).await.expect("begun");
            let within = accounts.within(&tx);
            assert_eq!(within.get(&"ann".into()).await, Ok(Some(10)));
            other.fast_put("bob".into(), 7).await.expect("put");
            assert_eq!(
                within.get(&"bob".into()).await.map(|found| found.is_some()),
                Ok(begin == Begin::Local)
            );
            assert_eq!(
                within.put("cid".into(), 1).await,
                Ok(None),
                "it is taken back from the view afterwards"
            );
            assert_eq!(within.get(&"cid".into()).await, Ok(Some(1)));
            assert_eq!(accounts.get(&"cid".into()).await, Ok(None), "it is not committed");
            ledger.within(&tx).push("1 for cid".into()).await.expect("pushed");
            // It has read what `bob` had.
            let committed = tx.commit().await;
            assert!(matches!(committed, Err(ObjectError::Aborted(_))), "{committed:?}");
        }
        assert_eq!((accounts.len().await, ledger.len().await), (Ok(2), Ok(0)));
        let body = async |tx: &Tx| -> Result<Option<u64>, ObjectError> {
            let ann = accounts.within(tx).get(&"ann".into()).await?.unwrap_or(0);
            accounts.within(tx).put("ann".into(), ann + 1).await
        };
        let options = TxOptions::default();
        let adds = (0..8).map(|_| one.transact(&options, body)).collect();
        assert!(gather(adds, |_| false).await.into_iter().all(|it| it.is_some_and(|it| it.is_ok())));
        assert_eq!(other.get(&"ann".into()).await, Ok(Some(18)));
    });
}

#[test]
fn old_states_are_read_at_the_node() {
    run(async |world| {
        world.host(|_| {});
        let program = world.program().await;
        let map = Numbers::open_remote(&program, "m").expect("opened");
        let mut at = Vec::new();
        for value in 0..10 {
            let (_, pos) = map.handle().call_placed(Put { key: "a".into(), value }).await.expect("put");
            at.push(pos.expect("it has a place"));
        }
        for (value, pos) in at.iter().enumerate() {
            assert_eq!(map.at(LogPos(pos.0 + 1)).get(&"a".into()).await, Ok(Some(value as u64)));
        }
        let beyond = map.at(LogPos(1 << 40)).get(&"a".into()).await;
        assert!(matches!(beyond, Err(ObjectError::NotYet { .. })), "{beyond:?}");
        let read_only = map.at(LogPos(1)).put("a".into(), 1).await;
        assert!(matches!(read_only, Err(ObjectError::ReadOnly { .. })), "{read_only:?}");
    });
}

#[test]
fn views_that_nobody_asks_for_make_room_for_others() {
    run(async |world| {
        let host = world.host(|options| options.views_max = 3);
        let program = world.program().await;
        for round in 0..3 {
            for nth in 0..8 {
                let map = Numbers::open_remote(&program, &format!("m{nth}")).expect("opened");
                let before = (round > 0).then(|| 10 * nth + round - 1);
                assert_eq!(map.put("a".into(), 10 * nth + round).await, Ok(before));
                assert!(host.len() <= 3, "{} views", host.len());
            }
        }
        let host = world.host(|options| options.bytes_max = 300 << 10);
        for nth in 0..8 {
            let map = Map::<u8, String>::open_remote(&program, &format!("large {nth}")).expect("opened");
            assert_eq!(map.put(1, "x".repeat(100 << 10)).await, Ok(None));
            assert!(host.len() <= 3, "{} views", host.len());
        }
    });
}

#[test]
fn what_a_view_keeps_to_go_back_takes_room_too() {
    // A register of one value had 64 MiB of old ones, and counted for that one.
    run(async |world| {
        let host = world.host(|options| options.bytes_max = 2 << 20);
        let program = world.program().await;
        for name in ["a", "b"] {
            let register = Register::<String>::open_remote(&program, name).expect("opened");
            for _ in 0..40 {
                register.write("x".repeat(100 << 10)).await.expect("written");
            }
            assert_eq!(
                register.read().await.map(|value| value.map_or(0, |value| value.len())),
                Ok(100 << 10)
            );
        }
        assert_eq!(host.len(), 1);
    });
}

#[test]
fn a_question_of_another_type_neither_takes_a_view_away_nor_keeps_others_from_it() {
    run(async |world| {
        let host = world.host(|_| {});
        let program = world.program().await;
        let map = Numbers::open_remote(&program, "m").expect("opened");
        map.fast_put("a".into(), 1).await.expect("put");
        assert_eq!(map.get(&"a".into()).await, Ok(Some(1)));
        let ask = |name: &'static str, object: &'static str, least| {
            let read = Some(Asked { method: "len".to_owned(), arguments: Blob(vec![0x80].into()) });
            let question = Question { object: object.to_owned(), least, at: None, calls: vec![], read };
            let question = rmp_serde::to_vec_named(&question).expect("it encodes");
            let client = program.client().clone();
            async move { client.ask_view(StreamId::of_name(name), question.into(), |_| true).await }
        };
        let decoded = |answer: Result<bytes::Bytes, _>| {
            rmp_serde::from_slice::<Answer>(&answer.expect("an answer")).expect("it is one")
        };
        // Both ask for what the log does not reach.
        let asking = ["m", "e"].map(|name| world.env.spawn(ask(name, "list", 1 << 40)));
        while host.len() < 2 {
            world.env.yield_now().await;
        }
        assert_eq!(map.get(&"a".into()).await, Ok(Some(1)));
        // Nobody knows yet what this stream is of; a list is being looked for.
        let busy = decoded(ask("e", "map", 0).await);
        assert!(matches!(busy, Answer::Refused(Refused::Unavailable { .. })), "{busy:?}");
        let [one, _] = asking;
        let one = decoded(one.join().await.expect("it ended"));
        assert!(matches!(&one, Answer::Refused(Refused::OtherType { found }) if found == "map"), "{one:?}");
    });
}

#[test]
fn a_hashed_map_is_read_at_nodes_while_it_is_split_and_cleared() {
    // A reader that trusts the shape that it saw last finds a key gone that was moved, or there that was cleared.
    run(async |world| {
        world.host_each(|_| false);
        let (one, two) = (world.program().await, world.program().await);
        let here = HashedMap::<u64, String>::open_with(&one, "m", 1).expect("opened").splitting_at(3);
        let there = HashedMap::<u64, String>::open_remote(&two, "m").expect("opened");
        assert_eq!((there.get(&1).await, there.len().await), (Ok(None), Ok(0)), "nobody has changed it");
        let mut model = std::collections::BTreeMap::new();
        for step in 0..118_u64 {
            let (key, value) = (step * 7 % 31, step.to_string());
            match step % 40 {
                39 => {
                    here.clear().await.expect("cleared");
                    model.clear();
                }
                13 | 14 => {
                    assert_eq!(there.put(key, value.clone()).await, Ok(model.insert(key, value)));
                }
                15 => assert_eq!(there.remove(key).await, Ok(model.remove(&key))),
                _ => assert_eq!(here.put(key, value.clone()).await, Ok(model.insert(key, value))),
            }
            for key in [key, (step * 5) % 31] {
                assert_eq!(there.get(&key).await, Ok(model.get(&key).cloned()), "step {step}, key {key}");
                assert_eq!(here.get(&key).await, Ok(model.get(&key).cloned()), "step {step}, key {key}");
            }
        }
        assert!(there.bucket_count().await.expect("read") > 3, "it was split");
        let all: Vec<(u64, String)> = model.into_iter().collect();
        assert_eq!((there.len().await, there.entries().await), (Ok(all.len()), Ok(all.clone())));
        let tail = two.client().check().await.expect("it serves").tail;
        here.put(99, "later".to_owned()).await.expect("put");
        assert_eq!(there.at(tail).entries().await, Ok(all));
        let within = async |tx: &Tx| -> Result<Option<String>, ObjectError> {
            let map = there.within(tx);
            map.fast_put(98, "mine".to_owned()).await?;
            assert_eq!(map.get(&98).await?, Some("mine".to_owned()));
            map.get(&99).await
        };
        let read = two.transact(&TxOptions::default(), within).await.map(|(read, _)| read);
        assert_eq!(read, Ok(Some("later".to_owned())));
        assert_eq!(here.get(&98).await, Ok(Some("mine".to_owned())));
    });
}

#[test]
fn what_programs_put_at_nodes_splits_buckets_too() {
    // A map that no program has in memory would keep its buckets, however large they get.
    run(async |world| {
        world.host_each(|_| false);
        let (one, two) = (world.program().await, world.program().await);
        let there = HashedMap::<u64, u64>::open_remote(&one, "m").expect("opened").splitting_at(2);
        for key in 0..200 {
            match key % 2 {
                0 => there.fast_put(key, 2 * key).await.expect("put"),
                _ => assert_eq!(there.put(key, 2 * key).await, Ok(None)),
            }
        }
        assert!(there.bucket_count().await.expect("read") > 16, "more than it began with");
        let here = HashedMap::<u64, u64>::open(&two, "m").expect("opened");
        let expected: Vec<(u64, u64)> = (0..200).map(|key| (key, 2 * key)).collect();
        assert_eq!((here.entries().await, there.entries().await), (Ok(expected.clone()), Ok(expected)));
    });
}

#[test]
fn a_tree_is_at_nodes_what_it_is_here() {
    // Nodes know neither the type of its keys nor their order, which is not that of the numbers.
    use std::cmp::Reverse;
    run(async |world| {
        world.host_each(|_| false);
        let (one, two) = (world.program().await, world.program().await);
        let here = TreeMap::<Reverse<i64>, Option<u64>>::open(&one, "t").expect("opened");
        let there = TreeMap::<Reverse<i64>, Option<u64>>::open_remote(&two, "t").expect("opened");
        assert_eq!((there.get(&Reverse(1)).await, there.len().await), (Ok(None), Ok(0)));
        let mut model = std::collections::BTreeMap::new();
        for step in 0..260_u64 {
            let (key, value) = (Reverse(100 - (step * 7 % 200) as i64), Some(step));
            let before = model.insert(key, value);
            match step % 2 {
                0 => assert_eq!(here.put(key, value).await, Ok(before)),
                _ => assert_eq!(there.put(key, value).await, Ok(before)),
            }
            if step % 20 == 3 {
                assert_eq!(there.remove(key).await, Ok(model.remove(&key)));
            }
            assert_eq!(there.get(&key).await, Ok(model.get(&key).copied()), "step {step}");
        }
        assert!(there.height_at(&Reverse(3)).await.expect("read") > 1, "it was split");
        let all: Vec<_> = model.iter().map(|(key, value)| (*key, *value)).collect();
        assert_eq!((there.entries().await, here.entries().await), (Ok(all.clone()), Ok(all)));
        let some: Vec<_> =
            model.range(Reverse(40)..Reverse(-20)).map(|(key, value)| (*key, *value)).collect();
        assert_eq!(there.range(Reverse(40)..Reverse(-20), usize::MAX).await, Ok(some));
        there.put(Reverse(1), None).await.expect("put");
        assert_eq!(here.get(&Reverse(1)).await, Ok(Some(None)));
        assert_eq!(there.get(&Reverse(1)).await, Ok(Some(None)), "there, with nothing for a value");
        there.clear().await.expect("cleared");
        assert_eq!((there.len().await, here.is_empty().await), (Ok(0), Ok(true)));
        // Only who knows the order of the keys splits; here nobody has the tree.
        let alone = TreeMap::<Reverse<i64>, u64>::open_remote(&two, "alone").expect("opened");
        for key in 0..200 {
            assert_eq!(alone.put(Reverse(key), 1).await, Ok(None));
        }
        assert_eq!((alone.height_at(&Reverse(3)).await, alone.len().await), (Ok(2), Ok(200)));
    });
}

#[test]
fn a_node_that_does_not_reach_the_log_is_passed_over() {
    run(async |world| {
        let program = world.program().await;
        let maps: Vec<Numbers> =
            (0..8).map(|nth| Numbers::open_remote(&program, &format!("m{nth}")).expect("opened")).collect();
        for away in 0..2 {
            world.host_each(|nth| nth == away);
            for map in &maps {
                map.fast_put("a".into(), away as u64).await.expect("put");
                assert_eq!(map.get(&"a".into()).await, Ok(Some(away as u64)));
            }
        }
        world.host_each(|_| true);
        let nobody = maps[0].get(&"a".into()).await;
        assert!(
            matches!(nobody, Err(ObjectError::Remote { refused: Refused::Unavailable { .. }, .. })),
            "{nobody:?}"
        );
    });
}

#[test]
fn a_node_says_what_it_cannot_do() {
    run(async |world| {
        let program = world.program().await;
        let map = Numbers::open_remote(&program, "m").expect("opened");
        let nobody = map.get(&"a".into()).await;
        assert_eq!(nobody, Err(ClientError::NoViews.into()));
        world.host(|_| {});
        assert_eq!(map.get(&"a".into()).await, Ok(None));
        map.fast_put("a".into(), 1).await.expect("put");
        let ask = async |object: &str, method: &str, at, calls| {
            let read = Some(Asked { method: method.to_owned(), arguments: Default::default() });
            let question = Question { object: object.to_owned(), least: 0, at, calls, read };
            let question = rmp_serde::to_vec_named(&question).expect("it encodes");
            let answer = program.client().ask_view(StreamId::of_name("m"), question.into(), |_| true).await;
            match rmp_serde::from_slice(&answer.expect("an answer")).expect("it is one") {
                Answer::Refused(refused) => refused.to_string(),
                answer => format!("{answer:?}"),
            }
        };
        let call = Asked { method: "put".into(), arguments: Default::default() };
        assert_eq!(ask("tree", "get", None, vec![]).await, "nodes keep no views of type `tree`");
        assert!(ask("map", "fetch", Some(1), vec![]).await.contains("no method `fetch`"));
        assert!(ask("map", "get", Some(1), vec![]).await.contains("`get`"));
        assert!(ask("map", "get", Some(1), vec![call.clone()]).await.contains("`put`"));
        assert!(ask("map", "get", None, vec![call]).await.contains("calls without a position"));
        // Whoever takes a map for a list does not spoil it for others.
        assert!(ask("list", "len", Some(1 << 40), vec![]).await.contains("open as a map"));
        assert_eq!(map.get(&"a".into()).await, Ok(Some(1)));
        let nonsense = vec![0xc1; 9].into();
        let nonsense = program.client().ask_view(StreamId::of_name("m"), nonsense, |_| true).await;
        let answer = rmp_serde::from_slice(&nonsense.expect("an answer")).expect("it is one");
        assert!(matches!(answer, Answer::Refused(Refused::Malformed { .. })), "{answer:?}");
        let map = Map::<u32, String>::open_remote(&program, "huge").expect("opened");
        for key in 0..12 {
            map.fast_put(key, "x".repeat(400 << 10)).await.expect("put");
        }
        let huge = map.entries().await;
        assert!(
            matches!(huge, Err(ObjectError::Remote { refused: Refused::TooLarge { .. }, .. })),
            "{:?}",
            huge.err()
        );
        assert_eq!(map.len().await, Ok(12));
        let sorted = SortedMap::<u32, String>::open_remote(&program, "huge").expect("opened");
        let range = sorted.range(1..3, 5).await;
        assert!(matches!(range, Err(ObjectError::OnlyLocal { .. })), "{:?}", range.err());
    });
}
