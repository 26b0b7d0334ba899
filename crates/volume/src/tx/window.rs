//! The commits that a transaction may be in conflict with: those after the oldest snapshot that one reads from, and those that are not
//! durable, which the next one's snapshot will lack.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::fragments::Fragments;

/// What a block is by a commit: its data, or zeros.
pub(crate) type Content = Option<Bytes>;

/// Bytes that a write of a commit takes here, about, without its data.
const WRITE_BYTES: usize = 64;

#[derive(Debug)]
struct Recent {
    /// Versions and what each has written, oldest first.
    writes: VecDeque<(u64, Fragments)>,
    /// By the last of them.
    content: Content,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Window {
    blocks: BTreeMap<u64, Recent>,
    commits: VecDeque<(u64, Vec<u64>)>,
    bytes: usize,
}

impl Window {
    /// A commit was handed over: what it has written of each block, and what that is now.
    #[inline(never)]
    pub(crate) fn add(&mut self, version: u64, writes: impl IntoIterator<Item = (u64, Fragments, Content)>) {
        let mut blocks = Vec::new();
        for (block, fragments, content) in writes {
            let data_bytes = |content: &Content| content.as_ref().map_or(0, Bytes::len);
            self.bytes += WRITE_BYTES + data_bytes(&content);
            let recent =
                self.blocks.entry(block).or_insert_with(|| Recent { writes: VecDeque::new(), content: None });
            self.bytes -= data_bytes(&recent.content);
            recent.writes.push_back((version, fragments));
            recent.content = content;
            blocks.push(block);
        }
        assert!(self.commits.back().is_none_or(|(last, _)| *last < version), "commits come in their order");
        self.commits.push_back((version, blocks));
    }

    /// Nobody reads from a snapshot below this version any more, and it is durable.
    #[inline(never)]
    pub(crate) fn forget(&mut self, version: u64) {
        while let Some((version, blocks)) = self.commits.pop_front_if(|(first, _)| *first <= version) {
            for block in blocks {
                let recent = self.blocks.get_mut(&block).expect("a block of a commit that is here");
                let first = recent.writes.pop_front();
                assert_eq!(first.map(|it| it.0), Some(version), "a block is written once by a commit");
                self.bytes -= WRITE_BYTES;
                if recent.writes.is_empty() {
                    self.bytes -= recent.content.as_ref().map_or(0, Bytes::len);
                    self.blocks.remove(&block);
                }
            }
        }
    }

    /// The first commit within `(after, upto]` that has written some of these fragments, and which.
    pub(crate) fn conflict(
        &self,
        block: u64,
        fragments: Fragments,
        after: u64,
        upto: u64,
    ) -> Option<(u64, Fragments)> {
        let writes = self.blocks.get(&block)?.writes.iter();
        let within = writes.filter(|(version, _)| *version > after && *version <= upto);
        within
            .map(|(version, written)| (*version, written.and(fragments)))
            .find(|(_, common)| !common.is_empty())
    }

    /// What a block is by the last commit, if one after `after` has written it.
    pub(crate) fn content(&self, block: u64, after: u64) -> Option<&Content> {
        let recent = self.blocks.get(&block)?;
        recent.writes.back().filter(|(version, _)| *version > after).map(|_| &recent.content)
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
