//! Which addresses of a request are free, and which are taken.

use std::ops::Range;

use super::pending::Claims;
use super::{Holding, Unit};
use crate::limits;
use crate::planted::PlantedBug;
use crate::pos::{Addr, AddrRange, Epoch};
use crate::wire::Refusal;

/// The addresses of a request, sorted out.
#[derive(Clone, Debug, Default)]
pub(super) struct Sorted {
    /// Nobody has them.
    pub(super) free: Claims,
    /// Somebody does, durably or soon.
    pub(super) taken: Vec<AddrRange>,
    /// Something that is taken is not durable yet: who is told of it must wait.
    pub(super) in_flight: bool,
}

impl Unit {
    /// Sorts `range` into what is free and what is taken, adding to `sorted`.
    pub(super) fn sort_out(&self, range: Range<u64>, sorted: &mut Sorted) {
        // The common case: an append right after the others meets nothing.
        if self.durable.overlaps(range.clone()).next().is_none()
            && self.claimed.overlaps(range.clone()).next().is_none()
        {
            sorted.free.push(range);
            return;
        }
        let mut next = range.start;
        for gap in self.durable.gaps(range.clone()) {
            for free in self.claimed.gaps(gap.clone()) {
                sorted.take(next..free.start);
                next = free.end;
                sorted.free.push(free);
            }
            sorted.in_flight |= self.claimed.overlaps(gap).next().is_some();
        }
        sorted.take(next..range.end);
        if self.options.planted.is(PlantedBug::TrimmedIsFree) {
            self.free_the_trimmed(sorted);
        }
    }

    /// The planted fault: holes that were trimmed are handed out again.
    fn free_the_trimmed(&self, sorted: &mut Sorted) {
        let trimmed =
            |range: &AddrRange| self.classify(*range).iter().all(|(_, holding)| *holding == Holding::Trimmed);
        let (free, taken): (Vec<_>, Vec<_>) = sorted.taken.drain(..).partition(trimmed);
        sorted.taken = taken;
        free.into_iter().for_each(|range| sorted.free.push(range.numbers()));
    }

    /// Refuses addresses too far above all that is known of their stripe: whoever asks is mistaken. The next tail would lie above
    /// them, and everything in between be holes. The layout of `epoch` may say more than is known here; it is on its way then.
    pub(super) fn check_reach(&self, epoch: Epoch, ranges: &Claims) -> Result<(), Refusal> {
        for range in ranges.iter() {
            let mut next = range.start;
            while next < range.end {
                let block = next - next % limits::STRIPE_ADDRESSES;
                let block_end = block.saturating_add(limits::STRIPE_ADDRESSES);
                let end = range.end.min(block_end);
                self.check_reach_in(epoch, block..block_end, next..end)?;
                next = end;
            }
        }
        Ok(())
    }

    /// The same for addresses of one block.
    fn check_reach_in(&self, epoch: Epoch, block: Range<u64>, range: Range<u64>) -> Result<(), Refusal> {
        let limit = limits::REACH_MAX_COUNT;
        let last = range.end - 1;
        // Nearly all: what lies below the limit is not even looked for.
        let Some(lowest) = last.checked_sub(limit).filter(|&lowest| lowest > block.start) else {
            return Ok(());
        };
        let near = lowest..block.end;
        if self.durable.overlaps(near.clone()).next().is_some()
            || self.claimed.overlaps(near).next().is_some()
        {
            return Ok(());
        }
        let tail = self.complete.tail_at(Addr(range.start)).map_or(block.start, |tail| tail.0);
        if tail >= lowest {
            return Ok(());
        }
        if epoch > self.complete.epoch() {
            return Err(Refusal::NoLayout { epoch });
        }
        let highest = self.highest_in(block.clone().into()).map_or(block.start, |addr| addr.0);
        Err(Refusal::TooLarge { found: last - highest.max(tail), limit })
    }

    /// Refuses ranges that would make the unit remember too many gaps. A range that touches a taken one adds none.
    pub(super) fn check_sparse(&self, ranges: &Claims) -> Result<(), Refusal> {
        let limit = self.options.ranges_max_count;
        let mut count = self.durable.range_count() + self.claimed.range_count();
        for range in ranges.iter() {
            if count < limit {
                count += 1;
                continue;
            }
            let below = range.start.checked_sub(1);
            let touches = |addr: u64| self.durable.contains(addr) || self.claimed.contains(addr);
            if !below.is_some_and(touches) && !touches(range.end) {
                return Err(Refusal::TooSparse { addr: Addr(range.start), limit: limit as u64 });
            }
        }
        Ok(())
    }

    /// The same for trimmed ranges.
    pub(super) fn check_trims(&self, ranges: &[Range<u64>]) -> Result<(), Refusal> {
        let limit = self.options.ranges_max_count;
        let mut count = self.trimmed.range_count();
        for range in ranges {
            count += 1;
            let below = range.start.checked_sub(1);
            let touches = below.is_some_and(|addr| self.trimmed.contains(addr))
                || self.trimmed.contains(range.end)
                || range.start == 0;
            if count > limit && !touches {
                return Err(Refusal::TooSparse { addr: Addr(range.start), limit: limit as u64 });
            }
        }
        Ok(())
    }
}

impl Sorted {
    fn take(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        match self.taken.last_mut() {
            Some(last) if last.end.0 == range.start => last.end = Addr(range.end),
            _ => self.taken.push(range.into()),
        }
    }
}
