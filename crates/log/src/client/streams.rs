//! Reading streams.
//!
//! A stream's entries lie on every stripe of the log. Each stripe is asked for its share of the stream in a range of log positions, all at
//! the same time, and the shares are merged in the order of the log. A unit says how far it has looked, so that what is not in the
//! answer is not in the stream. (Wei 4.1 and 4.2; docs/protocol/streams.md)

use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;

use super::error::{ClientError, Phase};
use super::read::{Entry, EntryKind, Hole, all_or_failed};
use super::stream_parts::{Answer, Part, Share, StreamEnds, StreamPart};
use super::view::View;
use super::{Client, Inner};
use crate::layout::{OPEN_END, Piece};
use crate::limits;
use crate::pos::{AddrRange, LogPos, NodeId, StreamId};
use crate::wire::{ReadStream, StreamRuns, Wanted};

/// Stripes that are asked at the same time, if there are more ranges of the layout than one.
const PIECES_MAX: usize = 64;
/// Each stripe is asked for so many bytes at least, if as many are wanted of all.
const PIECE_MIN_BYTES: usize = 16 << 10;

/// What is wanted of some positions.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub(super) wanted: Wanted,
    pub(super) shows: Shows,
    /// Of all stripes together, about.
    pub(super) limit_bytes: usize,
}

/// What is to be shown of the entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shows {
    /// All of them, with their data.
    Entries,
    /// Their places alone.
    Heads,
    /// Where they leave their streams.
    Ends,
    /// Only the last one, with its data; units look from the end down.
    Last,
    /// Those before the first position that a unit would have to look at, with their data.
    Known,
}

impl Asked {
    /// What to ask a unit for, one of `count` stripes.
    pub(super) fn read(self, committed: bool, count: usize, addrs: AddrRange) -> ReadStream {
        let least = PIECE_MIN_BYTES.min(self.limit_bytes);
        let share = (self.limit_bytes / count.max(1)).clamp(least, limits::READ_MAX_BYTES);
        let Self { wanted, shows, .. } = self;
        let (heads_only, last_only) = (shows.is_without_data(), shows == Shows::Last);
        let known_only = shows == Shows::Known;
        let (limit_bytes, ranges) = (share as u32, vec![addrs]);
        ReadStream { limit_bytes, committed, heads_only, last_only, known_only, wait_ms: 0, wanted, ranges }
    }

    /// Whether an entry is one of those.
    fn is_met(self, entry: &Entry) -> bool {
        match self.wanted {
            Wanted::Stream(stream) => entry.place_in(stream).is_some(),
            Wanted::EveryStream => !entry.streams.is_empty(),
            Wanted::Every => true,
        }
    }
}

impl Shows {
    fn is_without_data(self) -> bool {
        matches!(self, Self::Heads | Self::Ends)
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
        let asked = Asked { wanted: Wanted::Stream(stream), shows: Shows::Entries, limit_bytes };
        self.inner.stream_part(asked, range).await
    }

    /// The first piece of the stream from `from` on, about `limit_bytes` of it, as far as the unit has it and knows without a look at
    /// its records whose they are. Nobody is asked where the stream ends, so that it can be read while the sequencer is asked; where the piece ends,
    /// the stream may go on. `None` if the log has several stripes from there on: each would have to be asked, most of them for nothing.
    ///
    /// One attempt, which waits for no writer and fills nothing. Errors: those of any call.
    pub async fn peek_stream(
        &self,
        stream: StreamId,
        from: LogPos,
        limit_bytes: usize,
    ) -> Result<Option<StreamPart>, ClientError> {
        let asked = Asked { wanted: Wanted::Stream(stream), shows: Shows::Known, limit_bytes };
        let view = self.inner.view_by(self.inner.deadline()).await?;
        if view.layout.pieces(from, OPEN_END).len() > 1 {
            return Ok(None);
        }
        let (part, _): (StreamPart, _) = self.inner.scan_stream(&view, asked, from..OPEN_END).await?;
        self.inner.peeks.set(self.inner.peeks.get() + u64::from(!part.entries.is_empty()));
        Ok(Some(part))
    }

