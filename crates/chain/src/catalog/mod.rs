//! Everything a chain knows in memory: what each segment is used for, where keys are, and what is released.
//!
//! Only durable groups are in it. It grows with the number of segments and with the open ones, never with the log.

mod closed;
mod segment_index;
mod space;

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

pub(crate) use closed::{ClosedSegment, KeyOrder, coarse_ranges};
pub(crate) use segment_index::{RunAt, SegmentIndex};
pub(crate) use space::Space;

use crate::error::Damage;
use crate::format::{Hole, RunHead};
use crate::owner::Keys;
use crate::range_set::RangeSet;

/// A segment that holds groups and has no footer yet.
#[derive(Debug, Default)]
pub(crate) struct OpenSegment {
    pub(crate) lap: u64,
    pub(crate) index: SegmentIndex,
    /// Exactly the keys of its records; where keys are versioned, from the lowest to the highest of them.
    pub(crate) keys: RangeSet,
    pub(crate) first_seq: u64,
    pub(crate) last_seq: u64,
    pub(crate) incarnation: u64,
    /// Where its durable groups end, byte in the segment.
    pub(crate) end_offset: u32,
    pub(crate) run_count: u64,
    pub(crate) record_count: u64,
    pub(crate) data_bytes: u64,
    pub(crate) blob_bytes: u64,
    pub(crate) holes: Vec<Hole>,
    /// Every key that a group in a hole can have held is below; 0 without holes.
    pub(crate) lost_below: u64,
    /// What is missing of its groups may be where a block could not be read: no footer may say that it is lost.
    pub(crate) is_unread: bool,
}

impl OpenSegment {
    /// Adds a group behind those that it has.
    pub(crate) fn add(&mut self, group: Published<'_>, kind: Keys) {
        if self.first_seq == 0 {
            self.first_seq = group.seq;
        }
        self.last_seq = group.seq;
        self.incarnation = self.incarnation.max(group.incarnation);
        self.end_offset = group.end_offset;
        self.run_count += group.starts.len() as u64;
        self.data_bytes += group.data_bytes;
        self.blob_bytes += group.blob.len() as u64;
        let Self { index, keys, record_count, .. } = self;
        index.add_group(group.blob, group.starts, |range| {
            *record_count += range.end - range.start;
            // Blocks that are written in no order would make a range each, and nobody looks for them here.
            keys.insert(if kind == Keys::Versioned { keys.hull_with(range) } else { range });
        });
    }
}

/// What a segment is used for.
#[derive(Debug)]
pub(crate) enum SegmentState {
    /// Free; the file system may have to allocate it when it is written.
    Raw,
    /// Being written over with zeros; not to be used meanwhile.
    Preparing,
    /// Free and written before: a flush into it is as fast as can be.
    Ready,
    /// Chosen to be filled next; its header is on the way or durable.
    Next,
    /// Being filled, or full and waiting for its footer.
    Open(Box<OpenSegment>),
    /// Full, with a footer; without one only if that is harmed, or must not be written.
    Closed(ClosedSegment),
}

/// A group that has become durable.
pub(crate) struct Published<'a> {
    pub(crate) segment: u32,
    pub(crate) seq: u64,
    pub(crate) incarnation: u64,
    pub(crate) end_offset: u32,
    pub(crate) blob: Bytes,
    pub(crate) starts: &'a [u32],
    pub(crate) data_bytes: u64,
    pub(crate) released: &'a [Range<u64>],
}

/// A run and the segment it is in.
#[derive(Clone, Debug)]
pub(crate) struct Located {
    pub(crate) segment: u32,
    pub(crate) lap: u64,
    pub(crate) run: RunHead,
}

impl Located {
    /// Its records with keys in `keys`, which lie within it.
    pub(crate) fn part(&self, keys: Range<u64>) -> Self {
        let part = self.run.view().part(keys.clone(), 0);
        let from = (keys.start - self.run.first_key) as usize;
        let run = RunHead {
            first_key: keys.start,
            data_offset: part.data_offset,
            data_bytes: part.data_bytes,
            table: self.run.table.slice(from..from + (keys.end - keys.start) as usize),
            meta: self.run.meta.clone(),
            ..self.run
        };
        Self { run, ..*self }
    }
}

/// An index that stands in for a harmed footer.
#[derive(Debug)]
struct Rebuilt {
    segment: u32,
    index: SegmentIndex,
    /// What it lacks of what the footer has, if anything: that counts as lost.
    lacking: Option<Lacking>,
}

