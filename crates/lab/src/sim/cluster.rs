//! The cluster scenario: every node is a process on a machine of its own, and whatever the plan does to them, to their
//! drives and to the links between them, the log stays one log.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::time::Duration;

use ithaca_chain::ChainOptions;
use ithaca_env::sim::{Death, Domain, FaultKind, Plan, ProcessId, Setting, Shape, Sim};
use ithaca_env::{Env, Time};
use ithaca_log::client::{ClientError, Forming, form};
use ithaca_log::planted::Planted;
use ithaca_log::pos::{Epoch, LogPos, NodeId};
use ithaca_log::server::{ClusterNode, NodeEnd, NodeOptions, StartError};

use super::latent;
use super::loss::{self, Gone, Loss};
use super::operator;
use super::oracle;
use super::scenario::{Outcome, Points, Scenario, world_of};
use super::unneeded;
use super::workload::{self, Shared, machine};

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
/// Looks at a layout that does not change, a tenth of a second apart, until no node of it can be dead without being missed.
const LOOKS_UNTIL_QUIET: u32 = 10;
/// A process that ended by itself is started again after this.
const RESTART: Duration = Duration::from_millis(50);
/// How often a node looks up to where the log is trimmed.
const FIND_TRIMMED_EVERY: Duration = Duration::from_millis(500);
/// How often a node looks whether its drive has lost anything.
const REPAIR_EVERY: Duration = Duration::from_millis(100);
/// Where every node listens.
const PORT: u16 = 7420;
/// The most nodes that a plan has.
const NODES_MAX: u8 = 5;
/// Bytes of a segment; segments of a drive, and of a small one.
const SEGMENT_BYTES: u64 = 128 << 10;
const SEGMENTS: u64 = 64;
const SEGMENTS_SMALL: u64 = 7;
/// The most nodes that are added, and that are removed.
const ADDED_MAX: u8 = 2;

/// The cluster scenario.
pub struct ClusterScenario {
    /// A fault in the system, if it is a test of the test.
    pub planted: Planted,
}

const SETTINGS: &[Setting] = &[
    Setting { name: "topology.nodes", choices: &[3, 3, 3, 4, 5] },
    Setting { name: "topology.replicas", choices: &[1, 2, 2, 2, 3] },
    Setting { name: "topology.min_replicas", choices: &[1, 1, 2] },
    Setting { name: "topology.added", choices: &[0, 0, 1, 2] },
    Setting { name: "topology.removed", choices: &[0, 0, 1, 2] },
    Setting { name: "topology.clients", choices: &[1, 2, 3] },
    Setting { name: "topology.followers", choices: &[0, 1] },
    Setting { name: "topology.small", choices: &[0, 0, 0, 1, 2, 7] },
    Setting { name: "topology.lost", choices: &[0, 0, 0, 0, 0, 1] },
    Setting { name: "harm.latent", choices: &[0, 0, 2, 8] },
    Setting { name: "workload.operations", choices: &[40, 100, 200, 400] },
    Setting { name: "workload.entry_max_bytes", choices: &[64, 300, 5_000] },
    Setting { name: "workload.burst_max", choices: &[1, 4, 16] },
    Setting { name: "workload.forwarded", choices: &[0, 1, 1, 2] },
    Setting { name: "workload.relayed", choices: &[0, 1] },
    Setting { name: "workload.pause_us", choices: &[3_000, 100_000, 300_000] },
    Setting { name: "workload.streams", choices: &[0, 0, 0, 1, 4] },
    Setting { name: "sequencer.remembered", choices: &[1, 4, 65_536] },
    Setting { name: "sequencer.writes", choices: &[4, 65_536] },
    Setting { name: "sequencer.checkpoint", choices: &[4, 30, 65_536] },
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
        let world = World::new(world_of(plan, readable), plan, self.planted);
        let failure = world.run(plan).err();
        let (points, history) = (world.points(), Rc::clone(&world.shared.history));
        let committed = history.acknowledged() as u64;
        Outcome { failure, points, committed, history, ..Outcome::of(&world.sim) }
    }
}

