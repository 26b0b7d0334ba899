//! Background work: a few segments written over in advance, and a file that grows before it is full.
//!
//! A flush into blocks that were never written makes the file system record an allocation first, which takes as long
//! again. So free segments of a file are filled with zeros before they are used, gently: the log comes first. Most of that is done when the
//! log is calm: as many segments as it has taken since the open are made ready then, and a log that is busy does not share its drive. A block
//! device allocates nothing: its segments are used as they are.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::drive::{DriveError, Durability, PageBuf};

use super::Inner;
use super::open::mark_free;
use crate::error::ChainError;
use crate::limits::BACKGROUND_IO_BYTES;
use crate::links::link_of;
use crate::planted::PlantedBug;
use crate::sides::growth_refused;

/// While groups are flying, the keeper rests so many times as long as its last write took.
const REST_FACTOR: u32 = 4;
/// The longest rest: after a write that took long because the drive hung, the log may soon need room that only the keeper
/// makes.
const REST_MAX: Duration = Duration::from_millis(200);
/// What is written at once while groups are flying, if the write before took no longer than [`SHORT_IO_MAX`]: they wait for no more than this.
/// Where each write costs a seek, few large ones cost least.
const SHORT_IO_BYTES: usize = 128 << 10;
const SHORT_IO_MAX: Duration = Duration::from_millis(2);
/// When no group was written for so long, more is written in advance than the log needs soon.
const CALM: Duration = Duration::from_millis(50);
/// A file that had no room to grow on its file system is asked to grow again after this: nobody says when there is some.
const GROW_AGAIN: Duration = Duration::from_secs(1);

impl Inner {
    /// Starts the task. It ends with the chain.
    pub(super) fn spawn_keeper(self: &Rc<Self>) {
        let (changed, weak) = (Rc::clone(&self.changed), Rc::downgrade(self));
        let env = self.env.clone();
        self.env.spawn(async move {
            let mut asked = env.now();
            let (mut written, mut wrote) = (0, env.now());
            loop {
                let ticket = changed.ticket();
                let Some(inner) = weak.upgrade() else { return };
                if inner.core.borrow().stopped().is_some() {
                    return;
                }
                let busy = inner.busy.one_more();
                let again = env.now().since(asked) >= GROW_AGAIN;
                if again {
                    asked = env.now();
                }
                let groups = inner.core.borrow().next_seq();
                if groups != written || inner.core.borrow().is_flying() {
                    (written, wrote) = (groups, env.now());
                }
                let is_calm = env.now().since(wrote) >= CALM;
                let kept = inner.keep(again, is_calm).await;
                drop(busy);
                let goes_on = match kept {
                    Ok(goes_on) => goes_on,
                    Err(first) => {
                        inner.fail(first);
                        return;
                    }
                };
                let may_have_room = inner.core.borrow().may_have_room_later();
                let waits_for_calm =
                    !is_calm && inner.core.borrow().has_raw_for_calm(|link| inner.allocates(link));
                drop(inner);
                let due = [(may_have_room, asked + GROW_AGAIN), (waits_for_calm, wrote + CALM)];
                let due = due.into_iter().filter_map(|(is_due, at)| is_due.then_some(at)).min();
                match (goes_on, due) {
                    (true, _) => {}
                    // Whichever comes first: a chain that is busy rings all the time.
                    (false, Some(due)) => {
                        let _ = env.timeout_at(due, changed.after(ticket)).await;
                    }
                    (false, None) => changed.after(ticket).await,
                }
            }
        });
    }

    /// Stops the chain because a write failed. Returns what it ends with from now on.
    pub(super) fn fail(self: &Rc<Self>, first: DriveError) -> ChainError {
        let failed = ChainError::Failed { first };
        let mut effects = Vec::new();
        self.core.borrow_mut().stop(failed.clone(), &mut effects);
        self.start(effects);
        failed
    }

    /// Lets sides of mirrored links rest that nothing has needed for a while. The task ends with the chain.
    pub(super) fn spawn_sleeper(self: &Rc<Self>) {
        let after = self.core.borrow().options.sleep_after;
        if after.is_zero() {
            return;
        }
        let (env, weak) = (self.env.clone(), Rc::downgrade(self));
        self.env.spawn(async move {
            loop {
                env.sleep(after).await;
                let Some(inner) = weak.upgrade().filter(|inner| inner.check_running().is_ok()) else {
                    return;
                };
                inner.links.borrow().iter().for_each(|link| link.device.rest());
            }
        });
    }

    /// One round. Returns whether another may have something to do. With `again`, files are asked to grow that could not
    /// before.
    async fn keep(self: &Rc<Self>, again: bool, is_calm: bool) -> Result<bool, DriveError> {
        self.grow_if_due(again).await?;
        // While the chain closes nobody would give it back, and what waits to be written may need it.
        let to_prepare = if self.is_closing.get() { None } else { self.take_raw_segment(is_calm) };
        if let Some(segment) = to_prepare {
            self.prepare(segment).await?;
        }
        Ok(to_prepare.is_some())
    }

