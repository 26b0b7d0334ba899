//! The view of one open object, and what brings it up to date.
//!
//! The stream is read by one task at a time; others wait for it. What this program has appended itself need not be read: its
//! record is taken from memory as soon as everything before it in the stream is reflected, which the place of the entry says.

mod past;

use std::any::Any;
use std::cell::{Cell, Ref, RefCell};
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::time::Duration;

use ithaca_env::Time;
use ithaca_env::sync::Notify;
use ithaca_env::task::TaskHandle;
use ithaca_log::client::{EntryKind, StreamPart};
use ithaca_log::pos::{LogPos, StreamId};
use ithaca_log::stream::StreamTail;

use past::Past;

use super::Inner;
use super::ahead::Ahead;
use super::append::Plan;
use super::backing::Backing;
use super::tails::Tail;
use crate::checkpoint::Last;
use crate::error::ObjectError;
use crate::key::Keys;
use crate::object::{CallError, Object, keys_of};
use crate::record::{Call, Check, Record};
use crate::view::{Applied, Fault, Results, View};

/// A future that is not a part of those who wait for it: what is done seldom makes the usual ones neither larger nor deeper.
pub(super) type Later<'l, T> = Pin<Box<dyn Future<Output = T> + 'l>>;

/// What the runtime does with an object whatever it is.
pub(super) trait AnySlot {
    fn name(&self) -> &str;
    /// Up to where its view reflects everything.
    fn reflects(&self) -> LogPos;
    /// What a call depends on and changes.
    fn keys_of(&self, call: &Call) -> Result<Keys, CallError>;
    /// A record of this program stands at `pos`, before which the stream ended so.
    fn offer(&self, pos: LogPos, before: StreamTail, record: &Rc<Record>);
    /// Makes a transaction's calls on its snapshot and takes them back, if the state is here and that is done by undos. A state from before the snapshot
    /// serves, unless they fail there: then it is brought up to date.
    fn try_calls<'s>(&'s self, snapshot: LogPos, calls: &'s [Call]) -> Later<'s, Result<(), ObjectError>>;
    /// A digest for a record to carry, if there is one that none has carried yet.
    fn check_to_tell(&self) -> Option<Check>;
    fn as_any(self: Rc<Self>) -> Rc<dyn Any>;
}

/// Results with their requests.
type Waiting = VecDeque<(u64, Results)>;

/// An open object.
pub(super) struct Slot<O: Object> {
    pub(super) runtime: Rc<Inner>,
    pub(super) stream: StreamId,
    /// Itself, for what it does in the background.
    pub(super) me: Weak<Self>,
    pub(super) backing: Backing,
    pub(super) view: RefCell<View<O>>,
    /// Whether it goes over what is gone, as if it had never been.
    pub(super) is_of_what_is_left: bool,
    /// Whether somebody reads the state here: else nothing is taken from memory.
    is_kept: Cell<bool>,
    /// Whether it was looked for a checkpoint to begin with.
    is_begun: Cell<bool>,
    gap: Cell<Option<Gap>>,
    /// Of a catalog: what was found in its stream to begin at.
    pub(super) found: RefCell<Option<View<O>>>,
    /// The checkpoint, or the state at which one was considered, after which the next one is due; and whether one is being made.
    pub(super) reviewed: Cell<Last>,
    pub(super) is_making: Cell<bool>,
    /// The id of the checkpoint that this view has made last: to go back for comparing with it would say nothing.
    pub(super) made: Cell<Option<u64>>,
    /// Whether it was said that the state cannot be encoded.
    pub(super) has_warned: Cell<bool>,
    /// Whether a record of this program was taken since that makes it the one to think of a checkpoint.
    pub(super) is_author: Cell<bool>,
    is_reading: Cell<bool>,
    /// Rings when a read of the stream ended.
    changed: Notify,
    /// What this program has appended and the view does not reflect yet.
    ahead: RefCell<Ahead>,
    /// Results that are waited for, in the order of their requests.
    wanted: RefCell<Waiting>,
    /// When the question was asked that the view reflects the answer of.
    checked_at: Cell<Option<Time>>,
    /// Up to where records have carried digests.
    told: Cell<LogPos>,
    past: RefCell<VecDeque<Rc<Past<O>>>>,
    /// Whether one is being made, and the bell of when that ended.
    is_replaying: Cell<bool>,
    replayed: Notify,
    /// The error of a log that did not answer, which the last one failed with of those that did, and the rings of the bell by then.
    not_replayed: RefCell<Option<(u64, ObjectError)>>,
}

