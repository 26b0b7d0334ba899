//! What a unit does with each input.

use std::ops::Range;

use bytes::Bytes;
use ithaca_chain::{RangeSet, Run, RunKind, TABLE_ENTRY_BYTES, Table};

use super::conflict::Sorted;
use super::pending::{Claims, Pending, Waiting};
use super::restore::Restored;
use super::{Answer, Effect, Holding, Input, ReplyTo, SealedExtent, Ticket, Unit, UnitState, last_in};
use crate::limits;
use crate::planted::PlantedBug;
use crate::pos::{Addr, AddrRange, Epoch};
use crate::wire::{Refusal, Sealed};

/// The table of junk, shared by every run of it: no lengths and no checksums.
static JUNK_TABLE: [u8; limits::RUN_MAX_COUNT * TABLE_ENTRY_BYTES] =
    [0; limits::RUN_MAX_COUNT * TABLE_ENTRY_BYTES];

/// What a request asks the chain to store.
#[derive(Default)]
pub(super) struct Change {
    pub(super) runs: Vec<Run>,
    pub(super) release: Vec<Range<u64>>,
    pub(super) claims: Claims,
    pub(super) bytes: usize,
    /// Whether an earlier replica holds the runs.
    pub(super) is_copy: bool,
}

impl Unit {
    /// Does what `input` asks for and adds to `effects` what that takes, in order.
    pub fn step(&mut self, input: Input, effects: &mut Vec<Effect>) {
        let (to, done) = match input {
            Input::Write { to, run } => (to, self.write(to, run, effects)),
            Input::Fill { to, epoch, ranges } => (to, self.fill(to, epoch, &ranges, effects)),
            Input::Trim { to, epoch, ranges } => (to, self.trim(to, epoch, &ranges, effects)),
            Input::Seal { to, epoch, extents } => (to, self.seal(to, epoch, &extents, effects)),
            Input::Restore { to, epoch, runs, trimmed, voided, lost } => {
                let copied = Restored { runs, trimmed, voided, lost };
                (to, self.restore(to, epoch, copied, effects))
            }
            Input::Listed { epoch, stripes } => return self.list(epoch, &stripes),
            Input::Marked { from, epoch, marks } => {
                return self.complete.mark(from, epoch, &marks, &self.durable);
            }
            Input::Persisted { up_to } => return self.persisted(up_to, effects),
            Input::NotTaken { ticket, refusal } => return self.not_taken(ticket, refusal, effects),
            Input::Failed => return self.fail(effects),
        };
        if let Err(refusal) = done {
            effects.push(Effect::Reply { to, answer: Answer::Refused(refusal) });
        }
    }

    fn write(&mut self, to: ReplyTo, run: Run, effects: &mut Vec<Effect>) -> Result<(), Refusal> {
        assert!(run.kind == RunKind::Data && run.count() > 0, "a write carries entries");
        let epoch = Epoch(run.version);
        self.check_change(epoch)?;
        self.check_room(run.data.len())?;
        if let Some(index) = run.table.first_mismatch(&run.data)
            && !self.options.planted.is(PlantedBug::ChecksumIgnored)
        {
            return Err(Refusal::Checksum { index: index as u64 });
        }
        let mut sorted = Sorted::default();
        self.sort_out(run.keys(), &mut sorted);
        if self.options.planted.is(PlantedBug::WholeRunWritten) && !sorted.free.is_empty() {
            sorted = Sorted::default();
            sorted.free.push(run.keys());
        }
        self.check_reach(epoch, &sorted.free)?;
        self.check_sparse(&sorted.free)?;
        let runs = match sorted.taken.is_empty() {
            true => vec![run],
            false => sorted.free.iter().map(|keys| run.slice(keys)).collect(),
        };
        check_parts(&runs)?;
        let bytes = runs.iter().map(|run| run.data.len()).sum();
        // A run lies in one stripe.
        let is_copy = runs.first().is_some_and(|run| self.complete.is_later(Addr(run.first_key)));
        let change = Change { runs, claims: sorted.free, bytes, is_copy, ..Change::default() };
        let answer = Waiting::Written { taken: sorted.taken, stores: !change.runs.is_empty() };
        self.answer_when_durable(to, epoch, change, sorted.in_flight, answer, effects);
        Ok(())
    }

