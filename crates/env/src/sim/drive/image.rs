//! What a drive holds: stable blocks, and above them completed writes that a power cut may take back.
//!
//! Blocks share the buffers of the writes that made them; nothing is copied until a block is torn.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{BufMut, Bytes, BytesMut};

use crate::limits::BLOCK_BYTES;
use crate::sim::limits::{SECTOR_BYTES, SECTORS_PER_BLOCK};

/// Blocks of one leaf of the stable image.
const LEAF_BLOCKS: usize = 64;

/// What was never written reads as these, without a copy as far as they reach.
static ZEROS: [u8; 256 << 10] = [0; 256 << 10];

/// One block: a piece of the write that made it. Neighbours of one write can be read together without a copy.
#[derive(Clone)]
pub(super) struct Block {
    write: Bytes,
    at: usize,
}

impl Block {
    fn data(&self) -> &[u8] {
        &self.write[self.at..self.at + BLOCK_BYTES]
    }

    /// Whether `next` is the block that follows in the same write.
    fn is_followed_by(&self, next: &Block) -> bool {
        self.write.as_ptr() == next.write.as_ptr() && self.at + BLOCK_BYTES == next.at
    }
}

impl From<BytesMut> for Block {
    fn from(data: BytesMut) -> Self {
        Self { write: data.freeze(), at: 0 }
    }
}

/// A completed write to one block that is not yet stable.
#[derive(Clone)]
struct Unsynced {
    /// The write's place in the order of completion.
    done: u64,
    piece: Piece,
    data: Block,
}

/// A block's place within its write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) index: usize,
    /// Blocks of the write.
    pub(super) of: usize,
}

/// Which sectors of a block a write changes: a bit each.
pub(super) type SectorMask = u8;

/// Every sector.
pub(super) const WHOLE: SectorMask = !0;

#[derive(Clone, Default)]
pub(super) struct Image {
    /// `None` reads as zeros.
    leaves: Vec<Option<Box<[Option<Block>; LEAF_BLOCKS]>>>,
    unsynced: BTreeMap<u64, Vec<Unsynced>>,
    /// Blocks whose stable copy cannot be read until it is written again.
    unreadable: BTreeSet<u64>,
}

impl Image {
    fn stable(&self, block: u64) -> Option<&Block> {
        let (leaf, at) = (block as usize / LEAF_BLOCKS, block as usize % LEAF_BLOCKS);
        self.leaves.get(leaf)?.as_ref()?[at].as_ref()
    }

    fn set_stable(&mut self, block: u64, data: Block) {
        let (leaf, at) = (block as usize / LEAF_BLOCKS, block as usize % LEAF_BLOCKS);
        if self.leaves.len() <= leaf {
            self.leaves.resize_with(leaf + 1, || None);
        }
        self.leaves[leaf].get_or_insert_with(|| Box::new([const { None }; LEAF_BLOCKS]))[at] = Some(data);
        if !self.unreadable.is_empty() {
            self.unreadable.remove(&block);
        }
    }

    /// What a reader sees of a block; `None` reads as zeros.
    fn view(&self, block: u64) -> Option<&Block> {
        let above = if self.unsynced.is_empty() { None } else { self.unsynced.get(&block) };
        match above.and_then(|writes| writes.last()) {
            Some(write) => Some(&write.data),
            None => self.stable(block),
        }
    }

    /// The bytes that a reader sees.
    pub(super) fn read(&self, offset: u64, len: usize) -> Bytes {
        let range = blocks(offset, len);
        let whole = self.together(range.clone());
        whole.unwrap_or_else(|| {
            let mut out = BytesMut::with_capacity(len);
            for block in range {
                out.put_slice(self.view(block).map_or(&ZEROS[..BLOCK_BYTES], Block::data));
            }
            out.freeze()
        })
    }

    /// The bytes of the range if they stand together in memory.
    fn together(&self, mut range: std::ops::Range<u64>) -> Option<Bytes> {
        let len = (range.end - range.start) as usize * BLOCK_BYTES;
        let Some(first) = self.view(range.start) else {
            let all_zeros = len <= ZEROS.len() && range.all(|block| self.view(block).is_none());
            return all_zeros.then(|| Bytes::from_static(&ZEROS[..len]));
        };
        let mut last = first;
        for block in range.start + 1..range.end {
            last = self.view(block).filter(|next| last.is_followed_by(next))?;
        }
        Some(first.write.slice(first.at..first.at + len))
    }

