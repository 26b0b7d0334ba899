//! Runs in a body, where they lie: for those who pass on many of them and look at each once.

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_chain::{Run, RunKind, RunView, TABLE_ENTRY_BYTES, Table};
use ithaca_env::codec::{DecodeError, Decoder};

use super::frame::{begin_frame, finish_frame};
use super::write::{check_count, check_data, check_end};
use super::{Head, Kind, Message, at_most, zero};
use crate::limits;
use crate::pos::{Addr, AddrRange, Epoch};

/// Bytes of a run in a body, without meta and table.
pub(super) const RUN_HEAD_BYTES: usize = 32;

/// What consecutive addresses hold, without the data. [`super::RunHead`] is the same with bytes of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunRef<'a> {
    /// The first address.
    pub addr: Addr,
    /// How many addresses.
    pub count: u64,
    /// What they hold.
    pub state: StateRef<'a>,
}

/// What addresses hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateRef<'a> {
    /// Entries.
    Data {
        /// The epoch that they were written in.
        epoch: Epoch,
        /// Whose they are: an encoded [`crate::entry::EntryMeta`].
        meta: &'a [u8],
        /// Length and checksum of each, encoded as an [`ithaca_chain::Table`].
        table: &'a [u8],
    },
    /// Junk, written in this epoch.
    Junk {
        /// The epoch of the fill.
        epoch: Epoch,
    },
    /// Trimmed.
    Trimmed,
    /// Nothing yet.
    Unwritten,
}

/// Length and checksum of each entry of an encoded table.
pub fn table_entries(table: &[u8]) -> impl Iterator<Item = (usize, u32)> + '_ {
    table.chunks_exact(TABLE_ENTRY_BYTES).map(|entry| {
        let field = |at: usize| u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]]);
        (field(0) as usize, field(4))
    })
}

/// How many of a run's entries fit into `room_bytes` of a reply, body and data, from the first on; at least 1. A reply that
/// grows run by run, each cut by this to the room that is left and the last one being that which does not fit whole, keeps
/// to its limit but for one entry.
pub fn entries_within(run: &RunView<'_>, room_bytes: usize) -> usize {
    let mut used = RUN_HEAD_BYTES + run.meta.len();
    let fitting = table_entries(run.table).take_while(|(len, _)| {
        used += TABLE_ENTRY_BYTES + len;
        used <= room_bytes
    });
    fitting.count().max(1)
}

/// The same of a run whose data is left out.
pub fn heads_within(run: &RunView<'_>, room_bytes: usize) -> usize {
    let room = room_bytes.saturating_sub(RUN_HEAD_BYTES + run.meta.len());
    (room / TABLE_ENTRY_BYTES).clamp(1, run.table.len() / TABLE_ENTRY_BYTES)
}

impl<'a> RunRef<'a> {
    /// The head of a run that is stored. Its data goes into the frame's data.
    pub fn of_view(run: &RunView<'a>) -> Self {
        let epoch = Epoch(run.version);
        let state = match run.kind {
            RunKind::Data => StateRef::Data { epoch, meta: run.meta, table: run.table },
            RunKind::Junk => StateRef::Junk { epoch },
        };
        Self { addr: Addr(run.first_key), count: run.count(), state }
    }

    /// The entries as they are stored, with their part of the answer's data, which is taken from the front of `data`; `None` if it
    /// is not entries. Copies meta and table.
    ///
    /// # Panics
    ///
    /// If `data` is shorter than the entries; what was received is not.
    pub fn to_run(&self, data: &mut Bytes) -> Option<Run> {
        let StateRef::Data { epoch, meta, table } = self.state else {
            return None;
        };
        Some(Run {
            first_key: self.addr.0,
            version: epoch.0,
            kind: RunKind::Data,
            meta: Bytes::copy_from_slice(meta),
            table: Table::from_bytes(Bytes::copy_from_slice(table)).expect("whole entries"),
            data: data.split_to(self.data_bytes() as usize),
        })
    }

    /// The addresses.
    pub fn range(&self) -> AddrRange {
        AddrRange::new(self.addr, Addr(self.addr.0 + self.count))
    }

    /// Bytes that it takes in a body.
    pub fn body_bytes(&self) -> usize {
        match self.state {
            StateRef::Data { meta, table, .. } => RUN_HEAD_BYTES + meta.len() + table.len(),
            _ => RUN_HEAD_BYTES,
        }
    }

    /// Bytes of its data.
    pub fn data_bytes(&self) -> u64 {
        match self.state {
            StateRef::Data { table, .. } => table_entries(table).map(|(len, _)| len as u64).sum(),
            _ => 0,
        }
    }

    pub(super) fn encode(&self, out: &mut BytesMut) {
        let (kind, epoch, meta, table): (_, _, &[u8], &[u8]) = match self.state {
            StateRef::Data { epoch, meta, table } => (1, epoch.0, meta, table),
            StateRef::Junk { epoch } => (2, epoch.0, &[], &[]),
            StateRef::Trimmed => (3, 0, &[], &[]),
            StateRef::Unwritten => (4, 0, &[], &[]),
        };
        assert!(meta.len() <= limits::META_MAX_BYTES, "a meta of {} bytes", meta.len());
        let listed = (table.len() / TABLE_ENTRY_BYTES) as u64;
        assert!(kind != 1 || listed == self.count, "a table of as many entries as addresses");
        let mut head = [0; RUN_HEAD_BYTES];
        head[0..8].copy_from_slice(&self.addr.0.to_le_bytes());
        head[8..16].copy_from_slice(&self.count.to_le_bytes());
        head[16..24].copy_from_slice(&epoch.to_le_bytes());
        head[24] = kind;
        head[26..28].copy_from_slice(&(meta.len() as u16).to_le_bytes());
        out.put_slice(&head);
        out.put_slice(meta);
        out.put_slice(table);
    }

