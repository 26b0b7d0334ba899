//! Transactions by the fraction of the address space that they access: Isotope, figure 5 (conflicts are found by block) and figure 6 (by
//! fragments of 16 bytes). On three disks with an SSD that caches reads, and on two SSDs.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ithaca_chain::{CacheDrive, ChainOptions, Cleaning};
use ithaca_env::Env;
use ithaca_env::drive::Drive;
use ithaca_env::sim::{Disk, DiskOptions, Speed, Ssd, SsdOptions};
use ithaca_volume::{CommitError, Durability, Tx, TxError, TxOptions, Volume, VolumeOptions, VolumeSettings};

use super::Figure;
use super::chart::{Chart, Line, Scale};
use super::clients::{SEED, draw};
use super::load::Bench;
use crate::blocks::BLOCK;

/// Instances of the benchmark.
const INSTANCES: u64 = 64;
const BLOCKS_EACH: u64 = 3;
const MARK_BYTES: usize = 16;
/// What a transaction takes besides its reads and its commit: calls into the system and copies. Without it one whose blocks are in memory and that
/// meets a conflict would take no time at all.
const CALLS: Duration = Duration::from_micros(500);
/// Blocks of a write while the volume is filled.
const FILL_BLOCKS: u64 = 256;
const SEGMENT_BYTES: u64 = 16 << 20;
const SUPERBLOCKS: u64 = 64 << 10;
/// The SSD before the disks has room for one block of so many.
const SPACE_OF_CACHE: u64 = 4;
/// What of the tail stays in memory.
const TAIL_BYTES: usize = 8 << 20;
const WARM: Duration = Duration::from_millis(100);
/// A disk of half a volume is written over once in less.
const REST: Duration = Duration::from_secs(10);

/// The grain at which conflicts are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// Figure 5.
    Block,
    /// Figure 6: accesses are marked.
    Fragment,
}

/// What a figure is measured with.
#[derive(Clone, Copy)]
pub struct Extent {
    /// Blocks of the volume; a power of four.
    pub blocks: u64,
    /// How long each point is measured.
    pub span: Duration,
}

/// That of the figures.
pub const EXTENT: Extent = Extent { blocks: 1 << 18, span: Duration::from_millis(500) };

/// The drives of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Machine {
    Disks,
    Ssds,
}

impl Machine {
    fn name(self) -> &'static str {
        match self {
            Self::Disks => "three disks and an SSD as their cache",
            Self::Ssds => "two SSDs",
        }
    }

    /// Drives that the filled volume lies on. The log goes on on one more.
    fn body(self) -> u64 {
        match self {
            Self::Disks => 2,
            Self::Ssds => 1,
        }
    }
}

/// What was met with one size of the prefix.
#[derive(Clone, Copy, Debug)]
struct Point {
    blocks: u64,
    commits_per_s: f64,
    conflicts_per_s: f64,
}

impl Point {
    fn commit_rate(&self) -> f64 {
        self.commits_per_s / (self.commits_per_s + self.conflicts_per_s).max(1.0)
    }

    /// What is written by transactions that commit; as much is read by them.
    fn mb_per_s(&self) -> f64 {
        self.commits_per_s * (BLOCKS_EACH * BLOCK) as f64 / 1e6
    }
}

