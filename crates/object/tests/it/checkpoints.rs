//! Checkpoints: programs begin from them, and what lies below them can be forgotten.

use std::time::Duration;

use bytes::Bytes;
use ithaca_log::client::EntryKind;
use ithaca_log::pos::{LogPos, StreamId};
use ithaca_object::checkpoint::chunk::Chunk;
use ithaca_object::checkpoint::{Policy, catalog_of, chunks_of};
use ithaca_object::collections::{Counter, List, Map, MapState, MultiMap, Register};
use ithaca_object::object::Object;
use ithaca_object::{Handle, ObjectError, Runtime, RuntimeOptions, Tx};

use crate::worlds::{World, run};

type Numbers = Map<String, u64>;

/// Small chunks, so that a checkpoint has several.
fn options(calls: u64) -> RuntimeOptions {
    let checkpoints = Policy { calls, bytes: 1 << 40, chunk_bytes: 100, ..Policy::NEVER };
    RuntimeOptions { checkpoints, ..RuntimeOptions::default() }
}

async fn map(world: &World, calls: u64) -> Numbers {
    Numbers::open(&world.program_with(options(calls)).await, "m").expect("opened")
}

async fn put(map: &Numbers, values: std::ops::Range<u64>) -> Vec<LogPos> {
    let mut positions = Vec::new();
    for value in values {
        let pos = map.fast_put(format!("key {}", value % 50), value).await.expect("put");
        positions.push(pos.expect("a position"));
    }
    positions
}

/// How many entries of a stream are in the log.
async fn entries(runtime: &Runtime, stream: StreamId) -> Vec<LogPos> {
    let client = runtime.client();
    let tail = client.check().await.expect("it serves").tail;
    let (mut next, mut found) = (LogPos(0), Vec::new());
    while next < tail {
        let part = client.read_stream(stream, next..tail, 1 << 20).await.expect("read");
        found
            .extend(part.entries.iter().filter(|entry| entry.kind == EntryKind::Data).map(|entry| entry.pos));
        next = part.upto;
    }
    found
}

#[test]
fn what_is_below_a_checkpoint_is_forgotten_and_the_object_is_what_it_was() {
    run(async |world| {
        let here = map(&world, 0).await;
        let lagging = map(&world, 0).await;
        put(&lagging, 0..1).await;
        assert_eq!(lagging.len().await, Ok(1));
        let positions = put(&here, 1..200).await;
        let first = here.handle().checkpoint().await.expect("made");
        let later = put(&here, 200..300).await;
        let second = here.handle().checkpoint().await.expect("made");
        assert_eq!(here.handle().checkpoint().await, Ok(second), "nothing was called since");
        assert_eq!(here.handle().checkpoints().await, Ok(vec![first, second]));
        put(&here, 300..310).await;

        let forgotten = here.handle().forget(LogPos(later[10].0)).await.expect("forgotten");
        assert_eq!((forgotten.earliest, forgotten.held_by), (first, None), "the newest that is not above");
        let program = world.program().await;
        let stream = StreamId::of_name("m");
        assert!(entries(&program, stream).await.iter().all(|pos| *pos >= first));

        let fresh = Numbers::open(&program, "m").expect("opened");
        for (who, map) in [("fresh", &fresh), ("lagging", &lagging), ("here", &here)] {
            assert_eq!(map.entries().await, here.entries().await, "{who}");
            assert_eq!(map.at(later[10]).get(&"key 9".into()).await, Ok(Some(209)), "{who}");
            assert_eq!(map.put("key 0".into(), 1).await.map(|_| ()), Ok(()), "{who}");
        }
        let error = fresh.at(positions[5]).len().await;
        assert!(
            matches!(error, Err(ObjectError::Forgotten { earliest, .. }) if earliest == first),
            "{error:?}"
        );
    });
}

