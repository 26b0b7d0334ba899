//! What a chain must hold after a prefix of the batches that were appended.

use std::collections::BTreeMap;

use bytes::Bytes;
use ithaca_chain::{Batch, RangeSet, Recovered, Run, RunKind, Table};
use ithaca_env::drive::PageBuf;

/// A run of records with these payloads.
pub fn run_of(first_key: u64, version: u64, payloads: &[Bytes]) -> Run {
    let together = payloads.concat();
    // Blocks are written from where they lie if they lie so.
    let data = if version.is_multiple_of(2) { together.into() } else { PageBuf::copy_of(&together) };
    Run {
        first_key,
        version,
        kind: RunKind::Data,
        meta: Bytes::from(version.to_le_bytes().to_vec()),
        table: Table::of_payloads(payloads),
        data,
    }
}

/// Keys without data.
pub fn junk(first_key: u64, count: usize, version: u64) -> Run {
    let payloads = vec![Bytes::new(); count];
    Run { kind: RunKind::Junk, ..run_of(first_key, version, &payloads) }
}

/// What the chain holds at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Key -> version, kind, data.
    pub records: BTreeMap<u64, (u64, RunKind, Bytes)>,
    pub released: RangeSet,
    pub state: Option<Bytes>,
}

impl View {
    pub fn apply(&mut self, batch: &Batch) {
        for run in &batch.runs {
            for key in run.keys() {
                let slice = run.slice(key..key + 1);
                let before = self.records.insert(key, (run.version, run.kind, slice.data));
                assert!(before.is_none(), "the workload writes key {key} once");
            }
        }
        for range in &batch.release {
            self.released.insert(range.clone());
            let gone: Vec<u64> = self.records.range(range.clone()).map(|(&key, _)| key).collect();
            gone.iter().for_each(|key| {
                self.records.remove(key);
            });
        }
        if batch.state.is_some() {
            self.state.clone_from(&batch.state);
        }
    }

    pub fn covered(&self) -> RangeSet {
        let mut covered = self.released.clone();
        for &key in self.records.keys() {
            covered.insert(key..key + 1);
        }
        covered
    }

    /// Whether this is what recovery says.
    pub fn matches(&self, recovered: &Recovered) -> bool {
        self.released == recovered.released
            && self.state == recovered.state
            && self.covered() == recovered.covered
    }
}

/// Batches in the order of their tickets, and how far they were acknowledged.
#[derive(Default)]
pub struct Model {
    /// The truth up to the last recovery.
    pub base: View,
    /// Batches since, acknowledged or not.
    pub since: Vec<Batch>,
    /// How many of `since` were acknowledged.
    pub acked: usize,
    /// Numbers given to payloads, so that no two are alike.
    pub serial: u64,
    /// Acknowledged batches of all lives: a floor for how much a run must get done.
    pub total_acked: u64,
}

impl Model {
    /// The view after the first `count` batches since the last recovery.
    pub fn view(&self, count: usize) -> View {
        let mut view = self.base.clone();
        self.since[..count].iter().for_each(|batch| view.apply(batch));
        view
    }

    /// Finds the prefix that recovery exposes, which holds at least what was acknowledged, and makes it the truth.
    /// Panics if there is none.
    pub fn settle(&mut self, recovered: &Recovered) {
        let fits = (self.acked..=self.since.len()).find(|&count| self.view(count).matches(recovered));
        let Some(count) = fits else {
            let least = self.view(self.acked);
            panic!(
                "recovery exposes no prefix: {} acknowledged of {} batches\n  acknowledged: released {:?}, covered {:?}, state {:?}\n  recovered:    released {:?}, covered {:?}, state {:?}, damage {:?}",
                self.acked,
                self.since.len(),
                least.released,
                least.covered(),
                least.state,
                recovered.released,
                recovered.covered,
                recovered.state,
                recovered.damage,
            );
        };
        self.base = self.view(count);
        self.since.clear();
        self.acked = 0;
    }
}
