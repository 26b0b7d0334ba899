//! Reads: find the runs, then take their data from memory or from the drive.
//!
//! Only durable records are seen. What comes from the drive is checked against the checksums of its table; what comes
//! from memory is what was appended.

mod cached;
mod elsewhere;
mod fetch;
mod footers;
mod headings;
mod mend;
mod plan;
mod walk;

use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::drive::DriveError;

use elsewhere::Bad;
pub use elsewhere::Described;
pub(crate) use footers::UnreadGroups;
pub use headings::Heading;
pub(crate) use mend::is_refusal;
pub(crate) use plan::Plan;
use walk::{Goal, Held, Walk};

use crate::cache::PartKey;
use crate::catalog::Located;
use crate::chain::{Chain, Inner};
use crate::error::ReadError;
use crate::limits;
use crate::links::link_of;
use crate::run::{Run, RunKind, RunView, Table};

/// Bytes of a footer that a key takes, about: runs of one small record each take more, long runs less.
const INDEX_BYTES_PER_KEY: usize = 64;

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The owner's version.
    pub version: u64,
    /// With data, or without.
    pub kind: RunKind,
    /// The owner's header of the run that it was written in.
    pub meta: Bytes,
    /// crc32c of the data, as the appender computed it.
    pub checksum: u32,
    /// The data.
    pub data: Bytes,
}

/// What a read of several ranges of keys found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// In key order within each range, range after range.
    pub runs: Vec<Run>,
    /// Each range that was read; the last one perhaps in part. Those that the limit left out are missing at the end.
    pub ends: Vec<RangeEnd>,
}

/// How far a range was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeEnd {
    /// How many runs were found up to the end of this range, those of earlier ranges included.
    pub runs: usize,
    /// Keys of the range below this one that are in no run have no record that is known. Its end, unless the limit cut it
    /// off.
    pub next: u64,
}

/// Why a fetch did not give the data.
pub(crate) enum FetchError {
    Read(ReadError),
    /// No side of a mirrored link has a record, and one that may have it could not read it.
    Unread {
        key: u64,
        segment: u32,
        error: DriveError,
    },
    /// The segment was recycled meanwhile, because its keys were released: look again.
    Recycled,
}

impl Chain {
    /// The record at `key`; `None` if there is none or it is released. Reads at most a footer's directory, one page of
    /// it, and the record.
    ///
    /// Errors: `Damaged` if what the drive holds is not what was written, or if the key may have been in a lost group;
    /// `Drive`.
    pub async fn read(&self, key: u64) -> Result<Option<Record>, ReadError> {
        let range = key..key.saturating_add(1);
        let mut reading = self.read_ranges(vec![range], usize::MAX).await?;
        match reading.runs.pop() {
            Some(run) => Ok(Some(record(&run.view()))),
            None => self.inner.nothing_at(key),
        }
    }

    /// The record at `key` if it can be told without the drive: `Some(None)` says that there certainly is none.
    pub fn try_read_cached(&self, key: u64) -> Option<Option<Record>> {
        let mut found = None;
        self.try_visit_cached(key..key.saturating_add(1), usize::MAX, |run| found = Some(record(&run)))?;
        match found {
            Some(record) => Some(Some(record)),
            None => self.inner.nothing_at(key).ok(),
        }
    }

    /// Runs with keys in `[from, end)`, in key order, beginning with the first record at or after `from`: about
    /// `limit_bytes` of data and tables, and at least one record if there is one. Keys without a record, released ones
    /// and those of lost groups are left out. Cold data is read in large pieces.
    ///
    /// Errors: `Damaged` if a record's data is not what was written; reading up to that key works. `Drive`.
    pub async fn read_runs(&self, from: u64, end: u64, limit_bytes: usize) -> Result<Vec<Run>, ReadError> {
        let range = from..end;
        self.read_ranges(vec![range], limit_bytes).await.map(|reading| reading.runs)
    }

    /// The same for several ranges in any order, which are planned together: what they need of the drive is read at the
    /// same time. The limit is for all of them.
    ///
    /// Errors: as of [`Chain::read_runs`], for any of the ranges.
    pub async fn read_ranges(
        &self,
        ranges: Vec<Range<u64>>,
        limit_bytes: usize,
    ) -> Result<Reading, ReadError> {
        let reading = self.read_ranges_if(&ranges, limit_bytes, usize::MAX, |_| true).await?;
        Ok(reading.expect("whatever it holds"))
    }

