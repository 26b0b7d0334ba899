//! Creating and opening.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_env::drive::{Drive, DriveError, DriveFuture, Durability, PageBuf};
use ithaca_env::limits::BLOCK_BYTES;
use ithaca_env::sync::{Count, Notify};

use super::clear::clear;
use super::{Chain, Inner};
use crate::cache::{FooterCache, ReadCache, TailCache};
use crate::catalog::Catalog;
use crate::core::{Core, Resume};
use crate::error::{ChainError, Damage, OpenError};
use crate::foreign::has_only_superblocks;
use crate::format::{GroupHead, RunHead, SegmentHeader, SegmentKind};
use crate::limits::{LINKS_MAX, SIDES_MAX};
use crate::links::{Drives, Links};
use crate::membership::DriveId;
use crate::metadata::{Known, Share};
use crate::options::{ChainId, ChainOptions, Geometry, Identity, OptionsError};
use crate::owner::{Keys, Opening, Owner};
use crate::patient::{only_read, patient};
use crate::planted::PlantedBug;
use crate::recover::{
    Frame, Recovered, Reopened, Right, Unequal, UnreadEnd, put_together, read_frames, read_superblock,
    recover,
};
use crate::registry::Registry;
use crate::roster::{Roster, gather};
use crate::sides::{Side, Sides};

impl Chain {
    /// Makes a chain of drives that hold none, in the order in which they are given. On return the superblocks and the
    /// first group are durable.
    ///
    /// Files smaller than the chain's least size grow. Errors: `AlreadyThere`, `SuperblockLost` if a drive holds the
    /// remains of a chain, or it or `NotBlank` if it holds something else, `TooSmall`, `TooManyDrives`, `Options`, `Drive`.
    pub async fn create(
        env: &Env,
        drives: impl Into<Drives>,
        identity: Identity,
        options: ChainOptions,
    ) -> Result<Self, OpenError> {
        Self::create_with(env, drives.into(), identity, options, None).await
    }

    /// The same, for keys that are versioned if there is an owner.
    pub(super) async fn create_with(
        env: &Env,
        drives: Drives,
        identity: Identity,
        options: ChainOptions,
        owner: Option<Rc<dyn Owner>>,
    ) -> Result<Self, OpenError> {
        options.validate()?;
        let Drives { links, metadata, notary } = drives;
        let keys = keys_of(owner.as_ref());
        check_counts(&links)?;
        let geometry = Geometry::new(options.segment_bytes);
        let state = owner.as_ref().and_then(|owner| owner.first_state());
        check_state(state.as_ref(), geometry)?;
        let mut drives = Vec::new();
        for (link, sides) in links.into_iter().enumerate() {
            let segments = if link == 0 { least_segments(&options) } else { 1 };
            for drive in sides {
                let lock = drive.try_lock()?;
                refuse_remains(&patient(env, &drive), geometry).await?;
                let bytes = drive.size_bytes();
                grow_to_least(&drive, geometry, &options, segments).await?;
                clear(env, &drive, geometry, bytes).await?;
                drives.push((drive, lock, DriveId(env.random_u64()), link as u32));
            }
        }
        let changed = Rc::default();
        let mut roster =
            Roster::new(drives, &identity, geometry, keys, notary).watched(env, &options, &changed);
        let membership = roster.membership.clone();
        // A creation does without no side.
        let mut failed = Vec::new();
        if roster.drives.len() > 1 {
            roster.write_all(&membership, &mut failed).await?;
        }
        roster.write_all(&membership.decided(), &mut failed).await?;
        if let Some(error) = roster.failure {
            return Err(error.into());
        }
        let registry = Registry::new(roster, options.clone());
        let links = registry.roster().links(&registry);
        let mut catalog = Catalog::new(keys);
        for link in links.iter() {
            catalog.space.add_link(link.number, geometry.segments_in(link.device.size_bytes()));
        }
        tell_of_opening(owner.as_ref(), state.as_ref(), geometry, &options, &links);
        let core = Core::new(options, geometry, identity.id, catalog, Resume::new(state));
        let metadata = metadata.map(|metadata| Share::new(&metadata, identity.id));
        let chain = Self::over((env, changed), registry, links, core, owner, metadata);
        chain.inner.settle_metadata(&Known::default());
        chain.inner.prepare_at_once().await?;
        chain.begin().await?;
        Ok(chain)
    }

