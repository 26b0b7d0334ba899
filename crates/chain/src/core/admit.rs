//! Which batches are taken: well formed, not too large, and with room for them and for the reserve.

use std::ops::Range;

use bytes::Bytes;
use ithaca_env::limits::BLOCK_BYTES;

use super::{Core, Queued};
use crate::error::AppendError;
use crate::format::{
    CENSUS_RANGE_BYTES, GROUP_HEAD_BYTES, RUN_HEAD_BYTES, RunHead, is_aligned, run_blob_bytes,
};
use crate::limits::{BATCH_RUNS_MAX, META_MAX_BYTES, RUN_RECORDS_MAX};
use crate::planted::PlantedBug;
use crate::run::{Run, RunKind};

/// What is written together: all of it is there after a crash, or nothing.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Records. Keys that the chain does not hold yet: it does not check that they are written once, their owner does.
    pub runs: Vec<Run>,
    /// Keys that are not needed any more, whether they were written or not. They read as nothing from then on.
    pub release: Vec<Range<u64>>,
    /// The owner's own state; replaces the one before.
    pub state: Option<Bytes>,
    /// Whether data too may use half of the reserve, as junk may: without it, something that was begun could not be ended.
    pub may_use_reserve: bool,
}

/// Names an append. Tickets become durable strictly in the order in which they were given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Bytes that a batch adds to each part of a group.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sizes {
    pub(crate) runs: u64,
    pub(crate) blob: u64,
    pub(crate) packed: u64,
    pub(crate) aligned: u64,
    pub(crate) releases: u64,
    pub(crate) state: u64,
    /// Ranges of a census.
    pub(crate) census: u64,
}

impl Sizes {
    pub(super) fn of(batch: &Batch) -> Self {
        let mut sizes = Self {
            runs: batch.runs.len() as u64,
            releases: batch.release.len() as u64,
            state: batch.state.as_ref().map_or(0, |state| state.len() as u64),
            ..Self::default()
        };
        for run in &batch.runs {
            sizes.blob += run_blob_bytes(run) as u64;
            if is_aligned(run) {
                sizes.aligned += run.data.len() as u64;
            } else {
                sizes.packed += run.data.len() as u64;
            }
        }
        sizes
    }

    /// Of a run that lies on a drive.
    pub(super) fn of_head(run: &RunHead) -> Self {
        let table = if run.kind == RunKind::Junk { 0 } else { run.table.as_bytes().len() };
        let bytes = u64::from(run.data_bytes);
        let (packed, aligned) = if run.aligned { (0, bytes) } else { (bytes, 0) };
        let blob = (RUN_HEAD_BYTES + run.meta.len() + table) as u64;
        Self { runs: 1, blob, packed, aligned, ..Self::default() }
    }

    pub(crate) fn plus(&self, other: &Self) -> Self {
        Self {
            runs: self.runs + other.runs,
            blob: self.blob + other.blob,
            packed: self.packed + other.packed,
            aligned: self.aligned + other.aligned,
            releases: self.releases + other.releases,
            state: self.state.max(other.state),
            census: self.census.max(other.census),
        }
    }

    /// Bytes of a group of this content.
    pub(crate) fn group_bytes(&self) -> u64 {
        let control = self.releases * 16 + self.census * CENSUS_RANGE_BYTES as u64 + self.state;
        let head = GROUP_HEAD_BYTES as u64 + control + self.blob;
        (head + self.packed).next_multiple_of(BLOCK_BYTES as u64) + self.aligned
    }

    /// The most that it takes of the drive that the next group repeats what this one says.
    fn repeat_bytes(&self) -> u64 {
        (self.releases * 16 + self.state).next_multiple_of(BLOCK_BYTES as u64)
    }

    /// The most that a batch of this content can take of the drive, alone in a group, with its share of the footer.
    pub(super) fn cost(&self) -> u64 {
        self.group_bytes() + self.blob + 20 * self.runs + BLOCK_BYTES as u64
    }
}

