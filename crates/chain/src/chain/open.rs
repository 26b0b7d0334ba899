//! Creating and opening.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_env::drive::{Drive, Durability, PageBuf};
use ithaca_env::sync::Notify;

use super::{Chain, Inner};
use crate::cache::{FooterCache, TailCache};
use crate::catalog::Catalog;
use crate::core::{Core, Resume};
use crate::error::{ChainError, OpenError};
use crate::format::{SegmentHeader, SegmentKind, Superblock};
use crate::limits::{SUPERBLOCK_COPIES, SUPERBLOCK_STRIDE_BYTES};
use crate::options::{ChainId, ChainOptions, Geometry, Identity, planted};
use crate::recover::{Frame, Recovered, Reopened, read_frames, read_superblock, recover};

impl Chain {
    /// Makes a chain on a drive that holds none. On return the superblock and the first group are durable.
    ///
    /// A file smaller than the chain's least size grows. Errors: `AlreadyThere`, `SuperblockLost` if the drive holds
    /// the remains of a chain, `TooSmall`, `Options`, `Drive`.
    pub async fn create(
        env: &Env,
        drive: Drive,
        identity: Identity,
        options: ChainOptions,
    ) -> Result<Self, OpenError> {
        options.validate()?;
        let geometry = Geometry::new(options.segment_bytes);
        grow_to_least(&drive, geometry, &options).await?;
        refuse_remains(&drive, geometry).await?;
        let superblock =
            Superblock { identity: identity.clone(), sequence: 1, segment_bytes: geometry.segment_bytes };
        write_superblock(&drive, &superblock).await?;
        let segments = geometry.segments_in(drive.size_bytes());
        let resume = Resume {
            cursor: None,
            unclosed: Vec::new(),
            next_seq: 1,
            next_lap: 1,
            incarnation: 1,
            state: None,
        };
        let core = Core::new(options, geometry, identity.id, Catalog::new(segments), resume);
        let chain = Self::over(env, drive, identity, core);
        chain.inner.prepare_at_once().await?;
        chain.begin().await?;
        Ok(chain)
    }

    /// Opens the chain that a drive holds. On return what it recovered is on stable storage, and fenced off from
    /// anything that a crash had left behind the end.
    ///
    /// `expect` refuses a drive of another chain. Errors: see [`OpenError`]; nothing was written then, unless the drive
    /// failed while the fence was written.
    pub async fn open(
        env: &Env,
        drive: Drive,
        expect: Option<&Identity>,
        options: ChainOptions,
    ) -> Result<(Self, Recovered), OpenError> {
        let superblock = read_superblock(&drive).await?;
        let identity = superblock.identity.clone();
        if let Some(expected) = expect.filter(|expected| **expected != identity) {
            return Err(OpenError::WrongChain {
                drive: drive.name(),
                found: identity.id,
                found_label: identity.label.to_string(),
                expected: expected.id,
                expected_label: expected.label.to_string(),
            });
        }
        let options = ChainOptions {
            segment_bytes: superblock.segment_bytes,
            grow_bytes: options.grow_bytes.max(superblock.segment_bytes),
            ..options
        };
        options.validate()?;
        let geometry = Geometry::new(options.segment_bytes);
        let reopened = recover(&drive, &superblock, geometry, &options).await?;
        wipe(&drive, identity.id, geometry, &options, &reopened).await?;
        let Reopened { catalog, resume, recovered, .. } = reopened;
        // What was read may still be in the drive's own cache: it must not be shown before it is durable.
        drive.sync().await?;
        let core = Core::new(options, geometry, identity.id, catalog, resume);
        let chain = Self::over(env, drive, identity, core);
        chain.begin().await?;
        Ok((chain, recovered))
    }

    fn over(env: &Env, drive: Drive, identity: Identity, core: Core) -> Self {
        let (tail_bytes, footer_bytes) = (core.options.tail_cache_bytes, core.options.index_cache_bytes);
        let inner = Inner {
            env: env.clone(),
            drive,
            identity,
            core: RefCell::new(core),
            tail: RefCell::new(TailCache::new(tail_bytes)),
            footers: RefCell::new(FooterCache::new(footer_bytes)),
            changed: Rc::new(Notify::default()),
            pump: Rc::new(Notify::default()),
            is_closing: Cell::new(false),
            busy: Cell::new(0),
        };
        Self { inner: Rc::new(inner) }
    }

