//! The shared log: pure protocol cores, the wire protocol, and what the servers and the client library share.
//!
//! * [`wire`]: frames and messages, small enough to write again in another language in a day (docs/protocol.md).
//! * [`unit`]: the log unit, write-once addresses that survive crashes.
//! * [`layout`]: which positions lie where in each epoch, and how an epoch follows another.
//! * [`detector`]: which nodes seem to be gone.
//! * [`sequencer`]: hands out positions, for one epoch.
//! * [`pos`] and [`entry`]: positions, epochs and identities, each with its own type.
//! * [`stream`]: conditions of appends to streams; [`release`]: what streams need no more.
//!
//! * [`client`]: the client library.
//! * [`server`]: nodes, and a whole cluster in one process.
//!
//! The cores do no input or output: they take an input and return effects, which a shell carries out in order.

pub mod client;
pub mod detector;
pub mod entry;
pub mod join;
pub mod layout;
pub mod limits;
pub mod planted;
pub mod pos;
pub mod release;
pub mod sequencer;
pub mod server;
pub mod stream;
pub mod unit;
pub mod wire;

#[cfg(test)]
mod golden;
#[cfg(test)]
mod scope;
