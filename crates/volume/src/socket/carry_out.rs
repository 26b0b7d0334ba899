//! What the server does for each request.

use std::ops::Range;
use std::rc::Rc;

use ithaca_env::memory::SharedMemory;

use super::frame::Head;
use super::limits::MEMORY_MAX_BYTES;
use super::refusal::{Refusal, Status};
use super::reply::{NO_VERSION, Reply};
use super::request::Request;
use super::server::Client;
use super::summary::Summary;
use crate::limits::VOLUME_BLOCK_BYTES;
use crate::{CommitError, Heir, Taker, Tx, TxOptions};

impl Client {
    /// Carries a request out. Of one transaction only one at a time is.
    ///
    /// What a client may change meanwhile is copied before anything is done with it, and written to when all is done: nothing is decided by it.
    pub(super) async fn carry_out(&self, number: u32, request: Request) -> Result<Reply, Refusal> {
        match request {
            Request::ShareMemory => self.share_memory(),
            Request::ReadInto { blocks, slot } => {
                let (memory, at) = self.slots(slot, &blocks)?;
                let reply = self.do_it(number, Request::Read { blocks: blocks.clone() }).await?;
                let data = reply.data();
                assert_eq!(data.len(), bytes_of(&blocks), "what was read is what was asked for");
                memory.copy_in(at, &data);
                Ok(Reply::Done)
            }
            Request::WriteFrom { blocks, slot, durability } => {
                let (memory, at) = self.slots(slot, &blocks)?;
                let data = memory.copy_out(at, bytes_of(&blocks));
                self.do_it(number, Request::Write { first_block: blocks.start, data, durability }).await
            }
            other => self.do_it(number, other).await,
        }
    }

    /// Uses the memory that came with the first bytes. Errors: `Request`, if none came, or some that is not to be trusted.
    fn share_memory(&self) -> Result<Reply, Refusal> {
        let refusal = |words: &dyn std::fmt::Display| Refusal::new(Status::Request, words);
        if self.memory.borrow().is_some() {
            return Err(refusal(&"there is memory already"));
        }
        let passed = self.passed.take();
        let passed =
            passed.ok_or_else(|| refusal(&"no memory came with the first bytes of the connection"))?;
        let memory = passed.open(MEMORY_MAX_BYTES).map_err(|error| refusal(&error))?;
        self.memory.replace(Some(Rc::new(memory)));
        Ok(Reply::Done)
    }

    /// The client's memory, and where in it these blocks begin. Errors: `Request`, `OutOfRange`.
    fn slots(&self, slot: u32, blocks: &Range<u64>) -> Result<(Rc<SharedMemory>, usize), Refusal> {
        let memory = self.memory.borrow().clone();
        let memory = memory.ok_or_else(|| Refusal::new(Status::Request, "there is no memory"))?;
        let there = memory.len_bytes() / VOLUME_BLOCK_BYTES;
        let end = slot as usize + (blocks.end - blocks.start) as usize;
        if end > there {
            let words = format!("slots {slot} to {}, of {there}", end - 1);
            return Err(Refusal::new(Status::OutOfRange, words));
        }
        Ok((memory, slot as usize * VOLUME_BLOCK_BYTES))
    }

    /// Does what is asked for, all of which the server has.
    async fn do_it(&self, number: u32, request: Request) -> Result<Reply, Refusal> {
        let volume = &self.shared.volume;
        // It is of this region until it is done, whichever one the client opens meanwhile.
        let _region = self.region.borrow().clone();
        let request = self.placed(request)?;
        let version = match request {
            Request::Read { blocks } if number == 0 => {
                return Ok(Reply::Data(volume.read(blocks.start, blocks.end - blocks.start).await?));
            }
            Request::Write { first_block, data, durability } if number == 0 => {
                volume.write(first_block, data, durability).await?
            }
            Request::PleaseCache { block } if number == 0 => {
                volume.please_cache(block)?;
                return Ok(Reply::Done);
            }
            Request::Flush => volume.flush().await?,
            Request::Discard { blocks, durability } => volume.discard(blocks, durability).await?,
            Request::Info => return Ok(Reply::Info(Summary::of(volume))),
            Request::Snapshot(name) => volume.create_snapshot(&name).await?,
            Request::Snapshots => return Ok(Reply::Snapshots(volume.snapshots())),
            Request::Forget(name) => {
                volume.delete_snapshot(&name).await?;
                return Ok(Reply::Done);
            }
            Request::OpenRegion(name) => {
                let region = volume.region(&name)?;
                self.region.replace(Some(Rc::new(volume.use_region(region.clone()))));
                return Ok(Reply::Regions(vec![region]));
            }
            Request::Regions => return Ok(Reply::Regions(volume.regions())),
            Request::CreateRegion { name, blocks } => {
                return Ok(Reply::Regions(vec![volume.create_region(&name, blocks).await?]));
            }
            Request::DeleteRegion(name) => {
                volume.delete_region(&name).await?;
                return Ok(Reply::Done);
            }
            Request::Scrub => return self.scrub().await,
            Request::Scrubbed => return Ok(self.scrubbed()),
            of_a_transaction => return self.in_transaction(number, of_a_transaction).await,
        };
        Ok(Reply::Version(version))
    }

