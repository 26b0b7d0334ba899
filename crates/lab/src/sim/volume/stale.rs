//! A worker as a client that takes old versions, and what it is owed. What it was given is judged when the order of commits is known.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use ithaca_env::Time;
use ithaca_volume::stale::{Costs, DriveCost, Level, StaleClient, StaleStore};
use ithaca_volume::{CommitError, TxError, Version, Volume, VolumeError};

use super::truth::{Cells, Deed, Held, Taken};
use super::workers::{BLOCKS, Worker, bytes_of, cells_of_block};

/// The bound on age, where there is one: about as long as a few operations take.
const AGE: Duration = Duration::from_micros(700);
const BUDGET: usize = 4;

const LEVELS: [Level; 6] = [
    Level::STRONG,
    Level::READ_MY_WRITES,
    Level::MONOTONIC_READS,
    Level::SESSION,
    Level::within_updates(2),
    Level::within_age(AGE),
];

/// The client that a worker is, for one life of the process.
pub struct Client {
    store: StaleStore,
    state: RefCell<StaleClient>,
    /// By block: at which version it was read last, and the last own write.
    read: RefCell<BTreeMap<u64, u64>>,
    written: RefCell<BTreeMap<u64, u64>>,
    /// What was known to be durable when.
    durable: RefCell<Vec<(Time, u64)>>,
}

impl Client {
    /// The one of this number, which has done nothing; the number says what it is held to.
    pub fn new(number: u32, volume: &Volume) -> Self {
        let store = StaleStore::new(volume, Costs::all(DriveCost::NVME));
        let level = LEVELS[number as usize % LEVELS.len()];
        let state = RefCell::new(store.client(level, Version(0), BUDGET));
        let (read, written) = (RefCell::default(), RefCell::default());
        Self { store, state, read, written, durable: RefCell::default() }
    }

    /// Everything up to `durable` is known to be durable.
    pub fn note_durable(&self, now: Time, durable: u64) {
        self.durable.borrow_mut().push((now, durable));
    }

    /// How long it takes until what was known to be durable last is of this age.
    fn until_aged(&self, now: Time, age: Duration) -> Duration {
        let last = self.durable.borrow().last().map_or(now, |(time, _)| *time + age);
        last.since(now)
    }

    /// What was known to be durable so long ago.
    fn durable_before(&self, now: Time, age: Duration) -> u64 {
        let durable = self.durable.borrow();
        let known = durable.partition_point(|(time, _)| *time + age <= now);
        known.checked_sub(1).map_or(0, |at| durable[at].1)
    }
}

impl Worker {
    /// Does something of a client that takes old versions.
    pub async fn stale(&self) -> Result<(), VolumeError> {
        match self.below(8) {
            0 => self.walk().await,
            1 => self.update().await,
            _ => self.take().await,
        }
    }

    /// Reads a block at whatever version seems to be the cheapest.
    // One worker is one client: nobody else borrows its state.
    #[expect(clippy::await_holding_refcell_ref, reason = "a worker does one thing at a time")]
    async fn take(&self) -> Result<(), VolumeError> {
        let client = &self.client;
        let age = client.state.borrow().level().age_max;
        if let Some(age) = age.filter(|_| self.below(2) == 0) {
            // Whoever takes a version for a little newer than it is shows that at once, and hardly ever later.
            self.env.sleep(client.until_aged(self.env.now(), age)).await;
        }
        let now = self.env.now();
        let durable = self.truth().durable();
        let block = self.below(BLOCKS);
        let mut state = client.state.borrow_mut();
        let level = state.level();
        let read = client.store.read(&mut state, block).await?;
        let of = |past: &RefCell<BTreeMap<u64, u64>>| past.borrow().get(&block).copied().unwrap_or(0);
        let past = [
            if level.own_writes { of(&client.written) } else { 0 },
            if level.monotonic { of(&client.read) } else { 0 },
            level.age_max.map_or(0, |age| client.durable_before(now, age)),
        ];
        let Version(version) = read.version;
        let least = past.into_iter().fold(0, u64::max);
        let taken = Taken { block, version, least, durable, updates_max: level.updates_max };
        client.read.borrow_mut().insert(block, version);
        let mut truth = self.truth();
        truth.take(taken);
        for snapshot in [read.range.first, read.version, read.range.last] {
            // Of versions that history has lost nobody says anything.
            if client.store.open(snapshot).is_ok() {
                let reads = cells_of_block(block, &read.data);
                truth.note(Deed { held: Held::Reading, snapshot: snapshot.0, reads, writes: Cells::new() });
            }
        }
        Ok(())
    }

    /// Reads some blocks, all at one version.
    async fn walk(&self) -> Result<(), VolumeError> {
        let store = &self.client.store;
        let mut walk = store.walk(store.history(), BUDGET)?;
        let mut reads = Vec::new();
        for _ in 0..3 {
            let block = self.below(BLOCKS);
            reads.extend(cells_of_block(block, &walk.read(block).await?));
            self.env.sleep(Duration::from_micros(self.below(200))).await;
        }
        let Version(snapshot) = walk.version();
        self.truth().note(Deed { held: Held::Reading, snapshot, reads, writes: Cells::new() });
        Ok(())
    }

    /// Writes some blocks at once.
    async fn update(&self) -> Result<(), VolumeError> {
        let mut update = self.client.store.open_new();
        let mut writes = Cells::new();
        for _ in 0..1 + self.below(3) {
            let (block, mut data) = (self.below(BLOCKS), vec![0; 4096]);
            for cell in 0..super::workers::CELLS {
                let number = self.truth().serial();
                data[bytes_of(cell)][..8].copy_from_slice(&number.to_le_bytes());
                writes.insert((block, cell), number);
            }
            update.write(block, data.into())?;
        }
        let blocks: Vec<u64> = update.blocks().collect();
        let asked = self.truth().ask(Deed { held: Held::Plain, snapshot: 0, reads: Vec::new(), writes });
        let closed = update.close().await;
        if let Err(CommitError::Tx(TxError::Volume(error @ VolumeError::Stopped(_)))) = closed {
            return Err(error);
        }
        self.truth().answer(asked, closed.as_ref().ok().map(|version| version.0));
        match closed {
            Ok(version) => {
                self.truth().note_durable(version.0);
                let mut written = self.client.written.borrow_mut();
                blocks.iter().for_each(|block| _ = written.insert(*block, version.0));
                self.client.state.borrow_mut().note_write(blocks, version);
                Ok(())
            }
            Err(CommitError::Tx(TxError::Volume(error))) => Err(error),
            Err(CommitError::Conflict { .. }) => {
                self.shared.judge(Err("an update depends on nobody, and was in conflict".to_owned()));
                Ok(())
            }
            Err(CommitError::Tx(_)) => Ok(()),
        }
    }
}
