//! What all clients of a socket hold together, and that those who take nothing keep nobody else from it.

use std::path::Path;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::Env;
use ithaca_env::net::Conn;
use ithaca_env::sim::Death;
use ithaca_volume::socket::limits::{
    BLOCKS_MAX, BODY_MAX_BYTES, CONNECTIONS_MAX, HELD_MAX_BYTES, OWN_ROOM_BYTES, REQUESTS_MAX_BYTES,
    SHARED_ROOM_BYTES,
};
use ithaca_volume::socket::{Client, ClientOptions, Server, ServerOptions};
use ithaca_volume::{Durability, TxOptions, Version, Volume, VolumeOptions};

use crate::world::{World, create, number, small_options, within};

const PATH: &str = "volume.sock";
const BEGIN: u16 = 2;
const COMMIT: u16 = 4;
const READ: u16 = 8;
const WRITE: u16 = 9;
const BLOCK: u64 = 4096;

/// A server of a volume of which hardly anything is stored, so that there is much to be read.
async fn serve_large(env: &Env) -> (Volume, Server) {
    let volume = create(env, VolumeOptions { blocks: 64 << 8, ..small_options(0) }).await;
    let listener = env.listen_local(Path::new(PATH)).expect("a free name");
    (volume.clone(), Server::start(env, listener, volume, ServerOptions::default()))
}

/// Sends a request on a connection of which nothing is read.
fn send(conn: &Conn, kind: u16, tx: u32, body: &[u8], data_bytes: usize) {
    let mut frame = BytesMut::new();
    frame.put_slice(b"ITvs");
    frame.put_u16_le(1);
    frame.put_u16_le(kind);
    frame.put_u64_le(1);
    frame.put_u32_le(tx);
    frame.put_u32_le(0);
    frame.put_u32_le((body.len() + data_bytes) as u32);
    let data = vec![0; data_bytes];
    let checksum =
        [body, &data].iter().fold(crc32c::crc32c(&frame), |sum, piece| crc32c::crc32c_append(sum, piece));
    frame.put_u32_le(checksum);
    frame.put_slice(body);
    frame.put_slice(&data);
    conn.writer.push_shared(frame.freeze());
}

fn send_read(conn: &Conn, tx: u32, blocks: u32) {
    let mut body = BytesMut::new();
    body.put_u64_le(0);
    body.put_u32_le(blocks);
    send(conn, READ, tx, &body, 0);
}

/// A client that asks for so many blocks at a time, for more than it may, and takes none of them.
async fn greedy(env: &Env, blocks: u32) -> Conn {
    let conn = env.connect_local(Path::new(PATH)).await.expect("it listens");
    for _ in 0..2 * REQUESTS_MAX_BYTES as u64 / (u64::from(blocks) * BLOCK) {
        send_read(&conn, 0, blocks);
    }
    conn
}

/// As many as there may be, but for some others.
async fn greedy_ones(env: &Env, blocks: u32) -> Vec<Conn> {
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS_MAX - 4 {
        clients.push(greedy(env, blocks).await);
    }
    env.sleep(Duration::from_secs(1)).await;
    clients
}

async fn connect(env: &Env) -> Client {
    Client::connect(env, Path::new(PATH)).await.expect("it listens")
}

#[test]
fn clients_that_take_nothing_hold_no_more_together_than_there_is_room_for() {
    for blocks in [BLOCKS_MAX as u32, 64] {
        let World { sim, process, .. } = World::new(71);
        let client = sim.process("greedy", crate::world::MACHINE);
        let (env, other) = (sim.env(process), sim.env(client));
        let (server, clients) = sim.block_on(process, async move {
            let (_, server) = serve_large(&env).await;
            (server, greedy_ones(&other, blocks).await)
        });
        let (held, limit) = (server.held_bytes(), SHARED_ROOM_BYTES + clients.len() * OWN_ROOM_BYTES);
        assert!(
            SHARED_ROOM_BYTES <= held && held <= limit && limit < HELD_MAX_BYTES,
            "{held} bytes, of {limit}"
        );
        sim.end(client, Death::Kill);
        sim.run_for(Duration::from_secs(2));
        assert_eq!((server.held_bytes(), server.connections()), (0, 0), "it is given back");
    }
}

#[test]
fn clients_that_announce_much_and_send_nothing_hold_no_more_together_than_there_is_room_for() {
    within(72, async |env| {
        let (_volume, server) = serve_large(&env).await;
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            let conn = env.connect_local(Path::new(PATH)).await.expect("it listens");
            let mut head = BytesMut::new();
            head.put_slice(b"ITvs");
            head.put_u16_le(1);
            head.put_u16_le(WRITE);
            head.put_bytes(0, 16);
            head.put_u32_le(BODY_MAX_BYTES as u32);
            head.put_u32_le(0);
            conn.writer.push_shared(head.freeze());
            clients.push(conn);
        }
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!(
            server.held_bytes(),
            CONNECTIONS_MAX * BODY_MAX_BYTES,
            "each has what it needs, and no more"
        );
    });
}

#[test]
fn transactions_go_on_at_once_beside_clients_that_take_nothing() {
    within(73, async |env| {
        let (volume, server) = serve_large(&env).await;
        let clients = greedy_ones(&env, BLOCKS_MAX as u32).await;
        assert!(server.held_bytes() >= SHARED_ROOM_BYTES, "they have all that is shared");
        let begun = env.now();
        let options = ClientOptions { memory_bytes: 0, ..ClientOptions::default() };
        let direct = Client::connect_with(&env, Path::new(PATH), options).await.expect("it listens");
        let others = [direct, connect(&env).await];
        for client in &others {
            // The most that a request reads, and that a transaction writes in this volume.
            let (tx, _) = client.begin(TxOptions::default()).await.expect("few are open");
            for _ in 0..8 {
                assert_eq!(tx.read(0, BLOCKS_MAX).await.map(|data| data.len()), Ok(4 << 20));
            }
            tx.write(0, Bytes::from(vec![1; 8 * 4096])).await.expect("live");
            tx.commit().await.expect("no conflict");
            let (tx, _) = client.begin(TxOptions::default()).await.expect("few are open");
            tx.write(0, Bytes::from(vec![2; 4096])).await.expect("live");
            tx.abort().await.expect("live");
            let plain = Bytes::from(vec![1; 4096]);
            client.write(9, plain, Durability::Stable).await.expect("room");
        }
        assert!(env.now().since(begun) < Duration::from_secs(5), "they wait for nobody");
        assert_eq!(server.connections(), clients.len() + others.len(), "and nobody is sent away for it");
        assert_eq!(number(&volume.read(0, 1).await.expect("no damage")), 0x0101_0101_0101_0101);
    });
}

#[test]
fn a_transaction_is_committed_although_its_client_has_taken_nothing_of_what_it_has_read() {
    // What was read is held for the client, which may be stopped; nobody else is to wait for what it has written.
    within(74, async |env| {
        let (volume, server) = serve_large(&env).await;
        let conn = env.connect_local(Path::new(PATH)).await.expect("it listens");
        send(&conn, BEGIN, 1, &[0, 0], 0);
        for _ in 0..3 {
            send_read(&conn, 1, 1000);
        }
        send(&conn, WRITE, 1, &[0; 9], 4096);
        send(&conn, COMMIT, 1, b"", 0);
        env.sleep(Duration::from_secs(1)).await;
        assert!(server.held_bytes() > 0, "what was read last is still held");
        assert_eq!((volume.info().version, volume.info().transactions), (Version(1), 0));
    });
}
