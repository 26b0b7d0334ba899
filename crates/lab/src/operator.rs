//! An operator of a cluster in which nothing fails: takes it from one layout to the next, one message after the other, so that each step
//! can be measured. The same for real clusters and simulated ones.
//!
//! What a node does that has seen a failure lies in the cluster's nodes; this takes the same steps over the same messages
//! (docs/protocol/reconfigure.md), and gives up where a node would try again.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use ithaca_env::Env;
use ithaca_env::task::gather;
use ithaca_log::client::{Connection, Identity};
use ithaca_log::layout::Layout;
use ithaca_log::pos::{Ballot, ClientId, Epoch, NodeId};
use ithaca_log::wire::{
    Accept, Accepted, Grant, Invitation, Learn, Learned, Message, Prepare, Promise, Seal, Sealed, Token, Vote,
};

/// The operator's id as a proposer, which no node has.
const OPERATOR: NodeId = NodeId(1 << 20);
/// The one attempt that it makes.
const BALLOT: Ballot = Ballot { round: 1, proposer: OPERATOR };
/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The wait before a node that does not grant yet is asked again.
const TOKEN_RETRY: Duration = Duration::from_micros(100);

/// A connection to every node.
pub struct Operator {
    env: Env,
    nodes: Vec<(NodeId, Connection)>,
}

impl Operator {
    /// Reaches every node of `layout`, or fails.
    pub async fn connect(env: &Env, layout: &Layout) -> io::Result<Self> {
        let mut nodes = Vec::new();
        for node in &layout.nodes {
            let addr: SocketAddr = node.address.parse().map_err(io::Error::other)?;
            // Only nodes take a cluster from one epoch to the next, and greet as such.
            let who = Identity { client: ClientId(0), node: node.id, cluster: layout.cluster };
            let opened = Connection::open(env, addr, who, env.now() + PATIENCE).await;
            nodes.push((node.id, opened.map_err(io::Error::other)?));
        }
        Ok(Self { env: env.clone(), nodes })
    }

    /// Where it runs.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// Prepares a majority of the acceptors to decide the epoch after `before`; they grant no leases on it from then on. An error if
    /// somebody else has begun.
    pub async fn prepare(&self, before: &Layout) -> io::Result<()> {
        let epoch = before.epoch.next();
        let prepare = |_| Prepare { epoch, ballot: BALLOT };
        let promised: Vec<(_, Promise)> = self.ask_majority(before, prepare).await?;
        let is_free = |(_, promise): &(_, Promise)| promise.vote == Vote::Given { accepted: None };
        match promised.iter().all(is_free) {
            true => Ok(()),
            false => Err(io::Error::other(format!("somebody else proposes the layout of epoch {}", epoch.0))),
        }
    }

    /// Seals the epoch of `before` at one node. Durable.
    pub async fn seal(&self, before: &Layout, node: NodeId) -> io::Result<()> {
        let seal = |node| Seal { epoch: before.epoch, extents: before.active_extents(node) };
        let _: Vec<(_, Sealed)> = self.ask((&[node], 1), before.epoch, seal).await?;
        Ok(())
    }

    /// Seals the epoch of `before` at every node at the same time: what each said. Durable.
    pub async fn seal_all(&self, before: &Layout) -> io::Result<BTreeMap<NodeId, Sealed>> {
        let seal = |node| Seal { epoch: before.epoch, extents: before.active_extents(node) };
        let sealed: Vec<(_, Sealed)> = self.ask((&self.all(), self.nodes.len()), before.epoch, seal).await?;
        Ok(sealed.into_iter().collect())
    }

    /// Has `next` decided by the acceptors of `before`, which are prepared. On success a majority has it on stable storage.
    pub async fn decide(&self, before: &Layout, next: &Layout) -> io::Result<()> {
        let record = next.encode();
        let accept = |_| Accept { ballot: BALLOT, record: record.clone() };
        let accepted: Vec<(_, Accepted)> = self.ask_majority(before, accept).await?;
        let is_given = |(_, accepted): &(_, Accepted)| matches!(accepted.vote, Vote::Given { .. });
        match accepted.iter().all(is_given) {
            true => Ok(()),
            false => Err(io::Error::other(format!("the layout of epoch {} is not accepted", next.epoch.0))),
        }
    }

    /// Tells every node of a layout that was decided, until all know it.
    pub async fn tell(&self, layout: &Layout) -> io::Result<()> {
        let record = layout.encode();
        let learn = |_| Learn { invitation: Invitation::None, record: record.clone() };
        let _: Vec<(_, Learned)> = self.ask((&self.all(), self.nodes.len()), layout.epoch, learn).await?;
        Ok(())
    }

    /// Takes a position of `epoch` from its sequencer, and asks again until that has begun to grant.
    pub async fn take_token(&self, sequencer: NodeId, epoch: Epoch) -> io::Result<()> {
        let deadline = self.env.now() + PATIENCE;
        loop {
            let granted: io::Result<Vec<(_, Grant)>> =
                self.ask((&[sequencer], 1), epoch, |_| Token::plain(1)).await;
            match granted {
                Err(_) if self.env.now() < deadline => self.env.sleep(TOKEN_RETRY).await,
                granted => return granted.map(drop),
            }
        }
    }

    fn all(&self) -> Vec<NodeId> {
        self.nodes.iter().map(|&(node, _)| node).collect()
    }

    async fn ask_majority<Q: Message, R: Message>(
        &self,
        before: &Layout,
        request: impl Fn(NodeId) -> Q,
    ) -> io::Result<Vec<(NodeId, R)>> {
        let acceptors = before.acceptors();
        self.ask((&acceptors, acceptors.len() / 2 + 1), before.epoch.next(), request).await
    }

    /// Asks these nodes at the same time until so many have answered, or one has refused.
    async fn ask<Q: Message, R: Message>(
        &self,
        (nodes, enough): (&[NodeId], usize),
        epoch: Epoch,
        request: impl Fn(NodeId) -> Q,
    ) -> io::Result<Vec<(NodeId, R)>> {
        let deadline = self.env.now() + PATIENCE;
        let ask = async |(node, connection): &(NodeId, Connection)| {
            let answered = connection.call::<Q, R>(&self.env, epoch, &request(*node), deadline).await;
            let answered = answered.map_err(|error| io::Error::other(format!("node {}: {error}", node.0)));
            answered.map(|(answer, _, _)| (*node, answer))
        };
        let asked = self.nodes.iter().filter(|(node, _)| nodes.contains(node)).map(&ask).collect();
        let answered = Cell::new(0);
        let is_enough = |answer: &io::Result<(NodeId, R)>| {
            answered.set(answered.get() + 1);
            answer.is_err() || answered.get() >= enough
        };
        gather(asked, is_enough).await.into_iter().flatten().collect()
    }
}
