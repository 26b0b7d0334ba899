//! Benches: the system, the bare baseline and Redis in alternating slices of one run, judged by ratios.
//!
//! ```text
//!   round 1:  flush probe | bare | ithaca | redis        a ratio is taken inside a round, between neighbours in time;
//!   round 2:  flush probe | ithaca | redis | bare        the figure of a bench is the median of its rounds' ratios
//! ```
//!
//! On a shared machine the drive and the processors change by factors from minute to minute, so no absolute rate here
//! means anything without the flush probe beside it. Results go to `results/NAME.csv` with the command that made them.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a bench starts real processes, reads the clock and writes its results"
)]

mod chain;
mod cluster;
mod commands;
mod etcd;
mod ithaca;
mod memory;
mod objects;
mod open_map;
mod plan;
mod redis;
mod report;
mod restart_volume;
mod side;
mod socket;
mod stale;
mod started;
mod streams;
mod transactions;
mod two_copies;
mod volume;
mod ycsb;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::bare::{DriveFile, ServerProcess, flush_probe_us};
use ithaca::Ithaca;
use plan::{BENCHES, Bench};
use report::{Report, Row};
use side::{MakeSide, Side};
use streams::{open, read, takeover};

/// What to measure and for how long.
#[derive(Args)]
#[command(
    after_help = "Example: cargo lab bench append-512 --rounds 5 --seconds 2\n         cargo lab bench bare\n         \
                  cargo lab bench append-128 --rounds 12 --seconds 1 --against /tmp/before/ithaca"
)]
pub struct BenchArguments {
    /// Benches by name; `bare` for every bench's baselines alone; none for all.
    names: Vec<String>,
    /// Rounds; each measures every side once.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of one side's slice.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Blocks of the volume of `restart-volume`.
    #[arg(long, default_value_t = 16_000_000)]
    blocks: u64,
    /// Where journals and logs lie while they are measured; removed afterwards.
    #[arg(long, default_value = "target/lab-data")]
    data: PathBuf,
    /// Program of another build to measure in the same rounds, where one server is measured
    #[arg(long, value_name = "PROGRAM")]
    against: Option<PathBuf>,
    /// Where results go.
    #[arg(long, default_value = "results")]
    results: PathBuf,
    /// Streams that a takeover is measured with.
    #[arg(long, value_delimiter = ',', default_value = "10000,1000000")]
    streams: Vec<u64>,
}

/// Benches that have a program of their own.
struct Suite {
    names: &'static [&'static str],
    /// Whether they are run where nothing is named; not those that take long, or need programs that others do not.
    by_default: bool,
    run: fn(&BenchArguments, &DriveFile) -> io::Result<bool>,
}

const SUITES: [Suite; 15] = [
    Suite { names: &chain::NAMES, by_default: true, run: chain::run },
    Suite { names: &[cluster::NAME], by_default: true, run: cluster::run },
    Suite { names: &[transactions::NAME], by_default: true, run: transactions::run },
    Suite { names: &[stale::NAME], by_default: true, run: |arguments, _| stale::run(arguments) },
    Suite { names: &[takeover::NAME], by_default: true, run: takeover::run },
    Suite { names: &[open::NAME], by_default: true, run: |arguments, _| open::run(arguments) },
    Suite { names: &[read::NAME], by_default: true, run: |arguments, _| read::run(arguments) },
    Suite { names: &[objects::NAME], by_default: true, run: objects::run },
    Suite { names: &[open_map::NAME], by_default: false, run: |arguments, _| open_map::run(arguments) },
    Suite { names: &[socket::NAME], by_default: false, run: socket::run },
    Suite { names: &[volume::NAME], by_default: false, run: volume::run },
    Suite { names: &[commands::NAME], by_default: false, run: commands::run },
    Suite { names: &[two_copies::NAME], by_default: false, run: two_copies::run },
    Suite { names: &[ycsb::NAME], by_default: false, run: ycsb::run },
    Suite { names: &[restart_volume::NAME], by_default: false, run: restart_volume::run },
];

