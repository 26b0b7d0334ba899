//! A segment that is to be cleaned: what in it is live, what of that must have another place, and whether it may go.

use std::cell::OnceCell;
use std::ops::Range;
use std::rc::Rc;

use super::Inner;
use super::clean::Unclean;
use super::owned::records_of;
use crate::cache::{FooterPart, PartKey};
use crate::catalog::Located;
use crate::core::{Cause, Copies, PassedBy};
use crate::format::{Directory, PageView};
use crate::limits::{CLEAN_RUNS_MAX, SCAN_IO_BYTES};
use crate::owner::Owner;
use crate::planted::PlantedBug;
use crate::range_set::RangeSet;
use crate::read::{FetchError, Plan};
use crate::run::RunKind;

/// See the module.
pub(super) struct Victim {
    pub(super) segment: u32,
    pub(super) lap: u64,
    pub(super) directory: Rc<Directory>,
    /// All pages, if they were made of the groups because a part of the footer could not be read.
    pub(super) remade: OnceCell<Vec<Rc<PageView>>>,
    /// Why it is cleaned.
    pub(super) cause: Cause,
    /// The most that is moved together, as it counts at the tail.
    pub(super) batch_bytes: u64,
}

/// What moving a victim's records will take.
pub(super) struct Measured {
    /// Bytes at the tail, in batches of the size that it is moved in.
    pub(super) needed_bytes: u64,
    /// Bytes that it takes in any case: whether it is worth it does not depend on the size of batches.
    pub(super) least_bytes: u64,
    /// How many are live.
    pub(super) live: u64,
    /// If they are not too many, what is live, in the order in which it lies there.
    pub(super) runs: Option<Vec<Located>>,
}

/// Runs of which it is asked together where else they are.
const ELSEWHERE_RUNS: usize = 256;

/// Some records of one run of a page.
type Part = (usize, Range<u64>);

impl Inner {
    /// A page of the victim's footer, in its turn: what is under way goes on between two of them.
    async fn next_page(&self, victim: &Victim, page: usize) -> Result<Rc<PageView>, Unclean> {
        self.env.yield_now().await;
        self.page(victim, page).await
    }

    /// A page of the victim's footer. Those that follow are read along: all of them are needed.
    async fn page(&self, victim: &Victim, page: usize) -> Result<Rc<PageView>, Unclean> {
        let Victim { segment, lap, .. } = *victim;
        if let Some(pages) = victim.remade.get() {
            return Ok(Rc::clone(&pages[page]));
        }
        let key = PartKey { segment, lap, page: Some(page as u32) };
        match self.patiently(async || self.footer_part(key, SCAN_IO_BYTES).await).await {
            Ok(Some(FooterPart::Page(page))) => Ok(page),
            read => {
                let remade = self.footer_of_groups(segment, lap, read).await?;
                Ok(Rc::clone(&victim.remade.get_or_init(|| remade.pages)[page]))
            }
        }
    }

    /// The parts of a page's runs whose records are not released, and of which their owner says that it needs them.
    fn live(&self, victim: &Victim, page: &PageView) -> Vec<Part> {
        let core = self.core.borrow();
        let mut live = Vec::new();
        for (run, keys) in (0..page.run_count()).filter_map(|run| Some((run, page.keys(run)?))) {
            if core.options.planted.is(PlantedBug::CleanerIgnoresRelease) {
                live.push((run, keys));
                continue;
            }
            for keys in core.catalog.released.gaps(keys) {
                match &self.owner {
                    None => live.push((run, keys)),
                    Some(owner) => push_needed(&**owner, victim, page, (run, keys), &mut live),
                }
            }
        }
        if core.options.planted.is(PlantedBug::CleanerDropsLive) {
            live.pop();
        }
        live
    }

    /// What the victim's records take at the tail.
    pub(super) async fn measure(&self, victim: &Victim) -> Result<Measured, Unclean> {
        let mut copies = Copies::of(victim.batch_bytes);
        let mut least = Copies::of(self.core.borrow().copies_max_bytes());
        let (mut from, mut parts, mut live) = (0, 0, 0);
        loop {
            let (runs, next) = self.collect(victim, from).await?;
            for located in &runs {
                copies.add(&located.run);
                least.add(&located.run);
                live += located.run.table.count() as u64;
            }
            copies.finish();
            parts += 1;
            if next == victim.directory.pages.len() {
                return Ok(Measured {
                    needed_bytes: copies.total_bytes(),
                    least_bytes: least.total_bytes(),
                    live,
                    runs: (parts == 1).then_some(runs),
                });
            }
            from = next;
        }
    }

    /// The live runs of the pages from `from` on, as many as are moved in one go, in the order in which they lie there, and
    /// the first page that was not looked at.
    async fn collect(&self, victim: &Victim, from: usize) -> Result<(Vec<Located>, usize), Unclean> {
        let mut runs = Vec::new();
        let mut next = from;
        while next < victim.directory.pages.len() && runs.len() < CLEAN_RUNS_MAX {
            let page = self.next_page(victim, next).await?;
            next += 1;
            for (run, keys) in self.live(victim, &page) {
                let (head, blob) = page.part(run, keys);
                runs.push(Located { segment: victim.segment, lap: victim.lap, run: head.to_head(blob) });
            }
        }
        runs.sort_by_key(|located| located.run.data_offset);
        Ok((runs, next))
    }

