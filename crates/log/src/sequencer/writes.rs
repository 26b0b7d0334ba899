//! Which parts of streams were written last, and where: as many as there is room for.

use std::collections::{BTreeMap, VecDeque};

use crate::pos::LogPos;
use crate::stream::ConflictKey;

/// The latest writes of an epoch. What it does not remember was written below its low-water mark.
#[derive(Clone, Debug)]
pub(super) struct Writes {
    last: BTreeMap<ConflictKey, LogPos>,
    /// Every write that was noted, the oldest first; only the latest of each key counts.
    noted: VecDeque<(LogPos, ConflictKey)>,
    max: usize,
    low_water: LogPos,
}

impl Writes {
    /// Remembers at most `max` writes, at or above `start`.
    pub(super) fn new(start: LogPos, max: usize) -> Self {
        Self { last: BTreeMap::new(), noted: VecDeque::new(), max, low_water: start }
    }

    /// Remembers at most `max` writes from now on, at least one.
    pub(super) fn limit(&mut self, max: usize) {
        self.max = max.max(1);
    }

    /// Notes a write at `pos`. Writes are noted in the order of their positions.
    pub(super) fn note(&mut self, key: ConflictKey, pos: LogPos) {
        self.last.insert(key, pos);
        self.noted.push_back((pos, key));
        while self.noted.len() > self.max {
            let Some((pos, key)) = self.noted.pop_front() else { break };
            // One that was overwritten since is of no use to anybody.
            if self.last.get(&key) == Some(&pos) {
                self.last.remove(&key);
                self.low_water = LogPos(pos.0 + 1);
            }
        }
    }

    /// The last write of `key`, if it is remembered.
    pub(super) fn last(&self, key: ConflictKey) -> Option<LogPos> {
        self.last.get(&key).copied()
    }

    /// Every write at or above this position is remembered.
    pub(super) fn low_water(&self) -> LogPos {
        self.low_water
    }
}
