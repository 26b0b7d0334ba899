//! Transactions as a program has them: a handle on one that the core knows.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::commit::Handed;
use super::read::View;
use super::released::{Entry, Heir, Taker};
use super::write::{block_of, data_run};
use super::{Inner, Volume};
use crate::error::{CommitError, TxError, VolumeError};
use crate::limits::{TX_ATTEMPTS_MAX, VOLUME_BLOCK_BYTES};
use crate::options::{Durability, Isolation, Version};
use crate::tx::{Begin, Decided, TxId};

/// The longest rest before a transaction is tried again.
const REST_MAX: Duration = Duration::from_millis(10);
/// The first one, at the most.
const REST_FIRST: Duration = Duration::from_micros(50);

/// How a transaction is begun.
#[derive(Clone, Copy, Debug, Default)]
pub struct TxOptions {
    /// What it is held to; as the volume says if nothing.
    pub isolation: Option<Isolation>,
    /// When its commit is acknowledged. With [`Durability::Acknowledged`] a power cut may take a commit that was acknowledged, and all
    /// after it; others see it before it is durable. One that has written a part of a block, the rest of which is by a commit that nobody sees
    /// before it is durable, is acknowledged when it is durable itself.
    pub durability: Durability,
    /// Whose it is: a client has a limited number of them.
    pub client: u64,
}

/// Names a transaction that was released, so that somebody else can take it over. Whoever knows it can.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TxHandle(pub u128);

impl fmt::Display for TxHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for TxHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It is as good as a password.
        f.write_str("TxHandle")
    }
}

/// A transaction. It reads from the snapshot that it began with and sees what it has written itself; nobody else does before it
/// commits. Dropped before that, it is aborted.
///
/// A transaction may be begun within another by [`Tx::begin`]; its commit does nothing, its abort ends all of it. So code that brings
/// its own transaction can run within somebody else's.
pub struct Tx {
    inner: Rc<Inner>,
    id: TxId,
    durability: Durability,
    is_released: Cell<bool>,
}

impl Volume {
    /// Begins a transaction. Its snapshot is the newest durable version. Errors: `TooMany`.
    pub fn begin(&self, options: TxOptions) -> Result<Tx, TxError> {
        let inner = &self.inner;
        inner.catch_up();
        let snapshot = inner.blocks.with(|index| index.newest());
        let isolation = options.isolation.unwrap_or(inner.history.borrow().asked().isolation);
        let acknowledged = inner.acknowledged.get();
        let begin = Begin { snapshot, acknowledged, client: options.client, isolation };
        let id = inner.transactions.borrow_mut().begin(begin)?;
        inner.blocks.with(|index| index.pin(snapshot));
        let is_released = Cell::new(false);
        Ok(Tx { inner: Rc::clone(inner), id, durability: options.durability, is_released })
    }

    /// Goes on with a transaction that was released to anyone. Errors: as of [`Volume::take_over_as`].
    pub fn take_over(&self, handle: TxHandle) -> Result<Tx, TxError> {
        self.take_over_as(handle, Taker::default())
    }

    /// Goes on with a transaction that was released, if `taker` may. Errors: `NoSuchHandle`, also of a handle that is not meant for the
    /// taker; `TooMany`: then it stays released.
    pub fn take_over_as(&self, handle: TxHandle, taker: Taker) -> Result<Tx, TxError> {
        let Entry { id, durability, .. } = self.inner.take_over(handle, taker)?;
        Ok(Tx { inner: Rc::clone(&self.inner), id, durability, is_released: Cell::new(false) })
    }

