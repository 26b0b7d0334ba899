//! Plans at work in a world.

use std::time::Duration;

use crate::sim::drive::DriveFault;
use crate::sim::driver::Sim;
use crate::sim::options::LinkOptions;
use crate::sim::process::ProcessId;

use super::{Plan, PlanAction, PlanError, Step};

impl Plan {
    /// Schedules the steps in `sim`, whose processes have the names that the plan uses.
    ///
    /// ```
    /// use ithaca_env::sim::{Plan, Sim};
    /// let plan: Plan = "seed 1\nstep 1 at 2ms crash node 10ms".parse()?;
    /// let sim = Sim::with_options(plan.seed, plan.sim_options());
    /// let node = sim.process("node", [10, 0, 0, 1].into());
    /// plan.apply(&sim)?;
    /// sim.run_for(std::time::Duration::from_millis(5));
    /// assert!(!sim.is_up(node));
    /// sim.run_for(std::time::Duration::from_millis(10));
    /// assert!(sim.is_up(node));
    /// # Ok::<(), ithaca_env::sim::PlanError>(())
    /// ```
    pub fn apply(&self, sim: &Sim) -> Result<(), PlanError> {
        self.check_length()?;
        for step in &self.steps {
            let who = Who::resolve(step, sim)?;
            let (at, action) = (step.at, step.action.clone());
            sim.at(at, move |sim| who.act(sim, action));
        }
        Ok(())
    }
}

/// The processes that a step names; the second is the first where it names only one.
#[derive(Clone, Copy)]
struct Who {
    first: ProcessId,
    second: ProcessId,
}

impl Who {
    fn resolve(step: &Step, sim: &Sim) -> Result<Who, PlanError> {
        let (first, second) = match &step.action {
            PlanAction::End { process, .. }
            | PlanAction::EndAtIo { process, .. }
            | PlanAction::Pause { process, .. }
            | PlanAction::SlowCpu { process, .. }
            | PlanAction::ClockRate { process, .. }
            | PlanAction::WallJump { process, .. }
            | PlanAction::Drive { process, .. } => (process, process),
            PlanAction::Cut { from, to, .. } | PlanAction::SlowLink { from, to, .. } => (from, to),
            PlanAction::Partition { one, other, .. }
            | PlanAction::Flap { one, other, .. }
            | PlanAction::Reset { one, other } => (one, other),
        };
        let find = |name: &String| {
            sim.find_process(name)
                .ok_or_else(|| PlanError::NoProcess { step: step.number, name: name.clone() })
        };
        Ok(Who { first: find(first)?, second: find(second)? })
    }

    fn act(self, sim: &Sim, action: PlanAction) {
        let process = self.first;
        let (one, other) = (sim.machine(self.first), sim.machine(self.second));
        match action {
            PlanAction::End { death, down, .. } => {
                if sim.is_up(process) {
                    sim.end(process, death);
                    sim.restart_after(process, down);
                }
            }
            PlanAction::EndAtIo { death, points, down, .. } => {
                sim.end_at_io_for(process, sim.io_points(process) + points, death, Some(down));
            }
            PlanAction::Pause { span, .. } => {
                sim.pause(process);
                sim.at(sim.now() + span, move |sim| sim.resume(process));
            }
            PlanAction::SlowCpu { cost, span, .. } => {
                sim.set_cpu_per_wake(process, cost);
                sim.at(sim.now() + span, move |sim| sim.set_cpu_per_wake(process, Duration::ZERO));
            }
            PlanAction::ClockRate { ppm, .. } => sim.set_clock_rate(process, ppm),
            PlanAction::WallJump { ms, .. } => sim.jump_wall_clock(process, ms),
            PlanAction::Drive { drive, fault, .. } => {
                let drive = sim.drive(one, &drive);
                if let Some(size) = sim.drive_size_bytes(drive).filter(|&size| size > 0) {
                    sim.fault_drive(drive, wrap(fault, size));
                }
            }
            PlanAction::Cut { span, .. } => {
                sim.cut(one, other);
                sim.at(sim.now() + span, move |sim| sim.mend(one, other));
            }
            PlanAction::Partition { span, .. } => sim.flap(one, other, span, 1),
            PlanAction::Flap { span, times, .. } => sim.flap(one, other, span, times),
            PlanAction::Reset { .. } => sim.reset_connections(one, other),
            PlanAction::SlowLink { latency, span, .. } => {
                let usual = sim.link(one, other);
                let slow = LinkOptions { latency: usual.latency + latency, ..usual };
                sim.set_link(one, other, slow);
                sim.at(sim.now() + span, move |sim| sim.unset_link(one, other));
            }
        }
    }
}

/// The fault with its offset within the drive.
fn wrap(fault: DriveFault, size: u64) -> DriveFault {
    match fault {
        DriveFault::Unreadable { offset } => DriveFault::Unreadable { offset: offset % size },
        DriveFault::BitRot { offset, bit } => DriveFault::BitRot { offset: offset % size, bit },
        fault => fault,
    }
}
