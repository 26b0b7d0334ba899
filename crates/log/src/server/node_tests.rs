//! What connections may cost a node, whatever comes over them.

use std::path::Path;

use bytes::{BufMut, Bytes};
use ithaca_chain::ChainOptions;
use ithaca_env::codec::DecodeError;
use ithaca_env::sim::Sim;
use ithaca_env::task::gather;

use super::*;
use crate::client::{CallError, Client, ClientOptions, Connection, Identity};
use crate::pos::{AddrRange, ClientId, StreamId};
use crate::server::greeting::HELLO_MAX;
use crate::server::{LocalCluster, LocalOptions};
use crate::wire::{
    HEADER_BYTES, Hello, PROTOCOL_VERSION, Read, ReadStream, ReceivedRuns, Reply, Subscribe, Wanted,
    next_frame,
};

const PATIENCE: Duration = Duration::from_secs(600);
/// Bytes of an entry, and how many make one read.
const ENTRY_BYTES: usize = 1 << 20;
const ENTRIES: u64 = 3;
const STREAM: StreamId = StreamId(7);
/// Such reads whose answers no outbox holds together.
const READS: usize = ithaca_env::limits::OUTBOX_MAX_BYTES / (ENTRY_BYTES * ENTRIES as usize) + 8;

/// Runs `test` with a node in a simulated world.
fn with_node(test: impl AsyncFnOnce(Env, LocalCluster) + 'static) {
    let sim = Sim::new(1);
    let process = sim.process("node", [10, 0, 0, 1].into());
    let env = sim.env(process);
    sim.block_on(process, async move {
        let mut options = LocalOptions::new(Path::new("data"), ([10, 0, 0, 1], 7420).into());
        options.create_bytes = 64 << 20;
        options.chain = ChainOptions { segment_bytes: 16 << 20, capacity_bytes: 256 << 20, ..options.chain };
        let cluster = LocalCluster::start(&env, options).await.expect("it starts");
        test(env, cluster).await;
    });
}

async fn open(env: &Env, cluster: &LocalCluster) -> Result<Connection, CallError> {
    open_as(env, cluster, ClientId(1)).await
}

async fn open_as(env: &Env, cluster: &LocalCluster, client: ClientId) -> Result<Connection, CallError> {
    let who = Identity { client, node: NodeId(0), cluster: ClusterId::UNKNOWN };
    Connection::open(env, cluster.addrs()[0], who, env.now() + PATIENCE).await
}

/// What the node's unit has counted under this name.
fn counted(cluster: &LocalCluster, name: &str) -> u64 {
    let counters = cluster.status().remove(0).counters;
    counters.into_iter().find(|(counter, _)| counter == name).expect("it is counted").1
}

/// Greets, and sends what `requests` encodes right behind, in the epoch that it is given.
async fn send_at_once(
    env: &Env,
    cluster: &LocalCluster,
    requests: impl FnOnce(&mut BytesMut, Epoch),
) -> Conn {
    let conn = env.connect(cluster.addrs()[0]).await.expect("it listens");
    let (version_min, version_max) = (PROTOCOL_VERSION, PROTOCOL_VERSION);
    let (client, node, cluster_id) = (ClientId(1), NodeId(0), ClusterId::UNKNOWN);
    let hello = Hello { version_min, version_max, client, node, cluster: cluster_id };
    conn.writer.push(|out| {
        wire::encode_message(out, Head::new(RequestId(0), Epoch(0)), &hello);
        requests(out, cluster.layout().epoch);
    });
    conn
}

/// A read of the stream of the entries that were appended from `addr` on.
fn read_stream(addr: Addr) -> ReadStream {
    ReadStream {
        limit_bytes: limits::READ_MAX_BYTES as u32,
        committed: false,
        heads_only: false,
        last_only: false,
        known_only: false,
        wait_ms: 0,
        wanted: Wanted::Stream(STREAM),
        ranges: vec![AddrRange::new(addr, Addr(addr.0 + ENTRIES))],
    }
}

/// Appends entries that make one read, which stand in memory; the address of the first.
async fn append(env: &Env, cluster: &LocalCluster) -> Addr {
    let options = ClientOptions { endpoints: cluster.addrs().to_vec(), ..ClientOptions::default() };
    let client = Client::connect(env, options).await.expect("it serves");
    for number in 0..ENTRIES {
        let entry = Bytes::from(vec![number as u8; ENTRY_BYTES]);
        client.append_to(&[STREAM], entry).await.expect("appended");
    }
    cluster.layout().locate(LogPos(0)).expect("it has a place").addr
}

