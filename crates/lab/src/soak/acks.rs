//! When appends were begun and acknowledged, from which follows how long a log stood still.

use std::cell::RefCell;
use std::time::{Duration, Instant};

/// Acknowledged appends, in the order of their acknowledgements.
#[derive(Default)]
pub struct Acks {
    acks: RefCell<Vec<(Instant, Instant)>>,
}

impl Acks {
    /// An append that was begun at `begun` was acknowledged now.
    pub fn acked(&self, begun: Instant) {
        self.acks.borrow_mut().push((begun, Instant::now()));
    }

    /// The longest time without an acknowledgement within `[from, to]`.
    pub fn gap(&self, from: Instant, to: Instant) -> Duration {
        let mut last = from;
        let mut longest = Duration::ZERO;
        for &(_, acked) in self.acks.borrow().iter().filter(|(_, acked)| (from..=to).contains(acked)) {
            longest = longest.max(acked - last);
            last = acked;
        }
        longest.max(to.saturating_duration_since(last))
    }

    /// When the first append that was begun at `when` or later was acknowledged.
    pub fn resumed(&self, when: Instant) -> Option<Instant> {
        self.acks.borrow().iter().find(|(begun, _)| *begun >= when).map(|&(_, acked)| acked)
    }
}
