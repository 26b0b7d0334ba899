//! What is known of streams: where each ends, and below which log position that may be wrong.
//!
//! A new sequencer puts it together from the latest checkpoint and from the places of the entries since. Both ends of a stream may
//! be too high, where a token was lost. Where entries were trimmed that no checkpoint covers, nobody can say which streams they were in. A
//! stream has never had more entries than the log has positions, so every stream goes on at that log position or above: positions are
//! left out, and none is granted twice. The last that is known of it stays so, and what may stand above follows from the next one
//! ([`StreamTail::bound`]).
//!
//! What a checkpoint says stays as it was read, encoded; beside it there is a table of the streams that have gone on since.

use std::collections::BTreeMap;

use super::table::StreamTable;
use super::tails::{KnownStream, Tails, WholeWrites};
use crate::pos::{LogPos, StreamId, StreamPos};
use crate::stream::StreamTail;

/// Where streams end.
#[derive(Clone, Debug, Default)]
pub struct KnownStreams {
    /// Streams of a checkpoint: each table begins behind the one before.
    base: Vec<StreamTable>,
    /// The decided tail that the base is cut to, once it is.
    cut: Option<LogPos>,
    /// Where streams end of which more is known than the base says.
    changed: Tails,
    /// Streams of both.
    count: usize,
    /// Below this log position there may be entries of any stream that were not seen.
    unseen: LogPos,
}

impl KnownStreams {
    /// These streams, and no others.
    pub fn of(tails: BTreeMap<StreamId, StreamTail>) -> Self {
        Self { count: tails.len(), changed: tails.into_iter().collect(), ..Self::default() }
    }

    /// Each stream ends where the highest of a checkpoint and of these ends say, or later. The ends come in any order; the tables ascend,
    /// each and one after the other.
    pub fn noted(base: Vec<StreamTable>, mut ends: Vec<(StreamId, StreamTail)>) -> Self {
        ends.sort_unstable_by_key(|(stream, _)| *stream);
        ends.dedup_by(|(stream, tail), (before, known)| {
            let is_same = stream == before;
            if is_same {
                *known = highest(*known, *tail);
            }
            is_same
        });
        let mut count: usize = base.iter().map(StreamTable::count).sum();
        let (mut nth, mut from) = (0, 0);
        for (stream, tail) in &mut ends {
            while base.get(nth).and_then(StreamTable::ends).is_some_and(|(_, last)| last < *stream) {
                (nth, from) = (nth + 1, 0);
            }
            match base.get(nth).map(|table| (table, table.find_from(from, *stream))) {
                Some((table, Ok(at))) => {
                    *tail = highest(*tail, table.get(at).1);
                    from = at + 1;
                }
                Some((_, Err(at))) => (from, count) = (at, count + 1),
                None => count += 1,
            }
        }
        Self { base, changed: ends.into_iter().collect(), count, ..Self::default() }
    }

    /// Of what stood below `end` something was trimmed without having been seen.
    pub fn note_unseen(&mut self, end: LogPos) {
        assert!(self.cut.is_none(), "what was not seen is noted before streams are cut to the tail");
        self.unseen = self.unseen.max(end);
    }

    /// The same, cut to what can be below a decided `tail`: a checkpoint of an epoch that is over may count tokens past it. Any stream
    /// goes on behind what was trimmed unseen: whoever has not read that far must not take what comes next for all that was missing.
    pub fn below(mut self, tail: LogPos) -> Self {
        let unseen = self.unseen;
        self.changed.iter_mut().for_each(|known| *known = cut(*known, tail, unseen));
        self.cut = Some(tail);
        self
    }

    /// Where a stream ends.
    pub fn tail(&self, stream: StreamId) -> StreamTail {
        self.stream(stream).tail
    }

    /// What is known of a stream.
    pub(super) fn stream(&self, stream: StreamId) -> KnownStream {
        let before = || self.in_base(stream).unwrap_or_else(|| self.unknown());
        self.changed.get(stream).unwrap_or_else(|| KnownStream::ending(before()))
    }

    /// Where a stream ends of which nothing was seen.
    fn unknown(&self) -> StreamTail {
        StreamTail { next: StreamPos(self.unseen.0), last: None }
    }

