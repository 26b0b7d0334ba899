//! Reading parts of footers into the cache. A harmed footer is made again from the groups of its segment.

use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::drive::DriveError;

use super::FetchError;
use crate::cache::{FooterPart, PartKey};
use crate::catalog::{Lacking, SegmentIndex};
use crate::chain::Inner;
use crate::error::{Damage, DamageKind, ReadError};
use crate::format::{Directory, PageEntry, PageView};
use crate::recover::{Scan, ScanTarget, read_footer_part, scan_segment};

/// Parts of a footer as they were read, the one that was asked for first.
#[derive(Default)]
struct Loaded {
    parts: Vec<(PartKey, FooterPart)>,
    /// Why a side could not be read that may have it, if none was found to have it.
    unread: Option<DriveError>,
}

impl From<Vec<(PartKey, FooterPart)>> for Loaded {
    fn from(parts: Vec<(PartKey, FooterPart)>) -> Self {
        Self { parts, unread: None }
    }
}

/// What becomes of groups that may lie where a drive could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnreadGroups {
    /// Nobody knows: whoever needs them asks for them again.
    AskAgain,
    /// They count as lost until a scrub finds them: whoever asks for them would be told to ask again for ever.
    CountAsLost,
}

impl Inner {
    /// Reads the part, and further pages within `ahead_bytes`; puts them in the cache. Nothing comes back if the
    /// segment was recycled meanwhile, or if its footer had to be made again: look again.
    pub(crate) async fn load_footer_part(
        &self,
        key: PartKey,
        ahead_bytes: usize,
        unread: UnreadGroups,
    ) -> Result<Vec<(PartKey, FooterPart)>, ReadError> {
        let parts = self.load(key, ahead_bytes).await?.parts;
        if parts.is_empty() {
            self.rebuild(key.segment, key.lap, unread).await?;
        }
        Ok(parts)
    }

    /// The one part, from memory if it is there; nothing if the segment was recycled meanwhile, or if its footer is harmed on all sides.
    /// Errors: also where it cannot be read, which may pass. Nothing is made of the groups.
    pub(crate) async fn footer_part(
        &self,
        key: PartKey,
        ahead_bytes: usize,
    ) -> Result<Option<FooterPart>, ReadError> {
        let cached = self.footers.borrow_mut().get(key);
        if cached.is_some() {
            return Ok(cached);
        }
        let Loaded { parts, unread } = self.load(key, ahead_bytes).await?;
        match (parts.into_iter().next(), unread) {
            (Some((_, part)), _) => Ok(Some(part)),
            (None, Some(error)) => Err(error.into()),
            (None, None) => Ok(None),
        }
    }

    /// Reads the part, and further pages within `ahead_bytes`; puts them in the cache.
    async fn load(&self, key: PartKey, ahead_bytes: usize) -> Result<Loaded, DriveError> {
        let directory_key = PartKey { page: None, ..key };
        let cached = self.footers.borrow_mut().get(directory_key).filter(|_| key.page.is_some());
        let directory = match cached {
            Some(part) => vec![(directory_key, part)].into(),
            None => self.load_directory(directory_key).await?,
        };
        let loaded = match (key.page, directory.parts.first()) {
            (Some(page), Some((_, FooterPart::Directory(directory)))) => {
                self.load_pages(key, page as usize, directory, ahead_bytes).await?
            }
            _ => directory,
        };
        let mut footers = self.footers.borrow_mut();
        loaded.parts.iter().for_each(|(key, part)| footers.add(*key, part.clone()));
        Ok(loaded)
    }

