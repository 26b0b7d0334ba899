//! Reads everything that a chain holds and verifies every checksum.

use std::collections::BTreeMap;

use ithaca_env::drive::{Drive, DriveError};
use ithaca_env::limits::BLOCK_BYTES;

use crate::error::{Damage, DamageKind, OpenError};
use crate::format::{Directory, PageView, Superblock, Trailer};
use crate::limits::{SUPERBLOCK_COPIES, SUPERBLOCK_STRIDE_BYTES};
use crate::links::{Drives, link_of};
use crate::membership::{DriveId, SideState};
use crate::metadata::Known;
use crate::options::{ChainOptions, Geometry, Identity};
use crate::recover::{
    Frame, Scan, ScanTarget, UnreadEnd, read_directory, read_footer_part, read_frames, read_lenient,
    read_superblock, recover, scan_segment,
};
use crate::registry::Registry;
use crate::roster::gather;

/// What a check found. The chain is well if `damage` is empty and all superblock copies are good.
#[derive(Clone, Debug)]
pub struct CheckReport {
    /// Whose chain it is.
    pub identity: Identity,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Each drive, in the order of the chain.
    pub drives: Vec<DriveReport>,
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
    /// What is harmed, on any drive.
    pub damage: Vec<Damage>,
    /// Whether the releases and the owner's state are certainly the latest; see [`Recovered`](crate::Recovered).
    pub is_control_certain: bool,
    /// Sides of mirrored links that were not given. (Without a side that has everything a chain cannot be checked.)
    pub missing: usize,
}

