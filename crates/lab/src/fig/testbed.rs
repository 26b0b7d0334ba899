//! The testbed of Wei 3.5 in the simulator: servers with two units each in two racks, a sequencer and clients on machines of their
//! own, every machine on a link of 1 Gb/s, every message 1/180,000 s of its sender's processor.
//!
//! Units are processes of their own, as in a cluster of today; what the text says of its hardware is here as a limit, and nothing
//! else is tuned.

use std::cell::Cell;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use ithaca_chain::ChainOptions;
use ithaca_env::Env;
use ithaca_env::sim::{
    DriveId, Lanes, LanesOptions, LinkOptions, ProcessId, Sim, SimOptions, Speed, SpeedModel,
};
use ithaca_env::task::gather;
use ithaca_log::client::{Client, ClientOptions, found};
use ithaca_log::detector::Timing;
use ithaca_log::layout::{Layout, Node};
use ithaca_log::pos::{ClusterId, NodeId};
use ithaca_log::server::{ClusterNode, NodeOptions, ViewHost};
use ithaca_log::wire::Roles;
use ithaca_object::remote::{Host, HostOptions};

/// Messages that a process can send a second: "180K appends/sec; this is the maximum speed of our sequencer implementation, which is
/// a user-space application running over TCP/IP".
pub const MESSAGES_PER_S: u64 = 180_000;
/// A link of 1 Gb/s, in bytes a second.
pub const LINK_BYTES_PER_S: u64 = 125_000_000;
/// Units of one server.
const UNITS_PER_SERVER: usize = 2;
/// Nodes that decide layouts, at the most.
const ACCEPTORS: usize = 5;
const PORT: u16 = 7420;
/// A cluster is formed within this.
const FORM_TIME: Duration = Duration::from_secs(5);

/// What a testbed is to have.
pub struct Setup {
    /// Units, each with two replicas of a stripe.
    pub units: usize,
    /// Machines with a process of clients each.
    pub client_machines: usize,
    /// Clients of each of these processes.
    pub clients: usize,
    /// The drive of a unit.
    pub drive: fn() -> Box<dyn SpeedModel>,
    /// The drives of registers, which lie beside the units.
    pub registers: Speed,
    /// Whether the sequencer has a machine of its own, or is one of the units.
    pub own_sequencer: bool,
    /// Bytes of a segment of a unit's chain.
    pub segment_bytes: u64,
    /// What nodes of the cluster take for a failure of others.
    pub timing: Timing,
    /// The seed of the world.
    pub seed: u64,
}

impl Setup {
    /// A cluster in which nobody is taken for lost, however busy it is, whose sequencer is no unit, and whose drives are no limit.
    pub fn steady(units: usize, client_machines: usize, clients: usize) -> Self {
        let never = Duration::from_secs(3600);
        Self {
            units,
            client_machines,
            clients,
            drive: in_memory,
            registers: Speed::Ram,
            own_sequencer: true,
            segment_bytes: 1 << 20,
            timing: Timing {
                silent_after: never,
                slow_after: never,
                return_after: never,
                ..Timing::default()
            },
            seed: 1,
        }
    }
}

/// A cluster that has been formed, and its clients.
pub struct Testbed {
    /// The world.
    pub sim: Sim,
    /// The first layout.
    pub layout: Layout,
    /// The nodes' processes, in the order of their ids.
    pub nodes: Vec<ProcessId>,
    /// The drives of their units, in the same order.
    pub drives: Vec<DriveId>,
    /// A process that does what an operator does.
    pub operator: ProcessId,
    /// The processes of clients, and the clients of each.
    clients: Vec<(ProcessId, Vec<Client>)>,
}

/// An Intel X25-V as the text has it: "the two drives on a server provide around 40,000 4KB read IOPS", writes "emulated".
pub fn emulated() -> Box<dyn SpeedModel> {
    Box::new(Lanes::new(LanesOptions {
        lanes: 2,
        read_ns: 76_000,
        write_ns: 1_000,
        flush_ns: 0,
        read_bytes_per_us: 170,
        write_bytes_per_us: 10_000,
    }))
}

/// A drive that is no limit: the text's streams and objects were measured "in-memory, with persistence disabled" (Wei 5.5).
pub fn in_memory() -> Box<dyn SpeedModel> {
    Box::new(Lanes::new(LanesOptions {
        lanes: 8,
        read_ns: 1_000,
        write_ns: 1_000,
        flush_ns: 0,
        read_bytes_per_us: 10_000,
        write_bytes_per_us: 10_000,
    }))
}

/// Where a node listens. Units that follow one another by their ids lie in different racks, so that the replicas of a stripe do.
fn place(index: usize, own_sequencer: bool) -> SocketAddr {
    if own_sequencer && index == 0 {
        return SocketAddr::new([10, 2, 0, 1].into(), PORT);
    }
    let unit = index - usize::from(own_sequencer);
    let (rack, within) = (unit % 2, unit / 2);
    let (server, slot) = (within / UNITS_PER_SERVER, within % UNITS_PER_SERVER);
    SocketAddr::new([10, 1, rack as u8, 1 + server as u8].into(), PORT + slot as u16)
}

