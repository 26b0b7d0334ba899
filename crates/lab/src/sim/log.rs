//! The single-node scenario: a cluster in one process, clients on other machines, and whatever the plan does to them.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use ithaca_chain::{ChainOptions, Placement};
use ithaca_env::sim::{Budget, Death, Domain, FaultKind, Plan, ProcessId, Setting, Shape, Sim};
use ithaca_env::{Env, Time};
use ithaca_log::pos::NodeId;
use ithaca_log::server::{GrantOptions, LocalCluster, LocalOptions};

use super::drives;
use super::latent;
use super::oracle;
use super::planted::Fault;
use super::scenario::{Outcome, Points, Scenario, world_of};
use super::workload::{self, Shared, machine};

/// Faults begin within this time.
pub(super) const HORIZON: Duration = Duration::from_millis(400);
/// Clients are done this long after healing at the latest: every call ends within two seconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(400);
/// The audit is done within this.
const AUDIT_TIME: Duration = Duration::from_secs(60);
/// A process that ended by itself is started again after this.
pub(super) const RESTART: Duration = Duration::from_millis(2);
/// Starts that may be refused in a row, before it is taken that no start will succeed. More than faults can cause: a
/// counted fault meets three requests.
const REFUSED_MAX: u32 = 100;
/// After this nothing is under way on drives that clients have left alone.
const QUIET: Duration = Duration::from_millis(100);
/// A node whose drives are quick serves within this, unless its start is refused.
const START_TIME: Duration = Duration::from_secs(5);
/// Where the log is served.
pub(super) const PORT: u16 = 7420;

/// The single-node scenario. With `Budget::Survive` nothing may be lost; with `Budget::Detect` nothing may be wrong.
pub struct LogScenario {
    /// Which faults are among those of the plans, and what is owed.
    pub budget: Budget,
    /// A fault in the system, if it is a test of the test.
    pub planted: Fault,
}

const SETTINGS: &[Setting] = &[
    Setting { name: "topology.units", choices: &[1, 1, 1, 2, 3] },
    Setting { name: "topology.replicas", choices: &[1, 1, 2, 2, 3] },
    Setting { name: "topology.clients", choices: &[1, 2, 3] },
    Setting { name: "topology.followers", choices: &[0, 1] },
    Setting { name: "workload.operations", choices: &[40, 100, 200] },
    Setting { name: "workload.entry_max_bytes", choices: &[64, 300, 5_000, 12_288] },
    Setting { name: "workload.burst_max", choices: &[1, 4, 16] },
    Setting { name: "workload.forwarded", choices: &[0, 1, 1, 2] },
    Setting { name: "workload.relayed", choices: &[0, 1] },
    Setting { name: "workload.streams", choices: &[0, 0, 0, 1, 4] },
    Setting { name: "sequencer.writes", choices: &[4, 65_536] },
    Setting { name: "sequencer.checkpoint", choices: &[4, 30, 65_536] },
    Setting { name: "topology.sockets", choices: &[0, 1] },
    Setting { name: "sequencer.remembered", choices: &[1, 4, 65_536] },
    Setting { name: "chain.segment_kib", choices: &[128, 128, 256] },
    Setting { name: "chain.flights", choices: &[1, 2, 2, 4] },
    Setting { name: "chain.group_max_bytes", choices: &[1, 8_192, 1 << 20] },
    Setting { name: "chain.tail_cache_bytes", choices: &[0, 16_384, 1 << 20] },
    Setting { name: "chain.index_cache_bytes", choices: &[0, 1 << 20] },
    Setting { name: "chain.segments_ready", choices: &[1, 2] },
    Setting { name: "chain.segments", choices: &[8, 8, 64] },
    Setting { name: "link.loss_ppm", choices: &[0, 0, 1_000, 20_000] },
    Setting { name: "link.reset_ppm", choices: &[0, 0, 0, 2_000] },
    Setting { name: "link.split_ppm", choices: &[0, 50_000, 500_000] },
    Setting { name: "link.window_bytes", choices: &[20_000, 4 << 20] },
    Setting { name: "drive.speed", choices: &[1, 1, 1, 1, 2, 3] },
    Setting { name: "drive.jitter_percent", choices: &[0, 30, 300] },
    Setting { name: "unit.drives", choices: &[1, 1, 2, 3] },
    Setting { name: "chain.in_turn", choices: &[0, 1] },
    Setting { name: "operator.drives", choices: &[0, 0, 0, 2, 6] },
    Setting { name: "operator.segments", choices: &[64, 64, 5] },
];

