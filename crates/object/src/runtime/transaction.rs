//! Transactions over open objects: begin, reads and calls through handles, commit; and the loop that runs one again.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use ithaca_log::pos::{LogPos, StreamId};

use super::slot::{AnySlot, Later, Slot};
use super::{Inner, Runtime};
use crate::error::ObjectError;
use crate::key::{Key, Keys, Parts};
use crate::limits;
use crate::object::Object;
use crate::record::{Call, TxId};
use crate::tx::{Added, Isolation, Level, Transaction};
use crate::view::Look;

/// The first wait before a transaction is run again; it doubles, up to the other.
const BACK_OFF: Duration = Duration::from_micros(200);
const BACK_OFF_MAX: Duration = Duration::from_millis(100);

/// Which snapshot a transaction reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Begin {
    /// The newest: everything is in it that was acknowledged before the transaction began. Asks the sequencer.
    #[default]
    Newest,
    /// What the view of the first object that is read reflects. Asks nobody. A transaction that writes is as strict as any other, because
    /// its commit is checked; one that only reads may see an old state.
    Local,
    /// The state that reflects every position below this one. Asks nobody.
    At(LogPos),
}

/// How transactions behave.
#[derive(Clone, Debug)]
pub struct TxOptions {
    /// What they are held to.
    pub isolation: Isolation,
    /// Which snapshot they read.
    pub begin: Begin,
    /// How often [`Runtime::transact`] runs one again that aborted; with [`Begin::At`] it never does.
    pub retries: u32,
}

impl Default for TxOptions {
    fn default() -> Self {
        Self { isolation: Isolation::Strict, begin: Begin::Newest, retries: 100 }
    }
}

/// What was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The snapshot that was read.
    pub snapshot: Option<LogPos>,
    /// The transaction and where it stands in the log; `None` if it wrote nothing.
    pub record: Option<(TxId, LogPos)>,
}

enum State {
    Running {
        tx: Transaction,
        /// No object was read yet, and the first one gives the snapshot.
        is_unset: bool,
    },
    Ended,
}

struct TxInner {
    runtime: Rc<Inner>,
    state: RefCell<State>,
    /// Objects of which calls were sent that nobody has made on the snapshot.
    untried: RefCell<BTreeSet<StreamId>>,
    /// Objects that it has touched stay open until it ends; in the order of their streams.
    slots: RefCell<Vec<(StreamId, Rc<dyn AnySlot>)>>,
    /// What is done once it has committed, for each of some objects.
    after: RefCell<Vec<(StreamId, Later<'static, ()>)>>,
}

/// A transaction. Clones are the same one. One that is dropped without a commit aborts: nothing of it is in the log.
#[derive(Clone)]
pub struct Tx {
    inner: Rc<TxInner>,
}

impl Runtime {
    /// Begins a transaction.
    pub async fn begin(&self, options: &TxOptions) -> Result<Tx, ObjectError> {
        let snapshot = match options.begin {
            Begin::Newest => Some(Box::pin(self.inner.decided_tail()).await?),
            Begin::Local => None,
            Begin::At(snapshot) => Some(snapshot),
        };
        Ok(self.begin_at(options, snapshot))
    }

    /// Begins a transaction at a snapshot, or at that of its first read.
    fn begin_at(&self, options: &TxOptions, snapshot: Option<LogPos>) -> Tx {
        let planted = self.inner.options.planted;
        let tx = Transaction::new(snapshot.unwrap_or_default(), options.isolation, planted);
        let state = State::Running { tx, is_unset: snapshot.is_none() };
        let inner = TxInner {
            runtime: Rc::clone(&self.inner),
            state: RefCell::new(state),
            untried: RefCell::default(),
            slots: RefCell::default(),
            after: RefCell::default(),
        };
        Tx { inner: Rc::new(inner) }
    }

