//! What every segment is used for, link by link, and which one is free.

use super::SegmentState;
use crate::limits::LINKS_MAX;
use crate::links::{index_of, link_of, segment_of};
use crate::placement::Placement;

/// The segments of one link.
#[derive(Debug, Default)]
struct LinkSpace {
    states: Vec<SegmentState>,
    ready: usize,
    raw: usize,
    preparing: usize,
    /// Takes no new segment: the link is about to be removed.
    is_leaving: bool,
}

impl LinkSpace {
    fn count_of(&mut self, state: &SegmentState) -> Option<&mut usize> {
        match state {
            SegmentState::Ready => Some(&mut self.ready),
            SegmentState::Raw => Some(&mut self.raw),
            SegmentState::Preparing => Some(&mut self.preparing),
            SegmentState::Next | SegmentState::Open(_) | SegmentState::Closed(_) => None,
        }
    }
}

/// The segments of all links, in the order of the chain.
#[derive(Debug, Default)]
pub(crate) struct Space {
    /// By the number of the link.
    links: [Option<LinkSpace>; LINKS_MAX],
    /// Numbers of the links, in the order of the chain.
    order: Vec<u32>,
}

impl Space {
    /// Adds a link at the end of the chain, of so many raw segments.
    pub(crate) fn add_link(&mut self, link: u32, segments: u32) {
        let before = self.links[link as usize].replace(LinkSpace::default());
        assert!(before.is_none(), "link {link} is there already");
        self.order.push(link);
        self.grow(link, segments);
    }

    /// Takes a link away. None of its segments holds anything.
    pub(crate) fn remove_link(&mut self, link: u32) {
        assert!(self.is_empty(link), "link {link} holds records");
        self.links[link as usize] = None;
        self.order.retain(|&other| other != link);
    }

    /// Whether the link takes new segments; it does from the beginning.
    pub(crate) fn set_leaving(&mut self, link: u32, is_leaving: bool) {
        self.link_mut(link).is_leaving = is_leaving;
    }

    /// Whether all segments of a link are free and untouched by anything under way.
    pub(crate) fn is_empty(&self, link: u32) -> bool {
        let is_free = |state: &SegmentState| matches!(state, SegmentState::Raw | SegmentState::Ready);
        self.link(link).states.iter().all(is_free)
    }

    fn link(&self, link: u32) -> &LinkSpace {
        self.links[link as usize].as_ref().unwrap_or_else(|| panic!("no link {link}"))
    }

    fn link_mut(&mut self, link: u32) -> &mut LinkSpace {
        self.links[link as usize].as_mut().unwrap_or_else(|| panic!("no link {link}"))
    }

    /// Numbers of the links, in the order of the chain.
    pub(crate) fn links(&self) -> &[u32] {
        &self.order
    }

    /// Whether the chain has such a link, and it takes new segments.
    pub(crate) fn is_open(&self, link: u32) -> bool {
        self.links[link as usize].as_ref().is_some_and(|space| !space.is_leaving)
    }

    /// Adds raw segments until the link has so many.
    pub(crate) fn grow(&mut self, link: u32, segments: u32) {
        let space = self.link_mut(link);
        while space.states.len() < segments as usize {
            space.states.push(SegmentState::Raw);
            space.raw += 1;
        }
    }

    /// Segments of a link.
    pub(crate) fn count(&self, link: u32) -> u32 {
        self.link(link).states.len() as u32
    }

