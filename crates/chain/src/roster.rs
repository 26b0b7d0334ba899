//! The drives of a chain with their superblocks: read at an open, rewritten when drives come and go.

use bytes::Bytes;
use ithaca_env::drive::{Drive, DriveError, Durability, PageBuf};

use crate::error::OpenError;
use crate::format::Superblock;
use crate::limits::{LINKS_MAX, SUPERBLOCK_COPIES, SUPERBLOCK_QUORUM, SUPERBLOCK_STRIDE_BYTES};
use crate::links::{Drives, Link, Links};
use crate::membership::{DriveId, Member, Membership, Seen, decide};
use crate::options::{ChainOptions, Geometry, Identity};
use crate::recover::{check_size, read_superblock};

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
        let mut superblock = self.superblock.clone();
        change(&mut superblock);
        superblock.sequence += 1;
        write_superblock(&self.drive, &superblock).await?;
        (self.superblock, self.copies) = (superblock, SUPERBLOCK_COPIES);
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

    /// The drive that makes this link.
    pub(crate) fn of_link(&mut self, link: u32) -> Option<&mut MemberDrive> {
        let place = self.membership.members.iter().position(|member| member.link == link)?;
        self.drives.get_mut(place)
    }

    /// Makes every superblock say what the open decided, if a crash has left them in the middle of a change or harm has
    /// come to a copy. On return all of them are on stable storage.
    pub(crate) async fn settle(&mut self) -> Result<(), DriveError> {
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
            if it.superblock.membership != *membership || it.copies < SUPERBLOCK_COPIES {
                it.rewrite(|superblock| superblock.membership = membership.clone()).await?;
            }
        }
        self.membership = membership.clone();
        Ok(())
    }
}

/// Writes half of the copies, a quorum, and the other half when those are durable: at any time two copies are equal.
async fn write_superblock(drive: &Drive, superblock: &Superblock) -> Result<(), DriveError> {
    let mut block = PageBuf::default();
    block.extend(&superblock.encode());
    write_copies(drive, &block.freeze()).await
}

/// Makes the drive one of no chain: its superblock is zeros.
pub(crate) async fn erase_superblock(drive: &Drive) -> Result<(), DriveError> {
    write_copies(drive, &PageBuf::zeroed(ithaca_env::limits::BLOCK_BYTES).freeze()).await
}

async fn write_copies(drive: &Drive, block: &Bytes) -> Result<(), DriveError> {
    for first in (0..SUPERBLOCK_COPIES).step_by(SUPERBLOCK_QUORUM) {
        let copies = first..(first + SUPERBLOCK_QUORUM).min(SUPERBLOCK_COPIES);
        let writes: Vec<_> = copies
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
