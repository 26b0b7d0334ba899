//! One message with a wrong number, from a client that is mistaken, ends nothing for all the others.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::Table;
use ithaca_env::sim::Sim;
use ithaca_env::{Env, record};
use ithaca_log::client::{CallError, Client, Connection, Identity};
use ithaca_log::entry::EntryMeta;
use ithaca_log::layout::Layout;
use ithaca_log::limits::{REACH_MAX_COUNT, STRIPE_ADDRESSES};
use ithaca_log::pos::{Addr, AddrRange, Ballot, ClientId, ClusterId, Epoch, LogPos, NodeId, RequestNo};
use ithaca_log::wire::{
    self, Fill, Filled, Head, Invitation, Kind, Learn, Learned, Message, Prepare, Promise, Refusal, Seal,
    Sealed, Trim, Trimmed, Write, Written,
};
use tempfile::TempDir;

use crate::nodes::{Cluster, node_options};
use crate::worlds::{append, connect, entry, options, read_all, replicated, restart, run};

const PATIENCE: Duration = Duration::from_secs(5);

/// Who is mistaken.
struct Stranger {
    env: Env,
    connection: Connection,
}

impl Stranger {
    async fn at(env: &Env, addr: SocketAddr) -> Self {
        Self::greeting_as(env, addr, ClientId(99)).await
    }

    /// What only a node says is taken from it.
    async fn node_at(env: &Env, addr: SocketAddr) -> Self {
        Self::greeting_as(env, addr, ClientId(0)).await
    }

    async fn greeting_as(env: &Env, addr: SocketAddr, client: ClientId) -> Self {
        let who = Identity { client, node: NodeId(0), cluster: ClusterId::UNKNOWN };
        let connection = Connection::open(env, addr, who, env.now() + PATIENCE).await.expect("it listens");
        Self { env: env.clone(), connection }
    }

    async fn ask<Q: Message, R: Message>(&self, epoch: Epoch, request: &Q) -> Result<R, CallError> {
        let answer = self.connection.call::<Q, R>(&self.env, epoch, request, self.env.now() + PATIENCE).await;
        answer.map(|(answer, _, _)| answer)
    }

    async fn seal(&self, epoch: Epoch) -> Result<Sealed, CallError> {
        self.ask(Epoch(0), &Seal { epoch, extents: Vec::new() }).await
    }

    /// Asks to end an epoch, about addresses that no node asks about.
    async fn seal_with(&self, epoch: Epoch, extents: &[Range<u64>]) -> Result<Sealed, CallError> {
        let extents = extents.iter().map(|extent| extent.clone().into()).collect();
        self.ask(Epoch(0), &Seal { epoch, extents }).await
    }

    async fn write(&self, epoch: Epoch, addr: Addr) -> Result<Written, CallError> {
        let data = Bytes::from_static(b"mistaken");
        let meta = EntryMeta::new(ClientId(99), addr, RequestNo(1)).to_bytes();
        let write = Write { addr, meta, table: Table::of_payloads([&data]) };
        let answer = self.connection.call_with::<Written>(
            &self.env,
            |id, out| wire::encode_head(out, Head::new(id, epoch), &write, data.len()),
            std::iter::once(data.clone()),
            self.env.now() + PATIENCE,
        );
        answer.await.map(|(written, _, _)| written)
    }

    /// Asks for everything that would end the epochs before `epoch`; each is refused because there is no layout of it.
    async fn is_told_of_no_layout(&self, epoch: Epoch) {
        let none = CallError::Refused(Refusal::NoLayout { epoch });
        assert_eq!(self.seal(epoch).await, Err(none.clone()));
        assert_eq!(self.write(epoch, Addr(1 << 40)).await, Err(none.clone()));
        let ranges = vec![AddrRange::new(Addr(0), Addr(1))];
        assert_eq!(self.ask::<_, Filled>(epoch, &Fill { ranges: ranges.clone() }).await, Err(none.clone()));
        assert_eq!(self.ask::<_, Trimmed>(epoch, &Trim { ranges }).await, Err(none));
    }
}

/// Numbers of epochs after `known`: the next one, and what comes of a wrong order of bytes, or of -1.
fn epochs_after(known: Epoch) -> [Epoch; 5] {
    [known.next(), Epoch(known.0 + 64), Epoch(known.0.swap_bytes()), Epoch(1 << 63), Epoch(u64::MAX)]
}

