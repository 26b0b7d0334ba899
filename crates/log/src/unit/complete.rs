//! What of a stripe is on every replica, as far as this one knows: it may be read here in any epoch.
//!
//! The replicas of a stripe are written in order, so nothing is on the last one that is not on all. The last one *marks* how far its
//! addresses are resolved without a gap, and tells the others; each of them takes the mark over:
//!
//! ```text
//!            start      trimmed        complete              end
//!   last       ├── trimmed ─┼── resolved ──┼── … gaps … ───────┤
//!   this one   ├── trimmed ─┼── resolved ──┼── may hold more ──┤
//! ```
//!
//! Below `complete` this unit may show data and junk, which never change and never go, whatever the epoch. It says "trimmed" below
//! `trimmed` only: a trim passes here before it comes to the last replica, whose readers may be shown the data until then. Above, it
//! does not know. A mark belongs to the layout that both have: what the last replica holds by then went through every replica that
//! this layout lists. It is not stored; after a restart the next beats bring it again. (docs/protocol/read.md)

use std::collections::BTreeMap;

use ithaca_chain::RangeSet;

use super::Unit;
use crate::planted::PlantedBug;
use crate::pos::{Addr, AddrRange, Epoch, NodeId};
use crate::wire::{Mark, Refusal};

/// Stripes that are looked at for one list of marks, beyond the newest.
const LOOKED_AT_MAX: usize = 1024;

/// A stripe that a layout lists a unit in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its addresses.
    pub extent: AddrRange,
    /// Whether the unit is its first replica: one that is not is written to with what an earlier one holds.
    pub is_first: bool,
    /// Its last replica; `None` if it is the unit itself.
    pub last: Option<NodeId>,
    /// Where those of them begin that lie at or above the decided tail.
    pub tail: Addr,
}

/// Which addresses a read is given, and by what right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readable {
    /// All that were asked for, in the epoch of the request, which the unit serves.
    Served,
    /// These, which are on every replica: what was asked for up to where that ends, at least one. Nothing of them is unwritten.
    Complete(Vec<AddrRange>),
}

/// The stripes that the newest layout lists the unit in.
#[derive(Clone, Debug, Default)]
pub(super) struct Complete {
    epoch: Epoch,
    /// By where their addresses begin.
    stripes: BTreeMap<Addr, Stripe>,
}

#[derive(Clone, Copy, Debug)]
struct Stripe {
    end: Addr,
    is_first: bool,
    last: Option<NodeId>,
    /// Where its addresses at or above the decided tail begin.
    tail: Addr,
    /// As the last replica said; of a stripe whose last replica is the unit itself, what others said before that.
    trimmed: Addr,
    complete: Addr,
}

impl Stripe {
    /// What is known of it from others, if it begins at `start`.
    fn mark(&self, start: Addr) -> Mark {
        Mark { start, trimmed: self.trimmed, complete: self.complete }
    }
}

impl Complete {
    /// The epoch of the newest layout that was told.
    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The node `from` marks stripes by the layout of `epoch`. Taken from the last replica of a stripe only, by the same layout,
    /// and no further than the unit's own addresses are `durable`.
    pub(super) fn mark(&mut self, from: NodeId, epoch: Epoch, marks: &[Mark], durable: &RangeSet) {
        if epoch != self.epoch {
            return;
        }
        for mark in marks {
            let Some(stripe) = self.stripes.get_mut(&mark.start) else { continue };
            if stripe.last == Some(from) {
                let own = Addr(durable.first_gap(mark.start.0));
                let complete = mark.complete.min(own).min(stripe.end);
                stripe.complete = stripe.complete.max(complete);
                stripe.trimmed = stripe.trimmed.max(mark.trimmed.min(complete));
            }
        }
    }

    /// The stripe that `addr` lies in, and where it begins.
    fn stripe(&self, addr: Addr) -> Option<(Addr, Stripe)> {
        let (&start, &stripe) = self.stripes.range(..=addr).next_back()?;
        (addr < stripe.end).then_some((start, stripe))
    }

    /// Whether an earlier replica of the stripe that `addr` lies in is written to first.
    pub(super) fn is_later(&self, addr: Addr) -> bool {
        self.stripe(addr).is_some_and(|(_, stripe)| !stripe.is_first)
    }

    /// Where the addresses at or above the decided tail begin, in the stripe that `addr` lies in.
    pub(super) fn tail_at(&self, addr: Addr) -> Option<Addr> {
        self.stripe(addr).map(|(_, stripe)| stripe.tail)
    }
}

