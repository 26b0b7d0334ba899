//! A node that is one of a cluster of processes: it beats to the others, learns layouts, and proposes new ones.
//!
//! ```text
//!   beats ──► detector ──► supervise ──► reconfigure: prepare, seal, tail, propose, learn
//!                              ▲                                                     │
//!                              └───────── apply: sequencer, forwarder, peers ◄───────┘ every node that learns it
//! ```
//!
//! What decides lies in pure cores: [`Detector`], the acceptor and the proposer, [`Layout::change`], the unit. Here they are
//! connected. Any node may propose, at any time; the acceptors decide one layout an epoch (docs/protocol/reconfigure.md).

#[cfg(test)]
mod forming_tests;
mod member;
mod order;
mod rebuild;
mod reconfigure;
mod removed;
mod repair;
mod room;
mod same;
mod space;
mod supervise;

use std::cell::{Cell, OnceCell, RefCell};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use ithaca_chain::{ChainError, ChainOptions, MetadataDrive};
use ithaca_env::Env;
use ithaca_env::net::Listener;
use ithaca_env::sync::Notify;
use ithaca_env::task::{Ended, TaskHandle, race};
use thiserror::Error;

use super::caches::{CacheOptions, Shared};
use super::drives::DriveOrders;
use super::forming::{self, Formed, Opened, look_first, open_register};
use super::layouts::LayoutKeeper;
use super::leases::Leases;
use super::local::StartError;
use super::node::{GrantOptions, Node};
use super::outdated::{self, Outdated};
use super::peers::Peers;
use super::relay::Relay;
use super::remembered::{Remembered, UnitPaths};
use super::reply::ReplyRoute;
use super::unit_drives::{UnitDrives, Wanted, open_unit};
use super::views::ViewHost;
use crate::detector::Timing;
use crate::layout::Layout;
use crate::planted::Planted;
use crate::pos::{ClusterId, Epoch, Incarnation, NodeId};
use crate::unit::UnitOptions;
use crate::wire::{Beat, ChangeCluster, Invitation, Kind, Learn, NodeStatus, Refusal, Roles};
use member::Member;

pub(super) use repair::Repairs;

/// How a node of a cluster is set up.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Its id, which no other node of the cluster has.
    pub id: NodeId,
    /// Where its register lies, and the drives that `drives` does not name.
    pub data: PathBuf,
    /// Where it listens.
    pub listen: SocketAddr,
    /// The drives of its unit, in the order of its chain; `A+B` names the sides of a mirrored one. A node that was started before and is given
    /// none, or the same as the last time, has those that it had last.
    pub drives: Vec<PathBuf>,
    /// Bytes that a new drive is created with.
    pub create_bytes: u64,
    /// A cache drive, if there is one.
    pub cache: Option<CacheOptions>,
    /// A metadata drive, if there is one.
    pub metadata: Option<PathBuf>,
    /// How its chain is set up.
    pub chain: ChainOptions,
    /// How its unit is set up.
    pub unit: UnitOptions,
    /// What the cluster may give it to do, of [`Roles::OFFERED`].
    pub offers: Roles,
    /// How positions are granted.
    pub grants: GrantOptions,
    /// Bytes a second that it copies at the most, of ranges that it has missed.
    pub rebuild_bytes_per_second: u64,
    /// A copy of what this node holds nothing of is begun so long after a member went out, which may come back with its own.
    pub rebuild_after: Duration,
    /// How often it looks whether its drives have lost what another replica has.
    pub repair_every: Duration,
    /// How often the node that hands out positions looks up to where the log is trimmed.
    pub find_trimmed_every: Duration,
    /// How long things take until they count.
    pub timing: Timing,
    /// A fault to put in force.
    pub planted: Planted,
}

/// How long a node that stops waits for the cluster to go on without it.
const LEAVE_PATIENCE: Duration = Duration::from_secs(2);
/// How long a start of a node that was removed tries to tell the others.
const REMOVED_PATIENCE: Duration = Duration::from_secs(10);

