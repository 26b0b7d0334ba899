//! The drive: entries of any number of chains, written in the background and read when a chain is opened.
//!
//! * Nothing depends on it. What it holds is on the chain's drives too; a drive that is blank, old, harmed or gone costs time at
//!   the next open and is written anew.
//! * Nobody waits for its writes. A drive that fails is dropped, with one warning, until the next start.
//! * An entry is not told apart from an old one here: who reads it asks the segment.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::Env;
use ithaca_env::drive::{Drive, DriveError, Durability, PageBuf};
use ithaca_env::limits::BLOCK_BYTES;
use ithaca_env::sync::Notify;
use thiserror::Error;

use super::slots::{Entry, Slots};
use crate::foreign::{is_blank, is_ours_behind_zone, read_begin};
use crate::format::{
    ENTRY_HEAD_BYTES, EntryHead, MetadataHeader, Trailer, is_newer, slot_start, slots_for, slots_in,
};
use crate::limits::{
    BACKGROUND_IO_BYTES, METADATA_DEADLINE_MS, METADATA_GROW_BYTES, METADATA_SLOT_BYTES, METADATA_SLOTS_MAX,
    METADATA_WAITING_MAX_BYTES, METADATA_ZONE_BYTES, OPEN_READS,
};
use crate::membership::DriveId;
use crate::options::ChainId;

/// A part of a footer that is being read; `None` if the drive fails.
pub(crate) type FooterRead = Pin<Box<dyn Future<Output = Option<Bytes>>>>;

/// Why a drive cannot be used for metadata. Nothing was written to it, unless it failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum MetadataError {
    /// The drive failed.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// Something else is on the drive; it is left alone.
    #[error("{drive} is neither blank nor a metadata drive: something else begins on it")]
    NotMetadata {
        /// The drive.
        drive: String,
    },
    /// The drive has no room for one slot, and cannot grow.
    #[error("{drive} has {found_bytes} bytes, a metadata drive needs {needed_bytes}")]
    TooSmall {
        /// The drive.
        drive: String,
        /// Its size.
        found_bytes: u64,
        /// What a metadata drive needs.
        needed_bytes: u64,
    },
}

/// What a metadata drive did since it was opened, for all its chains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetadataStats {
    /// Slots it has.
    pub slots: u64,
    /// Slots that entries take, or are being written for.
    pub held_slots: u64,
    /// Entries written.
    pub entries_written: u64,
    /// Bytes written for them.
    pub bytes_written: u64,
    /// Entries that there was no room for.
    pub entries_refused: u64,
    /// Bytes read by opens.
    pub bytes_read: u64,
    /// It failed and is not used any more.
    pub is_dropped: bool,
}

/// A drive that chains mirror the footers of their closed segments on. Cheap to clone.
#[derive(Clone)]
pub struct MetadataDrive {
    inner: Rc<Inner>,
}

struct Inner {
    env: Env,
    drive: Drive,
    id: u64,
    slots: RefCell<Slots>,
    stats: Cell<MetadataStats>,
}

impl MetadataDrive {
    /// Uses a blank drive, or one that was used for this before: then what is on it is kept. Reads the head of every entry. A
    /// file grows when it must.
    ///
    /// Errors: see [`MetadataError`]. Dropping the future may leave the first block written.
    pub async fn open(env: &Env, drive: Drive) -> Result<Self, MetadataError> {
        let least = METADATA_ZONE_BYTES + METADATA_SLOT_BYTES as u64;
        let header = read_header(&drive).await?;
        if drive.size_bytes() < least
            && let Err(error) = drive.grow(METADATA_ZONE_BYTES + METADATA_GROW_BYTES).await
        {
            return match drive.size_bytes() {
                found_bytes if found_bytes >= METADATA_ZONE_BYTES => {
                    Err(MetadataError::TooSmall { drive: drive.name(), found_bytes, needed_bytes: least })
                }
                _ => Err(error.into()),
            };
        }
        let header = match header {
            Some(header) => header,
            None => {
                let header = MetadataHeader { id: env.random_u64() };
                for copy in HEADER_COPIES {
                    drive.write(copy, PageBuf::paged(&header.encode()), Durability::Durable).await?;
                }
                header
            }
        };
        let stats = Cell::new(MetadataStats::default());
        let inner = Inner { env: env.clone(), drive, id: header.id, slots: RefCell::default(), stats };
        let metadata = Self { inner: Rc::new(inner) };
        metadata.inner.find_entries().await?;
        Ok(metadata)
    }

