//! The handle: starts what the writer's core asks for, wakes who waits, keeps segments ready.

mod body;
mod clean;
mod clean_now;
mod clear;
mod copies;
mod drives;
mod keeper;
mod metadata;
mod moving;
mod open;
mod owned;
mod parts;
mod rebuild;
mod remade;
mod scrub;
mod source;
mod spill;
mod stats;
mod stretch;
mod tell;
mod victim;
mod written;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use ithaca_env::drive::Durability;
use ithaca_env::sync::{Count, Notify};
use ithaca_env::task::TaskHandle;
use ithaca_env::{Env, Time};

pub use scrub::Scrubbed;
pub use source::Source;
pub use stats::{LinkStats, Stats};
pub use stretch::Stretch;

use owned::Copied;

use crate::cache::{FooterCache, ReadCache, ReadCounters, Share, TailCache, Written};
use crate::core::{Batch, Core, Effect, Io, Ticket};
use crate::error::{AppendError, ChainError};
use crate::links::Links;
use crate::membership::DriveId;
use crate::options::Identity;
use crate::owner::Owner;
use crate::range_set::RangeSet;
use crate::registry::Registry;
use crate::sides::Sides;

/// While groups are being written, work in the background rests so many times as long as its last step took.
const BUSY_REST_FACTOR: u32 = 4;

/// A chain on one or several drives: runs of records with consecutive keys, appended in atomic batches.
///
/// ```text
///   append(batch) ─► ticket ─ ─ ─ durable() >= ticket ─► survives every crash, and can be read
///        └ all batches of one turn share a group; the next group fills while `flights` others are written
/// ```
///
/// * A batch is there as a whole after a crash, or not at all; what is there is a prefix in the order of tickets.
/// * Keys are written once: the owner must see to it, the chain does not check. A chain with an [`Owner`] takes versions.
/// * Only durable records can be read.
/// * After the first failed write the chain has stopped: nothing is tried again, every append and wait ends with the
///   first error. Reads of what was durable go on.
/// * What is under way goes on when the last handle is dropped. Until it is over, or for as long as there is a handle of a
///   chain that was not closed, whoever opens a chain on the same [`Drive`](ithaca_env::drive::Drive)s is refused: `InUse`.
///
/// Cheap to clone; belongs to one environment, and so to one thread.
#[derive(Clone)]
pub struct Chain {
    pub(crate) inner: Rc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) env: Env,
    pub(crate) identity: Identity,
    pub(crate) links: RefCell<Links>,
    /// The drives with their superblocks.
    pub(crate) registry: Rc<Registry>,
    /// A drive is being added or removed, or is growing: one at a time.
    is_changing: Cell<bool>,
    /// Rings when it is over.
    change_over: Notify,
    pub(crate) core: RefCell<Core>,
    pub(crate) tail: RefCell<TailCache>,
    pub(crate) read_cache: RefCell<ReadCache>,
    /// What the group has written that the owner was told of last.
    written: RefCell<Vec<Written>>,
    pub(crate) footers: RefCell<FooterCache>,
    /// The part in a cache drive, if there is one.
    pub(crate) share: RefCell<Option<Share>>,
    /// The part in a metadata drive, if there is one.
    pub(crate) metadata: Option<crate::metadata::Share>,
    /// Where reads were answered.
    pub(crate) reads: Rc<ReadCounters>,
    /// Rings when tickets became durable, space came free, a side answers again, or the chain stopped.
    pub(crate) changed: Rc<Notify>,
    /// Rings when something was appended: the pump forms groups at the end of the turn.
    pub(crate) pump: Rc<Notify>,
    is_closing: Rc<Cell<bool>>,
    /// Records of a segment are being copied: one at a time.
    is_cleaning: Cell<bool>,
    /// Since when the cleaner knows what cannot be read; see [`Roster::readable_since`](crate::roster::Roster::readable_since).
    readable_since: Cell<(u64, u64)>,
    /// Rings when it is over.
    cleaning_over: Notify,
    /// Segments whose records are copied are being given back meanwhile.
    giving_back: RefCell<Option<TaskHandle<()>>>,
    /// Places of sides that were written again because they were harmed.
    pub(crate) repaired: Cell<u64>,
    pub(crate) scrubbed: Cell<Scrubbed>,
    /// Whose records they are, if keys are versioned.
    pub(crate) owner: Option<Rc<dyn Owner>>,
    /// The batches of copies that are under way, oldest first, and where their runs lie when they are durable.
    copies: RefCell<VecDeque<Copied>>,
    /// Stale sides are being rebuilt.
    is_rebuilding: Cell<bool>,
    /// The one that is rebuilt now, and how many of its segments are gone through.
    rebuilt: Cell<Option<(DriveId, u32)>>,
    /// Sides that failed while they were rebuilt; they are left alone until the next open.
    failed_sides: RefCell<Vec<DriveId>>,
    /// Writes under way, and rounds of the keeper and the others who work in the background: a closed chain leaves its drives alone.
    pub(crate) busy: Count,
    /// For tasks that go on when whoever asked for them does not.
    pub(crate) me: Weak<Self>,
}

