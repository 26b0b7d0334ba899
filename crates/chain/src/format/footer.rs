//! The footer of a closed segment: the inverse map. Pages of run heads sorted by key, a directory of the pages.
//!
//! A reader that knows the directory reads one page to find any record, and the data with one more read.

use std::ops::Range;

use bytes::{BufMut, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};
use ithaca_env::limits::BLOCK_BYTES;

use super::page::{PAGE_HEAD_BYTES, PageBuilder};
use super::{begin_record, finish_record, finish_zeros, open_record};
use crate::limits::{FOOTER_PAGE_BYTES, HOLES_MAX};

const DIRECTORY_MAGIC: u32 = u32::from_le_bytes(*b"ITHD");
const DIRECTORY_HEAD_BYTES: usize = 36;
const PAGE_ENTRY_BYTES: usize = 32;
const HOLE_BYTES: usize = 24;

/// A run for the footer: its encoded head and its keys.
#[derive(Clone, Copy)]
pub(crate) struct FooterRun<'a> {
    pub(crate) keys: (u64, u64),
    pub(crate) blob: &'a [u8],
}

/// One page, as the directory lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PageEntry {
    /// From its first run's first key to the highest end of its runs.
    pub(crate) keys: Range<u64>,
    pub(crate) offset: u32,
    pub(crate) bytes: u32,
    /// The page's checksum: a page of another lap is never taken for it.
    pub(crate) checksum: u32,
}

impl PageEntry {
    /// Whether the page is in `bytes`, which begin at byte `start` of the segment, as it was written.
    pub(crate) fn is_whole(&self, bytes: &[u8], start: u32) -> bool {
        let at = self.offset.checked_sub(start).map(|at| at as usize);
        let page = at.and_then(|at| bytes.get(at..at + self.bytes as usize));
        page.is_some_and(|page| {
            stored_checksum(page) == self.checksum && crc32c::crc32c(&page[8..]) == self.checksum
        })
    }
}

/// Groups that were durable and cannot be read any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hole {
    pub(crate) offset: u32,
    pub(crate) bytes: u32,
    pub(crate) seqs: Range<u64>,
}

/// The directory of a footer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Directory {
    pub(crate) segment: u32,
    pub(crate) lap: u64,
    pub(crate) pages: Vec<PageEntry>,
    pub(crate) holes: Vec<Hole>,
    /// Exactly the keys of the segment's records, in order.
    pub(crate) keys: Vec<Range<u64>>,
}

/// An encoded footer: pages, then the directory, to be written so that it ends where the trailer begins.
pub(crate) struct Footer {
    pub(crate) bytes: BytesMut,
    pub(crate) directory_offset: u32,
    pub(crate) directory_bytes: u32,
    pub(crate) directory_checksum: u32,
}

/// An upper bound for the footer of a segment with so many runs, whose heads take `blob_bytes`.
pub(crate) fn footer_bound_bytes(blob_bytes: u64, runs: u64, holes: u64) -> u64 {
    let pages = (blob_bytes + 4 * runs) / FOOTER_PAGE_BYTES as u64 + 1;
    let pages_bytes = blob_bytes + 4 * runs + pages * (PAGE_HEAD_BYTES + BLOCK_BYTES) as u64;
    let directory_bytes = DIRECTORY_HEAD_BYTES as u64
        + pages * PAGE_ENTRY_BYTES as u64
        + runs * 16
        + holes * HOLE_BYTES as u64
        + BLOCK_BYTES as u64;
    pages_bytes + directory_bytes
}

