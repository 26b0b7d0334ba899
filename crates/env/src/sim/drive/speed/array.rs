//! An array: drives that look like one, striped, mirrored, or both (RAID-0, RAID-1, RAID-10).
//!
//! ```text
//!   request ─► stripe by chunks ─► of each group of mirrors: a write goes to all sides, a read to one ─► ends with its last part
//! ```
//!
//! The members are models like any other, each with its own queue; the array adds no time and no queue of its own. Chunks
//! that follow one another on a member are one request to it, as an elevator above it would merge them.
//!
//! Not modelled: members that fail or are rebuilt, a bitmap of writes that are under way, parity, a controller with a cache.

use std::collections::{BTreeMap, BTreeSet};

use crate::Time;
use crate::mix::mix;

use super::{Access, Agenda, MediaStats, RequestKey, SpeedModel, SpeedRequest};

/// The numbers of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayOptions {
    /// Bytes that lie on one group before the next one follows; a multiple of the block size, not 0.
    pub chunk_bytes: u64,
    /// Groups of mirrors that the chunks go round; not 0. One is no stripe.
    pub groups: usize,
    /// Members of a group, which all hold the same; not 0. One is no mirror.
    pub sides: usize,
}

impl ArrayOptions {
    /// Chunks of 64 KiB over so many members (RAID-0).
    pub fn stripe(members: usize) -> Self {
        Self { chunk_bytes: 64 << 10, groups: members, sides: 1 }
    }

    /// So many members that hold the same (RAID-1).
    pub fn mirror(members: usize) -> Self {
        Self { sides: members, ..Self::stripe(1) }
    }

    /// Chunks of 64 KiB over so many pairs (RAID-10).
    pub fn striped_pairs(pairs: usize) -> Self {
        Self { sides: 2, ..Self::stripe(pairs) }
    }
}

/// One drive of an array.
struct Member {
    model: Box<dyn SpeedModel>,
    agenda: Agenda,
    /// The parts that it has not decided on, and whose they are.
    waiting: BTreeMap<RequestKey, RequestKey>,
    /// Where its last request ended.
    head: u64,
}

/// A request of which parts are not decided yet.
struct Whole {
    parts: usize,
    /// The latest end of those that are.
    end: Time,
}

/// Drives that look like one.
pub struct Array {
    options: ArrayOptions,
    /// The sides of the first group, then those of the next.
    members: Vec<Member>,
    wholes: BTreeMap<RequestKey, Whole>,
    parts: u64,
    /// When members want to be woken, and which. Each wish counts: a model need not repeat one.
    wakes: BTreeSet<(Time, usize)>,
    /// The wake that was asked for.
    woken_at: Option<Time>,
}

impl Array {
    /// An array of new drives, each from `member`. Panics if it has none, or chunks of nothing.
    pub fn new(options: ArrayOptions, mut member: impl FnMut() -> Box<dyn SpeedModel>) -> Self {
        assert!(options.groups > 0 && options.sides > 0, "an array without members");
        assert!(options.chunk_bytes > 0, "chunks that hold nothing");
        let count = options.groups * options.sides;
        let members = (0..count).map(|_| Member::new(member())).collect();
        Self { options, members, wholes: BTreeMap::new(), parts: 0, wakes: BTreeSet::new(), woken_at: None }
    }

    /// Where on a member of `group` the array's bytes `[offset, end)` lie; `None` if nowhere.
    fn extent(&self, group: u64, (offset, end): (u64, u64)) -> Option<(u64, u64)> {
        let (chunk, groups) = (self.options.chunk_bytes, self.options.groups as u64);
        let (first, last) = (offset / chunk, (end - 1) / chunk);
        let from = first + (group + groups - first % groups) % groups;
        let to = last.checked_sub((last % groups + groups - group) % groups)?;
        let start = from / groups * chunk + if from == first { offset % chunk } else { 0 };
        let stop = to / groups * chunk + if to == last { (end - 1) % chunk + 1 } else { chunk };
        (from <= to).then_some((start, stop))
    }

    /// Which side of `group` reads at `offset`: the one that stands there already, else the one with the fewest
    /// requests, among equals the one that stands nearest.
    fn side_to_read(&self, group: usize, offset: u64) -> usize {
        let first = group * self.options.sides;
        let sides = first..first + self.options.sides;
        let cost = |&side: &usize| {
            let member = &self.members[side];
            (member.head != offset, member.waiting.len(), member.head.abs_diff(offset))
        };
        sides.min_by_key(cost).unwrap_or(first)
    }

    /// Gives a part of the request `whole` to a member.
    fn give(&mut self, now: Time, whole: RequestKey, side: usize, request: SpeedRequest) {
        self.parts += 1;
        let key = RequestKey { serial: self.parts, slot: 0 };
        let member = &mut self.members[side];
        member.waiting.insert(key, whole);
        if request.len > 0 {
            member.head = request.end();
        }
        member.model.submit(now, SpeedRequest { key, ..request }, &mut member.agenda);
    }

