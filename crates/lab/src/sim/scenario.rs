//! What a scenario is, and one run of it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use ithaca_env::sim::{Plan, Shape, Sim, SimOptions};

use super::history::History;

/// A world and a workload that plans are run in.
pub trait Scenario {
    /// Its name on the command line.
    fn name(&self) -> &'static str;
    /// What its plans look like.
    fn shape(&self) -> Shape;
    /// Runs one plan. MUST depend on nothing but the plan. `readable` asks for the trace's lines.
    fn run(&self, plan: &Plan, readable: bool) -> Outcome;
}

/// What came of one run.
#[derive(Clone, Default)]
pub struct Outcome {
    /// What went wrong, if anything did.
    pub failure: Option<String>,
    /// Rare things that happened.
    pub points: Points,
    /// Appends that were acknowledged.
    pub committed: u64,
    /// Events of the simulation.
    pub events: u64,
    /// Hash of the trace.
    pub hash: u64,
    /// The trace, if it was asked for.
    pub trace: Vec<String>,
    /// What clients did and saw.
    pub history: Rc<History>,
}

impl Outcome {
    /// What the simulated world itself knows of a run that is over.
    pub fn of(sim: &Sim) -> Self {
        let (events, hash, trace) = (sim.events(), sim.trace_hash(), sim.trace_lines());
        Self { events, hash, trace, ..Self::default() }
    }
}

/// The world of `plan`, with a trace that people can read or only its hash.
pub fn world_of(plan: &Plan, readable_trace: bool) -> Sim {
    Sim::with_options(plan.seed, SimOptions { readable_trace, ..plan.sim_options() })
}

/// Rare things that must happen in some run of a night: a test that never meets them tests less than it seems.
#[derive(Clone, Debug, Default)]
pub struct Points {
    /// How often each was seen.
    pub seen: BTreeMap<&'static str, u64>,
}

impl Points {
    /// Counts the point, which is listed even if it did not happen.
    pub fn see(&mut self, point: &'static str, happened: bool) {
        *self.seen.entry(point).or_default() += u64::from(happened);
    }

    /// Adds those of another run.
    pub fn add(&mut self, other: &Points) {
        for (point, count) in &other.seen {
            *self.seen.entry(point).or_default() += count;
        }
    }
}

thread_local! {
    /// Where the last panic was, which the payload does not say.
    static PANICKED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps panics quiet and remembers their places, for [`run_caught`].
pub fn catch_panics() {
    std::panic::set_hook(Box::new(|panic| PANICKED.set(Some(panic.to_string()))));
}

/// What the last panic of this thread said, on one line.
pub fn panicked() -> String {
    PANICKED.take().unwrap_or_else(|| "somewhere".to_owned()).replace('\n', " ")
}

/// Runs a plan; a panic anywhere in the system under test is a failure of the run.
pub fn run_caught(scenario: &dyn Scenario, plan: &Plan, readable: bool) -> Outcome {
    let ran = catch_unwind(AssertUnwindSafe(|| scenario.run(plan, readable)));
    ran.unwrap_or_else(|_| Outcome { failure: Some(panicked()), ..Outcome::default() })
}
