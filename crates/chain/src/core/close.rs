//! Closing full segments: the footer's pages, then the trailer that makes them count.
//!
//! A segment in which an open could not read all groups gets none, so that a later open finds what that one did not.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;
use ithaca_env::drive::PageBuf;
use ithaca_env::limits::BLOCK_BYTES;

use super::{Core, Effect, Io};
use crate::catalog::{ClosedSegment, OpenSegment, Published, coarse_ranges};
use crate::format::{Footer, FooterRun, Trailer, footer_bound_bytes};
use crate::limits::{BACKGROUND_IO_BYTES, TRAILER_RANGES_MAX};
use crate::links::link_of;
use crate::owner::Keys;
use crate::planted::PlantedBug;

/// A full segment on its way to be closed.
pub(super) struct Closing {
    pub(super) segment: u32,
    /// The last group that was formed for it. Its successor holds the next one.
    last_seq: u64,
    stage: Stage,
}

enum Stage {
    /// For its groups, and the checkpoint in the successor's first, to be durable.
    Waiting,
    /// One write at a time: the parts of the footer, in the end the trailer.
    Writing { parts: VecDeque<(u64, Bytes)>, closed: Box<ClosedSegment> },
}

/// Pages and directory of a closed segment.
pub(crate) struct WholeFooter {
    /// Where they begin, byte in the segment.
    pub(crate) start: u32,
    /// Where the directory does.
    pub(crate) directory_offset: u32,
    pub(crate) bytes: Bytes,
}

impl Closing {
    pub(super) fn new(segment: u32, last_seq: u64) -> Self {
        Self { segment, last_seq, stage: Stage::Waiting }
    }
}

impl Core {
    /// Starts to close the oldest full segment when it may be.
    ///
    /// Not before the successor's first group is durable: until then the newest checkpoint is in this segment, and
    /// recovery scans only segments without a footer.
    pub(super) fn close_segments(&mut self, out: &mut Vec<Effect>) {
        let early = u64::from(self.options.planted.is(PlantedBug::ClosedBeforeCheckpoint));
        let Some(closing) = self.closing.front() else { return };
        let may = self.durable_seq + early > closing.last_seq;
        if !may || !matches!(closing.stage, Stage::Waiting) {
            return;
        }
        let segment = closing.segment;
        let (mut parts, mut closed) = self.encode_footer(segment, false);
        if self.catalog.open(segment).is_unread {
            parts.clear();
            closed = closed.without_footer();
        }
        if let Some(closing) = self.closing.front_mut() {
            closing.stage = Stage::Writing { parts, closed: Box::new(closed) };
        }
        self.write_next_part(out);
    }

    fn write_next_part(&mut self, out: &mut Vec<Effect>) {
        let Some(Closing { segment, stage: Stage::Writing { parts, .. }, .. }) = self.closing.front_mut()
        else {
            return;
        };
        if let Some((offset, bytes)) = parts.pop_front() {
            self.counters.footer_bytes += bytes.len() as u64;
            let (io, link) = (Io::Footer(*segment), link_of(*segment));
            out.push(Effect::Write { io, link, offset, data: bytes.into() });
            return;
        }
        let Some(Closing { segment, stage: Stage::Writing { closed, .. }, .. }) = self.closing.pop_front()
        else {
            unreachable!("matched above");
        };
        self.catalog.close_segment(segment, *closed);
        self.counters.segments_closed += 1;
        self.reclaim_due = true;
        self.cleaner.is_due = true;
        out.push(Effect::Changed);
        self.close_segments(out);
    }

    /// A part of the footer, or the trailer, is durable.
    pub(super) fn footer_done(&mut self, segment: u32, out: &mut Vec<Effect>) {
        let front = self.closing.front();
        assert!(front.is_some_and(|closing| closing.segment == segment), "one footer at a time");
        self.write_next_part(out);
    }

    /// Full segments that wait to be closed.
    pub(crate) fn full_segments(&self) -> Vec<u32> {
        self.closing.iter().map(|closing| closing.segment).collect()
    }

    /// The footer of an open segment as it would be now, part by part with the place of each, and behind them the trailer.
    pub(crate) fn encode_footer(
        &self,
        segment: u32,
        is_body: bool,
    ) -> (VecDeque<(u64, Bytes)>, ClosedSegment) {
        let open = self.catalog.open(segment);
        let (parts, closed) = self.footer_of(segment, open, is_body);
        let start = self.geometry.segment_start(segment);
        let has_room = parts.front().is_some_and(|(at, _)| *at >= start + u64::from(open.end_offset));
        assert!(has_room, "the footer of segment {segment} has the room kept for it");
        (parts, closed)
    }

