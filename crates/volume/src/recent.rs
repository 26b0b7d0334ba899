//! Blocks that were read of late, in memory, as many as there is room for.
//!
//! A table of sets of eight places each: a block may be in one set only, so that to find it takes one look. To make room for it a hand goes
//! round the set and gives up the first that was not read again since it came by (CLOCK). What is here is known by block and place, as in [`Kept`](crate::kept::Kept), and forgotten when
//! the block gets another version or another place.

use bytes::Bytes;

use crate::index::Packed;
use crate::limits::VOLUME_BLOCK_BYTES;

/// Places of a set.
const WAYS: usize = 8;

#[derive(Clone, Debug)]
struct Slot {
    block: u64,
    packed: Packed,
    data: Bytes,
    /// It was read again since room was looked for.
    is_used: bool,
}

#[derive(Clone, Debug, Default)]
struct Set {
    slots: [Option<Slot>; WAYS],
    hand: usize,
}

impl Set {
    fn find(&mut self, block: u64) -> Option<&mut Option<Slot>> {
        self.slots.iter_mut().find(|slot| slot.as_ref().is_some_and(|slot| slot.block == block))
    }

    /// A place for one more: the first that the hand comes by and that is free or was not read again.
    fn room(&mut self) -> &mut Option<Slot> {
        while let Some(slot) = self.slots[self.hand].as_mut().filter(|slot| slot.is_used) {
            slot.is_used = false;
            self.hand = (self.hand + 1) % WAYS;
        }
        let at = self.hand;
        self.hand = (at + 1) % WAYS;
        &mut self.slots[at]
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Recent {
    sets: Vec<Set>,
    blocks: usize,
}

impl Recent {
    /// Nothing yet, of so many bytes at the most; less than eight blocks are none.
    pub(crate) fn new(bytes_max: usize) -> Self {
        let sets = bytes_max / VOLUME_BLOCK_BYTES / WAYS;
        Self { sets: vec![Set::default(); sets], blocks: 0 }
    }

    fn set_of(&mut self, block: u64) -> Option<&mut Set> {
        // Blocks that follow each other are in different sets, and so are those that are a power of two apart.
        let hash = block.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let at = (u128::from(hash) * self.sets.len() as u128) >> 64;
        self.sets.get_mut(at as usize)
    }

    /// The data of a block at a place, if it is here.
    pub(crate) fn get(&mut self, block: u64, packed: Packed) -> Option<Bytes> {
        let slot = self.set_of(block)?.find(block)?.as_mut()?;
        if slot.packed != packed {
            return None;
        }
        slot.is_used = true;
        Some(slot.data.clone())
    }

    /// A block was read at a place.
    pub(crate) fn read(&mut self, block: u64, packed: Packed, data: impl FnOnce() -> Bytes) {
        let Some(set) = self.set_of(block) else { return };
        let is_here = set.find(block).is_some();
        let slot = if is_here { set.find(block).expect("it is here") } else { set.room() };
        let before = slot.replace(Slot { block, packed, data: data(), is_used: false });
        self.blocks += usize::from(before.is_none());
    }

    /// A block has another version, or another place.
    pub(crate) fn forget(&mut self, block: u64) {
        let Some(set) = self.set_of(block) else { return };
        if set.find(block).and_then(Option::take).is_some() {
            self.blocks -= 1;
        }
    }

    /// Bytes of data that are here.
    pub(crate) fn bytes(&self) -> usize {
        self.blocks * VOLUME_BLOCK_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(byte: u8) -> impl FnOnce() -> Bytes {
        move || Bytes::from(vec![byte; VOLUME_BLOCK_BYTES])
    }

    #[test]
    fn what_was_read_again_stays_and_nothing_old_is_given() {
        let mut recent = Recent::new(WAYS * VOLUME_BLOCK_BYTES);
        (0..8).for_each(|block| recent.read(block, Packed(block), data(block as u8)));
        assert_eq!(recent.bytes(), WAYS * VOLUME_BLOCK_BYTES);
        (1..8).for_each(|block| assert!(recent.get(block, Packed(block)).is_some()));
        recent.read(9, Packed(9), data(9));
        assert_eq!((recent.get(0, Packed(0)), recent.get(1, Packed(1))), (None, Some(data(1)())));
        assert_eq!(recent.get(1, Packed(2)), None, "another place");
        recent.read(1, Packed(2), data(2));
        assert_eq!(recent.get(1, Packed(2)), Some(data(2)()));
        recent.forget(1);
        assert_eq!((recent.get(1, Packed(2)), recent.bytes()), (None, 7 * VOLUME_BLOCK_BYTES));
        for block in 100..200 {
            recent.read(block, Packed(block), data(3));
            assert!(recent.get(block, Packed(block)).is_some(), "what was read last is here");
        }
        assert_eq!(recent.bytes(), WAYS * VOLUME_BLOCK_BYTES);
    }

    #[test]
    fn one_of_no_size_keeps_nothing() {
        let mut recent = Recent::new(7 * VOLUME_BLOCK_BYTES);
        recent.read(1, Packed(1), data(1));
        recent.forget(1);
        assert_eq!((recent.get(1, Packed(1)), recent.bytes()), (None, 0));
    }
}
