//! Making a stale side equal to the live ones while the chain serves, and adding a side.
//!
//! From the beginning of a rebuild the side takes every write of the log along, and writes that began before are waited for. Then it
//! is gone through segment by segment:
//! groups are put together from what the sides have of them, and only what the side lacks is written. So a rebuild
//! that was interrupted goes on where it was, at the cost of reading. When all is there and on stable storage, the side is
//! marked as live, in a generation of its own.
//!
//! Nothing is missed by that, however busy the log is. A write chooses its sides when it begins, so it either began after the side
//! took them along, and the side has it when it is done, or it has ended before the first segment is looked at: then a live side shows
//! it, and it is copied, unless it was written over since, by one of the others. A copy and a write to the same place do not overlap
//! (`claims`), whichever comes first.

use std::ops::Range;
use std::rc::Rc;

use ithaca_env::drive::{Drive, DriveError};
use ithaca_env::limits::BLOCK_BYTES;

use super::open::grow_to;
use super::{Chain, Inner};
use crate::catalog::SegmentState;
use crate::error::{ChangeError, OpenError};
use crate::format::{GroupFlags, Trailer};
use crate::limits::{BACKGROUND_IO_BYTES, REFUSED_REST, SIDES_MAX};
use crate::links::segment_of;
use crate::membership::{DriveId, Member, SideState};
use crate::planted::PlantedBug;
use crate::read::is_refusal;
use crate::recover::{ScanTarget, ScannedGroup, read_lenient, scan_segment};
use crate::sides::{Side, Sides};

/// A copy that did not come to its end.
pub(super) enum Interrupted {
    /// The side or the last of the live ones failed.
    Drive(DriveError),
    /// The segment is in another use now: look again.
    Recycled,
    /// The side is no drive of the chain any more: its link was removed.
    Removed,
    /// The side takes writes along no more, because one failed on it: it lacks that.
    LeftBehind,
    /// The chain closes.
    Closing,
}

impl From<DriveError> for Interrupted {
    fn from(error: DriveError) -> Self {
        Self::Drive(error)
    }
}

impl Chain {
    /// Adds a side to the link that `beside` is a side of, in place of one that is missing if there is such a one. On return it is
    /// a member, as stale; it is rebuilt in the background and counts when that is complete.
    ///
    /// The drive must be blank, or one that this chain has given up: what is on it is lost. Errors: `NoSuchDrive`; `Open` with
    /// `AlreadyThere`, `NotBlank`, `TooSmall`, `BadMirror` if the link has as many sides as it can, or `Drive`: nothing
    /// has changed then; `Stopped`. Dropping the future gives up the answer, not the change.
    pub async fn add_side(&self, beside: DriveId, drive: Drive) -> Result<DriveId, ChangeError> {
        let chain = self.clone();
        self.to_its_end(async move { chain.add_beside(beside, drive).await }).await
    }

    async fn add_beside(&self, beside: DriveId, drive: Drive) -> Result<DriveId, ChangeError> {
        let inner = &self.inner;
        let _change = inner.begin_change().await;
        inner.check_running()?;
        let roster = inner.registry.roster().clone();
        let member = roster.membership.member(beside).ok_or(ChangeError::NoSuchDrive { id: beside })?;
        let link = member.link;
        let sequence = inner.check_new(&roster, &drive).await?;
        let lock = drive.try_lock().map_err(OpenError::Drive)?;
        let device = inner.device(link);
        // A side must be as large as the others.
        grow_to(&drive, device.size_bytes()).await?;
        let mut taken = inner.registry.take().await;
        // Only now: a side may have failed meanwhile, and is not to be called live again.
        let mut members = taken.roster.membership.members.clone();
        members.retain(|it| it.link != link || it.is_live() || taken.roster.drive(it.drive).is_some());
        let sides = members.iter().filter(|it| it.link == link).count();
        if sides == SIDES_MAX {
            return Err(OpenError::BadMirror { found: sides + 1, max: SIDES_MAX }.into());
        }
        let id = DriveId(inner.env.random_u64());
        members.push(Member { drive: id, link, state: SideState::Stale });
        let pending = taken.roster.membership.followed_by(members);
        let segments = inner.core.borrow().geometry.segments_in(drive.size_bytes());
        let drive = taken.roster.pulses[&link].watch(id, drive);
        let mut added = taken.roster.newcomer((drive.clone(), lock), (id, segments, sequence), &pending);
        added.rewrite(|_| ()).await.map_err(OpenError::Drive)?;
        taken.roster.drives.push(added);
        inner.write_change(&mut taken, &pending).await?;
        taken.store();
        drop(taken);
        device.add(Side { id, drive });
        inner.spawn_rebuild();
        Ok(id)
    }
}

