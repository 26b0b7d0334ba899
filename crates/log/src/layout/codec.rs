//! A layout as it is stored and sent.
//!
//! Body of the record (the envelope is that of [`crate::record`], magic `ITly`, version 1): `cluster u128`, `epoch u64`,
//! `sequencer u64`, `next_base u64`, `replicas u16`, `min_replicas u16`, `degraded u8` (0 or 1), `reserved u8`, `node count
//! u16`, `range count u16`, `tail count u16`; then nodes: `id u64`, `roles u32`, `state u8` (0 in use, 1 out, 2 leaving),
//! `address` (`length u32`, UTF-8); ranges: `start u64`, `end u64`, `stripe count u32`, and for each stripe `base
//! u64`, `replica count u32`, `replica u64` each; tails: `epoch u64`, `tail u64`.

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder, Encoder};

use super::{DecidedTail, Layout, Node, NodeState, RangeMap, Stripe};
use crate::limits;
use crate::pos::{Addr, ClusterId, Epoch, LogPos, NodeId};
use crate::record::{self, RecordError};
use crate::wire::Roles;

const MAGIC: [u8; 4] = *b"ITly";
const VERSION: u16 = 1;

impl Layout {
    /// The record to store or send. Panics if the layout is not valid.
    pub fn encode(&self) -> Bytes {
        assert_eq!(self.validate(), Ok(()), "only valid layouts are stored");
        record::encode(MAGIC, VERSION, |out| self.encode_body(out))
    }

    /// Bytes of the record.
    pub(super) fn encoded_bytes(&self) -> usize {
        let nodes = self.nodes.iter().map(|node| 17 + node.address.len());
        let stripe = |stripe: &Stripe| 12 + 8 * stripe.replicas.len();
        let ranges = self.ranges.iter().map(|range| 20 + range.stripes.iter().map(stripe).sum::<usize>());
        let head = record::ENVELOPE_BYTES + 52;
        head + nodes.sum::<usize>() + ranges.sum::<usize>() + 16 * self.tails.len()
    }

    fn encode_body(&self, out: &mut BytesMut) {
        out.put_u128_le(self.cluster.0);
        out.put_u64_le(self.epoch.0);
        out.put_u64_le(self.sequencer.0);
        out.put_u64_le(self.next_base.0);
        out.put_u16_le(self.replicas);
        out.put_u16_le(self.min_replicas);
        out.put_u8(self.degraded.into());
        out.put_u8(0);
        out.put_u16_le(self.nodes.len() as u16);
        out.put_u16_le(self.ranges.len() as u16);
        out.put_u16_le(self.tails.len() as u16);
        for node in &self.nodes {
            out.put_u64_le(node.id.0);
            out.put_u32_le(node.roles.0);
            out.put_u8(node.state as u8);
            out.counted(node.address.as_bytes());
        }
        for range in &self.ranges {
            out.put_u64_le(range.start.0);
            out.put_u64_le(range.end.0);
            out.put_u32_le(range.stripes.len() as u32);
            for stripe in &range.stripes {
                out.put_u64_le(stripe.base.0);
                out.put_u32_le(stripe.replicas.len() as u32);
                stripe.replicas.iter().for_each(|replica| out.put_u64_le(replica.0));
            }
        }
        for decided in &self.tails {
            out.put_u64_le(decided.epoch.0);
            out.put_u64_le(decided.tail.0);
        }
    }

