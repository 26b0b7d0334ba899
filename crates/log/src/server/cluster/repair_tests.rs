//! Repair of more than one pass looks after, and while nodes come and go.

use std::net::SocketAddr;
use std::path::Path;

use bytes::Bytes;
use ithaca_chain::ChainOptions;
use ithaca_env::Env;
use ithaca_env::drive::{Durability, OpenDrive};
use ithaca_env::sim::{ProcessId, Sim};

use crate::client::{Client, ClientOptions, Forming, form};
use crate::server::{ClusterNode, NodeOptions};

use super::*;

const WITHIN: Duration = Duration::from_secs(60);
/// Entries, many more than one pass looks after.
const COUNT: usize = PASS_MAX + 2000;
const MARK: &[u8] = b"an entry whose group is harmed: ";

fn addr(id: u64) -> SocketAddr {
    ([10, 0, 0, id as u8], 7420).into()
}

async fn start(env: Env, id: u64) -> Option<ClusterNode> {
    let mut options = NodeOptions::new(NodeId(id), Path::new("data"), addr(id));
    options.create_bytes = 64 << 20;
    options.repair_every = Duration::from_millis(100);
    options.chain = ChainOptions { segment_bytes: 4 << 20, capacity_bytes: 256 << 20, ..options.chain };
    ClusterNode::start(&env, options).await.ok()
}

/// Nodes 1, 2, ..., each on a machine of its own and with a copy of every entry.
struct World {
    sim: Sim,
    nodes: Vec<(ProcessId, Option<ClusterNode>)>,
}

impl World {
    /// With so many nodes, of which the second has lost most entries; how many that is.
    fn new(count: u64) -> (Self, u64) {
        let (sim, mut nodes) = (Sim::new(1), Vec::new());
        for id in 1..=count {
            nodes.push((sim.process(&format!("node {id}"), addr(id).ip()), None));
        }
        let mut world = Self { sim, nodes };
        world.start_all();
        let client = world.sim.process("client", addr(9).ip());
        let env = world.sim.env(client);
        world.sim.block_on(client, async move { fill(&env, count).await });
        for (process, node) in &mut world.nodes {
            let node = node.take();
            world.sim.block_on(*process, async move { drop(node) });
        }
        let (process, _) = world.nodes[1];
        let env = world.sim.env(process);
        let lost = world.sim.block_on(process, async move { harm(&env).await });
        assert!(lost > PASS_MAX as u64, "only {lost} are lost");
        world.start_all();
        (world, lost)
    }

    fn start_all(&mut self) {
        for (id, (process, node)) in (1..).zip(&mut self.nodes) {
            let deadline = self.sim.now() + WITHIN;
            while node.is_none() {
                let env = self.sim.env(*process);
                *node = self.sim.block_on(*process, start(env, id));
                assert!(self.sim.now() < deadline, "its drive is free");
                self.sim.run_for(Duration::from_millis(10));
            }
        }
    }

    fn counted(&self, name: &str) -> u64 {
        let status = self.nodes[1].1.as_ref().expect("it runs").status();
        status.counters.iter().find(|(counter, _)| counter == name).expect("it is counted").1
    }

    fn until_repaired(&self, count: u64) {
        let deadline = self.sim.now() + WITHIN;
        while self.counted("lost_entries_repaired") < count {
            let repaired = self.counted("lost_entries_repaired");
            assert!(self.sim.now() < deadline, "{repaired} of {count} are repaired");
            self.sim.run_for(Duration::from_millis(10));
        }
    }
}

/// Forms a cluster, and appends entries in large batches, and others before and after them one by one.
async fn fill(env: &Env, count: u64) {
    let nodes = (1..=count).map(|id| (NodeId(id), addr(id))).collect();
    let forming = Forming { nodes, replicas: count as u16, min_replicas: 1, timeout: WITHIN };
    form(env, &forming).await.expect("they are free");
    let endpoints = (1..=count).map(addr).collect();
    let client = Client::connect(env, ClientOptions { endpoints, ..ClientOptions::default() });
    let client = client.await.expect("it serves");
    let whole = async || {
        for _ in 0..4 {
            client.append(Bytes::from_static(b"whole")).await.expect("appended");
        }
    };
    whole().await;
    for _ in 0..COUNT / 500 {
        let appends: Vec<_> = (0..500).map(|_| client.append(Bytes::from_static(MARK))).collect();
        for append in appends {
            append.await.expect("appended");
        }
    }
    whole().await;
}

/// Flips a bit in the head of each group that holds marked entries; how many of these there are.
async fn harm(env: &Env) -> u64 {
    let open = OpenDrive { path: "data/unit-2.chain".into(), create_bytes: None, read_only: false };
    let drive = loop {
        if let Ok(drive) = env.open_drive(open.clone()).await {
            break drive;
        }
        env.sleep(Duration::from_millis(10)).await;
    };
    let (size, mut bytes) = (drive.size_bytes() as usize / 4096 * 4096, Vec::new());
    while bytes.len() < size {
        let len = (size - bytes.len()).min(1 << 20);
        bytes.extend_from_slice(&drive.read(bytes.len() as u64, len).await.expect("readable"));
    }
    let heads: Vec<usize> = (0..size).step_by(4096).filter(|&at| bytes[at..].starts_with(b"ITHG")).collect();
    let mut harmed = 0;
    for (nth, &head) in heads.iter().enumerate() {
        let end = heads.get(nth + 1).copied().unwrap_or(size);
        let marked = bytes[head..end].windows(MARK.len()).filter(|window| *window == MARK).count();
        if marked > 0 {
            harmed += marked as u64;
            let mut block = bytes[head..head + 4096].to_vec();
            block[50] ^= 1;
            drive.write(head as u64, Bytes::from(block), Durability::Durable).await.expect("writable");
        }
    }
    harmed
}

#[test]
fn what_is_more_than_one_pass_looks_after_is_repaired_too() {
    // It was never looked for again, and nobody was told that it is lost.
    let (world, lost) = World::new(2);
    world.until_repaired(lost);
    world.sim.run_for(Duration::from_secs(1));
    assert_eq!((world.counted("lost_entries_found"), world.counted("lost_entries_left")), (lost, 0));
}

#[test]
fn a_replica_that_falls_silent_holds_repair_up_once_and_not_for_each_entry() {
    let (world, lost) = World::new(3);
    world.until_repaired(50);
    world.sim.pause(world.nodes[2].0);
    world.until_repaired(lost);
}

#[test]
fn what_cannot_be_repaired_keeps_nothing_else_from_being_tried() {
    // Of more than one pass looks after the lowest were tried each time, and no others.
    let (mut known, count) = (Known::default(), 2 * PASS_MAX as u64 + 5);
    assert_eq!(known.add(&std::iter::once(10..10 + count).collect()), count);
    let mut tried = BTreeSet::new();
    for _ in 0..3 {
        for addr in known.next_pass() {
            known.next = addr + 1;
            tried.insert(addr);
        }
    }
    assert!(tried.into_iter().eq(10..10 + count));
    known.remove(11);
    assert_eq!(known.add(&std::iter::once(10..12).collect()), 1);
    assert_eq!(known.count, count);
}
