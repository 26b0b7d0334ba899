//! Committing: one entry in all streams of a transaction, once, whatever the answers that get lost.
//!
//! A commit whose outcome the log's client cannot tell is looked for in the log, and tried again under the same id if it is
//! not there; views apply an id once. An id stays open until its outcome is known: every record says below which number nothing of
//! its client is tried again, and one that may still come must not fall below that.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::Time;
use ithaca_env::task::gather;
use ithaca_log::client::{Aim, AppendTo, ClientError, EntryKind, Phase, Placed};
use ithaca_log::pos::{LogPos, StreamId};
use ithaca_log::stream::{Condition, ConflictKey};

use super::Inner;
use super::outcome::Outcome;
use super::slot::{AnySlot, Later};
use crate::error::{Aborted, ObjectError};
use crate::key::Key;
use crate::limits;
use crate::record::{Call, Record, TxId};
use crate::tx::Transaction;

/// The wait before a commit of unknown outcome is tried again.
const RETRY_WAIT: Duration = Duration::from_millis(5);

/// How often a snapshot moves to the tail because the sequencer does not remember so far back. What it remembers reaches back by many
/// writes, so that once is enough, unless a new sequencer has come meanwhile.
const MOVES_MAX: u32 = 16;

/// Ids that this program has given out and that have no outcome yet.
///
/// One whose call was dropped, or ended as `Unknown`, never has one here. When too many came after it, those that follow are of another client:
/// what came before stays open for good, and nobody has to know what became of it.
pub(super) struct OpenRequests {
    client: u64,
    /// The client before, of which calls may still be under way.
    former: Option<u64>,
    /// Below this number everything has its outcome.
    settled: u64,
    /// Of each number from there on that was given out, whether it has none.
    open: VecDeque<bool>,
}

impl OpenRequests {
    pub(super) fn new(client: u64) -> Self {
        Self { client, former: None, settled: 0, open: VecDeque::new() }
    }

    /// A new id, and the number below which everything of its client has its outcome. `other` gives the id of a client that nobody else has.
    /// Numbers go on whatever the client.
    fn open(&mut self, other: impl FnOnce() -> u64) -> (TxId, u64) {
        let request = self.settled + self.open.len() as u64;
        if self.open.len() as u64 >= limits::REQUESTS_AHEAD_MAX {
            self.former = Some(std::mem::replace(&mut self.client, other()));
            self.settled = request;
            self.open.clear();
        }
        self.open.push_back(true);
        (TxId { client: self.client, request }, self.settled)
    }

    /// Whether a record of this client is one of this program.
    pub(super) fn is_own(&self, client: u64) -> bool {
        client == self.client || Some(client) == self.former
    }

    /// The id has its outcome.
    pub(super) fn settle(&mut self, id: TxId) {
        if id.client != self.client {
            return;
        }
        let nth = id.request.checked_sub(self.settled).expect("an id has one outcome");
        self.open[nth as usize] = false;
        while self.open.front() == Some(&false) {
            self.open.pop_front();
            self.settled += 1;
        }
    }
}

/// What is to be appended: the record, its bytes, and where to.
pub(super) struct Plan {
    pub(super) record: Rc<Record>,
    pub(super) entry: Bytes,
    pub(super) aim: Rc<Aim>,
    /// When the time of the call is over, tries again included.
    pub(super) deadline: Time,
}

/// Where a record stands, now or when that is found out.
pub(super) enum Appended<'a> {
    Now(LogPos),
    Later(Later<'a, Result<LogPos, ObjectError>>),
}

impl Appended<'_> {
    /// Waits for it.
    pub(super) async fn pos(self) -> Result<LogPos, ObjectError> {
        match self {
            Self::Now(pos) => Ok(pos),
            Self::Later(pos) => pos.await,
        }
    }
}

