//! The writer alone, with a drive that answers in whatever order a test wants.

use std::ops::Range;

use bytes::Bytes;

use super::{Batch, Cause, Core, Effect, Io, Queued, Resume, Sizes, Ticket};
use crate::AppendError;
use crate::catalog::{Catalog, SegmentState};
use crate::error::Damage;
use crate::options::{ChainId, ChainOptions, Geometry};
use crate::run::{Run, RunKind, Table};

const SEGMENT_BYTES: u64 = 128 << 10;

/// A core and the writes that it waits for.
struct Rig {
    core: Core,
    waiting: Vec<(Io, u64)>,
    next_key: u64,
}

fn options() -> ChainOptions {
    ChainOptions {
        segment_bytes: SEGMENT_BYTES,
        flights: 4,
        group_max_bytes: 1,
        segments_ready: 0,
        capacity_bytes: 8 * SEGMENT_BYTES + (64 << 10),
        grow_bytes: SEGMENT_BYTES,
        ..ChainOptions::default()
    }
}

impl Rig {
    fn new(options: ChainOptions) -> Self {
        Self::with_segments(options, 8)
    }

    fn with_segments(options: ChainOptions, segments: u32) -> Self {
        let geometry = Geometry::new(SEGMENT_BYTES);
        let mut catalog = Catalog::default();
        catalog.space.add_link(0, segments);
        let core = Core::new(options, geometry, ChainId([1; 16]), catalog, Resume::new(None));
        let mut rig = Self { core, waiting: Vec::new(), next_key: 0 };
        rig.turn();
        rig
    }

    fn collect(&mut self, effects: Vec<Effect>) {
        self.waiting.extend(effects.into_iter().filter_map(|effect| match effect {
            Effect::Write { io, offset, .. } => Some((io, offset)),
            _ => None,
        }));
    }

    fn turn(&mut self) {
        let mut effects = Vec::new();
        self.core.turn(&mut effects);
        self.collect(effects);
    }

    /// Answers every write that `wanted` picks, and those that follow from it.
    fn answer(&mut self, wanted: impl Fn(&Io, u64) -> bool) {
        while let Some(index) = self.waiting.iter().position(|(io, offset)| wanted(io, *offset)) {
            let (io, _) = self.waiting.remove(index);
            let mut effects = Vec::new();
            self.core.done(io, Ok(()), &mut effects);
            self.collect(effects);
        }
    }

    fn append(&mut self, release: Option<Range<u64>>) -> Ticket {
        let ticket = self.try_append(release).expect("there is room");
        self.turn();
        ticket
    }

    /// Appends a record of two blocks, or a release, without a turn.
    fn try_append(&mut self, release: Option<Range<u64>>) -> Result<Ticket, AppendError> {
        let data = Bytes::from(vec![7; 8192]);
        let run = Run {
            first_key: self.next_key,
            version: 1,
            kind: RunKind::Data,
            meta: Bytes::new(),
            table: Table::of_payloads([&data]),
            data,
        };
        let batch = match release {
            None => Batch { runs: vec![run], ..Batch::default() },
            Some(range) => Batch { release: vec![range], ..Batch::default() },
        };
        let ticket = self.core.append(batch)?;
        self.next_key += 1;
        Ok(ticket)
    }
}

/// Whether a footer is written although the first group of the next segment, with the checkpoint, is not durable.
fn closes_too_early(options: ChainOptions) -> bool {
    let mut rig = Rig::new(options);
    let start = Geometry::new(SEGMENT_BYTES).segment_start(1);
    let is_checkpoint = |io: &Io, offset: u64| matches!(io, Io::Group(_)) && offset == start + 4096;
    for _ in 0..12 {
        rig.append(None);
        rig.answer(|io, offset| !is_checkpoint(io, offset) && !matches!(io, Io::Footer(_)));
    }
    assert!(rig.waiting.iter().any(|(io, offset)| is_checkpoint(io, *offset)), "the second segment is begun");
    rig.waiting.iter().any(|(io, _)| matches!(io, Io::Footer(_)))
}

