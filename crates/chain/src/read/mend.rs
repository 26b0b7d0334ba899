//! Reads that one side of a link cannot serve: the others are asked, and what was wrong is written again.
//!
//! * Only bytes that match their checksum are served, and only those are written over a side's own: what else lies in the same block
//!   is left as that side has it, because the other side may be wrong there.
//! * A block that a side cannot read is written as a whole, so only if all that lies in it is known: else the group that it is of is put
//!   together.
//! * A side that cannot read a block, or does not answer, may have what no other has: then that is not damaged, and is asked for again by the
//!   next reader. One that does not answer is not written to.
//! * A drive that takes no more reads for now says nothing of what it has: nothing is written then, and the error is the drive's.
//! * A chain that is closed waits for what is being mended, and mends nothing any more: its drives may be somebody else's.
//! * A repair that has begun ends, also if whoever reads does not wait for it.
//! * A place is written while nobody else is at work there and its segment still is in the use that the reader saw.

use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::drive::DriveError;
use ithaca_env::limits::BLOCK_BYTES;

use super::FetchError;
use crate::catalog::Located;
use crate::chain::Inner;
use crate::error::ReadError;
use crate::planted::PlantedBug;
use crate::recover::Image;
use crate::sides::{Side, Sides};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// What a side has of a place.
struct Copy {
    side: Side,
    image: Image,
    /// Whether it answered. If not, it may have what could not be read.
    has_answered: bool,
}

/// What came of a repair.
struct Mended {
    data: Bytes,
    /// Whether a side is left with a block that it could not read, because more lies in it than the data.
    is_unread: bool,
}

impl Inner {
    /// The data of a run, each record from any side that has it as it was written. Sides that have not are written again.
    /// Errors: `Damaged`: all sides were read, and none has one of the records; `Unread`: none has it, and not all could be read; `Drive`: a
    /// side takes no more reads for now.
    pub(crate) async fn mend_run(&self, located: &Located) -> Result<Bytes, FetchError> {
        let located = located.clone();
        let mend = async move |inner: Rc<Self>| {
            let Mended { data, is_unread } = inner.mend_run_here(&located).await?;
            if is_unread {
                inner.put_together_around(located.segment, located.lap, located.run.data_offset).await;
            }
            Ok(data)
        };
        self.by_itself(mend).await
    }

