//! Group commit: a page-aligned buffer that frames are copied into, and two I/O threads that write such groups durably.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};

/// Alignment of drive accesses.
pub const BLOCK_BYTES: usize = 4096;
/// Segments are written one after the other; a group lies within one.
pub const SEGMENT_BYTES: u64 = 64 << 20;
/// Segments of a journal, cycled.
pub const SEGMENTS: u64 = 8;
/// A group that is this large goes before more is put into it.
pub const GROUP_BYTES: usize = 1 << 20;
/// Groups on their way to the drive at once.
pub const FLIGHTS: usize = 2;
const GROUP_MAGIC: u64 = u64::from_le_bytes(*b"baregrp1");
const GROUP_HEADER_BYTES: usize = 32;

/// Bytes on a block boundary in memory.
pub struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

impl Aligned {
    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        let bytes = vec![0; len + BLOCK_BYTES];
        let start = bytes.as_ptr().align_offset(BLOCK_BYTES);
        Self { bytes, start }
    }

    /// All of them.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }
}

/// Whom to answer when a group is durable.
pub struct Waiting {
    /// Which connection.
    pub connection: u64,
    /// Its request.
    pub request_id: u64,
    /// First position of its entries.
    pub first: u64,
    /// How many.
    pub count: u64,
}

/// Frames that are written together.
pub struct Group {
    buffer: Aligned,
    capacity: usize,
    len: usize,
    seq: u64,
    /// Whom to answer.
    pub waiting: Vec<Waiting>,
}

impl Group {
    fn with_capacity(capacity: usize) -> Self {
        Self {
            buffer: Aligned::zeroed(capacity),
            capacity,
            len: GROUP_HEADER_BYTES,
            seq: 0,
            waiting: Vec::new(),
        }
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn has_room(&self, len: usize) -> bool {
        self.len + len <= self.capacity && (self.is_empty() || self.len < GROUP_BYTES)
    }

    fn push(&mut self, frame: &[u8], waiting: Waiting) {
        let end = self.len + frame.len();
        self.buffer.as_mut_slice()[self.len..end].copy_from_slice(frame);
        self.len = end;
        self.waiting.push(waiting);
    }

    /// Fills in the header (magic, sequence, length, frames, crc32c of the header; the frames bring their own checksums),
    /// pads to a block, and gives the bytes to write.
    fn finish(&mut self) -> &[u8] {
        let padded = self.len.next_multiple_of(BLOCK_BYTES);
        let (seq, len, frames) = (self.seq, self.len, self.waiting.len());
        let bytes = self.buffer.as_mut_slice();
        bytes[..8].copy_from_slice(&GROUP_MAGIC.to_le_bytes());
        bytes[8..16].copy_from_slice(&seq.to_le_bytes());
        bytes[16..24].copy_from_slice(&(len as u64).to_le_bytes());
        bytes[24..28].copy_from_slice(&(frames as u32).to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[..28]);
        bytes[28..32].copy_from_slice(&checksum.to_le_bytes());
        bytes[len..padded].fill(0);
        &bytes[..padded]
    }
}

/// A group that the drive has, or an error.
struct Flushed {
    group: Group,
    nanos: u64,
    result: io::Result<()>,
}

#[derive(Default)]
struct Shared {
    todo: Mutex<VecDeque<(Group, u64)>>,
    work: Condvar,
    done: Mutex<Vec<Flushed>>,
}

/// Forms groups, sends them to the drive, and gives them back in order when they are durable.
pub struct Journal {
    shared: Arc<Shared>,
    wakes: Arc<OwnedFd>,
    forming: Group,
    queued: VecDeque<Group>,
    spare: Vec<Group>,
    landed: Vec<(Group, u64)>,
    in_flight: usize,
    next_seq: u64,
    next_acknowledged: u64,
    next_offset: u64,
    segments: u64,
}

impl Journal {
    /// A journal in the file at `path`, made anew and written once with zeros, so that a later flush changes no metadata.
    pub fn create(path: &Path, segments: u64) -> io::Result<Self> {
        let file = Arc::new(create_written(path, segments * SEGMENT_BYTES)?);
        let shared = Arc::new(Shared::default());
        let wakes = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        for _ in 0..FLIGHTS {
            let (shared, wakes, file) = (Arc::clone(&shared), Arc::clone(&wakes), Arc::clone(&file));
            thread::spawn(move || write_groups(&shared, &wakes, &file));
        }
        Ok(Self {
            shared,
            wakes,
            forming: Group::with_capacity(2 * GROUP_BYTES),
            queued: VecDeque::new(),
            spare: Vec::new(),
            landed: Vec::new(),
            in_flight: 0,
            next_seq: 0,
            next_acknowledged: 0,
            next_offset: 0,
            segments,
        })
    }

    /// Readable when groups have landed.
    pub fn wakes(&self) -> &OwnedFd {
        &self.wakes
    }

    /// Puts a frame into the group that forms.
    pub fn push(&mut self, frame: &[u8], waiting: Waiting) {
        if !self.forming.has_room(frame.len()) {
            let full = std::mem::replace(&mut self.forming, self.spare.pop().unwrap_or_else(spare_group));
            self.queued.push_back(full);
        }
        if !self.forming.has_room(frame.len()) {
            self.forming =
                Group::with_capacity((frame.len() + GROUP_HEADER_BYTES).next_multiple_of(BLOCK_BYTES));
        }
        self.forming.push(frame, waiting);
    }