    /// Runs `body` in a transaction and commits it; again, after a while, if it aborts because of a conflict. With [`Begin::Local`] that is at
    /// once the first time, if the views have by then what was in its way; with [`Begin::At`] never, as the same would be in its way. An error of
    /// `body` aborts it and is returned: what it saw was one snapshot, so the error is not one of timing.
    ///
    /// Errors: those of `body`; `Aborted` after as many runs as the options allow; `Unknown` (it may be committed).
    pub async fn transact<T, E: From<ObjectError>>(
        &self,
        options: &TxOptions,
        body: impl AsyncFn(&Tx) -> Result<T, E>,
    ) -> Result<(T, Committed), E> {
        let mut options = options.clone();
        let (mut wait, mut runs_left) = (BACK_OFF, options.retries);
        loop {
            let tx = match options.begin {
                Begin::Newest => Box::pin(self.begin(&options)).await?,
                Begin::Local => self.begin_at(&options, None),
                Begin::At(snapshot) => self.begin_at(&options, Some(snapshot)),
            };
            let value = body(&tx).await?;
            match tx.commit_unnamed().await {
                Ok(committed) => return Ok((value, committed)),
                // What was in the way of a given snapshot always will be.
                Err(ObjectError::Aborted(aborted))
                    if runs_left > 0 && !matches!(options.begin, Begin::At(_)) =>
                {
                    // Those who were told together with it go on first, and the views then have what they wrote. If that was in the way it runs
                    // again with them: later it would be a batch by itself, and so would whatever follows it.
                    let is_first = runs_left == options.retries;
                    runs_left -= 1;
                    if options.begin == Begin::Local && is_first {
                        self.inner.env.yield_now().await;
                        if tx.reflects(aborted.pos) {
                            continue;
                        }
                    }
                    let jitter = self.inner.env.random_u64() % (wait.as_micros() as u64);
                    self.inner.env.sleep(wait / 2 + Duration::from_micros(jitter)).await;
                    wait = (2 * wait).min(BACK_OFF_MAX);
                    // What was in the way may not be in the views yet.
                    if options.begin == Begin::Local && !tx.reflects(aborted.pos) {
                        options.begin = Begin::Newest;
                    }
                }
                Err(error) => return Err(Box::pin(self.inner.named(error)).await.into()),
            }
        }
    }
}

impl Tx {
    /// The snapshot of its reads; `None` if it takes that of its first read.
    pub fn snapshot(&self) -> Option<LogPos> {
        match &*self.inner.state.borrow() {
            State::Running { tx, is_unset: false } => Some(tx.snapshot()),
            State::Running { .. } | State::Ended => None,
        }
    }

    /// Commits it. On success everything that it wrote is on stable storage, at one position; a transaction that wrote nothing asks nobody. Maps of
    /// many objects are then split where it has made them too large.
    /// Panics if a nested transaction is open.
    ///
    /// Errors: `Aborted` and `Call` (nothing of it is in the log); `Unknown` (it may be committed); after any other one it is not, as after `Ended`: it had ended,
    /// or something in it was answered over a call that was taken back.
    pub async fn commit(&self) -> Result<Committed, ObjectError> {
        match self.commit_unnamed().await {
            Ok(committed) => Ok(committed),
            Err(error) => Err(Box::pin(self.inner.runtime.named(error)).await),
        }
    }

    /// The same; if it aborts it is not said for which other transaction, which is read from the log.
    async fn commit_unnamed(&self) -> Result<Committed, ObjectError> {
        // What was sent to objects that nobody has read here gave none.
        if self.is_unset() && self.change(|tx| Ok(tx.has_checks()))? {
            self.settle_snapshot().await?;
        }
        let snapshot = self.snapshot();
        let State::Running { mut tx, .. } = self.inner.state.replace(State::Ended) else {
            return Err(ObjectError::Ended);
        };
        if tx.is_doomed() {
            return Err(ObjectError::Ended);
        }
        if tx.is_read_only() {
            return Ok(Committed { snapshot, record: None });
        }
        if !self.inner.untried.borrow().is_empty() {
            Box::pin(self.try_sent(&tx)).await?;
        }
        let commit = tx.commit();
        let plan = self.inner.runtime.plan(commit.calls, &commit.streams, commit.condition)?;
        let placed = self.inner.runtime.append(&plan).await;
        let pos = self.inner.runtime.appended(&plan, placed, Some(&mut tx)).pos().await?;
        for (_, then) in self.inner.after.take() {
            then.await;
        }
        Ok(Committed { snapshot, record: Some((plan.record.id, pos)) })
    }

    /// Makes what was only sent on the snapshot. What would panic there is not to be in the log.
    async fn try_sent(&self, tx: &Transaction) -> Result<(), ObjectError> {
        let untried = self.inner.untried.take();
        for stream in untried {
            if let Some(slot) = self.inner.runtime.slot(stream) {
                slot.try_calls(tx.snapshot(), tx.calls()).await?;
            }
        }
        Ok(())
    }

