//! Being told of an object's changes.

use std::time::Duration;

use ithaca_object::checkpoint::Policy;
use ithaca_object::collections::{Counter, Map, MapState};
use ithaca_object::{LogPos, ObjectError, RuntimeOptions, TxOptions};

use crate::worlds::run;

#[test]
fn a_watch_is_told_of_each_change_in_order_while_it_is_made() {
    // One that looks at what is newest leaves out what came and went between two looks.
    run(async |world| {
        const CHANGES: i64 = 300;
        let (writer, reader) = (world.program().await, world.program().await);
        let counter = Counter::open(&writer, "c").expect("opened");
        let writing = world.env.spawn(async move {
            for _ in 0..CHANGES {
                counter.add(1).await.expect("added");
            }
        });
        let counter = Counter::open(&reader, "c").expect("opened");
        let mut watch = counter.handle().watch(LogPos(0)).expect("its state is here");
        for change in 1..=CHANGES {
            let snapshot = watch.next().await.expect("told");
            assert_eq!(counter.at(snapshot).get().await, Ok(change));
        }
        writing.join().await.expect("it ended");
        let more = world.env.timeout(Duration::from_millis(20), watch.next()).await;
        assert!(more.is_err(), "nothing more was changed");
    });
}

#[test]
fn what_has_piled_up_is_looked_through_in_order() {
    // Once from what is known to what is newest: a read at each snapshot goes back from the newest every time.
    run(async |world| {
        let (writer, reader) = (world.program().await, world.program().await);
        let map = Map::<u64, u64>::open(&writer, "m").expect("opened");
        for value in 0..100 {
            map.fast_put(value % 7, value).await.expect("put");
        }
        let seen = Map::<u64, u64>::open(&reader, "m").expect("opened");
        let mut watch = seen.handle().watch(LogPos(0)).expect("its state is here");
        let known = watch.next().await.expect("told");
        let mut looked = Vec::new();
        let values = |state: &MapState<u64, u64>| -> Vec<u64> {
            state.entries().iter().map(|(_, placed)| placed.value).collect()
        };
        watch.look_through(|snapshot, state| looked.push((snapshot, values(state)))).await.expect("told");
        assert_eq!(looked.len(), 99, "all but the one that is known");
        assert!(looked[0].0 > known && looked.windows(2).all(|two| two[0].0 < two[1].0));
        for (snapshot, values_then) in looked {
            let at = seen.at(snapshot).state().await.expect("in memory");
            assert_eq!(values(&at), values_then, "{snapshot}");
        }
        assert_eq!(seen.get(&1).await, Ok(Some(99)), "the state is what it was");
        let more = world.env.timeout(Duration::from_millis(20), watch.look_through(|_, _| {})).await;
        assert!(more.is_err(), "nothing more was changed");
    });
}

#[test]
fn a_watch_goes_on_from_where_another_one_ended() {
    run(async |world| {
        let program = world.program().await;
        let map = Map::<String, u64>::open(&program, "m").expect("opened");
        for value in 0..3 {
            map.fast_put("a".into(), value).await.expect("put");
        }
        let mut first = map.handle().watch(LogPos(0)).expect("its state is here");
        let known = first.next().await.expect("told");
        drop(first);
        let mut second = map.handle().watch(known).expect("its state is here");
        for value in 1..3 {
            let snapshot = second.next().await.expect("told");
            assert_eq!(map.at(snapshot).get(&"a".into()).await, Ok(Some(value)));
        }
    });
}

#[test]
fn a_change_of_two_objects_is_one_snapshot_of_both() {
    run(async |world| {
        let program = world.program().await;
        let (from, to) = (Counter::open(&program, "from"), Counter::open(&program, "to"));
        let (from, to) = (from.expect("opened"), to.expect("opened"));
        let body = async |tx: &ithaca_object::Tx| -> Result<(), ObjectError> {
            from.within(tx).add(-5).await?;
            to.within(tx).add(5).await
        };
        program.transact(&TxOptions::default(), body).await.expect("committed");
        let mut watches = [&from, &to].map(|it| it.handle().watch(LogPos(0)).expect("its state is here"));
        let [one, other] = &mut watches;
        let snapshot = one.next().await.expect("told");
        assert_eq!(other.next().await, Ok(snapshot));
        assert_eq!((from.at(snapshot).get().await, to.at(snapshot).get().await), (Ok(-5), Ok(5)));
    });
}

#[test]
fn what_lies_below_a_checkpoint_is_one_change() {
    // A watch that waited for changes that nobody has in memory would wait for ever.
    run(async |world| {
        let program =
            world.program_with(RuntimeOptions { checkpoints: Policy::NEVER, ..RuntimeOptions::default() });
        let counter = Counter::open(&program.await, "c").expect("opened");
        for _ in 0..4 {
            counter.add(1).await.expect("added");
        }
        let upto = counter.handle().checkpoint().await.expect("made");
        counter.add(1).await.expect("added");
        let fresh = Counter::open(&world.program().await, "c").expect("opened");
        assert_eq!(fresh.get().await, Ok(5));
        let mut watch = fresh.handle().watch(LogPos(1)).expect("its state is here");
        assert_eq!(watch.next().await, Ok(upto));
        assert_eq!(fresh.at(upto).get().await, Ok(4));
        let snapshot = watch.next().await.expect("told");
        assert_eq!(fresh.at(snapshot).get().await, Ok(5));
    });
}

#[test]
fn an_object_whose_state_is_at_a_node_cannot_be_watched() {
    run(async |world| {
        let map = Map::<String, u64>::open_remote(&world.program().await, "m").expect("opened");
        let refused = map.handle().watch(LogPos(0)).err();
        assert!(matches!(refused, Some(ObjectError::OnlyLocal { .. })), "{refused:?}");
    });
}