#[test]
fn a_burst_of_reads_of_what_stands_in_memory_is_answered_as_the_answers_are_taken() {
    // All that came together was answered in one turn, however much that was.
    with_node(async |env, cluster| {
        let addr = append(&env, &cluster).await;
        let connection = open(&env, &cluster).await.expect("it serves");
        let ranges = vec![AddrRange::new(addr, Addr(addr.0 + ENTRIES))];
        let read = Read { limit_bytes: limits::READ_MAX_BYTES as u32, committed: false, ranges };
        let (epoch, deadline) = (cluster.layout().epoch, env.now() + PATIENCE);
        let reads = (0..READS).map(|_| connection.call::<_, ReceivedRuns>(&env, epoch, &read, deadline));
        for answer in gather(reads.collect(), |_| false).await.into_iter().flatten() {
            let (_, data, _) = answer.expect("answered");
            assert_eq!(data.len(), ENTRY_BYTES * ENTRIES as usize);
        }
    });
}

#[test]
fn subscriptions_push_what_stands_in_memory_as_it_is_taken() {
    // Each of them pushed its whole credit in one turn.
    with_node(async |env, cluster| {
        let addr = append(&env, &cluster).await;
        let connection = open(&env, &cluster).await.expect("it serves");
        let subscribe = Subscribe { addr, credit_bytes: limits::CREDIT_MAX_BYTES };
        let epoch = cluster.layout().epoch;
        let pushed: Vec<_> = (0..READS).map(|_| connection.subscribe(epoch, &subscribe).1).collect();
        for mut frames in pushed {
            let mut bytes = 0;
            while bytes < ENTRY_BYTES * ENTRIES as usize {
                bytes += frames.recv().await.expect("the connection stands").data.len();
            }
        }
    });
}

#[test]
fn who_has_not_greeted_has_no_longer_frame_taken_than_a_greeting() {
    // Whoever connects could have memory for a whole write kept for them.
    with_node(async |env, cluster| {
        let mut stranger = env.connect(cluster.addrs()[0]).await.expect("it listens");
        stranger.writer.push(|out| {
            out.put_u32_le(limits::DATA_MAX_BYTES as u32);
            out.put_bytes(0, HEADER_BYTES);
        });
        let mut told = BytesMut::new();
        let closed = env.timeout(HELLO_MAX / 2, stranger.reader.read(&mut told)).await;
        assert!(!matches!(closed, Err(_) | Ok(Ok(1..))), "{closed:?}");
    });
}

#[test]
fn clients_past_the_limit_are_refused_until_others_are_gone_and_nodes_are_served() {
    // A node that cannot reach the others would be taken for lost, or could not come back.
    with_node(async |env, cluster| {
        let mut held = Vec::new();
        for _ in 0..limits::CONNECTIONS_MAX_COUNT {
            held.push(open(&env, &cluster).await.expect("there is room"));
        }
        let refused = open(&env, &cluster).await.err();
        let (pending, limit) = (limits::CONNECTIONS_MAX_COUNT as u64, limits::CONNECTIONS_MAX_COUNT as u64);
        assert_eq!(refused, Some(CallError::Refused(Refusal::Overloaded { pending, limit })));
        let mut nodes = Vec::new();
        for _ in 0..limits::PEERS_MAX_COUNT {
            nodes.push(open_as(&env, &cluster, ClientId(0)).await.expect("nodes have places of their own"));
        }
        let refused = open_as(&env, &cluster, ClientId(0)).await.err();
        assert!(matches!(refused, Some(CallError::Refused(Refusal::Overloaded { .. }))), "{refused:?}");
        held.truncate(limits::CONNECTIONS_MAX_COUNT / 2);
        env.sleep(Duration::from_secs(1)).await;
        open(&env, &cluster).await.expect("there is room again");
    });
}

#[test]
fn who_does_not_greet_makes_room_for_those_who_come_later() {
    // They had all places for ten seconds, and could take them again then: nobody else got in.
    with_node(async |env, cluster| {
        let greeted = open(&env, &cluster).await.expect("there is room");
        let mut silent = Vec::new();
        for _ in 0..limits::STRANGERS_MAX_COUNT {
            silent.push(env.connect(cluster.addrs()[0]).await.expect("it listens"));
        }
        open(&env, &cluster).await.expect("there is room for who greets");
        let mut told = BytesMut::new();
        for (nth, conn) in silent.iter_mut().enumerate().take(2) {
            let closed = env.timeout(HELLO_MAX / 2, conn.reader.read(&mut told)).await;
            assert_eq!(matches!(closed, Ok(Ok(0) | Err(_))), nth == 0, "{nth}: {closed:?}");
        }
        let asked = greeted.call::<_, NodeStatus>(&env, Epoch(0), &GetStatus, env.now() + PATIENCE);
        asked.await.expect("who has greeted stays");
    });
}