    /// Where the checkpoint says that a stream ends.
    fn in_base(&self, stream: StreamId) -> Option<StreamTail> {
        let is_before = |table: &StreamTable| table.ends().is_some_and(|(_, last)| last < stream);
        let table = self.base.get(self.base.partition_point(is_before))?;
        let nth = table.find(stream).ok()?;
        Some(self.settled(table.get(nth).1))
    }

    fn settled(&self, tail: StreamTail) -> StreamTail {
        self.cut.map_or(tail, |end| cut(tail, end, self.unseen))
    }

    /// Below this log position any stream may have entries that were not seen.
    pub(super) fn unseen(&self) -> LogPos {
        self.unseen
    }

    /// `count` positions are granted in a stream, the last of them for `last`. Where it ended before, and its writes.
    pub(super) fn grant(
        &mut self,
        stream: StreamId,
        count: u32,
        last: LogPos,
    ) -> (StreamTail, &mut WholeWrites) {
        let place = match self.changed.place(stream) {
            Some(place) => place,
            None => {
                let in_base = self.in_base(stream);
                self.count += usize::from(in_base.is_none());
                self.changed.add(stream, in_base.unwrap_or_else(|| self.unknown()))
            }
        };
        let known = self.changed.at(place);
        let next = StreamPos(known.tail.next.0 + u64::from(count));
        let before = std::mem::replace(&mut known.tail, StreamTail { next, last: Some(last) });
        (before, &mut known.writes)
    }

    /// The writes of a stream in which positions were granted.
    pub(super) fn writes_of_granted(&mut self, stream: StreamId) -> &mut WholeWrites {
        let place = self.changed.place(stream).expect("a stream that was granted positions is known");
        &mut self.changed.at(place).writes
    }

    pub(super) fn contains(&self, stream: StreamId) -> bool {
        self.changed.get(stream).is_some() || self.in_base(stream).is_some()
    }

    /// How many streams.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Streams in the order of their ids: at most `count`, behind `after`.
    pub(super) fn some_after(&self, after: Option<StreamId>, count: usize) -> Vec<(StreamId, StreamTail)> {
        let mut changed = self.changed.after(after).peekable();
        let mut base = self.base_after(after).peekable();
        let mut some = Vec::new();
        while some.len() < count {
            // Of a stream that is in both the table knows more.
            let is_changed = match (base.peek(), changed.peek()) {
                (Some((stream, _)), Some((other, _))) => stream >= other,
                (found, _) => found.is_none(),
            };
            if !is_changed {
                some.extend(base.next().map(|(stream, tail)| (stream, self.settled(tail))));
                continue;
            }
            let Some((stream, tail)) = changed.next() else { break };
            base.next_if(|(other, _)| *other == stream);
            some.push((stream, tail));
        }
        some
    }

    /// The checkpoint's streams behind `after`.
    fn base_after(&self, after: Option<StreamId>) -> impl Iterator<Item = (StreamId, StreamTail)> {
        let is_before = |table: &StreamTable| table.ends().is_none_or(|(_, last)| Some(last) <= after);
        let first = self.base.partition_point(is_before);
        let skipped = match (self.base.get(first), after) {
            (Some(table), Some(after)) => table.find(after).map_or_else(|at| at, |at| at + 1),
            _ => 0,
        };
        let all = self.base[first..].iter().enumerate();
        all.flat_map(move |(nth, table)| {
            let from = if nth == 0 { skipped } else { 0 };
            (from..table.count()).map(|at| table.get(at))
        })
    }

    /// All of them, to compare.
    #[cfg(test)]
    pub(super) fn all(&self) -> Vec<(StreamId, StreamTail)> {
        self.some_after(None, usize::MAX)
    }
}

/// As far as either says.
fn highest(one: StreamTail, other: StreamTail) -> StreamTail {
    StreamTail { next: one.next.max(other.next), last: one.last.max(other.last) }
}

