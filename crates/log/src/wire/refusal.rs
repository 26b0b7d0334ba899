//! Why a node does not do what it was asked.

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};
use thiserror::Error;

use super::{Kind, Message, Roles, no_data, zero};
use crate::pos::{Addr, ClusterId, Epoch, LogPos, NodeId};

/// Answers a request that is not carried out. Unless [`Advice::OutcomeUnknown`] says otherwise, nothing was done.
///
/// Body, 24 bytes: `code u16`, `reserved u16`, `reserved u32`, `a u64`, `b u64`; what a and b mean depends on the code,
/// in the order of the fields here, 0 where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Refusal {
    /// Code 1. The request's epoch is sealed: a newer layout exists or is being made.
    #[error("epoch is sealed up to {sealed}")]
    Sealed {
        /// The last epoch that the node refuses.
        sealed: Epoch,
    },
    /// Code 2. A sequencer or an acceptor serves another epoch.
    #[error("asked for in epoch {}, served in epoch {}", asked.0, serving.0)]
    WrongEpoch {
        /// The epoch that it serves.
        serving: Epoch,
        /// The epoch of the request.
        asked: Epoch,
    },
    /// Code 3. The node does not have the role that the request needs.
    #[error("the node does not have the role {}", roles.0)]
    NotServing {
        /// The role that it lacks.
        roles: Roles,
    },
    /// Code 4. Something is over its limit: a count, bytes, or how far an address lies above all others.
    #[error("{found} is over the limit of {limit}")]
    TooLarge {
        /// What was found.
        found: u64,
        /// What is allowed.
        limit: u64,
    },
    /// Code 5. Used and unused addresses alternate too often on the unit; fill or trim holes.
    #[error("at {addr} the unit would have more than {limit} ranges of used addresses")]
    TooSparse {
        /// Where the request would have added another range.
        addr: Addr,
        /// How many ranges there may be.
        limit: u64,
    },
    /// Code 6. The drive is full; trimming still works.
    #[error("the drive is full")]
    Full,
    /// Code 7. The node's drive failed, and it has stopped; or it cannot read what a write of which it stored a part has met. Whether the
    /// request was carried out is not known.
    #[error("the node has failed")]
    Failed,
    /// Code 8. Too much is under way; ask again later.
    #[error("{pending} are under way, at most {limit} may be")]
    Overloaded {
        /// What is under way: bytes or requests.
        pending: u64,
        /// What may be.
        limit: u64,
    },
    /// Code 9. The message cannot be decoded, says what cannot be, or is one that only nodes may send.
    #[error("a message of kind {kind:#06x} cannot be decoded")]
    Malformed {
        /// The frame's kind.
        kind: u16,
    },
    /// Code 10. The node belongs to another cluster.
    #[error("the node belongs to cluster {cluster}")]
    WrongCluster {
        /// The node's cluster: a is its upper half, b its lower.
        cluster: ClusterId,
    },
    /// Code 11. No version of the protocol in common.
    #[error("the node speaks versions {version_min} to {version_max}")]
    UnsupportedVersion {
        /// The oldest that the node speaks.
        version_min: u16,
        /// The newest that the node speaks.
        version_max: u16,
    },
    /// Code 12. Another node was meant.
    #[error("this is node {node}")]
    WrongNode {
        /// The node that answers.
        node: NodeId,
    },
    /// Code 13. The address holds nothing, and the request needs it to.
    #[error("{addr} is unwritten")]
    Unwritten {
        /// The first such address.
        addr: Addr,
    },
    /// Code 14. An entry does not match its checksum, as it arrived.
    #[error("entry {index} of the write does not match its checksum")]
    Checksum {
        /// Which entry of the run.
        index: u64,
    },
    /// Code 15. The first frame of a connection is a hello, and no later one is.
    #[error("a connection begins with one hello")]
    Greeting,
    /// Code 16. What was stored at the address is damaged.
    #[error("what {addr} holds is damaged on the drive")]
    Damaged {
        /// The first such address.
        addr: Addr,
    },
    /// Code 17. No positions are left.
    #[error("the log is at its last position")]
    Exhausted,
    /// Code 18. There is no layout for the epoch yet, as far as the node knows.
    #[error("no layout for epoch {}", epoch.0)]
    NoLayout {
        /// The epoch that was asked for.
        epoch: Epoch,
    },
    /// Code 19. No subscription has this request id.
    #[error("no such subscription")]
    NoSubscription,
    /// Code 20. A batch that may have been granted positions before, so long ago that the sequencer has forgotten. All
    /// that it has forgotten lies below `from`.
    #[error("batches that were granted positions below {from} are forgotten")]
    Forgotten {
        /// One past the last position of a forgotten grant.
        from: LogPos,
    },
    /// Code 21. A relayed write is on stable storage here, and not certainly on every later replica.
    #[error("written here, and not certainly on every later replica")]
    NotRelayed,
    /// Code 22. The node does not know for certain that the epoch is the latest: what is not there may be elsewhere by now.
    #[error("no lease on epoch {}: the cluster may have gone on without this node", epoch.0)]
    NoLease {
        /// The epoch of the request.
        epoch: Epoch,
    },
    /// Code 23. No layout was decided that is as was asked: that of `epoch`, the latest that the node knows, cannot be changed
    /// so, or is not the one that was asked about, or the others did not answer in time.
    #[error("the layout of epoch {} was not changed", epoch.0)]
    NotChanged {
        /// The latest epoch that the node knows.
        epoch: Epoch,
    },
    /// Code 24. Of each entry fewer copies can be kept than an append needs, because too few units are in use.
    #[error("{kept} of {needed} copies can be kept")]
    TooFewReplicas {
        /// Copies that can be kept.
        kept: u16,
        /// Copies that are needed.
        needed: u16,
    },
    /// Code 25. The node does not know whether what the address holds is on every replica, and has no leave to say more.
    #[error("{addr} is not known to be on every replica")]
    NotComplete {
        /// The first such address.
        addr: Addr,
    },
    /// Code 26. The sequencer has begun and does not know yet where streams end.
    #[error("the sequencer does not know yet where streams end")]
    StreamsUnknown,
}

