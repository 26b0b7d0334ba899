//! Deciding the layout of an epoch, and leases on the epoch before. What acceptors promise and why it is safe:
//! docs/protocol/reconfigure.md.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};

use super::{Kind, Message, at_most, no_data, zero};
use crate::layout::LeasesLeft;
use crate::limits;
use crate::pos::{Ballot, Epoch, NodeId};

/// Asks an acceptor to promise that it accepts nothing below `ballot` for `epoch` any more. Body, 24 bytes: `epoch u64`,
/// `round u64`, `proposer u64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepare {
    /// The epoch whose layout is to be decided.
    pub epoch: Epoch,
    /// The ballot.
    pub ballot: Ballot,
}

/// Asks an acceptor to accept a layout for the epoch that it names. Body: `round u64`, `proposer u64`, `length u32`, the
/// layout record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accept {
    /// The ballot that a majority was prepared with.
    pub ballot: Ballot,
    /// The encoded layout.
    pub record: Bytes,
}

/// What an acceptor answers, durably, to [`Prepare`] and [`Accept`]. `L` is a layout: its record where it is sent.
///
/// Body: `outcome u32` (1 given, 2 overtaken, 3 decided), `reserved u32`, `round u64`, `proposer u64`, `length u32`, a
/// layout record. Given: the layout that was accepted before and its ballot, or 0 and nothing. Overtaken: the ballot that
/// was promised, and nothing. Decided: 0, and the layout.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Vote<L = Bytes> {
    /// It promises, or it accepts.
    Given {
        /// To a prepare: what it has accepted at a lower ballot, if anything.
        accepted: Option<(Ballot, L)>,
    },
    /// It has promised a higher ballot, or this one before.
    Overtaken {
        /// Which.
        promised: Ballot,
    },
    /// The epoch is decided.
    Decided {
        /// Its layout, or the latest if the acceptor has forgotten that one.
        layout: L,
    },
}

/// Answers [`Prepare`]. Body: the vote; `others u32`, `count u32`, and of each node `node u64`, `left u32`, in the order of their ids: for
/// how many milliseconds, at most [`limits::LEASE_WAIT_MS`], leases may be good yet that the acceptor has granted to that node, or to any other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// The answer.
    pub vote: Vote,
    /// What it has granted before. Once it has promised, it grants nothing.
    pub leases: LeasesLeft,
}

/// Answers [`Accept`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The answer.
    pub vote: Vote,
}

/// What a layout is to a node that belongs to no cluster, and that may have lost what it had and promised in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invitation {
    /// Nothing: it may be older than the loss.
    None = 0,
    /// The first of a cluster that is being formed: the node may take a place that it counts on.
    Founding = 1,
    /// One that was decided for the node to join by, since it is empty: it may if the layout does not count on it.
    Joining = 2,
}

/// Tells a node of a layout that was decided. Body: `invitation u32` (0 none, 1 founding, 2 joining), `length u32`, the layout record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Learn {
    /// Whether a node that belongs to no cluster may come to belong to one by it.
    pub invitation: Invitation,
    /// The encoded layout.
    pub record: Bytes,
}

/// The node knows, durably if it keeps layouts, the layout of `epoch`, which is that of the message or a later one. Body,
/// 8 bytes: `epoch u64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learned {
    /// The latest epoch that it knows.
    pub epoch: Epoch,
}

/// Asks an acceptor whether `epoch` is still the latest that it knows anything of. Body, 16 bytes: `epoch u64`, `node u64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The epoch that the asker serves in.
    pub epoch: Epoch,
    /// Who asks.
    pub node: NodeId,
}

/// Whether it is, for [`limits::LEASE_MS`] from when the asker sent the question. Body, 8 bytes: `granted u32` (1 or 0),
/// `reserved u32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leased {
    /// Whether the lease is granted.
    pub granted: bool,
}