impl Inner {
    /// Starts effects in order.
    pub(crate) fn start(self: &Rc<Self>, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Write { io, link, offset, data } => {
                    if let Io::Footer(segment) = io {
                        let part = data.joined();
                        self.spill_footer(segment, offset, &part);
                        self.keep_footer(segment, &part);
                    }
                    let write = self.device(link).write(offset, data, Durability::Durable);
                    let inner = Rc::clone(self);
                    let busy = self.busy.one_more();
                    self.env.spawn(async move {
                        let result = write.await;
                        let mut effects = Vec::new();
                        inner.core.borrow_mut().done(io, result, &mut effects);
                        inner.start(effects);
                        inner.ring_mirror(io);
                        drop(busy);
                    });
                }
                Effect::Cache(mut group) => {
                    group.written = self.written.take();
                    let lowest = self.tail.borrow_mut().add(group, |evicted| {
                        self.keep_written(&evicted);
                        self.spill(&evicted);
                    });
                    self.core.borrow_mut().catalog.cool(lowest.unwrap_or(u64::MAX));
                }
                Effect::Placed { segment, lap, blob, starts, batches } => {
                    self.tell_owner(segment, lap, &blob, &starts, &batches);
                }
                Effect::Copied { segment, lap, blob, starts } => {
                    self.note_copies(segment, lap, &blob, &starts);
                }
                Effect::Changed => self.changed.ring(),
            }
        }
    }

    /// The device of a link that the core writes to.
    fn device(&self, link: u32) -> Sides {
        self.links.borrow().device(link).cloned().unwrap_or_else(|| panic!("no link {link}"))
    }

    /// The device that a segment is on; none if its drive was removed.
    pub(crate) fn device_of(&self, segment: u32) -> Option<Sides> {
        self.links.borrow().device_of(segment).cloned()
    }

    /// Waits until the batch of this ticket is durable. Returns up to which ticket all are. Errors: the chain has stopped.
    pub(crate) async fn durable_from(&self, ticket: Ticket) -> Result<Ticket, ChainError> {
        let durable = self.changed.until(|| {
            let core = self.core.borrow();
            let durable = core.durable();
            if durable >= ticket {
                return Some(Ok(durable));
            }
            core.stopped().map(|why| Err(why.clone()))
        });
        durable.await
    }

    /// Rests as long as the work took that began at `began`, and so many times as long while groups are being written: the log
    /// comes first.
    pub(crate) async fn rest(&self, began: Time) {
        let factor = if self.core.borrow().is_flying() { BUSY_REST_FACTOR } else { 1 };
        self.env.sleep(self.env.now().since(began) * factor).await;
    }

    /// Begins nothing any more, and waits for what is under way. On return others may have the drives, and who waits for a ticket has
    /// been told `why`.
    async fn come_to_rest(self: &Rc<Self>, why: ChainError) {
        let mut effects = Vec::new();
        self.core.borrow_mut().stop(why, &mut effects);
        self.start(effects);
        self.busy.below(1).await;
        self.registry.unlock();
    }

    /// Takes nothing: what was recovered is all that there is to read.
    fn only_read(self: &Rc<Self>) {
        let mut effects = Vec::new();
        self.core.borrow_mut().stop(ChainError::ReadOnly, &mut effects);
        self.start(effects);
    }

    /// Lets the core do what it can, and starts it.
    pub(crate) fn turn(self: &Rc<Self>) {
        let mut effects = Vec::new();
        self.core.borrow_mut().turn(&mut effects);
        self.start(effects);
    }

    /// Forms groups at the end of each turn in which something was appended.
    fn spawn_pump(self: &Rc<Self>) {
        let (pump, weak) = (Rc::clone(&self.pump), Rc::downgrade(self));
        self.env.spawn(async move {
            loop {
                let ticket = pump.ticket();
                let Some(inner) = weak.upgrade() else { return };
                inner.turn();
                drop(inner);
                pump.after(ticket).await;
            }
        });
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The pump, the keeper and the mirror wait on these, and end when the chain is gone.
        self.pump.ring();
        self.changed.ring();
        if let Some(metadata) = &self.metadata {
            metadata.bell.ring();
        }
    }
}

impl Chain {
    /// Takes a batch to be written with the next group. Returns at once; the ticket becomes durable later.
    ///
    /// Errors: `Full` (data first, then junk; releases as long as anything is left), `Overloaded` (try again after tickets became durable),
    /// `Stopped`, and the batch's own faults. Nothing of a refused batch is written.
    pub fn append(&self, batch: Batch) -> Result<Ticket, AppendError> {
        if self.inner.is_closing.get() {
            return Err(ChainError::Closed.into());
        }
        let ticket = self.inner.core.borrow_mut().append(batch)?;
        self.inner.pump.ring();
        Ok(ticket)
    }

