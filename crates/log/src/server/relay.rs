//! Relayed writes: the units of a stripe hand an entry on, each once it has it on stable storage, and whoever sent it is
//! answered when the last one has it.
//!
//! ```text
//!   write ─► unit 1 ─► durable ─► unit 2 ─► durable ─► … ─► durable ─► Written
//!                 (this process, or a relayed Write over a connection)
//! ```
//!
//! This is the order in which a client writes to the replicas, at one round trip of the client. A unit of this process takes
//! its part without a socket. Anything that is not "all of it, everywhere" ends the relay, and the sender goes on by itself:
//! nothing is tried again here. (docs/protocol/append.md)

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use ithaca_chain::Run;
use ithaca_env::{Env, Time};

use super::forward::Joining;
use super::peers::Peers;
use super::reply::ReplyRoute;
use super::unit_shell::{Route, UnitShell};
use crate::client::{CallError, Connection};
use crate::layout::Layout;
use crate::limits;
use crate::planted::{Planted, PlantedBug};
use crate::pos::{Addr, Epoch, NodeId};
use crate::unit::Answer;
use crate::wire::{self, FLAG_RELAY, Head, Refusal, Write, Written};

/// A node that is handed an entry answers within this, or the sender is told to go on by itself.
const RELAY_TIMEOUT: Duration = Duration::from_secs(1);

/// The units that a node can write to.
pub(super) struct Relay {
    env: Env,
    /// The newest layout that the node knows. Whoever learns a newer one puts it here.
    layout: RefCell<Option<Rc<Layout>>>,
    /// Those of this process.
    units: BTreeMap<NodeId, Rc<UnitShell>>,
    peers: Peers,
    /// Bytes of entries whose answer from another node is waited for, by node.
    held_bytes: RefCell<BTreeMap<NodeId, usize>>,
    planted: Planted,
}

/// Who is told what became of a run.
pub(super) enum Sender {
    /// Whoever sent the write.
    Reply(ReplyRoute),
    /// An append that was sent whole, of which this is a part.
    Part(Rc<Joining>),
    /// Nobody: a planted fault has told already.
    Nobody,
}

/// A run that one unit is storing and others are to have after it.
pub(super) struct Relaying {
    relay: Weak<Relay>,
    /// The replicas after the unit, in order.
    rest: Vec<NodeId>,
    run: Run,
    sender: Sender,
    /// Whether no other unit has the run, so that the sender is told what this one says.
    is_first: bool,
}

impl Relay {
    /// Writes to `units` without a socket, and to others over `peers`.
    pub(super) fn new(
        env: &Env,
        units: BTreeMap<NodeId, Rc<UnitShell>>,
        peers: Peers,
        planted: Planted,
    ) -> Rc<Self> {
        let (layout, held_bytes) = (RefCell::default(), RefCell::default());
        Rc::new(Self { env: env.clone(), layout, units, peers, held_bytes, planted })
    }

    /// From here on this is the layout.
    pub(super) fn learn(&self, layout: Rc<Layout>) {
        self.layout.replace(Some(layout));
    }

    /// The layout of an epoch, if it is the one that the node knows.
    pub(super) fn layout(&self, epoch: Epoch) -> Option<Rc<Layout>> {
        self.layout.borrow().clone().filter(|layout| layout.epoch == epoch)
    }

    /// Refuses entries that a unit of this process would refuse now wherever they went: `bytes` of them in `epoch`.
    pub(super) fn admits(&self, layout: &Layout, epoch: Epoch, bytes: usize) -> Result<(), Refusal> {
        let Some(active) = layout.ranges.last() else { return Ok(()) };
        let replicas = active.stripes.iter().flat_map(|stripe| &stripe.replicas);
        let mut near = replicas.filter_map(|node| self.units.get(node));
        near.try_for_each(|unit| unit.admits(epoch, bytes))
    }

    /// A write that asks to be relayed came to `unit`, which is `node`'s.
    pub(super) fn write_here(
        self: &Rc<Self>,
        node: NodeId,
        unit: &Rc<UnitShell>,
        route: ReplyRoute,
        run: Run,
    ) {
        let layout = self.layout(Epoch(run.version));
        let rest = layout.and_then(|layout| Some(layout.replicas_after(node, Addr(run.first_key))?.to_vec()));
        match rest {
            Some(rest) => self.store(unit, rest, run, Sender::Reply(route), true),
            // The unit knows whether the epoch is over; if it is not, the sender knows the other replicas.
            None => unit.write(Relaying::nowhere(&run, Sender::Reply(route)), run),
        }
    }

    /// Writes `run` to each of `replicas`, each after the one before has it on stable storage, and then tells `sender`.
    pub(super) fn write(self: &Rc<Self>, replicas: &[NodeId], run: Run, sender: Sender) {
        self.go_on(replicas, run, sender, true);
    }

