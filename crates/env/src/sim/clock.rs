//! A process's clocks: a monotonic one that runs a little fast or slow, and a date that may be anything.

use crate::Time;

const BILLION: i128 = 1_000_000_000;

/// 2026-01-01 00:00 UTC in milliseconds: where every world begins.
const WORLD_BEGINS_MS: i64 = 1_767_225_600_000;

/// Local time is `base_local` at the world's time `base` and runs `rate_ppb` faster than it from there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    base: Time,
    base_local: u64,
    rate_ppb: i64,
    wall_offset_ms: i64,
}

impl Clock {
    pub(super) fn new(born: Time, rate_ppb: i64, wall_offset_ms: i64) -> Self {
        Self { base: born, base_local: 0, rate_ppb, wall_offset_ms }
    }

    /// The process's monotonic time when the world's time is `now`.
    pub(super) fn local(&self, now: Time) -> Time {
        let passed = now.0.saturating_sub(self.base.0);
        if self.rate_ppb == 0 {
            return Time(self.base_local.saturating_add(passed));
        }
        let gained = i128::from(passed) * i128::from(self.rate_ppb) / BILLION;
        Time(u64::try_from(i128::from(self.base_local) + i128::from(passed) + gained).unwrap_or(u64::MAX))
    }

    /// The world's time at which the local time reaches `local`, to within a nanosecond either way.
    pub(super) fn world(&self, local: Time) -> Time {
        let ahead = local.0.saturating_sub(self.base_local);
        if self.rate_ppb == 0 {
            return Time(self.base.0.saturating_add(ahead));
        }
        let passed = (i128::from(ahead) * BILLION).div_euclid(BILLION + i128::from(self.rate_ppb));
        Time(self.base.0.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX)))
    }

    pub(super) fn wall_ms(&self, now: Time) -> u64 {
        let ms = WORLD_BEGINS_MS + (now.0 / 1_000_000) as i64 + self.wall_offset_ms;
        u64::try_from(ms).unwrap_or(0)
    }

    pub(super) fn set_rate(&mut self, now: Time, rate_ppb: i64) {
        let local = self.local(now);
        *self = Self { base: now, base_local: local.0, rate_ppb, ..*self };
    }

    pub(super) fn jump_wall(&mut self, by_ms: i64) {
        self.wall_offset_ms = self.wall_offset_ms.saturating_add(by_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fast_clock_gains_what_its_rate_says_and_keeps_it_when_the_rate_changes() {
        let mut clock = Clock::new(Time(1000), 500_000, 0);
        assert_eq!(clock.local(Time(1000 + 2_000_000)), Time(2_001_000));
        clock.set_rate(Time(1000 + 2_000_000), 0);
        assert_eq!(clock.local(Time(1000 + 3_000_000)), Time(3_001_000));
        assert_eq!(clock.world(Time(3_001_000)), Time(1000 + 3_000_000));
    }

    #[test]
    fn the_way_back_from_local_to_world_time_is_exact_to_a_nanosecond() {
        for rate in [-500_000, -1, 1, 333_333, 500_000] {
            let clock = Clock::new(Time(77), rate, 0);
            for at in [78, 1_000_003, 5_000_000_000_001] {
                let back = clock.world(clock.local(Time(at)));
                assert!(back.0.abs_diff(at) <= 1, "{rate} {at} {back:?}");
            }
        }
    }
}
