//! Chains to be measured: one of blocks with an owner, whose keys come in no order, and one of long runs as a log unit writes them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::hint::black_box;
use std::io;
use std::path::Path;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_chain::{
    AppendError, Batch, Chain, ChainId, ChainOptions, Cleaning, Drives, Identity, Label, MetadataDrive,
    Owner, Place, Placed, Run, RunKind, Table, Ticket,
};
use ithaca_env::Env;
use ithaca_env::drive::{Drive, OpenDrive};
use ithaca_env::memory::in_large_pages;

/// Runs of one batch of blocks.
const BATCH_RUNS: u64 = 2048;
/// Batches on their way.
const DEPTH: usize = 8;
/// Records that an owner looks up before it changes any.
const LOOKED_UP: usize = 256;

/// Where the newest version of each key lies, packed: what the owner of a chain of blocks keeps of each.
pub struct Places {
    newest: RefCell<Vec<(u64, u64)>>,
}

impl Places {
    /// Of so many keys.
    pub fn new(keys: u64) -> Rc<Self> {
        let newest = in_large_pages(vec![(0, 0); keys as usize]);
        Rc::new(Self { newest: RefCell::new(newest) })
    }

    /// Keys that have a version.
    pub fn known(&self) -> usize {
        self.newest.borrow().iter().filter(|(version, _)| *version > 0).count()
    }
}

impl Owner for Places {
    fn placed(&self, record: Placed) -> Option<Place> {
        let packed = u64::from(record.place.segment) << 32 | u64::from(record.place.offset);
        let newest = &mut self.newest.borrow_mut()[record.key as usize];
        *newest = (*newest).max((record.version, packed));
        None
    }

    fn placed_all(&self, records: &[Placed], _garbage: &mut dyn FnMut(Place)) {
        let mut newest = self.newest.borrow_mut();
        for some in records.chunks(LOOKED_UP) {
            // They do not wait for each other, as changes in between would.
            black_box(some.iter().fold(0, |sum, record| sum ^ newest[record.key as usize].0));
            for record in some {
                let packed = u64::from(record.place.segment) << 32 | u64::from(record.place.offset);
                let newest = &mut newest[record.key as usize];
                *newest = (*newest).max((record.version, packed));
            }
        }
    }

    fn is_live(&self, _record: Placed) -> bool {
        true
    }

    fn moved(&self, _record: Placed, _to: Place) -> bool {
        false
    }

    fn dropped(&self, _record: Placed) -> bool {
        false
    }
}

/// Whose chain it is.
pub fn identity() -> Identity {
    Identity { id: ChainId([9; 16]), label: Label::new("recovery").expect("it is short") }
}

/// Options of a chain that is only filled.
pub fn options(segment_bytes: u64) -> ChainOptions {
    ChainOptions {
        segment_bytes,
        capacity_bytes: 1 << 40,
        grow_bytes: segment_bytes.max(2 << 30),
        cleaning: Cleaning::Off,
        tail_cache_bytes: 1 << 20,
        scrub_bytes_per_second: 0,
        ..ChainOptions::default()
    }
}

/// Opens a file as a drive, or makes it.
pub async fn open_drive(env: &Env, path: &Path) -> io::Result<Drive> {
    let open = OpenDrive { path: path.to_owned(), create_bytes: Some(64 << 10), read_only: false };
    env.open_drive(open).await.map_err(io::Error::other)
}

/// Appends a batch as soon as there is room in the queue.
pub async fn append(env: &Env, chain: &Chain, batch: Batch) -> io::Result<Ticket> {
    loop {
        match chain.append(batch.clone()) {
            Err(AppendError::Overloaded { .. }) => env.sleep(std::time::Duration::from_micros(200)).await,
            appended => return appended.map_err(io::Error::other),
        }
    }
}

