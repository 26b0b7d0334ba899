//! Memory for reads: recent groups as they were written, and pages of footers. Both are bounded by bytes.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use bytes::Bytes;

use crate::format::{Directory, PageView};

/// Images of the latest groups, first in, first out.
pub(crate) struct TailCache {
    groups: BTreeMap<(u64, u32), Bytes>,
    order: VecDeque<(u64, u32)>,
    bytes: usize,
    max_bytes: usize,
}

impl TailCache {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { groups: BTreeMap::new(), order: VecDeque::new(), bytes: 0, max_bytes }
    }

    /// Adds a group. Returns the lowest lap of which a group is still there, if one is.
    pub(crate) fn add(&mut self, lap: u64, offset: u32, image: Bytes) -> Option<u64> {
        self.bytes += image.len();
        self.groups.insert((lap, offset), image);
        self.order.push_back((lap, offset));
        while self.bytes > self.max_bytes
            && let Some(oldest) = self.order.pop_front()
        {
            let image = self.groups.remove(&oldest);
            self.bytes -= image.map_or(0, |image| image.len());
        }
        self.order.front().map(|(lap, _)| *lap)
    }

    /// The bytes `[start, end)` of a segment, if one group here has them all.
    pub(crate) fn get(&self, lap: u64, start: u64, end: u64) -> Option<Bytes> {
        let (&(_, offset), image) = self.groups.range((lap, 0)..=(lap, start as u32)).next_back()?;
        let from = (start - u64::from(offset)) as usize;
        let to = (end - u64::from(offset)) as usize;
        (to <= image.len()).then(|| image.slice(from..to))
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

/// Parts of footers. What was used since it was last looked at gets a second chance.
pub(crate) struct FooterCache {
    parts: BTreeMap<PartKey, Entry>,
    order: VecDeque<PartKey>,
    bytes: usize,
    max_bytes: usize,
}

impl FooterCache {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { parts: BTreeMap::new(), order: VecDeque::new(), bytes: 0, max_bytes }
    }

    pub(crate) fn get(&mut self, key: PartKey) -> Option<FooterPart> {
        let entry = self.parts.get_mut(&key)?;
        entry.is_used = true;
        Some(entry.part.clone())
    }

    pub(crate) fn add(&mut self, key: PartKey, part: FooterPart) {
        let bytes = match &part {
            FooterPart::Directory(directory) => {
                128 + 32 * directory.pages.len() + 16 * (directory.keys.len() + directory.holes.len())
            }
            FooterPart::Page(page) => page.memory_bytes(),
        };
        if bytes > self.max_bytes || self.parts.contains_key(&key) {
            return;
        }
        self.bytes += bytes;
        self.parts.insert(key, Entry { part, bytes, is_used: false });
        self.order.push_back(key);
        while self.bytes > self.max_bytes
            && let Some(oldest) = self.order.pop_front()
        {
            let Some(entry) = self.parts.get_mut(&oldest) else { continue };
            if entry.is_used {
                entry.is_used = false;
                self.order.push_back(oldest);
            } else if let Some(entry) = self.parts.remove(&oldest) {
                self.bytes -= entry.bytes;
            }
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
