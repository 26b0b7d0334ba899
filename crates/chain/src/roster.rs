//! The drives of a chain with their superblocks: read at an open, rewritten when drives come and go.

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_env::drive::{Drive, DriveError, DriveLock, Durability, PageBuf};
use ithaca_env::limits::BLOCK_BYTES;
use ithaca_env::sync::Notify;
use ithaca_env::task;

use crate::error::OpenError;
use crate::foreign::{is_blank, is_ours_behind_zone};
use crate::format::Superblock;
use crate::limits::{
    DRIVES_MAX, SUPERBLOCK_COPIES, SUPERBLOCK_QUORUM, SUPERBLOCK_STRIDE_BYTES, SUPERBLOCK_ZONE_BYTES,
};
use crate::links::{Drives, Link, Links};
use crate::membership::{Decision, DriveId, Member, Membership, Seen, SideState, decide};
use crate::notary::Notary;
use crate::options::{ChainOptions, Geometry, Identity};
use crate::owner::Keys;
use crate::recover::{check_size, read_lenient, read_superblock};
use crate::registry::Registry;
use crate::sides::{Side, Sides};
use crate::watch::Pulse;

/// A drive, and what its superblock says now.
#[derive(Clone)]
pub(crate) struct MemberDrive {
    pub(crate) drive: Drive,
    pub(crate) superblock: Superblock,
    /// Copies of the superblock that are as they should be.
    pub(crate) copies: usize,
    /// While the chain may write to it.
    pub(crate) lock: Option<Rc<DriveLock>>,
}

/// The drives of a chain that are there, in its order.
#[derive(Clone)]
pub(crate) struct Roster {
    pub(crate) drives: Vec<MemberDrive>,
    /// Which drives the chain has. A superblock may still say something else after a crash; see [`Roster::settle`].
    pub(crate) membership: Membership,
    /// Live sides that are not there or are old copies; see [`Decision::lost`].
    pub(crate) lost: Vec<DriveId>,
    /// The last error of a side that could not be told of a change.
    pub(crate) failure: Option<DriveError>,
    /// What the sides of each link are doing, once they are watched.
    pub(crate) pulses: BTreeMap<u32, Pulse>,
    /// Who is told of every generation that counts.
    pub(crate) notary: Option<Rc<dyn Notary>>,
}

/// Reads the superblocks of all drives and decides which chain they make. Writes nothing. With `locks` nobody else of this process
/// writes to them from before the first read on. What `read_by` gives for a drive is read instead of it.
pub(crate) async fn gather(
    drives: &Drives,
    options: &ChainOptions,
    locks: bool,
    read_by: impl Fn(&Drive) -> Drive,
) -> Result<Roster, OpenError> {
    let given: Vec<&Drive> = drives.links.iter().flatten().collect();
    if given.len() > DRIVES_MAX {
        return Err(OpenError::TooManyDrives { found: given.len(), max: DRIVES_MAX });
    }
    let mut found = Vec::with_capacity(given.len());
    for drive in given {
        let lock = if locks { Some(Rc::new(drive.try_lock()?)) } else { None };
        let (superblock, copies) = read_superblock(&read_by(drive)).await?;
        found.push(MemberDrive { drive: drive.clone(), superblock, copies, lock });
    }
    let seen: Vec<Seen> =
        found.iter().map(|it| Seen { name: it.drive.name(), superblock: it.superblock.clone() }).collect();
    let Decision { membership, lost } = decide(&seen, drives.notary.as_deref(), options)?;
    let place =
        |it: &MemberDrive| membership.members.iter().position(|member| member.drive == it.superblock.drive);
    found.sort_by_key(place);
    let is_live = |it: &&MemberDrive| {
        let member = membership.member(it.id());
        member.is_some_and(Member::is_live) && !lost.contains(&it.id())
    };
    for it in found.iter().filter(is_live) {
        check_size(&it.drive, Geometry::new(it.superblock.segment_bytes), it.superblock.segments)?;
    }
    let notary = drives.notary.clone();
    Ok(Roster { drives: found, membership, lost, failure: None, pulses: BTreeMap::new(), notary })
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

    /// Which drive it is.
    pub(crate) fn id(&self) -> DriveId {
        self.superblock.drive
    }
}

