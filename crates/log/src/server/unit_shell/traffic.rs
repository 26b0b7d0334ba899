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

/// Times that are remembered.
const TIMES_MAX: usize = 128;
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

    /// The median of the last two seconds, in microseconds; 0 if there was nothing.
    pub(super) fn median_us(&self, now: Time) -> u32 {
        let latest = self.latest.borrow();
        let recent = latest.iter().filter(|(done, _)| now.since(*done) <= TIMES_SPAN);
        let mut times: Vec<u32> = recent.map(|&(_, took)| took).collect();
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or(0)
    }
}
