//! Who works on the volume: transactions, plain writes, readers of snapshots, and what is checked at each open.

use std::cell::{Cell as Slot, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ithaca_env::Env;
use ithaca_env::drive::PageBuf;
use ithaca_env::sim::Plan;
use ithaca_volume::{
    CommitError, Durability, Isolation, Snapshot, Tx, TxError, TxOptions, Version, Volume, VolumeError,
};

use super::stale::Client;
use super::truth::{Cell, Cells, Deed, Held, Truth};

/// Blocks of the volume.
pub const BLOCKS: u64 = 6;
/// Cells of a block that are written, of 16 bytes each, far from each other.
pub const CELLS: u64 = 3;

/// Opens that may be refused in a row: more than faults can cause, of which each meets three requests.
const REFUSED_MAX: u32 = 30;

/// What all lives of the process share.
#[derive(Default)]
pub struct Shared {
    pub truth: RefCell<Truth>,
    /// What is left to do.
    pub left: Slot<u64>,
    /// Workers of this life that are at work.
    pub at_work: Slot<u32>,
    /// The process is to be ended: its volume has stopped, or could not be opened.
    pub is_over: Slot<bool>,
    /// All is done, and was looked at.
    pub is_done: Slot<bool>,
    pub wrong: RefCell<Option<String>>,
    pub opens: Slot<u64>,
    /// Opens that were refused since the last that was not.
    pub refused_in_a_row: Slot<u32>,
    pub conflicts: Slot<u64>,
    pub preempted: Slot<u64>,
    pub cleaned: Slot<u64>,
    pub floor: Slot<u64>,
    /// Somebody is giving a block up.
    pub is_discarding: Slot<bool>,
    pub discarded: Slot<u64>,
    /// Of the operations so many in a hundred are those of clients that take old versions.
    pub stale_percent: Slot<u64>,
    /// Of the plain writes so many in a hundred are of parts of blocks.
    pub parts_percent: Slot<u64>,
}

impl Shared {
    /// Of a plan.
    pub fn of_plan(plan: &Plan) -> Self {
        let left = Slot::new(plan.setting("workload.operations", 60));
        let stale_percent = Slot::new(plan.setting("workload.stale_percent", 0));
        let parts_percent = Slot::new(plan.setting("workload.parts_percent", 0));
        Self { left, stale_percent, parts_percent, ..Self::default() }
    }

    /// A look at what a crash has left of what was done so far.
    pub fn of_truth(truth: Truth) -> Self {
        Self { truth: RefCell::new(truth), ..Self::default() }
    }

    /// An open was refused: the process ends and is started again, but not for ever.
    pub fn refused(&self, why: &VolumeError) {
        let refused = self.refused_in_a_row.get() + 1;
        self.refused_in_a_row.set(refused);
        if refused > REFUSED_MAX {
            self.judge(Err(format!("{refused} opens in a row are refused: {why}")));
        }
        self.is_over.set(true);
    }

    /// Notes what is wrong, if it is the first.
    pub fn judge(&self, verdict: Result<(), String>) {
        let mut wrong = self.wrong.borrow_mut();
        *wrong = wrong.take().or(verdict.err());
    }
}

/// Where a cell lies in its block.
pub fn bytes_of(cell: u64) -> std::ops::Range<usize> {
    cell as usize * 1024..cell as usize * 1024 + 16
}

fn cell_in(block: &[u8], cell: u64) -> u64 {
    let bytes = &block[bytes_of(cell)][..8];
    u64::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]])
}

/// The cells of one block.
pub fn cells_of_block(block: u64, data: &[u8]) -> Vec<(Cell, u64)> {
    (0..CELLS).map(|cell| ((block, cell), cell_in(data, cell))).collect()
}

/// The cells of all blocks.
fn cells_of(data: &[u8]) -> Cells {
    let blocks = data.chunks(4096).enumerate();
    let cells = blocks
        .flat_map(|(block, data)| (0..CELLS).map(move |cell| ((block as u64, cell), cell_in(data, cell))));
    cells.filter(|(_, number)| *number != 0).collect()
}

/// After an open: what is there is what was there, at every version that is kept. Errors: the drive failed.
pub async fn look(volume: &Volume, shared: &Shared) -> Result<(), VolumeError> {
    let info = volume.info();
    shared.floor.set(info.floor.0);
    let named = volume.snapshots();
    let kept = (info.floor.0..=info.version.0).chain(named.iter().map(|(_, version)| version.0));
    let mut found = BTreeMap::new();
    for version in kept {
        let Ok(snapshot) = volume.at(Version(version)) else {
            shared.judge(Err(format!("version {version} is not there, history begins at {}", info.floor)));
            continue;
        };
        found.insert(version, cells_of(&snapshot.read(0, BLOCKS).await?));
    }
    found.insert(info.version.0, cells_of(&volume.read(0, BLOCKS).await?));
    let settled = shared.truth.borrow_mut().reopened(info.version.0, &found);
    shared.judge(settled);
    for (name, version) in shared.truth.borrow().names.iter() {
        let is_there = named.contains(&(name.clone(), Version(*version)));
        shared.judge(if is_there { Ok(()) } else { Err(format!("snapshot {name} is gone")) });
    }
    Ok(())
}

