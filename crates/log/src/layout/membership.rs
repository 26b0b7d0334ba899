//! Who belongs to the cluster: nodes that are added, nodes that leave for good, and which of them decide layouts.
//!
//! ```text
//!   add       not listed ──► Out ──(it hears the others)──► InUse
//!   replace   Out, and it decides nothing until it is InUse again
//!   remove    InUse ──► Leaving ──(others have its copies)──► not listed
//!             Out ─────────────────────────────────────────► not listed
//!   room      InUse ──(it has none)──► Full ──(it has some again)──► InUse
//! ```
//!
//! A node that leaves is taken off a stripe when as many others in use as copies are wanted hold that stripe; when no stripe
//! names it any more it is gone from the layout. One that is lost while it leaves is taken off at once, as any lost node is.

use std::net::SocketAddr;

use super::{Change, ChangeError, Layout, Node, NodeState, RangeMap};
use crate::limits;
use crate::pos::{Epoch, NodeId};
use crate::wire::{ChangeCluster, Roles};

/// How many of `members` nodes decide layouts, if that many may.
pub fn acceptors_wanted(members: usize) -> usize {
    match members {
        0..3 => 1,
        3..limits::ACCEPTORS_MAX_COUNT => 3,
        _ => limits::ACCEPTORS_MAX_COUNT,
    }
}

impl Layout {
    /// The units that serve what they hold, in the order of their ids: those in use, and those that are leaving.
    pub fn serving(&self) -> impl Iterator<Item = NodeId> {
        let serves = |node: &&Node| node.state != NodeState::Out && node.roles.has(Roles::UNIT);
        self.nodes.iter().filter(serves).map(|node| node.id)
    }

    /// The nodes in use, whatever they do, in the order of their ids.
    pub fn in_use(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.iter().filter(|node| node.state.is_used()).map(|node| node.id)
    }

    /// The units in use, those that have no room among them, in the order of their ids.
    pub fn holders(&self) -> impl Iterator<Item = NodeId> {
        let serves = |node: &&Node| node.state.is_used() && node.roles.has(Roles::UNIT);
        self.nodes.iter().filter(serves).map(|node| node.id)
    }

    /// The nodes whose loss changes the layout: those in use, and those that are leaving and named beside others.
    pub fn missed_if_lost(&self) -> impl Iterator<Item = NodeId> {
        let beside = |node: NodeId| {
            let stripes = self.ranges.iter().flat_map(|range| &range.stripes);
            let mut named = stripes.filter(move |stripe| stripe.replicas.contains(&node));
            named.any(|stripe| stripe.replicas.iter().any(|&other| self.is_used(other)))
        };
        let is_missed = move |node: &&Node| match node.state {
            NodeState::InUse | NodeState::Full => true,
            NodeState::Leaving => beside(node.id),
            NodeState::Out => false,
        };
        self.nodes.iter().filter(is_missed).map(|node| node.id)
    }

    /// Whether every member is in use and no copy is missing.
    pub fn is_whole(&self) -> bool {
        self.in_use().count() == self.nodes.len() && self.lacking().is_empty()
    }

    /// Whether the ranges that a layout has room for are kept for nodes that go: each that comes in takes one, and one that is started again and
    /// again would leave none. Trims take ranges away.
    pub fn is_short_of_ranges(&self) -> bool {
        self.ranges.len() >= limits::LAYOUT_RANGES_MAX_COUNT / 4 * 3
            || self.encoded_bytes() >= limits::LAYOUT_MAX_BYTES / 4 * 3
    }

    /// How many stripes `node` is a replica of.
    pub fn stripes_of(&self, node: NodeId) -> usize {
        let stripes = self.ranges.iter().flat_map(|range| &range.stripes);
        stripes.filter(|stripe| stripe.replicas.contains(&node)).count()
    }

    /// An epoch that `node` is sure to have sealed, on stable storage, before this layout was proposed: that of the layout before, if the active
    /// range names the node. Of those who were in use whoever could not be sealed went out, and of the others nobody came in. A layout that goes
    /// on [without](Self::without) nodes says of epochs that there may never have been where they ended, and it is the same place for all.
    pub fn sealed_by(&self, node: NodeId) -> Option<Epoch> {
        let (active, decided) = (self.ranges.last()?, self.tails.last()?);
        let may_be_after_loss =
            self.tails.len() == limits::TAILS_MAX_COUNT && self.tails[0].tail == decided.tail;
        (active.is_held_by(node) && !may_be_after_loss).then_some(decided.epoch)
    }