impl Footer {
    /// Encodes the footer of `runs`, sorted by key, so that it ends at `end_offset`.
    pub(crate) fn encode<'a>(
        segment: u32,
        lap: u64,
        end_offset: u32,
        runs: impl Iterator<Item = FooterRun<'a>>,
        holes: Vec<Hole>,
        keys: Vec<Range<u64>>,
    ) -> Self {
        let mut pages: Vec<(Range<u64>, BytesMut)> = Vec::new();
        let mut building = PageBuilder::default();
        for run in runs {
            if building.is_full_before(&run) {
                pages.push(std::mem::take(&mut building).finish(segment, lap));
            }
            building.add(run);
        }
        if !building.is_empty() {
            pages.push(building.finish(segment, lap));
        }
        let pages_bytes: usize = pages.iter().map(|(_, page)| page.len()).sum();
        let mut directory = Directory { segment, lap, pages: Vec::new(), holes, keys };
        let directory_bytes = directory.encoded_bytes(pages.len());
        let directory_offset = end_offset as usize - directory_bytes;
        let mut offset = directory_offset - pages_bytes;
        let mut bytes = BytesMut::with_capacity(pages_bytes + directory_bytes);
        for (keys, page) in pages {
            let checksum = stored_checksum(&page);
            directory.pages.push(PageEntry {
                keys,
                offset: offset as u32,
                bytes: page.len() as u32,
                checksum,
            });
            offset += page.len();
            bytes.extend_from_slice(&page);
        }
        let encoded = directory.encode();
        assert_eq!(encoded.len(), directory_bytes, "the directory adds up");
        bytes.extend_from_slice(&encoded);
        Self {
            bytes,
            directory_offset: directory_offset as u32,
            directory_bytes: directory_bytes as u32,
            directory_checksum: stored_checksum(&encoded),
        }
    }
}

pub(super) fn stored_checksum(record: &[u8]) -> u32 {
    u32::from_le_bytes([record[4], record[5], record[6], record[7]])
}

pub(super) fn expect(found: u64, expected: u64, field: &'static str) -> Result<(), DecodeError> {
    if found == expected {
        return Ok(());
    }
    Err(DecodeError::Invalid { field, found, expected: "the number of the place it was read from" })
}

impl Directory {
    fn encoded_bytes(&self, pages: usize) -> usize {
        let bytes = DIRECTORY_HEAD_BYTES
            + pages * PAGE_ENTRY_BYTES
            + self.holes.len() * HOLE_BYTES
            + self.keys.len() * 16;
        bytes.next_multiple_of(BLOCK_BYTES)
    }

    fn encode(&self) -> BytesMut {
        let bytes = self.encoded_bytes(self.pages.len());
        let mut out = begin_record(bytes, DIRECTORY_MAGIC, 0);
        out.put_u32_le(self.segment);
        out.put_u64_le(self.lap);
        out.put_u32_le(self.pages.len() as u32);
        out.put_u32_le(self.holes.len() as u32);
        out.put_u32_le(self.keys.len() as u32);
        debug_assert_eq!(out.len(), DIRECTORY_HEAD_BYTES);
        for page in &self.pages {
            out.put_u64_le(page.keys.start);
            out.put_u64_le(page.keys.end);
            out.put_u32_le(page.offset);
            out.put_u32_le(page.bytes);
            out.put_u32_le(page.checksum);
            out.put_u32_le(0);
        }
        for hole in &self.holes {
            out.put_u32_le(hole.offset);
            out.put_u32_le(hole.bytes);
            out.put_u64_le(hole.seqs.start);
            out.put_u64_le(hole.seqs.end);
        }
        for range in &self.keys {
            out.put_u64_le(range.start);
            out.put_u64_le(range.end);
        }
        finish_record(out, bytes)
    }

