//! Where a read of a place would be answered from, and what stands in its way there.

use bytes::Bytes;
use ithaca_env::limits::BLOCK_BYTES;

use super::Chain;
use crate::load::Queue;
use crate::membership::DriveId;
use crate::owner::Place;

/// What would answer a read of a place now. By the time that the read comes it may be something else: a hint, which says nothing of what
/// is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Memory of the chain: recent groups, or blocks that were read of late.
    Memory,
    /// The cache drive.
    CacheDrive(Queue),
    /// A drive of the chain: of a mirrored link the side with the least to do among those that are awake.
    Drive(DriveId, Queue),
}

impl Chain {
    /// The `len` bytes at byte `offset` of a segment if memory has them; a drive is not asked. The caller needs what is there when it
    /// calls. What is in memory was verified before, or is what was appended.
    pub fn in_memory(&self, segment: u32, offset: u32, len: u32) -> Option<Bytes> {
        let inner = &self.inner;
        let lap = inner.core.borrow().catalog.lap_of(segment)?;
        inner.remembered(Place { segment, lap, offset, len, checksum: 0 })
    }

    /// What would answer a read of `len` bytes at byte `offset` of a segment; nothing if the segment holds nothing, or its drive is gone.
    ///
    /// Looks at memory only and changes nothing. Of what lies on several blocks the first one says whether a cache drive has it. A request
    /// that nobody waits for any more is not counted, though the drive may still be at it.
    pub fn source_of(&self, segment: u32, offset: u32, len: u32) -> Option<Source> {
        let inner = &self.inner;
        let lap = inner.core.borrow().catalog.lap_of(segment)?;
        let (start, end) = (u64::from(offset), u64::from(offset) + u64::from(len));
        if inner.tail.borrow().has(lap, start, end) || inner.read_cache.borrow().has(lap, start, end) {
            return Some(Source::Memory);
        }
        if let Some(share) = &*inner.share.borrow()
            && let Some(queue) = share.queue_for(share.key(segment, lap, offset / BLOCK_BYTES as u32))
        {
            return Some(Source::CacheDrive(queue));
        }
        let (id, queue) = inner.links.borrow().device_of(segment)?.next_to_read()?;
        Some(Source::Drive(id, queue))
    }
}
