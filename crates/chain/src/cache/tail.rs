//! Images of the latest groups, in memory.

use bytes::Bytes;
use ithaca_env::drive::Pieces;

use super::Recent;

/// Blocks of a group that lie one behind the other and hold records of keys that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) first_key: u64,
    /// Block of the segment.
    pub(crate) first_block: u32,
    pub(crate) count: u32,
}

/// A group as it was written, and where.
#[derive(Debug)]
pub(crate) struct GroupImage {
    pub(crate) segment: u32,
    pub(crate) lap: u64,
    /// Where it lies, byte in the segment.
    pub(crate) offset: u32,
    pub(crate) image: Pieces,
    /// What of it stays in memory when the group leaves, if it is needed by then.
    pub(crate) written: Vec<Written>,
}

/// Images of the latest groups, first in, first out.
pub(crate) struct TailCache {
    /// By lap and place, which is the order in which they become durable.
    groups: Recent<(u64, u32), GroupImage>,
}

impl TailCache {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { groups: Recent::new(max_bytes) }
    }

    /// Adds the group that became durable after those that are there. Those that have no room any more are shown to
    /// `evicted`. Returns the lowest lap of which a group is still there, if one is.
    pub(crate) fn add(&mut self, group: GroupImage, mut evicted: impl FnMut(GroupImage)) -> Option<u64> {
        let (place, bytes) = ((group.lap, group.offset), group.image.len());
        self.groups.add(place, group, bytes, |_, group| evicted(group));
        self.groups.oldest().map(|(lap, _)| lap)
    }

    /// The bytes `[start, end)` of a segment, if one group here has them all.
    pub(crate) fn get(&self, lap: u64, start: u64, end: u64) -> Option<Bytes> {
        let place = (lap, u32::try_from(start).ok()?);
        let (_, group) = self.groups.at_or_below(place).filter(|((found, _), _)| *found == lap)?;
        let from = (start - u64::from(group.offset)) as usize;
        let to = (end - u64::from(group.offset)) as usize;
        (to <= group.image.len()).then(|| group.image.slice(from..to))
    }

    /// Whether [`TailCache::get`] would give something.
    pub(crate) fn has(&self, lap: u64, start: u64, end: u64) -> bool {
        let Ok(start) = u32::try_from(start) else { return false };
        let group = self.groups.at_or_below((lap, start));
        group.is_some_and(|((found, _), group)| {
            found == lap && end - u64::from(group.offset) <= group.image.len() as u64
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.groups.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_groups_go_first_and_a_place_between_groups_is_not_found() {
        let mut cache = TailCache::new(3 * 4096);
        let group = |lap, offset, byte| {
            let image = Bytes::from(vec![byte; 4096]).into();
            GroupImage { segment: 0, lap, offset, image, written: Vec::new() }
        };
        let mut gone = Vec::new();
        let mut add = |cache: &mut TailCache, it| cache.add(it, |it| gone.push((it.lap, it.offset)));
        assert_eq!(add(&mut cache, group(1, 4096, 1)), Some(1));
        assert_eq!(add(&mut cache, group(2, 4096, 2)), Some(1));
        assert_eq!(add(&mut cache, group(2, 8192, 3)), Some(1));
        assert_eq!(add(&mut cache, group(2, 12288, 4)), Some(2));
        assert_eq!(gone, [(1, 4096)]);
        assert_eq!(cache.get(1, 4096, 4100), None);
        assert_eq!(cache.get(2, 8200, 8203).as_deref(), Some(&[3, 3, 3][..]));
        assert_eq!(cache.get(2, 8200, 12289), None);
        assert_eq!(cache.get(2, 0, 10), None);
        assert_eq!(cache.bytes(), 3 * 4096);
    }
}
