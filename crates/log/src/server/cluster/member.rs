//! A node's part in its cluster: it beats to the others, applies what was decided, and sees when something has to be.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::Duration;

use ithaca_env::net::NetError;
use ithaca_env::sync::Notify;
use ithaca_env::task::{TaskHandle, race};
use ithaca_env::{Env, Time};

use super::NodeOptions;
use super::peer::Peer;
use super::reconfigure::reconfigure;
use crate::client::CallError;
use crate::detector::Detector;
use crate::layout::{Change, Layout};
use crate::pos::{Epoch, NodeId};
use crate::server::layouts::LayoutKeeper;
use crate::server::node::Node;
use crate::wire::{Account, Beat, Beaten, GetLayout, LayoutRecord, NodeState};

/// How often a node looks at what it knows of the others.
const TICK: Duration = Duration::from_millis(25);
/// The wait before a beat that found the connection lost is sent again.
const LOST_WAIT: Duration = Duration::from_millis(10);
/// A node that starts waits so long for the others to be heard before it has the cluster go on without some of them.
const START_PATIENCE: Duration = Duration::from_secs(1);
/// The longest wait after an attempt to change the layout that came to nothing.
const RETRY_MAX: Duration = Duration::from_millis(100);

/// A node as a member of its cluster.
pub(super) struct Member {
    pub(super) env: Env,
    pub(super) node: Rc<Node>,
    pub(super) keeper: Rc<LayoutKeeper>,
    pub(super) options: NodeOptions,
    detector: RefCell<Detector>,
    peers: RefCell<BTreeMap<NodeId, Beating>>,
    started: Time,
    /// The epoch of the layout that the node began with: what it served in it in an earlier life is over.
    began_in: Epoch,
    applied: Cell<Epoch>,
    state: Cell<NodeState>,
    /// Rings when there is something to tell the others, or to look at.
    stirred: Rc<Notify>,
}

/// A peer and the task that beats to it.
struct Beating {
    peer: Rc<Peer>,
    task: TaskHandle<()>,
}

impl Drop for Beating {
    fn drop(&mut self) {
        self.task.abort();
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
        let member = Rc::new(Self {
            env: env.clone(),
            node,
            keeper,
            options,
            detector: RefCell::new(detector),
            peers: RefCell::default(),
            started: env.now(),
            began_in,
            applied: Cell::default(),
            state: Cell::new(NodeState::Serving),
            stirred: Rc::default(),
        });
        let tasks = vec![env.spawn(follow(Rc::downgrade(&member))), env.spawn(supervise(Rc::downgrade(&member)))];
        (member, tasks)
    }

