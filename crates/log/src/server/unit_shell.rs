//! A log unit at work: the core's effects carried out on a chain, and its reads served.

mod complete;
mod heads;
mod read;
mod streams;
#[cfg(test)]
mod taken_tests;
mod traffic;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use ithaca_chain::{AppendError, Batch, Chain, ChainError, ReadError, Run, RunKind, RunView, SideState};
use ithaca_env::drive::DriveError;
use ithaca_env::sync::{Notify, oneshot};
use ithaca_env::task::TaskHandle;
use ithaca_env::{Env, Time};
use slab::Slab;

use super::cold_reads::ColdReads;
use super::leases::Leases;
use super::relay::Relaying;
use super::reply::ReplyRoute;
use crate::entry::EntryMeta;
use crate::limits;
use crate::planted::Planted;
use crate::pos::{Addr, AddrRange, Epoch};
use crate::unit::{
    Answer, Effect, Found, Holding, Input, Recovered, ReplyTo, StreamIndex, Ticket, Unit, UnitOptions,
    UnitState,
};
use crate::wire::{ExtentBounds, Filled, Outcome, Refusal, Seal, Taken, Trimmed, Trims, Written};
use ithaca_env::record::RecordError;

use traffic::{Traffic, WriteTimes};

/// Drives of a unit that it tells of: more would not fit into one answer.
const DRIVES_TOLD: usize = 32;
/// What it tells of each; and of the node and the unit as wholes at the most.
const DRIVE_COUNTERS: usize = 8;
const WHOLE_COUNTERS: usize = 64;
const _: () = assert!(DRIVES_TOLD * DRIVE_COUNTERS + WHOLE_COUNTERS <= crate::limits::COUNTERS_MAX_COUNT);

/// Who is told what became of a request.
pub(super) enum Route {
    /// Whoever sent it.
    Reply(ReplyRoute),
    /// The relay that the run came by: other replicas may have to have it first.
    Relay(Box<Relaying>),
    /// The node itself, which copies what other replicas have.
    Restore(oneshot::Sender<Result<(), Refusal>>),
}

/// Bytes of records that are read at a time to be compared.
const STORED_BYTES: usize = 1 << 20;
/// Bytes that an outcome takes in an answer.
const OUTCOME_BYTES: usize = 40;

/// What a node takes over from another replica.
#[derive(Default)]
pub(super) struct Copied {
    /// Records, stored where there is none yet.
    pub(super) runs: Vec<Run>,
    /// Addresses that are trimmed.
    pub(super) trimmed: Vec<AddrRange>,
    /// Addresses whose records count as junk.
    pub(super) voided: Vec<AddrRange>,
    /// Addresses whose records are lost here: what `runs` has of them is stored all the same.
    pub(super) lost: Vec<AddrRange>,
}

/// A ticket of the core and what stores it.
struct Stored {
    ticket: Ticket,
    by: ithaca_chain::Ticket,
    /// When it was handed to the chain.
    since: Time,
}

/// A unit and its chain.
pub(super) struct UnitShell {
    env: Env,
    chain: Chain,
    core: RefCell<Unit>,
    routes: RefCell<Slab<Route>>,
    /// The core's tickets and the chain's tickets that store them, both in order.
    tickets: RefCell<VecDeque<Stored>>,
    /// Rings when the watermark may have moved, or the unit failed.
    advanced: Notify,
    /// Kept between steps, so that a step need not allocate.
    effects: Cell<Vec<Effect>>,
    /// Kept between reads, for the same reason.
    found: Cell<Found>,
    /// Which addresses belong to which streams, as far as it is remembered.
    streams: RefCell<StreamIndex>,
    cold_reads: ColdReads,
    leases: Rc<Leases>,
    traffic: Traffic,
    write_times: WriteTimes,
    /// Where the next list of marks goes on.
    marked_from: Cell<Addr>,
    planted: Planted,
}

