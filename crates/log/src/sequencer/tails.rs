//! Where streams end and when all of each was changed last, in the order of their ids, with the busy ones at hand.
//!
//! ```text
//!   near:   by a few bits of the id, the stream that was granted to last ──┐
//!   order:  id ──────────────────────────────────────────────────────────► place ─► tail, writes
//! ```
//!
//! A stream that is granted to all the time is found in one step, however many others there are.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::limits;
use crate::pos::{LogPos, StreamId};
use crate::stream::StreamTail;

/// Streams that are at hand at the most. A power of two.
const NEAR_COUNT: usize = 1 << 10;
/// The place of no stream.
const NOWHERE: u32 = u32::MAX;

const _: () = assert!(limits::STREAMS_KNOWN_MAX_COUNT < NOWHERE as usize);

/// What is known of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownStream {
    pub(super) tail: StreamTail,
    pub(super) writes: WholeWrites,
}

impl KnownStream {
    /// One that ends there, without a write.
    pub(super) fn ending(tail: StreamTail) -> Self {
        Self { tail, writes: WholeWrites::default() }
    }
}

/// What is known of an epoch's writes of a stream, beside the latest ones of its parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WholeWrites {
    /// The last one that changed all of it.
    pub(super) last: Option<LogPos>,
    /// Every write at or above this position is remembered.
    pub(super) low_water: LogPos,
}

impl WholeWrites {
    /// The write of a part at `pos` is not remembered.
    pub(super) fn forget(&mut self, pos: LogPos) {
        self.low_water = self.low_water.max(LogPos(pos.0 + 1));
    }
}

/// Streams with what is known of each.
#[derive(Clone, Debug)]
pub(super) struct Tails {
    /// The place of each stream.
    order: BTreeMap<StreamId, u32>,
    streams: Vec<KnownStream>,
    near: Vec<(StreamId, u32)>,
}

impl Tails {
    /// What is known of a stream.
    pub(super) fn get(&self, stream: StreamId) -> Option<KnownStream> {
        let place = self.at_hand(stream).or_else(|| self.order.get(&stream).copied())?;
        Some(self.streams[place as usize])
    }

    /// The place of a stream, which is at hand from now on.
    pub(super) fn place(&mut self, stream: StreamId) -> Option<u32> {
        self.at_hand(stream).or_else(|| {
            let place = *self.order.get(&stream)?;
            self.near[slot(stream)] = (stream, place);
            Some(place)
        })
    }

    /// What is known of the stream at a place, to be changed.
    pub(super) fn at(&mut self, place: u32) -> &mut KnownStream {
        &mut self.streams[place as usize]
    }

    /// Adds a stream that is not there, without a write. Its place.
    pub(super) fn add(&mut self, stream: StreamId, tail: StreamTail) -> u32 {
        let place = self.streams.len() as u32;
        self.streams.push(KnownStream::ending(tail));
        assert_eq!(self.order.insert(stream, place), None, "a stream is added once");
        self.near[slot(stream)] = (stream, place);
        place
    }

    /// Every tail, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut StreamTail> {
        self.streams.iter_mut().map(|known| &mut known.tail)
    }

    /// The streams behind `after`, ascending.
    pub(super) fn after(&self, after: Option<StreamId>) -> impl Iterator<Item = (StreamId, StreamTail)> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let places = self.order.range((start, Bound::Unbounded));
        places.map(|(stream, place)| (*stream, self.streams[*place as usize].tail))
    }

    fn at_hand(&self, stream: StreamId) -> Option<u32> {
        let (near, place) = self.near[slot(stream)];
        (near == stream && place != NOWHERE).then_some(place)
    }
}

impl Default for Tails {
    fn default() -> Self {
        [].into_iter().collect()
    }
}

/// Ascending, each stream once; without a write.
impl FromIterator<(StreamId, StreamTail)> for Tails {
    fn from_iter<T: IntoIterator<Item = (StreamId, StreamTail)>>(streams: T) -> Self {
        let known = |(stream, tail)| (stream, KnownStream::ending(tail));
        let (ids, streams): (Vec<_>, _) = streams.into_iter().map(known).unzip();
        let order = ids.into_iter().zip(0..).collect();
        Self { order, streams, near: vec![(StreamId(0), NOWHERE); NEAR_COUNT] }
    }
}

/// Where a stream is at hand.
fn slot(stream: StreamId) -> usize {
    let folded = stream.0 as u64 ^ (stream.0 >> 64) as u64;
    (folded.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - NEAR_COUNT.trailing_zeros())) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ithaca_env::sim::Random;

    use super::*;
    use crate::pos::StreamPos;

    #[test]
    fn streams_end_where_a_map_says_though_many_share_their_place_at_hand() {
        // One that is taken for another at its place is granted the other's positions.
        let mut random = Random::new(1);
        let first: BTreeMap<StreamId, StreamTail> =
            (0..2000).map(|nth: u128| (StreamId(nth << 60 | nth), StreamTail::default())).collect();
        let (mut tails, mut model): (Tails, _) = (first.clone().into_iter().collect(), first);
        for round in 0..20_000 {
            let nth = u128::from(random.below(4000));
            let (stream, next) = (StreamId(nth << 60 | nth), StreamPos(round));
            assert_eq!(tails.get(stream).map(|known| known.tail), model.get(&stream).copied());
            let known = tails.place(stream).map(|place| tails.at(place));
            match (known, model.get_mut(&stream)) {
                (Some(stream), Some(known)) => {
                    assert_eq!(stream.tail, *known);
                    (stream.tail.next, known.next) = (next, next);
                }
                (None, None) => {
                    let tail = StreamTail { next, last: None };
                    tails.add(stream, tail);
                    model.insert(stream, tail);
                }
                (tail, known) => panic!("{stream:?}: {tail:?} and {known:?}"),
            }
        }
        for after in [None, Some(StreamId(0)), Some(StreamId(700 << 60)), model.keys().last().copied()] {
            let behind = model.iter().filter(|(stream, _)| Some(**stream) > after);
            assert!(tails.after(after).eq(behind.map(|(stream, tail)| (*stream, *tail))), "{after:?}");
        }
    }
}
