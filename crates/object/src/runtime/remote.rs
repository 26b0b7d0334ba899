//! Handles of objects whose state a node has: the same reads and calls, asked there.

use std::cell::RefCell;

use bytes::Bytes;
use ithaca_log::client::ClientError;
use ithaca_log::limits::VIEW_QUESTION_MAX_BYTES;
use ithaca_log::pos::LogPos;

use super::handle::{Handle, Mode};
use super::slot::AnySlot;
use super::tails::Tail;
use super::transaction::{Made, Tx, own_calls};
use crate::access::Accessor;
use crate::checkpoint::Begun;
use crate::collections::Blob;
use crate::error::ObjectError;
use crate::key::Keys;
use crate::object::{Back, CallError, Mutator, Object, call_of, dropped};
use crate::planted::PlantedBug;
use crate::record::Call;
use crate::remote::{Answer, Asked, Question, Refused};
use crate::view::Look;

/// What a question is about: the state at least, or exactly, and calls on top of it.
#[derive(Default)]
struct Of {
    least: LogPos,
    at: Option<LogPos>,
    own: Vec<Call>,
    /// Whether an answer that reflects less than that is one.
    may_lack: bool,
}

impl<O: Object> Handle<O> {
    /// Whether the object's state is asked for at a node.
    pub fn is_remote(&self) -> bool {
        self.is_remote
    }

    /// Reads by an accessor, which also works where the state is at a node. Linearizable as [`Handle::read`].
    pub async fn look<A: Accessor<O>>(&self, accessor: A) -> Result<A::Output, ObjectError> {
        if self.is_remote {
            return Box::pin(self.look_there(&accessor)).await.map(|(output, _)| output);
        }
        self.read(|| accessor.keys(), |state| accessor.read(state)).await
    }

    /// The same, and the position below which what was read reflects everything.
    pub async fn look_placed<A: Accessor<O>>(&self, accessor: A) -> Result<(A::Output, LogPos), ObjectError> {
        if self.is_remote {
            return Box::pin(self.look_there(&accessor)).await;
        }
        let output = self.read(|| accessor.keys(), |state| accessor.read(state)).await?;
        let upto = match &self.mode {
            Mode::At(snapshot) => Some(*snapshot),
            Mode::In(tx) => tx.snapshot(),
            Mode::Latest | Mode::Within(_) => None,
        };
        Ok((output, upto.unwrap_or_else(|| self.slot.upto())))
    }

    /// The same for whoever writes anew what is read.
    ///
    /// Errors: `Call` if some of it was dropped here, which would be missing then.
    pub(crate) async fn look_to_move<A: Accessor<O>>(&self, accessor: A) -> Result<A::Output, ObjectError> {
        let (output, drops) = match self.is_remote {
            true => {
                let (value, _) = Box::pin(self.ask_there(&accessor)).await?;
                let output = self.decoded(rmp_serde::from_slice(&value.0).ok())?;
                let back = Back::of(&output, &value.0);
                (output, back == Back::Less)
            }
            false => (self.look(accessor).await?, self.slot.view.borrow().drops()),
        };
        if drops { Err(dropped("split").into()) } else { Ok(output) }
    }

    async fn look_there<A: Accessor<O>>(&self, accessor: &A) -> Result<(A::Output, LogPos), ObjectError> {
        let (value, upto) = self.ask_there(accessor).await?;
        Ok((self.decoded(rmp_serde::from_slice(&value.0).ok())?, upto))
    }

    async fn ask_there<A: Accessor<O>>(&self, accessor: &A) -> Result<(Blob, LogPos), ObjectError> {
        let read = || asked::<A>(A::NAME, accessor);
        match &self.mode {
            Mode::At(snapshot) => self.ask(Of { at: Some(*snapshot), ..Of::default() }, Some(read()?)).await,
            Mode::In(tx) => {
                tx.settle_snapshot().await?;
                let of = tx.touch(&self.slot, |tx| {
                    tx.note_reads(self.stream(), &accessor.keys());
                    Ok(Of { at: Some(tx.snapshot()), own: own_calls(tx, self.stream()), ..Of::default() })
                })?;
                self.ask(of, Some(read()?)).await
            }
            // The newest state is one of late too.
            Mode::Latest | Mode::Within(_) => self.ask_newest(read()?).await,
        }
    }

