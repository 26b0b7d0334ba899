//! How soon a program that has just started has read a key of a large map: all of it replayed, one bucket of it, or asked of nodes.

use std::io;
use std::time::Instant;

use ithaca_env::Env;
use ithaca_env::task::gather;
use ithaca_log::client::{Client, ClientOptions};
use ithaca_object::checkpoint::Policy;
use ithaca_object::collections::{Blob, Map};
use ithaca_object::composed::HashedMap;
use ithaca_object::{ObjectError, Runtime, RuntimeOptions};

use super::{BenchArguments, ithaca};
use crate::measure::median;
use crate::soak::results::Results;

/// The bench's name on the command line.
pub const NAME: &str = "open-map";
const VALUE_BYTES: usize = 1024;
/// Keys, so that the values have 100 MB.
const KEYS: u64 = 100_000_000 / VALUE_BYTES as u64;
/// Buckets of the hashed map, of about 100 keys each: it does not split while it is filled.
const BUCKETS: u64 = 1024;
/// Puts under way while the maps are filled.
const WINDOW: u64 = 64;
/// Times that one bucket is opened, and nodes are asked, in a round; the plain map is opened once.
const TRIALS: usize = 20;
/// What is asked of the medians' ratio: opening the plain map by opening one bucket.
const ASKED: f64 = 150.0;

/// What a round took, in milliseconds.
struct Round {
    plain_ms: f64,
    bucket_ms: f64,
    remote_ms: f64,
    hashed_remote_ms: f64,
}

/// Measures as many rounds as asked. Returns whether what is asked is met.
pub fn run(arguments: &BenchArguments) -> io::Result<bool> {
    ithaca::build()?;
    let what = format!(
        "`ithaca dev`, maps of {KEYS} keys with values of {VALUE_BYTES} bytes, with the checkpoints that are made by default: from opening until a key is read by a program with nothing in memory: a \
         Map, a HashedMap of {BUCKETS} buckets, a Map and a HashedMap whose states nodes have; the last three the median of {TRIALS} times; milliseconds"
    );
    let columns = "round,plain_ms,bucket_ms,remote_ms,hashed_remote_ms,plain_by_bucket";
    let mut results = Results::new(&what, columns);
    let dev = ithaca::Dev::start(&arguments.data)?;
    let options = ClientOptions { endpoints: vec![dev.endpoint()?], ..ClientOptions::default() };
    let rounds = ithaca_env::real::run(async |env| measure(&env, &options, arguments.rounds).await)?;
    for (round, it) in rounds.iter().enumerate() {
        let ratio = it.plain_ms / it.bucket_ms;
        let Round { plain_ms, bucket_ms, remote_ms, hashed_remote_ms } = it;
        let row =
            format!("{round},{plain_ms:.1},{bucket_ms:.3},{remote_ms:.3},{hashed_remote_ms:.3},{ratio:.0}");
        println!("{NAME} {row}");
        results.row(&row);
    }
    let found = median(rounds.iter().map(|it| it.plain_ms / it.bucket_ms));
    let met = found >= ASKED;
    let line = format!("{found:.0} times (asked {ASKED:.0}): {}", if met { "met" } else { "MISSED" });
    println!("{NAME} {line}");
    results.remark(&line);
    results.write(&arguments.results, NAME)?;
    Ok(met)
}

/// A program with nothing in memory. Who reads makes no checkpoints, so that all rounds find the same.
fn program(env: &Env, client: &Client, checkpoints: Policy) -> Runtime {
    Runtime::new(env, client.clone(), RuntimeOptions { checkpoints, ..RuntimeOptions::default() })
}

fn reader(env: &Env, client: &Client) -> Runtime {
    program(env, client, Policy::NEVER)
}

async fn measure(env: &Env, options: &ClientOptions, rounds: usize) -> io::Result<Vec<Round>> {
    let client = Client::connect(env, options.clone()).await.map_err(io::Error::other)?;
    // Transactions have their client's id.
    let other = Client::connect(env, options.clone()).await.map_err(io::Error::other)?;
    let makes = program(env, &other, Policy::default());
    fill(&reader(env, &client), &makes).await.map_err(io::Error::other)?;
    let mut measured = Vec::new();
    for _ in 0..rounds {
        measured.push(round(env, &client).await.map_err(io::Error::other)?);
    }
    Ok(measured)
}

/// The plain map's checkpoint is that of the node which reads all of it at the end: who opens it has nothing to replay, which is quicker than
/// from one that was made on the way.
async fn fill(runtime: &Runtime, makes: &Runtime) -> Result<(), ObjectError> {
    let (plain, hashed) = (Map::open(runtime, "plain")?, HashedMap::open_with(makes, "hashed", BUCKETS)?);
    let value = || Blob(vec![7; VALUE_BYTES].into());
    // The first put makes the buckets.
    hashed.fast_put(0, value()).await?;
    for first in (0..KEYS).step_by(WINDOW as usize) {
        let puts = (first..(first + WINDOW).min(KEYS)).map(|key| {
            let (plain, hashed) = (&plain, &hashed);
            async move {
                plain.fast_put(key, value()).await?;
                hashed.fast_put(key, value()).await
            }
        });
        for put in gather(puts.collect(), |_| false).await {
            put.unwrap_or(Err(ObjectError::Ended))?;
        }
    }
    // The node reads the map when it is asked for the first time, as long as that takes.
    while Map::<u64, Blob>::open_remote(runtime, "plain")?.len().await.is_err() {}
    Ok(())
}

async fn round(env: &Env, client: &Client) -> Result<Round, ObjectError> {
    let key = |trial: usize| trial as u64 * 4_999 % KEYS;
    let began = Instant::now();
    seen(Map::open(&reader(env, client), "plain")?.get(&key(0)).await?);
    let plain_ms = ms(began);
    let (mut bucket, mut remote, mut hashed_remote) = (Vec::new(), Vec::new(), Vec::new());
    for trial in 0..TRIALS {
        let began = Instant::now();
        seen(HashedMap::open(&reader(env, client), "hashed")?.get(&key(trial)).await?);
        bucket.push(ms(began));
        let began = Instant::now();
        seen(Map::open_remote(&reader(env, client), "plain")?.get(&key(trial)).await?);
        remote.push(ms(began));
        // The node reads the bucket when it is asked for the first time.
        seen(HashedMap::open_remote(&reader(env, client), "hashed")?.get(&key(trial)).await?);
        let began = Instant::now();
        seen(HashedMap::open_remote(&reader(env, client), "hashed")?.get(&key(trial)).await?);
        hashed_remote.push(ms(began));
    }
    let (bucket_ms, remote_ms) = (median(bucket), median(remote));
    Ok(Round { plain_ms, bucket_ms, remote_ms, hashed_remote_ms: median(hashed_remote) })
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// What was put is there.
fn seen(found: Option<Blob>) {
    assert_eq!(found.map(|value| value.0.len()), Some(VALUE_BYTES), "every key was put");
}
