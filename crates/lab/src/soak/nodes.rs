//! A cluster of real processes: one `ithaca server` a node, on loopback or wherever it is put.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ithaca_env::Env;
use rustix::process::Signal;

use super::process::{ended, panics_in, send, stopped};

/// Ports that nodes listen at.
const PORTS: std::ops::Range<u16> = 21_000..32_000;

/// Size at which their drives begin.
const DRIVE_SIZE: &str = "384M";

/// Nodes, each with a directory and an address that it keeps.
pub struct Nodes {
    binary: PathBuf,
    root: PathBuf,
    nodes: Vec<Node>,
}

/// Where a node lives.
pub struct Home {
    /// Where it listens.
    pub addr: SocketAddr,
    /// Its data directory.
    pub data: PathBuf,
    /// The command that starts the program there: it ends as the program, under the same process number. Often none.
    pub through: Vec<String>,
}

struct Node {
    home: Home,
    child: Option<Child>,
}

impl Nodes {
    /// `count` nodes on loopback with empty directories below `root`, none of them running.
    fn on_loopback(binary: &Path, root: &Path, count: usize) -> io::Result<Self> {
        // Below those that the system gives to outgoing connections: a node keeps its port while it is down.
        let first = PORTS.start + (std::process::id() % 1000) as u16 * 8;
        let free = (first..PORTS.end).filter(|&port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok());
        let home = |(id, port): (usize, u16)| Home {
            addr: (Ipv4Addr::LOCALHOST, port).into(),
            data: root.join(format!("node-{id}")),
            through: Vec::new(),
        };
        empty_dir(root)?;
        Ok(Self::new(binary, root, (1..).zip(free.take(count)).map(home).collect()))
    }

    /// Nodes in these homes, node 1 first, none of them running. What they say goes to files in `root`.
    pub fn new(binary: &Path, root: &Path, homes: Vec<Home>) -> Self {
        let nodes = homes.into_iter().map(|home| Node { home, child: None }).collect();
        Self { binary: binary.to_owned(), root: root.to_owned(), nodes }
    }

    /// `count` nodes on loopback with empty directories below `root`, running and formed into a cluster that keeps `replicas`
    /// copies of each entry.
    pub fn formed(binary: &Path, root: &Path, count: usize, replicas: u32) -> io::Result<Self> {
        let mut nodes = Self::on_loopback(binary, root, count)?;
        nodes.form(replicas)?;
        Ok(nodes)
    }

    /// Starts all and forms them into a cluster that keeps `replicas` copies of each entry.
    pub fn form(&mut self, replicas: u32) -> io::Result<()> {
        for id in 1..=self.nodes.len() {
            self.start(id)?;
        }
        let named: Vec<String> =
            self.addrs().iter().zip(1..).map(|(addr, id)| format!("{id}={addr}")).collect();
        let mut form: Vec<&str> = vec!["init"];
        form.extend(named.iter().map(String::as_str));
        let replicas = replicas.to_string();
        form.extend(["--replicas", &replicas]);
        self.cluster(&form).map(drop)
    }

