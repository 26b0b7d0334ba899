//! Connections from a node to other nodes: one to each, opened when it is first needed, and again after it was lost.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;

use ithaca_env::sync::Notify;
use ithaca_env::{Env, Time};

use crate::client::{CallError, Connection, Identity};
use crate::pos::{ClientId, ClusterId, NodeId};

/// The connections of one node.
pub(super) struct Peers {
    env: Env,
    cluster: ClusterId,
    open: RefCell<BTreeMap<NodeId, Connection>>,
    /// Nodes that are being connected to.
    connecting: RefCell<Vec<NodeId>>,
    /// Rings when an attempt to connect has ended.
    settled: Notify,
}

impl Peers {
    /// None yet.
    pub(super) fn new(env: &Env, cluster: ClusterId) -> Self {
        Self {
            env: env.clone(),
            cluster,
            open: RefCell::default(),
            connecting: RefCell::default(),
            settled: Notify::default(),
        }
    }

    /// The connection to a node, if one is open.
    pub(super) fn get(&self, node: NodeId) -> Option<Connection> {
        self.open.borrow().get(&node).filter(|connection| connection.is_open()).cloned()
    }

    /// The connection to a node that listens at `addr`, opened if there is none, by `deadline`. Several callers share one
    /// attempt.
    pub(super) async fn reach(
        &self,
        node: NodeId,
        addr: SocketAddr,
        deadline: Time,
    ) -> Result<Connection, CallError> {
        loop {
            if let Some(connection) = self.get(node) {
                return Ok(connection);
            }
            let ticket = self.settled.ticket();
            if !self.connecting.borrow().contains(&node) {
                break;
            }
            if self.env.timeout_at(deadline, self.settled.after(ticket)).await.is_err() {
                return Err(CallError::TimedOut);
            }
        }
        self.connecting.borrow_mut().push(node);
        let attempt = Attempt { peers: self, node };
        let who = Identity { client: ClientId(0), node, cluster: self.cluster };
        let opened = Connection::open(&self.env, addr, who, deadline).await;
        if let Ok(connection) = &opened {
            self.open.borrow_mut().insert(node, connection.clone());
        }
        drop(attempt);
        opened
    }
}

/// An attempt to connect, over when dropped: the next in line may try.
struct Attempt<'a> {
    peers: &'a Peers,
    node: NodeId,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.peers.connecting.borrow_mut().retain(|&node| node != self.node);
        self.peers.settled.ring();
    }
}
