//! The drives of an open chain with their superblocks: one at a time rewrites them.
//!
//! A side that fails a write is marked as stale in the superblocks of all other drives: as pending on all of them, then
//! as decided on all of them. Only then is the write done, so that whoever has seen it done finds the mark on every drive
//! that an open can go by. The side itself is told too if it can be.

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;

use ithaca_env::drive::DriveError;
use ithaca_env::sync::Notify;

use crate::membership::{DriveId, Member, Membership};
use crate::options::ChainOptions;
use crate::planted::PlantedBug;
use crate::roster::Roster;

/// What the superblocks say now.
pub(crate) struct Registry {
    roster: RefCell<Roster>,
    is_taken: Cell<bool>,
    /// Rings when it is free again.
    free: Notify,
    options: ChainOptions,
}

/// Whoever has this may rewrite superblocks. It must not wait for writes to links meanwhile: they may wait for it.
pub(crate) struct Taken {
    registry: Rc<Registry>,
    /// What it changes; the others see it when it is stored.
    pub(crate) roster: Roster,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.registry.is_taken.set(false);
        self.registry.free.ring();
    }
}

impl Registry {
    pub(crate) fn new(roster: Roster, options: ChainOptions) -> Rc<Self> {
        roster.tell_pulses();
        Rc::new(Self {
            roster: RefCell::new(roster),
            is_taken: Cell::new(false),
            free: Notify::default(),
            options,
        })
    }

    /// What the superblocks say.
    pub(crate) fn roster(&self) -> Ref<'_, Roster> {
        self.roster.borrow()
    }

    /// Whether the drive has everything that was acknowledged, as far as is known.
    pub(crate) fn is_live(&self, drive: DriveId) -> bool {
        self.roster.borrow().is_live(drive)
    }

    /// Whether the drive is one of the chain, live or stale.
    pub(crate) fn is_member(&self, drive: DriveId) -> bool {
        self.roster.borrow().membership.member(drive).is_some()
    }

    /// Whether the drives are the chain's to write to: not one's that is only read, and not after [`Registry::unlock`].
    pub(crate) fn may_write(&self) -> bool {
        !self.options.rescue && self.roster.borrow().drives.iter().any(|it| it.lock.is_some())
    }

    /// Nothing is under way on the drives, and nothing will be: others may have them.
    pub(crate) fn unlock(&self) {
        self.roster.borrow_mut().drives.iter_mut().for_each(|it| it.lock = None);
    }

    /// Waits until nobody else rewrites superblocks.
    pub(crate) async fn take(self: &Rc<Self>) -> Taken {
        self.free.until(|| (!self.is_taken.replace(true)).then_some(())).await;
        let roster = self.roster.borrow().clone();
        Taken { registry: Rc::clone(self), roster }
    }

    /// Marks sides as stale that failed with `error`. On return every live drive says so, durably. Errors: a link is left
    /// without a live side, with `error`; a drive that is the only one of its link failed.
    pub(crate) async fn give_up(
        self: &Rc<Self>,
        failed: Vec<DriveId>,
        error: &DriveError,
    ) -> Result<(), DriveError> {
        if self.options.planted.is(PlantedBug::DropNotPersisted) {
            let mut roster = self.roster.borrow_mut();
            roster.membership.members = roster.membership.without(&failed).ok_or_else(|| error.clone())?;
            return Ok(());
        }
        let mut taken = self.take().await;
        tracing::error!(%error, sides = ?failed, "a side of a link failed; the log goes on without it");
        taken.roster.failure = Some(error.clone());
        taken.mark_stale(failed).await?;
        taken.store();
        Ok(())
    }

    /// Marks a side as stale that is too slow, unless its link has no other live one. As [`Registry::give_up`] otherwise.
    pub(crate) async fn leave_behind(self: &Rc<Self>, slow: DriveId) -> Result<(), DriveError> {
        let mut taken = self.take().await;
        if !taken.roster.is_live(slow) || taken.roster.membership.without(&[slow]).is_none() {
            return Ok(());
        }
        tracing::error!(side = %slow, "the log goes on without a side of a link: it is too slow");
        taken.mark_stale(vec![slow]).await?;
        taken.store();
        Ok(())
    }
}

impl Taken {
    /// Marks live sides as stale, and those that fail while they are told of it. On return every drive that is still live
    /// says so, durably. Errors: as of [`Registry::give_up`].
    pub(crate) async fn mark_stale(&mut self, mut lost: Vec<DriveId>) -> Result<(), DriveError> {
        loop {
            let membership = &self.roster.membership;
            lost.retain(|&drive| membership.member(drive).is_some_and(Member::is_live));
            if lost.is_empty() {
                return Ok(());
            }
            let Some(members) = membership.without(&lost) else {
                // Sides that an open misses leave others, so this one failed.
                return Err(self.roster.failure.clone().expect("a side failed"));
            };
            let pending = membership.followed_by(members);
            lost = self.roster.change(&pending).await?;
        }
    }

    /// Makes the members those of `pending`. On return every drive that is live says so, durably. Errors: a drive failed
    /// that is the only live one of its link.
    pub(crate) async fn change(&mut self, pending: &Membership) -> Result<(), DriveError> {
        let failed = self.roster.change(pending).await?;
        self.mark_stale(failed).await
    }

    /// Ends what an open found begun, and marks the sides as stale that it misses. On return every drive that is live
    /// says so, durably. Errors: as of [`Registry::give_up`].
    pub(crate) async fn settle(&mut self) -> Result<(), DriveError> {
        let lost = self.roster.settle().await?;
        self.mark_stale(lost).await
    }

    /// Lets everybody see what was changed.
    pub(crate) fn store(&self) {
        self.roster.tell_pulses();
        self.registry.roster.replace(self.roster.clone());
    }
}
