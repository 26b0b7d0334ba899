//! What an export serves, and how requests are carried out on it: bytes of a client, whole blocks of the volume.

use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_chain::ChainError;
use ithaca_env::limits::BLOCK_BYTES;

use super::handshake::{ExportInfo, NoExport};
use super::held::Held;
use super::limits::{EXTENTS_MAX, PAYLOAD_MAX_BYTES, PIECE_BYTES};
use super::reply::Part;
use super::server::ServerOptions;
use super::wire::{Errno, ZEROS};
use crate::planted::PlantedBug;
use crate::volume::RegionUse;
use crate::{Durability, Region, Snapshot, TxHandle, Version, Volume, VolumeError};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Digits of a transaction's handle.
const HANDLE_DIGITS: usize = 32;
/// The point in time that is whatever the newest version is.
const NOW: &str = "now";
/// Blocks that are read or written at a time: a piece of a longer request.
const PIECE_BLOCKS: u64 = PIECE_BYTES as u64 / BLOCK;

const _: () = assert!(PIECE_BLOCKS * BLOCK <= ZEROS.len() as u64, "a piece of zeros");

/// A volume as it is served.
pub(crate) struct Disk {
    volume: Volume,
    options: ServerOptions,
}

/// What of a volume an export shows.
enum Source {
    /// All of it, as it is now.
    Now,
    /// A state of the past.
    Then(Snapshot),
    /// What a transaction sees.
    Within(Held),
}

/// An export that a client has opened.
pub(crate) struct Export {
    disk: Rc<Disk>,
    source: Source,
    /// Bytes of the volume that it shows.
    bytes: Range<u64>,
    /// Of a region that it can write to.
    _region: Option<RegionUse>,
    info: ExportInfo,
}

/// Why a request was not done.
#[derive(Debug)]
pub(crate) struct Failed {
    /// In the protocol's number.
    pub(super) error: Errno,
    /// In words.
    pub words: String,
}

impl Failed {
    /// The system's number of it, which the protocol's is.
    pub fn number(&self) -> i32 {
        self.error as i32
    }
}

impl From<VolumeError> for Failed {
    fn from(error: VolumeError) -> Self {
        let number = match &error {
            VolumeError::Full { .. } => Errno::NoSpace,
            VolumeError::Stopped(ChainError::Closed) => Errno::Shutdown,
            VolumeError::Stopped(ChainError::ReadOnly) => Errno::NotPermitted,
            _ => Errno::InputOutput,
        };
        Self { error: number, words: error.to_string() }
    }
}

impl Disk {
    /// A volume as it is to be served.
    pub fn new(volume: Volume, options: ServerOptions) -> Self {
        Self { volume, options }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.options.name
    }

    /// The names of exports that are listed: the volume's, and those of its regions.
    pub(super) fn names(&self) -> Vec<String> {
        let regions =
            self.volume.regions().into_iter().map(|region| format!("{}/{}", self.name(), region.name));
        std::iter::once(self.name().to_owned()).chain(regions).collect()
    }

    /// The region that is meant by the part of an export's name before `@`, the volume by its own name or none; nothing for all of it.
    fn region(&self, name: &str) -> Result<Option<Region>, NoExport> {
        if name.is_empty() || name == self.name() {
            return Ok(None);
        }
        let Some(region) = name.strip_prefix(self.name()).unwrap_or(name).strip_prefix('/') else {
            let words = format!("no export `{name}`: the volume is called `{}`", self.name());
            return Err(NoExport::Unknown(words));
        };
        self.volume.region(region).map(Some).map_err(|error| NoExport::Unknown(error.to_string()))
    }

