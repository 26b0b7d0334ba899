//! The wire protocol: what a connection carries, both ways.
//!
//! A connection is a stream of [`Frame`]s. A request carries a [`RequestId`](crate::pos::RequestId) of the requester's
//! choice, and its reply repeats it; replies may come in any order, and any number of requests may be under way. The
//! first frame on a connection is [`Hello`]. Every request is answered by the reply that belongs to it or by a
//! [`Refusal`]. A subscription is answered by a sequence of [`Runs`] frames.
//!
//! A frame's data (the payloads of entries) stands beside the message, never inside it: whoever encodes may send data
//! as shared bytes after the head ([`encode_head`]), and whoever decodes gets it as a slice of what was received.
//!
//! Nothing here does input or output, and no decoder panics, whatever the bytes are. docs/protocol.md describes every
//! byte, for other languages.

mod append;
mod beat;
mod change;
mod check;
mod decide;
mod drives;
mod frame;
mod hello;
mod layout;
mod outcome;
mod read;
mod refusal;
mod runs;
mod seal;
mod space;
mod status;
mod stream;
mod token;
mod view;
mod watch;
mod write;

#[cfg(test)]
mod tests;

pub use append::{Append, Appended, BatchHead, encode_append_head};
pub use beat::{Account, Beat, Beaten, Mark, NodeState};
pub use change::{ChangeCluster, ClusterChanged};
pub use check::{Check, ExtentBounds, Tail};
pub use decide::{Accept, Accepted, Invitation, Learn, Learned, Lease, Leased, Prepare, Promise, Vote};
pub use drives::{ChangeDrives, DriveChange, DriveRefusal, Drives, DrivesChanged, GetDrives, UnitDrive};
pub(crate) use frame::next_frame_within;
pub use frame::{FLAG_END, FLAG_PUSH, FLAG_RELAY, Frame, FrameError, HEADER_BYTES, Head, next_frame};
pub use hello::{Hello, HelloOk, PROTOCOL_VERSION};
pub use layout::{GetLayout, LayoutRecord, WatchLayout};
pub use outcome::{Outcome, Taken};
pub use read::{Credit, Read, RunHead, RunState, Runs, Subscribe, Unsubscribe};
pub use refusal::{Advice, Refusal};
pub use runs::{ReceivedRuns, RunRef, RunsBody, StateRef, entries_within, heads_within, table_entries};
pub use seal::{Seal, Sealed};
pub use space::{Fill, Filled, GetTrims, Trim, Trimmed, Trims};
pub use status::{Durability, GetStatus, NodeStatus, Roles};
pub use stream::{ReadStream, StreamRuns, Wanted};
pub use token::{Grant, GroupGrant, Token, TokenGroup};
pub use view::{AskView, DataSum, ViewAnswer};
pub use watch::WatchStream;
pub use write::{Write, Written, encode_write_head};

use bytes::{Bytes, BytesMut};
use ithaca_env::codec::DecodeError;
use thiserror::Error;

/// A message: the body of a frame of one kind.
pub trait Message: Sized {
    /// The kind of its frames.
    const KIND: Kind;

    /// Appends the body. Panics if a count or a length is over its limit: that is the sender's mistake.
    fn encode_body(&self, out: &mut BytesMut);

    /// Decodes a whole body. `data_len` bytes of data came with it; a message that lists data checks that the lengths
    /// add up, and any other that there is none.
    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError>;
}

/// Appends a frame: header, body, and the pieces of data one after the other.
pub fn encode<M: Message, D: AsRef<[u8]>>(out: &mut BytesMut, head: Head, message: &M, data: &[D]) {
    let data_len = data.iter().map(|piece| piece.as_ref().len()).sum();
    encode_head(out, head, message, data_len);
    for piece in data {
        out.extend_from_slice(piece.as_ref());
    }
}

/// Appends a frame without data.
pub fn encode_message<M: Message>(out: &mut BytesMut, head: Head, message: &M) {
    encode_head(out, head, message, 0);
}

/// Appends a frame's header and body. The caller sends `data_len` bytes of data right after them.
pub fn encode_head<M: Message>(out: &mut BytesMut, head: Head, message: &M, data_len: usize) {
    let start = frame::begin_frame(out);
    message.encode_body(out);
    frame::finish_frame(out, start, M::KIND, head, data_len);
}

/// Why a frame is not a message. The connection may go on: the next frame is well delimited.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MessageError {
    /// No message has this kind, or not in this direction.
    #[error("no such kind of message here: {kind:#06x}")]
    UnknownKind {
        /// The frame's kind.
        kind: u16,
    },
    /// The body is not that of its kind.
    #[error("{kind:?}: {error}")]
    Malformed {
        /// The frame's kind.
        kind: Kind,
        /// What is wrong with it.
        error: DecodeError,
    },
}