    /// Passes on what the members decided.
    fn collect(&mut self, agenda: &mut Agenda) {
        for (number, member) in self.members.iter_mut().enumerate() {
            while let Some((part, at)) = member.agenda.take_end() {
                let Some(key) = member.waiting.remove(&part) else { continue };
                let Some(whole) = self.wholes.get_mut(&key) else { continue };
                whole.parts -= 1;
                whole.end = whole.end.max(at);
                if whole.parts == 0 {
                    agenda.end(key, whole.end);
                    self.wholes.remove(&key);
                }
            }
            self.wakes.extend(member.agenda.take_wake().map(|at| (at, number)));
        }
        let next = self.wakes.first().map(|&(at, _)| at);
        if let Some(at) = next.filter(|&at| self.woken_at.is_none_or(|asked| at < asked)) {
            self.woken_at = Some(at);
            agenda.wake(at);
        }
    }
}

impl Member {
    fn new(model: Box<dyn SpeedModel>) -> Self {
        Self { model, agenda: Agenda::default(), waiting: BTreeMap::new(), head: 0 }
    }
}

impl SpeedModel for Array {
    fn install(&mut self, size_bytes: u64, phase: u64) {
        let chunks = size_bytes.div_ceil(self.options.chunk_bytes);
        let share_bytes = chunks.div_ceil(self.options.groups as u64) * self.options.chunk_bytes;
        for (number, member) in self.members.iter_mut().enumerate() {
            member.model.install(share_bytes, mix(phase.wrapping_add(number as u64)));
        }
    }

    fn submit(&mut self, now: Time, request: SpeedRequest, agenda: &mut Agenda) {
        let mut parts = Vec::new();
        for group in 0..self.options.groups {
            let extent = match request.len {
                // A sync is for all of every member.
                0 => Some((0, 0)),
                _ => self.extent(group as u64, (request.offset, request.end())),
            };
            let Some((offset, end)) = extent else { continue };
            let part = SpeedRequest { offset, len: end - offset, ..request };
            let first = group * self.options.sides;
            if request.access == Access::Read {
                parts.push((self.side_to_read(group, offset), part));
            } else {
                parts.extend((first..first + self.options.sides).map(|side| (side, part)));
            }
        }
        self.wholes.insert(request.key, Whole { parts: parts.len(), end: now });
        for (side, part) in parts {
            self.give(now, request.key, side, part);
        }
        self.collect(agenda);
    }

    fn wake(&mut self, now: Time, agenda: &mut Agenda) {
        self.woken_at = self.woken_at.filter(|&at| at > now);
        while let Some(&(at, number)) = self.wakes.first()
            && at <= now
        {
            self.wakes.pop_first();
            let member = &mut self.members[number];
            member.model.wake(now, &mut member.agenda);
        }
        self.collect(agenda);
    }

    fn cut_power(&mut self, requests: &BTreeSet<RequestKey>) {
        self.wholes.retain(|key, _| !requests.contains(key));
        for member in &mut self.members {
            let cut = member.waiting.iter().filter(|(_, whole)| requests.contains(whole));
            let cut: BTreeSet<RequestKey> = cut.map(|(&part, _)| part).collect();
            member.waiting.retain(|part, _| !cut.contains(part));
            member.model.cut_power(&cut);
        }
    }

    fn replace(&mut self) {
        for member in &mut self.members {
            member.model.replace();
            member.waiting.clear();
            (member.agenda, member.head) = (Agenda::default(), 0);
        }
        self.wholes.clear();
        self.wakes.clear();
    }