    fn go_on(self: &Rc<Self>, replicas: &[NodeId], run: Run, sender: Sender, is_first: bool) {
        let Some((first, rest)) = replicas.split_first() else { return sender.done(true) };
        match self.units.get(first) {
            Some(unit) => self.store(unit, rest.to_vec(), run, sender, is_first),
            None => self.hand_over(*first, !rest.is_empty(), run, sender),
        }
    }

    /// Has a unit of this process store `run` before it goes on to `rest`.
    fn store(
        self: &Rc<Self>,
        unit: &Rc<UnitShell>,
        mut rest: Vec<NodeId>,
        run: Run,
        sender: Sender,
        is_first: bool,
    ) {
        if self.planted.is(PlantedBug::RelayStopsShort) {
            rest.clear();
        }
        if self.planted.is(PlantedBug::RelayBeforeDurable) && !rest.is_empty() {
            self.go_on(&rest, run.clone(), sender, false);
            return unit.write(Relaying::nowhere(&run, Sender::Nobody), run);
        }
        let relaying = Relaying { relay: Rc::downgrade(self), rest, run: run.clone(), sender, is_first };
        unit.write(Route::Relay(Box::new(relaying)), run);
    }

    /// Sends `run` to another node, whose own node hands it on if `has_more`.
    fn hand_over(self: &Rc<Self>, node: NodeId, has_more: bool, run: Run, sender: Sender) {
        let epoch = Epoch(run.version);
        let addr = self.layout(epoch).and_then(|layout| layout.node(node)?.address.parse().ok());
        let bytes = run.data.len();
        let Some(addr) = addr.filter(|_| self.held_bytes(node) + bytes <= limits::RELAY_MAX_BYTES) else {
            return sender.done(false);
        };
        *self.held_bytes.borrow_mut().entry(node).or_default() += bytes;
        let deadline = self.env.now() + RELAY_TIMEOUT;
        // On an open connection it is sent here and now.
        let open = self.peers.open(node).map(|connection| self.send(&connection, has_more, &run, deadline));
        let relay = Rc::clone(self);
        self.env.spawn(async move {
            let answered = match open {
                Some(answer) => answer.await,
                None => match relay.peers.at(node, addr).reach(deadline).await {
                    Ok(connection) => relay.send(&connection, has_more, &run, deadline).await,
                    Err(error) => Err(error),
                },
            };
            relay.let_go(node, bytes);
            sender.done(matches!(answered, Ok(written) if written.taken.is_empty()));
        });
    }

    /// Bytes that are held for another node: of entries that it has not answered for, or that it has not even taken, whether or not
    /// the answer is waited for still.
    fn held_bytes(&self, node: NodeId) -> usize {
        let waits = self.held_bytes.borrow().get(&node).copied().unwrap_or(0);
        waits.max(self.peers.queued_bytes(node))
    }

    /// So many bytes are waited for no more.
    fn let_go(&self, node: NodeId, bytes: usize) {
        let mut held = self.held_bytes.borrow_mut();
        let left = held.remove(&node).unwrap_or(0) - bytes;
        if left > 0 {
            held.insert(node, left);
        }
    }

    fn send(
        &self,
        connection: &Connection,
        has_more: bool,
        run: &Run,
        deadline: Time,
    ) -> impl Future<Output = Result<Written, CallError>> + use<> {
        let flags = if has_more { FLAG_RELAY } else { 0 };
        let write = Write { addr: Addr(run.first_key), meta: run.meta.clone(), table: run.table.clone() };
        let (epoch, len) = (Epoch(run.version), run.data.len());
        let answer = connection.call_with::<Written>(
            &self.env,
            |id, out| wire::encode_head(out, Head { flags, ..Head::new(id, epoch) }, &write, len),
            std::iter::once(run.data.clone()),
            deadline,
        );
        async move { answer.await.map(|(written, _, _)| written) }
    }
}

impl Relaying {
    /// A run that is stored by one unit and goes no further.
    fn nowhere(run: &Run, sender: Sender) -> Route {
        let (relay, rest, run) = (Weak::new(), Vec::new(), run.clone());
        Route::Relay(Box::new(Self { relay, rest, run, sender, is_first: true }))
    }

    /// The unit has answered. If it has all of the run, on stable storage, the next one is written to; else the sender is
    /// told: with what is returned, or by itself.
    pub(super) fn stored(self, answer: Answer) -> Option<(ReplyRoute, Answer)> {
        let Self { relay, rest, run, sender, is_first } = self;
        match (answer, sender) {
            (Answer::Written { taken, .. }, sender) if taken.is_empty() => {
                match relay.upgrade() {
                    Some(relay) => relay.go_on(&rest, run, sender, false),
                    None => sender.done(false),
                }
                None
            }
            (answer, Sender::Reply(route)) if is_first => Some((route, answer)),
            (_, sender) => {
                sender.done(false);
                None
            }
        }
    }
}

