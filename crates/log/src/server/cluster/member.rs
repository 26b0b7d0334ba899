//! A node's part in its cluster: it beats to the others, learns what was decided and does it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::net::NetError;
use ithaca_env::sync::Notify;
use ithaca_env::task::{TaskHandle, gather, race};
use ithaca_env::{Env, Time};

use super::NodeOptions;
use super::order::Order;
use super::rebuild::{self, RebuildError};
use super::repair;
use super::room::{self, Room};
use super::space;
use super::supervise;
use crate::client::{CallError, Client, ClientError, ClientOptions};
use crate::detector::Detector;
use crate::layout::{Copy, Layout, NodeState as Standing};
use crate::limits;
use crate::planted::PlantedBug;
use crate::pos::{Addr, Epoch, LogPos, NodeId};
use crate::server::decide::learn;
use crate::server::layouts::LayoutKeeper;
use crate::server::node::Node;
use crate::server::outdated;
use crate::server::peers::{Peer, Peers};
use crate::server::unit_shell::{Copied, UnitShell};
use crate::wire::{Account, Beat, Beaten, GetLayout, LayoutRecord, Lease, Leased, NodeState, Refusal};

/// How often a lease is asked for: one question may be lost, and the lease goes on.
const LEASE_EVERY: Duration = Duration::from_millis(limits::LEASE_MS / 3);
/// The wait before a beat that found the connection lost is sent again.
const LOST_WAIT: Duration = Duration::from_millis(10);
/// How long the others may take to be told of a layout.
pub(super) const TELL_PATIENCE: Duration = Duration::from_millis(500);
/// How long what a node does as a client may take.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a copy waits, at the most, to be listed together with others.
const COPIES_GATHERED: Duration = Duration::from_secs(2);
/// The wait before a range that could not be copied is tried again, at first; twice as long each time.
const REBUILD_RETRY: Duration = Duration::from_millis(200);
/// The longest, and how often a node looks whether there is something to copy, if no new layout makes it look.
const REBUILD_RETRY_MAX: Duration = Duration::from_secs(10);

/// A node as a member of its cluster.
pub(super) struct Member {
    pub(super) env: Env,
    pub(super) node: Rc<Node>,
    pub(super) keeper: Rc<LayoutKeeper>,
    pub(super) options: NodeOptions,
    pub(super) detector: RefCell<Detector>,
    peers: Peers,
    beating: RefCell<BTreeMap<NodeId, Beating>>,
    /// An epoch that is over here although no later layout is known, and since when.
    pub(super) over_since: Cell<Option<(Epoch, Time)>>,
    /// Whether the others do not reach it, which it has told.
    pub(super) is_unheard: Cell<bool>,
    /// Whether it stays out since the layout has too many ranges, which it has told.
    pub(super) is_short_of_ranges: Cell<bool>,
    /// The epoch of the layout that the node began with: what it served in it in an earlier life is over.
    pub(super) began_in: Epoch,
    applied: Cell<Epoch>,
    /// The epoch in which it has done last what a loss of nodes asks of it.
    loss_taken: Cell<Epoch>,
    state: Cell<NodeState>,
    /// Whether its unit has room.
    pub(super) room: RefCell<Room>,
    /// Stripes of closed ranges that were copied and are not listed yet.
    pub(super) completed: RefCell<Vec<Copy>>,
    /// Whether more of them are being copied, and since when the first of `completed` is.
    is_copying: Cell<bool>,
    completed_since: Cell<Time>,
    /// How far each copy has come, so that another epoch need not begin anew.
    progress: RefCell<BTreeMap<(LogPos, usize), Addr>>,
    /// For what it does as any client would; made when it is needed.
    client: RefCell<Option<Client>>,
    /// Everything below is trimmed.
    pub(super) trimmed: Cell<LogPos>,
    /// What operators have asked for and was not answered yet.
    pub(super) orders: RefCell<VecDeque<Order>>,
    /// Rings when there is something to tell the others, or to look at.
    pub(super) stirred: Rc<Notify>,
    /// Rings when another node has told something of itself or of the others that it had not told before.
    pub(super) news: Rc<Notify>,
}

/// A peer and the task that beats to it; to itself a node does not beat.
struct Beating {
    peer: Rc<Peer>,
    task: Option<TaskHandle<()>>,
}

impl Drop for Beating {
    fn drop(&mut self) {
        self.task.iter().for_each(TaskHandle::abort);
    }
}

