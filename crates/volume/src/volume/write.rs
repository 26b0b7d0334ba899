//! Plain writes, discards and flushes.

use std::ops::Range;

use bytes::Bytes;
use ithaca_chain::{Run, RunKind, TABLE_ENTRY_BYTES, Table};

use super::commit::commit_blocks_max;
use super::look::LOOK_SLICE;
use super::{Inner, Volume};
use crate::error::VolumeError;
use crate::index::Found;
use crate::limits::{DISCARD_BLOCKS_MAX, VOLUME_BLOCK_BYTES};
use crate::options::{Durability, Version};
use crate::planted::PlantedBug;
use crate::tx::Content;

/// The table of blocks that hold nothing.
static NOTHING: [u8; DISCARD_BLOCKS_MAX * TABLE_ENTRY_BYTES] = [0; DISCARD_BLOCKS_MAX * TABLE_ENTRY_BYTES];

/// A run of whole blocks of data. Its version is put in when it is handed over.
pub(super) fn data_run(first_key: u64, data: Bytes) -> Run {
    let table = Table::of_payloads(data.chunks(VOLUME_BLOCK_BYTES));
    Run { first_key, version: 0, kind: RunKind::Data, meta: Bytes::new(), table, data }
}

/// A run of blocks that read as zeros from now on: at most [`DISCARD_BLOCKS_MAX`].
pub(super) fn junk_run(blocks: Range<u64>) -> Run {
    let bytes = (blocks.end - blocks.start) as usize * TABLE_ENTRY_BYTES;
    let table = Table::from_bytes(Bytes::from_static(&NOTHING[..bytes])).expect("whole entries");
    let (meta, data) = (Bytes::new(), Bytes::new());
    Run { first_key: blocks.start, version: 0, kind: RunKind::Junk, meta, table, data }
}

impl Volume {
    /// Writes whole blocks from `first_block` on. With [`Durability::Acknowledged`] it waits for room in the queue, not for the drive. On
    /// return plain reads see the data; with [`Durability::Stable`] it is durable. A write of many blocks is several commits one after
    /// the other: a crash may keep the first ones. Returns the version of the last.
    ///
    /// Errors: `NotWholeBlocks`, `Length`, `OutOfRange`, `Full`, `Stopped`; then the first commits may be done. Dropping the future
    /// leaves whole commits done or not.
    pub async fn write(
        &self,
        first_block: u64,
        data: Bytes,
        durability: Durability,
    ) -> Result<Version, VolumeError> {
        let inner = &self.inner;
        if !data.len().is_multiple_of(VOLUME_BLOCK_BYTES) {
            return Err(VolumeError::NotWholeBlocks { bytes: data.len() });
        }
        inner.check_range(first_block, (data.len() / VOLUME_BLOCK_BYTES) as u64)?;
        let part_bytes = commit_blocks_max(&inner.chain) * VOLUME_BLOCK_BYTES;
        let (mut at, mut last) = (first_block, None);
        for from in (0..data.len()).step_by(part_bytes) {
            let part = data.slice(from..data.len().min(from + part_bytes));
            let run = data_run(at, part.clone());
            let handed = inner.commit(|| Ok::<_, VolumeError>(vec![run.clone()])).await?;
            let blocks = part.len() / VOLUME_BLOCK_BYTES;
            inner.counters.borrow_mut().blocks_written += blocks as u64;
            let content = |index| Some(block_of(&part, index));
            let mut transactions = inner.transactions.borrow_mut();
            // Copied where a transaction may have it kept for long: a block that stays must not keep all that it was written with.
            let copies = transactions.is_any_going_on();
            let kept = |data: Bytes| if copies { Bytes::copy_from_slice(&data) } else { data };
            let plain = (0..blocks).map(|index| (at + index as u64, content(index).map(kept)));
            transactions.note_plain(handed.version.0, plain);
            drop(transactions);
            if durability == Durability::Acknowledged {
                inner.overlay.borrow_mut().add(handed.version.0, at, (0..blocks).map(content));
                inner.acknowledged.set(handed.version.0);
            }
            at += blocks as u64;
            last = Some(handed);
        }
        let last = last.expect("a write of at least one block");
        if durability == Durability::Stable {
            inner.durable(last.ticket).await?;
        }
        Ok(last.version)
    }

