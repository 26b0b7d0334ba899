//! What a unit counts of its requests: from its start on, whoever asked and whatever the answer.
//!
//! Counted where the unit takes a request, not where a connection brings it: a part of an append that was sent whole to
//! another node counts at the unit that stores it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::time::Duration;

use ithaca_chain::Run;
use ithaca_env::Time;

use crate::unit::Found;

/// Counters that only grow.
#[derive(Default)]
pub(super) struct Traffic {
    writes: Cell<u64>,
    entries_written: Cell<u64>,
    bytes_written: Cell<u64>,
    reads: Cell<u64>,
    entries_read: Cell<u64>,
    bytes_read: Cell<u64>,
    fills: Cell<u64>,
    trims: Cell<u64>,
}

fn add(counter: &Cell<u64>, count: u64) {
    counter.set(counter.get() + count);
}

impl Traffic {
    /// A run was asked to be written.
    pub(super) fn write(&self, run: &Run) {
        add(&self.writes, 1);
        add(&self.entries_written, run.count());
        add(&self.bytes_written, run.data.len() as u64);
    }

    /// A read was asked for.
    pub(super) fn read(&self) {
        add(&self.reads, 1);
    }

    /// This was found for a reader or a follower, and is about to be sent.
    pub(super) fn show(&self, found: &Found) {
        add(&self.entries_read, found.entries());
        add(&self.bytes_read, found.data_bytes() as u64);
    }

    /// A fill was asked for.
    pub(super) fn fill(&self) {
        add(&self.fills, 1);
    }

    /// A trim was asked for.
    pub(super) fn trim(&self) {
        add(&self.trims, 1);
    }

    /// Each counter by its name in a status.
    pub(super) fn counters(&self) -> [(&'static str, u64); 8] {
        [
            ("writes", self.writes.get()),
            ("entries_written", self.entries_written.get()),
            ("bytes_written", self.bytes_written.get()),
            ("reads", self.reads.get()),
            ("entries_read", self.entries_read.get()),
            ("bytes_read", self.bytes_read.get()),
            ("fills", self.fills.get()),
            ("trims", self.trims.get()),
        ]
    }
}

/// Times that are remembered: so few that half of them are soon slow ones, although a drive that has become slow does few. Others wait long
/// enough before they go on without it; what it did before must not make them wait first.
const TIMES_MAX: usize = 16;
/// For how long.
const TIMES_SPAN: Duration = Duration::from_secs(2);

/// How long writes took of late, from being handed to the chain to being durable.
#[derive(Default)]
pub(super) struct WriteTimes {
    /// When each was done, and what it took in microseconds.
    latest: RefCell<VecDeque<(Time, u32)>>,
}

impl WriteTimes {
    /// Something that was begun at `since` is done.
    pub(super) fn note(&self, since: Time, now: Time) {
        let mut latest = self.latest.borrow_mut();
        if latest.len() == TIMES_MAX {
            latest.pop_front();
        }
        let took = now.since(since).as_micros().min(u128::from(u32::MAX)) as u32;
        latest.push_back((now, took.max(1)));
    }

    /// The median of those of the last two seconds that are remembered, in microseconds; 0 if there are none.
    pub(super) fn median_us(&self, now: Time) -> u32 {
        let latest = self.latest.borrow();
        let recent = latest.iter().filter(|(done, _)| now.since(*done) <= TIMES_SPAN);
        let mut times: Vec<u32> = recent.map(|&(_, took)| took).collect();
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn a_drive_that_has_become_slow_is_told_of_after_few_writes_whatever_it_did_before() {
        // It does few: with as many to be outvoted as it has done in a second, others would begin to count only when those are forgotten.
        let times = WriteTimes::default();
        (0..1000).for_each(|ms| times.note(after(ms), after(ms + 1)));
        assert_eq!(times.median_us(after(1000)), 1000);
        let slow = |nth: u64| times.note(after(1000 + 50 * nth), after(1050 + 50 * nth));
        (0..8).for_each(slow);
        assert_eq!(times.median_us(after(1400)), 50_000);
    }

    #[test]
    fn a_stall_is_forgotten_after_few_writes() {
        let times = WriteTimes::default();
        (0..100).for_each(|ms| times.note(after(ms), after(ms + 1)));
        (0..8).for_each(|_| times.note(after(100), after(300)));
        assert_eq!(times.median_us(after(300)), 200_000);
        // The quick ones of before it are the first to be pushed out.
        (0..9).for_each(|ms| times.note(after(300 + ms), after(301 + ms)));
        assert_eq!(times.median_us(after(309)), 1000);
        assert_eq!(times.median_us(after(2400)), 0, "nothing of late");
    }
}
