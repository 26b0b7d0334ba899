//! The way of a victim's records to where they are written again: several batches at a time.
//!
//! ```text
//!   live runs, as they lie ─► batches ─► read, some ahead ─► appended, up to the window ─► durable ─► their owner is told
//! ```
//!
//! The next batches are read while those before them are written. At the tail no more copies are under way than
//! [`Core::copies_window_bytes`] says, so that the log keeps its share of the drive.

use std::collections::VecDeque;
use std::rc::Rc;
use std::vec::IntoIter;

use bytes::Bytes;
use ithaca_env::Time;
use ithaca_env::task::TaskHandle;

use super::Inner;
use super::clean::{Unclean, refused};
use super::owned::{Copied, records_of};
use super::victim::Victim;
use crate::catalog::Located;
use crate::core::{Batch, Cause, Copies, Ticket};
use crate::limits::CLEAN_READ_AHEAD_BYTES;
use crate::planted::PlantedBug;
use crate::victims::Cleaning;

/// A batch whose data is being read.
struct Reading {
    batch: Vec<Located>,
    bytes: u64,
    data: TaskHandle<Result<Vec<Bytes>, Unclean>>,
}

/// A batch whose copies are on their way to the tail.
struct Writing {
    batch: Vec<Located>,
    bytes: u64,
    ticket: Ticket,
}

/// Batches on their way.
struct Moving<'a> {
    inner: &'a Rc<Inner>,
    victim: &'a Victim,
    /// What is in no batch yet, as it lies in the segment.
    runs: IntoIter<Located>,
    /// Taken from it, and too much for the batch before.
    next: Option<Located>,
    reading: VecDeque<Reading>,
    writing: VecDeque<Writing>,
    /// What may be on its way to the tail, as of the last look.
    window_bytes: u64,
}

impl Inner {
    /// Reads the data of these runs, which lie one behind the other, and appends them again. On return all copies are durable,
    /// and the owner has been told of them.
    pub(super) async fn move_runs(
        self: &Rc<Self>,
        victim: &Victim,
        runs: Vec<Located>,
    ) -> Result<(), Unclean> {
        let mut moving = Moving {
            inner: self,
            victim,
            runs: runs.into_iter(),
            next: None,
            reading: VecDeque::new(),
            writing: VecDeque::new(),
            window_bytes: 2 * victim.batch_bytes,
        };
        let moved = moving.run().await;
        // Whatever has happened: what is durable counts, and nothing of this goes on behind our back.
        let settled = moving.settle().await;
        self.copies.borrow_mut().clear();
        moved.and(settled)
    }

    /// Whether the cleaning of this victim does without rests.
    fn is_hurried(&self, victim: &Victim) -> bool {
        !matches!(victim.cause, Cause::Space | Cause::Footer) || self.core.borrow().is_cleaning_urgent()
    }

    fn append_copies(self: &Rc<Self>, batch: Batch) -> Result<Ticket, Unclean> {
        let ticket = self.core.borrow_mut().append_copies(batch).map_err(refused)?;
        self.copies.borrow_mut().push_back(Copied::new(ticket));
        self.pump.ring();
        Ok(ticket)
    }

    /// Tells the owner of records where their copies are: of the batch that was written first and is durable.
    fn tell_of_moves(&self, batch: &[Located]) {
        let copied = self.copies.borrow_mut().pop_front();
        let (Some(owner), Some(copied)) = (&self.owner, copied) else { return };
        if self.core.borrow().options.planted.is(PlantedBug::OwnerNotToldOfMove) {
            return;
        }
        let from = batch.iter().flat_map(|it| records_of(&it.run.view(), it.segment, it.lap));
        let to = copied.runs.iter().flat_map(|it| records_of(&it.run.view(), it.segment, it.lap));
        for (from, to) in from.zip(to) {
            assert_eq!(
                (from.key, from.version, from.kind),
                (to.key, to.version, to.kind),
                "a copy is the same"
            );
            match owner.moved(from, to.place) {
                true => self.keep_moved(&from.place, &to.place),
                false => self.core.borrow_mut().note_garbage(to.place.lap, 1),
            }
        }
    }

    /// What a cleaner does that must not: it forgets what it cannot read.
    async fn without_damaged(&self, batch: Vec<Located>) -> Vec<Located> {
        let mut whole = Vec::new();
        for located in batch {
            if self.fetch(std::slice::from_ref(&located)).await.is_ok() {
                whole.push(located);
            }
        }
        whole
    }
}

