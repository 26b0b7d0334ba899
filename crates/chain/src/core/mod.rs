//! The writer: batches in, groups out. A pure state machine: no I/O, no clock, no tasks.
//!
//! ```text
//!   append ─► queue ─► group (as soon as a flight is free) ─► Write ─► done ─► durable, strictly in order ─► catalog
//!                         └ does not fit: roll to the next segment, whose header is already durable
//!   full segment ─► all its groups and its successor's first are durable ─► footer pages ─► trailer ─► closed
//! ```
//!
//! Promises: effects are to be started in order; a ticket becomes durable only when every earlier one is; a batch lies in
//! one group; after the first failed write nothing more is written or acknowledged.

mod admit;
mod body;
mod census;
mod clean;
mod close;
mod form;
mod links;
mod repeat;
mod room;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use ithaca_env::drive::{DriveError, Pieces};

pub(crate) use admit::Sizes;
pub use admit::{Batch, Ticket};
use body::Body;
use clean::Cleaner;
pub(crate) use clean::{Cause, Copies, PassedBy};
use close::Closing;
pub(crate) use links::Leaving;
pub(crate) use repeat::{Control, note_said};

use crate::cache::GroupImage;
use crate::catalog::{Catalog, SegmentState};
use crate::error::ChainError;
use crate::format::GroupFlags;
use crate::limits;
use crate::links::link_of;
use crate::options::{ChainId, ChainOptions, Geometry};
use crate::planted::PlantedBug;
use crate::range_set::RangeSet;

/// While the log is being written to, one of so many segments is made ready of those that are while it is calm.
const READY_BUSY_PART: usize = 4;

/// Which write an effect or a completion is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Io {
    /// The group with this sequence number.
    Group(u64),
    /// The header of the next segment.
    Header(u32),
    /// A part of a footer, or a trailer.
    Footer(u32),
    /// Whatever is written to the cleaner's own segment: one thing at a time.
    Body(u32),
}

/// What the shell does, in order.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Write these bytes durably at this byte of the link; tell [`Core::done`].
    Write { io: Io, link: u32, offset: u64, data: Pieces },
    /// The group is durable: its image may serve reads.
    Cache(GroupImage),
    /// Runs are durable of which their owner is to be told: so many of each ticket, in order.
    Placed { segment: u32, lap: u64, blob: Bytes, starts: Vec<u32>, batches: Vec<(Ticket, usize)> },
    /// Copies are durable in a segment of the cleaner's.
    Copied { segment: u32, lap: u64, blob: Bytes, starts: Vec<u32> },
    /// Tickets became durable, space came free, or the chain failed: wake whoever waits.
    Changed,
}

/// Where the next group goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    pub(crate) segment: u32,
    pub(crate) lap: u64,
    pub(crate) prev_lap: u64,
    pub(crate) offset: u32,
    /// Run heads of formed groups, for the size of the footer.
    pub(crate) blob_bytes: u64,
    pub(crate) runs: u64,
    pub(crate) holes: u64,
    /// No group was formed here yet: the first one is a checkpoint.
    pub(crate) is_empty: bool,
}

/// The segment to go on in.
#[derive(Clone, Copy, Debug)]
struct Next {
    segment: u32,
    lap: u64,
    header_durable: bool,
}

struct Queued {
    ticket: Ticket,
    batch: Batch,
    sizes: Sizes,
    cost: u64,
    /// Somebody appended it. Copies and what vouches for them are the chain's own: without them all is where it was.
    is_asked_for: bool,
}

/// A group that is being written.
struct Flight {
    seq: u64,
    last_ticket: u64,
    segment: u32,
    lap: u64,
    offset: u32,
    end_offset: u32,
    image: Pieces,
    blob: Bytes,
    starts: Vec<u32>,
    data_bytes: u64,
    released: Vec<std::ops::Range<u64>>,
    /// How many runs each of its batches has; empty if no owner is told of them.
    batches: Vec<(Ticket, usize)>,
    /// What its head says of the groups before it.
    vouches_for: u64,
    is_done: bool,
}

/// Where the writer goes on after an open.
pub(crate) struct Resume {
    pub(crate) cursor: Option<Cursor>,
    /// Full open segments, oldest first, with the last group of each.
    pub(crate) unclosed: Vec<(u32, u64)>,
    pub(crate) next_seq: u64,
    pub(crate) next_lap: u64,
    pub(crate) incarnation: u64,
    pub(crate) state: Option<Bytes>,
    /// What the last groups before it say, in order, without gaps.
    pub(crate) said: VecDeque<Control>,
}