/// Where drives are harmed: in full segments, with a start of the node after that or without, in groups of others, which a start meets, or in
/// footers alone, which tell nothing that the groups of their segments do not tell.
const FULL_SEGMENTS: u64 = 0;
const FULL_SEGMENTS_BEFORE_START: u64 = 1;
const GROUPS: u64 = 2;
const FOOTERS: u64 = 3;
/// In how many places the drives of one unit are harmed when the clients are done, and where.
const HARM_SETTINGS: &[Setting] = &[
    Setting { name: "harm.latent", choices: &[0, 1, 8, 8] },
    Setting {
        name: "harm.place",
        choices: &[FULL_SEGMENTS, FULL_SEGMENTS_BEFORE_START, GROUPS, GROUPS, FOOTERS],
    },
];

impl Scenario for LogScenario {
    fn name(&self) -> &'static str {
        match self.budget {
            Budget::Survive => "log",
            Budget::Detect => "log-harm",
        }
    }

    fn shape(&self) -> Shape {
        let registers = ["data/layout.register", "data/drives.register"].map(str::to_owned);
        let paths = (1..=3).flat_map(|unit| unit_drives(unit, 3).chain(drives::added_drives(unit)));
        let drives = registers.into_iter().chain(paths).map(|path| ("node".to_owned(), path)).collect();
        match self.budget {
            Budget::Survive => shape_of_one_node(SETTINGS, drives, FaultKind::survivable()),
            Budget::Detect => {
                let all = FaultKind::ALL.into_iter();
                let faults = all.filter(|&kind| kind != FaultKind::GoneDrive).collect();
                shape_of_one_node(&[SETTINGS, HARM_SETTINGS].concat(), drives, faults)
            }
        }
    }

    fn run(&self, plan: &Plan, readable: bool) -> Outcome {
        let world = World::new(world_of(plan, readable), plan, self.planted);
        let failure = world.run(plan).err();
        let (points, history) = (world.points(), Rc::clone(&world.shared.history));
        let committed = history.acknowledged() as u64;
        Outcome { failure, points, committed, history, ..Outcome::of(&world.sim) }
    }
}

/// Clients of one node, with these settings, drives and kinds of faults.
pub(super) fn shape_of_one_node(
    settings: &[Setting],
    drives: Vec<(String, String)>,
    mut faults: Vec<FaultKind>,
) -> Shape {
    // Most of what can go wrong goes wrong between a request and its completion.
    faults.extend([FaultKind::EndAtIo; 5]);
    Shape {
        settings: settings.to_vec(),
        processes: vec!["node".to_owned()],
        drives,
        links: vec![("client-1".to_owned(), "node".to_owned())],
        faults,
        steps_max: 8,
        horizon: HORIZON,
        drive_bytes: 768 << 10,
    }
}

struct World {
    sim: Sim,
    node: ProcessId,
    shared: Rc<Shared>,
    ended: Rc<Ended>,
    clients: u32,
    /// What the operator of the drives has done, if there is one.
    drives: Option<Rc<drives::Done>>,
    /// What became of the drives whose footers were harmed.
    replaced: Rc<drives::Done>,
}

