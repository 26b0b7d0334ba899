//! Nodes that are started on an older copy of what they have stored. In simulated time.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::ChainOptions;
use ithaca_env::Env;
use ithaca_env::drive::{Durability, OpenDrive};
use ithaca_env::sim::{Death, Sim};
use ithaca_log::client::{Client, ClientOptions};
use ithaca_log::layout::Layout;
use ithaca_log::pos::{LogPos, NodeId};
use ithaca_log::server::{LocalCluster, LocalOptions, StartError};
use tempfile::TempDir;

use crate::lost::{groups_of, harm};
use crate::nodes::{Cluster, node_options};

const SEGMENTS: u64 = 64;
/// What takes longer than this does not come.
const PATIENCE: Duration = Duration::from_secs(20);
const REGISTER: &str = "layout.register";
const CHAIN: &str = "unit-3.chain";

fn run(test: impl AsyncFnOnce(Env) + 'static) {
    let sim = Sim::new(1);
    let process = sim.process("nodes", [10, 0, 0, 1].into());
    let env = sim.env(process);
    sim.block_on(process, async move { test(env).await });
}

async fn start(cluster: &mut Cluster, env: &Env) {
    cluster.start(env, 3, |dir, id| node_options(dir, id, SEGMENTS)).await;
}

async fn whole(cluster: &Cluster, env: &Env) -> Layout {
    cluster.until(env, "all are in use", Layout::is_whole).await
}

async fn append(cluster: &Cluster) {
    for number in 0..10 {
        cluster.client.append(Bytes::from(format!("entry {number}"))).await.expect("appended");
    }
}

/// Three nodes. The third is stopped in its first epoch, and is gone again after it was sealed in a later one: with it a copy of its chain,
/// and of its register, as they were before.
async fn with_copy(env: &Env, files: &[&str]) -> (Cluster, TempDir) {
    let mut cluster = Cluster::form(env, 3, 2, |dir, id| node_options(dir, id, SEGMENTS)).await;
    append(&cluster).await;
    cluster.kill(3);
    let copy = TempDir::new().expect("a directory");
    for file in files {
        cluster.copy(env, 3, file, &copy).await;
    }
    start(&mut cluster, env).await;
    whole(&cluster, env).await;
    append(&cluster).await;
    cluster.client.set_min_replicas(2).await.expect("all are sealed for it");
    append(&cluster).await;
    cluster.kill(3);
    (cluster, copy)
}

#[test]
fn a_node_on_an_older_copy_of_its_data_ends_when_it_hears_what_it_has_sealed_since_and_does_not_start_again()
{
    run(async |env| {
        let (mut cluster, copy) = with_copy(&env, &[REGISTER, CHAIN]).await;
        // Long enough for the others to go on without it.
        cluster.until(&env, "3 is out", |layout| layout.in_use().count() == 2).await;
        cluster.put_back(3, copy);
        start(&mut cluster, &env).await;
        let end = env.timeout(PATIENCE, cluster.node(3).ended()).await.expect("it serves");
        assert!(end.to_string().contains("is older than what it told its cluster"), "{end}");
        cluster.kill(3);
        let again = cluster.try_start(&env, 3, |dir, id| node_options(dir, id, SEGMENTS)).await;
        let again = again.err().expect("it knows now");
        assert!(again.is_damage() && again.to_string().contains("is older than"), "{again}");
        assert!(
            !cluster.client.layout().await.expect("a majority serves").in_use().any(|node| node == NodeId(3))
        );
        // With nothing it is taken back.
        cluster.wipe(3);
        start(&mut cluster, &env).await;
        cluster.client.replace_node(NodeId(3), cluster.addrs[2].1).await.expect("replaced");
        whole(&cluster, &env).await;
    });
}

#[test]
fn an_older_copy_that_is_there_before_the_others_is_not_sealed_for_new() {
    // The end of the log was what it remembered, so that what it had acknowledged since became junk for everybody.
    for first in [[3, 1], [1, 3]] {
        run(async move |env| {
            let mut cluster = Cluster::form(&env, 3, 2, |dir, id| node_options(dir, id, SEGMENTS)).await;
            append(&cluster).await;
            cluster.kill(3);
            let copy = TempDir::new().expect("a directory");
            for file in [REGISTER, CHAIN] {
                cluster.copy(&env, 3, file, &copy).await;
            }
            // The range that it comes back to begins at the end of the log, and so it does in all layouts that there are.
            cluster.until(&env, "3 is out", |layout| layout.in_use().count() == 2).await;
            start(&mut cluster, &env).await;
            whole(&cluster, &env).await;
            append(&cluster).await;
            cluster.crash();
            cluster.put_back(3, copy);
            for id in first {
                cluster.start(&env, id, |dir, id| node_options(dir, id, SEGMENTS)).await;
            }
            let end = env.timeout(PATIENCE, cluster.node(3).ended()).await.expect("it hears of it");
            assert!(end.to_string().contains("is older than what it told its cluster"), "{end}");
            cluster.kill(3);
            cluster.start(&env, 2, |dir, id| node_options(dir, id, SEGMENTS)).await;
            for number in 0..20 {
                let entry = cluster.client.read(LogPos(number)).await.expect("read");
                assert_eq!(entry.data, Bytes::from(format!("entry {}", number % 10)));
            }
        });
    }
}