/// What came of one attempt.
enum Tried {
    /// It stands at this position.
    Stands(LogPos),
    /// Somebody else has written what it depends on.
    Conflict(ConflictKey, LogPos),
    /// What was written below is not remembered.
    TooOld(LogPos),
    /// It certainly did not happen, and may be tried again.
    Again,
    /// It certainly did not happen.
    Failed(ClientError),
    /// It may stand at or above this position.
    Unknown(LogPos, Box<ClientError>),
}

impl Inner {
    /// When the time of a call that begins now is over.
    pub(super) fn deadline(&self) -> Time {
        self.env.now() + self.client.timeout()
    }

    /// Gives out an id.
    pub(super) fn open_request(&self) -> (TxId, u64) {
        self.requests.borrow_mut().open(|| self.env.random_u64())
    }

    /// What to append for some calls: they change `streams`, on a condition.
    pub(super) fn plan(
        &self,
        calls: Vec<Call>,
        streams: &[StreamId],
        condition: Condition,
    ) -> Result<Plan, ObjectError> {
        let aim = Rc::new(Aim::new(streams, Some(condition)).map_err(ClientError::from)?);
        let (id, settled) = self.open_request();
        let checks = aim.streams().iter().filter_map(|stream| self.slot(*stream)?.check_to_tell()).collect();
        let (record, entry) = Record { id, settled, checks, calls }.into_encoded();
        Ok(Plan { record: Rc::new(record), entry, aim, deadline: self.deadline() })
    }

    /// Begins to append the record. What comes of it is for [`Inner::appended`].
    pub(super) fn append(&self, plan: &Plan) -> AppendTo {
        self.client.append_aimed(&plan.aim, plan.entry.clone())
    }

