//! Who may say "unwritten" and "the tail is": whoever holds a lease on its epoch from a majority of the acceptors. A pure
//! core.
//!
//! ```text
//!   holder        ask ────┐            ┌── valid until LEASE_MS after it asked
//!                         ▼            │
//!   acceptor           grant ──┐       │
//!                              ▼       │
//!   holder                   answer ───┴─ ...
//! ```
//!
//! An acceptor that has promised to decide the next epoch grants nothing, and a reconfiguration that has a majority of
//! promises waits [`limits::LEASE_WAIT_MS`]: each lease that was granted before was asked for even earlier, so that none is
//! valid then. The grant's way back is no part of the lease, because nobody knows how long it took.

use std::collections::BTreeMap;
use std::time::Duration;

use ithaca_env::Time;

use super::Layout;
use crate::limits;
use crate::planted::{Planted, PlantedBug};
use crate::pos::{Epoch, NodeId};

/// What a node was granted in one epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseHolder {
    epoch: Epoch,
    acceptors: Vec<NodeId>,
    /// When the latest lease that each acceptor has granted was asked for.
    granted: BTreeMap<NodeId, Time>,
    planted: Planted,
}

impl LeaseHolder {
    /// No leases yet, on the epoch of `layout` from its acceptors.
    pub fn new(layout: &Layout, planted: Planted) -> Self {
        let (epoch, acceptors) = (layout.epoch, layout.acceptors());
        Self { epoch, acceptors, granted: BTreeMap::new(), planted }
    }

    /// The epoch that is leased.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// `from` granted what was asked at `asked_at`; its answer came at `answered_at`. Both are times of this node's
    /// monotonic clock.
    pub fn granted(&mut self, from: NodeId, asked_at: Time, answered_at: Time) {
        assert!(asked_at <= answered_at, "asked at {asked_at}, answered at {answered_at}");
        if self.acceptors.contains(&from) {
            let planted = self.planted.is(PlantedBug::LeaseFromAnswer);
            let from_when = if planted { answered_at } else { asked_at };
            let known = self.granted.entry(from).or_insert(from_when);
            *known = from_when.max(*known);
        }
    }

    /// When the lease ends, by this node's clock: [`limits::LEASE_MS`] after the earliest question of the latest majority of
    /// grants. `None` if there never was a majority.
    pub fn valid_until(&self) -> Option<Time> {
        Some(self.asked()? + Duration::from_millis(limits::LEASE_MS))
    }

    /// When the earliest question of the latest majority of grants was asked. `None` if there never was a majority.
    pub fn asked(&self) -> Option<Time> {
        let mut asked: Vec<Time> = self.granted.values().copied().collect();
        asked.sort();
        let majority = self.acceptors.len() / 2 + 1;
        let earliest = asked.len().checked_sub(majority)?;
        Some(asked[earliest])
    }

    /// Whether "unwritten" and "the tail is" may be said in `epoch` at `now`. To be asked again just before an answer that
    /// took time is sent.
    pub fn valid(&self, epoch: Epoch, now: Time) -> bool {
        epoch == self.epoch && self.valid_until().is_some_and(|until| now < until)
    }
}
