//! The first and the last block of a segment: what it is used for, and, once it is closed, a summary of it.

use std::ops::Range;

use bytes::{BufMut, BytesMut};
use ithaca_env::codec::DecodeError;
use ithaca_env::limits::BLOCK_BYTES;

use super::{array, begin_record, finish_record, finish_zeros, open_record};
use crate::limits::TRAILER_RANGES_MAX;
use crate::options::ChainId;

const HEADER_MAGIC: u32 = u32::from_le_bytes(*b"ITHH");
const TRAILER_MAGIC: u32 = u32::from_le_bytes(*b"ITHT");

/// What a segment is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum SegmentKind {
    /// Free: written over with zeros, or wiped by a recovery.
    Ready = 1,
    /// Holds groups, or will.
    Open = 2,
    /// Is being filled with copies of records that are elsewhere still: an open frees it.
    Body = 3,
}

/// The first block of a segment, durable before the first group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) chain: ChainId,
    pub(crate) segment: u32,
    pub(crate) kind: SegmentKind,
    /// Tells this use of the segment from every other use of any segment of the chain; grows. While `Ready`: laps up to
    /// this one have been used.
    pub(crate) lap: u64,
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> BytesMut {
        let mut out = begin_record(BLOCK_BYTES, HEADER_MAGIC, self.kind as u16);
        out.put_u32_le(self.segment);
        out.put_slice(&self.chain.0);
        out.put_u64_le(self.lap);
        finish_record(out, BLOCK_BYTES)
    }

    pub(crate) fn decode(block: &[u8]) -> Result<Self, DecodeError> {
        let mut decoder = open_record(block, "segment header", HEADER_MAGIC)?;
        let kind = match decoder.u16("segment kind")? {
            1 => SegmentKind::Ready,
            2 => SegmentKind::Open,
            3 => SegmentKind::Body,
            found => {
                return Err(DecodeError::Invalid {
                    field: "segment kind",
                    found: u64::from(found),
                    expected: "1, 2 or 3",
                });
            }
        };
        let segment = decoder.u32("segment")?;
        let chain = ChainId(array(&mut decoder, "chain id")?);
        let lap = decoder.u64("lap")?;
        finish_zeros(decoder, "segment header")?;
        Ok(Self { chain, segment, kind, lap })
    }
}

/// The last block of a closed segment, written when its footer is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trailer {
    pub(crate) chain: ChainId,
    pub(crate) segment: u32,
    pub(crate) lap: u64,
    /// Its groups are a cleaner's, with numbers of their own.
    pub(crate) is_body: bool,
    pub(crate) first_seq: u64,
    /// Last group of the segment.
    pub(crate) last_seq: u64,
    /// Highest incarnation of its groups.
    pub(crate) incarnation: u64,
    /// Where its groups end, byte in the segment.
    pub(crate) end_offset: u32,
    pub(crate) directory_offset: u32,
    pub(crate) directory_bytes: u32,
    /// crc32c of the directory, so that a directory of another lap is not taken for this one.
    pub(crate) directory_checksum: u32,
    pub(crate) run_count: u64,
    pub(crate) record_count: u64,
    pub(crate) data_bytes: u64,
    /// Holes that damage left; the directory lists them.
    pub(crate) hole_count: u32,
    /// Every key that a group in a hole can have held is below; 0 without holes.
    pub(crate) lost_below: u64,
    /// Segments that the drive had: a drive with fewer was cut short.
    pub(crate) segments: u32,
    /// Exactly the keys of its records; `None` if there are too many ranges, then the directory lists them.
    pub(crate) keys: Option<Vec<Range<u64>>>,
}

/// The segment's groups are a cleaner's.
const FLAG_BODY: u16 = 1;
/// In place of the number of key ranges: they are in the directory.
const RANGES_ELSEWHERE: u32 = u32::MAX;

impl Trailer {
    pub(crate) fn encode(&self) -> BytesMut {
        let mut out = begin_record(BLOCK_BYTES, TRAILER_MAGIC, if self.is_body { FLAG_BODY } else { 0 });
        out.put_u32_le(self.segment);
        out.put_slice(&self.chain.0);
        out.put_u64_le(self.lap);
        out.put_u64_le(self.first_seq);
        out.put_u64_le(self.last_seq);
        out.put_u64_le(self.incarnation);
        out.put_u32_le(self.end_offset);
        out.put_u32_le(self.directory_offset);
        out.put_u32_le(self.directory_bytes);
        out.put_u32_le(self.directory_checksum);
        out.put_u64_le(self.run_count);
        out.put_u64_le(self.record_count);
        out.put_u64_le(self.data_bytes);
        out.put_u32_le(self.hole_count);
        out.put_u32_le(self.segments);
        out.put_u64_le(self.lost_below);
        match &self.keys {
            None => out.put_u32_le(RANGES_ELSEWHERE),
            Some(keys) => {
                assert!(keys.len() <= TRAILER_RANGES_MAX, "{} key ranges in a trailer", keys.len());
                out.put_u32_le(keys.len() as u32);
                for range in keys {
                    out.put_u64_le(range.start);
                    out.put_u64_le(range.end);
                }
            }
        }
        finish_record(out, BLOCK_BYTES)
    }

