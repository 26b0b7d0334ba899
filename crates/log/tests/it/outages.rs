//! What becomes of appends while their nodes cannot be reached: in simulated time, with every request counted.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::Time;
use ithaca_env::sim::Sim;
use ithaca_log::client::{AppendTo, Client, ClientError, ClientOptions, EntryKind, Forming, form};
use ithaca_log::layout::{Layout, NodeState};
use ithaca_log::pos::{LogPos, NodeId, StreamId};
use ithaca_log::server::{ClusterNode, NodeOptions};
use ithaca_log::stream::{Condition, ConflictKey, ConflictKeys, KeyHash};
use ithaca_log::wire::{Kind, Refusal};
use tempfile::TempDir;

use crate::gates::World;
use crate::nodes::{Cluster, listed, node_options};
use crate::stream_waits::run;

/// As long as a call takes at the most.
const TIMEOUT: Duration = Duration::from_secs(10);

const A: StreamId = StreamId(1000);

fn entry(number: u64) -> Bytes {
    Bytes::from(format!("entry {number}"))
}

/// Appends 300 entries by a client that writes to the units itself; at each node the `nth` write is lost with its connection. Where they stand,
/// as far as all is well.
async fn append_with_lost_writes(world: &World, relay_writes: bool, nth: u64) -> Vec<LogPos> {
    let options = ClientOptions {
        endpoints: vec![world.addr(NodeId(1))],
        timeout: TIMEOUT,
        forward_appends: false,
        relay_writes,
        ..ClientOptions::default()
    };
    let client = Client::connect(&world.env, options).await.expect("it serves");
    world.gates.iter().for_each(|gate| gate.break_at(Kind::Write, nth));
    let appends: Vec<_> = (0..300).map(|number| client.append(entry(number))).collect();
    let mut positions = Vec::new();
    for append in appends {
        positions.push(append.await.expect("appended"));
    }
    let read = client.read_many(&positions).await.expect("readable");
    assert!((0..).zip(&read).all(|(number, found)| found.data == entry(number)));
    let tail = client.check().await.expect("it serves").tail;
    for pos in (0..tail.0).map(LogPos).filter(|pos| !positions.contains(pos)) {
        assert_eq!(client.read(pos).await.expect("decided").kind, EntryKind::Junk, "each stands once");
    }
    positions
}

#[test]
fn a_batch_whose_writes_were_lost_is_decided_with_a_few_questions() {
    // Entry by entry that takes longer than the appends have. Lost at the first replicas they take other positions; at the
    // later ones they stand where the first have them.
    for (relay_writes, nth, first) in [(true, 1, 300), (false, 2, 0)] {
        run(move |world| async move {
            let positions = append_with_lost_writes(&world, relay_writes, nth).await;
            assert_eq!(positions, (first..first + 300).map(LogPos).collect::<Vec<_>>());
            // One a replica, and once more where the connection that is lost was asked.
            let most = 4 * world.layout.ranges[0].stripes.len() as u64;
            assert!(world.asked(Kind::Fill) <= most, "{} fills", world.asked(Kind::Fill));
        });
    }
}

#[test]
fn an_append_has_its_own_time_whatever_waited_before_it() {
    run(|world| async move {
        let (env, client) = (world.env.clone(), world.client(TIMEOUT).await);
        world.gates.iter().for_each(|gate| gate.set(true));
        // So many batches that the next ones wait for them.
        let mut old = Vec::new();
        for number in 0..100 {
            old.push(client.append(entry(number)));
            env.yield_now().await;
            env.yield_now().await;
        }
        env.sleep(TIMEOUT * 9 / 10).await;
        let fresh = client.append(entry(100));
        env.sleep(TIMEOUT / 5).await;
        world.gates.iter().for_each(|gate| gate.set(false));
        let pos = fresh.await.expect("it has most of its time left");
        assert_eq!(client.read(pos).await.expect("readable").data, entry(100));
        for append in old {
            append.await.expect_err("its time was over");
        }
    });
}

/// Appends 300 entries to a stream as one batch whose answer is lost: the next copy is told to look for them.
async fn append_without_answer(world: &World, client: &Client) -> Vec<AppendTo> {
    let sequencer = world.gate(world.layout.sequencer);
    sequencer.lose_answer(Kind::Append);
    let appends: Vec<_> = (0..300).map(|number| client.append_to(&[A], entry(number))).collect();
    world.env.sleep(Duration::from_millis(1)).await;
    appends
}

