//! Every limit of the NBD server, named once.

use ithaca_env::limits::BLOCK_BYTES;

/// Bytes of one read or write at the most, as told to clients that ask.
pub const PAYLOAD_MAX_BYTES: u32 = 32 << 20;

/// Bytes of the name of an export at the most, as the protocol says.
pub const NAME_MAX_BYTES: usize = 4096;

/// Bytes that one option may carry; longer ones are refused and skipped.
pub const OPTION_MAX_BYTES: u32 = 64 << 10;

/// Options of one connection at the most.
pub const OPTIONS_MAX: u32 = 1024;

/// Connections at the same time; one more is closed at once.
pub const CONNECTIONS_MAX: usize = 64;

/// Requests of one connection that are under way at the same time; the next one waits in the socket.
pub const REQUESTS_MAX: usize = 256;

/// Bytes that those requests read or write, together.
pub const REQUESTS_MAX_BYTES: u64 = 2 * PAYLOAD_MAX_BYTES as u64;

/// Bytes of replies that a client has yet to take before its next request is begun.
pub const UNSENT_MAX_BYTES: usize = 4 << 20;

/// Bytes that requests of one connection may read or write together whatever the others do: what systems ask for at a time.
pub const OWN_ROOM_BYTES: usize = 2 << 20;

/// Bytes that requests of all connections may read or write beside that, together.
pub const SHARED_ROOM_BYTES: usize = 128 << 20;

/// Bytes of data that all connections of a server hold together at the most: for requests under way, and of replies that clients have yet to
/// take.
pub const HELD_MAX_BYTES: usize = SHARED_ROOM_BYTES + CONNECTIONS_MAX * (OWN_ROOM_BYTES + UNSENT_MAX_BYTES);

/// Bytes that are read or written at a time: a piece of a longer request.
pub const PIECE_BYTES: usize = 1 << 20;

/// Extents that one query of what is stored is answered with at the most; a client asks again for the rest.
pub const EXTENTS_MAX: usize = 4096;

/// Bytes of an extent in that answer.
pub(super) const EXTENT_BYTES: usize = 8;

const _: () = assert!(REQUESTS_MAX_BYTES >= PAYLOAD_MAX_BYTES as u64, "the largest request can begin");
const _: () = assert!(SHARED_ROOM_BYTES >= PAYLOAD_MAX_BYTES as usize, "the largest request has room");
const _: () = assert!(
    OWN_ROOM_BYTES >= PIECE_BYTES && OWN_ROOM_BYTES >= EXTENTS_MAX * EXTENT_BYTES,
    "what is no data has room"
);
const _: () = assert!((PAYLOAD_MAX_BYTES as usize).is_multiple_of(BLOCK_BYTES), "whole blocks");
