//! What the chain's bench found.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use super::load::{DATA_BYTES, FLIGHTS, IN_FLIGHT, Slice};
use super::{Case, FILE_BYTES, Pattern};
use crate::bare::Mix;
use crate::blocks::BLOCK;
use crate::measure::{median, said_by};

/// The least share of the bare writer's rate.
const RATE_LEAST: f64 = 0.9;
/// The most processor time of a block, microseconds, without the generator's.
const CPU_MOST_US: f64 = 3.0;

/// A round of a case.
pub struct Row {
    /// Which case.
    pub case: &'static str,
    /// Which round, from 0.
    pub round: usize,
    /// What the chain did.
    pub slice: Slice,
    /// What the bare writer was given.
    pub mix: Mix,
    /// Groups that it wrote, a second.
    pub groups: f64,
    /// Reads that it made, a second.
    pub reads: f64,
    /// Groups that it wrote a second with as much data as the chain has, if that was measured.
    pub fresh: Option<f64>,
    /// Median 4 KB flush just before the round, microseconds.
    pub flush_probe: f64,
}

impl Row {
    fn app_mb_per_s(&self) -> f64 {
        (self.slice.blocks * BLOCK) as f64 / 1e6 / self.slice.seconds
    }

    /// One way.
    fn moved_mb_per_s(&self) -> f64 {
        self.slice.moved_bytes as f64 / 1e6 / self.slice.seconds
    }

    /// The application's bytes, and those that the cleaner read and wrote.
    fn all_mb_per_s(&self) -> f64 {
        self.app_mb_per_s() + 2.0 * self.moved_mb_per_s()
    }

    /// The chain's rate of the bare writer's, which has the payload alone to write, and reads as the chain does.
    fn ratio(&self) -> f64 {
        self.slice.payload_bytes as f64 / self.slice.seconds / (self.groups * self.mix.group_bytes as f64)
    }

    /// The chain's rate of a bare writer's with as much data as the chain has.
    fn ratio_to_fresh(&self) -> Option<f64> {
        let bytes = self.fresh? * self.mix.group_bytes as f64;
        Some(self.slice.payload_bytes as f64 / self.slice.seconds / bytes)
    }

    /// Payload that the application and the cleaner wrote, for a byte of the application's.
    fn amplification(&self) -> f64 {
        self.slice.payload_bytes as f64 / (self.slice.blocks * BLOCK) as f64
    }

    fn cpu_us(&self) -> f64 {
        self.slice.cpu_us / self.slice.blocks as f64
    }

    /// The same for each block that anybody wrote.
    fn cpu_us_of_all(&self) -> f64 {
        self.slice.cpu_us / (self.slice.payload_bytes / BLOCK) as f64
    }
}

/// All rounds of all cases.
#[derive(Default)]
pub struct Report {
    /// Each with what the generator costs, microseconds a block.
    cases: Vec<(&'static str, Pattern, u64, f64)>,
    rows: Vec<Row>,
}

/// The least, the median and the greatest.
fn spread(values: impl Iterator<Item = f64> + Clone) -> (f64, f64, f64) {
    let (least, most) = values.clone().fold((f64::INFINITY, 0.0_f64), |(a, b), it| (a.min(it), b.max(it)));
    (least, median(values), most)
}

impl Report {
    /// Adds a case and its rounds.
    pub fn add(&mut self, case: &Case, generator_us: f64, rows: Vec<Row>) {
        self.cases.push((case.name, case.pattern, case.used_percent, generator_us));
        self.rows.extend(rows);
    }

    fn of(&self, case: &str, field: impl Fn(&Row) -> f64 + Clone) -> (f64, f64, f64) {
        spread(self.rows.iter().filter(|row| row.case == case).map(field))
    }

    /// What each target came to, and whether it is met.
    fn outcomes(&self) -> Vec<(String, bool)> {
        let mut outcomes = Vec::new();
        for &(case, pattern, _, generator_us) in &self.cases {
            let (least, ratio, most) = self.of(case, Row::ratio);
            let what = match pattern {
                Pattern::Random => "application and cleaning",
                Pattern::InOrder => "application",
            };
            outcomes.push((
                format!(
                    "{case}: {what} {ratio:.2} of bare (from {least:.2} to {most:.2}; at least {RATE_LEAST})"
                ),
                ratio >= RATE_LEAST,
            ));
            let (least, cpu, most) = self.of(case, |row| row.cpu_us() - generator_us);
            outcomes.push((
                format!(
                    "{case}: CPU {cpu:.2} us a block (from {least:.2} to {most:.2}; at most {CPU_MOST_US}), and {generator_us:.2} us of the load"
                ),
                cpu <= CPU_MOST_US,
            ));
        }
        outcomes
    }

    /// What is worth knowing beside the targets.
    fn notes(&self) -> Vec<String> {
        let is_measured = |case: &str| self.rows.iter().any(|row| row.case == case && row.fresh.is_some());
        let cases = self.cases.iter().map(|(case, ..)| *case).filter(|case| is_measured(case));
        let note = |case| {
            let (least, ratio, most) = self.of(case, |row| row.ratio_to_fresh().unwrap_or(f64::NAN));
            let data = DATA_BYTES >> 20;
            format!(
                "{case}: application {ratio:.2} of bare with the same {data} MiB of data (from {least:.2} to {most:.2})"
            )
        };
        cases.map(note).collect()
    }

