//! What became of entries when no answer says so: by filling the positions where they may be.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;

use ithaca_env::Time;
use ithaca_env::task::gather;

use super::append::Queued;
use super::connection::CallError;
use super::decide::Deciding;
use super::error::{ClientError, Phase};
use super::write::{Earlier, is_own};
use super::{Inner, View};
use crate::layout::{Location, Stripe};
use crate::limits;
use crate::pos::{Addr, AddrRange, ClientId, Epoch, LogPos, NodeId, RequestNo};
use crate::wire::{Advice, Outcome, Refusal, Taken};

impl Inner {
    /// Finds out what became of entries whose write at these positions, in `epoch`, got no answer, or was refused: by filling the
    /// positions. `error` says why; without one some are only known not to be written. `earlier` is what is known besides that write.
    /// What a full unit has refused may go to another one, once it is decided that it does not stand here.
    pub(super) async fn resolve(
        self: &Rc<Self>,
        epoch: Epoch,
        entries: Vec<(LogPos, Queued)>,
        error: Option<&ClientError>,
        earlier: Earlier,
    ) -> Vec<(Queued, Result<LogPos, ClientError>)> {
        let refused = match error {
            Some(ClientError::Node { addr, error: CallError::Refused(refusal), .. })
                if earlier != Earlier::Stored && matches!(refusal.advice(), Advice::GiveUp) =>
            {
                Some((*addr, refusal))
            }
            _ => None,
        };
        let why = |pos| error.cloned().unwrap_or(ClientError::Overtaken { pos });
        // What was refused is nowhere, unless somebody else has written it.
        let is_nowhere = refused.is_some() && earlier == Earlier::Never;
        let (mut resolved, mut doubtful, mut given_up) = (Vec::new(), Vec::new(), Vec::new());
        for (pos, mut queued) in entries {
            let stays = refused.is_some_and(|(addr, refusal)| !self.may_go_elsewhere(addr, refusal, &queued));
            if stays && is_nowhere {
                given_up.push(pos);
                resolved.push((queued, Err(why(pos))));
            } else {
                queued.found_full += u32::from(refused.is_some());
                doubtful.push((pos, queued, stays));
            }
        }
        let positions: Vec<LogPos> = doubtful.iter().map(|&(pos, ..)| pos).collect();
        let found = match doubtful.first() {
            Some((_, first, _)) => self.fill_all(&positions, Some(epoch), first.deadline).await,
            None => Vec::new(),
        };
        for ((pos, queued, stays), found) in doubtful.into_iter().zip(found) {
            let unknown = || ClientError::OutcomeUnknown { pos, cause: Box::new(why(pos)) };
            let result = match found {
                Ok(Some((outcome, addr))) if is_own(&outcome, addr, self.id, queued.request) => Ok(pos),
                Err(_) if is_nowhere => {
                    given_up.push(pos);
                    Err(why(pos))
                }
                // A trimmed position may have held it.
                Ok(Some((Outcome { taken: Taken::Trimmed, .. }, _))) | Err(_) => Err(unknown()),
                Ok(_) if stays => Err(why(pos)),
                // Nothing is known of the position that says more than why it was given up.
                Ok(_) if error.is_some() && !self.may_retry(&queued) => {
                    Err(ClientError::NotAppended { cause: Box::new(why(pos)) })
                }
                Ok(_) => Err(ClientError::Overtaken { pos }),
            };
            resolved.push((queued, result));
        }
        self.give_up(epoch, given_up);
        resolved
    }

    /// Whether what the unit at `addr` has refused may find room at another position. A unit that has none must not be one of the later
    /// replicas there: an entry that the first one has then is not certain to be nowhere.
    fn may_go_elsewhere(&self, addr: SocketAddr, refusal: &Refusal, queued: &Queued) -> bool {
        let Some(view) = self.view() else { return false };
        let Some(active) = view.layout.ranges.last() else { return false };
        let is_later = |stripe: &Stripe| stripe.replicas.iter().skip(1).any(|&unit| view.addr(unit) == addr);
        *refusal == Refusal::Full
            && queued.found_full < limits::FULL_UNITS_MAX_COUNT
            && self.may_retry(queued)
            && active.stripes.len() > 1
            && !active.stripes.iter().any(is_later)
    }

