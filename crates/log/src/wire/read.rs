//! Reading runs of entries, once or as they become readable.

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_chain::{Run, RunKind, Table};
use ithaca_env::codec::{DecodeError, Decoder};

use super::runs::{RUN_HEAD_BYTES, RunRef, StateRef, decode_count};
use super::write::check_data;
use super::{Kind, Message, at_most, no_data, zero};
use crate::limits;
use crate::pos::{Addr, AddrRange, Epoch};

/// Reads addresses. Body: `limit_bytes u32`, `committed u8` (1 or 0), `reserved u8`, `reserved u16`, then ranges: `count u32`, and
/// for each `start u64`, `end u64`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// Stop after this many bytes of body and data; at least one entry is returned. At most
    /// [`limits::READ_MAX_BYTES`]. Heads and tables count, so that a reply of very small entries ends too.
    pub limit_bytes: u32,
    /// Whether only what is known to be on every replica is wanted, from whichever replica this is and in whatever epoch.
    pub committed: bool,
    /// What to read, none empty; at most [`limits::RANGES_MAX_COUNT`].
    pub ranges: Vec<AddrRange>,
}

/// What addresses hold. In reply to a read, the runs cover the ranges that were asked for, in order and without gaps, up
/// to where a limit cut them off, or what is known to be on every replica. To a subscriber, they follow each other without gaps from the address it asked for;
/// none is unwritten.
///
/// Body: `count u32`, `reserved u32`, then for each run, 32 bytes and more: `addr u64`, `count u64`, `epoch u64`, `kind
/// u8` (1 data, 2 junk, 3 trimmed, 4 unwritten), `reserved u8`, `meta_len u16`, `reserved u32`; then, for data only, meta
/// and table. Epoch is 0 for trimmed and unwritten. Data: that of all runs, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    /// In order of their addresses within each range.
    pub runs: Vec<RunHead>,
}

/// What consecutive addresses hold, without the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunHead {
    /// The first address.
    pub addr: Addr,
    /// How many addresses.
    pub count: u64,
    /// What they hold.
    pub state: RunState,
}

/// What addresses hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunState {
    /// Entries.
    Data {
        /// The epoch that they were written in.
        epoch: Epoch,
        /// Whose they are: an encoded [`crate::entry::EntryMeta`].
        meta: Bytes,
        /// Length and checksum of each.
        table: Table,
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

/// Asks for everything from `addr` on, in order, as it becomes readable: resolved and durable, with nothing unresolved
/// below it. Answered by [`Runs`] frames flagged [`super::FLAG_PUSH`] with this request's id, until [`Unsubscribe`]
/// or an end of the connection; a [`super::Refusal`] with that id ends it too. Body, 16 bytes: `addr u64`, `credit u64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscribe {
    /// Where to begin.
    pub addr: Addr,
    /// Bytes (bodies and data) that may be pushed before more credit comes. A push begins while any credit is left and
    /// may overdraw it. At most [`limits::CREDIT_MAX_BYTES`].
    pub credit_bytes: u64,
}

/// Gives the subscription that the head's request id names more credit. Has no reply. Body, 8 bytes: `credit u64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// Bytes to add.
    pub credit_bytes: u64,
}

/// Ends the subscription that the head's request id names. Answered by an empty [`Runs`] flagged [`super::FLAG_PUSH`]
/// and [`super::FLAG_END`]. Body: empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unsubscribe;

impl RunHead {
    /// The head of a run that is stored. Its data goes into the frame's data.
    pub fn of_run(run: &Run) -> Self {
        let epoch = Epoch(run.version);
        let state = match run.kind {
            RunKind::Data => RunState::Data { epoch, meta: run.meta.clone(), table: run.table.clone() },
            RunKind::Junk => RunState::Junk { epoch },
        };
        Self { addr: Addr(run.first_key), count: run.count(), state }
    }

    /// The addresses.
    pub fn range(&self) -> AddrRange {
        AddrRange::new(self.addr, Addr(self.addr.0 + self.count))
    }

    /// Bytes that it takes in the body of a reply.
    pub fn body_bytes(&self) -> usize {
        self.as_ref().body_bytes()
    }

    /// Bytes of its data.
    pub fn data_bytes(&self) -> u64 {
        self.as_ref().data_bytes()
    }

    pub(super) fn as_ref(&self) -> RunRef<'_> {
        let state = match &self.state {
            RunState::Data { epoch, meta, table } => {
                StateRef::Data { epoch: *epoch, meta, table: table.as_bytes() }
            }
            RunState::Junk { epoch } => StateRef::Junk { epoch: *epoch },
            RunState::Trimmed => StateRef::Trimmed,
            RunState::Unwritten => StateRef::Unwritten,
        };
        RunRef { addr: self.addr, count: self.count, state }
    }

    /// The same over shared bytes: `run` lies in `body`.
    fn of_ref(run: RunRef<'_>, body: &Bytes) -> Self {
        let state = match run.state {
            StateRef::Data { epoch, meta, table } => {
                let table = Table::from_bytes(body.slice_ref(table)).expect("whole entries were taken");
                RunState::Data { epoch, meta: body.slice_ref(meta), table }
            }
            StateRef::Junk { epoch } => RunState::Junk { epoch },
            StateRef::Trimmed => RunState::Trimmed,
            StateRef::Unwritten => RunState::Unwritten,
        };
        Self { addr: run.addr, count: run.count, state }
    }
}

