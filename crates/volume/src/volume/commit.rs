//! Commits: handed over to the chain in the order of their versions, and waited for.

use std::collections::BTreeSet;
use std::time::Duration;

use ithaca_chain::{AppendError, Batch, Chain, Run, Ticket};

use super::Inner;
use super::history::History;
use crate::error::VolumeError;
use crate::limits::{COMMIT_BLOCKS_MAX, SETTLE_SLICE, VOLUME_BLOCK_BYTES};
use crate::options::Version;
use crate::planted::PlantedBug;
use crate::state::State;

/// A commit that found no room is tried again after this, whatever happens.
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// Bytes that a commit takes besides its blocks, at the most: heads, a record of the volume with all its names, padding.
const COMMIT_HEAD_BYTES: u64 = 20 << 10;
/// Bytes that a block takes of a commit, with a run of its own.
const COMMIT_EACH_BYTES: u64 = VOLUME_BLOCK_BYTES as u64 + 128;
/// Blocks that are looked at for old versions with each commit, besides some for each of its own.
const SETTLE_EACH: usize = 16;

/// A commit on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handed {
    pub(super) version: Version,
    pub(super) ticket: Ticket,
}

/// Most blocks of one commit: small segments allow fewer.
pub(super) fn commit_blocks_max(chain: &Chain) -> usize {
    let room = chain.batch_max_bytes().saturating_sub(COMMIT_HEAD_BYTES);
    ((room / COMMIT_EACH_BYTES) as usize).clamp(1, COMMIT_BLOCKS_MAX)
}

impl Inner {
    /// Hands a commit over, in line with others for room. `prepare` says right before each attempt what it is, so that it can decide
    /// by what was handed over until then; nothing comes between the last call of it and the commit. Dropping the future before it
    /// returns leaves nothing behind.
    ///
    /// Errors: those of `prepare`; `Full`, `Stopped`.
    pub(super) async fn commit<E: From<VolumeError>>(
        &self,
        mut prepare: impl FnMut() -> Result<Vec<Run>, E>,
    ) -> Result<Handed, E> {
        let mut place = None;
        if !self.turnstile.is_free() {
            place = Some(self.turnstile.enter().await);
        }
        loop {
            let runs = prepare()?;
            match self.try_commit(runs) {
                Ok(handed) => return Ok(handed),
                Err(AppendError::Overloaded { .. }) => {
                    self.env.timeout(TRY_AGAIN, self.chain.stirred()).await.ok();
                }
                Err(AppendError::Full { free_bytes, reserve_bytes }) => {
                    if !self.make_room().await? {
                        return Err(self.full(free_bytes, reserve_bytes).into());
                    }
                }
                Err(AppendError::Stopped(why)) => return Err(VolumeError::Stopped(why).into()),
                Err(other) => return Err(VolumeError::Refused(other).into()),
            }
            if place.is_none() {
                place = Some(self.turnstile.enter().await);
            }
        }
    }

    fn try_commit(&self, mut runs: Vec<Run>) -> Result<Handed, AppendError> {
        self.catch_up();
        let version = self.next_version.get();
        let records: u64 = runs.iter().map(Run::count).sum();
        runs.iter_mut().for_each(|run| run.version = version);
        if self.settings.planted.is(PlantedBug::CommitInParts) {
            for run in runs.drain(1..) {
                self.chain.append(Batch { runs: vec![run], ..Batch::default() })?;
            }
        }
        let now = self.env.now();
        let is_short = self.blocks.with(|index| index.recent()) > self.settings.versions_max;
        let record = self.history.borrow().record_for(now, version, is_short);
        let state = record.as_ref().map(State::encode);
        let ticket = self.chain.append(Batch { runs, state, ..Batch::default() })?;
        self.next_version.set(version + 1);
        self.last_ticket.set(ticket);
        let mut history = self.history.borrow_mut();
        history.note_time(now, version);
        if let Some(record) = record {
            history.handed_over(ticket, record);
        }
        drop(history);
        self.settle(SETTLE_EACH + 4 * records as usize);
        Ok(Handed { version: Version(version), ticket })
    }

