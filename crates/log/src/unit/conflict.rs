//! Which addresses of a request are free, and which are taken.

use std::ops::Range;

use super::pending::Claims;
use super::{Holding, Unit};
use crate::planted::PlantedBug;
use crate::pos::{Addr, AddrRange};
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
