//! An open of a chain whose keys are versioned: its owner is told of every record on the drives, footer by footer, the latest first.
//!
//! Footers come from the metadata drive where there is one, else from the chain's drives; what is harmed there is made again from the
//! groups.

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::drive::{DriveError, DriveFuture};
use ithaca_env::limits::DRIVE_IO_MAX_BYTES;

use super::Inner;
use crate::cache::{FooterPart, PartKey};
use crate::catalog::SegmentState;
use crate::error::{OpenError, ReadError};
use crate::format::{Directory, RunHead, add_records};
use crate::limits::{SCAN_IO_BYTES, SCAN_READS};
use crate::metadata::{FooterRead, Known};
use crate::owner::Owner;

/// Runs that an owner is told of together, of those in memory.
const TOLD_RUNS: usize = 512;

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
        let mut records = Vec::new();
        let mut pieces = pieces(directory).into_iter();
        let mut reads = VecDeque::new();
        loop {
            while reads.len() < SCAN_READS
                && let Some(piece) = pieces.next()
            {
                let pages = &directory.pages[piece.clone()];
                let len = pages.iter().map(|page| page.bytes as usize).sum();
                let read = PieceRead::start(self, known, (segment, lap), pages[0].offset, len);
                reads.push_back((piece, read));
            }
            let Some((piece, read)) = reads.pop_front() else { return Ok(true) };
            let bytes = read.finish(self).await?;
            let mut at = 0;
            for (page, index) in directory.pages[piece.clone()].iter().zip(piece) {
                let end = at + page.bytes as usize;
                let is_told = bytes.get(at..end).is_some_and(|bytes| {
                    let is_same = bytes[4..8] == page.checksum.to_le_bytes();
                    is_same && add_records(bytes, segment, lap, &mut records).is_ok()
                });
                if !is_told {
                    records.clear();
                    let key = PartKey { segment, lap, page: Some(index as u32) };
                    let parts = self.load_footer_part(key, 0).await?;
                    let Some((_, FooterPart::Page(view))) = parts.into_iter().next() else {
                        return Ok(false);
                    };
                    (0..view.run_count())
                        .for_each(|run| records.extend(view.head(run).records(segment, lap)));
                }
                self.place_all(owner, &mut records);
                at = end;
            }
        }
    }

    /// Tells of a segment whose index is in memory: an open one, or one whose footer is harmed. Returns whether it is.
    fn tell_from_memory(&self, owner: &dyn Owner, segment: u32, lap: u64) -> bool {
        let heads: Vec<RunHead> = {
            let core = self.core.borrow();
            let Some(index) = core.catalog.index_of(segment, lap) else { return false };
            index.runs().map(|(head, blob)| head.to_head(blob)).collect()
        };
        let mut records = Vec::new();
        for some in heads.chunks(TOLD_RUNS) {
            some.iter().for_each(|head| records.extend(head.view().records(segment, lap)));
            self.place_all(owner, &mut records);
        }
        true
    }
}

/// Pages that are being read: of the metadata drive, or of a drive of the chain.
struct PieceRead {
    metadata: Option<FooterRead>,
    chain: Option<DriveFuture<Bytes>>,
    segment: u32,
    start: u32,
    len: usize,
}

impl PieceRead {
    fn start(inner: &Inner, known: &Known, (segment, lap): (u32, u64), start: u32, len: usize) -> Self {
        let metadata = known.footer(segment, lap, start, len);
        let mut read = Self { metadata, chain: None, segment, start, len };
        if read.metadata.is_none() {
            read.chain = read.ask_chain(inner);
        }
        read
    }

    fn ask_chain(&self, inner: &Inner) -> Option<DriveFuture<Bytes>> {
        let geometry = inner.core.borrow().geometry;
        let is_inside = u64::from(self.start) + self.len as u64 <= geometry.segment_bytes;
        let device = inner.device_of(self.segment).filter(|_| is_inside && self.len <= DRIVE_IO_MAX_BYTES)?;
        Some(device.read(geometry.segment_start(self.segment) + u64::from(self.start), self.len))
    }

    /// What was read; nothing if it cannot be read at once.
    async fn finish(mut self, inner: &Inner) -> Result<Bytes, DriveError> {
        if let Some(metadata) = self.metadata.take() {
            if let Some(bytes) = metadata.await {
                return Ok(bytes);
            }
            self.chain = self.ask_chain(inner);
        }
        let Some(chain) = self.chain else { return Ok(Bytes::new()) };
        match chain.await {
            Err(DriveError::Io { .. }) => Ok(Bytes::new()),
            answered => answered,
        }
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