    /// How many peeks of this client have shown an entry.
    pub fn peeks(&self) -> u64 {
        self.inner.peeks.get()
    }

    /// The places of the entries of every stream between two log positions, as of [`Client::read_stream`]; without their data.
    pub async fn stream_heads(
        &self,
        range: Range<LogPos>,
        limit_bytes: usize,
    ) -> Result<StreamPart, ClientError> {
        let asked = Asked { wanted: Wanted::EveryStream, shows: Shows::Heads, limit_bytes };
        self.inner.stream_part(asked, range).await
    }

    /// Where the entries of every stream between two log positions leave their streams, as of [`Client::read_stream`].
    pub(crate) async fn stream_ends(
        &self,
        range: Range<LogPos>,
        limit_bytes: usize,
    ) -> Result<StreamEnds, ClientError> {
        let asked = Asked { wanted: Wanted::EveryStream, shows: Shows::Ends, limit_bytes };
        self.inner.read_part(asked, range).await
    }
}

impl Inner {
    /// Reads a piece of what was asked for.
    pub(super) async fn stream_part(
        self: &Rc<Self>,
        asked: Asked,
        range: Range<LogPos>,
    ) -> Result<StreamPart, ClientError> {
        self.read_part(asked, range).await
    }

    /// The same, put together as the caller has it.
    pub(super) async fn read_part<P: Part>(
        self: &Rc<Self>,
        asked: Asked,
        range: Range<LogPos>,
    ) -> Result<P, ClientError> {
        let Range { start: from, end } = range;
        let mut to = self.cut_at_tail(end, self.deadline()).await?;
        let deadline = self.deadline();
        let mut waited = false;
        while from < to {
            let read = self
                .retrying(Phase::Read, deadline, async |inner: &Rc<Inner>, view| {
                    let (part, holes) = inner.scan_stream::<P>(view, asked, from..to).await?;
                    if waited && part.upto() == from && to <= inner.tail_in(view) {
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
            if part.upto() > from {
                return Ok(part);
            }
            if !waited {
                if let Some(part) = self.wait_for_writer(asked, from).await {
                    return Ok(part);
                }
                waited = true;
            } else if self.env.now() >= deadline {
                return Err(ClientError::Slow { phase: Phase::Fill, waited: self.options.timeout });
            }
            // With its epoch a tail is over.
            to = self.cut_at_tail(to, deadline).await?;
        }
        Ok(P::up_to(from))
    }

    /// A position that is damaged on the last replica, from another one.
    async fn copied_part<P: Part>(
        self: &Rc<Self>,
        asked: Asked,
        pos: LogPos,
        deadline: ithaca_env::Time,
    ) -> Result<P, ClientError> {
        let mut entry = self.read_copy(pos, deadline).await?;
        if asked.shows.is_without_data() {
            entry.data = Bytes::new();
        }
        let trimmed = (entry.kind == EntryKind::Trimmed).then_some(pos);
        let mut part = P::default();
        if asked.is_met(&entry) {
            part.add_entry(entry);
        }
        part.settle(LogPos(pos.0 + 1), trimmed);
        Ok(part)
    }

    /// What the units have of `range` up to the first hole or the end of what they gave, and the holes that were seen.
    async fn scan_stream<P: Part>(
        self: &Rc<Self>,
        view: &View,
        asked: Asked,
        range: Range<LogPos>,
    ) -> Result<(P, Vec<Hole>), ClientError> {
        let to = few_ranges(view, &range);
        let pieces = view.layout.pieces(range.start, to);
        let answers = self.ask_stripes(view, asked, &pieces).await?;
        let mut share = Share::new(to);
        // Of what lies below every range nobody needs to be asked.
        share.forget(range.start, view.layout.start());
        for (nth, (piece, answer)) in pieces.iter().zip(answers).enumerate() {
            share.add((nth, piece), answer)?;
        }
        Ok(share.put_together(&pieces))
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
