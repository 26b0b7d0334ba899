//! Transactions against a model that knows every cell of 16 bytes at every version.

use std::collections::BTreeMap;

use bytes::Bytes;

use ithaca_env::sim::Random;

use super::*;

const BLOCKS: u64 = 3;
/// Cells of a block that the tests use: few, so that they collide.
const CELLS: u64 = 4;

/// Block and cell.
type Cell = (u64, u64);

fn bytes_of(cell: u64) -> Range<usize> {
    cell as usize * 16..(cell as usize + 1) * 16
}

fn cell_in(block: &[u8], cell: u64) -> u64 {
    u64::from_le_bytes(block[bytes_of(cell).start..][..8].try_into().expect("8 bytes"))
}

/// What a transaction has seen and done.
#[derive(Clone, Debug)]
struct Deed {
    id: TxId,
    isolation: Isolation,
    snapshot: u64,
    /// Highest version that was acknowledged when it began.
    known: u64,
    reads: Vec<(Cell, u64)>,
    writes: BTreeMap<Cell, u64>,
}

/// Blocks at every version, and who made them.
struct Store {
    versions: Vec<BTreeMap<u64, Bytes>>,
    cells: Vec<BTreeMap<Cell, u64>>,
    durable: u64,
    acknowledged: u64,
    transactions: Transactions,
    open: Vec<Deed>,
    done: Vec<(Deed, Option<u64>)>,
    serial: u64,
}

impl Store {
    fn new(bytes_max: usize, planted: Planted) -> Self {
        Self {
            versions: vec![BTreeMap::new()],
            cells: vec![BTreeMap::new()],
            durable: 0,
            acknowledged: 0,
            transactions: Transactions::new(Grain::new(16), bytes_max, 256, planted),
            open: Vec::new(),
            done: Vec::new(),
            serial: 0,
        }
    }

    fn newest(&self) -> u64 {
        self.versions.len() as u64 - 1
    }

    fn block(&self, block: u64, version: u64) -> Bytes {
        let found = self.versions[version as usize].get(&block).cloned();
        found.unwrap_or_else(|| Bytes::from(vec![0; 4096]))
    }

    fn begin(&mut self, rng: &mut Random) {
        let isolation = if rng.below(2) == 0 { Isolation::StrictSerializable } else { Isolation::Snapshot };
        let (snapshot, known) = (self.durable, self.acknowledged);
        let begin = Begin { snapshot, acknowledged: known, client: 0, isolation };
        let id = self.transactions.begin(begin).expect("few are open");
        self.open.push(Deed { id, isolation, snapshot, known, reads: Vec::new(), writes: BTreeMap::new() });
    }

    /// One step of an open transaction; it may have been ended.
    fn step(&mut self, at: usize, rng: &mut Random) -> Result<(), TxError> {
        let (block, cell) = (rng.below(BLOCKS), rng.below(CELLS));
        let id = self.open[at].id;
        let base = self.block(block, self.open[at].snapshot);
        match rng.below(4) {
            0 => {
                let data = self.transactions.read_part(id, block, bytes_of(cell))?.unwrap_or(base);
                self.saw(at, (block, cell), &data);
            }
            1 => {
                // The way of the paper: all of it, and then a mark.
                let data = self.transactions.read(id, block)?.unwrap_or(base);
                if rng.below(2) == 0 {
                    self.transactions.mark(id, block, bytes_of(cell))?;
                    self.saw(at, (block, cell), &data);
                } else {
                    (0..CELLS).for_each(|cell| self.saw(at, (block, cell), &data));
                }
            }
            2 => {
                self.serial += 1;
                let mut bytes = [0; 16];
                bytes[..8].copy_from_slice(&self.serial.to_le_bytes());
                let base = self.transactions.needs_base(id, block)?.then_some(base);
                self.transactions.write_part(id, block, bytes_of(cell).start, &bytes, base.as_ref())?;
                self.open[at].writes.insert((block, cell), self.serial);
            }
            _ => {
                let mut data = vec![0; 4096];
                for cell in 0..CELLS {
                    self.serial += 1;
                    data[bytes_of(cell).start..][..8].copy_from_slice(&self.serial.to_le_bytes());
                    self.open[at].writes.insert((block, cell), self.serial);
                }
                self.transactions.write(id, block, Bytes::from(data))?;
            }
        }
        Ok(())
    }

