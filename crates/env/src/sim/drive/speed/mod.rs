//! How long drive requests take: the interface of speed models, and the models that there are.
//!
//! ```text
//!   drive ── submit(now, request) ──► model            a request comes
//!         ◄── agenda: end(key, at) ──                  ... and ends then, which may be decided later
//!         ◄── agenda: wake(at) ──────                  the model wants to decide something then
//!         ── wake(now) ────────────►
//! ```
//!
//! A model is a pure core in virtual nanoseconds: it moves no bytes, reads no clock and draws no random number, so a
//! drive's faults, crashes and trace are the same under every model. Its numbers and their sources stand in
//! docs/drives.md.

mod array;
mod disk;
mod lanes;
mod ssd;

use std::collections::{BTreeSet, VecDeque};

use crate::Time;

pub use array::{Array, ArrayOptions};
pub use disk::{Disk, DiskOptions};
pub use lanes::{Lanes, LanesOptions};
pub use ssd::{Ssd, SsdOptions};

/// What a request asks of the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A read.
    Read,
    /// A write into the drive's cache.
    Write,
    /// A write that is stable when it completes.
    DurableWrite,
    /// Everything in the drive's cache made stable.
    Sync,
    /// The bytes are not needed any more.
    Discard,
}

impl Access {
    /// Whether it brings bytes to the drive.
    pub fn is_write(self) -> bool {
        matches!(self, Access::Write | Access::DurableWrite)
    }
}

/// Names a request between a drive and its model. No two requests of a world have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestKey {
    pub(in crate::sim) serial: u64,
    pub(in crate::sim) slot: u32,
}

/// A request as a model sees it.
#[derive(Clone, Copy, Debug)]
pub struct SpeedRequest {
    /// Its name.
    pub key: RequestKey,
    /// What it asks for.
    pub access: Access,
    /// First byte; a multiple of the block size.
    pub offset: u64,
    /// Bytes; a multiple of the block size, 0 for a sync.
    pub len: u64,
}

impl SpeedRequest {
    /// The byte after the last.
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// What a model decided in one call.
#[derive(Default)]
pub struct Agenda {
    ends: VecDeque<(RequestKey, Time)>,
    wake_at: Option<Time>,
}

impl Agenda {
    /// The request is done at `at`. Said once for every request.
    pub fn end(&mut self, key: RequestKey, at: Time) {
        self.ends.push_back((key, at));
    }

    /// The model wants to be woken at `at`. Of two such wishes in one call the earlier counts.
    pub fn wake(&mut self, at: Time) {
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// Takes the next of the ends that were decided, in the order in which they were.
    pub fn take_end(&mut self) -> Option<(RequestKey, Time)> {
        self.ends.pop_front()
    }

    /// Takes the wish to be woken.
    pub fn take_wake(&mut self) -> Option<Time> {
        self.wake_at.take()
    }
}

/// What the parts behind a drive's queue did. A model leaves at 0 what it has not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MediaStats {
    /// Time that the parts worked, in nanoseconds: the arm of a disk; all channels of an SSD together.
    pub busy_ns: u64,
    /// Requests for which the arm of a disk had to move or change the surface.
    pub seeks: u64,
    /// Reads that the buffer of a disk answered without its arm.
    pub read_ahead_hits: u64,
    /// Bytes written on the medium: what came from outside and what cleaning moved.
    pub bytes_written: u64,
    /// Of these, bytes that cleaning moved.
    pub bytes_moved: u64,
    /// Blocks erased: the wear of flash.
    pub erases: u64,
    /// Erases of the block that was erased most.
    pub erases_max: u64,
}

impl MediaStats {
    /// What was added since `earlier`; `erases_max` stays a whole.
    pub fn since(&self, earlier: &MediaStats) -> MediaStats {
        MediaStats {
            busy_ns: self.busy_ns - earlier.busy_ns,
            seeks: self.seeks - earlier.seeks,
            read_ahead_hits: self.read_ahead_hits - earlier.read_ahead_hits,
            bytes_written: self.bytes_written - earlier.bytes_written,
            bytes_moved: self.bytes_moved - earlier.bytes_moved,
            erases: self.erases - earlier.erases,
            erases_max: self.erases_max,
        }
    }
}

/// The speed of one drive.
///
/// * A model MUST give every request an end at some time, unless its [power is cut](SpeedModel::cut_power).
/// * An end or a wake MUST NOT lie before the `now` of the call that decides it.
/// * `now` never goes back from call to call.
/// * A model MUST bear a [`wake`](SpeedModel::wake) that it did not ask for, or that comes twice.
pub trait SpeedModel {
    /// The drive has `size_bytes` from now on; called before the first request and when the drive grows. `phase` is a
    /// number of this drive's own, the same at each call: where its platters stand at time zero.
    fn install(&mut self, size_bytes: u64, phase: u64);

    /// A request comes.
    fn submit(&mut self, now: Time, request: SpeedRequest, agenda: &mut Agenda);

    /// It is the time that the model asked for.
    fn wake(&mut self, now: Time, agenda: &mut Agenda);

    /// The power was cut: what has not begun of these requests is not to be done, nobody waits for the others, and what
    /// the drive's own memory held is gone. Requests of others go on.
    fn cut_power(&mut self, requests: &BTreeSet<RequestKey>);

    /// Another drive of the same kind takes the place of this one: nothing is queued, buffered or worn. It is installed
    /// before its first request.
    fn replace(&mut self);

    /// What the parts did since the drive was new.
    fn media(&self) -> MediaStats;
}

/// The models that there are, as they come. Their numbers are explained in docs/drives.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speed {
    /// Memory: one microsecond a request, 10 GB/s.
    Ram,
    /// An NVMe drive of a server without power-loss protection: reads 80 us, flushes 50 us, 64 requests at once.
    Nvme,
    /// A SATA SSD of 2012 without power-loss protection: 8 channels, 7 % spare, cleaning inside.
    Ssd,
    /// A 10,000 rpm disk: 120 MB/s on its outer tracks, 3.3 ms a seek, write cache off.
    Disk,
}

impl Speed {
    /// A model of that kind.
    pub fn model(self) -> Box<dyn SpeedModel> {
        match self {
            Speed::Ram => Box::new(Lanes::new(LanesOptions::ram())),
            Speed::Nvme => Box::new(Lanes::new(LanesOptions::nvme())),
            Speed::Ssd => Box::new(Ssd::new(SsdOptions::default())),
            Speed::Disk => Box::new(Disk::new(DiskOptions::default())),
        }
    }
}

/// How long `bytes` take at `bytes_per_us`, in nanoseconds, rounded up.
fn transfer_ns(bytes: u64, bytes_per_us: u64) -> u64 {
    (bytes * 1000).div_ceil(bytes_per_us)
}

#[cfg(test)]
mod testbed;
