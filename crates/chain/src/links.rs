//! The links of a chain, and where a segment lies: on one link, at one place of it.
//!
//! A segment's number says both. What reads and writes segments asks for the device of its link and need not know what the
//! link is made of: one drive, or several sides that hold the same.

use std::rc::Rc;

use ithaca_env::drive::Drive;

use crate::limits::{LINKS_MAX, SEGMENTS_MAX};
use crate::membership::DriveId;
use crate::metadata::MetadataDrive;
use crate::notary::Notary;
use crate::sides::{Side, Sides};

/// Bits of a segment's number that say where on its link it is.
const INDEX_BITS: u32 = SEGMENTS_MAX.trailing_zeros();

const _: () = assert!(SEGMENTS_MAX.is_power_of_two());

/// The number of a segment: the `index`-th of link `link`. On link 0 it is the index itself. Panics if no chain has such a one.
pub fn segment_of(link: u32, index: u32) -> u32 {
    assert!((link as usize) < LINKS_MAX && u64::from(index) < SEGMENTS_MAX, "segment {index} of link {link}");
    (link << INDEX_BITS) | index
}

/// The link that a segment is on.
pub fn link_of(segment: u32) -> u32 {
    segment >> INDEX_BITS
}

/// Which of its link's segments it is.
pub fn index_of(segment: u32) -> u32 {
    segment & ((1 << INDEX_BITS) - 1)
}

/// One link.
#[derive(Clone)]
pub(crate) struct Link {
    /// Its number, which the numbers of its segments begin with.
    pub(crate) number: u32,
    /// What its segments are read from and written to.
    pub(crate) device: Sides,
}

/// The links of a chain, in order. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Links {
    links: Rc<[Link]>,
}

impl Links {
    pub(crate) fn new(links: impl IntoIterator<Item = Link>) -> Self {
        Self { links: links.into_iter().collect() }
    }

    /// In the order of the chain.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Link> {
        self.links.iter()
    }

    /// With one link more, at the end.
    pub(crate) fn with(&self, link: Link) -> Self {
        Self::new(self.links.iter().cloned().chain([link]))
    }

    /// Without a link.
    pub(crate) fn without(&self, link: u32) -> Self {
        Self::new(self.links.iter().filter(|other| other.number != link).cloned())
    }

    /// The same links over the drives that `read_by` gives for their sides, for a while in which they are only read.
    pub(crate) fn read_by(&self, read_by: impl Fn(&Side) -> Drive) -> Self {
        let link = |link: &Link| Link { number: link.number, device: link.device.read_by(&read_by) };
        Self::new(self.links.iter().map(link))
    }

    /// The device of a link; none if it was removed.
    pub(crate) fn device(&self, link: u32) -> Option<&Sides> {
        self.links.iter().find(|other| other.number == link).map(|link| &link.device)
    }

    /// The device that a segment is on.
    pub(crate) fn device_of(&self, segment: u32) -> Option<&Sides> {
        self.device(link_of(segment))
    }

    /// Whether a live side of the segment's link is this drive.
    pub(crate) fn is_on(&self, segment: u32, id: DriveId) -> bool {
        self.device_of(segment).is_some_and(|device| device.live().iter().any(|side| side.id == id))
    }

    /// The names of the drives, for errors that are about all of them.
    pub(crate) fn names(&self) -> String {
        self.links.iter().map(|link| link.device.name()).collect::<Vec<_>>().join(", ")
    }
}

/// The drives of a chain. At a creation each inner list is a link and its drives are the sides of it; at an open they may
/// come in any order and grouping: each says itself which one it is.
#[derive(Clone)]
pub struct Drives {
    pub(crate) links: Vec<Vec<Drive>>,
    pub(crate) metadata: Option<MetadataDrive>,
    pub(crate) notary: Option<Rc<dyn Notary>>,
}

impl Drives {
    /// The same with a metadata drive, which is none of them: the chain mirrors the footers of its closed segments there, and an
    /// open reads them there. Nothing depends on it: it may be blank, old, harmed, or left out the next time.
    #[must_use]
    pub fn with_metadata(self, metadata: Option<&MetadataDrive>) -> Self {
        Self { metadata: metadata.cloned(), ..self }
    }

    /// The same with a notary: an open is refused, with `StaleDrive`, if none of the drives knows the generation that it was told.
    #[must_use]
    pub fn with_notary(self, notary: Rc<dyn Notary>) -> Self {
        Self { notary: Some(notary), ..self }
    }
}

impl From<Drive> for Drives {
    fn from(drive: Drive) -> Self {
        Self::from(vec![vec![drive]])
    }
}

impl From<&Drive> for Drives {
    fn from(drive: &Drive) -> Self {
        Self::from(vec![vec![drive.clone()]])
    }
}

impl From<Vec<Drive>> for Drives {
    fn from(drives: Vec<Drive>) -> Self {
        Self::from(drives.into_iter().map(|drive| vec![drive]).collect::<Vec<_>>())
    }
}

impl From<Vec<Vec<Drive>>> for Drives {
    fn from(links: Vec<Vec<Drive>>) -> Self {
        Self { links, metadata: None, notary: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_number_says_its_link_and_its_place() {
        assert_eq!(segment_of(0, 7), 7, "the first link's segments are numbered from 0");
        let last = segment_of(LINKS_MAX as u32 - 1, SEGMENTS_MAX as u32 - 1);
        assert_eq!((link_of(last), index_of(last)), (LINKS_MAX as u32 - 1, SEGMENTS_MAX as u32 - 1));
    }
}