#[test]
fn every_collection_is_the_same_from_a_checkpoint() {
    // Replay from a checkpoint is replay from the beginning, for each kind of state.
    async fn check<O: Object>(world: &World, handle: &Handle<O>, name: &str) {
        let expected = handle.read(Vec::new, |state| state.digest()).await.expect("read");
        let upto = handle.checkpoint().await.expect("made");
        assert_eq!(handle.forget(upto).await.map(|forgotten| forgotten.earliest), Ok(upto), "{name}");
        let fresh = world.program().await.open::<O>(name).expect("opened");
        assert_eq!(fresh.read(Vec::new, |state| state.digest()).await, Ok(expected), "{name}");
    }
    run(async |world| {
        let program = world.program_with(options(0)).await;
        let list = List::<u64>::open(&program, "list").expect("opened");
        let multi = MultiMap::<u64, String>::open(&program, "multi").expect("opened");
        let counter = Counter::open(&program, "counter").expect("opened");
        let register = Register::<Vec<u8>>::open(&program, "register").expect("opened");
        let map = Map::<u64, u64>::open(&program, "map").expect("opened");
        for value in 0..40 {
            list.push(value).await.expect("pushed");
            multi.insert(value % 3, value.to_string()).await.expect("inserted");
            counter.add(value as i64).await.expect("added");
            register.write(vec![value as u8; 3]).await.expect("written");
            map.put(value, value).await.expect("put");
        }
        check(&world, list.handle(), "list").await;
        check(&world, multi.handle(), "multi").await;
        check(&world, counter.handle(), "counter").await;
        check(&world, register.handle(), "register").await;
        check(&world, map.handle(), "map").await;
    });
}

#[test]
fn programs_that_work_make_checkpoints_by_themselves_and_one_at_a_time() {
    run(async |world| {
        let (one, two) = (map(&world, 64).await, map(&world, 64).await);
        for round in 0..20 {
            put(&one, 20 * round..20 * round + 20).await;
            assert_eq!(one.len().await, two.len().await);
        }
        // What is under way is waited for.
        let mut made = Vec::new();
        for _ in 0..500 {
            made = one.handle().checkpoints().await.expect("read");
            if made.len() >= 4 {
                break;
            }
            world.env.sleep(Duration::from_millis(10)).await;
        }
        assert!((4..=7).contains(&made.len()), "400 calls, one checkpoint each 64 at the most: {made:?}");
        let program = world.program().await;
        one.handle().forget(LogPos(u64::MAX)).await.expect("forgotten");
        let fresh = Numbers::open(&program, "m").expect("opened");
        assert_eq!(fresh.entries().await, one.entries().await);
        assert!(entries(&program, StreamId::of_name("m")).await.len() < 200);
    });
}

#[test]
fn a_torn_checkpoint_is_not_read_and_the_next_one_trims_it() {
    run(async |world| {
        let map = map(&world, 0).await;
        put(&map, 0..100).await;
        let whole = map.handle().checkpoint().await.expect("made");
        let program = world.program().await;
        let (client, chunks) = (program.client(), [chunks_of(StreamId::of_name("m"))]);
        let before = entries(&program, chunks[0]).await.len();
        // A maker that crashed has left chunks of a state in between, and one that is still at work chunks of a later one.
        let of = |upto| ithaca_object::checkpoint::chunk::Of { object: StreamId::of_name("m"), id: 7, upto };
        let chunk = |upto| Chunk { of: of(upto), number: 0, data: Bytes::from_static(b"torn") }.encode();
        client.append_to(&chunks, chunk(LogPos(whole.0 + 1))).await.expect("appended");
        let open = client.append_to(&chunks, chunk(LogPos(1 << 40))).await.expect("appended").pos;
        let fresh = Numbers::open(&program, "m").expect("opened");
        assert_eq!(fresh.len().await, Ok(50));
        for round in 1..=3 {
            put(&map, 100 * round..100 * round + 10).await;
            map.handle().checkpoint().await.expect("made");
        }
        map.handle().forget(LogPos(u64::MAX)).await.expect("forgotten");
        let left = entries(&program, chunks[0]).await;
        assert!(left.contains(&open), "it may become whole: {left:?}");
        assert!(left.len() < 2 * before, "one checkpoint, and what is at work: {} of {before}", left.len());
        assert_eq!(Numbers::open(&world.program().await, "m").expect("opened").len().await, Ok(50));
    });
}

