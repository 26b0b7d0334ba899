//! Batches that go whole to a sequencer that forwards them: one message, one answer.
//!
//! A copy whose answer was lost may have been granted positions, or may yet be when it arrives late. The same batch sent
//! again, in the same epoch, is granted what the first copy was. When the epoch is over, or the sequencer has forgotten,
//! no copy can be granted anything any more, and the entries are searched for where they can be. Only what certainly
//! stands nowhere is appended again. (docs/protocol/append.md)

use std::collections::BTreeMap;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::Time;

use super::append::{Batch, Placed, Queued, RETRY_WAIT};
use super::connection::{Answered, CallError};
use super::error::{ClientError, Phase};
use super::read::EntryKind;
use super::resolve::Search;
use super::tokens::{self, Sorted};
use super::write::Earlier;
use super::{Inner, View};
use crate::entry::{StreamGroup, StreamPlaces};
use crate::limits;
use crate::pos::{Epoch, LogPos};
use crate::wire::{self, Appended, BatchHead, Head, Kind, Refusal};

/// What came of a copy that was sent.
type Answer = Result<(Appended, Bytes, Epoch), CallError>;

/// A batch on its way.
struct Sending {
    batch: Batch,
    view: View,
    /// Every grant for the batch in the view's epoch lies at or above.
    after: LogPos,
    /// Whether a copy whose outcome is not known was sent in the view's epoch.
    is_unsure: bool,
}

/// What comes next for a batch that has no positions.
enum Next {
    /// Its answer, of a copy that was sent.
    Answer(Answered<Appended>),
    /// To be sent again.
    Send,
    /// To go the way of tokens.
    Tokens,
    /// Nothing: every entry is settled, or queued again.
    Done,
}

impl Batch {
    /// Sends the batch on the open connection to the sequencer; `None` if there is none.
    pub(super) fn send_whole(&self, view: &View, after: LogPos) -> Option<Answered<Appended>> {
        let connection = self.inner.open_connection(view.layout.sequencer)?;
        let epoch = view.layout.epoch;
        let first = self.entries[0].request;
        let batch = BatchHead { client: self.inner.id, number: self.number, request: first, after };
        let consecutive = (0..).zip(&self.entries).all(|(nth, queued)| first.after(nth) == queued.request);
        assert!(consecutive, "a batch is appends in a row");
        let tables = self.entries.iter().map(|queued| queued.table);
        let data = self.entries.iter().map(|queued| queued.entry.clone());
        let encode = |id, out: &mut _| {
            wire::encode_append_head(out, Head::new(id, epoch), &batch, tables, &self.groups);
        };
        Some(connection.call_with::<Appended>(&self.inner.env, encode, data, self.deadline()))
    }

    /// Settles the batch, whose first copy was sent in the epoch of `view`, and answered so; `None` if it was not sent.
    pub(super) async fn forward(self, view: View, after: LogPos, answer: Option<Answer>) {
        let sending = Sending { batch: self, view, after, is_unsure: false };
        let rest = match answer {
            Some(Ok((appended, _, _))) if sending.is_answer(&appended) => sending.place(appended),
            // In memory of its own: most batches need none of it.
            answer => Some(Box::pin(sending.go_on(answer)) as Rest),
        };
        if let Some(rest) = rest {
            rest.await;
        }
    }
}

/// What is left to do about a batch.
type Rest = Pin<Box<dyn Future<Output = ()>>>;

impl Sending {
    /// Sends the batch until it is known what became of it, from this answer on.
    async fn go_on(mut self, mut answer: Option<Answer>) {
        loop {
            let error = match answer {
                Some(Ok((appended, _, _))) if self.is_answer(&appended) => {
                    if let Some(rest) = self.place(appended) {
                        rest.await;
                    }
                    return;
                }
                Some(Ok(_)) => {
                    self.is_unsure = true;
                    Some(CallError::Mismatch { asked: Kind::Append, answered: Kind::Appended })
                }
                Some(Err(error)) => {
                    // A refused copy did nothing, and it was the only one of its request.
                    self.is_unsure |= !matches!(error, CallError::Refused(_));
                    Some(error)
                }
                None => None,
            };
            let mut next = match error {
                Some(error) => self.after_error(error).await,
                None => Ok(Next::Send),
            };
            if matches!(next, Ok(Next::Send)) {
                next = self.send_again().await;
            }
            answer = match next {
                Ok(Next::Answer(answer)) => Some(answer.await),
                Ok(Next::Send) => None,
                Ok(Next::Tokens) => return self.by_tokens().await,
                Ok(Next::Done) => return,
                Err(error) => return self.fail(error),
            };
        }
    }

    fn is_answer(&self, appended: &Appended) -> bool {
        let is_whole = match self.batch.groups.is_empty() {
            true => appended.groups.is_empty() && appended.count as usize == self.batch.entries.len(),
            false => tokens::are_answers(&self.batch.groups, &appended.groups),
        };
        is_whole && appended.first >= self.after
    }

