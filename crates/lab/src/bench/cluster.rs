//! A cluster of three nodes on a real drive: how long it takes to seal a unit, to go on to another layout, to have another sequencer,
//! and to fill a hole, beside the flush time of the moment.
//!
//! The nodes share a process, and nothing has failed: what a failure adds is the time until it is seen, and 202 ms for the leases of a
//! node that cannot be asked (`cargo lab failover` measures all of it).

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use ithaca_chain::ChainOptions;
use ithaca_env::Env;
use ithaca_env::real::run_at_once;
use ithaca_log::client::{Client, ClientOptions, Forming, form};
use ithaca_log::layout::{Change, Layout};
use ithaca_log::pos::NodeId;
use ithaca_log::server::{ClusterNode, NodeOptions};

use super::BenchArguments;
use crate::bare::{DriveFile, flush_probe_us};
use crate::measure::median;
use crate::operator::Operator;
use crate::soak::results::Results;

/// The bench's name on the command line.
pub const NAME: &str = "cluster";
/// Nodes of the cluster.
pub(super) const NODES: u64 = 3;
const REPLICAS: u16 = 2;
/// Of each kind in a round.
const TRIALS: usize = 40;
/// Every node has a lease on a new epoch after this.
const LEASE_TIME: Duration = Duration::from_millis(100);
const FORM_TIME: Duration = Duration::from_secs(20);

/// What was measured in a round: medians in microseconds.
#[derive(Clone, Copy)]
struct Round {
    flush: f64,
    seal: f64,
    decided: f64,
    known: f64,
    sequencer: f64,
    fill: f64,
}

/// What is asked of the median of a round's medians.
struct Target {
    what: &'static str,
    found: f64,
    most: f64,
}

/// Measures as many rounds as asked. Returns whether every target is met.
pub fn run(arguments: &BenchArguments, probe: &DriveFile) -> io::Result<bool> {
    // On a thread that runs as soon as it can, as the flush probe's does: else neighbours would decide.
    let measured = std::thread::scope(|scope| {
        let measure = || {
            run_at_once();
            ithaca_env::real::run(async |env| measure(&env, arguments, probe).await)
        };
        scope.spawn(measure).join()
    });
    let measured = measured.unwrap_or_else(|_| Err(io::Error::other("the measurement panicked")))?;
    let what = format!(
        "{NODES} nodes in one process on one drive, {REPLICAS} copies; medians of {TRIALS} each, in microseconds: a durable write of 4 KB; \
         sealing one unit; from the start until a layout is decided, every unit sealed, and until every node knows it; until another sequencer \
         grants; filling a hole"
    );
    let columns = "round,flush_us,seal_us,decided_us,known_us,sequencer_us,fill_us";
    let mut results = Results::new(&what, columns);
    for (number, round) in measured.iter().enumerate() {
        let Round { flush, seal, decided, known, sequencer, fill } = round;
        let row = format!("{number},{flush:.0},{seal:.0},{decided:.0},{known:.0},{sequencer:.0},{fill:.0}");
        println!("{NAME} {row}");
        results.row(&row);
    }
    let of = |value: fn(&Round) -> f64| median(measured.iter().map(value));
    let targets = [
        Target { what: "sealing a unit less a flush", found: of(|it| it.seal - it.flush), most: 200.0 },
        Target { what: "sealing all and installing a layout", found: of(|it| it.known), most: 30_000.0 },
        Target { what: "another sequencer", found: of(|it| it.sequencer), most: 10_000.0 },
        Target {
            what: "filling a hole less its replicas' flushes",
            found: of(|it| it.fill - f64::from(REPLICAS) * it.flush),
            most: 1_000.0,
        },
    ];
    let mut all_met = true;
    for Target { what, found, most } in targets {
        all_met &= found <= most;
        let says = if found <= most { "met" } else { "MISSED" };
        let line = format!("{what}: {found:.0} us, at most {most:.0}: {says}");
        println!("{NAME} {line}");
        results.remark(&line);
    }
    results.write(&arguments.results, NAME)?;
    Ok(all_met)
}

