//! What a unit's drive holds, and what is under way to it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use ithaca_chain::{RangeSet, Run, RunKind};

use crate::unit::{Recovered, Ticket, UnitState};

/// What an address holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// An entry of this client.
    Data(usize),
    Junk,
}

/// What the drive holds at an address, and the epoch that it was written in.
pub(super) type Cell = (u64, Held);

/// What the drive holds, durably, and what is under way to it.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    pub(super) cells: BTreeMap<u64, Cell>,
    pub(super) released: RangeSet,
    pub(super) state: UnitState,
    pub(super) under_way: VecDeque<Batch>,
}

#[derive(Clone, Debug)]
pub(super) struct Batch {
    ticket: Ticket,
    pub(super) cells: BTreeMap<u64, Cell>,
    pub(super) release: Vec<Range<u64>>,
    state: Option<UnitState>,
}

impl Batch {
    /// What a unit wants stored.
    pub(super) fn new(ticket: Ticket, runs: &[Run], release: Vec<Range<u64>>, state: Option<&[u8]>) -> Self {
        let state = state.map(|state| UnitState::decode(state).expect("it was just made"));
        Self { ticket, cells: cells(runs), release, state }
    }
}

impl Disk {
    /// The oldest batch under way becomes durable.
    pub(super) fn complete(&mut self) -> Option<Ticket> {
        let batch = self.under_way.pop_front()?;
        self.cells.extend(batch.cells);
        batch.release.into_iter().for_each(|range| _ = self.released.insert(range));
        if let Some(state) = batch.state {
            self.state = state;
        }
        Some(batch.ticket)
    }

    /// So many batches become durable, and the rest is lost.
    pub(super) fn cut(&mut self, survive: usize) {
        (0..survive).for_each(|_| _ = self.complete());
        self.under_way.clear();
    }

    /// What a unit finds after a restart.
    pub(super) fn recovered(&self) -> Recovered {
        let covered = self.cells.keys().map(|&key| key..key + 1).chain(self.released.ranges()).collect();
        Recovered { state: self.state.clone(), covered, released: self.released.clone() }
    }
}

/// What runs put at each address.
fn cells(runs: &[Run]) -> BTreeMap<u64, Cell> {
    let cell = |run: &Run, key: u64| {
        let held = match run.kind {
            RunKind::Junk => Held::Junk,
            RunKind::Data => Held::Data(run.slice(key..key + 1).data[0].into()),
        };
        (key, (run.version, held))
    };
    runs.iter().flat_map(|run| run.keys().map(move |key| cell(run, key))).collect()
}
