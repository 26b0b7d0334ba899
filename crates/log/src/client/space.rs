//! Tail, trim, fill.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use ithaca_env::Time;
use ithaca_env::task::gather;

use super::append_to::StreamTails;
use super::decide::Deciding;
use super::error::{ClientError, Phase};
use super::view::View;
use super::{CallError, EntryKind, Inner};
use crate::layout::RangeMap;
use crate::limits;
use crate::pos::{AddrRange, Epoch, LogPos, NodeId, StreamId};
use crate::wire::{Check, Kind, Refusal, Roles, Tail, Taken};

/// Where the log ends and begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The next position: above everything that was acknowledged when it was asked for.
    pub tail: LogPos,
    /// The lowest position that is not trimmed; the tail if all are.
    pub first: LogPos,
}

impl Inner {
    /// The tail alone, from the sequencer.
    pub(super) async fn tail(self: &Rc<Self>) -> Result<LogPos, ClientError> {
        self.tails(&[]).await.map(|tails| tails.tail)
    }

    /// The tail and where streams end, from the sequencer.
    pub(super) async fn tails(self: &Rc<Self>, streams: &[StreamId]) -> Result<StreamTails, ClientError> {
        self.tails_by(streams, self.deadline()).await
    }

    /// The same by `deadline`.
    pub(super) async fn tails_by(
        self: &Rc<Self>,
        streams: &[StreamId],
        deadline: Time,
    ) -> Result<StreamTails, ClientError> {
        let check = Check { streams: streams.to_vec(), ..Check::default() };
        let (tail, streams, epoch) = self
            .retrying(Phase::Check, deadline, async |inner: &Rc<Inner>, view| {
                let sequencer = view.layout.sequencer;
                let (answer, _, _) =
                    inner.call::<_, Tail>(view, sequencer, Phase::Check, &check, deadline).await?;
                let failed = |error| ClientError::Node {
                    addr: view.addr(sequencer),
                    epoch: view.layout.epoch,
                    phase: Phase::Check,
                    error,
                };
                // A node that is being started serves before its sequencer does.
                let not_serving = CallError::Refused(Refusal::NotServing { roles: Roles::SEQUENCER });
                let tail = answer.tail.ok_or_else(|| failed(not_serving))?;
                if answer.streams.len() != check.streams.len() {
                    return Err(failed(CallError::Mismatch { asked: Kind::Check, answered: Kind::Tail }));
                }
                Ok((tail, answer.streams, view.layout.epoch))
            })
            .await?;
        self.note_tail(epoch, tail);
        Ok(StreamTails { epoch, tail, streams })
    }

    /// The sequencer of `epoch` has said where the log ends.
    pub(super) fn note_tail(&self, epoch: Epoch, tail: LogPos) {
        self.note_granted(epoch, tail);
        self.said_tail.set(self.said_tail.get().max((epoch, tail)));
    }

    /// A position that the log has reached, without a question. What was granted in an epoch that is over and never written is not of the
    /// log any more: the next sequencer grants it again.
    pub(super) fn known_tail(&self) -> LogPos {
        let said = self.view().map_or(LogPos(0), |view| self.tail_in(&view));
        said.max(self.decided_tail.get())
    }

    /// The same in the epoch of `view`: below it every position was granted, or is decided.
    pub(super) fn tail_in(&self, view: &View) -> LogPos {
        let (epoch, said) = self.said_tail.get();
        let decided = view.layout.tail();
        if epoch == view.layout.epoch { said.max(decided) } else { decided }
    }

    /// `end`, or where the log ends if that is below it.
    pub(super) async fn cut_at_tail(
        self: &Rc<Self>,
        end: LogPos,
        deadline: Time,
    ) -> Result<LogPos, ClientError> {
        match end <= self.known_tail() {
            true => Ok(end),
            false => self.tails_by(&[], deadline).await.map(|tails| end.min(tails.tail)),
        }
    }

    pub(super) async fn check(self: &Rc<Self>) -> Result<Bounds, ClientError> {
        let tail = self.tail().await?;
        let deadline = self.deadline();
        let first = self
            .retrying(Phase::Check, deadline, async |inner: &Rc<Inner>, view| {
                for ranges in asked_together(&view.layout.ranges) {
                    let first = inner.first_of(view, ranges, deadline).await?;
                    if let Some(first) = first.filter(|&first| first < tail) {
                        return Ok(first);
                    }
                }
                Ok(tail)
            })
            .await?;
        Ok(Bounds { tail, first })
    }