macro_rules! messages {
    ($($name:ident = $number:literal,)*) => {
        /// The kinds of message. Replies have the highest bit set.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Kind {
            $(#[doc = concat!("[`", stringify!($name), "`]")] $name = $number,)*
        }

        impl Kind {
            /// Every kind, in the order of their numbers.
            pub const ALL: &'static [Kind] = &[$(Kind::$name,)*];

            /// The kind with this number.
            pub fn from_u16(number: u16) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

messages! {
    Hello = 0x0001,
    Token = 0x0002,
    Write = 0x0003,
    Read = 0x0004,
    Fill = 0x0005,
    Trim = 0x0006,
    Check = 0x0007,
    Seal = 0x0008,
    GetLayout = 0x0009,
    Subscribe = 0x000b,
    Credit = 0x000c,
    Unsubscribe = 0x000d,
    GetStatus = 0x000e,
    Append = 0x000f,
    Prepare = 0x0010,
    Accept = 0x0011,
    Learn = 0x0012,
    Lease = 0x0013,
    Beat = 0x0014,
    GetTrims = 0x0015,
    ChangeCluster = 0x0016,
    ReadStream = 0x0017,
    WatchStream = 0x0018,
    AskView = 0x0019,
    GetDrives = 0x001a,
    ChangeDrives = 0x001b,
    WatchLayout = 0x001c,
    HelloOk = 0x8001,
    Grant = 0x8002,
    Written = 0x8003,
    Runs = 0x8004,
    Filled = 0x8005,
    Trimmed = 0x8006,
    Tail = 0x8007,
    Sealed = 0x8008,
    LayoutRecord = 0x8009,
    NodeStatus = 0x800e,
    Appended = 0x800f,
    Promise = 0x8010,
    Accepted = 0x8011,
    Learned = 0x8012,
    Leased = 0x8013,
    Beaten = 0x8014,
    Trims = 0x8015,
    ClusterChanged = 0x8016,
    StreamRuns = 0x8017,
    ViewAnswer = 0x8019,
    Drives = 0x801a,
    DrivesChanged = 0x801b,
    Refusal = 0xffff,
}

macro_rules! direction {
    ($(#[$doc:meta])* $enum:ident: $($name:ident),*) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub enum $enum {
            $(#[doc = concat!("[`", stringify!($name), "`]")] $name($name),)*
        }

        impl $enum {
            /// Decodes the message of `frame`. Its data stays in the frame.
            pub fn decode(frame: &Frame) -> Result<Self, MessageError> {
                match Kind::from_u16(frame.kind) {
                    $(Some(Kind::$name) => $name::decode_body(&frame.body, frame.data.len())
                        .map(Self::$name)
                        .map_err(|error| MessageError::Malformed { kind: Kind::$name, error }),)*
                    _ => Err(MessageError::UnknownKind { kind: frame.kind }),
                }
            }

            /// The message's kind.
            pub fn kind(&self) -> Kind {
                match self {
                    $(Self::$name(_) => Kind::$name,)*
                }
            }

            /// Appends a frame with this message; `data_len` bytes of data follow it, sent by the caller.
            pub fn encode_head(&self, out: &mut BytesMut, head: Head, data_len: usize) {
                match self {
                    $(Self::$name(message) => encode_head(out, head, message, data_len),)*
                }
            }
        }

        $(impl From<$name> for $enum {
            fn from(message: $name) -> Self {
                Self::$name(message)
            }
        })*
    };
}

direction! {
    /// What a client sends.
    Request: Hello, Token, Write, Read, Fill, Trim, Check, Seal, GetLayout, Subscribe, Credit, Unsubscribe, GetStatus,
    Append, Prepare, Accept, Learn, Lease, Beat, GetTrims,
    ChangeCluster, ReadStream, WatchStream, AskView, GetDrives, ChangeDrives, WatchLayout
}

direction! {
    /// What a node answers.
    Reply: HelloOk, Grant, Written, Runs, Filled, Trimmed, Tail, Sealed, LayoutRecord, NodeStatus, Appended,
    Promise, Accepted, Learned, Leased, Beaten, Trims, ClusterChanged, StreamRuns, ViewAnswer, Drives,
    DrivesChanged, Refusal
}

/// Refuses data beside a message that has none.
fn no_data(data_len: usize) -> Result<(), DecodeError> {
    if data_len == 0 { Ok(()) } else { Err(DecodeError::Trailing { left: data_len }) }
}

/// Refuses a count over its limit.
fn at_most(
    field: &'static str,
    found: usize,
    limit: usize,
    expected: &'static str,
) -> Result<(), DecodeError> {
    if found <= limit { Ok(()) } else { Err(DecodeError::Invalid { field, found: found as u64, expected }) }
}

/// Refuses anything but zero where a later version may put something.
fn zero(field: &'static str, found: u64) -> Result<(), DecodeError> {
    if found == 0 { Ok(()) } else { Err(DecodeError::Invalid { field, found, expected: "0" }) }
}

/// `None` is sent as the largest number, which is never a position, an address or an epoch.
const NONE: u64 = u64::MAX;

/// An optional number, as sent.
fn optional(number: Option<u64>) -> u64 {
    debug_assert_ne!(number, Some(NONE), "the largest number stands for none");
    number.unwrap_or(NONE)
}

/// An optional number, as received.
fn from_optional(number: u64) -> Option<u64> {
    (number != NONE).then_some(number)
}
