//! The read buffer: after a read the idle head stays on its way and fills a buffer with what follows.
//!
//! Nothing runs: where the head stands is computed from when it set out, whenever somebody asks.

use crate::Time;

use super::DiskOptions;
use super::geometry::Geometry;

/// One run of consecutive bytes that was read, or is being read, from the platter.
pub(super) struct ReadAhead {
    /// The first byte that the buffer still holds.
    first: u64,
    /// The head is here at `since` and goes on ...
    from: u64,
    since: Time,
    /// ... until here.
    limit: u64,
    /// What lies before `from` is in the buffer already, not only at `since`.
    is_filled: bool,
    /// The arm was called away then.
    stopped: Option<Time>,
}

impl ReadAhead {
    /// A read of `[first, from)` ended at `since`; the head goes on.
    pub(super) fn new(options: &DiskOptions, first: u64, from: u64, since: Time) -> Self {
        let limit = from + options.read_ahead_bytes;
        let first = first.max(limit.saturating_sub(options.read_buffer_bytes));
        Self { first, from, since, limit, is_filled: false, stopped: None }
    }

    /// When the head stands at `offset` if nobody calls it away.
    fn passes(&self, geometry: &Geometry, offset: u64) -> Time {
        if offset <= self.from && self.is_filled {
            return Time::ZERO;
        }
        let ahead = geometry.passage_ns(offset).saturating_sub(geometry.passage_ns(self.from));
        Time(self.since.0 + ahead)
    }

    /// The byte behind the last that the buffer holds at `now`.
    pub(super) fn end(&self, geometry: &Geometry, now: Time) -> u64 {
        let until = self.stopped.unwrap_or(now).min(now);
        let run = until.0.saturating_sub(self.since.0);
        geometry.offset_at(geometry.passage_ns(self.from) + run).clamp(self.from, self.limit)
    }

    /// Whether the buffer holds all of `[offset, end)` at `now`.
    pub(super) fn holds(&self, geometry: &Geometry, offset: u64, end: u64, now: Time) -> bool {
        let until = self.stopped.unwrap_or(now).min(now);
        self.first <= offset && end <= self.limit && self.passes(geometry, end) <= until
    }

    /// When the head passes `end` if it stays on its way for a read of `[offset, end)`; `None` if that read does not
    /// begin in the buffer or under way, or the head does not move any more.
    pub(super) fn reaches(&self, geometry: &Geometry, offset: u64, end: u64, now: Time) -> Option<Time> {
        let is_moving = self.stopped.is_none() && self.passes(geometry, self.limit) > now;
        let is_ahead = self.first <= offset && offset <= self.limit && end > self.from;
        (is_moving && is_ahead).then(|| self.passes(geometry, end).max(now))
    }

    /// What the buffer holds of `[offset, end)` at `now` from its beginning on: the first byte that it does not hold.
    pub(super) fn missing_from(&self, geometry: &Geometry, offset: u64, now: Time) -> u64 {
        let held = self.end(geometry, now);
        if self.first <= offset && offset <= held { held } else { offset }
    }

    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// The arm is called away. True if it was here until now.
    pub(super) fn stop(&mut self, now: Time) -> bool {
        let was_here = self.stopped.is_none();
        self.stopped.get_or_insert(now);
        was_here
    }

    /// The buffer answered a read up to `end`: the head goes on, or sets out again if it stood still.
    pub(super) fn go_on(&mut self, options: &DiskOptions, geometry: &Geometry, end: u64, now: Time) {
        let limit = self.limit.max(end + options.read_ahead_bytes);
        if self.stopped.is_some() || limit == self.limit {
            return;
        }
        if self.passes(geometry, self.limit) <= now {
            self.since = Time(now.0 + geometry.turn_ns(now, self.limit));
            self.from = self.limit;
            self.is_filled = true;
        }
        self.limit = limit;
        self.first = self.first.max(limit.saturating_sub(options.read_buffer_bytes));
    }

    /// Whether a write of `[offset, end)` makes the buffer stale.
    pub(super) fn overlaps(&self, offset: u64, end: u64) -> bool {
        offset < self.limit && self.first < end
    }
}
