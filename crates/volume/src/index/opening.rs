//! The index while it is opened: records come in any order, and their versions are needed to tell which is newer.

use ithaca_chain::Placed;
use ithaca_env::memory::in_large_pages;

use super::packing::{ABSENT, MANY};
use super::{BASE, Found, Index, Packed};

/// The version of what each word holds. Dropped when the open is over.
#[derive(Debug)]
pub(super) struct Seen {
    versions: Vec<u64>,
    highest: u64,
}

impl Seen {
    pub(super) fn new(blocks: u64) -> Self {
        // Soon there is one of every block that was ever written.
        Self { versions: in_large_pages(vec![BASE; blocks as usize]), highest: 0 }
    }

    pub(super) fn set(&mut self, block: u64, version: u64) {
        self.versions[block as usize] = version;
    }
}

impl Index {
    /// Looks at what is known of these blocks, so that the waits for memory overlap: an open is told of very many, all over the volume.
    pub(crate) fn look_ahead(&self, records: &[Placed]) {
        let Some(seen) = &self.seen else { return };
        let known = |record: &Placed| {
            let at = record.key as usize;
            self.words.get(at).copied().unwrap_or(0) ^ seen.versions.get(at).copied().unwrap_or(0)
        };
        std::hint::black_box(records.iter().map(known).fold(0, |sum, it| sum ^ it));
    }

    /// A record on the drives, in any order; of equal versions the first is kept. Returns whether this one is garbage.
    pub(super) fn place_seen(&mut self, record: &Placed, packed: Packed) -> bool {
        let (block, version) = (record.key, record.version);
        let bottom = self.points.bottom();
        let seen = self.seen.as_mut().expect("the index is being opened");
        seen.highest = seen.highest.max(version);
        let known = seen.versions[block as usize];
        match self.words[block as usize] {
            ABSENT if version <= bottom => {
                self.words[block as usize] = packed.0;
                seen.set(block, version);
                return false;
            }
            ABSENT => {}
            MANY => {
                if self.versions.contains_key(&(block, version)) {
                    return true;
                }
            }
            _ if version <= known => return true,
            word => {
                let before = Packed(word);
                if version <= bottom {
                    *self.garbage.entry(self.packing.segment(before)).or_insert(0) += 1;
                    self.words[block as usize] = packed.0;
                    seen.set(block, version);
                    return false;
                }
                self.versions.insert((block, known), before);
            }
        }
        self.words[block as usize] = MANY;
        self.versions.insert((block, version), packed);
        self.settle_block(block);
        false
    }

    /// Every record was told of. From now on records come in the order of their versions.
    pub(crate) fn opened(&mut self) {
        let Some(seen) = self.seen.take() else { return };
        let mut blocks: Vec<u64> = self.versions.keys().map(|(block, _)| *block).collect();
        blocks.dedup();
        // What a pin holds is noted for when it is let go.
        self.held.clear();
        blocks.into_iter().for_each(|block| self.settle_block(block));
        let floor = self.points.floor();
        let above = self.versions.keys().filter(|(_, version)| *version > floor);
        let mut recent: Vec<(u64, u64)> = above.map(|&(block, version)| (version, block)).collect();
        recent.sort_unstable();
        self.recent = recent.into();
        self.newest = seen.highest.max(floor);
        self.data_blocks = (0..self.blocks()).filter(|&block| self.now(block) != Found::Zeros).count() as u64;
    }
}
