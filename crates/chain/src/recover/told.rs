//! Whether the groups that count say all that was said of releases and of the owner's state, though some between them are lost.

use std::collections::VecDeque;

use super::judge::KeptGroup;
use crate::core::{Control, note_said};
use crate::format::GroupFlags;

/// What the groups say that were looked at so far, in their order.
pub(super) struct Told {
    said: VecDeque<Control>,
    last_seq: u64,
    /// From the last checkpoint on no group is missing whose releases and state the next one does not repeat.
    pub(super) is_certain: bool,
}

impl Told {
    pub(super) fn new() -> Self {
        Self { said: VecDeque::new(), last_seq: 0, is_certain: true }
    }

    /// Looks at the next group that counts.
    pub(super) fn add(&mut self, group: &KeptGroup) {
        let (identity, area) = (&group.head.identity, &group.area);
        if identity.seq != self.last_seq + 1 {
            self.said.clear();
        }
        if identity.flags.has(GroupFlags::CHECKPOINT) {
            self.is_certain = true;
            // What it says itself is not told apart from what was said before it.
            self.said.clear();
        } else {
            self.is_certain &= identity.seq <= self.last_seq + 1 + identity.flags.repeats();
            let released = area.released.iter().cloned().collect();
            note_said(&mut self.said, Control { released, state: area.state.clone() });
        }
        self.last_seq = identity.seq;
    }

    /// What the groups right before this one say, in order, without gaps.
    pub(super) fn before(self, seq: u64) -> VecDeque<Control> {
        if seq == self.last_seq + 1 { self.said } else { VecDeque::new() }
    }
}
