//! Which versions are asked for their costs, and which one is taken (Yogurt, section 5.1). Pure.

use super::cost::Cost;
use crate::limits::COST_BUDGET_MAX;
use crate::options::Version;

/// Versions from `first` to `last`, both among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionRange {
    /// The lowest.
    pub first: Version,
    /// The highest; not below the lowest.
    pub last: Version,
}

impl VersionRange {
    /// Whether a version is among them.
    pub fn has(&self, version: Version) -> bool {
        (self.first..=self.last).contains(&version)
    }

    /// The versions that both have; nothing if there is none.
    pub fn common(&self, other: &VersionRange) -> Option<VersionRange> {
        let common = VersionRange { first: self.first.max(other.first), last: self.last.min(other.last) };
        (common.first <= common.last).then_some(common)
    }

    /// At most `budget` versions, evenly spread, the first and the last among them if the budget is 2 or more; ascending, each once. A
    /// budget of 1 gives the first. At most [`COST_BUDGET_MAX`] are given, at least one.
    ///
    /// Equation 1 of the paper has `n` go from 0 to Q, which makes Q + 1 queries of which the last lies above the range (its own example has
    /// three for Q = 3); and it rounds `(up - low) / (Q - 1)` down before it multiplies by `n`, so that a range of 10 is asked at 0 to 7 only
    /// with Q = 8, and one that is shorter than Q - 1 at its lowest version alone. Here `n` ends at Q - 1, and what is rounded is the product.
    pub fn spread(&self, budget: usize) -> impl Iterator<Item = Version> + use<> {
        let (low, span) = (self.first.0, self.last.0 - self.first.0);
        let count = (budget.clamp(1, COST_BUDGET_MAX) as u64).min(span.saturating_add(1));
        let steps = (count - 1).max(1);
        // The product of span and n in two parts, so that it fits.
        let (step, rest) = (span / steps, span % steps);
        (0..count).map(move |n| Version(low + step * n + rest * n / steps))
    }
}

/// The cheapest of these, the earliest of equals. With versions that ascend that is the oldest, which leaves most for later reads to
/// choose from.
pub(crate) fn cheapest<T>(found: impl IntoIterator<Item = (T, Cost)>) -> Option<(T, Cost)> {
    found.into_iter().min_by_key(|(_, cost)| *cost)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check((first, last): (u64, u64), budget: usize, expected: &[u64]) {
        let range = VersionRange { first: Version(first), last: Version(last) };
        let spread: Vec<u64> = range.spread(budget).map(|version| version.0).collect();
        assert_eq!(spread, expected, "{first} to {last} with {budget}");
    }

    #[test]
    fn a_range_is_asked_from_end_to_end_and_never_outside_it() {
        check((5, 9), 3, &[5, 7, 9]);
        check((0, 10), 8, &[0, 1, 2, 4, 5, 7, 8, 10]);
        check((3, 5), 8, &[3, 4, 5]);
        check((3, 3), 8, &[3]);
        check((3, 9), 1, &[3]);
        check((3, 9), 0, &[3]);
        check((0, u64::MAX), 2, &[0, u64::MAX]);
        let range = VersionRange { first: Version(0), last: Version(u64::MAX) };
        assert_eq!(range.spread(usize::MAX).count(), COST_BUDGET_MAX);
    }

    #[test]
    fn of_equal_costs_the_oldest_version_is_taken() {
        let found = [(1, Cost(5)), (2, Cost(3)), (3, Cost(3))];
        assert_eq!(cheapest(found), Some((2, Cost(3))));
    }

    #[test]
    fn ranges_shrink_to_what_both_have() {
        let range = |first, last| VersionRange { first: Version(first), last: Version(last) };
        assert_eq!(range(0, 10).common(&range(1, 5)), Some(range(1, 5)));
        assert_eq!(range(1, 5).common(&range(3, 9)), Some(range(3, 5)));
        assert_eq!(range(1, 5).common(&range(6, 9)), None);
    }
}
