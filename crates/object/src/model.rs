//! The core against a model of the log: seeds make histories of several clients, and an oracle judges each.
//!
//! The modelled log is a list of entries and the sequencer's table of last writes, which is forgotten now and then as a change of
//! the sequencer would have it. Clients read it in pieces, begin at snapshots that lie behind, lose answers and try again, and
//! start anew from checkpoints. The oracle replays the log from the beginning for every question that it has.

use std::collections::BTreeMap;

use bytes::Bytes;
use ithaca_env::sim::Random;
use ithaca_log::pos::{LogPos, StreamId};
use ithaca_log::stream::{Condition, ConflictKey, KeyHash};

use crate::collections::{MapState, Put, Remove};
use crate::key::{Key, Keys, Parts};
use crate::object::{call_of, keys_of};
use crate::planted::{Planted, PlantedBug};
use crate::record::{Call, Record, TxId};
use crate::tx::{Commit, Isolation, Level, Transaction};
use crate::view::View;

type Map = MapState<u8, u64>;

const OBJECTS: u64 = 2;
const KEYS: u64 = 3;
const CLIENTS: u64 = 3;
const STEPS: u64 = 400;

fn stream(object: u64) -> StreamId {
    StreamId(u128::from(300 + object))
}

/// The log, and what its sequencer remembers.
#[derive(Default)]
struct Log {
    entries: Vec<Bytes>,
    last: BTreeMap<ConflictKey, LogPos>,
    last_of_all: BTreeMap<StreamId, LogPos>,
    low_water: LogPos,
}

enum Refused {
    Conflict(ConflictKey, LogPos),
    TooOld(LogPos),
}

impl Log {
    fn tail(&self) -> LogPos {
        LogPos(self.entries.len() as u64)
    }

    fn record(&self, pos: u64) -> Record {
        Record::decode(&self.entries[pos as usize]).expect("the model's own record")
    }

    fn append_if(
        &mut self,
        streams: &[StreamId],
        condition: &Condition,
        entry: Bytes,
    ) -> Result<LogPos, Refused> {
        if !condition.reads.is_empty() && condition.snapshot < self.low_water {
            return Err(Refused::TooOld(self.low_water));
        }
        for &key in &condition.reads {
            let whole = ConflictKey { key: KeyHash::ALL, ..key };
            let last = match key.key {
                KeyHash::ALL => self.last_of_all.get(&key.stream),
                _ => self.last.get(&key).max(self.last.get(&whole)),
            };
            if let Some(&pos) = last.filter(|pos| **pos >= condition.snapshot) {
                return Err(Refused::Conflict(key, pos));
            }
        }
        let pos = self.tail();
        for &stream in streams {
            self.last_of_all.insert(stream, pos);
            if !condition.writes.iter().any(|key| key.stream == stream) {
                self.last.insert(ConflictKey { stream, key: KeyHash::ALL }, pos);
            }
        }
        self.last.extend(condition.writes.iter().map(|&key| (key, pos)));
        self.entries.push(entry);
        Ok(pos)
    }

    fn change_sequencer(&mut self) {
        self.last.clear();
        self.last_of_all.clear();
        self.low_water = self.tail();
    }

    /// An object as a replay has it that nothing went wrong in.
    fn replay(&self, object: u64, below: LogPos) -> View<Map> {
        let mut view = View::new(stream(object), Planted::NONE);
        for pos in 0..below.0 {
            if self.record(pos).streams().contains(&stream(object)) {
                view.take(LogPos(pos), &self.entries[pos as usize]);
            }
        }
        view.advance(below);
        view
    }

    fn value(&self, object: u64, key: u8, below: LogPos) -> Option<u64> {
        let view = self.replay(object, below);
        view.state().expect("it applies").entries().get(&key).map(|placed| placed.value)
    }
}

/// What a transaction saw: of which object and key, and what.
type Seen = (u64, u8, Option<u64>);

