//! Nodes behind gates that can be shut: what is read while the last replica is silent, and after a seal, on real sockets;
//! and what is asked for while drives are busy or a replica hangs, in simulated time.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::sim::{Lanes, LanesOptions, ProcessId, Sim, SimOptions};
use ithaca_log::client::{CallError, Client, ClientError, EntryKind};
use ithaca_log::pos::{Epoch, LogPos, NodeId};
use ithaca_log::server::NodeOptions;
use ithaca_log::wire::{Kind, Refusal, RunState, Seal, Sealed};

use crate::gates::{PATIENCE, World};
use crate::worlds::{append, entry, run};

#[test]
fn committed_entries_are_read_while_the_last_replica_is_silent_and_nothing_is_said_of_others() {
    // The other replica may hold what was never decided, and may lack what was.
    run(|env, dir| async move {
        let world = World::start(&env, dir.path()).await;
        let client = world.client(PATIENCE).await;
        let positions = append(&client, 0, 60).await;
        let silent = NodeId(3);
        let (begun, free) = {
            let granted = client.tokens(6).await.expect("granted");
            let mut here =
                (granted.start.0..granted.end.0).map(LogPos).filter(|&pos| world.replicas(pos).1 == silent);
            (here.next().expect("one of three"), here.next().expect("one of three"))
        };
        world.write_at_first(begun, 60).await;
        world.until_complete(&positions).await;
        world.gates[2].set(true);
        for (&pos, number) in positions.iter().zip(0..) {
            let found = client.read(pos).await.expect("it is on every replica");
            assert_eq!((found.kind, found.data), (EntryKind::Data, entry(number)), "{pos}");
        }
        assert_eq!(client.read_many(&positions).await.expect("they are on every replica").len(), 60);
        let ranges = client.read_range(LogPos(0), LogPos(60)).await.expect("they are on every replica");
        assert_eq!(ranges.len(), 60);
        assert!(client.reads_elsewhere() >= 20, "{} reads", client.reads_elsewhere());
        let (follower, mut next) = (world.client(PATIENCE).await, 0);
        let mut tailing = follower.tail_from(LogPos(0));
        while next < 60 {
            for found in tailing.next().await.expect("it is on every replica") {
                assert_eq!((found.pos.0, found.data), (next, entry(next)));
                next += 1;
            }
        }
        let hasty = world.client(Duration::from_millis(300)).await;
        for pos in [begun, free] {
            let answer = hasty.read(pos).await;
            let is_silent =
                answer.as_ref().is_err_and(|error| !matches!(error, ClientError::Unwritten { .. }));
            assert!(is_silent, "{pos}: {answer:?}");
        }
        world.gates[2].set(false);
        assert_eq!(client.fill(begun).await, Ok(EntryKind::Data));
        assert_eq!(client.read(begun).await.map(|found| found.data), Ok(entry(60)));
    });
}

#[test]
fn committed_entries_are_read_in_a_sealed_epoch_and_nothing_else_is() {
    // A seal comes before the layout that goes on: readers would stand still in between.
    run(|env, dir| async move {
        let world = World::start(&env, dir.path()).await;
        let client = world.client(PATIENCE).await;
        let positions = append(&client, 0, 30).await;
        world.until_complete(&positions).await;
        for node in (1..=3).map(NodeId) {
            let seal = Seal { epoch: world.layout.epoch, extents: world.layout.active_extents(node) };
            world.call::<_, Sealed>(node, &seal).await.expect("sealed");
        }
        for &pos in &positions {
            let (first, last) = world.replicas(pos);
            for (node, committed) in [(first, true), (last, true), (last, false)] {
                let found = world.read(node, pos, committed).await;
                assert!(matches!(found, Ok(RunState::Data { .. })), "{pos} at {node}: {found:?}");
            }
        }
        let beyond = LogPos(30);
        let (first, last) = world.replicas(beyond);
        for (node, committed) in [(first, true), (first, false), (last, true), (last, false)] {
            let found = world.read(node, beyond, committed).await;
            let refused = CallError::Refused(Refusal::Sealed { sealed: Epoch(1) });
            assert_eq!(found, Err(refused), "{beyond} at {node}");
        }
    });
}

/// Three nodes that keep nothing in memory of what was appended, on drives that read an entry in so many microseconds, one
/// after the other.
struct Cold {
    sim: Sim,
    process: ProcessId,
    world: Rc<World>,
    clients: Rc<Vec<Client>>,
    positions: Vec<LogPos>,
}

const IP: [u8; 4] = [10, 0, 0, 1];
const READS: u64 = 1000;

fn small(number: u64) -> Bytes {
    Bytes::from(number.to_le_bytes().repeat(12))
}

