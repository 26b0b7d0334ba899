//! The superblock: which chain a drive belongs to, and which drives the chain has. Four copies; two equal ones are believed.

use bytes::{BufMut, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};
use ithaca_env::limits::BLOCK_BYTES;

use super::{array, begin_record, finish_record, finish_zeros, open_record};
use crate::limits::{
    DRIVES_MAX, LABEL_MAX_BYTES, LINKS_MAX, SEGMENT_MAX_BYTES, SEGMENT_MIN_BYTES, SIDES_MAX,
};
use crate::membership::{DriveId, Member, Membership, SideState};
use crate::options::{ChainId, Identity, Label};
use crate::owner::Keys;

/// Set if the chain's keys are versioned.
const FLAG_VERSIONED: u16 = 1;
/// Where the chain's id lies, behind magic, checksum, version and flags.
const ID_OFFSET: usize = 12;
const MAGIC: u32 = u32::from_le_bytes(*b"ITHS");

/// What a superblock says. All copies are the same, byte for byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) identity: Identity,
    /// Grows with every rewrite; the highest that has a quorum counts.
    pub(crate) sequence: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) keys: Keys,
    /// This drive.
    pub(crate) drive: DriveId,
    /// Segments that this drive had at least: one with fewer was cut short.
    pub(crate) segments: u32,
    pub(crate) membership: Membership,
}

impl Superblock {
    pub(crate) fn encode(&self) -> BytesMut {
        let flags = match self.keys {
            Keys::Once => 0,
            Keys::Versioned => FLAG_VERSIONED,
        };
        let mut out = begin_record(BLOCK_BYTES, MAGIC, flags);
        let Membership { generation, members, earlier } = &self.membership;
        out.put_slice(&self.identity.id.0);
        out.put_u64_le(self.sequence);
        out.put_u64_le(self.segment_bytes);
        out.put_u64_le(self.drive.0);
        out.put_u32_le(self.segments);
        out.put_u64_le(*generation);
        put_members(&mut out, members);
        match earlier {
            None => out.put_u32_le(NOT_PENDING),
            Some(earlier) => put_members(&mut out, earlier),
        }
        let label = self.identity.label.as_str().as_bytes();
        out.put_u32_le(label.len() as u32);
        out.put_slice(label);
        finish_record(out, BLOCK_BYTES)
    }

    /// Whether a block begins as a superblock, all of it or torn.
    pub(crate) fn is_begun(block: &[u8]) -> bool {
        block.starts_with(&MAGIC.to_le_bytes())
    }

    /// Whether a block begins as the superblock of this chain, all of it or torn.
    pub(crate) fn begins_one_of(block: &[u8], chain: ChainId) -> bool {
        Self::is_begun(block) && block[ID_OFFSET..][..chain.0.len()] == chain.0
    }

    pub(crate) fn decode(block: &[u8]) -> Result<Self, DecodeError> {
        let mut decoder = open_record(block, "superblock", MAGIC)?;
        let flags = decoder.u16("superblock flags")?;
        let keys = match flags {
            0 => Keys::Once,
            FLAG_VERSIONED => Keys::Versioned,
            _ => return Err(invalid("superblock flags", u64::from(flags), "0 or 1")),
        };
        let id = ChainId(array(&mut decoder, "chain id")?);
        let sequence = decoder.u64("superblock sequence")?;
        let segment_bytes = decoder.u64("segment bytes")?;
        let sizes = SEGMENT_MIN_BYTES..=SEGMENT_MAX_BYTES;
        if !sizes.contains(&segment_bytes) || !segment_bytes.is_multiple_of(BLOCK_BYTES as u64) {
            return Err(invalid("segment bytes", segment_bytes, "128 KiB to 1 GiB in blocks"));
        }
        let drive = DriveId(decoder.u64("drive id")?);
        let segments = decoder.u32("segments")?;
        let generation = decoder.u64("generation")?;
        let count = decoder.u32("member count")?;
        let members = members(&mut decoder, count)?;
        let count = decoder.u32("earlier member count")?;
        let earlier = if count == NOT_PENDING { None } else { Some(members_of(&mut decoder, count)?) };
        let is_listed = |members: &[Member]| members.iter().any(|member| member.drive == drive);
        if !is_listed(&members) && !earlier.as_deref().is_some_and(is_listed) {
            return Err(invalid("drive id", drive.0, "one of the members"));
        }
        let label = decoder.counted("label", LABEL_MAX_BYTES)?;
        let label = std::str::from_utf8(label).ok().and_then(Label::new);
        let label = label.ok_or(invalid("label", 0, "UTF-8"))?;
        finish_zeros(decoder, "superblock")?;
        let membership = Membership { generation, members, earlier };
        let identity = Identity { id, label };
        Ok(Self { identity, sequence, segment_bytes, keys, drive, segments, membership })
    }
}

