//! A handle of an object: reads and calls, now, as of a position, or in a transaction.

use std::any::Any;
use std::rc::Rc;
use std::time::Duration;

use ithaca_log::client::{Aim, ClientError};
use ithaca_log::pos::{LogPos, StreamId};
use ithaca_log::stream::{Condition, ConflictKey};

use super::Runtime;
use super::append::Plan;
use super::slot::{AnySlot, Slot};
use super::transaction::{Begin, Tx, TxOptions};
use crate::checkpoint::chunk::Chunk;
use crate::error::ObjectError;
use crate::key::{Key, Keys, Parts};
use crate::object::{CallError, Mutator, Object, call_of, empty_call, encoded, keys_of};
use crate::record::Record;
use crate::tx::condensed;
use crate::view::Look;

/// What reads are of, and where calls go.
#[derive(Clone)]
pub(super) enum Mode {
    /// The newest state: linearizable.
    Latest,
    /// A state that was the newest at some moment within this span.
    Within(Duration),
    /// The state that reflects every position below this one.
    At(LogPos),
    /// A transaction's snapshot and what it wrote itself.
    In(Tx),
}

/// An open object. Cheap to clone.
pub struct Handle<O: Object> {
    pub(super) slot: Rc<Slot<O>>,
    pub(super) mode: Mode,
    /// Whether the state is at a node.
    pub(super) is_remote: bool,
}

impl<O: Object> Clone for Handle<O> {
    fn clone(&self) -> Self {
        Self { slot: Rc::clone(&self.slot), mode: self.mode.clone(), is_remote: self.is_remote }
    }
}

impl<O: Object> Handle<O> {
    pub(super) fn new(slot: Rc<Slot<O>>, is_remote: bool) -> Self {
        Self { slot, mode: Mode::Latest, is_remote }
    }

    /// The object's stream.
    pub fn stream(&self) -> StreamId {
        self.slot.stream
    }

    /// The object in a transaction: reads are of its snapshot and of what it wrote; calls take effect when it commits.
    pub fn within(&self, tx: &Tx) -> Self {
        Self { mode: Mode::In(tx.clone()), ..self.clone() }
    }

    /// The object as it was when it reflected every position of the log below `snapshot`. It can be read and not changed.
    pub fn at(&self, snapshot: LogPos) -> Self {
        Self { mode: Mode::At(snapshot), ..self.clone() }
    }

    /// The object for reads that may be as old as `bound`: they ask the sequencer only if nobody has within that time.
    pub fn stale(&self, bound: Duration) -> Self {
        Self { mode: Mode::Within(bound), ..self.clone() }
    }

    /// Whether what it does is part of a transaction.
    pub(crate) fn is_in_transaction(&self) -> bool {
        matches!(self.mode, Mode::In(_))
    }

    /// Reads the object. `keys` says what part of it, for transactions: what `read` returns MUST depend on nothing else.
    ///
    /// Outside of a transaction it is linearizable: it reflects everything that was acknowledged before the call.
    pub async fn read<T, P: Into<Parts>>(
        &self,
        keys: impl FnOnce() -> P,
        read: impl FnOnce(&O) -> T,
    ) -> Result<T, ObjectError> {
        let keys = if matches!(self.mode, Mode::In(_)) { keys().into() } else { Parts::None };
        let (mut read, mut found) = (Some(read), None);
        let mut look = |state: &O, _: Option<Box<dyn Any>>| found = read.take().map(|read| read(state));
        self.look_by(&keys, &mut look).await?;
        Ok(found.expect("it was looked at"))
    }

    async fn look_by(&self, keys: &Parts, look: &mut Look<'_, O>) -> Result<(), ObjectError> {
        if self.is_remote {
            return Err(self.only_here("a read by a closure"));
        }
        match &self.mode {
            Mode::Latest => self.slot.sync().await?,
            Mode::Within(bound) => self.slot.sync_within(*bound).await?,
            Mode::At(snapshot) if self.slot.can_read_at(*snapshot) => {
                return self.slot.look_here(*snapshot, &[], look);
            }
            Mode::At(snapshot) => return Box::pin(self.slot.look_at(*snapshot, &[], look)).await,
            Mode::In(tx) => return tx.look(&self.slot, keys, look).await,
        }
        self.slot.newest(|state, _| look(state, None))
    }

