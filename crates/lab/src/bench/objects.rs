//! Appends to streams, puts of maps and transactions over them beside plain appends, in turn in one run: what it costs to have an order of
//! one's own, a structure, and a decision.

use std::io;
use std::time::Duration;

use super::BenchArguments;
use super::ithaca::{Dev, build, figure_of_all};
use crate::bare::{DriveFile, flush_probe_us};
use crate::measure::{Figure, median};
use crate::soak::results::Results;

/// The bench's name on the command line.
pub const NAME: &str = "objects";
/// Processes that clients are spread over, as many as there are processors, and clients of each.
const PROCESSES: usize = 2;
const CLIENTS: usize = 8;
const VALUE_BYTES: usize = 512;

/// A workload of `ithaca bench`.
struct Work {
    name: &'static str,
    /// In flight, as it counts that: of all clients of a process, or of each.
    inflight: usize,
    /// Of the plain appends of the same round, at least.
    asked: Option<f64>,
}

const WORKS: [Work; 4] = [
    Work { name: "append", inflight: 16 * CLIENTS, asked: None },
    Work { name: "stream", inflight: 16 * CLIENTS, asked: Some(0.75) },
    Work { name: "map", inflight: 64, asked: Some(0.7) },
    Work { name: "tx", inflight: 64, asked: Some(0.5) },
];

/// Measures as many rounds as asked, and judges the medians of the ratios.
pub fn run(arguments: &BenchArguments, probe: &DriveFile) -> io::Result<bool> {
    build()?;
    let what = format!(
        "{} clients, {CLIENTS} in each of {PROCESSES} processes of `ithaca bench`, on `ithaca dev`, {VALUE_BYTES} bytes, one workload after the other, each when the server has come to rest; append and \
         stream with 16 under way for each client, map and tx with 64; maps of 10000 keys, one for each client; a put gives back what was there, a transaction reads \
         two keys and writes a third. CPU: microseconds an operation",
        PROCESSES * CLIENTS
    );
    let mut results =
        Results::new(&what, "round,flush_us,workload,ops_per_s,p50_us,p99_us,client_cpu_us,server_cpu_us");
    let dev = Dev::start(&arguments.data)?;
    let span = Duration::from_secs_f64(arguments.seconds);
    let mut rates: Vec<Vec<f64>> = WORKS.iter().map(|_| Vec::new()).collect();
    for round in 0..arguments.rounds {
        for (work, rates) in WORKS.iter().zip(&mut rates) {
            let flush_us = flush_probe_us(probe)?;
            let it = slice(&dev, work, span)?;
            dev.settle()?;
            let row = format!(
                "{round},{flush_us:.0},{},{:.0},{:.1},{:.1},{:.2},{:.2}",
                work.name, it.ops_per_s, it.p50_us, it.p99_us, it.client_cpu_us, it.server_cpu_us
            );
            println!("{NAME} {row}");
            results.row(&row);
            rates.push(it.ops_per_s);
        }
    }
    let mut all_met = true;
    for (work, own) in WORKS.iter().zip(&rates) {
        let Some(asked) = work.asked else { continue };
        let ratio = median(own.iter().zip(&rates[0]).map(|(own, append)| own / append));
        let verdict = if ratio >= asked { "met" } else { "MISSED" };
        let remark = format!(
            "{}: {ratio:.2} of the appends of the same round, median; {asked} asked: {verdict}",
            work.name
        );
        println!("{NAME} {remark}");
        results.remark(&remark);
        all_met &= ratio >= asked;
    }
    results.write(&arguments.results, NAME)?;
    Ok(all_met)
}

/// What all processes together come to, at the same time.
fn slice(dev: &Dev, work: &Work, span: Duration) -> io::Result<Figure> {
    figure_of_all(work.name, PROCESSES, || {
        let mut command = dev.bench(work.name, (CLIENTS, work.inflight), span);
        command.args(["--size", &VALUE_BYTES.to_string()]);
        command
    })
}