    /// The state.
    pub fn stats(&self) -> MetadataStats {
        let slots = self.inner.slots.borrow();
        MetadataStats { slots: u64::from(slots.count()), held_slots: slots.taken(), ..self.inner.stats.get() }
    }

    /// The drive's path or name.
    pub fn name(&self) -> String {
        self.inner.drive.name()
    }

    /// The heads of the entries of a chain, by segment. Whether they still hold is for the segments to say. Nothing if the drive
    /// fails.
    pub(super) async fn heads(&self, chain: ChainId) -> BTreeMap<u32, EntryHead> {
        let inner = &self.inner;
        let mut ahead = inner.slots.borrow().of_chain(chain).into_iter();
        let mut reads = VecDeque::new();
        let mut heads = BTreeMap::new();
        loop {
            while reads.len() < OPEN_READS
                && let Some((segment, entry)) = ahead.next()
            {
                let read = inner.drive.read(slot_start(entry.slot), ENTRY_HEAD_BYTES);
                reads.push_back((segment, entry, read));
            }
            let Some((segment, entry, read)) = reads.pop_front() else { return heads };
            let Some(bytes) = inner.answer(read).await else { return BTreeMap::new() };
            if let Ok(head) = EntryHead::decode(&bytes, inner.id, entry.slot) {
                heads.insert(segment, head);
            }
        }
    }

    /// Starts to read `len` bytes of the footer in an entry, from its byte `at` on; they lie within it.
    pub(super) fn read(&self, head: &EntryHead, at: u64, len: usize) -> FooterRead {
        let offset = slot_start(head.slot) + ENTRY_HEAD_BYTES as u64 + at;
        let (inner, read) = (Rc::clone(&self.inner), self.inner.drive.read(offset, len));
        Box::pin(async move { inner.answer(read).await })
    }
}

/// Where the header is.
const HEADER_COPIES: [u64; 2] = [0, METADATA_ZONE_BYTES / 2];

/// The header of a metadata drive; none if the drive is blank, or both copies are harmed: then it begins anew. Refuses a drive on
/// which anything else begins.
async fn read_header(drive: &Drive) -> Result<Option<MetadataHeader>, MetadataError> {
    let zone = read_begin(drive, METADATA_ZONE_BYTES).await?;
    let copies = HEADER_COPIES.map(|at| &zone[at as usize..at as usize + BLOCK_BYTES]);
    let found = copies.map(MetadataHeader::decode);
    let is_newer = found.iter().any(|it| it.as_ref().is_err_and(|error| is_newer(error).is_some()));
    let is_own = copies.iter().any(|copy| MetadataHeader::is_meant(copy));
    if let Some(header) = found.into_iter().find_map(Result::ok) {
        return Ok(Some(header));
    }
    if is_blank(&zone) && is_ours_behind_zone(drive).await? || is_own && !is_newer {
        return Ok(None);
    }
    Err(MetadataError::NotMetadata { drive: drive.name() })
}

impl Inner {
    fn count(&self, count: impl FnOnce(&mut MetadataStats)) {
        let mut stats = self.stats.get();
        count(&mut stats);
        self.stats.set(stats);
    }

    /// The drive is used no more, for this reason.
    fn drop_drive(&self, why: &str) {
        if self.stats.get().is_dropped {
            return;
        }
        tracing::warn!(drive = %self.drive.name(), why, "the metadata drive is used no more; opens read the chains' drives");
        self.count(|stats| stats.is_dropped = true);
    }

