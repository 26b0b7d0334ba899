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

/// A run goes into the middle of a strand if no more than so many runs behind it have to move.
const MOVES_MAX: usize = 64;
/// Runs in no order that are searched one by one.
const LOOSE_MAX: usize = 256;

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
///
/// The log's own runs come in the order of their keys, and so do those that a cleaner moves here from an older segment: each kind
/// makes a strand, and adding to it is cheap. Keys of no order are gathered, sorted together and merged with strands of about
/// their length, so that a run is moved a few times and a search looks at a few strands however many runs there are.
#[derive(Debug, Default)]
pub(crate) struct SegmentIndex {
    /// Each sorted by key.
    strands: Vec<Vec<RunRef>>,
    /// In the order in which they came.
    loose: Vec<RunRef>,
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
        // Runs at the end of a strand that come after it; none if they are too many to be moved.
        let moves = |strand: &Vec<RunRef>| {
            let near = &strand[strand.len().saturating_sub(MOVES_MAX)..];
            let behind = near.len() - near.partition_point(|other| other.first_key <= run.first_key);
            (behind < near.len() || near.len() < MOVES_MAX).then_some(behind)
        };
        let highest = |strand: &Vec<RunRef>| strand.last().map(|last| last.first_key);
        let near = self.strands.iter().enumerate().filter_map(|(at, strand)| Some((moves(strand)?, at)));
        match near.min_by_key(|(moves, at)| (*moves, std::cmp::Reverse(highest(&self.strands[*at])))) {
            Some((moves, at)) => {
                let strand = &mut self.strands[at];
                strand.insert(strand.len() - moves, run);
            }
            None if self.strands.is_empty() => self.strands.push(vec![run]),
            None => self.add_loose(run),
        }
    }

    fn add_loose(&mut self, run: RunRef) {
        self.loose.push(run);
        if self.loose.len() < LOOSE_MAX {
            return;
        }
        let mut strand = std::mem::take(&mut self.loose);
        strand.sort_by_key(|run| run.first_key);
        // Into one that is not much longer, so that each run is merged as often as the number of runs has binary digits.
        while let Some(before) = self.strands.pop_if(|before| before.len() < 2 * strand.len()) {
            strand.extend(before);
            // Two sorted stretches: this merges them.
            strand.sort_by_key(|run| run.first_key);
        }
        self.strands.push(strand);
    }

    fn get(&self, at: RunAt) -> Option<&RunRef> {
        self.strands.get(at.strand).unwrap_or(&self.loose).get(at.place)
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
        let loose = |(place, run): (usize, &RunRef)| {
            let at = RunAt { strand: self.strands.len(), place };
            (run.end_key() > from).then(|| (run.first_key.max(from), at))
        };
        let found = self.strands.iter().enumerate().filter_map(in_strand);
        let found = found.chain(self.loose.iter().enumerate().filter_map(loose));
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
        self.strands.iter().flatten().chain(&self.loose).map(|run| {
            let blob = &self.blobs[run.group as usize];
            (head_at(blob, run.at), blob)
        })
    }

    /// For the footer, sorted by key.
    pub(crate) fn footer_runs(&self) -> impl Iterator<Item = FooterRun<'_>> {
        let mut runs: Vec<&RunRef> = self.strands.iter().flatten().chain(&self.loose).collect();
        runs.sort_by_key(|run| run.first_key);
        runs.into_iter().map(|run| FooterRun {
            keys: (run.first_key, run.end_key()),
            blob: &self.blobs[run.group as usize][run.at as usize..(run.at + run.len) as usize],
        })
    }
}

fn head_at(blob: &[u8], at: u32) -> HeadView<'_> {
    let (head, _) = HeadView::decode(&blob[at as usize..]).expect("encoded or checked here");
    head
}

#[cfg(test)]
mod tests {
    use ithaca_env::sim::Random;

    use super::*;
    use crate::format::encode_run_head;
    use crate::run::{Run, RunKind, Table};

    /// Adds a run of `count` records.
    fn add(index: &mut SegmentIndex, first_key: u64, count: usize) {
        let table = Table::of_payloads(vec![[0_u8; 0]; count]);
        let (meta, data) = (Bytes::new(), Bytes::new());
        let run = Run { first_key, version: 1, kind: RunKind::Data, meta, table, data };
        let mut blob = bytes::BytesMut::new();
        encode_run_head(&mut blob, &run, false, 0);
        index.add_group(blob.freeze(), &[0], |_| ());
    }

    fn check(index: &SegmentIndex, keys: &std::collections::BTreeMap<u64, u64>, from: u64) {
        let containing = keys.range(..=from).next_back().filter(|(_, end)| **end > from);
        let expected = containing.or_else(|| keys.range(from..).next()).map(|(start, end)| *start..*end);
        assert_eq!(index.first_at(from).and_then(|at| index.keys(at)), expected, "from {from}");
    }

    #[test]
    fn runs_are_found_in_whatever_order_they_came() {
        let mut index = SegmentIndex::default();
        let mut keys = std::collections::BTreeMap::new();
        let mut random = Random::new(1);
        for step in 0..3000_u64 {
            // The log's own, those of a cleaner, and keys of no order; now and then one that was overtaken.
            let first = match step % 4 {
                0 => 1_000_000 + step * 10,
                1 => step * 10 - if step % 12 == 1 && step > 40 { 35 } else { 0 },
                _ => 2_000_000 + random.below(50_000) * 10,
            };
            if keys.contains_key(&first) {
                continue;
            }
            let count = 1 + random.below(5);
            add(&mut index, first, count as usize);
            keys.insert(first, first + count);
            for from in [first, first + count - 1, first + count, random.below(2_600_000)] {
                check(&index, &keys, from);
            }
        }
        assert!(index.strands.len() < 16 && index.loose.len() < LOOSE_MAX, "{} strands", index.strands.len());
        assert!(index.footer_runs().map(|run| run.keys).eq(keys.iter().map(|(start, end)| (*start, *end))));
        assert_eq!(index.runs().count(), keys.len());
    }
}
