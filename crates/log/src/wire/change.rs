//! What an operator has a node change about its cluster.

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder, Encoder};

use super::status::decode_offers;
use super::{Kind, Message, Roles, no_data, zero};
use crate::limits;
use crate::pos::{Epoch, NodeId};

/// Asks any member to have the cluster decide a layout that is so, the next after that of the header's epoch. To ask again changes
/// nothing.
///
/// Body: `what u32` (1 add, 2 remove, 3 the minimum of replicas, 4 replace), `count u32` (0 but for the minimum), `node u64` (0 for the
/// minimum), `address` (`length u32`, UTF-8; empty but for an addition), `offers u32` (0 but for an addition).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeCluster {
    /// A node becomes a member; it is used as soon as it hears the others.
    Add {
        /// Its id.
        node: NodeId,
        /// Where it listens: `IP:port`.
        address: String,
        /// What it may be given to do, of [`Roles::OFFERED`].
        offers: Roles,
    },
    /// A node leaves for good, as soon as others have its copies.
    Remove {
        /// Which.
        node: NodeId,
    },
    /// A node that is out has lost what it had and what it remembered: it decides no layouts until it has come back. That is so by a
    /// layout that is decided for this order, whatever one says that is known already.
    Replace {
        /// Which.
        node: NodeId,
    },
    /// So many replicas are needed for an append.
    MinReplicas {
        /// How many, 1 or more.
        count: u16,
    },
}

/// It is so, or on its way, in the layout of this epoch, which a majority of the acceptors has on stable storage.
///
/// Body, 8 bytes: `epoch u64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterChanged {
    /// The epoch.
    pub epoch: Epoch,
}

impl Message for ChangeCluster {
    const KIND: Kind = Kind::ChangeCluster;

    fn encode_body(&self, out: &mut BytesMut) {
        let (what, count, node, address, offers) = match self {
            Self::Add { node, address, offers } => (1, 0, node.0, address.as_str(), *offers),
            Self::Remove { node } => (2, 0, node.0, "", Roles::default()),
            Self::MinReplicas { count } => (3, *count, 0, "", Roles::default()),
            Self::Replace { node } => (4, 0, node.0, "", Roles::default()),
        };
        out.put_u32_le(what);
        out.put_u32_le(count.into());
        out.put_u64_le(node);
        out.counted(address.as_bytes());
        out.put_u32_le(offers.0);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let what = decoder.u32("what to change")?;
        let count = decoder.u32("replica count")?;
        let node = NodeId(decoder.u64("node")?);
        let address = decoder.text("address", limits::ADDRESS_MAX_BYTES)?.to_owned();
        let offers = decode_offers(&mut decoder)?;
        let invalid = |field, found, expected| DecodeError::Invalid { field, found, expected };
        let length = address.len() as u64;
        decoder.finish()?;
        no_data(data_len)?;
        let asked = match what {
            1 => Self::Add { node, address: address.clone(), offers },
            2 => Self::Remove { node },
            3 => Self::MinReplicas { count: count.try_into().unwrap_or(u16::MAX) },
            4 => Self::Replace { node },
            found => return Err(invalid("what to change", found.into(), "1 to 4")),
        };
        // What a change does not have must be 0 or empty.
        zero("replica count", if what == 3 { 0 } else { count.into() })?;
        zero("node", if what == 3 { node.0 } else { 0 })?;
        zero("offers", if what == 1 { 0 } else { offers.0.into() })?;
        match (what == 1) != address.is_empty() {
            true => Ok(asked),
            false => Err(invalid("address", length, "one for an addition and none else")),
        }
    }
}

impl Message for ClusterChanged {
    const KIND: Kind = Kind::ClusterChanged;

    fn encode_body(&self, out: &mut BytesMut) {
        out.put_u64_le(self.epoch.0);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let epoch = Epoch(decoder.u64("epoch")?);
        decoder.finish()?;
        no_data(data_len)?;
        Ok(Self { epoch })
    }
}
