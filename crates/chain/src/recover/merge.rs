//! Groups that the sides of a link have not alike: what one has of them makes up for what another lacks.
//!
//! * What a side is given matches its checksum: the head of the group, and records. Where no side has a record as it was written each keeps
//!   what it has.
//! * So a block that a side cannot read is written only if nothing of that is in it: it may be readable again later.

use std::ops::Range;

use bytes::Bytes;
use ithaca_env::drive::{Drive, DriveError, PageBuf};
use ithaca_env::limits::BLOCK_BYTES;

use super::lenient::{Unread, start_lenient};
use crate::format::{GroupHead, RunHead, peek_group};

/// Keys and data of a record.
pub(crate) type RecordPlace = (Range<u64>, Range<u32>);

/// What comes of a group when what its sides have of it is put together.
pub(crate) struct Together {
    /// What each side lacks: bytes of the drive, and where they begin.
    pub(crate) lacking: Vec<Vec<(u64, Bytes)>>,
    /// The records that none has.
    pub(crate) lost: Vec<RecordPlace>,
    /// Whether any has the head. If not, the group is not there as it was found, and nothing of it is to be written.
    pub(crate) has_head: bool,
    /// Why some of it could not be read.
    pub(crate) unread: Option<DriveError>,
}

/// What a side has of some blocks; what no decoder takes stands for those that it cannot read.
pub(crate) struct Image {
    pub(crate) bytes: Bytes,
    unread: Option<Unread>,
}

/// Puts together what these sides have at `offset` of the group that `head` and `runs` tell of. Writes nothing. Errors: others than failed
/// reads.
pub(crate) async fn put_together(
    sides: &[Drive],
    offset: u64,
    head: &GroupHead,
    runs: &[RunHead],
) -> Result<Together, DriveError> {
    let mut images = Vec::new();
    for side in sides {
        images.push(Image::read(side, offset, head.layout.total_bytes()).await?);
    }
    Ok(merge(&images, offset, head, runs))
}

fn merge(images: &[Image], offset: u64, head: &GroupHead, runs: &[RunHead]) -> Together {
    // Zeros between head, packed and aligned data.
    let mut right = vec![vec![0; head.layout.total_bytes()]; images.len()];
    let has_head = give(images, &mut right, 0..head.layout.head_bytes, |begin| {
        let is_same = peek_group(&begin[..BLOCK_BYTES.min(begin.len())]).is_ok_and(|found| found == *head);
        is_same && head.decode_area(&Bytes::copy_from_slice(begin)).is_ok()
    });
    let (mut lost, mut lost_bytes) = (Vec::new(), Vec::new());
    for run in runs {
        let mut start = run.data_offset;
        for (index, entry) in run.table.entries().enumerate() {
            let bytes = start..start + entry.len;
            start = bytes.end;
            let at = (bytes.start - head.identity.offset) as usize;
            let place = at..at + entry.len as usize;
            let is_right = |record: &[u8]| crc32c::crc32c(record) == entry.checksum;
            if !give(images, &mut right, place.clone(), is_right) {
                let key = run.first_key + index as u64;
                lost.push((key..key + 1, bytes));
                lost_bytes.push(place);
            }
        }
    }
    let lacking = images.iter().zip(&right).map(|(image, right)| match has_head {
        true => image.lacking(right, &lost_bytes, offset),
        false => Vec::new(),
    });
    let unread = images.iter().find_map(|image| image.unread.as_ref());
    Together { lacking: lacking.collect(), lost, has_head, unread: unread.map(|it| it.error.clone()) }
}

/// Puts what is right at this place there for all sides, if one has it; else what each has. Returns whether one has.
fn give(
    images: &[Image],
    right: &mut [Vec<u8>],
    place: Range<usize>,
    is_right: impl Fn(&[u8]) -> bool,
) -> bool {
    let good = images.iter().find(|image| is_right(&image.bytes[place.clone()]));
    for (own, right) in images.iter().zip(right) {
        right[place.clone()].copy_from_slice(&good.unwrap_or(own).bytes[place.clone()]);
    }
    good.is_some()
}

impl Image {
    /// Reads whole blocks. Errors: others than failed reads.
    pub(crate) async fn read(side: &Drive, offset: u64, len: usize) -> Result<Self, DriveError> {
        let (bytes, unread) = start_lenient(side, offset, len).finish_in_blocks().await?;
        Ok(Self { bytes, unread })
    }

    /// Why a block with some of these bytes could not be read, if there is one.
    pub(crate) fn unread(&self, bytes: &Range<usize>) -> Option<&DriveError> {
        let is_in =
            |block: &usize| block * BLOCK_BYTES < bytes.end && bytes.start < (block + 1) * BLOCK_BYTES;
        let unread = self.unread.as_ref().filter(|unread| unread.blocks.iter().any(is_in))?;
        Some(&unread.error)
    }

    /// The blocks of `right` that this side has not, side by side ones together. `lost` is what nobody has right, or of which that is
    /// not known: a block with some of it that cannot be read is left as it is.
    pub(crate) fn lacking(&self, right: &[u8], lost: &[Range<usize>], offset: u64) -> Vec<(u64, Bytes)> {
        let is_lacking = |block: &Range<usize>| match self.unread(block).is_some() {
            true => !lost.iter().any(|lost| lost.start < block.end && block.start < lost.end),
            false => self.bytes[block.clone()] != right[block.clone()],
        };
        let blocks = (0..right.len()).step_by(BLOCK_BYTES).map(|start| start..start + BLOCK_BYTES);
        let mut parts: Vec<Range<usize>> = Vec::new();
        for block in blocks.filter(is_lacking) {
            match parts.last_mut().filter(|last| last.end == block.start) {
                Some(last) => last.end = block.end,
                None => parts.push(block),
            }
        }
        let part = |part: Range<usize>| (offset + part.start as u64, PageBuf::paged(&right[part]));
        parts.into_iter().map(part).collect()
    }
}