#[test]
fn what_is_pinned_or_leased_is_not_forgotten() {
    run(async |world| {
        let map = map(&world, 0).await;
        let mut made = Vec::new();
        for round in 0..4 {
            put(&map, 10 * round..10 * round + 10).await;
            made.push(map.handle().checkpoint().await.expect("made"));
        }
        let handle = map.handle();
        handle.pin("report", made[1]).await.expect("pinned");
        handle.lease("reader", made[2], Duration::from_secs(3600)).await.expect("leased");
        let newest = LogPos(u64::MAX);
        let forgotten = handle.forget(newest).await.expect("forgotten");
        assert_eq!((forgotten.earliest, forgotten.held_by.as_deref()), (made[1], Some("report")));
        assert_eq!(map.at(made[1]).len().await, Ok(20));
        assert_eq!(handle.let_go("report").await, Ok(true));
        assert_eq!(handle.let_go("report").await, Ok(false));
        let forgotten = handle.forget(newest).await.expect("forgotten");
        assert_eq!((forgotten.earliest, forgotten.held_by.as_deref()), (made[2], Some("reader")));
        let late = handle.pin("late", made[1]).await;
        assert!(matches!(late, Err(ObjectError::Hold { .. })), "{late:?}");
    });
}

#[test]
fn the_log_can_be_trimmed_by_position_up_to_a_checkpoint_that_was_asked_for() {
    run(async |world| {
        let here = map(&world, 0).await;
        put(&here, 0..100).await;
        let first = here.handle().checkpoint().await.expect("made");
        put(&here, 100..110).await;
        let second = here.handle().checkpoint().await.expect("made");
        here.handle().pin("report", second).await.expect("pinned");
        assert_eq!(here.handle().checkpoint().await, Ok(second));
        let program = world.program().await;
        let stored = entries(&program, catalog_of(StreamId::of_name("m"))).await;
        assert_eq!(here.handle().checkpoint().await, Ok(second));
        assert_eq!(entries(&program, catalog_of(StreamId::of_name("m"))).await, stored, "nothing is new");
        program.client().trim_prefix(second).await.expect("trimmed");

        // Whoever begins wants the last record's results; here it is gone.
        let fresh = map(&world, 0).await;
        assert_eq!(fresh.entries().await, here.entries().await);
        put(&here, 110..120).await;
        let fresh = map(&world, 0).await;
        assert_eq!(fresh.entries().await, here.entries().await);
        assert_eq!(fresh.at(second).len().await, Ok(50));
        let gone = fresh.at(first).len().await;
        assert!(matches!(gone, Err(ObjectError::Trimmed { .. })), "{gone:?}");
        put(&fresh, 120..130).await;
        fresh.handle().checkpoint().await.expect("made");
        let forgotten = fresh.handle().forget(LogPos(u64::MAX)).await.expect("forgotten");
        assert_eq!((forgotten.earliest, forgotten.held_by.as_deref()), (second, Some("report")));
        assert_eq!(here.entries().await, fresh.entries().await);
    });
}

#[test]
fn an_entry_of_two_objects_goes_when_both_have_forgotten_it() {
    run(async |world| {
        let program = world.program_with(options(0)).await;
        let (one, two) = (
            Numbers::open(&program, "one").expect("opened"),
            Numbers::open(&program, "two").expect("opened"),
        );
        for value in 0..20 {
            let both = async |tx: &Tx| -> Result<(), ObjectError> {
                one.within(tx).fast_put(value.to_string(), value).await?;
                two.within(tx).fast_put(value.to_string(), value).await.map(|_| ())
            };
            program.transact(&Default::default(), both).await.expect("committed");
        }
        let upto = one.handle().checkpoint().await.expect("made");
        one.handle().forget(upto).await.expect("forgotten");
        for name in ["one", "two"] {
            let fresh = Numbers::open(&world.program().await, name).expect("opened");
            assert_eq!(fresh.len().await, Ok(20), "{name}");
        }
        assert_eq!(entries(&program, StreamId::of_name("two")).await.len(), 20);
        let upto = two.handle().checkpoint().await.expect("made");
        two.handle().forget(upto).await.expect("forgotten");
        assert_eq!(entries(&program, StreamId::of_name("two")).await.len(), 0);
        let fresh = world.program().await.open::<MapState<String, u64>>("two").expect("opened");
        assert_eq!(fresh.read(Vec::new, |map| map.entries().len()).await, Ok(20));
    });
}