    /// The first block of the range that cannot be read.
    pub(super) fn unreadable(&self, offset: u64, len: usize) -> Option<u64> {
        if self.unreadable.is_empty() {
            return None;
        }
        blocks(offset, len)
            .find(|block| self.unreadable.contains(block) && !self.unsynced.contains_key(block))
    }

    /// Applies a write that is stable at once.
    pub(super) fn write_stable(&mut self, offset: u64, data: &Bytes) {
        for (_, block, data) in pieces(offset, data) {
            self.set_stable(block, data);
            if !self.unsynced.is_empty() {
                self.unsynced.remove(&block);
            }
        }
    }

    /// The block reads as zeros until it is written again, or as something older after a power cut.
    pub(super) fn clear(&mut self, block: u64) {
        let (leaf, at) = (block as usize / LEAF_BLOCKS, block as usize % LEAF_BLOCKS);
        if let Some(Some(leaf)) = self.leaves.get_mut(leaf) {
            leaf[at] = None;
        }
        self.unsynced.remove(&block);
    }

    /// Applies a write that a power cut may take back until a [`sync`](Image::sync) that covers `done`.
    pub(super) fn write_volatile(&mut self, done: u64, offset: u64, data: &Bytes) {
        self.write_volatile_parts(done, offset, data, |_| true);
    }

    /// The same for the blocks of the write that are `kept`.
    pub(super) fn write_volatile_parts(
        &mut self,
        done: u64,
        offset: u64,
        data: &Bytes,
        kept: impl Fn(Piece) -> bool,
    ) {
        for (piece, block, data) in pieces(offset, data).filter(|&(piece, _, _)| kept(piece)) {
            self.unsynced.entry(block).or_default().push(Unsynced { done, piece, data });
        }
    }

    /// Makes writes that completed up to `done` stable. Calls `stable` with each block that they wrote.
    pub(super) fn sync(&mut self, done: u64, mut stable: impl FnMut(u64)) {
        self.settle(done, |_, _| WHOLE, &mut stable);
    }

    /// Ends the doubt about the writes that completed up to `done`: of each block of each write the sectors in
    /// `kept(done, piece)` become stable and the rest is gone. Calls `touched` with each block in doubt.
    pub(super) fn settle(
        &mut self,
        done: u64,
        kept: impl Fn(u64, Piece) -> SectorMask,
        mut touched: impl FnMut(u64),
    ) {
        for (block, writes) in std::mem::take(&mut self.unsynced) {
            let (settled, open): (Vec<_>, Vec<_>) = writes.into_iter().partition(|write| write.done <= done);
            for write in &settled {
                self.overlay(block, &write.data, kept(write.done, write.piece));
            }
            if !settled.is_empty() {
                touched(block);
            }
            if !open.is_empty() {
                self.unsynced.insert(block, open);
            }
        }
    }

    /// What is stable, and what a power cut may take back: the place of the write in the order of completion, the block, the
    /// block's place in the write, its data.
    pub(super) fn split(&self) -> (Image, Vec<(u64, u64, Piece, Block)>) {
        let unsynced = self.unsynced.iter().flat_map(|(block, writes)| {
            writes.iter().map(|write| (write.done, *block, write.piece, write.data.clone()))
        });
        let stable = Image { unsynced: BTreeMap::new(), ..self.clone() };
        (stable, unsynced.collect())
    }

    fn stable_copy(&self, block: u64) -> BytesMut {
        BytesMut::from(self.stable(block).map_or(&ZEROS[..BLOCK_BYTES], Block::data))
    }

    /// Writes the sectors in `mask` of one block to the stable image.
    pub(super) fn overlay(&mut self, block: u64, data: &Block, mask: SectorMask) {
        match mask {
            0 => {}
            WHOLE => self.set_stable(block, data.clone()),
            _ => {
                let mut torn = self.stable_copy(block);
                for sector in (0..SECTORS_PER_BLOCK).filter(|sector| mask & (1 << sector) != 0) {
                    let range = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
                    torn[range.clone()].copy_from_slice(&data.data()[range]);
                }
                self.set_stable(block, torn.into());
            }
        }
    }

