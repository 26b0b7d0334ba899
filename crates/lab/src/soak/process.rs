//! The cluster as a process: started, asked whether it serves, killed, stopped, and looked at from outside.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use ithaca_env::Env;
use rustix::process::{Pid, Signal, kill_process};

/// The longest that a start may take before the soak calls it a failure. Far above what is demanded of it, which is
/// judged by the figure.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// The longest that an end may take that was asked for, or has a reason.
const END_LIMIT: Duration = Duration::from_secs(60);

/// Sends a signal to a process that was started here and not waited for yet.
pub fn send(child: &Child, signal: Signal) -> io::Result<()> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("a process without a number"))?;
    Ok(kill_process(pid, signal)?)
}

/// Waits until a process that was asked to stop has ended, while others go on. An error if it does not end, or not cleanly.
pub async fn stopped(env: &Env, child: &mut Child) -> io::Result<()> {
    let status = ended(env, child, END_LIMIT).await?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("asked to stop, it ended with {status}"))),
    }
}

/// Waits until a process has ended, while others go on. An error if it has not after `limit`.
pub async fn ended(env: &Env, child: &mut Child, limit: Duration) -> io::Result<ExitStatus> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() > deadline {
            return Err(io::Error::other(format!("a process did not end within {limit:?}")));
        }
        env.sleep(Duration::from_millis(1)).await;
    }
}

/// Runs a command to its end. Errors name it and say what it said.
pub fn complete(command: &mut Command) -> io::Result<()> {
    complete_with(command, "")
}

/// The same, with something to read.
pub fn complete_with(command: &mut Command, input: &str) -> io::Result<()> {
    let told = format!("{command:?}");
    let failed = |what: String| io::Error::other(format!("{told}: {}", what.trim()));
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that does not read all of it says why when it ends.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(String::from_utf8_lossy(&output.stderr).into_owned())),
    }
}

/// Lines that speak of a panic in a file that holds what programs said.
pub fn panics_in(said: &Path) -> io::Result<Vec<String>> {
    let said = std::fs::read(said)?;
    let said = String::from_utf8_lossy(&said);
    Ok(said.lines().filter(|line| line.contains("panicked")).map(str::to_string).collect())
}

/// A data folder, the program that runs on it, and its port, which stays the same over restarts.
pub struct Site {
    binary: PathBuf,
    root: PathBuf,
    addr: SocketAddr,
    units: u32,
    drive_bytes: u64,
}

impl Site {
    /// An empty one in `root`.
    pub fn new(binary: PathBuf, root: PathBuf, units: u32, drive_bytes: u64) -> io::Result<Self> {
        let site = Self { binary, root, addr: (Ipv4Addr::LOCALHOST, 0).into(), units, drive_bytes };
        site.remove()?;
        std::fs::create_dir_all(&site.root)?;
        Ok(site)
    }

    /// Where clients connect, once it has served.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The data directory of the cluster.
    pub fn cluster(&self) -> PathBuf {
        self.root.join("cluster")
    }

    /// The folder that holds the cluster's directory and what the program says.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Removes everything.
    pub fn remove(&self) -> io::Result<()> {
        match std::fs::remove_dir_all(&self.root) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Starts the program; it does not serve yet.
    pub fn spawn(&self) -> io::Result<Server> {
        let log = OpenOptions::new().create(true).append(true).open(self.stderr_path())?;
        let mut command = Command::new(&self.binary);
        command.arg("dev").arg("--json").arg("--data").arg(self.cluster());
        command.args(["--listen", &self.addr.to_string(), "--http", "127.0.0.1:0"]);
        command.args(["--units", &self.units.to_string(), "--drive-size", &self.drive_bytes.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let spawned = Instant::now();
        let mut child = command.spawn()?;
        let (said, ready) = channel();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || {
                let mut line = String::new();
                let read = BufReader::new(stdout).read_line(&mut line);
                // Nobody listens any more once the server was killed.
                let _ = said.send(read.map(|_| (spawned.elapsed(), line)));
            });
        }
        Ok(Server { child, ready })
    }

    /// Starts the program and waits until it serves. Returns how long that took from the start of the process.
    pub async fn start(&mut self, env: &Env) -> io::Result<(Server, Duration)> {
        let mut server = self.spawn()?;
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            if let Some((took, addr)) = server.ready()? {
                self.addr = addr;
                return Ok((server, took));
            }
            if Instant::now() > deadline {
                return Err(io::Error::other(format!("no `ready` within {READY_LIMIT:?}")));
            }
            env.sleep(Duration::from_millis(1)).await;
        }
    }

