//! From one epoch to the next: seal, decide the tail once, and state it in the next layout.

use std::collections::BTreeMap;

use thiserror::Error;

use super::{DecidedTail, Layout};
use crate::limits;
use crate::pos::{Epoch, LogPos, NodeId};
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
}

impl Layout {
    /// The tail of this epoch, from the answers of sealed units: one past the highest position that any of them holds.
    /// Every acknowledged position is on every replica, so one answer for each stripe is enough; a position that is on some
    /// replicas only is counted too, and resolved by whoever reads it. Whoever calls this proposes the result and then uses
    /// what was decided, which may be another's.
    pub fn find_tail(&self, answers: &BTreeMap<NodeId, Sealed>) -> Result<LogPos, TailError> {
        for (&node, sealed) in answers {
            if sealed.epoch != self.epoch {
                return Err(TailError::WrongEpoch { node, found: sealed.epoch, expected: self.epoch });
            }
        }
        let mut tail = self.tail();
        let Some(active) = self.ranges.last() else { return Ok(tail) };
        let stripes = active.stripes.len() as u64;
        for (at, stripe) in active.stripes.iter().enumerate() {
            let mut answered = stripe.replicas.iter().filter_map(|node| answers.get(node)).peekable();
            if answered.peek().is_none() {
                return Err(TailError::NotSealed { stripe: at });
            }
            // Addresses below the base belong to earlier ranges.
            let highest =
                answered.filter_map(|sealed| sealed.highest).filter(|&addr| addr >= stripe.base).max();
            if let Some(addr) = highest {
                let relative = (addr.0 - stripe.base.0).saturating_mul(stripes).saturating_add(at as u64);
                let pos = active.start.0.saturating_add(relative);
                tail = tail.max(LogPos(pos.saturating_add(1)));
            }
        }
        Ok(tail)
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

    /// Whether `next` may follow this layout: the same cluster, the next epoch, and a tail that is decided in it and not
    /// below an earlier one.
    pub fn may_be_followed_by(&self, next: &Self) -> bool {
        next.cluster == self.cluster
            && next.epoch == self.epoch.next()
            && next.tails.last().is_some_and(|decided| decided.epoch == self.epoch)
            && next.tail() >= self.tail()
    }
}