/// One worker of one life.
pub struct Worker {
    pub env: Env,
    pub volume: Volume,
    pub shared: Rc<Shared>,
    pub client: Client,
}

impl Worker {
    /// A number below `limit`.
    pub fn below(&self, limit: u64) -> u64 {
        self.env.random_u64() % limit
    }

    fn cell(&self) -> Cell {
        (self.below(BLOCKS), self.below(CELLS))
    }

    /// What was done, and must fit.
    pub fn truth(&self) -> std::cell::RefMut<'_, Truth> {
        self.shared.truth.borrow_mut()
    }

    fn is_stale(&self) -> bool {
        let percent = self.shared.stale_percent.get();
        percent > 0 && self.below(100) < percent
    }

    fn is_part(&self) -> bool {
        let percent = self.shared.parts_percent.get();
        percent > 0 && self.below(100) < percent
    }

    /// Works until nothing is left or the volume stops.
    pub async fn work(self) {
        while self.shared.left.get() > 0 && !self.shared.is_over.get() {
            self.shared.left.set(self.shared.left.get() - 1);
            self.client.note_durable(self.env.now(), self.truth().durable());
            let worked = match self.below(12) {
                _ if self.is_stale() => self.stale().await,
                0..6 => self.transaction().await,
                6..9 => self.plain().await,
                9 => self.flush().await,
                10 => self.name().await,
                _ => self.look_back().await,
            };
            match worked {
                // A read that fails is not tried again here; a drive that was full has room again.
                Ok(()) | Err(VolumeError::Drive(_) | VolumeError::Full { .. }) => {}
                Err(VolumeError::Stopped(_)) => self.shared.is_over.set(true),
                Err(other) => {
                    self.shared.judge(Err(other.to_string()));
                    self.shared.is_over.set(true);
                }
            }
            self.env.sleep(Duration::from_micros(self.below(300))).await;
        }
        self.shared.at_work.set(self.shared.at_work.get() - 1);
    }

    fn durability(&self) -> Durability {
        if self.below(2) == 0 { Durability::Stable } else { Durability::Acknowledged }
    }

    async fn transaction(&self) -> Result<(), VolumeError> {
        let is_strict = self.below(2) == 0;
        let isolation = if is_strict { Isolation::StrictSerializable } else { Isolation::Snapshot };
        let durability = self.durability();
        let options = TxOptions { isolation: Some(isolation), durability, client: 0 };
        let Ok(tx) = self.volume.begin(options) else { return Ok(()) };
        let held = if is_strict { Held::Strict } else { Held::Snapshot };
        let Ok(Version(snapshot)) = tx.snapshot() else { return Ok(()) };
        let mut deed = Deed { held, snapshot, reads: Vec::new(), writes: Cells::new() };
        for _ in 0..1 + self.below(5) {
            match self.access(&tx, &mut deed).await {
                Ok(()) => {}
                Err(TxError::Volume(error)) => return Err(error),
                Err(_) => {
                    self.truth().note(deed);
                    return Ok(());
                }
            }
            self.env.sleep(Duration::from_micros(self.below(200))).await;
        }
        let reads_only = deed.writes.is_empty();
        let asked = if reads_only { None } else { Some(self.truth().ask(deed.clone())) };
        let committed = tx.commit().await;
        if let Err(CommitError::Tx(TxError::Volume(error @ VolumeError::Stopped(_)))) = committed {
            // It may be there: what is under way is sorted out at the next open.
            return Err(error);
        }
        let version = committed.as_ref().ok().copied().flatten().map(|version| version.0);
        match asked {
            Some(asked) => self.truth().answer(asked, version),
            None => self.truth().note(deed),
        }
        match committed {
            Ok(Some(Version(version))) if durability == Durability::Stable => {
                self.truth().note_durable(version)
            }
            Ok(_) => {}
            Err(CommitError::Conflict { .. }) => self.shared.conflicts.set(self.shared.conflicts.get() + 1),
            Err(CommitError::Tx(TxError::Volume(error))) => return Err(error),
            Err(_) => self.shared.preempted.set(self.shared.preempted.get() + 1),
        }
        Ok(())
    }

    async fn access(&self, tx: &Tx, deed: &mut Deed) -> Result<(), TxError> {
        let (block, cell) = self.cell();
        if self.below(2) == 0 {
            tx.please_cache(block)?;
            let found = match self.below(2) {
                0 => cell_in_part(&tx.read_part(block, bytes_of(cell)).await?),
                _ => {
                    let data = tx.read(block, 1).await?;
                    tx.mark_accessed(block, bytes_of(cell))?;
                    cell_in(&data, cell)
                }
            };
            match deed.writes.get(&(block, cell)) {
                Some(own) if *own == found => {}
                Some(own) => self.shared.judge(Err(format!("{own} was written and {found} is read"))),
                None => deed.reads.push(((block, cell), found)),
            }
        } else {
            let number = self.truth().serial();
            let bytes = [number.to_le_bytes(), [0; 8]].concat();
            tx.write_part(block, bytes_of(cell).start, &bytes).await?;
            deed.writes.insert((block, cell), number);
        }
        Ok(())
    }

    async fn plain(&self) -> Result<(), VolumeError> {
        if self.below(5) == 0 && !self.shared.is_discarding.get() {
            return self.discard().await;
        }
        if self.is_part() {
            return self.part().await;
        }
        let (block, durability) = (self.below(BLOCKS), self.durability());
        let writes_zeros = self.below(10) == 0;
        let mut data = vec![0; 4096];
        let mut writes = Cells::new();
        for cell in 0..CELLS {
            let number = if writes_zeros { 0 } else { self.truth().serial() };
            data[bytes_of(cell)][..8].copy_from_slice(&number.to_le_bytes());
            writes.insert((block, cell), number);
        }
        self.write_bytes(block * 4096, data, writes, durability).await
    }

    /// Writes one cell: the others of its block stay.
    async fn part(&self) -> Result<(), VolumeError> {
        let (cell, number) = (self.cell(), self.truth().serial());
        let at = cell.0 * 4096 + bytes_of(cell.1).start as u64;
        let writes = Cells::from([(cell, number)]);
        self.write_bytes(at, number.to_le_bytes().to_vec(), writes, self.durability()).await
    }

    async fn write_bytes(
        &self,
        at: u64,
        data: Vec<u8>,
        writes: Cells,
        durability: Durability,
    ) -> Result<(), VolumeError> {
        let deed = Deed { held: Held::Plain, snapshot: 0, reads: Vec::new(), writes };
        let asked = self.truth().ask(deed);
        // Whole blocks lie on a block boundary in memory, as those of a client in shared memory do.
        let written = self.volume.write_bytes(at, PageBuf::copy_of(&data), durability).await;
        if let Err(error @ VolumeError::Stopped(_)) = written {
            return Err(error);
        }
        self.truth().answer(asked, written.as_ref().ok().map(|version| version.0));
        let Version(version) = written?;
        if durability == Durability::Stable {
            self.truth().note_durable(version);
        }
        Ok(())
    }

    /// Gives a block up. If it is zeros already that is no commit; which of the two it was the volume counts, so that one worker
    /// at a time does this.
    async fn discard(&self) -> Result<(), VolumeError> {
        let block = self.below(BLOCKS);
        let writes = (0..CELLS).map(|cell| ((block, cell), 0)).collect();
        let asked = self.truth().ask(Deed { held: Held::Plain, snapshot: 0, reads: Vec::new(), writes });
        self.shared.is_discarding.set(true);
        let before = self.volume.info().counters.blocks_discarded;
        let discarded = self.volume.discard(block..block + 1, Durability::Acknowledged).await;
        let is_commit = self.volume.info().counters.blocks_discarded > before;
        self.shared.is_discarding.set(false);
        if let Err(error @ VolumeError::Stopped(_)) = discarded {
            return Err(error);
        }
        self.shared.discarded.set(self.shared.discarded.get() + u64::from(is_commit));
        let version = discarded.as_ref().ok().filter(|_| is_commit);
        self.truth().answer(asked, version.map(|version| version.0));
        discarded.map(drop)
    }

    async fn flush(&self) -> Result<(), VolumeError> {
        let Version(version) = self.volume.flush().await?;
        self.truth().note_durable(version);
        Ok(())
    }

    /// Gives a version a name, or takes one away.
    async fn name(&self) -> Result<(), VolumeError> {
        let name = format!("n{}", self.below(3));
        let is_known = self.truth().names.remove(&name).is_some();
        if is_known {
            return match self.volume.delete_snapshot(&name).await {
                Err(VolumeError::NoSuchSnapshot { .. }) => Ok(()),
                deleted => deleted,
            };
        }
        match self.volume.create_snapshot(&name).await {
            Ok(Version(version)) => {
                self.truth().note_durable(version);
                self.truth().names.insert(name, version);
                Ok(())
            }
            Err(VolumeError::NameTaken { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Reads an old version now and after a while: it stays as it was.
    async fn look_back(&self) -> Result<(), VolumeError> {
        let info = self.volume.info();
        let version = info.floor.0 + self.below(info.version.0 - info.floor.0 + 1);
        let held = self.volume.at(Version(version))?;
        self.note_reads(&held).await?;
        self.env.sleep(Duration::from_micros(self.below(5_000))).await;
        self.note_reads(&held).await
    }

    async fn note_reads(&self, held: &Snapshot) -> Result<(), VolumeError> {
        let data = held.read(0, BLOCKS).await?;
        let found = cells_of(&data);
        let cells = (0..BLOCKS).flat_map(|block| (0..CELLS).map(move |cell| (block, cell)));
        let reads = cells.map(|cell| (cell, found.get(&cell).copied().unwrap_or(0))).collect();
        let Version(snapshot) = held.version();
        self.truth().note(Deed { held: Held::Reading, snapshot, reads, writes: Cells::new() });
        Ok(())
    }
}

fn cell_in_part(bytes: &[u8]) -> u64 {
    u64::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]])
}
