//! What leaves memory goes to the cache drive, as far as anybody may still read it.

use std::collections::BTreeSet;
use std::ops::Range;

use ithaca_env::limits::BLOCK_BYTES;

use super::owned::records_of;
use super::{Chain, Inner};
use crate::cache::{CacheDrive, GroupImage, Share};
use crate::catalog::SegmentState;
use crate::format::{RunHead, peek_group};
use crate::links::link_of;
use crate::owner::Placed;

impl Chain {
    /// Lets the chain keep on `cache` what leaves its memory, and what is read from its tail drive; with
    /// [`body_cache`](crate::ChainOptions::body_cache) what is read from the others too. Other chains may use the same cache.
    ///
    /// Nothing that the chain promises depends on the cache: it may fail, hang, lie or be lost at any time. A read waits for
    /// it for a second at the most, an append never.
    pub fn use_cache(&self, cache: &CacheDrive) {
        let core = self.inner.core.borrow();
        self.inner.share.replace(Some(Share::new(cache, self.inner.identity.id, &core.options)));
    }
}

impl Inner {
    /// Whether the log is being written to the link of this segment.
    pub(crate) fn is_on_tail(&self, segment: u32) -> bool {
        self.core.borrow().tail_link() == Some(link_of(segment))
    }

    /// Offers the cache drive the blocks of a group that hold records which are needed: what was released, or written again with a
    /// newer version, while it was in memory never costs a write there.
    pub(super) fn spill(&self, group: &GroupImage) {
        let share = self.share.borrow();
        let Some(share) = share.as_ref() else { return };
        if !self.is_on_tail(group.segment) && !self.core.borrow().options.body_cache {
            return;
        }
        let head = group.image.iter().next().expect("a group has a head");
        let area =
            peek_group(head).and_then(|found| found.decode_area(head)).expect("it is what was written");
        let mut blocks = BTreeSet::new();
        for run in &area.runs {
            for data in self.needed(run, group) {
                blocks.extend(data.start / BLOCK_BYTES as u64..data.end.div_ceil(BLOCK_BYTES as u64));
            }
        }
        for block in blocks {
            let at = block as usize * BLOCK_BYTES - group.offset as usize;
            let key = share.key(group.segment, group.lap, block as u32);
            share.offer(key, &group.image.slice(at..at + BLOCK_BYTES));
        }
    }

    /// The data of a run that somebody may still read, bytes of the segment; none of it is empty.
    fn needed(&self, run: &RunHead, group: &GroupImage) -> Vec<Range<u64>> {
        let Some(owner) = &self.owner else {
            let is_needed = self.core.borrow().catalog.released.gaps(run.keys()).next().is_some();
            let data = run.data_range();
            return if is_needed && !data.is_empty() { vec![data] } else { Vec::new() };
        };
        let data = |record: Placed| {
            let start = u64::from(record.place.offset);
            start..start + u64::from(record.place.len)
        };
        let records = records_of(&run.view(), group.segment, group.lap);
        records.filter(|record| record.place.len > 0 && owner.is_live(*record)).map(data).collect()
    }

    /// Offers the cache drive the part of a footer that is being written at `offset` of its link: else the first read of
    /// what left memory would go to the tail drive for it.
    pub(super) fn spill_footer(&self, segment: u32, offset: u64, bytes: &[u8]) {
        if self.share.borrow().is_none() {
            return;
        }
        let (lap, start) = {
            let core = self.core.borrow();
            let Some(SegmentState::Open(open)) = core.catalog.space.get(segment) else { return };
            (open.lap, offset - core.geometry.segment_start(segment))
        };
        self.offer_footer(segment, lap, start as u32, bytes);
    }
}