    /// The footer of a closed segment once more, as it was written, made of the groups that were found in it; `None` if they do not make it.
    ///
    /// The catalog has the checksum of its directory, which has those of the pages. So where a run is missing, or one is too many, they do
    /// not make it, wherever in the segment that is: nobody has to know which groups there should be.
    pub(crate) fn footer_again<'a>(
        &self,
        (segment, lap): (u32, u64),
        groups: impl Iterator<Item = Published<'a>>,
    ) -> Option<WholeFooter> {
        let known = self.catalog.closed(segment).filter(|closed| closed.lap == lap)?;
        let mut open = OpenSegment { lap, ..OpenSegment::default() };
        groups.for_each(|group| open.add(group, self.catalog.keys));
        let trailer_offset = self.geometry.segment_bytes as u32 - BLOCK_BYTES as u32;
        // With what an open has cut, which may stand behind them, they may be more than there is room for.
        if footer_bound_bytes(open.blob_bytes, open.run_count, 0) > u64::from(trailer_offset) {
            return None;
        }
        let (mut parts, closed) = self.footer_of(segment, &open, false);
        // The trailer, of which nothing is asked.
        parts.pop_back();
        let is_same = closed == *known || self.options.planted.is(PlantedBug::FooterOfSomeGroups);
        let parts: Vec<Bytes> = parts.into_iter().map(|(_, part)| part).collect();
        let bytes = Bytes::from(parts.concat());
        let start = trailer_offset - bytes.len() as u32;
        is_same.then_some(WholeFooter { start, directory_offset: closed.directory_offset, bytes })
    }

    /// Pages and directory, part by part, of what is in `open`, and behind them the trailer.
    fn footer_of(
        &self,
        segment: u32,
        open: &OpenSegment,
        is_body: bool,
    ) -> (VecDeque<(u64, Bytes)>, ClosedSegment) {
        let segment_end = self.geometry.segment_bytes as u32;
        let trailer_offset = segment_end - BLOCK_BYTES as u32;
        let keys: Vec<_> = match self.catalog.keys {
            Keys::Once => open.keys.ranges().collect(),
            // Blocks that were written in no order would make a range each.
            Keys::Versioned => coarse_ranges(&joined(open.index.footer_runs())).into_vec(),
        };
        let ranges = coarse_ranges(&keys);
        let inline_keys = (keys.len() <= TRAILER_RANGES_MAX).then(|| keys.clone());
        let runs = open.index.footer_runs();
        let footer = Footer::encode(segment, open.lap, trailer_offset, runs, open.holes.clone(), keys);
        let footer_offset = trailer_offset - footer.bytes.len() as u32;
        let trailer = Trailer {
            chain: self.chain,
            segment,
            lap: open.lap,
            is_body,
            first_seq: open.first_seq,
            // What is lost behind the last of them was in this segment too.
            last_seq: open.holes.last().map_or(open.last_seq, |hole| open.last_seq.max(hole.seqs.end - 1)),
            incarnation: open.incarnation,
            end_offset: open.end_offset,
            directory_offset: footer.directory_offset,
            directory_bytes: footer.directory_bytes,
            directory_checksum: footer.directory_checksum,
            run_count: open.run_count,
            record_count: open.record_count,
            data_bytes: open.data_bytes,
            hole_count: open.holes.len() as u32,
            lost_below: open.lost_below,
            segments: self.catalog.space.count(link_of(segment)),
            keys: inline_keys,
        };
        let start = self.geometry.segment_start(segment);
        let pages = PageBuf::paged(&footer.bytes);
        let mut parts = VecDeque::new();
        let mut at = 0;
        while at < pages.len() {
            let end = (at + BACKGROUND_IO_BYTES).min(pages.len());
            parts.push_back((start + u64::from(footer_offset) + at as u64, pages.slice(at..end)));
            at = end;
        }
        // By itself and last: recovery trusts a trailer without looking at the pages.
        parts.push_back((start + u64::from(trailer_offset), PageBuf::paged(&trailer.encode())));
        let closed = ClosedSegment {
            lap: open.lap,
            directory_offset: footer.directory_offset,
            directory_bytes: footer.directory_bytes,
            directory_checksum: footer.directory_checksum,
            lost_below: open.lost_below,
            record_count: open.record_count,
            data_bytes: open.data_bytes,
            ranges,
        };
        (parts, closed)
    }
}

/// The keys of runs that come in the order of their keys.
fn joined<'a>(runs: impl Iterator<Item = FooterRun<'a>>) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for FooterRun { keys: (start, end), .. } in runs {
        match ranges.last_mut() {
            Some(last) if last.end >= start => last.end = last.end.max(end),
            _ => ranges.push(start..end),
        }
    }
    ranges
}