    /// Every segment and what it is used for, in the order of the chain.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &SegmentState)> {
        self.order.iter().flat_map(|&link| {
            let states = self.link(link).states.iter().enumerate();
            states.map(move |(index, state)| (segment_of(link, index as u32), state))
        })
    }

    /// What a segment is used for.
    pub(crate) fn get(&self, segment: u32) -> Option<&SegmentState> {
        let space = self.links.get(link_of(segment) as usize)?.as_ref()?;
        space.states.get(index_of(segment) as usize)
    }

    /// See [`Space::get`].
    pub(crate) fn get_mut(&mut self, segment: u32) -> Option<&mut SegmentState> {
        let space = self.links.get_mut(link_of(segment) as usize)?.as_mut()?;
        space.states.get_mut(index_of(segment) as usize)
    }

    /// Changes what a segment is used for; returns what it was used for.
    pub(crate) fn set(&mut self, segment: u32, state: SegmentState) -> SegmentState {
        let space = self.link_mut(link_of(segment));
        if let Some(count) = space.count_of(&state) {
            *count += 1;
        }
        let before = std::mem::replace(&mut space.states[index_of(segment) as usize], state);
        if let Some(count) = space.count_of(&before) {
            *count -= 1;
        }
        before
    }

    /// Free segments of a link, ready and raw; none if it is about to be removed.
    pub(crate) fn free_on(&self, link: u32) -> (usize, usize) {
        let space = self.link(link);
        if space.is_leaving { (0, 0) } else { (space.ready, space.raw) }
    }

    /// Free segments of all links: ready, and raw.
    pub(crate) fn free(&self) -> (usize, usize) {
        let each = self.order.iter().map(|&link| self.free_on(link));
        each.fold((0, 0), |sum, free| (sum.0 + free.0, sum.1 + free.1))
    }

    /// Segments that are being written over and will be free.
    pub(crate) fn preparing(&self) -> usize {
        let links = self.order.iter().map(|&link| self.link(link)).filter(|space| !space.is_leaving);
        links.map(|space| space.preparing).sum()
    }

    /// The segment to go on in: on the first link in the order of `placement` that has a free one, a ready one if it has.
    pub(crate) fn find_free(&self, placement: Placement, tail: Option<u32>) -> Option<u32> {
        let mut order = placement.order(&self.order, tail);
        let link = order.find(|&link| self.free_on(link) != (0, 0))?;
        let is_ready = |state: &SegmentState| matches!(state, SegmentState::Ready);
        self.first(link, is_ready).or_else(|| self.first_raw(link))
    }

    /// A segment for copies: on the link with the most free ones that is not the tail's, else on the tail's.
    pub(crate) fn find_free_in_body(&self, tail: Option<u32>) -> Option<u32> {
        let free = |link: u32| self.free_on(link).0 + self.free_on(link).1;
        let links = self.order.iter().copied().filter(|&link| free(link) > 0);
        let link = links.max_by_key(|&link| (Some(link) != tail, free(link)))?;
        let is_ready = |state: &SegmentState| matches!(state, SegmentState::Ready);
        self.first(link, is_ready).or_else(|| self.first_raw(link))
    }

    /// A raw segment of a link.
    pub(crate) fn first_raw(&self, link: u32) -> Option<u32> {
        self.first(link, |state| matches!(state, SegmentState::Raw))
    }

    fn first(&self, link: u32, wanted: impl Fn(&SegmentState) -> bool) -> Option<u32> {
        let index = self.link(link).states.iter().position(wanted)?;
        Some(segment_of(link, index as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_segments_are_taken_link_by_link_and_never_from_one_that_leaves() {
        let mut space = Space::default();
        space.add_link(0, 2);
        space.add_link(3, 2);
        let ready = segment_of(0, 1);
        space.set(ready, SegmentState::Ready);
        assert_eq!(space.find_free(Placement::Fill, Some(0)), Some(ready), "what is ready comes first");
        assert_eq!(space.find_free(Placement::RoundRobin, Some(0)), Some(segment_of(3, 0)));
        space.set(ready, SegmentState::Next);
        space.set(segment_of(0, 0), SegmentState::Next);
        assert_eq!(space.find_free(Placement::Fill, Some(0)), Some(segment_of(3, 0)));
        space.set_leaving(3, true);
        assert_eq!((space.find_free(Placement::Fill, Some(0)), space.free()), (None, (0, 0)));
        assert!(space.is_empty(3) && !space.is_empty(0));
        space.remove_link(3);
        assert_eq!(space.links(), [0]);
        assert!(space.get(segment_of(3, 0)).is_none());
    }
}