    /// The batch has its positions: either it is written, or the client sees to that, which is the rest.
    fn place(mut self, appended: Appended) -> Option<Rest> {
        let (inner, first) = (self.batch.inner.clone(), appended.first);
        inner.note_granted(self.view.layout.epoch, LogPos(first.0 + u64::from(appended.count)));
        if self.batch.groups.is_empty() {
            if !appended.written {
                return Some(self.write(first, Vec::new()));
            }
            for (pos, queued) in (first.0..).zip(self.batch.entries.drain(..)) {
                inner.appender.finish(queued, Ok(Placed { pos: LogPos(pos), places: StreamPlaces::new() }));
            }
            return None;
        }
        let entries = std::mem::take(&mut self.batch.entries);
        let Sorted { granted, groups, refused } = tokens::sort(entries, &self.batch.groups, appended.groups);
        let is_all = refused.is_empty();
        for (queued, error) in refused {
            inner.appender.finish(queued, Err(error));
        }
        if is_all && !appended.written {
            self.batch.entries = granted;
            return Some(self.write(first, groups));
        }
        let granted = granted.into_iter().zip(tokens::placed(first, &groups));
        if !appended.written {
            return Some(Box::pin(self.resolve_each(granted.collect())));
        }
        granted.for_each(|(queued, placed)| inner.appender.finish(queued, Ok(placed)));
        None
    }

    fn write(self, first: LogPos, groups: Vec<StreamGroup>) -> Rest {
        let Self { batch, view, .. } = self;
        Box::pin(async move { batch.write(&view, first, groups, Earlier::MayBe).await })
    }

    /// Finds out what became of entries that have positions, of which some are not written. Their numbers have gaps where others were
    /// refused, so they are no batch that could be written again.
    async fn resolve_each(self, granted: Vec<(Queued, Placed)>) {
        let (inner, epoch) = (self.batch.inner.clone(), self.view.layout.epoch);
        self.batch.note_placed();
        let (mut again, mut places, mut doubtful) = (Vec::new(), BTreeMap::new(), Vec::new());
        for (queued, Placed { pos, places: own }) in granted {
            doubtful.push((pos, queued));
            places.insert(pos, own);
        }
        for (queued, found) in inner.resolve(epoch, doubtful, None, Earlier::Stored).await {
            match found {
                Ok(pos) => {
                    let places = places.remove(&pos).expect("it was granted this position");
                    inner.appender.finish(queued, Ok(Placed { pos, places }));
                }
                Err(ClientError::Overtaken { .. }) if inner.may_retry(&queued) => again.push(queued),
                Err(error) => inner.appender.finish(queued, Err(error)),
            }
        }
        inner.appender.put_back(again);
    }

    /// What to do after `error`: an error only if nothing more can be done.
    async fn after_error(&mut self, error: CallError) -> Result<Next, ClientError> {
        self.batch.note_late();
        let inner = self.batch.inner.clone();
        if let CallError::Refused(Refusal::Forgotten { from }) = error {
            inner.note_granted(self.view.layout.epoch, from);
            // A copy stands below, or never will anywhere: what was forgotten is refused for ever.
            let next = match self.is_unsure {
                true => self.search(self.after..from, error).await?,
                false => Next::Send,
            };
            // Not before: a search that failed has found nothing out about what lies below.
            self.after = from;
            if matches!(next, Next::Send) {
                // No copy is on its way that counts, so any position that the log has reached will do, and one at its end is not forgotten
                // for long. With `from` each copy would come too late while others append, and cost the sequencer a look at all grants.
                inner.tails_by(&[], self.batch.deadline()).await?;
                self.after = from.max(inner.granted_below(&self.view));
            }
            return Ok(next);
        }
        let error = self.batch.failed(&self.view, Phase::Append, error);
        if !inner.worth_retrying(&error, self.batch.deadline()) {
            return Err(error);
        }
        inner.forget_view(&Some(self.view.clone()));
        inner.env.sleep(inner.wait_after(Some(&error), RETRY_WAIT)).await;
        Ok(Next::Send)
    }

    /// Sends the batch in its turn, in the newest epoch, once it is certain that an older one holds no copy.
    async fn send_again(&mut self) -> Result<Next, ClientError> {
        let (inner, deadline) = (self.batch.inner.clone(), self.batch.deadline());
        loop {
            self.batch.turn(Phase::Append).await?;
            let view = inner.view_by(deadline).await?;
            if view.layout.epoch > self.view.layout.epoch {
                let epoch = self.view.layout.epoch;
                if self.is_unsure {
                    let Some(tail) = view.decided_tail(epoch) else {
                        let error = CallError::Refused(Refusal::NoLayout { epoch });
                        return Err(self.batch.failed(&view, Phase::Resolve, error));
                    };
                    let cause = CallError::Refused(Refusal::Sealed { sealed: epoch });
                    if let Next::Done = self.search(self.after..tail, cause).await? {
                        return Ok(Next::Done);
                    }
                }
                self.after = inner.granted_below(&view);
                if !view.forwards(&inner.options) {
                    return Ok(Next::Tokens);
                }
            }
            if view.layout.epoch >= self.view.layout.epoch {
                self.view = view.clone();
            }
            match inner.connection(&view, view.layout.sequencer, deadline).await {
                Ok(_) if view.layout.epoch == self.view.layout.epoch => {
                    if let Some(answer) = self.batch.send_whole(&view, self.after) {
                        return Ok(Next::Answer(answer));
                    }
                }
                Err(error) if !inner.worth_retrying(&error, deadline) => return Err(error),
                _ => {}
            }
            inner.forget_view(&Some(view));
            inner.env.sleep(RETRY_WAIT).await;
        }
    }

