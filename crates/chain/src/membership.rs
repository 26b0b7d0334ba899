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

use std::fmt;

use crate::error::OpenError;
use crate::format::Superblock;
use crate::options::{ChainOptions, planted};

/// A drive of a chain: a random number drawn when the drive is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DriveId(pub u64);

impl fmt::Display for DriveId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A drive and the link that it makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) drive: DriveId,
    pub(crate) link: u32,
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

    fn has(&self, drive: DriveId) -> bool {
        is_in(&self.members, drive)
    }
}

fn is_in(members: &[Member], drive: DriveId) -> bool {
    members.iter().any(|member| member.drive == drive)
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
}

/// Decides which members the chain has: all drives given, in whatever order, and no others.
///
/// Errors: drives of several chains, one twice, one missing, one that is not a member or is an old copy.
pub(crate) fn decide(seen: &[Seen], options: &ChainOptions) -> Result<Membership, OpenError> {
    check_same_chain(seen)?;
    let latest = seen.iter().map(Seen::generation).max().unwrap_or(0);
    // Of two that have the same generation, one that is decided tells more.
    let newest = seen.iter().filter(|one| one.generation() == latest).min_by_key(|one| one.is_pending());
    let Some(newest) = newest else { return Err(OpenError::NoDrives) };
    let membership = &newest.superblock.membership;
    for one in seen.iter().filter(|one| one.generation() == latest && membership.has(one.id())) {
        if one.superblock.membership.members != membership.members {
            return Err(OpenError::Disagree { drive: one.name.clone(), other: newest.name.clone() });
        }
    }
    // Which way a pending change goes is the choice of whoever gives the drives. A creation can only go on.
    let are_after =
        || seen.len() == membership.members.len() && seen.iter().all(|one| membership.has(one.id()));
    let forward = membership.earlier.as_ref().is_none_or(Vec::is_empty) || are_after();
    let goes_on = if forward {
        membership.decided()
    } else {
        let members = membership.earlier.clone().unwrap_or_default();
        Membership { generation: latest - 1, members, earlier: None }
    };
    check_complete(seen, &goes_on, newest)?;
    if !planted!(options, GenerationIgnored) {
        check_current(seen, newest)?;
    }
    Ok(goes_on)
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

/// Every drive given is a member, and every member is given.
fn check_complete(seen: &[Seen], members: &Membership, newest: &Seen) -> Result<(), OpenError> {
    let stranger = seen.iter().find(|one| !members.has(one.id()));
    if let Some(one) = stranger {
        return Err(OpenError::NotAMember {
            drive: one.name.clone(),
            generation: one.generation(),
            named_by: newest.name.clone(),
            latest: newest.generation(),
        });
    }
    let is_given = |member: &&Member| seen.iter().any(|one| one.id() == member.drive);
    let missing = members.members.iter().position(|member| !is_given(&member));
    match missing {
        None => Ok(()),
        Some(place) => Err(OpenError::DriveMissing {
            place: place + 1,
            of: members.members.len(),
            id: members.members[place].drive,
            chain: newest.superblock.identity.id,
            named_by: newest.name.clone(),
        }),
    }
}

/// No drive is behind by more than a crash in a change can leave it.
fn check_current(seen: &[Seen], newest: &Seen) -> Result<(), OpenError> {
    let latest = newest.generation();
    let lowest = if newest.is_pending() { latest - 1 } else { latest };
    let behind = seen.iter().find(|one| {
        let is_half_told = one.is_pending() && one.generation() < latest;
        one.generation() < lowest || is_half_told
    });
    match behind {
        None => Ok(()),
        Some(one) => Err(OpenError::StaleDrive {
            drive: one.name.clone(),
            generation: one.generation(),
            named_by: newest.name.clone(),
            latest,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{ChainId, Identity, Label};

    fn superblock(drive: u64, membership: &Membership) -> Superblock {
        Superblock {
            identity: Identity { id: ChainId([7; 16]), label: Label::default() },
            sequence: 1,
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
            .map(|(link, &drive)| Member { drive: DriveId(drive), link: link as u32 })
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
        let decided = decide(&seen, &ChainOptions::default())?;
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
