//! What the emulations of deduplication and of a fine-grained log share: things whose last versions lie in blocks of a log, and reads of them
//! that take the newest version in memory among those that may be.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;

use super::clients::{READS_PERCENT, draw, read_latency_us};
use super::emulated::{Emulated, Point};
use crate::blocks::Blocks;

/// See the module.
pub struct Versions {
    log: Blocks,
    /// Of each thing the last blocks, the newest at the end.
    held: RefCell<Vec<VecDeque<u64>>>,
    /// Updates that a read may leave out, at the most.
    bound_max: usize,
    stale_hits: Cell<u64>,
    reads: Cell<u64>,
}

impl Versions {
    /// Of so many things, none of which was written.
    pub fn new(log: Blocks, things: u64, bound_max: usize) -> Self {
        let held = RefCell::new(vec![VecDeque::new(); things as usize]);
        Self { log, held, bound_max, stale_hits: Cell::new(0), reads: Cell::new(0) }
    }

    /// The newest version of a thing is in this block.
    pub fn put(&self, thing: u64, block: u64) {
        let held = &mut self.held.borrow_mut()[thing as usize];
        held.push_back(block);
        if held.len() > self.bound_max + 1 {
            held.pop_front();
        }
    }

    /// The block to read: the newest in memory of those that may be, or the newest. And how many updates that leaves out.
    fn choose(&self, thing: u64, bound: usize) -> (usize, u64) {
        let held = self.held.borrow();
        let mut versions = held[thing as usize].iter().rev().copied().enumerate().take(bound + 1);
        let newest = (0, held[thing as usize].back().copied().expect("everything was written"));
        versions.find(|(_, block)| self.log.is_in_memory(*block)).unwrap_or(newest)
    }

    /// The request of this number, of anything alike: a read is made, of an update it says of what.
    pub async fn request(&self, number: u64, bound: usize) -> Option<u64> {
        let thing = draw(0, number, self.held.borrow().len() as u64);
        if draw(1, number, 100) >= READS_PERCENT {
            return Some(thing);
        }
        let (left_out, block) = self.choose(thing, bound);
        self.reads.set(self.reads.get() + 1);
        self.stale_hits.set(self.stale_hits.get() + u64::from(left_out > 0));
        self.log.read(block).await;
        None
    }

    /// So many requests for each bound. `request` makes the one of a number and a bound, and says whether it was a read.
    pub fn measure<Made: Future<Output = bool> + 'static>(
        &self,
        world: &Emulated,
        requests: u64,
        request: impl Fn(u64, usize) -> Made + 'static,
    ) -> Vec<Point> {
        let request = Rc::new(request);
        let mut numbers = 0..requests;
        let mut measure = |bound: usize| {
            self.stale_hits.set(0);
            self.reads.set(0);
            let request = Rc::clone(&request);
            let read_us =
                read_latency_us(&world.bench, numbers.clone(), move |number| request(number, bound));
            numbers = numbers.end..numbers.end + requests;
            Point { read_us, percent: 100.0 * self.stale_hits.get() as f64 / self.reads.get() as f64 }
        };
        // What memory holds when the first one is measured is what reads have left there.
        measure(0);
        (0..=self.bound_max).map(measure).collect()
    }
}
