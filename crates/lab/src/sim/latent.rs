//! Latent damage: bits of one node's drive that have flipped where nobody looks until something is read: in segments that are full, and
//! in groups of the others that a later group vouches for.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Range;

use ithaca_env::limits::BLOCK_BYTES;
use ithaca_env::sim::{Domain, DriveFault, DriveId, Sim};

/// Where the first segment of a drive begins.
const SEGMENTS_START: u64 = 64 << 10;
/// What the last block of a full segment begins with.
const TRAILER_MAGIC: &[u8] = b"ITHT";
/// Where header and trailer say of which segment, chain and lap they are.
const IDENTITY: std::ops::Range<usize> = 12..40;
/// Where a trailer says where the directory begins, and how many runs the segment has.
const TRAILER_DIRECTORY_OFFSET: Range<usize> = 68..72;
const TRAILER_RUN_COUNT: Range<usize> = 80..88;

/// What the first block of a group begins with, and the bytes there that every group has.
const GROUP_MAGIC: &[u8] = b"ITHG";
const GROUP_FIXED_BYTES: u64 = 116;
/// Flags of a group, and where the number of those begins that it repeats.
const IS_CHECKPOINT: u16 = 1;
const IS_OPENED: u16 = 2;
const REPEATS_SHIFT: u32 = 8;
/// A unit's keys come in blocks of so many, one for each stripe.
const KEYS_OF_BLOCK_SHIFT: u32 = 44;

/// Flips a bit of one block in up to `count` full segments of a drive whose segments have `segment_bytes`. How many were harmed.
pub fn harm(sim: &Sim, machine: IpAddr, name: &str, segment_bytes: u64, count: u64) -> u64 {
    let drive = sim.drive(machine, name);
    let Some(size) = sim.drive_size_bytes(drive) else { return 0 };
    let block_bytes = BLOCK_BYTES as u64;
    let mut harmed = 0;
    for start in segments(size, segment_bytes).filter(|&start| is_full(sim, drive, start, segment_bytes)) {
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

/// Harms a block of the footer of up to `count` full segments of a drive, so that it cannot be read or does not match: of the directory, or of
/// the last page. How many were harmed.
pub fn harm_footers(sim: &Sim, machine: IpAddr, name: &str, segment_bytes: u64, count: u64) -> u64 {
    let drive = sim.drive(machine, name);
    let Some(size) = sim.drive_size_bytes(drive) else { return 0 };
    let full = segments(size, segment_bytes).filter(|&start| is_full(sim, drive, start, segment_bytes));
    let mut harmed = 0;
    for start in full.take(count as usize) {
        let draw = |what: u64, bound| sim.dice().below(Domain::User(2), start, what, bound);
        let trailer = sim.peek_drive(drive, start + segment_bytes - BLOCK_BYTES as u64, BLOCK_BYTES);
        let number =
            |at: Range<usize>| trailer[at].iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte));
        let has_pages = number(TRAILER_RUN_COUNT) > 0;
        let back = if has_pages { draw(5, 2) * BLOCK_BYTES as u64 } else { 0 };
        let offset = start + number(TRAILER_DIRECTORY_OFFSET) - back;
        let fault = match draw(6, 2) {
            0 => DriveFault::Unreadable { offset },
            _ => DriveFault::BitRot { offset: offset + draw(7, BLOCK_BYTES as u64), bit: draw(8, 8) as u8 },
        };
        sim.fault_drive(drive, fault);
        harmed += 1;
    }
    harmed
}

/// A group of a segment that is not full.
struct Group {
    at: u64,
    end: u64,
    flags: u16,
    seq: u64,
    incarnation: u64,
    keys: Vec<Range<u64>>,
}

impl Group {
    /// The group that begins with `head` at `at`, if one does.
    fn read(head: &[u8], at: u64) -> Option<Self> {
        let short = |at: usize| Some(u16::from_le_bytes(*head.get(at..)?.first_chunk()?));
        let number = |at: usize| Some(u32::from_le_bytes(*head.get(at..)?.first_chunk()?));
        let long = |at: usize| Some(u64::from_le_bytes(*head.get(at..)?.first_chunk()?));
        let size = |at: usize| Some(number(at)? as usize);
        // Where there is no state, or no census, the number is the highest there is.
        let optional =
            |at: usize| Some(number(at).map(|number| if number == u32::MAX { 0 } else { number })? as usize);
        let (released, state) = (size(92)?, optional(96)?);
        let mut next = 116 + 16 * released + 8 * optional(112)? + state;
        let mut keys = Vec::new();
        for _ in 0..number(88)? {
            let (first, count) = (long(next)?, size(next + 16)?);
            keys.push(first..first + count as u64);
            let has_table = *head.get(next + 30)? == 1;
            next += 32 + usize::from(short(next + 28)?) + if has_table { 8 * count } else { 0 };
        }
        let unaligned = (size(76)? + size(80)?).next_multiple_of(BLOCK_BYTES);
        Some(Self {
            at,
            end: at + (unaligned + size(84)?) as u64,
            flags: short(10)?,
            seq: long(40)?,
            incarnation: long(56)?,
            keys,
        })
    }
}

