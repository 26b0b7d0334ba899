//! Which blocks lie in which line of a cache drive, and which lines are written next. Pure: it moves no bytes and waits
//! for nothing, so that a chain and a simulation of one replace alike.
//!
//! ```text
//!   offer(block) ─► line being gathered ─► full lines ─► take_batch ─► lines being written ─► written ─► on the drive
//!                  └──────────────── found in memory until then ───────────────┘                └ found there
//! ```
//!
//! * A batch takes the lines that were used longest ago (LRU over lines). What is not used again leaves in the order in which it
//!   came, so the lines of a batch lie next to each other on the drive for the most part.
//! * A block is in one place at a time: what is there already is not taken again.
//! * Neither memory nor the queue grows beyond what [`Lines::new`] is told.

use std::collections::{BTreeMap, VecDeque};

use super::recency::Recency;
use crate::limits::CACHE_LINE_BLOCKS;

/// Names a block of a chain: what lies there never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockKey {
    /// The chain, by a number that its cache drive gave it.
    pub chain: u32,
    /// The segment.
    pub segment: u32,
    /// The segment's lap.
    pub lap: u64,
    /// The block of the segment, counted from its start.
    pub block: u32,
}

impl BlockKey {
    /// The block so many behind this one in the same segment.
    fn plus(self, blocks: u32) -> Self {
        Self { block: self.block + blocks, ..self }
    }
}

/// Where a block was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found<B> {
    /// It waits to be written: here it is.
    Memory(B),
    /// In a line of the drive.
    Line {
        /// The line.
        line: u32,
        /// Which of its blocks.
        at: u32,
    },
}

/// A line to write.
#[derive(Debug)]
pub struct LineWrite<B> {
    /// The line, to be told to [`Lines::written`].
    pub line: u32,
    /// Its blocks, in their order.
    pub blocks: Vec<(BlockKey, B)>,
}

/// What became of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    /// It will be written.
    Taken,
    /// It is there already.
    Known,
    /// Too much waits to be written.
    Refused,
}

/// Blocks of one segment that follow each other and lie next to each other in one line, under the key of the first.
#[derive(Clone, Copy)]
struct Extent {
    line: u32,
    at: u32,
    count: u32,
}

/// See the module. `B` is what a block's bytes are kept as until they are written.
pub struct Lines<B> {
    index: BTreeMap<BlockKey, Extent>,
    /// The first block of each extent of a line that is on the drive.
    held: Vec<Vec<BlockKey>>,
    order: Recency,
    /// Blocks that are not on the drive yet.
    waiting: BTreeMap<BlockKey, B>,
    /// The line that is being gathered.
    gathered: Vec<BlockKey>,
    full: VecDeque<Vec<BlockKey>>,
    /// Lines that are being written.
    writing: BTreeMap<u32, Vec<BlockKey>>,
    /// Most lines that wait or are being written.
    waiting_max: usize,
}

impl<B: Clone> Lines<B> {
    /// An empty drive of `lines` lines, with memory for `waiting_max` lines that are not written yet.
    pub fn new(lines: u32, waiting_max: usize) -> Self {
        Self {
            index: BTreeMap::new(),
            held: vec![Vec::new(); lines as usize],
            order: Recency::new(lines),
            waiting: BTreeMap::new(),
            gathered: Vec::new(),
            full: VecDeque::new(),
            writing: BTreeMap::new(),
            waiting_max,
        }
    }

    /// Finds a block. Its line counts as used.
    pub fn find(&mut self, key: BlockKey) -> Option<Found<B>> {
        if let Some(block) = self.waiting.get(&key) {
            return Some(Found::Memory(block.clone()));
        }
        let (_, extent) = self.extent(key)?;
        self.order.remove(extent.line);
        self.order.add_newest(extent.line);
        Some(Found::Line { line: extent.line, at: extent.at })
    }

    /// Whether [`Lines::find`] would find a block; nothing counts as used.
    pub fn has(&self, key: BlockKey) -> bool {
        self.waiting.contains_key(&key) || self.extent(key).is_some()
    }

