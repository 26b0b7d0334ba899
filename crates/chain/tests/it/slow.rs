//! Sides of a mirrored link that hang or are far slower than another: the log goes on without them.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use ithaca_chain::{Chain, ChainOptions, Cleaning, SideState};
use ithaca_env::Time;
use ithaca_env::drive::Drive;
use ithaca_env::sim::DriveFault;

use crate::drives::{append, tiny_drives};
use crate::mirrors::{A, B, check_keys, closed_pair, fault, states};
use crate::world::{World, identity, open_drives, open_named};

const SPAN: Duration = Duration::from_secs(60);

/// What came of a mirrored link whose sides met faults between keys 0 to 9 and keys 10 to 2009.
struct Outcome {
    world: World,
    states: Vec<SideState>,
    took: Duration,
}

/// Appends keys 0 to 9, lets `faults` come, then appends and reads keys 10 to 2009.
fn work_beside(faults: &[(&'static str, DriveFault)], options: ChainOptions) -> Outcome {
    let world = World::over(20, &[A, B]);
    let env = world.sim.env(world.process);
    let (begun, done) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(None)));
    let (is_begun, is_done) = (Rc::clone(&begun), Rc::clone(&done));
    env.clone().spawn(async move {
        let sides: Vec<Drive> = vec![open_named(&env, A).await, open_named(&env, B).await];
        let chain = Chain::create(&env, vec![sides], identity(), options).await.expect("created");
        append(&env, &chain, 0..10).await;
        is_begun.set(true);
        env.sleep(Duration::from_millis(1)).await;
        let began = env.now();
        for first in (10..2010).step_by(10) {
            append(&env, &chain, first..first + 10).await;
            check_keys(&chain, first..first + 1).await;
        }
        let took = env.now().since(began);
        is_done.set(Some((states(&chain).into_iter().map(|(_, state)| state).collect(), took)));
    });
    world.sim.run_while(Time::MAX, move |_| !begun.get()).expect("it gets there");
    faults.iter().for_each(|(name, it)| fault(&world.sim, name, *it));
    let seen = Rc::clone(&done);
    world
        .sim
        .run_while(Time::MAX, move |_| {
            let outcome = seen.take();
            let is_over = outcome.is_some();
            seen.set(outcome);
            !is_over
        })
        .expect("it ends");
    let (states, took) = done.take().expect("it ended");
    Outcome { world, states, took }
}

fn large() -> ChainOptions {
    ChainOptions { capacity_bytes: 64 << 20, grow_bytes: 8 << 20, tail_cache_bytes: 0, ..tiny_drives() }
}

#[test]
fn the_log_goes_on_without_a_side_that_hangs() {
    for hangs in [A, B] {
        let outcome = work_beside(&[(hangs, DriveFault::Stuck { span: SPAN })], large());
        let stale = [hangs == A, hangs == B]
            .map(|is_stale| if is_stale { SideState::Stale } else { SideState::Live });
        assert_eq!(outcome.states, stale);
        assert!(outcome.took < SPAN, "it waited for the side: {:?}", outcome.took);
        // The other one has everything.
        let world = outcome.world;
        world.sim.end(world.process, ithaca_env::sim::Death::PowerCut);
        world.sim.restart(world.process);
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let alone = if hangs == A { B } else { A };
            let drives = open_drives(&env, &[alone]).await;
            let (chain, _) = Chain::open(&env, drives, None, large()).await.expect("it is live");
            check_keys(&chain, 0..2010).await;
        });
    }
}

#[test]
fn sides_that_all_hang_are_waited_for() {
    let stuck = DriveFault::Stuck { span: SPAN };
    let outcome = work_beside(&[(A, stuck), (B, stuck)], large());
    assert_eq!(outcome.states, [SideState::Live, SideState::Live]);
    assert!(outcome.took >= SPAN);
}

#[test]
fn a_side_that_is_far_slower_than_the_other_is_given_up_unless_that_is_wanted() {
    let slow = [(B, DriveFault::Slow { percent: 100_000, span: Duration::from_secs(600) })];
    let outcome = work_beside(&slow, large());
    assert_eq!(outcome.states, [SideState::Live, SideState::Stale]);
    let outcome = work_beside(&slow, ChainOptions { slow_side_factor: 0, ..large() });
    assert_eq!(outcome.states, [SideState::Live, SideState::Live]);
}

