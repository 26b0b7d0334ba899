//! Clients whose endpoints are not all of one cluster. In simulated time.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_env::sim::Sim;
use ithaca_log::client::{Client, ClientError, ClientOptions, ErrorClass, Forming, Observer, form};
use ithaca_log::layout::NodeState;
use ithaca_log::pos::{ClusterId, NodeId};
use ithaca_log::server::{ClusterNode, NodeOptions};

use crate::nodes::{Cluster, listed, node_options};
use crate::worlds::is_busy;

const SEGMENTS: u64 = 64;

fn run(test: impl AsyncFnOnce(Env) + 'static) {
    let sim = Sim::new(1);
    let process = sim.process("nodes", [10, 0, 0, 1].into());
    let env = sim.env(process);
    sim.block_on(process, async move { test(env).await });
}

fn of(dir: &Path, id: u64) -> NodeOptions {
    node_options(dir, id, SEGMENTS)
}

fn at(endpoints: Vec<SocketAddr>) -> ClientOptions {
    ClientOptions { endpoints, ..ClientOptions::default() }
}

/// Three nodes of a cluster, the third of which is gone and missed.
async fn without_third(env: &Env) -> Cluster {
    let mut cluster = Cluster::form(env, 3, 2, of).await;
    cluster.kill(3);
    cluster.until(env, "3 is out", |layout| listed(layout, 3).state == NodeState::Out).await;
    cluster
}

/// Makes a cluster of one node.
async fn form_alone(env: &Env, at: (NodeId, SocketAddr)) -> ClusterId {
    let timeout = Duration::from_secs(5);
    let forming = Forming { nodes: vec![at], replicas: 1, min_replicas: 1, timeout };
    form(env, &forming).await.expect("it is free").cluster
}

/// The endpoints in three orders: each comes first once.
fn orders(cluster: &Cluster) -> Vec<Vec<SocketAddr>> {
    let addrs: Vec<SocketAddr> = cluster.addrs.iter().map(|&(_, addr)| addr).collect();
    (0..addrs.len()).map(|by| [&addrs[by..], &addrs[..by]].concat()).collect()
}

/// Whoever has these endpoints is of `cluster`, and is served.
async fn is_of(env: &Env, endpoints: Vec<SocketAddr>, cluster: ClusterId) {
    let began = env.now();
    let client = Client::connect(env, at(endpoints.clone())).await.expect("a majority serves");
    client.append(Bytes::from_static(b"entry")).await.expect("appended");
    assert_eq!(client.layout().await.expect("known").cluster, cluster, "{endpoints:?}");
    let mut observer = Observer::connect(env, at(endpoints.clone())).await.expect("a majority serves");
    assert_eq!(observer.look().await.layout.cluster, cluster, "{endpoints:?}");
    assert!(env.now().since(began) < Duration::from_secs(1), "{endpoints:?}");
}

#[test]
fn endpoints_of_two_clusters_are_refused_whoever_answers_first() {
    // Each command went to the one or the other, by chance, and all was well.
    run(async |env| {
        let mut told = Vec::new();
        for (id, dir) in [(1, "one"), (2, "other")] {
            let node = ClusterNode::start(&env, of(Path::new(dir), id)).await.expect("it starts");
            told.push((form_alone(&env, (NodeId(id), node.addr())).await, node.addr(), node));
        }
        let addrs = [told[0].1, told[1].1];
        // Whom nobody answers at is waited for as long as that takes, and no longer.
        let nobody = SocketAddr::from(([10, 0, 0, 1], 1));
        let silent = env.listen(([10, 0, 0, 1], 0).into()).expect("a free port");
        for endpoints in [
            vec![addrs[0], addrs[1]],
            vec![addrs[1], addrs[0]],
            vec![addrs[1], nobody, addrs[0]],
            vec![silent.local_addr(), addrs[0], addrs[1]],
        ] {
            let refused = Client::connect(&env, at(endpoints.clone())).await.err().expect("there are two");
            let ClientError::TwoClusters { clusters } = &refused else { panic!("{refused}") };
            let mut expected = [(told[0].0, addrs[0]), (told[1].0, addrs[1])];
            expected.sort();
            let mut found = **clusters;
            found.sort();
            assert_eq!((found, refused.class()), (expected, ErrorClass::Usage));
            let [(one, one_at), (other, other_at)] = **clusters;
            let line =
                format!("the endpoints belong to two clusters: {one} at {one_at}, {other} at {other_at}");
            assert_eq!(refused.to_string(), line);
            let observed = Observer::connect(&env, at(endpoints)).await.err().expect("there are two");
            assert!(matches!(observed, ClientError::TwoClusters { .. }), "{observed}");
        }
        // One at a time they are as they were.
        for (cluster, addr, _node) in &told {
            is_of(&env, vec![*addr, nobody], *cluster).await;
        }
    });
}

#[test]
fn a_server_that_has_another_cluster_s_directory_keeps_nobody_from_a_cluster_that_lists_its_address() {
    // Who heard it first asked for what its layout names, where nobody was, until the time was over.
    run(async |env| {
        let other = ClusterNode::start(&env, of(Path::new("other"), 3)).await.expect("it starts");
        form_alone(&env, (NodeId(3), other.addr())).await;
        let cluster = without_third(&env).await;
        other.stop().await;
        let moved = NodeOptions { listen: cluster.addrs[2].1, ..of(Path::new("other"), 3) };
        let other = loop {
            match ClusterNode::start(&env, moved.clone()).await {
                Err(error) if is_busy(&error) => env.sleep(Duration::from_millis(10)).await,
                started => break started.expect("it has what it had"),
            }
        };
        let known = cluster.client.layout().await.expect("known").cluster;
        for endpoints in orders(&cluster) {
            is_of(&env, endpoints, known).await;
        }
        drop(other);
    });
}

#[test]
fn a_machine_that_was_given_to_another_cluster_keeps_nobody_from_the_one_that_lists_it_still() {
    // Its own layout lists it too, but not those of the others.
    run(async |env| {
        let mut cluster = without_third(&env).await;
        cluster.wipe(3);
        cluster.start(&env, 3, of).await;
        let other = form_alone(&env, cluster.addrs[2]).await;
        let known = cluster.client.layout().await.expect("known").cluster;
        for endpoints in orders(&cluster) {
            is_of(&env, endpoints, known).await;
        }
        is_of(&env, vec![cluster.addrs[2].1], other).await;
    });
}

#[test]
fn an_endpoint_that_is_silent_is_waited_for_only_where_no_layout_lists_it() {
    run(async |env| {
        let cluster = without_third(&env).await;
        let listed = env.listen(cluster.addrs[2].1).expect("nobody listens there");
        let other = env.listen(([10, 0, 0, 1], 0).into()).expect("a free port");
        let took = async |addr| {
            let began = env.now();
            let observed = Observer::connect(&env, at(vec![addr, cluster.addrs[0].1])).await;
            assert!(observed.is_ok());
            env.now().since(began)
        };
        let (at_once, patience) = (Duration::from_millis(20), Duration::from_millis(100));
        assert!(took(listed.local_addr()).await < at_once);
        let waited = took(other.local_addr()).await;
        assert!(waited >= patience && waited < patience + at_once, "{waited:?}");
    });
}
