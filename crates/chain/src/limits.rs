//! Every limit of the chain, named once.

use std::time::Duration;

use ithaca_env::limits::{BLOCK_BYTES, DRIVE_IO_MAX_BYTES};

/// Version of every record of the disk format. A newer one is refused by name.
pub const FORMAT_VERSION: u16 = 1;

/// Copies of the superblock, and how many must agree for it to be believed.
pub const SUPERBLOCK_COPIES: usize = 4;
/// Copies that must be equal.
pub const SUPERBLOCK_QUORUM: usize = 2;
/// Distance between two copies of the superblock, in bytes.
pub const SUPERBLOCK_STRIDE_BYTES: usize = 16 << 10;
/// Bytes before the first segment.
pub const SUPERBLOCK_ZONE_BYTES: u64 = (SUPERBLOCK_COPIES * SUPERBLOCK_STRIDE_BYTES) as u64;
/// Longest owner label in a superblock, in bytes.
pub const LABEL_MAX_BYTES: usize = 64;

/// Smallest segment, in bytes.
pub const SEGMENT_MIN_BYTES: u64 = 128 << 10;
/// Largest segment, in bytes: offsets inside one are u32.
pub const SEGMENT_MAX_BYTES: u64 = 1 << 30;
/// Most segments of a link.
pub const SEGMENTS_MAX: u64 = 1 << 20;
/// Most links of a chain.
pub const LINKS_MAX: usize = 16;
/// Most sides of a link.
pub const SIDES_MAX: usize = 4;
/// Most drives of a chain.
pub const DRIVES_MAX: usize = LINKS_MAX * SIDES_MAX;

/// Most groups in flight.
pub const FLIGHTS_MAX: usize = 16;
/// Largest group of several batches, in bytes. One batch by itself may be larger, up to a quarter of a segment.
pub const GROUP_MAX_BYTES: usize = 16 << 20;
/// Longest owner's meta of a run, in bytes.
pub const META_MAX_BYTES: usize = 4096;
/// Most records of one run.
pub const RUN_RECORDS_MAX: usize = 16_384;
/// Most runs of one batch.
pub const BATCH_RUNS_MAX: usize = 4096;
/// Largest record, in bytes.
pub const RECORD_MAX_BYTES: usize = 4 << 20;
/// Longest state that an owner keeps in the chain, in bytes. Small segments allow less.
pub const STATE_MAX_BYTES: usize = 64 << 10;
/// Most disjoint ranges of released keys. Small segments allow fewer.
pub const RELEASED_RANGES_MAX: usize = 4096;

/// Most groups whose releases and state a group repeats: a byte of its flags counts them.
pub const REPEATS_MAX: usize = 64;
const _: () = assert!(REPEATS_MAX <= u8::MAX as usize);

/// Most ranges of segments in a census. Small segments allow fewer; where there are more, there is none.
pub const CENSUS_RANGES_MAX: usize = 8192;

/// A footer page is closed when it holds this many bytes; only a run that is larger alone makes a larger page.
pub const FOOTER_PAGE_BYTES: usize = 16 << 10;
/// Key ranges kept in memory for each closed segment; finer ones are merged.
pub const SEGMENT_RANGES_MAX: usize = 8;
/// Key ranges that a trailer lists itself; more are in the footer's directory.
pub const TRAILER_RANGES_MAX: usize = 128;
/// Holes left by damage that one segment's footer lists.
pub const HOLES_MAX: usize = 1024;

/// Keys come in blocks of so many. Those of one block are used in about ascending order; where one block ends says nothing of the others.
pub const KEY_BLOCK: u64 = 1 << 44;
/// Bytes of one write of background work: footers and the pre-writing of segments.
pub const BACKGROUND_IO_BYTES: usize = 1 << 20;
/// Free segments that are written over in advance at the most, unless the options ask for more.
pub const SEGMENTS_READY_MAX: usize = 16;
/// Bytes of copies that a cleaner has on their way to the tail at the most, unless one run is larger or room is needed most.
pub const CLEAN_BATCH_MAX_BYTES: u64 = 1 << 20;
/// The least that it has on their way, however little others have: smaller batches would be all heads.
pub const CLEAN_WINDOW_MIN_BYTES: u64 = 128 << 10;
/// The most that it has on their way where room is needed most.
pub const CLEAN_WINDOW_MAX_BYTES: u64 = 8 << 20;
/// Bytes of records that a cleaner without rests reads before they can be written.
pub const CLEAN_READ_AHEAD_BYTES: u64 = 4 << 20;
/// Bytes that a cleaner reads for each one that it needs, at the most, where gaps are read along.
pub const CLEAN_READ_EXCESS: u64 = 8;
/// Runs of a segment that are put in the order in which they lie there, to be read so: the others follow when they are moved.
pub const CLEAN_RUNS_MAX: usize = 32_768;
/// A segment is cleaned for room only if that gives one part of so many of it.
pub const CLEAN_GAIN_MIN: u64 = 8;
/// Where room is needed most, a segment of which nothing is released is cleaned if its small groups, packed together, give one part of so
/// many of it: more than groups of copies leave empty, so that none is packed twice.
pub const CLEAN_PACK_MIN: u64 = 4;
/// A segment that gave too little room is looked at again when one more part of so many of its keys is garbage.
pub const CLEAN_AGAIN_PART: u64 = 16;
/// How long an open, the cleaner, or who rebuilds a side rests before it asks again a drive that takes no more reads.
pub const REFUSED_REST: Duration = Duration::from_millis(5);
/// Bytes of one read of a segment scan or a cold sequential read, at the most, unless one run is larger.
pub const SCAN_IO_BYTES: usize = 1 << 20;
/// Reads of a segment scan at the same time.
pub const SCAN_READS: usize = 4;
/// Segment headers and trailers read at the same time at an open.
pub const OPEN_READS: usize = 32;
/// Parts of footers that one read of several ranges loads at the same time.
pub const FOOTER_LOADS_MAX: usize = 64;
/// Bytes of memory that a run takes which a read has found, beside its data: where it is, its head, and its part of a footer.
pub const FOUND_RUN_BYTES: usize = 256;
/// Most bytes of blocks that are kept in memory because they were read.
pub const READ_CACHE_MAX_BYTES: u64 = 1 << 40;
/// Two cold extents closer than this are read by one request unless an option says otherwise, in bytes.
pub const READ_COALESCE_BYTES: u64 = 64 << 10;

