//! Transactions: who has read and written what, and who may commit. Pure: no I/O, no clock; the shell reads blocks, hands commits
//! over and says what is durable.
//!
//! ```text
//!   begin: snapshot = newest durable ─► reads and writes are noted ─► decide: compare with the commits since the snapshot
//!                                                                       ├─ conflict: it ends
//!                                                                       └─ its writes, merged with those of others ─► committed
//! ```
//!
//! What a transaction is compared with is a window of recent commits, at the grain of fragments; the index is not asked. The window
//! reaches back to the oldest live snapshot. When it becomes too large the transaction with that snapshot is ended, never one that
//! asks to commit because something was forgotten.

mod access;
mod fragments;
#[cfg(test)]
mod tests;
mod window;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bytes::Bytes;

use access::Touched;
pub(crate) use fragments::{Fragments, Grain};
pub(crate) use window::{Content, Window};

use crate::error::{CommitError, TxError};
use crate::limits::{TX_DEPTH_MAX, TX_READS_MAX, TX_WRITES_MAX, TXS_PER_CLIENT_MAX};
use crate::options::{Isolation, Version};
use crate::planted::{Planted, PlantedBug};

/// Names a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TxId(u64);

/// How a transaction is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Live,
    /// A nested one was aborted.
    Doomed,
    Preempted,
    Ended,
}

#[derive(Debug)]
struct Transaction {
    snapshot: u64,
    /// The highest version that was acknowledged when it began.
    acknowledged: u64,
    client: u64,
    isolation: Isolation,
    phase: Phase,
    /// Nested ones that have begun and not ended.
    depth: u32,
    blocks: BTreeMap<u64, Touched>,
    written: usize,
    /// A write of it was refused, of which whoever commits it may not know.
    is_incomplete: bool,
}

/// Bytes that a block takes of a transaction's memory, about, without its data.
const TOUCHED_BYTES: usize = 192;

impl Transaction {
    fn bytes(&self) -> usize {
        self.blocks.len() * TOUCHED_BYTES + self.written * crate::limits::VOLUME_BLOCK_BYTES
    }
}

/// What begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begin {
    /// The newest durable version: pinned by the shell until it is in [`Transactions::take_unpinned`].
    pub(crate) snapshot: u64,
    /// The highest version that was acknowledged.
    pub(crate) acknowledged: u64,
    /// Whose it is.
    pub(crate) client: u64,
    /// What it is held to.
    pub(crate) isolation: Isolation,
}

/// What a commit is to write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decided {
    /// Nothing: it has only read.
    Nothing,
    /// These blocks, in their order.
    Writes(Vec<(u64, Bytes)>),
}

/// Counters since the volume was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxCounters {
    /// Transactions that have begun, without nested ones.
    pub begun: u64,
    /// Those that committed, also those that have only read.
    pub committed: u64,
    /// Those that were refused because of a conflict.
    pub conflicts: u64,
    /// Those that were ended to make room.
    pub preempted: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Transactions {
    grain: Grain,
    live: BTreeMap<TxId, Transaction>,
    /// Those of them that have not ended, by their snapshots.
    going_on: BTreeSet<(u64, TxId)>,
    next_id: u64,
    pub(crate) window: Window,
    /// Bytes of all live ones.
    bytes: usize,
    bytes_max: usize,
    writes_max: usize,
    unpinned: Vec<u64>,
    pub(crate) counters: TxCounters,
    planted: Planted,
}

impl Transactions {
    /// None yet. Together they take so many bytes at the most; a commit has room for so many blocks.
    pub(crate) fn new(grain: Grain, bytes_max: usize, commit_blocks_max: usize, planted: Planted) -> Self {
        Self {
            grain,
            live: BTreeMap::new(),
            going_on: BTreeSet::new(),
            next_id: 1,
            window: Window::default(),
            bytes: 0,
            bytes_max,
            writes_max: commit_blocks_max.min(TX_WRITES_MAX),
            unpinned: Vec::new(),
            counters: TxCounters::default(),
            planted,
        }
    }

    /// Begins one. Errors: `TooMany`.
    pub(crate) fn begin(&mut self, begin: Begin) -> Result<TxId, TxError> {
        let Begin { snapshot, acknowledged, client, isolation } = begin;
        self.check_count(client)?;
        let id = TxId(self.next_id);
        self.next_id += 1;
        let blocks = BTreeMap::new();
        let tx = Transaction {
            snapshot,
            acknowledged,
            client,
            isolation,
            phase: Phase::Live,
            depth: 0,
            blocks,
            written: 0,
            is_incomplete: false,
        };
        self.live.insert(id, tx);
        self.going_on.insert((snapshot, id));
        self.counters.begun += 1;
        Ok(id)
    }

