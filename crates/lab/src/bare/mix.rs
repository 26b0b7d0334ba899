//! The bare writer of a mix: durable groups one behind the other and, among them, the reads that a cleaner would make, as many
//! of both as it is told. Threads, a lock, and the drive.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ithaca_env::real::run_at_once;

use super::journal::{Aligned, create_written, write_durably};

/// What is done, and how much of it at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mix {
    /// Bytes of a group, whole blocks.
    pub group_bytes: usize,
    /// Groups under way.
    pub groups: usize,
    /// Bytes of memory that each of them is taken from, one part behind the other: where fewer than a group has, the same is written each time.
    pub source_bytes: usize,
    /// Bytes of a read, whole blocks.
    pub read_bytes: usize,
    /// Reads under way at the most.
    pub reads: usize,
    /// Reads for each group.
    pub reads_per_group: f64,
}

/// A file that is written and read so.
pub struct MixFile {
    file: File,
    bytes: u64,
}

/// How far it is. Neither side runs ahead of the other by more than what it has under way.
#[derive(Default)]
struct Progress {
    begun: [u64; 2],
    done: [u64; 2],
    is_over: bool,
}

struct Shared {
    progress: Mutex<Progress>,
    changed: Condvar,
    mix: Mix,
}

const GROUP: usize = 0;
const READ: usize = 1;

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next one to do; none when the time is over.
    fn begin(&self, what: usize) -> Option<u64> {
        let mix = &self.mix;
        let mut progress = self.lock();
        loop {
            if progress.is_over {
                return None;
            }
            let (groups, reads) = (progress.begun[GROUP] as f64, progress.begun[READ] as f64);
            let is_next = if what == GROUP {
                let due = (groups - 2.0 * mix.groups as f64) * mix.reads_per_group - mix.reads as f64;
                mix.reads_per_group == 0.0 || progress.done[READ] as f64 >= due
            } else {
                reads < (progress.done[GROUP] as f64 + 2.0 * mix.groups as f64) * mix.reads_per_group
            };
            if is_next {
                progress.begun[what] += 1;
                return Some(progress.begun[what] - 1);
            }
            progress = self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn end(&self, what: usize) {
        self.lock().done[what] += 1;
        self.changed.notify_all();
    }

    fn stop(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }
}

impl MixFile {
    /// A new file of `bytes` bytes, every block of it written.
    pub fn create(path: &Path, bytes: u64) -> io::Result<Self> {
        Ok(Self { file: create_written(path, bytes)?, bytes })
    }

    /// Goes on for `span`. Groups and reads a second. Errors: those of the drive.
    pub fn run(&self, mix: Mix, span: Duration) -> io::Result<(f64, f64)> {
        let shared = Shared { progress: Mutex::default(), changed: Condvar::new(), mix };
        let begin = Instant::now();
        let ended: io::Result<()> = std::thread::scope(|scope| {
            let writers = (0..mix.groups).map(|_| scope.spawn(|| self.write(&shared)));
            let reads = if mix.reads_per_group > 0.0 { mix.reads } else { 0 };
            let readers = (0..reads).map(|_| scope.spawn(|| self.read(&shared)));
            let threads: Vec<_> = writers.chain(readers).collect();
            std::thread::sleep(span);
            shared.stop();
            let panicked = |_| Err(io::Error::other("a thread panicked"));
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(panicked))
        });
        ended?;
        let (progress, seconds) = (shared.lock(), begin.elapsed().as_secs_f64());
        Ok((progress.done[GROUP] as f64 / seconds, progress.done[READ] as f64 / seconds))
    }

    fn write(&self, shared: &Shared) -> io::Result<()> {
        // As the system's I/O threads do.
        run_at_once();
        let len = shared.mix.group_bytes;
        let parts = (shared.mix.source_bytes / len).max(1);
        let mut source = Aligned::zeroed(parts * len);
        // Zeros are no data to some drives.
        source.as_mut_slice().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 31 / 8) as u8);
        let mut part = 0;
        while let Some(number) = shared.begin(GROUP) {
            let group = &source.as_mut_slice()[part * len..(part + 1) * len];
            part = (part + 1) % parts;
            let written = write_durably(&self.file, group, self.place(number, len));
            if written.is_err() {
                shared.stop();
            }
            written?;
            shared.end(GROUP);
        }
        Ok(())
    }

    fn read(&self, shared: &Shared) -> io::Result<()> {
        run_at_once();
        let len = shared.mix.read_bytes;
        let mut buffer = Aligned::zeroed(len);
        while let Some(number) = shared.begin(READ) {
            let read = self.file.read_exact_at(&mut buffer.as_mut_slice()[..len], self.place(number, len));
            if read.is_err() {
                shared.stop();
            }
            read?;
            shared.end(READ);
        }
        Ok(())
    }

    fn place(&self, number: u64, len: usize) -> u64 {
        number % (self.bytes / len as u64) * len as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_groups_nor_reads_run_ahead() {
        // A writer that left the reads behind would be faster than any chain that is cleaned.
        let folder = tempfile::tempdir().expect("a folder");
        let file = MixFile::create(&folder.path().join("mix"), 4 << 20).expect("room");
        let mix = Mix {
            group_bytes: 64 << 10,
            groups: 2,
            read_bytes: 4096,
            reads: 4,
            reads_per_group: 3.0,
            ..Mix::default()
        };
        let (groups, reads) = file.run(mix, Duration::from_millis(200)).expect("written");
        let seconds = 0.2;
        assert!(groups > 0.0, "something was written");
        let slack = (2.0 * 2.0 * 3.0 + 4.0 * 2.0) / seconds;
        assert!((reads - 3.0 * groups).abs() <= slack, "{reads} reads for {groups} groups a second");
    }
}
