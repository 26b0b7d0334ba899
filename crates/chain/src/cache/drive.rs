//! A cache drive: lines of blocks that chains wrote or read of late, written in the background.
//!
//! * Nothing depends on it. What it holds was durable before, and stays where it was; a line that is not what it should be
//!   is a miss, and a drive that fails or does not answer is dropped, with one warning, until the next start.
//! * Several chains may use one drive: a block's name begins with its chain.
//! * Nobody waits for its writes. What comes faster than it can write is not cached.
//! * Its content does not survive a restart: what lies where is known in memory alone.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_env::drive::{Drive, DriveError, Durability, PageBuf};
use ithaca_env::limits::BLOCK_BYTES;
use ithaca_env::sync::Notify;
use thiserror::Error;

use super::{BlockKey, LineWrite, Lines, Offered};
use crate::foreign::{is_blank, is_ours_behind_zone, read_begin};
use crate::format::{CacheHeader, CachedBlock, LineHead, line_start};
use crate::limits::{
    CACHE_BATCH_LINES, CACHE_BATCHES_MAX, CACHE_LINE_BYTES, CACHE_LINES_MAX, CACHE_READ_ERRORS_MAX,
    CACHE_ZONE_BYTES,
};
use crate::load::{Load, Queue, counted};
use crate::options::ChainId;

/// Fewest lines of a cache drive.
const LINES_MIN: u64 = 4;

/// Why a drive cannot be used as a cache. Nothing was written to it, unless it failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CacheError {
    /// The drive failed.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// Something else is on the drive; it is left alone.
    #[error("{drive} is neither blank nor a cache: something else begins on it")]
    NotACache {
        /// The drive.
        drive: String,
    },
    /// The drive has no room for the least number of lines.
    #[error("{drive} has {found_bytes} bytes, a cache needs {needed_bytes}")]
    TooSmall {
        /// The drive.
        drive: String,
        /// Its size.
        found_bytes: u64,
        /// What a cache needs.
        needed_bytes: u64,
    },
}

/// What a cache drive did since it was opened, for all its chains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Lines it has room for.
    pub lines: u64,
    /// Lines that hold something.
    pub held_lines: u64,
    /// Bytes of memory that wait to be written.
    pub waiting_bytes: u64,
    /// Lines written.
    pub lines_written: u64,
    /// Requests that wrote them.
    pub writes: u64,
    /// Blocks that were not taken because too much waited.
    pub blocks_refused: u64,
    /// Places that were not what they should be, or could not be read.
    pub bad_lines: u64,
    /// It failed and is not used any more.
    pub is_dropped: bool,
}

/// A drive that caches blocks of chains. Cheap to clone; the last clone ends its background task.
#[derive(Clone)]
pub struct CacheDrive {
    pub(super) inner: Rc<Inner>,
}

pub(super) struct Inner {
    pub(super) env: Env,
    pub(super) drive: Drive,
    load: Load,
    pub(super) session: u64,
    pub(super) lines: RefCell<Lines<Bytes>>,
    pub(super) stats: Cell<CacheStats>,
    batch_lines: usize,
    chains: RefCell<Vec<ChainId>>,
    read_errors: Cell<u32>,
    /// Rings when a line may be full, and when the drive is given up.
    bell: Rc<Notify>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The background task waits on it, and ends when the drive is gone.
        self.bell.ring();
    }
}

