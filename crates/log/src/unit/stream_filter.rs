//! That a stream has nothing in a block, without a look at the block.
//!
//! ```text
//!                block:  0 1 2 3 … 63          a stream stands for four rows: what is 1 in all of them,
//!   row 17               0 1 1 0 … 0           block 2 here, may have some of it; the others have none
//!   row 4210             1 0 1 1 … 0
//!   row 19004            0 0 1 0 … 1           known:  how many of each block's first addresses
//!   row 30177            1 0 1 0 … 0                   are counted in its column
//! ```
//!
//! Who reads a rare stream asks every block of the log. To find its block and to search through what is known of it is a dozen looks at
//! memory that nobody has used lately; here 64 blocks take four. A table is a Bloom filter for each block, side by side. What it says of addresses
//! is right for ever, as their records are, and so it outlives what is remembered of the blocks.

use std::collections::BTreeMap;

use twox_hash::XxHash3_64;

use crate::limits::STREAM_BLOCK_COUNT;
use crate::pos::{Addr, AddrRange, StreamId};

/// Blocks of a table.
const COLUMNS: usize = 64;
/// Rows that stand for a stream: one look in 40 is in vain if every address of a block belongs to a stream of its own, one in 10,000 if
/// there are a fifth as many.
const STREAM_ROWS: usize = 4;
/// Binary digits of a row's number.
const ROW_BITS: usize = 15;
/// Bytes of a table's rows.
const TABLE_BYTES: usize = size_of::<u64>() << ROW_BITS;

/// Tables, as many as there is room for: those of the highest addresses.
#[derive(Debug)]
pub struct StreamFilter {
    /// By their first blocks' numbers.
    tables: BTreeMap<u64, Table>,
    max: usize,
}

#[derive(Debug)]
struct Table {
    rows: Box<[u64]>,
    known: [u16; COLUMNS],
}

/// The rows of a stream.
fn rows(stream: StreamId) -> [usize; STREAM_ROWS] {
    let hash = XxHash3_64::oneshot(&stream.0.to_le_bytes());
    std::array::from_fn(|nth| (hash >> (nth * ROW_BITS)) as usize % (1 << ROW_BITS))
}

/// The number of the first block of `addr`'s table, and its own column.
fn place(addr: u64) -> (u64, usize) {
    let block = addr / STREAM_BLOCK_COUNT;
    let column = block % COLUMNS as u64;
    (block - column, column as usize)
}

impl StreamFilter {
    /// An empty one of at most `max_bytes`.
    pub fn new(max_bytes: usize) -> Self {
        Self { tables: BTreeMap::new(), max: max_bytes / TABLE_BYTES }
    }

    /// The block of `addr` has these streams too, and everything of its first `known` addresses was counted with that.
    pub fn note(&mut self, addr: u64, streams: &[StreamId], known: u64) {
        let (first, column) = place(addr);
        let Some(table) = self.table(first) else { return };
        for row in streams.iter().flat_map(|stream| rows(*stream)) {
            table.rows[row] |= 1 << column;
        }
        table.known[column] = table.known[column].max(known as u16);
    }

    /// Up to where it is known of `addrs` that the stream has nothing there: where they start if that is not known of their first block, as
    /// far as they go into it.
    pub fn none_up_to(&self, stream: StreamId, addrs: AddrRange) -> Addr {
        let rows = rows(stream);
        let mut next = addrs.start.0;
        while next < addrs.end.0 {
            let (first, column) = place(next);
            let Some(table) = self.tables.get(&first) else { break };
            let possible = rows.iter().fold(u64::MAX, |possible, row| possible & table.rows[*row]);
            for column in column..COLUMNS {
                let start = (first + column as u64) * STREAM_BLOCK_COUNT;
                let end = addrs.end.0.min(start + STREAM_BLOCK_COUNT);
                if possible & 1 << column != 0 || end - start > table.known[column].into() {
                    return Addr(next);
                }
                next = end;
                if next == addrs.end.0 {
                    break;
                }
            }
        }
        Addr(next)
    }

    /// Bytes in memory, at most.
    pub fn bytes(&self) -> usize {
        self.tables.len() * TABLE_BYTES
    }

