//! Copies that a node's drive has lost are repaired from another replica, and nothing that differs is written over.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{ChainOptions, Table};
use ithaca_env::Env;
use ithaca_env::drive::{Durability, OpenDrive};
use ithaca_log::client::{Connection, Identity};
use ithaca_log::entry::EntryMeta;
use ithaca_log::planted::Planted;
use ithaca_log::pos::{Addr, AddrRange, ClientId, ClusterId, LogPos, NodeId, RequestNo};
use ithaca_log::server::NodeOptions;
use ithaca_log::wire::{Head, Read, RunState, Runs, Write, Written, encode_head};

use crate::nodes::{Cluster, node_options};
use crate::worlds::run;

const PATIENCE: Duration = Duration::from_secs(60);
/// Entries that fill a few segments.
const COUNT: u64 = 200;

/// An entry that takes a block and is easily found on a drive.
fn marked(number: u64) -> Bytes {
    let mark = format!("entry number {number:04} of those that are repaired ");
    Bytes::from(mark.repeat(4096 / mark.len() + 1)).slice(..4096)
}

fn scrubbing(dir: &Path, id: u64) -> NodeOptions {
    let mut options = node_options(dir, id, 200);
    options.repair_every = Duration::from_millis(50);
    options.chain = ChainOptions {
        scrub_every: Duration::from_millis(200),
        scrub_bytes_per_second: 1 << 30,
        ..options.chain
    };
    options
}

/// Flips a bit of a drive `after` bytes behind where `entry` begins, or that many blocks before its block.
async fn harm(env: &Env, path: PathBuf, entry: &[u8], at: impl Fn(usize) -> usize) {
    let deadline = env.now() + PATIENCE;
    let drive = loop {
        let open = OpenDrive { path: path.clone(), create_bytes: None, read_only: false };
        match env.open_drive(open).await {
            Ok(drive) => break drive,
            Err(error) => assert!(env.now() < deadline, "its node is gone: {error}"),
        }
        env.sleep(Duration::from_millis(10)).await;
    };
    let size = drive.size_bytes() as usize / 4096 * 4096;
    let mut bytes = Vec::with_capacity(size);
    while bytes.len() < size {
        let len = (size - bytes.len()).min(1 << 20);
        bytes.extend_from_slice(&drive.read(bytes.len() as u64, len).await.expect("readable"));
    }
    let found = bytes.windows(entry.len()).position(|window| window == entry).expect("it is on the drive");
    let at = at(found);
    let block = at / 4096 * 4096;
    bytes[at] ^= 1;
    let harmed = Bytes::copy_from_slice(&bytes[block..block + 4096]);
    drive.write(block as u64, harmed, Durability::Durable).await.expect("writable");
}

async fn unit(env: &Env, cluster: &Cluster, node: NodeId) -> Connection {
    let who = Identity { client: ClientId(7), node, cluster: ClusterId::UNKNOWN };
    let addr = cluster.addrs[node.0 as usize - 1].1;
    Connection::open(env, addr, who, env.now() + PATIENCE).await.expect("it serves")
}

/// What one node alone holds at a position; `None` if it does not say.
async fn held_alone(env: &Env, cluster: &Cluster, node: NodeId, pos: u64) -> Option<(RunState, Bytes)> {
    let layout = cluster.client.layout().await.expect("it serves");
    let addr = layout.locate(LogPos(pos)).expect("it has a place").addr;
    let read =
        Read { limit_bytes: 1, committed: false, ranges: vec![AddrRange::new(addr, Addr(addr.0 + 1))] };
    let connection = unit(env, cluster, node).await;
    let answer = connection.call::<_, Runs>(env, layout.epoch, &read, env.now() + PATIENCE).await;
    let (runs, data, _) = answer.ok()?;
    Some((runs.runs[0].state.clone(), data))
}

