//! What stripes have answered of streams, put together: entries in the order of the log, or where streams are left by them.

use bytes::Bytes;
use ithaca_env::codec::DecodeError;

use super::error::ClientError;
use super::read::{Entry, EntryKind, Hole, Origin};
use crate::entry::{EntryMeta, StreamPlace};
use crate::layout::Piece;
use crate::pos::{Addr, AddrRange, Epoch, LogPos, StreamId, StreamPos};
use crate::wire::{Kind, MessageError, ReceivedRuns, RunRef, StateRef, table_entries};

/// A piece of a stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StreamPart {
    /// Every entry of the stream from where the read began up to `upto`, in the order of the log, but for those that are trimmed.
    pub entries: Vec<Entry>,
    /// The log position up to which that is so: to be read on from.
    pub upto: LogPos,
    /// The highest position below `upto` that was seen to be trimmed: whatever stood there is left out.
    pub trimmed: Option<LogPos>,
}

/// Where streams are left by a piece of the log.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamEnds {
    /// Streams, each by entries that stand in the piece, perhaps more than once and in no order; and perhaps by some behind it.
    pub(crate) ends: Vec<StreamEnd>,
    /// The log position up to which every entry is counted: to be read on from.
    pub(crate) upto: LogPos,
    /// The highest position below `upto` that was seen to be trimmed.
    pub(crate) trimmed: Option<LogPos>,
}

/// An entry of a stream, by its position there and in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamEnd {
    pub(crate) stream: StreamId,
    pub(crate) position: StreamPos,
    pub(crate) pos: LogPos,
}

/// What is put together of the answers of several stripes.
pub(super) trait Part: Default {
    /// Nothing, up to there.
    fn up_to(upto: LogPos) -> Self;

    /// Up to where it goes.
    fn upto(&self) -> LogPos;

    /// Adds what was asked for of one position, from whichever replica.
    fn add_entry(&mut self, entry: Entry);

    /// Adds a run that a unit has sent.
    fn add_run(
        &mut self,
        piece: &Piece<'_>,
        run: &SentRun<'_>,
        data: Option<&mut Bytes>,
    ) -> Result<(), ClientError>;

    /// It goes up to `end`; `trimmed` is the highest position below that was seen to be trimmed.
    fn settle(&mut self, end: LogPos, trimmed: Option<LogPos>);
}

/// A run of entries as it was sent.
pub(super) struct SentRun<'a> {
    pub(super) run: RunRef<'a>,
    pub(super) epoch: Epoch,
    pub(super) meta: &'a [u8],
    pub(super) table: &'a [u8],
    pub(super) origin: Origin,
}

impl Part for StreamPart {
    fn up_to(upto: LogPos) -> Self {
        Self { upto, ..Self::default() }
    }

    fn upto(&self) -> LogPos {
        self.upto
    }

    fn add_entry(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    fn add_run(
        &mut self,
        piece: &Piece<'_>,
        run: &SentRun<'_>,
        data: Option<&mut Bytes>,
    ) -> Result<(), ClientError> {
        run.take_entries(piece, data, &mut self.entries)
    }

    fn settle(&mut self, end: LogPos, trimmed: Option<LogPos>) {
        self.entries.sort_unstable_by_key(|entry| entry.pos);
        // Heads of every stream come with those of entries that share a run with them.
        self.entries.retain(|entry| entry.pos < end && !entry.streams.is_empty());
        (self.upto, self.trimmed) = (end, trimmed);
    }
}

impl Part for StreamEnds {
    fn up_to(upto: LogPos) -> Self {
        Self { upto, ..Self::default() }
    }

    fn upto(&self) -> LogPos {
        self.upto
    }

    fn add_entry(&mut self, entry: Entry) {
        let end = |place: &StreamPlace| StreamEnd {
            stream: place.stream,
            position: place.position,
            pos: entry.pos,
        };
        self.ends.extend(entry.streams.iter().map(end));
    }

    fn add_run(
        &mut self,
        piece: &Piece<'_>,
        run: &SentRun<'_>,
        _: Option<&mut Bytes>,
    ) -> Result<(), ClientError> {
        let each = |stream, position, addr| {
            let pos = piece.find(addr);
            self.ends.extend(pos.map(|pos| StreamEnd { stream, position, pos }));
        };
        let ends = EntryMeta::each_end(run.meta, run.run.range(), each);
        ends.map_err(|error| malformed(run.origin, error))
    }

