//! How soon a volume of many blocks serves again after SIGKILL, and how much memory it takes then: `ithaca volume serve`, from the start of the
//! process to `ready`.
//!
//! Sixteen million blocks are 64 GB. An open reads none of them: it reads the headers of segments and the footers of those that are closed. So
//! while the volume is filled, through the library, most of each closed segment's data is given back to the file system: its header and its last
//! [`KEPT_BYTES`], where the footer lies, stay. What is opened has every record, at its place, and would not verify if it were read.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_env::drive::OpenDrive;
use ithaca_volume::{Durability, TxOptions, Version, Volume, VolumeOptions};
use rustix::fs::FallocateFlags;

use super::started::Started;
use super::volume::load;
use super::{BenchArguments, ithaca};
use crate::bare::{DriveFile, flush_probe_us};
use crate::measure::{median, thread_cpu_nanos};
use crate::soak::results::Results;

/// The bench's name on the command line.
pub const NAME: &str = "restart-volume";
const BLOCK_BYTES: usize = 4096;
/// Where a volume lies in its directory, and where its first segment begins there.
const FILE: &str = "volume.chain";
const SEGMENTS_AT: u64 = 64 << 10;
/// Bytes at the end of a segment that stay: more than any footer takes.
const KEPT_BYTES: u64 = 2 << 20;
/// Closed segments that are left whole, the last ones.
const WHOLE: u64 = 4;
/// Blocks of a commit while the volume is filled.
const PIECE: u64 = 256;
/// Bytes of a group while the volume is filled.
const FILL_GROUP_BYTES: usize = 8 << 20;
/// What is asked: seconds to `ready` in the median; bytes of memory a block, besides what a small volume takes and caches of fixed size.
const READY_MAX_S: f64 = 2.0;
const BLOCK_MAX_BYTES: u64 = 8;
const CACHES_MAX_BYTES: u64 = 48 << 20;
/// Blocks of the small volume.
const SMALL: u64 = 1 << 10;
/// An odd factor, so that its multiples meet every block once, in no order.
const SCATTER: u64 = 0x9e37_79b1;

/// In which order the blocks were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Random,
    Sequential,
}

/// One restart.
struct Restart {
    ready: Duration,
    /// Processor time until then.
    cpu_s: f64,
    resident_bytes: u64,
    peak_bytes: u64,
}

/// Fills volumes and starts each as often as there are rounds. Returns whether every target is met.
pub fn run(arguments: &BenchArguments, probe: &DriveFile) -> io::Result<bool> {
    ithaca::build()?;
    let what = "time from the start of `ithaca volume serve` to `ready` after SIGKILL, and its memory then and at the most; every block of \
                the volume is written once, in no order by transactions of 256, or in order in pieces of 1 MiB; the file system has been given back the data of closed segments";
    let mut results = Results::new(
        what,
        "blocks,order,round,load,flush_us,ready_s,cpu_s,resident_bytes,peak_bytes,bytes_a_block",
    );
    let small = measure(SMALL, Order::Sequential, arguments)?;
    let base = small.iter().map(|restart| restart.resident_bytes).max().unwrap_or(0);
    results.remark(&format!("a volume of {SMALL} blocks takes {base} bytes"));
    let mut all_met = true;
    for order in [Order::Random, Order::Sequential] {
        let restarts = measure(arguments.blocks, order, arguments)?;
        for (round, Restart { ready, cpu_s, resident_bytes, peak_bytes }) in restarts.iter().enumerate() {
            let a_block = resident_bytes.saturating_sub(base) as f64 / arguments.blocks as f64;
            let (flush_us, ready_s, load) = (flush_probe_us(probe)?, ready.as_secs_f64(), load());
            let row = format!(
                "{},{order:?},{round},{load},{flush_us:.0},{ready_s:.3},{cpu_s:.2},{resident_bytes},{peak_bytes},{a_block:.2}",
                arguments.blocks
            );
            println!("{NAME} {row}");
            results.row(&row);
        }
        all_met &= judge(arguments.blocks, order, &restarts, base, &mut results);
    }
    results.write(&arguments.results, NAME)?;
    Ok(all_met)
}

fn judge(blocks: u64, order: Order, restarts: &[Restart], base: u64, results: &mut Results) -> bool {
    let ready_s = median(restarts.iter().map(|restart| restart.ready.as_secs_f64()));
    let resident = restarts.iter().map(|restart| restart.resident_bytes).max().unwrap_or(u64::MAX);
    let most = base + BLOCK_MAX_BYTES * blocks + CACHES_MAX_BYTES;
    let met = ready_s < READY_MAX_S && resident <= most;
    let cpu_s = median(restarts.iter().map(|restart| restart.cpu_s));
    let remark = format!(
        "{order:?}: ready after {ready_s:.2} s, below {READY_MAX_S}, of which {cpu_s:.2} s of processor time; {resident} bytes of memory, at most {most}: {}",
        if met { "met" } else { "MISSED" }
    );
    println!("{NAME} {remark}");
    results.remark(&remark);
    met
}

