//! Reads of streams: which addresses belong to one is found out from the heads of their records, block by block, and remembered.
//!
//! What is read, and by what right, is as of any read. That a stream has nothing at an address is said where the record that is there says
//! so, which never changes; where there is none yet the answer is "unwritten", which needs the lease. (docs/protocol/streams.md)

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_chain::limits::FOUND_RUN_BYTES;
use ithaca_chain::{Heading, Run, RunKind, Table};

use super::UnitShell;
use crate::entry::EntryMeta;
use crate::limits;
use crate::planted::PlantedBug;
use crate::pos::{Addr, AddrRange, Epoch, StreamId};
use crate::server::cold_reads::{ColdRead, HEADINGS_BYTES};
use crate::server::reply::ReplyRoute;
use crate::unit::{Entries, Found, Holding, StreamBlock, StreamFound, StreamIndex};
use crate::wire::{ReadStream, Refusal, Wanted};

/// Entries of others in a row that are passed on the way to the next one of a stream, instead of looking for it.
const NEAR_MAX_COUNT: u64 = 4;

/// What a part of a block holds, for the reader of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Entries of the stream.
    Own,
    /// Nothing of it.
    Passed,
    /// Nothing any more.
    Trimmed,
    /// Nothing yet.
    Unwritten,
}

/// How much of a read was done.
#[derive(Default)]
struct Work {
    looked: usize,
    learned: usize,
}

impl Work {
    /// Whether another block may be looked through; `is_known` says that its records need not be looked at.
    fn goes_on(&mut self, is_known: bool) -> bool {
        self.looked += 1;
        self.learned += usize::from(!is_known);
        self.looked <= limits::STREAM_LOOKED_MAX_COUNT && self.learned <= limits::STREAM_LEARNED_MAX_COUNT
    }
}

/// What was found and is not in the answer yet. A rare stream has few entries in each of many blocks: those on the drive are read
/// together, and not those of one block after those of another.
#[derive(Default)]
struct Gathered {
    pieces: Vec<(AddrRange, What)>,
    /// Entries of the stream among them.
    own: u64,
}

impl Gathered {
    /// Adds what comes next. True, because that never cuts anything off.
    fn add(&mut self, range: AddrRange, what: What) -> bool {
        self.own += if what == What::Own { range.count() } else { 0 };
        self.pieces.push((range, what));
        true
    }
}

impl UnitShell {
    /// Serves a read of a stream.
    pub(in crate::server) fn read_stream(self: &Rc<Self>, route: ReplyRoute, mut read: ReadStream) {
        self.traffic.read();
        let end = read.ranges.last().map(|range| range.end);
        if let Err(refusal) = self.cut_to_readable(&route, &mut read.ranges, read.committed) {
            return route.refuse(refusal);
        }
        let readable_end = read.ranges.last().map(|range| range.end);
        if let Some(addr) = readable_end.filter(|_| read.last_only && readable_end != end) {
            // What comes last is not known here.
            let refused = self.check_epoch(route.epoch()).and(Err(Refusal::NotComplete { addr }));
            return refused.unwrap_or_else(|refusal: Refusal| route.refuse(refusal));
        }
        // One entry is all that there is to be of what comes last.
        let limit_bytes = if read.last_only { limits::ENTRY_MAX_BYTES } else { limits::READ_MAX_BYTES };
        let limit_bytes = limit_bytes.min(read.limit_bytes as usize);
        let (shell, answers) = (Rc::clone(self), Rc::clone(route.answers()));
        answers.clone().spawn(&self.env, async move {
            let Ok(_making) = answers.begin(limit_bytes).await else { return };
            let mut cold = route.begin_cold(&shell.cold_reads);
            let found = shell.find(&read, &mut cold).await;
            let check = |found| shell.check_readable(&route, &read.ranges, read.committed).map(|()| found);
            match found.and_then(check) {
                Ok(mut found) => shell.send_stream(&route, &mut found, read.heads_only),
                Err(refusal) => route.refuse(refusal),
            }
        });
    }

    /// Whether a read of a stream need not wait: its first address is decided, or the epoch is over.
    pub(in crate::server) fn is_decided(&self, epoch: Epoch, read: &ReadStream) -> bool {
        let first = read.ranges.first().map(|range| AddrRange::new(range.start, Addr(range.start.0 + 1)));
        let holds = |first| self.parts(first).iter().any(|(_, holding)| *holding != Holding::Unwritten);
        self.check_epoch(epoch).is_err() || first.is_none_or(holds)
    }

