//! Appending: what is queued takes positions together and is written together.
//!
//! ```text
//!   append() ─► queue ─► one Token for all that is queued ─► one Write a unit ─► each append's result
//!                 ▲                                                   │
//!                 └── an entry whose position certainly went to something else, if the client may try again
//! ```
//!
//! A grant covers only appends that were queued when it was asked for, and a write carries the epoch of its token. A
//! write without an answer is resolved by filling its position in the newest epoch: either the entry is found there, or
//! the position becomes junk and the entry is free to take another. (docs/protocol/append.md)

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{RangeSet, TableEntry};
use ithaca_env::Time;
use ithaca_env::sync::{Notify, oneshot};

use super::connection::{Answered, CallError};
use super::error::{ClientError, Phase};
use super::{Inner, View, WriteLimits};
use crate::entry::EntryMeta;
use crate::layout::Piece;
use crate::pos::{Addr, ClientId, Epoch, LogPos, NodeId, RequestNo};
use crate::wire::{self, Advice, Fill, Filled, Grant, Head, Outcome, Refusal, Taken, Token, Written};

/// Batches that wait for an answer at the most.
const BATCHES_MAX: usize = 64;
/// The wait before something refused "for now" is tried again.
const RETRY_WAIT: Duration = Duration::from_millis(2);

/// The result of an append, when it is there. Dropping it does not take the append back.
pub struct Append {
    result: oneshot::Receiver<Result<LogPos, ClientError>>,
}

impl Future for Append {
    type Output = Result<LogPos, ClientError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.result).poll(cx).map(|result| result.unwrap_or(Err(ClientError::Closed)))
    }
}

/// One append on its way.
pub(super) struct Queued {
    entry: Bytes,
    table: TableEntry,
    request: RequestNo,
    deadline: Time,
    result: oneshot::Sender<Result<LogPos, ClientError>>,
}

/// The client's queue of appends.
#[derive(Default)]
pub(super) struct Appender {
    queue: RefCell<VecDeque<Queued>>,
    next_request: Cell<u64>,
    /// Bytes of entries that have no result yet.
    held_bytes: Cell<usize>,
    batches: Cell<usize>,
    next_batch: Cell<u64>,
    /// Batches that have their positions, or will never have any. A batch whose first request for them failed asks again
    /// when every earlier batch is in here, so that entries keep the order of their appends.
    placed: RefCell<RangeSet>,
    /// Rings when an append was queued, got a result, or a batch ended.
    changed: Notify,
    started: Cell<bool>,
}

impl Appender {
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes.get()
    }

    pub(super) fn changed(&self) -> &Notify {
        &self.changed
    }
}

/// Queues `entry`; the append starts at once.
pub(super) fn append(inner: &Rc<Inner>, entry: Bytes) -> Append {
    let (sender, result) = oneshot::channel();
    let limit = inner.write_limits.get().entry_bytes;
    if entry.len() > limit {
        sender.send(Err(ClientError::TooLarge { len: entry.len(), limit }));
        return Append { result };
    }
    let appender = &inner.appender;
    let request = appender.next_request.get();
    appender.next_request.set(request + 1);
    appender.held_bytes.set(appender.held_bytes.get() + entry.len());
    let table = TableEntry { len: entry.len() as u32, checksum: crc32c::crc32c(&entry) };
    let deadline = inner.deadline();
    let queued = Queued { entry, table, request: RequestNo(request), deadline, result: sender };
    appender.queue.borrow_mut().push_back(queued);
    if appender.started.replace(true) {
        appender.changed.ring();
    } else {
        inner.spawn_scoped(|weak| async move {
            // The client may go while the task waits; what is queued then ends with `Closed`.
            while let Some(inner) = weak.upgrade() {
                let ticket = inner.appender.changed.ticket();
                while start_batch(&inner) {}
                let appender = Rc::clone(&inner.appender);
                drop(inner);
                appender.changed.after(ticket).await;
            }
        });
    }
    Append { result }
}

