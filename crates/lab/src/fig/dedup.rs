//! Blocks that share what is the same, behind a cache by content: Yogurt, figure 5. An old version of a block may be in memory because it is
//! what some other block holds now.
//!
//! The log holds one record for each content, and the read cache of the chain says what is in memory.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use ithaca_env::sim::Speed;

use super::Figure;
use super::clients::{READS_PERCENT, draw, read_latency_us};
use super::emulated::{Emulated, Lines, Point};
use crate::blocks::{BLOCK, Blocks};

/// Of the contents that blocks hold, so many in a hundred are there more than once.
const RATIOS: [u64; 4] = [30, 50, 70, 90];
const BOUND_MAX: usize = 7;
/// Memory holds a sixteenth of the address space: 256 MB of 4 GB.
const SPACE_OF_CACHE: u64 = 16;
/// How often each block was written before, on average.
const ROUNDS: u64 = 4;

/// What a figure is measured with.
#[derive(Clone, Copy)]
pub struct Extent {
    /// Blocks of the address space.
    pub blocks: u64,
    /// Requests for each point.
    pub requests: u64,
}

/// That of the figure, a 128th of the paper's.
pub const EXTENT: Extent = Extent { blocks: 1 << 13, requests: 10_000 };

/// The store: which content each block held, and the contents that blocks are given.
struct Store {
    log: Blocks,
    /// Of each block the last contents, the newest at the end.
    blocks: RefCell<Vec<VecDeque<u64>>>,
    /// Contents that a write may find to be there already.
    pool: RefCell<Vec<u64>>,
    next_content: Cell<u64>,
    ratio: u64,
    stale_hits: Cell<u64>,
    reads: Cell<u64>,
}

impl Store {
    /// What a write puts into a block: something that is there, or something new, which takes the place of a content of the pool.
    fn content(&self, number: u64) -> (u64, bool) {
        let mut pool = self.pool.borrow_mut();
        let at = draw(2, number, pool.len() as u64) as usize;
        if draw(3, number, 100) < self.ratio {
            return (pool[at], false);
        }
        pool[at] = self.next_content.replace(self.next_content.get() + 1);
        (pool[at], true)
    }

    fn put(&self, block: u64, content: u64) {
        let held = &mut self.blocks.borrow_mut()[block as usize];
        held.push_back(content);
        if held.len() > BOUND_MAX + 1 {
            held.pop_front();
        }
    }

    /// The content to read: the newest in memory of those that may be, or the newest. And how many updates that leaves out.
    fn choose(&self, block: u64, bound: usize) -> (usize, u64) {
        let blocks = self.blocks.borrow();
        let mut versions = blocks[block as usize].iter().rev().copied().enumerate().take(bound + 1);
        let newest = (0, blocks[block as usize].back().copied().expect("every block was written"));
        versions.find(|(_, content)| self.log.is_in_memory(*content)).unwrap_or(newest)
    }

    /// Whether it is a read.
    async fn request(&self, number: u64, bound: usize) -> bool {
        let block = draw(0, number, self.blocks.borrow().len() as u64);
        if draw(1, number, 100) < READS_PERCENT {
            let (left_out, content) = self.choose(block, bound);
            self.reads.set(self.reads.get() + 1);
            self.stale_hits.set(self.stale_hits.get() + u64::from(left_out > 0));
            self.log.read(content).await;
            return true;
        }
        let (content, is_new) = self.content(number);
        if is_new {
            self.log.write(content, 1).await;
        }
        self.put(block, content);
        false
    }
}

