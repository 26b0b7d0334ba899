//! Nodes whose drives are full, in a cluster of servers: the others go on, and a trim brings them back.

use std::time::Duration;

use bytes::Bytes;
use ithaca_env::drive::OpenDrive;
use ithaca_log::client::{CallError, ClientError, EntryKind};
use ithaca_log::layout::NodeState;
use ithaca_log::planted::Planted;
use ithaca_log::pos::{LogPos, NodeId};
use ithaca_log::server::NodeOptions;
use ithaca_log::wire::Refusal;

use crate::nodes::{Cluster, capacity_bytes, listed, node_options, sized_options};
use crate::worlds::run;

/// Segments of a drive that is soon full, and of one that is not.
pub const FEW: u64 = 10;
pub const MANY: u64 = 200;
/// A node says that it is full when one segment is left: what is appended until the others go on without it must fit into that.
const SEGMENT_BYTES: u64 = 2 << 20;

/// As few segments as a drive may have.
const TINY: u64 = 4;

fn is_full(error: &ClientError) -> bool {
    matches!(error, ClientError::Node { error: CallError::Refused(Refusal::Full), .. })
}

pub fn block(number: u64) -> Bytes {
    Bytes::from(number.to_le_bytes().repeat(512))
}

/// Fills node 3 of three while entries are appended, trims, and has it back.
pub fn fill_one_of_three(planted: Planted) {
    run(|env, _| async move {
        let options = |dir: &std::path::Path, id| {
            let segments = if id == 3 { FEW } else { MANY };
            NodeOptions { planted, ..sized_options(dir, id, segments, SEGMENT_BYTES) }
        };
        let cluster = Cluster::form(&env, 3, 2, options).await;
        let client = &cluster.client;
        // Twice what node 3 has room for.
        let count = 2 * 3 * FEW * SEGMENT_BYTES / 2 / 4096;
        let mut positions = Vec::new();
        for number in 0..count {
            positions.push(client.append(block(number)).await.expect("two nodes have room"));
        }
        let layout = client.layout().await.expect("it serves");
        assert_eq!(listed(&layout, 3).state, NodeState::Full);
        let active = layout.ranges.last().expect("a range");
        assert!(active.stripes.iter().all(|stripe| !stripe.replicas.contains(&NodeId(3))));
        assert!(layout.stripes_of(NodeId(3)) > 0, "it stays a replica of what it holds");
        assert!(layout.is_whole());
        for (&pos, number) in positions.iter().zip(0..) {
            assert_eq!(client.read(pos).await.expect("it is there").data, block(number));
        }
        let tail = client.check().await.expect("it serves").tail;
        client.trim_prefix(tail).await.expect("trimmed");
        cluster.until(&env, "node 3 has room", |layout| listed(layout, 3).state == NodeState::InUse).await;
        assert!(client.append(block(count)).await.expect("all have room") >= tail);
    });
}

#[test]
fn appends_go_on_while_a_node_is_full_and_a_trim_brings_it_back() {
    fill_one_of_three(Planted::NONE);
}

#[test]
fn with_too_few_nodes_that_have_room_appends_are_refused_as_full_until_a_trim() {
    run(|env, _| async move {
        let mut cluster = Cluster::form(&env, 2, 2, |dir, id| node_options(dir, id, FEW)).await;
        let client = &cluster.client;
        client.stream("orders").await.expect("named");
        let mut positions = Vec::new();
        loop {
            match client.append(block(positions.len() as u64)).await {
                Ok(pos) => positions.push(pos),
                // What the first replica has taken finds room at the second.
                Err(refused) => {
                    assert!(is_full(&refused), "neither has waited for room: {refused}");
                    break;
                }
            }
        }
        let tail = client.check().await.expect("it serves").tail;
        for (&pos, number) in positions.iter().zip(0..) {
            assert_eq!(client.read(pos).await.expect("it is there").data, block(number));
        }
        client.trim_prefix(tail).await.expect("there is always room for a trim");
        assert_eq!(client.stream_names().await.expect("told"), ["orders"], "and then for names");
        let deadline = env.now() + Duration::from_secs(60);
        let pos = loop {
            match client.append(block(0)).await {
                Ok(pos) => break pos,
                Err(error) => assert!(env.now() < deadline, "there is room again: {error}"),
            }
            env.sleep(Duration::from_millis(20)).await;
        };
        assert_eq!(client.read(pos).await.expect("it is there").kind, EntryKind::Data);
        for id in [1, 2] {
            cluster.stop(id).await;
            let open = OpenDrive { path: cluster.drive(id), create_bytes: None, read_only: true };
            let bytes = env.open_drive(open).await.expect("it is free").size_bytes();
            assert!(bytes <= capacity_bytes(FEW), "{bytes} bytes of {}", capacity_bytes(FEW));
        }
    });
}

#[test]
fn what_a_full_cluster_holds_can_be_read_before_anything_is_trimmed() {
    // Entries that the first replica had taken found no room at the second: their positions could be neither read nor filled, and a sequencer
    // that came then never knew where streams end.
    run(|env, _| async move {
        let cluster = Cluster::form(&env, 3, 2, |dir, id| sized_options(dir, id, TINY, SEGMENT_BYTES)).await;
        let client = &cluster.client;
        let stream = client.stream("orders").await.expect("named");
        let appenders: Vec<_> = (0..32)
            .map(|_| {
                let client = client.clone();
                env.spawn(async move {
                    let mut taken = Vec::new();
                    loop {
                        match client.append_to(&[stream], block(taken.len() as u64)).await {
                            Ok(at) => taken.push(at.pos),
                            Err(error) => return (taken, error),
                        }
                    }
                })
            })
            .collect();
        let mut taken = 0;
        for appender in appenders {
            let (positions, error) = appender.join().await.expect("it ends");
            assert!(is_full(&error), "{error}");
            taken += positions.len();
        }
        let tail = client.check().await.expect("it serves").tail;
        let (mut next, mut found) = (LogPos(0), 0);
        while next < tail {
            let piece = client.read_range(next, tail).await.expect("readable");
            next = LogPos(piece.last().expect("below the tail").pos.0 + 1);
            found += piece.iter().filter(|entry| entry.streams.iter().any(|it| it.stream == stream)).count();
        }
        assert!(found >= taken, "{found} of {taken}");
        assert_eq!(client.stream_names().await.expect("told"), ["orders"]);
        let tails = client.stream_tails(&[stream]).await.expect("the sequencer knows where streams end");
        assert!(tails.streams[0].next.0 >= taken as u64, "{tails:?}");
    });
}
