//! Little-endian encoding and checked decoding, for every record that is persisted or sent.
//!
//! A [`Decoder`] never panics and never trusts a length: each read says what it was reading when bytes ran out, and
//! [`Decoder::finish`] rejects what is left over.

use bytes::{BufMut, BytesMut};
use thiserror::Error;

/// Why bytes could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The input ended early.
    #[error("{field}: needs {needed} bytes, {left} left")]
    Short {
        /// What was being read.
        field: &'static str,
        /// Bytes that it needs.
        needed: usize,
        /// Bytes that are left.
        left: usize,
    },
    /// Bytes are left after the record's end.
    #[error("{left} bytes after the end of the record")]
    Trailing {
        /// How many.
        left: usize,
    },
    /// A field holds what it must not.
    #[error("{field}: found {found:#x}, expected {expected}")]
    Invalid {
        /// Which field.
        field: &'static str,
        /// What it holds.
        found: u64,
        /// What it may hold, in words.
        expected: &'static str,
    },
    /// A checksum does not match.
    #[error("{field}: checksum is {found:#010x}, computed {computed:#010x}")]
    Checksum {
        /// What the checksum covers.
        field: &'static str,
        /// The stored checksum.
        found: u32,
        /// The checksum of the bytes that are there.
        computed: u32,
    },
}

/// Reads little-endian fields from the front of a slice.
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    /// Decodes from `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Bytes not read yet.
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// The next `len` bytes.
    pub fn bytes(&mut self, field: &'static str, len: usize) -> Result<&'a [u8], DecodeError> {
        if self.rest.len() < len {
            return Err(DecodeError::Short { field, needed: len, left: self.rest.len() });
        }
        let (head, tail) = self.rest.split_at(len);
        self.rest = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(field, N)?);
        Ok(array)
    }

    /// The next byte.
    pub fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        Ok(u8::from_le_bytes(self.array(field)?))
    }

    /// The next two bytes.
    pub fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    /// The next four bytes.
    pub fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    /// The next eight bytes.
    pub fn u64(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    /// The next sixteen bytes.
    pub fn u128(&mut self, field: &'static str) -> Result<u128, DecodeError> {
        Ok(u128::from_le_bytes(self.array(field)?))
    }

    /// A length written by [`Encoder::counted`] (u32) and that many bytes, at most `max`.
    pub fn counted(&mut self, field: &'static str, max: usize) -> Result<&'a [u8], DecodeError> {
        let len = self.u32(field)?;
        if len as usize > max {
            return Err(DecodeError::Invalid {
                field,
                found: u64::from(len),
                expected: "a length within its limit",
            });
        }
        self.bytes(field, len as usize)
    }

    /// The same of UTF-8.
    pub fn text(&mut self, field: &'static str, max: usize) -> Result<&'a str, DecodeError> {
        let bytes = self.counted(field, max)?;
        let found = bytes.len() as u64;
        std::str::from_utf8(bytes).map_err(|_| DecodeError::Invalid { field, found, expected: "UTF-8" })
    }

    /// Ends the record: an error if bytes are left.
    pub fn finish(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(DecodeError::Trailing { left: self.rest.len() }) }
    }
}

/// Little-endian writes at the end of a buffer; the fixed-width ones are those of [`BufMut`] with a `_le` ending.
pub trait Encoder {
    /// A u32 length, then the bytes. The caller keeps to the limit that the decoder names.
    fn counted(&mut self, bytes: &[u8]);
}

impl Encoder for BytesMut {
    fn counted(&mut self, bytes: &[u8]) {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        assert!(len != u32::MAX, "a counted field of 4 GiB");
        self.put_u32_le(len);
        self.put_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decoder_reports_the_field_that_ran_short() {
        let mut decoder = Decoder::new(&[1, 2, 3]);
        assert_eq!(decoder.u16("first"), Ok(0x0201));
        assert_eq!(decoder.u32("second"), Err(DecodeError::Short { field: "second", needed: 4, left: 1 }));
        assert_eq!(decoder.finish(), Err(DecodeError::Trailing { left: 1 }));
    }

    #[test]
    fn a_counted_field_that_is_no_text_is_refused_with_its_length() {
        let of = |content: &[u8]| {
            let mut bytes = BytesMut::new();
            bytes.counted(content);
            bytes
        };
        assert_eq!(Decoder::new(&of("größe".as_bytes())).text("name", 7), Ok("größe"));
        let refused = DecodeError::Invalid { field: "name", found: 2, expected: "UTF-8" };
        assert_eq!(Decoder::new(&of(b"a\xff")).text("name", 7), Err(refused));
    }

    #[test]
    fn a_counted_field_over_its_limit_is_refused_before_it_is_read() {
        let mut bytes = BytesMut::new();
        bytes.counted(b"12345");
        assert_eq!(Decoder::new(&bytes).counted("name", 5), Ok(&b"12345"[..]));
        assert!(matches!(
            Decoder::new(&bytes).counted("name", 4),
            Err(DecodeError::Invalid { found: 5, .. })
        ));
    }
}
