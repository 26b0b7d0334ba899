//! How fast the simulated drives are, held against what drives of their classes do. The numbers of the models are chosen
//! for these points alone (docs/drives.md); every other figure takes the models as they are.

use ithaca_env::sim::{Dice, Domain, Speed};
use ithaca_volume::stale::DriveCost;

use super::Figure;
use super::chart::{Chart, Line, Scale};
use super::load::{Bench, Load, Outcome, Request};

const DEPTHS: [u64; 6] = [1, 2, 4, 8, 16, 32];
const CHUNK: usize = 64 << 10;
const BLOCK: usize = 4096;
const SEED: u64 = 1;

/// Of a drive. A disk's fastest tracks are to hold what is written in order; an SSD is to be filled a few times.
fn size_bytes(speed: Speed) -> u64 {
    if speed == Speed::Disk { 8 << 30 } else { 512 << 20 }
}

/// What is measured at each depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pattern {
    SequentialRead,
    SequentialWrite,
    RandomRead,
    RandomWrite,
    RandomDurableWrite,
}

impl Pattern {
    const ALL: [Pattern; 5] = [
        Pattern::SequentialWrite,
        Pattern::SequentialRead,
        Pattern::RandomRead,
        Pattern::RandomWrite,
        Pattern::RandomDurableWrite,
    ];

    fn name(self) -> &'static str {
        match self {
            Pattern::SequentialRead => "sequential read 64 KiB",
            Pattern::SequentialWrite => "sequential write 64 KiB",
            Pattern::RandomRead => "random read 4 KiB",
            Pattern::RandomWrite => "random write 4 KiB",
            Pattern::RandomDurableWrite => "random durable write 4 KiB",
        }
    }

    fn is_sequential(self) -> bool {
        matches!(self, Pattern::SequentialRead | Pattern::SequentialWrite)
    }

    fn request(self) -> Request {
        match self {
            Pattern::SequentialRead | Pattern::RandomRead => Request::Read,
            Pattern::SequentialWrite | Pattern::RandomWrite => Request::Write,
            Pattern::RandomDurableWrite => Request::DurableWrite,
        }
    }
}

const DRIVES: [(&str, Speed); 4] =
    [("disk", Speed::Disk), ("ssd", Speed::Ssd), ("nvme", Speed::Nvme), ("ram", Speed::Ram)];

/// One row.
struct Point {
    drive: &'static str,
    pattern: Pattern,
    depth: u64,
    mb_per_s: f64,
    ops_per_s: f64,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    queue: f64,
    seeks: u64,
    inside: f64,
    erases: u64,
}

impl Point {
    fn new(drive: &'static str, pattern: Pattern, load: &Load, outcome: &Outcome) -> Self {
        let stats = &outcome.stats;
        let kind = if pattern.request() == Request::Read { stats.reads } else { stats.all_writes() };
        let written = stats.all_writes().bytes;
        Self {
            drive,
            pattern,
            depth: load.depth,
            mb_per_s: outcome.mb_per_s(load),
            ops_per_s: outcome.ops_per_s(load),
            mean_us: kind.mean_latency().as_nanos() as f64 / 1e3,
            p50_us: outcome.latency_us(50),
            p99_us: outcome.latency_us(99),
            queue: stats.mean_depth(),
            seeks: stats.media.seeks,
            inside: if written == 0 { 0.0 } else { stats.media.bytes_written as f64 / written as f64 },
            erases: stats.media.erases,
        }
    }

    fn row(&self) -> String {
        format!(
            "{},{},{},{:.2},{:.0},{:.1},{:.1},{:.1},{:.1},{},{:.2},{}",
            self.drive,
            self.pattern.name(),
            self.depth,
            self.mb_per_s,
            self.ops_per_s,
            self.mean_us,
            self.p50_us,
            self.p99_us,
            self.queue,
            self.seeks,
            self.inside,
            self.erases
        )
    }
}

