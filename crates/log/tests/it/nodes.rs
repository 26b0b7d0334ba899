//! Nodes of a cluster of servers, each with a directory of its own, on real sockets and files.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ithaca_chain::ChainOptions;
use ithaca_env::Env;
use ithaca_env::drive::{Durability, OpenDrive};
use ithaca_log::client::{Client, ClientOptions, Forming, form};
use ithaca_log::layout::{Layout, Node};
use ithaca_log::pos::NodeId;
use ithaca_log::server::{ClusterNode, NodeOptions, StartError};
use tempfile::TempDir;

use crate::worlds::is_busy;

/// What takes longer than this does not come.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of a segment, and of what lies before the first.
const SEGMENT_BYTES: u64 = 128 << 10;
const BEFORE_BYTES: u64 = 64 << 10;

/// A node with its data in `dir`, whose drive may grow to `segments` small ones.
pub fn node_options(dir: &Path, id: u64, segments: u64) -> NodeOptions {
    sized_options(dir, id, segments, SEGMENT_BYTES)
}

/// The same with segments of so many bytes.
pub fn sized_options(dir: &Path, id: u64, segments: u64, segment_bytes: u64) -> NodeOptions {
    let mut options = NodeOptions::new(NodeId(id), dir, ([127, 0, 0, 1], 0).into());
    options.create_bytes = BEFORE_BYTES + 4 * segment_bytes;
    options.find_trimmed_every = Duration::from_millis(100);
    options.rebuild_after = Duration::ZERO;
    options.chain = ChainOptions {
        segment_bytes,
        capacity_bytes: BEFORE_BYTES + segments * segment_bytes,
        grow_bytes: 2 * segment_bytes,
        // What is read comes from the drive.
        tail_cache_bytes: 4096,
        ..options.chain
    };
    options
}

/// Bytes to which the drive of a node with so many segments may grow.
pub fn capacity_bytes(segments: u64) -> u64 {
    BEFORE_BYTES + segments * SEGMENT_BYTES
}

/// Nodes 1, 2, ... of one cluster, and a client of it.
pub struct Cluster {
    dirs: Vec<TempDir>,
    nodes: Vec<Option<ClusterNode>>,
    pub addrs: Vec<(NodeId, SocketAddr)>,
    pub client: Client,
}

impl Cluster {
    /// Forms a cluster of nodes as `options` has them, by directory and id.
    pub async fn form(
        env: &Env,
        count: u64,
        replicas: u16,
        options: impl Fn(&Path, u64) -> NodeOptions,
    ) -> Self {
        let (mut dirs, mut nodes, mut addrs) = (Vec::new(), Vec::new(), Vec::new());
        for id in 1..=count {
            let dir = TempDir::new().expect("a directory");
            let node = ClusterNode::start(env, options(dir.path(), id)).await.expect("it starts");
            addrs.push((NodeId(id), node.addr()));
            nodes.push(Some(node));
            dirs.push(dir);
        }
        let forming = Forming { nodes: addrs.clone(), replicas, min_replicas: 1, timeout: PATIENCE };
        form(env, &forming).await.expect("they are free");
        let endpoints = addrs.iter().map(|&(_, addr)| addr).collect();
        let hole_wait = Duration::from_millis(10);
        let connected =
            Client::connect(env, ClientOptions { endpoints, hole_wait, ..ClientOptions::default() });
        let client = connected.await.expect("it serves");
        Self { dirs, nodes, addrs, client }
    }

    /// A running node.
    pub fn node(&self, id: u64) -> &ClusterNode {
        self.nodes[id as usize - 1].as_ref().expect("it runs")
    }

    /// What a running node counts under a name.
    pub fn counted(&self, id: u64, name: &str) -> u64 {
        let status = self.node(id).status();
        let found = status.counters.iter().find(|(counter, _)| counter == name);
        found.unwrap_or_else(|| panic!("{name} is counted")).1
    }