impl<L> Vote<L> {
    /// The same vote with its layout, if there is one, in another form.
    pub fn try_map<M, E>(self, form: impl FnOnce(L) -> Result<M, E>) -> Result<Vote<M>, E> {
        Ok(match self {
            Self::Given { accepted: None } => Vote::Given { accepted: None },
            Self::Given { accepted: Some((ballot, layout)) } => {
                Vote::Given { accepted: Some((ballot, form(layout)?)) }
            }
            Self::Overtaken { promised } => Vote::Overtaken { promised },
            Self::Decided { layout } => Vote::Decided { layout: form(layout)? },
        })
    }
}

const GIVEN: u32 = 1;
const OVERTAKEN: u32 = 2;
const DECIDED: u32 = 3;

impl Vote {
    fn encode(&self, out: &mut BytesMut) {
        let nothing = Bytes::new();
        let (outcome, ballot, record) = match self {
            Self::Given { accepted: None } => (GIVEN, Ballot::NONE, &nothing),
            Self::Given { accepted: Some((ballot, record)) } => (GIVEN, *ballot, record),
            Self::Overtaken { promised } => (OVERTAKEN, *promised, &nothing),
            Self::Decided { layout } => (DECIDED, Ballot::NONE, layout),
        };
        out.put_u32_le(outcome);
        out.put_u32_le(0);
        encode_ballot(ballot, out);
        encode_record(record, out);
    }

    fn decode(decoder: &mut Decoder<'_>, body: &Bytes) -> Result<Self, DecodeError> {
        let outcome = decoder.u32("outcome")?;
        zero("vote reserved", decoder.u32("vote reserved")?.into())?;
        let ballot = decode_ballot(decoder)?;
        let record = decode_record(decoder, body)?;
        match (outcome, ballot == Ballot::NONE, record.is_empty()) {
            (GIVEN, true, true) => Ok(Self::Given { accepted: None }),
            (GIVEN, false, false) => Ok(Self::Given { accepted: Some((ballot, record)) }),
            (OVERTAKEN, _, true) => Ok(Self::Overtaken { promised: ballot }),
            (DECIDED, true, false) => Ok(Self::Decided { layout: record }),
            _ => Err(DecodeError::Invalid {
                field: "outcome",
                found: outcome.into(),
                expected: "an outcome with what belongs to it",
            }),
        }
    }
}

impl Message for Prepare {
    const KIND: Kind = Kind::Prepare;

    fn encode_body(&self, out: &mut BytesMut) {
        out.put_u64_le(self.epoch.0);
        encode_ballot(self.ballot, out);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let epoch = Epoch(decoder.u64("epoch to decide")?);
        let ballot = decode_ballot(&mut decoder)?;
        decoder.finish()?;
        no_data(data_len)?;
        Ok(Self { epoch, ballot })
    }
}

impl Message for Accept {
    const KIND: Kind = Kind::Accept;

    fn encode_body(&self, out: &mut BytesMut) {
        encode_ballot(self.ballot, out);
        encode_record(&self.record, out);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let ballot = decode_ballot(&mut decoder)?;
        let record = decode_record(&mut decoder, body)?;
        decoder.finish()?;
        no_data(data_len)?;
        Ok(Self { ballot, record })
    }
}

impl Message for Promise {
    const KIND: Kind = Kind::Promise;

    fn encode_body(&self, out: &mut BytesMut) {
        self.vote.encode(out);
        let LeasesLeft { nodes, others_ms } = &self.leases;
        out.put_u32_le(*others_ms);
        out.put_u32_le(nodes.len() as u32);
        for (node, left) in nodes {
            out.put_u64_le(node.0);
            out.put_u32_le(*left);
        }
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let vote = Vote::decode(&mut decoder, body)?;
        let left = |decoder: &mut Decoder<'_>| {
            let left = decoder.u32("lease left")?;
            at_most(
                "lease left",
                left as usize,
                limits::LEASE_WAIT_MS as usize,
                "at most the wait for a lease",
            )?;
            Ok::<_, DecodeError>(left)
        };
        let others_ms = left(&mut decoder)?;
        let count = decoder.u32("lease count")? as usize;
        at_most("lease count", count, limits::NODES_MAX_COUNT, "a count within its limit")?;
        let mut nodes = BTreeMap::new();
        for _ in 0..count {
            let node = NodeId(decoder.u64("leasing node")?);
            if nodes.last_key_value().is_some_and(|(last, _)| *last >= node) {
                let (field, found) = ("leasing node", node.0);
                return Err(DecodeError::Invalid { field, found, expected: "ids that ascend" });
            }
            nodes.insert(node, left(&mut decoder)?);
        }
        decoder.finish()?;
        no_data(data_len)?;
        Ok(Self { vote, leases: LeasesLeft { nodes, others_ms } })
    }
}

