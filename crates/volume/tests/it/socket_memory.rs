//! Clients of the socket whose blocks lie in memory that the server has too.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_env::sim::{Death, Random, Sim};
use ithaca_volume::socket::{Client, ClientOptions, Server, ServerOptions};
use ithaca_volume::{Durability, Planted, TxOptions, Volume};

use crate::world::{MACHINE, block, create, numbers, small_options};

const PATH: &str = "volume.sock";

fn serve(env: &Env, volume: &Volume) -> Server {
    let listener = env.listen_local(Path::new(PATH)).expect("a free name");
    Server::start(env, listener, volume.clone(), ServerOptions::default())
}

/// A client that shares memory for so many blocks.
async fn connect(env: &Env, blocks: usize, planted: Planted) -> Client {
    let options = ClientOptions { memory_bytes: blocks * 4096, planted };
    let client = Client::connect_with(env, Path::new(PATH), options).await.expect("it listens");
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

/// Whether several at a time all find what they have written, with so many blocks of memory.
fn all_find_their_own(seed: u64, blocks: usize, planted: Planted) -> bool {
    let sim = Sim::new(seed);
    let (server, other) = (sim.process("server", MACHINE), sim.process("other", MACHINE));
    let (env, other) = (sim.env(server), sim.env(other));
    sim.block_on(server, async move {
        let volume = create(&env, small_options(0)).await;
        let server = serve(&env, &volume);
        let client = Rc::new(connect(&other, blocks, planted).await);
        let start = |nth: u64| {
            let (env, client) = (other.clone(), Rc::clone(&client));
            other.spawn(async move { works(&env, client, nth * 10, nth + 1).await })
        };
        let mut all = true;
        for task in (0..6).map(start).collect::<Vec<_>>() {
            all &= task.join().await.expect("it ends");
        }
        drop(client);
        server.stop().await;
        all
    })
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
        let running = serve(&env, &volume);
        let client = Rc::new(connect(&one, 64, Planted::default()).await);
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
        let client = connect(&two, 64, Planted::default()).await;
        for (nth, number) in numbers(&client.read(0, 20).await.expect("no damage")).into_iter().enumerate() {
            assert!(number == 0 || number == nth as u64 + 1, "block {nth} is {number}");
        }
        running.stop().await;
    });
}

#[cfg(feature = "planted-bugs")]
#[test]
fn room_that_is_given_to_another_request_too_early_is_found() {
    let planted = Planted::bug(ithaca_volume::PlantedBug::SlotsNotHeld);
    assert!(!all_find_their_own(71, 64, planted));
}
