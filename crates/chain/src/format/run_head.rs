//! The head of a run, as groups and footer pages have it: 32 bytes, then the owner's meta, then the table.

use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};
use ithaca_env::limits::BLOCK_BYTES;

use crate::limits::{META_MAX_BYTES, RUN_RECORDS_MAX};
use crate::owner::{Place, Placed};
use crate::run::{Run, RunKind, TABLE_ENTRY_BYTES, Table, TableEntry, listed, listed_bytes};

/// Bytes of the fixed part.
pub(crate) const RUN_HEAD_BYTES: usize = 32;
const FLAG_ALIGNED: u8 = 1;

/// The table of a run without data is not stored: it is all zeros.
static ZERO_TABLE: [u8; RUN_RECORDS_MAX * TABLE_ENTRY_BYTES] = [0; RUN_RECORDS_MAX * TABLE_ENTRY_BYTES];

/// Encoded bytes of a run's head, meta and table.
pub(crate) fn run_blob_bytes(run: &Run) -> usize {
    let table = if run.kind == RunKind::Junk { 0 } else { run.table.as_bytes().len() };
    RUN_HEAD_BYTES + run.meta.len() + table
}

pub(crate) fn encode_run_head(out: &mut BytesMut, run: &Run, aligned: bool, data_offset: u32) {
    out.put_u64_le(run.first_key);
    out.put_u64_le(run.version);
    out.put_u32_le(run.table.count() as u32);
    out.put_u32_le(run.data.len() as u32);
    out.put_u32_le(data_offset);
    out.put_u16_le(run.meta.len() as u16);
    out.put_u8(run.kind as u8);
    out.put_u8(if aligned { FLAG_ALIGNED } else { 0 });
    out.put_slice(&run.meta);
    if run.kind == RunKind::Data {
        out.put_slice(run.table.as_bytes());
    }
}

/// A run's head, or the part of it that some of its records have, where it lies: everything but the data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadView<'a> {
    pub(crate) first_key: u64,
    pub(crate) version: u64,
    pub(crate) kind: RunKind,
    aligned: bool,
    /// Where its data begins, byte in the segment.
    pub(crate) data_offset: u32,
    pub(crate) data_bytes: u32,
    pub(crate) meta: &'a [u8],
    /// Encoded as a [`Table`].
    pub(crate) table: &'a [u8],
}

impl<'a> HeadView<'a> {
    /// The head at the front of `bytes`, and the number of bytes it takes. The lengths in the table are not added up
    /// here: [`HeadView::check`] does that once, when the head comes from the drive.
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<(Self, usize), DecodeError> {
        // One look at its length, and then none for each field: an open of a large segment decodes very many.
        let Some((fixed, rest)) = bytes.split_first_chunk::<RUN_HEAD_BYTES>() else {
            return Err(DecodeError::Short { field: "run head", needed: RUN_HEAD_BYTES, left: bytes.len() });
        };
        let u32_at = |at: usize| u32::from_le_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let (first_key, version) = (u64_at(0), u64_at(8));
        let (count, data_bytes, data_offset) = (u32_at(16) as usize, u32_at(20), u32_at(24));
        let meta_bytes = usize::from(u16::from_le_bytes([fixed[28], fixed[29]]));
        let (number, flags) = (fixed[30], fixed[31]);
        let kind = RunKind::from_u8(number).ok_or(DecodeError::Invalid {
            field: "run kind",
            found: u64::from(number),
            expected: "1 or 2",
        })?;
        let bad = |field, found: usize| {
            Err(DecodeError::Invalid { field, found: found as u64, expected: "a number within its limit" })
        };
        if count == 0 || count > RUN_RECORDS_MAX || first_key.checked_add(count as u64).is_none() {
            return bad("record count", count);
        }
        if meta_bytes > META_MAX_BYTES {
            return bad("meta bytes", meta_bytes);
        }
        if flags & !FLAG_ALIGNED != 0 {
            return bad("run flags", flags as usize);
        }
        let mut decoder = Decoder::new(rest);
        let meta = decoder.bytes("meta", meta_bytes)?;
        let table_bytes = count * TABLE_ENTRY_BYTES;
        let table = match kind {
            RunKind::Data => decoder.bytes("table", table_bytes)?,
            RunKind::Junk => &ZERO_TABLE[..table_bytes],
        };
        let aligned = flags & FLAG_ALIGNED != 0;
        let head = Self { first_key, version, kind, aligned, data_offset, data_bytes, meta, table };
        Ok((head, bytes.len() - decoder.left()))
    }

