//! From a seed to a plan.

use std::time::Duration;

use crate::Time;
use crate::sim::drive::DriveFault;
use crate::sim::options::nanos;
use crate::sim::process::Death;
use crate::sim::random::{Dice, Domain, scale};

use super::{FaultKind, Plan, PlanAction, Step};

/// A setting and the numbers that it may have, each as likely as often as it is listed.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Its name, `section.name`.
    pub name: &'static str,
    /// Its numbers.
    pub choices: &'static [u64],
}

/// What the plans of a scenario look like.
#[derive(Clone, Debug, Default)]
pub struct Shape {
    /// Settings to choose.
    pub settings: Vec<Setting>,
    /// Processes that may come to harm.
    pub processes: Vec<String>,
    /// Drives that may come to harm: a process of the machine, and the drive's name.
    pub drives: Vec<(String, String)>,
    /// Links that may come to harm, either way.
    pub links: Vec<(String, String)>,
    /// Kinds of faults to choose from. A plan uses about half of them.
    pub faults: Vec<FaultKind>,
    /// Most faults of one plan.
    pub steps_max: u32,
    /// Faults begin within this time.
    pub horizon: Duration,
    /// Bytes of a drive in which single blocks are harmed.
    pub drive_bytes: u64,
}

/// The draws about one step, or about the plan as a whole.
struct Draws {
    dice: Dice,
    entity: u64,
    count: u64,
}

impl Draws {
    fn below(&mut self, bound: u64) -> u64 {
        self.count += 1;
        self.dice.below(Domain::Plan, self.entity, self.count, bound.max(1))
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// A span up to `longest`, short ones as likely as long ones on a logarithmic scale.
    fn span(&mut self, longest: Duration) -> Duration {
        let shift = self.below(10);
        let longest_us = ((nanos(longest) / 1000) >> shift).max(1);
        Duration::from_micros(1 + self.below(longest_us))
    }
}

impl Plan {
    /// The plan of `seed` within `shape`. Swarm testing (Groce et al., ISSTA 2012): a random half of the kinds of fault is
    /// left out, since some failures show only where other faults do not get in their way.
    pub fn expand(seed: u64, shape: &Shape) -> Plan {
        let dice = Dice::new(seed);
        let mut plan = Plan { seed, ..Plan::default() };
        for setting in &shape.settings {
            let about = name_number(setting.name);
            let choice = dice.below(Domain::Plan, about, 0, setting.choices.len() as u64);
            plan.settings.insert(setting.name.to_owned(), setting.choices[choice as usize]);
        }
        let mut draws = Draws { dice, entity: 0, count: 0 };
        let usable = |kind: &FaultKind| {
            if kind.is_of_link() {
                !shape.links.is_empty()
            } else if kind.is_of_drive() {
                !shape.drives.is_empty()
            } else {
                !shape.processes.is_empty()
            }
        };
        let on = |kind: &FaultKind| dice.draw(Domain::Plan, 1, *kind as u64) & 1 == 0;
        let kinds: Vec<_> = shape.faults.iter().copied().filter(|kind| usable(kind) && on(kind)).collect();
        let steps = draws.below(u64::from(shape.steps_max) + 1) as u32;
        for number in 1..=steps.min(if kinds.is_empty() { 0 } else { u32::MAX }) {
            let mut draws = Draws { dice, entity: 16 + u64::from(number), count: 0 };
            let at = Time(scale(draws.below(u64::MAX), nanos(shape.horizon)) / 1000 * 1000);
            let kind = *draws.pick(&kinds);
            plan.steps.push(Step { number, at, action: shape.action(kind, &mut draws) });
        }
        plan.steps.sort_by_key(|step| (step.at, step.number));
        plan
    }
}

fn name_number(name: &str) -> u64 {
    u64::from(crc32c::crc32c(name.as_bytes())) | 1 << 40
}

impl Shape {
    fn action(&self, kind: FaultKind, draws: &mut Draws) -> PlanAction {
        if kind.is_of_drive() {
            let (process, drive) = draws.pick(&self.drives).clone();
            return PlanAction::Drive { process, drive, fault: self.drive_fault(kind, draws) };
        }
        if kind.is_of_link() {
            return self.link_action(kind, draws);
        }
        let process = draws.pick(&self.processes).clone();
        let span = draws.span(self.horizon);
        match kind {
            FaultKind::Kill => PlanAction::End { process, death: Death::Kill, down: span },
            FaultKind::PowerCut => PlanAction::End { process, death: Death::PowerCut, down: span },
            FaultKind::Vanish => PlanAction::End { process, death: Death::Vanish, down: span },
            FaultKind::EndAtIo => {
                let death = *draws.pick(&[Death::Kill, Death::PowerCut, Death::Vanish]);
                PlanAction::EndAtIo { process, death, points: 1 + draws.below(60), down: span }
            }
            FaultKind::SlowCpu => {
                PlanAction::SlowCpu { process, cost: Duration::from_micros(1 << draws.below(9)), span }
            }
            FaultKind::ClockRate => PlanAction::ClockRate { process, ppm: draws.below(1001) as i32 - 500 },
            FaultKind::WallJump => {
                PlanAction::WallJump { process, ms: draws.below(7_200_001) as i64 - 3_600_000 }
            }
            _ => PlanAction::Pause { process, span },
        }
    }

