//! The commits that a transaction may be in conflict with: those after the oldest snapshot that one reads from, and those that are not
//! durable, which the next one's snapshot will lack.

use std::collections::VecDeque;

use bytes::Bytes;

use super::fragments::Fragments;

/// What a block is by a commit: its data, or zeros.
pub(crate) type Content = Option<Bytes>;

/// Bytes that a write of a commit takes here, about, without its data.
const WRITE_BYTES: usize = 128;
/// Fewest buckets, and how many times as many as writes there may be: a power of two, as their number is.
const BUCKETS_MIN: usize = 256;
const BUCKETS_EACH_MAX: usize = 8;

/// What a commit has written of a block.
#[derive(Debug)]
struct Write {
    version: u64,
    block: u64,
    fragments: Fragments,
    /// The number of the write before it of a block in the same bucket, which may be forgotten.
    before: Option<u64>,
    /// What the block is by it, if it is the last of its block.
    content: Option<Content>,
}

/// See the module. Writes are numbered as they come; those of the blocks in a bucket lead from the last one back to the first that is here,
/// so that nothing is to be looked up when one is forgotten.
#[derive(Debug)]
pub(crate) struct Window {
    /// The number of the last write of a block in each bucket, which may be forgotten. There are at least as many buckets as writes.
    last_writes: Vec<Option<u64>>,
    writes: VecDeque<Write>,
    /// The number of the first write that is here.
    first: u64,
    /// Versions, and the number of the write after the last of each.
    commits: VecDeque<(u64, u64)>,
    bytes: usize,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            last_writes: vec![None; BUCKETS_MIN],
            writes: VecDeque::new(),
            first: 0,
            commits: VecDeque::new(),
            bytes: 0,
        }
    }
}

impl Window {
    /// A commit was handed over: what it has written of each block, and what that is now.
    #[inline(never)]
    pub(crate) fn add(&mut self, version: u64, writes: impl IntoIterator<Item = (u64, Fragments, Content)>) {
        assert!(self.last().is_none_or(|last| last < version), "commits come in their order");
        for (block, fragments, content) in writes {
            if let Some(superseded) = self.last_of(block).and_then(|at| self.writes[at].content.take()) {
                self.bytes -= data_bytes(&superseded);
            }
            if self.writes.len() == self.last_writes.len() {
                self.sort_into(2 * self.last_writes.len());
            }
            self.bytes += WRITE_BYTES + data_bytes(&content);
            let (number, bucket) = (self.next_number(), self.bucket_of(block));
            let before = self.last_writes[bucket].replace(number);
            self.writes.push_back(Write { version, block, fragments, before, content: Some(content) });
        }
        self.commits.push_back((version, self.next_number()));
    }

    /// So many buckets from now on.
    fn sort_into(&mut self, buckets: usize) {
        self.last_writes = vec![None; buckets];
        for at in 0..self.writes.len() {
            let bucket = self.bucket_of(self.writes[at].block);
            self.writes[at].before = self.last_writes[bucket].replace(self.first + at as u64);
        }
    }

    /// Neighbours come to lie in different ones: the golden ratio's multiples are spread.
    fn bucket_of(&self, block: u64) -> usize {
        let spread = block.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (spread >> (u64::BITS - self.last_writes.len().trailing_zeros())) as usize
    }

    fn next_number(&self) -> u64 {
        self.first + self.writes.len() as u64
    }

    /// Nobody reads from a snapshot below this version any more, and it is durable.
    #[inline(never)]
    pub(crate) fn forget(&mut self, version: u64) {
        while let Some((_, end)) = self.commits.pop_front_if(|(first, _)| *first <= version) {
            while self.first < end {
                let write = self.writes.pop_front().expect("a write of a commit that is here");
                self.bytes -= WRITE_BYTES + write.content.as_ref().map_or(0, data_bytes);
                self.first += 1;
            }
        }
        if self.last_writes.len() > BUCKETS_MIN.max(BUCKETS_EACH_MAX * self.writes.len()) {
            self.sort_into(self.last_writes.len() / 2);
        }
    }

    /// Where the writes of the blocks in this one's bucket are, the last one first.
    fn bucket(&self, block: u64) -> impl Iterator<Item = usize> {
        let at = |number: u64| number.checked_sub(self.first).map(|at| at as usize);
        let last = self.last_writes[self.bucket_of(block)].and_then(at);
        std::iter::successors(last, move |&here| self.writes[here].before.and_then(at))
    }