impl Roster {
    /// A chain that is about to be made of these drives. Nothing is written.
    pub(crate) fn new(
        drives: Vec<(Drive, DriveLock, DriveId, u32)>,
        identity: &Identity,
        geometry: Geometry,
        keys: Keys,
        notary: Option<Rc<dyn Notary>>,
    ) -> Self {
        let members: Vec<Member> = drives
            .iter()
            .map(|&(_, _, drive, link)| Member { drive, link, state: SideState::Live })
            .collect();
        let membership = Membership { generation: 1, members, earlier: Some(Vec::new()) };
        let drives = drives
            .into_iter()
            .map(|(drive, lock, id, _)| {
                let segments = geometry.segments_in(drive.size_bytes());
                let superblock = Superblock {
                    identity: identity.clone(),
                    sequence: 0,
                    segment_bytes: geometry.segment_bytes,
                    keys,
                    drive: id,
                    segments,
                    membership: membership.clone(),
                };
                MemberDrive { drive, superblock, copies: 0, lock: Some(Rc::new(lock)) }
            })
            .collect();
        Self { drives, membership, lost: Vec::new(), failure: None, pulses: BTreeMap::new(), notary }
    }

    /// Watches every drive from now on. A link's sides are watched together; `changed` rings when one that did not answer does.
    pub(crate) fn watched(mut self, env: &Env, options: &ChainOptions, changed: &Rc<Notify>) -> Self {
        for it in &mut self.drives {
            if let Some(member) = self.membership.member(it.id()) {
                let pulse = self.pulses.entry(member.link);
                let pulse = pulse.or_insert_with(|| Pulse::new(env, options, changed));
                it.drive = pulse.watch(it.id(), it.drive.clone());
            }
        }
        self
    }

    /// Whether the drive has everything that was acknowledged, as far as is known.
    pub(crate) fn is_live(&self, drive: DriveId) -> bool {
        !self.lost.contains(&drive) && self.membership.member(drive).is_some_and(Member::is_live)
    }

    /// Lets those who watch the sides know which are live.
    pub(crate) fn tell_pulses(&self) {
        self.pulses.values().for_each(|pulse| pulse.set_live(|drive| self.is_live(drive)));
    }

    /// What has to be asked again of what could not be read while this was another: sides have answered since that did not, or others
    /// are live.
    pub(crate) fn readable_since(&self) -> (u64, u64) {
        (self.pulses.values().map(Pulse::returns).sum(), self.membership.generation)
    }

    /// A drive that is about to join, by its id, how many segments it has, and the sequence of the superblock that it had. Nothing
    /// is written.
    pub(crate) fn newcomer(
        &self,
        (drive, lock): (Drive, DriveLock),
        (id, segments, sequence): (DriveId, u32, u64),
        pending: &Membership,
    ) -> MemberDrive {
        let of_a_member = self.drives[0].superblock.clone();
        let membership = pending.clone();
        let superblock = Superblock { drive: id, segments, membership, sequence, ..of_a_member };
        MemberDrive { drive, superblock, copies: 0, lock: Some(Rc::new(lock)) }
    }

    /// Whose chain it is.
    pub(crate) fn identity(&self) -> &Identity {
        &self.drives[0].superblock.identity
    }

    /// How often a key may be written.
    pub(crate) fn keys(&self) -> Keys {
        self.drives[0].superblock.keys
    }

    /// Bytes of a segment.
    pub(crate) fn segment_bytes(&self) -> u64 {
        self.drives[0].superblock.segment_bytes
    }

    /// The links that the drives make; `registry` has this roster.
    pub(crate) fn links(&self, registry: &Rc<Registry>) -> Links {
        let mut links: Vec<u32> = Vec::new();
        for member in &self.membership.members {
            if !links.contains(&member.link) {
                links.push(member.link);
            }
        }
        Links::new(links.into_iter().map(|link| self.link(link, registry)))
    }

    /// One of them.
    pub(crate) fn link(&self, link: u32, registry: &Rc<Registry>) -> Link {
        let sides = self.sides_of(link).map(|it| Side { id: it.id(), drive: it.drive.clone() });
        Link { number: link, device: Sides::new(sides.collect(), registry, self.pulses.get(&link)) }
    }

