//! NVMe and RAM: many requests at once, each with its own latency, over one bus. Where a block lies makes no difference.

use std::collections::BTreeSet;

use crate::Time;

use super::{Access, Agenda, MediaStats, RequestKey, SpeedModel, SpeedRequest, transfer_ns};

/// The numbers of a drive with lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LanesOptions {
    /// Requests served at once; not 0.
    pub lanes: usize,
    /// Until the first byte of a read, in nanoseconds.
    pub read_ns: u64,
    /// Until the first byte of a write is taken, in nanoseconds.
    pub write_ns: u64,
    /// What stability adds to a write, and what a sync takes, in nanoseconds.
    pub flush_ns: u64,
    /// Reads of all lanes together, in bytes a microsecond (MB/s).
    pub read_bytes_per_us: u64,
    /// Writes of all lanes together, likewise.
    pub write_bytes_per_us: u64,
}

impl LanesOptions {
    /// Memory.
    pub fn ram() -> Self {
        Self {
            lanes: 64,
            read_ns: 1_000,
            write_ns: 1_000,
            flush_ns: 0,
            read_bytes_per_us: 10_000,
            write_bytes_per_us: 10_000,
        }
    }

    /// An NVMe drive of a server.
    pub fn nvme() -> Self {
        Self {
            lanes: 64,
            read_ns: 80_000,
            write_ns: 15_000,
            flush_ns: 50_000,
            read_bytes_per_us: 3_000,
            write_bytes_per_us: 2_000,
        }
    }
}

/// Requests take a lane each, and share one bus. Every end is decided when the request comes.
pub struct Lanes {
    options: LanesOptions,
    /// When each lane is free.
    lanes: Vec<Time>,
    bus_free: Time,
    media: MediaStats,
}

impl Lanes {
    /// A drive that has done nothing yet. Panics if it has no lanes or no bandwidth.
    pub fn new(options: LanesOptions) -> Self {
        assert!(options.lanes > 0, "a drive without lanes serves nothing");
        assert!(options.read_bytes_per_us > 0 && options.write_bytes_per_us > 0, "a bus of no bandwidth");
        let lanes = vec![Time::ZERO; options.lanes];
        Self { options, lanes, bus_free: Time::ZERO, media: MediaStats::default() }
    }

    fn transfer(&mut self, from: Time, len: u64, bytes_per_us: u64) -> Time {
        let start = self.bus_free.max(from);
        self.bus_free = Time(start.0 + transfer_ns(len, bytes_per_us));
        self.bus_free
    }
}

impl SpeedModel for Lanes {
    fn install(&mut self, _size_bytes: u64, _phase: u64) {}

    fn submit(&mut self, now: Time, request: SpeedRequest, agenda: &mut Agenda) {
        let options = self.options;
        let lane = (0..self.lanes.len()).min_by_key(|&lane| self.lanes[lane]).unwrap_or(0);
        let start = self.lanes[lane].max(now);
        let written = Time(start.0 + options.write_ns);
        let end = match request.access {
            Access::Read => {
                self.transfer(Time(start.0 + options.read_ns), request.len, options.read_bytes_per_us)
            }
            Access::Write => self.transfer(written, request.len, options.write_bytes_per_us),
            Access::DurableWrite => {
                let taken = self.transfer(written, request.len, options.write_bytes_per_us);
                Time(taken.0 + options.flush_ns)
            }
            // A flush follows what is on its way to the cache.
            Access::Sync => Time(start.max(self.bus_free).0 + options.flush_ns),
            Access::Discard => written,
        };
        self.lanes[lane] = end;
        self.media.busy_ns += end.0 - start.0;
        if request.access.is_write() {
            self.media.bytes_written += request.len;
        }
        agenda.end(request.key, end);
    }

    fn wake(&mut self, _now: Time, _agenda: &mut Agenda) {}

    fn cut_power(&mut self, _requests: &BTreeSet<RequestKey>) {}

    fn replace(&mut self) {
        *self = Lanes::new(self.options);
    }

    fn media(&self) -> MediaStats {
        self.media
    }
}

#[cfg(test)]
mod tests {
    use super::super::testbed::Testbed;
    use super::super::{Access, Speed};
    use crate::Time;

    #[test]
    fn requests_together_share_the_bus_but_not_their_latency() {
        let alone = Testbed::new(Speed::Nvme.model(), 1 << 20).run(Access::Read, 0, 4096);
        let mut nvme = Testbed::new(Speed::Nvme.model(), 1 << 20);
        for _ in 0..32 {
            nvme.submit(Access::Read, 0, 4096);
        }
        let together = nvme.finish();
        assert!(together < Time(2 * alone.0), "{alone} alone, {together} for 32 at once");
        assert!(together.0 > 32 * 4096 / 3, "more than the bus carries");
    }

    #[test]
    fn durable_writes_pay_for_the_flush() {
        let mut nvme = Testbed::new(Speed::Nvme.model(), 1 << 20);
        assert_eq!(nvme.run(Access::DurableWrite, 0, 4096), Time(15_000 + 2048 + 50_000));
    }
}
