//! The catalog against a model of the log's chunks and calls: makers that crash, forgetters and holders in any order.

use std::collections::BTreeMap;
use std::time::Duration;

use ithaca_env::sim::Random;
use ithaca_log::pos::LogPos;

use super::Hold;
use super::catalog::{Begin, Begun, Catalog, Clean, Forget, HoldFrom, Keep, LetGo, Store, Stored};
use crate::limits;
use crate::object::{Mutator, Object};
use crate::planted::{Planted, PlantedBug};

const MAKERS: u64 = 3;
const STEPS: u64 = 600;

/// A checkpoint that is being made.
#[derive(Clone, Debug)]
struct Making {
    id: u64,
    begun: Begun,
    chunks: Vec<u64>,
}

/// A chunk, or a directory, that stands in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    id: u64,
    upto: u64,
}

struct World {
    random: Random,
    catalog: Catalog,
    tail: u64,
    calls: u64,
    now_ms: u64,
    pieces: BTreeMap<u64, Piece>,
    chunks_of: BTreeMap<u64, Vec<u64>>,
    makers: Vec<Option<Making>>,
    /// The object's calls below are trimmed.
    trimmed: u64,
    stored: u64,
    late: u64,
    held: u64,
}

impl World {
    fn new(seed: u64, planted: Planted) -> Self {
        let mut catalog = Catalog::default();
        catalog.plant(planted);
        Self {
            random: Random::new(seed),
            catalog,
            tail: 1,
            calls: 0,
            now_ms: 1_000_000,
            pieces: BTreeMap::new(),
            chunks_of: BTreeMap::new(),
            makers: vec![None; MAKERS as usize],
            trimmed: 0,
            stored: 0,
            late: 0,
            held: 0,
        }
    }

    /// A call of the catalog, at the next position; taken back and made again, which must change nothing.
    fn call<M: Mutator<Catalog>>(&mut self, call: M) -> Result<M::Output, String> {
        let before = self.catalog.digest();
        let mut undo = Vec::new();
        let output = call.apply(&mut self.catalog, LogPos(self.tail), &mut undo);
        self.tail += 1;
        let after = self.catalog.digest();
        undo.iter_mut().rev().for_each(|undo| self.catalog.exchange(undo));
        if self.catalog.digest() != before {
            return Err("a call is not taken back".to_owned());
        }
        undo.iter_mut().for_each(|undo| self.catalog.exchange(undo));
        if self.catalog.digest() != after { Err("nor made again".to_owned()) } else { Ok(output) }
    }

    fn run(&mut self) -> Result<(), String> {
        for _ in 0..STEPS {
            self.now_ms += self.random.below(2_000);
            match self.random.below(13) {
                0..4 => {
                    self.tail += 1;
                    self.calls += 1;
                }
                4..8 => self.make()?,
                8 => self.forget()?,
                9 => self.hold()?,
                10 => {
                    let name = self.random.below(3).to_string();
                    self.call(LetGo { name })?;
                }
                11 => {
                    let history_ms = Some(self.random.below(3)).filter(|span| *span > 0);
                    self.call(Keep { history_ms })?;
                }
                _ => self.clean()?,
            }
            self.judge()?;
        }
        Ok(())
    }

    /// The next step of some maker, or its end.
    fn make(&mut self) -> Result<(), String> {
        let maker = self.random.below(MAKERS) as usize;
        let Some(mut making) = self.makers[maker].take() else {
            let begun = Begun { upto: self.tail, count: self.calls, bytes: self.calls };
            // Some ask whether it is time, and some are told by their users.
            let is_asked = self.random.below(2) == 0;
            if is_asked && !self.call(Begin { begun, calls: 4, bytes: 4 })? {
                return Ok(());
            }
            let id = self.tail * 10 + maker as u64;
            self.makers[maker] = Some(Making { id, begun, chunks: Vec::new() });
            return Ok(());
        };
        match self.random.below(8) {
            // It crashes; what it wrote stays.
            0 => {}
            1 if making.chunks.len() >= 2 => self.store(making)?,
            _ => {
                self.pieces.insert(self.tail, Piece { id: making.id, upto: making.begun.upto });
                making.chunks.push(self.tail);
                self.tail += 1;
                self.makers[maker] = Some(making);
            }
        }
        Ok(())
    }

