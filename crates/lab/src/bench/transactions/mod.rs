//! Transactions on a volume, through the library on a real drive: three random blocks read and written each, by many at once,
//! without marks and with marks of 16 bytes (Isotope, figures 5 and 6).

mod profile;
mod stores;

use std::io;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::drive::OpenDrive;
use ithaca_env::limits::BLOCK_BYTES as PAGE_BYTES;
use ithaca_env::{Env, Time};
use ithaca_volume::{CommitError, Info, Tx, TxCounters, TxError, TxOptions, Volume, VolumeOptions};

use super::BenchArguments;
use crate::bare::{DriveFile, Mix, MixFile, flush_probe_us};
use crate::measure::{median, process_cpu_nanos};
use crate::soak::results::Results;
use profile::Profile;
use stores::{Built, Counted, STORES, Store};

/// The bench's name on the command line.
pub const NAME: &str = "transactions";
const FILE: &str = "transactions";
const BLOCK_BYTES: usize = 4096;
/// The bare writer's file, and its bytes.
const BARE_FILE: &str = "transactions-bare";
const BARE_BYTES: u64 = 1 << 30;
/// Transactions under way, each in a task of its own.
const AT_ONCE: u64 = 64;
/// Blocks of each.
const BLOCKS_EACH: usize = 3;
const MARK_BYTES: usize = 16;
/// Sizes of the address space, in blocks.
const SPACES: [u64; 4] = [64, 512, 4096, 32768];
/// The size at which marks are to be enough, and what they are to be enough for; stores that are not ours have it too.
const SMALL: u64 = 512;
const LEAST: f64 = 0.95;
/// The size at which nothing but marks helps: what may commit at the most without them.
const CROWDED: u64 = SPACES[0];
const MOST_UNMARKED: f64 = 0.5;
/// What of the processor time conflict detection may take.
const MOST_DETECTION: f64 = 0.06;

/// One load.
#[derive(Clone, Copy)]
struct Case {
    blocks: u64,
    is_marked: bool,
}

/// What the rounds have given so far.
#[derive(Default)]
struct Found {
    /// Rates of commits on few blocks with marks, and on fewer without.
    marked: Vec<f64>,
    unmarked: Vec<f64>,
    /// Of each store, how many times its commits a second.
    ratios: [Vec<f64>; STORES.len()],
    /// Commits a second that the bare writer's groups would have, and which part of them there are.
    bare: Vec<f64>,
    shares: Vec<f64>,
}

/// Measures as many rounds as asked. Returns whether every target that could be measured is met.
pub fn run(arguments: &BenchArguments, probe: &DriveFile) -> io::Result<bool> {
    let what = format!(
        "{AT_ONCE} transactions at once, each reads and writes {BLOCKS_EACH} random blocks of 4 KB; marked: {MARK_BYTES} bytes of each count; strictly \
         serializable, a commit is durable; processor time of the process in microseconds a commit. sqlite: one connection that {AT_ONCE} threads take in turn, \
         WAL, synchronous=FULL; lmdb: {AT_ONCE} threads, its defaults (tools/stores). bare: what the drive alone would give: groups of the same size as those of the volume's \
         log, as many under way, written durably one behind the other by threads that do nothing else"
    );
    let columns = "round,flush_us,store,blocks,marked,commits_per_s,commit_rate,cpu_us_per_commit";
    let (mut results, mut found) = (Results::new(&what, columns), Found::default());
    let bare = MixFile::create(&arguments.data.join(BARE_FILE), BARE_BYTES)?;
    let stores: Vec<_> = STORES.iter().map(|store| build(store, &arguments.data, &mut results)).collect();
    for round in 0..arguments.rounds {
        self::round(round, arguments, probe, (&stores, &bare), &mut results, &mut found)?;
    }
    std::fs::remove_file(arguments.data.join(BARE_FILE))?;
    let share = detection_share(arguments);
    let met = judge(&found, &share, &mut results);
    results.write(&arguments.results, NAME)?;
    Ok(met)
}