/// Fills a volume and starts it as often as there are rounds.
fn measure(blocks: u64, order: Order, arguments: &BenchArguments) -> io::Result<Vec<Restart>> {
    let folder = arguments.data.join(NAME);
    std::fs::create_dir_all(&folder)?;
    let (began, cpu) = (Instant::now(), thread_cpu_nanos());
    ithaca_env::real::run(|env| fill(env, &folder, blocks, order))?;
    let cpu_s = (thread_cpu_nanos() - cpu) as f64 / 1e9;
    println!(
        "{NAME} {blocks} blocks, {order:?}: written in {:?}, {cpu_s:.1} s of processor time",
        began.elapsed()
    );
    let restarts = (0..arguments.rounds).map(|_| restart(&folder)).collect();
    std::fs::remove_dir_all(&folder)?;
    restarts
}

/// Writes every block of a new volume, and leaves it as a kill would.
async fn fill(env: Env, folder: &Path, blocks: u64, order: Order) -> io::Result<()> {
    let mut options = VolumeOptions::new(blocks);
    let chain = &mut options.settings.chain;
    // Nobody waits for a commit: segments are not written over before they are used, and groups are large.
    (chain.segments_ready, chain.group_max_bytes) = (0, FILL_GROUP_BYTES);
    let segment_bytes = chain.segment_bytes;
    let path = folder.join(FILE);
    let open = OpenDrive {
        path: path.clone(),
        create_bytes: Some(SEGMENTS_AT + 4 * segment_bytes),
        read_only: false,
    };
    let drive = env.open_drive(open).await.map_err(io::Error::other)?;
    let volume = Volume::create(&env, vec![drive], options).await.map_err(io::Error::other)?;
    let file = File::options().write(true).open(&path)?;
    let data = Bytes::from(vec![7; PIECE as usize * BLOCK_BYTES]);
    let mut given_back = 0;
    for first in (0..blocks.next_power_of_two()).step_by(PIECE as usize) {
        match order {
            Order::Random => scattered(&volume, first, blocks, &data.slice(..BLOCK_BYTES)).await,
            Order::Sequential if first >= blocks => break,
            Order::Sequential => {
                let some = data.slice(..(blocks - first).min(PIECE) as usize * BLOCK_BYTES);
                volume.write(first, some, Durability::Acknowledged).await.map_err(io::Error::other)
            }
        }?;
        let closed = volume.info().chain.segments_closed;
        while given_back + WHOLE < closed {
            give_back(&file, SEGMENTS_AT + given_back * segment_bytes, segment_bytes)?;
            given_back += 1;
        }
    }
    volume.flush().await.map_err(io::Error::other)?;
    Ok(())
}

/// Writes blocks from all over the volume, those with the numbers from `first` on in an order that is none, each a run of its own.
async fn scattered(volume: &Volume, first: u64, blocks: u64, data: &Bytes) -> io::Result<Version> {
    let tx = volume.begin(TxOptions { durability: Durability::Acknowledged, ..TxOptions::default() });
    let tx = tx.map_err(io::Error::other)?;
    for number in first..first + PIECE {
        let block = number.wrapping_mul(SCATTER) % blocks.next_power_of_two();
        if block < blocks {
            tx.write(block, data.clone()).map_err(io::Error::other)?;
        }
    }
    Ok(tx.commit().await.map_err(io::Error::other)?.unwrap_or_default())
}

/// Gives the data of a segment back to the file system.
fn give_back(file: &File, at: u64, segment_bytes: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let header = BLOCK_BYTES as u64;
    Ok(rustix::fs::fallocate(file, flags, at + header, segment_bytes - header - KEPT_BYTES)?)
}

/// Starts the volume, waits until it serves, looks at its memory and kills it.
fn restart(folder: &Path) -> io::Result<Restart> {
    let program = std::env::current_exe()?.with_file_name("ithaca");
    let mut serve = Command::new(program);
    serve.args(["volume", "serve"]).arg(folder).args(["--nbd", "127.0.0.1:0", "--json"]);
    let began = Instant::now();
    let mut server = Started::new(serve.stdin(Stdio::null()).stdout(Stdio::piped()))?;
    let line = server.first_line()?;
    let ready = began.elapsed();
    if line.is_empty() {
        return Err(io::Error::other(format!("{} does not serve", folder.display())));
    }
    let [resident_bytes, peak_bytes] = memory(&server.child)?;
    let cpu_s = server.cpu_nanos()? as f64 / 1e9;
    Ok(Restart { ready, cpu_s, resident_bytes, peak_bytes })
}

/// Resident bytes of a process, now and at the most.
fn memory(child: &Child) -> io::Result<[u64; 2]> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()))?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.map(|kib| kib << 10).ok_or_else(|| io::Error::other(format!("no {name} in {status}")))
    };
    Ok([field("VmRSS:")?, field("VmHWM:")?])
}
