//! The first exchange on a connection: who speaks, which version, to which node of which cluster.

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};

use super::{Kind, Message, no_data, zero};
use crate::pos::{ClientId, ClusterId, Incarnation, NodeId};

/// The version of the protocol that this library speaks.
pub const PROTOCOL_VERSION: u16 = 1;

/// Opens a connection. Nothing else is answered before it.
///
/// Body, 40 bytes: `version_min u16`, `version_max u16`, `reserved u32`, `client u64`, `node u64`, `cluster u128`. What a later version
/// adds behind them is not looked at: its client is to be told which versions there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The oldest version that the client speaks.
    pub version_min: u16,
    /// The newest version that it speaks.
    pub version_max: u16,
    /// Who it is.
    pub client: ClientId,
    /// The node that it means to reach, 0 if any will do. Another node refuses, so that a node that has taken over
    /// another's address is not mistaken for it.
    pub node: NodeId,
    /// The cluster that it means to reach, or [`ClusterId::UNKNOWN`]. A node of another cluster refuses.
    pub cluster: ClusterId,
}

impl Message for Hello {
    const KIND: Kind = Kind::Hello;

    fn encode_body(&self, out: &mut BytesMut) {
        out.put_u16_le(self.version_min);
        out.put_u16_le(self.version_max);
        out.put_u32_le(0);
        out.put_u64_le(self.client.0);
        out.put_u64_le(self.node.0);
        out.put_u128_le(self.cluster.0);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let version_min = decoder.u16("oldest version")?;
        let version_max = decoder.u16("newest version")?;
        zero("hello reserved", decoder.u32("hello reserved")?.into())?;
        let client = ClientId(decoder.u64("client")?);
        let node = NodeId(decoder.u64("node")?);
        let cluster = cluster(&mut decoder)?;
        no_data(data_len)?;
        Ok(Self { version_min, version_max, client, node, cluster })
    }
}

/// Accepts a connection. The head's epoch is the one that the node serves in.
///
/// Body, 56 bytes: `version u16`, `reserved u16`, `entry_max u32`, `cluster u128`, `node u64`, `incarnation u64`,
/// `write_max u32`, `read_max u32`, `run_max u32`, `grant_max u32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelloOk {
    /// The version that both speak from here on.
    pub version: u16,
    /// The node's cluster.
    pub cluster: ClusterId,
    /// The node.
    pub node: NodeId,
    /// Its life: what it knew in an earlier one and did not store is gone.
    pub incarnation: Incarnation,
    /// Bytes of one entry at the most.
    pub entry_max_bytes: u32,
    /// Bytes of data in one write at the most.
    pub write_max_bytes: u32,
    /// Bytes of data that one read may ask for.
    pub read_max_bytes: u32,
    /// Entries in one run at the most.
    pub run_max_count: u32,
    /// Positions in one grant at the most.
    pub grant_max_count: u32,
}

impl Message for HelloOk {
    const KIND: Kind = Kind::HelloOk;

    fn encode_body(&self, out: &mut BytesMut) {
        out.put_u16_le(self.version);
        out.put_u16_le(0);
        out.put_u32_le(self.entry_max_bytes);
        out.put_u128_le(self.cluster.0);
        out.put_u64_le(self.node.0);
        out.put_u64_le(self.incarnation.0);
        out.put_u32_le(self.write_max_bytes);
        out.put_u32_le(self.read_max_bytes);
        out.put_u32_le(self.run_max_count);
        out.put_u32_le(self.grant_max_count);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let version = decoder.u16("version")?;
        zero("hello reserved", decoder.u16("hello reserved")?.into())?;
        let entry_max_bytes = decoder.u32("entry limit")?;
        let cluster = cluster(&mut decoder)?;
        let ok = Self {
            version,
            cluster,
            node: NodeId(decoder.u64("node")?),
            incarnation: Incarnation(decoder.u64("incarnation")?),
            entry_max_bytes,
            write_max_bytes: decoder.u32("write limit")?,
            read_max_bytes: decoder.u32("read limit")?,
            run_max_count: decoder.u32("run limit")?,
            grant_max_count: decoder.u32("grant limit")?,
        };
        decoder.finish()?;
        no_data(data_len)?;
        Ok(ok)
    }
}

/// A cluster's id: 16 bytes, little-endian.
fn cluster(decoder: &mut Decoder<'_>) -> Result<ClusterId, DecodeError> {
    let low = decoder.u64("cluster")?;
    let high = decoder.u64("cluster")?;
    Ok(ClusterId(u128::from(high) << 64 | u128::from(low)))
}
