//! A cluster that goes on without nodes that are gone for good.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_env::sim::Sim;
use ithaca_env::task::{TaskHandle, gather};
use ithaca_log::client::{
    Client, ClientError, ClientOptions, Connection, EntryKind, Forming, GiveUpError, GivenUp, GivingUp,
    Identity, form, give_up,
};
use ithaca_log::layout::{Change, Layout};
use ithaca_log::limits;
use ithaca_log::planted::Planted;
use ithaca_log::pos::{Ballot, ClientId, ClusterId, Epoch, LogPos, NodeId, StreamId};
use ithaca_log::server::{Answering, ClusterNode, NodeOptions, StartError, ViewHost};
use ithaca_log::wire::{Accept, Accepted, Message, Prepare, Promise, Seal, Sealed, Vote};
use tempfile::TempDir;

use crate::nodes::{Cluster, node_options};
use crate::worlds::run;

const TIMEOUT: Duration = Duration::from_secs(20);

fn of(dir: &Path, id: u64) -> NodeOptions {
    node_options(dir, id, 256)
}

fn entry(number: u64) -> Bytes {
    Bytes::from(format!("entry {number}"))
}

async fn append(client: &Client, numbers: std::ops::Range<u64>) -> Vec<LogPos> {
    let mut positions = Vec::new();
    for number in numbers {
        positions.push(client.append(entry(number)).await.expect("appended"));
    }
    positions
}

fn endpoints(cluster: &Cluster) -> Vec<SocketAddr> {
    cluster.addrs.iter().map(|&(_, addr)| addr).collect()
}

/// What is asked for where these nodes are gone.
fn giving(cluster: &Cluster, gone: &[u64]) -> GivingUp {
    let gone = gone.iter().copied().map(NodeId).collect();
    GivingUp { endpoints: endpoints(cluster), gone, timeout: TIMEOUT, planted: Planted::NONE }
}

async fn without(env: &Env, cluster: &Cluster, gone: &[u64]) -> Result<GivenUp, GiveUpError> {
    give_up(env, &giving(cluster, gone)).await
}

async fn client(env: &Env, cluster: &Cluster) -> Client {
    let hole_wait = Duration::from_millis(10);
    let options = ClientOptions { endpoints: endpoints(cluster), hole_wait, ..ClientOptions::default() };
    Client::connect(env, options).await.expect("it serves")
}

/// A cluster of so many nodes and copies with these entries, of which some nodes are gone, and its layout.
async fn lost(env: &Env, (count, replicas): (u64, u16), entries: u64, gone: &[u64]) -> (Cluster, Layout) {
    let mut cluster = Cluster::form(env, count, replicas, of).await;
    append(&cluster.client, 0..entries).await;
    let layout = cluster.client.layout().await.expect("known");
    gone.iter().for_each(|&id| cluster.kill(id));
    (cluster, Layout::clone(&layout))
}

/// Where the log of a cluster goes on whose entries end before `end`.
fn behind(end: u64) -> u64 {
    end + limits::FILL_AHEAD_MAX_COUNT
}

/// That the log has these entries below `end`, nothing else up to where it goes on, and takes more behind.
async fn check(client: &Client, end: u64, is_left: impl Fn(u64) -> bool) {
    assert_eq!(client.check().await.expect("it serves").tail, LogPos(behind(end)));
    let mut next = 0;
    while next < behind(end) {
        for found in client.read_range(LogPos(next), LogPos(behind(end))).await.expect("readable") {
            assert_eq!(found.pos, LogPos(next), "no gap");
            match next < end && is_left(next) {
                true => assert_eq!(found.data, entry(next)),
                false => assert_eq!(found.kind, EntryKind::Trimmed, "{next}"),
            }
            next += 1;
        }
    }
    assert_eq!(append(client, end..end + 3).await, [0, 1, 2].map(|more| LogPos(behind(end) + more)));
    assert_eq!(client.read(LogPos(behind(end))).await.expect("appended").data, entry(end));
}

/// A host of views that counts how often it was to forget them.
#[derive(Default)]
struct Forgetful {
    forgotten: Cell<u64>,
}

impl ViewHost for Forgetful {
    fn ask(&self, _: StreamId, question: Bytes) -> Answering {
        Box::pin(async { question })
    }

