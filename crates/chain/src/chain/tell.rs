//! An open of a chain whose keys are versioned: its owner is told of every record on the drives, footer by footer, the latest first.
//!
//! Footers come from the metadata drive where there is one, else from the chain's drives; what is harmed there is made again from the
//! groups.

use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::drive::DriveError;

use super::Inner;
use crate::cache::{FooterPart, PartKey};
use crate::catalog::SegmentState;
use crate::error::{OpenError, ReadError};
use crate::format::{Directory, PageView, RunHead};
use crate::limits::SCAN_IO_BYTES;
use crate::metadata::Known;
use crate::owner::Owner;

impl Inner {
    /// Tells the owner of every record on the drives.
    pub(super) async fn tell_owner_of_all(&self, known: &Known) -> Result<(), OpenError> {
        let Some(owner) = self.owner.clone() else { return Ok(()) };
        let mut segments: Vec<(u32, u64)> = {
            let core = self.core.borrow();
            let lap = |state: &SegmentState| match state {
                SegmentState::Open(open) => Some(open.lap),
                SegmentState::Closed(closed) => Some(closed.lap),
                SegmentState::Ready | SegmentState::Next | SegmentState::Raw | SegmentState::Preparing => {
                    None
                }
            };
            core.catalog.space.iter().filter_map(|(segment, state)| Some((segment, lap(state)?))).collect()
        };
        // Copies before what they are of: an owner that keeps the first place of a version needs no second copy.
        segments.sort_by_key(|(_, lap)| std::cmp::Reverse(*lap));
        for (segment, lap) in segments {
            match self.tell_of_segment(&*owner, segment, lap, known).await {
                Ok(()) => {}
                Err(ReadError::Drive(error)) => return Err(error.into()),
                Err(ReadError::Damaged { segment, offset, .. }) => {
                    tracing::warn!(segment, offset, "the runs of a segment cannot be told");
                }
            }
        }
        Ok(())
    }

    async fn tell_of_segment(
        &self,
        owner: &dyn Owner,
        segment: u32,
        lap: u64,
        known: &Known,
    ) -> Result<(), ReadError> {
        loop {
            if self.tell_from_memory(owner, segment, lap) {
                return Ok(());
            }
            let directory = match known.directory(segment, lap).await {
                Some(directory) => Rc::new(directory),
                None => {
                    let parts = self.load_footer_part(PartKey { segment, lap, page: None }, 0).await?;
                    // Made again from the groups: it is in memory now.
                    let Some((_, FooterPart::Directory(directory))) = parts.into_iter().next() else {
                        continue;
                    };
                    directory
                }
            };
            if self.tell_of_pages(owner, (segment, lap), &directory, known).await? {
                return Ok(());
            }
        }
    }

    /// Tells of all pages of a footer. Returns false if the index of the segment is in memory by now, because a page is harmed.
    async fn tell_of_pages(
        &self,
        owner: &dyn Owner,
        (segment, lap): (u32, u64),
        directory: &Directory,
        known: &Known,
    ) -> Result<bool, ReadError> {
        for piece in pieces(directory) {
            let pages = &directory.pages[piece.clone()];
            let start = pages[0].offset;
            let len = pages.iter().map(|page| page.bytes as usize).sum();
            let bytes = match known.footer(segment, lap, start, len).await {
                Some(bytes) => bytes,
                None => self.read_pages(segment, start, len).await?,
            };
            for (page, index) in pages.iter().zip(piece) {
                let at = (page.offset - start) as usize;
                let whole = page.is_whole(&bytes, start).then(|| bytes.slice(at..at + page.bytes as usize));
                let view = whole.and_then(|whole| PageView::decode(&whole, segment, lap).ok());
                if let Some(view) = view {
                    self.tell_of_page(owner, (segment, lap), &view);
                    continue;
                }
                let key = PartKey { segment, lap, page: Some(index as u32) };
                match self.load_footer_part(key, 0).await?.into_iter().next() {
                    Some((_, FooterPart::Page(view))) => self.tell_of_page(owner, (segment, lap), &view),
                    _ => return Ok(false),
                }
            }
        }
        Ok(true)
    }

    fn tell_of_page(&self, owner: &dyn Owner, (segment, lap): (u32, u64), page: &PageView) {
        for run in 0..page.run_count() {
            self.place(owner, &page.head(run), segment, lap);
        }
    }

    /// Bytes of a footer on one of its drives; nothing if they cannot be read there.
    async fn read_pages(&self, segment: u32, start: u32, len: usize) -> Result<Bytes, DriveError> {
        let Some(device) = self.device_of(segment) else { return Ok(Bytes::new()) };
        let offset = self.core.borrow().geometry.segment_start(segment) + u64::from(start);
        match device.read(offset, len).await {
            Err(DriveError::Io { .. }) => Ok(Bytes::new()),
            answered => answered,
        }
    }

    /// Tells of a segment whose index is in memory: an open one, or one whose footer is harmed. Returns whether it is.
    fn tell_from_memory(&self, owner: &dyn Owner, segment: u32, lap: u64) -> bool {
        let heads: Vec<RunHead> = {
            let core = self.core.borrow();
            let Some(index) = core.catalog.index_of(segment, lap) else { return false };
            index.runs().map(|(head, blob)| head.to_head(blob)).collect()
        };
        heads.iter().for_each(|head| self.place(owner, &head.view(), segment, lap));
        true
    }
}

/// The pages of a footer in pieces that one request reads: they lie one after the other.
fn pieces(directory: &Directory) -> Vec<Range<usize>> {
    let mut pieces: Vec<Range<usize>> = Vec::new();
    let mut bytes = 0;
    for (index, page) in directory.pages.iter().enumerate() {
        bytes += page.bytes as usize;
        let follows = index.checked_sub(1).is_some_and(|before| {
            let before = &directory.pages[before];
            before.offset + before.bytes == page.offset
        });
        match pieces.last_mut() {
            Some(piece) if follows && bytes <= SCAN_IO_BYTES => piece.end = index + 1,
            _ => {
                pieces.push(index..index + 1);
                bytes = page.bytes as usize;
            }
        }
    }
    pieces
}
