//! The chain's side: 4 KB blocks on a real drive, overwritten again and again, while the log is cleaned.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_chain::{
    AppendError, Chain, ChainId, ChainOptions, Drives, Identity, Label, Owner, Place, Placed, RunKind, Ticket,
};
use ithaca_env::drive::{OpenDrive, PageBuf};
use ithaca_env::{Env, Time};

use super::counted::{Counted, Counts};
use super::{Case, FILE_BYTES, Pattern};
use crate::blocks::{BLOCK, Blocks, Map};
use crate::measure::process_cpu_nanos;

/// Blocks under way.
pub const IN_FLIGHT: usize = 1024;
/// Groups under way, of the chain and of the bare writer: enough that the drive has one to write while the next is formed.
pub const FLIGHTS: usize = 4;
/// What is written, over and over: more than a processor's caches hold.
pub const DATA_BYTES: usize = 32 << 20;
/// Segments besides the reserve that a chain under full load keeps free: it is cleaned without rests before it has fewer.
const KEPT_FREE: u64 = 3;
/// An append that found no room is tried again when more is durable, or after this.
const RETRY: Duration = Duration::from_micros(500);
/// Before a slice the log runs until as few segments are free as in the long run, but no longer than this.
const WARM_MAX: Duration = Duration::from_millis(1500);
/// Blocks by which the generator's own cost is measured.
const GENERATED: u64 = 200_000;

/// What one slice gave.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slice {
    /// How long it took, seconds.
    pub seconds: f64,
    /// Blocks that the application wrote, durably.
    pub blocks: u64,
    /// Bytes that the cleaner moved.
    pub moved_bytes: u64,
    /// Segments that it emptied.
    pub segments: u64,
    /// Groups.
    pub groups: u64,
    /// Their payload.
    pub payload_bytes: u64,
    /// What the drive was asked for.
    pub counts: Counts,
    /// Processor time of the process, microseconds.
    pub cpu_us: f64,
}

/// A chain under load. Idle unless a slice is under way.
pub struct ChainSide {
    env: Env,
    blocks: Blocks,
    counts: Rc<RefCell<Counts>>,
    pattern: Pattern,
    under_way: RefCell<VecDeque<Ticket>>,
    random: Cell<u64>,
}

impl ChainSide {
    /// A new chain in a file at `path`, its blocks written, and overwritten until it is cleaned as it will be in the long run.
    pub async fn start(env: &Env, path: &Path, case: &Case) -> io::Result<Self> {
        // What a run left that was interrupted.
        if path.exists() {
            std::fs::remove_file(path)?;
        }
        let open = OpenDrive { path: path.to_path_buf(), create_bytes: Some(FILE_BYTES), read_only: false };
        let drive = env.open_drive(open).await.map_err(io::Error::other)?;
        let (drive, counts) = Counted::over(drive, env);
        let mut options = ChainOptions { capacity_bytes: FILE_BYTES, ..ChainOptions::default() };
        // Every segment is written once before the log begins, as those of a log that has gone round.
        options.segments_ready = (FILE_BYTES / options.segment_bytes) as usize;
        options.flights = FLIGHTS;
        // Between two slices it soon comes to rest.
        options.clean_stop_free_percent = options.clean_start_free_percent;
        let kept_segments = options.reserve_segments as u64 + KEPT_FREE;
        let identity = Identity {
            id: ChainId([7; 16]),
            label: Label::new("bench").ok_or_else(|| io::Error::other("a label that is too long"))?,
        };
        let map = Rc::new(Map::of_up_to(FILE_BYTES / BLOCK));
        let owner = Rc::clone(&map) as Rc<dyn Owner>;
        let drives = Drives::from(vec![vec![drive]]);
        let chain = Chain::create_owned(env, drives, identity, options, owner).await;
        let blocks = Blocks::new(chain.map_err(io::Error::other)?, map, data());
        let side = Self {
            env: env.clone(),
            blocks,
            counts,
            pattern: case.pattern,
            under_way: RefCell::default(),
            random: Cell::new(1),
        };
        let stats = side.blocks.chain.stats();
        let filled = stats.segments_ready - kept_segments;
        let count = filled * stats.segment_bytes * case.used_percent / 100 / BLOCK;
        side.blocks.fill(|next| next < count).await;
        let overwrites = FILE_BYTES / BLOCK;
        side.run(|written, _| written < overwrites).await?;
        side.rest().await?;
        Ok(side)
    }

