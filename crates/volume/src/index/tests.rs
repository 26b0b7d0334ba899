//! The index against a model that keeps every record.

use std::collections::{BTreeMap, BTreeSet};

use ithaca_chain::RunKind;
use ithaca_env::sim::Random;

use super::*;

const BLOCKS: u64 = 12;

/// Drives that hold records, an index of them, and what it must answer.
struct World {
    index: Index,
    /// Records on the drives, by segment and byte.
    drives: BTreeMap<(u32, u32), Placed>,
    /// What each block is, version by version: the number of its record, or 0.
    truth: BTreeMap<u64, BTreeMap<u64, u32>>,
    pins: Vec<u64>,
    next_spot: (u32, u32),
    garbage: BTreeMap<u32, u64>,
}

fn new_index(points: Points, planted: Planted) -> Index {
    Index::new(BLOCKS, Packing::new(1 << 20, 4000), points, planted)
}

impl World {
    fn new(planted: Planted) -> Self {
        let mut index = new_index(Points::new(0, []), planted);
        index.opened();
        let drives = BTreeMap::new();
        let (truth, pins, next_spot, garbage) = (BTreeMap::new(), Vec::new(), (0, 4096), BTreeMap::new());
        Self { index, drives, truth, pins, next_spot, garbage }
    }

    fn spot(&mut self) -> (u32, u32) {
        let spot = self.next_spot;
        self.next_spot = if spot.1 == 8 * 4096 { (spot.0 + 1, 4096) } else { (spot.0, spot.1 + 4096) };
        spot
    }

    fn write(&mut self, block: u64, version: u64, kind: RunKind) {
        let (segment, offset) = self.spot();
        // The number of a record is its checksum: what is read is known by it.
        let number = segment << 16 | offset;
        let (len, checksum) = if kind == RunKind::Junk { (0, 0) } else { (4096, number) };
        let place = Place { segment, lap: 1, offset, len, checksum };
        let record = Placed { key: block, version, kind, place };
        self.drives.insert((segment, offset), record);
        self.truth.entry(block).or_default().insert(version, checksum);
        assert!(!self.index.place(&record));
    }

    fn move_one(&mut self, rng: &mut Random) {
        let live: Vec<Placed> = self.drives.values().filter(|it| self.index.is_live(it)).copied().collect();
        if live.is_empty() {
            return;
        }
        let record = live[rng.below(live.len() as u64) as usize];
        // A copy never goes to the segment that it is of.
        self.next_spot = (self.next_spot.0 + 1, 4096);
        let (segment, offset) = self.spot();
        let to = Place { segment, offset, ..record.place };
        self.drives.insert((segment, offset), Placed { place: to, ..record });
        assert!(self.index.moved(&record, to));
        assert!(!self.index.is_live(&record), "the old place is not needed");
    }

    /// Records that the index does not need go, some of them.
    fn clean(&mut self, rng: &mut Random) {
        self.drives.retain(|_, record| self.index.is_live(record) || rng.below(3) == 0);
    }

    fn points(&self) -> impl Iterator<Item = u64> {
        let index = &self.index;
        (index.points().floor()..=index.newest()).chain(self.pins.clone())
    }

    fn check(&self) {
        for point in self.points() {
            for block in 0..BLOCKS {
                let expected = self.truth.get(&block).and_then(|it| it.range(..=point).next_back());
                let expected = expected.map_or(0, |(_, number)| *number);
                let found = match self.index.at(block, point) {
                    Found::Zeros => 0,
                    Found::At(packed) => {
                        let spot = self.index.packing().spot(packed).expect("data");
                        let record =
                            self.drives.get(&(spot.segment, spot.offset)).expect("it is on the drives");
                        assert_eq!((record.key, record.place.checksum), (block, spot.checksum));
                        spot.checksum
                    }
                };
                assert_eq!(found, expected, "block {block} at version {point}");
            }
        }
        for (block, step) in (0..BLOCKS).flat_map(|block| [1, 2, 7, 40].map(|step| (block, step))) {
            let mut ascent = self.index.ascent(block);
            let points: BTreeSet<u64> = self.points().step_by(step).collect();
            points.iter().for_each(|&point| {
                assert_eq!(ascent.at(point), self.index.at(block, point), "block {block} at version {point}");
            });
        }
        let is_data = |block: &u64| self.index.now(*block) != Found::Zeros;
        assert_eq!(self.index.data_blocks(), (0..BLOCKS).filter(is_data).count() as u64);
    }

    /// What a block is at a point, and how often it was written above one.
    fn number(&self, block: u64, point: u64) -> u32 {
        let written = self.truth.get(&block).and_then(|it| it.range(..=point).next_back());
        written.map_or(0, |(_, number)| *number)
    }

    fn writes_above(&self, block: u64, point: u64) -> u64 {
        self.truth.get(&block).map_or(0, |it| it.range(point + 1..).count() as u64)
    }

