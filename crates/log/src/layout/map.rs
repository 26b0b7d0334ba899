//! Where a position lies, and what position an address is.

use super::{Layout, RangeMap, Stripe};
use crate::limits;
use crate::pos::{Addr, AddrRange, LogPos, NodeId};

/// Where a position lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location<'a> {
    /// The units that hold it, in the order in which they are written.
    pub replicas: &'a [NodeId],
    /// Its address on each of them.
    pub addr: Addr,
}

/// Positions of one stripe that have consecutive addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The units that hold them, in the order in which they are written.
    pub replicas: &'a [NodeId],
    /// Their addresses on each of them.
    pub addrs: AddrRange,
    /// The position of the first address.
    pub first: LogPos,
    /// By how much the position grows from address to address: the number of stripes.
    pub stride: u64,
}

impl Piece<'_> {
    /// The position of an address of this piece.
    pub fn position(&self, addr: Addr) -> LogPos {
        debug_assert!(self.addrs.start <= addr && addr < self.addrs.end, "{addr} is not in {}", self.addrs);
        LogPos(self.first.0 + (addr.0 - self.addrs.start.0) * self.stride)
    }
}

impl Piece<'_> {
    /// The position of an address; `None` if it is not of this piece.
    pub fn find(&self, addr: Addr) -> Option<LogPos> {
        (self.addrs.start <= addr && addr < self.addrs.end).then(|| self.position(addr))
    }
}

impl RangeMap {
    /// How many of the positions `[start, start + count)` lie on `stripe`.
    fn share(&self, stripe: usize, count: u64) -> u64 {
        let stripes = self.stripes.len() as u64;
        count / stripes + u64::from(count % stripes > stripe as u64)
    }

    /// The address of the first position at or above `pos` on `stripe`, or, if there is none, where its addresses end.
    pub fn address_from(&self, stripe: usize, pos: LogPos) -> Option<Addr> {
        let AddrRange { start, end } = self.addresses(stripe)?;
        let below = self.share(stripe, pos.0.saturating_sub(self.start.0));
        Some(Addr(start.0.saturating_add(below)).min(end))
    }

    /// How many positions of a closed range lie on `stripe`.
    pub(super) fn size(&self, stripe: usize) -> u64 {
        self.share(stripe, self.end.0 - self.start.0)
    }

    /// The addresses of a stripe, which are its extent on each replica: those of its positions, or in an open range all to the
    /// end of its block. `None` if a closed range has more positions than there are addresses in the block.
    pub fn addresses(&self, stripe: usize) -> Option<AddrRange> {
        let base = self.stripes[stripe].base;
        let block_end = block_end(base);
        let end = match self.end == super::OPEN_END {
            true => block_end,
            false => base.0.checked_add(self.size(stripe)).filter(|&end| end <= block_end)?,
        };
        Some(AddrRange::new(base, Addr(end)))
    }
}

/// The end of the block of addresses that `base` lies in.
fn block_end(base: Addr) -> u64 {
    let first = base.0 - base.0 % limits::STRIPE_ADDRESSES;
    first.saturating_add(limits::STRIPE_ADDRESSES)
}

/// A stripe, as the range of which it is has it.
struct Extent<'a> {
    range: &'a RangeMap,
    /// Its number in the range.
    at: usize,
    stripe: &'a Stripe,
    addrs: AddrRange,
}