    fn send_stream(&self, route: &ReplyRoute, found: &mut Found, heads_only: bool) {
        if found.says_unwritten()
            && let Err(refusal) = self.leases.check(route.epoch())
        {
            return route.refuse(refusal);
        }
        self.traffic.show(found);
        route.send_stream_found(found, heads_only);
    }

    /// What answers a read of what is decided.
    async fn find(&self, read: &ReadStream, cold: &mut ColdRead<'_>) -> Result<Found, Refusal> {
        match read.wanted {
            _ if read.last_only => self.find_last(read, cold).await,
            Wanted::EveryStream if read.heads_only => self.find_heads(read, cold).await,
            Wanted::Every => self.find_heads(read, cold).await,
            _ => self.find_all(read, cold).await,
        }
    }

    /// What the ranges hold of the stream, in order, as far as the limits go.
    async fn find_all(&self, read: &ReadStream, cold: &mut ColdRead<'_>) -> Result<Found, Refusal> {
        let mut found = StreamFound::new(read.limit_bytes, read.heads_only);
        let (mut work, mut gathered) = (Work::default(), Gathered::default());
        for (part, holding) in read.ranges.iter().flat_map(|range| self.parts(*range)) {
            let goes_on = match holding {
                Holding::Stored => {
                    self.find_stored(part, read, &mut work, &mut gathered, &mut found, cold).await?
                }
                Holding::Voided if self.planted.is(PlantedBug::StreamShowsVoided) => {
                    self.find_stored(part, read, &mut work, &mut gathered, &mut found, cold).await?
                }
                Holding::Unwritten if !self.planted.is(PlantedBug::StreamLooksPastHoles) => {
                    gathered.add(part, What::Unwritten)
                }
                Holding::Voided | Holding::Unwritten => gathered.add(part, What::Passed),
                Holding::Trimmed => gathered.add(part, What::Trimmed),
            };
            if !goes_on {
                break;
            }
        }
        self.push_pieces(&gathered.pieces, &mut found, cold).await?;
        Ok(found.finish())
    }

    /// Gathers what stored addresses hold, and adds what is gathered when it is much. False if a limit cut it off.
    async fn find_stored(
        &self,
        part: AddrRange,
        read: &ReadStream,
        work: &mut Work,
        gathered: &mut Gathered,
        found: &mut StreamFound,
        cold: &mut ColdRead<'_>,
    ) -> Result<bool, Refusal> {
        let mut next = part.start;
        while next < part.end {
            let passed = self.none_up_to(read.wanted, AddrRange::new(next, part.end));
            if passed > next {
                gathered.add(AddrRange::new(next, passed), What::Passed);
                next = passed;
                continue;
            }
            let mut addrs = AddrRange::new(next, part.end.min(StreamIndex::range_of(next.0).end));
            if read.known_only {
                addrs.end = self.streams.borrow().known_up_to(addrs);
                if addrs.is_empty() {
                    return Ok(false);
                }
            }
            let pieces = self.pieces(addrs, read.wanted, work, cold).await?;
            let Some(pieces) = pieces else { return Ok(false) };
            for (range, what) in pieces {
                gathered.add(range, what);
            }
            if gathered.own >= limits::STREAM_GATHERED_COUNT
                && !self.push_pieces(&std::mem::take(gathered).pieces, found, cold).await?
            {
                return Ok(false);
            }
            next = addrs.end;
        }
        Ok(true)
    }

    /// The last entry of the stream in the range, and what follows it there; or how far down the unit has looked.
    async fn find_last(&self, read: &ReadStream, cold: &mut ColdRead<'_>) -> Result<Found, Refusal> {
        let mut found = StreamFound::of_last(read.limit_bytes, read.heads_only);
        let mut pieces = Vec::new();
        if let Some(range) = read.ranges.first() {
            self.look_back(*range, read.wanted, &mut pieces, cold).await?;
        }
        // What comes last has a place in the answer, whatever it leaves none for.
        pieces.truncate(limits::RUNS_MAX_COUNT);
        pieces.reverse();
        self.push_pieces(&pieces, &mut found, cold).await?;
        Ok(found.finish())
    }