    /// The directory, a look for torn ones before it, and the word to the catalog.
    fn store(&mut self, making: Making) -> Result<(), String> {
        let directory = self.tail;
        self.pieces.insert(directory, Piece { id: making.id, upto: making.begun.upto });
        self.chunks_of.insert(directory, making.chunks.clone());
        self.tail += 1;
        let swept = self.sweep(self.catalog.swept().0, making.chunks[0]);
        let stored = Stored {
            id: making.id,
            directory,
            len: 0,
            count: making.begun.count,
            bytes: making.begun.bytes,
            digest: 0,
            made_ms: 0,
        };
        if self.random.below(8) == 0 {
            return Ok(());
        }
        if self.call(Store { upto: making.begun.upto, stored, swept })? {
            self.stored += 1;
        } else {
            self.late += 1;
            self.trim(directory);
        }
        Ok(())
    }

    fn sweep(&mut self, from: u64, to: u64) -> u64 {
        let newest = self.catalog.newest().map_or(0, |(upto, _)| upto.0);
        let mut lowest = to;
        let range: Vec<(u64, Piece)> =
            self.pieces.range(from.min(to)..to).map(|(pos, piece)| (*pos, *piece)).collect();
        for (pos, piece) in range {
            if self.catalog.is_torn(piece.id, LogPos(piece.upto)) {
                self.pieces.remove(&pos);
            } else if piece.upto > newest {
                lowest = lowest.min(pos);
            }
        }
        lowest
    }

    fn trim(&mut self, directory: u64) {
        for chunk in self.chunks_of.remove(&directory).unwrap_or_default() {
            self.pieces.remove(&chunk);
        }
        self.pieces.remove(&directory);
    }

    fn clean(&mut self) -> Result<(), String> {
        let dropped: Vec<u64> = self.catalog.dropped().iter().copied().collect();
        dropped.iter().for_each(|directory| self.trim(*directory));
        // Some do not come to say so.
        if self.random.below(2) == 0 { Ok(()) } else { self.call(Clean { dropped }) }
    }

    fn forget(&mut self) -> Result<(), String> {
        let before = self.random.below(self.tail + 2);
        let known = self.catalog.forgotten().0;
        let forgot = self.call(Forget { before, now_ms: self.now_ms })?;
        self.held += u64::from(forgot.held_by.is_some());
        if forgot.below > before && forgot.below > known {
            return Err(format!("{} forgotten, {before} was asked for", forgot.below));
        }
        if self.random.below(3) > 0 {
            self.trimmed = self.trimmed.max(forgot.below);
        }
        Ok(())
    }

    fn hold(&mut self) -> Result<(), String> {
        let name = self.random.below(3).to_string();
        let pos = self.random.below(self.tail + 1);
        let until_ms = (self.random.below(2) == 0).then(|| self.now_ms + self.random.below(10_000));
        let held = self.call(HoldFrom { name, hold: Hold { pos, until_ms } })?;
        if held.is_err() && pos >= self.catalog.forgotten().0 {
            return Err(format!("{pos} is not held: {held:?}"));
        }
        Ok(())
    }