    /// Looks at up to `limit` blocks for old versions that can go, and tells the chain. Returns whether there may be more.
    pub(super) fn settle(&self, limit: usize) -> bool {
        let (more, garbage) = self.blocks.with(|index| (index.settle(limit), index.take_garbage()));
        self.chain.note_garbage(garbage);
        more
    }

    /// All of it, in turn with other work.
    pub(super) async fn settle_all(&self) {
        self.catch_up();
        while self.settle(SETTLE_SLICE) {
            self.env.yield_now().await;
        }
    }

    /// Waits until a commit is durable. Errors: `Stopped`.
    pub(super) async fn durable(&self, ticket: Ticket) -> Result<(), VolumeError> {
        self.chain.wait(ticket).await?;
        self.catch_up();
        Ok(())
    }

    /// No room is left, and what of that is because of harm.
    fn full(&self, free_bytes: u64, reserve_bytes: u64) -> VolumeError {
        let damage = self.chain.stats().damage;
        let harmed: BTreeSet<u32> = damage.iter().map(|damage| damage.segment).collect();
        VolumeError::Full { free_bytes, reserve_bytes, harmed_segments: harmed.len() }
    }

    /// The chain is full: gives up what history there is, then transactions, the oldest first. Returns whether that may have made room. Errors: `Stopped`.
    async fn make_room(&self) -> Result<bool, VolumeError> {
        let newest = self.next_version.get() - 1;
        let is_asked = self.history.borrow().asked().floor >= newest;
        if is_asked {
            let is_raised = self.blocks.with(|index| index.points().floor()) >= newest;
            // Who reads from the newest version keeps nothing that is old.
            let preempts = || self.transactions.borrow_mut().preempt_below(newest);
            if is_raised && !self.settle(SETTLE_SLICE) && !preempts() {
                return Ok(false);
            }
            self.durable(self.last_ticket.get()).await?;
        } else {
            self.ask_for_floor(newest).await?;
        }
        self.settle_all().await;
        Ok(true)
    }

    /// Makes it durable that history begins at `floor`, or above. Errors: `Full`, `Stopped`.
    async fn ask_for_floor(&self, floor: u64) -> Result<(), VolumeError> {
        let higher = |asked: &State| Ok(State { floor: floor.max(asked.floor), ..asked.clone() });
        self.replace_state(higher).await
    }

    /// Hands over what `change` makes of the volume's record. On return it is durable. `change` is called right before each attempt:
    /// nothing comes between the last call of it and the record.
    ///
    /// Errors: those of `change`; `Full`; `Stopped`: then it may be durable.
    pub(super) async fn replace_state(
        &self,
        change: impl Fn(&State) -> Result<State, VolumeError>,
    ) -> Result<(), VolumeError> {
        self.replace_state_and(change, |_, _| ()).await
    }

    /// The same; `then` is called in the one step in which the record is handed over, also if the future is dropped after it.
    pub(super) async fn replace_state_and(
        &self,
        change: impl Fn(&State) -> Result<State, VolumeError>,
        then: impl FnOnce(&mut History, Ticket),
    ) -> Result<(), VolumeError> {
        loop {
            let state = change(self.history.borrow().asked())?;
            match self.chain.append(Batch { state: Some(state.encode()), ..Batch::default() }) {
                Ok(ticket) => {
                    self.last_ticket.set(ticket);
                    {
                        let mut history = self.history.borrow_mut();
                        history.handed_over(ticket, state);
                        then(&mut history, ticket);
                    }
                    return self.durable(ticket).await;
                }
                Err(AppendError::Overloaded { .. }) => {
                    self.env.timeout(TRY_AGAIN, self.chain.stirred()).await.ok();
                }
                Err(AppendError::Full { free_bytes, reserve_bytes }) => {
                    return Err(self.full(free_bytes, reserve_bytes));
                }
                Err(AppendError::Stopped(why)) => return Err(why.into()),
                Err(other) => return Err(VolumeError::Refused(other)),
            }
        }
    }
}
