//! Writing a batch at the positions that it was granted, and what became of each entry.

use std::future::Future;
use std::pin::Pin;

use super::append::{Batch, Queued};
use super::connection::CallError;
use super::error::{ClientError, Phase};
use super::{Inner, View};
use crate::entry::EntryMeta;
use crate::layout::Piece;
use crate::pos::{Addr, ClientId, LogPos, NodeId, RequestNo};
use crate::wire::{self, Head, Outcome, Taken, Written};

/// Whether entries may have been written at their positions before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Earlier {
    /// They are written for the first time.
    Never,
    /// A forwarder may have had them written.
    MayBe,
}

/// Entries of a batch whose positions lie on one unit, as indexes into the batch.
struct Part {
    unit: NodeId,
    addr: Addr,
    first: usize,
    step: usize,
    count: usize,
}

impl Part {
    fn index(&self, nth: usize) -> usize {
        self.first + nth * self.step
    }
}

impl Batch {
    /// Writes the batch at `first` and the positions after it, in the epoch of `view`, and settles every entry. `earlier`
    /// says whether the entries may have been written there before.
    pub(super) async fn write(mut self, view: &View, first: LogPos, earlier: Earlier) {
        self.is_placed();
        if self.inner.appender.is_busy() {
            self.inner.appender.changed().ring();
        }
        let parts = split(view, first, self.entries.len());
        for part in &parts {
            // A unit that cannot be reached is found out by the write itself, whose outcome is then resolved.
            let _ = self.inner.connection(view, part.unit, self.entries[0].deadline).await;
        }
        let mut entries: Vec<Option<Queued>> = self.entries.drain(..).map(Some).collect();
        // Every write is sent before any answer is waited for.
        let writes: Vec<_> = parts.iter().map(|part| self.send(view, part, &entries)).collect();
        let mut again = Vec::new();
        for (part, write) in parts.iter().zip(writes) {
            let answered = write.await;
            for nth in 0..part.count {
                let index = part.index(nth);
                let pos = LogPos(first.0 + index as u64);
                let Some(queued) = entries[index].take() else { unreachable!("each entry is in one part") };
                let settled = match &answered {
                    Ok(written) => {
                        let addr = Addr(part.addr.0 + nth as u64);
                        settle(&self.inner, written, addr, &queued, pos, earlier)
                    }
                    Err(error) => self.inner.resolve(view.layout.epoch, pos, &queued, error).await,
                };
                match settled {
                    Err(ClientError::Overtaken { .. }) if self.inner.may_retry(&queued) => again.push(queued),
                    result => self.inner.appender.finish(queued, result),
                }
            }
        }
        self.inner.appender.put_back(again);
    }

    /// Sends the write of `part`.
    fn send(
        &self,
        view: &View,
        part: &Part,
        entries: &[Option<Queued>],
    ) -> Pin<Box<dyn Future<Output = Result<Written, ClientError>>>> {
        let queued = |nth| entries[part.index(nth)].as_ref().expect("not settled yet");
        let deadline = queued(0).deadline;
        let meta = EntryMeta {
            stride: part.step as u16,
            ..EntryMeta::new(self.inner.id, part.addr, queued(0).request)
        };
        let consecutive =
            (0..part.count).all(|nth| meta.request_at(Addr(part.addr.0 + nth as u64)) == queued(nth).request);
        assert!(consecutive, "a batch is appends in a row");
        let epoch = view.layout.epoch;
        let (addr, unit) = (view.addr(part.unit), part.unit);
        let call = self.inner.open_connection(unit).map(|connection| {
            let tables = (0..part.count).map(|nth| queued(nth).table);
            let data = (0..part.count).map(|nth| queued(nth).entry.clone());
            connection.call_with::<Written>(
                &self.inner.env,
                |id, out| {
                    wire::encode_write_head(out, Head::new(id, epoch), part.addr, &meta, tables);
                },
                data,
                deadline,
            )
        });
        Box::pin(async move {
            let lost = CallError::Lost(ithaca_env::net::NetError::Closed { addr });
            let answered = match call {
                Some(call) => call.await,
                None => Err(lost),
            };
            answered.map(|(written, _, _)| written).map_err(|error| ClientError::Node {
                addr,
                epoch,
                phase: Phase::Write,
                error,
            })
        })
    }
}

/// The parts of `count` positions from `first` on: one a stripe.
fn split(view: &View, first: LogPos, count: usize) -> Vec<Part> {
    let pieces = view.layout.pieces(first, LogPos(first.0 + count as u64));
    let part = |piece: &Piece<'_>| Part {
        unit: *piece.replicas.last().expect("a stripe has replicas"),
        addr: piece.addrs.start,
        first: (piece.first.0 - first.0) as usize,
        step: piece.stride as usize,
        count: piece.addrs.count() as usize,
    };
    pieces.iter().map(part).collect()
}

/// What became of one entry of a write that was answered.
fn settle(
    inner: &Inner,
    written: &Written,
    addr: Addr,
    queued: &Queued,
    pos: LogPos,
    earlier: Earlier,
) -> Result<LogPos, ClientError> {
    match find(&written.taken, addr) {
        None => Ok(pos),
        Some(outcome) if is_own(outcome, addr, inner.id, queued.request) => Ok(pos),
        Some(Outcome { taken: Taken::Trimmed, .. }) if earlier == Earlier::MayBe => {
            // It may have been this entry that was read by others and trimmed.
            let cause = Box::new(ClientError::Overtaken { pos });
            Err(ClientError::OutcomeUnknown { pos, cause })
        }
        Some(_) => Err(ClientError::Overtaken { pos }),
    }
}

fn find(outcomes: &[Outcome], addr: Addr) -> Option<&Outcome> {
    outcomes.iter().find(|outcome| (outcome.addr.0..outcome.addr.0 + outcome.count).contains(&addr.0))
}

pub(super) fn is_own(outcome: &Outcome, addr: Addr, id: ClientId, own: RequestNo) -> bool {
    match outcome.taken {
        Taken::Data { client, request, stride } => {
            let steps = (addr.0 - outcome.addr.0).wrapping_mul(u64::from(stride));
            client == id && request.0.wrapping_add(steps) == own.0
        }
        Taken::Junk | Taken::Trimmed => false,
    }
}
