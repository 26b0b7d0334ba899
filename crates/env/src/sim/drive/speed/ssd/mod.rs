//! An SSD: flash on several channels behind one link, written out of place.
//!
//! A read goes to the channel that its pages lie on. A write goes over the link into the write buffer, from there to the
//! channels in turn; a volatile write ends when the buffer has it, a durable one when the flash has it, a sync when the
//! buffer is empty. [`Pages`] says where pages lie and what cleaning a write causes; [`Channel`] when that is done, and how
//! reads and writes are in each other's way. Every end is decided when the request comes.
//!
//! Not modelled: programs that a power cut breaks off, the loss of the map's own pages in a power cut, space lost to programs that are not full, bad blocks,
//! a cache of fast cells, heat.

mod channel;
mod options;
mod pages;

use std::collections::{BTreeSet, VecDeque};

use crate::Time;
use crate::limits::BLOCK_BYTES;

use super::{Access, Agenda, MediaStats, RequestKey, SpeedModel, SpeedRequest, transfer_ns};

pub use options::SsdOptions;

use channel::{Channel, Costs};
use pages::Pages;

/// The model of an SSD.
pub struct Ssd {
    options: SsdOptions,
    costs: Costs,
    pages: Pages,
    channels: Vec<Channel>,
    /// Pages written so far, which says whose turn it is.
    turn: u64,
    controller_free: Time,
    /// Work of the link in each direction: to the host, from the host.
    link_free: [Time; 2],
    /// When the last pages to enter the write buffer leave it, as many as it holds.
    leaving: VecDeque<Time>,
    media: MediaStats,
}

impl Ssd {
    /// A drive fresh from the factory. Panics if the numbers contradict each other.
    pub fn new(options: SsdOptions) -> Self {
        options.check();
        Self {
            options,
            costs: Costs::new(&options),
            pages: Pages::new(options, 0),
            channels: vec![Channel::default(); options.channels as usize],
            turn: 0,
            controller_free: Time::ZERO,
            link_free: [Time::ZERO; 2],
            leaving: VecDeque::new(),
            media: MediaStats::default(),
        }
    }

    /// The controller takes a request that came at `now`.
    fn take(&mut self, now: Time) -> Time {
        self.controller_free = Time(self.controller_free.max(now).0 + self.options.controller_ns);
        self.controller_free
    }

    /// `len` bytes over the link that are there at `ready`. The link's work counts from the request on, so that bytes
    /// which are late do not hold up those that are there.
    fn transfer(&mut self, direction: usize, now: Time, ready: Time, len: u64) -> Time {
        let ns = transfer_ns(len, self.options.link_bytes_per_us);
        let free = &mut self.link_free[direction];
        *free = Time((*free).max(now).0 + ns);
        Time(ready.0 + ns).max(*free)
    }

    fn read(&mut self, now: Time, request: &SpeedRequest) -> Time {
        let taken = self.take(now);
        // What was never written is known to be zeros.
        let mut fetched = taken;
        for page in pages(request) {
            if let Some(channel) = self.pages.channel_of(page) {
                fetched = fetched.max(self.channels[channel].read(&self.costs, taken));
            }
        }
        let ready = Time(fetched.0 + self.options.read_firmware_ns);
        self.transfer(0, now, ready, request.len)
    }

    fn write(&mut self, now: Time, request: &SpeedRequest) -> Time {
        let taken = self.take(now);
        let came = self.transfer(1, now, taken, request.len);
        let mut buffered = came;
        for page in pages(request) {
            let entered = self.enter_buffer(came);
            buffered = buffered.max(entered);
            let left = self.program_page(page, entered);
            self.leaving.push_back(left);
        }
        Time(buffered.0 + self.options.write_firmware_ns)
    }