/// What is written: of which object and key, and what.
type Written = BTreeMap<(u64, u8), Option<u64>>;

/// A transaction that is under way, and what is known of it.
struct Running {
    tx: Transaction,
    isolation: Isolation,
    /// Reads of what it had not written itself.
    reads: Vec<Seen>,
    /// What it has written itself, and for each nested one what that was before.
    own: Written,
    outer: Vec<(Level, Written)>,
}

struct Client {
    id: u64,
    views: Vec<View<Map>>,
    next_request: u64,
    running: Option<Running>,
    /// A commit whose answer was lost, and the transaction that it was.
    unknown: Option<(Record, Commit, Running)>,
}

#[derive(Default)]
struct Counted {
    committed: u64,
    conflicts: u64,
    too_old: u64,
    repeated: u64,
    nested_aborts: u64,
}

struct World {
    random: Random,
    log: Log,
    clients: Vec<Client>,
    planted: Planted,
    /// Committed transactions: where, and what they saw.
    committed: Vec<(TxId, Running)>,
    counted: Counted,
}

impl World {
    fn new(seed: u64, planted: Planted) -> Self {
        let view = |object| View::new(stream(object), planted);
        let client = |id| Client {
            id,
            views: (0..OBJECTS).map(view).collect(),
            next_request: 0,
            running: None,
            unknown: None,
        };
        Self {
            random: Random::new(seed),
            log: Log::default(),
            clients: (0..CLIENTS).map(client).collect(),
            planted,
            committed: Vec::new(),
            counted: Counted::default(),
        }
    }

    fn run(&mut self) -> Result<(), String> {
        for _ in 0..STEPS {
            let client = self.random.below(CLIENTS) as usize;
            match self.random.below(40) {
                0 => self.log.change_sequencer(),
                1 => self.restart_from_checkpoint(client)?,
                2..8 => self.catch_up(client),
                _ if self.clients[client].unknown.is_some() => self.try_again(client)?,
                _ => self.go_on(client)?,
            }
        }
        for client in 0..CLIENTS as usize {
            if self.clients[client].unknown.is_some() {
                self.try_again(client)?;
            }
        }
        self.judge()
    }

    /// Reads some of the log into one view.
    fn catch_up(&mut self, client: usize) {
        let object = self.random.below(OBJECTS);
        let from = self.clients[client].views[object as usize].upto().0;
        let to = from + self.random.below(self.log.tail().0 - from + 1);
        self.read_to(client, object, LogPos(to));
    }

    fn read_to(&mut self, client: usize, object: u64, to: LogPos) {
        let view = &mut self.clients[client].views[object as usize];
        for pos in view.upto().0..to.0 {
            if self.log.record(pos).streams().contains(&stream(object)) {
                view.take(LogPos(pos), &self.log.entries[pos as usize]);
            }
        }
        view.advance(to);
    }

    /// A client takes another's checkpoint for its own.
    fn restart_from_checkpoint(&mut self, client: usize) -> Result<(), String> {
        let other = self.random.below(CLIENTS) as usize;
        for object in 0..OBJECTS as usize {
            let checkpoint =
                self.clients[other].views[object].checkpoint().map_err(|error| error.to_string())?;
            let view = View::restore(stream(object as u64), &checkpoint, self.planted);
            self.clients[client].views[object] = view.map_err(|error| error.to_string())?;
        }
        self.clients[client].running = None;
        Ok(())
    }

    fn begin(&mut self, client: usize) {
        let views = &self.clients[client].views;
        let lowest = views.iter().map(View::floor).max().unwrap_or_default();
        let newest = views.iter().map(View::upto).max().unwrap_or_default();
        let back = self.random.below(4).min(newest.0 - lowest.0.min(newest.0));
        let snapshot = LogPos(newest.0 - back).max(lowest);
        let isolation = if self.random.below(4) == 0 { Isolation::Snapshot } else { Isolation::Strict };
        self.clients[client].running = Some(Running {
            tx: Transaction::new(snapshot, isolation, self.planted),
            isolation,
            reads: Vec::new(),
            own: BTreeMap::new(),
            outer: Vec::new(),
        });
    }

