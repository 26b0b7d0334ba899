//! Cleaning: when it is due, which segment is next, whether what is left of it fits, and when it is free.
//!
//! ```text
//!   few segments free ─► victim ─► its live records fit ─► copies ─► durable ─► a group vouches for them ─► freed
//!                          └ damaged, or nothing to gain: passed by
//! ```
//!
//! It reads nothing: the shell brings what the victim holds. docs/protocol/cleaning.md has the steps and why they are safe.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use ithaca_env::limits::BLOCK_BYTES;

use super::{Batch, Core, Sizes, Ticket};
use crate::catalog::{ClosedSegment, Located, SegmentState};
use crate::error::{AppendError, Damage, DamageKind};
use crate::format::RunHead;
use crate::limits::{
    CLEAN_AGAIN_PART, CLEAN_GAIN_MIN, CLEAN_PACK_MIN, CLEAN_WINDOW_MAX_BYTES, CLEAN_WINDOW_MIN_BYTES,
};
use crate::links::link_of;
use crate::owner::Keys;
use crate::planted::PlantedBug;
use crate::run::Run;
use crate::victims::{Candidate, Cleaning};

/// Why a segment is not cleaned for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PassedBy {
    /// It has holes, or something in it that is needed does not match its checksum: it keeps its damage.
    Damaged,
    /// A read of it failed, which may pass. For the cleaner it is as damaged.
    Unread,
    /// Too little of it is released: so many records are live.
    NoGain { live: u64 },
    /// What is left of it does not fit into what is free.
    NoRoom,
    /// Its owner still needs records where they are.
    Kept,
}

impl PassedBy {
    /// Whether it is passed by because something of it could not be read or is damaged.
    pub(crate) fn is_unreadable(self) -> bool {
        matches!(self, Self::Damaged | Self::Unread)
    }
}

/// The segment that is being cleaned.
#[derive(Debug)]
struct Victim {
    segment: u32,
    lap: u64,
    /// What its records may still take at the tail.
    left_bytes: u64,
    last_copy: Ticket,
}

/// Why a segment is cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Few segments are free.
    Space,
    /// The owner asked for it: it need not give room, and does not rest.
    Asked,
    /// Its footer is lost. It need not give room; there is no hurry.
    Footer,
    /// Its link leaves the chain: nothing may stay, the copies go to the tail, and a chain that closes waits for it.
    Leaving,
}

/// What the core knows of cleaning.
#[derive(Debug)]
pub(crate) struct Cleaner {
    /// Something has happened since nothing was found to clean.
    pub(super) is_due: bool,
    /// Fewer segments are free than should be.
    is_short: bool,
    victim: Option<Victim>,
    /// Victims whose records are copied and that are not free yet; those with copies in the open body segment wait for its end.
    /// Number and lap.
    copied: Vec<(u32, u64)>,
    /// The newest copy of any of them.
    last_copied: Ticket,
    /// By lap, with when it is looked at again: at so many dead records, or with more than so many bytes free (`NoRoom`).
    passed: BTreeMap<u64, (PassedBy, u64)>,
    /// Records of each segment that their owner does not need, by lap, if keys are versioned.
    garbage: BTreeMap<u64, u64>,
    /// Copies on their way to the tail, with what each batch takes.
    under_way: VecDeque<(Ticket, u64)>,
    /// The most that others had under way since the cleaner last asked.
    others_peak_bytes: u64,
    /// Data found no room, and none has found any since.
    pub(super) is_awaited: bool,
}

impl Cleaner {
    pub(super) fn new() -> Self {
        Self {
            is_due: true,
            is_short: false,
            victim: None,
            copied: Vec::new(),
            last_copied: Ticket(0),
            passed: BTreeMap::new(),
            garbage: BTreeMap::new(),
            under_way: VecDeque::new(),
            others_peak_bytes: 0,
            is_awaited: false,
        }
    }

    /// Bytes that the present victim's records may still take at the tail.
    pub(super) fn left_bytes(&self) -> u64 {
        self.victim.as_ref().map_or(0, |victim| victim.left_bytes)
    }
}

/// Adds up what runs take that are moved in batches.
pub(crate) struct Copies {
    sizes: Sizes,
    done_bytes: u64,
    max_bytes: u64,
}

impl Copies {
    /// Nothing yet, of batches that take so many bytes at the most unless one run is larger.
    pub(crate) fn of(max_bytes: u64) -> Self {
        Self { sizes: Sizes::default(), done_bytes: 0, max_bytes }
    }