    fn forget(&self) {
        self.forgotten.set(self.forgotten.get() + 1);
    }
}

#[test]
fn one_node_of_three_goes_on_with_what_it_holds() {
    run(|env, _dir| async move {
        let mut cluster = Cluster::form(&env, 3, 2, of).await;
        let host = Rc::new(Forgetful::default());
        cluster.node(1).host_views(&(Rc::clone(&host) as Rc<dyn ViewHost>));
        let before = append(&cluster.client, 0..300).await;
        assert_eq!(before.last(), Some(&LogPos(299)));
        cluster.kill(2);
        cluster.kill(3);
        let done = without(&env, &cluster, &[2, 3]).await.expect("given up");
        // Position 1, 4, ... stood on nodes 2 and 3.
        assert_eq!(done.lost, Some(100));
        let after = client(&env, &cluster).await;
        check(&after, 300, |number| number % 3 != 1).await;
        // What the one before has read may be lost, and views that a node keeps may rest on it.
        assert_eq!(host.forgotten.get(), 1);
        let epoch = done.layout.epoch;
        assert_eq!(cluster.client.append(entry(0)).await, Err(ClientError::AfterLoss { epoch }));
        assert_eq!(cluster.client.read(LogPos(0)).await, Err(ClientError::AfterLoss { epoch }));
        // The same after a restart, and a second time changes nothing.
        cluster.kill(1);
        cluster.start(&env, 1, of).await;
        assert_eq!(append(&client(&env, &cluster).await, 0..1).await, [LogPos(behind(300) + 3)]);
        let again = without(&env, &cluster, &[2, 3]).await.expect("it was done");
        assert_eq!((again.lost, again.layout.nodes.len()), (None, 1));
        // One that comes back all the same hears that it is no member, and may be added with nothing.
        cluster.start(&env, 2, of).await;
        let ended = env.timeout(TIMEOUT, cluster.node(2).ended()).await.expect("it ends");
        assert!(matches!(ended, ithaca_log::server::NodeEnd::Removed { .. }), "{ended:?}");
        cluster.kill(2);
        let refused = cluster.try_start(&env, 2, of).await.err();
        assert!(matches!(refused, Some(StartError::Removed { .. })), "{refused:?}");
        cluster.wipe(2);
        cluster.start(&env, 2, of).await;
        let after = client(&env, &cluster).await;
        after.add_node(NodeId(2), cluster.addrs[1].1).await.expect("added");
        cluster.wipe(3);
        cluster.start(&env, 3, of).await;
        after.add_node(NodeId(3), cluster.addrs[2].1).await.expect("added");
        cluster.client = after;
        cluster.until(&env, "all have all", Layout::is_whole).await;
        cluster.kill(1);
        cluster.until(&env, "1 is out", |layout| !layout.in_use().any(|node| node == NodeId(1))).await;
        for number in 0..300 {
            let found = cluster.client.read(LogPos(number)).await.expect("others have copied it");
            match number % 3 {
                1 => assert_eq!(found.kind, EntryKind::Trimmed, "{number}"),
                _ => assert_eq!(found.data, entry(number)),
            }
        }
    });
}

#[test]
fn one_node_goes_on_with_everything_where_each_has_a_copy_of_all() {
    run(|env, _dir| async move {
        let (cluster, _) = lost(&env, (3, 3), 50, &[1, 2]).await;
        let done = without(&env, &cluster, &[1, 2]).await.expect("given up");
        assert_eq!(done.lost, Some(0), "nothing but what was never written");
        check(&client(&env, &cluster).await, 50, |_| true).await;
    });
}