impl Core {
    /// Takes a batch, or says why not; then nothing of it will ever be written.
    pub(crate) fn append(&mut self, batch: Batch) -> Result<Ticket, AppendError> {
        let ticket = self.append_own(batch)?;
        if let Some(queued) = self.queue.back_mut() {
            queued.is_asked_for = true;
        }
        Ok(ticket)
    }

    /// The same of a batch that the chain needs itself.
    pub(crate) fn append_own(&mut self, batch: Batch) -> Result<Ticket, AppendError> {
        let kept = self.kept_from(&batch);
        self.check_queue(&batch)?;
        self.take_in(batch, kept)
    }

    fn check_queue(&self, batch: &Batch) -> Result<(), AppendError> {
        let max_bytes = self.options.queue_max_bytes as u64;
        if self.queue.is_empty() || self.queued_bytes + Sizes::of(batch).group_bytes() <= max_bytes {
            return Ok(());
        }
        Err(AppendError::Overloaded { queued_bytes: self.queued_bytes, max_bytes })
    }

    /// The same, leaving so many free segments alone.
    pub(super) fn take_in(&mut self, batch: Batch, kept: usize) -> Result<Ticket, AppendError> {
        if let Some(why) = &self.stopped {
            return Err(why.clone().into());
        }
        check_runs(&batch)?;
        let sizes = Sizes::of(&batch);
        let cost = sizes.cost();
        let max_bytes = self.geometry.batch_max_bytes;
        if cost > max_bytes {
            return Err(AppendError::TooLarge { bytes: cost, max_bytes });
        }
        let max_bytes = self.geometry.state_max_bytes;
        if sizes.state > max_bytes as u64 {
            return Err(AppendError::StateTooLong { bytes: sizes.state as usize, max_bytes });
        }
        self.check_releases(&batch)?;
        let cost = cost + sizes.repeat_bytes();
        self.check_space(cost, kept)?;
        self.queued_bytes += sizes.group_bytes();
        self.queued_cost += cost;
        self.queued_releases += batch.release.len();
        let ticket = Ticket(self.next_ticket);
        self.queue.push_back(Queued { ticket, batch, sizes, cost, is_asked_for: false });
        self.next_ticket += 1;
        Ok(ticket)
    }

    /// However the queued ranges fall together with the released ones, a checkpoint has room for them.
    fn check_releases(&self, batch: &Batch) -> Result<(), AppendError> {
        let ranges = self.formed_released.range_count() + self.queued_releases + batch.release.len();
        let max_ranges = self.geometry.released_max_ranges;
        if batch.release.is_empty() || ranges <= max_ranges {
            return Ok(());
        }
        // The sum is an upper bound; a release that joins what is there adds nothing. Count exactly before refusing.
        let mut after = self.formed_released.clone();
        let queued = self.queue.iter().flat_map(|queued| &queued.batch.release);
        queued.chain(&batch.release).for_each(|range| {
            after.insert(range.clone());
        });
        if after.range_count() <= max_ranges {
            return Ok(());
        }
        Err(AppendError::TooSparse { ranges: after.range_count(), max_ranges })
    }

    /// How many free segments a batch may not use. Data leaves the reserve alone; junk, which every refused append leaves
    /// behind, and data that says so may use half of it; so the rest is always there for the releases that free space again.
    fn kept_from(&self, batch: &Batch) -> usize {
        let reserve = self.options.reserve_segments;
        if !batch.may_use_reserve && batch.runs.iter().any(|run| run.kind == RunKind::Data) {
            if self.options.planted.is(PlantedBug::ReserveNotKept) { 0 } else { reserve }
        } else if batch.runs.is_empty() {
            0
        } else {
            reserve / 2
        }
    }

