//! Every limit of the simulator, named once.

use crate::limits::BLOCK_BYTES;

/// Smallest piece of a drive that is written whole or not at all, in bytes.
pub const SECTOR_BYTES: usize = 512;

/// Sectors of one block.
pub const SECTORS_PER_BLOCK: usize = BLOCK_BYTES / SECTOR_BYTES;

/// Most that a process's monotonic clock may run fast or slow, in parts per million. Leases are reckoned with it.
pub const CLOCK_DRIFT_MAX_PPM: u32 = 500;

/// Polls at one virtual instant after which the simulation is taken to be stuck in a circle of wakes.
pub const POLLS_PER_INSTANT_MAX: u64 = 1_000_000;

/// Attempts of one connect before it fails as timed out; the pause between them doubles from one second.
pub const CONNECT_ATTEMPTS: u32 = 7;

/// First port that is given to callers and to listeners that ask for port 0.
pub const FIRST_FREE_PORT: u16 = 32_768;

/// Steps that one plan may have.
pub const PLAN_STEPS_MAX: usize = 10_000;

const _: () = assert!(BLOCK_BYTES.is_multiple_of(SECTOR_BYTES));
// One bit a sector in a `u8`.
const _: () = assert!(SECTORS_PER_BLOCK == 8);
