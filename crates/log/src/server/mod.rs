//! Servers: thin shells around the pure cores, over real or simulated sockets and drives.
//!
//! ```text
//!   connection ─► node ─┬─► sequencer (a counter)
//!                       ├─► forwarder: sequencer, then the unit shells of the batch
//!                       ├─► layout keeper: acceptor + register  ◄── decide (proposer)
//!                       └─► unit shell: unit core + chain
//! ```
//!
//! A [`LocalCluster`] is a whole cluster in one environment. Its start is a reconfiguration like any other: the units are
//! sealed, the tail is decided once in the next layout, and the sequencer starts there (docs/protocol/seal.md).

mod caches;
pub mod decide;
mod follower;
mod forming;
mod forward;
mod layouts;
mod local;
mod node;
pub mod register;
mod reply;
mod unit_drives;
mod unit_shell;

pub use caches::CacheOptions;
pub use local::{LocalCluster, LocalOptions, StartError};
