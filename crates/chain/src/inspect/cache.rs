//! A cache drive in readable lines: its header, and what each of its lines holds.

use ithaca_env::drive::{Drive, DriveError};
use ithaca_env::limits::BLOCK_BYTES;

use crate::format::{CacheHeader, LineHead, line_start};
use crate::limits::CACHE_LINE_BYTES;
use crate::recover::read_lenient;

/// Gives a line at a time to `line` if `drive` is a cache drive, with each block if `blocks`. False if it is none. Errors: the
/// drive fails; places that cannot be read are shown as such.
pub(super) async fn dump_cache(
    drive: &Drive,
    blocks: bool,
    line: &mut impl FnMut(String),
) -> Result<bool, DriveError> {
    if drive.size_bytes() < line_start(0) {
        return Ok(false);
    }
    let first = read_lenient(drive, 0, BLOCK_BYTES).await?;
    let Ok(header) = CacheHeader::decode(&first) else { return Ok(false) };
    line(format!("cache session={:016x} lines={}", header.session, header.lines));
    for number in 0..header.lines {
        let start = line_start(number);
        if start + CACHE_LINE_BYTES as u64 > drive.size_bytes() {
            line(format!("line {number} lies past the end of the drive"));
            break;
        }
        let bytes = read_lenient(drive, start, CACHE_LINE_BYTES).await?;
        match LineHead::decode(&bytes[..BLOCK_BYTES]) {
            Err(_) if bytes[..BLOCK_BYTES].iter().all(|&byte| byte == 0) => {}
            Err(error) => line(format!("line {number} harmed: {error}")),
            Ok(head) => dump_line(&header, number, &head, &bytes[BLOCK_BYTES..], blocks, line),
        }
    }
    Ok(true)
}

fn dump_line(
    header: &CacheHeader,
    number: u32,
    head: &LineHead,
    data: &[u8],
    blocks: bool,
    line: &mut impl FnMut(String),
) {
    let state = match (head.line == number, head.session == header.session) {
        (false, _) => "of another place",
        (true, false) => "of an earlier session",
        (true, true) => "present",
    };
    let data = data.chunks_exact(BLOCK_BYTES);
    let is_good: Vec<bool> =
        head.blocks.iter().zip(data).map(|(named, block)| crc32c::crc32c(block) == named.checksum).collect();
    let good = is_good.iter().filter(|good| **good).count();
    line(format!("line {number} {state} blocks={} good={good}", head.blocks.len()));
    if !blocks {
        return;
    }
    for (named, is_good) in head.blocks.iter().zip(is_good) {
        let harm = if is_good { "" } else { " harmed" };
        line(format!(
            "  block chain={} segment={} lap={} offset={}{harm}",
            named.chain, named.segment, named.lap, named.offset
        ));
    }
}
