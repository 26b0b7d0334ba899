//! Traces that are made up: endless, the same for the same seed, with the statistics that a profile states.
//!
//! * **Mix**: of a thousand requests so many write.
//! * **Skew**: a b-model over the working set. Of any half of it that is a power of two long, one half gets `bias` in a thousand of the
//!   requests, and so on down to a block; 500 is uniform, 800 the rule of 80 and 20 at every scale. Whole numbers only.
//! * **Recency**: so many reads in a thousand go to what was written of late, the `n`th last write with the same bias towards small `n`,
//!   among as many as a 128th of the tail drive's blocks.
//! * **Runs**: a request is the first of `run` on average that follow each other on the disk, of one direction.
//! * **Size**: 1 to `2 x blocks - 1` blocks, evenly.
//! * **Bursts**: so many requests on average come 50 us apart; between bursts there is a pause as long as 20 requests a burst member. So
//!   traces that are played together take turns, as those of different machines do.

use ithaca_env::sim::{Dice, Domain};

use super::Request;

/// The tail drive has this many times as many blocks as there are writes that reads of recent data choose from.
const TAIL_OF_RECENT: u64 = 128;
/// Blocks that lie next to each other and are alike popular: two to the power of this, 256 KiB.
const EXTENT_LEVELS: u32 = 6;
const GAP_NS: u64 = 50_000;
const PAUSE_GAPS: u64 = 20;

/// The statistics of a trace. Rates are in a thousand.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// A letter, as the published traces of Gecko's table 1 have; it is a stand-in, not that trace.
    pub name: char,
    /// Requests that write.
    pub writes: u64,
    /// Blocks of the working set for each thousand of the tail drive.
    pub set: u64,
    /// The skew.
    pub bias: u64,
    /// Reads that go to what was written of late.
    pub recent: u64,
    /// Requests that follow each other, on average.
    pub run: u64,
    /// Blocks of a request, on average.
    pub blocks: u64,
    /// Requests of a burst, on average.
    pub burst: u64,
}

/// Nine kinds of server, from builds and mail to home directories: mixes, working sets, request sizes and runs are of the kind that the literature
/// gives for such machines. Recency is our choice. The bias of all was raised in equal steps until every mix of the figures is coalesced in memory as
/// much as Gecko's least (figure 8): it is fitted, not found.
pub const PROFILES: [Profile; 9] = [
    Profile { name: 'A', writes: 450, set: 8, bias: 935, recent: 500, run: 4, blocks: 4, burst: 60 },
    Profile { name: 'B', writes: 550, set: 24, bias: 915, recent: 400, run: 2, blocks: 2, burst: 100 },
    Profile { name: 'C', writes: 600, set: 12, bias: 935, recent: 500, run: 4, blocks: 6, burst: 80 },
    Profile { name: 'D', writes: 950, set: 2, bias: 960, recent: 700, run: 1, blocks: 2, burst: 200 },
    Profile { name: 'E', writes: 650, set: 12, bias: 930, recent: 300, run: 8, blocks: 6, burst: 150 },
    Profile { name: 'F', writes: 850, set: 16, bias: 915, recent: 300, run: 8, blocks: 8, burst: 80 },
    Profile { name: 'G', writes: 400, set: 10, bias: 935, recent: 400, run: 2, blocks: 4, burst: 40 },
    Profile { name: 'H', writes: 800, set: 6, bias: 940, recent: 500, run: 4, blocks: 3, burst: 60 },
    Profile { name: 'I', writes: 500, set: 16, bias: 925, recent: 300, run: 6, blocks: 8, burst: 60 },
];

/// An endless trace.
pub struct Generator {
    profile: Profile,
    dice: Dice,
    draws: u64,
    /// The working set is two to the power of this many blocks.
    levels: u32,
    now_ns: u64,
    /// Requests of the burst that are still to come.
    burst_left: u64,
    run_left: u64,
    last: Request,
    /// Blocks that were written last, as a ring of two to the power of `recent_levels`, and how many ever were.
    recent: Vec<u64>,
    recent_levels: u32,
    written: u64,
}

impl Generator {
    /// A trace of this kind, for a tail drive of so many blocks.
    pub fn new(profile: Profile, tail_blocks: u64, seed: u64) -> Self {
        let set = (tail_blocks * profile.set / 1000).max(2);
        Self {
            profile,
            dice: Dice::new(seed ^ u64::from(u32::from(profile.name)) << 32),
            draws: 0,
            levels: set.next_power_of_two().trailing_zeros(),
            now_ns: 0,
            burst_left: 0,
            run_left: 0,
            last: Request { at_ns: 0, is_write: true, block: 0, blocks: 0 },
            recent: Vec::new(),
            recent_levels: (tail_blocks / TAIL_OF_RECENT).next_power_of_two().trailing_zeros(),
            written: 0,
        }
    }

    /// Blocks of its disk.
    pub fn blocks(&self) -> u64 {
        1 << self.levels
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.draws += 1;
        self.dice.below(Domain::User(1), 0, self.draws, bound)
    }

