//! The records of a metadata drive: what it is, and whose footer lies where. docs/format/metadata.md describes every byte.

use bytes::{BufMut, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};
use ithaca_env::limits::BLOCK_BYTES;

use super::{Trailer, array, begin_record, finish_record, finish_zeros, open_record};
use crate::limits::{METADATA_SLOT_BYTES, METADATA_SLOTS_MAX, METADATA_ZONE_BYTES};
use crate::membership::DriveId;
use crate::options::ChainId;

const ZONE_MAGIC: u32 = u32::from_le_bytes(*b"ITHM");
const ENTRY_MAGIC: u32 = u32::from_le_bytes(*b"ITHE");

/// Bytes of an entry before its footer: the head, and the trailer of the segment.
pub(crate) const ENTRY_HEAD_BYTES: usize = 2 * BLOCK_BYTES;

/// The first block of a metadata drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MetadataHeader {
    /// A random number, drawn when the drive was first used. Entries repeat it, so that no bytes that a chain keeps can pass
    /// for one.
    pub(crate) id: u64,
}

impl MetadataHeader {
    pub(crate) fn encode(&self) -> BytesMut {
        let mut out = begin_record(BLOCK_BYTES, ZONE_MAGIC, 0);
        out.put_u32_le(METADATA_SLOT_BYTES as u32);
        out.put_u64_le(self.id);
        finish_record(out, BLOCK_BYTES)
    }

    pub(crate) fn decode(block: &[u8]) -> Result<Self, DecodeError> {
        let mut decoder = open_record(block, "metadata header", ZONE_MAGIC)?;
        zero_flags(&mut decoder)?;
        let slot_bytes = decoder.u32("slot bytes")?;
        let id = decoder.u64("metadata id")?;
        if slot_bytes as usize != METADATA_SLOT_BYTES {
            return Err(DecodeError::Invalid {
                field: "slot bytes",
                found: u64::from(slot_bytes),
                expected: "65536",
            });
        }
        finish_zeros(decoder, "metadata header")?;
        Ok(Self { id })
    }

    /// Whether the block was one, whatever became of it.
    pub(crate) fn is_meant(block: &[u8]) -> bool {
        block.starts_with(&ZONE_MAGIC.to_le_bytes())
    }
}

/// The head of an entry: which segment of which drive it has the footer of, and the trailer of that segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EntryHead {
    /// That of the metadata drive.
    pub(crate) id: u64,
    /// The first slot of the entry.
    pub(crate) slot: u32,
    /// The drive of the chain that the segment lies on, or a side of its link.
    pub(crate) drive: DriveId,
    /// Bytes of the footer, pages and directory.
    pub(crate) footer_bytes: u32,
    pub(crate) trailer: Trailer,
}

impl EntryHead {
    /// Head and trailer, a block each.
    pub(crate) fn encode(&self) -> BytesMut {
        let trailer = self.trailer.encode();
        let mut out = begin_record(ENTRY_HEAD_BYTES, ENTRY_MAGIC, 0);
        out.put_u32_le(self.slot);
        out.put_u64_le(self.id);
        out.put_u64_le(self.drive.0);
        out.put_slice(&self.trailer.chain.0);
        out.put_u64_le(self.trailer.lap);
        out.put_u32_le(self.trailer.segment);
        out.put_u32_le(self.footer_bytes);
        out.put_slice(&trailer[4..8]);
        let mut out = finish_record(out, BLOCK_BYTES);
        out.extend_from_slice(&trailer);
        out
    }