/// What the node's process says when it ends by itself.
#[derive(Default)]
pub(super) struct Ended {
    pub(super) now: Cell<bool>,
    pub(super) starts: Cell<u64>,
    /// Starts that succeeded.
    served: Cell<u64>,
    chains_stopped: Cell<u64>,
    /// Starts since the last that succeeded.
    refused_in_a_row: Cell<u32>,
    refused: RefCell<Vec<String>>,
}

impl World {
    fn new(sim: Sim, plan: &Plan, planted: Fault) -> Self {
        let node = sim.process("node", machine(1));
        let addrs = vec![SocketAddr::new(machine(1), PORT)];
        let shared = Shared::of_plan(plan, addrs, planted.of_clients());
        let ended = Rc::new(Ended::default());
        let options = local_options(plan, shared.addrs[0], planted);
        let told = Rc::clone(&ended);
        sim.start(node, move |env| serve(env, options.clone(), Rc::clone(&told), |_, _| {}));
        let clients = shared.start(&sim, plan, 1, 100);
        let changes = plan.setting("operator.drives", 0);
        let drives = (changes > 0).then(|| {
            let (env, done) =
                (sim.env(sim.process("operator", machine(201))), Rc::new(drives::Done::default()));
            env.spawn(drives::change(env.clone(), Rc::clone(&shared), changes, Rc::clone(&done)));
            done
        });
        World { sim, node, shared, ended, clients, drives, replaced: Rc::default() }
    }

    /// Faults, healing, the clients' end, the audit, the verdict.
    fn run(&self, plan: &Plan) -> Result<(), String> {
        plan.apply(&self.sim).map_err(|error| error.to_string())?;
        self.run_until(Time::ZERO + HORIZON, |_| true).ok();
        self.sim.heal();
        let all = self.clients;
        let deadline = self.sim.now() + PATIENCE;
        let is_busy = |world: &World| world.shared.done.get() < all || world.is_changing();
        let ended = self.run_until(deadline, is_busy);
        let is_hung = ended.is_err() && self.ended.refused_in_a_row.get() == 0;
        let mut ended = ended.map_err(|()| {
            let (done, refused) = (self.shared.done.get(), self.ended.refused.borrow());
            let changing = if self.is_changing() { ", drives are being changed" } else { "" };
            format!(
                "{done} of {all} clients are done long after healing{changing}; starts were refused for {refused:?}"
            )
        });
        let is_lied_to = self.is_harmed();
        let is_alone = plan.setting("topology.replicas", 1) < 2;
        if ended.is_ok() {
            ended = self.rot(plan).and_then(|()| self.audit());
        }
        let wrong = self.shared.history.wrong.borrow().first().cloned();
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        if is_lied_to {
            // One copy was harmed: refusing, and losing what the drive lied about, is all that can be done. So an entry may come to light again
            // where it was given up, beside the place where it was appended again.
            return if is_hung { ended } else { Ok(()) };
        }
        let history = &self.shared.history;
        // Of what nobody was told of yet, the only copy may have been harmed in any case.
        let may_refuse = |pos| history.has_rot.get() && (is_alone || !history.is_acknowledged(pos));
        oracle::judge_refusing(history, may_refuse)?;
        match self.drives.as_ref().and_then(|drives| drives.failed.take()) {
            Some(failed) => Err(failed),
            None => ended,
        }
    }

    /// Whether a drive has harmed a copy without saying so.
    fn is_harmed(&self) -> bool {
        self.sim.atlas().history().iter().any(|harm| !harm.kind.is_reported())
    }

