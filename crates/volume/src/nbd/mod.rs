//! Volumes over NBD, the protocol by which systems and tools reach block devices on a network.
//!
//! ```text
//!   socket ─► handshake (core) ─► transmission (core) ─► export ─► volume
//!      ▲                                                   │
//!      └──────────────── reply ◄───────────────────────────┘
//! ```
//!
//! A [`Server`] answers a write when the volume has it, and a flush, or a write that asks for it (FUA), when it is durable;
//! a flush covers what was answered on every connection. docs/protocol/nbd.md says what is spoken, and what of the
//! protocol is not.

pub(crate) mod export;
mod handshake;
mod held;
pub mod limits;
mod options;
mod reply;
mod server;
#[cfg(test)]
mod tests;
mod transmission;
mod wire;

pub use server::{Server, ServerOptions};
