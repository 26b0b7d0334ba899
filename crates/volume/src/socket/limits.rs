//! Every limit of a volume's socket, named once.

use crate::limits::{COMMIT_BLOCKS_MAX, REQUEST_BLOCKS_MAX, VOLUME_BLOCK_BYTES};

/// Most blocks that one request reads or writes.
pub const BLOCKS_MAX: u64 = 1024;

/// Bytes of a frame's body at the most: the data of the largest write, and what comes before it.
pub const BODY_MAX_BYTES: usize = BLOCKS_MAX as usize * VOLUME_BLOCK_BYTES + 64;

/// Connections at the same time; one more is told so, and closed.
pub const CONNECTIONS_MAX: usize = 64;

/// Requests of one connection that are under way or wait for earlier ones of their transaction; the next one waits in the
/// socket.
pub const REQUESTS_MAX: usize = 256;

/// Bytes that those requests read or write, together.
pub const REQUESTS_MAX_BYTES: usize = 16 * BODY_MAX_BYTES;

/// Bytes of replies that a client has yet to take before its next request is begun.
pub const UNSENT_MAX_BYTES: usize = 4 << 20;

/// Bytes of a frame's body that need no room: of more than that some are data, or should not be there.
pub const PLAIN_BODY_BYTES: usize = 64;

/// Bytes that requests of one connection may read or write together whatever the others do. The largest request fits, so that nobody ever waits
/// for another client, and a transaction can be ended, whatever the others do.
pub const OWN_ROOM_BYTES: usize = BODY_MAX_BYTES;

/// Bytes that requests of all connections may read or write beside that, together.
pub const SHARED_ROOM_BYTES: usize = 128 << 20;

/// Bytes of data that all connections of a server hold together at the most: for requests that wait or are under way, and of replies that clients
/// have yet to take. What transactions have written is the volume's, and has a limit there.
pub const HELD_MAX_BYTES: usize = SHARED_ROOM_BYTES + CONNECTIONS_MAX * (OWN_ROOM_BYTES + UNSENT_MAX_BYTES);

/// Bytes of the memory of one client that the server maps.
pub const MEMORY_MAX_BYTES: usize = 64 << 20;

/// Bytes of memory that [`Client`](super::Client) shares unless it is told otherwise: the largest request fits.
pub const MEMORY_BYTES: usize = BLOCKS_MAX as usize * VOLUME_BLOCK_BYTES;

/// Bytes of the words of a refusal.
pub const WORDS_MAX_BYTES: usize = 512;

/// Damaged places that an answer names.
pub const DAMAGE_MAX: usize = 64;

const _: () = assert!(BLOCKS_MAX <= REQUEST_BLOCKS_MAX && BLOCKS_MAX >= COMMIT_BLOCKS_MAX as u64);
const _: () = assert!(MEMORY_BYTES <= MEMORY_MAX_BYTES, "what is shared is taken");
const _: () = assert!(REQUESTS_MAX_BYTES >= BODY_MAX_BYTES, "the largest request can begin");
const _: () =
    assert!(OWN_ROOM_BYTES >= BODY_MAX_BYTES && OWN_ROOM_BYTES >= BLOCKS_MAX as usize * VOLUME_BLOCK_BYTES);
