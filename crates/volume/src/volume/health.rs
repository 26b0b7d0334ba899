//! Whether the drives are well.

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

    /// Reads and verifies everything that the drives hold, old versions too, no faster than the chain's
    /// `scrub_bytes_per_second`. On return what one side of a mirror lacked and another had is written again, and what none has is in
    /// the [`damage`](ithaca_chain::Stats::damage) of [`Info::chain`](super::Info::chain). What was written of late, which is in no closed
    /// segment yet, is left out. Errors: `Stopped`. Dropping the future ends the pass.
    pub async fn scrub(&self) -> Result<(), VolumeError> {
        Ok(self.inner.chain.scrub().await?)
    }
}
