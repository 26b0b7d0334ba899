//! The census: which segments hold something, told by groups now and then, so that an open misses one of which nothing is left.
//!
//! A segment that is harmed says so itself as long as its header, a group or its trailer is left. One that reads as zeros looks like one that
//! was never used.

use super::{Core, Cursor, Sizes};
use crate::catalog::SegmentState;
use crate::format::{Census, GroupFlags};
use crate::links::link_of;

impl Core {
    /// The census that the next group carries at `cursor`, with its other content: a checkpoint does; others, if one is due and there is room.
    ///
    /// Of the groups in these segments none is missing when this one counts: they come before it, or are closed. The segment of a
    /// cleaner's that is not closed is left out, nothing depends on it; so is the one that the group lies in.
    pub(super) fn census(&mut self, cursor: &Cursor, content: &Sizes, flags: GroupFlags) -> Option<Census> {
        if !cursor.is_empty && !self.census_due && flags == GroupFlags::default() {
            return None;
        }
        let census = self.segments_in_use();
        let sizes = Sizes { census: census.len() as u64, ..*content };
        let is_told = census.len() <= self.geometry.census_max_ranges;
        if !is_told || !(cursor.is_empty || self.fits(cursor, &sizes)) {
            return None;
        }
        self.census_due = false;
        self.census_seq = self.next_seq;
        census.iter().for_each(|range| self.named_seq[link_of(range.start) as usize] = self.next_seq);
        Some(census)
    }

    fn segments_in_use(&self) -> Census {
        let is_full = |segment| self.closing.iter().any(|closing| closing.segment == segment);
        let in_use = self.catalog.space.iter().filter(|(segment, state)| match state {
            // If all of it is released nothing is missed with it.
            SegmentState::Closed(closed) => !closed.is_dead(&self.catalog.released),
            SegmentState::Open(_) => is_full(*segment),
            SegmentState::Raw | SegmentState::Preparing | SegmentState::Ready | SegmentState::Next => false,
        });
        let mut segments: Vec<u32> = in_use.map(|(segment, _)| segment).collect();
        segments.sort_unstable();
        let mut census: Census = Vec::new();
        for segment in segments {
            match census.last_mut() {
                Some(last) if last.end == segment => last.end = segment + 1,
                _ => census.push(segment..segment + 1),
            }
        }
        census
    }

    /// Asks for a census with the next group that has room for it. Returns whether there can be one.
    pub(crate) fn ask_for_census(&mut self) -> bool {
        self.census_due = true;
        self.segments_in_use().len() <= self.geometry.census_max_ranges
    }

    /// Whether the newest census that an open would find may name segments of this link.
    pub(crate) fn may_be_named(&self, link: u32) -> bool {
        self.census_seq <= self.named_seq[link as usize] || self.durable_seq < self.census_seq
    }
}
