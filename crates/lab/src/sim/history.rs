//! What the clients of one run did and saw, in one order of moments.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use ithaca_log::client::ClientError;
use ithaca_log::pos::LogPos;

use super::scenario::Points;
use super::streams::StreamHistory;
use super::value::Value;

/// A point in the run's order of beginnings and ends of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub u64);

/// What became of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Acknowledged at this position.
    Acked(u64),
    /// It stands at this position or nowhere.
    Unknown(u64),
    /// It stands, or will come to stand, once at or above this position, or nowhere.
    UnknownAfter(u64),
    /// Certainly not appended.
    Failed,
}

impl Fate {
    /// What a client was told.
    pub fn of(result: &Result<LogPos, ClientError>) -> Self {
        match result {
            Ok(pos) => Self::Acked(pos.0),
            Err(ClientError::OutcomeUnknown { pos, .. }) => Self::Unknown(pos.0),
            Err(ClientError::OutcomeUnknownAfter { after, .. }) => Self::UnknownAfter(after.0),
            Err(_) => Self::Failed,
        }
    }
}

/// One append.
#[derive(Clone, Copy, Debug)]
pub struct Appended {
    /// What.
    pub value: Value,
    /// When it was called.
    pub start: Moment,
    /// When its result was there.
    pub end: Moment,
    /// The result.
    pub fate: Fate,
}

/// What a reader or a filler saw at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A value of the workload.
    Data(Value),
    /// Data, known without its bytes: a fill came too late.
    SomeData,
    /// An entry of the system's own, which no client appended.
    System,
    /// Junk.
    Junk,
    /// Trimmed.
    Trimmed,
    /// Nothing.
    Unwritten,
    /// Refused as damaged: nothing is said of what it holds.
    Damaged,
}

/// One look at a position.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Where.
    pub pos: u64,
    /// What was there.
    pub seen: Seen,
    /// When the call began.
    pub start: Moment,
    /// When it ended.
    pub end: Moment,
}

/// One trim.
#[derive(Clone, Debug)]
pub struct Trim {
    /// What was given up.
    pub range: Range<u64>,
    /// When the call began.
    pub start: Moment,
    /// When it succeeded, if it did.
    pub end: Option<Moment>,
}

/// One question for the ends of the log.
#[derive(Clone, Copy, Debug)]
pub struct Checked {
    /// The next position.
    pub tail: u64,
    /// The lowest that is not trimmed.
    pub first: u64,
    /// When the call began.
    pub start: Moment,
    /// When it ended.
    pub end: Moment,
}

/// Everything that the clients of one run did and saw.
#[derive(Default)]
pub struct History {
    moments: Cell<u64>,
    /// Appends that have a result.
    pub appends: RefCell<Vec<Appended>>,
    /// Looks at positions.
    pub looks: RefCell<Vec<Look>>,
    /// Trims, also those without a result.
    pub trims: RefCell<Vec<Trim>>,
    /// Questions for the ends.
    pub checks: RefCell<Vec<Checked>>,
    /// Data that is nobody's.
    pub wrong: RefCell<Vec<String>>,
    /// What replicas hold against the order in which they are written.
    pub differences: RefCell<Vec<String>>,
    /// Whether copies were harmed that nobody mends.
    pub has_rot: Cell<bool>,
    /// Copies that were refused as damaged when all was over.
    pub lost_copies: Cell<u64>,
    /// What was done with streams.
    pub streams: StreamHistory,
}

impl History {
    /// Counts the rare things that clients met.
    pub fn add_points(&self, points: &mut Points) {
        let appends = self.appends.borrow();
        let any = |wanted: fn(&Fate) -> bool| appends.iter().any(|append| wanted(&append.fate));
        points.see("an append's outcome is unknown", any(|fate| matches!(fate, Fate::Unknown(_))));
        points.see(
            "an append's outcome and place are unknown",
            any(|fate| matches!(fate, Fate::UnknownAfter(_))),
        );
        points.see("an append failed", any(|fate| matches!(fate, Fate::Failed)));
        let looks = self.looks.borrow();
        let saw = |wanted| looks.iter().any(|look| look.seen == wanted);
        points.see("junk was read", saw(Seen::Junk));
        points.see("a trimmed position was read", saw(Seen::Trimmed));
        points.see("an unwritten position was read", saw(Seen::Unwritten));
        points.see("a fill met data", saw(Seen::SomeData));
        points.see("a read was refused as damaged", self.has_refused());
        self.streams.add_points(points);
    }

    /// The next moment.
    pub fn now(&self) -> Moment {
        self.moments.set(self.moments.get() + 1);
        Moment(self.moments.get())
    }

    /// Notes the result of an append.
    pub fn appended(&self, value: Value, start: Moment, fate: Fate) {
        let end = self.now();
        self.appends.borrow_mut().push(Appended { value, start, end, fate });
    }

    /// Notes what stands at a position.
    pub fn saw(&self, pos: u64, seen: Seen, start: Moment) {
        let end = self.now();
        self.looks.borrow_mut().push(Look { pos, seen, start, end });
    }

    /// Notes that a trim begins; the number is for [`trimmed`](History::trimmed).
    pub fn trims(&self, range: Range<u64>) -> usize {
        let start = self.now();
        let mut trims = self.trims.borrow_mut();
        trims.push(Trim { range, start, end: None });
        trims.len() - 1
    }

    /// Notes that a trim succeeded.
    pub fn trimmed(&self, number: usize) {
        let end = self.now();
        self.trims.borrow_mut()[number].end = Some(end);
    }

    /// Appends that were acknowledged so far.
    pub fn acknowledged(&self) -> usize {
        let appends = self.appends.borrow();
        appends.iter().filter(|append| matches!(append.fate, Fate::Acked(_))).count()
    }

    /// Whether an append was acknowledged at `pos`.
    pub fn is_acknowledged(&self, pos: u64) -> bool {
        self.appends.borrow().iter().any(|append| append.fate == Fate::Acked(pos))
    }

    /// Whether a look was refused as damaged.
    pub fn has_refused(&self) -> bool {
        self.looks.borrow().iter().any(|look| look.seen == Seen::Damaged)
    }

    /// The highest position that was acknowledged or seen, and one more.
    pub fn known_end(&self) -> u64 {
        let acked = self.appends.borrow().iter().rev().take(64).map(|append| append.fate).collect::<Vec<_>>();
        let acked = acked.into_iter().filter_map(|fate| match fate {
            Fate::Acked(pos) | Fate::Unknown(pos) => Some(pos + 1),
            Fate::UnknownAfter(_) | Fate::Failed => None,
        });
        let seen = self.looks.borrow().iter().rev().take(64).map(|look| look.pos + 1).max();
        acked.chain(seen).max().unwrap_or(0)
    }
}
