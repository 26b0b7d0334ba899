//! Everything that a power cut at one moment may leave of a drive, state by state.
//!
//! A [`Doubt`] holds what is stable and, above it, the requests that are not. A [`Kept`] says of each piece of them which sectors
//! reach the drive; a [`Content`] is the drive that is left, which can be put in place of one of another world. The
//! simulation that a doubt was taken of goes on as if nothing had been.
//!
//! ```text
//!   a world at a moment ─► Doubt ─► Kept: of these pieces these sectors ─► Content ─► a drive of another world
//! ```
//!
//! Pieces are put on the drive in the order in which a [power cut](super) does it: writes that completed, then those under way.
//! Discards under way change nothing; see docs/simulator.md.

use crate::sim::driver::Sim;
use crate::sim::random::Dice;

use super::fate::Fates;
use super::image::{self, Block, Image, Piece, SectorMask, WHOLE};
use super::io::{Op, Request};
use super::{DriveId, DriveState};

/// What a power cut at one moment may leave of a drive.
#[derive(Clone)]
pub struct Doubt {
    stable: Image,
    size_bytes: Option<u64>,
    pieces: Vec<Unstable>,
}

/// A piece of a request that is not stable.
#[derive(Clone)]
struct Unstable {
    /// Tells requests apart, and decides their fates.
    request: u64,
    part: Part,
}

#[derive(Clone)]
enum Part {
    /// One block of a write.
    Block { piece: Piece, block: u64, data: Block },
    /// The drive grows; whole or not at all.
    Growth { size_bytes: u64 },
}

/// Which sectors of the pieces in doubt reach the drive. Two that are equal leave the same bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kept(Vec<SectorMask>);

impl Kept {
    /// Whether a block is there in part: some of its sectors new, others as before.
    pub fn is_torn(&self) -> bool {
        self.0.iter().any(|mask| *mask != 0 && *mask != WHOLE)
    }
}

/// What a drive holds.
#[derive(Clone)]
pub struct Content {
    stable: Image,
    size_bytes: Option<u64>,
}

impl Doubt {
    /// Writes and growths that a power cut may or may not keep.
    pub fn requests(&self) -> usize {
        self.requests_in_order().len()
    }

    fn requests_in_order(&self) -> Vec<u64> {
        let mut requests: Vec<u64> = self.pieces.iter().map(|piece| piece.request).collect();
        requests.dedup();
        requests
    }

    /// Of the requests, in order, those whose bit in `chosen` is set, whole; from the 65th on none.
    pub fn subset(&self, chosen: u64) -> Kept {
        let requests = self.requests_in_order();
        let is_kept = |request| {
            let at = requests.iter().position(|other| *other == request);
            at.is_some_and(|at| at < 64 && chosen & (1 << at) != 0)
        };
        Kept(self.pieces.iter().map(|piece| if is_kept(piece.request) { WHOLE } else { 0 }).collect())
    }

    /// What one power cut leaves, by a seed: each request whole, lost, cut off somewhere, or with holes. In pieces of 512 bytes,
    /// or of whole blocks of 4 KiB.
    pub fn torn(&self, seed: u64, whole_blocks: bool) -> Kept {
        let fates = Fates::new(Dice::new(seed), DriveId(0), 0, whole_blocks);
        let mask = |piece: &Unstable| match piece.part {
            Part::Block { piece: place, .. } => fates.mask(piece.request, place),
            Part::Growth { .. } => u8::from(fates.coin(piece.request)) * WHOLE,
        };
        Kept(self.pieces.iter().map(mask).collect())
    }

    /// The drive with this of the doubt on it.
    ///
    /// # Panics
    /// If `kept` was made for another doubt with other pieces.
    pub fn left(&self, kept: &Kept) -> Content {
        assert_eq!(kept.0.len(), self.pieces.len(), "made for another doubt");
        let mut left = Content { stable: self.stable.clone(), size_bytes: self.size_bytes };
        for (piece, &mask) in self.pieces.iter().zip(&kept.0) {
            match &piece.part {
                Part::Block { block, data, .. } => left.stable.overlay(*block, data, mask),
                Part::Growth { size_bytes } if mask == WHOLE => {
                    left.size_bytes = left.size_bytes.max(Some(*size_bytes));
                }
                Part::Growth { .. } => {}
            }
        }
        left
    }
}

