//! A group that was durable and is lost: what it held is named, whether or not what lies around it stands in memory.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::Table;
use ithaca_env::Env;
use ithaca_env::drive::{Drive, Durability, OpenDrive};
use ithaca_log::client::{
    CallError, Client, ClientError, ClientOptions, Connection, EntryKind, FormError, Forming, Identity, form,
    found, tell,
};
use ithaca_log::entry::EntryMeta;
use ithaca_log::layout::{Layout, Node};
use ithaca_log::planted::Planted;
use ithaca_log::pos::{Addr, AddrRange, ClientId, ClusterId, LogPos, NodeId, RequestNo, StreamId};
use ithaca_log::server::{ClusterNode, LocalCluster, LocalOptions, NodeOptions, StartError};
use ithaca_log::wire::{Head, Refusal, Roles, Trim, Trimmed, Write, Written, encode_head};
use tempfile::TempDir;

use crate::worlds::{append, connect, options, replicated, restart, run, start};

/// An entry that is easily found on a drive.
fn marked(number: u64) -> Bytes {
    Bytes::from(format!("entry number {number:04} of those that are written one by one"))
}

/// Flips a bit in the head of the group that holds `entry`, whose block is its first.
async fn lose_group_of(env: &Env, path: std::path::PathBuf, entry: &[u8]) {
    let open = OpenDrive { path, create_bytes: None, read_only: false };
    let drive = env.open_drive(open).await.expect("the cluster is gone");
    for offset in (0..drive.size_bytes()).step_by(1 << 20) {
        let bytes = drive.read(offset, 1 << 20).await.expect("readable");
        let Some(at) = bytes.windows(entry.len()).position(|window| window == entry) else { continue };
        let block = at / 4096 * 4096;
        assert_eq!(&bytes[block..block + 4], b"ITHG", "the group is one block");
        let mut harmed = bytes[block..block + 4096].to_vec();
        harmed[50] ^= 1;
        let write = drive.write(offset + block as u64, Bytes::from(harmed), Durability::Durable);
        return write.await.expect("writable");
    }
    panic!("the entry is not on the drive");
}

/// The entries of `[from, to)`, or why they are not to be had.
async fn read_to(client: &Client, from: u64, to: u64) -> Result<u64, ClientError> {
    let mut next = from;
    while next < to {
        let entries = client.read_range(LogPos(next), LogPos(to)).await?;
        for found in &entries {
            assert_eq!((found.pos, &found.data), (LogPos(next), &marked(next)), "no gap");
            next += 1;
        }
    }
    Ok(next)
}

/// Loses two of ten entries that were written one by one, and reads what is left in every way.
pub fn lose_and_read(planted: Planted) {
    run(|env, dir| async move {
        let (cluster, client) = start(&env, &dir, 1).await;
        for number in 0..10 {
            client.append(marked(number)).await.expect("appended");
        }
        drop(client);
        cluster.stop().await;
        let drive = dir.path().join("unit-1.chain");
        for lost in [4, 9] {
            lose_group_of(&env, drive.clone(), &marked(lost)).await;
        }
        let mut again = options(dir.path(), 1);
        again.unit.planted = planted;
        let cluster = restart(&env, again).await;
        let client = connect(&env, &cluster).await;
        // What comes now stands in memory, right behind what is lost.
        for number in 10..14 {
            assert_eq!(client.append(marked(number)).await, Ok(LogPos(number)));
        }
        for lost in [4, 9] {
            let damaged = Err(ClientError::Damaged { pos: LogPos(lost) });
            assert_eq!(client.read(LogPos(lost)).await.map(|_| 0), damaged);
            let around = [LogPos(lost - 1), LogPos(lost), LogPos(lost + 1)];
            assert_eq!(client.read_many(&around).await.map(|_| 0), damaged);
            assert_eq!(read_to(&client, lost - 1, lost + 2).await, damaged);
            assert_eq!(read_to(&client, lost, lost + 1).await, damaged);
        }
        assert_eq!(read_to(&client, 0, 4).await, Ok(4));
        assert_eq!(read_to(&client, 5, 9).await, Ok(9));
        assert_eq!(read_to(&client, 10, 14).await, Ok(14));
        let others: Vec<LogPos> = (0..14).filter(|pos| ![4, 9].contains(pos)).map(LogPos).collect();
        let entries = client.read_many(&others).await.expect("they are well");
        assert!(entries.iter().all(|found| found.data == marked(found.pos.0)));
        assert_eq!(entries.len(), others.len());
        let mut tailing = client.tail_from(LogPos(3));
        let followed = loop {
            match tailing.next().await {
                Ok(entries) => assert!(entries.iter().all(|found| found.pos < LogPos(4)), "no gap"),
                Err(error) => break error,
            }
        };
        assert_eq!(followed, ClientError::Damaged { pos: LogPos(4) });
        assert_eq!(append(&client, 14, 1).await, [LogPos(14)]);
    });
}

