//! Reading streams.
//!
//! A stream's entries lie on every stripe of the log. Each stripe is asked for its share of the stream in a range of log positions, all at
//! the same time, and the shares are merged in the order of the log. A unit says how far it has looked, so that what is not in the
//! answer is not in the stream. (Wei 4.1 and 4.2; docs/protocol/streams.md)

use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;

use super::error::{ClientError, Phase};
use super::read::{Entry, EntryKind, Hole, Origin, all_or_failed};
use super::view::View;
use super::{Client, Inner};
use crate::entry::EntryMeta;
use crate::layout::Piece;
use crate::limits;
use crate::pos::{Addr, AddrRange, LogPos, NodeId, StreamId};
use crate::wire::{
    Kind, MessageError, ReadStream, ReceivedRuns, RunRef, StateRef, StreamRuns, Wanted, table_entries,
};

/// Stripes that are asked at the same time, if there are more ranges of the layout than one.
const PIECES_MAX: usize = 64;
/// Each stripe is asked for so many bytes at least.
const PIECE_MIN_BYTES: usize = 16 << 10;

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

/// What is wanted of some positions.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub(super) wanted: Wanted,
    pub(super) heads_only: bool,
    /// Only the last entry; units look from the end down.
    pub(super) last_only: bool,
    /// Of all stripes together, about.
    pub(super) limit_bytes: usize,
}

impl Asked {
    /// What to ask a unit for, one of `count` stripes.
    fn read(self, committed: bool, count: usize, addrs: AddrRange) -> ReadStream {
        let share = (self.limit_bytes / count.max(1)).clamp(PIECE_MIN_BYTES, limits::READ_MAX_BYTES);
        let Self { wanted, heads_only, last_only, .. } = self;
        let (limit_bytes, ranges) = (share as u32, vec![addrs]);
        ReadStream { limit_bytes, committed, heads_only, last_only, wanted, ranges }
    }

    /// Whether an entry is one of those.
    fn is_met(self, entry: &Entry) -> bool {
        match self.wanted {
            Wanted::Stream(stream) => entry.streams.iter().any(|place| place.stream == stream),
            Wanted::EveryStream => !entry.streams.is_empty(),
        }
    }
}

impl Client {
    /// Reads a piece of the stream between two log positions, cut at the tail: about `limit_bytes` of it. What the part covers is at least
    /// one position, unless the range is empty or begins at the tail; there may be no entry in it. Read on from `upto` for the rest.
    ///
    /// A hole at the first position waits `hole_wait` and is filled then; the part ends before one further on. Errors: `Damaged` (no
    /// replica has the entry), and those of any call.
    pub async fn read_stream(
        &self,
        stream: StreamId,
        range: Range<LogPos>,
        limit_bytes: usize,
    ) -> Result<StreamPart, ClientError> {
        let asked =
            Asked { wanted: Wanted::Stream(stream), heads_only: false, last_only: false, limit_bytes };
        self.inner.stream_part(asked, range).await
    }

    /// The places of the entries of every stream between two log positions, as of [`Client::read_stream`]; without their data.
    pub async fn stream_heads(
        &self,
        range: Range<LogPos>,
        limit_bytes: usize,
    ) -> Result<StreamPart, ClientError> {
        let asked = Asked { wanted: Wanted::EveryStream, heads_only: true, last_only: false, limit_bytes };
        self.inner.stream_part(asked, range).await
    }
}

impl Inner {
    /// Reads a piece of what was asked for.
    pub(super) async fn stream_part(
        self: &Rc<Self>,
        asked: Asked,
        range: Range<LogPos>,
    ) -> Result<StreamPart, ClientError> {
        let Range { start: from, end } = range;
        let tail = if end <= self.known_tail.get() { end } else { self.tail().await? };
        let mut to = end.min(tail);
        if from >= to {
            return Ok(StreamPart { upto: from, ..StreamPart::default() });
        }
        let deadline = self.deadline();
        let mut waited = false;
        loop {
            let read = self
                .retrying(Phase::Read, deadline, async |inner: &Rc<Inner>, view| {
                    let (part, holes) = inner.scan_stream(view, asked, from..to).await?;
                    if waited && part.upto == from {
                        inner.fill_holes(view, &holes, deadline).await?;
                    }
                    Ok(part)
                })
                .await;
            let part = match read {
                Err(ClientError::Damaged { pos }) if pos == from => {
                    return self.copied_part(asked, pos, deadline).await;
                }
                Err(ClientError::Damaged { pos }) if from < pos && pos < to => {
                    // What comes before it first.
                    to = pos;
                    continue;
                }
                read => read?,
            };
            if part.upto > from {
                return Ok(part);
            }
            if !waited {
                self.env.sleep(self.options.hole_wait).await;
                waited = true;
            } else if self.env.now() >= deadline {
                return Err(ClientError::Slow { phase: Phase::Fill, waited: self.options.timeout });
            }
        }
    }

    /// A position that is damaged on the last replica, from another one.
    async fn copied_part(
        self: &Rc<Self>,
        asked: Asked,
        pos: LogPos,
        deadline: ithaca_env::Time,
    ) -> Result<StreamPart, ClientError> {
        let mut entry = self.read_copy(pos, deadline).await?;
        if asked.heads_only {
            entry.data = Bytes::new();
        }
        let entry_kind = entry.kind;
        let entries = if asked.is_met(&entry) { vec![entry] } else { Vec::new() };
        let trimmed = (entry_kind == EntryKind::Trimmed).then_some(pos);
        Ok(StreamPart { entries, upto: LogPos(pos.0 + 1), trimmed })
    }

