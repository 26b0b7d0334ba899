//! Durable appends of 512 B with two copies against one: two units on one drive, which has twice as much to write, against one. By who carries
//! entries to the units.

use std::io;
use std::time::Duration;

use super::BenchArguments;
use super::ithaca::{self, Dev, figure_of};
use crate::bare::{DriveFile, flush_probe_us};
use crate::measure::median;
use crate::soak::results::Results;

/// The bench's name on the command line.
pub const NAME: &str = "two-copies";
/// Who carries entries to the units, as `ithaca bench append --carrier` has it.
const CARRIERS: [&str; 3] = ["sequencer", "units", "client"];
const ENTRY_BYTES: &str = "512";
/// Clients, and appends in flight over all.
const CLIENTS: usize = 16;
const INFLIGHT: usize = 256;
/// The least ratio: two copies are twice the bytes on one drive, and one more hop.
const LEAST: f64 = 0.42;

/// Measures as many rounds as asked. Returns whether every carrier meets the target.
pub fn run(arguments: &BenchArguments, probe: &DriveFile) -> io::Result<bool> {
    ithaca::build()?;
    let what = format!(
        "durable appends of {ENTRY_BYTES} B, {CLIENTS} clients, {INFLIGHT} in flight: one unit with one copy, and two units with two copies \
         on the same drive, one after the other; by who carries entries to the units"
    );
    let mut results = Results::new(&what, "round,flush_us,carrier,one_copy_per_s,two_copies_per_s,ratio");
    let mut ratios = CARRIERS.map(|_| Vec::new());
    for round in 1..=arguments.rounds {
        for (carrier, ratios) in CARRIERS.into_iter().zip(&mut ratios) {
            let flush_us = flush_probe_us(probe)?;
            let (one, two) = (rate(arguments, carrier, 1)?, rate(arguments, carrier, 2)?);
            ratios.push(two / one);
            let row = format!("{round},{flush_us:.0},{carrier},{one:.0},{two:.0},{:.2}", two / one);
            println!("{NAME} {row}");
            results.row(&row);
        }
    }
    let mut all_met = true;
    for (carrier, ratios) in CARRIERS.into_iter().zip(ratios) {
        let ratio = median(ratios);
        all_met &= ratio >= LEAST;
        let says = if ratio >= LEAST { "met" } else { "MISSED" };
        let line = format!("{carrier}: median ratio {ratio:.2}, at least {LEAST}: {says}");
        println!("{NAME} {line}");
        results.remark(&line);
    }
    results.write(&arguments.results, NAME)?;
    Ok(all_met)
}

/// Appends a second to a new log of so many copies, each on a unit of its own.
fn rate(arguments: &BenchArguments, carrier: &str, copies: u32) -> io::Result<f64> {
    let copies = copies.to_string();
    let dev = Dev::start_with(&arguments.data, &["--units", &copies, "--replicas", &copies])?;
    let span = Duration::from_secs_f64(arguments.seconds);
    let mut bench = dev.bench("append", (CLIENTS, INFLIGHT), span);
    bench.args(["--size", ENTRY_BYTES, "--carrier", carrier]);
    Ok(figure_of("append", &bench.output()?)?.ops_per_s)
}
