//! Forming a cluster, and bringing a node into one.

use std::net::SocketAddr;
use std::time::Duration;

use ithaca_env::task::gather;
use ithaca_env::{Env, Time};
use thiserror::Error;

use super::connection::{CallError, Connection, Identity};
use crate::layout::{ChangeError, Layout, Node, acceptors_wanted};
use crate::pos::{ClientId, ClusterId, Epoch, NodeId};
use crate::wire::{
    GetLayout, GetStatus, Invitation, LayoutRecord, Learn, Learned, Message, NodeStatus, Refusal, Roles,
};
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
    /// No node offers a role that the cluster cannot do without. Nothing was changed.
    #[error("no node offers the role {role}")]
    NotOffered {
        /// Which.
        role: Roles,
    },
    /// Fewer nodes offer to store entries than copies are wanted. Nothing was changed.
    #[error("{found} of the nodes offer the role unit, {replicas} copies of each entry are wanted")]
    TooFewUnits {
        /// How many do.
        found: usize,
        /// Copies of each entry.
        replicas: u16,
    },
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

/// Makes one cluster of nodes that belong to none, each with the roles that it offers, and returns its first layout, which every one of
/// them then has on stable storage. A node that does not answer is asked again until the time is over. Not to be done twice at once.
pub async fn form(env: &Env, forming: &Forming) -> Result<Layout, FormError> {
    let deadline = env.now() + forming.timeout;
    let cluster = ClusterId(env.random_u128());
    let first =
        |nodes: &[Offering]| Layout::first(cluster, members(nodes), forming.replicas, forming.min_replicas);
    // What cannot be whatever they offer takes no questions.
    first(&forming.nodes.iter().map(|&at| (at, Roles::OFFERED)).collect::<Vec<_>>())?;
    // Nobody is told anything before all have said that they are free.
    let asked = forming.nodes.iter().map(|&at| is_free(env, at, deadline));
    let offers = gather(asked.collect(), Result::is_err).await.into_iter().flatten();
    let offers = offers.collect::<Result<Vec<Roles>, _>>()?;
    let offering: Vec<Offering> = forming.nodes.iter().copied().zip(offers).collect();
    check_offers(&offering, forming.replicas)?;
    let layout = first(&offering)?;
    let told = forming.nodes.iter().map(|&at| found(env, at, &layout, deadline));
    gather(told.collect(), Result::is_err).await.into_iter().flatten().collect::<Result<(), _>>()?;
    Ok(layout)
}

/// A node, where it listens, and what it offers.
type Offering = ((NodeId, SocketAddr), Roles);

/// Every node has the roles that it offers; of those that offer to decide layouts those with the lowest ids do, five if there are as many,
/// or three, or one.
fn members(nodes: &[Offering]) -> Vec<Node> {
    let decides = |offers: &Roles| offers.has(Roles::LAYOUT);
    let mut deciding: Vec<NodeId> =
        nodes.iter().filter(|(_, offers)| decides(offers)).map(|((id, _), _)| *id).collect();
    deciding.sort();
    deciding.truncate(acceptors_wanted(deciding.len()));
    let member = |&((id, addr), offers): &Offering| {
        let roles = offers.of_member();
        let roles = if deciding.contains(&id) { roles.with(Roles::LAYOUT) } else { roles };
        Node::new(id, roles, addr.to_string())
    };
    let mut members: Vec<Node> = nodes.iter().map(member).collect();
    members.sort_by_key(|node| node.id);
    members
}

/// Refuses what lacks a role that a cluster needs.
fn check_offers(nodes: &[Offering], replicas: u16) -> Result<(), FormError> {
    let count = |role| nodes.iter().filter(|(_, offers)| offers.has(role)).count();
    for role in [Roles::LAYOUT, Roles::SEQUENCER, Roles::UNIT] {
        if count(role) == 0 {
            return Err(FormError::NotOffered { role });
        }
    }
    let found = count(Roles::UNIT);
    // With fewer nodes than copies a cluster may be formed that is to grow.
    if found < usize::from(replicas).min(nodes.len()) {
        return Err(FormError::TooFewUnits { found, replicas });
    }
    Ok(())
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

/// What a node offers that belongs to no cluster.
async fn is_free(env: &Env, at: (NodeId, SocketAddr), deadline: Time) -> Result<Roles, FormError> {
    let (node, addr) = at;
    match known_to(env, at, deadline).await? {
        Some(layout) => Err(FormError::Formed { node, addr, cluster: layout.cluster }),
        None => offers_of(env, at, deadline).await,
    }
}

/// What a node offers its cluster. A node that does not answer is asked again until the time is over.
pub(super) async fn offers_of(
    env: &Env,
    at: (NodeId, SocketAddr),
    deadline: Time,
) -> Result<Roles, FormError> {
    ask::<_, NodeStatus>(env, at, &GetStatus, deadline).await.map(|status| status.offers)
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
pub(super) async fn ask<M: Message, R: Message>(
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