impl CacheDrive {
    /// Uses a blank drive, or one that was a cache, as a cache of about `size_bytes`; a file grows to that, a larger drive
    /// is used up to that. Whatever was cached there is forgotten.
    ///
    /// Errors: see [`CacheError`]. Dropping the future may leave the first block written.
    pub async fn open(env: &Env, drive: Drive, size_bytes: u64) -> Result<Self, CacheError> {
        let line = CACHE_LINE_BYTES as u64;
        let asked = size_bytes.saturating_sub(CACHE_ZONE_BYTES) / line;
        let asked_bytes = CACHE_ZONE_BYTES + asked.clamp(LINES_MIN, CACHE_LINES_MAX) * line;
        refuse_others(&drive).await?;
        if drive.size_bytes() < asked_bytes {
            // A device that cannot grow is used as it is.
            match drive.grow(asked_bytes).await {
                Err(error) if drive.size_bytes() < CACHE_ZONE_BYTES + LINES_MIN * line => {
                    return Err(error.into());
                }
                _ => {}
            }
        }
        let (found_bytes, needed_bytes) = (drive.size_bytes(), CACHE_ZONE_BYTES + LINES_MIN * line);
        if found_bytes < needed_bytes {
            return Err(CacheError::TooSmall { drive: drive.name(), found_bytes, needed_bytes });
        }
        let lines = (found_bytes.min(asked_bytes) - CACHE_ZONE_BYTES) / line;
        let session = env.random_u64();
        let (drive, load) = counted(drive);
        let header = CacheHeader { session, lines: lines as u32 };
        drive.write(0, PageBuf::paged(&header.encode()), Durability::Durable).await?;
        let batch_lines = CACHE_BATCH_LINES.min(lines as usize / LINES_MIN as usize);
        let inner = Inner {
            env: env.clone(),
            drive,
            load,
            session,
            lines: RefCell::new(Lines::new(lines as u32, batch_lines * CACHE_BATCHES_MAX)),
            stats: Cell::new(CacheStats { lines, ..CacheStats::default() }),
            batch_lines,
            chains: RefCell::default(),
            read_errors: Cell::new(0),
            bell: Rc::default(),
        };
        let cache = Self { inner: Rc::new(inner) };
        cache.spawn_writer();
        Ok(cache)
    }

    /// The state.
    pub fn stats(&self) -> CacheStats {
        let lines = self.inner.lines.borrow();
        CacheStats {
            held_lines: lines.held_lines() as u64,
            waiting_bytes: (lines.waiting_blocks() * BLOCK_BYTES) as u64,
            ..self.inner.stats.get()
        }
    }

    /// The drive's path or name.
    pub fn name(&self) -> String {
        self.inner.drive.name()
    }

    /// What the drive has to do, if a block is cached.
    pub(crate) fn queue_for(&self, key: BlockKey) -> Option<Queue> {
        self.inner.lines.borrow().has(key).then(|| self.inner.load.queue())
    }

    /// The number under which blocks of this chain are kept.
    pub(crate) fn number(&self, chain: ChainId) -> u32 {
        let mut chains = self.inner.chains.borrow_mut();
        let known = chains.iter().position(|other| *other == chain);
        known.unwrap_or_else(|| {
            chains.push(chain);
            chains.len() - 1
        }) as u32
    }

    /// Takes a block to be cached, copying it, unless it is there or too much waits.
    pub(crate) fn offer(&self, key: BlockKey, block: &[u8]) {
        assert_eq!(block.len(), BLOCK_BYTES, "a whole block");
        let inner = &self.inner;
        if inner.stats.get().is_dropped {
            return;
        }
        match inner.lines.borrow_mut().offer(key, || Bytes::copy_from_slice(block)) {
            Offered::Taken => inner.bell.ring(),
            Offered::Known => {}
            Offered::Refused => inner.count(|stats| stats.blocks_refused += 1),
        }
    }

    fn spawn_writer(&self) {
        let (bell, weak) = (Rc::clone(&self.inner.bell), Rc::downgrade(&self.inner));
        self.inner.env.spawn(async move {
            loop {
                let ticket = bell.ticket();
                let Some(inner) = weak.upgrade() else { return };
                inner.write_batches().await;
                if inner.stats.get().is_dropped {
                    return;
                }
                drop(inner);
                bell.after(ticket).await;
            }
        });
    }
}

/// Refuses a drive on which anything but a cache begins.
async fn refuse_others(drive: &Drive) -> Result<(), CacheError> {
    let zone = read_begin(drive, CACHE_ZONE_BYTES).await?;
    let is_own = CacheHeader::decode(&zone[..BLOCK_BYTES]).is_ok();
    if is_own || is_blank(&zone) && is_ours_behind_zone(drive).await? {
        return Ok(());
    }
    Err(CacheError::NotACache { drive: drive.name() })
}