impl Sim {
    /// What a power cut now might leave of a drive. Nothing happens to the drive.
    pub fn doubt(&self, drive: DriveId) -> Doubt {
        self.world.drives.borrow_mut().state(drive).doubt()
    }

    /// Puts a content in place of that of a drive, which nobody may have open.
    ///
    /// # Panics
    /// If somebody has it open for writing.
    pub fn set_drive_content(&self, drive: DriveId, content: Content) {
        let mut drives = self.world.drives.borrow_mut();
        let state = drives.state(drive);
        assert!(state.holder.is_none(), "a drive in use keeps its content");
        state.replace();
        state.image = content.stable;
        if let Some(size_bytes) = content.size_bytes {
            state.resize(size_bytes);
        }
    }
}

impl DriveState {
    fn doubt(&self) -> Doubt {
        let (stable, unsynced) = self.image.split();
        let mut pieces: Vec<Unstable> = unsynced
            .into_iter()
            .map(|(request, block, piece, data)| Unstable {
                request,
                part: Part::Block { piece, block, data },
            })
            .collect();
        pieces.sort_by_key(|piece| piece.request);
        let mut under_way: Vec<&Request> = self.in_flight.iter().map(|(_, request)| request).collect();
        under_way.sort_by_key(|request| request.number);
        for request in under_way {
            // Counted apart from completed writes, as at a crash.
            let number = u64::MAX - request.number;
            let unstable = |part| Unstable { request: number, part };
            match &request.op {
                Op::Write { data, .. } => pieces.extend(
                    image::pieces(request.offset, data)
                        .map(|(piece, block, data)| unstable(Part::Block { piece, block, data })),
                ),
                Op::Grow { size_bytes } => pieces.push(unstable(Part::Growth { size_bytes: *size_bytes })),
                Op::Read { .. } | Op::Sync { .. } | Op::Discard { .. } => {}
            }
        }
        Doubt { stable, size_bytes: self.size_bytes, pieces }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::drive::{Durability, OpenDrive};
    use crate::limits::BLOCK_BYTES;
    use crate::sim::Sim;

    const MACHINE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn first_bytes(doubt: &Doubt, kept: &Kept) -> Vec<u8> {
        let bytes = doubt.left(kept).stable.read(0, 3 * BLOCK_BYTES);
        bytes.iter().step_by(BLOCK_BYTES).copied().collect()
    }

    #[test]
    fn a_doubt_has_every_write_that_a_power_cut_may_take_back_and_no_other() {
        let sim = Sim::new(1);
        let process = sim.process("p", MACHINE);
        let env = sim.env(process);
        sim.block_on(process, async move {
            let open = OpenDrive { path: "d".into(), create_bytes: Some(1 << 20), read_only: false };
            let drive = env.open_drive(open).await.expect("it opens");
            let block = |fill: u8| bytes::Bytes::from(vec![fill; BLOCK_BYTES]);
            drive.write(0, block(1), Durability::Durable).await.expect("written");
            drive.write(4096, block(2), Durability::Volatile).await.expect("written");
            let under_way = drive.write(8192, block(3), Durability::Durable);
            env.spawn(async move { drop(under_way.await) });
        });
        // The last write begins and does not end.
        let doubt = sim.doubt(sim.drive(MACHINE, "d"));
        assert_eq!(doubt.requests(), 2);
        assert_eq!(first_bytes(&doubt, &doubt.subset(0)), [1, 0, 0]);
        assert_eq!(first_bytes(&doubt, &doubt.subset(0b01)), [1, 2, 0]);
        assert_eq!(first_bytes(&doubt, &doubt.subset(0b10)), [1, 0, 3]);
        assert_eq!(first_bytes(&doubt, &doubt.subset(0b11)), [1, 2, 3]);
        let torn: Vec<Kept> = (0..100).map(|seed| doubt.torn(seed, false)).collect();
        assert!(torn.iter().any(Kept::is_torn), "sectors of a block");
        assert!(!(0..100).any(|seed| doubt.torn(seed, true).is_torn()), "whole blocks");
    }
}
