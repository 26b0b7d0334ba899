//! Taking over what other replicas hold of a closed range.
//!
//! A unit that was left out of a layout may lack what was decided since, and may hold what was never decided: an entry that it
//! stored as the first of its stripe and that no other replica has. When its range was resolved without it, that position became
//! junk. The record stays where it is, because an address is written once, and counts as junk from then on: it is voided.

use std::ops::Range;

use ithaca_chain::{RangeSet, Run};

use super::conflict::Sorted;
use super::pending::Waiting;
use super::step::Change;
use super::{Effect, Holding, ReplyTo, Unit};
use crate::limits;
use crate::pos::{AddrRange, Epoch};
use crate::wire::Refusal;

/// What is taken over; see [`Input::Restore`](super::Input::Restore).
pub(super) struct Restored {
    pub(super) runs: Vec<Run>,
    pub(super) trimmed: Vec<AddrRange>,
    pub(super) voided: Vec<AddrRange>,
    pub(super) lost: Vec<AddrRange>,
}

impl Unit {
    /// Stores what is not there yet of the runs, or is lost, gives up what is trimmed, and voids what is stored and junk elsewhere.
    pub(super) fn restore(
        &mut self,
        to: ReplyTo,
        epoch: Epoch,
        restored: Restored,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        let Restored { runs, trimmed, voided, lost } = restored;
        let lost: RangeSet = lost.iter().map(|range| range.numbers()).collect();
        self.check_epoch(epoch)?;
        self.check_room(runs.iter().map(|run| run.data.len()).sum())?;
        let mut change = Change::default();
        for run in runs {
            if let Some(index) = run.table.first_mismatch(&run.data) {
                return Err(Refusal::Checksum { index: index as u64 });
            }
            let mut sorted = Sorted::default();
            self.sort_out(run.keys(), &mut sorted);
            for keys in sorted.free.iter() {
                let part = Run { version: epoch.0, ..run.slice(keys.clone()) };
                change.bytes += part.data.len();
                change.claims.push(keys);
                change.runs.push(part);
            }
            for keys in self.lost_parts(&lost, run.keys()) {
                let part = run.slice(keys);
                change.bytes += part.data.len();
                change.runs.push(part);
            }
        }
        for range in &trimmed {
            change.release.extend(self.trimmed.gaps(range.numbers()));
            let mut sorted = Sorted::default();
            self.sort_out(range.numbers(), &mut sorted);
            sorted.free.iter().for_each(|free| change.claims.push(free));
        }
        self.check_sparse(&change.claims)?;
        self.check_trims(&change.release)?;
        let undo = self.state.clone();
        for range in &voided {
            let parts = self.classify(*range).into_iter();
            for (part, _) in parts.filter(|(_, holding)| *holding == Holding::Stored) {
                self.state.voided.insert(part.numbers());
            }
        }
        if self.state.voided.range_count() > limits::VOIDED_MAX_COUNT {
            self.state.forget_whole(&self.trimmed);
        }
        if self.state.voided.range_count() > limits::VOIDED_MAX_COUNT {
            self.state = undo;
            let (addr, limit) = (voided[0].start, limits::VOIDED_MAX_COUNT as u64);
            return Err(Refusal::TooSparse { addr, limit });
        }
        let is_void = self.state.voided != undo.voided;
        if !is_void && change.runs.is_empty() && change.release.is_empty() {
            // Whatever of it is there is so because an earlier ticket was to store it.
            self.wait_for_all(to, Waiting::Restored, effects);
            return Ok(());
        }
        let is_new = self.serve(epoch);
        let state = (is_void || is_new).then(|| self.state.clone());
        self.persist(change, state, to, Waiting::Restored, Some(undo), effects);
        Ok(())
    }

    /// The parts of `keys` that are lost and still have a record by the unit's account, so that it is not junk or trimmed by now.
    fn lost_parts(&self, lost: &RangeSet, keys: Range<u64>) -> Vec<Range<u64>> {
        let parts = lost.overlaps(keys).flat_map(|part| self.classify(part.into()));
        parts.filter(|(_, holding)| *holding == Holding::Stored).map(|(part, _)| part.numbers()).collect()
    }
}
