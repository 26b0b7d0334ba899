//! Nodes of a cluster, each behind a gate that can be shut, counts what is asked, and loses a request: in the real world or a simulated one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ithaca_chain::Table;
use ithaca_env::net::{Conn, Listener, Reader, Writer};
use ithaca_env::sync::Notify;
use ithaca_env::{Env, Time};
use ithaca_log::client::{CallError, Client, ClientOptions, Connection, Forming, Identity, form};
use ithaca_log::detector::Timing;
use ithaca_log::entry::EntryMeta;
use ithaca_log::layout::Layout;
use ithaca_log::pos::{Addr, AddrRange, ClientId, ClusterId, LogPos, NodeId, RequestNo};
use ithaca_log::server::{ClusterNode, NodeOptions};
use ithaca_log::wire::{
    Frame, HEADER_BYTES, Head, Kind, Message, Read, Refusal, RunState, Runs, Write, Written, encode_head,
    encode_message, next_frame,
};

use crate::worlds::{entry, options};

const NODES: u64 = 3;
/// Everything here is done long before.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Hands requests on to a node as long as it is open, and what the node answers. While it is shut they wait.
#[derive(Default)]
pub struct Gate {
    is_shut: Cell<bool>,
    changed: Notify,
    /// Requests that came, by their kind.
    asked: RefCell<BTreeMap<u16, u64>>,
    /// The next request of this kind is not handed on.
    loses: Cell<Option<Kind>>,
    /// Nor is that one of this kind, counted from now on, with which its connection ends.
    breaks: Cell<Option<(Kind, u64)>>,
    /// The connection of the next request of this kind ends with what the node sends next.
    mutes: Cell<Option<Kind>>,
    /// Requests of this kind are refused so, and not handed on.
    refuses: Cell<Option<(Kind, Refusal)>>,
}

impl Gate {
    /// Shuts it, or opens it.
    pub fn set(&self, is_shut: bool) {
        self.is_shut.set(is_shut);
        self.changed.ring();
    }

    /// Loses the next request of this kind.
    pub fn lose(&self, kind: Kind) {
        self.loses.set(Some(kind));
    }

    /// Loses the `nth` request of this kind that comes from now on, and ends its connection.
    pub fn break_at(&self, kind: Kind, nth: u64) {
        self.breaks.set(Some((kind, self.asked(kind) + nth)));
    }

    /// Loses the answer to the next request of this kind, and ends its connection.
    pub fn lose_answer(&self, kind: Kind) {
        self.mutes.set(Some(kind));
    }

    /// Refuses every request of this kind in the node's place.
    pub fn refuse(&self, kind: Kind, refusal: Refusal) {
        self.refuses.set(Some((kind, refusal)));
    }

    /// How many requests of this kind came.
    fn asked(&self, kind: Kind) -> u64 {
        self.asked.borrow().get(&(kind as u16)).copied().unwrap_or(0)
    }

    /// Counts a request; whether it is handed on.
    fn takes(&self, kind: u16) -> bool {
        *self.asked.borrow_mut().entry(kind).or_default() += 1;
        let is_lost = self.loses.get().is_some_and(|lost| lost as u16 == kind);
        if is_lost {
            self.loses.set(None);
        }
        !is_lost
    }

    /// Listens in the place of the node at `target`.
    fn before(env: &Env, target: SocketAddr) -> (Rc<Self>, SocketAddr) {
        let gate = Rc::new(Self::default());
        let listener = env.listen((target.ip(), 0).into()).expect("a free port");
        let addr = listener.local_addr();
        env.spawn(accept(env.clone(), Rc::clone(&gate), listener, target));
        (gate, addr)
    }

    /// What it answers itself.
    fn answer(&self, frame: &Frame, back: &Writer) -> bool {
        let refused = self.refuses.get().filter(|(kind, _)| *kind as u16 == frame.kind);
        if let Some((_, refusal)) = refused {
            back.push(|out| encode_message(out, Head::new(frame.head.request, frame.head.epoch), &refusal));
        }
        refused.is_some()
    }

