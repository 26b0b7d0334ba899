//! What the server does for each control call.

use std::rc::Rc;

use bytes::{Bytes, BytesMut};

use super::control::Control;
use super::reply::{self, Body};
use super::server::Shared;
use super::threads::NoEntry;
use super::wire::{Errno, Head};
use crate::limits::VOLUME_BLOCK_BYTES;
use crate::nbd::export::Failed;
use crate::{CommitError, Heir, Taker, Tx, TxError, TxHandle, TxOptions};

/// Bytes of the data of a release: the handle, who may take it over, padding.
const RELEASED_BYTES: usize = 24;
/// What the end of a nested transaction gives as its version.
const NO_VERSION: u64 = u64::MAX;
/// Whose transactions these are, for the volume: each thread is a client of its own, told apart from those of processes.
const THREADS_FROM: u64 = 1 << 40;

impl From<Failed> for Errno {
    fn from(failed: Failed) -> Self {
        tracing::warn!("fuse: a request failed: {}", failed.words);
        Self(failed.number())
    }
}

impl From<TxError> for Errno {
    fn from(error: TxError) -> Self {
        match error {
            TxError::Volume(error) => Failed::from(error).into(),
            TxError::Preempted | TxError::Doomed | TxError::Incomplete => Self::CANCELED,
            TxError::NoSuchHandle => Self::NOENT,
            TxError::TooManyWrites { .. } | TxError::TooManyReads { .. } => Self::NOSPC,
            TxError::TooMany { .. } | TxError::TooDeep { .. } | TxError::TooManyReleased { .. } => {
                Self::MFILE
            }
            TxError::Ended | TxError::NotAccessed { .. } | TxError::BadBytes { .. } => Self::INVAL,
        }
    }
}

impl From<CommitError> for Errno {
    fn from(error: CommitError) -> Self {
        match error {
            // All of it is to be tried again, as after a conflict.
            CommitError::Conflict { .. } | CommitError::Tx(TxError::Preempted) => Self::AGAIN,
            CommitError::Tx(error) => error.into(),
        }
    }
}

impl From<NoEntry> for Errno {
    fn from(no: NoEntry) -> Self {
        match no {
            NoEntry::NoThread => Self::PERM,
            NoEntry::Taken => Self::BUSY,
            NoEntry::Full => Self::MFILE,
        }
    }
}

impl Shared {
    /// Carries a control call out for the thread that makes it.
    pub(super) async fn control(
        &self,
        head: &Head,
        command: u32,
        data: Bytes,
        out_size: u32,
    ) -> Result<Body, Errno> {
        let answer = self.answer(head, command, data).await.inspect_err(|_| {
            // Of a nested one that has not begun the end would be taken for that of the thread's own.
            if let Some(tx) = self.tx(head.thread).filter(|_| Control::begins(command)) {
                tx.note_refused_write();
            }
        })?;
        // What has no room at the caller's is left out by the system; it would take more for a fault.
        let room = answer.len().min(out_size as usize);
        Ok(reply::control(answer.slice(..room)))
    }

    async fn answer(&self, head: &Head, command: u32, data: Bytes) -> Result<Bytes, Errno> {
        Ok(match Control::decode(command, data)? {
            Control::Begin { isolation, durability } => {
                self.begin(head, TxOptions { isolation, durability, client: client(head) })?;
                Bytes::new()
            }
            Control::TakeOver(handle) => {
                self.take_over(head, handle)?;
                Bytes::new()
            }
            Control::End => self.end(head.thread).await?,
            Control::Abort => {
                let tx = self.in_transaction(head.thread)?;
                if tx.depth() == 0 {
                    self.threads.borrow_mut().remove(head.thread);
                }
                tx.abort();
                Bytes::new()
            }
            Control::Release { to_anyone } => self.release(head, to_anyone)?,
            Control::MarkAccessed { block, first, end } => {
                let block = self.block(block)?;
                self.in_transaction(head.thread)?.mark_accessed(block, first as usize..end as usize)?;
                Bytes::new()
            }
            Control::PleaseCache { block } => {
                let block = self.block(block)?;
                match self.tx(head.thread) {
                    Some(tx) => tx.please_cache(block)?,
                    None => self.volume.please_cache(block).map_err(TxError::from)?,
                }
                Bytes::new()
            }
        })
    }

    /// The volume's number of a block of the file. Errors: `INVAL`: the file does not have it.
    fn block(&self, block: u64) -> Result<u64, Errno> {
        let blocks = self.export.info().size_bytes / VOLUME_BLOCK_BYTES as u64;
        if block < blocks { Ok(self.export.first_block() + block) } else { Err(Errno::INVAL) }
    }

    /// Errors: `INVAL`: the thread is in none.
    fn in_transaction(&self, thread: u32) -> Result<Rc<Tx>, Errno> {
        self.tx(thread).ok_or(Errno::INVAL)
    }

    /// Begins a transaction, or a nested one in that of the thread.
    fn begin(&self, head: &Head, options: TxOptions) -> Result<(), Errno> {
        match self.enter(head, || self.volume.begin(options)) {
            Err(Errno::BUSY) => Ok(self.in_transaction(head.thread)?.begin()?),
            entered => entered,
        }
    }

    fn take_over(&self, head: &Head, handle: TxHandle) -> Result<(), Errno> {
        let taker = Taker { user: Some(head.user), client: client(head) };
        self.enter(head, || self.volume.take_over_as(handle, taker))
    }

    /// The thread has a transaction from now on. Errors: `BUSY`: it has one already.
    fn enter(&self, head: &Head, begin: impl FnOnce() -> Result<Tx, TxError>) -> Result<(), Errno> {
        let told = self.channel.thread_started(head.thread);
        let started = told.map_err(|error| tracing::warn!(thread = head.thread, "fuse: {error}"));
        // What a thread of this number has left is aborted first.
        drop(self.threads.borrow_mut().admit(head.thread, &started)?);
        let Ok(Some(started)) = started else { unreachable!("who is admitted is known") };
        let tx = begin()?;
        self.threads.borrow_mut().insert(head.thread, started, Rc::new(tx));
        self.changed.ring();
        Ok(())
    }

    /// Commits; unless it is a nested one the thread then has none, whatever became of it.
    async fn end(&self, thread: u32) -> Result<Bytes, Errno> {
        let tx = self.in_transaction(thread)?;
        if tx.depth() == 0 {
            self.threads.borrow_mut().remove(thread);
        }
        let version = tx.commit().await?.map_or(NO_VERSION, |version| version.0);
        Ok(Bytes::copy_from_slice(&version.to_le_bytes()))
    }

    /// Lets go of the transaction. Errors, after which the thread is still in it: `BUSY`: reads or writes of it are under way.
    fn release(&self, head: &Head, to_anyone: bool) -> Result<Bytes, Errno> {
        let tx = self.in_transaction(head.thread)?;
        // One in the table, one here.
        if Rc::strong_count(&tx) > 2 {
            return Err(Errno::BUSY);
        }
        let heir = if to_anyone { Heir::Anyone } else { Heir::User(head.user) };
        let handle = tx.let_go(heir)?;
        self.threads.borrow_mut().remove(head.thread);
        let mut out = BytesMut::zeroed(RELEASED_BYTES);
        out[..16].copy_from_slice(&handle.0.to_be_bytes());
        out[16..20].copy_from_slice(&u32::from(to_anyone).to_le_bytes());
        Ok(out.freeze())
    }
}

fn client(head: &Head) -> u64 {
    THREADS_FROM + u64::from(head.thread)
}