    /// The head of a run of one record without meta, whose table this is; one of junk has none.
    pub(crate) fn of_single(
        first_key: u64,
        version: u64,
        data_offset: u32,
        kind: RunKind,
        table: &'a [u8],
    ) -> Self {
        let (table, data_bytes) = match kind {
            RunKind::Data => (table, listed_bytes(table) as u32),
            RunKind::Junk => (&ZERO_TABLE[..TABLE_ENTRY_BYTES], 0),
        };
        let aligned = data_bytes > 0 && (data_bytes as usize).is_multiple_of(BLOCK_BYTES);
        Self { first_key, version, kind, aligned, data_offset, data_bytes, meta: &[], table }
    }

    /// Whether both say the same.
    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        let numbers = |it: &Self| (it.first_key, it.version, it.data_offset, it.data_bytes);
        let flags = |it: &Self| (it.kind, it.aligned);
        (numbers(self), flags(self)) == (numbers(other), flags(other))
            && (self.meta, self.table) == (other.meta, other.table)
    }

    /// Its records, each with its place.
    pub(crate) fn records(&self, segment: u32, lap: u64) -> impl Iterator<Item = Placed> + use<'a> {
        let (version, kind) = (self.version, self.kind);
        let (mut key, mut offset) = (self.first_key, self.data_offset);
        listed(self.table).map(move |TableEntry { len, checksum }| {
            let place = Place { segment, lap, offset, len, checksum };
            let record = Placed { key, version, kind, place };
            key += 1;
            // The lengths were added up before: a sum that wraps is refused there.
            offset = offset.wrapping_add(len);
            record
        })
    }

    /// Whether the lengths in the table add up to the data.
    pub(crate) fn check(&self) -> Result<(), DecodeError> {
        let found = listed_bytes(self.table);
        if found == u64::from(self.data_bytes) {
            return Ok(());
        }
        Err(DecodeError::Invalid { field: "table", found, expected: "lengths that add up to the run's data" })
    }

    pub(crate) fn keys(&self) -> Range<u64> {
        self.first_key..self.first_key + (self.table.len() / TABLE_ENTRY_BYTES) as u64
    }

    /// Bytes in the segment.
    pub(crate) fn data_range(&self) -> Range<u64> {
        let start = u64::from(self.data_offset);
        start..start + u64::from(self.data_bytes)
    }

    /// The part of the records with keys in `keys`, which lie within this run. `record_bytes` is the length of each record
    /// if all are known to have the same, else 0: then the lengths before the part are added up.
    pub(crate) fn part(&self, keys: Range<u64>, record_bytes: u32) -> Self {
        if keys == self.keys() {
            return *self;
        }
        let (from, to) = ((keys.start - self.first_key) as usize, (keys.end - self.first_key) as usize);
        let table = &self.table[from * TABLE_ENTRY_BYTES..to * TABLE_ENTRY_BYTES];
        let (skipped_bytes, data_bytes) = match (self.data_bytes, record_bytes) {
            (0, _) => (0, 0),
            (_, 0) => {
                (listed_bytes(&self.table[..from * TABLE_ENTRY_BYTES]) as u32, listed_bytes(table) as u32)
            }
            (_, each) => (from as u32 * each, (to - from) as u32 * each),
        };
        Self {
            first_key: keys.start,
            data_offset: self.data_offset + skipped_bytes,
            data_bytes,
            table,
            ..*self
        }
    }

    /// The length of each record if all have the same, else 0.
    pub(crate) fn record_bytes(&self) -> u32 {
        let mut lens = self.table.chunks_exact(TABLE_ENTRY_BYTES).map(|entry| &entry[..4]);
        let Some(first) = lens.next() else { return 0 };
        if !lens.all(|len| len == first) {
            return 0;
        }
        self.data_bytes / (self.table.len() / TABLE_ENTRY_BYTES) as u32
    }

    /// The same over shared bytes: it lies in `blob`.
    pub(crate) fn to_head(self, blob: &Bytes) -> RunHead {
        let table = match self.kind {
            RunKind::Data => blob.slice_ref(self.table),
            RunKind::Junk => Bytes::from_static(&ZERO_TABLE[..self.table.len()]),
        };
        RunHead {
            first_key: self.first_key,
            version: self.version,
            kind: self.kind,
            aligned: self.aligned,
            data_offset: self.data_offset,
            data_bytes: self.data_bytes,
            meta: blob.slice_ref(self.meta),
            table: Table::from_bytes(table).expect("whole entries"),
        }
    }
}