    /// Makes junk of positions that were granted in `epoch` and will not be used, in the background: readers need not wait for it.
    fn give_up(self: &Rc<Self>, epoch: Epoch, positions: Vec<LogPos>) {
        if positions.is_empty() {
            return;
        }
        let inner = Rc::clone(self);
        self.env.spawn(async move {
            let deadline = inner.deadline();
            // If this fails too, a reader that meets the holes fills them.
            let _ = inner.fill_all(&positions, Some(epoch), deadline).await;
        });
    }

    /// Fills one position: `None` if it is junk now, or was never written and never will be; else what it holds.
    pub(super) async fn fill_by(
        self: &Rc<Self>,
        pos: LogPos,
        deadline: Time,
    ) -> Result<Option<(Outcome, Addr)>, ClientError> {
        self.fill_all(&[pos], None, deadline).await.pop().expect("one was asked about")
    }

    /// The same for each of these positions, ascending: those that follow each other on a stripe are filled together. What cannot be
    /// decided, or not yet, holds nothing else up.
    async fn fill_all(
        self: &Rc<Self>,
        positions: &[LogPos],
        written_in: Option<Epoch>,
        deadline: Time,
    ) -> Vec<Filled> {
        let found: Vec<Slot> = positions.iter().map(|&pos| (pos, OnceCell::new())).collect();
        let filled = self.retrying(Phase::Fill, deadline, async |inner: &Rc<Inner>, view: &View| {
            let open = found.iter().filter(|(_, filled)| filled.get().is_none());
            let stripes = shares(view, open, written_in);
            let deciding = Deciding { inner, view, phase: Phase::Fill, deadline };
            let filling = stripes.iter().map(|(replicas, shares)| deciding.fill_shares(replicas, shares));
            let filled = gather(filling.collect(), |_| false).await;
            filled.into_iter().flatten().find(Result::is_err).unwrap_or(Ok(()))
        });
        let why = filled.await.err();
        let of = |(_, slot): Slot| {
            slot.into_inner().unwrap_or_else(|| Err(why.clone().expect("what is left open has failed")))
        };
        found.into_iter().map(of).collect()
    }

    /// Which of the appends numbered `requests` of this client stand at `positions`: those of an epoch that is over, or
    /// of grants that its sequencer has forgotten. Whatever is not decided there becomes junk, so that none of them can
    /// come to stand there later.
    pub(super) async fn search(
        self: &Rc<Self>,
        requests: Range<u64>,
        positions: Range<LogPos>,
        deadline: Time,
    ) -> Result<Search, ClientError> {
        self.retrying(Phase::Resolve, deadline, async |inner: &Rc<Inner>, view: &View| {
            let is_forgotten = positions.start < view.layout.start().min(positions.end);
            let mut search = Search { has_trimmed: is_forgotten, ..Search::default() };
            let deciding = Deciding { inner, view, phase: Phase::Resolve, deadline };
            for piece in view.layout.pieces(positions.start, positions.end) {
                for outcome in &deciding.decide(piece.replicas, piece.addrs).await? {
                    search.note(inner.id, &requests, outcome, |addr| piece.find(addr));
                }
            }
            Ok(search)
        })
        .await
    }
}

/// Shares of the same replicas that may go on with the next position.
const TURNS_MAX: usize = 64;

/// What filling a position came to.
type Filled = Result<Option<(Outcome, Addr)>, ClientError>;

/// A position, and what filling it came to.
type Slot = (LogPos, OnceCell<Filled>);

/// Positions that follow each other on a stripe.
struct Share<'a> {
    /// The address of the first.
    first: Addr,
    slots: Vec<&'a OnceCell<Filled>>,
}

