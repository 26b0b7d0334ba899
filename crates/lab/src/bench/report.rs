//! What a bench found: a table for people, `results/NAME.csv` for later.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use super::ithaca::OTHER;
use super::plan::{Bench, Target};
use super::side::MakeSide;
use crate::measure::{Figure, median, said_by};

/// One slice of one side.
pub struct Row {
    /// Which round, from 0.
    pub round: usize,
    /// Whose.
    pub side: &'static str,
    /// What it gave.
    pub figure: Figure,
    /// Median 4 KB flush just before the round, microseconds.
    pub flush_probe: f64,
}

/// All slices of one bench.
pub struct Report {
    bench: &'static Bench,
    rows: Vec<Row>,
    left_out: Vec<(&'static str, String)>,
}

impl Report {
    /// An empty one.
    pub fn new(bench: &'static Bench) -> Self {
        Self { bench, rows: Vec::new(), left_out: Vec::new() }
    }

    /// Adds a slice.
    pub fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Says why a side is missing.
    pub fn leave_out(&mut self, side: &'static str, error: &io::Error) {
        if !self.left_out.iter().any(|(known, _)| *known == side) {
            self.left_out.push((side, error.to_string()));
        }
    }

    /// Prints the medians, the ratios and the targets. Returns whether Ithaca was measured and meets every target that was.
    pub fn print(&self) -> bool {
        let Bench { name, size, clients, inflight, programs, .. } = self.bench;
        println!(
            "{name}: {size} B, {clients} connections of {programs} programs, {inflight} in flight, flush {}",
            self.flush_text()
        );
        println!("  side           ops/s      p50 us     p99 us   CPU us/op  (client + server)   flush us");
        for side in self.sides() {
            let of = |field: fn(&Figure) -> f64| median(self.figures(side).map(field));
            println!(
                "  {side:<10} {:>10.0} {:>11.1} {:>10.1} {:>11.3}  ({:.3} + {:.3}) {:>12.1}",
                of(|figure| figure.ops_per_s),
                of(|figure| figure.p50_us),
                of(|figure| figure.p99_us),
                of(Figure::cpu_us),
                of(|figure| figure.client_cpu_us),
                of(|figure| figure.server_cpu_us),
                of(|figure| figure.flush_us),
            );
        }
        self.left_out.iter().for_each(|(side, why)| println!("  {side}: not measured: {why}"));
        let outcomes: Vec<(String, bool)> =
            self.bench.targets.iter().filter_map(|target| self.judge(*target)).collect();
        outcomes
            .iter()
            .for_each(|(text, met)| println!("  {} {text}", if *met { "met   " } else { "MISSED" }));
        self.beside_other().iter().for_each(|text| println!("  {text}"));
        // Without a slice of its own no target was judged, and none is met.
        self.figures(MakeSide::Ithaca.name()).next().is_some() && outcomes.iter().all(|(_, met)| *met)
    }

    /// Writes `path`: how it was made, every slice, medians and ratios.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut text = String::new();
        let command: Vec<String> = std::env::args().skip(1).collect();
        let Bench { name, size, clients, inflight, programs, .. } = self.bench;
        let _ = writeln!(
            text,
            "# {name}: {size} B entries, {clients} connections of {programs} programs, {inflight} in flight over all"
        );
        let _ = writeln!(text, "# command: cargo lab {}", command.join(" "));
        let _ = writeln!(
            text,
            "# commit: {}",
            said_by("git", &["describe", "--always", "--dirty", "--abbrev=12"])
        );
        let _ = writeln!(
            text,
            "# machine: {} on {} processors",
            said_by("uname", &["-srm"]),
            said_by("nproc", &[])
        );
        let _ = writeln!(text, "# date: {}", said_by("date", &["--utc", "+%Y-%m-%dT%H:%M:%SZ"]));
        let _ = writeln!(text, "# durability: {}", self.bench.durability());
        let _ = writeln!(
            text,
            "# flush of the moment (median of 101 durable 4 KB writes, before each round): {}",
            self.flush_text()
        );
        for (side, why) in &self.left_out {
            let _ = writeln!(text, "# {side}: not measured: {}", why.replace('\n', " "));
        }
        for (outcome, met) in self.bench.targets.iter().filter_map(|target| self.judge(*target)) {
            let _ = writeln!(text, "# target {}: {outcome}", if met { "met" } else { "missed" });
        }
        if let Some(beside) = self.beside_other() {
            let _ = writeln!(text, "# {beside}");
        }
        text.push_str("round,side,ops_per_s,p50_us,p99_us,client_cpu_us_per_op,server_cpu_us_per_op,flush_us,flush_probe_us\n");
        for Row { round, side, figure, flush_probe } in &self.rows {
            let Figure { ops_per_s, p50_us, p99_us, client_cpu_us, server_cpu_us, flush_us } = figure;
            let _ = writeln!(
                text,
                "{round},{side},{ops_per_s:.0},{p50_us:.1},{p99_us:.1},{client_cpu_us:.4},{server_cpu_us:.4},{flush_us:.1},{flush_probe:.1}"
            );
        }
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(path, text)
    }

