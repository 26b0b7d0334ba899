//! The frame: a fixed header of 32 bytes, a body, and data.
//!
//! ```text
//!  0        4         8     10     12        16           24       32            32+body_len     32+frame_len
//!  frame_len checksum  kind  flags  body_len  request_id   epoch    body          data
//! ```
//!
//! All numbers are little-endian. `frame_len` counts what follows the header. The checksum is the crc32c of bytes 8 to
//! 32 and of the body; data is covered by the checksum of each entry, which stands in a table in the body, so that data
//! is checked end to end and read once. `frame_len` itself is not covered: if it is wrong, the table does not add up to
//! the data.

use bytes::{BufMut, Bytes, BytesMut};
use thiserror::Error;

use super::Kind;
use crate::limits;
use crate::pos::{Epoch, RequestId};

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 32;

/// Nobody asked for this frame by itself: it belongs to the subscription that its request id names.
pub const FLAG_PUSH: u16 = 1;

/// No frame with this request id follows.
pub const FLAG_END: u16 = 2;

/// Of a write: whoever gets it hands it on to the later replicas of its stripe, and answers for all of them.
pub const FLAG_RELAY: u16 = 4;

/// The flags that have a meaning. A frame with another is refused, so that a later version may give it one.
const FLAGS_KNOWN: u16 = FLAG_PUSH | FLAG_END | FLAG_RELAY;

/// Where the part of the header that the checksum covers begins.
const CHECKED_FROM: usize = 8;

/// What the sender of a frame states beside its message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Which request this is, or answers.
    pub request: RequestId,
    /// The epoch that the sender acts in. For a write, that of its tokens.
    pub epoch: Epoch,
    /// [`FLAG_PUSH`], [`FLAG_END`] and [`FLAG_RELAY`].
    pub flags: u16,
}

impl Head {
    /// A request, or its one reply.
    pub fn new(request: RequestId, epoch: Epoch) -> Self {
        Self { request, epoch, flags: 0 }
    }
}

/// A frame whose checksum is right. Its kind may be unknown and its body not yet decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The number of the message's [`Kind`].
    pub kind: u16,
    /// What the sender states beside its message.
    pub head: Head,
    /// The encoded message.
    pub body: Bytes,
    /// The data of the entries that the message lists; not checked yet.
    pub data: Bytes,
}

/// Why a stream of bytes is not a stream of frames. The connection cannot go on: where the next frame begins is not
/// known.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The frame is longer than any may be.
    #[error("a frame of {found} bytes, at most {limit} are allowed")]
    FrameTooLong {
        /// `frame_len`.
        found: usize,
        /// [`limits::FRAME_MAX_BYTES`], or fewer if only less may come.
        limit: usize,
    },
    /// The body is longer than any may be, or than its frame.
    #[error("a body of {found} bytes, at most {limit} are allowed here")]
    BodyTooLong {
        /// `body_len`.
        found: usize,
        /// The smaller of [`limits::BODY_MAX_BYTES`] and the frame.
        limit: usize,
    },
    /// The data is longer than any may be.
    #[error("data of {found} bytes, at most {limit} are allowed")]
    DataTooLong {
        /// What `frame_len` leaves after the body.
        found: usize,
        /// [`limits::DATA_MAX_BYTES`].
        limit: usize,
    },
    /// Header or body are damaged.
    #[error("frame checksum is {found:#010x}, computed {computed:#010x}")]
    Checksum {
        /// The checksum in the header.
        found: u32,
        /// The checksum of the bytes that are there.
        computed: u32,
    },
    /// A flag is set that this version does not know.
    #[error("flags {found:#06x}, known are {known:#06x}")]
    Flags {
        /// The flags in the header.
        found: u16,
        /// The flags that have a meaning.
        known: u16,
    },
}

/// A field of the header.
fn field<const N: usize>(header: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&header[at..at + N]);
    bytes
}

