//! Remote views: objects whose state a node of the cluster has, for programs that have not.
//!
//! ```text
//!   program                                     node
//!   Map::open_remote(.., "users")               Host: views of objects that somebody asked for
//!     get("ann") ─┬─ where does it end? ─► sequencer      │ brings the view up to date from the log
//!                 └─ Question ──────────────────────────► │ runs the accessor
//!                 ◄───────── Answer, and what it reflects ┘
//!     put(..) ────── record ─► log              (as from any program)
//! ```
//!
//! The question and the one to the sequencer go out at the same time. If the answer reflects all that the sequencer says there is, the read is
//! linearizable and took one round trip; if not, the node is asked again with what it must reflect at least.
//! (Wei 5.3; docs/protocol/remote-views.md)

pub mod any;
mod host;

use bytes::Bytes;
use ithaca_log::pos::LogPos;
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use host::{Host, HostOptions};

use crate::collections::Blob;
use crate::error::ObjectError;

/// A method by its name, and its arguments as MessagePack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// The name.
    pub method: String,
    /// The arguments, a map by their names.
    pub arguments: Blob,
}

/// What is asked about an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// The type of the object, by its name.
    pub object: String,
    /// The view is to reflect every position below, at least; the log MUST reach it.
    pub least: u64,
    /// The state is to be that which reflects every position below, and none above; `None` for what the view reflects.
    pub at: Option<u64>,
    /// Calls on top of that state, which are taken back afterwards. There are none without `at`.
    pub calls: Vec<Asked>,
    /// The accessor; `None` for the result of the last call.
    pub read: Option<Asked>,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// What the accessor or the call gave, as MessagePack.
    Value {
        /// The state that was read reflects every position below.
        upto: u64,
        /// What it gave.
        value: Blob,
    },
    /// There is none.
    Refused(Refused),
}

impl Answer {
    /// The answer as it is sent.
    pub fn to_bytes(&self) -> Bytes {
        // It is made of text, numbers and bytes, which all have a MessagePack.
        rmp_serde::to_vec_named(self).unwrap_or_default().into()
    }
}

/// Why a node gives no answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Error)]
pub enum Refused {
    /// The question is none.
    #[error("the question cannot be understood: {why}")]
    Malformed {
        /// What is wrong with it.
        why: String,
    },
    /// Nodes have no objects of this type.
    #[error("nodes keep no views of type `{object}`")]
    UnknownType {
        /// The type.
        object: String,
    },
    /// The object is open there as another type.
    #[error("its node has it open as a {found}")]
    OtherType {
        /// As which.
        found: String,
    },
    /// The call or the accessor cannot be done.
    #[error("{why}")]
    Call {
        /// Why not.
        why: String,
    },
    /// The object's stream cannot be applied.
    #[error("{why}")]
    Stopped {
        /// Where, and why.
        why: String,
    },
    /// The beginning of the object's stream was trimmed, or an entry of it, and what is left does not make its state.
    #[error("it lacks what was trimmed below position {below}")]
    Trimmed {
        /// Below which position of the log something of it is not there any more.
        below: u64,
    },
    /// The state that was asked for is forgotten.
    #[error("{earliest} is the earliest that can be read")]
    Forgotten {
        /// The earliest that there is.
        earliest: u64,
    },
    /// The log does not reach the state that was asked for.
    #[error("the log ends at position {tail}")]
    NotYet {
        /// Where it ends.
        tail: u64,
    },
    /// The answer is larger than any may be.
    #[error("the answer would have {bytes} bytes, of {limit} at the most")]
    TooLarge {
        /// How large it would be.
        bytes: u64,
        /// How large one may be.
        limit: u64,
    },
    /// The node does not reach the log. Later, or at another node, it may be answered.
    #[error("its node cannot read the log: {why}")]
    Unavailable {
        /// Why not.
        why: String,
    },
}

impl Refused {
    /// Why a read of an object at a node failed.
    fn of(error: ObjectError) -> Self {
        let why = error.to_string();
        match error {
            ObjectError::Stopped { .. } | ObjectError::Unusable { .. } => Self::Stopped { why },
            ObjectError::Trimmed { below, .. } => Self::Trimmed { below: below.0 },
            ObjectError::Forgotten { earliest, .. } => Self::Forgotten { earliest: earliest.0 },
            ObjectError::NotYet { tail, .. } => Self::NotYet { tail: tail.0 },
            ObjectError::OtherType { found, .. } => Self::OtherType { found: found.to_owned() },
            ObjectError::Call(_) => Self::Call { why },
            _ => Self::Unavailable { why },
        }
    }

    /// The error of who asked for the state below `snapshot`.
    pub(crate) fn into_error(self, object: String, snapshot: LogPos) -> ObjectError {
        match self {
            Self::Trimmed { below } => ObjectError::Trimmed { object, below: LogPos(below) },
            Self::Forgotten { earliest } => {
                ObjectError::Forgotten { object, snapshot, earliest: LogPos(earliest) }
            }
            Self::NotYet { tail } => ObjectError::NotYet { object, snapshot, tail: LogPos(tail) },
            refused => ObjectError::Remote { object, refused },
        }
    }
}

#[cfg(test)]
mod tests {
    use ithaca_env::real::golden;

    use super::*;
    use crate::composed::{Node, Shape};

    #[test]
    fn questions_and_answers_have_golden_bytes() {
        let call = |method: &str, arguments: &[u8]| Asked {
            method: method.to_owned(),
            arguments: Blob(bytes::Bytes::copy_from_slice(arguments)),
        };
        let question = Question {
            object: "map".to_owned(),
            least: 43,
            at: None,
            calls: Vec::new(),
            read: Some(call("get", b"\x81\xa3key\xa3ann")),
        };
        let result =
            Question { at: Some(42), calls: vec![call("clear", b"\x80")], read: None, ..question.clone() };
        let value = Answer::Value { upto: 43, value: Blob(bytes::Bytes::from_static(b"\xc0")) };
        let refused = Answer::Refused(Refused::UnknownType { object: "tree".to_owned() });
        let line = |name: &str, bytes: Result<Vec<u8>, _>| {
            format!("{name}\n{}", golden::hex(&bytes.expect("it encodes")))
        };
        let text: String = [
            "Questions to remote views and their answers, in hexadecimal. docs/protocol/remote-views.md explains them.\n\n".to_owned(),
            line("what_a_key_has", rmp_serde::to_vec_named(&question)),
            line("what_a_call_gave", rmp_serde::to_vec_named(&result)),
            line("value", rmp_serde::to_vec_named(&value)),
            line("refused", rmp_serde::to_vec_named(&refused)),
            line("shape_of_a_map_that_nobody_changed", rmp_serde::to_vec_named(&Shape::default())),
            line("node_of_a_tree_that_nobody_changed", rmp_serde::to_vec_named(&Node::<u64, u64>::default())),
        ]
        .concat();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/questions.txt");
        golden::check(path, &text);
    }
}