    /// The next step of a client's transaction.
    fn go_on(&mut self, client: usize) -> Result<(), String> {
        if self.clients[client].running.is_none() {
            self.begin(client);
        }
        match self.random.below(12) {
            0..4 => self.get(client).map(|_| ()),
            4..6 => self.increment(client),
            6..8 => self.write(client),
            8 => {
                let running = self.clients[client].running.as_mut().expect("it runs");
                let level = running.tx.begin_nested().map_err(|error| error.to_string())?;
                running.tx.enter(level).expect("it has just begun");
                running.outer.push((level, running.own.clone()));
                Ok(())
            }
            9 => {
                let is_abort = self.random.below(2) == 0;
                let running = self.clients[client].running.as_mut().expect("it runs");
                match running.outer.pop() {
                    Some((level, outer)) if is_abort => {
                        running.tx.abort_nested(level);
                        running
                            .tx
                            .leave(running.outer.last().map_or_else(Level::default, |(level, _)| *level));
                        if running.tx.is_doomed() {
                            return Err("nobody has seen what was taken back".to_owned());
                        }
                        running.own = outer;
                        self.counted.nested_aborts += 1;
                    }
                    Some((level, _)) => assert!(running.tx.commit_nested(level), "it is open"),
                    None => {}
                }
                Ok(())
            }
            _ => self.commit(client),
        }
    }

    fn read(&mut self, client: usize, object: u64, key: u8) -> Result<Option<u64>, String> {
        let snapshot = self.clients[client].running.as_ref().expect("it runs").tx.snapshot();
        self.read_to(client, object, snapshot.max(self.clients[client].views[object as usize].upto()));
        let Client { views, running, .. } = &mut self.clients[client];
        let running = running.as_mut().expect("it runs");
        running.tx.note_reads(stream(object), &[Key::of(&key)]);
        let read = |map: &Map, _| map.entries().get(&key).map(|placed| placed.value);
        views[object as usize].read_at(snapshot, running.tx.calls(), read).map_err(|error| error.to_string())
    }

    /// A read, judged at once: opacity holds for those too that will abort.
    fn get(&mut self, client: usize) -> Result<(u64, u8, Option<u64>), String> {
        let (object, key) = (self.random.below(OBJECTS), self.random.below(KEYS) as u8);
        let seen = self.read(client, object, key)?;
        let running = self.clients[client].running.as_mut().expect("it runs");
        let expected = match running.own.get(&(object, key)) {
            Some(own) => *own,
            None => {
                running.reads.push((object, key, seen));
                self.log.value(object, key, running.tx.snapshot())
            }
        };
        if seen != expected {
            let snapshot = running.tx.snapshot();
            return Err(format!("object {object} key {key} at {snapshot} is {expected:?}, read as {seen:?}"));
        }
        Ok((object, key, seen))
    }

    fn increment(&mut self, client: usize) -> Result<(), String> {
        let (object, key, seen) = self.get(client)?;
        self.put(client, object, key, Some(seen.unwrap_or(0) + 1))
    }

    fn write(&mut self, client: usize) -> Result<(), String> {
        let (object, key) = (self.random.below(OBJECTS), self.random.below(KEYS) as u8);
        let value = Some(self.random.below(1000)).filter(|value| *value > 200);
        self.put(client, object, key, value)
    }

    fn put(&mut self, client: usize, object: u64, key: u8, value: Option<u64>) -> Result<(), String> {
        let (call, keys) = put_call(object, key, value);
        let running = self.clients[client].running.as_mut().expect("it runs");
        running.own.insert((object, key), value);
        let keys = Keys { reads: Parts::None, ..keys };
        running.tx.add(call, keys).map(|_| ()).map_err(|error| error.to_string())
    }

