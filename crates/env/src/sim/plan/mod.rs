//! Plans: what a seed expands to, as text that can be read, kept, and cut down.
//!
//! ```text
//! seed 42
//! set workload.appends 200          numbers for the scenario: topology, knobs, workload
//! set link.loss_ppm 1000            numbers for the simulator (see Plan::sim_options)
//! step 1 at 3ms crash unit 20ms     at that time: the power goes, and comes back after 20 ms
//! step 2 at 9ms drive unit log fail-syncs 1
//! step 5 at 11ms cut client unit 50ms
//! ```
//!
//! Every step heals itself after its span, if it heals at all, so that any subset of the steps is a plan too. What a step
//! does at random depends on the seed and on what it is about, not on the other steps.

mod action;
mod apply;
mod expand;
mod text;

use std::collections::BTreeMap;
use std::time::Duration;

use thiserror::Error;

use crate::Time;

use super::drive::Speed;
use super::limits::PLAN_STEPS_MAX;
use super::options::SimOptions;

pub use action::{FaultKind, PlanAction};
pub use expand::{Setting, Shape};

/// Something that is done to the world at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Names the step while a plan is cut down.
    pub number: u32,
    /// When.
    pub at: Time,
    /// What.
    pub action: PlanAction,
}

/// One run of a scenario, but for the code under test.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Decides everything that the plan leaves open.
    pub seed: u64,
    /// Named numbers: those that the scenario reads, and those of [`sim_options`](Plan::sim_options).
    pub settings: BTreeMap<String, u64>,
    /// The faults.
    pub steps: Vec<Step>,
}

/// Why a text is no plan, or a plan does not fit a world. Lines are counted from 1.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// A word is none of those that may stand there.
    #[error("line {line}: {word:?} is not {expected}")]
    Word {
        /// The line.
        line: usize,
        /// What stands there.
        word: String,
        /// What may stand there.
        expected: &'static str,
    },
    /// The line ends too early.
    #[error("line {line}: {expected} is missing")]
    Missing {
        /// The line.
        line: usize,
        /// What should follow.
        expected: &'static str,
    },
    /// The line goes on too long.
    #[error("line {line}: {word:?} is one word too many")]
    Extra {
        /// The line.
        line: usize,
        /// The first word too many.
        word: String,
    },
    /// More steps than [`PLAN_STEPS_MAX`].
    #[error("more than {limit} steps")]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// The world has no process of that name.
    #[error("step {step}: no process is called {name:?}")]
    NoProcess {
        /// The step's number.
        step: u32,
        /// The name.
        name: String,
    },
}

impl Plan {
    /// A setting's number, `default` if it is not set.
    pub fn setting(&self, name: &str, default: u64) -> u64 {
        self.settings.get(name).copied().unwrap_or(default)
    }

    /// The plan without the steps of which `dropped` holds.
    #[must_use]
    pub fn without(&self, dropped: impl Fn(&Step) -> bool) -> Plan {
        let steps = self.steps.iter().filter(|step| !dropped(step)).cloned().collect();
        Plan { steps, ..self.clone() }
    }

    /// The simulator's options as the plan sets them: `link.latency_us`, `link.jitter_us`, `link.loss_ppm`,
    /// `link.reset_ppm`, `link.split_ppm`, `link.short_read_ppm`, `link.window_bytes`, `drive.jitter_percent`,
    /// `drive.speed` (0 RAM, 1 NVMe, 2 SSD, 3 disk), `clock.drift_ppm` and `cpu.per_wake_ns`; the rest by default.
    pub fn sim_options(&self) -> SimOptions {
        let mut options = SimOptions::default();
        let number = |name: &str, default: u64| self.setting(name, default);
        let ppm = |name: &str, default: u32| {
            u32::try_from(self.setting(name, u64::from(default))).unwrap_or(u32::MAX)
        };
        let micros = |name: &str, default: Duration| {
            self.settings.get(name).map_or(default, |&us| Duration::from_micros(us))
        };
        let link = &mut options.link;
        link.latency = micros("link.latency_us", link.latency);
        link.jitter = micros("link.jitter_us", link.jitter);
        link.loss_ppm = ppm("link.loss_ppm", link.loss_ppm);
        link.reset_ppm = ppm("link.reset_ppm", link.reset_ppm);
        link.split_ppm = ppm("link.split_ppm", link.split_ppm);
        link.short_read_ppm = ppm("link.short_read_ppm", link.short_read_ppm);
        link.window_bytes = number("link.window_bytes", link.window_bytes as u64).max(1) as usize;
        options.drive_speed = match self.settings.get("drive.speed") {
            Some(0) => Speed::Ram,
            Some(2) => Speed::Ssd,
            Some(3) => Speed::Disk,
            _ => Speed::Nvme,
        };
        options.drive_jitter_percent = ppm("drive.jitter_percent", options.drive_jitter_percent);
        options.clock_drift_ppm = ppm("clock.drift_ppm", options.clock_drift_ppm);
        options.cpu_per_wake = Duration::from_nanos(number("cpu.per_wake_ns", 0));
        options
    }

    fn check_length(&self) -> Result<(), PlanError> {
        if self.steps.len() > PLAN_STEPS_MAX {
            return Err(PlanError::TooLong { limit: PLAN_STEPS_MAX });
        }
        Ok(())
    }
}