    /// Runs `work` in a transaction and commits it; from the beginning again, after a rest, if there is a conflict or it was ended to
    /// make room. Returns what `work` gave and the version of the commit. `work` may run many times, and sees a snapshot each time.
    ///
    /// Errors: those of `work`; `Conflict` or `Preempted` after [`TX_ATTEMPTS_MAX`] attempts; those of a commit.
    pub async fn transact<T>(
        &self,
        options: TxOptions,
        mut work: impl AsyncFnMut(&Tx) -> Result<T, TxError>,
    ) -> Result<(T, Version), CommitError> {
        let mut attempts = 0;
        loop {
            let error = match self.attempt(options, &mut work).await {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            attempts += 1;
            let is_passing =
                matches!(error, CommitError::Conflict { .. } | CommitError::Tx(TxError::Preempted));
            if !is_passing || attempts >= TX_ATTEMPTS_MAX {
                return Err(error);
            }
            if let CommitError::Conflict { version, .. } = error {
                // The next snapshot has what was in the way.
                self.inner.until_durable(version).await?;
            }
            self.inner.counters.borrow_mut().tried_again += 1;
            let most = REST_FIRST.saturating_mul(1 << attempts.min(16)).min(REST_MAX);
            let rest = self.inner.env.random_u64() % (most.as_nanos() as u64 + 1);
            self.inner.env.sleep(Duration::from_nanos(rest)).await;
        }
    }

    async fn attempt<T>(
        &self,
        options: TxOptions,
        work: &mut impl AsyncFnMut(&Tx) -> Result<T, TxError>,
    ) -> Result<(T, Version), CommitError> {
        let tx = self.begin(options)?;
        let value = work(&tx).await?;
        let version = tx.commit().await?.ok_or(TxError::Ended)?;
        Ok((value, version))
    }
}

impl Inner {
    async fn until_durable(&self, version: Version) -> Result<(), VolumeError> {
        while self.blocks.with(|index| index.newest()) < version.0 {
            self.durable(self.last_ticket.get()).await?;
        }
        Ok(())
    }
}

fn check_bytes(bytes: &Range<usize>) -> Result<(), TxError> {
    if bytes.start < bytes.end && bytes.end <= VOLUME_BLOCK_BYTES {
        return Ok(());
    }
    Err(TxError::BadBytes { start: bytes.start, end: bytes.end })
}

impl Tx {
    /// Which version it reads. Errors: `Ended`, `Preempted`, `Doomed`, as of everything but [`Tx::abort`].
    pub fn snapshot(&self) -> Result<Version, TxError> {
        self.inner.transactions.borrow_mut().snapshot(self.id).map(Version)
    }

    /// The data of `count` blocks from `first_block` on. The transaction depends on all of it, unless a mark follows. Errors: `Volume`
    /// with those of [`Volume::read`]; `TooManyReads`.
    pub async fn read(&self, first_block: u64, count: u64) -> Result<Bytes, TxError> {
        self.inner.check_range(first_block, count)?;
        let blocks = first_block..first_block + count;
        let note = |block| self.inner.transactions.borrow_mut().read(self.id, block);
        let own = blocks.clone().map(note).collect::<Result<Vec<_>, _>>()?;
        self.with_snapshot(blocks, own).await
    }

    /// Some bytes of a block: only on these the transaction depends. Errors: as of [`Tx::read`]; `BadBytes`.
    pub async fn read_part(&self, block: u64, bytes: Range<usize>) -> Result<Bytes, TxError> {
        check_bytes(&bytes)?;
        self.inner.check_range(block, 1)?;
        let own = self.inner.transactions.borrow_mut().read_part(self.id, block, bytes.clone())?;
        let data = self.with_snapshot(block..block + 1, vec![own]).await?;
        Ok(data.slice(bytes))
    }

    /// Puts what the snapshot has between what the transaction has written.
    async fn with_snapshot(&self, blocks: Range<u64>, own: Vec<Option<Bytes>>) -> Result<Bytes, TxError> {
        if let [Some(data)] = &own[..] {
            return Ok(data.clone());
        }
        if own.iter().all(Option::is_some) {
            return Ok(own.into_iter().flatten().collect::<Vec<_>>().concat().into());
        }
        let snapshot = self.snapshot()?;
        let data = self.inner.read(blocks, View::At(snapshot.0)).await;
        // Ended meanwhile, its snapshot may be gone: what was read is of no version.
        self.snapshot()?;
        let data = data?;
        if own.iter().all(Option::is_none) {
            return Ok(data);
        }
        let mut whole = BytesMut::from(&data[..]);
        for (block, own) in whole.chunks_mut(VOLUME_BLOCK_BYTES).zip(own) {
            if let Some(own) = own {
                block.copy_from_slice(&own);
            }
        }
        Ok(whole.freeze())
    }

