//! Scrubbing: everything that closed segments hold is read and checked, so that harm is found while another side still has what
//! is lost, and not when it is needed.
//!
//! Groups, headers and footers of a mirrored link that one side has and another has not are copied to it. What no side has is
//! named among the damage of the chain, and not any more when a later scrub finds it: a read that failed, however often, may work again.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::drive::{Drive, DriveError, DriveFuture, Wrapper};
use ithaca_env::limits::BLOCK_BYTES;
use ithaca_env::{Env, Time};

use super::owned::records_of;
use super::rebuild::{Interrupted, Place};
use super::{Chain, Inner};
use crate::core::Cause;
use crate::error::{ChainError, Damage, DamageKind, ReadError};
use crate::format::{SegmentHeader, SegmentKind, Trailer};
use crate::inspect::is_footer_good;
use crate::limits::BACKGROUND_IO_BYTES;
use crate::owner::Placed;
use crate::read::UnreadGroups;
use crate::recover::{ScanTarget, ScannedGroup, read_lenient, scan_segment};
use crate::sides::{Side, Sides};
use crate::victims::Cleaning;

/// The first pass begins so long after the open at the latest.
const FIRST_PASS_AFTER: Duration = Duration::from_secs(600);
/// A rest is cut up into parts of this length, so that a chain that closes need not wait.
const REST_STEP: Duration = Duration::from_millis(50);

/// What scrubbing has done since the chain was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Times that all closed segments were gone through.
    pub passes: u64,
    /// Segments that were read.
    pub segments: u64,
}

/// What is harmed of a segment that is being scrubbed.
#[derive(Default)]
struct Harm {
    /// What was known before it was read. Of that what is not found again is not harmed any more, or not needed: it could not be read then.
    known: Vec<Damage>,
    found: Vec<Damage>,
    /// Why it is not certain what is harmed.
    unread: Option<DriveError>,
}

/// A drive that is read no faster than it should be. Nothing else is asked of it.
struct Paced {
    drive: Drive,
    env: Env,
    bytes_per_second: u64,
    /// Ends every rest.
    is_over: Rc<Cell<bool>>,
}

impl Wrapper for Paced {
    fn drive(&self) -> &Drive {
        &self.drive
    }

    fn read(&self, offset: u64, len: usize) -> DriveFuture<Bytes> {
        let read = self.drive.read(offset, len);
        let (env, is_over) = (self.env.clone(), Rc::clone(&self.is_over));
        let deadline = env.now() + time_for(len as u64, self.bytes_per_second);
        Box::pin(async move {
            let bytes = read.await;
            rest_until(&env, deadline, &is_over).await;
            bytes
        })
    }
}

/// How long so many bytes take at this rate; no time at all if that is 0.
fn time_for(bytes: u64, bytes_per_second: u64) -> Duration {
    match bytes_per_second {
        0 => Duration::ZERO,
        rate => Duration::from_secs_f64(bytes as f64 / rate as f64),
    }
}

/// Waits until then, or until the chain closes.
async fn rest_until(env: &Env, deadline: Time, is_over: &Cell<bool>) {
    while env.now() < deadline && !is_over.get() {
        env.sleep_until(deadline.min(env.now() + REST_STEP)).await;
    }
}

impl Chain {
    /// Reads and checks everything that closed segments hold, once, at no more than `scrub_bytes_per_second` a side; see
    /// [`ChainOptions`](crate::ChainOptions). On return what one side lacked and another had is written again, and what none has is
    /// in [`Stats::damage`](crate::Stats). Errors: the chain has stopped, or closes. Dropping the future ends the pass
    /// with the segment that it is at.
    pub async fn scrub(&self) -> Result<(), ChainError> {
        let inner = &self.inner;
        for (segment, lap) in inner.all_closed() {
            inner.check_running()?;
            inner.by_itself(async move |inner| inner.scrub_segment(segment, lap).await).await;
        }
        inner.note_pass();
        Ok(())
    }
}