    /// What has to change so that `asked` is so; `None` if it is, or is on its way. Whether it can be shows
    /// [`Layout::change`].
    pub fn change_for(&self, asked: &ChangeCluster) -> Option<Change> {
        match asked {
            ChangeCluster::Add { node, address, offers } => {
                let known = self.node(*node);
                let is_so =
                    known.is_some_and(|known| known.address == *address && known.state != NodeState::Leaving);
                let added = Node::new(*node, offers.of_member(), address.clone());
                let added = Node { state: NodeState::Out, ..added };
                (!is_so).then(|| Change { added: vec![added], ..Change::default() })
            }
            ChangeCluster::Remove { node } => {
                let stays = self.node(*node).is_some_and(|known| known.state != NodeState::Leaving);
                stays.then(|| Change { removed: vec![*node], ..Change::default() })
            }
            ChangeCluster::Replace { node } => {
                let change = Change { replaced: vec![*node], ..Change::default() };
                self.node(*node).map(|_| change)
            }
            ChangeCluster::MinReplicas { count } => {
                let change = Change { min_replicas: Some(*count), ..Change::default() };
                (self.min_replicas != *count).then_some(change)
            }
        }
    }

    /// Whether what cannot be changed so, because of `error`, may be later: when members that are out are in use again, have room, or are
    /// gone for good.
    pub fn may_change_later(&self, change: &Change, error: &ChangeError) -> bool {
        let mut whole = self.clone();
        let stays = |node: &&mut Node| node.state != NodeState::Leaving;
        whole.nodes.iter_mut().filter(stays).for_each(|node| node.state = NodeState::InUse);
        match error {
            ChangeError::InUse { .. } | ChangeError::Leaving { .. } | ChangeError::OnlyCopy { .. } => true,
            _ => whole.change(self.tail(), change).is_ok(),
        }
    }

    fn state(&self, node: NodeId) -> Option<NodeState> {
        self.node(node).map(|node| node.state)
    }

    fn is_used(&self, node: NodeId) -> bool {
        self.state(node).is_some_and(NodeState::is_used)
    }

    /// Takes in and marks as leaving whom `change` names, and has others decide layouts in their place.
    pub(super) fn change_members(&mut self, change: &Change) -> Result<(), ChangeError> {
        change.added.iter().try_for_each(|node| self.add(node))?;
        change.removed.iter().try_for_each(|&node| self.mark_leaving(node))?;
        change.replaced.iter().try_for_each(|&node| self.forget(node))?;
        // Whoever is lost is taken out whatever it wants to be: nobody knows that it has stopped to accept what this epoch grants.
        let stays = |node: &&Node| !change.lost.contains(&node.id);
        let comes = |node: &Node| self.state(node.id) == Some(NodeState::Out);
        let is_changed = !change.added.is_empty()
            || !change.removed.is_empty()
            || !change.replaced.is_empty()
            || change.joined.iter().filter(stays).any(comes);
        for node in change.joined.iter().filter(stays) {
            let state = if node.state == NodeState::Full { NodeState::Full } else { NodeState::InUse };
            let node = Node { state, ..node.clone() };
            match self.nodes.binary_search_by_key(&node.id, |listed| listed.id) {
                Ok(at) if self.nodes[at].state == NodeState::Leaving => {}
                Ok(at) => self.nodes[at] = node,
                Err(at) => self.nodes.insert(at, node),
            }
        }
        if is_changed {
            self.choose_acceptors();
        }
        Ok(())
    }

    fn add(&mut self, node: &Node) -> Result<(), ChangeError> {
        if let Some(known) = self.node(node.id) {
            return match known {
                known if known.address != node.address => Err(ChangeError::OtherAddress {
                    node: node.id,
                    known: known.address.clone(),
                    address: node.address.clone(),
                }),
                known if known.state == NodeState::Leaving => Err(ChangeError::Leaving { node: node.id }),
                _ => Ok(()),
            };
        }
        if node.address.parse::<SocketAddr>().is_err() {
            return Err(ChangeError::BadAddress { address: node.address.clone(), node: node.id });
        }
        if let Some(other) = self.nodes.iter().find(|other| other.address == node.address) {
            return Err(ChangeError::AddressTaken { address: node.address.clone(), node: other.id });
        }
        let at = self.nodes.partition_point(|listed| listed.id < node.id);
        self.nodes.insert(at, Node { state: NodeState::Out, ..node.clone() });
        Ok(())
    }

    fn mark_leaving(&mut self, node: NodeId) -> Result<(), ChangeError> {
        let Some(listed) = self.node(node).filter(|listed| listed.state != NodeState::Leaving) else {
            return Ok(());
        };
        let (state, is_unit) = (listed.state, listed.roles.has(Roles::UNIT));
        let stays = |other: &&Node| match state {
            NodeState::InUse | NodeState::Full => other.state == NodeState::InUse,
            _ => other.state != NodeState::Leaving,
        };
        let units = self.nodes.iter().filter(|other| other.id != node && other.roles.has(Roles::UNIT));
        let left = units.filter(stays).count();
        if is_unit && left < usize::from(self.replicas) {
            return Err(ChangeError::TooFewNodes { node, left, replicas: self.replicas });
        }
        if state == NodeState::Out {
            self.check_copies(node)?;
        }
        if let Ok(at) = self.nodes.binary_search_by_key(&node, |listed| listed.id) {
            self.nodes[at].state = NodeState::Leaving;
        }
        Ok(())
    }

