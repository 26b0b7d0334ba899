//! Views, reads and results.

use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::task::gather;
use ithaca_log::pos::{LogPos, StreamId, StreamPos};
use ithaca_object::collections::{Counter, List, Map, Put, Queue};
use ithaca_object::limits::REQUESTS_AHEAD_MAX;
use ithaca_object::record::TxId;
use ithaca_object::{ObjectError, Outcome};

use crate::worlds::run;

type Numbers = Map<String, u64>;

#[test]
fn what_one_program_has_put_another_one_reads() {
    run(async |world| {
        let (one, two) = (world.program().await, world.program().await);
        let (here, there) =
            (Numbers::open(&one, "m").expect("opened"), Numbers::open(&two, "m").expect("opened"));
        assert_eq!(here.put("a".into(), 1).await, Ok(None));
        assert_eq!(there.get(&"a".into()).await, Ok(Some(1)));
        assert_eq!(there.put("a".into(), 2).await, Ok(Some(1)));
        assert_eq!(here.put("a".into(), 3).await, Ok(Some(2)), "the result is that of its own position");
        assert_eq!(there.remove("a".into()).await, Ok(Some(3)));
        assert_eq!(here.len().await, Ok(0));
    });
}

#[test]
fn many_calls_at_once_give_each_its_own_result() {
    // They come back in whatever order; each must be told what was there before its own position.
    run(async |world| {
        let (one, two) = (world.program().await, world.program().await);
        let counters = [&one, &two].map(|program| Counter::open(program, "c").expect("opened"));
        let adds = (0..400).map(|nth| counters[nth % 2].add_and_get(1)).collect();
        let mut results: Vec<i64> = gather(adds, |_| false)
            .await
            .into_iter()
            .map(|result| result.expect("it ended").expect("added"))
            .collect();
        results.sort_unstable();
        assert_eq!(results, (1..=400).collect::<Vec<_>>());
    });
}

#[test]
fn an_object_whose_beginning_was_trimmed_is_refused_and_not_shown_without_it() {
    // A map that has lost its first entries would be taken for one in which they were never put.
    run(async |world| {
        let program = world.program().await;
        for name in ["by its stream", "with the log", "whole"] {
            let map = Numbers::open(&program, name).expect("opened");
            for value in 0..4 {
                map.fast_put(format!("key {value}"), value).await.expect("put");
            }
            let stream = StreamId::of_name(name);
            let client = program.client();
            match name {
                "by its stream" => client.trim_stream(stream, StreamPos(2)).await.expect("trimmed"),
                "with the log" => {
                    let tail = client.check().await.expect("it serves").tail;
                    client.trim_prefix(LogPos(tail.0 - 1)).await.expect("trimmed");
                }
                _ => {}
            }
            let fresh = Numbers::open(&world.program().await, name).expect("opened");
            match fresh.len().await {
                Ok(count) => assert_eq!((name, count), ("whole", 4)),
                Err(ObjectError::Trimmed { object, .. }) => assert_ne!(object, "whole"),
                Err(error) => panic!("{name}: {error}"),
            }
            assert_eq!(map.len().await, Ok(4), "{name}: who has it goes on");
        }
    });
}

#[test]
fn an_object_of_which_nothing_is_left_is_refused_by_whatever_sequencer() {
    // A map that was taken for a new one would let a condition hold that never did, `--if-absent` among them.
    run(async |world| {
        let program = world.program().await;
        for name in ["gone", "stored"] {
            let map = Numbers::open(&program, name).expect("opened");
            map.put("key".into(), 7).await.expect("put");
            if name == "stored" {
                map.handle().checkpoint().await.expect("made");
            }
        }
        for _ in 0..2 {
            // What is said of them is itself below the next trim.
            let tail = program.client().check().await.expect("it serves").tail;
            program.client().trim_prefix(tail).await.expect("trimmed");
        }
        drop(program);
        let world = world.restart().await;
        let program = world.program().await;
        let open = |name: &str| Numbers::open(&program, name).expect("opened");
        world.host(|_| {});
        let there = Numbers::open_remote(&world.program().await, "gone").expect("opened");
        for read in [open("gone").len().await, open("stored").len().await, there.len().await] {
            assert!(matches!(read, Err(ObjectError::Trimmed { .. })), "{read:?}");
        }
        let checked = open("gone").handle().check_type().await;
        assert!(matches!(checked, Err(ObjectError::Trimmed { .. })), "{checked:?}");
        assert_eq!(open("new").put("key".into(), 1).await, Ok(None), "it never was");
    });
}

