//! Which runs answer a read of some ranges of keys, and where their data is. Works on memory alone: when parts of footers
//! are not there it says which, and goes on where it was when it has been given them.

use std::ops::Range;

use super::walk::{Goal, Held, Missing, Walk};
use super::{RangeEnd, limits};
use crate::cache::{FooterCache, FooterPart, PartKey};
use crate::catalog::{Catalog, Located};

/// A read under way.
pub(crate) struct Plan {
    /// Runs found, sliced to what was asked for: in key order within each range, range after range.
    pub(crate) found: Vec<Located>,
    /// How far each range that was looked at is read.
    pub(crate) ends: Vec<RangeEnd>,
    /// In the order of the request.
    ranges: Vec<Range<u64>>,
    /// What is left of the range after those in `ends`.
    goal: Goal,
    held: Held,
    /// See [`Walk::except`].
    except: Vec<u32>,
}

impl Plan {
    /// A read of the records with these keys, of about `limit_bytes` of data and tables, but at least one record.
    pub(crate) fn new(ranges: Vec<Range<u64>>, limit_bytes: usize) -> Self {
        let goal = Goal::new(ranges.first().cloned().unwrap_or_default(), limit_bytes);
        Self { found: Vec::new(), ends: Vec::new(), ranges, goal, held: Held::new(), except: Vec::new() }
    }

    /// The same, of so many runs at the most.
    pub(crate) fn of_runs(self, runs_max: usize) -> Self {
        Self { goal: self.goal.of_runs(runs_max), ..self }
    }

    /// A look at the heads of the runs with these keys, of about `limit_bytes` of heads, but at least one.
    pub(crate) fn of_headings(keys: Range<u64>, limit_bytes: usize) -> Self {
        let goal = Goal::of_headings(keys.clone(), limit_bytes);
        Self { goal, ..Self::new(vec![keys], limit_bytes) }
    }

    /// Where else than in these segments all records with these keys are.
    pub(crate) fn elsewhere(ranges: Vec<Range<u64>>, segments: Vec<u32>) -> Self {
        Self { except: segments, ..Self::new(ranges, usize::MAX) }
    }

    /// Goes on until all is found, or parts of footers are needed.
    pub(crate) fn run(&mut self, catalog: &Catalog, cache: &mut FooterCache) -> Result<(), Vec<PartKey>> {
        let before = (self.ends.len(), self.goal.keys.start);
        while self.ends.len() < self.ranges.len() {
            if let Err(missing) = self.run_range(catalog, cache) {
                if before != (self.ends.len(), self.goal.keys.start) {
                    self.held.clear();
                }
                return Err(self.all_missing(missing, catalog, cache));
            }
            self.ends.push(RangeEnd { runs: self.found.len(), next: self.goal.keys.start });
            if self.goal.is_full() {
                break;
            }
            self.goal.keys = self.ranges.get(self.ends.len()).cloned().unwrap_or_default();
        }
        self.held.clear();
        Ok(())
    }

    /// Parts that were asked for. They are kept until the plan has got further, however small the cache is.
    pub(crate) fn hold(&mut self, parts: Vec<(PartKey, FooterPart)>) {
        self.held.extend(parts);
    }

    fn run_range(&mut self, catalog: &Catalog, cache: &mut FooterCache) -> Result<(), Missing> {
        let mut walk = Walk::new(catalog, &mut self.goal).except(&self.except);
        while let Some(step) = walk.next(cache, &self.held)? {
            let run = step.head.to_head(step.blob);
            self.found.push(Located { segment: step.segment, lap: step.lap, run });
        }
        Ok(())
    }

    /// The part that the plan stands before, and those that the ranges after it begin in, so that they are read at the same
    /// time.
    fn all_missing(&self, first: Missing, catalog: &Catalog, cache: &mut FooterCache) -> Vec<PartKey> {
        let mut parts = vec![first.0];
        for keys in self.ranges.iter().skip(self.ends.len() + 1) {
            let mut goal = Goal::new(keys.clone(), 1);
            if let Err(Missing(part)) =
                Walk::new(catalog, &mut goal).except(&self.except).next(cache, &self.held)
                && !parts.contains(&part)
            {
                parts.push(part);
            }
            if parts.len() == limits::FOOTER_LOADS_MAX {
                break;
            }
        }
        parts
    }
}
