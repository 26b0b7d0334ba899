//! What a client knows of the cluster: the newest layout, and connections to its nodes.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::AsyncFn;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::Time;
use ithaca_env::net::NetError;
use ithaca_env::task::{Ended, race};

use super::connection::{CallError, Connection, Identity};
use super::error::{ClientError, Phase};
use super::{ClientOptions, Inner};
use crate::layout::{Layout, Node, NodeState};
use crate::pos::{Addr, ClusterId, Epoch, LogPos, NodeId};
use crate::wire::{Advice, Message, Refusal, Roles};

/// The wait before a call that failed is tried again with a newer view.
const RETRY_WAIT: Duration = Duration::from_millis(5);
/// The same if too few nodes are in use: one of them has to come back first.
const SHORTAGE_WAIT: Duration = Duration::from_millis(50);
/// It is not tried again if there is less time for the answer than this: an append whose time ends first is of unknown outcome, where
/// the refusal before said that nothing was appended, and why.
const SHORTAGE_ANSWER: Duration = Duration::from_millis(200);

/// How long a node may take to accept a connection before another attempt is made.
const CONNECT_PATIENCE: Duration = Duration::from_millis(500);

/// A layout, and what follows from it.
#[derive(Clone)]
pub(super) struct View {
    pub(super) layout: Rc<Layout>,
    /// The nodes' addresses, in the order of the layout.
    addrs: Rc<Vec<(NodeId, SocketAddr)>>,
}

impl View {
    pub(super) fn new(layout: Layout) -> Option<Self> {
        let addr = |node: &Node| Some((node.id, node.address.parse().ok()?));
        let addrs = layout.nodes.iter().map(addr).collect::<Option<Vec<_>>>()?;
        Some(Self { layout: Rc::new(layout), addrs: Rc::new(addrs) })
    }

    /// Where a position is read: at the last of its replicas, whose answer holds for all. A position that the layout has
    /// no place for is unwritten.
    pub(super) fn place(&self, pos: LogPos) -> Result<(NodeId, Addr), ClientError> {
        let location = self.layout.locate(pos).ok_or(ClientError::Unwritten { pos })?;
        let unit = location.replicas.last().expect("a stripe has replicas");
        Ok((*unit, location.addr))
    }

    /// Every unit that holds positions, in the order of their ids.
    pub(super) fn units(&self) -> Vec<NodeId> {
        let stripes = self.layout.ranges.iter().flat_map(|range| &range.stripes);
        let units: BTreeSet<NodeId> = stripes.flat_map(|stripe| stripe.replicas.iter().copied()).collect();
        units.into_iter().collect()
    }

    /// Every node, in the order of their ids.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (NodeId, SocketAddr)> + '_ {
        self.addrs.iter().copied()
    }

    /// The address of a node of the layout.
    pub(super) fn addr(&self, node: NodeId) -> SocketAddr {
        let found = self.addrs.iter().find(|(id, _)| *id == node);
        found.expect("a layout names only nodes that it lists").1
    }

    /// Whether `pos` lies at or above the decided tail of `epoch`, so that nothing granted in it was or will be written
    /// there.
    pub(super) fn is_past_tail(&self, epoch: Epoch, pos: LogPos) -> bool {
        self.decided_tail(epoch).is_some_and(|tail| pos >= tail)
    }

    /// Whether appends go whole to the sequencer.
    pub(super) fn forwards(&self, options: &ClientOptions) -> bool {
        let roles = self.layout.node(self.layout.sequencer).map(|node| node.roles);
        options.forward_appends && roles.is_some_and(|roles| roles.has(Roles::FORWARDER))
    }

    /// Where `epoch` ended, as far back as the layout tells.
    pub(super) fn decided_tail(&self, epoch: Epoch) -> Option<LogPos> {
        self.layout.end_of(epoch)
    }

    /// The position that a unit's address stands for.
    pub(super) fn position(&self, unit: NodeId, addr: Addr) -> Option<LogPos> {
        self.layout.position(unit, addr)
    }

    /// What a call of a unit ended in. A unit names the address that is damaged; its client knows the position.
    pub(super) fn by_position(&self, unit: NodeId, error: ClientError) -> ClientError {
        match error {
            ClientError::Node { error: CallError::Refused(Refusal::Damaged { addr }), .. }
                if let Some(pos) = self.position(unit, addr) =>
            {
                ClientError::Damaged { pos }
            }
            error => error,
        }
    }
}

impl Inner {
    /// The view that the client has, if any.
    pub(super) fn view(&self) -> Option<View> {
        self.view.borrow().clone()
    }

