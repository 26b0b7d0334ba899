//! A disk that takes writes for an SSD: Yogurt, figure 3. What was written of late lies in a log on the disk, what was there before on
//! the SSD, and who may leave out a few updates need not wait for the disk.
//!
//! ```text
//!   write ─► log on the disk ─── so many bytes are there ─► read in order, newest of each block ─► SSD, in place
//!   read  ─► the SSD, if at most `bound` updates of the block are in the log; else the log
//! ```

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_env::drive::{Drive, Durability};
use ithaca_env::sim::Speed;
use ithaca_env::task::gather;

use super::Figure;
use super::clients::{CLIENTS, READS_PERCENT, draw, read_latency_us};
use super::emulated::{Emulated, Lines, Point, SEGMENT_BYTES, SUPERBLOCKS};
use crate::blocks::{BLOCK, Blocks};

/// The address space is so many times what is written before it goes to the SSD: 4 GB, and 128 MB to 1 GB.
const SPACE_OF_TRIGGER: [u64; 4] = [32, 16, 8, 4];
const BOUND_MAX: usize = 7;
/// The log is read by requests of so many bytes.
const READ_BYTES: u64 = 1 << 20;
/// Places of the log that are no further apart are read together.
const GAP_BYTES: u64 = 64 << 10;

/// What a figure is measured with.
#[derive(Clone, Copy)]
pub struct Extent {
    /// Blocks of the address space.
    pub blocks: u64,
    /// How often the log goes to the SSD at each point, at least.
    pub rounds: u64,
    /// Requests for each point, at least.
    pub requests: u64,
}

/// That of the figure, a 64th of the paper's.
pub const EXTENT: Extent = Extent { blocks: 1 << 14, rounds: 2, requests: 20_000 };

struct Store {
    env: Env,
    log: Blocks,
    /// The drive that the log is on, to be read in order.
    disk: Drive,
    ssd: Drive,
    trigger_blocks: u64,
    /// Updates of each block in the log that are not on their way to the SSD, and that are.
    fresh: RefCell<BTreeMap<u64, u64>>,
    moving: RefCell<BTreeMap<u64, u64>>,
    written: Cell<u64>,
    disk_reads: Cell<u64>,
    reads: Cell<u64>,
}

impl Store {
    /// Updates of a block that the SSD lacks.
    fn behind(&self, block: u64) -> u64 {
        let of = |map: &RefCell<BTreeMap<u64, u64>>| map.borrow().get(&block).copied().unwrap_or(0);
        of(&self.fresh) + of(&self.moving)
    }

    /// Whether it is a read.
    async fn request(self: Rc<Self>, number: u64, bound: usize) -> bool {
        let block = draw(0, number, self.blocks());
        if draw(1, number, 100) < READS_PERCENT {
            self.reads.set(self.reads.get() + 1);
            if self.behind(block) <= bound as u64 {
                self.ssd.read(block * BLOCK, BLOCK as usize).await.expect("no fault meets it");
            } else {
                self.disk_reads.set(self.disk_reads.get() + 1);
                self.log.read(block).await;
            }
            return true;
        }
        self.log.write(block, 1).await;
        *self.fresh.borrow_mut().entry(block).or_insert(0) += 1;
        self.written.set(self.written.get() + 1);
        if self.written.get() >= self.trigger_blocks && self.moving.borrow().is_empty() {
            self.written.set(0);
            self.moving.replace(self.fresh.take());
            let store = Rc::clone(&self);
            self.env.spawn(async move { store.migrate().await });
        }
        false
    }

    fn blocks(&self) -> u64 {
        self.ssd.size_bytes() / BLOCK
    }

    /// Brings the newest of each block that is in the log to the SSD.
    async fn migrate(&self) {
        let blocks: Vec<u64> = self.moving.borrow().keys().copied().collect();
        let mut places: Vec<u64> = blocks
            .iter()
            .map(|&block| self.log.place(block).expect("it was written"))
            .map(|place| SUPERBLOCKS + u64::from(place.segment) * SEGMENT_BYTES + u64::from(place.offset))
            .collect();
        places.sort_unstable();
        let (mut at, mut next) = (0, 0);
        while next < places.len() {
            let first = places[at];
            while next < places.len()
                && places[next] + BLOCK - first <= READ_BYTES
                && (next == at || places[next] - places[next - 1] <= GAP_BYTES)
            {
                next += 1;
            }
            let bytes = (places[next - 1] + BLOCK - first) as usize;
            self.disk.read(first, bytes).await.expect("no fault meets it");
            at = next;
        }
        let data = Bytes::from(vec![7; BLOCK as usize]);
        for some in blocks.chunks(CLIENTS as usize) {
            let write = |&block| {
                let written = self.ssd.write(block * BLOCK, data.clone(), Durability::Volatile);
                async move {
                    written.await.expect("no fault meets it");
                    self.moving.borrow_mut().remove(&block);
                }
            };
            gather(some.iter().map(write).collect(), |_| false).await;
        }
        self.ssd.sync().await.expect("no fault meets it");
    }
}

