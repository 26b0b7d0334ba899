//! The data of runs that were found: from the tail cache, else from the drive, neighbours by one request.

use std::ops::Range;

use bytes::Bytes;
use ithaca_env::drive::DriveFuture;
use ithaca_env::limits::BLOCK_BYTES;

use super::cached::Asked;
use super::{FetchError, is_refusal};
use crate::catalog::Located;
use crate::chain::Inner;
use crate::error::ReadError;
use crate::limits::SCAN_IO_BYTES;
use crate::planted::PlantedBug;
use crate::sides::Sides;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Runs that one request reads: which of the list, and which blocks of the segment.
struct Extent {
    first: usize,
    end: usize,
    segment: u32,
    blocks: Range<u64>,
    /// How much of it is asked for. A gap is read along only if it is not longer, so that what is read, and kept until it is
    /// sent, is at most twice that.
    wanted_bytes: u64,
}

/// What a read of runs needs.
pub(super) struct Uncached {
    /// The data of each run, where it stands in memory.
    data: Vec<Option<Bytes>>,
    /// What is to be read for the others.
    extents: Vec<Extent>,
}

impl Uncached {
    /// Bytes to be read.
    pub(super) fn bytes(&self) -> usize {
        self.extents.iter().map(|extent| (extent.blocks.end - extent.blocks.start) as usize).sum()
    }
}

impl Inner {
    /// Data of a segment, if it is in memory.
    pub(super) fn cached(&self, lap: u64, range: Range<u64>) -> Option<Bytes> {
        if range.is_empty() {
            return Some(Bytes::new());
        }
        self.tail.borrow().get(lap, range.start, range.end)
    }

    /// The data of these runs, in their order.
    pub(crate) async fn fetch(&self, found: &[Located]) -> Result<Vec<Bytes>, FetchError> {
        self.fetch_uncached(found, self.uncached(found)).await
    }

    /// What of these runs stands in memory, and what has to be read for the others.
    pub(super) fn uncached(&self, found: &[Located]) -> Uncached {
        let cached = |located: &Located| self.cached(located.lap, located.run.data_range());
        let data: Vec<Option<Bytes>> = found.iter().map(cached).collect();
        let gap_bytes = self.core.borrow().options.read_gap_bytes;
        Uncached { extents: extents(found, &data, gap_bytes), data }
    }

    /// Reads what these runs need. All requests start before the first answer is waited for.
    pub(super) async fn fetch_uncached(
        &self,
        found: &[Located],
        uncached: Uncached,
    ) -> Result<Vec<Bytes>, FetchError> {
        let Uncached { mut data, extents } = uncached;
        self.count_cached(found, &data);
        let reads: Vec<(Extent, Sides, DriveFuture<Bytes>)> = extents
            .into_iter()
            .map(|extent| {
                let device = self.device_of(extent.segment)?;
                let missing = (extent.first..extent.end).filter(|&index| data[index].is_none());
                let wanted = missing.map(|index| (found[index].run.data_range(), &found[index].run.table));
                let (segment, lap) = (extent.segment, found[extent.first].lap);
                let asked = Asked { segment, lap, bytes: extent.blocks.clone() };
                let read = self.read_asked(&device, asked, wanted);
                Some((extent, device, read))
            })
            .collect::<Option<_>>()
            .ok_or(FetchError::Recycled)?;
        for (extent, device, read) in reads {
            let bytes = match read.await {
                // One that was refused says nothing of what lies there.
                Err(error) if device.is_mirrored() && !is_refusal(&error) => None,
                answered => Some(answered.map_err(|error| FetchError::Read(error.into()))?),
            };
            for index in extent.first..extent.end {
                if data[index].is_some() {
                    continue;
                }
                let located = &found[index];
                let range = located.run.data_range();
                let from = (range.start - extent.blocks.start) as usize;
                let to = (range.end - extent.blocks.start) as usize;
                let slice = bytes.as_ref().map(|bytes| bytes.slice(from..to));
                let checked = slice.as_ref().map(|slice| self.check(located, slice));
                data[index] = match checked {
                    Some(Ok(())) => slice,
                    // Another side may have it.
                    None | Some(Err(FetchError::Read(_))) if device.is_mirrored() => {
                        Some(self.mend_run(located).await?)
                    }
                    None => slice,
                    Some(Err(error)) => return Err(error),
                };
            }
        }
        Ok(data.into_iter().flatten().collect())
    }