impl UnitShell {
    /// Takes over an open chain and what it recovered. The task that comes with it gives the answers; abort it to stop the
    /// unit where it stands.
    pub(super) fn start(
        env: &Env,
        chain: Chain,
        recovered: ithaca_chain::Recovered,
        options: UnitOptions,
        leases: Rc<Leases>,
    ) -> Result<(Rc<Self>, TaskHandle<()>), RecordError> {
        let state = match &recovered.state {
            Some(state) => UnitState::decode(state)?,
            None => UnitState::default(),
        };
        let planted = options.planted;
        let recovered = Recovered { state, covered: recovered.covered, released: recovered.released };
        let shell = Rc::new(Self {
            env: env.clone(),
            chain,
            core: RefCell::new(Unit::recover(options, recovered)),
            routes: RefCell::default(),
            tickets: RefCell::default(),
            advanced: Notify::default(),
            effects: Cell::default(),
            found: Cell::default(),
            streams: RefCell::new(StreamIndex::new(limits::STREAM_INDEX_MAX_BYTES)),
            cold_reads: ColdReads::default(),
            leases,
            traffic: Traffic::default(),
            write_times: WriteTimes::default(),
            marked_from: Cell::default(),
            planted,
        });
        let answering = env.spawn(release_answers(Rc::clone(&shell)));
        Ok((shell, answering))
    }

    /// The chain under the unit.
    pub(super) fn chain(&self) -> &Chain {
        &self.chain
    }

    /// Bytes of data and entries that one write may have, so that the chain takes it.
    pub(super) fn write_limits(&self) -> (usize, usize) {
        // Half for data, and for each entry's share of heads, tables and padding 64 bytes of the other half.
        let half = usize::try_from(self.chain.batch_max_bytes() / 2).unwrap_or(usize::MAX);
        (half.min(limits::WRITE_MAX_BYTES), (half / 64).min(limits::RUN_MAX_COUNT))
    }

    /// What the unit and its chain count, and what each of its drives has, numbered in the order of the chain: segments, free ones, those
    /// that hold records, and 1 for the drive that the log is written to.
    pub(super) fn counters(&self) -> Vec<(String, u64)> {
        let stats = self.chain.stats();
        let whole = [
            ("groups", stats.counters.groups),
            ("group_bytes", stats.counters.group_bytes),
            ("data_bytes", stats.counters.data_bytes),
            ("footer_bytes", stats.counters.footer_bytes),
            ("segments_closed", stats.segments_closed),
            ("segments_ready", stats.segments_ready),
            ("segments_open", stats.segments_open),
            ("records", stats.records),
            ("free_bytes", stats.free_bytes),
            ("queued_bytes", stats.queued_bytes),
            ("tail_cache_bytes", stats.tail_cache_bytes as u64),
            ("footer_cache_bytes", stats.footer_cache_bytes as u64),
            ("stream_index_bytes", self.streams.borrow().bytes() as u64),
            ("cold_read_bytes", self.cold_reads.held_bytes() as u64),
            ("cold_reads_waiting", self.cold_reads.waiting() as u64),
            ("tail_reads_memory", stats.reads.tail.memory),
            ("tail_reads_cache", stats.reads.tail.cache_drive),
            ("tail_reads_missed", stats.reads.tail.missed),
            ("body_reads_memory", stats.reads.body.memory),
            ("body_reads_cache", stats.reads.body.cache_drive),
            ("body_reads_missed", stats.reads.body.missed),
            ("is_full", u64::from(self.chain.is_full())),
            ("is_cleaning", u64::from(stats.is_cleaning)),
            ("segments_cleaned", stats.counters.segments_cleaned),
            ("moved_bytes", stats.counters.moved_bytes),
            ("segments_scrubbed", stats.scrubbed.segments),
            ("damaged_places", stats.damage.len() as u64),
            ("repaired_places", stats.repaired),
            ("drives", stats.links.len().min(DRIVES_TOLD) as u64),
        ];
        let each = stats.links.iter().take(DRIVES_TOLD).enumerate().flat_map(|(index, link)| {
            let values: [_; DRIVE_COUNTERS] = [
                ("segments", link.segments),
                ("free", link.segments_free),
                ("live", link.segments_live),
                ("tail", u64::from(link.is_tail)),
                ("link", u64::from(link.link)),
                ("stale", u64::from(link.state == SideState::Stale)),
                ("asleep", u64::from(link.is_asleep)),
                ("leaving", u64::from(link.is_leaving)),
            ];
            values.map(|(what, value)| (format!("drive_{}_{what}", index + 1), value))
        });
        let whole = self.traffic.counters().into_iter().chain(whole);
        whole.map(|(name, value)| (name.to_owned(), value)).chain(each).collect()
    }