    /// Gives blocks up: they read as zeros from now on, and take no room once nothing that may be read is older. What reads as zeros
    /// already is left alone. Returns the version after which that is so.
    ///
    /// Errors, durability and what a dropped future leaves: as of [`Volume::write`].
    pub async fn discard(&self, blocks: Range<u64>, durability: Durability) -> Result<Version, VolumeError> {
        let inner = &self.inner;
        if blocks.is_empty() {
            return Err(VolumeError::Length { what: "blocks", found: 0, max: inner.count });
        }
        inner.check_inside(blocks.start, blocks.end - blocks.start)?;
        let mut at = blocks.start;
        while at < blocks.end {
            let (found, next) = inner.to_discard(at..blocks.end, durability).await;
            at = next;
            let mut runs = Vec::new();
            let still_there = || {
                // Another discard may have given them up since.
                runs = inner.look_again(&found, durability).into_iter().map(junk_run).collect();
                if runs.is_empty() { Err(NotDiscarded::Nothing) } else { Ok(runs.clone()) }
            };
            let handed = match inner.commit(still_there).await {
                Ok(handed) => handed,
                Err(NotDiscarded::Nothing) => continue,
                Err(NotDiscarded::Failed(error)) => return Err(error),
            };
            let all = || runs.iter().flat_map(Run::keys);
            inner.transactions.borrow_mut().note_plain(handed.version.0, all().map(|block| (block, None)));
            if durability == Durability::Acknowledged {
                let mut overlay = inner.overlay.borrow_mut();
                for run in &runs {
                    let nothing = run.keys().map(|_| Content::None);
                    overlay.add(handed.version.0, run.first_key, nothing);
                }
                inner.acknowledged.set(handed.version.0);
            }
            let discarded = all().count() as u64;
            inner.counters.borrow_mut().blocks_discarded += discarded;
        }
        match durability {
            Durability::Acknowledged => Ok(Version(inner.next_version.get() - 1)),
            Durability::Stable => self.flush().await,
        }
    }

    /// Makes everything durable that was acknowledged before the call. Returns a version that is durable and has all of it. Errors:
    /// `Stopped`: what was acknowledged and not flushed may be lost.
    pub async fn flush(&self) -> Result<Version, VolumeError> {
        let inner = &self.inner;
        let (ticket, version) = (inner.last_ticket.get(), Version(inner.next_version.get() - 1));
        inner.counters.borrow_mut().flushes += 1;
        if !inner.settings.planted.is(PlantedBug::FlushDoesNotWait) {
            inner.durable(ticket).await?;
        }
        Ok(version)
    }
}

/// Why a part of a discard is no commit.
enum NotDiscarded {
    /// It reads as zeros already.
    Nothing,
    Failed(VolumeError),
}

impl From<VolumeError> for NotDiscarded {
    fn from(error: VolumeError) -> Self {
        Self::Failed(error)
    }
}

impl Inner {
    /// What of these blocks does not read as zeros, now or by what is on its way, as much of it as one commit takes; and where to go on.
    /// Others have their turn meanwhile: what they write to these blocks then is given up with the rest or not, as of any two at a time.
    async fn to_discard(&self, blocks: Range<u64>, durability: Durability) -> (Vec<Range<u64>>, u64) {
        let (mut found, mut at) = (Vec::new(), blocks.start);
        let mut room = DISCARD_BLOCKS_MAX;
        while at < blocks.end && room > 0 {
            let slice = at..blocks.end.min(at + LOOK_SLICE);
            let look = || self.look_for_data(slice.clone(), durability, &mut room, &mut found);
            at = self.in_turn(&slice, look).await;
        }
        (found, at)
    }

    /// What of these blocks still does not read as zeros.
    fn look_again(&self, found: &[Range<u64>], durability: Durability) -> Vec<Range<u64>> {
        let (mut left, mut room) = (Vec::new(), DISCARD_BLOCKS_MAX);
        for blocks in found {
            self.look_for_data(blocks.clone(), durability, &mut room, &mut left);
        }
        left
    }

    /// Adds to `found` what of these blocks does not read as zeros, as much of it as there is `room` for. Returns where to go on.
    fn look_for_data(
        &self,
        blocks: Range<u64>,
        durability: Durability,
        room: &mut usize,
        found: &mut Vec<Range<u64>>,
    ) -> u64 {
        let (transactions, overlay) = (self.transactions.borrow(), self.overlay.borrow());
        let mut at = blocks.start;
        self.blocks.with(|index| {
            let newest = index.newest();
            while at < blocks.end && *room > 0 {
                // Of what nobody sees before it is durable, plain reads give what was there before it.
                let is_seen = || match overlay.get(at, newest) {
                    Some(acknowledged) => acknowledged.is_some(),
                    None => index.now(at) != Found::Zeros,
                };
                let is_data = match transactions.window.content(at, newest) {
                    Some(Some(_)) => true,
                    // Given up by what is on its way: a discard that ends when it is durable waits for that as well.
                    Some(None) => durability == Durability::Acknowledged && is_seen(),
                    None => is_seen(),
                };
                if is_data {
                    *room -= 1;
                    match found.last_mut() {
                        Some(last) if last.end == at => last.end += 1,
                        _ => found.push(at..at + 1),
                    }
                }
                at += 1;
            }
        });
        at
    }
}

/// One block of several.
pub(super) fn block_of(data: &Bytes, index: usize) -> Bytes {
    data.slice(index * VOLUME_BLOCK_BYTES..(index + 1) * VOLUME_BLOCK_BYTES)
}
