//! Appending in one message: the node that is asked grants the positions and has the entries written there.

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_chain::{Table, TableEntry};
use ithaca_env::codec::{DecodeError, Decoder};

use super::token::{GroupGrant, TokenGroup, decode_answers, decode_groups, encode_answers, encode_groups};
use super::write::{check_data, take_table};
use super::{Head, Kind, Message, at_most, frame, no_data};
use crate::entry::{GROUP_HEAD_BYTES, PLACE_BYTES};
use crate::limits;
use crate::pos::{BatchNo, ClientId, LogPos, RequestNo};

/// Bytes of an append's body before the table.
const FIXED_BYTES: usize = 40;

/// Appends entries at the next positions, in the head's epoch, which must be the sequencer's. Asked of a sequencer whose
/// role in the layout includes [`Roles::FORWARDER`](super::Roles::FORWARDER). Sent again with the same batch number it
/// appends nothing again, however late a copy arrives; `after` is what that rests on once the sequencer has forgotten
/// the batch (docs/protocol/append.md).
///
/// Body: `client u64`, `batch u64`, `request u64`, `after u64`, `count u32`, `group count u32`, then the table: for each
/// entry `len u32`, `crc32c u32`; then the groups, as in a [`Token`](super::Token). Data: the entries, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    /// What to append, but for the entries.
    pub batch: BatchHead,
    /// Length and checksum of each entry.
    pub table: Table,
    /// Groups of the entries, in their order, which together are all entries; none if no entry has to do with a stream. Each is granted its
    /// positions or refused for what its condition says.
    pub groups: Vec<TokenGroup>,
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

/// The answer to an append: the entries have the positions `[first, first + count)`, in the head's epoch only. Those of groups that were
/// refused have none, and the others follow each other.
///
/// Body: `first u64`, `count u32`, `written u16` (1 or 0), `group count u16`, then what each group got, as in a
/// [`Grant`](super::Grant).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The first entry's position.
    pub first: LogPos,
    /// How many: as many as the batch has entries, but for those that were refused.
    pub count: u32,
    /// Whether every entry is on stable storage at its position. If not, the client writes them there itself, as the
    /// holder of a token does: some may be there, and some positions may be lost to junk.
    pub written: bool,
    /// What each group got, if the append has groups.
    pub groups: Vec<GroupGrant>,
}

/// Appends the header and the body of an [`Append`] without building one. The caller sends the entries' data, all of
/// it, right after. Panics if there are more entries or bytes than the limits allow.
pub fn encode_append_head(
    out: &mut BytesMut,
    head: Head,
    batch: &BatchHead,
    entries: impl ExactSizeIterator<Item = TableEntry>,
    groups: &[TokenGroup],
) {
    let start = frame::begin_frame(out);
    encode_fixed(out, batch, entries.len(), groups.len());
    out.reserve(entries.len() * ithaca_chain::TABLE_ENTRY_BYTES);
    let mut data_len = 0;
    for entry in entries {
        data_len += entry.len as usize;
        out.put_u64_le(u64::from(entry.checksum) << 32 | u64::from(entry.len));
    }
    assert!(data_len <= limits::WRITE_MAX_BYTES, "an append of {data_len} bytes");
    if !groups.is_empty() {
        encode_groups(groups, out);
    }
    frame::finish_frame(out, start, Kind::Append, head, data_len);
}

fn encode_fixed(out: &mut BytesMut, batch: &BatchHead, count: usize, group_count: usize) {
    assert!((1..=limits::RUN_MAX_COUNT).contains(&count), "a batch of {count} entries");
    out.reserve(FIXED_BYTES);
    out.put_u64_le(batch.client.0);
    out.put_u64_le(batch.number.0);
    out.put_u64_le(batch.request.0);
    out.put_u64_le(batch.after.0);
    out.put_u32_le(count as u32);
    out.put_u32_le(group_count as u32);
}

impl Message for Append {
    const KIND: Kind = Kind::Append;

    fn encode_body(&self, out: &mut BytesMut) {
        encode_fixed(out, &self.batch, self.table.count(), self.groups.len());
        out.put_slice(self.table.as_bytes());
        if !self.groups.is_empty() {
            encode_groups(&self.groups, out);
        }
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
        let group_count = group_count(decoder.u32("group count")?)?;
        entry_count(count as u64)?;
        at_most("data", data_len, limits::WRITE_MAX_BYTES, "a length within its limit")?;
        let table = take_table(body, &mut decoder, count)?;
        let groups = decode_groups(&mut decoder, group_count)?;
        decoder.finish()?;
        check_data(table.data_bytes(), data_len)?;
        check_groups(&groups, count)?;
        Ok(Self { batch, table, groups })
    }
}

impl Message for Appended {
    const KIND: Kind = Kind::Appended;

    fn encode_body(&self, out: &mut BytesMut) {
        out.put_u64_le(self.first.0);
        out.put_u32_le(self.count);
        out.put_u16_le(self.written.into());
        out.put_u16_le(self.groups.len() as u16);
        encode_answers(&self.groups, out);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let first = LogPos(decoder.u64("first position")?);
        let count = decoder.u32("entry count")?;
        let written = decoder.u16("written")?;
        let group_count = group_count(decoder.u16("group count")?.into())?;
        let groups = decode_answers(&mut decoder, group_count)?;
        decoder.finish()?;
        no_data(data_len)?;
        match groups.is_empty() {
            true => entry_count(count.into())?,
            false => granted_count(&groups, count)?,
        }
        if first.0.checked_add(count.into()).is_none() {
            let expected = "positions that do not run out";
            return Err(DecodeError::Invalid { field: "first position", found: first.0, expected });
        }
        at_most("written", written.into(), 1, "0 or 1")?;
        Ok(Self { first, count, written: written == 1, groups })
    }
}

fn group_count(found: u32) -> Result<usize, DecodeError> {
    let found = found as usize;
    at_most("group count", found, limits::TOKEN_GROUPS_MAX_COUNT, "at most 1024")?;
    Ok(found)
}

/// Refuses groups that are not the batch's entries, or of too many streams for its meta.
fn check_groups(groups: &[TokenGroup], count: usize) -> Result<(), DecodeError> {
    if groups.is_empty() {
        return Ok(());
    }
    let found: u64 = groups.iter().map(|group| u64::from(group.count)).sum();
    if found != count as u64 {
        let expected = "as many as the batch has";
        return Err(DecodeError::Invalid { field: "entries of all groups", found, expected });
    }
    let mut before = None;
    let mut meta_bytes = 0;
    for group in groups {
        if before != Some(&group.streams) {
            meta_bytes += GROUP_HEAD_BYTES + group.streams.len() * PLACE_BYTES;
            before = Some(&group.streams);
        }
    }
    at_most("bytes of the groups", meta_bytes, limits::META_ROOM_BYTES, "what fits into a meta")
}

/// Refuses another count than that of the groups.
fn granted_count(groups: &[GroupGrant], count: u32) -> Result<(), DecodeError> {
    let granted: u64 = groups.iter().map(|group| u64::from(group.count())).sum();
    if granted == u64::from(count) && granted <= limits::RUN_MAX_COUNT as u64 {
        return Ok(());
    }
    let expected = "as many as its groups were granted";
    Err(DecodeError::Invalid { field: "entry count", found: count.into(), expected })
}

/// Refuses a batch that is empty or too long.
fn entry_count(found: u64) -> Result<(), DecodeError> {
    if (1..=limits::RUN_MAX_COUNT as u64).contains(&found) {
        return Ok(());
    }
    Err(DecodeError::Invalid { field: "entry count", found, expected: "1 to 16384" })
}
