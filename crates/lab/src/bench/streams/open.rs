//! How soon a rare stream is opened and read: 20 entries among those of 500,000 other streams.

use std::io;
use std::time::Instant;

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_log::client::{Client, ClientOptions};
use ithaca_log::pos::{LogPos, StreamId};

use super::super::{BenchArguments, ithaca};
use crate::measure::median;
use crate::soak::results::Results;

/// The bench's name on the command line.
pub const NAME: &str = "open-stream";
/// Streams, of one entry each,
const STREAMS: u64 = 500_000;
/// and the entries of the one that is opened, spread evenly among them.
const ENTRIES: u64 = 20;
const ENTRY_BYTES: usize = 128;
/// What is asked of the median.
const ASKED_MS: f64 = 5.0;
/// Openings in a round.
const TRIALS: usize = 50;

/// What opening took, in milliseconds: the first time, and the median of the others.
struct Opened {
    first_ms: f64,
    again_ms: f64,
    /// The same by a client that has just connected, the time for that included.
    connected_ms: f64,
}

/// Measures as many rounds as asked. Returns whether what is asked is met.
pub fn run(arguments: &BenchArguments) -> io::Result<bool> {
    ithaca::build()?;
    let what = format!(
        "`ithaca dev` with {STREAMS} streams of one entry of {ENTRY_BYTES} bytes each, and one of {ENTRIES} entries spread among them: from the call until all of \
         its entries are read; the first time, the median of {TRIALS} times, and the median by new clients, connecting included; milliseconds"
    );
    let mut results = Results::new(&what, "round,first_ms,again_ms,connected_ms");
    let dev = ithaca::Dev::start(&arguments.data)?;
    let endpoints = vec![dev.endpoint()?];
    let options = ClientOptions { endpoints, ..ClientOptions::default() };
    let rounds = ithaca_env::real::run(async |env| measure(&env, &options, arguments.rounds).await)?;
    for (round, Opened { first_ms, again_ms, connected_ms }) in rounds.iter().enumerate() {
        let row = format!("{round},{first_ms:.2},{again_ms:.2},{connected_ms:.2}");
        println!("{NAME} {row}");
        results.row(&row);
    }
    let found = median(rounds.iter().map(|it| it.again_ms));
    let met = found <= ASKED_MS;
    let line = format!("{found:.2} ms (asked {ASKED_MS}): {}", if met { "met" } else { "MISSED" });
    println!("{NAME} {line}");
    results.remark(&line);
    results.write(&arguments.results, NAME)?;
    Ok(met)
}

async fn measure(env: &Env, options: &ClientOptions, rounds: usize) -> io::Result<Vec<Opened>> {
    let client = Client::connect(env, options.clone()).await.map_err(io::Error::other)?;
    let rare = StreamId::of_name("rare");
    let entry = Bytes::from(vec![7; ENTRY_BYTES]);
    let between = STREAMS / ENTRIES;
    for part in 0..ENTRIES {
        let others = (part * between..(part + 1) * between).map(super::stream);
        super::fill(&client, others.chain([rare]), &entry).await?;
    }
    let mut opened = Vec::new();
    for _ in 0..rounds {
        let first_ms = open(&client, rare).await?;
        let (mut again, mut connected) = (Vec::new(), Vec::new());
        for _ in 0..TRIALS {
            again.push(open(&client, rare).await?);
        }
        for _ in 0..TRIALS {
            let began = Instant::now();
            let new = Client::connect(env, options.clone()).await.map_err(io::Error::other)?;
            open(&new, rare).await?;
            connected.push(ms(began));
        }
        opened.push(Opened { first_ms, again_ms: median(again), connected_ms: median(connected) });
    }
    Ok(opened)
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// Opens the stream and reads all of it.
async fn open(client: &Client, stream: StreamId) -> io::Result<f64> {
    let began = Instant::now();
    let mut reader = client.stream_reader(stream, LogPos(0));
    reader.sync().await.map_err(io::Error::other)?;
    let mut count = 0;
    while reader.read_next().await.map_err(io::Error::other)?.is_some() {
        count += 1;
    }
    match count {
        ENTRIES => Ok(ms(began)),
        other => Err(io::Error::other(format!("{other} entries of {ENTRIES}"))),
    }
}
