//! Which drives a chain has, and how an open decides that from what their superblocks say. Pure.
//!
//! ```text
//!   generation 4: A B        pending 5: A B C (4 had A B)          generation 5: A B C
//!   on every drive      ──►  on every drive of both, C first  ──►  on every drive of 5   ──► C takes records
//! ```
//!
//! A change is written twice: first as pending, with the members before it, on every drive that is a member before or
//! after; then, when all of those are durable, as decided. So a decided generation proves that every member had
//! at least heard of it, and a member that has not is an old copy. A pending one may go either way: no record lies on a
//! drive that is not a member both before and after.
//!
//! A link has one drive, or several sides that hold the same. A side that missed a write is marked as stale in a
//! generation of its own before that write is acknowledged, so that no open believes it later.

use std::fmt;

use crate::error::OpenError;
use crate::format::Superblock;
use crate::notary::Notary;
use crate::options::ChainOptions;
use crate::planted::PlantedBug;

/// A drive of a chain: a random number drawn when the drive is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DriveId(pub u64);

impl fmt::Display for DriveId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// What a side of a link is good for. The only drive of a link is always live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SideState {
    /// It has everything that was acknowledged.
    Live,
    /// It was left out of writes, or is new: nothing on it is believed until it is rebuilt.
    Stale,
}

/// A drive and the link that it is a side of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) drive: DriveId,
    pub(crate) link: u32,
    pub(crate) state: SideState,
}

impl Member {
    pub(crate) fn is_live(&self) -> bool {
        self.state == SideState::Live
    }
}

/// The drives of a chain, in the order of the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Membership {
    /// Counts changes, from 1.
    pub(crate) generation: u64,
    pub(crate) members: Vec<Member>,
    /// While the change is pending: the members before it; none before there was a chain.
    pub(crate) earlier: Option<Vec<Member>>,
}

impl Membership {
    /// The same, decided.
    pub(crate) fn decided(&self) -> Self {
        Self { earlier: None, ..self.clone() }
    }

    /// The next generation, with these members instead, pending.
    pub(crate) fn followed_by(&self, members: Vec<Member>) -> Self {
        Self { generation: self.generation + 1, members, earlier: Some(self.members.clone()) }
    }

    /// The member that is this drive.
    pub(crate) fn member(&self, drive: DriveId) -> Option<&Member> {
        self.members.iter().find(|member| member.drive == drive)
    }

    /// The members with these drives stale; `None` if that leaves a link without a live side.
    pub(crate) fn without(&self, lost: &[DriveId]) -> Option<Vec<Member>> {
        let mut members = self.members.clone();
        for member in members.iter_mut().filter(|member| lost.contains(&member.drive)) {
            member.state = SideState::Stale;
        }
        let has_live = |link| members.iter().any(|other| other.link == link && other.is_live());
        members.iter().all(|member| has_live(member.link)).then_some(members)
    }
}

/// Whether each link has a live side among the drives given, and every drive given is one of them.
fn are_covered(members: &[Member], seen: &[Seen]) -> bool {
    let is_given = |member: &Member| seen.iter().any(|one| one.id() == member.drive);
    let has_live =
        |link| members.iter().any(|other| other.link == link && other.is_live() && is_given(other));
    members.iter().all(|member| has_live(member.link))
        && seen.iter().all(|one| members.iter().any(|member| member.drive == one.id()))
}

/// What an open decided about the drives that it was given.
#[derive(Debug)]
pub(crate) struct Decision {
    /// The generation that goes on.
    pub(crate) membership: Membership,
    /// Sides that are live in it and are not given, or are old copies. Other sides of their links are there: these
    /// must be marked as stale before anything is written.
    pub(crate) lost: Vec<DriveId>,
}

/// A drive that was given, and what its superblock says.
pub(crate) struct Seen {
    pub(crate) name: String,
    pub(crate) superblock: Superblock,
}

impl Seen {
    fn id(&self) -> DriveId {
        self.superblock.drive
    }

    fn generation(&self) -> u64 {
        self.superblock.membership.generation
    }

    fn is_pending(&self) -> bool {
        self.superblock.membership.earlier.is_some()
    }

    /// Whether it is behind by more than a crash in a change can leave it.
    fn is_behind(&self, newest: &Seen) -> bool {
        let latest = newest.generation();
        let lowest = if newest.is_pending() { latest - 1 } else { latest };
        let is_half_told = self.is_pending() && self.generation() < latest;
        self.generation() < lowest || is_half_told
    }
}