    /// The request about the volume's blocks, of a client that works in a region. Errors: `OutOfRange`.
    fn placed(&self, request: Request) -> Result<Request, Refusal> {
        match &*self.region.borrow() {
            Some(region) => Ok(request.placed(|blocks| region.place(blocks, self.shared.options.planted))?),
            None => Ok(request),
        }
    }

    /// The refusal of a commit, with the client's number of the block: that of its region, if the region has it.
    fn refused(&self, error: CommitError) -> Refusal {
        let first = match (&*self.region.borrow(), &error) {
            (Some(region), CommitError::Conflict { block, .. }) if region.blocks.contains(block) => {
                region.blocks.start
            }
            _ => 0,
        };
        match error {
            CommitError::Conflict { block, bytes, version } => {
                CommitError::Conflict { block: block - first, bytes, version }.into()
            }
            other => other.into(),
        }
    }

    /// The same for requests of transactions.
    async fn in_transaction(&self, number: u32, request: Request) -> Result<Reply, Refusal> {
        let client = 1 + u64::from(self.peer.process);
        match request {
            Request::Begin { isolation, durability } => {
                let options = TxOptions { isolation, durability, client };
                return self.enter(number, || Ok(self.shared.volume.begin(options)?));
            }
            Request::TakeOver(handle) => {
                let taker = Taker { user: Some(self.peer.user), client };
                return self.enter(number, || Ok(self.shared.volume.take_over_as(handle, taker)?));
            }
            Request::Commit => return self.commit(number).await,
            Request::Release(heir) => return self.release(number, heir),
            _ => {}
        }
        let tx = self.tx(number)?;
        match request {
            Request::Nest => tx.begin()?,
            Request::Abort => {
                if tx.depth() == 0 {
                    self.txs.borrow_mut().remove(&number);
                }
                tx.abort();
            }
            Request::Read { blocks } => {
                return Ok(Reply::Data(tx.read(blocks.start, blocks.end - blocks.start).await?));
            }
            Request::Write { first_block, data, .. } => {
                tx.write(first_block, data)?;
                return Ok(Reply::Version(NO_VERSION));
            }
            Request::ReadPart { block, bytes } => return Ok(Reply::Data(tx.read_part(block, bytes).await?)),
            Request::WritePart { block, at, data } => tx.write_part(block, at, &data).await?,
            Request::MarkAccessed { block, bytes } => tx.mark_accessed(block, bytes)?,
            Request::PleaseCache { block } => tx.please_cache(block)?,
            _ => unreachable!("other requests are not about a transaction"),
        }
        Ok(Reply::Done)
    }

    /// A request is refused. What its transaction lacks by that must not be left out silently: the client may have sent the commit already.
    pub(super) fn note_refused(&self, head: &Head) {
        if Request::completes(head.kind)
            && let Ok(tx) = self.tx(head.tx)
        {
            tx.note_refused_write();
        }
    }

    /// The transaction of this number. Errors: `Ended`.
    fn tx(&self, number: u32) -> Result<Rc<Tx>, Refusal> {
        let found = self.txs.borrow().get(&number).cloned();
        found.ok_or_else(|| Refusal::new(Status::Ended, format!("there is no transaction {number}")))
    }

    /// A transaction that the client has from now on. Errors: `NumberTaken`; those of `begin`.
    fn enter(&self, number: u32, begin: impl FnOnce() -> Result<Tx, Refusal>) -> Result<Reply, Refusal> {
        if self.txs.borrow().contains_key(&number) {
            let words = format!("there is a transaction {number} already");
            return Err(Refusal::new(Status::NumberTaken, words));
        }
        let tx = begin()?;
        // One that was released within a nested one that was aborted can still be ended.
        let snapshot = tx.snapshot().unwrap_or_default();
        let depth = tx.depth();
        self.txs.borrow_mut().insert(number, Rc::new(tx));
        Ok(Reply::Entered { snapshot, depth })
    }

    /// Commits, after which the number is free, whatever became of the transaction.
    async fn commit(&self, number: u32) -> Result<Reply, Refusal> {
        let tx = self.tx(number)?;
        if tx.depth() == 0 {
            self.txs.borrow_mut().remove(&number);
        }
        let committed = tx.commit().await.map_err(|error| self.refused(error))?;
        Ok(Reply::Version(committed.unwrap_or(NO_VERSION)))
    }

    /// Lets go of a transaction, after which the number is free.
    fn release(&self, number: u32, heir: Heir) -> Result<Reply, Refusal> {
        let tx = self.tx(number)?;
        self.txs.borrow_mut().remove(&number);
        let tx = Rc::into_inner(tx).expect("nothing else of the transaction is under way");
        let heir = if heir == Heir::Anyone { heir } else { Heir::User(self.peer.user) };
        Ok(Reply::Handle(tx.release(heir)?))
    }
}

/// Bytes of so many blocks.
fn bytes_of(blocks: &Range<u64>) -> usize {
    (blocks.end - blocks.start) as usize * VOLUME_BLOCK_BYTES
}
