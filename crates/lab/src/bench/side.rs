//! One side of a bench: something that does the workload for a while and says how it went.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::bare::{Client, DriveFile, ServerProcess, Work, random_reads, run_all, sequential_writes};
use crate::measure::Figure;

use super::etcd::Etcd;
use super::ithaca::Ithaca;
use super::memory::Memory;
use super::plan::{Bench, Operation};
use super::redis::Redis;

/// How long a side works before it is measured.
pub const WARM_UP: Duration = Duration::from_millis(200);
/// Group size of the drive's sequential writes: what the bare baseline's groups come to with 1 MiB in flight.
const GROUP_BYTES: usize = 512 << 10;
/// Groups in flight, as everywhere.
const GROUP_DEPTH: usize = 2;

/// Something that does a bench's workload.
///
/// A side MUST be idle between its slices: the others are measured then. A slice that fails ends with an error; the
/// bench goes on with the others and says so.
pub trait Side {
    /// Its name in results.
    fn name(&self) -> &'static str;
    /// Works for `span`, warm-up excluded, and gives the figure.
    fn slice(&mut self, server: &mut ServerProcess, span: Duration) -> io::Result<Figure>;
}

/// Which side to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MakeSide {
    /// The bare baseline.
    Bare,
    /// 16 bytes over TCP and back, with as much in flight.
    Echo,
    /// The drive with no program above it.
    Drive,
    /// The system: `ithaca dev`, driven by `ithaca bench`. What it appends to was written over before, as the baselines' files.
    Ithaca,
    /// The same on a drive that is new, and grows.
    NewIthaca,
    /// Redis on the same workload.
    Redis,
    /// etcd on the same workload.
    Etcd,
    /// A map of the standard library, in this process.
    Memory,
}

impl MakeSide {
    /// The side's name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Echo => "echo",
            Self::Drive => "drive",
            Self::Ithaca => "ithaca",
            Self::NewIthaca => "ithaca-new",
            Self::Redis => "redis",
            Self::Etcd => "etcd",
            Self::Memory => "hashmap",
        }
    }

    /// Starts it, its data below `folder`.
    pub fn start<'a>(
        self,
        bench: &'static Bench,
        folder: &Path,
        drive: &'a DriveFile,
    ) -> io::Result<Box<dyn Side + 'a>> {
        Ok(match self {
            Self::Bare => {
                Box::new(Bare { name: self.name(), bench, work: bench.bare_work(), clients: Vec::new() })
            }
            Self::Echo => Box::new(Bare { name: self.name(), bench, work: Work::Echo, clients: Vec::new() }),
            Self::Drive => Box::new(Drive { bench, drive, log: Ithaca::log_drive(folder) }),
            Self::Ithaca => Box::new(Ithaca::start(bench, folder)?),
            Self::NewIthaca => Box::new(Ithaca::start_new(bench, folder)?),
            Self::Redis => Box::new(Redis::start(bench, folder)?),
            Self::Etcd => Box::new(Etcd::start(bench, folder)?),
            Self::Memory => Box::new(Memory::new(bench)),
        })
    }
}

struct Bare {
    name: &'static str,
    bench: &'static Bench,
    work: Work,
    /// One for each program of the system's.
    clients: Vec<Client>,
}

impl Side for Bare {
    fn name(&self) -> &'static str {
        self.name
    }

    fn slice(&mut self, server: &mut ServerProcess, span: Duration) -> io::Result<Figure> {
        let Bench { clients, programs, .. } = *self.bench;
        while self.clients.len() < programs {
            self.clients.push(server.client(self.work, clients / programs, self.bench.batch())?);
        }
        run_all(&mut self.clients, WARM_UP)?;
        server.measure(&mut self.clients, span)
    }
}

struct Drive<'a> {
    bench: &'static Bench,
    drive: &'a DriveFile,
    /// What the system stores its log on, once it is started.
    log: PathBuf,
}

impl Side for Drive<'_> {
    fn name(&self) -> &'static str {
        MakeSide::Drive.name()
    }

    fn slice(&mut self, _: &mut ServerProcess, span: Duration) -> io::Result<Figure> {
        if self.bench.operation == Operation::ReadCold {
            // The very blocks that the system reads: a drive may have a cache of its own, and another file's blocks may
            // be in it while the log's are not, or the other way round.
            if self.log.exists() {
                let log = DriveFile::open_written(&self.log)?;
                return random_reads(&log, self.bench.inflight, span);
            }
            return random_reads(self.drive, self.bench.inflight, span);
        }
        // Groups to entries, so that the rates of the sides compare.
        let groups = sequential_writes(self.drive, GROUP_BYTES, GROUP_DEPTH, span)?;
        let entries = (GROUP_BYTES / self.bench.size) as f64;
        let client_cpu_us = groups.client_cpu_us / entries;
        Ok(Figure { ops_per_s: groups.ops_per_s * entries, client_cpu_us, ..groups })
    }
}
