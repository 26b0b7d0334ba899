//! Deliberate faults: each must be found by the same checks that the real code passes, within a number of seeds.
//!
//! `ClosedBeforeCheckpoint` and `RecycleBeforeDurable` need a drive that overtakes itself in just one way; the tests of the
//! writer's core play that drive.

use std::cell::RefCell;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use ithaca_chain::{ChainOptions, Planted, PlantedBug};
use ithaca_env::sim::{Death, DriveFault, Random};

use crate::cache;
use crate::changes::{self, is_kept_while_adding, is_old_copy_refused};
use crate::cleaning;
use crate::control::lose_what_is_repeated;
use crate::crashes::lives;
use crate::damage::{Loss, Tally, harm_and_look, is_lost_segment_missed, lose_a_group};
use crate::drives::{is_growth_known, tiny_drives};
use crate::interrupted;
use crate::metadata;
use crate::mirrors::{self, cut_at, is_stale_side_refused};
use crate::notary::is_returned_side_refused;
use crate::owned;
use crate::space::fill_and_release;
use crate::unread;
use crate::world::small_options;

/// Whether a run with this fault, or with none, comes to a failed check.
fn fails(run: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(run)).is_err()
}

/// One of the runs fails with the fault and, so that it is the fault that was found, does not fail without it.
fn is_found<T: Copy + Debug>(
    bug: PlantedBug,
    options: &ChainOptions,
    runs: impl IntoIterator<Item = T>,
    run: impl Fn(T, &ChainOptions),
) {
    let planted = ChainOptions { planted: Planted::bug(bug), ..options.clone() };
    let is_seen = |&at: &T| fails(|| run(at, &planted)) && !fails(|| run(at, options));
    let found = runs.into_iter().find(is_seen);
    assert!(found.is_some(), "{bug:?} went unnoticed");
    println!("{bug:?}: found at {found:?}");
}

fn is_found_by_crashes(bug: PlantedBug, ceiling: u64) {
    is_found(bug, &small_options(), 1..=ceiling, |seed, options| {
        lives(seed, |it| it.planted = options.planted);
    });
}

/// Looks for it in runs with a flipped bit.
fn is_found_by_flips(bug: PlantedBug, ceiling: usize) {
    let options = ChainOptions { tail_cache_bytes: 0, ..small_options() };
    let mut rng = Random::new(77);
    let flips = std::iter::repeat_with(|| DriveFault::BitRot {
        offset: (64 << 10) + rng.below((12 * 128) << 10),
        bit: rng.below(8) as u8,
    });
    let tally = Rc::new(RefCell::new(Tally::default()));
    is_found(bug, &options, flips.take(ceiling), |flip, options| harm_and_look(options, flip, &tally));
}

#[test]
fn an_acknowledgement_before_the_drive_answers_is_found() {
    is_found_by_crashes(PlantedBug::AckBeforeDurable, 40);
}

#[test]
fn an_acknowledgement_out_of_order_is_found() {
    is_found_by_crashes(PlantedBug::AckOutOfOrder, 200);
}

#[test]
fn a_recovery_that_skips_checksums_is_found() {
    is_found_by_crashes(PlantedBug::RecoverySkipsChecksum, 200);
}

#[test]
fn a_recovery_that_takes_an_older_lap_is_found() {
    is_found_by_crashes(PlantedBug::StaleLapAccepted, 200);
}

#[test]
fn a_recovery_that_takes_what_another_cut_is_found() {
    is_found_by_crashes(PlantedBug::StaleIncarnationAccepted, 400);
}

#[test]
fn a_recovery_that_leaves_cut_segments_is_found() {
    is_found_by_crashes(PlantedBug::CutSegmentKept, 400);
}

#[test]
fn a_checkpoint_without_the_released_keys_is_found() {
    is_found_by_crashes(PlantedBug::ReleaseForgottenAtRoll, 40);
}

#[test]
fn data_in_the_space_kept_for_releases_is_found() {
    let options = ChainOptions { planted: Planted::bug(PlantedBug::ReserveNotKept), ..small_options() };
    let fill = || fill_and_release(&options);
    assert!(fails(fill), "a full drive that cannot release went unnoticed");
}

#[test]
fn a_recovery_that_cuts_at_damage_is_found() {
    is_found_by_flips(PlantedBug::CutDamagedMiddle, 400);
}

#[test]
fn a_recovery_that_forgets_what_a_lost_group_may_have_held_is_found() {
    let options = ChainOptions { planted: Planted::bug(PlantedBug::LostGroupForgotten), ..small_options() };
    let lose = || lose_a_group(&options);
    assert!(fails(lose), "keys of a lost group went unnoticed");
}