    /// Has `then` done once it has committed, once for each object: the first that comes, or one that `is_due`. Whoever commits waits for it. Not if
    /// it aborts.
    pub(crate) fn after_commit(&self, of: StreamId, is_due: bool, then: impl Future<Output = ()> + 'static) {
        let mut after = self.inner.after.borrow_mut();
        match after.iter().position(|(other, _)| *other == of) {
            Some(known) if is_due => after[known].1 = Box::pin(then),
            // Nested ones that were taken back may have left more than can be committed.
            None if after.len() < limits::OBJECTS_MAX_COUNT => after.push((of, Box::pin(then))),
            _ => {}
        }
    }

    /// Whether the views of all objects that it has touched reflect the record at `pos`, if it is one of theirs.
    fn reflects(&self, pos: LogPos) -> bool {
        self.inner.slots.borrow().iter().all(|(_, slot)| slot.reflects() > pos)
    }

    /// Aborts it.
    pub fn abort(&self) {
        self.inner.state.replace(State::Ended);
        self.inner.slots.borrow_mut().clear();
        self.inner.after.take();
    }

    /// Runs `body` as a transaction inside this one: if it fails or is dropped, what it wrote is taken back, and the outer one can go on. It
    /// has the snapshot of the outer one and sees what that has written. What is called while `body` runs belongs to it, by whatever handle;
    /// several may run at once, and what a task of its own calls belongs to the outermost. One that is polled on after the one around it was taken back
    /// ends with `Ended`.
    ///
    /// If something is taken back that others have built on since, the whole transaction cannot commit any more (`Ended`): an object was called
    /// inside and, before that failed, also called or read outside. So it is where the one that has built on it is taken back by itself, because what
    /// it has read stays read.
    pub async fn nested<T, E: From<ObjectError>>(
        &self,
        body: impl AsyncFnOnce(&Tx) -> Result<T, E>,
    ) -> Result<T, E> {
        let level = self.change(|tx| {
            runs(tx)?;
            Ok(tx.begin_nested()?)
        })?;
        let nested = Nested { tx: self, level };
        let mut body = pin!(body(self));
        let poll = |context: &mut Context<'_>| match nested.run(|| body.as_mut().poll(context)) {
            Ok(polled) => polled,
            Err(ended) => Poll::Ready(Err(ended.into())),
        };
        let value = poll_fn(poll).await?;
        nested.commit()?;
        Ok(value)
    }

    /// Notes that these parts of an object led to where something is written: see [`Transaction::note_leads`].
    pub(crate) fn note_leads(&self, stream: StreamId, keys: &[Key]) {
        self.if_open(|tx| tx.note_leads(stream, keys));
    }

    /// Looks at an object at the snapshot, with what the transaction wrote itself.
    pub(super) async fn look<O: Object>(
        &self,
        slot: &Rc<Slot<O>>,
        keys: &Parts,
        look: &mut Look<'_, O>,
    ) -> Result<(), ObjectError> {
        if self.is_unset() && slot.is_fresh() {
            Box::pin(slot.sync()).await?;
        }
        let (snapshot, own) = self.touch(slot, |tx| {
            tx.note_reads(slot.stream, keys);
            Ok((tx.snapshot(), own_calls(tx, slot.stream)))
        })?;
        // In memory of its own if the log must be asked.
        match slot.can_read_at(snapshot) {
            true => slot.look_here(snapshot, &own, look),
            false => Box::pin(slot.look_at(snapshot, &own, look)).await,
        }
    }

    /// Makes a call and gives what it gives at the snapshot.
    pub(super) async fn call<O: Object>(
        &self,
        slot: &Rc<Slot<O>>,
        call: Call,
        keys: Keys,
    ) -> Result<Option<Box<dyn Any>>, ObjectError> {
        if self.is_unset() && slot.is_fresh() {
            Box::pin(slot.sync()).await?;
        }
        let (snapshot, own, made) = self.touch(slot, |tx| {
            let made = Made { tx: self, added: tx.add(call, keys)? };
            Ok((tx.snapshot(), own_calls(tx, slot.stream), made))
        })?;
        made.ended(slot.output_at(snapshot, &own).await)
    }

    /// Makes a call.
    pub(super) fn add<O: Object>(
        &self,
        slot: &Rc<Slot<O>>,
        call: Call,
        keys: Keys,
    ) -> Result<(), ObjectError> {
        let gives_snapshot = !slot.is_fresh();
        self.touch_by(slot, gives_snapshot, |tx| Ok(tx.add(call, keys).map(|_| ())?))?;
        if O::IS_TRIED {
            self.inner.untried.borrow_mut().insert(slot.stream);
        }
        Ok(())
    }

