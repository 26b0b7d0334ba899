//! The frame: 32 bytes of header, a body covered by the header's checksum, then data covered by the checksums in the body.
//!
//! ```text
//!   frame_len u32 | checksum u32 | kind u16 | flags u16 | body_len u32 | request_id u64 | epoch u64 | body | data
//! ```
//! Little-endian; `frame_len` counts what follows the header; the checksum is the crc32c of header bytes 8..32 and the body.

use std::io;

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 32;
/// Bytes of one entry in a body's table: length and crc32c.
pub const TABLE_ENTRY_BYTES: usize = 8;
/// Largest frame that is believed.
pub const FRAME_MAX_BYTES: usize = 16 << 20;

/// What a frame asks for; its answer has the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// `count u64` tokens. Answer: `first u64, count u64`.
    Token = 1,
    /// A table, and the entries' data. Answer when durable: `first u64, count u64`.
    Append = 2,
    /// Positions (u64 each) of preloaded entries. Answer: a table, and the entries' data.
    Read = 3,
    /// `count u64, size u64`: entries to keep in memory for [`Kind::Read`]. Answer: as given.
    Preload = 4,
    /// Nothing. Answer: `cpu_nanos u64, flush_nanos u64` (median since the last such question).
    Status = 5,
}

impl Kind {
    fn from_u16(number: u16) -> Option<Self> {
        [Self::Token, Self::Append, Self::Read, Self::Preload, Self::Status]
            .into_iter()
            .find(|kind| *kind as u16 == number)
    }
}

/// A frame in a buffer, verified but for its data.
pub struct Frame<'a> {
    /// What it asks for.
    pub kind: Kind,
    /// Repeated in the answer.
    pub request_id: u64,
    /// Covered by the header's checksum.
    pub body: &'a [u8],
    /// Covered by the checksums in the body.
    pub data: &'a [u8],
    /// All of it, header included.
    pub bytes: &'a [u8],
}

/// The frame at the front of `bytes`, `None` if it is not all there yet.
pub fn parse(bytes: &[u8]) -> io::Result<Option<Frame<'_>>> {
    if bytes.len() < HEADER_BYTES {
        return Ok(None);
    }
    let total = HEADER_BYTES + u32_at(bytes, 0) as usize;
    if total > FRAME_MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame over the limit"));
    }
    if bytes.len() < total {
        return Ok(None);
    }
    let bytes = &bytes[..total];
    let body_end = HEADER_BYTES + u32_at(bytes, 12) as usize;
    if body_end > total || crc32c::crc32c(&bytes[8..body_end]) != u32_at(bytes, 4) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame's checksum does not match"));
    }
    let Some(kind) = Kind::from_u16(u16_at(bytes, 8)) else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame of unknown kind"));
    };
    let (body, data) = (&bytes[HEADER_BYTES..body_end], &bytes[body_end..]);
    Ok(Some(Frame { kind, request_id: u64_at(bytes, 16), body, data, bytes }))
}

/// Fills in the header of `head`, which holds room for it and then the body; `data_len` bytes of data follow elsewhere.
pub fn seal(head: &mut [u8], kind: Kind, request_id: u64, data_len: usize) {
    let body_len = head.len() - HEADER_BYTES;
    head[..4].copy_from_slice(&((body_len + data_len) as u32).to_le_bytes());
    head[8..10].copy_from_slice(&(kind as u16).to_le_bytes());
    head[10..12].copy_from_slice(&[0; 2]);
    head[12..16].copy_from_slice(&(body_len as u32).to_le_bytes());
    head[16..24].copy_from_slice(&request_id.to_le_bytes());
    head[24..32].copy_from_slice(&[0; 8]);
    let checksum = crc32c::crc32c(&head[8..]);
    head[4..8].copy_from_slice(&checksum.to_le_bytes());
}

/// Appends a frame whose body is `words` to `out`.
pub fn push_words(out: &mut Vec<u8>, kind: Kind, request_id: u64, words: &[u64]) {
    let start = out.len();
    out.resize(start + HEADER_BYTES, 0);
    words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
    seal(&mut out[start..], kind, request_id, 0);
}

/// Whether `table` describes `data`: lengths add up and every crc32c matches.
pub fn verifies(table: &[u8], data: &[u8]) -> bool {
    let mut rest = data;
    for entry in table.chunks_exact(TABLE_ENTRY_BYTES) {
        let Some((record, tail)) = rest.split_at_checked(u32_at(entry, 0) as usize) else {
            return false;
        };
        if crc32c::crc32c(record) != u32_at(entry, 4) {
            return false;
        }
        rest = tail;
    }
    rest.is_empty() && table.len().is_multiple_of(TABLE_ENTRY_BYTES)
}

/// Writes the table entry of `record` at the start of `entry`.
pub fn put_table_entry(entry: &mut [u8], record: &[u8]) {
    entry[..4].copy_from_slice(&(record.len() as u32).to_le_bytes());
    entry[4..8].copy_from_slice(&crc32c::crc32c(record).to_le_bytes());
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The little-endian u32 at `at`. Panics past the end.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(four)
}

/// The little-endian u64 at `at`. Panics past the end.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(eight)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_parsed_only_when_it_is_all_there() {
        let mut bytes = Vec::new();
        push_words(&mut bytes, Kind::Token, 9, &[64]);
        for len in 0..bytes.len() {
            assert!(parse(&bytes[..len]).unwrap().is_none());
        }
        let frame = parse(&bytes).unwrap().unwrap();
        assert_eq!((frame.kind, frame.request_id, u64_at(frame.body, 0)), (Kind::Token, 9, 64));
    }

    #[test]
    fn a_flipped_bit_is_found_in_the_head_and_in_the_data() {
        let mut bytes = Vec::new();
        push_words(&mut bytes, Kind::Token, 9, &[64]);
        bytes[33] ^= 1;
        assert!(parse(&bytes).is_err());
        let mut table = [0; TABLE_ENTRY_BYTES];
        put_table_entry(&mut table, b"entry");
        assert!(verifies(&table, b"entry") && !verifies(&table, b"entrz") && !verifies(&table, b"entry!"));
    }
}