    /// Whether the present batch has to be written before this run is added, because it would be too large.
    pub(crate) fn is_full_for(&self, run: &RunHead) -> bool {
        self.sizes.runs > 0 && self.sizes.plus(&Sizes::of_head(run)).cost() > self.max_bytes
    }

    /// Adds a run to the present batch, or to the next one if it is full.
    pub(crate) fn add(&mut self, run: &RunHead) {
        if self.is_full_for(run) {
            self.finish();
        }
        self.sizes = self.sizes.plus(&Sizes::of_head(run));
    }

    /// Begins the next batch.
    pub(crate) fn finish(&mut self) {
        if self.sizes.runs > 0 {
            self.done_bytes += std::mem::take(&mut self.sizes).cost();
        }
    }

    /// What all batches may take.
    pub(crate) fn total_bytes(mut self) -> u64 {
        self.finish();
        self.done_bytes
    }
}

impl Core {
    /// Whether a segment should be cleaned now.
    pub(crate) fn is_cleaning_due(&mut self) -> bool {
        if self.options.cleaning == Cleaning::Off || self.stopped.is_some() || !self.is_fenced() {
            return false;
        }
        let (free, all) = self.room();
        let percent = |of: u32| all * of as usize / 100;
        let start = self.clean_start_segments(all);
        let stop = percent(self.options.clean_stop_free_percent).max(start + 1);
        self.cleaner.is_short = free < if self.cleaner.is_short { stop } else { start };
        self.cleaner.is_short && self.cleaner.is_due
    }

    /// Whether a segment is being cleaned, or given back.
    pub(crate) fn is_cleaning(&self) -> bool {
        self.cleaner.victim.is_some() || (self.body.is_none() && !self.cleaner.copied.is_empty())
    }

    /// Whether copied victims will give room. Closing the body segment takes as much as one of them gives.
    pub(crate) fn is_room_coming(&self) -> bool {
        self.cleaner.copied.len() > usize::from(self.body.is_some())
    }

    /// Whether a segment is being cleaned, or one may be found that gives room.
    pub(super) fn may_cleaning_give_room(&self) -> bool {
        self.cleaner.victim.is_some() || self.is_room_coming() || self.cleaner.is_due
    }

    /// Whether cleaning has room on its way.
    pub(super) fn is_cleaning_active(&self) -> bool {
        self.cleaner.victim.is_some()
            || self.is_room_coming()
            || (self.cleaner.is_short && self.cleaner.is_due)
    }

    /// Whether cleaning must not rest: hardly any segments are free, or appends wait for room.
    pub(crate) fn is_cleaning_urgent(&self) -> bool {
        self.cleaner.is_awaited || self.room().0 <= self.options.reserve_segments + 1
    }

    /// Segments that are free or that files can still grow by, and all there can be.
    pub(super) fn room(&self) -> (usize, usize) {
        let space = &self.catalog.space;
        let (ready, raw) = space.free();
        let (mut free, mut all) = (ready + raw + usize::from(self.next.is_some()), 0);
        let most = self.geometry.segments_in(self.options.capacity_bytes);
        for &link in space.links() {
            let count = space.count(link);
            let grown = if self.can_link_grow(link) { most.max(count) } else { count };
            free += (grown - count) as usize;
            all += grown as usize;
        }
        (free, all)
    }

    /// The next segment to clean and its lap. `None` if none gives room; then nothing is due until something is released.
    pub(crate) fn choose_victim(&mut self) -> Option<(u32, u64)> {
        self.reclaim_if_short();
        let laps: BTreeSet<u64> = self.catalog.all_closed().map(|(_, closed)| closed.lap).collect();
        self.cleaner.passed.retain(|lap, _| laps.contains(lap));
        let oldest_open = self.catalog.oldest_open_lap();
        self.cleaner.garbage.retain(|lap, _| *lap >= oldest_open || laps.contains(lap));
        let chosen = self.options.victims.choose(self.candidates(), self.highest_lap());
        self.cleaner.is_due = chosen.is_some();
        chosen.map(|it| (it.segment, it.lap))
    }

