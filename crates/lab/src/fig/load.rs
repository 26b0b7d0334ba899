//! Load on simulated drives: a number of requests kept under way, until so many are done.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::IpAddr;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::drive::{Drive, Durability, OpenDrive};
use ithaca_env::sim::{DriveId, DriveStats, ProcessId, Sim, SimOptions, Speed, SpeedModel};
use ithaca_env::{Env, Time};

/// What every request of a load asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A read.
    Read,
    /// A write into the drive's cache.
    Write,
    /// A write that is on stable storage when it is answered.
    DurableWrite,
}

/// A load on one drive.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// What is asked for.
    pub request: Request,
    /// Bytes of a request.
    pub len: usize,
    /// Requests under way together.
    pub depth: u64,
    /// Requests in all.
    pub count: u64,
}

/// What a load met.
pub struct Outcome {
    /// From the first start to the last end, in nanoseconds.
    pub span_ns: u64,
    /// From start to end of each request, in nanoseconds, the least first.
    pub latencies_ns: Vec<u64>,
    /// What the drive did meanwhile.
    pub stats: DriveStats,
}

impl Outcome {
    /// The latency that `percent` of the requests do not exceed, in microseconds.
    pub fn latency_us(&self, percent: usize) -> f64 {
        let last = self.latencies_ns.len() - 1;
        self.latencies_ns[last * percent / 100] as f64 / 1e3
    }

    /// Megabytes (10^6 bytes) a second.
    pub fn mb_per_s(&self, load: &Load) -> f64 {
        (load.count * load.len as u64) as f64 * 1e3 / self.span_ns as f64
    }

    /// Requests a second.
    pub fn ops_per_s(&self, load: &Load) -> f64 {
        load.count as f64 * 1e9 / self.span_ns as f64
    }
}

/// A machine with drives of one kind, and nothing that is random about their times.
pub struct Bench {
    sim: Sim,
    node: ProcessId,
    machine: IpAddr,
}

impl Bench {
    /// No drive yet.
    pub fn new(seed: u64, speed: Speed) -> Self {
        let options = SimOptions {
            drive_speed: speed,
            drive_jitter_percent: 0,
            clock_drift_ppm: 0,
            ..SimOptions::default()
        };
        let sim = Sim::with_options(seed, options);
        let machine = [10, 0, 0, 1].into();
        let node = sim.process("load", machine);
        Self { sim, node, machine }
    }

    /// What the process that makes the load sees.
    pub fn env(&self) -> Env {
        self.sim.env(self.node)
    }

    /// What a drive did so far.
    pub fn stats(&self, drive: DriveId) -> DriveStats {
        self.sim.drive_stats(drive)
    }

    /// Runs the world until the process's clock, which is the world's, shows `until`.
    pub fn run_until(&self, until: Time) {
        self.sim.run_until(until);
    }

    /// Runs the world as long as `goes_on` says so, and it is not `until` yet.
    pub fn run_while(&self, until: Time, goes_on: impl Fn() -> bool + 'static) {
        let ran = self.sim.run_while(until, move |_| goes_on());
        assert!(ran.is_ok(), "a load without faults ends: {ran:?}");
    }

    /// Runs `future` in the process.
    pub fn block_on<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        self.sim.block_on(self.node, future)
    }

    /// A new drive.
    pub fn drive(&self, name: &str, size_bytes: u64) -> (DriveId, Drive) {
        let open = OpenDrive { path: name.into(), create_bytes: Some(size_bytes), read_only: false };
        let env = self.sim.env(self.node);
        let opened = self.sim.block_on(self.node, async move { env.open_drive(open).await });
        let id = self.sim.drive(self.machine, name);
        (id, opened.expect("a simulated drive that no fault meets opens"))
    }

    /// A new drive with a speed of its own.
    pub fn drive_of(&self, name: &str, size_bytes: u64, speed: Box<dyn SpeedModel>) -> (DriveId, Drive) {
        let (id, drive) = self.drive(name, size_bytes);
        self.sim.set_drive_speed(id, speed);
        (id, drive)
    }

    /// Runs a load whose `n`th request goes to the byte `place(n)`.
    pub fn run(
        &self,
        (id, drive): &(DriveId, Drive),
        load: Load,
        place: impl Fn(u64) -> u64 + 'static,
    ) -> Outcome {
        let (before, begin) = (self.sim.drive_stats(*id), self.sim.now());
        let latencies = Rc::new(RefCell::new(Vec::with_capacity(load.count as usize)));
        let next = Rc::new(Cell::new(0));
        let place = Rc::new(place);
        let data = Bytes::from(vec![0; load.len]);
        let env = self.sim.env(self.node);
        for _ in 0..load.depth {
            let (drive, data, place, env) = (drive.clone(), data.clone(), Rc::clone(&place), env.clone());
            let (next, latencies) = (Rc::clone(&next), Rc::clone(&latencies));
            self.sim.env(self.node).spawn(async move {
                while next.get() < load.count {
                    let at = place(next.replace(next.get() + 1));
                    let sent = env.now();
                    request(&drive, load, at, &data).await;
                    latencies.borrow_mut().push(env.now().since(sent).as_nanos() as u64);
                }
            });
        }
        let all = load.count as usize;
        let counted = Rc::clone(&latencies);
        let ran = self.sim.run_while(Time::MAX, move |_| counted.borrow().len() < all);
        assert!(ran.is_ok(), "a load without faults ends: {ran:?}");
        let mut latencies_ns = latencies.take();
        latencies_ns.sort_unstable();
        let span_ns = self.sim.now().since(begin).as_nanos() as u64;
        Outcome { span_ns, latencies_ns, stats: self.sim.drive_stats(*id).since(&before) }
    }

    /// Makes everything stable.
    pub fn sync(&self, (_, drive): &(DriveId, Drive)) {
        self.sim.block_on(self.node, drive.sync()).expect("a simulated drive that no fault meets syncs");
    }
}

async fn request(drive: &Drive, load: Load, at: u64, data: &Bytes) {
    let done = match load.request {
        Request::Read => drive.read(at, load.len).await.map(drop),
        Request::Write => drive.write(at, data.clone(), Durability::Volatile).await,
        Request::DurableWrite => drive.write(at, data.clone(), Durability::Durable).await,
    };
    done.expect("a simulated drive that no fault meets answers");
}
