//! What groups say of released keys and of the owner's state is told twice: a group repeats it of those right before it, so that nothing
//! of it is lost with one of them.
//!
//! ```text
//!   6: releases a ─► 7: releases b, repeats 1 (a) ─► 8: repeats 2 (a, b)
//!                             ✗ lost                    └ nothing is missing
//! ```
//!
//! A checkpoint says all of it itself. Of the group right before it a group repeats it if the segment has room; of those before that, as
//! far as it takes no block more.

use std::collections::VecDeque;

use bytes::Bytes;

use super::{Core, Cursor, Sizes};
use crate::limits::REPEATS_MAX;
use crate::planted::PlantedBug;
use crate::range_set::RangeSet;

/// What a group says besides its records.
#[derive(Clone, Debug, Default)]
pub(crate) struct Control {
    pub(crate) released: RangeSet,
    /// It replaces the one before.
    pub(crate) state: Option<Bytes>,
}

impl Control {
    fn is_empty(&self) -> bool {
        self.state.is_none() && self.released.range_count() == 0
    }

    /// It, and what was said before it.
    fn after(&self, before: &Self) -> Self {
        let mut both = self.clone();
        for range in before.released.ranges() {
            both.released.insert(range);
        }
        both.state = both.state.or_else(|| before.state.clone());
        both
    }

    /// A group's sizes with this in it.
    fn sizes(&self, content: &Sizes) -> Sizes {
        let state = self.state.as_ref().map_or(0, |state| state.len() as u64);
        Sizes { releases: self.released.range_count() as u64, state, ..*content }
    }
}

/// Remembers what a group said, the next one in order.
pub(crate) fn note_said(said: &mut VecDeque<Control>, control: Control) {
    if said.len() == REPEATS_MAX {
        said.pop_front();
    }
    said.push_back(control);
}

impl Core {
    /// What a group whose batches say `own` says, with its other content, and of how many groups right before it it repeats what they said.
    pub(super) fn repeat(&self, cursor: &Cursor, content: &Sizes, own: &Control) -> (u8, Control) {
        let (mut count, mut control) = (0, own.clone());
        for before in self.said.iter().rev() {
            if !before.is_empty() {
                let both = control.after(before);
                let (now, then) = (control.sizes(content), both.sizes(content));
                let is_free = then.group_bytes() == now.group_bytes();
                if !is_free && (count > 0 || !self.fits(cursor, &then)) {
                    break;
                }
                control = both;
            }
            count += 1;
        }
        if self.options.planted.is(PlantedBug::ControlToldOnce) {
            control = own.clone();
        }
        (count, control)
    }
}