/// Sends off one batch of what is queued, if there is any and not too much is under way.
fn start_batch(inner: &Rc<Inner>) -> bool {
    let appender = &inner.appender;
    if appender.batches.get() >= BATCHES_MAX {
        return false;
    }
    let batch = take_batch(&mut appender.queue.borrow_mut(), inner.write_limits.get());
    if batch.is_empty() {
        return false;
    }
    appender.batches.set(appender.batches.get() + 1);
    let number = appender.next_batch.get();
    appender.next_batch.set(number + 1);
    // The token is asked for here and now, so that batches get positions in the order of their appends.
    let view = inner.view();
    let token = view.as_ref().and_then(|view| ask_token(inner, view, batch.len(), batch[0].deadline));
    let batch = Batch { inner: Rc::clone(inner), number, entries: batch };
    inner.env.spawn(batch.run(view, token));
    true
}

fn take_batch(queue: &mut VecDeque<Queued>, limits: WriteLimits) -> Vec<Queued> {
    let (mut count, mut bytes) = (0, 0);
    for queued in queue.iter() {
        bytes += queued.entry.len();
        // An append that is tried again leaves a gap in the request numbers; a batch has none.
        let follows = queued.request.0 == queue[0].request.0 + count as u64;
        if count > 0 && (bytes > limits.bytes || count >= limits.count || !follows) {
            break;
        }
        count += 1;
    }
    queue.drain(..count).collect()
}

type Granted = Answered<Grant>;

/// Asks for tokens on the open connection to the sequencer; `None` if there is none yet.
fn ask_token(inner: &Rc<Inner>, view: &View, count: usize, deadline: Time) -> Option<Granted> {
    let connection = inner.open_connection(view.layout.sequencer)?;
    let token = Token { count: count as u32 };
    Some(Box::pin(connection.call::<_, Grant>(&inner.env, view.layout.epoch, &token, deadline)))
}

/// Entries that take their positions together.
struct Batch {
    inner: Rc<Inner>,
    number: u64,
    entries: Vec<Queued>,
}

impl Drop for Batch {
    fn drop(&mut self) {
        let appender = &self.inner.appender;
        appender.batches.set(appender.batches.get() - 1);
        appender.placed.borrow_mut().insert(self.number..self.number + 1);
        appender.changed.ring();
    }
}