    fn fill(
        &mut self,
        to: ReplyTo,
        epoch: Epoch,
        ranges: &[AddrRange],
        effects: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        self.check_change(epoch)?;
        self.check_room(0)?;
        let ranges = disjoint(ranges);
        let mut sorted = Sorted::default();
        for range in ranges.ranges() {
            self.sort_out(range, &mut sorted);
        }
        if self.options.planted.is(PlantedBug::FillBeatsData) {
            sorted = Sorted::default();
            ranges.ranges().for_each(|range| sorted.free.push(range));
        }
        self.check_reach(epoch, &sorted.free)?;
        self.check_sparse(&sorted.free)?;
        let runs: Vec<Run> = sorted.free.iter().flat_map(|range| junk(range, epoch)).collect();
        check_parts(&runs)?;
        let change = Change { runs, claims: sorted.free, ..Change::default() };
        self.answer_when_durable(to, epoch, change, sorted.in_flight, Waiting::Filled(sorted.taken), effects);
        Ok(())
    }

    /// Trims what is there, and the holes among it. Beyond the highest address nothing is decided yet, so nothing can be
    /// given up: such a trim is refused.
    fn trim(
        &mut self,
        to: ReplyTo,
        epoch: Epoch,
        ranges: &[AddrRange],
        effects: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        self.check_change(epoch)?;
        self.check_room(0)?;
        let end = self.highest().map_or(0, |highest| highest.0 + 1);
        let mut sorted = Sorted::default();
        let mut release = Vec::new();
        for range in disjoint(ranges).ranges() {
            if range.end > end {
                return Err(Refusal::Unwritten { addr: Addr(end.max(range.start)) });
            }
            release.extend(self.trimmed.gaps(range.clone()));
            self.sort_out(range, &mut sorted);
        }
        self.check_reach(epoch, &sorted.free)?;
        self.check_trims(&release)?;
        let change = Change { release, claims: sorted.free, ..Change::default() };
        self.answer_when_durable(to, epoch, change, sorted.in_flight, Waiting::Trimmed, effects);
        Ok(())
    }

    fn seal(
        &mut self,
        to: ReplyTo,
        epoch: Epoch,
        extents: &[AddrRange],
        effects: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        if self.failed {
            return Err(Refusal::Failed);
        }
        self.check_told(epoch)?;
        let repeated = epoch == self.state.sealed;
        if !repeated && (epoch < self.state.sealed || epoch < self.state.served) {
            return Err(Refusal::Sealed { sealed: self.floor });
        }
        let told = if repeated { self.state.sealed_extents.clone() } else { Vec::new() };
        let sealed_extents = self.tell_extents(epoch, told, extents)?;
        if !repeated || sealed_extents != self.state.sealed_extents {
            self.state.sealed_extents = sealed_extents;
            self.state.sealed = epoch;
            self.floor = self.floor.max(epoch);
            self.sealed_by = None;
        }
        let highest = |&extent| match self.options.planted.is(PlantedBug::RepeatedSealMoves) {
            true => self.highest_in(extent),
            false => self.state.sealed_extent(extent).and_then(|told| told.highest),
        };
        let sealed = Sealed { epoch, highest: extents.iter().map(highest).collect() };
        if self.options.planted.is(PlantedBug::SealWithoutPersist) {
            effects.push(Effect::Reply { to, answer: Answer::Sealed(sealed) });
            return Ok(());
        }
        let answer = Waiting::Sealed(sealed);
        match self.sealed_by {
            Some(ticket) if ticket <= self.durable_ticket => self.reply(to, answer, effects),
            Some(ticket) => self.wait(self.last_ticket.max(ticket), to, answer),
            None => {
                let state = Some(self.state.clone());
                let ticket = self.persist(Change::default(), state, to, answer, None, effects);
                self.sealed_by = Some(ticket);
            }
        }
        Ok(())
    }

    /// What the seal of `epoch` tells, with what it has `told` before. An extent that it is asked about for the first time is
    /// looked up now, which is as good as then while nothing newer has changed anything: what is under way counts, because it
    /// is durable before this answer is. Later it cannot be told any more, and the epoch that came after is decided.
    fn tell_extents(
        &self,
        epoch: Epoch,
        mut told: Vec<SealedExtent>,
        extents: &[AddrRange],
    ) -> Result<Vec<SealedExtent>, Refusal> {
        for &extent in extents {
            if told.iter().any(|told| told.extent == extent) {
                continue;
            }
            if self.state.served > epoch {
                return Err(Refusal::Sealed { sealed: self.floor });
            }
            let highest = match self.options.planted.is(PlantedBug::SealForgetsPending) {
                true => last_in(&self.durable, extent),
                false => self.highest_in(extent),
            };
            told.push(SealedExtent { extent, highest });
        }
        if told.len() > limits::SEAL_EXTENTS_MAX_COUNT {
            // What nobody asks about now is looked up again if it has to be: it was told because nothing newer has changed anything.
            told.retain(|told| extents.contains(&told.extent));
        }
        Ok(told)
    }

