//! Calls of one object that share records: whatever is there when a record is made goes into it.
//!
//! ```text
//!   submit ──┐
//!   submit ──┼──► waiting ──► lane 1: one record of all that waits ──► append ──► apply ──► each its result
//!   submit ──┘           └──► lane 2, if more comes while lane 1 is under way
//! ```
//!
//! Nobody waits for company: a record is made as soon as the tasks that are ready have run, and of what is there then. Calls gather while
//! all lanes are under way, so that records grow with the load and the log is asked for fewer of them. A record is one transaction of all its
//! calls: it has one id, it is applied once, and its calls come one after the other at one position.

use std::any::Any;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use ithaca_env::sync::oneshot;
use ithaca_log::pos::{LogPos, StreamId};
use ithaca_log::stream::{Condition, ConflictKey};

use super::handle::{Handle, Mode};
use super::slot::{AnySlot, Slot};
use crate::error::ObjectError;
use crate::key::{Key, Parts};
use crate::limits;
use crate::object::{Mutator, Object, call_of};
use crate::record::{CALL_BYTES, Call};
use crate::tx::condensed;

/// Calls that wait, by their objects.
#[derive(Default)]
pub(super) struct Batches {
    of: RefCell<BTreeMap<StreamId, Gathered>>,
}

/// What waits of one object.
#[derive(Default)]
struct Gathered {
    waiting: VecDeque<Waiting>,
    /// Bytes of it.
    bytes: usize,
    /// Tasks that make records of it.
    lanes: usize,
    /// One of them takes what waits as soon as those who are ready have run.
    is_about_to_take: bool,
}

/// What a call gave back, and where it stands.
type Done = Result<(Box<dyn Any>, LogPos), ObjectError>;

struct Waiting {
    call: Call,
    writes: Parts,
    done: oneshot::Sender<Done>,
}

impl Waiting {
    fn bytes(&self) -> usize {
        CALL_BYTES + self.call.method.len() + self.call.arguments.len()
    }
}

impl Gathered {
    /// The calls of the next record: in order, as many as fit. A call that is too long for any batch goes by itself.
    fn take(&mut self) -> Vec<Waiting> {
        let mut bytes = 0;
        let fits = |waiting: &&Waiting| {
            bytes += waiting.bytes();
            bytes <= limits::BATCH_MAX_BYTES
        };
        let count = self.waiting.iter().take(limits::BATCH_MAX_COUNT).take_while(fits).count();
        let count = count.max(1).min(self.waiting.len());
        let taken: Vec<Waiting> = self.waiting.drain(..count).collect();
        self.bytes -= taken.iter().map(Waiting::bytes).sum::<usize>();
        taken
    }
}

impl<O: Object> Handle<O> {
    /// Calls a mutator, in one record with other calls that are submitted meanwhile; otherwise as [`Handle::call`], and in a transaction the
    /// same. For many small calls at once, which cost less so. Dropped, it may still happen.
    ///
    /// Calls that share a record share its position, so there is no state between them to be read, and share its fate: one that
    /// cannot be applied stops the object before all of them.
    ///
    /// Errors: those of `call`; `Crowded` if too many wait.
    pub async fn submit<M: Mutator<O>>(&self, mutator: M) -> Result<M::Output, ObjectError> {
        self.submit_placed(mutator).await.map(|(output, _)| output)
    }

    /// The same, with the log position of the call; `None` in a transaction.
    pub async fn submit_placed<M: Mutator<O>>(
        &self,
        mutator: M,
    ) -> Result<(M::Output, Option<LogPos>), ObjectError> {
        if self.is_remote || matches!(self.mode, Mode::In(_) | Mode::At(_)) {
            return self.call_placed(mutator).await;
        }
        let call = call_of::<O, M>(self.stream(), &mutator)?;
        let writes = mutator.keys().writes;
        let (done, answer) = oneshot::channel();
        self.slot.gather(Waiting { call, writes, done })?;
        let (output, pos) = answer.await.unwrap_or(Err(ObjectError::Ended))?;
        Ok((self.downcast::<M>(Some(output))?, Some(pos)))
    }
}

