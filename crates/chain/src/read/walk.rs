//! A walk over the records of a range of keys, in memory alone: where each run is found, and which part of it counts.
//!
//! ```text
//!   keys      |.....[====== run ======]....[== run ==]..released..[== run ==]...|
//!   next() ->        step                   step                   step        None
//! ```
//!
//! Every key is written once. A cleaner may have copied a record to another segment; any copy of it serves, and no segment
//! holds two.

use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;

use crate::cache::{FooterCache, FooterPart, PartKey};
use crate::catalog::{Catalog, RunAt, SegmentIndex};
use crate::format::{Directory, HeadView, PageView, RUN_HEAD_BYTES};
use crate::run::TABLE_ENTRY_BYTES;

/// A part of a footer that is not in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Missing(pub(crate) PartKey);

/// Parts of footers that were read for one plan, so that a small cache cannot make it start over for ever.
pub(crate) type Held = Vec<(PartKey, FooterPart)>;

/// What a walk still has to find.
#[derive(Clone, Debug)]
pub(crate) struct Goal {
    /// The keys that were not looked at yet.
    pub(crate) keys: Range<u64>,
    /// Bytes of data and tables that may still be taken; what it is exceeded by is cut off.
    pub(crate) left_bytes: usize,
    /// Runs that may still be taken.
    left_runs: usize,
    /// Nothing was taken yet: the first record is, whatever the limit.
    pub(crate) is_first: bool,
    /// Only heads are wanted: they are what the limit counts, and none is cut.
    is_of_headings: bool,
}

impl Goal {
    /// The records with these keys, of about `limit_bytes` of data and tables, but at least one record.
    pub(crate) fn new(keys: Range<u64>, limit_bytes: usize) -> Self {
        let left_bytes = limit_bytes.max(1);
        Self { keys, left_bytes, left_runs: usize::MAX, is_first: true, is_of_headings: false }
    }

    /// The same, of so many runs at the most.
    pub(crate) fn of_runs(self, runs_max: usize) -> Self {
        Self { left_runs: runs_max.max(1), ..self }
    }

    /// Whether nothing more may be taken.
    pub(crate) fn is_full(&self) -> bool {
        self.left_bytes == 0 || self.left_runs == 0
    }

    /// The heads of the runs with these keys, of about `limit_bytes` of heads, but at least one.
    pub(crate) fn of_headings(keys: Range<u64>, limit_bytes: usize) -> Self {
        Self { is_of_headings: true, ..Self::new(keys, limit_bytes) }
    }

    /// How many records at the front of `head` are within the limit. Uses up what they cost.
    fn take(&mut self, head: &HeadView<'_>) -> usize {
        let count = head.table.len() / TABLE_ENTRY_BYTES;
        if self.is_of_headings {
            let cost = RUN_HEAD_BYTES + head.meta.len() + head.table.len();
            let fits = cost <= self.left_bytes || self.is_first;
            self.left_bytes = self.left_bytes.saturating_sub(cost);
            return if fits { count } else { 0 };
        }
        let cost = head.data_bytes as usize + head.table.len();
        if cost <= self.left_bytes {
            self.left_bytes -= cost;
            return count;
        }
        let mut left = std::mem::take(&mut self.left_bytes);
        let fits = head.table.chunks_exact(TABLE_ENTRY_BYTES).take_while(|entry| {
            let len = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
            let cost = len as usize + TABLE_ENTRY_BYTES;
            let fits = cost <= left;
            left = left.saturating_sub(cost);
            fits
        });
        fits.count().max(usize::from(self.is_first))
    }
}

/// Records of one run that were found.
pub(crate) struct Step<'s> {
    pub(crate) segment: u32,
    pub(crate) lap: u64,
    pub(crate) head: HeadView<'s>,
    /// What the head lies in.
    pub(crate) blob: &'s Bytes,
}

/// A run, and what follows it in the same place.
enum Source<'a> {
    Memory { segment: u32, lap: u64, index: &'a SegmentIndex, at: RunAt },
    Page { segment: u32, lap: u64, page: Rc<PageView>, at: usize },
}

impl Source<'_> {
    fn keys(&self) -> Option<Range<u64>> {
        match self {
            Self::Memory { index, at, .. } => index.keys(*at),
            Self::Page { page, at, .. } => page.keys(*at),
        }
    }

    fn step(&self, keys: Range<u64>) -> Step<'_> {
        let (&segment, &lap, (head, blob)) = match self {
            Self::Memory { segment, lap, index, at } => (segment, lap, index.part(*at, keys)),
            Self::Page { segment, lap, page, at } => (segment, lap, page.part(*at, keys)),
        };
        Step { segment, lap, head, blob }
    }

    /// Moves to the next run if its keys follow without a gap: then no other segment has keys in between.
    fn advance(&mut self, key: u64) -> bool {
        match self {
            Self::Memory { at, .. } => *at = at.next(),
            Self::Page { at, .. } => *at += 1,
        }
        self.keys().is_some_and(|keys| keys.start == key)
    }
}

/// A walk towards a goal.
pub(crate) struct Walk<'a, 'g> {
    catalog: &'a Catalog,
    goal: &'g mut Goal,
    source: Option<Source<'a>>,
    /// Segments in which nothing is looked for.
    except: &'a [u32],
}

