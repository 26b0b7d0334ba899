//! How long a chain takes to open again after its process was killed, and how much CPU: one with the metadata of very many
//! records, and one whose open segment is as large as can be.

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::rc::Rc;

use bytes::Bytes;
use clap::Args;
use ithaca_chain::{
    AppendError, Batch, Chain, ChainId, ChainOptions, Cleaning, Identity, Label, Owner, Place, Placed, Run,
    RunKind, Table, Ticket,
};
use ithaca_env::drive::{Drive, OpenDrive};
use ithaca_env::{Env, real};

use super::random::Random;
use super::results::Results;
use super::{Ground, parse_size};
use crate::measure::{median, process_cpu_nanos, wall_nanos};

/// Seconds of CPU that opening the chain of many records may take.
const RECORDS_CPU_MAX_S: f64 = 5.0;
/// Seconds that opening the chain with the large open segment may take.
const OPEN_MAX_S: f64 = 1.0;
/// Bytes of data of each of the many records.
const RECORD_BYTES: usize = 16;
/// Runs of one batch of them.
const BATCH_RUNS: u64 = 2048;
/// Batches on their way.
const DEPTH: usize = 8;

/// How much there is to recover.
#[derive(Args)]
#[command(after_help = "Example: cargo lab soak recovery --records 100000000 --open 1G")]
pub struct RecoveryArguments {
    /// Records of the first chain, each a run of its own with its own key, in no order.
    #[arg(long, default_value_t = 100_000_000)]
    records: u64,
    /// Bytes of groups in the open segment of the second chain, at most 1G.
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    open: u64,
    /// How often each is opened.
    #[arg(long, default_value_t = 3)]
    opens: u32,
    #[command(flatten)]
    ground: Ground,
}

/// Where the newest version of each key lies, packed: what the owner of a chain of blocks keeps of each.
struct Places {
    newest: RefCell<Vec<(u64, u64)>>,
}

impl Places {
    fn new(keys: u64) -> Rc<Self> {
        Rc::new(Self { newest: RefCell::new(vec![(0, 0); keys as usize]) })
    }

