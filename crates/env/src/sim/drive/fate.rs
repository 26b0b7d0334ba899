//! What a crash or a failed request leaves of a write.

use crate::mix::mix;
use crate::sim::limits::SECTORS_PER_BLOCK;
use crate::sim::random::{Dice, Domain, scale};

use super::DriveId;
use super::image::{Piece, SectorMask, WHOLE};

/// The fates of all writes in one accident.
///
/// A third of the accidents treat all writes alike (all kept or all lost), because the extremes are where protocols
/// fail most; in the others each write is kept, lost, cut off at a sector, or full of holes, by itself.
pub(super) struct Fates {
    dice: Dice,
    entity: u64,
    mood: u64,
    /// Pieces no smaller than blocks: what a killed process leaves on a machine that runs on.
    whole_blocks: bool,
}

impl Fates {
    /// `accident` numbers the accidents of the drive.
    pub(super) fn new(dice: Dice, drive: DriveId, accident: u64, whole_blocks: bool) -> Self {
        let entity = u64::from(drive.0) << 32 ^ accident;
        let mood = dice.below(Domain::DriveCrash, entity, 0, 6);
        Self { dice, entity, mood, whole_blocks }
    }

    fn draw(&self, write: u64, what: u64) -> u64 {
        self.dice.draw(Domain::DriveCrash, self.entity, mix(write).wrapping_add(what))
    }

    /// A coin for something that happens whole or not at all.
    pub(super) fn coin(&self, write: u64) -> bool {
        self.draw(write, 0) & 1 == 0
    }

    /// The sectors of one block of `write` that reach the drive.
    pub(super) fn mask(&self, write: u64, piece: Piece) -> SectorMask {
        match self.mood {
            0 => return 0,
            1 => return WHOLE,
            _ => {}
        }
        let kind = scale(self.draw(write, 1), 8);
        let block_bits = self.draw(write, 16 + piece.index as u64);
        let mask = match kind {
            0 | 1 => 0,
            2 | 3 => WHOLE,
            4 => self.prefix(write, piece),
            5 => (block_bits & 1) as u8 * WHOLE,
            6 => (block_bits >> 8) as u8,
            _ => self.all_but_one(write, piece),
        };
        if self.whole_blocks && mask != WHOLE { 0 } else { mask }
    }

    fn prefix(&self, write: u64, piece: Piece) -> SectorMask {
        let sectors = scale(self.draw(write, 2), (piece.of * SECTORS_PER_BLOCK) as u64 + 1) as usize;
        let here = sectors.saturating_sub(piece.index * SECTORS_PER_BLOCK);
        if here >= SECTORS_PER_BLOCK { WHOLE } else { (1u8 << here) - 1 }
    }

    fn all_but_one(&self, write: u64, piece: Piece) -> SectorMask {
        let sector = scale(self.draw(write, 3), (piece.of * SECTORS_PER_BLOCK) as u64) as usize;
        if sector / SECTORS_PER_BLOCK == piece.index {
            WHOLE ^ 1 << (sector % SECTORS_PER_BLOCK)
        } else {
            WHOLE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_fate_comes_about() {
        let (mut lost, mut whole, mut torn) = (0, 0, 0);
        for accident in 0..100 {
            let fates = Fates::new(Dice::new(1), DriveId(0), accident, false);
            for write in 0..10 {
                let masks: Vec<_> = (0..4).map(|index| fates.mask(write, Piece { index, of: 4 })).collect();
                match masks.as_slice() {
                    [0, 0, 0, 0] => lost += 1,
                    [WHOLE, WHOLE, WHOLE, WHOLE] => whole += 1,
                    _ => torn += 1,
                }
            }
        }
        assert!(lost > 200 && whole > 200 && torn > 200, "{lost} lost, {whole} whole, {torn} torn of 1000");
    }
}