    fn chance(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    /// A number from 1 on that is `mean` on average and has no memory.
    fn about(&mut self, mean: u64) -> u64 {
        (1..1000).find(|_| self.below(mean) == 0).unwrap_or(1000)
    }

    /// A number below `1 << levels`, small ones more often.
    fn skewed(&mut self, levels: u32) -> u64 {
        (0..levels).fold(0, |number, _| number << 1 | u64::from(!self.chance(self.profile.bias)))
    }

    /// A block of the working set. Which ones are popular has nothing to do with where they lie, but neighbours are alike.
    fn popular(&mut self) -> u64 {
        let rank = self.skewed(self.levels);
        let (near, far) = (self.levels.min(EXTENT_LEVELS), self.levels.saturating_sub(EXTENT_LEVELS));
        let extent = rank >> near;
        // A bijection of the extents: an odd factor, modulo a power of two.
        let place = extent.wrapping_mul(0x9e37_79b9_7f4a_7c15) & ((1 << far) - 1);
        place << near | rank & ((1 << near) - 1)
    }

    fn written_of_late(&mut self) -> Option<u64> {
        if self.recent.is_empty() {
            return None;
        }
        let back = self.skewed(self.recent_levels) % self.recent.len() as u64;
        let at = (self.written - 1 - back) % (1 << self.recent_levels);
        self.recent.get(at as usize).copied()
    }

    fn note_write(&mut self, block: u64) {
        let at = (self.written % (1 << self.recent_levels)) as usize;
        match self.recent.get_mut(at) {
            Some(slot) => *slot = block,
            None => self.recent.push(block),
        }
        self.written += 1;
    }
}

impl Iterator for Generator {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        if self.burst_left == 0 {
            self.burst_left = self.about(self.profile.burst);
            self.now_ns += self.burst_left * PAUSE_GAPS * GAP_NS;
        }
        self.burst_left -= 1;
        self.now_ns += GAP_NS;
        let blocks = 1 + self.below(2 * self.profile.blocks - 1);
        let is_run = self.run_left > 0;
        let (is_write, block) = if is_run {
            self.run_left -= 1;
            (self.last.is_write, self.last.block + self.last.blocks)
        } else {
            self.run_left = self.about(self.profile.run) - 1;
            let is_write = self.chance(self.profile.writes);
            let is_recent = !is_write && self.chance(self.profile.recent);
            let recent = if is_recent { self.written_of_late() } else { None };
            (is_write, recent.unwrap_or_else(|| self.popular()))
        };
        let block = block & (self.blocks() - 1);
        let blocks = blocks.min(self.blocks() - block);
        self.last = Request { at_ns: self.now_ns, is_write, block, blocks };
        if is_write {
            self.note_write(block);
        }
        Some(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAIL: u64 = 1 << 16;

    #[test]
    fn a_trace_has_the_statistics_that_its_profile_states() {
        for profile in PROFILES {
            let generator = Generator::new(profile, TAIL, 1);
            let set = generator.blocks();
            let requests: Vec<Request> = generator.take(40_000).collect();
            let count = requests.len() as u64;
            let near = |found: u64, stated: u64, what: &str| {
                let allowed = stated / 8 + 1;
                assert!(
                    found.abs_diff(stated) <= allowed,
                    "{}: {what} {found}, stated {stated}",
                    profile.name
                );
            };
            let writes = requests.iter().filter(|request| request.is_write).count() as u64;
            near(writes * 1000 / count, profile.writes, "writes of a thousand");
            let blocks: u64 = requests.iter().map(|request| request.blocks).sum();
            near(blocks * 10 / count, profile.blocks * 10, "tenths of blocks a request");
            let follows = |pair: &&[Request]| pair[0].block + pair[0].blocks == pair[1].block;
            let runs = count - requests.windows(2).filter(follows).count() as u64;
            near(count * 10 / runs, profile.run * 10, "tenths of requests a run");
            let pauses =
                requests.windows(2).filter(|pair| pair[1].at_ns - pair[0].at_ns > GAP_NS).count() as u64;
            near(count / (pauses + 1), profile.burst, "requests a burst");
            assert!(requests.iter().all(|request| request.block + request.blocks <= set));
        }
    }

    #[test]
    fn the_popular_fifth_gets_more_the_higher_the_bias() {
        let share = |bias| {
            let profile = Profile { bias, writes: 1000, run: 1, ..PROFILES[0] };
            let generator = Generator::new(profile, TAIL, 1);
            let mut counts = vec![0_u32; generator.blocks() as usize];
            generator.take(100_000).for_each(|request| counts[request.block as usize] += 1);
            counts.sort_unstable_by(|one, other| other.cmp(one));
            counts[..counts.len() / 5].iter().sum::<u32>() / 1000
        };
        let shares = [500, 700, 800, 900].map(share);
        assert!(shares.is_sorted() && shares[2] >= 80, "{shares:?} percent");
    }

    #[test]
    fn the_same_seed_gives_the_same_trace_and_another_one_another() {
        let trace = |seed| Generator::new(PROFILES[3], TAIL, seed).take(1000).collect::<Vec<_>>();
        assert_eq!(trace(1), trace(1));
        assert_ne!(trace(1), trace(2));
    }
}