/// Two mirrored links; the log has gone on to the second one, and the first is read only.
#[test]
fn sides_that_nothing_needs_sleep_and_are_woken_by_load_by_harm_and_by_writes() {
    let world = World::over(21, &[A, B]);
    let env = world.sim.env(world.process);
    let (begun, is_read) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let (is_begun, may_go_on) = (Rc::clone(&begun), Rc::clone(&is_read));
    let done = Rc::new(Cell::new(false));
    let is_done = Rc::clone(&done);
    env.clone().spawn(async move {
        // A cleaner would read what nobody is to read.
        let cleaning = Cleaning::Off;
        let options = ChainOptions { sleep_after: Duration::from_secs(10), cleaning, ..tiny_drives() };
        let options =
            ChainOptions { tail_cache_bytes: 0, capacity_bytes: (64 << 10) + 8 * (128 << 10), ..options };
        let first = vec![open_named(&env, A).await, open_named(&env, B).await];
        let second = vec![open_named(&env, "c").await, open_named(&env, "d").await];
        let chain = Chain::create(&env, vec![first, second], identity(), options).await.expect("created");
        append(&env, &chain, 0..100).await;
        // When it goes on to the second link depends on how fast files grow.
        let mut next = 100;
        while !chain.stats().links[2].is_tail {
            append(&env, &chain, next..next + 1).await;
            next += 1;
        }
        let asleep = || -> Vec<bool> { chain.stats().links.iter().map(|link| link.is_asleep).collect() };
        assert_eq!(asleep(), [false; 4]);
        env.sleep(Duration::from_secs(25)).await;
        assert_eq!(asleep(), [false, true, false, true], "one side of each link is enough");
        check_keys(&chain, 0..5).await;
        assert_eq!(
            asleep(),
            [false, true, false, true],
            "a read now and then is served by the one that is awake"
        );
        append(&env, &chain, next..next + 1).await;
        assert_eq!(asleep(), [false, true, false, false], "the log is written to the second link");
        let reads: Vec<_> = (0..40)
            .map(|key| {
                let chain = chain.clone();
                env.spawn(async move { check_keys(&chain, key % 10..key % 10 + 1).await })
            })
            .collect();
        for read in reads {
            read.join().await.expect("it ends");
        }
        assert_eq!(asleep()[..2], [false, false], "many reads need both sides");
        env.sleep(Duration::from_secs(25)).await;
        assert_eq!(asleep()[..2], [false, true]);
        is_begun.set(true);
        while !may_go_on.get() {
            env.sleep(Duration::from_millis(1)).await;
        }
        check_keys(&chain, 0..1).await;
        assert_eq!(asleep()[..2], [false, false], "what one cannot read is read from the other");
        chain.close().await.expect("no fault");
        is_done.set(true);
    });
    world.sim.run_while(Time::MAX, move |_| !begun.get()).expect("it gets there");
    fault(&world.sim, A, DriveFault::FailReads { count: 1 });
    is_read.set(true);
    world.sim.run_while(Time::MAX, move |_| !done.get()).expect("it ends");
}

#[test]
fn a_side_that_hangs_while_it_is_scrubbed_is_not_given_up_for_that() {
    // Nothing is written meanwhile, and the other side answers what is read.
    let world = closed_pair(23);
    let env = world.sim.env(world.process);
    let chain = world.sim.block_on(world.process, async move {
        let drives = open_drives(&env, &[A, B]).await;
        let (chain, _) = Chain::open(&env, drives, None, large()).await.expect("it opens");
        env.sleep(Duration::from_secs(1)).await;
        chain
    });
    for hangs in [A, B] {
        fault(&world.sim, hangs, DriveFault::Stuck { span: Duration::from_secs(12) });
        let (env, chain) = (world.sim.env(world.process), chain.clone());
        world.sim.block_on(world.process, async move {
            let scrubbed = chain.clone();
            let scrubbing = env.spawn(async move { scrubbed.scrub().await });
            for _ in 0..200 {
                env.sleep(Duration::from_millis(100)).await;
                check_keys(&chain, 40..41).await;
            }
            scrubbing.join().await.expect("it ends").expect("it runs");
            let found: Vec<SideState> = states(&chain).into_iter().map(|(_, state)| state).collect();
            assert_eq!(found, [SideState::Live, SideState::Live], "{hangs} hung");
            let stats = chain.stats();
            assert_eq!((stats.repaired, stats.damage), (0, Vec::new()));
        });
    }
}