fn node_name(id: u8) -> String {
    format!("node-{id}")
}

struct World {
    sim: Sim,
    /// Those that the cluster is formed of, then those that are added.
    nodes: Vec<(ProcessId, Rc<Life>)>,
    shared: Rc<Shared>,
    operated: Rc<operator::Done>,
    /// Whether some nodes have small drives.
    is_small: bool,
    /// Whether a node was left out of the active range because it had no room.
    was_full: Cell<bool>,
    /// Places of a node's drive that were harmed when all was over.
    harmed: Cell<u64>,
    /// Entries that nodes had lost and have copied from others.
    repaired: Cell<u64>,
    /// Whether ranges that were trimmed wholly are gone from the layout.
    has_forgotten: Cell<bool>,
    /// Whether the others went on without nodes that were gone for good.
    has_given_up: Cell<bool>,
}

/// What comes of a loss, when it has.
type Going = Rc<RefCell<Option<Result<Gone, String>>>>;

/// What a node's process says of itself.
#[derive(Default)]
struct Life {
    ended: Cell<bool>,
    /// It said that it was removed from its cluster.
    removed: Cell<bool>,
    /// It is never to start again.
    gone: Cell<bool>,
    /// The node, while it runs.
    node: RefCell<Weak<ClusterNode>>,
    starts: Cell<u64>,
    refused: RefCell<Vec<String>>,
}

impl World {
    fn new(sim: Sim, plan: &Plan, planted: Planted) -> Self {
        let count = (plan.setting("topology.nodes", 3) as u8).clamp(1, NODES_MAX);
        let addr = |id: u8| SocketAddr::new(machine(id), PORT);
        let shared = Shared::of_plan(plan, (1..=count).map(addr).collect(), planted);
        let start = |id: u8| {
            let process = sim.process(&node_name(id), machine(id));
            let life = Rc::new(Life::default());
            let (told, options) = (Rc::clone(&life), node_options(plan, id, addr(id), planted));
            sim.start(process, move |env| serve(env, options.clone(), Rc::clone(&told)));
            (process, life)
        };
        let added = if loses(plan) { ADDED_MAX.into() } else { plan.setting("topology.added", 0) };
        let added = added.min(ADDED_MAX.into()) as u8;
        let nodes = (1..=count + added).map(start).collect();
        World {
            sim,
            nodes,
            shared,
            operated: Rc::default(),
            is_small: plan.setting("topology.small", 0) > 0,
            was_full: Cell::default(),
            harmed: Cell::default(),
            repaired: Cell::default(),
            has_forgotten: Cell::default(),
            has_given_up: Cell::default(),
        }
    }

    /// The servers that the cluster is not formed of.
    fn spare(&self) -> Vec<(NodeId, SocketAddr)> {
        let formed = self.shared.addrs.len();
        let spare = (formed + 1..=self.nodes.len()).map(|id| id as u8);
        spare.map(|id| (NodeId(id.into()), SocketAddr::new(machine(id), PORT))).collect()
    }

    /// Starts the operator: what became of all that it does.
    fn operate(&self, plan: &Plan) -> Rc<RefCell<Option<Result<(), String>>>> {
        let env = self.sim.env(self.sim.process("operator", machine(203)));
        let removals = plan.setting("topology.removed", 0).min(ADDED_MAX.into());
        let (added, removals) = if loses(plan) { (Vec::new(), 0) } else { (self.spare(), removals) };
        let task = operator::Task { added, removals, pause: HORIZON / 3 };
        let (shared, done) = (Rc::clone(&self.shared), Rc::clone(&self.operated));
        workload::result_of(&env, operator::operate(env.clone(), shared, task, done))
    }

