//! The footers of closed segments, once more on a metadata drive, in the order in which the segments were filled.
//!
//! An entry is written when its segment is closed: when the trailer is durable, behind everything that it speaks of. Of a log
//! segment what was written is kept in memory until then; the rest, and what is missing after an open, is read from the
//! chain's drives, gently.

use std::collections::BTreeSet;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::drive::{Drive, DriveError};
use ithaca_env::limits::BLOCK_BYTES;

use super::Inner;
use crate::catalog::SegmentState;
use crate::core::Io;
use crate::format::{Directory, PageEntry, Trailer};
use crate::limits::SCAN_IO_BYTES;
use crate::metadata::Known;
use crate::planted::PlantedBug;
use crate::recover::{read_directory, read_lenient};

/// A segment in one of its uses.
type Use = (u32, u64);

impl Inner {
    /// Forgets the entries that an open did not believe: the segments are mirrored again, or are free.
    pub(super) fn settle_metadata(&self, known: &Known) {
        let Some(share) = &self.metadata else { return };
        let core = self.core.borrow();
        share.retain(|segment, lap| {
            let closed = core.catalog.closed(segment);
            known.has(segment) && closed.is_some_and(|closed| closed.lap == lap)
        });
    }

    /// Keeps a part of a footer that is on its way to a segment, so that it need not be read again.
    pub(super) fn keep_footer(&self, segment: u32, bytes: &Bytes) {
        let Some(share) = &self.metadata else { return };
        if let Some(SegmentState::Open(open)) = self.core.borrow().catalog.space.get(segment) {
            share.keep_part(segment, open.lap, bytes);
        }
    }

    /// A write is done by which a segment may have been closed.
    pub(super) fn ring_mirror(&self, io: Io) {
        let Some(share) = &self.metadata else { return };
        let is_early = self.core.borrow().options.planted.is(PlantedBug::MetadataBeforeClose);
        if matches!(io, Io::Footer(_) | Io::Body(_)) || is_early {
            share.bell.ring();
        }
    }

    /// Starts the task that mirrors footers. It ends with the chain, and when the metadata drive fails.
    pub(super) fn spawn_mirror(self: &Rc<Self>) {
        let Some(share) = &self.metadata else { return };
        let (bell, weak) = (Rc::clone(&share.bell), Rc::downgrade(self));
        self.env.spawn(async move {
            // Footers that are harmed, or that there was no room for: not tried again before the next open.
            let mut given_up = BTreeSet::new();
            let mut closed_before = None;
            loop {
                let ticket = bell.ticket();
                let Some(inner) = weak.upgrade() else { return };
                let closed = inner.core.borrow().counters.segments_closed;
                if closed_before.replace(closed) != Some(closed) {
                    inner.free_entries();
                    for (segment, lap) in inner.to_mirror(&given_up) {
                        inner.mirror(segment, lap).await;
                        if !inner.has_entry(segment, lap) {
                            given_up.insert((segment, lap));
                        }
                    }
                }
                if !inner.is_mirroring() {
                    return;
                }
                inner.mirror_early().await;
                drop(inner);
                bell.after(ticket).await;
            }
        });
    }

    fn is_mirroring(&self) -> bool {
        self.check_running().is_ok() && self.metadata.as_ref().is_some_and(|share| share.is_used())
    }

    fn has_entry(&self, segment: u32, lap: u64) -> bool {
        self.metadata.as_ref().is_some_and(|share| share.has(segment, lap))
    }

    /// Gives back the slots of segments that are in another use.
    fn free_entries(&self) {
        let Some(share) = &self.metadata else { return };
        let core = self.core.borrow();
        let is_early = core.options.planted.is(PlantedBug::MetadataBeforeClose);
        share.retain(|segment, lap| {
            core.catalog.closed(segment).is_some_and(|closed| closed.lap == lap) || is_early
        });
    }

    /// Closed segments without an entry, in the order in which they were filled.
    fn to_mirror(&self, given_up: &BTreeSet<Use>) -> Vec<Use> {
        let core = self.core.borrow();
        let closed = core.catalog.all_closed().map(|(segment, closed)| (segment, closed.lap));
        let is_lacking = |it: &Use| !self.has_entry(it.0, it.1) && !given_up.contains(it);
        let mut lacking: Vec<Use> = closed.filter(is_lacking).collect();
        lacking.sort_unstable_by_key(|(_, lap)| *lap);
        lacking
    }

