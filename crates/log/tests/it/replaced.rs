//! Nodes that are gone at the same time, and one that comes back with nothing.

use std::time::Duration;

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_env::sim::{LinkOptions, Sim, SimOptions};
use ithaca_log::client::{Client, ClientOptions, FormError, Forming, MembersError, form};
use ithaca_log::layout::{Layout, NodeState};
use ithaca_log::pos::{LogPos, NodeId};
use ithaca_log::server::{ClusterNode, NodeOptions};

use crate::nodes::{Cluster, listed, node_options};
use crate::worlds::run;

const SEGMENTS: u64 = 64;

fn entry(number: u64) -> Bytes {
    Bytes::from(format!("entry {number}"))
}

fn is_out(layout: &Layout, id: u64) -> bool {
    listed(layout, id).state == NodeState::Out
}

async fn append(client: &Client, numbers: std::ops::Range<u64>) {
    for number in numbers {
        assert_eq!(client.append(entry(number)).await.expect("appended"), LogPos(number));
    }
}

/// A client that knows of one node only.
async fn client_of(env: &Env, cluster: &Cluster, id: u64, timeout: Duration) -> Client {
    let endpoints = vec![cluster.addrs[id as usize - 1].1];
    let options = ClientOptions { endpoints, timeout, ..ClientOptions::default() };
    Client::connect(env, options).await.expect("it serves")
}

#[test]
fn a_node_that_has_lost_everything_decides_nothing_before_the_others_have_agreed_to_that() {
    // It had decided layouts of which the one who asks knows nothing. If it did so again what was acknowledged in them would be gone.
    run(|env, _dir| async move {
        let of = |dir: &std::path::Path, id| node_options(dir, id, SEGMENTS);
        let mut cluster = Cluster::form(&env, 3, 2, of).await;
        append(&cluster.client, 0..10).await;
        // Node 2 is the sequencer, so that it can be asked alone later.
        cluster.stop(1).await;
        cluster.until(&env, "1 is out", |layout| is_out(layout, 1)).await;
        cluster.start(&env, 1, of).await;
        cluster.until(&env, "all are back", Layout::is_whole).await;
        cluster.kill(3);
        let known = cluster.until(&env, "3 is out", |layout| is_out(layout, 3)).await;
        assert_eq!(known.sequencer, NodeId(2));
        // Nodes 1 and 3 go on without node 2.
        cluster.kill(2);
        cluster.start(&env, 3, of).await;
        cluster.until(&env, "2 is out", |layout| is_out(layout, 2) && !is_out(layout, 3)).await;
        append(&cluster.client, 10..20).await;
        // Node 3 loses everything while node 1 is away; node 2 knows nothing of it.
        cluster.kill(1);
        cluster.kill(3);
        cluster.wipe(3);
        cluster.start(&env, 2, of).await;
        cluster.start(&env, 3, of).await;
        let alone = client_of(&env, &cluster, 2, Duration::from_secs(3)).await;
        let addr = cluster.addrs[2].1;
        let refused =
            alone.replace_node(NodeId(3), addr).await.expect_err("most of those who decide are gone");
        assert!(!matches!(refused, MembersError::NoMember { .. }), "{refused}");
        assert!(
            alone.layout().await.expect("known").epoch <= known.epoch,
            "nothing is decided without node 1"
        );
        // With node 1 most of them are there.
        cluster.start(&env, 1, of).await;
        cluster.until(&env, "2 is back", |layout| !is_out(layout, 1) && !is_out(layout, 2)).await;
        let layout = cluster.client.replace_node(NodeId(3), addr).await.expect("replaced");
        assert!(!layout.acceptors().contains(&NodeId(3)), "{layout:?}");
        let whole = cluster.until(&env, "all are back", Layout::is_whole).await;
        assert_eq!(whole.acceptors().len(), 3);
        for number in 0..20 {
            let found = cluster.client.read(LogPos(number)).await.expect("read");
            assert_eq!(found.data, entry(number));
        }
        append(&cluster.client, 20..30).await;
    });
}

