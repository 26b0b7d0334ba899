//! A volume on a chained log whose tail drive is being filled, with the chain's own cache structures: what Gecko's figures 6 to 8
//! are about.
//!
//! A write of a block goes to the next place of the log, and to memory (first in, first out). What leaves memory and was not written
//! again meanwhile goes to the SSD (LRU over lines). A read of a block whose latest place is on the tail drive is a hit of the
//! memory, of the SSD, or a miss, which costs a read of the tail drive and is then put on the SSD. Reads of blocks that are not on the tail drive
//! do not count, as in the text: they disturb no write.

use std::collections::BTreeMap;
use std::io;
use std::iter::Peekable;
use std::path::Path;

use ithaca_chain::limits::CACHE_BATCH_LINES;
use ithaca_chain::{BlockKey, Found, Lines, Offered, Recent};

use crate::trace::{self, Generator, PROFILES, Profile, Request};

/// Parts of the tail drive that are counted apart.
pub const PARTS: usize = 5;
/// Blocks of a line with its head.
const LINE_BLOCKS: u64 = 16;
/// Bytes of a block.
const BLOCK_BYTES: usize = 4096;

/// What happened while a part of the tail drive was filled. In blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Reads that memory answered.
    pub memory: u64,
    /// Reads that the SSD answered.
    pub ssd: u64,
    /// Reads that the tail drive had to answer.
    pub missed: u64,
    /// Writes to the volume.
    pub writes: u64,
    /// Of those, written again before they left memory.
    pub coalesced: u64,
    /// Written to the SSD: from memory and after a miss.
    pub to_ssd: u64,
}

impl Part {
    fn plus(self, other: Part) -> Part {
        Part {
            memory: self.memory + other.memory,
            ssd: self.ssd + other.ssd,
            missed: self.missed + other.missed,
            writes: self.writes + other.writes,
            coalesced: self.coalesced + other.coalesced,
            to_ssd: self.to_ssd + other.to_ssd,
        }
    }

    /// Reads of blocks on the tail drive.
    pub fn reads(&self) -> u64 {
        self.memory + self.ssd + self.missed
    }

    /// Percent of them that memory answered.
    pub fn memory_percent(&self) -> f64 {
        100.0 * self.memory as f64 / self.reads().max(1) as f64
    }

    /// Percent of them that the tail drive did not have to answer.
    pub fn hit_percent(&self) -> f64 {
        100.0 * (self.memory + self.ssd) as f64 / self.reads().max(1) as f64
    }
}

/// A tail drive that was filled.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filled {
    /// Its parts, in the order in which they were filled.
    pub parts: [Part; PARTS],
}

impl Filled {
    /// All of it.
    pub fn whole(&self) -> Part {
        self.parts.into_iter().fold(Part::default(), Part::plus)
    }
}

/// How large everything is.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Blocks of the tail drive.
    pub tail_blocks: u64,
    /// Blocks of memory; in the text a 256th of the tail drive's, as 2 GB are of 512 GB.
    pub memory_blocks: u64,
    /// The tail drive is this many times as large as the SSD: 16 as 512 GB are to 32 GB.
    pub tail_of_ssd: u64,
}

impl Sizes {
    /// As in the text, but for the scale.
    pub fn of_the_text(tail_blocks: u64) -> Self {
        Self { tail_blocks, memory_blocks: tail_blocks / 256, tail_of_ssd: 16 }
    }

    fn lines(&self) -> u32 {
        (self.tail_blocks / self.tail_of_ssd / LINE_BLOCKS) as u32
    }
}

struct Emulator {
    /// The latest place of each block of the volume, or none.
    places: Vec<u64>,
    next_place: u64,
    memory: Recent<u64, usize>,
    ssd: Lines<()>,
    batch_lines: usize,
}

/// No place.
const NOWHERE: u64 = u64::MAX;

impl Emulator {
    fn new(sizes: Sizes, volume_blocks: usize) -> Self {
        let lines = sizes.lines().max(4);
        // As large batches as in a chain, but no larger part of the SSD than those of an SSD of 2,048 lines.
        let batch_lines = (lines as usize / 128).clamp(1, CACHE_BATCH_LINES);
        Self {
            places: vec![NOWHERE; volume_blocks],
            next_place: 0,
            memory: Recent::new(sizes.memory_blocks as usize * BLOCK_BYTES),
            ssd: Lines::new(lines, 2 * batch_lines),
            batch_lines,
        }
    }

    fn write(&mut self, block: usize, part: &mut Part) {
        let place = self.next_place;
        self.next_place += 1;
        self.places[block] = place;
        part.writes += 1;
        let (places, mut evicted) = (&self.places, None);
        self.memory.add(place, block, BLOCK_BYTES, |place, block| {
            let is_latest = places[block] == place;
            part.coalesced += u64::from(!is_latest);
            evicted = is_latest.then_some(place).or(evicted);
        });
        if let Some(place) = evicted {
            self.offer(place, part);
        }
    }

    fn read(&mut self, block: usize, part: &mut Part) {
        let place = self.places[block];
        if place == NOWHERE {
            return;
        }
        if self.memory.oldest().is_some_and(|oldest| oldest <= place) {
            part.memory += 1;
            return;
        }
        match self.ssd.find(key(place)) {
            Some(Found::Memory(()) | Found::Line { .. }) => part.ssd += 1,
            None => {
                part.missed += 1;
                self.offer(place, part);
            }
        }
    }

