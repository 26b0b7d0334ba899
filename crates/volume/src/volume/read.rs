//! Reads: what the index points at, in as few requests as the places allow, verified.

use std::ops::Range;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use ithaca_chain::{PlaceError, Stretch};

use super::{Inner, Volume};
use crate::error::VolumeError;
use crate::index::{Found, Index, Spot};
use crate::kept::Kept;
use crate::limits::{STRETCH_BLOCKS_MAX, VOLUME_BLOCK_BYTES};

const BLOCK: usize = VOLUME_BLOCK_BYTES;
static ZEROS: [u8; BLOCK] = [0; BLOCK];
/// Longest stretch that is looked through at a time.
const EXTENT_BLOCKS_MAX: u64 = 1 << 20;

/// A piece of a read.
enum Piece {
    Zeros(u64),
    Memory(Bytes),
    /// Blocks from the first on that lie one behind the other.
    Drive(u64, Vec<Spot>),
}

/// Where one block is to be had.
enum Seen {
    Zeros,
    Memory(Bytes),
    Drive(Spot),
}

/// Whose view a read has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// The newest durable version, and what was acknowledged.
    Plain,
    /// A version that stays readable while the read goes on.
    At(u64),
}

impl View {
    fn version(self) -> u64 {
        match self {
            View::Plain => u64::MAX,
            View::At(version) => version,
        }
    }
}

impl Volume {
    /// The data of `count` blocks from `first_block` on: each as it was last acknowledged by a plain write, or is durable. What is
    /// read of several blocks is of one moment unless they are written meanwhile.
    ///
    /// Errors: `Length`, `OutOfRange`, `Damaged`, `Drive`; `Stopped` if a block was acknowledged and could not be made durable.
    pub async fn read(&self, first_block: u64, count: u64) -> Result<Bytes, VolumeError> {
        self.inner.check_range(first_block, count)?;
        self.inner.read(first_block..first_block + count, View::Plain).await
    }

    /// Asks that a block be kept in memory when it has been read: a hint, of which many may be forgotten. Errors: `OutOfRange`.
    pub fn please_cache(&self, block: u64) -> Result<(), VolumeError> {
        self.inner.please_cache(block)
    }

    /// Which of these blocks hold data now, and which read as zeros, in stretches. Errors: `OutOfRange`.
    pub fn extents(&self, blocks: Range<u64>) -> Result<Extents, VolumeError> {
        Extents::new(&self.inner, blocks, View::Plain)
    }

    /// The first of them, `at_most`, looked for in turn with others who look at many blocks.
    pub(crate) async fn extents_in_turn(
        &self,
        blocks: Range<u64>,
        at_most: usize,
    ) -> Result<Vec<(Range<u64>, bool)>, VolumeError> {
        self.inner.extents_in_turn(blocks, at_most, View::Plain).await
    }
}

impl Inner {
    pub(super) fn please_cache(&self, block: u64) -> Result<(), VolumeError> {
        self.check_inside(block, 1)?;
        self.blocks.with_kept(|_, kept| kept.ask(block));
        Ok(())
    }

