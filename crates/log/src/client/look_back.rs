//! The last entry of a stream before a log position.
//!
//! An entry says where its stream's position before it was granted. If that is junk it says nothing, and the units are asked: each stripe
//! looks from there down for the last entry that it has of the stream, and the highest of those is the one.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use super::error::{ClientError, Phase};
use super::read::{Entry, Hole};
use super::stream_parts::{Answer, SentRun};
use super::streams::{Asked, Shows};
use super::view::View;
use super::{CallError, Client, Inner};
use crate::layout::Piece;
use crate::limits;
use crate::pos::{Addr, AddrRange, LogPos, StreamId};
use crate::stream::StreamTail;
use crate::wire::{Kind, StateRef, Wanted};

impl Client {
    /// The last entry of the stream below a log position, cut at the tail; `None` if it has none there, or none that is not trimmed. What
    /// is not decided between the two waits `hole_wait` and is filled then.
    ///
    /// Units look through what they remember of their addresses, block by block; through what they do not, at the cost of their
    /// footers. Errors: `Damaged`, and those of any call.
    pub async fn last_before(&self, stream: StreamId, below: LogPos) -> Result<Option<Entry>, ClientError> {
        self.inner.last_before(stream, LogPos(0)..below).await
    }

    /// The newest entry of the stream, as of [`Client::last_before`]: the sequencer says where to begin, so that a unit need not look through
    /// what others appended since.
    pub async fn newest(&self, stream: StreamId) -> Result<Option<Entry>, ClientError> {
        let tails = self.stream_tails(&[stream]).await?;
        match tails.streams.first().and_then(StreamTail::bound) {
            Some(bound) => self.last_before(stream, LogPos(bound.0 + 1)).await,
            None => Ok(None),
        }
    }

    /// The log positions of a stream's entries from `last` down to one that is trimmed, or to the stream's beginning: the highest first. Where
    /// junk stands between them, the entry before it is looked for among `look_max` positions.
    pub(crate) async fn positions_down(
        &self,
        stream: StreamId,
        last: Option<LogPos>,
        look_max: u64,
    ) -> Result<Vec<LogPos>, ClientError> {
        let (wanted, limit_bytes) = (Wanted::Stream(stream), limits::READ_MAX_BYTES);
        let asked = Asked { wanted, shows: Shows::Heads, limit_bytes };
        let (mut positions, mut at) = (Vec::new(), last);
        while let Some(pos) = at {
            let mut part = self.inner.stream_part(asked, pos..LogPos(pos.0 + 1)).await?;
            let entry = match part.entries.pop() {
                None if part.trimmed.is_some() => break,
                None => self.inner.last_before(stream, LogPos(pos.0.saturating_sub(look_max))..pos).await?,
                found => found,
            };
            let Some(entry) = entry else { break };
            positions.push(entry.pos);
            let place = entry.place_in(stream);
            at = place.and_then(|place| place.end_before().bound()).filter(|at| *at < entry.pos);
        }
        Ok(positions)
    }
}

/// How long a look may take at first before it is made once more: longer than that of a unit that has to read its drive, as a rule.
const LOOK_MIN: Duration = Duration::from_millis(250);

/// What a look has come to.
enum Looked {
    Found(Option<Entry>),
    /// Nothing is known below this position yet.
    Lower(LogPos),
    /// These have to be decided first.
    Holes(Vec<Hole>),
}

impl Inner {
    /// The last entry of a stream in a range of positions.
    pub(super) async fn last_before(
        self: &Rc<Self>,
        stream: StreamId,
        range: Range<LogPos>,
    ) -> Result<Option<Entry>, ClientError> {
        let Range { start: from, end: below } = range;
        let (wanted, limit_bytes) = (Wanted::Stream(stream), limits::READ_MAX_BYTES);
        let asked = Asked { wanted, shows: Shows::Last, limit_bytes };
        let mut below = self.cut_at_tail(below, self.deadline()).await?;
        let (mut waited, mut span) = (false, LOOK_MIN);
        let deadline = self.deadline();
        loop {
            let looking = self.retrying(Phase::Read, deadline, async |inner: &Rc<Inner>, view| {
                let looked = inner.look_back(view, asked, from..below).await?;
                if let Looked::Holes(holes) = &looked
                    && waited
                    && below <= inner.tail_in(view)
                {
                    inner.fill_holes(view, holes, deadline).await?;
                }
                Ok(looked)
            });
            // What is filled is waited for; a look is made again, and longer, since an answer may have been lost.
            let until = if waited { deadline } else { deadline.min(self.env.now() + span) };
            let looked = match self.env.timeout_at(until, looking).await {
                Ok(looked) => looked,
                Err(_) if self.env.now() < deadline => {
                    span *= 2;
                    continue;
                }
                Err(_) => {
                    return Err(ClientError::Slow { phase: Phase::Read, waited: self.options.timeout });
                }
            };
            match looked {
                Ok(Looked::Found(entry)) => return Ok(entry),
                Ok(Looked::Lower(lower)) => below = lower,
                Ok(Looked::Holes(_)) if waited => {}
                Ok(Looked::Holes(_)) => {
                    self.env.sleep(self.options.hole_wait).await;
                    waited = true;
                }
                Err(ClientError::Damaged { pos }) if pos < below => {
                    // Another replica has it, and says whether it is of the stream.
                    match self.last_of(Asked { shows: Shows::Entries, ..asked }, pos..below).await? {
                        Some(entry) => return Ok(Some(entry)),
                        None => below = pos,
                    }
                }
                Err(error) => return Err(error),
            }
            if self.env.now() >= deadline {
                return Err(ClientError::Slow { phase: Phase::Read, waited: self.options.timeout });
            }
            // With its epoch a tail is over.
            below = self.cut_at_tail(below, deadline).await?;
        }
    }

