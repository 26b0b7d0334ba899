//! Forming a cluster, and bringing a node into one.

use std::net::SocketAddr;
use std::time::Duration;

use ithaca_env::task::gather;
use ithaca_env::{Env, Time};
use thiserror::Error;

use super::connection::{CallError, Connection, Identity};
use crate::layout::{ChangeError, Layout, Node, acceptors_wanted};
use crate::pos::{ClientId, ClusterId, Epoch, NodeId};
use crate::wire::{GetLayout, Invitation, LayoutRecord, Learn, Learned, Message, Refusal, Roles};
use ithaca_env::record::RecordError;

/// The wait before a node that did not answer is asked again.
const RETRY_WAIT: Duration = Duration::from_millis(50);
/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(5);

/// What a cluster is to be.
#[derive(Clone, Debug)]
pub struct Forming {
    /// Its nodes, each with its id and where it listens.
    pub nodes: Vec<(NodeId, SocketAddr)>,
    /// Copies of each entry.
    pub replicas: u16,
    /// Copies without which nothing is appended.
    pub min_replicas: u16,
    /// How long all of it may take.
    pub timeout: Duration,
}

/// Why there is no cluster.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum FormError {
    /// What was asked for makes no layout.
    #[error("no such cluster: {0}")]
    Layout(#[from] ChangeError),
    /// A node belongs to a cluster already. Nothing was changed.
    #[error("node {} at {addr} belongs to cluster {cluster} already", node.0)]
    Formed {
        /// Which.
        node: NodeId,
        /// Where.
        addr: SocketAddr,
        /// Its cluster.
        cluster: ClusterId,
    },
    /// A node did not do as it was asked in time. Others may belong to the cluster already: their data directories are to be removed
    /// before another attempt.
    #[error("node {} at {addr}: {error}", node.0)]
    Node {
        /// Which.
        node: NodeId,
        /// Where.
        addr: SocketAddr,
        /// What went wrong last.
        error: CallError,
    },
    /// A node told of a layout that cannot be understood.
    #[error("node {} at {addr}: its layout cannot be understood: {error}", node.0)]
    BadLayout {
        /// Which.
        node: NodeId,
        /// Where.
        addr: SocketAddr,
        /// What is wrong with it.
        error: RecordError,
    },
}

/// Makes one cluster of nodes that belong to none, and returns its first layout, which every one of them then has on stable
/// storage. A node that does not answer is asked again until the time is over. Not to be done twice at once.
pub async fn form(env: &Env, forming: &Forming) -> Result<Layout, FormError> {
    let deadline = env.now() + forming.timeout;
    let cluster = ClusterId(env.random_u128());
    let layout = Layout::first(cluster, members(&forming.nodes), forming.replicas, forming.min_replicas)?;
    // Nobody is told anything before all have said that they are free.
    let asked = forming.nodes.iter().map(|&at| is_free(env, at, deadline));
    gather(asked.collect(), Result::is_err).await.into_iter().flatten().collect::<Result<(), _>>()?;
    let told = forming.nodes.iter().map(|&at| found(env, at, &layout, deadline));
    gather(told.collect(), Result::is_err).await.into_iter().flatten().collect::<Result<(), _>>()?;
    Ok(layout)
}

/// Every node stores entries and may be the sequencer; those with the lowest ids decide layouts, five if there are as many, or
/// three, or one.
fn members(nodes: &[(NodeId, SocketAddr)]) -> Vec<Node> {
    let mut nodes = nodes.to_vec();
    nodes.sort_by_key(|(id, _)| *id);
    let acceptors = acceptors_wanted(nodes.len());
    let all = Roles::UNIT.with(Roles::SEQUENCER).with(Roles::FORWARDER);
    let roles = |at| if at < acceptors { all.with(Roles::LAYOUT) } else { all };
    let member = |(at, (id, addr)): (usize, (NodeId, SocketAddr))| Node::new(id, roles(at), addr.to_string());
    nodes.into_iter().enumerate().map(member).collect()
}