#[test]
fn entries_of_a_stream_whose_answer_was_lost_are_found_with_a_few_reads() {
    run(|world| async move {
        let client = world.client(TIMEOUT).await;
        let reads = world.asked(Kind::Read);
        for (number, append) in (0..).zip(append_without_answer(&world, &client).await) {
            let placed = append.await.expect("it stands");
            let place = placed.places.first().expect("of the stream");
            assert_eq!((placed.pos, place.position.0), (LogPos(number), number));
        }
        assert_eq!(world.asked(Kind::Append), 2, "the second copy was refused");
        let reads = world.asked(Kind::Read) - reads;
        assert!(reads <= 2 * world.layout.ranges[0].stripes.len() as u64, "{reads} reads");
    });
}

#[test]
fn entries_that_were_found_and_cannot_be_read_are_waited_for_as_long_as_an_append_has() {
    // One after the other each took a whole call's time.
    run(|world| async move {
        let client = world.client(TIMEOUT).await;
        let began = world.env.now();
        world.gates.iter().for_each(|gate| {
            gate.refuse(Kind::Read, Refusal::Overloaded { pending: 1, limit: 1 });
        });
        for (number, append) in (0..).zip(append_without_answer(&world, &client).await) {
            let unknown = append.await;
            let is_said =
                matches!(unknown, Err(ClientError::OutcomeUnknown { pos: LogPos(at), .. }) if at == number);
            assert!(is_said, "entry {number}: {unknown:?}");
        }
        assert!(world.env.now().since(began) <= TIMEOUT, "{:?}", world.env.now().since(began));
    });
}

#[test]
fn what_one_stripe_cannot_decide_leaves_the_others_entries_known() {
    run(|world| async move {
        let client = world.client(TIMEOUT).await;
        let failing = NodeId(if world.layout.sequencer == NodeId(2) { 3 } else { 2 });
        let gate = world.gate(failing);
        gate.break_at(Kind::Write, 1);
        gate.refuse(Kind::Fill, Refusal::Failed);
        // One of the batch is refused, so that it cannot be written again as it is.
        let part = ConflictKeys::from_slice(&[ConflictKey { stream: A, key: KeyHash(1) }]);
        let condition = || Condition { snapshot: LogPos(0), reads: part.clone(), writes: part.clone() };
        let mut appends = vec![client.append_if(&[A], condition(), entry(0))];
        let refused = client.append_if(&[A], condition(), entry(0));
        appends.extend((1..60).map(|number| client.append_to(&[A], entry(number))));
        let mut unknown = 0;
        for (pos, append) in (0..).map(LogPos).zip(appends) {
            let place = world.layout.locate(pos).expect("it was granted");
            match append.await {
                Ok(placed) => assert_eq!(placed.pos, pos),
                Err(ClientError::OutcomeUnknown { pos: at, .. }) if place.replicas.contains(&failing) => {
                    assert_eq!(at, pos);
                    unknown += 1;
                }
                Err(error) => panic!("{pos} on {:?}: {error}", place.replicas),
            }
        }
        assert!(matches!(refused.await, Err(ClientError::Conflict { .. })));
        assert!(unknown > 0, "{failing} decides nothing");
    });
}

#[test]
fn who_waits_for_room_goes_on_after_a_program_stood_still_longer_than_its_appends_had() {
    // All that was under way ends at the same moment, and what was queued behind it a moment later.
    let (stops, goes_on) = (Time(100_000_000_000), Time(200_000_000_000));
    let sim = Sim::new(1);
    let process = sim.process("nodes", [10, 0, 0, 1].into());
    sim.at(stops, move |sim| sim.pause(process));
    sim.at(goes_on, move |sim| sim.resume(process));
    let env = sim.env(process);
    sim.block_on(process, async move {
        let world = World::begin(&env, Path::new("data"), [10, 0, 0, 1]).await;
        let client = world.client(TIMEOUT).await;
        world.gates.iter().for_each(|gate| gate.set(true));
        env.sleep(stops.since(env.now()) - TIMEOUT / 2).await;
        // So many batches that what comes next is in none.
        let mut appends = Vec::new();
        for number in 0..64 {
            appends.push(client.append(entry(number)));
            env.yield_now().await;
            env.yield_now().await;
        }
        let large = Bytes::from(vec![7; client.entry_max_bytes()]);
        appends.extend((0..(32 << 20) / large.len()).map(|_| client.append(large.clone())));
        env.timeout(20 * TIMEOUT, client.room()).await.expect("nothing is under way any more");
        assert!(env.now().since(stops) > 2 * TIMEOUT, "at {:?} it had not stood still", env.now());
        for append in appends {
            append.await.expect_err("its time was over");
        }
    });
}

