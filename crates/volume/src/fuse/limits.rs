//! Limits of volumes as files.

use std::time::Duration;

use ithaca_env::fuse::MESSAGE_MAX_BYTES;

/// Bytes of one read or write; the kernel splits longer ones.
pub const WRITE_MAX_BYTES: u32 = 1 << 20;
/// Bytes of a name.
pub const NAME_MAX_BYTES: usize = 255;
/// Requests under way; more are read when some are done.
pub const REQUESTS_MAX: usize = 256;
/// Of them, those that no thread waits for, such as parts of long reads.
pub const BACKGROUND_MAX: u16 = 64;
/// Threads that have a transaction.
pub const THREADS_MAX: usize = 1024;
/// How often it is asked whether they live.
pub const LOOK_EVERY: Duration = Duration::from_millis(100);

const _: () = assert!(WRITE_MAX_BYTES as usize + 80 <= MESSAGE_MAX_BYTES, "a write and its head");
