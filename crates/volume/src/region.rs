//! Regions: parts of a volume's blocks that have names. Pure.
//!
//! A region is a row of blocks, and none shares a block with another. It is a name for them and a bound for who works in it, no more: versions,
//! snapshots and transactions are those of the volume, so that a transaction may span regions.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::error::VolumeError;
use crate::limits::{REGION_NAME_MAX_BYTES, REGIONS_MAX};
use crate::planted::{Planted, PlantedBug};
use crate::state::is_part_of_an_export;

/// Regions by their names.
pub(crate) type Regions = BTreeMap<String, Range<u64>>;

/// A part of a volume's blocks that has a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its name.
    pub name: String,
    /// Its blocks.
    pub blocks: Range<u64>,
}

impl Region {
    /// Blocks of the volume that are these blocks of the region. Errors: `OutOfRange`, in the region's numbers: it does not have them.
    pub(crate) fn place(&self, asked: Range<u64>, planted: Planted) -> Result<Range<u64>, VolumeError> {
        let count = self.blocks.end - self.blocks.start;
        if asked.end > count && !planted.is(PlantedBug::RegionEndIgnored) {
            let last = asked.end.saturating_sub(1);
            return Err(VolumeError::OutOfRange { first: asked.start, last, blocks: count });
        }
        Ok(self.blocks.start.saturating_add(asked.start)..self.blocks.start.saturating_add(asked.end))
    }
}

/// What a name of a region has to be: part of an export's name, before a point in time.
pub(crate) fn is_region_name(name: &str) -> bool {
    (1..=REGION_NAME_MAX_BYTES).contains(&name.len()) && is_part_of_an_export(name)
}

/// The rows of blocks that no region has, in order, of a volume of so many blocks.
fn gaps(regions: &Regions, count: u64) -> Vec<Range<u64>> {
    let mut taken: Vec<Range<u64>> = regions.values().cloned().collect();
    taken.sort_by_key(|blocks| blocks.start);
    taken.push(count..count);
    let mut at = 0;
    let gap = |blocks: &Range<u64>| {
        let gap = at..blocks.start;
        at = blocks.end;
        gap
    };
    taken.iter().map(gap).filter(|gap| !gap.is_empty()).collect()
}

/// The regions with one more, of so many blocks, in the first gap that has them. Errors: `BadRegion`, `RegionTaken`, `TooManyRegions`,
/// `NoGap`.
pub(crate) fn with(
    regions: &Regions,
    count: u64,
    name: &str,
    blocks: u64,
) -> Result<(Regions, Region), VolumeError> {
    if !is_region_name(name) {
        return Err(VolumeError::BadRegion { name: name.to_owned() });
    }
    if regions.contains_key(name) {
        return Err(VolumeError::RegionTaken { name: name.to_owned() });
    }
    if regions.len() >= REGIONS_MAX {
        return Err(VolumeError::TooManyRegions { max: REGIONS_MAX });
    }
    let gaps = gaps(regions, count);
    let len = |gap: &Range<u64>| gap.end - gap.start;
    let longest = gaps.iter().map(len).max().unwrap_or(0);
    let found = gaps.into_iter().find(|gap| blocks > 0 && len(gap) >= blocks);
    let first = found.ok_or(VolumeError::NoGap { blocks, longest })?.start;
    let region = Region { name: name.to_owned(), blocks: first..first + blocks };
    let mut regions = regions.clone();
    regions.insert(name.to_owned(), region.blocks.clone());
    Ok((regions, region))
}

/// Whether these are blocks of a volume of so many, each of one region at the most.
pub(crate) fn are_apart(regions: &Regions, count: u64) -> bool {
    let mut taken: Vec<&Range<u64>> = regions.values().collect();
    taken.sort_by_key(|blocks| blocks.start);
    taken.iter().all(|blocks| blocks.start < blocks.end && blocks.end <= count)
        && taken.windows(2).all(|pair| pair[0].end <= pair[1].start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_takes_the_first_gap_that_has_room_and_shares_no_block() {
        let mut regions = Regions::new();
        for (name, blocks, expected) in [("a", 10, 0..10), ("b", 20, 10..30), ("c", 70, 30..100)] {
            let (with, region) = with(&regions, 100, name, blocks).expect("there is room");
            assert_eq!(region.blocks, expected);
            regions = with;
            assert!(are_apart(&regions, 100));
        }
        assert_eq!(with(&regions, 100, "d", 1), Err(VolumeError::NoGap { blocks: 1, longest: 0 }));
        regions.remove("b");
        assert_eq!(with(&regions, 100, "d", 21), Err(VolumeError::NoGap { blocks: 21, longest: 20 }));
        assert_eq!(with(&regions, 100, "d", 20).expect("the gap").1.blocks, 10..30);
        assert_eq!(with(&regions, 100, "d", 0), Err(VolumeError::NoGap { blocks: 0, longest: 20 }));
    }

    #[test]
    fn names_that_an_export_could_not_have_are_refused() {
        let long = "n".repeat(REGION_NAME_MAX_BYTES + 1);
        for name in ["", "a/b", "a@now", "a\n", &long] {
            let refused = VolumeError::BadRegion { name: name.to_owned() };
            assert_eq!(with(&Regions::new(), 100, name, 1), Err(refused));
        }
        let regions = Regions::from([("a".to_owned(), 0..1)]);
        assert_eq!(with(&regions, 100, "a", 1), Err(VolumeError::RegionTaken { name: "a".to_owned() }));
        let many: Regions = (0..REGIONS_MAX as u64).map(|at| (at.to_string(), at..at + 1)).collect();
        assert_eq!(with(&many, 100, "a", 1), Err(VolumeError::TooManyRegions { max: REGIONS_MAX }));
    }

    #[test]
    fn regions_that_share_a_block_or_leave_the_volume_are_none() {
        let of = |list: &[Range<u64>]| {
            list.iter()
                .enumerate()
                .map(|(nth, blocks)| (nth.to_string(), blocks.clone()))
                .collect::<Regions>()
        };
        assert!(are_apart(&of(&[5..10, 0..5]), 10));
        assert!(!are_apart(&of(&[5..10, 0..6]), 10));
        assert!(!are_apart(&of(&[0..1, 5..11]), 10));
        assert!(!are_apart(&of(&[0..1, 5..5]), 10));
    }
}
