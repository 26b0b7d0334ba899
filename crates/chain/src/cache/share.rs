//! A chain's part in a cache drive, and the count of where its reads were answered.

use std::cell::Cell;

use super::{BlockKey, CacheDrive, CacheRead};
use crate::load::Queue;
use crate::options::{ChainId, ChainOptions};
use crate::planted::PlantedBug;

/// Runs of records that reads asked for, by where their data came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// The memory that holds recent groups.
    pub memory: u64,
    /// The cache drive, or what waits in memory to be written to it.
    pub cache_drive: u64,
    /// A drive of the chain: misses of both.
    pub missed: u64,
}

/// The same, by where the data lies. Runs without data are not counted; reads of the cleaner are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// On the drive that the log is being written to.
    pub tail: Answered,
    /// On the other drives of the chain.
    pub body: Answered,
}

/// Counts reads.
#[derive(Default)]
pub(crate) struct ReadCounters(Cell<Reads>);

impl ReadCounters {
    pub(crate) fn get(&self) -> Reads {
        self.0.get()
    }

    /// Adds to the count of one of the two.
    pub(crate) fn add(&self, is_tail: bool, add: impl FnOnce(&mut Answered)) {
        let mut reads = self.0.get();
        add(if is_tail { &mut reads.tail } else { &mut reads.body });
        self.0.set(reads);
    }
}

/// A chain's part in a cache drive. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Share {
    cache: CacheDrive,
    chain: u32,
    /// Planted: what is found there counts without a check.
    is_believed: bool,
    /// Planted: a line of any lap of a segment counts.
    is_lap_ignored: bool,
}

impl Share {
    pub(crate) fn new(cache: &CacheDrive, chain: ChainId, options: &ChainOptions) -> Self {
        let is_lap_ignored = options.planted.is(PlantedBug::CacheServesOldLap);
        Self {
            cache: cache.clone(),
            chain: cache.number(chain),
            is_believed: options.planted.is(PlantedBug::CacheLineBelieved) || is_lap_ignored,
            is_lap_ignored,
        }
    }

    /// Whether what is read from it is taken as it is.
    pub(crate) fn is_believed(&self) -> bool {
        self.is_believed
    }

    pub(crate) fn key(&self, segment: u32, lap: u64, block: u32) -> BlockKey {
        BlockKey { chain: self.chain, segment, lap: if self.is_lap_ignored { 0 } else { lap }, block }
    }

    /// See [`CacheDrive::read`].
    pub(crate) fn read(&self, keys: &[BlockKey]) -> Option<CacheRead> {
        self.cache.read(keys, self.is_believed)
    }

    /// See [`CacheDrive::queue_for`].
    pub(crate) fn queue_for(&self, key: BlockKey) -> Option<Queue> {
        self.cache.queue_for(key)
    }

    /// See [`CacheDrive::offer`].
    pub(crate) fn offer(&self, key: BlockKey, block: &[u8]) {
        self.cache.offer(key, block);
    }

    /// See [`CacheDrive::forget`].
    pub(crate) fn forget(&self, key: BlockKey) {
        self.cache.forget(key);
    }
}
