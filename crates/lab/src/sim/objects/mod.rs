//! The objects scenario: programs with transactions over the same few keys, a node that crashes and begins new epochs under them,
//! and links that lose what they carry. Programs make checkpoints, forget what lies below them and begin from them again.
//! So do they with a store, whose values stay in the log. Some of what they read, and of what their calls give, is told by the view that
//! the node keeps, each unit by a host of its own, of which one does not reach the log now and then. A hashed map is split under all who read it.

mod pairs;
mod spread;
mod truth;
mod watches;
mod workers;

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::sim::{Death, FaultKind, Plan, ProcessId, Setting, Shape, Sim};
use ithaca_env::{Env, Time};
use ithaca_log::client::{Client, ClientOptions};
use ithaca_log::pos::StreamId;
use ithaca_log::server::{Answering, LocalCluster, ViewHost};
use ithaca_object::RuntimeOptions;
use ithaca_object::planted::Planted;
use ithaca_object::remote::{Answer, Host, HostOptions, Refused};

use super::log::{Ended, HORIZON, PATIENCE, PORT, RESTART, local_options, serve, shape_of_one_node};
use super::planted::Fault;
use super::scenario::{Outcome, Points, Scenario, world_of};
use super::workload::{self, machine};
use workers::{Shared, Worker};

/// See the module.
pub struct ObjectsScenario {
    /// A fault in the objects, if it is a test of the test.
    pub planted: Planted,
}

const SETTINGS: &[Setting] = &[
    Setting { name: "topology.units", choices: &[1, 2, 3] },
    Setting { name: "topology.replicas", choices: &[1, 1, 2] },
    Setting { name: "topology.clients", choices: &[2, 3, 4] },
    Setting { name: "topology.sockets", choices: &[0, 1] },
    Setting { name: "workload.operations", choices: &[40, 100, 200] },
    Setting { name: "chain.flights", choices: &[1, 2, 4] },
    Setting { name: "chain.segments", choices: &[64] },
    Setting { name: "link.loss_ppm", choices: &[0, 0, 1_000, 20_000] },
    Setting { name: "link.reset_ppm", choices: &[0, 0, 0, 2_000] },
    Setting { name: "drive.speed", choices: &[1, 1, 2] },
    Setting { name: "drive.jitter_percent", choices: &[0, 30, 300] },
];

impl Scenario for ObjectsScenario {
    fn name(&self) -> &'static str {
        "objects"
    }

    fn shape(&self) -> Shape {
        let drives = (1..=3).map(|unit| ("node".to_owned(), format!("data/unit-{unit}.chain")));
        shape_of_one_node(SETTINGS, drives.collect(), FaultKind::survivable())
    }

    fn run(&self, plan: &Plan, readable: bool) -> Outcome {
        let world = World::new(world_of(plan, readable), plan, self.planted);
        let failure = world.run(plan).err();
        let (points, committed) = (world.points(), world.shared.committed.get());
        Outcome { failure, points, committed, ..Outcome::of(&world.sim) }
    }
}

struct World {
    sim: Sim,
    node: ProcessId,
    shared: Rc<Shared>,
    ended: Rc<Ended>,
    programs: u32,
    planted: Planted,
}

impl World {
    fn new(sim: Sim, plan: &Plan, planted: Planted) -> Self {
        let node = sim.process("node", machine(1));
        let addr = SocketAddr::new(machine(1), PORT);
        let (shared, ended) = (Rc::new(Shared::default()), Rc::new(Ended::default()));
        let (options, told) = (local_options(plan, addr, Fault::None), Rc::clone(&ended));
        let begin = move |env: &Env, cluster: &LocalCluster| host_views(env, cluster, planted);
        sim.start(node, move |env| serve(env, options.clone(), Rc::clone(&told), begin));
        shared.left.set(plan.setting("workload.operations", 100));
        let programs = plan.setting("topology.clients", 3) as u32;
        for number in 1..=programs {
            let env = sim.env(sim.process(&format!("client-{number}"), machine(1 + number as u8)));
            let (program, shared) = (env.clone(), Rc::clone(&shared));
            env.spawn(async move {
                let (client, of_worker) = (connect(&program).await, Rc::clone(&shared));
                match Worker::new(&program, client, of_worker, planted, u64::from(number)) {
                    Ok(worker) => worker.work().await,
                    Err(error) => *shared.wrong.borrow_mut() = Some(error.to_string()),
                }
            });
        }
        Self { sim, node, shared, ended, programs, planted }
    }

