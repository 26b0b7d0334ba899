//! What a measurement is made of: a histogram of latencies, the CPU that a process has used, and the figure that one slice
//! of a workload gives.

use std::process::Command;

use rustix::time::{ClockId, clock_gettime};

/// Sub-buckets of each power of two: values are kept to within 1/32.
const SUB_BUCKETS: usize = 32;

/// Latencies in nanoseconds, to within 3 %.
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; 64 * SUB_BUCKETS], total: 0 }
    }
}

impl Histogram {
    /// Adds `times` samples of `nanos`.
    pub fn add(&mut self, nanos: u64, times: u64) {
        self.counts[bucket_of(nanos)] += times;
        self.total += times;
    }

    /// Adds all samples of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, more)| *mine += more);
        self.total += other.total;
    }

    /// How many samples.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The latency in microseconds that a share `quantile` of the samples does not exceed; 0 without samples.
    pub fn quantile_us(&self, quantile: f64) -> f64 {
        let sought = (self.total as f64 * quantile).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= sought.max(1) {
                return middle_of(bucket) / 1000.0;
            }
        }
        0.0
    }
}

fn bucket_of(nanos: u64) -> usize {
    if nanos < SUB_BUCKETS as u64 {
        return nanos as usize;
    }
    let power = nanos.ilog2() as usize;
    let sub = (nanos >> (power - 5)) as usize & (SUB_BUCKETS - 1);
    (power - 4) * SUB_BUCKETS + sub
}

fn middle_of(bucket: usize) -> f64 {
    if bucket < SUB_BUCKETS {
        return bucket as f64;
    }
    let (power, sub) = (bucket / SUB_BUCKETS + 4, bucket % SUB_BUCKETS);
    ((SUB_BUCKETS + sub) as f64 + 0.5) * f64::powi(2.0, power as i32 - 5)
}

/// User and system time of this process so far, in nanoseconds.
pub fn process_cpu_nanos() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Processor time of this thread in nanoseconds.
pub fn thread_cpu_nanos() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds of a clock that only goes forward.
pub fn wall_nanos() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The first line that a program prints, or a question mark: a result without a commit is still a result.
pub fn said_by(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().filter(|line| !line.is_empty()).unwrap_or("?").to_string()
}

/// What one slice of a workload gave.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figure {
    /// Operations a second.
    pub ops_per_s: f64,
    /// Median latency of an operation, microseconds.
    pub p50_us: f64,
    /// 99th percentile of it.
    pub p99_us: f64,
    /// CPU of the client for each operation, microseconds; 0 where only the sum is known.
    pub client_cpu_us: f64,
    /// CPU of the servers for each operation, microseconds; the sum of both sides where only that is known.
    pub server_cpu_us: f64,
    /// Median time of the server's own flushes during the slice, microseconds; 0 where there are none.
    pub flush_us: f64,
}

impl Figure {
    /// Client and server together, microseconds an operation.
    pub fn cpu_us(&self) -> f64 {
        self.client_cpu_us + self.server_cpu_us
    }
}

/// The median of `values`; 0 of none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_three_percent() {
        let mut histogram = Histogram::default();
        (1..=100_000).for_each(|nanos| histogram.add(nanos, 1));
        for quantile in [0.01, 0.5, 0.99] {
            let (found, expected) = (histogram.quantile_us(quantile), quantile * 100.0);
            assert!((found / expected - 1.0).abs() < 0.03, "{quantile}: {found} us, expected {expected}");
        }
        assert_eq!(Histogram::default().quantile_us(0.5), 0.0);
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(median([4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([]), 0.0);
    }
}