    /// Asks the node and the sequencer at the same time, and the node again if it is behind.
    async fn ask_newest(&self, read: Asked) -> Result<(Blob, LogPos), ObjectError> {
        let (this, question) = (self.clone(), read.clone());
        let env = &self.slot.runtime.env;
        let asking = env.spawn(async move { this.ask(Of::default(), Some(question)).await });
        let tail = self.slot.runtime.tail_of(Some(self.stream())).await;
        let first = asking.join().await;
        let tail = tail?;
        self.newest_by(first.unwrap_or(Err(ClientError::Closed.into()))?, tail, read).await
    }

    /// What the node said, if that is the newest by where the stream ends; else it is asked again. If it falls short of that too, the log may have
    /// gone back with its epoch, and it is asked where the stream ends now.
    pub(super) async fn newest_by(
        &self,
        mut told: (Blob, LogPos),
        mut tail: Tail,
        read: Asked,
    ) -> Result<(Blob, LogPos), ObjectError> {
        let mut asked = 0;
        while told.1 < tail.end() {
            let of = Of { least: tail.end(), may_lack: true, ..Of::default() };
            told = self.ask(of, Some(read.clone())).await?;
            if told.1 < tail.end() {
                tail = self.slot.runtime.tail_again(self.stream(), &mut asked).await?;
            }
        }
        Ok(told)
    }

    /// What the last of some calls gives on top of a state.
    async fn ask_result<M: Mutator<O>>(&self, of: Of) -> Result<M::Output, ObjectError> {
        let (value, _) = self.ask(of, None).await?;
        self.decoded(M::RESULT.and_then(|result| (result.decode)(&value.0)))
    }

    /// Calls a mutator of an object whose state is at a node, and gives its result and position.
    pub(super) async fn call_elsewhere<M: Mutator<O>>(
        &self,
        mutator: M,
    ) -> Result<(M::Output, Option<LogPos>), ObjectError> {
        if M::RESULT.is_none() {
            return Err(self.only_here(M::NAME));
        }
        match &self.mode {
            Mode::In(tx) => {
                let call = call_of::<O, M>(self.stream(), &mutator)?;
                Ok((self.call_there::<M>(tx, call, mutator.keys()).await?, None))
            }
            Mode::At(snapshot) => Err(self.read_only(*snapshot)),
            Mode::Latest | Mode::Within(_) => {
                let plan = self.plan(&mutator)?;
                let placed = self.slot.runtime.append(&plan).await;
                let pos = self.slot.runtime.appended(&plan, placed, None).pos().await?;
                Ok((self.result_there::<M>(pos, plan.record.calls[0].clone()).await?, Some(pos)))
            }
        }
    }

    /// The result of a call that stands at `pos`.
    async fn result_there<M: Mutator<O>>(&self, pos: LogPos, call: Call) -> Result<M::Output, ObjectError> {
        // As its record is read, the node knows that nothing can come to stand below it any more.
        let of = Of { least: LogPos(pos.0 + 1), at: Some(pos), own: vec![call], ..Of::default() };
        self.ask_result::<M>(of).await.map_err(|cause| self.slot.no_result(pos, cause))
    }

    /// Adds a call to a transaction, and gives what it gives at the snapshot.
    async fn call_there<M: Mutator<O>>(
        &self,
        tx: &Tx,
        call: Call,
        keys: Keys,
    ) -> Result<M::Output, ObjectError> {
        tx.settle_snapshot().await?;
        let (of, made) = tx.touch(&self.slot, |state| {
            let made = Made { tx, added: state.add(call, keys)? };
            Ok((
                Of { at: Some(state.snapshot()), own: own_calls(state, self.stream()), ..Of::default() },
                made,
            ))
        })?;
        made.ended(self.ask_result::<M>(of).await)
    }