    fn commit(&mut self, client: usize) -> Result<(), String> {
        let mut running = self.clients[client].running.take().expect("it runs");
        if running.tx.is_read_only() || !running.outer.is_empty() {
            return Ok(());
        }
        let commit = running.tx.commit();
        let this = &mut self.clients[client];
        let id = TxId { client: this.id, request: this.next_request };
        this.next_request += 1;
        let checks = this.views.iter().filter_map(View::newest_check).collect();
        let record = Record { id, settled: id.request, checks, calls: commit.calls.clone() };
        self.submit(client, record, commit, running)
    }

    fn submit(
        &mut self,
        client: usize,
        record: Record,
        mut commit: Commit,
        mut running: Running,
    ) -> Result<(), String> {
        loop {
            match self.log.append_if(&commit.streams, &commit.condition, record.encode()) {
                Ok(_) if self.random.below(4) == 0 => {
                    // The answer is lost: the client does not know.
                    self.clients[client].unknown = Some((record, commit, running));
                    return Ok(());
                }
                Ok(_) => {
                    self.counted.committed += 1;
                    self.committed.push((record.id, running));
                    return Ok(());
                }
                Err(Refused::Conflict(key, pos)) => {
                    self.counted.conflicts += 1;
                    let name = running.tx.name_of(key);
                    let is_named = name.hash() == key.key && pos >= commit.condition.snapshot;
                    return if is_named { Ok(()) } else { Err(format!("a conflict over {name} at {pos}")) };
                }
                Err(Refused::TooOld(low_water)) => {
                    self.counted.too_old += 1;
                    if self.suffix_conflicts(&running, low_water)? {
                        return Ok(());
                    }
                    running.tx.move_to(low_water);
                    commit.condition.snapshot = low_water;
                }
            }
        }
    }

