//! What else comes to a node while it comes to belong to a cluster.

use std::path::Path;
use std::time::Duration;

use ithaca_chain::ChainOptions;
use ithaca_env::sim::Sim;

use super::*;
use crate::client::{CallError, Client, ClientOptions, Connection, Forming, Identity, form};
use crate::layout;
use crate::pos::{Ballot, ClientId};
use crate::wire::{Accept, Accepted, ClusterChanged, GetLayout, LayoutRecord, Learned, Prepare, Promise};

const ME: NodeId = NodeId(1);
const PATIENCE: Duration = Duration::from_secs(10);

fn options() -> NodeOptions {
    let mut options = NodeOptions::new(ME, Path::new("data"), ([10, 0, 0, 1], 7420).into());
    options.create_bytes = 64 << 20;
    options.chain = ChainOptions { segment_bytes: 4 << 20, capacity_bytes: 256 << 20, ..options.chain };
    options
}

fn first() -> Layout {
    let all = Roles::UNIT.with(Roles::SEQUENCER).with(Roles::LAYOUT);
    let me = layout::Node::new(ME, all, "10.0.0.1:7420".to_owned());
    Layout::first(ClusterId(7), vec![me], 1, 1).expect("a layout")
}

/// A stranger asks an empty node to decide the first epoch, just before or after it is told that it is part of it.
fn ask_while_it_forms(asks_first: bool) {
    let sim = Sim::new(1);
    let (node, stranger) =
        (sim.process("node", [10, 0, 0, 1].into()), sim.process("other", [10, 0, 0, 2].into()));
    let env = sim.env(node);
    let started = sim.block_on(node, async move { ClusterNode::start(&env, options()).await });
    let _node = started.expect("it starts");
    let env = sim.env(stranger);
    sim.block_on(stranger, async move {
        let deadline = env.now() + PATIENCE;
        let who = Identity { client: ClientId(0), node: ME, cluster: ClusterId::UNKNOWN };
        let open = Connection::open(&env, ([10, 0, 0, 1], 7420).into(), who, deadline).await;
        let connection = open.expect("it listens");
        let (epoch, record) = (Epoch(1), first().encode());
        let ballot = Ballot { round: 1, proposer: NodeId(9) };
        let tell = || {
            let learn = Learn { invitation: Invitation::Founding, record: record.clone() };
            connection.call::<_, Learned>(&env, epoch, &learn, deadline)
        };
        let mut told = (!asks_first).then(tell);
        let prepare = Prepare { epoch, ballot };
        let promised = connection.call::<_, Promise>(&env, epoch, &prepare, deadline);
        let accept = Accept { ballot, record: record.clone() };
        let accepted = connection.call::<_, Accepted>(&env, epoch, &accept, deadline);
        let told = told.take().unwrap_or_else(tell);
        let refused = CallError::Refused(Refusal::NotServing { roles: Roles::LAYOUT });
        assert_eq!(promised.await.err(), Some(refused.clone()));
        assert_eq!(accepted.await.err(), Some(refused));
        assert_eq!(told.await.map(|(learned, _, _)| learned.epoch), Ok(epoch));
    });
}

#[test]
fn a_node_that_comes_to_belong_to_a_cluster_is_asked_to_decide_and_goes_on() {
    ask_while_it_forms(false);
}

#[test]
fn a_node_that_belongs_to_no_cluster_promises_nothing() {
    ask_while_it_forms(true);
}

/// An empty node is told that it is part of a cluster, by which it has every role, and crashes at this of its reads, writes and syncs. Then it is
/// started with fewer. Whether it came to where it crashes.
fn form_with_fewer_roles(point: u64) -> bool {
    let sim = Sim::new(1);
    let (node, other) =
        (sim.process("node", [10, 0, 0, 1].into()), sim.process("other", [10, 0, 0, 2].into()));
    let fewer = || NodeOptions { offers: Roles::OFFERED.without(Roles::SEQUENCER), ..options() };
    let tells = || {
        let env = sim.env(other);
        sim.block_on(other, async move {
            let deadline = env.now() + Duration::from_secs(1);
            let at = (ME, ([10, 0, 0, 1], 7420).into());
            crate::client::found(&env, at, &first(), deadline).await
        })
    };
    let env = sim.env(node);
    let started = sim.block_on(node, async move { ClusterNode::start(&env, options()).await });
    let _first_life = started.expect("it starts");
    sim.crash_at_io(node, sim.io_points(node) + point);
    let told = tells();
    let has_crashed = !sim.is_up(node);
    if !has_crashed {
        return false;
    }
    let mut outcomes = Vec::new();
    for _ in 0..2 {
        sim.restart(node);
        let env = sim.env(node);
        let started = sim.block_on(node, async move { ClusterNode::start(&env, fewer()).await });
        outcomes.push(match started {
            Ok(_node) => tells().expect_err("it is refused").to_string(),
            Err(error) => error.to_string(),
        });
        sim.crash(node);
    }
    assert_eq!(outcomes[0], outcomes[1], "at {point}, after {told:?}");
    assert!(outcomes[0].contains("role"), "at {point}: {outcomes:?}");
    true
}

