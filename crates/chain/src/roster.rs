//! The drives of a chain with their superblocks: read at an open, rewritten when drives come and go.

use bytes::Bytes;
use ithaca_env::drive::{Drive, DriveError, Durability, PageBuf};
use ithaca_env::limits::BLOCK_BYTES;

use crate::error::OpenError;
use crate::format::Superblock;
use crate::limits::{LINKS_MAX, SUPERBLOCK_COPIES, SUPERBLOCK_QUORUM, SUPERBLOCK_STRIDE_BYTES};
use crate::links::{Drives, Link, Links};
use crate::membership::{DriveId, Member, Membership, Seen, decide};
use crate::options::{ChainOptions, Geometry, Identity};
use crate::recover::{check_size, read_lenient, read_superblock};

/// A drive, and what its superblock says now.
#[derive(Clone)]
pub(crate) struct MemberDrive {
    pub(crate) drive: Drive,
    pub(crate) superblock: Superblock,
    /// Copies of the superblock that are as they should be.
    pub(crate) copies: usize,
}

/// All drives of a chain, in its order.
#[derive(Clone)]
pub(crate) struct Roster {
    pub(crate) drives: Vec<MemberDrive>,
    /// Which drives the chain has. A superblock may still say something else after a crash; see [`Roster::settle`].
    pub(crate) membership: Membership,
}

/// Reads the superblocks of all drives and decides which chain they make. Writes nothing.
pub(crate) async fn gather(drives: &Drives, options: &ChainOptions) -> Result<Roster, OpenError> {
    if drives.0.len() > LINKS_MAX {
        return Err(OpenError::TooManyDrives { found: drives.0.len(), max: LINKS_MAX });
    }
    let mut found = Vec::with_capacity(drives.0.len());
    for drive in &drives.0 {
        let (superblock, copies) = read_superblock(drive).await?;
        found.push(MemberDrive { drive: drive.clone(), superblock, copies });
    }
    let seen: Vec<Seen> =
        found.iter().map(|it| Seen { name: it.drive.name(), superblock: it.superblock.clone() }).collect();
    let membership = decide(&seen, options)?;
    let place =
        |it: &MemberDrive| membership.members.iter().position(|member| member.drive == it.superblock.drive);
    found.sort_by_key(place);
    for it in &found {
        check_size(&it.drive, Geometry::new(it.superblock.segment_bytes), it.superblock.segments)?;
    }
    Ok(Roster { drives: found, membership })
}

impl MemberDrive {
    /// Changes the superblock. On return the new one is on stable storage, all copies; after a crash in between the drive
    /// has the old one or the new one.
    pub(crate) async fn rewrite(&mut self, change: impl FnOnce(&mut Superblock)) -> Result<(), DriveError> {
        self.mend().await?;
        let mut superblock = self.superblock.clone();
        change(&mut superblock);
        superblock.sequence += 1;
        let at_once = if self.copies == 0 { 1 } else { SUPERBLOCK_QUORUM };
        write_copies(&self.drive, &encoded(&superblock), at_once).await?;
        (self.superblock, self.copies) = (superblock, SUPERBLOCK_COPIES);
        Ok(())
    }

    /// Writes copies again that harm has come to. The others get the bytes they have, so that a crash does them no harm.
    async fn mend(&mut self) -> Result<(), DriveError> {
        if (1..SUPERBLOCK_COPIES).contains(&self.copies) {
            write_copies(&self.drive, &encoded(&self.superblock), SUPERBLOCK_COPIES).await?;
            self.copies = SUPERBLOCK_COPIES;
        }
        Ok(())
    }

    fn id(&self) -> DriveId {
        self.superblock.drive
    }
}

impl Roster {
    /// A chain that is about to be made of these drives. Nothing is written.
    pub(crate) fn new(drives: Vec<(Drive, DriveId)>, identity: &Identity, geometry: Geometry) -> Self {
        let members: Vec<Member> = drives
            .iter()
            .enumerate()
            .map(|(link, (_, id))| Member { drive: *id, link: link as u32 })
            .collect();
        let membership = Membership { generation: 1, members, earlier: Some(Vec::new()) };
        let drives = drives
            .into_iter()
            .map(|(drive, id)| {
                let segments = geometry.segments_in(drive.size_bytes());
                let superblock = Superblock {
                    identity: identity.clone(),
                    sequence: 0,
                    segment_bytes: geometry.segment_bytes,
                    drive: id,
                    segments,
                    membership: membership.clone(),
                };
                MemberDrive { drive, superblock, copies: 0 }
            })
            .collect();
        Self { drives, membership }
    }