/// Reads entries of stripes [1,2] and [2,3] of five nodes, again and again for three seconds.
async fn read_for_a_while(env: &Env, client: &Client) {
    let mut reads = 0;
    let until = env.now() + Duration::from_secs(3);
    while env.now() < until {
        for number in [0, 1, 5, 6] {
            let found = client.read(LogPos(number)).await.expect("a replica is there");
            assert_eq!(found.data, entry(number));
            reads += 1;
        }
        env.sleep(Duration::from_millis(50)).await;
    }
    assert!(reads > 40, "{reads}");
}

#[test]
fn what_other_stripes_hold_is_read_while_a_stripe_has_lost_every_replica() {
    // An epoch that is ended although no other can begin serves nothing any more.
    run(|env, _dir| async move {
        let of = |dir: &std::path::Path, id| node_options(dir, id, SEGMENTS);
        let mut cluster = Cluster::form(&env, 5, 2, of).await;
        append(&cluster.client, 0..20).await;
        let before = cluster.client.layout().await.expect("known");
        cluster.kill(4);
        cluster.kill(5);
        // The others miss them after 350 ms, and propose to go on without them.
        read_for_a_while(&env, &cluster.client).await;
        // Meanwhile nobody has a lease, and the one that comes back serves in no epoch that it served before.
        cluster.kill(3);
        env.sleep(Duration::from_secs(1)).await;
        cluster.start(&env, 3, of).await;
        read_for_a_while(&env, &cluster.client).await;
        assert_eq!(cluster.client.layout().await.expect("known").epoch, before.epoch);
        // They come back.
        cluster.start(&env, 4, of).await;
        cluster.start(&env, 5, of).await;
        cluster.until(&env, "all are back", Layout::is_whole).await;
        append(&cluster.client, 20..30).await;
    });
}

#[test]
fn an_empty_server_at_the_address_of_a_node_stands_in_nobodys_way_before_the_others_have_missed_that() {
    // Whoever asked the server was told at once that it belongs to no cluster, although the others were about to go on without it.
    let sim = Sim::new(1);
    let process = sim.process("nodes", [10, 0, 0, 1].into());
    let env = sim.env(process);
    sim.block_on(process, async move {
        let of = |dir: &std::path::Path, id| {
            let mut options = node_options(dir, id, SEGMENTS);
            // A node is missed when it has not answered for a while, also where nobody listens.
            (options.timing.refusals, options.timing.silent_after) = (u32::MAX, Duration::from_secs(1));
            options
        };
        let mut cluster = Cluster::form(&env, 3, 2, of).await;
        append(&cluster.client, 0..10).await;
        // The other replicas are told that theirs is on all.
        env.sleep(Duration::from_secs(1)).await;
        // Node 1 is the sequencer, the first replica of a stripe, and the last one of another.
        cluster.kill(1);
        cluster.wipe(1);
        cluster.start(&env, 1, of).await;
        env.sleep(Duration::from_millis(1)).await;
        let endpoints = cluster.addrs.iter().map(|&(_, addr)| addr).collect();
        let options = ClientOptions { endpoints, ..ClientOptions::default() };
        let connecting = env.spawn({
            let env = env.clone();
            async move { Client::connect(&env, options).await }
        });
        let appending = cluster.client.append(entry(10));
        let found = cluster.client.read(LogPos(2)).await.expect("another replica is there");
        assert_eq!(found.data, entry(2));
        let layout = cluster.client.layout().await.expect("known");
        assert_eq!(
            layout.locate(LogPos(2)).expect("there").replicas,
            [3, 1].map(NodeId),
            "it is not missed yet"
        );
        assert_eq!(appending.await, Ok(LogPos(10)));
        let connected = connecting.join().await.expect("it ends").expect("the others serve");
        assert_eq!(connected.append(entry(11)).await, Ok(LogPos(11)));
    });
}

