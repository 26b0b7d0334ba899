//! What stays in memory of closed segments: a few dozen bytes each, and an order by key to find the right one.

use std::ops::Range;

use crate::limits::SEGMENT_RANGES_MAX;
use crate::range_set::RangeSet;

/// What a record takes besides its data, about: in its group, and as much in the footer.
const RECORD_OVERHEAD_BYTES: u64 = 160;

/// A closed segment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ClosedSegment {
    pub(crate) lap: u64,
    pub(crate) directory_offset: u32,
    /// 0 if it has no footer.
    pub(crate) directory_bytes: u32,
    pub(crate) directory_checksum: u32,
    /// Every key that a group in one of its holes can have held is below; 0 without holes.
    pub(crate) lost_below: u64,
    pub(crate) record_count: u64,
    pub(crate) data_bytes: u64,
    /// Covers the keys of its records, and perhaps some between them.
    pub(crate) ranges: Box<[Range<u64>]>,
}

impl ClosedSegment {
    /// The same, without a footer: until the next open, which makes one of the groups that it finds.
    pub(crate) fn without_footer(self) -> Self {
        Self { directory_offset: 0, directory_bytes: 0, directory_checksum: 0, ..self }
    }

    /// Bytes that those of its records take in large groups, about, that are `live`, where so many others are `dead`, and `most_bytes` is what
    /// all of them can take.
    pub(crate) fn packed_bytes(&self, live: u64, dead: u64, most_bytes: u64) -> u64 {
        let overhead_bytes = self.record_count.saturating_mul(RECORD_OVERHEAD_BYTES);
        let all_bytes = self.data_bytes.saturating_add(overhead_bytes).min(most_bytes);
        (all_bytes as f64 * live as f64 / (live as f64 + dead as f64).max(1.0)) as u64
    }

    /// Whether all that it holds, or can have held, is among the released keys.
    pub(crate) fn is_dead(&self, released: &RangeSet) -> bool {
        let is_dead = |range: &Range<u64>| released.gaps(range.clone()).next().is_none();
        // What its holes held may be anywhere below their bound.
        is_dead(&(0..self.lost_below)) && self.ranges.iter().all(is_dead)
    }
}

/// At most [`SEGMENT_RANGES_MAX`] ranges that cover `exact`, merged over the narrowest gaps.
pub(crate) fn coarse_ranges(exact: &[Range<u64>]) -> Box<[Range<u64>]> {
    let mut gaps: Vec<(u64, usize)> =
        exact.windows(2).enumerate().map(|(index, pair)| (pair[1].start - pair[0].end, index)).collect();
    // The widest gaps stay.
    gaps.sort_unstable_by(|a, b| b.cmp(a));
    gaps.truncate(SEGMENT_RANGES_MAX - 1);
    let mut cuts: Vec<usize> = gaps.into_iter().map(|(_, index)| index).collect();
    cuts.sort_unstable();
    let mut ranges = Vec::with_capacity(cuts.len() + 1);
    let mut first = 0;
    for cut in cuts.into_iter().chain(exact.len().checked_sub(1)) {
        ranges.push(exact[first].start..exact[cut].end);
        first = cut + 1;
    }
    ranges.into_boxed_slice()
}

#[derive(Clone, Copy, Debug)]
struct Span {
    start: u64,
    end: u64,
    segment: u32,
    /// The highest end of this span and all before it: a search that walks backwards stops by it.
    highest_end: u64,
}

/// Ranges of all closed segments by key.
#[derive(Debug, Default)]
pub(crate) struct KeyOrder {
    spans: Vec<Span>,
}

impl KeyOrder {
    pub(crate) fn add(&mut self, segment: u32, ranges: &[Range<u64>]) {
        for range in ranges {
            let place = self.spans.partition_point(|span| span.start <= range.start);
            self.spans.insert(place, Span { start: range.start, end: range.end, segment, highest_end: 0 });
            self.refresh(place);
        }
    }

    pub(crate) fn remove(&mut self, segment: u32) {
        let first = self.spans.iter().position(|span| span.segment == segment);
        self.spans.retain(|span| span.segment != segment);
        if let Some(first) = first {
            self.refresh(first);
        }
    }

    fn refresh(&mut self, from: usize) {
        let mut highest_end = if from == 0 { 0 } else { self.spans[from - 1].highest_end };
        for span in &mut self.spans[from..] {
            highest_end = highest_end.max(span.end);
            span.highest_end = highest_end;
        }
    }

    /// Segments that may hold a key in `keys`, with the first such key, by that key. May repeat a segment.
    pub(crate) fn candidates(&self, keys: Range<u64>) -> impl Iterator<Item = (u64, u32)> {
        let after = self.spans.partition_point(|span| span.start <= keys.start);
        let containing = self.spans[..after]
            .iter()
            .rev()
            .take_while(move |span| span.highest_end > keys.start)
            .filter(move |span| span.end > keys.start)
            .map(move |span| (keys.start, span.segment));
        let later = self.spans[after..]
            .iter()
            .take_while(move |span| span.start < keys.end)
            .map(|span| (span.start, span.segment));
        containing.chain(later)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coarse_ranges_keep_the_widest_gaps_and_cover_everything() {
        let exact: Vec<Range<u64>> = (0..20).map(|index| index * 10..index * 10 + 1 + index % 7).collect();
        let coarse = coarse_ranges(&exact);
        assert!(coarse.len() <= SEGMENT_RANGES_MAX);
        assert!(
            exact.iter().all(|range| coarse.iter().any(|c| c.start <= range.start && c.end >= range.end))
        );
        assert_eq!(*coarse_ranges(&[]), []);
        let one = 4..9;
        assert_eq!(coarse_ranges(std::slice::from_ref(&one)).first(), Some(&one));
    }

    #[test]
    fn a_wide_segment_does_not_hide_a_narrow_one() {
        let mut order = KeyOrder::default();
        let add = |order: &mut KeyOrder, segment, range: Range<u64>| order.add(segment, &[range]);
        add(&mut order, 1, 0..100);
        add(&mut order, 2, 100..200);
        order.add(3, &[5..6, 150..300]);
        let find = |order: &KeyOrder, keys| order.candidates(keys).collect::<Vec<_>>();
        assert_eq!(find(&order, 5..6), [(5, 3), (5, 1)]);
        assert_eq!(find(&order, 160..161), [(160, 3), (160, 2)]);
        assert_eq!(find(&order, 90..160), [(90, 1), (100, 2), (150, 3)]);
        order.remove(3);
        assert_eq!(find(&order, 160..161), [(160, 2)]);
        assert_eq!(find(&order, 200..u64::MAX), []);
    }
}
