//! Random choices that a seed repeats. What the processes under test make of them is up to the machine.

use std::time::SystemTime;

/// A stream of random numbers (splitmix64).
pub struct Random(u64);

impl Random {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// One that differs from run to run.
    pub fn from_clock() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self::new(since.as_nanos() as u64 ^ u64::from(std::process::id()).rotate_left(32))
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.next_u64() % end }
    }

    /// A number in `[first, end)`.
    pub fn within(&mut self, first: f64, end: f64) -> f64 {
        first + (end - first) * (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True `times` of a hundred times.
    pub fn percent(&mut self, times: u64) -> bool {
        self.below(100) < times
    }
}
