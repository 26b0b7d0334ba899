//! Opening a chain: which groups count, where the log ends, what was harmed.
//!
//! Reads the superblock, the first and last block of every segment, and the groups of the segments without a footer.
//! What it decides is always a prefix of what was written. Doing it twice gives the same.

mod body;
mod census;
mod earlier;
mod ends;
mod equal;
mod frames;
mod judge;
mod lenient;
mod merge;
mod rescue;
mod scan;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bytes::Bytes;
use ithaca_env::drive::{Drive, DriveError};
use ithaca_env::limits::BLOCK_BYTES;

use body::{Body, is_body, keep_body};
use census::{Lost, Unseen, add_lost, missed};
use equal::agreed_frames;
pub(crate) use equal::{Right, Unequal};
pub(crate) use frames::{Frame, read_frames, read_superblock};
pub(crate) use judge::{ClosedEnd, ClosedLaps, Judged, judge};
pub(crate) use lenient::{LenientRead, read_footer_part, read_lenient, start_lenient};
pub(crate) use merge::{Image, RecordPlace, put_together};
pub use rescue::LeftOut;
pub(crate) use scan::{Scan, ScanTarget, ScannedGroup, group_around, scan_segment};
use told::Told;

use crate::catalog::{Catalog, ClosedSegment, OpenSegment, Published, SegmentState, coarse_ranges};
use crate::core::{Cursor, Resume};
use crate::error::{Damage, DamageKind, OpenError};
use crate::format::{Directory, GroupArea, GroupFlags, GroupHead, GroupIdentity, Hole, Trailer};
use crate::limits::KEY_BLOCK;
use crate::links::Links;
use crate::metadata::Known;
use crate::options::{ChainId, ChainOptions, Geometry};
use crate::owner::Keys;
use crate::planted::PlantedBug;
use crate::range_set::RangeSet;
use crate::sides::Sides;

/// What an open found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The owner's state, as last made durable.
    pub state: Option<Bytes>,
    /// Keys that have a record or are released, or that a lost group can have held a record of.
    pub covered: RangeSet,
    /// Released keys.
    pub released: RangeSet,
    /// The highest of `covered`.
    pub highest_key: Option<u64>,
    /// What was durable and is not there any more.
    pub damage: Vec<Damage>,
    /// Whether `state` and `released` are certainly the latest. False only if groups are lost that were durable and are newer than the
    /// last checkpoint, and the one behind them does not repeat what they said: they may have held a newer state, or releases.
    pub is_control_certain: bool,
    /// Groups found behind the end of the log and cut: they were never acknowledged, unless something is `left_out`.
    pub cut_groups: u64,
    /// What a rescue shows nothing of ([`ChainOptions::rescue`](crate::ChainOptions)).
    pub left_out: Option<LeftOut>,
    /// Groups that were read, and segments they were in.
    pub scanned_groups: u64,
    /// Segments scanned.
    pub scanned_segments: u64,
}

impl Recovered {
    fn cover(&mut self, keys: &[Range<u64>]) {
        for range in keys {
            self.covered.insert(range.clone());
        }
    }

    fn count(&mut self, scans: &[Scan]) {
        self.scanned_segments = scans.len() as u64;
        self.scanned_groups = scans.iter().map(|scan| scan.groups.len() as u64).sum();
    }
}

/// A chain as recovery hands it to the writer.
pub(crate) struct Reopened {
    pub(crate) catalog: Catalog,
    pub(crate) resume: Resume,
    pub(crate) recovered: Recovered,
    /// Segments whose groups were all cut, or that had none that count: to be wiped before the log goes on, so that no later
    /// recovery takes what this one cut.
    pub(crate) to_wipe: Vec<u32>,
    /// No lap up to this one is used again.
    pub(crate) highest_lap: u64,
    /// What some side of a link lacks of what counts.
    pub(crate) unequal: Vec<Unequal>,
    /// Segments that lack groups which may be there, and why those could not be read.
    pub(crate) unread: BTreeMap<u32, DriveError>,
}

