//! A run: records of consecutive keys that are written together. The unit of everything in a chain.
//!
//! The wire, the disk, the index and replies all carry a run's table as the same bytes, so no layer in between touches
//! a single record needlessly.

use std::ops::Range;

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// What a run's records are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RunKind {
    /// Records with data.
    Data = 1,
    /// Records without data: the keys are used up (the log's junk).
    Junk = 2,
}

impl RunKind {
    /// The kind with this number.
    pub fn from_u8(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Data),
            2 => Some(Self::Junk),
            _ => None,
        }
    }
}

/// One record of a [`Table`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableEntry {
    /// Bytes of data.
    pub len: u32,
    /// crc32c of the data.
    pub checksum: u32,
}

impl TableEntry {
    /// The entry that these 8 bytes are. Panics if there are fewer.
    fn decode(bytes: &[u8]) -> Self {
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Self { len: number(0), checksum: number(4) }
    }
}

/// The entries of an encoded table, in order.
pub(crate) fn listed(table: &[u8]) -> impl Iterator<Item = TableEntry> + '_ {
    table.chunks_exact(TABLE_ENTRY_BYTES).map(TableEntry::decode)
}

/// Length and checksum of each record of a run: 8 bytes a record, little-endian, as on disk and on the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    bytes: Bytes,
}

/// Bytes of one record in a [`Table`].
pub const TABLE_ENTRY_BYTES: usize = 8;

impl Table {
    /// A table over its encoded bytes; `None` if they are not whole entries.
    pub fn from_bytes(bytes: Bytes) -> Option<Self> {
        bytes.len().is_multiple_of(TABLE_ENTRY_BYTES).then_some(Self { bytes })
    }

    /// The table of these payloads, their checksums computed.
    pub fn of_payloads<P: AsRef<[u8]>>(payloads: impl IntoIterator<Item = P>) -> Self {
        let mut bytes = BytesMut::new();
        for payload in payloads {
            let payload = payload.as_ref();
            bytes.put_u32_le(u32::try_from(payload.len()).unwrap_or(u32::MAX));
            bytes.put_u32_le(crc32c::crc32c(payload));
        }
        Self { bytes: bytes.freeze() }
    }

    /// Its encoded bytes.
    pub fn as_bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// How many records.
    pub fn count(&self) -> usize {
        self.bytes.len() / TABLE_ENTRY_BYTES
    }

    /// The record at `index`. Panics past the end.
    pub fn get(&self, index: usize) -> TableEntry {
        let at = index * TABLE_ENTRY_BYTES;
        TableEntry::decode(&self.bytes[at..at + TABLE_ENTRY_BYTES])
    }

    /// The records in order.
    pub fn entries(&self) -> impl Iterator<Item = TableEntry> + '_ {
        listed(&self.bytes)
    }

    /// The records `[start, end)`; shares the bytes.
    pub fn slice(&self, records: Range<usize>) -> Self {
        Self { bytes: self.bytes.slice(records.start * TABLE_ENTRY_BYTES..records.end * TABLE_ENTRY_BYTES) }
    }

    /// Bytes of data of all records.
    pub fn data_bytes(&self) -> u64 {
        self.sum(0..self.count())
    }

    /// Where record `index` lies within the run's data.
    pub fn data_range(&self, index: usize) -> Range<usize> {
        let start = self.sum(0..index) as usize;
        start..start + self.get(index).len as usize
    }

    /// Bytes of data of some of the records. Every read of one record out of a long run adds up what comes before it.
    fn sum(&self, records: Range<usize>) -> u64 {
        listed_bytes(&self.bytes[records.start * TABLE_ENTRY_BYTES..records.end * TABLE_ENTRY_BYTES])
    }

    /// The first record whose checksum does not match `data`, the run's data; `Some(count)` if the lengths do not add
    /// up to `data`. `None` when all is well.
    pub fn first_mismatch(&self, data: &[u8]) -> Option<usize> {
        let mut rest = data;
        for (index, entry) in self.entries().enumerate() {
            let Some((record, tail)) = rest.split_at_checked(entry.len as usize) else {
                return Some(self.count());
            };
            if crc32c::crc32c(record) != entry.checksum {
                return Some(index);
            }
            rest = tail;
        }
        if rest.is_empty() { None } else { Some(self.count()) }
    }
}

/// Bytes of data that the encoded entries of a table add up to.
pub(crate) fn listed_bytes(table: &[u8]) -> u64 {
    listed(table).map(|entry| u64::from(entry.len)).sum()
}

/// A run, or some of its records, where it lies in memory: for one who only passes it on. Only its data is shared.
#[derive(Clone, Debug)]
pub struct RunView<'a> {
    /// Key of the first record.
    pub first_key: u64,
    /// The owner's version.
    pub version: u64,
    /// What the records are.
    pub kind: RunKind,
    /// The owner's header.
    pub meta: &'a [u8],
    /// Length and checksum of each record, encoded as a [`Table`]: 8 bytes each.
    pub table: &'a [u8],
    /// Their data, one after the other.
    pub data: Bytes,
}

