//! Layouts: which positions lie where, who grants tokens, and where each sealed epoch ended.
//!
//! A layout carves the positions of the log into ranges. Each range is spread round-robin over stripes; a stripe is a set
//! of replicas that hold the same addresses from a base on (Wei 3.3.2, with an extent for each stripe):
//!
//! ```text
//!   range [40K, 80K)  ─┬─ stripe 0: F2, base 0     40K, 40K+2, ...  ->  F2:0, F2:1, ...
//!                      └─ stripe 1: F3, base 0     40K+1, 40K+3 ... ->  F3:0, F3:1, ...
//! ```
//!
//! When units come or go the active range is closed and another begins ([`Layout::change`]); entries stay where they are.
//!
//! There is one layout an epoch, decided once, by the [`acceptor`]s that the layout before names, for a [`proposer`]. The tail
//! of the epoch before is decided with it, in it, and nobody computes it a second time. A [`LeaseHolder`] knows for how long
//! an epoch is certainly the latest.

pub mod acceptor;
mod acceptor_record;
mod change;
mod codec;
mod lease;
mod loss;
mod map;
mod membership;
pub mod proposer;
mod succession;
mod validate;

#[cfg(test)]
mod acceptor_tests;
#[cfg(test)]
mod change_tests;
#[cfg(test)]
mod loss_tests;
#[cfg(test)]
mod membership_tests;
#[cfg(test)]
mod tests;

pub use acceptor::Acceptor;
pub use change::{Change, ChangeError, Copy, arrange};
pub use lease::{LeaseGrants, LeaseHolder, LeasesLeft};
pub use loss::{LossError, LostPart};
pub use map::{Location, Piece};
pub use membership::acceptors_wanted;
pub use proposer::Proposer;
pub use succession::TailError;
pub use validate::LayoutError;

use crate::limits;
use crate::pos::{Addr, ClusterId, Epoch, LogPos, NodeId, POSITION_MAX};
use crate::wire::Roles;

/// The end of a range that has none: one past the last position.
pub const OPEN_END: LogPos = LogPos(POSITION_MAX + 1);

/// The configuration of one epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Whose it is.
    pub cluster: ClusterId,
    /// Its epoch, from 1 on.
    pub epoch: Epoch,
    /// Copies of each entry that are wanted.
    pub replicas: u16,
    /// Replicas that an append needs. While the active range has fewer, nothing is appended ([`Layout::shortage`]).
    pub min_replicas: u16,
    /// The nodes that it names, in the order of their ids.
    pub nodes: Vec<Node>,
    /// Who grants tokens. It starts at [`Layout::tail`].
    pub sequencer: NodeId,
    /// No stripe has ever had this address or a higher one. A stripe that is new begins here, in a block of
    /// [`limits::STRIPE_ADDRESSES`] of its own.
    pub next_base: Addr,
    /// Ranges of positions, in order, each beginning where the one before ends. Appends go into the last.
    pub ranges: Vec<RangeMap>,
    /// Where earlier epochs ended, in order, as far back as [`limits::TAILS_MAX_COUNT`]; the last is that of the epoch
    /// before this one.
    pub tails: Vec<DecidedTail>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// What it does.
    pub roles: Roles,
    /// Whether it is in use.
    pub state: NodeState,
    /// Where it listens: `host:port`.
    pub address: String,
}

/// Whether a node is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NodeState {
    /// It does what its roles say.
    #[default]
    InUse = 0,
    /// It was ejected, or has never been used: no stripe of the active range and no sequencer is on it. It is still a member,
    /// decides layouts if it has that role, and may come back.
    Out = 1,
    /// It is being removed for good: it decides nothing, nothing new is placed on it, and it stays a member only until
    /// others have the copies that it holds.
    Leaving = 2,
    /// It is in use and has no room: no stripe of the active range is on it, and it makes no copies. It serves what it holds,
    /// and is trimmed.
    Full = 3,
}

impl NodeState {
    /// Whether a node does what its roles say, as far as it has room.
    pub fn is_used(self) -> bool {
        matches!(self, Self::InUse | Self::Full)
    }
}

impl Node {
    /// A node that is in use.
    pub fn new(id: NodeId, roles: Roles, address: String) -> Self {
        Self { id, roles, state: NodeState::InUse, address }
    }
}

/// How the positions `[start, end)` are spread.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RangeMap {
    /// The first position.
    pub start: LogPos,
    /// One past the last; [`OPEN_END`] if there is none.
    pub end: LogPos,
    /// Position `start + i` lies on stripe `i % count`.
    pub stripes: Vec<Stripe>,
}

/// Replicas that hold the same addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stripe {
    /// The units, in the order in which they are written. The last one decides what is readable.
    pub replicas: Vec<NodeId>,
    /// The address of the stripe's first position.
    pub base: Addr,
}

/// Where an epoch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DecidedTail {
    /// The epoch.
    pub epoch: Epoch,
    /// One past the last position that it may have written.
    pub tail: LogPos,
}

impl Layout {
    /// The first layout of a cluster on one node, which does everything: one stripe of one replica.
    pub fn single(cluster: ClusterId, node: Node) -> Self {
        let stripe = Stripe { replicas: vec![node.id], base: Addr(0) };
        Self {
            cluster,
            epoch: Epoch(1),
            replicas: 1,
            min_replicas: 1,
            sequencer: node.id,
            nodes: vec![node],
            next_base: Addr(limits::STRIPE_ADDRESSES),
            ranges: vec![RangeMap { start: LogPos(0), end: OPEN_END, stripes: vec![stripe] }],
            tails: Vec::new(),
        }
    }

    /// Where `epoch` ended; `None` if that is not known here any more, or not yet.
    pub fn end_of(&self, epoch: Epoch) -> Option<LogPos> {
        self.tails.iter().find(|decided| decided.epoch == epoch).map(|decided| decided.tail)
    }

    /// Where the sequencer of this epoch starts: the decided tail of the epoch before.
    pub fn tail(&self) -> LogPos {
        self.tails.last().map_or(self.start(), |last| last.tail)
    }

    /// The first position that has a place. All below are trimmed.
    pub fn start(&self) -> LogPos {
        self.ranges.first().map_or(LogPos(0), |range| range.start)
    }

    /// Why nothing is appended in this epoch: the copies of each entry that the active range keeps, and those that are
    /// needed. `None` if there are enough. The operator may ask for fewer.
    pub fn shortage(&self) -> Option<(u16, u16)> {
        let stripes = &self.ranges.last()?.stripes;
        let kept = stripes.iter().map(|stripe| stripe.replicas.len()).min()? as u16;
        (kept < self.min_replicas).then_some((kept, self.min_replicas))
    }

    /// The node with this id.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.binary_search_by_key(&id, |node| node.id).ok().map(|index| &self.nodes[index])
    }

    /// The nodes that decide the layout of the next epoch, in the order of their ids.
    pub fn acceptors(&self) -> Vec<NodeId> {
        self.nodes.iter().filter(|node| node.roles.has(Roles::LAYOUT)).map(|node| node.id).collect()
    }
}