impl Cold {
    /// With so many clients that have read nothing.
    fn new(read_us: u64, clients: usize) -> Self {
        let sim = Sim::with_options(1, SimOptions { drive_jitter_percent: 0, ..SimOptions::default() });
        let process = sim.process("nodes", IP.into());
        let env = sim.env(process);
        let (world, clients, positions) = sim.block_on(process, async move {
            let cold = |node: &mut NodeOptions| node.chain.tail_cache_bytes = 0;
            let world = World::begin_with(&env, Path::new("data"), IP, cold).await;
            let mut all = Vec::new();
            for _ in 0..clients {
                all.push(world.client(PATIENCE).await);
            }
            let appends: Vec<_> = (0..READS).map(|number| all[0].append(small(number))).collect();
            let mut positions = Vec::new();
            for append in appends {
                positions.push(append.await.expect("appended"));
            }
            world.until_complete(&positions).await;
            (Rc::new(world), Rc::new(all), positions)
        });
        for id in 1..=3 {
            let drive = sim.drive(IP.into(), &format!("data/{id}/unit-{id}.chain"));
            let one = LanesOptions { lanes: 1, read_ns: read_us * 1000, ..LanesOptions::ram() };
            sim.set_drive_speed(drive, Box::new(Lanes::new(one)));
        }
        Self { sim, process, world, clients, positions }
    }

    /// Reads the first so many entries, all at the same time, with the clients in turn. How many requests came more than
    /// entries were read, and how long the last of them took.
    fn burst(&self, count: u64) -> (u64, Duration) {
        let (world, clients) = (Rc::clone(&self.world), Rc::clone(&self.clients));
        let positions = self.positions[..count as usize].to_vec();
        self.sim.block_on(self.process, async move {
            let (env, asked) = (world.env.clone(), world.asked(Kind::Read));
            let began = env.now();
            let mut reads = Vec::new();
            for (number, pos) in (0..).zip(positions) {
                let client = clients[number as usize % clients.len()].clone();
                reads.push(env.spawn(async move {
                    let found = client.read(pos).await.expect("it is on every replica");
                    assert_eq!(found.data, small(number), "{pos}");
                }));
            }
            for read in reads {
                read.join().await.expect("it ends");
            }
            // What is behind a gate that is shut does not count.
            ((world.asked(Kind::Read) - asked).saturating_sub(count), env.now().since(began))
        })
    }
}

#[test]
fn a_load_that_is_merely_heavy_is_not_asked_for_twice() {
    // Nothing is known yet of how long reads take: each that had waited for 20 ms was asked for again, and the drives had
    // twice as much to do.
    for read_us in [200, 500, 2000] {
        let (twice, took) = Cold::new(read_us, 1).burst(READS);
        assert!(took > Duration::from_millis(60), "{read_us} us: that was no heavy load, {took:?}");
        assert!(twice <= READS / 20, "{read_us} us: {twice} twice");
    }
}

#[test]
fn of_a_heavy_load_of_many_clients_each_asks_for_little_twice() {
    // Each has so few reads at a node that it hears nothing of it for longer than 20 ms, and asks for one of them again.
    for clients in [10, 40, 100] {
        let (twice, _) = Cold::new(500, clients).burst(READS);
        assert!(twice <= 3 * clients as u64, "{clients} clients: {twice} twice");
    }
}

#[test]
fn a_thousand_reads_are_answered_soon_though_a_replica_hangs_that_owes_a_third_of_them() {
    // The first that is answered elsewhere shows that it hangs. All of it takes 50 ms on the other drives; four times what the
    // slowest read took, at most 200 ms, is waited for before one is asked elsewhere.
    for hangs_after_ms in [0, 2, 5, 10, 30] {
        let (cold, soon) = (Cold::new(100, 1), Duration::from_millis(250));
        let (world, at) = (Rc::clone(&cold.world), cold.sim.now() + Duration::from_millis(hangs_after_ms));
        cold.sim.at(at, move |_| world.gates[2].set(true));
        let (_, took) = cold.burst(READS);
        assert!(took < soon, "after {hangs_after_ms} ms: {took:?}");
    }
}

#[test]
fn few_reads_at_a_replica_that_hangs_after_a_heavy_load_are_answered_in_bounded_time() {
    // Reads took long of late, which is no reason to wait for long for each of them.
    let cold = Cold::new(200, 1);
    cold.burst(READS);
    cold.world.gates[2].set(true);
    let (_, took) = cold.burst(12);
    assert!(took < Duration::from_millis(250), "{took:?}");
    let (_, took) = cold.burst(12);
    assert!(took < Duration::from_millis(20), "it is known to be late: {took:?}");
}