    /// Forming, faults, healing, the clients' end, the audit, the verdict.
    fn run(&self, plan: &Plan) -> Result<(), String> {
        self.form(plan)?;
        let all = self.shared.start(&self.sim, plan, 100, 150);
        let operated = self.operate(plan);
        plan.apply(&self.sim).map_err(|error| error.to_string())?;
        let lost = if loses(plan) { self.lose() } else { None };
        self.run_until(Time::ZERO + HORIZON, || true).ok();
        self.sim.heal();
        let deadline = self.sim.now() + PATIENCE;
        let ended = self
            .end_of_loss(lost)
            .and_then(|()| self.end_of_clients(deadline, all))
            .and_then(|()| self.make_room())
            .and_then(|()| self.end_of(&operated))
            .and_then(|()| self.recover(plan))
            .map(|()| self.harm(plan))
            .and_then(|()| self.audit());
        oracle::judge(&self.shared.history)?;
        ended
    }

    fn end_of_clients(&self, deadline: Time, all: u32) -> Result<(), String> {
        self.run_until(deadline, || self.shared.done.get() < all).map_err(|()| {
            let done = self.shared.done.get();
            format!("{done} of {all} clients are done long after healing; {}", self.said())
        })
    }

    fn form(&self, plan: &Plan) -> Result<(), String> {
        let operator = self.sim.env(self.sim.process("operator", machine(201)));
        let ids = (1..).map(NodeId);
        let replicas = plan.setting("topology.replicas", 2).min(self.nodes.len() as u64) as u16;
        let forming = Forming {
            nodes: ids.zip(self.shared.addrs.iter().copied()).collect(),
            replicas,
            min_replicas: replicas.min(plan.setting("topology.min_replicas", 1) as u16),
            timeout: FORM_TIME,
        };
        let env = operator.clone();
        let done = workload::result_of(&operator, async move { form(&env, &forming).await });
        let deadline = self.sim.now() + 2 * FORM_TIME;
        self.run_until(deadline, || done.borrow().is_none()).ok();
        match done.take() {
            Some(Ok(_)) => Ok(()),
            Some(Err(error)) => Err(format!("forming: {error}; {}", self.said())),
            None => Err(format!("forming does not end; {}", self.said())),
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
                self.sim.end(*process, Death::Kill);
                if !life.removed.get() {
                    self.sim.restart_after(*process, RESTART);
                }
            }
        }
    }

    /// Where drives are small everything is trimmed: from then on nothing may be short of room.
    fn make_room(&self) -> Result<(), String> {
        if !self.is_small {
            return Ok(());
        }
        let env = self.sim.env(self.sim.process("trimmer", machine(204)));
        let made = workload::result_of(&env, workload::make_room(env.clone(), Rc::clone(&self.shared)));
        let deadline = self.sim.now() + RECOVERY_TIME;
        self.run_until(deadline, || made.borrow().is_none()).ok();
        match made.take() {
            Some(was_full) => self.was_full.set(was_full),
            None => return Err(format!("nothing is trimmed long after healing; {}", self.said())),
        }
        Ok(())
    }

    /// Nodes go for good, once the others know all that they know: what is decided and not told is lost with them. Gives who went, and what comes
    /// of it.
    fn lose(&self) -> Option<(Vec<NodeId>, Going)> {
        let count = self.shared.addrs.len();
        let loss = Loss::draw(self.sim.dice(), count as u64, HORIZON);
        let is_gone = |id: usize| loss.gone.contains(&NodeId(id as u64));
        let newest = |gone: bool| {
            let all = (1..=count).filter(|&id| is_gone(id) == gone);
            let nodes: Option<Vec<_>> = all.map(|id| self.nodes[id - 1].1.node.borrow().upgrade()).collect();
            nodes?.iter().map(|node| node.epoch()).max()
        };
        self.run_until(Time::ZERO + loss.at, || true).ok();
        let may_go = || newest(true).zip(newest(false)).is_some_and(|(gone, left)| gone <= left);
        self.run_until(Time::ZERO + HORIZON, || !may_go()).ok()?;
        let gone = loss.gone.clone();
        for (process, life) in gone.iter().map(|node| &self.nodes[node.0 as usize - 1]) {
            life.gone.set(true);
            self.sim.end(*process, Death::PowerCut);
        }
        let env = self.sim.env(self.sim.process("operator-of-loss", machine(205)));
        let going = loss::go_on(env.clone(), Rc::clone(&self.shared), loss, self.spare());
        Some((gone, workload::result_of(&env, going)))
    }

    /// The others have gone on. Those who went come back after all: they are members still, or learn that they are not.
    fn end_of_loss(&self, lost: Option<(Vec<NodeId>, Going)>) -> Result<(), String> {
        let Some((gone, going)) = lost else { return Ok(()) };
        let deadline = self.sim.now() + PATIENCE;
        self.run_until(deadline, || going.borrow().is_none()).ok();
        match going.take() {
            Some(Ok(Gone::GivenUp { added })) => {
                self.has_given_up.set(true);
                self.operated.added.borrow_mut().extend(added);
                self.operated.removed.borrow_mut().extend(&gone);
            }
            Some(Ok(Gone::Missed)) => {}
            Some(Err(error)) => return Err(format!("{error}; {}", self.said())),
            None => {
                return Err(format!("nothing goes on without {gone:?} long after healing; {}", self.said()));
            }
        }
        let gone = || gone.iter().map(|node| &self.nodes[node.0 as usize - 1]);
        for (process, life) in gone() {
            life.gone.set(false);
            self.sim.end(*process, Death::Kill);
            self.sim.restart_after(*process, RESTART);
        }
        // A client that begins by one of them, and hears then that there was a loss, goes no further.
        let may_mislead = || self.has_given_up.get() && gone().any(|(_, life)| !life.removed.get());
        let deadline = self.sim.now() + RECOVERY_TIME;
        let waited = self.run_until(deadline, may_mislead);
        waited.map_err(|()| format!("who was given up does not know it long after; {}", self.said()))
    }

    /// The operator's work is done.
    fn end_of(&self, operated: &Rc<RefCell<Option<Result<(), String>>>>) -> Result<(), String> {
        let deadline = self.sim.now() + PATIENCE;
        self.run_until(deadline, || operated.borrow().is_none()).ok();
        let (added, removed) = (self.operated.added.borrow(), self.operated.removed.borrow());
        match operated.take() {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(format!("{error}; {}", self.said())),
            None => Err(format!(
                "added {added:?} and removed {removed:?}, and no more long after healing: {}; {}",
                self.newest(),
                self.said()
            )),
        }
    }

    /// Every member is in use again and has room, every entry has its copies, and who was removed knows it.
    fn recover(&self, plan: &Plan) -> Result<(), String> {
        // A drive is harmed only where every copy is there: a node that has just died is counted on until it is missed.
        let looks = if plan.setting("harm.latent", 0) > 0 { LOOKS_UNTIL_QUIET } else { 1 };
        let env = self.sim.env(self.sim.process("observer", machine(202)));
        let seen = Rc::new(RefCell::new(String::new()));
        let (shared, told, observer) = (Rc::clone(&self.shared), Rc::clone(&seen), env.clone());
        let whole = workload::result_of(&env, async move {
            let client = shared.connect(&observer, 0).await;
            let (mut looked, mut epoch) = (0, Epoch(0));
            loop {
                let layout = match client.check().await {
                    Ok(_) => client.layout().await,
                    Err(error) => Err(error),
                };
                match layout {
                    Ok(layout) if layout.is_whole() && layout.units().count() == layout.nodes.len() => {
                        looked = if layout.epoch == epoch { looked + 1 } else { 1 };
                        epoch = layout.epoch;
                        if looked == looks {
                            return layout.start() > LogPos(0);
                        }
                    }
                    Ok(layout) => {
                        looked = 0;
                        *told.borrow_mut() = format!("{:?} {:?}", layout.nodes, layout.ranges);
                    }
                    Err(error) => *told.borrow_mut() = error.to_string(),
                }
                observer.sleep(Duration::from_millis(100)).await;
            }
        });
        let deadline = self.sim.now() + RECOVERY_TIME;
        let removed = self.operated.removed.borrow().clone();
        let lives = || removed.iter().map(|node| (node, &self.nodes[node.0 as usize - 1].1));
        let unaware = || lives().find(|(_, life)| !life.removed.get()).map(|(node, _)| *node);
        self.run_until(deadline, || whole.borrow().is_none() || unaware().is_some()).ok();
        self.has_forgotten.set(whole.borrow().unwrap_or_default());
        match (whole.borrow().is_some(), unaware()) {
            (true, None) => return Ok(()),
            (true, Some(node)) => return Err(format!("node {node} does not know that it was removed")),
            (false, _) => {}
        }
        let known = seen.borrow();
        Err(format!("copies are missing {RECOVERY_TIME:?} after healing: {known}; {}", self.said()))
    }

    /// Harms what one node holds, once all copies are there: the audit must find them all there again.
    fn harm(&self, plan: &Plan) {
        let count = plan.setting("harm.latent", 0);
        let members = self.nodes.iter().zip(1_u8..).filter(|((_, life), _)| !life.removed.get());
        let members: Vec<u8> = members.map(|(_, id)| id).collect();
        if count == 0 || plan.setting("topology.replicas", 2) < 2 || members.is_empty() {
            return;
        }
        let id = members[self.sim.dice().below(Domain::User(3), 0, 0, members.len() as u64) as usize];
        let drive = format!("data/unit-{id}.chain");
        let harmed = latent::harm(&self.sim, machine(id), &drive, SEGMENT_BYTES, count);
        self.harmed.set(harmed);
    }

    fn audit(&self) -> Result<(), String> {
        let env = self.sim.env(self.sim.process("auditor", machine(200)));
        let done = workload::result_of(&env, workload::audit(env.clone(), Rc::clone(&self.shared)));
        let deadline = self.sim.now() + AUDIT_TIME;
        self.run_until(deadline, || done.borrow().is_none()).ok();
        match done.take() {
            None => Err(format!("the audit does not end; {}", self.said())),
            Some(Err(error)) => Err(format!("the audit failed: {error}; {}", self.said())),
            Some(Ok(())) => self.nothing_unneeded(),
        }
    }

    /// What was trimmed, and what no layout names any more, takes room nowhere.
    fn nothing_unneeded(&self) -> Result<(), String> {
        let env = self.sim.env(self.sim.process("auditor", machine(200)));
        let (observer, shared) = (env.clone(), Rc::clone(&self.shared));
        let held = workload::result_of(&env, async move {
            let client = shared.connect(&observer, 0).await;
            let held = unneeded::held(&observer, &client).await?;
            Ok::<_, ClientError>((held, workload::counted(&client, "lost_entries_repaired").await?))
        });
        let deadline = self.sim.now() + RECOVERY_TIME;
        self.run_until(deadline, || held.borrow().is_none()).ok();
        match held.take() {
            Some(Ok((None, repaired))) => {
                self.repaired.set(repaired);
                Ok(())
            }
            Some(Ok((Some(what), _))) => Err(what),
            Some(Err(error)) => Err(format!("a node does not say what it holds: {error}; {}", self.said())),
            None => Err(format!("nodes do not say what they hold; {}", self.said())),
        }
    }

    /// The newest layout, in words for people.
    fn newest(&self) -> String {
        let env = self.sim.env(self.sim.process("observer", machine(202)));
        let (shared, observer) = (Rc::clone(&self.shared), env.clone());
        let known = workload::result_of(&env, async move {
            let layout = shared.connect(&observer, 0).await.layout().await;
            layout.map_or_else(
                |error| error.to_string(),
                |layout| format!("{:?} {:?}", layout.nodes, layout.ranges),
            )
        });
        let deadline = self.sim.now() + AUDIT_TIME;
        self.run_until(deadline, || known.borrow().is_none()).ok();
        known.take().unwrap_or_default()
    }

    /// What the nodes said when they did not start.
    fn said(&self) -> String {
        let said: Vec<String> =
            self.nodes.iter().flat_map(|(_, life)| life.refused.borrow().clone()).collect();
        format!("refused starts: {said:?}")
    }

    fn points(&self) -> Points {
        let mut points = Points::default();
        points.see("a node was started again", self.nodes.iter().any(|(_, life)| life.starts.get() > 1));
        points.see("a node was added", !self.operated.added.borrow().is_empty());
        points.see("a trimmed range was left out", self.has_forgotten.get());
        points.see("nodes were given up", self.has_given_up.get());
        points.see("another replica than the last was read", self.shared.elsewhere.get() > 0);
        points.see("latent damage was there", self.harmed.get() > 0);
        points.see("a lost entry was repaired", self.repaired.get() > 0);
        points.see("a node had no room", self.was_full.get());
        points.see("a node was removed", !self.operated.removed.borrow().is_empty());
        self.shared.history.add_points(&mut points);
        points
    }
}

