//! Which groups count: the end of the log, told apart from damage in its middle. Pure.
//!
//! Every group says up to where the log was durable when it was formed. A missing group that a later one vouches for was
//! lost to damage: it is named and the log goes on behind it. A missing group that nobody vouches for was never
//! acknowledged: there the log ends, and groups behind it are cut. Segments that are left without a group are wiped before
//! the log goes on, so that what was cut is never seen again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use ithaca_env::drive::DriveError;
use ithaca_env::limits::BLOCK_BYTES;

use super::earlier::leave_out_earlier;
use super::hole;
use super::rescue::LeftOut;
use super::scan::{Scan, ScannedGroup};
use crate::error::{Damage, DamageKind};
use crate::format::{GroupArea, GroupFlags, GroupHead, Hole};
use crate::options::ChainOptions;
use crate::planted::PlantedBug;

/// A group that counts.
pub(crate) struct KeptGroup {
    pub(crate) head: GroupHead,
    pub(crate) area: GroupArea,
    /// See [`ScannedGroup::is_uneven`].
    pub(crate) is_uneven: bool,
}

/// A scanned segment with the groups that count; none if it is free.
pub(crate) struct KeptSegment {
    pub(crate) segment: u32,
    pub(crate) lap: u64,
    pub(crate) groups: Vec<KeptGroup>,
    pub(crate) holes: Vec<Hole>,
    /// Every key that a group in a hole can have held is below.
    pub(crate) lost_below: u64,
    /// Why a block could not be read in which groups may lie that are missing here, or behind its last one.
    pub(crate) unread: Option<DriveError>,
}

/// The verdict.
pub(crate) struct Judged {
    pub(crate) segments: Vec<KeptSegment>,
    pub(crate) damage: Vec<Damage>,
    pub(crate) next_seq: u64,
    pub(crate) cut_groups: u64,
    /// The newest group that was durable is lost, and nothing that is left says what it held.
    pub(crate) is_end_lost: bool,
    /// The first groups that are lost, if the log ends before them for who rescues what is older.
    pub(crate) left_out: Option<LeftOut>,
    /// Why a block could not be read in which the newest checkpoint may lie, or what comes behind it.
    pub(crate) unread_end: Option<DriveError>,
    /// Why a group cannot be read that would be cut for that.
    pub(crate) unread: Option<DriveError>,
}

/// Closed segments by lap.
pub(crate) type ClosedLaps = BTreeMap<u64, ClosedEnd>;

/// What a trailer says of the end of a segment's groups, or the group that comes behind them.
#[derive(Clone, Copy)]
pub(crate) struct ClosedEnd {
    pub(crate) last_seq: u64,
    /// Byte in the segment; 0 if that is not known.
    pub(crate) offset: u32,
}

/// Decides. `scans` are in the order of their laps.
pub(crate) fn judge(mut scans: Vec<Scan>, closed: &ClosedLaps, options: &ChainOptions) -> Judged {
    leave_out_earlier(&mut scans);
    let claimed = claimed_seq(&scans, closed);
    let unread: BTreeMap<u64, DriveError> = scans.iter().filter_map(unread_of).collect();
    let is_bare = |scan: &&Scan| scan.groups.is_empty() && scan.lap != 0;
    let mut judge = Judge {
        claimed,
        bare: scans.iter().filter(is_bare).map(|scan| scan.lap).collect(),
        next_seq: closed.values().map(|end| end.last_seq + 1).max().unwrap_or(1),
        is_cut: false,
        last_seqs: closed.iter().map(|(lap, end)| (*lap, end.last_seq)).collect(),
        short: BTreeSet::new(),
        damage: Vec::new(),
        cut_groups: 0,
        cuts_damage: options.planted.is(PlantedBug::CutDamagedMiddle),
        ends_at_loss: options.rescue,
        left_out: None,
        unread: None,
    };
    let mut segments: Vec<_> = scans.into_iter().map(|scan| judge.segment(scan, closed)).collect();
    let key_ends = segments.iter().flat_map(|kept| &kept.groups).map(|group| group.head.identity.key_end);
    let key_end = key_ends.max().unwrap_or(0);
    // What comes behind the end of a closed segment may be in another one that is closed and not read.
    for kept in segments.iter_mut().filter(|kept| judge.short.contains(&kept.lap)) {
        kept.lost_below = kept.lost_below.max(key_end);
    }
    note_unread(&mut segments, &unread);
    let last = segments.iter().rev().find(|kept| !kept.groups.is_empty());
    let unread_end = last.and_then(|last| unread.get(&last.lap)).or(unread.get(&0)).cloned();
    Judged {
        segments,
        damage: judge.damage,
        next_seq: judge.next_seq,
        cut_groups: judge.cut_groups,
        is_end_lost: judge.next_seq <= claimed && !judge.cuts_damage && judge.left_out.is_none(),
        left_out: judge.left_out,
        unread_end,
        unread: judge.unread,
    }
}