#[test]
fn a_lost_entry_is_named_in_every_kind_of_read_and_its_neighbours_are_served() {
    lose_and_read(Planted::NONE);
}

#[test]
fn what_one_replica_has_lost_is_read_from_another() {
    run(|env, dir| async move {
        let cluster = restart(&env, replicated(dir.path(), 2, 2)).await;
        let client = connect(&env, &cluster).await;
        for number in 0..10 {
            client.append(marked(number)).await.expect("appended");
        }
        drop(client);
        cluster.stop().await;
        // Each on the last replica of its stripe: even positions are on units 1 and 2, odd ones on 2 and 1.
        for (lost, unit) in [(4, 2), (6, 2), (9, 1)] {
            let drive = dir.path().join(format!("unit-{unit}.chain"));
            lose_group_of(&env, drive, &marked(lost)).await;
        }
        let cluster = restart(&env, replicated(dir.path(), 2, 2)).await;
        let client = connect(&env, &cluster).await;
        // Singly first: a range read would fill what is not known to be lost.
        for pos in 0..10 {
            assert_eq!(client.read(LogPos(pos)).await.expect("another has it").data, marked(pos));
        }
        for from in 0..10 {
            assert_eq!(read_to(&client, from, 10).await, Ok(10));
        }
        let all: Vec<LogPos> = (0..10).rev().map(LogPos).collect();
        let entries = client.read_many(&all).await.expect("another has them");
        let found: Vec<(LogPos, Bytes)> = entries.into_iter().map(|entry| (entry.pos, entry.data)).collect();
        assert_eq!(found, all.iter().map(|&pos| (pos, marked(pos.0))).collect::<Vec<_>>());
        for number in 10..14 {
            assert_eq!(
                client.append(marked(number)).await,
                Ok(LogPos(number)),
                "what is lost takes no place"
            );
        }
        let mut tailing = client.tail_from(LogPos(3));
        let mut next = 3;
        while next < 14 {
            for entry in tailing.next().await.expect("another has it") {
                assert_eq!((entry.pos, entry.data), (LogPos(next), marked(next)), "no gap");
                next += 1;
            }
        }
    });
}

/// All numbers of the entries of a stream that was read from end to end.
async fn numbers_of(client: &Client, stream: StreamId) -> Result<Vec<u64>, ClientError> {
    let tail = client.check().await.expect("it serves").tail;
    let (mut next, mut places) = (LogPos(0), Vec::new());
    while next < tail {
        let part = client.read_stream(stream, next..tail, 1 << 20).await?;
        places.extend(
            part.entries.iter().map(|entry| (entry.place_in(stream).expect("of it").position, entry.pos.0)),
        );
        next = part.upto;
    }
    assert!(places.is_sorted_by(|(one, _), (other, _)| one < other), "no place is taken twice: {places:?}");
    Ok(places.into_iter().map(|(_, number)| number).collect())
}

#[test]
fn a_lost_entry_keeps_no_stream_from_going_on_and_whoever_reads_over_it_is_told_which_it_is() {
    run(|env, dir| async move {
        let (even, odd) = (StreamId(1000), StreamId(1001));
        let append = async |client: &Client, numbers: Range<u64>| {
            for number in numbers {
                let stream = if number % 2 == 0 { even } else { odd };
                let placed = client.append_to(&[stream], marked(number)).await.expect("appended");
                assert_eq!(placed.pos, LogPos(number));
            }
        };
        let (cluster, client) = start(&env, &dir, 1).await;
        append(&client, 0..10).await;
        drop(client);
        cluster.stop().await;
        for lost in [4, 7] {
            lose_group_of(&env, dir.path().join("unit-1.chain"), &marked(lost)).await;
        }
        let cluster = restart(&env, options(dir.path(), 1)).await;
        let client = connect(&env, &cluster).await;
        append(&client, 10..14).await;
        for (stream, lost) in [(even, 4), (odd, 4)] {
            assert_eq!(numbers_of(&client, stream).await, Err(ClientError::Damaged { pos: LogPos(lost) }));
        }
        client.trim(LogPos(4)).await.expect("it serves");
        client.trim(LogPos(7)).await.expect("it serves");
        assert_eq!(numbers_of(&client, even).await, Ok(vec![0, 2, 6, 8, 10, 12]));
        assert_eq!(numbers_of(&client, odd).await, Ok(vec![1, 3, 5, 9, 11, 13]));
    });
}

