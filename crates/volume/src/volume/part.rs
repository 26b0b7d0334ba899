//! Plain writes of parts of blocks.
//!
//! A volume stores whole blocks. To write a part of one, what the block is has to be known: it is looked up when the write is handed
//! over, in the one step that gives it its version, so that whatever came before it stays, whoever wrote it. What the drive has is read
//! before; if something was written since and is durable by now, it is read again.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use ithaca_chain::Run;

use super::commit::Handed;
use super::read::View;
use super::snapshot::Snapshot;
use super::write::data_run;
use super::{Inner, Volume};
use crate::error::VolumeError;
use crate::index::Found;
use crate::limits::{REQUEST_BLOCKS_MAX, VOLUME_BLOCK_BYTES};
use crate::options::{Durability, Version};
use crate::planted::PlantedBug;

const BLOCK: u64 = VOLUME_BLOCK_BYTES as u64;

/// What a block was, by the newest durable version.
struct Base {
    found: Found,
    data: Bytes,
}

/// Why a part was not handed over.
enum NotTaken {
    /// The block is something else by now.
    Changed,
    Refused(VolumeError),
}

impl From<VolumeError> for NotTaken {
    fn from(error: VolumeError) -> Self {
        Self::Refused(error)
    }
}

/// A block as it is handed over.
#[derive(Default)]
struct Laid {
    whole: Bytes,
    /// It holds what is neither durable nor acknowledged.
    is_hidden: bool,
}

impl Volume {
    /// Writes bytes from `offset` on, wherever they begin and end. The bytes of a block that are not written stay as whoever wrote them
    /// last has left them: a write of a part is one step in the order of versions, as a write of a whole block is. The first block, those
    /// that are written whole, and the last one are commits of their own. Returns the version of the last.
    ///
    /// A part over what somebody else has written and is not durable yet is acknowledged when it is durable, because it shows that too.
    ///
    /// Errors, durability and what a dropped future leaves: as of [`Volume::write`]; besides `Damaged` and `Drive`, if what stays of a block
    /// cannot be read.
    pub async fn write_bytes(
        &self,
        offset: u64,
        data: Bytes,
        durability: Durability,
    ) -> Result<Version, VolumeError> {
        let end = offset.saturating_add(data.len() as u64);
        if data.is_empty() {
            return Err(VolumeError::Length { what: "bytes", found: 0, max: REQUEST_BLOCKS_MAX * BLOCK });
        }
        self.inner.check_range(offset / BLOCK, end.div_ceil(BLOCK) - offset / BLOCK)?;
        let pieces: Vec<Range<u64>> = pieces(offset..end).collect();
        let mut version = Version(0);
        for piece in &pieces {
            // What is stable makes everything stable that was handed over before it: the last piece is enough.
            let durability = if piece.end == end { durability } else { Durability::Acknowledged };
            let data = data.slice((piece.start - offset) as usize..(piece.end - offset) as usize);
            let block = piece.start / BLOCK;
            version = match is_whole(piece) {
                true => self.write(block, data, durability).await?,
                false => self.write_part(block, (piece.start % BLOCK) as usize, &data, durability).await?,
            };
        }
        Ok(version)
    }

    /// Writes some bytes of one block.
    async fn write_part(
        &self,
        block: u64,
        at: usize,
        bytes: &[u8],
        durability: Durability,
    ) -> Result<Version, VolumeError> {
        let inner = &self.inner;
        let laid = RefCell::new(Laid::default());
        let handed = loop {
            let base = inner.base(block).await?;
            let handed = inner.commit(|| inner.lay_over(block, base.as_ref(), (at, bytes), &laid)).await;
            match handed {
                Ok(handed) => break handed,
                Err(NotTaken::Changed) => {}
                Err(NotTaken::Refused(error)) => return Err(error),
            }
        };
        let Laid { whole, is_hidden } = laid.into_inner();
        inner.note_part(handed, block, at..at + bytes.len(), &whole);
        match durability {
            Durability::Acknowledged if !is_hidden => {
                inner.overlay.borrow_mut().add(handed.version.0, block, std::iter::once(Some(whole)));
                inner.acknowledged.set(handed.version.0);
            }
            _ => inner.durable(handed.ticket).await?,
        }
        Ok(handed.version)
    }
}

