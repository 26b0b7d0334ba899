//! The last entry of a stream before a log position.
//!
//! An entry says where its stream's position before it was granted. If that is junk it says nothing, and the units are asked: each stripe
//! looks from there down for the last entry that it has of the stream, and the highest of those is the one.

use std::ops::Range;
use std::rc::Rc;

use super::error::{ClientError, Phase};
use super::read::{Entry, Hole};
use super::streams::{Answer, Asked, take_entries};
use super::view::View;
use super::{Client, Inner};
use crate::layout::Piece;
use crate::limits;
use crate::pos::{Addr, AddrRange, LogPos, StreamId};
use crate::wire::{StateRef, Wanted};

impl Client {
    /// The last entry of the stream below a log position, cut at the tail; `None` if it has none there, or none that is not trimmed. What
    /// is not decided between the two waits `hole_wait` and is filled then.
    ///
    /// Units look through what they remember of their addresses, block by block; through what they do not, at the cost of their
    /// footers. Errors: `Damaged`, and those of any call.
    pub async fn last_before(&self, stream: StreamId, below: LogPos) -> Result<Option<Entry>, ClientError> {
        self.inner.last_before(stream, below).await
    }
}

/// What a look has come to.
enum Looked {
    Found(Option<Entry>),
    /// Nothing is known below this position yet.
    Lower(LogPos),
    /// These have to be decided first.
    Holes(Vec<Hole>),
}

impl Inner {
    pub(super) async fn last_before(
        self: &Rc<Self>,
        stream: StreamId,
        below: LogPos,
    ) -> Result<Option<Entry>, ClientError> {
        let tail = if below <= self.known_tail.get() { below } else { self.tail().await? };
        let (wanted, limit_bytes) = (Wanted::Stream(stream), limits::READ_MAX_BYTES);
        let asked = Asked { wanted, heads_only: false, last_only: true, limit_bytes };
        let mut below = below.min(tail);
        let mut waited = false;
        let deadline = self.deadline();
        loop {
            let looked = self
                .retrying(Phase::Read, deadline, async |inner: &Rc<Inner>, view| {
                    let looked = inner.look_back(view, asked, below).await?;
                    if let Looked::Holes(holes) = &looked
                        && waited
                    {
                        inner.fill_holes(view, holes, deadline).await?;
                    }
                    Ok(looked)
                })
                .await;
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
                    match self.last_of(Asked { last_only: false, ..asked }, pos..below).await? {
                        Some(entry) => return Ok(Some(entry)),
                        None => below = pos,
                    }
                }
                Err(error) => return Err(error),
            }
            if self.env.now() >= deadline {
                return Err(ClientError::Slow { phase: Phase::Read, waited: self.options.timeout });
            }
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
            last = part.entries.pop().or(last);
            next = part.upto;
        }
        Ok(last)
    }

    /// Asks every stripe of the range that ends at `below`, or that `below` lies in.
    async fn look_back(
        self: &Rc<Self>,
        view: &View,
        asked: Asked,
        below: LogPos,
    ) -> Result<Looked, ClientError> {
        let Some(range) = view.layout.ranges.iter().rev().find(|range| range.start < below) else {
            return Ok(Looked::Found(None));
        };
        let pieces = view.layout.pieces(range.start, below);
        let answers = self.ask_stripes(view, asked, &pieces).await?;
        let mut last: Option<Entry> = None;
        // Of positions below this one not every stripe has said what it has.
        let mut lowest = range.start;
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
        // Another replica may show less than was asked for, and then says nothing of what comes last.
        if all.last().is_none_or(|run| run.range().end != addrs.end) {
            shown.hole = hole(last);
            return Ok(shown);
        }
        let mut entries = Vec::new();
        for run in &all {
            match run.state {
                StateRef::Unwritten => shown.hole = hole(run.range()),
                StateRef::Data { meta, table, .. } => {
                    let data = (!is_heads_only).then_some(&mut data);
                    take_entries(run, meta, table, data, origin, |addr| piece.find(addr), &mut entries)?;
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