    async fn load_directory(&self, key: PartKey) -> Result<Loaded, DriveError> {
        let place = {
            let core = self.core.borrow();
            let closed = core.catalog.closed(key.segment).filter(|closed| closed.lap == key.lap);
            closed.map(|it| {
                let start = core.geometry.segment_start(key.segment);
                (start, it.directory_offset, it.directory_bytes as usize, it.directory_checksum)
            })
        };
        let Some((start, in_segment, len, checksum)) = place else { return Ok(Loaded::default()) };
        let Some(device) = self.device_of(key.segment) else { return Ok(Loaded::default()) };
        let decode = |bytes: &Bytes| {
            let is_same = bytes.get(4..8) == Some(&checksum.to_le_bytes()[..]);
            Directory::decode(bytes, key.segment, key.lap).ok().filter(|_| is_same)
        };
        let cached = self.cached_footer(key, in_segment, len).await;
        if let Some(directory) = cached.as_ref().and_then(decode) {
            return Ok(vec![(key, FooterPart::Directory(Rc::new(directory)))].into());
        }
        let offset = start + u64::from(in_segment);
        let (mut is_harmed, mut unread) = (false, None);
        for drive in device.in_turn() {
            let (bytes, failure) = read_footer_part(&drive, offset, len).await?;
            if let Some(directory) = decode(&bytes) {
                if is_harmed {
                    self.mend_footer(key, offset, &bytes).await?;
                }
                self.offer_footer(key.segment, key.lap, in_segment, &bytes);
                return Ok(vec![(key, FooterPart::Directory(Rc::new(directory)))].into());
            }
            is_harmed = true;
            unread = unread.or(failure);
        }
        Ok(Loaded { parts: Vec::new(), unread })
    }

    /// Writes a part of a footer, as one side has it, to those that have not.
    async fn mend_footer(&self, key: PartKey, offset: u64, right: &Bytes) -> Result<(), DriveError> {
        match self.mend_blocks(key.segment, key.lap, offset, right).await {
            Err(FetchError::Read(ReadError::Drive(error))) => Err(error),
            _ => Ok(()),
        }
    }

    /// Pages lie one after the other, so several are one read.
    async fn load_pages(
        &self,
        key: PartKey,
        first: usize,
        directory: &Directory,
        ahead_bytes: usize,
    ) -> Result<Loaded, DriveError> {
        let mut pages: Vec<&PageEntry> = Vec::new();
        let mut bytes = 0;
        for page in directory.pages.iter().skip(first) {
            bytes += page.bytes as usize;
            if !pages.is_empty() && bytes > ahead_bytes {
                break;
            }
            pages.push(page);
        }
        let Some(start) = pages.first().map(|page| page.offset) else { return Ok(Loaded::default()) };
        let len: usize = pages.iter().map(|page| page.bytes as usize).sum();
        let geometry = self.core.borrow().geometry;
        if u64::from(start) + len as u64 > geometry.segment_bytes {
            return Ok(Loaded::default());
        }
        let Some(device) = self.device_of(key.segment) else { return Ok(Loaded::default()) };
        let cached = self.cached_footer(key, start, len).await;
        let parts = cached.map(|bytes| decode_pages(key, first, &pages, &bytes)).unwrap_or_default();
        if parts.len() == pages.len() {
            return Ok(parts.into());
        }
        let offset = geometry.segment_start(key.segment) + u64::from(start);
        let (mut is_harmed, mut best) = (false, Loaded::default());
        for drive in device.in_turn() {
            let (bytes, failure) = read_footer_part(&drive, offset, len).await?;
            let parts = decode_pages(key, first, &pages, &bytes);
            if parts.len() == pages.len() {
                if is_harmed {
                    self.mend_footer(key, offset, &bytes).await?;
                }
                self.offer_footer(key.segment, key.lap, start, &bytes);
                return Ok(parts.into());
            }
            is_harmed = true;
            best.unread = best.unread.or(failure);
            if parts.len() > best.parts.len() {
                best.parts = parts;
            }
        }
        Ok(best)
    }

    /// The groups of a closed segment, from all live sides; nothing if it is in another use by now.
    pub(crate) async fn scan_closed(&self, segment: u32, lap: u64) -> Result<Option<Scan>, DriveError> {
        let (geometry, options) = {
            let core = self.core.borrow();
            if !core.catalog.is_lap(segment, lap) {
                return Ok(None);
            }
            (core.geometry, core.options.clone())
        };
        let Some(device) = self.device_of(segment) else { return Ok(None) };
        let target = ScanTarget {
            sides: &device.live_drives(),
            geometry,
            chain: self.identity.id,
            segment,
            lap: Some(lap),
            options: &options,
        };
        scan_segment(&target).await.map(Some)
    }