#[test]
fn an_entry_that_was_never_whole_and_is_lost_where_it_came_to_is_named_and_stops_no_stream() {
    run(|env, dir| async move {
        let cluster = restart(&env, replicated(dir.path(), 2, 2)).await;
        let client = connect(&env, &cluster).await;
        client.append_to(&[StreamId(1000)], marked(0)).await.expect("appended");
        let pos = client.tokens(1).await.expect("granted").start;
        write_to(&env, &cluster, 0, pos).await;
        drop(client);
        let first = cluster.layout().locate(pos).expect("a place").replicas[0];
        cluster.stop().await;
        lose_group_of(&env, dir.path().join(format!("unit-{}.chain", first.0)), &marked(pos.0)).await;
        let cluster = restart(&env, replicated(dir.path(), 2, 2)).await;
        let client = connect(&env, &cluster).await;
        let damaged = Err(ClientError::Damaged { pos });
        assert_eq!(client.fill(pos).await.map(drop), damaged);
        assert_eq!(client.read_range(pos, LogPos(pos.0 + 1)).await.map(drop), damaged);
        let placed = client.append_to(&[StreamId(1000)], marked(2)).await.expect("appended");
        assert!(placed.pos > pos, "{placed:?}");
    });
}

#[test]
fn an_entry_that_is_lost_on_its_way_is_named_by_its_position_and_a_prefix_is_trimmed_over_it() {
    // The unit that refused the copy named its own address, which a trim did not know for what it passes over.
    run(|env, dir| async move {
        let cluster = restart(&env, replicated(dir.path(), 3, 3)).await;
        let client = connect(&env, &cluster).await;
        client.append(marked(0)).await.expect("appended");
        let pos = client.tokens(1).await.expect("granted").start;
        for replica in 0..2 {
            write_to(&env, &cluster, replica, pos).await;
        }
        drop(client);
        let second = cluster.layout().locate(pos).expect("a place").replicas[1];
        cluster.stop().await;
        lose_group_of(&env, dir.path().join(format!("unit-{}.chain", second.0)), &marked(pos.0)).await;
        let cluster = restart(&env, replicated(dir.path(), 3, 3)).await;
        let client = connect(&env, &cluster).await;
        assert_eq!(client.fill(pos).await.map(drop), Err(ClientError::Damaged { pos }));
        client.trim_prefix(LogPos(pos.0 + 1)).await.expect("what is lost is given up");
        assert_eq!(client.check().await.expect("it serves").first, LogPos(pos.0 + 1));
    });
}

/// Writes a marked entry to one replica of its position, and to no other.
async fn write_to(env: &Env, cluster: &LocalCluster, replica: usize, pos: LogPos) {
    let (layout, data) = (cluster.layout(), marked(pos.0));
    let place = layout.locate(pos).expect("it has a place");
    let stride = layout.ranges.last().expect("a range").stripes.len() as u16;
    let meta = EntryMeta { stride, ..EntryMeta::new(ClientId(7), place.addr, RequestNo(1)) };
    let write = Write { addr: place.addr, meta: meta.to_bytes(), table: Table::of_payloads([&data]) };
    let unit = place.replicas[replica];
    let who = Identity { client: ClientId(7), node: unit, cluster: ClusterId::UNKNOWN };
    let deadline = env.now() + Duration::from_secs(20);
    let addr = cluster.addrs()[unit.0 as usize - 1];
    let unit = Connection::open(env, addr, who, deadline).await.expect("it serves");
    let encode = |id, out: &mut _| encode_head(out, Head::new(id, layout.epoch), &write, data.len());
    let data: std::iter::Once<Bytes> = std::iter::once(data.clone());
    let answer = unit.call_with::<Written>(env, encode, data, deadline).await.expect("it serves").0;
    assert_eq!(answer, Written::default());
}

