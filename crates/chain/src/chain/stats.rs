//! What a chain tells of itself.

use super::Chain;
use crate::catalog::SegmentState;
use crate::core::Counters;
use crate::error::Damage;

/// The state of a chain, for status pages and tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Free segments that were written before.
    pub segments_ready: u64,
    /// Free segments that were not, with the one that is being written over.
    pub segments_raw: u64,
    /// Segments being filled, or waiting for their footers.
    pub segments_open: u64,
    /// Segments with a footer.
    pub segments_closed: u64,
    /// Bytes that batches can certainly still use, the reserve included.
    pub free_bytes: u64,
    /// Bytes that wait for a group.
    pub queued_bytes: u64,
    /// Records in all segments that are not free, released or not.
    pub records: u64,
    /// Their data, in bytes.
    pub data_bytes: u64,
    /// Bytes of memory that hold recent groups.
    pub tail_cache_bytes: usize,
    /// Bytes of memory that hold parts of footers.
    pub footer_cache_bytes: usize,
    /// Sequence number of the last durable group.
    pub durable_seq: u64,
    /// Since the chain was opened.
    pub counters: Counters,
    /// Damage that is known.
    pub damage: Vec<Damage>,
}

impl Chain {
    /// The present state.
    pub fn stats(&self) -> Stats {
        let core = self.inner.core.borrow();
        let mut stats = Stats {
            segment_bytes: core.geometry.segment_bytes,
            free_bytes: core.free_bytes(),
            queued_bytes: core.queued_bytes(),
            tail_cache_bytes: self.inner.tail.borrow().bytes(),
            footer_cache_bytes: self.inner.footers.borrow().bytes(),
            durable_seq: core.durable_seq(),
            counters: core.counters,
            damage: core.catalog.damage.clone(),
            ..Stats::default()
        };
        for state in core.catalog.segments() {
            match state {
                SegmentState::Ready | SegmentState::Next => stats.segments_ready += 1,
                SegmentState::Raw | SegmentState::Preparing => stats.segments_raw += 1,
                SegmentState::Open(open) => {
                    stats.segments_open += 1;
                    stats.records += open.record_count;
                    stats.data_bytes += open.data_bytes;
                }
                SegmentState::Closed(closed) => {
                    stats.segments_closed += 1;
                    stats.records += closed.record_count;
                    stats.data_bytes += closed.data_bytes;
                }
            }
        }
        stats
    }
}
