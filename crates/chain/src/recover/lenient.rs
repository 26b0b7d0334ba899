//! Reads that go on past sectors that cannot be read.

use bytes::Bytes;
use ithaca_env::drive::{Drive, DriveError, DriveFuture, PageBuf};
use ithaca_env::limits::BLOCK_BYTES;

/// What stands for a block that cannot be read. No record looks like it, and it is not blank either.
pub(super) const UNREADABLE: u8 = 0xdb;

/// How often a block is asked for that cannot be read, before those behind it. What was acknowledged last and cannot be read looks like a
/// torn tail, which is cut: that must not happen for a failure that passes.
const BLOCK_READS: usize = 4;

/// A read that is under way.
pub(crate) struct LenientRead {
    drive: Drive,
    offset: u64,
    len: usize,
    read: DriveFuture<Bytes>,
}

/// What a drive could not read of what it was asked for.
pub(super) struct Unread {
    /// Blocks, counted from where it begins; at least one.
    pub(super) blocks: Vec<usize>,
    /// Why.
    pub(super) error: DriveError,
}

impl Unread {
    /// Whether it is all of so many blocks. A drive that is gone is not a damaged one; one or two bad blocks are damage.
    pub(super) fn is_all_of(&self, blocks: usize) -> bool {
        blocks > 2 && self.blocks.len() == blocks
    }
}

/// Starts to read `[offset, offset + len)`.
pub(crate) fn start_lenient(drive: &Drive, offset: u64, len: usize) -> LenientRead {
    LenientRead { drive: drive.clone(), offset, len, read: drive.read(offset, len) }
}

impl LenientRead {
    /// The bytes. If the drive cannot read some of them, it is asked again block by block, and what it still cannot read
    /// is filled with bytes that no decoder takes. Errors: others than failed reads, and a drive on which nothing of it
    /// can be read where more than two blocks were asked for.
    pub(crate) async fn finish(self) -> Result<Bytes, DriveError> {
        let blocks = self.len / BLOCK_BYTES;
        let (bytes, unread) = self.finish_in_blocks().await?;
        match unread {
            Some(unread) if unread.is_all_of(blocks) => Err(unread.error),
            _ => Ok(bytes),
        }
    }

    /// The same, also if nothing of it can be read; and what could not be. Errors: others than failed reads.
    pub(super) async fn finish_in_blocks(mut self) -> Result<(Bytes, Option<Unread>), DriveError> {
        let error = match (&mut self.read).await {
            Err(error @ DriveError::Io { .. }) => error,
            answered => return Ok((answered?, None)),
        };
        let mut found = Vec::with_capacity(self.len / BLOCK_BYTES);
        for block in 0..self.len / BLOCK_BYTES {
            found.push(self.read_block(block, BLOCK_READS).await?);
        }
        // A drive that could read nothing for a while, and by now reads some, may read the others too.
        if found.iter().any(Option::is_some) {
            for (block, unread) in found.iter_mut().enumerate().filter(|(_, found)| found.is_none()) {
                *unread = self.read_block(block, 1).await?;
            }
        }
        let (mut buffer, mut blocks) = (PageBuf::with_capacity(self.len), Vec::new());
        for (block, bytes) in found.iter().enumerate() {
            buffer.extend(bytes.as_deref().unwrap_or(&[UNREADABLE; BLOCK_BYTES]));
            blocks.extend(bytes.is_none().then_some(block));
        }
        let unread = (!blocks.is_empty()).then_some(Unread { blocks, error });
        Ok((buffer.freeze(), unread))
    }

    /// Reads a block, again if that fails, up to so many times. Nothing if it cannot be read. Errors: others than failed reads.
    async fn read_block(&self, block: usize, times: usize) -> Result<Option<Bytes>, DriveError> {
        for _ in 0..times {
            match self.drive.read(self.offset + (block * BLOCK_BYTES) as u64, BLOCK_BYTES).await {
                Err(DriveError::Io { .. }) => {}
                answered => return answered.map(Some),
            }
        }
        Ok(None)
    }
}

/// Reads a part of a footer, and says why some of it could not be read: what stands for that does not match its checksum, as if it were
/// harmed. Whoever needs it may read the groups, which tell the same, and a drive that is gone fails that too. Errors: others than
/// failed reads.
pub(crate) async fn read_footer_part(
    drive: &Drive,
    offset: u64,
    len: usize,
) -> Result<(Bytes, Option<DriveError>), DriveError> {
    let (bytes, unread) = start_lenient(drive, offset, len).finish_in_blocks().await?;
    Ok((bytes, unread.map(|unread| unread.error)))
}

/// Reads `[offset, offset + len)`; see [`LenientRead::finish`].
pub(crate) async fn read_lenient(drive: &Drive, offset: u64, len: usize) -> Result<Bytes, DriveError> {
    start_lenient(drive, offset, len).finish().await
}