    /// Flips one bit of the stable copy.
    pub(super) fn flip(&mut self, byte: u64, bit: u8) {
        let block = byte / BLOCK_BYTES as u64;
        let mut data = self.stable_copy(block);
        data[(byte % BLOCK_BYTES as u64) as usize] ^= 1 << (bit % 8);
        let was_unreadable = self.unreadable.contains(&block);
        self.set_stable(block, data.into());
        if was_unreadable {
            self.unreadable.insert(block);
        }
    }

    /// Makes the stable copy of a block unreadable until it is written again.
    pub(super) fn spoil(&mut self, block: u64) {
        self.unreadable.insert(block);
    }

    /// Makes the volatile writes of one block stable.
    pub(super) fn sync_block(&mut self, block: u64) {
        if let Some(last) = self.unsynced.remove(&block).and_then(|mut writes| writes.pop()) {
            self.set_stable(block, last.data);
        }
    }

    /// Whether a power cut could take something back.
    #[cfg(test)]
    pub(super) fn is_synced(&self) -> bool {
        self.unsynced.is_empty()
    }
}

pub(super) fn blocks(offset: u64, len: usize) -> std::ops::Range<u64> {
    let first = offset / BLOCK_BYTES as u64;
    first..first + (len / BLOCK_BYTES) as u64
}

/// The blocks of a write, each with its place and its data.
pub(super) fn pieces(offset: u64, data: &Bytes) -> impl Iterator<Item = (Piece, u64, Block)> {
    let of = data.len() / BLOCK_BYTES;
    blocks(offset, data.len()).enumerate().map(move |(index, block)| {
        let piece = Block { write: data.clone(), at: index * BLOCK_BYTES };
        (Piece { index, of }, block, piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(fill: u8) -> Bytes {
        Bytes::from(vec![fill; BLOCK_BYTES])
    }

    #[test]
    fn a_reader_sees_volatile_writes_and_a_crash_takes_back_what_it_may() {
        let mut image = Image::default();
        image.write_stable(0, &block(1));
        image.write_volatile(7, 0, &block(2));
        assert_eq!(image.read(0, BLOCK_BYTES)[0], 2);
        image.settle(u64::MAX, |_, _| 0, |_| ());
        assert_eq!(image.read(0, BLOCK_BYTES)[0], 1);
    }

    #[test]
    fn a_sync_covers_what_completed_before_it_and_nothing_later() {
        let mut image = Image::default();
        image.write_volatile(1, 0, &block(1));
        image.write_volatile(2, 4096, &block(2));
        image.sync(1, |_| ());
        assert!(!image.is_synced());
        image.settle(u64::MAX, |_, _| 0, |_| ());
        assert_eq!((image.read(0, BLOCK_BYTES)[0], image.read(4096, BLOCK_BYTES)[0]), (1, 0));
    }

    #[test]
    fn a_torn_block_mixes_old_and_new_sectors() {
        let mut image = Image::default();
        image.write_stable(0, &block(1));
        let (_, _, new) = pieces(0, &block(2)).next().expect("a block");
        image.overlay(0, &new, 0b0000_0101);
        let bytes = image.read(0, BLOCK_BYTES);
        assert_eq!((bytes[0], bytes[512], bytes[1024], bytes[1536]), (2, 1, 2, 1));
    }

    #[test]
    fn a_read_is_the_same_with_and_without_a_copy() {
        let mut image = Image::default();
        let written: Bytes = (0..4 * BLOCK_BYTES).map(|index| (index / 7) as u8).collect();
        image.write_stable(0, &written);
        let whole = image.read(4096, 3 * BLOCK_BYTES);
        assert_eq!(whole.as_ptr(), written[4096..].as_ptr());
        image.write_volatile(1, 8192, &block(9));
        let mixed = image.read(4096, 4 * BLOCK_BYTES);
        let expected = [&written[4096..8192], &[9; 4096], &written[12288..], &[0; 4096]].concat();
        assert_eq!((mixed.to_vec(), image.read(1 << 20, 8192)), (expected, Bytes::from(vec![0; 8192])));
    }

    #[test]
    fn an_unreadable_block_is_readable_again_once_written() {
        let mut image = Image::default();
        image.spoil(1);
        assert_eq!(image.unreadable(0, 2 * BLOCK_BYTES), Some(1));
        image.write_stable(4096, &block(1));
        assert_eq!(image.unreadable(0, 2 * BLOCK_BYTES), None);
    }
}