    /// Opens the chain that the drives hold, given in any order: of every link at least one side that has everything.
    /// Sides that are not given are marked as stale before anything is written; stale ones that are given are rebuilt in the
    /// background. On return what it recovered is on stable storage, and fenced off from
    /// anything that a crash had left behind the end.
    ///
    /// With [`ChainOptions::rescue`] the chain is only read, and none of that is done: nothing is written, nor marked.
    ///
    /// `expect` refuses drives of another chain. A change of the drives that a crash has interrupted goes on, or is taken
    /// back if the drives given are those before it. Errors: see [`OpenError`]; nothing was written then, unless a drive
    /// failed while it was written to.
    pub async fn open(
        env: &Env,
        drives: impl Into<Drives>,
        expect: Option<&Identity>,
        options: ChainOptions,
    ) -> Result<(Self, Recovered), OpenError> {
        Self::open_with(env, drives.into(), expect, options, None).await
    }

    /// The same, for keys that are versioned if there is an owner.
    pub(super) async fn open_with(
        env: &Env,
        drives: Drives,
        expect: Option<&Identity>,
        options: ChainOptions,
        owner: Option<Rc<dyn Owner>>,
    ) -> Result<(Self, Recovered), OpenError> {
        let mut roster = gather(&drives, &options, true, |drive| patient(env, drive)).await?;
        if options.rescue {
            roster.drives.iter_mut().for_each(|it| it.drive = only_read(&it.drive));
        }
        let identity = roster.identity().clone();
        if let Some(expected) = expect.filter(|expected| **expected != identity) {
            return Err(OpenError::WrongChain {
                drive: roster.names(),
                found: identity.id,
                found_label: identity.label.to_string(),
                expected: expected.id,
                expected_label: expected.label.to_string(),
            });
        }
        let keys = keys_of(owner.as_ref());
        if roster.keys() != keys {
            return Err(OpenError::WrongKeys { drive: roster.names(), found: roster.keys(), expected: keys });
        }
        let options = ChainOptions {
            segment_bytes: roster.segment_bytes(),
            grow_bytes: options.grow_bytes.max(roster.segment_bytes()),
            ..options
        };
        options.validate()?;
        let geometry = Geometry::new(options.segment_bytes);
        let changed = Rc::default();
        // What a side has that does not answer for a while is not known, and what counts would be decided without it: it is waited for.
        let unwatched: BTreeMap<DriveId, Drive> =
            roster.drives.iter().map(|it| (it.id(), patient(env, &it.drive))).collect();
        let registry = Registry::new(roster.watched(env, &options, &changed), options.clone());
        let links = registry.roster().links(&registry);
        let metadata = drives.metadata.filter(|_| !options.rescue);
        let known = match &metadata {
            Some(metadata) => {
                let is_believed = options.planted.is(PlantedBug::StaleMetadataBelieved);
                Known::read(metadata, identity.id, is_believed, |segment, id| links.is_on(segment, id)).await
            }
            None => Known::default(),
        };
        let read_links = links.read_by(|side| unwatched[&side.id].clone());
        let recovery = recover(&read_links, identity.id, geometry, keys, &options, &known, UnreadEnd::Fails);
        let reopened = recovery.await?;
        refuse_losses(&reopened, &options, || registry.roster().names())?;
        if !options.rescue {
            make_so(&registry, &links, identity.id, geometry, &options, &reopened).await?;
        }
        let Reopened { catalog, resume, recovered, .. } = reopened;
        let options = as_owned(options, owner.as_ref(), recovered.state.as_ref())?;
        tell_of_opening(owner.as_ref(), recovered.state.as_ref(), geometry, &options, &links);
        let core = Core::new(options, geometry, identity.id, catalog, resume);
        let metadata = metadata.map(|metadata| Share::new(&metadata, identity.id));
        let chain = Self::over((env, changed), registry, links, core, owner, metadata);
        chain.inner.settle_metadata(&known);
        chain.inner.tell_owner_of_all(&known).await?;
        drop(known);
        if chain.is_read_only() {
            chain.inner.only_read();
            return Ok((chain, recovered));
        }
        chain.begin().await?;
        chain.inner.spawn_rebuild();
        Ok((chain, recovered))
    }

