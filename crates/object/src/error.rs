//! What calls on objects fail with. Each error names the object and the position, and says by its kind whether trying again
//! can help.

use ithaca_log::client::{ClientError, ErrorClass};
use ithaca_log::pos::LogPos;
use thiserror::Error;

use crate::checkpoint::HoldRefused;
use crate::checkpoint::chunk::Unusable;
use crate::key::Key;
use crate::limits;
use crate::object::CallError;
use crate::record::TxId;
use crate::remote::Refused;
use crate::tx::TxFull;
use crate::view::Fault;

/// Why a transaction was not committed: another one has written what it depends on.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("aborted: {key} of `{object}` was written at position {pos}{}", by.map(|id| format!(" by transaction {id}")).unwrap_or_default())]
pub struct Aborted {
    /// The object, by the name that it was opened by.
    pub object: String,
    /// Which part of it.
    pub key: Key,
    /// Where the other transaction stands in the log.
    pub pos: LogPos,
    /// The other transaction, if its record could be read; an append that had to take another position may have been in its
    /// own way.
    pub by: Option<TxId>,
}

/// Why a call on an object, or on a transaction, failed.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum ObjectError {
    /// The log did not do it. Nothing was changed, and trying again may help.
    #[error(transparent)]
    Log(Box<ClientError>),
    /// The transaction was not committed. Run it again.
    #[error(transparent)]
    Aborted(#[from] Aborted),
    /// The transaction may or may not be committed; its outcome can be asked for.
    #[error("outcome of transaction {id} unknown: {cause}")]
    Unknown {
        /// Which transaction.
        id: TxId,
        /// What kept the answer away.
        cause: Box<ClientError>,
    },
    /// The call was made, and what it gave cannot be told: the log or the node that has the object's state does not say, or what lies before it
    /// cannot be read. Made again it would happen twice.
    #[error("the call on `{object}` stands at position {pos}, its result is not known: {cause}")]
    NoResult {
        /// The object's name.
        object: String,
        /// Where the call stands.
        pos: LogPos,
        /// Why the result is not known.
        cause: Box<ObjectError>,
    },
    /// The object cannot be read from some position on: its stream holds what cannot be applied, or it is not deterministic.
    #[error("object `{object}`: {fault}")]
    Stopped {
        /// The object's name.
        object: String,
        /// Where, and why.
        fault: Fault,
    },
    /// The beginning of the object's stream was trimmed, or an entry of it, and what is left does not make its state.
    #[error("`{object}` lacks what was trimmed below position {below}: what is left of it is not its state")]
    Trimmed {
        /// The object's name.
        object: String,
        /// Below which position of the log something of it is not there any more.
        below: LogPos,
    },
    /// A state that was forgotten.
    #[error("`{object}` up to {snapshot} is forgotten: {earliest} is the earliest that can be read")]
    Forgotten {
        /// The object's name.
        object: String,
        /// What was asked for: the state that reflects every position below.
        snapshot: LogPos,
        /// The earliest that there is.
        earliest: LogPos,
    },
    /// Calls are forgotten, and the checkpoint that takes their place cannot be used.
    #[error("the checkpoint of `{object}` up to {upto} cannot be used: {reason}")]
    Unusable {
        /// The object's name.
        object: String,
        /// What the checkpoint reflects: every position below.
        upto: LogPos,
        /// What is wrong with it.
        reason: Unusable,
    },
    /// A checkpoint would be larger than any may be.
    #[error(
        "a checkpoint of `{object}` has {bytes} bytes: it may have {}, in {} chunks",
        limits::CHECKPOINT_MAX_BYTES,
        limits::CHUNKS_MAX_COUNT
    )]
    TooLarge {
        /// The object's name.
        object: String,
        /// How large it would be.
        bytes: u64,
    },
    /// The object is a catalog of checkpoints, of which there are none.
    #[error("there are no checkpoints of `{object}`")]
    NoCheckpoints {
        /// The object's name.
        object: String,
    },
    /// A value of a store is not in the log any more: its entry was trimmed, or is not the one that the index names.
    #[error("a value of `{object}` is not at position {pos} any more")]
    NoValue {
        /// The store's name.
        object: String,
        /// Where it was.
        pos: LogPos,
    },
    /// A put of a store that does not fit into an entry with room to spare. Nothing was changed.
    #[error("a put of {bytes} bytes into `{object}`: it may have {limit}")]
    PutTooLarge {
        /// The store's name.
        object: String,
        /// Bytes of its keys and values.
        bytes: usize,
        /// How many it may have: 4 KiB less than the longest entry that the log takes.
        limit: usize,
    },
    /// A tree map that is higher than one can be: its nodes lead to each other.
    #[error("`{object}` is a tree of more than {} nodes above each other", limits::TREE_HEIGHT_MAX)]
    TooHigh {
        /// The map's name.
        object: String,
    },
    /// A pin or lease that was refused.
    #[error("`{object}`: {refused}")]
    Hold {
        /// The object's name.
        object: String,
        /// Why.
        refused: HoldRefused,
    },
    /// A call that the object cannot do.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A snapshot that the log does not reach yet.
    #[error("the log ends at position {tail}: there is no state of `{object}` up to {snapshot}")]
    NotYet {
        /// The object's name.
        object: String,
        /// What was asked for: the state that reflects every position below.
        snapshot: LogPos,
        /// The log's tail.
        tail: LogPos,
    },
    /// The object is open as another type of object.
    #[error("`{object}` is open as a {found}, not as a {wanted}")]
    OtherType {
        /// The object's name.
        object: String,
        /// What it is open as.
        found: &'static str,
        /// What it was to be opened as.
        wanted: &'static str,
    },
    /// The stream is that of something else than this type of object. Nothing was changed.
    #[error("`{object}` is no {wanted}: the entry at position {pos} {found}")]
    OtherEntries {
        /// The object's name.
        object: String,
        /// What it was to be.
        wanted: &'static str,
        /// The newest entry of its stream.
        pos: LogPos,
        /// What that is.
        found: String,
    },
    /// A change of an object that is open as of a position.
    #[error("`{object}` is open as of position {snapshot}, where it cannot be changed")]
    ReadOnly {
        /// The object's name.
        object: String,
        /// The position below which it reflects everything.
        snapshot: LogPos,
    },
    /// The node that has the object's state gives no answer.
    #[error("`{object}`: {refused}")]
    Remote {
        /// The object's name.
        object: String,
        /// Why not.
        refused: Refused,
    },
    /// What only a program can do that has the object's state itself: open it without `remote`.
    #[error("`{object}` is open as a remote view, which cannot do this: {what}")]
    OnlyLocal {
        /// The object's name.
        object: String,
        /// What was to be done.
        what: &'static str,
    },
    /// The transaction takes no more.
    #[error(transparent)]
    Full(#[from] TxFull),
    /// The transaction has ended; also because of a call that was taken back, on which another one or a read was built.
    #[error("the transaction has ended")]
    Ended,
    /// Too many calls wait to be sent. The call did not happen.
    #[error(
        "too many calls of `{object}` wait to be sent ({} of them, or {} MiB): this one is not taken",
        limits::SUBMITTED_MAX_COUNT, limits::SUBMITTED_MAX_BYTES >> 20
    )]
    Crowded {
        /// The object's name.
        object: String,
    },
}