#[test]
fn an_old_state_is_read_as_it_was_by_whoever_asks() {
    run(async |world| {
        let program = world.program().await;
        let map = Numbers::open(&program, "m").expect("opened");
        let mut positions = Vec::new();
        for value in 0..20 {
            positions.push(map.fast_put("k".into(), value).await.expect("put").expect("a position"));
        }
        map.remove("k".into()).await.expect("removed");
        let fresh = Numbers::open(&world.program().await, "m").expect("opened");
        for map in [&map, &fresh] {
            assert_eq!(map.get(&"k".into()).await, Ok(None));
            for (value, pos) in positions.iter().enumerate() {
                assert_eq!(map.at(LogPos(pos.0 + 1)).get(&"k".into()).await, Ok(Some(value as u64)));
                let before = (value as u64).checked_sub(1);
                assert_eq!(map.at(*pos).get(&"k".into()).await, Ok(before));
            }
        }
        let ahead = map.at(LogPos(1 << 40)).get(&"k".into()).await;
        assert!(matches!(ahead, Err(ObjectError::NotYet { .. })), "{ahead:?}");
        let changed = map.at(positions[3]).put("k".into(), 1).await;
        assert!(matches!(changed, Err(ObjectError::ReadOnly { .. })), "{changed:?}");
    });
}

#[test]
fn a_state_below_what_the_view_remembers_is_read_by_replay() {
    run(async |world| {
        let program = world.program().await;
        let counter = Counter::open(&program, "c").expect("opened");
        counter.add(1).await.expect("added");
        let count = ithaca_object::limits::HISTORY_MAX_COUNT + 100;
        for _ in 0..count / 200 {
            let adds = (0..200).map(|_| counter.add(1)).collect();
            gather(adds, |_| false).await;
        }
        let end = counter.get().await.expect("read");
        assert_eq!(end, 1 + (count / 200 * 200) as i64);
        assert_eq!(counter.at(LogPos(0)).get().await, Ok(0));
        assert_eq!(counter.at(LogPos(1)).get().await, Ok(1));
        assert_eq!(counter.get().await, Ok(end));
    });
}

#[test]
fn a_stale_read_asks_nobody_within_its_bound() {
    run(async |world| {
        let (one, two) = (world.program().await, world.program().await);
        let (here, there) =
            (Counter::open(&one, "c").expect("opened"), Numbers::open(&two, "m").expect("opened"));
        there.put("k".into(), 1).await.expect("put");
        let map = Numbers::open(&one, "m").expect("opened");
        assert_eq!(map.get(&"k".into()).await, Ok(Some(1)));
        there.put("k".into(), 2).await.expect("put");
        here.add(1).await.expect("added");
        assert_eq!(map.stale(Duration::from_secs(3600)).get(&"k".into()).await, Ok(Some(1)));
        assert_eq!(map.stale(Duration::ZERO).get(&"k".into()).await, Ok(Some(2)));
    });
}

#[test]
fn an_object_is_open_as_one_type_at_a_time_and_as_every_handle_of_it() {
    run(async |world| {
        let program = world.program().await;
        let list = List::<u64>::open(&program, "x").expect("opened");
        let queue = Queue::<u64>::open(&program, "x").expect("the same state");
        list.push(7).await.expect("pushed");
        assert_eq!(queue.pop().await, Ok(Some(7)));
        let other = Numbers::open(&program, "x").err();
        assert!(
            matches!(other, Some(ObjectError::OtherType { found: "list", wanted: "map", .. })),
            "{other:?}"
        );
        drop((list, queue));
        assert!(Numbers::open(&program, "x").is_ok(), "nothing of it is open any more");
    });
}

#[test]
fn an_entry_that_is_no_record_stops_the_object_there_and_not_below() {
    run(async |world| {
        let program = world.program().await;
        let map = Numbers::open(&program, "m").expect("opened");
        let good = map.fast_put("k".into(), 1).await.expect("put").expect("a position");
        let stream = [StreamId::of_name("m")];
        let bad =
            program.client().append_to(&stream, Bytes::from_static(b"no record")).await.expect("appended");
        let read = map.get(&"k".into()).await;
        let Err(ObjectError::Stopped { object, fault }) = &read else { panic!("{read:?}") };
        assert_eq!((object.as_str(), fault.pos), ("m", bad.pos));
        assert_eq!(map.at(LogPos(good.0 + 1)).get(&"k".into()).await, Ok(Some(1)));
        assert!(matches!(map.put("k".into(), 2).await, Err(ObjectError::Stopped { .. })));
    });
}

#[test]
fn a_record_that_calls_what_the_object_has_not_stops_it() {
    run(async |world| {
        let (one, two) = (world.program().await, world.program().await);
        List::<u64>::open(&one, "x").expect("opened").push(1).await.expect("pushed");
        let read = Numbers::open(&two, "x").expect("opened").len().await;
        let Err(error @ ObjectError::Stopped { .. }) = read else { panic!("{read:?}") };
        assert!(error.to_string().contains("a map has no method `append`"), "{error}");
    });
}