/// Whether a segment is used again although the release of its keys is not durable.
fn recycles_too_early(options: ChainOptions) -> bool {
    let mut rig = Rig::new(options);
    while rig.core.free_bytes() > 2 * SEGMENT_BYTES {
        rig.append(None);
        rig.answer(|_, _| true);
    }
    let last = rig.append(Some(0..rig.next_key));
    let Some((release, _)) = rig.waiting.iter().find(|(io, _)| matches!(io, Io::Group(_))).copied() else {
        panic!("the release is on its way")
    };
    for _ in 0..3 {
        rig.turn();
        rig.core.reclaim_if_short();
        rig.answer(|io, _| *io != release);
        assert!(rig.core.durable() < last);
    }
    rig.core.catalog.space.free().0 > 0
}

#[test]
fn a_calm_log_has_as_many_segments_ready_as_it_took_and_a_busy_one_a_part_of_them() {
    // Else every burst would write to blocks that the file system has yet to record as written, or share the drive with the keeper.
    let keep = |rig: &mut Rig, is_calm| {
        let prepared = std::iter::from_fn(|| {
            let raw = rig.core.take_raw_segment(is_calm, |_| true)?;
            rig.core.set_ready(raw);
            Some(raw)
        });
        prepared.collect::<Vec<u32>>()
    };
    let take = |rig: &mut Rig, end: u32| {
        while rig.core.cursor.is_none_or(|cursor| cursor.segment < end) {
            rig.append(None);
            rig.answer(|_, _| true);
        }
    };
    let options = ChainOptions { segments_ready: 1, reserve_segments: 0, ..options() };
    let mut rig = Rig::with_segments(options, 40);
    assert_eq!(keep(&mut rig, false), [1], "what is asked for");
    assert!(rig.core.has_raw_for_calm(|_| true));
    assert_eq!(keep(&mut rig, true), [2], "one more: the first one is taken");
    assert!(!rig.core.has_raw_for_calm(|_| true));
    take(&mut rig, 4);
    assert_eq!(
        keep(&mut rig, false),
        [6],
        "it was written to as fast as could be, and will not be held up for more"
    );
    assert_eq!(keep(&mut rig, true), [7, 8, 9, 10, 11, 12]);
    take(&mut rig, 12);
    assert_eq!(keep(&mut rig, false), [14, 15, 16]);
    assert_eq!(keep(&mut rig, true).len(), 12, "never more than the most");
}

#[test]
fn a_segment_is_closed_only_when_the_checkpoint_behind_it_is_durable() {
    // Recovery reads releases from open segments only: if the last one is closed and nothing follows, they are lost.
    assert!(!closes_too_early(options()));
    let planted = crate::Planted::bug(crate::PlantedBug::ClosedBeforeCheckpoint);
    assert!(closes_too_early(ChainOptions { planted, ..options() }));
}

#[test]
fn a_segment_is_used_again_only_when_the_release_of_its_keys_is_durable() {
    // A crash in between would leave neither the records nor the release.
    assert!(!recycles_too_early(options()));
    let planted = crate::Planted::bug(crate::PlantedBug::RecycleBeforeDurable);
    assert!(recycles_too_early(ChainOptions { planted, ..options() }));
}

#[test]
fn tickets_become_durable_in_order_whatever_the_drive_answers_first() {
    let mut rig = Rig::new(options());
    rig.answer(|_, _| true);
    let tickets: Vec<Ticket> = (0..4).map(|_| rig.append(None)).collect();
    assert_eq!(rig.waiting.len(), 4, "four flights");
    let second = rig.waiting[1].0;
    rig.answer(|io, _| *io == second);
    assert!(rig.core.durable() < tickets[0]);
    let first = rig.waiting[0].0;
    rig.answer(|io, _| *io == first);
    assert_eq!(rig.core.durable(), tickets[1]);
}

#[test]
fn nothing_is_written_beside_the_fence() {
    let mut rig = Rig::new(options());
    rig.answer(|io, _| matches!(io, Io::Header(_)));
    rig.append(None);
    let groups = |rig: &Rig| rig.waiting.iter().filter(|(io, _)| matches!(io, Io::Group(_))).count();
    assert_eq!((groups(&rig), rig.core.is_fenced()), (1, false));
    rig.answer(|io, _| matches!(io, Io::Group(1)));
    assert_eq!((groups(&rig), rig.core.is_fenced()), (1, true));
}