#[test]
fn groups_that_do_not_repeat_what_those_before_them_said_are_found() {
    let options = ChainOptions { planted: Planted::bug(PlantedBug::ControlToldOnce), ..small_options() };
    assert!(fails(|| lose_what_is_repeated(&options)), "what a lost group said was gone without a word");
}

#[test]
fn a_read_that_skips_checksums_is_found() {
    is_found_by_flips(PlantedBug::ReadSkipsChecksum, 400);
}

#[test]
fn a_drive_that_takes_records_before_it_is_a_member_is_found() {
    let options = ChainOptions { planted: Planted::bug(PlantedBug::AddUsedBeforeMember), ..tiny_drives() };
    assert!(!is_kept_while_adding(&options), "records on a drive that nobody knows of went unnoticed");
}

#[test]
fn a_drive_that_is_removed_with_records_on_it_is_found() {
    is_found(PlantedBug::RemovedWithRecords, &tiny_drives(), 1..=40, |seed, options| {
        changes::lives(seed, options);
    });
}

#[test]
fn an_open_that_takes_an_old_copy_of_a_drive_is_found() {
    let options = ChainOptions { planted: Planted::bug(PlantedBug::GenerationIgnored), ..tiny_drives() };
    assert!(!is_old_copy_refused(&options), "the old copy is noticed by something else");
}

#[test]
fn an_open_that_does_not_ask_the_notary_is_found() {
    let options = ChainOptions { planted: Planted::bug(PlantedBug::NotaryIgnored), ..tiny_drives() };
    assert!(!is_returned_side_refused(&options), "the side is refused for something else");
}

#[test]
fn growth_that_no_superblock_tells_of_is_found() {
    let options = ChainOptions { planted: Planted::bug(PlantedBug::GrowthNotRecorded), ..tiny_drives() };
    assert!(!is_growth_known(&options), "the cut is noticed by something else");
}

#[test]
fn a_side_that_is_given_up_in_memory_alone_is_found() {
    let options = ChainOptions { planted: Planted::bug(PlantedBug::DropNotPersisted), ..tiny_drives() };
    assert!(!is_stale_side_refused(&options), "the side is refused for something else");
}

#[test]
fn an_open_that_believes_a_stale_side_is_found() {
    let options = ChainOptions { planted: Planted::bug(PlantedBug::StaleSideBelieved), ..tiny_drives() };
    assert!(!is_stale_side_refused(&options), "the side is refused for something else");
}

#[test]
fn sides_that_are_left_different_are_found() {
    let cuts = (1..=400).step_by(2).flat_map(|point| [(point, mirrors::A), (point, mirrors::B)]);
    is_found(PlantedBug::SidesLeftUnequal, &small_options(), cuts, |(point, alone), options| {
        cut_at(point, Death::PowerCut, alone, options);
    });
}

#[test]
fn a_repair_that_skips_checksums_is_found() {
    let options = ChainOptions { planted: Planted::bug(PlantedBug::RepairSkipsVerify), ..small_options() };
    assert!(!mirrors::is_damage_on_both_sides_told(&options), "wrong bytes are noticed by something else");
}

#[test]
fn a_side_that_counts_before_it_is_rebuilt_is_found() {
    is_found(PlantedBug::RebuildCountsEarly, &tiny_drives(), (1..=200).step_by(3), |point, options| {
        mirrors::rebuild_cut_at(point, options);
    });
}

/// Looks for it in runs with a crash while segments are cleaned.
fn is_found_by_cleaning(bug: PlantedBug, options: &ChainOptions) {
    is_found(bug, options, 1..=200, |point, options| {
        interrupted::cut_at(point, Death::PowerCut, &["chain"], options);
    });
}

#[test]
fn a_victim_that_is_freed_before_its_copies_are_durable_is_found() {
    // The copies are on their way when the segment is wiped, and nearly always arrive first: a matter of many lives.
    is_found(PlantedBug::VictimFreedEarly, &cleaning::eager(), 1..=200, |seed, options| {
        lives(seed, |it| {
            it.planted = options.planted;
            it.clean_start_free_percent = options.clean_start_free_percent;
            it.clean_stop_free_percent = options.clean_stop_free_percent;
        });
    });
}

#[test]
fn a_body_segment_that_counts_before_it_is_closed_is_found() {
    is_found_by_cleaning(PlantedBug::BodyCountsEarly, &cleaning::in_body());
}

#[test]
fn two_victims_that_are_freed_because_of_each_other_are_found() {
    // Two victims of which each has the other's newest record wait together in some lives only.
    let cuts = (1..=30).flat_map(|seed| (1..=800).step_by(33).map(move |point| (seed, point)));
    is_found(PlantedBug::WaitingCountsAsCopy, &cleaning::in_body(), cuts, |(seed, point), options| {
        interrupted::mirrored_cut_at(seed, point, options);
    });
}