impl Inner {
    pub(super) fn count(&self, count: impl FnOnce(&mut CacheStats)) {
        let mut stats = self.stats.get();
        count(&mut stats);
        self.stats.set(stats);
    }

    /// The drive is used no more, for this reason.
    pub(super) fn drop_drive(&self, why: &str) {
        if self.stats.get().is_dropped {
            return;
        }
        tracing::warn!(drive = %self.drive.name(), why, "the cache drive is used no more; reads go to the chain's drives");
        self.count(|stats| stats.is_dropped = true);
        self.lines.replace(Lines::new(0, 0));
        self.bell.ring();
    }

    /// A line could not be read, or is not what it should be.
    pub(super) fn forget(&self, key: BlockKey, line: u32, error: Option<&DriveError>) {
        // A line that was written over while it was read is not harmed.
        if self.lines.borrow_mut().forget(key, line) {
            self.count(|stats| stats.bad_lines += 1);
        }
        if let Some(error) = error {
            self.read_errors.set(self.read_errors.get() + 1);
            if self.read_errors.get() > CACHE_READ_ERRORS_MAX {
                self.drop_drive(&error.to_string());
            }
        }
    }

    async fn write_batches(&self) {
        loop {
            let batch = self.lines.borrow_mut().take_batch(self.batch_lines);
            if batch.is_empty() {
                return;
            }
            let lines: Vec<u32> = batch.iter().map(|write| write.line).collect();
            let written = self.write(batch).await;
            if self.stats.get().is_dropped {
                return;
            }
            match written {
                Ok(()) => lines.iter().for_each(|&line| self.lines.borrow_mut().written(line, true)),
                // What it has of them is not known, and a write is not tried again.
                Err(error) => return self.drop_drive(&error.to_string()),
            }
        }
    }

    /// Writes lines in the order of their places; those that lie next to each other by one request.
    async fn write(&self, batch: Vec<LineWrite<Bytes>>) -> Result<(), DriveError> {
        let count = batch.len() as u64;
        let mut stretches: Vec<(u32, u32, PageBuf)> = Vec::new();
        for write in batch {
            match stretches.last_mut() {
                Some((_, end, bytes)) if *end == write.line => {
                    self.encode(&write, bytes);
                    *end += 1;
                }
                _ => {
                    let mut bytes = PageBuf::with_capacity(CACHE_LINE_BYTES);
                    self.encode(&write, &mut bytes);
                    stretches.push((write.line, write.line + 1, bytes));
                }
            }
            // A line at a time: the chain's own work comes first.
            self.env.yield_now().await;
        }
        self.count(|stats| {
            stats.lines_written += count;
            stats.writes += stretches.len() as u64;
        });
        let writes: Vec<_> = stretches
            .into_iter()
            .map(|(line, _, bytes)| self.drive.write(line_start(line), bytes.freeze(), Durability::Volatile))
            .collect();
        for write in writes {
            write.await?;
        }
        Ok(())
    }

    fn encode(&self, write: &LineWrite<Bytes>, out: &mut PageBuf) {
        let chains = self.chains.borrow();
        let blocks = write.blocks.iter().map(|(key, block)| CachedBlock {
            chain: chains[key.chain as usize],
            lap: key.lap,
            segment: key.segment,
            offset: key.block * BLOCK_BYTES as u32,
            checksum: crc32c::crc32c(block),
        });
        let head = LineHead { session: self.session, line: write.line, blocks: blocks.collect() };
        out.extend(&head.encode());
        write.blocks.iter().for_each(|(_, block)| out.extend(block));
    }

    /// The identity of a block as a line's head has it, but for the checksum.
    pub(super) fn is_named(&self, found: &CachedBlock, key: BlockKey) -> bool {
        found.chain == self.chains.borrow()[key.chain as usize]
            && (found.lap, found.segment) == (key.lap, key.segment)
            && found.offset == key.block * BLOCK_BYTES as u32
    }
}