/// A store's program, if there is what it needs; it is left out otherwise, and said so.
fn build(store: &'static Store, folder: &Path, results: &mut Results) -> Option<Built<'static>> {
    let built = store.build(folder);
    built.inspect_err(|error| say(results, &format!("{} is left out: {error}", store.name))).ok()
}

fn say(results: &mut Results, remark: &str) {
    println!("{NAME}: {remark}");
    results.remark(remark);
}

/// Every store and every load once.
fn round(
    round: usize,
    arguments: &BenchArguments,
    probe: &DriveFile,
    (stores, bare): (&[Option<Built<'static>>], &MixFile),
    results: &mut Results,
    found: &mut Found,
) -> io::Result<()> {
    let flush_us = flush_probe_us(probe)?;
    let span = Duration::from_secs_f64(arguments.seconds);
    let mut row = |row: &str| {
        let row = format!("{round},{flush_us:.0},{row}");
        println!("{NAME} {row}");
        results.row(&row);
    };
    let mut others = [None; STORES.len()];
    for (store, commits_per_s) in stores.iter().zip(&mut others) {
        let Some(store) = store else { continue };
        let counted = store.run(&arguments.data.join(FILE), SMALL, AT_ONCE, span)?;
        let Counted { commits_per_s: rate, cpu_us_per_commit } = counted;
        row(&format!("{},{SMALL},false,{rate:.0},1.0000,{cpu_us_per_commit:.1}", store.store.name));
        *commits_per_s = Some(rate);
    }
    for (blocks, is_marked) in SPACES.iter().flat_map(|&blocks| [(blocks, false), (blocks, true)]) {
        let path = arguments.data.join(FILE);
        let cpu = process_cpu_nanos();
        let case = Case { blocks, is_marked };
        let info = ithaca_env::real::run(|env| measure(env, &path, case, span))?;
        std::fs::remove_file(&path)?;
        let TxCounters { committed, conflicts, .. } = info.tx_counters;
        let rate = committed as f64 / (committed + conflicts).max(1) as f64;
        let commits_per_s = committed as f64 / span.as_secs_f64();
        let cpu_us = (process_cpu_nanos() - cpu) as f64 / 1e3 / committed.max(1) as f64;
        row(&format!("ithaca,{blocks},{is_marked},{commits_per_s:.0},{rate:.4},{cpu_us:.1}"));
        match (blocks, is_marked) {
            (SMALL, true) => {
                found.marked.push(rate);
                let cpu = process_cpu_nanos();
                let bare_per_s = bare_commits(bare, &info, span)?;
                let cpu_us = (process_cpu_nanos() - cpu) as f64 / 1e3 / (bare_per_s * span.as_secs_f64());
                row(&format!("bare,{blocks},{is_marked},{bare_per_s:.0},1.0000,{cpu_us:.1}"));
                found.bare.push(bare_per_s);
                found.shares.push(commits_per_s / bare_per_s);
                for (ratios, other) in found.ratios.iter_mut().zip(others) {
                    ratios.extend(other.map(|other| commits_per_s / other.max(1.0)));
                }
            }
            (CROWDED, false) => found.unmarked.push(rate),
            _ => {}
        }
    }
    Ok(())
}

/// Commits a second of the bare writer: each of its groups has as many as one of the volume's had.
fn bare_commits(bare: &MixFile, info: &Info, span: Duration) -> io::Result<f64> {
    let counters = info.chain.counters;
    let groups = counters.groups.max(1);
    let group_bytes = (counters.group_bytes / groups) as usize;
    let under_way = VolumeOptions::new(1).settings.chain.flights;
    let mix =
        Mix { group_bytes: group_bytes.next_multiple_of(PAGE_BYTES), groups: under_way, ..Mix::default() };
    let (groups_per_s, _) = bare.run(mix, span)?;
    Ok(groups_per_s * info.tx_counters.committed as f64 / groups as f64)
}

/// Which part of the processor time is conflict detection, where all of it is asked for.
fn detection_share(arguments: &BenchArguments) -> io::Result<f64> {
    let (path, profile) = (arguments.data.join(FILE), arguments.data.join("perf"));
    let span = Duration::from_secs_f64(arguments.seconds);
    let started = Profile::start(&profile, span)?;
    let case = Case { blocks: SMALL, is_marked: true };
    ithaca_env::real::run(|env| measure(env, &path, case, span))?;
    std::fs::remove_file(&path)?;
    started.share(&profile)
}

/// What was asked and what is. Returns whether all of it is met.
fn judge(found: &Found, share: &io::Result<f64>, results: &mut Results) -> bool {
    let mut all_met = true;
    let (bare, part) = (median(found.bare.clone()), median(found.shares.clone()));
    let remark = format!(
        "{part:.2} of the commits that the drive alone would give ({bare:.0} a second of bare groups)"
    );
    say(results, &remark);
    let mut line = |text: String, met: bool| {
        all_met &= met;
        say(results, &format!("{text}: {}", if met { "met" } else { "MISSED" }));
    };
    let (marked, unmarked) = (median(found.marked.clone()), median(found.unmarked.clone()));
    line(
        format!("{marked:.3} of the marked transactions on {SMALL} blocks commit, at least {LEAST}"),
        marked >= LEAST,
    );
    line(
        format!(
            "{unmarked:.3} of those without marks on {CROWDED} blocks commit, at most {MOST_UNMARKED}, as in the paper"
        ),
        unmarked <= MOST_UNMARKED,
    );
    for (store, ratios) in STORES.iter().zip(&found.ratios).filter(|(_, ratios)| !ratios.is_empty()) {
        let (ratio, least) = (median(ratios.clone()), store.least);
        line(
            format!("{ratio:.1} times the durable commits a second of {}, at least {least}", store.name),
            ratio >= least,
        );
    }
    match share {
        Ok(share) => line(
            format!("{share:.3} of the processor time is conflict detection, at most {MOST_DETECTION}"),
            *share <= MOST_DETECTION,
        ),
        Err(error) => say(results, &format!("the share of conflict detection is left out: {error}")),
    }
    all_met
}

/// What so many transactions at once come to on a new volume. One in conflict begins again as the library has it.
async fn measure(env: Env, path: &Path, case: Case, span: Duration) -> io::Result<Info> {
    let options = VolumeOptions::new(case.blocks);
    let create_bytes = Some(options.settings.chain.capacity_bytes);
    let open = OpenDrive { path: path.to_owned(), create_bytes, read_only: false };
    let drive = env.open_drive(open).await.map_err(io::Error::other)?;
    let volume = Volume::create(&env, vec![drive], options).await.map_err(io::Error::other)?;
    let end = env.now() + span;
    let workers = (0..AT_ONCE).map(|client| env.spawn(work(env.clone(), volume.clone(), case, client, end)));
    let workers: Vec<_> = workers.collect();
    for worker in workers {
        worker.join().await.ok_or_else(|| io::Error::other("a client has ended before its time"))??;
    }
    let info = volume.info();
    volume.close().await.map_err(io::Error::other)?;
    Ok(info)
}

/// One client.
async fn work(env: Env, volume: Volume, case: Case, client: u64, end: Time) -> io::Result<()> {
    while env.now() < end {
        let options = TxOptions { client, ..TxOptions::default() };
        match volume.transact(options, async |tx| change(&env, tx, case, client).await).await {
            Ok(_) | Err(CommitError::Conflict { .. }) => {}
            Err(error) => return Err(io::Error::other(error)),
        }
    }
    Ok(())
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