    /// A copy of the state, of the same moment as any other read of this handle. It is read by plain functions as often as one likes; what is
    /// written later is not in it. Making it takes time and memory by how large the state is; blobs share their bytes with it. For a
    /// transaction it is a read of the whole object.
    pub async fn state(&self) -> Result<O, ObjectError>
    where
        O: Clone,
    {
        self.read(Key::all, O::clone).await
    }

    /// Calls a mutator and gives its result. On return the call is on stable storage and applied; in a transaction it takes
    /// effect when that commits, and the result is what it is at the snapshot, which the commit checks.
    ///
    /// Errors: `Unknown` (it may have happened); `NoResult` (it happened); `Stopped` (it is in the log, and the object stops at it or before
    /// it); after any other one it did not happen. Dropped, it may happen; in a transaction it does not.
    pub fn call<M: Mutator<O>>(&self, mutator: M) -> impl Future<Output = Result<M::Output, ObjectError>> {
        self.call_for(mutator, |output, _| output)
    }

    /// The same, with the log position of the call; `None` in a transaction.
    pub fn call_placed<M: Mutator<O>>(
        &self,
        mutator: M,
    ) -> impl Future<Output = Result<(M::Output, Option<LogPos>), ObjectError>> {
        self.call_for(mutator, |output, pos| (output, pos))
    }

    /// The same, with what `give` makes of the result and the position. One future: each that is around another is moved with it.
    async fn call_for<M: Mutator<O>, T>(
        &self,
        mutator: M,
        give: impl FnOnce(M::Output, Option<LogPos>) -> T,
    ) -> Result<T, ObjectError> {
        if self.is_remote {
            let (output, pos) = Box::pin(self.call_elsewhere(mutator)).await?;
            return Ok(give(output, pos));
        }
        match &self.mode {
            Mode::In(tx) => {
                let call = call_of::<O, M>(self.stream(), &mutator)?;
                let keys = mutator.keys();
                let output = Box::pin(tx.call(&self.slot, call, keys)).await?;
                Ok(give(self.downcast::<M>(output)?, None))
            }
            Mode::At(snapshot) => Err(self.read_only(*snapshot)),
            Mode::Latest | Mode::Within(_) => {
                let plan = self.plan(&mutator)?;
                drop(mutator);
                let (mut outputs, pos) = self.slot.append(&plan).await?;
                let output = match outputs.pop() {
                    Some(output) => Some(output),
                    // The view came by it in a checkpoint.
                    None => {
                        let output = Box::pin(self.slot.output_at(pos, &plan.record.calls)).await;
                        output.map_err(|cause| self.slot.no_result(pos, cause))?
                    }
                };
                Ok(give(self.downcast::<M>(output)?, Some(pos)))
            }
        }
    }

    /// Calls a mutator without its result, so that nothing needs to be read. Gives its log position, `None` in a transaction.
    /// Errors as of [`Handle::call`].
    pub async fn send<M: Mutator<O>>(&self, mutator: M) -> Result<Option<LogPos>, ObjectError> {
        match &self.mode {
            Mode::In(tx) => {
                if self.is_remote {
                    Box::pin(tx.settle_snapshot()).await?;
                }
                let call = call_of::<O, M>(self.stream(), &mutator)?;
                // Nobody sees what it found, so it may find whatever is there when it is applied.
                let keys = Keys { reads: Parts::None, ..mutator.keys() };
                tx.add(&self.slot, call, keys).map(|()| None)
            }
            Mode::At(snapshot) => Err(self.read_only(*snapshot)),
            Mode::Latest | Mode::Within(_) => {
                let plan = self.plan(&mutator)?;
                drop(mutator);
                let placed = self.slot.runtime.append(&plan).await;
                self.slot.runtime.appended(&plan, placed, None).pos().await.map(Some)
            }
        }
    }

    /// Sends all that `send` sends through the handle that it is given, at one position: all of it or nothing. Gives that position; `None` in a
    /// transaction, or if nothing was sent. Errors as of [`Handle::call`], and those of a transaction that is too large.
    pub(crate) async fn send_all(
        &self,
        send: impl AsyncFnOnce(&Self) -> Result<(), ObjectError>,
    ) -> Result<Option<LogPos>, ObjectError> {
        match &self.mode {
            Mode::In(tx) => tx.nested(async |_| send(self).await).await.map(|()| None),
            Mode::At(snapshot) => Err(self.read_only(*snapshot)),
            Mode::Latest | Mode::Within(_) => {
                let runtime = Runtime { inner: Rc::clone(&self.slot.runtime) };
                // Nothing is read, so neither the sequencer nor a node is asked where the snapshot is.
                let tx = runtime.begin(&TxOptions { begin: Begin::Local, ..TxOptions::default() }).await?;
                send(&Self { is_remote: false, ..self.within(&tx) }).await?;
                Ok(tx.commit().await?.record.map(|(_, pos)| pos))
            }
        }
    }

