//! Beats: what the nodes of a cluster tell each other all the time.

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};

use super::{Kind, Message, at_most, no_data, zero};
use crate::limits;
use crate::pos::{Addr, NodeId};

/// What a node says of itself and of the others, in a beat and in the answer to one. The head's epoch is that of the newest
/// layout that it knows.
///
/// Body: `node u64`, `state u8`, `reserved u8`, `reserved u16`, `write_us u32`, `count u32`, then for each suspect `node
/// u64`; then `mark count u32` (at most [`limits::MARKS_MAX_COUNT`]), and for each `start u64`, `trimmed u64`, `complete u64`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Who says it.
    pub node: NodeId,
    /// What it can do.
    pub state: NodeState,
    /// How long its unit has taken of late to store a write, the median, in microseconds; 0 if it has stored none.
    pub write_us: u32,
    /// Nodes that have not answered it for a while, in order.
    pub suspects: Vec<NodeId>,
    /// How far stripes are complete whose last replica it is; some of them each time.
    pub marks: Vec<Mark>,
}

/// What the last replica of a stripe says of it: nothing is on the last that is not on all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// Where the stripe's addresses begin.
    pub start: Addr,
    /// Every address from there up to here is trimmed.
    pub trimmed: Addr,
    /// Every address from there up to here is data, junk or trimmed, durably; not below `trimmed`.
    pub complete: Addr,
}

/// What a node can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum NodeState {
    /// Whatever its layout asks of it.
    #[default]
    Serving = 1,
    /// It is about to stop: the cluster should go on without it.
    Leaving = 2,
    /// Its unit has failed: it stores nothing any more.
    Failed = 3,
    /// Its unit has no room for new entries.
    Full = 4,
}

/// A beat: "I am here, and so I see the others". Body: an [`Account`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beat(pub Account);

/// The answer to a beat. Body: an [`Account`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beaten(pub Account);

impl Account {
    fn encode(&self, out: &mut BytesMut) {
        assert!(self.suspects.len() <= limits::NODES_MAX_COUNT, "{} suspects", self.suspects.len());
        out.put_u64_le(self.node.0);
        out.put_u8(self.state as u8);
        out.put_u8(0);
        out.put_u16_le(0);
        out.put_u32_le(self.write_us);
        out.put_u32_le(self.suspects.len() as u32);
        self.suspects.iter().for_each(|node| out.put_u64_le(node.0));
        assert!(self.marks.len() <= limits::MARKS_MAX_COUNT, "{} marks", self.marks.len());
        out.put_u32_le(self.marks.len() as u32);
        for Mark { start, trimmed, complete } in &self.marks {
            [start, trimmed, complete].iter().for_each(|addr| out.put_u64_le(addr.0));
        }
    }

    fn decode(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let node = NodeId(decoder.u64("node")?);
        let state = match decoder.u8("node state")? {
            1 => NodeState::Serving,
            2 => NodeState::Leaving,
            3 => NodeState::Failed,
            4 => NodeState::Full,
            found => {
                return Err(DecodeError::Invalid {
                    field: "node state",
                    found: found.into(),
                    expected: "1 to 4",
                });
            }
        };
        zero("beat reserved", decoder.u8("beat reserved")?.into())?;
        zero("beat reserved", decoder.u16("beat reserved")?.into())?;
        let write_us = decoder.u32("write time")?;
        let count = decoder.u32("suspect count")? as usize;
        at_most("suspect count", count, limits::NODES_MAX_COUNT, "at most 1024 nodes")?;
        let suspects = (0..count).map(|_| decoder.u64("suspect").map(NodeId)).collect::<Result<_, _>>()?;
        let count = decoder.u32("mark count")? as usize;
        at_most("mark count", count, limits::MARKS_MAX_COUNT, "at most 64 marks")?;
        let marks = (0..count).map(|_| Mark::decode(&mut decoder)).collect::<Result<_, _>>()?;
        decoder.finish()?;
        no_data(data_len)?;
        Ok(Self { node, state, write_us, suspects, marks })
    }
}

impl Mark {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let start = Addr(decoder.u64("mark start")?);
        let trimmed = Addr(decoder.u64("trimmed up to")?);
        let complete = Addr(decoder.u64("complete up to")?);
        if trimmed < start || complete < trimmed {
            let (found, expected) = (complete.0, "no less than the start and what is trimmed");
            return Err(DecodeError::Invalid { field: "complete up to", found, expected });
        }
        Ok(Self { start, trimmed, complete })
    }
}

impl Message for Beat {
    const KIND: Kind = Kind::Beat;

    fn encode_body(&self, out: &mut BytesMut) {
        self.0.encode(out);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        Account::decode(body, data_len).map(Self)
    }
}

impl Message for Beaten {
    const KIND: Kind = Kind::Beaten;

    fn encode_body(&self, out: &mut BytesMut) {
        self.0.encode(out);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        Account::decode(body, data_len).map(Self)
    }
}