    /// Writes whole blocks from `first_block` on, in memory. A single block is not copied: the memory that it is a part of stays until the
    /// transaction has ended and what it wrote is durable. Errors, after which none of them is written: `TooManyWrites`, `TooManyReads`;
    /// `Volume` with `NotWholeBlocks`, `Length`, `OutOfRange`.
    pub fn write(&self, first_block: u64, data: Bytes) -> Result<(), TxError> {
        if !data.len().is_multiple_of(VOLUME_BLOCK_BYTES) {
            return Err(VolumeError::NotWholeBlocks { bytes: data.len() }.into());
        }
        let count = data.len() / VOLUME_BLOCK_BYTES;
        self.inner.check_range(first_block, count as u64)?;
        let mut transactions = self.inner.transactions.borrow_mut();
        if count == 1 {
            return transactions.write(self.id, first_block, data);
        }
        transactions.check_writes(self.id, first_block..first_block + count as u64)?;
        // Copied: a block that stays must not keep all that it was written with.
        let block = |at| Bytes::copy_from_slice(&block_of(&data, at));
        (0..count).try_for_each(|at| transactions.write(self.id, first_block + at as u64, block(at)))
    }

    /// Writes some bytes of a block, in memory: what others make of the rest of it meanwhile stays as they make it. Of a fragment that is
    /// written in part the transaction depends on the rest. Errors: as of [`Tx::write`] and [`Tx::read`]; `BadBytes`.
    pub async fn write_part(&self, block: u64, at: usize, bytes: &[u8]) -> Result<(), TxError> {
        check_bytes(&(at..at.saturating_add(bytes.len())))?;
        self.inner.check_range(block, 1)?;
        let needs_base = self.inner.transactions.borrow_mut().needs_base(self.id, block)?;
        let base = match needs_base {
            true => Some(self.with_snapshot(block..block + 1, vec![None]).await?),
            false => None,
        };
        self.inner.transactions.borrow_mut().write_part(self.id, block, at, bytes, base.as_ref())
    }

    /// Whether all of these blocks may be written: to be asked before the first of several is. Errors: as of [`Tx::write`].
    pub(crate) fn check_writes(&self, blocks: Range<u64>) -> Result<(), TxError> {
        self.inner.transactions.borrow_mut().check_writes(self.id, blocks)
    }

    /// A write of it was refused. Who commits it may have asked for that before the answer came, or be somebody else: it cannot commit, and
    /// goes on until then.
    pub(crate) fn note_refused_write(&self) {
        self.inner.transactions.borrow_mut().note_refused_write(self.id);
    }

    /// Of the last read or write of a block, only these bytes count; marks of several accesses add up. Errors: `NotAccessed`, `BadBytes`.
    pub fn mark_accessed(&self, block: u64, bytes: Range<usize>) -> Result<(), TxError> {
        check_bytes(&bytes)?;
        self.inner.transactions.borrow_mut().mark(self.id, block, bytes)
    }

    /// As [`Volume::please_cache`]. Errors: `Volume` with `OutOfRange`.
    pub fn please_cache(&self, block: u64) -> Result<(), TxError> {
        Ok(self.inner.please_cache(block)?)
    }

    /// Begins a transaction within this one: the snapshot stays. Errors: `TooDeep`.
    pub fn begin(&self) -> Result<(), TxError> {
        self.inner.transactions.borrow_mut().nest(self.id)
    }

    /// How many transactions within it have begun and not ended.
    pub fn depth(&self) -> u32 {
        self.inner.transactions.borrow().depth(self.id)
    }

