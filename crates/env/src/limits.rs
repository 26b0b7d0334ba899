//! Every limit of the environment, named once.

use std::time::Duration;

/// Alignment of every drive access, in bytes: offsets, lengths and buffers.
pub const BLOCK_BYTES: usize = 4096;

/// Largest single drive read or write, in bytes.
pub const DRIVE_IO_MAX_BYTES: usize = 64 << 20;

/// I/O threads of one real environment at the most. They start on demand.
pub const IO_THREADS_MAX: usize = 32;

/// Requests that wait for an I/O thread at the most; past it a read or a discard fails with `DriveError::Busy`. Writes do not: their owners
/// have few under way.
pub const IO_QUEUE_MAX: usize = 65_536;

/// Bytes that one connection may hold unsent before its writer reports `NetError::Overflow` and closes.
pub const OUTBOX_MAX_BYTES: usize = 256 << 20;

/// Buffers gathered into one system call.
pub const GATHER_MAX: usize = 64;

/// Connections that wait to be accepted, as given to `listen(2)`.
pub const LISTEN_BACKLOG: i32 = 1024;

/// How long an address may be in use still when a process that follows another one listens there.
pub const LISTEN_PATIENCE: Duration = Duration::from_secs(1);

/// How often it tries.
pub const LISTEN_RETRY: Duration = Duration::from_millis(5);

const _: () = assert!(BLOCK_BYTES.is_power_of_two());
const _: () = assert!(DRIVE_IO_MAX_BYTES.is_multiple_of(BLOCK_BYTES));
