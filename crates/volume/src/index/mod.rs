//! Which versions of each block are needed, and where they lie. Pure: it is told of records and of points that may be read.
//!
//! ```text
//!   words: one a block ─┬─ absent: reads as zeros
//!                       ├─ the place of the only version, which is at or below everything that may be read
//!                       └─ many ─► versions: (block, version) -> place
//!   recent: versions above the floor, oldest first      held: blocks with a version that only a pin needs
//! ```
//!
//! A version is needed if, for some point that may be read (the floor, anything above it, a pin), it is the newest at or below that
//! point. What is not needed any more becomes garbage when [`Index::settle`] comes to it, a few blocks at a time; until then it is
//! kept, which does no harm. What is needed is a function of the records on the drives and of the points, so that an open with the
//! same points finds the same.

mod ascent;
mod opening;
mod packing;
mod points;
mod span;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ithaca_chain::{Place, Placed};

use crate::planted::{Planted, PlantedBug};
use opening::Seen;
use packing::{ABSENT, MANY};
pub(crate) use packing::{Packed, Packing, Spot};
pub(crate) use points::Points;

/// The version that stands for "at or below the bottom": of a place that came from a word, which has none.
const BASE: u64 = 0;
/// Bytes that an entry of a map takes, about, of which a node holds some.
const MAP_ENTRY_BYTES: usize = 36;

/// What a block is at a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It reads as zeros.
    Zeros,
    /// Its data lies here.
    At(Packed),
}

impl Found {
    fn of(packed: Packed) -> Self {
        if packed.is_junk() { Self::Zeros } else { Self::At(packed) }
    }
}

/// Where the index has a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Word,
    /// Under this version.
    Listed(u64),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Index {
    packing: Packing,
    points: Points,
    words: Vec<u64>,
    versions: BTreeMap<(u64, u64), Packed>,
    /// Version and block.
    recent: VecDeque<(u64, u64)>,
    /// Pin and block.
    held: BTreeSet<(u64, u64)>,
    /// Pins that were let go and whose blocks were not looked at yet.
    let_go: BTreeSet<u64>,
    newest: u64,
    /// Records by segment that were found to be garbage and were not told of yet.
    garbage: BTreeMap<u32, u64>,
    /// Blocks that hold data at the newest version.
    data_blocks: u64,
    seen: Option<Seen>,
    planted: Planted,
}

impl Index {
    /// Of a volume of so many blocks that is being opened: [`Index::opened`] ends that.
    pub(crate) fn new(blocks: u64, packing: Packing, points: Points, planted: Planted) -> Self {
        Self {
            packing,
            newest: points.floor(),
            points,
            words: vec![ABSENT; blocks as usize],
            versions: BTreeMap::new(),
            recent: VecDeque::new(),
            held: BTreeSet::new(),
            let_go: BTreeSet::new(),
            garbage: BTreeMap::new(),
            data_blocks: 0,
            seen: Some(Seen::new(blocks)),
            planted,
        }
    }

    /// How places are packed.
    pub(crate) fn packing(&self) -> Packing {
        self.packing
    }

    /// The points that may be read.
    pub(crate) fn points(&self) -> &Points {
        &self.points
    }

    /// The newest durable version.
    pub(crate) fn newest(&self) -> u64 {
        self.newest
    }

    /// Blocks of the volume.
    pub(crate) fn blocks(&self) -> u64 {
        self.words.len() as u64
    }

    /// Blocks that hold data at the newest version.
    pub(crate) fn data_blocks(&self) -> u64 {
        self.data_blocks
    }

    /// Versions that are not in a word.
    pub(crate) fn versions(&self) -> usize {
        self.versions.len()
    }

    /// Versions above the floor: as many as can go when it rises, about. What pins keep is not among them.
    pub(crate) fn recent(&self) -> usize {
        self.recent.len()
    }

    /// Bytes of the words; bytes of everything else, about.
    pub(crate) fn memory_bytes(&self) -> (usize, usize) {
        let more = (self.versions.len() + self.held.len()) * MAP_ENTRY_BYTES
            + self.recent.capacity() * size_of::<(u64, u64)>();
        (self.words.capacity() * size_of::<u64>(), more)
    }

    /// What a block is at a version that may be read.
    pub(crate) fn at(&self, block: u64, version: u64) -> Found {
        let found = match self.words[block as usize] {
            ABSENT => None,
            MANY => {
                // Without a lower end, which would have to be looked for as well.
                let before = self.versions.range(..=(block, version)).next_back();
                before.filter(|((found, _), _)| *found == block).map(|(_, it)| *it)
            }
            word => Some(Packed(word)),
        };
        found.map_or(Found::Zeros, Found::of)
    }

    /// What a block is now.
    pub(crate) fn now(&self, block: u64) -> Found {
        self.at(block, u64::MAX)
    }

