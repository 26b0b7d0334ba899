//! Going through every state of a small world once.

use std::collections::BTreeSet;
use std::fmt::{self, Debug, Write as _};
use std::hash::{Hash, Hasher};

/// Something of which every state can be gone through.
pub(super) trait World: Clone + Hash {
    /// What can happen in it.
    type Event: Copy + Debug;

    /// What can happen now.
    fn possible(&self) -> Vec<Self::Event>;

    /// Lets `event` happen. An error says which rule that breaks.
    fn happen(&mut self, event: Self::Event) -> Result<(), String>;
}

/// What a search came to.
pub(super) struct Outcome {
    /// How many states there are, as far as it went.
    pub(super) states: usize,
    /// The rule that the first bad state breaks, and what led there.
    pub(super) violation: Option<String>,
}

/// Goes through the states that `first` leads to, until one breaks a rule.
pub(super) fn search<W: World>(first: W) -> Outcome {
    let mut outcome = Outcome { states: 1, violation: None };
    let mut seen = BTreeSet::from([fingerprint(&first)]);
    let mut open: Vec<(W, Vec<W::Event>)> = vec![(first, Vec::new())];
    while let Some((world, trace)) = open.pop() {
        for event in world.possible() {
            let mut next = world.clone();
            let trace: Vec<W::Event> = trace.iter().copied().chain([event]).collect();
            if let Err(broken) = next.happen(event) {
                outcome.violation = Some(format!("{broken}, after {trace:?}"));
                return outcome;
            }
            if seen.insert(fingerprint(&next)) {
                outcome.states += 1;
                open.push((next, trace));
            }
        }
    }
    outcome
}

/// A state by a hash of all that it consists of: two that differ are told apart but for a chance of 2^-80 or so over a whole
/// run.
fn fingerprint(world: &impl Hash) -> u128 {
    struct Wide(u128);
    impl Hasher for Wide {
        fn write(&mut self, bytes: &[u8]) {
            for chunk in bytes.chunks(8) {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                self.write_u64(u64::from_le_bytes(word));
            }
        }
        fn write_u64(&mut self, word: u64) {
            let mixed = (self.0 ^ u128::from(word)).wrapping_mul(0x2d35_8dcc_aa6c_78a5_8bb8_4b93_962e_acc9);
            self.0 = mixed ^ mixed >> 61;
        }
        fn finish(&self) -> u64 {
            self.0 as u64
        }
    }
    let mut wide = Wide(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
    world.hash(&mut wide);
    wide.0
}

/// Hashes what has no hash of its own by its description.
pub(super) fn hash_described(value: &impl Debug, state: &mut impl Hasher) {
    struct Describe<'a, H>(&'a mut H);
    impl<H: Hasher> fmt::Write for Describe<'_, H> {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }
    _ = write!(Describe(state), "{value:?}");
}
