//! What must hold, whatever happens. The numbers are those of the invariants in the design of the tests.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use ithaca_chain::{RangeSet, Run};

use super::disk::{Batch, Disk, Held};
use crate::pos::{Addr, AddrRange, Epoch, LogPos};
use crate::unit::Holding;
use crate::wire::Sealed;

/// Which rule is broken, and how.
pub(super) type Broken = String;

/// What has been shown to anybody so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Oracle {
    /// What addresses were shown to hold.
    known: BTreeMap<u64, Held>,
    /// Addresses that were shown to be trimmed.
    trimmed: RangeSet,
    /// Answers to seals, of each extent.
    sealed: BTreeMap<(Epoch, AddrRange), Option<Addr>>,
    granted: BTreeSet<(u64, u64)>,
    /// The newest epoch that the unit had changed anything in, durably, when it restarted last.
    fenced: u64,
}

pub(super) fn check(holds: bool, rule: u8, what: impl FnOnce() -> String) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(format!("rule {rule} is broken: {}", what())) }
}

impl Oracle {
    /// The unit wants to store `batch` because of a request in `epoch`.
    pub(super) fn changes(&self, epoch: u64, runs: &[Run], batch: &Batch, disk: &Disk) -> Result<(), Broken> {
        let sealed = self.sealed.keys().next_back().map(|(epoch, _)| *epoch).unwrap_or_default();
        check(epoch > sealed.0, 25, || format!("a change in epoch {epoch} after the seal of {sealed}"))?;
        check(epoch > self.fenced, 25, || format!("a change in epoch {epoch}, served before a restart"))?;
        for run in runs {
            check(run.table.first_mismatch(&run.data).is_none(), 7, || "damaged data is stored".to_owned())?;
        }
        let earlier = || disk.under_way.iter();
        for key in batch.cells.keys() {
            let released = disk.released.contains(*key)
                || earlier().any(|batch| batch.release.iter().any(|range| range.contains(key)));
            check(!released, 22, || format!("address {key} is written after it was trimmed"))?;
            let twice = disk.cells.contains_key(key) || earlier().any(|batch| batch.cells.contains_key(key));
            check(!twice, 15, || format!("address {key} is written twice"))?;
        }
        Ok(())
    }

    /// A write was acknowledged.
    pub(super) fn written(
        &mut self,
        client: usize,
        epoch: u64,
        addresses: Range<u64>,
        taken: &[(AddrRange, Holding)],
        disk: &Disk,
    ) -> Result<(), Broken> {
        for addr in addresses.filter(|&addr| !listed(taken, addr)) {
            let stored = disk.cells.get(&addr) == Some(&(epoch, Held::Data(client)));
            check(stored, 16, || format!("the write of {addr} is acknowledged and not on the drive"))?;
            self.know(addr, Held::Data(client), disk)?;
        }
        self.taken(taken, disk)
    }

    /// A fill was acknowledged.
    pub(super) fn filled(
        &mut self,
        addresses: Range<u64>,
        taken: &[(AddrRange, Holding)],
        disk: &Disk,
    ) -> Result<(), Broken> {
        for addr in addresses.filter(|&addr| !listed(taken, addr)) {
            let junk = disk.cells.get(&addr).is_some_and(|(_, held)| *held == Held::Junk);
            check(junk, 16, || format!("the fill of {addr} is acknowledged and not on the drive"))?;
            self.know(addr, Held::Junk, disk)?;
        }
        self.taken(taken, disk)
    }

    fn taken(&mut self, taken: &[(AddrRange, Holding)], disk: &Disk) -> Result<(), Broken> {
        for &(range, holding) in taken {
            check(holding != Holding::Unwritten, 16, || {
                format!("{range} is said to be taken by what is not durable")
            })?;
            self.revealed(range, holding, disk)?;
        }
        Ok(())
    }

    /// Somebody was told what addresses hold.
    pub(super) fn revealed(&mut self, range: AddrRange, holding: Holding, disk: &Disk) -> Result<(), Broken> {
        for addr in range.numbers() {
            match holding {
                Holding::Unwritten => {
                    let known = self.known.contains_key(&addr) || self.trimmed.contains(addr);
                    check(!known, 18, || format!("{addr} was known, and is said to be unwritten"))?;
                }
                Holding::Trimmed => self.trimmed(addr..addr + 1, disk)?,
                Holding::Voided => return check(false, 21, || format!("nobody has voided {addr}")),
                Holding::Stored => {
                    let Some(&(_, held)) = disk.cells.get(&addr) else {
                        return check(false, 18, || format!("{addr} is shown and is not durable"));
                    };
                    self.know(addr, held, disk)?;
                }
            }
        }
        Ok(())
    }