    /// Starts the tasks and waits for the fence.
    async fn begin(&self) -> Result<(), OpenError> {
        let inner = &self.inner;
        inner.spawn_pump();
        inner.spawn_keeper();
        inner.turn();
        inner
            .changed
            .until(|| {
                let core = inner.core.borrow();
                match core.stopped() {
                    Some(ChainError::Failed { first }) => Some(Err(OpenError::Drive(first.clone()))),
                    _ if core.is_stuck() => Some(Err(OpenError::NoRoom { drive: inner.drive.name() })),
                    _ => core.is_fenced().then_some(Ok(())),
                }
            })
            .await
    }
}

/// A new drive must hold the reserve, a segment to fill and one to go on in; a file may grow to it.
async fn grow_to_least(drive: &Drive, geometry: Geometry, options: &ChainOptions) -> Result<(), OpenError> {
    let segments = options.reserve_segments + options.segments_ready.max(1) + 1;
    let needed_bytes = geometry.segment_start(segments as u32).min(options.capacity_bytes);
    if drive.size_bytes() >= needed_bytes {
        return Ok(());
    }
    drive.grow(needed_bytes.next_multiple_of(4096)).await?;
    if drive.size_bytes() < needed_bytes {
        return Err(OpenError::TooSmall {
            drive: drive.name(),
            found_bytes: drive.size_bytes(),
            needed_bytes,
        });
    }
    Ok(())
}

/// Refuses a drive that holds a chain, or what is left of one. A creation that was interrupted leaves at most copies of a
/// superblock and no segment.
async fn refuse_remains(drive: &Drive, geometry: Geometry) -> Result<(), OpenError> {
    let fault = match read_superblock(drive).await {
        Ok(superblock) => {
            return Err(OpenError::AlreadyThere { drive: drive.name(), id: superblock.identity.id });
        }
        Err(OpenError::NotAChain { .. }) => return Ok(()),
        Err(fault @ OpenError::SuperblockLost { .. }) => fault,
        Err(other) => return Err(other),
    };
    // Which chain it was is not known, so any block that is not zeros counts.
    let no_chain = ChainId([0; 16]);
    let segments = geometry.segments_in(drive.size_bytes());
    let frames = read_frames(drive, geometry, no_chain, segments).await?;
    if frames.iter().all(|frame| matches!(frame, Frame::Blank)) { Ok(()) } else { Err(fault) }
}

/// Marks segments as free whose groups were cut, before the log goes on: else a later recovery, which finds the log longer,
/// might take them.
async fn wipe(
    drive: &Drive,
    chain: ChainId,
    geometry: Geometry,
    options: &ChainOptions,
    reopened: &Reopened,
) -> Result<(), OpenError> {
    if planted!(options, CutSegmentKept) {
        return Ok(());
    }
    let writes: Vec<_> = reopened
        .to_wipe
        .iter()
        .map(|&segment| {
            let lap = reopened.highest_lap;
            let header = SegmentHeader { chain, segment, kind: SegmentKind::Ready, lap };
            let mut block = PageBuf::default();
            block.extend(&header.encode());
            drive.write(geometry.segment_start(segment), block.freeze(), Durability::Durable)
        })
        .collect();
    for write in writes {
        write.await?;
    }
    Ok(())
}

async fn write_superblock(drive: &Drive, superblock: &Superblock) -> Result<(), OpenError> {
    let mut block = PageBuf::default();
    block.extend(&superblock.encode());
    let block: Bytes = block.freeze();
    let writes: Vec<_> = (0..SUPERBLOCK_COPIES)
        .map(|copy| {
            let offset = (copy * SUPERBLOCK_STRIDE_BYTES) as u64;
            drive.write(offset, block.clone(), Durability::Durable)
        })
        .collect();
    for write in writes {
        write.await?;
    }
    Ok(())
}