/// Of what was read it is not known yet whether something that is trimmed was of the stream. The view stays below.
#[derive(Clone, Copy)]
struct Gap {
    /// It reflects every position below.
    known: LogPos,
    /// The stream was read so far.
    read: LogPos,
}

impl<O: Object> Slot<O> {
    pub(super) fn new(runtime: Rc<Inner>, stream: StreamId, name: &str) -> Rc<Self> {
        Self::made(runtime, stream, name, false)
    }

    /// The same object once more: what is left of it, after its newest checkpoint that can be used.
    pub(super) async fn what_is_left(&self) -> Result<Rc<Self>, ObjectError> {
        let left = Self::made(Rc::clone(&self.runtime), self.stream, &self.backing.name, true);
        left.begin(LogPos(u64::MAX), None).await?;
        left.sync().await?;
        left.state()?;
        Ok(left)
    }

    fn made(runtime: Rc<Inner>, stream: StreamId, name: &str, is_of_what_is_left: bool) -> Rc<Self> {
        let view = RefCell::new(View::new(stream, runtime.options.planted));
        let backing = Backing::new(Rc::clone(&runtime), stream, name, Self::is_alone());
        Rc::new_cyclic(|me| Self {
            runtime,
            stream,
            me: Weak::clone(me),
            backing,
            view,
            is_of_what_is_left,
            is_kept: Cell::default(),
            is_begun: Cell::default(),
            gap: Cell::default(),
            found: RefCell::default(),
            reviewed: Cell::default(),
            is_making: Cell::default(),
            made: Cell::default(),
            has_warned: Cell::default(),
            is_author: Cell::default(),
            is_reading: Cell::default(),
            changed: Notify::default(),
            ahead: RefCell::default(),
            wanted: RefCell::default(),
            checked_at: Cell::default(),
            told: Cell::default(),
            past: RefCell::default(),
            is_replaying: Cell::default(),
            replayed: Notify::default(),
            not_replayed: RefCell::default(),
        })
    }

    /// The state is to be kept here from now on.
    pub(super) fn keep(&self) {
        self.is_kept.set(true);
    }

    /// What the view reflects.
    pub(super) fn upto(&self) -> LogPos {
        self.view.borrow().upto()
    }

    /// Whether it was never brought up to date.
    pub(super) fn is_fresh(&self) -> bool {
        self.checked_at.get().is_none()
    }

    /// A call that stands at `pos`, and `cause` keeps its result away.
    pub(super) fn no_result(&self, pos: LogPos, cause: ObjectError) -> ObjectError {
        ObjectError::NoResult { object: self.backing.name.clone(), pos, cause: Box::new(cause) }
    }

    pub(super) fn stopped(&self, fault: Fault) -> ObjectError {
        ObjectError::Stopped { object: self.backing.name.clone(), fault }
    }

