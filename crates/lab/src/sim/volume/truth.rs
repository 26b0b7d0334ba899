//! What was asked of a volume, what came of it, and whether that is a history that a volume may have.
//!
//! Every write puts a number in a cell that no other ever puts anywhere, so that what is read says who has written it. The version of a
//! commit is its place in the order of all; that order is the witness against which everything is judged.

use std::collections::BTreeMap;

/// A block, and 16 bytes of it.
pub type Cell = (u64, u64);
/// What each cell holds; those that were never written are left out.
pub type Cells = BTreeMap<Cell, u64>;

/// What a deed is held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// Reads of a snapshot; nothing is written.
    Reading,
    /// A plain write.
    Plain,
    /// A transaction under snapshot isolation.
    Snapshot,
    /// A transaction under strict serializability.
    Strict,
}

/// What somebody has done at one go.
#[derive(Clone, Debug)]
pub struct Deed {
    /// What it is held to.
    pub held: Held,
    /// The version that it has read.
    pub snapshot: u64,
    /// What it has read there of others.
    pub reads: Vec<(Cell, u64)>,
    /// What it writes.
    pub writes: Cells,
}

/// A block that a client was given as it was at a version that would do.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// The block.
    pub block: u64,
    /// The version.
    pub version: u64,
    /// The client is owed what was there at this version, or later.
    pub least: u64,
    /// What was known to be durable when it was asked for.
    pub durable: u64,
    /// At most so many updates that were durable may be left out.
    pub updates_max: Option<u64>,
}

/// See the module.
#[derive(Clone, Default)]
pub struct Truth {
    /// Everything that was done, whatever came of it.
    deeds: Vec<Deed>,
    /// Commits whose versions are known.
    commits: BTreeMap<u64, usize>,
    /// Deeds that are under way and may become commits.
    asked: Vec<usize>,
    /// Everything up to here is known to be durable.
    durable: u64,
    /// Names of snapshots that are durable.
    pub names: BTreeMap<String, u64>,
    serial: u64,
    taken: Vec<Taken>,
    /// How often what a client was given was not what is known to have been the newest version.
    pub old_taken: u64,
    /// Commits that were acknowledged.
    pub committed: u64,
}

impl Truth {
    /// A number that was never used.
    pub fn serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// A commit is asked for. Names it.
    pub fn ask(&mut self, deed: Deed) -> usize {
        self.deeds.push(deed);
        self.asked.push(self.deeds.len() - 1);
        self.deeds.len() - 1
    }

    /// It was answered with this version, or was refused.
    pub fn answer(&mut self, deed: usize, version: Option<u64>) {
        self.asked.retain(|other| *other != deed);
        if let Some(version) = version {
            self.committed += 1;
            let before = self.commits.insert(version, deed);
            assert_eq!(before, None, "version {version} is one commit");
        }
    }

    /// Something was only read, or was refused after it had read.
    pub fn note(&mut self, deed: Deed) {
        self.deeds.push(deed);
    }

    /// A client was given a block.
    pub fn take(&mut self, taken: Taken) {
        self.old_taken += u64::from(taken.version < taken.durable);
        self.taken.push(taken);
    }

    /// Everything up to here is known to be durable.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// Everything up to this version is durable.
    pub fn note_durable(&mut self, version: u64) {
        self.durable = self.durable.max(version);
    }

    /// The highest version that somebody was told of, durable or not.
    pub fn newest_told(&self) -> u64 {
        self.commits.last_key_value().map_or(0, |(version, _)| *version)
    }

    /// What cells hold at each version, from 0 on, as far as all versions are known.
    pub fn states(&self) -> Vec<Cells> {
        let mut states = vec![Cells::new()];
        while let Some(&deed) = self.commits.get(&(states.len() as u64)) {
            let mut cells = states.last().expect("the empty one").clone();
            cells.extend(self.deeds[deed].writes.iter().map(|(cell, number)| (*cell, *number)));
            cells.retain(|_, number| *number != 0);
            states.push(cells);
        }
        states
    }

