//! Nodes that do not everything: one that only decides, some that only hand out positions, one that decides nothing. In simulated time.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_env::sim::Sim;
use ithaca_log::client::{CallError, FormError, Forming, MembersError, form};
use ithaca_log::layout::{Layout, NodeState};
use ithaca_log::pos::{LogPos, NodeId, StreamId};
use ithaca_log::server::{ClusterNode, NodeOptions, StartError};
use ithaca_log::wire::{Refusal, Roles};

use crate::nodes::{Cluster, listed, node_options};

const SEGMENTS: u64 = 64;
const A: StreamId = StreamId(1000);
const ALL: Roles = Roles::OFFERED;
const WITNESS: Roles = Roles::LAYOUT;
const STORES: Roles = Roles::UNIT.with(Roles::LAYOUT);
const GRANTS: Roles = Roles::SEQUENCER;
const GRANTS_AND_DECIDES: Roles = Roles::SEQUENCER.with(Roles::LAYOUT);
const NEVER_DECIDES: Roles = Roles::SEQUENCER.with(Roles::UNIT);

fn run(test: impl AsyncFnOnce(Env) + 'static) {
    let sim = Sim::new(1);
    let process = sim.process("nodes", [10, 0, 0, 1].into());
    let env = sim.env(process);
    sim.block_on(process, async move { test(env).await });
}

/// Nodes 1, 2, ... that offer these.
fn offering(offers: &'static [Roles]) -> impl Fn(&Path, u64) -> NodeOptions + Copy {
    move |dir, id| NodeOptions { offers: offers[id as usize - 1], ..node_options(dir, id, SEGMENTS) }
}

fn entry(number: u64) -> Bytes {
    Bytes::from(format!("entry {number}"))
}

/// Appends entries of these numbers to a stream; the numbers are their positions.
async fn append(cluster: &Cluster, numbers: Range<u64>) {
    for number in numbers {
        cluster.client.append_to(&[A], entry(number)).await.expect("appended");
        assert_eq!(cluster.client.read(LogPos(number)).await.expect("read").data, entry(number));
    }
}

/// Reads all of the stream's entries below `end`.
async fn read_all(cluster: &Cluster, end: u64) {
    let mut reader = cluster.client.stream_reader(A, LogPos(0));
    for number in 0..end {
        assert_eq!(reader.next().await.expect("read").data, entry(number));
    }
}

fn is_out(layout: &Layout, id: u64) -> bool {
    listed(layout, id).state == NodeState::Out
}

fn acceptors(layout: &Layout) -> Vec<u64> {
    layout.acceptors().iter().map(|node| node.0).collect()
}

/// Waits until all nodes are in use and no copy is missing.
async fn whole(cluster: &Cluster, env: &Env) -> Layout {
    cluster.until(env, "all are in use", Layout::is_whole).await
}

/// No layout that is remembered has given node `id` any of these roles.
async fn was_never(cluster: &Cluster, id: u64, roles: &[Roles]) {
    for layout in cluster.client.layouts().await.expect("they are known") {
        let Some(node) = layout.node(NodeId(id)) else { continue };
        assert!(!roles.iter().any(|&role| node.roles.has(role)), "{layout:?}");
        let serves = (layout.stripes_of(NodeId(id)) > 0, layout.sequencer == NodeId(id));
        let may = |role| !roles.contains(&role);
        assert!((may(Roles::UNIT) || !serves.0) && (may(Roles::SEQUENCER) || !serves.1), "{layout:?}");
    }
}

#[test]
fn a_witness_decides_with_either_of_two_units_and_stores_nothing() {
    // Of two nodes alone one decides: without that one the other could not go on.
    run(async |env| {
        let of = offering(&[ALL, ALL, WITNESS]);
        let mut cluster = Cluster::form(&env, 3, 2, of).await;
        let first = cluster.client.layout().await.expect("known");
        assert_eq!((acceptors(&first), listed(&first, 3).roles), (vec![1, 2, 3], WITNESS));
        let status = cluster.node(3).status();
        assert_eq!((status.roles, status.offers, status.watermark), (WITNESS, WITNESS, None));
        append(&cluster, 0..10).await;
        cluster.kill(1);
        append(&cluster, 10..20).await;
        let without = cluster.until(&env, "1 is out", |layout| is_out(layout, 1)).await;
        assert_eq!(without.sequencer, NodeId(2));
        cluster.start(&env, 1, of).await;
        whole(&cluster, &env).await;
        cluster.kill(3);
        cluster.until(&env, "the witness is out", |layout| is_out(layout, 3)).await;
        append(&cluster, 20..30).await;
        cluster.start(&env, 3, of).await;
        whole(&cluster, &env).await;
        cluster.kill(2);
        append(&cluster, 30..40).await;
        cluster.start(&env, 2, of).await;
        whole(&cluster, &env).await;
        read_all(&cluster, 40).await;
        was_never(&cluster, 3, &[Roles::UNIT, Roles::SEQUENCER]).await;
    });
}