    fn count_cached(&self, found: &[Located], data: &[Option<Bytes>]) {
        for (located, data) in found.iter().zip(data) {
            if data.as_ref().is_some_and(|data| !data.is_empty()) {
                self.reads.add(self.is_on_tail(located.segment), |count| count.memory += 1);
            }
        }
    }

    fn check(&self, located: &Located, data: &[u8]) -> Result<(), FetchError> {
        let run = &located.run;
        let core = self.core.borrow();
        if core.options.planted.is(PlantedBug::ReadSkipsChecksum) {
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

/// What to read of the drive for the runs that have no data yet, gaps of up to `gap_bytes` along with it.
fn extents(found: &[Located], data: &[Option<Bytes>], gap_bytes: u64) -> Vec<Extent> {
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
            && blocks.start <= last.blocks.end + gap_bytes.min(last.wanted_bytes)
            && blocks.end - last.blocks.start <= SCAN_IO_BYTES as u64
        {
            last.wanted_bytes += blocks.end.saturating_sub(blocks.start.max(last.blocks.end));
            last.blocks.end = last.blocks.end.max(blocks.end);
            last.end = index + 1;
        } else {
            let wanted_bytes = blocks.end - blocks.start;
            extents.push(Extent {
                first: index,
                end: index + 1,
                segment: located.segment,
                blocks,
                wanted_bytes,
            });
        }
    }
    extents
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::RunHead;
    use crate::limits::READ_COALESCE_BYTES;
    use crate::run::{RunKind, Table};

    fn located((block, blocks): (u32, u32)) -> Located {
        let run = RunHead {
            first_key: 0,
            version: 0,
            kind: RunKind::Data,
            aligned: true,
            data_offset: block * BLOCK as u32,
            data_bytes: blocks * BLOCK as u32,
            meta: Bytes::new(),
            table: Table::default(),
        };
        Located { segment: 0, lap: 1, run }
    }

    fn check(runs: &[(u32, u32)], expected: &[Range<u64>]) {
        check_gap(READ_COALESCE_BYTES, runs, expected);
    }

    fn check_gap(gap_bytes: u64, runs: &[(u32, u32)], expected: &[Range<u64>]) {
        let found: Vec<Located> = runs.iter().map(|&run| located(run)).collect();
        let data = vec![None; found.len()];
        let blocks = |extent: Extent| extent.blocks.start / BLOCK..extent.blocks.end / BLOCK;
        assert_eq!(
            extents(&found, &data, gap_bytes).into_iter().map(blocks).collect::<Vec<_>>(),
            expected,
            "{runs:?}"
        );
    }

    #[test]
    fn neighbours_are_read_by_one_request_and_a_gap_is_no_longer_than_what_is_wanted() {
        check(&[(1, 1), (2, 1), (3, 2)], std::slice::from_ref(&(1..5)));
        check(&[(5, 1), (5, 1)], std::slice::from_ref(&(5..6)));
        check(&[(1, 4), (9, 1)], std::slice::from_ref(&(1..10)));
        // One block each, two blocks apart: reading what lies between would triple what is read and kept.
        check(&[(1, 1), (4, 1), (7, 1)], &[1..2, 4..5, 7..8]);
        // In no order: nothing is read along backwards.
        check(&[(9, 1), (1, 1), (2, 1)], &[9..10, 1..3]);
        check_gap(0, &[(1, 4), (5, 1), (7, 1)], &[1..6, 7..8]);
        // Long runs are not joined past the size of one request.
        check(&[(0, 200), (200, 200)], &[0..200, 200..400]);
    }
}
