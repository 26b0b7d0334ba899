//! The versions that may be read: everything from the floor on, and what is pinned.

use std::collections::BTreeMap;
use std::ops::Range;

/// Retained points. A version of a block is needed if it is the newest at or below one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Points {
    /// Where history begins: every version from here on may be read.
    floor: u64,
    /// Versions that somebody reads, with how many do.
    pins: BTreeMap<u64, u32>,
}

impl Points {
    /// A floor and pins, each once.
    pub(crate) fn new(floor: u64, pins: impl IntoIterator<Item = u64>) -> Self {
        let mut points = Self { floor, ..Self::default() };
        pins.into_iter().for_each(|pin| *points.pins.entry(pin).or_insert(0) += 1);
        points
    }

    /// Where history begins.
    pub(crate) fn floor(&self) -> u64 {
        self.floor
    }

    /// The lowest version that may be read: of a block whose only version is at or below it, that version is not needed to
    /// answer a read.
    pub(crate) fn bottom(&self) -> u64 {
        self.pins.first_key_value().map_or(self.floor, |(&pin, _)| pin.min(self.floor))
    }

    /// Whether `version` may be read.
    pub(crate) fn has(&self, version: u64) -> bool {
        version >= self.floor || self.pins.contains_key(&version)
    }

    /// The highest pin within these versions.
    pub(crate) fn pin_in(&self, versions: Range<u64>) -> Option<u64> {
        self.pins.range(versions).next_back().map(|(&pin, _)| pin)
    }

    /// The lowest pin.
    pub(crate) fn first_pin(&self) -> Option<u64> {
        self.pins.first_key_value().map(|(&pin, _)| pin)
    }

    /// Pins a version that may be read. Panics if it may not.
    pub(crate) fn pin(&mut self, version: u64) {
        assert!(self.has(version), "version {version} is below the floor {} and not pinned", self.floor);
        *self.pins.entry(version).or_insert(0) += 1;
    }

    /// Takes one pin of a version away. Returns whether that was the last one. Panics if it is not pinned.
    pub(crate) fn unpin(&mut self, version: u64) -> bool {
        let count = self.pins.get_mut(&version).expect("what is let go was pinned");
        *count -= 1;
        if *count == 0 {
            self.pins.remove(&version);
            return true;
        }
        false
    }

    /// Raises the floor; a lower one than there is changes nothing.
    pub(crate) fn raise(&mut self, floor: u64) {
        self.floor = self.floor.max(floor);
    }
}