    /// The last entry of what is asked for in a range of positions, read from its beginning on.
    async fn last_of(
        self: &Rc<Self>,
        asked: Asked,
        range: Range<LogPos>,
    ) -> Result<Option<Entry>, ClientError> {
        let (mut next, mut last) = (range.start, None);
        while next < range.end {
            let mut part = self.stream_part(asked, next..range.end).await?;
            if part.upto == next {
                // The log ends here by now.
                break;
            }
            last = part.entries.pop().or(last);
            next = part.upto;
        }
        Ok(last)
    }

    /// Asks every stripe of the layout's range that these positions end in, or at the end of.
    async fn look_back(
        self: &Rc<Self>,
        view: &View,
        asked: Asked,
        positions: Range<LogPos>,
    ) -> Result<Looked, ClientError> {
        let Range { start: from, end: below } = positions;
        let range = view.layout.ranges.iter().rev().find(|range| range.start < below);
        let Some(range) = range.filter(|_| from < below) else {
            return Ok(Looked::Found(None));
        };
        let from = range.start.max(from);
        let pieces = view.layout.pieces(from, below);
        let answers = self.ask_stripes(view, asked, &pieces).await?;
        let mut last: Option<Entry> = None;
        // Of positions below this one not every stripe has said what it has.
        let mut lowest = from;
        let mut holes: Vec<(LogPos, Hole)> = Vec::new();
        for (piece, answer) in pieces.iter().zip(answers) {
            let shown = Shown::of(piece, answer)?;
            lowest = lowest.max(shown.lowest);
            holes.extend(shown.hole);
            if let Some(entry) = shown.entry
                && last.as_ref().is_none_or(|last| last.pos < entry.pos)
            {
                last = Some(entry);
            }
        }
        // What is not decided counts if it may come after what was found.
        holes.retain(|(pos, _)| last.as_ref().is_none_or(|last| last.pos < *pos));
        let is_sure = last.as_ref().is_some_and(|last| lowest <= last.pos);
        Ok(match holes.is_empty() {
            false => Looked::Holes(holes.into_iter().map(|(_, hole)| hole).collect()),
            true if is_sure => Looked::Found(last),
            true => Looked::Lower(lowest),
        })
    }
}

/// What one stripe has answered.
struct Shown {
    entry: Option<Entry>,
    /// From this position on it has said what it has.
    lowest: LogPos,
    /// Addresses that are not decided, and the last position of them.
    hole: Option<(LogPos, Hole)>,
}

impl Shown {
    fn of(piece: &Piece<'_>, answer: Answer) -> Result<Self, ClientError> {
        let Answer { runs, is_heads_only, mut data, origin } = answer;
        let all: Vec<_> = runs.runs().collect();
        let Piece { addrs, replicas, first, .. } = *piece;
        let hole = |addrs: AddrRange| {
            let last = piece.find(Addr(addrs.end.0 - 1)).unwrap_or(first);
            Some((last, Hole { replicas: replicas.to_vec(), addrs }))
        };
        let last = AddrRange::new(Addr(addrs.end.0 - 1), addrs.end);
        let end = piece.find(last.start).map_or(first, |pos| LogPos(pos.0 + 1));
        let mut shown = Self { entry: None, lowest: end, hole: None };
        // A unit says what comes last, or refuses.
        if all.last().is_none_or(|run| run.range().end != addrs.end) {
            let mismatch = CallError::Mismatch { asked: Kind::ReadStream, answered: Kind::StreamRuns };
            return Err(origin.failed(mismatch));
        }
        let mut entries = Vec::new();
        for run in &all {
            match run.state {
                StateRef::Unwritten => shown.hole = hole(run.range()),
                StateRef::Data { epoch, meta, table } => {
                    let data = (!is_heads_only).then_some(&mut data);
                    let sent = SentRun { run: *run, epoch, meta, table, origin };
                    sent.take_entries(piece, data, &mut entries)?;
                }
                StateRef::Junk { .. } | StateRef::Trimmed => {}
            }
        }
        shown.entry = entries.pop();
        // The stripe has nothing before its first address.
        shown.lowest = match all.first() {
            Some(run) if run.addr > addrs.start => piece.find(run.addr).unwrap_or(end),
            _ => LogPos(0),
        };
        Ok(shown)
    }
}
