//! The sequencer: a counter that hands out positions, for one epoch. A pure core.
//!
//! It stores nothing and is not needed for safety: log units accept each position once, whoever asks. A new one starts,
//! in a new epoch, at the tail that the layout states (Wei 3.3.3). A grant belongs to its holder in its own epoch only,
//! and covers appends that are queued already; what it does not use it fills.

use crate::limits;
use crate::planted::{Planted, PlantedBug};
use crate::pos::{Epoch, LogPos};
use crate::wire::{Grant, Refusal};

/// Grants positions of one epoch.
#[derive(Clone, Debug)]
pub struct Sequencer {
    epoch: Epoch,
    next: LogPos,
    planted: Planted,
}

impl Sequencer {
    /// Grants from `tail` on, in `epoch`. The layout of that epoch states the tail.
    pub fn start(epoch: Epoch, tail: LogPos) -> Self {
        Self::start_planted(epoch, tail, Planted::NONE)
    }

    /// The same, with a fault.
    pub fn start_planted(epoch: Epoch, tail: LogPos, planted: Planted) -> Self {
        let next = match planted.is(PlantedBug::SequencerStartsLow) {
            true => LogPos(tail.0.saturating_sub(1)),
            false => tail,
        };
        Self { epoch, next, planted }
    }

    /// The epoch that it serves.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The next `count` positions. Refuses another epoch ([`Refusal::WrongEpoch`]), a count of zero or over
    /// [`limits::GRANT_MAX_COUNT`], and to go past the last position; then nothing is used up.
    pub fn grant(&mut self, epoch: Epoch, count: u32) -> Result<Grant, Refusal> {
        self.check_epoch(epoch)?;
        if count == 0 || count > limits::GRANT_MAX_COUNT {
            return Err(Refusal::TooLarge { found: count.into(), limit: limits::GRANT_MAX_COUNT.into() });
        }
        let first = self.next;
        // A range that ends at the largest number holds the largest position, which is one less.
        let Some(end) = first.0.checked_add(count.into()) else { return Err(Refusal::Exhausted) };
        self.next = LogPos(if self.planted.is(PlantedBug::GrantOverlaps) { first.0 + 1 } else { end });
        Ok(Grant { first, count })
    }

    /// The next position that will be granted: every position below may have been written, none above has.
    pub fn tail(&self, epoch: Epoch) -> Result<LogPos, Refusal> {
        self.check_epoch(epoch)?;
        Ok(self.next)
    }

    fn check_epoch(&self, epoch: Epoch) -> Result<(), Refusal> {
        if epoch == self.epoch || self.planted.is(PlantedBug::SequencerAnyEpoch) {
            return Ok(());
        }
        Err(Refusal::WrongEpoch { serving: self.epoch, asked: epoch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pos::POSITION_MAX;

    /// Grants in the epoch and around it, with a new sequencer half way, as far as they are given.
    fn granted(planted: Planted) -> Vec<(u64, LogPos)> {
        let mut out = Vec::new();
        let mut ask = |sequencer: &mut Sequencer, epoch, count| {
            if let Ok(grant) = sequencer.grant(Epoch(epoch), count) {
                out.extend((0..u64::from(grant.count)).map(|at| (epoch, LogPos(grant.first.0 + at))));
            }
        };
        let mut old = Sequencer::start_planted(Epoch(1), LogPos(0), planted);
        ask(&mut old, 1, 3);
        ask(&mut old, 2, 1);
        ask(&mut old, 1, 1);
        let mut new = Sequencer::start_planted(Epoch(2), LogPos(4), planted);
        ask(&mut new, 1, 1);
        ask(&mut new, 2, 2);
        out
    }

    #[test]
    fn positions_are_granted_once_and_in_one_epoch_only() {
        let expected = [(1, 0), (1, 1), (1, 2), (1, 3), (2, 4), (2, 5)];
        assert_eq!(granted(Planted::NONE), expected.map(|(epoch, pos)| (epoch, LogPos(pos))));
    }

    #[test]
    fn each_planted_fault_of_the_sequencer_shows() {
        for bug in [PlantedBug::SequencerStartsLow, PlantedBug::SequencerAnyEpoch, PlantedBug::GrantOverlaps]
        {
            assert_ne!(granted(Planted::bug(bug)), granted(Planted::NONE), "{bug:?}");
        }
    }

    #[test]
    fn positions_never_wrap() {
        let mut sequencer = Sequencer::start(Epoch(1), LogPos(POSITION_MAX));
        assert_eq!(sequencer.grant(Epoch(1), 2), Err(Refusal::Exhausted));
        assert_eq!(sequencer.grant(Epoch(1), 1), Ok(Grant { first: LogPos(POSITION_MAX), count: 1 }));
        assert_eq!(sequencer.grant(Epoch(1), 1), Err(Refusal::Exhausted));
    }

    #[test]
    fn a_grant_of_nothing_or_of_too_much_is_refused() {
        let mut sequencer = Sequencer::start(Epoch(1), LogPos(0));
        for count in [0, limits::GRANT_MAX_COUNT + 1] {
            assert!(matches!(sequencer.grant(Epoch(1), count), Err(Refusal::TooLarge { .. })));
        }
        assert_eq!(sequencer.tail(Epoch(1)), Ok(LogPos(0)));
        assert_eq!(sequencer.tail(Epoch(2)), Err(Refusal::WrongEpoch { serving: Epoch(1), asked: Epoch(2) }));
    }
}
