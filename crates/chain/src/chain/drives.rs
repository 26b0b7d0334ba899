//! Adding and removing a drive while the chain serves.
//!
//! Both write the superblocks of all drives twice, first as pending, then as decided; see `membership`. A drive takes its
//! first record after that, and has given up its last before.

use std::rc::Rc;

use ithaca_env::drive::Drive;
use ithaca_env::sync::oneshot;

use super::clear::clear;
use super::open::grow_to_least;
use super::{Chain, Inner};
use crate::core::{Batch, Effect, Leaving, PassedBy};
use crate::error::{ChainError, ChangeError, OpenError};
use crate::foreign::has_only_superblocks;
use crate::limits::LINKS_MAX;
use crate::membership::{DriveId, Member, Membership, SideState};
use crate::patient::patient;
use crate::planted::PlantedBug;
use crate::recover::read_superblock;
use crate::registry::Taken;
use crate::roster::{MemberDrive, Roster, erase_superblock, is_free};
use crate::watch::Pulse;

/// Segments that a drive must hold to be worth adding; a file grows to it.
const ADDED_SEGMENTS: u32 = 2;

/// Who may change the drives. Dropping it lets the next one.
pub(super) struct Change {
    inner: Rc<Inner>,
    /// The keeper was kept from growing a drive meanwhile, and must look again.
    wakes_keeper: bool,
}

impl Drop for Change {
    fn drop(&mut self) {
        self.inner.is_changing.set(false);
        self.inner.change_over.ring();
        if self.wakes_keeper {
            self.inner.changed.ring();
        }
    }
}

impl Chain {
    /// Adds a drive at the end of the chain. On return it is a member, durably on every drive, and the log may go on on
    /// it; a crash before that leaves the chain with it or without it, and an open accepts either set of drives.
    ///
    /// The drive must be blank, or one that this chain has removed: what is on it is given up. Errors: `Open` with
    /// `AlreadyThere`, `NotBlank`, `TooSmall`, `TooManyDrives` or `Drive`: nothing has changed then; `Stopped`.
    /// Dropping the future gives up the answer, not the change.
    pub async fn add_drive(&self, drive: Drive) -> Result<DriveId, ChangeError> {
        let chain = self.clone();
        self.to_its_end(async move { chain.add(drive).await }).await
    }

    /// Takes a drive out of the chain, with the other sides of its link: from then on the log goes on without it. On return it is blank again, and the other
    /// drives say durably that it is no member; a crash before that leaves the chain with it or without it.
    ///
    /// Records on it that are not released are moved to the other drives first.
    ///
    /// Errors: `HoldsRecords` if some of them are damaged or their owner does not let them go, `Unread` if a read failed meanwhile, which
    /// may pass, `LastDrive`, `NoRoom` if the others have no room for them, `NoSuchDrive`, `Refused`: the drive goes on being used then,
    /// as it does if the chain is closed while they are moved; `Stopped`. Dropping the future gives up the answer, not the change.
    pub async fn remove_drive(&self, id: DriveId) -> Result<(), ChangeError> {
        let chain = self.clone();
        self.to_its_end(async move { chain.remove(id).await }).await
    }

