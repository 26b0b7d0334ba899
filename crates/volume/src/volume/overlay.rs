//! Plain writes that were acknowledged and are not durable: plain reads see them.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::tx::Content;

/// See the module.
#[derive(Default)]
pub(super) struct Overlay {
    /// The version and what it holds.
    blocks: BTreeMap<u64, (u64, Content)>,
    order: VecDeque<(u64, Range<u64>)>,
}

impl Overlay {
    /// A write was acknowledged; `content` of each block in order.
    pub(super) fn add(&mut self, version: u64, first_block: u64, content: impl Iterator<Item = Content>) {
        let mut end = first_block;
        for content in content {
            self.blocks.insert(end, (version, content));
            end += 1;
        }
        self.order.push_back((version, first_block..end));
    }

    /// What a block is by a write above `newest`, the newest durable version.
    pub(super) fn get(&self, block: u64, newest: u64) -> Option<&Content> {
        self.blocks.get(&block).filter(|(version, _)| *version > newest).map(|(_, content)| content)
    }

    /// Which version of a block was acknowledged last, if it was not forgotten.
    pub(super) fn version(&self, block: u64) -> Option<u64> {
        self.blocks.get(&block).map(|(version, _)| *version)
    }

    /// Versions up to this one are durable.
    pub(super) fn forget(&mut self, newest: u64) {
        while let Some((version, blocks)) = self.order.pop_front_if(|(version, _)| *version <= newest) {
            for block in blocks {
                if self.blocks.get(&block).is_some_and(|(found, _)| *found == version) {
                    self.blocks.remove(&block);
                }
            }
        }
    }

    /// Blocks that are here.
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }
}
