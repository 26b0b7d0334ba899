//! The cleaner: makes room of segments in which some records are released and some are not.
//!
//! It reads the footer of the segment that the core has chosen, then the records that are left, appends them again, and gives
//! the segment back when a durable group says that the copies are durable. It works while few segments are free, and
//! rests between its batches unless it is urgent: the log comes first.

use std::cell::OnceCell;
use std::rc::Rc;

use super::Inner;
use super::open::wipe_segment;
use super::remade::Remade;
use super::victim::{Measured, Victim};
use crate::cache::{FooterPart, PartKey};
use crate::catalog::Located;
use crate::core::{Cause, PassedBy};
use crate::error::{AppendError, ChainError, ReadError};
use crate::limits::REFUSED_REST;
use crate::links::link_of;
use crate::planted::PlantedBug;
use crate::read::{FetchError, is_refusal};

/// Who cleans. Dropping it lets the next one.
pub(super) struct Turn {
    inner: Rc<Inner>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.inner.is_cleaning.set(false);
        self.inner.cleaning_over.ring();
    }
}

/// Why a segment was not cleaned.
#[derive(Clone)]
pub(super) enum Unclean {
    PassedBy(PassedBy),
    /// A drive takes no more reads for now.
    Refused,
    /// All of it was released meanwhile, or the chain closes: there is nothing to do.
    Over,
    Stopped(ChainError),
}

impl From<ChainError> for Unclean {
    fn from(why: ChainError) -> Self {
        Self::Stopped(why)
    }
}

impl From<FetchError> for Unclean {
    fn from(error: FetchError) -> Self {
        match error {
            FetchError::Recycled => Self::Over,
            FetchError::Read(error) => error.into(),
            FetchError::Unread { error, .. } => ReadError::Drive(error).into(),
        }
    }
}

impl From<ReadError> for Unclean {
    fn from(error: ReadError) -> Self {
        tracing::debug!(%error, "a segment cannot be cleaned");
        match error {
            ReadError::Drive(error) if is_refusal(&error) => Self::Refused,
            ReadError::Drive(error) => {
                tracing::warn!(%error, "a segment cannot be cleaned because a read failed");
                Self::PassedBy(PassedBy::Unread)
            }
            ReadError::Damaged { .. } => Self::PassedBy(PassedBy::Damaged),
        }
    }
}

impl Inner {
    /// Starts the task. It ends with the chain.
    pub(super) fn spawn_cleaner(self: &Rc<Self>) {
        let (changed, weak) = (Rc::clone(&self.changed), Rc::downgrade(self));
        self.env.spawn(async move {
            loop {
                let ticket = changed.ticket();
                let Some(inner) = weak.upgrade() else { return };
                let busy = inner.busy.one_more();
                let has_cleaned = inner.clean_if_due().await;
                drop(busy);
                if inner.core.borrow().stopped().is_some() {
                    return;
                }
                // A chain that nobody uses any more ends here.
                drop(inner);
                if !has_cleaned {
                    changed.after(ticket).await;
                }
            }
        });
    }

    /// Cleans one segment, or passes one by, if any is due. Returns whether there was one.
    async fn clean_if_due(self: &Rc<Self>) -> bool {
        let readable_since = self.registry.roster().readable_since();
        if self.readable_since.replace(readable_since) != readable_since {
            self.core.borrow_mut().look_again_at_damaged(None);
        }
        if self.is_closing.get() || !self.core.borrow_mut().is_cleaning_due() {
            return false;
        }
        let Some(_turn) = self.try_begin_cleaning() else { return false };
        let chosen = self.core.borrow_mut().choose_victim();
        match chosen {
            Some((segment, lap)) => self.clean(segment, lap, Cause::Space).await.is_ok(),
            None if self.core.borrow().has_body() && self.core.borrow().is_room_coming() => {
                self.finish_body().await.is_ok()
            }
            None => false,
        }
    }

    /// Moves all records that are not released away from a link. Returns why that was not possible, if it was not: as long as a read
    /// failed that may pass, that. Errors: the chain has stopped, or closes: that is not kept waiting for all of a drive.
    pub(super) async fn clean_link(self: &Rc<Self>, link: u32) -> Result<Option<PassedBy>, ChainError> {
        let _turn = self.begin_cleaning().await;
        // What is in a body segment that is not closed does not count, and may be on this link.
        self.finish_body().await?;
        let mut passed = None;
        let segments = self.core.borrow_mut().closed_on(link);
        for (segment, lap) in segments {
            if self.is_closing.get() {
                return Err(ChainError::Closed);
            }
            self.grow_for_copies().await?;
            if let Some(why) = self.clean(segment, lap, Cause::Leaving).await? {
                passed = passed.filter(|&before| before == PassedBy::Unread).or(Some(why));
            }
        }
        // The last one may have been left because of that.
        if self.is_closing.get() && passed.is_none() && !self.core.borrow_mut().closed_on(link).is_empty() {
            return Err(ChainError::Closed);
        }
        Ok(passed)
    }