/// A run's head that shares the bytes it lies in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunHead {
    pub(crate) first_key: u64,
    pub(crate) version: u64,
    pub(crate) kind: RunKind,
    pub(crate) aligned: bool,
    /// Where its data begins, byte in the segment.
    pub(crate) data_offset: u32,
    pub(crate) data_bytes: u32,
    pub(crate) meta: Bytes,
    pub(crate) table: Table,
}

impl RunHead {
    /// The head at `at` of `blob`, sharing its bytes, and the number of bytes it takes.
    pub(crate) fn decode(blob: &Bytes, at: usize) -> Result<(Self, usize), DecodeError> {
        let (head, len) = HeadView::decode(blob.get(at..).unwrap_or(&[]))?;
        Ok((head.to_head(blob), len))
    }

    pub(crate) fn keys(&self) -> Range<u64> {
        self.first_key..self.first_key + self.table.count() as u64
    }

    /// Bytes in the segment.
    pub(crate) fn data_range(&self) -> Range<u64> {
        let start = u64::from(self.data_offset);
        start..start + u64::from(self.data_bytes)
    }

    /// The same where it lies.
    pub(crate) fn view(&self) -> HeadView<'_> {
        HeadView {
            first_key: self.first_key,
            version: self.version,
            kind: self.kind,
            aligned: self.aligned,
            data_offset: self.data_offset,
            data_bytes: self.data_bytes,
            meta: &self.meta,
            table: self.table.as_bytes(),
        }
    }

    /// The run, with its data.
    pub(crate) fn into_run(self, data: Bytes) -> Run {
        Run {
            first_key: self.first_key,
            version: self.version,
            kind: self.kind,
            meta: self.meta,
            table: self.table,
            data,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_head_is_the_same_whether_or_not_lengths_are_known_to_be_equal() {
        for lens in [[512, 512, 512, 512], [1, 0, 700, 3], [0, 0, 0, 0]] {
            let payloads = lens.map(|len| vec![7; len]);
            let table = Table::of_payloads(&payloads);
            let data = Bytes::from(payloads.concat());
            let run = Run {
                first_key: 10,
                version: 1,
                kind: RunKind::Data,
                meta: Bytes::from_static(b"m"),
                table,
                data,
            };
            let mut blob = BytesMut::new();
            encode_run_head(&mut blob, &run, false, 4096);
            let (head, _) = HeadView::decode(&blob).expect("as it was encoded");
            assert_eq!(head.record_bytes() as usize, if lens[0] == lens[1] { lens[0] } else { 0 });
            for (from, to) in [(10, 14), (10, 11), (12, 14), (13, 14)] {
                let expected = run.slice(from..to);
                for record_bytes in [0, head.record_bytes()] {
                    let part = head.part(from..to, record_bytes);
                    assert_eq!((part.keys(), part.table), (expected.keys(), &expected.table.as_bytes()[..]));
                    let start = (part.data_offset - 4096) as usize;
                    assert_eq!(run.data[start..start + part.data_bytes as usize], expected.data);
                }
            }
        }
    }
}