/// Why a block of a segment could not be read in which a group may lie, by its lap; that is 0 if nothing shows but that its first group may be
/// there.
fn unread_of(scan: &Scan) -> Option<(u64, DriveError)> {
    let block = scan.unread.as_ref()?;
    let lap = if scan.groups.is_empty() { 0 } else { scan.lap };
    (lap > 0 || block.offset == BLOCK_BYTES as u64).then(|| (lap, block.error.clone()))
}

/// Tells of segments that lack groups which may be there: a block could not be read in them, or in the one before, whose last groups are missed
/// in the next one, or in one of which nothing shows.
fn note_unread(segments: &mut [KeptSegment], unread: &BTreeMap<u64, DriveError>) {
    let mut lacking = BTreeMap::new();
    for kept in segments.iter().filter(|kept| !kept.holes.is_empty()) {
        let before = kept.groups.first().map_or(0, |first| first.head.identity.prev_lap);
        for lap in [kept.lap, before, 0] {
            let Some(error) = unread.get(&lap) else { continue };
            lacking.extend([(lap, error.clone()), (kept.lap, error.clone())]);
        }
    }
    segments.iter_mut().for_each(|kept| kept.unread = lacking.get(&kept.lap).cloned());
}

/// The highest group that was certainly durable.
fn claimed_seq(scans: &[Scan], closed: &ClosedLaps) -> u64 {
    let by_groups = scans.iter().flat_map(|scan| &scan.groups).map(|group| group.head.identity.durable_seq);
    // A segment is closed only when the first group of its successor is durable.
    let by_trailers = closed.values().map(|end| end.last_seq + 1);
    by_groups.chain(by_trailers).max().unwrap_or(0)
}

struct Judge {
    claimed: u64,
    /// Laps of which a header shows, and no group.
    bare: BTreeSet<u64>,
    next_seq: u64,
    is_cut: bool,
    /// Last group that counts of each lap.
    last_seqs: BTreeMap<u64, u64>,
    /// Laps of closed segments whose last groups are missing.
    short: BTreeSet<u64>,
    damage: Vec<Damage>,
    cut_groups: u64,
    cuts_damage: bool,
    ends_at_loss: bool,
    left_out: Option<LeftOut>,
    unread: Option<DriveError>,
}