    /// Drops a view that turned out to be old; a newer one stays.
    pub(super) fn forget_view(&self, old: &Option<View>) {
        let mut view = self.view.borrow_mut();
        let is_old = match (&*view, old) {
            (Some(now), Some(old)) => Rc::ptr_eq(&now.layout, &old.layout),
            _ => false,
        };
        if is_old {
            *view = None;
        }
    }

    /// The view of `epoch`, or a newer one. A writer that was granted tokens in `epoch` uses it only to find the units.
    pub(super) async fn view_of(self: &Rc<Self>, epoch: Epoch, deadline: Time) -> Result<View, ClientError> {
        loop {
            let view = self.view_by(deadline).await?;
            if view.layout.epoch == epoch {
                return Ok(view);
            }
            if view.layout.epoch > epoch {
                // The grant died with its epoch before it was used.
                let addr = view.addr(view.layout.sequencer);
                let refusal = crate::wire::Refusal::Sealed { sealed: epoch };
                let error = CallError::Refused(refusal);
                return Err(ClientError::Node { addr, epoch, phase: Phase::Write, error });
            }
            self.forget_view(&Some(view));
            self.pause(Phase::Layout, deadline, None).await?;
        }
    }

    /// The sequencer of `epoch` has granted everything below `pos`.
    pub(super) fn note_granted(&self, epoch: Epoch, pos: LogPos) {
        self.granted.set(self.granted.get().max((epoch, pos)));
        self.shortage.replace(None);
    }

    /// A position that every later grant of the view's epoch is at or above: its first, or what the client has seen
    /// granted since.
    pub(super) fn granted_below(&self, view: &View) -> LogPos {
        let (epoch, pos) = self.granted.get();
        if epoch == view.layout.epoch { pos.max(view.layout.tail()) } else { view.layout.tail() }
    }

    /// The connection to `node` if one is open.
    pub(super) fn open_connection(self: &Rc<Self>, node: NodeId) -> Option<Connection> {
        self.watch();
        self.connections.borrow().get(&node).filter(|connection| connection.is_open()).cloned()
    }

    /// The connection to `node`, opened if there is none. Several callers share one attempt.
    pub(super) async fn connection(
        self: &Rc<Self>,
        view: &View,
        node: NodeId,
        deadline: Time,
    ) -> Result<Connection, ClientError> {
        loop {
            if let Some(connection) = self.open_connection(node) {
                return Ok(connection);
            }
            let ticket = self.settled.ticket();
            if !self.connecting.borrow().contains(&node) {
                break;
            }
            if self.env.timeout_at(deadline, self.settled.after(ticket)).await.is_err() {
                return Err(ClientError::Slow { phase: Phase::Connect, waited: self.options.timeout });
            }
        }
        self.connecting.borrow_mut().push(node);
        let attempt = Attempt { inner: self, node };
        let addr = view.addr(node);
        let who = Identity { client: self.greets_as(), node, cluster: view.layout.cluster };
        let epoch = view.layout.epoch;
        let opened = self.open(addr, who, epoch, deadline).await;
        let result = opened.map_err(|error| connect_error(addr, epoch, error));
        let kept = result.map(|connection| self.keep_connection(node, connection));
        drop(attempt);
        kept
    }

    /// Keeps a new connection to `node`, unless another one has become open meanwhile: that is returned. It may be in use, and its answers
    /// end with it.
    pub(super) fn keep_connection(&self, node: NodeId, connection: Connection) -> Connection {
        self.write_limits.set(self.write_limits.get().and(connection.hello()));
        let mut connections = self.connections.borrow_mut();
        match connections.get(&node) {
            Some(open) if open.is_open() => open.clone(),
            _ => {
                connections.insert(node, connection.clone());
                connection
            }
        }
    }

    /// One attempt to connect, given up as soon as a layout newer than that of `epoch` is known, and after a while: the node
    /// may be back, or another may have taken its place.
    async fn open(
        self: &Rc<Self>,
        addr: SocketAddr,
        who: Identity,
        epoch: Epoch,
        deadline: Time,
    ) -> Result<Connection, CallError> {
        let patience = deadline.min(self.env.now() + CONNECT_PATIENCE);
        let newer = self.settled.until(|| (self.known_epoch() > epoch).then_some(()));
        match race(Connection::open(&self.env, addr, who, patience), newer).await {
            Ended::First(Err(CallError::TimedOut)) if patience < deadline => {
                let message = format!("no answer in {CONNECT_PATIENCE:?}");
                Err(CallError::Lost(NetError::Io { addr, operation: "connect", message }))
            }
            Ended::First(opened) => opened,
            Ended::Second(()) => Err(CallError::Superseded),
        }
    }