#[test]
fn a_removal_that_waits_when_everybody_is_gone_takes_no_longer_than_it_was_given() {
    let sim = Sim::new(1);
    let process = sim.process("nodes", [10, 0, 0, 1].into());
    let env = sim.env(process);
    sim.block_on(process, async move {
        // Nothing is copied, so that the removal waits.
        let of = |dir: &std::path::Path, id| NodeOptions {
            rebuild_bytes_per_second: 1,
            ..node_options(dir, id, SEGMENTS)
        };
        let mut cluster = Cluster::form(&env, 3, 2, of).await;
        append(&cluster.client, 0..10).await;
        let (client, began) = (cluster.client.clone(), env.now());
        let removing = env.spawn(async move { client.remove_node(NodeId(3)).await });
        env.sleep(Duration::from_secs(4)).await;
        assert_eq!(listed(&cluster.client.layout().await.expect("known"), 3).state, NodeState::Leaving);
        cluster.crash();
        removing.join().await.expect("it ends").expect_err("nobody is there");
        assert!(env.now().since(began) <= cluster.client.timeout(), "{:?}", env.now().since(began));
    });
}

#[test]
fn a_node_that_was_replaced_already_is_left_alone_and_one_that_is_empty_is_waited_for() {
    // The same command again waited for all of its time and failed: the node was in use.
    let sim = Sim::new(1);
    let process = sim.process("nodes", [10, 0, 0, 1].into());
    let env = sim.env(process);
    sim.block_on(process, async move {
        let of = |dir: &std::path::Path, id| node_options(dir, id, SEGMENTS);
        let mut cluster = Cluster::form(&env, 3, 2, of).await;
        append(&cluster.client, 0..10).await;
        let addr = cluster.addrs[2].1;
        for _ in 0..2 {
            cluster.kill(3);
            cluster.wipe(3);
            cluster.start(&env, 3, of).await;
            // The cluster has not missed it yet, and may have it back from the last time.
            let told = cluster.client.replace_node(NodeId(3), addr).await.expect("replaced");
            assert!(is_out(&told, 3), "{told:?}");
            cluster.until(&env, "all are back", Layout::is_whole).await;
            let before = cluster.client.layout().await.expect("known");
            let again = cluster.client.replace_node(NodeId(3), addr).await.expect("it is done");
            assert!(!is_out(&again, 3) && again.epoch == before.epoch, "{again:?}");
        }
        append(&cluster.client, 10..20).await;
    });
}

/// A node that copies next to nothing.
fn slow_to_copy(dir: &std::path::Path, id: u64) -> NodeOptions {
    NodeOptions { rebuild_bytes_per_second: 1, ..node_options(dir, id, SEGMENTS) }
}

/// Runs `test` with four such nodes of one cluster, two copies of each entry, in simulated time.
fn with_four(test: impl AsyncFnOnce(Env, Cluster) + 'static) {
    let sim = Sim::new(1);
    let process = sim.process("nodes", [10, 0, 0, 1].into());
    let env = sim.env(process);
    sim.block_on(process, async move {
        let cluster = Cluster::form(&env, 4, 2, slow_to_copy).await;
        append(&cluster.client, 0..10).await;
        test(env, cluster).await;
    });
}