impl Judge {
    fn segment(&mut self, scan: Scan, closed: &ClosedLaps) -> KeptSegment {
        let mut kept = KeptSegment {
            segment: scan.segment,
            lap: scan.lap,
            groups: Vec::new(),
            holes: Vec::new(),
            lost_below: 0,
            unread: None,
        };
        let mut end = BLOCK_BYTES as u32;
        let mut expected = None;
        for group in scan.groups {
            let identity = group.head.identity;
            if expected.is_none() {
                expected = self.expected_first(&group);
            }
            let missing = expected.unwrap_or(identity.seq)..identity.seq;
            if !missing.is_empty() {
                self.missing(missing, end..identity.offset, identity.key_end, &mut kept);
            }
            self.check_data(&group, &kept);
            if self.is_cut {
                self.cut_groups += 1;
                self.note_left_out(&group);
                continue;
            }
            end = group.end_offset();
            expected = Some(identity.seq + 1);
            self.next_seq = self.next_seq.max(identity.seq + 1);
            self.last_seqs.insert(scan.lap, identity.seq);
            let ScannedGroup { head, area, is_uneven, .. } = group;
            kept.groups.push(KeptGroup { head, area, is_uneven });
        }
        if let (Some(expected), Some(closed)) = (expected, closed.get(&scan.lap))
            && expected <= closed.last_seq
        {
            self.missing(expected..closed.last_seq + 1, end..closed.offset, 0, &mut kept);
            self.short.insert(scan.lap);
            self.last_seqs.insert(scan.lap, closed.last_seq);
        }
        kept
    }

    /// The group that should come first in this group's segment, or at least one that is missing before it; `None` if that cannot be known
    /// any more.
    fn expected_first(&self, group: &ScannedGroup) -> Option<u64> {
        let identity = &group.head.identity;
        if let Some(last_seq) = self.last_seqs.get(&identity.prev_lap) {
            return Some(last_seq + 1);
        }
        // A segment that was left has a group at least. If none of it shows, all of it was on its way still when this one was formed; or it
        // is harmed, and a census names it.
        let was_on_its_way = self.bare.contains(&identity.prev_lap) && identity.seq - 1 > self.claimed;
        // Else what came before is recycled. The first group of a segment is a checkpoint: if this one is not, some are lost.
        (was_on_its_way || !identity.flags.has(GroupFlags::CHECKPOINT)).then(|| identity.seq - 1)
    }

    /// Groups `seqs` are not there; these bytes of the segment are not groups. Every key that they can have held is below `key_end`.
    fn missing(&mut self, seqs: Range<u64>, bytes: Range<u32>, key_end: u64, kept: &mut KeptSegment) {
        let Range { start, end } = bytes;
        let vouched = if self.cuts_damage {
            seqs.start..seqs.start
        } else {
            seqs.start..seqs.end.min(self.claimed + 1)
        };
        if !vouched.is_empty() && !self.is_cut && self.ends_at_loss {
            let (segment, offset) = (kept.segment, start);
            self.left_out = Some(LeftOut { segment, offset, seqs: vouched, groups: 0, newest_version: 0 });
            self.is_cut = true;
            return;
        }
        if !vouched.is_empty() && !self.is_cut {
            kept.holes.push(hole(start, end, vouched.clone()));
            kept.lost_below = kept.lost_below.max(key_end);
            self.damage.push(Damage {
                segment: kept.segment,
                offset: start,
                bytes: end.saturating_sub(start),
                kind: DamageKind::Groups { seqs: vouched.clone() },
            });
            self.next_seq = self.next_seq.max(vouched.end);
        }
        if vouched.end < seqs.end {
            self.is_cut = true;
        }
    }

    /// A group behind the end is left out, if the end is where one is lost.
    fn note_left_out(&mut self, group: &ScannedGroup) {
        let Some(left_out) = &mut self.left_out else { return };
        left_out.groups += 1;
        let versions = group.area.runs.iter().map(|run| run.version);
        left_out.newest_version = versions.fold(left_out.newest_version, u64::max);
    }

    fn check_data(&mut self, group: &ScannedGroup, kept: &KeptSegment) {
        if group.bad.is_empty() || self.is_cut {
            return;
        }
        if group.head.identity.seq > self.claimed || self.cuts_damage {
            self.is_cut = true;
            self.unread.clone_from(&group.unread);
            return;
        }
        for (keys, bytes) in &group.bad {
            self.damage.push(Damage {
                segment: kept.segment,
                offset: bytes.start,
                bytes: bytes.end - bytes.start,
                kind: DamageKind::Data { keys: keys.clone() },
            });
        }
    }
}