#[test]
fn a_node_that_listens_elsewhere_than_the_layout_says_stays_out_until_it_does_not() {
    // It hears the others, so it came back by itself, and they took it out again, for ever: each time costs two epochs, and a range of which a
    // layout has room for so many.
    let sim = Sim::new(1);
    let process = sim.process("nodes", [10, 0, 0, 1].into());
    let env = sim.env(process);
    sim.block_on(process, async move {
        let of = |dir: &Path, id| node_options(dir, id, 64);
        let mut cluster = Cluster::form(&env, 3, 3, of).await;
        let right = cluster.addrs[2].1;
        cluster.stop(3).await;
        let out = cluster.until(&env, "3 is out", |layout| listed(layout, 3).state == NodeState::Out).await;
        cluster.addrs[2].1 = ([127, 0, 0, 1], 0).into();
        cluster.start(&env, 3, of).await;
        for number in 0..60 {
            env.sleep(Duration::from_secs(1)).await;
            cluster.client.append(entry(number)).await.expect("appended");
        }
        let later = cluster.client.layout().await.expect("known");
        assert_eq!((later.epoch, later.ranges.len()), (out.epoch, out.ranges.len()));
        cluster.stop(3).await;
        cluster.addrs[2].1 = right;
        cluster.start(&env, 3, of).await;
        cluster.until(&env, "all are back", Layout::is_whole).await;
    });
}

#[test]
fn a_broken_link_takes_out_one_of_its_two_ends_once() {
    // The one that was out heard most of the others, so it came back, and took the other one out, which it could not seal: by turns, both at times.
    let sim = Sim::new(1);
    let ip = |id: u64| IpAddr::from([10, 0, 0, id as u8]);
    let env_of = |id: u64| {
        let process = sim.process("node", ip(id));
        (process, sim.env(process))
    };
    let (client_process, env) = env_of(4);
    let (mut nodes, mut addrs, mut dirs) = (Vec::new(), Vec::new(), Vec::new());
    for id in 1..=3 {
        let (process, env) = env_of(id);
        let dir = TempDir::new().expect("a directory");
        let options = NodeOptions { listen: (ip(id), 0).into(), ..node_options(dir.path(), id, 64) };
        let started = sim.block_on(process, async move { ClusterNode::start(&env, options).await });
        let node = started.expect("it starts");
        addrs.push((NodeId(id), node.addr()));
        nodes.push(node);
        dirs.push(dir);
    }
    let options = ClientOptions {
        endpoints: addrs.iter().map(|&(_, addr)| addr).collect(),
        timeout: TIMEOUT,
        ..ClientOptions::default()
    };
    let client = sim.block_on(client_process, async move {
        let forming = Forming { nodes: addrs, replicas: 2, min_replicas: 2, timeout: TIMEOUT };
        form(&env, &forming).await.expect("they are free");
        Client::connect(&env, options).await.expect("it serves")
    });
    let layouts = || {
        let client = client.clone();
        sim.block_on(client_process, async move { client.layouts().await.expect("a majority serves") })
    };
    sim.partition(ip(2), ip(3));
    for number in 0..60 {
        sim.run_for(Duration::from_secs(1));
        let client = client.clone();
        let appended = sim.block_on(client_process, async move { client.append(entry(number)).await });
        appended.expect("two nodes are enough");
    }
    let states = |id| {
        let mut states: Vec<NodeState> =
            layouts().iter().rev().map(|layout| listed(layout, id).state).collect();
        states.dedup();
        states
    };
    let [one, two, three] = [1, 2, 3].map(states);
    assert_eq!(three, [NodeState::InUse, NodeState::Out]);
    assert!(one == [NodeState::InUse] && two == one, "{one:?} {two:?}");
    sim.mend(ip(2), ip(3));
    sim.mend(ip(3), ip(2));
    sim.run_for(Duration::from_secs(5));
    assert!(layouts().first().is_some_and(|layout| layout.is_whole()));
}