impl<O: Object> Slot<O> {
    /// Lets a call wait for the next record, and has one made if there is a lane for it.
    fn gather(self: &Rc<Self>, waiting: Waiting) -> Result<(), ObjectError> {
        let mut all = self.runtime.batches.of.borrow_mut();
        let gathered = all.entry(self.stream).or_default();
        let bytes = gathered.bytes + waiting.bytes();
        if gathered.waiting.len() >= limits::SUBMITTED_MAX_COUNT || bytes > limits::SUBMITTED_MAX_BYTES {
            return Err(ObjectError::Crowded { object: self.name().to_owned() });
        }
        gathered.bytes = bytes;
        gathered.waiting.push_back(waiting);
        if !gathered.is_about_to_take && gathered.lanes < limits::BATCHES_AT_ONCE {
            gathered.lanes += 1;
            gathered.is_about_to_take = true;
            self.runtime.env.spawn(Rc::clone(self).lane());
        }
        Ok(())
    }

    /// Makes records of what waits until nothing does.
    async fn lane(self: Rc<Self>) {
        loop {
            // Whoever is about to submit may join.
            self.runtime.env.yield_now().await;
            let batch = {
                let mut all = self.runtime.batches.of.borrow_mut();
                let gathered = all.entry(self.stream).or_default();
                gathered.is_about_to_take = false;
                if gathered.waiting.is_empty() {
                    gathered.lanes -= 1;
                    if gathered.lanes == 0 {
                        all.remove(&self.stream);
                    }
                    return;
                }
                let batch = gathered.take();
                if !gathered.waiting.is_empty() && gathered.lanes < limits::BATCHES_AT_ONCE {
                    gathered.lanes += 1;
                    gathered.is_about_to_take = true;
                    self.runtime.env.spawn(Rc::clone(&self).lane());
                }
                batch
            };
            self.commit(batch).await;
        }
    }

    /// Appends one record of all of them and tells each what it gave back.
    async fn commit(self: &Rc<Self>, batch: Vec<Waiting>) {
        let (mut calls, mut writes, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
        for Waiting { call, writes: of_call, done } in batch {
            calls.push(call);
            // One that does not say what it writes may write anything.
            let of_call = if of_call.is_empty() { Key::all().into() } else { of_call };
            writes.extend(of_call.iter().map(|key| ConflictKey { stream: self.stream, key: key.hash() }));
            waiting.push(done);
        }
        match self.committed(calls, writes).await {
            Ok((outputs, pos)) => {
                assert_eq!(outputs.len(), waiting.len(), "each call gives something back");
                outputs.into_iter().zip(waiting).for_each(|(output, done)| done.send(Ok((output, pos))));
            }
            Err(error) => waiting.into_iter().for_each(|done| done.send(Err(error.clone()))),
        }
    }

    async fn committed(
        self: &Rc<Self>,
        calls: Vec<Call>,
        writes: Vec<ConflictKey>,
    ) -> Result<(Vec<Box<dyn Any>>, LogPos), ObjectError> {
        let writes = condensed(writes.into_iter());
        let condition = Condition { writes, ..Condition::default() };
        let plan = self.runtime.plan(calls, &[self.stream], condition)?;
        let (outputs, pos) = self.append(&plan).await?;
        match outputs.is_empty() {
            false => Ok((outputs, pos)),
            // The view came by it in a checkpoint.
            true => {
                let outputs = Box::pin(self.outputs_at(pos, &plan.record.calls)).await;
                Ok((outputs.map_err(|cause| self.no_result(pos, cause))?, pos))
            }
        }
    }

    /// What calls at a position give back, found out anew: each on top of those before it.
    async fn outputs_at(&self, pos: LogPos, calls: &[Call]) -> Result<Vec<Box<dyn Any>>, ObjectError> {
        let mut outputs = Vec::new();
        for last in 1..=calls.len() {
            outputs.extend(self.output_at(pos, &calls[..last]).await?);
        }
        Ok(outputs)
    }
}
