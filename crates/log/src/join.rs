//! The answers of the units that write one append's parts, as one answer. A pure core.
//!
//! An append that is sent whole may lie on several units. Its answer waits for all of them, because it says of every entry
//! whether it is on stable storage.

use crate::planted::{Planted, PlantedBug};

/// An append whose parts are being written.
#[derive(Clone, Debug)]
pub struct Join {
    left: usize,
    written: bool,
    planted: Planted,
}

impl Join {
    /// An append in `parts` parts, at least one.
    pub fn new(parts: usize, planted: Planted) -> Self {
        assert!(parts > 0, "an append has a part");
        Self { left: parts, written: true, planted }
    }

    /// One part was answered: `written` says that all of it is on stable storage. After the last part, whether all parts
    /// are; before, nothing.
    pub fn answered(&mut self, written: bool) -> Option<bool> {
        assert!(self.left > 0, "each part is answered once");
        self.left -= 1;
        self.written &= written || self.planted.is(PlantedBug::RefusedPartCounts);
        let early = self.planted.is(PlantedBug::FirstPartAnswers) && written;
        (self.left == 0 || early).then_some(self.written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(planted: Planted, parts: &[bool]) -> Vec<Option<bool>> {
        let mut join = Join::new(parts.len(), planted);
        parts.iter().map(|&written| join.answered(written)).collect()
    }

    #[test]
    fn an_append_is_written_when_the_last_part_is_and_every_part_was() {
        let none = Planted::NONE;
        assert_eq!(verdicts(none, &[true]), [Some(true)]);
        assert_eq!(verdicts(none, &[true, true, true]), [None, None, Some(true)]);
        assert_eq!(verdicts(none, &[false, true]), [None, Some(false)]);
        assert_eq!(verdicts(none, &[true, false]), [None, Some(false)]);
    }

    #[test]
    fn each_planted_fault_of_a_join_shows() {
        for bug in [PlantedBug::FirstPartAnswers, PlantedBug::RefusedPartCounts] {
            let parts = [[true, true], [false, true]];
            let differs =
                |parts: &[bool; 2]| verdicts(Planted::bug(bug), parts) != verdicts(Planted::NONE, parts);
            assert!(parts.iter().any(differs), "{bug:?}");
        }
    }
}