/// In place of the number of earlier members: the change is decided, they do not matter any more.
const NOT_PENDING: u32 = u32::MAX;

fn put_members(out: &mut BytesMut, members: &[Member]) {
    assert!(members.len() <= DRIVES_MAX, "{} members", members.len());
    out.put_u32_le(members.len() as u32);
    for member in members {
        out.put_u64_le(member.drive.0);
        out.put_u32_le(member.link);
        out.put_u32_le(match member.state {
            SideState::Live => 0,
            SideState::Stale => 1,
        });
    }
}

/// The members of a generation; there is at least one.
fn members(decoder: &mut Decoder<'_>, count: u32) -> Result<Vec<Member>, DecodeError> {
    if count == 0 {
        return Err(invalid("member count", 0, "at least 1"));
    }
    members_of(decoder, count)
}

fn members_of(decoder: &mut Decoder<'_>, count: u32) -> Result<Vec<Member>, DecodeError> {
    if count as usize > DRIVES_MAX {
        return Err(invalid("member count", u64::from(count), "at most 64"));
    }
    let mut members: Vec<Member> = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let (drive, link) = (DriveId(decoder.u64("drive id")?), decoder.u32("link")?);
        let state = match decoder.u32("side state")? {
            0 => SideState::Live,
            1 => SideState::Stale,
            other => return Err(invalid("side state", u64::from(other), "0 or 1")),
        };
        if link as usize >= LINKS_MAX {
            return Err(invalid("link", u64::from(link), "at most 15"));
        }
        let sides = members.iter().filter(|other| other.link == link).count();
        if members.iter().any(|other| other.drive == drive) || sides == SIDES_MAX {
            return Err(invalid("member", drive.0, "drives that differ, at most 4 of a link"));
        }
        members.push(Member { drive, link, state });
    }
    let has_live = |link| members.iter().any(|other| other.link == link && other.state == SideState::Live);
    match members.iter().find(|member| !has_live(member.link)) {
        Some(member) => Err(invalid("link", u64::from(member.link), "one with a live side")),
        None => Ok(members),
    }
}

fn invalid(field: &'static str, found: u64, expected: &'static str) -> DecodeError {
    DecodeError::Invalid { field, found, expected }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::testing;

    fn example(earlier: Option<Vec<Member>>) -> Superblock {
        let label = Label::new("unit-3").expect("short");
        let member = |drive, link| Member { drive: DriveId(drive), link, state: SideState::Live };
        Superblock {
            identity: Identity { id: ChainId([7; 16]), label },
            sequence: 1,
            keys: Keys::Versioned,
            segment_bytes: 64 << 20,
            drive: DriveId(11),
            segments: 20,
            membership: Membership { generation: 3, members: vec![member(11, 0), member(12, 4)], earlier },
        }
    }

    #[test]
    fn it_comes_back_and_no_flipped_bit_passes() {
        let earlier = vec![Member { drive: DriveId(11), link: 0, state: SideState::Live }];
        for superblock in [example(None), example(Some(Vec::new())), example(Some(earlier))] {
            let block = superblock.encode();
            assert_eq!(Superblock::decode(&block), Ok(superblock));
            testing::every_bit_flip_is_refused(&block, |bytes| Superblock::decode(bytes).ok());
            testing::noise_does_not_panic(&block, |bytes| Superblock::decode(bytes).ok());
        }
    }

    #[test]
    fn a_drive_that_is_no_member_and_a_link_without_a_live_side_are_refused() {
        let mut stranger = example(None);
        stranger.drive = DriveId(99);
        assert!(Superblock::decode(&stranger.encode()).is_err());
        let mut mirrored = example(None);
        mirrored.membership.members[1] =
            Member { link: 0, state: SideState::Stale, ..mirrored.membership.members[1] };
        assert_eq!(Superblock::decode(&mirrored.encode()), Ok(mirrored.clone()));
        mirrored.membership.members[0].state = SideState::Stale;
        assert!(Superblock::decode(&mirrored.encode()).is_err());
        let mut far = example(None);
        far.membership.members[1].link = 16;
        assert!(Superblock::decode(&far.encode()).is_err());
    }

    #[test]
    fn a_newer_version_is_told_by_its_number() {
        let mut block = example(None).encode();
        block[8] = 9;
        super::super::seal_record(&mut block);
        let error = Superblock::decode(&block).expect_err("version 9");
        assert_eq!(super::super::is_newer(&error), Some(9));
    }
}
