//! Reads: find the runs, then take their data from memory or from the drive.
//!
//! Only durable records are seen. What comes from the drive is checked against the checksums of its table; what comes
//! from memory is what was appended.

mod fetch;
mod footers;
mod plan;

use bytes::Bytes;

pub(crate) use plan::{Missing, Plan};

use crate::catalog::Located;
use crate::chain::{Chain, Inner};
use crate::error::ReadError;
use crate::run::{Run, RunKind};

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

/// Why a fetch did not give the data.
pub(crate) enum FetchError {
    Read(ReadError),
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
        let inner = &self.inner;
        loop {
            let mut plan = Plan::new(key..key.saturating_add(1), usize::MAX);
            inner.run_plan(&mut plan, 0).await?;
            let Some(located) = plan.found.pop() else { return inner.nothing_at(key) };
            match inner.fetch(std::slice::from_ref(&located)).await {
                Ok(mut data) => return Ok(data.pop().map(|data| record(located, data))),
                Err(FetchError::Recycled) => {}
                Err(FetchError::Read(error)) => return Err(error),
            }
        }
    }

    /// The record at `key` if it can be told without the drive: `Some(None)` says that there certainly is none.
    pub fn try_read_cached(&self, key: u64) -> Option<Option<Record>> {
        let inner = &self.inner;
        let mut plan = Plan::new(key..key.saturating_add(1), usize::MAX);
        inner.try_plan(&mut plan).ok()?;
        let Some(located) = plan.found.pop() else { return inner.nothing_at(key).ok() };
        let data = inner.fetch_cached(&located)?;
        Some(Some(record(located, data)))
    }

    /// Runs with keys in `[from, end)`, in key order, beginning with the first record at or after `from`: about
    /// `limit_bytes` of data and tables, and at least one record if there is one. Keys without a record, released ones
    /// and those of lost groups are left out. Cold data is read in large pieces.
    ///
    /// Errors: `Damaged` if a record's data is not what was written; reading up to that key works. `Drive`.
    pub async fn read_runs(&self, from: u64, end: u64, limit_bytes: usize) -> Result<Vec<Run>, ReadError> {
        let inner = &self.inner;
        loop {
            let mut plan = Plan::new(from..end, limit_bytes);
            // Reading along pays where many keys are read in order; many reads of one key each would fill memory with it.
            let keys = usize::try_from(end.saturating_sub(from)).unwrap_or(usize::MAX);
            let ahead_bytes = (limit_bytes / 8).min(keys.saturating_mul(INDEX_BYTES_PER_KEY));
            inner.run_plan(&mut plan, ahead_bytes).await?;
            match inner.fetch(&plan.found).await {
                Ok(data) => return Ok(runs(plan.found, data)),
                Err(FetchError::Recycled) => {}
                Err(FetchError::Read(error)) => return Err(error),
            }
        }
    }

    /// What [`Chain::read_runs`] gives, if all of it is in memory.
    pub fn try_read_runs_cached(&self, from: u64, end: u64, limit_bytes: usize) -> Option<Vec<Run>> {
        let inner = &self.inner;
        let mut plan = Plan::new(from..end, limit_bytes);
        inner.try_plan(&mut plan).ok()?;
        let data: Option<Vec<Bytes>> = plan.found.iter().map(|located| inner.fetch_cached(located)).collect();
        Some(runs(plan.found, data?))
    }
}

impl Inner {
    fn try_plan(&self, plan: &mut Plan) -> Result<(), Missing> {
        plan.run(&self.core.borrow().catalog, &mut self.footers.borrow_mut())
    }

    /// Runs the plan to its end, reading what it misses; parts that follow within `ahead_bytes` are read along.
    async fn run_plan(&self, plan: &mut Plan, ahead_bytes: usize) -> Result<(), ReadError> {
        loop {
            let missing = self.try_plan(plan);
            let Err(Missing(key)) = missing else { return Ok(()) };
            let parts = self.load_footer_part(key, ahead_bytes).await?;
            plan.held.extend(parts);
        }
    }

    /// There is no record at `key`, unless damage has made it unknown.
    fn nothing_at(&self, key: u64) -> Result<Option<Record>, ReadError> {
        let core = self.core.borrow();
        let catalog = &core.catalog;
        if key >= catalog.lost_below || catalog.released.contains(key) {
            return Ok(None);
        }
        let lost = catalog.damage.iter().find(|it| matches!(it.kind, crate::DamageKind::Groups { .. }));
        let (segment, offset) = lost.map_or((0, 0), |damage| (damage.segment, damage.offset));
        Err(ReadError::Damaged { key, segment, offset })
    }
}

fn record(located: Located, data: Bytes) -> Record {
    let entry = located.run.table.get(0);
    Record {
        version: located.run.version,
        kind: located.run.kind,
        meta: located.run.meta,
        checksum: entry.checksum,
        data,
    }
}

fn runs(found: Vec<Located>, data: Vec<Bytes>) -> Vec<Run> {
    found.into_iter().zip(data).map(|(located, data)| located.run.into_run(data)).collect()
}