impl From<ClientError> for ObjectError {
    fn from(error: ClientError) -> Self {
        Self::Log(Box::new(error))
    }
}

impl ObjectError {
    /// What kind of failure it is.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Log(error) => error.class(),
            Self::Aborted(_)
            | Self::NotYet { .. }
            | Self::Trimmed { .. }
            | Self::Forgotten { .. }
            | Self::NoValue { .. } => ErrorClass::No,
            // Whatever keeps the result away: the call happened, so it is neither refused nor without effect.
            Self::Unknown { .. } | Self::NoResult { .. } | Self::Crowded { .. } => ErrorClass::Unavailable,
            Self::Stopped { .. } | Self::Unusable { .. } | Self::TooHigh { .. } => ErrorClass::Damaged,
            Self::Hold { refused: HoldRefused::Forgotten { .. }, .. } => ErrorClass::No,
            Self::Remote { refused, .. } => match refused {
                Refused::Unavailable { .. } => ErrorClass::Unavailable,
                Refused::Stopped { .. } => ErrorClass::Damaged,
                Refused::Trimmed { .. } | Refused::Forgotten { .. } | Refused::NotYet { .. } => {
                    ErrorClass::No
                }
                _ => ErrorClass::Usage,
            },
            Self::TooLarge { .. }
            | Self::PutTooLarge { .. }
            | Self::NoCheckpoints { .. }
            | Self::OnlyLocal { .. }
            | Self::OtherEntries { .. }
            | Self::Hold { .. }
            | Self::Call(_)
            | Self::OtherType { .. }
            | Self::ReadOnly { .. }
            | Self::Full(_)
            | Self::Ended => ErrorClass::Usage,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_happened_is_never_told_of_as_one_that_finds_nothing() {
        // Whoever goes by the class, an exit code say, would make the call again.
        let (object, pos) = ("stock".to_owned(), LogPos(7));
        let trimmed = ObjectError::Trimmed { object: object.clone(), below: pos };
        let forgotten = ObjectError::Forgotten { object: object.clone(), snapshot: pos, earliest: LogPos(9) };
        let not_yet = ObjectError::NotYet { object: object.clone(), snapshot: pos, tail: LogPos(6) };
        for cause in [trimmed, forgotten, not_yet, ClientError::Closed.into(), ObjectError::Ended] {
            let error = ObjectError::NoResult { object: object.clone(), pos, cause: Box::new(cause) };
            assert_eq!(error.class(), ErrorClass::Unavailable, "{error}");
        }
    }
}