    fn suffix_conflicts(&self, running: &Running, low_water: LogPos) -> Result<bool, String> {
        for stream in running.tx.depends_on() {
            for pos in running.tx.snapshot().0..low_water.0 {
                let conflict =
                    running.tx.check_against(stream, LogPos(pos), &self.log.record(pos), keys_of::<Map>);
                if conflict.map_err(|error| error.to_string())?.is_some() {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// The client looks for its commit, and tries again if a conflict hides it; half of the time it tries again at once.
    fn try_again(&mut self, client: usize) -> Result<(), String> {
        let (record, commit, running) = self.clients[client].unknown.take().expect("an unknown outcome");
        let is_there = (0..self.log.tail().0).any(|pos| self.log.record(pos).id == record.id);
        if commit.condition.reads.is_empty() && self.random.below(2) == 0 {
            self.counted.repeated += 1;
            return self.submit(client, record, commit, running);
        }
        assert!(is_there, "the model appends before it loses an answer");
        self.counted.committed += 1;
        self.committed.push((record.id, running));
        Ok(())
    }

    /// Everything that was committed happened once, at its position; every view is what a replay is.
    fn judge(&mut self) -> Result<(), String> {
        for (id, running) in &self.committed {
            let first = (0..self.log.tail().0).find(|pos| self.log.record(*pos).id == *id);
            let pos = LogPos(first.ok_or(format!("{id} is not in the log"))?);
            self.judge_commit(*id, pos, running)?;
        }
        for client in 0..CLIENTS as usize {
            for object in 0..OBJECTS {
                self.read_to(client, object, self.log.tail());
                let view = &self.clients[client].views[object as usize];
                let replay = self.log.replay(object, self.log.tail());
                let (found, expected) = (view.state().map_err(|error| error.to_string())?, replay.state());
                let expected = expected.expect("a replay applies");
                if found.entries() != expected.entries() || view.digest() != replay.digest() {
                    return Err(format!("client {client} and a replay differ about object {object}"));
                }
            }
        }
        Ok(())
    }

    fn judge_commit(&self, id: TxId, pos: LogPos, running: &Running) -> Result<(), String> {
        for &(object, key, seen) in running.reads.iter().filter(|_| running.isolation == Isolation::Strict) {
            let then = self.log.value(object, key, pos);
            if then != seen {
                return Err(format!("{id} saw {seen:?} of {object}/{key} and {then:?} was there at {pos}"));
            }
        }
        for (&(object, key), &own) in &running.own {
            let (before, after) =
                (self.log.value(object, key, pos), self.log.value(object, key, LogPos(pos.0 + 1)));
            if after != own {
                return Err(format!("{id} wrote {own:?} to {object}/{key} and {after:?} is there"));
            }
            let at_snapshot = self.log.value(object, key, running.tx.snapshot());
            if running.isolation == Isolation::Snapshot && before != at_snapshot {
                return Err(format!("{id} has overwritten {before:?} of {object}/{key} unseen"));
            }
        }
        // What an aborted part of it wrote is not there.
        let own = |object, key| running.own.contains_key(&(object, key));
        for (object, key) in (0..OBJECTS).flat_map(|object| (0..KEYS).map(move |key| (object, key as u8))) {
            let (before, after) =
                (self.log.value(object, key, pos), self.log.value(object, key, LogPos(pos.0 + 1)));
            if before != after && !own(object, key) {
                return Err(format!("{id} has changed {object}/{key} from {before:?} to {after:?}"));
            }
        }
        Ok(())
    }
}

fn put_call(object: u64, key: u8, value: Option<u64>) -> (Call, Keys) {
    use crate::object::Mutator;
    let keys = Keys::updates(Key::of(&key));
    let call = match value {
        Some(value) => {
            let put = Put { key, value };
            assert_eq!(Mutator::<Map>::keys(&put), keys);
            call_of::<Map, _>(stream(object), &put)
        }
        None => call_of::<Map, _>(stream(object), &Remove { key }),
    };
    (call.expect("it is encoded"), keys)
}

#[test]
fn histories_are_strictly_serializable_opaque_and_applied_once() {
    let mut counted = Counted::default();
    for seed in 1..=300 {
        let mut world = World::new(seed, Planted::NONE);
        assert_eq!(world.run(), Ok(()), "seed {seed}");
        counted.committed += world.counted.committed;
        counted.conflicts += world.counted.conflicts;
        counted.too_old += world.counted.too_old;
        counted.repeated += world.counted.repeated;
        counted.nested_aborts += world.counted.nested_aborts;
    }
    // A history in which nothing happens proves nothing.
    assert!(counted.committed > 300 * 5, "{} commits", counted.committed);
    for (what, count) in [
        ("conflicts", counted.conflicts),
        ("snapshots that are too old", counted.too_old),
        ("repetitions", counted.repeated),
        ("nested aborts", counted.nested_aborts),
    ] {
        assert!(count >= 20, "{what}: {count}");
    }
}

#[test]
fn every_planted_fault_is_found() {
    // Those of what is forgotten, of remote views and of composed maps are found by the catalog's model, by tests and by `cargo lab sim objects`.
    let elsewhere = |bug: &PlantedBug| {
        use PlantedBug::{
            CatalogCutAtItself, ForgetBeforeComplete, ForgetIgnoresPins, ForgetIgnoresValues, GapNotSeen,
            LateCheckpointTaken, OtherStateAssumed, RemoteAnswersEarly, WatchLeavesOut,
        };
        let of_forgetting = matches!(bug, ForgetBeforeComplete | ForgetIgnoresPins | ForgetIgnoresValues);
        let of_reading = matches!(bug, GapNotSeen | OtherStateAssumed | RemoteAnswersEarly | WatchLeavesOut);
        of_forgetting || of_reading || matches!(bug, CatalogCutAtItself | LateCheckpointTaken)
    };
    for &bug in PlantedBug::ALL.iter().filter(|bug| !elsewhere(bug)) {
        let found = (1..=600).find_map(|seed| World::new(seed, Planted::bug(bug)).run().err());
        assert!(found.is_some(), "{bug:?} goes unnoticed");
    }
}