    fn over(
        (env, changed): (&Env, Rc<Notify>),
        registry: Rc<Registry>,
        links: Links,
        core: Core,
        owner: Option<Rc<dyn Owner>>,
        metadata: Option<Share>,
    ) -> Self {
        let (tail_bytes, footer_bytes) = (core.options.tail_cache_bytes, core.options.index_cache_bytes);
        let read_cache_bytes = core.options.read_cache_bytes;
        let identity = registry.roster().identity().clone();
        let readable_since = registry.roster().readable_since();
        let inner = Rc::new_cyclic(|me| Inner {
            env: env.clone(),
            identity,
            links: RefCell::new(links),
            registry,
            is_changing: Cell::new(false),
            change_over: Notify::default(),
            core: RefCell::new(core),
            tail: RefCell::new(TailCache::new(tail_bytes)),
            read_cache: RefCell::new(ReadCache::new(read_cache_bytes)),
            written: RefCell::default(),
            footers: RefCell::new(FooterCache::new(footer_bytes)),
            share: RefCell::default(),
            metadata,
            reads: Rc::default(),
            changed,
            pump: Rc::new(Notify::default()),
            is_closing: Rc::default(),
            is_cleaning: Cell::new(false),
            readable_since: Cell::new(readable_since),
            giving_back: RefCell::default(),
            cleaning_over: Notify::default(),
            repaired: Cell::new(0),
            scrubbed: Cell::default(),
            owner,
            copies: RefCell::default(),
            is_rebuilding: Cell::new(false),
            rebuilt: Cell::new(None),
            failed_sides: RefCell::default(),
            busy: Count::default(),
            me: me.clone(),
        });
        Self { inner }
    }

    /// Starts the tasks and waits for the fence.
    async fn begin(&self) -> Result<(), OpenError> {
        let inner = &self.inner;
        inner.spawn_pump();
        inner.spawn_keeper();
        inner.spawn_scrubber();
        inner.spawn_sleeper();
        inner.spawn_cleaner();
        inner.spawn_mirror();
        inner.turn();
        inner
            .changed
            .until(|| {
                let core = inner.core.borrow();
                match core.stopped() {
                    Some(ChainError::Failed { first }) => Some(Err(OpenError::Drive(first.clone()))),
                    _ if core.is_stuck() => {
                        Some(Err(OpenError::NoRoom { drive: inner.registry.roster().names() }))
                    }
                    _ => core.is_fenced().then_some(Ok(())),
                }
            })
            .await
    }
}

/// Keys have versions if somebody knows which of them are needed.
fn keys_of(owner: Option<&Rc<dyn Owner>>) -> Keys {
    if owner.is_some() { Keys::Versioned } else { Keys::Once }
}

/// Options with what the owner's state has instead of them. Errors: `Options`.
fn as_owned(
    options: ChainOptions,
    owner: Option<&Rc<dyn Owner>>,
    state: Option<&Bytes>,
) -> Result<ChainOptions, OpenError> {
    let capacity_bytes = owner.zip(state).and_then(|(owner, state)| owner.capacity_bytes(state));
    let options =
        ChainOptions { capacity_bytes: capacity_bytes.unwrap_or(options.capacity_bytes), ..options };
    options.validate()?;
    Ok(options)
}

/// Whether whoever opens cannot do without what is lost, or may be there and could not be read. Nothing is written yet.
fn refuse_losses(
    Reopened { recovered, unread, .. }: &Reopened,
    options: &ChainOptions,
    names: impl FnOnce() -> String,
) -> Result<(), OpenError> {
    if (options.needs_control || options.rescue) && !recovered.is_control_certain {
        let failure = unread.values().next().cloned();
        return Err(failure.map_or_else(|| OpenError::ControlLost { drive: names() }, OpenError::Drive));
    }
    if !options.needs_groups || options.rescue {
        return Ok(());
    }
    let mut lost = recovered.damage.iter().filter(|damage| damage.is_of_groups());
    let first = lost.clone().find(|damage| !unread.contains_key(&damage.segment));
    if let Some(&Damage { segment, offset, .. }) = first {
        return Err(OpenError::GroupsLost { drive: names(), segment, offset });
    }
    let failure = lost.find_map(|damage| unread.get(&damage.segment));
    failure.map_or(Ok(()), |error| Err(error.clone().into()))
}