impl NodeOptions {
    /// A node with its data in `data`, listening at `listen`, everything else as by default.
    pub fn new(id: NodeId, data: &Path, listen: SocketAddr) -> Self {
        Self {
            id,
            data: data.to_owned(),
            listen,
            drives: Vec::new(),
            create_bytes: 1 << 30,
            cache: None,
            metadata: None,
            chain: ChainOptions::default(),
            unit: UnitOptions::default(),
            offers: Roles::OFFERED,
            grants: GrantOptions::default(),
            rebuild_bytes_per_second: 32 << 20,
            rebuild_after: Duration::from_secs(10),
            repair_every: Duration::from_secs(10),
            find_trimmed_every: Duration::from_secs(10),
            timing: Timing::default(),
            planted: Planted::NONE,
        }
    }
}

impl NodeOptions {
    /// The drives that a start looks at.
    fn wanted(&self, remembered: Option<UnitPaths>) -> Wanted {
        Wanted::new(self.drives.iter(), &self.data, self.id, remembered)
    }

    /// What `layout` gives the node to do, or may at any time, and it does not offer; `None` if there is nothing.
    fn left_out(&self, layout: &Layout) -> Option<Roles> {
        let missing = layout.node(self.id)?.roles.needed_offers().without(self.offers);
        (missing != Roles::default()).then_some(missing)
    }

    /// Opens what a process has besides its unit's drives.
    async fn open_shared(&self, env: &Env) -> Result<Shared, StartError> {
        Shared::open(env, self.cache.as_ref(), self.metadata.as_deref()).await
    }

    /// What its unit stands on, which `remembered` is of if it is part of a cluster already.
    fn unit_drives(
        &self,
        remembered: &Rc<Remembered>,
        is_formed: bool,
        metadata: Option<MetadataDrive>,
    ) -> UnitDrives {
        UnitDrives {
            wanted: self.wanted(remembered.unit(self.id).filter(|_| is_formed)),
            remembered: Rc::clone(remembered),
            create_bytes: self.create_bytes,
            metadata,
            chain: self.chain.clone(),
            unit: self.unit,
        }
    }
}

/// Why a node is of no use any more.
#[derive(Debug, Error)]
pub enum NodeEnd {
    /// Its unit's chain has stopped. It stores nothing until it is started again.
    #[error("its unit has stopped: {0}")]
    Failed(ChainError),
    /// Its data is an older copy, as it has heard.
    #[error(transparent)]
    Outdated(Outdated),
    /// It is no member of the cluster any more, and will not be.
    #[error("node {} was removed from cluster {cluster}", node.0)]
    Removed {
        /// The node.
        node: NodeId,
        /// The cluster.
        cluster: ClusterId,
    },
}

/// A running node. Dropping it stops it where it stands, as a crash would.
pub struct ClusterNode {
    inner: Rc<Inner>,
    addr: SocketAddr,
}

/// What the node's connections know it by.
pub(super) struct Inner {
    env: Env,
    options: NodeOptions,
    node: Rc<Node>,
    keeper: Rc<LayoutKeeper>,
    /// Where its drives are.
    remembered: Rc<Remembered>,
    shared: Shared,
    member: OnceCell<Rc<Member>>,
    /// Whether somebody is making it a member.
    is_forming: Cell<bool>,
    /// Rings when it has become a member.
    formed: Notify,
    tasks: RefCell<Vec<TaskHandle<()>>>,
}

impl Drop for ClusterNode {
    fn drop(&mut self) {
        self.inner.tasks.borrow().iter().for_each(TaskHandle::abort);
    }
}