    /// Harms what drives of one unit hold and later groups vouch for: it may not pass for what was never there. Where that is only their
    /// footers, the drives can be removed, and nothing is lost.
    fn rot(&self, plan: &Plan) -> Result<(), String> {
        let number = |name: &str, default: u64| plan.setting(name, default);
        let count = number("harm.latent", 0);
        if count == 0 {
            return Ok(());
        }
        self.run_until(self.sim.now() + QUIET, |_| true).ok();
        let units = number("topology.units", 1).max(number("topology.replicas", 1));
        let unit = 1 + self.sim.dice().below(Domain::User(3), 0, 0, units);
        let segment_bytes = number("chain.segment_kib", 128) << 10;
        let drives = || unit_drives(unit, 3).chain(drives::added_drives(unit));
        let place = number("harm.place", FULL_SEGMENTS);
        let harmed = if place == GROUPS {
            // A start has a group written that vouches for all before it.
            self.cut_power();
            latent::harm_groups(&self.sim, machine(1), drives(), segment_bytes, count)
        } else {
            let harm = if place == FOOTERS { latent::harm_footers } else { latent::harm };
            drives().map(|drive| harm(&self.sim, machine(1), &drive, segment_bytes, count)).sum()
        };
        if place != FULL_SEGMENTS {
            self.cut_power();
        }
        if place == FOOTERS {
            return if harmed > 0 { self.replace_drives(NodeId(unit)) } else { Ok(()) };
        }
        self.shared.history.has_rot.set(harmed > 0);
        Ok(())
    }

    /// Gives a unit another drive in place of those that it has.
    fn replace_drives(&self, node: NodeId) -> Result<(), String> {
        let env = self.sim.env(self.sim.process("replacer", machine(202)));
        let replaced = drives::replace(env.clone(), Rc::clone(&self.shared), node, Rc::clone(&self.replaced));
        let ended = workload::result_of(&env, replaced);
        self.run_until(self.sim.now() + AUDIT_TIME, |_| ended.borrow().is_none()).ok();
        ended.take().unwrap_or_else(|| Err("drives with harmed footers are removed for ever".to_owned()))
    }

    /// Cuts the node's power, and waits until it serves again.
    fn cut_power(&self) {
        let served = self.ended.served.get();
        self.sim.end(self.node, Death::PowerCut);
        self.sim.restart_after(self.node, RESTART);
        self.run_until(self.sim.now() + START_TIME, |world| world.ended.served.get() == served).ok();
    }

    fn is_changing(&self) -> bool {
        self.drives.as_ref().is_some_and(|drives| !drives.is_over.get())
    }

    /// Runs while `condition` holds, starting the node again when it ends by itself.
    fn run_until(&self, deadline: Time, mut condition: impl FnMut(&World) -> bool) -> Result<(), ()> {
        loop {
            let waited = self.sim.run_while(deadline, |_| !self.ended.now.get() && condition(self));
            if !self.ended.now.take() {
                return waited.map_err(|_| ());
            }
            if self.ended.refused_in_a_row.get() > REFUSED_MAX {
                return Err(());
            }
            self.sim.end(self.node, Death::Kill);
            self.sim.restart_after(self.node, RESTART);
        }
    }

    fn audit(&self) -> Result<(), String> {
        let env = self.sim.env(self.sim.process("auditor", machine(200)));
        let done = workload::result_of(&env, workload::audit(env.clone(), Rc::clone(&self.shared)));
        let deadline = self.sim.now() + AUDIT_TIME;
        self.run_until(deadline, |_| done.borrow().is_none()).ok();
        match done.take() {
            None => Err(format!("the audit does not end; the node said {:?}", self.ended.refused.borrow())),
            Some(Err(error)) => Err(format!("the audit failed: {error}")),
            Some(Ok(())) => Ok(()),
        }
    }

    fn points(&self) -> Points {
        let mut points = Points::default();
        let history = &self.shared.history;
        points.see("the node was started again", self.ended.starts.get() > 1);
        points.see("a chain stopped at a failed write", self.ended.chains_stopped.get() > 0);
        points.see("a start was refused", !self.ended.refused.borrow().is_empty());
        points.see("a drive was harmed", self.is_harmed());
        points.see("latent damage was there", history.has_rot.get());
        points.see("a replica has lost what another has", history.lost_copies.get() > 0);
        let drives = |count: fn(&drives::Done) -> u64| self.drives.as_ref().is_some_and(|it| count(it) > 0);
        points.see("a drive was added", drives(|it| it.added.get()));
        points.see("a drive was removed", drives(|it| it.removed.get()));
        points.see("a drive could not be removed", drives(|it| it.refused.get()));
        points.see("a drive with harmed footers was removed", self.replaced.removed.get() > 0);
        history.add_points(&mut points);
        points
    }
}