impl Runs {
    /// The heads, each with its part of `data`, the data of the frame. The parts are shared, not copied, and not checked:
    /// the reader compares each with its table.
    pub fn with_data(self, data: Bytes) -> impl Iterator<Item = (RunHead, Bytes)> {
        let mut rest = data;
        self.runs.into_iter().map(move |head| {
            let len = usize::try_from(head.data_bytes()).unwrap_or(usize::MAX).min(rest.len());
            let part = rest.split_to(len);
            (head, part)
        })
    }
}

impl Message for Runs {
    const KIND: Kind = Kind::Runs;

    fn encode_body(&self, out: &mut BytesMut) {
        assert!(self.runs.len() <= limits::RUNS_MAX_COUNT, "{} runs", self.runs.len());
        out.put_u32_le(self.runs.len() as u32);
        out.put_u32_le(0);
        for run in &self.runs {
            run.as_ref().encode(out);
        }
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let count = decode_count(&mut decoder)?;
        let mut runs = Vec::with_capacity(count.min(decoder.left() / RUN_HEAD_BYTES));
        let mut listed_bytes = 0;
        for _ in 0..count {
            let run = RunHead::of_ref(RunRef::decode(&mut decoder)?, body);
            listed_bytes += run.data_bytes();
            runs.push(run);
        }
        decoder.finish()?;
        check_data(listed_bytes, data_len)?;
        Ok(Self { runs })
    }
}

impl Message for Read {
    const KIND: Kind = Kind::Read;

    fn encode_body(&self, out: &mut BytesMut) {
        assert!(self.limit_bytes as usize <= limits::READ_MAX_BYTES, "a read of {} bytes", self.limit_bytes);
        out.put_u32_le(self.limit_bytes);
        out.put_u8(self.committed.into());
        out.put_u8(0);
        out.put_u16_le(0);
        encode_ranges(&self.ranges, out);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let limit_bytes = decoder.u32("read limit")?;
        at_most("read limit", limit_bytes as usize, limits::READ_MAX_BYTES, "at most 4 MiB")?;
        let committed = match decoder.u8("committed")? {
            flag @ (0 | 1) => flag == 1,
            found => {
                let found = found.into();
                return Err(DecodeError::Invalid { field: "committed", found, expected: "1 or 0" });
            }
        };
        zero("read reserved", decoder.u8("read reserved")?.into())?;
        zero("read reserved", decoder.u16("read reserved")?.into())?;
        let ranges = decode_ranges(&mut decoder)?;
        decoder.finish()?;
        no_data(data_len)?;
        Ok(Self { limit_bytes, committed, ranges })
    }
}

impl Message for Subscribe {
    const KIND: Kind = Kind::Subscribe;

    fn encode_body(&self, out: &mut BytesMut) {
        out.put_u64_le(self.addr.0);
        out.put_u64_le(self.credit_bytes);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let addr = Addr(decoder.u64("first address")?);
        let credit_bytes = decoder.u64("credit")?;
        decoder.finish()?;
        no_data(data_len)?;
        check_credit(credit_bytes)?;
        Ok(Self { addr, credit_bytes })
    }
}

impl Message for Credit {
    const KIND: Kind = Kind::Credit;

    fn encode_body(&self, out: &mut BytesMut) {
        out.put_u64_le(self.credit_bytes);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let credit_bytes = decoder.u64("credit")?;
        decoder.finish()?;
        no_data(data_len)?;
        check_credit(credit_bytes)?;
        Ok(Self { credit_bytes })
    }
}

impl Message for Unsubscribe {
    const KIND: Kind = Kind::Unsubscribe;

    fn encode_body(&self, _out: &mut BytesMut) {}

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        Decoder::new(body).finish()?;
        no_data(data_len)?;
        Ok(Self)
    }
}

fn check_credit(credit_bytes: u64) -> Result<(), DecodeError> {
    if credit_bytes <= limits::CREDIT_MAX_BYTES {
        return Ok(());
    }
    Err(DecodeError::Invalid { field: "credit", found: credit_bytes, expected: "at most 1 GiB" })
}

/// Ranges: `count u32`, then `start u64`, `end u64` each.
pub(super) fn encode_ranges(ranges: &[AddrRange], out: &mut BytesMut) {
    assert!(ranges.len() <= limits::RANGES_MAX_COUNT, "{} ranges", ranges.len());
    out.put_u32_le(ranges.len() as u32);
    for range in ranges {
        out.put_u64_le(range.start.0);
        out.put_u64_le(range.end.0);
    }
}

/// A body that is ranges and nothing else, without data.
pub(super) fn decode_ranges_only(body: &[u8], data_len: usize) -> Result<Vec<AddrRange>, DecodeError> {
    let mut decoder = Decoder::new(body);
    let ranges = decode_ranges(&mut decoder)?;
    decoder.finish()?;
    no_data(data_len)?;
    Ok(ranges)
}

pub(super) fn decode_ranges(decoder: &mut Decoder<'_>) -> Result<Vec<AddrRange>, DecodeError> {
    let count = decoder.u32("range count")? as usize;
    at_most("range count", count, limits::RANGES_MAX_COUNT, "at most 1024 ranges")?;
    let mut ranges = Vec::with_capacity(count.min(decoder.left() / 16));
    for _ in 0..count {
        let start = Addr(decoder.u64("range start")?);
        let end = Addr(decoder.u64("range end")?);
        if end <= start {
            return Err(DecodeError::Invalid {
                field: "range end",
                found: end.0,
                expected: "an end after the start",
            });
        }
        ranges.push(AddrRange::new(start, end));
    }
    Ok(ranges)
}
