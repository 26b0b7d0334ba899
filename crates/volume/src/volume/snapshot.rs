//! Snapshots: versions that stay readable.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;

use super::read::{Extents, View};
use super::{Inner, Volume};
use crate::error::VolumeError;
use crate::limits::SNAPSHOTS_MAX;
use crate::options::Version;
use crate::state::{State, is_new_name};

/// The volume as it was at a version. It stays so until this is dropped.
pub struct Snapshot {
    inner: Rc<Inner>,
    version: u64,
}

impl Snapshot {
    pub(super) fn new(inner: &Rc<Inner>, version: u64) -> Self {
        inner.blocks.with(|index| index.pin(version));
        Self { inner: Rc::clone(inner), version }
    }

    /// Which version it is.
    pub fn version(&self) -> Version {
        Version(self.version)
    }

    /// The data of `count` blocks from `first_block` on. Errors: `Length`, `OutOfRange`, `Damaged`, `Drive`.
    pub async fn read(&self, first_block: u64, count: u64) -> Result<Bytes, VolumeError> {
        self.inner.check_range(first_block, count)?;
        self.inner.read(first_block..first_block + count, View::At(self.version)).await
    }

    /// Which of these blocks hold data, and which read as zeros, in stretches. Errors: `OutOfRange`.
    pub fn extents(&self, blocks: Range<u64>) -> Result<Extents, VolumeError> {
        Extents::new(&self.inner, blocks, View::At(self.version))
    }

    /// The first of them, `at_most`, looked for in turn with others who look at many blocks.
    pub(crate) async fn extents_in_turn(
        &self,
        blocks: Range<u64>,
        at_most: usize,
    ) -> Result<Vec<(Range<u64>, bool)>, VolumeError> {
        self.inner.extents_in_turn(blocks, at_most, View::At(self.version)).await
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.inner.blocks.with(|index| index.unpin(self.version));
        self.inner.blocks.bell.ring();
    }
}

impl Volume {
    /// The newest durable version. It is kept as long as the snapshot is held, and not across a restart.
    pub fn snapshot(&self) -> Snapshot {
        let newest = self.inner.blocks.with(|index| index.newest());
        Snapshot::new(&self.inner, newest)
    }

    /// Any version that is durable and not below where history begins, or that a snapshot keeps. Errors: `NoSuchVersion`.
    pub fn at(&self, version: Version) -> Result<Snapshot, VolumeError> {
        let (floor, newest, is_there) = self.inner.blocks.with(|index| {
            let points = index.points();
            (points.floor(), index.newest(), points.has(version.0) && version.0 <= index.newest())
        });
        if !is_there {
            let (floor, newest) = (Version(floor), Version(newest));
            return Err(VolumeError::NoSuchVersion { version, floor, newest });
        }
        Ok(Snapshot::new(&self.inner, version.0))
    }

    /// The version that has this name. Errors: `NoSuchSnapshot`.
    pub fn named(&self, name: &str) -> Result<Snapshot, VolumeError> {
        let version = self.inner.history.borrow().asked().snapshots.get(name).copied();
        self.at(version.ok_or_else(|| VolumeError::NoSuchSnapshot { name: name.to_owned() })?)
    }

    /// Snapshots with names, in the order of the names. One that is being made or deleted may be among them.
    pub fn snapshots(&self) -> Vec<(String, Version)> {
        let history = self.inner.history.borrow();
        history.asked().snapshots.iter().map(|(name, version)| (name.clone(), *version)).collect()
    }

    /// Gives the newest version a name; everything that was acknowledged before is in it. On return it is durable that it is kept until
    /// [`Volume::delete_snapshot`].
    ///
    /// Errors: `BadName`, `NameTaken`, `TooManySnapshots`, `Full`; `Stopped`: then it may be there. A future that is dropped may leave
    /// the snapshot.
    pub async fn create_snapshot(&self, name: &str) -> Result<Version, VolumeError> {
        if !is_new_name(name) {
            return Err(VolumeError::BadName { name: name.to_owned() });
        }
        self.flush().await?;
        let inner = &self.inner;
        // Pinned before it is asked for: the floor may rise meanwhile.
        let pinned = self.snapshot();
        let version = pinned.version();
        let with_name = |asked: &State| {
            let mut snapshots = asked.snapshots.clone();
            if snapshots.len() >= SNAPSHOTS_MAX {
                return Err(VolumeError::TooManySnapshots { max: SNAPSHOTS_MAX });
            }
            if snapshots.insert(name.to_owned(), version).is_some() {
                return Err(VolumeError::NameTaken { name: name.to_owned() });
            }
            Ok(State { snapshots, ..asked.clone() })
        };
        // Pinned for good in the same step, whatever becomes of this call: the name may be durable.
        inner.replace_state_and(with_name, |_, _| inner.blocks.with(|index| index.pin(version.0))).await?;
        Ok(version)
    }

    /// Forgets a name. On return that is durable, and what only it has kept can go. Errors: `NoSuchSnapshot`, `Full`; `Stopped`: then it
    /// may be gone. A future that is dropped may have it forgotten.
    pub async fn delete_snapshot(&self, name: &str) -> Result<(), VolumeError> {
        let inner = &self.inner;
        let version = Cell::new(0);
        let without_name = |asked: &State| {
            let mut snapshots = asked.snapshots.clone();
            let found = snapshots.remove(name);
            version.set(found.ok_or_else(|| VolumeError::NoSuchSnapshot { name: name.to_owned() })?.0);
            Ok(State { snapshots, ..asked.clone() })
        };
        inner
            .replace_state_and(without_name, |history, ticket| history.unnamed(ticket, version.get()))
            .await?;
        inner.settle_all().await;
        Ok(())
    }
}