    /// Waits until its chain has stopped and returns why.
    pub(super) async fn stopped(&self) -> ChainError {
        self.chain.until_stopped().await
    }

    /// Whether its drive has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.core.borrow().has_failed()
    }

    /// How long it took of late to store a write, the median, in microseconds; 0 if none was stored of late.
    pub(super) fn write_us(&self) -> u32 {
        let now = self.env.now();
        // A drive that hangs has finished nothing of late.
        let waiting = self.tickets.borrow().front().map_or(0, |stored| now.since(stored.since).as_micros());
        self.write_times.median_us(now).max(u32::try_from(waiting).unwrap_or(u32::MAX))
    }

    /// Rings when the watermark may have moved.
    pub(super) fn advanced(&self) -> &Notify {
        &self.advanced
    }

    /// Its reads that need the drive.
    pub(super) fn cold_reads(&self) -> &ColdReads {
        &self.cold_reads
    }

    /// Where it runs.
    pub(super) fn env(&self) -> &Env {
        &self.env
    }

    /// Every address from `from` up to here is resolved and durable.
    pub(super) fn watermark(&self, from: Addr) -> Addr {
        self.core.borrow().watermark(from)
    }

    /// The last epoch that is sealed, or is about to be.
    pub(super) fn sealed(&self) -> Epoch {
        self.core.borrow().state().sealed
    }

    /// Refuses an epoch that is over.
    pub(super) fn check_epoch(&self, epoch: Epoch) -> Result<(), Refusal> {
        self.core.borrow().check_epoch(epoch)
    }

    /// Refuses an epoch that cannot be sealed yet, as no layout of it is known here.
    pub(super) fn check_told(&self, epoch: Epoch) -> Result<(), Refusal> {
        self.core.borrow().check_told(epoch)
    }

    /// Refuses entries that the core would refuse now whatever their addresses: `bytes` of them in `epoch`.
    pub(super) fn admits(&self, epoch: Epoch, bytes: usize) -> Result<(), Refusal> {
        self.core.borrow().admits(epoch, bytes)
    }

    /// The unit's part of a check in `epoch`.
    pub(super) fn bounds(&self, epoch: Epoch, extents: &[AddrRange]) -> Result<Vec<ExtentBounds>, Refusal> {
        let core = self.core.borrow();
        extents.iter().map(|&extent| core.bounds(epoch, extent)).collect()
    }

    /// Writes a run; the reply goes to `route`.
    pub(super) fn write(self: &Rc<Self>, route: Route, run: Run) {
        self.traffic.write(&run);
        self.submit(route, |to| Input::Write { to, run });
    }

    /// Makes junk of what is free in `ranges`.
    pub(super) fn fill(self: &Rc<Self>, route: ReplyRoute, ranges: Vec<AddrRange>) {
        let epoch = route.epoch();
        self.traffic.fill();
        self.submit(Route::Reply(route), |to| Input::Fill { to, epoch, ranges });
    }

    /// Trims `ranges`, once no replica shows them that is not told of it.
    pub(super) fn trim(self: &Rc<Self>, route: ReplyRoute, ranges: Vec<AddrRange>) {
        let epoch = route.epoch();
        self.traffic.trim();
        let from = self.leases.trims_from(epoch);
        if from <= self.env.now() {
            return self.submit(Route::Reply(route), |to| Input::Trim { to, epoch, ranges });
        }
        if let Err(refusal) = self.check_epoch(epoch) {
            return route.refuse(refusal);
        }
        let shell = Rc::clone(self);
        self.env.spawn(async move {
            shell.env.sleep_until(from).await;
            shell.submit(Route::Reply(route), |to| Input::Trim { to, epoch, ranges });
        });
    }

    /// Seals an epoch.
    pub(super) fn seal(self: &Rc<Self>, route: ReplyRoute, seal: Seal) {
        let Seal { epoch, extents } = seal;
        self.submit(Route::Reply(route), |to| Input::Seal { to, epoch, extents });
    }

    /// Says what is trimmed, in any epoch that is not over: a copy that is about to be listed must have it too.
    pub(super) fn trims(&self, route: &ReplyRoute, extent: AddrRange) {
        match self.check_epoch(route.epoch()) {
            Ok(()) => {
                let ranges = self.core.borrow().trims(extent, limits::RANGES_MAX_COUNT);
                route.send(&Trims { ranges });
            }
            Err(refusal) => route.refuse(refusal),
        }
    }

    /// What is durably trimmed of `range`, the first ranges of it.
    pub(super) fn trimmed_in(&self, range: AddrRange) -> Vec<AddrRange> {
        self.core.borrow().trims(range, limits::RANGES_MAX_COUNT)
    }

    /// Takes over what another replica holds of a closed range. On success it is on stable storage. Dropping the future does not
    /// take it back.
    pub(super) async fn restore(self: &Rc<Self>, epoch: Epoch, copied: Copied) -> Result<(), Refusal> {
        let (told, answer) = oneshot::channel();
        let Copied { runs, trimmed, voided, lost } = copied;
        self.submit(Route::Restore(told), |to| Input::Restore { to, epoch, runs, trimmed, voided, lost });
        answer.await.unwrap_or(Err(Refusal::Failed))
    }

    /// What the addresses of `range` hold, durably, as parts of it in order, without gaps.
    pub(super) fn parts(&self, range: AddrRange) -> Vec<(AddrRange, Holding)> {
        self.core.borrow().classify(range)
    }

    /// The parts of `range` that have a record by the unit's account, durably.
    pub(super) fn stored_parts(&self, range: AddrRange) -> Vec<AddrRange> {
        let stored = self.parts(range).into_iter().filter(|(_, holding)| *holding == Holding::Stored);
        stored.map(|(part, _)| part).collect()
    }

    /// Whether an address has a record by the unit's account, durably.
    pub(super) fn is_stored(&self, addr: Addr) -> bool {
        !self.stored_parts((addr.0..addr.0 + 1).into()).is_empty()
    }

    /// What the unit itself holds of `range`, durably: parts in order, without gaps, and the records of those that are stored.
    pub(super) async fn holdings(
        &self,
        range: AddrRange,
    ) -> Result<Vec<(AddrRange, Holding, Vec<Run>)>, Refusal> {
        let mut held = Vec::new();
        for (part, holding) in self.core.borrow().classify(range) {
            held.push((part, holding, Vec::new()));
        }
        for (part, holding, runs) in &mut held {
            let mut next = part.start.0;
            while *holding == Holding::Stored && next < part.end.0 {
                let read = self.stored(next..part.end.0, STORED_BYTES).await?;
                let Some(last) = read.last() else { return Err(Refusal::Damaged { addr: Addr(next) }) };
                next = last.keys().end;
                runs.extend(read);
            }
        }
        Ok(held)
    }

    fn submit(self: &Rc<Self>, route: Route, input: impl FnOnce(ReplyTo) -> Input) {
        let to = ReplyTo(self.routes.borrow_mut().insert(route) as u64);
        self.step(input(to));
    }

    fn step(self: &Rc<Self>, input: Input) {
        let mut effects = self.effects.take();
        self.core.borrow_mut().step(input, &mut effects);
        for effect in effects.drain(..) {
            self.carry_out(effect);
        }
        self.effects.set(effects);
    }

    fn carry_out(self: &Rc<Self>, effect: Effect) {
        match effect {
            Effect::Reply { to, answer } => {
                // A planted fault answers early, and later to nobody.
                let route = self.routes.borrow_mut().try_remove(to.0 as usize);
                match route {
                    Some(Route::Reply(route)) => self.answer(route, answer),
                    Some(Route::Relay(relaying)) => {
                        if let Some((route, answer)) = relaying.stored(answer) {
                            self.answer(route, answer);
                        }
                    }
                    Some(Route::Restore(told)) => told.send(match answer {
                        Answer::Refused(refusal) => Err(refusal),
                        _ => Ok(()),
                    }),
                    None => {}
                }
            }
            Effect::Persist { ticket, runs, release, state, is_copy } => {
                match self.chain.append(Batch { runs, release, state, may_use_reserve: is_copy }) {
                    Ok(by) => {
                        let since = self.env.now();
                        self.tickets.borrow_mut().push_back(Stored { ticket, by, since });
                    }
                    Err(error) => {
                        let refusal = refusal_of(&error);
                        let mut effects = Vec::new();
                        self.core.borrow_mut().step(Input::NotTaken { ticket, refusal }, &mut effects);
                        effects.into_iter().for_each(|effect| self.carry_out(effect));
                    }
                }
            }
        }
    }

    fn answer(self: &Rc<Self>, route: ReplyRoute, answer: Answer) {
        match answer {
            Answer::Written { taken, .. } if taken.is_empty() => route.send(&Written::default()),
            Answer::Filled { taken } if taken.is_empty() => route.send(&Filled::default()),
            Answer::Written { taken, stores } => {
                self.answer_taken(route, taken, stores, |taken| Written { taken });
            }
            Answer::Filled { taken } => self.answer_taken(route, taken, false, |taken| Filled {
                // Junk is what the filler wants: it is not listed.
                taken: taken.into_iter().filter(|outcome| outcome.taken != Taken::Junk).collect(),
            }),
            Answer::Trimmed => route.send(&Trimmed),
            Answer::Restored => unreachable!("nobody asks for that over a connection"),
            Answer::Sealed(sealed) => route.send(&sealed),
            Answer::Refused(refusal) => route.refuse(refusal),
        }
    }

    /// Looks up what taken addresses hold, and answers. Where that cannot be read, a writer must not be told that nothing was done if its
    /// request `stores` something; a filler takes nothing for certain before every replica has answered.
    fn answer_taken<M: crate::wire::Message + 'static>(
        self: &Rc<Self>,
        route: ReplyRoute,
        taken: Vec<(AddrRange, Holding)>,
        stores: bool,
        reply: impl FnOnce(Vec<Outcome>) -> M + 'static,
    ) {
        let shell = Rc::clone(self);
        let answers = Rc::clone(route.answers());
        let count: u64 = taken.iter().map(|(range, _)| range.count()).sum();
        let bytes = (count as usize).saturating_mul(OUTCOME_BYTES);
        answers.clone().spawn(&self.env, async move {
            let Ok(_making) = answers.begin(bytes).await else { return };
            match shell.outcomes(&route, taken).await {
                Ok(outcomes) => route.send(&reply(outcomes)),
                Err(_) if stores => route.refuse(Refusal::Failed),
                Err(refusal) => route.refuse(refusal),
            }
        });
    }

    async fn outcomes(
        &self,
        route: &ReplyRoute,
        taken: Vec<(AddrRange, Holding)>,
    ) -> Result<Vec<Outcome>, Refusal> {
        let mut outcomes = Vec::new();
        for (range, holding) in taken {
            let whole = |taken| Outcome { addr: range.start, count: range.count(), taken };
            match holding {
                Holding::Trimmed => outcomes.push(whole(Taken::Trimmed)),
                Holding::Voided => outcomes.push(whole(Taken::Junk)),
                Holding::Unwritten => {}
                Holding::Stored => {
                    let mut next = range.start.0;
                    while next < range.end.0 {
                        let found = self.outcomes_of(route, next..range.end.0).await?;
                        // What is not said to be taken counts as free: a part that went meanwhile has to be named.
                        let trimmed = |gone: AddrRange| Outcome {
                            addr: gone.start,
                            count: gone.count(),
                            taken: Taken::Trimmed,
                        };
                        let is_none = found.is_empty();
                        for outcome in found {
                            let gone = self.trimmed_meanwhile((next..outcome.addr.0).into())?;
                            outcomes.extend(gone.map(trimmed));
                            next = outcome.addr.0 + outcome.count;
                            outcomes.push(outcome);
                        }
                        if is_none {
                            let gone = self.trimmed_meanwhile((next..range.end.0).into())?;
                            outcomes.extend(gone.map(trimmed));
                            next = range.end.0;
                        }
                    }
                }
            }
        }
        Ok(outcomes)
    }

    /// Whose the records at stored addresses are, from the first on, as far as a limit goes. It holds nothing when it waits for its turn
    /// to read the drive, and nothing after.
    async fn outcomes_of(
        &self,
        route: &ReplyRoute,
        addrs: std::ops::Range<u64>,
    ) -> Result<Vec<Outcome>, Refusal> {
        let mut outcomes = Vec::new();
        let visit = |run: RunView<'_>| outcomes.push(outcome_of(&run));
        if self.chain.try_visit_cached(addrs.clone(), STORED_BYTES, visit).is_some() {
            return Ok(outcomes);
        }
        let mut cold = route.begin_cold(&self.cold_reads);
        let reading = cold.read_ranges(&self.chain, &[addrs], STORED_BYTES).await?;
        let reading = reading.expect("who holds nothing yet waits for room");
        Ok(reading.runs.iter().map(|run| outcome_of(&run.view())).collect())
    }

    /// Addresses that were stored when a read of them began, and that the chain has no record of: trimmed meanwhile, or
    /// lost. `None` if there are none.
    fn trimmed_meanwhile(&self, gone: AddrRange) -> Result<Option<AddrRange>, Refusal> {
        if gone.is_empty() {
            return Ok(None);
        }
        let parts = self.core.borrow().classify(gone);
        match parts.iter().find(|(_, holding)| *holding != Holding::Trimmed) {
            Some((part, _)) => Err(Refusal::Damaged { addr: part.start }),
            None => Ok(Some(gone)),
        }
    }

    /// Runs of stored addresses, from the first on.
    async fn stored(&self, keys: std::ops::Range<u64>, limit_bytes: usize) -> Result<Vec<Run>, Refusal> {
        self.chain.read_runs(keys.start, keys.end, limit_bytes).await.map_err(|error| unreadable(&error))
    }
}

