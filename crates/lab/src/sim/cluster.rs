//! The cluster scenario: every node is a process on a machine of its own, and whatever the plan does to them, to their
//! drives and to the links between them, the log stays one log.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use ithaca_chain::ChainOptions;
use ithaca_env::sim::{Death, FaultKind, Plan, ProcessId, Setting, Shape, Sim, SimOptions};
use ithaca_env::{Env, Time};
use ithaca_log::client::{Forming, form};
use ithaca_log::planted::Planted;
use ithaca_log::pos::NodeId;
use ithaca_log::server::{ClusterNode, NodeOptions};

use super::history::{Fate, History, Seen};
use super::oracle;
use super::scenario::{Outcome, Points, Scenario};
use super::workload::{self, Forwarded, Shared};

/// Faults begin within this time.
const HORIZON: Duration = Duration::from_secs(3);
/// Clients are done this long after healing at the latest: every call ends within two seconds.
const PATIENCE: Duration = Duration::from_secs(400);
/// The audit is done within this.
const AUDIT_TIME: Duration = Duration::from_secs(30);
/// After this nothing is missing that was missed.
const RECOVERY_TIME: Duration = Duration::from_secs(60);
/// A cluster is formed within this.
const FORM_TIME: Duration = Duration::from_secs(10);
/// A process that ended by itself is started again after this.
const RESTART: Duration = Duration::from_millis(50);
/// Where every node listens.
const PORT: u16 = 7420;
/// The most nodes that a plan has.
const NODES_MAX: u8 = 5;

/// The cluster scenario.
pub struct ClusterScenario {
    /// A fault in the system, if it is a test of the test.
    pub planted: Planted,
}

const SETTINGS: &[Setting] = &[
    Setting { name: "topology.nodes", choices: &[3, 3, 3, 4, 5] },
    Setting { name: "topology.replicas", choices: &[1, 2, 2, 2, 3] },
    Setting { name: "topology.clients", choices: &[1, 2, 3] },
    Setting { name: "topology.followers", choices: &[0, 1] },
    Setting { name: "workload.operations", choices: &[40, 100, 200] },
    Setting { name: "workload.entry_max_bytes", choices: &[64, 300, 5_000] },
    Setting { name: "workload.burst_max", choices: &[1, 4, 16] },
    Setting { name: "workload.forwarded", choices: &[0, 1, 1, 2] },
    Setting { name: "workload.relayed", choices: &[0, 1] },
    Setting { name: "workload.pause_us", choices: &[3_000, 100_000, 300_000] },
    Setting { name: "sequencer.remembered", choices: &[1, 4, 65_536] },
    Setting { name: "link.loss_ppm", choices: &[0, 0, 1_000, 20_000] },
    Setting { name: "link.reset_ppm", choices: &[0, 0, 0, 2_000] },
    Setting { name: "link.split_ppm", choices: &[0, 50_000, 500_000] },
    Setting { name: "drive.jitter_percent", choices: &[0, 30, 300] },
];

impl Scenario for ClusterScenario {
    fn name(&self) -> &'static str {
        "cluster"
    }

    fn shape(&self) -> Shape {
        let names: Vec<String> = (1..=3).map(node_name).collect();
        let mut links = Vec::new();
        for (at, one) in names.iter().enumerate() {
            links.extend(names[at + 1..].iter().map(|other| (one.clone(), other.clone())));
            links.push(("client-1".to_owned(), one.clone()));
        }
        Shape {
            settings: SETTINGS.to_vec(),
            drives: (1..=3).map(|id| (node_name(id), format!("data/unit-{id}.chain"))).collect(),
            processes: names,
            links,
            faults: FaultKind::survivable(),
            steps_max: 8,
            horizon: HORIZON,
            drive_bytes: 768 << 10,
        }
    }

    fn run(&self, plan: &Plan, readable: bool) -> Outcome {
        let options = SimOptions { readable_trace: readable, ..plan.sim_options() };
        let world = World::new(Sim::with_options(plan.seed, options), plan, self.planted);
        let failure = world.run(plan).err();
        Outcome {
            failure,
            points: world.points(),
            committed: world.shared.history.acknowledged() as u64,
            events: world.sim.events(),
            hash: world.sim.trace_hash(),
            trace: world.sim.trace_lines(),
        }
    }
}

fn node_name(id: u8) -> String {
    format!("node-{id}")
}

fn machine(number: u8) -> IpAddr {
    [10, 0, 0, number].into()
}

struct World {
    sim: Sim,
    nodes: Vec<(ProcessId, Rc<Life>)>,
    shared: Rc<Shared>,
    clients: u32,
}

/// What a node's process says of itself.
#[derive(Default)]
struct Life {
    ended: Cell<bool>,
    starts: Cell<u64>,
    refused: RefCell<Vec<String>>,
}