    /// The volume was opened again: `newest` is its newest version, and `found` what it holds at that and at others. What was under way
    /// may be among the versions that nobody was told of. Errors: no order of them gives that.
    pub fn reopened(&mut self, newest: u64, found: &BTreeMap<u64, Cells>) -> Result<(), String> {
        if newest < self.durable {
            return Err(format!("version {newest} is the newest, {} was durable", self.durable));
        }
        self.commits.split_off(&(newest + 1));
        let unknown: Vec<u64> = (1..=newest).filter(|version| !self.commits.contains_key(version)).collect();
        let asked = std::mem::take(&mut self.asked);
        if !self.assign(&unknown, &asked, found) {
            let states = self.states();
            let differs = |(version, cells): &(&u64, &Cells)| {
                states.get(**version as usize).is_some_and(|state| state != *cells)
            };
            return Err(match found.iter().find(differs) {
                Some((version, cells)) => {
                    format!("version {version} is {cells:?}, expected {:?}", states[*version as usize])
                }
                None => format!(
                    "no order of {asked:?} as versions {unknown:?} gives {found:?}; the last known is {:?}",
                    states.last()
                ),
            });
        }
        self.durable = newest;
        Ok(())
    }

    /// Tries all deeds for each unknown version. Two that write different cells give the same in the end in either order, and not between
    /// them, so that every version that was read counts.
    fn assign(&mut self, unknown: &[u64], asked: &[usize], found: &BTreeMap<u64, Cells>) -> bool {
        let states = self.states();
        let is_so = |(version, cells): (&u64, &Cells)| {
            states.get(*version as usize).map_or(!unknown.is_empty(), |state| state == cells)
        };
        if !found.iter().all(is_so) {
            return false;
        }
        let Some((version, later)) = unknown.split_first() else { return true };
        for (at, &deed) in asked.iter().enumerate() {
            self.commits.insert(*version, deed);
            let rest: Vec<usize> = [&asked[..at], &asked[at + 1..]].concat();
            if self.assign(later, &rest, found) {
                return true;
            }
            self.commits.remove(version);
        }
        false
    }

    /// Whether everything that was read and committed fits into the order of commits. Errors: the first that does not.
    pub fn judge(&self) -> Result<(), String> {
        let states = self.states();
        let versions: BTreeMap<usize, u64> =
            self.commits.iter().map(|(version, deed)| (*deed, *version)).collect();
        for (number, deed) in self.deeds.iter().enumerate() {
            let Some(snapshot) = states.get(deed.snapshot as usize) else { continue };
            reads_of(deed, snapshot).map_err(|cell| {
                format!("deed {number} does not see its snapshot {}: {cell:?} {deed:?}", deed.snapshot)
            })?;
            let Some(&version) = versions.get(&number) else { continue };
            match deed.held {
                Held::Strict => reads_of(deed, &states[version as usize - 1]).map_err(|cell| {
                    format!("version {version} is not as if it had run alone: {cell:?} {deed:?}")
                })?,
                Held::Snapshot => {
                    for between in deed.snapshot + 1..version {
                        let writes = &self.deeds[self.commits[&between]].writes;
                        if let Some(cell) = deed.writes.keys().find(|cell| writes.contains_key(cell)) {
                            return Err(format!(
                                "versions {between} and {version} both wrote {cell:?}: {deed:?}"
                            ));
                        }
                    }
                }
                Held::Plain | Held::Reading => {}
            }
        }
        self.taken.iter().try_for_each(|taken| self.judge_taken(taken))
    }

    /// Whether a client was given what it was owed. Errors: it was not.
    fn judge_taken(&self, taken: &Taken) -> Result<(), String> {
        let Taken { block, version, least, durable, updates_max } = *taken;
        let updates = |to: u64| {
            let left_out = self.commits.range(version + 1..(to + 1).max(version + 1));
            let writes = |deed: usize| self.deeds[deed].writes.keys().any(|(other, _)| *other == block);
            left_out.filter(|(_, deed)| writes(**deed)).count() as u64
        };
        if updates(least) > 0 {
            return Err(format!("a client is owed more than it was given: {taken:?}"));
        }
        match updates_max {
            Some(most) if updates(durable) > most => Err(format!("too many updates are left out: {taken:?}")),
            _ => Ok(()),
        }
    }
}

/// Whether a deed has read what is in `cells`. Errors: the first cell that is otherwise.
fn reads_of(deed: &Deed, cells: &Cells) -> Result<(), (Cell, u64)> {
    let is_same = |(cell, found): &&(Cell, u64)| cells.get(cell).copied().unwrap_or(0) != *found;
    deed.reads.iter().find(is_same).map_or(Ok(()), |read| Err(*read))
}
