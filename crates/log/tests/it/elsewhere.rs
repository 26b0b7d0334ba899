//! Nodes on real sockets, each behind a gate that can be shut: what is read while the last replica is silent, and after a seal.

use std::cell::Cell;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use ithaca_env::net::{Conn, Listener, Reader, Writer};
use ithaca_env::sync::Notify;
use ithaca_env::{Env, Time};
use ithaca_log::client::{
    CallError, Client, ClientError, ClientOptions, Connection, EntryKind, Forming, Identity, form,
};
use ithaca_log::detector::Timing;
use ithaca_log::layout::Layout;
use ithaca_log::pos::{Addr, AddrRange, ClientId, ClusterId, Epoch, LogPos, NodeId, RequestNo};
use ithaca_log::server::{ClusterNode, NodeOptions};
use ithaca_log::wire::{
    Head, Message, Read, Refusal, RunState, Runs, Seal, Sealed, Write, Written, encode_head,
};

use crate::worlds::{append, entry, options, run};

/// Everything here is done long before.
const PATIENCE: Duration = Duration::from_secs(20);

/// Hands bytes on to a node as long as it is open. While it is shut they wait.
#[derive(Default)]
struct Gate {
    is_shut: Cell<bool>,
    changed: Notify,
}

impl Gate {
    fn set(&self, is_shut: bool) {
        self.is_shut.set(is_shut);
        self.changed.ring();
    }

    /// Listens in the place of the node at `target`.
    fn before(env: &Env, target: SocketAddr) -> (Rc<Self>, SocketAddr) {
        let gate = Rc::new(Self::default());
        let listener = env.listen(([127, 0, 0, 1], 0).into()).expect("a free port");
        let addr = listener.local_addr();
        env.spawn(accept(env.clone(), Rc::clone(&gate), listener, target));
        (gate, addr)
    }

    async fn pass(self: Rc<Self>, mut from: Reader, to: Writer) {
        let mut bytes = BytesMut::new();
        while from.read(&mut bytes).await.is_ok_and(|count| count > 0) {
            self.changed.until(|| (!self.is_shut.get()).then_some(())).await;
            to.push_shared(bytes.split().freeze());
        }
        to.close();
    }
}

async fn accept(env: Env, gate: Rc<Gate>, listener: Listener, target: SocketAddr) {
    while let Ok(near) = listener.accept().await {
        let Ok(Conn { reader, writer }) = env.connect(target).await else { continue };
        env.spawn(Rc::clone(&gate).pass(near.reader, writer));
        env.spawn(Rc::clone(&gate).pass(reader, near.writer));
    }
}

/// Three nodes, each entry on two of them, and nobody is ever missed.
struct World {
    env: Env,
    _nodes: Vec<ClusterNode>,
    gates: Vec<Rc<Gate>>,
    layout: Layout,
}