    /// Answers another node's beat.
    pub(super) fn beaten(self: &Rc<Self>, beat: &Beat, epoch: Epoch) -> Beaten {
        if epoch > self.epoch() {
            self.catch_up(beat.0.node);
        }
        Beaten(self.account())
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
            layout.is_none_or(|layout| !layout.in_use().contains(&me)).then_some(())
        };
        // Nobody may be there to take over: then it stops all the same.
        let _ = self.env.timeout(patience, self.keeper.changed().until(is_out)).await;
    }

    /// Takes what became of a beat to `node`; whether the connection was lost.
    fn answered(self: &Rc<Self>, node: NodeId, answer: Result<(Beaten, Epoch), CallError>) -> bool {
        match answer {
            Ok((Beaten(account), epoch)) => {
                self.detector.borrow_mut().answered(self.env.now(), account);
                if epoch > self.epoch() {
                    self.catch_up(node);
                }
                false
            }
            Err(CallError::Lost(error)) => {
                if matches!(error, NetError::Refused { .. }) {
                    self.detector.borrow_mut().refused(node);
                }
                true
            }
            Err(_) => false,
        }
    }

    fn account(&self) -> Account {
        Account {
            node: self.options.id,
            state: match self.node.has_failed() {
                true => NodeState::Failed,
                false => self.state.get(),
            },
            write_us: self.node.write_us(),
            suspects: self.detector.borrow().suspects(),
        }
    }

    /// The acceptors of `layout` and where they listen.
    pub(super) fn acceptors(&self, layout: &Layout) -> Vec<(NodeId, SocketAddr)> {
        let addr = |node: NodeId| Some((node, layout.node(node)?.address.parse().ok()?));
        layout.acceptors().into_iter().filter_map(addr).collect()
    }

    /// A node of the cluster, this one among them.
    pub(super) fn peer(&self, node: NodeId) -> Option<Rc<Peer>> {
        self.peers.borrow().get(&node).map(|beating| Rc::clone(&beating.peer))
    }

    /// Does what a newly learned layout asks of this node.
    fn apply(self: &Rc<Self>, layout: &Rc<Layout>) {
        if layout.epoch <= self.applied.get() {
            return;
        }
        self.applied.set(layout.epoch);
        self.detector.borrow_mut().watch(self.env.now(), layout.nodes.iter().map(|node| node.id));
        self.meet(layout);
        // In the epoch that it began with, an earlier life of this node may have granted positions.
        let is_new = layout.epoch > self.began_in;
        self.node.go_on(layout, is_new, self.options.remembered_max, self.options.planted);
        tracing::info!(node = self.options.id.0, epoch = layout.epoch.0, tail = layout.tail().0, "layout");
    }

    /// Beats to every other node of `layout`, and to no one else.
    fn meet(self: &Rc<Self>, layout: &Layout) {
        let mut peers = self.peers.borrow_mut();
        let others = layout.nodes.iter().filter(|node| node.id != self.options.id);
        let mut met = BTreeMap::new();
        for other in others {
            let Ok(addr) = other.address.parse() else { continue };
            let beating = match peers.remove(&other.id) {
                Some(beating) if beating.peer.addr() == addr => beating,
                _ => {
                    let peer = Rc::new(Peer::new(&self.env, other.id, addr, layout.cluster));
                    let task = self.env.spawn(beat_to(Rc::downgrade(self), other.id, Rc::clone(&peer)));
                    Beating { peer, task }
                }
            };
            met.insert(other.id, beating);
        }
        *peers = met;
    }

    /// Asks a node that knows a newer layout for it.
    fn catch_up(self: &Rc<Self>, node: NodeId) {
        let Some(peer) = self.peer(node) else { return };
        let member = Rc::clone(self);
        self.env.spawn(async move {
            let deadline = member.env.now() + member.options.timing.silent_after;
            let asked = GetLayout { epoch: None };
            if let Ok((record, _)) = peer.call::<_, LayoutRecord>(Epoch(0), &asked, deadline).await
                && let Ok(layout) = Layout::decode(&record.record)
            {
                member.keeper.learn(layout);
            }
        });
    }

    /// What the cluster should change, as far as this node sees and it is its turn to say so.
    fn wanted(&self, layout: &Layout) -> Option<Change> {
        let (now, me) = (self.env.now(), self.options.id);
        let (detector, timing) = (self.detector.borrow(), &self.options.timing);
        let in_use = layout.in_use();
        let lost = detector.lost(now, &in_use);
        if !lost.is_empty() {
            return Some(Change { lost, ..Change::default() });
        }
        let steady = detector.steady_since()?;
        if self.account().state != NodeState::Serving {
            return None;
        }
        if !in_use.contains(&me) {
            let is_back = now.since(steady) >= timing.return_after;
            return is_back.then(|| Change { joined: vec![me], ..Change::default() });
        }
        // Its unit serves no epoch of an earlier life: it needs a new one.
        let suspects = detector.suspects();
        let all_here = !suspects.iter().any(|node| in_use.contains(node));
        let is_time = now.since(self.started) >= START_PATIENCE || (all_here && detector.has_heard_all());
        (layout.epoch <= self.began_in && is_time).then(Change::default)
    }
}

/// Applies each layout as it is learned.
async fn follow(member: Weak<Member>) {
    loop {
        let Some(strong) = member.upgrade() else { return };
        let keeper = Rc::clone(&strong.keeper);
        let ticket = keeper.changed().ticket();
        if let Some(layout) = keeper.latest() {
            strong.apply(&layout);
        }
        drop(strong);
        keeper.changed().after(ticket).await;
    }
}

/// Beats to one node for as long as the member lives.
async fn beat_to(member: Weak<Member>, node: NodeId, peer: Rc<Peer>) {
    loop {
        let Some(strong) = member.upgrade() else { return };
        let (env, timing, stirred) = (strong.env.clone(), strong.options.timing, Rc::clone(&strong.stirred));
        let (began, ticket) = (env.now(), stirred.ticket());
        let (epoch, beat) = (strong.epoch(), Beat(strong.account()));
        drop(strong);
        let answer = peer.call::<_, Beaten>(epoch, &beat, began + timing.silent_after).await;
        let Some(strong) = member.upgrade() else { return };
        let is_lost = strong.answered(node, answer);
        drop(strong);
        // Never without a pause: a node that is not there is not called without end.
        env.sleep(LOST_WAIT).await;
        if !is_lost {
            race(env.sleep_until(began + timing.beat), stirred.after(ticket)).await;
        }
    }
}

/// Looks at the cluster from time to time and proposes what it needs.
async fn supervise(member: Weak<Member>) {
    let mut told: Vec<NodeId> = Vec::new();
    loop {
        let Some(strong) = member.upgrade() else { return };
        let env = strong.env.clone();
        let now = env.now();
        strong.detector.borrow_mut().tick(now);
        let suspects = strong.detector.borrow().suspects();
        if suspects != told {
            told = suspects;
            strong.stirred.ring();
        }
        if let Some(layout) = strong.keeper.latest()
            && let Some(change) = strong.wanted(&layout)
        {
            match reconfigure(&strong, &layout, &change).await {
                Ok(()) => strong.detector.borrow_mut().taken_out(env.now(), &change.lost),
                Err(why) => {
                    tracing::info!(node = strong.options.id.0, epoch = layout.epoch.0, %why, "no new layout");
                    let wait = env.random_u64() % RETRY_MAX.as_nanos() as u64;
                    env.sleep(Duration::from_nanos(wait)).await;
                }
            }
        }
        drop(strong);
        env.sleep(TICK).await;
    }
}