    /// Closes the body segment, if one is open: it may be on a link that leaves.
    pub(super) async fn settle_body(self: &Rc<Self>) -> Result<(), ChainError> {
        let _turn = self.begin_cleaning().await;
        self.finish_body().await
    }

    /// Files grow before the copies need it. No change of the drives but that of the caller is under way.
    async fn grow_for_copies(self: &Rc<Self>) -> Result<(), ChainError> {
        loop {
            match self.grow_once(false).await {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(first) => return Err(self.fail(first)),
            }
        }
    }

    /// Waits until nobody else cleans, and nothing is being given back.
    pub(super) async fn begin_cleaning(self: &Rc<Self>) -> Turn {
        let turn = self.cleaning_over.until(|| self.try_begin_cleaning()).await;
        self.given_back().await;
        turn
    }

    fn try_begin_cleaning(self: &Rc<Self>) -> Option<Turn> {
        (!self.is_cleaning.replace(true)).then(|| Turn { inner: Rc::clone(self) })
    }

    /// Cleans one closed segment. On return it is free; or it is as it was, and why is returned. If it is cleaned for space it may
    /// still have to be given back, which goes on by itself; and it may have to wait for the end of the body segment.
    pub(super) async fn clean(
        self: &Rc<Self>,
        segment: u32,
        lap: u64,
        cause: Cause,
    ) -> Result<Option<PassedBy>, ChainError> {
        if let Err(why) = self.copy_away(segment, lap, cause).await {
            return self.leave(segment, lap, why);
        }
        let counts_early = self.core.borrow().options.planted.is(PlantedBug::BodyCountsEarly);
        if self.core.borrow().has_body() && !counts_early {
            return Ok(None);
        }
        // One after the other: what a victim says of deleted keys is needed until those before it cannot come back.
        self.given_back().await;
        let copied = self.core.borrow().copied().to_vec();
        if cause != Cause::Space {
            return self.give_back_all(copied).await;
        }
        let (inner, busy) = (Rc::clone(self), self.busy.one_more());
        let giving_back = self.env.spawn(async move {
            // Why it has failed stops the chain too.
            let _ = inner.give_back_all(copied).await;
            drop(busy);
        });
        *self.giving_back.borrow_mut() = Some(giving_back);
        Ok(None)
    }

    /// Waits until the victims are free that are being given back. Returns whether there were any.
    pub(super) async fn given_back(&self) -> bool {
        let Some(giving_back) = self.giving_back.take() else { return false };
        let _ = giving_back.join().await;
        true
    }

    /// A victim stays, or there is nothing to clean of it any more.
    fn leave(&self, segment: u32, lap: u64, why: Unclean) -> Result<Option<PassedBy>, ChainError> {
        let why = match why {
            Unclean::Stopped(why) => return Err(why),
            Unclean::Over | Unclean::Refused => {
                self.core.borrow_mut().give_up_cleaning(segment);
                return Ok(None);
            }
            Unclean::PassedBy(why) => why,
        };
        let is_new = self.core.borrow_mut().pass_by(segment, lap, why);
        if is_new && why.is_unreadable() {
            tracing::warn!(
                segment,
                lap,
                "the cleaner passes by a segment of which it cannot read all: it is kept as it is"
            );
        }
        Ok(Some(why))
    }

    /// Copies what a segment has that is needed.
    async fn copy_away(self: &Rc<Self>, segment: u32, lap: u64, cause: Cause) -> Result<(), Unclean> {
        if !self.core.borrow().catalog.is_lap(segment, lap) {
            return Err(Unclean::Over);
        }
        let frees_damaged = self.core.borrow().options.planted.is(PlantedBug::CleanerFreesDamaged);
        if self.core.borrow().is_harmed(segment) && !frees_damaged {
            return Err(Unclean::PassedBy(PassedBy::Damaged));
        }
        let victim = self.victim(segment, lap, cause).await?;
        let Measured { needed_bytes, least_bytes, live, runs } = self.measure(&victim).await?;
        let is_harmed = |runs: &Vec<Located>| self.core.borrow().is_harm_among(segment, runs);
        if !frees_damaged && runs.as_ref().is_some_and(is_harmed) {
            return Err(Unclean::PassedBy(PassedBy::Damaged));
        }
        let begin = || {
            let mut core = self.core.borrow_mut();
            core.begin_cleaning(segment, lap, needed_bytes, least_bytes, live, cause)
        };
        let mut began = begin();
        if began == Err(PassedBy::NoRoom) && self.given_back().await {
            began = begin();
        }
        began.map_err(Unclean::PassedBy)?;
        self.move_records(&victim, runs).await?;
        self.core.borrow_mut().victim_copied();
        Ok(())
    }

