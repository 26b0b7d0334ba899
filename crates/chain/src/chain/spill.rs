//! What leaves memory goes to the cache drive, as far as anybody may still read it.

use std::collections::BTreeSet;

use ithaca_env::limits::BLOCK_BYTES;

use super::{Chain, Inner};
use crate::cache::{CacheDrive, GroupImage, Share};
use crate::catalog::SegmentState;
use crate::core::Io;
use crate::format::peek_group;
use crate::links::link_of;

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

    /// Offers the cache drive the blocks of a group that hold records which are not released: what was released while it was
    /// in memory never costs a write there.
    pub(super) fn spill(&self, group: &GroupImage) {
        let share = self.share.borrow();
        let Some(share) = share.as_ref() else { return };
        let core = self.core.borrow();
        if core.tail_link() != Some(link_of(group.segment)) && !core.options.body_cache {
            return;
        }
        let area = peek_group(&group.image).and_then(|head| head.decode_area(&group.image));
        let area = area.expect("it is what was written");
        let mut blocks = BTreeSet::new();
        for run in area.runs {
            let data = run.data_range();
            if !data.is_empty() && core.catalog.released.gaps(run.keys()).next().is_some() {
                blocks.extend(data.start / BLOCK_BYTES as u64..data.end.div_ceil(BLOCK_BYTES as u64));
            }
        }
        for block in blocks {
            let at = block as usize * BLOCK_BYTES - group.offset as usize;
            let key = share.key(group.segment, group.lap, block as u32);
            share.offer(key, &group.image[at..at + BLOCK_BYTES]);
        }
    }

    /// Offers the cache drive the part of a footer that is being written at `offset` of its link: else the first read of
    /// what left memory would go to the tail drive for it.
    pub(super) fn spill_footer(&self, io: Io, offset: u64, bytes: &[u8]) {
        let Io::Footer(segment) = io else { return };
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
