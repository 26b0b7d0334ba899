//! What a client has seen and is owed: the whole of its state, in its own hands. Pure.
//!
//! ```text
//!   wants (a level) ─┐
//!   reads, writes ───┼─► the lowest version of a block that it may be given
//!   the store's: floor, newest, updates, age ─┘
//! ```
//!
//! Of each block the version that wrote what was read is remembered, not the one that it was read at: everything from there on is as
//! good. When too many blocks are remembered, those with the lowest versions are forgotten and the highest version of them counts for all
//! blocks: more is owed than was promised, never less.

use std::collections::BTreeMap;
use std::time::Duration;

use super::query::VersionRange;
use crate::limits::SEEN_BLOCKS_MAX;
use crate::options::Version;
use crate::planted::{Planted, PlantedBug};

/// What reads of a client are held to, each by itself and all together (Pileus; Shin, appendix B). Whatever is asked for, what is read is
/// durable, and a block as one commit left it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// At most so many updates of the block are left out that were durable when the read began; any number if nothing.
    pub updates_max: Option<u64>,
    /// Everything is seen that was durable so long before the read began; nothing in particular if nothing.
    pub age_max: Option<Duration>,
    /// The client sees what it has written itself, or what came after.
    pub own_writes: bool,
    /// The client never sees less of a block than it has seen before.
    pub monotonic: bool,
}

impl Level {
    /// Anything that history still has.
    pub const ANY: Self = Self { updates_max: None, age_max: None, own_writes: false, monotonic: false };
    /// Everything that was durable when the read began.
    pub const STRONG: Self = Self { updates_max: Some(0), ..Self::ANY };
    /// Own writes, or what came after.
    pub const READ_MY_WRITES: Self = Self { own_writes: true, ..Self::ANY };
    /// No less than was seen before.
    pub const MONOTONIC_READS: Self = Self { monotonic: true, ..Self::ANY };
    /// Both. As versions have one order, writes are monotonic and follow reads by themselves.
    pub const SESSION: Self = Self { own_writes: true, monotonic: true, ..Self::ANY };

    /// At most so many updates of the block are left out.
    pub const fn within_updates(updates: u64) -> Self {
        Self { updates_max: Some(updates), ..Self::ANY }
    }

    /// Everything that was durable so long ago is seen.
    pub const fn within_age(age: Duration) -> Self {
        Self { age_max: Some(age), ..Self::ANY }
    }
}

/// Versions by block: of each the one that has to be seen.
#[derive(Clone, Debug, Default)]
struct Seen {
    blocks: BTreeMap<u64, u64>,
    /// Of all blocks.
    least: u64,
}

impl Seen {
    fn note(&mut self, block: u64, version: u64) {
        let seen = self.blocks.entry(block).or_insert(version);
        *seen = (*seen).max(version);
        if self.blocks.len() > SEEN_BLOCKS_MAX {
            let mut versions: Vec<u64> = self.blocks.values().copied().collect();
            let middle = versions.len() / 2;
            self.least = self.least.max(*versions.select_nth_unstable(middle).1);
            self.blocks.retain(|_, version| *version > self.least);
        }
    }

    fn of(&self, block: u64) -> u64 {
        self.blocks.get(&block).copied().unwrap_or(0).max(self.least)
    }
}

/// A client of a store: what it wants, and what it has read and written so far. It may be copied, to begin where another one is; it means
/// nothing to another volume.
#[derive(Clone, Debug)]
pub struct StaleClient {
    level: Level,
    budget: usize,
    /// Nothing below is given, whatever the level: where the client began.
    began: u64,
    reads: Seen,
    writes: Seen,
    planted: Planted,
}

impl StaleClient {
    pub(super) fn new(level: Level, began: Version, budget: usize, planted: Planted) -> Self {
        Self { level, budget, began: began.0, reads: Seen::default(), writes: Seen::default(), planted }
    }

    /// What it is held to.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Changes what it is held to, from the next read on. What it has seen stays.
    pub fn set_level(&mut self, level: Level) {
        self.level = level;
    }

    /// Versions that are asked for their costs before each read.
    pub fn budget(&self) -> usize {
        self.budget
    }

    /// The lowest version of a block that its own past allows.
    pub(super) fn least(&self, block: u64) -> u64 {
        let own = if self.level.own_writes { self.writes.of(block) } else { 0 };
        let seen = if self.level.monotonic { self.reads.of(block) } else { 0 };
        own.max(seen).max(self.began)
    }

    /// It has read a block that is the same over `range`, at `version`. Panics if that is older than its past allows.
    pub(super) fn note_read(&mut self, block: u64, version: Version, range: VersionRange) {
        let least = self.least(block);
        assert!(version.0 >= least, "block {block} at {version}, the client is owed {least}");
        assert!(range.has(version), "{version} is not within {range:?}");
        if !self.planted.is(PlantedBug::ReadForgotten) {
            self.reads.note(block, range.first.0);
        }
    }

    /// It has written these blocks; `version` is durable.
    pub fn note_write(&mut self, blocks: impl IntoIterator<Item = u64>, version: Version) {
        if self.planted.is(PlantedBug::OwnWriteForgotten) {
            return;
        }
        blocks.into_iter().for_each(|block| self.writes.note(block, version.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(level: Level) -> StaleClient {
        StaleClient::new(level, Version(0), 8, Planted::default())
    }

    fn range(first: u64, last: u64) -> VersionRange {
        VersionRange { first: Version(first), last: Version(last) }
    }

    #[test]
    fn a_level_counts_what_it_says_and_nothing_else() {
        for (level, read, written) in [
            (Level::ANY, 0, 0),
            (Level::MONOTONIC_READS, 5, 0),
            (Level::READ_MY_WRITES, 0, 9),
            (Level::SESSION, 5, 9),
        ] {
            let mut client = client(level);
            client.note_read(1, Version(7), range(5, 8));
            client.note_write([2], Version(9));
            assert_eq!((client.least(1), client.least(2), client.least(3)), (read, written, 0), "{level:?}");
        }
    }

    #[test]
    #[should_panic(expected = "the client is owed 5")]
    fn a_read_that_goes_back_is_our_mistake() {
        let mut client = client(Level::SESSION);
        client.note_read(1, Version(7), range(5, 8));
        client.note_read(1, Version(4), range(2, 4));
    }

    #[test]
    fn a_client_that_has_seen_very_much_is_owed_more_and_not_less() {
        let mut client = client(Level::MONOTONIC_READS);
        let count = 5 * SEEN_BLOCKS_MAX as u64;
        for block in 0..count {
            let version = block * 7919 % count;
            client.note_read(block, Version(count), range(version, count));
        }
        assert!(client.reads.blocks.len() <= SEEN_BLOCKS_MAX);
        assert!((0..count).all(|block| client.least(block) >= block * 7919 % count));
    }
}
