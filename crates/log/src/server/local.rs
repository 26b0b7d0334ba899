//! A cluster in one environment: every node has its own socket, and they talk to each other as any cluster does.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use ithaca_chain::{
    CacheError, ChainError, ChainOptions, ChangeError, MetadataDrive, MetadataError, OpenError,
};
use ithaca_env::drive::DriveError;
use ithaca_env::net::{Listener, NetError};
use ithaca_env::task::{TaskHandle, gather};
use ithaca_env::{Env, Time};
use thiserror::Error;

use super::caches::{CacheOptions, Shared};
use super::decide::{Preparation, Proposal, prepare};
use super::drives::DriveOrders;
use super::forming::{self, Formed, Opened, look_first, open_register};
use super::layouts::LayoutKeeper;
use super::leases::Leases;
use super::node::{GrantOptions, Node};
use super::outdated::Outdated;
use super::peers::Peers;
use super::register::{Register, RegisterError};
use super::relay::Relay;
use super::remembered::{Remembered, UnitPaths};
use super::unit_drives::{UnitDrives, Wanted, open_unit};
use super::unit_shell::UnitShell;
use super::views::ViewHost;
use crate::client::{self, CallError, ClientError, Connection, Phase};
use crate::layout::{Acceptor, Change, ChangeError as LayoutChangeError, Layout, TailError};
use crate::limits;
use crate::planted::Planted;
use crate::pos::{ClientId, ClusterId, Epoch, Incarnation, NodeId};
use crate::unit::UnitOptions;
use crate::wire::{NodeStatus, Roles, Seal, Sealed};
use ithaca_env::record::RecordError;

/// Time for the units of a starting cluster to be sealed and for its layout to be decided.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The node that keeps layouts and runs the sequencer.
const FIRST_NODE: NodeId = NodeId(1);

/// How a local cluster is set up.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// Where drives are that `drives` does not name.
    pub data: PathBuf,
    /// Where the first node listens; the others take free ports of the same interface.
    pub listen: SocketAddr,
    /// Log units, each a node of its own. Fixed when the cluster is formed.
    pub units: usize,
    /// Units that each entry is stored on, from 1 to [`limits::REPLICAS_MAX_COUNT`]. Fixed when the cluster is formed.
    pub replicas: usize,
    /// Drives of the units: the first units have one each, in order, and the rest theirs in `data`; if there are more drives than
    /// units, each unit has as many that follow each other, which make one chain in this order. Of a cluster that was started before a unit
    /// that is given none, or the same as the last time, has those that it had last.
    pub drives: Vec<PathBuf>,
    /// Bytes that a new drive is created with.
    pub create_bytes: u64,
    /// A cache drive for all units, if there is one.
    pub cache: Option<CacheOptions>,
    /// A metadata drive for all units, if there is one: a file or block device; a path that is not there becomes a file.
    pub metadata: Option<PathBuf>,
    /// How chains are set up.
    pub chain: ChainOptions,
    /// How units are set up.
    pub unit: UnitOptions,
    /// Whether nodes hand entries to each other over sockets, as those of different processes do.
    pub sockets_between_nodes: bool,
    /// How positions are granted.
    pub grants: GrantOptions,
    /// A fault of the sequencer, the forwarder or the acceptor to put in force.
    pub planted: Planted,
}

impl LocalOptions {
    /// One unit in `data`, listening at `listen`, everything else as by default.
    pub fn new(data: &Path, listen: SocketAddr) -> Self {
        Self {
            data: data.to_owned(),
            listen,
            units: 1,
            replicas: 1,
            drives: Vec::new(),
            create_bytes: 1 << 30,
            cache: None,
            metadata: None,
            chain: ChainOptions::default(),
            unit: UnitOptions::default(),
            sockets_between_nodes: false,
            grants: GrantOptions::default(),
            planted: Planted::NONE,
        }
    }

    /// The drives that a start looks at for a unit. Those that are named are dealt out evenly, in order.
    fn wanted(&self, unit: usize, remembered: Option<UnitPaths>) -> Wanted {
        let each = (self.drives.len() / self.units.max(1)).max(1);
        let named = self.drives.iter().skip(unit * each).take(each);
        Wanted::new(named, &self.data, unit_id(unit), remembered)
    }