    /// Addresses were said to be trimmed.
    pub(super) fn trimmed(&mut self, addresses: Range<u64>, disk: &Disk) -> Result<(), Broken> {
        let stored = disk.released.gaps(addresses.clone()).next().is_none();
        check(stored, 22, || format!("{addresses:?} is said to be trimmed and is not, on the drive"))?;
        self.trimmed.insert(addresses);
        Ok(())
    }

    /// A seal was answered.
    pub(super) fn sealed(
        &mut self,
        extents: &[AddrRange],
        sealed: &Sealed,
        disk: &Disk,
    ) -> Result<(), Broken> {
        let epoch = sealed.epoch;
        check(sealed.highest.len() == extents.len(), 19, || format!("{extents:?} and {sealed:?}"))?;
        for (&extent, &highest) in extents.iter().zip(&sealed.highest) {
            let first = *self.sealed.entry((epoch, extent)).or_insert(highest);
            check(first == highest, 19, || format!("sealing {epoch} gave {first:?} and then {highest:?}"))?;
        }
        check(disk.state.sealed >= epoch, 19, || format!("the seal of {epoch} is not on the drive"))?;
        self.check_sealed(disk)
    }

    /// Nothing of a sealed epoch lies above what its seal said.
    fn check_sealed(&self, disk: &Disk) -> Result<(), Broken> {
        let under_way = disk.under_way.iter().flat_map(|batch| &batch.cells);
        for (&addr, &(version, _)) in disk.cells.iter().chain(under_way) {
            for ((epoch, extent), highest) in &self.sealed {
                let is_in = version <= epoch.0 && extent.numbers().contains(&addr);
                let below = !is_in || highest.is_some_and(|highest| addr <= highest.0);
                check(below, 19, || format!("{addr} was written in epoch {version}, sealed at {highest:?}"))?;
            }
        }
        Ok(())
    }

    /// Positions were granted.
    pub(super) fn granted(&mut self, epoch: u64, positions: Range<u64>, disk: &Disk) -> Result<(), Broken> {
        for pos in positions {
            check(self.granted.insert((epoch, pos)), 17, || format!("{pos} is granted twice"))?;
            let older = disk.cells.get(&pos).is_some_and(|&(version, _)| version < epoch);
            check(!older, 17, || format!("{pos} is granted in {epoch} and was written before"))?;
        }
        Ok(())
    }

    /// The newest sequencer told the tail.
    pub(super) fn tail(&self, tail: LogPos) -> Result<(), Broken> {
        let last = self.known.last_key_value().map(|(&addr, _)| addr);
        check(last.is_none_or(|last| last < tail.0), 18, || format!("the tail is {tail}, {last:?} is known"))
    }

    /// The unit restarted.
    pub(super) fn restarted(&mut self, disk: &Disk) {
        let newest = disk.cells.values().map(|&(version, _)| version).max();
        self.fenced = newest.unwrap_or_default().max(self.fenced);
    }

    /// What must hold at every moment: the drive may be all that is left of it.
    pub(super) fn check_disk(&self, disk: &Disk) -> Result<(), Broken> {
        for (addr, held) in &self.known {
            let there = disk.released.contains(*addr)
                || disk.cells.get(addr).is_some_and(|(_, stored)| stored == held);
            check(there, 16, || format!("{addr} was known to hold {held:?}, which is not on the drive"))?;
        }
        self.check_sealed(disk)
    }

    fn know(&mut self, addr: u64, held: Held, disk: &Disk) -> Result<(), Broken> {
        check(!self.trimmed.contains(addr) || disk.released.contains(addr), 22, || {
            format!("{addr} is back from being trimmed")
        })?;
        let first = *self.known.entry(addr).or_insert(held);
        check(first == held, 15, || format!("{addr} held {first:?}, and now {held:?}"))
    }
}

fn listed(taken: &[(AddrRange, Holding)], addr: u64) -> bool {
    taken.iter().any(|(range, _)| range.numbers().contains(&addr))
}