#[test]
fn an_object_that_has_few_of_the_logs_records_has_a_checkpoint_of_one_entry_soon() {
    // Each of its records is a read of the drive for whoever opens it.
    run(async |world| {
        let program = world.program().await;
        let maps: Vec<Numbers> =
            (0..72).map(|number| Numbers::open(&program, &format!("m{number}")).expect("opened")).collect();
        for value in 0..70 {
            for map in &maps {
                map.fast_put(format!("key {value}"), value).await.expect("put");
            }
        }
        for (number, map) in maps.iter().enumerate() {
            let mut made = Vec::new();
            while made.is_empty() {
                // What is under way is waited for.
                world.env.sleep(Duration::from_millis(1)).await;
                made = map.handle().checkpoints().await.expect("read");
            }
            assert_eq!(made.len(), 1, "not before its calls have twice as many bytes");
            let chunks = chunks_of(StreamId::of_name(&format!("m{number}")));
            assert_eq!(entries(&program, chunks).await.len(), 1, "without a directory");
        }
        maps[0].handle().forget(LogPos(u64::MAX)).await.expect("forgotten");
        let fresh = Numbers::open(&world.program().await, "m0").expect("opened");
        assert_eq!(fresh.entries().await, maps[0].entries().await);
        assert!(entries(&program, StreamId::of_name("m0")).await.len() < 10, "the rest is forgotten");
    });
}

#[test]
fn an_object_whose_records_follow_each_other_far_into_the_log_has_no_checkpoint_sooner() {
    // What lies below its first record is nothing that it has few of.
    run(async |world| {
        let program = world.program().await;
        let [earlier, late] = ["earlier", "late"].map(|name| Numbers::open(&program, name).expect("opened"));
        put(&earlier, 0..4_500).await;
        put(&late, 0..130).await;
        world.env.sleep(Duration::from_secs(1)).await;
        assert_eq!(late.handle().checkpoints().await, Ok(Vec::new()));
    });
}

#[test]
fn a_catalog_is_as_long_as_what_came_since_it_was_stored() {
    // Whoever opens an object reads its catalog.
    run(async |world| {
        let (here, lagging) = (map(&world, 0).await, map(&world, 0).await);
        put(&here, 0..10).await;
        let upto = here.handle().checkpoint().await.expect("made");
        assert_eq!(lagging.handle().checkpoints().await, Ok(vec![upto]));
        let program = world.program().await;
        let catalog = catalog_of(StreamId::of_name("m"));
        let mut lengths = Vec::new();
        for round in 0..100 {
            here.handle().pin(&format!("pin {round}"), upto).await.expect("pinned");
            assert_eq!(here.handle().let_go(&format!("pin {round}")).await, Ok(true));
            lengths.push(entries(&program, catalog).await.len());
        }
        here.handle().pin("last", upto).await.expect("pinned");
        assert!(lengths.iter().all(|len| *len < 64), "{lengths:?}");
        let fresh = map(&world, 0).await;
        for (who, map) in [("fresh", &fresh), ("lagging", &lagging)] {
            assert_eq!(map.handle().checkpoints().await, Ok(vec![upto]), "{who}");
            assert_eq!(map.handle().let_go("pin 99").await, Ok(false), "{who}");
            assert_eq!(map.handle().pin("mine", upto).await, Ok(()), "{who}");
            assert_eq!(map.handle().let_go("mine").await, Ok(true), "{who}");
        }
        assert_eq!(lagging.handle().let_go("last").await, Ok(true));
        assert_eq!(fresh.handle().let_go("last").await, Ok(false));
    });
}