    /// What a read gives, if the drive answers in time.
    async fn answer(&self, read: impl Future<Output = Result<Bytes, DriveError>>) -> Option<Bytes> {
        if self.stats.get().is_dropped {
            return None;
        }
        match self.env.timeout(Duration::from_millis(METADATA_DEADLINE_MS), read).await {
            Ok(Ok(bytes)) => {
                self.count(|stats| stats.bytes_read += bytes.len() as u64);
                Some(bytes)
            }
            Ok(Err(DriveError::Io { .. })) => None,
            Ok(Err(error)) => {
                self.drop_drive(&error.to_string());
                None
            }
            Err(_) => {
                self.drop_drive("a read was not answered in time");
                None
            }
        }
    }

    /// Reads the first blocks of all slots and takes those that begin an entry.
    async fn find_entries(&self) -> Result<(), MetadataError> {
        let count = slots_in(self.drive.size_bytes());
        self.slots.borrow_mut().grow(count);
        let mut reads = VecDeque::new();
        let mut next = 0;
        loop {
            while reads.len() < OPEN_READS && next < count {
                reads.push_back((next, self.drive.read(slot_start(next), ENTRY_HEAD_BYTES)));
                next += 1;
            }
            let Some((slot, read)) = reads.pop_front() else { return Ok(()) };
            let Some(bytes) = self.answer(read).await else { continue };
            if let Ok(head) = EntryHead::decode(&bytes, self.id, slot) {
                let entry = Entry { slot, slots: head.slots(), lap: head.trailer.lap };
                self.slots.borrow_mut().adopt(head.trailer.chain, head.trailer.segment, entry);
            }
        }
    }

    /// Takes slots for an entry; lets the drive grow if there are none. `None` if it cannot.
    async fn take(&self, slots: u32) -> Option<u32> {
        if let Some(slot) = self.slots.borrow_mut().take(slots) {
            return Some(slot);
        }
        let (count, lacking) = {
            let held = self.slots.borrow();
            (held.count(), held.lacking(slots))
        };
        let step = lacking.max((METADATA_GROW_BYTES / METADATA_SLOT_BYTES as u64) as u32);
        let then = u64::from(count) + u64::from(step);
        if then > METADATA_SLOTS_MAX || self.drive.grow(slot_start(then as u32)).await.is_err() {
            return None;
        }
        let mut held = self.slots.borrow_mut();
        held.grow(slots_in(self.drive.size_bytes()));
        held.take(slots)
    }

    /// Writes an entry. On return it is on stable storage.
    async fn write(&self, head: &EntryHead, footer: &[Bytes]) -> Result<(), DriveError> {
        let mut at = slot_start(head.slot);
        let mut piece = PageBuf::with_capacity(BACKGROUND_IO_BYTES);
        piece.extend(&head.encode());
        for part in footer {
            let mut rest = &part[..];
            while !rest.is_empty() {
                let len = rest.len().min(BACKGROUND_IO_BYTES - piece.len());
                piece.extend(&rest[..len]);
                rest = &rest[len..];
                if piece.len() == BACKGROUND_IO_BYTES {
                    let full = std::mem::replace(&mut piece, PageBuf::with_capacity(BACKGROUND_IO_BYTES));
                    self.drive.write(at, full.freeze(), Durability::Volatile).await?;
                    at += BACKGROUND_IO_BYTES as u64;
                }
            }
        }
        if !piece.is_empty() {
            self.drive.write(at, piece.freeze(), Durability::Volatile).await?;
        }
        self.drive.sync().await
    }
}

/// A footer on its way to the metadata drive: parts as they were written to the segment, in order, the trailer last.
struct Waiting {
    lap: u64,
    parts: Vec<Bytes>,
    /// Some were given up.
    is_cut: bool,
}

impl Waiting {
    fn bytes(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }
}