    /// The state as far as it was read.
    pub(super) fn state(&self) -> Result<Ref<'_, View<O>>, ObjectError> {
        let view = self.view.borrow();
        match view.fault() {
            Some(fault) => Err(self.stopped(fault.clone())),
            None => Ok(view),
        }
    }

    /// What there is to see of the newest state that was read, and below which position it reflects everything.
    pub(super) fn newest<T>(&self, look: impl FnOnce(&O, LogPos) -> T) -> Result<T, ObjectError> {
        let view = self.view.borrow();
        let state = view.state().map_err(|fault| self.stopped(fault))?;
        Ok(look(state, view.upto()))
    }

    /// Brings the view up to date as of some moment of this call.
    pub(super) async fn sync(&self) -> Result<(), ObjectError> {
        let asked = self.runtime.env.now();
        let peeks = self.is_fresh() && O::IS_SHORT;
        if peeks {
            self.backing.peek(self.upto());
        }
        // Whoever has nothing yet needs the catalog too: one question is about both.
        let catalog = if self.is_fresh() { self.backing.sync_catalog()? } else { None };
        let tail = self.runtime.tail_of(Some(self.stream)).await?;
        if let Some(catalog) = catalog {
            // If that fails it is looked at again.
            catalog.join().await;
        }
        self.reach(tail).await?;
        if peeks {
            self.backing.coming.take();
        }
        self.checked_at.set(self.checked_at.get().max(Some(asked)));
        Ok(())
    }

    /// The same by a task of its own, whatever comes of it.
    pub(super) fn sync_apart(&self) -> TaskHandle<()> {
        let slot = self.me.upgrade();
        self.runtime.env.spawn(async move {
            if let Some(slot) = slot {
                slot.sync().await.ok();
            }
        })
    }

    /// The same unless that was done within `bound` already.
    pub(super) async fn sync_within(&self, bound: Duration) -> Result<(), ObjectError> {
        let now = self.runtime.env.now();
        match self.checked_at.get() {
            Some(at) if now.since(at) <= bound => Ok(()),
            _ => self.sync().await,
        }
    }

    /// Reads what there is of the stream, of which `tail` says where it ends.
    async fn reach(&self, tail: Tail) -> Result<(), ObjectError> {
        if let Some(known) = self.unknown_in(tail.end) {
            self.check_known(known).await?;
        }
        if tail.bound.is_some_and(|bound| self.upto() <= bound) {
            Box::pin(self.read_to(tail.end())).await?;
        }
        self.view.borrow_mut().advance(tail.tail.min(tail.decided));
        self.take_ahead();
        Ok(())
    }

    /// Reads the stream until the view reflects every position below `target`, which the log must have reached, or what there is where it has gone
    /// back; or until it stops.
    pub(super) async fn read_to(&self, mut target: LogPos) -> Result<(), ObjectError> {
        let (mut asked, mut is_newest_taken, mut doubt) = (0, false, None);
        loop {
            let ticket = self.changed.ticket();
            let upto = self.upto();
            if upto >= target || self.view.borrow().fault().is_some() {
                return doubt.map_or(Ok(()), |doubt| self.settle(doubt));
            }
            if self.is_reading.replace(true) {
                self.changed.after(ticket).await;
                continue;
            }
            let _reading = Reading(self);
            if !self.is_begun.get() {
                self.begin(LogPos(target.0 - 1), Some(target)).await?;
                continue;
            }
            let gap = self.gap.get().filter(|gap| gap.known == upto && gap.read < target);
            let (from, mut known) = (gap.map_or(upto, |gap| gap.read), gap.map(|gap| gap.known));
            // A doubt that there is already is settled in the end.
            let limit = doubt.map_or(LogPos(u64::MAX), |_| LogPos(0));
            let part = match self.piece(from, target, limit, &mut known).await {
                // The newest checkpoint may reflect what is gone, and the record that is wanted too.
                Err(ObjectError::Trimmed { .. }) if !Self::is_alone() && !is_newest_taken => {
                    is_newest_taken = true;
                    // It may be so new that it was not there when the catalog was looked at last.
                    self.backing.newest().await?;
                    self.begin(LogPos(u64::MAX), Some(target)).await?;
                    continue;
                }
                Err(ObjectError::Trimmed { .. }) if self.backing.doubt.get().is_some() => {
                    doubt = self.backing.doubt.take();
                    continue;
                }
                part => part?,
            };
            let Some(part) = part else {
                self.begin(LogPos(u64::MAX), None).await?;
                continue;
            };
            if let Some(known) = self.unknown_before(&part)
                && self.check_known(known).await?
            {
                continue;
            }
            if part.upto > from && part.upto < target {
                // Others find the next piece while this one is applied.
                self.backing.read_ahead(part.upto..target);
                self.runtime.env.yield_and_send().await;
            }
            // The view was made anew meanwhile, and lacks what comes before.
            if self.upto() < upto || !self.is_begun.get() {
                continue;
            }
            self.take_part(&part, known);
            // One that is in doubt may turn out to lack something.
            if doubt.is_none() {
                self.consider();
            }
            if part.upto > from {
                asked = 0;
            } else {
                target = target.min(self.runtime.tail_again(self.stream, &mut asked).await?.end());
            }
        }
    }

    /// A checkpoint that cannot be read says how many records stand below it, and whether one is missing could not be told: so they are counted.
    ///
    /// Errors: `Trimmed` if it was more, or if that is not known here; then the view is made anew.
    fn settle(&self, (upto, count): (LogPos, u64)) -> Result<(), ObjectError> {
        if self.view.borrow().count_below(upto) == Some(count) {
            return Ok(());
        }
        self.begin_anew();
        Err(ObjectError::Trimmed { object: self.backing.name.clone(), below: upto })
    }

    /// The record that the view has applied last, if a sequencer does not know of it by whom the stream ends so, and has left out where it stood.
    fn unknown_in(&self, end: StreamTail) -> Option<LogPos> {
        let known = self.view.borrow().last_applied().filter(|_| !self.is_of_what_is_left)?;
        (end.last < Some(known) && end.bound() >= Some(known)).then_some(known)
    }

    /// The same by what the first entry of a part says.
    fn unknown_before(&self, part: &StreamPart) -> Option<LogPos> {
        self.unknown_in(part.entries.first()?.place_in(self.stream)?.end_before())
    }

    /// A record that no sequencer knows any more, because it was trimmed by hand, is in nobody's view who begins by now: so the view is made anew
    /// that has it. Gives whether it is.
    fn check_known(&self, known: LogPos) -> Later<'_, Result<bool, ObjectError>> {
        Box::pin(async move {
            let is_gone = self.runtime.client.read(known).await?.kind == EntryKind::Trimmed;
            if is_gone {
                self.begin_anew();
            }
            Ok(is_gone)
        })
    }

    /// Forgets the view: it is made again when it is asked for.
    pub(super) fn begin_anew(&self) {
        *self.view.borrow_mut() = View::new(self.stream, self.runtime.options.planted);
        self.is_begun.set(false);
        self.gap.set(None);
        self.reviewed.set(Last::default());
        self.checked_at.set(None);
    }

    /// Takes a checkpoint of at most `limit` for the view, if it goes further or the view has a gap. At first that is one below the
    /// record that is wanted, as a record's results are those of its call, and the stream is read to `target` next.
    fn begin(&self, limit: LogPos, target: Option<LogPos>) -> Later<'_, Result<(), ObjectError>> {
        Box::pin(self.begin_at(limit, target))
    }

    async fn begin_at(&self, limit: LogPos, target: Option<LogPos>) -> Result<(), ObjectError> {
        let has_gap = target.is_none();
        let begun = match self.begin_view(limit, target).await {
            // The newest one may know more than those of at most the limit.
            Err(ObjectError::Forgotten { .. } | ObjectError::Unusable { .. }) => {
                self.begin_view(LogPos(u64::MAX), None).await?
            }
            begun => begun?,
        };
        self.is_begun.set(true);
        let mut view = self.view.borrow_mut();
        if has_gap || begun.upto() > view.upto() {
            self.reviewed.set(begun.last_checkpoint());
            *view = begun;
        }
        if self.is_of_what_is_left {
            view.compare_nothing();
        }
        Ok(())
    }

    /// Takes a part of the stream. From `known` on, if it is given, it is not known whether something is missing: the view stays there.
    fn take_part(&self, part: &StreamPart, known: Option<LogPos>) {
        if let Some(last) = part.entries.last() {
            self.runtime.decided.stands_in(last.pos, last.epoch);
        }
        for entry in &part.entries {
            self.take(entry.pos, &entry.data);
        }
        self.gap.set(known.map(|known| Gap { known, read: part.upto }));
        self.view.borrow_mut().advance(known.unwrap_or(part.upto));
        self.take_ahead();
    }

    /// Takes an entry, and keeps its results if somebody waits for them.
    fn take(&self, pos: LogPos, entry: &bytes::Bytes) {
        match Record::decode(entry) {
            Ok(record) => self.apply(pos, &record, View::apply),
            Err(_) => drop(self.view.borrow_mut().take(pos, entry)),
        }
    }

    /// Applies a record by `apply`, and keeps its results if somebody waits for them.
    fn apply(
        &self,
        pos: LogPos,
        record: &Record,
        apply: impl FnOnce(&mut View<O>, LogPos, &Record, bool) -> Applied,
    ) {
        let mut wanted = self.wanted.borrow_mut();
        let is_own = self.runtime.requests.borrow().is_own(record.id.client);
        let waiting = if is_own { find(&mut wanted, record.id.request) } else { None };
        let mut view = self.view.borrow_mut();
        let Applied::Now(results) = apply(&mut view, pos, record, waiting.is_some()) else { return };
        if let Some(waiting) = waiting {
            *waiting = results;
        }
        let policy = &self.runtime.options.checkpoints;
        let every = if Self::is_alone() { policy.catalog_records } else { policy.rare_calls };
        if is_own && view.progress().0.is_multiple_of(every) {
            self.is_author.set(true);
        }
    }

    /// Takes what this program has appended, as far as nothing is missing before it.
    fn take_ahead(&self) {
        loop {
            let next = self.ahead.borrow_mut().next(self.upto());
            let Some((pos, record)) = next else { return };
            self.apply(pos, &record, View::apply_own);
        }
    }

    /// Appends a record, and gives what its calls gave back and where it stands. Nothing was given back where the view came by it in a
    /// checkpoint.
    pub(super) async fn append(&self, plan: &Plan) -> Result<(Results, LogPos), ObjectError> {
        let wanted = Wanted::new(self, plan.record.id.request);
        let placed = self.runtime.append(plan).await;
        let pos = self.runtime.appended(plan, placed, None).pos().await?;
        // As a rule it was taken from memory when it came to stand there.
        if self.upto() <= pos {
            let read = Box::pin(self.read_to(LogPos(pos.0 + 1))).await;
            read.map_err(|cause| self.no_result(pos, cause))?;
        }
        let results = wanted.take();
        // Whoever stopped at it or before it cannot say.
        self.state()?;
        Ok((results, pos))
    }
}