impl Layout {
    /// Where `pos` lies; `None` if it is before the first range or after the last, or past the end of its stripe's addresses.
    pub fn locate(&self, pos: LogPos) -> Option<Location<'_>> {
        let range = &self.ranges[self.range_index(pos)?];
        let (relative, stripes) = (pos.0 - range.start.0, range.stripes.len() as u64);
        let stripe = &range.stripes[(relative % stripes) as usize];
        let addr = Addr(stripe.base.0.checked_add(relative / stripes)?);
        if addr.0 >= block_end(stripe.base) {
            return None;
        }
        Some(Location { replicas: &stripe.replicas, addr })
    }

    /// Every stripe of every range that has addresses, in order.
    fn extents(&self) -> impl DoubleEndedIterator<Item = Extent<'_>> {
        self.ranges.iter().flat_map(|range| {
            let stripes = range.stripes.iter().enumerate();
            stripes.filter_map(move |(at, stripe)| {
                Some(Extent { range, at, stripe, addrs: range.addresses(at)? })
            })
        })
    }

    /// The one that `addr` of `node` lies in. Most of what is asked about is new.
    fn extent_at(&self, node: NodeId, addr: Addr) -> Option<Extent<'_>> {
        let has = |extent: &Extent<'_>| extent.addrs.start <= addr && addr < extent.addrs.end;
        self.extents().rev().find(|extent| extent.stripe.replicas.contains(&node) && has(extent))
    }

    /// The position that `addr` of `node` stands for; `None` if it stands for none.
    pub fn position(&self, node: NodeId, addr: Addr) -> Option<LogPos> {
        let Extent { range, at, stripe, .. } = self.extent_at(node, addr)?;
        let relative = (addr.0 - stripe.base.0) * range.stripes.len() as u64 + at as u64;
        Some(LogPos(range.start.0 + relative))
    }

    /// The extents of the stripes that list `node`.
    pub fn extents_of(&self, node: NodeId) -> Vec<AddrRange> {
        let listed = self.extents().filter(|extent| extent.stripe.replicas.contains(&node));
        listed.map(|extent| extent.addrs).collect()
    }

    /// The replicas that are written after `node` where it holds `addr`, in order; `None` if it does not hold it.
    pub fn replicas_after(&self, node: NodeId, addr: Addr) -> Option<&[NodeId]> {
        let stripe = self.stripe_at(node, addr)?;
        let at = stripe.replicas.iter().position(|replica| *replica == node)?;
        Some(&stripe.replicas[at + 1..])
    }

    /// The stripe that `addr` of `node` belongs to; `None` if it does not hold it.
    pub fn stripe_at(&self, node: NodeId, addr: Addr) -> Option<&Stripe> {
        self.extent_at(node, addr).map(|extent| extent.stripe)
    }

    /// The positions `[start, end)` as addresses of units, stripe by stripe of each range. Positions without a place are
    /// left out, as are those past the end of a stripe's addresses.
    pub fn pieces(&self, start: LogPos, end: LogPos) -> Vec<Piece<'_>> {
        let mut pieces = Vec::new();
        for range in &self.ranges {
            let (from, to) = (start.max(range.start), end.min(range.end));
            if from >= to {
                continue;
            }
            let (from, to) = (from.0 - range.start.0, to.0 - range.start.0);
            let stripes = range.stripes.len() as u64;
            for (at, stripe) in range.stripes.iter().enumerate() {
                let addresses = block_end(stripe.base) - stripe.base.0;
                let (skipped, up_to) = (range.share(at, from), range.share(at, to).min(addresses));
                if skipped < up_to {
                    pieces.push(Piece {
                        replicas: &stripe.replicas,
                        addrs: (stripe.base.0 + skipped..stripe.base.0 + up_to).into(),
                        first: LogPos(range.start.0 + skipped * stripes + at as u64),
                        stride: stripes,
                    });
                }
            }
        }
        pieces
    }

    /// Addresses that no stripe has and none will ever have again, on any unit, in order: those of ranges that were left out
    /// because all of them is trimmed, and those above the tail at which a range was closed. New stripes have addresses from
    /// [`Layout::next_base`] on, so this holds for every later layout too (docs/protocol/rebuild.md).
    pub fn unnamed(&self) -> Vec<AddrRange> {
        let mut named: Vec<AddrRange> = self.extents().map(|extent| extent.addrs).collect();
        named.sort_unstable_by_key(|extent| extent.start);
        let mut unnamed = Vec::new();
        let mut next = Addr(0);
        for extent in named {
            if next < extent.start {
                unnamed.push(AddrRange::new(next, extent.start));
            }
            next = next.max(extent.end);
        }
        if next < self.next_base {
            unnamed.push(AddrRange::new(next, self.next_base));
        }
        unnamed
    }

    /// The addresses of stripes that do not list `node`: what it holds there is kept for its return.
    pub fn listed_elsewhere(&self, node: NodeId) -> Vec<(LogPos, usize, AddrRange)> {
        let others = self.extents().filter(|extent| !extent.stripe.replicas.contains(&node));
        others.map(|extent| (extent.range.start, extent.at, extent.addrs)).collect()
    }

    /// Which range `pos` is in, as an index into [`Layout::ranges`].
    pub fn range_index(&self, pos: LogPos) -> Option<usize> {
        let after = self.ranges.partition_point(|range| range.start <= pos);
        let index = after.checked_sub(1)?;
        (pos < self.ranges[index].end).then_some(index)
    }
}
