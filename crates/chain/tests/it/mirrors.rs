//! Mirrored links: a side that fails is given up and not believed later, and sides that a crash left different are made
//! equal.

use std::cell::Cell;
use std::rc::Rc;

use ithaca_chain::{Chain, ChainOptions, OpenError, SideState, check};
use ithaca_env::Env;
use ithaca_env::drive::Drive;
use ithaca_env::sim::{Death, DriveFault, Sim};

use crate::drives::{append, is_refused, tiny_drives};
use crate::model::Rng;
use crate::world::{MACHINE, Workload, World, identity, open_drives, open_named, small_options};

/// A mirrored link, and behind it a plain one.
pub const A: &str = "chain";
pub const B: &str = "chain-mirror";
const C: &str = "chain-c";

async fn mirrored(env: &Env) -> Vec<Vec<Drive>> {
    vec![vec![open_named(env, A).await, open_named(env, B).await], vec![open_named(env, C).await]]
}

fn states(chain: &Chain) -> Vec<(String, SideState)> {
    chain.stats().links.iter().map(|link| (link.drive.clone(), link.state)).collect()
}

fn fault(sim: &Sim, name: &str, fault: DriveFault) {
    let drive = sim.drive(MACHINE, name);
    sim.fault_drive(drive, fault);
}

async fn check_keys(chain: &Chain, keys: std::ops::Range<u64>) {
    for key in keys {
        let record = chain.read(key).await.expect("no damage").expect("it is there");
        assert_eq!(record.data, vec![key as u8; 8192], "key {key}");
    }
}

/// A chain whose mirrored link loses `B` in the middle of appends, with keys 0 to 29; then power is cut.
fn lose_b(seed: u64, options: &ChainOptions) -> World {
    let world = World::over(seed, &[A, B, C]);
    let env = world.sim.env(world.process);
    let over = options.clone();
    let (begun, may_go_on) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let (is_begun, go_on) = (Rc::clone(&begun), Rc::clone(&may_go_on));
    let done = Rc::new(Cell::new(false));
    let is_done = Rc::clone(&done);
    env.clone().spawn(async move {
        let drives = mirrored(&env).await;
        let chain = Chain::create(&env, drives, identity(), over).await.expect("created");
        append(&env, &chain, 0..10).await;
        is_begun.set(true);
        while !go_on.get() {
            env.sleep(std::time::Duration::from_micros(50)).await;
        }
        append(&env, &chain, 10..30).await;
        let stale: Vec<_> =
            states(&chain).into_iter().filter(|(_, state)| *state == SideState::Stale).collect();
        assert_eq!(stale, [(B.to_owned(), SideState::Stale)]);
        check_keys(&chain, 0..30).await;
        is_done.set(true);
    });
    world.sim.run_while(ithaca_env::Time::MAX, move |_| !begun.get()).expect("it gets there");
    // Whatever it is asked from now on: it cannot be told that it is stale.
    fault(&world.sim, B, DriveFault::FailWrites { count: u32::MAX });
    may_go_on.set(true);
    world.sim.run_while(ithaca_env::Time::MAX, move |_| !done.get()).expect("it ends");
    world.sim.end(world.process, Death::PowerCut);
    world.sim.restart(world.process);
    world
}

/// Whether the side that was left out is refused when the one that has everything is not there.
pub fn is_stale_side_refused(options: &ChainOptions) -> bool {
    let world = lose_b(1, options);
    let (env, options) = (world.sim.env(world.process), options.clone());
    world.sim.block_on(world.process, async move {
        let drives = open_drives(&env, &[B, C]).await;
        let opened = Chain::open(&env, drives, Some(&identity()), options).await;
        matches!(opened, Err(OpenError::DriveMissing { place: 1, of: 3, .. }))
    })
}

#[test]
fn a_side_that_was_left_out_of_writes_is_not_believed() {
    assert!(is_stale_side_refused(&tiny_drives()));
}

#[test]
fn a_link_serves_on_without_the_side_that_failed() {
    for given in [&[A, B, C][..], &[C, A]] {
        let world = lose_b(2, &tiny_drives());
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let drives = open_drives(&env, given).await;
            let (chain, recovered) =
                Chain::open(&env, drives, Some(&identity()), tiny_drives()).await.expect("A has everything");
            assert_eq!(recovered.damage, []);
            check_keys(&chain, 0..30).await;
            append(&env, &chain, 30..40).await;
            check_keys(&chain, 0..40).await;
            let found = states(&chain);
            assert_eq!(
                (found[0].1, found[1].1, found[2].1),
                (SideState::Live, SideState::Stale, SideState::Live)
            );
        });
    }
}

