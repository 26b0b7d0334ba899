//! The frame of every request and reply: a head of 32 bytes, and a body.
//!
//! Byte by byte in docs/protocol/socket.md. A frame that does not begin as one, or whose checksum does not match, ends its
//! connection: where the next one begins is not known.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use thiserror::Error;

use super::limits::BODY_MAX_BYTES;

/// The first bytes of a frame.
pub(super) const MAGIC: [u8; 4] = *b"ITvs";
/// The version that is spoken.
pub(super) const VERSION: u16 = 1;
/// Bytes of a head.
pub(super) const HEAD_BYTES: usize = 32;
/// Where the checksum is, the last of the head.
const CHECKSUM_AT: usize = 28;

/// What a frame says besides its body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// What is asked for, or answered.
    pub kind: u16,
    /// By which a client knows the reply to a request.
    pub id: u64,
    /// The transaction that it is about, by a number of the client's; 0 for none.
    pub tx: u32,
    /// Of a reply, whether it was done: 0, or why not. 0 in a request.
    pub status: u32,
}

/// Why bytes are no frame. The connection ends.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum FrameError {
    /// Another protocol, or out of step.
    #[error("a frame begins with {found:02x?}, expected {MAGIC:02x?}")]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// Another version of this protocol.
    #[error("protocol version {found}, this side speaks {VERSION}")]
    Version {
        /// The frame's.
        found: u16,
    },
    /// A longer frame than any.
    #[error("a frame of {found} bytes, at most {max}")]
    Length {
        /// Bytes of its body, as it says.
        found: usize,
        /// The most that there may be.
        max: usize,
    },
    /// It was harmed on its way.
    #[error("a frame's checksum is {found:#010x}, computed {computed:#010x}")]
    Checksum {
        /// What it says.
        found: u32,
        /// What its bytes say.
        computed: u32,
    },
}

/// What stands at the front of what was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Front {
    /// A frame, taken off.
    Frame(Head, Bytes),
    /// Part of one: at least so many bytes are missing.
    Missing(usize),
}

/// A frame of which the head has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Announced {
    head: Head,
    /// Bytes of its body.
    pub body_bytes: usize,
    /// What it says.
    checksum: u32,
}

/// Appends a head for a body that is made of these pieces, which follow it elsewhere.
pub(super) fn put_head(out: &mut BytesMut, head: Head, body: &[&[u8]]) {
    let start = out.len();
    let len: usize = body.iter().map(|piece| piece.len()).sum();
    assert!(len <= BODY_MAX_BYTES, "a frame of {len} bytes");
    out.put_slice(&MAGIC);
    out.put_u16_le(VERSION);
    out.put_u16_le(head.kind);
    out.put_u64_le(head.id);
    out.put_u32_le(head.tx);
    out.put_u32_le(head.status);
    out.put_u32_le(len as u32);
    let checksum =
        body.iter().fold(crc32c::crc32c(&out[start..]), |so_far, piece| crc32c::crc32c_append(so_far, piece));
    out.put_u32_le(checksum);
}

/// Takes a frame off the front. Errors: it is none, and nothing was taken.
pub(super) fn take(received: &mut BytesMut) -> Result<Front, FrameError> {
    match announced(received)? {
        Ok(announced) => announced.take(received),
        Err(missing) => Ok(Front::Missing(missing)),
    }
}

/// The frame that begins at the front, or how many bytes of its head are missing. Errors: it is none.
pub(super) fn announced(received: &[u8]) -> Result<Result<Announced, usize>, FrameError> {
    // As much of it as is there is looked at, so that a stranger hears of it at once.
    let mut magic = MAGIC;
    let known = received.len().min(MAGIC.len());
    magic[..known].copy_from_slice(&received[..known]);
    if magic != MAGIC {
        return Err(FrameError::Magic { found: magic });
    }
    if received.len() < HEAD_BYTES {
        return Ok(Err(HEAD_BYTES - received.len()));
    }
    let mut fields = &received[MAGIC.len()..HEAD_BYTES];
    let version = fields.get_u16_le();
    if version != VERSION {
        return Err(FrameError::Version { found: version });
    }
    let (kind, id) = (fields.get_u16_le(), fields.get_u64_le());
    let (tx, status) = (fields.get_u32_le(), fields.get_u32_le());
    let (body_bytes, checksum) = (fields.get_u32_le() as usize, fields.get_u32_le());
    if body_bytes > BODY_MAX_BYTES {
        return Err(FrameError::Length { found: body_bytes, max: BODY_MAX_BYTES });
    }
    Ok(Ok(Announced { head: Head { kind, id, tx, status }, body_bytes, checksum }))
}

impl Announced {
    /// Takes it off the front of `received`, where its head is. Errors: `Checksum`, and nothing was taken.
    pub fn take(self, received: &mut BytesMut) -> Result<Front, FrameError> {
        let needed = HEAD_BYTES + self.body_bytes;
        if received.len() < needed {
            return Ok(Front::Missing(needed - received.len()));
        }
        let head_checksum = crc32c::crc32c(&received[..CHECKSUM_AT]);
        let (found, computed) =
            (self.checksum, crc32c::crc32c_append(head_checksum, &received[HEAD_BYTES..needed]));
        if found != computed {
            return Err(FrameError::Checksum { found, computed });
        }
        received.advance(HEAD_BYTES);
        Ok(Front::Frame(self.head, received.split_to(self.body_bytes).freeze()))
    }
}