#[test]
fn a_stripe_that_has_lost_every_replica_is_given_up_by_a_majority_too() {
    run(|env, _dir| async move {
        let mut cluster = Cluster::form(&env, 4, 2, of).await;
        append(&cluster.client, 0..40).await;
        // Another range, all of which is held.
        cluster.stop(3).await;
        cluster.until(&env, "3 is out", |layout| !layout.in_use().any(|node| node == NodeId(3))).await;
        append(&cluster.client, 40..70).await;
        cluster.start(&env, 3, of).await;
        cluster.until(&env, "all are back", Layout::is_whole).await;
        append(&cluster.client, 70..110).await;
        let stream = StreamId::of_name("orders");
        for number in 110..150 {
            let placed = cluster.client.append_to(&[stream], entry(number)).await.expect("appended");
            assert_eq!(placed.pos, LogPos(number));
        }
        let before = cluster.client.layout().await.expect("known");
        cluster.kill(3);
        cluster.kill(4);
        let done = without(&env, &cluster, &[3, 4]).await.expect("given up");
        let after = client(&env, &cluster).await;
        let is_left = |number: u64| is_held(&before, LogPos(number), &[3, 4]);
        let left: Vec<u64> = (0..150).filter(|&number| is_left(number)).collect();
        assert!(left.len() < 150 && left.len() > 75, "{}", left.len());
        assert_eq!(done.lost, Some(150 - left.len() as u64));
        check(&after, 150, is_left).await;
        // What is left of a stream is read, and more comes behind.
        let placed = after.append_to(&[stream], entry(7)).await.expect("appended");
        let mut reader = after.stream_reader(stream, LogPos(0));
        reader.sync().await.expect("it serves");
        let mut found = Vec::new();
        while let Some(entry) = reader.read_next().await.expect("readable") {
            found.push(entry.pos.0);
        }
        let expected = left.into_iter().filter(|&number| number >= 110).chain([placed.pos.0]);
        assert_eq!(found, expected.collect::<Vec<u64>>());
        // Nodes with nothing take their places.
        for id in [3, 4] {
            cluster.wipe(id);
            cluster.start(&env, id, of).await;
            after.add_node(NodeId(id), cluster.addrs[id as usize - 1].1).await.expect("added");
        }
        cluster.client = after;
        cluster.until(&env, "all have all", Layout::is_whole).await;
    });
}

#[test]
fn half_of_the_members_are_given_up_although_the_others_hold_everything() {
    // Who hears no majority of the members may be cut off itself, and changes nothing.
    run(|env, _dir| async move {
        let (cluster, _) = lost(&env, (4, 2), 40, &[2, 4]).await;
        let done = without(&env, &cluster, &[2, 4]).await.expect("given up");
        assert_eq!(done.lost, Some(0));
        check(&client(&env, &cluster).await, 40, |_| true).await;
    });
}

#[test]
fn what_the_cluster_goes_on_without_by_itself_or_that_is_there_is_not_given_up() {
    run(|env, _dir| async move {
        let mut cluster = Cluster::form(&env, 4, 2, of).await;
        append(&cluster.client, 0..10).await;
        let layout = cluster.client.layout().await.expect("known");
        let there = |id: u64| GiveUpError::There { node: NodeId(id), addr: cluster.addrs[id as usize - 1].1 };
        assert_eq!(without(&env, &cluster, &[3]).await, Err(there(3)));
        let no_member = GiveUpError::NoMember { node: NodeId(9), cluster: layout.cluster };
        assert_eq!(without(&env, &cluster, &[9]).await, Err(no_member));
        cluster.kill(3);
        let there = GiveUpError::There { node: NodeId(4), addr: cluster.addrs[3].1 };
        assert_eq!(without(&env, &cluster, &[3, 4]).await, Err(there));
        assert_eq!(without(&env, &cluster, &[3]).await, Err(GiveUpError::NotNeeded));
        cluster.kill(1);
        cluster.kill(2);
        // Who has lost what it held is none of those who are left.
        cluster.start(&env, 1, of).await;
        cluster.wipe(2);
        cluster.start(&env, 2, of).await;
        let empty = GiveUpError::Empty { node: NodeId(2), addr: cluster.addrs[1].1 };
        assert_eq!(without(&env, &cluster, &[3]).await, Err(empty));
        cluster.kill(4);
        cluster.wipe(4);
        let done = without(&env, &cluster, &[2, 3, 4]).await.expect("given up");
        assert_eq!(done.layout.nodes.len(), 1);
    });
}