    /// Prints medians and targets. Returns whether all are met.
    pub fn print(&self) -> bool {
        println!("chain: 4 KB blocks, {IN_FLIGHT} in flight, one file of {} GiB", FILE_BYTES >> 30);
        println!(
            "  case           app MB/s  moved MB/s  all MB/s  group KiB  read KiB  reads at once  read/moved  CPU us/block  /written"
        );
        for &(case, ..) in &self.cases {
            let of = |field: fn(&Row) -> f64| self.of(case, field).1;
            println!(
                "  {case:<12} {:>10.0} {:>11.0} {:>9.0} {:>10.0} {:>9.1} {:>14.1} {:>11.2} {:>13.2} {:>9.2}",
                of(Row::app_mb_per_s),
                of(Row::moved_mb_per_s),
                of(Row::all_mb_per_s),
                of(|row| row.slice.payload_bytes as f64 / row.slice.groups as f64 / 1024.0),
                of(|row| row.slice.counts.read_bytes as f64 / row.slice.counts.reads as f64 / 1024.0),
                of(|row| row.slice.counts.read_depth()),
                of(|row| row.slice.counts.read_bytes as f64 / row.slice.moved_bytes as f64),
                of(Row::cpu_us),
                of(Row::cpu_us_of_all),
            );
        }
        let outcomes = self.outcomes();
        outcomes
            .iter()
            .for_each(|(text, met)| println!("  {} {text}", if *met { "met   " } else { "MISSED" }));
        self.notes().iter().for_each(|note| println!("  note   {note}"));
        outcomes.iter().all(|(_, met)| *met)
    }

    /// Writes `path`: how it was made, every round, and what the targets came to.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut text = String::new();
        let command: Vec<String> = std::env::args().skip(1).collect();
        let mut line = |what: String| {
            let _ = writeln!(text, "# {what}");
        };
        line(format!(
            "chain: 4 KB blocks overwritten on one preallocated file of {} GiB, {IN_FLIGHT} in flight, {FLIGHTS} groups under way, otherwise default options; bare: the same groups and reads",
            FILE_BYTES >> 30
        ));
        line(format!("command: cargo lab {}", command.join(" ")));
        line(format!("commit: {}", said_by("git", &["describe", "--always", "--dirty", "--abbrev=12"])));
        line(format!("machine: {} on {} processors", said_by("uname", &["-srm"]), said_by("nproc", &[])));
        line(format!("date: {}", said_by("date", &["--utc", "+%Y-%m-%dT%H:%M:%SZ"])));
        line("durability: every group on stable storage before it counts (O_DIRECT and RWF_DSYNC), on both sides".into());
        for (case, _, used_percent, _) in &self.cases {
            line(format!(
                "{case}: the newest versions take {used_percent} % of the segments that are in use"
            ));
        }
        for (outcome, met) in self.outcomes() {
            line(format!("target {}: {outcome}", if met { "met" } else { "missed" }));
        }
        for note in self.notes() {
            line(format!("note: {note}"));
        }
        for &(case, ..) in &self.cases {
            let words =
                |(least, middle, most): (f64, f64, f64)| format!("{middle:.2} ({least:.2} to {most:.2})");
            line(format!(
                "medians (least to most) of {case}: application {} MB/s, with cleaning {} MB/s, {} written for each byte of the application's, {} segments cleaned a second",
                words(self.of(case, Row::app_mb_per_s)),
                words(self.of(case, Row::all_mb_per_s)),
                words(self.of(case, Row::amplification)),
                words(self.of(case, |row| row.slice.segments as f64 / row.slice.seconds)),
            ));
        }
        text.push_str("case,round,seconds,app_mb_per_s,moved_mb_per_s,all_mb_per_s,groups_per_s,bare_groups_per_s,reads_per_s,bare_reads_per_s,ratio,group_kib,read_kib,reads_at_once,cpu_us_per_block,cpu_us_per_written_block,flush_probe_us,bare_fresh_groups_per_s\n");
        for row in &self.rows {
            let Row { case, round, slice, mix, groups, reads, fresh, flush_probe } = row;
            let fresh = fresh.map_or_else(String::new, |fresh| format!("{fresh:.1}"));
            let _ = writeln!(
                text,
                "{case},{round},{:.2},{:.1},{:.1},{:.1},{:.1},{groups:.1},{:.1},{reads:.1},{:.3},{},{},{},{:.3},{:.3},{flush_probe:.1},{fresh}",
                slice.seconds,
                row.app_mb_per_s(),
                row.moved_mb_per_s(),
                row.all_mb_per_s(),
                slice.groups as f64 / slice.seconds,
                slice.counts.reads as f64 / slice.seconds,
                row.ratio(),
                mix.group_bytes >> 10,
                mix.read_bytes >> 10,
                mix.reads,
                row.cpu_us(),
                row.cpu_us_of_all(),
            );
        }
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(path, text)
    }
}
