//! The sequencer: a counter that hands out positions, for one epoch. A pure core.
//!
//! It stores nothing and is not needed for safety: log units accept each position once, whoever asks. A new one starts,
//! in a new epoch, at the tail that the layout states (Wei 3.3.3). A grant belongs to its holder in its own epoch only,
//! and covers appends that are queued already; what it does not use it fills.
//!
//! Batches that are sent whole are granted positions once each, however often they are sent: the sequencer remembers the
//! latest grants, and knows below which position it has forgotten some. A batch states a position that any grant for it
//! lies above, so one that may have been granted and forgotten is told from a new one (docs/protocol/append.md).

use std::collections::VecDeque;

use crate::limits;
use crate::planted::{Planted, PlantedBug};
use crate::pos::{BatchNo, ClientId, Epoch, LogPos};
use crate::wire::{BatchHead, Grant, Refusal};

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
    planted: Planted,
}

/// A batch and its grant.
#[derive(Clone, Copy, Debug)]
struct Remembered {
    client: ClientId,
    number: BatchNo,
    grant: Grant,
}

/// What a batch was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// Positions that nobody had: whoever asked the sequencer has the entries written there.
    New(Grant),
    /// The positions that an earlier copy of the same batch was granted. Nothing is to be done but to say so.
    Again(Grant),
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

    /// The epoch that it serves.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The next `count` positions. Refuses another epoch ([`Refusal::WrongEpoch`]), a count of zero or over
    /// [`limits::GRANT_MAX_COUNT`], to go past the last position, and while there is no room ([`Refusal::Full`]); then nothing is
    /// used up.
    pub fn grant(&mut self, epoch: Epoch, count: u32) -> Result<Grant, Refusal> {
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
        Ok(Grant { first, count })
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
        if batch.after < self.forgotten && !self.planted.is(PlantedBug::ForgottenIsNew) {
            return Err(Refusal::Forgotten { from: self.forgotten });
        }
        if batch.after > self.next {
            // Not of this epoch: what this sequencer forgets later would not be told from what it never saw.
            return Err(Refusal::TooLarge { found: batch.after.0, limit: self.next.0 });
        }
        admitted?;
        let grant = self.grant(epoch, count)?;
        assert!(grant.first >= batch.after, "a grant lies where its batch will look for it");
        self.remember(batch, grant);
        Ok(Placed::New(grant))
    }

    /// What an earlier copy of the batch was granted, if that is remembered. No earlier grant than those at or above
    /// `after` can be the batch's, and of these there are few, because a client knows a recent tail.
    fn recall(&self, batch: &BatchHead) -> Option<Grant> {
        let later = self.remembered.iter().rev().take_while(|earlier| earlier.grant.first >= batch.after);
        let is_copy =
            |earlier: &&Remembered| (earlier.client, earlier.number) == (batch.client, batch.number);
        later.into_iter().find(is_copy).map(|earlier| earlier.grant)
    }

    fn remember(&mut self, batch: &BatchHead, grant: Grant) {
        self.remembered.push_back(Remembered { client: batch.client, number: batch.number, grant });
        if self.remembered.len() > self.remembered_max
            && let Some(Remembered { grant, .. }) = self.remembered.pop_front()
        {
            self.forgotten = LogPos(grant.first.0 + u64::from(grant.count));
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
mod tests {
    use super::*;
    use crate::pos::POSITION_MAX;

    /// Grants in the epoch and around it, with a new sequencer half way, as far as they are given.
    fn granted(planted: Planted) -> Vec<(u64, LogPos)> {
        let mut out = Vec::new();
        let mut ask = |sequencer: &mut Sequencer, epoch, count| {
            if let Ok(grant) = sequencer.grant(Epoch(epoch), count) {
                out.extend((0..u64::from(grant.count)).map(|at| (epoch, LogPos(grant.first.0 + at))));
            }
        };
        let mut old = Sequencer::start_planted(Epoch(1), LogPos(0), planted);
        ask(&mut old, 1, 3);
        ask(&mut old, 2, 1);
        ask(&mut old, 1, 1);
        let mut new = Sequencer::start_planted(Epoch(2), LogPos(4), planted);
        ask(&mut new, 1, 1);
        ask(&mut new, 2, 2);
        out
    }

    #[test]
    fn positions_are_granted_once_and_in_one_epoch_only() {
        let expected = [(1, 0), (1, 1), (1, 2), (1, 3), (2, 4), (2, 5)];
        assert_eq!(granted(Planted::NONE), expected.map(|(epoch, pos)| (epoch, LogPos(pos))));
    }

    #[test]
    fn each_planted_fault_of_the_sequencer_shows() {
        for bug in [PlantedBug::SequencerStartsLow, PlantedBug::SequencerAnyEpoch, PlantedBug::GrantOverlaps]
        {
            assert_ne!(granted(Planted::bug(bug)), granted(Planted::NONE), "{bug:?}");
        }
    }

    #[test]
    fn a_sequencer_of_full_units_grants_nothing_new_and_knows_what_it_has_granted() {
        let mut sequencer = Sequencer::start(Epoch(1), LogPos(0));
        let batch = BatchHead {
            client: ClientId(7),
            number: BatchNo(1),
            request: Default::default(),
            after: LogPos(0),
        };
        let placed = sequencer.append(Epoch(1), &batch, 2, Ok(()));
        let grant = Grant { first: LogPos(0), count: 2 };
        assert_eq!(placed, Ok(Placed::New(grant)));
        sequencer.set_full(true);
        assert_eq!(sequencer.grant(Epoch(1), 1), Err(Refusal::Full));
        assert_eq!(sequencer.append(Epoch(1), &batch, 2, Ok(())), Ok(Placed::Again(grant)));
        let next = BatchHead { number: BatchNo(2), ..batch };
        assert_eq!(sequencer.append(Epoch(1), &next, 1, Ok(())), Err(Refusal::Full));
        assert_eq!(sequencer.tail(Epoch(1)), Ok(LogPos(2)), "nothing was used up");
        sequencer.set_full(false);
        assert_eq!(sequencer.grant(Epoch(1), 1), Ok(Grant { first: LogPos(2), count: 1 }));
    }

    /// What becomes of batches, each sent with what the client knows of the tail, by a sequencer that remembers two.
    fn placed(planted: Planted, sent: &[(u64, u64)]) -> Vec<Result<Placed, Refusal>> {
        let mut sequencer = Sequencer::start_planted(Epoch(1), LogPos(10), planted).remembering(2);
        let batch = |number, after| BatchHead {
            client: ClientId(7),
            number: BatchNo(number),
            request: Default::default(),
            after: LogPos(after),
        };
        let mut send = |&(number, after)| sequencer.append(Epoch(1), &batch(number, after), 2, Ok(()));
        sent.iter().map(&mut send).collect()
    }

    fn grant(first: u64) -> Grant {
        Grant { first: LogPos(first), count: 2 }
    }

    const COPIES: &[(u64, u64)] =
        &[(1, 10), (2, 10), (1, 10), (3, 10), (1, 10), (4, 10), (4, 12), (1, 10), (4, 12)];

    #[test]
    fn a_batch_is_granted_positions_once_however_often_and_late_its_copies_come() {
        let expected = [
            Ok(Placed::New(grant(10))),
            Ok(Placed::New(grant(12))),
            Ok(Placed::Again(grant(10))),
            Ok(Placed::New(grant(14))),
            // Forgotten now: neither the late copy nor a first one that knows too little is taken for new.
            Err(Refusal::Forgotten { from: LogPos(12) }),
            Err(Refusal::Forgotten { from: LogPos(12) }),
            Ok(Placed::New(grant(16))),
            Err(Refusal::Forgotten { from: LogPos(14) }),
            Ok(Placed::Again(grant(16))),
        ];
        assert_eq!(placed(Planted::NONE, COPIES), expected);
    }

    #[test]
    fn each_planted_fault_of_batches_shows() {
        for bug in [PlantedBug::BatchGrantedTwice, PlantedBug::ForgottenIsNew] {
            assert_ne!(placed(Planted::bug(bug), COPIES), placed(Planted::NONE, COPIES), "{bug:?}");
        }
    }

    #[test]
    fn a_batch_that_is_refused_or_knows_another_epochs_tail_uses_nothing_up() {
        assert_eq!(placed(Planted::NONE, &[(1, 11)]), [Err(Refusal::TooLarge { found: 11, limit: 10 })]);
        let mut sequencer = Sequencer::start(Epoch(1), LogPos(0));
        let batch = BatchHead {
            client: ClientId(7),
            number: BatchNo(1),
            request: Default::default(),
            after: LogPos(0),
        };
        let refused = sequencer.append(Epoch(1), &batch, 2, Err(Refusal::Full));
        assert_eq!(refused, Err(Refusal::Full));
        assert!(sequencer.append(Epoch(2), &batch, 2, Ok(())).is_err());
        assert_eq!(sequencer.append(Epoch(1), &batch, 2, Ok(())), Ok(Placed::New(grant(0))));
    }

    #[test]
    fn positions_never_wrap() {
        let mut sequencer = Sequencer::start(Epoch(1), LogPos(POSITION_MAX));
        assert_eq!(sequencer.grant(Epoch(1), 2), Err(Refusal::Exhausted));
        assert_eq!(sequencer.grant(Epoch(1), 1), Ok(Grant { first: LogPos(POSITION_MAX), count: 1 }));
        assert_eq!(sequencer.grant(Epoch(1), 1), Err(Refusal::Exhausted));
    }

    #[test]
    fn a_grant_of_nothing_or_of_too_much_is_refused() {
        let mut sequencer = Sequencer::start(Epoch(1), LogPos(0));
        for count in [0, limits::GRANT_MAX_COUNT + 1] {
            assert!(matches!(sequencer.grant(Epoch(1), count), Err(Refusal::TooLarge { .. })));
        }
        assert_eq!(sequencer.tail(Epoch(1)), Ok(LogPos(0)));
        assert_eq!(sequencer.tail(Epoch(2)), Err(Refusal::WrongEpoch { serving: Epoch(1), asked: Epoch(2) }));
    }
}
