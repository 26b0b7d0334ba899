//! From one epoch to the next: seal, decide the tail once, and state it in the next layout.

use std::collections::BTreeMap;

use thiserror::Error;

use super::{DecidedTail, Layout, Stripe};
use crate::limits;
use crate::pos::{Addr, AddrRange, Epoch, LogPos, NodeId};
use crate::wire::Sealed;

/// Why the tail of an epoch cannot be told from the units' answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TailError {
    /// No replica of a stripe has answered: what it holds may be acknowledged.
    #[error("no replica of stripe {stripe} of the active range is sealed")]
    NotSealed {
        /// Which stripe.
        stripe: usize,
    },
    /// A unit sealed another epoch.
    #[error("node {node} sealed epoch {found}, expected {expected}")]
    WrongEpoch {
        /// Which unit.
        node: NodeId,
        /// The epoch that it sealed.
        found: Epoch,
        /// The layout's epoch.
        expected: Epoch,
    },
    /// A unit told of other extents than it has.
    #[error("node {node} told of {found} extents, it is in {expected} stripes of the active range")]
    Extents {
        /// Which unit.
        node: NodeId,
        /// Extents that it told of.
        found: usize,
        /// Stripes that it is in.
        expected: usize,
    },
}

impl Layout {
    /// The tail of this epoch, from the answers of units that were asked about their
    /// [`active_extents`](Self::active_extents): one past the highest position that any of them holds.
    /// Every acknowledged position is on every replica, so one answer for each stripe is enough; a position that is on some
    /// replicas only is counted too, and resolved by whoever reads it. Whoever calls this proposes the result and then uses
    /// what was decided, which may be another's.
    pub fn find_tail(&self, answers: &BTreeMap<NodeId, Sealed>) -> Result<LogPos, TailError> {
        match self.sealed_tail(answers)? {
            (tail, None) => Ok(tail),
            (_, Some(stripe)) => Err(TailError::NotSealed { stripe }),
        }
    }

    /// The same of the stripes that have answered, and the first that has not.
    pub(super) fn sealed_tail(
        &self,
        answers: &BTreeMap<NodeId, Sealed>,
    ) -> Result<(LogPos, Option<usize>), TailError> {
        for (&node, sealed) in answers {
            if sealed.epoch != self.epoch {
                return Err(TailError::WrongEpoch { node, found: sealed.epoch, expected: self.epoch });
            }
        }
        let (mut tail, mut unsealed) = (self.tail(), None);
        let Some(active) = self.ranges.last() else { return Ok((tail, unsealed)) };
        let stripes = active.stripes.len() as u64;
        // A unit has told of its extents in the order of their stripes.
        let mut told: BTreeMap<NodeId, std::slice::Iter<'_, Option<Addr>>> = BTreeMap::new();
        for (&node, sealed) in answers {
            let (found, expected) = (sealed.highest.len(), self.active_extents(node).len());
            if found != expected {
                return Err(TailError::Extents { node, found, expected });
            }
            told.insert(node, sealed.highest.iter());
        }
        for (at, stripe) in active.stripes.iter().enumerate() {
            let mut is_sealed = false;
            for node in &stripe.replicas {
                let Some(highest) = told.get_mut(node).and_then(Iterator::next) else { continue };
                is_sealed = true;
                if let Some(addr) = highest.filter(|&addr| addr >= stripe.base) {
                    let relative = (addr.0 - stripe.base.0).saturating_mul(stripes).saturating_add(at as u64);
                    let pos = active.start.0.saturating_add(relative);
                    tail = tail.max(LogPos(pos.saturating_add(1)));
                }
            }
            if !is_sealed {
                unsealed.get_or_insert(at);
            }
        }
        Ok((tail, unsealed))
    }

    /// Whether the tail of this epoch can be found without the units that do not answer. Errors: `NotSealed`.
    pub fn check_sealable(&self, silent: &[NodeId]) -> Result<(), TailError> {
        let is_silent = |stripe: &Stripe| stripe.replicas.iter().all(|node| silent.contains(node));
        let stripes = self.ranges.last().map_or(&[][..], |active| &active.stripes);
        match stripes.iter().position(is_silent) {
            Some(stripe) => Err(TailError::NotSealed { stripe }),
            None => Ok(()),
        }
    }

    /// The addresses of `node` in the active range, which its seal is asked about: an extent for each stripe that it is in, in the
    /// order of the stripes.
    pub fn active_extents(&self, node: NodeId) -> Vec<AddrRange> {
        let Some(active) = self.ranges.last() else { return Vec::new() };
        let is_in = |at: &usize| active.stripes[*at].replicas.contains(&node);
        (0..active.stripes.len()).filter(is_in).filter_map(|at| active.addresses(at)).collect()
    }

    /// The layout to propose for the next epoch: the same nodes and places, with the tail of this one. Panics if `tail` lies
    /// below the tail of an earlier epoch.
    pub fn next_epoch(&self, tail: LogPos) -> Self {
        assert!(tail >= self.tail(), "tails never go back: {} after {tail}", self.tail());
        let mut next = self.clone();
        next.epoch = self.epoch.next();
        next.tails.push(DecidedTail { epoch: self.epoch, tail });
        let old = next.tails.len().saturating_sub(limits::TAILS_MAX_COUNT);
        next.tails.drain(..old);
        next
    }

    /// Whether `next` may follow this layout: the same cluster, the next epoch, or the one [after a loss](Epoch::after_loss) if it has fewer
    /// nodes, and a tail that is decided in it and not below an earlier one.
    pub fn may_be_followed_by(&self, next: &Self) -> bool {
        let is_after_loss = self.is_after_loss(next.epoch) && next.nodes.len() < self.nodes.len();
        next.cluster == self.cluster
            && (next.epoch == self.epoch.next() || is_after_loss)
            && next.tails.last().is_some_and(|decided| decided.epoch.next() == next.epoch)
            && next.tail() >= self.tail()
    }

    /// Whether a layout of `epoch` would follow this one without nodes that are gone for good.
    pub(super) fn is_after_loss(&self, epoch: Epoch) -> bool {
        epoch == self.epoch.after_loss()
    }
}
