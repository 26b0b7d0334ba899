//! A cluster of real processes: one `ithaca server` a node, on loopback.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use super::process::{panics_in, send};

/// Ports that nodes listen at.
const PORTS: std::ops::Range<u16> = 21_000..32_000;

/// Nodes, each with a directory and an address that it keeps.
pub struct Nodes {
    binary: PathBuf,
    root: PathBuf,
    nodes: Vec<Node>,
}

struct Node {
    addr: SocketAddr,
    child: Option<Child>,
}

impl Nodes {
    /// `count` nodes with empty directories below `root`, none of them running.
    pub fn new(binary: &Path, root: &Path, count: usize) -> io::Result<Self> {
        match std::fs::remove_dir_all(root) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => std::fs::create_dir_all(root)?,
        }
        // Below those that the system gives to outgoing connections: a node keeps its port while it is down.
        let first = PORTS.start + (std::process::id() % 1000) as u16 * 8;
        let free = (first..PORTS.end).filter(|&port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok());
        let nodes: Vec<Node> = free
            .take(count)
            .map(|port| Node { addr: (Ipv4Addr::LOCALHOST, port).into(), child: None })
            .collect();
        Ok(Self { binary: binary.to_owned(), root: root.to_owned(), nodes })
    }

    /// The same, running and formed into a cluster that keeps `replicas` copies of each entry.
    pub fn formed(binary: &Path, root: &Path, count: usize, replicas: u32) -> io::Result<Self> {
        let mut nodes = Self::new(binary, root, count)?;
        for id in 1..=count {
            nodes.start(id)?;
        }
        let named: Vec<String> =
            nodes.addrs().iter().zip(1..).map(|(addr, id)| format!("{id}={addr}")).collect();
        let mut form: Vec<&str> = vec!["init"];
        form.extend(named.iter().map(String::as_str));
        let replicas = replicas.to_string();
        form.extend(["--replicas", &replicas]);
        nodes.cluster(&form)?;
        Ok(nodes)
    }

    /// Where the nodes listen, node 1 first.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.addr).collect()
    }

    /// The directory of all.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Starts node `id`, from 1, and waits until it says that it listens.
    pub fn start(&mut self, id: usize) -> io::Result<()> {
        let said = OpenOptions::new().create(true).append(true).open(self.stderr_path(id))?;
        let mut command = Command::new(&self.binary);
        command.args(["server", "--json", "--log-level", "info", "--node", &id.to_string()]);
        command.arg("--data").arg(self.directory(id));
        command.args(["--listen", &self.nodes[id - 1].addr.to_string(), "--http", "127.0.0.1:0"]);
        command.args(["--drive-size", "256M"]);
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

    /// Runs `ithaca cluster ...` and returns what it prints. An error if it fails.
    pub fn cluster(&self, arguments: &[&str]) -> io::Result<String> {
        let endpoints: Vec<String> = self.addrs().iter().map(ToString::to_string).collect();
        let mut command = Command::new(&self.binary);
        command.arg("cluster").args(arguments).args(["--endpoint", &endpoints.join(","), "--json"]);
        let done = command.stdin(Stdio::null()).output()?;
        if done.status.success() {
            return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        Err(io::Error::other(format!("cluster {}: {}", arguments.join(" "), said.trim())))
    }

    /// Ends node `id` as a crash would.
    pub fn kill(&mut self, id: usize) -> io::Result<()> {
        self.end(id, Signal::KILL)
    }

    /// Asks node `id` to stop, and waits until it has.
    pub fn stop(&mut self, id: usize) -> io::Result<()> {
        self.end(id, Signal::TERM)
    }

    fn end(&mut self, id: usize, signal: Signal) -> io::Result<()> {
        self.signal(id, signal)?;
        match self.nodes[id - 1].child.take() {
            Some(mut child) => child.wait().map(drop),
            None => Ok(()),
        }
    }

    /// Sends a signal to node `id`.
    pub fn signal(&self, id: usize, signal: Signal) -> io::Result<()> {
        let child = self.nodes[id - 1].child.as_ref();
        send(child.ok_or_else(|| io::Error::other(format!("node {id} does not run")))?, signal)
    }

    /// Removes the directory of node `id`, which must not run.
    pub fn wipe(&self, id: usize) -> io::Result<()> {
        std::fs::remove_dir_all(self.directory(id))
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

    fn directory(&self, id: usize) -> PathBuf {
        self.root.join(format!("node-{id}"))
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