impl Resume {
    /// Of a new chain whose owner has this state.
    pub(crate) fn new(state: Option<Bytes>) -> Self {
        Self {
            cursor: None,
            unclosed: Vec::new(),
            next_seq: 1,
            next_lap: 1,
            incarnation: 1,
            state,
            said: VecDeque::new(),
        }
    }
}

/// Counters since the chain was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Groups that became durable.
    pub groups: u64,
    /// Bytes of groups written, with heads and padding.
    pub group_bytes: u64,
    /// Bytes of records' data written.
    pub data_bytes: u64,
    /// Batches that became durable.
    pub batches: u64,
    /// Segments closed.
    pub segments_closed: u64,
    /// Bytes of footers and trailers written.
    pub footer_bytes: u64,
    /// Segments that were cleaned: their records that are not released were moved.
    pub segments_cleaned: u64,
    /// Records that were moved.
    pub records_moved: u64,
    /// Their data, in bytes.
    pub moved_bytes: u64,
}

/// The writer. See the module.
pub(crate) struct Core {
    pub(crate) options: ChainOptions,
    pub(crate) geometry: Geometry,
    pub(crate) catalog: Catalog,
    pub(crate) counters: Counters,
    chain: ChainId,
    queue: VecDeque<Queued>,
    queued_bytes: u64,
    queued_cost: u64,
    queued_releases: usize,
    flights: VecDeque<Flight>,
    cursor: Option<Cursor>,
    next: Option<Next>,
    closing: VecDeque<Closing>,
    /// The group to write by itself: the fence after an open, the mark of a clean close.
    marker: Option<GroupFlags>,
    /// Until the fence is durable nothing else is written: a recovery that follows a crash in between starts afresh.
    fence_seq: u64,
    next_seq: u64,
    durable_seq: u64,
    next_lap: u64,
    incarnation: u64,
    /// Data was or would soon have been refused, and there was not enough room again since.
    is_full: bool,
    next_ticket: u64,
    formed_ticket: u64,
    durable_ticket: u64,
    /// Released keys of all formed groups; the catalog has those of the durable ones.
    formed_released: RangeSet,
    formed_state: Option<Bytes>,
    /// What the last formed groups say: the next ones repeat it.
    said: VecDeque<Control>,
    /// Every key of a record or a release in a formed group is below.
    formed_key_end: u64,
    reclaim_due: bool,
    /// Segments to be made ready while the log is calm: one more for each that it has begun.
    ready_wanted: usize,
    /// Every group up to this one is durable, and a durable group says so.
    vouched_seq: u64,
    /// A segment was closed that no census names yet, or freed that one does, or a census is asked for.
    census_due: bool,
    /// The group with the newest census.
    census_seq: u64,
    /// For each link the newest group whose census names it; what was before the open may name any.
    named_seq: [u64; limits::LINKS_MAX],
    /// Segments that were closed, and cleaned, when that was last looked at.
    counted: (u64, u64),
    cleaner: Cleaner,
    /// The cleaner's own segment.
    body: Option<Body>,
    /// Links that cannot become larger; of some it may change.
    grown_out: BTreeMap<u32, GrowthRefused>,
    /// So many segments a link is to grow by next that had no room for more; twice as many after each growth.
    grow_less: BTreeMap<u32, u32>,
    stopped: Option<ChainError>,
}

/// Why a link did not grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrowthRefused {
    /// It never will.
    Fixed,
    /// What holds it has no room now.
    NoRoom,
}

impl Core {
    pub(crate) fn new(
        options: ChainOptions,
        geometry: Geometry,
        chain: ChainId,
        catalog: Catalog,
        resume: Resume,
    ) -> Self {
        let formed_released = catalog.released.clone();
        let formed_key_end = catalog.highest_key.map_or(0, |highest| highest + 1).max(catalog.lost_below());
        let ready_wanted = options.segments_ready;
        Self {
            options,
            geometry,
            catalog,
            counters: Counters::default(),
            chain,
            queue: VecDeque::new(),
            queued_bytes: 0,
            queued_cost: 0,
            queued_releases: 0,
            flights: VecDeque::new(),
            cursor: resume.cursor,
            next: None,
            closing: resume.unclosed.into_iter().map(|(segment, last)| Closing::new(segment, last)).collect(),
            marker: Some(GroupFlags::OPENED),
            fence_seq: resume.next_seq,
            next_seq: resume.next_seq,
            durable_seq: resume.next_seq - 1,
            next_lap: resume.next_lap,
            incarnation: resume.incarnation,
            is_full: false,
            next_ticket: 1,
            formed_ticket: 0,
            durable_ticket: 0,
            formed_released,
            formed_state: resume.state,
            said: resume.said,
            formed_key_end,
            reclaim_due: true,
            ready_wanted,
            vouched_seq: 0,
            census_due: true,
            census_seq: 0,
            named_seq: [resume.next_seq - 1; limits::LINKS_MAX],
            counted: (0, 0),
            cleaner: Cleaner::new(),
            body: None,
            grown_out: BTreeMap::new(),
            grow_less: BTreeMap::new(),
            stopped: None,
        }
    }

