//! Which of a unit's addresses belong to which stream: blocks of addresses, made from the heads of their records when they are asked for.
//!
//! ```text
//!   addresses   |-------- block 0 --------|-------- block 1 --------|--- block 2 …
//!   looked at   [=========================]      (not in memory)    [=====]
//!   spans       s7: [3,9) [12,13)   s9: [9,12)                      s7: [8192,8193)
//! ```
//!
//! It is derived and never stored: what an address's record says never changes, so a span that was noted is right for ever, and one
//! that is forgotten is made again. A block says which of its addresses it has looked at. An address that was stored since, or restored,
//! or whose record was not found, is none of these, so that nothing is taken for absent because it came late. Whether a record still
//! counts (trimmed, voided) is not known here: the unit says that.
//!
//! Most streams have nothing in most blocks. A [filter](super::stream_filter) says so without a look at the block.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use ithaca_chain::RangeSet;

use super::stream_filter::StreamFilter;
use crate::entry::EntryMeta;
use crate::limits;
use crate::pos::{Addr, AddrRange, StreamId};

/// Bytes of a block beside its spans, about.
const BLOCK_BYTES: usize = 256;
/// One byte in so many of an index may be its filter's.
const FILTER_PART: usize = 4;

/// Consecutive addresses of a block that belong to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Span {
    /// In halves, so that a span takes 24 bytes.
    stream: (u64, u64),
    start: u16,
    end: u16,
}

const fn halves(stream: StreamId) -> (u64, u64) {
    ((stream.0 >> 64) as u64, stream.0 as u64)
}

/// Blocks, within a limit of bytes.
pub struct StreamIndex {
    blocks: BTreeMap<u64, Entry>,
    /// Which streams have nothing in a block; outlives the block.
    filter: StreamFilter,
    /// What was used since it came here gets a second chance.
    order: VecDeque<u64>,
    bytes: usize,
    max_bytes: usize,
}

struct Entry {
    block: Rc<RefCell<StreamBlock>>,
    bytes: usize,
    is_used: bool,
}

impl StreamIndex {
    /// An empty one, of at most `max_bytes` in memory, beside the blocks that are in use.
    pub fn new(max_bytes: usize) -> Self {
        let filter = StreamFilter::new(max_bytes / FILTER_PART);
        Self { blocks: BTreeMap::new(), filter, order: VecDeque::new(), bytes: 0, max_bytes }
    }

    /// The addresses of the block that `addr` lies in.
    pub fn range_of(addr: u64) -> AddrRange {
        let start = addr - addr % limits::STREAM_BLOCK_COUNT;
        (start..start.saturating_add(limits::STREAM_BLOCK_COUNT)).into()
    }

    /// Up to where it is known of `addrs` that the stream has nothing there, without a look at the blocks: that may be where they start.
    pub fn none_up_to(&self, stream: StreamId, addrs: AddrRange) -> Addr {
        self.filter.none_up_to(stream, addrs)
    }

    /// Up to where the records of `addrs`, which are of one block, were looked at: that may be where they start.
    pub fn known_up_to(&self, addrs: AddrRange) -> Addr {
        let number = addrs.start.0 / limits::STREAM_BLOCK_COUNT;
        let Some(entry) = self.blocks.get(&number) else { return addrs.start };
        let unknown = entry.block.borrow().unknown(addrs);
        unknown.first().map_or(addrs.end, |first| first.start)
    }

    /// The block that `addr` lies in. Whoever has it may go on using it when it is pushed out.
    pub fn block(&mut self, addr: u64) -> Rc<RefCell<StreamBlock>> {
        let number = addr / limits::STREAM_BLOCK_COUNT;
        if let Some(entry) = self.blocks.get_mut(&number) {
            entry.is_used = true;
            return Rc::clone(&entry.block);
        }
        let block = Rc::new(RefCell::new(StreamBlock::new(number * limits::STREAM_BLOCK_COUNT)));
        let entry = Entry { block: Rc::clone(&block), bytes: 0, is_used: false };
        self.blocks.insert(number, entry);
        self.order.push_back(number);
        block
    }

    /// Counts what the block of `addr` has become, and keeps to the limit.
    pub fn settle(&mut self, addr: u64) {
        let number = addr / limits::STREAM_BLOCK_COUNT;
        if let Some(entry) = self.blocks.get_mut(&number) {
            let mut block = entry.block.borrow_mut();
            let known = block.looked.first_gap(block.start) - block.start;
            self.filter.note(block.start, &std::mem::take(&mut block.fresh), known);
            let bytes = block.memory_bytes();
            self.bytes = self.bytes + bytes - entry.bytes;
            entry.bytes = bytes;
        }
        while self.bytes() > self.max_bytes
            && let Some(oldest) = self.order.pop_front()
        {
            self.pass(oldest);
        }
    }