#[test]
fn without_any_side_of_a_link_nothing_is_written() {
    let world = World::over(3, &[A, B, C]);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let drives = mirrored(&env).await;
        let chain = Chain::create(&env, drives, identity(), tiny_drives()).await.expect("created");
        append(&env, &chain, 0..10).await;
        chain.close().await.expect("no fault");
        let is_missing = |error: &OpenError| matches!(error, OpenError::DriveMissing { .. });
        is_refused(&env, &open_drives(&env, &[C]).await, is_missing).await;
        is_refused(&env, &open_drives(&env, &[A, B]).await, is_missing).await;
        // B serves alone and remembers that A was not there.
        let (chain, _) =
            Chain::open(&env, open_drives(&env, &[B, C]).await, None, tiny_drives()).await.expect("B");
        append(&env, &chain, 10..20).await;
        chain.close().await.expect("no fault");
        is_refused(&env, &open_drives(&env, &[A, C]).await, is_missing).await;
        let report = check(open_drives(&env, &[B, C]).await).await.expect("it is well");
        assert_eq!((report.missing, report.damage.len()), (1, 0));
        let (chain, _) =
            Chain::open(&env, open_drives(&env, &[A, B, C]).await, None, tiny_drives()).await.expect("both");
        assert_eq!(states(&chain)[0], (A.to_owned(), SideState::Stale));
        check_keys(&chain, 0..20).await;
    });
}

#[test]
fn both_sides_changed_without_the_other_are_refused() {
    // Each was served alone: neither has everything, and nobody can tell which is right.
    let world = World::over(4, &[A, B]);
    let env = world.sim.env(world.process);
    world.sim.block_on(world.process, async move {
        let sides = open_drives(&env, &[A, B]).await;
        let chain =
            Chain::create(&env, vec![sides.clone()], identity(), tiny_drives()).await.expect("created");
        append(&env, &chain, 0..3).await;
        chain.close().await.expect("no fault");
        for side in &sides {
            let (chain, _) = Chain::open(&env, side, None, tiny_drives()).await.expect("one side is enough");
            chain.close().await.expect("no fault");
        }
        is_refused(&env, &sides, |error| matches!(error, OpenError::Disagree { .. })).await;
    });
}

/// Two lives on a mirrored link; the second is cut off at I/O point `point`. Then each side alone must have everything
/// that was acknowledged.
pub fn cut_at(point: u64, death: Death, alone: &'static str, options: &ChainOptions) -> bool {
    let mut world = World::over(point % 3, &[A, B]);
    let env = world.sim.env(world.process);
    let over = options.clone();
    world.sim.block_on(world.process, async move {
        let sides = vec![open_drives(&env, &[A, B]).await];
        let chain = Chain::create(&env, sides, identity(), over).await.expect("created");
        chain.close().await.expect("no fault");
    });
    assert!(world.live(options, Workload { rng: Rng(1), steps: 20, close: false, heavy: true }));
    world.sim.end(world.process, death);
    world.sim.restart(world.process);
    let start = world.sim.io_points(world.process);
    world.sim.end_at_io(world.process, start + point, death);
    let survived = world.live(options, Workload { rng: Rng(2), steps: 20, close: false, heavy: true });
    world.sim.end(world.process, death);
    world.sim.end_at_io(world.process, u64::MAX, death);
    // Both recover what the crash left; what that shows must stay when one of them is lost.
    assert!(world.live(options, Workload { rng: Rng(0), steps: 0, close: false, heavy: false }));
    world.sim.end(world.process, death);
    world.drives = vec![alone];
    world.audit(options);
    survived
}

#[test]
fn each_side_alone_has_what_was_shown_wherever_the_power_is_cut() {
    for alone in [A, B] {
        let mut point = 1;
        while !cut_at(point, Death::PowerCut, alone, &small_options()) {
            point += 2;
        }
        assert!(point > 50, "only {point} I/O points: the workload is too small to mean something");
    }
}

#[test]
fn nothing_acknowledged_is_lost_when_a_side_fails_as_the_chain_is_opened() {
    for seed in 0..60 {
        let mut world = World::over(seed, &[A, B, C]);
        let env = world.sim.env(world.process);
        world.sim.block_on(world.process, async move {
            let chain = Chain::create(&env, mirrored(&env).await, identity(), tiny_drives()).await;
            chain.expect("created").close().await.expect("no fault");
        });
        let (failing, stays) = if seed % 2 == 0 { (A, B) } else { (B, A) };
        // Its superblock, the fence or the first groups fail; power is cut a little later.
        world.sim.end_at_io(
            world.process,
            world.sim.io_points(world.process) + 10 + 7 * seed,
            Death::PowerCut,
        );
        fault(&world.sim, failing, DriveFault::FailWrites { count: 1 + (seed % 3) as u32 });
        world.live(&tiny_drives(), Workload { rng: Rng(seed), steps: 30, close: false, heavy: true });
        world.sim.end(world.process, Death::PowerCut);
        world.sim.end_at_io(world.process, u64::MAX, Death::PowerCut);
        world.drives = vec![C, stays];
        world.audit(&tiny_drives());
    }
}