/// Runs the benches that `arguments` names. Returns whether every target that was measured is met.
pub fn run(arguments: &BenchArguments) -> io::Result<bool> {
    let is_named = |name: &str| arguments.names.iter().any(|named| named == name);
    let (bare_only, is_all) = (is_named("bare"), arguments.names.is_empty());
    let is_wanted = |suite: &&Suite| match is_all {
        true => suite.by_default,
        false => !bare_only && suite.names.iter().any(|name| is_named(name)),
    };
    let suites: Vec<&Suite> = SUITES.iter().filter(is_wanted).collect();
    let wanted = |bench: &&Bench| bare_only || is_all || is_named(bench.name);
    let measurable = |bench: &&Bench| bench.sides(bare_only).next().is_some();
    let benches: Vec<&'static Bench> = BENCHES.iter().filter(wanted).filter(measurable).collect();
    if benches.is_empty() && suites.is_empty() {
        let known = SUITES.iter().flat_map(|suite| suite.names).copied();
        let known: Vec<&str> = known.chain(BENCHES.iter().map(|bench| bench.name)).collect();
        return Err(io::Error::other(format!("no such bench; there are: bare {}", known.join(" "))));
    }
    if arguments.against.is_some() && benches.is_empty() {
        return Err(io::Error::other("--against is for benches of one server, such as append-512"));
    }
    std::fs::create_dir_all(&arguments.data)?;
    let drive = DriveFile::create(&arguments.data.join("drive"))?;
    let mut all_met = true;
    for suite in suites {
        all_met &= (suite.run)(arguments, &drive)?;
    }
    if !benches.is_empty() {
        all_met &= run_servers(arguments, &benches, bare_only, &drive)?;
    }
    std::fs::remove_dir_all(&arguments.data)?;
    Ok(all_met)
}

/// The benches of a server that is a process of its own.
fn run_servers(
    arguments: &BenchArguments,
    benches: &[&'static Bench],
    bare_only: bool,
    drive: &DriveFile,
) -> io::Result<bool> {
    if !bare_only {
        ithaca::build()?;
    }
    let mut server = ServerProcess::start(&arguments.data)?;
    let mut all_met = true;
    for bench in benches {
        let report = measure(bench, arguments, bare_only, drive, &mut server)?;
        all_met &= report.print();
        let name = if bare_only { format!("bare-{}", bench.name) } else { bench.name.to_string() };
        report.write(&arguments.results.join(name + ".csv"))?;
    }
    Ok(all_met)
}

fn measure(
    bench: &'static Bench,
    arguments: &BenchArguments,
    bare_only: bool,
    drive: &DriveFile,
    server: &mut ServerProcess,
) -> io::Result<Report> {
    let span = Duration::from_secs_f64(arguments.seconds);
    let mut report = Report::new(bench);
    let mut sides: Vec<Box<dyn Side + '_>> = Vec::new();
    for make in bench.sides(bare_only) {
        match make.start(bench, &arguments.data, drive) {
            Ok(side) => sides.push(side),
            Err(error) => report.leave_out(make.name(), &error),
        }
    }
    let other =
        arguments.against.as_ref().filter(|_| bench.sides(bare_only).any(|it| it == MakeSide::Ithaca));
    if let Some(program) = other {
        sides.push(Box::new(Ithaca::start_other(bench, &arguments.data, program)?));
    }
    for round in 0..arguments.rounds {
        let flush_probe = flush_probe_us(drive)?;
        let count = sides.len();
        for turn in 0..count {
            let side = &mut sides[(turn + round) % count];
            match side.slice(server, span) {
                Ok(figure) => report.add(Row { round, side: side.name(), figure, flush_probe }),
                Err(error) => report.leave_out(side.name(), &error),
            }
        }
    }
    Ok(report)
}
