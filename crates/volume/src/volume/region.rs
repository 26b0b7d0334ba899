//! Regions of a volume, and what happens to them. What they are is in [`crate::region`].

use std::ops::Deref;
use std::rc::Rc;

use super::{Inner, Volume};
use crate::error::VolumeError;
use crate::options::Durability;
use crate::region::{self, Region};
use crate::state::State;

/// That somebody works in a region: until this is dropped it is not removed, so that its blocks become nobody else's.
pub(crate) struct RegionUse {
    inner: Rc<Inner>,
    region: Region,
}

impl Deref for RegionUse {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.region
    }
}

impl Drop for RegionUse {
    fn drop(&mut self) {
        let mut users = self.inner.region_users.borrow_mut();
        let count = users.get_mut(&self.region.name).expect("who uses it was counted");
        *count -= 1;
        if *count == 0 {
            users.remove(&self.region.name);
        }
    }
}

/// That a region is being removed: nobody opens it until this is dropped.
struct Removal<'a> {
    inner: &'a Inner,
    name: &'a str,
}

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        self.inner.regions_going.borrow_mut().remove(self.name);
    }
}

impl Inner {
    /// Nobody opens a region from now on, if nobody works in it. Errors: `RegionInUse`.
    fn begin_removal<'a>(&'a self, region: &'a Region) -> Result<Removal<'a>, VolumeError> {
        let Region { name, blocks } = region;
        // Who shows it no more may have left a transaction that commits later.
        let users = self.region_users.borrow().get(name).copied();
        match users.unwrap_or_else(|| self.transactions.borrow().writers(blocks)) {
            0 => {}
            users => return Err(VolumeError::RegionInUse { name: name.clone(), users }),
        }
        self.regions_going.borrow_mut().insert(name.clone());
        Ok(Removal { inner: self, name })
    }
}

impl Volume {
    /// Somebody works in this region from now on, which was asked for in the same step.
    pub(crate) fn use_region(&self, region: Region) -> RegionUse {
        let inner = Rc::clone(&self.inner);
        *inner.region_users.borrow_mut().entry(region.name.clone()).or_insert(0) += 1;
        RegionUse { inner, region }
    }

    /// The regions, in the order of their names. One that is being made or removed may be among them.
    pub fn regions(&self) -> Vec<Region> {
        let history = self.inner.history.borrow();
        let regions = history.asked().regions.iter();
        regions.map(|(name, blocks)| Region { name: name.clone(), blocks: blocks.clone() }).collect()
    }

    /// The region of this name. Errors: `NoSuchRegion`, also while it is removed.
    pub fn region(&self, name: &str) -> Result<Region, VolumeError> {
        let is_going = self.inner.regions_going.borrow().contains(name);
        let found = self.inner.history.borrow().asked().regions.get(name).cloned().filter(|_| !is_going);
        let blocks = found.ok_or_else(|| VolumeError::NoSuchRegion { name: name.to_owned() })?;
        Ok(Region { name: name.to_owned(), blocks })
    }

    /// Makes a region of so many blocks, in the first gap between others that has them. What these blocks hold stays as it is. On return it
    /// is durable.
    ///
    /// Errors: `BadRegion`, `RegionTaken`, `TooManyRegions`, `NoGap`, `Full`; `Stopped`: then it may be there. A future that is dropped may
    /// leave the region.
    pub async fn create_region(&self, name: &str, blocks: u64) -> Result<Region, VolumeError> {
        let count = self.inner.count;
        let with_region = |asked: &State| {
            let (regions, _) = region::with(&asked.regions, count, name, blocks)?;
            Ok(State { regions, ..asked.clone() })
        };
        self.inner.replace_state(with_region).await?;
        self.region(name)
    }

    /// Gives up the blocks of a region, which read as zeros then, and removes it. On return both are durable. Old versions keep what was in it.
    ///
    /// Errors: `NoSuchRegion`; `RegionInUse`, while an export that can be written, a client of the socket or a file shows it, or a transaction
    /// that may commit has written to it; `Full`; `Stopped`: then it may be gone. A future that is dropped may leave it, with its blocks given
    /// up or not. Nobody opens it meanwhile.
    pub async fn delete_region(&self, name: &str) -> Result<(), VolumeError> {
        let region = self.region(name)?;
        let removal = self.inner.begin_removal(&region)?;
        self.discard(region.blocks.clone(), Durability::Acknowledged).await?;
        let without_region = |asked: &State| {
            let mut regions = asked.regions.clone();
            let removed = regions.remove(name);
            assert_eq!(removed.as_ref(), Some(&region.blocks), "nobody else removes it meanwhile");
            Ok(State { regions, ..asked.clone() })
        };
        // Durable in the order in which they are handed over: with the record the discards are too. From then on the name may be another
        // region's.
        self.inner.replace_state_and(without_region, |_, _| drop(removal)).await
    }
}