/// A chain's part in a metadata drive.
pub(crate) struct Share {
    drive: MetadataDrive,
    chain: ChainId,
    /// Footers that are being written, or were of late, by segment.
    waiting: RefCell<BTreeMap<u32, Waiting>>,
    waiting_bytes: Cell<usize>,
    /// Rings when a segment may have been closed.
    pub(crate) bell: Rc<Notify>,
}

impl Share {
    pub(crate) fn new(drive: &MetadataDrive, chain: ChainId) -> Self {
        Self {
            drive: drive.clone(),
            chain,
            waiting: RefCell::default(),
            waiting_bytes: Cell::new(0),
            bell: Rc::default(),
        }
    }

    /// Whether the drive is used.
    pub(crate) fn is_used(&self) -> bool {
        !self.drive.inner.stats.get().is_dropped
    }

    /// Whether it has the footer of this segment in this use.
    pub(crate) fn has(&self, segment: u32, lap: u64) -> bool {
        let entry = self.drive.inner.slots.borrow().get(self.chain, segment);
        entry.is_some_and(|entry| entry.lap == lap)
    }

    /// Forgets the entries of segments that are in another use, or whose bytes are not this chain's.
    pub(crate) fn retain(&self, is_wanted: impl FnMut(u32, u64) -> bool) {
        self.drive.inner.slots.borrow_mut().retain(self.chain, is_wanted);
    }

    /// Keeps a part of a footer that is being written to a segment. With too much waiting it is read again when its turn comes.
    pub(crate) fn keep_part(&self, segment: u32, lap: u64, part: &Bytes) {
        if !self.is_used() {
            return;
        }
        let mut waiting = self.waiting.borrow_mut();
        let fresh = |is_cut| Waiting { lap, parts: Vec::new(), is_cut };
        let it = waiting.entry(segment).or_insert_with(|| fresh(false));
        let mut bytes = self.waiting_bytes.get();
        if it.lap != lap {
            bytes -= it.bytes();
            *it = fresh(false);
        }
        if it.is_cut || bytes + part.len() > METADATA_WAITING_MAX_BYTES {
            bytes -= it.bytes();
            *it = fresh(true);
        } else {
            bytes += part.len();
            it.parts.push(part.clone());
        }
        self.waiting_bytes.set(bytes);
    }

    /// What was kept of a segment's footer.
    pub(crate) fn take_parts(&self, segment: u32, lap: u64) -> Option<Vec<Bytes>> {
        let taken = self.waiting.borrow_mut().remove(&segment)?;
        self.waiting_bytes.set(self.waiting_bytes.get() - taken.bytes());
        (taken.lap == lap && !taken.is_cut).then_some(taken.parts)
    }

    /// Writes the entry of a closed segment: `parts` are its whole footer, without the trailer. On return it is on stable
    /// storage, unless there is no room for it or the drive fails: then it is dropped.
    pub(crate) async fn write(&self, on: DriveId, trailer: Trailer, parts: &[Bytes]) {
        let inner = &self.drive.inner;
        let footer_bytes = parts.iter().map(|part| part.len() as u32).sum();
        let slots = slots_for(footer_bytes);
        let (segment, lap) = (trailer.segment, trailer.lap);
        let Some(slot) = inner.take(slots).await else {
            inner.count(|stats| stats.entries_refused += 1);
            return;
        };
        let head = EntryHead { id: inner.id, slot, drive: on, footer_bytes, trailer };
        match inner.write(&head, parts).await {
            Ok(()) => {
                inner.slots.borrow_mut().add(self.chain, segment, Entry { slot, slots, lap });
                inner.count(|stats| {
                    stats.entries_written += 1;
                    stats.bytes_written += ENTRY_HEAD_BYTES as u64 + u64::from(footer_bytes);
                });
            }
            Err(error) => {
                inner.slots.borrow_mut().give_back(slot, slots);
                inner.drop_drive(&error.to_string());
            }
        }
    }
}
