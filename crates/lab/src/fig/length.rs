//! How many disks a chain needs: Gecko, figure 10. Reads and writes of one load share their requests; on a chain the writes
//! have a disk for themselves and the reads the others, on an array all disks do both.

use std::time::Duration;

use ithaca_chain::ChainOptions;

use super::Figure;
use super::blocks::{Layout, Shape, World};
use super::chart::{Chart, Line, Scale};
use super::mix::{Mix, SLOT, mean};

/// Eight traces with a queue of 24 requests each, shared by reads and writes, as in the paper.
const CLIENTS: u64 = 8 * 24;
/// What of the tail stays in memory: it holds the blocks written not long ago.
const CACHE_BYTES: usize = 32 << 20;
const WARM: Duration = Duration::from_millis(500);

/// The load of the paper's figures 9 and 10 with so many hits of the cache: half reads, half writes, "as fast as possible".
pub const fn traces(hits_percent: u64) -> Mix {
    Mix { clients: CLIENTS, reads_percent: 50, hits_percent, write_blocks: 1 }
}

/// The paper's highly cacheable combination: of its reads of the tail over 95 % hit the cache (figure 6).
pub const HIGHLY_CACHEABLE: u64 = 95;
/// The less cacheable one: over 86 %.
pub const LESS_CACHEABLE: u64 = 86;

/// Sets a chain up for this load: with so many clients, groups with which a disk comes to its speed.
pub fn tune(options: &mut ChainOptions) {
    (options.flights, options.group_max_bytes) = (4, 256 << 10);
    options.tail_cache_bytes = CACHE_BYTES;
}

/// What the load got of some drives, in MB/s.
#[derive(Clone, Copy, Debug)]
pub struct Got {
    /// Reads, those of the cache too.
    pub reads: f64,
    /// Writes.
    pub writes: f64,
    /// Movements of all arms each second.
    pub seeks_per_s: f64,
}

impl Got {
    /// Of `shape`, in `span` after a while.
    pub fn of(shape: Shape, mix: Mix, span: Duration) -> Self {
        let world = World::filled(shape, tune);
        let mut running = mix.start(&world);
        running.run(WARM);
        let seeks = world.seeks();
        running.run(span);
        let seeks_per_s = (world.seeks() - seeks) as f64 / span.as_secs_f64();
        let rates = running.rates().from((WARM.as_nanos() / SLOT.as_nanos()) as usize);
        Self { reads: mean(&rates.reads), writes: mean(&rates.writes), seeks_per_s }
    }

    fn row(&self) -> String {
        format!("{:.1},{:.1},{:.0}", self.reads, self.writes, self.seeks_per_s)
    }
}

/// The same load on the same number of disks.
struct Point {
    disks: usize,
    chain: Got,
    array: Got,
}

impl Point {
    fn new(disks: usize, disk_segments: u64, span: Duration) -> Self {
        let of = |layout| {
            let shape = Shape { layout, width: disks, sides: 1, disk_segments, segment_bytes: 64 << 20 };
            Got::of(shape, traces(HIGHLY_CACHEABLE), span)
        };
        Self { disks, chain: of(Layout::Chain), array: of(Layout::Array) }
    }
}

/// Measures chains and arrays of so many disks each, for `span` of virtual time.
pub fn measure(disks: &[usize], disk_segments: u64, span: Duration) -> Figure {
    let points: Vec<Point> = disks.iter().map(|&disks| Point::new(disks, disk_segments, span)).collect();
    let chart = |title: &str, value: fn(&Got) -> f64| Chart {
        title: title.to_string(),
        x_label: "disks".to_string(),
        y_label: "MB/s".to_string(),
        x: disks.iter().map(usize::to_string).collect(),
        scale: Scale::Linear,
        lines: vec![
            Line { name: "chain".to_string(), y: points.iter().map(|point| value(&point.chain)).collect() },
            Line {
                name: "log on RAID-0".to_string(),
                y: points.iter().map(|point| value(&point.array)).collect(),
            },
        ],
    };
    Figure {
        name: "length",
        claim: "a chain beats the same log over as many striped disks, for reads and for writes: a disk without contention is worth more \
                than many with it"
            .to_string(),
        expected: "Gecko, figure 10: a single chain outperforms log-structured RAID-0 for both reads and writes, even on 7 \
                   disks; the text gives no numbers"
            .to_string(),
        setting: format!(
            "Disks of {} MiB, one zone of 120 MB/s, all but one of them full; no cleaning. {CLIENTS} clients with a request each, half \
             reads and half writes of 4 KiB; of the reads {HIGHLY_CACHEABLE} % are of the last 1024 blocks written, which are in \
             memory (the paper: 2 GB of RAM and 32 GB of SSD for a tail of 512 GB), the others of any block. {} ms each. Misses: on two \
             disks, of which one is the body, the array is a little ahead, because both its arms read; and from four disks on a longer chain gives \
             no more, because the tail's arm is called away for blocks that are no longer in memory.",
            disk_segments << 6,
            span.as_millis()
        ),
        columns: "disks,chain reads MB/s,chain writes MB/s,seeks/s,RAID-0 reads MB/s,RAID-0 writes MB/s,seeks/s",
        rows: points.iter().map(|it| format!("{},{},{}", it.disks, it.chain.row(), it.array.row())).collect(),
        charts: vec![chart("reads", |got| got.reads), chart("writes", |got| got.writes)],
        checks: checks(&points),
    }
}

fn checks(points: &[Point]) -> Vec<(String, bool)> {
    let beats = |point: &Point| {
        let factors = [point.chain.reads / point.array.reads, point.chain.writes / point.array.writes];
        let [reads, writes] = factors;
        let what = format!(
            "{} disks: {reads:.2} times the reads and {writes:.2} times the writes of RAID-0",
            point.disks
        );
        // The body of two disks is one arm, which has all reads that miss to itself; the array has two.
        let least = if point.disks == 2 { 0.8 } else { 1.2 };
        (format!("{what}, at least {least}"), factors.iter().all(|&factor| factor >= least))
    };
    let mut checks: Vec<(String, bool)> = points.iter().map(beats).collect();
    if let [first, .., last] = points {
        let grows = last.chain.reads > first.chain.reads;
        checks.push(("more disks in the body give more reads".to_string(), grows));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_beats_a_stripe_of_as_many_disks() {
        let figure = measure(&[3, 5], 4, Duration::from_millis(800));
        figure.print();
        assert!(figure.judge(), "see the lines that say FAIL");
    }
}
