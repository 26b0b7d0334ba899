//! Reading the groups of a segment that has no footer, whatever state a crash has left it in.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;
use ithaca_env::drive::{Drive, DriveError};
use ithaca_env::limits::BLOCK_BYTES;

use super::lenient::{LenientRead, Unread, read_lenient, start_lenient};
use super::merge::RecordPlace;
use crate::format::{GroupArea, GroupHead, peek_group};
use crate::limits::{SCAN_IO_BYTES, SCAN_READS};
use crate::options::{ChainId, ChainOptions, Geometry};
use crate::planted::PlantedBug;

/// A group whose head verifies.
pub(crate) struct ScannedGroup {
    pub(crate) head: GroupHead,
    pub(crate) area: GroupArea,
    /// Keys and data of records that do not match their checksums.
    pub(crate) bad: Vec<RecordPlace>,
    /// The first of those scanned that has its head.
    pub(crate) held_by: usize,
    /// The sides have not the same of it: what one lacks another may have.
    pub(crate) is_uneven: bool,
    /// Why a large piece with records of it cannot be read, if no side has it whole: that may pass.
    pub(crate) unread: Option<DriveError>,
}

impl ScannedGroup {
    pub(crate) fn end_offset(&self) -> u32 {
        self.head.identity.offset + self.head.layout.total_bytes() as u32
    }
}

/// What is in a segment.
pub(crate) struct Scan {
    pub(crate) segment: u32,
    pub(crate) lap: u64,
    /// No header showed, so the lap is that of its groups.
    pub(crate) is_headless: bool,
    /// In order. Bytes between two of them could not be read as a group.
    pub(crate) groups: Vec<ScannedGroup>,
    /// The first block between or behind them that a side could not read: a group may begin there.
    pub(crate) unread: Option<UnreadBlock>,
}

/// A block that could not be read, which may pass.
pub(crate) struct UnreadBlock {
    /// Byte in the segment.
    pub(crate) offset: u64,
    /// Why.
    pub(crate) error: DriveError,
}

impl Scan {
    fn new(segment: u32, lap: Option<u64>) -> Self {
        let is_headless = lap.is_none();
        Self { segment, lap: lap.unwrap_or(0), is_headless, groups: Vec::new(), unread: None }
    }
}

/// Which segment, and what is known of it.
pub(crate) struct ScanTarget<'a> {
    /// The live sides of its link.
    pub(crate) sides: &'a [Drive],
    pub(crate) geometry: Geometry,
    pub(crate) chain: ChainId,
    pub(crate) segment: u32,
    /// Its lap; `None` if its header cannot be read: then its first group's counts.
    pub(crate) lap: Option<u64>,
    pub(crate) options: &'a ChainOptions,
}

/// A part of the segment in memory, read on in large pieces, some of them in advance.
struct Window<'a> {
    drive: &'a Drive,
    segment_start: u64,
    segment_bytes: u64,
    start: u64,
    bytes: Bytes,
    /// Pieces behind it that are on their way, and where the one after them begins.
    ahead: VecDeque<LenientRead>,
    next: u64,
    /// The pieces of which not all could be read, and what of them.
    failed: Vec<(Range<u64>, Unread)>,
}

impl<'a> Window<'a> {
    fn new(target: &ScanTarget<'_>, drive: &'a Drive) -> Self {
        Self {
            drive,
            segment_start: target.geometry.segment_start(target.segment),
            segment_bytes: target.geometry.segment_bytes,
            start: 0,
            bytes: Bytes::new(),
            ahead: VecDeque::new(),
            next: 0,
            failed: Vec::new(),
        }
    }

    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Why nothing can be read of a piece with some of these bytes, which were asked for, if there is one.
    fn failure(&self, bytes: &Range<u64>) -> Option<&DriveError> {
        let mut failed = self.failed.iter();
        let (_, unread) = failed.find(|(piece, unread)| {
            let blocks = (piece.end - piece.start) as usize / BLOCK_BYTES;
            unread.is_all_of(blocks) && piece.start < bytes.end && bytes.start < piece.end
        })?;
        Some(&unread.error)
    }

    /// Why the block at `offset`, which was asked for, cannot be read, if it cannot.
    fn unread(&self, offset: u64) -> Option<&DriveError> {
        let mut failed = self.failed.iter();
        let (_, unread) = failed.find(|(piece, unread)| {
            let block = || (offset - piece.start) as usize / BLOCK_BYTES;
            piece.contains(&offset) && unread.blocks.contains(&block())
        })?;
        Some(&unread.error)
    }

