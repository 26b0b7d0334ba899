//! Servers: thin shells around the pure cores, over real or simulated sockets and drives.
//!
//! ```text
//!   connection ─► node ─┬─► sequencer (a counter) ◄── streams: learns where they end, makes checkpoints
//!                       ├─► forwarder: sequencer, then the units of the batch, by relay
//!                       ├─► layout keeper: acceptor + register  ◄── decide (proposer)
//!                       └─► unit shell: unit core + chain; relay: the replicas after it
//! ```
//!
//! A [`LocalCluster`] is a whole cluster in one environment. Its start is a reconfiguration like any other: the units are
//! sealed, the tail is decided once in the next layout, and the sequencer starts there (docs/protocol/seal.md).

mod answers;
mod caches;
mod cluster;
mod cold_reads;
mod decide;
#[cfg(test)]
mod decide_tests;
mod drives;
mod follower;
mod forming;
mod forward;
mod greeting;
mod layouts;
mod learn_streams;
mod leases;
mod local;
mod node;
mod outdated;
mod peers;
mod places;
pub mod register;
mod relay;
mod remembered;
mod reply;
mod streams;
mod tasks;
mod unit_drives;
mod unit_shell;
mod views;
mod watch;

pub use caches::CacheOptions;
pub use cluster::{ClusterNode, NodeEnd, NodeOptions};
pub use forming::unit_label;
pub use local::{LocalCluster, LocalOptions, StartError};
pub use node::GrantOptions;
pub use outdated::Outdated;
pub use views::{Answering, ViewHost};