/// Measures all four drives. `part` divides the number of requests: 1 is the whole.
pub fn measure(part: u64) -> Figure {
    let points: Vec<Point> =
        DRIVES.iter().flat_map(|&(name, speed)| measure_drive(name, speed, part)).collect();
    let chart = |title: &str, pattern: Pattern, y_label: &str, value: fn(&Point) -> f64| Chart {
        title: title.to_string(),
        x_label: "requests under way".to_string(),
        y_label: y_label.to_string(),
        x: DEPTHS.iter().map(u64::to_string).collect(),
        scale: Scale::Log,
        lines: DRIVES
            .iter()
            .map(|&(drive, _)| {
                let of = points.iter().filter(|point| point.drive == drive && point.pattern == pattern);
                Line { name: drive.to_string(), y: of.map(value).collect() }
            })
            .collect(),
    };
    let charts = vec![
        chart("sequential reads, 64 KiB", Pattern::SequentialRead, "MB/s", |point| point.mb_per_s),
        chart("sequential writes, 64 KiB", Pattern::SequentialWrite, "MB/s", |point| point.mb_per_s),
        chart("random reads, 4 KiB", Pattern::RandomRead, "requests/s", |point| point.ops_per_s),
        chart("random durable writes, 4 KiB", Pattern::RandomDurableWrite, "requests/s", |point| {
            point.ops_per_s
        }),
    ];
    Figure {
        name: "calibration",
        claim: "the simulated drives are as fast as drives of their classes".to_string(),
        expected: "the disk writes 120 MB/s in order and a few hundred 4 KiB blocks a second in place (Gecko's drives); \
                   an SSD reads a block in about 200 us and tens of thousands a second; a full SSD pays for random \
                   overwrites with several bytes inside for each from outside"
            .to_string(),
        setting: format!(
            "SSD, NVMe and RAM of {} MiB, a disk of {} MiB; a fixed number of requests under way; SSD: reads and random writes after every page was \
             written once, random writes after two more rounds of them. Seed {SEED}.",
            size_bytes(Speed::Ssd) >> 20,
            size_bytes(Speed::Disk) >> 20
        ),
        columns: "drive,pattern,depth,MB/s,requests/s,mean us,p50 us,p99 us,mean queue,seeks,written inside/outside,\
                  erases",
        rows: points.iter().map(Point::row).collect(),
        charts,
        checks: checks(&points),
    }
}

fn measure_drive(name: &'static str, speed: Speed, part: u64) -> Vec<Point> {
    let bench = Bench::new(SEED, speed);
    let size = size_bytes(speed);
    let drive = bench.drive(name, size);
    let blocks = size / BLOCK as u64;
    let place = |salt: u64| move |n| Dice::new(SEED).below(Domain::User(0), salt, n, blocks) * BLOCK as u64;
    let is_ssd = speed == Speed::Ssd;
    let mut points = Vec::new();
    for (number, pattern) in Pattern::ALL.into_iter().enumerate() {
        if is_ssd && pattern == Pattern::RandomRead {
            let len = 1 << 20;
            let fill = Load { request: Request::Write, len, depth: 4, count: size / len as u64 };
            bench.run(&drive, fill, move |n| n * len as u64);
        }
        if is_ssd && pattern == Pattern::RandomWrite {
            let worn = Load { request: Request::Write, len: BLOCK, depth: 32, count: 2 * blocks };
            bench.run(&drive, worn, place(99));
        }
        for depth in DEPTHS {
            let count = count(speed, pattern, part);
            let (request, len) = (pattern.request(), if pattern.is_sequential() { CHUNK } else { BLOCK });
            let load = Load { request, len, depth, count };
            bench.sync(&drive);
            let outcome = if pattern.is_sequential() {
                bench.run(&drive, load, move |n| n * CHUNK as u64)
            } else {
                bench.run(&drive, load, place(number as u64 * 100 + depth))
            };
            points.push(Point::new(name, pattern, &load, &outcome));
        }
    }
    points
}

/// Requests for one point: enough that the ends of a run do not matter.
fn count(speed: Speed, pattern: Pattern, part: u64) -> u64 {
    let whole = match (speed, pattern) {
        (_, pattern) if pattern.is_sequential() => 1600,
        (Speed::Disk, _) => 2000,
        (Speed::Ssd, Pattern::RandomWrite | Pattern::RandomDurableWrite) => 40_000,
        _ => 20_000,
    };
    whole / part
}

/// What readers of old versions take these drives for (docs/protocol/stale.md).
const COSTS: [(&str, DriveCost); 4] =
    [("disk", DriveCost::DISK), ("ssd", DriveCost::SSD), ("nvme", DriveCost::NVME), ("ram", DriveCost::RAM)];

/// What a value must lie between, and why.
struct Band {
    drive: &'static str,
    pattern: Pattern,
    depth: u64,
    what: &'static str,
    value: fn(&Point) -> f64,
    least: f64,
    most: f64,
}

const MB: fn(&Point) -> f64 = |point| point.mb_per_s;
const OPS: fn(&Point) -> f64 = |point| point.ops_per_s;
const MEAN: fn(&Point) -> f64 = |point| point.mean_us;
const INSIDE: fn(&Point) -> f64 = |point| point.inside;

const fn band(
    drive: &'static str,
    pattern: Pattern,
    depth: u64,
    what: &'static str,
    value: fn(&Point) -> f64,
    (least, most): (f64, f64),
) -> Band {
    Band { drive, pattern, depth, what, value, least, most }
}