#[test]
fn a_witness_that_stops_is_done_without_before_it_is_gone() {
    run(async |env| {
        let of = offering(&[ALL, ALL, WITNESS]);
        let mut cluster = Cluster::form(&env, 3, 2, of).await;
        cluster.stop(3).await;
        assert!(is_out(&cluster.client.layout().await.expect("known"), 3), "nobody has to miss it");
    });
}

#[test]
fn a_witness_is_replaced_removed_and_added_again() {
    run(async |env| {
        let of = offering(&[ALL, ALL, WITNESS]);
        let mut cluster = Cluster::form(&env, 3, 2, of).await;
        let addr = cluster.addrs[2].1;
        append(&cluster, 0..10).await;
        cluster.kill(3);
        cluster.wipe(3);
        cluster.start(&env, 3, |dir, id| NodeOptions { offers: GRANTS, ..of(dir, id) }).await;
        let lacks = CallError::Refused(Refusal::NotServing { roles: WITNESS });
        match cluster.client.replace_node(NodeId(3), addr).await {
            Err(MembersError::Node(FormError::Node { error, .. })) => assert_eq!(error, lacks),
            other => panic!("it offers less than the layout gives: {other:?}"),
        }
        cluster.kill(3);
        cluster.start(&env, 3, of).await;
        cluster.client.replace_node(NodeId(3), addr).await.expect("replaced");
        let layout = whole(&cluster, &env).await;
        assert_eq!((acceptors(&layout), listed(&layout, 3).roles), (vec![1, 2, 3], WITNESS));
        let layout = cluster.client.remove_node(NodeId(3)).await.expect("there is nothing to copy");
        assert_eq!((acceptors(&layout), layout.node(NodeId(3))), (vec![1], None));
        append(&cluster, 10..20).await;
        cluster.kill(3);
        cluster.wipe(3);
        cluster.start(&env, 3, of).await;
        let layout = cluster.client.add_node(NodeId(3), addr).await.expect("it is in use");
        assert_eq!((acceptors(&layout), listed(&layout, 3).roles), (vec![1, 2, 3], WITNESS));
        cluster.kill(1);
        append(&cluster, 20..30).await;
        was_never(&cluster, 3, &[Roles::UNIT, Roles::SEQUENCER]).await;
    });
}

#[test]
fn nodes_that_only_hand_out_positions_take_each_others_place() {
    run(async |env| {
        let of = offering(&[GRANTS, GRANTS_AND_DECIDES, STORES, STORES]);
        let mut cluster = Cluster::form(&env, 4, 2, of).await;
        let first = cluster.client.layout().await.expect("known");
        assert_eq!((first.sequencer, acceptors(&first)), (NodeId(1), vec![2, 3, 4]));
        append(&cluster, 0..10).await;
        cluster.kill(1);
        append(&cluster, 10..20).await;
        let without = cluster.until(&env, "1 is out", |layout| is_out(layout, 1)).await;
        assert_eq!(without.sequencer, NodeId(2));
        cluster.start(&env, 1, of).await;
        whole(&cluster, &env).await;
        assert_eq!(cluster.node(1).status().roles, Roles::default(), "it waits for its turn");
        cluster.stop(2).await;
        append(&cluster, 20..30).await;
        let layout = cluster.client.layout().await.expect("known");
        assert_eq!(layout.sequencer, NodeId(1));
        // A unit that is lost is found out by those who have none as well.
        cluster.start(&env, 2, of).await;
        whole(&cluster, &env).await;
        cluster.kill(4);
        append(&cluster, 30..40).await;
        cluster.start(&env, 4, of).await;
        whole(&cluster, &env).await;
        read_all(&cluster, 40).await;
        was_never(&cluster, 1, &[Roles::UNIT, Roles::LAYOUT]).await;
        was_never(&cluster, 2, &[Roles::UNIT]).await;
    });
}