    /// Runs a change in a task of its own: one that stopped halfway would leave drives that say different things.
    pub(super) async fn to_its_end<T: 'static>(
        &self,
        change: impl Future<Output = Result<T, ChangeError>> + 'static,
    ) -> Result<T, ChangeError> {
        let (sender, receiver) = oneshot::channel();
        self.inner.env.spawn(async move { sender.send(change.await) });
        // The task ends without an answer only when its process does.
        receiver.await.unwrap_or(Err(ChainError::Closed.into()))
    }

    async fn add(&self, drive: Drive) -> Result<DriveId, ChangeError> {
        let inner = &self.inner;
        let _change = inner.begin_change().await;
        inner.check_running()?;
        let link = self.free_link().await?;
        let roster = inner.registry.roster().clone();
        let sequence = inner.check_new(&roster, &drive).await?;
        let lock = drive.try_lock().map_err(OpenError::Drive)?;
        let id = DriveId(inner.env.random_u64());
        let geometry = inner.core.borrow().geometry;
        clear(&inner.env, &drive, geometry, drive.size_bytes()).await.map_err(OpenError::Drive)?;
        let mut taken = inner.registry.take().await;
        let roster = &mut taken.roster;
        let mut members = roster.membership.members.clone();
        members.push(Member { drive: id, link, state: SideState::Live });
        let pending = roster.membership.followed_by(members);
        let segments = geometry.segments_in(drive.size_bytes());
        let pulse = Pulse::new(&inner.env, &inner.core.borrow().options, &inner.changed);
        let mut added = roster.newcomer((pulse.watch(id, drive), lock), (id, segments, sequence), &pending);
        roster.pulses.insert(link, pulse);
        let is_used_early = inner.core.borrow().options.planted.is(PlantedBug::AddUsedBeforeMember);
        if is_used_early {
            roster.drives.push(added.clone());
            roster.membership = pending.clone();
            taken.store();
            inner.go_on_with(link, segments);
        } else {
            // First the new drive, which may still turn out not to work.
            added.rewrite(|_| ()).await.map_err(OpenError::Drive)?;
            roster.drives.push(added);
        }
        inner.write_change(&mut taken, &pending).await?;
        taken.store();
        if !is_used_early {
            inner.go_on_with(link, segments);
        }
        Ok(id)
    }

    async fn remove(&self, id: DriveId) -> Result<(), ChangeError> {
        let inner = &self.inner;
        let _change = inner.begin_change().await;
        inner.check_running()?;
        let (link, name) = inner.check_leaving(id)?;
        inner.grow_without(link).await.map_err(|first| inner.fail(first))?;
        inner.set_leaving(link, true);
        if let Err(error) = self.empty(link, &name).await {
            inner.set_leaving(link, false);
            return Err(error);
        }
        let mut taken = inner.registry.take().await;
        let membership = &taken.roster.membership;
        let mut members = membership.members.clone();
        members.retain(|member| member.link != link);
        let pending = membership.followed_by(members);
        let is_leaving = |it: &MemberDrive| pending.member(it.id()).is_none();
        let leaving: Vec<MemberDrive> =
            taken.roster.drives.iter().filter(|it| is_leaving(it)).cloned().collect();
        inner.write_change(&mut taken, &pending).await?;
        taken.store();
        drop(taken);
        inner.core.borrow_mut().remove_link(link);
        let device = inner.device(link);
        let links = inner.links.borrow().without(link);
        inner.links.replace(links);
        // A rebuild or a scrub may be copying something there: it comes to its end, and nobody begins anything any more.
        drop(device.claim(0..u64::MAX).await);
        // Only a courtesy: they are refused as drives of the chain whether they are blank or not.
        for it in leaving {
            if let Err(error) = erase_superblock(&it.drive).await {
                tracing::warn!(%error, "a drive that was removed is not blank");
            }
        }
        Ok(())
    }

    /// Waits until nothing of the log is written to a leaving link, and moves what is left on it.
    async fn empty(&self, link: u32, name: &str) -> Result<(), ChangeError> {
        let inner = &self.inner;
        if !inner.core.borrow_mut().has_room_without_leaving() {
            return Err(ChangeError::NoRoom { drive: name.to_owned() });
        }
        inner.settle_body().await?;
        // A group on another link that says that everything on this one was durable.
        let ticket = inner.core.borrow_mut().append_own(Batch::default()).map_err(ChangeError::Refused)?;
        inner.pump.ring();
        let left = inner.changed.until(|| {
            let mut core = inner.core.borrow_mut();
            if let Some(why) = core.stopped() {
                return Some(Err(why.clone()));
            }
            // While the chain closes no segment is prepared that the log could go on in.
            if inner.is_closing.get() {
                return Some(Err(ChainError::Closed));
            }
            let leaving = core.leaving(link);
            (core.durable() >= ticket && leaving != Leaving::Busy).then_some(Ok(leaving))
        });
        if let Leaving::Holds(_) = left.await? {
            self.move_away(link, name).await?;
        }
        Ok(())
    }

    /// A number for a new link. A census may still name segments of a link that had it before: on a blank drive they would be missed. So
    /// one that the newest census does not name comes first, and if there is none another census is waited for.
    async fn free_link(&self) -> Result<u32, ChangeError> {
        let inner = &self.inner;
        let link = {
            let (roster, core) = (inner.registry.roster(), inner.core.borrow());
            let membership = &roster.membership;
            let is_free = |link: &u32| membership.members.iter().all(|member| member.link != *link);
            let free = || (0..LINKS_MAX as u32).filter(is_free);
            let found = membership.members.len() + 1;
            let link = free().find(|link| !core.may_be_named(*link)).or_else(|| free().next());
            link.ok_or(OpenError::TooManyDrives { found, max: LINKS_MAX })?
        };
        while inner.core.borrow().may_be_named(link) && inner.core.borrow_mut().ask_for_census() {
            let ticket =
                inner.core.borrow_mut().append_own(Batch::default()).map_err(ChangeError::Refused)?;
            inner.pump.ring();
            self.wait(ticket).await?;
        }
        Ok(link)
    }

    /// Moves what is left on a leaving link to the others.
    async fn move_away(&self, link: u32, name: &str) -> Result<(), ChangeError> {
        let drive = name.to_owned();
        let passed = self.inner.clean_link(link).await?;
        // Counted afterwards: what was passed by may have been released since.
        match (self.inner.core.borrow_mut().closed_on(link).len() as u32, passed) {
            (0, _) => Ok(()),
            (_, Some(PassedBy::NoRoom)) => Err(ChangeError::NoRoom { drive }),
            (segments, Some(PassedBy::Unread)) => Err(ChangeError::Unread { drive, segments }),
            (segments, _) => Err(ChangeError::HoldsRecords { drive, segments }),
        }
    }

    /// The drives of the chain, in its order.
    pub fn drive_ids(&self) -> Vec<DriveId> {
        self.inner.registry.roster().membership.members.iter().map(|member| member.drive).collect()
    }
}

