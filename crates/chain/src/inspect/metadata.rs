//! A metadata drive in readable lines: its header, and whose footers it holds.

use ithaca_env::drive::{Drive, DriveError};
use ithaca_env::limits::{BLOCK_BYTES, DRIVE_IO_MAX_BYTES};

use crate::format::{Directory, ENTRY_HEAD_BYTES, EntryHead, MetadataHeader, slot_start, slots_in};
use crate::limits::METADATA_ZONE_BYTES;
use crate::recover::read_lenient;

/// Gives a line for each entry to `line` if `drive` is a metadata drive. False if it is none. Whether an entry is of the present use
/// of its segment only the chain's drives know. Errors: the drive fails; places that cannot be read are shown as such.
pub(super) async fn dump_metadata(
    drive: &Drive,
    segment: Option<u32>,
    line: &mut impl FnMut(String),
) -> Result<bool, DriveError> {
    if drive.size_bytes() < METADATA_ZONE_BYTES {
        return Ok(false);
    }
    let mut found = None;
    for copy in [0, METADATA_ZONE_BYTES / 2] {
        let block = read_lenient(drive, copy, BLOCK_BYTES).await?;
        found = found.or(MetadataHeader::decode(&block).ok());
    }
    let Some(header) = found else { return Ok(false) };
    let slots = slots_in(drive.size_bytes());
    line(format!("metadata id={:016x} slots={slots}", header.id));
    for slot in 0..slots {
        let blocks = read_lenient(drive, slot_start(slot), ENTRY_HEAD_BYTES).await?;
        let Ok(head) = EntryHead::decode(&blocks, header.id, slot) else { continue };
        if segment.is_some_and(|wanted| wanted != head.trailer.segment) {
            continue;
        }
        let state = if is_whole(drive, &head).await? { "whole" } else { "HARMED" };
        let trailer = &head.trailer;
        line(format!(
            "entry slot={slot} slots={} chain={} segment={} lap={} drive={} runs={} records={} footer_bytes={} {state}",
            head.slots(),
            trailer.chain,
            trailer.segment,
            trailer.lap,
            head.drive,
            trailer.run_count,
            trailer.record_count,
            head.footer_bytes,
        ));
    }
    Ok(true)
}

/// Whether the footer of an entry is what its trailer says.
async fn is_whole(drive: &Drive, head: &EntryHead) -> Result<bool, DriveError> {
    let trailer = &head.trailer;
    let start = slot_start(head.slot) + ENTRY_HEAD_BYTES as u64;
    let end = start + u64::from(head.footer_bytes);
    let directory_bytes = trailer.directory_bytes as usize;
    let is_sound = directory_bytes.is_multiple_of(BLOCK_BYTES)
        && directory_bytes <= (head.footer_bytes as usize).min(DRIVE_IO_MAX_BYTES)
        && end <= drive.size_bytes();
    if !is_sound {
        return Ok(false);
    }
    let bytes = read_lenient(drive, end - directory_bytes as u64, directory_bytes).await?;
    let Ok(directory) = Directory::decode(&bytes, trailer.segment, trailer.lap) else { return Ok(false) };
    let segment_start = u64::from(trailer.directory_offset) + u64::from(trailer.directory_bytes)
        - u64::from(head.footer_bytes).min(u64::from(trailer.directory_offset));
    for page in &directory.pages {
        let at = u64::from(page.offset).checked_sub(segment_start).map(|at| start + at);
        let Some(at) = at.filter(|at| at + u64::from(page.bytes) <= end) else { return Ok(false) };
        let bytes = read_lenient(drive, at, page.bytes as usize).await?;
        if !page.is_whole(&bytes, page.offset) {
            return Ok(false);
        }
    }
    Ok(true)
}