fn client_machine(client: usize) -> IpAddr {
    [10, 3, 0, 1 + client as u8].into()
}

fn options(registers: Speed) -> SimOptions {
    let link = LinkOptions { split_ppm: 0, short_read_ppm: 0, ..LinkOptions::default() };
    SimOptions {
        drive_speed: registers,
        link: LinkOptions { bytes_per_s: LINK_BYTES_PER_S, ..link.clone() },
        loopback: LinkOptions { bytes_per_s: 5_000_000_000, ..link },
        receive_bytes_per_s: Some(LINK_BYTES_PER_S),
        cpu_per_message: Duration::from_nanos(1_000_000_000 / MESSAGES_PER_S),
        ..SimOptions::default()
    }
}

fn node_options(index: usize, listen: SocketAddr, setup: &Setup) -> NodeOptions {
    let segment_bytes = setup.segment_bytes;
    let id = NodeId(index as u64 + 1);
    let mut options = NodeOptions::new(id, &PathBuf::from(format!("data-{}", id.0)), listen);
    options.create_bytes = (64 << 10) + 16 * segment_bytes;
    options.timing = setup.timing;
    options.chain = ChainOptions {
        segment_bytes,
        // Reads are to come from the drive, as they did: "all reads are served from the SSDs".
        tail_cache_bytes: 64 << 10,
        index_cache_bytes: 4 << 20,
        capacity_bytes: (64 << 10) + 256 * segment_bytes,
        grow_bytes: 8 * segment_bytes,
        ..ChainOptions::default()
    };
    options
}

fn start_node(sim: &Sim, setup: &Setup, index: usize) -> (ProcessId, DriveId) {
    let listen = place(index, setup.own_sequencer);
    let options = node_options(index, listen, setup);
    let path = options.data.join(format!("unit-{}.chain", options.id.0));
    let drive = sim.drive(listen.ip(), &path.to_string_lossy());
    sim.set_drive_speed(drive, (setup.drive)());
    let process = sim.process(&format!("node-{}", options.id.0), listen.ip());
    sim.start(process, move |env| serve(env, options.clone()));
    (process, drive)
}

async fn serve(env: Env, options: NodeOptions) {
    let node = ClusterNode::start(&env, options).await.expect("a node that meets no fault starts");
    let client = ClientOptions { endpoints: vec![node.addr()], ..ClientOptions::default() };
    let host = Host::new(&env, HostOptions { client, ..HostOptions::default() });
    node.host_views(&(Rc::new(host) as Rc<dyn ViewHost>));
    let end = node.ended().await;
    panic!("a node that meets no fault serves on: {end}");
}

/// The members: units that decide layouts if they are among the first, and any unit may be the sequencer unless there is one that is
/// nothing else.
fn members(setup: &Setup, count: usize) -> Vec<Node> {
    let sequencers = usize::from(setup.own_sequencer);
    let acceptors = if setup.units < 3 { 1 } else { ACCEPTORS.min(setup.units - (setup.units + 1) % 2) };
    let member = |index: usize| {
        let mut roles = if index < sequencers { Roles::SEQUENCER } else { Roles::UNIT };
        if !setup.own_sequencer {
            roles = roles.with(Roles::SEQUENCER);
        }
        if (sequencers..sequencers + acceptors).contains(&index) {
            roles = roles.with(Roles::LAYOUT);
        }
        Node::new(NodeId(index as u64 + 1), roles, place(index, setup.own_sequencer).to_string())
    };
    (0..count).map(member).collect()
}

fn form(sim: &Sim, operator: ProcessId, setup: &Setup, count: usize) -> Layout {
    let layout = Layout::first(ClusterId(1), members(setup, count), 2, 1).expect("a layout of two replicas");
    let places: Vec<(NodeId, SocketAddr)> =
        (0..count).map(|index| (NodeId(index as u64 + 1), place(index, setup.own_sequencer))).collect();
    let (env, told) = (sim.env(operator), layout.clone());
    sim.block_on(operator, async move {
        let deadline = env.now() + FORM_TIME;
        // At the same time: whoever joins much later than the others is taken for lost.
        let telling = places.into_iter().map(|at| found(&env, at, &told, deadline));
        for answer in gather(telling.collect(), Result::is_err).await {
            answer.expect("none has failed").expect("a node that meets no fault joins");
        }
    });
    layout
}

