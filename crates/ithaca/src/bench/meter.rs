//! Counts what workers complete, and turns it into figures.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use ithaca_env::real::process;
use ithaca_env::sync::Notify;
use ithaca_env::{Env, Time};
use ithaca_log::client::Client;
use ithaca_log::pos::NodeId;
use ithaca_log::wire::Durability;

use super::histogram::Histogram;
use crate::failure::Failure;

/// What a workload came to.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Operations completed in the measured time.
    pub ops: u64,
    /// The same a second.
    pub ops_per_s: f64,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// Latency in microseconds that 99 percent kept within.
    pub p99_us: f64,
    /// Processor time of this process and of all nodes, in microseconds an operation.
    pub cpu_us_per_op: f64,
    /// Processor time of this process alone, in microseconds an operation.
    pub client_cpu_us_per_op: f64,
    /// What an acknowledgement means: `fsync`, or the weakest that a node states.
    pub durability: &'static str,
}

/// Shared by the workers of one run.
pub struct Meter {
    env: Env,
    ops: Cell<u64>,
    latencies: RefCell<Histogram>,
    stopped: Cell<bool>,
    failure: RefCell<Option<Failure>>,
    changed: Notify,
    /// Positions that were taken and not written: first and after-last.
    pub unwritten: RefCell<ithaca_chain::RangeSet>,
}

/// The state of things at one moment.
struct Mark {
    at: Time,
    ops: u64,
    client_cpu_us: u64,
    /// Of each node that answered.
    nodes_cpu_us: BTreeMap<NodeId, u64>,
    durability: &'static str,
}

impl Meter {
    /// A meter that stands at zero.
    pub fn new(env: &Env) -> Self {
        Self {
            env: env.clone(),
            ops: Cell::new(0),
            latencies: RefCell::new(Histogram::new()),
            stopped: Cell::new(false),
            failure: RefCell::default(),
            changed: Notify::default(),
            unwritten: RefCell::default(),
        }
    }

    /// The environment that the workers run on.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// The time. One look serves a whole batch of operations.
    pub fn now(&self) -> Time {
        self.env.now()
    }

    /// Adds `count` operations that took from `started` to `now`.
    pub fn completed(&self, started: Time, now: Time, count: u64) {
        self.ops.set(self.ops.get() + count);
        let span_ns = u64::try_from(now.since(started).as_nanos()).unwrap_or(u64::MAX);
        self.latencies.borrow_mut().record(span_ns, count);
    }

    /// Whether workers should begin nothing new.
    pub fn is_stopped(&self) -> bool {
        self.stopped.get()
    }

    /// Asks the workers to end.
    pub fn stop(&self) {
        self.stopped.set(true);
    }

    /// Ends the run: an operation failed.
    pub fn fail(&self, error: impl Into<Failure>) {
        self.stop();
        self.failure.borrow_mut().get_or_insert(error.into());
        self.changed.ring();
    }

    /// Waits for the warm-up, then measures for `span`. An error as soon as a worker fails, or if nothing completed.
    pub async fn run(&self, control: &Client, warm_up: Duration, span: Duration) -> Result<Figures, Failure> {
        self.wait(warm_up).await?;
        let begin = self.mark(control).await?;
        self.latencies.borrow_mut().clear();
        self.wait(span).await?;
        let end = self.mark(control).await?;
        let ops = end.ops - begin.ops;
        if ops == 0 {
            return Err(Failure::unreachable(format!("nothing completed in {span:?}")));
        }
        let latencies = self.latencies.borrow();
        let client_cpu_us = (end.client_cpu_us - begin.client_cpu_us) as f64;
        // A node that was started again has begun to count anew; one that was away is left out.
        let of_node =
            |(node, cpu_us): (&NodeId, &u64)| Some(cpu_us.saturating_sub(*begin.nodes_cpu_us.get(node)?));
        let nodes_cpu_us = end.nodes_cpu_us.iter().filter_map(of_node).sum::<u64>() as f64;
        Ok(Figures {
            ops,
            ops_per_s: ops as f64 / end.at.since(begin.at).as_secs_f64(),
            p50_us: latencies.quantile_us(0.5),
            p99_us: latencies.quantile_us(0.99),
            cpu_us_per_op: (client_cpu_us + nodes_cpu_us) / ops as f64,
            client_cpu_us_per_op: client_cpu_us / ops as f64,
            durability: end.durability,
        })
    }

    async fn wait(&self, span: Duration) -> Result<(), Failure> {
        let failed = self.changed.until(|| self.failure.borrow_mut().take());
        match self.env.timeout(span, failed).await {
            Ok(failure) => Err(failure),
            Err(_) => Ok(()),
        }
    }

    /// The nodes first, which takes a moment, the same at both ends; then everything else at once.
    async fn mark(&self, control: &Client) -> Result<Mark, Failure> {
        let mut nodes_cpu_us = BTreeMap::new();
        let mut durability = "fsync";
        for (node, _, status) in control.status().await? {
            let Ok(status) = status else { continue };
            if status.durability == Durability::Memory {
                durability = "memory";
            }
            // Of nodes that share a process one states its time, the others none.
            nodes_cpu_us.insert(node, status.cpu_us);
        }
        Ok(Mark {
            nodes_cpu_us,
            durability,
            client_cpu_us: process::cpu_us(),
            ops: self.ops.get(),
            at: self.env.now(),
        })
    }
}
