//! Forming groups, and rolling to the next segment.

use std::ops::Range;

use ithaca_env::drive::PageBuf;
use ithaca_env::limits::BLOCK_BYTES;

use super::{Closing, Control, Core, Cursor, Effect, Flight, Io, Next, Queued, Sizes, note_said};
use crate::catalog::{OpenSegment, SegmentState};
use crate::format::{
    GroupFlags, GroupIdentity, GroupSource, SegmentHeader, SegmentKind, SourceRun, encode_group_with,
    footer_bound_bytes,
};
use crate::limits::SEGMENTS_READY_MAX;
use crate::links::link_of;
use crate::owner::Keys;
use crate::planted::PlantedBug;
use crate::range_set::RangeSet;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// The least that goes out before the end of a turn: the blocks of a group that hold no data are a small part of it.
const EARLY_MIN_BYTES: u64 = 64 << 10;

impl Core {
    /// Sends out groups while a flight is free and something is queued. A group never waits to become larger.
    pub(super) fn form(&mut self, out: &mut Vec<Effect>) {
        while self.flights.len() < self.options.flights {
            let is_fencing = self.next_seq > self.fence_seq && !self.is_fenced();
            let flags = match self.marker {
                Some(GroupFlags::CLOSED) if !self.queue.is_empty() || !self.flights.is_empty() => {
                    GroupFlags::default()
                }
                Some(flags) => flags,
                None => GroupFlags::default(),
            };
            let is_marker = flags != GroupFlags::default();
            if is_fencing || (self.queue.is_empty() && !is_marker) {
                return;
            }
            let batches = match self.cursor {
                None => None,
                // An empty segment takes at least one group: none is left without a checkpoint.
                Some(cursor) if !cursor.is_empty && !self.catalog.space.is_open(link_of(cursor.segment)) => {
                    None
                }
                Some(cursor) if is_marker => {
                    let alone = Sizes::default();
                    self.fits(&cursor, &alone).then_some(0)
                }
                Some(cursor) => self.pick(&cursor),
            };
            match batches {
                Some(batches) => self.launch(batches, flags, out),
                None if self.roll(out) => {}
                None => return,
            }
        }
    }

    /// Whether so much waits that its group should not wait for the end of the turn: a quarter of the largest, and as much again for each
    /// group that is under way, so that a drive that falls behind is given larger ones; and whether a flight is free.
    pub(crate) fn is_group_due(&self) -> bool {
        let due_bytes = (self.options.group_max_bytes as u64 / 4).max(EARLY_MIN_BYTES);
        let under_way = self.flights.len();
        under_way < self.options.flights && self.queued_bytes >= due_bytes * (1 + under_way as u64)
    }

    /// How many queued batches go into the next group; `None` if the segment has no room for the first.
    fn pick(&self, cursor: &Cursor) -> Option<usize> {
        let mut sum = Sizes::default();
        let mut batches = 0;
        for queued in &self.queue {
            let with = sum.plus(&queued.sizes);
            let is_over = batches > 0 && with.group_bytes() > self.options.group_max_bytes as u64;
            if is_over || !self.fits(cursor, &with) {
                break;
            }
            sum = with;
            batches += 1;
        }
        (batches > 0).then_some(batches)
    }

    /// Whether a group of this content fits into the segment, with the footer that it will then need.
    pub(super) fn fits(&self, cursor: &Cursor, sizes: &Sizes) -> bool {
        let sizes = if cursor.is_empty { self.with_checkpoint(sizes) } else { *sizes };
        let footer =
            footer_bound_bytes(cursor.blob_bytes + sizes.blob, cursor.runs + sizes.runs, cursor.holes);
        u64::from(cursor.offset) + sizes.group_bytes() + footer + BLOCK <= self.geometry.segment_bytes
    }

    fn with_checkpoint(&self, sizes: &Sizes) -> Sizes {
        Sizes {
            releases: sizes.releases + self.formed_released.range_count() as u64,
            state: sizes.state.max(self.formed_state.as_ref().map_or(0, |state| state.len() as u64)),
            census: self.geometry.census_max_ranges as u64,
            ..*sizes
        }
    }

