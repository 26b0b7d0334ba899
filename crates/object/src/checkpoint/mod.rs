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

use ithaca_log::pos::StreamId;

pub use catalog::{Catalog, Forgot, Stored};
pub use hold::{Hold, HoldRefused};

/// When a program makes a checkpoint of an object that it has in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// After so many calls since the last one was begun; 0 for never.
    pub calls: u64,
    /// Or after so many bytes of calls.
    pub bytes: u64,
    /// Bytes of a chunk, at most [`CHUNK_MAX_BYTES`](crate::limits::CHUNK_MAX_BYTES).
    pub chunk_bytes: usize,
}

impl Default for Policy {
    fn default() -> Self {
        Self { calls: 65_536, bytes: 64 << 20, chunk_bytes: 512 << 10 }
    }
}

impl Policy {
    /// None but those that are asked for.
    pub const NEVER: Self = Self { calls: 0, bytes: 0, chunk_bytes: 512 << 10 };
}

/// The stream of the catalog of an object's checkpoints. No name that can be typed leads to it.
pub fn catalog_of(object: StreamId) -> StreamId {
    StreamId::of_name(&format!("\0checkpoints of {object}"))
}

/// The stream of the chunks of an object's checkpoints.
pub fn chunks_of(object: StreamId) -> StreamId {
    StreamId::of_name(&format!("\0chunks of {object}"))
}