#[test]
fn who_does_not_offer_to_decide_is_not_made_to_when_others_go() {
    // Layouts are all that the others know of it then.
    run(async |env| {
        let of = offering(&[ALL, ALL, ALL, NEVER_DECIDES]);
        let mut cluster = Cluster::form(&env, 4, 2, of).await;
        append(&cluster, 0..10).await;
        assert_eq!(acceptors(&cluster.client.layout().await.expect("known")), [1, 2, 3]);
        let status = cluster.node(4).status();
        assert!(status.roles.has(Roles::UNIT) && !status.roles.has(Roles::LAYOUT), "{status:?}");
        let layout = cluster.client.remove_node(NodeId(1)).await.expect("others have its copies");
        assert_eq!(acceptors(&layout), [2]);
        cluster.kill(3);
        cluster.until(&env, "3 is out", |layout| is_out(layout, 3)).await;
        cluster.start(&env, 3, of).await;
        assert_eq!(acceptors(&whole(&cluster, &env).await), [2]);
        cluster.kill(1);
        cluster.wipe(1);
        cluster.start(&env, 1, of).await;
        let layout = cluster.client.add_node(NodeId(1), cluster.addrs[0].1).await.expect("it is in use");
        assert_eq!(acceptors(&layout), [1, 2, 3]);
        read_all(&cluster, 10).await;
        was_never(&cluster, 4, &[Roles::LAYOUT]).await;
    });
}

#[test]
fn a_start_that_offers_less_than_the_layout_gives_is_refused() {
    run(async |env| {
        let of = offering(&[ALL, ALL, WITNESS]);
        let mut cluster = Cluster::form(&env, 3, 2, of).await;
        cluster.kill(2);
        let role = |missing: Roles| {
            move |dir: &Path, id| {
                let offers = ALL.without(missing);
                NodeOptions { offers, ..node_options(dir, id, SEGMENTS) }
            }
        };
        for left_out in [Roles::UNIT, Roles::SEQUENCER, Roles::LAYOUT] {
            match cluster.try_start(&env, 2, role(left_out)).await.err() {
                Some(StartError::RoleLeftOut { node: NodeId(2), missing, .. }) => {
                    assert_eq!(missing, left_out)
                }
                other => panic!("{other:?}"),
            }
        }
        cluster.start(&env, 2, of).await;
        whole(&cluster, &env).await;
        // To offer more changes nothing.
        cluster.kill(3);
        cluster.start(&env, 3, role(Roles::default())).await;
        assert_eq!(listed(&whole(&cluster, &env).await, 3).roles, WITNESS);
        assert_eq!(cluster.node(3).status().roles, WITNESS);
    });
}

#[test]
fn a_cluster_of_nodes_that_lack_a_role_is_not_formed() {
    run(async |env| {
        let offers = [STORES, STORES, GRANTS, NEVER_DECIDES, WITNESS];
        let (mut nodes, mut addrs) = (Vec::new(), Vec::new());
        for (id, offers) in (1..).zip(offers) {
            let dir = format!("data-{id}");
            let options = NodeOptions { offers, ..node_options(Path::new(&dir), id, SEGMENTS) };
            let node = ClusterNode::start(&env, options).await.expect("it starts");
            addrs.push((NodeId(id), node.addr()));
            nodes.push(node);
        }
        let formed = async |ids: &[usize], replicas| {
            let nodes = ids.iter().map(|&id| addrs[id - 1]).collect();
            let forming = Forming { nodes, replicas, min_replicas: 1, timeout: Duration::from_secs(10) };
            form(&env, &forming).await.map(|layout| acceptors(&layout))
        };
        let lacks = |role| FormError::NotOffered { role };
        assert_eq!(formed(&[1, 2], 2).await, Err(lacks(Roles::SEQUENCER)));
        assert_eq!(formed(&[3, 5], 1).await, Err(lacks(Roles::UNIT)));
        assert_eq!(formed(&[3, 4], 1).await, Err(lacks(Roles::LAYOUT)));
        let few = FormError::TooFewUnits { found: 2, replicas: 3 };
        assert_eq!(formed(&[1, 2, 3], 3).await, Err(few));
        assert_eq!(formed(&[5, 4, 3, 2, 1], 3).await, Ok(vec![1, 2, 5]), "nothing was changed before");
    });
}
