//! What can be done to a drive.

use std::time::Duration;

use super::DriveId;

/// A fault of one drive. Those with a `count` meet the next requests of their kind, one each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriveFault {
    /// Writes that fail with an I/O error; any part of each may be there.
    FailWrites {
        /// Writes to meet.
        count: u32,
    },
    /// Syncs that fail with an I/O error and drop any part of the dirty data; a second sync succeeds and saves nothing.
    FailSyncs {
        /// Syncs to meet.
        count: u32,
    },
    /// Reads that fail with an I/O error, once.
    FailReads {
        /// Reads to meet.
        count: u32,
    },
    /// Writes and growths that fail because no space is left below the drive; nothing of them is there.
    NoSpace {
        /// Requests to meet.
        count: u32,
    },
    /// Writes that are acknowledged and not done.
    LoseWrites {
        /// Writes to meet.
        count: u32,
    },
    /// Writes that are acknowledged and land somewhere else on the drive.
    MisdirectWrites {
        /// Writes to meet.
        count: u32,
    },
    /// The block at `offset` cannot be read until it is written again.
    Unreadable {
        /// A byte of the block.
        offset: u64,
    },
    /// One bit of the stable copy flips.
    BitRot {
        /// The byte.
        offset: u64,
        /// The bit, 0 to 7.
        bit: u8,
    },
    /// Requests take `percent` of their time, for a while.
    Slow {
        /// 100 is the usual speed.
        percent: u32,
        /// How long.
        span: Duration,
    },
    /// No request completes for a while.
    Stuck {
        /// How long.
        span: Duration,
    },
    /// The drive is gone for good: every request fails.
    Gone,
    /// A gone, broken or healthy drive is replaced by an empty one of the same name: it does not exist until created.
    Replace,
}

/// What a system on one drive owes in the face of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// Nothing is lost and service goes on, perhaps later or after a restart.
    Survive,
    /// No wrong data is served; what is harmed is refused by name, and what is not harmed is served.
    Detect,
}

impl DriveFault {
    /// What a system whose only copy is on this drive owes. With a second good copy every fault is to be survived.
    pub fn budget(&self) -> Budget {
        match self {
            DriveFault::FailWrites { .. }
            | DriveFault::FailSyncs { .. }
            | DriveFault::FailReads { .. }
            | DriveFault::NoSpace { .. }
            | DriveFault::Slow { .. }
            | DriveFault::Stuck { .. } => Budget::Survive,
            DriveFault::LoseWrites { .. }
            | DriveFault::MisdirectWrites { .. }
            | DriveFault::Unreadable { .. }
            | DriveFault::BitRot { .. }
            | DriveFault::Gone
            | DriveFault::Replace => Budget::Detect,
        }
    }
}

/// What meets a request, decided when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Good,
    Fail,
    NoSpace,
    Lose,
    Misdirect,
}

/// Counted faults that wait for requests to meet.
#[derive(Default)]
pub(super) struct Armed {
    pub(super) fail_writes: u32,
    pub(super) fail_syncs: u32,
    pub(super) fail_reads: u32,
    pub(super) no_space: u32,
    pub(super) lose_writes: u32,
    pub(super) misdirect_writes: u32,
}

fn take(count: &mut u32) -> bool {
    let any = *count > 0;
    *count -= u32::from(any);
    any
}

impl Armed {
    pub(super) fn meet_write(&mut self) -> Verdict {
        if take(&mut self.fail_writes) {
            Verdict::Fail
        } else if take(&mut self.no_space) {
            Verdict::NoSpace
        } else if take(&mut self.lose_writes) {
            Verdict::Lose
        } else if take(&mut self.misdirect_writes) {
            Verdict::Misdirect
        } else {
            Verdict::Good
        }
    }

    pub(super) fn meet_sync(&mut self) -> Verdict {
        if take(&mut self.fail_syncs) { Verdict::Fail } else { Verdict::Good }
    }

    pub(super) fn meet_read(&mut self) -> Verdict {
        if take(&mut self.fail_reads) { Verdict::Fail } else { Verdict::Good }
    }

    pub(super) fn meet_grow(&mut self) -> Verdict {
        if take(&mut self.no_space) { Verdict::NoSpace } else { Verdict::Good }
    }
}

/// A number for the trace.
pub(super) fn trace_number(drive: DriveId, fault: &DriveFault) -> u64 {
    let (kind, detail) = match *fault {
        DriveFault::FailWrites { count } => (1, u64::from(count)),
        DriveFault::FailSyncs { count } => (2, u64::from(count)),
        DriveFault::FailReads { count } => (3, u64::from(count)),
        DriveFault::NoSpace { count } => (4, u64::from(count)),
        DriveFault::LoseWrites { count } => (5, u64::from(count)),
        DriveFault::MisdirectWrites { count } => (6, u64::from(count)),
        DriveFault::Unreadable { offset } => (7, offset),
        DriveFault::BitRot { offset, bit } => (8, offset << 3 | u64::from(bit)),
        DriveFault::Slow { percent, span } => (9, u64::from(percent) ^ (span.as_nanos() as u64) << 8),
        DriveFault::Stuck { span } => (10, span.as_nanos() as u64),
        DriveFault::Gone => (11, 0),
        DriveFault::Replace => (12, 0),
    };
    u64::from(drive.0) << 56 ^ kind << 48 ^ detail
}