    /// The drives that a first start of all units looks at.
    fn named(&self) -> impl Iterator<Item = PathBuf> {
        (0..self.units).flat_map(|unit| self.wanted(unit, None).links).flatten()
    }

    /// What a unit stands on, which `remembered` is of if it is part of a cluster already.
    fn unit_drives(
        &self,
        unit: usize,
        remembered: &Rc<Remembered>,
        formed: bool,
        metadata: Option<&MetadataDrive>,
    ) -> UnitDrives {
        let known = remembered.unit(unit_id(unit)).filter(|_| formed);
        UnitDrives {
            wanted: self.wanted(unit, known),
            remembered: Rc::clone(remembered),
            create_bytes: self.create_bytes,
            metadata: metadata.cloned(),
            chain: self.chain.clone(),
            unit: self.unit,
        }
    }
}

/// Why a local cluster does not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The address cannot be listened at.
    #[error(transparent)]
    Listen(#[from] NetError),
    /// The register of layouts cannot be used.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// What the register holds is not a record of layouts.
    #[error("{path}: {error}")]
    Layouts {
        /// The register.
        path: String,
        /// What is wrong with it.
        error: RecordError,
    },
    /// The data is another node's. Nothing is wrong with it.
    #[error("the data directory is that of node {}, not of node {}", holds.0, node.0)]
    OtherNode {
        /// The node that is to be started.
        node: NodeId,
        /// Whose it is.
        holds: NodeId,
    },
    /// The cluster goes on without this node, for good: its data can be deleted, and with an empty directory it may be added
    /// again.
    #[error("node {} was removed from cluster {cluster}; its data directory is of no use any more", node.0)]
    Removed {
        /// The node.
        node: NodeId,
        /// The cluster that it was of.
        cluster: ClusterId,
    },
    /// The cluster's layout gives this node something to do that its settings leave out.
    #[error(
        "node {} is given the role {missing} by the layout of epoch {}, and its settings leave that out: \
         remove the node from the cluster, and add it again with an empty data directory", node.0, epoch.0)]
    RoleLeftOut {
        /// The node.
        node: NodeId,
        /// What it does not offer.
        missing: Roles,
        /// The epoch of the newest layout that it knows.
        epoch: Epoch,
    },
    /// A unit's data is an older copy.
    #[error(transparent)]
    Outdated(#[from] Outdated),
    /// The same of a unit whose cluster is in this process: there are no other nodes to take its place.
    #[error(
        "the drives of unit {} are an older copy: they have sealed epoch {}, and had sealed epoch {}; what was appended \
         since is not on them, so give the unit those that it had last", .0.node.0, .0.found.0, .0.told.0)]
    OldDrives(Outdated),
    /// The register is new or harmed beyond reading, but a unit's drive is in use: what was decided is lost.
    #[error("{register}: holds no layout, but {drive} holds data: the register of its cluster is lost")]
    RegisterLost {
        /// The register.
        register: String,
        /// The drive.
        drive: String,
    },
    /// A drive that was named for a unit holds something else.
    #[error("{drive} is neither blank nor a drive of a unit{}", held(label.as_deref()))]
    OtherDrive {
        /// The drive.
        drive: String,
        /// What the chain on it says that it is; `None` if there is none.
        label: Option<String>,
    },
    /// A unit's chain cannot be opened.
    #[error(transparent)]
    Chain(#[from] OpenError),
    /// The cache drive is none.
    #[error("cache: {0}")]
    Cache(#[from] CacheError),
    /// The metadata drive is none.
    #[error("metadata: {0}")]
    Metadata(#[from] MetadataError),
    /// A drive could not be added to a unit's chain.
    #[error(transparent)]
    AddDrive(#[from] ChangeError),
    /// Groups of a unit's chain are lost in which it may have stored what it has promised. Nothing was written.
    #[error(
        "{drive}: groups are lost in which unit {unit} may have stored what it has promised: which epochs are over, and what is trimmed; \
         start its node with an empty data directory and use `cluster replace`"
    )]
    PromisesLost {
        /// The unit.
        unit: NodeId,
        /// Its drives.
        drive: String,
    },
    /// A unit's state is not one.
    #[error("{path}: the unit's state: {error}")]
    UnitState {
        /// The unit's drives.
        path: String,
        /// What is wrong with it.
        error: RecordError,
    },
    /// The cluster was formed with another number of units.
    #[error("the cluster has {found} units, {asked} were asked for; units cannot be added or removed yet")]
    Units {
        /// How many it has.
        found: usize,
        /// How many were asked for.
        asked: usize,
    },
    /// The cluster is one of servers that decide together, and the data is one's. Nothing is wrong with it.
    #[error(
        "the data directory is that of a node of a cluster of servers ({nodes}): start it as that node (`server --node`)"
    )]
    OneOfServers {
        /// The cluster's nodes.
        nodes: String,
    },
    /// There are too few units for the copies that were asked for.
    #[error(
        "{replicas} copies of each entry were asked for, which {units} units cannot keep: 1 to {max} can be kept"
    )]
    Replicas {
        /// Copies that were asked for.
        replicas: usize,
        /// Units that were asked for.
        units: usize,
        /// The most copies that so many units keep.
        max: usize,
    },
    /// The cluster was formed with another number of copies.
    #[error(
        "the cluster keeps {found} copies of each entry, {asked} were asked for; that cannot be changed yet"
    )]
    ReplicasChanged {
        /// How many it keeps.
        found: usize,
        /// How many were asked for.
        asked: usize,
    },
    /// A unit of the cluster has lost its drive.
    #[error("{path}: the drive of unit {unit} is not there, but the cluster was formed with it")]
    DriveMissing {
        /// Its path.
        path: String,
        /// The unit.
        unit: NodeId,
    },
    /// The drives that were given are not all of those that the unit has.
    #[error(
        "{error}; unit {unit} had {left_out} too: give all of its drives, or none for those that it had last"
    )]
    NotAllGiven {
        /// What is missing, in words.
        error: String,
        /// The unit.
        unit: NodeId,
        /// The drives that it had and that were not given.
        left_out: String,
    },
    /// Where the units' drives are was remembered, and cannot be read.
    #[error("{error}; remove that file, and start with every drive of the units")]
    DrivesForgotten {
        /// What is wrong, in words.
        error: String,
    },
    /// The layout would not be valid.
    #[error("{0}")]
    Layout(#[from] LayoutChangeError),
    /// A unit could not be sealed, or the layout not be decided.
    #[error(transparent)]
    Reconfigure(Box<ClientError>),
    /// The sealed units' answers do not give a tail.
    #[error(transparent)]
    Tail(#[from] TailError),
}

/// What is on a drive, in words.
fn held(label: Option<&str>) -> String {
    label.map(|label| format!(": it holds {label:?}")).unwrap_or_default()
}

impl From<ClientError> for StartError {
    fn from(error: ClientError) -> Self {
        Self::Reconfigure(Box::new(error))
    }
}

impl StartError {
    /// Whether data on a drive is damaged, as opposed to out of reach or wrongly asked for.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Register(
                RegisterError::Damaged { .. }
                    | RegisterError::Cut { .. }
                    | RegisterError::Drive(DriveError::TooShort { .. })
            ) | Self::RegisterLost { .. }
                | Self::Layouts { .. }
                | Self::DrivesForgotten { .. }
                | Self::Outdated(_)
                | Self::OldDrives(_)
                | Self::PromisesLost { .. }
                | Self::UnitState { .. }
                | Self::Chain(
                    OpenError::SuperblockLost { .. }
                        | OpenError::CheckpointLost { .. }
                        | OpenError::Truncated { .. }
                        | OpenError::NotAChain { .. },
                )
        )
    }
}

