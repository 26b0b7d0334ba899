//! Adding and removing a drive while the chain serves.
//!
//! Both write the superblocks of all drives twice, first as pending, then as decided; see `membership`. A drive takes its
//! first record after that, and has given up its last before.

use std::rc::Rc;

use ithaca_env::drive::{Drive, DriveError, Durability, PageBuf};
use ithaca_env::limits::BLOCK_BYTES;
use ithaca_env::sync::oneshot;

use super::open::{grow_to_least, mark_free};
use super::{Chain, Inner};
use crate::core::{Batch, Effect, Leaving};
use crate::error::{ChainError, ChangeError, OpenError};
use crate::format::Superblock;
use crate::limits::LINKS_MAX;
use crate::links::segment_of;
use crate::membership::{DriveId, Member, Membership};
use crate::options::planted;
use crate::recover::{read_lenient, read_superblock};
use crate::roster::{MemberDrive, Roster, erase_superblock, is_left_over};

/// Segments that a drive must hold to be worth adding; a file grows to it.
const ADDED_SEGMENTS: u32 = 2;

/// Who may rewrite superblocks. Dropping it lets the next one.
pub(super) struct Taken {
    inner: Rc<Inner>,
    /// The keeper was kept from growing a drive meanwhile, and must look again.
    wakes_keeper: bool,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.inner.is_roster_taken.set(false);
        self.inner.roster_free.ring();
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
    /// `AlreadyThere`, `SuperblockLost`, `TooSmall`, `TooManyDrives` or `Drive`: nothing has changed then; `Stopped`.
    /// Dropping the future gives up the answer, not the change.
    pub async fn add_drive(&self, drive: Drive) -> Result<DriveId, ChangeError> {
        let chain = self.clone();
        self.to_its_end(async move { chain.add(drive).await }).await
    }

    /// Takes a drive out of the chain: from then on the log goes on without it. On return it is blank again, and the other
    /// drives say durably that it is no member; a crash before that leaves the chain with it or without it.
    ///
    /// Errors: `HoldsRecords` if records are left on it that are not released, `LastDrive`, `NoRoom` if the others have no
    /// segments free, `NoSuchDrive`, `Refused`: the drive goes on being used then; `Stopped`. Dropping the future gives up the
    /// answer, not the change.
    pub async fn remove_drive(&self, id: DriveId) -> Result<(), ChangeError> {
        let chain = self.clone();
        self.to_its_end(async move { chain.remove(id).await }).await
    }

    /// Runs a change in a task of its own: one that stopped halfway would leave drives that say different things.
    async fn to_its_end<T: 'static>(
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
        let _taken = inner.take_roster().await;
        inner.check_running()?;
        let mut roster = inner.roster.borrow().clone();
        let (link, sequence) = inner.check_new(&roster, &drive).await?;
        let id = DriveId(inner.env.random_u64());
        inner.clear(&drive, link).await.map_err(OpenError::Drive)?;
        let Membership { generation, members, .. } = roster.membership.clone();
        let mut after = members.clone();
        after.push(Member { drive: id, link });
        let pending = Membership { generation: generation + 1, members: after, earlier: Some(members) };
        let segments = inner.core.borrow().geometry.segments_in(drive.size_bytes());
        let superblock = Superblock {
            drive: id,
            segments,
            membership: pending.clone(),
            sequence,
            ..roster.drives[0].superblock.clone()
        };
        let mut added = MemberDrive { drive, superblock, copies: 0 };
        let is_used_early = planted!(inner.core.borrow().options, AddUsedBeforeMember);
        if is_used_early {
            roster.drives.push(added.clone());
            roster.membership = pending.clone();
            inner.go_on_with(&roster, link, segments);
        } else {
            // First the new drive, which may still turn out not to work.
            added.rewrite(|_| ()).await.map_err(OpenError::Drive)?;
            roster.drives.push(added);
        }
        inner.write_roster(&mut roster, &pending).await?;
        inner.write_roster(&mut roster, &pending.decided()).await?;
        if is_used_early {
            *inner.roster.borrow_mut() = roster;
        } else {
            inner.go_on_with(&roster, link, segments);
        }
        Ok(id)
    }

    async fn remove(&self, id: DriveId) -> Result<(), ChangeError> {
        let inner = &self.inner;
        let _taken = inner.take_roster().await;
        inner.check_running()?;
        let mut roster = inner.roster.borrow().clone();
        let place = roster.membership.members.iter().position(|member| member.drive == id);
        let Some(place) = place else { return Err(ChangeError::NoSuchDrive { id }) };
        if roster.drives.len() == 1 {
            return Err(ChangeError::LastDrive { drive: roster.drives[0].drive.name() });
        }
        let link = roster.membership.members[place].link;
        let name = roster.drives[place].drive.name();
        inner.set_leaving(link, true);
        if let Err(error) = self.empty(link, &name).await {
            inner.set_leaving(link, false);
            return Err(error);
        }
        let Membership { generation, members, .. } = roster.membership.clone();
        let mut after = members.clone();
        after.remove(place);
        let pending = Membership { generation: generation + 1, members: after, earlier: Some(members) };
        inner.write_roster(&mut roster, &pending).await?;
        let removed = roster.drives.remove(place);
        inner.write_roster(&mut roster, &pending.decided()).await?;
        inner.core.borrow_mut().remove_link(link);
        *inner.links.borrow_mut() = roster.links();
        *inner.roster.borrow_mut() = roster;
        // Only a courtesy: it is refused as a drive of the chain whether it is blank or not.
        if let Err(error) = erase_superblock(&removed.drive).await {
            tracing::warn!(%error, "the drive that was removed is not blank");
        }
        Ok(())
    }

    /// Waits until nothing of the log is written to a leaving link, and checks that nothing is left on it.
    async fn empty(&self, link: u32, name: &str) -> Result<(), ChangeError> {
        let inner = &self.inner;
        if !inner.core.borrow_mut().has_room_without_leaving() {
            return Err(ChangeError::NoRoom { drive: name.to_owned() });
        }
        // A group on another link that says that everything on this one was durable.
        let ticket = inner.core.borrow_mut().append(Batch::default()).map_err(ChangeError::Refused)?;
        inner.pump.ring();
        self.wait(ticket).await?;
        let left = inner.changed.until(|| {
            let mut core = inner.core.borrow_mut();
            if let Some(why) = core.stopped() {
                return Some(Err(why.clone()));
            }
            let leaving = core.leaving(link);
            (leaving != Leaving::Busy).then_some(Ok(leaving))
        });
        match left.await? {
            Leaving::Holds(segments) => Err(ChangeError::HoldsRecords { drive: name.to_owned(), segments }),
            Leaving::Empty | Leaving::Busy => Ok(()),
        }
    }

    /// The drives of the chain, in its order.
    pub fn drive_ids(&self) -> Vec<DriveId> {
        self.inner.roster.borrow().membership.members.iter().map(|member| member.drive).collect()
    }
}

