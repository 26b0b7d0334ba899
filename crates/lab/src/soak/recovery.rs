//! How long a chain takes to open again after its process was killed, and how much CPU: one with the metadata of very many
//! records, which an owner is told of; the same as long runs; both with a metadata drive and without; and one whose open segment is as
//! large as can be.

use std::io;
use std::path::Path;
use std::rc::Rc;

use bytes::Bytes;
use clap::Args;
use ithaca_chain::{Batch, Chain, Owner, Run, RunKind, Table};
use ithaca_env::real;
use ithaca_env::sim::Random;

use super::results::Results;
use super::volume::{
    Places, append, append_all, drives, identity, open_drive, open_metadata, options, runs, scattered, settle,
};
use super::{Ground, parse_size};
use crate::measure::{median, process_cpu_nanos, wall_nanos};

/// Seconds of CPU that opening the chain of many records may take.
const RECORDS_CPU_MAX_S: f64 = 5.0;
/// Seconds that opening the chain with the large open segment may take.
const OPEN_MAX_S: f64 = 1.0;
/// Bytes of data of each of the many records.
const RECORD_BYTES: usize = 16;
/// Records of a run, where they are written as runs.
const RUN_RECORDS: u64 = 1024;

/// How much there is to recover.
#[derive(Args)]
#[command(after_help = "Example: cargo lab soak recovery --records 100000000 --open 1G")]
pub struct RecoveryArguments {
    /// Records of the first chains: each a run of its own with its own key, in no order; and in runs of 1024.
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

/// How a chain is filled, and how it is opened again.
type Kind = (
    &'static str,
    fn(&Path, &Path, u64) -> io::Result<()>,
    fn(&Path, Option<&Path>, u64) -> io::Result<(f64, f64)>,
);

/// Chains of very many records.
const KINDS: [Kind; 2] = [("records", fill_records, reopen_records), ("runs", fill_runs, reopen_runs)];

/// Fills the chains, opens them again, and judges the medians.
pub fn run(arguments: &RecoveryArguments) -> io::Result<(u64, u64)> {
    let folder = arguments.ground.data.join(format!("recovery-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let mut results = Results::new(
        "opening a chain that was not closed: time and CPU from the call to the chain being there",
        "chain,open,records,open_segment_bytes,seconds,cpu_seconds",
    );
    let count = arguments.records;
    let mut kinds = Vec::new();
    for (name, fill, reopen) in KINDS {
        let (path, metadata) = (folder.join(name), folder.join(format!("{name}.metadata")));
        fill(&path, &metadata, count)?;
        for (suffix, metadata) in [("", None), (" with a metadata drive", Some(&*metadata))] {
            let opens = Measured::of(arguments.opens, |_| reopen(&path, metadata, count))?;
            opens.show(&format!("{name}{suffix}"), count, 0, &mut results);
            kinds.push(opens);
        }
        std::fs::remove_file(&path)?;
        std::fs::remove_file(&metadata)?;
    }
    let records = &kinds[0];
    let mut filled = Filled::default();
    let open = Measured::of(arguments.opens, |open| {
        let path = folder.join("open");
        if open == 0 {
            filled = fill_open(&path, arguments.open)?;
        }
        reopen_open(&path, filled)
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

/// Every key once, in no order; the process then ends without a word to the chain.
fn fill_records(path: &Path, metadata: &Path, records: u64) -> io::Result<()> {
    real::run(async |env| {
        let metadata = open_metadata(&env, Some(metadata)).await?;
        let drives = drives(&env, path, metadata.as_ref()).await?;
        let owner = Places::new(records);
        let created = Chain::create_owned(&env, drives, identity(), options(64 << 20), owner).await;
        let chain = created.map_err(io::Error::other)?;
        append_all(&env, &chain, scattered(records, RECORD_BYTES)).await?;
        if let Some(metadata) = &metadata {
            settle(&env, &chain, metadata).await;
        }
        Ok(())
    })
}

fn reopen_records(path: &Path, metadata: Option<&Path>, records: u64) -> io::Result<(f64, f64)> {
    let owner = Places::new(records);
    let took = real::run(async |env| {
        let (wall, cpu) = (wall_nanos(), process_cpu_nanos());
        let metadata = open_metadata(&env, metadata).await?;
        let drives = drives(&env, path, metadata.as_ref()).await?;
        let told = Rc::clone(&owner) as Rc<dyn Owner>;
        let opened = Chain::open_owned(&env, drives, Some(&identity()), options(64 << 20), told).await;
        let took = (wall_nanos() - wall, process_cpu_nanos() - cpu);
        opened.map_err(io::Error::other)?;
        io::Result::Ok(took)
    })?;
    if owner.known() as u64 != records {
        return Err(io::Error::other(format!("{} of {records} records were recovered", owner.known())));
    }
    Ok((took.0 as f64 / 1e9, took.1 as f64 / 1e9))
}

/// The same records as runs of keys that are written once.
fn fill_runs(path: &Path, metadata: &Path, records: u64) -> io::Result<()> {
    real::run(async |env| {
        let metadata = open_metadata(&env, Some(metadata)).await?;
        let drives = drives(&env, path, metadata.as_ref()).await?;
        let created = Chain::create(&env, drives, identity(), options(64 << 20)).await;
        let chain = created.map_err(io::Error::other)?;
        append_all(&env, &chain, runs(records, RUN_RECORDS, RECORD_BYTES)).await?;
        if let Some(metadata) = &metadata {
            settle(&env, &chain, metadata).await;
        }
        Ok(())
    })
}

fn reopen_runs(path: &Path, metadata: Option<&Path>, records: u64) -> io::Result<(f64, f64)> {
    real::run(async |env| {
        let (wall, cpu) = (wall_nanos(), process_cpu_nanos());
        let metadata = open_metadata(&env, metadata).await?;
        let drives = drives(&env, path, metadata.as_ref()).await?;
        let opened = Chain::open(&env, drives, Some(&identity()), options(64 << 20)).await;
        let took = ((wall_nanos() - wall) as f64 / 1e9, (process_cpu_nanos() - cpu) as f64 / 1e9);
        let (_, recovered) = opened.map_err(io::Error::other)?;
        if recovered.highest_key != Some(records - 1) {
            return Err(io::Error::other(format!(
                "{:?} is the highest key of {records}",
                recovered.highest_key
            )));
        }
        Ok(took)
    })
}

/// What was durable in a chain before its process ended.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Filled {
    highest_key: Option<u64>,
    data_bytes: u64,
}

/// Records of 4 KiB until so many bytes lie in one segment, which stays open.
fn fill_open(path: &Path, bytes: u64) -> io::Result<Filled> {
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
        Ok(Filled { highest_key: Some(first_key - 1), data_bytes: chain.stats().data_bytes })
    })
}

fn reopen_open(path: &Path, filled: Filled) -> io::Result<(f64, f64)> {
    real::run(async |env| {
        let drive = open_drive(&env, path).await?;
        let (wall, cpu) = (wall_nanos(), process_cpu_nanos());
        let opened = Chain::open(&env, drive, Some(&identity()), options(1 << 30)).await;
        let took = ((wall_nanos() - wall) as f64 / 1e9, (process_cpu_nanos() - cpu) as f64 / 1e9);
        let (chain, recovered) = opened.map_err(io::Error::other)?;
        let stats = chain.stats();
        let found = Filled { highest_key: recovered.highest_key, data_bytes: stats.data_bytes };
        if found != filled {
            return Err(io::Error::other(format!("{found:?} was recovered of {filled:?}")));
        }
        println!("  {} MB in {} open segments", stats.data_bytes >> 20, stats.segments_open);
        Ok(took)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_chain_of_each_kind_opens_again_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let metadata = folder.path().join("metadata");
        for (name, fill, reopen) in KINDS {
            let path = folder.path().join(name);
            fill(&path, &metadata, 5000).expect("it is filled");
            reopen(&path, None, 5000).expect("every record is told of");
            reopen(&path, Some(&metadata), 5000).expect("every record is told of");
            std::fs::remove_file(&metadata).expect("it is there");
        }
        let path = folder.path().join("open");
        let filled = fill_open(&path, 8 << 20).expect("it is filled");
        reopen_open(&path, filled).expect("it opens whole");
        let more = Filled { data_bytes: filled.data_bytes + 1, ..filled };
        assert!(reopen_open(&path, more).is_err());
    }
}
