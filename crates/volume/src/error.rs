//! What can go wrong.

use std::ops::Range;

use ithaca_chain::{AppendError, ChainError};
use ithaca_env::drive::DriveError;
use ithaca_env::record::RecordError;
use thiserror::Error;

use crate::options::Version;

/// Why a volume could not be made or opened, or a request was refused. Unless it says otherwise nothing was done, and trying again is of
/// no use.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum VolumeError {
    /// The chain could not be created or opened.
    #[error(transparent)]
    Chain(#[from] ithaca_chain::OpenError),
    /// An option is out of range.
    #[error("{name} is {found}, must be {expected}")]
    Option {
        /// The option.
        name: &'static str,
        /// What it holds.
        found: u64,
        /// What it may hold, in words.
        expected: &'static str,
    },
    /// The chain is not one of a volume.
    #[error("{label:?} is no volume: {source}")]
    NotAVolume {
        /// The chain's label.
        label: String,
        /// What is wrong with the record that says what the volume is.
        source: StateError,
    },
    /// A creation was interrupted before anything was there: create it again.
    #[error("the creation of this volume was interrupted: create it again")]
    Unfinished,
    /// Records are lost of which it is not known which blocks they were: what is read might be out of date.
    #[error("records are lost (segment {segment}, byte {offset}): blocks may be older than was acknowledged")]
    Lost {
        /// The segment.
        segment: u32,
        /// Byte in the segment.
        offset: u32,
    },
    /// A record on the drives is not one of this volume.
    #[error("a record of key {key} and {bytes} bytes is none of a volume of {blocks} blocks")]
    StrangeRecord {
        /// Its key.
        key: u64,
        /// Its length.
        bytes: u32,
        /// Blocks of the volume.
        blocks: u64,
    },
    /// Blocks that the volume does not have.
    #[error("blocks {first} to {last} of a volume of {blocks} blocks")]
    OutOfRange {
        /// The first of them.
        first: u64,
        /// The last of them.
        last: u64,
        /// Blocks of the volume.
        blocks: u64,
    },
    /// A request that is too long, or of nothing.
    #[error("a request of {found} {what}, at least 1 and at most {max}")]
    Length {
        /// Of what.
        what: &'static str,
        /// How much.
        found: u64,
        /// The most that it may be.
        max: u64,
    },
    /// Data that is not whole blocks.
    #[error("{bytes} bytes of data are not whole blocks of 4096")]
    NotWholeBlocks {
        /// Its length.
        bytes: usize,
    },
    /// No room is left. Discard blocks or let snapshots go, then try again.
    #[error("no space: {free_bytes} bytes left, {reserve_bytes} of them kept for discards{}", kept_for_harm(*harmed_segments))]
    Full {
        /// Bytes that are free.
        free_bytes: u64,
        /// Bytes that are kept.
        reserve_bytes: u64,
        /// Segments with damage: they are not cleaned, whatever else of them is not needed, before what is damaged is not needed either.
        harmed_segments: usize,
    },
    /// What the drive holds of a block is not what was written.
    #[error("block {block} is damaged")]
    Damaged {
        /// The block.
        block: u64,
    },
    /// The drive failed.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// A write failed and is not tried again, or the volume can only be read: nothing more is taken. What was durable can still be read.
    #[error(transparent)]
    Stopped(#[from] ChainError),
    /// The chain does not take this; it is a fault of this software.
    #[error("the chain refuses a commit: {0}")]
    Refused(AppendError),
    /// A version that cannot be read any more, or not yet.
    #[error("version {version} cannot be read: history goes from {floor} to {newest}")]
    NoSuchVersion {
        /// The version.
        version: Version,
        /// Where history begins.
        floor: Version,
        /// The newest that is durable.
        newest: Version,
    },
    /// A name that no new snapshot can have: it is empty, longer than [`SNAPSHOT_NAME_MAX_BYTES`](crate::limits::SNAPSHOT_NAME_MAX_BYTES), or
    /// has `@`, `/` or a control character.
    #[error("{name:?} is no name of a snapshot: 1 to 64 bytes without `@`, `/` and control characters")]
    BadName {
        /// The name.
        name: String,
    },
    /// A snapshot of this name is there already.
    #[error("there is a snapshot {name:?} already")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// No snapshot has this name.
    #[error("no snapshot {name:?}")]
    NoSuchSnapshot {
        /// The name.
        name: String,
    },
    /// A name that no region can have: it is empty, longer than [`REGION_NAME_MAX_BYTES`](crate::limits::REGION_NAME_MAX_BYTES), or has `@`,
    /// `/` or a control character.
    #[error("{name:?} is no name of a region: 1 to 64 bytes without `@`, `/` and control characters")]
    BadRegion {
        /// The name.
        name: String,
    },
    /// A region of this name is there already.
    #[error("there is a region {name:?} already")]
    RegionTaken {
        /// The name.
        name: String,
    },
    /// No region has this name.
    #[error("no region {name:?}")]
    NoSuchRegion {
        /// The name.
        name: String,
    },
    /// Somebody works in the region: an export, a client of the socket or a file shows it.
    #[error("region {name:?} is in use, by {users}")]
    RegionInUse {
        /// The name.
        name: String,
        /// How many work in it.
        users: usize,
    },
    /// As many regions are there as may be.
    #[error("{max} regions are there, no more may be")]
    TooManyRegions {
        /// The most there may be.
        max: usize,
    },
    /// No gap between regions has so many blocks.
    #[error("no gap between regions has {blocks} blocks, the longest has {longest}")]
    NoGap {
        /// Blocks that were asked for.
        blocks: u64,
        /// Blocks of the longest gap.
        longest: u64,
    },
    /// As many snapshots have names as may.
    #[error("{max} snapshots have names, no more may")]
    TooManySnapshots {
        /// The most there may be.
        max: usize,
    },
}

/// What of a lack of room harm explains.
fn kept_for_harm(segments: usize) -> String {
    match segments {
        0 => String::new(),
        segments => format!(
            "; {segments} segments have damage and give no room until what is damaged is discarded or written anew: a scrub names it"
        ),
    }
}

/// Why a transaction does not do what it was asked for.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TxError {
    /// It has committed, was refused or was aborted.
    #[error("the transaction has ended")]
    Ended,
    /// It was ended because it held up too much: its snapshot was the oldest when memory or room on the drives ran out. Try all of
    /// it again.
    #[error("the transaction was ended to make room: its snapshot was the oldest")]
    Preempted,
    /// A transaction nested in it was aborted: nothing of it will commit.
    #[error("a nested transaction was aborted, so this one cannot commit")]
    Doomed,
    /// A write of it was refused, over the socket, over NBD or on a mounted file: it would commit a part of what was meant.
    #[error("a write of the transaction was refused, so it cannot commit")]
    Incomplete,
    /// It writes as many blocks as one may.
    #[error("a transaction writes at most {max} blocks")]
    TooManyWrites {
        /// The most there may be.
        max: usize,
    },
    /// It reads as many blocks as one may.
    #[error("a transaction reads at most {max} blocks")]
    TooManyReads {
        /// The most there may be.
        max: usize,
    },
    /// The client has as many transactions as one may.
    #[error("a client has at most {max} transactions at a time")]
    TooMany {
        /// The most there may be.
        max: usize,
    },
    /// Too many transactions are nested in each other.
    #[error("at most {max} transactions are nested in each other")]
    TooDeep {
        /// The most there may be.
        max: u32,
    },
    /// A mark for a block that it has not read or written.
    #[error("block {block} was not read or written before it was marked")]
    NotAccessed {
        /// The block.
        block: u64,
    },
    /// Bytes that no block has.
    #[error("bytes {start} to {end} of a block of 4096")]
    BadBytes {
        /// Where they begin.
        start: usize,
        /// Where they end.
        end: usize,
    },
    /// As many transactions are released as may be, and nobody has taken them over.
    #[error("{max} transactions are released and not taken over, no more may be")]
    TooManyReleased {
        /// The most there may be.
        max: usize,
    },
    /// No transaction was released with this handle to who asks, or somebody has taken it over, or its time is up.
    #[error("no transaction was released with this handle")]
    NoSuchHandle,
    /// The volume refuses.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

/// Why a transaction did not commit. It has ended; nothing of it is there, unless the volume has stopped: then that is not known.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CommitError {
    /// Somebody else has committed what this one depends on. Try all of it again.
    #[error("block {block}, bytes {} to {}, was written by version {version} meanwhile", bytes.start, bytes.end)]
    Conflict {
        /// The block.
        block: u64,
        /// The first bytes of it that both are about, in whole fragments.
        bytes: Range<usize>,
        /// The commit that was first.
        version: Version,
    },
    /// It cannot commit any more.
    #[error(transparent)]
    Tx(#[from] TxError),
}

impl From<VolumeError> for CommitError {
    fn from(error: VolumeError) -> Self {
        Self::Tx(error.into())
    }
}

/// Why bytes are not the record that says what a volume is.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StateError {
    /// There is none.
    #[error("it has no volume record")]
    Missing,
    /// It is none, or does not decode.
    #[error(transparent)]
    Record(#[from] RecordError),
}