    /// Sends out a group now, and not at the end of the turn, if enough waits for it. For those who compute much between their appends: the
    /// drive would be idle meanwhile. Of appends that follow each other at once it would only make smaller groups. Owners of versioned
    /// keys, who are told of a group when it is formed, call it when they know of all that they have appended.
    pub fn send_early(&self) {
        if self.inner.core.borrow().is_group_due() {
            self.inner.turn();
        }
    }

    /// Whether data is refused as full, or so little room is left that it soon will be, and cleaning finds nothing that gives
    /// more. Once so it stays so until a tenth of the segments is free again (three more than the reserve, of few).
    pub fn is_full(&self) -> bool {
        self.inner.core.borrow_mut().look_for_room()
    }

    /// Every batch up to this ticket is durable.
    pub fn durable(&self) -> Ticket {
        self.inner.core.borrow().durable()
    }

    /// Waits until [`Chain::durable`] is above `after` and returns it. Errors: the chain has stopped.
    pub async fn changed(&self, after: Ticket) -> Result<Ticket, ChainError> {
        self.inner.durable_from(Ticket(after.0.saturating_add(1))).await
    }

    /// Waits until the batch of this ticket is durable. Errors: the chain has stopped; then the batch may be on the
    /// drive or not.
    pub async fn wait(&self, ticket: Ticket) -> Result<(), ChainError> {
        self.inner.durable_from(ticket).await.map(drop)
    }

    /// Waits until something has changed by which an append that was refused may be taken: tickets became durable, space came free,
    /// records became garbage, or the chain stopped. Nothing that happened before the first poll counts.
    pub async fn stirred(&self) {
        self.inner.changed.after(self.inner.changed.ticket()).await;
    }

    /// Why the chain has stopped, if it has.
    pub fn stopped(&self) -> Option<ChainError> {
        self.inner.core.borrow().stopped().cloned()
    }

    /// Waits until the chain has stopped, and says why. Never ends for one that is well, or only read.
    pub async fn until_stopped(&self) -> ChainError {
        self.inner.changed.until(|| self.stopped().filter(|_| !self.is_read_only())).await
    }

    /// Whether it is only read ([`ChainOptions::rescue`](crate::ChainOptions)).
    pub fn is_read_only(&self) -> bool {
        self.inner.core.borrow().options.rescue
    }

    /// Whether `key` is durably released.
    pub fn is_released(&self, key: u64) -> bool {
        self.inner.core.borrow().catalog.released.contains(key)
    }

    /// The durably released keys.
    pub fn released(&self) -> RangeSet {
        self.inner.core.borrow().catalog.released.clone()
    }

    /// The highest key that has, or had, a durable record.
    pub fn highest_key(&self) -> Option<u64> {
        self.inner.core.borrow().catalog.highest_key
    }

    /// The most that one batch may cost, in bytes: its data, and twice its runs' heads, metas and tables, which stand in
    /// the group and in the footer.
    pub fn batch_max_bytes(&self) -> u64 {
        self.inner.core.borrow().geometry.batch_max_bytes
    }

    /// Whose chain it is.
    pub fn identity(&self) -> &Identity {
        &self.inner.identity
    }

    /// Refuses further appends, waits until everything is durable, and writes a last mark that says so: the next open
    /// then knows that nothing is missing at the end. On return nothing is under way on the drives. Errors: `Unwritten`: some of what
    /// was taken found no room any more, as whoever waits for it is told, and the rest is durable; else the chain has stopped, and
    /// something may be under way.
    pub async fn close(self) -> Result<(), ChainError> {
        let inner = &self.inner;
        if inner.is_closing.replace(true) {
            return Err(ChainError::Closed);
        }
        inner.changed.ring();
        // A change of the drives that has begun is brought to its end, unless records have to be moved for it; no other begins.
        drop(inner.begin_change().await);
        if self.is_read_only() {
            inner.come_to_rest(ChainError::Closed).await;
            return Ok(());
        }
        inner.core.borrow_mut().close();
        inner.turn();
        let is_all_written = inner.changed.until(|| {
            let core = inner.core.borrow();
            if let Some(why) = core.stopped() {
                return Some(Err(why.clone()));
            }
            // On a drive that is full up to the last block the mark is left out.
            (core.is_idle() || core.is_stuck()).then(|| Ok(!core.has_unwritten()))
        });
        if is_all_written.await? {
            inner.come_to_rest(ChainError::Closed).await;
            return Ok(());
        }
        inner.come_to_rest(ChainError::Unwritten).await;
        Err(ChainError::Unwritten)
    }

    /// Ends the chain where it is, as if the process had been killed, for one who does not want it: appends that are not durable may
    /// be there at the next open or not. On return nothing is under way on the drives. One that is being closed is left alone.
    pub async fn abandon(self) {
        let inner = &self.inner;
        if inner.is_closing.replace(true) {
            return;
        }
        inner.changed.ring();
        drop(inner.begin_change().await);
        inner.come_to_rest(ChainError::Closed).await;
    }
}
