//! Stream headers: to which streams an entry belongs, and where the entries before it stand.
//!
//! ```text
//!   entry    count u8 │ header × count │ payload
//!   header   stream, the highest bit says which form: u32 │ 8 bytes
//!     relative   4 × u16: how far back from this entry, the nearest first; 0 where there is none, or it is too far
//!     absolute   1 × u64: the position of the last entry before this one, which is further back than a u16 says
//! ```
//!
//! All numbers are little-endian. An entry whose header says nothing is the first of its stream. (Wei 4.1: 12 bytes if K is 4, "a 31-bit
//! stream ID", "the leading bit to store the extra format bit".)

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_log::pos::LogPos;

/// Pointers of a header in the relative form: K of the text.
pub const POINTERS: usize = 4;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 12;
/// Streams of one entry at the most, as of the log itself.
pub const STREAMS_MAX: usize = 16;
/// The highest number of a stream.
pub const STREAM_MAX: u32 = (1 << 31) - 1;

const ABSOLUTE: u32 = 1 << 31;

/// A stream, by a number of 31 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackStream(u32);

/// What an entry says of one of its streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The stream.
    pub stream: BackStream,
    /// Where the entries before it stand, the nearest first. None if it is the first.
    pub previous: Vec<LogPos>,
}

/// Why bytes are no entry of streams, or a number no stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// There are fewer bytes than the headers need.
    Short { found: usize, needed: usize },
    /// An entry of no stream, or of too many.
    Streams { found: usize },
    /// A stream's number has more than 31 bits.
    Number { found: u32 },
    /// A pointer leads to the entry itself, past it, or below the log's beginning.
    Pointer { pos: LogPos, found: u64 },
    /// Pointers that do not lead further and further back.
    Order { pos: LogPos },
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { found, needed } => write!(f, "{found} bytes where stream headers need {needed}"),
            Self::Streams { found } => write!(f, "an entry of {found} streams, expected 1 to {STREAMS_MAX}"),
            Self::Number { found } => write!(f, "stream {found} is above {STREAM_MAX}"),
            Self::Pointer { pos, found } => {
                write!(f, "the entry at {pos} has a pointer of {found}, which leads to no position before it")
            }
            Self::Order { pos } => write!(f, "the pointers of the entry at {pos} are not in order"),
        }
    }
}

impl std::error::Error for HeaderError {}

impl BackStream {
    /// The stream of this number. Errors: `Number`.
    pub fn new(number: u32) -> Result<Self, HeaderError> {
        if number > STREAM_MAX { Err(HeaderError::Number { found: number }) } else { Ok(Self(number)) }
    }
}

impl Header {
    /// Appends the header of an entry at `pos`. Panics if its pointers do not lead back from there.
    fn encode(&self, pos: LogPos, out: &mut BytesMut) {
        let back = |previous: &LogPos| pos.0.checked_sub(previous.0).filter(|delta| *delta > 0);
        let deltas = self.previous.iter().map(|previous| back(previous).expect("pointers lead back"));
        let near: Vec<u16> = deltas.map_while(|delta| u16::try_from(delta).ok()).take(POINTERS).collect();
        match self.previous.first() {
            Some(far) if near.is_empty() => {
                out.put_u32_le(self.stream.0 | ABSOLUTE);
                out.put_u64_le(far.0);
            }
            _ => {
                out.put_u32_le(self.stream.0);
                let padded = near.into_iter().chain(std::iter::repeat(0)).take(POINTERS);
                padded.for_each(|delta| out.put_u16_le(delta));
            }
        }
    }

    fn decode(pos: LogPos, bytes: &[u8; HEADER_BYTES]) -> Result<Self, HeaderError> {
        let (word, pointers) = bytes.split_first_chunk::<4>().expect("a header is longer than its stream");
        let word = u32::from_le_bytes(*word);
        let stream = BackStream(word & !ABSOLUTE);
        let previous = match word & ABSOLUTE {
            0 => relative(pos, pointers)?,
            _ => vec![absolute(pos, pointers)?],
        };
        Ok(Self { stream, previous })
    }
}

fn relative(pos: LogPos, pointers: &[u8]) -> Result<Vec<LogPos>, HeaderError> {
    let (pairs, _) = pointers.as_chunks::<2>();
    let mut previous = Vec::new();
    let mut before = 0;
    for delta in pairs.iter().map(|pair| u16::from_le_bytes(*pair)) {
        match delta {
            0 => before = u16::MAX,
            _ if delta <= before => return Err(HeaderError::Order { pos }),
            _ => {
                let at = pos.0.checked_sub(delta.into());
                let found = u64::from(delta);
                previous.push(LogPos(at.ok_or(HeaderError::Pointer { pos, found })?));
                before = delta;
            }
        }
    }
    Ok(previous)
}

fn absolute(pos: LogPos, pointers: &[u8]) -> Result<LogPos, HeaderError> {
    let (at, _) = pointers.split_first_chunk().expect("a header has 8 bytes of pointers");
    let found = u64::from_le_bytes(*at);
    if found < pos.0 { Ok(LogPos(found)) } else { Err(HeaderError::Pointer { pos, found }) }
}