    /// One call to a node of `view`, connecting first if need be.
    pub(super) async fn call<M: Message, R: Message>(
        self: &Rc<Self>,
        view: &View,
        node: NodeId,
        phase: Phase,
        request: &M,
        deadline: Time,
    ) -> Result<(R, Bytes, Epoch), ClientError> {
        let connection = self.connection(view, node, deadline).await?;
        let epoch = view.layout.epoch;
        let answered = connection.call::<M, R>(&self.env, epoch, request, deadline).await;
        answered.map_err(|error| self.call_error(view, node, phase, error))
    }

    /// Why a call to a node of `view` failed.
    pub(super) fn call_error(
        &self,
        view: &View,
        node: NodeId,
        phase: Phase,
        error: CallError,
    ) -> ClientError {
        let CallError::Refused(Refusal::TooFewReplicas { kept, needed }) = error else {
            return ClientError::Node { addr: view.addr(node), epoch: view.layout.epoch, phase, error };
        };
        let nodes = view.layout.nodes.iter();
        let is_missing = |node: &&Node| node.state != NodeState::InUse && node.roles.has(Roles::UNIT);
        let out = nodes.filter(is_missing).map(|node| node.id).collect();
        let error = ClientError::TooFewReplicas { kept, needed, out };
        self.shortage.replace(Some(error.clone()));
        error
    }

    /// The wait before a call that failed so is tried again.
    pub(super) fn wait_after(&self, error: Option<&ClientError>, else_wait: Duration) -> Duration {
        match error {
            Some(ClientError::TooFewReplicas { .. }) => SHORTAGE_WAIT,
            _ => else_wait,
        }
    }

    /// Tries `attempt` with the newest view until it succeeds, fails for good, or `deadline` passes.
    pub(super) async fn retrying<T>(
        self: &Rc<Self>,
        phase: Phase,
        deadline: Time,
        attempt: impl AsyncFn(&Rc<Inner>, &View) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        loop {
            let view = self.view_by(deadline).await?;
            match attempt(self, &view).await {
                // What came just too late is told as every wait that came to nothing.
                Err(error) if self.may_pass(&error, deadline) => {
                    self.forget_view(&Some(view));
                    self.pause(phase, deadline, Some(error)).await?;
                }
                result => return result,
            }
        }
    }

    /// Whether the same call may succeed later, and there is time for that.
    pub(super) fn worth_retrying(&self, error: &ClientError, deadline: Time) -> bool {
        self.may_pass(error, deadline) && self.env.now() < deadline
    }

    /// Whether the same call may succeed later, if it is soon.
    pub(super) fn may_pass(&self, error: &ClientError, deadline: Time) -> bool {
        match error {
            ClientError::Node { error: CallError::Refused(refusal), .. } => {
                matches!(refusal.advice(), Advice::NewLayout | Advice::Later)
            }
            ClientError::Node { error: CallError::Lost(_) | CallError::Superseded, .. } => true,
            // It has lost everything, and the others are about to go on without it.
            ClientError::NoCluster { addr } => self.learning.borrow().has_beside(*addr),
            ClientError::TooFewReplicas { .. } => self.env.now() + SHORTAGE_WAIT + SHORTAGE_ANSWER < deadline,
            _ => false,
        }
    }

    /// Waits a little before another attempt; an error once `deadline` is near.
    pub(super) async fn pause(
        &self,
        phase: Phase,
        deadline: Time,
        last: Option<ClientError>,
    ) -> Result<(), ClientError> {
        let wait = self.wait_after(last.as_ref(), RETRY_WAIT);
        if self.env.now() + wait < deadline {
            self.env.sleep(wait).await;
            // A busy machine may have slept longer.
            if self.env.now() < deadline {
                return Ok(());
            }
        }
        let waited = self.options.timeout;
        Err(match last {
            Some(last @ ClientError::TooFewReplicas { .. }) => last,
            Some(last) => ClientError::TimedOut { phase, waited, last: Box::new(last) },
            None => ClientError::Slow { phase, waited },
        })
    }
}

/// Why a node could not be connected to.
pub(super) fn connect_error(addr: SocketAddr, epoch: Epoch, error: CallError) -> ClientError {
    match error {
        // It has lost the cluster that it belonged to.
        CallError::Refused(Refusal::WrongCluster { cluster: ClusterId::UNKNOWN }) => {
            ClientError::NoCluster { addr }
        }
        error => ClientError::Node { addr, epoch, phase: Phase::Connect, error },
    }
}

/// An attempt to connect, over when dropped: the next in line may try.
struct Attempt<'a> {
    inner: &'a Inner,
    node: NodeId,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.inner.connecting.borrow_mut().retain(|&node| node != self.node);
        self.inner.settled.ring();
    }
}
