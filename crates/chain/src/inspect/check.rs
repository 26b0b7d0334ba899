//! Reads everything that a chain holds and verifies every checksum.

use bytes::Bytes;
use ithaca_env::drive::Drive;
use ithaca_env::limits::BLOCK_BYTES;

use crate::error::{Damage, DamageKind, OpenError};
use crate::format::{Directory, PageView, Superblock, Trailer};
use crate::limits::{SUPERBLOCK_COPIES, SUPERBLOCK_STRIDE_BYTES};
use crate::options::{ChainOptions, Geometry, Identity};
use crate::recover::{
    Frame, Scan, ScanTarget, read_directory, read_frames, read_lenient, read_superblock, recover,
    scan_segment,
};

/// What a check found. The chain is well if `damage` is empty and all superblock copies are good.
#[derive(Clone, Debug)]
pub struct CheckReport {
    /// Whose chain it is.
    pub identity: Identity,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Good copies of the superblock, of four.
    pub superblock_copies: usize,
    /// Segments that are free.
    pub segments_free: u64,
    /// Segments without a footer that hold groups.
    pub segments_open: u64,
    /// Segments with a footer.
    pub segments_closed: u64,
    /// Groups that were read.
    pub groups: u64,
    /// Records that were read, released ones in segments that are not free included.
    pub records: u64,
    /// Their data, in bytes.
    pub data_bytes: u64,
    /// Groups behind the end of the log, which the next open will cut: they were never acknowledged.
    pub cut_groups: u64,
    /// What is harmed.
    pub damage: Vec<Damage>,
}

/// Reads every block that a chain uses and verifies it. Writes nothing; the drive may be open for reading only. Groups
/// of the open segments are checked against the end of the log as the next open would find it.
///
/// Errors: those of an open; a chain that cannot be opened cannot be checked.
pub async fn check(drive: &Drive) -> Result<CheckReport, OpenError> {
    let superblock = read_superblock(drive).await?;
    let geometry = Geometry::new(superblock.segment_bytes);
    let options = ChainOptions { segment_bytes: superblock.segment_bytes, ..ChainOptions::default() };
    let recovered = recover(drive, &superblock, geometry, &options).await?.recovered;
    let mut report = CheckReport {
        identity: superblock.identity.clone(),
        segment_bytes: superblock.segment_bytes,
        superblock_copies: good_copies(drive, &superblock).await?,
        segments_free: 0,
        segments_open: 0,
        segments_closed: 0,
        groups: 0,
        records: 0,
        data_bytes: 0,
        cut_groups: recovered.cut_groups,
        damage: recovered.damage,
    };
    let chain = superblock.identity.id;
    let segments = geometry.segments_in(drive.size_bytes());
    let frames = read_frames(drive, geometry, chain, segments).await?;
    for (segment, frame) in frames.into_iter().enumerate() {
        let segment = segment as u32;
        let lap = match &frame {
            Frame::Blank | Frame::Ready { .. } => {
                report.segments_free += 1;
                continue;
            }
            Frame::Open { lap } => *lap,
            Frame::Closed { trailer, .. } => Some(trailer.lap),
        };
        let target = ScanTarget { drive, geometry, chain, segment, lap, options: &options };
        let scan = scan_segment(&target).await?;
        report.count(&scan);
        match frame {
            Frame::Closed { trailer, .. } => {
                report.segments_closed += 1;
                report.closed_groups(&trailer, &scan);
                if !is_footer_good(drive, geometry, &trailer).await? {
                    report.add(Damage {
                        segment,
                        offset: trailer.directory_offset,
                        bytes: trailer.directory_bytes,
                        kind: DamageKind::Footer,
                    });
                }
            }
            _ if scan.groups.is_empty() => report.segments_free += 1,
            _ => report.segments_open += 1,
        }
    }
    Ok(report)
}

async fn good_copies(drive: &Drive, superblock: &Superblock) -> Result<usize, OpenError> {
    let mut good = 0;
    for copy in 0..SUPERBLOCK_COPIES {
        let block = read_lenient(drive, (copy * SUPERBLOCK_STRIDE_BYTES) as u64, BLOCK_BYTES).await?;
        good += usize::from(Superblock::decode(&block).as_ref() == Ok(superblock));
    }
    Ok(good)
}

/// Whether the directory and every page of a footer verify.
async fn is_footer_good(drive: &Drive, geometry: Geometry, trailer: &Trailer) -> Result<bool, OpenError> {
    let Some(directory) = read_directory(drive, geometry, trailer).await? else { return Ok(false) };
    let mut runs = 0;
    for page in &directory.pages {
        if u64::from(page.offset) + u64::from(page.bytes) > geometry.segment_bytes {
            return Ok(false);
        }
        let offset = geometry.segment_start(trailer.segment) + u64::from(page.offset);
        let bytes: Bytes = read_lenient(drive, offset, page.bytes as usize).await?;
        let Ok(view) = PageView::decode(&bytes, trailer.segment, trailer.lap) else { return Ok(false) };
        runs += view.run_count() as u64;
    }
    let Directory { holes, .. } = directory;
    Ok(runs == trailer.run_count && holes.len() == trailer.hole_count as usize)
}

impl CheckReport {
    fn count(&mut self, scan: &Scan) {
        for group in &scan.groups {
            self.groups += 1;
            self.records += group.area.runs.iter().map(|run| run.table.count() as u64).sum::<u64>();
            self.data_bytes += group.area.runs.iter().map(|run| u64::from(run.data_bytes)).sum::<u64>();
        }
    }

    fn add(&mut self, damage: Damage) {
        if !self.damage.contains(&damage) {
            self.damage.push(damage);
        }
    }

    /// In a closed segment every group from the first to the last must be there, with all its data.
    fn closed_groups(&mut self, trailer: &Trailer, scan: &Scan) {
        let segment = trailer.segment;
        let mut expected = trailer.first_seq;
        let mut end = BLOCK_BYTES as u32;
        let mut lost = |seqs: std::ops::Range<u64>, from: u32, to: u32| {
            if !seqs.is_empty() {
                let bytes = to.saturating_sub(from);
                self.add(Damage { segment, offset: from, bytes, kind: DamageKind::Groups { seqs } });
            }
        };
        for group in &scan.groups {
            let identity = &group.head.identity;
            lost(expected..identity.seq, end, identity.offset);
            expected = identity.seq + 1;
            end = group.end_offset();
        }
        lost(expected..trailer.last_seq + 1, end, trailer.end_offset);
        for (keys, bytes) in scan.groups.iter().flat_map(|group| &group.bad) {
            let kind = DamageKind::Data { keys: keys.clone() };
            self.add(Damage { segment, offset: bytes.start, bytes: bytes.end - bytes.start, kind });
        }
    }
}