    /// Room for the queue and this batch: groups fill at least half of a segment before one does not fit, because a
    /// checkpoint and a batch take a quarter each at the most.
    fn check_space(&mut self, cost: u64, kept: usize) -> Result<(), AppendError> {
        let half = self.geometry.usable_bytes / 2;
        // The last half segment is for the groups that mark an open and a close.
        let reserve_bytes = (kept as u64 + 1) * half;
        // What a cleaning has begun to move must find room, or the room that it makes will never come.
        let moving_bytes = if kept == 0 { 0 } else { 2 * self.cleaner.left_bytes() };
        let needed = self.queued_cost + cost + reserve_bytes + moving_bytes;
        if self.free_bytes() < needed {
            self.reclaim_if_short();
        }
        let free_bytes = self.free_bytes();
        // What is queued takes less than it is counted for once it shares groups.
        let fits_alone = self.free_bytes_alone() >= needed - self.queued_cost;
        let fits = free_bytes >= needed || self.queued_cost == 0 && fits_alone;
        let is_data = kept == self.options.reserve_segments;
        if is_data {
            // What gave too little before may do now.
            self.cleaner.is_due |= !fits && !self.cleaner.is_awaited;
            self.cleaner.is_awaited = !fits;
        }
        if fits {
            return Ok(());
        }
        let is_room_coming =
            self.catalog.space.preparing() > 0 || self.can_grow() || self.is_cleaning_active();
        if fits_alone || is_room_coming {
            let max_bytes = free_bytes.saturating_sub(reserve_bytes + moving_bytes);
            return Err(AppendError::Overloaded { queued_bytes: self.queued_bytes, max_bytes });
        }
        self.is_full |= is_data;
        Err(AppendError::Full { free_bytes, reserve_bytes })
    }

    /// Bytes that batches can certainly use.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.free_segments() * (self.geometry.usable_bytes / 2) + self.cursor_free_bytes()
    }

    /// The same for one batch that nothing waits before: it may begin a segment, and has all of that then. Else a log whose other segments are
    /// all free could be full for ever, as the one that is being filled is used again only when another one is.
    pub(super) fn free_bytes_alone(&self) -> u64 {
        self.bytes_alone(self.free_segments())
    }

    /// The same with so many free segments.
    pub(super) fn bytes_alone(&self, free: u64) -> u64 {
        let half = self.geometry.usable_bytes / 2;
        let begun = if free > 0 { half } else { 0 };
        free * half + self.cursor_free_bytes().max(begun)
    }

    fn free_segments(&self) -> u64 {
        let (ready, raw) = self.catalog.space.free();
        (ready + raw + usize::from(self.next.is_some())) as u64
    }
}

fn check_runs(batch: &Batch) -> Result<(), AppendError> {
    let bad = |first_key, what, found: usize, max: usize| {
        Err(AppendError::BadRun { first_key, what, found: found as u64, max: max as u64 })
    };
    if batch.runs.len() > BATCH_RUNS_MAX {
        return bad(0, "run number", batch.runs.len(), BATCH_RUNS_MAX);
    }
    for run in &batch.runs {
        let count = run.table.count();
        if count == 0 || count > RUN_RECORDS_MAX {
            return bad(run.first_key, "a record count of", count, RUN_RECORDS_MAX);
        }
        if run.first_key.checked_add(count as u64).is_none() {
            return bad(run.first_key, "a record count past the last key,", count, 0);
        }
        if run.meta.len() > META_MAX_BYTES {
            return bad(run.first_key, "a meta of bytes", run.meta.len(), META_MAX_BYTES);
        }
        let table_bytes = run.table.data_bytes();
        if table_bytes != run.data.len() as u64 {
            return bad(run.first_key, "a table of data bytes", table_bytes as usize, run.data.len());
        }
        if run.kind == RunKind::Junk && !run.data.is_empty() {
            return bad(run.first_key, "junk of bytes", run.data.len(), 0);
        }
    }
    Ok(())
}
