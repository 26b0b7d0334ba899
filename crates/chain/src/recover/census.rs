//! Segments that the newest census names, and of which nothing is left: they are damage, and not free.

use std::collections::BTreeMap;

use super::Recovered;
use super::judge::Judged;
use crate::catalog::{Catalog, ClosedSegment, SegmentIndex};
use crate::error::{Damage, DamageKind};
use crate::links::{Links, index_of, link_of};
use crate::options::Geometry;

/// What is missing.
#[derive(Default)]
pub(super) struct Lost {
    pub(super) segments: Vec<u32>,
    /// Every key that they can have held is below.
    pub(super) below: u64,
}

/// Segments of the newest census that counts in which no group was found, unless they are in use again since. `unseen` are segments
/// without a group, with the lap of the header if that is well.
///
/// A link that was removed is not missed: before it goes a census is written that does not name it.
pub(super) fn missed(links: &Links, judged: &Judged, unseen: &BTreeMap<u32, Option<u64>>) -> Lost {
    let groups = judged.segments.iter().flat_map(|kept| &kept.groups);
    let Some(teller) = groups.filter(|group| group.area.census.is_some()).last() else {
        return Lost::default();
    };
    let identity = &teller.head.identity;
    let is_missed = |segment: u32| {
        let is_there = links.device_of(segment).is_some();
        // A header of a later lap: it was about to be used again.
        is_there && unseen.get(&segment).is_some_and(|lap| lap.is_none_or(|lap| lap < identity.lap))
    };
    let named = teller.area.census.iter().flatten().flat_map(|range| range.clone());
    Lost { segments: named.filter(|segment| is_missed(*segment)).collect(), below: identity.key_end }
}

/// Takes a lost segment for a closed one that held any of the keys below `below`, so that it is named again by each census and at each
/// open, until all of them are released. Its lap is one that was never used.
pub(super) fn add_lost(
    segment: u32,
    lap: u64,
    below: u64,
    geometry: Geometry,
    catalog: &mut Catalog,
    recovered: &mut Recovered,
) {
    tracing::error!(link = link_of(segment), index = index_of(segment), "nothing is left of a segment");
    let closed = ClosedSegment {
        lap,
        directory_offset: 0,
        directory_bytes: 0,
        directory_checksum: 0,
        lost_below: below,
        record_count: 0,
        data_bytes: 0,
        ranges: Box::default(),
    };
    catalog.add_closed(segment, closed);
    catalog.add_rebuilt(segment, lap, SegmentIndex::default());
    let bytes = geometry.segment_bytes as u32;
    recovered.damage.push(Damage { segment, offset: 0, bytes, kind: DamageKind::Segment });
}
