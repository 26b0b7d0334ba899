//! A cluster whose every node has a network and a drive of its own, and the faults that befall it.

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ithaca_env::Env;
use ithaca_env::sim::Random;
use ithaca_log::client::{Client, ClientError};
use ithaca_log::layout::{Layout, NodeState};
use ithaca_log::pos::NodeId;
use rustix::process::Signal;

use super::super::entry::Name;
use super::super::ledger::{Ledger, Violation};
use super::super::nodes::{Home, Nodes, empty_dir};
use super::disk::Disk;
use super::fault::{Fault, Kind};
use super::links::{Links, address};

/// Where every node listens.
const PORT: u16 = 7420;
/// Room that the file system of a full drive has: for what a node takes at its start, and little more.
const LEFT_BYTES: u64 = 480 << 20;
/// Entries that fill a drive: their length, and how many at a time.
const FILLING: (u32, u64) = (64 << 10, 16);
/// Their worker among those of the ledger.
const FILLER: u32 = u32::MAX - 1;
/// What a node exits with when its drive has failed.
const DRIVE_FAILED: Option<i32> = Some(3);
/// Power cuts out of a hundred that a node finds out by itself.
const NOTICES_PERCENT: u64 = 50;
/// The longest that anything may take that must happen.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The same for a cluster to be whole again: a node that was slow again and again is kept out for more than five minutes.
pub const WHOLE_PATIENCE: Duration = Duration::from_secs(400);

/// The cluster, and what it runs on. Taken down in this order.
pub struct World<'a> {
    nodes: Nodes,
    disks: Vec<Disk>,
    links: &'a mut Links,
    ledger: Rc<RefCell<Ledger>>,
    filled: u64,
    /// Whether the nodes that ended by themselves had a reason.
    excused: bool,
}

impl<'a> World<'a> {
    /// A new cluster in `folder`, which is emptied first, with as many nodes as `links` has, and nothing wrong with these. Of
    /// the node `short` the drive has no room to grow.
    pub fn new(
        binary: &Path,
        folder: &Path,
        links: &'a mut Links,
        replicas: u32,
        short: Option<usize>,
        ledger: &Rc<RefCell<Ledger>>,
    ) -> io::Result<Self> {
        empty_dir(folder)?;
        links.heal_all()?;
        let count = links.nodes();
        let disks: Vec<Disk> =
            (1..=count).map(|id| Disk::new(folder, &format!("disk-{id}"))).collect::<io::Result<_>>()?;
        if let Some(short) = short {
            disks[short - 1].leave(LEFT_BYTES)?;
        }
        let home = |id: usize| {
            // A node ends with this process, however that ends.
            let mut through: Vec<String> =
                ["setpriv", "--pdeathsig", "KILL"].into_iter().map(String::from).collect();
            through.extend(Links::through(id));
            Home { addr: (address(id), PORT).into(), data: disks[id - 1].data(), through }
        };
        let mut nodes = Nodes::new(binary, folder, (1..=count).map(home).collect());
        nodes.form(replicas)?;
        Ok(Self { nodes, disks, links, ledger: Rc::clone(ledger), filled: 0, excused: false })
    }

    /// The nodes.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// Lets a fault begin that is to last for `hold`.
    pub async fn begin(
        &mut self,
        env: &Env,
        client: &Client,
        random: &mut Random,
        fault: Fault,
        hold: Duration,
    ) -> io::Result<()> {
        let node = fault.node;
        match fault.kind {
            Kind::Kill | Kind::Wiped => self.nodes.kill(node),
            Kind::KillAll => (1..=self.disks.len()).try_for_each(|id| self.nodes.kill(id)),
            Kind::Pause => self.nodes.signal(node, Signal::STOP),
            Kind::HungDisk => self.disks[node - 1].hang(hold),
            Kind::SlowDisk => self.disks[node - 1].stutter(hold),
            Kind::FullDisk => self.fill(env, client, node).await,
            Kind::PowerCut => {
                self.disks[node - 1].cut()?;
                self.excused = true;
                if random.percent(NOTICES_PERCENT) { Ok(()) } else { self.nodes.kill(node) }
            }
            _ => self.links.begin(fault),
        }
    }

