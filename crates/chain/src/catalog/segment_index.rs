//! The runs of one segment in memory: of an open one, and of a closed one while its groups are in the tail cache.

use std::ops::Range;

use bytes::Bytes;

use crate::format::{FooterRun, HeadView};

/// A run: its keys, and where its head is.
#[derive(Clone, Copy, Debug)]
struct RunRef {
    first_key: u64,
    count: u32,
    /// Which group of the segment.
    group: u32,
    /// Where its head lies in the group's blob, and how long it is.
    at: u32,
    len: u32,
    /// As of [`HeadView::record_bytes`].
    record_bytes: u32,
}

impl RunRef {
    fn end_key(&self) -> u64 {
        self.first_key + u64::from(self.count)
    }
}

/// The runs of one segment, sorted by key. Keys are written once, so the ranges of two runs never overlap.
#[derive(Debug, Default)]
pub(crate) struct SegmentIndex {
    runs: Vec<RunRef>,
    /// The run heads of each group, as they were written.
    blobs: Vec<Bytes>,
}

impl SegmentIndex {
    /// Adds a group's runs, whose heads begin at `starts` of `blob`. Returns the keys of each.
    pub(crate) fn add_group(&mut self, blob: Bytes, starts: &[u32], mut each: impl FnMut(Range<u64>)) {
        let group = self.blobs.len() as u32;
        for (index, &at) in starts.iter().enumerate() {
            let end = starts.get(index + 1).map_or(blob.len() as u32, |&next| next);
            let head = head_at(&blob, at);
            let keys = head.keys();
            let run = RunRef {
                first_key: keys.start,
                count: (keys.end - keys.start) as u32,
                group,
                at,
                len: end - at,
                record_bytes: head.record_bytes(),
            };
            each(run.first_key..run.end_key());
            self.insert(run);
        }
        self.blobs.push(blob);
    }

    /// Nearly always at the end: appends come in the order of their keys but for a few that overtake each other.
    fn insert(&mut self, run: RunRef) {
        match self.runs.last() {
            Some(last) if last.first_key > run.first_key => {
                let place = self.runs.partition_point(|other| other.first_key <= run.first_key);
                self.runs.insert(place, run);
            }
            _ => self.runs.push(run),
        }
    }

    /// The first run that has a key at or after `from`.
    pub(crate) fn first_at(&self, from: u64) -> Option<usize> {
        let after = self.runs.partition_point(|run| run.first_key <= from);
        if after > 0 && self.runs[after - 1].end_key() > from {
            return Some(after - 1);
        }
        (after < self.runs.len()).then_some(after)
    }

    /// The keys of run `index`, if there are so many.
    pub(crate) fn keys(&self, index: usize) -> Option<Range<u64>> {
        self.runs.get(index).map(|run| run.first_key..run.end_key())
    }

    /// The records of run `index` with keys in `keys`, which lie within it, and the group's heads that they lie in.
    pub(crate) fn part(&self, index: usize, keys: Range<u64>) -> (HeadView<'_>, &Bytes) {
        let run = &self.runs[index];
        let blob = &self.blobs[run.group as usize];
        (head_at(blob, run.at).part(keys, run.record_bytes), blob)
    }

    /// For the footer.
    pub(crate) fn footer_runs(&self) -> impl Iterator<Item = FooterRun<'_>> {
        self.runs.iter().map(|run| FooterRun {
            keys: (run.first_key, run.end_key()),
            blob: &self.blobs[run.group as usize][run.at as usize..(run.at + run.len) as usize],
        })
    }
}

fn head_at(blob: &[u8], at: u32) -> HeadView<'_> {
    let (head, _) = HeadView::decode(&blob[at as usize..]).expect("encoded or checked here");
    head
}
