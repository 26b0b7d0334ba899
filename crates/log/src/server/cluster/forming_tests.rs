//! What else comes to a node while it comes to belong to a cluster.

use std::path::Path;
use std::time::Duration;

use ithaca_chain::ChainOptions;
use ithaca_env::sim::Sim;

use super::*;
use crate::client::{CallError, Connection, Identity};
use crate::layout;
use crate::pos::{Ballot, ClientId};
use crate::wire::{Accept, Accepted, Learned, Prepare, Promise};

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
        let who = Identity { client: ClientId(1), node: ME, cluster: ClusterId::UNKNOWN };
        let open = Connection::open(&env, ([10, 0, 0, 1], 7420).into(), who, deadline).await;
        let connection = open.expect("it listens");
        let (epoch, record) = (Epoch(1), first().encode());
        let ballot = Ballot { round: 1, proposer: NodeId(9) };
        let tell = || {
            let learn = Learn { founding: true, record: record.clone() };
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
