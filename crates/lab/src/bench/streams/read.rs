//! How fast a stream is read in bulk from memory, beside the bare server's reads of entries of the same size from memory.

use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_log::client::{Client, ClientOptions};
use ithaca_log::pos::{LogPos, StreamId};

use super::super::{BenchArguments, ithaca};
use crate::bare::{ServerProcess, Work};
use crate::measure::median;
use crate::soak::results::Results;

/// The bench's name on the command line.
pub const NAME: &str = "stream-read";
/// Bytes of the stream that is read, of each size of entries: they stay in memory.
const STREAM_BYTES: u64 = 16 << 20;
/// Connections of the bare client, and reads in flight on each.
const CONNECTIONS: usize = 16;
const BATCH: usize = 16;

/// A log that is read.
#[derive(Clone, Copy)]
struct Case {
    entry_bytes: usize,
    /// Streams that take turns, entry by entry; one of them is read.
    streams: u64,
}

const CASES: [Case; 4] = [
    Case { entry_bytes: 128, streams: 1 },
    Case { entry_bytes: 128, streams: 2 },
    Case { entry_bytes: 4096, streams: 1 },
    Case { entry_bytes: 4096, streams: 2 },
];

/// Measures as many rounds as asked.
pub fn run(arguments: &BenchArguments) -> io::Result<bool> {
    ithaca::build()?;
    let span = Duration::from_secs_f64(arguments.seconds / 4.0);
    let what = format!(
        "`ithaca dev`: a stream of {} MiB is read from its beginning to its end by one reader, again and again; as many streams as said take turns in the log, \
         entry by entry; bare: entries of the same size at random from memory, {} in flight; ratio: of bytes a second",
        STREAM_BYTES >> 20,
        CONNECTIONS * BATCH
    );
    let mut results =
        Results::new(&what, "entry_bytes,streams,round,entries_per_s,mb_per_s,bare_mb_per_s,ratio");
    for (nth, case) in CASES.into_iter().enumerate() {
        let folder = arguments.data.join(format!("{NAME}-{nth}"));
        std::fs::create_dir_all(&folder)?;
        let dev = ithaca::Dev::start(&folder)?;
        let options = ClientOptions { endpoints: vec![dev.endpoint()?], ..ClientOptions::default() };
        ithaca_env::real::run(async |env| fill(&env, &options, case).await)?;
        let mut server = ServerProcess::start(&folder)?;
        let work = Work::Read { size: case.entry_bytes };
        let mut bare = server.client(work, CONNECTIONS, BATCH)?;
        let mut ratios = Vec::new();
        for round in 0..arguments.rounds {
            let rate = ithaca_env::real::run(async |env| read(&env, &options, case, span).await)?;
            let bare_rate = server.measure(std::slice::from_mut(&mut bare), span)?.ops_per_s;
            let mb = |rate: f64| rate * case.entry_bytes as f64 / 1e6;
            let ratio = rate / bare_rate;
            let Case { entry_bytes, streams } = case;
            let row = format!(
                "{entry_bytes},{streams},{round},{rate:.0},{:.0},{:.0},{ratio:.3}",
                mb(rate),
                mb(bare_rate)
            );
            println!("{NAME} {row}");
            results.row(&row);
            ratios.push(ratio);
        }
        let line = format!("{case} {:.3} of bare", median(ratios));
        println!("{NAME} {line}");
        results.remark(&line);
    }
    results.write(&arguments.results, NAME)?;
    Ok(true)
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { entry_bytes, streams } = self;
        write!(f, "entries of {entry_bytes} bytes, 1 of {streams} streams:")
    }
}

async fn fill(env: &Env, options: &ClientOptions, case: Case) -> io::Result<()> {
    let client = Client::connect(env, options.clone()).await.map_err(io::Error::other)?;
    let count = STREAM_BYTES / case.entry_bytes as u64 * case.streams;
    let streams = (0..count).map(|nth| super::stream(nth % case.streams));
    super::fill(&client, streams, &Bytes::from(vec![7; case.entry_bytes])).await
}

/// Entries a second that a reader is given.
async fn read(env: &Env, options: &ClientOptions, case: Case, span: Duration) -> io::Result<f64> {
    let client = Client::connect(env, options.clone()).await.map_err(io::Error::other)?;
    let stream: StreamId = super::stream(0);
    read_once(&client, stream).await?;
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < span {
        count += read_once(&client, stream).await?;
    }
    let rate = count as f64 / began.elapsed().as_secs_f64();
    let whole = STREAM_BYTES / case.entry_bytes as u64;
    match count.is_multiple_of(whole) {
        true => Ok(rate),
        false => Err(io::Error::other(format!("{count} entries are not the whole stream of {whole}"))),
    }
}

async fn read_once(client: &Client, stream: StreamId) -> io::Result<u64> {
    let mut reader = client.stream_reader(stream, LogPos(0));
    reader.sync().await.map_err(io::Error::other)?;
    let mut count = 0;
    while reader.read_next().await.map_err(io::Error::other)?.is_some() {
        count += 1;
    }
    Ok(count)
}