/// Entries of one batch whose positions lie on one unit, as indexes into the batch.
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
    async fn run(self, view: Option<View>, token: Option<Granted>) {
        let deadline = self.entries[0].deadline;
        let mut granted = match (&view, token) {
            (Some(view), Some(token)) => token.await.map_err(|error| self.failed(view, Phase::Token, error)),
            _ => self.ask_in_turn(deadline).await,
        };
        let mut used = view;
        loop {
            // A grant is used in its own epoch only; if that is over, so is the grant.
            let placed = match granted {
                Ok((grant, _, epoch)) => {
                    self.inner.view_of(epoch, deadline).await.map(|view| (view, grant.first))
                }
                Err(error) => Err(error),
            };
            match placed {
                Ok((view, first)) => return self.write(&view, first).await,
                Err(error) if self.inner.worth_retrying(&error, deadline) => {
                    self.inner.forget_view(&used.take());
                    self.inner.env.sleep(RETRY_WAIT).await;
                    granted = self.ask_in_turn(deadline).await;
                }
                // Nothing was written: the appends certainly did not happen.
                Err(error) => return self.fail_all(error),
            }
        }
    }

    /// Asks for positions once every earlier batch has its own, by `deadline`.
    async fn ask_in_turn(&self, deadline: Time) -> Result<(Grant, Bytes, Epoch), ClientError> {
        let (appender, env) = (&self.inner.appender, &self.inner.env);
        let is_next = || (appender.placed.borrow().first_gap(0) == self.number).then_some(());
        if env.timeout_at(deadline, appender.changed.until(is_next)).await.is_err() {
            return Err(ClientError::Slow { phase: Phase::Token, waited: self.inner.options.timeout });
        }
        self.inner.tokens(self.entries.len() as u32, deadline).await
    }

    fn failed(&self, view: &View, phase: Phase, error: CallError) -> ClientError {
        let addr = view.addr(view.layout.sequencer);
        ClientError::Node { addr, epoch: view.layout.epoch, phase, error }
    }

    fn fail_all(mut self, error: ClientError) {
        for queued in self.entries.drain(..) {
            self.inner.appender.finish(queued, Err(error.clone()));
        }
    }

    /// Writes the batch at `first` and the positions after it, in the epoch of `view`, and settles every entry.
    async fn write(mut self, view: &View, first: LogPos) {
        self.inner.appender.placed.borrow_mut().insert(self.number..self.number + 1);
        if self.inner.appender.batches.get() > 1 {
            self.inner.appender.changed.ring();
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
                    Ok(written) => settle(&self.inner, written, Addr(part.addr.0 + nth as u64), &queued, pos),
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
) -> Result<LogPos, ClientError> {
    match find(&written.taken, addr) {
        None => Ok(pos),
        Some(outcome) if is_own(outcome, addr, inner.id, queued.request) => Ok(pos),
        Some(_) => Err(ClientError::Overtaken { pos }),
    }
}

fn find(outcomes: &[Outcome], addr: Addr) -> Option<&Outcome> {
    outcomes.iter().find(|outcome| (outcome.addr.0..outcome.addr.0 + outcome.count).contains(&addr.0))
}

fn is_own(outcome: &Outcome, addr: Addr, id: ClientId, own: RequestNo) -> bool {
    match outcome.taken {
        Taken::Data { client, request, stride } => {
            let steps = (addr.0 - outcome.addr.0).wrapping_mul(u64::from(stride));
            client == id && request.0.wrapping_add(steps) == own.0
        }
        Taken::Junk | Taken::Trimmed => false,
    }
}

impl Appender {
    fn finish(&self, queued: Queued, result: Result<LogPos, ClientError>) {
        self.held_bytes.set(self.held_bytes.get() - queued.entry.len());
        queued.result.send(result);
    }

    /// Appends that are to take another position go before those that wait.
    fn put_back(&self, entries: Vec<Queued>) {
        let mut queue = self.queue.borrow_mut();
        for queued in entries.into_iter().rev() {
            queue.push_front(queued);
        }
    }
}

impl Inner {
    fn may_retry(&self, queued: &Queued) -> bool {
        self.options.retry_appends && self.env.now() < queued.deadline
    }

    /// Asks for tokens until they are granted or `deadline` passes.
    pub(super) async fn tokens(
        self: &Rc<Self>,
        count: u32,
        deadline: Time,
    ) -> Result<(Grant, Bytes, Epoch), ClientError> {
        self.retrying(Phase::Token, deadline, async |inner: &Rc<Inner>, view: &View| {
            let token = Token { count };
            inner.call(view, view.layout.sequencer, Phase::Token, &token, deadline).await
        })
        .await
    }

    /// Finds out what became of an entry whose write, in `epoch`, got no answer: by filling its position.
    async fn resolve(
        self: &Rc<Self>,
        epoch: Epoch,
        pos: LogPos,
        queued: &Queued,
        error: &ClientError,
    ) -> Result<LogPos, ClientError> {
        let nothing_done = |refusal: &Refusal| matches!(refusal.advice(), Advice::GiveUp);
        if let ClientError::Node { error: CallError::Refused(refusal), .. } = error
            && nothing_done(refusal)
        {
            self.give_up(pos);
            return Err(error.clone());
        }
        let filled = self.fill_by(pos, Some(epoch), queued.deadline).await;
        match filled {
            Ok(None) => Err(ClientError::Overtaken { pos }),
            Ok(Some((outcome, addr))) if is_own(&outcome, addr, self.id, queued.request) => Ok(pos),
            // A trimmed position may have held it.
            Ok(Some((Outcome { taken: Taken::Trimmed, .. }, _))) | Err(_) => {
                Err(ClientError::OutcomeUnknown { pos, cause: Box::new(error.clone()) })
            }
            Ok(Some(_)) => Err(ClientError::Overtaken { pos }),
        }
    }

    /// Makes junk of a position that will not be used, in the background: readers need not wait for it.
    fn give_up(self: &Rc<Self>, pos: LogPos) {
        let inner = Rc::clone(self);
        self.env.spawn(async move {
            let deadline = inner.deadline();
            // If this fails too, a reader that meets the hole fills it.
            let _ = inner.fill_by(pos, None, deadline).await;
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
            let (unit, addr) = view.place(pos)?;
            let fill = Fill { ranges: vec![(addr.0..addr.0 + 1).into()] };
            let (filled, _, _) = inner.call::<_, Filled>(view, unit, Phase::Fill, &fill, deadline).await?;
            Ok(filled.taken.first().map(|&outcome| (outcome, addr)))
        })
        .await
    }
}
