//! Deciding layouts over a network: three simulated machines that do nothing but decide, and a fourth that proposes.

use std::cell::{Cell, OnceCell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use ithaca_env::drive::OpenDrive;
use ithaca_env::sim::{ProcessId, Sim};
use ithaca_env::task::gather;
use ithaca_env::{Env, Time};

use super::decide::{Preparation, Proposal, learn, prepare};
use super::layouts::LayoutKeeper;
use super::node::Node;
use super::peers::{Peer, Peers};
use super::register::{Purpose, Register};
use crate::client::{ClientError, Connection, Identity};
use crate::layout::{self, Acceptor, Layout};
use crate::limits;
use crate::planted::Planted;
use crate::pos::{ClientId, ClusterId, Epoch, Incarnation, LogPos, NodeId};
use crate::wire::{GetLayout, LayoutRecord, Roles};

const CLUSTER: ClusterId = ClusterId(7);

fn addr(id: u64) -> SocketAddr {
    ([10, 0, 0, id as u8], 7420).into()
}

fn acceptors(env: &Env) -> Vec<Rc<Peer>> {
    let peers = Peers::new(env, CLUSTER);
    (1..=3).map(|id| peers.at(NodeId(id), addr(id))).collect()
}

fn first() -> Layout {
    let roles =
        |id| if id == 1 { Roles::LAYOUT.with(Roles::SEQUENCER).with(Roles::UNIT) } else { Roles::LAYOUT };
    let node = |id| layout::Node::new(NodeId(id), roles(id), addr(id).to_string());
    Layout::first(CLUSTER, (1..=3).map(node).collect(), 1, 1).expect("a layout")
}

/// A node that keeps layouts, from its start to its end.
async fn serve(env: Env, id: u64) {
    let create_bytes = Some(Purpose::Layouts.register_bytes());
    let open = OpenDrive { path: "layout.register".into(), create_bytes, read_only: false };
    let (register, value) = Register::open(&env, open, Purpose::Layouts).await.expect("a register");
    let id = NodeId(id);
    let acceptor = match value {
        Some(value) => Acceptor::recover(id, &value, Planted::NONE).expect("what it stored"),
        None => Acceptor::new(id, Planted::NONE),
    };
    let node = Rc::new(Node {
        env: env.clone(),
        id,
        cluster: Cell::new(CLUSTER),
        incarnation: Incarnation(env.wall_clock_ms()),
        unit: OnceCell::new(),
        drives: OnceCell::new(),
        relay: OnceCell::new(),
        leases: super::leases::Leases::not_needed(&env),
        member: OnceCell::new(),
        offers: Roles::OFFERED,
        sequencer: RefCell::default(),
        forwarder: RefCell::default(),
        streams: Default::default(),
        layouts: Some(LayoutKeeper::new(&env, register, acceptor, Planted::NONE)),
        counts_process: false,
        started: env.now(),
        counters: Default::default(),
        views: Default::default(),
    });
    let listener = env.listen(addr(id.0)).expect("a port");
    let _serving = node.serve(listener);
    std::future::pending().await
}

/// Three nodes that keep layouts, and one that proposes.
struct World {
    sim: Sim,
    nodes: Vec<ProcessId>,
    proposer: ProcessId,
}

impl World {
    fn new(seed: u64) -> Self {
        let sim = Sim::new(seed);
        let process = |id: u64| {
            let process = sim.process(&format!("node-{id}"), addr(id).ip());
            sim.start(process, move |env| serve(env, id));
            process
        };
        let nodes = (1..=3).map(process).collect();
        let proposer = sim.process("proposer", addr(4).ip());
        Self { sim, nodes, proposer }
    }

    /// What the proposing machine does, which is given its environment and a deadline in five seconds.
    fn run<T: 'static, F: Future<Output = T> + 'static>(&self, what: impl FnOnce(Env, Time) -> F) -> T {
        let env = self.sim.env(self.proposer);
        let deadline = env.now() + Duration::from_secs(5);
        self.sim.block_on(self.proposer, what(env, deadline))
    }

    /// Has the epoch after `before`, or the first, decided.
    fn decide(&self, before: Option<&Layout>, tail: u64) -> Result<Layout, ClientError> {
        let before = before.cloned();
        self.run(async move |env, deadline| decide(&env, 4, before, tail, deadline).await)
    }

    /// Every node is told of a layout; how many know it.
    fn tell(&self, layout: &Layout) -> usize {
        let layout = layout.clone();
        self.run(async move |env, deadline| learn(&acceptors(&env), &layout, deadline).await)
    }

    /// The latest epoch that a node knows.
    fn latest(&self, id: u64) -> Epoch {
        self.run(async move |env, deadline| {
            let who = Identity { client: ClientId(1), node: NodeId(id), cluster: CLUSTER };
            let connection = Connection::open(&env, addr(id), who, deadline).await.expect("it serves");
            let asked = connection.call(&env, Epoch(0), &GetLayout { epoch: None }, deadline).await;
            let (LayoutRecord { record }, _, _) = asked.expect("it knows a layout");
            Layout::decode(&record).expect("a layout").epoch
        })
    }
}

/// Has the epoch after `before`, or the first, decided by node `me`, which found this tail.
async fn decide(
    env: &Env,
    me: u64,
    before: Option<Layout>,
    tail: u64,
    deadline: Time,
) -> Result<Layout, ClientError> {
    let layout = before.as_ref().map_or_else(first, |before| before.next_epoch(LogPos(tail)));
    let acceptors = acceptors(env);
    let proposal = Proposal { me: NodeId(me), acceptors, before, planted: Planted::NONE };
    match prepare(env, proposal, deadline).await? {
        Preparation::Decided(layout) => Ok(layout),
        Preparation::Open(prepared) => prepared.propose(&layout, deadline).await,
    }
}

#[test]
fn layouts_follow_each_other_and_survive_every_acceptor() {
    let world = World::new(1);
    let one = world.decide(None, 0).expect("a majority");
    assert_eq!(one, first());
    let two = world.decide(Some(&one), 20).expect("a majority");
    assert_eq!((two.epoch, two.tail()), (Epoch(2), LogPos(20)));
    world.nodes.iter().for_each(|&node| world.sim.restart(node));
    let again = world.decide(Some(&one), 30).expect("a majority");
    assert_eq!(again, two, "it was decided before");
    assert_eq!(world.tell(&two), 3);
    world.nodes.iter().for_each(|&node| world.sim.restart(node));
    world.sim.run_for(Duration::from_secs(1));
    assert_eq!([1, 2, 3].map(|id| world.latest(id)), [Epoch(2); 3]);
}

#[test]
fn proposers_that_meet_agree() {
    for seed in 0..20 {
        let world = World::new(seed);
        let before = world.decide(None, 0).expect("a majority");
        let decided = world.run(async move |env, deadline| {
            let proposers = [4, 5, 6].map(|me| decide(&env, me, Some(before.clone()), 10 + me, deadline));
            gather(Vec::from(proposers), |_| false).await
        });
        let tails: Vec<LogPos> =
            decided.into_iter().map(|decided| decided.expect("it ended").expect("in time").tail()).collect();
        assert!(tails.iter().all(|tail| *tail == tails[0]), "seed {seed}: {tails:?}");
        assert!((14..=16).contains(&tails[0].0), "seed {seed}: nobody proposed {}", tails[0]);
    }
}

#[test]
fn a_minority_that_is_gone_is_not_missed_and_is_told_when_it_is_needed() {
    let world = World::new(3);
    let one = world.decide(None, 0).expect("a majority");
    world.tell(&one);
    world.sim.crash(world.nodes[2]);
    let two = world.decide(Some(&one), 20).expect("two of three");
    assert_eq!(world.tell(&two), 2);
    world.sim.restart(world.nodes[2]);
    world.sim.crash(world.nodes[0]);
    let three = world.decide(Some(&two), 30).expect("two of three, one of which knew nothing of epoch 2");
    assert_eq!((three.epoch, world.latest(3)), (Epoch(3), Epoch(2)));
}

#[test]
fn without_a_majority_nothing_is_decided_and_the_error_names_a_node() {
    let world = World::new(4);
    let one = world.decide(None, 0).expect("a majority");
    world.sim.crash(world.nodes[0]);
    world.sim.crash(world.nodes[1]);
    let error = world.decide(Some(&one), 20).expect_err("one of three");
    assert!(matches!(error, ClientError::TimedOut { .. }), "{error:?}");
    assert!(error.to_string().contains("10.0.0."), "{error}");
}

#[test]
fn what_was_accepted_before_is_found_and_driven_home() {
    // The first proposer is gone after one acceptor took its layout, or none did, or it is decided: none is another one.
    let mut found = 0;
    for cut_us in (0..3000).step_by(100) {
        let world = World::new(5);
        let one = world.decide(None, 0).expect("a majority");
        let (before, span) = (one.clone(), Duration::from_micros(cut_us));
        world.run(async move |env, deadline| {
            // Ends where it stands.
            let _ = env.timeout(span, decide(&env, 4, Some(before), 20, deadline)).await;
        });
        let before = one.clone();
        let (tail, wait) = world.run(async move |env, deadline| {
            let proposal = Proposal {
                me: NodeId(5),
                acceptors: acceptors(&env),
                before: Some(before.clone()),
                planted: Planted::NONE,
            };
            match prepare(&env, proposal, deadline).await.expect("a majority") {
                Preparation::Decided(layout) => (Some(layout.tail()), Duration::ZERO),
                Preparation::Open(prepared) => {
                    // They have just been started: what they had granted before is not known.
                    let (found, left) = (prepared.found(), prepared.leases_left(NodeId(1)));
                    assert!(left > Duration::ZERO, "{left:?} after {cut_us} us");
                    let mine = before.next_epoch(LogPos(30));
                    let decided = prepared.propose(&mine, deadline).await.expect("a majority");
                    assert_eq!(decided.tail(), found.as_ref().map_or(LogPos(30), Layout::tail));
                    (found.map(|layout| layout.tail()), left)
                }
            }
        });
        assert!(tail.is_none_or(|tail| tail == LogPos(20)), "{tail:?} after {cut_us} us");
        assert!(wait <= Duration::from_millis(limits::LEASE_WAIT_MS));
        found += usize::from(tail.is_some());
    }
    assert!(0 < found && found < 30, "{found} of 30 found something");
}