    /// Decodes the directory of this segment and lap.
    pub(crate) fn decode(bytes: &[u8], segment: u32, lap: u64) -> Result<Self, DecodeError> {
        let mut decoder = open_record(bytes, "footer directory", DIRECTORY_MAGIC)?;
        expect(u64::from(decoder.u16("directory flags")?), 0, "directory flags")?;
        expect(u64::from(decoder.u32("directory segment")?), u64::from(segment), "directory segment")?;
        expect(decoder.u64("directory lap")?, lap, "directory lap")?;
        let page_count = decoder.u32("page count")? as usize;
        let hole_count = decoder.u32("hole count")? as usize;
        let range_count = decoder.u32("key ranges")? as usize;
        if hole_count > HOLES_MAX {
            return Err(DecodeError::Invalid {
                field: "hole count",
                found: hole_count as u64,
                expected: "at most 1024",
            });
        }
        let mut list = Decoder::new(decoder.bytes("pages", page_count.saturating_mul(PAGE_ENTRY_BYTES))?);
        let mut pages = Vec::with_capacity(page_count);
        for _ in 0..page_count {
            let page = PageEntry {
                keys: list.u64("page keys")?..list.u64("page keys")?,
                offset: list.u32("page offset")?,
                bytes: list.u32("page bytes")?,
                checksum: list.u32("page checksum")?,
            };
            expect(u64::from(list.u32("page reserved")?), 0, "page reserved")?;
            let whole = page.bytes > 0
                && (page.bytes as usize).is_multiple_of(BLOCK_BYTES)
                && (page.offset as usize).is_multiple_of(BLOCK_BYTES);
            if page.keys.is_empty() || !whole {
                return Err(DecodeError::Invalid {
                    field: "page",
                    found: u64::from(page.offset),
                    expected: "keys, and whole blocks",
                });
            }
            pages.push(page);
        }
        let mut holes = Vec::with_capacity(hole_count);
        for _ in 0..hole_count {
            holes.push(Hole {
                offset: decoder.u32("hole")?,
                bytes: decoder.u32("hole")?,
                seqs: decoder.u64("hole")?..decoder.u64("hole")?,
            });
        }
        let keys = super::segment::decode_ranges(&mut decoder, range_count, "key range")?;
        finish_zeros(decoder, "footer directory")?;
        Ok(Self { segment, lap, pages, holes, keys })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::format::{GroupFlags, GroupIdentity, GroupSource, PageView, SourceRun, encode_group, testing};
    use crate::options::ChainId;
    use crate::run::{Run, RunKind, Table};

    fn blobs(runs: usize) -> (Bytes, Vec<u32>) {
        let runs: Vec<Run> = (0..runs as u64)
            .map(|index| Run {
                first_key: index * 3,
                version: 1,
                kind: RunKind::Data,
                meta: Bytes::from_static(b"meta"),
                table: Table::of_payloads(["a", "bc"]),
                data: Bytes::from_static(b"abc"),
            })
            .collect();
        let identity = GroupIdentity {
            flags: GroupFlags::default(),
            segment: 3,
            chain: ChainId([7; 16]),
            lap: 9,
            seq: 1,
            durable_seq: 0,
            incarnation: 1,
            prev_lap: 0,
            offset: 4096,
            segments: 12,
            key_end: 0,
        };
        let runs = SourceRun::all(&runs);
        let group = encode_group(&GroupSource { identity, released: &[], state: None, runs: &runs });
        (group.blob, group.starts)
    }

    fn footer(runs: usize) -> (Footer, u64) {
        let (blob, starts) = blobs(runs);
        let run = |index: usize| FooterRun {
            keys: (index as u64 * 3, index as u64 * 3 + 2),
            blob: &blob
                [starts[index] as usize..starts.get(index + 1).map_or(blob.len(), |&end| end as usize)],
        };
        let keys = (0..runs as u64).map(|index| index * 3..index * 3 + 2).collect();
        let holes = vec![Hole { offset: 8192, bytes: 4096, seqs: 4..5 }];
        let bound = footer_bound_bytes(blob.len() as u64, runs as u64, 1);
        (Footer::encode(3, 9, 1 << 20, (0..runs).map(run), holes, keys), bound)
    }

    #[test]
    fn every_run_is_found_on_its_page() {
        let (footer, bound) = footer(1000);
        assert!(footer.bytes.len() as u64 <= bound, "{} bytes, bound {bound}", footer.bytes.len());
        let bytes = footer.bytes.freeze();
        let start = (1 << 20) - bytes.len();
        let directory =
            Directory::decode(&bytes[footer.directory_offset as usize - start..], 3, 9).expect("good");
        assert!(directory.pages.len() > 2 && directory.holes.len() == 1);
        let mut next = 0;
        for entry in &directory.pages {
            let at = entry.offset as usize - start;
            let page = PageView::decode(&bytes.slice(at..at + entry.bytes as usize), 3, 9).expect("good");
            for index in 0..page.run_count() {
                assert_eq!(page.part(index, next..next + 1).0.first_key, next);
                assert_eq!(page.keys(index), Some(next..next + 2));
                next += 3;
            }
        }
        assert_eq!(next, 3000);
    }

    #[test]
    fn no_flipped_bit_passes_and_noise_does_no_harm() {
        let (footer, _) = footer(3);
        let bytes = footer.bytes.freeze();
        let (page, directory) = (bytes.slice(..4096), bytes.slice(4096..));
        let decode_page = |bytes: &[u8]| PageView::decode(&Bytes::copy_from_slice(bytes), 3, 9).ok();
        testing::every_bit_flip_is_refused(&page, decode_page);
        testing::noise_does_not_panic(&page, decode_page);
        testing::every_bit_flip_is_refused(&directory, |bytes| Directory::decode(bytes, 3, 9).ok());
        testing::noise_does_not_panic(&directory, |bytes| Directory::decode(bytes, 3, 9).ok());
    }
}