    /// The table that begins at this block. The lowest makes room for it, or stays if this one is lower still: so one that went never
    /// comes back, without the streams that it had.
    fn table(&mut self, first: u64) -> Option<&mut Table> {
        if !self.tables.contains_key(&first) && self.tables.len() >= self.max {
            let lowest = self.tables.first_entry().filter(|lowest| *lowest.key() < first)?;
            lowest.remove();
        }
        let empty = || Table { rows: vec![0; 1 << ROW_BITS].into(), known: [0; COLUMNS] };
        Some(self.tables.entry(first).or_insert_with(empty))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE_COUNT: u64 = COLUMNS as u64 * STREAM_BLOCK_COUNT;

    fn has_none(filter: &StreamFilter, stream: StreamId, addrs: AddrRange) -> bool {
        filter.none_up_to(stream, addrs) == addrs.end
    }

    /// Numbers as people choose them, and such as names are hashed to.
    fn stream(nth: u64) -> StreamId {
        StreamId(if nth.is_multiple_of(2) { nth.into() } else { u128::from(nth) << 64 | 300 })
    }

    #[test]
    fn it_passes_what_is_known_to_have_nothing_and_never_what_was_noted() {
        let mut filter = StreamFilter::new(TABLE_BYTES);
        let streams: Vec<StreamId> = (0..1000).map(stream).collect();
        let start = 3 * STREAM_BLOCK_COUNT;
        filter.note(start + 7, &streams, 2000);
        let first = |count: u64| AddrRange::from(start..start + count);
        assert!(streams.iter().all(|stream| !has_none(&filter, *stream, first(2000))));
        let others = || (1000..11_000).map(stream);
        let passed = others().filter(|stream| has_none(&filter, *stream, first(2000))).count();
        assert!(passed > 9_950, "{passed} of 10,000 of which there is nothing");
        // Of what comes next, and of other blocks and tables, nothing is known.
        assert!(!others().any(|stream| has_none(&filter, stream, first(2001))));
        for other in [start - 1, start + STREAM_BLOCK_COUNT, start + TABLE_COUNT] {
            assert!(!others().any(|stream| has_none(&filter, stream, (other..other + 1).into())), "{other}");
        }
        // That it knows less is no news.
        filter.note(start, &[], 1000);
        assert!(others().any(|stream| has_none(&filter, stream, first(2000))));
    }

    #[test]
    fn it_passes_from_block_to_block_and_from_table_to_table_up_to_one_that_may_have_some() {
        let mut filter = StreamFilter::new(4 * TABLE_BYTES);
        let block = |nth: u64| nth * STREAM_BLOCK_COUNT;
        for nth in 60..70 {
            filter.note(block(nth), &[stream(if nth == 67 { 1 } else { 2 })], STREAM_BLOCK_COUNT);
        }
        filter.note(block(70), &[stream(2)], 100);
        let up_to = |nth: u64, range: std::ops::Range<u64>| filter.none_up_to(stream(nth), range.into()).0;
        assert_eq!(up_to(1, block(61) + 7..block(80)), block(67), "past the end of a table");
        assert_eq!(up_to(1, block(67) + 9..block(80)), block(67) + 9, "of this block it says nothing");
        assert_eq!(up_to(1, block(61)..block(64) + 5), block(64) + 5, "no further than asked");
        assert_eq!(up_to(1, block(68)..block(80)), block(70), "of the first 100 only that was known");
        assert_eq!(up_to(1, block(68)..block(70) + 100), block(70) + 100);
        assert_eq!(up_to(2, block(67)..block(80)), block(68));
        assert_eq!(up_to(3, block(59)..block(80)), block(59), "of that block nothing is known");
        assert_eq!(up_to(3, block(300)..block(301)), block(300), "nor of that table");
    }

    #[test]
    fn the_tables_of_the_highest_addresses_are_kept() {
        let mut filter = StreamFilter::new(2 * TABLE_BYTES);
        let knows = |filter: &StreamFilter| -> Vec<u64> {
            let is_known =
                |nth: &u64| has_none(filter, stream(1), (nth * TABLE_COUNT..nth * TABLE_COUNT + 1).into());
            (0..6).filter(is_known).collect()
        };
        for (noted, known) in [
            (2, vec![2]),
            (4, vec![2, 4]),
            (1, vec![2, 4]),
            (3, vec![3, 4]),
            (5, vec![4, 5]),
            (3, vec![4, 5]),
        ] {
            filter.note(noted * TABLE_COUNT, &[stream(2)], 1);
            assert_eq!(knows(&filter), known, "after {noted}");
            assert!(filter.bytes() <= 2 * TABLE_BYTES);
        }
    }
}