    /// Does a repair in a task of its own, which ends whether whoever asked waits for it or not: what is being written keeps its place
    /// until then, and a side that fails is given up on all drives.
    pub(crate) async fn by_itself<T: 'static>(&self, repair: impl AsyncFnOnce(Rc<Self>) -> T + 'static) -> T {
        let inner = self.me.upgrade().expect("whoever asks has it");
        let busy = self.busy.one_more();
        let repaired = self.env.spawn(async move {
            let repaired = repair(inner).await;
            drop(busy);
            repaired
        });
        repaired.join().await.expect("nobody ends it")
    }

    async fn mend_run_here(&self, located: &Located) -> Result<Mended, FetchError> {
        let run = &located.run;
        let data = run.data_range();
        let blocks = data.start / BLOCK * BLOCK..data.end.next_multiple_of(BLOCK);
        let device = self.device_of(located.segment).ok_or(FetchError::Recycled)?;
        let start = self.core.borrow().geometry.segment_start(located.segment);
        let _claim = device.claim(start + blocks.start..start + blocks.end).await;
        if !self.core.borrow().catalog.is_lap(located.segment, located.lap) {
            return Err(FetchError::Recycled);
        }
        let len = (blocks.end - blocks.start) as usize;
        device.wake();
        let copies = copies_of(&device, start + blocks.start, len).await?;
        let from = (data.start - blocks.start) as usize;
        let mut at = from;
        let skips_check = self.core.borrow().options.planted.is(PlantedBug::RepairSkipsVerify);
        let mut whole = vec![0; len];
        for (index, entry) in run.table.entries().enumerate() {
            let record = at..at + entry.len as usize;
            let is_good = |copy: &&Copy| crc32c::crc32c(&copy.image.bytes[record.clone()]) == entry.checksum;
            let good = copies.iter().find(is_good).or(copies.last().filter(|_| skips_check));
            let Some(good) = good else {
                let (key, segment) = (run.first_key + index as u64, located.segment);
                let offset = run.data_offset + (at - from) as u32;
                let damaged = FetchError::Read(ReadError::Damaged { key, segment, offset });
                let unread = copies.iter().find_map(|copy| copy.image.unread(&record)).cloned();
                return Err(unread.map_or(damaged, |error| FetchError::Unread { key, segment, error }));
            };
            whole[record.clone()].copy_from_slice(&good.image.bytes[record.clone()]);
            at = record.end;
        }
        let right = from..at;
        let is_unread =
            self.write_again(&device, copies, start + blocks.start, &whole, right.clone()).await?;
        Ok(Mended { data: Bytes::from(whole).slice(right), is_unread })
    }

    /// Writes whole blocks that were verified to the sides of the segment that have something else there.
    pub(super) async fn mend_blocks(
        &self,
        segment: u32,
        lap: u64,
        offset: u64,
        right: &Bytes,
    ) -> Result<(), FetchError> {
        let right = right.clone();
        let mend = async move |inner: Rc<Self>| {
            let device = inner.device_of(segment).ok_or(FetchError::Recycled)?;
            let _claim = device.claim(offset..offset + right.len() as u64).await;
            if !inner.core.borrow().catalog.is_lap(segment, lap) {
                return Ok(());
            }
            device.wake();
            let copies = copies_of(&device, offset, right.len()).await?;
            inner.write_again(&device, copies, offset, &right, 0..right.len()).await.map(drop)
        };
        self.by_itself(mend).await
    }

    /// Makes `range` of each copy what `right` is there, and writes the blocks that this changes. Returns whether a block is left that a
    /// side could not read and that not all of is in the range.
    async fn write_again(
        &self,
        device: &Sides,
        copies: Vec<Copy>,
        offset: u64,
        right: &[u8],
        range: Range<usize>,
    ) -> Result<bool, FetchError> {
        let beside = [0..range.start, range.end..right.len()];
        let mut is_unread = false;
        for Copy { side, image, has_answered } in copies {
            if !self.registry.may_write() {
                return Ok(false);
            }
            if !has_answered || device.is_silent(side.id) {
                continue;
            }
            is_unread |= beside.iter().any(|bytes| image.unread(bytes).is_some());
            let mut own = image.bytes.to_vec();
            own[range.clone()].copy_from_slice(&right[range.clone()]);
            let lacking = image.lacking(&own, &beside, offset);
            if !lacking.is_empty() {
                tracing::warn!(drive = %side.drive.name(), offset, bytes = own.len(), "a harmed place is written again");
                self.repaired.set(self.repaired.get() + 1);
            }
            for (at, blocks) in lacking {
                let Err(error) = device.write_lacking(&side, at, blocks).await else { continue };
                if device.is_live(side.id) {
                    return Err(FetchError::Read(error.into()));
                }
                break;
            }
        }
        Ok(is_unread)
    }
}

/// Errors: a side takes no more reads for now.
async fn copies_of(device: &Sides, offset: u64, len: usize) -> Result<Vec<Copy>, FetchError> {
    let mut copies = Vec::new();
    for side in device.live() {
        let before = device.unanswered([&side]);
        let image = Image::read(&side.drive, offset, len).await;
        let image = image.map_err(|error| FetchError::Read(error.into()))?;
        let has_answered = device.unanswered([&side]) == before;
        copies.push(Copy { side, image, has_answered });
    }
    Ok(copies)
}

/// Whether a drive has not looked at what was asked for, because too many requests wait for it.
pub(crate) fn is_refusal(error: &DriveError) -> bool {
    matches!(error, DriveError::Busy { .. })
}