    /// Where the last write of a block is.
    fn last_of(&self, block: u64) -> Option<usize> {
        self.bucket(block).find(|&at| self.writes[at].block == block)
    }

    /// The first commit within `(after, upto]` that has written some of these fragments, and which.
    pub(crate) fn conflict(
        &self,
        block: u64,
        fragments: Fragments,
        after: u64,
        upto: u64,
    ) -> Option<(u64, Fragments)> {
        let later = self.bucket(block).map(|at| &self.writes[at]).take_while(|write| write.version > after);
        let within = later.filter(|write| write.block == block && write.version <= upto);
        let common = within.map(|write| (write.version, write.fragments.and(fragments)));
        common.filter(|(_, common)| !common.is_empty()).last()
    }

    /// The last commit that has written a block, if it is after `after`, and what the block is by it.
    pub(crate) fn latest(&self, block: u64, after: u64) -> Option<(u64, &Content)> {
        let last = self.last_of(block).map(|at| &self.writes[at]).filter(|write| write.version > after)?;
        let content = last.content.as_ref().expect("the last of its block says what the block is");
        Some((last.version, content))
    }

    /// What a block is by the last commit, if one after `after` has written it.
    pub(crate) fn content(&self, block: u64, after: u64) -> Option<&Content> {
        self.latest(block, after).map(|(_, content)| content)
    }

    /// The last commit that is here.
    pub(crate) fn last(&self) -> Option<u64> {
        self.commits.back().map(|(version, _)| *version)
    }

    /// Bytes that all of it takes, about.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Commits that are here.
    pub(crate) fn len(&self) -> usize {
        self.commits.len()
    }
}

fn data_bytes(content: &Content) -> usize {
    content.as_ref().map_or(0, Bytes::len)
}

#[cfg(test)]
mod tests {
    use ithaca_env::sim::Random;

    use super::*;
    use crate::tx::Grain;

    /// What the window knows, as a list of all writes that are here: versions, blocks, fragments and data.
    type Model = Vec<(u64, u64, Fragments, Content)>;

    fn check(window: &Window, model: &Model, block: u64, fragments: Fragments, after: u64, upto: u64) {
        let of_block = || model.iter().filter(|write| write.1 == block && write.0 > after);
        let latest = of_block().next_back().map(|(version, _, _, content)| (*version, content));
        assert_eq!(window.latest(block, after), latest, "block {block} after {after}");
        let mut common = of_block().map(|write| (write.0, write.2.and(fragments)));
        let conflict = common.find(|(version, common)| *version <= upto && !common.is_empty());
        assert_eq!(
            window.conflict(block, fragments, after, upto),
            conflict,
            "block {block} in ({after}, {upto}]"
        );
    }

    #[test]
    fn a_window_that_grows_and_shrinks_knows_what_a_list_of_all_writes_knows() {
        let (grain, mut rng) = (Grain::new(16), Random::new(1));
        let (mut window, mut model, mut forgotten) = (Window::default(), Model::new(), 0);
        for version in 1..=4000_u64 {
            // Some blocks are written often; of the others each is in a bucket with several more.
            let blocks = [rng.below(8), 8 + version % 1000];
            let writes = blocks.map(|block| {
                let at = rng.below(4) as usize * 16;
                let content = (rng.below(4) > 0).then(|| Bytes::from(version.to_le_bytes().to_vec()));
                (block, grain.touched(at..at + 16), content)
            });
            model.extend(
                writes.iter().map(|(block, fragments, data)| (version, *block, *fragments, data.clone())),
            );
            window.add(version, writes);
            // Up to 2000 commits are here, then few.
            if version % 2000 > 1900 || rng.below(4) == 0 {
                forgotten += rng.below(if version % 2000 > 1900 { 80 } else { 2 });
                forgotten = forgotten.min(version - 1);
                window.forget(forgotten);
                model.retain(|write| write.0 > forgotten);
            }
            let after = forgotten + rng.below(version - forgotten + 1);
            let fragments = grain.touched(0..16 * (1 + rng.below(4) as usize));
            check(&window, &model, rng.below(1010), fragments, after, after + rng.below(50));
            check(&window, &model, rng.below(8), fragments, after, u64::MAX);
        }
        window.forget(4000);
        assert_eq!((window.bytes(), window.len(), window.last_writes.len()), (0, 0, BUCKETS_MIN));
    }
}
