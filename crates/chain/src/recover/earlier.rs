//! What an earlier use of a segment has left in it, found where the segment's header is lost and its first group too, or where a drive
//! cannot read them for now. Groups elsewhere tell that it does not count.
//!
//! Taken for the segment's content it would be missed as soon as the header is read again, which says that the segment is free; and if it was
//! cut, the log would go on behind it.

use std::collections::BTreeSet;

use super::scan::{Scan, ScannedGroup};

/// Leaves out what is over of segments of the log whose headers do not show. `scans` are of the log.
pub(super) fn leave_out_earlier(scans: &mut [Scan]) {
    let is_headless = |scan: &&Scan| scan.is_headless && !scan.groups.is_empty();
    let known = || scans.iter().filter(|scan| !scan.is_headless).flat_map(|scan| &scan.groups);
    let over = scans.iter().filter(is_headless).filter(|scan| known().any(|group| tells_of_end(group, scan)));
    let over: BTreeSet<u32> = over.map(|scan| scan.segment).collect();
    for scan in scans.iter_mut().filter(|scan| over.contains(&scan.segment)) {
        scan.groups.clear();
        scan.lap = 0;
    }
}

/// Whether this group shows that what was found in a segment does not count.
fn tells_of_end(group: &ScannedGroup, scan: &Scan) -> bool {
    let identity = &group.head.identity;
    if identity.lap > scan.lap {
        // A census names all segments that were filled before and hold something still, whether its group counts or not.
        let census = group.area.census.as_ref();
        return census.is_some_and(|census| !census.iter().any(|named| named.contains(&scan.segment)));
    }
    // Only an open that has cut it writes to a segment of a lower lap after it was there.
    scan.groups.iter().all(|cut| cut.head.identity.incarnation < identity.incarnation)
}