    /// Segments that give room, each with what is to be moved of it and what that gives: records, or bytes where room is needed most. Then
    /// what small groups leave empty counts too, which is not worth it before; and a file that can still grow does so first.
    fn candidates(&self) -> impl Iterator<Item = Candidate> {
        let packs = self.is_cleaning_urgent() && !self.can_grow();
        let free_bytes = self.free_bytes();
        self.catalog.all_closed().filter_map(move |(segment, closed)| {
            let (live, dead) = self.estimate(closed);
            let is_passed = match self.cleaner.passed.get(&closed.lap) {
                None => false,
                Some((PassedBy::NoRoom, before)) => free_bytes <= *before,
                Some((_, again)) => dead < *again,
            };
            let is_leaving = !self.catalog.space.is_open(link_of(segment));
            let is_copied = self.cleaner.copied.contains(&(segment, closed.lap));
            let usable_bytes = self.geometry.usable_bytes;
            let packed_bytes = closed.packed_bytes(live, dead, usable_bytes);
            let is_loose =
                closed.record_count > 0 && packed_bytes <= usable_bytes - usable_bytes / CLEAN_PACK_MIN;
            let gives_room = dead > 0 || packs && is_loose;
            let (live, gain) = if packs { (packed_bytes, usable_bytes - packed_bytes) } else { (live, dead) };
            let candidate = Candidate { segment, lap: closed.lap, live, gain };
            (gives_room && !is_passed && !is_leaving && !is_copied).then_some(candidate)
        })
    }

    /// How many keys of a closed segment are not released, and how many are. Its ranges may span keys of others, so this is
    /// a guess until its footer is read.
    fn estimate(&self, closed: &ClosedSegment) -> (u64, u64) {
        if self.catalog.keys == Keys::Versioned {
            let garbage = self.cleaner.garbage.get(&closed.lap).copied().unwrap_or(0);
            let dead = garbage.min(closed.record_count);
            return (closed.record_count - dead, dead);
        }
        let released = &self.catalog.released;
        let gone = |range: &Range<u64>| -> u64 {
            released.overlaps(range.clone()).map(|part| part.end - part.start).sum()
        };
        let all: u64 = closed.ranges.iter().map(|range| range.end - range.start).sum();
        let dead: u64 = closed.ranges.iter().map(gone).sum();
        (all - dead, dead)
    }

    /// Leaves a closed segment as it is, until that may have changed. Returns whether it was not passed by for this before.
    pub(crate) fn pass_by(&mut self, segment: u32, lap: u64, why: PassedBy) -> bool {
        self.give_up_cleaning(segment);
        let Some(closed) = self.catalog.closed(segment).filter(|closed| closed.lap == lap) else {
            return false;
        };
        let measure = match why {
            PassedBy::NoRoom => self.free_bytes(),
            // A measure of every record that goes would cost more than it gives; but when all have gone there is one. How many are
            // live is not known from ranges that span keys of others. What is harmed may be among those that go.
            _ => {
                let (estimated, dead) = self.estimate(closed);
                let live = if let PassedBy::NoGain { live } = why { live } else { estimated };
                dead + (closed.record_count / CLEAN_AGAIN_PART).clamp(1, live.max(1))
            }
        };
        self.cleaner.passed.insert(lap, (why, measure)).is_none_or(|(before, _)| before != why)
    }

    /// What could not be read of closed segments may be readable by now, of the one with this lap or of all: they are looked at again.
    pub(crate) fn look_again_at_damaged(&mut self, lap: Option<u64>) {
        let is_meant = |it: u64| lap.is_none_or(|lap| lap == it);
        let before = self.cleaner.passed.len();
        self.cleaner.passed.retain(|lap, (why, _)| !is_meant(*lap) || !why.is_unreadable());
        self.cleaner.is_due |= self.cleaner.passed.len() < before;
    }

    /// Leaves a segment as it is, if that is the victim: it needs no cleaning any more, or the chain closes.
    pub(crate) fn give_up_cleaning(&mut self, segment: u32) {
        self.cleaner.victim.take_if(|victim| victim.segment == segment);
    }

    /// Records in a segment, in the use with this lap, are not needed any more by their owner.
    pub(crate) fn note_garbage(&mut self, lap: u64, records: u64) {
        *self.cleaner.garbage.entry(lap).or_insert(0) += records;
        self.cleaner.is_due = true;
    }

    /// Whether records of this closed segment are gone of which it is not known which they were, so that it is not to be freed. Harmed data
    /// that is needed is met by whoever moves it.
    pub(crate) fn is_harmed(&self, segment: u32) -> bool {
        let has_holes = self.catalog.closed(segment).is_none_or(|closed| closed.lost_below > 0);
        has_holes || self.catalog.damage.iter().any(|it| it.segment == segment && it.is_of_groups())
    }

