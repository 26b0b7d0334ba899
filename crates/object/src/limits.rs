//! Every limit of objects and transactions, by name.

use ithaca_log::limits;

/// Bytes of a record: one entry of the log.
pub const RECORD_MAX_BYTES: usize = limits::ENTRY_MAX_BYTES;

/// Calls of one record.
pub const CALLS_MAX_COUNT: usize = 4096;

/// Objects that one record changes: the streams of one entry.
pub const OBJECTS_MAX_COUNT: usize = limits::STREAMS_MAX_COUNT;

/// Bytes of a method's name.
pub const METHOD_MAX_BYTES: usize = 64;

/// Records behind the newest that a view can take back, so that a snapshot there is read without reading the log.
pub const HISTORY_MAX_COUNT: usize = 16_384;

/// Bytes of the calls of these records, but for the oldest: what they have replaced was of calls as a rule, and stays in memory as long as
/// they can be taken back.
pub const HISTORY_MAX_BYTES: u64 = 64 << 20;

/// Clients whose requests a view remembers, so that a request that is repeated is applied once. The one whose last request
/// was applied longest ago is forgotten first.
pub const CLIENTS_MAX_COUNT: usize = 16_384;

/// By how much a request's number may be above that below which all of its client's requests are settled.
pub const REQUESTS_AHEAD_MAX: u64 = 65_536;

/// Numbers of requests that a view remembers, of all clients together: those that were applied and that their clients have not said are settled. Of
/// more, the client whose last request was applied longest ago is forgotten.
pub const UNSETTLED_MAX_COUNT: usize = 1 << 20;

/// A view notes its digest whenever it has applied so many records.
pub const DIGEST_EVERY: u64 = 64;

/// Digests that a view keeps, to compare with those that records carry.
pub const DIGESTS_MAX_COUNT: usize = 64;

/// Keys of one object that a transaction names; one that has more names the whole object.
pub const KEYS_MAX_COUNT: usize = 64;

/// Bytes of a transaction's calls before it is refused: they must fit into one record.
pub const TX_MAX_BYTES: usize = RECORD_MAX_BYTES - 4096;

/// Values inside each other: nodes, which decode what any program puts, decode no deeper ones, as each takes some of the stack.
pub const DEPTH_MAX_COUNT: usize = 128;

/// Calls that share a record.
pub const BATCH_MAX_COUNT: usize = 1024;

/// Bytes of the calls that share a record, unless it is one call alone.
pub const BATCH_MAX_BYTES: usize = 128 << 10;

/// Records of one object that are under way at once with calls that share them; further calls gather meanwhile.
pub const BATCHES_AT_ONCE: usize = 4;

/// Calls of one object that wait for a record.
pub const SUBMITTED_MAX_COUNT: usize = 65_536;

/// Bytes of them.
pub const SUBMITTED_MAX_BYTES: usize = 64 << 20;

/// Bytes by which the arguments of a store's put are shorter than the longest entry: for the record around them, and so that each of
/// its values fits into a record as a copy.
pub const PUT_ROOM_BYTES: usize = 4096;

/// Values of a store that one record copies, and bytes of them with their keys unless it is one alone; half of the longest entry if that is
/// less.
pub const MOVE_MAX_COUNT: usize = 1024;
/// See [`MOVE_MAX_COUNT`].
pub const MOVE_MAX_BYTES: usize = 256 << 10;
/// Bytes of such a copy around key and value.
pub const MOVE_ROOM_BYTES: usize = 32;

/// Entries that are read at once for values of a store.
pub const VALUES_AT_ONCE: usize = 64;

/// Views that a node keeps for programs that have not the objects themselves,
pub const HOSTED_MAX_COUNT: usize = 4096;

/// and the bytes of what they hold, encoded, and keep to take records back; in memory they take a few times as much.
pub const HOSTED_MAX_BYTES: u64 = 256 << 20;

/// Bytes of an answer of such a view beside what it says.
pub const ANSWER_HEAD_BYTES: usize = 64;

/// Transactions inside each other.
pub const NESTING_MAX: usize = 64;

/// Bytes of a chunk of a checkpoint.
pub const CHUNK_MAX_BYTES: usize = limits::ENTRY_MAX_BYTES - 4096;

