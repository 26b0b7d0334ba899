//! A permutation of 64-bit numbers that looks random: four rounds of a Feistel network over two halves.
//!
//! Luby and Rackoff show that four rounds of a function that looks random are a permutation that does. Different numbers never become the
//! same, so the permutation takes nothing from a hash and spreads what is alike over all buckets. (Wei 5.4)

/// Rounds.
const ROUNDS: u32 = 4;

/// The number that `number` becomes, by a seed.
pub(super) fn permuted(seed: u64, number: u64) -> u64 {
    let (left, right) = ((number >> 32) as u32, number as u32);
    let (left, right) =
        (0..ROUNDS).fold((left, right), |(left, right), round| (right, left ^ mixed(seed, round, right)));
    u64::from(left) << 32 | u64::from(right)
}

/// The function of a round: 32 bits that depend on all bits of the seed, the round and the half.
fn mixed(seed: u64, round: u32, half: u32) -> u32 {
    let mut word = seed ^ (u64::from(round) << 32 | u64::from(half));
    for multiplier in [0xFF51_AFD7_ED55_8CCD, 0xC4CE_B9FE_1A85_EC53] {
        word ^= word >> 33;
        word = word.wrapping_mul(multiplier);
    }
    (word >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The way back.
    fn restored(seed: u64, number: u64) -> u64 {
        let (left, right) = ((number >> 32) as u32, number as u32);
        let (left, right) = (0..ROUNDS)
            .rev()
            .fold((left, right), |(left, right), round| (right ^ mixed(seed, round, left), left));
        u64::from(left) << 32 | u64::from(right)
    }

    #[test]
    fn it_is_a_permutation_whatever_the_seed_is() {
        for seed in 0..50 {
            for number in (0..2000).chain(u64::MAX - 2000..=u64::MAX) {
                assert_eq!(restored(seed, permuted(seed, number)), number);
            }
        }
    }

    #[test]
    fn numbers_in_a_row_are_spread_over_all_buckets() {
        // Without the permutation multiples of the count of buckets would all be in one of them.
        let mut buckets = [0u32; 64];
        for number in 0..64_000 {
            buckets[(permuted(7, number * 64) % 64) as usize] += 1;
        }
        let (least, most) = (buckets.iter().min().copied(), buckets.iter().max().copied());
        assert!(least > Some(850) && most < Some(1150), "{least:?} to {most:?} of 1000");
    }
}
