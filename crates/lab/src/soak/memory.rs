//! Resident memory of the cluster while its log grows, is read at random all over, and is replayed from the first entry
//! to the last: bounded, and no larger for a large log than for a small one.

use std::io;

use bytes::Bytes;
use clap::Args;
use ithaca_env::sim::Random;
use ithaca_env::{Env, real};
use ithaca_log::client::Client;
use ithaca_log::pos::LogPos;

use super::Ground;
use super::fill::{clients, fill};
use super::process::{Server, Site};
use super::results::Results;

/// Resident bytes at the most.
const RESIDENT_MAX_BYTES: u64 = 256 << 20;
/// Resident bytes may grow by so much while the second half of a log is appended: caches are full by then.
const GROWTH_MAX_BYTES: u64 = 32 << 20;
/// Bytes of an entry.
const ENTRY_BYTES: usize = 128;
/// Bytes that an entry takes on a drive at the most, its share of headers and tables included.
const STORED_BYTES: u64 = 160;
/// Clients that append and read.
const CLIENTS: u32 = 4;
/// Samples while the log grows.
const SAMPLES: u64 = 10;
/// Positions of one random read, and reads that each client makes.
const READ_COUNT: u64 = 256;
const READS: u64 = 250;

/// How many entries.
#[derive(Args)]
#[command(after_help = "Example: cargo lab soak memory --entries 10000000,40000000")]
pub struct MemoryArguments {
    /// Entries of 128 bytes; several numbers for several logs, one after another.
    #[arg(long, default_value = "10000000", value_delimiter = ',')]
    entries: Vec<u64>,
    /// Log units.
    #[arg(long, default_value_t = 1)]
    units: u32,
    #[command(flatten)]
    ground: Ground,
}

/// Fills logs of the sizes asked for and judges each. Returns how many keep to the limits and how many do not.
pub fn run(arguments: &MemoryArguments) -> io::Result<(u64, u64)> {
    let mut results = Results::new(
        "resident memory of `ithaca dev` while a log of 128 B entries grows, is read at random and is replayed",
        "log_entries,phase,entries,status_rss_bytes,proc_rss_bytes,drive_bytes",
    );
    let (mut passed, mut failed) = (0, 0);
    for &entries in &arguments.entries {
        let drive_bytes = (entries * STORED_BYTES).next_multiple_of(1 << 30);
        let (mut site, random) = arguments.ground.site("memory", arguments.units, drive_bytes)?;
        need_space(&site, drive_bytes)?;
        let samples = real::run(async |env| measure(&env, &mut site, entries, random).await)?;
        let within = judge(entries, &samples, &mut results);
        *(if within { &mut passed } else { &mut failed }) += 1;
        site.remove()?;
    }
    results.write(&arguments.ground.results, "memory")?;
    Ok((passed, failed))
}

/// A log that fills the file system would measure something else.
fn need_space(site: &Site, bytes: u64) -> io::Result<()> {
    let space = rustix::fs::statvfs(site.root())?;
    let free = space.f_bavail * space.f_frsize;
    if free < bytes + bytes / 4 {
        return Err(io::Error::other(format!("{free} bytes are free, the log needs {bytes}")));
    }
    Ok(())
}

/// Resident memory at one moment.
struct Sample {
    phase: &'static str,
    entries: u64,
    status_bytes: u64,
    proc_bytes: u64,
    drive_bytes: u64,
}

async fn measure(env: &Env, site: &mut Site, entries: u64, mut random: Random) -> io::Result<Vec<Sample>> {
    let (server, _) = site.start(env).await?;
    let clients = clients(env, site.addr(), CLIENTS).await.map_err(io::Error::other)?;
    let entry = Bytes::from((0..ENTRY_BYTES).map(|_| random.next_u64() as u8).collect::<Vec<u8>>());
    let mut samples = vec![sample(site, &server, &clients[0], "start", 0).await?];
    for tenth in 1..=SAMPLES {
        let mut left = entries * tenth / SAMPLES - entries * (tenth - 1) / SAMPLES;
        let entry = entry.clone();
        let next = move || {
            left = left.checked_sub(1)?;
            Some(entry.clone())
        };
        fill(env, &clients, next).await.map_err(io::Error::other)?;
        let filled = entries * tenth / SAMPLES;
        samples.push(sample(site, &server, &clients[0], "append", filled).await?);
    }
    let tail = clients[0].check().await.map_err(io::Error::other)?.tail.0;
    for client in &clients {
        for _ in 0..READS {
            let positions: Vec<LogPos> = (0..READ_COUNT).map(|_| LogPos(random.below(tail))).collect();
            client.read_many(&positions).await.map_err(io::Error::other)?;
        }
    }
    samples.push(sample(site, &server, &clients[0], "random reads", entries).await?);
    let mut next = 0;
    while next < tail {
        let read = clients[0].read_range(LogPos(next), LogPos(tail)).await.map_err(io::Error::other)?;
        let last = read.last().ok_or_else(|| io::Error::other(format!("nothing read from {next} on")))?;
        next = last.pos.0 + 1;
    }
    samples.push(sample(site, &server, &clients[0], "replay", entries).await?);
    server.kill()?;
    Ok(samples)
}

async fn sample(
    site: &Site,
    server: &Server,
    client: &Client,
    phase: &'static str,
    entries: u64,
) -> io::Result<Sample> {
    let nodes = client.status().await.map_err(io::Error::other)?;
    // Every node of the process tells the same figure, or one tells it for all.
    let status = nodes.into_iter().filter_map(|(_, _, status)| Some(status.ok()?.rss_bytes));
    let mut drive_bytes = 0;
    for file in std::fs::read_dir(site.cluster())? {
        drive_bytes += file?.metadata()?.len();
    }
    let sample = Sample {
        phase,
        entries,
        status_bytes: status.max().unwrap_or(0),
        proc_bytes: server.resident_bytes()?,
        drive_bytes,
    };
    println!(
        "{phase:>12}: {entries:>9} entries, resident {:>4} MiB ({} MiB by its own status)",
        sample.proc_bytes >> 20,
        sample.status_bytes >> 20
    );
    Ok(sample)
}

/// Whether the samples keep to the limits; adds them to the results.
fn judge(entries: u64, samples: &[Sample], results: &mut Results) -> bool {
    for Sample { phase, entries: so_far, status_bytes, proc_bytes, drive_bytes } in samples {
        results.row(&format!("{entries},{phase},{so_far},{status_bytes},{proc_bytes},{drive_bytes}"));
    }
    let resident = |sample: &Sample| sample.proc_bytes.max(sample.status_bytes);
    let max = samples.iter().map(resident).max().unwrap_or(0);
    let half = samples.iter().find(|sample| sample.entries >= entries / 2).map_or(0, resident);
    let appending = samples.iter().filter(|sample| sample.phase == "append");
    let growth = appending.map(resident).max().unwrap_or(0).saturating_sub(half);
    let is_within = max < RESIDENT_MAX_BYTES && growth < GROWTH_MAX_BYTES;
    let summary = format!(
        "{{\"entries\":{entries},\"rss_bytes_at_half\":{half},\"growth_bytes\":{growth},\"rss_bytes_max\":{max},\"limit_bytes\":{RESIDENT_MAX_BYTES},\"growth_limit_bytes\":{GROWTH_MAX_BYTES},\"met\":{is_within}}}"
    );
    println!("{summary}");
    results.remark(&summary);
    is_within
}
