//! Which page lies where on the flash, and the cleaning that makes room.
//!
//! A page is never written in place: it goes to the open block of some channel, and its old place is dead. When a channel
//! runs out of erased blocks it cleans: the block with the fewest living pages is the victim, these move to the open
//! block, the victim is erased. Cleaning is paid as one goes: each page that comes moves as many as keep the victim done
//! in time, so nobody waits for a whole block.
//!
//! Every step is O(log blocks), moves amortised over the writes that they make room for. Memory follows the size of the
//! drive: 8 bytes a page, of which the system gives what is touched.

use std::collections::{BTreeSet, VecDeque};

use crate::limits::BLOCK_BYTES;

use super::SsdOptions;

/// Blocks that a channel keeps beyond its living pages: the open one, one to move into, one that is being cleaned.
const BLOCKS_KEPT: u32 = 3;

/// What a write made the channel do besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cleaning {
    /// Pages moved.
    pub(super) moves: u32,
    /// Blocks erased.
    pub(super) erases: u32,
}

/// A block whose living pages are on the move.
struct Victim {
    block: u32,
    /// Pages of it that were looked at.
    looked_at: u32,
    /// Pages to move for each page that comes.
    pace: u32,
}

struct Channel {
    blocks: u32,
    /// Living pages.
    live: u64,
    open: u32,
    /// Pages of the open block that are written.
    filled: u32,
    erased: VecDeque<u32>,
    /// Full blocks by living pages.
    full: BTreeSet<(u32, u32)>,
    victim: Option<Victim>,
}

/// A value that may be absent, in 4 bytes of which all are 0 then, so that fresh memory from the system will do.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Slot(u32);

impl Slot {
    fn of(value: u32) -> Self {
        Slot(value + 1)
    }

    fn get(self) -> Option<u32> {
        self.0.checked_sub(1)
    }
}

pub(super) struct Pages {
    options: SsdOptions,
    /// For each page of the drive, its place: block * pages_per_block + page. Block b is on channel b % channels.
    places: Vec<Slot>,
    /// For each place, the page that lives there.
    owners: Vec<Slot>,
    /// Living pages of each block.
    live: Vec<u32>,
    erases: Vec<u32>,
    channels: Vec<Channel>,
    erases_max: u32,
}

impl Pages {
    /// Flash for a drive of `size_bytes`, all erased.
    pub(super) fn new(options: SsdOptions, size_bytes: u64) -> Self {
        let mut pages = Self {
            options,
            places: Vec::new(),
            owners: Vec::new(),
            live: Vec::new(),
            erases: Vec::new(),
            channels: Vec::new(),
            erases_max: 0,
        };
        pages.grow(size_bytes);
        pages
    }

    /// More flash for a drive that has `size_bytes` from now on.
    pub(super) fn grow(&mut self, size_bytes: u64) {
        let SsdOptions { channels, pages_per_block, spare_percent, .. } = self.options;
        let pages = size_bytes.div_ceil(BLOCK_BYTES as u64);
        let a_row = u64::from(channels) * u64::from(pages_per_block);
        let spared = (pages * (100 + spare_percent)).div_ceil(100 * a_row);
        let rows = spared.max(pages.div_ceil(a_row) + 1) + u64::from(BLOCKS_KEPT);
        assert!(rows * a_row < u64::from(u32::MAX), "an SSD of {size_bytes} bytes is larger than the model");
        let (rows, before) = (rows as u32, self.live.len() as u32 / channels);
        if pages > self.places.len() as u64 {
            resize_zeroed(&mut self.places, pages as usize);
        }
        if rows <= before {
            return;
        }
        resize_zeroed(&mut self.owners, (u64::from(rows) * a_row) as usize);
        self.live.resize((rows * channels) as usize, 0);
        self.erases.resize((rows * channels) as usize, 0);
        for channel in 0..channels {
            let mut added = (before..rows).map(|row| row * channels + channel);
            match self.channels.get_mut(channel as usize) {
                Some(known) => {
                    known.blocks = rows;
                    known.erased.extend(added);
                }
                None => {
                    let open = added.next().expect("rows > before");
                    let (erased, full) = (added.collect(), BTreeSet::new());
                    let fresh =
                        Channel { blocks: rows, live: 0, open, filled: 0, erased, full, victim: None };
                    self.channels.push(fresh);
                }
            }
        }
    }

    /// The channel that a page is on; `None` if it was never written or is discarded.
    pub(super) fn channel_of(&self, page: u64) -> Option<usize> {
        let place = self.places.get(page as usize)?.get()?;
        Some((place / self.options.pages_per_block % self.options.channels) as usize)
    }

