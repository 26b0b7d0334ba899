//! Volumes as files, for programs that read and write a file and say with control calls where a transaction begins and ends: Isotope's
//! own interface, in which a transaction belongs to the thread that began it.
//!
//! ```text
//!   program ─► kernel ─► wire ─► server ─► the thread's transaction, if it is in one (threads)
//!      ▲                            └────► else the volume as it is now, as over NBD
//!      └──────────────── reply ◄───┘
//! ```
//!
//! Nothing of the file is kept in the kernel but pages of mappings, which have nothing of a transaction: so each read and write comes from
//! the thread that asks for it. fsync waits until everything is durable that was answered before it; close does not.
//! docs/protocol/file.md says what is promised.

mod control;
pub mod limits;
mod reply;
mod server;
mod threads;
mod transaction;
mod tree;
mod wire;

pub use server::{Server, ServerOptions};