    async fn ask(&self, of: Of, read: Option<Asked>) -> Result<(Blob, LogPos), ObjectError> {
        let name = || self.slot.name().to_owned();
        let calls = of.own.into_iter().map(of_call).collect();
        let (least, at) = (of.least.0, of.at.map(|at| at.0));
        let question = Question { object: O::TYPE.to_owned(), least, at, calls, read };
        let encoded = rmp_serde::to_vec_named(&question).unwrap_or_default();
        if encoded.len() > VIEW_QUESTION_MAX_BYTES {
            let (bytes, limit) = (encoded.len() as u64, VIEW_QUESTION_MAX_BYTES as u64);
            return Err(ObjectError::Remote { object: name(), refused: Refused::TooLarge { bytes, limit } });
        }
        let answer = RefCell::default();
        let is_final = |bytes: &Bytes| {
            let told = rmp_serde::from_slice(bytes).ok();
            // Another node may do better than one that does not reach the log.
            let is_final = !matches!(told, Some(Answer::Refused(Refused::Unavailable { .. })));
            answer.replace(told);
            is_final
        };
        self.slot.runtime.client.ask_view(self.stream(), encoded.into(), is_final).await?;
        match self.decoded(answer.take())? {
            Answer::Refused(refused) => Err(refused.into_error(name(), of.at.unwrap_or_default())),
            Answer::Value { upto, value } if at.map_or(upto >= least || of.may_lack, |at| upto == at) => {
                // A view reflects what is decided, and nothing else.
                if let Some(last) = upto.checked_sub(1) {
                    self.slot.runtime.decided.stands(LogPos(last));
                }
                Ok((value, LogPos(upto)))
            }
            // Whoever answers early would have us show what is not so.
            Answer::Value { upto, .. } => {
                let why = format!("it was asked for {} and reflects {upto}", at.unwrap_or(least));
                Err(ObjectError::Remote { object: name(), refused: Refused::Malformed { why } })
            }
        }
    }

    /// What came from a node, if it is what was asked for.
    fn decoded<T>(&self, value: Option<T>) -> Result<T, ObjectError> {
        let why = "its answer cannot be understood".to_owned();
        let refused = Refused::Malformed { why };
        value.ok_or_else(|| ObjectError::Remote { object: self.slot.name().to_owned(), refused })
    }

    /// Refuses what only who has the state can do.
    pub(super) fn only_here(&self, what: &'static str) -> ObjectError {
        ObjectError::OnlyLocal { object: self.slot.name().to_owned(), what }
    }

    /// Looks for who has not the state: at what reflects every position below `least`, as it is, or as it was at `at` with calls on top. Gives
    /// the position below which that reflects everything.
    pub(crate) async fn look_for_another(
        &self,
        least: LogPos,
        at: Option<LogPos>,
        own: &[Call],
        look: &mut Look<'_, O>,
    ) -> Result<LogPos, ObjectError> {
        let is_early = self.slot.runtime.options.planted.is(PlantedBug::RemoteAnswersEarly);
        if self.slot.upto() < least && !is_early {
            self.slot.read_to(least).await?;
        }
        if let Some(at) = at {
            self.slot.look_at(at, own, look).await?;
            return Ok(at);
        }
        self.slot.newest(|state, upto| {
            look(state, None);
            if is_early { upto.max(least) } else { upto }
        })
    }

    /// Records that the view reflects, and the bytes of their calls.
    pub(crate) fn read_so_far(&self) -> (u64, u64) {
        self.slot.view.borrow().progress()
    }

    /// The same of the checkpoint that it began at: what it has read since it can take back, as far as its history goes.
    pub(crate) fn began_at(&self) -> (u64, u64) {
        let Begun { count, bytes, .. } = self.slot.view.borrow().last_checkpoint().at;
        (count, bytes)
    }
}

/// A method with its arguments.
pub(super) fn asked<A: serde::Serialize>(method: &'static str, arguments: &A) -> Result<Asked, ObjectError> {
    let invalid = |error: rmp_serde::encode::Error| CallError::Arguments { method, error: error.to_string() };
    let arguments = rmp_serde::to_vec_named(arguments).map_err(invalid)?;
    Ok(Asked { method: method.to_owned(), arguments: Blob(arguments.into()) })
}

fn of_call(call: Call) -> Asked {
    Asked { method: String::from_utf8_lossy(&call.method).into_owned(), arguments: Blob(call.arguments) }
}
