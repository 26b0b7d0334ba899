//! Figures: measurements in simulated worlds, each with what it is to show, as numbers (`fig-NAME.csv`) and as a picture
//! (`fig-NAME.svg`). A figure is one file here, and states the shape that it must have; a test holds it to that at a
//! smaller scale. All times are virtual, so a figure is the same on every machine.
#![expect(
    clippy::disallowed_methods,
    reason = "numbers and pictures are files for people, not drives of the system"
)]

mod abort_rate;
mod analytics;
mod blocks;
mod cache_sizes;
mod calibration;
pub mod chart;
mod cleaning;
mod clear;
mod clients;
mod commit_records;
mod compaction;
mod contention;
mod dedup;
mod emulated;
mod fine_log;
mod griffin;
mod holes;
mod isotope;
mod length;
mod load;
mod local_views;
mod mix;
mod mixed;
mod outage;
mod read_only;
mod reconfiguration;
mod remote_views;
mod scaling;
mod slow_replica;
mod ssd_lifetime;
mod store;
mod stream_append;
mod stream_outage;
mod stream_read;
mod tail_cache;
#[cfg(test)]
mod tail_chain;
mod tail_emulator;
pub mod testbed;
mod versions;
mod yogurt;

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};

use chart::Chart;

/// The figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Name {
    /// How fast the simulated drives are: sequential and random, by queue depth.
    Calibration,
    /// One random writer against sequential ones, on a striped array and on a log (Gecko, figure 2).
    Contention,
    /// How many reads of the tail drive its caches answer (Gecko, figure 6).
    TailCache,
    /// How that falls as the tail drive fills, for several sizes of the cache (Gecko, figure 7).
    CacheSizes,
    /// How much longer the cache drive lasts because memory coalesces overwrites (Gecko, figure 8).
    SsdLifetime,
    /// Writes while the log is cleaned, on a chain and on a striped array (Gecko, figure 4).
    Cleaning,
    /// Writes while the log is cleaned to its tail or within its body (Gecko, figure 5).
    Compaction,
    /// Reads and writes together on mirrored drives, cleaned and not (Gecko, figure 9).
    Mixed,
    /// Reads and writes on chains and on striped arrays of two to seven disks (Gecko, figure 10).
    Length,
    /// Appends and reads a second as units are added (Wei, figure 3.14).
    Scaling,
    /// Appends and reads while a unit fails, and the sequencer (Wei, figure 3.15).
    Outage,
    /// From one layout to the next, by the number of units (Wei, figures 3.16 and 3.17).
    Reconfiguration,
    /// Old versions on the SSD behind a disk that takes the writes (Yogurt, figure 3).
    Griffin,
    /// Old versions in memory because other blocks hold the same (Yogurt, figure 5).
    Dedup,
    /// Old versions of small items in the blocks that are cached (Yogurt, figure 7).
    FineLog,
    /// Old versions on the disks that are not being written to (Yogurt, figure 9).
    Yogurt,
    /// Transactions by the fraction of the address space, conflicts found by block (Isotope, figure 5).
    #[value(name = "isotope-5")]
    Isotope5,
    /// The same with marks of 16 bytes (Isotope, figure 6).
    #[value(name = "isotope-6")]
    Isotope6,
    /// Appends while a replica is a hundred times slower.
    SlowReplica,
    /// Reads of an object that somebody changes, by the programs that read it: its state in each, or at a node (Wei, figure 5.10).
    RemoteViews,
    /// Appends to streams beside appends to none (Wei, figure 5.6).
    StreamAppend,
    /// A whole stream, in bulk and along backpointers (Wei, figure 5.7).
    StreamRead,
    /// What a hole costs the reader of a stream (Wei, figure 5.8).
    Holes,
    /// Transactions that abort, by what a map is divided into (Wei, figure 5.16).
    AbortRate,
    /// A stream while a unit fails that holds a share of it (Wei, figure 5.9).
    StreamOutage,
    /// Reads through local views while the object is written (Wei, figure 5.10).
    LocalViews,
    /// Transactions that only read beside a writer, and two-phase locking (Wei, figure 5.13).
    ReadOnly,
    /// Writers beside a long transaction that reads everything (Wei, figure 5.14).
    Analytics,
    /// A clear of a hashed map and a size after it (Wei, figure 5.17).
    Clear,
    /// Gets and puts of several keys at once in a store (Wei, figures 3.18 and 3.19).
    Store,
    /// Conditions at the sequencer beside commit and decision records (Wei 5.2 and 5.3.3).
    CommitRecords,
}