fn line(space_of_trigger: u64, extent: Extent) -> Vec<Point> {
    let trigger_blocks = extent.blocks / space_of_trigger;
    let requests = extent.requests.max(extent.rounds * trigger_blocks * 100 / (100 - READS_PERCENT));
    let writes = (BOUND_MAX as u64 + 2) * requests * (100 - READS_PERCENT) / 100;
    // With a head for each write if it comes alone.
    let world = Emulated::new(Speed::Disk, 3 * writes * BLOCK, 0);
    let (_, ssd) = world.bench.drive_of("ssd", extent.blocks * BLOCK, Speed::Ssd.model());
    let filled = ssd.clone();
    world.bench.block_on(async move {
        for at in (0..filled.size_bytes()).step_by(READ_BYTES as usize) {
            let len = READ_BYTES.min(filled.size_bytes() - at) as usize;
            let written = filled.write(at, Bytes::from(vec![1; len]), Durability::Volatile).await;
            written.expect("no fault meets it");
        }
        filled.sync().await.expect("no fault meets it");
    });
    let store = Rc::new(Store {
        env: world.bench.env(),
        log: world.blocks.clone(),
        disk: world.drive.clone(),
        ssd,
        trigger_blocks,
        fresh: RefCell::default(),
        moving: RefCell::default(),
        written: Cell::new(0),
        disk_reads: Cell::new(0),
        reads: Cell::new(0),
    });
    let mut numbers = 0..requests;
    let mut measure = |bound: usize| {
        store.disk_reads.set(0);
        store.reads.set(0);
        let asked = Rc::clone(&store);
        let read_us = read_latency_us(&world.bench, numbers.clone(), move |number| {
            Rc::clone(&asked).request(number, bound)
        });
        numbers = numbers.end..numbers.end + requests;
        Point { read_us, percent: 100.0 * store.disk_reads.get() as f64 / store.reads.get() as f64 }
    };
    measure(0);
    (0..=BOUND_MAX).map(measure).collect()
}

/// Measures with this extent.
pub fn measure(extent: Extent) -> Figure {
    let mib = |space: u64| 4096 / space;
    let lines = Lines {
        names: SPACE_OF_TRIGGER.map(|space| format!("{} MB", mib(space))).to_vec(),
        points: SPACE_OF_TRIGGER.map(|space| line(space, extent)).to_vec(),
    };
    Figure {
        name: "griffin",
        claim: "where a disk takes the writes for an SSD, whoever may leave out a few updates hardly ever waits for the disk".to_string(),
        expected: "Yogurt, figure 3: stale by one update about 1/8 of the latency, by four about 1/20; no read of the disk when five may \
                   be left out"
            .to_string(),
        setting: format!(
            "{} blocks of 4 KiB (the paper: 4 GB) on a SATA SSD, a log of ours on a disk of 10,000 rpm before it; names of lines are scaled up to 4 GB; \
             {CLIENTS} clients, 9 reads to 1 write, any block alike; the log goes to the SSD {} times a point or more.",
            extent.blocks, extent.rounds
        ),
        columns: "written before it goes to the SSD,bound,read us,of bound 0,reads of the disk %",
        rows: lines.rows(),
        charts: lines.charts("reads of the disk"),
        checks: checks(&lines),
    }
}

fn checks(lines: &Lines) -> Vec<(String, bool)> {
    let last = SPACE_OF_TRIGGER.len() - 1;
    let (one, four) = (lines.ratio(last, 1), lines.ratio(last, 4));
    let mut checks = vec![
        (
            format!("1024 MB, stale by one update: {one:.3} of the latency, about 1/8"),
            (0.08..=0.18).contains(&one),
        ),
        (format!("1024 MB, stale by four: {four:.3}, about 1/20"), (0.03..=0.08).contains(&four)),
    ];
    for (name, points) in lines.names.iter().zip(&lines.points) {
        let none = points[5..].iter().all(|point| point.percent < 0.01);
        checks.push((format!("{name}: no read of the disk with five updates left out"), none));
        let falls = points[1].percent < points[0].percent / 4.0;
        checks.push((format!("{name}: one update left out saves three quarters of the disk's reads"), falls));
    }
    let strong: Vec<f64> = lines.points.iter().map(|points| points[0].read_us).collect();
    let grows = strong.windows(2).all(|pair| pair[1] > pair[0]);
    checks.push(("the more is kept on the disk the slower are reads of the newest".to_string(), grows));
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaving_out_one_update_saves_most_reads_of_the_disk() {
        let figure = measure(EXTENT);
        figure.print();
        assert!(figure.judge(), "see the lines that say FAIL");
    }
}