/// A running cluster. Dropping it stops its nodes where they stand, as a crash would.
pub struct LocalCluster {
    nodes: Vec<Rc<Node>>,
    addrs: Vec<SocketAddr>,
    serving: RefCell<Vec<TaskHandle<()>>>,
    layout: Layout,
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        self.serving.borrow().iter().for_each(TaskHandle::abort);
    }
}

impl LocalCluster {
    /// Opens or creates everything and returns once the cluster serves, in a new epoch.
    pub async fn start(env: &Env, options: LocalOptions) -> Result<Self, StartError> {
        check_replicas(&options)?;
        // Taken before anything is touched: a port in use must not cost an epoch.
        let mut listeners = vec![env.listen_soon(options.listen).await?];
        for _ in 1..options.units {
            listeners.push(env.listen(SocketAddr::new(options.listen.ip(), 0))?);
        }
        let addrs: Vec<SocketAddr> = listeners.iter().map(Listener::local_addr).collect();
        // A first start that is refused has made nothing of a cluster.
        let is_first = look_first(env, &options.data, options.named()).await?;
        let shared = if is_first { Some(open_shared(env, &options).await?) } else { None };
        let Known { register, acceptor, cluster, remembered } = open_cluster(env, &options).await?;
        let (decided, is_formed) = (acceptor.latest().cloned(), acceptor.latest().is_some());
        let layout = Layout::single(cluster, first_node());
        let mut started = Self { nodes: Vec::new(), addrs, serving: RefCell::default(), layout };
        check_nodes(decided.as_ref(), &remembered)?;
        check_units(decided.as_ref(), &options)?;
        let keeper = LayoutKeeper::new(env, register, acceptor, options.planted);
        let Shared { cache, metadata } = match shared {
            Some(shared) => shared,
            None => open_shared(env, &options).await?,
        };
        let mut units = Vec::new();
        let leases = Leases::not_needed(env);
        for unit in 0..options.units {
            let id = unit_id(unit);
            let drives = options.unit_drives(unit, &remembered, is_formed, metadata.as_ref());
            let opened = open_unit(env, &drives, id, cluster, is_formed, Rc::clone(&leases));
            let (shell, answering) = opened.await?;
            drives.check_age(&keeper, id, &shell)?;
            if let Some(cache) = &cache {
                shell.chain().use_cache(cache);
            }
            started.serving.borrow_mut().push(answering);
            units.push((id, shell));
        }
        let relays = relays(env, &options, cluster, &units);
        for ((listener, (id, shell)), relay) in listeners.into_iter().zip(units).zip(relays) {
            let (drives, working) = DriveOrders::start(env, id, &shell, options.create_bytes, &remembered);
            let node = Rc::new(Node {
                env: env.clone(),
                id,
                cluster: Cell::new(cluster),
                incarnation: Incarnation(env.wall_clock_ms()),
                unit: OnceCell::from(shell),
                drives: OnceCell::from(drives),
                relay: OnceCell::from(relay),
                leases: Rc::clone(&leases),
                sequencer: RefCell::default(),
                forwarder: RefCell::default(),
                streams: Default::default(),
                layouts: (id == FIRST_NODE).then(|| Rc::clone(&keeper)),
                member: OnceCell::new(),
                offers: Roles::OFFERED,
                counts_process: id == FIRST_NODE,
                started: env.now(),
                counters: Default::default(),
                views: Default::default(),
            });
            started.serving.borrow_mut().extend([working, node.serve(listener)]);
            started.nodes.push(node);
        }
        started.layout = started.reconfigure(env, cluster, &options, decided).await?;
        let layout = Rc::new(started.layout.clone());
        for node in &started.nodes {
            node.go_on(&layout, true, options.grants, options.planted);
        }
        Ok(started)
    }

