//! Parts of footers in memory, bounded by bytes.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use crate::format::{Directory, PageView};

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
