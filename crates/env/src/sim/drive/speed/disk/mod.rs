//! A disk: one arm over turning platters.
//!
//! Where the platters stand follows from the time alone. The arm does one thing at a time: it moves, waits for the angle,
//! and transfers. Requests wait for it in an [`Elevator`]; reads that the [`ReadAhead`] buffer holds do not wait. With the
//! write cache off a write ends when it is on the platter, be it durable or not; with the cache on a volatile write ends
//! when the cache has room for it, and a sync when everything is written that was in the cache when it came.
//!
//! Not modelled: remapped sectors, vibration, heat, several read buffers, reordering by the angle.

mod geometry;
mod options;
mod queue;
mod read_ahead;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::Time;

use super::{Access, Agenda, MediaStats, RequestKey, SpeedModel, SpeedRequest, transfer_ns};

pub use options::DiskOptions;

use geometry::Geometry;
use queue::{Elevator, Job};
use read_ahead::ReadAhead;

/// A sync that waits for the cache.
struct WaitingSync {
    key: RequestKey,
    /// It waits for jobs with lower numbers.
    number: u64,
    ready: Time,
}

/// The model of a disk.
pub struct Disk {
    options: DiskOptions,
    geometry: Geometry,
    elevator: Elevator,
    buffer: Option<ReadAhead>,
    /// The byte under the head when the arm last did something.
    head: u64,
    arm_free: Time,
    link_free: Time,
    /// The wake that was asked for.
    woken_at: Option<Time>,
    jobs: u64,
    /// Writes in the cache by number, with their bytes.
    cached: BTreeMap<u64, u64>,
    cached_bytes: u64,
    /// When the last of what the cache gave to the arm is on the platter.
    flushed_at: Time,
    syncs: VecDeque<WaitingSync>,
    media: MediaStats,
}

impl Disk {
    /// A disk that has done nothing yet, its arm at the outer edge. Panics if the numbers contradict each other.
    pub fn new(options: DiskOptions) -> Self {
        options.check();
        Self {
            options,
            geometry: Geometry::new(options, 0, 0),
            elevator: Elevator::new(options.queue_depth),
            buffer: None,
            head: 0,
            arm_free: Time::ZERO,
            link_free: Time::ZERO,
            woken_at: None,
            jobs: 0,
            cached: BTreeMap::new(),
            cached_bytes: 0,
            flushed_at: Time::ZERO,
            syncs: VecDeque::new(),
            media: MediaStats::default(),
        }
    }

    /// Bytes that need no arm over the link, not before `from`.
    fn transfer(&mut self, from: Time, len: u64) -> Time {
        let start = self.link_free.max(from);
        self.link_free = Time(start.0 + transfer_ns(len, self.options.link_bytes_per_us));
        self.link_free
    }

    /// Answers a read from the buffer if that holds it.
    fn try_buffer(
        &mut self,
        now: Time,
        (offset, end): (u64, u64),
        ready: Time,
        key: RequestKey,
        agenda: &mut Agenda,
    ) -> bool {
        let Some(buffer) = &mut self.buffer else { return false };
        if !buffer.holds(&self.geometry, offset, end, now) {
            return false;
        }
        buffer.go_on(&self.options, &self.geometry, end, now);
        self.media.read_ahead_hits += 1;
        let at = self.transfer(ready, end - offset);
        agenda.end(key, at);
        true
    }

    /// Takes a write into the cache if there is room. It is still to be written: a job that nobody waits for.
    fn try_cache(&mut self, job: &mut Job, agenda: &mut Agenda) {
        let (Some(key), len) = (job.key, job.end - job.offset) else { return };
        if job.access != Access::Write || self.cached_bytes + len > self.options.write_cache_bytes {
            return;
        }
        self.cached.insert(job.number, len);
        self.cached_bytes += len;
        let at = self.transfer(job.ready, len);
        agenda.end(key, at);
        job.key = None;
    }

    /// Gives the arm work while it is free at `now`.
    fn work(&mut self, now: Time, agenda: &mut Agenda) {
        while self.arm_free <= now {
            let Some(job) = self.elevator.next(self.head) else { break };
            match job.access {
                Access::Read => self.read(now, &job, agenda),
                _ => self.write(now, &job, agenda),
            }
        }
        self.answer_syncs(now, agenda);
        if !self.elevator.is_empty() && self.woken_at != Some(self.arm_free) {
            self.woken_at = Some(self.arm_free);
            agenda.wake(self.arm_free);
        }
    }