    /// What was read of a cell is the transaction's own, or the snapshot's.
    fn saw(&mut self, at: usize, cell: Cell, data: &[u8]) {
        let found = cell_in(data, cell.1);
        let deed = &mut self.open[at];
        match deed.writes.get(&cell) {
            Some(own) => assert_eq!(found, *own, "it sees what it has written itself, {cell:?}"),
            None => {
                let snapshot = &self.cells[deed.snapshot as usize];
                assert_eq!(
                    found,
                    snapshot.get(&cell).copied().unwrap_or(0),
                    "it sees its snapshot, {cell:?}"
                );
                deed.reads.push((cell, found));
            }
        }
    }

    fn commit(&mut self, at: usize) {
        let deed = self.open.remove(at);
        match self.transactions.decide(deed.id) {
            Ok(Decided::Nothing) => {
                self.transactions.ended_reading(deed.id);
                self.done.push((deed, None));
            }
            Ok(Decided::Writes(writes)) => {
                let version = self.newest() + 1;
                self.transactions.committed(deed.id, version, &writes);
                let mut blocks = self.versions[version as usize - 1].clone();
                blocks.extend(writes);
                self.push(blocks, &deed.writes);
                self.done.push((deed, Some(version)));
            }
            Err(CommitError::Conflict { .. }) => self.transactions.refused(deed.id),
            Err(CommitError::Tx(TxError::Preempted)) => {}
            Err(other) => panic!("{other}"),
        }
    }

    fn plain(&mut self, rng: &mut Random) {
        let block = rng.below(BLOCKS);
        let (mut data, mut written) = (vec![0; 4096], BTreeMap::new());
        for cell in 0..CELLS {
            self.serial += 1;
            data[bytes_of(cell).start..][..8].copy_from_slice(&self.serial.to_le_bytes());
            written.insert((block, cell), self.serial);
        }
        let data = Bytes::from(data);
        self.transactions.note_plain(self.newest() + 1, [(block, Some(data.clone()))]);
        let mut blocks = self.versions.last().expect("the empty one").clone();
        blocks.insert(block, data);
        self.push(blocks, &written);
        if rng.below(2) == 0 {
            self.acknowledged = self.newest();
        }
    }

    fn push(&mut self, blocks: BTreeMap<u64, Bytes>, written: &BTreeMap<Cell, u64>) {
        let mut cells = self.cells.last().expect("the empty one").clone();
        cells.extend(written.iter().map(|(cell, number)| (*cell, *number)));
        for (&(block, cell), &number) in &cells {
            let data = blocks.get(&block).expect("a cell of a block that was written");
            assert_eq!(cell_in(data, cell), number, "no update is lost, block {block} cell {cell}");
        }
        self.versions.push(blocks);
        self.cells.push(cells);
    }

    /// The order of commits is the witness.
    fn judge(&self) {
        for (deed, version) in &self.done {
            let at = version.map_or(deed.snapshot, |version| version - 1);
            let is_strict = deed.isolation == Isolation::StrictSerializable;
            if is_strict {
                for (cell, found) in &deed.reads {
                    let expected = self.cells[at as usize].get(cell).copied().unwrap_or(0);
                    assert_eq!(*found, expected, "as if it had run at its commit {version:?}: {deed:?}");
                }
            }
            match version {
                None if is_strict => {
                    // It ran at its snapshot, or at any later version up to what was acknowledged before it began.
                    let reads = |version: &u64| {
                        let cells = &self.cells[*version as usize];
                        deed.reads.iter().all(|(cell, found)| cells.get(cell).copied().unwrap_or(0) == *found)
                    };
                    let late = deed.snapshot.max(deed.known);
                    assert!(reads(&late), "what was acknowledged before it began is seen: {deed:?}");
                }
                Some(version) if !is_strict => {
                    for between in deed.snapshot + 1..*version {
                        let (before, after) =
                            (&self.cells[between as usize - 1], &self.cells[between as usize]);
                        let lost = deed.writes.keys().find(|cell| before.get(cell) != after.get(cell));
                        assert_eq!(lost, None, "version {between} wrote it too: {deed:?}");
                    }
                }
                _ => {}
            }
        }
    }
}

