//! What can go wrong, one enum per family of operations, and the damage that recovery reports.

use std::ops::Range;

use ithaca_env::codec::DecodeError;
use ithaca_env::drive::DriveError;
use thiserror::Error;

use crate::membership::DriveId;
use crate::options::{ChainId, OptionsError};
use crate::owner::{Keys, Place};

/// Why a chain could not be created or opened. Nothing was written, except where said.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum OpenError {
    /// An option is outside its limits.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The drive failed. A creation that ended so may have written. So does an open end where it cannot do without what could not be read:
    /// another may read it.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// Creation found a chain already there.
    #[error("{drive} already holds chain {id}")]
    AlreadyThere {
        /// The drive.
        drive: String,
        /// The chain it holds.
        id: ChainId,
    },
    /// The drive is blank, or its creation was interrupted: create the chain first.
    #[error("{drive} holds no chain")]
    NotAChain {
        /// The drive.
        drive: String,
    },
    /// Something is on the drive that is none of this chain's: it is not written over.
    #[error("{drive} is not blank, and what is on it is not this chain's")]
    NotBlank {
        /// The drive.
        drive: String,
    },
    /// Groups are lost that may have held a newer state of the owner's, or releases, which whoever opens cannot do without
    /// ([`ChainOptions::needs_control`](crate::ChainOptions)).
    #[error("{drive}: groups are lost that may have said what is released, or held a newer state")]
    ControlLost {
        /// The drives of the chain.
        drive: String,
    },
    /// Groups are lost, or a whole segment, and whoever opens cannot do without any
    /// ([`ChainOptions::needs_groups`](crate::ChainOptions)).
    #[error("{drive}: groups are lost (segment {segment}, byte {offset})")]
    GroupsLost {
        /// The drives of the chain.
        drive: String,
        /// The segment.
        segment: u32,
        /// Byte in the segment.
        offset: u32,
    },
    /// A chain is not shown as it was before what is lost ([`ChainOptions::rescue`](crate::ChainOptions)): something that it held then may be
    /// lost too, and nothing says what.
    #[error("{drive}: {why}")]
    NoRescue {
        /// The drives of the chain.
        drive: String,
        /// What stands in the way.
        why: NoRescue,
    },
    /// Too few copies of the superblock agree.
    #[error(
        "{drive}: {valid} of 4 superblock copies are good, 2 must be equal (the first fault: {first_fault})"
    )]
    SuperblockLost {
        /// The drive.
        drive: String,
        /// Copies that verify.
        valid: usize,
        /// What is wrong with the first bad copy.
        first_fault: DecodeError,
    },
    /// The drive was written by a newer version of this program.
    #[error("{drive}: format version {found}, this program knows up to {known}")]
    NewerFormat {
        /// The drive.
        drive: String,
        /// Its format version.
        found: u16,
        /// The newest that is known.
        known: u16,
    },
    /// The drive belongs to another chain.
    #[error("{drive} holds chain {found} ({found_label}), expected {expected} ({expected_label})")]
    WrongChain {
        /// The drive.
        drive: String,
        /// The chain it holds.
        found: ChainId,
        /// The name its owner gave it.
        found_label: String,
        /// The chain that was expected.
        expected: ChainId,
        /// The name that was expected.
        expected_label: String,
    },
    /// The drive is smaller than the chain's least size.
    #[error("{drive} has {found_bytes} bytes, a chain needs {needed_bytes}")]
    TooSmall {
        /// The drive.
        drive: String,
        /// Its size.
        found_bytes: u64,
        /// What the chain needs.
        needed_bytes: u64,
    },
    /// The drive was larger when the chain was last written: part of it is missing.
    #[error("{drive} has {found_bytes} bytes, the chain on it had {needed_bytes}")]
    Truncated {
        /// The drive.
        drive: String,
        /// Its size.
        found_bytes: u64,
        /// Its size when the last group was written.
        needed_bytes: u64,
    },
    /// No drive was given.
    #[error("a chain needs at least one drive")]
    NoDrives,
    /// More drives were given than a chain can have.
    #[error("{found} drives, a chain has at most {max}")]
    TooManyDrives {
        /// How many were given.
        found: usize,
        /// The most there may be.
        max: usize,
    },
    /// A link was given no side, or more than it can have.
    #[error("a mirrored link of {found} drives, from 1 to {max} make one")]
    BadMirror {
        /// How many were given.
        found: usize,
        /// The most there may be.
        max: usize,
    },
    /// Two of the drives given are the same one, or one is a copy of the other.
    #[error("{drive} and {other} are the same drive of the chain")]
    GivenTwice {
        /// A drive.
        drive: String,
        /// The other one.
        other: String,
    },
    /// A drive of the chain was not given.
    #[error("drive {place} of {of} (id {id}) of chain {chain} is missing: {named_by} names it")]
    DriveMissing {
        /// Where in the chain it is, from 1.
        place: usize,
        /// How many drives the chain has.
        of: usize,
        /// Which one it is.
        id: DriveId,
        /// The chain.
        chain: ChainId,
        /// A drive that says so.
        named_by: String,
    },
    /// The drive is not one of the chain's: it was removed, or was never quite added.
    #[error(
        "{drive} is no drive of the chain: it knows generation {generation}, {named_by} is at {latest} without it"
    )]
    NotAMember {
        /// The drive.
        drive: String,
        /// The generation it knows.
        generation: u64,
        /// A drive that knows more.
        named_by: String,
        /// The generation that one knows.
        latest: u64,
    },
    /// The drive is an old copy: the chain's drives have changed since, and it was not told.
    #[error("{drive} is an old copy: it knows generation {generation}, {named_by} is at {latest}")]
    StaleDrive {
        /// The drive.
        drive: String,
        /// The generation it knows.
        generation: u64,
        /// A drive that knows more.
        named_by: String,
        /// The generation that one knows.
        latest: u64,
    },
    /// Two drives name different drives for the same generation: the chain was copied and both copies were changed.
    #[error("{drive} and {other} do not agree on the chain's drives: one is of a copy of the chain")]
    Disagree {
        /// A drive.
        drive: String,
        /// The other one.
        other: String,
    },
    /// The chain's keys are written otherwise than this open expects: one whose keys are versioned is opened by their owner.
    #[error("the keys of {drive} are {found}, expected keys that are {expected}")]
    WrongKeys {
        /// The drives.
        drive: String,
        /// What they say.
        found: Keys,
        /// What was expected.
        expected: Keys,
    },
    /// The fence of this open could not be written: the drive is full up to the last block.
    #[error("{drive}: no room to open the chain: not one block is free")]
    NoRoom {
        /// The drive.
        drive: String,
    },
    /// The newest checkpoint is damaged and none can stand in for it, so what was released is not known. The drive needs
    /// to be rebuilt from a replica.
    #[error("{drive}: the newest checkpoint is damaged{}", at_the_head_of(*segment))]
    CheckpointLost {
        /// The drive.
        drive: String,
        /// The segment whose first group is harmed, if that is known.
        segment: Option<u32>,
    },
}