#[test]
fn the_outcome_of_a_transaction_is_told_by_its_id() {
    run(async |world| {
        let program = world.program().await;
        let map = Numbers::open(&program, "m").expect("opened");
        let tx = program.begin(&Default::default()).await.expect("begun");
        map.within(&tx).put("k".into(), 1).await.expect("put");
        let (id, pos) = tx.commit().await.expect("committed").record.expect("it wrote");
        let other = world.program().await;
        let outcome = other.outcome(StreamId::of_name("m"), id, LogPos(0)).await;
        assert_eq!(outcome, Ok(Outcome::Committed { pos, is_first: true }));
        let never = TxId { client: id.client, request: id.request + 1 };
        let outcome = other.outcome(StreamId::of_name("m"), never, LogPos(0)).await;
        assert!(matches!(outcome, Ok(Outcome::NotFound { .. })), "{outcome:?}");
    });
}

#[test]
fn an_object_of_which_one_entry_was_trimmed_by_its_position_is_refused() {
    run(async |world| {
        let program = world.program().await;
        for trimmed in 0..4 {
            let name = format!("map {trimmed}");
            let map = Numbers::open(&program, &name).expect("opened");
            let mut positions = Vec::new();
            for value in 0..4 {
                let pos =
                    map.fast_put(format!("key {value}"), value).await.expect("put").expect("a position");
                positions.push(pos);
            }
            program.client().trim(positions[trimmed]).await.expect("trimmed");
            let fresh = Numbers::open(&world.program().await, &name).expect("opened");
            let below = LogPos(positions[trimmed].0 + 1);
            let refused = ObjectError::Trimmed { object: name, below };
            assert_eq!(fresh.len().await, Err(refused.clone()));
            assert_eq!(
                fresh.handle().check_type().await,
                Err(refused.clone()),
                "nobody could read what follows"
            );
            let (before, after) = (fresh.at(positions[trimmed]).len().await, fresh.at(below).len().await);
            assert_eq!((before, after), (Ok(trimmed), Err(refused)));
            assert_eq!(map.len().await, Ok(4), "who has it goes on");
        }
    });
}

#[test]
fn a_call_whose_result_cannot_be_read_is_told_of_as_one_that_happened() {
    // Whoever was told that it did not would make it again.
    run(async |world| {
        let (one, two) = (world.program().await, world.program().await);
        let elsewhere = Map::<String, u64>::open(&two, "map").expect("opened");
        two.client().append("of no object".into()).await.expect("appended");
        elsewhere.put("k".into(), 1).await.expect("put");
        let tail = two.client().check().await.expect("it serves").tail;
        two.client().trim_prefix(tail).await.expect("trimmed");
        let map = Map::<String, u64>::open(&one, "map").expect("opened");
        let checked = map.handle().check_type().await;
        assert!(matches!(checked, Err(ObjectError::Trimmed { .. })), "{checked:?}");
        let put = map.put("k".into(), 2).await;
        let Err(ObjectError::NoResult { pos, cause, .. }) = &put else { panic!("{put:?}") };
        assert!(matches!(**cause, ObjectError::Trimmed { .. }), "{cause}");
        assert!(*pos >= tail);
        let entry = one.client().read(*pos).await.expect("it stands there");
        assert!(!entry.data.is_empty());
        let submitted = map.handle().submit(Put { key: "k".to_owned(), value: 3 }).await;
        assert!(matches!(submitted, Err(ObjectError::NoResult { .. })), "{submitted:?}");
    });
}

#[test]
fn calls_go_on_however_many_came_after_one_that_was_dropped() {
    run(async |world| {
        let program = world.program().await;
        let map = Map::<u64, u64>::open(&program, "map").expect("opened");
        let mut dropped = Box::pin(map.put(0, 0));
        let begun = std::future::poll_fn(|context| Poll::Ready(dropped.as_mut().poll(context).is_ready()));
        assert!(!begun.await, "it is under way");
        drop(dropped);
        let count = REQUESTS_AHEAD_MAX + 100;
        let put = async |nth: u64| map.put(1, nth).await;
        for first in (0..count).step_by(256) {
            let puts = (first..count.min(first + 256)).map(put).collect();
            for put in gather(puts, |_| false).await {
                put.expect("it ended").expect("put");
            }
        }
        assert_eq!(map.put(1, 7).await, Ok(Some(count - 1)), "results are told as before");
        let elsewhere = Map::<u64, u64>::open(&world.program().await, "map").expect("opened");
        assert_eq!(elsewhere.get(&1).await, Ok(Some(7)));
    });
}
