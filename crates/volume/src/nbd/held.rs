//! A transaction that a connection works in, as the export `NAME@tx=HANDLE`.
//!
//! Who began it has released it to anyone and waits. A client that disconnects as the protocol says releases it again, by the same
//! handle, so that who began it takes it over and commits; one whose connection just ends has died, and its transaction is
//! aborted, as that of a killed process is.

use std::cell::Cell;
use std::ops::Range;

use bytes::Bytes;

use super::export::Failed;
use super::wire::Errno;
use crate::parts;
use crate::planted::{Planted, PlantedBug};
use crate::{Heir, Taker, Tx, TxError, TxHandle, Volume};

/// Whose transactions these are while a connection has them: one client's, whatever its process is.
const CLIENT: u64 = u64::MAX;

/// See the module.
pub(super) struct Held {
    /// There until this is dropped.
    tx: Option<Tx>,
    handle: TxHandle,
    /// A client works in it: if that ends now, it has died.
    is_in_use: Cell<bool>,
    planted: Planted,
}

impl From<TxError> for Failed {
    fn from(error: TxError) -> Self {
        let number = match error {
            TxError::Volume(error) => return error.into(),
            TxError::TooManyWrites { .. } | TxError::TooManyReads { .. } => Errno::NoSpace,
            _ => Errno::InputOutput,
        };
        Self { error: number, words: error.to_string() }
    }
}

impl Held {
    /// Takes a transaction over. Errors: as of [`Volume::take_over_as`].
    pub fn take_over(volume: &Volume, handle: TxHandle, planted: Planted) -> Result<Self, TxError> {
        let tx = volume.take_over_as(handle, Taker { user: None, client: CLIENT })?;
        Ok(Self { tx: Some(tx), handle, is_in_use: Cell::new(false), planted })
    }

    /// A client works in it from now on.
    pub fn enter(&self) {
        self.is_in_use.set(true);
    }

    /// The client has disconnected. Who commits does not know of a write that it lacks.
    pub fn leave(&self, lacks_write: bool) {
        if lacks_write {
            self.tx().note_refused_write();
        }
        self.is_in_use.set(false);
    }

    fn tx(&self) -> &Tx {
        self.tx.as_ref().expect("it is there until the end")
    }

    /// Reads bytes: what it has written, and its snapshot. It depends on these alone.
    pub async fn read(&self, range: &Range<u64>) -> Result<Bytes, Failed> {
        Ok(parts::read(self.tx(), range).await?)
    }

    /// Writes bytes, in memory: they are there for others, and durable, when it commits.
    pub async fn write(&self, offset: u64, data: &Bytes) -> Result<(), Failed> {
        Ok(parts::write(self.tx(), offset, data).await?)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(tx) = self.tx.take()
            && (!self.is_in_use.get() || self.planted.is(PlantedBug::DeadClientReleases))
        {
            // One that was ended meanwhile has nothing to go on with; whoever asks hears that there is none.
            let _ = tx.release_again(self.handle, Heir::Anyone);
        }
    }
}
