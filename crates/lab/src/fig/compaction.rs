//! Cleaning to the tail and cleaning within the body: Gecko, figure 5. What goes to the tail takes its share of the tail's
//! disk; what stays in the body leaves that disk to the application.

use ithaca_chain::{ChainOptions, Cleaning};
use ithaca_env::sim::Speed;

use super::Figure;
use super::blocks::{Layout, Shape, array_of_disks};
use super::chart::{Chart, Line, Scale};
use super::cleaning::{Extent, Run, Style};
use super::load::{Bench, Load, Request};
use super::mix::Mix;
use crate::blocks::BLOCK;

const SEED: u64 = 1;
const TRIMS: u64 = 50;
const WRITERS: u64 = 256;
const CLEANERS: [(&str, Cleaning, &str); 2] =
    [("move-to-tail", Cleaning::MoveToTail, "60"), ("compact-in-body", Cleaning::CompactInBody, "120")];
/// Blocks of a write.
const SIZES: [u64; 2] = [1, 4];

/// One cleaner under writes of one size.
struct Case {
    cleaner: &'static str,
    paper: &'static str,
    write_blocks: u64,
    run: Run,
}

impl Case {
    fn new(
        (cleaner, cleaning, paper): (&'static str, Cleaning, &'static str),
        write_blocks: u64,
        extent: Extent,
    ) -> Self {
        let Extent { disk_segments, segment_bytes, .. } = extent;
        let shape = Shape { layout: Layout::Chain, width: 2, sides: 1, disk_segments, segment_bytes };
        let set = |options: &mut ChainOptions| {
            Style::Blocks.tune(options);
            // Large groups, so that their heads take little.
            (options.flights, options.group_max_bytes) = (4, 256 << 10);
            options.cleaning = cleaning;
            // Only what is asked for is cleaned.
            (options.clean_start_free_percent, options.clean_stop_free_percent) = (0, 0);
        };
        let mix = Mix { clients: WRITERS / write_blocks, reads_percent: 0, hits_percent: 0, write_blocks };
        Self { cleaner, paper, write_blocks, run: Run::of(shape, set, mix, TRIMS, extent) }
    }

    /// What the application writes while the log is cleaned, of what the bare disk does.
    fn share(&self, bare: f64) -> f64 {
        self.run.writes() / bare
    }

    fn row(&self, bare: f64) -> String {
        let run = &self.run;
        format!(
            "{},{},{:.1},{:.1},{:.3},{},{:.1},{:.0}",
            self.cleaner,
            (self.write_blocks * BLOCK) >> 10,
            run.before(),
            run.writes(),
            self.share(bare),
            self.paper,
            run.moved(),
            run.seeks_per_s
        )
    }
}

/// What one such disk writes in order, in MB/s.
fn bare() -> f64 {
    let bench = Bench::new(SEED, Speed::Disk);
    let drive = bench.drive_of("disk", 1 << 30, array_of_disks(1, 1));
    let load = Load { request: Request::DurableWrite, len: 64 << 10, depth: 32, count: 8000 };
    bench.run(&drive, load, |n| n * (64 << 10)).mb_per_s(&load)
}

/// Measures what `extent` says.
pub fn measure(extent: Extent) -> Figure {
    let cases = SIZES.iter().flat_map(|&blocks| CLEANERS.map(|cleaner| Case::new(cleaner, blocks, extent)));
    let cases: Vec<Case> = cases.collect();
    let bare = bare();
    let line = |blocks: u64| {
        let of: Vec<&Case> = cases.iter().filter(|case| case.write_blocks == blocks).collect();
        let before = of.first().map_or(0.0, |case| case.run.before());
        let name = format!("writes of {} KiB", (blocks * BLOCK) >> 10);
        Line { name, y: std::iter::once(before).chain(of.iter().map(|case| case.run.writes())).collect() }
    };
    let charts = vec![Chart {
        title: format!("writes of the application, {TRIMS} % trimmed"),
        x_label: "cleaner".to_string(),
        y_label: "MB/s".to_string(),
        x: ["not cleaned", CLEANERS[0].0, CLEANERS[1].0].map(str::to_string).to_vec(),
        scale: Scale::Linear,
        lines: SIZES.map(line).into(),
    }];
    Figure {
        name: "compaction",
        claim: "a log that is cleaned within its body leaves the tail's disk to the application".to_string(),
        expected: "Gecko, figure 5: 120 MB/s for the application while the body is compacted, about half of it with \
                   move-to-tail, 50 % trimmed"
            .to_string(),
        setting: format!(
            "A chain of two disks of {} MiB, as in figure cleaning; {} KiB of random writes under way; {} MiB of the log were cleaned \
             before the load begins, so that the body has room, and {} MiB are then cleaned as Gecko cleans, without rests, for {} s \
             at the most. The share is of {bare:.1} MB/s, what a bare disk writes in order. What is missing is the log's own: heads \
             of groups and footers of segments, for which the arm moves; they grow with the number of writes, not with their bytes.",
            (extent.disk_segments * extent.segment_bytes) >> 20,
            (WRITERS * BLOCK) >> 10,
            (extent.ahead as u64 * extent.segment_bytes) >> 20,
            (extent.segments as u64 * extent.segment_bytes) >> 20,
            extent.most.as_secs_f64()
        ),
        columns: "cleaner,write KiB,writes before MB/s,writes while cleaned MB/s,share of a bare disk,paper MB/s,cleaner MB/s,seeks/s",
        rows: cases.iter().map(|case| case.row(bare)).collect(),
        charts,
        checks: checks(&cases, bare),
    }
}

fn checks(cases: &[Case], bare: f64) -> Vec<(String, bool)> {
    let check = |case: &Case| {
        let (share, kib) = (case.share(bare), (case.write_blocks * BLOCK) >> 10);
        let (least, most) = match case.cleaner {
            // What cleaner and writers each have under way decides their shares of the tail.
            "move-to-tail" => (0.4, 0.85),
            _ => (0.95, 1.0),
        };
        let what = format!(
            "{}, writes of {kib} KiB: {share:.3} of a bare disk for the application, within {least} and {most}",
            case.cleaner
        );
        (what, (least..=most).contains(&share))
    };
    let mut checks: Vec<(String, bool)> = cases.iter().map(check).collect();
    for pair in cases.chunks_exact(2) {
        let factor = pair[1].share(bare) / pair[0].share(bare);
        let kib = (pair[0].write_blocks * BLOCK) >> 10;
        let what =
            format!("writes of {kib} KiB: compact-in-body leaves {factor:.2} times what move-to-tail does");
        checks.push((what, factor >= 1.15));
    }
    let least = cases.iter().map(|case| case.run.moved()).fold(f64::INFINITY, f64::min);
    checks.push((format!("every cleaner moves something, at least {least:.1} MB/s"), least >= 5.0));
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compacting_the_body_leaves_the_tail_to_the_application() {
        let figure = measure(Extent::small(9, 128 << 20, 1, 500, 2000));
        figure.print();
        assert!(figure.judge(), "see the lines that say FAIL");
    }
}