    /// Faults, healing, the programs' end, the audit.
    fn run(&self, plan: &Plan) -> Result<(), String> {
        plan.apply(&self.sim).map_err(|error| error.to_string())?;
        self.run_until(Time::ZERO + HORIZON, || true).ok();
        self.sim.heal();
        let is_at_work = || self.shared.done.get() < self.programs && self.shared.wrong.borrow().is_none();
        let ended = self.run_until(self.sim.now() + PATIENCE, is_at_work);
        if let Some(wrong) = self.shared.wrong.borrow().clone() {
            return Err(wrong);
        }
        ended.map_err(|()| "programs are not done long after healing".to_owned())?;
        let env = self.sim.env(self.sim.process("auditor", machine(200)));
        let (program, shared, planted) = (env.clone(), Rc::clone(&self.shared), self.planted);
        let audit = workload::result_of(&env, async move {
            let worker = Worker::new(&program, connect(&program).await, shared, planted, 0);
            worker.map_err(|error| error.to_string())?.audit().await
        });
        self.run_until(self.sim.now() + PATIENCE, || audit.borrow().is_none()).ok();
        audit.take().unwrap_or_else(|| Err("the audit does not end".to_owned()))
    }

    /// Runs while `condition` holds, starting the node again when it ends by itself.
    fn run_until(&self, deadline: Time, mut condition: impl FnMut() -> bool) -> Result<(), ()> {
        loop {
            let waited = self.sim.run_while(deadline, |_| !self.ended.now.get() && condition());
            if !self.ended.now.take() {
                return waited.map_err(|_| ());
            }
            self.sim.end(self.node, Death::Kill);
            self.sim.restart_after(self.node, RESTART);
        }
    }

    fn points(&self) -> Points {
        let mut points = Points::default();
        points.see("the node was started again", self.ended.starts.get() > 1);
        points.see("a transaction was in conflict", self.shared.conflicts.get() > 0);
        points.see("an outcome was not known", self.shared.unknown.get() > 0);
        points.see("values of a store were copied", self.shared.pairs.compacted.get() > 0);
        points.see("a put expected another version", self.shared.pairs.differed.get() > 0);
        points.see("calls were forgotten", self.shared.forgotten.get() > 0);
        points.see("a watch was told of several changes", self.shared.watches.has_told_several());
        points.see("a node said what it has", self.shared.told.get() > 0);
        points.see("a node did not say what a call gave", self.shared.untold.get() > 0);
        points.see("a stream was peeked at", self.shared.peeks.get() > 0);
        points.see("a hashed map was split", self.shared.spread.buckets.get() > 1);
        points
    }
}

/// Has the node keep views of fewer objects than there are, so that they are given up now and then.
fn host_views(env: &Env, cluster: &LocalCluster, planted: Planted) {
    let objects = RuntimeOptions { planted, checkpoints: workers::CHECKPOINTS, ..RuntimeOptions::default() };
    let views_max = if env.random_u64().is_multiple_of(4) { 1 } else { 8 };
    let options = HostOptions { client: client_options(), objects, views_max, ..HostOptions::default() };
    let moody = (env.random_u64() % 4) as usize;
    cluster.host_views_by(|nth| {
        let (host, env) = (Host::new(env, options.clone()), env.clone());
        if nth == moody { Rc::new(Moody { host, env }) } else { Rc::new(host) }
    });
}

/// A host that does not reach the log every now and then.
struct Moody {
    host: Host,
    env: Env,
}

impl ViewHost for Moody {
    fn ask(&self, stream: StreamId, question: Bytes) -> Answering {
        if self.env.random_u64().is_multiple_of(2) {
            return self.host.ask(stream, question);
        }
        let refused = Answer::Refused(Refused::Unavailable { why: "it is in no mood".to_owned() });
        Box::pin(async move { refused.to_bytes() })
    }

    fn forget(&self) {
        self.host.forget();
    }
}

fn client_options() -> ClientOptions {
    ClientOptions {
        endpoints: vec![SocketAddr::new(machine(1), PORT)],
        timeout: Duration::from_secs(2),
        hole_wait: Duration::from_millis(5),
        ..ClientOptions::default()
    }
}

/// A client, as soon as the cluster can be reached.
async fn connect(env: &Env) -> Client {
    loop {
        if let Ok(client) = Client::connect(env, client_options()).await {
            return client;
        }
        env.sleep(Duration::from_millis(10)).await;
    }
}
