//! The load on a log of blocks: clients that read and write single blocks, and what they get over time, before, while and
//! after the log is cleaned.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use ithaca_env::Time;
use ithaca_env::sim::{Dice, Domain};

use super::blocks::World;
use crate::blocks::{BLOCK, Blocks};

const SEED: u64 = 1;
/// Bytes are counted by slots of this length.
pub const SLOT: Duration = Duration::from_millis(50);
/// Reads of blocks written not long ago are of one of so many.
const RECENT: u64 = 1024;

/// Clients that each have one request for a block under way, all the time.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// How many.
    pub clients: u64,
    /// Of their requests, so many in a hundred are reads of a block; the others are writes anywhere.
    pub reads_percent: u64,
    /// Of the reads, so many in a hundred are of blocks written not long ago; the others of any.
    pub hits_percent: u64,
    /// Blocks of a write; they follow one another.
    pub write_blocks: u64,
}

/// Bytes by the slot in which they were done.
struct Meter {
    from: Time,
    slots: RefCell<Vec<u64>>,
}

impl Meter {
    fn add(&self, now: Time, bytes: u64) {
        let slot = (now.since(self.from).as_nanos() / SLOT.as_nanos()) as usize;
        let mut slots = self.slots.borrow_mut();
        if slots.len() <= slot {
            slots.resize(slot + 1, 0);
        }
        slots[slot] += bytes;
    }
}

/// Megabytes (10^6 bytes) a second that clients and cleaner got, by slot.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    /// Reads, those of the cache too.
    pub reads: Vec<f64>,
    /// Writes.
    pub writes: Vec<f64>,
    /// What the cleaner wrote again.
    pub moved: Vec<f64>,
}

impl Rates {
    /// From a slot on.
    pub fn from(mut self, slot: usize) -> Self {
        for slots in [&mut self.reads, &mut self.writes, &mut self.moved] {
            slots.drain(..slot.min(slots.len()));
        }
        self
    }
}

impl Mix {
    /// Makes a request. Whether it is a read.
    async fn request(self, blocks: &Blocks, number: u64) -> bool {
        let draw = |what, bound| Dice::new(SEED).below(Domain::User(what), 0, number, bound);
        let any = draw(0, blocks.count());
        if draw(1, 100) >= self.reads_percent {
            blocks.write(any / self.write_blocks * self.write_blocks, self.write_blocks).await;
            return false;
        }
        let is_hit = draw(2, 100) < self.hits_percent;
        let recent = if is_hit { blocks.recent(draw(3, RECENT)) } else { None };
        blocks.read(recent.unwrap_or(any)).await;
        true
    }

    /// Starts the clients. They go on as long as the world does.
    pub fn start(self, world: &World) -> Running<'_> {
        let env = world.bench.env();
        let meter = || Rc::new(Meter { from: env.now(), slots: RefCell::default() });
        let running = Running { world, reads: meter(), writes: meter(), moved: vec![world.moved_bytes()] };
        let drawn = Rc::new(Cell::new(0));
        for _ in 0..self.clients {
            let (blocks, clock, drawn) = (world.blocks.clone(), env.clone(), Rc::clone(&drawn));
            let (reads, writes) = (Rc::clone(&running.reads), Rc::clone(&running.writes));
            env.spawn(async move {
                loop {
                    let number = drawn.replace(drawn.get() + 1);
                    let is_read = self.request(&blocks, number).await;
                    let (meter, count) = if is_read { (&reads, 1) } else { (&writes, self.write_blocks) };
                    meter.add(clock.now(), count * BLOCK);
                }
            });
        }
        running
    }
}

/// A load that is under way.
pub struct Running<'a> {
    world: &'a World,
    reads: Rc<Meter>,
    writes: Rc<Meter>,
    /// What the cleaner had moved at the end of each slot.
    moved: Vec<u64>,
}

impl Running<'_> {
    /// Slots so far.
    pub fn slots(&self) -> usize {
        self.moved.len() - 1
    }

    /// Lets `span` go by.
    pub fn run(&mut self, span: Duration) {
        for _ in 0..span.as_nanos() / SLOT.as_nanos() {
            self.world.bench.run_until(self.reads.from + SLOT * self.moved.len() as u32);
            self.moved.push(self.world.moved_bytes());
        }
    }

    /// Cleans the oldest `segments` and goes on until that is done, or `most` is over. Slots that it took, and segments that
    /// came free.
    pub fn clean(&mut self, segments: usize, most: Duration) -> (usize, usize) {
        let (began, done) = (self.slots(), Rc::new(Cell::new(None)));
        let (chain, told) = (self.world.blocks.chain.clone(), Rc::clone(&done));
        self.world.bench.env().spawn(async move {
            let cleaned = chain.clean(segments).await;
            told.set(Some(cleaned.expect("a chain on drives that no fault meets is cleaned")));
        });
        while done.get().is_none() && SLOT * ((self.slots() - began) as u32) < most {
            self.run(SLOT);
        }
        (self.slots() - began, done.get().unwrap_or(0))
    }

    /// What was done in each slot so far.
    pub fn rates(&self) -> Rates {
        let rate = |bytes: u64| bytes as f64 / 1e6 / SLOT.as_secs_f64();
        let of = |meter: &Meter| {
            let slots = meter.slots.borrow();
            (0..self.slots()).map(|slot| rate(slots.get(slot).copied().unwrap_or(0))).collect()
        };
        Rates {
            reads: of(&self.reads),
            writes: of(&self.writes),
            moved: self.moved.windows(2).map(|pair| rate(pair[1] - pair[0])).collect(),
        }
    }
}

/// The mean of some slots; 0 of none.
pub fn mean(slots: &[f64]) -> f64 {
    slots.iter().sum::<f64>() / slots.len().max(1) as f64
}