    /// Gives back victims whose records are copied, and durable where they count. On return they are free; or some stay, and why the
    /// last of those does is returned.
    pub(super) async fn give_back_all(
        self: &Rc<Self>,
        copied: Vec<(u32, u64)>,
    ) -> Result<Option<PassedBy>, ChainError> {
        if copied.is_empty() {
            return Ok(None);
        }
        let vouched = self.make_certain().await;
        let mut passed = None;
        for (segment, lap) in copied {
            let given_back = match &vouched {
                Ok(needs_vouched) => self.give_back_one(segment, lap, *needs_vouched).await,
                Err(why) => Err(why.clone()),
            };
            self.core.borrow_mut().copied_is_over(segment, lap);
            if let Err(why) = given_back {
                // If it stays it may be cleaned again.
                passed = self.leave(segment, lap, why)?.or(passed);
            }
        }
        Ok(passed)
    }

    async fn give_back_one(
        self: &Rc<Self>,
        segment: u32,
        lap: u64,
        needs_vouched: u64,
    ) -> Result<(), Unclean> {
        let victim = self.victim(segment, lap, Cause::Space).await?;
        self.check_nobody_needs(&victim).await?;
        Ok(self.give_back(segment, lap, needs_vouched).await?)
    }

    /// The victim, with the directory of its footer.
    async fn victim(&self, segment: u32, lap: u64, cause: Cause) -> Result<Victim, Unclean> {
        let key = PartKey { segment, lap, page: None };
        let read = self.patiently(async || self.footer_part(key, 0).await).await;
        let (directory, remade) = match read {
            Ok(Some(FooterPart::Directory(directory))) => (directory, OnceCell::new()),
            read => {
                let Remade { directory, pages } = self.footer_of_groups(segment, lap, read).await?;
                (directory, OnceCell::from(pages))
            }
        };
        let batch_bytes = self.core.borrow_mut().copies_batch_bytes();
        Ok(Victim { segment, lap, directory, remade, cause, batch_bytes })
    }

    /// What `read` gives, which is tried again after a rest while a drive takes no more reads: that passes, and says nothing of the
    /// segment. Not any more when the chain closes.
    pub(super) async fn patiently<T, E: Into<Unclean>>(
        &self,
        read: impl AsyncFn() -> Result<T, E>,
    ) -> Result<T, Unclean> {
        loop {
            match read().await.map_err(Into::into) {
                Err(Unclean::Refused) if self.check_running().is_ok() => self.env.sleep(REFUSED_REST).await,
                answered => return answered,
            }
        }
    }

    /// A part of its footer is not there: it is in another use, or harmed.
    pub(super) fn harmed_or_over(&self, segment: u32, lap: u64) -> Unclean {
        if self.core.borrow().catalog.is_lap(segment, lap) {
            Unclean::PassedBy(PassedBy::Damaged)
        } else {
            Unclean::Over
        }
    }

    /// Has a group written that vouches for all copies at the tail. On return it is durable. Returns up to which group it had to.
    async fn make_certain(self: &Rc<Self>) -> Result<u64, Unclean> {
        if self.core.borrow().options.planted.is(PlantedBug::VictimFreedUnvouched) {
            return Ok(0);
        }
        let vouched = self.core.borrow_mut().vouch_for_copies();
        self.pump.ring();
        let (ticket, needs_vouched) = vouched.map_err(refused)?;
        if !self.core.borrow().options.planted.is(PlantedBug::VictimFreedEarly) {
            self.durable_from(ticket).await?;
        }
        Ok(needs_vouched)
    }

    /// Marks a cleaned segment as free. On return the drive says so, durably, and nothing is left by which an open could take it
    /// for the segment that it was.
    async fn give_back(
        self: &Rc<Self>,
        segment: u32,
        lap: u64,
        needs_vouched: u64,
    ) -> Result<(), ChainError> {
        let (victim, highest_lap) = {
            let mut core = self.core.borrow_mut();
            (core.free_victim(segment, lap, needs_vouched), core.highest_lap())
        };
        if victim.is_none() {
            return Ok(());
        }
        let (geometry, device) = (self.core.borrow().geometry, self.device(link_of(segment)));
        let wiped = wipe_segment(&device, self.identity.id, geometry, segment, highest_lap).await;
        wiped.map_err(|first| self.fail(first))?;
        let mut effects = Vec::new();
        self.core.borrow_mut().prepared(segment, &mut effects);
        self.start(effects);
        self.changed.ring();
        Ok(())
    }
}

pub(super) fn refused(error: AppendError) -> Unclean {
    match error {
        AppendError::Stopped(why) => Unclean::Stopped(why),
        // What releases and states took meanwhile, or a queue that is full: another time.
        _ => Unclean::PassedBy(PassedBy::NoRoom),
    }
}