    fn settle(&mut self, end: LogPos, trimmed: Option<LogPos>) {
        (self.upto, self.trimmed) = (end, trimmed);
    }
}

/// What a unit has answered.
pub(super) struct Answer {
    pub(super) runs: ReceivedRuns,
    pub(super) is_heads_only: bool,
    pub(super) data: Bytes,
    pub(super) origin: Origin,
}

/// Answers that are put together.
pub(super) struct Share<P> {
    part: P,
    holes: Vec<Hole>,
    /// Addresses that are trimmed, each with the number of its piece.
    trimmed: Vec<(usize, AddrRange)>,
    /// The highest position that the layout has left out as trimmed.
    forgotten: Option<LogPos>,
    /// Nothing at or past this position is known for sure.
    end: LogPos,
}

impl<P: Part> Share<P> {
    /// Nothing yet, of positions below `end`.
    pub(super) fn new(end: LogPos) -> Self {
        Self { part: P::default(), holes: Vec::new(), trimmed: Vec::new(), forgotten: None, end }
    }

    /// Positions from `from` on that lie below `start`, where the layout begins, are trimmed.
    pub(super) fn forget(&mut self, from: LogPos, start: LogPos) {
        let end = start.min(self.end);
        self.forgotten = (from < end).then(|| LogPos(end.0 - 1));
    }

    /// What was answered of `pieces`, and the holes among that.
    pub(super) fn put_together(self, pieces: &[Piece<'_>]) -> (P, Vec<Hole>) {
        let Self { mut part, holes, trimmed, forgotten, end } = self;
        let trimmed = trimmed.iter().filter_map(|&(nth, addrs)| highest_below(&pieces[nth], addrs, end));
        part.settle(end, trimmed.chain(forgotten).max());
        (part, holes)
    }

    /// Adds the answer of one piece, by its number.
    pub(super) fn add(
        &mut self,
        (nth, piece): (usize, &Piece<'_>),
        answer: Answer,
    ) -> Result<(), ClientError> {
        let Answer { runs, is_heads_only, mut data, origin } = answer;
        let mut next = piece.addrs.start;
        for run in runs.runs() {
            // An answer has no gap: what comes after one counts for nothing.
            if run.addr != next {
                break;
            }
            next = run.range().end;
            match run.state {
                StateRef::Unwritten => {
                    let addrs = run.range();
                    self.end = self.end.min(piece.find(addrs.start).unwrap_or(self.end));
                    self.holes.push(Hole { replicas: piece.replicas.to_vec(), addrs });
                }
                StateRef::Data { epoch, meta, table } => {
                    let data = (!is_heads_only).then_some(&mut data);
                    self.part.add_run(piece, &SentRun { run, epoch, meta, table, origin }, data)?;
                }
                StateRef::Junk { .. } => {}
                StateRef::Trimmed => self.trimmed.push((nth, run.range())),
            }
        }
        if next < piece.addrs.end {
            self.end = self.end.min(piece.find(next).unwrap_or(self.end));
        }
        Ok(())
    }
}

impl SentRun<'_> {
    /// Adds the entries of a run of `piece`, their data off the front of `data` if there is any.
    pub(super) fn take_entries(
        &self,
        piece: &Piece<'_>,
        mut data: Option<&mut Bytes>,
        entries: &mut Vec<Entry>,
    ) -> Result<(), ClientError> {
        let meta = EntryMeta::decode(self.meta).map_err(|error| malformed(self.origin, error))?;
        for (nth, (len, checksum)) in (0..).zip(table_entries(self.table)) {
            let addr = Addr(self.run.addr.0 + nth);
            let own = data.as_mut().map(|data| data.split_to(len));
            let Some(pos) = piece.find(addr) else { continue };
            if own.as_ref().is_some_and(|own| crc32c::crc32c(own) != checksum) {
                return Err(ClientError::Damaged { pos });
            }
            let streams = meta.places_at(addr, pos);
            let (kind, epoch, data) = (EntryKind::Data, self.epoch, own.unwrap_or_default());
            entries.push(Entry { pos, kind, epoch, streams, data });
        }
        Ok(())
    }
}

fn malformed(origin: Origin, error: DecodeError) -> ClientError {
    origin.failed(MessageError::Malformed { kind: Kind::StreamRuns, error }.into())
}

/// The highest position below `end` of addresses of a piece. Positions of a stripe ascend with its addresses.
fn highest_below(piece: &Piece<'_>, addrs: AddrRange, end: LogPos) -> Option<LogPos> {
    let is_below = |addr: u64| piece.find(Addr(addr)).is_some_and(|pos| pos < end);
    let (mut first, mut past) = (addrs.start.0, addrs.end.0);
    while first < past {
        let middle = first + (past - first) / 2;
        if is_below(middle) {
            first = middle + 1;
        } else {
            past = middle;
        }
    }
    (first > addrs.start.0).then(|| piece.find(Addr(first - 1))).flatten()
}