#[test]
fn a_cleaner_that_leaves_a_live_record_out_is_found() {
    is_found_by_cleaning(PlantedBug::CleanerDropsLive, &cleaning::eager());
}

#[test]
fn a_cleaner_that_moves_what_is_released_is_found() {
    let options =
        ChainOptions { planted: Planted::bug(PlantedBug::CleanerIgnoresRelease), ..cleaning::eager() };
    assert!(!cleaning::leaves_little_garbage(&options), "garbage that stays went unnoticed");
}

#[test]
fn a_cleaner_that_drops_what_is_damaged_is_found() {
    let options =
        ChainOptions { planted: Planted::bug(PlantedBug::CleanerFreesDamaged), ..cleaning::eager() };
    assert!(!cleaning::keeps_damage(&options), "a record that vanished without a word went unnoticed");
}

#[test]
fn groups_that_stand_for_a_footer_although_some_are_lost_are_found() {
    let options = ChainOptions { planted: Planted::bug(PlantedBug::FooterOfSomeGroups), ..tiny_drives() };
    assert!(!unread::keeps_what_groups_do_not_tell(&options), "records that vanished went unnoticed");
}

#[test]
fn a_victim_that_is_freed_before_its_copies_are_vouched_for_is_found() {
    let options =
        ChainOptions { planted: Planted::bug(PlantedBug::VictimFreedUnvouched), ..cleaning::eager() };
    assert!(!cleaning::copies_are_vouched_for(&options), "copies that can be cut off went unnoticed");
}

#[test]
fn a_cache_that_is_believed_without_a_checksum_is_found() {
    let options = ChainOptions {
        planted: Planted::bug(PlantedBug::CacheLineBelieved),
        tail_cache_bytes: 32 << 10,
        ..small_options()
    };
    assert!(!cache::is_flip_harmless(&options), "wrong bytes of a cache drive went unnoticed");
}

#[test]
fn a_cache_that_serves_an_earlier_lap_is_found() {
    let options = ChainOptions { planted: Planted::bug(PlantedBug::CacheServesOldLap), ..small_options() };
    assert!(!cache::is_old_lap_a_miss(&options), "records of an earlier lap went unnoticed");
}

/// Looks for it in runs with crashes of a chain whose keys are overwritten.
fn is_found_by_owners(bug: PlantedBug, options: &ChainOptions) {
    let options = ChainOptions { capacity_bytes: 2 << 20, ..options.clone() };
    is_found(bug, &options, 0..40, |seed, options| {
        owned::lives(seed, options);
    });
}

#[test]
fn a_tombstone_that_is_dropped_before_what_it_deletes_is_found() {
    is_found_by_owners(PlantedBug::TombstoneDroppedEarly, &cleaning::eager());
}

#[test]
fn an_owner_that_is_not_told_where_its_records_went_is_found() {
    is_found_by_owners(PlantedBug::OwnerNotToldOfMove, &cleaning::eager());
}

#[test]
fn a_place_that_is_read_in_a_later_use_of_its_segment_is_found() {
    let planted = Planted::bug(PlantedBug::ReadAtForgetsLap);
    let options = ChainOptions { planted, capacity_bytes: 1 << 20, ..cleaning::eager() };
    assert!(owned::read_of_an_old_place(&options).is_ok(), "the place is refused for something else");
}

#[test]
fn a_block_that_was_read_in_an_earlier_use_of_its_segment_is_found() {
    let options = ChainOptions { read_cache_bytes: 2 << 20, tail_cache_bytes: 0, ..cleaning::eager() };
    is_found_by_owners(PlantedBug::ReadCacheForgetsLap, &options);
}

#[test]
fn a_written_block_that_is_remembered_in_the_place_of_another_is_found() {
    let options =
        ChainOptions { read_cache_bytes: 64 << 10, tail_cache_bytes: 16 << 10, ..cleaning::eager() };
    is_found_by_owners(PlantedBug::WrittenOnePlaceOff, &options);
}

#[test]
fn a_metadata_drive_that_is_believed_without_asking_is_found() {
    let options =
        ChainOptions { planted: Planted::bug(PlantedBug::StaleMetadataBelieved), ..small_options() };
    assert!(!metadata::is_stale_drive_harmless(&options), "entries of an earlier use went unnoticed");
}

#[test]
fn a_footer_that_is_mirrored_before_its_segment_is_closed_is_found() {
    is_found(PlantedBug::MetadataBeforeClose, &small_options(), 1..=100, |seed, options| {
        metadata::lives(seed, |it| it.planted = options.planted);
    });
}

#[test]
fn an_open_that_does_not_miss_a_segment_is_found() {
    let options = ChainOptions { planted: Planted::bug(PlantedBug::CensusIgnored), ..small_options() };
    assert!(!is_lost_segment_missed(&options, Loss::Everything), "a segment that vanished went unnoticed");
}