#[test]
fn an_epoch_of_which_there_is_no_layout_ends_no_other() {
    run(|env, dir| async move {
        let of = replicated(dir.path(), 3, 2);
        let mut cluster = restart(&env, of.clone()).await;
        for (nth, known) in (0..).zip([1, 2].map(Epoch)) {
            let client = connect(&env, &cluster).await;
            append(&client, 10 * nth, 5).await;
            for &addr in cluster.addrs() {
                let stranger = Stranger::at(&env, addr).await;
                for epoch in epochs_after(known) {
                    stranger.is_told_of_no_layout(epoch).await;
                }
            }
            append(&client, 10 * nth + 5, 5).await;
            cluster.stop().await;
            cluster = restart(&env, of.clone()).await;
        }
        let client = connect(&env, &cluster).await;
        let found: Vec<Bytes> = read_all(&client, 0).await.into_iter().map(|found| found.data).collect();
        assert_eq!(found, (0..20).map(entry).collect::<Vec<_>>());
    });
}

/// Runs `test` with three servers of one cluster, in simulated time.
fn with_three(test: impl AsyncFnOnce(Env, Cluster) + 'static) {
    let sim = Sim::new(1);
    let process = sim.process("nodes", [10, 0, 0, 1].into());
    let env = sim.env(process);
    sim.block_on(process, async move {
        let cluster = Cluster::form(&env, 3, 2, |dir, id| node_options(dir, id, 64)).await;
        test(env, cluster).await;
    });
}

/// The epoch of the newest layout.
async fn epoch(client: &Client) -> Epoch {
    client.layout().await.expect("it is known").epoch
}

#[test]
fn an_epoch_of_which_there_is_no_layout_ends_none_of_servers() {
    with_three(async |env, mut cluster| {
        append(&cluster.client, 0, 5).await;
        let known = epoch(&cluster.client).await;
        for (_, addr) in cluster.addrs.clone() {
            let stranger = Stranger::at(&env, addr).await;
            for epoch in epochs_after(known) {
                stranger.is_told_of_no_layout(epoch).await;
            }
        }
        append(&cluster.client, 5, 5).await;
        assert_eq!(epoch(&cluster.client).await, known, "it goes on in its epoch");
        cluster.kill(3);
        append(&cluster.client, 10, 5).await;
        assert_eq!(epoch(&cluster.client).await, known.next(), "and from there to the next one");
    });
}

#[test]
fn a_ballot_with_a_wrong_number_keeps_nobody_from_deciding() {
    with_three(async |env, mut cluster| {
        append(&cluster.client, 0, 5).await;
        for (_, addr) in cluster.addrs.clone() {
            let stranger = Stranger::node_at(&env, addr).await;
            for round in [u64::MAX, 1 << 63, 1 << 56, u64::from(u32::MAX)] {
                let epoch = epoch(&cluster.client).await.next();
                let ballot = Ballot { round, proposer: NodeId(u64::MAX) };
                let _: Promise = stranger.ask(epoch, &Prepare { epoch, ballot }).await.expect("answered");
            }
        }
        append(&cluster.client, 5, 5).await;
        cluster.kill(3);
        append(&cluster.client, 10, 5).await;
    });
}

#[test]
fn entries_far_above_the_end_leave_places_for_those_to_come() {
    run(|env, _| async move {
        for units in [1, 3] {
            let dir = TempDir::new().expect("a directory");
            let of = options(dir.path(), units);
            let cluster = restart(&env, of.clone()).await;
            append(&connect(&env, &cluster).await, 0, 5).await;
            let stranger = Stranger::at(&env, cluster.addrs()[0]).await;
            // Each as far above the one before as it may be, past half of the unit's addresses.
            for step in 1..=STRIPE_ADDRESSES / 2 / REACH_MAX_COUNT {
                let written = stranger.write(Epoch(1), Addr(step * REACH_MAX_COUNT)).await;
                written.expect("not too far above the one before");
            }
            cluster.stop().await;
            let cluster = restart(&env, of).await;
            let client = connect(&env, &cluster).await;
            for (pos, number) in append(&client, 5, 5).await.into_iter().zip(5..) {
                assert_eq!(client.read(pos).await.map(|found| found.data), Ok(entry(number)), "{pos}");
            }
            cluster.stop().await;
        }
    });
}

