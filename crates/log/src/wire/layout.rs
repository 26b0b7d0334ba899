//! Learning and deciding layouts. A layout travels as the record that is stored ([`crate::layout`] decodes it).

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};

use super::{Kind, Message, at_most, from_optional, no_data, optional};
use crate::limits;
use crate::pos::Epoch;

/// Asks for the layout of an epoch. Body, 8 bytes: `epoch u64`, 2^64 - 1 for the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetLayout {
    /// Which; `None` for the latest.
    pub epoch: Option<Epoch>,
}

/// Proposes a layout for the epoch that it names. The answer is the [`LayoutRecord`] that was decided for that epoch,
/// which may be another's. Body: `length u32`, the layout record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Propose {
    /// The encoded layout.
    pub record: Bytes,
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

impl Message for Propose {
    const KIND: Kind = Kind::Propose;

    fn encode_body(&self, out: &mut BytesMut) {
        encode_record(&self.record, out);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        decode_record(body, data_len).map(|record| Self { record })
    }
}

impl Message for LayoutRecord {
    const KIND: Kind = Kind::LayoutRecord;

    fn encode_body(&self, out: &mut BytesMut) {
        encode_record(&self.record, out);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        decode_record(body, data_len).map(|record| Self { record })
    }
}

fn encode_record(record: &Bytes, out: &mut BytesMut) {
    assert!(record.len() <= limits::LAYOUT_MAX_BYTES, "a layout of {} bytes", record.len());
    out.put_u32_le(record.len() as u32);
    out.put_slice(record);
}

fn decode_record(body: &Bytes, data_len: usize) -> Result<Bytes, DecodeError> {
    let mut decoder = Decoder::new(body);
    let len = decoder.u32("layout length")? as usize;
    at_most("layout length", len, limits::LAYOUT_MAX_BYTES, "a length within its limit")?;
    decoder.bytes("layout", len)?;
    decoder.finish()?;
    no_data(data_len)?;
    Ok(body.slice(4..4 + len))
}
