//! Writes of parts of blocks beside other writes of the same blocks. Pure.
//!
//! A volume stores whole blocks. To write a part of one, the block is read, changed and written, and a write in between would
//! be lost, whichever of its bytes it was about. So such a write goes alone: after every earlier one that shares a block
//! with it, and before every later one. Writes of whole blocks do not wait for each other.

use std::ops::Range;

/// Writes that are under way or wait, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Overlaps {
    writes: Vec<Write>,
    partial: usize,
    next: u64,
}

#[derive(Debug)]
struct Write {
    ticket: u64,
    blocks: Range<u64>,
    partial: bool,
}

impl Overlaps {
    /// A write of these blocks has come, of parts of them if it is `partial`. Returns its ticket.
    pub fn enter(&mut self, blocks: Range<u64>, partial: bool) -> u64 {
        let ticket = self.next;
        self.next += 1;
        self.partial += usize::from(partial);
        self.writes.push(Write { ticket, blocks, partial });
        ticket
    }

    /// Whether it may begin.
    pub fn may_begin(&self, ticket: u64) -> bool {
        if self.partial == 0 {
            return true;
        }
        let at = self.position(ticket);
        let this = &self.writes[at];
        let excludes = |earlier: &Write| {
            let shares = earlier.blocks.start < this.blocks.end && this.blocks.start < earlier.blocks.end;
            shares && (earlier.partial || this.partial)
        };
        !self.writes[..at].iter().any(excludes)
    }

    /// It has ended.
    pub fn leave(&mut self, ticket: u64) {
        let write = self.writes.remove(self.position(ticket));
        self.partial -= usize::from(write.partial);
    }

    fn position(&self, ticket: u64) -> usize {
        let found = self.writes.binary_search_by_key(&ticket, |write| write.ticket);
        found.expect("the ticket was given and has not left")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_writes_never_wait_for_each_other() {
        let mut overlaps = Overlaps::default();
        let tickets = [0..8, 4..6, 0..1].map(|blocks| overlaps.enter(blocks, false));
        assert!(tickets.iter().all(|&ticket| overlaps.may_begin(ticket)));
    }

    #[test]
    fn a_partial_write_goes_after_what_came_before_and_before_what_comes_after() {
        let mut overlaps = Overlaps::default();
        let before = overlaps.enter(0..8, false);
        let partial = overlaps.enter(7..8, true);
        let after = overlaps.enter(7..9, false);
        let elsewhere = overlaps.enter(8..9, true);
        let may_begin = |overlaps: &Overlaps| [partial, after].map(|ticket| overlaps.may_begin(ticket));
        assert!(overlaps.may_begin(before) && !overlaps.may_begin(elsewhere));
        assert_eq!(may_begin(&overlaps), [false, false]);
        overlaps.leave(before);
        assert_eq!(may_begin(&overlaps), [true, false]);
        overlaps.leave(partial);
        assert!(overlaps.may_begin(after));
        overlaps.leave(after);
        assert!(overlaps.may_begin(elsewhere));
    }
}