impl RunView<'_> {
    /// How many records.
    pub fn count(&self) -> u64 {
        (self.table.len() / TABLE_ENTRY_BYTES) as u64
    }

    /// The keys.
    pub fn keys(&self) -> Range<u64> {
        self.first_key..self.first_key + self.count()
    }

    /// Leaves out its first `count` records. Panics if it has fewer.
    pub fn skip(&mut self, count: usize) {
        let (skipped, rest) = self.table.split_at(count * TABLE_ENTRY_BYTES);
        self.data.advance(listed_bytes(skipped) as usize);
        self.table = rest;
        self.first_key += count as u64;
    }

    /// Takes its first `count` records off. Panics if it has fewer.
    pub fn split_to(&mut self, count: usize) -> Self {
        let mut first = self.clone();
        first.truncate(count);
        self.skip(count);
        first
    }

    /// Cuts it to its first `count` records. Panics if it has fewer.
    pub fn truncate(&mut self, count: usize) {
        self.table = &self.table[..count * TABLE_ENTRY_BYTES];
        self.data.truncate(listed_bytes(self.table) as usize);
    }
}

/// Records of the keys `[first_key, first_key + count)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Key of the first record.
    pub first_key: u64,
    /// The owner's version of all of them; the log writes the epoch of their token.
    pub version: u64,
    /// What they are.
    pub kind: RunKind,
    /// The owner's header, opaque here; at most `limits::META_MAX_BYTES`.
    pub meta: Bytes,
    /// Records; a [`RunKind::Junk`] run holds lengths of zero.
    pub table: Table,
    /// Their data, one after the other. Of records of whole blocks that begin on a block boundary in memory (see
    /// [`PageBuf`](ithaca_env::drive::PageBuf)) nothing is copied: all of the memory that this is a part of stays as long as their group is
    /// among the recent ones.
    pub data: Bytes,
}

impl Run {
    /// How many records.
    pub fn count(&self) -> u64 {
        self.table.count() as u64
    }

    /// The keys.
    pub fn keys(&self) -> Range<u64> {
        self.first_key..self.first_key + self.count()
    }

    /// The same as a view.
    pub fn view(&self) -> RunView<'_> {
        RunView {
            first_key: self.first_key,
            version: self.version,
            kind: self.kind,
            meta: &self.meta,
            table: self.table.as_bytes(),
            data: self.data.clone(),
        }
    }

    /// The records with keys in `keys`, which lie within this run; shares the bytes.
    pub fn slice(&self, keys: Range<u64>) -> Self {
        assert!(
            keys.start >= self.first_key && keys.end <= self.keys().end && !keys.is_empty(),
            "within the run"
        );
        let (from, to) = ((keys.start - self.first_key) as usize, (keys.end - self.first_key) as usize);
        let start = self.table.data_range(from).start;
        let end = self.table.data_range(to - 1).end;
        Self {
            first_key: keys.start,
            table: self.table.slice(from..to),
            data: self.data.slice(start..end),
            meta: self.meta.clone(),
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records of these payloads, from the key 10 on.
    fn run_of(payloads: &[&str]) -> Run {
        Run {
            first_key: 10,
            version: 1,
            kind: RunKind::Data,
            meta: Bytes::new(),
            table: Table::of_payloads(payloads),
            data: Bytes::from(payloads.concat()),
        }
    }

    #[test]
    fn a_slice_of_a_run_keeps_keys_tables_and_data_together() {
        let run = run_of(&["a", "bcd", "", "efgh"]);
        let middle = run.slice(11..13);
        assert_eq!((middle.keys(), &middle.data[..]), (11..13, &b"bcd"[..]));
        assert_eq!(middle.table.first_mismatch(&middle.data), None);
    }

    #[test]
    fn records_that_are_taken_off_a_view_have_their_keys_and_data() {
        let run = run_of(&["a", "bcd", "", "efgh", "i"]);
        let mut view = run.view();
        view.skip(1);
        let two = view.split_to(2);
        assert_eq!(
            (two.keys(), two.table, &two.data[..]),
            (11..13, &run.table.as_bytes()[8..24], &b"bcd"[..])
        );
        assert_eq!(
            (view.keys(), view.table, &view.data[..]),
            (13..15, &run.table.as_bytes()[24..], &b"efghi"[..])
        );
        view.skip(2);
        assert_eq!((view.count(), view.data.len()), (0, 0));
    }

    #[test]
    fn a_mismatch_names_the_record() {
        let table = Table::of_payloads(["one", "two"]);
        assert_eq!(table.first_mismatch(b"onetwo"), None);
        assert_eq!(table.first_mismatch(b"oneTwo"), Some(1));
        assert_eq!(table.first_mismatch(b"onetwo!"), Some(2));
        assert_eq!(table.first_mismatch(b"onetw"), Some(2));
    }
}
