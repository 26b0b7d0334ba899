//! A place in one word: what the index keeps of each block.
//!
//! ```text
//!   data   0 | checksum, its lowest bits | link 4 | segment of the link | block of the segment
//!   junk   1 | version, its lowest bits           | link 4 | segment of the link
//! ```
//!
//! The lap is left out: what an index points at is never freed, so it is always that of the segment's present use. How many bits the
//! rest takes depends on the chain: up to 512 GiB a link leave room for the whole checksum, and each doubling takes one bit of it. Of junk the
//! place in the segment is left out: what identifies a record there is its version.

use ithaca_chain::{Place, Placed, RunKind, index_of, link_of, segment_of};

use crate::limits::VOLUME_BLOCK_BYTES;

const LINK_BITS: u32 = 4;
const JUNK: u64 = 1 << 63;
/// Bits of a word besides the one that says what it is.
const WORD_BITS: u32 = 63;

/// A place, packed. Neither [`ABSENT`] nor [`MANY`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packed(pub(crate) u64);

/// The word of a block that was never written.
pub(crate) const ABSENT: u64 = 0;
/// The word of a block that has several versions.
pub(crate) const MANY: u64 = u64::MAX;

/// How places are packed: as the chain's sizes allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packing {
    slot_bits: u32,
    index_bits: u32,
}

/// Where a data record lies, as far as a word says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    /// The segment.
    pub(crate) segment: u32,
    /// Byte in the segment.
    pub(crate) offset: u32,
    /// The lowest bits of its checksum.
    pub(crate) checksum: u32,
    /// The word.
    pub(crate) packed: Packed,
}

fn bits_for(count: u64) -> u32 {
    u64::BITS - count.leading_zeros()
}

fn low(bits: u32) -> u64 {
    (1 << bits) - 1
}

impl Packing {
    /// For segments of so many bytes, and so many of them on a link.
    pub(crate) fn new(segment_bytes: u64, link_segments: u32) -> Self {
        Self {
            slot_bits: bits_for(segment_bytes / VOLUME_BLOCK_BYTES as u64 - 1),
            // One more than the highest number, so that no word is all ones.
            index_bits: bits_for(u64::from(link_segments)),
        }
    }

    /// How many bits of a checksum there are.
    pub(crate) fn checksum_bits(self) -> u32 {
        (WORD_BITS - LINK_BITS - self.index_bits - self.slot_bits).min(32)
    }

    fn segment_bits(self) -> u32 {
        LINK_BITS + self.index_bits
    }

    fn pack_segment(self, segment: u32) -> u64 {
        let (link, index) = (u64::from(link_of(segment)), u64::from(index_of(segment)));
        assert!(
            index <= low(self.index_bits),
            "segment {segment} of a link that has grown beyond its options"
        );
        link << self.index_bits | index
    }

    fn unpack_segment(self, bits: u64) -> u32 {
        let (link, index) = (bits >> self.index_bits, bits & low(self.index_bits));
        segment_of(link as u32, index as u32)
    }

    /// The word of a record.
    pub(crate) fn pack(self, record: &Placed) -> Packed {
        let segment = self.pack_segment(record.place.segment);
        if record.kind == RunKind::Junk {
            let version = record.version & low(WORD_BITS - self.segment_bits());
            return Packed(JUNK | version << self.segment_bits() | segment);
        }
        let checksum = u64::from(record.place.checksum) & low(self.checksum_bits());
        let slot = u64::from(record.place.offset) / VOLUME_BLOCK_BYTES as u64;
        Packed((checksum << self.segment_bits() | segment) << self.slot_bits | slot)
    }

    /// The word that a record has when it has moved.
    pub(crate) fn pack_moved(self, record: &Placed, to: Place) -> Packed {
        self.pack(&Placed { place: to, ..*record })
    }

    /// The segment that a record lies in.
    pub(crate) fn segment(self, packed: Packed) -> u32 {
        let bits = if packed.is_junk() { packed.0 } else { packed.0 >> self.slot_bits };
        self.unpack_segment(bits & low(self.segment_bits()))
    }

    /// Where a data record lies; nothing of junk.
    pub(crate) fn spot(self, packed: Packed) -> Option<Spot> {
        if packed.is_junk() {
            return None;
        }
        let slot = packed.0 & low(self.slot_bits);
        Some(Spot {
            segment: self.segment(packed),
            offset: (slot * VOLUME_BLOCK_BYTES as u64) as u32,
            checksum: (packed.0 >> (self.slot_bits + self.segment_bits())) as u32,
            packed,
        })
    }
}

impl Packed {
    /// Whether the block reads as zeros.
    pub(crate) fn is_junk(self) -> bool {
        self.0 & JUNK != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: RunKind, version: u64, segment: u32, offset: u32) -> Placed {
        let len = if kind == RunKind::Junk { 0 } else { 4096 };
        let checksum = if kind == RunKind::Junk { 0 } else { 0xdead_beef };
        Placed { key: 1, version, kind, place: Place { segment, lap: 9, offset, len, checksum } }
    }

    #[test]
    fn a_place_comes_back_whole_while_the_chain_is_small_and_with_less_of_its_checksum_where_it_is_large() {
        for (segment_bytes, segments, bits) in
            [(128 << 10, 3, 32), (64 << 20, 8191, 32), (64 << 20, 16_384, 30), (1 << 30, 1 << 20, 20)]
        {
            let packing = Packing::new(segment_bytes, segments);
            assert_eq!(packing.checksum_bits(), bits, "{segment_bytes} {segments}");
            let last = segment_of(15, segments - 1);
            let end = (segment_bytes - 4096) as u32;
            for (segment, offset) in [(0, 4096), (last, end), (last, 8192)] {
                let packed = packing.pack(&record(RunKind::Data, 7, segment, offset));
                assert!(!packed.is_junk() && packed.0 != ABSENT && packed.0 != MANY);
                let checksum = 0xdead_beef & (u32::MAX >> (32 - bits));
                assert_eq!(packing.spot(packed), Some(Spot { segment, offset, checksum, packed }));
                let junk = packing.pack(&record(RunKind::Junk, u64::MAX, segment, offset));
                assert!(junk.is_junk() && junk.0 != MANY);
                assert_eq!((packing.segment(junk), packing.spot(junk)), (segment, None));
            }
        }
    }

    #[test]
    fn junk_of_another_version_in_the_same_segment_is_another_word() {
        let packing = Packing::new(64 << 20, 100);
        let pack = |version| packing.pack(&record(RunKind::Junk, version, 3, 4096));
        assert_ne!(pack(7), pack(8));
        assert_eq!(pack(7), packing.pack(&record(RunKind::Junk, 7, 3, 8192)));
    }
}
