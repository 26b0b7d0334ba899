//! What is committed is serializable and the same for everybody, whether or not a program hosts what was read.

use std::cell::Cell;
use std::rc::Rc;

use ithaca_env::sim::{Dice, Domain};
use ithaca_env::task::gather;
use ithaca_log::pos::StreamId;

use super::Program;
use super::record::Write;
use crate::fig::testbed::{Setup, Testbed};

const OBJECTS: u64 = 4;
const PROGRAMS: usize = 3;
const ROUNDS: u64 = 12;

fn object(number: u64) -> StreamId {
    StreamId::of_name(&format!("object {number}"))
}

/// The objects that a program hosts: all, or every second one from its number on.
fn hosted(number: usize, is_shared: bool) -> Vec<StreamId> {
    let step = if is_shared { 2 } else { 1 };
    (number as u64 % step..OBJECTS).step_by(step as usize).map(object).collect()
}

/// Moves ones from object to object under one key; the sum of all never changes if what was read still holds.
async fn increments(mut program: Program, seed: u64, number: usize, committed: Rc<Cell<u64>>) {
    let is_shared = program.is_shared;
    let hosts = hosted(number, is_shared);
    for round in 0..ROUNDS {
        let drawn = Dice::new(seed).below(Domain::User(number as u32), round, 0, hosts.len() as u64);
        let own = hosts[drawn as usize];
        let other = object(Dice::new(seed).below(Domain::User(number as u32), round, 1, OBJECTS));
        let body = |program: &Program| {
            let count = Write { stream: own, key: 0, value: program.get(own, 0).unwrap_or(0) + 1 };
            // A note for somebody who may not host what was read.
            let key = 100 + number as u64 * ROUNDS + round;
            vec![count, Write { stream: other, key, value: count.value }]
        };
        if program.transact(&[own], body).await.expect("a cluster without faults appends") {
            committed.set(committed.get() + 1);
        }
    }
}

fn history(seed: u64, is_shared: bool) {
    let testbed = Testbed::new(&Setup { seed, ..Setup::steady(4, 1, PROGRAMS + 1) });
    let (process, client) = testbed.client(0);
    let env = testbed.sim.env(process);
    testbed.sim.block_on(process, async move {
        let committed = Rc::new(Cell::new(0));
        let programs = (0..PROGRAMS).map(|number| {
            let program = Program::new(&env, client.clone(), hosted(number, is_shared), is_shared);
            increments(program, seed, number, Rc::clone(&committed))
        });
        gather(programs.collect(), |()| false).await;
        let mut all = Program::new(&env, client.clone(), (0..OBJECTS).map(object), is_shared);
        all.sync().await.expect("readable");
        let counts = (0..OBJECTS).filter_map(|number| all.get(object(number), 0));
        assert_eq!(
            counts.sum::<u64>(),
            committed.get(),
            "seed {seed}: an update was lost, or an aborted one kept"
        );
        for number in 0..PROGRAMS {
            let mut some = Program::new(&env, client.clone(), hosted(number, is_shared), is_shared);
            some.sync().await.expect("readable");
            for stream in hosted(number, is_shared) {
                assert_eq!(some.hosted[&stream].state, all.hosted[&stream].state, "seed {seed}: {stream}");
            }
        }
    });
}

#[test]
fn no_update_is_lost_where_everybody_hosts_everything() {
    (0..6).for_each(|seed| history(seed, false));
}

#[test]
fn whoever_does_not_host_what_was_read_comes_to_the_same_by_decisions() {
    (0..6).for_each(|seed| history(seed, true));
}

#[test]
fn a_commit_without_a_decision_is_decided_by_whoever_needs_it() {
    // A program that dies between its two records must not hold up all who meet the first.
    for is_stale in [false, true] {
        let testbed = Testbed::new(&Setup::steady(4, 1, 1));
        let (process, client) = testbed.client(0);
        let env = testbed.sim.env(process);
        testbed.sim.block_on(process, async move {
            let (read, written) = (object(0), object(1));
            let write = |stream, value| vec![Write { stream, key: 0, value }];
            let mut dies = Program::new(&env, client.clone(), [read], true);
            dies.sync().await.expect("readable");
            if is_stale {
                let mut other = Program::new(&env, client.clone(), [read], true);
                assert!(other.transact(&[read], |_| write(read, 1)).await.expect("appended"));
            }
            dies.append(&[read], |_| write(written, 7)).await.expect("appended");
            let mut needs = Program::new(&env, client.clone(), [written], true);
            needs.sync().await.expect("readable");
            assert_eq!(needs.get(written, 0), (!is_stale).then_some(7));
            assert_eq!(needs.orphans(), 1);
            // The decision is there for the next one.
            let mut next = Program::new(&env, client, [written], true);
            next.sync().await.expect("readable");
            assert_eq!((next.get(written, 0), next.orphans()), ((!is_stale).then_some(7), 0));
        });
    }
}