impl Inner {
    /// Starts to rebuild the stale sides that are there, one after the other, if nobody does already.
    pub(super) fn spawn_rebuild(self: &Rc<Self>) {
        if self.is_rebuilding.replace(true) {
            return;
        }
        let inner = Rc::clone(self);
        self.env.spawn(async move {
            let busy = inner.busy.one_more();
            while let Some((link, device, side)) = inner.next_stale() {
                let name = side.drive.name();
                inner.rebuilt.set(Some((side.id, 0)));
                match inner.rebuild_side(link, &device, &side).await {
                    Ok(()) => tracing::info!(drive = %name, "a side is rebuilt: it has everything"),
                    Err(Interrupted::Drive(error)) => {
                        tracing::error!(%error, drive = %name, "a side cannot be rebuilt");
                        inner.failed_sides.borrow_mut().push(side.id);
                    }
                    Err(Interrupted::LeftBehind) => {
                        tracing::error!(drive = %name, "a side cannot be rebuilt: a write of the log failed on it meanwhile");
                        inner.failed_sides.borrow_mut().push(side.id);
                    }
                    Err(Interrupted::Removed) => {
                        tracing::info!(drive = %name, "a side is not rebuilt any more: its link was removed");
                    }
                    Err(Interrupted::Recycled | Interrupted::Closing) => break,
                }
                device.follow(side.id, false);
            }
            inner.rebuilt.set(None);
            drop(busy);
            inner.is_rebuilding.set(false);
            inner.changed.ring();
        });
    }

    /// How many segments of this side are gone through, if it is being rebuilt.
    pub(super) fn rebuilt_of(&self, side: DriveId) -> Option<u64> {
        self.rebuilt.get().filter(|(id, _)| *id == side).map(|(_, segments)| u64::from(segments))
    }

    /// A stale side that is there and has not failed.
    fn next_stale(&self) -> Option<(u32, Sides, Side)> {
        let failed = self.failed_sides.borrow();
        let links = self.links.borrow();
        links.iter().find_map(|link| {
            let side = link.device.stale().into_iter().find(|side| !failed.contains(&side.id))?;
            Some((link.number, link.device.clone(), side))
        })
    }

    async fn rebuild_side(
        self: &Rc<Self>,
        link: u32,
        device: &Sides,
        side: &Side,
    ) -> Result<(), Interrupted> {
        {
            // No growth is under way while the side joins: the links' later writes must find room on it.
            let _change = self.begin_change().await;
            self.check_member(side)?;
            if side.drive.size_bytes() < device.size_bytes() {
                side.drive.grow(device.size_bytes()).await?;
            }
            device.follow(side.id, true);
        }
        device.end_of_earlier_writes().await;
        if self.core.borrow().options.planted.is(PlantedBug::RebuildCountsEarly) {
            self.count_as_live(link, side).await?;
        }
        let mut index = 0;
        loop {
            self.check_member(side)?;
            if index == self.core.borrow().catalog.space.count(link) {
                break;
            }
            match self.rebuild_segment(device, side, segment_of(link, index)).await {
                Err(Interrupted::Recycled) => self.env.yield_now().await,
                Err(Interrupted::Drive(error)) if is_refusal(&error) => {
                    self.env.sleep(REFUSED_REST).await;
                }
                result => {
                    result?;
                    index += 1;
                    self.rebuilt.set(Some((side.id, index)));
                }
            }
        }
        side.drive.sync().await?;
        if !device.follows(side.id) {
            return Err(Interrupted::LeftBehind);
        }
        self.count_as_live(link, side).await
    }

    /// Marks the side as live. On return every live drive says so, durably.
    async fn count_as_live(self: &Rc<Self>, link: u32, side: &Side) -> Result<(), Interrupted> {
        let mut taken = self.registry.take().await;
        self.check_member(side)?;
        let segments = self.core.borrow().catalog.space.count(link);
        if let Some(it) = taken.roster.drives.iter_mut().find(|it| it.id() == side.id) {
            it.rewrite(|superblock| superblock.segments = segments).await?;
        }
        let mut members = taken.roster.membership.members.clone();
        for member in members.iter_mut().filter(|member| member.drive == side.id) {
            member.state = SideState::Live;
        }
        taken.roster.lost.retain(|lost| *lost != side.id);
        let pending = taken.roster.membership.followed_by(members);
        if let Err(error) = self.write_change(&mut taken, &pending).await {
            tracing::error!(%error, "the drives may disagree on which side has everything");
            return Err(Interrupted::Closing);
        }
        taken.store();
        Ok(())
    }

    /// To be asked after every wait: a link may be removed meanwhile, and its number given to another one.
    fn check_member(&self, side: &Side) -> Result<(), Interrupted> {
        if self.registry.is_member(side.id) { Ok(()) } else { Err(Interrupted::Removed) }
    }

    /// To be asked when a place is claimed: from then on the link stays until the claim is dropped, or at least its drives are nobody
    /// else's. The segment may be in another use by then.
    pub(super) fn check_place(&self, side: &Side, place: Place) -> Result<(), Interrupted> {
        self.check_member(side)?;
        if self.lap_of(place.segment) == place.lap { Ok(()) } else { Err(Interrupted::Recycled) }
    }

