//! A view: an object's state, made of the records of its stream, in memory.
//!
//! ```text
//!   records     ──●────●──●───────●────●──►  positions of the log
//!   history         floor ├───────────────┤ upto
//!                         snapshots that are read     what the state reflects
//!                         by taking changes back
//! ```
//!
//! A view is a function of the stream's entries below `upto` and of nothing else, whoever read them, in how many pieces, and
//! from which checkpoint on (invariants 31 and 32). A snapshot is read by taking the changes above it back and making them again
//! afterwards, which costs as much as they are many; the alternative, a copy of the state for each snapshot, costs as much as the
//! object is large, and transactions read snapshots that lie a few records back. Below the floor a snapshot is read in a view of its own,
//! made by replay.
//!
//! What cannot be applied, or shows that views differ, stops the view for good: it goes on to serve what lies below, and
//! nothing above.
//!
//! That views differ is seen by digests of encoded states (compare.rs).

mod checkpoint;
mod compare;

use std::any::Any;
use std::collections::VecDeque;

use bytes::Bytes;
use ithaca_env::record::RecordError;
use ithaca_log::pos::{LogPos, StreamId};
use thiserror::Error;

use crate::checkpoint::chunk::Chunk;
use crate::checkpoint::{Begun, Last};
use crate::collections::Sharing;
use crate::limits;
use crate::object::{Back, CallError, Method, Object};
use crate::planted::{Planted, PlantedBug};
use crate::record::{Call, Check, Record};
use crate::requests::Requests;

/// Why a view stopped.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FaultKind {
    /// The stream holds what is no record.
    #[error("it holds no record of an object ({0})")]
    NoRecord(RecordError),
    /// A call cannot be applied.
    #[error("{0}")]
    Call(CallError),
    /// The record's client had another state than this view.
    #[error(
        "its client saw another state at position {pos} (digest {theirs:016x}, here {ours:016x}): \
         the object is not deterministic"
    )]
    Diverged {
        /// Up to which record.
        pos: LogPos,
        /// The digest that the record carries.
        theirs: u64,
        /// The view's own.
        ours: u64,
    },
}

/// That a view stopped: at which record, and why.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the record at position {pos} cannot be applied: {kind}")]
pub struct Fault {
    /// The record's position.
    pub pos: LogPos,
    /// What is wrong with it.
    pub kind: FaultKind,
}

