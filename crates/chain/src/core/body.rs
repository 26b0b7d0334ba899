//! A segment of the cleaner's own in the body of the log: copies are collected in it, away from the tail.
//!
//! ```text
//!   header "body" ─► groups of copies, one at a time ─► footer ─► trailer ─► header "open": it counts
//!        └ a crash in between: the next open frees it; every victim is still there
//! ```
//!
//! Its groups have numbers of their own, from 1, and are no part of the log's order: copies carry versions, so places do not
//! matter. Nothing depends on it before it is closed, and so nobody has to vouch for its groups.

use std::collections::VecDeque;

use bytes::Bytes;
use ithaca_env::drive::PageBuf;
use ithaca_env::limits::BLOCK_BYTES;

use super::{Batch, Core, Effect, Io, Sizes};
use crate::catalog::{ClosedSegment, OpenSegment, Published};
use crate::format::{
    GroupFlags, GroupIdentity, GroupSource, SegmentHeader, SegmentKind, SourceRun, encode_group,
    footer_bound_bytes,
};
use crate::links::link_of;
use crate::owner::Keys;
use crate::run::Run;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// The open body segment.
pub(super) struct Body {
    segment: u32,
    lap: u64,
    /// Where the next group goes, byte in the segment.
    offset: u32,
    blob_bytes: u64,
    runs: u64,
    next_seq: u64,
    stage: Stage,
}

enum Stage {
    /// Its header is on the way.
    Opening,
    /// It takes a group.
    Ready,
    /// A group is on the way.
    Writing(BodyGroup),
    /// Parts of the footer, then the trailer, one at a time.
    Closing { parts: VecDeque<(u64, Bytes)>, closed: Box<ClosedSegment> },
    /// The header that makes it count is on the way.
    Marking { closed: Box<ClosedSegment> },
}

struct BodyGroup {
    end_offset: u32,
    blob: Bytes,
    starts: Vec<u32>,
    data_bytes: u64,
    records: u64,
}

impl Core {
    /// Whether a body segment is open.
    pub(crate) fn has_body(&self) -> bool {
        self.body.is_some()
    }

    /// Whether nothing is on the way to the body segment, so that it takes the next group.
    pub(crate) fn is_body_at_rest(&self) -> bool {
        self.body.as_ref().is_none_or(|body| matches!(body.stage, Stage::Ready))
    }

    /// Whether a batch of copies fits into the open body segment, with the footer that it will then need.
    pub(crate) fn fits_body(&self, batch: &Batch) -> bool {
        let sizes = Sizes::of(batch);
        self.body.as_ref().is_some_and(|body| {
            let footer = footer_bound_bytes(body.blob_bytes + sizes.blob, body.runs + sizes.runs, 0);
            u64::from(body.offset) + sizes.group_bytes() + footer + BLOCK <= self.geometry.segment_bytes
        })
    }

    /// Bytes of copies that the body can take, without the last free segments, which are for the log.
    pub(super) fn body_room_bytes(&self) -> u64 {
        let (ready, raw) = self.catalog.space.free();
        let each = self.geometry.usable_bytes.saturating_sub(self.geometry.batch_max_bytes);
        let left = self.body.as_ref().map_or(0, |body| each.saturating_sub(u64::from(body.offset)));
        ((ready + raw) as u64).saturating_sub(1) * each + left
    }

    /// Begins a body segment, on another link than the tail's if one has room. Returns whether there is a segment for it.
    pub(crate) fn begin_body(&mut self, out: &mut Vec<Effect>) -> bool {
        assert!(self.body.is_none(), "one body segment at a time");
        self.reclaim_if_short();
        let (ready, raw) = self.catalog.space.free();
        let Some(segment) =
            self.catalog.space.find_free_in_body(self.tail_link()).filter(|_| ready + raw > 1)
        else {
            return false;
        };
        let lap = self.next_lap;
        self.next_lap += 1;
        let open = OpenSegment { lap, end_offset: BLOCK_BYTES as u32, ..OpenSegment::default() };
        self.catalog.open_segment(segment, open);
        self.body = Some(Body {
            segment,
            lap,
            offset: BLOCK_BYTES as u32,
            blob_bytes: 0,
            runs: 0,
            next_seq: 1,
            stage: Stage::Opening,
        });
        self.write_body_header(SegmentKind::Body, out);
        true
    }

    fn write_body_header(&self, kind: SegmentKind, out: &mut Vec<Effect>) {
        let Some(Body { segment, lap, .. }) = self.body else { return };
        let header = SegmentHeader { chain: self.chain, segment, kind, lap };
        out.push(Effect::Write {
            io: Io::Body(segment),
            link: link_of(segment),
            offset: self.geometry.segment_start(segment),
            data: PageBuf::paged(&header.encode()).into(),
        });
    }