impl Inner {
    /// Starts the task that scrubs from time to time. It ends with the chain.
    pub(super) fn spawn_scrubber(self: &Rc<Self>) {
        let (rate, every) = {
            let options = &self.core.borrow().options;
            (options.scrub_bytes_per_second, options.scrub_every)
        };
        if rate == 0 {
            return;
        }
        let (env, weak) = (self.env.clone(), Rc::downgrade(self));
        self.env.spawn(async move {
            env.sleep(every.min(FIRST_PASS_AFTER)).await;
            loop {
                let Some(inner) = weak.upgrade() else { return };
                let segments = inner.all_closed();
                drop(inner);
                for (segment, lap) in segments {
                    let Some(inner) = weak.upgrade() else { return };
                    if inner.check_running().is_err() {
                        return;
                    }
                    inner.scrub_segment(segment, lap).await;
                }
                let Some(inner) = weak.upgrade() else { return };
                inner.note_pass();
                drop(inner);
                env.sleep(every).await;
            }
        });
    }

    /// Closed segments with their laps, in the order of the chain.
    fn all_closed(&self) -> Vec<(u32, u64)> {
        let core = self.core.borrow();
        core.catalog.all_closed().map(|(segment, closed)| (segment, closed.lap)).collect()
    }

    fn note_pass(&self) {
        let mut scrubbed = self.scrubbed.get();
        scrubbed.passes += 1;
        self.scrubbed.set(scrubbed);
    }

    /// Reads a segment on every live side of its link, if it still is in this use. A drive that fails is left to those who need
    /// what is on it.
    async fn scrub_segment(self: &Rc<Self>, segment: u32, lap: u64) {
        let place = Place { segment, lap: Some(lap) };
        let _busy = self.busy.one_more();
        match self.scrub_groups(place, lap).await {
            Ok(has_footer) => {
                let mut scrubbed = self.scrubbed.get();
                scrubbed.segments += 1;
                self.scrubbed.set(scrubbed);
                // What it cannot read of it by now is named.
                self.core.borrow_mut().look_again_at_damaged(Some(lap));
                self.changed.ring();
                if !has_footer {
                    self.clean_without_footer(segment, lap).await;
                }
            }
            Err(Interrupted::Drive(error)) => {
                tracing::warn!(%error, segment, "a segment could not be scrubbed to its end");
            }
            Err(
                Interrupted::Recycled | Interrupted::Removed | Interrupted::LeftBehind | Interrupted::Closing,
            ) => {}
        }
    }

    /// Returns whether it has its footer.
    async fn scrub_groups(self: &Rc<Self>, place: Place, lap: u64) -> Result<bool, Interrupted> {
        let segment = place.segment;
        let device = self.device_of(segment).ok_or(Interrupted::Recycled)?;
        device.wake();
        let sides = device.live();
        let (geometry, options) = {
            let core = self.core.borrow();
            (core.geometry, core.options.clone())
        };
        let paced: Vec<Drive> =
            sides.iter().map(|side| self.paced(side, options.scrub_bytes_per_second)).collect();
        let chain = self.identity.id;
        let target =
            ScanTarget { sides: &paced, geometry, chain, segment, lap: Some(lap), options: &options };
        let mut harm = Harm { known: self.known_damage(segment), ..Harm::default() };
        let scan = scan_segment(&target).await?;
        // Of a record in a group that is not found it is not known whether it is there.
        let is_found =
            |at: u32| scan.groups.iter().any(|it| it.head.identity.offset <= at && at < it.end_offset());
        harm.known.retain(|it| !matches!(it.kind, DamageKind::Data { .. }) || is_found(it.offset));
        for group in scan.groups.iter().filter(|group| group.is_uneven || !group.bad.is_empty()) {
            self.scrub_group(&device, &sides, place, lap, group, &mut harm).await?;
        }
        self.scrub_frame(&device, &sides, place, lap, &mut harm).await?;
        harm.unread.map_or(Ok(()), Err)?;
        let catalog = &mut self.core.borrow_mut().catalog;
        if catalog.is_lap(segment, lap) {
            catalog.damage.retain(|it| !harm.known.contains(it) || harm.found.contains(it));
        }
        Ok(harm.found.iter().all(|it| it.kind != DamageKind::Footer))
    }