    /// Whose chain it is.
    pub(crate) fn identity(&self) -> &Identity {
        &self.drives[0].superblock.identity
    }

    /// Bytes of a segment.
    pub(crate) fn segment_bytes(&self) -> u64 {
        self.drives[0].superblock.segment_bytes
    }

    /// The links that the drives make.
    pub(crate) fn links(&self) -> Links {
        let members = self.membership.members.iter();
        Links::new(self.drives.iter().zip(members).map(|(it, member)| {
            assert_eq!(it.id(), member.drive, "drives are in the order of the members");
            Link { number: member.link, device: it.drive.clone() }
        }))
    }

    /// Whether a superblock is one of this chain and its drive is no member: it was removed, or never quite added.
    pub(crate) fn is_stranger(&self, superblock: &Superblock) -> bool {
        let members = &self.membership.members;
        superblock.identity == *self.identity()
            && members.iter().all(|member| member.drive != superblock.drive)
    }

    /// The drive that makes this link.
    pub(crate) fn of_link(&mut self, link: u32) -> Option<&mut MemberDrive> {
        let place = self.membership.members.iter().position(|member| member.link == link)?;
        self.drives.get_mut(place)
    }

    /// Makes every superblock say what the open decided, if a crash has left them in the middle of a change or harm has
    /// come to a copy. On return all of them are on stable storage.
    pub(crate) async fn settle(&mut self) -> Result<(), DriveError> {
        for it in &mut self.drives {
            it.mend().await?;
        }
        let target = self.membership.decided();
        let is_there = |it: &&MemberDrive| it.superblock.membership.generation == target.generation;
        let there: Vec<&MemberDrive> = self.drives.iter().filter(is_there).collect();
        let pending = there.first().map(|it| it.superblock.membership.clone());
        if there.iter().all(|it| it.superblock.membership.earlier.is_some())
            && let Some(pending) = pending
        {
            self.write_all(&pending).await?;
        }
        self.write_all(&target).await
    }

    /// Makes every drive's superblock say `membership`, one after the other.
    pub(crate) async fn write_all(&mut self, membership: &Membership) -> Result<(), DriveError> {
        for it in &mut self.drives {
            if it.superblock.membership != *membership || it.copies == 0 {
                it.rewrite(|superblock| superblock.membership = membership.clone()).await?;
            }
        }
        self.membership = membership.clone();
        Ok(())
    }
}

/// Whether the drive holds what a crash leaves of a superblock that was being written or erased, and no member of this
/// chain: at most one copy that is not zeros, or one of this chain that is good.
pub(crate) async fn is_left_over(drive: &Drive, roster: &Roster) -> Result<bool, DriveError> {
    let mut written = 0;
    let mut is_strangers = false;
    for copy in 0..SUPERBLOCK_COPIES {
        let block = read_lenient(drive, (copy * SUPERBLOCK_STRIDE_BYTES) as u64, BLOCK_BYTES).await?;
        written += usize::from(block.iter().any(|&byte| byte != 0));
        is_strangers |= Superblock::decode(&block).is_ok_and(|found| roster.is_stranger(&found));
    }
    Ok(written <= 1 || is_strangers)
}

/// Makes the drive one of no chain: its superblock is zeros.
pub(crate) async fn erase_superblock(drive: &Drive) -> Result<(), DriveError> {
    write_copies(drive, &PageBuf::zeroed(BLOCK_BYTES).freeze(), 1).await
}

fn encoded(superblock: &Superblock) -> Bytes {
    let mut block = PageBuf::default();
    block.extend(&superblock.encode());
    block.freeze()
}

/// Writes the copies, so many at a time. Two of four leave two that are equal if a crash tears them; on a drive whose copies
/// are not equal before or after, one at a time leaves no more than one that is neither.
async fn write_copies(drive: &Drive, block: &Bytes, at_once: usize) -> Result<(), DriveError> {
    for first in (0..SUPERBLOCK_COPIES).step_by(at_once) {
        let writes: Vec<_> = (first..first + at_once)
            .map(|copy| {
                let offset = (copy * SUPERBLOCK_STRIDE_BYTES) as u64;
                drive.write(offset, block.clone(), Durability::Durable)
            })
            .collect();
        for write in writes {
            write.await?;
        }
    }
    Ok(())
}
