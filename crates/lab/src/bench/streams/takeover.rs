//! How soon a new sequencer grants positions in streams: from when every node knows the layout that names it, until it has learnt from the
//! log where the streams end.
//!
//! Three nodes share a process, a thread and a drive. What is measured varies with what was appended since the latest checkpoint, so
//! takeovers are spread evenly over what comes between two of them.

use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_env::real::run_at_once;
use ithaca_env::sim::Random;
use ithaca_log::client::{Client, ClientOptions, Connection, Identity};
use ithaca_log::layout::Layout;
use ithaca_log::pos::{ClientId, LogPos, NodeId, StreamId};
use ithaca_log::sequencer::checkpoint::Chunk;
use ithaca_log::server::ClusterNode;
use ithaca_log::wire::{Grant, Token, TokenGroup};

use super::super::BenchArguments;
use super::super::cluster::{self, formed, replace_sequencer};
use crate::bare::{DriveFile, flush_probe_us};
use crate::measure::{median, process_cpu_nanos};
use crate::operator::Operator;
use crate::soak::results::Results;

/// The bench's name on the command line.
pub const NAME: &str = "takeover";
/// What is asked: of so many streams so many milliseconds at the most.
const ASKED: [(u64, f64); 2] = [(10_000, 10.0), (1_000_000, 100.0)];
/// Between two takeovers so many are appended: a checkpoint is made after some multiple of it.
const STEP: u64 = 16_384;
/// How long a node may take to answer; a new sequencer that does not know of streams refuses, and is asked again after a little.
const PATIENCE: Duration = Duration::from_secs(5);
const ASK_AGAIN: Duration = Duration::from_micros(200);
/// A checkpoint that is due is made in this time.
const SETTLE_TIME: Duration = Duration::from_secs(1);
const ENTRY_BYTES: usize = 32;

/// One takeover.
struct Taken {
    /// Positions of the log since the latest checkpoint was begun.
    since: u64,
    learn_ms: f64,
    /// Processor time of the process meanwhile.
    cpu_ms: f64,
}

/// Measures takeovers, as many as `--rounds`, for each count of streams. Returns whether what is asked is met.
pub fn run(arguments: &BenchArguments, probe: &DriveFile) -> io::Result<bool> {
    let what = format!(
        "{} nodes in one process on one drive; streams with an entry of {ENTRY_BYTES} bytes each, and {STEP} entries in streams at random before each takeover; \
         since: positions of the log since the latest checkpoint was begun; learn: from when every node knows the new layout until its sequencer grants a \
         position in a stream; cpu: of the process meanwhile; milliseconds",
        cluster::NODES
    );
    let mut results = Results::new(&what, "streams,round,flush_us,since,learn_ms,cpu_ms");
    let mut all_met = true;
    for &count in &arguments.streams {
        let folder = arguments.data.join(format!("{NAME}-{count}"));
        let measured = std::thread::scope(|scope| {
            let measure = || {
                run_at_once();
                ithaca_env::real::run(async |env| {
                    let (nodes, layout) = formed(&env, &folder).await?;
                    let taken = measure(&env, &nodes, layout, count, arguments.rounds).await?;
                    for node in nodes {
                        node.stop().await;
                    }
                    io::Result::Ok(taken)
                })
            };
            scope.spawn(measure).join()
        });
        let taken = measured.unwrap_or_else(|_| Err(io::Error::other("the measurement panicked")))?;
        std::fs::remove_dir_all(&folder)?;
        let flush = flush_probe_us(probe)?;
        for (round, Taken { since, learn_ms, cpu_ms }) in taken.iter().enumerate() {
            let row = format!("{count},{round},{flush:.0},{since},{learn_ms:.1},{cpu_ms:.1}");
            println!("{NAME} {row}");
            results.row(&row);
        }
        let found = median(taken.iter().map(|it| it.learn_ms));
        let most = taken.iter().map(|it| it.learn_ms).fold(0.0, f64::max);
        let mut line = format!("{count} streams: {found:.1} ms, at most {most:.1}");
        if let Some((_, asked)) = ASKED.iter().find(|(streams, _)| *streams == count) {
            all_met &= found <= *asked;
            line += &format!(" (asked {asked}): {}", if found <= *asked { "met" } else { "MISSED" });
        }
        println!("{NAME} {line}");
        results.remark(&line);
    }
    results.write(&arguments.results, NAME)?;
    Ok(all_met)
}

async fn measure(
    env: &Env,
    nodes: &[ClusterNode],
    mut layout: Layout,
    count: u64,
    rounds: usize,
) -> io::Result<Vec<Taken>> {
    let endpoints = nodes.iter().map(ClusterNode::addr).collect();
    let client = Client::connect(env, ClientOptions { endpoints, ..ClientOptions::default() }).await;
    let client = client.map_err(io::Error::other)?;
    let operator = Operator::connect(env, &layout).await?;
    let entry = Bytes::from(vec![7; ENTRY_BYTES]);
    super::fill(&client, (0..count).map(super::stream), &entry).await?;
    let (mut rng, mut taken) = (Random::new(1), Vec::new());
    for _ in 0..rounds {
        super::fill(&client, (0..STEP).map(|_| super::stream(rng.below(count))), &entry).await?;
        env.sleep(SETTLE_TIME).await;
        let since = since_checkpoint(&client).await?;
        let (_, next) = replace_sequencer(&operator, &layout).await?;
        layout = next;
        let (began, cpu) = (Instant::now(), process_cpu_nanos());
        let pos = grant(env, &layout, super::stream(0)).await?;
        taken.push(Taken {
            since,
            learn_ms: began.elapsed().as_secs_f64() * 1e3,
            cpu_ms: (process_cpu_nanos() - cpu) as f64 / 1e6,
        });
        client.layout().await.map_err(io::Error::other)?;
        client.fill(pos).await.map_err(io::Error::other)?;
    }
    Ok(taken)
}

/// Positions of the log since the latest checkpoint was begun; all if there is none.
async fn since_checkpoint(client: &Client) -> io::Result<u64> {
    let tail = client.check().await.map_err(io::Error::other)?.tail;
    let last = client.last_before(StreamId::SEQUENCER, tail).await.map_err(io::Error::other)?;
    let from = match last {
        Some(last) => Chunk::decode(&last.data).map_err(io::Error::other)?.from,
        None => LogPos(0),
    };
    Ok(tail.0 - from.0)
}

/// Takes a position in `stream` from the sequencer of `layout`, asked until it knows of streams.
async fn grant(env: &Env, layout: &Layout, stream: StreamId) -> io::Result<LogPos> {
    let node: NodeId = layout.sequencer;
    let addr = layout.node(node).and_then(|node| node.address.parse().ok());
    let addr = addr.ok_or_else(|| io::Error::other("a sequencer without an address"))?;
    let deadline = env.now() + PATIENCE;
    let who = Identity { client: ClientId(9), node, cluster: layout.cluster };
    let connection = Connection::open(env, addr, who, deadline).await.map_err(io::Error::other)?;
    let token = Token { groups: vec![TokenGroup { count: 1, streams: [stream].into(), condition: None }] };
    loop {
        match connection.call::<_, Grant>(env, layout.epoch, &token, deadline).await {
            Ok((grant, _, _)) => return Ok(grant.first),
            Err(_) if env.now() < deadline => env.sleep(ASK_AGAIN).await,
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}