    /// Hands requests on, each in one piece. `back` leads to who asks, unless that is `muted`.
    async fn pass_requests(
        self: Rc<Self>,
        mut from: Reader,
        to: Writer,
        (back, muted): (Writer, Rc<Cell<bool>>),
    ) {
        let mut bytes = BytesMut::new();
        while from.read(&mut bytes).await.is_ok_and(|count| count > 0) {
            loop {
                let whole = bytes.clone();
                let Ok(Some(frame)) = next_frame(&mut bytes) else { break };
                let request = whole.freeze().slice(..frame.body.len() + frame.data.len() + HEADER_BYTES);
                let is_taken = self.takes(frame.kind);
                let is_last = |(kind, nth)| kind as u16 == frame.kind && self.asked(kind) == nth;
                if self.breaks.get().is_some_and(is_last) {
                    return to.close();
                }
                if self.mutes.get().is_some_and(|kind| kind as u16 == frame.kind) {
                    self.mutes.set(None);
                    muted.set(true);
                }
                if is_taken && !self.answer(&frame, &back) {
                    self.hand_on(request, &to).await;
                }
            }
        }
        to.close();
    }

    async fn hand_on(&self, bytes: Bytes, to: &Writer) {
        self.changed.until(|| (!self.is_shut.get()).then_some(())).await;
        to.push_shared(bytes);
    }

    async fn pass(self: Rc<Self>, mut from: Reader, to: Writer, muted: Rc<Cell<bool>>) {
        let mut bytes = BytesMut::new();
        while from.read(&mut bytes).await.is_ok_and(|count| count > 0) && !muted.get() {
            self.hand_on(bytes.split().freeze(), &to).await;
        }
        to.close();
    }
}

async fn accept(env: Env, gate: Rc<Gate>, listener: Listener, target: SocketAddr) {
    while let Ok(near) = listener.accept().await {
        let Ok(Conn { reader, writer }) = env.connect(target).await else { continue };
        let (muted, back) = (Rc::new(Cell::new(false)), near.writer.clone());
        env.spawn(Rc::clone(&gate).pass_requests(near.reader, writer, (back, Rc::clone(&muted))));
        env.spawn(Rc::clone(&gate).pass(reader, near.writer, muted));
    }
}

/// Three nodes, each entry on two of them, and nobody is ever missed.
pub struct World {
    pub env: Env,
    _nodes: Vec<ClusterNode>,
    pub gates: Vec<Rc<Gate>>,
    pub layout: Layout,
}

impl World {
    /// In real directories.
    pub async fn start(env: &Env, dir: &Path) -> Self {
        for id in 1..=NODES {
            ithaca_env::real::files::create_dir(&dir.join(id.to_string())).expect("a directory");
        }
        Self::begin(env, dir, [127, 0, 0, 1]).await
    }

    /// In directories that are there, or need not be; all nodes at one address.
    pub async fn begin(env: &Env, dir: &Path, ip: [u8; 4]) -> Self {
        Self::begin_with(env, dir, ip, |_| {}).await
    }

    /// The same with nodes that are set up otherwise.
    pub async fn begin_with(env: &Env, dir: &Path, ip: [u8; 4], change: impl Fn(&mut NodeOptions)) -> Self {
        let (mut nodes, mut gates, mut addrs) = (Vec::new(), Vec::new(), Vec::new());
        let for_ever = Duration::from_secs(3600);
        for id in (1..=NODES).map(NodeId) {
            let data = dir.join(id.0.to_string());
            let small = options(&data, 1);
            let mut node = NodeOptions {
                create_bytes: small.create_bytes,
                chain: small.chain,
                timing: Timing { silent_after: for_ever, slow_after: for_ever, ..Timing::default() },
                ..NodeOptions::new(id, &data, (ip, 0).into())
            };
            change(&mut node);
            let node = ClusterNode::start(env, node).await.expect("it starts");
            let (gate, addr) = Gate::before(env, node.addr());
            nodes.push(node);
            gates.push(gate);
            addrs.push((id, addr));
        }
        let forming = Forming { nodes: addrs, replicas: 2, min_replicas: 2, timeout: PATIENCE };
        let layout = form(env, &forming).await.expect("a cluster");
        Self { env: env.clone(), _nodes: nodes, gates, layout }
    }