/// Where a stream ends, cut to what can be below `tail`, if it may have entries below `unseen`. Of one that ends above the tail it is not known
/// where it did below.
fn cut(known: StreamTail, tail: LogPos, unseen: LogPos) -> StreamTail {
    let is_cut = known.last >= Some(tail);
    let least = if is_cut { unseen.max(tail) } else { unseen };
    let next = known.next.max(StreamPos(least.0));
    StreamTail { next, last: known.last.filter(|_| !is_cut) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: StreamId = StreamId(300);
    const B: StreamId = StreamId(301);

    fn tail(next: u64, last: u64) -> StreamTail {
        StreamTail { next: StreamPos(next), last: Some(LogPos(last)) }
    }

    fn table(streams: &[(StreamId, StreamTail)]) -> Vec<StreamTable> {
        vec![StreamTable::of(streams)]
    }

    #[test]
    fn a_checkpoint_and_what_came_since_are_what_one_map_of_both_is() {
        // A stream that is looked for in the wrong table is granted positions that it has.
        let mut random = ithaca_env::sim::Random::new(1);
        for round in 0..200 {
            let mut some = |count: u64| -> Vec<(StreamId, StreamTail)> {
                let stream = |random: &mut ithaca_env::sim::Random| StreamId(random.below(60).into());
                (0..count).map(|_| (stream(&mut random), tail(random.below(9), random.below(90)))).collect()
            };
            let (stored, since, grants) = (some(round % 40), some(round % 23), some(10));
            let merged = |all: &[(StreamId, StreamTail)]| {
                let mut map: BTreeMap<StreamId, StreamTail> = BTreeMap::new();
                all.iter().for_each(|(stream, tail)| {
                    let known = map.entry(*stream).or_default();
                    *known = highest(*known, *tail);
                });
                map
            };
            let stored: Vec<_> = merged(&stored).into_iter().collect();
            let base = stored.chunks(1 + round as usize % 7).map(StreamTable::of).collect();
            let mut known = KnownStreams::noted(base, since.clone());
            known.note_unseen(LogPos(round % 5));
            let mut known = known.below(LogPos(70));
            let all = merged(&[stored, since].concat());
            let mut model = KnownStreams::of(all);
            model.note_unseen(LogPos(round % 5));
            let mut model = model.below(LogPos(70));
            for (stream, _) in grants {
                assert_eq!(known.contains(stream), model.contains(stream));
                assert_eq!(known.grant(stream, 2, LogPos(80)), model.grant(stream, 2, LogPos(80)));
            }
            assert_eq!((known.all(), known.len()), (model.all(), model.all().len()));
            for (after, count) in (0..61).flat_map(|after| [(after, 1), (after, 5)]) {
                let after = Some(StreamId(after));
                assert_eq!(known.some_after(after, count), model.some_after(after, count));
            }
        }
    }

    #[test]
    fn what_is_known_is_the_highest_that_was_noted_in_any_order() {
        let noted = vec![(B, tail(1, 41)), (A, tail(7, 40)), (A, tail(4, 20)), (A, tail(2, 43))];
        let known = KnownStreams::noted(Vec::new(), noted).below(LogPos(50));
        assert_eq!((known.tail(A), known.tail(B)), (tail(7, 43), tail(1, 41)));
        assert_eq!(known.tail(StreamId(302)), StreamTail::default());
    }

    #[test]
    fn a_stream_of_which_entries_were_trimmed_unseen_reuses_no_position() {
        // The trimmed ones may have been in any stream, at any position below their log position.
        let mut known = KnownStreams::noted(table(&[(A, tail(4, 20))]), Vec::new());
        known.note_unseen(LogPos(30));
        let known = known.below(LogPos(50));
        assert_eq!(known.tail(A), tail(30, 20), "the one that it was granted last stays known");
        assert_eq!(known.tail(A).bound(), Some(LogPos(29)));
        assert_eq!(known.tail(B), StreamTail { next: StreamPos(30), last: None });
        assert_eq!(known.tail(B).bound(), Some(LogPos(29)));
        assert_eq!(known.unseen(), LogPos(30));
    }

    #[test]
    fn a_checkpoint_that_counts_lost_tokens_is_cut_to_the_decided_tail() {
        let known = KnownStreams::noted(table(&[(A, tail(9, 70))]), Vec::new());
        let tail = known.below(LogPos(50)).tail(A);
        assert_eq!((tail.next, tail.last, tail.bound()), (StreamPos(50), None, Some(LogPos(49))));
    }
}
