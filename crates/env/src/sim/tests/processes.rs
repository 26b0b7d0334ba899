//! Time, tasks, lives and clocks.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use super::machine;
use crate::sim::{Death, Sim, SimOptions, Stopped};
use crate::{Env, Time};

const MS: Duration = Duration::from_millis(1);

/// A process that draws random numbers, sleeps and uses a drive and a connection to itself.
async fn busy(env: Env) {
    let drive = env.open_drive(super::created("log", 64)).await.expect("it is created");
    let listener = env.listen("127.0.0.1:0".parse().expect("an address")).expect("a free port");
    let mut caller = env.connect(listener.local_addr()).await.expect("it listens");
    let called = listener.accept().await.expect("a caller");
    let mut buf = bytes::BytesMut::new();
    for round in 0..20u64 {
        env.sleep(Duration::from_micros(env.random_u64() % 500)).await;
        let data = super::block(round as u8);
        drive.write(round * 4096, data.clone(), crate::drive::Durability::Durable).await.expect("no fault");
        called.writer.push_shared(data);
        while buf.len() < 4096 * (round as usize + 1) {
            caller.reader.read(&mut buf).await.expect("no fault");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_seed_another() {
    let run = |seed| {
        let sim = Sim::with_options(seed, SimOptions { readable_trace: true, ..SimOptions::default() });
        let node = sim.process("node", machine(1));
        sim.start(node, busy);
        sim.at(Time::ZERO + 3 * MS, move |sim| sim.restart(node));
        sim.run_for(100 * MS);
        assert!(sim.events() > 100, "{} events", sim.events());
        (sim.trace_hash(), sim.trace_lines())
    };
    let first = run(1);
    assert_eq!(first, run(1));
    assert_ne!(first.0, run(2).0);
}

#[test]
fn timers_fire_in_their_order_and_time_jumps_to_them() {
    let sim = Sim::new(1);
    let node = sim.process("node", machine(1));
    let seen = Rc::new(RefCell::new(Vec::new()));
    for ms in [5u32, 1, 3] {
        let (env, seen) = (sim.env(node), Rc::clone(&seen));
        sim.env(node).spawn(async move {
            env.sleep(ms * MS).await;
            seen.borrow_mut().push(ms);
        });
    }
    sim.run_until(Time::ZERO + 10 * MS);
    assert_eq!((seen.take(), sim.now()), (vec![1, 3, 5], Time::ZERO + 10 * MS));
}

#[test]
fn a_timeout_that_is_not_reached_leaves_nothing_to_happen() {
    let sim = Sim::new(1);
    let node = sim.process("node", machine(1));
    let env = sim.env(node);
    sim.block_on(node, async move { env.timeout(3_600_000 * MS, env.sleep(MS)).await }).expect("in time");
    assert!(sim.now() < Time::ZERO + 2 * MS);
    assert_eq!(sim.run_while(Time::MAX, |_| true), Err(Stopped::Idle { at: sim.now() }));
}

#[test]
fn a_crash_drops_the_tasks_and_a_restart_runs_main_again() {
    let sim = Sim::new(1);
    let node = sim.process("node", machine(1));
    let lives = Rc::new(RefCell::new(0));
    let counted = Rc::clone(&lives);
    sim.start(node, move |env| {
        *counted.borrow_mut() += 1;
        async move { env.sleep(1000 * MS).await }
    });
    sim.run_for(MS);
    sim.crash(node);
    assert!(!sim.is_up(node));
    sim.restart(node);
    sim.run_for(MS);
    assert_eq!(*lives.borrow(), 2);
}

#[test]
fn waiting_for_a_process_that_ends_is_an_error_and_not_a_hang() {
    let sim = Sim::new(1);
    let node = sim.process("node", machine(1));
    sim.at(Time::ZERO + MS, move |sim| sim.kill(node));
    let ended = sim.try_block_on(node, Time::MAX, std::future::pending::<()>());
    assert_eq!(ended, Err(Stopped::Ended { at: Time::ZERO + MS }));
}

#[test]
fn a_paused_process_wakes_late_with_a_clock_that_ran_on() {
    let sim = Sim::new(1);
    let node = sim.process("node", machine(1));
    let env = sim.env(node);
    sim.at(Time::ZERO + MS, move |sim| sim.pause(node));
    sim.at(Time::ZERO + 500 * MS, move |sim| sim.resume(node));
    let woke = sim.block_on(node, async move {
        env.sleep(2 * MS).await;
        env.now()
    });
    assert!(woke > Time::ZERO + 499 * MS, "woke at {woke}");
}

#[test]
fn a_slow_processor_handles_one_wake_after_the_other() {
    let sim = Sim::new(1);
    let node = sim.process("node", machine(1));
    sim.set_cpu_per_wake(node, MS);
    for _ in 0..10 {
        let env = sim.env(node);
        sim.env(node).spawn(async move { env.sleep(MS).await });
    }
    let env = sim.env(node);
    let done = sim.block_on(node, async move {
        env.sleep(MS).await;
        env.now()
    });
    assert!(done > Time::ZERO + 10 * MS, "eleven wakes were handled by {done}");
}

#[test]
fn clocks_drift_within_the_bound_and_a_date_may_jump() {
    let sim = Sim::with_options(1, SimOptions { clock_drift_ppm: 0, ..SimOptions::default() });
    let node = sim.process("node", machine(1));
    sim.set_clock_rate(node, 500);
    let env = sim.env(node);
    let date = env.wall_clock_ms();
    sim.jump_wall_clock(node, -5000);
    assert_eq!(env.wall_clock_ms(), date - 5000);
    sim.run_until(Time(1_000_000_000));
    assert_eq!(env.now(), Time(1_000_500_000));
}

#[test]
fn what_an_ended_process_still_does_has_no_effect() {
    let sim = Sim::new(1);
    let node = sim.process("node", machine(1));
    let env = sim.env(node);
    sim.end(node, Death::Kill);
    let ran = Rc::new(RefCell::new(false));
    let seen = Rc::clone(&ran);
    env.spawn(async move { *seen.borrow_mut() = true });
    sim.run_for(MS);
    assert!(!*ran.borrow());
}
