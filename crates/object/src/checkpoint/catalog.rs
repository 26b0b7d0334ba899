//! The catalog of an object's checkpoints: itself an object, of a stream of its own.
//!
//! Every decision is that of a call at its own position, so that two programs that make checkpoints, forget and pin at the same
//! time are put in order by the log:
//!
//! * *Checkpoints come in ascending order.* One that is stored after a newer one is refused; so what the stream of chunks holds
//!   of a state that is not newer than the newest, and that no checkpoint in here is made of, will never be needed.
//! * *What is forgotten lies below a checkpoint that is there*, and below every position that is held.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ithaca_log::pos::LogPos;
use serde::{Deserialize, Serialize};

use super::hold::{Hold, HoldRefused, lowest};
use crate::key::Keys;
use crate::limits;
use crate::object::{Method, Mutator, Object};
use crate::planted::{Planted, PlantedBug};

/// A checkpoint that is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// Which one it is: a random number that its maker drew.
    pub id: u64,
    /// Where its directory stands in the log, or its only chunk.
    pub directory: u64,
    /// Bytes of it, in all chunks.
    #[serde(default)]
    pub len: u64,
    /// Records that the state reflects.
    pub count: u64,
    /// Bytes of their calls.
    pub bytes: u64,
    /// The state's digest; 0 if its maker did not compare any more.
    pub digest: u64,
    /// When the state was the newest, in milliseconds since 1970 by the maker's wall clock; 0 if that is not known.
    #[serde(default)]
    pub made_ms: u64,
}

/// How far an object was when somebody began a checkpoint of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    /// Every position below is reflected.
    pub upto: u64,
    /// Records.
    pub count: u64,
    /// Bytes of their calls.
    pub bytes: u64,
}

/// The checkpoint after which the next one may be due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Last {
    /// How far the object was.
    pub at: Begun,
    /// Bytes that the checkpoint has; 0 if there is none.
    pub len: u64,
}

/// The state.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Catalog {
    /// By the position that every lower one of the log is reflected of.
    stored: BTreeMap<u64, Stored>,
    begun: Begun,
    forgotten: u64,
    holds: BTreeMap<String, Hold>,
    /// Directories of checkpoints that are here no more and whose chunks may not be trimmed yet.
    dropped: BTreeSet<u64>,
    /// Below this position of the log there is no chunk but those of checkpoints that are or were here.
    swept: u64,
    /// The span of the past that is to be readable, in milliseconds. Not encoded without one, so that what was stored before is the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    history_ms: Option<u64>,
    #[serde(skip)]
    planted: Planted,
}

/// What was there before a change.
pub enum Change {
    /// Of a checkpoint.
    Stored(u64, Option<Stored>),
    /// Of what was begun.
    Begun(Begun),
    /// Of what is forgotten.
    Forgotten(u64),
    /// Of a pin or a lease.
    Hold(String, Option<Hold>),
    /// Whether a directory was dropped.
    Dropped(u64, bool),
    /// Of what is swept.
    Swept(u64),
    /// Of the span of the past.
    History(Option<u64>),
}

impl Catalog {
    /// Checkpoints, the oldest first, by the position that every lower one of the log is reflected of.
    pub fn stored(&self) -> &BTreeMap<u64, Stored> {
        &self.stored
    }

    /// The newest checkpoint, and the position that every lower one of the log is reflected of.
    pub fn newest(&self) -> Option<(LogPos, &Stored)> {
        self.stored.last_key_value().map(|(upto, stored)| (LogPos(*upto), stored))
    }

    /// The newest checkpoint whose state was the newest at least `span` before `now_ms`, by any clock, if more can be forgotten up to it.
    pub fn older(&self, span: Duration, now_ms: u64) -> Option<LogPos> {
        let span_ms =
            u64::try_from(span.as_millis()).unwrap_or(u64::MAX).saturating_add(limits::CLOCKS_APART_MS);
        let is_older =
            |stored: &Stored| stored.made_ms > 0 && stored.made_ms.saturating_add(span_ms) <= now_ms;
        let older = self.stored.iter().rev().find(|(_, stored)| is_older(stored));
        older.map(|(upto, _)| LogPos(*upto)).filter(|upto| *upto > self.forgotten())
    }

