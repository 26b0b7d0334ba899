//! What a client's calls fail with. Each error names the node, the epoch and the phase where there is one, and says by
//! its kind whether trying again can help.

use std::net::SocketAddr;
use std::time::Duration;

use thiserror::Error;

use super::connection::CallError;
use crate::pos::{ClusterId, Epoch, LogPos, NodeId, StreamId, StreamPos};
use crate::stream::ConflictKey;
use crate::wire::Refusal;

/// What a client was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Reaching a node and greeting it.
    Connect,
    /// Learning the layout.
    Layout,
    /// Asking for positions.
    Token,
    /// Sending entries to be granted positions and written.
    Append,
    /// Writing entries.
    Write,
    /// Finding out what a position holds after a write without an answer.
    Resolve,
    /// Reading.
    Read,
    /// Making junk of holes.
    Fill,
    /// Trimming.
    Trim,
    /// Asking for the tail.
    Check,
    /// Following the tail.
    Follow,
    /// Asking a node about itself.
    Status,
    /// Sealing an epoch.
    Seal,
    /// Asking a node about an object.
    View,
    /// Asking a node for its drives, or for a change of them.
    Drives,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Layout => "layout",
            Self::Token => "token",
            Self::Append => "append",
            Self::Write => "write",
            Self::Resolve => "resolve",
            Self::Read => "read",
            Self::Fill => "fill",
            Self::Trim => "trim",
            Self::Check => "check",
            Self::Follow => "follow",
            Self::Status => "status",
            Self::Seal => "seal",
            Self::View => "view",
            Self::Drives => "drives",
        }
    }
}

/// Why a call failed.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum ClientError {
    /// Nothing was written at the position yet.
    #[error("position {pos} is unwritten")]
    Unwritten {
        /// The position.
        pos: LogPos,
    },
    /// The entry is larger than any may be.
    #[error("an entry of {len} bytes is over the limit of {limit} bytes")]
    TooLarge {
        /// Its length.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// The streams or the condition of an append cannot be as they are.
    #[error(transparent)]
    Streams(#[from] StreamsError),
    /// Certainly not appended: something that the append's condition reads was written since its snapshot, or is to be written
    /// at this position. Read it again, and append with a later snapshot.
    #[error("conflict: {key} was written at position {pos}")]
    Conflict {
        /// What.
        key: ConflictKey,
        /// Where.
        pos: LogPos,
    },
    /// Certainly not appended: whether what the condition reads was written since its snapshot is not known so far back. No
    /// conflict: read the streams from the snapshot on, and append with one that is not below `low_water`.
    #[error("what was written below position {low_water} is not remembered")]
    TooOld {
        /// The lowest snapshot that can be decided.
        low_water: LogPos,
    },
    /// What is stored at the position does not match its checksum, or cannot be read.
    #[error("position {pos} is damaged")]
    Damaged {
        /// The position.
        pos: LogPos,
    },
    /// The entry was certainly not appended: its position went to something else. Append it again if order allows.
    #[error("not appended: position {pos} went to another entry or to junk")]
    Overtaken {
        /// The position that was tried.
        pos: LogPos,
    },
    /// The entry was certainly not appended: the epoch that it was sent in has ended, its sequencer has forgotten it, or its position was given
    /// up since a unit did not take it. Append it again if order allows.
    #[error("not appended: {cause}")]
    NotAppended {
        /// What kept it from its position.
        cause: Box<ClientError>,
    },
    /// The entry may or may not stand at this position, and nowhere else.
    #[error("outcome unknown, position {pos}: {cause}")]
    OutcomeUnknown {
        /// The position.
        pos: LogPos,
        /// What kept the answer away.
        cause: Box<ClientError>,
    },
    /// The entry stands, or will come to stand, once at or above this position, or nowhere.
    #[error("outcome unknown, at or above position {after} or nowhere: {cause}")]
    OutcomeUnknownAfter {
        /// The lowest position where it may be.
        after: LogPos,
        /// What kept the answer away.
        cause: Box<ClientError>,
    },
    /// A node did not answer as it should.
    #[error("{addr} (epoch {}, {}): {error}", epoch.0, phase.name())]
    Node {
        /// Which node.
        addr: SocketAddr,
        /// In which epoch.
        epoch: Epoch,
        /// What for.
        phase: Phase,
        /// What happened.
        error: CallError,
    },
    /// The time for the whole call ran out.
    #[error("timed out after {waited:?} ({}); last: {last}", phase.name())]
    TimedOut {
        /// What it was doing.
        phase: Phase,
        /// The time that it was given.
        waited: Duration,
        /// The last thing that went wrong on the way.
        last: Box<ClientError>,
    },
    /// The time for the whole call ran out, and nothing had gone wrong but time.
    #[error("timed out after {waited:?} ({})", phase.name())]
    Slow {
        /// What it was doing.
        phase: Phase,
        /// The time that it was given.
        waited: Duration,
    },
    /// Nothing is appended: of each entry fewer copies can be kept than an append needs.
    #[error("{kept} of {needed} copies can be kept: {}", not_in_use(out))]
    TooFewReplicas {
        /// Copies that can be kept.
        kept: u16,
        /// Copies that are needed.
        needed: u16,
        /// Members that are not in use.
        out: Vec<NodeId>,
    },
    /// No node of the cluster keeps views of objects.
    #[error("no node of the cluster keeps views of objects")]
    NoViews,
    /// No node that is known belongs to a cluster.
    #[error("{addr}: this server belongs to no cluster yet")]
    NoCluster {
        /// One of them.
        addr: SocketAddr,
    },
    /// Endpoints are of two clusters, and neither's layout lists them all.
    #[error(
        "the endpoints belong to two clusters: {} at {}, {} at {}",
        clusters[0].0, clusters[0].1, clusters[1].0, clusters[1].1
    )]
    TwoClusters {
        /// Each, and an endpoint that is of it.
        clusters: Box<[(ClusterId, SocketAddr); 2]>,
    },
    /// The cluster has gone on without nodes that are gone for good, and may have lost what this client has seen. Another client begins with what is
    /// left; so must whatever was made of the log by this one.
    #[error("the cluster has lost nodes for good, and goes on from epoch {}: what was read before may be lost", epoch.0)]
    AfterLoss {
        /// The epoch that it goes on in.
        epoch: Epoch,
    },
    /// No endpoint was given.
    #[error("no endpoint to connect to")]
    NoEndpoint,
    /// The layout that a node sent makes no sense.
    #[error("{addr}: the layout cannot be understood: {error}")]
    BadLayout {
        /// Who sent it.
        addr: SocketAddr,
        /// What is wrong with it.
        error: ithaca_env::record::RecordError,
    },
    /// A layout names a node by what is not an address.
    #[error("{addr}: a node of the layout of epoch {} has no usable address", epoch.0)]
    BadAddress {
        /// Who sent the layout.
        addr: SocketAddr,
        /// Its epoch.
        epoch: Epoch,
    },
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
}