    /// Counts no more on what a node that is out remembers.
    fn forget(&mut self, node: NodeId) -> Result<(), ChangeError> {
        let at = self.nodes.binary_search_by_key(&node, |listed| listed.id);
        let at = at.map_err(|_| ChangeError::NotMember { node })?;
        match self.nodes[at].state {
            NodeState::Out => self.check_copies(node)?,
            NodeState::Leaving => return Err(ChangeError::Leaving { node }),
            NodeState::InUse | NodeState::Full => return Err(ChangeError::InUse { node }),
        }
        self.nodes[at].roles = self.nodes[at].roles.without(Roles::LAYOUT);
        Ok(())
    }

    /// Refuses what a node that is out has the only copy of.
    fn check_copies(&self, node: NodeId) -> Result<(), ChangeError> {
        match self.ranges.iter().find(|range| range.is_held_by(node)) {
            Some(range) => Err(ChangeError::OnlyCopy { node, start: range.start, end: range.end }),
            None => Ok(()),
        }
    }

    /// Has as many nodes decide layouts as those members allow that do not abstain: those that do stay, as far as they are not
    /// leaving, and nodes in use are added to them, in the order of their ids.
    pub(super) fn choose_acceptors(&mut self) {
        let decides_ever = |node: &&Node| !node.roles.has(Roles::ABSTAINS);
        let stays = |node: &&Node| node.state != NodeState::Leaving;
        let wanted = acceptors_wanted(self.nodes.iter().filter(decides_ever).filter(stays).count());
        let rank = |node: &Node| match (node.roles.has(Roles::LAYOUT), node.state) {
            (true, NodeState::Out) => Some(1),
            (decides, state) if state.is_used() => Some(if decides { 0 } else { 2 }),
            _ => None,
        };
        let mut may: Vec<(u8, NodeId)> =
            self.nodes.iter().filter(decides_ever).filter_map(|node| Some((rank(node)?, node.id))).collect();
        may.sort();
        // An even number would only add one that may fail.
        may.truncate((may.len().min(wanted)).saturating_sub(1) / 2 * 2 + 1);
        for node in &mut self.nodes {
            let decides = may.iter().any(|&(_, chosen)| chosen == node.id);
            node.roles =
                if decides { node.roles.with(Roles::LAYOUT) } else { node.roles.without(Roles::LAYOUT) };
        }
    }

    /// Takes nodes that are out off closed stripes, and of the leaving ones those that are `lost`; but not the last that have a
    /// copy: they may come back with it.
    pub(super) fn drop_lost(&mut self, lost: &[NodeId]) {
        let is_gone = |node: &&Node| match node.state {
            NodeState::InUse | NodeState::Full => false,
            NodeState::Out => true,
            NodeState::Leaving => lost.contains(&node.id),
        };
        let gone: Vec<NodeId> = self.nodes.iter().filter(is_gone).map(|node| node.id).collect();
        for stripe in self.ranges.iter_mut().flat_map(|range| &mut range.stripes) {
            if stripe.replicas.iter().any(|node| !gone.contains(node)) {
                stripe.replicas.retain(|node| !gone.contains(node));
            }
        }
    }

    /// Takes nodes that are leaving off closed stripes that enough others hold, and out of the cluster once no stripe names
    /// them.
    pub(super) fn drop_leaving(&mut self) {
        let in_use: Vec<NodeId> = self.holders().collect();
        let leaving: Vec<NodeId> =
            self.nodes.iter().filter(|node| node.state == NodeState::Leaving).map(|node| node.id).collect();
        if leaving.is_empty() {
            return;
        }
        let wanted = usize::from(self.replicas);
        for stripe in self.ranges.iter_mut().flat_map(|range| &mut range.stripes) {
            if stripe.replicas.iter().filter(|node| in_use.contains(node)).count() >= wanted {
                stripe.replicas.retain(|node| !leaving.contains(node));
            }
        }
        let gone: Vec<NodeId> = leaving.into_iter().filter(|&node| self.stripes_of(node) == 0).collect();
        self.nodes.retain(|node| !gone.contains(&node.id));
    }
}

impl RangeMap {
    /// Whether a stripe of it names `node`.
    fn is_held_by(&self, node: NodeId) -> bool {
        self.stripes.iter().any(|stripe| stripe.replicas.contains(&node))
    }
}