#[test]
fn a_change_that_waits_for_the_last_replica_of_a_stripe_names_it() {
    // It was said that time was over, or that a node is in use that had lost everything: nothing of what to do.
    with_four(async |env, mut cluster| {
        let fifth = tempfile::TempDir::new().expect("a directory");
        let fifth = ClusterNode::start(&env, slow_to_copy(fifth.path(), 5)).await.expect("it starts");
        let lost = MembersError::Lost { nodes: [3, 4].map(NodeId).to_vec() };
        let before = cluster.client.layout().await.expect("known").epoch;
        cluster.kill(3);
        cluster.kill(4);
        let (client, addrs) = (cluster.client.clone(), cluster.addrs.clone());
        assert_eq!(client.set_min_replicas(2).await, Err(lost.clone()));
        assert_eq!(client.remove_node(NodeId(4)).await, Err(lost.clone()));
        assert_eq!(client.add_node(NodeId(5), fifth.addr()).await, Err(lost.clone()));
        // Servers that know nothing take nobody's place.
        for id in [3, 4] {
            cluster.wipe(id);
            cluster.start(&env, id, slow_to_copy).await;
        }
        let began = env.now();
        assert_eq!(client.replace_node(NodeId(3), addrs[2].1).await, Err(lost.clone()));
        assert!(env.now().since(began) <= client.timeout());
        assert_eq!(client.layout().await.expect("known").epoch, before);
        assert_eq!(
            lost.to_string(),
            "nothing can be changed: nodes 3 and 4 alone may hold entries that were acknowledged, and none is there \
             with its data; start one of them with that"
        );
    });
}

#[test]
fn a_change_that_ran_out_of_time_after_the_last_replica_was_back_says_nothing_else() {
    // Who comes back a moment before the end would be said to be gone.
    with_four(async |env, mut cluster| {
        let client = client_of(&env, &cluster, 1, Duration::from_secs(20)).await;
        let began = env.now();
        cluster.kill(3);
        cluster.kill(4);
        let removing = env.spawn(async move { client.remove_node(NodeId(1)).await });
        env.sleep(Duration::from_secs(5)).await;
        cluster.start(&env, 3, slow_to_copy).await;
        let told = removing.join().await.expect("it ends");
        assert!(env.now().since(began) <= Duration::from_secs(20));
        assert!(matches!(told, Err(MembersError::Leaving { .. })), "{told:?}");
    });
}

#[test]
fn a_server_of_another_cluster_is_not_given_a_node_s_place_and_costs_no_epoch() {
    // The cluster took a step for it, and was then told that a message cannot be decoded.
    with_four(async |env, mut cluster| {
        let (node, addr) = cluster.addrs[2];
        cluster.kill(3);
        let before = cluster.until(&env, "3 is out", |layout| is_out(layout, 3)).await;
        cluster.wipe(3);
        cluster.start(&env, 3, slow_to_copy).await;
        let timeout = Duration::from_secs(5);
        let alone = Forming { nodes: vec![(node, addr)], replicas: 1, min_replicas: 1, timeout };
        let other = form(&env, &alone).await.expect("it is free").cluster;
        let refused = FormError::Formed { node, addr, cluster: other };
        assert_eq!(cluster.client.replace_node(node, addr).await, Err(MembersError::Node(refused)));
        assert_eq!(cluster.client.layout().await.expect("known").epoch, before.epoch);
    });
}

#[test]
fn what_was_waited_for_is_told_also_where_the_time_ends_in_the_middle_of_a_look() {
    // "Timed out" says neither that the node is in use nor what to do.
    let loopback = LinkOptions { latency: Duration::from_millis(40), ..SimOptions::default().loopback };
    let sim = Sim::with_options(1, SimOptions { loopback, ..SimOptions::default() });
    let process = sim.process("nodes", [10, 0, 0, 1].into());
    let env = sim.env(process);
    sim.block_on(process, async move {
        let of = |dir: &std::path::Path, id| node_options(dir, id, SEGMENTS);
        let cluster = Cluster::form(&env, 3, 2, of).await;
        let addr = cluster.addrs[1].1;
        for ms in 1_000..1_020 {
            let client = client_of(&env, &cluster, 1, Duration::from_millis(ms)).await;
            let told = client.replace_node(NodeId(2), addr).await;
            let waited = Duration::from_millis(ms);
            assert_eq!(told, Err(MembersError::InUse { node: NodeId(2), waited }));
        }
    });
}

