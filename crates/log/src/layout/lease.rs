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
//! An acceptor that has promised to decide the next epoch grants nothing, and [`LEASE_WAIT_MS`](limits::LEASE_WAIT_MS) after it has granted
//! something that is over by every clock: it was asked for even earlier. So it says with its promise for how long what it has granted may
//! be good yet, and to whom. Whoever holds a lease has it from a majority, of which one is in the majority that has promised; so a
//! reconfiguration waits for the longest that any of those names. The grant's way back is no part of the lease, because nobody knows how
//! long it took.

use std::collections::BTreeMap;
use std::time::Duration;

use ithaca_env::Time;

use super::Layout;
use crate::limits;
use crate::planted::{Planted, PlantedBug};
use crate::pos::{Epoch, NodeId};

/// What an acceptor has granted of late, to whom and when, by its own clock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseGrants {
    /// Of what was granted before, in another life, nothing is known.
    began: Option<Time>,
    latest: BTreeMap<NodeId, Time>,
}

/// For how long leases may be good yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LeasesLeft {
    /// Nodes that were granted one of late, and for how many milliseconds it may be good.
    pub nodes: BTreeMap<NodeId, u32>,
    /// The same for every other node: nothing, but right after a start.
    pub others_ms: u32,
}

impl LeaseGrants {
    /// Nothing granted yet in this life, which begins `now`.
    pub fn new(now: Time, planted: Planted) -> Self {
        let began = (!planted.is(PlantedBug::GrantsForgotten)).then_some(now);
        Self { began, latest: BTreeMap::new() }
    }

    /// `node` is granted a lease `now`.
    pub fn granted(&mut self, node: NodeId, now: Time) {
        self.latest.retain(|_, granted| left_ms(*granted, now) > 0);
        self.latest.insert(node, now);
    }

    /// What may be good yet. To be asked when nothing more is granted.
    pub fn left(&self, now: Time) -> LeasesLeft {
        let latest = self.latest.iter().map(|(&node, &granted)| (node, left_ms(granted, now)));
        LeasesLeft {
            nodes: latest.filter(|(_, left)| *left > 0).collect(),
            others_ms: self.began.map_or(0, |began| left_ms(began, now)),
        }
    }
}

/// For how long what was granted then may be good yet, by any clock.
fn left_ms(granted: Time, now: Time) -> u32 {
    let left = Duration::from_millis(limits::LEASE_WAIT_MS).saturating_sub(now.since(granted));
    left.as_micros().div_ceil(1000) as u32
}

impl LeasesLeft {
    /// For how long one of `node` may be good.
    pub fn of(&self, node: NodeId) -> Duration {
        let left = self.nodes.get(&node).copied().unwrap_or_default().max(self.others_ms);
        Duration::from_millis(left.into())
    }

    /// Adds what another acceptor says: the longer time counts.
    pub fn add(&mut self, other: &Self) {
        self.others_ms = self.others_ms.max(other.others_ms);
        for (&node, &left) in &other.nodes {
            let known = self.nodes.entry(node).or_default();
            *known = left.max(*known);
        }
    }
}

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