impl World {
    fn new(sim: Sim, plan: &Plan, planted: Planted) -> Self {
        let count = (plan.setting("topology.nodes", 3) as u8).clamp(1, NODES_MAX);
        let addr = |id: u8| SocketAddr::new(machine(id), PORT);
        let shared = Rc::new(Shared {
            history: Rc::new(History::default()),
            addrs: (1..=count).map(addr).collect(),
            entry_max_bytes: plan.setting("workload.entry_max_bytes", 300) as usize,
            burst_max: plan.setting("workload.burst_max", 4),
            pause_us: plan.setting("workload.pause_us", 3_000),
            forwarded: match plan.setting("workload.forwarded", 2) {
                0 => Forwarded::Nobodys,
                1 => Forwarded::Everybodys,
                _ => Forwarded::Odd,
            },
            relayed: plan.setting("workload.relayed", 1) == 1,
            planted,
            done: Cell::new(0),
        });
        let start = |id: u8| {
            let process = sim.process(&node_name(id), machine(id));
            let life = Rc::new(Life::default());
            let (told, options) = (Rc::clone(&life), node_options(plan, id, addr(id), planted));
            sim.start(process, move |env| serve(env, options.clone(), Rc::clone(&told)));
            (process, life)
        };
        let nodes = (1..=count).map(start).collect();
        let clients = plan.setting("topology.clients", 1) as u32;
        World { sim, nodes, shared, clients }
    }

    /// Forming, faults, healing, the clients' end, the audit, the verdict.
    fn run(&self, plan: &Plan) -> Result<(), String> {
        self.form(plan)?;
        self.start_clients(plan);
        plan.apply(&self.sim).map_err(|error| error.to_string())?;
        self.run_until(Time::ZERO + HORIZON, || true).ok();
        self.sim.heal();
        let all = self.clients;
        let deadline = self.sim.now() + PATIENCE;
        let ended = self
            .run_until(deadline, || self.shared.done.get() < all)
            .map_err(|()| {
                let done = self.shared.done.get();
                format!("{done} of {all} clients are done long after healing; {}", self.said())
            })
            .and_then(|()| self.recover())
            .and_then(|()| self.audit());
        if let Some(wrong) = self.shared.history.wrong.borrow().first() {
            return Err(wrong.clone());
        }
        if let Some(pos) = self.shared.history.damaged.borrow().first() {
            return Err(format!("position {pos} is damaged although no drive was harmed"));
        }
        oracle::check(&self.shared.history)?;
        ended
    }

    fn form(&self, plan: &Plan) -> Result<(), String> {
        let operator = self.sim.env(self.sim.process("operator", machine(201)));
        let ids = (1..).map(NodeId);
        let replicas = plan.setting("topology.replicas", 2).min(self.nodes.len() as u64) as u16;
        let forming = Forming {
            nodes: ids.zip(self.shared.addrs.iter().copied()).collect(),
            replicas,
            min_replicas: replicas.min(1),
            timeout: FORM_TIME,
        };
        let done = Rc::new(RefCell::new(None));
        let slot = Rc::clone(&done);
        operator.spawn({
            let env = operator.clone();
            async move {
                let formed = form(&env, &forming).await;
                *slot.borrow_mut() = Some(formed);
            }
        });
        let deadline = self.sim.now() + 2 * FORM_TIME;
        self.run_until(deadline, || done.borrow().is_none()).ok();
        match done.take() {
            Some(Ok(_)) => Ok(()),
            Some(Err(error)) => Err(format!("forming: {error}; {}", self.said())),
            None => Err(format!("forming does not end; {}", self.said())),
        }
    }

    fn start_clients(&self, plan: &Plan) {
        let operations = plan.setting("workload.operations", 100) / u64::from(self.clients.max(1));
        for number in 1..=self.clients {
            let process = self.sim.process(&format!("client-{number}"), machine(100 + number as u8));
            let env = self.sim.env(process);
            let (shared, dice) = (Rc::clone(&self.shared), self.sim.dice());
            env.spawn(workload::work(env.clone(), dice, shared, number, operations));
        }
        for number in 0..plan.setting("topology.followers", 0) {
            let process = self.sim.process(&format!("follower-{number}"), machine(150 + number as u8));
            let env = self.sim.env(process);
            env.spawn(workload::follow(env.clone(), Rc::clone(&self.shared)));
        }
    }

    /// Runs while `condition` holds, starting nodes again that end by themselves.
    fn run_until(&self, deadline: Time, mut condition: impl FnMut() -> bool) -> Result<(), ()> {
        loop {
            let has_ended = || self.nodes.iter().any(|(_, life)| life.ended.get());
            let waited = self.sim.run_while(deadline, |_| !has_ended() && condition());
            if !has_ended() {
                return waited.map_err(|_| ());
            }
            for (process, life) in self.nodes.iter().filter(|(_, life)| life.ended.take()) {
                let _ = life;
                self.sim.end(*process, Death::Kill);
                self.sim.restart_after(*process, RESTART);
            }
        }
    }

