//! Crash states: what a power cut at some moment of a workload may leave of the drive, one state after the other, each recovered and
//! looked at.
//!
//! ```text
//!   workload ──moment──►──moment──►──moment──►      no fault of its own; moments are I/O points
//!                │          │          └─ writes in doubt: every subset, and torn ones
//!                │          └─ ...
//!                └─ a world of its own for each state: open, look, power cut, open, look
//! ```
//!
//! The workload and what is looked for are those of the scenario `volume`: transactions of several writers, plain writes with and
//! without FUA, flushes, blocks given up, names, cleaning. Of each state it is asked that everything is there that was durable by
//! the volume's own word, that what is there is a prefix in the order of commits, each of them whole, and that a second open finds what
//! the first one found. What was read meanwhile is the scenario's matter.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use ithaca_env::sim::{Content, Death, Doubt, DriveId, Kept, Plan, ProcessId, Random, Shape, Sim};
use ithaca_env::{Env, Time};
use ithaca_volume::{Planted, VolumeOptions};

use super::truth::Truth;
use super::workers::{Shared, look};
use super::{DRIVE, PATIENCE, RESTART, VolumeScenario, open, serve, volume_options};
use crate::sim::scenario::{Scenario, panicked, world_of};
use crate::sim::workload::machine;

/// Moments of one workload at the most, so that many workloads have their turn.
const MOMENTS_MAX: u32 = 24;
/// I/O points from one moment to the next at the most.
const STEP_MAX: u64 = 40;
/// Up to so many requests in doubt all their subsets are tried.
const ALL_SUBSETS_MAX: usize = 4;
/// Subsets of more than that, and torn states of each kind.
const SUBSETS: usize = 16;
const TORN: usize = 6;
/// One recovery of so many is cut off itself.
const INTERRUPTED_ONE_OF: u64 = 3;
/// Within so many I/O points of its own.
const INTERRUPTED_WITHIN: u64 = 40;

/// How much was looked at, and the first thing that was wrong.
#[derive(Debug, Default)]
pub struct Explored {
    /// States that were recovered and looked at.
    pub states: u64,
    /// Workloads.
    pub workloads: u64,
    /// Moments at which power was cut.
    pub moments: u64,
    /// Most requests that were in doubt at one moment.
    pub in_doubt_max: usize,
    /// States in which sectors of a block are new and others old.
    pub torn: u64,
    /// States without something that was acknowledged and not durable.
    pub lost: u64,
    /// States with something that nobody had been told of.
    pub unasked: u64,
    /// Recoveries that were cut off and done again.
    pub interrupted: u64,
    /// Segments that were cleaned by the workloads, and blocks that they gave up.
    pub cleaned: u64,
    pub discarded: u64,
    /// The seed of the workload that failed, and what was wrong.
    pub failure: Option<(u64, String)>,
}

/// Looks at `states` crash states of workloads with the seeds from `first` on, or at those before the first that is wrong.
pub fn explore(first: u64, states: u64, planted: Planted) -> Explored {
    let mut explored = Explored::default();
    for seed in first.. {
        let explores = AssertUnwindSafe(|| workload(seed, states, planted, &mut explored));
        let ended = catch_unwind(explores).unwrap_or_else(|_| Err(panicked()));
        explored.workloads += 1;
        if let Err(wrong) = ended {
            explored.failure = Some((seed, wrong));
        }
        if explored.states >= states || explored.failure.is_some() {
            break;
        }
    }
    explored
}

/// One workload and its crash states. Errors: what is wrong with the first that is.
fn workload(seed: u64, states: u64, planted: Planted, explored: &mut Explored) -> Result<(), String> {
    let chain = ithaca_chain::Planted::default();
    let shape = VolumeScenario { planted, chain }.shape();
    let plan = Plan::expand(seed, &Shape { faults: Vec::new(), ..shape });
    let options = volume_options(&plan, planted, chain);
    let (sim, shared) = (world_of(&plan, false), Rc::new(Shared::of_plan(&plan)));
    let node = sim.process("node", machine(1));
    let drive = sim.drive(machine(1), DRIVE);
    let (told, workers) = (Rc::clone(&shared), plan.setting("workload.workers", 3) as u32);
    let served = options.clone();
    sim.start(node, move |env| serve(env, served.clone(), workers, Rc::clone(&told)));
    let mut random = Random::new(seed);
    for _ in 0..MOMENTS_MAX {
        let next = sim.io_points(node) + 1 + random.below(STEP_MAX);
        let told = Rc::clone(&shared);
        let goes_on =
            move |sim: &Sim| sim.io_points(node) < next && !told.is_done.get() && !told.is_over.get();
        let _ = sim.run_while(Time::MAX, goes_on);
        explored.moments += 1;
        let moment = Moment { sim: &sim, drive, plan: &plan, options: &options, shared: &shared };
        moment.explore(&mut random, states, explored).map_err(|(kept, wrong)| {
            format!("at {} and I/O point {}, {kept:?}: {wrong}", sim.now(), sim.io_points(node))
        })?;
        if shared.is_done.get() || explored.states >= states {
            break;
        }
        if shared.is_over.get() {
            return Err("the volume has stopped without any fault".to_owned());
        }
    }
    explored.cleaned += shared.cleaned.get();
    explored.discarded += shared.discarded.get();
    shared.wrong.borrow_mut().take().map_or(Ok(()), Err)
}

/// A moment of a workload.
struct Moment<'a> {
    sim: &'a Sim,
    drive: DriveId,
    plan: &'a Plan,
    options: &'a VolumeOptions,
    shared: &'a Shared,
}

