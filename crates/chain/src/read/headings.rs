//! What runs say of themselves, without their data: for an owner that makes an index of its own from their metas.
//!
//! Nothing but footers is read, and those through the cache that every read uses.

use std::ops::Range;

use super::walk::{Goal, Held, Walk};
use super::{INDEX_BYTES_PER_KEY, Plan, ReadError};
use crate::chain::Chain;
use crate::format::HeadView;
use crate::limits::FOOTER_PAGE_BYTES;
use crate::run::RunKind;

/// A run, or some of its records, without the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heading<'a> {
    /// The keys.
    pub keys: Range<u64>,
    /// The owner's version.
    pub version: u64,
    /// What the records are.
    pub kind: RunKind,
    /// The owner's header of the run that they were written in.
    pub meta: &'a [u8],
    /// Length and checksum of each record, encoded as a [`Table`](crate::Table).
    pub table: &'a [u8],
}

impl<'a> Heading<'a> {
    fn of(head: &HeadView<'a>) -> Self {
        let HeadView { version, kind, meta, table, .. } = *head;
        Self { keys: head.keys(), version, kind, meta, table }
    }
}

impl Chain {
    /// Shows `visit` the heads of the runs with keys in `keys`, in key order: as many as take about `limit_bytes` in a footer, but at
    /// least one if there is one. Released keys, and those of lost groups, are left out; only durable records are seen. Reads
    /// footers, and no data. Returns how far it is: keys of the range below it that were not shown have no record that is known.
    ///
    /// Errors: `Damaged` if a footer cannot be read and its segment neither; `Drive`. Cancelled, it leaves nothing behind.
    pub async fn visit_headings(
        &self,
        keys: Range<u64>,
        limit_bytes: usize,
        mut visit: impl FnMut(Heading<'_>),
    ) -> Result<u64, ReadError> {
        let end = keys.end;
        let count = usize::try_from(end.saturating_sub(keys.start)).unwrap_or(usize::MAX);
        let ahead_bytes = limit_bytes.min(count.saturating_mul(INDEX_BYTES_PER_KEY)).max(FOOTER_PAGE_BYTES);
        let mut plan = Plan::of_headings(keys, limit_bytes);
        self.inner.run_plan(&mut plan, ahead_bytes).await?;
        for located in &plan.found {
            visit(Heading::of(&located.run.view()));
        }
        Ok(plan.ends.first().map_or(end, |range| range.next))
    }

    /// The same, if all of it is in memory; `None` if the drive is needed behind what was shown.
    pub fn try_visit_headings(
        &self,
        keys: Range<u64>,
        limit_bytes: usize,
        mut visit: impl FnMut(Heading<'_>),
    ) -> Option<u64> {
        let inner = &self.inner;
        let (core, mut footers, held) = (inner.core.borrow(), inner.footers.borrow_mut(), Held::new());
        let mut goal = Goal::of_headings(keys, limit_bytes);
        let mut walk = Walk::new(&core.catalog, &mut goal);
        while let Some(step) = walk.next(&mut footers, &held).ok()? {
            visit(Heading::of(&step.head));
        }
        Some(goal.keys.start)
    }
}
