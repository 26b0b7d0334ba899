//! Blocks that somebody asked to be kept in memory: a hint, bounded, the longest unused ones go first.
//!
//! What is kept is known by block and place. When a block gets another version or another place, what is kept of it is forgotten: by the
//! time that its place is used again by anything, nothing of it is here.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::index::Packed;
use crate::limits::VOLUME_BLOCK_BYTES;

#[derive(Debug)]
struct Entry {
    stamp: u64,
    data: Option<(Packed, Bytes)>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Kept {
    blocks: BTreeMap<u64, Entry>,
    /// Blocks by when they were asked for or used last.
    order: BTreeMap<u64, u64>,
    next_stamp: u64,
    blocks_max: usize,
}

impl Kept {
    /// Nothing yet, of so many bytes at the most.
    pub(crate) fn new(bytes_max: usize) -> Self {
        let blocks_max = bytes_max / VOLUME_BLOCK_BYTES;
        Self { blocks: BTreeMap::new(), order: BTreeMap::new(), next_stamp: 0, blocks_max }
    }

    /// The block is to be kept when it is read.
    pub(crate) fn ask(&mut self, block: u64) {
        if self.blocks_max == 0 {
            return;
        }
        if !self.blocks.contains_key(&block) {
            if self.blocks.len() >= self.blocks_max
                && let Some((_, oldest)) = self.order.pop_first()
            {
                self.blocks.remove(&oldest);
            }
            self.blocks.insert(block, Entry { stamp: 0, data: None });
        }
        self.touch(block);
    }

    fn touch(&mut self, block: u64) {
        let Some(entry) = self.blocks.get_mut(&block) else { return };
        self.order.remove(&entry.stamp);
        self.next_stamp += 1;
        entry.stamp = self.next_stamp;
        self.order.insert(self.next_stamp, block);
    }

    /// Whether the data of a block at a place is here.
    pub(crate) fn has(&self, block: u64, packed: Packed) -> bool {
        let entry = self.blocks.get(&block);
        entry.is_some_and(|entry| entry.data.as_ref().is_some_and(|(kept, _)| *kept == packed))
    }

    /// The data of a block at a place, if it is here.
    pub(crate) fn get(&mut self, block: u64, packed: Packed) -> Option<Bytes> {
        let (kept, data) = self.blocks.get(&block)?.data.clone()?;
        if kept != packed {
            return None;
        }
        self.touch(block);
        Some(data)
    }

    /// A block was read at a place: it is kept if somebody asked for it.
    pub(crate) fn read(&mut self, block: u64, packed: Packed, data: impl FnOnce() -> Bytes) {
        if let Some(entry) = self.blocks.get_mut(&block) {
            entry.data = Some((packed, data()));
        }
    }

    /// A block has another version, or another place.
    pub(crate) fn forget(&mut self, block: u64) {
        if let Some(entry) = self.blocks.get_mut(&block) {
            entry.data = None;
        }
    }

    /// Bytes of data that are here.
    pub(crate) fn bytes(&self) -> usize {
        self.blocks.values().filter(|entry| entry.data.is_some()).count() * VOLUME_BLOCK_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_last_stays_and_nothing_old_is_given() {
        let mut kept = Kept::new(2 * 4096);
        let data = |byte| move || Bytes::from(vec![byte; 4096]);
        kept.read(1, Packed(10), data(1));
        assert_eq!(kept.get(1, Packed(10)), None, "nobody asked for it");
        kept.ask(1);
        kept.ask(2);
        kept.read(1, Packed(10), data(1));
        kept.read(2, Packed(20), data(2));
        assert_eq!(kept.get(1, Packed(11)), None, "another place");
        assert_eq!(kept.get(1, Packed(10)), Some(data(1)()));
        kept.ask(3);
        assert_eq!((kept.get(2, Packed(20)), kept.bytes()), (None, 4096), "it was unused for the longest");
        kept.forget(1);
        assert_eq!((kept.get(1, Packed(10)), kept.bytes()), (None, 0));
        kept.read(1, Packed(12), data(4));
        assert_eq!(kept.get(1, Packed(12)), Some(data(4)()), "it is still asked for");
    }
}