/// What is too far above the end: the last address of a block, the one in its middle, and what comes of numbers that are shifted.
const FAR: [u64; 4] = [(1 << 44) - 1, 1 << 43, 3 << 40, 5000 << 28];

/// Asks for everything that would take an address too far above the end of the stripe whose addresses begin at `base`.
async fn is_too_far(stranger: &Stranger, epoch: Epoch, base: u64) {
    for far in FAR {
        let addr = base + far;
        let ranges = vec![AddrRange::new(Addr(addr), Addr(addr + 1))];
        let answers = [
            stranger.write(epoch, Addr(addr)).await.map(|_| ()),
            stranger.ask::<_, Filled>(epoch, &Fill { ranges: ranges.clone() }).await.map(|_| ()),
            stranger.ask::<_, Trimmed>(epoch, &Trim { ranges }).await.map(|_| ()),
        ];
        for answer in answers {
            let is_refused = matches!(
                answer,
                Err(CallError::Refused(
                    Refusal::TooLarge { limit: REACH_MAX_COUNT, .. } | Refusal::Unwritten { .. }
                ))
            );
            assert!(is_refused, "{addr}: {answer:?}");
        }
    }
}

#[test]
fn an_entry_too_far_above_the_end_is_refused_and_leaves_no_holes() {
    run(|env, _| async move {
        for (units, replicas) in [(1, 1), (3, 2)] {
            let dir = TempDir::new().expect("a directory");
            let of = replicated(dir.path(), units, replicas);
            let cluster = restart(&env, of.clone()).await;
            append(&connect(&env, &cluster).await, 0, 5).await;
            for (unit, &addr) in cluster.addrs().iter().enumerate() {
                let stranger = Stranger::at(&env, addr).await;
                is_too_far(&stranger, Epoch(1), unit as u64 * STRIPE_ADDRESSES).await;
            }
            cluster.stop().await;
            let cluster = restart(&env, of).await;
            let client = connect(&env, &cluster).await;
            assert_eq!(append(&client, 5, 5).await, (5..10).map(LogPos).collect::<Vec<_>>());
            let found: Vec<Bytes> = read_all(&client, 0).await.into_iter().map(|found| found.data).collect();
            assert_eq!(found, (0..10).map(entry).collect::<Vec<_>>());
            cluster.stop().await;
        }
    });
}

#[test]
fn an_entry_too_far_above_the_end_is_refused_by_servers() {
    with_three(async |env, mut cluster| {
        append(&cluster.client, 0, 5).await;
        let known = epoch(&cluster.client).await;
        let bases = cluster.client.layout().await.expect("it is known").ranges[0].stripes.clone();
        for (node, addr) in cluster.addrs.clone() {
            let stranger = Stranger::at(&env, addr).await;
            for stripe in bases.iter().filter(|stripe| stripe.replicas.contains(&node)) {
                is_too_far(&stranger, known, stripe.base.0).await;
            }
        }
        append(&cluster.client, 5, 5).await;
        cluster.kill(3);
        assert_eq!(append(&cluster.client, 10, 5).await.last(), Some(&LogPos(14)));
        assert_eq!(epoch(&cluster.client).await, known.next());
    });
}

#[test]
fn an_entry_as_far_above_the_end_as_it_may_be_keeps_no_other_from_being_taken() {
    run(|env, dir| async move {
        let of = replicated(dir.path(), 3, 2);
        let cluster = restart(&env, of.clone()).await;
        append(&connect(&env, &cluster).await, 0, 5).await;
        // The first stripe has the positions 0 and 3, at its addresses 0 and 1. The other two end before the next tail by as much.
        let stranger = Stranger::at(&env, cluster.addrs()[0]).await;
        let (far, limit) = (Addr(1 + REACH_MAX_COUNT), REACH_MAX_COUNT);
        let refused = CallError::Refused(Refusal::TooLarge { found: limit + 1, limit });
        assert_eq!(stranger.write(Epoch(1), Addr(far.0 + 1)).await, Err(refused));
        stranger.write(Epoch(1), far).await.expect("not too far");
        cluster.stop().await;
        let cluster = restart(&env, of).await;
        let client = connect(&env, &cluster).await;
        let positions = append(&client, 5, 10).await;
        assert_eq!(positions[0], LogPos(3 * far.0 + 1));
        for (pos, number) in positions.into_iter().zip(5..) {
            assert_eq!(client.read(pos).await.map(|found| found.data), Ok(entry(number)), "{pos}");
        }
        cluster.stop().await;
    });
}