    /// The bytes `[offset, offset + len)` of the segment; they lie within it. Blocks that cannot be read are passed by, and bytes that no
    /// decoder takes stand for them: a piece is not asked for again at each block of it. Errors: others than failed reads.
    async fn get(&mut self, offset: u64, len: usize) -> Result<Bytes, DriveError> {
        if offset < self.start || offset > self.end() {
            self.ahead.clear();
            (self.start, self.bytes, self.next) = (offset, Bytes::new(), offset);
        }
        while self.end() < offset + len as u64 {
            while self.ahead.len() < SCAN_READS && self.next < self.segment_bytes {
                let piece = (self.segment_bytes - self.next).min(SCAN_IO_BYTES as u64);
                self.ahead.push_back(start_lenient(
                    self.drive,
                    self.segment_start + self.next,
                    piece as usize,
                ));
                self.next += piece;
            }
            let piece = self.ahead.pop_front().expect("the segment goes on");
            let (more, unread) = piece.finish_in_blocks().await?;
            let bytes = self.end()..self.end() + more.len() as u64;
            self.failed.extend(unread.map(|unread| (bytes, unread)));
            let kept = self.bytes.slice((offset - self.start).min(self.bytes.len() as u64) as usize..);
            self.start = self.end() - kept.len() as u64;
            self.bytes = if kept.is_empty() { more } else { [kept, more].concat().into() };
        }
        let from = (offset - self.start) as usize;
        Ok(self.bytes.slice(from..from + len))
    }
}

/// Reads every group of the segment that any of the sides has. Where there is none it looks on block by block: what
/// follows tells whether that is the end or damage. Errors: a large piece in which a group may begin cannot be read on any side: that may
/// pass. Errors that are no failed reads.
pub(crate) async fn scan_segment(target: &ScanTarget<'_>) -> Result<Scan, DriveError> {
    let mut windows: Vec<Window<'_>> = target.sides.iter().map(|drive| Window::new(target, drive)).collect();
    let end = target.geometry.segment_bytes - BLOCK_BYTES as u64;
    let mut scan = Scan::new(target.segment, target.lap);
    let mut at = BLOCK_BYTES as u64;
    while at < end {
        let mut found = Vec::new();
        for (side, window) in windows.iter_mut().enumerate() {
            let group = group_at(target, &scan, window, at, end).await?;
            found.extend(group.map(|group| ScannedGroup { held_by: side, ..group }));
        }
        let mut group = best(found, windows.len());
        let asked = at..group.as_ref().map_or(at + BLOCK_BYTES as u64, |group| group.end_offset().into());
        let failures: Vec<&DriveError> = windows.iter().filter_map(|window| window.failure(&asked)).collect();
        let unread = failures.first().filter(|_| failures.len() == windows.len()).copied().cloned();
        match &mut group {
            Some(group) if !group.bad.is_empty() => group.unread = unread,
            Some(_) => {}
            None => {
                unread.map_or(Ok(()), Err)?;
                let error = windows.iter().find_map(|window| window.unread(at)).cloned();
                scan.unread = scan.unread.or(error.map(|error| UnreadBlock { offset: at, error }));
            }
        }
        if let Some(group) = group {
            scan.lap = group.head.identity.lap;
            scan.groups.push(group);
        }
        at = asked.end;
    }
    Ok(scan)
}

/// The group that holds this byte of the segment, as the first side has it on which its head is well; `None` if there is none. Errors:
/// others than failed reads.
pub(crate) async fn group_around(
    target: &ScanTarget<'_>,
    byte: u32,
) -> Result<Option<ScannedGroup>, DriveError> {
    for drive in target.sides {
        match group_back_from(target, drive, byte).await {
            Ok(None) | Err(DriveError::Io { .. }) => {}
            found => return found,
        }
    }
    Ok(None)
}

/// Looks for its head, which is the last one that does not begin behind the byte.
async fn group_back_from(
    target: &ScanTarget<'_>,
    drive: &Drive,
    byte: u32,
) -> Result<Option<ScannedGroup>, DriveError> {
    let (block, segment_start) = (BLOCK_BYTES as u64, target.geometry.segment_start(target.segment));
    let groups_end = target.geometry.segment_bytes - block;
    let nothing = Scan::new(target.segment, None);
    let mut end = (u64::from(byte) / block + 1) * block;
    while end > block {
        let start = end.saturating_sub(SCAN_IO_BYTES as u64).max(block);
        let bytes = read_lenient(drive, segment_start + start, (end - start) as usize).await?;
        for from in (0..bytes.len()).step_by(BLOCK_BYTES).rev() {
            let at = start + from as u64;
            let head = peek_group(&bytes[from..from + BLOCK_BYTES]).ok();
            let Some(head) = head.filter(|head| is_expected(target, &nothing, head, at, groups_end)) else {
                continue;
            };
            let len = head.layout.total_bytes();
            if at + len as u64 <= u64::from(byte) {
                return Ok(None);
            }
            return Ok(verify(head, &read_lenient(drive, segment_start + at, len).await?, target.options));
        }
        end = start;
    }
    Ok(None)
}