    fn known(&self) -> usize {
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

/// Fills both chains, opens them again, and judges the medians.
pub fn run(arguments: &RecoveryArguments) -> io::Result<(u64, u64)> {
    let folder = arguments.ground.data.join(format!("recovery-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let mut results = Results::new(
        "opening a chain that was not closed: time and CPU from the call to the chain being there",
        "chain,open,records,open_segment_bytes,seconds,cpu_seconds",
    );
    let records = Measured::of(arguments.opens, |open| {
        let path = folder.join("records");
        if open == 0 {
            fill_records(&path, arguments.records)?;
        }
        reopen_records(&path, arguments.records)
    })?;
    records.show("records", arguments.records, 0, &mut results);
    let open = Measured::of(arguments.opens, |open| {
        let path = folder.join("open");
        if open == 0 {
            fill_open(&path, arguments.open)?;
        }
        reopen_open(&path)
    })?;
    open.show("open", 0, arguments.open, &mut results);
    let (cpu, seconds) = (records.median(|it| it.1), open.median(|it| it.0));
    let is_met = [cpu <= RECORDS_CPU_MAX_S, seconds <= OPEN_MAX_S];
    let summary = format!(
        "{{\"records\":{},\"records_cpu_s\":{cpu:.2},\"open_bytes\":{},\"open_s\":{seconds:.2}}}",
        arguments.records, arguments.open
    );
    println!("{summary}");
    results.remark(&summary);
    results.write(&arguments.ground.results, "recovery")?;
    std::fs::remove_dir_all(&folder)?;
    let met = is_met.iter().filter(|it| **it).count() as u64;
    Ok((met, is_met.len() as u64 - met))
}

/// Seconds and CPU seconds of each open.
struct Measured(Vec<(f64, f64)>);

impl Measured {
    fn of(opens: u32, mut open: impl FnMut(u32) -> io::Result<(f64, f64)>) -> io::Result<Self> {
        Ok(Self((0..opens).map(&mut open).collect::<io::Result<_>>()?))
    }

    fn median(&self, of: fn(&(f64, f64)) -> f64) -> f64 {
        median(self.0.iter().map(of))
    }

    fn show(&self, chain: &str, records: u64, bytes: u64, results: &mut Results) {
        for (open, (seconds, cpu)) in self.0.iter().enumerate() {
            println!("{chain}, open {open}: {seconds:.2} s, {cpu:.2} s of CPU");
            results.row(&format!("{chain},{open},{records},{bytes},{seconds:.3},{cpu:.3}"));
        }
    }
}

fn identity() -> Identity {
    Identity { id: ChainId([9; 16]), label: Label::new("recovery").expect("it is short") }
}

fn options(segment_bytes: u64) -> ChainOptions {
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

async fn open_drive(env: &Env, path: &Path) -> io::Result<Drive> {
    let open = OpenDrive { path: path.to_owned(), create_bytes: Some(64 << 10), read_only: false };
    env.open_drive(open).await.map_err(io::Error::other)
}

async fn append(env: &Env, chain: &Chain, batch: Batch) -> io::Result<Ticket> {
    loop {
        match chain.append(batch.clone()) {
            Err(AppendError::Overloaded { .. }) => env.sleep(std::time::Duration::from_micros(200)).await,
            appended => return appended.map_err(io::Error::other),
        }
    }
}

/// Every key once, in no order; the process then ends without a word to the chain.
fn fill_records(path: &Path, records: u64) -> io::Result<()> {
    real::run(async |env| {
        let drive = open_drive(&env, path).await?;
        let owner = Places::new(records);
        let created = Chain::create_owned(&env, drive, identity(), options(64 << 20), owner).await;
        let chain = created.map_err(io::Error::other)?;
        let data = Bytes::from(vec![7; RECORD_BYTES]);
        let table = Table::of_payloads([&data]);
        let keys = Scattered::new(records);
        let mut tickets = std::collections::VecDeque::new();
        for first in (0..records).step_by(BATCH_RUNS as usize) {
            let run = |nth| Run {
                first_key: keys.nth(nth),
                version: nth + 1,
                kind: RunKind::Data,
                meta: Bytes::new(),
                table: table.clone(),
                data: data.clone(),
            };
            let runs = (first..records.min(first + BATCH_RUNS)).map(run).collect();
            tickets.push_back(append(&env, &chain, Batch { runs, ..Batch::default() }).await?);
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
    })
}

fn reopen_records(path: &Path, records: u64) -> io::Result<(f64, f64)> {
    let owner = Places::new(records);
    let took = real::run(async |env| {
        let drive = open_drive(&env, path).await?;
        let (wall, cpu) = (wall_nanos(), process_cpu_nanos());
        let told = Rc::clone(&owner) as Rc<dyn Owner>;
        let opened = Chain::open_owned(&env, drive, Some(&identity()), options(64 << 20), told).await;
        let took = (wall_nanos() - wall, process_cpu_nanos() - cpu);
        opened.map_err(io::Error::other)?;
        io::Result::Ok(took)
    })?;
    if owner.known() as u64 != records {
        return Err(io::Error::other(format!("{} of {records} records were recovered", owner.known())));
    }
    Ok((took.0 as f64 / 1e9, took.1 as f64 / 1e9))
}

/// Records of 4 KiB until so many bytes lie in one segment, which stays open.
fn fill_open(path: &Path, bytes: u64) -> io::Result<()> {
    real::run(async |env| {
        let drive = open_drive(&env, path).await?;
        let created = Chain::create(&env, drive, identity(), options(1 << 30)).await;
        let chain = created.map_err(io::Error::other)?;
        let mut random = Random::new(1);
        let data: Vec<u8> = (0..1 << 20).map(|_| random.next_u64() as u8).collect();
        let data = Bytes::from(data);
        let table = Table::of_payloads(data.chunks(4096));
        let mut first_key = 0;
        while chain.stats().data_bytes + (3 << 20) < bytes && chain.stats().segments_closed == 0 {
            let (table, data, meta) = (table.clone(), data.clone(), Bytes::new());
            let run = Run { first_key, version: 1, kind: RunKind::Data, meta, table, data };
            first_key += 256;
            let ticket = append(&env, &chain, Batch { runs: vec![run], ..Batch::default() }).await?;
            chain.wait(ticket).await.map_err(io::Error::other)?;
        }
        Ok(())
    })
}

fn reopen_open(path: &Path) -> io::Result<(f64, f64)> {
    real::run(async |env| {
        let drive = open_drive(&env, path).await?;
        let (wall, cpu) = (wall_nanos(), process_cpu_nanos());
        let opened = Chain::open(&env, drive, Some(&identity()), options(1 << 30)).await;
        let took = ((wall_nanos() - wall) as f64 / 1e9, (process_cpu_nanos() - cpu) as f64 / 1e9);
        let (chain, _) = opened.map_err(io::Error::other)?;
        let stats = chain.stats();
        println!("  {} MB in {} open segments", stats.data_bytes >> 20, stats.segments_open);
        Ok(took)
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

    #[test]
    fn a_small_chain_of_each_kind_opens_again_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("records");
        fill_records(&path, 5000).expect("it is filled");
        reopen_records(&path, 5000).expect("every record is told of");
        let path = folder.path().join("open");
        fill_open(&path, 8 << 20).expect("it is filled");
        reopen_open(&path).expect("it opens");
    }
}