/// A machine with a volume each of whose blocks was written once, those of the prefix last.
async fn filled(env: Env, drives: Vec<Drive>, cache: Option<Drive>, blocks: u64, size_bytes: u64) -> Volume {
    let chain = ChainOptions {
        segment_bytes: SEGMENT_BYTES,
        capacity_bytes: size_bytes,
        tail_cache_bytes: TAIL_BYTES,
        body_cache: true,
        cleaning: Cleaning::Off,
        reserve_segments: 1,
        // As a log that has gone round: none of the segments that it comes to has to be written over first.
        segments_ready: (size_bytes / SEGMENT_BYTES) as usize,
        flights: 4,
        ..ChainOptions::default()
    };
    let settings = VolumeSettings { chain, ..VolumeSettings::default() };
    let options = VolumeOptions { settings, ..VolumeOptions::new(blocks) };
    let volume = Volume::create(&env, drives, options).await.expect("the drives are empty");
    if let Some(cache) = cache {
        let bytes = SUPERBLOCKS + blocks / SPACE_OF_CACHE * BLOCK * 16 / 15;
        let cache = CacheDrive::open(&env, cache, bytes.next_multiple_of(64 << 10)).await;
        volume.use_cache(&cache.expect("a blank drive"));
    }
    let data = Bytes::from(vec![7; (FILL_BLOCKS * BLOCK) as usize]);
    for first in (0..blocks / FILL_BLOCKS).rev() {
        let written = volume.write(first * FILL_BLOCKS, data.clone(), Durability::Acknowledged).await;
        written.expect("there is room");
    }
    volume.flush().await.expect("no fault meets the drives");
    // The segments that the log comes to next are written over, while nothing else goes on.
    env.sleep(REST).await;
    volume
}

fn measured(machine: Machine, grain: Grain, prefix: u64, extent: Extent) -> Point {
    let bench = Bench::new(SEED, Speed::Ssd);
    // Room for the blocks and the heads of their groups.
    let body_bytes = (extent.blocks * BLOCK * 17 / 16 / machine.body()).next_multiple_of(SEGMENT_BYTES);
    let size_bytes = SUPERBLOCKS + body_bytes;
    let disk = || Box::new(Disk::new(DiskOptions { zones: 1, ..DiskOptions::default() }));
    let ssd = || Box::new(Ssd::new(SsdOptions::default()));
    let drives = (0..=machine.body())
        .map(|at| match machine {
            Machine::Disks => bench.drive_of(&format!("disk-{at}"), size_bytes, disk()).1,
            Machine::Ssds => bench.drive_of(&format!("ssd-{at}"), size_bytes, ssd()).1,
        })
        .collect();
    let cache = (machine == Machine::Disks).then(|| bench.drive_of("cache", 64 << 10, ssd()).1);
    let volume = bench.block_on(filled(bench.env(), drives, cache, extent.blocks, size_bytes));
    let next = Rc::new(Cell::new(0));
    for client in 0..INSTANCES {
        let (env, volume, next) = (bench.env(), volume.clone(), Rc::clone(&next));
        bench.env().spawn(async move {
            loop {
                env.sleep(CALLS).await;
                let options = TxOptions { client, ..TxOptions::default() };
                let tx = volume.begin(options).expect("one of each client");
                let number = next.replace(next.get() + 1);
                change(&tx, number, prefix, grain).await.expect("no fault meets the drives");
                match tx.commit().await {
                    Ok(_) | Err(CommitError::Conflict { .. }) => {}
                    Err(error) => panic!("no fault meets the drives: {error}"),
                }
            }
        });
    }
    let from = bench.env().now() + WARM;
    bench.run_until(from);
    let before = volume.info().tx_counters;
    bench.run_until(from + extent.span);
    let after = volume.info().tx_counters;
    let per_s = |count: u64| count as f64 / extent.span.as_secs_f64();
    Point {
        blocks: prefix,
        commits_per_s: per_s(after.committed - before.committed),
        conflicts_per_s: per_s(after.conflicts - before.conflicts),
    }
}

/// What the transaction of a number does before it commits.
async fn change(tx: &Tx, number: u64, prefix: u64, grain: Grain) -> Result<(), TxError> {
    for each in 0..BLOCKS_EACH {
        let at = number * BLOCKS_EACH + each;
        let (block, fragment) = (draw(0, at, prefix), draw(1, at, BLOCK / MARK_BYTES as u64));
        let bytes = fragment as usize * MARK_BYTES..(fragment as usize + 1) * MARK_BYTES;
        let mut data = BytesMut::from(&tx.read(block, 1).await?[..]);
        if grain == Grain::Fragment {
            tx.mark_accessed(block, bytes.clone())?;
        }
        data[bytes.clone()].copy_from_slice(&[number as u8; MARK_BYTES]);
        tx.write(block, data.freeze())?;
        if grain == Grain::Fragment {
            tx.mark_accessed(block, bytes)?;
        }
    }
    Ok(())
}