    /// Whether data of one of these runs of a segment is known to be harmed: the others would be moved in vain.
    pub(crate) fn is_harm_among(&self, segment: u32, runs: &[Located]) -> bool {
        let is_in = |it: &Damage, located: &Located| {
            let (data, end) = (located.run.data_range(), u64::from(it.offset) + u64::from(it.bytes));
            data.start < end && u64::from(it.offset) < data.end
        };
        let is_of_data = |it: &Damage| it.segment == segment && matches!(it.kind, DamageKind::Data { .. });
        let mut harmed = self.catalog.damage.iter().filter(|it| is_of_data(it));
        harmed.any(|it| runs.iter().any(|located| is_in(it, located)))
    }

    /// Bytes of copies that may be under way at the tail. Three parts for four of everybody else's, because a drive is shared
    /// by what waits for it, and the log comes first; where room is needed most, as many as everybody else's, or the log would
    /// have to wait for room while its own queue holds up the copies; and while it does wait, what keeps the drive busy.
    pub(crate) fn copies_window_bytes(&mut self) -> u64 {
        let now = self.others_bytes();
        let others = std::mem::replace(&mut self.cleaner.others_peak_bytes, now).max(now);
        let most = self.options.clean_batch_bytes;
        if self.cleaner.is_awaited {
            return CLEAN_WINDOW_MAX_BYTES;
        }
        if self.is_cleaning_urgent() {
            return others.clamp(most, CLEAN_WINDOW_MAX_BYTES);
        }
        if others == 0 { most } else { (others * 3 / 4).max(CLEAN_WINDOW_MIN_BYTES).min(most) }
    }

    /// What is moved by one batch: two of them fill the usual window, so that the drive has always one to write.
    pub(crate) fn copies_batch_bytes(&mut self) -> u64 {
        let most = self.options.clean_batch_bytes;
        let in_body = self.options.cleaning == Cleaning::CompactInBody;
        let bytes = if in_body { most } else { self.copies_window_bytes().min(most) / 2 };
        bytes.min(self.geometry.batch_max_bytes)
    }

    /// The largest batch that is ever moved.
    pub(crate) fn copies_max_bytes(&self) -> u64 {
        self.options.clean_batch_bytes.min(self.geometry.batch_max_bytes)
    }

    /// Bytes that are queued or being written and are no copies.
    fn others_bytes(&self) -> u64 {
        let flying: u64 = self.flights.iter().map(|flight| flight.image.len() as u64).sum();
        let copies: u64 = self.cleaner.under_way.iter().map(|(_, bytes)| bytes).sum();
        (self.queued_bytes + flying).saturating_sub(copies)
    }

    /// Remembers the most that others had under way since the cleaner last asked: between two groups they may have nothing.
    pub(super) fn note_others(&mut self) {
        if self.cleaner.victim.is_some() {
            self.cleaner.others_peak_bytes = self.cleaner.others_peak_bytes.max(self.others_bytes());
        }
    }

    /// Copies up to this ticket are durable.
    pub(super) fn copies_done(&mut self) {
        while self.cleaner.under_way.front().is_some_and(|(ticket, _)| ticket.0 <= self.durable_ticket) {
            self.cleaner.under_way.pop_front();
        }
    }

    /// Begins to clean a closed segment whose `live` records take `needed_bytes` at the tail, or, in the largest batches,
    /// `least_bytes`. For space it is worth it only if that leaves room.
    ///
    /// All of it fits, or nothing is begun: what was moved of a segment gives no room before the last record is.
    pub(crate) fn begin_cleaning(
        &mut self,
        segment: u32,
        lap: u64,
        needed_bytes: u64,
        least_bytes: u64,
        live: u64,
        cause: Cause,
    ) -> Result<(), PassedBy> {
        assert!(self.cleaner.victim.is_none(), "one segment at a time");
        let usable_bytes = self.geometry.usable_bytes;
        if cause == Cause::Space && least_bytes + usable_bytes / CLEAN_GAIN_MIN > usable_bytes {
            return Err(PassedBy::NoGain { live });
        }
        let body_room_bytes = match self.options.cleaning {
            Cleaning::CompactInBody if cause != Cause::Leaving => self.body_room_bytes(),
            _ => 0,
        };
        if needed_bytes > self.copies_room_bytes().max(body_room_bytes) {
            return Err(PassedBy::NoRoom);
        }
        self.cleaner.victim = Some(Victim { segment, lap, left_bytes: needed_bytes, last_copy: Ticket(0) });
        Ok(())
    }

