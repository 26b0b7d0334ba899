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

/// The most strands of one index.
const STRANDS_MAX: usize = 4;

/// Where a run stands in an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunAt {
    strand: usize,
    place: usize,
}

impl RunAt {
    /// The run behind it among those that were added with ascending keys.
    pub(crate) fn next(self) -> Self {
        Self { place: self.place + 1, ..self }
    }
}

/// The runs of one segment by key. In a chain whose keys are written once the ranges of two runs never overlap.
#[derive(Debug, Default)]
pub(crate) struct SegmentIndex {
    /// Each sorted by key. The log's own runs come in the order of their keys, and so do those that a cleaner moves here
    /// from an older segment: each kind makes a strand, and adding to it is cheap.
    strands: Vec<Vec<RunRef>>,
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

    /// Nearly always at the end of a strand: only a few runs overtake each other.
    fn insert(&mut self, run: RunRef) {
        let is_after =
            |strand: &&mut Vec<RunRef>| strand.last().is_none_or(|last| last.first_key <= run.first_key);
        let highest = |strand: &&mut Vec<RunRef>| strand.last().map(|last| last.first_key);
        if let Some(strand) = self.strands.iter_mut().filter(is_after).max_by_key(highest) {
            return strand.push(run);
        }
        if self.strands.len() < STRANDS_MAX {
            return self.strands.push(vec![run]);
        }
        let shortest = self.strands.iter_mut().min_by_key(|strand| strand.len());
        let shortest = shortest.expect("there are some");
        let place = shortest.partition_point(|other| other.first_key <= run.first_key);
        shortest.insert(place, run);
    }

    fn get(&self, at: RunAt) -> Option<&RunRef> {
        self.strands.get(at.strand)?.get(at.place)
    }

    /// The first run that has a key at or after `from`.
    pub(crate) fn first_at(&self, from: u64) -> Option<RunAt> {
        let in_strand = |(strand, runs): (usize, &Vec<RunRef>)| {
            let after = runs.partition_point(|run| run.first_key <= from);
            if after > 0 && runs[after - 1].end_key() > from {
                return Some((from, RunAt { strand, place: after - 1 }));
            }
            runs.get(after).map(|run| (run.first_key, RunAt { strand, place: after }))
        };
        let found = self.strands.iter().enumerate().filter_map(in_strand);
        found.min_by_key(|(key, _)| *key).map(|(_, at)| at)
    }

    /// The keys of the run at `at`, if there is one.
    pub(crate) fn keys(&self, at: RunAt) -> Option<Range<u64>> {
        self.get(at).map(|run| run.first_key..run.end_key())
    }

    /// The records with keys in `keys` of the run at `at`, which lie within it, and the group's heads that they lie in.
    /// Panics if there is no such run.
    pub(crate) fn part(&self, at: RunAt, keys: Range<u64>) -> (HeadView<'_>, &Bytes) {
        let run = self.get(at).expect("it was found");
        let blob = &self.blobs[run.group as usize];
        (head_at(blob, run.at).part(keys, run.record_bytes), blob)
    }

    /// Every run, in no order that matters, with what its head lies in.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (HeadView<'_>, &Bytes)> {
        self.strands.iter().flatten().map(|run| {
            let blob = &self.blobs[run.group as usize];
            (head_at(blob, run.at), blob)
        })
    }

    /// For the footer, sorted by key.
    pub(crate) fn footer_runs(&self) -> impl Iterator<Item = FooterRun<'_>> {
        let mut places = vec![0; self.strands.len()];
        std::iter::from_fn(move || {
            let heads = self.strands.iter().enumerate();
            let heads = heads.filter_map(|(strand, runs)| Some((runs.get(places[strand])?, strand)));
            let (run, strand) = heads.min_by_key(|(run, _)| run.first_key)?;
            places[strand] += 1;
            Some(FooterRun {
                keys: (run.first_key, run.end_key()),
                blob: &self.blobs[run.group as usize][run.at as usize..(run.at + run.len) as usize],
            })
        })
    }
}

fn head_at(blob: &[u8], at: u32) -> HeadView<'_> {
    let (head, _) = HeadView::decode(&blob[at as usize..]).expect("encoded or checked here");
    head
}