/// The points of one machine, the smallest prefix first.
struct Curve {
    machine: Machine,
    points: Vec<Point>,
}

impl Curve {
    /// The point with the most goodput, by its place.
    fn peak(&self) -> (usize, Point) {
        let points = self.points.iter().copied().enumerate();
        points
            .max_by(|one, other| one.1.commits_per_s.total_cmp(&other.1.commits_per_s))
            .expect("there are points")
    }

    fn ends(&self) -> (Point, Point) {
        (self.points[0], self.points[self.points.len() - 1])
    }

    /// Goodput of a point, of the peak's.
    fn of_peak(&self, point: Point) -> f64 {
        point.commits_per_s / self.peak().1.commits_per_s
    }
}

/// Prefixes of 16 blocks, four times as many, and so on, to all of them.
fn prefixes(blocks: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(16), |prefix| Some(prefix * 4)).take_while(move |prefix| *prefix <= blocks)
}

/// Transactions and goodput of each machine, as the two axes of the paper's pictures.
fn charts(curves: &[Curve], blocks: u64) -> Vec<Chart> {
    type Value = fn(&Point) -> f64;
    let begun: Value = |point| (point.commits_per_s + point.conflicts_per_s) / 1e3;
    let committed: Value = |point| point.commits_per_s / 1e3;
    let both: Value = |point| 2.0 * point.mb_per_s();
    let chart = |curve: &Curve, y_label: &str, lines: &[(&str, Value)]| Chart {
        title: curve.machine.name().to_string(),
        x_label: "fraction of the address space".to_string(),
        y_label: y_label.to_string(),
        x: curve.points.iter().map(|point| format!("1/{}", blocks / point.blocks)).collect(),
        scale: Scale::Linear,
        lines: lines
            .iter()
            .map(|(name, value)| Line { name: name.to_string(), y: curve.points.iter().map(value).collect() })
            .collect(),
    };
    let of = |curve| {
        [
            chart(curve, "thousand transactions/s", &[("begun", begun), ("committed", committed)]),
            chart(curve, "MB/s", &[("read and written by those that commit", both)]),
        ]
    };
    curves.iter().flat_map(of).collect()
}

/// Measures with this grain and extent.
pub fn measure(grain: Grain, extent: Extent) -> Figure {
    // Each point is a world of its own; the machines share nothing.
    let started = [Machine::Disks, Machine::Ssds].map(|machine| {
        std::thread::spawn(move || {
            let points = prefixes(extent.blocks).map(|prefix| measured(machine, grain, prefix, extent));
            Curve { machine, points: points.collect() }
        })
    });
    let curves = started.map(|curve| curve.join().expect("a world that no fault meets ends"));
    let row = |curve: &Curve, point: &Point| {
        let Point { blocks, commits_per_s, conflicts_per_s } = *point;
        let begun = commits_per_s + conflicts_per_s;
        let (rate, mb) = (point.commit_rate(), point.mb_per_s());
        let name = curve.machine.name();
        format!(
            "{name},{blocks},1/{},{begun:.0},{commits_per_s:.0},{rate:.4},{mb:.1}",
            extent.blocks / blocks
        )
    };
    let rows = curves.iter().flat_map(|curve| curve.points.iter().map(move |point| row(curve, point)));
    let (name, claim, expected) = match grain {
        Grain::Block => (
            "isotope-5",
            "without marks, transactions that meet on few blocks are refused, cheaply; with little contention the drives are the limit",
            "Isotope, figure 5: little goodput on the left for conflicts, though many transactions are begun; on the right the commit rate is high, and on disks \
             goodput falls where the cache does not hold the blocks; between them the disk's write rate (120 MB/s)",
        ),
        Grain::Fragment => (
            "isotope-6",
            "with marks of 16 bytes goodput is high and steady however few blocks are accessed",
            "Isotope, figure 6: nearly all commit as long as there are fragments enough; goodput on the left as in the middle; on disks it falls on the right where the cache does not hold the \
             blocks",
        ),
    };
    Figure {
        name,
        claim: claim.to_string(),
        expected: expected.to_string(),
        setting: format!(
            "A volume of {} blocks of 4 KiB, each written before; {INSTANCES} transactions under way, each reads three random blocks of a prefix, changes 16 bytes \
             of each and writes them back, durable; one in conflict is not tried again. Three disks of 10,000 rpm, one zone of 120 MB/s, with an SSD that holds a \
             block of {SPACE_OF_CACHE} (the paper: 32 GB before three disks of 600 GB), {} MiB of memory for what was written last; or two SSDs. {} us a transaction for \
             calls. {} ms a point. Nothing is cleaned meanwhile; in the paper the body is.",
            extent.blocks,
            TAIL_BYTES >> 20,
            CALLS.as_micros(),
            extent.span.as_millis()
        ),
        columns: "drives,blocks,fraction,begun/s,committed/s,commit rate,written MB/s",
        rows: rows.collect(),
        charts: charts(&curves, extent.blocks),
        checks: curves.iter().flat_map(|curve| checks(grain, curve)).collect(),
    }
}