    /// Ends a fault.
    pub async fn heal(
        &mut self,
        env: &Env,
        client: &Client,
        random: &mut Random,
        fault: Fault,
    ) -> io::Result<()> {
        let node = fault.node;
        match fault.kind {
            Kind::Kill => {
                // Its monotonic clock may begin anywhere: no node may compare its own with another's.
                let offset = random.below(1 << 30).to_string();
                let shifted = ["unshare", "--time", "--boottime", &offset, "--monotonic", &offset];
                self.nodes.start_through(node, if random.percent(50) { &shifted } else { &[] })
            }
            Kind::KillAll => (1..=self.disks.len()).try_for_each(|id| self.nodes.start(id)),
            Kind::Pause => self.nodes.signal(node, Signal::CONT),
            Kind::HungDisk | Kind::SlowDisk => self.disks[node - 1].thawed(env).await,
            Kind::FullDisk => self.empty(env, client, node).await,
            Kind::PowerCut => self.power_back(env, node).await,
            Kind::Wiped => self.nodes.replace(env, node, PATIENCE).await,
            _ => self.links.heal(fault),
        }
    }

    async fn power_back(&mut self, env: &Env, node: usize) -> io::Result<()> {
        match self.nodes.ended_by_itself(node)? {
            Some(DRIVE_FAILED) => {}
            Some(code) => self.violated(format!("with its drive gone node {node} ended with {code:?}")),
            // It was killed, or had nothing to write meanwhile.
            None if self.nodes.runs(node) => self.nodes.kill(node)?,
            None => {}
        }
        self.disks[node - 1].restore(env).await?;
        self.excused = false;
        self.nodes.start(node)
    }

    /// Appends until the drive of `node` is full: an append is refused for it, or the cluster has been told and goes on without. More
    /// would fill the drives of the others.
    async fn fill(&mut self, env: &Env, client: &Client, node: usize) -> io::Result<()> {
        let begun = Instant::now();
        while !self.append_some(client).await.iter().any(says_full) && !is_full(client, node).await {
            if begun.elapsed() > PATIENCE {
                let bytes = self.filled * u64::from(FILLING.0);
                self.violated(format!("the drive is not full after {PATIENCE:?} and {bytes} bytes"));
                break;
            }
            env.yield_now().await;
        }
        Ok(())
    }

    /// Gives a full drive room, and waits until the log takes everything again, at this node too.
    async fn empty(&mut self, env: &Env, client: &Client, node: usize) -> io::Result<()> {
        self.disks[node - 1].free()?;
        let begun = Instant::now();
        while self.append_some(client).await.iter().any(says_full) || is_full(client, node).await {
            if begun.elapsed() > PATIENCE {
                self.violated(format!("the drive is still full {PATIENCE:?} after it was given room"));
                break;
            }
            env.sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Appends a few large entries, for every stripe; returns what failed.
    async fn append_some(&mut self, client: &Client) -> Vec<ClientError> {
        let (len, at_once) = FILLING;
        let name = |number| Name { worker: FILLER, len, number };
        let names: Vec<Name> = (self.filled..self.filled + at_once).map(name).collect();
        self.filled += at_once;
        names.iter().for_each(|&name| self.ledger.borrow_mut().sending(name));
        let appends: Vec<_> = names.iter().map(|name| client.append(name.bytes())).collect();
        let mut failed = Vec::new();
        for (name, append) in names.into_iter().zip(appends) {
            let result = append.await;
            self.ledger.borrow_mut().settled(name, &result);
            failed.extend(result.err());
        }
        failed
    }

    /// Notes nodes that ended although nothing was done to their drives, and starts them again.
    pub fn look_after(&mut self) -> io::Result<()> {
        for id in 1..=self.disks.len() {
            if self.excused {
                return Ok(());
            }
            if let Some(code) = self.nodes.ended_by_itself(id)? {
                self.violated(format!("node {id} ended by itself with exit code {code:?}"));
                self.nodes.start(id)?;
            }
        }
        Ok(())
    }

    fn violated(&self, what: String) {
        self.ledger.borrow_mut().violated(Violation::Differing, what);
    }
}

/// Waits until every node is in use and no copy is missing; `None` if that takes too long.
pub async fn whole_again(env: &Env, client: &Client) -> Option<Duration> {
    let begun = Instant::now();
    loop {
        if client.layout().await.is_ok_and(|layout| layout.is_whole()) {
            return Some(begun.elapsed());
        }
        if begun.elapsed() > WHOLE_PATIENCE {
            return None;
        }
        env.sleep(Duration::from_millis(20)).await;
    }
}

/// Whether the newest layout counts the node as one without room.
async fn is_full(client: &Client, node: usize) -> bool {
    let layout = client.layout().await;
    let state = |layout: &Layout| layout.node(NodeId(node as u64)).map(|node| node.state);
    layout.is_ok_and(|layout| state(&layout) == Some(NodeState::Full))
}

fn says_full(error: &ClientError) -> bool {
    match error {
        ClientError::OutcomeUnknown { cause, .. } | ClientError::OutcomeUnknownAfter { cause, .. } => {
            says_full(cause)
        }
        error => error.is_full(),
    }
}