impl Inner {
    /// Waits until nobody else rewrites superblocks.
    pub(super) async fn take_roster(self: &Rc<Self>) -> Taken {
        let mut taken = self.roster_free.until(|| self.try_take_roster()).await;
        taken.wakes_keeper = true;
        taken
    }

    /// Takes them if nobody else has.
    pub(super) fn try_take_roster(self: &Rc<Self>) -> Option<Taken> {
        (!self.is_roster_taken.replace(true)).then(|| Taken { inner: Rc::clone(self), wakes_keeper: false })
    }

    fn check_running(&self) -> Result<(), ChainError> {
        if self.is_closing.get() {
            return Err(ChainError::Closed);
        }
        self.core.borrow().stopped().map_or(Ok(()), |why| Err(why.clone()))
    }

    /// Whether the drive may be added; gives the number of its link, and the sequence of the superblock it has.
    async fn check_new(&self, roster: &Roster, drive: &Drive) -> Result<(u32, u64), OpenError> {
        let members = &roster.membership.members;
        let is_used = |link: &u32| members.iter().any(|member| member.link == *link);
        let Some(link) = (0..LINKS_MAX as u32).find(|link| !is_used(link)) else {
            return Err(OpenError::TooManyDrives { found: members.len() + 1, max: LINKS_MAX });
        };
        let (geometry, options) = {
            let core = self.core.borrow();
            (core.geometry, core.options.clone())
        };
        let sequence = match read_superblock(drive).await {
            Err(OpenError::NotAChain { .. } | OpenError::TooSmall { .. }) => 0,
            Err(OpenError::SuperblockLost { .. }) if is_left_over(drive, roster).await? => 0,
            Err(error) => return Err(error),
            // Left over from a change that was not finished, or from before the drive was removed.
            Ok((superblock, _)) if roster.is_stranger(&superblock) => superblock.sequence,
            Ok((superblock, _)) => {
                let id = superblock.identity.id;
                return Err(OpenError::AlreadyThere { drive: drive.name(), id });
            }
        };
        grow_to_least(drive, geometry, &options, ADDED_SEGMENTS).await?;
        Ok((link, sequence))
    }

    /// Marks every segment of a drive as free that holds anything, so that nothing of an earlier use is taken for ours.
    async fn clear(&self, drive: &Drive, link: u32) -> Result<(), DriveError> {
        let (geometry, lap) = {
            let core = self.core.borrow();
            (core.geometry, core.highest_lap())
        };
        for index in 0..geometry.segments_in(drive.size_bytes()) {
            let segment = segment_of(link, index);
            let start = geometry.segment_start(segment);
            let first_group = start + BLOCK_BYTES as u64;
            let trailer = start + geometry.segment_bytes - BLOCK_BYTES as u64;
            let mut is_blank = true;
            for offset in [start, first_group, trailer] {
                let block = read_lenient(drive, offset, BLOCK_BYTES).await?;
                is_blank &= block.iter().all(|&byte| byte == 0);
            }
            if !is_blank {
                mark_free(drive, self.identity.id, geometry, segment, lap).await?;
                // The header is zeroed when the segment is prepared for its first use. By either of these an open would then take
                // the segment for one in use.
                for offset in [first_group, trailer] {
                    drive.write(offset, PageBuf::zeroed(BLOCK_BYTES).freeze(), Durability::Durable).await?;
                }
            }
        }
        drive.sync().await
    }

    /// Writes all superblocks; if that fails the chain stops, because the drives may disagree from then on.
    async fn write_roster(
        self: &Rc<Self>,
        roster: &mut Roster,
        membership: &Membership,
    ) -> Result<(), ChainError> {
        let Err(first) = roster.write_all(membership).await else { return Ok(()) };
        let failed = ChainError::Failed { first };
        let mut effects = Vec::new();
        self.core.borrow_mut().stop(failed.clone(), &mut effects);
        self.start(effects);
        Err(failed)
    }

    fn go_on_with(self: &Rc<Self>, roster: &Roster, link: u32, segments: u32) {
        *self.links.borrow_mut() = roster.links();
        *self.roster.borrow_mut() = roster.clone();
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