/// Bytes of a line of a cache drive: a block that says what is in it, and blocks of data.
pub const CACHE_LINE_BYTES: usize = 64 << 10;
/// Blocks of data of a line.
pub const CACHE_LINE_BLOCKS: usize = CACHE_LINE_BYTES / BLOCK_BYTES - 1;
/// Lines that are written together.
pub const CACHE_BATCH_LINES: usize = 16;
/// Batches that wait for a cache drive, or are being written there; what comes beyond that is not cached.
pub const CACHE_BATCHES_MAX: usize = 4;
/// Bytes before the first line of a cache drive.
pub const CACHE_ZONE_BYTES: u64 = 64 << 10;
/// Most lines of a cache drive: 1 TiB. Each takes some 100 bytes of memory, one of scattered blocks ten times that.
pub const CACHE_LINES_MAX: u64 = 1 << 24;
/// Milliseconds that a read waits for a cache drive. One that takes longer is used no more.
pub const CACHE_DEADLINE_MS: u64 = 1000;
/// Reads of a cache drive that may fail before it is used no more.
pub const CACHE_READ_ERRORS_MAX: u32 = 8;
/// One read of more than this, in bytes, is not put on a cache drive: it is cheap in order, and would push out the rest.
pub const CACHE_OFFER_MAX_BYTES: u64 = 256 << 10;

/// Bytes before the first slot of a metadata drive.
pub const METADATA_ZONE_BYTES: u64 = 64 << 10;
/// Bytes of a slot of a metadata drive. An entry takes whole slots.
pub const METADATA_SLOT_BYTES: usize = 64 << 10;
/// Most slots of a metadata drive: 1 TiB, the footers of 64 TiB of blocks of 4 KiB.
pub const METADATA_SLOTS_MAX: u64 = 1 << 24;
/// Bytes by which the file of a metadata drive grows at a time, unless one entry is larger.
pub const METADATA_GROW_BYTES: u64 = 4 << 20;
/// Bytes of footers that wait in memory for a metadata drive. What comes beyond that is read from the chain's drive when its turn
/// comes.
pub const METADATA_WAITING_MAX_BYTES: usize = 16 << 20;
/// Milliseconds that an open waits for one read of a metadata drive. One that takes longer is used no more.
pub const METADATA_DEADLINE_MS: u64 = 5000;

const _: () = assert!(
    CLEAN_WINDOW_MIN_BYTES <= CLEAN_BATCH_MAX_BYTES && CLEAN_BATCH_MAX_BYTES <= CLEAN_WINDOW_MAX_BYTES
);
const _: () = assert!(SEGMENT_MAX_BYTES <= u32::MAX as u64);
const _: () = assert!(SEGMENTS_MAX * LINKS_MAX as u64 <= u32::MAX as u64);
const _: () = assert!(GROUP_MAX_BYTES <= DRIVE_IO_MAX_BYTES);
const _: () =
    assert!(BACKGROUND_IO_BYTES.is_multiple_of(BLOCK_BYTES) && BACKGROUND_IO_BYTES <= DRIVE_IO_MAX_BYTES);
// Whoever looks at what lies behind the zone finds it, whatever the drive was.
const _: () =
    assert!(CACHE_ZONE_BYTES == SUPERBLOCK_ZONE_BYTES && METADATA_ZONE_BYTES == SUPERBLOCK_ZONE_BYTES);
const _: () = assert!(SUPERBLOCK_STRIDE_BYTES.is_multiple_of(BLOCK_BYTES));
const _: () = assert!(SEGMENT_MIN_BYTES.is_multiple_of(BLOCK_BYTES as u64));
const _: () = assert!(META_MAX_BYTES <= u16::MAX as usize);
// Two lists of members and a label fit into a superblock.
const _: () = assert!(2 * 16 * DRIVES_MAX + LABEL_MAX_BYTES + 128 <= BLOCK_BYTES);
const _: () = assert!(SUPERBLOCK_QUORUM * 2 >= SUPERBLOCK_COPIES);
const _: () = assert!(CACHE_LINE_BYTES * CACHE_BATCH_LINES <= DRIVE_IO_MAX_BYTES);
// The head of a line has room for what it says of each block.
const _: () = assert!(32 + 40 * CACHE_LINE_BLOCKS <= BLOCK_BYTES);
const _: () =
    assert!(METADATA_SLOT_BYTES.is_multiple_of(BLOCK_BYTES) && METADATA_SLOTS_MAX <= u32::MAX as u64);
