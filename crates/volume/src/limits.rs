//! Every limit of a volume, named once.

use ithaca_env::limits::BLOCK_BYTES;

/// Version of every record of the volume's format. A newer one is refused by name.
pub const FORMAT_VERSION: u16 = 1;
/// Bytes of a block of a volume.
pub const VOLUME_BLOCK_BYTES: usize = 4096;
/// Most blocks of a volume: 16 TiB.
pub const BLOCKS_MAX: u64 = 1 << 32;
/// Most blocks that one transaction, or one commit of plain writes, writes.
pub const COMMIT_BLOCKS_MAX: usize = 256;
/// Most blocks that one transaction writes.
pub const TX_WRITES_MAX: usize = COMMIT_BLOCKS_MAX;
/// Most blocks that one transaction reads or writes.
pub const TX_READS_MAX: usize = 65_536;
/// Most transactions that one client has at a time.
pub const TXS_PER_CLIENT_MAX: usize = 256;
/// Most transactions of a volume that are released and not taken over.
pub const RELEASED_MAX: usize = 1024;
/// Nested transactions within each other at the most.
pub const TX_DEPTH_MAX: u32 = 1000;
/// Attempts of a transaction that is tried again by itself.
pub const TX_ATTEMPTS_MAX: u32 = 100;
/// Most blocks of one commit of a discard.
pub const DISCARD_BLOCKS_MAX: usize = 1024;
/// Most blocks of one read or plain write.
pub const REQUEST_BLOCKS_MAX: u64 = 16_384;
/// Most blocks that one request to a drive reads.
pub const STRETCH_BLOCKS_MAX: usize = 256;
/// Most named snapshots of a volume.
pub const SNAPSHOTS_MAX: usize = 64;
/// Longest name of a snapshot, in bytes.
pub const SNAPSHOT_NAME_MAX_BYTES: usize = 64;
/// Most regions of a volume.
pub const REGIONS_MAX: usize = 64;
/// Longest name of a region, in bytes.
pub const REGION_NAME_MAX_BYTES: usize = 64;
/// Commits by which the floor rises at the least while nothing asks for room.
pub const FLOOR_STRIDE: u64 = 32;
/// Blocks that are looked at for old versions between two turns of other work.
pub const SETTLE_SLICE: usize = 4096;
/// Times of versions that are remembered, for retention by age.
pub const AGE_SAMPLES_MAX: usize = 256;
/// Most versions that are asked for their costs before a read.
pub const COST_BUDGET_MAX: usize = 64;
/// Most blocks of which a client's reads, and its writes, are remembered one by one.
pub const SEEN_BLOCKS_MAX: usize = 1 << 16;
/// Most times of versions that are remembered, for bounds on the age of what is read.
pub const TIME_NOTES_MAX: usize = 1024;

const _: () = assert!(VOLUME_BLOCK_BYTES == BLOCK_BYTES);
const _: () =
    assert!(SNAPSHOT_NAME_MAX_BYTES <= u8::MAX as usize && REGION_NAME_MAX_BYTES <= u8::MAX as usize);