    fn change<T>(
        &self,
        change: impl FnOnce(&mut Transaction) -> Result<T, ObjectError>,
    ) -> Result<T, ObjectError> {
        match &mut *self.inner.state.borrow_mut() {
            State::Running { tx, .. } => change(tx),
            State::Ended => Err(ObjectError::Ended),
        }
    }

    /// Does something unless all of it has ended.
    fn if_open(&self, change: impl FnOnce(&mut Transaction)) {
        if let State::Running { tx, .. } = &mut *self.inner.state.borrow_mut() {
            change(tx);
        }
    }

    /// Sees to it that there is a snapshot: where no view is here that could give one, it is the newest.
    pub(super) async fn settle_snapshot(&self) -> Result<(), ObjectError> {
        if !self.is_unset() {
            return Ok(());
        }
        let snapshot = Box::pin(self.inner.runtime.decided_tail()).await?;
        if let State::Running { tx, is_unset } = &mut *self.inner.state.borrow_mut()
            && std::mem::take(is_unset)
        {
            tx.move_to(snapshot);
        }
        Ok(())
    }

    /// Does something about an object, which gives the snapshot if there is none yet.
    pub(super) fn touch<O: Object, T>(
        &self,
        slot: &Rc<Slot<O>>,
        change: impl FnOnce(&mut Transaction) -> Result<T, ObjectError>,
    ) -> Result<T, ObjectError> {
        self.touch_by(slot, true, change)
    }

    /// The same of one whose view may be none that gives a snapshot.
    fn touch_by<O: Object, T>(
        &self,
        slot: &Rc<Slot<O>>,
        gives_snapshot: bool,
        change: impl FnOnce(&mut Transaction) -> Result<T, ObjectError>,
    ) -> Result<T, ObjectError> {
        let mut state = self.inner.state.borrow_mut();
        let State::Running { tx, is_unset } = &mut *state else { return Err(ObjectError::Ended) };
        runs(tx)?;
        if gives_snapshot && std::mem::take(is_unset) {
            tx.move_to(slot.upto());
        }
        let value = change(tx)?;
        let mut slots = self.inner.slots.borrow_mut();
        if let Err(at) = slots.binary_search_by_key(&slot.stream, |(stream, _)| *stream) {
            slots.insert(at, (slot.stream, Rc::clone(slot) as Rc<dyn AnySlot>));
        }
        Ok(value)
    }

    /// Whether the first object that is read gives the snapshot. A view that nobody has read yet gives none.
    fn is_unset(&self) -> bool {
        matches!(*self.inner.state.borrow(), State::Running { is_unset: true, .. })
    }
}

/// A call that was added and whose result is not known yet: dropped, it is taken back.
pub(super) struct Made<'t> {
    pub(super) tx: &'t Tx,
    pub(super) added: Added,
}

impl Made<'_> {
    /// Its result is known. If it failed it is taken back.
    pub(super) fn ended<T>(self, result: Result<T, ObjectError>) -> Result<T, ObjectError> {
        if result.is_err() {
            self.tx.if_open(|tx| tx.take_back(self.added, true));
        }
        std::mem::forget(self);
        result
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        self.tx.if_open(|tx| tx.take_back(self.added, false));
    }
}

/// A nested transaction that is open: dropped, it is aborted.
struct Nested<'t> {
    tx: &'t Tx,
    level: Level,
}

impl Nested<'_> {
    /// Has what `run` calls belong to it, unless it has ended.
    fn run<T>(&self, run: impl FnOnce() -> T) -> Result<T, ObjectError> {
        let before = self.tx.change(|tx| tx.enter(self.level).ok_or(ObjectError::Ended))?;
        let value = run();
        self.tx.if_open(|tx| tx.leave(before));
        Ok(value)
    }

    fn commit(self) -> Result<(), ObjectError> {
        self.tx.change(|tx| tx.commit_nested(self.level).then_some(()).ok_or(ObjectError::Ended))
    }
}

impl Drop for Nested<'_> {
    fn drop(&mut self) {
        self.tx.if_open(|tx| tx.abort_nested(self.level));
    }
}

/// Refuses what a nested transaction does that has ended.
fn runs(tx: &Transaction) -> Result<(), ObjectError> {
    tx.is_running().then_some(()).ok_or(ObjectError::Ended)
}

/// What a transaction wrote of one object. Names and arguments are shared, not copied.
pub(super) fn own_calls(tx: &Transaction, stream: StreamId) -> Vec<Call> {
    tx.calls().iter().filter(|call| call.stream == stream).cloned().collect()
}