    /// The use that a segment is in: its lap, if it holds groups.
    fn lap_of(&self, segment: u32) -> Option<u64> {
        let core = self.core.borrow();
        match core.catalog.space.get(segment)? {
            SegmentState::Open(open) => Some(open.lap),
            SegmentState::Closed(closed) => Some(closed.lap),
            SegmentState::Ready | SegmentState::Next | SegmentState::Raw | SegmentState::Preparing => None,
        }
    }

    /// Whether a group that no live side has was cut: of the open that did so the first group took its place, or nothing has yet.
    fn is_cut(&self, group: &ScannedGroup, next: Option<&ScannedGroup>) -> bool {
        let identity = &group.head.identity;
        if let Some(next) = next.map(|next| &next.head.identity) {
            return next.incarnation > identity.incarnation && !next.flags.has(GroupFlags::OPENED);
        }
        match self.core.borrow().catalog.space.get(identity.segment) {
            Some(SegmentState::Open(open)) => identity.offset >= open.end_offset,
            // What lies behind the groups of a closed one is copied anyway.
            _ => false,
        }
    }

    async fn rebuild_segment(&self, device: &Sides, side: &Side, segment: u32) -> Result<(), Interrupted> {
        let geometry = self.core.borrow().geometry;
        let block = BLOCK_BYTES as u64;
        let (start, bytes) = (geometry.segment_start(segment), geometry.segment_bytes);
        let lap = self.lap_of(segment);
        let place = Place { segment, lap };
        let copy = async |range: Range<u64>, from: Option<Drive>| {
            let range = start + range.start..start + range.end;
            self.copy(device, side, place, range, from).await.map(drop)
        };
        let Some(known_lap) = lap else {
            // By any of these an open may take a free segment for one in use.
            copy(0..2 * block, None).await?;
            return copy(bytes - block..bytes, None).await;
        };
        copy(0..block, None).await?;
        let mut drives = device.live_drives();
        drives.push(side.drive.clone());
        let options = self.core.borrow().options.clone();
        let target = ScanTarget {
            sides: &drives,
            geometry,
            chain: self.identity.id,
            segment,
            lap: Some(known_lap),
            options: &options,
        };
        let groups = scan_segment(&target).await?.groups;
        for (index, group) in groups.iter().enumerate().filter(|(_, group)| group.is_uneven) {
            let next = groups.get(index + 1);
            if group.held_by + 1 == drives.len() && self.is_cut(group, next) {
                // The live sides may have groups there that do not begin where it does.
                let end = next.map_or(group.end_offset(), |next| next.head.identity.offset);
                copy(group.head.identity.offset.into()..end.into(), None).await?;
            } else {
                self.put_together(device, std::slice::from_ref(side), place, group).await?;
            }
        }
        let mut closed = None;
        for drive in device.live_drives() {
            let last = read_lenient(&drive, start + bytes - block, BLOCK_BYTES).await?;
            closed = closed.or(Trailer::decode(&last).ok().filter(|it| it.lap == known_lap));
        }
        // Behind the groups lie the footer and what was cut long ago.
        match closed {
            Some(trailer) => copy(u64::from(trailer.end_offset)..bytes, None).await,
            None if self.lap_of(segment) == lap => Ok(()),
            None => Err(Interrupted::Recycled),
        }
    }

    /// Makes a range of the side what a live side has there, in pieces, each while nobody else writes to it. Returns whether
    /// anything differed.
    pub(super) async fn copy(
        &self,
        device: &Sides,
        side: &Side,
        place: Place,
        range: Range<u64>,
        from: Option<Drive>,
    ) -> Result<bool, Interrupted> {
        let mut has_differed = false;
        let mut at = range.start;
        while at < range.end {
            if self.is_closing.get() || self.core.borrow().stopped().is_some() {
                return Err(Interrupted::Closing);
            }
            let len = (range.end - at).min(BACKGROUND_IO_BYTES as u64) as usize;
            let began = self.env.now();
            let claim = device.claim(at..at + len as u64).await;
            self.check_place(side, place)?;
            let source = from.clone().unwrap_or_else(|| device.live_drives().remove(0));
            let right = source.read(at, len).await?;
            let is_same = match side.drive.read(at, len).await {
                Err(error) if is_refusal(&error) || device.is_silent(side.id) => return Err(error.into()),
                found => found.is_ok_and(|found| found == right),
            };
            has_differed |= !is_same;
            if !is_same {
                device.mend(side, at, right).await?;
            }
            drop(claim);
            self.rest(began).await;
            at += len as u64;
        }
        Ok(has_differed)
    }
}

/// A segment in one of its uses.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) segment: u32,
    pub(super) lap: Option<u64>,
}
