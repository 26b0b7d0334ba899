//! The handle: a volume that is open. Its parts: opening, reading, committing, history, snapshots.

mod commit;
mod health;
mod history;
mod info;
mod look;
mod open;
mod overlay;
mod part;
mod read;
mod region;
mod released;
mod snapshot;
mod turnstile;
mod tx;
mod versions;
mod write;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ithaca_chain::{Chain, Ticket};
use ithaca_env::Env;
use ithaca_env::sync::Semaphore;

pub use info::{Info, Memory, VolumeCounters};
pub use read::Extents;
pub(crate) use region::RegionUse;
pub use released::{Heir, Taker};
pub use snapshot::Snapshot;
pub use tx::{Tx, TxHandle, TxOptions};

use crate::error::VolumeError;
use crate::limits::REQUEST_BLOCKS_MAX;
use crate::options::VolumeSettings;
use crate::owner::Blocks;
use crate::stale::Times;
use crate::tx::Transactions;
use history::History;
use overlay::Overlay;
use released::Released;
use turnstile::Turnstile;

/// A volume: blocks of 4 KiB that are read and written, alone or in transactions, and of which old versions can be read.
///
/// ```text
///   write, discard, commit ─► version n ─ ─ ─ durable ─► everybody sees version n
///        Acknowledged: plain reads see it at once        snapshot(), at(n): n stays as it is
/// ```
///
/// * A block that was never written reads as zeros.
/// * A commit is there as a whole after a crash, or not at all; what is there is a prefix in the order of versions.
/// * Nobody sees what is not durable, but for plain reads, which see plain writes that were acknowledged before they were.
/// * After the first failed write nothing more is taken; what was durable can be read.
///
/// Cheap to clone; belongs to one environment, and so to one thread.
#[derive(Clone)]
pub struct Volume {
    inner: Rc<Inner>,
}

struct Inner {
    env: Env,
    chain: Chain,
    blocks: Rc<Blocks>,
    settings: VolumeSettings,
    /// Blocks of the volume.
    count: u64,
    /// The version that the next commit takes.
    next_version: Cell<u64>,
    /// The ticket of the last commit or record that was handed over.
    last_ticket: Cell<Ticket>,
    /// Plain writes that are acknowledged and not durable.
    overlay: RefCell<Overlay>,
    /// The highest version that was acknowledged, durable or not.
    acknowledged: Cell<u64>,
    history: RefCell<History>,
    transactions: RefCell<Transactions>,
    /// Which version was the newest durable one when.
    times: RefCell<Times>,
    /// Transactions that nobody has, until somebody takes them over.
    released: RefCell<Released>,
    /// Who works in which region.
    region_users: RefCell<BTreeMap<String, usize>>,
    /// Regions that are being removed.
    regions_going: RefCell<BTreeSet<String>>,
    /// Commits wait here for room, in order.
    turnstile: Rc<Turnstile>,
    /// Whose turn it is to look at many blocks: one at a time.
    looks: Semaphore,
    counters: RefCell<VolumeCounters>,
}

impl Inner {
    /// Errors: `Length`, `OutOfRange`.
    fn check_range(&self, first_block: u64, count: u64) -> Result<(), VolumeError> {
        if count == 0 || count > REQUEST_BLOCKS_MAX {
            return Err(VolumeError::Length { what: "blocks", found: count, max: REQUEST_BLOCKS_MAX });
        }
        self.check_inside(first_block, count)
    }

    fn check_inside(&self, first: u64, count: u64) -> Result<(), VolumeError> {
        let last = first.saturating_add(count.saturating_sub(1));
        if last < self.count {
            return Ok(());
        }
        Err(VolumeError::OutOfRange { first, last, blocks: self.count })
    }

    /// Does what has become possible since groups became durable: acknowledged writes are in the index, old versions can go.
    fn catch_up(&self) {
        let durable = self.chain.durable();
        self.history.borrow_mut().durable(durable, &self.blocks);
        let newest = self.blocks.with(|index| index.newest());
        self.overlay.borrow_mut().forget(newest);
        self.note_time();
        let mut transactions = self.transactions.borrow_mut();
        transactions.durable(newest);
        let unpinned = transactions.take_unpinned();
        if !unpinned.is_empty() {
            self.blocks.with(|index| unpinned.into_iter().for_each(|version| index.unpin(version)));
            // Old versions can go: the keeper looks.
            self.blocks.bell.ring();
        }
    }
}