/// Flips a bit in the heads of up to `count` groups of a unit's drives. Only of such as the last open of the chain vouches for, and no two
/// that follow each other: the one behind it repeats what each says of trims and of the unit itself, and a unit that may have lost that does
/// not start. And not of the last of a block of keys, of which nobody knows then that it was there (docs/format/chain.md).
pub fn harm_groups(
    sim: &Sim,
    machine: IpAddr,
    names: impl Iterator<Item = String>,
    segment_bytes: u64,
    count: u64,
) -> u64 {
    let drives = names.map(|name| sim.drive(machine, &name));
    let of_drive = |drive| groups(sim, drive, segment_bytes).into_iter().map(move |group| (drive, group));
    let found: Vec<(DriveId, Group)> = drives.flat_map(of_drive).collect();
    let opened =
        found.iter().filter(|(_, group)| group.flags & IS_OPENED != 0).map(|(_, group)| group.seq).max();
    let tells = |group: &&Group| group.flags & IS_CHECKPOINT != 0 || group.flags >> REPEATS_SHIFT != 0;
    let told: BTreeSet<u64> =
        found.iter().map(|(_, group)| group).filter(tells).map(|it| it.seq - 1).collect();
    let mut ends: BTreeMap<u64, u64> = BTreeMap::new();
    for keys in found.iter().flat_map(|(_, group)| &group.keys) {
        let end = ends.entry(keys.start >> KEYS_OF_BLOCK_SHIFT).or_default();
        *end = keys.end.max(*end);
    }
    let is_last = |keys: &Range<u64>| keys.end == ends[&(keys.start >> KEYS_OF_BLOCK_SHIFT)];
    let is_fit = |group: &Group| {
        let is_plain = group.flags & ((1 << REPEATS_SHIFT) - 1) == 0;
        let is_told = told.contains(&group.seq);
        is_plain && is_told && Some(group.seq) < opened && !group.keys.iter().any(is_last)
    };
    let mut fit: Vec<&(DriveId, Group)> = found.iter().filter(|(_, group)| is_fit(group)).collect();
    let mut harmed = 0;
    while harmed < count && !fit.is_empty() {
        let draw = |what, bound| sim.dice().below(Domain::User(2), harmed, what, bound);
        let (drive, group) = fit.swap_remove(draw(2, fit.len() as u64) as usize);
        let (offset, bit) = (group.at + draw(3, GROUP_FIXED_BYTES), draw(4, 8) as u8);
        sim.fault_drive(*drive, DriveFault::BitRot { offset, bit });
        fit.retain(|(_, other)| other.seq.abs_diff(group.seq) > 1);
        harmed += 1;
    }
    harmed
}

/// The groups of a drive's segments that are not full: of the others the footer says what is in them.
fn groups(sim: &Sim, drive: DriveId, segment_bytes: u64) -> Vec<Group> {
    let mut found: Vec<Group> = Vec::new();
    let size = sim.drive_size_bytes(drive).unwrap_or(0);
    for start in segments(size, segment_bytes).filter(|&start| !is_full(sim, drive, start, segment_bytes)) {
        let segment = sim.peek_drive(drive, start, segment_bytes as usize);
        let (mut at, mut before) = (BLOCK_BYTES, (0, 0));
        while let Some(head) = segment.get(at..).filter(|head| head.starts_with(GROUP_MAGIC)) {
            let group = Group::read(head, start + at as u64);
            let is_next = |group: &Group| group.seq > before.0 && group.incarnation >= before.1;
            let Some(group) = group.filter(is_next).filter(|_| head[IDENTITY] == segment[IDENTITY]) else {
                break;
            };
            (at, before) = ((group.end - start) as usize, (group.seq, group.incarnation));
            found.push(group);
        }
    }
    found
}

fn is_full(sim: &Sim, drive: DriveId, start: u64, segment_bytes: u64) -> bool {
    let trailer = sim.peek_drive(drive, start + segment_bytes - BLOCK_BYTES as u64, BLOCK_BYTES);
    // A trailer may be left of an earlier use: what is harmed in a segment that is not full stays so until it is.
    let header = sim.peek_drive(drive, start, BLOCK_BYTES);
    trailer.starts_with(TRAILER_MAGIC) && trailer[IDENTITY] == header[IDENTITY]
}

/// Where the segments of a drive of so many bytes begin.
fn segments(size: u64, segment_bytes: u64) -> impl Iterator<Item = u64> {
    let starts = (0..).map(move |nth| SEGMENTS_START + nth * segment_bytes);
    starts.take_while(move |start| start + segment_bytes <= size)
}
