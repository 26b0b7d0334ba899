//! Learning the layout, and noticing that a call will not be answered.
//!
//! Every node knows the latest layout that it was told of, so all that the client has heard of are asked at the same time and
//! the first answer counts, once it is known which cluster it is; a newer one that comes later takes its place. A call that has
//! stood for a while makes the client ask all of them for a newer one, which each tells as soon as it has it: if the cluster goes on
//! without the node that was called, the call ends with [`Superseded`](CallError::Superseded) and is tried in the new layout, long before
//! its deadline.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::Duration;

use ithaca_env::Time;
use ithaca_env::net::NetError;
use ithaca_env::task::TaskHandle;

use super::connection::{CallError, Connection, Identity};
use super::error::{ClientError, Phase};
use super::view::{View, connect_error};
use super::which::Choice;
use super::{Inner, Lookup};
use crate::layout::Layout;
use crate::limits;
use crate::pos::{ClientId, ClusterId, Epoch, NodeId, RequestId};
use crate::wire::{GetLayout, LayoutRecord, Refusal, WatchLayout};

/// How long a node may take to tell its layout before it is asked again.
const PATIENCE: Duration = Duration::from_millis(500);
/// The wait before one is asked again that has not told it.
const RETRY_WAIT: Duration = Duration::from_millis(5);
/// Where no node that is known belongs to a cluster they may be about to: after so long the call ends with what they say.
const FORMING_PATIENCE: Duration = Duration::from_millis(500);
/// A call that stands for so long makes the client wait for a newer layout.
const STALL: Duration = Duration::from_millis(100);
/// For so long it is waited for at each node, before the node is asked again.
const WATCH: Duration = Duration::from_millis(500);
/// Calls of an old epoch have so long to be answered once a newer layout is known; those that have stood for a [`STALL`] have had it.
const GRACE: Duration = Duration::from_millis(30);

const _: () = assert!(WATCH.as_millis() <= limits::LAYOUT_WAIT_MAX_MS as u128);

/// What is known of the cluster besides its layout.
#[derive(Default)]
pub(super) struct Learning {
    /// Where the layout is asked for, whoever the nodes are.
    endpoints: Vec<SocketAddr>,
    /// How many more are being looked up.
    lookups: usize,
    /// Which cluster it is. Nothing is taken from another one.
    choice: Choice,
    /// Nodes of the newest layout that was seen, whether it is in use or forgotten.
    nodes: Vec<(NodeId, SocketAddr)>,
    /// The epoch of that layout.
    epoch: Epoch,
    /// The epoch of one that goes on without nodes that are gone for good, if there was one since: nothing is done any more.
    loss: Option<Epoch>,
    /// Who is being asked, or has failed to answer just now.
    asked: Vec<SocketAddr>,
    /// Who is being asked for a newer one.
    watched: BTreeSet<SocketAddr>,
    /// What went wrong last.
    failed: Option<ClientError>,
    /// Who has said last that it belongs to no cluster.
    unformed: BTreeSet<SocketAddr>,
    /// Where nobody has listened the last time.
    absent: BTreeSet<SocketAddr>,
}

impl Learning {
    /// Nothing, but for the endpoints.
    pub(super) fn of(endpoints: Vec<SocketAddr>) -> Self {
        Self { endpoints, ..Self::default() }
    }

    /// The node at `addr` was asked for its layout, which has failed so, or not at all.
    fn note(&mut self, addr: SocketAddr, error: Option<&ClientError>) {
        self.unformed.remove(&addr);
        self.absent.remove(&addr);
        match error {
            Some(ClientError::NoCluster { .. }) => _ = self.unformed.insert(addr),
            Some(ClientError::Node { error: CallError::Lost(NetError::Refused { .. }), .. }) => {
                self.absent.insert(addr);
            }
            _ => {}
        }
        self.failed = error.cloned();
    }

    /// Which cluster it is, if that can be said by now, or has to be because the time for it `is_over`.
    fn choose(&mut self, is_over: bool) -> Option<Result<ClusterId, ClientError>> {
        self.choice.make(&self.endpoints, self.lookups, is_over)
    }

    /// Whether the newest layout that was seen has a node beside the one at `addr`.
    pub(super) fn has_beside(&self, addr: SocketAddr) -> bool {
        self.nodes.iter().any(|&(_, at)| at != addr)
    }
}