    /// Whether the channel may take another living page. Some channel always may.
    pub(super) fn has_room(&self, channel: usize) -> bool {
        let channel = &self.channels[channel];
        let most = u64::from(channel.blocks - BLOCKS_KEPT) * u64::from(self.options.pages_per_block);
        channel.live < most
    }

    /// Writes a page to a channel that has room; what that makes the channel do besides.
    pub(super) fn write(&mut self, page: u64, channel: usize) -> Cleaning {
        self.discard(page);
        let mut cleaning = Cleaning::default();
        self.place(page as u32, channel, &mut cleaning);
        let pace = self.channels[channel].victim.as_ref().map_or(0, |victim| victim.pace);
        self.clean(channel, pace, &mut cleaning);
        cleaning
    }

    /// The page is not needed any more.
    pub(super) fn discard(&mut self, page: u64) {
        let Some(place) = self.places.get(page as usize).and_then(|place| place.get()) else { return };
        self.places[page as usize] = Slot::default();
        self.kill(place);
    }

    /// Erases of the block that was erased most.
    pub(super) fn erases_max(&self) -> u64 {
        u64::from(self.erases_max)
    }

    /// The place holds nothing living any more.
    fn kill(&mut self, place: u32) {
        let block = place / self.options.pages_per_block;
        self.owners[place as usize] = Slot::default();
        let channel = &mut self.channels[(block % self.options.channels) as usize];
        channel.live -= 1;
        let live = &mut self.live[block as usize];
        if channel.full.remove(&(*live, block)) {
            channel.full.insert((*live - 1, block));
        }
        *live -= 1;
    }

    /// Puts a page into the open block.
    fn place(&mut self, page: u32, channel: usize, cleaning: &mut Cleaning) {
        if self.channels[channel].filled == self.options.pages_per_block {
            self.open_another(channel, cleaning);
        }
        let state = &mut self.channels[channel];
        let place = state.open * self.options.pages_per_block + state.filled;
        state.filled += 1;
        state.live += 1;
        self.live[state.open as usize] += 1;
        self.owners[place as usize] = Slot::of(page);
        self.places[page as usize] = Slot::of(place);
    }

    fn open_another(&mut self, channel: usize, cleaning: &mut Cleaning) {
        let state = &mut self.channels[channel];
        state.full.insert((self.live[state.open as usize], state.open));
        state.open = state.erased.pop_front().expect("an erased block is kept to move into");
        state.filled = 0;
        if state.erased.len() <= 1 {
            self.choose_victim(channel);
        }
        if self.channels[channel].erased.is_empty() {
            self.clean(channel, u32::MAX, cleaning);
        }
    }

    fn choose_victim(&mut self, channel: usize) {
        let state = &mut self.channels[channel];
        if state.victim.is_some() {
            return;
        }
        let Some((live, block)) = state.full.pop_first() else { return };
        let gain = self.options.pages_per_block - live;
        assert!(gain > 0, "the fewest living pages are a whole block, although there is room");
        state.victim = Some(Victim { block, looked_at: 0, pace: live.div_ceil(gain).max(1) });
    }

    /// Moves up to `pages` living pages of the victim, and erases it when none is left.
    fn clean(&mut self, channel: usize, pages: u32, cleaning: &mut Cleaning) {
        let mut moved = 0;
        // Asked for anew each time: a move that opens another block may have to finish the victim itself.
        while let Some(victim) = &mut self.channels[channel].victim {
            let block = victim.block;
            if self.live[block as usize] == 0 {
                self.erase(channel, block);
                cleaning.erases += 1;
                return;
            }
            if moved == pages {
                return;
            }
            let place = block * self.options.pages_per_block + victim.looked_at;
            victim.looked_at += 1;
            if let Some(page) = self.owners[place as usize].get() {
                self.kill(place);
                self.place(page, channel, cleaning);
                cleaning.moves += 1;
                moved += 1;
            }
        }
    }

    fn erase(&mut self, channel: usize, block: u32) {
        let state = &mut self.channels[channel];
        state.victim = None;
        state.erased.push_back(block);
        let erases = &mut self.erases[block as usize];
        *erases += 1;
        self.erases_max = self.erases_max.max(*erases);
    }
}