    /// The lowest position of `ranges` that is not trimmed, as the last replicas of their stripes have it: each node is asked once,
    /// all at the same time.
    async fn first_of(
        self: &Rc<Self>,
        view: &View,
        ranges: &[RangeMap],
        deadline: Time,
    ) -> Result<Option<LogPos>, ClientError> {
        let mut asked: BTreeMap<NodeId, Vec<AddrRange>> = BTreeMap::new();
        for range in ranges {
            for (at, stripe) in range.stripes.iter().enumerate() {
                let (Some(&unit), Some(extent)) = (stripe.replicas.last(), range.addresses(at)) else {
                    continue;
                };
                // A closed range may have fewer positions than stripes.
                if !extent.is_empty() {
                    asked.entry(unit).or_default().push(extent);
                }
            }
        }
        let first_on = async |(unit, extents)| {
            let check = Check { extents, ..Check::default() };
            let (answer, _, _) = self.call::<_, Tail>(view, unit, Phase::Check, &check, deadline).await?;
            let bounds = check.extents.iter().zip(&answer.extents);
            let lowest = bounds.filter(|(extent, bounds)| bounds.first < extent.end);
            Ok(lowest.filter_map(|(_, bounds)| view.position(unit, bounds.first)).min())
        };
        let firsts = gather(asked.into_iter().map(&first_on).collect(), Result::is_err).await;
        let firsts: Result<Vec<_>, ClientError> = firsts.into_iter().flatten().collect();
        Ok(firsts?.into_iter().flatten().min())
    }

    pub(super) async fn fill(self: &Rc<Self>, pos: LogPos) -> Result<EntryKind, ClientError> {
        let is_far_above = |tail: LogPos| pos.0.saturating_sub(tail.0) > limits::FILL_AHEAD_MAX_COUNT;
        if is_far_above(self.known_tail()) && is_far_above(self.tail().await?) {
            return Err(ClientError::Unwritten { pos });
        }
        let held = self.fill_by(pos, self.deadline()).await?;
        Ok(match held.map(|(outcome, _)| outcome.taken) {
            None | Some(Taken::Junk) => EntryKind::Junk,
            Some(Taken::Data { .. }) => EntryKind::Data,
            Some(Taken::Trimmed) => EntryKind::Trimmed,
        })
    }

    /// Trims positions, on each replica in order. A trim that got no further than some of them is completed by whoever trims
    /// or fills there again.
    pub(super) async fn trim(self: &Rc<Self>, positions: Range<LogPos>) -> Result<(), ClientError> {
        let deadline = self.deadline();
        let meant_in = Cell::new(None);
        self.retrying(Phase::Trim, deadline, async |inner: &Rc<Inner>, view| {
            let epoch = match meant_in.get() {
                Some(epoch) => epoch,
                None => inner.reached_in(view, &positions, deadline).await?,
            };
            meant_in.set(Some(epoch));
            // A later epoch may have begun below, and what it grants there is not meant.
            if let Some(tail) = view.decided_tail(epoch).filter(|&tail| tail < positions.end) {
                return Err(ClientError::Unwritten { pos: positions.start.max(tail) });
            }
            let deciding = Deciding { inner, view, phase: Phase::Trim, deadline };
            for piece in view.layout.pieces(positions.start, positions.end) {
                deciding.trim(piece.replicas, piece.addrs).await?;
            }
            Ok(())
        })
        .await
    }

    /// An epoch in which the log has reached the end of `positions`. Errors: `Unwritten` if it has not yet.
    async fn reached_in(
        self: &Rc<Self>,
        view: &View,
        positions: &Range<LogPos>,
        deadline: Time,
    ) -> Result<Epoch, ClientError> {
        if positions.end <= self.tail_in(view) {
            return Ok(view.layout.epoch);
        }
        let StreamTails { epoch, tail, .. } = self.tails_by(&[], deadline).await?;
        match positions.end <= tail {
            true => Ok(epoch),
            false => Err(ClientError::Unwritten { pos: positions.start.max(tail) }),
        }
    }
}

/// Parts of `ranges` with as many stripes as a node can be asked about in one message, if it is in each of them.
fn asked_together(ranges: &[RangeMap]) -> impl Iterator<Item = &[RangeMap]> {
    let mut stripes = ranges.first().map_or(0, |range| range.stripes.len());
    ranges.chunk_by(move |_, next| {
        let count = next.stripes.len();
        let is_one_more = stripes + count <= limits::RANGES_MAX_COUNT;
        stripes = if is_one_more { stripes + count } else { count };
        is_one_more
    })
}
