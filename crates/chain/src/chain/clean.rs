//! The cleaner: makes room of segments in which some records are released and some are not.
//!
//! It reads the footer of the segment that the core has chosen, then the records that are left, appends them again, and gives
//! the segment back when a durable group says that the copies are durable. It works while few segments are free, and
//! rests between its batches unless it is urgent: the log comes first.

use std::rc::Rc;

use super::Inner;
use super::open::wipe_segment;
use super::victim::{Measured, Victim};
use crate::cache::{FooterPart, PartKey};
use crate::core::{Cause, PassedBy};
use crate::error::{AppendError, ChainError, ReadError};
use crate::links::link_of;
use crate::planted::PlantedBug;
use crate::read::FetchError;

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
pub(super) enum Unclean {
    PassedBy(PassedBy),
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
        }
    }
}

impl From<ReadError> for Unclean {
    fn from(error: ReadError) -> Self {
        tracing::debug!(%error, "a segment cannot be cleaned");
        Self::PassedBy(PassedBy::Damaged)
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
        if self.is_closing.get() || !self.core.borrow_mut().is_cleaning_due() {
            return false;
        }
        let Some(_turn) = self.try_begin_cleaning() else { return false };
        let chosen = self.core.borrow_mut().choose_victim();
        match chosen {
            Some((segment, lap)) => self.clean(segment, lap, Cause::Space).await.is_ok(),
            // With one victim, closing the body segment gives as much room as it has taken.
            None if self.core.borrow().waiting().len() > 1 => self.finish_body().await.is_ok(),
            None => false,
        }
    }

    /// Moves all records that are not released away from a link. Returns why that was not possible, if it was not. Errors: the chain has
    /// stopped, or closes: that is not kept waiting for all of a drive.
    pub(super) async fn clean_link(self: &Rc<Self>, link: u32) -> Result<Option<PassedBy>, ChainError> {
        let _turn = self.begin_cleaning().await;
        // What is in a body segment that is not closed does not count, and may be on this link.
        self.end_body().await?;
        let mut passed = None;
        let segments = self.core.borrow_mut().closed_on(link);
        for (segment, lap) in segments {
            if self.is_closing.get() {
                return Err(ChainError::Closed);
            }
            self.grow_for_copies().await?;
            if let Some(why) = self.clean(segment, lap, Cause::Leaving).await? {
                passed = Some(why);
            }
        }
        Ok(passed)
    }

    /// Closes the body segment, if one is open: it may be on a link that leaves.
    pub(super) async fn settle_body(self: &Rc<Self>) -> Result<(), ChainError> {
        let _turn = self.begin_cleaning().await;
        self.end_body().await
    }

    pub(super) async fn end_body(self: &Rc<Self>) -> Result<(), ChainError> {
        match self.finish_body().await {
            Err(Unclean::Stopped(why)) => Err(why),
            _ => Ok(()),
        }
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

    /// Waits until nobody else cleans.
    pub(super) async fn begin_cleaning(self: &Rc<Self>) -> Turn {
        self.cleaning_over.until(|| self.try_begin_cleaning()).await
    }

    fn try_begin_cleaning(self: &Rc<Self>) -> Option<Turn> {
        (!self.is_cleaning.replace(true)).then(|| Turn { inner: Rc::clone(self) })
    }

    /// Cleans one closed segment. On return it is free; or it is as it was, and why is returned.
    pub(super) async fn clean(
        self: &Rc<Self>,
        segment: u32,
        lap: u64,
        cause: Cause,
    ) -> Result<Option<PassedBy>, ChainError> {
        let why = match self.move_and_free(segment, lap, cause).await {
            Ok(()) => return Ok(None),
            Err(Unclean::Stopped(why)) => return Err(why),
            Err(Unclean::Over) => {
                self.core.borrow_mut().give_up_cleaning();
                return Ok(None);
            }
            Err(Unclean::PassedBy(why)) => why,
        };
        let is_new = self.core.borrow_mut().pass_by(segment, lap, why);
        if is_new && why == PassedBy::Damaged {
            tracing::warn!(
                segment,
                lap,
                "the cleaner passes by a segment that is damaged: it is kept as it is"
            );
        }
        Ok(Some(why))
    }

    async fn move_and_free(self: &Rc<Self>, segment: u32, lap: u64, cause: Cause) -> Result<(), Unclean> {
        if !self.core.borrow().catalog.is_lap(segment, lap) {
            return Err(Unclean::Over);
        }
        let frees_damaged = self.core.borrow().options.planted.is(PlantedBug::CleanerFreesDamaged);
        if self.core.borrow().is_harmed(segment) && !frees_damaged {
            return Err(Unclean::PassedBy(PassedBy::Damaged));
        }
        let victim = self.victim(segment, lap, cause).await?;
        let Measured { needed_bytes, least_bytes, live, runs } = self.measure(&victim).await?;
        {
            let mut core = self.core.borrow_mut();
            let began = core.begin_cleaning(segment, lap, needed_bytes, least_bytes, live, cause);
            began.map_err(Unclean::PassedBy)?;
        }
        self.move_records(&victim, runs).await?;
        if self.core.borrow().has_body()
            && !self.core.borrow().options.planted.is(PlantedBug::BodyCountsEarly)
        {
            self.core.borrow_mut().let_victim_wait();
            return Ok(());
        }
        let needs_vouched = self.make_certain().await?;
        self.check_nobody_needs(&victim).await?;
        self.give_back(segment, lap, needs_vouched).await?;
        self.core.borrow_mut().give_up_cleaning();
        Ok(())
    }

    /// Frees the victims whose copies were in the body segment that is closed now.
    pub(super) async fn free_waiting(self: &Rc<Self>) -> Result<(), Unclean> {
        let waiting = self.core.borrow_mut().take_waiting();
        if waiting.is_empty() {
            return Ok(());
        }
        let needs_vouched = self.make_certain().await?;
        for (segment, lap) in waiting {
            match self.free_one(segment, lap, needs_vouched).await {
                Err(Unclean::Stopped(why)) => return Err(Unclean::Stopped(why)),
                // If it was not freed it may be cleaned again.
                Ok(()) | Err(Unclean::PassedBy(_) | Unclean::Over) => {}
            }
        }
        Ok(())
    }

    async fn free_one(self: &Rc<Self>, segment: u32, lap: u64, needs_vouched: u64) -> Result<(), Unclean> {
        let victim = self.victim(segment, lap, Cause::Space).await?;
        self.check_nobody_needs(&victim).await?;
        Ok(self.give_back(segment, lap, needs_vouched).await?)
    }

    /// The victim, with the directory of its footer.
    async fn victim(&self, segment: u32, lap: u64, cause: Cause) -> Result<Victim, Unclean> {
        let key = PartKey { segment, lap, page: None };
        match self.load_footer_part(key, 0).await?.into_iter().next() {
            Some((_, FooterPart::Directory(directory))) => {
                let batch_bytes = self.core.borrow_mut().copies_batch_bytes();
                Ok(Victim { segment, lap, directory, cause, batch_bytes })
            }
            _ => Err(self.harmed_or_over(segment, lap)),
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