    /// Where the nodes listen, node 1 first.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.home.addr).collect()
    }

    /// The directory of all.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Starts node `id`, from 1, and waits until it says that it listens.
    pub fn start(&mut self, id: usize) -> io::Result<()> {
        self.start_through(id, &[])
    }

    /// The same, through a further command, which must end as the program.
    pub fn start_through(&mut self, id: usize, further: &[&str]) -> io::Result<()> {
        let home = &self.nodes[id - 1].home;
        let said = OpenOptions::new().create(true).append(true).open(self.stderr_path(id))?;
        let mut words: Vec<&OsStr> = home.through.iter().map(OsStr::new).collect();
        words.extend(further.iter().map(OsStr::new));
        words.push(self.binary.as_os_str());
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        command.args(["server", "--json", "--log-level", "info", "--node", &id.to_string()]);
        command.arg("--data").arg(&home.data);
        command.args(["--listen", &home.addr.to_string(), "--http", "127.0.0.1:0"]);
        command.args(["--drive-size", DRIVE_SIZE]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(said).spawn()?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        self.nodes[id - 1].child = Some(child);
        if line.contains("\"ready\":true") {
            return Ok(());
        }
        Err(io::Error::other(format!("node {id} did not start; see {}", self.root.display())))
    }

    /// Whether node `id` has ended without being asked to, and with which exit code.
    pub fn ended_by_itself(&mut self, id: usize) -> io::Result<Option<Option<i32>>> {
        let Some(child) = &mut self.nodes[id - 1].child else { return Ok(None) };
        let Some(status) = child.try_wait()? else { return Ok(None) };
        self.nodes[id - 1].child = None;
        Ok(Some(status.code()))
    }

    /// Whether node `id` was started and neither killed nor stopped since.
    pub fn runs(&self, id: usize) -> bool {
        self.nodes[id - 1].child.is_some()
    }

    /// Runs `ithaca cluster ...` and returns what it prints. An error if it fails.
    pub fn cluster(&self, arguments: &[&str]) -> io::Result<String> {
        let done = self.cluster_command(arguments).output()?;
        if done.status.success() {
            return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        Err(io::Error::other(format!("cluster {}: {}", arguments.join(" "), said.trim())))
    }

    /// Starts node `id` without its data, and has the cluster take it for the one that it was: tried until that is done, or not done for
    /// `patience`.
    pub async fn replace(&mut self, env: &Env, id: usize, patience: Duration) -> io::Result<()> {
        std::fs::remove_dir_all(&self.nodes[id - 1].home.data)?;
        self.start(id)?;
        let begun = Instant::now();
        let place = format!("{id}={}", self.addrs()[id - 1]);
        loop {
            let mut replacing = self.cluster_command(&["replace", &place]);
            let mut replacing = replacing.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
            let status = ended(env, &mut replacing, patience).await?;
            if status.success() {
                return Ok(());
            }
            if begun.elapsed() > patience {
                let said = replacing.stderr.take().map(io::read_to_string).transpose()?;
                let said = said.unwrap_or_default();
                return Err(io::Error::other(format!("cluster replace {place}: {}", said.trim())));
            }
            env.sleep(Duration::from_millis(100)).await;
        }
    }

    /// The command `ithaca cluster ...`, not started.
    fn cluster_command(&self, arguments: &[&str]) -> Command {
        let endpoints: Vec<String> = self.addrs().iter().map(ToString::to_string).collect();
        let mut command = Command::new(&self.binary);
        command.arg("cluster").args(arguments).args(["--endpoint", &endpoints.join(","), "--json"]);
        command.stdin(Stdio::null());
        command
    }

    /// Ends node `id` as a crash would.
    pub fn kill(&mut self, id: usize) -> io::Result<()> {
        self.signal(id, Signal::KILL)?;
        match self.nodes[id - 1].child.take() {
            Some(mut child) => child.wait().map(drop),
            None => Ok(()),
        }
    }

    /// Asks node `id` to stop, and waits until it has. An error if it does not, or not cleanly.
    pub async fn stop(&mut self, env: &Env, id: usize) -> io::Result<()> {
        self.signal(id, Signal::TERM)?;
        let child = &mut self.nodes[id - 1].child;
        if let Some(running) = child {
            stopped(env, running).await?;
        }
        // One that has not ended is killed with the others.
        *child = None;
        Ok(())
    }

    /// Sends a signal to node `id`.
    pub fn signal(&self, id: usize, signal: Signal) -> io::Result<()> {
        let child = self.nodes[id - 1].child.as_ref();
        send(child.ok_or_else(|| io::Error::other(format!("node {id} does not run")))?, signal)
    }

    /// Lines that speak of a panic, of all nodes and all their lives.
    pub fn panics(&self) -> io::Result<Vec<String>> {
        let mut panics = Vec::new();
        for id in 1..=self.nodes.len() {
            panics.extend(panics_in(&self.stderr_path(id))?);
        }
        Ok(panics)
    }

    /// Removes everything.
    pub fn remove(&self) -> io::Result<()> {
        std::fs::remove_dir_all(&self.root)
    }

    fn stderr_path(&self, id: usize) -> PathBuf {
        self.root.join(format!("{id}.stderr"))
    }
}

/// Makes a folder, or empties it.
pub fn empty_dir(folder: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => std::fs::create_dir_all(folder),
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in self.nodes.iter_mut().filter_map(|node| node.child.as_mut()) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
