//! What is looked at before a drive that is to be ours is written over: whether somebody else has it.
//!
//! Every kind of drive of ours begins with a zone of 64 KiB, of which a blank one shows nothing. That alone is no sign of a blank drive:
//! Btrfs leaves its first 64 KiB zeros, and begins behind them. An array's superblock lies at 4 KiB, between two copies of ours.

use ithaca_env::drive::{Drive, DriveError};
use ithaca_env::limits::BLOCK_BYTES;

use crate::format::{Superblock, is_ours};
use crate::limits::{SUPERBLOCK_STRIDE_BYTES, SUPERBLOCK_ZONE_BYTES};
use crate::recover::read_lenient;

/// Whether all that begins on the drive is copies of a superblock, whole or torn, in their places, and what one of ours had behind
/// them.
pub(crate) async fn has_only_superblocks(drive: &Drive) -> Result<bool, DriveError> {
    let bytes = drive.size_bytes().min(SUPERBLOCK_ZONE_BYTES + BLOCK_BYTES as u64) as usize;
    let begin = read_lenient(drive, 0, bytes).await?;
    Ok(begin.chunks(BLOCK_BYTES).enumerate().all(|(index, block)| {
        let offset = index * BLOCK_BYTES;
        let is_copy = offset.is_multiple_of(SUPERBLOCK_STRIDE_BYTES) && Superblock::is_begun(block);
        let is_behind = offset as u64 == SUPERBLOCK_ZONE_BYTES && is_ours(block);
        is_copy || is_behind || is_blank(block)
    }))
}

/// Whether behind the zone nothing lies, or what a chain, a cache or metadata had there.
pub(crate) async fn is_ours_behind_zone(drive: &Drive) -> Result<bool, DriveError> {
    if drive.size_bytes() < SUPERBLOCK_ZONE_BYTES + BLOCK_BYTES as u64 {
        return Ok(true);
    }
    let block = read_lenient(drive, SUPERBLOCK_ZONE_BYTES, BLOCK_BYTES).await?;
    Ok(is_blank(&block) || is_ours(&block))
}

/// The first bytes of a drive. What it is too short for is zeros, as it will be when it has grown.
pub(crate) async fn read_begin(drive: &Drive, bytes: u64) -> Result<Vec<u8>, DriveError> {
    let there = drive.size_bytes().min(bytes) as usize;
    let mut begin = drive.read(0, there).await?.to_vec();
    begin.resize(bytes as usize, 0);
    Ok(begin)
}

/// Whether all of it is zeros.
pub(crate) fn is_blank(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}
