//! The operator of the cluster scenario: adds nodes and removes others, as the plan says, while everything else goes on.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use ithaca_env::Env;
use ithaca_log::client::{Client, MembersError};
use ithaca_log::pos::NodeId;

use super::workload::Shared;

/// The wait before what did not work is tried again.
const AGAIN: Duration = Duration::from_millis(100);
/// Times that a node is looked for that can be removed.
const TRIES_MAX: u32 = 300;

/// What the operator is to do.
pub struct Task {
    /// Servers with empty directories, which become members.
    pub added: Vec<(NodeId, SocketAddr)>,
    /// How many members leave.
    pub removals: u64,
    /// Each step begins within this time after the one before.
    pub pause: Duration,
}

/// What the operator has done.
#[derive(Default)]
pub struct Done {
    /// Nodes that were added.
    pub added: RefCell<Vec<NodeId>>,
    /// Nodes that were removed.
    pub removed: RefCell<Vec<NodeId>>,
}

/// Adds and removes in an order of its own. An error says what should have worked and did not.
pub async fn operate(env: Env, shared: Rc<Shared>, task: Task, done: Rc<Done>) -> Result<(), String> {
    let client = shared.connect(&env, 0).await;
    let mut added = task.added.into_iter();
    let mut removals = task.removals;
    while added.len() > 0 || removals > 0 {
        env.sleep(Duration::from_nanos(env.random_u64() % task.pause.as_nanos() as u64)).await;
        let is_removal = removals > 0 && (added.len() == 0 || env.random_u64().is_multiple_of(2));
        if is_removal {
            removals -= 1;
            if let Some(node) = remove_any(&env, &client).await? {
                done.removed.borrow_mut().push(node);
            }
        } else if let Some((node, addr)) = added.next() {
            add(&env, &client, node, addr).await?;
            done.added.borrow_mut().push(node);
        }
    }
    Ok(())
}

/// Adds a node, however long that takes. An error says why it can not.
pub(super) async fn add(env: &Env, client: &Client, node: NodeId, addr: SocketAddr) -> Result<(), String> {
    loop {
        match client.add_node(node, addr).await {
            Ok(_) => return Ok(()),
            Err(error @ (MembersError::Change(_) | MembersError::Removed { .. })) => {
                return Err(format!("adding node {node}: {error}"));
            }
            Err(_) => env.sleep(AGAIN).await,
        }
    }
}

/// Removes a node, if there is one that can be removed.
async fn remove_any(env: &Env, client: &Client) -> Result<Option<NodeId>, String> {
    for _ in 0..TRIES_MAX {
        let Ok(layout) = client.layout().await else { continue };
        let members: Vec<NodeId> = layout.nodes.iter().map(|node| node.id).collect();
        if members.len() <= usize::from(layout.replicas) {
            return Ok(None);
        }
        let node = members[(env.random_u64() % members.len() as u64) as usize];
        match remove(env, client, node).await {
            Some(_) => return Ok(Some(node)),
            None => env.sleep(AGAIN).await,
        }
    }
    Err(format!("no node could be removed in {TRIES_MAX} attempts"))
}

/// Removes a node; `None` if that cannot be now.
async fn remove(env: &Env, client: &Client, node: NodeId) -> Option<()> {
    loop {
        match client.remove_node(node).await {
            Ok(_) => return Some(()),
            Err(MembersError::Change(_) | MembersError::NotNow(_)) => return None,
            Err(_) => env.sleep(AGAIN).await,
        }
    }
}
