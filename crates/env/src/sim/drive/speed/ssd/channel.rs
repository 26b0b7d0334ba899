//! When a channel of the flash does what: reads go before programs and erases, but nothing that has begun is broken off.
//!
//! Programs and erases of a channel stand in one line, of which only the end is known, the step of a program, and the
//! place of the last erase. A read waits for the step that is under way, then goes, and moves the rest of the line back.
//! What was promised of the line before is not taken back; what comes later pays.

use crate::Time;

use super::super::transfer_ns;
use super::SsdOptions;

/// One channel's time.
#[derive(Clone, Copy, Default)]
pub(super) struct Channel {
    reads_free: Time,
    /// The line of programs and erases, without a gap from `line_begin` on.
    line_begin: Time,
    line_free: Time,
    /// The last erase in the line.
    erase: (Time, Time),
    pub(super) busy_ns: u64,
}

/// How long the parts of a channel take, in nanoseconds.
#[derive(Clone, Copy)]
pub(super) struct Costs {
    read: u64,
    /// One program operation with its transfer.
    step: u64,
    /// A page's share of it.
    page: u64,
    /// Moving a page.
    moving: u64,
    erase: u64,
}

impl Costs {
    pub(super) fn new(options: &SsdOptions) -> Self {
        let transfer = transfer_ns(crate::limits::BLOCK_BYTES as u64, options.channel_bytes_per_us);
        let pages = u64::from(options.pages_per_program);
        let page = options.program_ns.div_ceil(pages) + transfer;
        let read = options.read_ns + transfer;
        Self { read, step: page * pages, page, moving: read + page, erase: options.erase_ns }
    }
}

impl Channel {
    /// Reads a page, not before `at`; when it is in the controller.
    pub(super) fn read(&mut self, costs: &Costs, at: Time) -> Time {
        let mut start = self.reads_free.max(at);
        if self.line_free > start && self.line_begin <= start {
            let begun = (start.0 - self.line_begin.0) % costs.step;
            let step_end = if begun == 0 { start } else { Time(start.0 + costs.step - begun) };
            let (from, to) = self.erase;
            start = if from < start && start < to { to } else { step_end.min(self.line_free) };
        }
        let end = Time(start.0 + costs.read);
        if self.line_free > start && self.line_begin < end {
            self.line_free = Time(self.line_free.0 + costs.read);
            self.line_begin = Time(self.line_begin.0 + costs.read);
            if self.erase.0 >= start {
                self.erase = (Time(self.erase.0.0 + costs.read), Time(self.erase.1.0 + costs.read));
            }
        }
        self.reads_free = end;
        self.busy_ns += costs.read;
        end
    }

    /// Programs a page that comes at `at`, as part of a full program operation; when it is on the flash.
    pub(super) fn program(&mut self, costs: &Costs, at: Time) -> Time {
        self.line(costs.page, at)
    }

    /// Programs `pages` at once, without waiting for more to fill an operation.
    pub(super) fn program_now(&mut self, costs: &Costs, pages: u64, at: Time) -> Time {
        self.line((pages * costs.page).next_multiple_of(costs.step), at)
    }

    /// Moves pages and erases blocks, behind what is in the line.
    pub(super) fn clean(&mut self, costs: &Costs, moves: u32, erases: u32, at: Time) {
        if moves > 0 {
            self.line(u64::from(moves) * costs.moving, at);
        }
        if erases > 0 {
            let end = self.line(u64::from(erases) * costs.erase, at);
            self.erase = (Time(end.0 - u64::from(erases) * costs.erase), end);
        }
    }

    /// When everything is on the flash that stands in the line.
    pub(super) fn clean_at(&self) -> Time {
        self.line_free
    }

    fn line(&mut self, cost: u64, at: Time) -> Time {
        let at = at.max(self.reads_free);
        if self.line_free <= at {
            (self.line_begin, self.line_free) = (at, at);
        }
        self.line_free = Time(self.line_free.0 + cost);
        self.busy_ns += cost;
        self.line_free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs() -> Costs {
        Costs::new(&SsdOptions::default())
    }

    #[test]
    fn a_read_waits_for_the_program_under_way_and_not_for_the_line() {
        let (costs, mut channel) = (costs(), Channel::default());
        for _ in 0..40 {
            channel.program(&costs, Time::ZERO);
        }
        let line = channel.clean_at();
        let read = channel.read(&costs, Time(1));
        assert_eq!(read, Time(costs.step + costs.read));
        assert_eq!(channel.read(&costs, Time(1)), Time(read.0 + costs.read), "reads follow reads");
        assert_eq!(channel.clean_at(), Time(line.0 + 2 * costs.read), "the line pays");
    }

    #[test]
    fn a_read_waits_for_an_erase_to_end() {
        let (costs, mut channel) = (costs(), Channel::default());
        channel.clean(&costs, 0, 1, Time::ZERO);
        assert_eq!(channel.read(&costs, Time(1000)), Time(costs.erase + costs.read));
    }

    #[test]
    fn a_program_by_itself_takes_a_whole_operation() {
        let (costs, mut channel) = (costs(), Channel::default());
        assert_eq!(channel.program_now(&costs, 1, Time::ZERO), Time(costs.step));
        assert_eq!(channel.program_now(&costs, 5, Time::ZERO), Time(3 * costs.step));
        let mut channel = Channel::default();
        assert_eq!(channel.program(&costs, Time::ZERO), Time(costs.page));
    }
}
