//! A segment that is to be cleaned: what in it is live, and its way to the tail.

use std::ops::Range;
use std::rc::Rc;

use super::Inner;
use super::clean::{Unclean, refused};
use super::owned::{Copied, records_of};
use crate::cache::{FooterPart, PartKey};
use crate::catalog::Located;
use crate::core::{Batch, Cause, PassedBy, Ticket};
use crate::format::{Directory, PageView};
use crate::limits::SCAN_IO_BYTES;
use crate::options::planted;
use crate::owner::{Owner, Placed};
use crate::range_set::RangeSet;
use crate::read::{FetchError, Plan};
use crate::run::RunKind;
use crate::victims::Cleaning;

/// See the module.
pub(super) struct Victim {
    pub(super) segment: u32,
    pub(super) lap: u64,
    pub(super) directory: Rc<Directory>,
    /// Why it is cleaned.
    pub(super) cause: Cause,
}

/// Some records of one run of a page.
type Part = (usize, Range<u64>);

impl Inner {
    /// A page of the victim's footer. Those that follow are read along: all of them are needed.
    async fn page(&self, victim: &Victim, page: usize) -> Result<Rc<PageView>, Unclean> {
        let key = PartKey { segment: victim.segment, lap: victim.lap, page: Some(page as u32) };
        let cached = self.footers.borrow_mut().get(key);
        if let Some(FooterPart::Page(page)) = cached {
            return Ok(page);
        }
        match self.load_footer_part(key, SCAN_IO_BYTES).await?.into_iter().next() {
            Some((_, FooterPart::Page(page))) => Ok(page),
            _ => Err(self.harmed_or_over(victim.segment, victim.lap)),
        }
    }

    /// The parts of a page's runs whose records are not released, and of which their owner says that it needs them.
    fn live(&self, victim: &Victim, page: &PageView) -> Vec<Part> {
        let core = self.core.borrow();
        let mut live = Vec::new();
        for (run, keys) in (0..page.run_count()).filter_map(|run| Some((run, page.keys(run)?))) {
            if planted!(core.options, CleanerIgnoresRelease) {
                live.push((run, keys));
                continue;
            }
            for keys in core.catalog.released.gaps(keys) {
                match &self.owner {
                    None => live.push((run, keys)),
                    Some(owner) => {
                        let needed = needed(&**owner, victim, page, run, keys);
                        live.extend(needed.ranges().map(|keys| (run, keys)));
                    }
                }
            }
        }
        if planted!(core.options, CleanerDropsLive) {
            live.pop();
        }
        live
    }

    /// The same, without the junk of deleted keys of which nothing older is on any drive.
    fn to_move(&self, victim: &Victim, page: &PageView) -> Vec<Part> {
        let live = self.live(victim, page);
        let Some(owner) = &self.owner else { return live };
        let core = self.core.borrow();
        let is_early = planted!(core.options, TombstoneDroppedEarly);
        let mut kept = Vec::new();
        for (run, keys) in live {
            let (head, _) = page.part(run, keys.clone());
            if head.kind == RunKind::Data {
                kept.push((run, keys));
                continue;
            }
            let is_last = |key| is_early || !core.catalog.may_hold(key, victim.segment);
            let records = records_of(&head, victim.segment, victim.lap);
            let stays = records.filter(|it| !(is_last(it.key) && owner.dropped(*it)));
            let stays: RangeSet = stays.map(|it| it.key..it.key + 1).collect();
            kept.extend(stays.ranges().map(|keys| (run, keys)));
        }
        kept
    }

    /// What the victim's records take at the tail.
    pub(super) async fn measure(&self, victim: &Victim) -> Result<u64, Unclean> {
        let mut copies = self.core.borrow().copies();
        for page in 0..victim.directory.pages.len() {
            let page = self.page(victim, page).await?;
            for (run, keys) in self.live(victim, &page) {
                let (head, blob) = page.part(run, keys);
                copies.add(&head.to_head(blob));
            }
        }
        Ok(copies.total_bytes())
    }

    /// Appends every record again that is not released and has no other copy. On return all copies are durable.
    pub(super) async fn move_records(self: &Rc<Self>, victim: &Victim) -> Result<(), Unclean> {
        let mut batch: Vec<Located> = Vec::new();
        let mut copies = self.core.borrow().copies();
        for page in 0..victim.directory.pages.len() {
            let page = self.page(victim, page).await?;
            let live = self.to_move(victim, &page);
            let elsewhere = match &self.owner {
                None => self.elsewhere(victim, &page, &live).await?,
                Some(_) => RangeSet::new(),
            };
            for (run, keys) in live {
                for keys in elsewhere.gaps(keys) {
                    let (head, blob) = page.part(run, keys);
                    let run = head.to_head(blob);
                    if copies.is_full_for(&run) {
                        copies.finish();
                        self.move_batch(victim, std::mem::take(&mut batch)).await?;
                    }
                    copies.add(&run);
                    batch.push(Located { segment: victim.segment, lap: victim.lap, run });
                }
            }
        }
        self.move_batch(victim, batch).await
    }