/// What is wrong with the streams of an append, or with its condition.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum StreamsError {
    /// Too many streams.
    #[error("an append to {found} streams; {limit} are allowed")]
    TooMany {
        /// How many.
        found: usize,
        /// How many there may be.
        limit: usize,
    },
    /// A stream's name is empty or too long.
    #[error("a name of {len} bytes; 1 to {limit} are allowed")]
    Name {
        /// How long it is.
        len: usize,
        /// How long it may be.
        limit: usize,
    },
    /// One of them twice.
    #[error("stream {stream} is named twice")]
    Twice {
        /// Which.
        stream: StreamId,
    },
    /// One of the system's own, which only it changes.
    #[error("stream {stream} is the system's own")]
    System {
        /// Which.
        stream: StreamId,
    },
    /// It does not go that far.
    #[error("stream {stream} ends at {next}, below {below}")]
    PastEnd {
        /// Which.
        stream: StreamId,
        /// What was asked for.
        below: StreamPos,
        /// Its next position.
        next: StreamPos,
    },
    /// The condition names too many parts of streams.
    #[error("a condition that names {found} parts of streams; {limit} are allowed")]
    TooManyParts {
        /// How many, of those that are read or of those that are written.
        found: usize,
        /// How many there may be of each.
        limit: usize,
    },
    /// The condition says that the append writes to a stream which it is not appended to.
    #[error("a write of {key}, which the entry is not appended to")]
    NotItsStream {
        /// What it is said to write.
        key: ConflictKey,
    },
}

/// Which nodes are not in use, in words.
fn not_in_use(nodes: &[NodeId]) -> String {
    let names: Vec<String> = nodes.iter().map(|node| node.0.to_string()).collect();
    match names.as_slice() {
        [] => "too few nodes are in use".to_owned(),
        [node] => format!("node {node} is not in use"),
        nodes => format!("nodes {} are not in use", nodes.join(" ")),
    }
}

/// What kind of failure it is, for exit codes and retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// The answer is no.
    No,
    /// The request is at fault; it will fail again.
    Usage,
    /// A node could not be reached or did not do it in time.
    Unavailable,
    /// Data is damaged.
    Damaged,
}

impl ClientError {
    /// Whether there was no room for what was to be written, and it certainly stands nowhere.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Node { error: CallError::Refused(refusal), .. } => matches!(refusal, Refusal::Full),
            Self::TimedOut { last: cause, .. } | Self::NotAppended { cause } => cause.is_full(),
            _ => false,
        }
    }

    /// What kind of failure it is.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Unwritten { .. } | Self::Conflict { .. } | Self::TooOld { .. } => ErrorClass::No,
            Self::Streams(StreamsError::PastEnd { .. }) => ErrorClass::No,
            Self::TooLarge { .. } | Self::Streams(_) | Self::TwoClusters { .. } => ErrorClass::Usage,
            Self::Damaged { .. } => ErrorClass::Damaged,
            Self::Node { error: CallError::Refused(refusal), .. } => match refusal {
                Refusal::Damaged { .. } => ErrorClass::Damaged,
                Refusal::TooLarge { .. } => ErrorClass::Usage,
                Refusal::Unwritten { .. } => ErrorClass::No,
                _ => ErrorClass::Unavailable,
            },
            _ => ErrorClass::Unavailable,
        }
    }
}
