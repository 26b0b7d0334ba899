//! Objects over a cluster on real sockets and files.
//!
//! * [`objects`]: views, linearizable and old reads, results, time travel.
//! * [`transactions`]: conflicts, snapshots, nesting, retries.
//! * [`macros`]: objects of one's own.
//! * [`collections`]: each of them does what its counterpart in memory does.

mod collections;
mod macros;
mod objects;
mod transactions;
mod worlds;