    /// The oldest goes, unless it was used.
    fn pass(&mut self, oldest: u64) {
        let Some(entry) = self.blocks.get_mut(&oldest) else { return };
        if entry.is_used {
            entry.is_used = false;
            return self.order.push_back(oldest);
        }
        self.bytes -= entry.bytes;
        self.blocks.remove(&oldest);
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.bytes + self.filter.bytes()
    }
}

/// What is known of one block of addresses.
#[derive(Debug)]
pub struct StreamBlock {
    start: u64,
    /// Addresses whose records were looked at.
    looked: RangeSet,
    /// Sorted up to `sorted`, which is done when they are asked for.
    spans: Vec<Span>,
    sorted: usize,
    /// Streams of what was looked at since it was settled.
    fresh: Vec<StreamId>,
}

impl StreamBlock {
    fn new(start: u64) -> Self {
        Self { start, looked: RangeSet::new(), spans: Vec::new(), sorted: 0, fresh: Vec::new() }
    }

    /// The addresses of the block.
    pub fn range(&self) -> AddrRange {
        StreamIndex::range_of(self.start)
    }

    /// Whether any of its addresses was looked at.
    pub fn is_begun(&self) -> bool {
        !self.looked.is_empty()
    }

    /// The parts of `addrs` that were not looked at yet.
    pub fn unknown(&self, addrs: AddrRange) -> Vec<AddrRange> {
        self.looked.gaps(addrs.numbers()).map(AddrRange::from).collect()
    }

    /// The record of each address of `addrs` is one of a run with this meta; `None` if it is junk. What is not of this block is left
    /// out, and so is what was looked at before.
    pub fn note(&mut self, addrs: AddrRange, meta: Option<&EntryMeta>) {
        let block = self.range();
        let within = addrs.start.max(block.start).0..addrs.end.min(block.end).0;
        if within.is_empty() {
            return;
        }
        if let Some(meta) = meta {
            for gap in self.looked.gaps(within.clone()) {
                for (range, _, group) in meta.groups_within(gap.into()) {
                    let Range { start, end } = range.numbers();
                    let (start, end) = ((start - self.start) as u16, (end - self.start) as u16);
                    for place in &group.places {
                        self.spans.push(Span { stream: halves(place.stream), start, end });
                        self.fresh.push(place.stream);
                    }
                }
            }
        }
        self.looked.insert(within);
    }

    /// The addresses of `addrs` that belong to `stream`, or to any stream if there is none, of those that were looked at: ranges in order.
    pub fn find(&mut self, stream: Option<StreamId>, addrs: AddrRange) -> Vec<AddrRange> {
        self.sort();
        let block_start = self.start;
        let cut = |span: &Span| {
            let start = (block_start + u64::from(span.start)).max(addrs.start.0);
            let end = (block_start + u64::from(span.end)).min(addrs.end.0);
            (start < end).then(|| AddrRange::from(start..end))
        };
        let Some(stream) = stream else {
            let any: RangeSet = self.spans.iter().filter_map(cut).map(|range| range.numbers()).collect();
            return any.ranges().map(AddrRange::from).collect();
        };
        let stream = halves(stream);
        let low = addrs.start.0.saturating_sub(block_start);
        let first = self.spans.partition_point(|span| (span.stream, u64::from(span.end)) <= (stream, low));
        let own = self.spans[first..].iter().take_while(|span| span.stream == stream);
        let mut found: Vec<AddrRange> = Vec::new();
        for range in own.map_while(cut) {
            match found.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => found.push(range),
            }
        }
        found
    }

    /// What came since joins the rest: two sorted stretches, which a stable sort merges.
    fn sort(&mut self) {
        if self.sorted == self.spans.len() {
            return;
        }
        self.spans.sort();
        self.spans.dedup_by(|next, before| {
            let joins = next.stream == before.stream && next.start <= before.end;
            if joins {
                before.end = before.end.max(next.end);
            }
            joins
        });
        self.sorted = self.spans.len();
    }

    fn memory_bytes(&self) -> usize {
        BLOCK_BYTES + self.spans.capacity() * size_of::<Span>() + self.looked.range_count() * 32
    }
}

#[cfg(test)]
#[path = "stream_index_tests.rs"]
mod tests;
