//! Writing a run of entries at addresses that the writer holds tokens for.

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_chain::{Run, RunKind, Table, TableEntry};
use ithaca_env::codec::{DecodeError, Decoder};

use super::outcome::{decode_outcomes_only, encode_outcomes};
use super::{Head, Kind, Message, Outcome, at_most, frame, zero};
use crate::entry::EntryMeta;
use crate::limits;
use crate::pos::{Addr, Epoch};

/// Writes entries at consecutive addresses. The head's epoch is the one that the tokens were granted in, never a newer
/// one: a grant dies with its epoch.
///
/// Body: `addr u64`, `count u32`, `meta_len u16`, `reserved u16`, meta ([`EntryMeta`]), then the table: for each entry
/// `len u32`, `crc32c u32`. Data: the entries, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The address of the first entry.
    pub addr: Addr,
    /// An encoded [`EntryMeta`].
    pub meta: Bytes,
    /// Length and checksum of each entry.
    pub table: Table,
}

impl Write {
    /// The run that this message and its frame's data are; `epoch` is the head's.
    pub fn into_run(self, epoch: Epoch, data: Bytes) -> Run {
        Run {
            first_key: self.addr.0,
            version: epoch.0,
            kind: RunKind::Data,
            meta: self.meta,
            table: self.table,
            data,
        }
    }
}

/// The answer to a write: every address that `taken` does not list holds the writer's entry, and all that this reply
/// reveals is durable. Body: outcomes, as [`Outcome`] says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Addresses that held something before, in order, and what they hold.
    pub taken: Vec<Outcome>,
}

/// Appends the header and the body of a [`Write`] without building one: nothing is done for an entry but to copy its
/// length and checksum. The caller sends the entries' data, all of it, right after. Returns how many bytes that is.
/// Panics if there are more entries or bytes than the limits allow.
pub fn encode_write_head(
    out: &mut BytesMut,
    head: Head,
    addr: Addr,
    meta: &EntryMeta,
    entries: impl ExactSizeIterator<Item = TableEntry>,
) -> usize {
    let start = frame::begin_frame(out);
    encode_fixed(out, addr, entries.len(), meta.encoded_bytes());
    meta.encode(out);
    let mut data_len = 0;
    for entry in entries {
        data_len += entry.len as usize;
        out.put_u64_le(u64::from(entry.checksum) << 32 | u64::from(entry.len));
    }
    assert!(data_len <= limits::WRITE_MAX_BYTES, "a write of {data_len} bytes");
    frame::finish_frame(out, start, Kind::Write, head, data_len);
    data_len
}

fn encode_fixed(out: &mut BytesMut, addr: Addr, count: usize, meta_len: usize) {
    assert!((1..=limits::RUN_MAX_COUNT).contains(&count), "a run of {count} entries");
    assert!(meta_len <= limits::META_MAX_BYTES, "a meta of {meta_len} bytes");
    out.put_u64_le(addr.0);
    out.put_u32_le(count as u32);
    out.put_u16_le(meta_len as u16);
    out.put_u16_le(0);
}

impl Message for Write {
    const KIND: Kind = Kind::Write;

    fn encode_body(&self, out: &mut BytesMut) {
        encode_fixed(out, self.addr, self.table.count(), self.meta.len());
        out.put_slice(&self.meta);
        out.put_slice(self.table.as_bytes());
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let addr = Addr(decoder.u64("address")?);
        let count = decoder.u32("entry count")? as usize;
        let meta_len = usize::from(decoder.u16("meta length")?);
        zero("write reserved", decoder.u16("write reserved")?.into())?;
        check_count(addr, count as u64)?;
        at_most("data", data_len, limits::WRITE_MAX_BYTES, "a length within its limit")?;
        let meta = take_meta(body, &mut decoder, meta_len)?;
        EntryMeta::decode(&meta)?;
        let table = take_table(body, &mut decoder, count)?;
        decoder.finish()?;
        check_data(table.data_bytes(), data_len)?;
        Ok(Self { addr, meta, table })
    }
}

impl Message for Written {
    const KIND: Kind = Kind::Written;

    fn encode_body(&self, out: &mut BytesMut) {
        encode_outcomes(&self.taken, out);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        decode_outcomes_only(body, data_len).map(|taken| Self { taken })
    }
}

/// Refuses a run that is empty, too long, or that goes past the last address.
pub(super) fn check_count(addr: Addr, count: u64) -> Result<(), DecodeError> {
    if count == 0 || count > limits::RUN_MAX_COUNT as u64 {
        return Err(DecodeError::Invalid { field: "entry count", found: count, expected: "1 to 16384" });
    }
    check_end(addr, count)
}

/// Refuses addresses past the last that may be used.
pub(super) fn check_end(addr: Addr, count: u64) -> Result<(), DecodeError> {
    // A range that ends at the largest number holds the largest address, which is one less.
    if addr.0.checked_add(count).is_some() {
        return Ok(());
    }
    Err(DecodeError::Invalid { field: "address", found: addr.0, expected: "addresses below 2^64 - 1" })
}

/// The next `len` bytes of `body`, where `decoder` stands, shared.
pub(super) fn take_meta(body: &Bytes, decoder: &mut Decoder<'_>, len: usize) -> Result<Bytes, DecodeError> {
    at_most("meta length", len, limits::META_MAX_BYTES, "a length within its limit")?;
    let at = body.len() - decoder.left();
    decoder.bytes("meta", len)?;
    Ok(body.slice(at..at + len))
}

/// A table of `count` entries, where `decoder` stands in `body`, shared. Every length is within its limit.
pub(super) fn take_table(
    body: &Bytes,
    decoder: &mut Decoder<'_>,
    count: usize,
) -> Result<Table, DecodeError> {
    let at = body.len() - decoder.left();
    let len = count * ithaca_chain::TABLE_ENTRY_BYTES;
    decoder.bytes("table", len)?;
    let table = Table::from_bytes(body.slice(at..at + len)).expect("whole entries were taken");
    let longest = table.entries().map(|entry| entry.len).max().unwrap_or(0);
    at_most("entry length", longest as usize, limits::ENTRY_MAX_BYTES, "a length within its limit")?;
    Ok(table)
}

/// Refuses lengths that do not add up to the data that came.
pub(super) fn check_data(listed_bytes: u64, data_len: usize) -> Result<(), DecodeError> {
    if listed_bytes == data_len as u64 {
        return Ok(());
    }
    Err(DecodeError::Invalid {
        field: "data",
        found: data_len as u64,
        expected: "as many bytes as the table lists",
    })
}
