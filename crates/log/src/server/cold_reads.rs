//! Cold reads: how much they hold together, and whose turn it is. (docs/protocol/read.md)
//!
//! * A read asks for room before anything is looked up for it, because that takes memory too: for what its records may take, and once they
//!   are found for what they do. Where there is no room for that, it lets go of all that it has and waits for just so much.
//! * Nobody who holds something waits for room. A read in several parts ends with those that it has: its answer says how far it came. So does
//!   one that has a part from memory: what it shows of that stays in memory for as long as it has it, whatever else comes.
//! * Of the reads of one connection only the first, as much as one read may be, wait for those of others: connections take turns, by bytes.
//! * Those first ones wait also until most of what their connection was sent is gone; what is handed over to a connection counts there, and
//!   no more here.
//!
//! Heads that are looked up without their entries count as well: as many as are looked at in one piece, and then those that are kept.
//! What stands in memory is not counted: it is handed over at once, or let go of before anything is waited for.

use std::ops::Range;

use ithaca_chain::limits::FOUND_RUN_BYTES;
use ithaca_chain::{Chain, Heading, Reading};
use ithaca_env::Env;
use ithaca_env::limits::BLOCK_BYTES;
use ithaca_env::net::NetError;
use ithaca_env::sync::{Count, Permit, Semaphore};

use super::answers::Answers;
use super::unit_shell::unreadable;
use crate::limits;
use crate::wire::Refusal;

/// What an entry of 4 KB takes, which begins anywhere in a block: of a read of few entries no more is expected until they are found.
const ENTRY_BYTES: usize = 2 * BLOCK_BYTES + FOUND_RUN_BYTES;

/// Bytes of heads that are looked at in one piece.
pub(super) const HEADINGS_BYTES: usize = 1 << 20;

const _: () = assert!(HEADINGS_BYTES <= limits::COLD_READS_MAX_BYTES);

/// Reads of a unit that need its drive.
pub(super) struct ColdReads {
    room: Semaphore,
    waiting: Count,
}

impl Default for ColdReads {
    fn default() -> Self {
        Self { room: Semaphore::new(limits::COLD_READS_MAX_BYTES), waiting: Count::default() }
    }
}

impl ColdReads {
    /// Bytes that they hold, or have room for.
    pub(super) fn held_bytes(&self) -> usize {
        self.room.held()
    }

    /// How many wait, and hold nothing.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.get()
    }

    /// Leaves no room for anybody, while it is held.
    #[cfg(test)]
    pub(super) async fn hold_all(&self) -> Permit {
        self.room.acquire(limits::COLD_READS_MAX_BYTES).await
    }

    /// What one of them holds whose answer is one of these: nothing yet.
    pub(super) fn begin<'a>(&'a self, answers: &'a Answers) -> ColdRead<'a> {
        ColdRead { reads: self, answers, has_cached: false, held: None }
    }
}

/// What a read holds, until this is dropped: after its answer is handed over.
pub(super) struct ColdRead<'a> {
    reads: &'a ColdReads,
    answers: &'a Answers,
    /// Whether the answer has something from memory.
    has_cached: bool,
    held: Option<Permit>,
}

impl ColdRead<'_> {
    /// After a piece of work: others have their turn.
    pub(super) async fn give_way(&self, env: &Env) {
        self.answers.give_way(env).await;
    }

    /// The answer has something from memory: it waits for nothing any more.
    pub(super) fn note_cached(&mut self) {
        self.has_cached = true;
    }

    /// Reads records with these keys, as of [`Chain::read_ranges`], of as many runs as fit into an answer. `None` if there is no room for
    /// them beside what is held already, or none now and the answer has something from memory.
    ///
    /// Errors: what they cannot be read for; the connection is closed.
    pub(super) async fn read_ranges(
        &mut self,
        chain: &Chain,
        ranges: &[Range<u64>],
        limit_bytes: usize,
    ) -> Result<Option<Reading>, Refusal> {
        if let Some(held) = &mut self.held {
            let before = held.count();
            let may_hold = |bytes| held.resize(before + bytes);
            let reading = chain.read_ranges_if(ranges, limit_bytes, limits::RUNS_MAX_COUNT, may_hold);
            return reading.await.map_err(|error| unreadable(&error));
        }
        let keys = ranges.iter().fold(0, |sum: u64, keys| sum.saturating_add(keys.end - keys.start));
        let mut expected =
            usize::try_from(keys).unwrap_or(usize::MAX).saturating_mul(ENTRY_BYTES).min(limit_bytes);
        loop {
            let Some(mut held) = self.enter(expected).await? else { return Ok(None) };
            let may_hold = |bytes| {
                expected = bytes;
                held.resize(bytes)
            };
            let reading = chain.read_ranges_if(ranges, limit_bytes, limits::RUNS_MAX_COUNT, may_hold).await;
            if let Some(reading) = reading.map_err(|error| unreadable(&error))? {
                self.held = Some(held);
                return Ok(Some(reading));
            }
        }
    }

    /// Shows `visit` heads of records with these keys, as of [`Chain::visit_headings`], and holds what it says that it keeps of each. Returns
    /// how far that is; `None` if there is no room for them beside what is held already, or none now and the answer has something from
    /// memory.
    ///
    /// Errors: as of [`read_ranges`](Self::read_ranges).
    pub(super) async fn visit_headings(
        &mut self,
        chain: &Chain,
        keys: Range<u64>,
        mut visit: impl FnMut(Heading<'_>) -> usize,
    ) -> Result<Option<u64>, Refusal> {
        let before = self.held.as_ref().map_or(0, Permit::count);
        let mut held = match self.held.take() {
            None => {
                let Some(held) = self.enter(HEADINGS_BYTES).await? else { return Ok(None) };
                held
            }
            Some(mut held) => {
                if !held.resize(before + HEADINGS_BYTES) {
                    self.held = Some(held);
                    return Ok(None);
                }
                held
            }
        };
        let mut kept = 0;
        let read_to = chain.visit_headings(keys, HEADINGS_BYTES, |heading| kept += visit(heading)).await;
        let read_to = read_to.map_err(|error| unreadable(&error))?;
        // Who keeps nothing may wait again.
        let left = before + kept.min(HEADINGS_BYTES);
        held.resize(left);
        self.held = (left > 0).then_some(held);
        Ok(Some(read_to))
    }

    /// Room for so much: waits for it, or is given none. Errors: nobody is told why, the connection is closed.
    async fn enter(&self, bytes: usize) -> Result<Option<Permit>, Refusal> {
        if !self.has_cached {
            return self.wait(bytes).await.map(Some).map_err(|_| Refusal::Failed);
        }
        let takes_answers = self.answers.writer.queued_bytes() < limits::UNSENT_MAX_BYTES;
        Ok(takes_answers.then(|| self.reads.room.try_acquire(bytes)).flatten())
    }

    async fn wait(&self, bytes: usize) -> Result<Permit, NetError> {
        let _waits = self.reads.waiting.one_more();
        let _turn = self.answers.cold_turn.acquire(bytes).await;
        self.answers.writer.below(limits::UNSENT_MAX_BYTES).await?;
        Ok(self.reads.room.acquire(bytes).await)
    }
}