impl Testbed {
    /// Starts the nodes, forms the cluster and connects the clients.
    pub fn new(setup: &Setup) -> Self {
        let sim = Sim::with_options(setup.seed, options(setup.registers));
        let count = setup.units + usize::from(setup.own_sequencer);
        let (nodes, drives) = (0..count).map(|index| start_node(&sim, setup, index)).unzip();
        let operator = sim.process("operator", [10, 2, 0, 2].into());
        let layout = form(&sim, operator, setup, count);
        let endpoints: Vec<SocketAddr> =
            (0..count.min(3)).map(|index| place(index, setup.own_sequencer)).collect();
        let connect = |machine| connect(&sim, machine, setup.clients, &endpoints);
        let clients = (0..setup.client_machines).map(connect).collect();
        Self { sim, layout, nodes, drives, operator, clients }
    }

    /// Has so many clients of each process do `work`, each in so many tasks, again and again, until they are [stopped](Self::stop).
    /// `work` is told which time it is, of all.
    pub fn start<F: Future<Output = ()> + 'static>(
        &self,
        (clients, tasks): (usize, usize),
        work: impl Fn(Client, u64) -> F + 'static,
    ) -> Rc<Load> {
        let work = Rc::new(work);
        let load = Rc::new(Load { running: Cell::new(true), ..Load::default() });
        for machine in 0..self.clients.len() {
            (0..clients * tasks).for_each(|number| self.start_one(&load, (machine, number % clients), &work));
        }
        load
    }

    /// The same for the first client of one process.
    pub fn start_at<F: Future<Output = ()> + 'static>(
        &self,
        machine: usize,
        tasks: usize,
        work: impl Fn(Client, u64) -> F + 'static,
    ) -> Rc<Load> {
        let work = Rc::new(work);
        let load = Rc::new(Load { running: Cell::new(true), ..Load::default() });
        (0..tasks).for_each(|_| self.start_one(&load, (machine, 0), &work));
        load
    }

    fn start_one<F: Future<Output = ()> + 'static>(
        &self,
        load: &Rc<Load>,
        (machine, client): (usize, usize),
        work: &Rc<impl Fn(Client, u64) -> F + 'static>,
    ) {
        let (process, clients) = &self.clients[machine];
        let (load, work, client) = (Rc::clone(load), Rc::clone(work), clients[client].clone());
        load.tasks.set(load.tasks.get() + 1);
        self.sim.env(*process).spawn(async move {
            while load.running.get() {
                let turn = load.turns.replace(load.turns.get() + 1);
                work(client.clone(), turn).await;
                load.done.set(load.done.get() + 1);
            }
            load.tasks.set(load.tasks.get() - 1);
        });
    }

    /// Lets clients end what they have under way, and waits for that.
    pub fn stop(&self, load: &Load) {
        load.running.set(false);
        let ended = self.sim.run_while(self.sim.now() + FORM_TIME, |_| load.tasks.get() > 0);
        assert!(ended.is_ok(), "calls of a cluster without faults end: {ended:?}");
    }

    /// [Starts](Self::start) clients, lets them work for `warm` and then for `span`, and stops them. Returns how much was done in `span`.
    pub fn measure<F: Future<Output = ()> + 'static>(
        &self,
        clients_and_tasks: (usize, usize),
        (warm, span): (Duration, Duration),
        work: impl Fn(Client, u64) -> F + 'static,
    ) -> u64 {
        let load = self.start(clients_and_tasks, work);
        self.sim.run_for(warm);
        let before = load.done.get();
        self.sim.run_for(span);
        let done = load.done.get() - before;
        self.stop(&load);
        done
    }

    /// Every client, with the environment of its process.
    pub fn programs(&self) -> Vec<(Env, Client)> {
        let of = |(process, clients): &(ProcessId, Vec<Client>)| {
            let env = self.sim.env(*process);
            clients.iter().map(move |client| (env.clone(), client.clone())).collect::<Vec<_>>()
        };
        self.clients.iter().flat_map(of).collect()
    }

    /// The first client of a process, and the process.
    pub fn client(&self, machine: usize) -> (ProcessId, Client) {
        let (process, clients) = &self.clients[machine];
        (*process, clients[0].clone())
    }
}

/// Clients at work.
#[derive(Default)]
pub struct Load {
    running: Cell<bool>,
    turns: Cell<u64>,
    done: Cell<u64>,
    tasks: Cell<usize>,
}

impl Load {
    /// How often the work was done so far.
    pub fn done(&self) -> u64 {
        self.done.get()
    }
}

/// Clients that take their tokens themselves and write to one replica after the other, as the text's do.
fn connect(sim: &Sim, machine: usize, count: usize, endpoints: &[SocketAddr]) -> (ProcessId, Vec<Client>) {
    let process = sim.process(&format!("client-{machine}"), client_machine(machine));
    let one = |_| {
        let options = ClientOptions {
            endpoints: endpoints.to_vec(),
            forward_appends: false,
            relay_writes: false,
            ..ClientOptions::default()
        };
        let env = sim.env(process);
        let connected = sim.block_on(process, async move { Client::connect(&env, options).await });
        connected.expect("a cluster without faults is reached")
    };
    (process, (0..count).map(one).collect())
}