    /// The address of each node, the first one's first.
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// The layout that it started with.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Has all nodes answer questions about objects by this host, from now on.
    pub fn host_views(&self, host: &Rc<dyn ViewHost>) {
        self.host_views_by(|_| Rc::clone(host));
    }

    /// The same, each node by the host that is made for it; nodes are numbered from 0 on.
    pub fn host_views_by(&self, mut host: impl FnMut(usize) -> Rc<dyn ViewHost>) {
        self.nodes.iter().enumerate().for_each(|(nth, node)| node.views.host(host(nth)));
    }

    /// What each node says of itself.
    pub fn status(&self) -> Vec<NodeStatus> {
        self.nodes.iter().map(|node| node.status()).collect()
    }

    /// Waits until a unit's chain has stopped and returns why. Nothing more can be written to that unit until the cluster
    /// is started again.
    pub async fn failed(&self) -> ChainError {
        let units = self.nodes.iter().filter_map(|node| node.unit.get());
        let ended = gather(units.map(|unit| unit.stopped()).collect(), |_| true).await;
        match ended.into_iter().flatten().next() {
            Some(why) => why,
            // Without a unit.
            None => std::future::pending().await,
        }
    }

    /// Stops serving, waits for what is under way to be durable, and closes the drives.
    pub async fn stop(self) {
        self.serving.borrow_mut().drain(..).for_each(|task| task.abort());
        for node in &self.nodes {
            if let Some(unit) = node.unit.get() {
                // A chain that has stopped has nothing left to write, and has said so.
                let _ = unit.chain().clone().close().await;
            }
        }
    }

