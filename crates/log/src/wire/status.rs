//! What a node says about itself.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder, Encoder};

use super::{Kind, Message, at_most, from_optional, no_data, optional, zero};
use crate::limits;
use crate::pos::{Addr, Incarnation, LogPos, NodeId};

/// Asks a node about itself. Body: empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GetStatus;

/// What a node does: a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Roles(pub u32);

impl Roles {
    /// Keeps layouts.
    pub const LAYOUT: Self = Self(1);
    /// Grants tokens.
    pub const SEQUENCER: Self = Self(2);
    /// Stores entries.
    pub const UNIT: Self = Self(4);
    /// Takes appends whole: grants their positions and has the entries written. A sequencer may be one.
    pub const FORWARDER: Self = Self(8);
    /// Keeps views of objects. No layout says so: any node may.
    pub const VIEWS: Self = Self(16);
    /// Is never made one of those that keep layouts: it does not offer to. Said by layouts only, and nothing that a node does.
    pub const ABSTAINS: Self = Self(32);
    /// What a node may offer or not: [`LAYOUT`](Self::LAYOUT), [`SEQUENCER`](Self::SEQUENCER) and [`UNIT`](Self::UNIT).
    pub const OFFERED: Self = Self(7);
    /// Every role that a node may say it has.
    const KNOWN: u32 = 31;
    /// What operators call them.
    const NAMED: [(Self, &'static str); 5] = [
        (Self::LAYOUT, "layout"),
        (Self::SEQUENCER, "sequencer"),
        (Self::UNIT, "unit"),
        (Self::FORWARDER, "forwarder"),
        (Self::VIEWS, "views"),
    ];

    /// Both sets together.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// This set without what is in `other`.
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether all of `other` is in this set.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The roles in a layout of a node that offers these. Whether it keeps layouts is decided among those that do not abstain.
    pub fn of_member(self) -> Self {
        let mut roles = Self(self.0 & Self::UNIT.0);
        if self.has(Self::SEQUENCER) {
            roles = roles.with(Self::SEQUENCER).with(Self::FORWARDER);
        }
        if self.has(Self::LAYOUT) { roles } else { roles.with(Self::ABSTAINS) }
    }

    /// What a node must offer that has these roles in a layout: also what it may be given there at any time.
    pub fn needed_offers(self) -> Self {
        let kept = Self(self.0 & (Self::SEQUENCER.0 | Self::UNIT.0));
        if self.has(Self::ABSTAINS) { kept } else { kept.with(Self::LAYOUT) }
    }

    /// What operators call them, in a fixed order.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMED.into_iter().filter(move |(role, _)| self.has(*role)).map(|(_, name)| name)
    }
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().collect::<Vec<_>>().join(" + "))
    }
}

/// What an acknowledgement of a write means on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Durability {
    /// The entry is on stable storage.
    #[default]
    Fsync = 1,
    /// The entry is in memory, and lost with the power.
    Memory = 2,
}

/// A node's account of itself. Its epoch is the head's.
///
/// Body: `node u64`, `incarnation u64`, `roles u32`, `offers u32`, `durability u8`, seven reserved bytes, `cpu_us u64`, `rss u64`,
/// `uptime_ms u64`, `tail u64`, `watermark u64` (2^64 - 1 without the role), `count u32`, then for each counter `name`
/// (`length u32`, UTF-8) and `value u64`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeStatus {
    /// The node.
    pub node: NodeId,
    /// Its life.
    pub incarnation: Incarnation,
    /// What it does.
    pub roles: Roles,
    /// What it may be given to do, of [`Roles::OFFERED`].
    pub offers: Roles,
    /// What its acknowledgements mean.
    pub durability: Durability,
    /// Processor time of its process, user and system, in microseconds since it started.
    pub cpu_us: u64,
    /// Resident memory of its process, in bytes.
    pub rss_bytes: u64,
    /// Time since it started, in milliseconds.
    pub uptime_ms: u64,
    /// A sequencer's next position.
    pub tail: Option<LogPos>,
    /// A unit's watermark.
    pub watermark: Option<Addr>,
    /// Whatever else it counts: a name and a value each.
    pub counters: Vec<(String, u64)>,
}

