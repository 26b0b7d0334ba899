//! A whole cluster over sockets and drives, and the client library against it.
//!
//! * `cluster`: what a client sees of a healthy cluster, on real sockets and files.
//! * `replaced`: nodes that are gone at the same time, and one that comes back with nothing.
//! * `cold_reads`: many reads at once of what only the drive has.
//! * `replicas`: several copies of each entry, and what is found where some of them are missing.
//! * `restart`: what is there after the cluster stopped, in order or not.
//! * `drive_orders`: orders about drives that are refused, and orders to one node of several.
//! * `drives`: drives that come and go by orders, with crashes at every point.
//! * `elsewhere`: reads while the last replica is silent, and after a seal.
//! * `gates`: nodes behind gates, for the tests of what is lost or late on the way to them.
//! * `full`: nodes without room.
//! * `holes`: positions that were granted and never written.
//! * `loss`: a cluster that goes on without nodes that are gone for good.
//! * `lost`: groups that were durable and are lost.
//! * `modes`: the ways in which entries reach their replicas, all through one suite.
//! * `nodes`: nodes of a cluster of servers, for the tests of them.
//! * `outages`: appends while their nodes cannot be reached.
//! * `outdated`: nodes that are started on an older copy of what they have stored.
//! * `planted`: deliberate faults (with the feature `planted-bugs`).
//! * `refusals`: what is refused, and how it is said.
//! * `roles`: nodes that do not everything, in simulated time.
//! * `stream_waits`: following a stream, and what is asked for it.
//! * `streams`: reading streams.
//! * `two_clusters`: clients whose endpoints are not all of one cluster.
//! * `whole`: batches that go whole to the sequencer.
//! * `repair`: copies that were lost, and come from another replica.
//! * `wrong_numbers`: one message with a wrong number ends nothing for the others.
//! * `worlds`: the environments that these run in.

mod cluster;
mod cold_reads;
mod drive_orders;
mod drives;
mod elsewhere;
mod full;
mod gates;
mod holes;
mod loss;
mod lost;
mod modes;
mod nodes;
mod opening;
mod outages;
mod outdated;
#[cfg(feature = "planted-bugs")]
mod planted;
mod refusals;
mod repair;
mod replaced;
mod replicas;
mod restart;
mod roles;
mod stream_appends;
mod stream_waits;
mod streams;
mod two_clusters;
mod whole;
mod worlds;
mod wrong_numbers;