    /// The part of an extent that begins with `key`, and the extent's own key.
    fn extent(&self, key: BlockKey) -> Option<(BlockKey, Extent)> {
        let (&first, extent) = self.index.range(..=key).next_back()?;
        let is_same = (first.chain, first.segment, first.lap) == (key.chain, key.segment, key.lap);
        let skipped = key.block.wrapping_sub(first.block);
        let is_in = is_same && skipped < extent.count;
        is_in.then(|| {
            let part = Extent { at: extent.at + skipped, count: extent.count - skipped, ..*extent };
            (first, part)
        })
    }

    /// Takes a block to be written; `block` is called only if it is taken.
    pub fn offer(&mut self, key: BlockKey, block: impl FnOnce() -> B) -> Offered {
        if self.waiting.contains_key(&key) || self.extent(key).is_some() {
            return Offered::Known;
        }
        if self.full.len() + self.writing.len() >= self.waiting_max {
            return Offered::Refused;
        }
        self.waiting.insert(key, block());
        self.gathered.push(key);
        if self.gathered.len() == CACHE_LINE_BLOCKS {
            self.full.push_back(std::mem::take(&mut self.gathered));
        }
        Offered::Taken
    }

    /// Takes `count` full lines to be written, in the order of their places; none as long as there are fewer. What they replace
    /// is found no more.
    pub fn take_batch(&mut self, count: usize) -> Vec<LineWrite<B>> {
        if self.full.len() < count {
            return Vec::new();
        }
        let mut lines: Vec<u32> = Vec::new();
        while lines.len() < count
            && let Some(line) = self.order.oldest()
        {
            self.clear(line);
            self.order.remove(line);
            lines.push(line);
        }
        lines.sort_unstable();
        let mut writes = Vec::new();
        for line in lines {
            let Some(keys) = self.full.pop_front() else { break };
            let blocks = keys.iter().map(|key| (*key, self.waiting[key].clone())).collect();
            self.writing.insert(line, keys);
            writes.push(LineWrite { line, blocks });
        }
        writes
    }

    /// A line of a batch is on the drive, or was not written: then it holds nothing.
    pub fn written(&mut self, line: u32, is_there: bool) {
        let keys = self.writing.remove(&line).unwrap_or_else(|| panic!("line {line} is not being written"));
        keys.iter().for_each(|key| drop(self.waiting.remove(key)));
        if !is_there {
            return self.order.add_oldest(line);
        }
        self.order.add_newest(line);
        let mut at = 0;
        while let Some(&first) = keys.get(at) {
            let rest = keys[at..].iter().enumerate();
            let count = rest.take_while(|(nth, key)| **key == first.plus(*nth as u32)).count();
            self.index.insert(first, Extent { line, at: at as u32, count: count as u32 });
            self.held[line as usize].push(first);
            at += count;
        }
    }

    /// What lies at a block's place on the drive is not that block: its line is found no more, and is the next to be
    /// written over. False if the block was not in that line any more.
    pub fn forget(&mut self, key: BlockKey, line: u32) -> bool {
        let is_there = self.extent(key).is_some_and(|(_, extent)| extent.line == line);
        if is_there {
            self.clear(line);
            self.order.remove(line);
            self.order.add_oldest(line);
        }
        is_there
    }

    fn clear(&mut self, line: u32) {
        for first in std::mem::take(&mut self.held[line as usize]) {
            self.index.remove(&first);
        }
    }

    /// Lines that hold something.
    pub fn held_lines(&self) -> usize {
        self.held.iter().filter(|extents| !extents.is_empty()).count()
    }