    /// The gate before a node.
    pub fn gate(&self, node: NodeId) -> &Gate {
        &self.gates[node.0 as usize - 1]
    }

    pub fn addr(&self, node: NodeId) -> SocketAddr {
        self.layout.node(node).expect("a member").address.parse().expect("an address")
    }

    pub async fn client(&self, timeout: Duration) -> Client {
        let endpoints = vec![self.addr(NodeId(1))];
        let options = ClientOptions { endpoints, timeout, ..ClientOptions::default() };
        Client::connect(&self.env, options).await.expect("it serves")
    }

    /// How many requests of this kind all nodes were asked.
    pub fn asked(&self, kind: Kind) -> u64 {
        self.gates.iter().map(|gate| gate.asked(kind)).sum()
    }

    pub fn deadline(&self) -> Time {
        self.env.now() + PATIENCE
    }

    pub async fn connection(&self, node: NodeId) -> Connection {
        self.connection_of(ClientId(7), node).await
    }

    async fn connection_of(&self, client: ClientId, node: NodeId) -> Connection {
        let who = Identity { client, node, cluster: ClusterId::UNKNOWN };
        Connection::open(&self.env, self.addr(node), who, self.deadline()).await.expect("it serves")
    }

    /// As another node.
    pub async fn call<M: Message, R: Message>(&self, node: NodeId, request: &M) -> Result<R, CallError> {
        let connection = self.connection_of(ClientId(0), node).await;
        let answer = connection.call::<M, R>(&self.env, self.layout.epoch, request, self.deadline());
        answer.await.map(|(reply, _, _)| reply)
    }

    pub async fn read(&self, node: NodeId, pos: LogPos, committed: bool) -> Result<RunState, CallError> {
        let addr = self.layout.locate(pos).expect("it has a place").addr;
        let ranges = vec![AddrRange::new(addr, Addr(addr.0 + 1))];
        let read = Read { limit_bytes: 1 << 20, committed, ranges };
        self.call::<_, Runs>(node, &read).await.map(|runs| runs.runs[0].state.clone())
    }

    /// The first and the last replica of a position.
    pub fn replicas(&self, pos: LogPos) -> (NodeId, NodeId) {
        let replicas = self.layout.locate(pos).expect("it has a place").replicas;
        (replicas[0], replicas[replicas.len() - 1])
    }

    /// Waits until the first replica of each position knows that it is on every replica.
    pub async fn until_complete(&self, positions: &[LogPos]) {
        let deadline = self.deadline();
        for &pos in positions {
            while self.read(self.replicas(pos).0, pos, true).await.is_err() {
                assert!(self.env.now() < deadline, "nobody tells that {pos} is on every replica");
            }
        }
    }

    /// Writes an entry on the first replica of a position alone.
    pub async fn write_at_first(&self, pos: LogPos, number: u64) {
        let addr = self.layout.locate(pos).expect("it has a place").addr;
        let data = entry(number);
        let meta = EntryMeta::new(ClientId(7), addr, RequestNo(number)).to_bytes();
        let write = Write { addr, meta, table: Table::of_payloads([&data]) };
        let connection = self.connection(self.replicas(pos).0).await;
        let head = |id| Head::new(id, self.layout.epoch);
        let encode = |id, out: &mut _| encode_head(out, head(id), &write, data.len());
        let written = connection.call_with::<Written>(
            &self.env,
            encode,
            std::iter::once(data.clone()),
            self.deadline(),
        );
        written.await.expect("it serves");
    }
}
