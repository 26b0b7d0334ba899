//! Latencies in buckets that grow with the value: 64 to each power of two, so that a quantile is within 2 percent.

/// Buckets to each power of two, as a power of two.
const SUB_BITS: u32 = 6;
const SUBS: usize = 1 << SUB_BITS;
/// Values from 2^40 ns (18 minutes) on share the last bucket.
const TOP_BITS: u32 = 40;
const BUCKETS: usize = (TOP_BITS - SUB_BITS + 1) as usize * SUBS;

/// Counts of latencies in nanoseconds.
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

impl Histogram {
    /// An empty one.
    pub fn new() -> Self {
        Self { counts: vec![0; BUCKETS], total: 0 }
    }

    /// Adds `count` operations that took `ns` each.
    pub fn record(&mut self, ns: u64, count: u64) {
        self.counts[bucket(ns)] += count;
        self.total += count;
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.total = 0;
    }

    /// The latency in microseconds that the share `quantile` of operations kept within; not a number if there are none.
    pub fn quantile_us(&self, quantile: f64) -> f64 {
        if self.total == 0 {
            return f64::NAN;
        }
        let wanted = ((self.total as f64 * quantile).ceil() as u64).max(1);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return middle_ns(index) as f64 / 1000.0;
            }
        }
        unreachable!("the buckets hold every operation")
    }
}

fn bucket(ns: u64) -> usize {
    let ns = ns.min((1 << TOP_BITS) - 1);
    if ns < SUBS as u64 {
        return ns as usize;
    }
    let shift = ns.ilog2() - SUB_BITS;
    // The leading bit makes the row, the bits after it the place in the row.
    (shift as usize + 1) * SUBS + (ns >> shift) as usize - SUBS
}

/// The middle of a bucket.
fn middle_ns(index: usize) -> u64 {
    if index < SUBS {
        return index as u64;
    }
    let shift = (index / SUBS - 1) as u32;
    let low = ((index % SUBS + SUBS) as u64) << shift;
    low + (1 << shift) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_comes_back_within_two_percent() {
        for ns in [0, 1, 63, 64, 65, 127, 128, 999, 50_000, 1_234_567, 99_999_999_999] {
            let back = middle_ns(bucket(ns));
            assert!(back.abs_diff(ns) * 50 <= ns, "{ns} came back as {back}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn buckets_follow_each_other_without_a_gap() {
        assert!((1..1_000_000u64).all(|ns| matches!(bucket(ns) - bucket(ns - 1), 0 | 1)));
    }

    #[test]
    fn quantiles_count_operations_not_recordings() {
        let mut histogram = Histogram::new();
        histogram.record(1_000, 98);
        histogram.record(1_000_000, 2);
        assert!((histogram.quantile_us(0.5) - 1.0).abs() < 0.02);
        assert!((histogram.quantile_us(0.99) - 1000.0).abs() < 20.0);
        histogram.clear();
        assert!(histogram.quantile_us(0.5).is_nan() && histogram.total == 0);
    }
}