    /// Nothing below this position needs to be read for the newest state.
    fn covered(&self) -> LogPos {
        self.newest().map_or(self.forgotten(), |(upto, _)| upto)
    }

    /// What was begun last.
    pub fn begun(&self) -> Begun {
        self.begun
    }

    /// The newest checkpoint, or one that was begun after it.
    pub fn last(&self) -> Last {
        let Some((upto, stored)) = self.newest() else { return Last { at: self.begun, len: 0 } };
        let Begun { upto: begun, count, bytes } = self.begun;
        let (count, bytes) = (count.max(stored.count), bytes.max(stored.bytes));
        Last { at: Begun { upto: begun.max(upto.0), count, bytes }, len: stored.len }
    }

    /// Calls below this position are forgotten: it is the earliest that can be read.
    pub fn forgotten(&self) -> LogPos {
        LogPos(self.forgotten)
    }

    /// The span of the past that is to be readable; `None` if nobody has said so.
    pub fn history(&self) -> Option<Duration> {
        self.history_ms.map(Duration::from_millis)
    }

    /// Pins and leases by their names.
    pub fn holds(&self) -> &BTreeMap<String, Hold> {
        &self.holds
    }

    /// Directories whose chunks are to be trimmed, and they themselves after that.
    pub fn dropped(&self) -> &BTreeSet<u64> {
        &self.dropped
    }

    /// Below this position of the log there is no torn checkpoint.
    pub fn swept(&self) -> LogPos {
        LogPos(self.swept)
    }

    /// Whether a chunk is of a checkpoint that is not here and never will be.
    pub fn is_torn(&self, id: u64, upto: LogPos) -> bool {
        upto <= self.covered() && self.stored.values().all(|stored| stored.id != id)
    }

    fn change(&mut self, mut change: Change, undo: &mut Vec<Change>) {
        self.exchange(&mut change);
        undo.push(change);
    }

    /// Takes a checkpoint out; its chunks are to be trimmed.
    fn drop_stored(&mut self, upto: u64, undo: &mut Vec<Change>) {
        if let Some(directory) = self.stored.get(&upto).map(|stored| stored.directory) {
            self.change(Change::Stored(upto, None), undo);
            self.change(Change::Dropped(directory, true), undo);
        }
    }

    /// The checkpoint that is missed least: neither the first one, from which on there is everything, nor the newest.
    fn least_missed(&self) -> Option<u64> {
        let all: Vec<(u64, u64)> = self.stored.iter().map(|(upto, stored)| (*upto, stored.count)).collect();
        let gap = |three: &&[(u64, u64)]| three[2].1.saturating_sub(three[0].1);
        all.windows(3).min_by_key(gap).map(|three| three[1].0)
    }
}

impl Object for Catalog {
    const TYPE: &'static str = "catalog of checkpoints";
    const METHODS: &'static [Method<Self>] = &[
        Method::of::<Begin>(),
        Method::of::<Store>(),
        Method::of::<Forget>(),
        Method::of::<HoldFrom>(),
        Method::of::<LetGo>(),
        Method::of::<Clean>(),
        Method::of::<Keep>(),
    ];
    type Undo = Change;
    const IS_TRIED: bool = false;
    const IS_SHORT: bool = true;

    fn exchange(&mut self, undo: &mut Change) {
        match undo {
            Change::Stored(upto, stored) => {
                let before = self.stored.remove(upto);
                self.stored.extend(stored.take().map(|stored| (*upto, stored)));
                *stored = before;
            }
            Change::Begun(begun) => std::mem::swap(&mut self.begun, begun),
            Change::Forgotten(forgotten) => std::mem::swap(&mut self.forgotten, forgotten),
            Change::Hold(name, hold) => {
                let before = self.holds.remove(name);
                self.holds.extend(hold.take().map(|hold| (name.clone(), hold)));
                *hold = before;
            }
            Change::Dropped(directory, is_dropped) => {
                let was = if *is_dropped {
                    !self.dropped.insert(*directory)
                } else {
                    self.dropped.remove(directory)
                };
                *is_dropped = was;
            }
            Change::Swept(swept) => std::mem::swap(&mut self.swept, swept),
            Change::History(history_ms) => std::mem::swap(&mut self.history_ms, history_ms),
        }
    }

    fn plant(&mut self, planted: Planted) {
        self.planted = planted;
    }
}