/// The node's process: serves until a chain stops, then ends, to be started again. `begin` has the cluster as soon as it serves.
pub(super) async fn serve(
    env: Env,
    options: LocalOptions,
    ended: Rc<Ended>,
    begin: impl FnOnce(&Env, &LocalCluster),
) {
    ended.starts.set(ended.starts.get() + 1);
    match LocalCluster::start(&env, options).await {
        Ok(cluster) => {
            ended.refused_in_a_row.set(0);
            ended.served.set(ended.served.get() + 1);
            begin(&env, &cluster);
            cluster.failed().await;
            ended.chains_stopped.set(ended.chains_stopped.get() + 1);
        }
        Err(error) => {
            ended.refused_in_a_row.set(ended.refused_in_a_row.get() + 1);
            let mut refused = ended.refused.borrow_mut();
            if refused.len() < 10 {
                refused.push(error.to_string());
            }
        }
    }
    ended.now.set(true);
}

/// The drives of a unit, the first of them where a unit's data is by itself.
fn unit_drives(unit: u64, count: u64) -> impl Iterator<Item = String> {
    (1..=count).map(move |place| match place {
        1 => format!("data/unit-{unit}.chain"),
        _ => format!("data/unit-{unit}-{place}.chain"),
    })
}

/// What the plan says of the node.
pub(super) fn local_options(plan: &Plan, listen: SocketAddr, planted: Fault) -> LocalOptions {
    let number = |name: &str, default: u64| plan.setting(name, default);
    let segment_bytes = number("chain.segment_kib", 128) << 10;
    // Where drives are removed, they are small at times, so that the others have no room for what is on one.
    let segments_max = if number("operator.drives", 0) > 0 { number("operator.segments", 64) } else { 64 };
    let segments = number("chain.segments", 16).min(segments_max);
    let cached_max = if number("harm.latent", 0) > 0 { 16 << 10 } else { u64::MAX };
    let chain = ChainOptions {
        segment_bytes,
        flights: number("chain.flights", 2) as usize,
        group_max_bytes: number("chain.group_max_bytes", 1 << 20) as usize,
        queue_max_bytes: 1 << 20,
        // What is harmed is seen only where it is read from the drive.
        tail_cache_bytes: number("chain.tail_cache_bytes", 1 << 20).min(cached_max) as usize,
        index_cache_bytes: number("chain.index_cache_bytes", 1 << 20) as usize,
        segments_ready: number("chain.segments_ready", 2) as usize,
        capacity_bytes: (64 << 10) + segment_bytes * segments,
        grow_bytes: 2 * segment_bytes,
        placement: if number("chain.in_turn", 0) == 1 { Placement::RoundRobin } else { Placement::Fill },
        ..ChainOptions::default()
    };
    let replicas = number("topology.replicas", 1);
    let units = number("topology.units", 1).max(replicas);
    let drives = (1..=units).flat_map(|unit| unit_drives(unit, number("unit.drives", 1)));
    let mut options = LocalOptions {
        units: units as usize,
        replicas: replicas as usize,
        drives: drives.map(PathBuf::from).collect(),
        sockets_between_nodes: number("topology.sockets", 0) == 1,
        grants: GrantOptions {
            remembered_max: number("sequencer.remembered", 65_536) as usize,
            remembered_writes_max: number("sequencer.writes", 65_536) as usize,
            checkpoint_every: number("sequencer.checkpoint", 65_536),
        },
        create_bytes: (64 << 10) + 4 * segment_bytes,
        chain,
        ..LocalOptions::new(Path::new("data"), listen)
    };
    planted.put(&mut options);
    options
}
