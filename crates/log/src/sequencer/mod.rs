//! The sequencer: a counter that hands out positions, for one epoch. A pure core.
//!
//! It stores nothing and is not needed for safety: log units accept each position once, whoever asks. A new one starts,
//! in a new epoch, at the tail that the layout states (Wei 3.3.3). A grant belongs to its holder in its own epoch only,
//! and covers appends that are queued already; what it does not use it fills.
//!
//! Batches that are sent whole are granted positions once each, however often they are sent: the sequencer remembers the
//! latest grants, and knows below which position it has forgotten some. A batch states a position that any grant for it
//! lies above, so one that may have been granted and forgotten is told from a new one (docs/protocol/append.md).
//!
//! Of streams it knows the next position and the log position of the last one. A new sequencer is told that once its node
//! has learnt it; until then it grants nothing in streams. Conditions are decided here as well, and nowhere else
//! (docs/protocol/streams.md).

pub mod checkpoint;
mod known;
mod streams;
mod table;
mod tails;
mod writes;

use std::collections::VecDeque;

pub use known::KnownStreams;
pub use table::StreamTable;

use checkpoint::{Checkpointing, Chunk};
use streams::Streams;

use crate::limits;
use crate::planted::{Planted, PlantedBug};
use crate::pos::{BatchNo, ClientId, Epoch, LogPos, StreamId};
use crate::stream::StreamTail;
use crate::wire::{BatchHead, Grant, Refusal, TokenGroup};

/// Grants positions of one epoch.
#[derive(Clone, Debug)]
pub struct Sequencer {
    epoch: Epoch,
    next: LogPos,
    /// Grants of the latest batches, in the order of their positions.
    remembered: VecDeque<Remembered>,
    remembered_max: usize,
    /// Every grant for a batch that is not remembered lies below.
    forgotten: LogPos,
    /// What every request for positions is refused with.
    refuses: Option<Refusal>,
    /// Whether new positions are refused because the units have no room.
    is_full: bool,
    streams: Streams,
    planted: Planted,
}

/// A batch and its grant.
#[derive(Clone, Copy, Debug)]
struct Remembered {
    client: ClientId,
    number: BatchNo,
    grant: Granted,
}

/// The positions `[first, first + count)`, which nobody else is granted in the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The first.
    pub first: LogPos,
    /// How many.
    pub count: u32,
}

impl Granted {
    /// One past the last.
    pub fn end(self) -> LogPos {
        LogPos(self.first.0 + u64::from(self.count))
    }
}

/// What a batch was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// Positions that nobody had: whoever asked the sequencer has the entries written there.
    New(Granted),
    /// The positions that an earlier copy of the same batch was granted. Nothing is to be done but to say so.
    Again(Granted),
}

impl Sequencer {
    /// Grants from `tail` on, in `epoch`. The layout of that epoch states the tail.
    pub fn start(epoch: Epoch, tail: LogPos) -> Self {
        Self::start_planted(epoch, tail, Planted::NONE)
    }

    /// The same, with a fault.
    pub fn start_planted(epoch: Epoch, tail: LogPos, planted: Planted) -> Self {
        let next = match planted.is(PlantedBug::SequencerStartsLow) {
            true => LogPos(tail.0.saturating_sub(1)),
            false => tail,
        };
        let remembered_max = limits::SEQUENCER_REMEMBERED_MAX_COUNT;
        Self {
            epoch,
            next,
            remembered: VecDeque::new(),
            remembered_max,
            forgotten: tail,
            refuses: None,
            is_full: false,
            streams: Streams::new(tail, planted),
            planted,
        }
    }

    /// The same, remembering at most `count` batches, at least one.
    pub fn remembering(self, count: usize) -> Self {
        Self { remembered_max: count.max(1), ..self }
    }

    /// The same, which grants nothing: its layout keeps `kept` copies of an entry, and an append needs `needed`.
    pub fn short_of_replicas(self, kept: u16, needed: u16) -> Self {
        Self { refuses: Some(Refusal::TooFewReplicas { kept, needed }), ..self }
    }

    /// Refuses new positions as [`Refusal::Full`] from now on, or grants them again. What was granted before is not touched: a
    /// batch that is sent again is told its positions.
    pub fn set_full(&mut self, is_full: bool) {
        self.is_full = is_full;
    }

