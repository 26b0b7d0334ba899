//! Blocks over a chain of simulated disks, or over an array of as many disks that looks like one drive: the same code on
//! either.
//!
//! The disks are those of docs/drives.md, but of one zone, so that 120 MB/s are 120 MB/s wherever the log stands: on a disk
//! of a real size a measurement like these stays within one zone too.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{Chain, ChainId, ChainOptions, Cleaning, Drives, Identity, Label, Owner};
use ithaca_env::drive::Drive;
use ithaca_env::sim::{Array, ArrayOptions, Disk, DiskOptions, DriveId, DriveStats, Speed, SpeedModel};

use super::load::Bench;
use crate::blocks::{BLOCK, Blocks, Map};

/// Most blocks of one write.
const WRITE_BLOCKS_MAX: u64 = 4;
const SUPERBLOCKS: u64 = 64 << 10;
const SEED: u64 = 1;

/// How disks are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// A chain whose links are disks, or mirrors of them.
    Chain,
    /// A chain on one drive, which is an array of stripes, or of stripes over mirrors.
    Array,
}

/// What a log is made of.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// How the disks are put together.
    pub layout: Layout,
    /// Links of the chain or stripes of the array.
    pub width: usize,
    /// Disks that hold the same.
    pub sides: usize,
    /// Segments that a disk holds.
    pub disk_segments: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
}

fn disk() -> Box<dyn SpeedModel> {
    Box::new(Disk::new(DiskOptions { zones: 1, ..DiskOptions::default() }))
}

/// Disks that look like one drive: so many stripes of so many sides.
pub fn array_of_disks(stripes: usize, sides: usize) -> Box<dyn SpeedModel> {
    Box::new(Array::new(ArrayOptions { sides, ..ArrayOptions::stripe(stripes) }, disk))
}

impl Layout {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chain => "chain",
            Self::Array => "log on RAID-0",
        }
    }
}

impl Shape {
    fn drives(&self, bench: &Bench) -> (Vec<DriveId>, Vec<Vec<Drive>>) {
        if self.layout == Layout::Array {
            let speed = array_of_disks(self.width, self.sides);
            let (id, drive) = bench.drive_of("array", self.drive_bytes(), speed);
            return (vec![id], vec![vec![drive]]);
        }
        let mut ids = Vec::new();
        let mut side = |link, side| {
            let (id, drive) = bench.drive_of(&format!("disk-{link}-{side}"), self.drive_bytes(), disk());
            ids.push(id);
            drive
        };
        let sides = 0..self.sides;
        let links = (0..self.width).map(|link| sides.clone().map(|number| side(link, number)).collect());
        let links = links.collect();
        (ids, links)
    }

    /// What a drive of the chain holds.
    fn drive_bytes(&self) -> u64 {
        let disks = if self.layout == Layout::Array { self.width as u64 } else { 1 };
        SUPERBLOCKS + disks * self.disk_segments * self.segment_bytes
    }

    /// All of the disks but one, and what is begun on the last.
    fn segments_to_fill(&self) -> u64 {
        (self.width as u64 - 1) * self.disk_segments + 1
    }
}

/// A world with a log of blocks in it.
pub struct World {
    /// The world.
    pub bench: Bench,
    /// The log.
    pub blocks: Blocks,
    /// The disks, or the array.
    drives: Vec<DriveId>,
}

impl World {
    /// A log whose tail has just come to the last disk, or, on an array, is as far; every block is there, in the order of the
    /// addresses, and nothing is under way. `tune` changes how the chain is set up.
    pub fn filled(shape: Shape, tune: impl FnOnce(&mut ChainOptions)) -> Self {
        let bench = Bench::new(SEED, Speed::Disk);
        let (drives, links) = shape.drives(&bench);
        let mut options = ChainOptions {
            capacity_bytes: shape.drive_bytes(),
            // As a log that has gone round: none of its segments has to be written over first.
            segments_ready: (shape.width as u64 * shape.disk_segments) as usize,
            segment_bytes: shape.segment_bytes,
            reserve_segments: 1,
            cleaning: Cleaning::Off,
            ..ChainOptions::default()
        };
        tune(&mut options);
        let identity = Identity { id: ChainId([7; 16]), label: Label::new("figure").expect("a short label") };
        let (env, map, links) = (bench.env(), Rc::new(Map::default()), Drives::from(links));
        let owner = Rc::clone(&map) as Rc<dyn Owner>;
        let create = async move { Chain::create_owned(&env, links, identity, options, owner).await };
        let chain = bench.block_on(create).expect("the drives are empty");
        let blocks = Blocks::new(chain, map, Bytes::from(vec![7; (WRITE_BLOCKS_MAX * BLOCK) as usize]));
        let (filled, env) = (blocks.clone(), bench.env());
        bench.block_on(async move {
            let used = || {
                let stats = filled.chain.stats();
                stats.segments_open + stats.segments_closed
            };
            filled.fill(|_| used() < shape.segments_to_fill()).await;
            // The last disk's segments are written over once, while nothing else goes on.
            while filled.chain.stats().segments_raw > 0 {
                filled.write(0, 1).await;
                env.sleep(Duration::from_millis(100)).await;
            }
        });
        Self { bench, blocks, drives }
    }

    /// Cleans the oldest segments, while nothing else goes on.
    pub fn clean(&self, segments: usize) {
        let chain = self.blocks.chain.clone();
        let cleaned = self.bench.block_on(async move { chain.clean(segments).await });
        assert_eq!(cleaned.ok(), Some(segments), "a chain on drives that no fault meets is cleaned");
    }

    /// What each drive did so far.
    pub fn stats(&self) -> Vec<DriveStats> {
        self.drives.iter().map(|&drive| self.bench.stats(drive)).collect()
    }

    /// Movements of all arms so far.
    pub fn seeks(&self) -> u64 {
        self.stats().iter().map(|stats| stats.media.seeks).sum()
    }

    /// Bytes that the cleaner has written again so far.
    pub fn moved_bytes(&self) -> u64 {
        self.blocks.chain.stats().counters.moved_bytes
    }
}
