//! The commits that a transaction may be in conflict with: those after the oldest snapshot that one reads from, and those that are not
//! durable, which the next one's snapshot will lack.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::fragments::Fragments;

/// What a block is by a commit: its data, or zeros.
pub(crate) type Content = Option<Bytes>;

/// Bytes that a write of a commit takes here, about, without its data.
const WRITE_BYTES: usize = 64;

/// What a commit has written of a block.
#[derive(Debug)]
struct Write {
    version: u64,
    block: u64,
    fragments: Fragments,
    /// The number of the write of the same block before it, which may be forgotten.
    before: Option<u64>,
    /// What the block is by it, if it is the last of its block.
    content: Option<Content>,
}

/// See the module. Writes are numbered as they come; those of a block lead from the last one back to the first that is here.
#[derive(Debug, Default)]
pub(crate) struct Window {
    /// The number of the last write of each block that has one here.
    last_writes: BTreeMap<u64, u64>,
    writes: VecDeque<Write>,
    /// The number of the first write that is here.
    first: u64,
    /// Versions, and the number of the write after the last of each.
    commits: VecDeque<(u64, u64)>,
    bytes: usize,
}

impl Window {
    /// A commit was handed over: what it has written of each block, and what that is now.
    #[inline(never)]
    pub(crate) fn add(&mut self, version: u64, writes: impl IntoIterator<Item = (u64, Fragments, Content)>) {
        assert!(self.last().is_none_or(|last| last < version), "commits come in their order");
        for (block, fragments, content) in writes {
            let number = self.next_number();
            self.bytes += WRITE_BYTES + data_bytes(&content);
            let before = self.last_writes.insert(block, number);
            if let Some(before) = before {
                let superseded = self.writes[(before - self.first) as usize].content.take();
                self.bytes -= superseded.as_ref().map_or(0, data_bytes);
            }
            self.writes.push_back(Write { version, block, fragments, before, content: Some(content) });
        }
        self.commits.push_back((version, self.next_number()));
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
                self.bytes -= WRITE_BYTES;
                if let Some(content) = write.content {
                    self.last_writes.remove(&write.block);
                    self.bytes -= data_bytes(&content);
                }
                self.first += 1;
            }
        }
    }

    /// The writes of a block, the last one first.
    fn writes_of(&self, block: u64) -> impl Iterator<Item = &Write> {
        let last = self.last_writes.get(&block).copied();
        let at = |number: u64| self.writes.get(number.checked_sub(self.first)? as usize);
        std::iter::successors(last.and_then(at), move |write| write.before.and_then(at))
    }

    /// The first commit within `(after, upto]` that has written some of these fragments, and which.
    pub(crate) fn conflict(
        &self,
        block: u64,
        fragments: Fragments,
        after: u64,
        upto: u64,
    ) -> Option<(u64, Fragments)> {
        let later = self.writes_of(block).take_while(|write| write.version > after);
        let within = later.filter(|write| write.version <= upto);
        let common = within.map(|write| (write.version, write.fragments.and(fragments)));
        common.filter(|(_, common)| !common.is_empty()).last()
    }

    /// The last commit that has written a block, if it is after `after`, and what the block is by it.
    pub(crate) fn latest(&self, block: u64, after: u64) -> Option<(u64, &Content)> {
        let last = self.writes_of(block).next().filter(|write| write.version > after)?;
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