fn at_the_head_of(segment: Option<u32>) -> String {
    segment.map_or_else(String::new, |segment| format!(", at the head of segment {segment}"))
}

/// Why it is not certain what a chain held before a group was lost.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NoRescue {
    /// Records are lost, or may be, that can be of any age: in a segment that is closed, or in one of a cleaner's.
    #[error("records of any age may be lost (segment {segment}, byte {offset})")]
    AnyAge {
        /// The segment.
        segment: u32,
        /// Byte in the segment.
        offset: u32,
    },
    /// No group that is left, with all those between it and the lost one, says which segments held something.
    #[error(
        "no group before the lost one (segment {segment}, byte {offset}) says which segments held something"
    )]
    NoCensus {
        /// The segment of the lost group.
        segment: u32,
        /// Byte in the segment.
        offset: u32,
    },
    /// A segment was freed since: what was needed of it may have been moved into the lost group.
    #[error(
        "segment {freed} was freed since, and what it held may have been moved into the lost group (segment {segment}, byte {offset})"
    )]
    Freed {
        /// The segment that was freed.
        freed: u32,
        /// The segment of the lost group.
        segment: u32,
        /// Byte in the segment.
        offset: u32,
    },
}

/// The chain has stopped: a write or a sync failed and is not tried again. What was durable stays readable.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ChainError {
    /// The drive failed first with this.
    #[error("the chain has stopped: {first}")]
    Failed {
        /// The first error.
        first: DriveError,
    },
    /// The chain was closed by its owner.
    #[error("the chain is closed")]
    Closed,
    /// The chain is only read ([`ChainOptions::rescue`](crate::ChainOptions)).
    #[error("the chain is only read")]
    ReadOnly,
    /// The chain was closed by its owner, and there was no room any more for some of what waited to be written.
    #[error("the chain is closed, and some of what it was to write found no room")]
    Unwritten,
}