/// Blocks of a tail drive that a figure fills: 2 GiB, a 256th of Gecko's.
const TAIL_BLOCKS: u64 = 1 << 19;

/// `cargo lab fig`.
#[derive(Args)]
pub struct FigArguments {
    /// Which figures; all of them by default.
    names: Vec<Name>,
    /// The folder that numbers and pictures are written to.
    #[arg(long, default_value = "results")]
    out: PathBuf,
    /// A block trace to be played in `tail-cache` beside the generated ones: a `.csv` of the MSR Cambridge format, or a file of vscsiStats
    /// records. Repeats.
    #[arg(long = "trace", value_name = "FILE")]
    traces: Vec<PathBuf>,
}

/// A figure that was measured.
pub struct Figure {
    /// As on the command line.
    pub name: &'static str,
    /// What it is to show.
    pub claim: String,
    /// The shape that shows it, and where it comes from.
    pub expected: String,
    /// The drives, the load, the scale.
    pub setting: String,
    /// Names of the columns, by commas.
    pub columns: &'static str,
    /// The numbers, by commas.
    pub rows: Vec<String>,
    /// The pictures.
    pub charts: Vec<Chart>,
    /// What the shape asks for in words, and whether it is so.
    pub checks: Vec<(String, bool)>,
}

impl Figure {
    /// What stands below the picture and above the numbers.
    fn caption(&self) -> Vec<String> {
        vec![
            format!("Claim: {}", self.claim),
            format!("Expected shape: {}", self.expected),
            format!("Measured on simulated drives, in virtual time. {}", self.setting),
        ]
    }

    fn csv(&self) -> String {
        let mut text = format!("# figure {}\n", self.name);
        for line in self.caption() {
            let _ = writeln!(text, "# {line}");
        }
        let _ = writeln!(text, "# command: cargo lab fig {}", self.name);
        let _ = writeln!(text, "{}", self.columns);
        for row in &self.rows {
            let _ = writeln!(text, "{row}");
        }
        text
    }

    fn write(&self, folder: &Path) -> io::Result<()> {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join(format!("fig-{}.csv", self.name)), self.csv())?;
        let picture = chart::picture(&self.charts, &self.caption());
        std::fs::write(folder.join(format!("fig-{}.svg", self.name)), picture)
    }

    /// Prints the numbers as a table.
    fn print(&self) {
        let lines: Vec<Vec<&str>> = std::iter::once(self.columns)
            .chain(self.rows.iter().map(String::as_str))
            .map(|line| line.split(',').collect())
            .collect();
        let width = |at: usize| lines.iter().filter_map(|line| line.get(at)).map(|cell| cell.len()).max();
        for line in &lines {
            let cells = line.iter().enumerate().map(|(at, cell)| {
                let width = width(at).unwrap_or(0);
                format!("{cell:>width$}")
            });
            println!("{}", cells.collect::<Vec<String>>().join("  "));
        }
    }

    /// Prints what the shape asks for. False if it is not so.
    fn judge(&self) -> bool {
        for (what, is_so) in &self.checks {
            println!("{} {}: {what}", if *is_so { "ok  " } else { "FAIL" }, self.name);
        }
        self.checks.iter().all(|(_, is_so)| *is_so)
    }
}