impl<O: Object> AnySlot for Slot<O> {
    fn name(&self) -> &str {
        &self.backing.name
    }

    fn reflects(&self) -> LogPos {
        self.upto()
    }

    fn keys_of(&self, call: &Call) -> Result<Keys, CallError> {
        keys_of::<O>(call)
    }

    fn offer(&self, pos: LogPos, before: StreamTail, record: &Rc<Record>) {
        // Where the view may have a record that is gone, what comes next is read.
        if !self.is_kept.get() || self.unknown_in(before).is_some() {
            return;
        }
        let (upto, previous) = (self.upto(), before.bound());
        let is_next = pos >= upto && previous.is_none_or(|previous| previous < upto);
        if is_next && self.ahead.borrow().is_empty() {
            self.apply(pos, record, View::apply_own);
        } else {
            // A program that only writes would keep what it never looks at.
            let is_asked_for = self.is_begun.get() || !self.wanted.borrow().is_empty();
            if pos < upto || !is_asked_for {
                return;
            }
            self.ahead.borrow_mut().keep(pos, previous, record);
            self.take_ahead();
        }
        self.consider();
    }

    fn try_calls<'s>(&'s self, snapshot: LogPos, calls: &'s [Call]) -> Later<'s, Result<(), ObjectError>> {
        Box::pin(async move {
            let near = snapshot.min(self.upto());
            let is_here = near > LogPos(0) || !self.is_fresh();
            if !O::IS_TRIED || O::HISTORY_MAX_COUNT == 0 || !is_here || !self.can_read_at(near) {
                return Ok(());
            }
            match self.look_here(near, calls, &mut |_, _| ()) {
                Err(_) if near < snapshot => self.look_at(snapshot, calls, &mut |_, _| ()).await,
                tried => tried,
            }
        })
    }

