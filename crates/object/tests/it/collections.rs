//! Each collection does what its counterpart in memory does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ithaca_env::sim::Random;
use ithaca_log::pos::LogPos;
use ithaca_object::collections::{Counter, List, Map, MultiMap, Queue, Register, Set, SortedMap, Stack};

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
            if random.below(3) > 0 {
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
            match random.below(7) {
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
                _ => assert_eq!(stack.pop().await, Ok(model.pop_back())),
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
