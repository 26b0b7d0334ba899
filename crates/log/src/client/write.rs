//! Writing a batch at the positions that it was granted, and what became of each entry.
//!
//! The replicas of a stripe are written in chain order: the first one decides whose a position is, and each later one is written to after
//! the one before has the entry on stable storage. When the last one has it, all have. (Wei 3.3.4)

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;

use ithaca_env::Time;
use ithaca_env::task::gather;

use super::append::{Batch, Placed, Queued};
use super::connection::CallError;
use super::error::{ClientError, Phase};
use super::{Inner, View};
use crate::entry::{EntryMeta, StreamGroup, StreamPlaces};
use crate::layout::Piece;
use crate::planted::PlantedBug;
use crate::pos::{Addr, AddrRange, ClientId, LogPos, NodeId, RequestNo};
use crate::wire::{self, FLAG_RELAY, Head, Outcome, Refusal, Taken, Written};

/// Whether the first replica has entries by an earlier write than the one that is spoken of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Earlier {
    /// They are written for the first time.
    Never,
    /// A forwarder's write may have come to it, or may yet.
    MayBe,
    /// It has them, whatever a later replica refuses.
    Stored,
}

/// Entries of a batch whose positions lie on one stripe, as indexes into the batch.
struct Part {
    replicas: Vec<NodeId>,
    addr: Addr,
    first: usize,
    step: usize,
    count: usize,
}

impl Part {
    fn index(&self, nth: usize) -> usize {
        self.first + nth * self.step
    }

    /// All of it, as ranges of its entries.
    fn whole(&self) -> Vec<Range<usize>> {
        std::iter::once(0..self.count).collect()
    }

    fn addr(&self, nth: usize) -> Addr {
        Addr(self.addr.0 + nth as u64)
    }
}

/// The answer to a write that was sent.
type Answer = Pin<Box<dyn Future<Output = Result<Written, ClientError>>>>;

/// A batch that is being written.
struct Writing<'a> {
    inner: Rc<Inner>,
    view: &'a View,
    first: LogPos,
    /// The request number of the first entry.
    request: RequestNo,
    /// The streams of the batch; none if no entry is in any.
    groups: Vec<StreamGroup>,
    earlier: Earlier,
    deadline: Time,
    /// Those that are not settled.
    entries: RefCell<Vec<Option<Queued>>>,
    /// Those that succeeded and are not told yet. A batch whose entries are told together is followed by one as large;
    /// told stripe by stripe, it would fall apart into ever smaller ones.
    written: RefCell<Vec<(Queued, LogPos)>>,
    /// Whether something has gone wrong, so that what succeeds does not wait for the rest.
    is_slow: Cell<bool>,
    /// Those that are to take another position.
    again: RefCell<Vec<Queued>>,
}

impl Batch {
    /// Writes the batch at `first` and the positions after it, in the epoch of `view`, and settles every entry. `groups` says of
    /// all of them which streams they are in, or nothing if none is in any. `earlier` says whether the entries may have
    /// been written there before.
    pub(super) async fn write(
        mut self,
        view: &View,
        first: LogPos,
        groups: Vec<StreamGroup>,
        earlier: Earlier,
    ) {
        self.note_placed();
        if self.inner.appender.is_busy() {
            self.inner.appender.changed().ring();
        }
        let parts = split(view, first, self.entries.len());
        let (deadline, request) = (self.entries[0].deadline, self.entries[0].request);
        for part in &parts {
            // A unit that cannot be reached is found out by the write itself, whose outcome is then resolved.
            let _ = self.inner.connection(view, part.replicas[0], deadline).await;
        }
        let entries = RefCell::new(self.entries.drain(..).map(Some).collect());
        let inner = Rc::clone(&self.inner);
        let writing = Writing {
            inner,
            view,
            first,
            request,
            groups,
            earlier,
            deadline,
            entries,
            written: RefCell::default(),
            is_slow: Cell::default(),
            again: RefCell::default(),
        };
        // Every stripe's first write is sent before any answer is waited for.
        let sent: Vec<Answer> = parts.iter().map(|part| writing.send(part, 0, 0..part.count)).collect();
        let carried = parts.iter().zip(sent).map(|(part, answer)| writing.carry(part, answer)).collect();
        gather(carried, |()| false).await;
        writing.tell();
        self.inner.appender.put_back(writing.again.into_inner());
    }
}