/// Somebody wants to make a checkpoint. Gives whether it is time for one: the first who asks is told so, and others that have
/// read as far are not.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Begin {
    /// How far the object is.
    pub begun: Begun,
    /// How many records there must be since the last time.
    pub calls: u64,
    /// Or how many bytes.
    pub bytes: u64,
}

impl Mutator<Catalog> for Begin {
    const NAME: &'static str = "begin";
    type Output = bool;

    fn keys(&self) -> Keys {
        Keys::whole()
    }

    fn apply(self, catalog: &mut Catalog, _: LogPos, undo: &mut Vec<Change>) -> bool {
        let Begun { count, bytes, .. } = catalog.last().at;
        let is_due = self.begun.count >= count.saturating_add(self.calls)
            || (self.begun.count > count && self.begun.bytes >= bytes.saturating_add(self.bytes));
        if is_due {
            catalog.change(Change::Begun(self.begun), undo);
        }
        is_due
    }
}

/// A checkpoint is whole: every chunk of it and its directory are durable. Gives whether it is taken; it is not if there is one
/// that is as new.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Store {
    /// Every position below is reflected.
    pub upto: u64,
    /// The checkpoint.
    pub stored: Stored,
    /// Below this position of the log there is no torn one.
    pub swept: u64,
}

impl Mutator<Catalog> for Store {
    const NAME: &'static str = "store";
    type Output = bool;

    fn keys(&self) -> Keys {
        Keys::whole()
    }

    fn apply(self, catalog: &mut Catalog, _: LogPos, undo: &mut Vec<Change>) -> bool {
        if self.upto <= catalog.covered().0 && !catalog.planted.is(PlantedBug::LateCheckpointTaken) {
            return false;
        }
        catalog.change(Change::Stored(self.upto, Some(self.stored)), undo);
        if self.swept > catalog.swept {
            catalog.change(Change::Swept(self.swept), undo);
        }
        if catalog.stored.len() > limits::CHECKPOINTS_MAX_COUNT
            && let Some(upto) = catalog.least_missed()
        {
            catalog.drop_stored(upto, undo);
        }
        true
    }
}

/// What came of a wish to forget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forgot {
    /// States below this position are gone.
    pub below: u64,
    /// The pin or lease that has kept some of what was to be forgotten, if one has.
    pub held_by: Option<String>,
}

/// Calls below the newest checkpoint that reflects nothing above `before` are given up, as far as nobody holds them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Forget {
    /// This state, and all later ones, are kept.
    pub before: u64,
    /// The wall clock of whoever asks, for leases.
    pub now_ms: u64,
}

impl Mutator<Catalog> for Forget {
    const NAME: &'static str = "forget";
    type Output = Forgot;

    fn keys(&self) -> Keys {
        Keys::whole()
    }