    /// Where the record stands, by the answer to the first attempt; if that does not say, by others. `tx` is the transaction whose
    /// snapshot may have to move.
    pub(super) fn appended<'a>(
        self: &'a Rc<Self>,
        plan: &'a Plan,
        placed: Result<Placed, ClientError>,
        tx: Option<&'a mut Transaction>,
    ) -> Appended<'a> {
        match placed {
            Ok(placed) => {
                let begun = self.stands(&placed, &plan.record);
                self.requests.borrow_mut().settle(plan.record.id);
                if begun.is_empty() {
                    return Appended::Now(placed.pos);
                }
                Appended::Later(Box::pin(async move {
                    self.tell_names(begun).await;
                    Ok(placed.pos)
                }))
            }
            // In memory of its own: callers hold and move what the usual way takes only.
            placed => Appended::Later(Box::pin(self.append_again(plan, placed, tx))),
        }
    }

    /// Goes on with an append whose first attempt was answered so, until it is known what became of it.
    async fn append_again(
        self: &Rc<Self>,
        plan: &Plan,
        mut placed: Result<Placed, ClientError>,
        mut tx: Option<&mut Transaction>,
    ) -> Result<LogPos, ObjectError> {
        let (entry, mut aim) = (&plan.entry, Rc::clone(&plan.aim));
        let id = plan.record.id;
        let mut unknown: Option<(LogPos, Box<ClientError>)> = None;
        let (mut attempts, mut moves) = (0, 0);
        let result = loop {
            let tried = self.tried(placed, plan).await;
            // What is refused now may stand since an earlier attempt; and where it stands now that may be for the second time.
            if let (Tried::Conflict(..) | Tried::TooOld(_) | Tried::Stands(_), Some((after, cause))) =
                (&tried, &unknown)
            {
                match self.by(plan.deadline, self.find(aim.streams()[0], id, *after)).await {
                    Ok(Outcome::Committed { pos, is_first: true }) => break Ok(pos),
                    Ok(Outcome::NotFound { .. }) => unknown = None,
                    Ok(Outcome::Forgotten { .. } | Outcome::Committed { .. }) | Err(_) => {
                        return Err(ObjectError::Unknown { id, cause: cause.clone() });
                    }
                }
            }
            match tried {
                Tried::Stands(pos) => break Ok(pos),
                Tried::Conflict(key, pos) => break Err(self.aborted(key, pos, tx.as_deref()).into()),
                Tried::TooOld(low_water) => {
                    moves += 1;
                    if moves > MOVES_MAX {
                        break Err(ClientError::TooOld { low_water }.into());
                    }
                    match self.env.timeout_at(plan.deadline, self.moved(tx.as_deref_mut())).await {
                        Ok(Ok(snapshot)) => aim = Rc::new(aim.at(snapshot)),
                        Ok(Err(error)) => break Err(error),
                        Err(_) => break Err(self.slow().into()),
                    }
                    placed = self.append_in_time(&aim, entry, plan.deadline).await;
                    continue;
                }
                Tried::Failed(error) => match unknown {
                    None => break Err(error.into()),
                    Some((_, cause)) => return Err(ObjectError::Unknown { id, cause }),
                },
                Tried::Unknown(after, cause) => {
                    let after = unknown.map_or(after, |(earlier, _)| earlier.min(after));
                    unknown = Some((after, cause));
                }
                Tried::Again => {}
            }
            attempts += 1;
            if attempts >= self.options.attempts || self.env.now() >= plan.deadline {
                match unknown {
                    Some((_, cause)) => return Err(ObjectError::Unknown { id, cause }),
                    None => break Err(ClientError::Overtaken { pos: aim.snapshot() }.into()),
                }
            }
            self.env.sleep(RETRY_WAIT).await;
            placed = self.append_in_time(&aim, entry, plan.deadline).await;
        };
        self.requests.borrow_mut().settle(id);
        result
    }

    /// Appends once; what is under way at `deadline` may still come to stand.
    async fn append_in_time(
        &self,
        aim: &Rc<Aim>,
        entry: &Bytes,
        deadline: Time,
    ) -> Result<Placed, ClientError> {
        match self.env.timeout_at(deadline, self.client.append_aimed(aim, entry.clone())).await {
            Ok(placed) => placed,
            Err(_) => {
                let (after, cause) = (aim.snapshot(), Box::new(self.slow()));
                Err(ClientError::OutcomeUnknownAfter { after, cause })
            }
        }
    }

    /// The record stands there: views take it from memory. Gives the objects that have a name and begin with it.
    fn stands(&self, placed: &Placed, record: &Rc<Record>) -> Vec<Rc<dyn AnySlot>> {
        self.decided.stands(placed.pos);
        let mut begun = Vec::new();
        for place in &placed.places {
            if let Some(slot) = self.slot(place.stream) {
                slot.offer(placed.pos, place.end_before(), record);
                if place.previous.is_none() && StreamId::of_name(slot.name()) == place.stream {
                    begun.push(slot);
                }
            }
        }
        begun
    }

    /// Adds the names of objects to those that the log lists. That their first change stands is so whatever comes of it.
    async fn tell_names(&self, begun: Vec<Rc<dyn AnySlot>>) {
        let told = begun.iter().map(|slot| self.client.tell_name(slot.name())).collect();
        for (slot, told) in begun.iter().zip(gather(told, |_| false).await) {
            if let Some(Err(error)) = told {
                tracing::warn!(object = slot.name(), %error, "its name is not among those of the log's streams");
            }
        }
    }

    /// What `asked` gives, unless the time of a call is over before.
    async fn by<T>(
        &self,
        deadline: Time,
        asked: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        match self.env.timeout_at(deadline, asked).await {
            Ok(given) => given,
            Err(_) => Err(self.slow()),
        }
    }

    /// The time of a call is over.
    fn slow(&self) -> ClientError {
        ClientError::Slow { phase: Phase::Append, waited: self.client.timeout() }
    }

    /// What an answer of the log means; an entry at a known position is looked at.
    async fn tried(self: &Rc<Self>, placed: Result<Placed, ClientError>, plan: &Plan) -> Tried {
        match placed {
            Ok(placed) => {
                let begun = self.stands(&placed, &plan.record);
                self.tell_names(begun).await;
                Tried::Stands(placed.pos)
            }
            Err(ClientError::Conflict { key, pos }) => Tried::Conflict(key, pos),
            Err(ClientError::TooOld { low_water }) => Tried::TooOld(low_water),
            Err(ClientError::Overtaken { .. } | ClientError::NotAppended { .. }) => Tried::Again,
            Err(ClientError::OutcomeUnknown { pos, cause }) => {
                match self.by(plan.deadline, self.stands_at(pos, plan.record.id)).await {
                    Ok(true) => Tried::Stands(pos),
                    Ok(false) => Tried::Again,
                    Err(_) => Tried::Unknown(pos, cause),
                }
            }
            Err(ClientError::OutcomeUnknownAfter { after, cause }) => Tried::Unknown(after, cause),
            Err(error) => Tried::Failed(error),
        }
    }

    /// Whether the record of `id` stands at a position. Decides it: what is not there by now never will be.
    async fn stands_at(&self, pos: LogPos, id: TxId) -> Result<bool, ClientError> {
        match self.client.fill(pos).await? {
            EntryKind::Data => {}
            EntryKind::Junk => return Ok(false),
            // It was written and is forgotten: what it was is not known.
            EntryKind::Trimmed => return Err(ClientError::Damaged { pos }),
        }
        let entry = self.client.read(pos).await?;
        Ok(Record::decode(&entry.data).is_ok_and(|record| record.id == id))
    }

    /// What a transaction aborts for, with the key by its name.
    fn aborted(&self, key: ConflictKey, pos: LogPos, tx: Option<&Transaction>) -> Aborted {
        let name = tx.map_or_else(Key::all, |tx| tx.name_of(key));
        Aborted { object: self.name_of(key.stream), key: name, pos, by: None }
    }

    /// The same error, which somebody is told of, with the other transaction if that can be read.
    pub(super) async fn named(&self, error: ObjectError) -> ObjectError {
        let ObjectError::Aborted(aborted @ Aborted { by: None, .. }) = error else { return error };
        let entry = self.client.read(aborted.pos).await.ok();
        let by = entry.and_then(|entry| Record::decode(&entry.data).ok()).map(|record| record.id);
        Aborted { by, ..aborted }.into()
    }

    /// The snapshot to go on at where the sequencer does not remember far enough back: the newest there is. Its low-water mark would be
    /// too old again by the time it is asked about, because it moves on with every write.
    async fn moved(self: &Rc<Self>, tx: Option<&mut Transaction>) -> Result<LogPos, ObjectError> {
        let mut snapshot = self.decided_tail().await?;
        if let Some(tx) = tx {
            snapshot = snapshot.max(tx.snapshot());
            self.validate(tx, snapshot).await?;
            tx.move_to(snapshot);
        }
        Ok(snapshot)
    }

    /// Looks at what was written to the objects that a transaction depends on from its snapshot up to `upto`, in place of the sequencer.
    async fn validate(&self, tx: &Transaction, upto: LogPos) -> Result<(), ObjectError> {
        for stream in tx.depends_on() {
            let Some(slot) = self.slot(stream) else { continue };
            let mut next = tx.snapshot();
            while next < upto {
                let part = self.client.read_stream(stream, next..upto, self.options.read_bytes).await?;
                // What was forgotten meanwhile may have been in its way.
                if let Some(pos) = part.trimmed {
                    let object = slot.name().to_owned();
                    return Err(Aborted { object, key: Key::all(), pos, by: None }.into());
                }
                for entry in &part.entries {
                    let Ok(record) = Record::decode(&entry.data) else { continue };
                    let conflict = tx.check_against(stream, entry.pos, &record, |call| slot.keys_of(call))?;
                    if let Some(conflict) = conflict {
                        let (key, pos, by) = (conflict.key, conflict.pos, conflict.by);
                        return Err(Aborted { object: slot.name().to_owned(), key, pos, by }.into());
                    }
                }
                next = part.upto;
            }
        }
        Ok(())
    }
}
