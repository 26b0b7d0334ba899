//! What an earlier use has left on a drive that becomes one of the chain.
//!
//! Only the beginning of a drive is asked whether it is blank: behind that it may hold anything. What lies where a segment begins or ends
//! would be taken for a segment in use whose header is harmed, or for one of ours, and every open would read all of it.

use std::collections::VecDeque;

use ithaca_env::Env;
use ithaca_env::drive::{Drive, DriveError, Durability, PageBuf};
use ithaca_env::limits::BLOCK_BYTES;

use crate::foreign::is_blank;
use crate::limits::OPEN_READS;
use crate::options::Geometry;
use crate::patient::patient;
use crate::recover::start_lenient;

/// Makes zeros of header, first group and trailer of every segment that begins in the first `bytes` and has something else there: it
/// counts as never used then. On return that is on stable storage.
pub(super) async fn clear(
    env: &Env,
    drive: &Drive,
    geometry: Geometry,
    bytes: u64,
) -> Result<(), DriveError> {
    let read_drive = patient(env, drive);
    let begin_of = |index| geometry.segment_start(index);
    let trailer_of = |index| begin_of(index) + geometry.segment_bytes - BLOCK_BYTES as u64;
    let mut to_read =
        (0..geometry.segments_in(drive.size_bytes())).take_while(|index| begin_of(*index) < bytes);
    let (mut reads, mut is_cleared) = (VecDeque::new(), false);
    loop {
        let room = OPEN_READS - reads.len();
        reads.extend(to_read.by_ref().take(room).map(|index| {
            let begin = start_lenient(&read_drive, begin_of(index), 2 * BLOCK_BYTES);
            (index, begin, start_lenient(&read_drive, trailer_of(index), BLOCK_BYTES))
        }));
        let Some((index, begin, trailer)) = reads.pop_front() else { break };
        let (begin, trailer) = (begin.finish().await?, trailer.finish().await?);
        if is_blank(&begin) && is_blank(&trailer) {
            continue;
        }
        let zeros = PageBuf::zeroed(2 * BLOCK_BYTES).freeze();
        let begin = drive.write(begin_of(index), zeros.clone(), Durability::Volatile);
        drive.write(trailer_of(index), zeros.slice(..BLOCK_BYTES), Durability::Volatile).await?;
        begin.await?;
        is_cleared = true;
    }
    if is_cleared { drive.sync().await } else { Ok(()) }
}
