//! Which runs answer a read, and where their data is. Works on memory alone: when a part of a footer is not there it
//! says which, and goes on where it was when it has been given it.

use std::ops::Range;
use std::rc::Rc;

use crate::cache::{FooterCache, FooterPart, PartKey};
use crate::catalog::{Catalog, Located, SegmentIndex};
use crate::format::{Directory, PageView, RunHead};

/// A read under way.
pub(crate) struct Plan {
    /// Runs found, sliced to what was asked for, in key order.
    pub(crate) found: Vec<Located>,
    keys: Range<u64>,
    left_bytes: usize,
    /// Parts of footers that were read for this plan, so that a small cache cannot make it start over for ever.
    pub(crate) held: Vec<(PartKey, FooterPart)>,
}

/// A part of a footer that is not in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Missing(pub(crate) PartKey);

/// A run, and what follows it in the same place.
enum Source<'a> {
    Memory { segment: u32, lap: u64, index: &'a SegmentIndex, at: usize },
    Page { segment: u32, lap: u64, page: Rc<PageView>, at: usize },
}

impl Source<'_> {
    fn keys(&self) -> Option<Range<u64>> {
        match self {
            Self::Memory { index, at, .. } => index.keys(*at),
            Self::Page { page, at, .. } => page.keys(*at),
        }
    }

    fn run(&self) -> RunHead {
        match self {
            Self::Memory { index, at, .. } => index.run(*at),
            Self::Page { page, at, .. } => page.run(*at),
        }
    }

    fn place(&self) -> (u32, u64) {
        match self {
            Self::Memory { segment, lap, .. } | Self::Page { segment, lap, .. } => (*segment, *lap),
        }
    }

    /// Moves to the next run if its keys follow without a gap: then no other segment has keys in between.
    fn advance(&mut self, key: u64) -> bool {
        match self {
            Self::Memory { at, .. } | Self::Page { at, .. } => *at += 1,
        }
        self.keys().is_some_and(|keys| keys.start == key)
    }
}

impl Plan {
    /// A read of the records with these keys, of about `limit_bytes` of data and tables, but at least one record.
    pub(crate) fn new(keys: Range<u64>, limit_bytes: usize) -> Self {
        Self { found: Vec::new(), keys, left_bytes: limit_bytes.max(1), held: Vec::new() }
    }

    /// Goes on until all is found, or a part of a footer is needed.
    pub(crate) fn run(&mut self, catalog: &Catalog, cache: &mut FooterCache) -> Result<(), Missing> {
        loop {
            self.keys.start = catalog.released.first_gap(self.keys.start);
            if self.keys.is_empty() || self.left_bytes == 0 {
                return Ok(());
            }
            let Some(mut source) = self.next(catalog, cache)? else { return Ok(()) };
            if source.keys().is_none_or(|keys| keys.start >= self.keys.end) {
                return Ok(());
            }
            while let Some(keys) = source.keys()
                && keys.start < self.keys.end
            {
                let keys = keys.start.max(self.keys.start)..keys.end.min(self.keys.end);
                self.take(catalog, &source, keys.clone());
                self.keys.start = keys.end;
                if self.keys.is_empty() || self.left_bytes == 0 {
                    return Ok(());
                }
                if !source.advance(keys.end) {
                    break;
                }
            }
        }
    }

    /// Adds the unreleased records of a run.
    fn take(&mut self, catalog: &Catalog, source: &Source<'_>, keys: Range<u64>) {
        let (segment, lap) = source.place();
        let mut run = None;
        for part in catalog.released.gaps(keys) {
            let whole = run.get_or_insert_with(|| source.run());
            let slice = if whole.keys() == part { whole.clone() } else { whole.slice(part) };
            let Some(slice) = self.cut(slice) else { return };
            self.found.push(Located { segment, lap, run: slice });
            if self.left_bytes == 0 {
                return;
            }
        }
    }

    /// The part of a run that the limit allows.
    fn cut(&mut self, run: RunHead) -> Option<RunHead> {
        let cost = run.data_bytes as usize + run.table.as_bytes().len();
        if cost <= self.left_bytes {
            self.left_bytes -= cost;
            return Some(run);
        }
        let mut left = std::mem::take(&mut self.left_bytes);
        let fits = run.table.entries().take_while(|entry| {
            let cost = entry.len as usize + crate::run::TABLE_ENTRY_BYTES;
            let fits = cost <= left;
            left = left.saturating_sub(cost);
            fits
        });
        let count = fits.count().max(usize::from(self.found.is_empty()));
        (count > 0).then(|| run.slice(run.first_key..run.first_key + count as u64))
    }

    /// The run with the lowest key at or after where the plan stands.
    fn next<'a>(&self, catalog: &'a Catalog, cache: &mut FooterCache) -> Result<Option<Source<'a>>, Missing> {
        let from = self.keys.start;
        let mut best: Option<(u64, Source<'a>)> = None;
        let mut offer = |source: Source<'a>| {
            let Some(keys) = source.keys() else { return };
            let key = keys.start.max(from);
            if best.as_ref().is_none_or(|(lowest, _)| key < *lowest) {
                best = Some((key, source));
            }
        };
        for (segment, lap, index) in catalog.in_memory() {
            if let Some(at) = index.first_at(from) {
                offer(Source::Memory { segment, lap, index, at });
            }
        }
        for (key, segment) in catalog.cold_candidates(self.keys.clone()) {
            if best.as_ref().is_some_and(|(lowest, _)| *lowest <= key) {
                break;
            }
            let Some(source) = self.search_footer(catalog, cache, segment)? else { continue };
            let Some(keys) = source.keys() else { continue };
            let key = keys.start.max(from);
            if best.as_ref().is_none_or(|(lowest, _)| key < *lowest) {
                best = Some((key, source));
            }
        }
        Ok(best.map(|(_, source)| source))
    }

    fn search_footer<'a>(
        &self,
        catalog: &Catalog,
        cache: &mut FooterCache,
        segment: u32,
    ) -> Result<Option<Source<'a>>, Missing> {
        let Some(closed) = catalog.closed(segment) else { return Ok(None) };
        let from = self.keys.start;
        let lap = closed.lap;
        let directory = self.directory(cache, PartKey { segment, lap, page: None })?;
        let first = directory.pages.partition_point(|page| page.keys.end <= from);
        // Pages are in the order of their first keys, and runs do not overlap, so their ends are in order too.
        if first == directory.pages.len() {
            return Ok(None);
        }
        let page = self.page(cache, PartKey { segment, lap, page: Some(first as u32) })?;
        Ok(page.first_at(from).map(|at| Source::Page { segment, lap, page, at }))
    }

    fn part(&self, cache: &mut FooterCache, key: PartKey) -> Result<FooterPart, Missing> {
        let held = self.held.iter().find(|(held, _)| *held == key).map(|(_, part)| part.clone());
        held.or_else(|| cache.get(key)).ok_or(Missing(key))
    }

    fn directory(&self, cache: &mut FooterCache, key: PartKey) -> Result<Rc<Directory>, Missing> {
        match self.part(cache, key)? {
            FooterPart::Directory(directory) => Ok(directory),
            FooterPart::Page(_) => Err(Missing(key)),
        }
    }

    fn page(&self, cache: &mut FooterCache, key: PartKey) -> Result<Rc<PageView>, Missing> {
        match self.part(cache, key)? {
            FooterPart::Page(page) => Ok(page),
            FooterPart::Directory(_) => Err(Missing(key)),
        }
    }
}
