//! Runs a model by itself, for tests: a clock, and the wakes that the model asks for.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use crate::Time;

use super::{
    Access, Agenda, Array, ArrayOptions, Disk, DiskOptions, MediaStats, RequestKey, Speed, SpeedModel,
    SpeedRequest, Ssd, SsdOptions,
};

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
    crate::sim::random::scale(crate::mix::mix(n), count) * len
}

/// Whatever comes in whatever order, every request ends once, and the model neither panics nor stands still.
#[test]
fn every_request_of_any_mix_ends_once_under_every_model() {
    const SIZE: u64 = 64 << 20;
    let options = DiskOptions { write_cache_bytes: 256 << 10, queue_depth: 5, ..DiskOptions::default() };
    let small = SsdOptions { channels: 3, pages_per_block: 8, buffer_pages: 2, ..SsdOptions::default() };
    let models: Vec<Box<dyn SpeedModel>> = vec![
        Speed::Ram.model(),
        Speed::Nvme.model(),
        Speed::Ssd.model(),
        Box::new(Ssd::new(small)),
        Speed::Disk.model(),
        Box::new(Disk::new(options)),
        Box::new(Array::new(ArrayOptions::stripe(3), || Speed::Disk.model())),
        Box::new(Array::new(ArrayOptions::striped_pairs(2), move || Box::new(Disk::new(options)))),
    ];
    for (number, model) in models.into_iter().enumerate() {
        let mut testbed = Testbed::new(model, SIZE);
        let draw =
            |n: u64, what: u64, bound: u64| scattered(n * 8 + what + ((number as u64) << 32), bound, 1);
        let mut under_way = BTreeSet::new();
        for n in 0..20_000 {
            let access = match draw(n, 0, 16) {
                0 => Access::Sync,
                1 => Access::Discard,
                2..=4 => Access::DurableWrite,
                5..=8 => Access::Write,
                _ => Access::Read,
            };
            let len = if access == Access::Sync { 0 } else { (1 + draw(n, 1, 64)) * 4096 };
            // Half of the requests lie near each other, so that they follow and overlap one another.
            let span = if draw(n, 2, 2) == 0 { SIZE - len } else { 2 << 20 };
            under_way.insert(testbed.submit(access, draw(n, 3, span / 4096 + 1) * 4096, len));
            for _ in 0..draw(n, 4, 3) {
                if let Some(key) = testbed.next_end() {
                    assert!(under_way.remove(&key), "request {} ended twice", key.serial);
                }
            }
        }
        while let Some(key) = testbed.next_end() {
            assert!(under_way.remove(&key), "request {} ended twice", key.serial);
        }
        assert!(under_way.is_empty(), "model {number}: {} requests never end", under_way.len());
    }
}