    /// Writes a group of copies to the body segment, which is at rest and has room for it.
    pub(crate) fn write_body(&mut self, batch: &Batch, out: &mut Vec<Effect>) {
        assert!(self.is_body_at_rest() && self.fits_body(batch), "there is room in it");
        let Some(mut body) = self.body.take() else { return };
        let first = GroupFlags::CHECKPOINT;
        let identity = GroupIdentity {
            flags: if body.next_seq == 1 { GroupFlags::BODY.with(first) } else { GroupFlags::BODY },
            segment: body.segment,
            chain: self.chain,
            lap: body.lap,
            seq: body.next_seq,
            durable_seq: body.next_seq - 1,
            incarnation: self.incarnation,
            prev_lap: 0,
            offset: body.offset,
            segments: self.catalog.space.count(link_of(body.segment)),
            key_end: self.formed_key_end,
        };
        // The image is gone when it is written.
        let runs = SourceRun::all(&batch.runs);
        let encoded = encode_group(&GroupSource { identity, released: &[], state: None, runs: &runs });
        out.push(Effect::Write {
            io: Io::Body(body.segment),
            link: link_of(body.segment),
            offset: self.geometry.segment_start(body.segment) + u64::from(body.offset),
            data: encoded.image,
        });
        let end_offset = body.offset + encoded.layout.total_bytes() as u32;
        body.blob_bytes += encoded.blob.len() as u64;
        body.runs += runs.len() as u64;
        body.offset = end_offset;
        body.stage = Stage::Writing(BodyGroup {
            end_offset,
            blob: encoded.blob,
            starts: encoded.starts,
            data_bytes: (encoded.layout.packed_bytes + encoded.layout.aligned_bytes) as u64,
            records: batch.runs.iter().map(Run::count).sum(),
        });
        self.body = Some(body);
    }

    /// Closes the body segment, which is at rest. It counts when [`Core::has_body`] says that there is none any more.
    pub(crate) fn close_body(&mut self, out: &mut Vec<Effect>) {
        assert!(self.is_body_at_rest(), "nothing is on the way to it");
        let Some(segment) = self.body.as_ref().map(|body| body.segment) else { return };
        let (parts, closed) = self.encode_footer(segment, true);
        if let Some(body) = &mut self.body {
            body.stage = Stage::Closing { parts, closed: Box::new(closed) };
        }
        self.write_body_part(out);
    }

    /// Writes the next part of the footer; behind the last one, the header that makes the segment count.
    fn write_body_part(&mut self, out: &mut Vec<Effect>) {
        let Some(mut body) = self.body.take() else { return };
        let Stage::Closing { mut parts, closed } = body.stage else { unreachable!("it is being closed") };
        match parts.pop_front() {
            Some((offset, bytes)) => {
                self.counters.footer_bytes += bytes.len() as u64;
                let segment = body.segment;
                let (io, link) = (Io::Body(segment), link_of(segment));
                out.push(Effect::Write { io, link, offset, data: bytes.into() });
                body.stage = Stage::Closing { parts, closed };
                self.body = Some(body);
            }
            None => {
                body.stage = Stage::Marking { closed };
                self.body = Some(body);
                self.write_body_header(SegmentKind::Open, out);
            }
        }
    }

    /// What was on the way to the body segment is durable.
    pub(super) fn body_done(&mut self, out: &mut Vec<Effect>) {
        let Some(mut body) = self.body.take() else { panic!("a body segment is open") };
        match std::mem::replace(&mut body.stage, Stage::Ready) {
            Stage::Opening => self.body = Some(body),
            Stage::Ready => panic!("nothing was on the way to the body segment"),
            Stage::Writing(group) => {
                self.publish_body(&body, group, out);
                body.next_seq += 1;
                self.body = Some(body);
            }
            stage @ Stage::Closing { .. } => {
                body.stage = stage;
                self.body = Some(body);
                self.write_body_part(out);
            }
            Stage::Marking { closed } => {
                self.catalog.close_segment(body.segment, *closed);
                self.counters.segments_closed += 1;
                self.reclaim_due = true;
            }
        }
        out.push(Effect::Changed);
    }

    fn publish_body(&mut self, body: &Body, group: BodyGroup, out: &mut Vec<Effect>) {
        self.counters.groups += 1;
        self.counters.group_bytes += u64::from(group.end_offset - self.catalog.open(body.segment).end_offset);
        self.counters.data_bytes += group.data_bytes;
        self.counters.records_moved += group.records;
        self.counters.moved_bytes += group.data_bytes;
        if self.catalog.keys == Keys::Versioned {
            let (blob, starts) = (group.blob.clone(), group.starts.clone());
            out.push(Effect::Copied { segment: body.segment, lap: body.lap, blob, starts });
        }
        self.catalog.publish(Published {
            segment: body.segment,
            seq: body.next_seq,
            incarnation: self.incarnation,
            end_offset: group.end_offset,
            blob: group.blob,
            starts: &group.starts,
            data_bytes: group.data_bytes,
            released: &[],
        });
    }
}