    /// What a target came to, in words, and whether it is met; `None` if a side of it was not measured.
    fn judge(&self, target: Target) -> Option<(String, bool)> {
        let ithaca = MakeSide::Ithaca.name();
        match target {
            Target::Rate(sides, least) => {
                let ratios =
                    sides.iter().map(|side| self.ratio(ithaca, side.name(), |figure| figure.ops_per_s));
                let best = ratios.collect::<Option<Vec<f64>>>()?.into_iter().fold(0.0, f64::max);
                let names: Vec<&str> = sides.iter().map(|side| side.name()).collect();
                let text = format!("rate {best:.2} of {} (at least {least})", names.join(" or "));
                Some((text, best >= least))
            }
            Target::Median(side, most) => {
                let ratio = self.ratio(ithaca, side.name(), |figure| figure.p50_us)?;
                Some((format!("p50 {ratio:.2} of {} (at most {most})", side.name()), ratio <= most))
            }
            Target::AbsoluteRate(least) => {
                self.figures(ithaca).next()?;
                let rate = median(self.figures(ithaca).map(|figure| figure.ops_per_s));
                Some((format!("{rate:.0} a second (at least {least:.0})"), rate >= least))
            }
            Target::Cpu(most) => {
                self.figures(ithaca).next()?;
                let cpu = median(self.figures(ithaca).map(Figure::cpu_us));
                Some((format!("CPU {cpu:.3} us an operation (at most {most})"), cpu <= most))
            }
        }
    }

    /// How this build did beside another one, if that was measured.
    fn beside_other(&self) -> Option<String> {
        let ithaca = MakeSide::Ithaca.name();
        let rate = self.ratio(ithaca, OTHER, |figure| figure.ops_per_s)?;
        let cpu = self.ratio(ithaca, OTHER, Figure::cpu_us)?;
        Some(format!("rate {rate:.2} and CPU {cpu:.2} of the other build's"))
    }

    /// The median over rounds of `field` of one side to that of another.
    fn ratio(&self, side: &str, other: &str, field: fn(&Figure) -> f64) -> Option<f64> {
        let in_round =
            |row: &Row| self.rows.iter().find(|with| with.round == row.round && with.side == other);
        let mine = self.rows.iter().filter(|row| row.side == side);
        let ratios: Vec<f64> =
            mine.filter_map(|row| Some(field(&row.figure) / field(&in_round(row)?.figure))).collect();
        (!ratios.is_empty()).then(|| median(ratios))
    }

    fn sides(&self) -> Vec<&'static str> {
        let measured = |side: &str| self.rows.iter().any(|row| row.side == side);
        let sides = self.bench.sides.iter().map(|side| side.name());
        sides.chain([OTHER]).filter(|side| measured(side)).collect()
    }

    fn figures(&self, side: &str) -> impl Iterator<Item = &Figure> {
        self.rows.iter().filter(move |row| row.side == side).map(|row| &row.figure)
    }

    fn flush_text(&self) -> String {
        let probes = || self.rows.iter().map(|row| row.flush_probe);
        let (least, most) = (probes().fold(f64::INFINITY, f64::min), probes().fold(0.0, f64::max));
        format!("{:.0} us (from {least:.0} to {most:.0})", median(probes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::plan::BENCHES;

    fn row(round: usize, side: &'static str, ops_per_s: f64) -> Row {
        Row { round, side, figure: Figure { ops_per_s, ..Figure::default() }, flush_probe: 50.0 }
    }

    #[test]
    fn ratios_are_taken_inside_a_round() {
        // The machine became ten times slower between the rounds: no figure of one may be divided by one of another.
        let mut report = Report::new(&BENCHES[0]);
        let rounds = [(1000.0, 600.0), (100.0, 60.0), (100.0, 60.0)];
        for (round, (bare, ithaca)) in rounds.into_iter().enumerate() {
            report.add(row(round, "bare", bare));
            report.add(row(round, "ithaca", ithaca));
        }
        let ratio = report.ratio("ithaca", "bare", |figure| figure.ops_per_s);
        assert_eq!(ratio, Some(0.6));
        assert!(report.judge(Target::Rate(&[MakeSide::Bare], 0.55)).is_some_and(|(_, met)| met));
        assert!(report.judge(Target::Rate(&[MakeSide::Bare], 0.65)).is_some_and(|(_, met)| !met));
        assert!(report.judge(Target::Rate(&[MakeSide::Redis], 3.0)).is_none());
    }

    #[test]
    fn a_bench_in_which_ithaca_was_not_measured_meets_nothing() {
        let mut report = Report::new(&BENCHES[0]);
        report.add(row(0, "bare", 1000.0));
        report.leave_out("ithaca", &io::Error::other("it does not start"));
        assert!(!report.print());
    }
}