    /// A record is durable. Returns whether it is garbage from the start; that only an open can meet.
    pub(crate) fn place(&mut self, record: &Placed) -> bool {
        let packed = self.packing.pack(record);
        if self.seen.is_some() {
            return self.place_seen(record, packed);
        }
        let (block, version) = (record.key, record.version);
        assert!(
            version > self.points.floor() && version >= self.newest,
            "commits are durable in their order"
        );
        let was_data = self.now(block) != Found::Zeros;
        let word = &mut self.words[block as usize];
        if !matches!(*word, ABSENT | MANY) {
            self.versions.insert((block, BASE), Packed(*word));
        }
        *word = MANY;
        self.versions.insert((block, version), packed);
        self.recent.push_back((version, block));
        self.newest = version;
        self.data_blocks = self.data_blocks + u64::from(!packed.is_junk()) - u64::from(was_data);
        false
    }

    /// Whether the record is what the index points at.
    pub(crate) fn is_live(&self, record: &Placed) -> bool {
        self.find(record).is_some()
    }

    /// The record has a copy at `to`. Returns whether the index takes it.
    pub(crate) fn moved(&mut self, record: &Placed, to: Place) -> bool {
        let moved = self.packing.pack_moved(record, to);
        match self.find(record) {
            Some(Entry::Word) => self.words[record.key as usize] = moved.0,
            Some(Entry::Listed(version)) => _ = self.versions.insert((record.key, version), moved),
            None => return false,
        }
        true
    }

    /// The junk of a block is about to go, and nothing older of it is on any drive. Returns whether the index forgets the block.
    pub(crate) fn dropped(&mut self, record: &Placed) -> bool {
        // A word's version is at or below all that may be read: whichever is, the block reads as zeros.
        let is_only = self.find(record) == Some(Entry::Word) && self.seen.is_none();
        if is_only {
            self.words[record.key as usize] = ABSENT;
        }
        is_only
    }

    /// Where the index has a record at its place.
    fn find(&self, record: &Placed) -> Option<Entry> {
        let packed = self.packing.pack(record);
        match *self.words.get(record.key as usize)? {
            MANY => {
                let mut listed = self.versions.range((record.key, BASE)..=(record.key, record.version));
                listed.find(|(_, other)| **other == packed).map(|((_, version), _)| Entry::Listed(*version))
            }
            word => (word == packed.0).then_some(Entry::Word),
        }
    }

    /// Pins a version that may be read.
    pub(crate) fn pin(&mut self, version: u64) {
        self.points.pin(version);
        self.let_go.remove(&version);
    }

    /// Takes one pin away.
    pub(crate) fn unpin(&mut self, version: u64) {
        if self.points.unpin(version) {
            self.let_go.insert(version);
        }
    }

    /// Raises the floor. The caller has made it durable.
    pub(crate) fn raise_floor(&mut self, floor: u64) {
        assert!(floor <= self.newest, "the floor {floor} is above what is durable, {}", self.newest);
        self.points.raise(floor);
    }

    /// Looks at up to `limit` blocks for versions that are not needed any more. Returns whether there may be more.
    pub(crate) fn settle(&mut self, limit: usize) -> bool {
        for _ in 0..limit {
            if let Some(&(version, block)) = self.recent.front()
                && version <= self.points.floor()
            {
                self.recent.pop_front();
                self.settle_block(block);
            } else if let Some(pin) = self.let_go.first().copied() {
                match self.held.range((pin, 0)..=(pin, u64::MAX)).next().copied() {
                    Some(held) => {
                        self.held.remove(&held);
                        self.settle_block(held.1);
                    }
                    None => _ = self.let_go.pop_first(),
                }
            } else {
                return false;
            }
        }
        true
    }

    /// Records that became garbage since the last call, by segment.
    pub(crate) fn take_garbage(&mut self) -> BTreeMap<u32, u64> {
        std::mem::take(&mut self.garbage)
    }

    /// Drops what is not needed of a block, and notes when it has to be looked at again.
    fn settle_block(&mut self, block: u64) {
        if self.words[block as usize] != MANY {
            return;
        }
        let floor = self.points.floor();
        let old = (block, BASE)..=(block, floor);
        let old: Vec<u64> = self.versions.range(old).map(|((_, version), _)| *version).collect();
        for pair in old.windows(2) {
            let forgets_pins = self.planted.is(PlantedBug::PinForgotten);
            match self.points.pin_in(pair[0]..pair[1]).filter(|_| !forgets_pins) {
                // The highest of them: when it is let go, another one may still hold the version.
                Some(pin) => _ = self.held.insert((pin, block)),
                None => self.drop_version(block, pair[0]),
            }
        }
        let mut left = self.versions.range((block, BASE)..=(block, u64::MAX));
        let only = left.next().filter(|_| left.next().is_none());
        let Some((&(_, version), &packed)) = only else { return };
        if version <= self.points.bottom() {
            self.versions.remove(&(block, version));
            self.words[block as usize] = packed.0;
            if let Some(seen) = &mut self.seen {
                seen.set(block, version);
            }
        } else if version <= floor
            && let Some(pin) = self.points.first_pin()
        {
            // Below it the block is another one: absent.
            self.held.insert((pin, block));
        }
    }

    fn drop_version(&mut self, block: u64, version: u64) {
        let packed = self.versions.remove(&(block, version)).expect("it was listed");
        *self.garbage.entry(self.packing.segment(packed)).or_insert(0) += 1;
    }
}
