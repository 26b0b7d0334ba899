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
mod ithaca;
mod plan;
mod redis;
mod report;
mod restart_volume;
mod side;
mod socket;
mod stale;
mod streams;
mod transactions;
mod volume;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::bare::{DriveFile, ServerProcess, flush_probe_us};
use plan::{BENCHES, Bench};
use report::{Report, Row};
use side::Side;

/// What to measure and for how long.
#[derive(Args)]
#[command(
    after_help = "Example: cargo lab bench append-512 --rounds 5 --seconds 2\n         cargo lab bench bare"
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
    /// Where results go.
    #[arg(long, default_value = "results")]
    results: PathBuf,
    /// Streams that a takeover is measured with.
    #[arg(long, value_delimiter = ',', default_value = "10000,1000000")]
    streams: Vec<u64>,
}

/// Runs the benches that `arguments` names. Returns whether every target that was measured is met.
pub fn run(arguments: &BenchArguments) -> io::Result<bool> {
    let bare_only = arguments.names.iter().any(|name| name == "bare");
    let with_chain = !bare_only
        && (arguments.names.is_empty() || arguments.names.iter().any(|name| chain::is_named(name)));
    let with_cluster = !bare_only
        && (arguments.names.is_empty() || arguments.names.iter().any(|name| name == cluster::NAME));
    // Only by name: it needs programs that others do not.
    let with_volume = arguments.names.iter().any(|name| name == volume::NAME);
    let with_socket = arguments.names.iter().any(|name| name == socket::NAME);
    let with_transactions = !bare_only
        && (arguments.names.is_empty() || arguments.names.iter().any(|name| name == transactions::NAME));
    let with_stale =
        !bare_only && (arguments.names.is_empty() || arguments.names.iter().any(|name| name == stale::NAME));
    let with_streams = !bare_only
        && (arguments.names.is_empty() || arguments.names.iter().any(|name| streams::is_named(name)));
    let wanted = |bench: &&Bench| {
        bare_only || arguments.names.is_empty() || arguments.names.iter().any(|name| name == bench.name)
    };
    let measurable = |bench: &&Bench| bench.sides(bare_only).next().is_some();
    let benches: Vec<&'static Bench> = BENCHES.iter().filter(wanted).filter(measurable).collect();
    let with_restart = arguments.names.iter().any(|name| name == restart_volume::NAME);
    let with_any = with_chain
        || with_cluster
        || with_volume
        || with_transactions
        || with_socket
        || with_stale
        || with_streams
        || with_restart;
    if benches.is_empty() && !with_any {
        let known: Vec<&str> = BENCHES.iter().map(|bench| bench.name).collect();
        let known = known.join(" ");
        return Err(io::Error::other(format!(
            "no such bench; there are: bare {} {} {} {} {} {} {} {known}",
            chain::NAME,
            cluster::NAME,
            restart_volume::NAME,
            socket::NAME,
            stale::NAME,
            streams::NAMES.join(" "),
            transactions::NAME,
            volume::NAME
        )));
    }
    std::fs::create_dir_all(&arguments.data)?;
    let drive = DriveFile::create(&arguments.data.join("drive"))?;
    let mut all_met = if with_chain { chain::run(arguments, &drive)? } else { true };
    if with_cluster {
        all_met &= cluster::run(arguments, &drive)?;
    }
    if with_transactions {
        all_met &= transactions::run(arguments, &drive)?;
    }
    if with_socket {
        all_met &= socket::run(arguments, &drive)?;
    }
    if with_stale {
        all_met &= stale::run(arguments)?;
    }
    if with_streams {
        all_met &= streams::run(arguments, &drive)?;
    }
    if with_volume {
        all_met &= volume::run(arguments, &drive)?;
    }
    if with_restart {
        all_met &= restart_volume::run(arguments, &drive)?;
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
