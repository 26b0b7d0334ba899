//! Links that come and go while the log is written.

use super::{Core, Effect, Next};
use crate::catalog::SegmentState;
use crate::links::link_of;
use crate::planted::PlantedBug;

/// How far a link is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// Something is being written there still.
    Busy,
    /// So many segments hold records that are not released.
    Holds(u32),
    /// Nothing is there that anybody needs.
    Empty,
}

impl Core {
    /// A drive is a member of the chain from now on, durably: the log may go on there.
    pub(crate) fn add_link(&mut self, link: u32, segments: u32, out: &mut Vec<Effect>) {
        self.catalog.space.add_link(link, segments);
        self.grown_out.remove(&link);
        self.grow_less.remove(&link);
        self.turn(out);
        out.push(Effect::Changed);
    }

    /// Begins or gives up to empty a link. While it leaves, no segment of it is begun, and the one being filled there is
    /// left for one on another link.
    pub(crate) fn set_leaving(&mut self, link: u32, is_leaving: bool, out: &mut Vec<Effect>) {
        self.catalog.space.set_leaving(link, is_leaving);
        self.drop_leaving_next();
        self.turn(out);
    }

    /// Which link should grow now and to how many segments, so that the log can go on when `link` takes no new segment any more.
    pub(crate) fn segments_to_grow_to_without(&mut self, link: u32) -> Option<(u32, u32)> {
        self.catalog.space.set_leaving(link, true);
        let to_grow = self.segments_to_grow_to(false);
        self.catalog.space.set_leaving(link, false);
        to_grow
    }

    /// The segment to go on in is chosen again if its link leaves. Not before its header is there: two writes at one place
    /// must not fly together. Returns whether that was so.
    pub(super) fn drop_leaving_next(&mut self) -> bool {
        let leaves = |next: &Next| next.header_durable && !self.catalog.space.is_open(link_of(next.segment));
        let Some(next) = self.next.take_if(|next| leaves(next)) else { return false };
        self.catalog.set(next.segment, SegmentState::Ready);
        true
    }

    /// How far a leaving link is. Frees what can be freed.
    pub(crate) fn leaving(&mut self, link: u32) -> Leaving {
        self.catalog.reclaim(None);
        let on_link = self.catalog.space.iter().filter(|(segment, _)| link_of(*segment) == link);
        let mut holds = 0;
        for (_, state) in on_link {
            match state {
                SegmentState::Raw | SegmentState::Ready => {}
                SegmentState::Closed(_) => holds += 1,
                SegmentState::Preparing | SegmentState::Next | SegmentState::Open(_) => return Leaving::Busy,
            }
        }
        if holds == 0 || self.options.planted.is(PlantedBug::RemovedWithRecords) {
            return Leaving::Empty;
        }
        Leaving::Holds(holds)
    }

    /// Whether the other links have room for the log to go on and for the reserve.
    pub(crate) fn has_room_without_leaving(&mut self) -> bool {
        self.catalog.reclaim(None);
        let space = &self.catalog.space;
        let is_free = |segment: u32, state: &SegmentState| {
            space.is_open(link_of(segment))
                && !matches!(state, SegmentState::Open(_) | SegmentState::Closed(_))
        };
        let free = space.iter().filter(|(segment, state)| is_free(*segment, state)).count();
        free > self.options.reserve_segments || self.can_grow()
    }

    /// The drive is no member of the chain any more.
    pub(crate) fn remove_link(&mut self, link: u32) {
        assert!(self.tail_link() != Some(link), "the log is written to link {link}");
        self.catalog.space.remove_link(link);
    }

    /// No lap above this one has been used.
    pub(crate) fn highest_lap(&self) -> u64 {
        self.next_lap - 1
    }
}