#[test]
fn those_who_decide_nothing_vote_where_nobody_is_left_who_does() {
    run(|env, _dir| async move {
        let gone = [1, 2, 3, 4, 5];
        let (mut cluster, before) = lost(&env, (7, 2), 70, &gone).await;
        assert_eq!(before.acceptors(), gone.map(NodeId), "the test wants more nodes than decide");
        // One that does not answer may have voted for somebody else.
        cluster.kill(6);
        let in_short = GivingUp { timeout: Duration::from_secs(1), ..giving(&cluster, &gone) };
        let refused = give_up(&env, &in_short).await;
        assert!(matches!(refused, Err(GiveUpError::Node(_))), "{refused:?}");
        cluster.start(&env, 6, of).await;
        let both = [0, 1].map(|_| without(&env, &cluster, &gone));
        let both = gather(both.into(), |_| false).await;
        let done: Vec<GivenUp> = both.into_iter().flatten().map(|done| done.expect("given up")).collect();
        assert_eq!(done[0].layout, done[1].layout);
        assert_eq!(done[0].layout.nodes.iter().map(|node| node.id.0).collect::<Vec<_>>(), [6, 7]);
        let is_left = |number: u64| is_held(&before, LogPos(number), &gone);
        assert_eq!((0..70).filter(|&number| is_left(number)).count(), 30);
        check(&client(&env, &cluster).await, 70, is_left).await;
        // From then on they decide as any do.
        cluster.stop(7).await;
        let after = client(&env, &cluster).await;
        assert!(after.append(entry(1)).await.is_ok(), "6 goes on alone");
    });
}

#[test]
fn a_node_that_the_others_hear_is_not_given_up_by_who_does_not() {
    // It would be left with what it holds, and the others go on without knowing.
    let sim = Sim::new(1);
    let ip = |id: u64| IpAddr::from([10, 0, 0, id as u8]);
    let (mut nodes, mut addrs, mut dirs) = (Vec::new(), Vec::new(), Vec::new());
    for id in 1..=3 {
        let process = sim.process("node", ip(id));
        let (env, dir) = (sim.env(process), TempDir::new().expect("a directory"));
        let options = NodeOptions { listen: (ip(id), 0).into(), ..of(dir.path(), id) };
        let started = sim.block_on(process, async move { ClusterNode::start(&env, options).await });
        nodes.push(started.expect("it starts"));
        addrs.push((NodeId(id), nodes[nodes.len() - 1].addr()));
        dirs.push(dir);
    }
    let operator = sim.process("operator", ip(4));
    let (env, forming) = (sim.env(operator), addrs.clone());
    sim.block_on(operator, async move {
        let forming = Forming { nodes: forming, replicas: 2, min_replicas: 2, timeout: TIMEOUT };
        form(&env, &forming).await.expect("they are free");
    });
    sim.run_for(Duration::from_secs(2));
    [2, 3].iter().for_each(|&id| sim.partition(ip(4), ip(id)));
    let env = sim.env(operator);
    let refused = sim.block_on(operator, async move {
        let (endpoints, gone) = (vec![addrs[0].1], [2, 3].map(NodeId).to_vec());
        give_up(&env, &GivingUp { endpoints, gone, timeout: TIMEOUT, planted: Planted::NONE }).await
    });
    assert_eq!(refused, Err(GiveUpError::Heard { node: NodeId(2), by: NodeId(1) }));
}

/// What node `id` answers to a message that another node sends.
async fn told<M: Message, R: Message>(env: &Env, cluster: &Cluster, id: u64, message: &M) -> R {
    let who = Identity { client: ClientId(0), node: NodeId(id), cluster: ClusterId::UNKNOWN };
    let (addr, until) = (cluster.addrs[id as usize - 1].1, env.now() + TIMEOUT);
    let connection = Connection::open(env, addr, who, until).await.expect("it listens");
    connection.call::<M, R>(env, Epoch(0), message, until).await.expect("it answers").0
}

/// Has node 1 sealed, and accept the layout that follows, as the last thing of somebody who is gone then.
async fn accept(
    env: &Env,
    cluster: &Cluster,
    before: &Layout,
    next: impl FnOnce(&BTreeMap<NodeId, Sealed>) -> Layout,
) -> Layout {
    let seal = Seal { epoch: before.epoch, extents: before.active_extents(NodeId(1)) };
    let next = next(&[(NodeId(1), told(env, cluster, 1, &seal).await)].into());
    let ballot = Ballot { round: 1000, proposer: NodeId(2) };
    let promise: Promise = told(env, cluster, 1, &Prepare { epoch: before.epoch.next(), ballot }).await;
    assert_eq!(promise.vote, Vote::Given { accepted: None });
    let accepted: Accepted = told(env, cluster, 1, &Accept { ballot, record: next.encode() }).await;
    assert_eq!(accepted.vote, Vote::Given { accepted: None });
    next
}