/// What is said of a chain if the newest checkpoint is missing, where a block could not be read in which it may lie.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnreadEnd {
    /// The drive's error: another open may read it.
    Fails,
    /// That it is lost: who checks drives is to hear of blocks that cannot be read for good.
    IsLost,
}

/// Keys below `below` that may have had a record that is lost: of the block that `below` lies in all; of each lower one, which has come
/// to an end of its own, those up to the last of which something is known. What was lost behind that counts as never written.
fn lost_keys(covered: &RangeSet, below: u64) -> Vec<Range<u64>> {
    let before = covered.ranges().take_while(|range| range.start < below);
    let known = before.map(|range| range.end.min(below)).chain([below]);
    known.filter(|&end| end > 0).map(|end| (end - 1) / KEY_BLOCK * KEY_BLOCK..end).collect()
}

/// Finds out what is on the drives, with what a metadata drive knows of them. Writes nothing.
pub(crate) async fn recover(
    links: &Links,
    chain: ChainId,
    geometry: Geometry,
    keys: Keys,
    options: &ChainOptions,
    known: &Known,
    unread_end: UnreadEnd,
) -> Result<Reopened, OpenError> {
    let mut look_through = BTreeSet::new();
    let (found, mut judged, lost) = loop {
        let mut found = survey(links, chain, geometry, keys, options, (known, &look_through)).await?;
        let judged = judge(std::mem::take(&mut found.scans), &found.closed_laps, options);
        if let Some(error) = judged.unread {
            return Err(error.into());
        }
        let lost = match options.planted.is(PlantedBug::CensusIgnored) {
            true => Lost::default(),
            false => missed(links, &judged, &found.unseen),
        };
        let before = look_through.len();
        look_through.extend(lost.segments.iter().copied());
        if look_through.len() == before {
            break (found, judged, lost);
        }
    };
    let Survey { mut catalog, mut recovered, unwiped, mut highest_lap, incarnation, mut unequal, .. } = found;
    let why = |kept: &judge::KeptSegment| Some((kept.segment, kept.unread.clone()?));
    let unread = judged.segments.iter().filter_map(why).collect();
    judged.unread_end = judged.unread_end.filter(|_| unread_end == UnreadEnd::Fails);
    // Where no group of any lap was found there is nothing to wipe, and what is lost is not free.
    let is_cut = |kept: &&judge::KeptSegment| {
        kept.groups.is_empty() && kept.lap != 0 && !lost.segments.contains(&kept.segment)
    };
    // The newest first: of those before them it shows that a group is missing, until they are wiped.
    let mut to_wipe: Vec<u32> =
        judged.segments.iter().rev().filter(is_cut).map(|kept| kept.segment).collect();
    // Nobody misses the footer of a segment that holds nothing.
    recovered.damage.retain(|damage| !to_wipe.contains(&damage.segment));
    to_wipe.extend(unwiped);
    add_lacking(links, &judged, &mut unequal);
    let before = options.rescue.then(|| rescue::before(&judged, &found.closed_laps));
    recovered.left_out.clone_from(&judged.left_out);
    let applied = apply(links, judged, &mut catalog, &mut recovered, highest_lap + 1, incarnation + 1);
    let mut resume = applied.map_err(|error| rescue::why_not(error, before.as_ref(), links))?;
    for segment in lost.segments {
        highest_lap += 1;
        add_lost(segment, highest_lap, lost.below, geometry, &mut catalog, &mut recovered);
    }
    resume.next_lap = highest_lap + 1;
    for range in catalog.released.ranges() {
        recovered.covered.insert(range);
    }
    if !options.planted.is(PlantedBug::LostGroupForgotten) {
        for range in lost_keys(&recovered.covered, catalog.lost_below()) {
            recovered.covered.insert(range);
        }
    }
    recovered.released = catalog.released.clone();
    recovered.highest_key = recovered.covered.last();
    recovered.state.clone_from(&resume.state);
    catalog.highest_key = recovered.highest_key;
    catalog.damage.clone_from(&recovered.damage);
    if let Some(before) = before {
        let certain = before.and_then(|before| rescue::check(before, &recovered, &mut catalog, options));
        certain.map_err(|why| OpenError::NoRescue { drive: links.names(), why })?;
    }
    Ok(Reopened { catalog, resume, recovered, to_wipe, highest_lap, unequal, unread })
}

