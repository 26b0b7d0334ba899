//! A layout as it is stored and sent.
//!
//! Body of the record (the envelope is that of [`crate::record`], magic `ITly`, version 1): `cluster u128`, `epoch u64`,
//! `sequencer u64`, `next_base u64`, `replicas u16`, `min_replicas u16`, `spread count u16`, `node count u16`, `range count
//! u16`, `tail count u16`; then nodes: `id u64`, `roles u32`, `state u8` (0 in use, 1 out, 2 leaving), `address` (`length
//! u32`, UTF-8); spreads, the replicas of the stripes of one or more ranges, in the order of the first such range: `stripe
//! count u32`, and for each stripe `replica count u32`, `replica u64` each; ranges: `start u64`, `spread u16`, `bases u16` (1
//! or as many as stripes), `base u64` each; `end u64` of the last range; tails: `epoch u64`, `tail u64`.
//!
//! With one base the blocks of the stripes follow each other, as new ones do. So a range takes 20 bytes however many stripes
//! it has, once its spread is known (docs/decisions/0010).

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder, Encoder};

use super::{DecidedTail, Layout, Node, NodeState, RangeMap, Stripe};
use crate::limits;
use crate::pos::{Addr, ClusterId, Epoch, LogPos, NodeId};
use crate::wire::Roles;
use ithaca_env::record::{self, RecordError};

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
        let replicas = |replicas: &&[NodeId]| 4 + 8 * replicas.len();
        let spreads = self.spreads().0;
        let spreads = spreads.iter().map(|spread| 4 + spread.iter().map(replicas).sum::<usize>());
        let ranges = self.ranges.iter().map(|range| 12 + 8 * range.bases().count());
        let head = record::ENVELOPE_BYTES + 52;
        head + nodes.sum::<usize>()
            + spreads.sum::<usize>()
            + ranges.sum::<usize>()
            + 8
            + 16 * self.tails.len()
    }

    /// The different spreads, in the order of the first range of each, and for each range which it has.
    fn spreads(&self) -> (Vec<Spread<'_>>, Vec<usize>) {
        let (mut spreads, mut known): (Vec<Spread<'_>>, BTreeMap<Spread<'_>, usize>) = Default::default();
        let mut index_of = |range| {
            let spread = spread(range);
            *known.entry(spread.clone()).or_insert_with(|| {
                spreads.push(spread);
                spreads.len() - 1
            })
        };
        let indexes = self.ranges.iter().map(&mut index_of).collect();
        (spreads, indexes)
    }

    fn encode_body(&self, out: &mut BytesMut) {
        let (spreads, indexes) = self.spreads();
        out.put_u128_le(self.cluster.0);
        out.put_u64_le(self.epoch.0);
        out.put_u64_le(self.sequencer.0);
        out.put_u64_le(self.next_base.0);
        out.put_u16_le(self.replicas);
        out.put_u16_le(self.min_replicas);
        out.put_u16_le(spreads.len() as u16);
        out.put_u16_le(self.nodes.len() as u16);
        out.put_u16_le(self.ranges.len() as u16);
        out.put_u16_le(self.tails.len() as u16);
        for node in &self.nodes {
            out.put_u64_le(node.id.0);
            out.put_u32_le(node.roles.0);
            out.put_u8(node.state as u8);
            out.counted(node.address.as_bytes());
        }
        for spread in spreads {
            out.put_u32_le(spread.len() as u32);
            for replicas in spread {
                out.put_u32_le(replicas.len() as u32);
                replicas.iter().for_each(|replica| out.put_u64_le(replica.0));
            }
        }
        for (range, spread) in self.ranges.iter().zip(indexes) {
            out.put_u64_le(range.start.0);
            out.put_u16_le(spread as u16);
            out.put_u16_le(range.bases().count() as u16);
            range.bases().for_each(|base| out.put_u64_le(base.0));
        }
        out.put_u64_le(self.ranges.last().map_or(0, |range| range.end.0));
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
        let spread_count =
            bounded("spread count", decoder.u16("spread count")?, limits::LAYOUT_RANGES_MAX_COUNT)?;
        let node_count = bounded("node count", decoder.u16("node count")?, limits::NODES_MAX_COUNT)?;
        let range_count =
            bounded("range count", decoder.u16("range count")?, limits::LAYOUT_RANGES_MAX_COUNT)?;
        let tail_count = bounded("tail count", decoder.u16("tail count")?, limits::TAILS_MAX_COUNT)?;
        let nodes = (0..node_count).map(|_| decode_node(&mut decoder)).collect::<Result<_, _>>()?;
        let spreads =
            (0..spread_count).map(|_| decode_spread(&mut decoder)).collect::<Result<Vec<_>, _>>()?;
        let mut ranges = (0..range_count)
            .map(|_| decode_range(&mut decoder, &spreads))
            .collect::<Result<Vec<RangeMap>, _>>()?;
        let mut end = LogPos(decoder.u64("range end")?);
        for range in ranges.iter_mut().rev() {
            range.end = std::mem::replace(&mut end, range.start);
        }
        let tails = (0..tail_count).map(|_| decode_tail(&mut decoder)).collect::<Result<_, _>>()?;
        decoder.finish()?;
        let layout =
            Self { cluster, epoch, replicas, min_replicas, nodes, sequencer, next_base, ranges, tails };
        // One way to write each layout: every spread is there once, and used.
        let is_written_so = layout.spreads().0.len() == spread_count;
        match layout.validate() {
            Ok(()) if is_written_so => Ok(layout),
            _ => Err(DecodeError::Invalid {
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
    let state = match bounded("state", decoder.u8("state")?.into(), 3)? {
        0 => NodeState::InUse,
        1 => NodeState::Out,
        2 => NodeState::Leaving,
        _ => NodeState::Full,
    };
    let address = decoder.text("address", limits::ADDRESS_MAX_BYTES)?.to_owned();
    Ok(Node { id, roles, state, address })
}

fn decode_spread(decoder: &mut Decoder<'_>) -> Result<Vec<Vec<NodeId>>, DecodeError> {
    let count = decoder.u32("stripe count")?;
    let count = bounded("stripe count", count.try_into().unwrap_or(u16::MAX), limits::STRIPES_MAX_COUNT)?;
    (0..count).map(|_| decode_replicas(decoder)).collect()
}

fn decode_replicas(decoder: &mut Decoder<'_>) -> Result<Vec<NodeId>, DecodeError> {
    let count = decoder.u32("replica count")?;
    let count = bounded("replica count", count.try_into().unwrap_or(u16::MAX), limits::REPLICAS_MAX_COUNT)?;
    (0..count).map(|_| decoder.u64("replica").map(NodeId)).collect()
}

/// A range whose end is not known yet.
fn decode_range(decoder: &mut Decoder<'_>, spreads: &[Vec<Vec<NodeId>>]) -> Result<RangeMap, DecodeError> {
    let start = LogPos(decoder.u64("range start")?);
    let spread = decoder.u16("spread")?;
    let invalid = |field, found, expected| DecodeError::Invalid { field, found, expected };
    let replicas = spreads.get(usize::from(spread));
    let replicas = replicas.ok_or(invalid("spread", spread.into(), "one of those that are listed"))?;
    let bases = decoder.u16("base count")?;
    let bases = match usize::from(bases) {
        1 => blocks_from(Addr(decoder.u64("stripe base")?), replicas.len()),
        count if count == replicas.len() => {
            let bases = (0..count).map(|_| decoder.u64("stripe base").map(Addr));
            Some(bases.collect::<Result<Vec<_>, _>>()?)
        }
        _ => return Err(invalid("base count", bases.into(), "1, or one for each stripe")),
    };
    let bases = bases.ok_or(invalid("stripe base", start.0, "addresses for every stripe"))?;
    let stripe = |(replicas, base): (&Vec<NodeId>, Addr)| Stripe { replicas: replicas.clone(), base };
    Ok(RangeMap { start, end: start, stripes: replicas.iter().zip(bases).map(stripe).collect() })
}

/// The bases of so many stripes whose blocks follow each other; `None` if addresses run out.
fn blocks_from(base: Addr, count: usize) -> Option<Vec<Addr>> {
    let block = |at: u64| Some(Addr(base.0.checked_add(at.checked_mul(limits::STRIPE_ADDRESSES)?)?));
    (0..count as u64).map(block).collect()
}

/// The replicas of each stripe of a range.
type Spread<'a> = Vec<&'a [NodeId]>;

fn spread(range: &RangeMap) -> Spread<'_> {
    range.stripes.iter().map(|stripe| stripe.replicas.as_slice()).collect()
}

impl RangeMap {
    /// The bases to be written: the first alone if it tells the others.
    fn bases(&self) -> impl Iterator<Item = Addr> {
        let first = self.stripes.first().map_or(Addr(0), |stripe| stripe.base);
        let told = blocks_from(first, self.stripes.len()).unwrap_or_default();
        let is_told = self.stripes.iter().map(|stripe| stripe.base).eq(told);
        let count = if is_told { 1 } else { self.stripes.len() };
        self.stripes.iter().take(count).map(|stripe| stripe.base)
    }
}

fn decode_tail(decoder: &mut Decoder<'_>) -> Result<DecidedTail, DecodeError> {
    Ok(DecidedTail { epoch: Epoch(decoder.u64("tail epoch")?), tail: LogPos(decoder.u64("tail")?) })
}
