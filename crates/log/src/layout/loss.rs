//! Going on without nodes that are gone for good, and without what they alone held.
//!
//! ```text
//!   before   stripes on 1,2   2,3   3,1   ──── nodes 2 and 3 are gone ───►   after   1   lost   1  │ gap │  a new range on 1
//! ```
//!
//! An epoch ends like any other where each stripe of the active range has a replica that can be sealed. Where one has none, nobody can tell where the
//! log ended, and an operator has to say that it will never be known (docs/protocol/loss.md).

use std::collections::BTreeMap;

use thiserror::Error;

use super::{ChangeError, DecidedTail, Layout, Node, NodeState, OPEN_END, TailError};
use crate::limits;
use crate::pos::{Addr, AddrRange, Epoch, LogPos, NodeId};
use crate::wire::Sealed;

/// Addresses of a closed stripe that hold nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostPart {
    /// The stripe's replicas in the layout, in order.
    pub replicas: Vec<NodeId>,
    /// The addresses.
    pub addresses: AddrRange,
}

/// Why a cluster cannot go on without nodes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LossError {
    /// What the units told does not belong to the layout.
    #[error(transparent)]
    Tail(#[from] TailError),
    /// What is left makes no cluster.
    #[error("what is left makes no cluster: {0}")]
    Change(#[from] ChangeError),
}

impl Layout {
    /// The layout that goes on without the nodes `gone`, from what the others told that were `sealed`: all of them that store entries. Who is left is
    /// in use, but for nodes that leave. Stripes go on on those of their replicas that are left; one of which none is left goes to another unit, which
    /// holds nothing of it. The tail lies [`limits::FILL_AHEAD_MAX_COUNT`] above all that is left, since more may have been granted and read.
    ///
    /// Errors: `Tail` if an answer is of another epoch or of other extents; `Change` if nobody is left who may decide, hand out positions or
    /// store entries.
    pub fn without(&self, gone: &[NodeId], sealed: &BTreeMap<NodeId, Sealed>) -> Result<Self, LossError> {
        let (found, _) = self.sealed_tail(sealed)?;
        let tail = found.0.checked_add(limits::FILL_AHEAD_MAX_COUNT).map(LogPos);
        let tail = tail.ok_or(ChangeError::AddressesExhausted)?;
        let mut next = self.clone();
        next.epoch = self.epoch.after_loss();
        next.nodes.retain(|node| !gone.contains(&node.id));
        let stays = |node: &&mut Node| node.state != NodeState::Leaving;
        next.nodes.iter_mut().filter(stays).for_each(|node| node.state = NodeState::InUse);
        next.choose_acceptors();
        next.choose_sequencer(None)?;
        let ended = next.epoch.0 - limits::TAILS_MAX_COUNT as u64..next.epoch.0;
        next.tails = ended.map(|epoch| DecidedTail { epoch: Epoch(epoch), tail }).collect();
        next.close_range(tail);
        next.take_off(gone)?;
        let base = next.next_base.0.checked_add(limits::LOSS_BLOCKS * limits::STRIPE_ADDRESSES);
        next.next_base = Addr(base.ok_or(ChangeError::AddressesExhausted)?);
        next.start_range(tail)?;
        next.validate().map_err(ChangeError::Layout)?;
        Ok(next)
    }

    /// Takes nodes off all stripes. One that nobody is left of goes to one unit after the other.
    fn take_off(&mut self, gone: &[NodeId]) -> Result<(), ChangeError> {
        let units: Vec<NodeId> = self.units().collect();
        let mut heirs = units.iter().copied().cycle();
        for stripe in self.ranges.iter_mut().flat_map(|range| &mut range.stripes) {
            stripe.replicas.retain(|node| !gone.contains(node));
            if stripe.replicas.is_empty() {
                stripe.replicas.push(heirs.next().ok_or(ChangeError::NoUnits)?);
            }
        }
        Ok(())
    }

    /// What holds nothing since `next` goes on from this layout [without](Self::without) nodes: stripes that nobody is left of, and what lies above all
    /// that is left. Nothing, if `next` is another layout. The replicas trim it before they serve that epoch.
    pub fn lost_by(&self, next: &Self) -> Vec<LostPart> {
        if !self.is_after_loss(next.epoch) {
            return Vec::new();
        }
        let found = LogPos(next.tail().0.saturating_sub(limits::FILL_AHEAD_MAX_COUNT));
        let mut lost = Vec::new();
        for range in next.ranges.iter().filter(|range| range.end != OPEN_END) {
            let before = self.ranges.iter().find(|before| before.start == range.start);
            let mut below = range.clone();
            below.end = found.clamp(range.start, range.end);
            for (at, stripe) in range.stripes.iter().enumerate() {
                let (Some(all), Some(held)) = (range.addresses(at), below.addresses(at)) else { continue };
                let held_before = before.and_then(|before| before.stripes.get(at));
                let is_left = held_before.is_some_and(|before| before.replicas.contains(&stripe.replicas[0]));
                let addresses = if is_left { AddrRange::new(held.end, all.end) } else { all };
                if !addresses.is_empty() {
                    lost.push(LostPart { replicas: stripe.replicas.clone(), addresses });
                }
            }
        }
        lost
    }
}