impl Member {
    /// A member of the cluster whose layout `keeper` has. The tasks that come with it beat, learn and propose; abort them
    /// to stop the member where it stands.
    pub(super) fn start(
        env: &Env,
        node: Rc<Node>,
        keeper: Rc<LayoutKeeper>,
        options: NodeOptions,
        began_in: Epoch,
    ) -> (Rc<Self>, Vec<TaskHandle<()>>) {
        let detector = Detector::new(options.id, options.timing, options.planted);
        let peers = Peers::new(env, node.cluster.get());
        let member = Rc::new(Self {
            env: env.clone(),
            node,
            keeper,
            options,
            detector: RefCell::new(detector),
            peers,
            beating: RefCell::default(),
            over_since: Cell::default(),
            is_unheard: Cell::default(),
            is_short_of_ranges: Cell::default(),
            began_in,
            applied: Cell::default(),
            loss_taken: Cell::default(),
            state: Cell::new(NodeState::Serving),
            room: RefCell::default(),
            completed: RefCell::default(),
            is_copying: Cell::default(),
            completed_since: Cell::new(env.now()),
            progress: RefCell::default(),
            client: RefCell::default(),
            trimmed: Cell::default(),
            orders: RefCell::default(),
            stirred: Rc::default(),
            news: Rc::default(),
        });
        let weak = || Rc::downgrade(&member);
        let tasks = vec![
            env.spawn(follow(weak())),
            env.spawn(hold_lease(weak())),
            env.spawn(catch_up_ranges(weak())),
            env.spawn(find_trimmed(weak())),
            env.spawn(space::give_up_unneeded(weak())),
            env.spawn(repair::repair_lost(weak())),
            env.spawn(supervise::supervise(weak())),
        ];
        (member, tasks)
    }

    /// Answers another node's beat.
    pub(super) fn beaten(self: &Rc<Self>, beat: &Beat, epoch: Epoch) -> Beaten {
        if epoch > self.epoch() {
            self.catch_up(beat.0.node);
        }
        self.take_marks(epoch, &beat.0);
        let Account { node, state, write_us, ref suspects, .. } = beat.0;
        let account = Account { node, state, write_us, suspects: suspects.clone(), marks: Vec::new() };
        if self.detector.borrow_mut().told(account) {
            self.news.ring();
        }
        Beaten(self.told())
    }

    /// The epoch of the newest layout that it knows.
    pub(super) fn epoch(&self) -> Epoch {
        self.keeper.epoch().unwrap_or_default()
    }

    /// From now on it tells the others that it is about to stop, and waits until the cluster has gone on without it, or `patience` is
    /// over.
    pub(super) async fn leave(&self, patience: Duration) {
        self.state.set(NodeState::Leaving);
        self.stirred.ring();
        let me = self.options.id;
        let is_out = || {
            let layout = self.keeper.latest();
            layout.is_none_or(|layout| !layout.in_use().any(|node| node == me)).then_some(())
        };
        // Nobody may be there to take over: then it stops all the same.
        let _ = self.env.timeout(patience, self.keeper.changed().until(is_out)).await;
    }

    /// Takes what became of a beat to `node`; whether the connection was lost.
    fn answered(self: &Rc<Self>, node: NodeId, answer: Result<(Beaten, Bytes, Epoch), CallError>) -> bool {
        match answer {
            Ok((Beaten(account), _, epoch)) => {
                self.take_marks(epoch, &account);
                if self.detector.borrow_mut().answered(self.env.now(), account) {
                    self.news.ring();
                }
                if epoch > self.epoch() {
                    self.catch_up(node);
                }
                false
            }
            Err(CallError::Lost(error)) => {
                if matches!(error, NetError::Refused { .. }) && self.detector.borrow_mut().refused(node) {
                    self.news.ring();
                }
                true
            }
            Err(_) => false,
        }
    }

    /// What it tells another node: its account, and how far stripes are complete whose last replica it is.
    fn told(&self) -> Account {
        let marks = self.node.unit.get().map(|unit| unit.marks(self.epoch()));
        Account { marks: marks.unwrap_or_default(), ..self.account() }
    }

    /// Another node, which knows the layout of `epoch`, says how far stripes are complete.
    fn take_marks(&self, epoch: Epoch, account: &Account) {
        if let Some(unit) = self.node.unit.get()
            && !account.marks.is_empty()
        {
            unit.mark(account.node, epoch, account.marks.clone());
        }
    }

    /// What it says of itself.
    pub(super) fn account(&self) -> Account {
        Account {
            node: self.options.id,
            state: match self.state.get() {
                _ if self.node.has_failed() => NodeState::Failed,
                NodeState::Serving if self.room.borrow().is_full() => NodeState::Full,
                state => state,
            },
            write_us: self.node.write_us(),
            suspects: self.detector.borrow().suspects(),
            marks: Vec::new(),
        }
    }

