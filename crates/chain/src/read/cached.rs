//! The cache drive in reads: asked before a drive of the chain, and offered what that gave.
//!
//! Its answer counts only if every record in it matches its table, as what comes from a drive of the chain must. Else, and
//! when it fails or takes too long, the read goes on as if it were not there.

use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::drive::DriveFuture;
use ithaca_env::limits::BLOCK_BYTES;

use crate::cache::{CacheRead, PartKey, ReadCounters, Share};
use crate::chain::Inner;
use crate::limits::CACHE_OFFER_MAX_BYTES;
use crate::owner::Place;
use crate::run::Table;
use crate::sides::Sides;

/// Blocks of a segment to be read by one request.
pub(super) struct Asked {
    pub(super) segment: u32,
    pub(super) lap: u64,
    /// Bytes of the segment, whole blocks.
    pub(super) bytes: Range<u64>,
}

impl Inner {
    /// Starts to read from the cache drive, or else from `device`. `wanted` is the data that is needed, bytes of the segment,
    /// with its checksums; the rest may be zeros.
    pub(super) fn read_asked<'t>(
        &self,
        device: &Sides,
        asked: Asked,
        wanted: impl Iterator<Item = (Range<u64>, &'t Table)>,
    ) -> DriveFuture<Bytes> {
        let is_tail = self.is_on_tail(asked.segment);
        let offset = self.core.borrow().geometry.segment_start(asked.segment) + asked.bytes.start;
        let len = (asked.bytes.end - asked.bytes.start) as usize;
        let Some(share) = self.share.borrow().clone() else {
            self.reads.add(is_tail, |count| count.missed += wanted.count() as u64);
            return device.read(offset, len);
        };
        let wanted: Vec<_> = wanted.map(|(data, table)| (data, table.clone())).collect();
        let is_offered =
            (is_tail || self.core.borrow().options.body_cache) && len as u64 <= CACHE_OFFER_MAX_BYTES;
        let lookup = Lookup { share, asked, wanted, is_tail, is_offered, reads: Rc::clone(&self.reads) };
        let blocks = lookup.blocks();
        match lookup.start(&blocks) {
            None => {
                let read = device.read(offset, len);
                Box::pin(async move { read.await.inspect(|bytes| lookup.missed(&blocks, bytes)) })
            }
            Some(cached) => {
                let device = device.clone();
                Box::pin(async move {
                    if let Some(bytes) = lookup.finish(&blocks, cached).await {
                        return Ok(bytes);
                    }
                    device.read(offset, len).await.inspect(|bytes| lookup.missed(&blocks, bytes))
                })
            }
        }
    }
}

impl Inner {
    /// Bytes of a footer at `start` of the segment, if the cache drive has them. The caller checks them.
    pub(super) async fn cached_footer(&self, key: PartKey, start: u32, len: usize) -> Option<Bytes> {
        let share = self.share.borrow().clone()?;
        let first = start / BLOCK_BYTES as u32;
        let blocks = first..first + (len / BLOCK_BYTES) as u32;
        let keys: Vec<_> = blocks.map(|block| share.key(key.segment, key.lap, block)).collect();
        let found = share.read(&keys)?.await?;
        Some(Bytes::from(found.concat()))
    }

    /// Offers the cache drive whole blocks of a footer that begin at `start` of the segment.
    pub(crate) fn offer_footer(&self, segment: u32, lap: u64, start: u32, bytes: &[u8]) {
        let share = self.share.borrow();
        let Some(share) = share.as_ref() else { return };
        if !self.is_on_tail(segment) && !self.core.borrow().options.body_cache {
            return;
        }
        let blocks = bytes.chunks_exact(BLOCK_BYTES).zip(start / BLOCK_BYTES as u32..);
        blocks.for_each(|(bytes, block)| share.offer(share.key(segment, lap, block), bytes));
    }
}

impl Inner {
    /// The data of a record, if the cache drive has it as it was written. The caller looks at its checksum, as always.
    pub(crate) async fn cached_place(&self, place: Place) -> Option<Bytes> {
        let lookup = self.lookup(place)?;
        let blocks = lookup.blocks();
        let cached = lookup.start(&blocks)?;
        let bytes = lookup.finish(&blocks, cached).await?;
        let from = place.offset as usize % BLOCK_BYTES;
        Some(bytes.slice(from..from + place.len as usize))
    }

