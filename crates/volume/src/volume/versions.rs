//! What a reader of old versions has to know of the volume: which there are, how long a block stays the same, what would answer a read.

use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::Source;

use super::read::View;
use super::{Inner, Volume};
use crate::error::VolumeError;
use crate::index::{Found, Index};
use crate::limits::VOLUME_BLOCK_BYTES;
use crate::options::Version;
use crate::planted::Planted;
use crate::stale::VersionRange;

/// Errors: `NoSuchVersion`.
fn check_version(index: &Index, version: Version) -> Result<(), VolumeError> {
    if index.points().has(version.0) && version.0 <= index.newest() {
        return Ok(());
    }
    let (floor, newest) = (Version(index.points().floor()), Version(index.newest()));
    Err(VolumeError::NoSuchVersion { version, floor, newest })
}

impl Volume {
    /// All versions from the floor on.
    pub(crate) fn history(&self) -> VersionRange {
        self.inner.blocks.with(|index| VersionRange {
            first: Version(index.points().floor()),
            last: Version(index.newest()),
        })
    }

    /// The versions at which a block is what it is at `version`. Errors: `OutOfRange`, `NoSuchVersion`.
    pub(crate) fn span(&self, block: u64, version: Version) -> Result<VersionRange, VolumeError> {
        self.inner.check_inside(block, 1)?;
        self.inner.blocks.with(|index| {
            check_version(index, version)?;
            let span = index.span(block, version.0);
            Ok(VersionRange { first: Version(*span.start()), last: Version(*span.end()) })
        })
    }

    /// The lowest version at which at most so many updates of a block are left out. Errors: `OutOfRange`.
    pub(crate) fn updates_back(&self, block: u64, updates: u64) -> Result<Version, VolumeError> {
        self.inner.check_inside(block, 1)?;
        Ok(Version(self.inner.blocks.with(|index| index.updates_back(block, updates))))
    }

    /// A version that has everything that was durable so long ago.
    pub(crate) fn durable_before(&self, age: Duration) -> Version {
        let inner = &self.inner;
        inner.note_time();
        let newest = inner.blocks.with(|index| index.newest());
        Version(inner.times.borrow().newest_at(inner.env.now() - age, newest))
    }

    /// Tells what would answer a read of the block at each of these versions, which ascend; of one that lies on a drive which is gone,
    /// nothing. Errors: `OutOfRange`, `NoSuchVersion`.
    pub(crate) fn sources(
        &self,
        block: u64,
        versions: impl Iterator<Item = Version>,
        mut tell: impl FnMut(Version, Source),
    ) -> Result<(), VolumeError> {
        let inner = &self.inner;
        inner.check_inside(block, 1)?;
        inner.blocks.with_kept(|index, kept| {
            let mut ascent = index.ascent(block);
            for version in versions {
                check_version(index, version)?;
                let source = match ascent.at(version.0) {
                    Found::Zeros => Some(Source::Memory),
                    Found::At(packed) if kept.has(block, packed) => Some(Source::Memory),
                    Found::At(packed) => index.packing().spot(packed).and_then(|spot| {
                        inner.chain.source_of(spot.segment, spot.offset, VOLUME_BLOCK_BYTES as u32)
                    }),
                };
                if let Some(source) = source {
                    tell(version, source);
                }
            }
            Ok(())
        })
    }

    /// Errors: `OutOfRange`.
    pub(crate) fn check_block(&self, block: u64) -> Result<(), VolumeError> {
        self.inner.check_inside(block, 1)
    }

    /// A block at a version, if memory has it. Errors: `OutOfRange`, `NoSuchVersion`.
    pub(crate) fn at_once(&self, block: u64, version: Version) -> Result<Option<Bytes>, VolumeError> {
        self.inner.check_inside(block, 1)?;
        self.inner.blocks.with(|index| check_version(index, version))?;
        Ok(self.inner.at_once(block, View::At(version.0)))
    }

    /// The fault that is planted, if any.
    pub(crate) fn planted(&self) -> Planted {
        self.inner.settings.planted
    }
}

impl Inner {
    /// Notes which version is the newest durable one now.
    pub(super) fn note_time(&self) {
        let newest = self.blocks.with(|index| index.newest());
        self.times.borrow_mut().note(self.env.now(), newest);
    }
}