    /// Bytes that copies can certainly take. They may use the reserve, but for one segment: that is for the releases and
    /// the marks of opens and closes that come meanwhile.
    fn copies_room_bytes(&self) -> u64 {
        let (ready, raw) = self.catalog.space.free();
        let free = (ready + raw + usize::from(self.next.is_some())) as u64;
        let checkpoint = self.formed_released.range_count() as u64 * 16
            + self.formed_state.as_ref().map_or(0, |state| state.len() as u64)
            + BLOCK_BYTES as u64;
        // A segment is left when the next batch does not fit.
        let each = self.geometry.usable_bytes.saturating_sub(checkpoint + self.geometry.batch_max_bytes);
        (free.saturating_sub(1) * each + self.cursor_free_bytes()).saturating_sub(self.queued_cost)
    }

    /// Takes copies of the victim's records, to be written like any batch.
    pub(crate) fn append_copies(&mut self, batch: Batch) -> Result<Ticket, AppendError> {
        let cost = Sizes::of(&batch).cost();
        let records: u64 = batch.runs.iter().map(Run::count).sum();
        let bytes: u64 = batch.runs.iter().map(|run| run.data.len() as u64).sum();
        let group_bytes = Sizes::of(&batch).group_bytes();
        let ticket = self.take_in(batch, 0)?;
        self.cleaner.under_way.push_back((ticket, group_bytes));
        self.counters.records_moved += records;
        self.counters.moved_bytes += bytes;
        let victim = self.cleaner.victim.as_mut().expect("a segment is being cleaned");
        victim.left_bytes = victim.left_bytes.saturating_sub(cost);
        victim.last_copy = ticket;
        Ok(ticket)
    }

    /// Takes a batch of nothing: its group will say that every copy is durable. Until that is durable too, harm to the last
    /// groups would look like a torn tail, and an open would cut the copies off. Returns also the group that it must vouch for.
    pub(crate) fn vouch_for_copies(&mut self) -> Result<(Ticket, u64), AppendError> {
        let (durable, durable_seq) = (self.durable_ticket, self.durable_seq);
        let is_early = self.options.planted.is(PlantedBug::VictimFreedEarly);
        assert!(is_early || self.cleaner.last_copied.0 <= durable, "every copy is durable");
        Ok((self.take_in(Batch::default(), 0)?, durable_seq))
    }

    /// All of the victim's records are copied: it is to be given back, and the next one may be cleaned.
    pub(crate) fn victim_copied(&mut self) {
        if let Some(victim) = self.cleaner.victim.take() {
            self.cleaner.copied.push((victim.segment, victim.lap));
            self.cleaner.last_copied = self.cleaner.last_copied.max(victim.last_copy);
        }
    }

    /// The victims whose records are copied and that are not free yet, with their laps.
    pub(crate) fn copied(&self) -> &[(u32, u64)] {
        &self.cleaner.copied
    }

    /// A copied victim is free, or stays for good.
    pub(crate) fn copied_is_over(&mut self, segment: u32, lap: u64) {
        self.cleaner.copied.retain(|it| *it != (segment, lap));
    }

    /// Takes a cleaned segment out of use, all copies of which are vouched for if the groups up to `needs_vouched` are: on
    /// return no read looks at it any more, and nothing is written to it until [`Core::prepared`]. `None` if it is free
    /// already, because all of it was released meanwhile, or if it was found meanwhile that groups of it are gone: it keeps that.
    pub(crate) fn free_victim(&mut self, segment: u32, lap: u64, needs_vouched: u64) -> Option<u32> {
        let is_early = self.options.planted.is(PlantedBug::VictimFreedEarly);
        let is_planted = is_early | self.options.planted.is(PlantedBug::VictimFreedUnvouched);
        assert!(
            needs_vouched <= self.vouched_seq || is_planted,
            "a durable group says that the copies are durable"
        );
        self.catalog.closed(segment).filter(|closed| closed.lap == lap)?;
        if self.is_harmed(segment) && !self.options.planted.is(PlantedBug::CleanerFreesDamaged) {
            return None;
        }
        self.catalog.forget(segment, SegmentState::Preparing);
        self.counters.segments_cleaned += 1;
        self.cleaner.is_due = true;
        Some(segment)
    }

    /// Closed segments of a link with their laps, oldest first.
    pub(crate) fn closed_on(&mut self, link: u32) -> Vec<(u32, u64)> {
        self.closed_by_age().into_iter().filter(|(segment, _)| link_of(*segment) == link).collect()
    }

    /// Closed segments with their laps, oldest first.
    pub(crate) fn closed_by_age(&mut self) -> Vec<(u32, u64)> {
        self.catalog.reclaim(None);
        let closed = self.catalog.all_closed();
        let mut closed: Vec<(u32, u64)> = closed.map(|(segment, closed)| (segment, closed.lap)).collect();
        closed.sort_by_key(|(_, lap)| *lap);
        closed
    }
}
