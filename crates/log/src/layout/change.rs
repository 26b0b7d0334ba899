//! A changed layout for the next epoch: nodes leave and come back, copies are complete, old ranges go.
//!
//! ```text
//!   e       [0, open)   [1,2] [2,3] [3,1]
//!   e + 1   [0, 40)     [1,2] [2]   [1]         node 3 is lost at tail 40: what it held has one copy left
//!           [40, open)  [1,2] [2,1]
//!   e + 2   [0, 40)     [1,2] [2,1] [1,2]       the others have made copies
//!           [40, open)  [1,2] [2,1]
//! ```
//!
//! Every new stripe has addresses that no stripe has had before on any unit, in a block of its own. So whatever a lost node
//! still holds above a decided tail is named by no layout again, and any node can take a copy of any closed stripe.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use super::{Layout, LayoutError, Node, NodeState, OPEN_END, RangeMap, Stripe};
use crate::limits;
use crate::pos::{Addr, AddrRange, ClusterId, Epoch, LogPos, NodeId};
use crate::wire::Roles;

/// What is to change from one epoch to the next. Nothing, as by default, is a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Nodes to take out, also those that are to join.
    pub lost: Vec<NodeId>,
    /// Nodes to put in use: new ones, ones that are out, and ones whose address or roles have changed, or whether they have room
    /// ([`NodeState::Full`] if they have none).
    pub joined: Vec<Node>,
    /// Nodes that become members. They are out until they join.
    pub added: Vec<Node>,
    /// Members that leave for good.
    pub removed: Vec<NodeId>,
    /// Members that are out, and have lost everything: they decide no layouts until they join.
    pub replaced: Vec<NodeId>,
    /// Replicas that an append needs, if it is to be another number.
    pub min_replicas: Option<u16>,
    /// Replicas of closed stripes that hold everything now.
    pub completed: Vec<Copy>,
    /// The sequencer, if it is to be another one.
    pub sequencer: Option<NodeId>,
    /// Everything below is trimmed: closed ranges that lie wholly below are dropped.
    pub trimmed: LogPos,
}

/// A copy of a closed stripe: one to make, or one that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Copy {
    /// The first position of the stripe's range.
    pub start: LogPos,
    /// Which stripe of the range.
    pub stripe: usize,
    /// The node that has it or shall have it.
    pub node: NodeId,
}

/// Why a layout cannot be changed so.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ChangeError {
    /// Tails never go back.
    #[error("the tail is {tail}, below the decided tail {decided}")]
    TailBelow {
        /// The tail that was given.
        tail: LogPos,
        /// The tail of the epoch before.
        decided: LogPos,
    },
    /// A node is to leave that is not a member.
    #[error("node {node} is not a member")]
    NotMember {
        /// Which.
        node: NodeId,
    },
    /// A node is to be added that is a member and listens elsewhere.
    #[error("node {} is a member already and listens at {known}, not at {address}", node.0)]
    OtherAddress {
        /// Which.
        node: NodeId,
        /// Where it listens.
        known: String,
        /// Where it should.
        address: String,
    },
    /// A node is to be added where another member listens.
    #[error("{address} is the address of node {}", node.0)]
    AddressTaken {
        /// The address.
        address: String,
        /// Whose it is.
        node: NodeId,
    },
    /// A node is to be added that nobody could reach.
    #[error("{address:?} is not an address IP:port, for node {}", node.0)]
    BadAddress {
        /// The address.
        address: String,
        /// Whose it should be.
        node: NodeId,
    },
    /// A node is to be added that is on its way out of the cluster.
    #[error("node {} is leaving the cluster; it can be added again when it is gone", node.0)]
    Leaving {
        /// Which.
        node: NodeId,
    },
    /// A node is to be replaced that is in use.
    #[error("node {} is in use", node.0)]
    InUse {
        /// Which.
        node: NodeId,
    },
    /// Without a node there would not be enough for the copies.
    #[error("without node {} the nodes left are {left}, for {replicas} copies of each entry", node.0)]
    TooFewNodes {
        /// Which.
        node: NodeId,
        /// How many others could hold copies.
        left: usize,
        /// Copies that are wanted.
        replicas: u16,
    },
    /// What a node holds cannot be copied from it, and nobody else holds it.
    #[error("node {} is not in use and has the only copy of positions from {start} to {end}", node.0)]
    OnlyCopy {
        /// Which.
        node: NodeId,
        /// The first position.
        start: LogPos,
        /// One past the last.
        end: LogPos,
    },
    /// No unit is left in use.
    #[error("no unit is in use")]
    NoUnits,
    /// A cluster is to be formed of fewer units than an append needs replicas.
    #[error("{found} units are too few for {needed} copies of each entry")]
    TooFewUnits {
        /// How many there are.
        found: usize,
        /// How many are needed.
        needed: u16,
    },
    /// No node in use may be the sequencer.
    #[error("no node in use has the role of a sequencer")]
    NoSequencer,
    /// A node is to be the sequencer that is not in use, or has not the role.
    #[error("node {node} cannot be the sequencer")]
    NotSequencer {
        /// Which.
        node: NodeId,
    },
    /// A copy is complete of what is not a closed stripe, or has enough replicas.
    #[error("no closed stripe {stripe} at {start} needs a copy on node {node}")]
    NoSuchCopy {
        /// The start of its range.
        start: LogPos,
        /// Which stripe.
        stripe: usize,
        /// Where the copy is.
        node: NodeId,
    },
    /// No block of addresses is left for a new stripe.
    #[error("no block of addresses is left for another stripe")]
    AddressesExhausted,
    /// What comes out is not a layout, for example because it has too many ranges.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// The replicas of each stripe of a range over `units`, by rotation: as many stripes as units, on each `replicas` units that