    fn apply(self, catalog: &mut Catalog, _: LogPos, undo: &mut Vec<Change>) -> Forgot {
        let ended: Vec<String> = catalog
            .holds
            .iter()
            .filter(|(_, hold)| !hold.is_held(self.now_ms))
            .map(|(name, _)| name.clone())
            .collect();
        for name in ended {
            catalog.change(Change::Hold(name, None), undo);
        }
        let held = lowest(&catalog.holds, self.now_ms).filter(|(_, hold)| hold.pos < self.before);
        let held = held.filter(|_| !catalog.planted.is(PlantedBug::ForgetIgnoresPins));
        let limit = held.map_or(self.before, |(_, hold)| hold.pos);
        let held_by = held.map(|(name, _)| name.clone());
        let mut kept = catalog.stored.range(..=limit).next_back().map(|(upto, _)| *upto);
        if catalog.planted.is(PlantedBug::ForgetBeforeComplete) && catalog.begun.upto <= limit {
            kept = kept.max(Some(catalog.begun.upto));
        }
        if let Some(kept) = kept.filter(|kept| *kept > catalog.forgotten) {
            catalog.change(Change::Forgotten(kept), undo);
            let older: Vec<u64> = catalog.stored.range(..kept).map(|(upto, _)| *upto).collect();
            older.into_iter().for_each(|upto| catalog.drop_stored(upto, undo));
        }
        Forgot { below: catalog.forgotten, held_by }
    }
}

/// The states from a position on are needed: a pin or a lease. One of the same name takes the place of the one before.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HoldFrom {
    /// Its name.
    pub name: String,
    /// What it holds.
    pub hold: Hold,
}

impl Mutator<Catalog> for HoldFrom {
    const NAME: &'static str = "hold";
    type Output = Result<(), HoldRefused>;

    fn keys(&self) -> Keys {
        Keys::whole()
    }

    fn apply(self, catalog: &mut Catalog, _: LogPos, undo: &mut Vec<Change>) -> Self::Output {
        let len = self.name.len();
        if len == 0 || len > limits::HOLD_NAME_MAX_BYTES {
            return Err(HoldRefused::Name { len });
        }
        if self.hold.pos < catalog.forgotten {
            return Err(HoldRefused::Forgotten { earliest: catalog.forgotten });
        }
        if catalog.holds.len() >= limits::HOLDS_MAX_COUNT && !catalog.holds.contains_key(&self.name) {
            return Err(HoldRefused::TooMany);
        }
        catalog.change(Change::Hold(self.name, Some(self.hold)), undo);
        Ok(())
    }
}

/// A pin or a lease holds no more. Gives whether there was one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LetGo {
    /// Its name.
    pub name: String,
}

impl Mutator<Catalog> for LetGo {
    const NAME: &'static str = "let_go";
    type Output = bool;

    fn keys(&self) -> Keys {
        Keys::whole()
    }

    fn apply(self, catalog: &mut Catalog, _: LogPos, undo: &mut Vec<Change>) -> bool {
        let is_there = catalog.holds.contains_key(&self.name);
        if is_there {
            catalog.change(Change::Hold(self.name, None), undo);
        }
        is_there
    }
}

/// Whoever makes a checkpoint from now on keeps this span of the past, and forgets what is older.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Keep {
    /// In milliseconds; `None` leaves it to whoever makes one.
    pub history_ms: Option<u64>,
}

impl Mutator<Catalog> for Keep {
    const NAME: &'static str = "keep";
    type Output = ();

    fn keys(&self) -> Keys {
        Keys::whole()
    }

    fn apply(self, catalog: &mut Catalog, _: LogPos, undo: &mut Vec<Change>) {
        catalog.change(Change::History(self.history_ms), undo);
    }
}

/// What was to be trimmed is trimmed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Clean {
    /// Directories, with their chunks.
    pub dropped: Vec<u64>,
}

impl Mutator<Catalog> for Clean {
    const NAME: &'static str = "clean";
    type Output = ();

    fn keys(&self) -> Keys {
        Keys::whole()
    }

    fn apply(self, catalog: &mut Catalog, _: LogPos, undo: &mut Vec<Change>) {
        for directory in self.dropped {
            if catalog.dropped.contains(&directory) {
                catalog.change(Change::Dropped(directory, false), undo);
            }
        }
    }
}