    /// Bytes of batches that certainly fit into the segment being filled.
    pub(super) fn cursor_free_bytes(&self) -> u64 {
        let Some(cursor) = self.cursor else { return 0 };
        let footer = footer_bound_bytes(cursor.blob_bytes, cursor.runs, cursor.holes);
        let used = u64::from(cursor.offset) + footer + BLOCK + self.geometry.batch_max_bytes;
        self.geometry.segment_bytes.saturating_sub(used)
    }

    /// Forms a group of the first `batches` batches and sends it out.
    fn launch(&mut self, batches: usize, flags: GroupFlags, out: &mut Vec<Effect>) {
        let cursor = self.cursor.expect("there is room in it");
        let taken = self.take(batches);
        if flags != GroupFlags::default() {
            self.marker = None;
        }
        let content = taken.iter().fold(Sizes::default(), |sum, queued| sum.plus(&queued.sizes));
        let census = self.census(&cursor, &content, flags);
        let content = Sizes { census: census.as_ref().map_or(0, |it| it.len() as u64), ..content };
        let (flags, control) = self.say(&cursor, &content, said_by(&taken), flags);
        let identity = GroupIdentity {
            flags,
            segment: cursor.segment,
            chain: self.chain,
            lap: cursor.lap,
            seq: self.next_seq,
            durable_seq: self.durable_seq,
            incarnation: self.incarnation,
            prev_lap: cursor.prev_lap,
            offset: cursor.offset,
            segments: self.catalog.space.count(link_of(cursor.segment)),
            key_end: self.formed_key_end,
        };
        let runs: Vec<SourceRun<'_>> = taken.iter().flat_map(runs_of).collect();
        let released: Vec<Range<u64>> = control.released.ranges().collect();
        let source =
            GroupSource { identity, released: &released, state: control.state.as_ref(), runs: &runs };
        let encoded = encode_group_with(&source, census.as_ref());
        let end_offset = cursor.offset + encoded.layout.total_bytes() as u32;
        let data_bytes = (encoded.layout.packed_bytes + encoded.layout.aligned_bytes) as u64;
        self.cursor = Some(Cursor {
            offset: end_offset,
            blob_bytes: cursor.blob_bytes + encoded.blob.len() as u64,
            runs: cursor.runs + runs.len() as u64,
            is_empty: false,
            ..cursor
        });
        self.next_seq += 1;
        out.push(Effect::Write {
            io: Io::Group(identity.seq),
            link: link_of(cursor.segment),
            offset: self.geometry.segment_start(cursor.segment) + u64::from(cursor.offset),
            data: encoded.image.clone(),
        });
        let batches = match self.catalog.keys {
            Keys::Once => Vec::new(),
            Keys::Versioned => taken.iter().map(|it| (it.ticket, it.batch.runs.len())).collect(),
        };
        self.flights.push_back(Flight {
            seq: identity.seq,
            last_ticket: self.formed_ticket,
            segment: cursor.segment,
            lap: cursor.lap,
            offset: cursor.offset,
            end_offset,
            image: encoded.image,
            blob: encoded.blob,
            starts: encoded.starts,
            data_bytes,
            released: taken.into_iter().flat_map(|queued| queued.batch.release).collect(),
            batches,
            vouches_for: identity.durable_seq,
            is_done: false,
        });
        self.reclaim_due |= self.options.planted.is(PlantedBug::RecycleBeforeDurable);
        if self.options.planted.is(PlantedBug::AckBeforeDurable) {
            self.durable_ticket = self.formed_ticket;
            out.push(Effect::Changed);
        }
    }

    /// Takes batches from the queue: from here on their releases and states are those of a formed group.
    fn take(&mut self, batches: usize) -> Vec<Queued> {
        let taken: Vec<Queued> = self.queue.drain(..batches).collect();
        for queued in &taken {
            self.queued_bytes -= queued.sizes.group_bytes();
            self.queued_cost -= queued.cost;
            self.queued_releases -= queued.batch.release.len();
            for range in &queued.batch.release {
                self.formed_released.insert(range.clone());
                self.formed_key_end = self.formed_key_end.max(range.end);
            }
            for run in &queued.batch.runs {
                self.formed_key_end = self.formed_key_end.max(run.keys().end);
            }
            if let Some(state) = &queued.batch.state {
                self.formed_state = Some(state.clone());
            }
        }
        self.formed_ticket += batches as u64;
        taken
    }

