//! The system itself, as a user would run it: `ithaca dev` as one process, `ithaca bench --json` as another.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::bare::ServerProcess;
use crate::measure::Figure;

use super::plan::{Bench, Operation};
use super::side::{MakeSide, Side};
use super::started::Started;

/// `ithaca dev` as a process, with data of its own. It ends, and its data goes, when this is dropped.
pub struct Dev {
    program: PathBuf,
    started: Started,
    endpoint: String,
}

/// A running cluster in one process.
pub struct Ithaca {
    name: &'static str,
    bench: &'static Bench,
    dev: Dev,
}

/// Where its data lies, below the bench's folder.
const FOLDER: &str = "ithaca";
/// Another build in the same rounds, and where its data lies.
pub const OTHER: &str = "other";
/// Where the data lies of one whose drive stays new.
const NEW_FOLDER: &str = "new";
/// How long a log is filled before it is measured: long enough that it is larger than what the servers keep in memory, and than what a slice
/// appends.
const FILL: Duration = Duration::from_secs(6);
/// Appends in flight meanwhile.
const FILL_INFLIGHT: usize = 256;
/// A server that writes nothing for so long has nothing left to do; one that goes on for longer than that is not waited for.
const QUIET: Duration = Duration::from_millis(100);
const QUIET_MAX: Duration = Duration::from_secs(5);

/// Builds the program beside this one, so that what is measured is this tree.
pub fn build() -> io::Result<()> {
    let status =
        Command::new("cargo").args(["build", "--release", "--quiet", "--package", "ithaca"]).status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other("cargo build --release --package ithaca failed"))
    }
}

impl Ithaca {
    /// The drive of the log that lies below `folder`.
    pub fn log_drive(folder: &Path) -> PathBuf {
        folder.join(FOLDER).join("unit-1.chain")
    }

    /// Starts it. A log that is to be read cold is filled first, and one that is appended to is filled and trimmed: as the baselines' files
    /// its drive was written over then.
    pub fn start(bench: &'static Bench, folder: &Path) -> io::Result<Self> {
        Self { name: MakeSide::Ithaca.name(), bench, dev: Dev::start(folder)? }.prepared()
    }

    /// The same of another build, by its program.
    pub fn start_other(bench: &'static Bench, folder: &Path, program: &Path) -> io::Result<Self> {
        let dev = Dev::of(program.to_owned(), &folder.join(OTHER), &[])?;
        Self { name: OTHER, bench, dev }.prepared()
    }

    fn prepared(self) -> io::Result<Self> {
        if matches!(self.bench.operation, Operation::ReadCold | Operation::Replay | Operation::Append) {
            self.work("append", FILL_INFLIGHT, FILL, &[])?;
        }
        self.rest()?;
        Ok(self)
    }

    /// Starts one whose drive is new, and takes no place a second time.
    pub fn start_new(bench: &'static Bench, folder: &Path) -> io::Result<Self> {
        Ok(Self { name: MakeSide::NewIthaca.name(), bench, dev: Dev::start(&folder.join(NEW_FOLDER))? })
    }

    /// Makes room where that is used again, and waits until the server is idle.
    fn rest(&self) -> io::Result<()> {
        if self.bench.operation == Operation::Append && self.name != MakeSide::NewIthaca.name() {
            self.dev.trim_all()?;
        }
        self.dev.settle()
    }
}

impl Dev {
    /// Starts it on free ports, its data below `folder`.
    pub fn start(folder: &Path) -> io::Result<Self> {
        Self::start_with(folder, &[])
    }

    /// The same with more arguments.
    pub fn start_with(folder: &Path, more: &[&str]) -> io::Result<Self> {
        Self::of(std::env::current_exe()?.with_file_name("ithaca"), folder, more)
    }

    fn of(program: PathBuf, folder: &Path, more: &[&str]) -> io::Result<Self> {
        let folder = folder.join(FOLDER);
        let mut command = Command::new(&program);
        command
            .arg("dev")
            .args(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json", "--data"])
            .arg(&folder)
            .args(more);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut started = Started::with_files(&mut command, folder)?;
        let line = started.first_line()?;
        let not_ready = || io::Error::other(format!("`ithaca dev` did not say that it is ready: {line:?}"));
        let endpoint = json_string(&line, "log").ok_or_else(not_ready)?.to_owned();
        Ok(Self { program, started, endpoint })
    }

    /// `ithaca bench` of a workload, with so many clients and so much in flight as it counts that.
    pub fn bench(&self, workload: &str, (clients, inflight): (usize, usize), span: Duration) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["bench", workload, "--json", "--endpoint", &self.endpoint]);
        command.args(["--seconds", &span.as_secs_f64().to_string()]);
        command.args(["--clients", &clients.to_string(), "--inflight", &inflight.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.started.child.id()
    }

    /// Waits until the server is idle: after many appends it prepares segments for the next ones, and meanwhile the drive
    /// would not be alone with what is measured next.
    pub fn settle(&self) -> io::Result<()> {
        let path = format!("/proc/{}/io", self.pid());
        let written = || std::fs::read_to_string(&path);
        let deadline = Instant::now() + QUIET_MAX;
        let mut before = written()?;
        while Instant::now() < deadline {
            std::thread::sleep(QUIET);
            let now = written()?;
            let bytes =
                |text: &str| text.lines().find(|line| line.starts_with("write_bytes")).map(str::to_owned);
            if bytes(&now) == bytes(&before) {
                break;
            }
            before = now;
        }
        Ok(())
    }

    /// Trims the whole log.
    fn trim_all(&self) -> io::Result<()> {
        let log = |arguments: &[&str]| {
            let endpoint = ["--json", "--endpoint", &self.endpoint];
            let output = Command::new(&self.program).arg("log").args(arguments).args(endpoint).output()?;
            let said = String::from_utf8_lossy(&output.stderr);
            match output.status.success() {
                true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
                false => Err(io::Error::other(format!("`ithaca log {}`: {}", arguments[0], said.trim()))),
            }
        };
        let checked = log(&["check"])?;
        let tail = json_number(&checked, "tail")
            .ok_or_else(|| io::Error::other(format!("`ithaca log check` gave no tail: {checked:?}")))?;
        if tail > 0.0 {
            log(&["trim", &(tail as u64 - 1).to_string(), "--prefix"])?;
        }
        Ok(())
    }

    /// Where clients connect.
    pub fn endpoint(&self) -> io::Result<SocketAddr> {
        self.endpoint.parse().map_err(io::Error::other)
    }
}

impl Side for Ithaca {
    fn name(&self) -> &'static str {
        self.name
    }