impl ClusterNode {
    /// Opens what the node has and serves. A node that belongs to no cluster yet waits to be told of one; any other learns
    /// what has happened meanwhile and has the cluster take it back.
    ///
    /// Errors: the address is taken, the register or a drive cannot be used, or belongs to something else, or to another node; the node was removed from its cluster,
    /// which by then most of those know who decide there, if they could be reached within 10 seconds; its layout gives it a role that it does
    /// not offer; its unit's data is an older copy, by the layouts that it knows.
    pub async fn start(env: &Env, options: NodeOptions) -> Result<Self, StartError> {
        let listener = env.listen_soon(options.listen).await?;
        let addr = listener.local_addr();
        let is_first =
            look_first(env, &options.data, options.wanted(None).links.into_iter().flatten()).await?;
        // Before it is a member: a node that is to become one must not find out then that it cannot. A first start that is refused has made
        // nothing.
        let shared = if is_first { Some(options.open_shared(env).await?) } else { None };
        let remembered = Remembered::open(env, &options.data).await?;
        // Its register would say that there is no such node any more, or that its drive is gone.
        if let Some(holds) = remembered.is_of_another(options.id) {
            return Err(StartError::OtherNode { node: options.id, holds });
        }
        let (named, had) = (options.wanted(None).links.into_iter().flatten(), remembered.held());
        let Opened { register, acceptor, formed } =
            open_register(env, options.id, &options.data, named, &had, options.planted).await?;
        let keeper = LayoutKeeper::new(env, register, acceptor, options.planted);
        if let Some(layout) = keeper.latest().filter(|layout| layout.node(options.id).is_none()) {
            // An earlier life may have ended before it could say so.
            let _ = env.timeout(REMOVED_PATIENCE, removed::pass_on(env, &layout)).await;
            return Err(StartError::Removed { node: options.id, cluster: layout.cluster });
        }
        if let Some(layout) = keeper.latest()
            && let Some(missing) = options.left_out(&layout)
        {
            return Err(StartError::RoleLeftOut { node: options.id, missing, epoch: layout.epoch });
        }
        let shared = match shared {
            Some(shared) => shared,
            None => options.open_shared(env).await?,
        };
        let node = Rc::new(Node {
            env: env.clone(),
            id: options.id,
            cluster: Cell::new(ClusterId::UNKNOWN),
            incarnation: Incarnation(env.wall_clock_ms()),
            unit: OnceCell::new(),
            drives: OnceCell::new(),
            relay: OnceCell::new(),
            leases: Leases::needed(env, options.planted),
            sequencer: RefCell::default(),
            forwarder: RefCell::default(),
            streams: Default::default(),
            layouts: Some(Rc::clone(&keeper)),
            member: OnceCell::new(),
            offers: options.offers,
            counts_process: true,
            started: env.now(),
            counters: Default::default(),
            views: Default::default(),
        });
        let inner = Rc::new(Inner {
            env: env.clone(),
            options,
            node,
            keeper,
            remembered,
            shared,
            member: OnceCell::new(),
            is_forming: Cell::default(),
            formed: Notify::default(),
            tasks: RefCell::default(),
        });
        let started = Self { inner: Rc::clone(&inner), addr };
        if let Formed::Done(cluster) = formed {
            inner.open(cluster, true).await?;
        }
        inner.serve(listener);
        Ok(started)
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Has the node answer questions about objects by this host, from now on.
    pub fn host_views(&self, host: &Rc<dyn ViewHost>) {
        self.inner.node.views.host(Rc::clone(host));
    }

    /// What it says of itself.
    pub fn status(&self) -> NodeStatus {
        self.inner.node.status()
    }

    /// The epoch of the newest layout that it knows; 0 if it knows none.
    pub fn epoch(&self) -> Epoch {
        self.inner.node.epoch()
    }

    /// Whether it belongs to a cluster: not before it has learned of a first layout that names it.
    pub fn is_member(&self) -> bool {
        self.inner.is_formed()
    }

    /// Whether it is in use in the newest layout that it knows, and serves in that epoch: not before it is a member of a cluster, nor before
    /// that has gone on after a start, nor while the others have left it out or it does not reach enough of those who decide.
    pub fn is_ready(&self) -> bool {
        let (me, inner) = (self.inner.options.id, &self.inner);
        let is_used = |layout: &Layout| layout.node(me).is_some_and(|node| node.state.is_used());
        let serves = |layout: &Layout| inner.member.get().is_some_and(|member| !member.is_over(layout));
        inner.is_formed() && inner.keeper.latest().is_some_and(|layout| is_used(&layout) && serves(&layout))
    }

    /// Waits until the node is of no use any more and returns why; the cluster goes on without it. Of a node that was removed, most of those
    /// know who decide without it: as long as they cannot be reached, it waits.
    pub async fn ended(&self) -> NodeEnd {
        let of_no_use = race(self.inner.outdated(), self.inner.removed());
        match race(self.inner.failed(), of_no_use).await {
            Ended::First(error) => NodeEnd::Failed(error),
            Ended::Second(Ended::First(outdated)) => NodeEnd::Outdated(outdated),
            Ended::Second(Ended::Second(removed)) => removed,
        }
    }

    /// Has the cluster go on without this node, as far as that can be had soon, waits for what is under way to be durable, and
    /// closes the drives.
    pub async fn stop(self) {
        if let Some(member) = self.inner.member.get() {
            member.leave(LEAVE_PATIENCE).await;
        }
        self.inner.tasks.borrow_mut().drain(..).for_each(|task| task.abort());
        if let Some(unit) = self.inner.node.unit.get() {
            // A chain that has stopped has nothing left to write, and has said so.
            let _ = unit.chain().clone().close().await;
        }
    }
}

impl Inner {
    fn serve(self: &Rc<Self>, listener: Listener) {
        let known = self.node.member.set(Rc::downgrade(self));
        assert!(known.is_ok(), "a node is served once");
        self.tasks.borrow_mut().push(self.node.serve(listener));
    }