    /// Looks for the entries at `positions`, where no further copy of them can come to stand. Those found have succeeded;
    /// if none is, the batch may be sent again; else the rest is queued again.
    async fn search(&mut self, positions: Range<LogPos>, cause: CallError) -> Result<Next, ClientError> {
        let (inner, deadline) = (self.batch.inner.clone(), self.batch.deadline());
        let cause = self.batch.failed(&self.view, Phase::Append, cause);
        let not_appended = || ClientError::NotAppended { cause: Box::new(cause.clone()) };
        let count = positions.end.0.saturating_sub(positions.start.0);
        if count > limits::SEARCH_MAX_COUNT {
            return Err(cause);
        }
        let first = self.batch.entries[0].request.0;
        let requests = first..first + self.batch.entries.len() as u64;
        let search = match count {
            0 => Search::default(),
            _ => inner.search(requests, positions.clone(), deadline).await?,
        };
        if search.is_empty() {
            // With a copy that may have been trimmed, the outcome stays unknown.
            self.is_unsure = search.has_trimmed();
            return match self.is_unsure {
                true => Err(cause),
                false if inner.options.retry_appends => Ok(Next::Send),
                false => Err(not_appended()),
            };
        }
        let (mut again, mut found) = (Vec::new(), Vec::new());
        for queued in std::mem::take(&mut self.batch.entries) {
            let error = match search.position(queued.request) {
                Some(pos) => {
                    found.push((pos, queued));
                    continue;
                }
                None if search.has_trimmed() => ClientError::OutcomeUnknownAfter {
                    after: positions.start,
                    cause: Box::new(cause.clone()),
                },
                None if inner.may_retry(&queued) => {
                    again.push(queued);
                    continue;
                }
                None => not_appended(),
            };
            inner.appender.finish(queued, Err(error));
        }
        inner.appender.put_back(again);
        // Later batches need not wait for what is read of these.
        self.batch.note_placed();
        inner.appender.changed().ring();
        inner.tell_found(found, deadline).await;
        Ok(Next::Done)
    }

    async fn by_tokens(self) {
        let answer = self.batch.ask_in_turn().await;
        self.batch.place(None, answer).await
    }

    /// Ends every entry with an error: `error` if it certainly was not appended.
    fn fail(self, error: ClientError) {
        let error = match self.is_unsure {
            true => ClientError::OutcomeUnknownAfter { after: self.after, cause: Box::new(error) },
            false => error,
        };
        self.batch.fail_all(&error);
    }
}

impl Inner {
    /// Tells of entries where they were found. Those of streams have their places in them, which they say themselves, if they can be read by
    /// `deadline`.
    async fn tell_found(self: &Rc<Self>, found: Vec<(LogPos, Queued)>, deadline: Time) {
        let mut in_streams = BTreeMap::new();
        for (pos, queued) in found {
            match queued.aim {
                None => self.appender.finish(queued, Ok(Placed { pos, places: StreamPlaces::new() })),
                Some(_) => _ = in_streams.insert(pos, queued),
            }
        }
        while !in_streams.is_empty() {
            let positions: Vec<LogPos> = in_streams.keys().copied().collect();
            let read = self.read_many_by(&positions, deadline).await;
            let mut tell = |pos, places: Result<StreamPlaces, ClientError>| {
                let Some(queued) = in_streams.remove(&pos) else { return };
                let unknown = |error| ClientError::OutcomeUnknown { pos, cause: Box::new(error) };
                let placed = places.map(|places| Placed { pos, places }).map_err(unknown);
                self.appender.finish(queued, placed);
            };
            match read {
                Ok(entries) => entries.into_iter().for_each(|entry| match entry.kind {
                    EntryKind::Data => tell(entry.pos, Ok(entry.streams)),
                    // It was trimmed meanwhile.
                    EntryKind::Junk | EntryKind::Trimmed => {
                        tell(entry.pos, Err(ClientError::Unwritten { pos: entry.pos }));
                    }
                }),
                // It says nothing of the others.
                Err(error @ ClientError::Damaged { pos }) if positions.contains(&pos) => {
                    tell(pos, Err(error))
                }
                Err(error) => positions.into_iter().for_each(|pos| tell(pos, Err(error.clone()))),
            }
        }
    }
}