/// Fresh zeroed memory instead of `Vec::resize`, which would touch every page of it.
fn resize_zeroed(slots: &mut Vec<Slot>, len: usize) {
    if slots.is_empty() {
        *slots = vec![Slot::default(); len];
    } else {
        slots.resize(len, Slot::default());
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testbed::scattered;
    use super::*;

    const SIZE: u64 = 256 << 20;
    const PAGES: u64 = SIZE / 4096;

    /// Writes as the drive does: round the channels, past those without room.
    struct Writer {
        pages: Pages,
        turn: usize,
        total: Cleaning,
    }

    impl Writer {
        fn new() -> Self {
            let pages = Pages::new(SsdOptions::default(), SIZE);
            Self { pages, turn: 0, total: Cleaning::default() }
        }

        fn write(&mut self, page: u64) {
            let turn = self.turn;
            let channel =
                (turn..turn + 8).map(|channel| channel % 8).find(|&channel| self.pages.has_room(channel));
            let channel = channel.expect("some channel has room");
            let cleaning = self.pages.write(page, channel);
            self.turn = channel + 1;
            self.total.moves += cleaning.moves;
            self.total.erases += cleaning.erases;
        }

        /// Recounts everything from the map alone.
        fn check(&self) {
            let pages = &self.pages;
            let per_block = pages.options.pages_per_block as usize;
            let mut live = vec![0; pages.live.len()];
            for (page, place) in pages.places.iter().enumerate() {
                if let Some(place) = place.get() {
                    assert!(pages.owners[place as usize] == Slot::of(page as u32), "page {page}");
                    live[place as usize / per_block] += 1;
                }
            }
            assert_eq!(live, pages.live);
            let owned = pages.owners.iter().filter(|owner| owner.get().is_some()).count() as u32;
            assert_eq!(owned, live.iter().sum::<u32>());
            for channel in &pages.channels {
                assert!(channel.full.iter().all(|&(count, block)| live[block as usize] == count));
                let kept =
                    1 + channel.full.len() + channel.erased.len() + usize::from(channel.victim.is_some());
                assert_eq!(kept, channel.blocks as usize, "every block is somewhere");
            }
        }
    }

    #[test]
    fn overwriting_in_order_moves_nothing() {
        let mut writer = Writer::new();
        for round in 0..4 {
            (0..PAGES).for_each(|page| writer.write(page));
            assert_eq!(writer.total.moves, 0, "round {round}");
        }
        assert!(writer.total.erases > 600, "{:?}", writer.total);
        writer.check();
    }

    #[test]
    fn overwriting_at_random_writes_several_pages_for_each_that_comes() {
        let mut writer = Writer::new();
        (0..PAGES).for_each(|page| writer.write(page));
        (0..PAGES * 2).for_each(|n| writer.write(scattered(n, PAGES, 1)));
        let before = writer.total.moves;
        (0..PAGES).for_each(|n| writer.write(scattered(n + PAGES * 2, PAGES, 1)));
        let amplification = 1.0 + f64::from(writer.total.moves - before) / PAGES as f64;
        assert!((2.0..9.0).contains(&amplification), "{amplification}");
        writer.check();
    }

    #[test]
    fn discarded_pages_are_not_moved() {
        let run = |discard: bool| {
            let mut writer = Writer::new();
            (0..PAGES).for_each(|page| writer.write(page));
            if discard {
                (0..PAGES / 2).for_each(|page| writer.pages.discard(page * 2));
            }
            (0..PAGES).for_each(|n| writer.write(scattered(n, PAGES / 2, 1) * 2 + 1));
            writer.check();
            writer.total.moves
        };
        let (kept, discarded) = (run(false), run(true));
        assert!(discarded * 3 < kept, "{kept} moves, {discarded} with half discarded");
    }

    #[test]
    fn writes_that_kill_the_pages_of_one_channel_only_find_room_on_every_one() {
        let mut writer = Writer::new();
        (0..PAGES).for_each(|page| writer.write(page));
        for round in 0..6 {
            let there: Vec<u64> =
                (0..PAGES).filter(|&page| writer.pages.channel_of(page) == Some(round % 8)).collect();
            there.into_iter().for_each(|page| writer.write(page));
        }
        writer.check();
    }

    #[test]
    fn a_drive_that_grows_keeps_its_pages() {
        let mut writer = Writer::new();
        (0..PAGES).for_each(|n| writer.write(scattered(n, PAGES, 1)));
        let channel = writer.pages.channel_of(scattered(5, PAGES, 1));
        writer.pages.grow(SIZE * 2);
        assert_eq!(writer.pages.channel_of(scattered(5, PAGES, 1)), channel);
        (PAGES..PAGES * 2).for_each(|page| writer.write(page));
        writer.check();
    }

    #[test]
    fn wear_is_even_under_random_overwrites() {
        let mut writer = Writer::new();
        (0..PAGES * 4).for_each(|n| writer.write(scattered(n, PAGES, 1)));
        let mean = u64::from(writer.total.erases) / writer.pages.live.len() as u64;
        let most = writer.pages.erases_max();
        assert!(mean >= 2 && most <= mean * 6, "{mean} on average, {most} at the most");
    }
}