#[test]
fn a_node_that_crashed_while_it_was_formed_and_offers_less_then_is_refused_at_once_and_ever_after() {
    assert!((1..).take_while(|&point| form_with_fewer_roles(point)).count() > 5);
}

const ADDED: NodeId = NodeId(2);

/// Starts nodes 1 and 2, each on a machine of its own and empty, and runs `test` on a third.
fn with_two(test: impl AsyncFnOnce(Env, [SocketAddr; 2]) + 'static) {
    let sim = Sim::new(1);
    let mut nodes = Vec::new();
    for id in [1, 2] {
        let process = sim.process(&format!("node {id}"), [10, 0, 0, id].into());
        let addr = ([10, 0, 0, id], 7420).into();
        let options = NodeOptions { id: NodeId(id.into()), listen: addr, ..options() };
        let env = sim.env(process);
        let started = sim.block_on(process, async move { ClusterNode::start(&env, options).await });
        nodes.push(started.expect("it starts"));
    }
    let asking = sim.process("operator", [10, 0, 0, 3].into());
    let env = sim.env(asking);
    let addrs = [1, 2].map(|id| ([10, 0, 0, id], 7420).into());
    sim.block_on(asking, async move { test(env, addrs).await });
}

async fn open(env: &Env, node: NodeId, addr: SocketAddr) -> Connection {
    let who = Identity { client: ClientId(0), node, cluster: ClusterId::UNKNOWN };
    Connection::open(env, addr, who, env.now() + PATIENCE).await.expect("it listens")
}

#[test]
fn an_empty_node_joins_only_by_a_layout_that_was_decided_for_that() {
    // In any other it may have had no part, and have decided later ones since.
    with_two(async |env, addrs| {
        let added = layout::Node::new(ADDED, Roles::UNIT, addrs[1].to_string());
        let change = layout::Change { added: vec![added], ..layout::Change::default() };
        let layout = first().change(crate::pos::LogPos(0), &change).expect("a layout");
        let connection = open(&env, ADDED, addrs[1]).await;
        let tell = async |invitation| {
            let learn = Learn { invitation, record: layout.encode() };
            let told = connection.call::<_, Learned>(&env, layout.epoch, &learn, env.now() + PATIENCE).await;
            told.map(|(learned, _, _)| learned.epoch)
        };
        let refused = Err(CallError::Refused(Refusal::NotServing { roles: Roles::UNIT }));
        assert_eq!(tell(Invitation::None).await, refused);
        assert_eq!(tell(Invitation::Founding).await, refused, "it is not the first");
        assert_eq!(tell(Invitation::Joining).await, Ok(layout.epoch));
    });
}

#[test]
fn who_is_added_and_was_a_member_before_joins_by_a_younger_layout() {
    with_two(async |env, addrs| {
        let forming =
            Forming { nodes: vec![(ME, addrs[0])], replicas: 1, min_replicas: 1, timeout: PATIENCE };
        form(&env, &forming).await.expect("a cluster");
        let options = ClientOptions { endpoints: vec![addrs[0]], ..ClientOptions::default() };
        let client = Client::connect(&env, options).await.expect("it serves");
        let add = ChangeCluster::Add { node: ADDED, address: addrs[1].to_string(), offers: Roles::OFFERED };
        let (connection, epoch) =
            (open(&env, ME, addrs[0]).await, client.layout().await.expect("known").epoch);
        let added = connection.call::<_, ClusterChanged>(&env, epoch, &add, env.now() + PATIENCE).await;
        let known = added.expect("a member").0.epoch;
        client.add_node(ADDED, addrs[1]).await.expect("it is used");
        let asked = GetLayout { epoch: Some(known) };
        let node = open(&env, ADDED, addrs[1]).await;
        let told = node.call::<_, LayoutRecord>(&env, known, &asked, env.now() + PATIENCE).await;
        let none = Refusal::NoLayout { epoch: known };
        assert_eq!(told.err(), Some(CallError::Refused(none)), "it may have been of use since");
    });
}