/// Why a drive was not added or removed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ChangeError {
    /// The chain has stopped. If that was because a drive failed in the middle of the change, the next open goes on with
    /// it, or takes it back if the drives given are those before it.
    #[error(transparent)]
    Stopped(#[from] ChainError),
    /// The drive to be added is not one that can be. Nothing has changed.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// No drive of the chain has this id.
    #[error("the chain has no drive {id}")]
    NoSuchDrive {
        /// The id.
        id: DriveId,
    },
    /// A chain has at least one drive.
    #[error("{drive} is the only drive of the chain")]
    LastDrive {
        /// The drive.
        drive: String,
    },
    /// Records on the drive cannot be moved to another one, because they are damaged or their owner does not let them go;
    /// release them, then try again.
    #[error("{drive} holds records that cannot be moved, in {segments} segments")]
    HoldsRecords {
        /// The drive.
        drive: String,
        /// Its segments that hold some.
        segments: u32,
    },
    /// A read failed while records on the drive were moved to another one. That may pass, and says nothing of the records: none is to be
    /// released for it. Try again.
    #[error(
        "a read failed while {drive} was emptied, which holds records in {segments} segments still; try again"
    )]
    Unread {
        /// The drive.
        drive: String,
        /// Its segments that hold some.
        segments: u32,
    },
    /// The other drives have not enough free segments for the log to go on.
    #[error("the chain is too full to do without {drive}")]
    NoRoom {
        /// The drive.
        drive: String,
    },
    /// The group that has to be written first was not taken; retry as it says.
    #[error(transparent)]
    Refused(AppendError),
}

/// Why a batch was not taken. Nothing of it will be written.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AppendError {
    /// The chain has stopped; do not retry.
    #[error(transparent)]
    Stopped(#[from] ChainError),
    /// No space is left for such a batch but what is kept from it (`ChainOptions::reserve_segments`); retry after releasing
    /// keys.
    #[error("no space: {free_bytes} bytes left, {reserve_bytes} of them kept for releases")]
    Full {
        /// Bytes that are free.
        free_bytes: u64,
        /// Bytes that are kept from such a batch.
        reserve_bytes: u64,
    },
    /// Too much waits to be written; retry when tickets have become durable.
    #[error("{queued_bytes} bytes wait to be written, at most {max_bytes}")]
    Overloaded {
        /// Bytes that wait.
        queued_bytes: u64,
        /// The most that may.
        max_bytes: u64,
    },
    /// The batch does not fit into a quarter of a segment; split it.
    #[error("a batch of {bytes} bytes with its headers, at most {max_bytes}")]
    TooLarge {
        /// What the batch would take.
        bytes: u64,
        /// The most that one may.
        max_bytes: u64,
    },
    /// The released keys are in too many pieces; release the keys between them first.
    #[error("released keys in {ranges} ranges, at most {max_ranges}")]
    TooSparse {
        /// Ranges there would be.
        ranges: usize,
        /// The most there may be.
        max_ranges: usize,
    },
    /// The owner's state is too long.
    #[error("a state of {bytes} bytes, at most {max_bytes}")]
    StateTooLong {
        /// Its length.
        bytes: usize,
        /// The most it may have.
        max_bytes: usize,
    },
    /// A run is not well formed.
    #[error("the run at key {first_key} has {what} {found}, at most {max}")]
    BadRun {
        /// Where it begins.
        first_key: u64,
        /// Which of its properties.
        what: &'static str,
        /// What it holds.
        found: u64,
        /// The most it may hold.
        max: u64,
    },
}