/// Some hundred steps of a few transactions at a time. Returns how many committed and how many did not.
fn run(seed: u64, bytes_max: usize, planted: Planted) -> (u64, u64) {
    let (mut rng, mut store) = (Random::new(seed), Store::new(bytes_max, planted));
    for _ in 0..300 {
        let open = store.open.len() as u64;
        match rng.below(20) {
            0..4 if open < 5 => store.begin(&mut rng),
            4 if rng.below(2) == 0 => store.plain(&mut rng),
            5..7 => {
                // Some of what is under way becomes durable.
                store.durable += rng.below(store.newest() - store.durable + 1);
                store.acknowledged = store.acknowledged.max(store.durable);
                store.transactions.durable(store.durable);
            }
            7..10 if open > 0 => store.commit(rng.below(open) as usize),
            _ if open > 0 => {
                let at = rng.below(open) as usize;
                match store.step(at, &mut rng) {
                    Ok(()) => {}
                    Err(TxError::Preempted) => _ = store.open.remove(at),
                    Err(other) => panic!("{other}"),
                }
            }
            _ => {}
        }
    }
    store.judge();
    let counters = store.transactions.counters;
    (counters.committed, counters.conflicts + counters.preempted)
}

#[test]
fn the_order_of_commits_is_a_witness_for_every_history() {
    let mut sum = (0, 0);
    for seed in 0..1000 {
        let done = run(seed, usize::MAX, Planted::default());
        sum = (sum.0 + done.0, sum.1 + done.1);
    }
    assert!(sum.0 > 10_000 && sum.1 > 3_000, "{sum:?}: too little happened to mean something");
}

#[test]
fn the_oldest_give_way_when_memory_is_short_and_the_others_stay_right() {
    let mut sum = (0, 0);
    for seed in 0..300 {
        let done = run(seed, 40_000, Planted::default());
        sum = (sum.0 + done.0, sum.1 + done.1);
    }
    assert!(sum.0 > 1_000 && sum.1 > 1_000, "{sum:?}: too little happened to mean something");
}

#[test]
fn planted_faults_are_found() {
    use crate::planted::PlantedBug;
    let bugs = [
        PlantedBug::ReadsNotChecked,
        PlantedBug::WindowForgotten,
        PlantedBug::OwnWritesNotRead,
        PlantedBug::NotMerged,
    ];
    for bug in bugs {
        let fails =
            |seed: &u64| std::panic::catch_unwind(|| run(*seed, usize::MAX, Planted::bug(bug))).is_err();
        assert!((0..200).any(|seed| fails(&seed)), "{bug:?} goes unnoticed");
    }
}

/// Two that begin together, each with what it does.
fn two(isolation: Isolation, one: &[(char, u64)], other: &[(char, u64)]) -> [Result<bool, CommitError>; 2] {
    let mut store = Store::new(usize::MAX, Planted::default());
    let begin = Begin { snapshot: 0, acknowledged: 0, client: 0, isolation };
    let ids = [store.transactions.begin(begin), store.transactions.begin(begin)];
    let mut version = 0;
    [(ids[0].clone(), one), (ids[1].clone(), other)].map(|(id, deeds)| {
        let id = id.expect("two are open");
        for &(what, cell) in deeds {
            let bytes = bytes_of(cell);
            match what {
                'r' => _ = store.transactions.read_part(id, 0, bytes).expect("live"),
                'R' => _ = store.transactions.read(id, 0).expect("live"),
                'W' => store.transactions.write(id, 0, Bytes::from_static(&[7; 4096])).expect("live"),
                _ => {
                    let zeros = Bytes::from(vec![0; 4096]);
                    store.transactions.write_part(id, 0, bytes.start, &[9; 16], Some(&zeros)).expect("live");
                }
            }
        }
        match store.transactions.decide(id)? {
            Decided::Nothing => Ok(false),
            Decided::Writes(writes) => {
                version += 1;
                store.transactions.committed(id, version, &writes);
                Ok(true)
            }
        }
    })
}