impl Moving<'_> {
    async fn run(&mut self) -> Result<(), Unclean> {
        loop {
            let began = self.inner.env.now();
            self.read_ahead().await;
            let ends = self.inner.is_closing.get() && self.victim.cause != Cause::Leaving;
            if ends && !self.reading.is_empty() {
                // What is being read is waited for by `settle`.
                return Err(Unclean::Over);
            }
            let Some(Reading { batch, bytes, data }) = self.reading.pop_front() else { return Ok(()) };
            let data = data.join().await.unwrap_or(Err(Unclean::Over))?;
            self.write(batch, bytes, data).await?;
            self.rest(began).await?;
        }
    }

    /// Begins to read what comes next: one batch, or as many as may be read ahead.
    async fn read_ahead(&mut self) {
        let is_hurried = self.inner.is_hurried(self.victim);
        let ahead_bytes = if is_hurried { (2 * self.window_bytes).min(CLEAN_READ_AHEAD_BYTES) } else { 0 };
        let mut bytes: u64 = self.reading.iter().map(|it| it.bytes).sum();
        while self.reading.is_empty() || bytes < ahead_bytes {
            let (mut batch, batch_bytes) = self.next_batch();
            if self.inner.core.borrow().options.planted.is(PlantedBug::CleanerFreesDamaged) {
                batch = self.inner.without_damaged(batch).await;
            }
            if batch.is_empty() {
                return;
            }
            let (inner, wanted) = (Rc::clone(self.inner), batch.clone());
            let data = self
                .inner
                .env
                .spawn(async move { inner.patiently(async || inner.fetch_copies(&wanted).await).await });
            self.reading.push_back(Reading { batch, bytes: batch_bytes, data });
            bytes += batch_bytes;
        }
    }

    /// What is written together, and what it may take; nothing if nothing is left.
    fn next_batch(&mut self) -> (Vec<Located>, u64) {
        let mut copies = Copies::of(self.victim.batch_bytes);
        let mut batch = Vec::new();
        while let Some(located) = self.next.take().or_else(|| self.runs.next()) {
            if !self.inner.is_still_live(&located) {
                continue;
            }
            if copies.is_full_for(&located.run) {
                self.next = Some(located);
                break;
            }
            copies.add(&located.run);
            batch.push(located);
        }
        (batch, copies.total_bytes())
    }

    /// Appends a batch again, when there is room for it in the window.
    async fn write(&mut self, batch: Vec<Located>, bytes: u64, data: Vec<Bytes>) -> Result<(), Unclean> {
        let runs = batch.iter().zip(data).map(|(located, data)| located.run.clone().into_run(data)).collect();
        let copies = Batch { runs, ..Batch::default() };
        let is_compacting = self.inner.core.borrow().options.cleaning == Cleaning::CompactInBody;
        if is_compacting && self.victim.cause != Cause::Leaving {
            self.end_writes().await?;
            if self.inner.write_to_body(&copies).await? {
                self.inner.tell_of_moves(&batch);
                return Ok(());
            }
        }
        loop {
            let under_way: u64 = self.writing.iter().map(|it| it.bytes).sum();
            self.window_bytes = self.inner.core.borrow_mut().copies_window_bytes();
            if self.writing.is_empty() || under_way + bytes <= self.window_bytes {
                break;
            }
            self.end_oldest().await?;
        }
        let ticket = self.inner.append_copies(copies)?;
        self.writing.push_back(Writing { batch, bytes, ticket });
        Ok(())
    }

    /// Waits until the oldest batch is durable, and tells the owner.
    async fn end_oldest(&mut self) -> Result<(), Unclean> {
        let Some(Writing { batch, ticket, .. }) = self.writing.pop_front() else { return Ok(()) };
        if self.inner.core.borrow().options.planted.is(PlantedBug::VictimFreedEarly) {
            return Ok(());
        }
        self.inner.durable_from(ticket).await?;
        self.inner.tell_of_moves(&batch);
        Ok(())
    }

    async fn end_writes(&mut self) -> Result<(), Unclean> {
        while !self.writing.is_empty() {
            self.end_oldest().await?;
        }
        Ok(())
    }

    /// Where there is time, a batch is durable before the next one, and a rest lies in between.
    async fn rest(&mut self, began: Time) -> Result<(), Unclean> {
        if self.inner.is_hurried(self.victim) {
            return Ok(());
        }
        self.end_writes().await?;
        self.inner.rest(began).await;
        Ok(())
    }

    /// Waits for the reads and copies that are under way.
    async fn settle(&mut self) -> Result<(), Unclean> {
        for reading in self.reading.drain(..) {
            let _ = reading.data.join().await;
        }
        self.end_writes().await
    }
}