    /// Ends the epoch before and decides the layout of the next.
    async fn reconfigure(
        &self,
        env: &Env,
        cluster: ClusterId,
        options: &LocalOptions,
        decided: Option<Layout>,
    ) -> Result<Layout, StartError> {
        let deadline = env.now() + START_TIMEOUT;
        let (replicas, planted) = (options.replicas, options.planted);
        let acceptors = vec![Peers::new(env, cluster).at(FIRST_NODE, self.addrs[0])];
        let before = decided.clone();
        let proposal = Proposal { me: FIRST_NODE, acceptors, before, planted };
        let prepared = match prepare(env, proposal, deadline).await? {
            Preparation::Open(prepared) => prepared,
            Preparation::Decided(layout) => return Ok(layout),
        };
        let layout = match decided {
            None => Layout::first(cluster, self.layout_nodes(), replicas as u16, replicas as u16)?,
            Some(before) => {
                let mut answers = BTreeMap::new();
                for (node, &addr) in self.nodes.iter().zip(&self.addrs) {
                    if let Some(unit) = node.unit.get() {
                        unit.list(&before, node.id);
                    }
                    let seal = Seal { epoch: before.epoch, extents: before.active_extents(node.id) };
                    let sealed: Sealed = self.call(env, node.id, addr, Phase::Seal, &seal, deadline).await?;
                    answers.insert(node.id, sealed);
                }
                let restarted = Change { joined: self.layout_nodes(), ..Change::default() };
                before.change(before.find_tail(&answers)?, &restarted)?
            }
        };
        // Every unit is sealed and the sequencer is gone, so that no lease needs to be waited for.
        Ok(prepared.propose(&layout, deadline).await?)
    }

    async fn call<M: crate::wire::Message, R: crate::wire::Message>(
        &self,
        env: &Env,
        node: NodeId,
        addr: SocketAddr,
        phase: Phase,
        message: &M,
        deadline: Time,
    ) -> Result<R, ClientError> {
        let failed = |error: CallError| ClientError::Node { addr, epoch: Default::default(), phase, error };
        let who = client::Identity { client: ClientId(0), node, cluster: ClusterId::UNKNOWN };
        let connection = Connection::open(env, addr, who, deadline).await.map_err(failed)?;
        let called = connection.call::<M, R>(env, Default::default(), message, deadline).await;
        called.map(|(reply, _, _)| reply).map_err(failed)
    }

    fn layout_nodes(&self) -> Vec<crate::layout::Node> {
        let roles = |unit: usize| match unit {
            0 => first_roles(),
            _ => Roles::UNIT,
        };
        let node = |(unit, addr): (usize, &SocketAddr)| {
            crate::layout::Node::new(unit_id(unit), roles(unit), addr.to_string())
        };
        self.addrs.iter().enumerate().map(node).collect()
    }
}