/// What a node refuses that only other nodes may ask for.
fn not_of_a_node(kind: Kind) -> CallError {
    CallError::Refused(Refusal::Malformed { kind: kind as u16 })
}

#[test]
fn a_seal_by_a_client_ends_no_epoch() {
    run(|env, _| async move {
        for extents in [&[][..], std::slice::from_ref(&(0..1)), &[0..1 << 44, 1 << 50..1 << 51]] {
            let dir = TempDir::new().expect("a directory");
            let of = options(dir.path(), 1);
            let cluster = restart(&env, of.clone()).await;
            append(&connect(&env, &cluster).await, 0, 5).await;
            let stranger = Stranger::at(&env, cluster.addrs()[0]).await;
            let sealed = stranger.seal_with(Epoch(1), extents).await;
            let written = stranger.write(Epoch(2), Addr(1000)).await;
            cluster.stop().await;
            let cluster = restart(&env, of).await;
            append(&connect(&env, &cluster).await, 5, 5).await;
            assert_eq!(sealed, Err(not_of_a_node(Kind::Seal)));
            assert_eq!(written, Err(CallError::Refused(Refusal::NoLayout { epoch: Epoch(2) })));
            cluster.stop().await;
        }
    });
}

#[test]
fn a_seal_by_a_client_ends_no_epoch_of_servers() {
    with_three(async |env, cluster| {
        append(&cluster.client, 0, 5).await;
        let known = epoch(&cluster.client).await;
        for (_, addr) in cluster.addrs.clone() {
            let stranger = Stranger::at(&env, addr).await;
            assert_eq!(
                stranger.seal_with(known, std::slice::from_ref(&(0..1))).await,
                Err(not_of_a_node(Kind::Seal))
            );
            let written = stranger.write(known.next(), Addr(1000)).await;
            assert_eq!(written, Err(CallError::Refused(Refusal::NoLayout { epoch: known.next() })));
            let ballot = Ballot { round: 1, proposer: NodeId(99) };
            let promised = stranger.ask::<_, Promise>(known, &Prepare { epoch: known.next(), ballot }).await;
            assert_eq!(promised, Err(not_of_a_node(Kind::Prepare)));
        }
        append(&cluster.client, 5, 5).await;
        assert_eq!(epoch(&cluster.client).await, known, "it goes on in its epoch");
    });
}

/// The record of `layout`, but for the number of its epoch.
fn record_of(layout: &Layout, epoch: Epoch) -> Bytes {
    let record = layout.encode();
    let (_, body) = record::decode(*b"ITly", 1, &record).expect("just encoded");
    let mut body = body.to_vec();
    body[16..24].copy_from_slice(&epoch.0.to_le_bytes());
    record::encode(*b"ITly", 1, |out| out.extend_from_slice(&body))
}

#[test]
fn a_layout_that_cannot_have_been_decided_is_not_believed() {
    with_three(async |env, mut cluster| {
        append(&cluster.client, 0, 5).await;
        let layout = cluster.client.layout().await.expect("it is known");
        let tell = async |stranger: &Stranger, record: Bytes| {
            let learn = Learn { invitation: Invitation::None, record };
            stranger.ask::<_, Learned>(layout.epoch, &learn).await
        };
        let next = layout.next_epoch(LogPos(7)).next_epoch(LogPos(7));
        for (_, addr) in cluster.addrs.clone() {
            let node = Stranger::node_at(&env, addr).await;
            for epoch in epochs_after(next.epoch) {
                for layout in [&layout, &next] {
                    let told = tell(&node, record_of(layout, epoch)).await;
                    assert_eq!(
                        told,
                        Err(not_of_a_node(Kind::Learn)),
                        "{epoch}: its tails are of other epochs"
                    );
                }
            }
            let client = Stranger::at(&env, addr).await;
            assert_eq!(
                tell(&client, next.encode()).await,
                Err(not_of_a_node(Kind::Learn)),
                "only nodes say so"
            );
        }
        append(&cluster.client, 5, 5).await;
        assert_eq!(epoch(&cluster.client).await, layout.epoch, "it goes on in its epoch");
        cluster.kill(3);
        append(&cluster.client, 10, 5).await;
    });
}