impl Message for GetStatus {
    const KIND: Kind = Kind::GetStatus;

    fn encode_body(&self, _out: &mut BytesMut) {}

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        Decoder::new(body).finish()?;
        no_data(data_len)?;
        Ok(Self)
    }
}

impl Message for NodeStatus {
    const KIND: Kind = Kind::NodeStatus;

    fn encode_body(&self, out: &mut BytesMut) {
        assert!(self.counters.len() <= limits::COUNTERS_MAX_COUNT, "{} counters", self.counters.len());
        out.put_u64_le(self.node.0);
        out.put_u64_le(self.incarnation.0);
        out.put_u32_le(self.roles.0);
        out.put_u32_le(self.offers.0);
        out.put_u8(self.durability as u8);
        out.put_bytes(0, 7);
        out.put_u64_le(self.cpu_us);
        out.put_u64_le(self.rss_bytes);
        out.put_u64_le(self.uptime_ms);
        out.put_u64_le(optional(self.tail.map(|pos| pos.0)));
        out.put_u64_le(optional(self.watermark.map(|addr| addr.0)));
        out.put_u32_le(self.counters.len() as u32);
        for (name, value) in &self.counters {
            assert!(name.len() <= limits::NAME_MAX_BYTES, "a counter's name of {} bytes", name.len());
            out.counted(name.as_bytes());
            out.put_u64_le(*value);
        }
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let node = NodeId(decoder.u64("node")?);
        let incarnation = Incarnation(decoder.u64("incarnation")?);
        let roles = Roles(decoder.u32("roles")?);
        zero("roles", u64::from(roles.0 & !Roles::KNOWN))?;
        let offers = decode_offers(&mut decoder)?;
        let durability = decode_durability(decoder.u8("durability")?)?;
        for _ in 0..7 {
            zero("status reserved", decoder.u8("status reserved")?.into())?;
        }
        let status = Self {
            node,
            incarnation,
            roles,
            offers,
            durability,
            cpu_us: decoder.u64("processor time")?,
            rss_bytes: decoder.u64("resident memory")?,
            uptime_ms: decoder.u64("uptime")?,
            tail: from_optional(decoder.u64("tail")?).map(LogPos),
            watermark: from_optional(decoder.u64("watermark")?).map(Addr),
            counters: decode_counters(&mut decoder)?,
        };
        decoder.finish()?;
        no_data(data_len)?;
        Ok(status)
    }
}

/// What a node offers, as `u32`.
pub(super) fn decode_offers(decoder: &mut Decoder<'_>) -> Result<Roles, DecodeError> {
    let offers = Roles(decoder.u32("offers")?);
    zero("offers", u64::from(offers.without(Roles::OFFERED).0))?;
    Ok(offers)
}

fn decode_durability(number: u8) -> Result<Durability, DecodeError> {
    match number {
        1 => Ok(Durability::Fsync),
        2 => Ok(Durability::Memory),
        other => Err(DecodeError::Invalid { field: "durability", found: other.into(), expected: "1 or 2" }),
    }
}

fn decode_counters(decoder: &mut Decoder<'_>) -> Result<Vec<(String, u64)>, DecodeError> {
    let count = decoder.u32("counter count")? as usize;
    at_most("counter count", count, limits::COUNTERS_MAX_COUNT, "at most 512 counters")?;
    let mut counters = Vec::with_capacity(count.min(decoder.left() / 12));
    for _ in 0..count {
        let name = decoder.text("counter name", limits::NAME_MAX_BYTES)?.to_owned();
        counters.push((name, decoder.u64("counter value")?));
    }
    Ok(counters)
}
