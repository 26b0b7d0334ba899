//! A closed segment of a cleaner's copies whose trailer, or the list of keys, is harmed: its groups tell what is in it.
//!
//! One that was not closed says so in its header, and is free: nothing depends on it. So whatever else shows such groups counts.

use super::scan::Scan;
use crate::catalog::{Catalog, ClosedSegment, SegmentIndex, coarse_ranges};
use crate::error::{Damage, DamageKind};
use crate::format::{GroupFlags, Trailer};
use crate::range_set::RangeSet;
use crate::recover::Recovered;

/// Whether the groups of a segment are a cleaner's.
pub(super) fn is_body(scan: &Scan) -> bool {
    scan.groups.iter().any(|group| group.head.identity.flags.has(GroupFlags::BODY))
}

/// A segment of a cleaner's copies that is to be read by its groups, and what its trailer says of their end if it is well.
pub(super) struct Body {
    pub(super) scan: Scan,
    pub(super) trailer: Option<Box<Trailer>>,
}

/// Takes what the groups hold for what the segment holds. Groups that are missing between them, or behind them where the trailer shows
/// that, are named. Every key is below `key_end`.
pub(super) fn keep_body(body: Body, key_end: u64, catalog: &mut Catalog, recovered: &mut Recovered) {
    let Scan { segment, lap, groups, .. } = body.scan;
    let mut index = SegmentIndex::default();
    let mut keys = RangeSet::new();
    let (mut record_count, mut data_bytes, mut lost_below) = (0, 0, 0);
    let (mut expected, mut end) = (1, 0);
    for group in &groups {
        let identity = &group.head.identity;
        if identity.seq > expected {
            lost_below = identity.key_end.max(lost_below);
            let (seqs, bytes) = (expected..identity.seq, identity.offset - end);
            let kind = DamageKind::Groups { seqs };
            recovered.damage.push(Damage { segment, offset: end, bytes, kind });
        }
        (expected, end) = (identity.seq + 1, group.end_offset());
        data_bytes += (group.head.layout.packed_bytes + group.head.layout.aligned_bytes) as u64;
        index.add_group(group.area.blob.clone(), &group.area.starts, |range| {
            record_count += range.end - range.start;
            keys.insert(range);
        });
        for (keys, bytes) in &group.bad {
            let kind = DamageKind::Data { keys: keys.clone() };
            let bytes = bytes.start..bytes.end;
            recovered.damage.push(Damage {
                segment,
                offset: bytes.start,
                bytes: bytes.end - bytes.start,
                kind,
            });
        }
    }
    let trailer = body.trailer.as_deref();
    if let Some(closed) = trailer.filter(|closed| expected <= closed.last_seq) {
        lost_below = lost_below.max(key_end);
        let kind = DamageKind::Groups { seqs: expected..closed.last_seq + 1 };
        recovered.damage.push(Damage {
            segment,
            offset: end,
            bytes: closed.end_offset.saturating_sub(end),
            kind,
        });
    }
    keys.ranges().for_each(|range| {
        recovered.covered.insert(range);
    });
    let ranges: Vec<_> = keys.ranges().collect();
    let closed = ClosedSegment {
        lap,
        directory_offset: trailer.map_or(0, |it| it.directory_offset),
        directory_bytes: trailer.map_or(0, |it| it.directory_bytes),
        directory_checksum: trailer.map_or(0, |it| it.directory_checksum),
        lost_below,
        record_count,
        data_bytes,
        ranges: coarse_ranges(&ranges),
    };
    catalog.add_closed(segment, closed);
    catalog.add_rebuilt(segment, lap, index, None);
    recovered.damage.push(Damage { kind: DamageKind::Frame, ..super::frame_damage(segment) });
}
