//! How many are connected to a node at one address.
//!
//! Clients, other nodes, and those who have not said yet what they are have limits of their own: clients must not shut out the nodes
//! without which theirs cannot serve, and who says nothing must shut out nobody.

use std::cell::Cell;
use std::time::Duration;

use ithaca_env::Time;
use ithaca_env::sync::{Count, Counted};

use super::node::Node;
use super::tasks::Tasks;
use crate::limits;
use crate::pos::ClientId;
use crate::wire::Refusal;

/// How often it is said that there are too many.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// The places at one address.
#[derive(Default)]
pub(super) struct Places {
    clients: Count,
    nodes: Count,
    warned: Cell<Option<Time>>,
}

impl Places {
    /// Sees to it that one more may be among `strangers`, those who have not greeted yet: whoever has waited longest makes room.
    pub(super) fn make_room(&self, node: &Node, strangers: &Tasks) {
        if strangers.len() >= limits::STRANGERS_MAX_COUNT {
            self.warn(node, limits::STRANGERS_MAX_COUNT, "have not greeted yet");
            strangers.end_first();
        }
    }

    /// A place for who has greeted so, if there is one.
    pub(super) fn take(&self, node: &Node, client: ClientId) -> Result<Counted, Refusal> {
        let (taken, limit, who) = match client {
            ClientId(0) => (&self.nodes, limits::PEERS_MAX_COUNT, "are of nodes"),
            _ => (&self.clients, limits::CONNECTIONS_MAX_COUNT, "are of clients"),
        };
        if taken.get() < limit {
            return Ok(taken.one_more());
        }
        self.warn(node, limit, who);
        Err(Refusal::Overloaded { pending: taken.get() as u64, limit: limit as u64 })
    }

    fn warn(&self, node: &Node, limit: usize, who: &str) {
        let now = node.env.now();
        if self.warned.get().is_none_or(|warned| now.since(warned) >= WARN_EVERY) {
            self.warned.set(Some(now));
            tracing::warn!(node = node.id.0, "connections are closed: {limit} {who}");
        }
    }
}
