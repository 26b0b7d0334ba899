//! Several blocks as they were at one version, which is chosen while they are read (Yogurt, section 5.1).
//!
//! ```text
//!   range  ────────────────────────────────     to begin with
//!   read a      ├──────── a is the same ──┤     the cheapest version of a, and what is left of the range
//!   read b             ├── b ──┤                ... of b
//!   all of what was read is as it was at any version of what is left that still can be read, and one of them is kept
//! ```

use bytes::Bytes;

use super::StaleStore;
use super::query::VersionRange;
use crate::error::VolumeError;
use crate::options::Version;
use crate::planted::PlantedBug;
use crate::volume::Snapshot;

/// Reads of blocks at one version. What was read before limits what can still be chosen: the choice is greedy, and the block that is
/// read first has the widest.
///
/// It always can go on: a version of what is left of the range is pinned, and only history from there on is needed.
pub struct Walk {
    store: StaleStore,
    budget: usize,
    range: VersionRange,
    /// A version of the range.
    pinned: Snapshot,
}

impl StaleStore {
    /// Begins to read blocks at one version of `range`, with a budget of versions that are asked for their costs before each. Errors:
    /// `NoSuchVersion` if the last of them cannot be read.
    pub fn walk(&self, range: VersionRange, budget: usize) -> Result<Walk, VolumeError> {
        let pinned = self.open(range.last)?;
        Ok(Walk { store: self.clone(), budget, range, pinned })
    }
}

impl Walk {
    /// What is left of the range: everything that was read so far is as it was at each of these versions that still can be read.
    pub fn range(&self) -> VersionRange {
        self.range
    }

    /// A version of the range, which is kept as long as this is held.
    pub fn version(&self) -> Version {
        self.pinned.version()
    }

    /// Reads a block at the version of the range that seems to be the cheapest. Errors: `OutOfRange`, `Damaged`, `Drive`; then nothing
    /// has changed. A future that is dropped may leave less of the range.
    pub async fn read(&mut self, block: u64) -> Result<Bytes, VolumeError> {
        let history = self.store.volume().history();
        let version = match self.range.common(&history) {
            Some(readable) => self.store.cheapest(block, readable, self.budget)?.0,
            // History goes on without them; the pinned one is there.
            None => self.version(),
        };
        let span = self.store.version_range(block, version)?;
        let left = self.range.common(&span).expect("the version is in both");
        assert!(left.has(version), "{version} is not within {left:?}");
        let pinned = self.store.open(version)?;
        let data = pinned.read(block, 1).await?;
        if !self.store.volume().planted().is(PlantedBug::WalkDoesNotShrink) {
            self.range = left;
        }
        self.pinned = pinned;
        Ok(data)
    }
}