    /// Adds pieces from the end of `range` down, up to the last entry of the stream. It does not look past a hole: what comes there may
    /// be of the stream.
    async fn look_back(
        &self,
        range: AddrRange,
        wanted: Wanted,
        pieces: &mut Vec<(AddrRange, What)>,
        cold: &mut ColdRead<'_>,
    ) -> Result<(), Refusal> {
        let mut work = Work::default();
        for (part, holding) in self.parts(range).into_iter().rev() {
            if pieces.len() >= limits::RUNS_MAX_COUNT {
                return Ok(());
            }
            match holding {
                Holding::Unwritten => {
                    pieces.push((part, What::Unwritten));
                    return Ok(());
                }
                Holding::Trimmed => pieces.push((part, What::Trimmed)),
                Holding::Voided => pieces.push((part, What::Passed)),
                Holding::Stored => {
                    let mut end = part.end;
                    while end > part.start {
                        let addrs =
                            AddrRange::new(part.start.max(StreamIndex::range_of(end.0 - 1).start), end);
                        if self.none_up_to(wanted, addrs) == end {
                            pieces.push((addrs, What::Passed));
                            end = addrs.start;
                            continue;
                        }
                        let found = self.pieces(addrs, wanted, &mut work, cold).await?;
                        let Some(found) = found else { return Ok(()) };
                        for (range, what) in found.into_iter().rev() {
                            if what == What::Own {
                                pieces.push((AddrRange::new(Addr(range.end.0 - 1), range.end), what));
                                return Ok(());
                            }
                            pieces.push((range, what));
                        }
                        end = addrs.start;
                    }
                }
            }
        }
        Ok(())
    }

    /// What stored addresses of one block hold for the reader of a stream: parts of `addrs` in order, without gaps. `None` if that were more work than
    /// one read may make, or there is no room for it beside what the answer has.
    async fn pieces(
        &self,
        addrs: AddrRange,
        wanted: Wanted,
        work: &mut Work,
        cold: &mut ColdRead<'_>,
    ) -> Result<Option<Vec<(AddrRange, What)>>, Refusal> {
        let stream: Option<StreamId> = match wanted {
            Wanted::Stream(stream) => Some(stream),
            Wanted::EveryStream | Wanted::Every => None,
        };
        let block = self.streams.borrow_mut().block(addrs.start.0);
        let mut unknown = self.unknown(&block, addrs);
        if !work.goes_on(unknown.is_empty()) {
            return Ok(None);
        }
        if !unknown.is_empty() {
            if !self.learn(&block, &unknown, cold).await? {
                return Ok(None);
            }
            unknown = self.unknown(&block, addrs);
        }
        let own = block.borrow_mut().find(stream, addrs).into_iter().map(|range| (range, What::Own));
        let mut known: Vec<(AddrRange, What)> = own.collect();
        for gone in unknown {
            let is_skipped = self.planted.is(PlantedBug::LostEntrySkipped);
            let gone = if is_skipped { None } else { self.trimmed_meanwhile(gone)? };
            known.extend(gone.map(|gone| (gone, What::Trimmed)));
        }
        known.sort_unstable_by_key(|(range, _)| range.start);
        let mut pieces = Vec::with_capacity(2 * known.len() + 1);
        let mut next = addrs.start;
        for (range, what) in known {
            pieces.push((AddrRange::new(next, range.start), What::Passed));
            pieces.push((range, what));
            next = range.end;
        }
        pieces.push((AddrRange::new(next, addrs.end), What::Passed));
        pieces.retain(|(range, _)| !range.is_empty());
        Ok(Some(pieces))
    }

    /// Up to where `addrs` are known to have nothing that is wanted, without a look at their blocks.
    fn none_up_to(&self, wanted: Wanted, addrs: AddrRange) -> Addr {
        let Wanted::Stream(stream) = wanted else { return addrs.start };
        let streams = self.streams.borrow();
        if self.planted.is(PlantedBug::StreamFilterPresumes) && !addrs.is_empty() {
            let first = AddrRange::new(addrs.start, Addr(addrs.start.0 + 1));
            let block = AddrRange::new(addrs.start, addrs.end.min(StreamIndex::range_of(addrs.start.0).end));
            return if streams.none_up_to(stream, first) == first.end { block.end } else { block.start };
        }
        streams.none_up_to(stream, addrs)
    }

    /// The parts of `addrs` whose records have to be looked at.
    fn unknown(&self, block: &Rc<RefCell<StreamBlock>>, addrs: AddrRange) -> Vec<AddrRange> {
        let block = block.borrow();
        let unknown = block.unknown(addrs);
        let is_stale = self.planted.is(PlantedBug::StreamBlockNotRenewed) && block.is_begun();
        if is_stale { Vec::new() } else { unknown }
    }