    fn check_to_tell(&self) -> Option<Check> {
        let check = self.view.borrow().newest_check()?;
        if check.pos <= self.told.get() {
            return None;
        }
        self.told.set(check.pos);
        Some(check)
    }

    fn as_any(self: Rc<Self>) -> Rc<dyn Any> {
        self
    }
}

/// A read of the stream that is under way: dropped, it lets the next begin.
struct Reading<'s, O: Object>(&'s Slot<O>);

impl<O: Object> Drop for Reading<'_, O> {
    fn drop(&mut self) {
        self.0.is_reading.set(false);
        self.0.changed.ring();
    }
}

/// Results that are waited for.
struct Wanted<'s, O: Object> {
    slot: &'s Slot<O>,
    request: u64,
}

impl<'s, O: Object> Wanted<'s, O> {
    /// Of a request of this program, which is higher than all before it.
    fn new(slot: &'s Slot<O>, request: u64) -> Self {
        slot.wanted.borrow_mut().push_back((request, Results::new()));
        Self { slot, request }
    }

    /// The results; none if the record was not applied here.
    fn take(self) -> Results {
        let mut wanted = self.slot.wanted.borrow_mut();
        find(&mut wanted, self.request).map(std::mem::take).unwrap_or_default()
    }
}

impl<O: Object> Drop for Wanted<'_, O> {
    fn drop(&mut self) {
        let mut wanted = self.slot.wanted.borrow_mut();
        if let Some(at) = place(&wanted, self.request) {
            wanted.remove(at);
        }
    }
}

fn find(wanted: &mut Waiting, request: u64) -> Option<&mut Results> {
    let at = place(wanted, request)?;
    Some(&mut wanted[at].1)
}

/// Where the results of a request are. Where all requests in a row are of this object they are as far from the first as their numbers say.
fn place(wanted: &Waiting, request: u64) -> Option<usize> {
    let distance = request.checked_sub(wanted.front()?.0)? as usize;
    match wanted.get(distance) {
        Some((found, _)) if *found == request => Some(distance),
        _ => wanted.binary_search_by_key(&request, |(request, _)| *request).ok(),
    }
}