/// What each node hands entries on by. In one process the nodes share it, and every unit is written to without a socket.
fn relays(
    env: &Env,
    options: &LocalOptions,
    cluster: ClusterId,
    units: &[(NodeId, Rc<UnitShell>)],
) -> Vec<Rc<Relay>> {
    let relay = |units: &[(NodeId, Rc<UnitShell>)]| {
        Relay::new(env, units.iter().cloned().collect(), Peers::new(env, cluster), options.planted)
    };
    match options.sockets_between_nodes {
        true => units.iter().map(|unit| relay(std::slice::from_ref(unit))).collect(),
        false => vec![relay(units); units.len()],
    }
}

/// The node of a unit, counted from 0.
fn unit_id(unit: usize) -> NodeId {
    NodeId(FIRST_NODE.0 + unit as u64)
}

/// The first node does everything.
fn first_roles() -> Roles {
    Roles::UNIT.with(Roles::SEQUENCER).with(Roles::LAYOUT).with(Roles::FORWARDER)
}

/// The first node before its address is known.
fn first_node() -> crate::layout::Node {
    crate::layout::Node::new(FIRST_NODE, first_roles(), String::new())
}

/// What the register knows of the cluster.
struct Known {
    register: Register,
    acceptor: Acceptor,
    cluster: ClusterId,
    remembered: Rc<Remembered>,
}

/// Opens what all units share.
async fn open_shared(env: &Env, options: &LocalOptions) -> Result<Shared, StartError> {
    Shared::open(env, options.cache.as_ref(), options.metadata.as_deref()).await
}

/// Opens the registers; a new cluster's id is drawn and stored.
async fn open_cluster(env: &Env, options: &LocalOptions) -> Result<Known, StartError> {
    let remembered = Remembered::open(env, &options.data).await?;
    let had = remembered.held();
    let Opened { mut register, mut acceptor, formed } =
        open_register(env, FIRST_NODE, &options.data, options.named(), &had, options.planted).await?;
    let cluster = match formed {
        Formed::Begun(cluster) | Formed::Done(cluster) => cluster,
        Formed::Not => {
            let cluster = ClusterId(env.random_u128());
            register.write_twice(&forming::encode(cluster)).await.map_err(RegisterError::Drive)?;
            acceptor.belong_to(cluster);
            cluster
        }
    };
    Ok(Known { register, acceptor, cluster, remembered })
}

/// Refuses more copies than there are units.
fn check_replicas(options: &LocalOptions) -> Result<(), StartError> {
    let (replicas, units) = (options.replicas, options.units);
    let max = units.min(limits::REPLICAS_MAX_COUNT);
    if (1..=max).contains(&replicas) { Ok(()) } else { Err(StartError::Replicas { replicas, units, max }) }
}

/// Refuses to go on for a cluster of which other nodes decide too, or are not called as units here: they may serve, or have done so since. Those
/// whose drives are in this directory do not.
fn check_nodes(decided: Option<&Layout>, remembered: &Remembered) -> Result<(), StartError> {
    let Some(layout) = decided else { return Ok(()) };
    let is_here = |node: &crate::layout::Node| {
        node.id == FIRST_NODE || node.roles == Roles::UNIT || remembered.unit(node.id).is_some()
    };
    let mut nodes = layout.nodes.iter().enumerate();
    if nodes.all(|(unit, node)| node.id == unit_id(unit) && is_here(node)) {
        return Ok(());
    }
    let nodes: Vec<String> = layout.nodes.iter().map(|node| node.id.0.to_string()).collect();
    Err(StartError::OneOfServers { nodes: nodes.join(" ") })
}

/// Refuses other numbers than the cluster was formed with.
fn check_units(decided: Option<&Layout>, options: &LocalOptions) -> Result<(), StartError> {
    let Some(layout) = decided else { return Ok(()) };
    let (found, asked) =
        (layout.nodes.iter().filter(|node| node.roles.has(Roles::UNIT)).count(), options.units);
    if found != asked {
        return Err(StartError::Units { found, asked });
    }
    let (found, asked) = (usize::from(layout.replicas), options.replicas);
    if found == asked { Ok(()) } else { Err(StartError::ReplicasChanged { found, asked }) }
}