    /// Refuses entries that would be refused now wherever they went: `bytes` of them in `epoch`. Changes nothing.
    pub fn admits(&self, epoch: Epoch, bytes: usize) -> Result<(), Refusal> {
        self.check_epoch(epoch)?;
        self.check_room(bytes)
    }

    /// Refuses what would change something in an epoch that is over, or that cannot be the one at hand: whoever asks is mistaken, and
    /// would end every epoch before it, for good. A client may know a layout before this node does; where the unit has a part in it, it was
    /// sealed in the epoch before.
    fn check_change(&self, epoch: Epoch) -> Result<(), Refusal> {
        self.check_epoch(epoch)?;
        let UnitState { sealed, served, .. } = self.state;
        let follows = epoch <= served || epoch.0.saturating_sub(1) <= sealed.0;
        if follows { Ok(()) } else { self.check_told(epoch) }
    }

    /// Refuses to end an epoch of which no layout was told here, nor of a later one, and which has not ended here: whoever asks is mistaken, or
    /// has to tell that layout first.
    pub fn check_told(&self, epoch: Epoch) -> Result<(), Refusal> {
        let is_told = epoch <= self.complete.epoch().max(self.state.sealed);
        if is_told { Ok(()) } else { Err(Refusal::NoLayout { epoch }) }
    }

    /// Refuses more work than may wait.
    pub(super) fn check_room(&self, bytes: usize) -> Result<(), Refusal> {
        let options = &self.options;
        if self.pending.len() >= options.pending_max_count {
            let limit = options.pending_max_count as u64;
            return Err(Refusal::Overloaded { pending: self.pending.len() as u64, limit });
        }
        if self.pending_bytes + bytes > options.pending_max_bytes {
            let limit = options.pending_max_bytes as u64;
            return Err(Refusal::Overloaded { pending: (self.pending_bytes + bytes) as u64, limit });
        }
        Ok(())
    }

    /// Stores `change`, if it is one, and answers when all that the answer reveals is durable.
    fn answer_when_durable(
        &mut self,
        to: ReplyTo,
        epoch: Epoch,
        change: Change,
        in_flight: bool,
        answer: Waiting,
        effects: &mut Vec<Effect>,
    ) {
        if change.runs.is_empty() && change.release.is_empty() {
            let early = self.options.planted.is(PlantedBug::WrittenBeforeDurable);
            match in_flight && !early {
                // Whose claim it is does not matter: the last ticket comes after it.
                true => self.wait(self.last_ticket, to, answer),
                false => self.reply(to, answer, effects),
            }
            return;
        }
        let before = (epoch > self.state.served).then(|| self.state.clone());
        let state = self.serve(epoch).then(|| self.state.clone());
        self.persist(change, state, to, answer, before, effects);
    }

    /// Something is about to change in `epoch`; whether that is new to the state.
    pub(super) fn serve(&mut self, epoch: Epoch) -> bool {
        let is_new = epoch > self.state.served;
        if is_new {
            self.state.served = epoch;
            // An older epoch is over as soon as a newer one is seen: layouts are decided one after the other.
            self.floor = self.floor.max(Epoch(epoch.0 - 1));
        }
        is_new
    }

    pub(super) fn persist(
        &mut self,
        change: Change,
        state: Option<super::UnitState>,
        to: ReplyTo,
        answer: Waiting,
        undo: Option<super::UnitState>,
        effects: &mut Vec<Effect>,
    ) -> Ticket {
        let Change { runs, release, claims, bytes, is_copy } = change;
        self.last_ticket.0 += 1;
        let ticket = self.last_ticket;
        for range in claims.iter() {
            self.claimed.insert(range);
        }
        self.pending_bytes += bytes;
        let trims = release.clone();
        let state = state.map(|state| state.encode());
        let planted = self.options.planted;
        let early = match answer {
            Waiting::Written { .. } => planted.is(PlantedBug::AckBeforePersist),
            Waiting::Trimmed => planted.is(PlantedBug::TrimWithoutPersist),
            _ => false,
        };
        if early {
            self.reply(to, answer.clone(), effects);
        }
        effects.push(Effect::Persist { ticket, runs, release, state, is_copy });
        // An answer that a planted fault gave early is not given again.
        let to = (!early).then_some(to);
        self.pending.push_back(Pending { ticket, to, answer, claims, trims, bytes, undo });
        ticket
    }

    /// Answers once everything that is under way is durable.
    pub(super) fn wait_for_all(&mut self, to: ReplyTo, answer: Waiting, effects: &mut Vec<Effect>) {
        match self.last_ticket <= self.durable_ticket {
            true => self.reply(to, answer, effects),
            false => self.wait(self.last_ticket, to, answer),
        }
    }

