//! What a block is at several versions, one after the other.

use std::collections::btree_map::Range;
use std::ops::Bound;

use super::packing::MANY;
use super::{Found, Index, Packed};

/// Writes of the block that are passed one by one on the way to a version; one that is further on is looked up.
const STEPS_MAX: usize = 8;

/// See [`Index::ascent`].
pub(crate) struct Ascent<'a> {
    index: &'a Index,
    block: u64,
    /// At the version that was asked for last.
    now: Found,
    /// The first write after that.
    next: Option<(u64, Packed)>,
    /// The writes after it; `None` before the first question, and for a block that is not listed.
    ahead: Option<Range<'a, (u64, u64), Packed>>,
}

impl Index {
    /// A block at versions that may be read, asked for in ascending order: each is found next to the one before.
    pub(crate) fn ascent(&self, block: u64) -> Ascent<'_> {
        Ascent { index: self, block, now: Found::Zeros, next: None, ahead: None }
    }
}

impl Ascent<'_> {
    /// What [`Index::at`] says.
    pub(crate) fn at(&mut self, version: u64) -> Found {
        for _ in 0..STEPS_MAX {
            let Some(ahead) = &mut self.ahead else { break };
            let Some((_, packed)) = self.next.filter(|(written, _)| *written <= version) else {
                return self.now;
            };
            self.now = Found::of(packed);
            self.next = ahead.next().map(written);
        }
        self.now = self.index.at(self.block, version);
        if self.index.words[self.block as usize] == MANY {
            let above = (Bound::Excluded((self.block, version)), Bound::Included((self.block, u64::MAX)));
            let mut ahead = self.index.versions.range(above);
            self.next = ahead.next().map(written);
            self.ahead = Some(ahead);
        }
        self.now
    }
}

fn written((&(_, version), &packed): (&(u64, u64), &Packed)) -> (u64, Packed) {
    (version, packed)
}