#[test]
fn a_greeting_and_what_is_sent_right_behind_it_are_taken() {
    with_node(async |env, cluster| {
        let mut conn = env.connect(cluster.addrs()[0]).await.expect("it listens");
        let (version_min, version_max) = (PROTOCOL_VERSION, PROTOCOL_VERSION);
        let (client, node, cluster_id) = (ClientId(1), NodeId(0), ClusterId::UNKNOWN);
        let hello = Hello { version_min, version_max, client, node, cluster: cluster_id };
        let head = |request| Head::new(RequestId(request), cluster.layout().epoch);
        conn.writer.push(|out| {
            wire::encode_message(out, head(1), &hello);
            wire::encode_message(out, head(2), &GetStatus);
        });
        let (mut told, mut answered) = (BytesMut::new(), 0);
        while answered < 2 {
            assert!(conn.reader.read(&mut told).await.expect("it stands") > 0, "after {answered} answers");
            while let Some(frame) = next_frame(&mut told).expect("a frame") {
                answered += 1;
                assert_eq!(frame.head.request, RequestId(answered));
            }
        }
    });
}

/// A greeting as a later version may send it.
struct LongHello(Hello);

impl Message for LongHello {
    const KIND: Kind = Kind::Hello;

    fn encode_body(&self, out: &mut BytesMut) {
        self.0.encode_body(out);
        out.put_u64_le(7);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        Hello::decode_body(body, data_len).map(Self)
    }
}

#[test]
fn what_a_later_version_adds_to_a_greeting_is_not_looked_at() {
    // Its client was closed without a word, and could not tell why.
    with_node(async |env, cluster| {
        for version in [PROTOCOL_VERSION, PROTOCOL_VERSION + 1] {
            let (client, node, cluster_id) = (ClientId(1), NodeId(0), ClusterId::UNKNOWN);
            let hello =
                Hello { version_min: version, version_max: version, client, node, cluster: cluster_id };
            let mut conn = env.connect(cluster.addrs()[0]).await.expect("it listens");
            conn.writer.push(|out| {
                wire::encode_message(out, Head::new(RequestId(1), Epoch(0)), &LongHello(hello));
            });
            let mut told = BytesMut::new();
            assert!(conn.reader.read(&mut told).await.expect("it is answered") > 0, "version {version}");
            let frame = next_frame(&mut told).expect("a frame").expect("a whole one");
            match Reply::decode(&frame).expect("of this version") {
                Reply::HelloOk(ok) => assert_eq!(ok.version, version),
                Reply::Refusal(refusal) => {
                    let (version_min, version_max) = (PROTOCOL_VERSION, PROTOCOL_VERSION);
                    assert_eq!(refusal, Refusal::UnsupportedVersion { version_min, version_max });
                }
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn reads_of_streams_by_who_takes_no_answers_are_not_answered_and_end_with_their_connection() {
    // All that were accepted before anything was unsent were answered, however much that was, also when nobody was there any more.
    with_node(async |env, cluster| {
        let addr = append(&env, &cluster).await;
        let requests = |out: &mut BytesMut, epoch| {
            let head = |id| Head::new(RequestId(id), epoch);
            (1..=READS as u64).for_each(|id| wire::encode_message(out, head(id), &read_stream(addr)));
        };
        let conn = send_at_once(&env, &cluster, requests).await;
        env.sleep(PATIENCE).await;
        // And what the network takes.
        let most = limits::UNSENT_MAX_BYTES + limits::READ_MAX_BYTES + (2 << 20);
        let answered = counted(&cluster, "bytes_read");
        assert!(answered >= limits::UNSENT_MAX_BYTES as u64, "{answered} bytes");
        assert!(answered <= most as u64, "{answered} bytes for somebody who takes none");
        drop(conn);
        env.sleep(PATIENCE).await;
        assert_eq!(counted(&cluster, "bytes_read"), answered);
    });
}

#[test]
fn who_asks_for_much_at_once_is_not_served_all_of_it_before_others() {
    // Thousands of requests come with one read of the socket.
    const COUNT: u64 = 1000;
    with_node(async |env, cluster| {
        let addr = append(&env, &cluster).await;
        let ranges = vec![AddrRange::new(Addr(addr.0 + ENTRIES), Addr(addr.0 + ENTRIES + 1))];
        let read = Read { limit_bytes: 1, committed: false, ranges };
        let requests = |out: &mut BytesMut, epoch| {
            let head = |id| Head::new(RequestId(id), epoch);
            // A task of its own answers it, in two turns, in each of which 128 of the others may be.
            wire::encode_message(out, head(1), &read_stream(addr));
            (2..2 + COUNT).for_each(|id| wire::encode_message(out, head(id), &read));
        };
        let mut conn = send_at_once(&env, &cluster, requests).await;
        let (mut told, mut before) = (BytesMut::new(), 0);
        loop {
            assert!(conn.reader.read(&mut told).await.expect("it stands") > 0);
            while let Some(frame) = next_frame(&mut told).expect("a frame") {
                match frame.head.request {
                    RequestId(1) => return assert!(before <= 256, "{before} of {COUNT} came first"),
                    RequestId(_) => before += 1,
                }
            }
        }
    });
}
