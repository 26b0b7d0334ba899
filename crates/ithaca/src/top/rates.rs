//! What a node does in a second, from two of its statuses.

use ithaca_log::wire::NodeStatus;

use crate::cluster::counted;

/// Rates over the time between two statuses of a node; `None` where there is nothing to be measured by.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Entries that the unit was asked to write, a second.
    pub appends: Option<f64>,
    /// Their bytes.
    pub bytes_written: Option<f64>,
    /// Entries that the unit sent to readers and followers, a second.
    pub reads: Option<f64>,
    /// Their bytes.
    pub bytes_read: Option<f64>,
    /// Positions that the sequencer handed out, a second.
    pub tokens: Option<f64>,
    /// Processor time of the process, in percent of one processor. None for a node that leaves it to another node of its
    /// process to state it.
    pub cpu_percent: Option<f64>,
}

impl Rates {
    /// The rates between two statuses, by the node's own clock: how long an answer was on its way does not matter.
    ///
    /// A node that was started again in between counts from zero again: it has no rates. Nor has a counter that is smaller
    /// than before or is not there.
    pub fn between(before: &NodeStatus, now: &NodeStatus) -> Self {
        let span_ms = now.uptime_ms.checked_sub(before.uptime_ms).filter(|span_ms| *span_ms > 0);
        let Some(span_ms) = span_ms.filter(|_| before.incarnation == now.incarnation) else {
            return Self::default();
        };
        let per_second = |before: u64, now: u64| {
            let grown = now.checked_sub(before)?;
            Some(grown as f64 * 1000.0 / span_ms as f64)
        };
        let rate = |name: &str| per_second(counted(before, name)?, counted(now, name)?);
        // A second holds a million microseconds: a hundred percent.
        let cpu = per_second(before.cpu_us, now.cpu_us).map(|used_us| used_us / 10_000.0);
        Self {
            appends: rate("entries_written"),
            bytes_written: rate("bytes_written"),
            reads: rate("entries_read"),
            bytes_read: rate("bytes_read"),
            tokens: rate("tokens"),
            cpu_percent: cpu.filter(|_| now.cpu_us > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use ithaca_log::pos::Incarnation;

    use super::*;

    fn status(incarnation: u64, uptime_ms: u64, cpu_us: u64, counters: &[(&str, u64)]) -> NodeStatus {
        let counters = counters.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        NodeStatus {
            incarnation: Incarnation(incarnation),
            uptime_ms,
            cpu_us,
            counters,
            ..NodeStatus::default()
        }
    }

    #[test]
    fn a_rate_is_growth_over_the_nodes_own_time() {
        let before = status(7, 1000, 5_000, &[("entries_written", 10), ("bytes_read", 0)]);
        let now = status(7, 3000, 1_005_000, &[("entries_written", 50), ("bytes_read", 4096)]);
        let expected = Rates {
            appends: Some(20.0),
            bytes_read: Some(2048.0),
            cpu_percent: Some(50.0),
            ..Rates::default()
        };
        assert_eq!(Rates::between(&before, &now), expected);
    }

    #[test]
    fn a_node_that_was_started_again_has_no_rates_even_if_it_counted_further_than_before() {
        let before = status(7, 1000, 5_000, &[("tokens", 10)]);
        assert_eq!(Rates::between(&before, &status(8, 500, 90, &[("tokens", 3)])), Rates::default());
        assert_eq!(Rates::between(&before, &status(8, 2000, 9_000, &[("tokens", 30)])), Rates::default());
        assert_eq!(Rates::between(&before, &before), Rates::default(), "no time has passed");
    }

    #[test]
    fn a_counter_that_fell_or_is_not_there_has_no_rate_and_does_not_spoil_the_others() {
        let before = status(7, 1000, 0, &[("tokens", 10), ("entries_written", 10)]);
        let now = status(7, 2000, 0, &[("tokens", 9), ("entries_written", 11), ("bytes_written", 5)]);
        assert_eq!(Rates::between(&before, &now), Rates { appends: Some(1.0), ..Rates::default() });
    }
}