    pub(crate) fn decode(block: &[u8]) -> Result<Self, DecodeError> {
        let mut decoder = open_record(block, "segment trailer", TRAILER_MAGIC)?;
        let flags = decoder.u16("trailer flags")?;
        if flags & !FLAG_BODY != 0 {
            return Err(DecodeError::Invalid {
                field: "trailer flags",
                found: u64::from(flags),
                expected: "0 or 1",
            });
        }
        let mut trailer = Self {
            segment: decoder.u32("segment")?,
            chain: ChainId(array(&mut decoder, "chain id")?),
            lap: decoder.u64("lap")?,
            is_body: flags == FLAG_BODY,
            first_seq: decoder.u64("first seq")?,
            last_seq: decoder.u64("last seq")?,
            incarnation: decoder.u64("incarnation")?,
            end_offset: decoder.u32("end offset")?,
            directory_offset: decoder.u32("directory offset")?,
            directory_bytes: decoder.u32("directory bytes")?,
            directory_checksum: decoder.u32("directory checksum")?,
            run_count: decoder.u64("run count")?,
            record_count: decoder.u64("record count")?,
            data_bytes: decoder.u64("data bytes")?,
            hole_count: decoder.u32("hole count")?,
            segments: decoder.u32("segments")?,
            lost_below: decoder.u64("lost below")?,
            keys: None,
        };
        let count = decoder.u32("key ranges")?;
        if count != RANGES_ELSEWHERE {
            if count as usize > TRAILER_RANGES_MAX {
                return Err(DecodeError::Invalid {
                    field: "key ranges",
                    found: u64::from(count),
                    expected: "at most 128",
                });
            }
            trailer.keys = Some(decode_ranges(&mut decoder, count as usize, "key range")?);
        }
        finish_zeros(decoder, "segment trailer")?;
        Ok(trailer)
    }
}

/// `count` sorted, disjoint, non-empty ranges.
pub(super) fn decode_ranges(
    decoder: &mut ithaca_env::codec::Decoder<'_>,
    count: usize,
    field: &'static str,
) -> Result<Vec<Range<u64>>, DecodeError> {
    // The bytes are there before memory for them is taken: a count cannot ask for more than the record holds.
    let mut ranges = super::Decoder::new(decoder.bytes(field, count.saturating_mul(16))?);
    let mut out: Vec<Range<u64>> = Vec::with_capacity(count);
    for _ in 0..count {
        let range = ranges.u64(field)?..ranges.u64(field)?;
        if range.is_empty() || out.last().is_some_and(|last| last.end > range.start) {
            return Err(DecodeError::Invalid { field, found: range.start, expected: "ascending ranges" });
        }
        out.push(range);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::testing;

    pub(crate) fn example_trailer() -> Trailer {
        Trailer {
            chain: ChainId([7; 16]),
            segment: 3,
            lap: 9,
            is_body: true,
            first_seq: 100,
            last_seq: 120,
            incarnation: 2,
            end_offset: 90 << 10,
            directory_offset: 100 << 10,
            directory_bytes: 4096,
            directory_checksum: 0xabcd,
            run_count: 40,
            record_count: 640,
            data_bytes: 64_000,
            hole_count: 1,
            lost_below: 700,
            segments: 12,
            keys: Some(vec![10..20, 22..650]),
        }
    }

    #[test]
    fn headers_and_trailers_come_back_and_no_flipped_bit_passes() {
        let header = SegmentHeader { chain: ChainId([7; 16]), segment: 3, kind: SegmentKind::Open, lap: 9 };
        let block = header.encode();
        assert_eq!(SegmentHeader::decode(&block), Ok(header));
        testing::every_bit_flip_is_refused(&block, |bytes| SegmentHeader::decode(bytes).ok());
        testing::noise_does_not_panic(&block, |bytes| SegmentHeader::decode(bytes).ok());

        let block = example_trailer().encode();
        assert_eq!(Trailer::decode(&block), Ok(example_trailer()));
        testing::every_bit_flip_is_refused(&block, |bytes| Trailer::decode(bytes).ok());
        testing::noise_does_not_panic(&block, |bytes| Trailer::decode(bytes).ok());
    }
}
