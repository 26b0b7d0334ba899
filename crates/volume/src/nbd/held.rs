//! A transaction that a connection works in, as the export `NAME@tx=HANDLE`.
//!
//! Who began it has released it to anyone and waits. A client that disconnects as the protocol says releases it again, by the same
//! handle, so that who began it takes it over and commits; one whose connection just ends has died, and its transaction is
//! aborted, as that of a killed process is.

use std::cell::Cell;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use ithaca_env::limits::BLOCK_BYTES;

use super::export::Failed;
use super::wire::Errno;
use crate::planted::{Planted, PlantedBug};
use crate::{Heir, Taker, Tx, TxError, TxHandle, Volume};

const BLOCK: u64 = BLOCK_BYTES as u64;
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

/// The part of a block that bytes are: the block, and which of its bytes.
fn parts(range: Range<u64>) -> impl Iterator<Item = (u64, Range<usize>)> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let (block, start) = (at / BLOCK, at % BLOCK);
        let end = BLOCK.min(start + range.end.saturating_sub(at));
        at += end - start;
        (start < end).then_some((block, start as usize..end as usize))
    })
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

    /// The client has disconnected.
    pub fn leave(&self) {
        self.is_in_use.set(false);
    }

    fn tx(&self) -> &Tx {
        self.tx.as_ref().expect("it is there until the end")
    }

    /// Reads bytes: what it has written, and its snapshot. It depends on these alone.
    pub async fn read(&self, range: &Range<u64>) -> Result<Bytes, Failed> {
        let mut data = BytesMut::with_capacity((range.end - range.start) as usize);
        for (block, bytes) in parts(range.clone()) {
            let part = if bytes.len() == BLOCK_BYTES {
                self.tx().read(block, 1).await?
            } else {
                self.tx().read_part(block, bytes).await?
            };
            data.extend_from_slice(&part);
        }
        Ok(data.freeze())
    }

    /// Writes bytes, in memory: they are there for others, and durable, when it commits.
    pub async fn write(&self, offset: u64, data: &Bytes) -> Result<(), Failed> {
        let mut from = 0;
        for (block, bytes) in parts(offset..offset + data.len() as u64) {
            let part = data.slice(from..from + bytes.len());
            from += bytes.len();
            match bytes.len() {
                BLOCK_BYTES => self.tx().write(block, part)?,
                _ => self.tx().write_part(block, bytes.start, &part).await?,
            }
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_parts_of_the_blocks_that_they_lie_in() {
        let of = |range| parts(range).collect::<Vec<_>>();
        assert_eq!(of(0..4096), [(0, 0..4096)]);
        assert_eq!(of(100..200), [(0, 100..200)]);
        assert_eq!(of(4000..8292), [(0, 4000..4096), (1, 0..4096), (2, 0..100)]);
        assert_eq!(of(8192..8192), []);
    }
}