    /// Sends what is there while a flight slot is free.
    pub fn start_flights(&mut self) {
        while self.in_flight < FLIGHTS {
            let mut group = match self.queued.pop_front() {
                Some(group) => group,
                None if self.forming.is_empty() => return,
                None => std::mem::replace(&mut self.forming, self.spare.pop().unwrap_or_else(spare_group)),
            };
            group.seq = self.next_seq;
            self.next_seq += 1;
            let len = group.len.next_multiple_of(BLOCK_BYTES) as u64;
            if self.next_offset % SEGMENT_BYTES + len > SEGMENT_BYTES {
                self.next_offset = self.next_offset.next_multiple_of(SEGMENT_BYTES);
            }
            let offset = self.next_offset % (self.segments * SEGMENT_BYTES);
            self.next_offset += len;
            self.in_flight += 1;
            lock(&self.shared.todo).push_back((group, offset));
            self.shared.work.notify_one();
        }
    }

    /// Calls `each` with every group that has become durable, in order, and with how long its flush took in nanoseconds.
    /// An error of the drive ends it: a failed flush is never tried again.
    pub fn acknowledge(&mut self, mut each: impl FnMut(&Group, u64)) -> io::Result<()> {
        let mut count = [0; 8];
        match rustix::io::read(&*self.wakes, &mut count) {
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
        for flushed in lock(&self.shared.done).drain(..) {
            flushed.result?;
            self.in_flight -= 1;
            self.landed.push((flushed.group, flushed.nanos));
        }
        while let Some(next) = self.landed.iter().position(|(group, _)| group.seq == self.next_acknowledged) {
            let (mut group, nanos) = self.landed.swap_remove(next);
            each(&group, nanos);
            self.next_acknowledged += 1;
            group.waiting.clear();
            group.len = GROUP_HEADER_BYTES;
            self.spare.push(group);
        }
        Ok(())
    }
}

fn spare_group() -> Group {
    Group::with_capacity(2 * GROUP_BYTES)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write_groups(shared: &Shared, wakes: &OwnedFd, file: &File) {
    // As the system's I/O threads do.
    ithaca_env::real::run_at_once();
    loop {
        let (mut group, offset) = {
            let mut todo = lock(&shared.todo);
            loop {
                if let Some(next) = todo.pop_front() {
                    break next;
                }
                todo = shared.work.wait(todo).unwrap_or_else(PoisonError::into_inner);
            }
        };
        let begin = Instant::now();
        let result = write_durably(file, group.finish(), offset);
        let nanos = begin.elapsed().as_nanos() as u64;
        lock(&shared.done).push(Flushed { group, nanos, result });
        if rustix::io::write(wakes, &1u64.to_ne_bytes()).is_err() {
            return;
        }
    }
}

/// Writes all of `bytes`; on return they are on stable storage.
pub fn write_durably(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let mut written = 0;
    while written < bytes.len() {
        let rest = [IoSlice::new(&bytes[written..])];
        match pwritev2(file, &rest, offset + written as u64, ReadWriteFlags::DSYNC) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(more) => written += more,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// A new file of `size` bytes, opened with O_DIRECT, every block of it written.
pub fn create_written(path: &Path, size: u64) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::DIRECT | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))?);
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, size)?;
    let mut zeros = Aligned::zeroed(4 << 20);
    let mut offset = 0;
    while offset < size {
        let len = (size - offset).min(4 << 20) as usize;
        write_durably(&file, &zeros.as_mut_slice()[..len], offset)?;
        offset += len as u64;
    }
    file.sync_all()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bare::frame::{self, Kind};

    #[test]
    fn groups_are_acknowledged_in_order_and_lie_whole_on_the_drive() {
        // A baseline that acknowledged what it has not written would be fast for nothing.
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let mut journal = Journal::create(&path, 1).expect("a journal");
        let mut sent = Vec::new();
        let mut acknowledged = Vec::new();
        for request_id in 0..50 {
            let mut frame = Vec::new();
            frame::push_words(&mut frame, Kind::Append, request_id, &[request_id; 100]);
            journal.push(&frame, Waiting { connection: 0, request_id, first: request_id, count: 1 });
            sent.push(frame);
            journal.start_flights();
            journal.acknowledge(|group, _| acknowledged.extend(ids(group))).expect("written");
        }
        while acknowledged.len() < sent.len() {
            let wakes = rustix::event::PollFd::new(journal.wakes(), rustix::event::PollFlags::IN);
            rustix::event::poll(&mut [wakes], None).expect("polled");
            journal.acknowledge(|group, _| acknowledged.extend(ids(group))).expect("written");
            journal.start_flights();
        }
        assert_eq!(acknowledged, (0..50).collect::<Vec<u64>>());
        let written = std::fs::read(&path).expect("read back");
        let mut found = Vec::new();
        let mut at = 0;
        while frame::u64_at(&written, at) == GROUP_MAGIC {
            let end = at + frame::u64_at(&written, at + 16) as usize;
            at += GROUP_HEADER_BYTES;
            while at < end {
                let frame = frame::parse(&written[at..end]).expect("whole").expect("whole");
                found.push(frame.bytes.to_vec());
                at += frame.bytes.len();
            }
            at = end.next_multiple_of(BLOCK_BYTES);
        }
        assert_eq!(found, sent);
    }

    fn ids(group: &Group) -> Vec<u64> {
        group.waiting.iter().map(|waiting| waiting.request_id).collect()
    }
}