/// What a client does after a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Learn the latest layout, then try again in its epoch. An append takes a new token only once the old position is
    /// decided.
    NewLayout,
    /// Try the same again, later.
    Later,
    /// The same request will be refused again.
    GiveUp,
    /// The request may or may not have been carried out.
    OutcomeUnknown,
}

impl Refusal {
    /// What a client does about it.
    pub fn advice(&self) -> Advice {
        match self {
            Self::Sealed { .. } | Self::WrongEpoch { .. } | Self::NotServing { .. } => Advice::NewLayout,
            Self::WrongNode { .. } | Self::NoLayout { .. } | Self::NoLease { .. } => Advice::NewLayout,
            Self::NotChanged { .. } | Self::TooFewReplicas { .. } | Self::NotComplete { .. } => {
                Advice::NewLayout
            }
            Self::Overloaded { .. }
            | Self::Checksum { .. }
            | Self::Forgotten { .. }
            | Self::StreamsUnknown => Advice::Later,
            Self::Failed | Self::NotRelayed => Advice::OutcomeUnknown,
            Self::TooLarge { .. }
            | Self::TooSparse { .. }
            | Self::Full
            | Self::Malformed { .. }
            | Self::WrongCluster { .. }
            | Self::UnsupportedVersion { .. }
            | Self::Unwritten { .. }
            | Self::Greeting
            | Self::Damaged { .. }
            | Self::Exhausted
            | Self::NoSubscription => Advice::GiveUp,
        }
    }