    /// The sums over all members.
    fn media(&self) -> MediaStats {
        self.members.iter().map(|member| member.model.media()).fold(MediaStats::default(), |sum, one| {
            MediaStats {
                busy_ns: sum.busy_ns + one.busy_ns,
                seeks: sum.seeks + one.seeks,
                read_ahead_hits: sum.read_ahead_hits + one.read_ahead_hits,
                bytes_written: sum.bytes_written + one.bytes_written,
                bytes_moved: sum.bytes_moved + one.bytes_moved,
                erases: sum.erases + one.erases,
                erases_max: sum.erases_max.max(one.erases_max),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testbed::{Testbed, scattered};
    use super::super::{Access, Speed};
    use super::{Array, ArrayOptions};
    use crate::Time;

    const SIZE: u64 = 8 << 30;
    const PIECE: u64 = 1 << 20;

    fn of_disks(options: ArrayOptions) -> Testbed {
        Testbed::new(Box::new(Array::new(options, || Speed::Disk.model())), SIZE)
    }

    fn mb_per_s(bytes: u64, ns: u64) -> u64 {
        bytes * 1000 / ns
    }

    #[test]
    fn every_byte_lies_in_one_place_and_bytes_of_a_chunk_together() {
        let array = Array::new(ArrayOptions { chunk_bytes: 8, groups: 3, sides: 1 }, || Speed::Ram.model());
        for (offset, end) in [(0, 1), (0, 8), (7, 9), (5, 70), (24, 48), (30, 31), (16, 17)] {
            let mut from_parts = Vec::new();
            for group in 0..3 {
                let Some((start, stop)) = array.extent(group, (offset, end)) else { continue };
                from_parts.extend((start..stop).map(|at| (at / 8 * 3 + group) * 8 + at % 8));
            }
            from_parts.sort_unstable();
            assert_eq!(from_parts, (offset..end).collect::<Vec<u64>>(), "{offset}..{end}");
        }
    }

    #[test]
    fn a_stripe_writes_and_reads_in_order_as_fast_as_all_its_members_together() {
        for members in [2, 4, 7] {
            for access in [Access::DurableWrite, Access::Read] {
                let mut stripe = of_disks(ArrayOptions::stripe(members));
                let ns = stripe.closed_loop(access, PIECE, 32, 1000, |n| n * PIECE);
                let (speed, all) = (mb_per_s(1000 * PIECE, ns), 120 * members as u64);
                assert!(speed >= all * 85 / 100 && speed <= all, "{members} members, {access:?}: {speed}");
            }
        }
    }

    #[test]
    fn scattered_small_writes_in_place_give_a_few_megabytes_a_second() {
        let mut stripe = of_disks(ArrayOptions::stripe(4));
        let ns =
            stripe.closed_loop(Access::DurableWrite, 4096, 128, 4000, |n| scattered(n, SIZE / 4096, 4096));
        let kb_per_s = 4000 * 4096 * 1_000_000 / ns;
        assert!((2_000..6_000).contains(&kb_per_s), "{kb_per_s} kB/s");
    }

    #[test]
    fn a_mirror_writes_as_one_member_and_reads_scattered_blocks_as_all() {
        let write = |options| {
            let ns = of_disks(options).closed_loop(Access::DurableWrite, PIECE, 4, 300, |n| n * PIECE);
            mb_per_s(300 * PIECE, ns)
        };
        let read = |options| {
            let places = |n| scattered(n, SIZE / 4096, 4096);
            2000 * 1_000_000_000 / of_disks(options).closed_loop(Access::Read, 4096, 64, 2000, places)
        };
        let (one, two) = (ArrayOptions::mirror(1), ArrayOptions::mirror(2));
        assert!((110..=120).contains(&write(two)), "{} MB/s", write(two));
        assert!(read(two) > read(one) * 17 / 10, "{} and {} reads/s", read(one), read(two));
        let (pairs, stripe) = (write(ArrayOptions::striped_pairs(2)), write(ArrayOptions::stripe(2)));
        assert!(pairs >= stripe * 9 / 10 && pairs <= stripe, "{pairs} and {stripe} MB/s");
    }

    #[test]
    fn a_request_ends_with_the_last_of_its_parts() {
        let mut stripe = of_disks(ArrayOptions::stripe(2));
        let slow = stripe.submit(Access::Read, SIZE / 2, 4096);
        let both = stripe.submit(Access::Read, 0, 128 << 10);
        let fast = stripe.submit(Access::Read, 64 << 10, 4096);
        assert_eq!(stripe.next_end(), Some(fast), "the second member's part of the larger read came with it");
        assert_eq!(
            [stripe.next_end(), stripe.next_end()].map(|key| key == Some(both) || key == Some(slow)),
            [true; 2]
        );
        assert_eq!(stripe.next_end(), None);
    }

    #[test]
    fn a_write_to_a_mirror_is_on_every_side_when_it_ends() {
        let mut mirror = of_disks(ArrayOptions::mirror(3));
        mirror.run(Access::DurableWrite, 0, 4096);
        assert_eq!(mirror.media().bytes_written, 3 * 4096);
    }

    #[test]
    fn what_has_not_begun_on_any_member_when_the_power_goes_is_not_done() {
        let mut mirror = of_disks(ArrayOptions::mirror(2));
        let begun = mirror.submit(Access::DurableWrite, 0, 4096);
        let cut = mirror.submit(Access::DurableWrite, SIZE / 2, 4096);
        let other = mirror.submit(Access::DurableWrite, SIZE / 4, 4096);
        mirror.cut_power(&[begun, cut]);
        assert_eq!(
            [mirror.next_end(), mirror.next_end(), mirror.next_end()],
            [Some(begun), Some(other), None]
        );
        assert_eq!(mirror.media().bytes_written, 4 * 4096);
        mirror.replace();
        assert_eq!(mirror.media(), super::MediaStats::default());
        let before = mirror.now();
        assert!(mirror.run(Access::Read, 0, 4096) > before.max(Time(1)));
    }
}