    /// Everything that is said to be there can be read.
    fn judge(&self) -> Result<(), String> {
        for (upto, stored) in self.catalog.stored() {
            let chunks = self.chunks_of.get(&stored.directory);
            let is_whole =
                chunks.is_some_and(|chunks| chunks.iter().all(|chunk| self.pieces.contains_key(chunk)));
            if !is_whole {
                return Err(format!("the checkpoint up to {upto} lacks chunks"));
            }
        }
        if self.trimmed > 0
            && !self.catalog.stored().contains_key(&self.trimmed.max(self.catalog.forgotten().0))
        {
            return Err(format!("trimmed below {} and there is no checkpoint", self.trimmed));
        }
        for (name, hold) in self.catalog.holds() {
            if hold.until_ms.is_none_or(|until| self.now_ms <= until) && hold.pos < self.trimmed {
                return Err(format!("{name} holds {}, trimmed below {}", hold.pos, self.trimmed));
            }
        }
        Ok(())
    }
}

#[test]
fn whatever_crashes_and_forgets_checkpoints_are_whole_and_what_is_held_is_there() {
    let (mut stored, mut late, mut held) = (0, 0, 0);
    for seed in 1..=400 {
        let mut world = World::new(seed, Planted::NONE);
        assert_eq!(world.run(), Ok(()), "seed {seed}");
        (stored, late, held) = (stored + world.stored, late + world.late, held + world.held);
    }
    assert!(stored > 400 && late > 100 && held > 100, "{stored} stored, {late} late, {held} held");
}

#[test]
fn planted_faults_of_the_catalog_are_found() {
    for bug in
        [PlantedBug::LateCheckpointTaken, PlantedBug::ForgetBeforeComplete, PlantedBug::ForgetIgnoresPins]
    {
        let found = (1..=400).find_map(|seed| World::new(seed, Planted::bug(bug)).run().err());
        assert!(found.is_some(), "{bug:?} goes unnoticed");
    }
}

#[test]
fn of_too_many_checkpoints_the_one_in_the_closest_company_goes() {
    let mut catalog = Catalog::default();
    for nth in 0..=limits::CHECKPOINTS_MAX_COUNT as u64 {
        // The 40th stands next to the 39th.
        let count = if nth == 40 { 391 } else { 10 * nth };
        let stored =
            Stored { id: nth, directory: 1000 + nth, len: 0, count, bytes: 0, digest: 0, made_ms: 0 };
        let call = Store { upto: 10 * nth + 1, stored, swept: 0 };
        assert!(call.apply(&mut catalog, LogPos(0), &mut Vec::new()));
    }
    assert_eq!(catalog.stored().len(), limits::CHECKPOINTS_MAX_COUNT);
    assert!(!catalog.stored().contains_key(&391) || !catalog.stored().contains_key(&401));
    assert_eq!(catalog.dropped().len(), 1);
}

#[test]
fn a_checkpoint_is_older_than_a_span_by_any_clock_or_not_at_all() {
    let mut catalog = Catalog::default();
    for (upto, made_ms) in [(10, 1_000), (20, 0), (30, 61_000), (40, 62_000)] {
        let stored =
            Stored { id: upto, directory: 100 + upto, len: 0, count: upto, bytes: 0, digest: 0, made_ms };
        assert!(Store { upto, stored, swept: 0 }.apply(&mut catalog, LogPos(0), &mut Vec::new()));
    }
    let minute = Duration::from_secs(60);
    let by = 60_000 + limits::CLOCKS_APART_MS;
    assert_eq!(catalog.older(minute, 1_000 + by - 1), None);
    assert_eq!(catalog.older(minute, 1_000 + by), Some(LogPos(10)));
    assert_eq!(
        catalog.older(minute, 61_000 + by - 1),
        Some(LogPos(10)),
        "nobody knows how old the second is"
    );
    assert_eq!(catalog.older(minute, 61_000 + by), Some(LogPos(30)));
    assert_eq!(catalog.older(Duration::MAX, u64::MAX - 1), None);
    let now_ms = 0;
    Forget { before: 30, now_ms }.apply(&mut catalog, LogPos(0), &mut Vec::new());
    assert_eq!(catalog.older(minute, 61_000 + by), None, "that is forgotten already");
    assert_eq!(catalog.older(minute, 62_000 + by), Some(LogPos(40)));
}
