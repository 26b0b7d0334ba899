//! Which version was the newest when, as far as a bound on the age of what is read needs it. Pure.
//!
//! What is remembered is too new rather than too old: of the time between two notes it is known only that the version was at most that
//! of the later one. So an answer may ask for more than it has to, by the time between two notes, never for less.

use std::collections::VecDeque;
use std::time::Duration;

use ithaca_env::Time;

use crate::limits::TIME_NOTES_MAX;
use crate::planted::{Planted, PlantedBug};

/// See the module.
pub(crate) struct Times {
    /// Ascending in both.
    notes: VecDeque<(Time, u64)>,
    /// Notes are at least so far apart.
    apart: Duration,
    planted: Planted,
}

/// Notes are so far apart at first.
const APART: Duration = Duration::from_micros(100);

impl Times {
    /// Of a volume that is opened now and whose newest version is this one.
    pub(crate) fn new(now: Time, newest: u64, planted: Planted) -> Self {
        Self { notes: VecDeque::from([(now, newest)]), apart: APART, planted }
    }

    /// `newest` is the newest durable version now.
    pub(crate) fn note(&mut self, now: Time, newest: u64) {
        let is_due = self
            .notes
            .back()
            .is_none_or(|(last, version)| *version < newest && now.since(*last) >= self.apart);
        if !is_due {
            return;
        }
        self.notes.push_back((now, newest));
        if self.notes.len() > TIME_NOTES_MAX {
            // Every other one goes, so that the same memory reaches twice as far back.
            let mut at = 0;
            self.notes.retain(|_| {
                at += 1;
                at % 2 == 0
            });
            self.apart *= 2;
        }
    }

    /// A version that has everything that was durable at `then`; `newest` is the newest now.
    pub(crate) fn newest_at(&self, then: Time, newest: u64) -> u64 {
        let after = self.notes.partition_point(|(time, _)| *time < then);
        let after =
            if self.planted.is(PlantedBug::AgeByEarlierNote) { after.saturating_sub(1) } else { after };
        self.notes.get(after).map_or(newest, |(_, version)| *version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_all_that_was_there_then_and_memory_is_bounded() {
        // Noted too early, a version would be taken for older than it is, and a reader be given what is too old.
        let mut times = Times::new(Time(0), 0, Planted::default());
        let mut newest_at = Vec::new();
        for step in 0..20_000u64 {
            let newest = step / 3;
            times.note(Time(step * 40_000), newest);
            newest_at.push(newest);
            if step % 97 == 0 {
                for ago in [0, 1, 10, 500, 5_000] {
                    let then = step.saturating_sub(ago);
                    let found = times.newest_at(Time(then * 40_000), newest);
                    assert!(found >= newest_at[then as usize], "{step} {ago}");
                    assert!(found <= newest);
                }
            }
        }
        assert!(times.notes.len() <= TIME_NOTES_MAX);
        let (now, newest) = (Time(20_000 * 40_000), 19_999 / 3);
        let old = times.newest_at(now - Duration::from_millis(400), newest);
        assert!(old < newest * 2 / 3, "what is old is known to be old: {old} of {newest}");
    }
}