/// Why a snapshot cannot be read in a view.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SnapshotError {
    /// The view does not go back so far.
    #[error("position {snapshot} is below {floor}, where the view's history begins")]
    BelowFloor {
        /// What was asked for.
        snapshot: LogPos,
        /// The lowest that can be read.
        floor: LogPos,
    },
    /// The view has not read so much yet.
    #[error("position {snapshot} is above {upto}, up to where the view has read")]
    AboveView {
        /// What was asked for.
        snapshot: LogPos,
        /// Every position below is reflected.
        upto: LogPos,
    },
    /// The view stopped below.
    #[error(transparent)]
    Stopped(#[from] Fault),
    /// A transaction's own call cannot be applied.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// What a record's calls of one object gave back, in their order; nothing if that was not wanted.
pub type Results = Vec<Box<dyn Any>>;

/// What looks at a state, and at what the last of some calls on it gave back. It is called once at most, and keeps what it finds: so the way to
/// the state is compiled once for each type of object, and not for each reader.
pub type Look<'l, O> = dyn FnMut(&O, Option<Box<dyn Any>>) + 'l;

/// What became of a record.
#[derive(Debug)]
pub enum Applied {
    /// It was applied. With results if they were wanted.
    Now(Results),
    /// It had been applied before: nothing changed.
    Before,
    /// The view is past it, or has stopped.
    Passed,
}

/// An object as it is in memory.
pub struct View<O: Object> {
    stream: StreamId,
    state: O,
    upto: LogPos,
    /// Records that were applied.
    count: u64,
    /// Bytes of their calls.
    bytes: u64,
    requests: Requests,
    /// The checkpoint that it began at.
    began: Last,
    /// Where its first record stands, and its last, of those that it has applied itself.
    first: Option<LogPos>,
    last: Option<LogPos>,
    /// What the latest checkpoint in the stream itself reflects, of those that it has come past.
    passed: Option<LogPos>,
    /// Each change with the position of its record.
    history: VecDeque<(LogPos, O::Undo)>,
    /// Positions of the records that the history covers, and how many bytes all calls up to there had.
    covered: VecDeque<(LogPos, u64)>,
    floor: LogPos,
    /// Position and digest, whenever so many records were applied.
    digests: VecDeque<(LogPos, u64)>,
    /// How all that was applied goes back to its bytes. Digests are taken and compared where it does; where something was dropped there is no
    /// checkpoint.
    back: Back,
    /// What this version encodes an empty object as, in short.
    form: u64,
    fault: Option<Fault>,
    /// Something that it would be made of may be gone: no digests are noted.
    is_incomplete: bool,
    /// A mutator panicked in the middle of a change: the state is none. What lies below is read in views of their own.
    is_broken: bool,
    /// Where new changes are gathered.
    scratch: Vec<O::Undo>,
    planted: Planted,
}

impl<O: Object> View<O> {
    /// The empty object of `stream`, as it is at position 0.
    pub fn new(stream: StreamId, planted: Planted) -> Self {
        let mut state = O::default();
        let form = compare::form_of(&state);
        state.plant(planted);
        Self {
            stream,
            state,
            upto: LogPos(0),
            count: 0,
            bytes: 0,
            requests: Requests::default(),
            began: Last::default(),
            first: None,
            last: None,
            passed: None,
            history: VecDeque::new(),
            covered: VecDeque::new(),
            floor: LogPos(0),
            digests: VecDeque::new(),
            back: Back::Same,
            form,
            fault: None,
            is_incomplete: false,
            is_broken: false,
            scratch: Vec::new(),
            planted,
        }
    }

    /// The stream that it is made of.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// Whether a mutator panicked in the middle of a change, so that there is no state.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Every entry of the stream below this position is reflected.
    pub fn upto(&self) -> LogPos {
        self.upto
    }

    /// The lowest snapshot that can be read.
    #[cfg(test)]
    pub(crate) fn floor(&self) -> LogPos {
        self.floor
    }

    /// Records that it reflects, and the bytes of their calls.
    pub fn progress(&self) -> (u64, u64) {
        (self.count, self.bytes)
    }

    /// Where the last record stands that it has applied itself.
    pub(crate) fn last_applied(&self) -> Option<LogPos> {
        self.last
    }

    /// How many of the records that it reflects stand below `pos`; `None` if its history does not go back so far.
    pub(crate) fn count_below(&self, pos: LogPos) -> Option<u64> {
        let above = self.covered.len() - self.covered.partition_point(|(of, _)| *of < pos);
        (self.floor <= pos).then_some(self.count - above as u64)
    }

    /// The checkpoint that it began at.
    pub fn last_checkpoint(&self) -> Last {
        self.began
    }

    /// After what the next checkpoint is due, if `last` is what is known of the last one: of an object that has none that is where its first
    /// record stands, which may be far into the log.
    pub(crate) fn due_after(&self, last: Last) -> Last {
        match self.first {
            Some(first) if last.at.count == 0 => Last { at: Begun { upto: first.0, ..last.at }, ..last },
            _ => last,
        }
    }

    /// Below which position the latest checkpoint in the stream itself reflects everything, of those that it has come past.
    pub(crate) fn passed_checkpoint(&self) -> Option<LogPos> {
        self.passed
    }

    /// Whether it has applied a record that no checkpoint in the stream itself reflects, of those that it has begun at or come past.
    pub(crate) fn has_unstored(&self) -> bool {
        self.covered.back().is_some_and(|(last, _)| self.passed.is_none_or(|passed| *last >= passed))
    }

    /// Whether something was dropped of what it was made of: fields that others have written and this program does not know.
    pub(crate) fn drops(&self) -> bool {
        self.back == Back::Less
    }

    /// Why it stopped, if it did.
    pub fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }

    /// The newest digest that was noted, for records to carry.
    pub fn newest_check(&self) -> Option<Check> {
        let &(pos, digest) = self.digests.back()?;
        Some(Check { stream: self.stream, pos, digest })
    }

    /// Takes the stream's next entry, which stands at `pos`. Every entry of the stream between `upto` and `pos` was taken
    /// before.
    pub fn take(&mut self, pos: LogPos, entry: &Bytes) -> Applied {
        match Record::decode(entry) {
            Ok(record) => self.apply(pos, &record, false),
            Err(_) if pos < self.upto || self.fault.is_some() => Applied::Passed,
            Err(error) => match Chunk::decode(entry) {
                // What it says is what the records before it say.
                Ok(chunk) if chunk.of.object == self.stream => {
                    self.passed = self.passed.max(Some(chunk.of.upto));
                    self.advance(LogPos(pos.0 + 1));
                    Applied::Before
                }
                _ => self.stop(pos, FaultKind::NoRecord(error)),
            },
        }
    }

    /// The same of a record that is decoded already. Results are given if they are `wanted`.
    pub fn apply(&mut self, pos: LogPos, record: &Record, wanted: bool) -> Applied {
        self.apply_in(pos, record, wanted, false)
    }

    /// The same of a record that this program has made: the memory of its calls is its own, so that values may share it.
    pub(crate) fn apply_own(&mut self, pos: LogPos, record: &Record, wanted: bool) -> Applied {
        self.apply_in(pos, record, wanted, record.calls.len() == 1)
    }

    fn apply_in(&mut self, pos: LogPos, record: &Record, wanted: bool, shares: bool) -> Applied {
        if pos < self.upto || self.fault.is_some() {
            return Applied::Passed;
        }
        if let Some(kind) = self.compare(record) {
            return self.stop(pos, kind);
        }
        let is_first =
            self.requests.note(record.id, record.settled) || self.planted.is(PlantedBug::RepetitionApplied);
        if !is_first {
            self.advance(LogPos(pos.0 + 1));
            return Applied::Before;
        }
        let mut results = Results::new();
        for call in record.calls.iter().filter(|call| call.stream == self.stream) {
            self.bytes += (call.method.len() + call.arguments.len()) as u64;
            let _sharing = if shares { Sharing::of(&call.arguments) } else { None };
            let applied = Method::<O>::find(&call.method).and_then(|method| {
                let back = &mut self.back;
                method.apply(&call.arguments, &mut self.state, pos, &mut self.scratch, wanted, back)
            });
            match applied {
                Ok(output) => results.extend(output),
                Err(error) => {
                    // Without undos the record's earlier calls stay in the state.
                    self.is_broken |=
                        O::HISTORY_MAX_COUNT == 0 || matches!(error, CallError::Panicked { .. });
                    self.take_back_scratch();
                    return self.stop(pos, FaultKind::Call(error));
                }
            }
        }
        self.history.extend(self.scratch.drain(..).map(|undo| (pos, undo)));
        self.covered.push_back((pos, self.bytes));
        self.first.get_or_insert(pos);
        self.last = Some(pos);
        self.count += 1;
        self.advance(LogPos(pos.0 + 1));
        self.forget_old();
        if self.is_incomplete || !self.compares() {
            self.digests.clear();
        } else if self.count.is_multiple_of(limits::DIGEST_EVERY) {
            let digest = compare::in_form(self.form, self.state.digest());
            self.digests.push_back((pos, digest));
            if self.digests.len() > limits::DIGESTS_MAX_COUNT {
                self.digests.pop_front();
            }
        }
        Applied::Now(results)
    }

    /// Nothing below `upto` is missing: every entry of the stream there was taken.
    pub fn advance(&mut self, upto: LogPos) {
        if self.fault.is_none() {
            self.upto = self.upto.max(upto);
        }
    }

    /// The lowest snapshot above `known` that differs from it in a record, as far back as the history goes: beyond, it is the floor.
    pub fn next_snapshot(&self, known: LogPos) -> Option<LogPos> {
        if known < self.floor {
            return Some(self.floor);
        }
        let mut next = self.covered.partition_point(|(pos, _)| *pos < known);
        if self.planted.is(PlantedBug::WatchLeavesOut) {
            next = next.max(self.covered.len().saturating_sub(1));
        }
        self.covered.get(next).map(|(pos, _)| LogPos(pos.0 + 1))
    }

    /// Looks at the state after each record above `known`, in order, as [`View::next_snapshot`] names them; the last of these, if there is one.
    /// The state goes back once, whatever their number.
    pub fn look_through(
        &mut self,
        known: LogPos,
        look: &mut dyn FnMut(LogPos, &O),
    ) -> Result<Option<LogPos>, SnapshotError> {
        let Some(mut snapshot) = self.next_snapshot(known) else { return Ok(None) };
        self.covers(snapshot)?;
        let mut rewound = Rewound::new(self, snapshot);
        loop {
            look(snapshot, &rewound.view.state);
            match rewound.view.next_snapshot(snapshot) {
                Some(next) => snapshot = next,
                None => return Ok(Some(snapshot)),
            }
            rewound.go_on(snapshot);
        }
    }

    /// The state as it is.
    pub fn state(&self) -> Result<&O, Fault> {
        self.fault.clone().map_or(Ok(&self.state), Err)
    }

    /// Whether `snapshot` can be read here: it lies within the history, and the view has not stopped below it.
    pub fn covers(&self, snapshot: LogPos) -> Result<(), SnapshotError> {
        let (floor, upto) = (self.floor, self.upto);
        match &self.fault {
            _ if snapshot < floor => Err(SnapshotError::BelowFloor { snapshot, floor }),
            Some(fault) if snapshot > fault.pos => Err(fault.clone().into()),
            _ if self.is_broken => Err(SnapshotError::BelowFloor { snapshot, floor: upto }),
            None if snapshot > upto => Err(SnapshotError::AboveView { snapshot, upto }),
            _ => Ok(()),
        }
    }

    /// Reads the state as it was when it reflected every position below `snapshot`, and with `own` calls made on top of that,
    /// those of a transaction that has not committed. `read` is told of what the last of them gave back.
    pub fn read_at<T>(
        &mut self,
        snapshot: LogPos,
        own: &[Call],
        read: impl FnOnce(&O, Option<Box<dyn Any>>) -> T,
    ) -> Result<T, SnapshotError> {
        let (mut read, mut found) = (Some(read), None);
        self.look_at(snapshot, own, &mut |state, last| {
            found = read.take().map(|read| read(state, last));
        })?;
        Ok(found.expect("it was looked at"))
    }

    /// The same for `look`.
    pub(crate) fn look_at(
        &mut self,
        snapshot: LogPos,
        own: &[Call],
        look: &mut Look<'_, O>,
    ) -> Result<(), SnapshotError> {
        self.covers(snapshot)?;
        let stream = self.stream;
        let own = own.iter().filter(move |call| call.stream == stream);
        if O::HISTORY_MAX_COUNT == 0 {
            return self.look_at_copy(snapshot, own, look);
        }
        let at = if self.planted.is(PlantedBug::SnapshotMoves) { self.upto } else { snapshot };
        let rewound = Rewound::new(self, at);
        let view = &mut *rewound.view;
        let mut last = None;
        for call in own {
            if view.planted.is(PlantedBug::OwnWritesNotRead) {
                break;
            }
            let method = Method::<O>::find(&call.method)?;
            let (state, scratch) = (&mut view.state, &mut view.scratch);
            let back = &mut Back::Less;
            let applied = method.apply(&call.arguments, state, snapshot, scratch, true, back);
            view.is_broken |= matches!(applied, Err(CallError::Panicked { .. }));
            last = applied?;
        }
        look(&view.state, last);
        Ok(())
    }

    /// The same of an object that takes nothing back: calls are made on a copy of its state, if there are any.
    fn look_at_copy<'c>(
        &self,
        snapshot: LogPos,
        own: impl Iterator<Item = &'c Call>,
        look: &mut Look<'_, O>,
    ) -> Result<(), SnapshotError> {
        let mut own = own.peekable();
        if own.peek().is_none() {
            look(&self.state, None);
            return Ok(());
        }
        let invalid = |error: String| CallError::Arguments { method: "copy", error };
        let bytes = rmp_serde::to_vec_named(&self.state).map_err(|error| invalid(error.to_string()))?;
        let mut copy: O = rmp_serde::from_slice(&bytes).map_err(|error| invalid(error.to_string()))?;
        let mut last = None;
        for call in own {
            let method = Method::<O>::find(&call.method)?;
            let (undo, back) = (&mut Vec::new(), &mut Back::Less);
            last = method.apply(&call.arguments, &mut copy, snapshot, undo, true, back)?;
        }
        look(&copy, last);
        Ok(())
    }

    /// Changes the state as no record does.
    #[cfg(test)]
    pub(crate) fn harm(&mut self, harm: impl FnOnce(&mut O)) {
        harm(&mut self.state);
    }

    fn stop(&mut self, pos: LogPos, kind: FaultKind) -> Applied {
        self.advance(pos);
        self.fault = Some(Fault { pos, kind });
        Applied::Passed
    }

    fn forget_old(&mut self) {
        while let Some(&(pos, bytes)) = self.covered.front() {
            if self.covered.len() <= O::HISTORY_MAX_COUNT && self.bytes - bytes <= limits::HISTORY_MAX_BYTES {
                return;
            }
            self.covered.pop_front();
            self.floor = LogPos(pos.0 + 1);
            while self.history.front().is_some_and(|(of, _)| *of <= pos) {
                self.history.pop_front();
            }
        }
    }

    fn take_back_scratch(&mut self) {
        if self.is_broken {
            self.scratch.clear();
        }
        for mut undo in self.scratch.drain(..).rev() {
            self.state.exchange(&mut undo);
        }
    }
}

