//! How space comes back that released records take up: whether a chain is cleaned, and which segment is next. Pure.

/// How a chain makes room of segments in which some records are released and some are not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cleaning {
    /// Not at all: a segment is free when all of its records are released.
    Off,
    /// The records that are left of a segment are written again at the tail of the log (Gecko, section 3.1).
    #[default]
    MoveToTail,
    /// They are collected in segments of their own in the body of the log, on another drive than the tail if one has room, so
    /// that the log has the tail for itself (Gecko, section 3.3, compact-in-body). If the body has no room, at the tail.
    CompactInBody,
}

/// Which segment is cleaned next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Victims {
    /// The one that was begun first: the head of the log (Gecko, section 3.1).
    HeadOfLog,
    /// The one that gives the most room for what has to be moved, the older the better: what has been there for long will
    /// stay, so the room stays too (the cost-benefit policy of log-structured file systems).
    #[default]
    CostBenefit,
}

/// A segment that may be cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) segment: u32,
    pub(crate) lap: u64,
    /// What is to be moved, about, in the unit of all candidates.
    pub(crate) live: u64,
    /// What that gives.
    pub(crate) gain: u64,
}

impl Victims {
    /// The segment to clean next, when `newest_lap` is the highest lap in use. One that gives nothing is none.
    pub(crate) fn choose(
        self,
        candidates: impl Iterator<Item = Candidate>,
        newest_lap: u64,
    ) -> Option<Candidate> {
        let candidates = candidates.filter(|it| it.gain > 0);
        match self {
            Self::HeadOfLog => candidates.min_by_key(|it| it.lap),
            Self::CostBenefit => {
                candidates.max_by(|a, b| a.benefit(newest_lap).total_cmp(&b.benefit(newest_lap)))
            }
        }
    }
}

impl Candidate {
    /// Room that comes free, times how long it will stay so, for what is read and written.
    fn benefit(&self, newest_lap: u64) -> f64 {
        let age = newest_lap.saturating_sub(self.lap) + 1;
        let (live, gain) = (self.live as f64, self.gain as f64);
        gain * age as f64 / (2.0 * live + gain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(policy: Victims, candidates: &[(u64, u64, u64)]) -> Option<u64> {
        let of = |&(lap, live, gain)| Candidate { segment: 0, lap, live, gain };
        policy.choose(candidates.iter().map(of), 10).map(|it| it.lap)
    }

    #[test]
    fn the_head_of_the_log_is_the_oldest_that_gives_anything() {
        assert_eq!(choose(Victims::HeadOfLog, &[(5, 0, 9), (3, 8, 1), (2, 9, 0)]), Some(3));
        assert_eq!(choose(Victims::HeadOfLog, &[(2, 9, 0)]), None);
    }

    #[test]
    fn cost_and_benefit_prefer_what_is_empty_and_among_equals_what_is_old() {
        assert_eq!(choose(Victims::CostBenefit, &[(5, 5, 5), (8, 1, 9)]), Some(8));
        assert_eq!(choose(Victims::CostBenefit, &[(5, 5, 5), (8, 5, 5)]), Some(5));
        assert_eq!(choose(Victims::CostBenefit, &[(5, 5, 0)]), None);
    }
}