    fn sides_of(&self, link: u32) -> impl Iterator<Item = &MemberDrive> {
        let is_of = move |it: &&MemberDrive| {
            self.membership.member(it.id()).is_some_and(|member| member.link == link)
        };
        self.drives.iter().filter(is_of)
    }

    /// The names of all drives, for errors that are about all of them.
    pub(crate) fn names(&self) -> String {
        self.drives.iter().map(|it| it.drive.name()).collect::<Vec<_>>().join(", ")
    }

    /// How many drives of the chain are not there.
    pub(crate) fn missing(&self) -> usize {
        self.membership.members.iter().filter(|member| self.drive(member.drive).is_none()).count()
    }

    /// The drive, if it is there.
    pub(crate) fn drive(&self, id: DriveId) -> Option<&MemberDrive> {
        self.drives.iter().find(|it| it.id() == id)
    }

    /// Whether a superblock is one of this chain and its drive is no member: it was removed, or never quite added.
    pub(crate) fn is_stranger(&self, superblock: &Superblock) -> bool {
        let members = &self.membership.members;
        superblock.identity == *self.identity()
            && members.iter().all(|member| member.drive != superblock.drive)
    }

    /// Says on every live side of a link that it has so many segments. Gives the sides that failed.
    pub(crate) async fn record_growth(
        &mut self,
        link: u32,
        segments: u32,
    ) -> Result<Vec<DriveId>, DriveError> {
        let is_grown = |it: &MemberDrive| {
            self.membership.member(it.id()).is_some_and(|member| member.link == link && member.is_live())
        };
        let places = self.places(is_grown);
        let mut failed = Vec::new();
        let grown =
            async |it: &mut MemberDrive| it.rewrite(|superblock| superblock.segments = segments).await;
        self.on_each(places, grown, &mut failed).await?;
        Ok(failed)
    }

    /// Makes every superblock say what the open decided, if a crash has left them in the middle of a change or harm has
    /// come to a copy. On return all that are live say it on stable storage, but for those given back: they failed.
    pub(crate) async fn settle(&mut self) -> Result<Vec<DriveId>, DriveError> {
        let mut failed = self.lost.clone();
        let places = self.places(|it| self.is_told(it, &failed));
        self.on_each(places, MemberDrive::mend, &mut failed).await?;
        let target = self.membership.decided();
        let is_there = |it: &&MemberDrive| it.superblock.membership.generation == target.generation;
        let there: Vec<&MemberDrive> = self.drives.iter().filter(is_there).collect();
        let pending = there.first().map(|it| it.superblock.membership.clone());
        if there.iter().all(|it| it.superblock.membership.earlier.is_some())
            && let Some(pending) = pending
        {
            self.write_all(&pending, &mut failed).await?;
        }
        self.write_all(&target, &mut failed).await?;
        Ok(failed)
    }

    /// Makes the members those of `pending`: writes it as pending on every drive, then as decided. On return all drives
    /// that are live in it say so, but for those given back: they failed.
    pub(crate) async fn change(&mut self, pending: &Membership) -> Result<Vec<DriveId>, DriveError> {
        let mut failed = Vec::new();
        self.write_all(pending, &mut failed).await?;
        // A drive that leaves has heard of it, and is told no more.
        self.drives.retain(|it| pending.member(it.superblock.drive).is_some());
        self.write_all(&pending.decided(), &mut failed).await?;
        Ok(failed)
    }

    /// Makes every drive's superblock say `membership`, but those in `failed`, to which sides are added that cannot be written to. What is
    /// decided the notary is told then, and stale ones if they can be.
    pub(crate) async fn write_all(
        &mut self,
        membership: &Membership,
        failed: &mut Vec<DriveId>,
    ) -> Result<(), DriveError> {
        self.membership = membership.clone();
        let says_so = |it: &MemberDrive| it.superblock.membership == *membership && it.copies != 0;
        let places = self.places(|it| !says_so(it) && self.is_told(it, failed));
        let told = async |it: &mut MemberDrive| {
            it.rewrite(|superblock| superblock.membership = membership.clone()).await
        };
        self.on_each(places, told, failed).await?;
        if membership.earlier.is_none() {
            if let Some(notary) = &self.notary {
                notary.tell(membership.generation).await;
            }
            for place in 0..self.drives.len() {
                let id = self.drives[place].id();
                let stale = membership.member(id).filter(|member| !member.is_live());
                if let Some(member) = stale
                    && let Err(error) = self.tell_stale(place, member.link, membership).await
                {
                    tracing::warn!(%error, drive = %id, "a stale side could not be told that it is stale");
                }
            }
        }
        Ok(())
    }

