//! Records that are damaged where they are found first, and may lie elsewhere too: an owner that has them from a replica writes
//! them again, with the same key, and a cleaner that was cut off leaves two copies. Either serves.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use ithaca_env::drive::DriveError;

use super::{FetchError, Plan};
use crate::catalog::Located;
use crate::chain::{Chain, Inner};
use crate::error::{Damage, DamageKind, ReadError};
use crate::range_set::RangeSet;
use crate::run::{RunKind, Table};

/// What the index says of some records, whether or not their data can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// Key of the first record.
    pub first_key: u64,
    /// The owner's version.
    pub version: u64,
    /// What the records are.
    pub kind: RunKind,
    /// Length and checksum of each.
    pub table: Table,
    /// Whether they lie in a segment that is full: while it is not, none of them can be written again.
    pub is_closed: bool,
}

impl Described {
    /// The keys.
    pub fn keys(&self) -> Range<u64> {
        self.first_key..self.first_key + self.table.count() as u64
    }
}

/// Where a record was found not to be any more.
#[derive(Default)]
pub(super) struct Sought {
    segments: Vec<u32>,
    /// Why it could not be read where it may be.
    unread: Option<ReadError>,
}

/// The same, by key.
pub(super) type Bad = BTreeMap<u64, Sought>;

impl Chain {
    /// What the index says of the records with these keys, in key order. Keys without a record, released ones and those of lost
    /// groups are left out. The data is not looked at.
    ///
    /// Errors: `Damaged` if a footer cannot be read and its segment neither; `Drive`.
    pub async fn describe(&self, keys: Range<u64>) -> Result<Vec<Described>, ReadError> {
        let mut plan = Plan::new(vec![keys], usize::MAX);
        self.inner.run_plan(&mut plan, 0).await?;
        let core = self.inner.core.borrow();
        let described = |Located { segment, run, .. }: Located| Described {
            first_key: run.first_key,
            version: run.version,
            kind: run.kind,
            table: run.table,
            is_closed: core.catalog.closed(segment).is_some(),
        };
        Ok(plan.found.into_iter().map(described).collect())
    }

    /// Keys of which it is known that their data is damaged, and whether there are lost groups besides, of which it is not known
    /// what they held.
    pub fn damaged_keys(&self) -> (RangeSet, bool) {
        let core = self.inner.core.borrow();
        let mut keys = RangeSet::new();
        let mut has_lost_groups = false;
        for damage in &core.catalog.damage {
            match &damage.kind {
                DamageKind::Data { keys: damaged } => _ = keys.insert(damaged.clone()),
                DamageKind::Groups { .. } | DamageKind::Segment => has_lost_groups = true,
                DamageKind::Footer | DamageKind::Frame => {}
            }
        }
        (keys, has_lost_groups)
    }

    /// The records with these keys were written again, durably: what is harmed where they lay before is not counted as damage any
    /// more.
    pub fn forget_damage(&self, keys: Range<u64>) {
        let catalog = &mut self.inner.core.borrow_mut().catalog;
        let mut left = Vec::with_capacity(catalog.damage.len());
        for damage in catalog.damage.drain(..) {
            let DamageKind::Data { keys: damaged } = &damage.kind else {
                left.push(damage);
                continue;
            };
            let parts =
                [damaged.start..keys.start.min(damaged.end), keys.end.max(damaged.start)..damaged.end];
            let kinds =
                parts.into_iter().filter(|part| !part.is_empty()).map(|keys| DamageKind::Data { keys });
            left.extend(kinds.map(|kind| Damage { kind, ..damage.clone() }));
        }
        catalog.damage = left;
    }
}

impl Inner {
    /// Has the plan read a record from where else it is, as it is not to be had of this segment because of `error`. Errors: nothing else has
    /// it. Unless it could not be read somewhere, it is named among the damage then.
    pub(super) async fn go_elsewhere(
        self: &Rc<Self>,
        plan: &mut Plan,
        bad: &mut Bad,
        (key, segment): (u64, u32),
        error: ReadError,
    ) -> Result<(), ReadError> {
        let is_here = |it: &Located| it.segment == segment && it.run.keys().contains(&key);
        let Some(index) = plan.found.iter().position(is_here) else { return Err(error) };
        let sought = bad.entry(key).or_default();
        sought.segments.push(segment);
        let mut other = Plan::elsewhere(vec![one(key)], sought.segments.clone());
        self.run_plan(&mut other, 0).await?;
        if !other.found.is_empty() {
            if let ReadError::Drive(_) = error {
                sought.unread = Some(error);
            }
            plan.replace(index, key, other.found);
            return Ok(());
        }
        let error = sought.unread.take().unwrap_or(error);
        if let ReadError::Damaged { offset, .. } = error {
            let located = &plan.found[index];
            let bytes = located.part(key..key + 1).run.data_bytes;
            self.note_damage(
                located.segment,
                located.lap,
                offset,
                bytes,
                DamageKind::Data { keys: key..key + 1 },
            );
        }
        Err(error)
    }

    /// Whether a record that is damaged in one segment is whole in another. Errors: it may be, and cannot be read there now.
    pub(crate) async fn is_whole_elsewhere(
        self: &Rc<Self>,
        key: u64,
        segment: u32,
    ) -> Result<bool, DriveError> {
        // Of versioned keys another place may have an older record.
        if self.owner.is_some() {
            return Ok(false);
        }
        let mut segments = vec![segment];
        loop {
            let mut plan = Plan::elsewhere(vec![one(key)], segments.clone());
            let planned = self.run_plan(&mut plan, 0).await.map_err(FetchError::Read);
            let read = match planned {
                Ok(()) if plan.found.is_empty() => return Ok(false),
                Ok(()) => self.fetch(&plan.found).await.map(drop),
                Err(error) => Err(error),
            };
            match read {
                Ok(()) => return Ok(true),
                Err(FetchError::Recycled) => {}
                Err(FetchError::Read(ReadError::Damaged { segment, .. })) => segments.push(segment),
                Err(FetchError::Read(ReadError::Drive(error)) | FetchError::Unread { error, .. }) => {
                    return Err(error);
                }
            }
        }
    }
}

fn one(key: u64) -> Range<u64> {
    key..key + 1
}

impl Plan {
    /// Takes the record with `key` from the run at `index`, which has it, and puts `others` in its place.
    fn replace(&mut self, index: usize, key: u64, others: Vec<Located>) {
        let run = self.found.remove(index);
        let keys = run.run.keys();
        let mut parts = Vec::new();
        parts.extend((keys.start < key).then(|| run.part(keys.start..key)));
        parts.extend(others);
        parts.extend((key + 1 < keys.end).then(|| run.part(key + 1..keys.end)));
        let added = parts.len() - 1;
        self.found.splice(index..index, parts);
        for end in self.ends.iter_mut().filter(|end| end.runs > index) {
            end.runs += added;
        }
    }
}