/// A node of a cluster, with its data in a directory of its own.
fn node_options(dir: &Path, id: u64, listen: SocketAddr) -> NodeOptions {
    let LocalOptions { create_bytes, chain, .. } = options(dir, 1);
    NodeOptions { create_bytes, chain, ..NodeOptions::new(NodeId(id), dir, listen) }
}

/// Waits until every node is in use and no copy is missing.
async fn whole(env: &Env, client: &Client) {
    let deadline = env.now() + Duration::from_secs(60);
    loop {
        let layout = client.layout().await.expect("a majority serves");
        if layout.is_whole() {
            return;
        }
        assert!(env.now() < deadline, "copies are missing: {:?}", layout.ranges);
        env.sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn a_node_that_has_lost_an_entry_comes_back_and_the_entry_is_read_from_another() {
    run(|env, dir| async move {
        let (mut nodes, addrs, dirs, client) = pair(&env, dir).await;
        for number in 0..10 {
            client.append(marked(number)).await.expect("appended");
        }
        nodes.pop().expect("two").stop().await;
        for number in 10..20 {
            client.append(marked(number)).await.expect("appended");
        }
        lose_group_of(&env, dirs[1].path().join("unit-2.chain"), &marked(4)).await;
        let again = ClusterNode::start(&env, node_options(dirs[1].path(), 2, addrs[1])).await;
        let _again = again.expect("its drive is free");
        whole(&env, &client).await;
        assert_eq!(read_to(&client, 0, 20).await, Ok(20));
    });
}

/// Two nodes with two copies, the directories that they are in, and a client.
async fn pair(env: &Env, dir: TempDir) -> (Vec<ClusterNode>, Vec<SocketAddr>, [TempDir; 2], Client) {
    let (mut nodes, mut addrs) = (Vec::new(), Vec::new());
    let dirs = [dir, TempDir::new().expect("a directory")];
    for (id, dir) in (1..).zip(&dirs) {
        let options = node_options(dir.path(), id, ([127, 0, 0, 1], 0).into());
        let node = ClusterNode::start(env, options).await.expect("it starts");
        addrs.push(node.addr());
        nodes.push(node);
    }
    let timeout = Duration::from_secs(20);
    let named = (1..).map(NodeId).zip(addrs.iter().copied()).collect();
    form(env, &Forming { nodes: named, replicas: 2, min_replicas: 1, timeout }).await.expect("they are free");
    let client = Client::connect(env, ClientOptions { endpoints: addrs.clone(), ..ClientOptions::default() });
    let client = client.await.expect("it serves");
    (nodes, addrs, dirs, client)
}

#[test]
fn a_trim_that_came_to_one_replica_is_completed_when_that_replica_comes_back() {
    run(|env, dir| async move {
        let (mut nodes, addrs, dirs, client) = pair(&env, dir).await;
        for number in 0..4 {
            client.append(marked(number)).await.expect("appended");
        }
        // Position 1 lies on node 2 and then on node 1; whoever trims it gives up half-way.
        let layout = client.layout().await.expect("a layout");
        let place = layout.locate(LogPos(1)).expect("it was written");
        assert_eq!(place.replicas, [NodeId(2), NodeId(1)]);
        let who = Identity { client: ClientId(7), node: NodeId(2), cluster: layout.cluster };
        let deadline = env.now() + Duration::from_secs(20);
        let first = Connection::open(&env, addrs[1], who, deadline).await.expect("it serves");
        let trim = Trim { ranges: vec![AddrRange::new(place.addr, Addr(place.addr.0 + 1))] };
        first.call::<_, Trimmed>(&env, layout.epoch, &trim, deadline).await.expect("trimmed there");
        assert_eq!(client.read(LogPos(1)).await.expect("not everywhere").data, marked(1));

        nodes.pop().expect("two").stop().await;
        client.append(marked(4)).await.expect("node 1 goes on");
        let again = ClusterNode::start(&env, node_options(dirs[1].path(), 2, addrs[1])).await;
        let again = again.expect("its drive is free");
        whole(&env, &client).await;
        let layout = client.layout().await.expect("a layout");
        assert_eq!(layout.locate(LogPos(1)).expect("it is there").replicas, [NodeId(1), NodeId(2)]);
        let kind = async || client.read(LogPos(1)).await.expect("a replica serves").kind;
        assert_eq!(kind().await, EntryKind::Trimmed);
        again.stop().await;
        assert_eq!(kind().await, EntryKind::Trimmed, "of the node that had not been told");
    });
}

#[test]
fn a_node_without_data_takes_a_place_that_is_counted_on_only_while_its_cluster_is_formed() {
    run(|env, dir| async move {
        let options = node_options(dir.path(), 1, ([127, 0, 0, 1], 0).into());
        let node = ClusterNode::start(&env, options).await.expect("it starts");
        let (at, deadline) = ((NodeId(1), node.addr()), env.now() + Duration::from_secs(20));
        let roles = Roles::LAYOUT.with(Roles::SEQUENCER).with(Roles::UNIT);
        let layout = Layout::single(ClusterId(7), Node::new(NodeId(1), roles, node.addr().to_string()));
        let told = tell(&env, at, &layout, deadline).await;
        let is_refused = matches!(
            &told,
            Err(FormError::Node { error: CallError::Refused(Refusal::NotServing { .. }), .. })
        );
        assert!(is_refused, "it may have lost what the layout counts on: {told:?}");
        found(&env, at, &layout, deadline).await.expect("it belongs to no cluster");
        tell(&env, at, &layout, deadline).await.expect("it knows it");
    });
}

/// The groups of the first MiB or two of a drive: where they begin, and how many ranges each releases.
pub async fn groups_of(drive: &Drive) -> Vec<(u64, u32)> {
    let mut groups = Vec::new();
    for offset in (0..drive.size_bytes().min(2 << 20)).step_by(64 << 10) {
        let bytes = drive.read(offset, 64 << 10).await.expect("readable");
        for (block, head) in
            bytes.chunks_exact(4096).enumerate().filter(|(_, head)| head.starts_with(b"ITHG"))
        {
            let released = u32::from_le_bytes(head[92..96].try_into().expect("four bytes"));
            groups.push((offset + 4096 * block as u64, released));
        }
    }
    groups
}

async fn open_unit_drive(env: &Env, dir: &TempDir) -> Drive {
    let open = OpenDrive { path: dir.path().join("unit-1.chain"), create_bytes: None, read_only: false };
    env.open_drive(open).await.expect("the cluster is gone")
}

/// Flips a bit in the block that begins there.
pub async fn harm(drive: &Drive, at: u64) {
    let mut harmed = drive.read(at, 4096).await.expect("readable").to_vec();
    harmed[50] ^= 1;
    drive.write(at, Bytes::from(harmed), Durability::Durable).await.expect("writable");
}

#[test]
fn what_is_trimmed_stays_trimmed_though_the_group_is_lost_that_says_so() {
    run(|env, dir| async move {
        let (cluster, client) = start(&env, &dir, 1).await;
        for number in 0..4 {
            client.append(marked(number)).await.expect("appended");
        }
        client.trim(LogPos(1)).await.expect("trimmed");
        client.append(marked(4)).await.expect("appended");
        drop(client);
        cluster.stop().await;
        let drive = open_unit_drive(&env, &dir).await;
        let groups = groups_of(&drive).await;
        // The others repeat it.
        let trims = groups.iter().find(|(_, released)| *released > 0).expect("it is there");
        harm(&drive, trims.0).await;
        drop(drive);
        let cluster = restart(&env, options(dir.path(), 1)).await;
        let client = connect(&env, &cluster).await;
        assert_eq!(client.read(LogPos(1)).await.expect("it is resolved").kind, EntryKind::Trimmed);
        assert_eq!(read_to(&client, 2, 5).await, Ok(5));
    });
}

#[test]
fn a_unit_that_may_have_forgotten_what_it_promised_is_not_started() {
    run(|env, dir| async move {
        let (cluster, client) = start(&env, &dir, 1).await;
        // More groups than the next one repeats.
        for number in 0..100 {
            client.append(marked(number)).await.expect("appended");
        }
        drop(client);
        cluster.stop().await;
        let drive = open_unit_drive(&env, &dir).await;
        let groups = groups_of(&drive).await;
        for (at, _) in &groups[1..groups.len() - 1] {
            harm(&drive, *at).await;
        }
        drop(drive);
        for _ in 0..2 {
            let refused = LocalCluster::start(&env, options(dir.path(), 1))
                .await
                .err()
                .expect("it may have sealed more");
            assert!(matches!(&refused, StartError::PromisesLost { .. }) && refused.is_damage(), "{refused}");
        }
    });
}
