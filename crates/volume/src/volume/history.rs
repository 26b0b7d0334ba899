//! How far history reaches back: asks for a higher floor, and raises it when that is durable.
//!
//! The floor rises with the volume's record, which travels with commits. What is below the new one counts as garbage only when the
//! record is durable: an open would else look for versions that are gone.

use std::collections::VecDeque;
use std::time::Duration;

use ithaca_chain::Ticket;
use ithaca_env::Time;

use crate::limits::{AGE_SAMPLES_MAX, FLOOR_STRIDE};
use crate::options::Retention;
use crate::owner::Blocks;
use crate::planted::{Planted, PlantedBug};
use crate::state::State;

/// See the module.
pub(super) struct History {
    /// The record as it was handed over last.
    asked: State,
    /// Floors that were handed over and are not durable.
    flying: VecDeque<(Ticket, u64)>,
    /// Versions that have lost a name, by records that are not durable.
    unnamed: VecDeque<(Ticket, u64)>,
    /// When which version was the newest.
    samples: VecDeque<(Time, u64)>,
    planted: Planted,
}

impl History {
    /// Of a volume with this record.
    pub(super) fn new(state: State, planted: Planted) -> Self {
        let (flying, unnamed, samples) = Default::default();
        Self { asked: state, flying, unnamed, samples, planted }
    }

    /// The record as it was handed over last.
    pub(super) fn asked(&self) -> &State {
        &self.asked
    }

    /// Remembers that `newest` was the newest version now.
    pub(super) fn note_time(&mut self, now: Time, newest: u64) {
        let age = self.asked.retention.age;
        if age == Duration::ZERO {
            return;
        }
        let apart = age / AGE_SAMPLES_MAX as u32;
        if self.samples.back().is_none_or(|(last, _)| now.since(*last) >= apart) {
            self.samples.push_back((now, newest));
        }
        // The first one that is old enough stays: it says what need not be kept.
        while self.samples.get(1).is_some_and(|(time, _)| now.since(*time) >= age) {
            self.samples.pop_front();
        }
    }

    /// Where history may begin when `newest` is the newest version.
    fn target(&self, now: Time, newest: u64) -> u64 {
        let Retention { versions, age } = self.asked.retention;
        let by_count = newest.saturating_sub(versions);
        if age == Duration::ZERO {
            return by_count;
        }
        let old = self.samples.iter().take_while(|(time, _)| now.since(*time) >= age).last();
        by_count.min(old.map_or(0, |(_, version)| *version))
    }

    /// The record to hand over with the commit of `version`, if the floor is to rise far enough to be worth it; as far as may be if
    /// `is_short` of room.
    pub(super) fn record_for(&self, now: Time, version: u64, is_short: bool) -> Option<State> {
        let floor = if is_short { version } else { self.target(now, version) };
        let stride = if is_short { 1 } else { FLOOR_STRIDE };
        let is_worth_it = floor >= self.asked.floor + stride;
        is_worth_it.then(|| State { floor, ..self.asked.clone() })
    }

    /// A record was handed over. Its floor is not below that of the one before.
    pub(super) fn handed_over(&mut self, ticket: Ticket, record: State) {
        assert!(record.floor >= self.asked.floor, "history never gets longer at its beginning");
        if record.floor > self.asked.floor {
            self.flying.push_back((ticket, record.floor));
        }
        self.asked = record;
    }

    /// The record that was handed over last has a name less, of this version, which stays pinned until that is durable.
    pub(super) fn unnamed(&mut self, ticket: Ticket, version: u64) {
        self.unnamed.push_back((ticket, version));
    }

    /// The record for a close: history as short as it may be.
    pub(super) fn last_record(&self, now: Time, newest: u64) -> State {
        State { floor: self.target(now, newest).max(self.asked.floor), ..self.asked.clone() }
    }

    /// Everything up to this ticket is durable.
    pub(super) fn durable(&mut self, durable: Ticket, blocks: &Blocks) {
        let mut highest = None;
        if self.planted.is(PlantedBug::FloorNotWritten) {
            highest = Some(blocks.with(|index| index.newest()));
        }
        while let Some((_, floor)) = self.flying.pop_front_if(|(ticket, _)| *ticket <= durable) {
            highest = Some(floor);
        }
        if let Some(floor) = highest {
            blocks.with(|index| index.raise_floor(floor));
        }
        while let Some((_, version)) = self.unnamed.pop_front_if(|(ticket, _)| *ticket <= durable) {
            blocks.with(|index| index.unpin(version));
            // What only it has kept can go: the keeper looks.
            blocks.bell.ring();
        }
    }
}