/// Takes the next frame off the front of `buf`, without copying. `None` if it is not there in full; then `buf` has room
/// for what is missing, so that a reader fills it with one read.
///
/// Lengths are checked as soon as the header is there: a peer cannot make the receiver keep more than
/// [`limits::FRAME_MAX_BYTES`].
pub fn next_frame(buf: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
    next_frame_within(buf, limits::FRAME_MAX_BYTES)
}

/// The same where at most `limit` bytes may come after the header.
pub(crate) fn next_frame_within(buf: &mut BytesMut, limit: usize) -> Result<Option<Frame>, FrameError> {
    let Some(header) = buf.first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let frame_len = u32::from_le_bytes(field(header, 0)) as usize;
    let found = u32::from_le_bytes(field(header, 4));
    let body_len = u32::from_le_bytes(field(header, 12)) as usize;
    if frame_len > limit {
        return Err(FrameError::FrameTooLong { found: frame_len, limit });
    }
    let body_limit = limits::BODY_MAX_BYTES.min(frame_len);
    if body_len > body_limit {
        return Err(FrameError::BodyTooLong { found: body_len, limit: body_limit });
    }
    if frame_len - body_len > limits::DATA_MAX_BYTES {
        return Err(FrameError::DataTooLong { found: frame_len - body_len, limit: limits::DATA_MAX_BYTES });
    }
    if buf.len() < HEADER_BYTES + frame_len {
        buf.reserve(HEADER_BYTES + frame_len - buf.len());
        return Ok(None);
    }
    let computed = crc32c::crc32c(&buf[CHECKED_FROM..HEADER_BYTES + body_len]);
    if computed != found {
        return Err(FrameError::Checksum { found, computed });
    }
    let kind = u16::from_le_bytes(field(header, 8));
    let flags = u16::from_le_bytes(field(header, 10));
    if flags & !FLAGS_KNOWN != 0 {
        return Err(FrameError::Flags { found: flags, known: FLAGS_KNOWN });
    }
    let head = Head {
        request: RequestId(u64::from_le_bytes(field(header, 16))),
        epoch: Epoch(u64::from_le_bytes(field(header, 24))),
        flags,
    };
    let mut body = buf.split_to(HEADER_BYTES + frame_len).freeze();
    let data = body.split_off(HEADER_BYTES + body_len);
    Ok(Some(Frame { kind, head, body: body.slice(HEADER_BYTES..), data }))
}

/// Begins a frame at the end of `out`; returns where. The body is appended next, then [`finish_frame`] is called.
pub(super) fn begin_frame(out: &mut BytesMut) -> usize {
    let start = out.len();
    out.put_bytes(0, HEADER_BYTES);
    start
}

/// Ends the header and the body of the frame that begins at `start`; `data_len` bytes of data must follow.
pub(super) fn finish_frame(out: &mut BytesMut, start: usize, kind: Kind, head: Head, data_len: usize) {
    let body_len = out.len() - start - HEADER_BYTES;
    assert!(body_len <= limits::BODY_MAX_BYTES, "a body of {body_len} bytes");
    assert!(data_len <= limits::DATA_MAX_BYTES, "data of {data_len} bytes");
    let mut header = [0; HEADER_BYTES];
    header[0..4].copy_from_slice(&((body_len + data_len) as u32).to_le_bytes());
    header[8..10].copy_from_slice(&(kind as u16).to_le_bytes());
    header[10..12].copy_from_slice(&head.flags.to_le_bytes());
    header[12..16].copy_from_slice(&(body_len as u32).to_le_bytes());
    header[16..24].copy_from_slice(&head.request.0.to_le_bytes());
    header[24..32].copy_from_slice(&head.epoch.0.to_le_bytes());
    out[start..start + HEADER_BYTES].copy_from_slice(&header);
    let checksum = crc32c::crc32c(&out[start + CHECKED_FROM..]);
    out[start + 4..start + 8].copy_from_slice(&checksum.to_le_bytes());
}
