//! Memory for reads: recent groups as they were written, and pages of footers. Both are bounded by bytes.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use bytes::Bytes;

use crate::format::{Directory, PageView};

/// A group as it was written.
struct Group {
    lap: u64,
    /// Where it lies, byte in the segment.
    offset: u32,
    image: Bytes,
}

/// Images of the latest groups, first in, first out.
pub(crate) struct TailCache {
    /// In the order of their places, which is the order in which they become durable.
    groups: VecDeque<Group>,
    bytes: usize,
    max_bytes: usize,
}

impl TailCache {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { groups: VecDeque::new(), bytes: 0, max_bytes }
    }

    /// Adds the group that became durable after those that are there. Returns the lowest lap of which a group is still
    /// there, if one is.
    pub(crate) fn add(&mut self, lap: u64, offset: u32, image: Bytes) -> Option<u64> {
        let is_next = self.groups.back().is_none_or(|last| (last.lap, last.offset) < (lap, offset));
        assert!(is_next, "groups become durable in the order of their places");
        self.bytes += image.len();
        self.groups.push_back(Group { lap, offset, image });
        while self.bytes > self.max_bytes
            && let Some(oldest) = self.groups.pop_front()
        {
            self.bytes -= oldest.image.len();
        }
        self.groups.front().map(|group| group.lap)
    }

    /// The bytes `[start, end)` of a segment, if one group here has them all.
    pub(crate) fn get(&self, lap: u64, start: u64, end: u64) -> Option<Bytes> {
        let place = |group: &Group| (group.lap, u64::from(group.offset)) <= (lap, start);
        let before = self.groups.partition_point(place).checked_sub(1)?;
        let group = self.groups.get(before).filter(|group| group.lap == lap)?;
        let from = (start - u64::from(group.offset)) as usize;
        let to = (end - u64::from(group.offset)) as usize;
        (to <= group.image.len()).then(|| group.image.slice(from..to))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Part of a footer.
#[derive(Clone)]
pub(crate) enum FooterPart {
    Directory(Rc<Directory>),
    Page(Rc<PageView>),
}

/// Which part of which footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PartKey {
    pub(crate) segment: u32,
    pub(crate) lap: u64,
    /// `None` is the directory.
    pub(crate) page: Option<u32>,
}

struct Entry {
    part: FooterPart,
    bytes: usize,
    is_used: bool,
}

/// What is here of one footer: the directory first, then the pages by their numbers.
type Footer = Vec<Option<Entry>>;

/// Parts of footers. What was used since it was last looked at gets a second chance.
pub(crate) struct FooterCache {
    /// By segment and lap.
    footers: BTreeMap<(u32, u64), Footer>,
    order: VecDeque<PartKey>,
    bytes: usize,
    max_bytes: usize,
}

/// Where a part stands in its footer.
fn place(key: PartKey) -> usize {
    key.page.map_or(0, |page| page as usize + 1)
}

impl FooterCache {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { footers: BTreeMap::new(), order: VecDeque::new(), bytes: 0, max_bytes }
    }

    pub(crate) fn get(&mut self, key: PartKey) -> Option<FooterPart> {
        let entry = self.entry(key)?;
        entry.is_used = true;
        Some(entry.part.clone())
    }

    fn entry(&mut self, key: PartKey) -> Option<&mut Entry> {
        self.footers.get_mut(&(key.segment, key.lap))?.get_mut(place(key))?.as_mut()
    }

    pub(crate) fn add(&mut self, key: PartKey, part: FooterPart) {
        // Its place in the list counts too, also those before it that stand empty: a directory says how many there are.
        let bytes = size_of::<Option<Entry>>()
            + match &part {
                FooterPart::Directory(directory) => {
                    128 + (32 + size_of::<Option<Entry>>()) * directory.pages.len()
                        + 16 * (directory.keys.len() + directory.holes.len())
                }
                FooterPart::Page(page) => page.memory_bytes(),
            };
        if bytes > self.max_bytes || self.entry(key).is_some() {
            return;
        }
        let footer = self.footers.entry((key.segment, key.lap)).or_default();
        if footer.len() <= place(key) {
            footer.resize_with(place(key) + 1, || None);
        }
        footer[place(key)] = Some(Entry { part, bytes, is_used: false });
        self.bytes += bytes;
        self.order.push_back(key);
        while self.bytes > self.max_bytes
            && let Some(oldest) = self.order.pop_front()
        {
            self.pass(oldest);
        }
    }

    /// The oldest part goes, unless it was used.
    fn pass(&mut self, oldest: PartKey) {
        let Some(entry) = self.entry(oldest) else { return };
        if entry.is_used {
            entry.is_used = false;
            return self.order.push_back(oldest);
        }
        self.bytes -= entry.bytes;
        let footer = self.footers.get_mut(&(oldest.segment, oldest.lap)).expect("the part was in it");
        footer[place(oldest)] = None;
        while let Some(None) = footer.last() {
            footer.pop();
        }
        if footer.is_empty() {
            self.footers.remove(&(oldest.segment, oldest.lap));
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_groups_go_first_and_a_place_between_groups_is_not_found() {
        let mut cache = TailCache::new(3 * 4096);
        let image = |byte| Bytes::from(vec![byte; 4096]);
        assert_eq!(cache.add(1, 4096, image(1)), Some(1));
        assert_eq!(cache.add(2, 4096, image(2)), Some(1));
        assert_eq!(cache.add(2, 8192, image(3)), Some(1));
        assert_eq!(cache.add(2, 12288, image(4)), Some(2));
        assert_eq!(cache.get(1, 4096, 4100), None);
        assert_eq!(cache.get(2, 8200, 8203).as_deref(), Some(&[3, 3, 3][..]));
        assert_eq!(cache.get(2, 8200, 12289), None);
        assert_eq!(cache.get(2, 0, 10), None);
        assert_eq!(cache.bytes(), 3 * 4096);
    }
}