    pub(super) fn decode(decoder: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let addr = Addr(decoder.u64("run address")?);
        let count = decoder.u64("run count")?;
        let epoch = Epoch(decoder.u64("run epoch")?);
        let kind = decoder.u8("run kind")?;
        zero("run reserved", decoder.u8("run reserved")?.into())?;
        let meta_len = usize::from(decoder.u16("meta length")?);
        zero("run reserved", decoder.u32("run reserved")?.into())?;
        if kind != 1 {
            zero("meta length", meta_len as u64)?;
            check_end(addr, count)?;
        }
        if kind > 2 {
            zero("run epoch", epoch.0)?;
        }
        let state = match kind {
            1 => {
                check_count(addr, count)?;
                at_most("meta length", meta_len, limits::META_MAX_BYTES, "a length within its limit")?;
                let meta = decoder.bytes("meta", meta_len)?;
                let table = decoder.bytes("table", count as usize * TABLE_ENTRY_BYTES)?;
                let longest = table_entries(table).map(|(len, _)| len).max().unwrap_or(0);
                at_most("entry length", longest, limits::ENTRY_MAX_BYTES, "a length within its limit")?;
                StateRef::Data { epoch, meta, table }
            }
            2 => StateRef::Junk { epoch },
            3 => StateRef::Trimmed,
            4 => StateRef::Unwritten,
            other => {
                return Err(DecodeError::Invalid {
                    field: "run kind",
                    found: other.into(),
                    expected: "1 to 4",
                });
            }
        };
        Ok(Self { addr, count, state })
    }
}

/// The runs of a [`super::Runs`] message as they are put together.
#[derive(Clone, Debug, Default)]
pub struct RunsBody {
    encoded: BytesMut,
    count: usize,
}

impl RunsBody {
    /// Adds a run. Panics past [`limits::RUNS_MAX_COUNT`].
    pub fn push(&mut self, run: &RunRef<'_>) {
        self.count += 1;
        assert!(self.count <= limits::RUNS_MAX_COUNT, "{} runs", self.count);
        run.encode(&mut self.encoded);
    }

    /// How many runs.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Makes it empty; its memory is kept.
    pub fn clear(&mut self) {
        self.encoded.clear();
        self.count = 0;
    }

    /// Appends a frame's header and body. The caller sends `data_len` bytes of data right after them.
    pub fn encode_head(&self, out: &mut BytesMut, head: Head, data_len: usize) {
        self.encode_as(out, Kind::Runs, 0, head, data_len);
    }

    /// The same for a message of another kind, with flags where [`super::Runs`] has none.
    pub(super) fn encode_as(&self, out: &mut BytesMut, kind: Kind, flags: u32, head: Head, data_len: usize) {
        let start = begin_frame(out);
        out.put_u32_le(self.count as u32);
        out.put_u32_le(flags);
        out.put_slice(&self.encoded);
        finish_frame(out, start, kind, head, data_len);
    }
}

/// A [`super::Runs`] message that was received and checked, its runs still encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedRuns {
    body: Bytes,
}

/// Where the flags stand in a body, after `count u32`,
const FLAGS_AT: usize = 4;
/// and where the runs begin.
const RUNS_AT: usize = 8;

/// Decodes what precedes the runs of a body.
pub(super) fn decode_count(decoder: &mut Decoder<'_>) -> Result<usize, DecodeError> {
    let count = decoder.u32("run count")? as usize;
    zero("runs reserved", decoder.u32("runs reserved")?.into())?;
    at_most("run count", count, limits::RUNS_MAX_COUNT, "at most 4096 runs")?;
    Ok(count)
}

impl ReceivedRuns {
    /// Checks a body, whatever its flags, and returns the bytes of data that its runs list.
    pub(super) fn decode(body: &Bytes) -> Result<(Self, u64), DecodeError> {
        let mut decoder = Decoder::new(body);
        let count = decoder.u32("run count")? as usize;
        decoder.u32("runs flags")?;
        at_most("run count", count, limits::RUNS_MAX_COUNT, "at most 4096 runs")?;
        let mut listed_bytes = 0;
        for _ in 0..count {
            listed_bytes += RunRef::decode(&mut decoder)?.data_bytes();
        }
        decoder.finish()?;
        Ok((Self { body: body.clone() }, listed_bytes))
    }

    /// The flags of the body.
    pub(super) fn flags(&self) -> u32 {
        let flags = self.body[FLAGS_AT..].first_chunk().expect("it was checked when it was received");
        u32::from_le_bytes(*flags)
    }

    /// The runs in order.
    pub fn runs(&self) -> impl Iterator<Item = RunRef<'_>> {
        let mut decoder = Decoder::new(&self.body[RUNS_AT..]);
        std::iter::from_fn(move || {
            (decoder.left() > 0).then(|| RunRef::decode(&mut decoder).expect("checked when it was received"))
        })
    }
}

impl Message for ReceivedRuns {
    const KIND: Kind = Kind::Runs;

    fn encode_body(&self, out: &mut BytesMut) {
        out.put_slice(&self.body);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let (runs, listed_bytes) = Self::decode(body)?;
        zero("runs reserved", runs.flags().into())?;
        check_data(listed_bytes, data_len)?;
        Ok(runs)
    }
}
