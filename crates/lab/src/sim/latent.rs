//! Latent damage: bits of one node's drive that have flipped in segments that are full, where nobody looks until something is read.

use std::net::IpAddr;

use ithaca_env::limits::BLOCK_BYTES;
use ithaca_env::sim::{Domain, DriveFault, Sim};

/// Where the first segment of a drive begins.
const SEGMENTS_START: u64 = 64 << 10;
/// What the last block of a full segment begins with.
const TRAILER_MAGIC: &[u8] = b"ITHT";
/// Where header and trailer say of which segment, chain and lap they are.
const IDENTITY: std::ops::Range<usize> = 12..40;

/// Flips a bit of one block in up to `count` full segments of a drive whose segments have `segment_bytes`. How many were harmed.
pub fn harm(sim: &Sim, machine: IpAddr, name: &str, segment_bytes: u64, count: u64) -> u64 {
    let drive = sim.drive(machine, name);
    let Some(size) = sim.drive_size_bytes(drive) else { return 0 };
    let block_bytes = BLOCK_BYTES as u64;
    let starts = (0..).map(|nth| SEGMENTS_START + nth * segment_bytes);
    let starts = starts.take_while(|start| start + segment_bytes <= size);
    let is_full = |start: &u64| {
        let trailer = sim.peek_drive(drive, start + segment_bytes - block_bytes, BLOCK_BYTES);
        // A trailer may be left of an earlier use: what is harmed in a segment that is not full stays so until it is.
        let header = sim.peek_drive(drive, *start, BLOCK_BYTES);
        trailer.starts_with(TRAILER_MAGIC) && trailer[IDENTITY] == header[IDENTITY]
    };
    let mut harmed = 0;
    for start in starts.filter(is_full) {
        let draw = |what: u64, bound| sim.dice().below(Domain::User(2), start, what, bound);
        // Any block but the header, if something was written there.
        let block = 1 + draw(0, segment_bytes / block_bytes - 1);
        let offset = start + block * block_bytes;
        let is_blank = sim.peek_drive(drive, offset, BLOCK_BYTES).iter().all(|&byte| byte == 0);
        if harmed < count && !is_blank {
            sim.fault_drive(
                drive,
                DriveFault::BitRot { offset: offset + draw(1, block_bytes), bit: draw(2, 8) as u8 },
            );
            harmed += 1;
        }
    }
    harmed
}