    /// A node of `layout`, this one among them.
    pub(super) fn peer(&self, layout: &Layout, node: NodeId) -> Option<Rc<Peer>> {
        self.peers.member(layout, node)
    }

    /// The acceptors of `layout`.
    pub(super) fn acceptors(&self, layout: &Layout) -> Vec<Rc<Peer>> {
        self.peers.acceptors(layout)
    }

    /// Takes a layout that was decided, and tells every other node of it, those of the one `before` among them: who is no member
    /// any more has to know.
    pub(super) fn spread(self: &Rc<Self>, before: &Layout, layout: Layout) {
        let is_gone = |id: NodeId| layout.node(id).is_none();
        let gone = before.nodes.iter().filter(|node| is_gone(node.id));
        let gone = gone.filter_map(|node| self.peer(before, node.id));
        let others = layout.nodes.iter().filter_map(|node| self.peer(&layout, node.id));
        let told: Vec<_> = others.chain(gone).filter(|peer| peer.node() != self.options.id).collect();
        self.keeper.take(layout.clone());
        let deadline = self.env.now() + TELL_PATIENCE;
        // Who is not reached now learns it from a beat.
        self.env.spawn(async move { learn(&told, &layout, deadline).await });
    }

    /// How far a copy has come.
    pub(super) fn copied_up_to(&self, copy: &Copy) -> Option<Addr> {
        self.progress.borrow().get(&(copy.start, copy.stripe)).copied()
    }

    /// A copy has everything below `addr`, on stable storage.
    pub(super) fn has_copied(&self, copy: &Copy, addr: Addr) {
        self.progress.borrow_mut().insert((copy.start, copy.stripe), addr);
    }

    /// Its unit.
    pub(super) fn unit(&self) -> Result<Rc<UnitShell>, RebuildError> {
        self.node.unit.get().cloned().ok_or(RebuildError::Unit(Refusal::Failed))
    }

    /// A client of the cluster that this node is of.
    pub(super) async fn client(&self) -> Result<Client, ClientError> {
        if let Some(client) = self.client.borrow().clone() {
            return Ok(client);
        }
        let endpoints = self.beating.borrow().values().map(|beating| beating.peer.addr()).collect();
        let options = ClientOptions {
            endpoints,
            timeout: CLIENT_TIMEOUT,
            outlives_loss: true,
            is_of_node: true,
            ..ClientOptions::default()
        };
        let client = Client::connect(&self.env, options).await?;
        self.client.replace(Some(client.clone()));
        Ok(client)
    }

    /// If the cluster has gone on without nodes, and this is not done yet: forgets views, and trims what nobody holds any more by `layout` or one
    /// before it. That is before its unit serves in that epoch, so that nobody fills what was lost, one position after the other. An earlier life
    /// may not have come to it; in the epoch that the node began with its unit serves nothing.
    async fn take_loss(&self, layout: &Layout) {
        if layout.epoch <= self.began_in || !layout.epoch.is_after_loss_since(self.loss_taken.get()) {
            return;
        }
        self.loss_taken.set(layout.epoch);
        self.node.views.forget();
        let trimmed = self.keeper.lost_at(self.options.id);
        let (false, Ok(unit)) = (trimmed.is_empty(), self.unit()) else { return };
        let copied = Copied { trimmed, ..Copied::default() };
        if let Err(why) = unit.restore(layout.epoch, copied).await {
            tracing::warn!(node = self.options.id.0, %why, "what is lost for good is not trimmed");
        }
    }

    /// Does what a newly learned layout asks of this node.
    fn apply(self: &Rc<Self>, layout: &Rc<Layout>) {
        if layout.epoch <= self.applied.get() || self.is_outdated() {
            return;
        }
        self.applied.set(layout.epoch);
        let (now, me) = (self.env.now(), self.options.id);
        // In the epoch that it began with, it was another life of it.
        let is_used = layout.epoch > self.began_in && layout.in_use().any(|node| node == me);
        let mut detector = self.detector.borrow_mut();
        detector.watch(now, layout.nodes.iter().map(|node| node.id));
        detector.note_used(now, is_used, self.node.write_us());
        drop(detector);
        self.meet(layout);
        self.node.leases.renew(layout);
        // In the epoch that it began with, an earlier life of this node may have granted positions.
        let is_new = layout.epoch > self.began_in;
        self.node.go_on(layout, is_new, self.options.grants, self.options.planted);
        room::guard(self, layout);
        tracing::info!(node = self.options.id.0, epoch = layout.epoch.0, tail = layout.tail().0, "layout");
    }

