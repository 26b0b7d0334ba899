//! Requests that wait until a ticket is durable.

use std::ops::Range;

use super::{ReplyTo, Ticket, UnitState};
use crate::pos::AddrRange;
use crate::wire::Sealed;

/// A request that waits. Its answer is made when its ticket is durable.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    /// What it waits for.
    pub(super) ticket: Ticket,
    /// Who is answered; nobody, if a planted fault has answered already.
    pub(super) to: Option<ReplyTo>,
    pub(super) answer: Waiting,
    /// Addresses that the ticket takes.
    pub(super) claims: Claims,
    /// Addresses that the ticket trims.
    pub(super) trims: Vec<Range<u64>>,
    /// Bytes of data in the request.
    pub(super) bytes: usize,
    /// The state to go back to if the chain does not take the ticket.
    pub(super) undo: Option<UnitState>,
}

/// The answer that a request waits for.
#[derive(Clone, Debug)]
pub(super) enum Waiting {
    /// To a write.
    Written {
        /// The addresses that were taken.
        taken: Vec<AddrRange>,
        /// Whether others were free.
        stores: bool,
    },
    /// To a fill, with the addresses that were taken.
    Filled(Vec<AddrRange>),
    Trimmed,
    Restored,
    Sealed(Sealed),
}

/// Addresses that a ticket takes: nearly always one range, which then needs no allocation.
#[derive(Clone, Debug, Default)]
pub(super) struct Claims {
    first: Range<u64>,
    rest: Vec<Range<u64>>,
}

impl Claims {
    pub(super) fn push(&mut self, range: Range<u64>) {
        if self.first.is_empty() {
            self.first = range;
        } else {
            self.rest.push(range);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        std::iter::once(self.first.clone()).chain(self.rest.iter().cloned()).filter(|range| !range.is_empty())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_empty()
    }
}
