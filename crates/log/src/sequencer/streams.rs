//! What the sequencer knows of streams, and whether a condition holds.
//!
//! A part of a stream was written by the appends that name it, and by those that change all of that stream. The table of the
//! parts' last writes forgets the oldest; where each stream ends is never forgotten, nor when all of it was changed, nor below
//! which position writes of its parts are. So a condition on a stream that was not appended to since its snapshot holds, however
//! old that is; and one below the low-water mark of a stream that was appended to is neither held nor broken by what is known
//! here, unless all of the stream was changed since. The mark is the stream's own: others may be written as much as they like.

use super::known::KnownStreams;
use super::writes::{Write, Writes};
use crate::entry::{StreamPlace, StreamPlaces};
use crate::limits;
use crate::planted::{Planted, PlantedBug};
use crate::pos::{LogPos, StreamId};
use crate::stream::{Condition, ConflictKey, KeyHash, StreamTail};
use crate::wire::{GroupGrant, Refusal, TokenGroup};

/// Where streams end, and which of their parts were written last.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    /// Every stream that has an entry, or was granted a position for one. Unknown at first.
    known: Option<KnownStreams>,
    writes: Writes,
    /// Where the epoch begins.
    start: LogPos,
    /// Positions in streams that were granted.
    granted: u64,
    planted: Planted,
}

impl Streams {
    /// Of an epoch that begins at `start`.
    pub(super) fn new(start: LogPos, planted: Planted) -> Self {
        let writes = Writes::new(limits::SEQUENCER_WRITES_MAX_COUNT);
        Self { known: None, writes, start, granted: 0, planted }
    }

    /// To be called before anything is granted.
    pub(super) fn remember_writes(&mut self, count: usize) {
        self.writes = Writes::new(count);
    }

    pub(super) fn learn(&mut self, known: KnownStreams) {
        assert!(self.known.is_none(), "streams are learnt once, before anything is granted in them");
        let is_forgotten = self.planted.is(PlantedBug::StreamsForgotten);
        self.known = Some(if is_forgotten { KnownStreams::default() } else { known });
    }

    /// What is known of streams, if anything is.
    pub(super) fn known(&self) -> Option<&KnownStreams> {
        self.known.as_ref()
    }

    /// How many positions in streams were granted.
    pub(super) fn granted(&self) -> u64 {
        self.granted
    }

    pub(super) fn tails(&self, asked: &[StreamId]) -> Result<Vec<StreamTail>, Refusal> {
        let known = self.known.as_ref().ok_or(Refusal::StreamsUnknown)?;
        Ok(asked.iter().map(|stream| known.tail(*stream)).collect())
    }

    /// Refuses groups that cannot be decided, or that may be of more streams than there is room for.
    pub(super) fn admit(&self, groups: &[TokenGroup]) -> Result<(), Refusal> {
        if groups.iter().all(TokenGroup::is_plain) {
            return Ok(());
        }
        let known = self.known.as_ref().ok_or(Refusal::StreamsUnknown)?;
        let asked: usize = groups.iter().map(|group| group.streams.len()).sum();
        let (found, limit) = (known.len() + asked, limits::STREAMS_KNOWN_MAX_COUNT);
        let is_new = |stream: &StreamId| !known.contains(*stream);
        if found > limit && groups.iter().flat_map(|group| &group.streams).any(is_new) {
            return Err(Refusal::TooLarge { found: found as u64, limit: limit as u64 });
        }
        Ok(())
    }

    /// Makes ready for groups that are about to be granted.
    pub(super) fn prepare(&self, groups: &[TokenGroup]) {
        let conditions = || groups.iter().filter_map(|group| group.condition.as_ref());
        self.writes.bring_near(conditions().flat_map(|it| it.reads.iter().chain(&it.writes)).copied());
        self.writes.bring_oldest_near(conditions().map(|it| it.writes.len()).sum());
    }

    /// Grants a group positions from `first` on, or says why not. Also how many are used up. The group must have been
    /// admitted.
    pub(super) fn grant(&mut self, group: &TokenGroup, first: LogPos) -> (GroupGrant, u32) {
        if let Some(refused) = group.condition.as_deref().and_then(|condition| self.refuses(condition)) {
            return (refused, 0);
        }
        let count = group.count;
        let last = LogPos(first.0 + u64::from(count) - 1);
        let mut places = StreamPlaces::with_capacity(group.streams.len());
        let used = if self.planted.is(PlantedBug::StreamPositionReused) { 1 } else { count };
        for &stream in &group.streams {
            let known = self.known.as_mut().expect("the group was admitted");
            let (before, writes) = known.grant(stream, used, last);
            if let Some(end) = before.last.filter(|end| *end < self.start) {
                writes.forget(end);
            }
            if changes_all(group.condition.as_deref(), stream) {
                writes.last = Some(last);
            }
            places.push(StreamPlace { stream, position: before.next, previous: before.last });
            self.granted += u64::from(count);
            for &key in named(group.condition.as_deref(), stream).filter(|key| key.key != KeyHash::ALL) {
                if let Some(forgotten) = self.writes.note(Write { key, pos: last }) {
                    known.writes_of_granted(forgotten.key.stream).forget(forgotten.pos);
                }
            }
        }
        (GroupGrant::Granted { count, places }, count)
    }

    /// Why a group with this condition is refused, if it is.
    fn refuses(&self, condition: &Condition) -> Option<GroupGrant> {
        if self.planted.is(PlantedBug::ConditionUnchecked) {
            return None;
        }
        let snapshot = condition.snapshot;
        let is_ignored = self.planted.is(PlantedBug::WholeKeyIgnored);
        let mut too_old: Option<LogPos> = None;
        for &key in &condition.reads {
            let known = self.known.as_ref().expect("the group was admitted");
            let stream = known.stream(key.stream);
            let last = stream.tail.last;
            let is_appended_to = last.is_some_and(|last| last >= snapshot);
            // Below the snapshot it ends, and is known to: what was read holds.
            if !is_appended_to && snapshot >= known.unseen() {
                continue;
            }
            let written = match key.key {
                KeyHash::ALL => last,
                _ => self.writes.last(key).max(stream.writes.last.filter(|_| !is_ignored)),
            };
            if let Some(pos) = written.filter(|&pos| pos >= snapshot) {
                return Some(GroupGrant::Conflict { key, pos });
            }
            let low_water = match last {
                // It was granted nothing in this epoch.
                Some(last) if last < self.start => LogPos(last.0 + 1),
                _ => stream.writes.low_water,
            };
            let low_water = low_water.max(known.unseen());
            if snapshot < low_water && !self.planted.is(PlantedBug::EvictedIsUnwritten) {
                too_old = too_old.max(Some(low_water));
            }
        }
        too_old.map(|low_water| GroupGrant::TooOld { low_water })
    }
}

/// What of `stream` an append with this condition names that it changes.
fn named(condition: Option<&Condition>, stream: StreamId) -> impl Iterator<Item = &ConflictKey> {
    let writes = condition.map_or(&[][..], |condition| &condition.writes);
    writes.iter().filter(move |key| key.stream == stream)
}

/// Whether an append with this condition changes all of `stream`: by naming that, or no part of it.
fn changes_all(condition: Option<&Condition>, stream: StreamId) -> bool {
    let mut named = named(condition, stream).peekable();
    named.peek().is_none() || named.any(|key| key.key == KeyHash::ALL)
}