/// One of three goes on that had accepted a layout of those who are gone.
pub fn give_up_after_another_change(planted: Planted) {
    run(|env, _dir| async move {
        let (cluster, before) = lost(&env, (3, 2), 30, &[2, 3]).await;
        let least = Change { min_replicas: Some(2), ..Change::default() };
        let next = |_: &_| before.change(LogPos(30), &least).expect("a layout");
        let next = accept(&env, &cluster, &before, next).await;
        let giving = GivingUp { planted, ..giving(&cluster, &[2, 3]) };
        let done = give_up(&env, &giving).await.expect("given up");
        assert_eq!((done.layout.epoch, done.layout.min_replicas), (next.epoch.after_loss(), 2));
        let after = client(&env, &cluster).await;
        after.set_min_replicas(1).await.expect("changed");
        check(&after, 30, |number| number % 3 != 1).await;
    });
}

#[test]
fn what_may_have_been_decided_with_those_who_are_gone_is_completed_first() {
    give_up_after_another_change(Planted::NONE);
}

#[test]
fn a_loss_that_was_decided_and_not_told_is_completed() {
    run(|env, _dir| async move {
        let (mut cluster, before) = lost(&env, (3, 2), 30, &[2, 3]).await;
        let gone = [2, 3].map(NodeId);
        let next = |sealed: &_| before.without(&gone, sealed).expect("a layout");
        let next = accept(&env, &cluster, &before, next).await;
        // It survives a restart.
        cluster.kill(1);
        cluster.start(&env, 1, of).await;
        let done = without(&env, &cluster, &[2, 3]).await.expect("given up");
        assert_eq!((done.lost, &done.layout), (Some(10), &next));
        check(&client(&env, &cluster).await, 30, |number| number % 3 != 1).await;
    });
}

#[test]
fn two_who_give_up_the_same_at_once_come_to_one_layout() {
    run(|env, _dir| async move {
        let (cluster, _) = lost(&env, (5, 2), 50, &[3, 4, 5]).await;
        let both = [0, 1].map(|_| without(&env, &cluster, &[3, 4, 5]));
        let both = gather(both.into(), |_| false).await;
        let layouts: Vec<Layout> =
            both.into_iter().flatten().map(|done| done.expect("given up").layout).collect();
        let newest = client(&env, &cluster).await.layout().await.expect("known");
        assert!(layouts.iter().all(|layout| *layout == layouts[0]), "{layouts:?}");
        assert!(newest.epoch >= layouts[0].epoch && newest.nodes.len() == 2, "{newest:?}");
        // Of five stripes two have a replica on nodes 1 and 2, and a third one.
        check(&client(&env, &cluster).await, 50, |number| [0, 1, 4].contains(&(number % 5))).await;
    });
}

/// What writers were told, by position.
type Told = Rc<RefCell<BTreeMap<LogPos, u64>>>;

/// Appends for as long as that is possible, under numbers that nobody else uses.
async fn write(env: Env, client: Client, numbers: u64, told: Told) {
    for number in numbers.. {
        match client.append(entry(number)).await {
            Ok(pos) => {
                let before = told.borrow_mut().insert(pos, number);
                assert_eq!(before, None, "position {pos} was given twice");
            }
            Err(ClientError::AfterLoss { .. }) => return,
            Err(_) => {}
        }
        env.sleep(Duration::from_millis(1)).await;
    }
}

/// Whether the stripe of a position has a replica that is not gone.
fn is_held(layout: &Layout, pos: LogPos, gone: &[u64]) -> bool {
    let Some(range) = layout.ranges.iter().find(|range| range.end > pos) else { return false };
    let stripe = (pos.0 - range.start.0) as usize % range.stripes.len();
    range.stripes[stripe].replicas.iter().any(|node| !gone.contains(&node.0))
}

/// Starts three writers.
fn writers(env: &Env, cluster: &Cluster, told: &Told) -> Vec<TaskHandle<()>> {
    let start = |writer: u64| {
        let (env, endpoints, told) = (env.clone(), endpoints(cluster), Rc::clone(told));
        let options =
            ClientOptions { endpoints, timeout: Duration::from_secs(1), ..ClientOptions::default() };
        env.clone().spawn(async move {
            let client = Client::connect(&env, options).await.expect("it serves");
            write(env, client, writer * 1_000_000, told).await;
        })
    };
    (0..3).map(start).collect()
}

