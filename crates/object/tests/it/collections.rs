//! Each collection does what its counterpart in memory does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ithaca_env::sim::Random;
use ithaca_env::task::gather;
use ithaca_log::pos::LogPos;
use ithaca_object::collections::{
    Counter, List, Map, MultiMap, Placed, Queue, Register, Replaced, Set, SortedMap, Stack,
};
use ithaca_object::limits::CALLS_MAX_COUNT;
use ithaca_object::{Begin, ObjectError, Tx, TxOptions};

use crate::worlds::run;

#[test]
fn maps_sets_and_multimaps_are_what_those_in_memory_are_now_and_before() {
    run(async |world| {
        let program = world.program().await;
        let map = Map::<u64, u64>::open(&program, "map").expect("opened");
        let set = Set::<u64>::open(&program, "set").expect("opened");
        let multi = MultiMap::<u64, u64>::open(&program, "multi").expect("opened");
        let (mut in_map, mut in_set) = (BTreeMap::new(), BTreeSet::new());
        let mut in_multi: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        let (mut random, mut moments) = (Random::new(7), Vec::new());
        for step in 0..150 {
            let (key, value) = (random.below(5), random.below(9));
            if step % 40 == 39 {
                set.clear().await.expect("cleared");
                multi.clear().await.expect("cleared");
                in_set.clear();
                in_multi.clear();
            } else if random.below(3) > 0 {
                assert_eq!(map.put(key, value).await, Ok(in_map.insert(key, value)));
                assert_eq!(set.insert(value).await, Ok(in_set.insert(value)));
                assert_eq!(
                    multi.insert(key, value).await,
                    Ok(in_multi.entry(key).or_default().insert(value))
                );
            } else {
                assert_eq!(map.remove(key).await, Ok(in_map.remove(&key)));
                assert_eq!(set.remove(value).await, Ok(in_set.remove(&value)));
                assert_eq!(multi.remove_all(key).await, Ok(in_multi.remove(&key).unwrap_or_default()));
            }
            if step % 10 == 0 {
                let tail = program.client().check().await.expect("it serves").tail;
                moments.push((tail, in_map.clone(), in_multi.clone()));
            }
        }
        assert_eq!(set.values().await, Ok(in_set.into_iter().collect()));
        for (tail, in_map, in_multi) in moments {
            let state = map.at(tail).state().await.expect("it is read");
            assert!(state.iter().eq(&in_map) && state.range(1..3).eq(in_map.range(1..3)));
            assert_eq!((state.get(&1), state.len()), (in_map.get(&1), in_map.len()));
            assert_eq!(map.at(tail).entries().await, Ok(in_map.into_iter().collect()));
            let first = in_multi.get(&0).cloned().unwrap_or_default();
            assert_eq!(multi.at(tail).get(&0).await, Ok(first));
            assert_eq!(multi.at(tail).entries().await, Ok(in_multi.into_iter().collect()));
        }
        map.put(9, 9).await.expect("put");
        let kept = map.state().await.expect("it is read");
        map.clear().await.expect("cleared");
        assert_eq!(map.is_empty().await, Ok(true));
        assert!(kept.contains_key(&9) && !kept.is_empty(), "a copy stays as it is");
    });
}

#[test]
fn ranges_of_a_sorted_map_are_in_order_and_within_their_ends() {
    run(async |world| {
        let program = world.program().await;
        let map = SortedMap::<u64, String>::open(&program, "sorted").expect("opened");
        for key in [5, 1, 9, 3, 7] {
            map.put(key, key.to_string()).await.expect("put");
        }
        let keys = async |found: Result<Vec<(u64, String)>, _>| {
            found.map(|found: Vec<(u64, String)>| found.into_iter().map(|(key, _)| key).collect::<Vec<_>>())
        };
        assert_eq!(keys(map.range(3..7, 10).await).await, Ok(vec![3, 5]));
        assert_eq!(keys(map.range(3..=7, 2).await).await, Ok(vec![3, 5]));
        assert_eq!(keys(map.range(.., 10).await).await, Ok(vec![1, 3, 5, 7, 9]));
        let (start, end) = (7, 3);
        assert_eq!(keys(map.range(start..end, 10).await).await, Ok(vec![]), "no panic");
        assert_eq!(map.first().await.expect("read").map(|(key, _)| key), Some(1));
        assert_eq!(map.last().await.expect("read").map(|(key, _)| key), Some(9));
    });
}