#[test]
fn a_log_is_full_only_when_what_waits_leaves_no_room_once_it_is_written() {
    // A batch that waits is counted as if it were alone in its group, which is more than it will take.
    let mut rig = Rig::new(ChainOptions { group_max_bytes: 64 << 10, ..options() });
    let refused = loop {
        if let Err(error) = rig.try_append(None) {
            break error;
        }
    };
    assert!(matches!(refused, AppendError::Overloaded { .. }), "{refused}");
    rig.turn();
    rig.answer(|_, _| true);
    rig.try_append(None).expect("what waited shares groups");
    let refused = loop {
        rig.turn();
        rig.answer(|_, _| true);
        if let Err(error) = rig.try_append(None) {
            break error;
        }
    };
    assert!(matches!(refused, AppendError::Full { .. }), "{refused}");
}

#[test]
fn a_log_of_the_fewest_segments_has_room_again_once_all_of_it_is_released() {
    let options = ChainOptions { capacity_bytes: 4 * SEGMENT_BYTES + (64 << 10), ..options() };
    assert_eq!(options.validate(), Ok(()));
    let fewer = ChainOptions { capacity_bytes: options.capacity_bytes - 1, ..options.clone() };
    assert!(fewer.validate().is_err(), "there are no fewer");
    let mut rig = Rig::with_segments(options, 4);
    for round in 0..20 {
        let before = rig.next_key;
        let refused = loop {
            if let Err(error) = rig.try_append(None) {
                break error;
            }
            rig.turn();
            rig.answer(|_, _| true);
        };
        assert!(matches!(refused, AppendError::Full { .. }), "{refused}");
        assert!(rig.next_key > before, "round {round}");
        rig.append(Some(0..rig.next_key));
        rig.answer(|_, _| true);
        assert!(!rig.core.look_for_room(), "round {round}");
    }
}

#[test]
fn a_segment_in_which_harm_is_found_when_its_records_are_copied_stays_as_it_is() {
    // A reader may name it at any moment: that is nobody's mistake.
    let mut rig = Rig::new(options());
    while rig.core.counters.segments_closed == 0 {
        rig.append(None);
        rig.answer(|_, _| true);
    }
    let (segment, lap) = rig.core.closed_by_age()[0];
    rig.core.begin_cleaning(segment, lap, 0, 0, 0, Cause::Asked).expect("there is room");
    rig.core.victim_copied();
    rig.core.catalog.damage.push(Damage::of_some_groups(segment));
    assert_eq!(rig.core.free_victim(segment, lap, 0), None);
    assert!(rig.core.catalog.is_lap(segment, lap));
}

#[test]
fn a_segment_that_is_being_written_over_is_room_that_comes() {
    let capacity_bytes = 4 * SEGMENT_BYTES + (64 << 10);
    let mut rig = Rig::with_segments(ChainOptions { capacity_bytes, segments_ready: 2, ..options() }, 4);
    let raw = rig.core.take_raw_segment(false, |_| true).expect("none is ready");
    let fill = |rig: &mut Rig| loop {
        if let Err(error) = rig.try_append(None) {
            break error;
        }
        rig.turn();
        rig.answer(|_, _| true);
    };
    let refused = fill(&mut rig);
    assert!(matches!(refused, AppendError::Overloaded { .. }), "{refused}");
    assert!(!rig.core.look_for_room(), "nothing is told of a moment");
    rig.core.prepared(raw, &mut Vec::new());
    let before = rig.next_key;
    let refused = fill(&mut rig);
    assert!(matches!(refused, AppendError::Full { .. }) && rig.next_key > before, "{refused}");
    assert!(rig.core.look_for_room());
}