impl Inner {
    /// Takes what `lookups` find for endpoints, each as soon as it has ended; returns what they find.
    pub(super) fn await_lookups(self: &Rc<Self>, lookups: Vec<Lookup>) -> Vec<TaskHandle<Vec<SocketAddr>>> {
        self.learning.borrow_mut().lookups += lookups.len();
        let wait = async |weak: Weak<Self>, lookup: Lookup| {
            let found = lookup.await;
            if let Some(inner) = weak.upgrade() {
                let mut learning = inner.learning.borrow_mut();
                learning.endpoints.extend(&found);
                learning.lookups -= 1;
                drop(learning);
                // Whoever waits for a layout asks these as well.
                inner.settled.ring();
            }
            found
        };
        lookups.into_iter().map(|lookup| self.env.spawn(wait(Rc::downgrade(self), lookup))).collect()
    }

    /// The endpoints that are known by now.
    pub(super) fn endpoints(&self) -> Vec<SocketAddr> {
        self.learning.borrow().endpoints.clone()
    }

    /// Whether there is an endpoint, or may yet be one.
    fn may_have_endpoint(&self) -> bool {
        let learning = self.learning.borrow();
        learning.lookups > 0 || !learning.endpoints.is_empty()
    }

    /// The view, learned anew if there is none, by `deadline`.
    ///
    /// Errors: `NoEndpoint` if lookups have found none; `TwoClusters`; `NoCluster` if that is what every node says for a while; those of a call that
    /// was not answered.
    pub(super) async fn view_by(self: &Rc<Self>, deadline: Time) -> Result<View, ClientError> {
        let forming_until = self.env.now() + FORMING_PATIENCE;
        loop {
            let ticket = self.settled.ticket();
            if let Some(view) = self.view() {
                return Ok(view);
            }
            self.check_one_cluster()?;
            self.check_loss()?;
            if self.env.now() >= forming_until
                && let Some(addr) = self.unformed(false)
            {
                return Err(ClientError::NoCluster { addr });
            }
            if !self.may_have_endpoint() {
                return Err(ClientError::NoEndpoint);
            }
            self.learn();
            if self.env.timeout_at(deadline, self.settled.after(ticket)).await.is_err() {
                if let Some(addr) = self.unformed(true) {
                    return Err(ClientError::NoCluster { addr });
                }
                let last = self.learning.borrow().failed.clone();
                self.pause(Phase::Layout, deadline, last).await?;
            }
        }
    }

    /// Errors: `TwoClusters` if endpoints were found to be of two clusters when the client began.
    pub(super) fn check_one_cluster(&self) -> Result<(), ClientError> {
        self.learning.borrow().choice.made().unwrap_or(Ok(ClusterId::UNKNOWN)).map(drop)
    }

    /// A node that belongs to no cluster, if that is what every node says that the client has heard of; with `beside_absent` those do not
    /// count at whose address nobody listens: it may be another of the same node, or one that is being started; nor those that are still being
    /// looked up.
    fn unformed(&self, beside_absent: bool) -> Option<SocketAddr> {
        let learning = self.learning.borrow();
        let is_absent = |addr| beside_absent && learning.absent.contains(addr);
        let is_out = |addr| learning.unformed.contains(addr) || is_absent(addr);
        let endpoints = &learning.endpoints;
        let are_all = beside_absent || learning.lookups == 0;
        let unformed = endpoints.iter().find(|addr| learning.unformed.contains(addr)).copied();
        unformed.filter(|_| are_all && learning.nodes.is_empty() && endpoints.iter().all(is_out))
    }

    /// Whom it says it is when it connects: nodes greet without a number.
    pub(super) fn greets_as(&self) -> ClientId {
        if self.options.is_of_node { ClientId(0) } else { self.id }
    }

    /// The epoch of the newest layout that was seen.
    pub(super) fn known_epoch(&self) -> Epoch {
        self.learning.borrow().epoch
    }

    /// Asks every node that the client has heard of for its layout, but those that are being asked already, or have failed just now. Each
    /// answer rings `settled`, and each failure when the node may be asked again.
    pub(super) fn learn(self: &Rc<Self>) {
        for addr in self.known_addrs() {
            if self.learning.borrow().asked.contains(&addr) {
                continue;
            }
            self.learning.borrow_mut().asked.push(addr);
            self.spawn_scoped(|weak| async move {
                let Some(inner) = weak.upgrade() else { return };
                let learned = inner.learn_from(addr, inner.env.now() + PATIENCE).await;
                inner.learning.borrow_mut().note(addr, learned.as_ref().err());
                let env = inner.env.clone();
                drop(inner);
                if learned.is_err() {
                    env.sleep(RETRY_WAIT).await;
                }
                let Some(inner) = weak.upgrade() else { return };
                inner.learning.borrow_mut().asked.retain(|&asked| asked != addr);
                inner.settled.ring();
            });
        }
    }