#[test]
fn lists_queues_and_stacks_are_what_those_in_memory_are_now_and_before() {
    run(async |world| {
        let program = world.program().await;
        let list = List::<u64>::open(&program, "list").expect("opened");
        let queue = Queue::<u64>::open(&program, "list").expect("opened");
        let stack = Stack::<u64>::open(&program, "list").expect("opened");
        let mut model: VecDeque<u64> = VecDeque::new();
        let (mut random, mut moments) = (Random::new(11), Vec::new());
        for step in 0..150 {
            let at = random.below(6) as usize;
            match random.below(if step % 20 == 19 { 8 } else { 7 }) {
                0 | 1 => {
                    list.push(step).await.expect("pushed");
                    model.push_back(step);
                }
                2 => {
                    let at = at.min(model.len());
                    assert_eq!(list.insert(at, step).await, Ok(at));
                    model.insert(at, step);
                }
                3 => {
                    let before = model.get_mut(at).map(|there| std::mem::replace(there, step));
                    assert_eq!(list.set(at, step).await, Ok(before));
                }
                4 => assert_eq!(list.remove(at).await, Ok(model.remove(at))),
                5 => assert_eq!(queue.pop().await, Ok(model.pop_front())),
                6 => assert_eq!(stack.pop().await, Ok(model.pop_back())),
                _ => {
                    queue.clear().await.expect("cleared");
                    model.clear();
                }
            }
            if step % 10 == 0 {
                let tail = program.client().check().await.expect("it serves").tail;
                moments.push((tail, model.clone()));
            }
        }
        for (tail, model) in moments {
            assert_eq!(list.at(tail).items().await, Ok(model.into_iter().collect()));
        }
        assert_eq!(queue.peek().await, Ok(model.front().copied()));
        assert_eq!(stack.peek().await, Ok(model.back().copied()));
    });
}

#[test]
fn registers_and_counters_hold_one_value() {
    run(async |world| {
        let program = world.program().await;
        let register = Register::<String>::open(&program, "register").expect("opened");
        assert_eq!(register.read().await, Ok(None));
        register.write("one".into()).await.expect("written");
        assert_eq!(register.replace(None).await, Ok(Some("one".into())));
        assert_eq!(register.at(LogPos(1)).read().await, Ok(Some("one".into())));
        let counter = Counter::open(&program, "counter").expect("opened");
        counter.add(i64::MAX).await.expect("added");
        assert_eq!(counter.add_and_get(1).await, Ok(i64::MIN), "it wraps around");
    });
}

#[test]
fn a_key_is_changed_only_if_it_is_as_known_whoever_else_changes_it() {
    run(async |world| {
        let program = world.program().await;
        let map = SortedMap::<u64, Option<u64>>::open(&program, "map").expect("opened");
        let Replaced::Done(Some(version)) = map.put_if_absent(1, None).await.expect("put") else {
            panic!("nothing was there")
        };
        let first = map.get_placed(&1).await.expect("read").expect("a value that is itself none is one");
        assert_eq!((first.value, LogPos(first.pos)), (None, version));
        assert_eq!(map.put_if_absent(1, Some(2)).await, Ok(Replaced::Differs(Some(first))));
        assert_eq!(map.remove_if(2, version).await, Ok(Replaced::Differs(None)));
        let Replaced::Done(Some(second)) = map.replace(1, version, Some(3)).await.expect("replaced") else {
            panic!("nobody has changed it")
        };
        let Replaced::Differs(Some(found)) = map.remove_if(1, version).await.expect("told") else {
            panic!("it is of a later version")
        };
        assert_eq!((found.value, LogPos(found.pos)), (Some(3), second));
        let before = program.client().check().await.expect("it serves").tail;
        assert!(matches!(map.remove_if(1, second).await, Ok(Replaced::Done(Some(_)))));
        assert_eq!((map.len().await, map.at(before).get(&1).await), (Ok(0), Ok(Some(Some(3)))));
    });
}

#[test]
fn of_many_that_put_a_key_where_there_is_none_one_does() {
    run(async |world| {
        let mut races = Vec::new();
        for program in 0..4u64 {
            let runtime = world.program().await;
            races.push(async move {
                let map = Map::<u64, u64>::open(&runtime, "map").expect("opened");
                let mut won = Vec::new();
                for key in 0..20 {
                    match map.put_if_absent(key, program).await.expect("told") {
                        Replaced::Done(_) => won.push(key),
                        Replaced::Differs(found) => {
                            assert!(found.expect("it is there").value != program, "it is another's");
                        }
                    }
                }
                // Each adds one to a number, and tries again if another was quicker.
                let counted = loop {
                    let Some(Placed { value, pos, .. }) = map.get_placed(&99).await.expect("read") else {
                        map.put_if_absent(99, 0).await.expect("told");
                        continue;
                    };
                    if let Replaced::Done(_) = map.replace(99, LogPos(pos), value + 1).await.expect("told") {
                        break value;
                    }
                };
                (program, won, counted)
            });
        }
        let done = gather(races, |_| false).await.into_iter();
        let done: Vec<_> = done.map(|done| done.expect("all are waited for")).collect();
        let map = Map::<u64, u64>::open(&world.program().await, "map").expect("opened");
        for (program, won, _) in &done {
            for key in won {
                assert_eq!(map.get(key).await, Ok(Some(*program)));
            }
        }
        assert_eq!(done.iter().map(|(_, won, _)| won.len()).sum::<usize>(), 20, "each key was put once");
        let counted: BTreeSet<u64> = done.iter().map(|(_, _, counted)| *counted).collect();
        assert_eq!((counted, map.get(&99).await), (BTreeSet::from([0, 1, 2, 3]), Ok(Some(4))));
    });
}