    /// The export of this name: the volume by its own name or none, with `/` and a region that alone, with `@` and a point in time as it was
    /// then.
    pub(super) fn open(self: &Rc<Self>, name: &str) -> Result<Export, NoExport> {
        let (volume, point) = match name.split_once('@') {
            None => (name, None),
            Some((volume, point)) => (volume, Some(point)),
        };
        let region = self.region(volume)?;
        let source = point.map_or(Ok(Source::Now), |point| self.source(point))?;
        let told = self.volume.info();
        let own = own_name(self.name(), region.as_ref());
        let what = match &region {
            Some(region) => format!("region {} of volume {}", region.name, told.id),
            None => format!("volume {}", told.id),
        };
        let (name, description) = match &source {
            Source::Now => (own, what),
            Source::Then(snapshot) => {
                let version = snapshot.version();
                (format!("{own}@v={version}"), format!("{what}, version {version}"))
            }
            Source::Within(_) => (name.to_owned(), format!("{what}, in a transaction")),
        };
        let bytes = bytes_of(region.as_ref(), told.blocks);
        let info = ExportInfo {
            name,
            description,
            size_bytes: bytes.end - bytes.start,
            read_only: matches!(source, Source::Then(_)) || self.volume.is_read_only(),
            in_transaction: matches!(source, Source::Within(_)),
            same_for_all: point != Some(NOW) && !matches!(source, Source::Within(_)),
        };
        let used = region.filter(|_| !info.read_only).map(|region| self.volume.use_region(region));
        Ok(Export { disk: Rc::clone(self), source, bytes, _region: used, info })
    }

    /// The volume as it is now, or a region of it.
    pub fn now(self: &Rc<Self>, region: Option<&Region>) -> Export {
        let told = self.volume.info();
        let bytes = bytes_of(region, told.blocks);
        let info = ExportInfo {
            name: own_name(self.name(), region),
            description: format!("volume {}", told.id),
            size_bytes: bytes.end - bytes.start,
            read_only: self.volume.is_read_only(),
            in_transaction: false,
            same_for_all: true,
        };
        let used = region.map(|region| self.volume.use_region(region.clone()));
        Export { disk: Rc::clone(self), source: Source::Now, bytes, _region: used, info }
    }

    /// What is meant by the part of an export's name that follows `@`.
    fn source(&self, point: &str) -> Result<Source, NoExport> {
        let unknown = |error: &dyn std::fmt::Display| NoExport::Unknown(error.to_string());
        let found = match point.split_once('=') {
            None if point == NOW => return Ok(Source::Then(self.volume.snapshot())),
            Some(("tx", handle)) if handle.len() == HANDLE_DIGITS => {
                let expected = "32 hexadecimal digits";
                let handle = u128::from_str_radix(handle, 16)
                    .map_err(|_| unknown(&format!("`@tx=`: expected {expected}")))?;
                let held = Held::take_over(&self.volume, TxHandle(handle), self.options.planted)
                    .map_err(|error| unknown(&error))?;
                return Ok(Source::Within(held));
            }
            Some(("snapshot", name)) => self.volume.named(name),
            Some(("v", version)) if version.bytes().all(|digit| digit.is_ascii_digit()) => {
                // One that does not fit is none that was ever reached.
                self.volume.at(Version(version.parse().unwrap_or(u64::MAX)))
            }
            _ => {
                let words = format!("`@{point}`: expected @v=VERSION, @snapshot=NAME, @tx=HANDLE or @now");
                return Err(NoExport::Unknown(words));
            }
        };
        Ok(Source::Then(found.map_err(|error| unknown(&error))?))
    }

    fn durability(&self, stable: bool) -> Durability {
        let stable = stable && !self.options.planted.is(PlantedBug::FuaAnsweredEarly);
        if stable { Durability::Stable } else { Durability::Acknowledged }
    }
}

/// The name of an export of a volume or of a region of it.
fn own_name(volume: &str, region: Option<&Region>) -> String {
    region.map_or_else(|| volume.to_owned(), |region| format!("{volume}/{}", region.name))
}

/// The bytes of a region, or of all of a volume of so many blocks.
fn bytes_of(region: Option<&Region>, blocks: u64) -> Range<u64> {
    let blocks = region.map_or(0..blocks, |region| region.blocks.clone());
    blocks.start * BLOCK..blocks.end * BLOCK
}

/// The blocks in which these bytes lie.
fn around(range: &Range<u64>) -> Range<u64> {
    range.start / BLOCK..range.end.div_ceil(BLOCK)
}

/// The blocks that lie in these bytes whole.
fn within(range: &Range<u64>) -> Range<u64> {
    let first = range.start.div_ceil(BLOCK);
    first..(range.end / BLOCK).max(first)
}

/// Bytes of both.
fn common(one: &Range<u64>, other: &Range<u64>) -> Range<u64> {
    one.start.max(other.start)..one.end.min(other.end)
}