    /// Has every node that the client has heard of tell a newer layout as soon as it knows one, within [`WATCH`]; but those that are to do
    /// so already.
    pub(super) fn watch_layout(self: &Rc<Self>) {
        for addr in self.known_addrs() {
            if !self.learning.borrow_mut().watched.insert(addr) {
                continue;
            }
            self.spawn_scoped(|weak| async move {
                let Some(inner) = weak.upgrade() else { return };
                let (env, known) = (inner.env.clone(), inner.known_epoch());
                let asked = WatchLayout { known, wait_ms: WATCH.as_millis() as u16 };
                let deadline = env.now() + WATCH + PATIENCE;
                // The client may go meanwhile.
                let told = match inner.connection_to(addr, deadline).await {
                    Ok(connection) => {
                        drop(inner);
                        let call =
                            connection.call_standing::<_, LayoutRecord>(&env, Epoch(0), &asked, deadline);
                        call.await.ok().map(|(record, _, _)| (record, connection))
                    }
                    Err(_) => None,
                };
                let Some(inner) = weak.upgrade() else { return };
                inner.learning.borrow_mut().watched.remove(&addr);
                if let Some((record, connection)) = told
                    && let Ok(view) = inner.view_in(addr, &record)
                    && inner.take(addr, view, connection).is_ok()
                {
                    inner.settled.ring();
                }
            });
        }
    }

    /// Every address at which the client has heard of a node.
    fn known_addrs(&self) -> Vec<SocketAddr> {
        let learning = self.learning.borrow();
        let nodes = learning.nodes.iter().map(|&(_, addr)| addr);
        learning.endpoints.iter().copied().chain(nodes).collect()
    }

    /// Asks one node for the newest layout and takes it if it is newer.
    pub(super) async fn learn_from(
        self: &Rc<Self>,
        addr: SocketAddr,
        deadline: Time,
    ) -> Result<View, ClientError> {
        let told = self.ask_layout(addr, deadline).await;
        self.learning.borrow_mut().choice.hear(addr);
        if self.learning.borrow().choice.made().is_none() {
            self.choose_cluster(addr, told.as_ref().ok().map(|(view, _)| view), deadline).await?;
        }
        let (view, connection) = told?;
        self.take(addr, view, connection)
    }

    /// Asks one node for the newest layout.
    async fn ask_layout(&self, addr: SocketAddr, deadline: Time) -> Result<(View, Connection), ClientError> {
        let connection = self.connection_to(addr, deadline).await?;
        let asked = GetLayout { epoch: None };
        let answered = connection.call::<_, LayoutRecord>(&self.env, Epoch(0), &asked, deadline).await;
        let is_formed = connection.hello().cluster != ClusterId::UNKNOWN;
        let (record, _, _) = answered.map_err(|error| match error {
            CallError::Refused(Refusal::NoLayout { .. }) if !is_formed => ClientError::NoCluster { addr },
            error => ClientError::Node { addr, epoch: Epoch(0), phase: Phase::Layout, error },
        })?;
        Ok((self.view_in(addr, &record)?, connection))
    }

    /// The endpoint at `addr` has told this layout, or failed to, before it is known which cluster it is. Waits for that if it has told one.
    async fn choose_cluster(
        &self,
        addr: SocketAddr,
        told: Option<&View>,
        deadline: Time,
    ) -> Result<(), ClientError> {
        let now = self.env.now();
        let until = told.map(|view| self.learning.borrow_mut().choice.tell(addr, view, now));
        self.settled.ring();
        let Some(until) = until else { return Ok(()) };
        let choose = |is_over| self.learning.borrow_mut().choose(is_over);
        let chosen = self.env.timeout_at(deadline.min(until), self.settled.until(|| choose(false))).await;
        chosen.ok().or_else(|| choose(true)).map_or(Ok(()), |chosen| chosen.map(drop))
    }

    /// A connection to whoever listens at `addr`: one that is open, or a new one.
    async fn connection_to(&self, addr: SocketAddr, deadline: Time) -> Result<Connection, ClientError> {
        let node = self.learning.borrow().nodes.iter().find(|(_, at)| *at == addr).map(|&(node, _)| node);
        let open = node.and_then(|node| self.connections.borrow().get(&node).cloned());
        if let Some(open) = open.filter(Connection::is_open) {
            return Ok(open);
        }
        let cluster = self.learning.borrow().choice.cluster().unwrap_or(ClusterId::UNKNOWN);
        let who = Identity { client: self.greets_as(), node: NodeId(0), cluster };
        let opened = Connection::open(&self.env, addr, who, deadline).await;
        opened.map_err(|error| connect_error(addr, Epoch(0), error))
    }

