//! What a volume tells of itself.

use ithaca_chain::{ChainId, Stats};

use super::Volume;
use crate::options::{Isolation, Retention, Version};
use crate::tx::TxCounters;

/// What a volume is and how it is doing, for status pages and tests.
#[derive(Clone, Debug)]
pub struct Info {
    /// The volume's identity, which is its chain's.
    pub id: ChainId,
    /// Blocks of 4 KiB.
    pub blocks: u64,
    /// Bytes of a fragment.
    pub fragment_bytes: u32,
    /// What transactions are held to unless they ask for something else.
    pub isolation: Isolation,
    /// How long old versions are kept.
    pub retention: Retention,
    /// The newest durable version.
    pub version: Version,
    /// The newest version that was handed over.
    pub submitted: Version,
    /// Where history begins.
    pub floor: Version,
    /// Blocks that hold data.
    pub data_blocks: u64,
    /// Versions of blocks that are kept besides one for each block.
    pub versions: u64,
    /// Acknowledged blocks that are not durable.
    pub unflushed_blocks: u64,
    /// Commits that wait for room.
    pub waiting: u64,
    /// Memory by what it is for.
    pub memory: Memory,
    /// Transactions that are under way.
    pub transactions: u64,
    /// Commits that transactions may be in conflict with.
    pub recent_commits: u64,
    /// Since the volume was opened.
    pub counters: VolumeCounters,
    /// Transactions since the volume was opened.
    pub tx_counters: TxCounters,
    /// The chain.
    pub chain: Stats,
}

/// Bytes of memory by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The index: one word a block.
    pub words_bytes: u64,
    /// The index: blocks with several versions, about.
    pub versions_bytes: u64,
    /// Blocks that are kept because somebody asked for it.
    pub kept_bytes: u64,
    /// Transactions: what they have read and written, about.
    pub transactions_bytes: u64,
    /// Commits that transactions may be in conflict with, about.
    pub recent_commits_bytes: u64,
}

/// Counters since the volume was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeCounters {
    /// Blocks that were read.
    pub blocks_read: u64,
    /// Blocks that were written by plain writes.
    pub blocks_written: u64,
    /// Blocks that were given up.
    pub blocks_discarded: u64,
    /// Flushes that were asked for.
    pub flushes: u64,
    /// Transactions that were tried again by [`Volume::transact`].
    pub tried_again: u64,
}

impl Volume {
    /// The present state.
    pub fn info(&self) -> Info {
        let inner = &self.inner;
        let history = inner.history.borrow();
        let state = history.asked();
        let (words, versions_bytes) = inner.blocks.with(|index| index.memory_bytes());
        let transactions = inner.transactions.borrow();
        let (transactions_bytes, recent) = transactions.memory_bytes();
        let kept = inner.blocks.with_kept(|_, kept| kept.bytes());
        inner.blocks.with(|index| Info {
            id: inner.chain.identity().id,
            blocks: inner.count,
            fragment_bytes: state.fragment_bytes,
            isolation: state.isolation,
            retention: state.retention,
            version: Version(index.newest()),
            submitted: Version(inner.next_version.get() - 1),
            floor: Version(index.points().floor()),
            data_blocks: index.data_blocks(),
            versions: index.versions() as u64,
            unflushed_blocks: inner.overlay.borrow().len() as u64,
            waiting: inner.turnstile.len() as u64,
            memory: Memory {
                words_bytes: words as u64,
                versions_bytes: versions_bytes as u64,
                kept_bytes: kept as u64,
                transactions_bytes: transactions_bytes as u64,
                recent_commits_bytes: recent as u64,
            },
            transactions: transactions.live() as u64,
            recent_commits: transactions.window.len() as u64,
            counters: *inner.counters.borrow(),
            tx_counters: transactions.counters,
            chain: inner.chain.stats(),
        })
    }
}