#[test]
fn a_unit_that_is_older_than_the_register_of_its_node_is_not_started() {
    run(async |env| {
        let (mut cluster, copy) = with_copy(&env, &[CHAIN]).await;
        cluster.copy(&env, 3, REGISTER, &copy).await;
        cluster.put_back(3, copy);
        let started = cluster.try_start(&env, 3, |dir, id| node_options(dir, id, SEGMENTS)).await;
        let refused = started.err().expect("its register says what it has sealed");
        assert!(refused.is_damage(), "{refused}");
        assert!(refused.to_string().contains("is older than what it told its cluster"), "{refused}");
    });
}

#[test]
fn a_damaged_older_copy_is_found_out_too() {
    run(async |env| {
        let (mut cluster, copy) = with_copy(&env, &[CHAIN]).await;
        cluster.copy(&env, 3, REGISTER, &copy).await;
        let open = OpenDrive { path: copy.path().join(CHAIN), create_bytes: None, read_only: false };
        let drive = env.open_drive(open).await.expect("it was copied");
        let groups = groups_of(&drive).await;
        harm(&drive, groups[groups.len() - 3].0).await;
        drop(drive);
        cluster.put_back(3, copy);
        let started = cluster.try_start(&env, 3, |dir, id| node_options(dir, id, SEGMENTS)).await;
        let refused = started.err().expect("what is lost has not said what it has sealed");
        assert!(refused.to_string().contains("is older than what it told its cluster"), "{refused}");
    });
}

const SEGMENT_BYTES: u64 = 128 << 10;
const DRIVE_BYTES: u64 = (64 << 10) + 8 * SEGMENT_BYTES;
const DRIVE: &str = "/data/unit-1.chain";
const DRIVES_REGISTER: &str = "/data/drives.register";

/// A cluster of one, which appends `entry` where there is one, and is stopped. Gives the entries that it has, nothing in the place of one that it has not.
async fn live(env: &Env, entry: Option<&'static str>) -> Result<Vec<Bytes>, StartError> {
    let listen = SocketAddr::new([10, 0, 0, 1].into(), 7420);
    let options = LocalOptions {
        create_bytes: DRIVE_BYTES,
        chain: ChainOptions {
            segment_bytes: SEGMENT_BYTES,
            capacity_bytes: DRIVE_BYTES,
            tail_cache_bytes: 4096,
            ..ChainOptions::default()
        },
        ..LocalOptions::new(Path::new("/data"), listen)
    };
    let cluster = LocalCluster::start(env, options).await?;
    let options = ClientOptions { endpoints: cluster.addrs().to_vec(), ..ClientOptions::default() };
    let client = Client::connect(env, options).await.expect("it serves");
    if let Some(entry) = entry {
        client.append(Bytes::from(entry)).await.expect("there is room");
    }
    let tail = client.check().await.expect("it serves").tail;
    let mut entries: Vec<Bytes> = Vec::new();
    while (entries.len() as u64) < tail.0 {
        let found = client.read_range(LogPos(entries.len() as u64), tail).await.expect("they are there");
        entries.extend(found.into_iter().map(|entry| entry.data));
    }
    cluster.stop().await;
    Ok(entries)
}

/// What is in a file of the cluster's, which is `image` if there is one.
async fn file(env: &Env, path: &str, image: Option<&Bytes>) -> Bytes {
    let open = OpenDrive { path: path.into(), create_bytes: None, read_only: false };
    let drive = env.open_drive(open).await.expect("it is there");
    if let Some(image) = image {
        drive.write(0, image.clone(), Durability::Durable).await.expect("no fault");
    }
    drive.read(0, drive.size_bytes() as usize).await.expect("no fault")
}

#[test]
fn the_drive_of_a_cluster_of_one_that_is_older_than_its_register_is_not_taken() {
    // What was acknowledged since would be gone without a word, and its positions would be given again.
    let sim = Sim::new(1);
    let process = sim.process("node", [10, 0, 0, 1].into());
    let env = sim.env(process);
    let (older, newest) = sim.block_on(process, async move {
        live(&env, Some("first")).await.expect("a new cluster");
        let older = file(&env, DRIVE, None).await;
        live(&env, Some("second")).await.expect("it is as it was");
        let newest = file(&env, DRIVE, None).await;
        file(&env, DRIVE, Some(&older)).await;
        let refused = live(&env, None).await.expect_err("its register says what it has sealed");
        assert!(refused.is_damage(), "{refused}");
        assert!(refused.to_string().contains("the drives of unit 1 are an older copy"), "{refused}");
        (older, newest)
    });
    sim.end(process, Death::Kill);
    sim.restart(process);
    let env = sim.env(process);
    sim.block_on(process, async move {
        file(&env, DRIVE, Some(&newest)).await;
        assert_eq!(live(&env, None).await.expect("those it had last"), ["first", "second"]);
        // Who has nothing newer removes the register that remembers the drives.
        file(&env, DRIVE, Some(&older)).await;
        let blank = Bytes::from(vec![0; file(&env, DRIVES_REGISTER, None).await.len()]);
        file(&env, DRIVES_REGISTER, Some(&blank)).await;
        for _ in 0..2 {
            assert_eq!(live(&env, None).await.expect("it is taken")[0], "first");
        }
    });
}