/// What the drives hold, before it is judged.
struct Survey {
    catalog: Catalog,
    recovered: Recovered,
    closed_laps: ClosedLaps,
    /// In the order of their laps.
    scans: Vec<Scan>,
    /// Segments that are free, and do not say so by all that is in them: among them those that a cleaner was filling.
    unwiped: Vec<u32>,
    highest_lap: u64,
    incarnation: u64,
    /// What the live sides do not agree on.
    unequal: Vec<Unequal>,
    /// Segments in which no group was found.
    unseen: BTreeMap<u32, Unseen>,
}

/// Reads the frames of all segments, and the groups of those without a footer.
async fn survey(
    links: &Links,
    chain: ChainId,
    geometry: Geometry,
    keys: Keys,
    options: &ChainOptions,
    (known, look_through): (&Known, &BTreeSet<u32>),
) -> Result<Survey, OpenError> {
    let (mut catalog, mut unequal, mut recovered) = (Catalog::new(keys), Vec::new(), Recovered::default());
    let mut frames = all_frames(links, chain, geometry, &mut catalog, &mut unequal, (known, options)).await?;
    show_again(&mut frames, look_through);
    // `unread` are those of the log that are not scanned, by the first of their groups.
    let (mut closed_laps, mut unseen, mut unread) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let (mut scans, mut bodies, mut unwiped) = (Vec::new(), Vec::new(), Vec::new());
    let (mut highest_lap, mut incarnation) = (0, 0);
    for (segment, frame) in frames {
        let sides = &links.device_of(segment).expect("its frame was read").live_drives()[..];
        highest_lap = highest_lap.max(frame.highest_lap());
        let (lap, closed) = match frame {
            Frame::Blank => {
                unseen.insert(segment, Unseen { lap: None, closed_in: None });
                continue;
            }
            Frame::Ready { .. } | Frame::Body { .. } => {
                catalog.set(segment, SegmentState::Ready);
                unwiped.extend((!matches!(frame, Frame::Ready { is_whole: true, .. })).then_some(segment));
                continue;
            }
            Frame::Open { lap } => (lap, None),
            Frame::Closed { trailer, is_header_bad } => {
                if is_header_bad {
                    recovered.damage.push(frame_damage(segment));
                }
                check_sizes(sides, geometry, trailer.segments)?;
                incarnation = incarnation.max(trailer.incarnation);
                let end = ClosedEnd { last_seq: trailer.last_seq, offset: trailer.end_offset };
                closed_laps.extend((!trailer.is_body).then_some((trailer.lap, end)));
                if let Some(keys) = exact_keys(sides, geometry, &trailer, known).await? {
                    note_closed(segment, &trailer, &keys, &mut catalog, &mut recovered);
                    unread.extend((!trailer.is_body).then_some((trailer.first_seq, (segment, trailer.lap))));
                    continue;
                }
                // Its directory is harmed: its groups tell the same.
                recovered.damage.push(Damage { kind: DamageKind::Footer, ..frame_damage(segment) });
                (Some(trailer.lap), Some(trailer))
            }
        };
        let scan = scan_segment(&ScanTarget { sides, geometry, chain, segment, lap, options }).await?;
        if scan.groups.is_empty() {
            unseen.insert(segment, Unseen { lap, closed_in: closed.as_ref().map(|it| it.incarnation) });
        }
        if is_body(&scan) {
            highest_lap = highest_lap.max(scan.lap);
            bodies.push(Body { scan, trailer: closed });
        } else {
            scans.push(scan);
        }
    }
    scans.sort_by_key(|scan| scan.lap);
    let ends = ends::ends_told_behind(links, chain, geometry, options, &scans, &unread).await?;
    ends.into_iter().for_each(|(lap, end)| _ = closed_laps.entry(lap).or_insert(end));
    recovered.count(&scans);
    let heads = scans.iter().flat_map(|scan| &scan.groups).map(|group| &group.head.identity);
    highest_lap = heads.clone().map(|it| it.lap).fold(highest_lap, u64::max);
    incarnation = heads.clone().map(|it| it.incarnation).fold(incarnation, u64::max);
    let key_end = heads.clone().map(|it| it.key_end).max().unwrap_or(0);
    bodies.into_iter().for_each(|body| keep_body(body, key_end, &mut catalog, &mut recovered));
    check_links(links, geometry, heads)?;
    Ok(Survey { catalog, recovered, closed_laps, scans, unwiped, highest_lap, incarnation, unequal, unseen })
}

