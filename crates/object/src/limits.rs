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

/// Clients whose requests a view remembers, so that a request that is repeated is applied once. The one whose last request
/// was applied longest ago is forgotten first.
pub const CLIENTS_MAX_COUNT: usize = 16_384;

/// By how much a request's number may be above that below which all of its client's requests are settled.
pub const REQUESTS_AHEAD_MAX: u64 = 65_536;

/// A view notes its digest whenever it has applied so many records.
pub const DIGEST_EVERY: u64 = 64;

/// Digests that a view keeps, to compare with those that records carry.
pub const DIGESTS_MAX_COUNT: usize = 64;

/// Keys of one object that a transaction names; one that has more names the whole object.
pub const KEYS_MAX_COUNT: usize = 64;

/// Bytes of a transaction's calls before it is refused: they must fit into one record.
pub const TX_MAX_BYTES: usize = RECORD_MAX_BYTES - 4096;

/// Transactions inside each other.
pub const NESTING_MAX: usize = 64;

const _: () = assert!(OBJECTS_MAX_COUNT <= u8::MAX as usize, "a call names its object by one byte");
const _: () = assert!(CALLS_MAX_COUNT <= u16::MAX as usize, "calls are counted in two bytes");
const _: () = assert!(METHOD_MAX_BYTES <= u8::MAX as usize, "a name's length is one byte");