    /// Whether new positions are refused because there is no room for entries.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// The same, remembering at most `count` writes of parts of streams, at least one.
    pub fn remembering_writes(mut self, count: usize) -> Self {
        self.streams.remember_writes(count);
        self
    }

    /// The epoch that it serves.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The next `count` positions. Refuses another epoch ([`Refusal::WrongEpoch`]), a count of zero or over
    /// [`limits::GRANT_MAX_COUNT`], to go past the last position, and while there is no room ([`Refusal::Full`]); then nothing is
    /// used up.
    pub fn grant(&mut self, epoch: Epoch, count: u32) -> Result<Granted, Refusal> {
        self.check_grants(epoch)?;
        if self.is_full {
            return Err(Refusal::Full);
        }
        if count == 0 || count > limits::GRANT_MAX_COUNT {
            return Err(Refusal::TooLarge { found: count.into(), limit: limits::GRANT_MAX_COUNT.into() });
        }
        let first = self.next;
        // A range that ends at the largest number holds the largest position, which is one less.
        let Some(end) = first.0.checked_add(count.into()) else { return Err(Refusal::Exhausted) };
        self.next = LogPos(if self.planted.is(PlantedBug::GrantOverlaps) { first.0 + 1 } else { end });
        Ok(Granted { first, count })
    }

    /// The next positions for groups of appends, each of which is granted its own or refused for what its condition says;
    /// those that are granted follow each other. Refuses like [`grant`](Self::grant), with the sum of the counts, and
    /// ([`Refusal::StreamsUnknown`]) what depends on streams before it knows of them; then nothing is used up.
    pub fn grant_groups(&mut self, epoch: Epoch, groups: &[TokenGroup]) -> Result<Grant, Refusal> {
        self.check_grants(epoch)?;
        if self.is_full {
            return Err(Refusal::Full);
        }
        let limit = u64::from(limits::GRANT_MAX_COUNT);
        let count: u64 = groups.iter().map(|group| u64::from(group.count)).sum();
        if count == 0 || count > limit || groups.iter().any(|group| group.count == 0) {
            return Err(Refusal::TooLarge { found: count, limit });
        }
        let first = self.next;
        if first.0.checked_add(count).is_none() {
            return Err(Refusal::Exhausted);
        }
        self.streams.admit(groups)?;
        self.streams.prepare(groups);
        let mut answers = Vec::with_capacity(groups.len());
        for group in groups {
            let (answer, used) = self.streams.grant(group, self.next);
            let used = if self.planted.is(PlantedBug::GrantOverlaps) { used.min(1) } else { used };
            self.next = LogPos(self.next.0 + u64::from(used));
            answers.push(answer);
        }
        Ok(Grant { first, groups: answers })
    }

    /// Takes over what is known of streams below the tail at which this sequencer began: from now on it grants positions in
    /// streams. To be called once.
    pub fn learn_streams(&mut self, known: KnownStreams) {
        self.streams.learn(known);
    }

    /// Whether it knows where streams end.
    pub fn knows_streams(&self) -> bool {
        self.streams.known().is_some()
    }

    /// How many streams it knows, and how many positions in streams it has granted.
    pub fn count_streams(&self) -> (usize, u64) {
        (self.streams.known().map_or(0, KnownStreams::len), self.streams.granted())
    }

    /// Begins a checkpoint in chunks of at most `chunk_bytes`; `None` if it does not know of streams.
    pub fn begin_checkpoint(&self, chunk_bytes: usize) -> Option<Checkpointing> {
        self.streams.known().map(|_| Checkpointing::new(self.next, chunk_bytes))
    }

    /// The next chunk of a checkpoint that this sequencer has begun. What it says is at least as new as the checkpoint's beginning.
    pub fn next_chunk(&self, making: &mut Checkpointing) -> Option<Chunk> {
        self.streams.known().map(|known| making.next(known))
    }

    /// Where streams end, in the order in which they are asked about. Refuses another epoch, and
    /// ([`Refusal::StreamsUnknown`]) as long as it does not know.
    pub fn stream_tails(&self, epoch: Epoch, asked: &[StreamId]) -> Result<Vec<StreamTail>, Refusal> {
        self.check_epoch(epoch)?;
        self.streams.tails(asked)
    }

