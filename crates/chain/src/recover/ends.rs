//! Where the groups of a segment end whose trailer is harmed.
//!
//! What is missing between two groups shows by their numbers. What is missing behind the last one shows by the first group of
//! the segment that was filled next; but if that one is closed it is not scanned. It is asked for its first group.

use std::collections::BTreeMap;

use ithaca_env::drive::DriveError;
use ithaca_env::limits::BLOCK_BYTES;

use super::judge::{ClosedEnd, ClosedLaps};
use super::scan::{Scan, ScanTarget, group_around};
use crate::links::Links;
use crate::options::{ChainId, ChainOptions, Geometry};

/// The ends of scanned segments of the log that closed ones tell which are not scanned: `unread`, with their laps, by their first
/// groups. Nothing is told of those at the end of the log, and where the next segment is free by now. Errors: others than failed
/// reads.
pub(super) async fn ends_told_behind(
    links: &Links,
    chain: ChainId,
    geometry: Geometry,
    options: &ChainOptions,
    scans: &[Scan],
    unread: &BTreeMap<u64, (u32, u64)>,
) -> Result<ClosedLaps, DriveError> {
    let mut ends = ClosedLaps::new();
    for scan in scans {
        let Some(last) = scan.groups.last().map(|group| group.head.identity.seq) else { continue };
        let Some((&first_seq, &(segment, lap))) = unread.range(last + 1..).next() else { continue };
        let device = links.device_of(segment).expect("its frame was read");
        let sides = &device.live_drives()[..];
        let target = ScanTarget { sides, geometry, chain, segment, lap: Some(lap), options };
        let first = group_around(&target, BLOCK_BYTES as u32).await?.map(|group| group.head.identity);
        if first.is_some_and(|first| first.seq == first_seq && first.prev_lap == scan.lap) {
            ends.insert(scan.lap, ClosedEnd { last_seq: first_seq - 1, offset: 0 });
        }
    }
    Ok(ends)
}
