//! The chain alone on a real drive: 4 KB blocks are overwritten while it is cleaned, in alternating slices with a bare writer
//! that has the same groups to write and the same reads to make.
//!
//! ```text
//!   round 1:  flush probe | chain: so many groups, reads, bytes ─► bare: the same mix, nothing above it
//!   round 2:  flush probe | bare: the mix of round 1 | chain
//! ```
//!
//! The bare writer writes the same group over and over, which a processor's cache holds. Where nothing is moved it is measured once more with as
//! much data as the chain is given, for comparison: what of the difference is the log, and what the memory.

mod counted;
mod load;
mod report;

use std::io;
use std::time::Duration;

use ithaca_env::Env;
use ithaca_env::real::run_at_once;

use super::BenchArguments;
use crate::bare::{DriveFile, Mix, MixFile, flush_probe_us};
use load::{ChainSide, DATA_BYTES, FLIGHTS, Slice};
use report::{Report, Row};

/// Bytes of the chain's file, and of the bare writer's.
const FILE_BYTES: u64 = 4 << 30;
/// The chain's file.
const FILE: &str = "chain";
const BLOCK_BYTES: usize = 4096;
/// Most reads under way of the bare writer: each is a thread.
const READS_MAX: usize = 32;

/// Which blocks are overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pattern {
    /// Any: what is cleaned holds some that are needed.
    Random,
    /// One after the other: what is cleaned holds none.
    InOrder,
}

/// One load.
#[derive(Debug)]
struct Case {
    name: &'static str,
    /// Of the segments that a chain fills under full load, so much is taken by the newest versions of the blocks.
    used_percent: u64,
    pattern: Pattern,
}

const CASES: [Case; 3] = [
    Case { name: "chain-random-50", used_percent: 50, pattern: Pattern::Random },
    Case { name: "chain-random-80", used_percent: 80, pattern: Pattern::Random },
    Case { name: "chain-in-order-80", used_percent: 80, pattern: Pattern::InOrder },
];

/// Every case's name on the command line.
const NAME: &str = "chain";
/// Names on the command line.
pub const NAMES: [&str; 4] = [NAME, CASES[0].name, CASES[1].name, CASES[2].name];

/// Measures every case. Returns whether every target is met.
pub fn run(arguments: &BenchArguments, probe: &DriveFile) -> io::Result<bool> {
    let bare = MixFile::create(&arguments.data.join("chain-bare"), FILE_BYTES)?;
    let mut report = Report::default();
    let is_wanted = |case: &&Case| {
        arguments.names.is_empty() || arguments.names.iter().any(|name| name == NAME || name == case.name)
    };
    for case in CASES.iter().filter(is_wanted) {
        // On a thread that runs as soon as it can, as the bare writer's do: else neighbours would decide.
        let measured = std::thread::scope(|scope| {
            let measure = || {
                run_at_once();
                ithaca_env::real::run(|env| measure(env, case, arguments, probe, &bare))
            };
            scope.spawn(measure).join()
        });
        let (generator_us, rows) =
            measured.unwrap_or_else(|_| Err(io::Error::other("the measurement panicked")))?;
        report.add(case, generator_us, rows);
        report.write(&arguments.results.join(format!("{NAME}.csv")))?;
        std::fs::remove_file(arguments.data.join(FILE))?;
    }
    Ok(report.print())
}

/// All rounds of a case, and what the load itself costs for each block, in microseconds.
async fn measure(
    env: Env,
    case: &'static Case,
    arguments: &BenchArguments,
    probe: &DriveFile,
    bare: &MixFile,
) -> io::Result<(f64, Vec<Row>)> {
    let span = Duration::from_secs_f64(arguments.seconds);
    let side = ChainSide::start(&env, &arguments.data.join(FILE), case).await?;
    let (mut last, mut rows) = (None, Vec::new());
    for round in 0..arguments.rounds {
        let flush_probe = flush_probe_us(probe)?;
        let before = match last.filter(|_| round % 2 == 1) {
            Some(mix) => Some((mix, bare.run(mix, span)?)),
            None => None,
        };
        let slice = side.slice(span).await?;
        let now = mix_of(&slice, case);
        let (mix, (groups, reads)) = match before {
            Some(done) => done,
            None => (now, bare.run(now, span)?),
        };
        last = Some(now);
        let fresh = match case.pattern {
            Pattern::InOrder => Some(bare.run(Mix { source_bytes: DATA_BYTES / FLIGHTS, ..mix }, span)?.0),
            Pattern::Random => None,
        };
        rows.push(Row { case: case.name, round, slice, mix, groups, reads, fresh, flush_probe });
    }
    Ok((side.generator_us(), rows))
}

/// What the drive had to do in a slice. Where nothing is moved, what the chain reads and writes for itself is its own loss.
fn mix_of(slice: &Slice, case: &Case) -> Mix {
    let groups = FLIGHTS;
    let whole = |bytes: f64| (bytes as usize).next_multiple_of(BLOCK_BYTES).max(BLOCK_BYTES);
    let (counts, written) = (&slice.counts, slice.groups.max(1) as f64);
    let group_bytes = whole(slice.payload_bytes as f64 / written);
    if case.pattern == Pattern::InOrder {
        return Mix { group_bytes, groups, ..Mix::default() };
    }
    Mix {
        group_bytes,
        groups,
        read_bytes: whole(counts.read_bytes as f64 / counts.reads.max(1) as f64),
        reads: (counts.read_depth().round() as usize).clamp(1, READS_MAX),
        reads_per_group: counts.reads as f64 / written,
        ..Mix::default()
    }
}