/// Decides which members the chain has: of every link at least one side that has everything, in whatever order, and no
/// other drives.
///
/// Errors: drives of several chains, one twice, all sides of a link missing or old copies, one that is not a member; none that knows what
/// `notary` was told.
pub(crate) fn decide(
    seen: &[Seen],
    notary: Option<&dyn Notary>,
    options: &ChainOptions,
) -> Result<Decision, OpenError> {
    check_same_chain(seen)?;
    let latest = seen.iter().map(Seen::generation).max().unwrap_or(0);
    // Of two that have the same generation, one that is decided tells more.
    let newest = seen.iter().filter(|one| one.generation() == latest).min_by_key(|one| one.is_pending());
    let Some(newest) = newest else { return Err(OpenError::NoDrives) };
    let membership = &newest.superblock.membership;
    for one in seen.iter().filter(|one| one.generation() == latest && membership.member(one.id()).is_some()) {
        if one.superblock.membership.members != membership.members {
            return Err(OpenError::Disagree { drive: one.name.clone(), other: newest.name.clone() });
        }
    }
    // Which way a pending change goes is the choice of whoever gives the drives. A creation can only go on.
    let forward =
        membership.earlier.as_ref().is_none_or(Vec::is_empty) || are_covered(&membership.members, seen);
    let mut goes_on = if forward {
        membership.decided()
    } else {
        let members = membership.earlier.clone().unwrap_or_default();
        Membership { generation: latest - 1, members, earlier: None }
    };
    if options.planted.is(PlantedBug::StaleSideBelieved) {
        goes_on.members.iter_mut().for_each(|member| member.state = SideState::Live);
    }
    check_noted(&goes_on, newest, notary, options)?;
    check_members(seen, &goes_on, newest)?;
    let lost = find_lost(seen, &goes_on, newest, options)?;
    Ok(Decision { membership: goes_on, lost })
}

fn check_same_chain(seen: &[Seen]) -> Result<(), OpenError> {
    for (index, one) in seen.iter().enumerate() {
        let (found, expected) = (&one.superblock, &seen[0].superblock);
        if found.identity != expected.identity || found.segment_bytes != expected.segment_bytes {
            return Err(OpenError::WrongChain {
                drive: one.name.clone(),
                found: found.identity.id,
                found_label: found.identity.label.to_string(),
                expected: expected.identity.id,
                expected_label: expected.identity.label.to_string(),
            });
        }
        if let Some(other) = seen[..index].iter().find(|other| other.id() == one.id()) {
            return Err(OpenError::GivenTwice { drive: one.name.clone(), other: other.name.clone() });
        }
    }
    Ok(())
}

/// The generation that goes on is none that the chain had before what the notary was told of.
fn check_noted(
    goes_on: &Membership,
    newest: &Seen,
    notary: Option<&dyn Notary>,
    options: &ChainOptions,
) -> Result<(), OpenError> {
    let is_known = |latest| goes_on.generation >= latest || options.planted.is(PlantedBug::NotaryIgnored);
    match notary.map(|notary| (notary.generation(), notary.name())) {
        Some((latest, named_by)) if !is_known(latest) => Err(OpenError::StaleDrive {
            drive: newest.name.clone(),
            generation: goes_on.generation,
            named_by,
            latest,
        }),
        _ => Ok(()),
    }
}

/// Every drive given is a member.
fn check_members(seen: &[Seen], members: &Membership, newest: &Seen) -> Result<(), OpenError> {
    let stranger = seen.iter().find(|one| members.member(one.id()).is_none());
    stranger.map_or(Ok(()), |one| {
        Err(OpenError::NotAMember {
            drive: one.name.clone(),
            generation: one.generation(),
            named_by: newest.name.clone(),
            latest: newest.generation(),
        })
    })
}

