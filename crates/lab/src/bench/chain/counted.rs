//! A drive that counts what passes through it: the chain's share of requests is what the bare writer is given to do.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::drive::{Drive, DriveFuture, Durability, Pieces, Wrapper};
use ithaca_env::{Env, Time};

/// What a drive was asked for so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Writes, durable or not.
    pub writes: u64,
    /// Their bytes.
    pub write_bytes: u64,
    /// Nanoseconds in which a read was under way.
    reading_ns: u64,
    /// The same, times how many were.
    waiting_ns: u64,
}

impl Counts {
    /// What came after `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            reads: self.reads - before.reads,
            read_bytes: self.read_bytes - before.read_bytes,
            writes: self.writes - before.writes,
            write_bytes: self.write_bytes - before.write_bytes,
            reading_ns: self.reading_ns - before.reading_ns,
            waiting_ns: self.waiting_ns - before.waiting_ns,
        }
    }

    /// Reads under way at the same time, in the mean over the time in which there was one.
    pub fn read_depth(&self) -> f64 {
        self.waiting_ns as f64 / self.reading_ns.max(1) as f64
    }
}

/// See the module.
pub struct Counted {
    drive: Drive,
    counts: Rc<RefCell<Counts>>,
    reading: Rc<Cell<(u64, Time)>>,
    env: Env,
}

impl Counted {
    /// `drive`, counted, and where its counts are.
    pub fn over(drive: Drive, env: &Env) -> (Drive, Rc<RefCell<Counts>>) {
        let counts = Rc::new(RefCell::new(Counts::default()));
        let reading = Rc::new(Cell::new((0, env.now())));
        let counted = Self { drive, counts: Rc::clone(&counts), reading, env: env.clone() };
        (Drive::new(Rc::new(counted)), counts)
    }
}

/// Notes that so many more (or, with `false`, one fewer) reads are under way from now on.
fn step(counts: &RefCell<Counts>, reading: &Cell<(u64, Time)>, now: Time, is_begun: bool) {
    let (under_way, since) = reading.get();
    let span = now.since(since).as_nanos() as u64;
    let mut counts = counts.borrow_mut();
    counts.reading_ns += if under_way > 0 { span } else { 0 };
    counts.waiting_ns += span * under_way;
    reading.set((if is_begun { under_way + 1 } else { under_way - 1 }, now));
}

impl Wrapper for Counted {
    fn drive(&self) -> &Drive {
        &self.drive
    }

    fn read(&self, offset: u64, len: usize) -> DriveFuture<Bytes> {
        step(&self.counts, &self.reading, self.env.now(), true);
        let mut counts = self.counts.borrow_mut();
        counts.reads += 1;
        counts.read_bytes += len as u64;
        drop(counts);
        let (counts, reading, env) = (Rc::clone(&self.counts), Rc::clone(&self.reading), self.env.clone());
        let read = self.drive.read(offset, len);
        Box::pin(async move {
            let read = read.await;
            step(&counts, &reading, env.now(), false);
            read
        })
    }

    fn write(&self, offset: u64, data: Pieces, durability: Durability) -> DriveFuture<()> {
        let mut counts = self.counts.borrow_mut();
        counts.writes += 1;
        counts.write_bytes += data.len() as u64;
        drop(counts);
        self.drive.write(offset, data, durability)
    }
}
