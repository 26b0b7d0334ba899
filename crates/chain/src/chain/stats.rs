//! What a chain tells of itself.

use super::{Chain, Scrubbed};
use crate::cache::Reads;
use crate::catalog::SegmentState;
use crate::core::{Core, Counters};
use crate::error::Damage;
use crate::links::link_of;
use crate::membership::{DriveId, SideState};

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
    /// Bytes of memory that hold blocks which were read or written of late.
    pub read_cache_bytes: usize,
    /// Bytes of memory that hold parts of footers.
    pub footer_cache_bytes: usize,
    /// Where reads were answered since the chain was opened.
    pub reads: Reads,
    /// Sequence number of the last durable group.
    pub durable_seq: u64,
    /// Whether a segment is being cleaned.
    pub is_cleaning: bool,
    /// Since the chain was opened.
    pub counters: Counters,
    /// Places of one side of a link that were harmed and were written again from another side, since the chain was opened.
    pub repaired: u64,
    /// What scrubbing has gone through.
    pub scrubbed: Scrubbed,
    /// Damage that is known.
    pub damage: Vec<Damage>,
    /// Each drive, in the order of the chain.
    pub links: Vec<LinkStats>,
}

/// What lies on one drive of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkStats {
    /// The drive.
    pub id: DriveId,
    /// Its path; of one that is not there, its id.
    pub drive: String,
    /// Whether it was given to the open, or added since.
    pub is_there: bool,
    /// Its link: the number that its segments begin with.
    pub link: u32,
    /// Whether it has everything that was acknowledged. The counts are those of the link, whose live sides all hold the same.
    pub state: SideState,
    /// Of a side that is being rebuilt: its segments that are gone through.
    pub rebuilt: Option<u64>,
    /// Segments it has.
    pub segments: u64,
    /// Segments that are free.
    pub segments_free: u64,
    /// Segments that hold records, released ones among them until all of a segment are.
    pub segments_live: u64,
    /// Records in those.
    pub records: u64,
    /// Their data, in bytes.
    pub data_bytes: u64,
    /// Whether the log is being written to this drive.
    pub is_tail: bool,
    /// Whether it is left alone, because another side of its link can serve all reads.
    pub is_asleep: bool,
    /// Whether it is being removed: no segment of it is begun any more, and what is needed of it is being moved.
    pub is_leaving: bool,
}

impl Chain {
    /// The present state. Segments of which everything is released count as free.
    pub fn stats(&self) -> Stats {
        self.inner.core.borrow_mut().reclaim();
        let core = self.inner.core.borrow();
        let mut stats = Stats {
            segment_bytes: core.geometry.segment_bytes,
            free_bytes: core.free_bytes(),
            queued_bytes: core.queued_bytes(),
            tail_cache_bytes: self.inner.tail.borrow().bytes(),
            read_cache_bytes: self.inner.read_cache.borrow().bytes(),
            footer_cache_bytes: self.inner.footers.borrow().bytes(),
            reads: self.inner.reads.get(),
            durable_seq: core.durable_seq(),
            is_cleaning: core.is_cleaning(),
            counters: core.counters,
            repaired: self.inner.repaired.get(),
            scrubbed: self.inner.scrubbed.get(),
            damage: core.catalog.damage.clone(),
            links: self.link_stats(&core),
            ..Stats::default()
        };
        for (_, state) in core.catalog.space.iter() {
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

    fn link_stats(&self, core: &Core) -> Vec<LinkStats> {
        let roster = self.inner.registry.roster();
        let links = self.inner.links.borrow();
        let members = roster.membership.members.iter();
        members
            .map(|member| {
                let it = roster.drive(member.drive);
                let device = links.device(member.link);
                let mut stats = LinkStats {
                    id: member.drive,
                    drive: it.map_or_else(|| format!("missing ({})", member.drive), |it| it.drive.name()),
                    is_there: it.is_some(),
                    link: member.link,
                    state: member.state,
                    rebuilt: self.inner.rebuilt_of(member.drive),
                    segments: 0,
                    segments_free: 0,
                    segments_live: 0,
                    records: 0,
                    data_bytes: 0,
                    is_tail: core.tail_link() == Some(member.link),
                    is_asleep: device.is_some_and(|device| device.is_asleep(member.drive)),
                    is_leaving: !core.catalog.space.is_open(member.link),
                };
                let states = core.catalog.space.iter();
                states
                    .filter(|(segment, _)| link_of(*segment) == member.link)
                    .for_each(|(_, state)| stats.count(state));
                stats
            })
            .collect()
    }
}

impl LinkStats {
    fn count(&mut self, state: &SegmentState) {
        self.segments += 1;
        let (records, data_bytes) = match state {
            SegmentState::Open(open) => (open.record_count, open.data_bytes),
            SegmentState::Closed(closed) => (closed.record_count, closed.data_bytes),
            SegmentState::Ready | SegmentState::Next | SegmentState::Raw | SegmentState::Preparing => {
                self.segments_free += 1;
                return;
            }
        };
        self.segments_live += 1;
        self.records += records;
        self.data_bytes += data_bytes;
    }
}