#[test]
fn cleaning_does_not_rest_while_data_waits_for_room() {
    // Nor do its copies leave the drive idle: nothing else can be written before there is room.
    let mut rig = Rig::new(ChainOptions { group_max_bytes: 64 << 10, ..options() });
    rig.answer(|_, _| true);
    let idle_bytes = rig.core.copies_window_bytes();
    assert!(!rig.core.is_cleaning_urgent());
    while rig.try_append(None).is_ok() {}
    assert!(rig.core.is_cleaning_urgent(), "with all but one segment free");
    assert!(rig.core.copies_window_bytes() > idle_bytes);
    rig.turn();
    rig.answer(|_, _| true);
    rig.try_append(Some(0..1)).expect("a release");
    assert!(rig.core.is_cleaning_urgent(), "a release needs no room of the data");
    rig.core.catalog.space.add_link(1, 8);
    rig.try_append(None).expect("there is room again");
    assert!(!rig.core.is_cleaning_urgent());
}

#[test]
fn a_group_is_due_before_the_end_of_the_turn_by_what_waits_and_what_is_under_way() {
    let mut rig = Rig::new(ChainOptions { group_max_bytes: 256 << 10, ..options() });
    rig.answer(|_, _| true);
    for under_way in 0..2 {
        let least_bytes = (64 << 10) * (under_way + 1);
        while !rig.core.is_group_due() {
            assert!(rig.core.queued_bytes() < least_bytes, "{under_way} groups are under way");
            rig.try_append(None).expect("there is room");
        }
        assert!(rig.core.queued_bytes() >= least_bytes, "{under_way} groups are under way");
        rig.turn();
    }
}

/// A log that is full of data, and up to the last block of marks; one segment was taken from it to be written over.
fn full_but_for_one(segments: u32) -> (Rig, u32) {
    let capacity_bytes = u64::from(segments) * SEGMENT_BYTES + (64 << 10);
    let options = ChainOptions { capacity_bytes, segments_ready: 2, reserve_segments: 0, ..options() };
    let mut rig = Rig::with_segments(options, segments);
    let raw = rig.core.take_raw_segment(false, |_| true).expect("none is ready");
    rig.answer(|_, _| true);
    while rig.try_append(None).is_ok() {
        rig.turn();
        rig.answer(|_, _| true);
    }
    for _ in 0..2 * SEGMENT_BYTES / 4096 {
        rig.core.close();
        rig.turn();
        rig.answer(|_, _| true);
    }
    assert!(!rig.core.is_idle(), "there is room for marks");
    (rig, raw)
}

#[test]
fn the_mark_of_a_close_is_left_out_only_when_no_room_comes() {
    let (mut rig, raw) = full_but_for_one(4);
    assert!(!rig.core.is_stuck(), "a segment is being written over");
    let mut effects = Vec::new();
    rig.core.give_back_raw(raw, &mut effects);
    rig.collect(effects);
    rig.answer(|_, _| true);
    assert!(rig.core.is_idle(), "it takes the mark as it is");
}

#[test]
fn what_waits_for_room_that_never_comes_is_not_said_to_be_written() {
    let (mut rig, raw) = full_but_for_one(4);
    // It holds something else from now on.
    rig.core.catalog.set(raw, SegmentState::Next);
    assert!(rig.core.is_stuck() && !rig.core.has_unwritten());
    // Copies are where they were, too; what was appended is nowhere.
    for is_asked_for in [false, true] {
        rig.core.queue.push_back(Queued {
            ticket: Ticket(rig.core.next_ticket),
            batch: Batch::default(),
            sizes: Sizes::default(),
            cost: 0,
            is_asked_for,
        });
        rig.turn();
        assert!(rig.core.is_stuck());
        assert_eq!(rig.core.has_unwritten(), is_asked_for);
    }
}

#[test]
fn a_close_misses_what_somebody_has_appended_and_nothing_of_the_chain_s_own() {
    let mut rig = Rig::new(options());
    rig.answer(|_, _| true);
    rig.core.append_own(Batch::default()).expect("there is room");
    rig.core.vouch_for_copies().expect("there is room");
    assert!(!rig.core.is_idle() && !rig.core.has_unwritten());
    rig.try_append(Some(0..1)).expect("there is room");
    assert!(rig.core.has_unwritten());
}
