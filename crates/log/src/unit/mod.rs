//! The log unit: write-once addresses that survive crashes. A pure core.
//!
//! An address is unwritten, then holds data or junk, then is trimmed; it never goes back. The unit keeps which
//! addresses are taken ([`RangeSet`]s, whose size is the number of gaps); what they hold lies in the chain under it.
//!
//! ```text
//!             step(Input)                      Effect::Persist{ticket}
//!   shell ───────────────────▶  Unit  ───────────────────────────▶ chain
//!         ◀───────────────────        ◀───────────────────────────
//!           Effect::Reply{to}              Input::Persisted{up_to}
//! ```
//!
//! Promises, each with a planted fault that a test finds:
//! * a reply waits until all that it reveals is durable, also when it says that an address is taken;
//! * nothing in an epoch at or below the sealed one is accepted, across restarts too;
//! * no epoch ends but by a layout of it or of a later one that the unit is told of, whatever number a request has;
//! * repeating a seal gives the same answer;
//! * a run that is partly taken is written where it is free, and the rest is reported;
//! * in an epoch that is over only what is on every replica is readable, and trimmed only what is so for all;
//! * after the drive has failed nothing is acknowledged any more.
//!
//! It does not read: [`Unit::classify`] says what the chain holds, and the shell reads it. Of the layout it knows the stripes that it
//! is listed in: epochs come with requests.

mod complete;
mod conflict;
mod follow;
mod found;
mod pending;
mod restore;
mod state;
mod step;
mod stream_filter;
mod stream_found;
mod stream_index;

#[cfg(test)]
mod tests;

pub use complete::{Listed, Readable};
pub use follow::Follower;
pub use found::Found;
pub use state::{SealedExtent, UnitState};
pub(crate) use step::junk;
pub use stream_found::{Entries, StreamFound};
pub use stream_index::{StreamBlock, StreamIndex};

use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};

use bytes::Bytes;
use ithaca_chain::{RangeSet, Run};

use crate::limits;
use crate::planted::{Planted, PlantedBug};
use crate::pos::{Addr, AddrRange, Epoch, NodeId};
use crate::wire::{ExtentBounds, Mark, Refusal, Sealed};
use complete::Complete;
use pending::Pending;

/// Where a reply goes: the shell's own name for a request, opaque here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplyTo(pub u64);

/// Names a [`Effect::Persist`]. Tickets grow by one, and become durable in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What happens to a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A client writes. The run's version is the epoch of its tokens, its kind is data, and it keeps to the limits of the
    /// wire.
    Write {
        /// Who is answered.
        to: ReplyTo,
        /// What to write.
        run: Run,
    },
    /// A client fills holes with junk.
    Fill {
        /// Who is answered.
        to: ReplyTo,
        /// The epoch of the request.
        epoch: Epoch,
        /// Where; within the limits of the wire.
        ranges: Vec<AddrRange>,
    },
    /// A client trims.
    Trim {
        /// Who is answered.
        to: ReplyTo,
        /// The epoch of the request.
        epoch: Epoch,
        /// What; within the limits of the wire.
        ranges: Vec<AddrRange>,
    },
    /// Somebody ends an epoch, whose layout was told before.
    Seal {
        /// Who is answered.
        to: ReplyTo,
        /// The epoch to end.
        epoch: Epoch,
        /// Where it is to be told what is the highest address; within the limits of the wire.
        extents: Vec<AddrRange>,
    },
    /// The unit's own node copies what other replicas hold of a closed range: it may use what the others agreed on, and nobody
    /// reads it here before a layout says so.
    Restore {
        /// Who is answered.
        to: ReplyTo,
        /// The epoch of the layout that the copy was made in.
        epoch: Epoch,
        /// What to store where nothing is stored yet, data and junk.
        runs: Vec<Run>,
        /// What is trimmed elsewhere, whether it was ever stored here or not.
        trimmed: Vec<AddrRange>,
        /// Stored addresses that are junk elsewhere.
        voided: Vec<AddrRange>,
        /// Stored addresses whose records the chain has lost: `runs` are stored over them, with their own versions. The shell
        /// has made sure of it, and that what it stores is what was lost.
        lost: Vec<AddrRange>,
    },
    /// The layout of `epoch` lists the unit in these stripes and in no others.
    Listed {
        /// The epoch; an older one than the unit knows is ignored.
        epoch: Epoch,
        /// The stripes.
        stripes: Vec<Listed>,
    },
    /// The node `from` says how far stripes are complete by the layout of `epoch`.
    Marked {
        /// Who says so; of a stripe whose last replica it is not, it is ignored.
        from: NodeId,
        /// The epoch; if the unit knows another layout, it is ignored.
        epoch: Epoch,
        /// How far.
        marks: Vec<Mark>,
    },
    /// Every ticket up to this one is durable.
    Persisted {
        /// The last.
        up_to: Ticket,
    },
    /// The chain did not take the ticket, because it has no room: nothing of it was or will be stored. MUST come right
    /// after the step that made the ticket, before any other input.
    NotTaken {
        /// The ticket.
        ticket: Ticket,
        /// What the requester is told.
        refusal: Refusal,
    },
    /// The drive failed. What is not durable may or may not be there after a restart.
    Failed,
}

