//! What all clients of a server hold together, and that those who take nothing keep nobody else from it.

use std::time::Duration;

use ithaca_env::Env;
use ithaca_volume::nbd::Server;
use ithaca_volume::nbd::limits::{OWN_ROOM_BYTES, PAYLOAD_MAX_BYTES, REQUESTS_MAX_BYTES, SHARED_ROOM_BYTES};
use ithaca_volume::{Planted, VolumeOptions};

use super::client::{Client, READ, WRITE};
use super::{addr, serve};
use crate::world::{MACHINE, World, create, small_options, within};

const MIB: u32 = 1 << 20;
/// Clients that take up all room that is shared, and more.
const GREEDY: usize = SHARED_ROOM_BYTES / REQUESTS_MAX_BYTES as usize + 4;

/// A server of a volume of which hardly anything is stored, so that there is much to be read.
async fn serve_large(env: &Env) -> Server {
    let volume = create(env, VolumeOptions { blocks: 64 << 8, ..small_options(0) }).await;
    serve(env, &volume, Planted::default())
}

/// A client that asks for so many bytes at a time, for more than it may, and takes none of them.
async fn greedy(env: &Env, bytes: u32) -> Client {
    let mut client = Client::open(env, addr(), "").await;
    for _ in 0..2 * REQUESTS_MAX_BYTES / u64::from(bytes) {
        client.send(READ, 0, 0, bytes, b"");
    }
    client
}

/// As many of them as take up all shared room.
async fn greedy_ones(env: &Env, bytes: u32) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..GREEDY {
        clients.push(greedy(env, bytes).await);
    }
    env.sleep(Duration::from_secs(1)).await;
    clients
}

#[test]
fn clients_that_take_nothing_hold_no_more_together_than_there_is_room_for() {
    for bytes in [PAYLOAD_MAX_BYTES, MIB] {
        let World { sim, process, .. } = World::new(41);
        let env = sim.env(process);
        let (server, clients) = sim.block_on(process, async move {
            let server = serve_large(&env).await;
            let clients = greedy_ones(&env, bytes).await;
            (server, clients)
        });
        let (held, limit) = (server.held_bytes(), SHARED_ROOM_BYTES + GREEDY * OWN_ROOM_BYTES);
        assert!(0 < held && held <= limit, "{held} bytes, of {limit}");
        drop(clients);
        sim.reset_connections(MACHINE, MACHINE);
        let env = sim.env(process);
        sim.block_on(process, async move { env.sleep(Duration::from_secs(2)).await });
        assert_eq!((server.held_bytes(), server.connections()), (0, 0), "it is given back");
    }
}

#[test]
fn requests_of_a_usual_size_are_answered_at_once_beside_clients_that_take_nothing() {
    within(42, async |env| {
        let server = serve_large(&env).await;
        let _clients = greedy_ones(&env, PAYLOAD_MAX_BYTES).await;
        assert!(server.held_bytes() >= SHARED_ROOM_BYTES, "they have all that is shared");
        let mut client = Client::open(&env, addr(), "").await;
        let begun = env.now();
        for _ in 0..8 {
            client.send(READ, 0, 0, MIB, b"");
        }
        for _ in 0..8 {
            assert_eq!(client.read_answer(MIB).await, Ok(vec![0; MIB as usize]));
        }
        client.write(0, &vec![1; 64 << 10], 0).await.expect("room");
        assert!(env.now().since(begun) < Duration::from_secs(1), "it waits for nobody");
        assert_eq!(server.connections(), GREEDY + 1, "and nobody is sent away for it");
    });
}

#[test]
fn a_large_request_ends_those_who_have_kept_its_room_for_long() {
    within(43, async |env| {
        let server = serve_large(&env).await;
        let clients = greedy_ones(&env, PAYLOAD_MAX_BYTES).await;
        let mut client = Client::open(&env, addr(), "").await;
        let read = client.read(0, PAYLOAD_MAX_BYTES).await.expect("there is room for it in the end");
        assert_eq!(read, vec![0; PAYLOAD_MAX_BYTES as usize]);
        assert!(server.connections() < GREEDY, "some had to go");
        drop(clients);
    });
}

#[test]
fn a_write_whose_data_does_not_come_keeps_nobody_for_ever() {
    within(44, async |env| {
        let server = serve_large(&env).await;
        let mut clients = Vec::new();
        for _ in 0..SHARED_ROOM_BYTES / PAYLOAD_MAX_BYTES as usize {
            let mut client = Client::open(&env, addr(), "").await;
            client.send(WRITE, 0, 0, PAYLOAD_MAX_BYTES, b"no more than this");
            clients.push(client);
        }
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!(server.held_bytes(), SHARED_ROOM_BYTES);
        let mut client = Client::open(&env, addr(), "").await;
        client.read(0, PAYLOAD_MAX_BYTES).await.expect("there is room for it in the end");
    });
}

#[test]
fn a_client_that_takes_its_replies_is_left_alone_however_many_wait() {
    // Each takes more than its own room all the time, and waits for the others.
    within(45, async |env| {
        let server = serve_large(&env).await;
        let mut tasks = Vec::new();
        for _ in 0..12 {
            let env = env.clone();
            tasks.push(env.clone().spawn(async move {
                let mut client = Client::open(&env, addr(), "").await;
                for _ in 0..4 {
                    client.send(READ, 0, 0, PAYLOAD_MAX_BYTES / 2, b"");
                }
                for _ in 0..4 {
                    client.read_answer(PAYLOAD_MAX_BYTES / 2).await.expect("no damage");
                }
                client
            }));
        }
        for task in tasks {
            task.join().await.expect("it ends").read(0, 1).await.expect("it is still connected");
        }
        assert_eq!(server.held_bytes(), 0);
    });
}