    /// A block is the same over its span and written at both ends of it; as many updates back as asked, no more are left out, and at
    /// the version below there are.
    fn check_spans(&self) {
        let (floor, newest) = (self.index.points().floor(), self.index.newest());
        for block in 0..BLOCKS {
            for point in self.points() {
                let span = self.index.span(block, point);
                assert!(span.contains(&point), "{point} is in {span:?}");
                for other in self.points().filter(|other| span.contains(other)) {
                    assert_eq!(self.number(block, point), self.number(block, other), "{span:?}");
                }
                let is_written = |at| self.truth.get(&block).is_some_and(|it| it.contains_key(&at));
                assert!(*span.start() == self.index.points().bottom() || is_written(*span.start()));
                assert!(*span.end() == newest || is_written(span.end() + 1) || *span.end() < floor);
            }
            for updates in [0, 1, 3, u64::MAX - 1] {
                let low = self.index.updates_back(block, updates);
                assert!(low >= floor && self.writes_above(block, low) <= updates);
                assert!(low == floor || self.writes_above(block, low - 1) > updates, "{low} is the lowest");
            }
        }
    }

    /// Once everything is settled, what is live is what some point needs, and no more: one place of each.
    fn check_live(&mut self) {
        while self.index.settle(3) {}
        for (segment, records) in self.index.take_garbage() {
            *self.garbage.entry(segment).or_default() += records;
        }
        let mut needed = BTreeSet::new();
        for point in self.points() {
            for (&block, versions) in &self.truth {
                needed.extend(versions.range(..=point).next_back().map(|(version, _)| (block, *version)));
            }
        }
        let mut live: Vec<(u64, u64)> = Vec::new();
        live.extend(self.drives.values().filter(|it| self.index.is_live(it)).map(|it| (it.key, it.version)));
        live.sort_unstable();
        assert_eq!(live, needed.into_iter().collect::<Vec<_>>());
    }

    /// As after a crash: the same points, the records in another order.
    fn reopen(&mut self, rng: &mut Random, planted: Planted) {
        let points = Points::new(self.index.points().floor(), self.pins.clone());
        let newest = self.index.newest();
        self.index = new_index(points, planted);
        let mut records: Vec<Placed> = self.drives.values().copied().collect();
        for at in (1..records.len()).rev() {
            records.swap(at, rng.below(at as u64 + 1) as usize);
        }
        for record in records {
            self.index.place(&record);
        }
        self.index.opened();
        assert_eq!(self.index.newest(), newest);
    }
}

fn run(seed: u64, planted: Planted) {
    let (mut rng, mut world) = (Random::new(seed), World::new(planted));
    for step in 0..200 {
        let newest = world.index.newest();
        match rng.below(16) {
            0..7 => {
                let mut blocks: Vec<u64> = (0..1 + rng.below(3)).map(|_| rng.below(BLOCKS)).collect();
                blocks.sort_unstable();
                blocks.dedup();
                let kind = if rng.below(4) == 0 { RunKind::Junk } else { RunKind::Data };
                blocks.into_iter().for_each(|block| world.write(block, newest + 1, kind));
            }
            7 => {
                let floor = world.index.points().floor();
                let pin = floor + rng.below(newest - floor + 1);
                world.index.pin(pin);
                world.pins.push(pin);
            }
            8 if !world.pins.is_empty() => {
                let at = rng.below(world.pins.len() as u64) as usize;
                let pin = world.pins.swap_remove(at);
                world.index.unpin(pin);
            }
            9 | 10 => {
                let floor = world.index.points().floor();
                world.index.raise_floor(floor + rng.below(newest - floor + 1));
            }
            11 | 12 => world.move_one(&mut rng),
            13 => world.clean(&mut rng),
            14 if step % 3 == 0 => world.reopen(&mut rng, planted),
            _ => {
                world.check_live();
                world.clean(&mut rng);
            }
        }
        world.check();
        if step % 20 == 0 {
            world.check_spans();
        }
    }
}

#[test]
fn whatever_may_be_read_is_found_and_nothing_else_is_kept() {
    for seed in 0..150 {
        run(seed, Planted::default());
    }
}

#[test]
fn every_fault_of_the_index_is_found() {
    use crate::planted::PlantedBug;
    for bug in [PlantedBug::PinForgotten, PlantedBug::SpanReachesOver, PlantedBug::OneUpdateTooMany] {
        let fails = |seed: &u64| std::panic::catch_unwind(|| run(*seed, Planted::bug(bug))).is_err();
        assert!((0..20).any(|seed| fails(&seed)), "{bug:?} goes unnoticed");
    }
}

#[test]
fn junk_is_forgotten_when_it_is_all_that_is_left_of_a_block() {
    let mut world = World::new(Planted::default());
    world.write(3, 1, RunKind::Data);
    world.write(3, 2, RunKind::Junk);
    let junk = world.drives[&(0, 8192)];
    assert!(!world.index.dropped(&junk), "version 1 may be read");
    world.index.raise_floor(2);
    world.check_live();
    assert!(world.index.dropped(&junk));
    assert!(!world.index.is_live(&junk));
    assert_eq!((world.index.versions(), world.index.now(3)), (0, Found::Zeros));
}
