//! What transactions did and saw, judged by the log that is there in the end.

use std::collections::{BTreeMap, BTreeSet};

use ithaca_log::pos::{LogPos, StreamId};
use ithaca_object::collections::MapState;
use ithaca_object::planted::Planted;
use ithaca_object::record::{Record, TxId};
use ithaca_object::view::{Applied, View};

/// The state of every object.
pub type State = MapState<u64, u64>;

/// An object and a key.
pub type Cell = (usize, u64);

/// What came of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was said to be committed.
    Committed(TxId),
    /// It was said to be aborted, or ended without a commit.
    Aborted,
    /// Nobody knows.
    Unknown,
}

/// One transaction.
#[derive(Clone, Debug)]
pub struct Deed {
    pub fate: Fate,
    /// What its reads reflect, unless it was one call.
    pub snapshot: Option<LogPos>,
    /// The log was known to reach above this position when it began.
    pub known: Option<LogPos>,
    /// Whether its reads must hold where it stands.
    pub is_strict: bool,
    /// What it read that it had not written.
    pub reads: Vec<(Cell, Option<u64>)>,
    /// What it wrote last to each key; no two transactions write the same.
    pub writes: BTreeMap<Cell, u64>,
}

/// One object as the log has it.
struct Object {
    /// The state after each record that changed it.
    states: Vec<(LogPos, BTreeMap<u64, u64>)>,
    /// First records of transactions.
    first: BTreeMap<TxId, LogPos>,
}

/// Every object as the log has it.
pub struct Truth {
    objects: Vec<Object>,
}

impl Truth {
    /// Of all records, in the order of the log.
    pub fn of(streams: &[(StreamId, Vec<(LogPos, Record)>)]) -> Result<Self, String> {
        let objects =
            streams.iter().map(|(stream, records)| object(*stream, records)).collect::<Result<_, _>>()?;
        Ok(Self { objects })
    }

    /// What a key has below a position.
    fn value(&self, (object, key): Cell, below: LogPos) -> Option<u64> {
        let states = &self.objects[object].states;
        let count = states.partition_point(|(pos, _)| *pos < below);
        states[..count].last().and_then(|(_, state)| state.get(&key).copied())
    }

    /// What an object has in the end.
    pub fn end(&self, object: usize) -> Vec<(u64, u64)> {
        let last = self.objects[object].states.last();
        last.map_or_else(Vec::new, |(_, state)| state.iter().map(|(key, value)| (*key, *value)).collect())
    }

    /// Where the records stand that changed an object.
    pub fn changes(&self, object: usize) -> Vec<LogPos> {
        self.objects[object].states.iter().map(|(pos, _)| *pos).collect()
    }

    /// Judges what was done.
    pub fn judge(&self, deeds: &[Deed]) -> Result<(), String> {
        let written: BTreeSet<u64> = self.all_values();
        for deed in deeds {
            self.judge_snapshot(deed)?;
            match deed.fate {
                Fate::Committed(id) => self.judge_commit(id, deed)?,
                Fate::Aborted => {
                    if let Some(value) = deed.writes.values().find(|value| written.contains(value)) {
                        return Err(format!("{value} is there of a transaction that aborted: {deed:?}"));
                    }
                }
                Fate::Unknown => {
                    let there = deed.writes.values().filter(|value| written.contains(value)).count();
                    if there != 0 && there != deed.writes.len() {
                        return Err(format!("a transaction is there in part: {deed:?}"));
                    }
                }
            }
        }
        Ok(())
    }

    fn all_values(&self) -> BTreeSet<u64> {
        let states = self.objects.iter().flat_map(|object| &object.states);
        states.flat_map(|(_, state)| state.values().copied()).collect()
    }

    /// All that it read is of its snapshot, and that is not too old.
    fn judge_snapshot(&self, deed: &Deed) -> Result<(), String> {
        let Some(snapshot) = deed.snapshot else { return Ok(()) };
        if deed.known.is_some_and(|known| snapshot <= known) {
            return Err(format!("the snapshot {snapshot} leaves out what was known: {deed:?}"));
        }
        for &(cell, seen) in &deed.reads {
            let then = self.value(cell, snapshot);
            if then != seen {
                return Err(format!("{cell:?} is {then:?} at {snapshot}, seen as {seen:?}: {deed:?}"));
            }
        }
        Ok(())
    }

    /// It is there, whole and once; what it read still held.
    fn judge_commit(&self, id: TxId, deed: &Deed) -> Result<(), String> {
        let Some((&(object, _), _)) = deed.writes.first_key_value() else { return Ok(()) };
        let pos = *self.objects[object].first.get(&id).ok_or(format!("{id} is lost: {deed:?}"))?;
        for (&(object, key), &value) in &deed.writes {
            let found = self.value((object, key), LogPos(pos.0 + 1));
            if self.objects[object].first.get(&id) != Some(&pos) || found != Some(value) {
                return Err(format!(
                    "{id} wrote {value} to {object}/{key}, {found:?} is there at {pos}: {deed:?}"
                ));
            }
        }
        for &(cell, seen) in deed.reads.iter().filter(|_| deed.is_strict) {
            let then = self.value(cell, pos);
            if then != seen {
                return Err(format!("an update was lost: {cell:?} was {then:?} at {pos}: {deed:?}"));
            }
        }
        Ok(())
    }
}

fn object(stream: StreamId, records: &[(LogPos, Record)]) -> Result<Object, String> {
    let mut view = View::<State>::new(stream, Planted::NONE);
    let mut object = Object { states: Vec::new(), first: BTreeMap::new() };
    for (pos, record) in records {
        if let Applied::Now(_) = view.apply(*pos, record, false) {
            object.first.insert(record.id, *pos);
            let state = view.state().map_err(|fault| fault.to_string())?;
            let state = state.entries().iter().map(|(key, placed)| (*key, placed.value)).collect();
            object.states.push((*pos, state));
        }
        view.state().map_err(|fault| fault.to_string())?;
    }
    Ok(object)
}
