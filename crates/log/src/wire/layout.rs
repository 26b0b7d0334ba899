//! Learning layouts. A layout travels as the record that is stored ([`crate::layout`] decodes it).

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};

use super::decide::{decode_record, encode_record};
use super::{Kind, Message, at_most, from_optional, no_data, optional, zero};
use crate::limits;
use crate::pos::Epoch;

/// Asks for the layout of an epoch. Body, 8 bytes: `epoch u64`, 2^64 - 1 for the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetLayout {
    /// Which; `None` for the latest.
    pub epoch: Option<Epoch>,
}

/// Asks for the latest layout, as soon as it is later than what the asker knows, or after a while all the same. The answer is
/// [`LayoutRecord`]. Body, 16 bytes: `epoch u64`, `wait_ms u32`, `reserved u32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchLayout {
    /// The latest epoch that the asker knows the layout of.
    pub known: Epoch,
    /// How long to wait for a later one, in milliseconds; at most [`limits::LAYOUT_WAIT_MAX_MS`]. A node at which too many wait answers at
    /// once.
    pub wait_ms: u16,
}

/// A layout that was decided, and durable. Body: `length u32`, the layout record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutRecord {
    /// The encoded layout.
    pub record: Bytes,
}

impl Message for GetLayout {
    const KIND: Kind = Kind::GetLayout;

    fn encode_body(&self, out: &mut BytesMut) {
        out.put_u64_le(optional(self.epoch.map(|epoch| epoch.0)));
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let epoch = from_optional(decoder.u64("layout epoch")?).map(Epoch);
        decoder.finish()?;
        no_data(data_len)?;
        Ok(Self { epoch })
    }
}

impl Message for WatchLayout {
    const KIND: Kind = Kind::WatchLayout;

    fn encode_body(&self, out: &mut BytesMut) {
        out.put_u64_le(self.known.0);
        out.put_u32_le(self.wait_ms.into());
        out.put_u32_le(0);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let known = Epoch(decoder.u64("known epoch")?);
        let wait_ms = decoder.u32("wait for a layout")?;
        let limit = usize::from(limits::LAYOUT_WAIT_MAX_MS);
        at_most("wait for a layout", wait_ms as usize, limit, "at most 10000")?;
        zero("watch reserved", decoder.u32("watch reserved")?.into())?;
        decoder.finish()?;
        no_data(data_len)?;
        Ok(Self { known, wait_ms: wait_ms as u16 })
    }
}

impl Message for LayoutRecord {
    const KIND: Kind = Kind::LayoutRecord;

    fn encode_body(&self, out: &mut BytesMut) {
        encode_record(&self.record, out);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let record = decode_record(&mut decoder, body)?;
        decoder.finish()?;
        no_data(data_len)?;
        Ok(Self { record })
    }
}