/// Makes the drives say what an open has decided. On return all of that is on stable storage.
async fn make_so(
    registry: &Rc<Registry>,
    links: &Links,
    chain: ChainId,
    geometry: Geometry,
    options: &ChainOptions,
    reopened: &Reopened,
) -> Result<(), OpenError> {
    let mut taken = registry.take().await;
    taken.settle().await?;
    taken.store();
    drop(taken);
    make_equal(links, geometry, options, &reopened.unequal).await?;
    wipe(links, chain, geometry, options, reopened).await?;
    // What was read may still be in the drives' own caches: it must not be shown before it is durable.
    for link in links.iter() {
        link.device.sync().await?;
    }
    Ok(())
}

/// Tells an owner what the chain is that it is about to be told the records of.
fn tell_of_opening(
    owner: Option<&Rc<dyn Owner>>,
    state: Option<&Bytes>,
    geometry: Geometry,
    options: &ChainOptions,
    links: &Links,
) {
    let Some(owner) = owner else { return };
    let largest_bytes =
        links.iter().map(|link| link.device.size_bytes()).fold(options.capacity_bytes, u64::max);
    owner.opening(&Opening {
        state: state.cloned(),
        segment_bytes: geometry.segment_bytes,
        link_segments: geometry.segments_in(largest_bytes),
    });
}

/// A checkpoint has room for the state that a new chain begins with.
fn check_state(state: Option<&Bytes>, geometry: Geometry) -> Result<(), OptionsError> {
    let (found, max) = (state.map_or(0, Bytes::len) as u64, geometry.state_max_bytes as u64);
    if found <= max {
        return Ok(());
    }
    Err(OptionsError::OutOfRange { name: "bytes of the owner's first state", found, min: 0, max })
}

/// A creation needs a link, and each link a side.
fn check_counts(links: &[Vec<Drive>]) -> Result<(), OpenError> {
    if links.iter().all(Vec::is_empty) {
        return Err(OpenError::NoDrives);
    }
    if links.len() > LINKS_MAX {
        return Err(OpenError::TooManyDrives { found: links.len(), max: LINKS_MAX });
    }
    match links.iter().map(Vec::len).find(|sides| !(1..=SIDES_MAX).contains(sides)) {
        Some(found) => Err(OpenError::BadMirror { found, max: SIDES_MAX }),
        None => Ok(()),
    }
}

/// Writes to each side what it lacks of what counts. On return all live sides hold the same; a crash before that leaves
/// it to the next open. Nothing of it was acknowledged unless a side was harmed.
async fn make_equal(
    links: &Links,
    geometry: Geometry,
    options: &ChainOptions,
    unequal: &[Unequal],
) -> Result<(), OpenError> {
    for it in unequal {
        let link = links.device_of(it.segment).expect("it was read");
        if options.planted.is(PlantedBug::SidesLeftUnequal) {
            continue;
        }
        let offset = geometry.segment_start(it.segment) + u64::from(it.offset);
        match &it.right {
            Right::Bytes(bytes) => link.write(offset, bytes.clone(), Durability::Durable).await?,
            Right::Group(sides, head, runs) => make_group_equal(link, sides, offset, head, runs).await?,
        }
    }
    Ok(())
}