impl Writing<'_> {
    /// Settles a part whose write was sent to the first replica: each later one is written to after the one before has
    /// answered, as far as that has the entries.
    async fn carry(&self, part: &Part, answer: Answer) {
        let together = self.inner.options.planted.is(PlantedBug::ReplicasWrittenTogether);
        let mut sent: VecDeque<Answer> = match together {
            true => (1..part.replicas.len()).map(|replica| self.send(part, replica, 0..part.count)).collect(),
            false => VecDeque::new(),
        };
        let relayed = self.is_relayed(part);
        let (mut own, is_everywhere) = match answer.await {
            // The node of the first replica speaks for all.
            Ok(written) if relayed && written.taken.is_empty() => (part.whole(), true),
            Err(error) if relayed && is_not_relayed(&error) => (part.whole(), false),
            answered => (self.first_answered(part, answered).await, false),
        };
        let stops = is_everywhere || self.inner.options.planted.is(PlantedBug::AckAfterFirstReplica);
        let rest = if stops { 0..0 } else { 1..part.replicas.len() };
        for replica in rest {
            if own.is_empty() {
                break;
            }
            let _ = self.inner.connection(self.view, part.replicas[replica], self.deadline).await;
            let answers: Vec<(Range<usize>, Answer)> = match sent.pop_front() {
                Some(answer) => vec![(0..part.count, answer)],
                None => own.into_iter().map(|nths| (nths.clone(), self.send(part, replica, nths))).collect(),
            };
            own = Vec::new();
            for (nths, answer) in answers {
                own.extend(self.next_answered(part, nths, answer.await).await);
            }
        }
        for nth in own.into_iter().flatten() {
            self.settle(part, nth, Ok(()));
        }
    }

    /// Whether the write to the first replica asks for the others to be written to from there.
    fn is_relayed(&self, part: &Part) -> bool {
        self.inner.options.relay_writes && part.replicas.len() > 1
    }

    /// The first replica answered: it decides whose the positions are. Returns those that are the client's.
    async fn first_answered(&self, part: &Part, answered: Result<Written, ClientError>) -> Vec<Range<usize>> {
        let mut own = Vec::new();
        match answered {
            Ok(written) if written.taken.is_empty() => own = part.whole(),
            Ok(written) => {
                for nth in 0..part.count {
                    match self.verdict(part, nth, &written) {
                        Ok(()) => add(&mut own, nth),
                        refused => self.settle(part, nth, refused),
                    }
                }
            }
            Err(error) => self.resolve(part, 0..part.count, &error, self.earlier).await,
        }
        own
    }

    /// A later replica answered a write of what the one before has. Returns what it has now.
    async fn next_answered(
        &self,
        part: &Part,
        nths: Range<usize>,
        answered: Result<Written, ClientError>,
    ) -> Vec<Range<usize>> {
        let mut own = Vec::new();
        match answered {
            Ok(written) if written.taken.is_empty() => own.push(nths),
            Ok(written) => {
                for nth in nths {
                    match self.verdict(part, nth, &written) {
                        Ok(()) => add(&mut own, nth),
                        // The first replica took it, so it stood there; a trim has come between.
                        Err(cause) => {
                            let (pos, cause) = (self.pos(part, nth), Box::new(cause));
                            self.settle(part, nth, Err(ClientError::OutcomeUnknown { pos, cause }));
                        }
                    }
                }
            }
            Err(error) => self.resolve(part, nths, &error, Earlier::Stored).await,
        }
        own
    }

    fn pos(&self, part: &Part, nth: usize) -> LogPos {
        LogPos(self.first.0 + part.index(nth) as u64)
    }

    /// Whether a write that was answered is the client's own at an address.
    fn verdict(&self, part: &Part, nth: usize, written: &Written) -> Result<(), ClientError> {
        let entries = self.entries.borrow();
        // With a planted fault some are settled before every replica has answered.
        let Some(queued) = &entries[part.index(nth)] else { return Ok(()) };
        verdict(&self.inner, written, part.addr(nth), queued, self.pos(part, nth), self.earlier)
    }

    /// Finds out what became of entries whose write got no answer, or was refused, and settles them.
    async fn resolve(&self, part: &Part, nths: Range<usize>, error: &ClientError, earlier: Earlier) {
        self.is_slow.set(true);
        self.tell();
        let take = |nth| Some((self.pos(part, nth), self.entries.borrow_mut()[part.index(nth)].take()?));
        let doubtful = nths.filter_map(take).collect();
        let epoch = self.view.layout.epoch;
        for (queued, found) in self.inner.resolve(epoch, doubtful, Some(error), earlier).await {
            self.finish(queued, found);
        }
    }

    fn settle(&self, part: &Part, nth: usize, result: Result<(), ClientError>) {
        let queued = self.entries.borrow_mut()[part.index(nth)].take();
        if let Some(queued) = queued {
            self.finish(queued, result.map(|()| self.pos(part, nth)));
        }
    }

    fn finish(&self, queued: Queued, result: Result<LogPos, ClientError>) {
        match result {
            Ok(pos) if !self.is_slow.get() => self.written.borrow_mut().push((queued, pos)),
            Err(ClientError::Overtaken { .. }) if self.inner.may_retry(&queued) => {
                self.again.borrow_mut().push(queued);
            }
            result => self.inner.appender.finish(queued, result.map(|pos| self.placed(pos))),
        }
    }

    /// Where the entry at `pos` stands in its streams.
    fn placed(&self, pos: LogPos) -> Placed {
        let mut nth = pos.0 - self.first.0;
        for group in &self.groups {
            match nth.checked_sub(group.count.into()) {
                Some(rest) => nth = rest,
                None => return Placed { pos, places: group.places_of(nth as u32, pos) },
            }
        }
        Placed { pos, places: StreamPlaces::new() }
    }

    /// Tells those that succeeded, in the order of their positions.
    fn tell(&self) {
        let mut written = self.written.take();
        written.sort_by_key(|&(_, pos)| pos);
        written
            .into_iter()
            .for_each(|(queued, pos)| self.inner.appender.finish(queued, Ok(self.placed(pos))));
    }

    /// Sends entries of `part` to one of its replicas, by its place in the order.
    fn send(&self, part: &Part, replica: usize, nths: Range<usize>) -> Answer {
        let unit = part.replicas[replica];
        let flags = if replica == 0 && self.is_relayed(part) { FLAG_RELAY } else { 0 };
        let entries = self.entries.borrow();
        let queued = |nth| entries[part.index(nth)].as_ref().expect("not settled yet");
        let first = queued(nths.start);
        let (deadline, start) = (first.deadline, part.addr(nths.start));
        let bare =
            EntryMeta { stride: part.step as u16, ..EntryMeta::new(self.inner.id, start, first.request) };
        let unsaid = u64::from(self.inner.options.planted.is(PlantedBug::LastPlaceLeftOut));
        let said = AddrRange::new(start, Addr(start.0 + nths.len() as u64 - unsaid));
        let meta = bare.in_groups(self.request, &self.groups, said);
        let consecutive = nths.clone().all(|nth| meta.request_at(part.addr(nth)) == queued(nth).request);
        assert!(consecutive, "a batch is appends in a row");
        let epoch = self.view.layout.epoch;
        let addr = self.view.addr(unit);
        let call = self.inner.open_connection(unit).map(|connection| {
            let tables = nths.clone().map(|nth| queued(nth).table);
            let data = nths.clone().map(|nth| queued(nth).entry.clone());
            connection.call_with::<Written>(
                &self.inner.env,
                |id, out| {
                    let head = Head { flags, ..Head::new(id, epoch) };
                    wire::encode_write_head(out, head, start, &meta, tables);
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

/// Whether the first replica has a relayed write, and a later one not certainly.
fn is_not_relayed(error: &ClientError) -> bool {
    matches!(error, ClientError::Node { error: CallError::Refused(Refusal::NotRelayed), .. })
}

/// Adds the next number to ranges of numbers.
fn add(ranges: &mut Vec<Range<usize>>, nth: usize) {
    match ranges.last_mut() {
        Some(last) if last.end == nth => last.end = nth + 1,
        _ => ranges.push(nth..nth + 1),
    }
}

/// The parts of `count` positions from `first` on: one a stripe.
fn split(view: &View, first: LogPos, count: usize) -> Vec<Part> {
    let pieces = view.layout.pieces(first, LogPos(first.0 + count as u64));
    let part = |piece: &Piece<'_>| Part {
        replicas: piece.replicas.to_vec(),
        addr: piece.addrs.start,
        first: (piece.first.0 - first.0) as usize,
        step: piece.stride as usize,
        count: piece.addrs.count() as usize,
    };
    pieces.iter().map(part).collect()
}

/// What became of one entry of a write that was answered.
fn verdict(
    inner: &Inner,
    written: &Written,
    addr: Addr,
    queued: &Queued,
    pos: LogPos,
    earlier: Earlier,
) -> Result<(), ClientError> {
    match find(&written.taken, addr) {
        None => Ok(()),
        Some(outcome) if is_own(outcome, addr, inner.id, queued.request) => Ok(()),
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