impl Unit {
    /// The layout of `epoch` lists the unit in these stripes, and in no others. An older one than it knows changes nothing.
    pub(super) fn list(&mut self, epoch: Epoch, listed: &[Listed]) {
        if epoch <= self.complete.epoch {
            return;
        }
        // It was decided, so those before it are over, whether or not this unit was sealed then.
        self.floor = self.floor.max(Epoch(epoch.0 - 1));
        let mut stripes = BTreeMap::new();
        for &Listed { extent: AddrRange { start, end }, is_first, last, tail } in listed {
            let known = self.complete.stripes.get(&start);
            let mark = known
                .and_then(|stripe| self.own_mark(start, stripe))
                .or(known.map(|stripe| stripe.mark(start)));
            let Mark { trimmed, complete, .. } =
                mark.unwrap_or(Mark { start, trimmed: start, complete: start });
            assert!(complete <= end, "{complete} is on every replica, and above the decided tail at {end}");
            stripes.insert(start, Stripe { end, is_first, last, tail, trimmed, complete });
        }
        self.complete = Complete { epoch, stripes };
    }

    /// Which of `ranges` may be read in `epoch`. `committed` asks for what is on every replica only; whoever does not say so is given that
    /// too if the epoch is over. To be asked again just before an answer that took time is sent.
    ///
    /// What is `Complete` may be shown only with leave: a trim is not waited for that this unit is not told of.
    pub fn readable(&self, epoch: Epoch, ranges: &[AddrRange], committed: bool) -> Result<Readable, Refusal> {
        let served = self.check_epoch(epoch);
        if served.is_ok() && !committed {
            return Ok(Readable::Served);
        }
        if served == Err(Refusal::Failed) {
            return Err(Refusal::Failed);
        }
        let complete = self.complete_of(ranges);
        match ranges.first() {
            Some(first) if complete.is_empty() => served.and(Err(Refusal::NotComplete { addr: first.start })),
            _ => Ok(Readable::Complete(complete)),
        }
    }

    /// What comes first of `ranges` and is on every replica, up to the first address that is not.
    fn complete_of(&self, ranges: &[AddrRange]) -> Vec<AddrRange> {
        if self.options.planted.is(PlantedBug::CommittedUnchecked) {
            return ranges.to_vec();
        }
        let mut complete = Vec::with_capacity(ranges.len());
        for range in ranges {
            let end = self.complete_end(*range);
            if range.start < end {
                let is_resolved = self.watermark(range.start) >= end;
                assert!(is_resolved, "what is on every replica is here: {range} up to {end}");
                complete.push(AddrRange::new(range.start, end));
            }
            if end < range.end {
                break;
            }
        }
        complete
    }

    /// Up to where the addresses of `range` are on every replica, and known to be trimmed there if they are here.
    fn complete_end(&self, range: AddrRange) -> Addr {
        let Some((start, stripe)) = self.complete.stripe(range.start) else { return range.start };
        if let Some(mark) = self.own_mark(start, &stripe) {
            // What the last replica holds is so for all: a trim that has come here is complete.
            return range.end.min(mark.complete).max(range.start);
        }
        let end = range.end.min(stripe.complete).max(range.start);
        if self.options.planted.is(PlantedBug::TrimShownEarly) {
            return end;
        }
        let untold = range.start.max(stripe.trimmed).min(end);
        let trimmed = self.trimmed.overlaps(untold.0..end.0).next();
        trimmed.map_or(end, |trimmed| Addr(trimmed.start))
    }

    /// How far a stripe is complete that begins at `start`, if the unit is its last replica. Once something has changed in a newer epoch
    /// than that of the layout which says so, another one may be.
    fn own_mark(&self, start: Addr, stripe: &Stripe) -> Option<Mark> {
        if stripe.last.is_some() || self.state.served > self.complete.epoch {
            return None;
        }
        let complete = self.watermark(start).min(stripe.end);
        let trimmed = Addr(self.trimmed.first_gap(start.0)).min(complete);
        Some(Mark { start, trimmed, complete })
    }

    /// Marks of stripes whose last replica the unit is, to be told to the others with the epoch of the layout: at most `count_max`,
    /// the newest stripes for a half of them, then others from `from` on, which is left where the next list goes on.
    pub fn marks(&self, from: &mut Addr, count_max: usize) -> (Epoch, Vec<Mark>) {
        let stripes = &self.complete.stripes;
        let mark = |(&start, stripe): (&Addr, &Stripe)| self.own_mark(start, stripe);
        let newest = stripes.iter().rev().take(LOOKED_AT_MAX).filter_map(mark);
        let mut marks: Vec<Mark> = newest.take(count_max / 2).collect();
        let newest = marks.last().map_or(Addr(u64::MAX), |mark| mark.start);
        for (looked_at, one) in stripes.range(*from..newest.max(*from)).enumerate() {
            if marks.len() == count_max || looked_at == LOOKED_AT_MAX {
                *from = *one.0;
                return (self.complete.epoch, marks);
            }
            marks.extend(mark(one));
        }
        *from = Addr(0);
        (self.complete.epoch, marks)
    }
}