    /// The layout that the node at `addr` has told, if it is one that the client may use.
    fn view_in(&self, addr: SocketAddr, told: &LayoutRecord) -> Result<View, ClientError> {
        let layout = Layout::decode(&told.record).map_err(|error| ClientError::BadLayout { addr, error })?;
        let epoch = layout.epoch;
        if let Some(asked) = self.options.only_epoch.filter(|&only| only != epoch) {
            return Err(of_another(addr, epoch, Refusal::WrongEpoch { serving: epoch, asked }));
        }
        View::new(layout).ok_or(ClientError::BadAddress { addr, epoch })
    }

    /// Takes a layout that the node at `addr` has told over `connection`, if it is newer. What counts then.
    fn take(
        self: &Rc<Self>,
        addr: SocketAddr,
        view: View,
        connection: Connection,
    ) -> Result<View, ClientError> {
        let cluster = view.layout.cluster;
        if self.learning.borrow().choice.cluster() != Some(cluster) {
            return Err(of_another(addr, view.layout.epoch, Refusal::WrongCluster { cluster }));
        }
        let (known, epoch) = (self.known_epoch(), view.layout.epoch);
        if known > Epoch(0) && epoch.is_after_loss_since(known) && !self.options.outlives_loss {
            self.learning.borrow_mut().loss = Some(epoch);
            self.view.replace(None);
            self.abandon_old_calls();
            self.settled.ring();
        }
        self.check_loss()?;
        Ok(self.adopt(view, connection))
    }

    /// Errors: `AfterLoss` if the cluster has gone on without nodes since the client began.
    pub(super) fn check_loss(&self) -> Result<(), ClientError> {
        let loss = self.learning.borrow().loss;
        loss.map_or(Ok(()), |epoch| Err(ClientError::AfterLoss { epoch }))
    }

    /// Takes `view` if it is the newest, keeps the connection for the node that it leads to, and returns the newest.
    fn adopt(self: &Rc<Self>, view: View, connection: Connection) -> View {
        self.keep_connection(connection.hello().node, connection);
        let mut learning = self.learning.borrow_mut();
        if view.layout.epoch > learning.epoch {
            let is_first = learning.epoch == Epoch(0);
            learning.epoch = view.layout.epoch;
            learning.nodes = view.nodes().collect();
            if !is_first {
                self.abandon_old_calls();
            }
        }
        drop(learning);
        let mut newest = self.view.borrow_mut();
        match &*newest {
            Some(newer) if newer.layout.epoch >= view.layout.epoch => newer.clone(),
            _ => newest.insert(view).clone(),
        }
    }

    /// A newer layout is known: what was asked before is given a little time and then ends; what has stood for long ends now.
    fn abandon_old_calls(self: &Rc<Self>) {
        let connections: Vec<(Connection, RequestId)> = {
            let all = self.connections.borrow();
            all.values().map(|connection| (connection.clone(), connection.next_request())).collect()
        };
        connections.iter().for_each(|(connection, _)| connection.abandon(connection.old_calls()));
        let env = self.env.clone();
        self.env.spawn(async move {
            env.sleep(GRACE).await;
            for (connection, before) in connections {
                connection.abandon(before);
            }
        });
    }

    /// Looks after calls: while one stands for long, the client waits for a newer layout. Costs nothing while none is under
    /// way.
    pub(super) fn watch(self: &Rc<Self>) {
        if self.watching.replace(true) {
            return;
        }
        self.spawn_scoped(|weak| async move {
            let mut before = BTreeMap::new();
            while let Some(inner) = weak.upgrade() {
                let env = inner.env.clone();
                let waiting = inner.oldest_calls();
                if waiting.is_empty() {
                    inner.watching.set(false);
                    return;
                }
                if waiting.iter().any(|(node, oldest)| before.get(node) == Some(oldest)) {
                    inner.watch_layout();
                }
                before = waiting;
                drop(inner);
                env.sleep(STALL).await;
            }
        });
    }

    /// Looks at each node that owes something: the oldest call; the number 0 for one that is being connected to.
    fn oldest_calls(&self) -> BTreeMap<NodeId, RequestId> {
        let connecting = self.connecting.borrow();
        let mut waiting: BTreeMap<_, _> = connecting.iter().map(|&node| (node, RequestId(0))).collect();
        for (&node, connection) in self.connections.borrow().iter() {
            if let Some(oldest) = connection.look() {
                waiting.entry(node).or_insert(oldest);
            }
        }
        waiting
    }
}

/// What the node at `addr` has told is of another epoch or cluster than the client.
fn of_another(addr: SocketAddr, epoch: Epoch, refusal: Refusal) -> ClientError {
    ClientError::Node { addr, epoch, phase: Phase::Layout, error: CallError::Refused(refusal) }
}