    fn read(&mut self, now: Time, job: &Job, agenda: &mut Agenda) {
        let Some(key) = job.key else { return };
        let (offset, end) = (job.offset, job.end);
        if self.try_buffer(now, (offset, end), job.ready.max(now), key, agenda) {
            return;
        }
        let under_way = self.buffer.as_ref().and_then(|buffer| {
            let at = buffer.reaches(&self.geometry, offset, end, now)?;
            Some((buffer.first(), at))
        });
        let (first, at) = match under_way {
            Some((first, at)) => {
                self.media.busy_ns += at.0 - now.0;
                (first, at)
            }
            None => self.read_platter(now, job),
        };
        self.head = end;
        self.arm_free = at;
        self.buffer = Some(ReadAhead::new(&self.options, first, end, at));
        agenda.end(key, at.max(job.ready));
    }

    /// Moves the arm for what the buffer has not. The first byte that the buffer then holds, and when all is read.
    fn read_platter(&mut self, now: Time, job: &Job) -> (u64, Time) {
        self.call_arm_away(now);
        let missing = match &self.buffer {
            Some(buffer) => buffer.missing_from(&self.geometry, job.offset, now).min(job.end),
            None => job.offset,
        };
        let first = match &self.buffer {
            Some(buffer) if missing > job.offset => buffer.first(),
            _ => job.offset,
        };
        (first, self.use_arm(job.ready.max(now), missing, job.end, 0))
    }

    fn write(&mut self, now: Time, job: &Job, agenda: &mut Agenda) {
        self.call_arm_away(now);
        if self.buffer.as_ref().is_some_and(|buffer| buffer.overlaps(job.offset, job.end)) {
            self.buffer = None;
        }
        let at = self.use_arm(job.ready.max(now), job.offset, job.end, self.options.write_settle_ns);
        self.head = job.end;
        self.arm_free = at;
        self.media.bytes_written += job.end - job.offset;
        match job.key {
            Some(key) => agenda.end(key, at),
            None => {
                self.cached_bytes -= self.cached.remove(&job.number).unwrap_or(0);
                self.flushed_at = at;
            }
        }
    }

    /// The head leaves what it was reading ahead.
    fn call_arm_away(&mut self, now: Time) {
        if let Some(buffer) = &mut self.buffer
            && buffer.stop(now)
        {
            self.head = buffer.end(&self.geometry, now);
        }
    }

    /// Moves, waits for the angle and transfers `[offset, end)`; when that is done.
    fn use_arm(&mut self, start: Time, offset: u64, end: u64, settle_ns: u64) -> Time {
        let seek_ns = if offset == self.head { 0 } else { self.geometry.seek_ns(self.head, offset) };
        let mut there = Time(start.0 + seek_ns);
        if seek_ns > 0 {
            self.media.seeks += 1;
            there = Time(there.0 + settle_ns);
        }
        let begin = there.0 + self.geometry.turn_ns(there, offset);
        let done = Time(begin + self.geometry.passage_ns(end) - self.geometry.passage_ns(offset));
        self.media.busy_ns += done.0 - start.0;
        done
    }

    fn answer_syncs(&mut self, now: Time, agenda: &mut Agenda) {
        let oldest = self.cached.keys().next().copied().unwrap_or(u64::MAX);
        while let Some(sync) = self.syncs.pop_front_if(|sync| sync.number <= oldest) {
            agenda.end(sync.key, self.flushed_at.max(sync.ready).max(now));
        }
    }
}

impl SpeedModel for Disk {
    fn install(&mut self, size_bytes: u64, phase: u64) {
        self.geometry = Geometry::new(self.options, size_bytes, phase);
        self.buffer = None;
    }

    fn submit(&mut self, now: Time, request: SpeedRequest, agenda: &mut Agenda) {
        let SpeedRequest { key, access, offset, .. } = request;
        let (end, ready) = (request.end(), Time(now.0 + self.options.command_ns));
        self.jobs += 1;
        let number = self.jobs;
        match access {
            Access::Discard => return agenda.end(key, ready),
            Access::Sync if self.cached.is_empty() => return agenda.end(key, ready.max(self.flushed_at)),
            Access::Sync => self.syncs.push_back(WaitingSync { key, number, ready }),
            Access::Read if self.try_buffer(now, (offset, end), ready, key, agenda) => return,
            Access::Read | Access::Write | Access::DurableWrite => {
                let mut job = Job { key: Some(key), access, offset, end, ready, number };
                self.try_cache(&mut job, agenda);
                self.elevator.push(job);
            }
        }
        self.work(now, agenda);
    }

    fn wake(&mut self, now: Time, agenda: &mut Agenda) {
        self.work(now, agenda);
    }

    fn cut_power(&mut self, requests: &BTreeSet<RequestKey>) {
        // A job without a key is in the cache, and nowhere else.
        self.elevator.retain(|job| job.key.is_some_and(|key| !requests.contains(&key)));
        self.syncs.retain(|sync| !requests.contains(&sync.key));
        self.cached.clear();
        self.cached_bytes = 0;
        self.buffer = None;
    }

    fn replace(&mut self) {
        *self = Disk::new(self.options);
    }

    fn media(&self) -> MediaStats {
        self.media
    }
}

#[cfg(test)]
mod tests;
