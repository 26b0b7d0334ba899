//! What is going to happen: one heap ordered by time, then by the order of scheduling.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::rc::Rc;

use crate::Time;

use super::driver::Sim;
use super::net::SimStream;
use super::process::ProcessId;

/// Something done to the world from outside: a fault, a check.
pub(super) type Action = Box<dyn FnOnce(&Sim)>;

pub(super) enum Event {
    /// The timer in that slot, if its serial still matches.
    Timer {
        slot: usize,
        serial: u64,
    },
    /// The drive request in that slot is over, if its serial still matches.
    Io {
        drive: u32,
        slot: u32,
        serial: u64,
    },
    /// The model of the drive asked to be woken.
    DriveWake {
        drive: u32,
    },
    /// Bytes come to that end.
    Arrive(Rc<SimStream>),
    /// The peer has read, so that this end may send again.
    Window(Rc<SimStream>),
    /// A connect of that end comes to the machine called.
    Syn(Rc<SimStream>),
    /// The answer to the connect is back.
    SynAnswer(Rc<SimStream>),
    /// The process has CPU again for the wakes that it was given meanwhile.
    Run(ProcessId),
    Act(Action),
}

struct Entry {
    at: Time,
    order: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

#[derive(Default)]
pub(super) struct Queue {
    heap: BinaryHeap<Reverse<Entry>>,
    next_order: u64,
}

impl Queue {
    pub(super) fn push(&mut self, at: Time, event: Event) {
        self.next_order += 1;
        self.heap.push(Reverse(Entry { at, order: self.next_order, event }));
    }

    /// The first event if it is due by `limit`.
    pub(super) fn pop(&mut self, limit: Time) -> Option<(Time, Event)> {
        if self.heap.peek()?.0.at > limit {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Everything that was to come, to be dropped without a borrow of the queue.
    pub(super) fn take(&mut self) -> Queue {
        std::mem::take(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_instant_come_in_the_order_of_scheduling() {
        let mut queue = Queue::default();
        for (at, slot) in [(5, 1), (3, 2), (5, 3), (3, 4)] {
            queue.push(Time(at), Event::Timer { slot, serial: 0 });
        }
        let mut seen = Vec::new();
        while let Some((_, Event::Timer { slot, .. })) = queue.pop(Time(5)) {
            seen.push(slot);
        }
        assert_eq!(seen, [2, 4, 1, 3]);
    }
}