    /// Positions for a batch of `count` entries: those of an earlier copy, if there was one, else the next ones, if
    /// `admitted` says that they can be written. Refuses like [`grant`](Self::grant), with what `admitted` says, and
    /// ([`Refusal::Forgotten`]) where it does not know whether there was an earlier copy; then nothing is used up.
    pub fn append(
        &mut self,
        epoch: Epoch,
        batch: &BatchHead,
        count: u32,
        admitted: Result<(), Refusal>,
    ) -> Result<Placed, Refusal> {
        self.check_grants(epoch)?;
        if let Some(grant) = self.recall(batch)
            && !self.planted.is(PlantedBug::BatchGrantedTwice)
        {
            return Ok(Placed::Again(grant));
        }
        self.check_is_new(batch)?;
        admitted?;
        let grant = self.grant(epoch, count)?;
        assert!(grant.first >= batch.after, "a grant lies where its batch will look for it");
        self.remember(batch, grant);
        Ok(Placed::New(grant))
    }

    /// The same for a batch of groups, each of which is granted its positions or refused as [`grant_groups`](Self::grant_groups) says. What
    /// each of them got is not remembered: if an earlier copy was granted anything, all copies are refused from then on
    /// ([`Refusal::Forgotten`]), and whoever has lost the answer looks for the entries below. If it was granted nothing, it is
    /// refused again: a condition that does not hold once never will in the epoch.
    pub fn append_groups(
        &mut self,
        epoch: Epoch,
        batch: &BatchHead,
        groups: &[TokenGroup],
        admitted: Result<(), Refusal>,
    ) -> Result<Grant, Refusal> {
        self.check_grants(epoch)?;
        if let Some(grant) = self.recall(batch)
            && !self.planted.is(PlantedBug::BatchGrantedTwice)
        {
            return Err(Refusal::Forgotten { from: grant.end() });
        }
        self.check_is_new(batch)?;
        admitted?;
        let grant = self.grant_groups(epoch, groups)?;
        let (first, count) = (grant.first, grant.count());
        assert!(first >= batch.after, "a grant lies where its batch will look for it");
        if count > 0 {
            self.remember(batch, Granted { first, count });
        }
        Ok(grant)
    }

    /// Refuses a batch that is not remembered and may be an earlier one.
    fn check_is_new(&self, batch: &BatchHead) -> Result<(), Refusal> {
        if batch.after < self.forgotten && !self.planted.is(PlantedBug::ForgottenIsNew) {
            return Err(Refusal::Forgotten { from: self.forgotten });
        }
        if batch.after > self.next {
            // Not of this epoch: what this sequencer forgets later would not be told from what it never saw.
            return Err(Refusal::TooLarge { found: batch.after.0, limit: self.next.0 });
        }
        Ok(())
    }

    /// What an earlier copy of the batch was granted, if that is remembered. No earlier grant than those at or above
    /// `after` can be the batch's, and of these there are few, because a client knows a recent tail.
    fn recall(&self, batch: &BatchHead) -> Option<Granted> {
        let later = self.remembered.iter().rev().take_while(|earlier| earlier.grant.first >= batch.after);
        let is_copy =
            |earlier: &&Remembered| (earlier.client, earlier.number) == (batch.client, batch.number);
        later.into_iter().find(is_copy).map(|earlier| earlier.grant)
    }

    fn remember(&mut self, batch: &BatchHead, grant: Granted) {
        self.remembered.push_back(Remembered { client: batch.client, number: batch.number, grant });
        if self.remembered.len() > self.remembered_max
            && let Some(Remembered { grant, .. }) = self.remembered.pop_front()
        {
            self.forgotten = grant.end();
        }
    }

    /// The next position that will be granted: every position below may have been written, none above has.
    pub fn tail(&self, epoch: Epoch) -> Result<LogPos, Refusal> {
        self.check_epoch(epoch)?;
        Ok(self.next)
    }

    fn check_grants(&self, epoch: Epoch) -> Result<(), Refusal> {
        self.check_epoch(epoch)?;
        self.refuses.map_or(Ok(()), Err)
    }

    fn check_epoch(&self, epoch: Epoch) -> Result<(), Refusal> {
        if epoch == self.epoch || self.planted.is(PlantedBug::SequencerAnyEpoch) {
            return Ok(());
        }
        Err(Refusal::WrongEpoch { serving: self.epoch, asked: epoch })
    }
}

#[cfg(test)]
mod streams_tests;
#[cfg(test)]
mod tests;
