//! The drive alone: how long a flush takes at the moment, and what it does without any program above it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::journal::{Aligned, BLOCK_BYTES, SEGMENT_BYTES, create_written, write_durably};
use ithaca_env::real::run_at_once;
use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use crate::measure::{Figure, Histogram, process_cpu_nanos};

/// Flushes of one probe.
const PROBES: usize = 101;
/// Bytes of one read.
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes of the file: enough that random reads do not repeat.
const FILE_BYTES: u64 = 16 * SEGMENT_BYTES;

/// A file of written blocks, opened with O_DIRECT.
pub struct DriveFile {
    file: File,
    /// Which of its blocks are written, in order.
    written: Vec<Range<u64>>,
}

impl DriveFile {
    /// Makes it at `path`, every block of it written.
    pub fn create(path: &Path) -> io::Result<Self> {
        let written = std::iter::once(0..FILE_BYTES / BLOCK).collect();
        Ok(Self { file: create_written(path, FILE_BYTES)?, written })
    }

    /// A file that somebody else has written, for reading. Blocks that were only allocated do not count: reading them asks
    /// nothing of the drive. An error if no block is written.
    pub fn open_written(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        let written = written_blocks(&file)?;
        if written.is_empty() {
            return Err(io::Error::other(format!("{}: no block of it is written", path.display())));
        }
        Ok(Self { file, written })
    }

    /// One of the written blocks, each as likely as any other.
    fn random_block(&self, random: u64) -> u64 {
        let count: u64 = self.written.iter().map(|blocks| blocks.end - blocks.start).sum();
        let mut nth = random % count;
        for blocks in &self.written {
            let len = blocks.end - blocks.start;
            if nth < len {
                return blocks.start + nth;
            }
            nth -= len;
        }
        unreachable!("fewer than there are")
    }
}

/// The blocks of `file` that were written, as the file system tells them from those that were only allocated.
fn written_blocks(file: &File) -> io::Result<Vec<Range<u64>>> {
    let mut written = Vec::new();
    let mut offset = 0;
    loop {
        let start = match rustix::fs::seek(file, SeekFrom::Data(offset)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(written),
            Err(error) => return Err(error.into()),
        };
        offset = rustix::fs::seek(file, SeekFrom::Hole(start))?;
        let blocks = start.div_ceil(BLOCK)..offset / BLOCK;
        if !blocks.is_empty() {
            written.push(blocks);
        }
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
    in_parallel(depth, span, run_at_once, || {
        let mut buffer = Aligned::zeroed(group_bytes);
        let next = &next;
        move |_| {
            let group = next.fetch_add(1, Ordering::Relaxed) % groups;
            write_durably(&drive.file, &buffer.as_mut_slice()[..group_bytes], group * group_bytes as u64)
        }
    })
}

/// Random 4 KB reads, `depth` in flight, one thread each. The threads are ordinary ones, as a server's loop is, which waits for
/// reads too: threads that take a processor from whoever has it would show what the neighbours do.
pub fn random_reads(drive: &DriveFile, depth: usize, span: Duration) -> io::Result<Figure> {
    let read = || {
        let mut buffer = Aligned::zeroed(BLOCK_BYTES);
        move |random| {
            let offset = drive.random_block(random) * BLOCK;
            drive.file.read_exact_at(&mut buffer.as_mut_slice()[..BLOCK_BYTES], offset)
        }
    };
    in_parallel(depth, span, || (), read)
}

/// Repeats an operation on `depth` threads for `span`; each begins with `begin_thread`, and is given a random number each
/// time.
fn in_parallel<F>(
    depth: usize,
    span: Duration,
    begin_thread: fn(),
    operation: impl Fn() -> F,
) -> io::Result<Figure>
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
                    begin_thread();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_written_blocks_of_a_file_are_read_and_all_of_them() {
        // Blocks that are only allocated are answered by the file system: a drive that reads them looks fast.
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("drive");
        let file = File::create(&path).expect("a file");
        file.set_len(64 * BLOCK).expect("room");
        for first in [8, 40] {
            file.write_all_at(&[1; 4 * BLOCK_BYTES], first * BLOCK).expect("written");
        }
        file.sync_all().expect("stored");
        let drive = DriveFile::open_written(&path).expect("some of it is written");
        let read: Vec<u64> = (0..8).map(|random| drive.random_block(random)).collect();
        assert_eq!(read, [8, 9, 10, 11, 40, 41, 42, 43]);
        assert_eq!(drive.random_block(8), 8);
    }
}