#[test]
fn a_map_of_other_keys_or_values_is_another_type() {
    run(async |world| {
        let (program, other) = (world.program().await, world.program().await);
        let map = Map::<u64, u64>::open(&program, "map").expect("opened");
        map.put(1, 10).await.expect("put");
        let names = Map::<String, u64>::open(&other, "map").expect("opened");
        let told = names.handle().check_type().await;
        assert!(matches!(&told, Err(ObjectError::OtherEntries { pos: LogPos(0), .. })), "{told:?}");
        let texts = Map::<u64, String>::open(&world.program().await, "map").expect("opened");
        assert!(matches!(texts.handle().check_type().await, Err(ObjectError::OtherEntries { .. })));
        map.remove(1).await.expect("removed");
        assert_eq!(texts.handle().check_type().await, Ok(()), "what it says of its values is in no call");
        assert!(matches!(names.handle().check_type().await, Err(ObjectError::OtherEntries { .. })));
        assert_eq!(map.handle().check_type().await, Ok(()));
    });
}

#[test]
fn several_keys_are_put_at_one_position_and_read_as_of_one_moment() {
    run(async |world| {
        let (program, other) = (world.program().await, world.program().await);
        let map = Map::<u64, u64>::open(&program, "map").expect("opened");
        let there = Map::<u64, u64>::open(&other, "map").expect("opened");
        assert_eq!(map.multi_put(Vec::new()).await, Ok(None), "nothing is to be put");
        let mut positions = Vec::new();
        for round in 0..5 {
            let puts = vec![(1, Some(round)), (2, Some(round)), (3, Some(9)), (3, None)];
            positions.push(map.multi_put(puts).await.expect("put").expect("a position"));
        }
        assert!(positions.windows(2).all(|two| two[0] < two[1]), "{positions:?}");
        assert_eq!(there.multi_get(&[2, 3, 1, 2]).await, Ok(vec![Some(4), None, Some(4), Some(4)]));
        for (round, pos) in (0..).zip(&positions) {
            let placed = there.at(LogPos(pos.0 + 1)).get_placed(&2).await.expect("read").expect("there");
            assert_eq!((placed.value, placed.pos), (round, pos.0));
            let before = there.at(*pos).multi_get(&[1, 2]).await.expect("read");
            assert_eq!(before, vec![round.checked_sub(1); 2], "all of it or nothing");
        }
        let many = (0..=CALLS_MAX_COUNT as u64).map(|key| (key, Some(0))).collect();
        assert!(matches!(map.multi_put(many).await, Err(ObjectError::Full(_))));
        assert_eq!(there.len().await, Ok(2), "nothing of it is there");
    });
}

#[test]
fn what_depends_on_a_version_is_decided_within_a_transaction() {
    run(async |world| {
        let program = world.program().await;
        let map = Map::<u64, u64>::open(&program, "map").expect("opened");
        map.put(1, 10).await.expect("put");
        let before = program.client().check().await.expect("it serves").tail;
        let body = async |tx: &Tx| -> Result<(), ObjectError> {
            let inside = map.within(tx);
            // The version of its own put here is not the one that it will have.
            assert_eq!(inside.put_if_absent(2, 20).await, Ok(Replaced::Done(None)));
            let own = inside.get_placed(&2).await?.expect("it has put it");
            assert_eq!(inside.put_if_absent(2, 21).await, Ok(Replaced::Differs(Some(own.clone()))));
            assert_eq!(inside.replace(2, LogPos(own.pos), 22).await, Ok(Replaced::Done(None)));
            assert_eq!(inside.remove_if(1, before).await.map(|told| told != Replaced::Done(None)), Ok(true));
            assert_eq!(inside.multi_put(vec![(3, Some(30)), (1, None)]).await, Ok(None));
            assert_eq!(inside.multi_get(&[1, 2, 3]).await, Ok(vec![None, Some(22), Some(30)]));
            Ok(())
        };
        program.transact(&TxOptions::default(), body).await.expect("it commits");
        assert_eq!(map.entries().await, Ok(vec![(2, 22), (3, 30)]));
        // Each key that was read is one that it depends on.
        let tx =
            program.begin(&TxOptions { begin: Begin::Newest, ..TxOptions::default() }).await.expect("begun");
        let read = map.within(&tx).multi_get(&[2, 3]).await.expect("read");
        map.within(&tx).fast_put(4, 40).await.expect("put");
        map.fast_put(3, 31).await.expect("put");
        assert_eq!(read, vec![Some(22), Some(30)]);
        assert!(matches!(tx.commit().await, Err(ObjectError::Aborted(_))), "another has changed the second");
    });
}