/// What an index lacks of what was in its segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lacking {
    pub(crate) records: u64,
    /// All keys of theirs are below.
    pub(crate) below: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    pub(crate) space: Space,
    /// Whether an owner is told where records lie.
    pub(crate) keys: Keys,
    /// Durably released keys.
    pub(crate) released: RangeSet,
    pub(crate) highest_key: Option<u64>,
    pub(crate) damage: Vec<Damage>,
    /// Groups that were durable are lost for as long as the chain is open: a key below this that is not found may have been in one. 0 if
    /// none is.
    lost_below: u64,
    order: KeyOrder,
    /// Indexes of closed segments whose groups are still in the tail cache, by lap.
    warm: BTreeMap<u64, (u32, SegmentIndex)>,
    /// Indexes of closed segments whose footers are harmed, or were not written, made from their groups, by lap.
    rebuilt: BTreeMap<u64, Rebuilt>,
    /// Open segments by lap.
    open: BTreeMap<u64, u32>,
}

impl Catalog {
    pub(crate) fn new(keys: Keys) -> Self {
        Self { keys, ..Self::default() }
    }

    /// Changes what a segment is used for.
    pub(crate) fn set(&mut self, segment: u32, state: SegmentState) -> SegmentState {
        self.space.set(segment, state)
    }

    /// Makes `segment` an open one.
    pub(crate) fn open_segment(&mut self, segment: u32, open: OpenSegment) {
        self.open.insert(open.lap, segment);
        self.lost_below = self.lost_below.max(open.lost_below);
        self.highest_key = self.highest_key.max(open.keys.last());
        self.set(segment, SegmentState::Open(Box::new(open)));
    }

    /// The open segment with this number. It is one.
    pub(crate) fn open(&self, segment: u32) -> &OpenSegment {
        match self.space.get(segment) {
            Some(SegmentState::Open(open)) => open,
            other => panic!("segment {segment} is {other:?}"),
        }
    }

    /// Adds a durable group to its open segment, and applies what it releases.
    pub(crate) fn publish(&mut self, group: Published<'_>) {
        let Some(SegmentState::Open(open)) = self.space.get_mut(group.segment) else {
            panic!("segment {} of a durable group is not open", group.segment);
        };
        let released = group.released;
        open.add(group, self.keys);
        self.highest_key = self.highest_key.max(open.keys.last());
        for range in released {
            self.released.insert(range.clone());
        }
    }

    /// Turns an open segment into a closed one; its index stays warm until [`Catalog::cool`], or in memory if it has no footer.
    pub(crate) fn close_segment(&mut self, segment: u32, closed: ClosedSegment) {
        let lap = closed.lap;
        self.order.add(segment, &closed.ranges);
        let before = self.set(segment, SegmentState::Closed(closed));
        if let SegmentState::Open(open) = before {
            self.open.remove(&lap);
            match open.is_unread {
                true => self.add_rebuilt(segment, lap, open.index, None),
                false => _ = self.warm.insert(lap, (segment, open.index)),
            }
        }
    }

    /// Adds a closed segment that recovery found.
    pub(crate) fn add_closed(&mut self, segment: u32, closed: ClosedSegment) {
        self.lost_below = self.lost_below.max(closed.lost_below);
        let highest = closed.ranges.last().map(|range| range.end - 1);
        self.highest_key = self.highest_key.max(highest);
        self.order.add(segment, &closed.ranges);
        self.set(segment, SegmentState::Closed(closed));
    }

    /// Forgets the indexes of closed segments below this lap.
    pub(crate) fn cool(&mut self, below_lap: u64) {
        while let Some(entry) = self.warm.first_entry()
            && *entry.key() < below_lap
        {
            entry.remove();
        }
    }

    /// Keeps an index that stands in for a harmed footer, instead of one that it had. What it lacks is named as lost.
    pub(crate) fn add_rebuilt(
        &mut self,
        segment: u32,
        lap: u64,
        index: SegmentIndex,
        lacking: Option<Lacking>,
    ) {
        self.forget_short(lap);
        self.damage.extend(lacking.map(|_| Damage::of_some_groups(segment)));
        self.rebuilt.insert(lap, Rebuilt { segment, index, lacking });
    }

    /// What the index of a closed segment lacks that was made from its groups.
    pub(crate) fn lacking(&self, lap: u64) -> Option<Lacking> {
        self.rebuilt.get(&lap)?.lacking
    }

    /// What the index of a segment lacks is found by something else from now on: the index is forgotten, and that anything is lost.
    pub(crate) fn forget_short(&mut self, lap: u64) {
        if self.lacking(lap).is_none() {
            return;
        }
        let Some(Rebuilt { segment, .. }) = self.rebuilt.remove(&lap) else { return };
        let named = Damage::of_some_groups(segment);
        // Another one of its kind may be of what the footer lists as lost.
        if let Some(index) = self.damage.iter().position(|damage| *damage == named) {
            self.damage.remove(index);
        }
    }

    /// What the index of a segment lacks stays lost for as long as the chain is open.
    pub(crate) fn settle_short(&mut self, lap: u64) {
        let lacking = self.rebuilt.get_mut(&lap).and_then(|rebuilt| rebuilt.lacking.take());
        self.lost_below = self.lost_below.max(lacking.map_or(0, |lacking| lacking.below));
    }