    /// The same, of `runs_max` runs at the most, if `may_hold` allows it. Once the records are found it is told how many bytes that takes, with
    /// what is to be read from the drive for them, a block at least for each run; `None` if it says no, and then no data is read. Where
    /// something changes meanwhile it is asked again, of all of it.
    ///
    /// Errors: as of [`Chain::read_runs`], for any of the ranges.
    pub async fn read_ranges_if(
        &self,
        ranges: &[Range<u64>],
        limit_bytes: usize,
        runs_max: usize,
        mut may_hold: impl FnMut(usize) -> bool,
    ) -> Result<Option<Reading>, ReadError> {
        // Reading along pays where many keys are read in order; many reads of one key each would fill memory with it.
        let most = ranges.iter().map(|keys| keys.end.saturating_sub(keys.start)).max().unwrap_or(0);
        let keys = usize::try_from(most).unwrap_or(usize::MAX);
        let ahead_bytes = (limit_bytes / 8).min(keys.saturating_mul(INDEX_BYTES_PER_KEY));
        let mut bad = Bad::new();
        'again: loop {
            let mut plan = Plan::new(ranges.to_vec(), limit_bytes).of_runs(runs_max);
            self.inner.run_plan(&mut plan, ahead_bytes).await?;
            loop {
                let uncached = self.inner.uncached(&plan.found);
                if !may_hold(uncached.bytes() + plan.found.len() * limits::FOUND_RUN_BYTES) {
                    return Ok(None);
                }
                match self.inner.fetch_uncached(&plan.found, uncached).await {
                    Ok(data) => return Ok(Some(Reading { runs: runs(plan.found, data), ends: plan.ends })),
                    Err(FetchError::Recycled) => continue 'again,
                    Err(FetchError::Unread { key, segment, error }) => {
                        self.inner.go_elsewhere(&mut plan, &mut bad, (key, segment), error.into()).await?;
                    }
                    Err(FetchError::Read(error)) => {
                        let ReadError::Damaged { key, segment, .. } = error else { return Err(error) };
                        self.inner.go_elsewhere(&mut plan, &mut bad, (key, segment), error).await?;
                    }
                }
            }
        }
    }

    /// Shows `visit` the runs that [`Chain::read_runs`] gives, without a copy, if all of it is in memory. Returns how far
    /// that is: keys of the range below it that were not shown have no record that is known. `None` if the drive is
    /// needed; what was shown before counts for nothing then.
    pub fn try_visit_cached(
        &self,
        keys: Range<u64>,
        limit_bytes: usize,
        mut visit: impl FnMut(RunView<'_>),
    ) -> Option<u64> {
        let inner = &self.inner;
        let (core, mut footers, held) = (inner.core.borrow(), inner.footers.borrow_mut(), Held::new());
        let mut goal = Goal::new(keys, limit_bytes);
        let mut walk = Walk::new(&core.catalog, &mut goal);
        let mut shown = [0, 0];
        while let Some(step) = walk.next(&mut footers, &held).ok()? {
            let data = inner.cached(step.lap, step.head.data_range())?;
            let is_tail = core.tail_link() == Some(link_of(step.segment));
            shown[usize::from(is_tail)] += u64::from(!data.is_empty());
            let head = step.head;
            visit(RunView {
                first_key: head.first_key,
                version: head.version,
                kind: head.kind,
                meta: head.meta,
                table: head.table,
                data,
            });
        }
        inner.reads.add(true, |count| count.memory += shown[1]);
        inner.reads.add(false, |count| count.memory += shown[0]);
        Some(goal.keys.start)
    }
}

impl Inner {
    /// Runs the plan to its end, reading what it misses; parts that follow within `ahead_bytes` are read along.
    pub(crate) async fn run_plan(
        self: &Rc<Self>,
        plan: &mut Plan,
        ahead_bytes: usize,
    ) -> Result<(), ReadError> {
        loop {
            let planned = plan.run(&self.core.borrow().catalog, &mut self.footers.borrow_mut());
            let Err(missing) = planned else { return Ok(()) };
            if let [part] = missing[..] {
                plan.hold(self.load_footer_part(part, ahead_bytes, UnreadGroups::AskAgain).await?);
                continue;
            }
            let load = |part: PartKey| {
                let inner = Rc::clone(self);
                self.env.spawn(async move {
                    inner.load_footer_part(part, ahead_bytes, UnreadGroups::AskAgain).await
                })
            };
            let loads: Vec<_> = missing.into_iter().map(load).collect();
            for load in loads {
                plan.hold(load.join().await.unwrap_or_else(|| Ok(Vec::new()))?);
            }
        }
    }

    /// There is no record at `key`, unless damage has made it unknown.
    fn nothing_at(&self, key: u64) -> Result<Option<Record>, ReadError> {
        let core = self.core.borrow();
        let catalog = &core.catalog;
        if key >= catalog.lost_below() || catalog.released.contains(key) {
            return Ok(None);
        }
        let lost = catalog.damage.iter().find(|damage| damage.is_of_groups());
        let (segment, offset) = lost.map_or((0, 0), |damage| (damage.segment, damage.offset));
        Err(ReadError::Damaged { key, segment, offset })
    }
}

fn record(run: &RunView<'_>) -> Record {
    let table = Table::from_bytes(Bytes::copy_from_slice(run.table)).expect("whole entries");
    Record {
        version: run.version,
        kind: run.kind,
        meta: Bytes::copy_from_slice(run.meta),
        checksum: table.get(0).checksum,
        data: run.data.clone(),
    }
}

fn runs(found: Vec<Located>, data: Vec<Bytes>) -> Vec<Run> {
    found.into_iter().zip(data).map(|(located, data)| located.run.into_run(data)).collect()
}