    /// Opens the unit of a node of `cluster`, and makes the node a member.
    async fn open(self: &Rc<Self>, cluster: ClusterId, is_formed: bool) -> Result<(), StartError> {
        let drives = self.options.unit_drives(&self.remembered, is_formed, self.shared.metadata.clone());
        let leases = Rc::clone(&self.node.leases);
        let (unit, answering) =
            open_unit(&self.env, &drives, self.options.id, cluster, is_formed, leases).await?;
        outdated::check(&self.keeper, self.options.id, &unit)?;
        if let Some(cache) = &self.shared.cache {
            unit.chain().use_cache(cache);
        }
        let (orders, working) = DriveOrders::start(
            &self.env,
            self.options.id,
            &unit,
            self.options.create_bytes,
            &self.remembered,
        );
        self.tasks.borrow_mut().extend([answering, working]);
        self.node.cluster.set(cluster);
        let units = [(self.options.id, Rc::clone(&unit))].into();
        let peers = Peers::new(&self.env, cluster);
        let relay = Relay::new(&self.env, units, peers, self.options.planted);
        let is_first = self.node.unit.set(unit).is_ok()
            && self.node.drives.set(orders).is_ok()
            && self.node.relay.set(relay).is_ok();
        assert!(is_first, "a node has one unit");
        let began_in = self.keeper.epoch().unwrap_or_default();
        let (node, keeper) = (Rc::clone(&self.node), Rc::clone(&self.keeper));
        let (member, tasks) = Member::start(&self.env, node, keeper, self.options.clone(), began_in);
        self.tasks.borrow_mut().extend(tasks);
        assert!(self.member.set(member).is_ok(), "a node is a member once");
        self.formed.ring();
        Ok(())
    }

    /// Whether it is a member of a cluster.
    pub(super) fn is_formed(&self) -> bool {
        self.member.get().is_some()
    }