    /// Puts a block on the SSD, whose writes take no time here.
    fn offer(&mut self, place: u64, part: &mut Part) {
        if self.ssd.offer(key(place), || ()) == Offered::Taken {
            part.to_ssd += 1;
        }
        for write in self.ssd.take_batch(self.batch_lines) {
            self.ssd.written(write.line, true);
        }
    }
}

/// The log is one segment.
fn key(place: u64) -> BlockKey {
    BlockKey { chain: 0, segment: 0, lap: 1, block: place as u32 }
}

/// Plays requests for a volume of `volume_blocks` until the tail drive is full, or they end.
pub fn fill(sizes: Sizes, volume_blocks: u64, requests: impl Iterator<Item = Request>) -> Filled {
    let mut emulator = Emulator::new(sizes, volume_blocks as usize);
    let mut filled = Filled::default();
    for request in requests {
        for block in request.block..request.block + request.blocks {
            let part = (emulator.next_place * PARTS as u64 / sizes.tail_blocks) as usize;
            if part == PARTS && request.is_write {
                return filled;
            }
            // Reads that follow the last write count as those before it.
            let part = part.min(PARTS - 1);
            match request.is_write {
                true => emulator.write(block as usize, &mut filled.parts[part]),
                false => emulator.read(block as usize, &mut filled.parts[part]),
            }
        }
    }
    filled
}

/// Traces played together, each in its own part of one volume.
pub struct Mix {
    /// Its members' letters.
    pub name: String,
    traces: Vec<(u64, Peekable<Generator>)>,
    /// Blocks of the volume.
    pub blocks: u64,
}

impl Mix {
    fn new(members: &[Profile], tail_blocks: u64, seed: u64) -> Self {
        let mut mix = Self { name: String::new(), traces: Vec::new(), blocks: 0 };
        for (number, member) in members.iter().enumerate() {
            let generator = Generator::new(*member, tail_blocks, seed + 100 * number as u64);
            let start = mix.blocks;
            mix.blocks += generator.blocks();
            mix.traces.push((start, generator.peekable()));
            mix.name.push(member.name);
        }
        mix
    }
}

impl Iterator for Mix {
    type Item = Request;

    /// The request that comes first; of two at one time that of the earlier member.
    fn next(&mut self) -> Option<Request> {
        let with_times =
            self.traces.iter_mut().map(|(start, trace)| (trace.peek().map(|it| it.at_ns), *start, trace));
        let (_, start, trace) = with_times.min_by_key(|(at_ns, ..)| at_ns.unwrap_or(u64::MAX))?;
        trace.next().map(|request| Request { block: request.block + start, ..request })
    }
}

/// As many mixes as the text has: 8 of eight of the nine traces, 13 of four of the first five, some of which are in a mix twice.
pub fn mixes(tail_blocks: u64) -> Vec<Mix> {
    let eight = (0..8).map(|left_out| (0..9).filter(|&it| it != left_out).collect::<Vec<usize>>());
    let four = [
        [0, 1, 2, 3],
        [0, 1, 2, 4],
        [0, 1, 3, 4],
        [0, 2, 3, 4],
        [1, 2, 3, 4],
        [1, 1, 2, 4],
        [1, 2, 2, 4],
        [2, 2, 4, 4],
        [2, 3, 3, 4],
        [1, 3, 3, 4],
        [3, 3, 4, 4],
        [2, 4, 4, 4],
        [1, 4, 4, 4],
    ];
    let all = eight.chain(four.map(|four| four.to_vec()));
    all.enumerate()
        .map(|(number, members)| {
            let members: Vec<Profile> = members.into_iter().map(|it| PROFILES[it]).collect();
            Mix::new(&members, tail_blocks, 1000 * number as u64)
        })
        .collect()
}

/// Fills a tail drive with each of the mixes.
pub fn fill_with_mixes(sizes: Sizes) -> Vec<(String, Filled)> {
    let all = mixes(sizes.tail_blocks).into_iter();
    all.map(|mix| (mix.name.clone(), fill(sizes, mix.blocks, mix))).collect()
}

/// Plays a trace of a file over a tail drive of `tail_blocks`, or of as many as it writes if these are fewer; memory and SSD in proportion. Gives
/// the file's name too. Errors: it cannot be read, or is no trace.
pub fn fill_with_trace(tail_blocks: u64, file: &Path) -> io::Result<(String, Filled)> {
    let requests = trace::read(file)?;
    let blocks = |request: &Request| request.block..request.block + request.blocks;
    // Disks are large and mostly not touched: what is gets numbers without gaps.
    let mut numbers: BTreeMap<u64, u64> = requests.iter().flat_map(blocks).map(|block| (block, 0)).collect();
    numbers.values_mut().zip(0..).for_each(|(number, next)| *number = next);
    let written: u64 = requests.iter().filter(|request| request.is_write).map(|request| request.blocks).sum();
    let sizes = Sizes::of_the_text(written.min(tail_blocks));
    let one = |request: &Request| {
        let (at_ns, is_write) = (request.at_ns, request.is_write);
        blocks(request).map(move |block| Request { at_ns, is_write, block, blocks: 1 }).collect::<Vec<_>>()
    };
    let volume_blocks = numbers.len() as u64;
    let renumbered = requests.iter().flat_map(one).map(|it| Request { block: numbers[&it.block], ..it });
    let name = file
        .file_name()
        .map_or_else(|| file.display().to_string(), |name| name.to_string_lossy().replace(',', " "));
    Ok((name, fill(sizes, volume_blocks, renumbered)))
}