impl Share<'_> {
    fn addrs(&self) -> AddrRange {
        AddrRange::new(self.first, Addr(self.first.0 + self.slots.len() as u64))
    }

    /// All of it is decided: what is not listed is junk.
    fn fill(&self, outcomes: &[Outcome]) {
        for outcome in outcomes {
            for addr in outcome.range().numbers() {
                let at = addr.checked_sub(self.first.0).and_then(|at| self.slots.get(at as usize));
                if let Some(slot) = at {
                    let _ = slot.set(Ok(Some((*outcome, Addr(addr)))));
                }
            }
        }
        self.slots.iter().for_each(|slot| _ = slot.set(Ok(None)));
    }

    fn fail(&self, error: &ClientError) {
        self.slots.iter().for_each(|slot| _ = slot.set(Err(error.clone())));
    }
}

impl Deciding<'_> {
    /// Decides what one stripe is asked about; an error if the rest of it may be decided by another attempt.
    async fn fill_shares(&self, replicas: &[NodeId], shares: &[Share<'_>]) -> Result<(), ClientError> {
        for share in shares {
            match self.decide(replicas, share.addrs()).await {
                Ok(outcomes) => share.fill(&outcomes),
                Err(error) if self.inner.may_pass(&error, self.deadline) => return Err(error),
                Err(error) => share.fail(&error),
            }
        }
        Ok(())
    }
}

/// What is to be asked about positions, ascending, by the replicas of its stripe. What the layout says itself is set.
fn shares<'a>(
    view: &'a View,
    positions: impl Iterator<Item = &'a Slot>,
    written_in: Option<Epoch>,
) -> BTreeMap<&'a [NodeId], Vec<Share<'a>>> {
    let mut stripes: BTreeMap<&[NodeId], Vec<Share<'_>>> = BTreeMap::new();
    for (pos, slot) in positions {
        let pos = *pos;
        if written_in.is_some_and(|epoch| view.is_past_tail(epoch, pos)) {
            let _ = slot.set(Ok(None));
            continue;
        }
        if pos < view.layout.start() {
            let trimmed = Outcome { addr: Addr(0), count: 1, taken: Taken::Trimmed };
            let _ = slot.set(Ok(Some((trimmed, trimmed.addr))));
            continue;
        }
        let Some(Location { replicas, addr }) = view.layout.locate(pos) else {
            let _ = slot.set(Err(ClientError::Unwritten { pos }));
            continue;
        };
        let shares = stripes.entry(replicas).or_default();
        // Stripes with the same replicas take turns.
        match shares.iter_mut().rev().take(TURNS_MAX).find(|share| share.addrs().end == addr) {
            Some(share) => share.slots.push(slot),
            None => shares.push(Share { first: addr, slots: vec![slot] }),
        }
    }
    stripes
}

/// What a search found.
#[derive(Default)]
pub(super) struct Search {
    found: BTreeMap<RequestNo, LogPos>,
    has_trimmed: bool,
}

impl Search {
    fn note(
        &mut self,
        client: ClientId,
        requests: &Range<u64>,
        outcome: &Outcome,
        position: impl Fn(Addr) -> Option<LogPos>,
    ) {
        match outcome.taken {
            Taken::Trimmed => self.has_trimmed = true,
            Taken::Data { client: writer, request, stride } if writer == client => {
                for nth in 0..outcome.count {
                    let own = request.after(nth * u64::from(stride));
                    if requests.contains(&own.0)
                        && let Some(pos) = position(Addr(outcome.addr.0 + nth))
                    {
                        self.found.insert(own, pos);
                    }
                }
            }
            Taken::Data { .. } | Taken::Junk => {}
        }
    }

    /// Where the append stands, if it was found.
    pub(super) fn position(&self, request: RequestNo) -> Option<LogPos> {
        self.found.get(&request).copied()
    }

    /// Whether nothing was found.
    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Whether something was trimmed: it may have been what was looked for.
    pub(super) fn has_trimmed(&self) -> bool {
        self.has_trimmed
    }
}
