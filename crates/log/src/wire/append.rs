//! Appending in one message: the node that is asked grants the positions and has the entries written there.

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_chain::{Table, TableEntry};
use ithaca_env::codec::{DecodeError, Decoder};

use super::write::{check_data, take_table};
use super::{Head, Kind, Message, at_most, frame, no_data, zero};
use crate::limits;
use crate::pos::{BatchNo, ClientId, LogPos, RequestNo};

/// Bytes of an append's body before the table.
const FIXED_BYTES: usize = 40;

/// Appends entries at the next positions, in the head's epoch, which must be the sequencer's. Asked of a sequencer whose
/// role in the layout includes [`Roles::FORWARDER`](super::Roles::FORWARDER). Sent again with the same batch number it
/// appends nothing again, however late a copy arrives; `after` is what that rests on once the sequencer has forgotten
/// the batch (docs/protocol/append.md).
///
/// Body: `client u64`, `batch u64`, `request u64`, `after u64`, `count u32`, `reserved u32`, then the table: for each
/// entry `len u32`, `crc32c u32`. Data: the entries, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    /// What to append, but for the entries.
    pub batch: BatchHead,
    /// Length and checksum of each entry.
    pub table: Table,
}

/// What names a batch of appends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHead {
    /// Who appends.
    pub client: ClientId,
    /// The client's number of this batch: no two batches of a client have the same.
    pub number: BatchNo,
    /// The request number of the first entry; the others follow one by one.
    pub request: RequestNo,
    /// Every position that this epoch's sequencer grants for this batch is at or above this one: what the client knew of
    /// the epoch's tail before it sent the batch for the first time in this epoch.
    pub after: LogPos,
}

/// The answer to an append: the entries have the positions `[first, first + count)`, in the head's epoch only.
///
/// Body, 16 bytes: `first u64`, `count u32`, `written u32` (1 or 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The first entry's position.
    pub first: LogPos,
    /// How many: as many as the batch has entries.
    pub count: u32,
    /// Whether every entry is on stable storage at its position. If not, the client writes them there itself, as the
    /// holder of a token does: some may be there, and some positions may be lost to junk.
    pub written: bool,
}

/// Appends the header and the body of an [`Append`] without building one. The caller sends the entries' data, all of
/// it, right after. Panics if there are more entries or bytes than the limits allow.
pub fn encode_append_head(
    out: &mut BytesMut,
    head: Head,
    batch: &BatchHead,
    entries: impl ExactSizeIterator<Item = TableEntry>,
) {
    let start = frame::begin_frame(out);
    encode_fixed(out, batch, entries.len());
    out.reserve(entries.len() * ithaca_chain::TABLE_ENTRY_BYTES);
    let mut data_len = 0;
    for entry in entries {
        data_len += entry.len as usize;
        out.put_u64_le(u64::from(entry.checksum) << 32 | u64::from(entry.len));
    }
    assert!(data_len <= limits::WRITE_MAX_BYTES, "an append of {data_len} bytes");
    frame::finish_frame(out, start, Kind::Append, head, data_len);
}

fn encode_fixed(out: &mut BytesMut, batch: &BatchHead, count: usize) {
    assert!((1..=limits::RUN_MAX_COUNT).contains(&count), "a batch of {count} entries");
    out.reserve(FIXED_BYTES);
    out.put_u64_le(batch.client.0);
    out.put_u64_le(batch.number.0);
    out.put_u64_le(batch.request.0);
    out.put_u64_le(batch.after.0);
    out.put_u32_le(count as u32);
    out.put_u32_le(0);
}

impl Message for Append {
    const KIND: Kind = Kind::Append;

    fn encode_body(&self, out: &mut BytesMut) {
        encode_fixed(out, &self.batch, self.table.count());
        out.put_slice(self.table.as_bytes());
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let batch = BatchHead {
            client: ClientId(decoder.u64("client")?),
            number: BatchNo(decoder.u64("batch")?),
            request: RequestNo(decoder.u64("request")?),
            after: LogPos(decoder.u64("after")?),
        };
        let count = decoder.u32("entry count")? as usize;
        zero("append reserved", decoder.u32("append reserved")?.into())?;
        entry_count(count as u64)?;
        at_most("data", data_len, limits::WRITE_MAX_BYTES, "a length within its limit")?;
        let table = take_table(body, &mut decoder, count)?;
        decoder.finish()?;
        check_data(table.data_bytes(), data_len)?;
        Ok(Self { batch, table })
    }
}

impl Message for Appended {
    const KIND: Kind = Kind::Appended;

    fn encode_body(&self, out: &mut BytesMut) {
        out.put_u64_le(self.first.0);
        out.put_u32_le(self.count);
        out.put_u32_le(self.written.into());
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let first = LogPos(decoder.u64("first position")?);
        let count = decoder.u32("entry count")?;
        let written = decoder.u32("written")?;
        decoder.finish()?;
        no_data(data_len)?;
        entry_count(count.into())?;
        if first.0.checked_add(count.into()).is_none() {
            let expected = "positions that do not run out";
            return Err(DecodeError::Invalid { field: "first position", found: first.0, expected });
        }
        at_most("written", written as usize, 1, "0 or 1")?;
        Ok(Self { first, count, written: written == 1 })
    }
}

/// Refuses a batch that is empty or too long.
fn entry_count(found: u64) -> Result<(), DecodeError> {
    if (1..=limits::RUN_MAX_COUNT as u64).contains(&found) {
        return Ok(());
    }
    Err(DecodeError::Invalid { field: "entry count", found, expected: "1 to 16384" })
}