/// Measures figures, writes and prints them. False if one has not the shape that it must have.
pub fn run(arguments: &FigArguments) -> io::Result<bool> {
    let names = if arguments.names.is_empty() { Name::value_variants() } else { &arguments.names[..] };
    let mut passed = true;
    for name in names {
        let figure = measured(*name, &arguments.traces)?;
        figure.print();
        passed &= figure.judge();
        figure.write(&arguments.out)?;
        println!("{} and .svg are written", arguments.out.join(format!("fig-{}.csv", figure.name)).display());
    }
    Ok(passed)
}

/// Measures one figure at its full scale.
fn measured(name: Name, traces: &[PathBuf]) -> io::Result<Figure> {
    Ok(match name {
        Name::Calibration => calibration::measure(1),
        Name::Contention => contention::measure(Duration::from_secs(1)),
        Name::CacheSizes => cache_sizes::measure(TAIL_BLOCKS),
        Name::SsdLifetime => ssd_lifetime::measure(TAIL_BLOCKS),
        Name::TailCache => tail_cache::measure(TAIL_BLOCKS, traces)?,
        Name::Compaction => compaction::measure(cleaning::Extent {
            disk_segments: 12,
            segment_bytes: 128 << 20,
            segments: 1,
            around: Duration::from_millis(1000),
            most: Duration::from_secs(4),
            ahead: 1,
        }),
        Name::Mixed => mixed::measure(cleaning::Extent {
            disk_segments: 8,
            segment_bytes: 64 << 20,
            segments: 2,
            around: Duration::from_millis(1500),
            most: Duration::from_secs(5),
            ahead: 0,
        }),
        Name::Length => length::measure(&[2, 3, 4, 5, 6, 7], 8, Duration::from_secs(2)),
        Name::Scaling => scaling::measure(&[4, 8, 16, 24, 32, 48, 64], Duration::from_millis(100)),
        Name::Outage => outage::measure(32),
        Name::Reconfiguration => reconfiguration::measure(&[4, 8, 16, 24, 32, 48, 64], 100),
        Name::Griffin => griffin::measure(griffin::EXTENT),
        Name::Dedup => dedup::measure(dedup::EXTENT),
        Name::FineLog => fine_log::measure(dedup::EXTENT),
        Name::Yogurt => yogurt::measure(yogurt::EXTENT),
        Name::Isotope5 => isotope::measure(isotope::Grain::Block, isotope::EXTENT),
        Name::Isotope6 => isotope::measure(isotope::Grain::Fragment, isotope::EXTENT),
        Name::SlowReplica => slow_replica::measure(),
        Name::RemoteViews => remote_views::measure(&[1, 10, 100, 300, 1_000], Duration::from_millis(500)),
        Name::StreamAppend => stream_append::measure(&[4, 8, 16], Duration::from_millis(30)),
        Name::StreamRead => stream_read::measure(&stream_read::CASES),
        Name::Holes => holes::measure(&[32, 320, 1000, 3200, 10_000]),
        Name::AbortRate => {
            abort_rate::measure(&[2, 4, 8, 16], &abort_rate::SHAPES, Duration::from_millis(200))
        }
        Name::StreamOutage => stream_outage::measure(),
        Name::LocalViews => local_views::measure(&[1, 2, 4, 8, 16, 32], Duration::from_millis(100)),
        Name::ReadOnly => read_only::measure(&[0, 8, 16, 32, 64], Duration::from_millis(150)),
        Name::Analytics => analytics::measure(),
        Name::Clear => clear::measure(&[10, 100, 1000, 4000]),
        Name::Store => store::measure(
            &[1, 2, 4, 8, 16],
            store::Extent { units: 32, machines: 16, span: Duration::from_millis(50) },
        ),
        Name::CommitRecords => commit_records::measure(&[2, 4, 8, 16], Duration::from_millis(800)),
        Name::Cleaning => cleaning::measure(cleaning::Extent {
            disk_segments: 10,
            segment_bytes: 128 << 20,
            segments: 1,
            around: Duration::from_millis(700),
            most: Duration::from_secs(20),
            ahead: 0,
        }),
    })
}
