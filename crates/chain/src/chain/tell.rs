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
use crate::error::{Damage, OpenError, ReadError};
use crate::format::{Directory, RunHead, add_records};
use crate::limits::{REFUSED_REST, SCAN_IO_BYTES, SCAN_READS};
use crate::metadata::{FooterRead, Known};
use crate::owner::Owner;
use crate::read::{UnreadGroups, is_refusal};

/// Runs that an owner is told of together, of those in memory.
const TOLD_RUNS: usize = 512;

impl Inner {
    /// Tells the owner of every record on the drives.
    pub(super) async fn tell_owner_of_all(&self, known: &Known) -> Result<(), OpenError> {
        let Some(owner) = self.owner.clone() else { return Ok(()) };
        let mut segments: Vec<(u32, u64, u64)> = {
            let core = self.core.borrow();
            let held = |state: &SegmentState| match state {
                SegmentState::Open(open) => Some((open.lap, open.record_count)),
                SegmentState::Closed(closed) => Some((closed.lap, closed.record_count)),
                SegmentState::Ready | SegmentState::Next | SegmentState::Raw | SegmentState::Preparing => {
                    None
                }
            };
            let segments = core.catalog.space.iter();
            segments.filter_map(|(segment, state)| held(state).map(|it| (segment, it.0, it.1))).collect()
        };
        // Copies before what they are of: an owner that keeps the first place of a version needs no second copy.
        segments.sort_by_key(|(_, lap, _)| std::cmp::Reverse(*lap));
        for (segment, lap, records) in segments {
            let told = match self.tell_of_segment(&*owner, segment, lap, known).await {
                Ok(told) => told,
                Err(ReadError::Drive(error)) => return Err(error.into()),
                Err(ReadError::Damaged { .. }) => 0,
            };
            if told < records {
                self.note_untold((segment, lap), told, records);
            }
        }
        Ok(())
    }

    /// Footer and groups of a segment are harmed, so that the owner does not know of all that it holds: what it takes for the newest
    /// version of a key may be an older one, also when the chain can read them later.
    fn note_untold(&self, (segment, lap): (u32, u64), told: u64, records: u64) {
        tracing::warn!(segment, told, records, "records of a segment cannot be told of");
        let catalog = &mut self.core.borrow_mut().catalog;
        catalog.settle_short(lap);
        let damage = Damage::of_some_groups(segment);
        if !catalog.damage.contains(&damage) {
            catalog.damage.push(damage);
        }
    }

    /// Returns how many records it was told of.
    async fn tell_of_segment(
        &self,
        owner: &dyn Owner,
        segment: u32,
        lap: u64,
        known: &Known,
    ) -> Result<u64, ReadError> {
        loop {
            if let Some(told) = self.tell_from_memory(owner, segment, lap) {
                return Ok(told);
            }
            let directory = match known.directory(segment, lap).await {
                Some(directory) => Rc::new(directory),
                None => {
                    let parts = self.load_patiently(PartKey { segment, lap, page: None }).await?;
                    // Made again from the groups: it is in memory now.
                    let Some((_, FooterPart::Directory(directory))) = parts.into_iter().next() else {
                        continue;
                    };
                    directory
                }
            };
            if let Some(told) = self.tell_of_pages(owner, (segment, lap), &directory, known).await? {
                return Ok(told);
            }
        }
    }

    /// Tells of all pages of a footer, and returns of how many records that was. Nothing if the index of the segment is in memory by now,
    /// because a page is harmed.
    async fn tell_of_pages(
        &self,
        owner: &dyn Owner,
        (segment, lap): (u32, u64),
        directory: &Directory,
        known: &Known,
    ) -> Result<Option<u64>, ReadError> {
        let (mut records, mut told) = (Vec::new(), 0);
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
            let Some((piece, read)) = reads.pop_front() else { return Ok(Some(told)) };
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
                    let parts = self.load_patiently(key).await?;
                    let Some((_, FooterPart::Page(view))) = parts.into_iter().next() else {
                        return Ok(None);
                    };
                    (0..view.run_count())
                        .for_each(|run| records.extend(view.head(run).records(segment, lap)));
                }
                told += records.len() as u64;
                self.place_all(owner, &mut records);
                at = end;
            }
        }
    }

    /// A part of a footer, which is asked for again while a drive takes no more reads. A block that cannot be read fails no open: what it may
    /// have held is named.
    async fn load_patiently(&self, key: PartKey) -> Result<Vec<(PartKey, FooterPart)>, ReadError> {
        loop {
            match self.load_footer_part(key, 0, UnreadGroups::CountAsLost).await {
                Err(ReadError::Drive(error)) if is_refusal(&error) => self.env.sleep(REFUSED_REST).await,
                answered => return answered,
            }
        }
    }

    /// Tells of a segment whose index is in memory: an open one, or one whose footer is harmed. Returns of how many records that was;
    /// nothing if it is not in memory.
    fn tell_from_memory(&self, owner: &dyn Owner, segment: u32, lap: u64) -> Option<u64> {
        let heads: Vec<RunHead> = {
            let core = self.core.borrow();
            let index = core.catalog.index_of(segment, lap)?;
            index.runs().map(|(head, blob)| head.to_head(blob)).collect()
        };
        let (mut records, mut told) = (Vec::new(), 0);
        for some in heads.chunks(TOLD_RUNS) {
            some.iter().for_each(|head| records.extend(head.view().records(segment, lap)));
            told += records.len() as u64;
            self.place_all(owner, &mut records);
        }
        Some(told)
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
        while let Some(chain) = self.chain.take() {
            match chain.await {
                Err(DriveError::Io { .. }) => break,
                Err(error) if is_refusal(&error) => {
                    inner.env.sleep(REFUSED_REST).await;
                    self.chain = self.ask_chain(inner);
                }
                answered => return answered,
            }
        }
        Ok(Bytes::new())
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
