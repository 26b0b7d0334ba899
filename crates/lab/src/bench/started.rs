//! A server that a bench has started as a process.

use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command};

/// Ticks a second in which the system counts processor time for `/proc`.
const TICKS: f64 = 100.0;

/// It is killed, and the files go that are its own, when this is dropped: what it holds is of no worth.
pub struct Started {
    /// The process.
    pub child: Child,
    folder: Option<PathBuf>,
}

impl Started {
    /// Starts it. Errors name the program.
    pub fn new(command: &mut Command) -> io::Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().map_err(|error| io::Error::other(format!("{program}: {error}")))?;
        Ok(Self { child, folder: None })
    }

    /// Starts it. `folder` is what it has on disk, and goes with it. Errors name the program.
    pub fn with_files(command: &mut Command, folder: PathBuf) -> io::Result<Self> {
        let mut started = Self::new(command)?;
        started.folder = Some(folder);
        Ok(started)
    }

    /// The first line that it prints on its standard output, which has to be a pipe; waits for it. Empty if it prints none before its end.
    /// What it prints later goes nowhere.
    pub fn first_line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if let Some(stdout) = self.child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        Ok(line)
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
        if let Some(folder) = &self.folder {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// User and system time of another process so far, in nanoseconds.
pub fn cpu_nanos_of(pid: u32) -> io::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    let ticks: f64 = fields.map(|ticks| ticks.parse::<f64>().unwrap_or(0.0)).sum();
    Ok((ticks / TICKS * 1e9) as u64)
}