fn line(ratio: u64, extent: Extent) -> Vec<Point> {
    let Extent { blocks, requests } = extent;
    let writes = ROUNDS * blocks + (BOUND_MAX as u64 + 1) * requests;
    let world = Emulated::new(Speed::Disk, 2 * writes * BLOCK, (blocks / SPACE_OF_CACHE * BLOCK) as usize);
    let distinct = blocks * (100 - ratio) / 100;
    let store = Rc::new(Store {
        log: world.blocks.clone(),
        blocks: RefCell::new(vec![VecDeque::new(); blocks as usize]),
        pool: RefCell::new((0..distinct).collect()),
        next_content: Cell::new(distinct),
        ratio,
        stale_hits: Cell::new(0),
        reads: Cell::new(0),
    });
    for block in 0..blocks {
        store.put(block, draw(4, block, distinct));
    }
    for number in 0..ROUNDS * blocks {
        let (content, _) = store.content(u64::MAX - number);
        store.put(draw(5, number, blocks), content);
    }
    world.append(0..store.next_content.get());
    let mut numbers = 0..requests;
    let mut measure = |bound: usize| {
        store.stale_hits.set(0);
        store.reads.set(0);
        let asked = Rc::clone(&store);
        let read_us = read_latency_us(&world.bench, numbers.clone(), move |number| {
            let store = Rc::clone(&asked);
            async move { store.request(number, bound).await }
        });
        numbers = numbers.end..numbers.end + requests;
        Point { read_us, percent: 100.0 * store.stale_hits.get() as f64 / store.reads.get() as f64 }
    };
    measure(0);
    (0..=BOUND_MAX).map(measure).collect()
}

/// Measures with this extent.
pub fn measure(extent: Extent) -> Figure {
    let lines = Lines {
        names: RATIOS.map(|ratio| format!("{ratio} %")).to_vec(),
        points: RATIOS.map(|ratio| line(ratio, extent)).to_vec(),
    };
    Figure {
        name: "dedup",
        claim: "where blocks share what is the same, an old version of a block may be in memory for the sake of another block: reads that \
                may be stale are faster"
            .to_string(),
        expected: "Yogurt, figure 5: the latency falls by 10 to 35 %, more the more is shared, and levels off as the bound grows; the \
                   hits on stale data follow"
            .to_string(),
        setting: format!(
            "{} blocks of 4 KiB (the paper: 2^20, 4 GB) on one disk of 10,000 rpm; memory for a sixteenth of them, by content, LRU, filled by reads; \
             8 clients, 9 reads to 1 write, any block alike; {} requests a point. A write finds its content among those that are there as often \
             as the ratio says, else it appends a new one. Misses: what is won has a wider range than the paper's, less with 30 % shared and more with \
             90 %; how often each content is shared the paper does not say.",
            extent.blocks, extent.requests
        ),
        columns: "shared,bound,read us,of bound 0,stale hits %",
        rows: lines.rows(),
        charts: lines.charts("answered by memory with an old version"),
        checks: checks(&lines),
    }
}

fn checks(lines: &Lines) -> Vec<(String, bool)> {
    let at_end: Vec<f64> = (0..RATIOS.len()).map(|line| lines.ratio(line, BOUND_MAX)).collect();
    let says = |what: String, is_so| (what, is_so);
    let said = at_end.iter().map(|ratio| format!("{ratio:.2}")).collect::<Vec<_>>().join(", ");
    let mut checks = vec![
        says(
            format!("with the widest bound reads take {said} of the time, for the ratios from 30 % to 90 %"),
            at_end.iter().all(|ratio| (0.4..0.97).contains(ratio)),
        ),
        says(
            "the more is shared the more is won".to_string(),
            at_end.windows(2).all(|pair| pair[1] < pair[0]),
        ),
    ];
    for (name, points) in lines.names.iter().zip(&lines.points) {
        let won = |from: usize, to: usize| points[from].read_us - points[to].read_us;
        checks.push(says(
            format!("{name} shared: the first two updates win more than the last two"),
            won(0, 2) > won(BOUND_MAX - 2, BOUND_MAX),
        ));
        // A bound that is one wider changes less than chance does.
        let some = [0, 1, 3, BOUND_MAX].map(|bound| points[bound].percent);
        let grows = some.windows(2).all(|pair| pair[1] > pair[0]);
        checks.push(says(format!("{name} shared: stale hits grow with the bound"), grows));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_hold_makes_stale_reads_faster() {
        let figure = measure(EXTENT);
        figure.print();
        assert!(figure.judge(), "see the lines that say FAIL");
    }
}
