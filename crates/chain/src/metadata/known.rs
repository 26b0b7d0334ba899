//! What a metadata drive says of a chain at an open, and how much of that is believed.
//!
//! An entry is believed if it lies where it says, was made of a drive that the chain has on that link, and the header of the
//! segment is that of the same use: then the segment has not been used since it was closed, and an entry is not written before that.

use std::collections::BTreeMap;

use ithaca_env::limits::DRIVE_IO_MAX_BYTES;

use super::{FooterRead, MetadataDrive};
use crate::format::{Directory, EntryHead, SegmentHeader, SegmentKind, Trailer};
use crate::membership::DriveId;
use crate::options::ChainId;

/// The entries of one chain. Without a metadata drive there are none.
#[derive(Default)]
pub(crate) struct Known {
    drive: Option<MetadataDrive>,
    heads: BTreeMap<u32, EntryHead>,
    /// Planted: the segments are not asked.
    is_believed: bool,
}

impl Known {
    /// Reads the heads of a chain's entries that are of a drive for which `is_on` says that it has the segment.
    pub(crate) async fn read(
        drive: &MetadataDrive,
        chain: ChainId,
        is_believed: bool,
        is_on: impl Fn(u32, DriveId) -> bool,
    ) -> Self {
        let mut heads = drive.heads(chain).await;
        heads.retain(|segment, head| is_believed || is_on(*segment, head.drive));
        Self { drive: Some(drive.clone()), heads, is_believed }
    }

    /// Whether there is an entry for the segment, so that its header suffices.
    pub(crate) fn has(&self, segment: u32) -> bool {
        self.heads.contains_key(&segment)
    }

    /// The trailer of a segment with this header, if the entry is of the same use of it.
    pub(crate) fn trailer(&self, segment: u32, chain: ChainId, header: &[u8]) -> Option<Trailer> {
        let trailer = &self.heads.get(&segment)?.trailer;
        let header = SegmentHeader::decode(header).ok();
        let is_same = header.is_some_and(|header| {
            (header.chain, header.segment, header.lap) == (chain, segment, trailer.lap)
                && header.kind == SegmentKind::Open
        });
        (is_same || self.is_believed).then(|| trailer.clone())
    }

    /// Starts to read bytes `[at, at + len)` of a segment in one of its uses, which lie within its footer. `None` if they are not
    /// here.
    pub(crate) fn footer(&self, segment: u32, lap: u64, at: u32, len: usize) -> Option<FooterRead> {
        let (drive, head) = (self.drive.as_ref()?, self.heads.get(&segment)?);
        let at = u64::from(at);
        let end = u64::from(head.trailer.directory_offset) + u64::from(head.trailer.directory_bytes);
        let start = end.checked_sub(u64::from(head.footer_bytes))?;
        let is_inside = at >= start && at + len as u64 <= end && len <= DRIVE_IO_MAX_BYTES;
        if head.trailer.lap != lap || !is_inside {
            return None;
        }
        Some(drive.read(head, at - start, len))
    }

    /// The directory of a segment in one of its uses, if it is here and whole.
    pub(crate) async fn directory(&self, segment: u32, lap: u64) -> Option<Directory> {
        let trailer = &self.heads.get(&segment)?.trailer;
        let (at, len) = (trailer.directory_offset, trailer.directory_bytes as usize);
        let bytes = self.footer(segment, lap, at, len)?.await?;
        let is_same = bytes.get(4..8) == Some(&trailer.directory_checksum.to_le_bytes()[..]);
        Directory::decode(&bytes, segment, lap).ok().filter(|_| is_same)
    }
}