/// Whether nodes go for good.
fn loses(plan: &Plan) -> bool {
    plan.setting("topology.lost", 0) > 0
}

/// A node's process: serves until its chain stops, then ends, to be started again.
async fn serve(env: Env, options: NodeOptions, life: Rc<Life>) {
    if life.gone.get() {
        return;
    }
    life.starts.set(life.starts.get() + 1);
    match ClusterNode::start(&env, options).await {
        Ok(node) => {
            let node = Rc::new(node);
            life.node.replace(Rc::downgrade(&node));
            let end = node.ended().await;
            life.removed.set(matches!(end, NodeEnd::Removed { .. }));
        }
        Err(error) => {
            life.removed.set(matches!(error, StartError::Removed { .. }));
            let mut refused = life.refused.borrow_mut();
            if refused.len() < 10 {
                refused.push(error.to_string());
            }
        }
    }
    life.ended.set(true);
}

fn node_options(plan: &Plan, id: u8, listen: SocketAddr, planted: Planted) -> NodeOptions {
    let segment_bytes = SEGMENT_BYTES;
    let is_harmed = plan.setting("harm.latent", 0) > 0;
    let is_small = u64::from(id) <= plan.setting("topology.small", 0);
    let segments = if is_small { SEGMENTS_SMALL } else { SEGMENTS };
    let chain = ChainOptions {
        segment_bytes,
        queue_max_bytes: 1 << 20,
        // What is harmed is seen only where it is read from the drive.
        tail_cache_bytes: if is_harmed { 16 << 10 } else { 1 << 20 },
        index_cache_bytes: 1 << 20,
        segments_ready: 2,
        capacity_bytes: (64 << 10) + segment_bytes * segments,
        grow_bytes: 2 * segment_bytes,
        ..ChainOptions::default()
    };
    let mut options = NodeOptions::new(NodeId(id.into()), Path::new("data"), listen);
    options.create_bytes = (64 << 10) + 4 * segment_bytes;
    options.chain = chain;
    options.grants.remembered_max = plan.setting("sequencer.remembered", 65_536) as usize;
    options.grants.remembered_writes_max = plan.setting("sequencer.writes", 65_536) as usize;
    options.grants.checkpoint_every = plan.setting("sequencer.checkpoint", 65_536);
    options.find_trimmed_every = FIND_TRIMMED_EVERY;
    options.repair_every = REPAIR_EVERY;
    options.planted = planted;
    options.unit.planted = planted;
    options
}