async fn measure(env: &Env, arguments: &BenchArguments, probe: &DriveFile) -> io::Result<Vec<Round>> {
    let (nodes, mut layout) = formed(env, &arguments.data.join(NAME)).await?;
    let operator = Operator::connect(env, &layout).await?;
    let endpoints = nodes.iter().map(ClusterNode::addr).collect();
    let options = ClientOptions { endpoints, ..ClientOptions::default() };
    let client = Client::connect(env, options).await.map_err(io::Error::other)?;
    let mut rounds = Vec::new();
    for _ in 0..arguments.rounds {
        let flush = flush_probe_us(probe)?;
        let mut trials = Vec::new();
        for _ in 0..TRIALS {
            let (seal, next) = seal_one(&operator, &layout).await?;
            let (decided, known, next) = install(&operator, &next, &Change::default()).await?;
            let (sequencer, next) = replace_sequencer(&operator, &next).await?;
            layout = next;
            trials.push(Round { flush, seal, decided, known, sequencer, fill: fill(env, &client).await? });
        }
        let of = |value: fn(&Round) -> f64| median(trials.iter().map(value));
        rounds.push(Round {
            flush,
            seal: of(|it| it.seal),
            decided: of(|it| it.decided),
            known: of(|it| it.known),
            sequencer: of(|it| it.sequencer),
            fill: of(|it| it.fill),
        });
    }
    for node in nodes {
        node.stop().await;
    }
    Ok(rounds)
}

/// Nodes with directories of their own, formed into a cluster, and its layout.
pub(super) async fn formed(env: &Env, folder: &Path) -> io::Result<(Vec<ClusterNode>, Layout)> {
    let mut nodes = Vec::new();
    for id in 1..=NODES {
        let data = folder.join(format!("node-{id}"));
        std::fs::create_dir_all(&data)?;
        let mut options = NodeOptions::new(NodeId(id), &data, (Ipv4Addr::LOCALHOST, 0).into());
        options.create_bytes = 64 << 20;
        options.chain =
            ChainOptions { segment_bytes: 4 << 20, grow_bytes: 64 << 20, ..ChainOptions::default() };
        nodes.push(ClusterNode::start(env, options).await.map_err(io::Error::other)?);
    }
    let places: Vec<(NodeId, SocketAddr)> =
        (1..).map(NodeId).zip(nodes.iter().map(ClusterNode::addr)).collect();
    let forming = Forming { nodes: places, replicas: REPLICAS, min_replicas: 1, timeout: FORM_TIME };
    let layout = form(env, &forming).await.map_err(io::Error::other)?;
    Ok((nodes, layout))
}

fn us(since: Instant) -> f64 {
    since.elapsed().as_nanos() as f64 / 1e3
}

/// How long one unit takes to be sealed; the layout that then follows.
async fn seal_one(operator: &Operator, before: &Layout) -> io::Result<(f64, Layout)> {
    operator.prepare(before).await?;
    let began = Instant::now();
    operator.seal(before, NodeId(NODES)).await?;
    let took = us(began);
    let next = go_on(operator, before, &Change::default()).await?;
    operator.tell(&next).await?;
    Ok((took, next))
}

/// Seals every unit, and has the layout after `before` decided.
async fn go_on(operator: &Operator, before: &Layout, change: &Change) -> io::Result<Layout> {
    let sealed = operator.seal_all(before).await?;
    let tail = before.find_tail(&sealed).map_err(io::Error::other)?;
    let next = before.change(tail, change).map_err(io::Error::other)?;
    operator.decide(before, &next).await?;
    Ok(next)
}

/// How long it takes until the next layout is decided, and known to all.
async fn install(operator: &Operator, before: &Layout, change: &Change) -> io::Result<(f64, f64, Layout)> {
    let began = Instant::now();
    operator.prepare(before).await?;
    let next = go_on(operator, before, change).await?;
    let decided = us(began);
    operator.tell(&next).await?;
    Ok((decided, us(began), next))
}

/// How long it takes until another node grants positions.
pub(super) async fn replace_sequencer(operator: &Operator, before: &Layout) -> io::Result<(f64, Layout)> {
    let other = NodeId(before.sequencer.0 % NODES + 1);
    let began = Instant::now();
    let change = Change { sequencer: Some(other), ..Change::default() };
    let (_, _, next) = install(operator, before, &change).await?;
    operator.take_token(other, next.epoch).await?;
    Ok((us(began), next))
}

/// How long a client takes to fill a position that was granted and not written, by nodes that have their leases on the epoch: in the
/// moment after a new layout it would measure how soon they get them.
async fn fill(env: &Env, client: &Client) -> io::Result<f64> {
    env.sleep(LEASE_TIME).await;
    client.layout().await.map_err(io::Error::other)?;
    let granted = client.tokens(1).await.map_err(io::Error::other)?;
    let began = Instant::now();
    client.fill(granted.start).await.map_err(io::Error::other)?;
    Ok(us(began))
}
