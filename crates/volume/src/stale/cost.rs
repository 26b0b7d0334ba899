//! What a read would cost: an estimate in nanoseconds, by what would answer it and what stands in its way there (Yogurt, equations 2
//! to 4). Pure.
//!
//! ```text
//!   memory                                                     -1
//!   a drive      read_ns x (queued reads + 1) + write_ns x queued writes
//! ```
//!
//! The read that is asked about counts as one: in the paper it does not, and a disk without a queue costs as much as an SSD without one,
//! nothing.

use std::collections::BTreeMap;
use std::fmt;

use ithaca_chain::{DriveId, Queue, Source};

/// An estimate, good for nothing but to be compared with others of the same store: the lower one is probably faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost(pub i64);

impl Cost {
    /// Of what is in memory, or reads as zeros: below that of any drive.
    pub const MEMORY: Cost = Cost(-1);
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What a request that waits for a drive adds to the cost of a read there, in nanoseconds.
///
/// Those of classes are the mean times of a random read and a random durable write of 4 KiB with one under way, on the modelled drives
/// (`cargo lab fig calibration`, which holds them to that).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriveCost {
    /// A read.
    pub read_ns: u64,
    /// A write.
    pub write_ns: u64,
}

impl DriveCost {
    /// A disk of 10,000 rpm.
    pub const DISK: Self = Self { read_ns: 6_360_000, write_ns: 6_795_000 };
    /// A SATA SSD.
    pub const SSD: Self = Self { read_ns: 198_000, write_ns: 398_000 };
    /// An NVMe drive.
    pub const NVME: Self = Self { read_ns: 81_000, write_ns: 67_000 };
    /// Memory that looks like a drive.
    pub const RAM: Self = Self { read_ns: 1_400, write_ns: 1_400 };

    fn of(self, queue: Queue) -> Cost {
        let reads = self.read_ns.saturating_mul(u64::from(queue.reads) + 1);
        let all = reads.saturating_add(self.write_ns.saturating_mul(u64::from(queue.writes)));
        Cost(i64::try_from(all).unwrap_or(i64::MAX))
    }
}

/// What requests cost on each drive of a volume.
#[derive(Clone, Debug)]
pub struct Costs {
    others: DriveCost,
    cache_drive: DriveCost,
    drives: BTreeMap<DriveId, DriveCost>,
}

impl Costs {
    /// All drives of one kind; a cache drive is an SSD.
    pub fn all(drive: DriveCost) -> Self {
        Self { others: drive, cache_drive: DriveCost::SSD, drives: BTreeMap::new() }
    }

    /// With one drive of another kind.
    pub fn with(mut self, id: DriveId, drive: DriveCost) -> Self {
        self.drives.insert(id, drive);
        self
    }

    /// With a cache drive of another kind.
    pub fn with_cache_drive(mut self, drive: DriveCost) -> Self {
        self.cache_drive = drive;
        self
    }

    /// Of a read that this answers.
    pub(crate) fn of(&self, source: Source) -> Cost {
        match source {
            Source::Memory => Cost::MEMORY,
            Source::CacheDrive(queue) => self.cache_drive.of(queue),
            Source::Drive(id, queue) => self.drives.get(&id).unwrap_or(&self.others).of(queue),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_costs_less_than_anything_and_an_idle_ssd_less_than_an_idle_disk() {
        let (disk, ssd) = (DriveId(1), DriveId(2));
        let costs = Costs::all(DriveCost::DISK).with(ssd, DriveCost::SSD);
        let of = |id, reads, writes| costs.of(Source::Drive(id, Queue { reads, writes }));
        assert!(costs.of(Source::Memory) < of(ssd, 0, 0));
        assert!(of(ssd, 0, 0) < of(disk, 0, 0), "by an order of magnitude");
        assert!(of(ssd, 10, 0) < of(disk, 0, 0));
        assert!(of(disk, 1, 0) < of(disk, 0, 1), "a queued write is worse than a queued read");
        assert_eq!(of(disk, u32::MAX, u32::MAX).0, (6_360_000 * (1 << 32)) + 6_795_000 * ((1 << 32) - 1));
    }
}