    async fn grow_if_due(self: &Rc<Self>, again: bool) -> Result<(), DriveError> {
        // While drives come or go none grows; it rings when that is over.
        let Some(_change) = self.try_begin_change() else { return Ok(()) };
        self.grow_once(again).await.map(|_| ())
    }

    /// Lets a file grow if one should. Returns whether one was asked to. Nobody else changes the drives meanwhile.
    pub(super) async fn grow_once(self: &Rc<Self>, again: bool) -> Result<bool, DriveError> {
        let to_grow = self.core.borrow_mut().segments_to_grow_to(again);
        let Some((link, segments)) = to_grow else { return Ok(false) };
        self.grow(link, segments).await?;
        Ok(true)
    }

    /// Lets the other files grow as they should when `link` takes no new segment any more: while it leaves, data would be refused
    /// until they have. Nobody else changes the drives meanwhile.
    pub(super) async fn grow_without(self: &Rc<Self>, link: u32) -> Result<(), DriveError> {
        loop {
            let to_grow = self.core.borrow_mut().segments_to_grow_to_without(link);
            let Some((link, segments)) = to_grow else { return Ok(()) };
            self.grow(link, segments).await?;
        }
    }

    async fn grow(self: &Rc<Self>, link: u32, segments: u32) -> Result<(), DriveError> {
        let size_bytes = self.core.borrow().geometry.bytes_for(segments);
        // A drive that cannot grow stays as large as it is; that is not a failure of what is on it. One that fails to is: what was
        // written before may be gone.
        let grown = match self.device(link).grow(size_bytes).await {
            Ok(()) => Ok(()),
            Err(error) => Err(growth_refused(&error).ok_or(error)?),
        };
        if grown.is_ok() {
            self.record_growth(link, segments).await?;
        }
        let mut effects = Vec::new();
        self.core.borrow_mut().grown(link, segments, grown, &mut effects);
        self.start(effects);
        Ok(())
    }

    /// What lies in the new part is missed by an open only if the superblock says that there was such a part.
    async fn record_growth(&self, link: u32, segments: u32) -> Result<(), DriveError> {
        if self.core.borrow().options.planted.is(PlantedBug::GrowthNotRecorded) {
            return Ok(());
        }
        let mut taken = self.registry.take().await;
        let failed = taken.roster.record_growth(link, segments).await?;
        taken.mark_stale(failed).await?;
        taken.store();
        Ok(())
    }

    /// Writes over as many segments as should be ready, before the chain begins.
    pub(super) async fn prepare_at_once(self: &Rc<Self>) -> Result<(), DriveError> {
        loop {
            let Some(segment) = self.take_raw_segment(false) else { return Ok(()) };
            self.write_over(segment).await?;
            self.core.borrow_mut().set_ready(segment);
        }
    }

    fn take_raw_segment(&self, is_calm: bool) -> Option<u32> {
        self.core.borrow_mut().take_raw_segment(is_calm, |link| self.allocates(link))
    }

    fn allocates(&self, link: u32) -> bool {
        self.device(link).allocates()
    }

    async fn prepare(self: &Rc<Self>, segment: u32) -> Result<(), DriveError> {
        let is_ready = self.write_over(segment).await?;
        let mut effects = Vec::new();
        match is_ready {
            true => self.core.borrow_mut().prepared(segment, &mut effects),
            false => self.core.borrow_mut().give_back_raw(segment, &mut effects),
        }
        self.start(effects);
        Ok(())
    }

    /// Zeros, then a header that says so. Stops halfway when the chain closes, and returns whether it did not: what waits to be written
    /// may need the segment as it is.
    async fn write_over(self: &Rc<Self>, segment: u32) -> Result<bool, DriveError> {
        let geometry = self.core.borrow().geometry;
        let start = geometry.segment_start(segment);
        let device = self.device(link_of(segment));
        let zeros: Bytes = PageBuf::zeroed(BACKGROUND_IO_BYTES.min(geometry.segment_bytes as usize)).freeze();
        let (mut at, mut took) = (0, Duration::ZERO);
        while at < geometry.segment_bytes {
            if self.is_closing.get() {
                // No zeros are to come down on what is written there next.
                device.sync().await?;
                return Ok(false);
            }
            let is_short = self.core.borrow().is_flying() && took < SHORT_IO_MAX;
            let most = if is_short { SHORT_IO_BYTES.min(zeros.len()) } else { zeros.len() };
            let len = (geometry.segment_bytes - at).min(most as u64) as usize;
            let began = self.env.now();
            device.write(start + at, zeros.slice(..len), Durability::Volatile).await?;
            took = self.env.now().since(began);
            // A busy log may need room before this segment is done. (A new chain is not busy.)
            let is_begun = self.core.borrow().is_fenced();
            if is_begun {
                self.grow_if_due(false).await?;
            }
            if self.core.borrow().is_flying() {
                let rest = self.env.now().since(began) * REST_FACTOR;
                self.env.sleep(rest.min(REST_MAX)).await;
            }
            at += len as u64;
        }
        device.sync().await?;
        mark_free(&device, self.identity.id, geometry, segment, 0).await?;
        Ok(true)
    }
}
