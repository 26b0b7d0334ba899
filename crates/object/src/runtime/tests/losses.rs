//! Objects that have lost entries: they are refused, until somebody takes what is left.

use super::*;

type Numbers = Map<u64, u64>;

async fn numbers(world: &World) -> Numbers {
    Numbers::open(&world.program().await, "m").expect("opened")
}

/// Puts one value more, and gives its position.
async fn put(world: &World, key: u64) -> LogPos {
    numbers(world).await.fast_put(key, key).await.expect("put").expect("a position")
}

fn trimmed(pos: LogPos) -> ObjectError {
    ObjectError::Trimmed { object: "m".to_owned(), below: LogPos(pos.0 + 1) }
}

#[test]
fn an_entry_that_is_gone_is_missed_whatever_epoch_the_next_one_is_of() {
    // The sequencer of the next one had not granted it; then no layout says any more where the epoch of the next one began.
    run(async |mut world| {
        put(&world, 0).await;
        world = world.restart().await;
        put(&world, 1).await;
        let last_of_epoch = put(&world, 2).await;
        world = world.restart().await;
        put(&world, 3).await;
        let in_between = put(&world, 4).await;
        put(&world, 5).await;
        for _ in 0..70 {
            world = world.restart().await;
        }
        for lost in [in_between, last_of_epoch] {
            world.program().await.client().trim(lost).await.expect("trimmed");
            assert_eq!(numbers(&world).await.len().await, Err(trimmed(lost)));
        }
    });
}

#[test]
fn an_object_misses_its_own_entry_and_not_what_was_trimmed_of_others_before_its_sequencer_began() {
    // Every stream leaves out as many positions as the log had there.
    run(async |mut world| {
        put(&world, 0).await;
        let last_of_epoch = put(&world, 1).await;
        let client = world.program().await.inner.client.clone();
        let others = client.append("of no object".into()).await.expect("appended");
        client.trim(others).await.expect("trimmed");
        world = world.restart().await;
        let next = put(&world, 2).await;
        let entry = client.read(next).await.expect("read");
        let place = entry.place_in(StreamId::of_name("m")).expect("it is in the stream");
        assert_eq!((place.position.0, place.previous), (others.0 + 1, Some(last_of_epoch)));
        assert_eq!(numbers(&world).await.len().await, Ok(3));
        client.trim(last_of_epoch).await.expect("trimmed");
        assert_eq!(numbers(&world).await.len().await, Err(trimmed(last_of_epoch)));
    });
}

#[test]
fn what_is_left_of_an_object_is_one_from_its_checkpoint_on() {
    run(async |world| {
        put(&world, 0).await;
        let lost = put(&world, 1).await;
        let next = put(&world, 2).await;
        world.program().await.client().trim(lost).await.expect("trimmed");
        let map = numbers(&world).await;
        assert_eq!(map.handle().checkpoint().await, Err(trimmed(lost)));
        let upto = map.handle().checkpoint_what_is_left().await.expect("made");
        assert!(upto > next);
        for map in [map, numbers(&world).await] {
            assert_eq!(map.entries().await, Ok(vec![(0, 0), (2, 2)]));
            assert_eq!(map.handle().check_type().await, Ok(()));
            assert_eq!(map.at(next).len().await, Err(trimmed(lost)), "as of the past it is no state");
            assert_eq!(map.at(lost).len().await, Ok(1));
        }
        put(&world, 3).await;
        assert_eq!(numbers(&world).await.len().await, Ok(3));
    });
}

#[test]
fn a_checkpoint_that_has_what_is_gone_comes_before_what_is_left() {
    run(async |world| {
        let lost = put(&world, 0).await;
        put(&world, 1).await;
        let made = numbers(&world).await.handle().checkpoint().await.expect("made");
        let client = world.program().await.inner.client.clone();
        client.trim(lost).await.expect("trimmed");
        let map = numbers(&world).await;
        assert_eq!(map.handle().checkpoint_what_is_left().await, Ok(made));
        assert_eq!(map.len().await, Ok(2));
        // Nor is it given up with what came after it.
        let lost = put(&world, 2).await;
        put(&world, 3).await;
        client.trim(lost).await.expect("trimmed");
        let map = numbers(&world).await;
        assert_eq!(map.len().await, Err(trimmed(lost)));
        map.handle().checkpoint_what_is_left().await.expect("made");
        assert_eq!(map.entries().await, Ok(vec![(0, 0), (1, 1), (3, 3)]));
    });
}

#[test]
fn an_object_whose_catalog_or_checkpoint_is_gone_is_what_is_left_of_it() {
    run(async |world| {
        for key in 0..2 {
            put(&world, key).await;
            numbers(&world).await.handle().checkpoint().await.expect("made");
        }
        let client = world.program().await.inner.client.clone();
        let map = numbers(&world).await;
        map.handle().forget(LogPos(u64::MAX)).await.expect("forgotten");
        put(&world, 2).await;
        // All that is known of checkpoints but the last record of it, and the checkpoint.
        let tail = client.stream_tails(&[]).await.expect("it serves").tail;
        let stream = map.handle().stream();
        let entries =
            async |stream| client.read_stream(stream, LogPos(0)..tail, 1 << 20).await.expect("read").entries;
        let catalog = entries(crate::checkpoint::catalog_of(stream)).await;
        let chunks = entries(crate::checkpoint::chunks_of(stream)).await;
        for entry in chunks.iter().chain(&catalog[..catalog.len() - 1]) {
            client.trim(entry.pos).await.expect("trimmed");
        }
        let map = numbers(&world).await;
        assert!(map.len().await.is_err(), "it has lost two changes");
        map.handle().checkpoint_what_is_left().await.expect("made");
        assert_eq!(numbers(&world).await.entries().await, Ok(vec![(2, 2)]));
    });
}