    fn drive_fault(&self, kind: FaultKind, draws: &mut Draws) -> DriveFault {
        let offset = draws.below(self.drive_bytes);
        let count = 1 + draws.below(3) as u32;
        let span = draws.span(self.horizon);
        match kind {
            FaultKind::FailWrites => DriveFault::FailWrites { count },
            FaultKind::FailSyncs => DriveFault::FailSyncs { count },
            FaultKind::FailReads => DriveFault::FailReads { count },
            FaultKind::NoSpace => DriveFault::NoSpace { count },
            FaultKind::LoseWrites => DriveFault::LoseWrites { count },
            FaultKind::MisdirectWrites => DriveFault::MisdirectWrites { count },
            FaultKind::Unreadable => DriveFault::Unreadable { offset },
            FaultKind::BitRot => DriveFault::BitRot { offset, bit: draws.below(8) as u8 },
            FaultKind::SlowDrive => DriveFault::Slow { percent: 200 << draws.below(8), span },
            FaultKind::GoneDrive => DriveFault::Gone,
            _ => DriveFault::Stuck { span },
        }
    }

    fn link_action(&self, kind: FaultKind, draws: &mut Draws) -> PlanAction {
        let (mut one, mut other) = draws.pick(&self.links).clone();
        if draws.below(2) == 0 {
            std::mem::swap(&mut one, &mut other);
        }
        let span = draws.span(self.horizon);
        match kind {
            FaultKind::Cut => PlanAction::Cut { from: one, to: other, span },
            FaultKind::Partition => PlanAction::Partition { one, other, span },
            FaultKind::Flap => {
                let times = 1 + draws.below(8) as u32;
                PlanAction::Flap { one, other, span: span / 8 + Duration::from_micros(1), times }
            }
            FaultKind::SlowLink => {
                let latency = draws.span(self.horizon / 10);
                PlanAction::SlowLink { from: one, to: other, latency, span }
            }
            _ => PlanAction::Reset { one, other },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> Shape {
        Shape {
            settings: vec![Setting { name: "workload.appends", choices: &[10, 100, 1000] }],
            processes: vec!["unit".into()],
            drives: vec![("unit".into(), "log".into())],
            links: vec![("client".into(), "unit".into())],
            faults: FaultKind::ALL.to_vec(),
            steps_max: 12,
            horizon: Duration::from_millis(100),
            drive_bytes: 1 << 20,
        }
    }

    #[test]
    fn seeds_differ_in_settings_kinds_and_number_of_faults() {
        let plans: Vec<Plan> = (0..200).map(|seed| Plan::expand(seed, &shape())).collect();
        for number in [10, 100, 1000] {
            assert!(plans.iter().any(|plan| plan.setting("workload.appends", 0) == number));
        }
        assert!(plans.iter().any(|plan| plan.steps.is_empty()));
        assert!(plans.iter().any(|plan| plan.steps.len() == 12));
        assert!(plans.iter().flat_map(|plan| &plan.steps).all(|step| step.at < Time(100_000_000)));
        assert_eq!(plans[3], Plan::expand(3, &shape()));
    }

    #[test]
    fn more_steps_leave_the_earlier_ones_as_they_were() {
        let (few, many) = (shape(), Shape { steps_max: 24, ..shape() });
        for seed in 0..50 {
            let (few, many) = (Plan::expand(seed, &few), Plan::expand(seed, &many));
            assert!(few.steps.iter().all(|step| many.steps.contains(step)), "seed {seed}");
        }
    }
}