/// follow each other, or all of them if there are fewer.
pub fn arrange(units: &[NodeId], replicas: u16) -> Vec<Vec<NodeId>> {
    let copies = usize::from(replicas).min(units.len());
    (0..units.len()).map(|first| units.iter().cycle().skip(first).take(copies).copied().collect()).collect()
}

impl Layout {
    /// The first layout of a cluster: one range over all units, with `replicas` copies of each entry, of which an append
    /// needs `min_replicas`. The first node that may be the sequencer is.
    pub fn first(
        cluster: ClusterId,
        mut nodes: Vec<Node>,
        replicas: u16,
        min_replicas: u16,
    ) -> Result<Self, ChangeError> {
        nodes.sort_by_key(|node| node.id);
        let may = nodes.iter().find(|node| node.roles.has(Roles::SEQUENCER));
        let sequencer = may.ok_or(ChangeError::NoSequencer)?.id;
        let mut layout = Self {
            cluster,
            epoch: Epoch(1),
            replicas,
            min_replicas,
            nodes,
            sequencer,
            next_base: Addr(0),
            ranges: Vec::new(),
            tails: Vec::new(),
        };
        // How many units there are is told of counts that can be.
        layout.validate_replica_counts()?;
        layout.start_range(LogPos(0))?;
        if layout.shortage().is_some() {
            return Err(ChangeError::TooFewUnits { found: layout.units().count(), needed: min_replicas });
        }
        layout.validate()?;
        Ok(layout)
    }

    /// The layout to propose for the next epoch, with the tail of this one. Where units have come or gone, or half of the active range's
    /// addresses are used, it is closed at `tail`, or replaced if nothing lies in it, and another begins over the units that are in use; else
    /// every position to come lies where it would have. What is below `tail` stays where it is.
    pub fn change(&self, tail: LogPos, change: &Change) -> Result<Self, ChangeError> {
        let decided = self.tail();
        if tail < decided {
            return Err(ChangeError::TailBelow { tail, decided });
        }
        let mut next = self.next_epoch(tail);
        next.min_replicas = change.min_replicas.unwrap_or(self.min_replicas);
        next.take_out(&change.lost)?;
        next.change_members(change)?;
        next.choose_sequencer(change.sequencer)?;
        for copy in &change.completed {
            next.complete(copy)?;
        }
        let active = next.ranges.last().map(|range| &range.stripes);
        let placed: BTreeSet<NodeId> =
            active.into_iter().flatten().flat_map(|at| &at.replicas).copied().collect();
        // A range goes on in other blocks long before the addresses of its own end.
        let is_used_up = next.ranges.last().is_some_and(|active| active.has_used_half(tail));
        if is_used_up || !placed.iter().copied().eq(next.units()) {
            next.close_range(tail);
            next.start_range(tail)?;
        }
        // Before those are let go who are named by nothing else.
        next.ranges.drain(..next.trimmed_ranges(change.trimmed));
        next.drop_lost(&change.lost);
        next.drop_leaving();
        next.merge();
        next.validate()?;
        Ok(next)
    }

