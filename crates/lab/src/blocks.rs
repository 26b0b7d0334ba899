//! Blocks over a chain: an address space of 4 KiB blocks, written anywhere, appended to a log. Of a chain on simulated disks
//! or on a real drive: it is told of neither.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_chain::{
    AppendError, Batch, Chain, Owner, Place, PlaceError, Placed, Run, RunKind, Source, Table, Ticket,
};
use ithaca_env::memory::in_large_pages;

/// Bytes of a block.
pub const BLOCK: u64 = 4 << 10;
/// Blocks of one append while the log is filled.
const FILL_BLOCKS: u64 = 256;
/// Appends under way while the log is filled.
const FILL_DEPTH: usize = 4;
/// Blocks that are remembered as written not long ago.
const RECENT: usize = 4096;

/// Where the newest version of each block lies, in memory: the owner of the chain.
#[derive(Default)]
pub struct Map {
    newest: RefCell<Vec<Option<(u64, Place)>>>,
}

impl Map {
    /// Of up to so many blocks, none of which is written; more if need be.
    pub fn of_up_to(blocks: u64) -> Self {
        Self { newest: RefCell::new(in_large_pages(Vec::with_capacity(blocks as usize))) }
    }

    /// Puts a record in the place of the one that there is, if `may` it. Returns that one's place.
    fn replace(
        &self,
        key: u64,
        with: (u64, Place),
        may: impl FnOnce(&(u64, Place)) -> bool,
    ) -> Result<Option<Place>, ()> {
        let mut newest = self.newest.borrow_mut();
        let at = key as usize;
        if newest.len() <= at {
            newest.resize(at + 1, None);
        }
        match newest[at] {
            Some(old) if !may(&old) => Err(()),
            _ => Ok(newest[at].replace(with).map(|(_, place)| place)),
        }
    }
}

impl Owner for Map {
    fn placed(&self, record: Placed) -> Option<Place> {
        let is_newer = |old: &(u64, Place)| record.version > old.0;
        self.replace(record.key, (record.version, record.place), is_newer).unwrap_or(Some(record.place))
    }

    fn is_live(&self, record: Placed) -> bool {
        let newest = self.newest.borrow();
        newest.get(record.key as usize).copied().flatten() == Some((record.version, record.place))
    }

    fn moved(&self, record: Placed, to: Place) -> bool {
        self.is_live(record) && self.replace(record.key, (record.version, to), |_| true).is_ok()
    }

    fn dropped(&self, _record: Placed) -> bool {
        false
    }
}

/// Blocks by their addresses.
#[derive(Clone)]
pub struct Blocks {
    /// The log.
    pub chain: Chain,
    inner: Rc<Inner>,
}

struct Inner {
    map: Rc<Map>,
    next_version: Cell<u64>,
    /// Blocks in the order in which they were written last.
    recent: RefCell<VecDeque<u64>>,
    /// What is written: of each write a part of it.
    data: Bytes,
    table: Table,
}

impl Blocks {
    /// Blocks on a chain of which `map` is the owner. `data` is what is written, whole blocks: a write takes as many of them as
    /// it has, beginning at one that its version says.
    pub fn new(chain: Chain, map: Rc<Map>, data: Bytes) -> Self {
        let table = Table::of_payloads(data.chunks(BLOCK as usize));
        let inner = Inner { map, next_version: Cell::new(1), recent: RefCell::default(), data, table };
        Self { chain, inner: Rc::new(inner) }
    }

    /// Blocks of the address space.
    pub fn count(&self) -> u64 {
        self.inner.map.newest.borrow().len() as u64
    }

    /// The block that was written `ago` writes before the last one, as far back as is remembered.
    pub fn recent(&self, ago: u64) -> Option<u64> {
        let recent = self.inner.recent.borrow();
        let last = recent.len().checked_sub(1)?;
        recent.get(last - last.min(ago as usize)).copied()
    }

    /// What an append of runs of `count` blocks, which begin at `blocks`, brings along; `count` is at most what `new` was given.
    pub fn batch(&self, blocks: impl IntoIterator<Item = u64>, count: u64) -> Batch {
        let inner = &self.inner;
        let version = inner.next_version.replace(inner.next_version.get() + 1);
        let from = version % (inner.table.count() as u64 - count + 1);
        let run = |first_key| Run {
            first_key,
            version,
            kind: RunKind::Data,
            meta: Bytes::new(),
            table: inner.table.slice(from as usize..(from + count) as usize),
            data: inner.data.slice((from * BLOCK) as usize..((from + count) * BLOCK) as usize),
        };
        Batch { runs: blocks.into_iter().map(run).collect(), ..Batch::default() }
    }

    /// Appends such a batch. Errors: the log is full, or has no room before more is cleaned.
    pub fn append(&self, blocks: impl IntoIterator<Item = u64>, count: u64) -> Result<Ticket, AppendError> {
        self.chain.append(self.batch(blocks, count))
    }

    async fn wait(&self, ticket: Ticket) {
        self.chain.wait(ticket).await.expect("a drive that no fault meets writes");
    }

    /// Writes `count` blocks from `block` on; done when they are on stable storage.
    pub async fn write(&self, block: u64, count: u64) {
        let ticket = self.append([block], count).expect("the log has room for the whole measurement");
        self.wait(ticket).await;
        let mut recent = self.inner.recent.borrow_mut();
        recent.push_back(block);
        if recent.len() > RECENT {
            recent.pop_front();
        }
    }

    /// Reads a block; nothing if it is trimmed.
    pub async fn read(&self, block: u64) {
        loop {
            let newest = self.inner.map.newest.borrow()[block as usize];
            let Some((_, place)) = newest else { return };
            match self.chain.read_at(place).await {
                Err(PlaceError::Moved { .. }) => {}
                read => {
                    let data = read.expect("a drive that no fault meets reads");
                    assert_eq!(data.len() as u64, BLOCK, "block {block} is there");
                    return;
                }
            }
        }
    }

    /// Where a block lies.
    pub fn place(&self, block: u64) -> Option<Place> {
        let newest = self.inner.map.newest.borrow();
        newest.get(block as usize).copied().flatten().map(|(_, place)| place)
    }

    /// Whether a read of a block would be answered by memory.
    pub fn is_in_memory(&self, block: u64) -> bool {
        let source = |place: Place| self.chain.source_of(place.segment, place.offset, place.len);
        self.place(block).and_then(source) == Some(Source::Memory)
    }

    /// Forgets a block: what lies in the log of it is garbage.
    pub fn trim(&self, block: u64) {
        self.inner.map.newest.borrow_mut()[block as usize] = None;
    }

    /// Writes blocks in the order of their addresses, which begin to be there, as long as `goes_on` says of how many there are.
    pub async fn fill(&self, goes_on: impl Fn(u64) -> bool) {
        let (mut next, mut under_way) = (0, VecDeque::new());
        while goes_on(next) {
            let ticket = self.append(next..next + FILL_BLOCKS, 1);
            under_way.push_back(ticket.expect("the log has room for all blocks"));
            next += FILL_BLOCKS;
            if under_way.len() == FILL_DEPTH
                && let Some(oldest) = under_way.pop_front()
            {
                self.wait(oldest).await;
            }
        }
        for ticket in under_way {
            self.wait(ticket).await;
        }
    }
}
