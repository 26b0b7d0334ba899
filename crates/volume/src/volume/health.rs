//! Whether the drives are well.

use ithaca_chain::{ChangeError, DriveId};
use ithaca_env::drive::Drive;

use super::Volume;
use crate::error::VolumeError;

impl Volume {
    /// Whether it can only be read: [`Volume::rescue`].
    pub fn is_read_only(&self) -> bool {
        self.inner.chain.is_read_only()
    }

    /// Waits until nothing more is taken because a write has failed, and says why. Never ends for one that is well, or can only be read.
    pub async fn failed(&self) -> VolumeError {
        VolumeError::Stopped(self.inner.chain.until_stopped().await)
    }

    /// Gives the mirror that the drive `beside` is a side of another side, in place of one that is missing if there is such a one; a drive that has none
    /// becomes a mirror by it. On return that is durable. The side counts when it was rebuilt, which goes on while the volume is used, and after the
    /// next open if need be: [`LinkStats::state`](ithaca_chain::LinkStats) says so. Errors, what may be on the drive, and what a dropped future
    /// leaves: as of [`Chain::add_side`](ithaca_chain::Chain::add_side).
    pub async fn add_side(&self, beside: DriveId, drive: Drive) -> Result<DriveId, ChangeError> {
        self.inner.chain.add_side(beside, drive).await
    }

    /// Reads and verifies everything that the drives hold, old versions too, no faster than the chain's
    /// `scrub_bytes_per_second`. On return what one side of a mirror lacked and another had is written again, and what none has is in
    /// the [`damage`](ithaca_chain::Stats::damage) of [`Info::chain`](super::Info::chain). What was written of late, which is in no closed
    /// segment yet, is left out. Errors: `Stopped`. Dropping the future ends the pass.
    pub async fn scrub(&self) -> Result<(), VolumeError> {
        Ok(self.inner.chain.scrub().await?)
    }
}
