//! The bare baseline: the least program that frames, checksums and group-commits the same entries over the same sockets
//! and drive, with no index, no write-once check and no epochs. Figures of the system are ratios to it.
//!
//! ```text
//!   client (one thread, epoll) ══ TCP, framed ══► event thread ── group ──► two I/O threads ──► pwritev2(RWF_DSYNC)
//!                              ◄═ positions ═════            ◄─ eventfd ──    O_DIRECT, segments written before
//! ```
//!
//! * An append is verified (frame checksum, crc32c of each entry) and copied once, into the group that forms.
//! * A group goes when one of two flight slots is free; it never waits to be formed. Groups are acknowledged in order.
//! * An acknowledged entry is on stable storage. Nothing is ever read back from the drive: it is a baseline, not a store.
//! * Server and client are two processes, as those of the system are.
//!
//! It stands on epoll, threads and plain sockets, not on `Env`.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the baseline must not stand on what it judges"
)]

mod client;
mod drive;
mod frame;
mod grpc;
mod journal;
mod mix;
mod pipe;
mod process;
mod server;

pub use client::{Client, MAP_KEYS, Work, run_all};
pub use drive::{DriveFile, flush_probe_us, random_reads, sequential_writes};
pub use mix::{Mix, MixFile};
pub use process::ServerProcess;
pub use server::serve;