    /// What a group says whose batches say `own`, and with which flags: the first one of a segment all that counts, others what those right
    /// before them say too. `content` is what else is in it.
    fn say(
        &mut self,
        cursor: &Cursor,
        content: &Sizes,
        own: Control,
        flags: GroupFlags,
    ) -> (GroupFlags, Control) {
        let said = if cursor.is_empty {
            (flags.with(GroupFlags::CHECKPOINT), self.complete(cursor))
        } else {
            let (repeated, control) = self.repeat(cursor, content, &own);
            (flags.repeating(repeated), control)
        };
        note_said(&mut self.said, own);
        said
    }

    /// What the first group of a segment says: all that counts.
    fn complete(&self, cursor: &Cursor) -> Control {
        let forgets = self.options.planted.is(PlantedBug::ReleaseForgottenAtRoll) && cursor.prev_lap != 0;
        let released = if forgets { RangeSet::new() } else { self.formed_released.clone() };
        Control { released, state: self.formed_state.clone() }
    }

    /// Goes on in the next segment, if its header is durable.
    fn roll(&mut self, out: &mut Vec<Effect>) -> bool {
        self.prepare_next(out);
        let Some(Next { segment, lap, header_durable: true }) = self.next else { return false };
        self.next = None;
        let before = self.cursor.replace(Cursor {
            segment,
            lap,
            prev_lap: self.cursor.map_or(0, |cursor| cursor.lap),
            offset: BLOCK_BYTES as u32,
            blob_bytes: 0,
            runs: 0,
            holes: 0,
            is_empty: true,
        });
        if let Some(before) = before {
            assert!(!before.is_empty, "every batch and every marker fits into an empty segment");
            self.closing.push_back(Closing::new(before.segment, self.next_seq - 1));
        }
        let open = OpenSegment { lap, end_offset: BLOCK_BYTES as u32, ..OpenSegment::default() };
        self.catalog.open_segment(segment, open);
        self.prepare_next(out);
        true
    }

    /// Keeps one more segment at hand, with its header durable, so that a roll does not wait.
    pub(super) fn prepare_next(&mut self, out: &mut Vec<Effect>) {
        if self.next.is_some() {
            return;
        }
        self.reclaim_if_short();
        let space = &self.catalog.space;
        let Some(segment) = space.find_free(self.options.placement, self.tail_link()) else { return };
        // What the log took once it may take again, faster than segments are written over.
        if (1..SEGMENTS_READY_MAX).contains(&self.ready_wanted) {
            self.ready_wanted += 1;
        }
        let lap = self.next_lap;
        self.next_lap += 1;
        self.catalog.set(segment, SegmentState::Next);
        self.next = Some(Next { segment, lap, header_durable: false });
        let header = SegmentHeader { chain: self.chain, segment, kind: SegmentKind::Open, lap };
        out.push(Effect::Write {
            io: Io::Header(segment),
            link: link_of(segment),
            offset: self.geometry.segment_start(segment),
            data: PageBuf::paged(&header.encode()).into(),
        });
    }
}

/// The runs of a batch for a group whose image stays in memory. The cleaner's are copied: each is a part of what was read with it, much of
/// which nobody needs.
fn runs_of(queued: &Queued) -> impl Iterator<Item = SourceRun<'_>> {
    queued.batch.runs.iter().map(|run| SourceRun { run, in_place: queued.is_asked_for })
}

/// What batches say besides their records.
fn said_by(taken: &[Queued]) -> Control {
    // Through a set: ranges in a group are sorted and disjoint, those of an owner need not be.
    let released = taken.iter().flat_map(|queued| queued.batch.release.iter().cloned()).collect();
    let state = taken.iter().rev().find_map(|queued| queued.batch.state.clone());
    Control { released, state }
}