    /// How many closed ranges lie wholly below `trimmed`.
    pub fn trimmed_ranges(&self, trimmed: LogPos) -> usize {
        let closed = &self.ranges[..self.ranges.len().saturating_sub(1)];
        closed.partition_point(|range| range.end <= trimmed)
    }

    /// The units in use that have room, in the order of their ids: those that new entries go to.
    pub fn units(&self) -> impl Iterator<Item = NodeId> {
        let serves = |node: &&Node| node.state == NodeState::InUse && node.roles.has(Roles::UNIT);
        self.nodes.iter().filter(serves).map(|node| node.id)
    }

    /// The copies that closed stripes lack, each for the unit in use that has room and the fewest positions of closed stripes by
    /// then. What a leaving node holds does not count, but can be copied. Stripes without any replica that serves are left
    /// out: there is nothing to copy from.
    pub fn missing(&self) -> Vec<Copy> {
        let units: Vec<NodeId> = self.units().collect();
        let mut load: BTreeMap<NodeId, u64> = units.iter().map(|&unit| (unit, 0)).collect();
        for range in self.ranges.iter().filter(|range| range.end != OPEN_END) {
            for (at, stripe) in range.stripes.iter().enumerate() {
                for node in &stripe.replicas {
                    load.entry(*node).and_modify(|load| *load += range.size(at));
                }
            }
        }
        let mut missing = Vec::new();
        for (range, stripe, count) in self.lacking() {
            let held = &range.stripes[stripe].replicas;
            let mut others: Vec<NodeId> = units.iter().filter(|unit| !held.contains(unit)).copied().collect();
            others.sort_by_key(|unit| (load[unit], *unit));
            for node in others.into_iter().take(count) {
                load.entry(node).and_modify(|load| *load += range.size(stripe));
                missing.push(Copy { start: range.start, stripe, node });
            }
        }
        missing
    }

    /// The stripe that `copy` is of, if there is one, and its addresses.
    pub fn stripe_of(&self, copy: &Copy) -> Option<(&Stripe, AddrRange)> {
        let range = self.ranges.iter().find(|range| range.start == copy.start)?;
        Some((range.stripes.get(copy.stripe)?, range.addresses(copy.stripe)?))
    }

    /// Closed stripes that fewer units in use hold than should, and how many copies each lacks; also where no unit has room for
    /// one.
    pub(super) fn lacking(&self) -> Vec<(&RangeMap, usize, usize)> {
        let holders: Vec<NodeId> = self.holders().collect();
        let serving: Vec<NodeId> = self.serving().collect();
        let wanted = usize::from(self.replicas).min(holders.len());
        let mut lacking = Vec::new();
        for range in self.ranges.iter().filter(|range| range.end != OPEN_END) {
            for (at, stripe) in range.stripes.iter().enumerate() {
                let count =
                    |nodes: &[NodeId]| stripe.replicas.iter().filter(|node| nodes.contains(node)).count();
                let held = count(&holders);
                if held < wanted && count(&serving) > 0 {
                    lacking.push((range, at, wanted - held));
                }
            }
        }
        lacking
    }

    fn take_out(&mut self, lost: &[NodeId]) -> Result<(), ChangeError> {
        for &node in lost {
            let listed = self.nodes.iter_mut().find(|listed| listed.id == node);
            let listed = listed.ok_or(ChangeError::NotMember { node })?;
            // One that is leaving does not come back.
            if listed.state.is_used() {
                listed.state = NodeState::Out;
            }
        }
        Ok(())
    }