impl Inner {
    /// What a block is by the newest durable version; nothing if a later one has written it, which is in memory until it is durable.
    async fn base(self: &Rc<Self>, block: u64) -> Result<Option<Base>, VolumeError> {
        self.catch_up();
        let (newest, found) = self.blocks.with(|index| (index.newest(), index.now(block)));
        if self.transactions.borrow().window.latest(block, newest).is_some() {
            return Ok(None);
        }
        if let Some(data) = self.at_once(block, View::At(newest)) {
            return Ok(Some(Base { found, data }));
        }
        let held = Snapshot::new(self, newest);
        let data = self.read(block..block + 1, View::At(newest)).await?;
        drop(held);
        Ok(Some(Base { found, data }))
    }

    /// What is to be handed over: the bytes over what the block is now. Errors: `Changed`: the base is out of date.
    fn lay_over(
        &self,
        block: u64,
        base: Option<&Base>,
        (at, bytes): (usize, &[u8]),
        laid: &RefCell<Laid>,
    ) -> Result<Vec<Run>, NotTaken> {
        self.catch_up();
        let (newest, found) = self.blocks.with(|index| (index.newest(), index.now(block)));
        let transactions = self.transactions.borrow();
        let mut whole = BytesMut::zeroed(VOLUME_BLOCK_BYTES);
        let latest = transactions.window.latest(block, newest);
        let latest = latest.filter(|_| !self.settings.planted.is(PlantedBug::PartOverOld) || base.is_none());
        let is_hidden = match (latest, base) {
            (Some((_, content)), _) => {
                if let Some(content) = content {
                    whole.copy_from_slice(content);
                }
                self.is_hidden(block)
            }
            (None, Some(base))
                if base.found == found || self.settings.planted.is(PlantedBug::PartOverOld) =>
            {
                whole.copy_from_slice(&base.data);
                false
            }
            (None, _) => return Err(NotTaken::Changed),
        };
        whole[at..at + bytes.len()].copy_from_slice(bytes);
        let whole = whole.freeze();
        laid.replace(Laid { whole: whole.clone(), is_hidden });
        Ok(vec![data_run(block, whole)])
    }

    /// Whether what a block was made last is neither durable nor acknowledged, so that nobody sees it.
    pub(super) fn is_hidden(&self, block: u64) -> bool {
        let newest = self.blocks.with(|index| index.newest());
        let transactions = self.transactions.borrow();
        let latest = transactions.window.latest(block, newest);
        latest.is_some_and(|(version, _)| self.overlay.borrow().version(block) != Some(version))
    }

    fn note_part(&self, handed: Handed, block: u64, bytes: Range<usize>, whole: &Bytes) {
        self.counters.borrow_mut().blocks_written += 1;
        self.transactions.borrow_mut().note_part(handed.version.0, block, bytes, whole.clone());
    }
}

fn is_whole(bytes: &Range<u64>) -> bool {
    bytes.start.is_multiple_of(BLOCK) && bytes.end.is_multiple_of(BLOCK)
}

/// Bytes in pieces that are each a part of a block, or whole blocks.
fn pieces(bytes: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = bytes.end;
    let mut at = bytes.start;
    std::iter::from_fn(move || {
        let start = at;
        at = match (start.is_multiple_of(BLOCK), end / BLOCK * BLOCK) {
            (true, whole) if whole > start => whole,
            _ => end.min((start / BLOCK + 1) * BLOCK),
        };
        (start < end).then_some(start..at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_parts_of_blocks_and_what_lies_between_them() {
        let of = |bytes| pieces(bytes).map(|piece| (piece.start, piece.end)).collect::<Vec<_>>();
        assert_eq!(of(0..4096), [(0, 4096)]);
        assert_eq!(of(100..200), [(100, 200)]);
        assert_eq!(of(100..4096), [(100, 4096)]);
        assert_eq!(of(4096..4100), [(4096, 4100)]);
        assert_eq!(of(4000..20_000), [(4000, 4096), (4096, 16_384), (16_384, 20_000)]);
        assert_eq!(of(4000..4200), [(4000, 4096), (4096, 4200)]);
        assert_eq!(of(8192..8192), []);
    }
}