    /// Runs `ithaca fsck` on the data, and returns its exit code.
    pub fn fsck(&self) -> io::Result<Option<i32>> {
        let log = OpenOptions::new().create(true).append(true).open(self.stderr_path())?;
        let mut command = Command::new(&self.binary);
        command.arg("fsck").arg(self.cluster()).stdin(Stdio::null()).stderr(log);
        Ok(command.stdout(File::create(self.root.join("fsck.txt"))?).status()?.code())
    }

    /// Lines on the program's stderr that speak of a panic, of all its lives together.
    pub fn panics(&self) -> io::Result<Vec<String>> {
        panics_in(&self.stderr_path())
    }

    fn stderr_path(&self) -> PathBuf {
        self.root.join("stderr.txt")
    }
}

/// A running cluster. Killed when dropped.
pub struct Server {
    child: Child,
    ready: Receiver<io::Result<(Duration, String)>>,
}

impl Server {
    /// How long after its start it said that it serves, and where; `None` if it has not said so yet. An error if it ended
    /// instead.
    fn ready(&mut self) -> io::Result<Option<(Duration, SocketAddr)>> {
        let (took, line) = match self.ready.try_recv() {
            Ok(said) => said?,
            Err(TryRecvError::Empty) => return Ok(None),
            Err(TryRecvError::Disconnected) => return Err(self.ended()),
        };
        let addr = line.split("\"log\":\"").nth(1).and_then(|rest| rest.split('"').next()?.parse().ok());
        addr.map(|addr| Some((took, addr))).ok_or_else(|| self.ended())
    }

    fn ended(&mut self) -> io::Error {
        match self.child.wait() {
            Ok(status) => NotStarted { code: status.code() }.into(),
            Err(error) => error,
        }
    }

    /// Ends it as a crash would, at this moment.
    pub fn kill(mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// Asks it to stop, and waits until it has. An error if it does not, or not cleanly.
    pub async fn stop(mut self, env: &Env) -> io::Result<()> {
        send(&self.child, Signal::TERM)?;
        stopped(env, &mut self.child).await
    }

    /// Waits until it ends by itself. Returns its exit code; an error if it does not end.
    pub async fn ended_by_itself(mut self, env: &Env) -> io::Result<Option<i32>> {
        Ok(ended(env, &mut self.child, END_LIMIT).await?.code())
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> io::Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Resident memory as the system sees it, in bytes.
    pub fn resident_bytes(&self) -> io::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.map(|kib| kib * 1024).ok_or_else(|| io::Error::other("no VmRSS in its status"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) && self.child.kill().is_ok() {
            let _ = self.child.wait();
        }
    }
}

/// A start that ended without serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotStarted {
    /// The exit code; `None` if a signal ended it.
    pub code: Option<i32>,
}

impl NotStarted {
    /// The exit code behind `error`, if it is of this kind.
    pub fn in_error(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }
}

impl std::fmt::Display for NotStarted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`ithaca dev` ended without serving, exit code {:?}", self.code)
    }
}

impl std::error::Error for NotStarted {}

impl From<NotStarted> for io::Error {
    fn from(error: NotStarted) -> Self {
        io::Error::other(error)
    }
}