    /// Answers once `ticket` is durable, without storing anything.
    fn wait(&mut self, ticket: Ticket, to: ReplyTo, answer: Waiting) {
        debug_assert!(self.pending.back().is_none_or(|last| last.ticket <= ticket));
        let claims = Claims::default();
        let to = Some(to);
        self.pending.push_back(Pending {
            ticket,
            to,
            answer,
            claims,
            trims: Vec::new(),
            bytes: 0,
            undo: None,
        });
    }

    fn persisted(&mut self, up_to: Ticket, effects: &mut Vec<Effect>) {
        assert!(up_to <= self.last_ticket, "only what was begun can be durable");
        if self.failed {
            return;
        }
        self.durable_ticket = self.durable_ticket.max(up_to);
        while self.pending.front().is_some_and(|pending| pending.ticket <= up_to) {
            let Some(pending) = self.pending.pop_front() else { break };
            for range in pending.claims.iter() {
                self.claimed.remove(range.clone());
                self.durable.insert(range);
            }
            for range in pending.trims {
                self.state.forget_trimmed(range.clone());
                self.trimmed.insert(range);
            }
            self.pending_bytes -= pending.bytes;
            if let Some(to) = pending.to {
                self.reply(to, pending.answer, effects);
            }
        }
    }

    fn not_taken(&mut self, ticket: Ticket, refusal: Refusal, effects: &mut Vec<Effect>) {
        assert_eq!(ticket, self.last_ticket, "a ticket is turned down before the next one is made");
        let pending = self.pending.pop_back().expect("a ticket that was made waits");
        assert_eq!(pending.ticket, ticket, "nothing has come to wait for it since");
        self.last_ticket.0 -= 1;
        for range in pending.claims.iter() {
            self.claimed.remove(range);
        }
        self.pending_bytes -= pending.bytes;
        match pending.answer {
            // The epoch stays over in memory, which is on the safe side; asking again stores it.
            Waiting::Sealed(_) => self.sealed_by = None,
            _ => {
                if let Some(undo) = pending.undo {
                    self.state = undo;
                }
            }
        }
        effects.extend(pending.to.map(|to| Effect::Reply { to, answer: Answer::Refused(refusal) }));
    }

    fn fail(&mut self, effects: &mut Vec<Effect>) {
        self.failed = !self.options.planted.is(PlantedBug::FailureIgnored);
        let refused = self.pending.drain(..).filter_map(|pending| pending.to);
        effects.extend(refused.map(|to| Effect::Reply { to, answer: Answer::Refused(Refusal::Failed) }));
    }

    fn reply(&self, to: ReplyTo, answer: Waiting, effects: &mut Vec<Effect>) {
        let answer = match answer {
            Waiting::Written { taken, stores } => Answer::Written { taken: self.holdings(&taken), stores },
            Waiting::Filled(taken) => Answer::Filled { taken: self.holdings(&taken) },
            Waiting::Trimmed => Answer::Trimmed,
            Waiting::Restored => Answer::Restored,
            Waiting::Sealed(sealed) => Answer::Sealed(sealed),
        };
        effects.push(Effect::Reply { to, answer });
    }

    /// What taken addresses hold now. Looked up when the answer is given, so that it never says less than what is durable.
    fn holdings(&self, taken: &[AddrRange]) -> Vec<(AddrRange, Holding)> {
        let mut parts = Vec::new();
        for range in taken {
            self.classify_into(range.numbers(), &mut parts, usize::MAX);
        }
        parts
    }
}

/// Refuses more runs than the chain stores together.
fn check_parts(runs: &[Run]) -> Result<(), Refusal> {
    let (found, limit) = (runs.len() as u64, limits::PARTS_MAX_COUNT as u64);
    if found <= limit { Ok(()) } else { Err(Refusal::TooLarge { found, limit }) }
}

/// The ranges of a request in order, none overlapping another.
fn disjoint(ranges: &[AddrRange]) -> RangeSet {
    ranges.iter().map(|range| range.numbers()).collect()
}

/// Junk at every address of `range`, filled in `epoch`.
pub(crate) fn junk(range: Range<u64>, epoch: Epoch) -> impl Iterator<Item = Run> {
    range.clone().step_by(limits::RUN_MAX_COUNT).map(move |first_key| {
        let count = (range.end - first_key).min(limits::RUN_MAX_COUNT as u64) as usize;
        let zeros = Bytes::from_static(&JUNK_TABLE).slice(..count * TABLE_ENTRY_BYTES);
        let table = Table::from_bytes(zeros).expect("whole entries");
        Run {
            first_key,
            version: epoch.0,
            kind: RunKind::Junk,
            meta: Bytes::new(),
            table,
            data: Bytes::new(),
        }
    })
}
