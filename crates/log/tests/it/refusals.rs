//! What is refused, and how it is said.

use std::cell::Cell;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ithaca_env::Env;
use ithaca_env::drive::DriveError;
use ithaca_env::net::NetError;
use ithaca_env::sim::{LinkOptions, Sim, SimOptions};
use ithaca_log::client::{
    CallError, Client, ClientError, ClientOptions, Connection, ErrorClass, Forming, Identity, form,
};
use ithaca_log::limits::ENTRY_MAX_BYTES;
use ithaca_log::pos::{ClientId, ClusterId, Epoch, LogPos, NodeId, RequestId};
use ithaca_log::server::register::RegisterError;
use ithaca_log::server::{ClusterNode, LocalCluster, NodeOptions, StartError};
use ithaca_log::wire::{self, Grant, HEADER_BYTES, Head, Hello, Kind, Message, Refusal, Token};

use crate::nodes::node_options;
use crate::worlds::{append, connect, entry, options, run, start};

#[test]
fn an_entry_of_the_largest_size_is_taken_and_one_byte_more_is_not() {
    run(|env, dir| async move {
        let mut large = options(dir.path(), 1);
        large.chain.segment_bytes = 16 << 20;
        let cluster = LocalCluster::start(&env, large).await.expect("it starts");
        let client = connect(&env, &cluster).await;
        let largest = Bytes::from(vec![5; ENTRY_MAX_BYTES]);
        let pos = client.append(largest.clone()).await.expect("appended");
        assert_eq!(client.read(pos).await.expect("written").data, largest);
        let error = client.append(Bytes::from(vec![5; ENTRY_MAX_BYTES + 1])).await;
        assert_eq!(error, Err(ClientError::TooLarge { len: ENTRY_MAX_BYTES + 1, limit: ENTRY_MAX_BYTES }));
    });
}

#[test]
fn nobody_listening_is_an_error_within_the_timeout() {
    run(|env, _dir| async move {
        let listener = env.listen(([127, 0, 0, 1], 0).into()).expect("a free port");
        let addr = listener.local_addr();
        drop(listener);
        let timeout = Duration::from_millis(100);
        let options = ClientOptions { endpoints: vec![addr], timeout, ..ClientOptions::default() };
        let Err(error) = Client::connect(&env, options).await else { panic!("nobody listens") };
        assert_eq!(error.class(), ErrorClass::Unavailable);
        assert!(error.to_string().contains(&addr.to_string()), "{error}");
    });
}

#[test]
fn a_port_and_a_directory_in_use_are_named() {
    run(|env, dir| async move {
        let (cluster, _client) = start(&env, &dir, 1).await;
        let mut taken = options(dir.path(), 1);
        taken.listen = cluster.addrs()[0];
        let port = LocalCluster::start(&env, taken).await.err();
        assert!(matches!(port, Some(StartError::Listen(NetError::AddressInUse { .. }))), "{port:?}");
        let directory = LocalCluster::start(&env, options(dir.path(), 1)).await.err();
        let in_use =
            matches!(directory, Some(StartError::Register(RegisterError::Drive(DriveError::InUse { .. }))));
        assert!(in_use, "{directory:?}");
    });
}

#[test]
fn a_node_of_another_cluster_and_an_old_epoch_are_refused() {
    run(|env, dir| async move {
        let (cluster, client) = start(&env, &dir, 1).await;
        append(&client, 0, 1).await;
        let deadline = env.now() + std::time::Duration::from_secs(5);
        let addr = cluster.addrs()[0];
        let stranger = Identity { client: ClientId(1), node: NodeId(0), cluster: ClusterId(77) };
        let refused = Connection::open(&env, addr, stranger, deadline).await.err();
        assert!(matches!(refused, Some(CallError::Refused(Refusal::WrongCluster { .. }))), "{refused:?}");
        let other = Identity { client: ClientId(1), node: NodeId(9), cluster: ClusterId::UNKNOWN };
        let refused = Connection::open(&env, addr, other, deadline).await.err();
        assert_eq!(refused, Some(CallError::Refused(Refusal::WrongNode { node: NodeId(1) })));
        let anybody = Identity { client: ClientId(1), node: NodeId(0), cluster: ClusterId::UNKNOWN };
        let connection = Connection::open(&env, addr, anybody, deadline).await.expect("greeted");
        let old = connection.call::<_, Grant>(&env, Epoch(0), &Token::plain(1), deadline).await;
        let expected = Refusal::WrongEpoch { serving: Epoch(1), asked: Epoch(0) };
        assert_eq!(old.err(), Some(CallError::Refused(expected)));
    });
}

#[test]
fn bytes_that_are_no_frames_end_their_connection_and_nothing_else() {
    run(|env, dir| async move {
        let (cluster, client) = start(&env, &dir, 1).await;
        let mut stranger = env.connect(cluster.addrs()[0]).await.expect("it listens");
        stranger.writer.push_shared(Bytes::from(vec![0xff; 4096]));
        let mut buf = BytesMut::new();
        // Whatever it is told, the connection ends.
        while stranger.reader.read(&mut buf).await.is_ok_and(|len| len > 0) {}
        assert_eq!(append(&client, 0, 1).await, [LogPos(0)]);
    });
}

