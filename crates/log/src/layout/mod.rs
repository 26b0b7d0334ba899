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
mod map;
pub mod proposer;
mod succession;

#[cfg(test)]
mod acceptor_tests;
#[cfg(test)]
mod change_tests;
#[cfg(test)]
mod tests;

pub use acceptor::Acceptor;
pub use change::{Change, ChangeError, Copy, arrange};
pub use lease::LeaseHolder;
pub use map::{Location, Piece};
pub use proposer::Proposer;
pub use succession::TailError;

use std::collections::BTreeMap;

use thiserror::Error;

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
    /// Replicas that an append needs, in the active range. With fewer units than that a layout can only be changed if the
    /// operator allows degraded appends.
    pub min_replicas: u16,
    /// Whether the active range has fewer replicas than the minimum, because the operator allowed it.
    pub degraded: bool,
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

/// Why a layout cannot be one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// Epoch 0 has no layout.
    #[error("epoch 0 has no layout")]
    EpochZero,
    /// Too many of something, or none.
    #[error("{found} {what}, allowed are {min} to {max}")]
    Count {
        /// Of what.
        what: &'static str,
        /// How many.
        found: usize,
        /// The fewest.
        min: usize,
        /// The most.
        max: usize,
    },
    /// Nodes are not in the order of their ids, or one is listed twice.
    #[error("node {node} is out of order or listed twice")]
    NodeOrder {
        /// Which.
        node: NodeId,
    },
    /// A node that is named is not listed, or lacks the role.
    #[error("node {node} is named but is not listed with role {}", role.0)]
    NodeRole {
        /// Which.
        node: NodeId,
        /// The role that it should have.
        role: Roles,
    },
    /// The acceptors of the next epoch would be none, too many, or an even number.
    #[error("{found} nodes keep layouts, allowed are 1, 3 and 5")]
    Acceptors {
        /// How many.
        found: usize,
    },
    /// A range is empty or does not begin where the one before ends.
    #[error("range {index} is [{start}, {end}), expected a start of {expected}")]
    RangeOrder {
        /// Which.
        index: usize,
        /// Its start.
        start: LogPos,
        /// Its end.
        end: LogPos,
        /// Where the one before ends.
        expected: LogPos,
    },
    /// A stripe has too few replicas, or names one twice.
    #[error("stripe {stripe} of range {index} has {found} different replicas, needs {min} to {max}")]
    Replicas {
        /// Which range.
        index: usize,
        /// Which stripe of it.
        stripe: usize,
        /// How many different replicas it has.
        found: usize,
        /// The fewest.
        min: usize,
        /// The most.
        max: usize,
    },
    /// The minimum of replicas is 0 or above what is wanted, or too many are wanted.
    #[error(
        "{replicas} replicas are wanted and {min_replicas} needed, expected 1 <= needed <= wanted <= {max}"
    )]
    ReplicaCounts {
        /// How many are wanted.
        replicas: u16,
        /// How many an append needs.
        min_replicas: u16,
        /// The most.
        max: usize,
    },
    /// A node that is out is the sequencer or has a part of the active range.
    #[error("node {node} is out and has a part of what is active")]
    OutInActive {
        /// Which.
        node: NodeId,
    },
    /// The encoded layout is over its limit.
    #[error("the layout takes {found} bytes, at most {max} are allowed")]
    Bytes {
        /// How many it takes.
        found: usize,
        /// The most.
        max: usize,
    },
    /// A stripe has addresses that are said never to have been used.
    #[error("stripe {stripe} of range {index} has addresses from {next_base} on, which are free")]
    FreeAddresses {
        /// Which range.
        index: usize,
        /// Which stripe of it.
        stripe: usize,
        /// Where free addresses begin.
        next_base: Addr,
    },
    /// Two stripes use the same address of a unit.
    #[error("address {addr} of node {node} is used twice")]
    AddressTwice {
        /// The unit.
        node: NodeId,
        /// The address.
        addr: Addr,
    },
    /// Addresses of a stripe run out before its positions do.
    #[error("the addresses of stripe {stripe} of range {index} run out")]
    AddressesRunOut {
        /// Which range.
        index: usize,
        /// Which stripe of it.
        stripe: usize,
    },
    /// Decided tails are out of order.
    #[error("the tail of epoch {epoch} is out of order")]
    TailOrder {
        /// Which.
        epoch: Epoch,
    },
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
            degraded: false,
            sequencer: node.id,
            nodes: vec![node],
            next_base: Addr(limits::STRIPE_ADDRESSES),
            ranges: vec![RangeMap { start: LogPos(0), end: OPEN_END, stripes: vec![stripe] }],
            tails: Vec::new(),
        }
    }

    /// Where the sequencer of this epoch starts: the decided tail of the epoch before.
    pub fn tail(&self) -> LogPos {
        let start = self.ranges.first().map_or(LogPos(0), |range| range.start);
        self.tails.last().map_or(start, |last| last.tail)
    }

    /// The node with this id.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.binary_search_by_key(&id, |node| node.id).ok().map(|index| &self.nodes[index])
    }

    /// The nodes that decide the layout of the next epoch, in the order of their ids.
    pub fn acceptors(&self) -> Vec<NodeId> {
        self.nodes.iter().filter(|node| node.roles.has(Roles::LAYOUT)).map(|node| node.id).collect()
    }

    /// Checks everything that the types do not say.
    pub fn validate(&self) -> Result<(), LayoutError> {
        if self.epoch == Epoch(0) {
            return Err(LayoutError::EpochZero);
        }
        count("nodes", self.nodes.len(), 1, limits::NODES_MAX_COUNT)?;
        count("ranges", self.ranges.len(), 1, limits::LAYOUT_RANGES_MAX_COUNT)?;
        count("tails", self.tails.len(), 0, limits::TAILS_MAX_COUNT)?;
        for pair in self.nodes.windows(2) {
            if pair[0].id >= pair[1].id {
                return Err(LayoutError::NodeOrder { node: pair[1].id });
            }
        }
        for node in &self.nodes {
            count("bytes of address", node.address.len(), 0, limits::ADDRESS_MAX_BYTES)?;
        }
        let found = self.acceptors().len();
        if found > limits::ACCEPTORS_MAX_COUNT || found % 2 == 0 {
            return Err(LayoutError::Acceptors { found });
        }
        let (replicas, min_replicas, max) = (self.replicas, self.min_replicas, limits::REPLICAS_MAX_COUNT);
        if min_replicas == 0 || replicas < min_replicas || usize::from(replicas) > max {
            return Err(LayoutError::ReplicaCounts { replicas, min_replicas, max });
        }
        self.check_role(self.sequencer, Roles::SEQUENCER)?;
        self.check_in_use(self.sequencer)?;
        self.validate_ranges()?;
        self.validate_addresses()?;
        self.validate_tails()?;
        let (found, max) = (self.encoded_bytes(), limits::LAYOUT_MAX_BYTES);
        if found > max { Err(LayoutError::Bytes { found, max }) } else { Ok(()) }
    }

    fn check_in_use(&self, node: NodeId) -> Result<(), LayoutError> {
        let out = self.node(node).is_some_and(|node| node.state == NodeState::Out);
        if out { Err(LayoutError::OutInActive { node }) } else { Ok(()) }
    }

    fn check_role(&self, node: NodeId, role: Roles) -> Result<(), LayoutError> {
        match self.node(node) {
            Some(listed) if listed.roles.has(role) => Ok(()),
            _ => Err(LayoutError::NodeRole { node, role }),
        }
    }

    fn validate_ranges(&self) -> Result<(), LayoutError> {
        let active = self.ranges.len() - 1;
        let mut expected = self.ranges.first().map_or(LogPos(0), |range| range.start);
        for (index, range) in self.ranges.iter().enumerate() {
            let (start, end) = (range.start, range.end);
            if start != expected || end <= start {
                return Err(LayoutError::RangeOrder { index, start, end, expected });
            }
            expected = end;
            count("stripes", range.stripes.len(), 1, limits::STRIPES_MAX_COUNT)?;
            for (at, stripe) in range.stripes.iter().enumerate() {
                let mut different = stripe.replicas.clone();
                different.sort();
                different.dedup();
                let appended = index == active && !self.degraded;
                let min = if appended { usize::from(self.min_replicas) } else { 1 };
                let max = limits::REPLICAS_MAX_COUNT;
                let found = different.len();
                if found < min || found > max || found != stripe.replicas.len() {
                    return Err(LayoutError::Replicas { index, stripe: at, found, min, max });
                }
                for node in different {
                    self.check_role(node, Roles::UNIT)?;
                    if index == active {
                        self.check_in_use(node)?;
                    }
                }
                let addresses = range.addresses(at);
                let end = addresses.ok_or(LayoutError::AddressesRunOut { index, stripe: at })?.end;
                if end > self.next_base {
                    return Err(LayoutError::FreeAddresses { index, stripe: at, next_base: self.next_base });
                }
            }
        }
        Ok(())
    }

    /// No address of a unit may stand for two positions: a write to the one would be found at the other.
    fn validate_addresses(&self) -> Result<(), LayoutError> {
        let mut used: BTreeMap<(NodeId, u64), u64> = BTreeMap::new();
        for range in &self.ranges {
            for (at, stripe) in range.stripes.iter().enumerate() {
                let addresses = range.addresses(at).unwrap_or_default();
                for &node in &stripe.replicas {
                    let before = used.range(..(node, addresses.end.0)).next_back();
                    if let Some((&(owner, start), &end)) = before
                        && owner == node
                        && end > addresses.start.0
                    {
                        return Err(LayoutError::AddressTwice {
                            node,
                            addr: addresses.start.max(Addr(start)),
                        });
                    }
                    if !addresses.is_empty() {
                        used.insert((node, addresses.start.0), addresses.end.0);
                    }
                }
            }
        }
        Ok(())
    }

    fn validate_tails(&self) -> Result<(), LayoutError> {
        for (at, decided) in self.tails.iter().enumerate() {
            let in_order = at == 0 || {
                let before = self.tails[at - 1];
                before.epoch < decided.epoch && before.tail <= decided.tail
            };
            if !in_order || decided.epoch >= self.epoch {
                return Err(LayoutError::TailOrder { epoch: decided.epoch });
            }
        }
        Ok(())
    }
}

fn count(what: &'static str, found: usize, min: usize, max: usize) -> Result<(), LayoutError> {
    if (min..=max).contains(&found) { Ok(()) } else { Err(LayoutError::Count { what, found, min, max }) }
}