/// The frames of all segments, as they count. Tells the catalog how many each link has.
async fn all_frames(
    links: &Links,
    chain: ChainId,
    geometry: Geometry,
    catalog: &mut Catalog,
    unequal: &mut Vec<Unequal>,
    (known, options): (&Known, &ChainOptions),
) -> Result<Vec<(u32, Frame)>, OpenError> {
    let mut frames = Vec::new();
    for link in links.iter() {
        catalog.space.add_link(link.number, geometry.segments_in(link.device.size_bytes()));
        frames.extend(agreed_frames(link, geometry, chain, unequal, known).await?);
    }
    show_later_use(&mut frames, links, chain, geometry, options).await?;
    look_through_if_empty(&mut frames);
    Ok(frames)
}

/// Segments that a census names and that look as if they had never been used: what is left of them is behind what shows.
fn show_again(frames: &mut [(u32, Frame)], look_through: &BTreeSet<u32>) {
    let is_meant = |it: &&mut (u32, Frame)| look_through.contains(&it.0) && it.1 == Frame::Blank;
    frames.iter_mut().filter(is_meant).for_each(|(_, frame)| *frame = Frame::Open { lap: None });
}

/// A segment that was in use again may have the trailer of its earlier use still. Where its header and its first group are harmed, the groups
/// behind that one tell; if there are none, it is taken for the earlier use. Errors: others than failed reads.
async fn show_later_use(
    frames: &mut [(u32, Frame)],
    links: &Links,
    chain: ChainId,
    geometry: Geometry,
    options: &ChainOptions,
) -> Result<(), DriveError> {
    for (segment, frame) in frames {
        let Frame::Closed { trailer, is_header_bad: true } = frame else { continue };
        let sides = &links.device_of(*segment).expect("its frame was read").live_drives()[..];
        let target = ScanTarget { sides, geometry, chain, segment: *segment, lap: None, options };
        let lap = match scan_segment(&target).await {
            // Then only the trailer tells.
            Err(DriveError::Io { .. }) => trailer.lap,
            scan => scan?.lap,
        };
        if lap > trailer.lap {
            *frame = Frame::Open { lap: None };
        }
    }
    Ok(())
}

/// A chain has a group from its creation on. If none shows, the segments that look unused are looked through: only a
/// creation that was interrupted leaves a chain without one.
fn look_through_if_empty(frames: &mut [(u32, Frame)]) {
    if frames.iter().all(|(_, frame)| matches!(frame, Frame::Blank | Frame::Ready { .. })) {
        let blank = frames.iter_mut().filter(|(_, frame)| matches!(frame, Frame::Blank));
        blank.for_each(|(_, frame)| *frame = Frame::Open { lap: None });
    }
}

/// Adds the groups that count and that some side lacks, in all or in part.
fn add_lacking(links: &Links, judged: &Judged, unequal: &mut Vec<Unequal>) {
    for kept in &judged.segments {
        let sides = links.device_of(kept.segment).expect("it was scanned").live();
        for group in kept.groups.iter().filter(|group| group.is_uneven) {
            let right = Right::Group(sides.clone(), group.head, group.area.runs.clone());
            unequal.push(Unequal { segment: kept.segment, offset: group.head.identity.offset, right });
        }
    }
}

/// Every drive has the segments that groups on it say that it had.
fn check_links<'a>(
    links: &Links,
    geometry: Geometry,
    heads: impl Iterator<Item = &'a GroupIdentity>,
) -> Result<(), OpenError> {
    for identity in heads {
        let device = links.device_of(identity.segment).expect("it was scanned");
        check_sizes(&device.live_drives(), geometry, identity.segments)?;
    }
    Ok(())
}

