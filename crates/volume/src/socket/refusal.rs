//! Why a request was not done: a number for programs, words for people.

use std::fmt;
use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_chain::ChainError;
use ithaca_env::codec::{DecodeError, Decoder};

use super::limits::WORDS_MAX_BYTES;
use crate::{CommitError, TxError, Version, VolumeError};

/// What kind of refusal it is. The numbers are the protocol's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// The frame is none, or of another version, or the connection is none that is served: it ends.
    Frame = 1,
    /// There is no such request, or a field holds what it must not, or it needs a transaction, or must have none.
    Request = 2,
    /// Somebody else has committed what the transaction depends on: try all of it again.
    Conflict = 3,
    /// The transaction was ended to make room: try all of it again.
    Preempted = 4,
    /// A transaction within it was aborted, or a write of it was refused: nothing of it will commit.
    Doomed = 5,
    /// There is no transaction of this number, or it has ended.
    Ended = 6,
    /// There is a transaction of this number already.
    NumberTaken = 7,
    /// More than there may be: blocks, transactions, snapshots, regions; a region that no gap between others is long enough for.
    TooMany = 8,
    /// No transaction was released with this handle to this user, or its time is up.
    NoSuchHandle = 9,
    /// A mark of a block that was not read or written.
    NotAccessed = 10,
    /// Blocks or bytes that there are not.
    OutOfRange = 11,
    /// No room is left.
    NoSpace = 12,
    /// What the drive holds is not what was written.
    Damaged = 13,
    /// The drive failed, or the server stops. Whether a commit is there is not known.
    Stopped = 14,
    /// No snapshot or region has this name.
    NoSuchSnapshot = 15,
    /// A name that no snapshot or region can have, or one that has it already; a region that somebody works in.
    BadName = 16,
}

impl Status {
    const ALL: [Self; 16] = [
        Self::Frame,
        Self::Request,
        Self::Conflict,
        Self::Preempted,
        Self::Doomed,
        Self::Ended,
        Self::NumberTaken,
        Self::TooMany,
        Self::NoSuchHandle,
        Self::NotAccessed,
        Self::OutOfRange,
        Self::NoSpace,
        Self::Damaged,
        Self::Stopped,
        Self::NoSuchSnapshot,
        Self::BadName,
    ];

    /// The one that has this number.
    fn of(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|status| *status as u32 == number)
    }

    /// Whether all of the transaction should be tried again.
    pub fn is_passing(self) -> bool {
        matches!(self, Self::Conflict | Self::Preempted)
    }
}

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Of what kind it is.
    pub status: Status,
    /// Of a conflict: the block, the first bytes of it that both are about, and the commit that was first.
    pub conflict: Option<(u64, Range<usize>, Version)>,
    /// In words.
    pub words: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl std::error::Error for Refusal {}

impl Refusal {
    pub(super) fn new(status: Status, words: impl fmt::Display) -> Self {
        Self { status, conflict: None, words: words.to_string() }
    }

    /// Appends its body.
    pub(super) fn encode(&self, out: &mut BytesMut) {
        let (block, bytes, version) = self.conflict.clone().unwrap_or_default();
        out.put_u64_le(block);
        out.put_u32_le(bytes.start as u32);
        out.put_u32_le(bytes.end as u32);
        out.put_u64_le(version.0);
        // Cut between two letters.
        let len = self.words.floor_char_boundary(WORDS_MAX_BYTES);
        out.put_slice(&self.words.as_bytes()[..len]);
    }

    /// The refusal of a reply with this status.
    pub(super) fn decode(status: u32, body: &Bytes) -> Result<Self, DecodeError> {
        let expected = "1 to 16";
        let invalid = || DecodeError::Invalid { field: "status", found: u64::from(status), expected };
        let status = Status::of(status).ok_or_else(invalid)?;
        let mut fields = Decoder::new(body);
        let (block, start, end) = (fields.u64("block")?, fields.u32("first byte")?, fields.u32("end")?);
        let version = Version(fields.u64("version")?);
        let words = fields.bytes("words", fields.left())?;
        let conflict = (status == Status::Conflict).then_some((block, start as usize..end as usize, version));
        Ok(Self { status, conflict, words: String::from_utf8_lossy(words).into_owned() })
    }
}

impl From<VolumeError> for Refusal {
    fn from(error: VolumeError) -> Self {
        let status = match &error {
            VolumeError::OutOfRange { .. } => Status::OutOfRange,
            VolumeError::Length { .. } | VolumeError::NotWholeBlocks { .. } => Status::Request,
            VolumeError::Full { .. } => Status::NoSpace,
            VolumeError::Damaged { .. } => Status::Damaged,
            VolumeError::NoSuchSnapshot { .. }
            | VolumeError::NoSuchVersion { .. }
            | VolumeError::NoSuchRegion { .. } => Status::NoSuchSnapshot,
            VolumeError::BadName { .. }
            | VolumeError::NameTaken { .. }
            | VolumeError::BadRegion { .. }
            | VolumeError::RegionInUse { .. }
            | VolumeError::RegionTaken { .. } => Status::BadName,
            VolumeError::TooManySnapshots { .. }
            | VolumeError::TooManyRegions { .. }
            | VolumeError::NoGap { .. } => Status::TooMany,
            _ => Status::Stopped,
        };
        Self::new(status, error)
    }
}

impl From<ChainError> for Refusal {
    fn from(error: ChainError) -> Self {
        Self::new(Status::Stopped, error)
    }
}

impl From<TxError> for Refusal {
    fn from(error: TxError) -> Self {
        let status = match error {
            TxError::Volume(error) => return error.into(),
            TxError::Ended => Status::Ended,
            TxError::Preempted => Status::Preempted,
            TxError::Doomed | TxError::Incomplete => Status::Doomed,
            TxError::NotAccessed { .. } => Status::NotAccessed,
            TxError::BadBytes { .. } => Status::OutOfRange,
            TxError::NoSuchHandle => Status::NoSuchHandle,
            TxError::TooManyWrites { .. }
            | TxError::TooManyReads { .. }
            | TxError::TooMany { .. }
            | TxError::TooManyReleased { .. }
            | TxError::TooDeep { .. } => Status::TooMany,
        };
        Self::new(status, error)
    }
}

impl From<CommitError> for Refusal {
    fn from(error: CommitError) -> Self {
        let words = error.to_string();
        match error {
            CommitError::Conflict { block, bytes, version } => {
                Self { status: Status::Conflict, conflict: Some((block, bytes, version)), words }
            }
            CommitError::Tx(error) => error.into(),
        }
    }
}
