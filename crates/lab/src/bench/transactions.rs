//! Transactions on a volume, through the library on a real drive: three random blocks read and written each, by many at once,
//! without marks and with marks of 16 bytes (Isotope, figures 5 and 6).

use std::io;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_env::drive::OpenDrive;
use ithaca_env::task::gather;
use ithaca_volume::{CommitError, Tx, TxCounters, TxError, TxOptions, Volume, VolumeOptions};

use super::BenchArguments;
use crate::bare::{DriveFile, flush_probe_us};
use crate::measure::{median, process_cpu_nanos};
use crate::soak::results::Results;

/// The bench's name on the command line.
pub const NAME: &str = "transactions";
const FILE: &str = "transactions";
const BLOCK_BYTES: usize = 4096;
/// Transactions under way.
const AT_ONCE: u64 = 64;
/// Blocks of each.
const BLOCKS_EACH: usize = 3;
const MARK_BYTES: usize = 16;
/// Sizes of the address space, in blocks.
const SPACES: [u64; 4] = [64, 512, 4096, 32768];
/// The size at which marks are to be enough, and what they are to be enough for.
const SMALL: u64 = 512;
const LEAST: f64 = 0.95;

/// One load.
#[derive(Clone, Copy)]
struct Case {
    blocks: u64,
    is_marked: bool,
}

/// Measures as many rounds as asked. Returns whether marks make commits as likely as they should.
pub fn run(arguments: &BenchArguments, probe: &DriveFile) -> io::Result<bool> {
    let span = Duration::from_secs_f64(arguments.seconds);
    let what = format!(
        "{AT_ONCE} transactions at once, each reads and writes {BLOCKS_EACH} random blocks of 4 KB; marked: {MARK_BYTES} bytes of each count; strictly \
         serializable, a commit is durable; processor time of the process in microseconds a commit"
    );
    let mut results =
        Results::new(&what, "round,flush_us,blocks,marked,commits_per_s,commit_rate,cpu_us_per_commit");
    let path = arguments.data.join(FILE);
    let mut rates = Vec::new();
    for round in 0..arguments.rounds {
        let flush_us = flush_probe_us(probe)?;
        for (blocks, is_marked) in SPACES.iter().flat_map(|&blocks| [(blocks, false), (blocks, true)]) {
            let case = Case { blocks, is_marked };
            let cpu = process_cpu_nanos();
            let TxCounters { committed, conflicts, .. } =
                ithaca_env::real::run(|env| measure(env, &path, case, span))?;
            let rate = committed as f64 / (committed + conflicts).max(1) as f64;
            let row = format!(
                "{round},{flush_us:.0},{blocks},{is_marked},{:.0},{rate:.4},{:.1}",
                committed as f64 / span.as_secs_f64(),
                (process_cpu_nanos() - cpu) as f64 / 1e3 / committed.max(1) as f64
            );
            println!("{NAME} {row}");
            results.row(&row);
            if is_marked && blocks == SMALL {
                rates.push(rate);
            }
            std::fs::remove_file(&path)?;
        }
    }
    let rate = median(rates);
    let met = rate >= LEAST;
    let said = if met { "met" } else { "MISSED" };
    println!(
        "{NAME}: {rate:.3} of the marked transactions on {SMALL} blocks commit, at least {LEAST}: {said}"
    );
    results.write(&arguments.results, NAME)?;
    Ok(met)
}

/// What so many transactions at once come to on a new volume. One in conflict begins again as the library has it.
async fn measure(env: Env, path: &Path, case: Case, span: Duration) -> io::Result<TxCounters> {
    let options = VolumeOptions::new(case.blocks);
    let create_bytes = Some(options.settings.chain.capacity_bytes);
    let open = OpenDrive { path: path.to_owned(), create_bytes, read_only: false };
    let drive = env.open_drive(open).await.map_err(io::Error::other)?;
    let volume = Volume::create(&env, vec![drive], options).await.map_err(io::Error::other)?;
    let end = env.now() + span;
    let workers = (0..AT_ONCE).map(async |client| {
        while env.now() < end {
            let options = TxOptions { client, ..TxOptions::default() };
            match volume.transact(options, async |tx| change(&env, tx, case, client).await).await {
                Ok(_) | Err(CommitError::Conflict { .. }) => {}
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(())
    });
    let ended = gather(workers.collect(), Result::is_err).await;
    ended.into_iter().flatten().collect::<io::Result<Vec<()>>>()?;
    let counters = volume.info().tx_counters;
    volume.close().await.map_err(io::Error::other)?;
    Ok(counters)
}

/// What a transaction does before it commits.
async fn change(env: &Env, tx: &Tx, case: Case, client: u64) -> Result<(), TxError> {
    for _ in 0..BLOCKS_EACH {
        let (block, at) = (env.random_u64() % case.blocks, env.random_u64() as usize % BLOCK_BYTES);
        let at = at / MARK_BYTES * MARK_BYTES;
        let mut data = tx.read(block, 1).await?.to_vec();
        mark(tx, case, block, at)?;
        data[at..at + MARK_BYTES].copy_from_slice(&[client as u8; MARK_BYTES]);
        tx.write(block, Bytes::from(data))?;
        mark(tx, case, block, at)?;
    }
    Ok(())
}

fn mark(tx: &Tx, case: Case, block: u64, at: usize) -> Result<(), TxError> {
    if case.is_marked { tx.mark_accessed(block, at..at + MARK_BYTES) } else { Ok(()) }
}
