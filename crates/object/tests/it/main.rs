//! Objects over a cluster on real sockets and files.
//!
//! * [`objects`]: views, linearizable and old reads, results, time travel.
//! * [`transactions`]: conflicts, snapshots, nesting, retries.
//! * [`macros`]: objects of one's own.
//! * [`checkpoints`]: states in the log, what is forgotten below them, what is held.
//! * [`collections`]: each of them does what its counterpart in memory does.

mod checkpoints;
mod collections;
mod macros;
mod objects;
mod transactions;
mod worlds;
