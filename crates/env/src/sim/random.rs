//! Randomness without a stream: every decision is a hash of what it is about.
//!
//! decision = hash(seed, domain, entity, counter). With one shared stream, leaving out one event would change every
//! decision after it; with hashes the rest of the run stays as it was, which is what lets a failure be shrunk.

use crate::mix::{STEP, mix};

/// What kind of decision is made, so that decisions about different things are independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// Numbers that a process draws from [`Env::random_u64`](crate::Env::random_u64).
    Process,
    /// Rate and offset of a process's clocks.
    Clock,
    /// How long a drive request takes.
    DriveTime,
    /// What a crash leaves of a write.
    DriveCrash,
    /// What a fault does to a drive.
    DriveFault,
    /// How long bytes are under way.
    LinkTime,
    /// What a link does to bytes.
    LinkFault,
    /// How many bytes a read of a connection returns.
    ShortRead,
    /// What stands in a plan.
    Plan,
    /// For the user of the simulator: workloads and scenarios number their own.
    User(u32),
}

impl Domain {
    fn number(self) -> u64 {
        match self {
            Domain::Process => 1,
            Domain::Clock => 2,
            Domain::DriveTime => 3,
            Domain::DriveCrash => 4,
            Domain::DriveFault => 5,
            Domain::LinkTime => 6,
            Domain::LinkFault => 7,
            Domain::ShortRead => 8,
            Domain::Plan => 9,
            Domain::User(number) => 1 << 32 | u64::from(number),
        }
    }
}

/// The decisions of one seed.
///
/// ```
/// use ithaca_env::sim::{Dice, Domain};
/// let dice = Dice::new(7);
/// assert_eq!(dice.draw(Domain::User(0), 1, 2), Dice::new(7).draw(Domain::User(0), 1, 2));
/// assert_ne!(dice.draw(Domain::User(0), 1, 2), dice.draw(Domain::User(0), 1, 3));
/// assert!(dice.below(Domain::User(0), 1, 2, 10) < 10);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Dice {
    seed: u64,
}

impl Dice {
    /// The decisions of `seed`.
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// The seed.
    pub fn seed(self) -> u64 {
        self.seed
    }

    /// 64 random bits about the `counter`th decision on `entity`.
    pub fn draw(self, domain: Domain, entity: u64, counter: u64) -> u64 {
        let about = mix(self.seed ^ mix(domain.number()));
        mix(mix(about ^ entity).wrapping_add(counter.wrapping_mul(STEP)))
    }

    /// A number below `bound`, which is not 0.
    pub fn below(self, domain: Domain, entity: u64, counter: u64, bound: u64) -> u64 {
        assert!(bound > 0, "no number is below 0");
        scale(self.draw(domain, entity, counter), bound)
    }

    /// True `ppm` times in a million.
    pub fn chance(self, domain: Domain, entity: u64, counter: u64, ppm: u32) -> bool {
        ppm > 0 && self.below(domain, entity, counter, 1_000_000) < u64::from(ppm)
    }
}

/// A stream of random numbers (SplitMix64), for workloads and tests that a seed repeats. A decision that must not move when
/// another one goes away is a [`Dice`]'s.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        let next = mix(self.0);
        self.0 = self.0.wrapping_add(STEP);
        next
    }

    /// A number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.next_u64() % end }
    }

    /// A number in `[first, end)`.
    pub fn within(&mut self, first: f64, end: f64) -> f64 {
        first + (end - first) * (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True `times` of a hundred times.
    pub fn percent(&mut self, times: u64) -> bool {
        self.below(100) < times
    }

    /// One of `choices`. Panics if there are none.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// `bits` spread evenly over `0..bound`.
pub(super) fn scale(bits: u64, bound: u64) -> u64 {
    ((u128::from(bits) * u128::from(bound)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_splitmix64() {
        let mut random = Random::new(1_234_567);
        // The numbers that implementations of other languages give for this seed.
        let known = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(known.map(|_| random.next_u64()), known);
        assert_eq!(random.below(0), 0);
        assert!((0..100).all(|_| random.below(3) < 3 && [4, 5].contains(&random.pick(&[4, 5]))));
    }

    #[test]
    fn a_chance_comes_about_as_often_as_it_says() {
        let dice = Dice::new(1);
        let hits = (0..100_000).filter(|&n| dice.chance(Domain::User(1), 5, n, 100_000)).count();
        assert!((9_500..10_500).contains(&hits), "{hits} of 100,000 at one in ten");
    }
}