    /// Whether the data of this node is an older copy: it takes no part in any newer layout, and is about to end.
    fn is_outdated(&self) -> bool {
        let unit = self.node.unit.get();
        unit.is_some_and(|unit| outdated::check(&self.keeper, self.options.id, unit).is_err())
    }

    /// Beats to every other node of `layout`, and to no one else.
    fn meet(self: &Rc<Self>, layout: &Layout) {
        let mut beating = self.beating.borrow_mut();
        let mut met = BTreeMap::new();
        for other in &layout.nodes {
            let Some(peer) = self.peer(layout, other.id) else { continue };
            let beating = match beating.remove(&other.id) {
                Some(beating) if Rc::ptr_eq(&beating.peer, &peer) => beating,
                _ => {
                    let beats = || self.env.spawn(beat_to(Rc::downgrade(self), Rc::clone(&peer)));
                    let task = (other.id != self.options.id).then(beats);
                    Beating { peer, task }
                }
            };
            met.insert(other.id, beating);
        }
        *beating = met;
    }

    /// Asks a node that knows a newer layout for it, and for what it remembers of those between: this node may have a part in one of them
    /// that it has forgotten, and none in the newest.
    fn catch_up(self: &Rc<Self>, node: NodeId) {
        let known = self.keeper.latest();
        let Some(peer) = known.and_then(|layout| self.peer(&layout, node)) else { return };
        let member = Rc::clone(self);
        self.env.spawn(async move {
            let deadline = member.env.now() + member.options.timing.silent_after;
            let ask = async |epoch: Option<Epoch>| {
                let asked = GetLayout { epoch };
                let told = peer.call::<_, LayoutRecord>(Epoch(0), &asked, deadline).await;
                told.ok().and_then(|(record, _, _)| Layout::decode(&record.record).ok())
            };
            let Some(newest) = ask(None).await else { return };
            let remembered = newest.epoch.0.saturating_sub(limits::LAYOUT_HISTORY_MAX_COUNT as u64);
            let missed = member.epoch().0.max(remembered) + 1..newest.epoch.0;
            let missed = missed.map(|epoch| ask(Some(Epoch(epoch)))).collect();
            let missed = gather(missed, |_| false).await.into_iter().flatten().flatten();
            missed.chain([newest]).for_each(|layout| member.keeper.take(layout));
        });
    }

    /// A stripe is copied, and can be listed.
    fn note_completed(&self, copied: Copy) {
        let mut completed = self.completed.borrow_mut();
        if completed.is_empty() {
            self.completed_since.set(self.env.now());
        }
        completed.push(copied);
    }

    /// Whether what is copied waits to be listed together with what will be soon.
    pub(super) fn more_come(&self, now: Time) -> bool {
        self.is_copying.get() && now.since(self.completed_since.get()) < COPIES_GATHERED
    }

    /// Whether the planted fault shows: somebody leaves.
    fn is_let_go_early(&self, layout: &Layout) -> bool {
        self.options.planted.is(PlantedBug::LetGoBeforeCopied)
            && layout.nodes.iter().any(|node| node.state == Standing::Leaving)
    }
}

/// Applies each layout as it is learned.
async fn follow(member: Weak<Member>) {
    loop {
        let Some(strong) = member.upgrade() else { return };
        let keeper = Rc::clone(&strong.keeper);
        let ticket = keeper.changed().ticket();
        if let Some(layout) = keeper.latest() {
            strong.take_loss(&layout).await;
            strong.apply(&layout);
        }
        drop(strong);
        keeper.changed().after(ticket).await;
    }
}

/// Asks the acceptors for a lease on the newest epoch, again and again.
async fn hold_lease(member: Weak<Member>) {
    loop {
        let Some(strong) = member.upgrade() else { return };
        let (env, keeper) = (strong.env.clone(), Rc::clone(&strong.keeper));
        let ticket = keeper.changed().ticket();
        if let Some(layout) = keeper.latest() {
            let epoch = layout.epoch;
            for acceptor in strong.acceptors(&layout) {
                let (leases, asked_at) = (Rc::clone(&strong.node.leases), env.now());
                let lease = Lease { epoch, node: strong.options.id };
                env.spawn(async move {
                    let deadline = asked_at + Duration::from_millis(limits::LEASE_MS);
                    let answer = acceptor.call::<_, Leased>(epoch, &lease, deadline).await;
                    if let Ok((Leased { granted: true }, _, _)) = answer {
                        leases.granted(epoch, acceptor.node(), asked_at);
                    }
                });
            }
        }
        drop(strong);
        race(env.sleep(LEASE_EVERY), keeper.changed().after(ticket)).await;
    }
}

