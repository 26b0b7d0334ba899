//! A point in time: nanoseconds since the environment began.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// Nanoseconds since the environment began; monotonic, never a date. Virtual in a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The beginning of the environment.
    pub const ZERO: Time = Time(0);
    /// Later than every time that is reached (584 years).
    pub const MAX: Time = Time(u64::MAX);

    /// Time since `earlier`, zero if `earlier` is later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    /// Saturates at [`Time::MAX`].
    fn add(self, span: Duration) -> Time {
        let span_ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Time(self.0.saturating_add(span_ns))
    }
}

impl Sub<Duration> for Time {
    type Output = Time;
    /// Saturates at [`Time::ZERO`].
    fn sub(self, span: Duration) -> Time {
        let span_ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Time(self.0.saturating_sub(span_ns))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}ms", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}