/// Chunks of a checkpoint.
pub const CHUNKS_MAX_COUNT: usize = 65_536;

/// Bytes of a checkpoint: what a program that opens the object has in memory beside its state.
pub const CHECKPOINT_MAX_BYTES: u64 = 1 << 30;

/// Positions of the log for each record of an object from which on its records are rare: to read what lies between them takes longer than
/// to read each by itself. With entries of 512 bytes that are 32 KiB, which a drive reads in one piece in about the time of a random block.
pub const RARE_SPAN: u64 = 64;

/// Bytes of calls for each byte of the last checkpoint before there is another one of an object whose records are rare.
pub const RARE_BYTES: u64 = 2;

/// So many times as many calls must be there for one who has not appended the last of them to make such a checkpoint.
pub const RARE_OTHERS: u64 = 4;

/// Records of a catalog after which it is stored in its own stream, unless a policy says otherwise.
pub const CATALOG_RECORDS: u64 = 16;

/// Chunks that are written or read at the same time.
pub const CHUNKS_AT_ONCE: usize = 8;

/// Checkpoints of an object that are kept; of more, the one is given up that lies closest between two others.
pub const CHECKPOINTS_MAX_COUNT: usize = 64;

/// Pins and leases of an object.
pub const HOLDS_MAX_COUNT: usize = 1024;

/// Bytes of the name of a pin or a lease.
pub const HOLD_NAME_MAX_BYTES: usize = 255;

/// A lease holds for so much longer by the clock of whoever forgets, because clocks differ.
pub const CLOCKS_APART_MS: u64 = 5_000;

/// Buckets of a hashed map.
pub const BUCKETS_MAX_COUNT: u64 = 65_536;

/// A bucket that has more keys makes its map split one.
pub const BUCKET_SPLIT_COUNT: usize = 256;

/// A node of a tree map that has more keys, or more children, is split;
pub const NODE_SPLIT_COUNT: usize = 128;

/// and a leaf of several keys that has more bytes, encoded.
pub const NODE_SPLIT_BYTES: usize = 256 << 10;

/// Keys and values that the record of a split moves at the most, and bytes of them unless it is one alone; half of the longest entry if that is
/// less. What is more is written before it, to where
/// nothing leads yet.
pub const SPLIT_MAX_COUNT: usize = 2048;
/// See [`SPLIT_MAX_COUNT`].
pub const SPLIT_MAX_BYTES: usize = TX_MAX_BYTES / 2;

/// How often a split is tried again after a conflict: whoever has put something waits for it.
pub const SPLIT_RETRIES: u32 = 2;

/// Nodes above a leaf: a split changes each of them, and as many are new, in one record.
pub const TREE_HEIGHT_MAX: usize = 7;

/// Children of a composed map that a handle keeps open.
pub const CHILDREN_OPEN_MAX_COUNT: usize = 1024;

/// Children that are read at the same time.
pub const CHILDREN_AT_ONCE: usize = 64;

const _: () =
    assert!(REQUESTS_AHEAD_MAX < UNSETTLED_MAX_COUNT as u64, "no client is forgotten for its own numbers");
const _: () = assert!(SPLIT_MAX_COUNT + 2 <= CALLS_MAX_COUNT, "a split is one record");
const _: () = assert!(2 * TREE_HEIGHT_MAX < OBJECTS_MAX_COUNT - 1, "a split is one record");
const _: () = assert!(CHUNKS_MAX_COUNT * 8 + 4096 <= limits::ENTRY_MAX_BYTES, "a directory is one entry");
const _: () =
    assert!(BATCH_MAX_COUNT <= CALLS_MAX_COUNT && BATCH_MAX_BYTES <= TX_MAX_BYTES, "a batch is one record");
const _: () = assert!(OBJECTS_MAX_COUNT <= u8::MAX as usize, "a call names its object by one byte");
const _: () = assert!(CALLS_MAX_COUNT <= u16::MAX as usize, "calls are counted in two bytes");
const _: () = assert!(METHOD_MAX_BYTES <= u8::MAX as usize, "a name's length is one byte");