/// Which chain a drive belongs to, by its superblock; `None` if it is blank. Writes nothing.
///
/// Errors: `SuperblockLost`, `NewerFormat`, `Drive`.
pub async fn identify(drive: &Drive) -> Result<Option<Identity>, OpenError> {
    match read_superblock(drive).await {
        Ok((superblock, _)) => Ok(Some(superblock.identity)),
        Err(OpenError::NotAChain { .. } | OpenError::TooSmall { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A drive of a chain, and what is on it.
#[derive(Clone, Debug)]
pub struct DriveReport {
    /// Its path.
    pub drive: String,
    /// Which drive it is.
    pub id: DriveId,
    /// Its link; drives of the same link are sides that hold the same.
    pub link: u32,
    /// Whether it has everything that was acknowledged. A stale one is not looked at.
    pub state: SideState,
    /// Good copies of the superblock, of four.
    pub superblock_copies: usize,
    /// Segments it has.
    pub segments: u64,
    /// Segments that are free.
    pub segments_free: u64,
    /// Segments that hold groups.
    pub segments_live: u64,
    /// What is harmed on it; see [`CheckReport::is_elsewhere`].
    pub damage: Vec<Damage>,
    /// Whether the log goes on on it.
    pub is_tail: bool,
}

/// Reads every block that a chain uses and verifies it. Writes nothing; the drives, all of the chain's in
/// any order, may be open for reading only. Groups of the open segments are checked against the end of the log as the next open would find it.
///
/// Errors: those of an open; a chain that cannot be opened cannot be checked.
pub async fn check(drives: impl Into<Drives>) -> Result<CheckReport, OpenError> {
    let roster = gather(&drives.into(), &ChainOptions::default(), false, Drive::clone).await?;
    let geometry = Geometry::new(roster.segment_bytes());
    let options = ChainOptions { segment_bytes: roster.segment_bytes(), ..ChainOptions::default() };
    let chain = roster.identity().id;
    let registry = Registry::new(roster.clone(), options.clone());
    let links = roster.links(&registry);
    let reopened =
        recover(&links, chain, geometry, roster.keys(), &options, &Known::default(), UnreadEnd::IsLost)
            .await?;
    let recovered = reopened.recovered;
    let tail = reopened.resume.cursor.map(|cursor| link_of(cursor.segment));
    let empty = CheckReport::empty(roster.identity(), geometry);
    let mut report = CheckReport {
        cut_groups: recovered.cut_groups,
        damage: recovered.damage,
        is_control_certain: recovered.is_control_certain,
        missing: roster.missing(),
        ..empty.clone()
    };
    let mut found: BTreeMap<u32, CheckReport> = BTreeMap::new();
    for it in &roster.drives {
        let Some(member) = roster.membership.member(it.id()) else { continue };
        let mut own = empty.clone();
        let mut segments = 0;
        // Nothing on a stale side counts.
        if registry.is_live(it.id()) {
            let count = geometry.segments_in(it.drive.size_bytes());
            let frames =
                read_frames(&it.drive, member.link, count, geometry, chain, &Known::default()).await?;
            segments = frames.len() as u64;
            let sides = std::slice::from_ref(&it.drive);
            for (segment, frame) in frames {
                let target = ScanTarget { sides, geometry, chain, segment, lap: None, options: &options };
                own.segment(frame, target).await?;
            }
        }
        report.drives.push(DriveReport {
            drive: it.drive.name(),
            id: it.id(),
            link: member.link,
            state: member.state,
            superblock_copies: good_copies(&it.drive, &it.superblock).await?,
            segments,
            segments_free: own.segments_free,
            segments_live: segments - own.segments_free,
            damage: own.damage.clone(),
            is_tail: tail == Some(member.link),
        });
        own.damage.iter().for_each(|damage| report.add(damage.clone()));
        // Sides of one link hold the same, which counts once: as that has it which is harmed least.
        let most = found.entry(member.link).or_insert_with(|| empty.clone());
        if own.groups > most.groups || most.is_of_nothing() {
            *most = own;
        }
    }
    found.into_values().for_each(|link| report.include(&link));
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
pub(crate) async fn is_footer_good(
    drive: &Drive,
    geometry: Geometry,
    trailer: &Trailer,
) -> Result<bool, DriveError> {
    let Some(directory) = read_directory(std::slice::from_ref(drive), geometry, trailer).await? else {
        return Ok(false);
    };
    let mut runs = 0;
    for page in &directory.pages {
        if u64::from(page.offset) + u64::from(page.bytes) > geometry.segment_bytes {
            return Ok(false);
        }
        let offset = geometry.segment_start(trailer.segment) + u64::from(page.offset);
        let (bytes, _) = read_footer_part(drive, offset, page.bytes as usize).await?;
        let Ok(view) = PageView::decode(&bytes, trailer.segment, trailer.lap) else { return Ok(false) };
        runs += view.run_count() as u64;
    }
    let Directory { holes, .. } = directory;
    Ok(runs == trailer.run_count && holes.len() == trailer.hole_count as usize)
}

impl CheckReport {
    /// Nothing was found yet.
    fn empty(identity: &Identity, geometry: Geometry) -> Self {
        Self {
            identity: identity.clone(),
            segment_bytes: geometry.segment_bytes,
            drives: Vec::new(),
            segments_free: 0,
            segments_open: 0,
            segments_closed: 0,
            groups: 0,
            records: 0,
            data_bytes: 0,
            cut_groups: 0,
            damage: Vec::new(),
            is_control_certain: true,
            missing: 0,
        }
    }

    /// Counts what was found on a link, too.
    fn include(&mut self, link: &Self) {
        self.segments_free += link.segments_free;
        self.segments_open += link.segments_open;
        self.segments_closed += link.segments_closed;
        self.groups += link.groups;
        self.records += link.records;
        self.data_bytes += link.data_bytes;
    }

    /// Whether nothing was looked at.
    fn is_of_nothing(&self) -> bool {
        self.segments_free + self.segments_open + self.segments_closed == 0
    }

    /// Whether another side has what is harmed on `drive`: a scrub mends that, and so does whoever reads it.
    pub fn is_elsewhere(&self, drive: &DriveReport, harmed: &Damage) -> bool {
        let end = |damage: &Damage| damage.offset.saturating_add(damage.bytes);
        let is_hit = |other: &Damage| {
            other.segment == harmed.segment && other.offset < end(harmed) && harmed.offset < end(other)
        };
        let is_side = |other: &&DriveReport| {
            other.link == drive.link && other.id != drive.id && other.state == SideState::Live
        };
        self.drives.iter().filter(is_side).any(|other| !other.damage.iter().any(is_hit))
    }

    /// Whether all copies of every superblock are good.
    pub fn superblocks_are_whole(&self) -> bool {
        self.drives.iter().all(|drive| drive.superblock_copies == SUPERBLOCK_COPIES)
    }

    /// Reads the groups of a segment, and its footer if it has one.
    async fn segment(&mut self, frame: Frame, target: ScanTarget<'_>) -> Result<(), OpenError> {
        let lap = match &frame {
            // What a cleaner has begun and not closed is freed by the next open.
            Frame::Blank | Frame::Ready { .. } | Frame::Body { .. } => {
                self.segments_free += 1;
                return Ok(());
            }
            Frame::Open { lap } => *lap,
            Frame::Closed { trailer, .. } => Some(trailer.lap),
        };
        let scan = scan_segment(&ScanTarget { lap, ..target }).await?;
        self.count(&scan);
        match frame {
            Frame::Closed { trailer, .. } => {
                self.segments_closed += 1;
                self.closed_groups(&trailer, &scan);
                if !is_footer_good(&target.sides[0], target.geometry, &trailer).await? {
                    self.add(Damage {
                        segment: target.segment,
                        offset: trailer.directory_offset,
                        bytes: trailer.directory_bytes,
                        kind: DamageKind::Footer,
                    });
                }
            }
            _ if scan.groups.is_empty() => self.segments_free += 1,
            _ => self.segments_open += 1,
        }
        Ok(())
    }

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
