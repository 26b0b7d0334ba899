//! Programs that work on the same few keys of the same few maps, and note what they did and saw.

use std::cell::{Cell as StdCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ithaca_env::Env;
use ithaca_log::client::{Client, ClientError};
use ithaca_log::pos::{LogPos, StreamId};
use ithaca_object::checkpoint::Policy;
use ithaca_object::collections::{Map, MultiGet, Put, Replaced};
use ithaca_object::planted::Planted;
use ithaca_object::record::{Record, TxId};
use ithaca_object::remote::Refused;
use ithaca_object::store::Store;
use ithaca_object::{Begin, Isolation, ObjectError, Runtime, RuntimeOptions, Tx, TxOptions};

use super::pairs;
use super::spread::{self, Spread};
use super::truth::{Cell, Deed, Fate, Truth};
use super::watches;

/// Objects, and keys of each that are worked on.
const OBJECTS: usize = 2;
const KEYS: u64 = 4;
/// The wait before a program whose cluster is away goes on.
const WAIT: Duration = Duration::from_millis(2);

/// What all programs share.
#[derive(Default)]
pub struct Shared {
    pub deeds: RefCell<Vec<Deed>>,
    pub left: StdCell<u64>,
    pub done: StdCell<u32>,
    pub committed: StdCell<u64>,
    pub conflicts: StdCell<u64>,
    pub unknown: StdCell<u64>,
    /// The highest position that was acknowledged.
    pub known: StdCell<Option<LogPos>>,
    /// What was read of each object before anything of it was forgotten.
    pub copied: RefCell<BTreeMap<usize, BTreeMap<LogPos, Record>>>,
    /// Reads that the node answered, and calls whose results it did not tell.
    pub told: StdCell<u64>,
    pub untold: StdCell<u64>,
    /// Peeks at streams that have shown something.
    pub peeks: StdCell<u64>,
    /// How often somebody wanted to forget something, and how often something was forgotten.
    pub forgets: StdCell<u64>,
    pub forgotten: StdCell<u64>,
    pub wrong: RefCell<Option<String>>,
    /// What is known of the pairs of keys in the store, and of the hashed map.
    pub pairs: pairs::Known,
    pub spread: spread::Known,
    /// What watches were told.
    pub watches: watches::Known,
    serial: StdCell<u64>,
}

/// Often, and in several chunks; every other program has all in one.
pub const CHECKPOINTS: Policy =
    Policy { calls: 12, bytes: 1 << 40, rare_calls: 4, catalog_records: 4, chunk_bytes: 96, history: None };

fn opened(runtime: &Runtime) -> Result<Vec<Map<u64, u64>>, ObjectError> {
    (0..OBJECTS).map(|object| Map::open(runtime, &name(object))).collect()
}

/// The same maps with their states at the node.
fn opened_remote(runtime: &Runtime) -> Result<Vec<Map<u64, u64>>, ObjectError> {
    (0..OBJECTS).map(|object| Map::open_remote(runtime, &name(object))).collect()
}

fn name(object: usize) -> String {
    format!("map-{object}")
}

/// What was read, and what it was.
type Reads = Vec<(Cell, Option<u64>)>;

/// A program.
pub struct Worker {
    pub env: Env,
    pub shared: Rc<Shared>,
    options: RuntimeOptions,
    pub runtime: Runtime,
    pub maps: Vec<Map<u64, u64>>,
    store: Store<u64, u64>,
    remotes: Vec<Map<u64, u64>>,
    spread: [Spread; 2],
    /// Its number among the programs.
    number: u64,
}

impl Worker {
    pub fn new(
        env: &Env,
        client: Client,
        shared: Rc<Shared>,
        planted: Planted,
        number: u64,
    ) -> Result<Self, ObjectError> {
        let chunk_bytes = if number.is_multiple_of(2) { CHECKPOINTS.chunk_bytes } else { 64 << 10 };
        let checkpoints = Policy { chunk_bytes, ..CHECKPOINTS };
        let options = RuntimeOptions { planted, checkpoints, ..RuntimeOptions::default() };
        let runtime = Runtime::new(env, client, options.clone());
        let (maps, remotes) = (opened(&runtime)?, opened_remote(&runtime)?);
        let (store, spread) = (pairs::open(&runtime)?, spread::open(&runtime)?);
        Ok(Self { env: env.clone(), shared, options, runtime, maps, remotes, store, spread, number })
    }

    /// Begins anew with nothing in memory, as a program would that was started again.
    async fn start_again(&mut self) -> Result<(), ObjectError> {
        self.note_peeks();
        // A program of its own has a client of its own: ids of transactions are the client's.
        let client = super::connect(&self.env).await;
        self.runtime = Runtime::new(&self.env, client, self.options.clone());
        self.maps = opened(&self.runtime)?;
        self.store = pairs::open(&self.runtime)?;
        self.remotes = opened_remote(&self.runtime)?;
        self.spread = spread::open(&self.runtime)?;
        Ok(())
    }

    /// Counts the peeks of a client that is not used any more.
    fn note_peeks(&self) {
        self.shared.peeks.set(self.shared.peeks.get() + self.runtime.client().peeks());
    }

    /// A map as this program has it, or as the node has it.
    fn map(&self, object: usize) -> &Map<u64, u64> {
        let maps = if self.below(3) == 0 { &self.remotes } else { &self.maps };
        &maps[object]
    }

    fn below(&self, limit: u64) -> u64 {
        self.env.random_u64() % limit
    }

    fn cell(&self) -> Cell {
        (self.below(OBJECTS as u64) as usize, self.below(KEYS))
    }

    fn value(&self) -> u64 {
        let serial = self.shared.serial.get() + 1;
        self.shared.serial.set(serial);
        serial
    }

    /// Works until nothing is left.
    pub async fn work(mut self) {
        while self.shared.left.get() > 0 {
            self.shared.left.set(self.shared.left.get() - 1);
            let worked = match self.below(30) {
                0..3 => self.put().await,
                3..5 => self.look_back().await,
                5 => self.forget().await,
                6 => self.pin().await,
                7 => self.start_again().await,
                8..11 => self.pairs().await,
                11..14 => self.look().await,
                14..18 => self.spread().await,
                18..20 => self.watch().await,
                20..22 => self.put_several().await,
                22..24 => self.replace().await,
                _ => self.transaction().await,
            };
            match worked {
                Ok(()) => self.env.sleep(Duration::from_micros(self.below(500))).await,
                // The cluster is away, or did not answer.
                Err(ObjectError::Log(_) | ObjectError::Unknown { .. }) => self.env.sleep(WAIT).await,
                // It is the node that cannot reach the cluster, or has forgotten so far back.
                Err(ObjectError::Remote { refused: Refused::Unavailable { .. }, .. }) => {
                    self.env.sleep(WAIT).await
                }
                Err(ObjectError::NoResult { .. }) => {
                    self.shared.untold.set(self.shared.untold.get() + 1);
                    self.env.sleep(WAIT).await
                }
                Err(ObjectError::Forgotten { .. }) if self.shared.forgets.get() > 0 => {}
                Err(error) => {
                    self.shared.wrong.borrow_mut().get_or_insert(error.to_string());
                }
            }
        }
        self.note_peeks();
        self.shared.done.set(self.shared.done.get() + 1);
    }

    fn acknowledged(&self, pos: LogPos) {
        self.shared.committed.set(self.shared.committed.get() + 1);
        self.shared.known.set(self.shared.known.get().max(Some(pos)));
    }

    /// Something about the pairs of keys in the store.
    async fn pairs(&self) -> Result<(), ObjectError> {
        let step = pairs::step(&self.env, &self.store, &self.shared.pairs, &self.shared.forgets);
        if let Err(wrong) = Box::pin(step).await? {
            self.shared.wrong.borrow_mut().get_or_insert(wrong);
        }
        Ok(())
    }

    /// Something about the hashed map.
    async fn spread(&self) -> Result<(), ObjectError> {
        let step = spread::step(&self.env, &self.spread, &self.shared.spread, self.number);
        if let Err(wrong) = Box::pin(step).await? {
            self.shared.wrong.borrow_mut().get_or_insert(wrong);
        }
        Ok(())
    }

    /// Watches a map from some position on that was known, and reads what it was told of last.
    async fn watch(&self) -> Result<(), ObjectError> {
        let object = self.below(OBJECTS as u64) as usize;
        let known = self.shared.known.get().map_or(0, |known| known.0 + 1);
        let since = LogPos(known - self.below(known + 1) / 8);
        let map = &self.maps[object];
        let told = watches::step(&self.env, (object, map), since, &self.shared.watches).await?;
        let Some(&snapshot) = told.last() else { return Ok(()) };
        let mut reads = Vec::new();
        for key in 0..KEYS {
            reads.push(((object, key), map.at(snapshot).get(&key).await?));
        }
        self.note(Fate::Aborted, Some(snapshot), None, false, (reads, BTreeMap::new()));
        Ok(())
    }

    /// One call by itself: what was there before is its result.
    async fn put(&self) -> Result<(), ObjectError> {
        let (cell, value) = (self.cell(), self.value());
        let put = self.map(cell.0).handle().call_placed(Put { key: cell.1, value }).await;
        let (reads, fate) = match &put {
            Ok((before, Some(pos))) => {
                self.acknowledged(*pos);
                (vec![(cell, *before)], self.id_at(*pos).await?)
            }
            Ok((_, None)) => (Vec::new(), None),
            Err(_) => (Vec::new(), None),
        };
        let writes = BTreeMap::from([(cell, value)]);
        let fate = fate.map_or(Fate::Unknown, Fate::Committed);
        let deed = Deed { fate, snapshot: None, known: None, is_strict: true, reads, writes };
        self.shared.deeds.borrow_mut().push(deed);
        put.map(|_| ())
    }

    /// Several keys of a map at once, without a look at it.
    async fn put_several(&self) -> Result<(), ObjectError> {
        let object = self.below(OBJECTS as u64) as usize;
        let writes: BTreeMap<Cell, u64> =
            (0..1 + self.below(KEYS)).map(|_| ((object, self.below(KEYS)), self.value())).collect();
        let puts = writes.iter().map(|(&(_, key), &value)| (key, Some(value))).collect();
        let put = self.map(object).multi_put(puts).await;
        let fate = match &put {
            Ok(pos) => {
                let pos = pos.expect("it is in no transaction");
                self.acknowledged(pos);
                self.id_at(pos).await?
            }
            Err(_) => None,
        };
        let fate = fate.map_or(Fate::Unknown, Fate::Committed);
        self.note(fate, None, None, true, (Vec::new(), writes));
        put.map(|_| ())
    }

    /// Gives a key another value if nobody else has since it was read.
    async fn replace(&self) -> Result<(), ObjectError> {
        let (cell, value) = (self.cell(), self.value());
        let map = self.map(cell.0);
        let before = map.get_placed(&cell.1).await?;
        self.env.sleep(Duration::from_micros(self.below(300))).await;
        let replaced = match &before {
            Some(before) => map.replace(cell.1, LogPos(before.pos), value).await,
            None => map.put_if_absent(cell.1, value).await,
        };
        let fate = match &replaced {
            Ok(Replaced::Done(Some(pos))) => {
                self.acknowledged(*pos);
                self.id_at(*pos).await?.map_or(Fate::Unknown, Fate::Committed)
            }
            Ok(Replaced::Differs(_)) => Fate::Aborted,
            Ok(Replaced::Done(None)) | Err(_) => Fate::Unknown,
        };
        let reads = vec![(cell, before.map(|placed| placed.value))];
        self.note(fate, None, None, true, (reads, BTreeMap::from([(cell, value)])));
        replaced.map(|_| ())
    }

    /// Reads some keys of a map as they are now.
    async fn look(&self) -> Result<(), ObjectError> {
        let (object, known) = (self.below(OBJECTS as u64) as usize, self.shared.known.get());
        let keys: Vec<u64> = (0..1 + self.below(KEYS)).map(|_| self.below(KEYS)).collect();
        let map = self.map(object);
        let (found, upto) = map.handle().look_placed(MultiGet { keys: keys.clone() }).await?;
        let told = u64::from(map.handle().is_remote());
        self.shared.told.set(self.shared.told.get() + told);
        // Between what it reflects and the tail that was asked for, which lies above what was known, nothing is of the object.
        let snapshot = upto.max(LogPos(known.map_or(0, |known| known.0 + 1)));
        let found = found.into_iter().map(|placed| placed.map(|placed| placed.value));
        let reads = keys.into_iter().map(|key| (object, key)).zip(found).collect();
        self.note(Fate::Aborted, Some(snapshot), None, false, (reads, BTreeMap::new()));
        Ok(())
    }

    /// Copies what there is of an object, and has some of it forgotten.
    async fn forget(&self) -> Result<(), ObjectError> {
        let object = self.below(OBJECTS as u64) as usize;
        let before =
            LogPos(self.shared.known.get().map_or(0, |known| known.0 + 1 - self.below(known.0 + 1) / 2));
        self.copy(object, before).await?;
        if self.below(4) == 0 {
            self.maps[object].handle().checkpoint().await?;
        }
        // Whatever comes of it, something may be gone.
        self.shared.forgets.set(self.shared.forgets.get() + 1);
        let forgotten = self.maps[object].handle().forget(before).await?;
        if forgotten.earliest > LogPos(0) {
            self.shared.forgotten.set(self.shared.forgotten.get() + 1);
        }
        Ok(())
    }

    /// Reads an object's records up to a position, for those who judge later.
    pub async fn copy(&self, object: usize, upto: LogPos) -> Result<(), ObjectError> {
        let (stream, mut next) = (StreamId::of_name(&name(object)), LogPos(0));
        while next < upto {
            let part = self.runtime.client().read_stream(stream, next..upto, 1 << 20).await?;
            let mut copied = self.shared.copied.borrow_mut();
            for entry in &part.entries {
                match Record::decode(&entry.data) {
                    Ok(record) => drop(copied.entry(object).or_default().insert(entry.pos, record)),
                    Err(error) => *self.shared.wrong.borrow_mut() = Some(error.to_string()),
                }
            }
            if part.upto == next {
                break;
            }
            next = part.upto;
        }
        Ok(())
    }

    /// Holds an old state, and reads it while others forget.
    async fn pin(&self) -> Result<(), ObjectError> {
        let Some(known) = self.shared.known.get() else { return Ok(()) };
        let (object, snapshot) =
            (self.below(OBJECTS as u64) as usize, LogPos(known.0 + 1 - self.below(known.0 + 1) / 2));
        let (handle, pin) = (self.maps[object].handle(), format!("{:x}", self.env.random_u64()));
        match handle.pin(&pin, snapshot).await {
            Err(ObjectError::Hold { .. }) => return Ok(()),
            held => held?,
        }
        for _ in 0..2 {
            self.env.sleep(Duration::from_micros(self.below(20_000))).await;
            // As one who has nothing in memory.
            let options = RuntimeOptions { checkpoints: Policy::NEVER, ..self.options.clone() };
            let runtime = Runtime::new(&self.env, self.runtime.client().clone(), options);
            let map = Map::<u64, u64>::open(&runtime, &name(object))?.at(snapshot);
            let mut reads = Vec::new();
            for key in 0..KEYS {
                match map.get(&key).await {
                    Err(error @ (ObjectError::Forgotten { .. } | ObjectError::Unusable { .. })) => {
                        let wrong = format!("it is pinned as {pin}: {error}");
                        self.shared.wrong.borrow_mut().get_or_insert(wrong);
                        return Ok(());
                    }
                    found => reads.push(((object, key), found?)),
                }
            }
            self.note(Fate::Aborted, Some(snapshot), None, false, (reads, BTreeMap::new()));
        }
        handle.let_go(&pin).await.map(|_| ())
    }

    async fn id_at(&self, pos: LogPos) -> Result<Option<TxId>, ObjectError> {
        let entry = self.runtime.client().read(pos).await;
        Ok(entry.ok().and_then(|entry| Record::decode(&entry.data).ok()).map(|record| record.id))
    }

    /// Reads all that there is as of an old position, twice.
    async fn look_back(&self) -> Result<(), ObjectError> {
        let Some(known) = self.shared.known.get() else { return Ok(()) };
        let snapshot = LogPos(self.below(known.0 + 1));
        for _ in 0..2 {
            let mut reads = Vec::new();
            for object in 0..OBJECTS {
                let map = self.map(object).at(snapshot);
                for key in 0..KEYS {
                    reads.push(((object, key), map.get(&key).await?));
                }
            }
            self.note(Fate::Aborted, Some(snapshot), None, false, (reads, BTreeMap::new()));
            self.env.sleep(Duration::from_micros(self.below(2_000))).await;
        }
        Ok(())
    }

    async fn transaction(&self) -> Result<(), ObjectError> {
        let isolation = if self.below(4) == 0 { Isolation::Snapshot } else { Isolation::Strict };
        let known = self.shared.known.get();
        let begin = match self.below(4) {
            0 => Begin::Local,
            1 => Begin::At(LogPos(known.map_or(0, |known| known.0 + 1 - self.below(3).min(known.0)))),
            _ => Begin::Newest,
        };
        let tx = self.runtime.begin(&TxOptions { isolation, begin, retries: 0 }).await?;
        let (mut reads, mut writes) = (Vec::new(), BTreeMap::new());
        let body = self.body(&tx, &mut reads, &mut writes).await;
        let known = known.filter(|_| begin == Begin::Newest);
        let snapshot = tx.snapshot();
        let is_strict = isolation == Isolation::Strict;
        if let Err(error) = body {
            self.note(Fate::Aborted, snapshot, known, is_strict, (reads, writes));
            return Err(error);
        }
        let committed = tx.commit().await;
        let fate = match &committed {
            Ok(committed) => match committed.record {
                Some((id, pos)) => {
                    self.acknowledged(pos);
                    Fate::Committed(id)
                }
                None => Fate::Aborted,
            },
            Err(ObjectError::Unknown { .. }) => {
                self.shared.unknown.set(self.shared.unknown.get() + 1);
                Fate::Unknown
            }
            Err(_) => Fate::Aborted,
        };
        self.note(fate, snapshot, known, is_strict, (reads, writes));
        match committed {
            Err(ObjectError::Aborted(_)) => {
                self.shared.conflicts.set(self.shared.conflicts.get() + 1);
                Ok(())
            }
            other => other.map(|_| ()),
        }
    }

    async fn body(
        &self,
        tx: &Tx,
        reads: &mut Reads,
        writes: &mut BTreeMap<Cell, u64>,
    ) -> Result<(), ObjectError> {
        for _ in 0..1 + self.below(5) {
            let cell = self.cell();
            let map = self.map(cell.0).within(tx);
            match self.below(5) {
                0..3 => {
                    let seen = map.get(&cell.1).await?;
                    self.note_read(cell, seen, reads, writes);
                }
                3 => {
                    let value = self.value();
                    let before = map.put(cell.1, value).await?;
                    self.note_read(cell, before, reads, writes);
                    writes.insert(cell, value);
                }
                _ => {
                    let value = self.value();
                    map.fast_put(cell.1, value).await?;
                    writes.insert(cell, value);
                }
            }
            self.env.sleep(Duration::from_micros(self.below(300))).await;
        }
        Ok(())
    }

    fn note_read(&self, cell: Cell, seen: Option<u64>, reads: &mut Reads, writes: &BTreeMap<Cell, u64>) {
        match writes.get(&cell) {
            Some(own) if seen == Some(*own) => {}
            Some(own) => {
                let wrong = format!("{own} was written to {cell:?} and {seen:?} is read");
                self.shared.wrong.borrow_mut().get_or_insert(wrong);
            }
            None => reads.push((cell, seen)),
        }
    }

    fn note(
        &self,
        fate: Fate,
        snapshot: Option<LogPos>,
        known: Option<LogPos>,
        is_strict: bool,
        (reads, writes): (Reads, BTreeMap<Cell, u64>),
    ) {
        self.shared.deeds.borrow_mut().push(Deed { fate, snapshot, known, is_strict, reads, writes });
    }

    /// Reads what is there in the end, and judges everything by it.
    pub async fn audit(self) -> Result<(), String> {
        let told = |error: ClientError| format!("the audit failed: {error}");
        let tail = self.runtime.client().check().await.map_err(told)?.tail;
        let mut streams = Vec::new();
        for object in 0..OBJECTS {
            self.copy(object, tail).await.map_err(|error| format!("the audit failed: {error}"))?;
            let copied = self.shared.copied.borrow_mut().remove(&object).unwrap_or_default();
            streams.push((StreamId::of_name(&name(object)), copied.into_iter().collect()));
        }
        let truth = Truth::of(&streams)?;
        truth.judge(&self.shared.deeds.borrow())?;
        watches::judge(&self.shared.watches, |object| truth.changes(object), self.shared.forgets.get() > 0)?;
        pairs::audit(&self.store, &self.shared.pairs).await?;
        spread::audit(&self.spread[0], &self.shared.spread).await?;
        for (object, map) in self.maps.iter().enumerate() {
            let found = map.entries().await.map_err(|error| error.to_string())?;
            if found != truth.end(object) {
                return Err(format!("object {object} is {found:?}, by its records {:?}", truth.end(object)));
            }
        }
        Ok(())
    }
}
