//! Objects over a cluster on real sockets and files.
//!
//! * [`objects`]: views, linearizable and old reads, results, time travel.
//! * [`transactions`]: conflicts, snapshots, nesting, retries.
//! * [`watch`]: being told of changes.
//! * [`composed`]: large maps, of many objects.
//! * [`panics`]: methods that panic.
//! * [`remote`]: states that nodes keep.
//! * [`macros`]: objects of one's own.
//! * [`machine`]: state machines of one's own, and calls that share records.
//! * [`splits`]: buckets and leaves that have grown large.
//! * [`store`]: keys and values that stay in the log.
//! * [`checkpoints`]: states in the log, what is forgotten below them, what is held.
//! * [`collections`]: each of them does what its counterpart in memory does.

mod checkpoints;
mod collections;
mod composed;
mod machine;
mod macros;
mod objects;
mod panics;
mod remote;
mod splits;
mod store;
mod transactions;
mod watch;
mod worlds;
