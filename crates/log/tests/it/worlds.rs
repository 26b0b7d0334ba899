//! A cluster and a client on real sockets and files, in a directory of its own.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{ChainOptions, OpenError};
use ithaca_env::drive::DriveError;
use ithaca_env::net::NetError;
use ithaca_env::{Env, real};
use ithaca_log::client::{Client, ClientOptions};
use ithaca_log::pos::LogPos;
use ithaca_log::server::register::RegisterError;
use ithaca_log::server::{LocalCluster, LocalOptions, StartError};
use tempfile::TempDir;

/// A small cluster's options.
pub fn options(dir: &Path, units: usize) -> LocalOptions {
    let mut options = LocalOptions::new(dir, ([127, 0, 0, 1], 0).into());
    options.units = units;
    options.create_bytes = 64 << 20;
    options.chain = ChainOptions {
        segment_bytes: 4 << 20,
        capacity_bytes: 256 << 20,
        grow_bytes: 64 << 20,
        ..options.chain
    };
    options
}

/// The same with so many copies of each entry.
pub fn replicated(dir: &Path, units: usize, replicas: usize) -> LocalOptions {
    LocalOptions { replicas, ..options(dir, units) }
}

/// Runs `test` with a directory that goes when it ends.
pub fn run<F: Future<Output = ()>>(test: impl FnOnce(Env, TempDir) -> F) {
    let dir = TempDir::new().expect("a directory");
    real::run(|env| test(env, dir));
}

/// A cluster in `dir` and a client of it.
pub async fn start(env: &Env, dir: &TempDir, units: usize) -> (LocalCluster, Client) {
    let cluster = LocalCluster::start(env, options(dir.path(), units)).await.expect("it starts");
    let client = connect(env, &cluster).await;
    (cluster, client)
}

/// The cluster that `options` describe once more, after one that was dropped where it stood: its drives are free as soon as
/// its last writes have ended.
pub async fn restart(env: &Env, options: LocalOptions) -> LocalCluster {
    let deadline = env.now() + Duration::from_secs(20);
    loop {
        match LocalCluster::start(env, options.clone()).await {
            Ok(cluster) => return cluster,
            Err(error) if env.now() < deadline && is_busy(&error) => env.yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Whether a start failed because what was there before is not gone yet.
pub fn is_busy(error: &StartError) -> bool {
    matches!(
        error,
        StartError::Chain(OpenError::Drive(DriveError::InUse { .. }))
            | StartError::Register(RegisterError::Drive(DriveError::InUse { .. }))
            | StartError::Listen(NetError::AddressInUse { .. })
    )
}

/// A client with short patience for holes.
pub async fn connect(env: &Env, cluster: &LocalCluster) -> Client {
    let hole_wait = Duration::from_millis(10);
    let options =
        ClientOptions { endpoints: vec![cluster.addrs()[0]], hole_wait, ..ClientOptions::default() };
    Client::connect(env, options).await.expect("it serves")
}

/// Appends entries numbered from `first` on, all at once, and returns their positions.
pub async fn append(client: &Client, first: u64, count: u64) -> Vec<LogPos> {
    let appends: Vec<_> = (first..first + count).map(|number| client.append(entry(number))).collect();
    let mut positions = Vec::new();
    for append in appends {
        positions.push(append.await.expect("appended"));
    }
    positions
}

/// An entry that can be told from every other, of a length that varies from nothing to several blocks.
pub fn entry(number: u64) -> Bytes {
    let len = [0, 1, 100, 512, 4096, 5000, 12_288][number as usize % 7];
    let mut bytes = number.to_le_bytes().repeat(len / 8 + 1);
    bytes.truncate(len);
    Bytes::from(bytes)
}

/// Everything from `from` on to the tail, by ranges.
pub async fn read_all(client: &Client, from: u64) -> Vec<ithaca_log::client::Entry> {
    let tail = client.check().await.expect("it serves").tail;
    let (mut next, mut entries) = (LogPos(from), Vec::new());
    while next < tail {
        let piece = client.read_range(next, tail).await.expect("readable");
        next = LogPos(piece.last().expect("below the tail").pos.0 + 1);
        entries.extend(piece);
    }
    entries
}