    /// What the units have of `range` up to the first hole or the end of what they gave, and the holes that were seen.
    async fn scan_stream(
        self: &Rc<Self>,
        view: &View,
        asked: Asked,
        range: Range<LogPos>,
    ) -> Result<(StreamPart, Vec<Hole>), ClientError> {
        let to = few_ranges(view, &range);
        let pieces = view.layout.pieces(range.start, to);
        let answers = self.ask_stripes(view, asked, &pieces).await?;
        let mut share = Share { entries: Vec::new(), holes: Vec::new(), trimmed: Vec::new(), end: to };
        for (nth, (piece, answer)) in pieces.iter().zip(answers).enumerate() {
            share.add((nth, piece), answer)?;
        }
        let Share { mut entries, holes, trimmed, end } = share;
        entries.sort_unstable_by_key(|entry| entry.pos);
        entries.retain(|entry| entry.pos < end);
        let trimmed =
            trimmed.iter().filter_map(|&(nth, addrs)| highest_below(&pieces[nth], addrs, end)).max();
        Ok((StreamPart { entries, upto: end, trimmed }, holes))
    }

    /// Asks every stripe at the same time.
    pub(super) async fn ask_stripes(
        self: &Rc<Self>,
        view: &View,
        asked: Asked,
        pieces: &[Piece<'_>],
    ) -> Result<Vec<Answer>, ClientError> {
        all_or_failed(pieces.iter().map(|piece| self.stream_at(view, asked, piece, pieces.len()))).await
    }

    /// Asks the replicas of one stripe.
    async fn stream_at(
        self: &Rc<Self>,
        view: &View,
        asked: Asked,
        piece: &Piece<'_>,
        count: usize,
    ) -> Result<Answer, ClientError> {
        let ask = |unit, committed| {
            let read = asked.read(committed, count, piece.addrs);
            async move { self.ask_stream(view, unit, read).await }
        };
        self.ask_replicas(piece.replicas, ask).await
    }

    async fn ask_stream(
        self: &Rc<Self>,
        view: &View,
        unit: NodeId,
        read: ReadStream,
    ) -> Result<Answer, ClientError> {
        let (runs, data, origin) = self.ask_unit::<_, StreamRuns>(view, unit, read).await?;
        Ok(Answer { is_heads_only: runs.is_heads_only(), runs: runs.runs, data, origin })
    }
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

/// Where to end, so that not too many stripes are asked: where a range of the layout ends.
fn few_ranges(view: &View, range: &Range<LogPos>) -> LogPos {
    let mut stripes = 0;
    let of_range = view.layout.ranges.iter().filter(|it| it.start < range.end && range.start < it.end);
    for it in of_range {
        stripes += it.stripes.len();
        if stripes > PIECES_MAX && it.start > range.start {
            return it.start;
        }
    }
    range.end
}

/// What a unit has answered.
pub(super) struct Answer {
    pub(super) runs: ReceivedRuns,
    pub(super) is_heads_only: bool,
    pub(super) data: Bytes,
    pub(super) origin: Origin,
}

/// Answers that are put together.
struct Share {
    entries: Vec<Entry>,
    holes: Vec<Hole>,
    /// Addresses that are trimmed, each with the number of its piece.
    trimmed: Vec<(usize, AddrRange)>,
    /// Nothing at or past this position is known for sure.
    end: LogPos,
}

impl Share {
    fn add(&mut self, (nth, piece): (usize, &Piece<'_>), answer: Answer) -> Result<(), ClientError> {
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
                StateRef::Data { meta, table, .. } => {
                    let data = (!is_heads_only).then_some(&mut data);
                    take_entries(
                        &run,
                        meta,
                        table,
                        data,
                        origin,
                        |addr| piece.find(addr),
                        &mut self.entries,
                    )?;
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

/// The entries of a run, their data off the front of `data` if there is any.
pub(super) fn take_entries(
    run: &RunRef<'_>,
    meta: &[u8],
    table: &[u8],
    mut data: Option<&mut Bytes>,
    origin: Origin,
    position: impl Fn(Addr) -> Option<LogPos>,
    entries: &mut Vec<Entry>,
) -> Result<(), ClientError> {
    let malformed = |error| origin.failed(MessageError::Malformed { kind: Kind::StreamRuns, error }.into());
    let meta = EntryMeta::decode(meta).map_err(malformed)?;
    for (nth, (len, checksum)) in (0..).zip(table_entries(table)) {
        let addr = Addr(run.addr.0 + nth);
        let own = data.as_mut().map(|data| data.split_to(len));
        let Some(pos) = position(addr) else { continue };
        if own.as_ref().is_some_and(|own| crc32c::crc32c(own) != checksum) {
            return Err(ClientError::Damaged { pos });
        }
        let streams = meta.places_at(addr, pos);
        entries.push(Entry { pos, kind: EntryKind::Data, streams, data: own.unwrap_or_default() });
    }
    Ok(())
}