    /// Blocks that wait to be written, or are being written.
    pub fn waiting_blocks(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: u32 = CACHE_LINE_BLOCKS as u32;

    fn key(block: u32) -> BlockKey {
        BlockKey { chain: 0, segment: 3, lap: 7, block }
    }

    /// Offers a whole line that begins with `block`, and writes it.
    fn fill(lines: &mut Lines<u32>, block: u32) -> u32 {
        for each in block..block + LINE {
            assert_eq!(lines.offer(key(each), || each), Offered::Taken);
        }
        let batch = lines.take_batch(1);
        assert_eq!(batch.len(), 1);
        assert_eq!(
            batch[0].blocks.iter().map(|(_, block)| *block).collect::<Vec<_>>(),
            (block..block + LINE).collect::<Vec<_>>()
        );
        lines.written(batch[0].line, true);
        batch[0].line
    }

    #[test]
    fn the_line_that_was_used_longest_ago_is_written_over() {
        let mut lines = Lines::new(3, 4);
        let placed: Vec<u32> = [0, 100, 200].map(|block| fill(&mut lines, block)).to_vec();
        assert_eq!(placed, [0, 1, 2]);
        assert_eq!(lines.find(key(5)), Some(Found::Line { line: 0, at: 5 }));
        assert_eq!(fill(&mut lines, 300), 1);
        assert_eq!(lines.find(key(100)), None);
        assert_eq!(lines.find(key(0)), Some(Found::Line { line: 0, at: 0 }));
        assert_eq!(lines.held_lines(), 3);
    }

    #[test]
    fn a_block_is_found_in_memory_until_its_line_is_written_and_is_not_taken_twice() {
        let mut lines = Lines::new(2, 2);
        for each in 0..LINE {
            lines.offer(key(each), || each);
            assert_eq!(lines.offer(key(each), || 99), Offered::Known);
            assert_eq!(lines.find(key(each)), Some(Found::Memory(each)));
        }
        let batch = lines.take_batch(1);
        assert_eq!(lines.find(key(2)), Some(Found::Memory(2)));
        lines.written(batch[0].line, true);
        assert_eq!(lines.find(key(2)), Some(Found::Line { line: 0, at: 2 }));
        assert_eq!((lines.offer(key(2), || 99), lines.waiting_blocks()), (Offered::Known, 0));
    }

    #[test]
    fn blocks_of_another_lap_chain_or_place_are_not_found() {
        let mut lines = Lines::new(2, 2);
        fill(&mut lines, 10);
        for other in [
            key(9),
            key(10 + LINE),
            BlockKey { lap: 8, ..key(10) },
            BlockKey { chain: 1, ..key(10) },
            BlockKey { segment: 4, ..key(10) },
        ] {
            assert_eq!(lines.find(other), None, "{other:?}");
        }
    }

    #[test]
    fn scattered_blocks_share_a_line_and_leave_together() {
        let mut lines = Lines::new(1, 2);
        for each in 0..LINE {
            lines.offer(key(each * 3), || each);
        }
        let batch = lines.take_batch(1);
        lines.written(batch[0].line, true);
        assert_eq!(lines.find(key(6)), Some(Found::Line { line: 0, at: 2 }));
        assert_eq!(lines.find(key(7)), None);
        fill(&mut lines, 1000);
        assert_eq!((lines.find(key(6)), lines.held_lines()), (None, 1));
    }

    #[test]
    fn what_has_no_room_to_wait_is_refused_and_a_line_that_failed_holds_nothing() {
        let mut lines = Lines::new(4, 1);
        for each in 0..LINE {
            assert_eq!(lines.offer(key(each), || each), Offered::Taken);
        }
        assert_eq!(lines.offer(key(500), || 0), Offered::Refused);
        let batch = lines.take_batch(1);
        assert_eq!(lines.offer(key(500), || 0), Offered::Refused);
        lines.written(batch[0].line, false);
        assert_eq!((lines.find(key(0)), lines.waiting_blocks()), (None, 0));
        assert_eq!(lines.offer(key(500), || 0), Offered::Taken);
    }

    #[test]
    fn a_line_that_is_forgotten_is_the_next_to_go_unless_it_was_written_over_meanwhile() {
        let mut lines = Lines::new(2, 2);
        fill(&mut lines, 0);
        let line = fill(&mut lines, 100);
        assert!(!lines.forget(key(100), 0), "it is not in that line");
        assert!(lines.find(key(100)).is_some());
        assert!(lines.forget(key(103), line));
        assert_eq!(lines.find(key(100)), None);
        assert_eq!(fill(&mut lines, 200), line);
    }
}