    /// Somebody tells of a layout. For a node that belongs to no cluster it is the way into one.
    pub(super) fn learn(self: &Rc<Self>, route: ReplyRoute, learn: Learn) {
        if self.is_formed() {
            return self.keeper.learn(route, &learn);
        }
        let Ok(layout) = Layout::decode(&learn.record) else {
            return route.refuse(Refusal::Malformed { kind: Kind::Learn as u16 });
        };
        // A place in a cluster that is at work was another life's, which this directory knows nothing of: neither of entries, nor of what it
        // promised and accepted. In a layout that is older than the end of that life it may have had none yet.
        let me = self.options.id;
        let is_named = layout.stripes_of(me) > 0 || layout.acceptors().contains(&me);
        let is_member = layout.node(me).is_some();
        let is_founder = learn.invitation == Invitation::Founding && layout.epoch == Epoch(1);
        let is_joining = learn.invitation == Invitation::Joining && !is_named;
        if !is_member || !is_founder && !is_joining {
            return route.refuse(Refusal::NotServing { roles: Roles::UNIT });
        }
        // Its settings are others than when it was asked.
        if let Some(missing) = self.options.left_out(&layout) {
            return route.refuse(Refusal::NotServing { roles: missing });
        }
        if self.is_forming.replace(true) {
            return route.refuse(Refusal::Overloaded { pending: 1, limit: 1 });
        }
        let inner = Rc::clone(self);
        self.env.spawn(async move {
            let formed = inner.form(layout.cluster).await;
            inner.is_forming.set(false);
            match formed {
                Ok(()) => inner.keeper.learn(route, &learn),
                Err(error) => {
                    tracing::error!(node = inner.options.id.0, %error, "the node could not join its cluster");
                    route.refuse(Refusal::Failed);
                }
            }
        });
    }

    /// Waits until the unit's chain has stopped.
    async fn failed(&self) -> ChainError {
        let unit = self.formed.until(|| self.node.unit.get().cloned()).await;
        unit.stopped().await
    }

    /// Waits until there is a layout by which the unit should have sealed more than it has.
    async fn outdated(&self) -> Outdated {
        let unit = self.formed.until(|| self.node.unit.get().cloned()).await;
        let find = || outdated::check(&self.keeper, self.options.id, &unit).err();
        self.keeper.changed().until(find).await
    }

    /// Waits until there is a layout that does not list this node, and those know it who need it.
    async fn removed(&self) -> NodeEnd {
        let node = self.options.id;
        let is_removed = || self.keeper.latest().filter(|layout| layout.node(node).is_none());
        let layout = self.keeper.changed().until(is_removed).await;
        // Whoever decided a later one knew this one, and most of those who decide now may be gone by the time that they are told.
        let is_passed = || self.keeper.epoch().filter(|&known| known > layout.epoch).map(drop);
        race(removed::pass_on(&self.env, &layout), self.keeper.changed().until(is_passed)).await;
        NodeEnd::Removed { node, cluster: layout.cluster }
    }

    async fn form(self: &Rc<Self>, cluster: ClusterId) -> Result<(), StartError> {
        self.keeper.store(forming::encode(cluster)).await?;
        self.open(cluster, false).await
    }

    /// Has the cluster changed as an operator asks.
    pub(super) fn order(self: &Rc<Self>, route: ReplyRoute, asked: ChangeCluster) {
        match self.member.get() {
            Some(member) => order::take(member, route, asked),
            None => route.refuse(Refusal::NotServing { roles: Roles::LAYOUT }),
        }
    }

    /// Answers a beat, and learns from it.
    pub(super) fn beat(self: &Rc<Self>, route: &ReplyRoute, beat: &Beat) {
        match self.member.get() {
            Some(member) => route.send_in(member.epoch(), &member.beaten(beat, route.epoch())),
            None => route.refuse(Refusal::NotServing { roles: Roles::UNIT }),
        }
    }
}