    /// Forms and sends out what can be. To be called at the end of a turn in which something was appended.
    pub(crate) fn turn(&mut self, out: &mut Vec<Effect>) {
        if self.stopped.is_some() {
            return;
        }
        // Other segments than those of the log are closed too. One that was freed is named no more as soon as may be: who rescues what is
        // older than a lost group has to know that it was free before.
        let Counters { segments_closed, segments_cleaned, .. } = self.counters;
        if self.counted != (segments_closed, segments_cleaned) {
            self.counted = (segments_closed, segments_cleaned);
            self.census_due = true;
        }
        self.prepare_next(out);
        self.note_others();
        self.form(out);
        self.close_segments(out);
    }

    /// A write was answered.
    pub(crate) fn done(&mut self, io: Io, result: Result<(), DriveError>, out: &mut Vec<Effect>) {
        if self.stopped.is_some() {
            return;
        }
        if let Err(first) = result {
            self.stop(ChainError::Failed { first }, out);
            return;
        }
        match io {
            Io::Group(seq) => self.group_done(seq, out),
            Io::Header(segment) => {
                let next = self.next.as_mut().filter(|next| next.segment == segment);
                next.expect("one header at a time").header_durable = true;
                if self.drop_leaving_next() {
                    out.push(Effect::Changed);
                }
            }
            Io::Footer(segment) => self.footer_done(segment, out),
            Io::Body(_) => self.body_done(out),
        }
        self.turn(out);
    }

    fn group_done(&mut self, seq: u64, out: &mut Vec<Effect>) {
        let flight = self.flights.iter_mut().find(|flight| flight.seq == seq);
        flight.expect("it was in flight").is_done = true;
        if self.options.planted.is(PlantedBug::AckOutOfOrder)
            && let Some(flight) = self.flights.iter().find(|flight| flight.seq == seq)
        {
            self.durable_ticket = self.durable_ticket.max(flight.last_ticket);
            out.push(Effect::Changed);
        }
        while self.flights.front().is_some_and(|flight| flight.is_done) {
            let flight = self.flights.pop_front().expect("there is one");
            self.publish(flight, out);
        }
    }

    fn publish(&mut self, flight: Flight, out: &mut Vec<Effect>) {
        assert_eq!(flight.seq, self.durable_seq + 1, "groups become durable in order");
        self.durable_seq = flight.seq;
        self.counters.groups += 1;
        self.counters.group_bytes += flight.image.len() as u64;
        self.counters.data_bytes += flight.data_bytes;
        self.counters.batches += flight.last_ticket.saturating_sub(self.durable_ticket);
        self.durable_ticket = self.durable_ticket.max(flight.last_ticket);
        self.copies_done();
        self.vouched_seq = self.vouched_seq.max(flight.vouches_for);
        self.reclaim_due |= !flight.released.is_empty();
        self.cleaner.is_due |= !flight.released.is_empty();
        if !flight.batches.is_empty() {
            out.push(Effect::Placed {
                segment: flight.segment,
                lap: flight.lap,
                blob: flight.blob.clone(),
                starts: flight.starts.clone(),
                batches: flight.batches,
            });
        }
        self.catalog.publish(crate::catalog::Published {
            segment: flight.segment,
            seq: flight.seq,
            incarnation: self.incarnation,
            end_offset: flight.end_offset,
            blob: flight.blob,
            starts: &flight.starts,
            data_bytes: flight.data_bytes,
            released: &flight.released,
        });
        out.push(Effect::Cache(GroupImage {
            segment: flight.segment,
            lap: flight.lap,
            offset: flight.offset,
            image: flight.image,
            written: Vec::new(),
        }));
        out.push(Effect::Changed);
    }

