//! Groups of which no side has all: what one has of them makes up for what another lacks.

use std::ops::Range;

use bytes::Bytes;
use ithaca_env::drive::{Drive, DriveError};
use ithaca_env::limits::BLOCK_BYTES;

use super::lenient::read_lenient;
use crate::format::{GroupHead, RunHead, peek_group};

/// Keys and data of a record.
pub(crate) type RecordPlace = (Range<u64>, Range<u32>);

/// What a drive has of a group; zeros if nothing of it can be read. Errors: others than failed reads.
pub(crate) async fn read_image(drive: &Drive, offset: u64, len: usize) -> Result<Vec<u8>, DriveError> {
    match read_lenient(drive, offset, len).await {
        Ok(bytes) => Ok(bytes.to_vec()),
        Err(DriveError::Io { .. }) => Ok(vec![0; len]),
        Err(other) => Err(other),
    }
}

/// Gives each image of a group what another has of it: its head, and the records that match their checksums. Where none has it right
/// they stay as they are. Returns the records that none has.
pub(crate) fn merge(images: &mut [Vec<u8>], head: &GroupHead, runs: &[RunHead]) -> Vec<RecordPlace> {
    give(images, 0..head.layout.head_bytes, |begin| {
        let is_same = peek_group(&begin[..BLOCK_BYTES.min(begin.len())]).is_ok_and(|found| found == *head);
        is_same && head.decode_area(&Bytes::copy_from_slice(begin)).is_ok()
    });
    let mut lost = Vec::new();
    for run in runs {
        let mut offset = run.data_offset;
        for (index, entry) in run.table.entries().enumerate() {
            let bytes = offset..offset + entry.len;
            offset = bytes.end;
            let place = (bytes.start - head.identity.offset) as usize;
            let is_right = |record: &[u8]| crc32c::crc32c(record) == entry.checksum;
            if !give(images, place..place + entry.len as usize, is_right) {
                let key = run.first_key + index as u64;
                lost.push((key..key + 1, bytes));
            }
        }
    }
    lost
}

/// Gives all images what one has right at this place. Returns whether one has.
fn give(images: &mut [Vec<u8>], place: Range<usize>, is_right: impl Fn(&[u8]) -> bool) -> bool {
    let Some(good) = images.iter().position(|image| is_right(&image[place.clone()])) else { return false };
    let right = images[good][place.clone()].to_vec();
    images.iter_mut().for_each(|image| image[place.clone()].copy_from_slice(&right));
    true
}