/// Waits until a node's counter is so.
async fn until_counted(env: &Env, cluster: &Cluster, id: u64, name: &str, is_so: impl Fn(u64) -> bool) {
    let deadline = env.now() + PATIENCE;
    while !is_so(cluster.counted(id, name)) {
        assert!(env.now() < deadline, "{name} is {}", cluster.counted(id, name));
        env.sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn what_a_node_has_lost_is_copied_from_another_and_read_from_it_alone() {
    run(|env, _| async move {
        let mut cluster = Cluster::form(&env, 2, 2, scrubbing).await;
        for number in 0..COUNT {
            // Nothing changes the layout, so that no position is passed by.
            assert_eq!(cluster.client.append(marked(number)).await, Ok(LogPos(number)));
        }
        cluster.crash();
        // The data of two entries in segments that are full, and the head of a group in one that is not.
        for number in [4, 7] {
            harm(&env, cluster.drive(2), &marked(number), |found| found + 1000).await;
        }
        harm(&env, cluster.drive(2), &marked(COUNT - 3), |found| found / 4096 * 4096 - 4096 + 50).await;
        for id in [1, 2] {
            cluster.start(&env, id, scrubbing).await;
        }
        until_counted(&env, &cluster, 2, "lost_entries_repaired", |count| count >= 3).await;
        until_counted(&env, &cluster, 2, "lost_entries_left", |count| count == 0).await;
        cluster.until(&env, "all is there", |layout| layout.is_whole()).await;
        for number in [4, 7, COUNT - 3] {
            let (state, data) = held_alone(&env, &cluster, NodeId(2), number).await.expect("it has it");
            let RunState::Data { table, .. } = state else { panic!("{number} is {state:?}") };
            assert_eq!(table.first_mismatch(&data), None);
            assert_eq!(data, marked(number), "{number}");
        }
        assert_eq!(cluster.counted(1, "lost_entries_found"), 0);
    });
}

/// Has two replicas hold different entries at a position, which nobody was told of, and harms one of them: how many entries the
/// node has repaired when it has tried.
pub fn repaired_where_copies_differ(planted: Planted) -> u64 {
    let (told, asked) = std::sync::mpsc::channel();
    run(|env, _| async move {
        let options = |dir: &Path, id| NodeOptions { planted, ..scrubbing(dir, id) };
        let mut cluster = Cluster::form(&env, 2, 2, options).await;
        let layout = cluster.client.layout().await.expect("it serves");
        let addr = layout.locate(LogPos(10)).expect("it has a place").addr;
        for (id, number) in [(1, 8001), (2, 8002)] {
            let meta = EntryMeta::new(ClientId(7), addr, RequestNo(1)).to_bytes();
            let data = marked(number);
            let write = Write { addr, meta, table: Table::of_payloads([&data]) };
            let connection = unit(&env, &cluster, NodeId(id)).await;
            let encode = |id, out: &mut _| encode_head(out, Head::new(id, layout.epoch), &write, data.len());
            let (data, until) = (std::iter::once(data.clone()), env.now() + PATIENCE);
            let written = connection.call_with::<Written>(&env, encode, data, until).await.expect("free").0;
            assert_eq!(written, Written::default());
        }
        for number in 0..COUNT {
            cluster.client.append(marked(number)).await.expect("appended");
        }
        cluster.crash();
        harm(&env, cluster.drive(2), &marked(8002), |found| found + 1000).await;
        for id in [1, 2] {
            cluster.start(&env, id, options).await;
        }
        until_counted(&env, &cluster, 2, "lost_entries_found", |count| count == 1).await;
        let deadline = env.now() + PATIENCE;
        while cluster.counted(2, "lost_entries_left") + cluster.counted(2, "lost_entries_repaired") == 0 {
            assert!(env.now() < deadline, "it tries");
            env.sleep(Duration::from_millis(20)).await;
        }
        told.send(cluster.counted(2, "lost_entries_repaired")).expect("it is waited for");
    });
    asked.recv().expect("it was told")
}

#[test]
fn a_copy_that_is_not_what_was_lost_is_not_written_over_it() {
    assert_eq!(repaired_where_copies_differ(Planted::NONE), 0);
}