    /// It is somebody else's from now on. Errors: `TooMany`.
    pub(crate) fn hand_over(&mut self, id: TxId, client: u64) -> Result<(), TxError> {
        self.check_count(client)?;
        if let Some(tx) = self.live.get_mut(&id) {
            tx.client = client;
        }
        Ok(())
    }

    fn check_count(&self, client: u64) -> Result<(), TxError> {
        if self.live.values().filter(|tx| tx.client == client).count() >= TXS_PER_CLIENT_MAX {
            return Err(TxError::TooMany { max: TXS_PER_CLIENT_MAX });
        }
        Ok(())
    }

    fn get(&mut self, id: TxId) -> Result<&mut Transaction, TxError> {
        let Some(tx) = self.live.get_mut(&id) else { return Err(TxError::Ended) };
        match tx.phase {
            Phase::Live => Ok(tx),
            Phase::Doomed => Err(TxError::Doomed),
            Phase::Preempted => Err(TxError::Preempted),
            Phase::Ended => Err(TxError::Ended),
        }
    }

    /// Its snapshot, if it may go on. Errors: `Ended`, `Preempted`, `Doomed`.
    pub(crate) fn snapshot(&mut self, id: TxId) -> Result<u64, TxError> {
        self.get(id).map(|tx| tx.snapshot)
    }

    /// Changes what it knows of a block, and counts what that takes.
    fn touch<T>(
        &mut self,
        id: TxId,
        block: u64,
        change: impl FnOnce(&mut Touched) -> T,
    ) -> Result<T, TxError> {
        let tx = self.get(id)?;
        let before = tx.bytes();
        if !tx.blocks.contains_key(&block) && tx.blocks.len() >= TX_READS_MAX {
            return Err(TxError::TooManyReads { max: TX_READS_MAX });
        }
        let touched = tx.blocks.entry(block).or_default();
        let was_written = touched.is_written();
        let result = change(touched);
        tx.written += usize::from(touched.is_written() && !was_written);
        let after = tx.bytes();
        self.bytes = self.bytes + after - before;
        self.keep_within_bounds();
        Ok(result)
    }

    /// Notes a read of a whole block. Returns what the transaction itself has written; if nothing, the block is as in its snapshot.
    /// Errors: `Ended`, `Preempted`, `Doomed`, `TooManyReads`.
    pub(crate) fn read(&mut self, id: TxId, block: u64) -> Result<Option<Bytes>, TxError> {
        let forgets = self.planted.is(PlantedBug::OwnWritesNotRead);
        self.touch(id, block, |touched| {
            let own = touched.own().filter(|_| !forgets).cloned();
            touched.note_read();
            own
        })
    }

    /// The same of some bytes of a block; what is returned is the whole block.
    pub(crate) fn read_part(
        &mut self,
        id: TxId,
        block: u64,
        bytes: Range<usize>,
    ) -> Result<Option<Bytes>, TxError> {
        let (grain, forgets) = (self.grain, self.planted.is(PlantedBug::OwnWritesNotRead));
        self.touch(id, block, |touched| {
            let own = touched.own().filter(|_| !forgets).cloned();
            touched.note_read_part(grain, bytes);
            own
        })
    }

    /// Whether all of these blocks may be written. Errors: as of a write.
    pub(crate) fn check_writes(&mut self, id: TxId, blocks: Range<u64>) -> Result<(), TxError> {
        let max = self.writes_max;
        let tx = self.get(id)?;
        let (mut new, mut touched) = ((blocks.end - blocks.start) as usize, tx.blocks.len());
        touched += new;
        for (_, known) in tx.blocks.range(blocks) {
            touched -= 1;
            new -= usize::from(known.is_written());
        }
        if tx.written + new > max {
            return Err(TxError::TooManyWrites { max });
        }
        if touched > TX_READS_MAX {
            return Err(TxError::TooManyReads { max: TX_READS_MAX });
        }
        Ok(())
    }

    /// A write of it was refused: it cannot commit.
    pub(crate) fn note_refused_write(&mut self, id: TxId) {
        if let Some(tx) = self.live.get_mut(&id) {
            tx.is_incomplete = true;
        }
    }

    /// Writes a whole block. Errors: `Ended`, `Preempted`, `Doomed`, `TooManyWrites`, `TooManyReads`.
    pub(crate) fn write(&mut self, id: TxId, block: u64, data: Bytes) -> Result<(), TxError> {
        self.check_writes(id, block..block + 1)?;
        self.touch(id, block, |touched| touched.write(data))
    }

    /// Whether a write of a part of this block needs to know what the block is in the snapshot. Errors: as of a write.
    pub(crate) fn needs_base(&mut self, id: TxId, block: u64) -> Result<bool, TxError> {
        self.check_writes(id, block..block + 1)?;
        Ok(!self.get(id)?.blocks.get(&block).is_some_and(Touched::is_written))
    }

