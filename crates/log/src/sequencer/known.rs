//! What is known of streams: where each ends, and below which log position that may be wrong.
//!
//! A new sequencer puts it together from the latest checkpoint and from the places of the entries since. Both ends of a stream are
//! bounds: its next position and the log position of its last entry may be too high, where a token was lost, never too
//! low. Where entries were trimmed that no checkpoint covers, nobody can say which streams they were in. A stream has never
//! had more entries than the log has positions, so every stream goes on at that log position or above: positions are left
//! out, and none is granted twice.

use std::collections::BTreeMap;

use crate::pos::{LogPos, StreamId, StreamPos};
use crate::stream::StreamTail;

/// Where streams end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownStreams {
    tails: BTreeMap<StreamId, StreamTail>,
    /// Below this log position there may be entries of any stream that were not seen.
    unseen: LogPos,
}

impl KnownStreams {
    /// These streams, and no others.
    pub fn of(tails: BTreeMap<StreamId, StreamTail>) -> Self {
        Self { tails, unseen: LogPos(0) }
    }

    /// Each stream ends where the highest of these say, or later. They come in any order, soonest if most of them are in that of the ids.
    pub fn noted(mut tails: Vec<(StreamId, StreamTail)>) -> Self {
        tails.sort_by_key(|(stream, _)| *stream);
        tails.dedup_by(|(stream, tail), (before, known)| {
            let is_same = stream == before;
            if is_same {
                *known = StreamTail { next: known.next.max(tail.next), last: known.last.max(tail.last) };
            }
            is_same
        });
        Self::of(tails.into_iter().collect())
    }

    /// Of what stood below `end` something was trimmed without having been seen.
    pub fn note_unseen(&mut self, end: LogPos) {
        self.unseen = self.unseen.max(end);
    }

    /// The same, cut to what can be below a decided `tail`: a checkpoint of an epoch that is over may count tokens past it. Any stream
    /// may end in what was trimmed unseen: whoever has not read that far must not take what comes next for all that was missing.
    pub fn below(mut self, tail: LogPos) -> Self {
        let (highest, unseen) = (tail.0.checked_sub(1).map(LogPos), self.unseen.0.checked_sub(1).map(LogPos));
        for known in self.tails.values_mut() {
            known.last = known.last.max(unseen).min(highest);
            known.next = known.next.max(StreamPos(self.unseen.0));
        }
        self
    }

    /// Where a stream ends.
    pub fn tail(&self, stream: StreamId) -> StreamTail {
        let last = self.unseen.0.checked_sub(1).map(LogPos);
        let unknown = StreamTail { next: StreamPos(self.unseen.0), last };
        self.tails.get(&stream).copied().unwrap_or(unknown)
    }

    /// Below this log position any stream may have entries that were not seen.
    pub(super) fn unseen(&self) -> LogPos {
        self.unseen
    }

    /// `count` positions are granted in a stream, the last of them for `last`. Where it ended before.
    pub(super) fn grant(&mut self, stream: StreamId, count: u32, last: LogPos) -> StreamTail {
        let before = self.tail(stream);
        let next = StreamPos(before.next.0 + u64::from(count));
        self.tails.insert(stream, StreamTail { next, last: Some(last) });
        before
    }

    pub(super) fn contains(&self, stream: StreamId) -> bool {
        self.tails.contains_key(&stream)
    }

    /// How many streams.
    pub fn len(&self) -> usize {
        self.tails.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tails.is_empty()
    }

    /// Streams in the order of their ids: at most `count`, behind `after`.
    pub(super) fn some_after(&self, after: Option<StreamId>, count: usize) -> Vec<(StreamId, StreamTail)> {
        use std::ops::Bound;
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.tails.range((start, Bound::Unbounded));
        rest.take(count).map(|(stream, tail)| (*stream, *tail)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: StreamId = StreamId(300);
    const B: StreamId = StreamId(301);

    fn tail(next: u64, last: u64) -> StreamTail {
        StreamTail { next: StreamPos(next), last: Some(LogPos(last)) }
    }

    #[test]
    fn what_is_known_is_the_highest_that_was_noted_in_any_order() {
        let noted = vec![(B, tail(1, 41)), (A, tail(7, 40)), (A, tail(4, 20)), (A, tail(2, 43))];
        let known = KnownStreams::noted(noted).below(LogPos(50));
        assert_eq!((known.tail(A), known.tail(B)), (tail(7, 43), tail(1, 41)));
        assert_eq!(known.tail(StreamId(302)), StreamTail::default());
    }

    #[test]
    fn a_stream_of_which_entries_were_trimmed_unseen_reuses_no_position() {
        // The trimmed ones may have been in any stream, at any position below their log position.
        let mut known = KnownStreams::noted(vec![(A, tail(4, 20))]);
        known.note_unseen(LogPos(30));
        let known = known.below(LogPos(50));
        assert_eq!(known.tail(A), tail(30, 29));
        assert_eq!(known.tail(B), tail(30, 29));
        assert_eq!(known.unseen(), LogPos(30));
    }

    #[test]
    fn a_checkpoint_that_counts_lost_tokens_is_cut_to_the_decided_tail() {
        let known = KnownStreams::noted(vec![(A, tail(9, 70))]);
        assert_eq!(known.below(LogPos(50)).tail(A), tail(9, 49));
    }
}
