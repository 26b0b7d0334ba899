//! What became of an entry when no answer says so: by filling the positions where it may be.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;

use ithaca_env::Time;

use super::append::Queued;
use super::connection::CallError;
use super::decide::Deciding;
use super::error::{ClientError, Phase};
use super::write::{Earlier, is_own};
use super::{Inner, View};
use crate::layout::Stripe;
use crate::limits;
use crate::pos::{Addr, ClientId, Epoch, LogPos, RequestNo};
use crate::wire::{Advice, Outcome, Refusal, Taken};

impl Inner {
    /// Finds out what became of an entry whose write, in `epoch`, got no answer, or was refused: by filling its position. `earlier` is
    /// what is known besides that write. What a full unit has refused may go to another one, once it is decided that it does not stand here.
    pub(super) async fn resolve(
        self: &Rc<Self>,
        epoch: Epoch,
        pos: LogPos,
        queued: &mut Queued,
        error: &ClientError,
        earlier: Earlier,
    ) -> Result<LogPos, ClientError> {
        let refused = match error {
            ClientError::Node { addr, error: CallError::Refused(refusal), .. }
                if earlier != Earlier::Stored && matches!(refusal.advice(), Advice::GiveUp) =>
            {
                Some((*addr, refusal))
            }
            _ => None,
        };
        let is_refused = refused.is_some();
        let stays = refused.is_some_and(|(addr, refusal)| !self.may_go_elsewhere(addr, refusal, queued));
        // What was refused is nowhere, unless somebody else has written it.
        let is_nowhere = is_refused && earlier == Earlier::Never;
        if stays && is_nowhere {
            self.give_up(epoch, pos);
            return Err(error.clone());
        }
        queued.found_full += u32::from(is_refused);
        match self.fill_by(pos, Some(epoch), queued.deadline).await {
            Ok(Some((outcome, addr))) if is_own(&outcome, addr, self.id, queued.request) => Ok(pos),
            Err(_) if is_nowhere => {
                self.give_up(epoch, pos);
                Err(error.clone())
            }
            // A trimmed position may have held it.
            Ok(Some((Outcome { taken: Taken::Trimmed, .. }, _))) | Err(_) => {
                Err(ClientError::OutcomeUnknown { pos, cause: Box::new(error.clone()) })
            }
            Ok(_) if stays => Err(error.clone()),
            Ok(_) => Err(ClientError::Overtaken { pos }),
        }
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

    /// Makes junk of a position that was granted in `epoch` and will not be used, in the background: readers need not wait for it.
    fn give_up(self: &Rc<Self>, epoch: Epoch, pos: LogPos) {
        let inner = Rc::clone(self);
        self.env.spawn(async move {
            let deadline = inner.deadline();
            // If this fails too, a reader that meets the hole fills it.
            let _ = inner.fill_by(pos, Some(epoch), deadline).await;
        });
    }

    /// Fills one position: `None` if it is junk now, or was never written and never will be; else what it holds.
    pub(super) async fn fill_by(
        self: &Rc<Self>,
        pos: LogPos,
        written_in: Option<Epoch>,
        deadline: Time,
    ) -> Result<Option<(Outcome, Addr)>, ClientError> {
        self.retrying(Phase::Fill, deadline, async |inner: &Rc<Inner>, view: &View| {
            if written_in.is_some_and(|epoch| view.is_past_tail(epoch, pos)) {
                return Ok(None);
            }
            if pos < view.layout.start() {
                let trimmed = Outcome { addr: Addr(0), count: 1, taken: Taken::Trimmed };
                return Ok(Some((trimmed, trimmed.addr)));
            }
            let location = view.layout.locate(pos).ok_or(ClientError::Unwritten { pos })?;
            let addr = location.addr;
            let deciding = Deciding { inner, view, phase: Phase::Fill, deadline };
            let taken = deciding.decide(location.replicas, (addr.0..addr.0 + 1).into()).await?;
            Ok(taken.first().map(|&outcome| (outcome, addr)))
        })
        .await
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