    /// Looks at the records of these addresses of the block, from memory or the drive. False if there was no room for all of them.
    async fn learn(
        &self,
        block: &Rc<RefCell<StreamBlock>>,
        unknown: &[AddrRange],
        cold: &mut ColdRead<'_>,
    ) -> Result<bool, Refusal> {
        let note = |heading: Heading<'_>| {
            // A meta that this version cannot read names no stream.
            let meta = match heading.kind {
                RunKind::Data => EntryMeta::decode(heading.meta).ok(),
                RunKind::Junk => None,
            };
            block.borrow_mut().note(heading.keys.into(), meta.as_ref());
            0
        };
        let mut has_room = true;
        for gap in unknown {
            let mut next = gap.start.0;
            while has_room && next < gap.end.0 {
                (next, has_room) = self.visit_headings(next..gap.end.0, cold, note).await?;
            }
        }
        let start = block.borrow().range().start;
        self.streams.borrow_mut().settle(start.0);
        // A long look is one of many blocks.
        cold.give_way(&self.env).await;
        Ok(has_room)
    }

    /// Adds pieces in order, up to where the answer is full. False if it is.
    async fn push_pieces(
        &self,
        mut pieces: &[(AddrRange, What)],
        found: &mut StreamFound,
        cold: &mut ColdRead<'_>,
    ) -> Result<bool, Refusal> {
        let mut next = pieces.first().map_or(Addr(0), |(range, _)| range.start);
        while let Some((&(range, what), rest)) = pieces.split_first() {
            match what {
                What::Passed => found.pass(range),
                What::Trimmed => found.push_other(range, Holding::Trimmed),
                What::Unwritten => found.push_other(range, Holding::Unwritten),
                What::Own if found.is_heads_only() => {
                    if !self.push_heads(range, found, cold).await? {
                        return Ok(false);
                    }
                }
                What::Own => {
                    let near = near(pieces);
                    let mut added = self.push_cached(&pieces[..near], next, found);
                    if added == (0, next) && near > 1 {
                        // It may be what lies between that is on the drive.
                        added = self.push_cached(&pieces[..1], next, found);
                    }
                    if added != (0, next) {
                        cold.note_cached();
                    }
                    if found.is_full() {
                        return Ok(false);
                    }
                    if added == (0, next) {
                        return self.push_cold(AddrRange::new(next, range.end), rest, found, cold).await;
                    }
                    (pieces, next) = (&pieces[added.0..], added.1);
                    continue;
                }
            }
            if found.is_full() {
                return Ok(false);
            }
            (pieces, next) = (rest, range.end);
        }
        Ok(true)
    }

    /// Adds entries from `next` on, which is in the first of the pieces, and what is passed between them, as far as the entries stand in memory. Returns how
    /// many pieces are added whole, and how far that is.
    fn push_cached(
        &self,
        pieces: &[(AddrRange, What)],
        mut next: Addr,
        found: &mut StreamFound,
    ) -> (usize, Addr) {
        let Some((last, _)) = pieces.last() else { return (0, next) };
        let (mut added, keys) = (0, next.0..last.end.0);
        // Runs that were shown are right also if the rest is not in memory.
        self.chain.try_visit_cached(keys, found.room_bytes(), |run| {
            let keys = AddrRange::from(run.keys());
            let mut entries = Entries::of(run);
            while let Some(&(range, what)) = pieces.get(added)
                && next < keys.end
            {
                match what {
                    // An entry that is not there is not passed.
                    What::Own if next < keys.start => return,
                    What::Own => {
                        let some = AddrRange::new(next, range.end.min(keys.end));
                        found.push_some(&mut entries, some);
                        next = some.end;
                        if next < range.end {
                            return;
                        }
                    }
                    _ => found.pass(range),
                }
                (added, next) = (added + 1, range.end);
            }
        });
        (added, next)
    }

    /// Adds entries from the drive: those of `rest`, and of the pieces after it. False if a limit cut it off, or there is no room for them
    /// beside what the answer has.
    async fn push_cold(
        &self,
        rest: AddrRange,
        pieces: &[(AddrRange, What)],
        found: &mut StreamFound,
        cold: &mut ColdRead<'_>,
    ) -> Result<bool, Refusal> {
        let all: Vec<(AddrRange, What)> =
            [(rest, What::Own)].into_iter().chain(pieces.iter().copied()).collect();
        let own = all.iter().filter(|(_, what)| *what == What::Own).map(|(range, _)| range.numbers());
        let own: Vec<_> = own.collect();
        let reading = cold.read_ranges(&self.chain, &own, found.room_bytes()).await?;
        let Some(reading) = reading else { return Ok(false) };
        let (mut ends, mut added) = (reading.ends.iter(), 0);
        for (range, what) in all {
            match what {
                What::Passed => found.pass(range),
                What::Trimmed => found.push_other(range, Holding::Trimmed),
                What::Unwritten => found.push_other(range, Holding::Unwritten),
                What::Own => {
                    // What the limit left out has no end, or one before that of the range.
                    let Some(end) = ends.next() else { return Ok(false) };
                    let mut next = range.start;
                    for run in &reading.runs[added..end.runs] {
                        self.push_gone(AddrRange::new(next, Addr(run.first_key)), found)?;
                        next = Addr(run.keys().end);
                        found.push_run(run.view());
                    }
                    self.push_gone(AddrRange::new(next, Addr(end.next)), found)?;
                    added = end.runs;
                    if end.next < range.end.0 {
                        return Ok(false);
                    }
                }
            }
            if found.is_full() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Adds addresses that the chain has no record of any more: trimmed meanwhile, or lost, and then that is the answer.
    pub(super) fn push_gone(&self, gone: AddrRange, found: &mut StreamFound) -> Result<(), Refusal> {
        if !found.is_full()
            && let Some(gone) = self.trimmed_meanwhile(gone)?
        {
            found.push_other(gone, Holding::Trimmed);
        }
        Ok(())
    }

    /// Adds entries without their data. False if there was no room for all of them.
    async fn push_heads(
        &self,
        range: AddrRange,
        found: &mut StreamFound,
        cold: &mut ColdRead<'_>,
    ) -> Result<bool, Refusal> {
        let (mut next, mut has_room) = (range.start, true);
        while has_room && next < range.end && !found.is_full() {
            let mut runs = Vec::new();
            let keep = |heading: Heading<'_>| {
                runs.push(head_of(&heading));
                kept_bytes(&heading)
            };
            let read_to;
            (read_to, has_room) = self.visit_headings(next.0..range.end.0, cold, keep).await?;
            for run in runs {
                self.push_gone(AddrRange::new(next, Addr(run.first_key)), found)?;
                next = Addr(run.keys().end);
                found.push_run(run.view());
            }
            self.push_gone(AddrRange::new(next, Addr(read_to)), found)?;
            next = Addr(read_to);
        }
        Ok(has_room)
    }

    /// Shows `visit` heads of runs with keys in `keys`, each once and in order, and is told how many bytes are kept of each. Returns how far
    /// that is, further than `keys` begin unless there is no room for what is on the drive, beside what the answer has; and whether there is.
    pub(super) async fn visit_headings(
        &self,
        keys: Range<u64>,
        cold: &mut ColdRead<'_>,
        mut visit: impl FnMut(Heading<'_>) -> usize,
    ) -> Result<(u64, bool), Refusal> {
        let (mut from, mut kept) = (keys.start, 0);
        let cached = self.chain.try_visit_headings(keys.clone(), HEADINGS_BYTES, |heading| {
            from = heading.keys.end;
            kept += visit(heading);
        });
        if kept > 0 {
            cold.note_cached();
        }
        // What was shown from memory is worked up before anything is waited for.
        if let Some(next) = cached.or((from > keys.start).then_some(from)) {
            return Ok((next, true));
        }
        let read_to = cold.visit_headings(&self.chain, keys, visit).await?;
        Ok((read_to.unwrap_or(from), read_to.is_some()))
    }
}

/// How many of these pieces, the first of which is of the stream, are looked for together: those with few entries of others between them, which
/// are passed more quickly than the next one is found.
fn near(pieces: &[(AddrRange, What)]) -> usize {
    let is_near = |(range, what): &&(AddrRange, What)| match what {
        What::Own => true,
        What::Passed => range.count() <= NEAR_MAX_COUNT,
        What::Trimmed | What::Unwritten => false,
    };
    pieces.iter().take_while(is_near).count()
}

/// Bytes of memory that a run without its data takes.
pub(super) fn kept_bytes(heading: &Heading<'_>) -> usize {
    heading.meta.len() + heading.table.len() + FOUND_RUN_BYTES
}

/// A run without its data.
pub(super) fn head_of(heading: &Heading<'_>) -> Run {
    let table = Table::from_bytes(Bytes::copy_from_slice(heading.table)).expect("whole entries");
    Run {
        first_key: heading.keys.start,
        version: heading.version,
        kind: heading.kind,
        meta: Bytes::copy_from_slice(heading.meta),
        table,
        data: Bytes::new(),
    }
}

#[cfg(test)]
#[path = "streams_tests.rs"]
mod tests;