    /// Where the drives are in `drives` that are so.
    fn places(&self, is_so: impl Fn(&MemberDrive) -> bool) -> Vec<usize> {
        (0..self.drives.len()).filter(|&place| is_so(&self.drives[place])).collect()
    }

    /// Does this to drives, to all at the same time: of a link on which nothing else is asked a side that does not answer is given up
    /// only because another does. Those that failed are noted.
    async fn on_each(
        &mut self,
        places: Vec<usize>,
        work: impl AsyncFn(&mut MemberDrive) -> Result<(), DriveError>,
        failed: &mut Vec<DriveId>,
    ) -> Result<(), DriveError> {
        let begin = |&place: &usize| {
            let (mut it, work) = (self.drives[place].clone(), &work);
            async move {
                let ended = work(&mut it).await;
                (place, it, ended)
            }
        };
        let ended = task::gather(places.iter().map(begin).collect(), |_| false).await;
        let mut answers = Vec::new();
        for (place, it, answer) in ended.into_iter().flatten() {
            self.drives[place] = it;
            answers.push((place, answer));
        }
        answers.into_iter().try_for_each(|(place, answer)| self.note(place, answer, failed))
    }

    /// Tells a side that is stale, which may have stopped to answer: what failed on it waits for this to be acknowledged.
    async fn tell_stale(
        &mut self,
        place: usize,
        link: u32,
        membership: &Membership,
    ) -> Result<(), DriveError> {
        let (mut it, membership) = (self.drives[place].clone(), membership.clone());
        let told = async move {
            it.rewrite(|superblock| superblock.membership = membership).await?;
            Ok(it)
        };
        self.drives[place] = match self.pulses.get(&link) {
            Some(pulse) => pulse.bounded(self.drives[place].id(), told).await?,
            None => told.await?,
        };
        Ok(())
    }

    /// Whether a change depends on this drive: it is live, or about to leave or to be a member.
    fn is_told(&self, it: &MemberDrive, failed: &[DriveId]) -> bool {
        !failed.contains(&it.id()) && self.membership.member(it.id()).is_none_or(Member::is_live)
    }

    /// A side that failed is noted if its link has another one; else the failure is the chain's.
    fn note(
        &mut self,
        place: usize,
        result: Result<(), DriveError>,
        failed: &mut Vec<DriveId>,
    ) -> Result<(), DriveError> {
        let Err(error) = result else { return Ok(()) };
        let id = self.drives[place].id();
        failed.push(id);
        if self.membership.member(id).is_none() || self.membership.without(failed).is_none() {
            return Err(error);
        }
        self.failure = Some(error);
        Ok(())
    }
}

/// Whether nobody misses what is where superblocks lie: nothing is there, or what a crash leaves of one of this chain that was being
/// written or erased, and no member of it: at most one copy that is not zeros, or one that is good. Nobody else begins behind it either.
pub(crate) async fn is_free(drive: &Drive, roster: &Roster) -> Result<bool, DriveError> {
    let id = roster.identity().id;
    let (mut written, mut is_strangers, mut is_ours) = (0, false, true);
    for offset in (0..drive.size_bytes().min(SUPERBLOCK_ZONE_BYTES)).step_by(BLOCK_BYTES) {
        let block = read_lenient(drive, offset, BLOCK_BYTES).await?;
        if is_blank(&block) {
            continue;
        }
        let is_copy = offset.is_multiple_of(SUPERBLOCK_STRIDE_BYTES as u64);
        is_ours &= is_copy && Superblock::begins_one_of(&block, id);
        written += 1;
        is_strangers |= Superblock::decode(&block).is_ok_and(|found| roster.is_stranger(&found));
    }
    Ok(is_ours && (written <= 1 || is_strangers) && is_ours_behind_zone(drive).await?)
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
        let mut answer = Ok(());
        for write in writes {
            // All of them: none is to be under way when this returns.
            answer = answer.and(write.await);
        }
        answer?;
    }
    Ok(())
}