    /// Reads blocks, which the volume has.
    pub(super) async fn read(self: &Rc<Self>, blocks: Range<u64>, view: View) -> Result<Bytes, VolumeError> {
        self.counters.borrow_mut().blocks_read += blocks.end - blocks.start;
        if blocks.end - blocks.start == 1
            && let Some(data) = self.at_once(blocks.start, view)
        {
            return Ok(data);
        }
        let mut pieces = self.plan(blocks.clone(), view)?;
        if let [piece] = &mut pieces[..] {
            return match std::mem::replace(piece, Piece::Zeros(0)) {
                Piece::Zeros(count) => Ok(Bytes::from(vec![0; count as usize * BLOCK])),
                Piece::Memory(data) => Ok(data),
                Piece::Drive(first, spots) => self.read_stretch(first, spots, view).await,
            };
        }
        enum Part {
            Zeros(u64),
            Data(Bytes),
            Coming(ithaca_env::task::TaskHandle<Result<Bytes, VolumeError>>),
        }
        let start = |piece| match piece {
            Piece::Zeros(count) => Part::Zeros(count),
            Piece::Memory(data) => Part::Data(data),
            Piece::Drive(first, spots) => {
                let inner = Rc::clone(self);
                Part::Coming(self.env.spawn(async move { inner.read_stretch(first, spots, view).await }))
            }
        };
        let parts: Vec<Part> = pieces.into_iter().map(start).collect();
        let mut whole = BytesMut::with_capacity((blocks.end - blocks.start) as usize * BLOCK);
        let mut failed = None;
        for part in parts {
            match part {
                Part::Zeros(count) => whole.resize(whole.len() + count as usize * BLOCK, 0),
                Part::Data(data) => whole.extend_from_slice(&data),
                Part::Coming(read) => match read.join().await {
                    Some(Ok(data)) => whole.extend_from_slice(&data),
                    Some(Err(error)) => failed = failed.or(Some(error)),
                    None => failed = failed.or(Some(VolumeError::Stopped(ithaca_chain::ChainError::Closed))),
                },
            }
        }
        failed.map_or_else(|| Ok(whole.freeze()), Err)
    }

    /// A block, which the volume has, if memory has it and it was not acknowledged of late.
    pub(super) fn at_once(&self, block: u64, view: View) -> Option<Bytes> {
        self.blocks.with_kept(|index, kept| {
            if view == View::Plain && self.overlay.borrow().get(block, index.newest()).is_some() {
                return None;
            }
            let Found::At(packed) = index.at(block, view.version()) else {
                return Some(Bytes::from_static(&ZEROS));
            };
            if let Some(data) = kept.get(block, packed) {
                return Some(data);
            }
            let spot = index.packing().spot(packed)?;
            let data = self.chain.in_memory(spot.segment, spot.offset, BLOCK as u32)?;
            // Copied: a block must not keep the group that it was written with.
            kept.read(block, packed, || Bytes::copy_from_slice(&data));
            Some(data)
        })
    }

    /// What blocks are, in pieces that each take one request.
    fn plan(&self, blocks: Range<u64>, view: View) -> Result<Vec<Piece>, VolumeError> {
        self.blocks.with_kept(|index, kept| {
            let mut pieces: Vec<Piece> = Vec::new();
            for block in blocks {
                match (self.look(block, view, index, kept)?, pieces.last_mut()) {
                    (Seen::Zeros, Some(Piece::Zeros(count))) => *count += 1,
                    (Seen::Zeros, _) => pieces.push(Piece::Zeros(1)),
                    (Seen::Memory(data), _) => pieces.push(Piece::Memory(data)),
                    (Seen::Drive(spot), Some(Piece::Drive(_, spots))) if follows(spots, spot) => {
                        spots.push(spot)
                    }
                    (Seen::Drive(spot), _) => pieces.push(Piece::Drive(block, vec![spot])),
                }
            }
            Ok(pieces)
        })
    }

    /// Where a block is to be had: what was acknowledged last comes before what the index has, for those who may see it.
    fn look(&self, block: u64, view: View, index: &Index, kept: &mut Kept) -> Result<Seen, VolumeError> {
        let acknowledged = match view {
            View::Plain => self.overlay.borrow().get(block, index.newest()).cloned(),
            View::At(_) => None,
        };
        if let Some(content) = acknowledged {
            return match self.chain.stopped() {
                Some(why) => Err(VolumeError::Stopped(why)),
                None => Ok(content.map_or(Seen::Zeros, Seen::Memory)),
            };
        }
        Ok(match index.at(block, view.version()) {
            Found::At(packed) => match kept.get(block, packed) {
                Some(data) => Seen::Memory(data),
                None => index.packing().spot(packed).map_or(Seen::Zeros, Seen::Drive),
            },
            Found::Zeros => Seen::Zeros,
        })
    }