#[test]
fn a_greeting_that_cannot_be_understood_is_refused_before_its_connection_ends() {
    // Whoever writes a client of its own is told what is wrong; a connection that just ends looks like a server that fails.
    let sim = Sim::new(1);
    let process = sim.process("node", [10, 0, 0, 1].into());
    let env = sim.env(process);
    sim.block_on(process, async move {
        let node = ClusterNode::start(&env, node_options(Path::new("data"), 1, 8)).await.expect("it starts");
        let (cluster, id) = (ClusterId::UNKNOWN, NodeId(0));
        let hello = Hello { version_min: 1, version_max: 1, client: ClientId(1), node: id, cluster };
        let mut whole = BytesMut::new();
        wire::encode_message(&mut whole, Head::new(RequestId(7), Epoch(0)), &hello);
        let malformed = Refusal::Malformed { kind: Kind::Hello as u16 };
        for (kind, body_len, refusal) in [
            (Kind::Hello as u16, 39, malformed),
            (Kind::Hello as u16, 0, malformed),
            (0x7777, 40, Refusal::Greeting),
        ] {
            let mut frame = whole[..HEADER_BYTES + body_len].to_vec();
            frame[0..4].copy_from_slice(&(body_len as u32).to_le_bytes());
            frame[8..10].copy_from_slice(&kind.to_le_bytes());
            frame[12..16].copy_from_slice(&(body_len as u32).to_le_bytes());
            let checksum = crc32c::crc32c(&frame[8..]);
            frame[4..8].copy_from_slice(&checksum.to_le_bytes());
            let mut stranger = env.connect(node.addr()).await.expect("it listens");
            stranger.writer.push_shared(Bytes::from(frame));
            let mut told = BytesMut::new();
            while stranger.reader.read(&mut told).await.is_ok_and(|len| len > 0) {}
            let answer = wire::next_frame(&mut told).expect("a frame").expect("all of it");
            assert_eq!(answer.head.request, RequestId(7));
            assert_eq!(Refusal::decode_body(&answer.body, 0), Ok(refusal), "{body_len} bytes");
        }
    });
}

#[test]
fn positions_past_the_tail_cannot_be_trimmed() {
    run(|env, dir| async move {
        let (_cluster, client) = start(&env, &dir, 1).await;
        append(&client, 0, 2).await;
        assert_eq!(client.trim(LogPos(2)).await, Err(ClientError::Unwritten { pos: LogPos(2) }));
        assert_eq!(client.trim_prefix(LogPos(3)).await, Err(ClientError::Unwritten { pos: LogPos(2) }));
    });
}

#[test]
fn an_append_of_which_too_few_copies_can_be_kept_says_so_whenever_its_time_ends() {
    // An attempt that has no time for its answer would make the outcome unknown.
    let (latency, patience) = (Duration::from_millis(5), Duration::from_secs(20));
    let loopback = LinkOptions { latency, jitter: latency, ..SimOptions::default().loopback };
    let sim = Sim::with_options(1, SimOptions { loopback, ..SimOptions::default() });
    let process = sim.process("nodes", [10, 0, 0, 1].into());
    let env = sim.env(process);
    sim.block_on(process, async move {
        let (mut nodes, mut addrs) = (Vec::new(), Vec::new());
        for id in 1..=3 {
            let node = node_options(Path::new(&format!("data-{id}")), id, 8);
            let node = ClusterNode::start(&env, node).await.expect("it starts");
            addrs.push((NodeId(id), node.addr()));
            nodes.push(node);
        }
        let forming = Forming { nodes: addrs.clone(), replicas: 3, min_replicas: 3, timeout: patience };
        form(&env, &forming).await.expect("a cluster");
        nodes.pop().expect("three").stop().await;
        let client = async |timeout| {
            let options = ClientOptions { endpoints: vec![addrs[0].1], timeout, ..ClientOptions::default() };
            Client::connect(&env, options).await.expect("it serves")
        };
        let refused = Err(ClientError::TooFewReplicas { kept: 2, needed: 3, out: vec![NodeId(3)] });
        assert_eq!(client(patience).await.append(entry(0)).await, refused, "until the node is missed");
        for ms in 300..400 {
            let client = client(Duration::from_millis(ms)).await;
            assert_eq!(client.append(entry(1)).await, refused, "within {ms} ms");
        }
    });
}

