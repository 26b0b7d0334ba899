//! Learning layouts. A layout travels as the record that is stored ([`crate::layout`] decodes it).

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};

use super::decide::{decode_record, encode_record};
use super::{Kind, Message, from_optional, no_data, optional};
use crate::pos::Epoch;

/// Asks for the layout of an epoch. Body, 8 bytes: `epoch u64`, 2^64 - 1 for the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetLayout {
    /// Which; `None` for the latest.
    pub epoch: Option<Epoch>,
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
