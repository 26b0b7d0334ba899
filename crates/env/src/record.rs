//! The envelope of every record that somebody stores of itself: magic, version, length, body, checksum.
//!
//! `magic [u8; 4]`, `version u16`, `reserved u16 (0)`, `body_len u32`, body, `crc32c u32` of all that comes before it;
//! little-endian.

use bytes::{BufMut, Bytes, BytesMut};
use thiserror::Error;

use crate::codec::{DecodeError, Decoder};

/// Bytes around the body.
pub const ENVELOPE_BYTES: usize = 16;

/// Why bytes are not a record of the kind that was expected.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RecordError {
    /// Another kind of record, or none.
    #[error("magic is {found:02x?}, expected {expected:02x?}")]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
        /// Those of the kind that was expected.
        expected: [u8; 4],
    },
    /// Written by a newer version of this software.
    #[error("format version {found}, this software reads up to {newest}")]
    NewerVersion {
        /// The record's version.
        found: u16,
        /// The newest that can be read.
        newest: u16,
    },
    /// The bytes do not decode.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

/// A record with this magic and version, its body appended by `encode_body`.
pub fn encode(magic: [u8; 4], version: u16, encode_body: impl FnOnce(&mut BytesMut)) -> Bytes {
    encode_sized(magic, version, 0, encode_body)
}

/// The same in memory that has room for a body of `body_bytes` from the beginning.
pub fn encode_sized(
    magic: [u8; 4],
    version: u16,
    body_bytes: usize,
    encode_body: impl FnOnce(&mut BytesMut),
) -> Bytes {
    let mut out = BytesMut::with_capacity(ENVELOPE_BYTES + body_bytes);
    out.put_slice(&magic);
    out.put_u16_le(version);
    out.put_u16_le(0);
    out.put_u32_le(0);
    let start = out.len();
    encode_body(&mut out);
    let body_len = u32::try_from(out.len() - start).unwrap_or(u32::MAX);
    assert!(body_len != u32::MAX, "a record of 4 GiB");
    out[start - 4..start].copy_from_slice(&body_len.to_le_bytes());
    let checksum = crc32c::crc32c(&out);
    out.put_u32_le(checksum);
    out.freeze()
}

/// The version and the body of the record that `bytes` is, whole and with nothing after it.
pub fn decode(magic: [u8; 4], newest: u16, bytes: &[u8]) -> Result<(u16, &[u8]), RecordError> {
    let mut decoder = Decoder::new(bytes);
    let mut found = [0; 4];
    found.copy_from_slice(decoder.bytes("magic", 4)?);
    if found != magic {
        return Err(RecordError::Magic { found, expected: magic });
    }
    let version = decoder.u16("version")?;
    if version > newest {
        return Err(RecordError::NewerVersion { found: version, newest });
    }
    let reserved = decoder.u16("reserved")?;
    if reserved != 0 || version == 0 {
        let found = u64::from(reserved) << 16 | u64::from(version);
        return Err(DecodeError::Invalid { field: "version", found, expected: "a version from 1 on" }.into());
    }
    let body_len = decoder.u32("body length")? as usize;
    let body = decoder.bytes("body", body_len)?;
    let found = decoder.u32("checksum")?;
    decoder.finish()?;
    let computed = crc32c::crc32c(&bytes[..bytes.len() - 4]);
    if found != computed {
        return Err(DecodeError::Checksum { field: "record", found, computed }.into());
    }
    Ok((version, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_flipped_bit_and_any_cut_of_a_record_is_refused() {
        let record = encode(*b"TEST", 1, |out| out.put_slice(b"body"));
        assert_eq!(decode(*b"TEST", 1, &record), Ok((1, &b"body"[..])));
        for bit in 0..record.len() * 8 {
            let mut damaged = record.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(*b"TEST", 1, &damaged).is_err(), "bit {bit}");
        }
        assert!((0..record.len()).all(|len| decode(*b"TEST", 1, &record[..len]).is_err()));
    }

    #[test]
    fn a_record_of_a_newer_version_is_refused_by_name() {
        let record = encode(*b"TEST", 3, |_| {});
        let refused = decode(*b"TEST", 2, &record);
        assert_eq!(refused, Err(RecordError::NewerVersion { found: 3, newest: 2 }));
    }
}
