//! Old versions as a way to faster reads: whoever does not need the newest version of a block says so, and is given the one that is
//! probably the fastest (Yogurt).
//!
//! ```text
//!   StaleClient (what it wants, what it has seen) ─► versions that will do ─► asked for their costs ─► the cheapest is read
//!                       consistency, pure                                     cost: memory, drives' queues
//! ```
//!
//! * [`StaleStore`] knows versions and costs, and nothing of consistency; [`Level`] and [`StaleClient`] know consistency and nothing of
//!   costs. A program with rules of its own uses the store alone.
//! * All of it is about what is durable: a write counts as done when it is. Plain writes that were only acknowledged are not seen.
//! * Costs are guesses. They say which version is read, never what it holds.
//!
//! The steps, and why they keep what they promise, are in docs/protocol/stale.md.

mod client;
mod cost;
mod query;
mod times;
mod update;
mod walk;

use bytes::Bytes;

pub use client::{Level, StaleClient};
pub use cost::{Cost, Costs, DriveCost};
pub use query::VersionRange;
pub(crate) use times::Times;
pub use update::Update;
pub use walk::Walk;

use crate::error::VolumeError;
use crate::options::{Durability, Version};
use crate::volume::{Snapshot, Volume};

/// A volume whose versions are known with what it costs to read them. Cheap to clone.
#[derive(Clone)]
pub struct StaleStore {
    volume: Volume,
    costs: std::rc::Rc<Costs>,
}

/// What a client was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaleRead {
    /// The block.
    pub data: Bytes,
    /// The version that it was read at.
    pub version: Version,
    /// The versions at which it is the same.
    pub range: VersionRange,
}

impl StaleStore {
    /// A store on a volume on whose drives requests cost so much.
    pub fn new(volume: &Volume, costs: Costs) -> Self {
        Self { volume: volume.clone(), costs: std::rc::Rc::new(costs) }
    }

    /// The volume.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// All versions from where history begins to the newest durable one.
    pub fn history(&self) -> VersionRange {
        self.volume.history()
    }

    /// A block as it was at a version. As long as the version can be read, it is the same each time. Errors: `OutOfRange`,
    /// `NoSuchVersion`, `Damaged`, `Drive`.
    pub async fn read_version(&self, block: u64, version: Version) -> Result<Bytes, VolumeError> {
        if let Some(data) = self.volume.at_once(block, version)? {
            return Ok(data);
        }
        self.volume.at(version)?.read(block, 1).await
    }

    /// Writes a whole block. On return it is durable, and this is its version. Errors: as of [`Volume::write`].
    pub async fn write(&self, block: u64, data: Bytes) -> Result<Version, VolumeError> {
        self.volume.write(block, data, Durability::Stable).await
    }

    /// What it would cost to read a block at a version now. Looks at memory only. Errors: `OutOfRange`, `NoSuchVersion`.
    pub fn cost(&self, block: u64, version: Version) -> Result<Cost, VolumeError> {
        let mut found = Cost(i64::MAX);
        self.volume.sources(block, std::iter::once(version), |_, source| found = self.costs.of(source))?;
        Ok(found)
    }

    /// The versions, of those that can be read, at which a block is what it is at `version`: from the one that wrote it, or the lowest
    /// that can be read, to the one before it is written again, or the newest. It speaks of those alone that can be read: below where
    /// history begins what lay between two that a snapshot keeps is forgotten. Errors: `OutOfRange`, `NoSuchVersion`.
    pub fn version_range(&self, block: u64, version: Version) -> Result<VersionRange, VolumeError> {
        self.volume.span(block, version)
    }

    /// The version of `range` at which a block is probably read fastest, and what it costs; `budget` of them are
    /// asked ([`VersionRange::spread`]), and of equals the oldest is taken. Errors: `OutOfRange`; `NoSuchVersion` if one of them cannot be read.
    pub fn cheapest(
        &self,
        block: u64,
        range: VersionRange,
        budget: usize,
    ) -> Result<(Version, Cost), VolumeError> {
        let mut best: Option<(Version, Cost)> = None;
        self.volume.sources(block, range.spread(budget), |version, source| {
            let asked = (version, self.costs.of(source));
            best = query::cheapest(best.into_iter().chain([asked]));
        })?;
        // Where no drive has any of them, a read says so.
        Ok(best.unwrap_or((range.last, Cost(i64::MAX))))
    }

    /// A version to read from, which stays as long as it is held. Errors: `NoSuchVersion`.
    pub fn open(&self, version: Version) -> Result<Snapshot, VolumeError> {
        self.volume.at(version)
    }

    /// A new version to write to, which is there as a whole when it is closed.
    pub fn open_new(&self) -> Update {
        Update::new(&self.volume)
    }

    /// A client that has seen nothing, and is given nothing older than `began`; `budget` versions are asked for their costs before
    /// each of its reads, at most [`COST_BUDGET_MAX`](crate::limits::COST_BUDGET_MAX).
    pub fn client(&self, level: Level, began: Version, budget: usize) -> StaleClient {
        StaleClient::new(level, began, budget, self.volume.planted())
    }

    /// The versions of a block that a client may be given now. Errors: `OutOfRange`; `NoSuchVersion` if it has seen one that is not here
    /// (of another volume).
    pub fn acceptable(&self, client: &StaleClient, block: u64) -> Result<VersionRange, VolumeError> {
        let VersionRange { first: floor, last: newest } = self.history();
        let mut low = floor.max(Version(client.least(block)));
        if let Some(updates) = client.level().updates_max {
            low = low.max(self.volume.updates_back(block, updates)?);
        }
        if let Some(age) = client.level().age_max {
            low = low.max(self.volume.durable_before(age));
        }
        if low > newest {
            return Err(VolumeError::NoSuchVersion { version: low, floor, newest });
        }
        Ok(VersionRange { first: low, last: newest })
    }

    /// Reads a block for a client, at the version of those that it may be given that seems to be the cheapest, and notes that it has
    /// seen it. Errors: as of [`StaleStore::read_version`]; then nothing is noted.
    pub async fn read(&self, client: &mut StaleClient, block: u64) -> Result<StaleRead, VolumeError> {
        let acceptable = self.acceptable(client, block)?;
        let (version, _) = self.cheapest(block, acceptable, client.budget())?;
        let range = self.version_range(block, version)?;
        let data = self.read_version(block, version).await?;
        client.note_read(block, version, range);
        Ok(StaleRead { data, version, range })
    }

    /// Writes a block for a client. On return it is durable and noted. Errors: as of [`StaleStore::write`].
    pub async fn write_for(
        &self,
        client: &mut StaleClient,
        block: u64,
        data: Bytes,
    ) -> Result<Version, VolumeError> {
        let version = self.write(block, data).await?;
        client.note_write([block], version);
        Ok(version)
    }
}