    /// Stops the chain for good.
    pub(crate) fn stop(&mut self, why: ChainError, out: &mut Vec<Effect>) {
        if self.stopped.is_none() {
            self.stopped = Some(why);
            self.queue.clear();
            out.push(Effect::Changed);
        }
    }

    /// Why the chain has stopped, if it has.
    pub(crate) fn stopped(&self) -> Option<&ChainError> {
        self.stopped.as_ref()
    }

    /// Everything up to this ticket is durable.
    pub(crate) fn durable(&self) -> Ticket {
        Ticket(self.durable_ticket)
    }

    /// Writes a last group that says that everything before it is durable, once all of it is.
    pub(crate) fn close(&mut self) {
        self.marker = Some(GroupFlags::CLOSED);
    }

    /// Whether nothing waits to be written and nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.flights.is_empty() && self.marker.is_none()
    }

    /// Whether the mark of an open or of a close waits for room that nothing under way can give.
    pub(crate) fn is_stuck(&self) -> bool {
        let nothing_under_way = self.flights.is_empty() && self.next.is_none() && self.closing.is_empty();
        let is_full = self.catalog.space.free() == (0, 0) && self.catalog.space.preparing() == 0;
        self.marker.is_some() && nothing_under_way && is_full && !self.can_grow()
    }

    /// Whether batches wait that somebody appended and no group was formed of.
    pub(crate) fn has_unwritten(&self) -> bool {
        self.queue.iter().any(|queued| queued.is_asked_for)
    }

    /// Whether groups are being written: background work waits meanwhile.
    pub(crate) fn is_flying(&self) -> bool {
        !self.flights.is_empty()
    }

    /// Whether the fence of this open is durable, so that appends may begin.
    pub(crate) fn is_fenced(&self) -> bool {
        self.durable_seq >= self.fence_seq
    }

    /// A raw segment to be written over, if more should be ready where the log goes on. A calm log gets more ready than one that is being
    /// written to, and one whose links do not allocate none at all: there a raw segment is as quick. It is not used until
    /// [`Core::prepared`].
    pub(crate) fn take_raw_segment(
        &mut self,
        is_calm: bool,
        allocates: impl FnOnce(u32) -> bool,
    ) -> Option<u32> {
        self.reclaim_if_short();
        let raw = self.raw_segment(is_calm, allocates)?;
        self.catalog.set(raw, SegmentState::Preparing);
        Some(raw)
    }

    /// The raw segment that is to be written over next, if any is.
    fn raw_segment(&self, is_calm: bool, allocates: impl FnOnce(u32) -> bool) -> Option<u32> {
        if self.stopped.is_some() {
            return None;
        }
        let space = &self.catalog.space;
        let link = self.links_ahead().find(|&link| space.free_on(link) != (0, 0))?;
        let (ready, raw) = space.free_on(link);
        // A segment that is being written over counts for nothing: where few are free, no more than asked for.
        let wanted = match (ready + raw > self.plenty(), is_calm) {
            (true, true) => self.ready_wanted,
            (true, false) => self.options.segments_ready.max(self.ready_wanted / READY_BUSY_PART),
            (false, _) => self.options.segments_ready,
        };
        if ready >= wanted || !allocates(link) { None } else { space.first_raw(link) }
    }

    /// Whether there is a segment to be written over when the log is calm.
    pub(crate) fn has_raw_for_calm(&self, allocates: impl FnOnce(u32) -> bool) -> bool {
        self.raw_segment(true, allocates).is_some()
    }

    /// The number of the next group.
    pub(crate) fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// The links in the order in which they take the next segments.
    fn links_ahead(&self) -> impl Iterator<Item = u32> {
        self.options.placement.order(self.catalog.space.links(), self.tail_link())
    }

    /// The link that the log is being written to; none before a new chain's first group.
    pub(crate) fn tail_link(&self) -> Option<u32> {
        self.cursor.map(|cursor| link_of(cursor.segment))
    }

    /// The segment was written over, durably; nothing is started yet.
    pub(crate) fn set_ready(&mut self, segment: u32) {
        self.catalog.set(segment, SegmentState::Ready);
    }

    /// The segment was written over, durably.
    pub(crate) fn prepared(&mut self, segment: u32, out: &mut Vec<Effect>) {
        self.set_ready(segment);
        self.turn(out);
        if !self.catalog.space.is_open(link_of(segment)) {
            out.push(Effect::Changed);
        }
    }

    /// A segment of [`Core::take_raw_segment`] is not written over any more, and used as it is. Nothing is under way to it.
    pub(crate) fn give_back_raw(&mut self, segment: u32, out: &mut Vec<Effect>) {
        self.catalog.set(segment, SegmentState::Raw);
        self.turn(out);
        out.push(Effect::Changed);
    }

    /// Which link should grow now and to how many segments, if one should.
    /// With `again`, links are asked that had no room for it before.
    pub(crate) fn segments_to_grow_to(&mut self, again: bool) -> Option<(u32, u32)> {
        self.reclaim_if_short();
        if self.stopped.is_some() {
            return None;
        }
        let wanted = self.plenty();
        let mut free = 0;
        for link in self.links_ahead() {
            let (ready, raw) = self.catalog.space.free_on(link);
            free += ready + raw;
            if free >= wanted {
                return None;
            }
            let had_no_room = self.grown_out.get(&link) == Some(&GrowthRefused::NoRoom);
            if self.can_link_grow(link) || again && had_no_room && self.may_link_grow(link) {
                let most = self.geometry.segments_in(self.options.capacity_bytes);
                let step = self.grow_less.get(&link).copied().unwrap_or(self.grow_step());
                return Some((link, self.catalog.space.count(link).saturating_add(step).min(most)));
            }
        }
        None
    }

    /// Segments by which a link grows at a time where there is room.
    fn grow_step(&self) -> u32 {
        let step = (self.options.grow_bytes / self.geometry.segment_bytes).max(1);
        u32::try_from(step).unwrap_or(u32::MAX)
    }

    /// The link has grown to so many segments, as it was asked to, or not. One that had no room is asked for half as much next, and has
    /// none when there is none for one segment.
    pub(crate) fn grown(
        &mut self,
        link: u32,
        segments: u32,
        grown: Result<(), GrowthRefused>,
        out: &mut Vec<Effect>,
    ) {
        let asked = segments - self.catalog.space.count(link);
        match grown {
            Err(GrowthRefused::NoRoom) if asked > 1 => {
                self.grow_less.insert(link, asked / 2);
            }
            Err(refused) => {
                self.grown_out.insert(link, refused);
            }
            Ok(()) => {
                self.grown_out.remove(&link);
                self.catalog.space.grow(link, segments);
                let step = self.grow_step();
                if let Some(less) = self.grow_less.get_mut(&link) {
                    *less = less.saturating_mul(2);
                }
                self.grow_less.retain(|_, less| *less < step);
            }
        }
        self.turn(out);
        out.push(Effect::Changed);
    }

    /// Whether a link had no room to grow and there may be some later. Until there is, it counts as one that cannot grow.
    pub(crate) fn may_have_room_later(&self) -> bool {
        self.grown_out.values().any(|refused| *refused == GrowthRefused::NoRoom)
    }

    fn can_link_grow(&self, link: u32) -> bool {
        !self.grown_out.contains_key(&link) && self.may_link_grow(link)
    }

    /// Whether nothing but its drive keeps a link from becoming larger.
    fn may_link_grow(&self, link: u32) -> bool {
        let most = self.geometry.segments_in(self.options.capacity_bytes);
        self.catalog.space.is_open(link) && self.catalog.space.count(link) < most
    }

    fn can_grow(&self) -> bool {
        self.catalog.space.links().iter().any(|&link| self.can_link_grow(link))
    }

    /// With more free segments than this, nothing is done for having more.
    fn plenty(&self) -> usize {
        self.options.segments_ready + self.options.reserve_segments + 2
    }

    /// Frees dead segments when few are free. Looking at every segment at each release would cost more than it gives; who wants to know
    /// what is free [reclaims](Self::reclaim) first.
    fn reclaim_if_short(&mut self) {
        let (ready, raw) = self.catalog.space.free();
        if ready + raw <= self.plenty() {
            self.reclaim();
        }
    }

    /// Frees dead segments, if something was released since the last time.
    pub(crate) fn reclaim(&mut self) {
        if !std::mem::take(&mut self.reclaim_due) {
            return;
        }
        let early =
            self.options.planted.is(PlantedBug::RecycleBeforeDurable).then(|| self.formed_released.clone());
        self.catalog.reclaim(early.as_ref());
    }

    /// Sequence number of the last durable group.
    pub(crate) fn durable_seq(&self) -> u64 {
        self.durable_seq
    }

    /// Bytes that wait for a group.
    pub(crate) fn queued_bytes(&self) -> u64 {
        self.queued_bytes
    }
}

const _: () = assert!(limits::FLIGHTS_MAX >= 2);