fn check_sizes(sides: &[Drive], geometry: Geometry, had: u32) -> Result<(), OpenError> {
    sides.iter().try_for_each(|drive| check_size(drive, geometry, had))
}

/// A drive that had so many segments has them still.
pub(crate) fn check_size(drive: &Drive, geometry: Geometry, had: u32) -> Result<(), OpenError> {
    if had <= geometry.segments_in(drive.size_bytes()) {
        return Ok(());
    }
    Err(OpenError::Truncated {
        drive: drive.name(),
        found_bytes: drive.size_bytes(),
        needed_bytes: geometry.bytes_for(had),
    })
}

fn frame_damage(segment: u32) -> Damage {
    Damage { segment, offset: 0, bytes: BLOCK_BYTES as u32, kind: DamageKind::Frame }
}

/// A closed segment that is not scanned: its directory tells what it holds.
fn note_closed(
    segment: u32,
    trailer: &Trailer,
    keys: &[Range<u64>],
    catalog: &mut Catalog,
    recovered: &mut Recovered,
) {
    recovered.cover(keys);
    catalog.add_closed(segment, closed_segment(trailer, keys));
    // Whoever has a newest version of each key hears at every open that it lists holes.
    if catalog.keys == Keys::Versioned && trailer.hole_count > 0 {
        recovered.damage.push(Damage::of_some_groups(segment));
    }
}

fn closed_segment(trailer: &Trailer, keys: &[Range<u64>]) -> ClosedSegment {
    ClosedSegment {
        lap: trailer.lap,
        directory_offset: trailer.directory_offset,
        directory_bytes: trailer.directory_bytes,
        directory_checksum: trailer.directory_checksum,
        lost_below: trailer.lost_below,
        record_count: trailer.record_count,
        data_bytes: trailer.data_bytes,
        ranges: coarse_ranges(keys),
    }
}

/// The keys that a closed segment has records of; `None` if its directory is needed for that and is harmed.
async fn exact_keys(
    sides: &[Drive],
    geometry: Geometry,
    trailer: &Trailer,
    known: &Known,
) -> Result<Option<Vec<Range<u64>>>, OpenError> {
    if let Some(keys) = &trailer.keys {
        return Ok(Some(keys.clone()));
    }
    if let Some(directory) = known.directory(trailer.segment, trailer.lap).await {
        return Ok(Some(directory.keys));
    }
    let directory = read_directory(sides, geometry, trailer).await?;
    Ok(directory.map(|directory| directory.keys))
}

/// The directory that a trailer names; `None` if it is harmed on all sides.
pub(crate) async fn read_directory(
    sides: &[Drive],
    geometry: Geometry,
    trailer: &Trailer,
) -> Result<Option<Directory>, DriveError> {
    let end = u64::from(trailer.directory_offset) + u64::from(trailer.directory_bytes);
    let is_sound = (trailer.directory_offset as usize).is_multiple_of(BLOCK_BYTES)
        && (trailer.directory_bytes as usize).is_multiple_of(BLOCK_BYTES)
        && end <= geometry.segment_bytes;
    if !is_sound {
        return Ok(None);
    }
    let offset = geometry.segment_start(trailer.segment) + u64::from(trailer.directory_offset);
    for drive in sides {
        let (bytes, _) = read_footer_part(drive, offset, trailer.directory_bytes as usize).await?;
        if let Ok(directory) = Directory::decode(&bytes, trailer.segment, trailer.lap) {
            return Ok(Some(directory));
        }
    }
    Ok(None)
}

