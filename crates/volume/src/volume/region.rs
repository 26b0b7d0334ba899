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

impl Inner {
    /// Errors: `RegionInUse`.
    fn check_unused(&self, name: &str) -> Result<(), VolumeError> {
        match self.region_users.borrow().get(name) {
            Some(&users) => Err(VolumeError::RegionInUse { name: name.to_owned(), users }),
            None => Ok(()),
        }
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

    /// The region of this name. Errors: `NoSuchRegion`.
    pub fn region(&self, name: &str) -> Result<Region, VolumeError> {
        let found = self.inner.history.borrow().asked().regions.get(name).cloned();
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
    /// Errors: `NoSuchRegion`; `RegionInUse`, while an export that can be written, a client of the socket or a file shows it: of who comes
    /// while it is removed the blocks may be given up by then; `Full`; `Stopped`: then it may be gone. A future that is dropped may leave it,
    /// with its blocks given up or not.
    pub async fn delete_region(&self, name: &str) -> Result<(), VolumeError> {
        let region = self.region(name)?;
        self.inner.check_unused(name)?;
        self.discard(region.blocks.clone(), Durability::Acknowledged).await?;
        let without_region = |asked: &State| {
            self.inner.check_unused(name)?;
            let mut regions = asked.regions.clone();
            // Not another one that has been given the name meanwhile.
            let removed = regions.remove(name).filter(|blocks| *blocks == region.blocks);
            removed.ok_or_else(|| VolumeError::NoSuchRegion { name: name.to_owned() })?;
            Ok(State { regions, ..asked.clone() })
        };
        // Durable in the order in which they are handed over: with the record the discards are too.
        self.inner.replace_state(without_region).await
    }
}
