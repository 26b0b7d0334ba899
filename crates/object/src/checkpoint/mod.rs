//! Checkpoints of views, stored in the log, and what is forgotten below them.
//!
//! ```text
//!   object's stream     ●──●──●──●──●──●──●──●──●──●──►      what is below a checkpoint can be forgotten
//!                                   ▲ upto
//!   stream of chunks        c0 c1 c2 directory                the state, in pieces of bounded length
//!   stream of the catalog  begin          store   forget     a small object: which checkpoints there are
//! ```
//!
//! A checkpoint is there when the catalog says so, and the catalog is told when every chunk is durable. What is in the log
//! without that is a torn one: nobody reads it, and whoever makes the next one trims it. What may be forgotten is decided by
//! the catalog at one position of the log, with all pins and leases that stand before it; nobody needs a lock for it.
//! (Wei 5.1.1; docs/protocol/checkpoints.md)

pub mod catalog;
#[cfg(test)]
mod catalog_tests;
pub mod chunk;
mod hold;

use std::time::Duration;

use ithaca_log::pos::StreamId;

pub use catalog::{Begun, Catalog, Forgot, Last, Stored};
pub use hold::{Hold, HoldRefused};

use crate::limits;

/// When a program makes a checkpoint of an object that it has in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// After so many calls since the last one was begun; 0 for never, whatever the others say.
    pub calls: u64,
    /// Or after so many bytes of calls; with 0 after each call.
    pub bytes: u64,
    /// Or after so many calls of an object whose records lie far apart in the log, so that each is a read of the drive for whoever opens it;
    /// 0 for no sooner than of others. See [`Policy::is_due`].
    pub rare_calls: u64,
    /// The catalog of checkpoints, which has none of its own, is stored in its own stream after so many of its records; 0 for never.
    pub catalog_records: u64,
    /// Bytes of a chunk, at most [`CHUNK_MAX_BYTES`](crate::limits::CHUNK_MAX_BYTES).
    pub chunk_bytes: usize,
    /// Whoever is to make one then forgets what [`Handle::forget_older`](crate::Handle::forget_older) does with this span; `None` for nothing:
    /// every state can be read for ever. What an object itself says ([`Handle::keep_history`](crate::Handle::keep_history)) comes first.
    pub history: Option<Duration>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            calls: 65_536,
            bytes: 64 << 20,
            rare_calls: 64,
            catalog_records: limits::CATALOG_RECORDS,
            chunk_bytes: 512 << 10,
            history: None,
        }
    }
}

impl Policy {
    /// None but those that are asked for.
    pub const NEVER: Self = Self {
        calls: 0,
        bytes: 0,
        rare_calls: 0,
        catalog_records: limits::CATALOG_RECORDS,
        chunk_bytes: 512 << 10,
        history: None,
    };

    /// Whether a checkpoint is due of an object that is as far as `now`, if the last one is `last`. `is_author` says that the program that asks has
    /// appended a record whose number among the object's divides by `rare_calls`.
    ///
    /// Of an object that has few of the log's records a checkpoint is due sooner, but not before its calls have twice as many bytes as the last
    /// one: those of such an object have at most half as many bytes as its calls, or one and a half of one that only grows. Authors make them;
    /// others, who know of each other only by the catalog, do if four times as many calls are there.
    pub fn is_due(&self, now: Begun, last: &Last, is_author: bool) -> bool {
        if self.calls == 0 {
            return false;
        }
        let count = now.count.saturating_sub(last.at.count);
        let bytes = now.bytes.saturating_sub(last.at.bytes);
        let span = now.upto.saturating_sub(last.at.upto);
        let rare = self.rare_calls.saturating_mul(if is_author { 1 } else { limits::RARE_OTHERS });
        let is_rare = rare > 0 && count >= rare && span / limits::RARE_SPAN >= count;
        count >= self.calls
            || (count > 0 && bytes >= self.bytes)
            || (is_rare && bytes >= last.len.saturating_mul(limits::RARE_BYTES))
    }
}

/// The stream of the catalog of an object's checkpoints. No name that can be typed leads to it.
pub fn catalog_of(object: StreamId) -> StreamId {
    StreamId::of_name(&format!("\0checkpoints of {object}"))
}

/// The stream of the chunks of an object's checkpoints.
pub fn chunks_of(object: StreamId) -> StreamId {
    StreamId::of_name(&format!("\0chunks of {object}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_whose_records_are_rare_has_its_checkpoint_sooner_but_not_at_every_price() {
        let policy = Policy { calls: 1000, bytes: 1 << 20, rare_calls: 64, ..Policy::default() };
        let last = Last { at: Begun { upto: 5_000, count: 100, bytes: 10_000 }, len: 8_000 };
        let due = |upto: u64, count: u64, bytes: u64, is_author| {
            let now = Begun { upto: 5_000 + upto, count: 100 + count, bytes: 10_000 + bytes };
            policy.is_due(now, &last, is_author)
        };
        let span = limits::RARE_SPAN;
        assert!(due(64 * span, 64, 16_000, true));
        assert!(!due(64 * span, 63, 16_000, true), "too few calls");
        assert!(!due(64 * span - 1, 64, 16_000, true), "they lie close together");
        assert!(!due(64 * span, 64, 15_999, true), "its state would be written too often");
        assert!(!due(255 * span, 255, 16_000, false), "others wait for the author");
        assert!(due(256 * span, 256, 16_000, false));
        assert!(due(1000, 1000, 1, false), "many calls, wherever they lie");
        assert!(due(1, 1, 1 << 20, false), "many bytes");
        assert!(!due(1 << 30, 0, 0, true), "nothing was called");
        let never =
            Policy::NEVER.is_due(Begun { upto: 1 << 30, count: 1 << 30, bytes: 1 << 40 }, &last, true);
        assert!(!never);
    }
}