    /// Takes the sequencer that is wanted, or keeps the one there is; if that may not stay, the next node by id that may be
    /// one, around the circle.
    pub(super) fn choose_sequencer(&mut self, wanted: Option<NodeId>) -> Result<(), ChangeError> {
        let serves = |node: &&Node| node.state.is_used() && node.roles.has(Roles::SEQUENCER);
        let may: Vec<NodeId> = self.nodes.iter().filter(serves).map(|node| node.id).collect();
        if let Some(node) = wanted.filter(|node| !may.contains(node)) {
            return Err(ChangeError::NotSequencer { node });
        }
        let before = wanted.unwrap_or(self.sequencer);
        let from_here = may.iter().find(|&&node| node >= before).or(may.first());
        self.sequencer = *from_here.ok_or(ChangeError::NoSequencer)?;
        Ok(())
    }

    fn complete(&mut self, copy: &Copy) -> Result<(), ChangeError> {
        let &Copy { start, stripe, node } = copy;
        let unit = self.holders().any(|unit| unit == node);
        let range = self.ranges.iter_mut().find(|range| range.start == start && range.end != OPEN_END);
        let found = range.and_then(|range| range.stripes.get_mut(stripe));
        let fits = |stripe: &&mut Stripe| {
            unit && !stripe.replicas.contains(&node) && stripe.replicas.len() < limits::REPLICAS_MAX_COUNT
        };
        let found = found.filter(fits).ok_or(ChangeError::NoSuchCopy { start, stripe, node })?;
        found.replicas.push(node);
        Ok(())
    }

    /// Ends the active range, or drops it if nothing lies in it.
    pub(super) fn close_range(&mut self, tail: LogPos) {
        if let Some(active) = self.ranges.last_mut() {
            match active.start < tail {
                true => active.end = tail,
                false => _ = self.ranges.pop(),
            }
        }
    }

    /// Begins a range over the units in use.
    pub(super) fn start_range(&mut self, start: LogPos) -> Result<(), ChangeError> {
        let units: Vec<NodeId> = self.units().collect();
        if units.is_empty() {
            return Err(ChangeError::NoUnits);
        }
        let mut stripes = Vec::new();
        for replicas in arrange(&units, self.replicas) {
            stripes.push(Stripe { replicas, base: self.next_base });
            let next = self.next_base.0.checked_add(limits::STRIPE_ADDRESSES);
            self.next_base = Addr(next.ok_or(ChangeError::AddressesExhausted)?);
        }
        self.ranges.push(RangeMap { start, end: OPEN_END, stripes });
        Ok(())
    }

    /// Makes one of ranges that follow each other on the same replicas, at addresses that follow each other.
    fn merge(&mut self) {
        let mut merged: Vec<RangeMap> = Vec::new();
        for range in std::mem::take(&mut self.ranges) {
            match merged.last_mut() {
                Some(before) if before.is_continued_by(&range) => before.end = range.end,
                _ => merged.push(range),
            }
        }
        self.ranges = merged;
    }
}

impl RangeMap {
    /// Whether positions below `tail` take half of the addresses of a stripe's block, or more.
    fn has_used_half(&self, tail: LogPos) -> bool {
        let each = tail.0.saturating_sub(self.start.0) / self.stripes.len() as u64;
        each >= limits::STRIPE_ADDRESSES / 2
    }

    /// Whether `next`, which begins where this ends, puts every position where this would if it went on.
    fn is_continued_by(&self, next: &Self) -> bool {
        let (count, stripes) = (self.end.0 - self.start.0, self.stripes.len());
        stripes == next.stripes.len()
            && next.stripes.iter().enumerate().all(|(at, stripe)| {
                let here = ((count % stripes as u64) as usize + at) % stripes;
                let addresses = self.addresses(here);
                self.stripes[here].replicas == stripe.replicas
                    && !stripe.base.0.is_multiple_of(limits::STRIPE_ADDRESSES)
                    && addresses.is_some_and(|addresses| addresses.end == stripe.base)
            })
    }
}