    /// Commits. Of a nested transaction this does nothing and gives nothing; it also succeeds when another nested one was aborted. Else, on
    /// return, the version is durable (or handed over, if it was begun so); of one that has only read, it is the snapshot's.
    ///
    /// Errors: `Conflict`; `Tx` with `Preempted`, `Doomed`, `Incomplete`, `Ended`, or `Volume` with `Full` or `Stopped`. After `Stopped` the commit may
    /// be there or not; after everything else it is not. The transaction has ended then. If the future is dropped it may commit.
    pub async fn commit(&self) -> Result<Option<Version>, CommitError> {
        let (inner, id) = (&self.inner, self.id);
        if inner.transactions.borrow_mut().unnest(id, false) {
            return Ok(None);
        }
        let snapshot = self.snapshot().inspect_err(|_| self.abort())?;
        let is_early = self.durability == Durability::Acknowledged;
        let (writes, is_hidden) = (RefCell::new(Vec::new()), Cell::new(false));
        let decide = || {
            let decided = inner.transactions.borrow_mut().decide(id)?;
            let Decided::Writes(decided) = decided else { return Ok(Vec::new()) };
            let leaves = |block| inner.transactions.borrow().leaves_some_of(id, block);
            let shows_hidden = |&(block, _): &(u64, _)| inner.is_hidden(block) && leaves(block);
            is_hidden.set(is_early && decided.iter().any(shows_hidden));
            let runs = decided.iter().map(|(block, data)| data_run(*block, data.clone())).collect();
            *writes.borrow_mut() = decided;
            Ok(runs)
        };
        let reads_only = inner.transactions.borrow().reads_only(id);
        let handed = if reads_only { decide().map(|_| None) } else { inner.commit(decide).await.map(Some) };
        self.note_end(&handed, &writes.borrow());
        inner.chain.send_early();
        inner.catch_up();
        let Some(handed) = handed? else { return Ok(Some(snapshot)) };
        if is_early && !is_hidden.get() {
            let mut overlay = inner.overlay.borrow_mut();
            for (block, data) in writes.into_inner() {
                overlay.add(handed.version.0, block, std::iter::once(Some(data)));
            }
            inner.acknowledged.set(handed.version.0);
        } else {
            inner.durable(handed.ticket).await?;
        }
        Ok(Some(handed.version))
    }

    /// The commit was handed over, or not.
    fn note_end(&self, handed: &Result<Option<Handed>, CommitError>, writes: &[(u64, Bytes)]) {
        let mut transactions = self.inner.transactions.borrow_mut();
        match handed {
            Ok(Some(handed)) => transactions.committed(self.id, handed.version.0, writes),
            Ok(None) => transactions.ended_reading(self.id),
            Err(CommitError::Conflict { .. }) => transactions.refused(self.id),
            Err(CommitError::Tx(_)) => transactions.abort(self.id),
        }
    }

    /// Aborts: nothing of it is kept. Of a nested transaction: nothing of the whole is, and everything but ends of transactions is
    /// refused from now on. It may have ended before.
    pub fn abort(&self) {
        let mut transactions = self.inner.transactions.borrow_mut();
        if !transactions.unnest(self.id, true) {
            transactions.abort(self.id);
        }
        drop(transactions);
        self.inner.catch_up();
    }

    /// Lets go of the transaction, for somebody else to go on with it by the handle, which nobody can guess. Who does not within
    /// [`VolumeSettings::released_max_age`](crate::VolumeSettings::released_max_age) finds it aborted. Errors, after which it is aborted
    /// too: `Ended`, `Preempted`, `TooManyReleased`; it may be doomed.
    pub fn release(self, heir: Heir) -> Result<TxHandle, TxError> {
        self.let_go(heir)
    }

    /// The same for who goes on with it after an error. Nothing is to be done with it after success.
    pub(crate) fn let_go(&self, heir: Heir) -> Result<TxHandle, TxError> {
        let handle = TxHandle(self.inner.env.random_u128());
        self.release_again(handle, heir)?;
        Ok(handle)
    }

    /// The same by the handle by which it was taken over.
    pub(crate) fn release_again(&self, handle: TxHandle, heir: Heir) -> Result<(), TxError> {
        match self.snapshot() {
            Ok(_) | Err(TxError::Doomed) => {}
            Err(error) => return Err(error),
        }
        self.inner.release(handle, Entry { id: self.id, durability: self.durability, heir })?;
        self.is_released.set(true);
        Ok(())
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        if !self.is_released.get() {
            self.inner.transactions.borrow_mut().drop(self.id);
            self.inner.catch_up();
        }
    }
}