impl Moment<'_> {
    /// Errors: the state that is wrong, and why.
    fn explore(
        &self,
        random: &mut Random,
        states: u64,
        explored: &mut Explored,
    ) -> Result<(), (Kept, String)> {
        let doubt = self.sim.doubt(self.drive);
        explored.in_doubt_max = explored.in_doubt_max.max(doubt.requests());
        let told = self.shared.truth.borrow().newest_told();
        for kept in left_by_power_cuts(&doubt, random) {
            if explored.states >= states {
                break;
            }
            explored.states += 1;
            explored.torn += u64::from(kept.is_torn());
            let within =
                (random.below(INTERRUPTED_ONE_OF) == 0).then(|| 1 + random.below(INTERRUPTED_WITHIN));
            let recovery = Recovery { moment: self, interrupted: within };
            let found = recovery.check(doubt.left(&kept)).map_err(|wrong| (kept, wrong))?;
            explored.lost += u64::from(found.newest < told);
            explored.unasked += u64::from(found.newest > told);
            explored.interrupted += u64::from(found.was_interrupted);
        }
        Ok(())
    }
}

/// States that differ.
fn left_by_power_cuts(doubt: &Doubt, random: &mut Random) -> BTreeSet<Kept> {
    let requests = doubt.requests();
    let mut states = BTreeSet::from([doubt.subset(0), doubt.subset(u64::MAX)]);
    if requests <= ALL_SUBSETS_MAX {
        states.extend((0..1 << requests).map(|chosen| doubt.subset(chosen)));
    } else {
        states.extend((0..SUBSETS).map(|_| doubt.subset(random.next_u64())));
    }
    for whole_blocks in [false, true] {
        states.extend((0..TORN).map(|_| doubt.torn(random.next_u64(), whole_blocks)));
    }
    states
}

/// A world in which nothing happens but that a volume is opened.
struct Recovery<'a> {
    moment: &'a Moment<'a>,
    /// The first open is cut off at this I/O point.
    interrupted: Option<u64>,
}

struct Found {
    newest: u64,
    was_interrupted: bool,
}

impl Recovery<'_> {
    /// Opens what is left twice, and looks. Errors: what is wrong.
    fn check(&self, content: Content) -> Result<Found, String> {
        let Moment { plan, options, .. } = *self.moment;
        let truth: Truth = self.moment.shared.truth.borrow().clone();
        let (sim, shared) = (world_of(plan, false), Rc::new(Shared::of_truth(truth)));
        let node = sim.process("node", machine(1));
        sim.set_drive_content(sim.drive(machine(1), DRIVE), content);
        let (told, options) = (Rc::clone(&shared), options.clone());
        sim.start(node, move |env| recover(env, options.clone(), Rc::clone(&told)));
        let mut was_interrupted = false;
        if let Some(point) = self.interrupted {
            sim.end_at_io(node, point, Death::PowerCut);
            run(&sim, node, &shared)?;
            was_interrupted = !sim.is_up(node);
            sim.end_at_io(node, u64::MAX, Death::PowerCut);
        }
        for look in 1..=2 {
            if !sim.is_up(node) {
                sim.restart(node);
            }
            run(&sim, node, &shared)?;
            if !shared.is_done.take() {
                return Err(format!("it is not recovered after {} s, at look {look}", PATIENCE.as_secs()));
            }
            sim.end(node, Death::PowerCut);
            sim.run_for(RESTART);
        }
        let newest = shared.truth.borrow().durable();
        Ok(Found { newest, was_interrupted })
    }
}

/// Runs until the look is done, the process has ended, or something is wrong. Errors: what is.
fn run(sim: &Sim, node: ProcessId, shared: &Rc<Shared>) -> Result<(), String> {
    let told = Rc::clone(shared);
    let goes_on = move |sim: &Sim| sim.is_up(node) && !told.is_done.get() && told.wrong.borrow().is_none();
    let _ = sim.run_while(sim.now() + PATIENCE, goes_on);
    shared.wrong.borrow_mut().take().map_or(Ok(()), Err)
}

/// One life: opens and looks.
async fn recover(env: Env, options: VolumeOptions, shared: Rc<Shared>) {
    let looked = match open(&env, &options).await {
        Ok(volume) => look(&volume, &shared).await.map_err(|why| format!("a read is refused: {why}")),
        Err(why) => Err(format!("the open is refused: {why}")),
    };
    shared.judge(looked);
    shared.is_done.set(true);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_power_cut_leaves_is_a_prefix_of_whole_commits_with_all_that_was_durable() {
        let explored = explore(1, 3_000, Planted::default());
        assert_eq!(explored.failure, None, "{explored:?}");
        let Explored { torn, lost, unasked, interrupted, cleaned, discarded, in_doubt_max, .. } = explored;
        let seen = [torn > 300, lost > 100, unasked > 100, interrupted > 100, cleaned > 20, discarded > 50];
        assert!(seen == [true; 6] && in_doubt_max > 2, "too little was met to mean something: {explored:?}");
    }

    #[test]
    fn the_same_seed_looks_at_the_same_states() {
        let explored = || format!("{:?}", explore(7, 300, Planted::default()));
        assert_eq!(explored(), explored());
    }

    #[cfg(feature = "planted-bugs")]
    #[test]
    fn a_commit_in_parts_and_a_flush_that_does_not_wait_are_found() {
        use ithaca_volume::PlantedBug;
        for bug in [PlantedBug::CommitInParts, PlantedBug::FlushDoesNotWait] {
            let explored = explore(1, 10_000, Planted::bug(bug));
            assert!(explored.failure.is_some(), "{bug:?} goes unnoticed: {explored:?}");
        }
    }
}
