//! Blocks over a chain: an address space of 4 KiB blocks, written anywhere, appended to a log. The log lies on a chain of
//! disks, or on an array of as many disks that looks like one drive: the same code on either.
//!
//! The disks are those of docs/drives.md, but of one zone, so that 120 MB/s are 120 MB/s wherever the log stands: on a disk
//! of a real size a measurement like these stays within one zone too.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{
    Batch, Chain, ChainId, ChainOptions, Cleaning, Drives, Identity, Label, Owner, Place, PlaceError, Placed,
    Run, RunKind, Table, Ticket,
};
use ithaca_env::drive::Drive;
use ithaca_env::sim::{Array, ArrayOptions, Disk, DiskOptions, DriveId, DriveStats, Speed, SpeedModel};

use super::load::Bench;

/// Bytes of a block.
pub const BLOCK: u64 = 4 << 10;
/// Most blocks of one write.
pub const WRITE_BLOCKS_MAX: u64 = 4;
/// Blocks of one append while the log is filled.
const FILL_BLOCKS: u64 = 256;
/// Appends under way while the log is filled.
const FILL_DEPTH: usize = 4;
const SUPERBLOCKS: u64 = 64 << 10;
/// Blocks that are remembered as written not long ago.
const RECENT: usize = 4096;
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
        let blocks = Blocks::new(chain, map);
        let (filled, env) = (blocks.clone(), bench.env());
        bench.block_on(async move {
            filled.fill(shape.segments_to_fill()).await;
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

/// Where the newest version of each block lies, in memory: the owner of the chain.
#[derive(Default)]
struct Map {
    newest: RefCell<Vec<Option<(u64, Place)>>>,
}

impl Map {
    /// Puts a record in the place of the one that there is, if `may` it. Returns that one's place.
    fn replace(
        &self,
        key: u64,
        with: (u64, Place),
        may: impl FnOnce(&(u64, Place)) -> bool,
    ) -> Result<Option<Place>, ()> {
        let mut newest = self.newest.borrow_mut();
        let at = key as usize;
        if newest.len() <= at {
            newest.resize(at + 1, None);
        }
        match newest[at] {
            Some(old) if !may(&old) => Err(()),
            _ => Ok(newest[at].replace(with).map(|(_, place)| place)),
        }
    }
}

impl Owner for Map {
    fn placed(&self, record: Placed) -> Option<Place> {
        let is_newer = |old: &(u64, Place)| record.version > old.0;
        self.replace(record.key, (record.version, record.place), is_newer).unwrap_or(Some(record.place))
    }

    fn is_live(&self, record: Placed) -> bool {
        let newest = self.newest.borrow();
        newest.get(record.key as usize).copied().flatten() == Some((record.version, record.place))
    }

    fn moved(&self, record: Placed, to: Place) -> bool {
        self.is_live(record) && self.replace(record.key, (record.version, to), |_| true).is_ok()
    }

    fn dropped(&self, _record: Placed) -> bool {
        false
    }
}

/// Blocks by their addresses.
#[derive(Clone)]
pub struct Blocks {
    /// The log.
    pub chain: Chain,
    inner: Rc<Inner>,
}

struct Inner {
    map: Rc<Map>,
    next_version: Cell<u64>,
    /// Blocks in the order in which they were written last.
    recent: RefCell<VecDeque<u64>>,
    data: Bytes,
    table: Table,
}

impl Blocks {
    fn new(chain: Chain, map: Rc<Map>) -> Self {
        let data = Bytes::from(vec![7; (WRITE_BLOCKS_MAX * BLOCK) as usize]);
        let table = Table::of_payloads(data.chunks(BLOCK as usize));
        let inner = Inner { map, next_version: Cell::new(1), recent: RefCell::default(), data, table };
        Self { chain, inner: Rc::new(inner) }
    }

    /// Blocks of the address space.
    pub fn count(&self) -> u64 {
        self.inner.map.newest.borrow().len() as u64
    }

    /// The block that was written `ago` writes before the last one, as far back as is remembered.
    pub fn recent(&self, ago: u64) -> Option<u64> {
        let recent = self.inner.recent.borrow();
        let last = recent.len().checked_sub(1)?;
        recent.get(last - last.min(ago as usize)).copied()
    }

    /// Appends runs of `count` blocks, which begin at `blocks`.
    fn append(&self, blocks: impl IntoIterator<Item = u64>, count: u64) -> Ticket {
        let inner = &self.inner;
        let version = inner.next_version.replace(inner.next_version.get() + 1);
        let run = |first_key| Run {
            first_key,
            version,
            kind: RunKind::Data,
            meta: Bytes::new(),
            table: inner.table.slice(0..count as usize),
            data: inner.data.slice(..(count * BLOCK) as usize),
        };
        let runs = blocks.into_iter().map(run).collect();
        let ticket = self.chain.append(Batch { runs, ..Batch::default() });
        ticket.expect("the log has room for the whole measurement")
    }

    async fn wait(&self, ticket: Ticket) {
        self.chain.wait(ticket).await.expect("a simulated drive that no fault meets writes");
    }

    /// Writes `count` blocks from `block` on, up to [`WRITE_BLOCKS_MAX`]; done when they are on stable storage.
    pub async fn write(&self, block: u64, count: u64) {
        let ticket = self.append([block], count);
        self.wait(ticket).await;
        let mut recent = self.inner.recent.borrow_mut();
        recent.push_back(block);
        if recent.len() > RECENT {
            recent.pop_front();
        }
    }

    /// Reads a block; nothing if it is trimmed.
    pub async fn read(&self, block: u64) {
        loop {
            let newest = self.inner.map.newest.borrow()[block as usize];
            let Some((_, place)) = newest else { return };
            match self.chain.read_at(place).await {
                Err(PlaceError::Moved { .. }) => {}
                read => {
                    let data = read.expect("a simulated drive that no fault meets reads");
                    assert_eq!(data.len() as u64, BLOCK, "block {block} is there");
                    return;
                }
            }
        }
    }

    /// Forgets a block: what lies in the log of it is garbage.
    pub fn trim(&self, block: u64) {
        self.inner.map.newest.borrow_mut()[block as usize] = None;
    }

    /// Writes blocks in the order of their addresses, which begin to be there, until so many segments are in use.
    async fn fill(&self, segments: u64) {
        let used = || {
            let stats = self.chain.stats();
            stats.segments_open + stats.segments_closed
        };
        let (mut next, mut under_way) = (0, VecDeque::new());
        while used() < segments {
            under_way.push_back(self.append(next..next + FILL_BLOCKS, 1));
            next += FILL_BLOCKS;
            if under_way.len() == FILL_DEPTH
                && let Some(oldest) = under_way.pop_front()
            {
                self.wait(oldest).await;
            }
        }
        for ticket in under_way {
            self.wait(ticket).await;
        }
    }
}