impl Message for Accepted {
    const KIND: Kind = Kind::Accepted;

    fn encode_body(&self, out: &mut BytesMut) {
        self.vote.encode(out);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let vote = Vote::decode(&mut decoder, body)?;
        decoder.finish()?;
        no_data(data_len)?;
        Ok(Self { vote })
    }
}

impl Message for Learn {
    const KIND: Kind = Kind::Learn;

    fn encode_body(&self, out: &mut BytesMut) {
        out.put_u32_le(self.invitation as u32);
        encode_record(&self.record, out);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let invitation = match decoder.u32("invitation")? {
            0 => Invitation::None,
            1 => Invitation::Founding,
            2 => Invitation::Joining,
            found => {
                let (field, found) = ("invitation", found.into());
                return Err(DecodeError::Invalid { field, found, expected: "0 to 2" });
            }
        };
        let record = decode_record(&mut decoder, body)?;
        decoder.finish()?;
        no_data(data_len)?;
        Ok(Self { invitation, record })
    }
}

impl Message for Learned {
    const KIND: Kind = Kind::Learned;

    fn encode_body(&self, out: &mut BytesMut) {
        out.put_u64_le(self.epoch.0);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let epoch = Epoch(decoder.u64("learned epoch")?);
        decoder.finish()?;
        no_data(data_len)?;
        Ok(Self { epoch })
    }
}

impl Message for Lease {
    const KIND: Kind = Kind::Lease;

    fn encode_body(&self, out: &mut BytesMut) {
        out.put_u64_le(self.epoch.0);
        out.put_u64_le(self.node.0);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let epoch = Epoch(decoder.u64("leased epoch")?);
        let node = NodeId(decoder.u64("leasing node")?);
        decoder.finish()?;
        no_data(data_len)?;
        Ok(Self { epoch, node })
    }
}

impl Message for Leased {
    const KIND: Kind = Kind::Leased;

    fn encode_body(&self, out: &mut BytesMut) {
        out.put_u32_le(self.granted.into());
        out.put_u32_le(0);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let granted = decoder.u32("granted")?;
        at_most("granted", granted as usize, 1, "0 or 1")?;
        zero("lease reserved", decoder.u32("lease reserved")?.into())?;
        decoder.finish()?;
        no_data(data_len)?;
        Ok(Self { granted: granted == 1 })
    }
}

fn encode_ballot(ballot: Ballot, out: &mut BytesMut) {
    out.put_u64_le(ballot.round);
    out.put_u64_le(ballot.proposer.0);
}

fn decode_ballot(decoder: &mut Decoder<'_>) -> Result<Ballot, DecodeError> {
    Ok(Ballot { round: decoder.u64("ballot round")?, proposer: NodeId(decoder.u64("ballot proposer")?) })
}

/// Appends `length u32` and a layout record. Panics if that is over its limit.
pub(super) fn encode_record(record: &Bytes, out: &mut BytesMut) {
    assert!(record.len() <= limits::LAYOUT_MAX_BYTES, "a layout of {} bytes", record.len());
    out.put_u32_le(record.len() as u32);
    out.put_slice(record);
}

/// The layout record that comes next in `body`, which `decoder` reads.
pub(super) fn decode_record(decoder: &mut Decoder<'_>, body: &Bytes) -> Result<Bytes, DecodeError> {
    let len = decoder.u32("layout length")? as usize;
    at_most("layout length", len, limits::LAYOUT_MAX_BYTES, "a length within its limit")?;
    let record = decoder.bytes("layout", len)?;
    Ok(body.slice_ref(record))
}
