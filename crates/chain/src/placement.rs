//! On which link the log goes on when a segment is full. Pure.

/// Which link takes the next segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// A link is filled before the next one is begun, and the first follows on the last: all writes go to one drive, and
    /// reads of older records to the others (Gecko, section 3).
    #[default]
    Fill,
    /// Each segment on another link in turn: large reads are spread over the drives, and so are writes (Yogurt,
    /// section 5.2).
    RoundRobin,
}

impl Placement {
    /// The links in the order in which they are asked for a free segment. `links` are those of the chain in order; `tail`
    /// is the one of the segment that is full, none in a new chain.
    pub(crate) fn order(self, links: &[u32], tail: Option<u32>) -> impl Iterator<Item = u32> {
        let at = tail.and_then(|tail| links.iter().position(|&link| link == tail));
        let first = match (self, at) {
            (_, None) => 0,
            (Self::Fill, Some(at)) => at,
            (Self::RoundRobin, Some(at)) => at + 1,
        };
        let count = links.len();
        (0..count).map(move |step| links[(first + step) % count])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_filled_before_the_next_and_the_first_follows_on_the_last() {
        let order = |tail| Placement::Fill.order(&[0, 2, 1], tail).collect::<Vec<_>>();
        assert_eq!(order(None), [0, 2, 1]);
        assert_eq!(order(Some(2)), [2, 1, 0]);
        assert_eq!(order(Some(1)), [1, 0, 2]);
        assert_eq!(order(Some(7)), [0, 2, 1], "a link that was removed");
    }

    #[test]
    fn in_turn_the_next_link_comes_first_and_the_present_one_last() {
        let order = |tail| Placement::RoundRobin.order(&[0, 2, 1], tail).collect::<Vec<_>>();
        assert_eq!(order(None), [0, 2, 1]);
        assert_eq!(order(Some(0)), [2, 1, 0]);
        assert_eq!(order(Some(1)), [0, 2, 1]);
    }
}