/// The entry at `pos` with these headers before its payload. Panics if there are none or too many of them, or one does not lead back.
pub fn encode_entry(pos: LogPos, headers: &[Header], payload: &[u8]) -> Bytes {
    assert!((1..=STREAMS_MAX).contains(&headers.len()), "an entry of {} streams", headers.len());
    let mut out = BytesMut::with_capacity(1 + headers.len() * HEADER_BYTES + payload.len());
    out.put_u8(headers.len() as u8);
    headers.iter().for_each(|header| header.encode(pos, &mut out));
    out.put_slice(payload);
    out.freeze()
}

/// The headers of the entry at `pos`, and its payload.
pub fn decode_entry(pos: LogPos, entry: &Bytes) -> Result<(Vec<Header>, Bytes), HeaderError> {
    let count = entry.first().copied().ok_or(HeaderError::Short { found: 0, needed: 1 })? as usize;
    if !(1..=STREAMS_MAX).contains(&count) {
        return Err(HeaderError::Streams { found: count });
    }
    let (found, needed) = (entry.len(), 1 + count * HEADER_BYTES);
    let bytes = entry.get(1..needed).ok_or(HeaderError::Short { found, needed })?;
    let (headers, _) = bytes.as_chunks::<HEADER_BYTES>();
    let headers = headers.iter().map(|bytes| Header::decode(pos, bytes)).collect::<Result<_, _>>()?;
    Ok((headers, entry.slice(needed..)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(stream: u32, previous: &[u64]) -> Header {
        let previous = previous.iter().map(|pos| LogPos(*pos)).collect();
        Header { stream: BackStream::new(stream).expect("31 bits"), previous }
    }

    fn round_trip(pos: u64, headers: &[Header]) -> Vec<Header> {
        let entry = encode_entry(LogPos(pos), headers, b"payload");
        let (decoded, payload) = decode_entry(LogPos(pos), &entry).expect("what was encoded");
        assert_eq!(payload, b"payload"[..]);
        assert_eq!(entry.len(), 1 + headers.len() * HEADER_BYTES + 7, "12 bytes a stream");
        decoded
    }

    #[test]
    fn both_forms_have_the_bytes_that_the_head_of_this_file_says() {
        // Bytes that change make logs of other builds unreadable.
        let headers = [header(0x0102_0304, &[0x1_0000, 0xff00, 0xfe00]), header(5, &[7])];
        let entry = encode_entry(LogPos(0x1_0102), &headers, b"ab");
        let golden = [
            &[2][..],
            &[0x04, 0x03, 0x02, 0x01, 0x02, 0x01, 0x02, 0x02, 0x02, 0x03, 0, 0],
            &[0x05, 0, 0, 0x80, 7, 0, 0, 0, 0, 0, 0, 0],
            b"ab",
        ];
        assert_eq!(entry, golden.concat());
    }

    #[test]
    fn pointers_come_back_as_far_as_they_fit() {
        // A delta that is cut to 16 bits would lead to an entry of another stream.
        let at = 1 << 40;
        let check = |previous: &[u64], expected: &[u64]| {
            assert_eq!(round_trip(at, &[header(1, previous)]), [header(1, expected)], "{previous:?}");
        };
        check(&[], &[]);
        check(&[at - 1, at - 2, at - 3, at - 4], &[at - 1, at - 2, at - 3, at - 4]);
        check(&[at - 1, at - 2, at - 3, at - 4, at - 5], &[at - 1, at - 2, at - 3, at - 4]);
        check(&[at - 65_535, at - 65_536], &[at - 65_535]);
        check(&[at - 65_536, at - 65_537], &[at - 65_536]);
        check(&[0], &[0]);
    }

    #[test]
    fn what_is_no_header_is_refused_with_what_was_found() {
        // A reader that believes garbage walks in circles or past the log.
        let check = |pos: u64, bytes: &[u8], expected: HeaderError| {
            let found = decode_entry(LogPos(pos), &Bytes::copy_from_slice(bytes));
            assert_eq!(found, Err(expected), "{bytes:?}");
            assert!(!expected.to_string().contains('\n'), "one line");
        };
        check(9, &[], HeaderError::Short { found: 0, needed: 1 });
        check(9, &[0; 13], HeaderError::Streams { found: 0 });
        check(9, &[17; 300], HeaderError::Streams { found: 17 });
        check(9, &[1; 12], HeaderError::Short { found: 12, needed: 13 });
        let pos = LogPos(9);
        let relative =
            |deltas: [u8; 4]| [[1, 3, 0, 0, 0].as_slice(), &deltas.map(|it| [it, 0]).concat()].concat();
        check(9, &relative([10, 0, 0, 0]), HeaderError::Pointer { pos, found: 10 });
        check(9, &relative([2, 2, 0, 0]), HeaderError::Order { pos });
        check(9, &relative([2, 0, 3, 0]), HeaderError::Order { pos });
        let absolute = |at: u8| [&[1, 3, 0, 0, 0x80, at][..], &[0; 7]].concat();
        check(9, &absolute(9), HeaderError::Pointer { pos, found: 9 });
        assert_eq!(BackStream::new(1 << 31), Err(HeaderError::Number { found: 1 << 31 }));
    }
}