impl World {
    async fn start(env: &Env, dir: &Path) -> Self {
        let (mut nodes, mut gates, mut addrs) = (Vec::new(), Vec::new(), Vec::new());
        let for_ever = Duration::from_secs(3600);
        for id in (1..=3).map(NodeId) {
            let data = dir.join(id.0.to_string());
            ithaca_env::real::files::create_dir(&data).expect("a directory");
            let small = options(&data, 1);
            let node = NodeOptions {
                create_bytes: small.create_bytes,
                chain: small.chain,
                timing: Timing { silent_after: for_ever, slow_after: for_ever, ..Timing::default() },
                ..NodeOptions::new(id, &data, ([127, 0, 0, 1], 0).into())
            };
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

    fn addr(&self, node: NodeId) -> SocketAddr {
        self.layout.node(node).expect("a member").address.parse().expect("an address")
    }

    async fn client(&self, timeout: Duration) -> Client {
        let endpoints = vec![self.addr(NodeId(1))];
        let options = ClientOptions { endpoints, timeout, ..ClientOptions::default() };
        Client::connect(&self.env, options).await.expect("it serves")
    }

    fn deadline(&self) -> Time {
        self.env.now() + PATIENCE
    }

    async fn connection(&self, node: NodeId) -> Connection {
        let who = Identity { client: ClientId(7), node, cluster: ClusterId::UNKNOWN };
        Connection::open(&self.env, self.addr(node), who, self.deadline()).await.expect("it serves")
    }

    async fn call<M: Message, R: Message>(&self, node: NodeId, request: &M) -> Result<R, CallError> {
        let connection = self.connection(node).await;
        let answer = connection.call::<M, R>(&self.env, self.layout.epoch, request, self.deadline());
        answer.await.map(|(reply, _, _)| reply)
    }

    async fn read(&self, node: NodeId, pos: LogPos, committed: bool) -> Result<RunState, CallError> {
        let addr = self.layout.locate(pos).expect("it has a place").addr;
        let ranges = vec![AddrRange::new(addr, Addr(addr.0 + 1))];
        let read = Read { limit_bytes: 1 << 20, committed, ranges };
        self.call::<_, Runs>(node, &read).await.map(|runs| runs.runs[0].state.clone())
    }

    /// The first and the last replica of a position.
    fn replicas(&self, pos: LogPos) -> (NodeId, NodeId) {
        let replicas = self.layout.locate(pos).expect("it has a place").replicas;
        (replicas[0], replicas[replicas.len() - 1])
    }

    /// Waits until the first replica of each position knows that it is on every replica.
    async fn until_complete(&self, positions: &[LogPos]) {
        let deadline = self.deadline();
        for &pos in positions {
            while self.read(self.replicas(pos).0, pos, true).await.is_err() {
                assert!(self.env.now() < deadline, "nobody tells that {pos} is on every replica");
            }
        }
    }

    /// Writes an entry on the first replica of a position alone.
    async fn write_at_first(&self, pos: LogPos, number: u64) {
        let addr = self.layout.locate(pos).expect("it has a place").addr;
        let data = entry(number);
        let meta = ithaca_log::entry::EntryMeta::new(ClientId(7), addr, RequestNo(number)).to_bytes();
        let write = Write { addr, meta, table: ithaca_chain::Table::of_payloads([&data]) };
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

#[test]
fn committed_entries_are_read_while_the_last_replica_is_silent_and_nothing_is_said_of_others() {
    // The other replica may hold what was never decided, and may lack what was.
    run(|env, dir| async move {
        let world = World::start(&env, dir.path()).await;
        let client = world.client(PATIENCE).await;
        let positions = append(&client, 0, 60).await;
        let silent = NodeId(3);
        let (begun, free) = {
            let granted = client.tokens(6).await.expect("granted");
            let mut here =
                (granted.start.0..granted.end.0).map(LogPos).filter(|&pos| world.replicas(pos).1 == silent);
            (here.next().expect("one of three"), here.next().expect("one of three"))
        };
        world.write_at_first(begun, 60).await;
        world.until_complete(&positions).await;
        world.gates[2].set(true);
        for (&pos, number) in positions.iter().zip(0..) {
            let found = client.read(pos).await.expect("it is on every replica");
            assert_eq!((found.kind, found.data), (EntryKind::Data, entry(number)), "{pos}");
        }
        assert_eq!(client.read_many(&positions).await.expect("they are on every replica").len(), 60);
        let ranges = client.read_range(LogPos(0), LogPos(60)).await.expect("they are on every replica");
        assert_eq!(ranges.len(), 60);
        assert!(client.reads_elsewhere() >= 20, "{} reads", client.reads_elsewhere());
        let (follower, mut next) = (world.client(PATIENCE).await, 0);
        let mut tailing = follower.tail_from(LogPos(0));
        while next < 60 {
            for found in tailing.next().await.expect("it is on every replica") {
                assert_eq!((found.pos.0, found.data), (next, entry(next)));
                next += 1;
            }
        }
        let hasty = world.client(Duration::from_millis(300)).await;
        for pos in [begun, free] {
            let answer = hasty.read(pos).await;
            let is_silent =
                answer.as_ref().is_err_and(|error| !matches!(error, ClientError::Unwritten { .. }));
            assert!(is_silent, "{pos}: {answer:?}");
        }
        world.gates[2].set(false);
        assert_eq!(client.fill(begun).await, Ok(EntryKind::Data));
        assert_eq!(client.read(begun).await.map(|found| found.data), Ok(entry(60)));
    });
}

#[test]
fn committed_entries_are_read_in_a_sealed_epoch_and_nothing_else_is() {
    // A seal comes before the layout that goes on: readers would stand still in between.
    run(|env, dir| async move {
        let world = World::start(&env, dir.path()).await;
        let client = world.client(PATIENCE).await;
        let positions = append(&client, 0, 30).await;
        world.until_complete(&positions).await;
        for node in (1..=3).map(NodeId) {
            let seal = Seal { epoch: world.layout.epoch, extents: world.layout.active_extents(node) };
            world.call::<_, Sealed>(node, &seal).await.expect("sealed");
        }
        for &pos in &positions {
            let (first, last) = world.replicas(pos);
            for (node, committed) in [(first, true), (last, true), (last, false)] {
                let found = world.read(node, pos, committed).await;
                assert!(matches!(found, Ok(RunState::Data { .. })), "{pos} at {node}: {found:?}");
            }
        }
        let beyond = LogPos(30);
        let (first, last) = world.replicas(beyond);
        for (node, committed) in [(first, true), (first, false), (last, true), (last, false)] {
            let found = world.read(node, beyond, committed).await;
            let refused = CallError::Refused(Refusal::Sealed { sealed: Epoch(1) });
            assert_eq!(found, Err(refused), "{beyond} at {node}");
        }
    });
}
