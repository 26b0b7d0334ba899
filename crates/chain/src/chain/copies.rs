//! The data of records that are moved. What lies near together is read in one piece, garbage along with it: a drive reads a
//! megabyte in the time of a few dozen scattered blocks, and so does the processor.
//!
//! What is harmed, or in memory alone, is left to [`Inner::fetch`], which also asks the other sides of a link.

use std::ops::Range;

use bytes::Bytes;
use ithaca_env::limits::BLOCK_BYTES;

use super::Inner;
use crate::catalog::Located;
use crate::limits::{CLEAN_READ_EXCESS, SCAN_IO_BYTES};
use crate::read::FetchError;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// What one request reads: bytes of the segment, and which of the runs lie there.
struct Span {
    bytes: Range<u64>,
    runs: Range<usize>,
    wanted_bytes: u64,
}

impl Inner {
    /// The data of runs of one segment, in the order in which they lie there. All requests start before the first answer is
    /// waited for.
    pub(super) async fn fetch_copies(&self, runs: &[Located]) -> Result<Vec<Bytes>, FetchError> {
        match self.read_spans(runs).await {
            Some(data) => Ok(data),
            None => self.fetch(runs).await,
        }
    }

    /// `None` if that is not the way to read them, or if anything is not as it was written.
    async fn read_spans(&self, runs: &[Located]) -> Option<Vec<Bytes>> {
        let first = runs.first()?;
        let (gap_bytes, start) = {
            let core = self.core.borrow();
            (core.options.read_gap_bytes, core.geometry.segment_start(first.segment))
        };
        if gap_bytes == 0 || self.share.borrow().is_some() {
            return None;
        }
        let device = self.device_of(first.segment)?;
        let place = first.run.data_range();
        if self.tail.borrow().get(first.lap, place.start, place.end).is_some() {
            return None;
        }
        let read = |span: Span| {
            let len = (span.bytes.end - span.bytes.start) as usize;
            (device.read(start + span.bytes.start, len), span)
        };
        let reads: Vec<_> = spans(runs, gap_bytes).into_iter().map(read).collect();
        let is_tail = self.is_on_tail(first.segment);
        self.reads.add(is_tail, |count| count.missed += runs.len() as u64);
        let mut data = vec![Bytes::new(); runs.len()];
        for (read, span) in reads {
            let bytes = read.await.ok()?;
            for index in span.runs {
                let range = runs[index].run.data_range();
                if range.is_empty() {
                    continue;
                }
                let from = (range.start - span.bytes.start) as usize;
                let found = bytes.slice(from..from + (range.end - range.start) as usize);
                if runs[index].run.table.first_mismatch(&found).is_some() {
                    return None;
                }
                data[index] = found;
            }
        }
        Some(data)
    }
}

/// What to read for runs in the order in which they lie there. Runs without data are in any.
fn spans(runs: &[Located], gap_bytes: u64) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for (index, located) in runs.iter().enumerate() {
        let range = located.run.data_range();
        if range.is_empty() {
            continue;
        }
        let bytes = range.start / BLOCK * BLOCK..range.end.next_multiple_of(BLOCK);
        if let Some(last) = spans.last_mut()
            && bytes.start <= last.bytes.end + gap_bytes
            && bytes.end - last.bytes.start <= SCAN_IO_BYTES as u64
            && bytes.end - last.bytes.start
                <= CLEAN_READ_EXCESS * (last.wanted_bytes + range.end - range.start)
        {
            last.wanted_bytes += range.end - range.start;
            last.bytes.end = last.bytes.end.max(bytes.end);
            last.runs.end = index + 1;
        } else {
            let wanted_bytes = range.end - range.start;
            spans.push(Span { bytes, runs: index..index + 1, wanted_bytes });
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::RunHead;
    use crate::run::{RunKind, Table};

    fn located(block: u32, blocks: u32) -> Located {
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

    fn check(gap_blocks: u64, runs: &[(u32, u32)], expected: &[Range<u64>]) {
        let runs: Vec<Located> = runs.iter().map(|&(block, blocks)| located(block, blocks)).collect();
        let blocks = |span: Span| span.bytes.start / BLOCK..span.bytes.end / BLOCK;
        let found: Vec<Range<u64>> = spans(&runs, gap_blocks * BLOCK).into_iter().map(blocks).collect();
        assert_eq!(found, expected, "{gap_blocks} {:?}", runs.len());
    }

    #[test]
    fn what_lies_near_is_read_in_one_piece_but_not_much_more_than_is_needed() {
        // Reading a whole segment for a few blocks, or each block of a full one by itself, both take far too long.
        check(16, &[(1, 1), (6, 1), (11, 1)], std::slice::from_ref(&(1..12)));
        check(4, &[(1, 1), (7, 1)], &[1..2, 7..8]);
        check(200, &[(1, 1), (30, 1)], &[1..2, 30..31]);
        check(16, &[(0, 250), (250, 4), (254, 10)], &[0..254, 254..264]);
        check(16, &[(3, 0), (5, 1), (5, 0)], std::slice::from_ref(&(5..6)));
    }
}
