//! The drive alone: how long a flush takes at the moment, and what it does without any program above it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::journal::{Aligned, BLOCK_BYTES, SEGMENT_BYTES, create_written, write_durably};
use ithaca_env::real::run_at_once;

use crate::measure::{Figure, Histogram, process_cpu_nanos};

/// Flushes of one probe.
const PROBES: usize = 101;
/// Bytes of the file: enough that random reads do not repeat.
const FILE_BYTES: u64 = 16 * SEGMENT_BYTES;

/// A file of written blocks, opened with O_DIRECT.
pub struct DriveFile {
    file: File,
}

impl DriveFile {
    /// Makes it at `path`.
    pub fn create(path: &Path) -> io::Result<Self> {
        Ok(Self { file: create_written(path, FILE_BYTES)? })
    }
}

/// The median of 101 durable 4 KB writes one after the other, in microseconds. On machines of this kind it is about 25 to 50,
/// and more while neighbours use the drive: no absolute figure means anything without it.
pub fn flush_probe_us(drive: &DriveFile) -> io::Result<f64> {
    let probe = || {
        run_at_once();
        let mut block = Aligned::zeroed(BLOCK_BYTES);
        let mut times = Histogram::default();
        for probe in 0..PROBES {
            let begin = Instant::now();
            let bytes = &block.as_mut_slice()[..BLOCK_BYTES];
            write_durably(&drive.file, bytes, (probe * BLOCK_BYTES) as u64)?;
            times.add(begin.elapsed().as_nanos() as u64, 1);
        }
        Ok(times.quantile_us(0.5))
    };
    // On a thread of its own: a raised priority stays with its thread.
    let probed = std::thread::scope(|scope| scope.spawn(probe).join());
    probed.unwrap_or_else(|_| Err(io::Error::other("the flush probe panicked")))
}

/// Durable writes of `group_bytes` one after the other, `depth` in flight: operations are groups.
pub fn sequential_writes(
    drive: &DriveFile,
    group_bytes: usize,
    depth: usize,
    span: Duration,
) -> io::Result<Figure> {
    let groups = FILE_BYTES / group_bytes as u64;
    let next = AtomicU64::new(0);
    in_parallel(depth, span, || {
        let mut buffer = Aligned::zeroed(group_bytes);
        let next = &next;
        move |_| {
            let group = next.fetch_add(1, Ordering::Relaxed) % groups;
            write_durably(&drive.file, &buffer.as_mut_slice()[..group_bytes], group * group_bytes as u64)
        }
    })
}

/// Random 4 KB reads, `depth` in flight, one thread each.
pub fn random_reads(drive: &DriveFile, depth: usize, span: Duration) -> io::Result<Figure> {
    let blocks = FILE_BYTES / BLOCK_BYTES as u64;
    in_parallel(depth, span, || {
        let mut buffer = Aligned::zeroed(BLOCK_BYTES);
        move |random| {
            let offset = random % blocks * BLOCK_BYTES as u64;
            drive.file.read_exact_at(&mut buffer.as_mut_slice()[..BLOCK_BYTES], offset)
        }
    })
}

/// Repeats an operation on `depth` threads for `span`; each is given a random number.
fn in_parallel<F>(depth: usize, span: Duration, operation: impl Fn() -> F) -> io::Result<Figure>
where
    F: FnMut(u64) -> io::Result<()> + Send,
{
    let cpu_before = process_cpu_nanos();
    let begin = Instant::now();
    let runs: Vec<io::Result<(u64, Histogram)>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..depth as u64)
            .map(|thread| {
                let mut operation = operation();
                scope.spawn(move || {
                    run_at_once();
                    let (mut operations, mut latencies) = (0, Histogram::default());
                    let mut random = (thread + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    while begin.elapsed() < span {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        let start = Instant::now();
                        operation(random)?;
                        latencies.add(start.elapsed().as_nanos() as u64, 1);
                        operations += 1;
                    }
                    Ok((operations, latencies))
                })
            })
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|run| run.unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))).collect()
    });
    let seconds = begin.elapsed().as_secs_f64();
    let (mut operations, mut latencies) = (0, Histogram::default());
    for run in runs {
        let (more, times) = run?;
        operations += more;
        latencies.merge(&times);
    }
    let cpu_us = (process_cpu_nanos() - cpu_before) as f64 / 1000.0;
    Ok(Figure {
        ops_per_s: operations as f64 / seconds,
        p50_us: latencies.quantile_us(0.5),
        p99_us: latencies.quantile_us(0.99),
        client_cpu_us: cpu_us / operations.max(1) as f64,
        ..Figure::default()
    })
}