const BANDS: &[Band] = &[
    // 120 MB/s is what Gecko's drives do in order.
    band("disk", Pattern::SequentialWrite, 2, "MB/s", MB, (110.0, 125.0)),
    band("disk", Pattern::SequentialWrite, 32, "MB/s", MB, (110.0, 125.0)),
    band("disk", Pattern::SequentialRead, 1, "MB/s", MB, (110.0, 125.0)),
    band("disk", Pattern::SequentialRead, 32, "MB/s", MB, (110.0, 125.0)),
    // Without a cache, a write that waits for the last one misses a turn: 64 KiB in 6.0 ms.
    band("disk", Pattern::SequentialWrite, 1, "MB/s", MB, (9.0, 12.0)),
    // A seek of 3.3 ms, half a turn of 3 ms, and settling.
    band("disk", Pattern::RandomRead, 1, "us on average", MEAN, (5_500.0, 7_000.0)),
    band("disk", Pattern::RandomDurableWrite, 1, "us on average", MEAN, (6_000.0, 7_500.0)),
    band("disk", Pattern::RandomDurableWrite, 32, "requests/s", OPS, (200.0, 350.0)),
    band("disk", Pattern::RandomRead, 32, "requests/s", OPS, (200.0, 350.0)),
    // About 200 us in Gecko, 30 thousand reads a second in Isotope, a link of 6 Gbit/s.
    band("ssd", Pattern::RandomRead, 1, "us on average", MEAN, (170.0, 220.0)),
    band("ssd", Pattern::RandomRead, 32, "requests/s", OPS, (60_000.0, 100_000.0)),
    band("ssd", Pattern::SequentialRead, 32, "MB/s", MB, (500.0, 550.0)),
    band("ssd", Pattern::SequentialWrite, 32, "MB/s", MB, (300.0, 400.0)),
    band("ssd", Pattern::RandomDurableWrite, 1, "us on average", MEAN, (350.0, 800.0)),
    band("ssd", Pattern::RandomWrite, 32, "bytes inside for each from outside", INSIDE, (5.0, 9.0)),
    band("ssd", Pattern::RandomWrite, 32, "requests/s", OPS, (6_000.0, 15_000.0)),
    band("nvme", Pattern::RandomRead, 1, "us on average", MEAN, (75.0, 90.0)),
    band("nvme", Pattern::RandomRead, 32, "requests/s", OPS, (300_000.0, 420_000.0)),
    band("nvme", Pattern::SequentialRead, 32, "MB/s", MB, (2_800.0, 3_000.0)),
    band("nvme", Pattern::SequentialWrite, 32, "MB/s", MB, (1_900.0, 2_000.0)),
    band("nvme", Pattern::RandomDurableWrite, 1, "us on average", MEAN, (60.0, 75.0)),
    band("ram", Pattern::RandomRead, 1, "us on average", MEAN, (1.0, 2.0)),
    band("ram", Pattern::SequentialWrite, 32, "MB/s", MB, (9_500.0, 10_000.0)),
];

fn checks(points: &[Point]) -> Vec<(String, bool)> {
    let find = |drive: &str, pattern: Pattern, depth: u64| {
        points.iter().find(|point| (point.drive, point.pattern, point.depth) == (drive, pattern, depth))
    };
    let in_band = |band: &Band| {
        let value = find(band.drive, band.pattern, band.depth).map_or(f64::NAN, band.value);
        let Band { drive, depth, what, least, most, .. } = band;
        let name = band.pattern.name();
        let said = format!("{drive}, {name}, depth {depth}: {value:.1} {what}, within {least} and {most}");
        (said, (*least..=*most).contains(&value))
    };
    let mut checks: Vec<(String, bool)> = BANDS.iter().map(in_band).collect();
    for (drive, cost) in COSTS {
        for (pattern, ns) in
            [(Pattern::RandomRead, cost.read_ns), (Pattern::RandomDurableWrite, cost.write_ns)]
        {
            let measured = find(drive, pattern, 1).map_or(f64::NAN, MEAN);
            let told_us = ns as f64 / 1e3;
            let said =
                format!("{drive}, {}: {told_us:.1} us is what old versions are chosen by", pattern.name());
            checks.push((said, (0.9..=1.1).contains(&(told_us / measured))));
        }
    }
    for (drive, _) in DRIVES {
        for pattern in Pattern::ALL {
            let of = points.iter().filter(|point| point.drive == drive && point.pattern == pattern);
            let speeds: Vec<f64> = of.map(|point| point.ops_per_s).collect();
            let grows = speeds.windows(2).all(|pair| pair[1] >= pair[0] * 0.93);
            checks.push((format!("{drive}, {}: no slower with more under way", pattern.name()), grows));
        }
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drives_lie_in_their_bands() {
        let figure = measure(4);
        figure.print();
        assert!(figure.judge(), "see the lines that say FAIL");
    }

    #[test]
    fn a_figure_is_the_same_each_time() {
        let rows =
            || -> Vec<String> { measure_drive("disk", Speed::Disk, 20).iter().map(Point::row).collect() };
        assert_eq!(rows(), rows());
    }
}