    /// Works for `span` after a warm-up, and comes to rest.
    pub async fn slice(&self, span: Duration) -> io::Result<Slice> {
        let warm_until = self.env.now() + WARM_MAX;
        let most_free = (self.blocks.chain.stats().segments_ready).min(5);
        self.run(|_, now| now < warm_until && self.blocks.chain.stats().segments_ready >= most_free).await?;
        let (begin, before, counts, cpu) =
            (self.env.now(), self.blocks.chain.stats().counters, *self.counts.borrow(), process_cpu_nanos());
        let until = begin + span;
        let blocks = self.run(|_, now| now < until).await?;
        let after = self.blocks.chain.stats().counters;
        let slice = Slice {
            seconds: self.env.now().since(begin).as_secs_f64(),
            blocks,
            moved_bytes: after.moved_bytes - before.moved_bytes,
            segments: after.segments_cleaned - before.segments_cleaned,
            groups: after.groups - before.groups,
            payload_bytes: after.data_bytes - before.data_bytes,
            counts: self.counts.borrow().since(&counts),
            cpu_us: (process_cpu_nanos() - cpu) as f64 / 1000.0,
        };
        self.rest().await?;
        Ok(slice)
    }

    /// Overwrites blocks as long as `goes_on` says, given how many became durable and the time. Returns how many did.
    async fn run(&self, goes_on: impl Fn(u64, Time) -> bool) -> io::Result<u64> {
        let (chain, mut durable) = (&self.blocks.chain, self.blocks.chain.durable());
        let mut written = 0;
        while goes_on(written, self.env.now()) {
            self.append_more()?;
            // Room may come without a ticket: then it is tried again.
            if let Ok(now) = self.env.timeout(RETRY, chain.changed(durable)).await {
                durable = now.map_err(io::Error::other)?;
            }
            written += self.take_durable(durable);
        }
        Ok(written)
    }

    /// Brings as many blocks under way as may be, and as the log has room for.
    fn append_more(&self) -> io::Result<()> {
        let mut under_way = self.under_way.borrow_mut();
        while under_way.len() < IN_FLIGHT {
            match self.blocks.append([self.next_block()], 1) {
                Ok(ticket) => under_way.push_back(ticket),
                Err(AppendError::Overloaded { .. }) => return Ok(()),
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(())
    }

    fn take_durable(&self, durable: Ticket) -> u64 {
        let mut under_way = self.under_way.borrow_mut();
        let count = under_way.iter().take_while(|ticket| **ticket <= durable).count();
        under_way.drain(..count);
        count as u64
    }

    fn next_block(&self) -> u64 {
        let mut random = self.random.get();
        let count = self.blocks.count();
        if self.pattern == Pattern::InOrder {
            self.random.set(random + 1);
            return random % count;
        }
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        self.random.set(random);
        random % count
    }

    /// Waits until nothing is under way, not even a cleaning.
    async fn rest(&self) -> io::Result<()> {
        let chain = &self.blocks.chain;
        let last = self.under_way.borrow().back().copied();
        if let Some(last) = last {
            chain.wait(last).await.map_err(io::Error::other)?;
        }
        self.under_way.borrow_mut().clear();
        loop {
            let before = *self.counts.borrow();
            self.env.sleep(Duration::from_millis(20)).await;
            let counts = self.counts.borrow().since(&before);
            if counts.reads + counts.writes == 0 && !chain.stats().is_cleaning {
                return Ok(());
            }
        }
    }

    /// What the load itself costs for each block: making the batch, and the owner's map. Microseconds.
    pub fn generator_us(&self) -> f64 {
        let map = Map::of_up_to(self.blocks.count());
        let begin = process_cpu_nanos();
        for version in 1..=GENERATED {
            let block = self.next_block();
            drop(self.blocks.batch([block], 1));
            let place = Place { segment: 0, lap: version, offset: 0, len: BLOCK as u32, checksum: 0 };
            map.placed(Placed { key: block, version, kind: RunKind::Data, place });
        }
        (process_cpu_nanos() - begin) as f64 / 1000.0 / GENERATED as f64
    }
}

/// Bytes of no pattern that a drive could know.
fn data() -> Bytes {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    // On a block boundary, as an owner of blocks has them who reads them from a drive.
    let mut data = PageBuf::with_capacity(DATA_BYTES);
    for _ in 0..DATA_BYTES / 8 {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        data.extend(&(state ^ state >> 29).to_le_bytes());
    }
    data.freeze()
}