    /// The drive of a node.
    pub fn drive(&self, id: u64) -> PathBuf {
        self.dirs[id as usize - 1].path().join(format!("unit-{id}.chain"))
    }

    /// Stops a node.
    pub async fn stop(&mut self, id: u64) {
        self.nodes[id as usize - 1].take().expect("it runs").stop().await;
    }

    /// Stops a node where it stands.
    pub fn kill(&mut self, id: u64) {
        drop(self.nodes[id as usize - 1].take());
    }

    /// Leaves nothing of what a node that does not run had.
    pub fn wipe(&mut self, id: u64) {
        self.dirs[id as usize - 1] = TempDir::new().expect("a directory");
    }

    /// Copies a file of a node that does not run, as a snapshot has it.
    pub async fn copy(&self, env: &Env, id: u64, file: &str, to: &TempDir) {
        copy_drive(env, &self.dirs[id as usize - 1].path().join(file), &to.path().join(file)).await;
    }

    /// Puts another directory in the place of that of a node that does not run.
    pub fn put_back(&mut self, id: u64, dir: TempDir) {
        self.dirs[id as usize - 1] = dir;
    }

    /// Stops all nodes where they stand.
    pub fn crash(&mut self) {
        self.nodes.iter_mut().for_each(|node| drop(node.take()));
    }

    /// Starts a node again, where it was, as soon as its drive is free.
    pub async fn start(&mut self, env: &Env, id: u64, options: impl Fn(&Path, u64) -> NodeOptions) {
        let started = self.try_start(env, id, options).await;
        self.nodes[id as usize - 1] = Some(started.unwrap_or_else(|error| panic!("{error}")));
    }

    /// What becomes of such a start.
    pub async fn try_start(
        &self,
        env: &Env,
        id: u64,
        options: impl Fn(&Path, u64) -> NodeOptions,
    ) -> Result<ClusterNode, StartError> {
        let at = id as usize - 1;
        let options = NodeOptions { listen: self.addrs[at].1, ..options(self.dirs[at].path(), id) };
        let deadline = env.now() + PATIENCE;
        loop {
            match ClusterNode::start(env, options.clone()).await {
                Err(error) if is_busy(&error) => assert!(env.now() < deadline, "its drive is free: {error}"),
                started => return started,
            }
            env.sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until the newest layout is so, and returns it.
    pub async fn until(&self, env: &Env, what: &str, is_so: impl Fn(&Layout) -> bool) -> Layout {
        let deadline = env.now() + PATIENCE;
        loop {
            let layout = self.client.layout().await.expect("a majority serves");
            if is_so(&layout) {
                return Layout::clone(&layout);
            }
            assert!(env.now() < deadline, "{what}: {layout:?}");
            env.sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Writes what one drive holds to another one, which is made, as soon as it is free.
async fn copy_drive(env: &Env, from: &Path, to: &Path) {
    let open = OpenDrive { path: from.to_owned(), create_bytes: None, read_only: true };
    let deadline = env.now() + PATIENCE;
    let from = loop {
        match env.open_drive(open.clone()).await {
            Ok(drive) => break drive,
            Err(error) => assert!(env.now() < deadline, "{error}"),
        }
        env.sleep(Duration::from_millis(10)).await;
    };
    let size = from.size_bytes();
    let open = OpenDrive { path: to.to_owned(), create_bytes: Some(size), read_only: false };
    let to = env.open_drive(open).await.expect("it is new");
    for offset in (0..size).step_by(1 << 20) {
        let bytes = from.read(offset, (size - offset).min(1 << 20) as usize).await.expect("readable");
        to.write(offset, bytes, Durability::Durable).await.expect("writable");
    }
}

/// How node `id` stands in `layout`.
pub fn listed(layout: &Layout, id: u64) -> &Node {
    layout.node(NodeId(id)).expect("a member")
}
