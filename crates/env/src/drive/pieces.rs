//! Bytes that are written as one although they lie apart in memory.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::PageBuf;
use crate::limits::BLOCK_BYTES;

/// Bytes one behind the other that may lie in several places. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Pieces {
    /// None is empty; each with where it ends among all.
    pieces: Arc<[(usize, Bytes)]>,
}

impl From<Bytes> for Pieces {
    fn from(whole: Bytes) -> Self {
        Self::from_iter([whole])
    }
}

impl FromIterator<Bytes> for Pieces {
    fn from_iter<I: IntoIterator<Item = Bytes>>(pieces: I) -> Self {
        let mut end = 0;
        let ends = pieces.into_iter().filter(|piece| !piece.is_empty()).map(|piece| {
            end += piece.len();
            (end, piece)
        });
        Self { pieces: ends.collect() }
    }
}

impl Pieces {
    /// Bytes of all pieces together.
    pub fn len(&self) -> usize {
        self.pieces.last().map_or(0, |(end, _)| *end)
    }

    /// Whether there is not one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pieces that are not empty, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Bytes> {
        self.pieces.iter().map(|(_, piece)| piece)
    }

    /// The bytes of a range: shared if they lie in one piece, else copied. Panics past the end.
    pub fn slice(&self, range: Range<usize>) -> Bytes {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of {} bytes", self.len());
        let first = self.pieces.partition_point(|(end, _)| *end <= range.start);
        let parts = self.pieces[first..].iter().map_while(|(end, piece)| {
            let start = end - piece.len();
            let (from, to) = (range.start.max(start), range.end.min(*end));
            (from < to).then(|| piece.slice(from - start..to - start))
        });
        let mut parts = parts.peekable();
        let Some(part) = parts.next() else { return Bytes::new() };
        if parts.peek().is_none() {
            return part;
        }
        let mut joined = PageBuf::with_capacity(range.len());
        joined.extend(&part);
        parts.for_each(|part| joined.extend(&part));
        joined.freeze().slice(..range.len())
    }

    /// All bytes in one piece: shared if they lie so, else copied.
    pub fn joined(&self) -> Bytes {
        self.slice(0..self.len())
    }
}

/// Whether a drive takes these bytes as they lie in memory, without a copy: they begin on a block boundary.
pub fn is_on_block_boundary(bytes: &[u8]) -> bool {
    (bytes.as_ptr() as usize).is_multiple_of(BLOCK_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_shared_within_a_piece_and_joined_across_them() {
        let whole: Bytes = (0..100).collect();
        let ends = [0, 10, 10, 11, 60, 100];
        let pieces: Pieces = ends.windows(2).map(|ends| whole.slice(ends[0]..ends[1])).collect();
        assert_eq!((pieces.len(), pieces.iter().count()), (100, 4));
        for start in 0..100 {
            assert_eq!(pieces.slice(start..start), Bytes::new());
            for end in start + 1..=100 {
                let found = pieces.slice(start..end);
                assert_eq!(found, whole.slice(start..end), "{start}..{end}");
                let is_within = ends.windows(2).any(|ends| ends[0] <= start && end <= ends[1]);
                let is_shared = found.as_ptr() == whole[start..].as_ptr();
                assert_eq!(is_shared, is_within, "{start}..{end}");
            }
        }
        assert_eq!(pieces.joined(), whole);
    }

    #[test]
    fn there_may_be_no_bytes() {
        for empty in [Pieces::from_iter([]), Pieces::from(Bytes::new())] {
            assert!(empty.is_empty());
            assert_eq!(empty.joined(), Bytes::new());
        }
    }
}