/// Gives up `gone`, by several who are interrupted, while a node that `stays` may stop and start. `None` if the others go on by themselves.
async fn interrupted(env: &Env, cluster: &mut Cluster, gone: &[u64], stays: u64) -> Option<GivenUp> {
    let below = |limit: u64| env.random_u64() % limit;
    loop {
        let first = env.timeout(Duration::from_millis(below(2000)), without(env, cluster, gone));
        let second = env.timeout(Duration::from_millis(below(2000)), without(env, cluster, gone));
        let both: Vec<Pin<Box<dyn Future<Output = _>>>> = vec![Box::pin(first), Box::pin(second)];
        gather(both, |_| false).await;
        if below(2) == 0 {
            cluster.kill(stays);
            env.sleep(Duration::from_millis(below(500))).await;
            cluster.start(env, stays, of).await;
        }
        match without(env, cluster, gone).await {
            Ok(done) => return Some(done),
            Err(GiveUpError::NotNeeded) => return None,
            Err(error) => {
                assert!(matches!(error, GiveUpError::Busy { .. } | GiveUpError::Node(_)), "{error}")
            }
        }
    }
}

/// Gives up nodes of a busy cluster that has several ranges. In half of the runs those who are gone may have gone on without one who is left.
async fn lose(env: &Env, seed: u64) {
    let below = |limit: u64| env.random_u64() % limit;
    let (count, replicas) = (3 + seed % 3, 2 + (seed / 3 % 2) as u16);
    let mut cluster = Cluster::form(env, count, replicas, of).await;
    let told = Told::default();
    let writers = writers(env, &cluster, &told);
    env.sleep(Duration::from_millis(50 + below(100))).await;
    let away = 1 + below(count);
    cluster.kill(away);
    env.sleep(Duration::from_millis(below(1500))).await;
    cluster.start(env, away, of).await;
    let is_settled = below(2) == 0;
    if is_settled {
        cluster.until(env, "all are back", Layout::is_whole).await;
        env.sleep(Duration::from_millis(below(100))).await;
    }
    let deciding = cluster.client.layout().await.expect("known").acceptors();
    let stays = deciding[below(deciding.len() as u64) as usize].0;
    let mut gone: Vec<u64> = (1..=count).filter(|&id| id != stays).collect();
    while gone.len() > 2 && below(2) == 0 {
        gone.remove(below(gone.len() as u64) as usize);
    }
    gone.iter().for_each(|&id| cluster.kill(id));
    env.sleep(Duration::from_millis(below(1000))).await;
    let Some(done) = interrupted(env, &mut cluster, &gone, stays).await else { return };
    for writer in writers {
        env.timeout(TIMEOUT, writer.join()).await.expect("it is told").expect("nothing panics");
    }
    let after = client(env, &cluster).await;
    let layouts = after.layouts().await.expect("known");
    let before = layouts.iter().find(|layout| !layout.lost_by(&done.layout).is_empty()).expect("remembered");
    let told = told.take();
    for (&pos, &number) in &told {
        match after.read(pos).await {
            Ok(found) if found.kind == EntryKind::Data => assert_eq!(found.data, entry(number), "{pos}"),
            _ => assert!(!is_settled || !is_held(before, pos, &gone), "{pos} is held still"),
        }
    }
    let more = append(&after, 9_000_000..9_000_010).await;
    assert!(told.keys().all(|pos| !more.contains(pos)), "a position was given twice");
    cluster.kill(stays);
    cluster.start(env, stays, of).await;
    for (pos, number) in more.iter().zip(9_000_000..) {
        assert_eq!(after.read(*pos).await.expect("durable").data, entry(number));
    }
}

#[test]
fn whoever_is_interrupted_nothing_that_is_left_is_lost_and_no_position_is_given_twice() {
    for seed in 0..20 {
        println!("seed {seed}");
        let sim = Sim::new(seed);
        let process = sim.process("nodes", [10, 0, 0, 1].into());
        let env = sim.env(process);
        sim.block_on(process, async move { lose(&env, seed).await });
    }
}
