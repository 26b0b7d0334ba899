//! Reads that one side of a link cannot serve: the others are asked, and what was wrong is written again.
//!
//! * Only bytes that match their checksum are served, and only those are written over a side's own: what else lies in the same block
//!   is left as that side has it, because the other side may be wrong there.
//! * A side that does not answer is not written to.
//! * A drive that takes no more reads for now says nothing of what it has: nothing is written then, and the error is the drive's.
//! * A chain that is closed waits for what is being mended, and mends nothing any more: its drives may be somebody else's.
//! * A repair that has begun ends, also if whoever reads does not wait for it.
//! * A place is written while nobody else is at work there and its segment still is in the use that the reader saw.

use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::drive::{Drive, DriveError, PageBuf};
use ithaca_env::limits::BLOCK_BYTES;

use super::FetchError;
use crate::catalog::Located;
use crate::chain::Inner;
use crate::error::ReadError;
use crate::planted::PlantedBug;
use crate::sides::{Side, Sides};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// What a side has of a place; blocks that it cannot read are those of another side, or zeros.
struct Copy {
    side: Side,
    bytes: Vec<u8>,
    /// Blocks that the side could not read.
    unread: Vec<usize>,
}

impl Inner {
    /// The data of a run, each record from any side that has it as it was written. Sides that have not are written again.
    /// Errors: `Damaged`: no side has one of the records; `Drive`: a side takes no more reads for now.
    pub(crate) async fn mend_run(&self, located: &Located) -> Result<Bytes, FetchError> {
        let located = located.clone();
        self.by_itself(async move |inner| inner.mend_run_here(&located).await).await
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

    async fn mend_run_here(&self, located: &Located) -> Result<Bytes, FetchError> {
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
        let copies = copies_of(device.live(), start + blocks.start, len).await;
        let mut copies = copies.map_err(FetchError::Read)?;
        let from = (data.start - blocks.start) as usize;
        let mut at = from;
        let skips_check = self.core.borrow().options.planted.is(PlantedBug::RepairSkipsVerify);
        let mut whole = vec![0; len];
        for (index, entry) in run.table.entries().enumerate() {
            let record = at..at + entry.len as usize;
            let is_good = |copy: &&Copy| crc32c::crc32c(&copy.bytes[record.clone()]) == entry.checksum;
            let good = copies.iter().find(is_good).or(copies.last().filter(|_| skips_check));
            let Some(good) = good else {
                return Err(FetchError::Read(ReadError::Damaged {
                    key: run.first_key + index as u64,
                    segment: located.segment,
                    offset: run.data_offset + (at - from) as u32,
                }));
            };
            whole[record.clone()].copy_from_slice(&good.bytes[record.clone()]);
            at = record.end;
        }
        let right = from..at;
        self.write_again(&device, &mut copies, start + blocks.start, &whole, right.clone()).await?;
        Ok(Bytes::from(whole).slice(right))
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
            let copies = copies_of(device.live(), offset, right.len()).await;
            let mut copies = copies.map_err(FetchError::Read)?;
            inner.write_again(&device, &mut copies, offset, &right, 0..right.len()).await
        };
        self.by_itself(mend).await
    }

    /// Makes `range` of each copy what `right` is there, and writes the blocks that this changes.
    async fn write_again(
        &self,
        device: &Sides,
        copies: &mut [Copy],
        offset: u64,
        right: &[u8],
        range: Range<usize>,
    ) -> Result<(), FetchError> {
        for copy in copies {
            if !self.registry.is_locked() {
                return Ok(());
            }
            let has_it = copy.bytes[range.clone()] == right[range.clone()] && copy.unread.is_empty();
            if has_it || device.is_silent(copy.side.id) {
                continue;
            }
            copy.bytes[range.clone()].copy_from_slice(&right[range.clone()]);
            let mut block = PageBuf::with_capacity(copy.bytes.len());
            block.extend(&copy.bytes);
            let side = &copy.side;
            tracing::warn!(drive = %side.drive.name(), offset, bytes = copy.bytes.len(), "a harmed place is written again");
            self.repaired.set(self.repaired.get() + 1);
            if let Err(error) = device.write_lacking(side, offset, block.freeze()).await
                && device.is_live(side.id)
            {
                return Err(FetchError::Read(error.into()));
            }
        }
        Ok(())
    }
}

/// Errors: a side takes no more reads for now.
async fn copies_of(sides: Vec<Side>, offset: u64, len: usize) -> Result<Vec<Copy>, ReadError> {
    let mut copies: Vec<Copy> = Vec::new();
    for side in sides {
        let (bytes, unread) = read_blocks(&side.drive, offset, len).await?;
        copies.push(Copy { side, bytes, unread });
    }
    for index in 0..copies.len() {
        for block in copies[index].unread.clone() {
            let range = block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES;
            let other = copies.iter().find(|other| !other.unread.contains(&block));
            if let Some(bytes) = other.map(|other| other.bytes[range.clone()].to_vec()) {
                copies[index].bytes[range].copy_from_slice(&bytes);
            }
        }
    }
    Ok(copies)
}

/// What can be read; the blocks that cannot are zeros, and named. Errors: the drive takes no more reads for now.
async fn read_blocks(drive: &Drive, offset: u64, len: usize) -> Result<(Vec<u8>, Vec<usize>), DriveError> {
    match drive.read(offset, len).await {
        Ok(bytes) => return Ok((bytes.to_vec(), Vec::new())),
        Err(error) if is_refusal(&error) => return Err(error),
        Err(_) => {}
    }
    let (mut bytes, mut unread) = (vec![0; len], Vec::new());
    for block in 0..len / BLOCK_BYTES {
        let at = block * BLOCK_BYTES;
        match drive.read(offset + at as u64, BLOCK_BYTES).await {
            Ok(read) => bytes[at..at + BLOCK_BYTES].copy_from_slice(&read),
            Err(error) if is_refusal(&error) => return Err(error),
            Err(_) => unread.push(block),
        }
    }
    Ok((bytes, unread))
}

/// Whether a drive has not looked at what was asked for, because too many requests wait for it.
pub(crate) fn is_refusal(error: &DriveError) -> bool {
    matches!(error, DriveError::Busy { .. })
}