impl Inner {
    /// Waits until no other change of the drives is under way.
    pub(super) async fn begin_change(self: &Rc<Self>) -> Change {
        let mut change = self.change_over.until(|| self.try_begin_change()).await;
        change.wakes_keeper = true;
        change
    }

    /// Begins a change if no other is under way.
    pub(super) fn try_begin_change(self: &Rc<Self>) -> Option<Change> {
        (!self.is_changing.replace(true)).then(|| Change { inner: Rc::clone(self), wakes_keeper: false })
    }

    /// The link that leaves with this drive, and its name.
    fn check_leaving(&self, id: DriveId) -> Result<(u32, String), ChangeError> {
        let roster = self.registry.roster();
        let Some(member) = roster.membership.member(id) else { return Err(ChangeError::NoSuchDrive { id }) };
        let drive = roster.drive(id).map_or_else(|| id.to_string(), |it| it.drive.name());
        if roster.membership.members.iter().all(|other| other.link == member.link) {
            return Err(ChangeError::LastDrive { drive });
        }
        Ok((member.link, drive))
    }

    pub(super) fn check_running(&self) -> Result<(), ChainError> {
        if self.is_closing.get() {
            return Err(ChainError::Closed);
        }
        self.core.borrow().stopped().map_or(Ok(()), |why| Err(why.clone()))
    }

    /// Whether the drive may be added; gives the sequence of the superblock it has.
    pub(super) async fn check_new(&self, roster: &Roster, drive: &Drive) -> Result<u64, OpenError> {
        let (geometry, options) = {
            let core = self.core.borrow();
            (core.geometry, core.options.clone())
        };
        let read_drive = patient(&self.env, drive);
        let sequence = match read_superblock(&read_drive).await {
            Err(
                OpenError::NotAChain { .. } | OpenError::TooSmall { .. } | OpenError::SuperblockLost { .. },
            ) => match is_free(&read_drive, roster).await? {
                true => 0,
                false => return Err(OpenError::NotBlank { drive: drive.name() }),
            },
            Err(error) => return Err(error),
            // Left over from a change that was not finished, or from before the drive was removed.
            Ok((superblock, _)) if roster.is_stranger(&superblock) => {
                match has_only_superblocks(&read_drive).await? {
                    true => superblock.sequence,
                    false => return Err(OpenError::NotBlank { drive: drive.name() }),
                }
            }
            Ok((superblock, _)) => {
                let id = superblock.identity.id;
                return Err(OpenError::AlreadyThere { drive: drive.name(), id });
            }
        };
        grow_to_least(drive, geometry, &options, ADDED_SEGMENTS).await?;
        Ok(sequence)
    }

    /// Makes the members those of `pending`; if that fails the chain stops, because the drives may disagree from then on.
    pub(super) async fn write_change(
        self: &Rc<Self>,
        taken: &mut Taken,
        pending: &Membership,
    ) -> Result<(), ChainError> {
        let Err(first) = taken.change(pending).await else { return Ok(()) };
        Err(self.fail(first))
    }

    fn go_on_with(self: &Rc<Self>, link: u32, segments: u32) {
        let added = self.registry.roster().link(link, &self.registry);
        let links = self.links.borrow().with(added);
        self.links.replace(links);
        let mut effects = Vec::new();
        self.core.borrow_mut().add_link(link, segments, &mut effects);
        self.start(effects);
    }

    fn set_leaving(self: &Rc<Self>, link: u32, is_leaving: bool) {
        let mut effects: Vec<Effect> = Vec::new();
        self.core.borrow_mut().set_leaving(link, is_leaving, &mut effects);
        self.start(effects);
    }
}