fn outcome_of(run: &RunView<'_>) -> Outcome {
    let addr = Addr(run.first_key);
    let taken = match run.kind {
        RunKind::Junk => Taken::Junk,
        // A meta that this version cannot read names nobody: the writer takes it for another's entry.
        RunKind::Data => match EntryMeta::decode(run.meta) {
            Ok(meta) => {
                Taken::Data { client: meta.client, request: meta.request_at(addr), stride: meta.stride }
            }
            Err(_) => Taken::Data { client: Default::default(), request: Default::default(), stride: 0 },
        },
    };
    Outcome { addr, count: run.count(), taken }
}

/// What is said of an entry that cannot be read.
pub(super) fn unreadable(error: &ReadError) -> Refusal {
    match *error {
        ReadError::Damaged { key, .. } => Refusal::Damaged { addr: Addr(key) },
        ReadError::Drive(DriveError::Busy { .. }) => {
            let limit = ithaca_env::limits::IO_QUEUE_MAX as u64;
            Refusal::Overloaded { pending: limit, limit }
        }
        ReadError::Drive(_) => Refusal::Failed,
    }
}

fn refusal_of(error: &AppendError) -> Refusal {
    match *error {
        AppendError::Full { .. } => Refusal::Full,
        AppendError::Stopped(_) => Refusal::Failed,
        AppendError::Overloaded { queued_bytes, max_bytes } => {
            Refusal::Overloaded { pending: queued_bytes, limit: max_bytes }
        }
        AppendError::TooLarge { bytes, max_bytes } => Refusal::TooLarge { found: bytes, limit: max_bytes },
        AppendError::TooSparse { ranges, max_ranges } => {
            Refusal::TooSparse { addr: Addr(ranges as u64), limit: max_ranges as u64 }
        }
        AppendError::StateTooLong { bytes, max_bytes } => {
            Refusal::TooLarge { found: bytes as u64, limit: max_bytes as u64 }
        }
        AppendError::BadRun { found, max, .. } => Refusal::TooLarge { found, limit: max },
    }
}

/// Tells the core what has become durable, or that nothing will any more.
async fn release_answers(shell: Rc<UnitShell>) {
    loop {
        let first = shell.tickets.borrow().front().map(|stored| stored.by);
        let durable = shell.chain.durable();
        match first {
            Some(stored_by) if stored_by <= durable => shell.release_up_to(durable),
            _ => {
                if let Err(why) = shell.chain.changed(durable).await {
                    tracing::error!(%why, "a log unit serves no more; what was acknowledged is on its drive");
                    shell.step(Input::Failed);
                    shell.advanced.ring();
                    return;
                }
            }
        }
    }
}

impl UnitShell {
    fn release_up_to(self: &Rc<Self>, durable: ithaca_chain::Ticket) {
        let mut up_to = None;
        let mut tickets = self.tickets.borrow_mut();
        let mut oldest = None;
        while let Some(stored) = tickets.pop_front_if(|stored| stored.by <= durable) {
            oldest = oldest.or(Some(stored.since));
            up_to = Some(stored.ticket);
        }
        drop(tickets);
        if let Some(since) = oldest {
            self.write_times.note(since, self.env.now());
        }
        if let Some(up_to) = up_to {
            self.step(Input::Persisted { up_to });
            self.advanced.ring();
        }
    }
}
