//! The core workloads of YCSB, A to F: which operation comes next, and on which record.
//!
//! As the benchmark has them (Cooper et al., SoCC 2010): popular records are drawn by a zipfian distribution of constant 0.99 and spread
//! over the key space by a hash; of workload D the newest ones are popular; scans are of 1 to 100 records. One difference is said in
//! the results: an update writes the whole record, as a store of whole values does.

use ithaca_env::sim::Random;

/// Records that are there before anything is measured.
pub const RECORDS: u64 = 10_000;
/// Fields of a record, and bytes of each.
pub const FIELDS: usize = 10;
pub const FIELD_BYTES: usize = 100;
/// Records of a scan at the most.
const SCAN_MAX: u64 = 100;
/// The constant of the zipfian distribution.
const SKEW: f64 = 0.99;

/// One operation. Records are named by numbers, from 0 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads a record.
    Read(u64),
    /// Writes a record that there is.
    Update(u64),
    /// Writes a record that there is not.
    Insert(u64),
    /// Reads so many records in the order of their keys.
    Scan(u64, usize),
    /// Reads a record and writes it, as one.
    Change(u64),
}

/// A workload: how many of a hundred operations are of which kind. The rest reads.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Its letter.
    pub name: &'static str,
    updates: u64,
    inserts: u64,
    scans: u64,
    changes: u64,
    /// Whether the newest records are the popular ones.
    is_latest: bool,
}

const NONE: Workload = Workload { name: "", updates: 0, inserts: 0, scans: 0, changes: 0, is_latest: false };

/// All of them.
pub const WORKLOADS: [Workload; 6] = [
    Workload { name: "a", updates: 50, ..NONE },
    Workload { name: "b", updates: 5, ..NONE },
    Workload { name: "c", ..NONE },
    Workload { name: "d", inserts: 5, is_latest: true, ..NONE },
    Workload { name: "e", scans: 95, inserts: 5, ..NONE },
    Workload { name: "f", changes: 50, ..NONE },
];

impl Workload {
    /// Whether some of its operations are scans.
    pub fn has_scans(&self) -> bool {
        self.scans > 0
    }
}

/// Numbers below a limit, of which 0 is the most popular one (Gray et al., SIGMOD 1994).
struct Zipfian {
    count: f64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipfian {
    fn new(count: u64) -> Self {
        let zeta_of = |count: u64| (1..=count).map(|rank| (rank as f64).powf(-SKEW)).sum::<f64>();
        let (zeta, count) = (zeta_of(count), count as f64);
        let eta = (1.0 - (2.0 / count).powf(1.0 - SKEW)) / (1.0 - zeta_of(2) / zeta);
        Self { count, zeta, alpha: 1.0 / (1.0 - SKEW), eta }
    }

    fn next(&self, random: &mut Random) -> u64 {
        let uniform = random.within(0.0, 1.0);
        let scaled = uniform * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5_f64.powf(SKEW) {
            return 1;
        }
        let rank = self.count * (self.eta * uniform - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.count as u64 - 1)
    }
}

/// What comes next, for all who work on one set of records.
pub struct Operations {
    random: Random,
    zipfian: Zipfian,
    /// Records there are, or are about to be.
    records: u64,
}

impl Operations {
    /// The operations of `seed`, on so many records as there are.
    pub fn new(seed: u64, records: u64) -> Self {
        Self { random: Random::new(seed), zipfian: Zipfian::new(RECORDS), records }
    }

    /// Records there are, or are about to be.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// The next one.
    pub fn next(&mut self, workload: &Workload) -> Operation {
        let mut kind = self.random.below(100);
        let mut is = |share: u64| {
            let is_it = kind < share;
            kind = kind.wrapping_sub(share);
            is_it
        };
        if is(workload.inserts) {
            self.records += 1;
            return Operation::Insert(self.records - 1);
        }
        let is_scan = is(workload.scans);
        let (is_update, is_change) = (is(workload.updates), is(workload.changes));
        let rank = self.zipfian.next(&mut self.random);
        let record = match workload.is_latest {
            true => self.records - 1 - rank,
            false => fnv(rank) % RECORDS,
        };
        match (is_scan, is_update, is_change) {
            (true, ..) => Operation::Scan(record, 1 + self.random.below(SCAN_MAX) as usize),
            (_, true, _) => Operation::Update(record),
            (_, _, true) => Operation::Change(record),
            _ => Operation::Read(record),
        }
    }
}

/// The key of a record, as the benchmark makes it: hashed, so that records in a row lie apart.
pub fn key_of(record: u64) -> String {
    format!("user{:020}", fnv(record))
}

/// FNV-1a of a number's bytes.
fn fnv(number: u64) -> u64 {
    number.to_le_bytes().iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn popular_records_are_drawn_as_often_as_the_distribution_says() {
        // One whose skew is off measures another benchmark: of 10,000 records at 0.99 the first has a tenth.
        let mut operations = Operations::new(7, RECORDS);
        let mut counts = vec![0_u64; RECORDS as usize];
        for _ in 0..200_000 {
            match operations.next(&WORKLOADS[2]) {
                Operation::Read(record) => counts[record as usize] += 1,
                other => panic!("{other:?} in a workload of reads"),
            }
        }
        counts.sort_unstable_by(|one, other| other.cmp(one));
        let share = |count: usize| counts[..count].iter().sum::<u64>() as f64 / 200_000.0;
        assert!((0.09..0.12).contains(&share(1)), "{}", share(1));
        assert!((0.50..0.62).contains(&share(100)), "{}", share(100));
    }

    #[test]
    fn a_workload_has_the_shares_that_it_says() {
        for (workload, expected) in WORKLOADS.iter().zip([
            [50, 50, 0, 0, 0],
            [95, 5, 0, 0, 0],
            [100, 0, 0, 0, 0],
            [95, 0, 5, 0, 0],
            [0, 0, 5, 95, 0],
            [50, 0, 0, 0, 50],
        ]) {
            let mut operations = Operations::new(1, RECORDS);
            let mut counts = [0_u64; 5];
            for _ in 0..20_000 {
                counts[match operations.next(workload) {
                    Operation::Read(record) => {
                        assert!(record < operations.records());
                        0
                    }
                    Operation::Update(_) => 1,
                    Operation::Insert(_) => 2,
                    Operation::Scan(_, count) => {
                        assert!((1..=100).contains(&count));
                        3
                    }
                    Operation::Change(_) => 4,
                }] += 1;
            }
            let shares = counts.map(|count| (count as f64 / 200.0).round() as i64);
            let is_near = shares.iter().zip(expected).all(|(share, expected)| (share - expected).abs() <= 2);
            assert!(is_near, "{}: {shares:?}", workload.name);
        }
    }
}
