//! Other nodes as one node reaches them: one connection to each, opened when it is first needed, and again after it was lost.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::sync::Notify;
use ithaca_env::{Env, Time};

use crate::client::{CallError, Connection, Identity};
use crate::layout::Layout;
use crate::pos::{ClientId, ClusterId, Epoch, NodeId};
use crate::wire::Message;

/// How long a node may take to accept a connection.
const CONNECT_PATIENCE: Duration = Duration::from_millis(300);
/// Where nobody listens.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// The nodes that one node talks to.
pub(super) struct Peers {
    env: Env,
    cluster: ClusterId,
    met: RefCell<BTreeMap<NodeId, Rc<Peer>>>,
}

impl Peers {
    /// Nodes of `cluster`, none of them met yet.
    pub(super) fn new(env: &Env, cluster: ClusterId) -> Self {
        Self { env: env.clone(), cluster, met: RefCell::default() }
    }

    /// The node `node`, which listens at `addr`. Whoever asks for it there shares its connection.
    pub(super) fn at(&self, node: NodeId, addr: SocketAddr) -> Rc<Peer> {
        let mut met = self.met.borrow_mut();
        let known = met.get(&node).filter(|peer| peer.addr == addr);
        let peer = known.cloned().unwrap_or_else(|| Rc::new(Peer::new(&self.env, node, addr, self.cluster)));
        met.insert(node, Rc::clone(&peer));
        peer
    }

    /// A member of `layout`, where that says that it listens. `None` if it is none.
    pub(super) fn member(&self, layout: &Layout, node: NodeId) -> Option<Rc<Peer>> {
        Some(self.at(node, layout.node(node)?.address.parse().ok()?))
    }

    /// Those who decide the layout that follows `layout`: all of them, because a majority is one of all. One whose address is none is
    /// never reached.
    pub(super) fn acceptors(&self, layout: &Layout) -> Vec<Rc<Peer>> {
        let peer = |node| self.member(layout, node).unwrap_or_else(|| self.at(node, NOWHERE));
        layout.acceptors().into_iter().map(peer).collect()
    }

    /// Bytes that a node has not taken yet of what was sent to it.
    pub(super) fn queued_bytes(&self, node: NodeId) -> usize {
        self.open(node).map_or(0, |open| open.queued_bytes())
    }

    /// The connection to a node, if one is open.
    pub(super) fn open(&self, node: NodeId) -> Option<Connection> {
        self.met.borrow().get(&node)?.open()
    }
}

/// A node and the connection to it.
pub(super) struct Peer {
    env: Env,
    addr: SocketAddr,
    who: Identity,
    connection: RefCell<Option<Connection>>,
    is_connecting: Cell<bool>,
    /// Rings when an attempt to connect has ended.
    settled: Notify,
}

impl Peer {
    fn new(env: &Env, node: NodeId, addr: SocketAddr, cluster: ClusterId) -> Self {
        Self {
            env: env.clone(),
            addr,
            who: Identity { client: ClientId(0), node, cluster },
            connection: RefCell::default(),
            is_connecting: Cell::default(),
            settled: Notify::default(),
        }
    }

    /// Which node it is.
    pub(super) fn node(&self) -> NodeId {
        self.who.node
    }

    /// Where it listens.
    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The connection, if one is open.
    fn open(&self) -> Option<Connection> {
        self.connection.borrow().clone().filter(Connection::is_open)
    }

    /// The connection, opened if there is none, by `deadline` and soon. Several callers share one attempt.
    pub(super) async fn reach(&self, deadline: Time) -> Result<Connection, CallError> {
        let deadline = deadline.min(self.env.now() + CONNECT_PATIENCE);
        loop {
            if let Some(connection) = self.open() {
                return Ok(connection);
            }
            let ticket = self.settled.ticket();
            if !self.is_connecting.replace(true) {
                break;
            }
            if self.env.timeout_at(deadline, self.settled.after(ticket)).await.is_err() {
                return Err(CallError::TimedOut);
            }
        }
        let attempt = Attempt(self);
        let connection = Connection::open(&self.env, self.addr, self.who, deadline).await?;
        self.connection.replace(Some(connection.clone()));
        drop(attempt);
        Ok(connection)
    }

    /// One call: the reply, its data and its epoch. An error may mean that the connection is gone; the next call makes a new
    /// one.
    pub(super) async fn call<M: Message, R: Message>(
        &self,
        epoch: Epoch,
        request: &M,
        deadline: Time,
    ) -> Result<(R, Bytes, Epoch), CallError> {
        let connection = self.reach(deadline).await?;
        connection.call::<M, R>(&self.env, epoch, request, deadline).await
    }
}

/// An attempt to connect, over when dropped: the next in line may try.
struct Attempt<'a>(&'a Peer);

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.0.is_connecting.set(false);
        self.0.settled.ring();
    }
}

#[cfg(test)]
mod tests {
    use ithaca_env::sim::Sim;

    use super::*;
    use crate::layout::Node;
    use crate::wire::Roles;

    #[test]
    fn who_decides_counts_also_where_its_address_is_none() {
        // Else one of three, whose two others have no address, would decide alone.
        let sim = Sim::new(1);
        let env = sim.env(sim.process("node", [10, 0, 0, 1].into()));
        let all = Roles::UNIT.with(Roles::SEQUENCER).with(Roles::LAYOUT);
        let node = |id: u64, address: &str| Node::new(NodeId(id), all, address.to_owned());
        let nodes = vec![node(1, "10.0.0.1:7420"), node(2, "node-2:7420"), node(3, "")];
        let layout = Layout::first(ClusterId(7), nodes, 1, 1).expect("one that was stored");
        let acceptors = Peers::new(&env, ClusterId(7)).acceptors(&layout);
        assert_eq!(acceptors.iter().map(|peer| peer.node().0).collect::<Vec<_>>(), [1, 2, 3]);
        sim.block_on(sim.process("caller", [10, 0, 0, 4].into()), async move {
            let refused = acceptors[1].reach(env.now() + CONNECT_PATIENCE).await.err();
            assert!(matches!(refused, Some(CallError::Lost(_) | CallError::TimedOut)), "{refused:?}");
        });
    }
}
