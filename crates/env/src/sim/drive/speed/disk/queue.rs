//! The elevator: in which order the arm serves what waits for it.
//!
//! Up to `depth` requests form a sweep. The arm serves a sweep in the order of the bytes, upwards from where it stands and
//! then once from below; requests that come meanwhile form the next sweep. So nobody waits for more than two sweeps,
//! whatever the others send, and a sequential stream is served in its order.

use std::collections::{BTreeMap, VecDeque};

use crate::Time;

use super::super::{Access, RequestKey};

/// Something for the arm to do.
#[derive(Clone, Copy)]
pub(super) struct Job {
    /// Who waits for it. `None` for what the write cache took, which was answered long ago.
    pub(super) key: Option<RequestKey>,
    pub(super) access: Access,
    pub(super) offset: u64,
    pub(super) end: u64,
    /// The arm cannot start before.
    pub(super) ready: Time,
    /// Its place in the order of arrival.
    pub(super) number: u64,
}

pub(super) struct Elevator {
    depth: usize,
    outside: VecDeque<Job>,
    sweep: BTreeMap<(u64, u64), Job>,
}

impl Elevator {
    pub(super) fn new(depth: usize) -> Self {
        Self { depth, outside: VecDeque::new(), sweep: BTreeMap::new() }
    }

    pub(super) fn push(&mut self, job: Job) {
        self.outside.push_back(job);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.outside.is_empty() && self.sweep.is_empty()
    }

    /// Takes the next job of an arm that stands at `head`.
    pub(super) fn next(&mut self, head: u64) -> Option<Job> {
        if self.sweep.is_empty() {
            let count = self.outside.len().min(self.depth);
            self.sweep.extend(self.outside.drain(..count).map(|job| ((job.offset, job.number), job)));
        }
        let ahead = self.sweep.range((head, 0)..).next().map(|(&place, _)| place);
        match ahead {
            Some(place) => self.sweep.remove(&place),
            None => self.sweep.pop_first().map(|(_, job)| job),
        }
    }

    /// Takes out what `stays` does not hold of.
    pub(super) fn retain(&mut self, stays: impl Fn(&Job) -> bool) {
        self.outside.retain(&stays);
        self.sweep.retain(|_, job| stays(job));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(number: u64, offset: u64) -> Job {
        Job { key: None, access: Access::Read, offset, end: offset + 1, ready: Time::ZERO, number }
    }

    fn order(elevator: &mut Elevator, mut head: u64) -> Vec<u64> {
        std::iter::from_fn(|| elevator.next(head).inspect(|job| head = job.end))
            .map(|job| job.offset)
            .collect()
    }

    #[test]
    fn a_sweep_goes_up_from_the_head_and_then_starts_from_below() {
        let mut elevator = Elevator::new(32);
        for (number, offset) in [50, 10, 90, 40, 20].into_iter().enumerate() {
            elevator.push(job(number as u64, offset));
        }
        assert_eq!(order(&mut elevator, 30), [40, 50, 90, 10, 20]);
    }

    #[test]
    fn what_comes_during_a_sweep_waits_for_the_next_however_near_it_is() {
        let mut elevator = Elevator::new(2);
        for (number, offset) in [10, 900, 11, 12].into_iter().enumerate() {
            elevator.push(job(number as u64, offset));
        }
        assert_eq!(order(&mut elevator, 0), [10, 900, 11, 12]);
    }
}