#[test]
fn a_node_that_comes_back_is_not_sent_what_it_has() {
    // It was sent all of it again, at 32 MiB a second: hours for a node that was away for a moment. And the others had begun to copy it by then.
    run(|env, _dir| async move {
        let rebuild_after = Duration::from_secs(60);
        let of = |dir: &std::path::Path, id| NodeOptions { rebuild_after, ..node_options(dir, id, SEGMENTS) };
        let mut cluster = Cluster::form(&env, 3, 2, of).await;
        append(&cluster.client, 0..500).await;
        cluster.client.trim(LogPos(7)).await.expect("trimmed");
        cluster.kill(2);
        cluster.until(&env, "2 is out", |layout| is_out(layout, 2)).await;
        cluster.start(&env, 2, of).await;
        let layout = cluster.until(&env, "all are back", Layout::is_whole).await;
        assert_eq!(layout.ranges[0].stripes.iter().filter(|it| it.replicas.contains(&NodeId(2))).count(), 2);
        let (mut entries, mut bytes) = (0, 0);
        for (_, _, answer) in cluster.client.status().await.expect("a layout") {
            let counters = answer.expect("it answers").counters;
            let counted =
                |name| counters.iter().find(|(counter, _)| counter == name).expect("it is counted").1;
            entries += counted("entries_read");
            bytes += counted("bytes_read");
        }
        assert!(entries >= 330 && bytes == 0, "the heads of {entries} entries, and {bytes} bytes of data");
        for number in (0..500).filter(|number| *number != 7) {
            let found = cluster.client.read(LogPos(number)).await.expect("it is there");
            assert_eq!(found.data, entry(number));
        }
    });
}

#[test]
fn a_node_that_comes_back_lists_what_it_has_copied_together() {
    // Each stripe of each range took an epoch, and there are more of them with each time that a node is out.
    let sim = Sim::new(1);
    let process = sim.process("nodes", [10, 0, 0, 1].into());
    let env = sim.env(process);
    sim.block_on(process, async move {
        let of = |dir: &std::path::Path, id| NodeOptions {
            rebuild_after: Duration::from_secs(60),
            rebuild_bytes_per_second: 16 << 10,
            ..node_options(dir, id, SEGMENTS)
        };
        let mut cluster = Cluster::form(&env, 3, 2, of).await;
        for round in 0..6 {
            append(&cluster.client, round * 50..(round + 1) * 50).await;
            cluster.kill(2);
            let out = cluster.until(&env, "2 is out", |layout| is_out(layout, 2)).await;
            cluster.start(&env, 2, of).await;
            let whole = cluster.until(&env, "all are back", Layout::is_whole).await;
            let epochs = whole.epoch.0 - out.epoch.0;
            assert!(epochs <= 4, "{epochs} epochs for {} ranges", whole.ranges.len());
        }
    });
}

#[test]
fn what_a_node_held_that_does_not_come_back_is_copied_after_a_while() {
    let sim = Sim::new(1);
    let process = sim.process("nodes", [10, 0, 0, 1].into());
    let env = sim.env(process);
    sim.block_on(process, async move {
        let rebuild_after = Duration::from_secs(10);
        let of = |dir: &std::path::Path, id| NodeOptions { rebuild_after, ..node_options(dir, id, SEGMENTS) };
        let mut cluster = Cluster::form(&env, 3, 2, of).await;
        append(&cluster.client, 0..10).await;
        cluster.kill(3);
        cluster.until(&env, "3 is out", |layout| is_out(layout, 3)).await;
        let lacks = |layout: &Layout| layout.ranges[0].stripes.iter().any(|it| it.replicas.len() < 2);
        env.sleep(Duration::from_secs(9)).await;
        assert!(lacks(&cluster.client.layout().await.expect("known")));
        env.sleep(Duration::from_secs(2)).await;
        assert!(!lacks(&cluster.client.layout().await.expect("known")));
    });
}