    /// Its code and two fields.
    fn fields(&self) -> (u16, u64, u64) {
        match *self {
            Self::Sealed { sealed } => (1, sealed.0, 0),
            Self::WrongEpoch { serving, asked } => (2, serving.0, asked.0),
            Self::NotServing { roles } => (3, roles.0.into(), 0),
            Self::TooLarge { found, limit } => (4, found, limit),
            Self::TooSparse { addr, limit } => (5, addr.0, limit),
            Self::Full => (6, 0, 0),
            Self::Failed => (7, 0, 0),
            Self::Overloaded { pending, limit } => (8, pending, limit),
            Self::Malformed { kind } => (9, kind.into(), 0),
            Self::WrongCluster { cluster } => (10, (cluster.0 >> 64) as u64, cluster.0 as u64),
            Self::UnsupportedVersion { version_min, version_max } => {
                (11, version_min.into(), version_max.into())
            }
            Self::WrongNode { node } => (12, node.0, 0),
            Self::Unwritten { addr } => (13, addr.0, 0),
            Self::Checksum { index } => (14, index, 0),
            Self::Greeting => (15, 0, 0),
            Self::Damaged { addr } => (16, addr.0, 0),
            Self::Exhausted => (17, 0, 0),
            Self::NoLayout { epoch } => (18, epoch.0, 0),
            Self::NoSubscription => (19, 0, 0),
            Self::Forgotten { from } => (20, from.0, 0),
            Self::NotRelayed => (21, 0, 0),
            Self::NoLease { epoch } => (22, epoch.0, 0),
            Self::NotChanged { epoch } => (23, epoch.0, 0),
            Self::TooFewReplicas { kept, needed } => (24, kept.into(), needed.into()),
            Self::NotComplete { addr } => (25, addr.0, 0),
            Self::StreamsUnknown => (26, 0, 0),
        }
    }

    fn from_fields(code: u16, a: u64, b: u64) -> Option<Self> {
        let refusal = match code {
            1 => Self::Sealed { sealed: Epoch(a) },
            2 => Self::WrongEpoch { serving: Epoch(a), asked: Epoch(b) },
            3 => Self::NotServing { roles: Roles(u32::try_from(a).ok()?) },
            4 => Self::TooLarge { found: a, limit: b },
            5 => Self::TooSparse { addr: Addr(a), limit: b },
            6 => Self::Full,
            7 => Self::Failed,
            8 => Self::Overloaded { pending: a, limit: b },
            9 => Self::Malformed { kind: u16::try_from(a).ok()? },
            10 => Self::WrongCluster { cluster: ClusterId(u128::from(a) << 64 | u128::from(b)) },
            11 => Self::UnsupportedVersion {
                version_min: u16::try_from(a).ok()?,
                version_max: u16::try_from(b).ok()?,
            },
            12 => Self::WrongNode { node: NodeId(a) },
            13 => Self::Unwritten { addr: Addr(a) },
            14 => Self::Checksum { index: a },
            15 => Self::Greeting,
            16 => Self::Damaged { addr: Addr(a) },
            17 => Self::Exhausted,
            18 => Self::NoLayout { epoch: Epoch(a) },
            19 => Self::NoSubscription,
            20 => Self::Forgotten { from: LogPos(a) },
            21 => Self::NotRelayed,
            22 => Self::NoLease { epoch: Epoch(a) },
            23 => Self::NotChanged { epoch: Epoch(a) },
            24 => Self::TooFewReplicas { kept: u16::try_from(a).ok()?, needed: u16::try_from(b).ok()? },
            25 => Self::NotComplete { addr: Addr(a) },
            26 => Self::StreamsUnknown,
            _ => return None,
        };
        // Fields that a code does not have must be 0, which the way back shows.
        (refusal.fields() == (code, a, b)).then_some(refusal)
    }
}

impl Message for Refusal {
    const KIND: Kind = Kind::Refusal;

    fn encode_body(&self, out: &mut BytesMut) {
        let (code, a, b) = self.fields();
        out.put_u16_le(code);
        out.put_u16_le(0);
        out.put_u32_le(0);
        out.put_u64_le(a);
        out.put_u64_le(b);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let code = decoder.u16("refusal code")?;
        zero("refusal reserved", decoder.u16("refusal reserved")?.into())?;
        zero("refusal reserved", decoder.u32("refusal reserved")?.into())?;
        let a = decoder.u64("refusal field a")?;
        let b = decoder.u64("refusal field b")?;
        decoder.finish()?;
        no_data(data_len)?;
        Self::from_fields(code, a, b).ok_or(DecodeError::Invalid {
            field: "refusal code",
            found: code.into(),
            expected: "a code of this version with its fields",
        })
    }
}
