//! What a drive did, counted at its queue: operations, bytes, waiting. What its parts did is the model's to count.

use std::time::Duration;

use crate::Time;

use super::speed::{Access, MediaStats};

/// Requests of one kind that succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindStats {
    /// Requests.
    pub ops: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// From start to end, summed over them, in nanoseconds.
    pub latency_ns: u64,
}

impl KindStats {
    /// What was added since `earlier`.
    pub fn since(&self, earlier: &KindStats) -> KindStats {
        KindStats {
            ops: self.ops - earlier.ops,
            bytes: self.bytes - earlier.bytes,
            latency_ns: self.latency_ns - earlier.latency_ns,
        }
    }

    /// From start to end on average; zero if there was none.
    pub fn mean_latency(&self) -> Duration {
        Duration::from_nanos(self.latency_ns.checked_div(self.ops).unwrap_or(0))
    }

    /// Megabytes (10^6 bytes) a second if all that took `span`, which is not zero.
    pub fn mb_per_s(&self, span: Duration) -> f64 {
        self.bytes as f64 / 1e6 / span.as_secs_f64()
    }

    /// Requests a second, likewise.
    pub fn ops_per_s(&self, span: Duration) -> f64 {
        self.ops as f64 / span.as_secs_f64()
    }
}

/// What a drive did since the simulation began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriveStats {
    /// Reads.
    pub reads: KindStats,
    /// Volatile writes.
    pub writes: KindStats,
    /// Durable writes.
    pub durable_writes: KindStats,
    /// Syncs.
    pub syncs: KindStats,
    /// Discards.
    pub discards: KindStats,
    /// Time with at least one request under way, in nanoseconds.
    pub busy_ns: u64,
    /// Requests under way, summed over time: request-nanoseconds.
    pub depth_ns: u64,
    /// Most requests under way together.
    pub depth_max: u64,
    /// What the parts did.
    pub media: MediaStats,
}

impl DriveStats {
    /// What was added since `earlier`; the two maxima stay those of the whole time.
    pub fn since(&self, earlier: &DriveStats) -> DriveStats {
        DriveStats {
            reads: self.reads.since(&earlier.reads),
            writes: self.writes.since(&earlier.writes),
            durable_writes: self.durable_writes.since(&earlier.durable_writes),
            syncs: self.syncs.since(&earlier.syncs),
            discards: self.discards.since(&earlier.discards),
            busy_ns: self.busy_ns - earlier.busy_ns,
            depth_ns: self.depth_ns - earlier.depth_ns,
            depth_max: self.depth_max,
            media: self.media.since(&earlier.media),
        }
    }

    /// Requests under way on average while there were any; 0 if there never were.
    pub fn mean_depth(&self) -> f64 {
        if self.busy_ns == 0 { 0.0 } else { self.depth_ns as f64 / self.busy_ns as f64 }
    }

    /// Volatile and durable writes together.
    pub fn all_writes(&self) -> KindStats {
        let (volatile, durable) = (&self.writes, &self.durable_writes);
        KindStats {
            ops: volatile.ops + durable.ops,
            bytes: volatile.bytes + durable.bytes,
            latency_ns: volatile.latency_ns + durable.latency_ns,
        }
    }
}

/// Counts.
#[derive(Default)]
pub(super) struct Meter {
    pub(super) stats: DriveStats,
    depth: u64,
    since: Time,
}

impl Meter {
    /// From `now` on `depth` requests are under way.
    pub(super) fn depth_is(&mut self, now: Time, depth: usize) {
        let span = now.0 - self.since.0;
        self.stats.depth_ns += span * self.depth;
        self.stats.busy_ns += if self.depth > 0 { span } else { 0 };
        self.depth = depth as u64;
        self.stats.depth_max = self.stats.depth_max.max(self.depth);
        self.since = now;
    }

    /// A request succeeded.
    pub(super) fn done(&mut self, access: Access, len: usize, latency: Duration) {
        let kind = match access {
            Access::Read => &mut self.stats.reads,
            Access::Write => &mut self.stats.writes,
            Access::DurableWrite => &mut self.stats.durable_writes,
            Access::Sync => &mut self.stats.syncs,
            Access::Discard => &mut self.stats.discards,
        };
        kind.ops += 1;
        kind.bytes += len as u64;
        kind.latency_ns += u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
    }
}