/// What of a stretch of blocks lies in these bytes, and whether it is data.
fn clipped((blocks, is_data): (Range<u64>, bool), range: &Range<u64>) -> (Range<u64>, bool) {
    (common(&(blocks.start * BLOCK..blocks.end * BLOCK), range), is_data)
}

fn pieces(blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = blocks.end;
    blocks.step_by(PIECE_BLOCKS as usize).map(move |first| first..(first + PIECE_BLOCKS).min(end))
}

impl Export {
    /// What it is.
    pub fn info(&self) -> &ExportInfo {
        &self.info
    }

    /// Where bytes of it lie in the volume. Panics if it does not have them: who asks has checked that.
    pub fn place(&self, range: &Range<u64>) -> Range<u64> {
        let (start, end) = (self.bytes.start + range.start, self.bytes.start + range.end);
        assert!(end <= self.bytes.end, "bytes {range:?} of an export of {}", self.info.size_bytes);
        start..end
    }

    /// The first block of the volume that it shows.
    pub fn first_block(&self) -> u64 {
        self.bytes.start / BLOCK
    }

    /// A client works with it from now on.
    pub fn enter(&self) {
        if let Source::Within(held) = &self.source {
            held.enter();
        }
    }

    /// The client has disconnected, as the protocol says. With `lacks_write` one of its writes was refused before it came here.
    pub fn leave(&self, lacks_write: bool) {
        if let Source::Within(held) = &self.source {
            held.leave(lacks_write);
        }
    }

    async fn read_blocks(&self, blocks: &Range<u64>) -> Result<Bytes, Failed> {
        let count = blocks.end - blocks.start;
        match &self.source {
            Source::Now => Ok(self.disk.volume.read(blocks.start, count).await?),
            Source::Then(snapshot) => Ok(snapshot.read(blocks.start, count).await?),
            Source::Within(held) => held.read(&(blocks.start * BLOCK..blocks.end * BLOCK)).await,
        }
    }

    /// The extents of these blocks that have a byte in `range`, in order and clipped to it, and whether each is data: of as many as one
    /// read is of.
    fn extents(&self, range: &Range<u64>) -> Result<Vec<(Range<u64>, bool)>, Failed> {
        let extents = match &self.source {
            Source::Now => self.disk.volume.extents(around(range))?,
            Source::Then(snapshot) => snapshot.extents(around(range))?,
            // What is stored is known when it is committed.
            Source::Within(_) => return Ok(vec![(range.clone(), true)]),
        };
        Ok(extents.map(|extent| clipped(extent, range)).collect())
    }

    /// Reads bytes. With `holes` what is not stored is told apart and not read.
    pub(super) async fn read(&self, range: Range<u64>, holes: bool) -> Result<Vec<Part>, Failed> {
        let range = self.place(&range);
        let mut parts = Vec::with_capacity(1);
        if !holes {
            self.read_data(&range, &mut parts).await?;
            return Ok(parts);
        }
        for (extent, is_data) in self.extents(&range)? {
            if is_data {
                self.read_data(&extent, &mut parts).await?;
            } else {
                parts.push(Part::Hole(extent.end - extent.start));
            }
        }
        Ok(parts)
    }

    /// Reads bytes, with what is not stored as zeros: the pieces in order.
    pub async fn read_whole(&self, range: Range<u64>) -> Result<Vec<Bytes>, Failed> {
        let parts = self.read(range, false).await?;
        let data = |part| match part {
            Part::Data(data) => data,
            Part::Hole(_) => unreachable!("holes were not asked for"),
        };
        Ok(parts.into_iter().map(data).collect())
    }

    async fn read_data(&self, range: &Range<u64>, parts: &mut Vec<Part>) -> Result<(), Failed> {
        if let Source::Within(held) = &self.source {
            parts.push(Part::Data(held.read(range).await?));
            return Ok(());
        }
        for piece in pieces(around(range)) {
            let bytes = self.read_blocks(&piece).await?;
            let start = piece.start * BLOCK;
            let wanted = common(range, &(start..piece.end * BLOCK));
            let wanted = (wanted.start - start) as usize..(wanted.end - start) as usize;
            parts.push(Part::Data(bytes.slice(wanted)));
        }
        Ok(())
    }

    /// Writes bytes; on return they are visible, and durable if they are to be stable. Blocks are stored each as a whole,
    /// not all of them together.
    pub async fn write(&self, offset: u64, data: Bytes, stable: bool) -> Result<(), Failed> {
        let range = self.place(&(offset..offset + data.len() as u64));
        self.write_at(range.start, data, stable).await
    }

