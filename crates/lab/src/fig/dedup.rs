//! Blocks that share what is the same, behind a cache by content: Yogurt, figure 5. An old version of a block may be in memory because it is
//! what some other block holds now.
//!
//! The log holds one record for each content, and the read cache of the chain says what is in memory.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ithaca_env::sim::Speed;

use super::Figure;
use super::clients::draw;
use super::emulated::{Emulated, Lines, Point};
use super::versions::Versions;
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
    /// Of each block.
    contents: Versions,
    /// Contents that a write may find to be there already.
    pool: RefCell<Vec<u64>>,
    next_content: Cell<u64>,
    ratio: u64,
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

    /// Whether it is a read.
    async fn request(&self, number: u64, bound: usize) -> bool {
        let Some(block) = self.contents.request(number, bound).await else { return true };
        let (content, is_new) = self.content(number);
        if is_new {
            self.log.write(content, 1).await;
        }
        self.contents.put(block, content);
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
        contents: Versions::new(world.blocks.clone(), blocks, BOUND_MAX),
        pool: RefCell::new((0..distinct).collect()),
        next_content: Cell::new(distinct),
        ratio,
    });
    for block in 0..blocks {
        store.contents.put(block, draw(4, block, distinct));
    }
    for number in 0..ROUNDS * blocks {
        let (content, _) = store.content(u64::MAX - number);
        store.contents.put(draw(5, number, blocks), content);
    }
    world.append(0..store.next_content.get());
    let asked = Rc::clone(&store);
    store.contents.measure(&world, requests, move |number, bound| {
        let store = Rc::clone(&asked);
        async move { store.request(number, bound).await }
    })
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
