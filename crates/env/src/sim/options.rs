//! Knobs of a simulation.

use std::time::Duration;

use super::drive::Speed;
use super::limits::CLOCK_DRIFT_MAX_PPM;

/// How a simulated world behaves while no fault is switched on. The defaults are a small, healthy cluster with NVMe
/// drives.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// How fast new drives are.
    pub drive_speed: Speed,
    /// A drive request takes up to this much longer than its model says, in percent, so that requests overtake.
    pub drive_jitter_percent: u32,
    /// Bytes that the files of one machine may take together.
    pub machine_capacity_bytes: u64,
    /// Connections between machines.
    pub link: LinkOptions,
    /// Connections within a machine.
    pub loopback: LinkOptions,
    /// Virtual CPU time that every wake of a process costs it; it handles nothing else meanwhile.
    pub cpu_per_wake: Duration,
    /// Virtual CPU time that every message costs the process that sends it: it leaves when that is over, and the process
    /// handles nothing else meanwhile. A message is what is queued on a connection in one piece, with the data after it.
    pub cpu_per_message: Duration,
    /// What a machine receives at most, all its connections together, in the order in which it comes; `None` for whatever
    /// it is sent.
    pub receive_bytes_per_s: Option<u64>,
    /// Every process's monotonic clock runs fast or slow by up to this, at most [`CLOCK_DRIFT_MAX_PPM`].
    pub clock_drift_ppm: u32,
    /// Every process's wall clock is off by up to this, either way.
    pub wall_clock_offset: Duration,
    /// Keep the trace as readable lines, not only as a hash.
    pub readable_trace: bool,
}

/// How a connection behaves.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// Least time from sender to receiver.
    pub latency: Duration,
    /// Time added at random, up to this. Bytes of one connection stay in order.
    pub jitter: Duration,
    /// What a machine sends at most, all its connections together.
    pub bytes_per_s: u64,
    /// Bytes that one direction holds, under way and unread, before the sender's outbox fills.
    pub window_bytes: usize,
    /// How often what is sent in one turn is lost and sent again after [`retransmit`](Self::retransmit), per million.
    pub loss_ppm: u32,
    /// How long a loss delays what follows it.
    pub retransmit: Duration,
    /// How often what is sent in one turn is cut at some byte by a reset of the connection, per million.
    pub reset_ppm: u32,
    /// How often what is sent in one turn arrives in two pieces, cut anywhere, per million.
    pub split_ppm: u32,
    /// How often a read returns fewer bytes than stand there, per million.
    pub short_read_ppm: u32,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self {
            drive_speed: Speed::Nvme,
            drive_jitter_percent: 30,
            machine_capacity_bytes: u64::MAX,
            link: LinkOptions::default(),
            loopback: LinkOptions {
                latency: Duration::from_micros(5),
                jitter: Duration::from_micros(5),
                bytes_per_s: 5_000_000_000,
                ..LinkOptions::default()
            },
            cpu_per_wake: Duration::ZERO,
            cpu_per_message: Duration::ZERO,
            receive_bytes_per_s: None,
            clock_drift_ppm: 100,
            wall_clock_offset: Duration::from_secs(1),
            readable_trace: false,
        }
    }
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self {
            latency: Duration::from_micros(25),
            jitter: Duration::from_micros(25),
            bytes_per_s: 1_250_000_000,
            window_bytes: 4 << 20,
            loss_ppm: 0,
            retransmit: Duration::from_millis(200),
            reset_ppm: 0,
            split_ppm: 50_000,
            short_read_ppm: 50_000,
        }
    }
}

impl SimOptions {
    /// The defaults, with everything as fast as memory and no randomness in time: for tests of logic alone.
    pub fn quick() -> Self {
        Self { drive_speed: Speed::Ram, clock_drift_ppm: 0, ..Self::default() }
    }

    pub(super) fn check(&self) {
        assert!(
            self.clock_drift_ppm <= CLOCK_DRIFT_MAX_PPM,
            "a clock that drifts more than the stated bound"
        );
        assert!(self.link.window_bytes > 0 && self.loopback.window_bytes > 0, "a window of no bytes");
        assert!(self.link.bytes_per_s > 0 && self.loopback.bytes_per_s > 0, "a link of no bandwidth");
        assert!(self.receive_bytes_per_s != Some(0), "a machine that receives nothing");
    }
}

pub(super) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
