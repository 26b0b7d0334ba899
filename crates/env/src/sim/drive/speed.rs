//! How long drive requests take.

use crate::Time;

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
}

/// The speed of one drive. It remembers what keeps the drive busy.
pub trait SpeedModel {
    /// When a request that starts at `now` completes. Called once a request, in the order of their starts.
    fn complete_at(&mut self, now: Time, access: Access, offset: u64, len: usize) -> Time;
}

/// The models that there are. Their numbers are explained in docs/simulator.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speed {
    /// One microsecond a request, 10 GB/s.
    Ram,
    /// An NVMe drive of a server without power-loss protection: reads 80 us, flushes 50 us, 64 requests at once.
    Nvme,
}

impl Speed {
    pub(crate) fn model(self) -> Box<dyn SpeedModel> {
        match self {
            Speed::Ram => Box::new(Flash::new(&RAM)),
            Speed::Nvme => Box::new(Flash::new(&NVME)),
        }
    }
}

struct Figures {
    lanes: usize,
    read_ns: u64,
    write_ns: u64,
    flush_ns: u64,
    read_bytes_per_us: u64,
    write_bytes_per_us: u64,
}

const RAM: Figures = Figures {
    lanes: 64,
    read_ns: 1_000,
    write_ns: 1_000,
    flush_ns: 0,
    read_bytes_per_us: 10_000,
    write_bytes_per_us: 10_000,
};

const NVME: Figures = Figures {
    lanes: 64,
    read_ns: 80_000,
    write_ns: 15_000,
    flush_ns: 50_000,
    read_bytes_per_us: 3_000,
    write_bytes_per_us: 2_000,
};

/// Requests take a lane each, and share one bus.
struct Flash {
    figures: &'static Figures,
    /// When each lane is free.
    lanes: Vec<Time>,
    bus_free: Time,
}

impl Flash {
    fn new(figures: &'static Figures) -> Self {
        Self { figures, lanes: vec![Time::ZERO; figures.lanes], bus_free: Time::ZERO }
    }

    fn transfer(&mut self, from: Time, len: usize, bytes_per_us: u64) -> Time {
        let start = self.bus_free.max(from);
        self.bus_free = Time(start.0 + (len as u64 * 1000).div_ceil(bytes_per_us));
        self.bus_free
    }
}

impl SpeedModel for Flash {
    fn complete_at(&mut self, now: Time, access: Access, _offset: u64, len: usize) -> Time {
        let figures = self.figures;
        let lane = (0..self.lanes.len()).min_by_key(|&lane| self.lanes[lane]).unwrap_or(0);
        let start = self.lanes[lane].max(now);
        let end = match access {
            Access::Read => self.transfer(Time(start.0 + figures.read_ns), len, figures.read_bytes_per_us),
            Access::Write => self.transfer(Time(start.0 + figures.write_ns), len, figures.write_bytes_per_us),
            Access::DurableWrite => {
                let written =
                    self.transfer(Time(start.0 + figures.write_ns), len, figures.write_bytes_per_us);
                Time(written.0 + figures.flush_ns)
            }
            // A flush follows what is on its way to the cache.
            Access::Sync => Time(start.max(self.bus_free).0 + figures.flush_ns),
        };
        self.lanes[lane] = end;
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_together_share_the_bus_but_not_their_latency() {
        let mut nvme = Speed::Nvme.model();
        let alone = nvme.complete_at(Time::ZERO, Access::Read, 0, 4096);
        let mut nvme = Speed::Nvme.model();
        let together = (0..32).map(|_| nvme.complete_at(Time::ZERO, Access::Read, 0, 4096)).max();
        let together = together.expect("32 requests");
        assert!(together < Time(2 * alone.0), "{alone} alone, {together} for 32 at once");
        assert!(together.0 > 32 * 4096 / 3, "more than the bus carries");
    }

    #[test]
    fn durable_writes_pay_for_the_flush() {
        let mut nvme = Speed::Nvme.model();
        assert_eq!(nvme.complete_at(Time::ZERO, Access::DurableWrite, 0, 4096), Time(15_000 + 2048 + 50_000));
    }
}