/// The group that one side has at this place. Errors: of its drive, others than failed reads.
async fn group_at(
    target: &ScanTarget<'_>,
    scan: &Scan,
    window: &mut Window<'_>,
    at: u64,
    end: u64,
) -> Result<Option<ScannedGroup>, DriveError> {
    let block = window.get(at, BLOCK_BYTES).await?;
    let head = peek_group(&block).ok().filter(|head| is_expected(target, scan, head, at, end));
    let Some(head) = head else { return Ok(None) };
    let image = window.get(at, head.layout.total_bytes()).await?;
    Ok(verify(head, &image, target.options))
}

/// Of what the sides have at one place, the group that was written last. A record of it is bad if no side has it.
fn best(found: Vec<ScannedGroup>, sides: usize) -> Option<ScannedGroup> {
    let age = |group: &ScannedGroup| (group.head.identity.incarnation, group.head.identity.seq);
    let newest = found.iter().map(age).max()?;
    let same: Vec<_> = found.into_iter().filter(|group| age(group) == newest).collect();
    let is_uneven = same.len() < sides || same.windows(2).any(|pair| pair[0].bad != pair[1].bad);
    let mut same = same.into_iter();
    let mut best = same.next()?;
    same.for_each(|group| best.bad.retain(|bad| group.bad.contains(bad)));
    best.is_uneven = is_uneven;
    Some(best)
}

/// Whether a group that says this of itself belongs here, after the groups found before it.
fn is_expected(target: &ScanTarget<'_>, scan: &Scan, head: &GroupHead, at: u64, end: u64) -> bool {
    let identity = &head.identity;
    let is_here = identity.chain == target.chain
        && identity.segment == target.segment
        && u64::from(identity.offset) == at
        && at + head.layout.total_bytes() as u64 <= end;
    let known_lap = target.lap.or(scan.groups.last().map(|_| scan.lap));
    let is_lap = known_lap.is_none_or(|lap| lap == identity.lap)
        || target.options.planted.is(PlantedBug::StaleLapAccepted);
    let is_later = scan.groups.last().is_none_or(|before| {
        let before = &before.head.identity;
        // One of a lower incarnation was cut by a recovery, which then wrote what stands before it.
        let is_fenced_off = identity.incarnation < before.incarnation;
        identity.seq > before.seq
            && (!is_fenced_off || target.options.planted.is(PlantedBug::StaleIncarnationAccepted))
    });
    is_here && is_lap && (is_later || target.options.planted.is(PlantedBug::StaleLapAccepted))
}

fn verify(head: GroupHead, image: &Bytes, options: &ChainOptions) -> Option<ScannedGroup> {
    // A copy, so that the heads that stay in memory do not keep whole images there.
    let head_bytes = Bytes::copy_from_slice(image.get(..head.layout.head_bytes)?);
    let area = head.decode_area(&head_bytes).ok()?;
    let mut bad = Vec::new();
    if !options.planted.is(PlantedBug::RecoverySkipsChecksum) {
        for run in &area.runs {
            let start = (run.data_offset - head.identity.offset) as usize;
            let data = image.get(start..start + run.data_bytes as usize)?;
            find_bad(run, data, &mut bad);
        }
    }
    Some(ScannedGroup { head, area, bad, held_by: 0, is_uneven: false, unread: None })
}

/// Adds the records of `run` that do not match their checksums.
fn find_bad(run: &crate::format::RunHead, data: &[u8], bad: &mut Vec<RecordPlace>) {
    if run.table.first_mismatch(data).is_none() {
        return;
    }
    let mut at = 0;
    for (index, entry) in run.table.entries().enumerate() {
        let end = at + entry.len as usize;
        if data.get(at..end).is_none_or(|record| crc32c::crc32c(record) != entry.checksum) {
            let key = run.first_key + index as u64;
            bad.push((key..key + 1, run.data_offset + at as u32..run.data_offset + end as u32));
        }
        at = end;
    }
}
