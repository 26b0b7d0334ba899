//! Which slots of a client's memory are in use. Pure.
//!
//! A slot is the room of one block. A request has a row of them from the moment in which it is sent until its answer has come, even if nobody
//! waits for that any more: until then the server may write there.

use std::ops::Range;

/// The slots of one memory.
#[derive(Debug)]
pub(super) struct Slots {
    /// Of each whether it is in use.
    used: Vec<bool>,
}

impl Slots {
    /// So many, all free.
    pub fn new(count: usize) -> Self {
        Self { used: vec![false; count] }
    }

    /// Takes the first row of so many free slots; `None` if there is no such row.
    pub fn take(&mut self, count: u64) -> Option<Range<usize>> {
        let count = usize::try_from(count).ok().filter(|count| (1..=self.used.len()).contains(count))?;
        let mut start = 0;
        while let Some(row) = self.used.get(start..start + count) {
            match row.iter().rposition(|used| *used) {
                Some(at) => start += at + 1,
                None => {
                    self.used[start..start + count].fill(true);
                    return Some(start..start + count);
                }
            }
        }
        None
    }

    /// These are free again.
    pub fn give_back(&mut self, slots: Range<usize>) {
        for used in &mut self.used[slots] {
            assert!(std::mem::replace(used, false), "what is given back was taken");
        }
    }

    /// Whether none is in use.
    #[cfg(test)]
    pub fn is_idle(&self) -> bool {
        !self.used.contains(&true)
    }
}

#[cfg(test)]
mod tests {
    use ithaca_env::sim::Random;

    use super::*;

    #[test]
    fn the_first_row_that_is_long_enough_is_taken() {
        let mut slots = Slots::new(6);
        assert_eq!(slots.take(2), Some(0..2));
        assert_eq!(slots.take(1), Some(2..3));
        assert_eq!(slots.take(3), Some(3..6));
        assert_eq!(slots.take(1), None);
        slots.give_back(0..2);
        slots.give_back(3..6);
        assert_eq!(slots.take(3), Some(3..6), "two at the front are too few");
        assert_eq!(slots.take(2), Some(0..2));
        assert_eq!((slots.take(0), slots.take(7), slots.take(u64::MAX)), (None, None, None));
    }

    #[test]
    fn no_slot_is_taken_twice_and_what_is_free_is_found() {
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let (mut slots, mut taken) = (Slots::new(64), Vec::<Range<usize>>::new());
            for _ in 0..500 {
                if random.percent(50) && !taken.is_empty() {
                    slots.give_back(taken.swap_remove(random.below(taken.len() as u64) as usize));
                    continue;
                }
                let count = 1 + random.below(20) as usize;
                let is_free =
                    |row: &Range<usize>| taken.iter().all(|t| t.end <= row.start || row.end <= t.start);
                let expected = (0..=64 - count).map(|start| start..start + count).find(is_free);
                assert_eq!(slots.take(count as u64), expected, "seed {seed}");
                taken.extend(expected);
            }
            taken.into_iter().for_each(|row| slots.give_back(row));
            assert!(slots.is_idle());
        }
    }
}