#[test]
fn what_conflicts_is_what_the_paper_says_at_each_level() {
    use Isolation::{Snapshot, StrictSerializable};
    let conflict =
        |cell: u64| Err(CommitError::Conflict { block: 0, bytes: bytes_of(cell), version: Version(1) });
    let whole = Err(CommitError::Conflict { block: 0, bytes: 0..4096, version: Version(1) });
    let check = |isolation, one: &[(char, u64)], other: &[(char, u64)], expected| {
        assert_eq!(two(isolation, one, other), [Ok(true), expected], "{isolation:?} {one:?} {other:?}");
    };
    // Two cells of one block do not conflict; the same one does.
    for isolation in [Snapshot, StrictSerializable] {
        check(isolation, &[('r', 0), ('w', 0)], &[('r', 1), ('w', 1)], Ok(true));
        check(isolation, &[('r', 0), ('w', 0)], &[('r', 0), ('w', 0)], conflict(0));
    }
    // Each reads what the other one writes.
    check(Snapshot, &[('r', 1), ('w', 0)], &[('r', 0), ('w', 1)], Ok(true));
    check(StrictSerializable, &[('r', 1), ('w', 0)], &[('r', 0), ('w', 1)], conflict(0));
    // Writes that depend on nothing.
    check(StrictSerializable, &[('w', 0)], &[('w', 0)], Ok(true));
    check(Snapshot, &[('W', 0)], &[('W', 0)], whole.clone());
    // Without a mark all of a block counts.
    check(StrictSerializable, &[('w', 0)], &[('R', 0), ('w', 1)], conflict(0));
    check(StrictSerializable, &[('W', 0)], &[('R', 0), ('w', 1)], whole);
    // Who only reads has run at its snapshot.
    check(StrictSerializable, &[('w', 0)], &[('R', 0)], Ok(false));
}

#[test]
fn a_fragment_that_is_written_in_part_is_depended_on() {
    // Two write different halves of one fragment without reading it: one of the halves would be lost.
    let mut transactions = Transactions::new(Grain::new(64), usize::MAX, 256, Planted::default());
    let isolation = Isolation::StrictSerializable;
    let begin = Begin { snapshot: 0, acknowledged: 0, client: 0, isolation };
    let ids = [transactions.begin(begin), transactions.begin(begin)].map(|id| id.expect("two are open"));
    let zeros = Bytes::from(vec![0; 4096]);
    transactions.write_part(ids[0], 0, 0, &[1; 32], Some(&zeros)).expect("live");
    transactions.write_part(ids[1], 0, 32, &[2; 32], Some(&zeros)).expect("live");
    let Ok(Decided::Writes(writes)) = transactions.decide(ids[0]) else { panic!("it is the first") };
    transactions.committed(ids[0], 1, &writes);
    assert!(matches!(transactions.decide(ids[1]), Err(CommitError::Conflict { .. })));
}

#[test]
fn limits_and_ends_have_errors_of_their_own() {
    let mut transactions = Transactions::new(Grain::new(16), usize::MAX, 256, Planted::default());
    let begin = Begin { snapshot: 0, acknowledged: 0, client: 7, isolation: Isolation::Snapshot };
    let id = transactions.begin(begin).expect("the first");
    for block in 0..TX_WRITES_MAX as u64 {
        transactions.write(id, block, Bytes::from_static(&[1; 4096])).expect("as many as may be");
    }
    assert_eq!(
        transactions.write(id, 999, Bytes::from_static(&[1; 4096])),
        Err(TxError::TooManyWrites { max: 256 })
    );
    assert_eq!(
        transactions.write(id, 0, Bytes::from_static(&[2; 4096])),
        Ok(()),
        "a block that it writes already"
    );
    assert_eq!(transactions.mark(id, 999, 0..16), Err(TxError::NotAccessed { block: 999 }));
    for _ in 1..TXS_PER_CLIENT_MAX {
        transactions.begin(begin).expect("as many as may be");
    }
    assert_eq!(transactions.begin(begin), Err(TxError::TooMany { max: 256 }));
    transactions.begin(Begin { client: 8, ..begin }).expect("another client's");
    transactions.nest(id).expect("live");
    assert!(transactions.unnest(id, true), "the inner one");
    assert_eq!(transactions.read(id, 0), Err(TxError::Doomed));
    assert!(!transactions.unnest(id, false), "there is no inner one any more");
    assert_eq!(transactions.decide(id), Err(CommitError::Tx(TxError::Doomed)));
    transactions.abort(id);
    assert_eq!(transactions.read(id, 0), Err(TxError::Ended));
    assert_eq!(transactions.take_unpinned(), [0]);
    assert_eq!(transactions.memory_bytes(), (0, 0));
}
