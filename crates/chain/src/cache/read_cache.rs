//! Blocks in memory that were read from drives of late, or written and still needed when their group left the memory of recent groups. They are
//! known by the lap of their segment: what lies there never changes, and a lap names one use of one segment for ever. So nothing is ever
//! taken out because it is out of date. What is of no use leaves by its age, and first if it is known to be of none.
//!
//! Each block is a buffer of its own, so that what is counted is what is held.

use bytes::{Bytes, BytesMut};
use ithaca_env::limits::BLOCK_BYTES;

use super::lru::Lru;

/// Whole blocks, the one that was used longest ago goes first.
pub(crate) struct ReadCache {
    blocks: Lru<Bytes>,
    is_used: bool,
}

impl ReadCache {
    /// Room for `max_bytes`.
    pub(crate) fn new(max_bytes: usize) -> Self {
        let count = u32::try_from(max_bytes / BLOCK_BYTES).unwrap_or(u32::MAX - 1);
        Self { blocks: Lru::new(count), is_used: count > 0 }
    }

    /// Whether it has any room.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used
    }

    /// The blocks of these bytes of a segment; none if they are not whole blocks.
    fn blocks_of(&self, start: u64, end: u64) -> Option<std::ops::Range<u32>> {
        let block = BLOCK_BYTES as u64;
        let is_whole = self.is_used && start.is_multiple_of(block) && end.is_multiple_of(block);
        let (first, last) = (u32::try_from(start / block).ok()?, u32::try_from(end / block).ok()?);
        is_whole.then_some(first..last)
    }

    /// The bytes `[start, end)` of a segment, if all are here.
    pub(crate) fn get(&mut self, lap: u64, start: u64, end: u64) -> Option<Bytes> {
        let blocks = self.blocks_of(start, end)?;
        if blocks.len() == 1 {
            return self.blocks.get((lap, blocks.start)).cloned();
        }
        if !blocks.clone().all(|block| self.blocks.has((lap, block))) {
            return None;
        }
        let mut whole = BytesMut::with_capacity((end - start) as usize);
        for block in blocks {
            whole.extend_from_slice(self.blocks.get((lap, block))?);
        }
        Some(whole.freeze())
    }

    /// Whether [`ReadCache::get`] would give something; nothing counts as used.
    pub(crate) fn has(&self, lap: u64, start: u64, end: u64) -> bool {
        let blocks = self.blocks_of(start, end);
        blocks.is_some_and(|mut blocks| blocks.all(|block| self.blocks.has((lap, block))))
    }

    /// Keeps what was read, and found to be right, at `start` of a segment.
    pub(crate) fn add(&mut self, lap: u64, start: u64, data: &Bytes) {
        let Some(blocks) = self.blocks_of(start, start + data.len() as u64) else { return };
        if blocks.len() == 1 {
            return self.blocks.put((lap, blocks.start), |_| data.clone());
        }
        for (block, bytes) in blocks.zip(data.chunks_exact(BLOCK_BYTES)) {
            // Copied: a block must not keep all that was read with it.
            self.add_copy(lap, block, bytes);
        }
    }

    /// Keeps a copy of a whole block of a segment, in the memory of what leaves for it.
    pub(crate) fn add_copy(&mut self, lap: u64, block: u32, data: &[u8]) {
        // Nobody else holds it, most often: then nothing is allocated and freed for each block.
        self.blocks.put((lap, block), |leaves| match leaves.map(Bytes::try_into_mut) {
            Some(Ok(mut own)) if own.len() == data.len() => {
                own.copy_from_slice(data);
                own.freeze()
            }
            _ => Bytes::copy_from_slice(data),
        });
    }

    /// The newest version of what this block holds lies elsewhere now: it is the first to leave when there is no more room.
    pub(crate) fn leave_first(&mut self, lap: u64, block: u32) {
        self.blocks.leave_first((lap, block));
    }

    /// A block was copied from one place to another, and will be read there.
    pub(crate) fn moved(&mut self, from: (u64, u32), to: (u64, u32)) {
        self.blocks.rename(from, to);
    }

    /// Bytes of what is here.
    pub(crate) fn bytes(&self) -> usize {
        self.blocks.len() * BLOCK_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_one_by_one_and_together_in_their_lap_only() {
        let mut cache = ReadCache::new(3 * BLOCK_BYTES);
        let data = Bytes::from([vec![1; BLOCK_BYTES], vec![2; BLOCK_BYTES]].concat());
        cache.add(7, 8192, &data);
        assert_eq!(cache.get(7, 8192, 16384), Some(data.clone()));
        assert_eq!(cache.get(7, 12288, 16384), Some(data.slice(4096..)));
        assert!(!cache.has(8, 8192, 16384), "another lap");
        assert!(!cache.has(7, 8192, 8200), "no whole block");
        assert!(!cache.has(7, 4096, 16384), "not all of it");
        assert_eq!(cache.bytes(), 2 * BLOCK_BYTES);
        cache.moved((7, 3), (9, 1));
        assert_eq!(cache.get(9, 4096, 8192), Some(data.slice(4096..)));
        assert!(cache.has(7, 8192, 12288) && !cache.has(7, 12288, 16384));
        cache.leave_first(9, 1);
        (20..22).for_each(|block: u32| cache.add(7, u64::from(block) * 4096, &data.slice(..4096)));
        assert!(cache.has(7, 8192, 12288) && !cache.has(9, 4096, 8192), "it has left first");
        let mut off = ReadCache::new(0);
        off.add(7, 8192, &data);
        assert!(!off.has(7, 8192, 16384));
    }
}
