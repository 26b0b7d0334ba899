//! An order of a fixed number of things by when they were used last. Pure; every change is a few steps.

/// No thing.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Links {
    older: u32,
    newer: u32,
}

/// Things `0..count`, some of which stand in the order.
pub(super) struct Recency {
    /// The last one stands for both ends.
    links: Vec<Links>,
}

impl Recency {
    /// All of them stand in it, 0 as the oldest.
    pub(super) fn new(count: u32) -> Self {
        let end = count;
        let links = (0..=count).map(|thing| Links {
            older: if thing == 0 { end } else { thing - 1 },
            newer: if thing == end { 0 } else { thing + 1 },
        });
        Self { links: links.collect() }
    }

    fn end(&self) -> u32 {
        self.links.len() as u32 - 1
    }

    /// The one that was used longest ago.
    pub(super) fn oldest(&self) -> Option<u32> {
        let oldest = self.links[self.end() as usize].newer;
        (oldest != self.end()).then_some(oldest)
    }

    /// Whether it stands in the order.
    pub(super) fn contains(&self, thing: u32) -> bool {
        self.links[thing as usize].newer != NONE
    }

    /// Takes a thing that stands in the order out of it.
    pub(super) fn remove(&mut self, thing: u32) {
        assert!(self.contains(thing), "{thing} is not in the order");
        let Links { older, newer } = self.links[thing as usize];
        self.links[older as usize].newer = newer;
        self.links[newer as usize].older = older;
        self.links[thing as usize] = Links { older: NONE, newer: NONE };
    }

    /// Puts a thing that stands nowhere at the end that leaves last.
    pub(super) fn add_newest(&mut self, thing: u32) {
        self.add_after(self.links[self.end() as usize].older, thing);
    }

    /// Puts a thing that stands nowhere at the end that leaves first.
    pub(super) fn add_oldest(&mut self, thing: u32) {
        self.add_after(self.end(), thing);
    }

    fn add_after(&mut self, older: u32, thing: u32) {
        assert!(!self.contains(thing), "{thing} is in the order already");
        let newer = self.links[older as usize].newer;
        self.links[thing as usize] = Links { older, newer };
        self.links[older as usize].newer = thing;
        self.links[newer as usize].older = thing;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(mut order: Recency) -> Vec<u32> {
        std::iter::from_fn(|| order.oldest().inspect(|&thing| order.remove(thing))).collect()
    }

    #[test]
    fn what_was_used_leaves_last_and_what_was_given_up_first() {
        let mut order = Recency::new(4);
        for used in [1, 0] {
            order.remove(used);
            order.add_newest(used);
        }
        order.remove(3);
        order.add_oldest(3);
        assert_eq!(drain(order), [3, 2, 1, 0]);
        assert_eq!(drain(Recency::new(0)), []);
    }
}