/// Builds the open segments from the groups that count, and says where the writer goes on.
fn apply(
    links: &Links,
    judged: Judged,
    catalog: &mut Catalog,
    recovered: &mut Recovered,
    next_lap: u64,
    incarnation: u64,
) -> Result<Resume, OpenError> {
    let mut state = None;
    let mut cursor = None;
    let mut unclosed: Vec<(u32, u64)> = Vec::new();
    let mut checkpoint_seq = 0;
    let mut told = Told::new();
    recovered.cut_groups = judged.cut_groups;
    recovered.damage.extend(judged.damage);
    let newest = judged.segments.iter().rev().find(|kept| kept.lap != 0).map(|kept| kept.segment);
    for kept in judged.segments {
        if kept.groups.is_empty() {
            catalog.set(kept.segment, SegmentState::Ready);
            continue;
        }
        let open = OpenSegment {
            lap: kept.lap,
            end_offset: BLOCK_BYTES as u32,
            holes: kept.holes.clone(),
            lost_below: kept.lost_below,
            is_unread: kept.unread.is_some(),
            ..OpenSegment::default()
        };
        catalog.open_segment(kept.segment, open);
        for group in kept.groups {
            let identity = group.head.identity;
            told.add(&group);
            let is_checkpoint = identity.flags.has(GroupFlags::CHECKPOINT);
            if is_checkpoint {
                catalog.released = RangeSet::new();
                checkpoint_seq = identity.seq;
            }
            if is_checkpoint || group.area.state.is_some() {
                state.clone_from(&group.area.state);
            }
            catalog.publish(published(&group.head, &group.area));
        }
        catalog.open(kept.segment).keys.ranges().for_each(|range| {
            recovered.covered.insert(range);
        });
        let open = catalog.open(kept.segment);
        unclosed.push((kept.segment, open.last_seq));
        cursor = Some(cursor_of(kept.segment, open));
    }
    if judged.is_end_lost || (checkpoint_seq == 0 && judged.next_seq > 1) {
        return Err(judged.unread_end.map_or_else(|| checkpoint_lost(links, newest), OpenError::Drive));
    }
    recovered.is_control_certain = told.is_certain;
    let said = told.before(judged.next_seq);
    unclosed.pop();
    Ok(Resume { cursor, unclosed, next_seq: judged.next_seq, next_lap, incarnation, state, said })
}

/// A group as it was published when it became durable.
pub(crate) fn published<'a>(head: &GroupHead, area: &'a GroupArea) -> Published<'a> {
    let (identity, layout) = (&head.identity, &head.layout);
    Published {
        segment: identity.segment,
        seq: identity.seq,
        incarnation: identity.incarnation,
        end_offset: identity.offset + layout.total_bytes() as u32,
        blob: area.blob.clone(),
        starts: &area.starts,
        data_bytes: (layout.packed_bytes + layout.aligned_bytes) as u64,
        released: &area.released,
    }
}

fn checkpoint_lost(links: &Links, segment: Option<u32>) -> OpenError {
    let drive = segment.and_then(|segment| links.device_of(segment));
    OpenError::CheckpointLost { drive: drive.map_or_else(|| links.names(), Sides::name), segment }
}

fn cursor_of(segment: u32, open: &OpenSegment) -> Cursor {
    Cursor {
        segment,
        lap: open.lap,
        prev_lap: 0,
        offset: open.end_offset,
        blob_bytes: open.blob_bytes,
        runs: open.run_count,
        holes: open.holes.len() as u64,
        is_empty: false,
    }
}

/// The part of a hole that lies in one segment.
pub(crate) fn hole(offset: u32, end: u32, seqs: Range<u64>) -> Hole {
    Hole { offset, bytes: end.saturating_sub(offset), seqs }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_lost_of_a_block_says_nothing_of_the_next() {
        let mut covered = RangeSet::default();
        let block = |number: u64| number * KEY_BLOCK;
        covered.insert(block(1)..block(1) + 3);
        covered.insert(block(1) + 5..block(1) + 9);
        covered.insert(block(3)..block(3) + 1);
        let below = block(3) + 7;
        for range in lost_keys(&covered, below) {
            covered.insert(range);
        }
        let expected = [block(1)..block(1) + 9, block(3)..below];
        assert_eq!(covered.ranges().collect::<Vec<_>>(), expected, "of blocks 0 and 2 nothing is known");
        assert!(lost_keys(&RangeSet::default(), 0).is_empty(), "nothing is lost");
    }
}
