//! What the sequencer knows of streams, and whether a condition holds.
//!
//! A part of a stream was written by the appends that name it, and by those that name nothing of that stream. The table of last writes
//! forgets the oldest; where each stream ends is never forgotten. So a condition on a stream that was not appended to since
//! its snapshot holds, however old that is; and one below the low-water mark on a stream that was appended to is neither held nor
//! broken by what is known here.

use super::known::KnownStreams;
use super::writes::Writes;
use crate::entry::StreamPlace;
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
    /// Positions in streams that were granted.
    granted: u64,
    planted: Planted,
}

impl Streams {
    /// Of an epoch that begins at `start`.
    pub(super) fn new(start: LogPos, planted: Planted) -> Self {
        let writes = Writes::new(start, limits::SEQUENCER_WRITES_MAX_COUNT);
        Self { known: None, writes, granted: 0, planted }
    }

    pub(super) fn remember_writes(&mut self, count: usize) {
        self.writes.limit(count);
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

    /// Grants a group positions from `first` on, or says why not. Also how many are used up. The group must have been
    /// admitted.
    pub(super) fn grant(&mut self, group: &TokenGroup, first: LogPos) -> (GroupGrant, u32) {
        if let Some(refused) = group.condition.as_ref().and_then(|condition| self.refuses(condition)) {
            return (refused, 0);
        }
        let count = group.count;
        let last = LogPos(first.0 + u64::from(count) - 1);
        let mut places = Vec::with_capacity(group.streams.len());
        for &stream in &group.streams {
            let known = self.known.as_mut().expect("the group was admitted");
            let used = if self.planted.is(PlantedBug::StreamPositionReused) { 1 } else { count };
            let before = known.grant(stream, used, last);
            places.push(StreamPlace { stream, position: before.next, previous: before.last });
            self.granted += u64::from(count);
            self.note_writes(stream, group.condition.as_ref(), last);
        }
        (GroupGrant::Granted { count, places }, count)
    }

    /// Notes what of `stream` an append at `pos` changes.
    fn note_writes(&mut self, stream: StreamId, condition: Option<&Condition>, pos: LogPos) {
        let named = condition.iter().flat_map(|condition| &condition.writes);
        let mut named = named.filter(|key| key.stream == stream).peekable();
        if named.peek().is_none() {
            self.writes.note(ConflictKey { stream, key: KeyHash::ALL }, pos);
        }
        named.for_each(|key| self.writes.note(*key, pos));
    }

    /// Why a group with this condition is refused, if it is.
    fn refuses(&self, condition: &Condition) -> Option<GroupGrant> {
        if self.planted.is(PlantedBug::ConditionUnchecked) {
            return None;
        }
        let snapshot = condition.snapshot;
        let is_old = snapshot < self.writes.low_water() && !self.planted.is(PlantedBug::EvictedIsUnwritten);
        let mut too_old = None;
        for &key in &condition.reads {
            let known = self.known.as_ref().expect("the group was admitted");
            let last = known.tail(key.stream).last.filter(|&last| last >= snapshot);
            let Some(last) = last else {
                if known.may_have_unseen(snapshot) {
                    too_old = Some(GroupGrant::TooOld { low_water: self.writes.low_water() });
                }
                continue;
            };
            // The stream was appended to since: was what was read?
            let written = if key.key == KeyHash::ALL { Some(last) } else { self.last_write(key) };
            match written.filter(|&pos| pos >= snapshot) {
                Some(pos) => return Some(GroupGrant::Conflict { key, pos }),
                None if is_old => too_old = Some(GroupGrant::TooOld { low_water: self.writes.low_water() }),
                None => {}
            }
        }
        too_old
    }

    /// The last write that is remembered of a part of a stream.
    fn last_write(&self, key: ConflictKey) -> Option<LogPos> {
        let whole = match self.planted.is(PlantedBug::WholeKeyIgnored) {
            true => None,
            false => self.writes.last(ConflictKey { key: KeyHash::ALL, ..key }),
        };
        self.writes.last(key).max(whole)
    }
}
