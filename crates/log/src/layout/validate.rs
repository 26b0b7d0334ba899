//! What makes a layout one: everything that the types do not say.

use thiserror::Error;

use super::{Layout, NodeState};
use crate::limits;
use crate::pos::{Addr, Epoch, LogPos, NodeId};
use crate::wire::Roles;

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
    /// A node keeps layouts and is said never to.
    #[error("node {node} keeps layouts, and is one that never does")]
    Abstains {
        /// Which.
        node: NodeId,
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
    /// A node that is out or leaving is the sequencer, one that is not in use or has no room has a part of the active range, or
    /// one that is leaving keeps layouts.
    #[error("node {node} is not in use or has no room, and has a part of what is active")]
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
    /// Decided tails are out of order, or one is missing.
    #[error("the tail of epoch {epoch} is out of order or missing")]
    TailOrder {
        /// Which.
        epoch: Epoch,
    },
}

impl Layout {
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
            if node.state == NodeState::Leaving && node.roles.has(Roles::LAYOUT) {
                return Err(LayoutError::OutInActive { node: node.id });
            }
            if node.roles.has(Roles::LAYOUT.with(Roles::ABSTAINS)) {
                return Err(LayoutError::Abstains { node: node.id });
            }
        }
        let found = self.acceptors().len();
        if found > limits::ACCEPTORS_MAX_COUNT || found.is_multiple_of(2) {
            return Err(LayoutError::Acceptors { found });
        }
        self.validate_replica_counts()?;
        self.check_role(self.sequencer, Roles::SEQUENCER)?;
        if !self.node(self.sequencer).is_some_and(|node| node.state.is_used()) {
            return Err(LayoutError::OutInActive { node: self.sequencer });
        }
        self.validate_ranges()?;
        self.validate_addresses()?;
        self.validate_tails()?;
        let (found, max) = (self.encoded_bytes(), limits::LAYOUT_MAX_BYTES);
        if found > max { Err(LayoutError::Bytes { found, max }) } else { Ok(()) }
    }

    /// Whether an append can need so many of the copies that are wanted.
    pub(super) fn validate_replica_counts(&self) -> Result<(), LayoutError> {
        let (replicas, min_replicas, max) = (self.replicas, self.min_replicas, limits::REPLICAS_MAX_COUNT);
        if min_replicas == 0 || replicas < min_replicas || usize::from(replicas) > max {
            return Err(LayoutError::ReplicaCounts { replicas, min_replicas, max });
        }
        Ok(())
    }

    fn check_takes(&self, node: NodeId) -> Result<(), LayoutError> {
        let out = self.node(node).is_some_and(|node| node.state != NodeState::InUse);
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
                let (min, max) = (1, limits::REPLICAS_MAX_COUNT);
                let found = different.len();
                if found < min || found > max || found != stripe.replicas.len() {
                    return Err(LayoutError::Replicas { index, stripe: at, found, min, max });
                }
                for node in different {
                    self.check_role(node, Roles::UNIT)?;
                    if index == active {
                        self.check_takes(node)?;
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
        let mut used: Vec<(NodeId, Addr, Addr)> = Vec::new();
        for range in &self.ranges {
            for (at, stripe) in range.stripes.iter().enumerate() {
                let addresses = range.addresses(at).unwrap_or_default();
                if !addresses.is_empty() {
                    used.extend(stripe.replicas.iter().map(|&node| (node, addresses.start, addresses.end)));
                }
            }
        }
        used.sort_unstable();
        for pair in used.windows(2) {
            let ((before, _, end), (node, addr, _)) = (pair[0], pair[1]);
            if before == node && end > addr {
                return Err(LayoutError::AddressTwice { node, addr });
            }
        }
        Ok(())
    }

    /// Each layout takes over the tails of the one before, and adds that of its epoch: so they are those of the last epochs, as many
    /// as it keeps. One with a number of an epoch that is a mistake, or that was put together otherwise, was decided by nobody.
    fn validate_tails(&self) -> Result<(), LayoutError> {
        let kept = (self.epoch.0 - 1).min(limits::TAILS_MAX_COUNT as u64);
        let first = self.epoch.0 - kept;
        let mut before = LogPos(0);
        for (nth, epoch) in (first..self.epoch.0).map(Epoch).enumerate() {
            match self.tails.get(nth) {
                Some(decided) if decided.epoch == epoch && decided.tail >= before => before = decided.tail,
                _ => return Err(LayoutError::TailOrder { epoch }),
            }
        }
        match self.tails.get(kept as usize) {
            Some(beyond) => Err(LayoutError::TailOrder { epoch: beyond.epoch }),
            None => Ok(()),
        }
    }
}

fn count(what: &'static str, found: usize, min: usize, max: usize) -> Result<(), LayoutError> {
    if (min..=max).contains(&found) { Ok(()) } else { Err(LayoutError::Count { what, found, min, max }) }
}