    /// Blocks that lie one behind the other; if that is not so any more, or one of them is harmed, each by itself.
    async fn read_stretch(
        &self,
        first_block: u64,
        spots: Vec<Spot>,
        view: View,
    ) -> Result<Bytes, VolumeError> {
        match self.ask_chain(first_block, &spots).await {
            Ok(data) => return Ok(data),
            Err(PlaceError::Drive(error)) if spots.len() == 1 => return Err(error.into()),
            Err(_) => {}
        }
        let mut whole = BytesMut::with_capacity(spots.len() * BLOCK);
        for block in first_block..first_block + spots.len() as u64 {
            whole.extend_from_slice(&self.read_one(block, view).await?);
        }
        Ok(whole.freeze())
    }

    async fn read_one(&self, block: u64, view: View) -> Result<Bytes, VolumeError> {
        loop {
            // Where it is now: it has moved since, or is another version.
            let found = match self.plan(block..block + 1, view)?.pop() {
                Some(Piece::Memory(data)) => return Ok(data),
                Some(Piece::Drive(_, spots)) => spots,
                _ => return Ok(Bytes::from(vec![0; BLOCK])),
            };
            match self.ask_chain(block, &found).await {
                Ok(data) => return Ok(data),
                Err(PlaceError::Moved { .. }) => {}
                Err(PlaceError::Damaged { .. }) => return Err(VolumeError::Damaged { block }),
                Err(PlaceError::Drive(error)) => return Err(error.into()),
            }
        }
    }

    async fn ask_chain(&self, first_block: u64, spots: &[Spot]) -> Result<Bytes, PlaceError> {
        let checksums: Vec<u32> = spots.iter().map(|spot| spot.checksum).collect();
        let stretch = Stretch {
            segment: spots[0].segment,
            offset: spots[0].offset,
            record_bytes: BLOCK as u32,
            checksums: &checksums,
            checksum_bits: self.blocks.with(|index| index.packing().checksum_bits()),
        };
        let data = self.chain.read_stretch(stretch).await?;
        self.blocks.with_kept(|index, kept| {
            for (at, spot) in spots.iter().enumerate() {
                // What has another version or another place by now was forgotten, and is not to come back.
                if index.now(first_block + at as u64) != Found::At(spot.packed) {
                    continue;
                }
                // Copied: a block must not keep all that was read with it.
                let copy = || Bytes::copy_from_slice(&data[at * BLOCK..(at + 1) * BLOCK]);
                kept.read(first_block + at as u64, spot.packed, copy);
            }
        });
        Ok(data)
    }
}

fn follows(spots: &[Spot], next: Spot) -> bool {
    let end = spots[0].offset as usize + spots.len() * BLOCK;
    spots.len() < STRETCH_BLOCKS_MAX && spots[0].segment == next.segment && end == next.offset as usize
}

/// Stretches of blocks, each with whether it holds data. It looks when it is asked, so that what changes meanwhile may show; a long
/// stretch comes in parts.
pub struct Extents {
    inner: Rc<Inner>,
    blocks: Range<u64>,
    view: View,
}

impl Extents {
    pub(super) fn new(inner: &Rc<Inner>, blocks: Range<u64>, view: View) -> Result<Self, VolumeError> {
        inner.check_inside(blocks.start, blocks.end.saturating_sub(blocks.start))?;
        Ok(Self { inner: Rc::clone(inner), blocks, view })
    }
}

impl Iterator for Extents {
    type Item = (Range<u64>, bool);

    fn next(&mut self) -> Option<Self::Item> {
        let (overlay, view) = (self.inner.overlay.borrow(), self.view);
        let (blocks, is_data) = self.inner.blocks.with(|index| {
            let newest = index.newest();
            let is_data = |block| match overlay.get(block, newest).filter(|_| view == View::Plain) {
                Some(content) => content.is_some(),
                None => index.at(block, view.version()) != Found::Zeros,
            };
            let looked_at = self.blocks.end.min(self.blocks.start.saturating_add(EXTENT_BLOCKS_MAX));
            let mut rest = self.blocks.start..looked_at;
            let first = is_data(rest.next()?);
            let end = rest.find(|&block| is_data(block) != first).unwrap_or(looked_at);
            Some((self.blocks.start..end, first))
        })?;
        self.blocks.start = blocks.end;
        Some((blocks, is_data))
    }
}