/// Gives these sides of a link what any of them has of a group. A record that cannot be read for now is left to a scrub; where that is so
/// of the head, which makes it a group, the open fails.
async fn make_group_equal(
    link: &Sides,
    sides: &[Side],
    offset: u64,
    head: &GroupHead,
    runs: &[RunHead],
) -> Result<(), DriveError> {
    let drives: Vec<Drive> = sides.iter().map(|side| side.drive.clone()).collect();
    let together = put_together(&drives, offset, head, runs).await?;
    if let (false, Some(error)) = (together.has_head, together.unread) {
        // It was there when it was looked for, and counts.
        return Err(error);
    }
    for (side, parts) in sides.iter().zip(together.lacking) {
        for (at, right) in parts {
            // A side that fails is given up.
            if link.is_live(side.id)
                && let Err(error) = link.write_lacking(side, at, right).await
                && link.is_live(side.id)
            {
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Segments that a chain must have: the reserve, one to fill and one to go on in.
fn least_segments(options: &ChainOptions) -> u32 {
    (options.reserve_segments + options.segments_ready.max(1) + 1) as u32
}

/// A new drive must hold so many segments; a file may grow to it.
pub(super) async fn grow_to_least(
    drive: &Drive,
    geometry: Geometry,
    options: &ChainOptions,
    segments: u32,
) -> Result<(), OpenError> {
    grow_to(drive, geometry.bytes_for(segments).min(options.capacity_bytes)).await
}

/// Makes a drive at least as large as that. Errors: `TooSmall` if it cannot be made larger, as a block device; `Drive`.
pub(super) async fn grow_to(drive: &Drive, needed_bytes: u64) -> Result<(), OpenError> {
    if drive.size_bytes() < needed_bytes {
        match drive.grow(needed_bytes.next_multiple_of(BLOCK_BYTES as u64)).await {
            // Which is seen by its size.
            Err(DriveError::CannotGrow { .. }) => {}
            grown => grown?,
        }
    }
    if drive.size_bytes() < needed_bytes {
        let found_bytes = drive.size_bytes();
        return Err(OpenError::TooSmall { drive: drive.name(), found_bytes, needed_bytes });
    }
    Ok(())
}

/// Refuses a drive that holds a chain, or what is left of one, or something else. A creation that was interrupted leaves at most
/// superblocks that nobody has decided on, or copies of one, and no segment.
async fn refuse_remains(drive: &Drive, geometry: Geometry) -> Result<(), OpenError> {
    let (fault, is_blank) = match read_superblock(drive).await {
        Ok((superblock, _)) => {
            let fault = OpenError::AlreadyThere { drive: drive.name(), id: superblock.identity.id };
            if !superblock.membership.earlier.is_some_and(|earlier| earlier.is_empty()) {
                return Err(fault);
            }
            (fault, false)
        }
        Err(OpenError::NotAChain { .. } | OpenError::TooSmall { .. }) => {
            (OpenError::NotBlank { drive: drive.name() }, true)
        }
        Err(fault @ OpenError::SuperblockLost { .. }) => (fault, false),
        Err(other) => return Err(other),
    };
    if !has_only_superblocks(drive).await? {
        return Err(fault);
    }
    // One that was removed from a chain has segments still.
    if is_blank {
        return Ok(());
    }
    // Which chain it was is not known, so any block that is not zeros counts.
    let no_chain = ChainId([0; 16]);
    let segments = geometry.segments_in(drive.size_bytes());
    let frames = read_frames(drive, 0, segments, geometry, no_chain, &Known::default()).await?;
    let is_blank = frames.iter().all(|(_, frame)| matches!(frame, Frame::Blank));
    if is_blank { Ok(()) } else { Err(fault) }
}

/// Wipes segments whose groups were cut, before the log goes on: else a later recovery, which finds the log longer, might take
/// them.
async fn wipe(
    links: &Links,
    chain: ChainId,
    geometry: Geometry,
    options: &ChainOptions,
    reopened: &Reopened,
) -> Result<(), OpenError> {
    if options.planted.is(PlantedBug::CutSegmentKept) {
        return Ok(());
    }
    for &segment in &reopened.to_wipe {
        let device = links.device_of(segment).expect("it was read");
        wipe_segment(device, chain, geometry, segment, reopened.highest_lap).await?;
    }
    Ok(())
}

/// Marks a segment as free that held something; laps up to `lap` have been used. On return the device says so, durably, and
/// no open takes it for what it was, even if its header is lost later: a second copy of that stands where the first group was, and the
/// trailer is gone. An open does again what a crash has interrupted.
pub(super) async fn wipe_segment(
    device: &Sides,
    chain: ChainId,
    geometry: Geometry,
    segment: u32,
    lap: u64,
) -> Result<(), DriveError> {
    // The header first: from then on the segment is free, whatever else is in it.
    mark_free(device, chain, geometry, segment, lap).await?;
    let start = geometry.segment_start(segment);
    let copy = ready_header(chain, segment, lap);
    device.write(start + BLOCK_BYTES as u64, copy, Durability::Durable).await?;
    let zeros = PageBuf::zeroed(BLOCK_BYTES).freeze();
    device.write(start + geometry.segment_bytes - BLOCK_BYTES as u64, zeros, Durability::Durable).await
}

/// Starts to write the header of a free segment; laps up to `lap` have been used.
pub(super) fn mark_free(
    device: &Sides,
    chain: ChainId,
    geometry: Geometry,
    segment: u32,
    lap: u64,
) -> DriveFuture<()> {
    device.write(geometry.segment_start(segment), ready_header(chain, segment, lap), Durability::Durable)
}

fn ready_header(chain: ChainId, segment: u32, lap: u64) -> Bytes {
    let header = SegmentHeader { chain, segment, kind: SegmentKind::Ready, lap };
    let mut block = PageBuf::default();
    block.extend(&header.encode());
    block.freeze()
}