fn checks(grain: Grain, curve: &Curve) -> Vec<(String, bool)> {
    let ((first, last), (at, peak)) = (curve.ends(), curve.peak());
    let name = curve.machine.name();
    let (left, right) = (curve.of_peak(first), curve.of_peak(last));
    let mut checks = match grain {
        Grain::Block => {
            let (few, most) = (first.commit_rate(), last.commit_rate());
            let begun = |point: Point| point.commits_per_s + point.conflicts_per_s;
            // A disk writes the few transactions of a group that do not conflict so much sooner than a full one that contention costs it less
            // than the paper's; docs/drives.md.
            let most_left = if curve.machine == Machine::Disks { 0.9 } else { 0.5 };
            vec![
                (format!("{name}: {few:.2} commit on the left, at most 0.5"), few <= 0.5),
                (format!("{name}: {most:.3} commit on the right, at least 0.99"), most >= 0.99),
                (
                    format!("{name}: {left:.2} of the best goodput on the left, at most {most_left}"),
                    left <= most_left,
                ),
                (format!("{name}: more are begun on the left than at the best"), begun(first) > begun(peak)),
            ]
        }
        Grain::Fragment => {
            // On fewer blocks fragments themselves become scarce: 4096 of them, of which 192 are being written.
            let more = curve.points.iter().filter(|point| point.blocks >= INSTANCES);
            let least = more.map(Point::commit_rate).fold(1.0, f64::min);
            vec![
                (
                    format!("{name}: {least:.3} commit on {INSTANCES} blocks or more, at least 0.95"),
                    least >= 0.95,
                ),
                (format!("{name}: {left:.2} of the best goodput on the left, at least 0.8"), left >= 0.8),
            ]
        }
    };
    match curve.machine {
        Machine::Disks => {
            checks.push((
                format!("{name}: {right:.2} of the best goodput on the right, at most 0.2"),
                right <= 0.2,
            ));
            let mb = peak.mb_per_s();
            checks.push((format!("{name}: {mb:.0} MB/s at the best, at least 60"), mb >= 60.0));
            checks.push((format!("{name}: the best is not on the right"), at + 1 < curve.points.len()));
        }
        Machine::Ssds => checks.push((
            format!("{name}: {right:.2} of the best goodput on the right, at least 0.7"),
            right >= 0.7,
        )),
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Extent = Extent { blocks: 1 << 16, span: Duration::from_millis(100) };

    #[test]
    fn contention_by_block_takes_goodput_where_few_blocks_are_accessed() {
        let figure = measure(Grain::Block, SMALL);
        figure.print();
        assert!(figure.judge(), "see the lines that say FAIL");
    }

    #[test]
    fn marks_keep_goodput_high_however_few_blocks_are_accessed() {
        let figure = measure(Grain::Fragment, SMALL);
        figure.print();
        assert!(figure.judge(), "see the lines that say FAIL");
    }
}