    /// Which of these keys have a copy in another segment: after a crash in the middle of a cleaning, or when a freed segment
    /// came back. No segment may hold two. Errors: a copy is damaged; then this is the record's only one.
    async fn elsewhere(
        self: &Rc<Self>,
        victim: &Victim,
        page: &PageView,
        live: &[Part],
    ) -> Result<RangeSet, Unclean> {
        let keys: RangeSet = live.iter().map(|(_, keys)| keys.clone()).collect();
        loop {
            let mut going = vec![victim.segment];
            if !planted!(self.core.borrow().options, WaitingCountsAsCopy) {
                // Or each of two would be freed because of what the other has.
                going.extend(self.core.borrow().waiting().map(|(segment, _)| segment));
            }
            let mut plan = Plan::elsewhere(keys.ranges().collect(), going);
            self.run_plan(&mut plan, SCAN_IO_BYTES).await?;
            let is_same = |found: &Located, run: usize, keys: &Range<u64>| {
                let (head, _) = page.part(run, keys.clone());
                let has_keys = found.run.keys().start < keys.end && keys.start < found.run.keys().end;
                has_keys && (head.version, head.kind) == (found.run.version, found.run.kind)
            };
            plan.found.retain(|found| live.iter().any(|(run, keys)| is_same(found, *run, keys)));
            match self.verify(&plan.found).await {
                Err(FetchError::Recycled) => {}
                verified => {
                    verified?;
                    return Ok(plan.found.iter().map(|found| found.run.keys()).collect());
                }
            }
        }
    }

    /// Reads runs and checks them, a few at a time.
    async fn verify(&self, found: &[Located]) -> Result<(), FetchError> {
        for one in found.chunks(16) {
            self.fetch(one).await?;
        }
        Ok(())
    }

    /// Reads the records in the order in which they lie there, and appends them. On return they are durable.
    async fn move_batch(self: &Rc<Self>, victim: &Victim, mut batch: Vec<Located>) -> Result<(), Unclean> {
        if batch.is_empty() {
            return Ok(());
        }
        if self.is_closing.get() && victim.cause != Cause::Leaving {
            return Err(Unclean::Over);
        }
        let began = self.env.now();
        batch.sort_by_key(|located| located.run.data_offset);
        if planted!(self.core.borrow().options, CleanerFreesDamaged) {
            batch = self.without_damaged(batch).await?;
        }
        let data = self.fetch(&batch).await?;
        let runs = batch.iter().zip(data).map(|(located, data)| located.run.clone().into_run(data)).collect();
        let copies = Batch { runs, ..Batch::default() };
        let is_compacting = self.core.borrow().options.cleaning == Cleaning::CompactInBody;
        let is_for_body = is_compacting && victim.cause != Cause::Leaving;
        if !is_for_body || !self.write_to_body(&copies).await? {
            let ticket = self.append_copies(copies)?;
            if planted!(self.core.borrow().options, VictimFreedEarly) {
                return Ok(());
            }
            self.durable_from(ticket).await?;
        }
        self.tell_of_moves(&batch);
        let is_hurried = victim.cause != Cause::Space || self.core.borrow().is_cleaning_urgent();
        if !is_hurried {
            self.rest(began).await;
        }
        Ok(())
    }

    /// What a cleaner does that must not: it forgets what it cannot read.
    async fn without_damaged(&self, batch: Vec<Located>) -> Result<Vec<Located>, Unclean> {
        let mut whole = Vec::new();
        for located in batch {
            if self.fetch(std::slice::from_ref(&located)).await.is_ok() {
                whole.push(located);
            }
        }
        Ok(whole)
    }

    fn append_copies(self: &Rc<Self>, batch: Batch) -> Result<Ticket, Unclean> {
        let ticket = self.core.borrow_mut().append_copies(batch).map_err(refused)?;
        self.copies.replace(Some(Copied::new(ticket)));
        self.pump.ring();
        Ok(ticket)
    }

    /// Tells the owner of records where their copies are. They are durable.
    fn tell_of_moves(&self, batch: &[Located]) {
        let copied = self.copies.take();
        let (Some(owner), Some(copied)) = (&self.owner, copied) else { return };
        if planted!(self.core.borrow().options, OwnerNotToldOfMove) {
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
            if !owner.moved(from, to.place) {
                self.core.borrow_mut().note_garbage(to.place.lap);
            }
        }
    }

    /// Before a segment is freed: its owner needs no record of it where it is. Errors: it needs one.
    pub(super) async fn check_nobody_needs(&self, victim: &Victim) -> Result<(), Unclean> {
        let is_untold = planted!(self.core.borrow().options, OwnerNotToldOfMove);
        let is_early = planted!(self.core.borrow().options, VictimFreedEarly);
        let drops_live = planted!(self.core.borrow().options, CleanerDropsLive);
        let is_planted = is_untold | is_early | drops_live;
        if self.owner.is_none() || is_planted {
            return Ok(());
        }
        for page in 0..victim.directory.pages.len() {
            let page = self.page(victim, page).await?;
            if !self.live(victim, &page).is_empty() {
                return Err(Unclean::PassedBy(PassedBy::Kept));
            }
        }
        Ok(())
    }
}

/// The keys among `keys` of a run of which the owner needs the records that the victim has.
fn needed(owner: &dyn Owner, victim: &Victim, page: &PageView, run: usize, keys: Range<u64>) -> RangeSet {
    let (head, _) = page.part(run, keys);
    let live = records_of(&head, victim.segment, victim.lap).filter(|it: &Placed| owner.is_live(*it));
    live.map(|it| it.key..it.key + 1).collect()
}
