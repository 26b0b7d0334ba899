//! Makes a failing plan smaller while it still fails.

use ithaca_env::sim::Plan;

use super::scenario::{Scenario, run_caught};

/// Runs that one shrinking may take.
const RUNS_MAX: u32 = 2_000;

/// A plan that fails like `plan`, with as few steps and as little work as was found. Any failure counts: a smaller plan
/// that fails differently is as good a beginning.
pub fn shrink(scenario: &dyn Scenario, plan: &Plan) -> Plan {
    let mut smallest = plan.clone();
    let mut runs = 0;
    let mut fails = |plan: &Plan| {
        runs += 1;
        runs <= RUNS_MAX && run_caught(scenario, plan, false).failure.is_some()
    };
    loop {
        let before = smallest.clone();
        for step in &before.steps {
            let without = smallest.without(|other| other.number == step.number);
            if fails(&without) {
                smallest = without;
            }
        }
        for (name, _) in before.settings.iter().filter(|(name, _)| !name.starts_with("workload.")) {
            // A setting that is left out is as by default.
            let mut without = smallest.clone();
            without.settings.remove(name);
            if fails(&without) {
                smallest = without;
            }
        }
        for (name, &number) in before.settings.iter().filter(|(name, _)| name.starts_with("workload.")) {
            let mut less = smallest.clone();
            less.settings.insert(name.clone(), (number / 2).max(1));
            if less != smallest && fails(&less) {
                smallest = less;
            }
        }
        if smallest == before {
            return smallest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::scenario::Outcome;
    use ithaca_env::sim::{FaultKind, Shape};
    use std::time::Duration;

    /// Fails if a certain step is there and enough work is done.
    struct Picky;

    impl Scenario for Picky {
        fn name(&self) -> &'static str {
            "picky"
        }

        fn shape(&self) -> Shape {
            Shape {
                processes: vec!["node".to_owned()],
                faults: vec![FaultKind::Kill, FaultKind::Pause, FaultKind::PowerCut, FaultKind::SlowCpu],
                steps_max: 30,
                horizon: Duration::from_secs(1),
                ..Shape::default()
            }
        }

        fn run(&self, plan: &Plan, _readable: bool) -> Outcome {
            let fails =
                plan.steps.iter().any(|step| step.number == 2) && plan.setting("workload.operations", 0) > 10;
            Outcome { failure: fails.then(|| "as asked".to_owned()), ..Outcome::default() }
        }
    }

    #[test]
    fn what_does_not_matter_is_left_out() {
        let shape = Picky.shape();
        let long = |seed: &u64| Plan::expand(*seed, &shape).steps.len() > 5;
        let seed = (0..1000).find(long).expect("a plan with steps");
        let mut plan = Plan::expand(seed, &shape);
        plan.settings.insert("workload.operations".to_owned(), 100);
        plan.settings.insert("chain.flights".to_owned(), 2);
        let smallest = shrink(&Picky, &plan);
        assert_eq!(smallest.steps.len(), 1);
        assert_eq!(smallest.setting("workload.operations", 0), 12);
        assert!(!smallest.settings.contains_key("chain.flights"));
    }
}