    /// Every node is in use again, and every entry has its copies.
    fn recover(&self) -> Result<(), String> {
        let env = self.sim.env(self.sim.process("observer", machine(202)));
        let whole = Rc::new(Cell::new(false));
        let seen = Rc::new(RefCell::new(String::new()));
        env.spawn({
            let (env, shared, whole, seen) =
                (env.clone(), Rc::clone(&self.shared), Rc::clone(&whole), Rc::clone(&seen));
            async move {
                let client = shared.connect(&env, 0).await;
                loop {
                    match client.layout().await {
                        Ok(layout)
                            if layout.units().count() == layout.nodes.len()
                                && layout.missing().is_empty() =>
                        {
                            return whole.set(true);
                        }
                        Ok(layout) => *seen.borrow_mut() = format!("{:?}", layout.ranges),
                        Err(error) => *seen.borrow_mut() = error.to_string(),
                    }
                    env.sleep(Duration::from_millis(100)).await;
                }
            }
        });
        let deadline = self.sim.now() + RECOVERY_TIME;
        self.run_until(deadline, || !whole.get()).ok();
        if whole.get() {
            return Ok(());
        }
        let known = seen.borrow();
        Err(format!("copies are missing {RECOVERY_TIME:?} after healing: {known}; {}", self.said()))
    }

    fn audit(&self) -> Result<(), String> {
        let env = self.sim.env(self.sim.process("auditor", machine(200)));
        let done = Rc::new(RefCell::new(None));
        let (slot, shared) = (Rc::clone(&done), Rc::clone(&self.shared));
        env.spawn({
            let env = env.clone();
            async move {
                let result = workload::audit(env, shared).await;
                *slot.borrow_mut() = Some(result);
            }
        });
        let deadline = self.sim.now() + AUDIT_TIME;
        self.run_until(deadline, || done.borrow().is_none()).ok();
        match done.take() {
            None => Err(format!("the audit does not end; {}", self.said())),
            Some(Err(error)) => Err(format!("the audit failed: {error}; {}", self.said())),
            Some(Ok(())) => Ok(()),
        }
    }

    /// What the nodes said when they did not start.
    fn said(&self) -> String {
        let said: Vec<String> =
            self.nodes.iter().flat_map(|(_, life)| life.refused.borrow().clone()).collect();
        format!("refused starts: {said:?}")
    }

    fn points(&self) -> Points {
        let mut points = Points::default();
        let history = &self.shared.history;
        points.see("a node was started again", self.nodes.iter().any(|(_, life)| life.starts.get() > 1));
        let fates = history.appends.borrow();
        let any = |wanted: fn(&Fate) -> bool| fates.iter().any(|append| wanted(&append.fate));
        points.see("an append's outcome is unknown", any(|fate| matches!(fate, Fate::Unknown(_))));
        points.see(
            "an append's outcome and place are unknown",
            any(|fate| matches!(fate, Fate::UnknownAfter(_))),
        );
        points.see("an append failed", any(|fate| matches!(fate, Fate::Failed)));
        let looks = history.looks.borrow();
        points.see("junk was read", looks.iter().any(|look| look.seen == Seen::Junk));
        points
    }
}

/// A node's process: serves until its chain stops, then ends, to be started again.
async fn serve(env: Env, options: NodeOptions, life: Rc<Life>) {
    life.starts.set(life.starts.get() + 1);
    match ClusterNode::start(&env, options).await {
        Ok(node) => {
            node.failed().await;
        }
        Err(error) => {
            let mut refused = life.refused.borrow_mut();
            if refused.len() < 10 {
                refused.push(error.to_string());
            }
        }
    }
    life.ended.set(true);
}

fn node_options(plan: &Plan, id: u8, listen: SocketAddr, planted: Planted) -> NodeOptions {
    let segment_bytes = 128 << 10;
    let chain = ChainOptions {
        segment_bytes,
        queue_max_bytes: 1 << 20,
        tail_cache_bytes: 1 << 20,
        index_cache_bytes: 1 << 20,
        segments_ready: 2,
        capacity_bytes: (64 << 10) + segment_bytes * 64,
        grow_bytes: 2 * segment_bytes,
        ..ChainOptions::default()
    };
    let mut options = NodeOptions::new(NodeId(id.into()), Path::new("data"), listen);
    options.create_bytes = (64 << 10) + 4 * segment_bytes;
    options.chain = chain;
    options.remembered_max = plan.setting("sequencer.remembered", 65_536) as usize;
    options.planted = planted;
    options.unit.planted = planted;
    options
}