/// A view that went back to a snapshot. It returns when this is dropped, also by a panic of whoever reads.
struct Rewound<'v, O: Object> {
    view: &'v mut View<O>,
    /// The first change that was taken back.
    first: usize,
}

impl<'v, O: Object> Rewound<'v, O> {
    fn new(view: &'v mut View<O>, snapshot: LogPos) -> Self {
        let first = match view.history.back() {
            Some((last, _)) if *last >= snapshot => view.history.partition_point(|(pos, _)| *pos < snapshot),
            // Most snapshots are the newest.
            _ => view.history.len(),
        };
        for (_, undo) in view.history.range_mut(first..).rev() {
            view.state.exchange(undo);
        }
        Self { view, first }
    }

    /// Goes on to a later snapshot.
    fn go_on(&mut self, snapshot: LogPos) {
        let View { history, state, .. } = &mut *self.view;
        while let Some((pos, undo)) = history.get_mut(self.first)
            && *pos < snapshot
        {
            state.exchange(undo);
            self.first += 1;
        }
    }
}

impl<O: Object> Drop for Rewound<'_, O> {
    fn drop(&mut self) {
        if self.view.planted.is(PlantedBug::OwnWritesStay) {
            self.view.scratch.clear();
        }
        self.view.take_back_scratch();
        if self.view.is_broken {
            return;
        }
        for (_, undo) in self.view.history.range_mut(self.first..) {
            self.view.state.exchange(undo);
        }
    }
}
