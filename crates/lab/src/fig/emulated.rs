//! What the emulations of Yogurt's section 2 share: a log of blocks on one simulated drive with a cache of what was read, and one
//! picture for all of them.

use std::rc::Rc;

use bytes::Bytes;
use ithaca_chain::{Chain, ChainId, ChainOptions, Cleaning, Identity, Label, Owner};
use ithaca_env::drive::Drive;
use ithaca_env::sim::Speed;

use super::chart::{Chart, Line, Scale};
use super::clients::SEED;
use super::load::Bench;
use crate::blocks::{BLOCK, Blocks, Map};

/// Bytes of a segment.
pub const SEGMENT_BYTES: u64 = 8 << 20;
/// Bytes before the first segment.
pub const SUPERBLOCKS: u64 = 64 << 10;
/// Blocks that are appended before somebody waits, while a log is warmed up.
const AHEAD: u64 = 256;

/// A world with a log in it.
pub struct Emulated {
    /// The world.
    pub bench: Bench,
    /// The log. Its blocks are whatever the emulation takes for one.
    pub blocks: Blocks,
    /// The drive below it.
    pub drive: Drive,
}

impl Emulated {
    /// An empty log with room for so many bytes, of which so many are kept in memory when they are read; what is written is not.
    pub fn new(speed: Speed, bytes: u64, read_cache_bytes: usize) -> Self {
        let bench = Bench::new(SEED, speed);
        let size_bytes = SUPERBLOCKS + (bytes / SEGMENT_BYTES + 8) * SEGMENT_BYTES;
        let (_, drive) = bench.drive("log", size_bytes);
        let options = ChainOptions {
            segment_bytes: SEGMENT_BYTES,
            capacity_bytes: size_bytes,
            tail_cache_bytes: 0,
            read_cache_bytes,
            reserve_segments: 1,
            cleaning: Cleaning::Off,
            ..ChainOptions::default()
        };
        let identity = Identity { id: ChainId([7; 16]), label: Label::new("figure").expect("a short label") };
        let (env, map, below) = (bench.env(), Rc::new(Map::default()), drive.clone());
        let owner = Rc::clone(&map) as Rc<dyn Owner>;
        let create = async move { Chain::create_owned(&env, below, identity, options, owner).await };
        let chain = bench.block_on(create).expect("the drive is empty");
        let blocks = Blocks::new(chain, map, Bytes::from(vec![7; BLOCK as usize]));
        Self { bench, blocks, drive }
    }

    /// Appends these blocks one after the other, many under way at a time.
    pub fn append(&self, all: impl Iterator<Item = u64> + 'static) {
        let blocks = self.blocks.clone();
        self.bench.block_on(async move {
            for (count, block) in all.enumerate() {
                let ticket = blocks.append([block], 1).expect("there is room for all of them");
                if (count as u64).is_multiple_of(AHEAD) {
                    blocks.chain.wait(ticket).await.expect("a drive that no fault meets writes");
                }
            }
            let durable = blocks.chain.append(Default::default()).expect("there is room");
            blocks.chain.wait(durable).await.expect("a drive that no fault meets writes");
        });
    }
}

/// What reads met with a parameter and a bound.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// Mean latency, in microseconds.
    pub read_us: f64,
    /// Of the reads so many in a hundred; of what says the figure.
    pub percent: f64,
}

/// One line for each parameter, over the bounds from 0 on.
pub struct Lines {
    /// Their names.
    pub names: Vec<String>,
    /// Of each the points.
    pub points: Vec<Vec<Point>>,
}

impl Lines {
    /// Rows of a table: parameter, bound, latency, of that with bound 0, percent.
    pub fn rows(&self) -> Vec<String> {
        let all = self.names.iter().zip(&self.points);
        let row = |(name, points): (&String, &Vec<Point>)| -> Vec<String> {
            let strong = points[0].read_us;
            let row = |(bound, point): (usize, &Point)| {
                let Point { read_us, percent } = point;
                format!("{name},{bound},{read_us:.0},{:.3},{percent:.2}", read_us / strong)
            };
            points.iter().enumerate().map(row).collect()
        };
        all.flat_map(row).collect()
    }

    /// The two pictures of the paper.
    pub fn charts(&self, percent_of: &str) -> Vec<Chart> {
        let chart = |title: &str, y_label: &str, value: fn(&Point) -> f64| {
            let bounds = self.points.iter().map(Vec::len).max().unwrap_or(0);
            let line = |(name, points): (&String, &Vec<Point>)| {
                // A line that ends before goes on as it ends.
                let last = points.last().copied().unwrap_or(Point { read_us: 0.0, percent: 0.0 });
                let y = (0..bounds).map(|bound| value(points.get(bound).unwrap_or(&last))).collect();
                Line { name: name.clone(), y }
            };
            Chart {
                title: title.to_string(),
                x_label: "updates that may be left out".to_string(),
                y_label: y_label.to_string(),
                x: (0..bounds).map(|bound| bound.to_string()).collect(),
                scale: Scale::Linear,
                lines: self.names.iter().zip(&self.points).map(line).collect(),
            }
        };
        vec![
            chart("reads", "us on average", |point| point.read_us),
            chart(percent_of, "% of reads", |point| point.percent),
        ]
    }

    /// The latency with a bound, against that without stale data.
    pub fn ratio(&self, line: usize, bound: usize) -> f64 {
        self.points[line][bound].read_us / self.points[line][0].read_us
    }
}
