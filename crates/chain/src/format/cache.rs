//! The records of a cache drive: what it is, and what is in each of its lines. docs/format/cache.md describes every byte.

use bytes::{BufMut, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};
use ithaca_env::limits::BLOCK_BYTES;

use super::{array, begin_record, finish_record, finish_zeros, open_record};
use crate::limits::{CACHE_LINE_BLOCKS, CACHE_LINE_BYTES, CACHE_ZONE_BYTES};
use crate::options::ChainId;

const ZONE_MAGIC: u32 = u32::from_le_bytes(*b"ITHC");
const LINE_MAGIC: u32 = u32::from_le_bytes(*b"ITHL");

/// The first block of a cache drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheHeader {
    /// This use of the drive: a random number. Lines of another use count for nothing.
    pub(crate) session: u64,
    /// Lines of the drive.
    pub(crate) lines: u32,
}

impl CacheHeader {
    pub(crate) fn encode(&self) -> BytesMut {
        let mut out = begin_record(BLOCK_BYTES, ZONE_MAGIC, 0);
        out.put_u32_le(self.lines);
        out.put_u64_le(self.session);
        out.put_u32_le(CACHE_LINE_BYTES as u32);
        finish_record(out, BLOCK_BYTES)
    }

    pub(crate) fn decode(block: &[u8]) -> Result<Self, DecodeError> {
        let mut decoder = open_record(block, "cache header", ZONE_MAGIC)?;
        zero_flags(&mut decoder)?;
        let lines = decoder.u32("lines")?;
        let session = decoder.u64("session")?;
        let line_bytes = decoder.u32("line bytes")?;
        if line_bytes as usize != CACHE_LINE_BYTES {
            return Err(DecodeError::Invalid {
                field: "line bytes",
                found: u64::from(line_bytes),
                expected: "65536",
            });
        }
        finish_zeros(decoder, "cache header")?;
        Ok(Self { session, lines })
    }
}

/// A block of data in a line, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CachedBlock {
    pub(crate) chain: ChainId,
    pub(crate) lap: u64,
    pub(crate) segment: u32,
    /// Byte in the segment, a multiple of the block.
    pub(crate) offset: u32,
    /// crc32c of the block.
    pub(crate) checksum: u32,
}

/// The first block of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LineHead {
    /// That of the drive when the line was written.
    pub(crate) session: u64,
    /// Which line it is.
    pub(crate) line: u32,
    /// What follows it.
    pub(crate) blocks: Vec<CachedBlock>,
}

impl LineHead {
    pub(crate) fn encode(&self) -> BytesMut {
        assert!(
            (1..=CACHE_LINE_BLOCKS).contains(&self.blocks.len()),
            "{} blocks in a line",
            self.blocks.len()
        );
        let mut out = begin_record(BLOCK_BYTES, LINE_MAGIC, 0);
        out.put_u32_le(self.line);
        out.put_u64_le(self.session);
        out.put_u32_le(self.blocks.len() as u32);
        out.put_u32_le(0);
        for block in &self.blocks {
            out.put_slice(&block.chain.0);
            out.put_u64_le(block.lap);
            out.put_u32_le(block.segment);
            out.put_u32_le(block.offset);
            out.put_u32_le(block.checksum);
            out.put_u32_le(0);
        }
        finish_record(out, BLOCK_BYTES)
    }

    pub(crate) fn decode(block: &[u8]) -> Result<Self, DecodeError> {
        let mut decoder = open_record(block, "line head", LINE_MAGIC)?;
        zero_flags(&mut decoder)?;
        let line = decoder.u32("line")?;
        let session = decoder.u64("session")?;
        let count = decoder.u32("block count")? as usize;
        zero(&mut decoder, "reserved")?;
        if !(1..=CACHE_LINE_BLOCKS).contains(&count) {
            return Err(DecodeError::Invalid {
                field: "block count",
                found: count as u64,
                expected: "1 to 15",
            });
        }
        let mut blocks = Vec::with_capacity(count);
        for _ in 0..count {
            let block = CachedBlock {
                chain: ChainId(array(&mut decoder, "chain id")?),
                lap: decoder.u64("lap")?,
                segment: decoder.u32("segment")?,
                offset: decoder.u32("offset")?,
                checksum: decoder.u32("block checksum")?,
            };
            zero(&mut decoder, "reserved")?;
            if !(block.offset as usize).is_multiple_of(BLOCK_BYTES) {
                return Err(DecodeError::Invalid {
                    field: "offset",
                    found: u64::from(block.offset),
                    expected: "a multiple of 4096",
                });
            }
            blocks.push(block);
        }
        finish_zeros(decoder, "line head")?;
        Ok(Self { session, line, blocks })
    }
}

fn zero_flags(decoder: &mut Decoder<'_>) -> Result<(), DecodeError> {
    match decoder.u16("flags")? {
        0 => Ok(()),
        found => Err(DecodeError::Invalid { field: "flags", found: u64::from(found), expected: "0" }),
    }
}

fn zero(decoder: &mut Decoder<'_>, field: &'static str) -> Result<(), DecodeError> {
    match decoder.u32(field)? {
        0 => Ok(()),
        found => Err(DecodeError::Invalid { field, found: u64::from(found), expected: "0" }),
    }
}

/// Where a line begins on its drive.
pub(crate) fn line_start(line: u32) -> u64 {
    CACHE_ZONE_BYTES + u64::from(line) * CACHE_LINE_BYTES as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::testing;

    fn head() -> LineHead {
        let block =
            |offset| CachedBlock { chain: ChainId([7; 16]), lap: 9, segment: 3, offset, checksum: 11 };
        LineHead { session: 5, line: 2, blocks: vec![block(4096), block(8192)] }
    }

    #[test]
    fn records_come_back_and_no_flipped_bit_passes() {
        let header = CacheHeader { session: 5, lines: 9 };
        let (header_bytes, head_bytes) = (header.encode(), head().encode());
        assert_eq!(CacheHeader::decode(&header_bytes), Ok(header));
        assert_eq!(LineHead::decode(&head_bytes), Ok(head()));
        testing::every_bit_flip_is_refused(&header_bytes, |bytes| CacheHeader::decode(bytes).ok());
        testing::every_bit_flip_is_refused(&head_bytes, |bytes| LineHead::decode(bytes).ok());
        testing::noise_does_not_panic(&header_bytes, |bytes| CacheHeader::decode(bytes).ok());
        testing::noise_does_not_panic(&head_bytes, |bytes| LineHead::decode(bytes).ok());
    }

    #[test]
    fn lines_lie_one_after_the_other_behind_the_header() {
        assert_eq!([0, 1, 2].map(line_start), [65536, 131_072, 196_608]);
    }
}