/// What a unit wants done, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Store all of this, or nothing of it.
    Persist {
        /// Its name.
        ticket: Ticket,
        /// Data and junk.
        runs: Vec<Run>,
        /// Addresses that are trimmed.
        release: Vec<Range<u64>>,
        /// The unit's state, replacing the earlier one.
        state: Option<Bytes>,
        /// Whether an earlier replica holds the data already, so that it should find room here too.
        is_copy: bool,
    },
    /// Answer a request.
    Reply {
        /// Which.
        to: ReplyTo,
        /// The answer.
        answer: Answer,
    },
}

/// An answer. Addresses that turned out to be taken are stated as ranges; what stored ones hold, and whose it is, the shell
/// looks up in the chain: it is durable, and does not change but by a trim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The run was written, except where addresses were taken.
    Written {
        /// Those, in order.
        taken: Vec<(AddrRange, Holding)>,
        /// Whether there were others.
        stores: bool,
    },
    /// The ranges are junk, except where addresses were taken, by whatever it was: junk that was there before is listed
    /// too.
    Filled {
        /// Those, in order.
        taken: Vec<(AddrRange, Holding)>,
    },
    /// The ranges are trimmed.
    Trimmed,
    /// What was copied is there.
    Restored,
    /// The epoch is over.
    Sealed(Sealed),
    /// The request was refused.
    Refused(Refusal),
}

/// What an address of a unit holds, durably.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holding {
    /// Nothing that is durable.
    Unwritten,
    /// Data or junk: the chain says which.
    Stored,
    /// A record that counts as junk.
    Voided,
    /// It is trimmed.
    Trimmed,
}

/// How much a unit keeps in memory at the most.
#[derive(Clone, Copy, Debug)]
pub struct UnitOptions {
    /// Requests that wait for a ticket.
    pub pending_max_count: usize,
    /// Bytes of data in them.
    pub pending_max_bytes: usize,
    /// Ranges of taken addresses, and of trimmed ones.
    pub ranges_max_count: usize,
    /// A fault to put in force.
    pub planted: Planted,
}

impl Default for UnitOptions {
    fn default() -> Self {
        Self {
            pending_max_count: limits::UNIT_PENDING_MAX_COUNT,
            pending_max_bytes: limits::UNIT_PENDING_MAX_BYTES,
            ranges_max_count: limits::UNIT_RANGES_MAX_COUNT,
            planted: Planted::NONE,
        }
    }
}

/// What a chain knows after a restart.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    /// The latest state that was stored.
    pub state: UnitState,
    /// Addresses that hold a record or are trimmed.
    pub covered: RangeSet,
    /// Addresses that are trimmed.
    pub released: RangeSet,
}

/// A log unit.
#[derive(Clone, Debug)]
pub struct Unit {
    options: UnitOptions,
    state: UnitState,
    /// Requests in this epoch and below are refused.
    floor: Epoch,
    /// The ticket that stores `state.sealed`; `None` if the chain did not take it.
    sealed_by: Option<Ticket>,
    /// Addresses that durably hold something or are trimmed.
    durable: RangeSet,
    /// Addresses that a ticket under way takes. Disjoint from `durable`.
    claimed: RangeSet,
    /// Addresses that are durably trimmed.
    trimmed: RangeSet,
    /// Requests that wait for a ticket, in order of their tickets.
    pending: VecDeque<Pending>,
    pending_bytes: usize,
    last_ticket: Ticket,
    durable_ticket: Ticket,
    failed: bool,
    /// What is on every replica.
    complete: Complete,
}

impl Unit {
    /// A unit that has never held anything.
    pub fn new(options: UnitOptions) -> Self {
        Self::recover(options, Recovered::default())
    }

    /// A unit as the chain has it after a restart. The epochs that it served before are over for it: what it had begun and
    /// not finished then may or may not be there, so it serves again in a new epoch only.
    pub fn recover(options: UnitOptions, recovered: Recovered) -> Self {
        let Recovered { mut state, covered, released } = recovered;
        let floor = if options.planted.is(PlantedBug::ServesAfterRestart) {
            state.sealed
        } else {
            state.sealed.max(state.served)
        };
        let mut durable = covered;
        for range in released.ranges() {
            state.forget_trimmed(range.clone());
            durable.insert(range);
        }
        Self {
            options,
            state,
            floor,
            sealed_by: Some(Ticket(0)),
            durable,
            claimed: RangeSet::new(),
            trimmed: released,
            pending: VecDeque::new(),
            pending_bytes: 0,
            last_ticket: Ticket(0),
            durable_ticket: Ticket(0),
            failed: false,
            complete: Complete::default(),
        }
    }

