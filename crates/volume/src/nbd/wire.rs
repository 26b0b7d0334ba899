//! The numbers of the NBD protocol. All are big-endian on the wire.
//!
//! Source: the protocol's text, doc/proto.md of NetworkBlockDevice/nbd; the names are those of the text without their
//! prefixes.

use bytes::{BufMut, BytesMut};

/// What a server says first: `NBDMAGIC`.
pub(super) const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// What follows it, and begins each option: `IHAVEOPT`.
pub(super) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Begins each reply to an option.
pub(super) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Begins each request of the transmission.
pub(super) const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Begins a simple reply.
pub(super) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Begins each chunk of a structured reply.
pub(super) const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// As many zeros as are written or sent at a time.
pub(super) static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

/// Bits of the server's and of the client's first flags; the two mean the same on both sides.
pub(super) mod handshake {
    pub const FIXED_NEWSTYLE: u32 = 1;
    pub const NO_ZEROES: u32 = 2;
}

/// What a client may ask before transmission.
pub(super) mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
}

/// How an option is answered.
pub(super) mod answer {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const UNSUPPORTED: u32 = 0x8000_0001;
    pub const INVALID: u32 = 0x8000_0003;
    pub const UNKNOWN: u32 = 0x8000_0006;
    pub const SHUTDOWN: u32 = 0x8000_0007;
    pub const TOO_BIG: u32 = 0x8000_0009;
}

/// What is told of an export.
pub(super) mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// What an export can do.
pub(super) mod export {
    pub const HAS_FLAGS: u16 = 1 << 0;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_CACHE: u16 = 1 << 10;
}

/// What a request asks for.
pub(super) mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

/// How it is to be done.
pub(super) mod flag {
    pub const FUA: u16 = 1 << 0;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
}

/// Parts of a structured reply.
pub(super) mod chunk {
    pub const DONE: u16 = 1;
    pub const DATA: u16 = 1;
    pub const HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    pub const ERROR: u16 = 0x8001;
}

/// What `base:allocation` says of bytes: nothing is stored for them, and they read as zeros.
pub(super) const HOLE_AND_ZERO: u32 = 1 | 2;

/// Why a request was not done, in the numbers that the protocol allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Errno {
    /// The export cannot be written to.
    NotPermitted = 1,
    /// The volume failed.
    InputOutput = 5,
    /// The request cannot be done on any export of this kind: an unknown command or flag, or past the end.
    Invalid = 22,
    /// A write past the end, or a volume without room.
    NoSpace = 28,
    /// The server stops.
    Shutdown = 108,
}

/// Appends the head of a reply to an option; `len` bytes follow.
pub(super) fn put_answer(out: &mut BytesMut, option: u32, kind: u32, len: usize) {
    out.put_u64(OPTION_REPLY_MAGIC);
    out.put_u32(option);
    out.put_u32(kind);
    out.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
}

/// Appends a reply to an option whose data is a text: an error's words.
pub(super) fn put_refusal(out: &mut BytesMut, option: u32, kind: u32, words: &str) {
    put_answer(out, option, kind, words.len());
    out.put_slice(words.as_bytes());
}