#[test]
fn a_connection_that_nobody_greets_by_is_closed_and_one_that_was_greeted_by_is_kept() {
    // Else whoever connects and says nothing, or is gone by then, keeps a connection for ever.
    let sim = Sim::new(1);
    let process = sim.process("node", [10, 0, 0, 1].into());
    let env = sim.env(process);
    sim.block_on(process, async move {
        let node = ClusterNode::start(&env, node_options(Path::new("data"), 1, 8)).await.expect("it starts");
        let (hour, deadline) = (Duration::from_secs(3600), env.now() + Duration::from_secs(5));
        let who = Identity { client: ClientId(1), node: NodeId(0), cluster: ClusterId::UNKNOWN };
        let greeted = Connection::open(&env, node.addr(), who, deadline).await.expect("it serves");
        for part in [&[][..], b"ITHL"] {
            let mut silent = env.connect(node.addr()).await.expect("it listens");
            silent.writer.push_shared(Bytes::from_static(part));
            let mut told = BytesMut::new();
            let read = env.timeout(hour, silent.reader.read(&mut told)).await.expect("it is closed");
            assert!(matches!(read, Ok(0) | Err(NetError::Closed { .. })), "{read:?}");
        }
        env.sleep(hour).await;
        assert!(greeted.is_open());
    });
}

#[test]
fn an_endpoint_that_fails_at_once_is_asked_no_more_often_beside_one_that_is_silent() {
    let sim = Sim::new(1);
    let process = sim.process("nodes", [10, 0, 0, 1].into());
    let env = sim.env(process);
    sim.block_on(process, async move {
        let listen = || env.listen(([127, 0, 0, 1], 0).into()).expect("a free port");
        let (ending, silent, came) = (listen(), listen(), Rc::new(Cell::new(0)));
        let endpoints = vec![ending.local_addr(), silent.local_addr()];
        let counting = Rc::clone(&came);
        env.spawn(async move {
            while ending.accept().await.is_ok() {
                counting.set(counting.get() + 1);
            }
        });
        let timeout = Duration::from_secs(2);
        let options = ClientOptions { endpoints, timeout, ..ClientOptions::default() };
        let Err(error) = Client::connect(&env, options).await else { panic!("nobody serves") };
        assert_eq!(error.class(), ErrorClass::Unavailable);
        // One every five milliseconds.
        assert!((100..=405).contains(&came.get()), "{} connections", came.get());
    });
}

#[test]
fn a_server_of_no_cluster_is_named_though_another_address_of_it_has_no_listener() {
    let sim = Sim::new(1);
    let process = sim.process("node", [10, 0, 0, 1].into());
    let env = sim.env(process);
    sim.block_on(process, async move {
        let node = ClusterNode::start(&env, node_options(Path::new("data"), 1, 8)).await.expect("it starts");
        let closed = env.listen(([127, 0, 0, 1], 0).into()).expect("a free port").local_addr();
        for endpoints in [vec![closed, node.addr()], vec![node.addr(), closed]] {
            let options = ClientOptions { endpoints, ..ClientOptions::default() };
            let told = Client::connect(&env, options).await.err();
            assert_eq!(told, Some(ClientError::NoCluster { addr: node.addr() }));
        }
    });
}

/// A node that is a cluster by itself, and where it listens.
async fn formed_alone(env: &Env) -> (ClusterNode, SocketAddr) {
    let node = ClusterNode::start(env, node_options(Path::new("data"), 1, 8)).await.expect("it starts");
    let (addr, timeout) = (node.addr(), Duration::from_secs(20));
    let forming = Forming { nodes: vec![(NodeId(1), addr)], replicas: 1, min_replicas: 1, timeout };
    form(env, &forming).await.expect("a cluster");
    (node, addr)
}

#[test]
fn a_server_of_no_cluster_does_not_speak_for_others_that_are_being_started() {
    let sim = Sim::new(1);
    let process = sim.process("node", [10, 0, 0, 1].into());
    let env = sim.env(process);
    sim.block_on(process, async move {
        let (node, addr) = formed_alone(&env).await;
        node.stop().await;
        let empty =
            ClusterNode::start(&env, node_options(Path::new("empty"), 2, 8)).await.expect("it starts");
        let (endpoints, timeout) = (vec![empty.addr(), addr], Duration::from_secs(20));
        let options = ClientOptions { endpoints, timeout, ..ClientOptions::default() };
        let connecting = env.spawn({
            let env = env.clone();
            async move { Client::connect(&env, options).await?.check().await }
        });
        env.sleep(Duration::from_secs(2)).await;
        let back = NodeOptions { listen: addr, ..node_options(Path::new("data"), 1, 8) };
        let _back = ClusterNode::start(&env, back).await.expect("it starts again");
        assert!(connecting.join().await.expect("it ends").is_ok());
    });
}

#[test]
fn an_idle_client_is_told_by_a_server_that_has_lost_everything_that_it_belongs_to_no_cluster() {
    let sim = Sim::new(1);
    let process = sim.process("node", [10, 0, 0, 1].into());
    let env = sim.env(process);
    sim.block_on(process, async move {
        let (node, addr) = formed_alone(&env).await;
        let options = ClientOptions { endpoints: vec![addr], ..ClientOptions::default() };
        let client = Client::connect(&env, options).await.expect("it serves");
        client.append(entry(0)).await.expect("appended");
        node.stop().await;
        let empty = NodeOptions { listen: addr, ..node_options(Path::new("empty"), 1, 8) };
        let _empty = ClusterNode::start(&env, empty).await.expect("it starts");
        assert_eq!(client.check().await.err(), Some(ClientError::NoCluster { addr }));
    });
}