impl<'a, 'g> Walk<'a, 'g> {
    pub(crate) fn new(catalog: &'a Catalog, goal: &'g mut Goal) -> Self {
        Self { catalog, goal, source: None, except: &[] }
    }

    /// The same, but without what some segments hold.
    pub(crate) fn except(self, segments: &'a [u32]) -> Self {
        Self { except: segments, ..self }
    }

    /// The next records; `None` when there is nothing more to find: the goal then begins where the limit cut it off, or is
    /// empty. When a part of a footer is missing the goal begins where the search stands.
    pub(crate) fn next(&mut self, cache: &mut FooterCache, held: &Held) -> Result<Option<Step<'_>>, Missing> {
        let catalog = self.catalog;
        let released = &catalog.released;
        loop {
            let from = released.first_gap(self.goal.keys.start).min(self.goal.keys.end);
            self.goal.keys.start = from;
            if self.goal.keys.is_empty() || self.goal.is_full() {
                return Ok(None);
            }
            // What stands here may have been passed, where its last records are released.
            let is_passed = self.source.as_ref().and_then(Source::keys).is_none_or(|keys| keys.end <= from);
            if is_passed {
                self.source = self.find(cache, held)?;
            }
            let Some(run) = self.source.as_ref().and_then(Source::keys) else {
                self.goal.keys.start = self.goal.keys.end;
                return Ok(None);
            };
            if run.start > from {
                self.goal.keys.start = run.start.min(self.goal.keys.end);
                continue;
            }
            let end = run.end.min(self.goal.keys.end);
            let end = released.overlaps(from..end).next().map_or(end, |gone| gone.start);
            return Ok(self.take(from..end));
        }
    }

    /// Takes what the limit allows of these keys of the run that the walk stands at.
    fn take(&mut self, keys: Range<u64>) -> Option<Step<'_>> {
        let source = self.source.as_ref()?;
        let step = source.step(keys);
        let count = self.goal.take(&step.head);
        self.goal.is_first = false;
        self.goal.left_runs -= 1;
        self.goal.keys.start = step.head.first_key + count as u64;
        if count == 0 {
            return None;
        }
        let head = step.head.part(step.head.first_key..self.goal.keys.start, 0);
        Some(Step { head, ..step })
    }

    /// The run that has the first key of the goal, or else the lowest after it.
    fn find(&mut self, cache: &mut FooterCache, held: &Held) -> Result<Option<Source<'a>>, Missing> {
        let from = self.goal.keys.start;
        if let Some(mut source) = self.source.take()
            && source.advance(from)
        {
            return Ok(Some(source));
        }
        let mut best: Option<(u64, Source<'a>)> = None;
        for (segment, lap, index) in self.catalog.in_memory() {
            if self.except.contains(&segment) {
                continue;
            }
            let Some(at) = index.first_at(from) else { continue };
            let Some(keys) = index.keys(at) else { continue };
            let source = Source::Memory { segment, lap, index, at };
            if keys.start <= from {
                return Ok(Some(source));
            }
            if best.as_ref().is_none_or(|(lowest, _)| keys.start < *lowest) {
                best = Some((keys.start, source));
            }
        }
        for (key, segment) in self.catalog.cold_candidates(self.goal.keys.clone()) {
            if best.as_ref().is_some_and(|(lowest, _)| *lowest <= key) {
                break;
            }
            if self.except.contains(&segment) {
                continue;
            }
            let Some(source) = self.search_footer(cache, held, segment)? else { continue };
            let Some(keys) = source.keys() else { continue };
            let key = keys.start.max(from);
            if best.as_ref().is_none_or(|(lowest, _)| key < *lowest) {
                best = Some((key, source));
            }
        }
        Ok(best.map(|(_, source)| source))
    }

    fn search_footer(
        &self,
        cache: &mut FooterCache,
        held: &Held,
        segment: u32,
    ) -> Result<Option<Source<'a>>, Missing> {
        let Some(closed) = self.catalog.closed(segment) else { return Ok(None) };
        let from = self.goal.keys.start;
        let lap = closed.lap;
        let directory = directory(cache, held, PartKey { segment, lap, page: None })?;
        let first = directory.pages.partition_point(|page| page.keys.end <= from);
        // Pages are in the order of their first keys, and runs do not overlap, so their ends are in order too.
        if first == directory.pages.len() {
            return Ok(None);
        }
        let page = page(cache, held, PartKey { segment, lap, page: Some(first as u32) })?;
        Ok(page.first_at(from).map(|at| Source::Page { segment, lap, page, at }))
    }
}

fn part(cache: &mut FooterCache, held: &Held, key: PartKey) -> Result<FooterPart, Missing> {
    let found = held.iter().find(|(held, _)| *held == key).map(|(_, part)| part.clone());
    found.or_else(|| cache.get(key)).ok_or(Missing(key))
}

fn directory(cache: &mut FooterCache, held: &Held, key: PartKey) -> Result<Rc<Directory>, Missing> {
    match part(cache, held, key)? {
        FooterPart::Directory(directory) => Ok(directory),
        FooterPart::Page(_) => Err(Missing(key)),
    }
}

fn page(cache: &mut FooterCache, held: &Held, key: PartKey) -> Result<Rc<PageView>, Missing> {
    match part(cache, held, key)? {
        FooterPart::Page(page) => Ok(page),
        FooterPart::Directory(_) => Err(Missing(key)),
    }
}
