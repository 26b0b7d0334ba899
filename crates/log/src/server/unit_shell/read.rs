//! Reads of a unit: what stands in memory is answered in the turn of its request, the rest by a task.

use std::rc::Rc;

use ithaca_chain::Run;

use super::UnitShell;
use crate::limits;
use crate::planted::PlantedBug;
use crate::pos::{Addr, AddrRange};
use crate::server::cold_reads::ColdRead;
use crate::server::reply::ReplyRoute;
use crate::unit::{Found, Holding};
use crate::wire::{Read, Refusal};

impl UnitShell {
    /// Serves a read.
    pub(in crate::server) fn read(self: &Rc<Self>, route: ReplyRoute, mut read: Read) {
        self.traffic.read();
        if let Err(refusal) = self.cut_to_readable(&route, &mut read.ranges, read.committed) {
            return route.refuse(refusal);
        }
        let mut found = self.found.take();
        let is_whole = self.read_cached(&read, &mut found);
        if is_whole {
            self.send_read(&route, &mut found);
        }
        self.found.set(found);
        if is_whole {
            return;
        }
        let shell = Rc::clone(self);
        Rc::clone(route.answers()).spawn(&self.env, async move {
            let mut cold = route.begin_cold(&shell.cold_reads);
            let found = shell.read_cold(&read, &mut cold).await;
            let check = |found| shell.check_readable(&route, &read.ranges, read.committed).map(|()| found);
            match found.and_then(check) {
                Ok(mut found) => shell.send_read(&route, &mut found),
                Err(refusal) => route.refuse(refusal),
            }
        });
    }

    /// Sends what was found, unless it says that nothing is where the cluster may have gone on without this unit.
    fn send_read(&self, route: &ReplyRoute, found: &mut Found) {
        if found.says_unwritten()
            && let Err(refusal) = self.leases.check(route.epoch())
        {
            return route.refuse(refusal);
        }
        self.traffic.show(found);
        route.send_found(found);
    }

    /// What a follower is shown next: resolved addresses from `range.start` on, about `limit_bytes` of them.
    pub(in crate::server) async fn push_from(
        &self,
        range: AddrRange,
        limit_bytes: u32,
        cold: &mut ColdRead<'_>,
    ) -> Result<Found, Refusal> {
        let read = Read { limit_bytes, committed: false, ranges: vec![range] };
        let found = match self.all_cached(&read) {
            Some(found) => found,
            None => self.read_cold(&read, cold).await?,
        };
        self.traffic.show(&found);
        Ok(found)
    }

    /// The answer, if all of it stands in memory. A part of one, which would keep what it has there, is not waited with.
    fn all_cached(&self, read: &Read) -> Option<Found> {
        let mut found = Found::new(read.limit_bytes);
        self.read_cached(read, &mut found).then_some(found)
    }

    /// Puts the answer into `found`. False if not all of it stands in memory, and `found` is to be thrown away.
    fn read_cached(&self, read: &Read, found: &mut Found) -> bool {
        found.restart(read.limit_bytes);
        let core = self.core.borrow();
        let mut parts = Vec::new();
        for range in &read.ranges {
            parts.clear();
            // No answer shows more.
            let is_all = core.classify_into(range.numbers(), &mut parts, limits::RUNS_MAX_COUNT);
            for &(part, holding) in &parts {
                if holding != Holding::Stored {
                    found.push_other(part, holding);
                } else {
                    let Some(next) = self.add_cached(part, found) else { return false };
                    // The chain stopped at the limit: so does the answer.
                    if next < part.end {
                        return true;
                    }
                }
                if found.is_full() {
                    return true;
                }
            }
            if !is_all {
                return true;
            }
        }
        true
    }

    /// Adds what stored addresses hold, from the first on; returns where the limit cut it off, or the end. `None` if not all
    /// stands in memory, or if the chain has no record of one of them: whether it was trimmed or is lost is not told here.
    fn add_cached(&self, part: AddrRange, found: &mut Found) -> Option<Addr> {
        let (mut next, mut has_gap) = (part.start.0, false);
        let read_to = self.chain.try_visit_cached(part.numbers(), found.room_bytes(), |run| {
            has_gap |= run.first_key != next;
            next = run.keys().end;
            found.push_run(run);
        })?;
        if self.planted.is(PlantedBug::LostEntrySkipped) {
            return Some(Addr(read_to));
        }
        (!has_gap && read_to == next).then_some(Addr(next))
    }

    /// The answer, read from the drive where it must be; what all its parts need of the drive is read at the same time.
    async fn read_cold(&self, read: &Read, cold: &mut ColdRead<'_>) -> Result<Found, Refusal> {
        let mut parts = Vec::with_capacity(read.ranges.len());
        for range in &read.ranges {
            if !self.core.borrow().classify_into(range.numbers(), &mut parts, limits::RUNS_MAX_COUNT) {
                break;
            }
        }
        let is_stored =
            |(part, holding): &(AddrRange, Holding)| (*holding == Holding::Stored).then(|| part.numbers());
        let stored: Vec<_> = parts.iter().filter_map(is_stored).collect();
        let reading = cold.read_ranges(&self.chain, &stored, read.limit_bytes as usize).await?;
        let reading = reading.expect("who holds nothing yet waits for room");
        let mut found = Found::new(read.limit_bytes);
        let (mut ends, mut added) = (reading.ends.iter(), 0);
        for (part, holding) in parts {
            if holding != Holding::Stored {
                found.push_other(part, holding);
                continue;
            }
            // What the limit left out has no end, or one before that of the part.
            let Some(end) = ends.next() else { break };
            let read_to = Addr(end.next);
            self.add_read(part.start, read_to, &reading.runs[added..end.runs], &mut found)?;
            added = end.runs;
            if found.is_full() || read_to < part.end {
                break;
            }
        }
        Ok(found)
    }

    /// Adds the runs that were read of the stored addresses `[next, end)`. An address in none of them was trimmed meanwhile,
    /// or is lost, and then that is the answer.
    fn add_read(&self, mut next: Addr, end: Addr, runs: &[Run], found: &mut Found) -> Result<(), Refusal> {
        for run in runs {
            if found.is_full() {
                return Ok(());
            }
            if let Some(gone) = self.trimmed_meanwhile(AddrRange::new(next, Addr(run.first_key)))? {
                found.push_other(gone, Holding::Trimmed);
            }
            next = Addr(run.keys().end);
            found.push_run(run.view());
        }
        if !found.is_full()
            && let Some(gone) = self.trimmed_meanwhile(AddrRange::new(next, end))?
        {
            found.push_other(gone, Holding::Trimmed);
        }
        Ok(())
    }
}