    /// Whether a call of this type of object may be the next of the stream. The object must be one that can be read: if it has no checkpoint, its
    /// first entry is there, else what came first after the newest. And its newest entry, if there is one, must be a record of calls
    /// that the type has, with arguments that it can read; where all are forgotten, its newest checkpoint must be a state of the type. Else the
    /// call would stop every view of the object for good, and who only sends it would not notice. It costs two questions and three short reads; without
    /// entries, what reading the newest checkpoint costs. Of two programs that begin a stream at the same moment, neither sees the other here.
    ///
    /// Errors: `Trimmed`, `OtherEntries`, and those of the log.
    pub async fn check_type(&self) -> Result<(), ObjectError> {
        let stream = self.stream();
        self.slot.check_beginning().await?;
        let Some(entry) = self.slot.runtime.client.newest(stream).await? else {
            return self.slot.check_checkpoint().await;
        };
        let found = match Record::decode(&entry.data) {
            Ok(record) => {
                let mut calls = record.calls.iter().filter(|call| call.stream == stream);
                calls.find_map(|call| match keys_of::<O>(call).err()? {
                    CallError::Arguments { method, error } => {
                        Some(format!("calls `{method}` with arguments of another type ({error})"))
                    }
                    _ => Some(format!("calls `{}`", String::from_utf8_lossy(&call.method))),
                })
            }
            Err(_) if Chunk::is_break(&entry.data, stream) => return self.slot.check_checkpoint().await,
            Err(_) => Some("is no record of an object".to_owned()),
        };
        let (object, wanted, pos) = (self.slot.name().to_owned(), O::TYPE, entry.pos);
        found.map_or(Ok(()), |found| Err(ObjectError::OtherEntries { object, wanted, pos, found }))
    }

    /// Runs `body` as one transaction, again after conflicts; inside of the transaction that this handle is in, if it is in one.
    pub async fn transact<T, E: From<ObjectError>>(
        &self,
        body: impl AsyncFn(&Tx) -> Result<T, E>,
    ) -> Result<T, E> {
        match &self.mode {
            Mode::In(tx) => tx.nested(body).await,
            Mode::At(snapshot) => Err(self.read_only(*snapshot).into()),
            Mode::Latest | Mode::Within(_) => {
                let runtime = Runtime { inner: Rc::clone(&self.slot.runtime) };
                let (value, _) = runtime.transact(&TxOptions::default(), body).await?;
                Ok(value)
            }
        }
    }

    /// What to append for one call that depends on nothing.
    pub(super) fn plan<M: Mutator<O>>(&self, mutator: &M) -> Result<Plan, ObjectError> {
        let (stream, runtime) = (self.stream(), &self.slot.runtime);
        let writes =
            condensed(mutator.keys().writes.iter().map(|key| ConflictKey { stream, key: key.hash() }));
        let condition = Condition { writes, ..Condition::default() };
        let aim = Aim::new(&[stream], Some(condition)).map_err(ClientError::from)?;
        let (record, entry) = encoded::<O, M, _>(mutator, |arguments| {
            let (id, settled) = runtime.open_request();
            let (check, call) = (self.slot.check_to_tell(), empty_call::<O, M>(stream));
            Record::of_call(id, settled, check, call, arguments)
        })?;
        let deadline = runtime.deadline();
        Ok(Plan { record: Rc::new(record), entry, aim: Rc::new(aim), deadline })
    }

    pub(super) fn read_only(&self, snapshot: LogPos) -> ObjectError {
        ObjectError::ReadOnly { object: self.slot.name().to_owned(), snapshot }
    }

    pub(super) fn downcast<M: Mutator<O>>(
        &self,
        output: Option<Box<dyn Any>>,
    ) -> Result<M::Output, ObjectError> {
        let output = output.and_then(|output| output.downcast::<M::Output>().ok());
        Ok(*output
            .expect("a method's result has the method's type, and is there when its record is reflected"))
    }
}