    fn slice(&mut self, _: &mut ServerProcess, span: Duration) -> io::Result<Figure> {
        let cold: &[&str] = if self.bench.operation == Operation::ReadCold { &["--cold"] } else { &[] };
        let workload = match self.bench.operation {
            Operation::Token => "token",
            Operation::Append => "append",
            Operation::Read | Operation::ReadCold => "read",
            Operation::Replay => "replay",
            Operation::Get => "get",
            Operation::MultiGet => "multi-get",
            Operation::Snapshot => "snapshot",
        };
        // With objects it is said what each client has in flight.
        let is_each =
            matches!(self.bench.operation, Operation::Get | Operation::MultiGet | Operation::Snapshot);
        let inflight = if is_each { self.bench.batch() } else { self.bench.inflight / self.bench.programs };
        let figure = self.work(workload, inflight, span, cold)?;
        self.rest()?;
        Ok(figure)
    }
}

impl Ithaca {
    /// Runs `ithaca bench`, as many as are to share the clients, and takes its figures.
    fn work(&self, workload: &str, inflight: usize, span: Duration, more: &[&str]) -> io::Result<Figure> {
        let Bench { size, clients, programs, .. } = *self.bench;
        figure_of_all(workload, programs, || {
            let mut command = self.dev.bench(workload, (clients / programs, inflight), span);
            command.args(more);
            if self.bench.operation != Operation::Token {
                command.args(["--size", &size.to_string()]);
            }
            command
        })
    }
}

/// What several of `ithaca bench` come to that work at the same time.
pub fn figure_of_all(workload: &str, programs: usize, command: impl Fn() -> Command) -> io::Result<Figure> {
    let running: Vec<Child> = (0..programs).map(|_| command().spawn()).collect::<io::Result<_>>()?;
    let ended: Vec<Output> = running.into_iter().map(Child::wait_with_output).collect::<io::Result<_>>()?;
    let figures: Vec<Figure> =
        ended.iter().map(|output| figure_of(workload, output)).collect::<io::Result<_>>()?;
    let ops_per_s: f64 = figures.iter().map(|it| it.ops_per_s).sum();
    let of_all = |a_second: fn(&Figure) -> f64| figures.iter().map(a_second).sum::<f64>() / ops_per_s;
    Ok(Figure {
        ops_per_s,
        p50_us: of_all(|it| it.p50_us * it.ops_per_s),
        p99_us: figures.iter().map(|it| it.p99_us).fold(0.0, f64::max),
        client_cpu_us: of_all(|it| it.client_cpu_us * it.ops_per_s),
        // Each is told what the server has done for all.
        server_cpu_us: of_all(|it| it.server_cpu_us * it.ops_per_s) / programs as f64,
        flush_us: figures.iter().map(|it| it.flush_us).fold(0.0, f64::max),
    })
}

/// What `ithaca bench` has printed.
pub fn figure_of(workload: &str, output: &Output) -> io::Result<Figure> {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().unwrap_or_default();
    let field = |key: &str| {
        let complaint = || {
            let said = String::from_utf8_lossy(&output.stderr);
            io::Error::other(format!("`ithaca bench {workload}` gave no {key}: {}", said.trim()))
        };
        json_number(line, key).ok_or_else(complaint)
    };
    let cpu_us = field("cpu_us_per_op")?;
    let client_cpu_us = json_number(line, "client_cpu_us_per_op").unwrap_or(0.0);
    Ok(Figure {
        ops_per_s: field("ops_per_s")?,
        p50_us: field("p50_us")?,
        p99_us: field("p99_us")?,
        client_cpu_us,
        server_cpu_us: cpu_us - client_cpu_us,
        flush_us: json_number(line, "flush_us").unwrap_or(0.0),
    })
}

/// What follows `"key":` in one line of JSON whose keys are unique, as ours is.
fn json_value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let quoted = format!("\"{key}\"");
    let after = &line[line.find(&quoted)? + quoted.len()..];
    Some(after.trim_start().strip_prefix(':')?.trim_start())
}

fn json_number(line: &str, key: &str) -> Option<f64> {
    let value = json_value(line, key)?;
    value.split([',', '}', ' ']).next()?.parse().ok()
}

fn json_string<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    json_value(line, key)?.strip_prefix('"')?.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_strings_are_found_by_key() {
        let line = r#"{"ready":true,"log":"10.0.0.1:7420", "ops_per_s": 1.5e3,"p50_us":7}"#;
        assert_eq!(json_string(line, "log"), Some("10.0.0.1:7420"));
        assert_eq!(json_number(line, "ops_per_s"), Some(1500.0));
        assert_eq!(json_number(line, "p50_us"), Some(7.0));
        assert_eq!(json_number(line, "p99_us"), None);
    }
}