/// A metadata drive in this file, if there is to be one.
pub async fn open_metadata(env: &Env, path: Option<&Path>) -> io::Result<Option<MetadataDrive>> {
    let Some(path) = path else { return Ok(None) };
    let drive = open_drive(env, path).await?;
    MetadataDrive::open(env, drive).await.map(Some).map_err(io::Error::other)
}

/// The drive of a chain in this file, beside a metadata drive.
pub async fn drives(env: &Env, path: &Path, metadata: Option<&MetadataDrive>) -> io::Result<Drives> {
    Ok(Drives::from(open_drive(env, path).await?).with_metadata(metadata))
}

/// Appends batches, a few of them on their way, until all are durable.
pub async fn append_all(env: &Env, chain: &Chain, batches: impl Iterator<Item = Batch>) -> io::Result<()> {
    let mut tickets = VecDeque::new();
    for batch in batches {
        tickets.push_back(append(env, chain, batch).await?);
        if tickets.len() >= DEPTH
            && let Some(oldest) = tickets.pop_front()
        {
            chain.wait(oldest).await.map_err(io::Error::other)?;
        }
    }
    for ticket in tickets {
        chain.wait(ticket).await.map_err(io::Error::other)?;
    }
    Ok(())
}

/// Waits until all closed segments are on the metadata drive.
pub async fn settle(env: &Env, chain: &Chain, metadata: &MetadataDrive) {
    while metadata.stats().entries_written < chain.stats().segments_closed && !metadata.stats().is_dropped {
        env.sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// Every key below `records` once, in no order, each a run of its own with `bytes` of data.
pub fn scattered(records: u64, bytes: usize) -> impl Iterator<Item = Batch> {
    let data = Bytes::from(vec![7; bytes]);
    let table = Table::of_payloads([&data]);
    let keys = Scattered::new(records);
    let each = BATCH_RUNS.min((1 << 20) / bytes as u64).max(1);
    (0..records).step_by(each as usize).map(move |first| {
        let run = |nth| Run {
            first_key: keys.nth(nth),
            version: nth + 1,
            kind: RunKind::Data,
            meta: Bytes::new(),
            table: table.clone(),
            data: data.clone(),
        };
        Batch { runs: (first..records.min(first + each)).map(run).collect(), ..Batch::default() }
    })
}

/// Every key below `records` once, in order, in runs of `length` records with `bytes` of data each.
pub fn runs(records: u64, length: u64, bytes: usize) -> impl Iterator<Item = Batch> {
    let payload = vec![7; bytes];
    let data = Bytes::from(vec![7; bytes * length as usize]);
    let table = Table::of_payloads((0..length).map(|_| &payload));
    (0..records).step_by(length as usize).map(move |first_key| {
        let count = length.min(records - first_key) as usize;
        let run = Run {
            first_key,
            version: 1,
            kind: RunKind::Data,
            meta: Bytes::new(),
            table: table.slice(0..count),
            data: data.slice(..count * bytes),
        };
        Batch { runs: vec![run], ..Batch::default() }
    })
}

/// The numbers below a limit, each once, in an order that looks like none.
struct Scattered {
    count: u64,
    step: u64,
}

impl Scattered {
    /// A step that has no divisor in common with the count visits all.
    fn new(count: u64) -> Self {
        let has_common = |step: u64| {
            let (mut a, mut b) = (count, step);
            while b > 0 {
                (a, b) = (b, a % b);
            }
            a > 1
        };
        let golden = (count as f64 * 0.618_033_988_7) as u64 + 1;
        let step = (golden..).find(|step| !has_common(*step)).unwrap_or(1);
        Self { count, step }
    }

    fn nth(&self, nth: u64) -> u64 {
        (u128::from(nth) * u128::from(self.step) % u128::from(self.count)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattered_numbers_are_each_there_once() {
        for count in [1, 2, 10, 997, 1000] {
            let scattered = Scattered::new(count);
            let mut numbers: Vec<u64> = (0..count).map(|nth| scattered.nth(nth)).collect();
            numbers.sort_unstable();
            assert!(numbers.into_iter().eq(0..count), "{count}");
        }
    }
}