/// Tells a node that belongs to this cluster, or to none, of the cluster's layout, until it has it on stable storage. It beats to the others
/// from then on; whether it is given anything to do is their decision. Never to be used for an empty node with a layout that may be older
/// than its emptiness: what it has promised as one of those who decide would be gone.
pub async fn tell(
    env: &Env,
    at: (NodeId, SocketAddr),
    layout: &Layout,
    deadline: Time,
) -> Result<(), FormError> {
    learn(env, at, layout, Invitation::Joining, deadline).await
}

/// Tells a node that belongs to this cluster of its layout, until it has it on stable storage. One that has become empty meanwhile refuses.
pub(super) async fn remind(
    env: &Env,
    at: (NodeId, SocketAddr),
    layout: &Layout,
    deadline: Time,
) -> Result<(), FormError> {
    learn(env, at, layout, Invitation::None, deadline).await
}

/// Tells a node that belongs to no cluster of the first layout of one that is being formed, which may count on it, until it has it on
/// stable storage. Never to be used once the cluster is at work: what a node has lost it would serve as if it had never been.
pub async fn found(
    env: &Env,
    at: (NodeId, SocketAddr),
    layout: &Layout,
    deadline: Time,
) -> Result<(), FormError> {
    learn(env, at, layout, Invitation::Founding, deadline).await
}

async fn learn(
    env: &Env,
    at: (NodeId, SocketAddr),
    layout: &Layout,
    invitation: Invitation,
    deadline: Time,
) -> Result<(), FormError> {
    let learn = Learn { invitation, record: layout.encode() };
    ask::<_, Learned>(env, at, &learn, deadline).await.map(drop)
}

async fn is_free(env: &Env, at: (NodeId, SocketAddr), deadline: Time) -> Result<(), FormError> {
    let (node, addr) = at;
    match known_to(env, at, deadline).await? {
        Some(layout) => Err(FormError::Formed { node, addr, cluster: layout.cluster }),
        None => Ok(()),
    }
}

/// The newest layout that a node knows of the cluster that it belongs to, if it does to any. A node that does not answer is asked again
/// until the time is over.
pub(super) async fn known_to(
    env: &Env,
    at: (NodeId, SocketAddr),
    deadline: Time,
) -> Result<Option<Layout>, FormError> {
    let (node, addr) = at;
    match ask::<_, LayoutRecord>(env, at, &GetLayout { epoch: None }, deadline).await {
        Err(FormError::Node { error: CallError::Refused(Refusal::NoLayout { .. }), .. }) => Ok(None),
        Err(error) => Err(error),
        Ok(known) => {
            let layout = Layout::decode(&known.record);
            layout.map(Some).map_err(|error| FormError::BadLayout { node, addr, error })
        }
    }
}

/// Asks a node until it answers, refuses for good, or the time is over.
async fn ask<M: Message, R: Message>(
    env: &Env,
    (node, addr): (NodeId, SocketAddr),
    message: &M,
    deadline: Time,
) -> Result<R, FormError> {
    let who = Identity { client: ClientId(0), node, cluster: ClusterId::UNKNOWN };
    loop {
        let attempt = async {
            let until = deadline.min(env.now() + ATTEMPT);
            let connection = Connection::open(env, addr, who, until).await?;
            connection.call::<M, R>(env, Epoch(0), message, until).await
        };
        match attempt.await {
            Ok((answer, _, _)) => return Ok(answer),
            Err(
                CallError::Lost(_) | CallError::TimedOut | CallError::Refused(Refusal::Overloaded { .. }),
            ) if env.now() + RETRY_WAIT < deadline => {}
            Err(error) => return Err(FormError::Node { node, addr, error }),
        }
        env.sleep(RETRY_WAIT).await;
    }
}
