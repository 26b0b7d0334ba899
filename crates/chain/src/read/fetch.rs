//! The data of runs that were found: from the tail cache, else from the drive, neighbours by one request.

use std::ops::Range;

use bytes::Bytes;
use ithaca_env::drive::DriveFuture;
use ithaca_env::limits::BLOCK_BYTES;

use super::FetchError;
use crate::catalog::Located;
use crate::chain::Inner;
use crate::error::ReadError;
use crate::limits::{READ_COALESCE_BYTES, SCAN_IO_BYTES};
use crate::options::planted;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Runs that one request reads: which of the list, and which blocks of the segment.
struct Extent {
    first: usize,
    end: usize,
    segment: u32,
    blocks: Range<u64>,
}

impl Inner {
    /// The data of a run, if it is in memory.
    pub(super) fn fetch_cached(&self, located: &Located) -> Option<Bytes> {
        if located.run.data_bytes == 0 {
            return Some(Bytes::new());
        }
        let range = located.run.data_range();
        self.tail.borrow().get(located.lap, range.start, range.end)
    }

    /// The data of these runs, in their order. All requests start before the first answer is waited for.
    pub(super) async fn fetch(&self, found: &[Located]) -> Result<Vec<Bytes>, FetchError> {
        let mut data: Vec<Option<Bytes>> = found.iter().map(|located| self.fetch_cached(located)).collect();
        let extents = extents(found, &data);
        let geometry = self.core.borrow().geometry;
        let reads: Vec<(Extent, DriveFuture<Bytes>)> = extents
            .into_iter()
            .map(|extent| {
                let offset = geometry.segment_start(extent.segment) + extent.blocks.start;
                let len = (extent.blocks.end - extent.blocks.start) as usize;
                let read = self.drive.read(offset, len);
                (extent, read)
            })
            .collect();
        for (extent, read) in reads {
            let bytes = read.await.map_err(|error| FetchError::Read(error.into()))?;
            for index in extent.first..extent.end {
                if data[index].is_some() {
                    continue;
                }
                let located = &found[index];
                let range = located.run.data_range();
                let from = (range.start - extent.blocks.start) as usize;
                let to = (range.end - extent.blocks.start) as usize;
                let slice = bytes.slice(from..to);
                self.check(located, &slice)?;
                data[index] = Some(slice);
            }
        }
        Ok(data.into_iter().flatten().collect())
    }

    fn check(&self, located: &Located, data: &[u8]) -> Result<(), FetchError> {
        let run = &located.run;
        let core = self.core.borrow();
        if planted!(core.options, ReadSkipsChecksum) {
            return Ok(());
        }
        let Some(bad) = run.table.first_mismatch(data) else { return Ok(()) };
        if !core.catalog.is_lap(located.segment, located.lap) {
            return Err(FetchError::Recycled);
        }
        let before: u32 = run.table.entries().take(bad).map(|entry| entry.len).sum();
        Err(FetchError::Read(ReadError::Damaged {
            key: run.first_key + bad as u64,
            segment: located.segment,
            offset: run.data_offset + before,
        }))
    }
}

/// What to read of the drive for the runs that have no data yet.
fn extents(found: &[Located], data: &[Option<Bytes>]) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::new();
    for (index, located) in found.iter().enumerate() {
        if data[index].is_some() {
            continue;
        }
        let range = located.run.data_range();
        let blocks = range.start / BLOCK * BLOCK..range.end.next_multiple_of(BLOCK);
        if let Some(last) = extents.last_mut()
            && last.segment == located.segment
            && blocks.start + BLOCK >= last.blocks.end
            && blocks.start <= last.blocks.end + READ_COALESCE_BYTES
            && blocks.end - last.blocks.start <= SCAN_IO_BYTES as u64
        {
            last.blocks.end = last.blocks.end.max(blocks.end);
            last.end = index + 1;
        } else {
            extents.push(Extent { first: index, end: index + 1, segment: located.segment, blocks });
        }
    }
    extents
}