    /// The layout in a record. What comes out is valid.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let (_, body) = record::decode(MAGIC, VERSION, bytes)?;
        let mut decoder = Decoder::new(body);
        let (low, high) = (decoder.u64("cluster")?, decoder.u64("cluster")?);
        let cluster = ClusterId(u128::from(high) << 64 | u128::from(low));
        let epoch = Epoch(decoder.u64("epoch")?);
        let sequencer = NodeId(decoder.u64("sequencer")?);
        let next_base = Addr(decoder.u64("next base")?);
        let (replicas, min_replicas) = (decoder.u16("replicas")?, decoder.u16("minimum of replicas")?);
        let degraded = bounded("degraded", decoder.u8("degraded")?.into(), 1)? == 1;
        bounded("layout reserved", decoder.u8("layout reserved")?.into(), 0)?;
        let node_count = bounded("node count", decoder.u16("node count")?, limits::NODES_MAX_COUNT)?;
        let range_count =
            bounded("range count", decoder.u16("range count")?, limits::LAYOUT_RANGES_MAX_COUNT)?;
        let tail_count = bounded("tail count", decoder.u16("tail count")?, limits::TAILS_MAX_COUNT)?;
        let nodes = (0..node_count).map(|_| decode_node(&mut decoder)).collect::<Result<_, _>>()?;
        let ranges = (0..range_count).map(|_| decode_range(&mut decoder)).collect::<Result<_, _>>()?;
        let tails = (0..tail_count).map(|_| decode_tail(&mut decoder)).collect::<Result<_, _>>()?;
        decoder.finish()?;
        let layout = Self {
            cluster,
            epoch,
            replicas,
            min_replicas,
            degraded,
            nodes,
            sequencer,
            next_base,
            ranges,
            tails,
        };
        match layout.validate() {
            Ok(()) => Ok(layout),
            Err(_) => Err(DecodeError::Invalid {
                field: "layout",
                found: epoch.0,
                expected: "an epoch with a valid layout",
            }
            .into()),
        }
    }
}

fn bounded(field: &'static str, found: u16, max: usize) -> Result<usize, DecodeError> {
    if usize::from(found) <= max {
        return Ok(found.into());
    }
    Err(DecodeError::Invalid { field, found: found.into(), expected: "a count within its limit" })
}

fn decode_node(decoder: &mut Decoder<'_>) -> Result<Node, DecodeError> {
    let id = NodeId(decoder.u64("node")?);
    let roles = Roles(decoder.u32("roles")?);
    let state = match bounded("state", decoder.u8("state")?.into(), 2)? {
        0 => NodeState::InUse,
        1 => NodeState::Out,
        _ => NodeState::Leaving,
    };
    let address = decoder.counted("address", limits::ADDRESS_MAX_BYTES)?;
    match std::str::from_utf8(address) {
        Ok(address) => Ok(Node { id, roles, state, address: address.to_owned() }),
        Err(_) => {
            Err(DecodeError::Invalid { field: "address", found: address.len() as u64, expected: "UTF-8" })
        }
    }
}

fn decode_range(decoder: &mut Decoder<'_>) -> Result<RangeMap, DecodeError> {
    let start = LogPos(decoder.u64("range start")?);
    let end = LogPos(decoder.u64("range end")?);
    let count = decoder.u32("stripe count")?;
    let count = bounded("stripe count", count.try_into().unwrap_or(u16::MAX), limits::STRIPES_MAX_COUNT)?;
    let stripes = (0..count).map(|_| decode_stripe(decoder)).collect::<Result<_, _>>()?;
    Ok(RangeMap { start, end, stripes })
}

fn decode_stripe(decoder: &mut Decoder<'_>) -> Result<Stripe, DecodeError> {
    let base = Addr(decoder.u64("stripe base")?);
    let count = decoder.u32("replica count")?;
    let count = bounded("replica count", count.try_into().unwrap_or(u16::MAX), limits::REPLICAS_MAX_COUNT)?;
    let replicas = (0..count).map(|_| decoder.u64("replica").map(NodeId)).collect::<Result<_, _>>()?;
    Ok(Stripe { replicas, base })
}

fn decode_tail(decoder: &mut Decoder<'_>) -> Result<DecidedTail, DecodeError> {
    Ok(DecidedTail { epoch: Epoch(decoder.u64("tail epoch")?), tail: LogPos(decoder.u64("tail")?) })
}