    /// Appends every record again that is not released and has no other copy. On return all copies are durable. `measured` is
    /// what [`Inner::measure`] gave.
    pub(super) async fn move_records(
        self: &Rc<Self>,
        victim: &Victim,
        measured: Option<Vec<Located>>,
    ) -> Result<(), Unclean> {
        if let Some(runs) = measured {
            let runs = self.to_move(victim, runs).await?;
            return self.move_runs(victim, runs).await;
        }
        let mut from = 0;
        while from < victim.directory.pages.len() {
            let (runs, next) = self.collect(victim, from).await?;
            let runs = self.to_move(victim, runs).await?;
            self.move_runs(victim, runs).await?;
            from = next;
        }
        Ok(())
    }

    /// Of live runs those that must have another place: not the junk of deleted keys of which nothing older is on any drive, and
    /// not what has another place already.
    async fn to_move(self: &Rc<Self>, victim: &Victim, runs: Vec<Located>) -> Result<Vec<Located>, Unclean> {
        if let Some(owner) = &self.owner {
            return Ok(self.without_last_junk(&**owner, victim, runs));
        }
        let mut kept = Vec::with_capacity(runs.len());
        for runs in runs.chunks(ELSEWHERE_RUNS) {
            let elsewhere = self.elsewhere(victim, runs).await?;
            for located in runs {
                kept.extend(elsewhere.gaps(located.run.keys()).map(|keys| located.part(keys)));
            }
        }
        Ok(kept)
    }

    fn without_last_junk(&self, owner: &dyn Owner, victim: &Victim, runs: Vec<Located>) -> Vec<Located> {
        let core = self.core.borrow();
        let is_early = core.options.planted.is(PlantedBug::TombstoneDroppedEarly);
        let is_last = |key| is_early || !core.catalog.may_hold(key, victim.segment);
        let mut kept = Vec::with_capacity(runs.len());
        for located in runs {
            if located.run.kind == RunKind::Data {
                kept.push(located);
                continue;
            }
            let view = located.run.view();
            let records = records_of(&view, victim.segment, victim.lap);
            let stays = records.filter(|it| !(is_last(it.key) && owner.dropped(*it)));
            let stays: RangeSet = stays.map(|it| it.key..it.key + 1).collect();
            kept.extend(stays.ranges().map(|keys| located.part(keys)));
        }
        kept
    }

    /// Whether anything of a run is needed by now: much of a segment is overwritten while it is cleaned.
    pub(super) fn is_still_live(&self, located: &Located) -> bool {
        let Some(owner) = &self.owner else { return true };
        if self.core.borrow().options.planted.is(PlantedBug::CleanerIgnoresRelease) {
            return true;
        }
        let view = located.run.view();
        records_of(&view, located.segment, located.lap).any(|record| owner.is_live(record))
    }

    /// Which of these keys have a copy in another segment: after a crash in the middle of a cleaning, or when a freed segment
    /// came back. No segment may hold two. Errors: a copy is damaged; then this is the record's only one.
    async fn elsewhere(self: &Rc<Self>, victim: &Victim, live: &[Located]) -> Result<RangeSet, Unclean> {
        let keys: RangeSet = live.iter().map(|located| located.run.keys()).collect();
        loop {
            let mut going = vec![victim.segment];
            if !self.core.borrow().options.planted.is(PlantedBug::WaitingCountsAsCopy) {
                // Or each of two would be freed because of what the other has.
                going.extend(self.core.borrow().copied().iter().map(|(segment, _)| *segment));
            }
            let planned = self.patiently(async || {
                let mut plan = Plan::elsewhere(keys.ranges().collect(), going.clone());
                self.run_plan(&mut plan, SCAN_IO_BYTES).await.map(|()| plan)
            });
            let mut plan = planned.await?;
            let is_same = |found: &Located, live: &Located| {
                let (found, keys) = (&found.run, live.run.keys());
                let has_keys = found.keys().start < keys.end && keys.start < found.keys().end;
                has_keys && (live.run.version, live.run.kind) == (found.version, found.kind)
            };
            plan.found.retain(|found| live.iter().any(|live| is_same(found, live)));
            let verified = self.patiently(async || match self.verify(&plan.found).await {
                Err(FetchError::Recycled) => Ok(false),
                Err(FetchError::Read(error)) => Err(error),
                Err(FetchError::Unread { error, .. }) => Err(error.into()),
                Ok(()) => Ok(true),
            });
            if verified.await? {
                return Ok(plan.found.iter().map(|found| found.run.keys()).collect());
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

    /// Before a segment is freed: its owner needs no record of it where it is. Errors: it needs one.
    pub(super) async fn check_nobody_needs(&self, victim: &Victim) -> Result<(), Unclean> {
        let is_untold = self.core.borrow().options.planted.is(PlantedBug::OwnerNotToldOfMove);
        let is_early = self.core.borrow().options.planted.is(PlantedBug::VictimFreedEarly);
        let drops_live = self.core.borrow().options.planted.is(PlantedBug::CleanerDropsLive);
        let is_planted = is_untold | is_early | drops_live;
        if self.owner.is_none() || is_planted {
            return Ok(());
        }
        for page in 0..victim.directory.pages.len() {
            let page = self.next_page(victim, page).await?;
            if !self.live(victim, &page).is_empty() {
                return Err(Unclean::PassedBy(PassedBy::Kept));
            }
        }
        Ok(())
    }
}

/// Adds those records of `part` of which the owner needs what the victim has.
fn push_needed(owner: &dyn Owner, victim: &Victim, page: &PageView, (run, keys): Part, live: &mut Vec<Part>) {
    let (head, _) = page.part(run, keys);
    for record in records_of(&head, victim.segment, victim.lap) {
        if !owner.is_live(record) {
            continue;
        }
        match live.last_mut() {
            Some((last, keys)) if *last == run && keys.end == record.key => keys.end += 1,
            _ => live.push((run, record.key..record.key + 1)),
        }
    }
}