/// The live sides that are missing or behind. Errors: a link has no other, or none may be lost.
fn find_lost(
    seen: &[Seen],
    membership: &Membership,
    newest: &Seen,
    options: &ChainOptions,
) -> Result<Vec<DriveId>, OpenError> {
    let members = &membership.members;
    let given = |member: &Member| seen.iter().find(|one| one.id() == member.drive);
    let is_behind = |one: &Seen| one.is_behind(newest) && !options.planted.is(PlantedBug::GenerationIgnored);
    let is_lost = |member: &Member| member.is_live() && given(member).is_none_or(is_behind);
    let lost: Vec<DriveId> =
        members.iter().filter(|member| is_lost(member)).map(|member| member.drive).collect();
    let is_allowed = lost.is_empty() || !options.needs_sides;
    if is_allowed && membership.without(&lost).is_some() {
        return Ok(lost);
    }
    let has_side =
        |link| members.iter().any(|other| other.link == link && other.is_live() && !is_lost(other));
    let fatal = |member: &&Member| is_lost(member) && (options.needs_sides || !has_side(member.link));
    // An old copy tells more of what is wrong than a side that is not there.
    if let Some(one) = members.iter().filter(fatal).find_map(given) {
        return Err(OpenError::StaleDrive {
            drive: one.name.clone(),
            generation: one.generation(),
            named_by: newest.name.clone(),
            latest: newest.generation(),
        });
    }
    let place = members.iter().position(|member| fatal(&member)).unwrap_or(0);
    Err(OpenError::DriveMissing {
        place: place + 1,
        of: members.len(),
        id: members[place].drive,
        chain: newest.superblock.identity.id,
        named_by: newest.name.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{ChainId, Identity, Label};

    fn superblock(drive: u64, membership: &Membership) -> Superblock {
        Superblock {
            identity: Identity { id: ChainId([7; 16]), label: Label::default() },
            sequence: 1,
            keys: crate::owner::Keys::Once,
            segment_bytes: 128 << 10,
            drive: DriveId(drive),
            segments: 4,
            membership: membership.clone(),
        }
    }

    fn members(drives: &[u64]) -> Vec<Member> {
        drives
            .iter()
            .enumerate()
            .map(|(link, &drive)| Member { drive: DriveId(drive), link: link as u32, state: SideState::Live })
            .collect()
    }

    /// What each drive says when a change from generation 1 to 2 was cut off after so many writes of superblocks.
    fn cut_off(before: &[u64], after: &[u64], writes: usize) -> Vec<Superblock> {
        let old = Membership { generation: 1, members: members(before), earlier: None };
        let pending =
            Membership { generation: 2, members: members(after), earlier: Some(old.members.clone()) };
        let mut drives: Vec<Superblock> = before.iter().map(|&drive| superblock(drive, &old)).collect();
        let mut writes_left = writes;
        let added = after.iter().filter(|drive| !before.contains(drive));
        for &drive in added.chain(before) {
            if writes_left > 0 {
                writes_left -= 1;
                drives.retain(|it| it.drive != DriveId(drive));
                drives.push(superblock(drive, &pending));
            }
        }
        for &drive in after {
            if writes_left > 0 {
                writes_left -= 1;
                drives.retain(|it| it.drive != DriveId(drive));
                drives.push(superblock(drive, &pending.decided()));
            }
        }
        drives
    }

    /// Gives these drives to an open; the ids it goes on with.
    fn given(all: &[Superblock], drives: &[u64]) -> Result<Vec<u64>, OpenError> {
        let seen: Vec<Seen> = drives
            .iter()
            .filter_map(|&drive| all.iter().find(|it| it.drive == DriveId(drive)))
            .map(|superblock| Seen { name: superblock.drive.to_string(), superblock: superblock.clone() })
            .collect();
        // A drive that was to be added may be blank still; an open refuses it before this.
        if seen.len() < drives.len() {
            return Err(OpenError::NoDrives);
        }
        let decided = decide(&seen, None, &ChainOptions::default())?.membership;
        assert!(decided.earlier.is_none());
        Ok(decided.members.iter().map(|member| member.drive.0).collect())
    }

    /// Every set of these drives.
    fn sets(drives: &[u64]) -> Vec<Vec<u64>> {
        let count = 1 << drives.len();
        (0..count)
            .map(|bits| (0..drives.len()).filter(|bit| bits >> bit & 1 == 1).map(|bit| drives[bit]).collect())
            .collect()
    }

    #[test]
    fn wherever_a_change_is_cut_off_only_the_drives_before_or_after_it_are_accepted() {
        for (before, after) in
            [(&[1, 2][..], &[1, 2, 3][..]), (&[1, 2, 3], &[1, 3]), (&[1], &[1, 2]), (&[1, 2], &[2])]
        {
            let most = before.len().max(after.len()) + after.len();
            for writes in 0..=most {
                let all = cut_off(before, after, writes);
                let mut accepted = Vec::new();
                for set in sets(&[1, 2, 3]) {
                    if let Ok(goes_on) = given(&all, &set) {
                        assert_eq!(goes_on, set, "what is given is the chain");
                        accepted.push(set);
                    }
                }
                assert!(
                    !accepted.is_empty(),
                    "{before:?} to {after:?} cut off after {writes}: nothing opens"
                );
                assert!(accepted.iter().all(|set| set == before || set == after), "{accepted:?}");
                let is_whole = writes == most;
                assert!(!is_whole || accepted == [after], "a change that is done stays: {accepted:?}");
                assert!(writes > 0 || accepted == [before], "nothing has happened yet: {accepted:?}");
            }
        }
    }

    #[test]
    fn a_decision_is_not_taken_back_and_an_old_copy_is_not_accepted() {
        let old = Membership { generation: 1, members: members(&[1, 2]), earlier: None };
        let new = Membership { generation: 2, members: members(&[1, 2]), earlier: None };
        let all = [superblock(1, &new), superblock(2, &old)];
        assert!(matches!(given(&all, &[1, 2]), Err(OpenError::StaleDrive { generation: 1, latest: 2, .. })));
        // Two copies of one chain, each changed in its own way.
        let other = Membership { generation: 2, members: members(&[2, 1]), earlier: None };
        let all = [superblock(1, &new), superblock(2, &other)];
        assert!(matches!(given(&all, &[1, 2]), Err(OpenError::Disagree { .. })));
    }
}
