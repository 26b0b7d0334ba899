//! Runs a model by itself, for tests: a clock, and the wakes that the model asks for.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::Time;

use super::{Access, Agenda, MediaStats, RequestKey, SpeedModel, SpeedRequest};

/// A model, its time, and what it has decided.
pub(super) struct Testbed {
    model: Box<dyn SpeedModel>,
    agenda: Agenda,
    now: Time,
    submitted: u64,
    /// Ends to come, then wakes, by time.
    ends: BinaryHeap<Reverse<(Time, RequestKey)>>,
    wakes: BinaryHeap<Reverse<Time>>,
}

impl Testbed {
    pub(super) fn new(mut model: Box<dyn SpeedModel>, size_bytes: u64) -> Self {
        model.install(size_bytes, 0);
        Self {
            model,
            agenda: Agenda::default(),
            now: Time::ZERO,
            submitted: 0,
            ends: BinaryHeap::new(),
            wakes: BinaryHeap::new(),
        }
    }

    fn collect(&mut self) {
        while let Some((key, at)) = self.agenda.take_end() {
            assert!(at >= self.now, "request {} ends at {at}, before {}", key.serial, self.now);
            self.ends.push(Reverse((at, key)));
        }
        if let Some(at) = self.agenda.take_wake() {
            assert!(at >= self.now, "a wake in the past");
            self.wakes.push(Reverse(at));
        }
    }

    pub(super) fn submit(&mut self, access: Access, offset: u64, len: u64) -> RequestKey {
        self.submitted += 1;
        let key = RequestKey { serial: self.submitted, slot: 0 };
        self.model.submit(self.now, SpeedRequest { key, access, offset, len }, &mut self.agenda);
        self.collect();
        key
    }

    /// The next request to end, at its time; `None` when all have.
    pub(super) fn next_end(&mut self) -> Option<RequestKey> {
        loop {
            let end = self.ends.peek().map(|&Reverse((at, key))| (at, key));
            let wake = self.wakes.peek().map(|&Reverse(at)| at);
            match (end, wake) {
                (Some((at, key)), wake) if wake.is_none_or(|wake| at <= wake) => {
                    self.ends.pop();
                    self.now = at;
                    return Some(key);
                }
                (_, Some(at)) => {
                    self.wakes.pop();
                    self.now = at;
                    self.model.wake(at, &mut self.agenda);
                    self.collect();
                }
                (_, None) => return None,
            }
        }
    }

    /// When everything submitted has ended.
    pub(super) fn finish(&mut self) -> Time {
        while self.next_end().is_some() {}
        self.now
    }

    /// One request by itself; when it ends.
    pub(super) fn run(&mut self, access: Access, offset: u64, len: u64) -> Time {
        self.submit(access, offset, len);
        self.finish()
    }

    /// Keeps `depth` of the `count` requests under way that `place` gives offsets to; nanoseconds for all.
    pub(super) fn closed_loop(
        &mut self,
        access: Access,
        len: u64,
        depth: u64,
        count: u64,
        mut place: impl FnMut(u64) -> u64,
    ) -> u64 {
        let begin = self.now;
        let mut next = 0;
        while next < depth.min(count) {
            self.submit(access, place(next), len);
            next += 1;
        }
        while self.next_end().is_some() {
            if next < count {
                self.submit(access, place(next), len);
                next += 1;
            }
        }
        self.now.0 - begin.0
    }

    pub(super) fn now(&self) -> Time {
        self.now
    }

    pub(super) fn idle_until(&mut self, at: Time) {
        self.now = self.now.max(at);
    }

    pub(super) fn cut_power(&mut self, requests: &[RequestKey]) {
        self.model.cut_power(&requests.iter().copied().collect());
    }

    pub(super) fn replace(&mut self) {
        self.model.replace();
    }

    pub(super) fn media(&self) -> MediaStats {
        self.model.media()
    }
}

/// Offsets without a pattern: the `n`th of `count` places of `len` bytes.
pub(super) fn scattered(n: u64, count: u64, len: u64) -> u64 {
    crate::sim::random::scale(crate::sim::random::mix(n), count) * len
}