    /// Groups that were durable are lost: a key below this that is not found may have been in one. 0 if none is.
    pub(crate) fn lost_below(&self) -> u64 {
        let lacking = self.rebuilt.values().filter_map(|rebuilt| rebuilt.lacking);
        lacking.map(|lacking| lacking.below).fold(self.lost_below, u64::max)
    }

    /// Frees every closed segment whose keys are all in `released`. Returns whether there was one.
    pub(crate) fn reclaim(&mut self, released: Option<&RangeSet>) -> bool {
        let released = released.unwrap_or(&self.released);
        let dead = self.all_closed().filter(|(_, closed)| closed.is_dead(released));
        let dead: Vec<u32> = dead.map(|(segment, _)| segment).collect();
        dead.iter().for_each(|&segment| self.forget(segment, SegmentState::Ready));
        !dead.is_empty()
    }

    /// Nobody needs what a closed segment holds any more: it is used for something else, of which what was harmed in it says nothing.
    pub(crate) fn forget(&mut self, segment: u32, then: SegmentState) {
        let before = self.set(segment, then);
        let SegmentState::Closed(closed) = before else { panic!("segment {segment} is {before:?}") };
        self.warm.remove(&closed.lap);
        self.rebuilt.remove(&closed.lap);
        self.damage.retain(|damage| damage.segment != segment);
        self.order.remove(segment);
    }

    /// Whether another segment than this one may hold a record of `key`, readable or lost.
    pub(crate) fn may_hold(&self, key: u64, except: u32) -> bool {
        let is_in = |open: &OpenSegment| open.keys.contains(key) || open.lost_below > key;
        let closed = self.order.candidates(key..key + 1).any(|(at, segment)| at == key && segment != except);
        let lost = self.all_closed().any(|(segment, closed)| segment != except && closed.lost_below > key);
        closed || lost || self.open.values().any(|&segment| is_in(self.open(segment)))
    }

    /// The lowest lap of an open segment; above all if there is none.
    pub(crate) fn oldest_open_lap(&self) -> u64 {
        self.open.keys().next().copied().unwrap_or(u64::MAX)
    }

    /// The index of a segment if it is in memory.
    pub(crate) fn index_of(&self, segment: u32, lap: u64) -> Option<&SegmentIndex> {
        self.in_memory().find(|(other, at, _)| (*other, *at) == (segment, lap)).map(|(_, _, index)| index)
    }

    /// The lap and the directory's place of a closed segment.
    pub(crate) fn closed(&self, segment: u32) -> Option<&ClosedSegment> {
        match self.space.get(segment) {
            Some(SegmentState::Closed(closed)) => Some(closed),
            _ => None,
        }
    }

    /// Whether the segment still is what it was at `lap`.
    pub(crate) fn is_lap(&self, segment: u32, lap: u64) -> bool {
        match self.space.get(segment) {
            Some(SegmentState::Open(open)) => open.lap == lap,
            Some(SegmentState::Closed(closed)) => closed.lap == lap,
            _ => false,
        }
    }

    /// The present use of a segment, if it holds something.
    pub(crate) fn lap_of(&self, segment: u32) -> Option<u64> {
        match self.space.get(segment) {
            Some(SegmentState::Open(open)) => Some(open.lap),
            Some(SegmentState::Closed(closed)) => Some(closed.lap),
            _ => None,
        }
    }

    /// Indexes in memory, newest first.
    pub(crate) fn in_memory(&self) -> impl Iterator<Item = (u32, u64, &SegmentIndex)> {
        let open = self.open.iter().rev().map(|(&lap, &segment)| (segment, lap, &self.open(segment).index));
        let warm = self.warm.iter().rev().map(|(&lap, (segment, index))| (*segment, lap, index));
        let rebuilt = self.rebuilt.iter().map(|(&lap, it)| (it.segment, lap, &it.index));
        open.chain(warm).chain(rebuilt)
    }

    /// The closed segments.
    pub(crate) fn all_closed(&self) -> impl Iterator<Item = (u32, &ClosedSegment)> {
        self.space.iter().filter_map(|(segment, state)| match state {
            SegmentState::Closed(closed) => Some((segment, closed)),
            _ => None,
        })
    }

    /// Closed segments that are not warm and may hold a key in `keys`, with the first key they may hold.
    pub(crate) fn cold_candidates(&self, keys: Range<u64>) -> impl Iterator<Item = (u64, u32)> {
        self.order.candidates(keys).filter(|(_, segment)| {
            let is_cold = |lap| !self.warm.contains_key(lap) && !self.rebuilt.contains_key(lap);
            self.closed(*segment).is_some_and(|closed| is_cold(&closed.lap))
        })
    }
}