    /// A write that waits for the flash: each channel that it meets programs its pages without waiting for more.
    fn write_durably(&mut self, now: Time, request: &SpeedRequest) -> Time {
        let taken = self.take(now);
        let came = self.transfer(1, now, taken, request.len);
        let program = u64::from(self.options.pages_per_program);
        self.turn = self.turn.next_multiple_of(program);
        let mut stable = came;
        let mut rest = pages(request).peekable();
        while rest.peek().is_some() {
            let channel = self.next_channel();
            let mut cleaning = pages::Cleaning::default();
            let mut count = 0;
            for page in rest.by_ref().take(program as usize) {
                let done = self.pages.write(page, channel);
                cleaning.moves += done.moves;
                cleaning.erases += done.erases;
                count += 1;
            }
            self.turn += program;
            stable = stable.max(self.channels[channel].program_now(&self.costs, count, came));
            self.count(count, cleaning, channel, came);
        }
        Time(stable.0 + self.options.write_firmware_ns)
    }

    /// When the write buffer has room for a page that is there at `came`.
    fn enter_buffer(&mut self, came: Time) -> Time {
        if self.leaving.len() < self.options.buffer_pages as usize {
            return came;
        }
        self.leaving.pop_front().map_or(came, |left| left.max(came))
    }

    fn program_page(&mut self, page: u64, entered: Time) -> Time {
        let channel = self.next_channel();
        self.turn += 1;
        let cleaning = self.pages.write(page, channel);
        let left = self.channels[channel].program(&self.costs, entered);
        self.count(1, cleaning, channel, entered);
        left
    }

    /// The channel whose turn it is, or the next that has room.
    fn next_channel(&self) -> usize {
        let first = (self.turn / u64::from(self.options.pages_per_program)) as usize;
        let count = self.channels.len();
        let turns = (first..first + count).map(|turn| turn % count);
        let with_room = turns.clone().find(|&channel| self.pages.has_room(channel));
        with_room.expect("the channels together have room for more than the drive's size")
    }

    fn count(&mut self, pages: u64, cleaning: pages::Cleaning, channel: usize, at: Time) {
        self.channels[channel].clean(&self.costs, cleaning.moves, cleaning.erases, at);
        let block = BLOCK_BYTES as u64;
        self.media.bytes_written += (pages + u64::from(cleaning.moves)) * block;
        self.media.bytes_moved += u64::from(cleaning.moves) * block;
        self.media.erases += u64::from(cleaning.erases);
    }

    fn sync(&mut self, now: Time) -> Time {
        let taken = self.take(now);
        let empty = self.channels.iter().map(Channel::clean_at).max().unwrap_or(taken);
        Time(empty.max(taken).0 + self.options.flush_ns)
    }
}

/// The pages of a request.
fn pages(request: &SpeedRequest) -> std::ops::Range<u64> {
    let page = BLOCK_BYTES as u64;
    request.offset / page..request.end().div_ceil(page)
}

impl SpeedModel for Ssd {
    fn install(&mut self, size_bytes: u64, _phase: u64) {
        self.pages.grow(size_bytes);
    }

    fn submit(&mut self, now: Time, request: SpeedRequest, agenda: &mut Agenda) {
        let end = match request.access {
            Access::Read => self.read(now, &request),
            Access::Write => self.write(now, &request),
            Access::DurableWrite => self.write_durably(now, &request),
            Access::Sync => self.sync(now),
            Access::Discard => {
                pages(&request).for_each(|page| self.pages.discard(page));
                Time(self.take(now).0 + self.options.write_firmware_ns)
            }
        };
        agenda.end(request.key, end);
    }

    fn wake(&mut self, _now: Time, _agenda: &mut Agenda) {}

    fn cut_power(&mut self, _requests: &BTreeSet<RequestKey>) {}

    fn replace(&mut self) {
        *self = Ssd::new(self.options);
    }

    fn media(&self) -> MediaStats {
        let busy_ns = self.channels.iter().map(|channel| channel.busy_ns).sum();
        MediaStats { busy_ns, erases_max: self.pages.erases_max(), ..self.media }
    }
}

#[cfg(test)]
mod tests;
