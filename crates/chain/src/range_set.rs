//! A set of u64 kept as disjoint, coalesced ranges: its size is the number of gaps, not of members.

use std::collections::BTreeMap;
use std::ops::Range;

/// Half-open ranges, sorted, never touching each other. `u64::MAX` itself cannot be a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// First member of each range -> the number after its last.
    ends: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `range`; returns how many of its members were new.
    pub fn insert(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let Range { mut start, mut end } = range;
        let mut added = end - start;
        // The common case, an append that extends the last range, touches one node.
        if let Some((&first, last_end)) = self.ends.range_mut(..=start).next_back()
            && *last_end >= start
        {
            if *last_end >= end {
                return 0;
            }
            added -= *last_end - start;
            start = first;
        }
        while let Some((&first, &last_end)) = self.ends.range(start + 1..).next() {
            if first > end {
                break;
            }
            added -= last_end.min(end) - first;
            end = end.max(last_end);
            self.ends.remove(&first);
        }
        self.ends.insert(start, end);
        added
    }

    /// From the lowest of all members and `range` to the highest.
    pub fn hull_with(&self, range: Range<u64>) -> Range<u64> {
        let first = self.ends.first_key_value().map_or(range.start, |(&first, _)| first.min(range.start));
        let end = self.ends.last_key_value().map_or(range.end, |(_, &end)| end.max(range.end));
        first..end
    }

    /// Removes `range`; returns how many members went.
    pub fn remove(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let mut removed = 0;
        let overlapping: Vec<Range<u64>> = self.overlaps(range.clone()).collect();
        for part in overlapping {
            let (&first, &last_end) = self.ends.range(..=part.start).next_back().expect("it overlaps");
            self.ends.remove(&first);
            if first < part.start {
                self.ends.insert(first, part.start);
            }
            if part.end < last_end {
                self.ends.insert(part.end, last_end);
            }
            removed += part.end - part.start;
        }
        removed
    }

    /// Whether `member` is in the set.
    pub fn contains(&self, member: u64) -> bool {
        self.ends.range(..=member).next_back().is_some_and(|(_, &end)| end > member)
    }

    /// The parts of `range` that are in the set, in order.
    pub fn overlaps(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let before = self.ends.range(..range.start).next_back();
        let within = if range.is_empty() { self.ends.range(0..0) } else { self.ends.range(range.clone()) };
        before
            .into_iter()
            .chain(within)
            .map(move |(&first, &end)| first.max(range.start)..end.min(range.end))
            .filter(|part| !part.is_empty())
    }

    /// The parts of `range` that are not in the set, in order.
    pub fn gaps(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let end = range.end;
        let mut next = range.start;
        let mut covered = self.overlaps(range);
        std::iter::from_fn(move || {
            loop {
                if next >= end {
                    return None;
                }
                let gap = match covered.next() {
                    Some(part) => {
                        let gap = next..part.start;
                        next = part.end;
                        gap
                    }
                    None => std::mem::replace(&mut next, end)..end,
                };
                if !gap.is_empty() {
                    return Some(gap);
                }
            }
        })
    }

    /// The first number at or after `from` that is not in the set.
    pub fn first_gap(&self, from: u64) -> u64 {
        match self.ends.range(..=from).next_back() {
            Some((_, &end)) if end > from => end,
            _ => from,
        }
    }

    /// The highest member.
    pub fn last(&self) -> Option<u64> {
        self.ends.last_key_value().map(|(_, &end)| end - 1)
    }

    /// The ranges, in order.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.ends.iter().map(|(&start, &end)| start..end)
    }

    /// How many ranges it takes.
    pub fn range_count(&self) -> usize {
        self.ends.len()
    }

    /// Whether it has no member.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

impl FromIterator<Range<u64>> for RangeSet {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Self {
        let mut set = Self::new();
        for range in ranges {
            set.insert(range);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ithaca_env::sim::Random;

    use super::*;

    #[test]
    fn it_agrees_with_a_plain_set_of_numbers() {
        let mut random = Random::new(7);
        for _ in 0..200 {
            let (mut ranges, mut plain) = (RangeSet::new(), BTreeSet::new());
            for _ in 0..40 {
                let start = random.below(60);
                let range = start..start + random.below(8);
                let before = plain.len() as u64;
                if random.below(4) == 0 {
                    plain.retain(|member| !range.contains(member));
                    assert_eq!(ranges.remove(range), before - plain.len() as u64);
                } else {
                    plain.extend(range.clone());
                    assert_eq!(ranges.insert(range), plain.len() as u64 - before);
                }
                assert!((0..80).all(|n| ranges.contains(n) == plain.contains(&n)));
                assert_eq!(ranges.first_gap(10), (10..).find(|n| !plain.contains(n)).expect("finite"));
                assert_eq!(ranges.last(), plain.last().copied());
                let gaps: Vec<u64> = ranges.gaps(5..50).flatten().collect();
                assert_eq!(gaps, (5..50).filter(|n| !plain.contains(n)).collect::<Vec<_>>());
            }
            let touching = ranges.ranges().zip(ranges.ranges().skip(1)).any(|(a, b)| a.end >= b.start);
            assert!(!touching, "ranges are coalesced");
        }
    }
}
