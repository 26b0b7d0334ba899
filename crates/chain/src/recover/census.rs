//! Segments that the newest census names, or a trailer shows, and of which no group is left: they are damage, and not free.

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

/// A segment in which no group was found.
pub(super) struct Unseen {
    /// The lap of its header or trailer, if one is well.
    pub(super) lap: Option<u64>,
    /// The incarnation of its last group, if the trailer is well: then it had groups.
    pub(super) closed_in: Option<u64>,
}

/// Segments of the newest census that counts in which no group was found, unless they are in use again since; and those that were closed
/// since, or where there is no census. What was closed before, as everything was whose groups are of an earlier incarnation, and is not named
/// holds nothing that is needed.
///
/// A link that was removed is not missed: before it goes a census is written that does not name it.
pub(super) fn missed(links: &Links, judged: &Judged, unseen: &BTreeMap<u32, Unseen>) -> Lost {
    let groups = || judged.segments.iter().flat_map(|kept| &kept.groups);
    let teller = groups().filter(|group| group.area.census.is_some()).last();
    let told_lap = teller.map_or(0, |teller| teller.head.identity.lap);
    let census = teller.and_then(|teller| teller.area.census.as_ref());
    let is_named = |segment| census.is_some_and(|census| census.iter().any(|it| it.contains(&segment)));
    let (mut segments, mut below) = (Vec::new(), teller.map_or(0, |teller| teller.head.identity.key_end));
    let told_in = teller.map_or(0, |teller| teller.head.identity.incarnation);
    for (&segment, Unseen { lap, closed_in }) in unseen {
        // A header of a later lap: it was about to be used again.
        let is_gone = is_named(segment) && lap.is_none_or(|lap| lap < told_lap);
        let is_later = lap.is_some_and(|lap| lap > told_lap);
        let is_known = |incarnation: u64| incarnation < told_in && !is_named(segment);
        let is_bare = is_later && closed_in.is_some_and(|incarnation| !is_known(incarnation));
        if is_bare {
            below = below.max(groups().map(|group| group.head.identity.key_end).max().unwrap_or(0));
        }
        // Its link may be gone.
        segments.extend((is_gone || is_bare).then_some(segment).filter(|it| links.device_of(*it).is_some()));
    }
    Lost { segments, below }
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
    catalog.add_rebuilt(segment, lap, SegmentIndex::default(), None);
    let bytes = geometry.segment_bytes as u32;
    recovered.damage.push(Damage { segment, offset: 0, bytes, kind: DamageKind::Segment });
}