    /// Moves what is left in a segment that has lost its footer, as the groups tell it as long as they are whole: harm to one of them could
    /// not be named any more by what it held. If there is room; else the next scrub has it moved.
    async fn clean_without_footer(self: &Rc<Self>, segment: u32, lap: u64) {
        if self.core.borrow().options.cleaning == Cleaning::Off {
            return;
        }
        let _turn = self.begin_cleaning().await;
        if self.check_running().is_ok() && !self.is_closing.get() {
            // Why it has failed stops the chain too.
            let _ = self.clean(segment, lap, Cause::Footer).await;
        }
    }

    /// What is known to be harmed of a segment, of what a scrub looks at: not the groups that are not there.
    fn known_damage(&self, segment: u32) -> Vec<Damage> {
        let core = self.core.borrow();
        let damage = core.catalog.damage.iter();
        damage.filter(|it| it.segment == segment && !it.is_of_groups()).cloned().collect()
    }

    fn paced(&self, side: &Side, bytes_per_second: u64) -> Drive {
        if bytes_per_second == 0 {
            return side.drive.clone();
        }
        let (drive, env) = (side.drive.clone(), self.env.clone());
        Drive::new(Rc::new(Paced { drive, env, bytes_per_second, is_over: Rc::clone(&self.is_closing) }))
    }

    /// Makes a range of the segment the same on all sides as on one that has it. It rests between its pieces, while it keeps nobody away from
    /// them.
    async fn copy_to_others(
        &self,
        device: &Sides,
        sides: &[Side],
        from: usize,
        place: Place,
        range: Range<u64>,
    ) -> Result<(), Interrupted> {
        let (start, rate) = {
            let core = self.core.borrow();
            (core.geometry.segment_start(place.segment), core.options.scrub_bytes_per_second)
        };
        let range = start + range.start..start + range.end;
        for (_, side) in sides.iter().enumerate().filter(|(index, _)| *index != from) {
            let mut has_differed = false;
            for at in range.clone().step_by(BACKGROUND_IO_BYTES) {
                let piece = at..range.end.min(at + BACKGROUND_IO_BYTES as u64);
                let deadline = self.env.now() + time_for(piece.end - piece.start, rate);
                let source = sides[from].drive.clone();
                has_differed |= self.copy(device, side, place, piece, Some(source)).await?;
                rest_until(&self.env, deadline, &self.is_closing).await;
            }
            if has_differed {
                self.note_repair(side, range.start);
            }
        }
        Ok(())
    }

    pub(super) fn note_repair(&self, side: &Side, offset: u64) {
        tracing::warn!(drive = %side.drive.name(), offset, "a harmed place is written again");
        self.repaired.set(self.repaired.get() + 1);
    }

    /// A group that not all sides have as a whole: each may have some of it.
    async fn scrub_group(
        self: &Rc<Self>,
        device: &Sides,
        sides: &[Side],
        place: Place,
        lap: u64,
        group: &ScannedGroup,
        harm: &mut Harm,
    ) -> Result<(), Interrupted> {
        let mut lost = group.bad.clone();
        if sides.len() > 1 {
            let put = self.put_together(device, sides, place, group).await?;
            self.note_put_together(place, group, &put);
            lost.retain(|record| put.lost.contains(record));
        }
        for run in &group.area.runs {
            for record in records_of(&run.view(), place.segment, lap) {
                let keys = record.key..record.key + 1;
                let bytes = record.place.offset..record.place.offset + record.place.len;
                let is_lost = lost.contains(&(keys.clone(), bytes.clone())) && self.is_needed(record);
                if !is_lost {
                    continue;
                }
                // An owner may have written it again.
                match self.is_whole_elsewhere(record.key, place.segment).await {
                    Ok(true) => {}
                    Ok(false) => {
                        let kind = DamageKind::Data { keys };
                        let damage = Damage { kind, ..damage(place.segment, bytes) };
                        harm.found.push(damage.clone());
                        self.add_damage(place, damage);
                    }
                    Err(error) => harm.unread = Some(error),
                }
            }
        }
        Ok(())
    }

    /// Whether anybody still needs a record that a segment holds.
    fn is_needed(&self, record: Placed) -> bool {
        match &self.owner {
            Some(owner) => owner.is_live(record),
            None => !self.core.borrow().catalog.released.contains(record.key),
        }
    }