    /// A drive of the chain gave the blocks that a record lies in.
    pub(crate) fn place_missed(&self, place: Place, bytes: &Bytes) {
        match self.lookup(place) {
            Some(lookup) => lookup.missed(&lookup.blocks(), bytes),
            None => self.reads.add(self.is_on_tail(place.segment), |count| count.missed += 1),
        }
    }

    /// `None` without a cache drive.
    fn lookup(&self, place: Place) -> Option<Lookup> {
        let share = self.share.borrow().clone()?;
        let (start, end) = (u64::from(place.offset), u64::from(place.offset) + u64::from(place.len));
        let block = BLOCK_BYTES as u64;
        let bytes = start / block * block..end.next_multiple_of(block);
        let entry = [place.len.to_le_bytes(), place.checksum.to_le_bytes()].concat();
        let table = Table::from_bytes(entry.into()).expect("one whole entry");
        let is_tail = self.is_on_tail(place.segment);
        let is_kept = is_tail || self.core.borrow().options.body_cache;
        let is_offered = is_kept && bytes.end - bytes.start <= CACHE_OFFER_MAX_BYTES;
        let asked = Asked { segment: place.segment, lap: place.lap, bytes };
        let wanted = vec![(start..end, table)];
        Some(Lookup { share, asked, wanted, is_tail, is_offered, reads: Rc::clone(&self.reads) })
    }
}

/// A read on its way.
struct Lookup {
    share: Share,
    asked: Asked,
    wanted: Vec<(Range<u64>, Table)>,
    is_tail: bool,
    is_offered: bool,
    reads: Rc<ReadCounters>,
}

impl Lookup {
    /// The blocks that hold what is wanted, ascending.
    fn blocks(&self) -> Vec<u64> {
        let block = BLOCK_BYTES as u64;
        let of = |data: &Range<u64>| data.start / block..data.end.div_ceil(block);
        let mut blocks: Vec<u64> = self.wanted.iter().flat_map(|(data, _)| of(data)).collect();
        blocks.sort_unstable();
        blocks.dedup();
        blocks
    }

    fn start(&self, blocks: &[u64]) -> Option<CacheRead> {
        let key = |&block: &u64| self.share.key(self.asked.segment, self.asked.lap, block as u32);
        let keys: Vec<_> = blocks.iter().map(key).collect();
        self.share.read(&keys)
    }

    /// The bytes, if the cache drive gives all that is wanted as it was written.
    async fn finish(&self, blocks: &[u64], cached: CacheRead) -> Option<Bytes> {
        let found = cached.await?;
        let bytes = &self.asked.bytes;
        let mut whole = vec![0; (bytes.end - bytes.start) as usize];
        for (&block, found) in blocks.iter().zip(found) {
            whole[self.place(block)].copy_from_slice(&found);
        }
        for (data, table) in &self.wanted {
            if !self.share.is_believed() && !self.is_right(data, table, &whole) {
                let first = (data.start / BLOCK_BYTES as u64) as u32;
                self.share.forget(self.share.key(self.asked.segment, self.asked.lap, first));
                return None;
            }
        }
        let runs = self.wanted.len() as u64;
        self.reads.add(self.is_tail, |count| count.cache_drive += runs);
        Some(Bytes::from(whole))
    }

    /// A drive of the chain gave the bytes: counts them, and offers blocks of what is right to the cache drive.
    fn missed(&self, blocks: &[u64], bytes: &Bytes) {
        let runs = self.wanted.len() as u64;
        self.reads.add(self.is_tail, |count| count.missed += runs);
        if !self.is_offered || !self.wanted.iter().all(|(data, table)| self.is_right(data, table, bytes)) {
            return;
        }
        for &block in blocks {
            let key = self.share.key(self.asked.segment, self.asked.lap, block as u32);
            self.share.offer(key, &bytes[self.place(block)]);
        }
    }

    fn is_right(&self, data: &Range<u64>, table: &Table, bytes: &[u8]) -> bool {
        let start = self.asked.bytes.start;
        let data = (data.start - start) as usize..(data.end - start) as usize;
        table.first_mismatch(&bytes[data]).is_none()
    }

    fn place(&self, block: u64) -> Range<usize> {
        let at = (block * BLOCK_BYTES as u64 - self.asked.bytes.start) as usize;
        at..at + BLOCK_BYTES
    }
}