    /// The same from a byte of the volume on.
    async fn write_at(&self, offset: u64, data: Bytes, stable: bool) -> Result<(), Failed> {
        if let Source::Within(held) = &self.source {
            return held.write(offset, &data).await;
        }
        self.disk.volume.write_bytes(offset, data, self.disk.durability(stable)).await?;
        Ok(())
    }

    /// Gives up the blocks that lie in these bytes whole: they read as zeros. The rest stays as it is, which a hint may.
    pub async fn trim(&self, range: Range<u64>, stable: bool) -> Result<(), Failed> {
        let blocks = within(&self.place(&range));
        if blocks.is_empty() || self.info.in_transaction {
            return Ok(());
        }
        self.disk.volume.discard(blocks, self.disk.durability(stable)).await?;
        Ok(())
    }

    /// Makes these bytes zeros, of blocks that are `stored` or not.
    pub async fn zero(&self, range: Range<u64>, stable: bool, stored: bool) -> Result<(), Failed> {
        let range = self.place(&range);
        if let Source::Within(held) = &self.source {
            // Piece by piece: a transaction that is full says so before the end.
            for start in range.clone().step_by(ZEROS.len()) {
                let len = (range.end - start).min(ZEROS.len() as u64) as usize;
                held.write(start, &Bytes::from_static(&ZEROS[..len])).await?;
            }
            return Ok(());
        }
        let blocks = within(&range);
        let (first, last) = (blocks.start * BLOCK, blocks.end * BLOCK);
        // The parts of blocks at both ends; of one block, if no block lies in the range whole.
        let before = range.start..first.min(range.end);
        let behind = last.max(before.end)..range.end;
        for edge in [before, behind].into_iter().filter(|edge| !edge.is_empty()) {
            let zeros = Bytes::from_static(&ZEROS[..(edge.end - edge.start) as usize]);
            self.write_at(edge.start, zeros, stable).await?;
        }
        if !stored && !blocks.is_empty() {
            self.disk.volume.discard(blocks, self.disk.durability(stable)).await?;
            return Ok(());
        }
        for piece in pieces(blocks.clone()) {
            let zeros = Bytes::from_static(&ZEROS[..((piece.end - piece.start) * BLOCK) as usize]);
            let stable = stable && piece.end == blocks.end;
            self.disk.volume.write(piece.start, zeros, self.disk.durability(stable)).await?;
        }
        Ok(())
    }

    /// Reads blocks so that they are in memory, as many as one read may ask for. A transaction would depend on what it reads: there it does
    /// nothing, which a hint may.
    pub async fn cache(&self, range: Range<u64>) -> Result<(), Failed> {
        let range = self.place(&range);
        if self.info.in_transaction {
            return Ok(());
        }
        let end = range.end.min(range.start + u64::from(PAYLOAD_MAX_BYTES));
        for piece in pieces(around(&(range.start..end))) {
            self.read_blocks(&piece).await?;
        }
        Ok(())
    }

    /// Makes everything durable that was answered before, on whatever connection.
    pub async fn flush(&self) -> Result<(), Failed> {
        match &self.source {
            Source::Now => self.disk.volume.flush().await?,
            Source::Then(_) => return Ok(()),
            Source::Within(_) => {
                let words = "a transaction is durable when it commits, and not before".to_owned();
                return Err(Failed { error: Errno::Invalid, words });
            }
        };
        Ok(())
    }

    /// Lengths of extents from the start of `range` on, and whether each is data.
    pub async fn status(&self, range: &Range<u64>, one: bool) -> Result<Vec<(u32, bool)>, Failed> {
        let (range, at_most) = (self.place(range), if one { 1 } else { EXTENTS_MAX });
        let extents = match &self.source {
            Source::Now => self.disk.volume.extents_in_turn(around(&range), at_most).await?,
            Source::Then(snapshot) => snapshot.extents_in_turn(around(&range), at_most).await?,
            // What is stored is known when it is committed.
            Source::Within(_) => vec![(around(&range), true)],
        };
        let told = |extent| {
            let (extent, is_data) = clipped(extent, &range);
            ((extent.end - extent.start) as u32, is_data)
        };
        Ok(extents.into_iter().map(told).collect())
    }
}