    /// Header, footer and trailer.
    async fn scrub_frame(
        &self,
        device: &Sides,
        sides: &[Side],
        place: Place,
        lap: u64,
        harm: &mut Harm,
    ) -> Result<(), Interrupted> {
        let (geometry, segment) = (self.core.borrow().geometry, place.segment);
        let (start, bytes) = (geometry.segment_start(segment), geometry.segment_bytes);
        let (mut headers, mut trailers) = (Vec::new(), Vec::new());
        let unanswered = device.unanswered(sides);
        for side in sides {
            let block = read_lenient(&side.drive, start, BLOCK_BYTES).await?;
            let is_right = |it: &SegmentHeader| it.lap == lap && it.kind == SegmentKind::Open;
            headers.push(SegmentHeader::decode(&block).ok().filter(is_right));
            let block = read_lenient(&side.drive, start + bytes - BLOCK_BYTES as u64, BLOCK_BYTES).await?;
            let trailer = Trailer::decode(&block).ok().filter(|it| it.lap == lap && it.segment == segment);
            let is_whole = match &trailer {
                Some(trailer) => is_footer_good(&side.drive, geometry, trailer).await?,
                None => false,
            };
            trailers.push(trailer.filter(|_| is_whole));
        }
        let have_answered = device.unanswered(sides) == unanswered;
        let header = 0..BLOCK_BYTES as u64;
        let has_header = self.scrub_part(device, sides, place, header.clone(), &headers).await?;
        let end =
            trailers.iter().flatten().next().map_or(bytes - BLOCK_BYTES as u64, |it| it.end_offset.into());
        let has_footer = self.scrub_part(device, sides, place, end..bytes, &trailers).await?;
        let parts = [(has_header, header, DamageKind::Frame), (has_footer, end..bytes, DamageKind::Footer)];
        if !have_answered {
            // A side that did not answer may have it, or not.
            harm.known.retain(|it| matches!(it.kind, DamageKind::Data { .. }));
            return Ok(());
        }
        for (_, range, kind) in parts.into_iter().filter(|(is_there, ..)| !is_there) {
            let damage = Damage { kind, ..damage(segment, range.start as u32..range.end as u32) };
            harm.found.push(damage.clone());
            self.add_damage(place, damage);
        }
        if has_footer {
            self.core.borrow_mut().catalog.forget_short(lap);
            return Ok(());
        }
        let is_whole = {
            let catalog = &self.core.borrow().catalog;
            catalog.index_of(segment, lap).is_some() && catalog.lacking(lap).is_none()
        };
        if is_whole {
            return Ok(());
        }
        // Groups that are lost show by nothing else then, and whoever has the drive removed would be told to try again for ever.
        match self.rebuild(segment, lap, UnreadGroups::CountAsLost).await {
            Err(ReadError::Drive(error)) => Err(error.into()),
            Ok(()) | Err(ReadError::Damaged { .. }) => Ok(()),
        }
    }

    /// A part of a segment that some sides have, and others may not. Returns whether one has it.
    async fn scrub_part<T>(
        &self,
        device: &Sides,
        sides: &[Side],
        place: Place,
        range: Range<u64>,
        found: &[Option<T>],
    ) -> Result<bool, Interrupted> {
        let Some(from) = found.iter().position(Option::is_some) else { return Ok(false) };
        if !found.iter().all(Option::is_some) {
            self.copy_to_others(device, sides, from, place, range).await?;
        }
        Ok(true)
    }

    /// Names what a reader has found to be lost, unless it is known.
    pub(crate) fn note_damage(&self, segment: u32, lap: u64, offset: u32, bytes: u32, kind: DamageKind) {
        let place = Place { segment, lap: Some(lap) };
        self.add_damage(place, Damage { segment, offset, bytes, kind });
    }

    /// Names what is lost, unless it is known.
    fn add_damage(&self, place: Place, damage: Damage) {
        let catalog = &mut self.core.borrow_mut().catalog;
        let is_here = place.lap.is_some_and(|lap| catalog.is_lap(place.segment, lap));
        if is_here && !catalog.damage.contains(&damage) {
            tracing::error!(?damage, "something is lost");
            catalog.damage.push(damage);
        }
    }
}

fn damage(segment: u32, bytes: Range<u32>) -> Damage {
    Damage { segment, offset: bytes.start, bytes: bytes.end - bytes.start, kind: DamageKind::Frame }
}
