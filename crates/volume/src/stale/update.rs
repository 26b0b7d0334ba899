//! A new version that is written block by block and is there as a whole, or not at all (Yogurt's writable snapshot).

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::error::{CommitError, VolumeError};
use crate::limits::VOLUME_BLOCK_BYTES;
use crate::options::{Durability, Isolation, Version};
use crate::volume::{Snapshot, TxOptions, Volume};

/// Blocks that will be the next version when it is closed; dropped before, nothing of it was.
///
/// It is no transaction: what others write meanwhile is not looked at, and the later close wins. Who needs more begins a
/// [`Tx`](crate::Tx).
pub struct Update {
    volume: Volume,
    base: Snapshot,
    writes: BTreeMap<u64, Bytes>,
}

impl Update {
    pub(super) fn new(volume: &Volume) -> Self {
        Self { volume: volume.clone(), base: volume.snapshot(), writes: BTreeMap::new() }
    }

    /// The version that was the newest when it was opened.
    pub fn base(&self) -> Version {
        self.base.version()
    }

    /// The blocks that it writes so far.
    pub fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.writes.keys().copied()
    }

    /// A block as it will be: as it was written here, or as it was when this was opened. Errors: `OutOfRange`, `Damaged`, `Drive`.
    pub async fn read(&self, block: u64) -> Result<Bytes, VolumeError> {
        match self.writes.get(&block) {
            Some(data) => Ok(data.clone()),
            None => self.base.read(block, 1).await,
        }
    }

    /// Puts a whole block into it, in memory. Errors: `NotWholeBlocks`, `OutOfRange`.
    pub fn write(&mut self, block: u64, data: Bytes) -> Result<(), VolumeError> {
        if data.len() != VOLUME_BLOCK_BYTES {
            return Err(VolumeError::NotWholeBlocks { bytes: data.len() });
        }
        self.volume.check_block(block)?;
        self.writes.insert(block, data);
        Ok(())
    }

    /// Makes it the next version. On return it is durable, whole. Of one that has written nothing it is the version that it began with.
    ///
    /// Errors: those of a commit but `Conflict`; then nothing of it is there, unless the volume has stopped. `TooManyWrites` past
    /// [`TX_WRITES_MAX`](crate::limits::TX_WRITES_MAX) blocks, fewer on small segments. If the future is dropped it may be there.
    pub async fn close(self) -> Result<Version, CommitError> {
        let Self { volume, base, writes } = self;
        if writes.is_empty() {
            return Ok(base.version());
        }
        // A transaction that has read nothing and writes whole blocks depends on nobody.
        let isolation = Some(Isolation::StrictSerializable);
        let tx = volume.begin(TxOptions { isolation, durability: Durability::Stable, client: 0 })?;
        for (block, data) in writes {
            tx.write(block, data)?;
        }
        let version = tx.commit().await?;
        Ok(version.expect("a transaction that is not nested has a version"))
    }
}
