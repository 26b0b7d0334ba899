//! Clients of the socket whose blocks lie in memory that the server has too.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::drive::OpenDrive;
use ithaca_env::sim::{Death, Random, Sim};
use ithaca_env::{Env, real};
use ithaca_volume::socket::{Client, ClientOptions, Server, ServerOptions};
use ithaca_volume::{Durability, Planted, TxOptions, Volume};

use crate::world::{MACHINE, block, create, numbers, small_options};

const PATH: &str = "volume.sock";

fn serve(env: &Env, volume: &Volume, path: &Path) -> Server {
    let listener = env.listen_local(path).expect("a free name");
    Server::start(env, listener, volume.clone(), ServerOptions::default())
}

/// A client that shares memory for so many blocks.
async fn connect(env: &Env, path: &Path, blocks: usize, planted: Planted) -> Client {
    let options = ClientOptions { memory_bytes: blocks * 4096, planted };
    let client = Client::connect_with(env, path, options).await.expect("it listens");
    // The answer to this comes after the one that says that the memory is used.
    client.flush().await.expect("it serves");
    client
}

/// Writes and reads blocks of its own, several at a time, gives some calls up, and checks every read. Returns whether all was as written.
async fn works(env: &Env, client: Rc<Client>, first_block: u64, seed: u64) -> bool {
    let mut random = Random::new(seed);
    let mut blocks = [0; 10];
    for round in 0..60 {
        let at = random.below(10) as usize;
        let count = 1 + random.below(10 - at as u64) as usize;
        let (first, span) = (first_block + at as u64, at..at + count);
        match random.below(5) {
            0 | 1 => {
                let new: Vec<u64> = (0..count as u64).map(|nth| seed << 32 | round << 8 | nth).collect();
                let data = Bytes::from(new.iter().flat_map(|&new| block(new)).collect::<Vec<u8>>());
                client.write(first, data, Durability::Acknowledged).await.expect("room");
                blocks[span].copy_from_slice(&new);
            }
            2 => {
                // Whoever has asked is not there any more when the answer comes.
                let wait = Duration::from_nanos(1 + random.below(20_000));
                let _ = env.timeout(wait, client.read(first, count as u64)).await;
            }
            3 => {
                let tx = client.begin(TxOptions::default()).await.expect("few are open").0;
                tx.write(first, block(round)).await.expect("live");
                let own = numbers(&tx.read(first, 1).await.expect("live"));
                tx.abort().await.expect("live");
                if own != [round] {
                    return false;
                }
            }
            _ => {
                let found = numbers(&client.read(first, count as u64).await.expect("no damage"));
                if found != blocks[span] {
                    return false;
                }
            }
        }
    }
    true
}

/// Whether several at a time all find what they have written.
async fn all_work(env: &Env, client: Client) -> bool {
    let client = Rc::new(client);
    let start = |nth: u64| {
        let (own, client) = (env.clone(), Rc::clone(&client));
        env.spawn(async move { works(&own, client, nth * 10, nth + 1).await })
    };
    let mut all = true;
    for task in (0..6).map(start).collect::<Vec<_>>() {
        all &= task.join().await.expect("it ends");
    }
    all
}

/// The same in a simulation, with so many blocks of memory.
pub fn all_find_their_own(seed: u64, blocks: usize, planted: Planted) -> bool {
    let sim = Sim::new(seed);
    let (server, other) = (sim.process("server", MACHINE), sim.process("other", MACHINE));
    let (env, other) = (sim.env(server), sim.env(other));
    sim.block_on(server, async move {
        let volume = create(&env, small_options(0)).await;
        let server = serve(&env, &volume, Path::new(PATH));
        let client = connect(&other, Path::new(PATH), blocks, planted).await;
        let all = all_work(&other, client).await;
        server.stop().await;
        all
    })
}

#[test]
fn memory_of_this_system_holds_what_was_put_there() {
    let folder = tempfile::tempdir().expect("a folder");
    real::run(async |env| {
        let (path, socket) = (folder.path().join("volume.chain"), folder.path().join("socket"));
        let open = OpenDrive { path, create_bytes: Some(64 << 10), read_only: false };
        let drive = env.open_drive(open).await.expect("the file opens");
        let volume = Volume::create(&env, drive, small_options(0)).await.expect("created");
        let server = serve(&env, &volume, &socket);
        for blocks in [0, 12, 1024] {
            let client = connect(&env, &socket, blocks, Planted::default()).await;
            assert!(all_work(&env, client).await, "{blocks} blocks");
            for at in (0..60).step_by(10) {
                volume.discard(at..at + 10, Durability::Acknowledged).await.expect("room");
            }
        }
        server.stop().await;
        volume.close().await.expect("no fault");
    });
}

#[test]
fn many_at_a_time_find_what_they_have_written_whatever_room_there_is() {
    // None, less than one request needs, less than all need, and enough.
    for (seed, blocks) in [(71, 0), (72, 3), (73, 12), (74, 1024)] {
        for more in 0..4 {
            assert!(all_find_their_own(seed + 10 * more, blocks, Planted::default()), "{blocks} blocks");
        }
    }
}

#[test]
fn a_client_that_dies_with_its_memory_in_use_harms_nobody() {
    let sim = Sim::new(75);
    let server = sim.process("server", MACHINE);
    let others = [sim.process("one", MACHINE), sim.process("two", MACHINE)];
    let (env, [one, two]) = (sim.env(server), others.map(|other| sim.env(other)));
    let (volume, running) = sim.block_on(server, async move {
        let volume = create(&env, small_options(0)).await;
        let running = serve(&env, &volume, Path::new(PATH));
        let client = Rc::new(connect(&one, Path::new(PATH), 64, Planted::default()).await);
        for nth in 0..20 {
            let client = Rc::clone(&client);
            one.spawn(async move {
                let _ = client.write(nth, block(nth + 1), Durability::Stable).await;
                let _ = client.read(0, 40).await;
            });
        }
        // Some of it is under way.
        env.sleep(Duration::from_micros(300)).await;
        (volume, running)
    });
    sim.end(others[0], Death::Kill);
    sim.run_for(Duration::from_secs(2));
    assert_eq!((running.connections(), volume.info().transactions), (0, 0));
    sim.block_on(server, async move {
        let client = connect(&two, Path::new(PATH), 64, Planted::default()).await;
        for (nth, number) in numbers(&client.read(0, 20).await.expect("no damage")).into_iter().enumerate() {
            assert!(number == 0 || number == nth as u64 + 1, "block {nth} is {number}");
        }
        running.stop().await;
    });
}