    /// Makes the index of a closed segment from its groups, because its footer is harmed, and keeps it in memory. Where they hold fewer
    /// records than the segment does, the others are lost. Nothing if the segment is in another use by now. Errors: a side does not answer
    /// that may have them, or could not be read where they may be, unless that counts as lost.
    pub(crate) async fn rebuild(
        &self,
        segment: u32,
        lap: u64,
        unread: UnreadGroups,
    ) -> Result<(), ReadError> {
        let Some(device) = self.device_of(segment) else { return Ok(()) };
        let unanswered = device.unanswered(&device.live());
        let Some(scan) = self.scan_closed(segment, lap).await? else { return Ok(()) };
        let has_answered = device.unanswered(&device.live()) == unanswered;
        let (mut index, mut found) = (SegmentIndex::default(), 0);
        for group in &scan.groups {
            let count = |keys: Range<u64>| found += keys.end - keys.start;
            index.add_group(group.area.blob.clone(), &group.area.starts, count);
        }
        let mut core = self.core.borrow_mut();
        let segment_start = core.geometry.segment_start(segment);
        let catalog = &mut core.catalog;
        let Some(closed) = catalog.closed(segment).filter(|closed| closed.lap == lap) else { return Ok(()) };
        let records = closed.record_count.saturating_sub(found);
        let below = closed.ranges.last().map_or(0, |range| range.end);
        let lacking = (records > 0).then_some(Lacking { records, below });
        if lacking.is_some() && !has_answered {
            let (path, offset) = (device.name(), segment_start);
            let message = "a side does not answer, and no other has all of the segment".to_owned();
            return Err(DriveError::Io { path, operation: "read", offset, message }.into());
        }
        // No group begins in the directory.
        let block = scan.unread.filter(|block| block.offset < closed.directory_offset.into());
        if let Some(block) = block
            && lacking.is_some()
            && unread == UnreadGroups::AskAgain
        {
            return Err(block.error.into());
        }
        // Of two that lack some the better one counts.
        if catalog.lacking(lap).is_some_and(|before| before.records <= records) {
            return Ok(());
        }
        tracing::warn!(segment, lap, "the footer is harmed; its index was made again from the groups");
        if lacking.is_some() {
            tracing::error!(segment, lap, "records of the segment are lost");
        }
        catalog.add_rebuilt(segment, lap, index, lacking);
        let is_footer = |it: &Damage| it.segment == segment && it.kind == DamageKind::Footer;
        if !catalog.damage.iter().any(is_footer) {
            catalog.damage.push(Damage { segment, offset: 0, bytes: 0, kind: DamageKind::Footer });
        }
        Ok(())
    }
}

/// The pages that lie one after the other in `bytes`, up to the first that is harmed.
fn decode_pages(
    key: PartKey,
    first: usize,
    pages: &[&PageEntry],
    bytes: &Bytes,
) -> Vec<(PartKey, FooterPart)> {
    let start = pages.first().map_or(0, |page| page.offset);
    let mut parts = Vec::new();
    for (index, page) in pages.iter().enumerate() {
        let at = (page.offset - start) as usize;
        let Some(encoded) = bytes.get(at..at + page.bytes as usize) else { break };
        // Copied, so that a page that stays in the cache does not keep alive all that was read with it.
        let encoded = Bytes::copy_from_slice(encoded);
        let is_same = encoded[4..8] == page.checksum.to_le_bytes();
        let Ok(view) = PageView::decode(&encoded, key.segment, key.lap) else { break };
        if !is_same {
            break;
        }
        let key = PartKey { page: Some((first + index) as u32), ..key };
        parts.push((key, FooterPart::Page(Rc::new(view))));
    }
    parts
}