impl Sender {
    /// Says whether every replica has the run.
    fn done(self, written: bool) {
        match self {
            Sender::Reply(route) if written => route.send(&Written::default()),
            Sender::Reply(route) => route.refuse(Refusal::NotRelayed),
            Sender::Part(joining) => joining.answered(written),
            Sender::Nobody => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::{Bytes, BytesMut};
    use ithaca_chain::{RunKind, Table};
    use ithaca_env::net::{Conn, Listener};
    use ithaca_env::sim::Sim;

    use super::*;
    use crate::layout::Node;
    use crate::pos::{ClusterId, Incarnation};
    use crate::wire::{HelloOk, PROTOCOL_VERSION, Roles};

    const THERE: NodeId = NodeId(2);
    const ENTRY_BYTES: usize = limits::ENTRY_MAX_BYTES;

    /// Greets whoever connects, and takes nothing after that.
    async fn greet(listener: Listener, node: NodeId) {
        let Conn { mut reader, writer } = listener.accept().await.expect("it listens");
        let mut bytes = BytesMut::new();
        let hello = loop {
            reader.read(&mut bytes).await.expect("a hello");
            if let Some(frame) = wire::next_frame(&mut bytes).expect("a frame") {
                break frame;
            }
        };
        let ok = HelloOk {
            version: PROTOCOL_VERSION,
            cluster: ClusterId(7),
            node,
            incarnation: Incarnation(1),
            entry_max_bytes: limits::ENTRY_MAX_BYTES as u32,
            write_max_bytes: limits::WRITE_MAX_BYTES as u32,
            read_max_bytes: limits::READ_MAX_BYTES as u32,
            run_max_count: limits::RUN_MAX_COUNT as u32,
            grant_max_count: limits::GRANT_MAX_COUNT,
        };
        writer.push(|out| wire::encode_message(out, hello.head, &ok));
        std::future::pending::<()>().await;
    }

    fn run(addr: u64) -> Run {
        let (meta, data) = (Bytes::from_static(&[0; 32]), Bytes::from(vec![7; ENTRY_BYTES]));
        Run {
            first_key: addr,
            version: 1,
            kind: RunKind::Data,
            meta,
            table: Table::of_payloads([&data]),
            data,
        }
    }

    #[test]
    fn what_a_node_has_not_taken_is_held_also_when_nobody_waits_for_it_any_more() {
        // Else one that stands still is handed as much again each time that the wait for its answer is over.
        let sim = Sim::new(1);
        let [here, there] = [1, 2].map(|id| sim.process(&format!("node {id}"), [10, 0, 0, id].into()));
        let listener = sim.env(there).listen(([10, 0, 0, 2], 7420).into()).expect("a free port");
        sim.env(there).spawn(greet(listener, THERE));
        let env = sim.env(here);
        sim.block_on(here, async move {
            let relay = Relay::new(&env, BTreeMap::new(), Peers::new(&env, ClusterId(7)), Planted::NONE);
            let node = Node::new(THERE, Roles::UNIT, "10.0.0.2:7420".to_owned());
            relay.learn(Rc::new(Layout::single(ClusterId(7), node)));
            for _ in 0..3 {
                for addr in 0..(limits::RELAY_MAX_BYTES / ENTRY_BYTES) as u64 {
                    relay.write(&[THERE], run(addr), Sender::Nobody);
                }
                env.sleep(2 * RELAY_TIMEOUT).await;
                let unsent = relay.peers.open(THERE).expect("it is connected").queued_bytes();
                assert!(unsent > limits::RELAY_MAX_BYTES / 2, "{unsent} bytes: it takes nothing");
                assert!(unsent <= limits::RELAY_MAX_BYTES, "{unsent} bytes");
            }
        });
    }

    #[test]
    fn a_node_that_stands_still_keeps_nothing_from_the_others() {
        let sim = Sim::new(1);
        let process = |id: u8| sim.process(&format!("node {id}"), [10, 0, 0, id].into());
        let here = process(1);
        for id in [2, 3] {
            let env = sim.env(process(id));
            let listener = env.listen(([10, 0, 0, id], 7420).into()).expect("a free port");
            env.spawn(greet(listener, NodeId(id.into())));
        }
        let env = sim.env(here);
        sim.block_on(here, async move {
            let relay = Relay::new(&env, BTreeMap::new(), Peers::new(&env, ClusterId(7)), Planted::NONE);
            let at = |id: u64| Node::new(NodeId(id), Roles::UNIT, format!("10.0.0.{id}:7420"));
            let mut layout = Layout::single(ClusterId(7), at(2));
            layout.nodes.push(at(3));
            relay.learn(Rc::new(layout));
            // Until as much is held for node 2 as may be.
            for _ in 0..3 {
                for addr in 0..(limits::RELAY_MAX_BYTES / ENTRY_BYTES) as u64 {
                    relay.write(&[NodeId(2)], run(addr), Sender::Nobody);
                }
                env.sleep(2 * RELAY_TIMEOUT).await;
            }
            relay.write(&[NodeId(3)], run(0), Sender::Nobody);
            env.sleep(RELAY_TIMEOUT).await;
            assert!(relay.peers.open(NodeId(3)).is_some(), "it was sent nothing");
        });
    }
}