    /// Writes some bytes of a block, of which `base` is what the snapshot has, if [`Transactions::needs_base`] asked for it.
    pub(crate) fn write_part(
        &mut self,
        id: TxId,
        block: u64,
        at: usize,
        bytes: &[u8],
        base: Option<&Bytes>,
    ) -> Result<(), TxError> {
        self.check_writes(id, block..block + 1)?;
        let grain = self.grain;
        self.touch(id, block, |touched| touched.write_part(grain, at, bytes, base))
    }

    /// Of the last access to a block, only these bytes count. Errors: `Ended`, `Preempted`, `Doomed`, `NotAccessed`.
    #[inline(never)]
    pub(crate) fn mark(&mut self, id: TxId, block: u64, bytes: Range<usize>) -> Result<(), TxError> {
        let grain = self.grain;
        let Some(touched) = self.get(id)?.blocks.get_mut(&block) else {
            return Err(TxError::NotAccessed { block });
        };
        touched.mark(grain, bytes);
        Ok(())
    }

    /// A nested one begins. Errors: `Ended`, `Preempted`, `Doomed`, `TooDeep`.
    pub(crate) fn nest(&mut self, id: TxId) -> Result<(), TxError> {
        let tx = self.get(id)?;
        if tx.depth >= TX_DEPTH_MAX {
            return Err(TxError::TooDeep { max: TX_DEPTH_MAX });
        }
        tx.depth += 1;
        Ok(())
    }

    /// A nested one ends, if there is one; if it is aborted, all of the transaction is. Returns whether there was one.
    pub(crate) fn unnest(&mut self, id: TxId, aborts: bool) -> bool {
        let Some(tx) = self.live.get_mut(&id).filter(|tx| tx.depth > 0) else { return false };
        tx.depth -= 1;
        if aborts && tx.phase == Phase::Live {
            tx.phase = Phase::Doomed;
        }
        true
    }

    /// Nested ones that have begun and not ended.
    pub(crate) fn depth(&self, id: TxId) -> u32 {
        self.live.get(&id).map_or(0, |tx| tx.depth)
    }

    /// Whether it has written nothing.
    pub(crate) fn reads_only(&self, id: TxId) -> bool {
        self.live.get(&id).is_none_or(|tx| tx.written == 0)
    }

    /// How many have written to these blocks and may commit.
    pub(crate) fn writers(&self, blocks: &Range<u64>) -> usize {
        let writes =
            |tx: &&Transaction| tx.blocks.range(blocks.clone()).any(|(_, touched)| touched.is_written());
        self.live.values().filter(|tx| tx.phase == Phase::Live).filter(writes).count()
    }

    /// Whether what others make of a block stays in it, in the bytes that this one does not write.
    pub(crate) fn leaves_some_of(&self, id: TxId, block: u64) -> bool {
        let touched = self.live.get(&id).and_then(|tx| tx.blocks.get(&block));
        touched.is_none_or(|touched| touched.writes() != Fragments::ALL)
    }

    /// Whether it may commit now, and what it writes. Changes nothing: it may be asked again, until [`Transactions::committed`].
    ///
    /// Errors: `Conflict`; `Tx` with `Ended`, `Preempted`, `Doomed`, `Incomplete`.
    pub(crate) fn decide(&mut self, id: TxId) -> Result<Decided, CommitError> {
        if self.get(id)?.is_incomplete {
            return Err(TxError::Incomplete.into());
        }
        let tx = &self.live[&id];
        self.check_conflicts(tx)?;
        let written = tx.blocks.iter().filter(|(_, touched)| touched.is_written());
        let writes: Vec<(u64, Bytes)> = written
            .map(|(&block, touched)| {
                let latest = self.window.content(block, tx.snapshot);
                let latest = latest.filter(|_| !self.planted.is(PlantedBug::NotMerged));
                (block, touched.merged(self.grain, latest))
            })
            .collect();
        Ok(if writes.is_empty() { Decided::Nothing } else { Decided::Writes(writes) })
    }

    /// Compares what it depends on with the commits since its snapshot. Errors: `Conflict`.
    //
    // Not inlined, as other parts of conflict detection are not: a profile shows what each takes (`cargo lab bench transactions`).
    #[inline(never)]
    fn check_conflicts(&self, tx: &Transaction) -> Result<(), CommitError> {
        // Who has only read is taken to have run at its snapshot: that is late enough unless something was acknowledged before it began
        // and was not durable.
        let upto = if tx.written == 0 { tx.acknowledged } else { u64::MAX };
        for (&block, touched) in &tx.blocks {
            let fragments = match tx.isolation {
                Isolation::StrictSerializable if self.planted.is(PlantedBug::ReadsNotChecked) => continue,
                Isolation::StrictSerializable => touched.reads(),
                Isolation::Snapshot => touched.writes(),
            };
            let forgets = self.planted.is(PlantedBug::WindowForgotten);
            let last = self.window.last().map_or(0, |last| last - 1);
            let after = if forgets { tx.snapshot.max(last) } else { tx.snapshot };
            if let Some((version, common)) = self.window.conflict(block, fragments, after, upto) {
                let bytes = self.grain.bytes_of(common).next().unwrap_or(0..0);
                return Err(CommitError::Conflict { block, bytes, version: Version(version) });
            }
        }
        Ok(())
    }

