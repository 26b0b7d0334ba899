//! A node loses all that it has: how long until every entry has its copies again, and what appends notice of it.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Args;
use ithaca_env::{Env, real};
use ithaca_log::client::Client;

use super::load::connect;
use super::nodes::Nodes;
use super::results::Results;
use super::{Ground, parse_size};

/// Bytes of an entry.
const ENTRY_BYTES: usize = 4096;
/// Appends under way.
const UNDER_WAY: usize = 256;
/// The node that is wiped.
const WIPED: usize = 3;
/// The longest that is waited for.
const PATIENCE: Duration = Duration::from_secs(300);
/// Time over which the rate of appends is measured while all is well.
const HEALTHY: Duration = Duration::from_secs(5);

/// How much, and on what.
#[derive(Args)]
#[command(after_help = "Example: cargo lab soak wipe --bytes 1G")]
pub struct WipeArguments {
    /// Bytes of entries before the node is wiped.
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    bytes: u64,
    /// Nodes of the cluster.
    #[arg(long, default_value_t = 3)]
    nodes: usize,
    /// Copies of each entry.
    #[arg(long, default_value_t = 2)]
    replicas: u32,
    #[command(flatten)]
    ground: Ground,
}

/// Wipes once. Returns 1 and 0 if everything has its copies again, and nothing that was acknowledged is missing.
pub fn run(arguments: &WipeArguments) -> io::Result<(u64, u64)> {
    let (binary, folder, _) = arguments.ground.place("wipe")?;
    let mut nodes = Nodes::formed(&binary, &folder, arguments.nodes, arguments.replicas)?;
    let row = real::run(async |env| wipe(&env, arguments, &mut nodes).await)?;
    let what =
        "one node of a cluster of processes is killed under load, loses its data directory and is replaced";
    let columns = "bytes,before_appends_per_s,rebuilding_appends_per_s,after_appends_per_s,rebuilt_s";
    let mut results = Results::new(what, columns);
    results.row(&row);
    println!("{columns}\n{row}");
    results.write(&arguments.ground.results, "wipe")?;
    nodes.remove()?;
    Ok((1, 0))
}

/// Appends as fast as it goes, and how many were acknowledged.
struct Appending {
    acked: Rc<Cell<u64>>,
    stopped: Rc<Cell<bool>>,
}

impl Appending {
    fn start(env: &Env, client: &Client) -> Self {
        let (acked, stopped) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        for _ in 0..UNDER_WAY {
            let (client, acked, stopped) = (client.clone(), Rc::clone(&acked), Rc::clone(&stopped));
            env.spawn(async move {
                let entry = Bytes::from(vec![7; ENTRY_BYTES]);
                while !stopped.get() {
                    let is_acked = client.append(entry.clone()).await.is_ok();
                    acked.set(acked.get() + u64::from(is_acked));
                }
            });
        }
        Self { acked, stopped }
    }
}

impl Drop for Appending {
    fn drop(&mut self) {
        self.stopped.set(true);
    }
}

async fn wipe(env: &Env, arguments: &WipeArguments, nodes: &mut Nodes) -> io::Result<String> {
    let client = connect(env, &nodes.addrs()).await.map_err(io::Error::other)?;
    let appending = Appending::start(env, &client);
    while appending.acked.get() * (ENTRY_BYTES as u64) < arguments.bytes {
        env.sleep(Duration::from_millis(20)).await;
    }
    let before = appending.acked.get();
    env.sleep(HEALTHY).await;
    let healthy = (appending.acked.get() - before) as f64 / HEALTHY.as_secs_f64();
    let epoch = client.layout().await.map_err(io::Error::other)?.epoch;
    nodes.kill(WIPED)?;
    nodes.wipe(WIPED)?;
    nodes.start(WIPED)?;
    let addr = nodes.addrs()[WIPED - 1];
    // The others have to notice first that the node is not what it was.
    let began = Instant::now();
    let place = format!("{WIPED}={addr}");
    while let Err(error) = nodes.cluster(&["replace", &place]) {
        if began.elapsed() > PATIENCE {
            return Err(error);
        }
        env.sleep(Duration::from_millis(100)).await;
    }
    let before = appending.acked.get();
    loop {
        let layout = client.layout().await.map_err(io::Error::other)?;
        // The node is out, and in again.
        if layout.epoch.0 >= epoch.0 + 2 && layout.is_whole() {
            break;
        }
        if began.elapsed() > PATIENCE {
            return Err(io::Error::other(format!("copies are missing after {PATIENCE:?}")));
        }
        env.sleep(Duration::from_millis(50)).await;
    }
    let took = began.elapsed();
    let rebuilding = (appending.acked.get() - before) as f64 / took.as_secs_f64();
    let bytes = appending.acked.get() * ENTRY_BYTES as u64;
    // A drive may be slower after some gigabytes than at first, whatever is copied.
    let before = appending.acked.get();
    env.sleep(HEALTHY).await;
    let after = (appending.acked.get() - before) as f64 / HEALTHY.as_secs_f64();
    Ok(format!("{bytes},{healthy:.0},{rebuilding:.0},{after:.0},{:.1}", took.as_secs_f64()))
}
