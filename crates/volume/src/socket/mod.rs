//! Volumes over a socket of the file system: transactions for other processes of the machine, in Rust, in C, in anything.
//!
//! ```text
//!   Client ─► frame ─► session (core) ─► server ─► volume
//!     ▲                                    │ one Tx a number of the client's; released ones wait in the volume
//!     └──────────────── reply ◄────────────┘
//! ```
//!
//! A [`Server`] carries out a client's requests in the order of their transactions and aborts what a client leaves behind when
//! its connection ends. A transaction that was released goes on elsewhere by its handle, which is the user's alone unless the
//! client says otherwise. docs/protocol/socket.md has every byte; `c/` is a client in C.

mod carry_out;
mod client;
mod frame;
pub mod limits;
mod memory;
mod refusal;
mod reply;
mod request;
mod server;
mod session;
mod slots;
mod summary;
#[cfg(test)]
mod tests;

pub use client::{Client, ClientError, ClientOptions, RemoteTx};
pub use frame::FrameError;
pub use refusal::{Refusal, Status};
pub use reply::Scrub;
pub use server::{Server, ServerOptions};
pub use summary::{DriveState, DriveSummary, Summary};
