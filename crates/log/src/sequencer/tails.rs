//! Where streams end, in the order of their ids, with the busy ones at hand.
//!
//! ```text
//!   near:   by a few bits of the id, the stream that was granted to last ──┐
//!   order:  id ──────────────────────────────────────────────────────────► place ─► tail
//! ```
//!
//! A stream that is granted to all the time is found in one step, however many others there are.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::limits;
use crate::pos::StreamId;
use crate::stream::StreamTail;

/// Streams that are at hand at the most. A power of two.
const NEAR_COUNT: usize = 1 << 10;
/// The place of no stream.
const NOWHERE: u32 = u32::MAX;

const _: () = assert!(limits::STREAMS_KNOWN_MAX_COUNT < NOWHERE as usize);

/// Streams with where each ends.
#[derive(Clone, Debug)]
pub(super) struct Tails {
    /// The place of each stream's tail.
    order: BTreeMap<StreamId, u32>,
    tails: Vec<StreamTail>,
    near: Vec<(StreamId, u32)>,
}

impl Tails {
    /// Where a stream ends.
    pub(super) fn get(&self, stream: StreamId) -> Option<StreamTail> {
        let place = self.at_hand(stream).or_else(|| self.order.get(&stream).copied())?;
        Some(self.tails[place as usize])
    }

    /// The same, to be changed. The stream is at hand from now on.
    pub(super) fn get_mut(&mut self, stream: StreamId) -> Option<&mut StreamTail> {
        let place = match self.at_hand(stream) {
            Some(place) => place,
            None => {
                let place = *self.order.get(&stream)?;
                self.near[slot(stream)] = (stream, place);
                place
            }
        };
        Some(&mut self.tails[place as usize])
    }

    /// Adds a stream that is not there.
    pub(super) fn add(&mut self, stream: StreamId, tail: StreamTail) {
        let place = self.tails.len() as u32;
        self.tails.push(tail);
        assert_eq!(self.order.insert(stream, place), None, "a stream is added once");
        self.near[slot(stream)] = (stream, place);
    }

    /// Every tail, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut StreamTail> {
        self.tails.iter_mut()
    }

    /// The streams behind `after`, ascending.
    pub(super) fn after(&self, after: Option<StreamId>) -> impl Iterator<Item = (StreamId, StreamTail)> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let places = self.order.range((start, Bound::Unbounded));
        places.map(|(stream, place)| (*stream, self.tails[*place as usize]))
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

/// Ascending, each stream once.
impl FromIterator<(StreamId, StreamTail)> for Tails {
    fn from_iter<T: IntoIterator<Item = (StreamId, StreamTail)>>(streams: T) -> Self {
        let (mut ids, mut tails) = (Vec::new(), Vec::new());
        for (stream, tail) in streams {
            ids.push(stream);
            tails.push(tail);
        }
        let order = ids.into_iter().zip(0..).collect();
        Self { order, tails, near: vec![(StreamId(0), NOWHERE); NEAR_COUNT] }
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
            assert_eq!(tails.get(stream), model.get(&stream).copied());
            match (tails.get_mut(stream), model.get_mut(&stream)) {
                (Some(tail), Some(known)) => {
                    assert_eq!(tail, known);
                    (tail.next, known.next) = (next, next);
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
