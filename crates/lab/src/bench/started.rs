//! A server that a bench has started as a process, with files of its own.

use std::io;
use std::path::PathBuf;
use std::process::{Child, Command};

/// Ticks a second in which the system counts processor time for `/proc`.
const TICKS: f64 = 100.0;

/// It is killed, and its files go, when this is dropped: what it holds is of no worth.
pub struct Started {
    /// The process.
    pub child: Child,
    folder: PathBuf,
}

impl Started {
    /// Starts it. `folder` is what it has on disk. Errors name the program.
    pub fn new(command: &mut Command, folder: PathBuf) -> io::Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().map_err(|error| io::Error::other(format!("{program}: {error}")))?;
        Ok(Self { child, folder })
    }

    /// User and system time of it so far, in nanoseconds.
    pub fn cpu_nanos(&self) -> io::Result<u64> {
        cpu_nanos_of(self.child.id())
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// User and system time of another process so far, in nanoseconds.
pub fn cpu_nanos_of(pid: u32) -> io::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    let ticks: f64 = fields.map(|ticks| ticks.parse::<f64>().unwrap_or(0.0)).sum();
    Ok((ticks / TICKS * 1e9) as u64)
}