/// Beats to one node for as long as the member lives.
async fn beat_to(member: Weak<Member>, peer: Rc<Peer>) {
    loop {
        let Some(strong) = member.upgrade() else { return };
        let (env, timing, stirred) = (strong.env.clone(), strong.options.timing, Rc::clone(&strong.stirred));
        let (began, ticket) = (env.now(), stirred.ticket());
        let (epoch, beat) = (strong.epoch(), Beat(strong.told()));
        drop(strong);
        let answer = peer.call::<_, Beaten>(epoch, &beat, began + timing.silent_after).await;
        let Some(strong) = member.upgrade() else { return };
        let is_lost = strong.answered(peer.node(), answer);
        drop(strong);
        // Never without a pause: a node that is not there is not called without end.
        env.sleep(LOST_WAIT).await;
        if !is_lost {
            race(env.sleep_until(began + timing.beat), stirred.after(ticket)).await;
        }
    }
}

/// Copies what this node should have of closed ranges and lacks, whenever a layout says that there is something.
async fn catch_up_ranges(member: Weak<Member>) {
    let (mut tried_in, mut retry) = (Epoch(0), REBUILD_RETRY);
    let mut out_since = BTreeMap::new();
    loop {
        let Some(strong) = member.upgrade() else { return };
        let (env, keeper) = (strong.env.clone(), Rc::clone(&strong.keeper));
        let ticket = keeper.changed().ticket();
        let (mut has_failed, mut waits) = (false, None);
        if let Some(layout) = keeper.latest().filter(|layout| layout.epoch > strong.began_in) {
            let me = strong.options.id;
            if layout.epoch > tried_in {
                (tried_in, retry) = (layout.epoch, REBUILD_RETRY);
            }
            let begins = note_out(&mut out_since, &layout, env.now());
            let begins = begins.map(|last| last + strong.options.rebuild_after).filter(|&at| env.now() < at);
            strong.is_copying.set(true);
            for missing in layout.missing().into_iter().filter(|missing| missing.node == me) {
                if strong.completed.borrow().contains(&missing) {
                    continue;
                }
                if strong.is_let_go_early(&layout) {
                    strong.note_completed(missing);
                    continue;
                }
                if begins.is_some() && !rebuild::is_begun(&strong, &layout, &missing) {
                    waits = begins;
                    continue;
                }
                match rebuild::make(&strong, &layout, &missing).await {
                    Ok(()) => strong.note_completed(missing),
                    Err(why) => {
                        tracing::info!(node = me.0, epoch = layout.epoch.0, %why, "a range is not copied yet");
                        has_failed = true;
                    }
                }
            }
            strong.is_copying.set(false);
        }
        drop(strong);
        let wait = if has_failed { retry } else { REBUILD_RETRY_MAX };
        // What is refused for good would be read from the replica again and again.
        retry = if has_failed { (2 * retry).min(REBUILD_RETRY_MAX) } else { REBUILD_RETRY };
        let next = env.now() + wait;
        race(keeper.changed().after(ticket), env.sleep_until(waits.map_or(next, |at| next.min(at)))).await;
    }
}

/// Notes since when, at the latest, each member of `layout` is out that may come back; when the last of them went out, if any is.
fn note_out(since: &mut BTreeMap<NodeId, Time>, layout: &Layout, now: Time) -> Option<Time> {
    let is_out = |node: NodeId| layout.node(node).is_some_and(|listed| listed.state == Standing::Out);
    since.retain(|&node, _| is_out(node));
    for node in layout.nodes.iter().map(|listed| listed.id).filter(|&node| is_out(node)) {
        since.entry(node).or_insert(now);
    }
    since.values().copied().max()
}

/// Finds out up to where the log is trimmed: ranges that lie wholly below are left out of the next layout.
async fn find_trimmed(member: Weak<Member>) {
    loop {
        let Some(strong) = member.upgrade() else { return };
        let (env, every) = (strong.env.clone(), strong.options.find_trimmed_every);
        let layout = strong.keeper.latest();
        // One node is enough, and it is asked for nothing if there is nothing to leave out.
        let is_mine = |layout: &Rc<Layout>| layout.sequencer == strong.options.id && layout.ranges.len() > 1;
        if layout.is_some_and(|layout| is_mine(&layout))
            && let Ok(client) = strong.client().await
            && let Ok(bounds) = client.check().await
        {
            strong.trimmed.set(strong.trimmed.get().max(bounds.first));
        }
        drop(strong);
        env.sleep(every).await;
    }
}