/// Why a record could not be read.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ReadError {
    /// The record was written, and what the drive holds is not it. Another replica may have it.
    #[error("key {key} is damaged (segment {segment}, byte {offset})")]
    Damaged {
        /// The key.
        key: u64,
        /// The segment.
        segment: u32,
        /// Byte in the segment.
        offset: u32,
    },
    /// The drive failed.
    #[error(transparent)]
    Drive(#[from] DriveError),
}

/// Why the record at a place could not be read.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PlaceError {
    /// The segment is in another use: the record was moved, and its owner was told where to, or it was not live any more. Look
    /// it up again.
    #[error("the record at {place} has moved")]
    Moved {
        /// Where it was.
        place: Place,
    },
    /// What the drive holds there is not the record.
    #[error("the record at {place} is damaged")]
    Damaged {
        /// Where.
        place: Place,
    },
    /// The drive failed.
    #[error(transparent)]
    Drive(#[from] DriveError),
}

/// Something that was durable and is not there any more, as recovery or a check found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The segment.
    pub segment: u32,
    /// First harmed byte in the segment.
    pub offset: u32,
    /// Harmed bytes.
    pub bytes: u32,
    /// What is harmed.
    pub kind: DamageKind,
}

impl Damage {
    /// Groups of a segment are gone, and it is not known which.
    pub(crate) fn of_some_groups(segment: u32) -> Self {
        Self { segment, offset: 0, bytes: 0, kind: DamageKind::Groups { seqs: 0..0 } }
    }

    /// Whether records are gone of which it is not known which they were.
    pub fn is_of_groups(&self) -> bool {
        matches!(self.kind, DamageKind::Groups { .. } | DamageKind::Segment)
    }

    /// It in words, where `keys_are` says what the chain's keys are, as in `blocks`.
    pub fn in_words(&self, keys_are: &str) -> String {
        let what = match &self.kind {
            DamageKind::Data { keys } => format!("the data of {keys_are} {} to {}", keys.start, keys.end - 1),
            DamageKind::Groups { seqs } if seqs.is_empty() => "all of some groups".to_owned(),
            DamageKind::Groups { seqs } => format!("all of groups {} to {}", seqs.start, seqs.end - 1),
            DamageKind::Footer => "a footer, which can be made again from its groups".to_owned(),
            DamageKind::Frame => "a segment's header or trailer".to_owned(),
            DamageKind::Segment => "a whole segment, of which nothing is left".to_owned(),
        };
        let (link, index) = (crate::link_of(self.segment), crate::index_of(self.segment));
        let link = if link == 0 { String::new() } else { format!(" of link {link}") };
        format!("segment {index}{link}, {} bytes at {}: {what}", self.bytes, self.offset)
    }
}

/// What is harmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DamageKind {
    /// The data of these keys; everything else of their group is well.
    Data {
        /// The keys.
        keys: Range<u64>,
    },
    /// Whole groups whose headers cannot be read: which keys they held is not known.
    Groups {
        /// Their sequence numbers; an empty range if these are not known.
        seqs: Range<u64>,
    },
    /// A footer page or directory: found again by scanning the segment.
    Footer,
    /// The segment's header or trailer.
    Frame,
    /// Everything: the segment held something, and nothing of it is left. Which keys it held is not known.
    Segment,
}