    /// Writes the entry of a closed segment. One that was recycled or whose footer is harmed gets none.
    async fn mirror(&self, segment: u32, lap: u64) {
        let (Some(share), true) = (&self.metadata, self.is_mirroring()) else { return };
        let kept = share.take_parts(segment, lap).and_then(|mut parts| {
            let trailer = Trailer::decode(&parts.pop()?).ok()?;
            Some((trailer, parts))
        });
        let footer = match kept {
            Some(kept) => Some(kept),
            None => {
                let began = self.env.now();
                let read = {
                    let _busy = self.busy.one_more();
                    self.read_footer(segment, lap).await
                };
                self.rest(began).await;
                read.unwrap_or_else(|error| {
                    tracing::warn!(%error, segment, "a footer cannot be read for the metadata drive");
                    None
                })
            }
        };
        let (Some((trailer, parts)), Some(device)) = (footer, self.device_of(segment)) else { return };
        let Some(on) = device.live().first().map(|side| side.id) else { return };
        if self.core.borrow().catalog.closed(segment).is_none_or(|closed| closed.lap != lap) {
            return;
        }
        assert_eq!((trailer.segment, trailer.lap), (segment, lap), "the trailer of what is closed");
        share.write(on, trailer, &parts).await;
    }

    /// Trailer and footer of a closed segment from one of its drives, if one has them whole.
    async fn read_footer(&self, segment: u32, lap: u64) -> Result<Option<(Trailer, Vec<Bytes>)>, DriveError> {
        let geometry = self.core.borrow().geometry;
        let Some(device) = self.device_of(segment) else { return Ok(None) };
        let start = geometry.segment_start(segment);
        for drive in device.in_turn() {
            let trailer_at = start + geometry.segment_bytes - BLOCK_BYTES as u64;
            let block = read_lenient(&drive, trailer_at, BLOCK_BYTES).await?;
            let Ok(trailer) = Trailer::decode(&block) else { continue };
            if (trailer.chain, trailer.segment, trailer.lap) != (self.identity.id, segment, lap) {
                continue;
            }
            let sides = std::slice::from_ref(&drive);
            let Some(directory) = read_directory(sides, geometry, &trailer).await? else {
                continue;
            };
            let at = start + u64::from(trailer.directory_offset);
            let encoded = read_lenient(&drive, at, trailer.directory_bytes as usize).await?;
            if !follow_each_other(&directory, trailer.directory_offset) {
                continue;
            }
            if let Some(mut parts) = read_pages(&drive, start, &directory).await? {
                parts.push(encoded);
                return Ok(Some((trailer, parts)));
            }
        }
        Ok(None)
    }

    /// Planted: what is full and waits to be closed is mirrored as far as it is durable now.
    async fn mirror_early(&self) {
        if !self.core.borrow().options.planted.is(PlantedBug::MetadataBeforeClose) {
            return;
        }
        let full = self.core.borrow().full_segments();
        for segment in full {
            let (Some(share), Some(device)) = (&self.metadata, self.device_of(segment)) else { continue };
            let (mut parts, closed) = self.core.borrow().encode_footer(segment, false);
            let (Some((_, trailer)), Some(side)) = (parts.pop_back(), device.live().pop()) else { continue };
            if share.has(segment, closed.lap) {
                continue;
            }
            let parts: Vec<Bytes> = parts.into_iter().map(|(_, part)| part).collect();
            if let Ok(trailer) = Trailer::decode(&trailer) {
                share.write(side.id, trailer, &parts).await;
            }
        }
    }
}

/// Whether pages and directory are one piece.
fn follow_each_other(directory: &Directory, directory_offset: u32) -> bool {
    let ends = directory.pages.iter().map(|page| u64::from(page.offset) + u64::from(page.bytes));
    let starts = directory.pages.iter().skip(1).map(|page| page.offset).chain([directory_offset]);
    ends.zip(starts).all(|(end, start)| end == u64::from(start))
}

/// The pages of a footer, a few in each part; `None` if one is harmed.
async fn read_pages(
    drive: &Drive,
    start: u64,
    directory: &Directory,
) -> Result<Option<Vec<Bytes>>, DriveError> {
    let mut parts = Vec::new();
    let mut pages = &directory.pages[..];
    while let Some(first) = pages.first() {
        let mut bytes = 0;
        let fits = |page: &&PageEntry| {
            bytes += page.bytes as usize;
            bytes <= SCAN_IO_BYTES
        };
        let count = pages.iter().take_while(fits).count().max(1);
        let (read, rest) = pages.split_at(count);
        let len = read.iter().map(|page| page.bytes as usize).sum();
        let part = read_lenient(drive, start + u64::from(first.offset), len).await?;
        if !read.iter().all(|page| page.is_whole(&part, first.offset)) {
            return Ok(None);
        }
        parts.push(part);
        pages = rest;
    }
    Ok(Some(parts))
}