    /// Whether a read in `epoch` may be served; reads change nothing, so that is all there is to check.
    pub fn check_epoch(&self, epoch: Epoch) -> Result<(), Refusal> {
        if self.failed && !self.options.planted.is(PlantedBug::FailureIgnored) {
            return Err(Refusal::Failed);
        }
        if epoch <= self.floor && !self.options.planted.is(PlantedBug::StaleEpochAccepted) {
            return Err(Refusal::Sealed { sealed: self.floor });
        }
        Ok(())
    }

    /// What the addresses of `range` hold, as parts of it in order, without gaps. Only what is durable is seen.
    pub fn classify(&self, range: AddrRange) -> Vec<(AddrRange, Holding)> {
        let mut parts = Vec::new();
        self.classify_into(range.numbers(), &mut parts, usize::MAX);
        parts
    }

    /// Adds the parts of `range` to `parts`, until there are `count_max`. Whether that was all of them.
    pub(crate) fn classify_into(
        &self,
        range: Range<u64>,
        parts: &mut Vec<(AddrRange, Holding)>,
        count_max: usize,
    ) -> bool {
        let mut push = |part: Range<u64>, holding| {
            if part.is_empty() {
                return ControlFlow::Continue(());
            }
            if parts.len() >= count_max {
                return ControlFlow::Break(());
            }
            parts.push((part.into(), holding));
            ControlFlow::Continue(())
        };
        let classified = if self.options.planted.is(PlantedBug::ReadBeforeDurable) {
            let mut both = self.durable.clone();
            self.claimed.ranges().for_each(|part| _ = both.insert(part));
            self.classify_over(&both, range, &mut push)
        } else {
            self.classify_over(&self.durable, range, &mut push)
        };
        classified.is_continue()
    }

    fn classify_over(
        &self,
        visible: &RangeSet,
        range: Range<u64>,
        push: &mut impl FnMut(Range<u64>, Holding) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut next = range.start;
        for stored in visible.overlaps(range.clone()) {
            push(next..stored.start, Holding::Unwritten)?;
            let mut at = stored.start;
            for trimmed in self.trimmed.overlaps(stored.clone()) {
                self.classify_stored(at..trimmed.start, push)?;
                at = trimmed.end;
                push(trimmed, Holding::Trimmed)?;
            }
            self.classify_stored(at..stored.end, push)?;
            next = stored.end;
        }
        push(next..range.end, Holding::Unwritten)
    }

    /// The parts of addresses that have a record.
    fn classify_stored(
        &self,
        range: Range<u64>,
        push: &mut impl FnMut(Range<u64>, Holding) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut at = range.start;
        for voided in self.state.voided.overlaps(range.clone()) {
            push(at..voided.start, Holding::Stored)?;
            at = voided.end;
            push(voided, Holding::Voided)?;
        }
        push(at..range.end, Holding::Stored)
    }

    /// Every address from `from` up to here is resolved and durable: a follower that has come to `from` may be served them.
    pub fn watermark(&self, from: Addr) -> Addr {
        Addr(self.durable.first_gap(from.0))
    }

    /// Where what it holds of `extent` begins and ends. Refused in an epoch that is over: in a later one the unit may have resolved
    /// addresses without the replicas that whoever asks has in mind.
    pub fn bounds(&self, epoch: Epoch, extent: AddrRange) -> Result<ExtentBounds, Refusal> {
        if !self.options.planted.is(PlantedBug::BoundsAnyEpoch) {
            self.check_epoch(epoch)?;
        }
        let AddrRange { start, end } = extent;
        Ok(ExtentBounds {
            first: Addr(self.trimmed.first_gap(start.0)).min(end),
            watermark: self.watermark(start).min(end),
            end: last_in(&self.durable, extent).map_or(start, |last| Addr(last.0 + 1)),
        })
    }

    /// What is durably trimmed of `extent`, the first `count_max` ranges of it.
    pub fn trims(&self, extent: AddrRange, count_max: usize) -> Vec<AddrRange> {
        self.trimmed.overlaps(extent.numbers()).take(count_max).map(AddrRange::from).collect()
    }

    /// Its own state, as it is or is about to be stored.
    pub fn state(&self) -> &UnitState {
        &self.state
    }

    /// Requests in this epoch and below are refused.
    pub fn floor(&self) -> Epoch {
        self.floor
    }

    /// Requests that wait for a ticket.
    pub fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Whether the drive has failed.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// The highest address that holds something, or will when the tickets under way are durable.
    fn highest(&self) -> Option<Addr> {
        self.durable.last().max(self.claimed.last()).map(Addr)
    }

    /// The highest address of `extent` that holds something, or will.
    fn highest_in(&self, extent: AddrRange) -> Option<Addr> {
        last_in(&self.durable, extent).max(last_in(&self.claimed, extent))
    }
}

/// The highest member of `set` in `extent`.
fn last_in(set: &RangeSet, extent: AddrRange) -> Option<Addr> {
    set.overlaps(extent.numbers()).last().map(|range| Addr(range.end - 1))
}