    /// Decodes the two blocks of an entry that begins in this slot of the metadata drive with this id.
    pub(crate) fn decode(blocks: &[u8], id: u64, slot: u32) -> Result<Self, DecodeError> {
        let (head, block) = blocks.split_at_checked(BLOCK_BYTES).unwrap_or((blocks, &[]));
        let mut decoder = open_record(head, "metadata entry", ENTRY_MAGIC)?;
        zero_flags(&mut decoder)?;
        expect(u64::from(decoder.u32("slot")?), u64::from(slot), "slot")?;
        expect(decoder.u64("metadata id")?, id, "metadata id")?;
        let drive = DriveId(decoder.u64("drive id")?);
        let chain = ChainId(array(&mut decoder, "chain id")?);
        let (lap, segment) = (decoder.u64("lap")?, decoder.u32("segment")?);
        let footer_bytes = decoder.u32("footer bytes")?;
        let checksum = decoder.bytes("trailer checksum", 4)?;
        if !(footer_bytes as usize).is_multiple_of(BLOCK_BYTES) || footer_bytes == 0 {
            return Err(DecodeError::Invalid {
                field: "footer bytes",
                found: u64::from(footer_bytes),
                expected: "whole blocks",
            });
        }
        let is_same = block.get(4..8) == Some(checksum);
        finish_zeros(decoder, "metadata entry")?;
        let trailer = Trailer::decode(block)?;
        if !is_same || (trailer.chain, trailer.lap, trailer.segment) != (chain, lap, segment) {
            return Err(DecodeError::Invalid {
                field: "trailer",
                found: u64::from(trailer.segment),
                expected: "the one that the head names",
            });
        }
        Ok(Self { id, slot, drive, footer_bytes, trailer })
    }

    /// Slots that it takes.
    pub(crate) fn slots(&self) -> u32 {
        slots_for(self.footer_bytes)
    }
}

/// Slots that an entry with a footer of so many bytes takes.
pub(crate) fn slots_for(footer_bytes: u32) -> u32 {
    (ENTRY_HEAD_BYTES as u64 + u64::from(footer_bytes)).div_ceil(METADATA_SLOT_BYTES as u64) as u32
}

/// Where a slot begins on its drive.
pub(crate) fn slot_start(slot: u32) -> u64 {
    METADATA_ZONE_BYTES + u64::from(slot) * METADATA_SLOT_BYTES as u64
}

/// Whole slots on a drive of this size.
pub(crate) fn slots_in(drive_bytes: u64) -> u32 {
    let slots = drive_bytes.saturating_sub(METADATA_ZONE_BYTES) / METADATA_SLOT_BYTES as u64;
    slots.min(METADATA_SLOTS_MAX) as u32
}

fn expect(found: u64, expected: u64, field: &'static str) -> Result<(), DecodeError> {
    if found == expected {
        return Ok(());
    }
    Err(DecodeError::Invalid { field, found, expected: "the number of the place it was read from" })
}

fn zero_flags(decoder: &mut Decoder<'_>) -> Result<(), DecodeError> {
    expect(u64::from(decoder.u16("flags")?), 0, "flags")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::testing;

    fn head() -> EntryHead {
        let trailer = Trailer {
            chain: ChainId([7; 16]),
            segment: 3,
            lap: 9,
            is_body: false,
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
            hole_count: 0,
            lost_below: 0,
            segments: 12,
            keys: None,
        };
        EntryHead { id: 5, slot: 2, drive: DriveId(8), footer_bytes: 8192, trailer }
    }

    #[test]
    fn records_come_back_and_no_flipped_bit_passes() {
        let header = MetadataHeader { id: 5 };
        let (header_bytes, head_bytes) = (header.encode(), head().encode());
        assert_eq!(MetadataHeader::decode(&header_bytes), Ok(header));
        assert_eq!(EntryHead::decode(&head_bytes, 5, 2), Ok(head()));
        let decode = |bytes: &[u8]| EntryHead::decode(bytes, 5, 2).ok();
        testing::every_bit_flip_is_refused(&header_bytes, |bytes| MetadataHeader::decode(bytes).ok());
        testing::every_bit_flip_is_refused(&head_bytes, decode);
        testing::noise_does_not_panic(&header_bytes, |bytes| MetadataHeader::decode(bytes).ok());
        testing::noise_does_not_panic(&head_bytes, decode);
    }

    #[test]
    fn an_entry_of_another_drive_or_another_place_is_refused() {
        // A copy of a metadata drive, or bytes of a chain that look like an entry.
        let bytes = head().encode();
        assert!(EntryHead::decode(&bytes, 6, 2).is_err() && EntryHead::decode(&bytes, 5, 3).is_err());
    }

    #[test]
    fn slots_lie_one_after_the_other_and_an_entry_takes_whole_ones() {
        assert_eq!([0, 1, 2].map(slot_start), [65536, 131_072, 196_608]);
        assert_eq!((slots_in(65535), slots_in(196_608), slots_in(196_607)), (0, 2, 1));
        assert_eq!([4096, 57344, 61440].map(slots_for), [1, 1, 2]);
    }
}