    /// What it decided to write was handed over with this version.
    pub(crate) fn committed(&mut self, id: TxId, version: u64, writes: &[(u64, Bytes)]) {
        let tx = self.live.get(&id).expect("it was asked what it writes");
        let of = |(block, data): &(u64, Bytes)| (*block, tx.blocks[block].writes(), Some(data.clone()));
        self.window.add(version, writes.iter().map(of));
        self.end(id, Phase::Ended);
        self.counters.committed += 1;
        self.keep_within_bounds();
    }

    /// It has only read, and is done.
    pub(crate) fn ended_reading(&mut self, id: TxId) {
        self.end(id, Phase::Ended);
        self.counters.committed += 1;
    }

    /// It is refused.
    pub(crate) fn refused(&mut self, id: TxId) {
        self.end(id, Phase::Ended);
        self.counters.conflicts += 1;
    }

    /// It is aborted; nothing of it remains but that it has ended.
    pub(crate) fn abort(&mut self, id: TxId) {
        self.end(id, Phase::Ended);
    }

    /// Nobody will ask for it any more.
    pub(crate) fn drop(&mut self, id: TxId) {
        self.end(id, Phase::Ended);
        self.live.remove(&id);
    }

    fn end(&mut self, id: TxId, phase: Phase) {
        let Some(tx) = self.live.get_mut(&id) else { return };
        if matches!(tx.phase, Phase::Live | Phase::Doomed) {
            self.bytes -= tx.bytes();
            self.going_on.remove(&(tx.snapshot, id));
            (tx.blocks, tx.written, tx.phase) = (BTreeMap::new(), 0, phase);
            self.unpinned.push(tx.snapshot);
        }
    }

    fn oldest(&self) -> Option<(u64, TxId)> {
        self.going_on.first().copied()
    }

    /// Ends the one with the oldest snapshot. Returns whether there was one.
    fn preempt_oldest(&mut self) -> bool {
        self.preempt_below(u64::MAX)
    }

    /// The same, if its snapshot is below this version.
    pub(crate) fn preempt_below(&mut self, version: u64) -> bool {
        let Some((_, id)) = self.oldest().filter(|(snapshot, _)| *snapshot < version) else { return false };
        self.end(id, Phase::Preempted);
        self.counters.preempted += 1;
        true
    }

    /// A commit of plain writes was handed over.
    pub(crate) fn note_plain(&mut self, version: u64, writes: impl IntoIterator<Item = (u64, Content)>) {
        self.window.add(version, writes.into_iter().map(|(block, content)| (block, Fragments::ALL, content)));
        self.keep_within_bounds();
    }

    /// A plain write of some bytes of a block was handed over, with what the block is by that.
    pub(crate) fn note_part(&mut self, version: u64, block: u64, bytes: Range<usize>, whole: Bytes) {
        self.window.add(version, [(block, self.grain.touched(bytes), Some(whole))]);
        self.keep_within_bounds();
    }

    /// Versions up to this one are durable.
    pub(crate) fn durable(&mut self, newest: u64) {
        let oldest = self.oldest().map_or(newest, |(snapshot, _)| snapshot.min(newest));
        self.window.forget(oldest);
    }

    fn keep_within_bounds(&mut self) {
        // What is not durable has its place in the chain's queue too, which is bounded: it is not counted against transactions once
        // none is left.
        while self.bytes + self.window.bytes() > self.bytes_max && self.preempt_oldest() {
            match self.oldest() {
                Some((snapshot, _)) => self.window.forget(snapshot),
                None => return,
            }
        }
    }

    /// Snapshots that are not read from any more, once for each transaction.
    pub(crate) fn take_unpinned(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.unpinned)
    }

    /// Bytes that live transactions, and the window, take, about.
    pub(crate) fn memory_bytes(&self) -> (usize, usize) {
        (self.bytes, self.window.bytes())
    }

    /// Whether any has not ended, also one that cannot commit: the window reaches back to its snapshot.
    pub(crate) fn is_any_going_on(&self) -> bool {
        !self.going_on.is_empty()
    }

    /// Transactions that may go on.
    pub(crate) fn live(&self) -> usize {
        self.live.values().filter(|tx| tx.phase == Phase::Live).count()
    }
}
